//! Vector loops: unrolled, with a masked tail, and nests of loops around them.
use super::emit::{Emit, Lane, Reg, Ty, Var};
use rsx_compiler::kernel::Store;

/// The trips of a loop.
#[derive(Clone, Debug)]
pub(super) struct Trips {
    /// First value and end: SSA names or numbers.
    pub(super) lo: String,
    pub(super) hi: String,
    /// Upper bound of the number of trips.
    pub(super) most: i64,
    /// The number of trips is always a multiple of this.
    pub(super) unit: i64,
    /// The first value is a multiple of this.
    pub(super) aligned: i64,
    /// At most this many trips are left over after those in chunks (if fewer than a chunk).
    pub(super) left: i64,
    /// The numbers above are not those of other sizes: nothing is left out because there are few trips.
    pub(super) varies: bool,
}

impl Trips {
    /// All trips of loop `v`, in chunks of `chunk`.
    pub(super) fn all(e: &Emit, v: u32, chunk: i64) -> Trips {
        let whole = Trips::part(e, v, chunk);
        Trips { lo: "0".into(), hi: e.extent(v), unit: e.multiple(v), aligned: 1 << 30, ..whole }
    }

    /// A range of loop `v` from `%lo` to `%hi` that begins at a multiple of `chunk`, and ends there or where the loop does.
    pub(super) fn part(e: &Emit, v: u32, chunk: i64) -> Trips {
        let (extent, multiple, varies) = (e.k.loops[v as usize].extent, e.multiple(v), e.varies(v));
        let unit = [chunk, e.w as i64].into_iter().find(|u| multiple % u == 0).unwrap_or(1);
        let left = if varies { chunk - 1 } else { extent % chunk };
        Trips { lo: "%lo".into(), hi: "%hi".into(), most: extent, unit, aligned: chunk, left, varies }
    }

    /// No loop at all.
    pub(super) fn one() -> Trips {
        Trips { lo: "0".into(), hi: "1".into(), most: 1, unit: 1, aligned: 1 << 30, left: 1, varies: false }
    }
}

/// What goes from one trip of a loop to the next: LLVM type and first value.
pub(super) type Carried = (String, String);

/// Computes one trip: the copies' lanes and the carried values; returns the carried values of the next trip.
pub(super) type Body<'b> = dyn FnMut(&mut Emit, &[Lane], &[String]) -> Vec<String> + 'b;

impl Emit<'_> {
    /// Walks `trips` of loop `var` in vectors, `unroll` of them at a time, then the rest one by one, then what is no
    /// whole vector, masked (stores through a mask are slow).
    ///
    /// The body sees as many lanes as there are copies; carried values belong to copies in equal shares (a rest trip
    /// has the first copy's). Returns the last values.
    pub(super) fn lane_loop(
        &mut self,
        var: u32,
        trips: &Trips,
        unroll: usize,
        carried: &[Carried],
        body: &mut Body,
    ) -> Vec<String> {
        let w = self.w as i64;
        let chunk = w * unroll as i64;
        let multiple = if trips.aligned % w == 0 { w } else { 1 };
        let mut values: Vec<String> = carried.iter().map(|c| c.1.clone()).collect();
        let mut lo = trips.lo.clone();
        if trips.varies || trips.most >= chunk {
            let end = self.whole(trips, chunk);
            values = self.vectors(var, (&lo, &end), unroll, multiple, None, (carried, &values), body);
            lo = end;
        }
        if trips.unit % chunk == 0 {
            return values;
        }
        let share = carried.len() / unroll;
        let mut rest = |me: &mut Self, lo: &str, end: &str, upto: Option<&str>| {
            let next = me.vectors(var, (lo, end), 1, multiple, upto, (&carried[..share], &values[..share]), body);
            values[..share].clone_from_slice(&next);
        };
        if unroll > 1 && (trips.unit % w == 0 || trips.left >= w) {
            let end = self.whole(trips, w);
            rest(self, &lo, &end, None);
            lo = end;
        }
        if trips.unit % w != 0 {
            rest(self, &lo, &trips.hi, Some(&trips.hi));
        }
        values
    }

    /// The end of as many whole steps of `step` as fit into `trips`.
    fn whole(&mut self, trips: &Trips, step: i64) -> String {
        if trips.unit % step == 0 {
            return trips.hi.clone();
        }
        if let (false, Ok(lo), Ok(hi)) = (trips.varies, trips.lo.parse::<i64>(), trips.hi.parse::<i64>()) {
            return (lo + (hi - lo) / step * step).to_string();
        }
        let n = self.def(format!("sub nsw i64 {}, {}", trips.hi, trips.lo));
        let n = if step.count_ones() == 1 {
            self.def(format!("and i64 {n}, {}", -step))
        } else {
            let rest = self.def(format!("urem i64 {n}, {step}"));
            self.def(format!("sub nsw i64 {n}, {rest}"))
        };
        self.def(format!("add nsw i64 {}, {n}", trips.lo))
    }

    /// One loop over `copies` vectors at a time, masked if there is an end `upto` that need not be that of a vector;
    /// `carried` with their first values. Returns the last values.
    #[expect(clippy::too_many_arguments, reason = "one place, three calls")]
    fn vectors(
        &mut self,
        var: u32,
        (lo, hi): (&str, &str),
        copies: usize,
        multiple: i64,
        upto: Option<&str>,
        (carried, first): (&[Carried], &[String]),
        body: &mut Body,
    ) -> Vec<String> {
        let w = self.w as i64;
        let n = self.open();
        let names: Vec<String> = (0..carried.len()).map(|j| format!("%c{n}.{j}")).collect();
        let mask = upto.map(|end| {
            let left = self.def(format!("sub nsw i64 {end}, %i{n}"));
            let left = self.def(format!("trunc i64 {left} to i32"));
            let left = self.splat(Reg::I32, &left);
            let numbers = self.lane_numbers(Reg::I32);
            self.cmp("icmp slt", Ty { reg: Reg::I32, vec: true }, &numbers, &left)
        });
        let lane = |u: i64| Lane { var, base: format!("%i{n}"), shift: u * w, multiple, mask: mask.clone() };
        let lanes: Vec<Lane> = (0..copies as i64).map(lane).collect();
        let next = body(self, &lanes, &names);
        let phis = phis(carried, &names, first, &next);
        self.close(n, lo, hi, w * copies as i64, &phis);
        names
    }

    /// Walks loops `vars`, outermost first, the last of them in vectors; `first` are the trips of the first one.
    pub(super) fn nest(
        &mut self,
        vars: &[u32],
        first: &Trips,
        unroll: usize,
        carried: &[Carried],
        body: &mut Body,
    ) -> Vec<String> {
        let [var, inner @ ..] = vars else { return carried.iter().map(|c| c.1.clone()).collect() };
        if inner.is_empty() {
            return self.lane_loop(*var, first, unroll, carried, body);
        }
        let n = self.open();
        let depth = self.depth();
        self.vars[*var as usize] = Some(Var { name: format!("%i{n}"), depth });
        let names: Vec<String> = (0..carried.len()).map(|j| format!("%c{n}.{j}")).collect();
        let begin: Vec<Carried> = carried.iter().zip(&names).map(|(c, name)| (c.0.clone(), name.clone())).collect();
        let trips = Trips::all(self, inner[0], (self.w * unroll) as i64);
        let next = self.nest(inner, &trips, unroll, &begin, body);
        let values: Vec<String> = carried.iter().map(|c| c.1.clone()).collect();
        let phis = phis(carried, &names, &values, &next);
        self.close(n, &first.lo, &first.hi, 1, &phis);
        names
    }

    /// Combines the lanes of `x` into one value.
    pub(super) fn horizontal(&mut self, r: usize, x: &str) -> String {
        let reduction = self.k.reductions[r].clone();
        let v = Ty { reg: Reg::of(reduction.dtype.opmath()), vec: true };
        let (t, w) = (self.ty(v), self.w);
        let (mut x, mut half) = (x.to_owned(), w / 2);
        while half > 0 {
            let order: Vec<String> =
                (0..w).map(|l| if l < half { format!("i32 {}", l + half) } else { "i32 poison".to_owned() }).collect();
            let order = order.join(", ");
            let other = self.def(format!("shufflevector {t} {x}, {t} poison, <{w} x i32> <{order}>"));
            x = self.combine(reduction.kind, reduction.dtype, true, &x, &other);
            half /= 2;
        }
        self.def(format!("extractelement {t} {x}, i64 0"))
    }

    /// Accumulators of reductions `which`, one per copy: copy 0's first.
    pub(super) fn accumulators(&self, which: &[usize], unroll: usize) -> Vec<Carried> {
        let one = |&r: &usize| {
            let reduction = &self.k.reductions[r];
            let ty = Ty { reg: Reg::of(reduction.dtype.opmath()), vec: true };
            (self.ty(ty), self.identity(reduction.kind, reduction.dtype, true))
        };
        (0..unroll).flat_map(|_| which.iter().map(one)).collect()
    }

    /// One trip of reductions `which` on vectors of the lanes; `stores` are written on the way.
    pub(super) fn accumulate(
        &mut self,
        which: &[usize],
        stores: &[Store],
        lanes: &[Lane],
        sums: &[String],
    ) -> Vec<String> {
        let each = self.side_by_side(lanes, &mut |e, u| {
            let mut next = Vec::new();
            for (j, &r) in which.iter().enumerate() {
                let x = e.masked_operand(r);
                let reduction = &e.k.reductions[r];
                let (kind, dtype) = (reduction.kind, reduction.dtype);
                next.push(e.combine(kind, dtype, true, &sums[u * which.len() + j], &x));
            }
            e.store_all(stores);
            next
        });
        each.into_iter().flatten().collect()
    }

    /// Computes and writes `stores` in the lanes.
    pub(super) fn store_all(&mut self, stores: &[Store]) {
        let raws: Vec<String> = stores.iter().map(|s| self.store_value(s, true)).collect();
        stores.iter().zip(&raws).for_each(|(s, raw)| self.store(s, true, raw));
    }

    /// A reduction's operand in the lanes, the identity where a lane is inactive.
    pub(super) fn masked_operand(&mut self, r: usize) -> String {
        let reduction = self.k.reductions[r].clone();
        let x = self.vector(reduction.value);
        match self.lane.as_ref().and_then(|l| l.mask.clone()) {
            None => x,
            Some(m) => {
                let id = self.identity(reduction.kind, reduction.dtype, true);
                self.select(Ty { reg: Reg::of(reduction.dtype), vec: true }, &m, &x, &id)
            }
        }
    }

    /// The finished value of reduction `r` from its copies' accumulators.
    pub(super) fn total(&mut self, r: usize, copies: &[String]) -> String {
        let reduction = self.k.reductions[r].clone();
        let mut list = copies.to_vec();
        while list.len() > 1 {
            list = list
                .chunks(2)
                .map(|c| match c {
                    [a, b] => self.combine(reduction.kind, reduction.dtype, true, a, b),
                    rest => rest[0].clone(),
                })
                .collect();
        }
        self.horizontal(r, &list[0])
    }
}

fn phis(
    carried: &[Carried],
    names: &[String],
    first: &[String],
    next: &[String],
) -> Vec<(String, String, String, String)> {
    (0..names.len()).map(|j| (carried[j].0.clone(), names[j].clone(), first[j].clone(), next[j].clone())).collect()
}
