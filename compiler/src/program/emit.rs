//! From a fused graph and its buffer plan to a program.
use super::copies::copied;
use super::{CopyRule, KernelCall, KernelSpec, Place, Program, ResultSpec, Thunk, View};
use crate::buffers::{Binding, Plan, ResultPlan, Time};
use crate::ir::{
    Attrs, Builder, DType, Dims, FusionKind, Graph, Inst, InstId, OpKind, ParamKind, TensorType, TypeError, Value,
};
use crate::passes::dimmap::DotShape;
use ahash::AHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// Largest kernel, by bytes read and written, that joins others in a [`Thunk::Group`].
const GROUPED_BYTES: u64 = 256 << 10;
/// Most kernels in a group.
const GROUP_LIMIT: usize = 64;

/// The program of `graph` (as [`crate::fusion::run`] returns it) under `plan`.
///
/// `work` says how much work memory a library thunk wants (0 for none); it is added to the plan.
pub(crate) fn emit(graph: &Graph, plan: &mut Plan, work: Option<fn(&Thunk) -> u64>) -> Result<Program, TypeError> {
    let (mut program, time) = thunks(graph, plan)?;
    if let Some(work) = work {
        let wants = |(n, t): (usize, &Thunk)| match work(t) {
            0 => None,
            bytes => Some((time[n], n, bytes)),
        };
        let wanted: Vec<(Time, usize, u64)> = program.thunks.iter().enumerate().filter_map(wants).collect();
        let (placed, moved) = plan.place_work(&wanted);
        if moved {
            program = thunks(graph, plan)?.0;
        }
        for (n, offset, bytes) in placed {
            let ty = TensorType::new(DType::U8, [bytes as i64]);
            if let Thunk::Library { work, .. } = &mut program.thunks[n] {
                *work = Some(View::dense(Place::Slab { offset }, &ty));
            }
        }
        program.slab_bytes = plan.memory.temp_bytes;
    }
    Ok(group(program))
}

/// The program without work memory and groups, and the time of every thunk.
fn thunks(graph: &Graph, plan: &Plan) -> Result<(Program, Vec<Time>), TypeError> {
    let tensors = || graph.params.iter().filter(|p| p.kind == ParamKind::Tensor);
    let mut e = Emitter {
        graph,
        plan,
        users: graph.users(),
        kernels: AHashMap::new(),
        program: Program {
            name: graph.name.clone(),
            params: tensors().map(|p| p.ty.clone()).collect(),
            n_scalars: (graph.params.len() - tensors().count()) as u32,
            results: Vec::new(),
            slab_bytes: plan.memory.temp_bytes,
            constants: plan.constants.clone(),
            kernels: Vec::new(),
            thunks: Vec::new(),
            locs: Vec::new(),
        },
    };
    let mut time = Vec::new();
    for (t, &id) in plan.order.iter().enumerate() {
        e.step(id)?;
        time.resize(e.program.thunks.len(), t);
    }
    for (n, (&v, result)) in graph.results.iter().zip(&plan.results).enumerate() {
        let ty = graph.ty(v).clone();
        let alias = match *result {
            ResultPlan::Direct { alias } => alias,
            ResultPlan::Unchanged { alias } => Some(alias),
            ResultPlan::Copy => {
                let to = View::dense(Place::Result(n as u32), &ty);
                let from = e.view(v)?;
                let shared = graph.results[..n].contains(&v);
                let rule = match from.place {
                    Place::Result(_) if shared => CopyRule::SharedResult,
                    Place::Param(_) | Place::Constant { .. } | Place::Scalar(_) => CopyRule::GivenResult,
                    Place::Result(_) | Place::Slab { .. } => CopyRule::PartialResult,
                };
                e.copy(from, to, graph.def_inst(v).loc, rule);
                None
            }
        };
        e.program.results.push(ResultSpec { ty, alias });
    }
    time.resize(e.program.thunks.len(), plan.order.len());
    Ok((e.program, time))
}

struct Emitter<'e> {
    graph: &'e Graph,
    plan: &'e Plan,
    users: Vec<SmallVec<[InstId; 4]>>,
    kernels: AHashMap<(FusionKind, Arc<Graph>), u32>,
    program: Program,
}

impl Emitter<'_> {
    fn push(&mut self, thunk: Thunk, loc: u32) {
        let empty = |v: &View| v.dims.contains(&0);
        let nothing = match &thunk {
            Thunk::Kernel(call) => call.outputs.iter().all(empty),
            Thunk::Library { outputs, .. } => outputs.iter().all(empty),
            Thunk::Copy { to, .. } => empty(to),
            Thunk::Group(calls) => calls.is_empty(),
        };
        if !nothing {
            self.program.thunks.push(thunk);
            self.program.locs.push(loc);
        }
    }

    fn copy(&mut self, from: View, to: View, loc: u32, rule: CopyRule) {
        self.push(Thunk::Copy { from, to, rule }, loc);
    }

    /// `v` where it lives.
    fn view(&self, v: Value) -> Result<View, TypeError> {
        let b: &Binding = self.plan.binding(v)?;
        let place = self.plan.assigned[b.storage]
            .map(|a| a.place)
            .ok_or_else(|| TypeError::new(format!("value {} has no memory", v.0)))?;
        Ok(View { place, dtype: b.dtype, dims: b.dims.clone(), strides: b.strides.clone(), offset: b.offset })
    }

    /// `v` as an operand of a kernel, which is dense.
    fn dense(&self, v: Value) -> Result<View, TypeError> {
        let view = self.view(v)?;
        if self.plan.binding(v)?.is_dense() {
            // Dimensions of size 1 may carry any stride; here they carry the usual one.
            Ok(View { strides: crate::ir::row_major_strides(&view.dims), ..view })
        } else {
            Err(TypeError::new(format!("a kernel reads {view:?}, which is not dense")))
        }
    }

    fn step(&mut self, id: InstId) -> Result<(), TypeError> {
        let inst = self.graph.inst(id);
        match (inst.kind, &inst.attrs) {
            (OpKind::OptimizationBarrier, _) => Ok(()),
            (OpKind::Fusion, Attrs::Fusion { kind: FusionKind::Epilogue, body }) => self.epilogue(inst, body),
            (OpKind::Fusion, Attrs::Fusion { kind, body }) => {
                let call = self.call(*kind, body.clone(), &inst.operands, inst)?;
                self.push(Thunk::Kernel(call), inst.loc);
                Ok(())
            }
            (OpKind::DotGeneral, Attrs::Dot(_)) => {
                let inputs = [self.view(inst.operands[0])?, self.view(inst.operands[1])?];
                let out = self.view(inst.result())?;
                let shape = dot_shape(self.graph, inst)?;
                let (attrs, inputs, out) = canonical_dot(shape, inputs, out, true)?;
                self.push(library(inst.kind, attrs, inputs.into(), vec![out], None), inst.loc);
                Ok(())
            }
            _ => self.library(id, inst),
        }
    }

    fn library(&mut self, id: InstId, inst: &Inst) -> Result<(), TypeError> {
        let mut inputs = Vec::with_capacity(inst.operands.len());
        for &v in &inst.operands {
            inputs.push(self.view(v)?);
        }
        let outputs = inst.results().map(|v| self.view(v)).collect::<Result<Vec<_>, _>>()?;
        if matches!(inst.kind, OpKind::Scatter | OpKind::DynamicUpdateSlice) {
            if self.plan.copy_before.contains(&id) {
                self.copy(inputs[0].clone(), outputs[0].clone(), inst.loc, CopyRule::InPlace);
            }
            inputs[0] = outputs[0].clone();
        }
        self.push(library(inst.kind, inst.attrs.clone(), inputs, outputs, None), inst.loc);
        Ok(())
    }

    fn kernel(&mut self, kind: FusionKind, body: Arc<Graph>) -> u32 {
        let kernels = &mut self.program.kernels;
        *self.kernels.entry((kind, body.clone())).or_insert_with(|| {
            let n = kernels.len() as u32;
            kernels.push(KernelSpec { name: kernel_name(kind, &body, n), kind, body });
            n
        })
    }

    /// A call of the kernel for `body` on values: tensors as views, scalars by number.
    fn call(
        &mut self,
        kind: FusionKind,
        body: Arc<Graph>,
        operands: &[Value],
        inst: &Inst,
    ) -> Result<KernelCall, TypeError> {
        let (mut inputs, mut scalars) = (Vec::new(), Vec::new());
        for (&v, p) in operands.iter().zip(&body.params) {
            match (p.kind, self.view(v)?.place) {
                (ParamKind::Scalar, Place::Scalar(n)) => scalars.push(n),
                (ParamKind::Scalar, place) => {
                    return Err(TypeError::new(format!("a kernel's scalar is in {place:?}")));
                }
                (ParamKind::Tensor, _) => inputs.push(self.dense(v)?),
            }
        }
        let outputs = inst.results().map(|v| self.dense(v)).collect::<Result<_, _>>()?;
        let copied = match &inst.attrs {
            Attrs::Fusion { body, .. } => copied(self.graph, &self.users, inst, body),
            _ => Vec::new(),
        };
        Ok(KernelCall { kernel: self.kernel(kind, body), inputs, outputs, scalars, copied })
    }

    /// A contraction whose result goes through the rest of `body` before it is stored.
    fn epilogue(&mut self, inst: &Inst, body: &Graph) -> Result<(), TypeError> {
        let Some(of) = body.insts.iter().find(|i| i.kind != OpKind::Parameter) else {
            return Err(TypeError::new("an epilogue without a contraction"));
        };
        let n = of.operands.len();
        let rest = epilogue_body(body, of)?;
        let mut call = self.call(FusionKind::Epilogue, Arc::new(rest), &[], inst)?;
        let acc = body.ty(of.first).with_dtype(accumulator(body.ty(of.first).dtype));
        call.inputs.push(View::dense(call.outputs[0].place, &acc));
        for (&v, p) in inst.operands[n..].iter().zip(&body.params[n..]) {
            match (p.kind, self.view(v)?.place) {
                (ParamKind::Scalar, Place::Scalar(n)) => call.scalars.push(n),
                _ => call.inputs.push(self.dense(v)?),
            }
        }
        let mut inputs = Vec::new();
        for &v in &inst.operands[..n] {
            inputs.push(self.view(v)?);
        }
        let (attrs, inputs) = match &of.attrs {
            Attrs::Dot(_) => {
                // m in pieces counts as batch; n and k are single, or there would be no epilogue.
                let shape = dot_shape(body, of)?;
                let (lhs, rhs) = (inputs[0].clone(), inputs[1].clone());
                let (attrs, inputs, _) = canonical_dot(shape, [lhs, rhs], call.inputs[0].clone(), false)?;
                (attrs, inputs.into())
            }
            other => (other.clone(), inputs),
        };
        let outputs = call.outputs.clone();
        self.push(library(of.kind, attrs, inputs, outputs, Some(call)), inst.loc);
        Ok(())
    }
}

/// Puts neighbouring small kernels that do not touch each other's memory into groups.
fn group(mut program: Program) -> Program {
    let thunks = std::mem::take(&mut program.thunks);
    let locs = std::mem::take(&mut program.locs);
    let mut out: Vec<Thunk> = Vec::with_capacity(thunks.len());
    let mut out_locs = Vec::with_capacity(locs.len());
    let mut open: Vec<KernelCall> = Vec::new();
    let mut open_loc = 0;
    let mut close = |open: &mut Vec<KernelCall>, loc: u32, out: &mut Vec<Thunk>| {
        if open.len() > 1 {
            out.push(Thunk::Group(std::mem::take(open)));
            out_locs.push(loc);
        } else if let Some(call) = open.pop() {
            out.push(Thunk::Kernel(call));
            out_locs.push(loc);
        }
    };
    let mut kept_locs = Vec::new();
    for (thunk, loc) in thunks.into_iter().zip(locs) {
        match thunk {
            Thunk::Kernel(call) if call_bytes(&call) <= GROUPED_BYTES => {
                let apart = open.len() < GROUP_LIMIT && open.iter().all(|o| independent(&program, o, &call));
                if !apart {
                    close(&mut open, open_loc, &mut out);
                }
                if open.is_empty() {
                    open_loc = loc;
                }
                open.push(call);
            }
            other => {
                close(&mut open, open_loc, &mut out);
                out.push(other);
                kept_locs.push((out.len() - 1, loc));
            }
        }
    }
    close(&mut open, open_loc, &mut out);
    // Locations of the thunks that were kept, at their new places.
    let mut grouped = out_locs.into_iter();
    let mut kept = kept_locs.into_iter().peekable();
    program.locs = (0..out.len())
        .map(|i| match kept.next_if(|k| k.0 == i) {
            Some((_, loc)) => loc,
            None => grouped.next().unwrap_or(0),
        })
        .collect();
    program.thunks = out;
    program
}

fn library(op: OpKind, attrs: Attrs, inputs: Vec<View>, outputs: Vec<View>, epilogue: Option<KernelCall>) -> Thunk {
    let scalars = inputs
        .iter()
        .filter_map(|v| match v.place {
            Place::Scalar(n) => Some(n),
            _ => None,
        })
        .collect();
    Thunk::Library { op, attrs, inputs, outputs, scalars, epilogue, work: None }
}

/// The type sums are kept in.
fn accumulator(dtype: DType) -> DType {
    dtype.opmath()
}

fn dot_shape(graph: &Graph, inst: &Inst) -> Result<DotShape, TypeError> {
    match &inst.attrs {
        Attrs::Dot(d) => DotShape::canonical(graph, inst, d),
        _ => None,
    }
    .ok_or_else(|| TypeError::new("a dot whose dimension numbers are not canonical"))
}

/// The body of an epilogue fusion without the contraction: a function of its result (in the accumulator's type) and the
/// other operands.
fn epilogue_body(body: &Graph, of: &Inst) -> Result<Graph, TypeError> {
    let mut b = Builder::new(body.name.clone());
    let mut map: Vec<Option<Value>> = vec![None; body.n_values()];
    let ty = body.ty(of.first);
    let acc = b.parameter(ty.with_dtype(accumulator(ty.dtype)), ParamKind::Tensor);
    map[of.first.0 as usize] = Some(b.convert(acc, ty.dtype));
    for inst in &body.insts {
        match (inst.kind, &inst.attrs) {
            (OpKind::Parameter, Attrs::Index(i)) => {
                if *i as usize >= of.operands.len() {
                    let p = &body.params[*i as usize];
                    map[inst.first.0 as usize] = Some(b.parameter(p.ty.clone(), p.kind));
                }
            }
            _ if inst.first == of.first => {}
            _ => {
                let operands: Option<SmallVec<[Value; 4]>> = inst.operands.iter().map(|v| map[v.0 as usize]).collect();
                let operands =
                    operands.ok_or_else(|| TypeError::new("an epilogue reads the contraction's operands"))?;
                let types: Vec<TensorType> = inst.results().map(|v| body.ty(v).clone()).collect();
                let first = b.op(inst.kind, inst.attrs.clone(), &operands, &types);
                for (n, v) in inst.results().enumerate() {
                    map[v.0 as usize] = Some(Value(first.0 + n as u32));
                }
            }
        }
    }
    let results: Option<Vec<Value>> = body.results.iter().map(|v| map[v.0 as usize]).collect();
    b.finish(results.ok_or_else(|| TypeError::new("an epilogue without results"))?)
}

/// The operands and the result of a dot with one m, n and k each: what is left of m counts as batch. With `joining`,
/// dimensions that can be walked as one are joined first; without, the result keeps its dimensions (an epilogue knows
/// them) and n and k have to be single already.
fn canonical_dot(
    shape: DotShape,
    [x, y]: [View; 2],
    out: View,
    joining: bool,
) -> Result<(Attrs, [View; 2], View), TypeError> {
    let DotShape { batch, m, n, k } = shape;
    let pick =
        |v: &View, at: std::ops::Range<usize>| -> Vec<(i64, i64)> { at.map(|i| (v.dims[i], v.strides[i])).collect() };
    let (xb, xm, xk) = (pick(&x, 0..batch), pick(&x, batch..batch + m), pick(&x, batch + m..batch + m + k));
    let (yb, yk, yn) = (pick(&y, 0..batch), pick(&y, batch..batch + k), pick(&y, batch + k..batch + k + n));
    let (ob, om) = (pick(&out, 0..batch), pick(&out, batch..batch + m));
    let on = pick(&out, batch + m..batch + m + n);
    let one = |parts: Vec<(i64, i64)>, what: &str| -> Result<(i64, i64), TypeError> {
        match &join(&[parts])[..] {
            [] => Ok((1, 0)),
            [only] => Ok(only[0]),
            _ => Err(TypeError::new(format!("dot_general: {what} is in pieces"))),
        }
    };
    let (kx, ky) = (one(xk, "k of the left operand")?, one(yk, "k of the right operand")?);
    let (ny, no) = (one(yn, "n of the right operand")?, one(on, "n of the result")?);
    // (left, result) stepped together; likewise the batch dimensions of all three.
    let join = |tensors: &[Vec<(i64, i64)>]| if joining { join(tensors) } else { zip(tensors) };
    let mut rows = join(&[xm, om]);
    let inner = rows.pop().unwrap_or_else(|| vec![(1, 0), (1, 0)]);
    let mut batches: Vec<[(i64, i64); 3]> = join(&[xb, yb, ob]).into_iter().map(|d| [d[0], d[1], d[2]]).collect();
    batches.extend(rows.into_iter().map(|d| [d[0], (d[0].0, 0), d[1]]));
    let view = |v: View, which: usize, tail: [(i64, i64); 2]| -> View {
        let (dims, strides): (Dims, Dims) = batches.iter().map(|b| (b[0].0, b[which].1)).chain(tail).unzip();
        View { dims, strides, ..v }
    };
    let shape = DotShape { batch: batches.len(), m: 1, n: 1, k: 1 };
    let x = view(x, 0, [inner[0], kx]);
    let y = view(y, 1, [ky, ny]);
    let out = view(out, 2, [inner[1], no]);
    Ok((Attrs::Dot(shape.dims()), [x, y], out))
}

/// One entry per dimension.
fn zip(tensors: &[Vec<(i64, i64)>]) -> Vec<Vec<(i64, i64)>> {
    (0..tensors.first().map_or(0, Vec::len)).map(|i| tensors.iter().map(|t| t[i]).collect()).collect()
}

/// Joins neighbouring (size, stride) dimensions of several tensors where all can be; dimensions of size 1 go.
fn join(tensors: &[Vec<(i64, i64)>]) -> Vec<Vec<(i64, i64)>> {
    let mut out: Vec<Vec<(i64, i64)>> = Vec::new();
    for i in 0..tensors.first().map_or(0, Vec::len) {
        let here: Vec<(i64, i64)> = tensors.iter().map(|t| t[i]).collect();
        if here[0].0 == 1 {
            continue;
        }
        match out.last_mut() {
            Some(last) if last.iter().zip(&here).all(|(a, b)| a.1 == b.0 * b.1) => {
                for (a, b) in last.iter_mut().zip(&here) {
                    *a = (a.0 * b.0, b.1);
                }
            }
            _ => out.push(here),
        }
    }
    out
}

/// `<kind>_<last ops>_<number>`: enough to recognise it in a profile.
fn kernel_name(kind: FusionKind, body: &Graph, n: u32) -> String {
    let kind = match kind {
        FusionKind::Loop => "loop",
        FusionKind::Row => "row",
        FusionKind::Column => "column",
        FusionKind::Epilogue => "epilogue",
    };
    let last = body.results.last().map_or("none", |&v| body.def_inst(v).kind.name());
    format!("{kind}_{last}_{n}")
}

fn call_bytes(call: &KernelCall) -> u64 {
    let bytes = |v: &View| v.dims.iter().product::<i64>() as u64 * v.dtype.size() as u64;
    call.inputs.iter().chain(&call.outputs).map(bytes).sum()
}

/// Neither writes what the other touches.
fn independent(program: &Program, a: &KernelCall, b: &KernelCall) -> bool {
    let clash = |x: &View, y: &View| spans_meet(program, x, y);
    !a.outputs.iter().any(|w| b.inputs.iter().chain(&b.outputs).any(|v| clash(w, v)))
        && !b.outputs.iter().any(|w| a.inputs.iter().any(|v| clash(w, v)))
}

/// Dense views that share a byte. Results in donated parameters are those parameters.
fn spans_meet(program: &Program, x: &View, y: &View) -> bool {
    let bytes = |v: &View| v.dims.iter().product::<i64>() as u64 * v.dtype.size() as u64;
    match (x.place, y.place) {
        (Place::Slab { offset: a }, Place::Slab { offset: b }) => a < b + bytes(y) && b < a + bytes(x),
        (Place::Result(a), Place::Result(b)) => a == b,
        (Place::Param(p), Place::Result(r)) | (Place::Result(r), Place::Param(p)) => {
            program.results.get(r as usize).is_none_or(|s| s.alias == Some(p))
        }
        _ => false,
    }
}
