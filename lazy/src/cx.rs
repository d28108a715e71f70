//! What a row of the ATen table sees of one recorded op: arguments in, expressions to build its results from.
use crate::aten::Unsupported;
use crate::aten::expr::{Ctx, Ex};
use crate::view::Geometry;
use crate::words::{Arg, DataKind, TensorArg};
use crate::{ScalarType, Trace};
use ahash::{AHashMap, AHashSet};
use rsx_compiler::ir::{Builder, DType, Dims, ParamKind, TensorType, Value};
use smallvec::SmallVec;

type Res<T> = Result<T, Unsupported>;

/// Where a runtime scalar of a piece comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ScalarSource {
    /// Index into the trace's data words.
    pub word: u32,
    pub kind: DataKind,
}

/// Values of the piece under construction.
#[derive(Default)]
pub(crate) struct PieceState {
    /// Storages read as they were before the piece, in order of their parameters.
    pub(crate) inputs: Vec<u32>,
    pub(crate) scalars: Vec<ScalarSource>,
    scalar_values: AHashMap<ScalarSource, Value>,
    /// Base value of each storage known in this piece.
    pub(crate) bases: AHashMap<u32, Value>,
    /// Storages written in this piece, in order of first write.
    pub(crate) written: Vec<u32>,
    written_set: AHashSet<u32>,
    /// Views of each storage's current version read so far: a view read twice is one value.
    views: AHashMap<u32, SmallVec<[(DType, Geometry, Value); 2]>>,
}

impl PieceState {
    /// Makes `base` the newest version of storage `index`.
    pub(crate) fn set_base(&mut self, index: u32, base: Value) {
        self.bases.insert(index, base);
        self.views.remove(&index);
        if self.written_set.insert(index) {
            self.written.push(index);
        }
    }
}

/// The arguments of one op and the builder.
pub struct Cx<'a> {
    g: &'a Ctx,
    op: &'a str,
    args: SmallVec<[&'a Arg; 16]>,
    reader: Reader<'a>,
    outs: SmallVec<[Option<TensorType>; 4]>,
}

/// The storages of one node, in the piece under construction.
pub(crate) struct Reader<'a> {
    pub(crate) trace: &'a Trace,
    /// Record storage index → trace storage index, for the node at hand.
    pub(crate) record: &'a [u32],
    /// First data word of the node at hand.
    pub(crate) data_at: u32,
    pub(crate) state: &'a mut PieceState,
}

static NONE: Arg = Arg::None;

impl<'a> Cx<'a> {
    pub(crate) fn new(
        g: &'a Ctx,
        op: &'a str,
        args: &'a [Arg],
        reader: Reader<'a>,
        outs: SmallVec<[Option<TensorType>; 4]>,
    ) -> Self {
        Cx { g, op, args: args.iter().collect(), reader, outs }
    }

    /// Element `k` of a multi-tensor op as an op of its own: lists give their element k, other arguments stay.
    pub fn element(&mut self, k: usize) -> Cx<'_> {
        let args = self.args.iter().map(|&a| match a {
            Arg::List(l) => l.get(k).unwrap_or(&NONE),
            other => other,
        });
        Cx {
            g: self.g,
            op: self.op,
            args: args.collect(),
            outs: self.outs.get(k).cloned().into_iter().collect(),
            reader: Reader {
                trace: self.reader.trace,
                record: self.reader.record,
                data_at: self.reader.data_at,
                state: self.reader.state,
            },
        }
    }

    /// The same op with some of its arguments in another order: `order[i]` becomes argument i.
    pub fn reordered(&mut self, order: &[usize]) -> Cx<'_> {
        let args = order.iter().map(|&i| *self.args.get(i).unwrap_or(&&NONE)).collect();
        Cx {
            g: self.g,
            op: self.op,
            args,
            outs: self.outs.clone(),
            reader: Reader {
                trace: self.reader.trace,
                record: self.reader.record,
                data_at: self.reader.data_at,
                state: self.reader.state,
            },
        }
    }

    /// Name of the op, `aten::add.Tensor`.
    pub fn op(&self) -> &'a str {
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
        self.args.get(i).copied().unwrap_or(&NONE)
    }

    pub fn is_none(&self, i: usize) -> bool {
        matches!(self.arg(i), Arg::None | Arg::Undef)
    }

    /// Number of results wanted: those of the schema (lists spread out), then the written arguments.
    pub fn n_outs(&self) -> usize {
        self.outs.len()
    }

    /// Type of result `k`. Results that are undefined or no tensors have none.
    pub fn out(&self, k: usize) -> Res<&TensorType> {
        match self.outs.get(k) {
            Some(Some(t)) => Ok(t),
            _ => self.decline(format!("result {k} is undefined")),
        }
    }

    /// Is result `k` a tensor that somebody gets?
    pub fn wants(&self, k: usize) -> bool {
        matches!(self.outs.get(k), Some(Some(_)))
    }

    /// Element type of the first result.
    pub fn result_dtype(&self) -> Option<DType> {
        self.outs.iter().flatten().next().map(|t| t.dtype)
    }

    /// Tensor (or number) argument `i` with its own sizes and element type. 0-d CPU tensors and numbers count as 0-d
    /// tensors.
    pub fn x(&mut self, i: usize) -> Res<Ex<'a>> {
        self.value(self.arg(i))
    }

    /// Argument `i` converted to `dtype`.
    pub fn x_as(&mut self, i: usize, dtype: DType) -> Res<Ex<'a>> {
        Ok(self.x(i)?.to(dtype))
    }

    /// Optional argument `i` converted to `dtype`.
    pub fn opt_as(&mut self, i: usize, dtype: DType) -> Res<Option<Ex<'a>>> {
        if self.is_none(i) { Ok(None) } else { self.x_as(i, dtype).map(Some) }
    }

    /// Tensor argument `i`, converted to its opmath type.
    pub fn math(&mut self, i: usize) -> Res<Ex<'a>> {
        Ok(self.x(i)?.opmath())
    }

    /// A list of tensors.
    pub fn list(&mut self, i: usize) -> Res<Vec<Ex<'a>>> {
        match self.arg(i) {
            Arg::List(l) => l.iter().map(|a| self.value(a)).collect(),
            _ => self.decline(format!("argument {i} is no tensor list")),
        }
    }

    /// A list of optional tensors (`index`).
    pub fn opt_list(&mut self, i: usize) -> Res<Vec<Option<Ex<'a>>>> {
        match self.arg(i) {
            Arg::List(l) => l
                .iter()
                .map(|a| if matches!(a, Arg::None | Arg::Undef) { Ok(None) } else { self.value(a).map(Some) })
                .collect(),
            _ => self.decline(format!("argument {i} is no tensor list")),
        }
    }

    /// Any argument that is a tensor or a number.
    pub fn value(&mut self, arg: &'a Arg) -> Res<Ex<'a>> {
        let g = self.g;
        let b = &mut *g.borrow_mut();
        let v = match arg {
            Arg::Tensor(t) => self.reader.read(b, self.op, t)?,
            Arg::CpuScalar { dtype, slot, .. } => {
                let Some(d) = dtype.dtype() else { return self.decline("complex scalar") };
                let v = self.reader.scalar(b, *slot, DataKind::Raw(*dtype));
                b.convert(v, d)
            }
            Arg::Data { kind, slot } => {
                let v = self.reader.scalar(b, *slot, *kind);
                if *kind == DataKind::Bool { b.convert(v, DType::Bool) } else { v }
            }
            Arg::Int(v) => b.splat_i64(&TensorType::scalar(DType::I64), *v),
            Arg::Double(v) => b.scalar(DType::F64, *v),
            Arg::Bool(v) => b.scalar(DType::Bool, f64::from(u8::from(*v))),
            Arg::Complex { .. } => return self.decline("complex number"),
            other => return self.decline(format!("expected a tensor or number, got {other:?}")),
        };
        Ok(Ex::new(g, v))
    }

    /// Number argument `i` as a 0-d value of type `dtype`, `default` for `None`.
    pub fn num_or(&mut self, i: usize, dtype: DType, default: f64) -> Res<Ex<'a>> {
        if self.is_none(i) { Ok(self.scalar(dtype, default)) } else { self.x_as(i, dtype) }
    }

    /// A 0-d constant.
    pub fn scalar(&self, dtype: DType, value: f64) -> Ex<'a> {
        self.fill(dtype, &[], value)
    }

    /// A constant of sizes `dims`.
    pub fn fill(&self, dtype: DType, dims: &[i64], value: f64) -> Ex<'a> {
        let v = self.g.borrow_mut().splat(&TensorType::new(dtype, dims), value);
        Ex::new(self.g, v)
    }

    /// Indices (i64) along dimension `d` of sizes `dims`.
    pub fn iota(&self, dims: &[i64], d: usize) -> Ex<'a> {
        let v = self.g.borrow_mut().iota(&TensorType::new(DType::I64, dims), d);
        Ex::new(self.g, v)
    }

    /// A 1-d i64 constant.
    pub fn table(&self, values: &[i64]) -> Ex<'a> {
        let ty = TensorType::new(DType::I64, [values.len() as i64]);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let v = self.g.borrow_mut().literal(rsx_compiler::ir::Literal { ty, bytes: bytes.into() });
        Ex::new(self.g, v)
    }

    /// A 1-d f64 constant.
    pub fn table_f64(&self, values: &[f64]) -> Ex<'a> {
        let ty = TensorType::new(DType::F64, [values.len() as i64]);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let v = self.g.borrow_mut().literal(rsx_compiler::ir::Literal { ty, bytes: bytes.into() });
        Ex::new(self.g, v)
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

    /// Is argument `i` the integer 1, known now? (`alpha` and `beta` mostly are.)
    pub fn is_one(&self, i: usize) -> bool {
        matches!(self.arg(i), Arg::None | Arg::Int(1))
    }

    /// Dimension argument `i`, wrapped into `0..rank` (0 for rank 0).
    pub fn dim(&self, i: usize, rank: usize) -> Res<usize> {
        Ok(wrap_dim(self.int(i)?, rank))
    }

    /// Reduction dimensions in argument `i`: an integer or a list; none and empty mean all.
    pub fn dims(&self, i: usize, rank: usize) -> Res<Dims> {
        let given: Dims = match self.arg(i) {
            Arg::Int(d) => Dims::from_slice(&[*d]),
            _ => Dims::from_slice(self.ints(i)?),
        };
        if rank == 0 {
            return Ok(Dims::new());
        }
        let mut dims: Dims = given.iter().map(|&d| wrap_dim(d, rank) as i64).collect();
        dims.sort_unstable();
        Ok(if dims.is_empty() { (0..rank as i64).collect() } else { dims })
    }

    pub fn ints(&self, i: usize) -> Res<&'a [i64]> {
        match self.arg(i) {
            Arg::Ints(v) => Ok(v),
            Arg::None => Ok(&[]),
            Arg::List(l) if l.is_empty() => Ok(&[]),
            other => self.decline(format!("argument {i}: expected integers, got {other:?}")),
        }
    }

    /// A list of `n` integers; a shorter one (PyTorch expands a single value) repeats its last, an empty one `default`.
    pub fn ints_n(&self, i: usize, n: usize, default: i64) -> Res<Dims> {
        let v = match self.arg(i) {
            Arg::Int(one) => std::slice::from_ref(one),
            _ => self.ints(i)?,
        };
        Ok((0..n).map(|k| v.get(k).or(v.last()).copied().unwrap_or(default)).collect())
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

    /// Static number (arguments that are structure, not data; see [`crate::aten::structural`]).
    pub fn double(&self, i: usize) -> Res<f64> {
        match self.arg(i) {
            Arg::Double(v) => Ok(*v),
            Arg::Int(v) => Ok(*v as f64),
            Arg::Bool(v) => Ok(f64::from(u8::from(*v))),
            other => self.decline(format!("argument {i}: expected a static number, got {other:?}")),
        }
    }

    pub fn str(&self, i: usize) -> Res<&'a str> {
        match self.arg(i) {
            Arg::Str(s) => Ok(s),
            other => self.decline(format!("argument {i}: expected a string, got {other:?}")),
        }
    }

    /// Seed and offset (0-d i64) of a random op.
    pub fn rng(&mut self) -> Res<(Ex<'a>, Ex<'a>)> {
        let Some(Arg::Rng { slot }) = self.args.last() else { return self.decline("no generator state recorded") };
        let b = &mut *self.g.borrow_mut();
        let seed = self.reader.scalar(b, *slot, DataKind::Int);
        let offset = self.reader.scalar(b, slot + 1, DataKind::Int);
        Ok((Ex::new(self.g, seed), Ex::new(self.g, offset)))
    }
}

/// `d` wrapped into `0..rank`, as PyTorch does (`-1` is the last).
pub fn wrap_dim(d: i64, rank: usize) -> usize {
    let n = (rank as i64).max(1);
    (if d < 0 { d + n } else { d }).clamp(0, n - 1) as usize
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
        let known = self.state.views.get(&index).and_then(|l| l.iter().find(|v| v.0 == dtype && v.1 == geometry));
        if let Some(&(_, _, v)) = known {
            return Ok(v);
        }
        let base = match self.state.bases.get(&index) {
            Some(&v) => v,
            None => {
                let n = elements(self.trace, index, dtype);
                let dims = geometry.dense_dims(n).unwrap_or_else(|| Dims::from_slice(&[n]));
                // Memory that nobody has written (torch.empty) is an input like any other, of undefined contents.
                self.state.inputs.push(index);
                let v = b.parameter(TensorType::new(dtype, dims), ParamKind::Tensor);
                self.state.bases.insert(index, v);
                v
            }
        };
        let base = as_dtype(b, base, dtype).ok_or_else(|| declined(format!("view of {} as {dtype}", b.ty(base))))?;
        let v = geometry.read(b, base);
        self.state.views.entry(index).or_default().push((dtype, geometry, v));
        Ok(v)
    }
}

/// Elements of type `dtype` that a storage holds.
pub(crate) fn elements(trace: &Trace, index: u32, dtype: DType) -> i64 {
    (trace.storages[index as usize].storage.nbytes() / dtype.size()) as i64
}

/// The base under another element type of equal size.
pub(crate) fn as_dtype(b: &mut Builder, base: Value, dtype: DType) -> Option<Value> {
    let have = b.dtype(base);
    if have == dtype {
        return Some(base);
    }
    match (have, dtype) {
        // The same bytes; the other way round a byte could hold more than a bool.
        (DType::Bool, DType::U8 | DType::I8) => Some(b.convert(base, dtype)),
        (DType::Bool, _) | (_, DType::Bool) => None,
        _ => (have.size() == dtype.size()).then(|| b.bitcast(base, dtype)),
    }
}

/// Element type that a float function gives for an operand: PyTorch's default float for integers.
pub fn float_of(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}

impl From<DType> for ScalarType {
    fn from(d: DType) -> Self {
        ScalarType::of(d)
    }
}
