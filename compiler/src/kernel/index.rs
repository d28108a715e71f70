//! Index expressions: affine sums over loop variables, quotients, remainders and run-time values.
//!
//! Every expression is kept in one normal form (constant plus sorted terms over interned atoms) with a known range,
//! so that the index arithmetic of reshapes, slices and pads disappears at construction wherever it can: the loops
//! that are generated see only what is left.
use super::ExprId;
use ahash::AHashMap;
use smallvec::SmallVec;

/// An indivisible index value, by its place in [`Indices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AtomId(pub u32);

/// What an atom stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Atom {
    /// Loop variable number n.
    Var(u32),
    /// Floor of the (never negative) expression over the positive divisor.
    Div(Affine, i64),
    /// Remainder of the (never negative) expression by the positive divisor.
    Mod(Affine, i64),
    /// An `i64` value computed by the kernel.
    Value(ExprId),
}

/// `constant + sum of coefficient * atom`; terms are sorted by atom and never zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Affine {
    pub constant: i64,
    pub terms: SmallVec<[(AtomId, i64); 3]>,
}

impl Affine {
    pub fn constant(constant: i64) -> Self {
        Affine { constant, terms: SmallVec::new() }
    }

    /// The value, if it depends on nothing.
    pub fn as_constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The atom, if the expression is exactly one.
    pub fn as_atom(&self) -> Option<AtomId> {
        match self.terms[..] {
            [(a, 1)] if self.constant == 0 => Some(a),
            _ => None,
        }
    }

    /// Coefficient of `atom`.
    pub fn coefficient(&self, atom: AtomId) -> i64 {
        self.terms.iter().find(|t| t.0 == atom).map_or(0, |t| t.1)
    }

    fn of(atom: AtomId) -> Self {
        Affine { constant: 0, terms: SmallVec::from_slice(&[(atom, 1)]) }
    }

    fn push(&mut self, atom: AtomId, k: i64) {
        match self.terms.binary_search_by_key(&atom, |t| t.0) {
            Ok(i) => {
                self.terms[i].1 += k;
                if self.terms[i].1 == 0 {
                    self.terms.remove(i);
                }
            }
            Err(i) if k != 0 => self.terms.insert(i, (atom, k)),
            Err(_) => {}
        }
    }
}

/// The atoms of one kernel, each with its inclusive range.
#[derive(Clone, Debug, Default)]
pub struct Indices {
    atoms: Vec<(Atom, i64, i64)>,
    known: AHashMap<Atom, AtomId>,
}

impl Indices {
    pub fn atom(&self, id: AtomId) -> &Atom {
        &self.atoms[id.0 as usize].0
    }

    fn intern(&mut self, atom: Atom, lo: i64, hi: i64) -> AtomId {
        if let Some(&id) = self.known.get(&atom) {
            return id;
        }
        let id = AtomId(self.atoms.len() as u32);
        self.known.insert(atom.clone(), id);
        self.atoms.push((atom, lo, hi));
        id
    }

    /// Loop variable `n`, which runs over `0..extent`; a loop of one trip is 0.
    pub fn var(&mut self, n: u32, extent: i64) -> Affine {
        if extent <= 1 {
            return Affine::constant(0);
        }
        Affine::of(self.intern(Atom::Var(n), 0, extent - 1))
    }

    /// The atom of loop variable `n`, if it exists.
    pub fn var_atom(&self, n: u32) -> Option<AtomId> {
        self.known.get(&Atom::Var(n)).copied()
    }

    /// A run-time value known to lie in `lo..=hi`.
    pub fn value(&mut self, value: ExprId, lo: i64, hi: i64) -> Affine {
        if lo == hi {
            return Affine::constant(lo);
        }
        Affine::of(self.intern(Atom::Value(value), lo, hi))
    }

    /// Inclusive range of `a`.
    pub fn range(&self, a: &Affine) -> (i64, i64) {
        let (mut lo, mut hi) = (a.constant, a.constant);
        for &(id, k) in &a.terms {
            let (_, l, h) = self.atoms[id.0 as usize];
            let (x, y) = (k.saturating_mul(l), k.saturating_mul(h));
            lo = lo.saturating_add(x.min(y));
            hi = hi.saturating_add(x.max(y));
        }
        (lo, hi)
    }

    /// `a + k * b`.
    pub fn add_scaled(&mut self, a: &Affine, b: &Affine, k: i64) -> Affine {
        let mut sum = a.clone();
        sum.constant += k * b.constant;
        for &(atom, c) in &b.terms {
            sum.push(atom, k * c);
        }
        self.recombine(sum)
    }

    /// `a + c`.
    pub fn offset(&self, a: &Affine, c: i64) -> Affine {
        Affine { constant: a.constant + c, terms: a.terms.clone() }
    }

    /// `k * a`.
    pub fn scale(&mut self, a: &Affine, k: i64) -> Affine {
        self.add_scaled(&Affine::default(), a, k)
    }

    /// Undoes splits: `k*c*(x div c) + k*(x mod c) = k*x`, and the same one digit further up.
    fn recombine(&mut self, mut sum: Affine) -> Affine {
        'again: loop {
            for i in 0..sum.terms.len() {
                let (id, k) = sum.terms[i];
                let Atom::Mod(inner, c) = self.atom(id).clone() else { continue };
                let quotient = self.div(&inner, c);
                let Some(q) = quotient.as_atom() else { continue };
                if sum.coefficient(q) == k * c {
                    sum.push(id, -k);
                    sum.push(q, -k * c);
                    sum = self.raw_add(sum, &inner, k);
                    continue 'again;
                }
                // (x mod c) + c * ((x div c) mod e) = x mod (c * e)
                let digit = sum.terms.iter().find_map(|&(d, kd)| match self.atom(d) {
                    Atom::Mod(i, e) if kd == k * c && *i == quotient => Some((d, *e)),
                    _ => None,
                });
                if let Some((d, e)) = digit {
                    sum.push(id, -k);
                    sum.push(d, -k * c);
                    let whole = self.modulo(&inner, c * e);
                    sum = self.raw_add(sum, &whole, k);
                    continue 'again;
                }
            }
            return sum;
        }
    }

    fn raw_add(&self, mut a: Affine, b: &Affine, k: i64) -> Affine {
        a.constant += k * b.constant;
        for &(atom, c) in &b.terms {
            a.push(atom, k * c);
        }
        a
    }

    /// Splits `a` into (multiple of c divided by c, rest) where the rest is not negative and has no multiple of c.
    fn split(&self, a: &Affine, c: i64) -> (Affine, Affine) {
        let mut q = Affine::constant(a.constant.div_euclid(c));
        let mut rest = Affine::constant(a.constant.rem_euclid(c));
        for &(atom, k) in &a.terms {
            if k % c == 0 {
                q.push(atom, k / c);
            } else {
                rest.push(atom, k);
            }
        }
        let down = self.range(&rest).0.div_euclid(c);
        if down < 0 {
            q.constant += down;
            rest.constant -= down * c;
        }
        (q, rest)
    }

    /// Common divisor of the coefficients of `rest` and `c`.
    fn common(rest: &Affine, c: i64) -> i64 {
        rest.terms.iter().fold(c, |g, t| gcd(g, t.1.abs()))
    }

    fn shrink(rest: &Affine, g: i64) -> Affine {
        Affine { constant: rest.constant.div_euclid(g), terms: rest.terms.iter().map(|&(a, k)| (a, k / g)).collect() }
    }

    /// `floor(a / c)` for positive `c`.
    pub fn div(&mut self, a: &Affine, c: i64) -> Affine {
        debug_assert!(c > 0);
        if c == 1 {
            return a.clone();
        }
        let (q, rest) = self.split(a, c);
        let (lo, hi) = self.range(&rest);
        if lo.div_euclid(c) == hi.div_euclid(c) {
            return self.offset(&q, lo.div_euclid(c));
        }
        let g = Self::common(&rest, c);
        let (inner, c) = if g > 1 { (Self::shrink(&rest, g), c / g) } else { (rest, c) };
        let tail = match inner.as_atom().map(|id| self.atom(id).clone()) {
            _ if c == 1 => inner,
            Some(Atom::Div(x, c1)) => self.div(&x, c1 * c),
            Some(Atom::Mod(x, m)) if m % c == 0 => {
                let digits = self.div(&x, c);
                self.modulo(&digits, m / c)
            }
            _ => {
                let (lo, hi) = self.range(&inner);
                Affine::of(self.intern(Atom::Div(inner, c), lo.div_euclid(c), hi.div_euclid(c)))
            }
        };
        self.add_scaled(&q, &tail, 1)
    }

    /// `a mod c`, in `0..c`, for positive `c`.
    pub fn modulo(&mut self, a: &Affine, c: i64) -> Affine {
        debug_assert!(c > 0);
        let (_, rest) = self.split(a, c);
        let (lo, hi) = self.range(&rest);
        if lo.div_euclid(c) == hi.div_euclid(c) {
            return self.offset(&rest, -lo.div_euclid(c) * c);
        }
        let g = Self::common(&rest, c);
        let low = rest.constant.rem_euclid(g);
        let (inner, c) = if g > 1 { (Self::shrink(&rest, g), c / g) } else { (rest, c) };
        let head = match inner.as_atom().map(|id| self.atom(id).clone()) {
            Some(Atom::Mod(x, m)) if m % c == 0 => self.modulo(&x, c),
            _ if c == 1 => Affine::constant(0),
            _ => {
                let hi = self.range(&inner).1.min(c - 1);
                Affine::of(self.intern(Atom::Mod(inner, c), 0, hi))
            }
        };
        self.add_scaled(&Affine::constant(low), &head, g)
    }

    /// Row-major position of `at` in an array of sizes `dims`.
    pub fn linear(&mut self, at: &[Affine], dims: &[i64]) -> Affine {
        let mut sum = Affine::default();
        let mut stride = 1;
        for (a, &d) in at.iter().zip(dims).rev() {
            sum = self.add_scaled(&sum, a, stride);
            stride *= d.max(1);
        }
        sum
    }

    /// Inverse of [`Indices::linear`], for a position inside the array.
    pub fn delinear(&mut self, position: &Affine, dims: &[i64]) -> Vec<Affine> {
        let mut out = vec![Affine::default(); dims.len()];
        let mut rest = position.clone();
        for i in (0..dims.len()).rev() {
            let d = dims[i].max(1);
            if dims[..i].iter().all(|&d| d <= 1) {
                // Nothing is left above: the position is inside the array.
                out[i] = if d == 1 { Affine::default() } else { rest };
                break;
            }
            out[i] = self.modulo(&rest, d);
            rest = self.div(&rest, d);
        }
        out
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_and_merging_dimensions_leaves_no_division() {
        let mut ix = Indices::default();
        let (i, j, k) = (ix.var(0, 6), ix.var(1, 4), ix.var(2, 5));
        // [6, 4, 5] -> [24, 5] -> [6, 20] -> [6, 4, 5]
        let mut at = vec![i, j, k];
        for (from, to) in [(&[6, 4, 5][..], &[24, 5][..]), (&[24, 5], &[6, 20]), (&[6, 20], &[6, 4, 5])] {
            let pos = ix.linear(&at, from);
            at = ix.delinear(&pos, to);
        }
        assert_eq!(at, [ix.var(0, 6), ix.var(1, 4), ix.var(2, 5)]);
    }

    #[test]
    fn digits_of_a_flat_index_recombine() {
        let mut ix = Indices::default();
        let f = ix.var(0, 2 * 3 * 5 * 7);
        for dims in [&[2, 3, 5, 7][..], &[6, 35], &[30, 7], &[2, 15, 7]] {
            let at = ix.delinear(&f, dims);
            assert_eq!(ix.linear(&at, dims), f, "{dims:?}");
        }
        // Through another factoring: [2,3,5,7] -> [10, 21].
        let at = ix.delinear(&f, &[2, 3, 5, 7]);
        let pos = ix.linear(&at, &[2, 3, 5, 7]);
        let at = ix.delinear(&pos, &[10, 21]);
        assert_eq!(ix.linear(&at, &[10, 21]), f);
        // Inner digits alone.
        let at = ix.delinear(&f, &[2, 3, 5, 7]);
        let inner = ix.linear(&at[2..], &[5, 7]);
        assert_eq!(inner, ix.modulo(&f, 35));
    }

    #[test]
    fn values_agree_with_arithmetic() {
        // a = 6x - 4y + 3 over x in 0..5, y in 0..7; every divisor.
        let mut ix = Indices::default();
        let (x, y) = (ix.var(0, 5), ix.var(1, 7));
        let a = ix.scale(&x, 6);
        let a = ix.add_scaled(&a, &y, -4);
        let a = ix.offset(&a, 3);
        for c in 1..30 {
            let (q, r) = (ix.div(&a, c), ix.modulo(&a, c));
            for xv in 0..5 {
                for yv in 0..7 {
                    let v = 6 * xv - 4 * yv + 3;
                    let vars = [xv, yv];
                    assert_eq!(eval(&ix, &q, &vars), v.div_euclid(c), "{v} div {c}");
                    assert_eq!(eval(&ix, &r, &vars), v.rem_euclid(c), "{v} mod {c}");
                    let (lo, hi) = ix.range(&r);
                    assert!((lo..=hi).contains(&v.rem_euclid(c)));
                }
            }
        }
    }

    fn eval(ix: &Indices, a: &Affine, vars: &[i64]) -> i64 {
        a.constant
            + a.terms
                .iter()
                .map(|&(id, k)| {
                    k * match ix.atom(id) {
                        Atom::Var(n) => vars[*n as usize],
                        Atom::Div(a, c) => eval(ix, a, vars).div_euclid(*c),
                        Atom::Mod(a, c) => eval(ix, a, vars).rem_euclid(*c),
                        Atom::Value(_) => 0,
                    }
                })
                .sum::<i64>()
    }
}
