//! From a trace to IR: storage versions become values, geometries become movement ops, ATen rows do the rest.
//!
//! Nodes without a row (or whose row declines) split the trace into *pieces*: graphs that are compiled, and call nodes
//! that run through the eager engine in between, within the same program.
pub use crate::ScalarSource;
use crate::aten::expr::Ctx;
use crate::aten::{KEEP, Row, Unsupported};
use crate::byte_copies::{ByteCopy, byte_copies};
use crate::cx::{Cx, PieceState, Reader, as_dtype, elements};
use crate::view::Geometry;
use crate::words::{Arg, TensorArg};
use crate::{OutKind, ScalarType, Trace};
use ahash::AHashMap;
use rsx_compiler::ir::{Builder, DType, Graph, ParamKind, TensorType, TypeError, Value};

/// One part of a lowered trace.
#[derive(Debug)]
pub enum Piece {
    Graph(GraphPiece),
    /// Node number `node` of the trace runs through the eager engine.
    Call {
        node: usize,
        why: Unsupported,
    },
}

/// A compiled part: storages in, storages out.
#[derive(Debug)]
pub struct GraphPiece {
    pub graph: Graph,
    /// Trace storage index of each tensor parameter, in order.
    pub inputs: Vec<u32>,
    /// Source of each scalar parameter, in order.
    pub scalars: Vec<ScalarSource>,
    /// Trace storage index of each graph result, in order.
    pub outputs: Vec<u32>,
}

/// A lowering that failed for a reason of rsx's own.
#[derive(Clone, Debug, thiserror::Error)]
#[error("lowering {op}: {error}")]
pub struct LowerError {
    pub op: String,
    pub error: TypeError,
}

type Res<T> = Result<T, Unsupported>;

/// Lowers a trace. `live[i]`: storage i can be read from outside afterwards.
///
/// A row that breaks a type rule (a bug of the table) costs that node its lowering, not the user his program: the
/// trace is lowered again with the node as a call node.
pub fn lower(trace: &Trace, live: &[bool]) -> Result<Vec<Piece>, LowerError> {
    let plan = Plan::new(trace, live);
    let mut broken: AHashMap<usize, Unsupported> = AHashMap::default();
    loop {
        let (node, error) = match lower_with(trace, &plan, &broken) {
            Ok(pieces) => return Ok(pieces),
            Err(Failure::Node(n, e)) if !broken.contains_key(&n) => (n, e),
            Err(Failure::Node(n, e)) => return Err(LowerError { op: trace.nodes[n].sig.op.name.clone(), error: e }),
            Err(Failure::Segment(e)) => return Err(LowerError { op: "the segment".into(), error: e }),
        };
        let op = trace.nodes[node].sig.op.name.clone();
        tracing::error!(target: "rsx::lower", op, %error, "a lowering is broken; the op runs eagerly");
        broken.insert(node, Unsupported::Broken { op, error: error.to_string() });
    }
}

/// Where a type rule was violated.
enum Failure {
    Node(usize, TypeError),
    Segment(TypeError),
}

fn lower_with(trace: &Trace, plan: &Plan, broken: &AHashMap<usize, Unsupported>) -> Result<Vec<Piece>, Failure> {
    let mut pieces = Vec::new();
    let mut state = PieceState::default();
    let g = Ctx::new(Builder::new("segment"));
    for n in (0..trace.nodes.len()).filter(|&n| plan.needed[n]) {
        g.borrow_mut().loc = n as u32;
        let lowered = match broken.get(&n) {
            Some(why) => Err(why.clone()),
            None => match plan.byte_copies.get(&n) {
                Some(copy) => {
                    copy_bytes(trace, *copy, &mut g.borrow_mut(), &mut state);
                    Ok(())
                }
                None => lower_node(trace, n, &g, &mut state),
            },
        };
        if let Some(error) = g.borrow().error() {
            return Err(Failure::Node(n, error.clone()));
        }
        if let Err(why) = lowered {
            let (old, done) = (g.take(), std::mem::take(&mut state));
            pieces.extend(close(old, done, n, plan).map_err(Failure::Segment)?);
            pieces.push(Piece::Call { node: n, why });
        }
    }
    pieces.extend(close(g.into_inner(), state, usize::MAX, plan).map_err(Failure::Segment)?);
    Ok(pieces)
}

/// What has to be computed.
struct Plan {
    /// Nodes whose results somebody uses.
    needed: Vec<bool>,
    /// For each storage, the last needed node that uses it, or `usize::MAX` if it is live at the end.
    last_use: Vec<usize>,
    byte_copies: AHashMap<usize, ByteCopy>,
}

impl Plan {
    fn new(trace: &Trace, live: &[bool]) -> Plan {
        let needed = trace.needed(live);
        let mut last_use: Vec<usize> = live.iter().map(|&l| if l { usize::MAX } else { 0 }).collect();
        for (n, node) in trace.nodes.iter().enumerate().filter(|(n, _)| needed[*n]) {
            for &i in trace.inputs(node) {
                let last = &mut last_use[i as usize];
                *last = (*last).max(n);
            }
        }
        Plan { needed, last_use, byte_copies: byte_copies(trace) }
    }
}

/// Ends a piece before node `n` (or at the end): its results are the storages it wrote that somebody still needs.
fn close(mut b: Builder, state: PieceState, n: usize, plan: &Plan) -> Result<Option<Piece>, TypeError> {
    // Live storages count as used by node usize::MAX, which no piece ends before.
    let needed = |&i: &u32| plan.last_use[i as usize] >= n;
    let outputs: Vec<u32> = state.written.iter().copied().filter(needed).collect();
    if outputs.is_empty() {
        return Ok(None);
    }
    let mut results: Vec<Value> = outputs.iter().map(|i| state.bases[i]).collect();
    // A storage that was read and is overwritten: its old version has no other reader, the program may reuse it.
    let tensor_params: Vec<u32> = (0..b.graph().params.len() as u32)
        .filter(|&p| b.graph().params[p as usize].kind == ParamKind::Tensor)
        .collect();
    let place: AHashMap<u32, usize> = outputs.iter().enumerate().map(|(r, &o)| (o, r)).collect();
    for (input, &param) in state.inputs.iter().zip(&tensor_params) {
        let Some(&r) = place.get(input) else { continue };
        // The same memory under the sizes it was first read with.
        let old = b.graph().params[param as usize].ty.clone();
        let new = b.ty(results[r]);
        if new.dtype == old.dtype && new.numel() == old.numel() {
            results[r] = b.reshape(results[r], &old.dims);
            b.donate(param, r as u32);
        }
    }
    let graph = b.finish(results)?;
    Ok(Some(Piece::Graph(GraphPiece { graph, inputs: state.inputs, scalars: state.scalars, outputs })))
}

/// A place that a result goes to.
struct Destination<'a> {
    /// Trace storage index and geometry on it.
    index: u32,
    geometry: Geometry,
    dtype: DType,
    sizes: &'a [i64],
    /// A fresh storage: its old contents are undefined.
    fresh: bool,
}

impl Destination<'_> {
    fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, self.sizes)
    }
}

/// Where the results of a node go, in the order in which rows return them: the op's results (lists spread out; `None`
/// for undefined tensors and integers), then the arguments it may write.
fn destinations<'a>(
    trace: &Trace,
    node: &crate::Node,
    sig: &'a crate::Sig,
    args: &'a [Arg],
) -> Result<Vec<Option<Destination<'a>>>, String> {
    let element = |s: ScalarType| s.dtype().ok_or_else(|| format!("element type {s:?}"));
    let mut list = Vec::new();
    let mut storages = trace.outputs(node).iter();
    for o in sig.outs.iter().filter(|o| o.kind != OutKind::List) {
        list.push(match (o.kind == OutKind::Fresh).then(|| storages.next()).flatten() {
            Some(&index) => Some(Destination {
                index,
                geometry: Geometry::new(o.sizes(), o.strides(), 0),
                dtype: element(o.scalar_type())?,
                sizes: o.sizes(),
                fresh: true,
            }),
            None => None,
        });
    }
    let record = trace.inputs(node);
    let mut targets: Vec<&TensorArg> = Vec::new();
    for i in sig.op.writes() {
        if let Some(a) = args.get(i) {
            a.tensors(&mut |t| targets.push(t));
        }
    }
    for t in targets {
        list.push(Some(Destination {
            index: record[t.storage as usize],
            geometry: Geometry::new(&t.sizes, &t.strides, t.offset),
            dtype: element(t.dtype)?,
            sizes: &t.sizes,
            fresh: false,
        }));
    }
    Ok(list)
}

/// A storage becomes a copy of another: see [`crate::byte_copies`].
fn copy_bytes(trace: &Trace, copy: ByteCopy, b: &mut Builder, state: &mut PieceState) {
    let base = match state.bases.get(&copy.from) {
        Some(&base) => base,
        None => {
            state.inputs.push(copy.from);
            let n = elements(trace, copy.from, copy.dtype);
            let base = b.parameter(TensorType::new(copy.dtype, [n]), ParamKind::Tensor);
            state.bases.insert(copy.from, base);
            base
        }
    };
    state.set_base(copy.to, base);
}

fn lower_node(trace: &Trace, n: usize, g: &Ctx, state: &mut PieceState) -> Res<()> {
    let node = &trace.nodes[n];
    let sig = &*node.sig;
    let name = sig.op.name.as_str();
    let row: &Row = sig.op.row.ok_or_else(|| Unsupported::NoRow(name.to_owned()))?;
    let declined = |reason: String| Unsupported::Declined { op: name.to_owned(), reason };
    let args = sig.args().map_err(|e| declined(e.to_string()))?;
    let destinations = destinations(trace, node, sig, args).map_err(declined)?;
    let values = {
        let outs = destinations.iter().map(|d| d.as_ref().map(Destination::ty)).collect();
        let reader = Reader { trace, record: trace.inputs(node), data_at: node.data.start, state };
        (row.lower)(&mut Cx::new(g, name, args, reader, outs))?
    };
    if values.len() != destinations.len() {
        return Err(declined(format!("{} results from its row, {} expected", values.len(), destinations.len())));
    }
    let b = &mut *g.borrow_mut();
    // A view of a storage under another element size cannot be written: found out before anything is.
    for d in destinations.iter().flatten() {
        if let Some(&old) = state.bases.get(&d.index)
            && !d.covers(trace)
            && !d.fresh
            && as_dtype(b, old, d.dtype).is_none()
        {
            return Err(declined(format!("write of {} into {}", d.dtype, b.ty(old))));
        }
    }
    for (v, d) in values.into_iter().zip(&destinations) {
        match d {
            Some(d) if v != KEEP => d.write(trace, b, state, v),
            Some(d) if d.fresh => return Err(declined("its row left a result out".into())),
            _ => {}
        }
    }
    Ok(())
}

impl Destination<'_> {
    /// Does the geometry cover the whole storage?
    fn covers(&self, trace: &Trace) -> bool {
        self.geometry.dense_dims(elements(trace, self.index, self.dtype)).is_some()
    }

    /// Makes the storage's next version out of `v`.
    fn write(&self, trace: &Trace, b: &mut Builder, state: &mut PieceState, v: Value) {
        let v = b.convert(v, self.dtype);
        let v = b.broadcast_to(v, self.sizes);
        let n = elements(trace, self.index, self.dtype);
        let base = if self.fresh || self.covers(trace) {
            self.geometry.write_new(b, n, v)
        } else {
            let old = match state.bases.get(&self.index) {
                // Checked before: the types fit.
                Some(&old) => as_dtype(b, old, self.dtype).unwrap_or(old),
                None => {
                    state.inputs.push(self.index);
                    b.parameter(TensorType::new(self.dtype, [n]), ParamKind::Tensor)
                }
            };
            self.geometry.write(b, old, v)
        };
        state.set_base(self.index, base);
    }
}
