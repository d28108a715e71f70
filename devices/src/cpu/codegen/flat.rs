//! Kernels without reductions: every point of the space is computed and stored once.
use super::ceil_div;
use super::emit::{Emit, Lane};
use super::walk::Trips;
use rsx_compiler::kernel::{ExprId, ExprOp, Source, Store};

/// Fewer units than this are cut along the innermost loop.
const UNITS: i64 = 64;
/// Blocks of the innermost loop are not made smaller than this.
const BLOCK: i64 = 4096;

/// Generates the walk over loops `loops` for stores `stores`; returns (units, grain).
pub(super) fn emit(e: &mut Emit, loops: &[u32], stores: &[Store]) -> (i64, i64) {
    let Some((&lane, outer)) = loops.split_last() else {
        write_once(e, stores);
        return (1, 1);
    };
    let (w, extent) = (e.w as i64, e.k.loops[lane as usize].extent);
    let unroll = super::unroll(e.k, extent, e.w);
    let chunk = w * unroll as i64;
    if outer.is_empty() {
        let trips = Trips::part(e, lane, chunk);
        write(e, lane, &trips, unroll, stores);
        return (extent, chunk);
    }
    if let Some(plan) = super::tile::plan(e, lane, stores) {
        // Its rows are pieces of many rows.
        e.ahead = false;
        return super::tile::emit(e, &plan, lane, outer, stores);
    }
    let rows: i64 = outer.iter().map(|&v| e.k.loops[v as usize].extent).product();
    let blocks = if rows < UNITS && extent >= 2 * BLOCK { (UNITS / rows).min(extent / BLOCK).max(1) } else { 1 };
    let block = ceil_div(ceil_div(extent, blocks), chunk) * chunk;
    let blocks = ceil_div(extent, block);
    let n = e.open();
    let (mut row, mut trips) = (format!("%i{n}"), Trips::all(e, lane, chunk));
    if blocks > 1 {
        let number = e.def(format!("urem i64 %i{n}, {}", e.size(blocks)));
        row = e.def(format!("udiv i64 %i{n}, {}", e.size(blocks)));
        let (lo, hi) = e.range(&number, block, &e.extent(lane));
        trips = Trips { lo, hi, most: block, ..Trips::part(e, lane, chunk) };
    }
    e.set_flat(outer, &row);
    write(e, lane, &trips, unroll, stores);
    e.close(n, "%lo", "%hi", 1, &[]);
    (rows * blocks, 1)
}

/// Computes and stores along the lanes: all copies are computed before any is stored.
pub(super) fn write(e: &mut Emit, var: u32, trips: &Trips, unroll: usize, stores: &[Store]) {
    e.lane_loop(var, trips, unroll, &[], &mut |e, lanes, _| {
        write_lanes(e, lanes, stores);
        Vec::new()
    });
}

pub(super) fn write_lanes(e: &mut Emit, lanes: &[Lane], stores: &[Store]) {
    let raws: Vec<Vec<String>> =
        e.side_by_side(lanes, &mut |e, _| stores.iter().map(|s| e.store_value(s, true)).collect());
    for (lane, raws) in lanes.iter().zip(&raws) {
        e.on(lane, |e| stores.iter().zip(raws).for_each(|(s, raw)| e.store(s, true, raw)));
    }
}

/// Computes and stores at one point: a result may lie where an operand of another one does, so all are computed first.
fn write_once(e: &mut Emit, stores: &[Store]) {
    let raws: Vec<String> = stores.iter().map(|s| e.store_value(s, false)).collect();
    stores.iter().zip(&raws).for_each(|(s, raw)| e.store(s, false, raw));
}

/// Rows of an epilogue's block after which a row is needed that is asked for now: some hundreds of nanoseconds of work.
const ROWS_AHEAD: usize = 4;

/// Generates an epilogue: the rectangle `[r0, r1) x [c0, c1)` of the space seen as rows and columns of the last
/// dimension, with argument 0 read from the block's accumulators.
pub(super) fn epilogue(e: &mut Emit) -> Result<(), &'static str> {
    let stores = e.k.stores.clone();
    let Some(first) = stores.first() else { return Ok(()) };
    let (offset, columns) = (first.offset.clone(), e.k.args[first.arg as usize].dims.last().copied().unwrap_or(1));
    for i in 0..e.k.exprs.len() {
        if let ExprOp::Load { source: Source::Arg(0), offset: o } = &e.k.exprs.get(ExprId(i as u32)).op
            && *o != offset
        {
            return Err("an epilogue reads the accumulators at another index than its own");
        }
    }
    let has_columns = columns > 1;
    let rows: Vec<u32> = (0..e.k.loops.len() as u32 - u32::from(has_columns)).collect();
    let n = e.open();
    e.set_flat(&rows, &format!("%i{n}"));
    let row = e.def(format!("sub nsw i64 %i{n}, %r0"));
    let row = e.def(format!("mul nsw i64 {row}, %ld"));
    let row = e.def(format!("sub nsw i64 {row}, %c0"));
    let acc = if e.k.args[0].dtype.opmath().size() == 8 { "double" } else { "float" };
    let row = e.def(format!("getelementptr {acc}, ptr %blk, i64 {row}"));
    // A space of one point has no loop variables: what reads it is computed outside of the loop over rows.
    e.acc = Some((0, if e.k.loops.is_empty() { "%blk".into() } else { row }));
    if has_columns {
        let unroll = super::unroll(e.k, columns, e.w).min(2);
        let column = e.k.loops.len() as u32 - 1;
        // Rectangles are as wide as a few vectors: what is left is not worth a loop of its own.
        let (unit, aligned, left, varies) = (1, 1, 0, e.varies(column));
        e.next_rows = (!varies).then_some(ROWS_AHEAD * columns as usize);
        let trips = Trips { lo: "%c0".into(), hi: "%c1".into(), most: columns, unit, aligned, left, varies };
        write(e, column, &trips, unroll, &stores);
    } else {
        write_once(e, &stores);
    }
    e.close(n, "%r0", "%r1", 1, &[]);
    Ok(())
}
