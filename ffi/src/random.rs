//! Draws of the eager engine, following `rsx_lazy::philox`: element i comes from block (seed, offset + i).

use crate::error::shield;
use rsx_lazy::philox::{
    below, bernoulli, block, exponential_f32, exponential_f64, normal_f32, normal_f64, uniform_f32, uniform_f64,
};
use std::ffi::c_void;
use std::slice::from_raw_parts_mut;

const F32: i32 = 6;
const F64: i32 = 7;
const I64: i32 = 4;
const BOOL: i32 = 11;

/// Fills `out` with `draw` of each element's block.
fn fill<T>(out: &mut [T], seed: u64, offset: u64, draw: impl Fn([u32; 4]) -> T) {
    for (i, x) in out.iter_mut().enumerate() {
        *x = draw(block(seed, offset.wrapping_add(i as u64)));
    }
}

/// Fills `n` contiguous elements. Kinds and element types: `RsxRandom` in `rsx_abi.h`.
///
/// # Safety
/// `dst` points to `n` elements of `dtype`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_philox_fill(
    kind: u32,
    dtype: i32,
    dst: *mut c_void,
    n: u64,
    seed: u64,
    offset: u64,
    a: f64,
    b: f64,
) -> i32 {
    if n == 0 {
        return 0;
    }
    let n = n as usize;
    shield(-1, || {
        // SAFETY: the caller promises n elements of `dtype` at dst; each arm uses that type. Any bit pattern is valid
        // for the numeric types, and bool is only written.
        unsafe {
            match (kind, dtype) {
                (0, F32) => {
                    let (lo, width) = (a as f32, (b - a) as f32);
                    fill(from_raw_parts_mut(dst.cast::<f32>(), n), seed, offset, |w| uniform_f32(w[0]) * width + lo);
                }
                (0, F64) => fill(from_raw_parts_mut(dst.cast::<f64>(), n), seed, offset, |w| {
                    uniform_f64(w[0], w[1]) * (b - a) + a
                }),
                (1, F32) => fill(from_raw_parts_mut(dst.cast::<f32>(), n), seed, offset, |w| {
                    normal_f32(w[0], w[1]) * b as f32 + a as f32
                }),
                (1, F64) => fill(from_raw_parts_mut(dst.cast::<f64>(), n), seed, offset, |w| normal_f64(w) * b + a),
                (2, BOOL) => {
                    fill(from_raw_parts_mut(dst.cast::<u8>(), n), seed, offset, |w| u8::from(bernoulli(w[0], a)))
                }
                (3, I64) => {
                    let (from, to) = (a.to_bits() as i64, b.to_bits() as i64);
                    let range = to.wrapping_sub(from) as u64;
                    fill(from_raw_parts_mut(dst.cast::<i64>(), n), seed, offset, |w| {
                        from.wrapping_add(below(w[0], w[1], range) as i64)
                    });
                }
                (4, F32) => {
                    fill(from_raw_parts_mut(dst.cast::<f32>(), n), seed, offset, |w| exponential_f32(w[0]) / a as f32);
                }
                (4, F64) => {
                    fill(from_raw_parts_mut(dst.cast::<f64>(), n), seed, offset, |w| exponential_f64(w[0], w[1]) / a);
                }
                _ => return -1,
            }
        }
        0
    })
}
