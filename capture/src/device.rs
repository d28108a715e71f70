//! The real backend: the compiler's middle end above a device.
use crate::key::Identity;
use crate::timeline::{self, Event, Lane};
use crate::{Backend, Claim, CompileError, MemoryStats, OutOfMemory, RunCost, RunError, Runnable};
use rsx_compiler::program::Program;
use rsx_compiler::{CompileOptions, compile};
use rsx_devices::cpu::CpuDevice;
use rsx_devices::memory::OutOfMemory as PoolError;
use rsx_devices::{Buffer, Device, DeviceError, Executable};
use rsx_lazy::EngineErrorKind;
use rsx_lazy::lower::GraphPiece;
use std::sync::Arc;

/// A device that compiles graphs through `rsx_compiler::compile`.
pub struct DeviceBackend {
    device: Arc<dyn Device>,
    options: CompileOptions,
}

impl DeviceBackend {
    pub fn new(device: Arc<dyn Device>, options: CompileOptions) -> DeviceBackend {
        let mut options = CompileOptions { memory: options.memory.or(device.plans()), ..options };
        options.model.lanes = device.lanes().unwrap_or(options.model.lanes);
        DeviceBackend { device, options }
    }

    /// The CPU, with options from the environment.
    pub fn cpu() -> DeviceBackend {
        DeviceBackend::new(Arc::new(CpuDevice::new()), CompileOptions::from_env())
    }
}

impl Backend for DeviceBackend {
    fn compile(&self, piece: &GraphPiece) -> Result<Arc<dyn Runnable>, CompileError> {
        let fail = |message: String| CompileError { message, node: None };
        let compiled = compile(piece.graph.clone(), &self.options).map_err(|e| fail(e.to_string()))?;
        let executable = self.device.compile(Arc::new(compiled.program)).map_err(|e| fail(e.to_string()))?;
        Ok(Arc::new(Compiled(executable)))
    }

    fn restore(&self, bytes: &[u8]) -> Result<Arc<dyn Runnable>, String> {
        let program: Program = postcard::from_bytes(bytes).map_err(|e| e.to_string())?;
        if cfg!(debug_assertions) {
            rsx_compiler::buffers::check::check(&program)?;
        }
        let executable = self.device.compile(Arc::new(program)).map_err(|e| e.to_string())?;
        Ok(Arc::new(Compiled(executable)))
    }

    fn identity(&self) -> Identity {
        let (i, o) = (self.device.identity(), &self.options);
        Identity {
            device: i.device,
            compiler: format!("{} {}", i.compiler, env!("RSX_LOWERING_SOURCES")),
            library: i.library,
            options: format!("passes={} {:?} {:?} {:?}", o.passes.join(","), o.model, o.limits, o.remat),
            front_end: String::new(),
        }
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.device.allocate(bytes).map_err(|e| OutOfMemory { bytes, message: e.to_string() })
    }

    fn claim(&self, bytes: usize) -> Result<Claim, OutOfMemory> {
        let claimed = self.device.memory().claim(bytes);
        claimed.map(|c| Box::new(c) as Claim).map_err(|e| OutOfMemory { bytes, message: e.to_string() })
    }

    fn memory_limit(&self) -> Option<u64> {
        self.device.memory().limit().map(|l| l as u64)
    }

    fn release_cached(&self) {
        self.device.memory().empty_cache();
    }

    fn memory(&self) -> MemoryStats {
        let s = self.device.memory().stats();
        MemoryStats {
            live: s.in_use as u64,
            peak: s.peak as u64,
            reserved: s.reserved as u64,
            system_allocations: s.system_allocations as u64,
            allocations: s.allocations as u64,
            packed: s.packed as u64,
            prepack_hits: s.prepack_hits,
        }
    }

    fn reset_peak(&self) {
        self.device.memory().reset_peak();
    }
}

/// A compiled piece on a device.
struct Compiled(Arc<dyn Executable>);

impl Compiled {
    /// A run whose thunks are events of the timeline.
    fn run_timed(&self, inputs: &[Buffer], scalars: &[u64], results: &[Buffer]) -> Result<(), RunError> {
        let mut start = timeline::now();
        for thunk in self.0.profile(inputs, scalars, results).map_err(run_error)? {
            let facts = vec![("op", thunk.loc.to_string())];
            timeline::add(Event { lane: Lane::Device, name: thunk.name, start, duration: thunk.ns, facts });
            start += thunk.ns;
        }
        Ok(())
    }
}

impl Runnable for Compiled {
    fn alias(&self, result: usize) -> Option<usize> {
        self.0.program().results.get(result)?.alias.map(|p| p as usize)
    }

    fn run(&self, inputs: &[Buffer], scalars: &[u64], results: &[Buffer]) -> Result<(), RunError> {
        if timeline::on() {
            return self.run_timed(inputs, scalars, results);
        }
        self.0.run(inputs, scalars, results).map_err(run_error)
    }

    fn cost(&self) -> RunCost {
        let cost = self.0.cost();
        RunCost { kernels: cost.kernels + cost.library_calls, bytes_moved: cost.bytes_moved }
    }

    fn is_planned(&self) -> bool {
        let s = self.0.compile_stats();
        s.compiled == 0 && s.sized > 0
    }

    fn arity(&self) -> (usize, usize, usize) {
        let p = self.0.program();
        (p.params.len(), p.n_scalars as usize, p.results.len())
    }

    fn to_bytes(&self) -> Option<Vec<u8>> {
        postcard::to_allocvec(self.0.program()).ok()
    }
}

fn run_error(e: DeviceError) -> RunError {
    let message = e.to_string();
    let failed = |kind, node, intact| RunError::Failed { kind, message: message.clone(), node, intact };
    match e {
        DeviceError::Launch { clean: true, .. } => RunError::Launch(message),
        DeviceError::Launch { loc, .. } => failed(EngineErrorKind::Internal, Some(loc), false),
        DeviceError::Index { loc, clean, .. } => failed(EngineErrorKind::Index, Some(loc), clean),
        DeviceError::OutOfMemory(PoolError { .. }) => failed(EngineErrorKind::OutOfMemory, None, false),
        // Found before anything runs.
        DeviceError::Compile { .. } | DeviceError::Arguments(_) => failed(EngineErrorKind::Internal, None, true),
    }
}
