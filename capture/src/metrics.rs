//! Counters of a session.
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A snapshot of all counters since the start or the last reset (memory: see the fields).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Ops recorded.
    pub records: u64,
    /// Signatures inferred.
    pub signatures: u64,
    /// Traces submitted.
    pub segments: u64,
    /// Calls replayed without recording (`rsx.jit`, `torch.compile`).
    pub replays: u64,
    /// Segments for which machine code was generated, or that failed to compile.
    pub compiles: u64,
    /// Segments that got a program without new machine code: new sizes of known kernels.
    pub plans: u64,
    pub compile_failures: u64,
    /// Background compiles queued or running now.
    pub compiling: u64,
    pub compile_seconds: f64,
    /// Segments whose program was found ready.
    pub cache_hits: u64,
    /// Programs that came from the disk cache.
    pub disk_hits: u64,
    /// Entries of the disk cache that could not be used and were removed.
    pub disk_rejects: u64,
    /// Programs that a second compile did not reproduce (`RSX_CHECK`).
    pub check_failures: u64,
    /// Segments that ran op by op.
    pub eager_runs: u64,
    /// Ops that ran through the eager engine.
    pub eager_ops: u64,
    /// Call nodes run inside programs, by op.
    pub calls: BTreeMap<String, u64>,
    /// Iterations of `torch.while_loop` run inside programs.
    pub loop_iterations: u64,
    /// Ops that ran at once on the host, by op.
    pub fallbacks: BTreeMap<String, u64>,
    /// Segments by cause of their cut.
    pub cuts: BTreeMap<&'static str, u64>,
    /// Times the host waited for a value or for the device.
    pub host_waits: u64,
    pub wait_seconds: f64,
    /// Times a cut waited because too many segments were in flight.
    pub throttles: u64,
    /// Compiled pieces that could not be launched and ran op by op instead.
    pub launch_failures: u64,
    /// Ops that failed on the executor.
    pub faults: u64,
    /// Kernels launched by programs.
    pub kernels: u64,
    /// Bytes read and written by kernels, and copied between host and device.
    pub bytes_moved: u64,
    /// Time the executor was busy.
    pub busy_seconds: f64,
    /// Device memory in use now, bytes.
    pub live_bytes: u64,
    /// Greatest use since the last reset, bytes.
    pub peak_bytes: u64,
    /// Held from the system, bytes.
    pub reserved_bytes: u64,
    /// Allocations that reached the system since the start of the process.
    pub system_allocations: u64,
    /// Packed copies of weights kept for the next run, bytes; beside `live_bytes`, within `reserved_bytes`.
    pub packed_bytes: u64,
    /// Operands that a kernel found packed by an earlier run.
    pub prepack_hits: u64,
    /// Storages alive now.
    pub live_storages: u64,
    /// Segments remembered now.
    pub cached_segments: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        /// Counters that only grow, until reset.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            calls: Mutex<BTreeMap<String, u64>>,
        }
        impl Counters {
            fn reset_numbers(&self) {
                $(self.$name.store(0, Relaxed);)*
            }
        }
    };
}

counters!(
    segments,
    replays,
    compiles,
    plans,
    compile_failures,
    compile_nanos,
    cache_hits,
    disk_hits,
    check_failures,
    eager_runs,
    eager_ops,
    throttles,
    launch_failures,
    faults,
    loop_iterations,
    kernels,
    bytes_moved,
    busy_nanos,
    records_base,
    signatures_base,
    prepack_base
);

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    pub(crate) fn call(&self, op: &str) {
        let mut calls = self.calls.lock().unwrap_or_else(|e| e.into_inner());
        match calls.get_mut(op) {
            Some(n) => *n += 1,
            None => {
                calls.insert(op.to_owned(), 1);
            }
        }
    }

    pub(crate) fn calls(&self) -> BTreeMap<String, u64> {
        self.calls.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Starts again from zero; the arguments are the present counts of what the recorder and the device count.
    pub(crate) fn reset(&self, records: u64, signatures: u64, prepack_hits: u64) {
        self.reset_numbers();
        self.records_base.store(records, Relaxed);
        self.signatures_base.store(signatures, Relaxed);
        self.prepack_base.store(prepack_hits, Relaxed);
        self.calls.lock().unwrap_or_else(|e| e.into_inner()).clear();
    }
}
