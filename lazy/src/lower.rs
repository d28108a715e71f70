//! From a trace to IR: storage versions become values, geometries become movement ops, ATen rows do the rest.
//!
//! Nodes without a row (or whose row declines) split the trace into *pieces*: graphs that are compiled, and call nodes
//! that run through the eager engine in between, within the same program.
use crate::aten::Row;
use crate::view::Geometry;
use crate::words::{Arg, DataKind, TensorArg};
use crate::{OutKind, ScalarType, Trace};
use ahash::AHashMap;
use rsx_compiler::ir::{Builder, DType, Dims, Graph, ParamKind, TensorType, TypeError, Value};

/// Where a runtime scalar of a piece comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScalarSource {
    /// Index into the trace's data words.
    pub word: u32,
    pub kind: DataKind,
}

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

/// Why an op cannot be lowered: it becomes a call node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error("no lowering for {0}")]
    NoRow(String),
    #[error("{op}: {reason}")]
    Declined { op: String, reason: String },
}

/// A lowering that failed for a reason of rsx's own.
#[derive(Clone, Debug, thiserror::Error)]
#[error("lowering {op}: {error}")]
pub struct LowerError {
    pub op: String,
    pub error: TypeError,
}

/// What a row sees of one recorded op: arguments in, values out, a builder to make them with.
pub struct Cx<'a> {
    pub b: &'a mut Builder,
    op: &'a str,
    args: &'a [Arg],
    /// Values of the record's tensors, read on demand.
    reader: Reader<'a>,
    outs: Vec<OutSpec>,
}

/// Type of one result a row has to give.
#[derive(Clone, Debug)]
pub struct OutSpec {
    /// Sizes and element type PyTorch predicted (for in-place and `out=` ops: of the written tensor).
    pub ty: TensorType,
}

type Res<T> = Result<T, Unsupported>;

impl<'a> Cx<'a> {
    /// Name of the op, `aten::add.Tensor`.
    pub fn op(&self) -> &str {
        self.op
    }

    /// Declines: this use of the op becomes a call node.
    pub fn decline<T>(&self, reason: impl Into<String>) -> Res<T> {
        Err(Unsupported::Declined { op: self.op.to_owned(), reason: reason.into() })
    }

    /// Number of arguments.
    pub fn n_args(&self) -> usize {
        self.args.len()
    }

    pub fn arg(&self, i: usize) -> &'a Arg {
        self.args.get(i).unwrap_or(&Arg::None)
    }

    pub fn is_none(&self, i: usize) -> bool {
        matches!(self.arg(i), Arg::None | Arg::Undef)
    }

    /// Number of results wanted (fresh outputs, or written arguments of in-place and `out=` ops).
    pub fn n_outs(&self) -> usize {
        self.outs.len()
    }

    /// Type of result `k`.
    pub fn out(&self, k: usize) -> &TensorType {
        &self.outs[k].ty
    }

    /// Tensor argument `i` as a value of its own sizes and element type. 0-d CPU tensors and numbers count as 0-d
    /// tensors.
    pub fn tensor(&mut self, i: usize) -> Res<Value> {
        self.value(self.arg(i))
    }

    pub fn opt_tensor(&mut self, i: usize) -> Res<Option<Value>> {
        if self.is_none(i) { Ok(None) } else { self.tensor(i).map(Some) }
    }

    /// A list of tensors.
    pub fn tensors(&mut self, i: usize) -> Res<Vec<Value>> {
        match self.arg(i) {
            Arg::List(l) => l.iter().map(|a| self.value(a)).collect(),
            _ => self.decline(format!("argument {i} is no tensor list")),
        }
    }

    /// A list of optional tensors (`index`).
    pub fn opt_tensors(&mut self, i: usize) -> Res<Vec<Option<Value>>> {
        match self.arg(i) {
            Arg::List(l) => l
                .iter()
                .map(|a| if matches!(a, Arg::None | Arg::Undef) { Ok(None) } else { self.value(a).map(Some) })
                .collect(),
            _ => self.decline(format!("argument {i} is no tensor list")),
        }
    }

    /// Any argument that is a tensor or a number, as a value.
    pub fn value(&mut self, arg: &'a Arg) -> Res<Value> {
        match arg {
            Arg::Tensor(t) => self.reader.read(self.b, self.op, t),
            Arg::CpuScalar { dtype, slot, .. } => {
                let Some(d) = dtype.dtype() else { return self.decline("complex scalar") };
                let v = self.reader.scalar(self.b, *slot, DataKind::Raw(*dtype));
                Ok(self.b.convert(v, d))
            }
            Arg::Data { kind, slot } => {
                let v = self.reader.scalar(self.b, *slot, *kind);
                Ok(if *kind == DataKind::Bool { self.b.convert(v, DType::Bool) } else { v })
            }
            Arg::Int(v) => Ok(self.b.splat_i64(&TensorType::scalar(DType::I64), *v)),
            Arg::Double(v) => Ok(self.b.scalar(DType::F64, *v)),
            Arg::Bool(v) => Ok(self.b.scalar(DType::Bool, f64::from(u8::from(*v)))),
            Arg::Complex { .. } => self.decline("complex number"),
            other => self.decline(format!("expected a tensor or number, got {other:?}")),
        }
    }

    /// Number (or 0-d tensor) argument `i` as a 0-d value of element type `dtype`.
    pub fn scalar(&mut self, i: usize, dtype: DType) -> Res<Value> {
        let v = self.tensor(i)?;
        Ok(self.b.convert(v, dtype))
    }

    /// As [`Cx::scalar`], with a default for `None`.
    pub fn scalar_or(&mut self, i: usize, dtype: DType, default: f64) -> Res<Value> {
        if self.is_none(i) { Ok(self.b.scalar(dtype, default)) } else { self.scalar(i, dtype) }
    }

    /// Element type of tensor or number argument `i` as PyTorch's promotion sees it, with its category:
    /// dimensioned tensor, 0-d tensor, or (wrapped) number.
    pub fn promotion_class(&self, i: usize) -> Option<(DType, Weakness)> {
        promotion_class(self.arg(i))
    }

    /// Static integer. Numbers passed by value are run-time operands and have no static value.
    pub fn int(&self, i: usize) -> Res<i64> {
        match self.arg(i) {
            Arg::Int(v) => Ok(*v),
            Arg::Bool(v) => Ok(i64::from(*v)),
            other => self.decline(format!("argument {i}: expected an integer, got {other:?}")),
        }
    }

    pub fn int_or(&self, i: usize, default: i64) -> Res<i64> {
        if self.is_none(i) { Ok(default) } else { self.int(i) }
    }

    /// Dimension argument `i`, wrapped into `0..rank` (0 for rank 0).
    pub fn dim(&self, i: usize, rank: usize) -> Res<usize> {
        let d = self.int(i)?;
        Ok(wrap_dim(d, rank))
    }

    pub fn ints(&self, i: usize) -> Res<&'a [i64]> {
        match self.arg(i) {
            Arg::Ints(v) => Ok(v),
            Arg::None => Ok(&[]),
            Arg::List(l) if l.is_empty() => Ok(&[]),
            other => self.decline(format!("argument {i}: expected integers, got {other:?}")),
        }
    }

    pub fn bools(&self, i: usize) -> Res<&'a [bool]> {
        match self.arg(i) {
            Arg::Bools(v) => Ok(v),
            other => self.decline(format!("argument {i}: expected booleans, got {other:?}")),
        }
    }

    pub fn bool(&self, i: usize) -> Res<bool> {
        match self.arg(i) {
            Arg::Bool(v) => Ok(*v),
            Arg::None => Ok(false),
            Arg::Int(v) => Ok(*v != 0),
            other => self.decline(format!("argument {i}: expected a boolean, got {other:?}")),
        }
    }

    /// Static float (arguments of type `float` that are structure, not data).
    pub fn double(&self, i: usize) -> Res<f64> {
        match self.arg(i) {
            Arg::Double(v) => Ok(*v),
            Arg::Int(v) => Ok(*v as f64),
            other => self.decline(format!("argument {i}: expected a number, got {other:?}")),
        }
    }

    pub fn str(&self, i: usize) -> Res<&'a str> {
        match self.arg(i) {
            Arg::Str(s) => Ok(s),
            other => self.decline(format!("argument {i}: expected a string, got {other:?}")),
        }
    }

    /// Seed and offset (0-d i64) of a random op.
    pub fn rng(&mut self) -> Res<(Value, Value)> {
        let Some(Arg::Rng { slot }) = self.args.last() else { return self.decline("no generator state recorded") };
        let seed = self.reader.scalar(self.b, *slot, DataKind::Int);
        let offset = self.reader.scalar(self.b, slot + 1, DataKind::Int);
        Ok((seed, offset))
    }
}

/// How strongly an operand takes part in type promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weakness {
    /// A tensor with dimensions.
    Dimensioned,
    /// A 0-d tensor.
    ZeroDim,
    /// A Python number.
    Number,
}

/// Element type and weakness of an argument in type promotion.
pub fn promotion_class(arg: &Arg) -> Option<(DType, Weakness)> {
    Some(match arg {
        Arg::Tensor(t) => (
            t.dtype.dtype()?,
            match (t.wrapped, t.sizes.is_empty()) {
                (true, _) => Weakness::Number,
                (false, true) => Weakness::ZeroDim,
                (false, false) => Weakness::Dimensioned,
            },
        ),
        Arg::CpuScalar { dtype, wrapped, .. } => {
            (dtype.dtype()?, if *wrapped { Weakness::Number } else { Weakness::ZeroDim })
        }
        Arg::Int(_) | Arg::Data { kind: DataKind::Int, .. } => (DType::I64, Weakness::Number),
        Arg::Double(_) | Arg::Data { kind: DataKind::Double, .. } => (DType::F64, Weakness::Number),
        Arg::Bool(_) | Arg::Data { kind: DataKind::Bool, .. } => (DType::Bool, Weakness::Number),
        _ => return None,
    })
}

/// `d` wrapped into `0..rank`, as PyTorch does (`-1` is the last).
pub fn wrap_dim(d: i64, rank: usize) -> usize {
    let n = (rank as i64).max(1);
    (if d < 0 { d + n } else { d }).clamp(0, n - 1) as usize
}

/// Current values of storages in the piece under construction.
struct Reader<'a> {
    trace: &'a Trace,
    /// Record storage index → trace storage index, for the node at hand.
    record: &'a [u32],
    /// First data word of the node at hand.
    data_at: u32,
    state: &'a mut PieceState,
}

#[derive(Default)]
struct PieceState {
    inputs: Vec<u32>,
    scalars: Vec<ScalarSource>,
    scalar_values: AHashMap<ScalarSource, Value>,
    /// Base value of each storage known in this piece.
    bases: AHashMap<u32, Value>,
    /// Storages written in this piece, in order of first write.
    written: Vec<u32>,
}

impl Reader<'_> {
    fn scalar(&mut self, b: &mut Builder, slot: u32, kind: DataKind) -> Value {
        let source = ScalarSource { word: self.data_at + slot, kind };
        if let Some(&v) = self.state.scalar_values.get(&source) {
            return v;
        }
        let ty = TensorType::scalar(if kind.is_float() { DType::F64 } else { DType::I64 });
        let v = b.parameter(ty, ParamKind::Scalar);
        self.state.scalars.push(source);
        self.state.scalar_values.insert(source, v);
        v
    }

    fn read(&mut self, b: &mut Builder, op: &str, t: &TensorArg) -> Res<Value> {
        let declined = |reason: String| Unsupported::Declined { op: op.to_owned(), reason };
        let Some(dtype) = t.dtype.dtype() else { return Err(declined(format!("element type {:?}", t.dtype))) };
        let geometry = Geometry::new(&t.sizes, &t.strides, t.offset);
        let index = self.record[t.storage as usize];
        let base = match self.state.bases.get(&index) {
            Some(&v) => v,
            None => {
                let n = self.elements(index, dtype);
                let dims = geometry.dense_dims(n).unwrap_or_else(|| Dims::from_slice(&[n]));
                // Memory that nobody has written (torch.empty) is an input like any other, of undefined contents.
                self.state.inputs.push(index);
                let v = b.parameter(TensorType::new(dtype, dims), ParamKind::Tensor);
                self.state.bases.insert(index, v);
                v
            }
        };
        let base = as_dtype(b, base, dtype).ok_or_else(|| declined(format!("view of {} as {dtype}", b.ty(base))))?;
        Ok(geometry.read(b, base))
    }

    /// Elements of type `dtype` that a storage holds.
    fn elements(&self, index: u32, dtype: DType) -> i64 {
        (self.trace.storages[index as usize].storage.nbytes() / dtype.size()) as i64
    }
}

/// The base under another element type of equal size.
fn as_dtype(b: &mut Builder, base: Value, dtype: DType) -> Option<Value> {
    let have = b.dtype(base);
    if have == dtype {
        return Some(base);
    }
    (have.size() == dtype.size() && have != DType::Bool && dtype != DType::Bool).then(|| b.bitcast(base, dtype))
}

/// Lowers a trace. `live[i]`: storage i can be read from outside afterwards.
pub fn lower(trace: &Trace, live: &[bool]) -> Result<Vec<Piece>, LowerError> {
    let last_use = last_uses(trace, live);
    let mut pieces = Vec::new();
    let mut state = PieceState::default();
    let mut b = Builder::new("segment");
    for (n, node) in trace.nodes.iter().enumerate() {
        if !node_needed(trace, n, &last_use) {
            continue;
        }
        b.loc = n as u32;
        match lower_node(trace, n, &mut b, &mut state) {
            Ok(()) => {
                if let Some(error) = b.error() {
                    return Err(LowerError { op: node.sig.op.name.clone(), error: error.clone() });
                }
            }
            Err(why) => {
                let (old, done) = (std::mem::replace(&mut b, Builder::new("segment")), std::mem::take(&mut state));
                pieces.extend(close(trace, old, done, n, &last_use)?);
                pieces.push(Piece::Call { node: n, why });
            }
        }
    }
    pieces.extend(close(trace, b, state, usize::MAX, &last_use)?);
    Ok(pieces)
}

/// For each storage, the last node that uses it, or `usize::MAX` if it is live at the end.
fn last_uses(trace: &Trace, live: &[bool]) -> Vec<usize> {
    let mut last: Vec<usize> = live.iter().map(|&l| if l { usize::MAX } else { 0 }).collect();
    for (n, node) in trace.nodes.iter().enumerate() {
        for &i in trace.inputs(node) {
            if last[i as usize] != usize::MAX {
                last[i as usize] = n;
            }
        }
    }
    last
}

/// A node matters if something it writes is used later or is live. (Finer dead-code removal is the graph's.)
fn node_needed(trace: &Trace, n: usize, last_use: &[usize]) -> bool {
    let node = &trace.nodes[n];
    let used_later = |i: &u32| last_use[*i as usize] > n;
    trace.outputs(node).iter().any(used_later) || node.sig.op.writes().next().is_some()
}

/// Ends a piece before node `n` (or at the end): its results are the storages it wrote that somebody still needs.
fn close(
    trace: &Trace,
    mut b: Builder,
    state: PieceState,
    n: usize,
    last_use: &[usize],
) -> Result<Option<Piece>, LowerError> {
    let needed = |i: &u32| last_use[*i as usize] >= n.min(usize::MAX - 1) || last_use[*i as usize] == usize::MAX;
    let outputs: Vec<u32> = state.written.iter().copied().filter(needed).collect();
    if outputs.is_empty() {
        return Ok(None);
    }
    let results: Vec<Value> = outputs.iter().map(|i| state.bases[i]).collect();
    // A storage that was read and is overwritten: its old version has no other reader, the program may reuse it.
    let tensor_params: Vec<u32> = (0..b.graph().params.len() as u32)
        .filter(|&p| b.graph().params[p as usize].kind == ParamKind::Tensor)
        .collect();
    for (k, input) in state.inputs.iter().enumerate() {
        if let Some(r) = outputs.iter().position(|o| o == input) {
            b.donate(tensor_params[k], r as u32);
        }
    }
    let graph = b.finish(results).map_err(|error| LowerError {
        op: trace.nodes.get(n).map_or_else(|| "the segment".into(), |node| node.sig.op.name.clone()),
        error,
    })?;
    Ok(Some(Piece::Graph(GraphPiece { graph, inputs: state.inputs, scalars: state.scalars, outputs })))
}

fn lower_node(trace: &Trace, n: usize, b: &mut Builder, state: &mut PieceState) -> Res<()> {
    let node = &trace.nodes[n];
    let sig = &*node.sig;
    let name = sig.op.name.as_str();
    let row: &Row = sig.op.row.ok_or_else(|| Unsupported::NoRow(name.to_owned()))?;
    let declined = |reason: String| Unsupported::Declined { op: name.to_owned(), reason };
    let args = sig.args().map_err(|e| declined(e.to_string()))?;
    let record = trace.inputs(node);
    let (fresh, targets) = destinations(sig, args).map_err(declined)?;
    let outs = fresh
        .iter()
        .map(|o| (o.scalar_type(), o.sizes()))
        .chain(targets.iter().map(|t| (t.dtype, &t.sizes[..])))
        .map(|(s, dims)| {
            let dtype = s.dtype().ok_or_else(|| declined(format!("element type {s:?}")))?;
            Ok(OutSpec { ty: TensorType::new(dtype, dims) })
        })
        .collect::<Res<Vec<_>>>()?;
    let types: Vec<TensorType> = outs.iter().map(|o| o.ty.clone()).collect();
    let values = {
        let reader = Reader { trace, record, data_at: node.data.start, state };
        let mut cx = Cx { b, op: name, args, reader, outs };
        (row.lower)(&mut cx)?
    };
    if values.len() != types.len() {
        return Err(declined(format!("{} results from its row, {} expected", values.len(), types.len())));
    }
    for ((k, v), ty) in values.into_iter().enumerate().zip(&types) {
        let v = b.convert(v, ty.dtype);
        let v = b.broadcast_to(v, &ty.dims);
        let (index, geometry) = match k.checked_sub(fresh.len()) {
            None => (trace.outputs(node)[k], Geometry::new(fresh[k].sizes(), fresh[k].strides(), 0)),
            Some(w) => (record[targets[w].storage as usize], {
                let t = targets[w];
                Geometry::new(&t.sizes, &t.strides, t.offset)
            }),
        };
        write(trace, b, state, index, &geometry, v, &declined)?;
    }
    Ok(())
}

/// Fresh outputs and written tensors of a record, in the order in which rows return them.
///
/// Rows return fresh outputs first (in schema order), then the written arguments (in argument order).
fn destinations<'a>(
    sig: &'a crate::Sig,
    args: &'a [Arg],
) -> Result<(Vec<&'a crate::OutMeta>, Vec<&'a TensorArg>), String> {
    if sig.outs.iter().any(|o| o.kind == OutKind::Undef) && sig.outs.iter().all(|o| o.kind != OutKind::Fresh) {
        return Err("no defined output".into());
    }
    let fresh = sig.fresh().collect();
    let mut targets = Vec::new();
    for i in sig.op.writes() {
        if let Some(a) = args.get(i) {
            a.tensors(&mut |t| targets.push(t));
        }
    }
    Ok((fresh, targets))
}

fn write(
    trace: &Trace,
    b: &mut Builder,
    state: &mut PieceState,
    index: u32,
    geometry: &Geometry,
    value: Value,
    declined: &dyn Fn(String) -> Unsupported,
) -> Res<()> {
    let dtype = b.dtype(value);
    let n = (trace.storages[index as usize].storage.nbytes() / dtype.size()) as i64;
    let base = if geometry.dense_dims(n).is_some() {
        geometry.write_new(b, n, value)
    } else if let Some(&old) = state.bases.get(&index) {
        let old_typed =
            as_dtype(b, old, dtype).ok_or_else(|| declined(format!("write of {dtype} into {}", b.ty(old))))?;
        geometry.write(b, old_typed, value)
    } else if trace.outputs(&trace.nodes[b.loc as usize]).contains(&index) {
        geometry.write_new(b, n, value)
    } else {
        let old = b.parameter(TensorType::new(dtype, [n]), ParamKind::Tensor);
        state.inputs.push(index);
        geometry.write(b, old, value)
    };
    state.bases.insert(index, base);
    if !state.written.contains(&index) {
        state.written.push(index);
    }
    Ok(())
}

/// Scalar type helper for tests and rows: PyTorch's default float result of an integer operand.
pub fn float_of(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}

impl From<DType> for ScalarType {
    fn from(d: DType) -> Self {
        ScalarType::of(d)
    }
}
