//! Row kernels: chains of reductions over the trailing dimensions, one row at a time.
//!
//! A row is walked once per level of reductions and once more to write. What is expensive and needed again is kept in
//! scratch memory (which stays in L1 or L2); inputs are simply read again from there. Full-size results are written
//! in the last walk only, so that a result may take the place of an input of the same sizes.
use super::emit::{Emit, ReducedValue, Reg};
use super::flat::write_lanes;
use super::op_cost;
use super::walk::Trips;
use rsx_compiler::kernel::{ExprId, ExprOp, Kernel, Store};
use std::collections::HashMap;

/// Values that cost at least this much more than a load are kept between walks.
const KEEP_COST: u64 = 6;
/// Scratch memory of a row, bytes: beyond L2 keeping is no better than computing again.
const SCRATCH_LIMIT: u64 = 768 << 10;

/// Generates the kernel; returns (units, grain, scratch bytes).
pub(super) fn emit(e: &mut Emit) -> (i64, i64, u64) {
    let k = e.k;
    let reduced: Vec<u32> = (0..k.loops.len() as u32).filter(|&v| k.loops[v as usize].reduced).collect();
    let kept: Vec<u32> = (0..k.loops.len() as u32).filter(|&v| !k.loops[v as usize].reduced).collect();
    let scratch = plan_stash(e);
    let levels = k.reductions.iter().map(|r| r.level + 1).max().unwrap_or(0);
    let n = e.open();
    e.reduced_depth = e.depth();
    e.set_flat(&kept, &format!("%i{n}"));
    let inner = reduced.last().map_or(1, |&v| k.loops[v as usize].extent);
    let unroll = super::unroll(k, inner, e.w);
    let trips = reduced.first().map_or_else(Trips::one, |&v| Trips::all(e, v, (e.w * unroll) as i64));
    for level in 0..levels {
        // Later walks find the row in the cache.
        e.ahead = e.non_temporal && level == 0;
        let which: Vec<usize> = (0..k.reductions.len()).filter(|&r| k.reductions[r].level == level).collect();
        let carried = e.accumulators(&which, unroll);
        let sums =
            e.nest(&reduced, &trips, unroll, &carried, &mut |e, lanes, sums| e.accumulate(&which, &[], lanes, sums));
        for (j, &r) in which.iter().enumerate() {
            let copies: Vec<String> = (0..unroll).map(|u| sums[u * which.len() + j].clone()).collect();
            let x = e.total(r, &copies);
            let x = e.round(k.reductions[r].dtype, false, &x);
            e.reduced[r] = ReducedValue::Ready(x);
        }
        mark_written(e, &which.iter().map(|&r| k.reductions[r].value).collect::<Vec<_>>());
    }
    e.ahead = false;
    let (full, rows): (Vec<Store>, Vec<Store>) = k.stores.iter().cloned().partition(|s| s.full);
    // Before the row is written: it may lie where what these read does.
    let raws: Vec<String> = rows.iter().map(|s| e.store_value(s, false)).collect();
    if !full.is_empty() {
        e.nest(&reduced, &trips, unroll, &[], &mut |e, lanes, _| {
            write_lanes(e, lanes, &full);
            Vec::new()
        });
    }
    rows.iter().zip(&raws).for_each(|(s, raw)| e.store(s, false, raw));
    e.close(n, "%lo", "%hi", 1, &[]);
    (k.kept(), 1, scratch)
}

/// From here on the values that these roots computed are read back.
fn mark_written(e: &mut Emit, roots: &[ExprId]) {
    let (k, stash) = (e.k, &mut e.stash);
    k.exprs.walk(&k.ix, roots, &mut |id| {
        if let Some(s) = stash.get_mut(&id) {
            s.1 = true;
        }
    });
}

/// Chooses what is kept between walks; returns the bytes of scratch memory it takes.
fn plan_stash(e: &mut Emit) -> u64 {
    let k = e.k;
    let Some(lane) = (0..k.loops.len()).rev().find(|&v| k.loops[v].reduced) else { return 0 };
    let inner = |id: ExprId, needs: &[(u64, bool)]| needs[id.0 as usize].0 >> lane & 1 == 1;
    let levels = k.reductions.iter().map(|r| r.level + 1).max().unwrap_or(0);
    let mut walks: Vec<Vec<ExprId>> =
        (0..levels).map(|l| k.reductions.iter().filter(|r| r.level == l).map(|r| r.value).collect()).collect();
    walks.push(k.stores.iter().filter(|s| s.full).map(|s| s.value).collect());
    let (mut first, mut keep) = (HashMap::new(), Vec::new());
    for (n, roots) in walks.iter().enumerate() {
        // What is made of few values that are kept is cheap.
        let costs = costs(k, &keep, &|id| inner(id, &e.needs));
        let mut todo = roots.clone();
        let mut seen = std::collections::HashSet::new();
        while let Some(id) = todo.pop() {
            if !inner(id, &e.needs) || !seen.insert(id) {
                continue;
            }
            let begun = *first.entry(id).or_insert(n);
            if keep.contains(&id) {
                continue;
            }
            if begun < n && costs[id.0 as usize] >= KEEP_COST {
                keep.push(id);
                continue;
            }
            todo.extend(k.exprs.get(id).args.iter().copied());
        }
    }
    let mut offset = 0u64;
    let mut stash = HashMap::new();
    for id in keep {
        let bytes = match Reg::of(k.exprs.get(id).dtype) {
            Reg::I1 => 1,
            reg => u64::from(reg.bits()) / 8,
        };
        stash.insert(id, (offset, false));
        offset += ((k.reduced() as u64 + e.w as u64) * bytes).next_multiple_of(64);
    }
    if offset > SCRATCH_LIMIT {
        return 0;
    }
    e.stash = stash;
    offset
}

/// Cost of every expression with all that it needs inside the row, counted as a tree (shared parts may count twice);
/// those in `keep` are read.
fn costs(k: &Kernel, keep: &[ExprId], inner: &dyn Fn(ExprId) -> bool) -> Vec<u64> {
    let mut costs = Vec::with_capacity(k.exprs.len());
    for i in 0..k.exprs.len() {
        let id = ExprId(i as u32);
        if keep.contains(&id) {
            costs.push(1);
            continue;
        }
        let expr = k.exprs.get(id);
        let mut cost = if inner(id) { op_cost(k, id) } else { 0 };
        if let ExprOp::Load { .. } = expr.op {
            // A load with a guard or a computed index is no cheaper than scratch memory.
            cost += expr.args.len() as u64;
        }
        let below: u64 = expr.args.iter().filter(|a| inner(**a)).map(|a| costs[a.0 as usize]).sum();
        costs.push((cost + below).min(10_000));
    }
    costs
}
