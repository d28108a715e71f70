//! Transposed reads: loads that are contiguous along another loop than the lanes.
//!
//! Such loads are made in square tiles: as many vectors as there are lanes, each along the other loop, transposed in
//! registers. A tile spans a whole cache line of the result, and a block of rows is finished before the next columns,
//! so that every line is fetched and written once even at strides that are powers of two.
use super::emit::{Emit, Lane, Reg, Ty, Var};
use super::memory::{memory_reg, memory_type};
use super::walk::Trips;
use super::{ceil_div, flat};
use rsx_compiler::kernel::{Affine, ExprId, ExprOp, Kernel, Source, Store};

/// Rows of a block; a multiple of all numbers of lanes.
const ROWS: i64 = 128;
/// Tiles held in registers at a time.
const MOST: usize = 3;

/// Loads to be made in tiles, and the loop that they are contiguous along.
pub(super) struct Plan {
    rows: u32,
    loads: Vec<ExprId>,
}

/// The plan for a kernel whose lanes run along loop `lane`, if tiles help.
pub(super) fn plan(e: &Emit, lane: u32, stores: &[Store]) -> Option<Plan> {
    let k = e.k;
    let w = e.w as i64;
    let mut found: Vec<(u32, ExprId)> = Vec::new();
    let roots: Vec<ExprId> = stores.iter().map(|s| s.value).collect();
    k.exprs.walk(&k.ix, &roots, &mut |id| {
        let x = k.exprs.get(id);
        if let (ExprOp::Load { offset, .. }, true) = (&x.op, x.args.is_empty()) {
            let rows = (0..k.loops.len() as u32).filter(|&v| v != lane && is_transposed(e, offset, lane, v));
            found.extend(rows.map(|v| (v, id)));
        }
    });
    let count = |v: u32| found.iter().filter(|f| f.0 == v).count();
    let rows = found.iter().map(|f| f.0).max_by_key(|&v| count(v))?;
    let extent = |v: u32| k.loops[v as usize].extent;
    let loads: Vec<ExprId> = found.iter().filter(|f| f.0 == rows).map(|f| f.1).take(MOST).collect();
    (extent(rows) >= w && extent(lane) >= w).then_some(Plan { rows, loads })
}

/// `offset` is `rows + stride * lane` and something that depends on neither.
fn is_transposed(e: &Emit, offset: &Affine, lane: u32, rows: u32) -> bool {
    let (Some(l), Some(r)) = (e.k.ix.var_atom(lane), e.k.ix.var_atom(rows)) else { return false };
    let rest = without(offset, &[l, r]);
    let (vars, _) = e.index_needs(&rest);
    let step = offset.coefficient(l);
    offset.coefficient(r) == 1 && step != 0 && step != 1 && vars >> lane & 1 == 0 && vars >> rows & 1 == 0
}

fn without(a: &Affine, atoms: &[rsx_compiler::kernel::AtomId]) -> Affine {
    Affine { constant: a.constant, terms: a.terms.iter().copied().filter(|t| !atoms.contains(&t.0)).collect() }
}

/// Generates the walk; returns (units, grain). Units are blocks of rows, then single rows that fill no tile.
pub(super) fn emit(e: &mut Emit, plan: &Plan, lane: u32, outer: &[u32], stores: &[Store]) -> (i64, i64) {
    let k: &Kernel = e.k;
    let (w, extent) = (e.w as i64, k.loops[plan.rows as usize].extent);
    let others: Vec<u32> = outer.iter().copied().filter(|&v| v != plan.rows).collect();
    let count: i64 = others.iter().map(|&v| k.loops[v as usize].extent).product();
    let (whole, block) = (extent / w * w, ROWS.min(extent / w * w));
    let (blocks, left) = (ceil_div(whole, block), extent - whole);
    let varies = e.varies(plan.rows);
    let n = e.open();
    let unit = format!("%i{n}");
    let rest = left > 0 || varies;
    if rest {
        let c = e.def(format!("icmp slt i64 {unit}, {}", e.size(count * blocks)));
        e.line(format!("br i1 {c}, label %T{n}.tiles, label %T{n}.rows\nT{n}.tiles:"));
    }
    // Code of the two branches must not be shared: each has a scope of its own that is run once.
    let once = e.open();
    let number = e.def(format!("urem i64 {unit}, {}", e.size(blocks)));
    let point = e.def(format!("udiv i64 {unit}, {}", e.size(blocks)));
    e.set_flat(&others, &point);
    let (first, end) = e.range(&number, block, &e.size(whole));
    let line = plan.loads.iter().map(|&l| k.exprs.get(l).dtype.size()).max().unwrap_or(4) * e.w;
    let copies = (64 / line).clamp(1, (k.loops[lane as usize].extent / w) as usize);
    let trips = Trips::all(e, lane, (copies * e.w) as i64);
    e.lane_loop(lane, &trips, copies, &[], &mut |e, lanes, _| {
        tiles(e, plan, lane, lanes, (&first, &end), stores);
        Vec::new()
    });
    e.close(once, "0", "1", 1, &[]);
    if rest {
        e.line(format!("br label %T{n}.done\nT{n}.rows:"));
        let once = e.open();
        let index = e.def(format!("sub nsw i64 {unit}, {}", e.size(count * blocks)));
        let number = e.def(format!("urem i64 {index}, {}", e.size(left)));
        let point = e.def(format!("udiv i64 {index}, {}", e.size(left)));
        e.set_flat(&others, &point);
        let (name, depth) = (e.def(format!("add nsw i64 {number}, {}", e.size(whole))), e.depth());
        e.vars[plan.rows as usize] = Some(Var { name, depth });
        flat::write(e, lane, &Trips::all(e, lane, e.w as i64), 1, stores);
        e.close(once, "0", "1", 1, &[]);
        e.line(format!("br label %T{n}.done\nT{n}.done:"));
    }
    e.close(n, "%lo", "%hi", 1, &[]);
    (count * (blocks + left), 1)
}

/// All tiles of the rows `range` in these lanes.
fn tiles(e: &mut Emit, plan: &Plan, lane: u32, lanes: &[Lane], range: (&str, &str), stores: &[Store]) {
    let n = e.open();
    let row = format!("%i{n}");
    let depth = e.depth();
    e.vars[plan.rows as usize] = Some(Var { name: row.clone(), depth });
    let read: Vec<Vec<Vec<String>>> =
        lanes.iter().map(|l| plan.loads.iter().map(|&x| tile(e, x, plan.rows, lane, l, &row)).collect()).collect();
    for r in 0..e.w {
        let name = if r == 0 { row.clone() } else { e.def(format!("add nsw i64 {row}, {r}")) };
        e.vars[plan.rows as usize] = Some(Var { name, depth });
        for (l, tiles) in lanes.iter().zip(&read) {
            e.tiled = plan.loads.iter().zip(tiles).map(|(&x, rows)| (x, rows[r].clone())).collect();
            e.on(l, |e| e.store_all(stores));
        }
    }
    e.tiled.clear();
    e.close(n, range.0, range.1, e.w as i64, &[]);
}

/// Reads and transposes a tile: one vector of raw elements along the lanes for every row.
fn tile(e: &mut Emit, load: ExprId, rows: u32, lane: u32, l: &Lane, row: &str) -> Vec<String> {
    let x = e.k.exprs.get(load).clone();
    let ExprOp::Load { source, offset } = &x.op else { return Vec::new() };
    let (Some(la), Some(ra)) = (e.k.ix.var_atom(lane), e.k.ix.var_atom(rows)) else { return Vec::new() };
    let (step, dtype, w) = (offset.coefficient(la), x.dtype, e.w);
    let base = match source {
        Source::Arg(n) => format!("%p{n}"),
        Source::Literal(n) => format!("@KEY.lit{n}"),
    };
    let rest = without(offset, &[la, ra]);
    let rest = e.index_scalar(&rest);
    let (m, v) = (memory_type(dtype), Ty { reg: memory_reg(dtype), vec: true });
    let t = e.ty(v);
    let mut list: Vec<String> = Vec::with_capacity(w);
    for j in 0..w {
        let mut at = e.def(format!("add nsw i64 {}, {}", l.base, l.shift + j as i64));
        if l.mask.is_some() {
            // Beyond the last column: read that one again.
            at = e.def(format!("call i64 @llvm.smin.i64(i64 {at}, i64 {})", e.k.loops[lane as usize].extent - 1));
        }
        let at = e.def(format!("mul nsw i64 {at}, {step}"));
        let at = e.def(format!("add nsw i64 {at}, {rest}"));
        let p = e.def(format!("getelementptr {m}, ptr {base}, i64 {at}"));
        let p = e.def(format!("getelementptr {m}, ptr {p}, i64 {row}"));
        list.push(e.def(format!("load {t}, ptr {p}, align {}", dtype.size())));
    }
    let mut s = w / 2;
    while s > 0 {
        let mask = |f: &dyn Fn(usize) -> usize| {
            let list: Vec<String> = (0..w).map(|l| format!("i32 {}", f(l))).collect();
            list.join(", ")
        };
        let even = mask(&|l| if l & s == 0 { l } else { w + (l ^ s) });
        let odd = mask(&|l| if l & s == 0 { l | s } else { w + l });
        for i in (0..w).filter(|i| i & s == 0) {
            let (a, b) = (list[i].clone(), list[i | s].clone());
            list[i] = e.def(format!("shufflevector {t} {a}, {t} {b}, <{w} x i32> <{even}>"));
            list[i | s] = e.def(format!("shufflevector {t} {a}, {t} {b}, <{w} x i32> <{odd}>"));
        }
        s /= 2;
    }
    debug_assert!(v.reg != Reg::I1);
    list
}
