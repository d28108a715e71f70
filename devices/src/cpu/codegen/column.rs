//! Column kernels: reductions over any dimensions, in two steps.
//!
//! The first step writes partial results to shared memory, the second combines them, runs the epilogue and stores.
//! Where the innermost loop is kept, lanes are kept points and accumulators live in memory (a tile that stays in L1)
//! so that rows are read as they lie; otherwise lanes are reduced points and accumulators live in registers. The
//! number of parts depends on sizes only, so that results do not depend on the number of threads.
use super::emit::{Emit, ReducedValue, Reg, Ty, Var};
use super::walk::Trips;
use super::{accumulator, ceil_div, flat};
use rsx_compiler::kernel::{ExprOp, Kernel, Store};

/// Points of one part are not fewer than this.
const PART: i64 = 1 << 14;
/// Units wanted when there is enough work for them.
const UNITS: i64 = 32;
/// Reduced points of one part are not fewer than this: partial results are written and read once more.
const DEPTH: i64 = 8;
/// Bytes of accumulators in one tile.
const TILE: i64 = 16 << 10;

/// How the first step is cut.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    kept: Vec<u32>,
    reduced: Vec<u32>,
    /// Lanes are kept points.
    kept_lanes: bool,
    /// Points of the innermost kept loop in one tile (lanes over kept points only).
    tile: i64,
    tiles: i64,
    unroll: usize,
    /// Cuts of the outermost reduced loop and trips of each.
    parts: i64,
    trips: i64,
}

/// True if a store's value needs no finished reduction.
fn is_prologue(k: &Kernel, s: &Store) -> bool {
    let mut free = true;
    k.exprs.walk(&k.ix, &[s.value], &mut |id| free &= !matches!(k.exprs.get(id).op, ExprOp::Reduced(_)));
    free
}

/// Fails for what two steps cannot compute.
pub(super) fn check(k: &Kernel) -> Result<(), &'static str> {
    if k.reductions.iter().any(|r| r.level > 0) {
        return Err("a column kernel with reductions of reductions");
    }
    if k.stores.iter().any(|s| s.full && !is_prologue(k, s)) {
        return Err("a column kernel whose reductions are used in the whole space");
    }
    Ok(())
}

/// True for a row kernel that is better computed as a column kernel: a few long rows with nothing but their sums.
pub(super) fn fits(k: &Kernel) -> bool {
    check(k).is_ok() && k.kept() < UNITS && k.reduced() >= 2 * PART
}

impl Plan {
    pub(super) fn of(k: &Kernel, w: usize) -> Plan {
        let (reduced, kept): (Vec<u32>, Vec<u32>) =
            (0..k.loops.len() as u32).partition(|&v| k.loops[v as usize].reduced);
        let extent = |v: Option<&u32>| v.map_or(1, |&v| k.loops[v as usize].extent);
        let kept_lanes = k.loops.last().is_some_and(|l| !l.reduced);
        let inner = extent(if kept_lanes { kept.last() } else { reduced.last() });
        let unroll = super::unroll(k, inner, w);
        let chunk = (w * unroll) as i64;
        let width: i64 = k.reductions.iter().map(|r| i64::from(accumulator(r.dtype).bits()) / 8).sum();
        let tile = if kept_lanes { (TILE / width.max(1) / chunk).max(1) * chunk } else { 1 };
        let tiles = if kept_lanes { ceil_div(inner, tile) } else { 1 };
        let units = k.kept() / if kept_lanes { inner } else { 1 } * tiles;
        let (outer, points) = (extent(reduced.first()), k.kept() * k.reduced());
        let most = (UNITS / units.max(1)).min(points / PART).min(outer).min(k.reduced() / DEPTH).max(1);
        let trips_of = |parts: i64| match ceil_div(outer, parts) {
            trips if !kept_lanes && reduced.len() == 1 => ceil_div(trips, chunk) * chunk,
            trips => trips,
        };
        // A power of two, for sizes that differ a little to have the same code, and no part empty.
        let powers = (0..=most.ilog2()).rev().map(|n| 1 << n);
        let parts = powers.into_iter().find(|&p| ceil_div(outer, trips_of(p)) == p).unwrap_or(1);
        let trips = trips_of(parts);
        Plan { kept, reduced, kept_lanes, tile, tiles, unroll, parts, trips }
    }

    pub(super) fn units(&self, k: &Kernel) -> i64 {
        let inner = if self.kept_lanes { self.kept.last() } else { None };
        k.kept() / inner.map_or(1, |&v| k.loops[v as usize].extent) * self.tiles * self.parts
    }

    /// Offset of reduction `r`'s partial results in shared memory, bytes.
    fn offset(&self, k: &Kernel, r: usize) -> u64 {
        let bytes = |r: &rsx_compiler::kernel::Reduction| {
            let size = u64::from(accumulator(r.dtype).bits()) / 8;
            (self.parts as u64 * k.kept() as u64 * size).next_multiple_of(64)
        };
        k.reductions[..r].iter().map(bytes).sum()
    }

    pub(super) fn shared_bytes(&self, k: &Kernel) -> u64 {
        self.offset(k, k.reductions.len())
    }
}

/// Generates the first step. Unit = (part, outer kept point, tile).
pub(super) fn partial(e: &mut Emit, plan: &Plan) {
    let k = e.k;
    let n = e.open();
    let mut unit = format!("%i{n}");
    let digit = |e: &mut Emit, unit: &mut String, size: i64| {
        let number = e.def(format!("urem i64 {unit}, {}", e.size(size)));
        *unit = e.def(format!("udiv i64 {unit}, {}", e.size(size)));
        number
    };
    let tile = digit(e, &mut unit, plan.tiles);
    let outer = if plan.kept_lanes { &plan.kept[..plan.kept.len() - 1] } else { &plan.kept[..] };
    let count: i64 = outer.iter().map(|&v| k.loops[v as usize].extent).product();
    let point = digit(e, &mut unit, count);
    let part = unit;
    e.set_flat(outer, &point);
    let (lo, hi) = e.range(&part, plan.trips, &e.extent(plan.reduced[0]));
    let chunk = (e.w * plan.unroll) as i64;
    // Parts are whole chunks where they are cut along the lanes; elsewhere the range is none of vectors.
    let range = Trips { lo, hi, most: plan.trips, ..Trips::part(e, plan.reduced[0], chunk) };
    let pointers: Vec<String> = (0..k.reductions.len())
        .map(|r| {
            let (t, kept) = (accumulator(k.reductions[r].dtype).name(), k.kept());
            let base = e.def(format!("getelementptr i8, ptr %shared, i64 {}", e.size(plan.offset(k, r))));
            let skip = e.def(format!("mul nsw i64 {part}, {kept}"));
            e.def(format!("getelementptr {t}, ptr {base}, i64 {skip}"))
        })
        .collect();
    let which: Vec<usize> = (0..k.reductions.len()).collect();
    // Every point is met once: results of the whole space are written as they are computed.
    let full: Vec<Store> = k.stores.iter().filter(|s| s.full).cloned().collect();
    if plan.kept_lanes {
        in_memory(e, plan, &tile, &range, &pointers, &full);
    } else {
        let carried = e.accumulators(&which, plan.unroll);
        let sums = e.nest(&plan.reduced, &range, plan.unroll, &carried, &mut |e, lanes, sums| {
            e.accumulate(&which, &full, lanes, sums)
        });
        for &r in &which {
            let copies: Vec<String> = (0..plan.unroll).map(|u| sums[u * which.len() + r].clone()).collect();
            let x = e.total(r, &copies);
            let memory = accumulator(k.reductions[r].dtype);
            let x = if memory == Reg::I8 && Reg::of(k.reductions[r].dtype) == Reg::I1 {
                e.cast("zext", Ty { reg: Reg::I1, vec: false }, &x, Reg::I8)
            } else {
                x
            };
            let p = e.def(format!("getelementptr {}, ptr {}, i64 {point}", memory.name(), pointers[r]));
            e.line(format!("store {} {x}, ptr {p}, align {}", memory.name(), memory.bits() / 8));
        }
    }
    e.close(n, "%lo", "%hi", 1, &[]);
}

/// Accumulates a tile of kept points in memory.
fn in_memory(e: &mut Emit, plan: &Plan, tile: &str, range: &Trips, pointers: &[String], full: &[Store]) {
    let k = e.k;
    let Some(&lane) = plan.kept.last() else { return };
    let extent = k.loops[lane as usize].extent;
    let (lo, hi) = e.range(tile, plan.tile, &e.extent(lane));
    let chunk = (e.w * plan.unroll) as i64;
    let columns = Trips { lo, hi, most: plan.tile.min(extent), ..Trips::part(e, lane, chunk) };
    let access = |e: &mut Emit, r: usize, value: Option<String>| -> String {
        let dtype = k.reductions[r].dtype;
        let (bool, reg) = (Reg::of(dtype) == Reg::I1, accumulator(dtype));
        let (v, bytes) = (Ty { reg, vec: true }, reg.bits() as usize / 8);
        let position = e.kept_position();
        let index = e.index_scalar(&position);
        let p = e.def(format!("getelementptr {}, ptr {}, i64 {index}", reg.name(), pointers[r]));
        match value {
            Some(x) => {
                let raw = if bool { e.cast("zext", Ty { reg: Reg::I1, vec: true }, &x, Reg::I8) } else { x };
                e.store_contiguous(v, &raw, &p, bytes, false);
                raw
            }
            None => {
                let mask = e.lane.as_ref().and_then(|l| l.mask.clone());
                let raw = e.load_contiguous(v, &p, bytes, mask.as_deref());
                if bool { e.from_memory(dtype, true, &raw) } else { raw }
            }
        }
    };
    e.lane_loop(lane, &columns, plan.unroll, &[], &mut |e, lanes, _| {
        for l in lanes {
            e.on(l, |e| {
                for r in 0..k.reductions.len() {
                    let id = e.identity(k.reductions[r].kind, k.reductions[r].dtype, true);
                    access(e, r, Some(id));
                }
            });
        }
        Vec::new()
    });
    let mut open = Vec::new();
    for &v in &plan.reduced {
        let n = e.open();
        let depth = e.depth();
        e.vars[v as usize] = Some(Var { name: format!("%i{n}"), depth });
        open.push((n, v));
    }
    e.lane_loop(lane, &columns, plan.unroll, &[], &mut |e, lanes, _| {
        for l in lanes {
            e.on(l, |e| {
                for r in 0..k.reductions.len() {
                    let x = e.vector(k.reductions[r].value);
                    let old = access(e, r, None);
                    let new = e.combine(k.reductions[r].kind, k.reductions[r].dtype, true, &old, &x);
                    access(e, r, Some(new));
                }
                e.store_all(full);
            });
        }
        Vec::new()
    });
    for (i, &(n, v)) in open.iter().enumerate().rev() {
        let (lo, hi) = match i {
            0 => (range.lo.clone(), range.hi.clone()),
            _ => ("0".to_owned(), e.extent(v)),
        };
        e.close(n, &lo, &hi, 1, &[]);
    }
}

/// Generates the second step: a walk over the kept points; returns (units, grain).
pub(super) fn finish(e: &mut Emit, plan: &Plan) -> (i64, i64) {
    let k = e.k;
    for r in 0..k.reductions.len() {
        let pointer = e.def(format!("getelementptr i8, ptr %shared, i64 {}", e.size(plan.offset(k, r))));
        e.reduced[r] = ReducedValue::Partial { pointer, parts: plan.parts, stride: k.kept() };
    }
    let stores: Vec<Store> = k.stores.iter().filter(|s| !s.full).cloned().collect();
    flat::emit(e, &plan.kept, &stores)
}
