//! Packed arguments that are kept from run to run: bit-identical results, and never the form of old contents, however
//! a parameter changed.
use rsx_compiler::ir::{Builder, ConvDims, DType, Dims, DotDims, Graph, ParamKind, TensorType, Value, WindowDim};
use rsx_compiler::{CompileOptions, compile};
use rsx_devices::cpu::CpuDevice;
use rsx_devices::cpu::lib::isa::{self, Isa};
use rsx_devices::cpu::target::Target;
use rsx_devices::memory::MemoryPool;
use rsx_devices::{Buffer, Device, Executable, execute};
use std::sync::Arc;

/// A device with counters of its own.
fn device() -> CpuDevice {
    CpuDevice::with(MemoryPool::new(None), Target::host())
}

/// A device that keeps nothing: its pool has a limit.
fn forgetful() -> CpuDevice {
    CpuDevice::with(MemoryPool::new(Some(1 << 40)), Target::host())
}

/// (bytes of packed copies, operands found packed)
fn packed(d: &CpuDevice) -> (usize, u64) {
    let s = d.memory().stats();
    (s.packed, s.prepack_hits)
}

fn program(d: &CpuDevice, graph: Graph) -> Arc<dyn Executable> {
    let options = CompileOptions { memory: d.plans(), ..CompileOptions::default() };
    d.compile(Arc::new(compile(graph, &options).unwrap().program)).unwrap()
}

fn graph(build: impl FnOnce(&mut Builder) -> Vec<Value>) -> Graph {
    let mut b = Builder::new("test");
    let results = build(&mut b);
    b.finish(results).unwrap()
}

fn tensor(b: &mut Builder, dtype: DType, dims: &[i64]) -> Value {
    b.parameter(TensorType::new(dtype, dims), ParamKind::Tensor)
}

/// x·Wᵀ, the weight as `torch.nn.Linear` has it.
fn times_transposed(b: &mut Builder, x: Value, w: Value) -> Value {
    let one = |d: i64| Dims::from_slice(&[d]);
    let dims = DotDims { lhs_contract: one(1), rhs_contract: one(1), ..DotDims::default() };
    let dtype = b.dtype(x);
    b.dot_general(x, w, dims, dtype)
}

/// x[m, k] and W[n, k] to x·Wᵀ.
fn linear(dtype: DType, m: i64, n: i64, k: i64) -> Graph {
    graph(|b| {
        let (x, w) = (tensor(b, dtype, &[m, k]), tensor(b, dtype, &[n, k]));
        vec![times_transposed(b, x, w)]
    })
}

/// Numbers that depend on the seed, of any element type.
fn contents(ty: &TensorType, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f64 / (1u64 << 23) as f64 - 1.0) as f32
    };
    let n = ty.numel() as usize;
    match ty.dtype {
        DType::F32 => (0..n).flat_map(|_| next().to_le_bytes()).collect(),
        DType::F64 => (0..n).flat_map(|_| f64::from(next()).to_le_bytes()).collect(),
        DType::BF16 => (0..n).flat_map(|_| half::bf16::from_f32(next()).to_le_bytes()).collect(),
        DType::F16 => (0..n).flat_map(|_| half::f16::from_f32(next()).to_le_bytes()).collect(),
        other => panic!("{other}"),
    }
}

fn buffer(d: &dyn Device, bytes: &[u8]) -> Buffer {
    let b = d.allocate(bytes.len()).unwrap();
    b.write(0, bytes).unwrap();
    b
}

fn read(b: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; b.len()];
    b.read(0, &mut bytes).unwrap();
    bytes
}

/// A program with its arguments, and a twin without a memory for either.
struct Pair {
    device: CpuDevice,
    program: Arc<dyn Executable>,
    plain: (CpuDevice, Arc<dyn Executable>),
    params: Vec<Buffer>,
}

impl Pair {
    fn new(graph: Graph) -> Pair {
        let (device, other) = (device(), forgetful());
        let (program, twin) = (self::program(&device, graph.clone()), self::program(&other, graph));
        let types = &program.program().params;
        let params = types.iter().enumerate().map(|(n, t)| buffer(&device, &contents(t, n as u64 + 1))).collect();
        Pair { device, program, plain: (other, twin), params }
    }

    /// Runs both on the present contents and a new input: the bits must agree.
    fn agree(&self, what: &str) {
        self.params[0].write(0, &contents(&self.program.program().params[0], 77)).unwrap();
        let copies: Vec<Buffer> = self.params.iter().map(|p| buffer(&self.plain.0, &read(p))).collect();
        let want = execute(&self.plain.0, &*self.plain.1, &copies, &[]).unwrap();
        let got = execute(&self.device, &*self.program, &self.params, &[]).unwrap();
        for (g, w) in got.iter().zip(&want) {
            assert_eq!(read(g), read(w), "{what}");
        }
    }

    /// Runs until the weight is kept packed.
    fn warm(&self) {
        (0..3).for_each(|_| self.agree("before"));
        assert!(packed(&self.device).0 > 0, "nothing is kept");
    }

    /// New contents for the weight.
    fn fresh(&self, seed: u64) -> Vec<u8> {
        contents(&self.program.program().params[1], seed)
    }
}

fn convolution(dtype: DType, n: i64, ci: i64, co: i64, hw: i64, k: i64, last: bool) -> Graph {
    let window = vec![WindowDim { size: k, pad_lo: k / 2, pad_hi: k / 2, ..WindowDim::UNIT }; 2];
    let mut dims = ConvDims::channels_first(2);
    if last {
        (dims.input_feature, dims.output_feature) = (3, 3);
        (dims.input_spatial, dims.output_spatial) = (Dims::from_slice(&[1, 2]), Dims::from_slice(&[1, 2]));
    }
    graph(|b| {
        let x = if last { [n, hw, hw, ci] } else { [n, ci, hw, hw] };
        let (x, w) = (tensor(b, dtype, &x), tensor(b, dtype, &[co, ci, k, k]));
        vec![b.convolution(x, w, window, dims, 1, 1)]
    })
}

#[test]
fn the_third_run_finds_the_weight_packed_and_bits_stay() {
    let levels = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16];
    for level in levels.into_iter().filter(|&l| l <= isa::current()).collect::<Vec<_>>() {
        isa::set_max(level);
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            for (m, n, k) in [(64, 96, 80), (256, 256, 300), (1000, 70, 33), (65, 1030, 513)] {
                let p = Pair::new(linear(dtype, m, n, k));
                let weight = p.params[1].len();
                for (run, hits) in [0, 0, 1, 2].into_iter().enumerate() {
                    p.agree("same contents");
                    let (bytes, found) = packed(&p.device);
                    assert_eq!(found, hits, "{level:?} {dtype} {m}x{n}x{k}, run {run}");
                    assert_eq!(bytes > 0, run > 0, "{level:?} {dtype} {m}x{n}x{k}, run {run}");
                    assert!(bytes <= weight * 9 / 4 * 5 / 4 + (80 << 10), "{bytes} for {weight}");
                }
            }
        }
    }
}

#[test]
fn convolutions_keep_their_weights() {
    for (dtype, n, ci, co, hw, k, last) in [
        (DType::F32, 2, 16, 32, 32, 3, false),
        (DType::F32, 2, 64, 64, 7, 3, false),
        (DType::F32, 3, 16, 32, 17, 1, false),
        (DType::BF16, 2, 16, 32, 32, 3, false),
        (DType::F64, 2, 40, 16, 12, 3, false),
        (DType::F32, 3, 32, 64, 17, 1, true),
    ] {
        let p = Pair::new(convolution(dtype, n, ci, co, hw, k, last));
        p.warm();
        assert_eq!(packed(&p.device).1, 1, "{dtype} {ci}->{co} {hw} k{k} last {last}");
        p.params[1].write(0, &p.fresh(9)).unwrap();
        (0..4).for_each(|_| p.agree("after a write"));
    }
}

#[test]
fn batches_and_shared_operands() {
    // Every product of the batch has a weight of its own; all have the same one.
    for own in [true, false] {
        let p = Pair::new(graph(|b| {
            let (x, w) =
                (tensor(b, DType::F32, &[6, 40, 50]), tensor(b, DType::F32, &[if own { 6 } else { 1 }, 50, 64]));
            let w = if own { w } else { b.broadcast_to(w, [6, 50, 64]) };
            vec![b.bmm(x, w)]
        }));
        (0..4).for_each(|_| p.agree("batched"));
        assert!(packed(&p.device).0 <= p.params[1].len() * 3 / 2 + 4096);
    }
}

#[test]
fn every_way_of_writing_is_noticed() {
    type Change = fn(&mut Pair);
    let ways: [(&str, Change); 9] = [
        ("a copy from the host", |p| p.params[1].write(0, &p.fresh(7)).unwrap()),
        ("a write of one element through a view", |p| p.params[1].write(100, &3.5f32.to_le_bytes()).unwrap()),
        ("a copy on the device", |p| {
            let from = buffer(&p.device, &p.fresh(8));
            p.params[1].copy_from(&from, from.len()).unwrap();
        }),
        ("zeros", |p| p.params[1].zero()),
        ("an optimizer's step that takes the parameter over", |p| {
            let step = program(&p.device, {
                let mut b = Builder::new("step");
                let w = tensor(&mut b, DType::F32, &[96, 80]);
                let half = b.full_like(w, 0.5);
                let next = b.mul(w, half);
                b.donate(0, 0);
                b.finish(vec![next]).unwrap()
            });
            let old = p.params[1].ptr();
            let results = execute(&p.device, &*step, &p.params[1..], &[]).unwrap();
            assert_eq!(results[0].ptr(), old, "not in place");
        }),
        ("a program's result in its memory", |p| {
            let other = program(
                &p.device,
                graph(|b| {
                    let x = tensor(b, DType::F32, &[96, 80]);
                    vec![b.unary(rsx_compiler::ir::OpKind::Exp, x)]
                }),
            );
            let x = buffer(&p.device, &p.fresh(3));
            other.run(&[x], &[], std::slice::from_ref(&p.params[1])).unwrap();
        }),
        ("a kernel of somebody else", |p| {
            // SAFETY: within the buffer.
            unsafe { p.params[1].write_ptr().cast::<f32>().add(17).write(2.0) };
        }),
        ("another buffer in its place", |p| p.params[1] = buffer(&p.device, &p.fresh(12))),
        ("another buffer at the address of the freed one", |p| {
            let (old, bytes) = (p.params[1].ptr(), p.fresh(11));
            p.params[1] = buffer(&p.device, &[0; 4]);
            p.params[1] = buffer(&p.device, &bytes);
            assert_eq!(p.params[1].ptr(), old, "the pool gave other memory");
        }),
    ];
    for (what, change) in ways {
        let mut p = Pair::new(linear(DType::F32, 64, 96, 80));
        p.warm();
        change(&mut p);
        assert_eq!(packed(&p.device).0, 0, "{what}: the copy has not gone");
        (0..4).for_each(|_| p.agree(what));
        assert!(packed(&p.device).0 > 0, "{what}: kept again");
    }
}

#[test]
fn an_address_given_away_forbids_keeping() {
    let p = Pair::new(linear(DType::F32, 64, 96, 80));
    p.warm();
    let address = p.params[1].expose().cast::<f32>();
    assert_eq!(packed(&p.device).0, 0);
    for n in 0..4 {
        // SAFETY: within the buffer.
        unsafe { address.add(n).write(n as f32) };
        p.agree("through the address");
    }
    assert_eq!(packed(&p.device).0, 0);
}

#[test]
fn what_is_written_every_step_is_never_kept() {
    let p = Pair::new(linear(DType::F32, 64, 96, 80));
    for step in 0..5 {
        p.params[1].write(0, &p.fresh(step)).unwrap();
        p.agree("a step");
    }
    assert_eq!(packed(&p.device), (0, 0));
    // Nor what the program itself writes.
    let device = device();
    let mut b = Builder::new("step");
    let (x, w) = (tensor(&mut b, DType::F32, &[64, 96]), tensor(&mut b, DType::F32, &[96, 96]));
    let y = b.matmul(x, w);
    let half = b.full_like(w, 0.5);
    let next = b.mul(w, half);
    b.donate(1, 1);
    let step = program(&device, b.finish(vec![y, next]).unwrap());
    let params = [buffer(&device, &[1; 64 * 96 * 4]), buffer(&device, &[0; 96 * 96 * 4])];
    for _ in 0..4 {
        params[0].write(0, &[2; 64]).unwrap();
        let results = execute(&device, &*step, &params, &[]).unwrap();
        assert_eq!(results[1].ptr(), params[1].ptr(), "in place");
    }
    assert_eq!(packed(&device), (0, 0));
}

#[test]
fn few_rows_keep_nothing() {
    for m in [1, 2, 8] {
        let p = Pair::new(linear(DType::F32, m, 512, 512));
        (0..4).for_each(|_| p.agree("few rows"));
        // (The portable level has no kernel of few rows.)
        if isa::current() >= Isa::Avx2 {
            assert_eq!(packed(&p.device), (0, 0), "{m} rows");
        }
    }
}

#[test]
fn one_run_alone_is_no_recurrence() {
    let p = Pair::new(graph(|b| {
        let (mut x, w) = (tensor(b, DType::F32, &[64, 96]), tensor(b, DType::F32, &[96, 96]));
        for _ in 0..4 {
            let y = times_transposed(b, x, w);
            x = b.unary(rsx_compiler::ir::OpKind::Tanh, y);
        }
        vec![x]
    }));
    p.agree("first");
    assert_eq!(packed(&p.device), (0, 0), "a weight used four times in one run");
    p.agree("second");
    assert_eq!(packed(&p.device).1, 3);
}

#[test]
fn programs_share_a_copy_and_take_it_along() {
    let p = Pair::new(linear(DType::F32, 64, 96, 80));
    p.warm();
    let one = packed(&p.device).0;
    let other = program(&p.device, linear(DType::F32, 128, 96, 80));
    let x = buffer(&p.device, &vec![1; 128 * 80 * 4]);
    let run = || drop(execute(&p.device, &*other, &[x.clone(), p.params[1].clone()], &[]).unwrap());
    let before = packed(&p.device).1;
    run();
    assert_eq!(packed(&p.device), (one, before + 1), "another number of rows: the same form");
    let Pair { device, program, params, .. } = p;
    drop(program);
    assert_eq!(packed(&device).0, one, "the other program uses it");
    drop(other);
    assert_eq!(packed(&device).0, 0);
    assert_eq!(device.memory().stats().in_use, device.memory().stats().in_use.max(params[1].len()));
}

#[test]
fn no_byte_is_kept_twice() {
    // The weight in two forms, as in a frozen layer's forward and backward pass.
    let p = Pair::new(graph(|b| {
        let (x, w) = (tensor(b, DType::F32, &[64, 80]), tensor(b, DType::F32, &[96, 80]));
        let y = times_transposed(b, x, w);
        vec![b.matmul(y, w)]
    }));
    p.warm();
    (0..3).for_each(|_| p.agree("both forms"));
    assert!(packed(&p.device).0 <= p.params[1].len() * 3 / 2, "{:?} for {}", packed(&p.device), p.params[1].len());
    // Three parts of one weight.
    let p = Pair::new(graph(|b| {
        let (x, w) = (tensor(b, DType::F32, &[64, 80]), tensor(b, DType::F32, &[288, 80]));
        let part = |b: &mut Builder, n: i64| b.slice_dim(w, 0, 96 * n, 96 * n + 96, 1);
        (0..3).map(|n| part(b, n)).collect::<Vec<_>>().into_iter().map(|w| times_transposed(b, x, w)).collect()
    }));
    p.warm();
    assert_eq!(packed(&p.device).1 % 3, 0, "all parts");
}

#[test]
fn memory_comes_first() {
    let p = Pair::new(linear(DType::F32, 64, 96, 80));
    p.warm();
    let stats = p.device.memory().stats();
    assert!(stats.reserved >= stats.in_use + stats.packed);
    p.device.memory().empty_cache();
    assert_eq!(packed(&p.device).0, 0, "given up with the cache");
    p.agree("after that");
    assert!(packed(&p.device).0 > 0, "made again at once");
    p.device.memory().set_limit(Some(1 << 30));
    assert_eq!(packed(&p.device).0, 0, "a limit");
    (0..3).for_each(|_| p.agree("under a limit"));
    assert_eq!(packed(&p.device).0, 0);
}

#[test]
fn threads_with_weights_of_their_own_and_writers() {
    let device = device();
    let plain = forgetful();
    let graph = linear(DType::F32, 64, 96, 80);
    let shared = program(&device, graph.clone());
    let twin = program(&plain, graph);
    let types = &shared.program().params;
    let x = contents(&types[0], 1);
    let common = buffer(&device, &contents(&types[1], 99));
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let (device, plain, shared, twin, x, common) = (&device, &plain, &shared, &twin, &x, &common);
            s.spawn(move || {
                let input = buffer(device, x);
                let mine = buffer(device, &contents(&types[1], t));
                for round in 0..60u64 {
                    if round % 5 == 4 {
                        mine.write(0, &contents(&types[1], t * 1000 + round)).unwrap();
                    }
                    for w in [&mine, common] {
                        input.write(0, x).unwrap();
                        let got = execute(device, &**shared, &[input.clone(), w.clone()], &[]).unwrap();
                        let args = [buffer(plain, x), buffer(plain, &read(w))];
                        let want = execute(plain, &**twin, &args, &[]).unwrap();
                        assert_eq!(read(&got[0]), read(&want[0]), "thread {t}, round {round}");
                    }
                }
            });
        }
    });
    assert!(packed(&device).1 > 100);
    drop((shared, common));
    assert_eq!(packed(&device).0, 0);
}
