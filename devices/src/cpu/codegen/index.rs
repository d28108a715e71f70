//! Index expressions as code: hoisted scalar sums, and what is left of them across lanes.
use super::emit::{Emit, Reg, Ty};
use rsx_compiler::ir::OpKind;
use rsx_compiler::kernel::{Affine, Atom, AtomId, ExprId, ExprOp};

/// A scalar part of an index.
struct Term {
    name: String,
    k: i64,
    depth: usize,
    /// The value times `k` is a multiple of this, whatever sizes vary.
    multiple: i64,
}

/// An index split into what all lanes share and what differs: `constant + terms + lane * step + vector atoms`.
#[derive(Default)]
struct Split {
    constant: i64,
    /// Of a constant that varies: what it is a multiple of, and how much of `constant` it is.
    variable: Option<(i64, i64)>,
    /// The step varies.
    strides: bool,
    terms: Vec<Term>,
    step: i64,
    vector: Vec<(AtomId, i64)>,
}

impl Split {
    /// The constant's remainder by `span`, if it is the same for all sizes.
    fn low(&self, span: i64) -> Option<i64> {
        match self.variable {
            None => Some(self.constant.rem_euclid(span)),
            Some((multiple, own)) => (multiple % span == 0).then_some((self.constant - own).rem_euclid(span)),
        }
    }
}

/// How an index runs over the lanes. The text is an i64 scalar (lane 0) or a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Across {
    /// Lane l has `base + l * step`; step 0 is the same for all.
    Step { base: String, step: i64 },
    /// A vector of the kernel's index type.
    Vector(String),
}

impl Emit<'_> {
    /// Loop variables and reductions that an index needs.
    pub(super) fn index_needs(&self, a: &Affine) -> (u64, bool) {
        let mut n = (0, false);
        for &(atom, _) in &a.terms {
            let m = self.atom_needs(atom);
            n = (n.0 | m.0, n.1 | m.1);
        }
        n
    }

    fn atom_needs(&self, atom: AtomId) -> (u64, bool) {
        match self.k.ix.atom(atom) {
            Atom::Var(v) => (1 << v, false),
            Atom::Div(a, _) | Atom::Mod(a, _) => self.index_needs(a),
            Atom::Value(e) => self.needs[e.0 as usize],
        }
    }

    /// The scope in which something with these needs belongs.
    pub(super) fn depth_of(&self, (vars, reduced): (u64, bool)) -> usize {
        let mut depth = if reduced { self.reduced_depth } else { 0 };
        for (v, var) in self.vars.iter().enumerate() {
            if vars >> v & 1 == 1 {
                let lane = self.lane.as_ref().is_some_and(|l| l.var == v as u32);
                depth = depth.max(if lane { self.depth() } else { var.as_ref().map_or(0, |v| v.depth) });
            }
        }
        depth
    }

    fn on_lane(&self, needs: (u64, bool)) -> bool {
        self.lane.as_ref().is_some_and(|l| needs.0 >> l.var & 1 == 1)
    }

    /// True if the expression with these needs differs from lane to lane.
    pub(super) fn is_vector(&self, needs: (u64, bool)) -> bool {
        self.on_lane(needs) || (needs.1 && self.reduced_is_vector())
    }

    /// Finished reductions differ from lane to lane (the lanes are kept points).
    pub(super) fn reduced_is_vector(&self) -> bool {
        self.lane.as_ref().is_some_and(|l| !self.k.loops[l.var as usize].reduced)
            && self.reduced.iter().any(|r| matches!(r, super::emit::ReducedValue::Partial { .. }))
    }

    fn split(&mut self, a: &Affine) -> Split {
        let variable = self.assumed.and_then(|x| Some((x.constant(a)?, a.constant)));
        let mut s = Split { constant: a.constant, variable, ..Split::default() };
        for (n, &(atom, k)) in a.terms.iter().enumerate() {
            let given = self.assumed.and_then(|x| x.coefficient(a, n));
            let known = given.unwrap_or(k);
            let needs = self.atom_needs(atom);
            if !self.is_vector(needs) {
                let depth = self.depth_of(needs);
                let name = self.atom_scalar(atom, depth);
                s.terms.push(Term { name, k, depth, multiple: known });
                continue;
            }
            let depth = self.depth();
            match self.k.ix.atom(atom).clone() {
                Atom::Var(_) => {
                    if let Some(lane) = self.lane.clone() {
                        s.terms.push(Term { name: lane.base, k, depth, multiple: known * lane.multiple });
                        s.strides |= given.is_some();
                        s.constant += k * lane.shift;
                        s.step += k;
                    }
                }
                Atom::Value(_) => s.vector.push((atom, k)),
                Atom::Div(inner, c) => match self.aligned(atom, &inner, c) {
                    Some((base, ..)) => {
                        let name = self.at_depth(depth, |me| me.def_once(&format!("udiv i64 {base}, {c}")));
                        s.terms.push(Term { name, k, depth, multiple: known });
                    }
                    None => s.vector.push((atom, k)),
                },
                Atom::Mod(inner, c) => match self.aligned(atom, &inner, c) {
                    Some((base, step, multiple)) => {
                        let name = self.at_depth(depth, |me| me.def_once(&format!("urem i64 {base}, {c}")));
                        s.terms.push(Term { name, k, depth, multiple: known * multiple });
                        s.strides |= given.is_some();
                        s.step += k * step;
                    }
                    None => s.vector.push((atom, k)),
                },
            }
        }
        s
    }

    /// If all lanes of `inner` lie in one block of `c`, the divisor of `atom`: lane 0's value, the step between lanes, and
    /// what the value's remainder is a multiple of.
    fn aligned(&mut self, atom: AtomId, inner: &Affine, c: i64) -> Option<(String, i64, i64)> {
        let c = self.assumed.and_then(|a| a.divisor(atom)).unwrap_or(c);
        let s = self.split(inner);
        if !s.vector.is_empty() || s.step < 0 || s.strides {
            return None;
        }
        let base = self.sum(&s);
        if s.step == 0 {
            return Some((base, 0, 1));
        }
        let span = s.step * self.w as i64;
        let low = s.low(span)?;
        let fits = c % span == 0 && low < s.step && s.terms.iter().all(|t| t.multiple % span == 0);
        fits.then_some((base, s.step, if low == 0 { span } else { 1 }))
    }

    /// A truth value that is the same for all lanes, as an `i1` in their scope: bounds that fall between whole vectors
    /// decide for all lanes at once.
    pub(super) fn lane_uniform(&mut self, e: ExprId) -> Option<String> {
        if !self.is_vector(self.needs[e.0 as usize]) {
            return Some(self.scalar(e));
        }
        let expr = self.k.exprs.get(e).clone();
        match expr.op {
            ExprOp::InRange { index, lo, hi } => {
                let s = self.split(&index);
                let span = s.step * self.w as i64;
                let bound = |n, value: i64| match self.assumed.and_then(|a| a.bound(e, n)) {
                    None => Some(value),
                    Some(multiple) => (multiple % span == 0).then_some(0),
                };
                let whole = |bound: Option<i64>| {
                    bound.zip(s.low(span)).is_some_and(|(b, low)| (low - b).rem_euclid(span) < s.step)
                };
                let same = s.step == 0
                    || s.step > 0
                        && !s.strides
                        && whole(bound(0, lo))
                        && whole(bound(1, hi))
                        && s.terms.iter().all(|t| t.multiple % span == 0);
                if !s.vector.is_empty() || !same {
                    return None;
                }
                let x = self.sum(&s);
                self.at_depth(self.depth(), |me| {
                    let x = me.def_once(&format!("sub nsw i64 {x}, {lo}"));
                    Some(me.def_once(&format!("icmp ult i64 {x}, {}", hi - lo)))
                })
            }
            ExprOp::Op(OpKind::And) => {
                let (a, b) = (self.lane_uniform(expr.args[0])?, self.lane_uniform(expr.args[1])?);
                Some(self.at_depth(self.depth(), |me| me.def_once(&format!("and i1 {a}, {b}"))))
            }
            _ => None,
        }
    }

    /// An atom that is the same for all lanes, in scope `depth`.
    fn atom_scalar(&mut self, atom: AtomId, depth: usize) -> String {
        if let Some(v) = self.scopes[depth].atoms.get(&atom) {
            return v.clone();
        }
        let name = match self.k.ix.atom(atom).clone() {
            Atom::Var(v) => self.vars[v as usize].as_ref().map_or_else(|| "0".to_owned(), |v| v.name.clone()),
            Atom::Value(e) => self.scalar(e),
            Atom::Div(inner, c) => {
                let x = self.index_scalar(&inner);
                self.at_depth(depth, |me| me.def(format!("udiv i64 {x}, {c}")))
            }
            Atom::Mod(inner, c) => {
                let x = self.index_scalar(&inner);
                self.at_depth(depth, |me| me.def(format!("urem i64 {x}, {c}")))
            }
        };
        self.scopes[depth].atoms.insert(atom, name.clone());
        name
    }

    /// An index that is the same for all lanes, as i64.
    pub(super) fn index_scalar(&mut self, a: &Affine) -> String {
        let s = self.split(a);
        self.sum(&s)
    }

    /// The scalar part, each partial sum in the outermost scope it can be in.
    fn sum(&mut self, s: &Split) -> String {
        let mut order: Vec<&Term> = s.terms.iter().collect();
        order.sort_by_key(|t| t.depth);
        let mut total: Option<(String, usize)> = None;
        for t in order {
            let part = match t.k {
                1 => t.name.clone(),
                k => self.at_depth(t.depth, |me| me.def_once(&format!("mul nsw i64 {}, {k}", t.name))),
            };
            total = Some(match total {
                None => (part, t.depth),
                Some((sum, _)) => {
                    (self.at_depth(t.depth, |me| me.def_once(&format!("add nsw i64 {sum}, {part}"))), t.depth)
                }
            });
        }
        match total {
            None => s.constant.to_string(),
            Some((sum, _)) if s.constant == 0 && s.variable.is_none() => sum,
            Some((sum, depth)) => self.at_depth(depth, |me| me.def_once(&format!("add nsw i64 {sum}, {}", s.constant))),
        }
    }

    /// The index in all lanes.
    pub(super) fn index_across(&mut self, a: &Affine) -> Across {
        let s = self.split(a);
        let base = self.sum(&s);
        if s.vector.is_empty() {
            return Across::Step { base, step: s.step };
        }
        let (v, reg) = (Ty { reg: self.index, vec: true }, self.index);
        let base = self.narrow(&base);
        let mut sum = self.splat(reg, &base);
        if s.step != 0 {
            let ramp = self.ramp(s.step);
            sum = self.bin("add", v, &sum, &ramp);
        }
        for (atom, k) in s.vector {
            let x = self.atom_vector(atom);
            let x = if k == 1 { x } else { self.bin("mul", v, &x, &self.ci(v, k)) };
            sum = self.bin("add", v, &sum, &x);
        }
        Across::Vector(sum)
    }

    /// The index in all lanes as a vector of the index type.
    pub(super) fn index_vector(&mut self, a: &Affine) -> String {
        match self.index_across(a) {
            Across::Vector(v) => v,
            Across::Step { base, step } => {
                let base = self.narrow(&base);
                let sum = self.splat(self.index, &base);
                if step == 0 {
                    return sum;
                }
                let ramp = self.ramp(step);
                self.bin("add", Ty { reg: self.index, vec: true }, &sum, &ramp)
            }
        }
    }

    /// An i64 scalar as the index type.
    fn narrow(&mut self, x: &str) -> String {
        match self.index {
            Reg::I64 => x.to_owned(),
            reg if x.starts_with('%') => self.def_once(&format!("trunc i64 {x} to {}", reg.name())),
            _ => x.to_owned(),
        }
    }

    /// 0, step, 2*step, ...
    fn ramp(&self, step: i64) -> String {
        let list: Vec<String> = (0..self.w as i64).map(|i| format!("{} {}", self.index.name(), i * step)).collect();
        format!("<{}>", list.join(", "))
    }

    fn atom_vector(&mut self, atom: AtomId) -> String {
        let v = Ty { reg: self.index, vec: true };
        match self.k.ix.atom(atom).clone() {
            Atom::Var(_) => self.index_vector(&Affine { constant: 0, terms: [(atom, 1)].into_iter().collect() }),
            Atom::Div(inner, c) => {
                let x = self.index_vector(&inner);
                self.bin("udiv", v, &x, &self.ci(v, c))
            }
            Atom::Mod(inner, c) => {
                let x = self.index_vector(&inner);
                self.bin("urem", v, &x, &self.ci(v, c))
            }
            Atom::Value(e) => {
                let x = self.vector(e);
                match self.index {
                    Reg::I64 => x,
                    reg => self.cast("trunc", Ty { reg: Reg::I64, vec: true }, &x, reg),
                }
            }
        }
    }
}
