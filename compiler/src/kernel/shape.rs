//! A kernel's structure apart from its numbers: what kernels of different sizes have in common.
//!
//! Sizes, strides, bounds and constants are *numbers*, everything else is *structure*; -1, 0 and 1 are structure too,
//! since code looks different for them (no loop, no multiplication), except as constants of indices: a slice may start at
//! 0 as well as anywhere. Two kernels of one structure differ in nothing but the numbers at the same places.
//!
//! [`Assumed`] says what code for many sizes may rely on: of a number that varies, that it is a multiple of something.
use super::{Affine, Atom, AtomId, ExprId, ExprOp, Exprs, Kernel};
use crate::ir::OpKind;
use ahash::AHashMap;
use smallvec::SmallVec;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Equal for kernels that differ in numbers only.
    pub structure: Vec<u8>,
    pub numbers: Vec<i64>,
    /// For each number the most it may be assumed to be a multiple of when it varies.
    pub finest: Vec<i64>,
}

/// Where a number stands.
#[derive(Clone, Copy)]
enum Site<'k> {
    Extent(u32),
    Divisor(AtomId),
    Constant(&'k Affine),
    Coefficient(&'k Affine, usize),
    /// Bounds of an `InRange`.
    Bound(ExprId, usize),
    /// Decides nothing.
    Other,
}

/// The most that anything is assumed to be a multiple of: whole vectors of any width, times any unrolling in use.
const FINEST: i64 = 64;

impl Kernel {
    /// The kernel's structure and its numbers.
    pub fn shape(&self) -> Shape {
        let (mut numbers, mut finest) = (Vec::new(), Vec::new());
        let structure = walk(self, &mut |site, v| {
            numbers.push(v);
            // Extents that are no multiples of everything are taken for multiples of nothing: how many elements are
            // left over differs from size to size. Strides keep what all sizes have in common.
            finest.push(match site {
                Site::Extent(_) if v % FINEST != 0 => 1,
                _ => 1 << v.trailing_zeros().min(FINEST.ilog2()),
            });
        });
        Shape { structure, numbers, finest }
    }
}

/// What code may assume of a kernel's numbers. A multiple of 0 stands for a number that never varies.
#[derive(Clone, Debug, Default)]
pub struct Assumed {
    extents: Vec<i64>,
    divisors: AHashMap<AtomId, i64>,
    indices: AHashMap<Affine, (i64, SmallVec<[i64; 3]>)>,
    bounds: AHashMap<ExprId, [i64; 2]>,
}

impl Assumed {
    /// What `multiples`, one per number of the kernel's shape, say of its parts.
    pub fn new(k: &Kernel, multiples: &[i64]) -> Assumed {
        let mut a = Assumed { extents: vec![0; k.loops.len()], ..Assumed::default() };
        let mut rest = multiples.iter();
        walk(k, &mut |site, _| {
            let m = rest.next().copied().unwrap_or(0);
            if m == 0 {
                return;
            }
            // One index may stand in several places, of which some vary.
            let index = |a: &'_ Affine| (0, SmallVec::from_elem(0, a.terms.len()));
            let slot = match site {
                Site::Extent(v) => &mut a.extents[v as usize],
                Site::Divisor(id) => a.divisors.entry(id).or_default(),
                Site::Constant(x) => &mut a.indices.entry(x.clone()).or_insert_with(|| index(x)).0,
                Site::Coefficient(x, n) => &mut a.indices.entry(x.clone()).or_insert_with(|| index(x)).1[n],
                Site::Bound(e, n) => &mut a.bounds.entry(e).or_default()[n],
                Site::Other => return,
            };
            *slot = if *slot == 0 { m } else { m.min(*slot) };
        });
        a
    }

    /// Some loop's extent varies.
    pub fn varies(&self) -> bool {
        self.extents.iter().any(|&m| m != 0)
    }

    /// What the extent of loop `v` is a multiple of, if it varies.
    pub fn extent(&self, v: u32) -> Option<i64> {
        self.extents.get(v as usize).copied().filter(|&m| m != 0)
    }

    /// The same of the divisor of a quotient or a remainder.
    pub fn divisor(&self, atom: AtomId) -> Option<i64> {
        self.divisors.get(&atom).copied()
    }

    /// The same of the constant of an index.
    pub fn constant(&self, a: &Affine) -> Option<i64> {
        self.indices.get(a).map(|x| x.0).filter(|&m| m != 0)
    }

    /// The same of the coefficient of term `n` of an index.
    pub fn coefficient(&self, a: &Affine, n: usize) -> Option<i64> {
        self.indices.get(a).map(|x| x.1[n]).filter(|&m| m != 0)
    }

    /// The same of the lower (0) or upper (1) bound of an `InRange`.
    pub fn bound(&self, e: ExprId, n: usize) -> Option<i64> {
        self.bounds.get(&e).map(|x| x[n]).filter(|&m| m != 0)
    }
}

/// Visits all numbers of `k` in a fixed order and returns its structure.
fn walk<'k>(k: &'k Kernel, visit: &mut dyn FnMut(Site<'k>, i64)) -> Vec<u8> {
    let mut w = Walk { k, visit, out: Vec::new(), atoms: AHashMap::default(), exprs: AHashMap::default() };
    w.text(&(k.kind, k.n_inputs, &k.scalars));
    for a in &k.args {
        w.text(&a.dtype);
    }
    for l in &k.literals {
        w.text(&(l.ty.dtype, &l.ty.dims, &l.bytes));
    }
    for (v, l) in k.loops.iter().enumerate() {
        w.text(&l.reduced);
        w.number(Site::Extent(v as u32), l.extent);
    }
    k.exprs.walk(&k.ix, &k.roots(), &mut |e| w.expr(&k.exprs, e));
    for r in &k.reductions {
        w.text(&(r.kind, r.dtype, r.level, w.exprs.get(&r.value).copied()));
    }
    for s in &k.stores {
        w.text(&(s.arg, s.full, w.exprs.get(&s.value).copied()));
        w.affine(&s.offset);
    }
    w.out
}

struct Walk<'k, 'v> {
    k: &'k Kernel,
    visit: &'v mut dyn FnMut(Site<'k>, i64),
    out: Vec<u8>,
    /// Numbered as they are met: places in the kernel's tables depend on what was built and is not needed.
    atoms: AHashMap<AtomId, u32>,
    exprs: AHashMap<ExprId, u32>,
}

impl<'k> Walk<'k, '_> {
    fn text(&mut self, x: &dyn std::fmt::Debug) {
        use std::io::Write;
        // Writing to a vector cannot fail.
        let _ = write!(self.out, "{x:?};");
    }

    fn number(&mut self, site: Site<'k>, v: i64) {
        if (-1..=1).contains(&v) {
            self.text(&v);
        } else {
            self.out.push(b'#');
            (self.visit)(site, v);
        }
    }

    fn affine(&mut self, a: &'k Affine) {
        self.out.push(b'#');
        (self.visit)(Site::Constant(a), a.constant);
        for (n, &(atom, c)) in a.terms.iter().enumerate() {
            self.atom(atom);
            self.number(Site::Coefficient(a, n), c);
        }
        self.out.push(b'.');
    }

    fn atom(&mut self, id: AtomId) {
        let new = self.atoms.len() as u32;
        let number = *self.atoms.entry(id).or_insert(new);
        self.text(&number);
        if number < new {
            return;
        }
        match self.k.ix.atom(id) {
            Atom::Var(v) => self.text(&("var", v)),
            Atom::Value(e) => self.text(&("value", self.exprs.get(e).copied())),
            Atom::Div(a, c) | Atom::Mod(a, c) => {
                self.text(&matches!(self.k.ix.atom(id), Atom::Div(..)));
                self.affine(a);
                self.number(Site::Divisor(id), *c);
            }
        }
    }

    /// An expression whose operands are known.
    fn expr(&mut self, exprs: &'k Exprs, id: ExprId) {
        let number = self.exprs.len() as u32;
        self.exprs.insert(id, number);
        let e = exprs.get(id);
        let args: SmallVec<[Option<u32>; 3]> = e.args.iter().map(|a| self.exprs.get(a).copied()).collect();
        self.text(&(e.dtype, args));
        match &e.op {
            ExprOp::Const(bits) => self.number(Site::Other, *bits as i64),
            ExprOp::Scalar(n) => self.text(&("scalar", n)),
            ExprOp::Load { source, offset } => {
                self.text(&("load", source));
                self.affine(offset);
            }
            ExprOp::Index(a) => {
                self.text(&"index");
                self.affine(a);
            }
            ExprOp::InRange { index, lo, hi } => {
                self.text(&"in range");
                self.affine(index);
                self.number(Site::Bound(id, 0), *lo);
                self.number(Site::Bound(id, 1), *hi);
            }
            ExprOp::Checked { size } => {
                self.text(&"checked");
                self.number(Site::Other, *size);
            }
            ExprOp::Op(OpKind::Power) => {
                // Code is chosen by the exponent.
                let exponent = e.args.get(1).map(|&a| &exprs.get(a).op);
                self.text(&("power", exponent.filter(|op| matches!(op, ExprOp::Const(_)))));
            }
            ExprOp::Op(kind) => self.text(kind),
            ExprOp::Compare(dir) => self.text(dir),
            ExprOp::Rng { index, word } => {
                self.text(&("rng", word));
                self.affine(index);
            }
            ExprOp::Reduced(n) => self.text(&("reduced", n)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LowerOptions, lower};
    use super::*;
    use crate::ir::{Builder, DType, FusionKind, ParamKind, TensorType};

    /// Bias of each row of `[n, c]`, scaled.
    fn kernel(n: i64, c: i64, scale: f64) -> Kernel {
        let mut b = Builder::new("bias");
        let x = b.parameter(TensorType::new(DType::F32, [n, c]), ParamKind::Tensor);
        let y = b.parameter(TensorType::new(DType::F32, [c]), ParamKind::Tensor);
        let y = b.broadcast_in_dim(y, [n, c], [1]);
        let s = b.add(x, y);
        let k = b.full_like(s, scale);
        let r = b.mul(s, k);
        lower(FusionKind::Loop, &b.finish(vec![r]).expect("it is well typed"), LowerOptions { min_inner: 8 })
            .expect("it lowers")
    }

    #[test]
    fn sizes_and_constants_are_numbers() {
        let a = kernel(67, 256, 0.5).shape();
        for (n, c, scale) in [(71, 256, 0.5), (64, 64, 3.0), (1000, 9, 0.25)] {
            let b = kernel(n, c, scale).shape();
            assert_eq!(a.structure, b.structure);
            assert_eq!(a.numbers.len(), b.numbers.len());
            assert_ne!(a.numbers, b.numbers);
        }
        // One row has no loop over rows; a row too short for vectors is merged with the others.
        for (n, c) in [(1, 256), (67, 1), (67, 3)] {
            assert_ne!(a.structure, kernel(n, c, 0.5).shape().structure);
        }
    }

    #[test]
    fn assumptions_are_found_where_they_belong() {
        let k = kernel(67, 256, 0.5);
        let shape = k.shape();
        let of = |v: i64, m: i64| shape.numbers.iter().map(|&n| if n == v { m } else { 0 }).collect::<Vec<_>>();
        let a = Assumed::new(&k, &of(67, 1));
        assert_eq!((a.extent(0), a.extent(1), a.varies()), (Some(1), None, true));
        let a = Assumed::new(&k, &of(256, 64));
        assert_eq!((a.extent(0), a.extent(1)), (None, Some(64)));
        let offset = &k.stores[0].offset;
        assert_eq!((a.coefficient(offset, 0), a.coefficient(offset, 1), a.constant(offset)), (Some(64), None, None));
        assert!(!Assumed::new(&k, &vec![0; shape.numbers.len()]).varies());
    }
}
