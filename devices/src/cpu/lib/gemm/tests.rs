//! Products against a plain loop in f64, over types, strides, levels and shapes.

use super::*;
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::isa::Isa;
use crate::cpu::lib::testing::{Lcg, at_levels, read_all, write_all};

struct Case {
    m: usize,
    n: usize,
    k: usize,
    a: Elem,
    b: Elem,
    c: Elem,
    at: bool,
    bt: bool,
    batch: usize,
    accumulate: bool,
    epilogue: bool,
}

fn check(case: &Case, seed: u64) {
    let mut rng = Lcg(seed);
    let Case { m, n, k, batch, .. } = *case;
    let a: Vec<f64> = (0..batch * m * k).map(|_| rng.small()).collect();
    let b: Vec<f64> = (0..batch * n * k).map(|_| rng.small()).collect();
    let ldc = n + 3;
    let c0: Vec<f64> = (0..batch * m * ldc).map(|_| rng.small()).collect();
    let (ab, bb, mut cb) = (write_all(case.a, &a), write_all(case.b, &b), write_all(case.c, &c0));
    let op = |p: *const u8, elem, rows: usize, cols: usize, t: bool| {
        if t {
            Operand { ptr: p, elem, row: 1, col: rows as isize, keep: None }
        } else {
            Operand { ptr: p, elem, row: cols as isize, col: 1, keep: None }
        }
    };
    let dims = [BatchDim { size: batch, a: (m * k) as isize, b: (n * k) as isize, c: (m * ldc) as isize }];
    let wide = case.c == Elem::F64;
    let epi = move |t: &Tile| {
        for r in 0..t.rows {
            for c in 0..t.cols {
                let i = r as isize * t.ld + c as isize;
                let bias = (t.row0 + r) as f64 - 2.0 * (t.col0 + c) as f64 + t.batch as f64;
                // SAFETY: the tile covers rows × cols sums.
                unsafe {
                    if wide {
                        *t.ptr.cast::<f64>().offset(i) += bias;
                    } else {
                        *t.ptr.cast::<f32>().offset(i) += bias as f32;
                    }
                }
            }
        }
    };
    let g = Gemm {
        m,
        n,
        k,
        batch: &dims,
        a: op(ab.as_ptr(), case.a, m, k, case.at),
        b: op(bb.as_ptr(), case.b, k, n, case.bt),
        c: Some(Output { ptr: cb.as_mut_ptr(), elem: case.c, ld: ldc as isize }),
        accumulate: case.accumulate,
        epilogue: case.epilogue.then_some(&epi),
    };
    // SAFETY: the buffers above cover the operands.
    unsafe { gemm(&g).unwrap() };
    let got = read_all(case.c, &cb);
    let tol = if matches!(case.c, Elem::BF16) {
        2e-2
    } else if case.c == Elem::F16 {
        3e-3
    } else {
        1e-5
    };
    for t in 0..batch {
        for i in 0..m {
            for j in 0..ldc {
                let at = t * m * ldc + i * ldc + j;
                if j >= n {
                    assert_eq!(got[at], c0[at], "wrote beyond C");
                    continue;
                }
                let mut s = if case.accumulate { c0[at] } else { 0.0 };
                for p in 0..k {
                    let x = a[t * m * k + if case.at { p * m + i } else { i * k + p }];
                    let y = b[t * n * k + if case.bt { j * k + p } else { p * n + j }];
                    s += x * y;
                }
                if case.epilogue {
                    s += i as f64 - 2.0 * j as f64 + t as f64;
                }
                assert!(
                    (got[at] - s).abs() <= tol * (1.0 + s.abs() + k as f64 * 0.05),
                    "m{m} n{n} k{k} {:?}{:?}{:?} t{}{} [{t},{i},{j}] {} vs {s}",
                    case.a,
                    case.b,
                    case.c,
                    case.at,
                    case.bt,
                    got[at]
                );
            }
        }
    }
}

const LEVELS: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16];

#[test]
fn shapes_and_transposes() {
    at_levels(&LEVELS, || {
        for &(m, n, k) in &[
            (1, 1, 1),
            (1, 37, 65),
            (3, 200, 40),
            (8, 700, 100),
            (6, 16, 8),
            (7, 17, 9),
            (14, 32, 5),
            (33, 70, 259),
            (150, 45, 33),
            (61, 3, 77),
            (64, 1, 130),
            (16, 64, 64),
            (5, 5, 0),
        ] {
            for t in 0..4 {
                check(
                    &Case {
                        m,
                        n,
                        k,
                        a: Elem::F32,
                        b: Elem::F32,
                        c: Elem::F32,
                        at: t & 1 == 1,
                        bt: t & 2 == 2,
                        batch: 1,
                        accumulate: false,
                        epilogue: false,
                    },
                    1,
                );
            }
        }
    });
}

#[test]
fn types_batches_accumulate_epilogue() {
    use Elem::*;
    at_levels(&LEVELS, || {
        for (a, b, c) in [
            (F32, F32, F32),
            (BF16, BF16, F32),
            (BF16, BF16, BF16),
            (F16, F16, F16),
            (F16, F16, F32),
            (F32, BF16, F32),
            (F32, F32, BF16),
            (F64, F64, F64),
            (F32, F64, F64),
        ] {
            for &(m, n, k) in &[(2, 300, 131), (5, 90, 33), (19, 35, 300), (40, 130, 2)] {
                for t in 0..4 {
                    for mode in 0..4 {
                        check(
                            &Case {
                                m,
                                n,
                                k,
                                a,
                                b,
                                c,
                                at: t & 1 == 1,
                                bt: t & 2 == 2,
                                batch: 2,
                                accumulate: mode & 1 == 1,
                                epilogue: mode & 2 == 2,
                            },
                            7,
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn long_k_and_parallel_blocks() {
    use Elem::*;
    at_levels(&[Isa::Avx2, Isa::Avx512Bf16], || {
        for c in [F32, BF16] {
            for epilogue in [false, true] {
                check(
                    &Case {
                        m: 50,
                        n: 66,
                        k: 4500,
                        a: F32,
                        b: F32,
                        c,
                        at: false,
                        bt: false,
                        batch: 1,
                        accumulate: true,
                        epilogue,
                    },
                    3,
                );
            }
        }
        check(
            &Case {
                m: 301,
                n: 333,
                k: 290,
                a: F32,
                b: F32,
                c: F32,
                at: true,
                bt: false,
                batch: 1,
                accumulate: false,
                epilogue: true,
            },
            4,
        );
        check(
            &Case {
                m: 301,
                n: 633,
                k: 290,
                a: BF16,
                b: BF16,
                c: BF16,
                at: false,
                bt: true,
                batch: 1,
                accumulate: false,
                epilogue: true,
            },
            5,
        );
    });
}

#[test]
fn shared_operand_scratch_only_and_refusals() {
    let a = [1f32, 2.0, 3.0, 4.0];
    let b = [1f32, 0.0, 0.0, 1.0];
    let seen = std::sync::Mutex::new(vec![0f32; 8]);
    let dims = [BatchDim { size: 2, a: 0, b: 0, c: 0 }];
    let epi = |t: &Tile| {
        for r in 0..t.rows {
            for c in 0..t.cols {
                // SAFETY: within the tile.
                let v = unsafe { *t.ptr.cast::<f32>().offset(r as isize * t.ld + c as isize) };
                seen.lock().unwrap()[t.batch * 4 + (t.row0 + r) * 2 + t.col0 + c] = v;
            }
        }
    };
    let op = |p: &[f32; 4]| Operand { ptr: p.as_ptr().cast(), elem: Elem::F32, row: 2, col: 1, keep: None };
    let mut g =
        Gemm { m: 2, n: 2, k: 2, batch: &dims, a: op(&a), b: op(&b), c: None, accumulate: false, epilogue: Some(&epi) };
    // SAFETY: operands cover 2×2 each.
    unsafe { gemm(&g).unwrap() };
    assert_eq!(*seen.lock().unwrap(), [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    g.a.elem = Elem::I32;
    // SAFETY: refused before any access.
    assert!(matches!(unsafe { gemm(&g) }, Err(LibError::Shape { .. })));
}

#[test]
fn infinities_do_not_leak_from_padding() {
    let mut a = vec![1f32; 3 * 70];
    a[5] = f32::INFINITY;
    let b = vec![1f32; 70 * 600];
    let mut c = vec![0f32; 3 * 600];
    let g = Gemm {
        m: 3,
        n: 600,
        k: 70,
        batch: &[],
        a: Operand { ptr: a.as_ptr().cast(), elem: Elem::F32, row: 70, col: 1, keep: None },
        b: Operand { ptr: b.as_ptr().cast(), elem: Elem::F32, row: 600, col: 1, keep: None },
        c: Some(Output { ptr: c.as_mut_ptr().cast(), elem: Elem::F32, ld: 600 }),
        accumulate: false,
        epilogue: None,
    };
    // SAFETY: the buffers cover the operands.
    unsafe { gemm(&g).unwrap() };
    assert!(c[..600].iter().all(|x| *x == f32::INFINITY) && c[600..].iter().all(|x| *x == 70.0));
}

/// Every way of dividing the work (see `driver`): bits do not depend on the threads, and a sample
/// of the elements agrees with plain sums.
#[test]
fn every_form_of_the_driver_with_one_thread_and_with_all() {
    use crate::cpu::pool;
    use Elem::*;
    let all = pool::num_threads().max(2);
    at_levels(&[Isa::Portable, Isa::Avx2, Isa::Avx512Bf16], || {
        // m, n, k, A transposed, B transposed
        for &(m, n, k, at, bt) in &[
            (100, 700, 300, false, true), // flat: B packed strip by strip
            (100, 700, 300, true, false),
            (190, 83, 800, false, false),   // flat, ragged, several blocks of k
            (400, 300, 200, false, true),   // tall, A in place
            (400, 301, 700, true, true),    // tall, A packed for all, ragged
            (1700, 40, 350, true, false),   // tall, each task packs its rows
            (1700, 70, 350, false, true),   // the same, from rows
            (300, 1000, 4500, false, true), // several chunks of k and passes over columns
            (1100, 64, 5000, true, true),   // A packed for all in chunks, with several threads
            (210, 20, 20, false, false),    // B in place
            (2000, 5, 20, true, true),      // fewer columns than a strip
        ] {
            for (elem, c, epilogue) in [(F32, F32, false), (F32, BF16, true), (BF16, F32, true), (F16, F16, false)] {
                if elem != F32 && (m * n * k > 100_000_000 || m == 400) {
                    continue;
                }
                let mut rng = Lcg((m * n + k) as u64);
                let a: Vec<f64> = (0..m * k).map(|_| rng.small()).collect();
                let b: Vec<f64> = (0..n * k).map(|_| rng.small()).collect();
                let c0: Vec<f64> = (0..m * n).map(|_| rng.small()).collect();
                let (ab, bb) = (write_all(elem, &a), write_all(elem, &b));
                let strides =
                    |t: bool, rows: usize, cols: usize| if t { (1, rows as isize) } else { (cols as isize, 1) };
                let ((ar, ac), (br, bc)) = (strides(at, m, k), strides(bt, k, n));
                let epi = |t: &Tile| {
                    for r in 0..t.rows {
                        for c in 0..t.cols {
                            // SAFETY: the tile covers rows × cols sums.
                            unsafe {
                                *t.ptr.cast::<f32>().offset(r as isize * t.ld + c as isize) += (t.row0 + r) as f32
                            };
                        }
                    }
                };
                let run = |threads: usize| {
                    pool::set_num_threads(threads);
                    let mut out = write_all(c, &c0);
                    let g = Gemm {
                        m,
                        n,
                        k,
                        batch: &[],
                        a: Operand { ptr: ab.as_ptr(), elem, row: ar, col: ac, keep: None },
                        b: Operand { ptr: bb.as_ptr(), elem, row: br, col: bc, keep: None },
                        c: Some(Output { ptr: out.as_mut_ptr(), elem: c, ld: n as isize }),
                        accumulate: true,
                        epilogue: epilogue.then_some(&epi),
                    };
                    // SAFETY: the buffers above cover the operands.
                    unsafe { gemm(&g).unwrap() };
                    pool::set_num_threads(all);
                    out
                };
                let (one, two) = (run(1), run(all));
                assert!(one == two, "{m}x{n}x{k} {elem:?} {c:?}: threads change the result");
                let got = read_all(c, &one);
                for _ in 0..500 {
                    let (i, j) = (rng.below(m), rng.below(n));
                    let mut s = c0[i * n + j] + if epilogue { i as f64 } else { 0.0 };
                    for p in 0..k {
                        s += a[if at { p * m + i } else { i * k + p }] * b[if bt { j * k + p } else { p * n + j }];
                    }
                    let tol = if c == F32 { 1e-5 } else { 1e-2 };
                    assert!(
                        (got[i * n + j] - s).abs() <= tol * (1.0 + s.abs() + k as f64 * 0.05),
                        "{m}x{n}x{k} {elem:?} {c:?} [{i},{j}] {} vs {s}",
                        got[i * n + j]
                    );
                }
            }
        }
    });
}

/// Rows divided among a team, with B packed for the call and with B kept: the bits of one thread, and the third call with
/// a kept operand reads it packed.
#[test]
fn teams_change_nothing() {
    use crate::Buffer;
    use crate::cpu::pool;
    use crate::memory::MemoryPool;
    use Elem::*;
    use std::sync::Arc;
    let all = pool::num_threads().max(2);
    at_levels(&[Isa::Portable, Isa::Avx2, Isa::Avx512Bf16], || {
        for &(m, n, k, at, out, epilogue) in &[
            (256, 256, 256, false, F32, false),
            (250, 33, 1024, false, F32, true), // several blocks of k, a ragged strip
            (130, 301, 1300, true, BF16, true),
            (1030, 70, 515, false, BF16, false), // blocks of rows before the homes
            (700, 64, 3, false, F32, true),
        ] {
            for elem in [F32, BF16] {
                let mut rng = Lcg((m * n + k) as u64);
                let mut fill = |len: usize| write_all(elem, &(0..len).map(|_| rng.small()).collect::<Vec<f64>>());
                let (a, b) = (fill(m * k), fill(n * k));
                let pool = MemoryPool::new(None);
                let block = pool.alloc(b.len()).unwrap();
                // SAFETY: the block is as large as B.
                unsafe { std::ptr::copy_nonoverlapping(b.as_ptr(), block.as_ptr(), b.len()) };
                let (buffer, user) = (Buffer::new(block), Arc::new(()));
                let epi = |t: &Tile| {
                    for r in 0..t.rows {
                        for c in 0..t.cols {
                            // SAFETY: the tile covers rows × cols sums.
                            unsafe {
                                *t.ptr.cast::<f32>().offset(r as isize * t.ld + c as isize) += (t.col0 + c) as f32
                            };
                        }
                    }
                };
                let run = |threads: usize, keep: Option<u64>| {
                    pool::set_num_threads(threads);
                    let mut c = write_all(out, &vec![0.5; m * n]);
                    let keep = keep.map(|run| crate::kept::Keep { buffer: &buffer, pool: &pool, user: &user, run });
                    let (row, col) = if at { (1, m as isize) } else { (k as isize, 1) };
                    let g = Gemm {
                        m,
                        n,
                        k,
                        batch: &[],
                        a: Operand { ptr: a.as_ptr(), elem, row, col, keep: None },
                        b: Operand { ptr: buffer.ptr(), elem, row: 1, col: k as isize, keep },
                        c: Some(Output { ptr: c.as_mut_ptr(), elem: out, ld: n as isize }),
                        accumulate: epilogue,
                        epilogue: epilogue.then_some(&epi),
                    };
                    // SAFETY: the buffers above cover the operands.
                    unsafe { gemm(&g).unwrap() };
                    pool::set_num_threads(all);
                    c
                };
                let one = run(1, None);
                assert!(run(all, None) == one, "{m}x{n}x{k} {elem:?}");
                for call in 1..4 {
                    assert!(run(all, Some(call)) == one, "{m}x{n}x{k} {elem:?}, call {call} of kept B");
                }
                assert!(pool.stats().packed > 0, "{m}x{n}x{k} {elem:?}: B is not kept");
            }
        }
    });
}
