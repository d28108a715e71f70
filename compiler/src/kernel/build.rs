//! From a fusion body to expressions: values are pulled from the results down, each at the index it is needed at.
use super::space::{Group, Space};
use super::*;
use crate::ir::{Attrs, Class, Dims, Graph, Inst, ParamKind, Value};
use ahash::AHashMap;

/// Condition under which a value is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Guard {
    Always,
    Never,
    If(ExprId),
}

struct Build<'a> {
    body: &'a Graph,
    kind: FusionKind,
    kernel: Kernel,
    /// Tensor argument or scalar number of every parameter.
    params: Vec<u32>,
    memo: AHashMap<(Value, Vec<Affine>, Guard), ExprId>,
    reduced: AHashMap<Value, u32>,
    /// Row-major position in the kept and in the reduced dimensions.
    kept: Affine,
    inner: Affine,
    n_reduced: i64,
}

pub(super) fn build(kind: FusionKind, body: &Graph, space: &Space, groups: &[Group]) -> Result<Kernel, LowerError> {
    let mut params = Vec::new();
    let (mut args, mut scalars) = (Vec::new(), Vec::new());
    for p in &body.params {
        match p.kind {
            ParamKind::Tensor => {
                params.push(args.len() as u32);
                args.push(p.ty.clone());
            }
            ParamKind::Scalar => {
                params.push(scalars.len() as u32);
                scalars.push(p.ty.dtype);
            }
        }
    }
    let n_inputs = args.len();
    args.extend(body.result_types());
    let loops =
        groups.iter().map(|g| Loop { extent: space.extent(g), reduced: space.reduced[g[0]] }).collect::<Vec<_>>();
    let mut ix = Indices::default();
    let mut at = vec![Affine::default(); space.dims.len()];
    for (n, group) in groups.iter().enumerate() {
        let var = ix.var(n as u32, loops[n].extent);
        let sizes: Dims = group.iter().map(|&d| space.dims[d]).collect();
        for (&d, a) in group.iter().zip(ix.delinear(&var, &sizes)) {
            at[d] = a;
        }
    }
    let part = |ix: &mut Indices, reduced: bool| {
        let dims = (0..at.len()).filter(|&d| space.reduced[d] == reduced);
        let (at, sizes): (Vec<Affine>, Dims) = dims.map(|d| (at[d].clone(), space.dims[d])).unzip();
        (ix.linear(&at, &sizes), sizes.iter().product::<i64>())
    };
    let ((kept, n_kept), (inner, n_reduced)) = (part(&mut ix, false), part(&mut ix, true));
    let full = ix.linear(&at, &space.dims);
    let kernel = Kernel {
        kind,
        args,
        n_inputs,
        scalars,
        literals: Vec::new(),
        ix,
        exprs: Exprs::default(),
        loops,
        reductions: Vec::new(),
        stores: Vec::new(),
    };
    let reduced = AHashMap::default();
    let mut b = Build { body, kind, kernel, params, memo: AHashMap::default(), reduced, kept, inner, n_reduced };
    for (n, &root) in body.results.iter().enumerate() {
        let ty = body.ty(root);
        if ty.numel() == 0 {
            continue;
        }
        // A column's results live in the kept space even where both have the same number of points.
        let is_full = ty.numel() == n_kept * n_reduced && !(kind == FusionKind::Column && ty.numel() == n_kept);
        if !is_full && ty.numel() != n_kept {
            return Err(b.bad("a result is neither of the whole space nor of the kept dimensions"));
        }
        let offset = if is_full { full.clone() } else { b.kept.clone() };
        let at = b.kernel.ix.delinear(&offset, &ty.dims);
        let value = b.eval(root, &at, Guard::Always)?;
        b.kernel.stores.push(Store { arg: (n_inputs + n) as u32, offset, value, full: is_full });
    }
    if n_reduced == 0 {
        // Nothing to combine: every reduction became its identity.
        b.kernel.loops.iter_mut().filter(|l| l.reduced).for_each(|l| l.extent = 1);
    }
    Ok(b.kernel)
}

impl Build<'_> {
    fn bad(&self, reason: &'static str) -> LowerError {
        LowerError::Shape { kind: self.kind, reason }
    }

    fn add(&mut self, op: ExprOp, dtype: DType, args: &[ExprId]) -> ExprId {
        self.kernel.exprs.add(op, dtype, args)
    }

    fn constant_i64(&mut self, v: i64) -> ExprId {
        self.add(ExprOp::Const(v as u64), DType::I64, &[])
    }

    /// The value of `v` at index `at`, needed only where `guard` holds.
    fn eval(&mut self, v: Value, at: &[Affine], guard: Guard) -> Result<ExprId, LowerError> {
        let ty = self.body.ty(v);
        if guard == Guard::Never {
            return Ok(self.add(ExprOp::Const(0), ty.dtype, &[]));
        }
        let key = (v, at.to_vec(), guard);
        if let Some(&id) = self.memo.get(&key) {
            return Ok(id);
        }
        let inst = self.body.def_inst(v);
        let id = match inst.kind.class() {
            Class::Elementwise => self.elementwise(inst, at, guard)?,
            Class::Leaf => self.leaf(inst, at, guard)?,
            Class::Movement => self.movement(inst, at, guard)?,
            Class::Indexed if inst.kind != OpKind::Scatter => self.indexed(inst, at, guard)?,
            Class::Random => {
                let Attrs::Word(word) = inst.attrs else { return Err(LowerError::Op(inst.kind)) };
                let seed = self.eval(inst.operands[0], &[], Guard::Always)?;
                let offset = self.eval(inst.operands[1], &[], Guard::Always)?;
                let index = self.kernel.ix.linear(at, &ty.dims);
                self.add(ExprOp::Rng { index, word }, DType::U32, &[seed, offset])
            }
            Class::Reduction if inst.kind == OpKind::Reduce => self.reduce(inst, at)?,
            Class::Structural if inst.kind == OpKind::OptimizationBarrier => {
                self.eval(inst.operands[(v.0 - inst.first.0) as usize], at, guard)?
            }
            Class::Reduction | Class::Contraction | Class::Library | Class::Structural | Class::Indexed => {
                return Err(LowerError::Op(inst.kind));
            }
        };
        self.memo.insert(key, id);
        Ok(id)
    }

    fn elementwise(&mut self, inst: &Inst, at: &[Affine], guard: Guard) -> Result<ExprId, LowerError> {
        let mut args: SmallArgs = SmallArgs::new();
        for &o in &inst.operands {
            args.push(self.eval(o, at, guard)?);
        }
        let dtype = self.body.ty(inst.first).dtype;
        let op = match (inst.kind, &inst.attrs) {
            (OpKind::Convert, _) if self.kernel.exprs.get(args[0]).dtype == dtype => return Ok(args[0]),
            (OpKind::Compare, Attrs::Compare(dir)) => ExprOp::Compare(*dir),
            (kind, _) => ExprOp::Op(kind),
        };
        Ok(self.add(op, dtype, &args))
    }

    fn load(&mut self, source: Source, ty: &TensorType, at: &[Affine], guard: Guard) -> ExprId {
        let offset = self.kernel.ix.linear(at, &ty.dims);
        let op = ExprOp::Load { source, offset };
        match guard {
            Guard::If(g) => self.add(op, ty.dtype, &[g]),
            Guard::Always | Guard::Never => self.add(op, ty.dtype, &[]),
        }
    }

    fn leaf(&mut self, inst: &Inst, at: &[Affine], guard: Guard) -> Result<ExprId, LowerError> {
        let ty = self.body.ty(inst.first).clone();
        match (inst.kind, &inst.attrs) {
            (OpKind::Parameter, Attrs::Index(n)) => {
                let number = self.params[*n as usize];
                Ok(match self.body.params[*n as usize].kind {
                    ParamKind::Tensor => self.load(Source::Arg(number), &ty, at, guard),
                    ParamKind::Scalar => self.add(ExprOp::Scalar(number), ty.dtype, &[]),
                })
            }
            (OpKind::Constant, Attrs::Literal(l)) if l.is_splat() || l.ty.numel() == 1 => {
                Ok(self.add(ExprOp::Const(bits(l.element(0))), ty.dtype, &[]))
            }
            (OpKind::Constant, Attrs::Literal(l)) => {
                let known = self.kernel.literals.iter().position(|k| k == l);
                let number = known.unwrap_or_else(|| {
                    self.kernel.literals.push(l.clone());
                    self.kernel.literals.len() - 1
                });
                Ok(self.load(Source::Literal(number as u32), &ty, at, guard))
            }
            (OpKind::Iota, Attrs::Dim(d)) => {
                let index = self.add(ExprOp::Index(at[*d as usize].clone()), DType::I64, &[]);
                Ok(match ty.dtype {
                    DType::I64 => index,
                    other => self.add(ExprOp::Op(OpKind::Convert), other, &[index]),
                })
            }
            (kind, _) => Err(LowerError::Op(kind)),
        }
    }

    /// `guard` and `lo <= index < hi`.
    fn within(&mut self, guard: Guard, index: &Affine, lo: i64, hi: i64) -> Guard {
        let (least, most) = self.kernel.ix.range(index);
        if guard == Guard::Never || lo >= hi || most < lo || least >= hi {
            return Guard::Never;
        }
        if least >= lo && most < hi {
            return guard;
        }
        let test = self.add(ExprOp::InRange { index: index.clone(), lo, hi }, DType::Bool, &[]);
        match guard {
            Guard::If(g) => Guard::If(self.add(ExprOp::Op(OpKind::And), DType::Bool, &[g, test])),
            Guard::Always | Guard::Never => Guard::If(test),
        }
    }

    /// `inside` where `test` holds, else `outside`; `test` was built on top of a guard that holds.
    fn choose(&mut self, test: Guard, inside: ExprId, outside: ExprId) -> ExprId {
        match test {
            Guard::Always => inside,
            Guard::Never => outside,
            Guard::If(t) => {
                let dtype = self.kernel.exprs.get(inside).dtype;
                self.add(ExprOp::Op(OpKind::Select), dtype, &[t, inside, outside])
            }
        }
    }

    fn movement(&mut self, inst: &Inst, at: &[Affine], guard: Guard) -> Result<ExprId, LowerError> {
        let x = inst.operands[0];
        let from = self.body.ty(x).dims.clone();
        let ix = &mut self.kernel.ix;
        let index: Vec<Affine> = match (inst.kind, &inst.attrs) {
            (OpKind::BroadcastInDim, Attrs::Dims(dims)) => dims
                .iter()
                .zip(&from)
                .map(|(&d, &n)| if n == 1 { Affine::default() } else { at[d as usize].clone() })
                .collect(),
            (OpKind::Reshape, _) => {
                let position = ix.linear(at, &self.body.ty(inst.first).dims);
                ix.delinear(&position, &from)
            }
            (OpKind::Transpose, Attrs::Dims(perm)) => {
                let mut index = vec![Affine::default(); from.len()];
                perm.iter().zip(at).for_each(|(&p, a)| index[p as usize] = a.clone());
                index
            }
            (OpKind::Slice, Attrs::Slice { start, stride, .. }) => (0..from.len())
                .map(|d| {
                    let scaled = ix.scale(&at[d], stride[d]);
                    ix.offset(&scaled, start[d])
                })
                .collect(),
            (OpKind::Reverse, Attrs::Dims(dims)) => (0..from.len())
                .map(|d| match dims.contains(&(d as i64)) {
                    true => ix.add_scaled(&Affine::constant(from[d] - 1), &at[d], -1),
                    false => at[d].clone(),
                })
                .collect(),
            (OpKind::Pad, Attrs::Pad { lo, interior, .. }) => {
                let (mut test, mut index) = (guard, Vec::new());
                for d in 0..from.len() {
                    let (step, shifted) = (interior[d] + 1, self.kernel.ix.offset(&at[d], -lo[d]));
                    test = self.within(test, &shifted, 0, if from[d] == 0 { 0 } else { (from[d] - 1) * step + 1 });
                    let between = self.kernel.ix.modulo(&shifted, step);
                    test = self.within(test, &between, 0, 1);
                    index.push(self.kernel.ix.div(&shifted, step));
                }
                let inside = self.eval(x, &index, test)?;
                let outside = self.eval(inst.operands[1], &[], Guard::Always)?;
                return Ok(self.choose(test, inside, outside));
            }
            (OpKind::Concatenate, Attrs::Dim(dim)) => return self.concatenate(inst, *dim as usize, at, guard),
            (kind, _) => return Err(LowerError::Op(kind)),
        };
        self.eval(x, &index, guard)
    }

    fn concatenate(&mut self, inst: &Inst, dim: usize, at: &[Affine], guard: Guard) -> Result<ExprId, LowerError> {
        let mut parts = Vec::new();
        let mut start = 0;
        for &o in &inst.operands {
            let end = start + self.body.ty(o).dims[dim];
            let test = self.within(guard, &at[dim], start, end);
            if test != Guard::Never {
                let mut index = at.to_vec();
                index[dim] = self.kernel.ix.offset(&at[dim], -start);
                parts.push((test, self.eval(o, &index, test)?));
            }
            start = end;
        }
        // The index is inside one of the parts, so the last needs no test.
        let Some((_, mut value)) = parts.pop() else { return Err(self.bad("concatenation of nothing")) };
        while let Some((test, part)) = parts.pop() {
            value = self.choose(test, part, value);
        }
        Ok(value)
    }

    /// Run-time start of a slice of `size` in a dimension of `n`, clamped into range.
    fn start(&mut self, v: Value, n: i64, size: i64) -> Result<Affine, LowerError> {
        let last = n - size;
        let start = self.eval(v, &[], Guard::Always)?;
        if let ExprOp::Const(c) = self.kernel.exprs.get(start).op {
            return Ok(Affine::constant((c as i64).clamp(0, last)));
        }
        let (zero, top) = (self.constant_i64(0), self.constant_i64(last));
        let low = self.add(ExprOp::Op(OpKind::Maximum), DType::I64, &[start, zero]);
        let clamped = self.add(ExprOp::Op(OpKind::Minimum), DType::I64, &[low, top]);
        Ok(self.kernel.ix.value(clamped, 0, last))
    }

    fn indexed(&mut self, inst: &Inst, at: &[Affine], guard: Guard) -> Result<ExprId, LowerError> {
        let x = inst.operands[0];
        let from = self.body.ty(x).dims.clone();
        match (inst.kind, &inst.attrs) {
            (OpKind::DynamicSlice, _) => {
                let sizes = self.body.ty(inst.first).dims.clone();
                let mut index = Vec::new();
                for d in 0..from.len() {
                    let start = self.start(inst.operands[1 + d], from[d], sizes[d])?;
                    index.push(self.kernel.ix.add_scaled(&at[d], &start, 1));
                }
                self.eval(x, &index, guard)
            }
            (OpKind::DynamicUpdateSlice, _) => {
                let update = inst.operands[1];
                let sizes = self.body.ty(update).dims.clone();
                let (mut test, mut index) = (guard, Vec::new());
                for d in 0..from.len() {
                    let start = self.start(inst.operands[2 + d], from[d], sizes[d])?;
                    let shifted = self.kernel.ix.add_scaled(&at[d], &start, -1);
                    // Where the whole dimension is written the start is 0 and the test is decided here.
                    test = self.within(test, &shifted, 0, sizes[d]);
                    index.push(shifted);
                }
                let inside = self.eval(update, &index, test)?;
                let outside = self.eval(x, at, guard)?;
                Ok(self.choose(test, inside, outside))
            }
            (OpKind::Gather, Attrs::Dims(dims)) => {
                let n_index = self.body.ty(inst.operands[1]).rank();
                let mut index = vec![Affine::default(); from.len()];
                let mut test = guard;
                for (k, &d) in dims.iter().enumerate() {
                    let raw = self.eval(inst.operands[1 + k], &at[..n_index], guard)?;
                    let size = from[d as usize];
                    let args = [Some(raw), if let Guard::If(g) = guard { Some(g) } else { None }];
                    let args: SmallArgs = args.into_iter().flatten().collect();
                    let checked = self.add(ExprOp::Checked { size }, DType::I64, &args);
                    if size == 0 {
                        // Every index is bad; nothing may be read, but the report must be made.
                        let range = self.kernel.ix.value(checked, 0, 1);
                        test = self.within(test, &range, 1, 2);
                    } else {
                        index[d as usize] = self.kernel.ix.value(checked, 0, size - 1);
                    }
                }
                let rest = (0..from.len()).filter(|d| !dims.contains(&(*d as i64)));
                for (d, a) in rest.zip(&at[n_index..]) {
                    index[d] = a.clone();
                }
                self.eval(x, &index, test)
            }
            (kind, _) => Err(LowerError::Op(kind)),
        }
    }

    fn reduce(&mut self, inst: &Inst, at: &[Affine]) -> Result<ExprId, LowerError> {
        let Attrs::Reduce { kind, dims } = &inst.attrs else { return Err(LowerError::Op(inst.kind)) };
        let (result, dtype) = (inst.first, self.body.ty(inst.first).dtype);
        if self.n_reduced == 0 {
            return Ok(self.add(ExprOp::Const(identity(*kind, dtype)), dtype, &[]));
        }
        let position = self.kernel.ix.linear(at, &self.body.ty(result).dims);
        if self.n_reduced == 1 {
            // One element: it is its own sum, product and extreme.
            let index = self.operand_index(inst, dims, position, Affine::default())?;
            return self.eval(inst.operands[0], &index, Guard::Always);
        }
        if position != self.kept {
            return Err(self.bad("a reduction's result is used at another index than its own"));
        }
        let number = match self.reduced.get(&result) {
            Some(&n) => n,
            None => {
                let index = self.operand_index(inst, dims, self.kept.clone(), self.inner.clone())?;
                let value = self.eval(inst.operands[0], &index, Guard::Always)?;
                let level = self.level(value);
                let n = self.kernel.reductions.len() as u32;
                self.kernel.reductions.push(Reduction { kind: *kind, value, dtype, level });
                self.reduced.insert(result, n);
                n
            }
        };
        Ok(self.add(ExprOp::Reduced(number), dtype, &[]))
    }

    /// Index of a reduction's operand from the positions in the kept and the reduced dimensions.
    fn operand_index(
        &mut self,
        inst: &Inst,
        red: &Dims,
        kept: Affine,
        inner: Affine,
    ) -> Result<Vec<Affine>, LowerError> {
        let from = self.body.ty(inst.operands[0]).dims.clone();
        let (red, keep): (Vec<usize>, Vec<usize>) = (0..from.len()).partition(|d| red.contains(&(*d as i64)));
        let sizes = |list: &[usize]| list.iter().map(|&d| from[d]).collect::<Dims>();
        if sizes(&red).iter().product::<i64>() != self.n_reduced {
            return Err(self.bad("reductions over different dimensions"));
        }
        let mut index = vec![Affine::default(); from.len()];
        for (list, position) in [(&keep, kept), (&red, inner)] {
            for (&d, a) in list.iter().zip(self.kernel.ix.delinear(&position, &sizes(list))) {
                index[d] = a;
            }
        }
        Ok(index)
    }

    /// Number of reductions that must be finished, one after the other, before `value` can be computed.
    fn level(&self, value: ExprId) -> u32 {
        let mut level = 0;
        self.kernel.exprs.walk(&self.kernel.ix, &[value], &mut |id| {
            if let ExprOp::Reduced(n) = self.kernel.exprs.get(id).op {
                level = level.max(self.kernel.reductions[n as usize].level + 1);
            }
        });
        level
    }
}

type SmallArgs = smallvec::SmallVec<[ExprId; 3]>;
