//! Primitive ops run by the kernel library.
//!
//! What the library has no kernel for (integer products, products of windows, ...) is left to the interpreter: slow,
//! but right.
//!
//! Above 600 lines: how each op's operands become a kernel's is one table of functions, short and alike.
use super::arena;
use super::executable::Bases;
use super::extern_math::Fault;
use super::kernel::Kernel;
use super::lib::attention::{self, Attention, Gradients, Heads, LogSumExp};
use super::lib::conv::{self, Conv, ConvArray, ConvDim, Rows, conv, conv_then, images_inner};
use super::lib::gather::{IndexReport, gather};
use super::lib::gemm::{self, BatchDim, Gemm, Operand, Output, Tile, gemm};
use super::lib::reduce_window::{WindowDim, WindowKind, reduce_window};
use super::lib::scan::{Scan, scan};
use super::lib::scatter::{ScatterKind, scatter};
use super::lib::sort::{sort, topk};
use super::lib::{Elem, LibError, View as LibView, argreduce::argreduce, copy::copy as lib_copy};
use super::pool;
use crate::DeviceError;
use crate::kept::Keep;
use crate::memory::MemoryPool;
use rsx_compiler::interp::{self, Tensor};
use rsx_compiler::ir::{Attrs, CumKind, DType, OpKind, ReduceKind, ScatterKind as IrScatter, TensorType};
use rsx_compiler::program::{Place, Thunk, View};
use smallvec::SmallVec;

/// Where element 0 of an array is.
enum Origin {
    /// So many bytes from a place of the program.
    Place(Place, u64),
    /// At this address (exposed), for the time of one call.
    Address(usize),
}

/// A view in the form that the library takes.
pub(super) struct Array {
    origin: Origin,
    dtype: DType,
    dims: SmallVec<[usize; 6]>,
    strides: SmallVec<[isize; 6]>,
}

fn elem(dtype: DType) -> Elem {
    match dtype {
        DType::Bool => Elem::Bool,
        DType::U8 => Elem::U8,
        DType::I8 => Elem::I8,
        DType::I16 => Elem::I16,
        DType::U16 => Elem::U16,
        DType::I32 => Elem::I32,
        DType::U32 => Elem::U32,
        DType::I64 => Elem::I64,
        DType::U64 => Elem::U64,
        DType::F16 => Elem::F16,
        DType::BF16 => Elem::BF16,
        DType::F32 => Elem::F32,
        DType::F64 => Elem::F64,
    }
}

impl Array {
    pub(super) fn new(v: &View) -> Array {
        Array {
            origin: Origin::Place(v.place, v.offset as u64 * v.dtype.size() as u64),
            dtype: v.dtype,
            dims: v.dims.iter().map(|&d| d as usize).collect(),
            strides: v.strides.iter().map(|&s| s as isize).collect(),
        }
    }

    fn ptr(&self, b: &Bases) -> *mut u8 {
        match self.origin {
            Origin::Place(place, offset) => b.at(place, offset),
            Origin::Address(a) => std::ptr::with_exposed_provenance_mut(a),
        }
    }

    /// Where a packed form of it may be kept from run to run.
    fn keep<'a>(&self, b: &'a Bases) -> Option<Keep<'a>> {
        let Origin::Place(place, _) = self.origin else { return None };
        b.keep(place)
    }

    /// A row-major array of type `ty` at `ptr`; null: nowhere yet.
    fn dense_at(ptr: *mut u8, ty: &TensorType) -> Array {
        Array {
            origin: Origin::Address(ptr.expose_provenance()),
            dtype: ty.dtype,
            dims: ty.dims.iter().map(|&d| d as usize).collect(),
            strides: rsx_compiler::ir::row_major_strides(&ty.dims).iter().map(|&s| s as isize).collect(),
        }
    }

    fn view(&self, b: &Bases) -> LibView<'_> {
        LibView::new(self.ptr(b), elem(self.dtype), &self.dims, &self.strides)
    }

    fn heads(&self, b: &Bases) -> Option<Heads> {
        let strides: [isize; 4] = self.strides[..].try_into().ok()?;
        Some(Heads { ptr: self.ptr(b), elem: elem(self.dtype), strides })
    }

    fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, self.dims.iter().map(|&d| d as i64).collect::<Vec<_>>())
    }

    fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// The elements, row-major.
    fn load(&self, b: &Bases) -> Result<Tensor, LibError> {
        let ty = self.ty();
        let mut bytes = vec![0u8; ty.bytes() as usize];
        let strides = super::lib::view::dense_strides(&self.dims);
        let to = LibView::new(bytes.as_mut_ptr(), elem(self.dtype), &self.dims, &strides);
        // SAFETY: the program's views cover live memory; the vector is as large as the type.
        unsafe { lib_copy(&to, &self.view(b))? };
        Ok(Tensor { ty, bytes })
    }

    fn store(&self, b: &Bases, t: &Tensor) -> Result<(), LibError> {
        let strides = super::lib::view::dense_strides(&self.dims);
        let from = LibView::new(t.bytes.as_ptr().cast_mut(), elem(self.dtype), &self.dims, &strides);
        // SAFETY: as in `load`; the source is only read.
        unsafe { lib_copy(&self.view(b), &from) }
    }

    /// Value of a 0-d integer.
    fn integer(&self, b: &Bases) -> i64 {
        // SAFETY: a 0-d view of live memory.
        unsafe { elem(self.dtype).load_i64(self.ptr(b)) }
    }

    fn float(&self, b: &Bases) -> f64 {
        // SAFETY: as above.
        unsafe { elem(self.dtype).load_f64(self.ptr(b)) }
    }
}

/// The library call of one thunk.
pub(super) struct Call {
    op: OpKind,
    attrs: Attrs,
    inputs: Vec<Array>,
    outputs: Vec<Array>,
    /// Type of the op's own result where an epilogue consumes it.
    own: Option<TensorType>,
    /// Work memory that the program planned: place and bytes.
    work: Option<(Place, usize)>,
}

/// Work memory below this is not worth a plan.
const PLANNED: usize = 4 << 10;

/// Bytes of work memory that `thunk` wants in its program's slab, for the threads there are now. Exact or a little more for
/// products, attention and Winograd's convolutions, none for the copies of other convolutions.
pub(super) fn work_bytes(thunk: &Thunk) -> u64 {
    let Thunk::Library { op, attrs, inputs, outputs, epilogue, .. } = thunk else { return 0 };
    let own = epilogue.as_ref().map(|c| TensorType::new(c.inputs[0].dtype, &c.inputs[0].dims));
    let call = Call::new(*op, attrs, inputs, outputs, own, None);
    let bytes = call.work_bytes();
    if bytes < PLANNED { 0 } else { bytes as u64 }
}

/// A generated kernel applied to the blocks of an op's result.
pub(super) struct Epilogue<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) args: &'a [*mut u8],
    pub(super) scalars: &'a [u64],
    pub(super) fault: &'a Fault,
}

// SAFETY: blocks are disjoint rectangles; the addresses are those of a kernel call.
unsafe impl Sync for Epilogue<'_> {}

impl Epilogue<'_> {
    fn apply(&self, rows: (usize, usize), columns: (usize, usize), block: *const u8, ld: usize) {
        let pair = |(a, b): (usize, usize)| (a as i64, b as i64);
        let block = (block, ld as i64);
        // SAFETY: the rectangle lies in the space of the epilogue, whose arguments the program placed.
        unsafe { self.kernel.epilogue(self.args, self.scalars, pair(rows), pair(columns), block, self.fault) }
    }
}

/// How a convolution's result reaches its epilogue.
enum HandedOn {
    /// Result (image, feature, line, column): as rows, which are numbered in this order.
    Rows,
    /// Result (image, line, column, feature): as blocks of positions and features, rectangles of that space.
    Blocks,
}

/// How a library call ended.
enum Done {
    Yes,
    /// The library has no such kernel; nothing was written.
    No,
}

impl From<LibError> for DeviceError {
    fn from(e: LibError) -> DeviceError {
        match e {
            LibError::Memory(m) => DeviceError::OutOfMemory(m),
            other => launch("library", other.to_string()),
        }
    }
}

fn launch(kernel: &str, message: String) -> DeviceError {
    DeviceError::Launch { kernel: kernel.to_owned(), loc: u32::MAX, message, clean: true }
}

/// Copies between equal sizes, with conversion.
pub(super) fn copy(from: &Array, to: &Array, b: &Bases) -> Result<(), DeviceError> {
    // SAFETY: the program's views cover live memory and do not overlap.
    unsafe { lib_copy(&to.view(b), &from.view(b)) }?;
    Ok(())
}

impl Call {
    pub(super) fn new(
        op: OpKind,
        attrs: &Attrs,
        inputs: &[View],
        outputs: &[View],
        own: Option<TensorType>,
        work: Option<&View>,
    ) -> Call {
        let arrays = |list: &[View]| list.iter().map(Array::new).collect();
        let work = work.map(|v| (v.place, v.dims.iter().product::<i64>() as usize));
        Call { op, attrs: attrs.clone(), inputs: arrays(inputs), outputs: arrays(outputs), own, work }
    }

    /// Bytes of work memory that a run takes.
    fn work_bytes(&self) -> usize {
        let nothing = |_: &Tile| ();
        match self.op {
            OpKind::DotGeneral => {
                let out = if self.own.is_some() { None } else { self.outputs.first() };
                let Some(batch) = self.batch_dims(out) else { return 0 };
                let epilogue: Option<gemm::Epilogue> = if self.own.is_some() { Some(&nothing) } else { None };
                let product = self.product(&batch, out, epilogue, &|_| (std::ptr::null_mut(), None));
                product.map_or(0, |g| gemm::work_bytes(&g))
            }
            OpKind::Attention | OpKind::AttentionBackward => {
                let gradients = self.op == OpKind::AttentionBackward;
                let nowhere = || Heads { ptr: std::ptr::null_mut(), elem: Elem::F32, strides: [0; 4] };
                let ranks = self.inputs.len() >= 3 && self.inputs[..3].iter().all(|a| a.dims.len() == 4);
                let problem = ranks.then(|| self.problem([nowhere(), nowhere(), nowhere()], None, false, 1.0));
                problem.map_or(0, |p| attention::work_bytes(&p, gradients))
            }
            OpKind::Convolution => {
                let nowhere = |_: &Array| (std::ptr::null_mut(), None);
                let Some(own) = &self.own else {
                    let bytes = |out| self.with_convolution(&nowhere, out, conv::work_bytes);
                    return self.outputs.first().and_then(bytes).unwrap_or(0);
                };
                let out = Array::dense_at(std::ptr::null_mut(), own);
                let bytes = self.with_convolution(&nowhere, &out, |c| match self.handed_on(c, &out) {
                    _ if own.dtype != DType::F32 => None,
                    Some(HandedOn::Rows) => conv::work_bytes_then(c),
                    Some(HandedOn::Blocks) => Some(conv::work_bytes(c)),
                    None => None,
                });
                bytes.flatten().unwrap_or(own.bytes() as usize)
            }
            // Its result goes through the epilogue as a whole.
            _ => self.own.as_ref().map_or(0, |t| t.bytes() as usize),
        }
    }

    /// Runs the op on the program's memory, then or meanwhile its epilogue.
    pub(super) fn run(
        &self,
        b: &Bases,
        epilogue: Option<&Epilogue>,
        pool: &MemoryPool,
        fault: &Fault,
    ) -> Result<(), DeviceError> {
        match self.work {
            // SAFETY: the plan gives this memory to nobody else while the thunk runs.
            Some((place, len)) => unsafe { arena::with(b.at(place, 0), len, || self.run_in(b, epilogue, pool, fault)) },
            None => self.run_in(b, epilogue, pool, fault),
        }
    }

    fn run_in(
        &self,
        b: &Bases,
        epilogue: Option<&Epilogue>,
        pool: &MemoryPool,
        fault: &Fault,
    ) -> Result<(), DeviceError> {
        let Some((e, own)) = epilogue.zip(self.own.as_ref()) else {
            let outputs: Vec<&Array> = self.outputs.iter().collect();
            return self.plain(b, &outputs, fault);
        };
        if self.op == OpKind::DotGeneral
            && let Done::Yes = self.dot(b, None, Some(e))?
        {
            return Ok(());
        }
        if self.op == OpKind::Convolution && own.dtype == DType::F32 {
            // Rows of outputs are rows of the epilogue's space where the result is row-major.
            if let Done::Yes = self.convolution(b, &Array::dense_at(std::ptr::null_mut(), own), Some(e))? {
                return Ok(());
            }
        }
        // The op's own result as a whole, then the epilogue over it.
        let temporary = arena::take_or(pool, own.bytes() as usize)?;
        let result = Array::dense_at(temporary.as_ptr(), own);
        self.plain(b, &[&result], fault)?;
        let columns = result.dims.last().copied().unwrap_or(1);
        let rows = result.numel() / columns.max(1);
        let base = Address(temporary.as_ptr());
        pool::parallel_range(rows, 1, result.numel() as u64 / 2, &|r0, r1| {
            e.apply((r0, r1), (0, columns), base.at(r0 * columns * own.dtype.size()), columns);
        });
        Ok(())
    }

    /// Runs the op without an epilogue.
    fn plain(&self, b: &Bases, outputs: &[&Array], fault: &Fault) -> Result<(), DeviceError> {
        match self.dispatch(b, outputs, fault) {
            Ok(Done::Yes) => Ok(()),
            // Shapes were checked by the compiler: a refusal means that there is no such kernel.
            Ok(Done::No) | Err(LibError::Shape { .. }) => self.interpret(b, outputs),
            Err(e) => Err(e.into()),
        }
    }

    fn interpret(&self, b: &Bases, outputs: &[&Array]) -> Result<(), DeviceError> {
        let operands = self.inputs.iter().map(|a| a.load(b)).collect::<Result<Vec<Tensor>, _>>()?;
        let refs: Vec<&Tensor> = operands.iter().collect();
        let declared: Vec<TensorType> = outputs.iter().map(|o| o.ty()).collect();
        let results = interp::eval_op(self.op, &self.attrs, &refs, &declared)
            .map_err(|e| launch(self.op.name(), e.to_string()))?;
        for (o, t) in outputs.iter().zip(&results) {
            o.store(b, t)?;
        }
        Ok(())
    }

    fn dispatch(&self, b: &Bases, outputs: &[&Array], fault: &Fault) -> Result<Done, LibError> {
        let input = |n: usize| self.inputs[n].view(b);
        let output = |n: usize| outputs[n].view(b);
        // SAFETY: the program's views cover live memory; outputs overlap nothing but the operand of in-place ops.
        unsafe {
            match (self.op, &self.attrs) {
                (OpKind::DotGeneral, _) => return self.dot(b, Some(outputs[0]), None),
                (OpKind::Convolution, Attrs::Conv { .. }) => return self.convolution(b, outputs[0], None),
                (OpKind::Attention | OpKind::AttentionBackward, Attrs::Attention { causal }) => {
                    return self.attention(b, outputs, *causal);
                }
                (OpKind::Sort, Attrs::Sort { dim, descending }) => {
                    sort(&output(0), Some(&output(1)), &input(0), *dim as usize, *descending)?;
                }
                (OpKind::TopK, Attrs::TopK { k, largest }) => {
                    let Some(dim) = self.inputs[0].dims.len().checked_sub(1) else { return Ok(Done::No) };
                    topk(&output(0), Some(&output(1)), &input(0), dim, *k as usize, *largest)?;
                }
                (OpKind::ArgReduce, Attrs::ArgReduce { max, dim }) => {
                    if self.inputs[0].dims[*dim as usize] == 0 {
                        return Ok(Done::No);
                    }
                    argreduce(&output(0), None, &input(0), *dim as usize, *max)?;
                }
                (OpKind::Cumulative, Attrs::Cumulative { kind, dim }) => {
                    let kind = match kind {
                        CumKind::Sum => Scan::Sum,
                        CumKind::Prod => Scan::Prod,
                        CumKind::Max => Scan::Max,
                        CumKind::Min => Scan::Min,
                        CumKind::LogSumExp => Scan::LogSumExp,
                    };
                    scan(kind, &output(0), None, &input(0), *dim as usize)?;
                }
                (OpKind::Gather, Attrs::Dims(dims)) => {
                    let dims: Vec<usize> = dims.iter().map(|&d| d as usize).collect();
                    let indices: Vec<LibView> = self.inputs[1..].iter().map(|a| a.view(b)).collect();
                    report(gather(&output(0), &input(0), &dims, &indices, false)?, fault);
                }
                (OpKind::Scatter, Attrs::Scatter { kind, dims }) => {
                    let kind = match kind {
                        IrScatter::Set => ScatterKind::Set,
                        IrScatter::Add => ScatterKind::Add,
                        IrScatter::Mul => ScatterKind::Mul,
                        IrScatter::Max => ScatterKind::Max,
                        IrScatter::Min => ScatterKind::Min,
                    };
                    let dims: Vec<usize> = dims.iter().map(|&d| d as usize).collect();
                    let last = self.inputs.len() - 1;
                    let indices: Vec<LibView> = self.inputs[1..last].iter().map(|a| a.view(b)).collect();
                    report(scatter(&output(0), &dims, &indices, &input(last), kind, false)?, fault);
                }
                (OpKind::DynamicUpdateSlice, _) => {
                    let (update, at) = (&self.inputs[1], &self.inputs[2..]);
                    let target = self.window(b, outputs[0], &update.dims, at);
                    lib_copy(&target, &update.view(b))?;
                }
                (OpKind::DynamicSlice, _) => {
                    let source = self.window(b, &self.inputs[0], &outputs[0].dims, &self.inputs[1..]);
                    lib_copy(&output(0), &source)?;
                }
                (OpKind::ReduceWindow | OpKind::MaxPoolWithIndex, Attrs::Window { kind, window }) => {
                    return self.windows(b, outputs, *kind, window);
                }
                _ => return Ok(Done::No),
            }
        }
        Ok(Done::Yes)
    }

    /// The part of `whole` of sizes `sizes` that begins at run-time starts, clamped into range.
    fn window<'v>(&self, b: &Bases, whole: &'v Array, sizes: &'v [usize], starts: &[Array]) -> LibView<'v> {
        let mut at = 0isize;
        for (d, s) in starts.iter().enumerate() {
            let start = s.integer(b).clamp(0, whole.dims[d] as i64 - sizes[d] as i64);
            at += start as isize * whole.strides[d];
        }
        let v = whole.view(b);
        LibView { ptr: v.ptr.wrapping_offset(at * whole.dtype.size() as isize), dims: sizes, ..v }
    }

    /// Batch dimensions of a matrix product with C as `out` has it; none if the library has no such product.
    fn batch_dims(&self, out: Option<&Array>) -> Option<Vec<BatchDim>> {
        let [x, y] = &self.inputs[..] else { return None };
        let n_batch = x.dims.len().wrapping_sub(2);
        if !x.dtype.is_float() || y.dims.len() != x.dims.len() || n_batch > 16 {
            return None;
        }
        let n = y.dims[n_batch + 1];
        if out.is_some_and(|o| o.dims.len() != n_batch + 2 || (o.strides[n_batch + 1] != 1 && n != 1)) {
            return None;
        }
        let dim =
            |d| BatchDim { size: x.dims[d], a: x.strides[d], b: y.strides[d], c: out.map_or(0, |o| o.strides[d]) };
        Some((0..n_batch).map(dim).collect())
    }

    /// The product in the library's form; `at` gives the addresses of arrays.
    fn product<'a>(
        &self,
        batch: &'a [BatchDim],
        out: Option<&Array>,
        epilogue: Option<gemm::Epilogue<'a>>,
        at: &dyn Fn(&Array) -> (*mut u8, Option<Keep<'a>>),
    ) -> Option<Gemm<'a>> {
        let [x, y] = &self.inputs[..] else { return None };
        let r = batch.len();
        let operand = |v: &Array| {
            let (ptr, keep) = at(v);
            Operand { ptr, elem: elem(v.dtype), row: v.strides[r], col: v.strides[r + 1], keep }
        };
        Some(Gemm {
            m: x.dims[r],
            n: y.dims[r + 1],
            k: x.dims[r + 1],
            batch,
            a: operand(x),
            b: operand(y),
            c: out.map(|o| Output { ptr: at(o).0, elem: elem(o.dtype), ld: o.strides[r] }),
            accumulate: false,
            epilogue,
        })
    }

    /// A batched matrix product in the canonical form of `Thunk::Library`.
    fn dot(&self, b: &Bases, out: Option<&Array>, epilogue: Option<&Epilogue>) -> Result<Done, LibError> {
        let Some(batch) = self.batch_dims(out) else { return Ok(Done::No) };
        let m = self.inputs[0].dims[batch.len()];
        let tile = |t: &Tile| {
            if let Some(e) = epilogue {
                let row = t.batch * m + t.row0;
                e.apply((row, row + t.rows), (t.col0, t.col0 + t.cols), t.ptr, t.ld as usize);
            }
        };
        let tile: Option<gemm::Epilogue> = if epilogue.is_some() { Some(&tile) } else { None };
        let Some(product) = self.product(&batch, out, tile, &|a| (a.ptr(b), a.keep(b))) else { return Ok(Done::No) };
        // SAFETY: the program's views cover live memory; the output overlaps neither itself nor the operands.
        unsafe { gemm(&product)? };
        Ok(Done::Yes)
    }

    /// Runs `f` on the convolution that the op is, if it is one.
    fn with_convolution<'a, R>(
        &self,
        addresses: &dyn Fn(&Array) -> (*mut u8, Option<Keep<'a>>),
        out: &Array,
        f: impl FnOnce(&Conv) -> R,
    ) -> Option<R> {
        let Attrs::Conv { window, dims: d, feature_groups, batch_groups } = &self.attrs else { return None };
        let [x, w] = &self.inputs[..] else { return None };
        let at = |i: i64| i as usize;
        let spatial: Vec<ConvDim> = window
            .iter()
            .enumerate()
            .map(|(s, win)| ConvDim {
                input: x.dims[at(d.input_spatial[s])],
                window: at(win.size),
                output: out.dims[at(d.output_spatial[s])],
                stride: at(win.stride),
                pad_lo: win.pad_lo as isize,
                pad_hi: win.pad_hi as isize,
                lhs_dilation: at(win.base_dilation),
                rhs_dilation: at(win.window_dilation),
                reverse: win.reversed,
            })
            .collect();
        let strides = |v: &Array, list: &[i64]| list.iter().map(|&i| v.strides[at(i)]).collect::<Vec<isize>>();
        let (xs, ws, os) =
            (strides(x, &d.input_spatial), strides(w, &d.kernel_spatial), strides(out, &d.output_spatial));
        fn array<'s>(v: &Array, ptr: *mut u8, major: i64, minor: i64, spatial: &'s [isize]) -> ConvArray<'s> {
            let (major, minor) = (v.strides[major as usize], v.strides[minor as usize]);
            ConvArray { ptr, elem: elem(v.dtype), major, minor, spatial }
        }
        let (weight, keep) = addresses(w);
        Some(f(&Conv {
            batch: x.dims[at(d.input_batch)],
            in_features: x.dims[at(d.input_feature)],
            out_features: out.dims[at(d.output_feature)],
            feature_groups: at(*feature_groups),
            batch_groups: at(*batch_groups),
            dims: &spatial,
            input: array(x, addresses(x).0, d.input_batch, d.input_feature, &xs),
            weight: array(w, weight, d.kernel_output_feature, d.kernel_input_feature, &ws),
            output: array(out, addresses(out).0, d.output_batch, d.output_feature, &os),
            keep,
        }))
    }

    /// With an epilogue the result goes there, row by row, or nothing is done.
    fn convolution(&self, b: &Bases, out: &Array, epilogue: Option<&Epilogue>) -> Result<Done, LibError> {
        let done = self.with_convolution(&|a| (a.ptr(b), a.keep(b)), out, |c| self.run_convolution(c, out, epilogue));
        done.unwrap_or(Ok(Done::No))
    }

    /// How the convolution hands its f32 result `out` to an epilogue, if it can.
    fn handed_on(&self, c: &Conv, out: &Array) -> Option<HandedOn> {
        let Attrs::Conv { dims: d, .. } = &self.attrs else { return None };
        let order = |feature: i64, spatial: &[i64]| {
            out.dims.len() == 4 && (d.output_batch, d.output_feature, &d.output_spatial[..]) == (0, feature, spatial)
        };
        if order(3, &[1, 2]) && c.batch_groups == 1 && !images_inner(c) && c.dims.iter().all(|s| s.lhs_dilation == 1) {
            return Some(HandedOn::Blocks);
        }
        order(1, &[2, 3]).then_some(HandedOn::Rows)
    }

    fn run_convolution(&self, c: &Conv, out: &Array, epilogue: Option<&Epilogue>) -> Result<Done, LibError> {
        let Some(e) = epilogue else {
            // SAFETY: as in `dot`.
            unsafe { conv(c, None)? };
            return Ok(Done::Yes);
        };
        match self.handed_on(c, out) {
            Some(HandedOn::Blocks) => {
                let per = c.out_features / c.feature_groups;
                let tile = |t: &Tile| {
                    let (row, column) = (t.row0, t.batch * per + t.col0);
                    e.apply((row, row + t.rows), (column, column + t.cols), t.ptr, t.ld as usize);
                };
                // SAFETY: as in `dot`; the tiles lie in the epilogue's space.
                unsafe { conv(c, Some(&tile))? };
                Ok(Done::Yes)
            }
            Some(HandedOn::Rows) => {
                let (features, lines, width) = (c.out_features, out.dims[2], out.dims[3]);
                let rows = |r: &Rows| {
                    let row = (r.image * features + r.feature) * lines + r.first;
                    e.apply((row, row + r.rows), (0, width), r.ptr.cast(), width);
                };
                // SAFETY: as in `dot`; the rows lie in the epilogue's space.
                let done = unsafe { conv_then(c, &rows)? };
                Ok(if done { Done::Yes } else { Done::No })
            }
            None => Ok(Done::No),
        }
    }

    /// The attention of inputs 0 to 2, which have four dimensions.
    fn problem(&self, [q, k, v]: [Heads; 3], bias: Option<Heads>, causal: bool, scale: f32) -> Attention {
        let x = &self.inputs;
        Attention {
            batch: x[0].dims[0],
            heads: x[0].dims[1],
            kv_heads: x[1].dims[1],
            q_len: x[0].dims[2],
            kv_len: x[1].dims[2],
            dim: x[0].dims[3],
            v_dim: x[2].dims[3],
            q,
            k,
            v,
            bias,
            causal,
            scale,
        }
    }

    fn attention(&self, b: &Bases, outputs: &[&Array], causal: bool) -> Result<Done, LibError> {
        let backward = self.op == OpKind::AttentionBackward;
        let x = &self.inputs;
        let heads = |a: &Array| a.heads(b);
        // The bias, broadcast to the scores.
        let bias = match x.get(if backward { 7 } else { 4 }) {
            None => None,
            Some(a) => {
                let scores = [x[0].dims[0], x[0].dims[1], x[0].dims[2], x[1].dims[2]];
                let Some(missing) = 4usize.checked_sub(a.dims.len()) else { return Ok(Done::No) };
                let mut strides = [0isize; 4];
                for d in missing..4 {
                    let (size, stride) = (a.dims[d - missing], a.strides[d - missing]);
                    if size == scores[d] {
                        strides[d] = stride;
                    } else if size != 1 {
                        return Ok(Done::No);
                    }
                }
                Some(Heads { ptr: a.ptr(b), elem: elem(a.dtype), strides })
            }
        };
        let (Some(q), Some(k), Some(v)) = (heads(&x[0]), heads(&x[1]), heads(&x[2])) else { return Ok(Done::No) };
        let problem = self.problem([q, k, v], bias, causal, x[3].float(b) as f32);
        let sums = |a: &Array| {
            let strides: [isize; 3] = a.strides[..].try_into().ok()?;
            (a.dtype == DType::F32).then(|| LogSumExp { ptr: a.ptr(b).cast(), strides })
        };
        // SAFETY: as in `dot`.
        unsafe {
            if backward {
                let (out, lse, dout) = (heads(&x[4]), sums(&x[5]), heads(&x[6]));
                let grads = (heads(outputs[0]), heads(outputs[1]), heads(outputs[2]));
                let (Some(out), Some(dout), (Some(dq), Some(dk), Some(dv)), Some(lse)) = (out, dout, grads, lse) else {
                    return Ok(Done::No);
                };
                attention::backward(&problem, &out, &dout, lse, &Gradients { dq, dk, dv })?;
            } else {
                let (Some(out), Some(lse)) = (heads(outputs[0]), sums(outputs[1])) else { return Ok(Done::No) };
                attention::forward(&problem, &out, Some(lse))?;
            }
        }
        Ok(Done::Yes)
    }

    fn windows(
        &self,
        b: &Bases,
        outputs: &[&Array],
        kind: ReduceKind,
        window: &[rsx_compiler::ir::WindowDim],
    ) -> Result<Done, LibError> {
        let kind = match kind {
            ReduceKind::Sum if self.inputs[0].dtype != DType::Bool => WindowKind::Sum,
            ReduceKind::Max => WindowKind::Max,
            ReduceKind::Min => WindowKind::Min,
            ReduceKind::Sum | ReduceKind::Prod | ReduceKind::And | ReduceKind::Or => return Ok(Done::No),
        };
        if window.iter().any(|w| w.base_dilation != 1 || w.reversed) {
            return Ok(Done::No);
        }
        let list: Vec<WindowDim> = window
            .iter()
            .map(|w| WindowDim {
                size: w.size as usize,
                stride: w.stride as usize,
                pad_lo: w.pad_lo as isize,
                pad_hi: w.pad_hi as isize,
                dilation: w.window_dilation as usize,
            })
            .collect();
        let (x, y) = (self.inputs[0].view(b), outputs[0].view(b));
        // SAFETY: as in `dot`.
        unsafe {
            if self.op == OpKind::ReduceWindow {
                reduce_window(kind, &y, None, &x, &list)?;
                return Ok(Done::Yes);
            }
            // Positions count within the windowed dimensions: the library knows them as the last ones.
            let windowed = |d: usize| window[d].size != 1 || window[d].stride != 1;
            let from = (0..window.len()).find(|&d| windowed(d)).unwrap_or(window.len());
            if (from..window.len()).any(|d| !windowed(d) && x.dims[d] != 1) {
                return Ok(Done::No);
            }
            let indices = outputs[1].view(b);
            reduce_window(kind, &y, Some((&indices, from)), &x, &list)?;
        }
        Ok(Done::Yes)
    }
}

/// Passes a report of the library on.
fn report(r: IndexReport, fault: &Fault) {
    if let Some(bad) = r.first {
        fault.report(bad.value, bad.size as i64);
    }
}

struct Address(*mut u8);
// SAFETY: threads read disjoint rows.
unsafe impl Sync for Address {}

impl Address {
    fn at(&self, bytes: usize) -> *const u8 {
        self.0.wrapping_add(bytes)
    }
}
