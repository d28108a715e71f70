//! Convolution, in the form that the layout asks for.
//!
//! XLA's general form: strides, padding (also negative), dilation of input and window, window
//! reversal, feature and batch groups, any memory layout. The three gradient forms of a convolution
//! are convolutions of this form.
//! - Channels first with rows of some length: [`direct`] and, for weight gradients, [`weights`] read
//!   padded planes where they lie; windows of one point are products of packed positions ([`points`]).
//! - 3×3 windows of stride 1, with enough features, in either order of dimensions: [`winograd`], weight gradients too.
//! - One input feature to a group: [`depthwise`].
//! - All else: each group is a product of the weights with patches of the input, which are gathered
//!   while packing ([`patches`]) and never exist in memory as a whole.

mod depthwise;
mod direct;
mod patches;
mod planes;
mod points;
mod taps;
#[cfg(test)]
mod tests;
mod tile;
mod weights;
mod winograd;

use super::elem::{Elem, Scalar};
use super::gemm::kernel::{self, Kernel};
use super::gemm::pack::{Pack, Strided, Unit};
use super::gemm::{BatchDim, Epilogue, Finish, Job, Output, Tile, run};
use super::simd;
use super::view::{LibError, Ptr, View};
use crate::kept::Keep;
pub use direct::{Rows, Then};
use patches::Patches;
use smallvec::SmallVec;
use taps::Taps;
use winograd::Sink;

/// One spatial dimension. Sizes in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvDim {
    pub input: usize,
    pub window: usize,
    pub output: usize,
    pub stride: usize,
    pub pad_lo: isize,
    pub pad_hi: isize,
    /// Distance between the input's elements (input gradient: the forward stride).
    pub lhs_dilation: usize,
    /// Distance between the window's elements.
    pub rhs_dilation: usize,
    /// The window is applied back to front.
    pub reverse: bool,
}

impl ConvDim {
    /// Stride 1, no padding, no dilation.
    pub fn plain(input: usize, window: usize) -> ConvDim {
        ConvDim {
            input,
            window,
            output: (input + 1).saturating_sub(window),
            stride: 1,
            pad_lo: 0,
            pad_hi: 0,
            lhs_dilation: 1,
            rhs_dilation: 1,
            reverse: false,
        }
    }

    /// The output size that the other fields give.
    pub fn outputs(&self) -> usize {
        let wide = |n: usize, d: usize| if n == 0 { 0 } else { (n - 1) * d + 1 } as isize;
        let room =
            wide(self.input, self.lhs_dilation) + self.pad_lo + self.pad_hi - wide(self.window, self.rhs_dilation);
        if room < 0 || self.window == 0 { 0 } else { room as usize / self.stride + 1 }
    }
}

/// An array with two channel-like dimensions and the spatial ones; strides in elements.
///
/// Input: `major` = batch, `minor` = feature. Weights: `major` = output feature, `minor` = input
/// feature within a group. Output: `major` = batch, `minor` = feature.
#[derive(Clone, Copy, Debug)]
pub struct ConvArray<'a> {
    pub ptr: *mut u8,
    pub elem: Elem,
    pub major: isize,
    pub minor: isize,
    pub spatial: &'a [isize],
}

// SAFETY: an address and a layout; `conv`'s contract governs access.
unsafe impl Send for ConvArray<'_> {}
// SAFETY: as above.
unsafe impl Sync for ConvArray<'_> {}

/// A convolution:
/// `out[n, o, p] = Σ in[n + (o/(O/bg))·N/bg, g(o)·I/fg + i, (p·stride + k·rhs_dilation - pad_lo)/lhs_dilation] · w[o, i, k]`,
/// terms that fall outside the input or between its dilated elements left out.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a> {
    /// Batch size of the input; the output has `batch / batch_groups`.
    pub batch: usize,
    /// Features of the input, all groups.
    pub in_features: usize,
    /// Features of the output, all groups.
    pub out_features: usize,
    pub feature_groups: usize,
    pub batch_groups: usize,
    /// 1 to 3 spatial dimensions, outermost first.
    pub dims: &'a [ConvDim],
    pub input: ConvArray<'a>,
    pub weight: ConvArray<'a>,
    pub output: ConvArray<'a>,
    /// Where packed weights may be kept from call to call.
    pub keep: Option<Keep<'a>>,
}

/// The problem with exactly three spatial dimensions (leading ones of size 1).
#[derive(Clone, Copy)]
struct Geometry {
    dims: [ConvDim; 3],
    in_spatial: [isize; 3],
    w_spatial: [isize; 3],
    out_spatial: [isize; 3],
    /// Groups in all (feature or batch groups), input features and output features of one.
    groups: usize,
    gi: usize,
    go: usize,
    /// Output batch size, output positions, window positions.
    n: usize,
    positions: usize,
    taps: usize,
    /// Lanes run over images within a position (the input's images are neighbours in memory, as
    /// in the weight gradient of a channels-last convolution), else over positions within an image.
    images_inner: bool,
}

impl Geometry {
    fn new(c: &Conv) -> Result<Geometry, LibError> {
        let err = |what: &str| Err(LibError::shape("conv", format!("{what}: {c:?}")));
        let r = c.dims.len();
        if r == 0 || r > 3 || [c.input.spatial, c.weight.spatial, c.output.spatial].iter().any(|s| s.len() != r) {
            return err("1 to 3 spatial dimensions");
        }
        let (fg, bg) = (c.feature_groups, c.batch_groups);
        let groups = fg.max(bg);
        if fg == 0
            || bg == 0
            || (fg > 1 && bg > 1)
            || !c.in_features.is_multiple_of(fg)
            || !c.out_features.is_multiple_of(groups)
            || !c.batch.is_multiple_of(bg)
        {
            return err("groups");
        }
        if c.dims.iter().any(|d| d.stride == 0 || d.lhs_dilation == 0 || d.rhs_dilation == 0 || d.output > d.outputs())
        {
            return err("output size");
        }
        let wide = c.input.elem == Elem::F64 || c.weight.elem == Elem::F64;
        if ![c.input.elem, c.weight.elem, c.output.elem].iter().all(|e| e.is_float())
            || wide != (c.output.elem == Elem::F64)
        {
            return err("element types");
        }
        let three = |s: &[isize]| std::array::from_fn(|i| if i + r >= 3 { s[i + r - 3] } else { 0 });
        let one = ConvDim { output: 1, ..ConvDim::plain(1, 1) };
        let dims: [ConvDim; 3] = std::array::from_fn(|i| if i + r >= 3 { c.dims[i + r - 3] } else { one });
        Ok(Geometry {
            dims,
            in_spatial: three(c.input.spatial),
            w_spatial: three(c.weight.spatial),
            out_spatial: three(c.output.spatial),
            groups,
            gi: c.in_features / fg,
            go: c.out_features / groups,
            n: c.batch / bg,
            positions: dims.iter().map(|d| d.output).product(),
            taps: dims.iter().map(|d| d.window).product(),
            images_inner: images_inner(c),
        })
    }

    /// Two spatial dimensions are all there is.
    fn is_flat(&self) -> bool {
        let z = &self.dims[0];
        (z.input, z.window, z.output, z.pad_lo) == (1, 1, 1, 0)
    }
}

/// Runs the convolution; `epilogue` (optional) sees finished blocks before they are stored, as in
/// `gemm`: rows × columns are (features of the group) × (positions) if [`features_are_rows`], else
/// the reverse; positions count as n·P + p, or p·N + n if [`images_inner`]; `batch` is the group. With an epilogue the
/// output's address may be null: nothing is stored then.
///
/// f32 sums for f32, bf16 and f16; f64 for f64. Errors on inconsistent attributes.
///
/// # Safety
/// The arrays cover live memory; the output overlaps neither itself nor the inputs.
pub unsafe fn conv(c: &Conv, epilogue: Option<Epilogue>) -> Result<(), LibError> {
    Geometry::new(c)?;
    if c.dims.iter().any(|d| d.reverse) {
        // SAFETY: the same elements in another order.
        return forwards(c, |c| unsafe { conv(c, epilogue) });
    }
    let g = Geometry::new(c)?;
    if g.n * g.positions * c.out_features == 0 {
        return Ok(());
    }
    // SAFETY: the caller's contract.
    unsafe {
        if epilogue.is_none() {
            if g.gi * g.taps * c.dims.iter().map(|d| d.input).product::<usize>() == 0 {
                return zero(c);
            }
            if winograd::fits_gradient(c, &g) && winograd::run_gradient(c, &g)? {
                return Ok(());
            }
            if winograd::fits(c, &g) {
                return winograd::run(c, &g, Sink::Store);
            }
            let depthwise = g.gi == 1 && g.go <= 4 && c.feature_groups > 1 && g.taps <= 256;
            if weights::fits(c, &g) {
                return weights::run(c, &g);
            }
            if points::fits(c, &g) {
                return points::run(c, &g, None);
            }
            if !depthwise && direct::fits(c, &g) {
                return direct::run(c, &g, None);
            }
            if let Some(d) = c.dims.iter().position(|d| d.lhs_dilation > 1 && d.stride == 1 && d.rhs_dilation == 1) {
                return phases(c, d);
            }
            if depthwise {
                return depthwise::run(c, &g);
            }
        }
        if let Some(e) = epilogue
            && !features_are_rows(c)
            && !images_inner(c)
            && winograd::fits(c, &g)
        {
            return winograd::run(c, &g, Sink::Tiles(e));
        }
        if c.output.elem == Elem::F64 {
            product::<f64, f64>(c, &g, kernel::f64_kernel(), epilogue)
        } else {
            product::<f32, f32>(c, &g, kernel::f32_kernel(), epilogue)
        }
    }
}

/// Runs the convolution and hands its rows to `then` while they are in the cache instead of storing them; the output's
/// address and strides are not used. False, and nothing is done, where no form of it has whole rows.
///
/// # Safety
/// As [`conv`].
pub unsafe fn conv_then(c: &Conv, then: Then) -> Result<bool, LibError> {
    Geometry::new(c)?;
    if c.dims.iter().any(|d| d.reverse) {
        // SAFETY: the same elements in another order.
        return forwards(c, |c| unsafe { conv_then(c, then) });
    }
    let g = Geometry::new(c)?;
    // SAFETY: the caller's contract.
    unsafe {
        match row_form(c, &g) {
            Some(RowForm::Winograd) => winograd::run(c, &g, Sink::Rows(then))?,
            Some(RowForm::Points) => points::run(c, &g, Some(then))?,
            Some(RowForm::Direct) => direct::run(c, &g, Some(then))?,
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// Forms that have whole rows of outputs.
enum RowForm {
    Winograd,
    Points,
    Direct,
}

/// What [`conv_then`] runs.
fn row_form(c: &Conv, g: &Geometry) -> Option<RowForm> {
    let empty = g.gi * g.taps * c.dims.iter().map(|d| d.input).product::<usize>() == 0;
    if empty || g.n * g.positions * c.out_features == 0 || weights::fits(c, g) {
        None
    } else if winograd::fits(c, g) {
        Some(RowForm::Winograd)
    } else if points::fits(c, g) {
        Some(RowForm::Points)
    } else {
        direct::fits(c, g).then_some(RowForm::Direct)
    }
}

/// Bytes of work memory that [`conv`] takes on all threads, where that is planned: those of [`winograd`] (the copies of
/// other forms are the threads' own). Addresses do not count.
pub(crate) fn work_bytes(c: &Conv) -> usize {
    let bytes = |c: &Conv| match Geometry::new(c) {
        Ok(g) if winograd::fits_gradient(c, &g) => winograd::gradient_bytes(c, &g),
        Ok(g) if winograd::fits(c, &g) => winograd::work_bytes(c, &g),
        _ => 0,
    };
    forwards(c, bytes)
}

/// The same of [`conv_then`]; none if it does nothing.
pub(crate) fn work_bytes_then(c: &Conv) -> Option<usize> {
    let bytes = |c: &Conv| {
        let g = Geometry::new(c).ok()?;
        row_form(c, &g).map(|form| if let RowForm::Winograd = form { winograd::work_bytes(c, &g) } else { 0 })
    };
    forwards(c, bytes)
}

/// Calls `f` with the same convolution whose windows are not reversed: a reversed window is a window read backwards.
fn forwards<R>(c: &Conv, f: impl FnOnce(&Conv) -> R) -> R {
    let mut dims: SmallVec<[ConvDim; 3]> = c.dims.into();
    let mut spatial: SmallVec<[isize; 3]> = c.weight.spatial.into();
    let mut first = 0;
    for (d, s) in dims.iter_mut().zip(&mut spatial).filter(|(d, _)| d.reverse) {
        first += (d.window.max(1) - 1) as isize * *s;
        (d.reverse, *s) = (false, -*s);
    }
    let ptr = c.weight.ptr.wrapping_offset(first * c.weight.elem.size() as isize);
    let weight = ConvArray { ptr, spatial: &spatial, ..c.weight };
    f(&Conv { dims: &dims, weight, ..*c })
}

/// A convolution over an input dilated by s along `dim`, as s convolutions over the input itself:
/// outputs p ≡ r (mod s) meet only the taps k with p - pad_lo + k ≡ 0, at inputs that are
/// neighbours. Saves the multiplications by the zeros between elements: all but 1/s of them.
unsafe fn phases(c: &Conv, dim: usize) -> Result<(), LibError> {
    let d = c.dims[dim];
    let s = d.lhs_dilation as isize;
    for p0 in 0..s.min(d.output as isize) {
        let k0 = (d.pad_lo - p0).rem_euclid(s);
        let mut dims: SmallVec<[ConvDim; 3]> = c.dims.into();
        let (mut ws, mut os): (SmallVec<[isize; 3]>, SmallVec<[isize; 3]>) =
            (c.weight.spatial.into(), c.output.spatial.into());
        let window = (d.window as isize - k0 + s - 1).max(0) / s;
        let output = (d.output as isize - p0 + s - 1) / s;
        let pad_lo = -(p0 - d.pad_lo + k0) / s;
        // Just enough padding behind for all outputs.
        let pad_hi = output - 1 + window - pad_lo - d.input as isize;
        dims[dim] = ConvDim { window: window as usize, output: output as usize, pad_lo, pad_hi, lhs_dilation: 1, ..d };
        let at = |a: &ConvArray, n: isize| a.ptr.wrapping_offset(n * a.elem.size() as isize);
        let (wp, op) = (at(&c.weight, k0 * ws[dim]), at(&c.output, p0 * os[dim]));
        ws[dim] *= s;
        os[dim] *= s;
        let part = Conv {
            dims: &dims,
            weight: ConvArray { ptr: wp, spatial: &ws, ..c.weight },
            output: ConvArray { ptr: op, spatial: &os, ..c.output },
            ..*c
        };
        // SAFETY: the caller's contract; a phase without taps only writes zeros.
        unsafe {
            if window == 0 {
                zero(&part)?;
            } else {
                conv(&part, None)?;
            }
        }
    }
    Ok(())
}

/// Writes zeros to the whole output.
unsafe fn zero(c: &Conv) -> Result<(), LibError> {
    let dims: SmallVec<[usize; 5]> =
        [c.batch / c.batch_groups, c.out_features].into_iter().chain(c.dims.iter().map(|d| d.output)).collect();
    let st: SmallVec<[isize; 5]> =
        [c.output.major, c.output.minor].into_iter().chain(c.output.spatial.iter().copied()).collect();
    // SAFETY: the caller's output.
    unsafe { super::copy::fill(&View::new(c.output.ptr, c.output.elem, &dims, &st), super::copy::Value::Float(0.0)) }
}

/// Whether [`conv`]'s positions are ordered (position, image) instead of (image, position).
pub fn images_inner(c: &Conv) -> bool {
    c.input.major == 1 && c.input.minor != 1 && c.batch > 1
}

/// Whether the blocks that [`conv`]'s epilogue sees have features as rows.
pub fn features_are_rows(c: &Conv) -> bool {
    c.output.minor != 1
}

unsafe fn product<U: Unit, T: Scalar>(
    c: &Conv,
    g: &Geometry,
    kernel: &'static Kernel<U, T>,
    epilogue: Option<Epilogue>,
) -> Result<(), LibError>
where
    for<'a> Patches<'a>: Pack<U>,
{
    let k = g.gi * g.taps;
    let patches = Patches::new(c, g);
    // Weights as a matrix [group][output feature][k].
    let w = &c.weight;
    let (tap_s, inner) = (&g.w_spatial, &g.dims);
    let order: [(usize, isize); 4] = if patches.feature_inner() {
        [(inner[0].window, tap_s[0]), (inner[1].window, tap_s[1]), (inner[2].window, tap_s[2]), (g.gi, w.minor)]
    } else {
        [(g.gi, w.minor), (inner[0].window, tap_s[0]), (inner[1].window, tap_s[1]), (inner[2].window, tap_s[2])]
    };
    let w_step = w.major * g.go as isize;
    let w_batch = [BatchDim { size: g.groups, a: w_step, b: w_step, c: c.output.minor * g.go as isize }];
    let matrix = one_stride(&order).map(|k| Strided {
        ptr: Ptr(w.ptr),
        elem: w.elem,
        lane: w.major,
        k,
        batch: &w_batch,
        which: 0,
        keep: c.keep,
    });
    let scattered = Taps { weight: *w, order, step: w_step, keep: c.keep };
    let weights: &dyn Pack<U> = match &matrix {
        Some(m) => m,
        None => &scattered,
    };
    let rows_are_features = features_are_rows(c);
    let lanes = g.n * g.positions;
    // C in place if all positions of all images have one stride.
    let mut place = [
        (g.n, c.output.major),
        (inner[0].output, g.out_spatial[0]),
        (inner[1].output, g.out_spatial[1]),
        (inner[2].output, g.out_spatial[2]),
    ];
    if g.images_inner {
        place.rotate_left(1);
    }
    let pixel = one_stride(&place);
    let direct = match (rows_are_features, pixel) {
        (true, Some(1)) => Some(Output { ptr: c.output.ptr, elem: c.output.elem, ld: c.output.minor }),
        (false, Some(s)) => Some(Output { ptr: c.output.ptr, elem: c.output.elem, ld: s }),
        _ => None,
    };
    // Without an address, what the epilogue sees is all.
    let stored = !c.output.ptr.is_null();
    let out = Ptr(c.output.ptr);
    let scatter = |t: &Tile| {
        if let Some(f) = epilogue {
            f(t);
        }
        // SAFETY: the block's positions lie in the output.
        unsafe { scatter_tile::<T>(c, g, out, rows_are_features, t) };
    };
    let finish = Finish {
        out: direct.filter(|_| stored),
        batch: &w_batch,
        accumulate: false,
        epilogue: if direct.is_some() || !stored { epilogue } else { Some(&scatter) },
    };
    // SAFETY: the caller's contract.
    unsafe {
        if rows_are_features {
            run(&Job { kernel, m: g.go, n: lanes, k, batches: g.groups, a: weights, b: &patches, finish })
        } else {
            run(&Job { kernel, m: lanes, n: g.go, k, batches: g.groups, a: &patches, b: weights, finish })
        }
    }
}

/// The single stride of a row-major multi-index, if there is one.
fn one_stride(dims: &[(usize, isize)]) -> Option<isize> {
    let (mut unit, mut len) = (None::<isize>, 1isize);
    for &(n, s) in dims.iter().rev() {
        if n == 1 {
            continue;
        }
        match unit {
            None => unit = Some(s),
            Some(u) if s == u * len => {}
            _ => return None,
        }
        len *= n as isize;
    }
    Some(unit.unwrap_or(1))
}

/// Stores a finished block to an output of any layout.
unsafe fn scatter_tile<T: Scalar>(c: &Conv, g: &Geometry, out: Ptr, rows_are_features: bool, t: &Tile) {
    let size = c.output.elem.size() as isize;
    let (f0, fs, p0, ps) =
        if rows_are_features { (t.row0, t.rows, t.col0, t.cols) } else { (t.col0, t.cols, t.row0, t.rows) };
    let (f_step, p_step) = if rows_are_features { (t.ld, 1) } else { (1, t.ld) };
    let inner = g.dims[2].output;
    let step = if g.images_inner { c.output.major } else { g.out_spatial[2] };
    let mut done = 0;
    while done < ps {
        // A run of positions in one output row, or of images at one position.
        let q = p0 + done;
        let (n, p) = if g.images_inner { (q % g.n, q / g.n) } else { (q / g.positions, q % g.positions) };
        let (x, y) = (p % inner, p / inner);
        let len = if g.images_inner { g.n - n } else { inner - x }.min(ps - done);
        let base = n as isize * c.output.major
            + (y / g.dims[1].output) as isize * g.out_spatial[0]
            + (y % g.dims[1].output) as isize * g.out_spatial[1]
            + x as isize * g.out_spatial[2];
        for f in 0..fs {
            let o = base + ((t.batch * g.go + f0 + f) as isize) * c.output.minor;
            let src = t.ptr.cast::<T>().wrapping_offset(f as isize * f_step + done as isize * p_step);
            // SAFETY: the run lies within the block and the output row.
            unsafe {
                if p_step == 1 && step == 1 && T::ELEM == Elem::F32 {
                    simd::store_f32(c.output.elem, src.cast(), out.at::<u8>(o * size), len);
                } else {
                    for i in 0..len as isize {
                        let v = (*src.wrapping_offset(i * p_step)).to_f64();
                        c.output.elem.store_f64(out.at::<u8>((o + i * step) * size), v);
                    }
                }
            }
        }
        done += len;
    }
}
