//! Which thunks run side by side, each on one thread: see [`Program::waves`]. What a thunk computes does not depend on how
//! many threads it has.
use super::kernel::Kernel;
use rsx_compiler::ir::OpKind;
use rsx_compiler::program::{Program, Thunk};

/// A product longer than this on one thread is divided rather than run beside others, nanoseconds.
const SMALL_PRODUCT: u64 = 50_000;
/// The same for generated kernels, whose loops divide well from some microseconds on.
const SMALL_KERNEL: u64 = 8_000;
/// Shorter thunks gain nothing: what they read and write has to travel between the cores.
const LEAST: u64 = 4_000;
/// What a product takes besides its flops, nanoseconds.
const OVERHEAD: u64 = 500;
/// Flops in a nanosecond of one thread.
const FLOPS: u64 = 60;
/// Most thunks in a wave.
const WIDEST: usize = 16;
/// Programs with more thunks than this keep their order: their graph would take too long.
const MOST: usize = 4096;

/// The thunks that run at a time.
pub(super) struct Wave {
    pub(super) thunks: Vec<usize>,
    /// What they take on one thread, nanoseconds, if they are several.
    pub(super) cost_ns: u64,
}

/// The waves of `program`, in order.
pub(super) fn waves(program: &Program, kernels: &[Kernel], threads: usize) -> Vec<Wave> {
    let known = threads > 1 && program.thunks.len() <= MOST;
    let cost: Vec<Option<u64>> = program.thunks.iter().map(|t| small(t, kernels).filter(|_| known)).collect();
    let wave = |thunks: Vec<usize>| {
        let cost_ns = thunks.iter().filter_map(|&n| cost[n]).sum();
        Wave { thunks, cost_ns }
    };
    program.waves(&cost, WIDEST).into_iter().map(wave).collect()
}

/// Nanoseconds on one thread of a thunk that is too short to divide; none for others.
fn small(thunk: &Thunk, kernels: &[Kernel]) -> Option<u64> {
    let kernel_ns = |n: u32| kernels.get(n as usize).map_or(0, Kernel::cost_ns);
    match thunk {
        Thunk::Kernel(call) => Some(kernel_ns(call.kernel)).filter(|ns| (LEAST..SMALL_KERNEL).contains(ns)),
        Thunk::Library { op: OpKind::DotGeneral, inputs, epilogue, work: None, .. } => {
            let [a, b] = &inputs[..] else { return None };
            let columns = b.dims.last().copied().unwrap_or(1);
            let flops = 2 * a.dims.iter().product::<i64>() * columns;
            let more = epilogue.as_ref().map_or(0, |c| kernel_ns(c.kernel));
            Some(OVERHEAD + flops as u64 / FLOPS + more).filter(|ns| (LEAST..SMALL_PRODUCT).contains(ns))
        }
        Thunk::Library { .. } | Thunk::Group(_) | Thunk::Copy { .. } => None,
    }
}
