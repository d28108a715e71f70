//! Random traces of in-place and functional ops on views of a few storages, with ops that have no lowering between
//! them, against plain loops over the same buffers.
use rsx_compiler::interp::{self, Tensor};
use rsx_compiler::ir::{ParamKind, TensorType};
use rsx_lazy::MAX_RANK;
use rsx_lazy::lower::{GraphPiece, Piece, lower};
use rsx_lazy::record::Limits;
use rsx_lazy::words::Tag;
use rsx_lazy::{
    FrameId, Node, OpInfo, OpTable, OutKind, OutMeta, Recorder, ScalarType, SegmentSink, SigFlags, Storage, StorageUse,
    Trace,
};
use std::sync::Arc;

struct Ignore;

impl SegmentSink for Ignore {
    fn submit(&self, _: Trace, _: Vec<bool>, _: &'static str, _: FrameId) {}
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Elements of every storage that exists before the trace, and the sizes of every operand.
const ELEMENTS: i64 = 24;
const SIZES: [i64; 2] = [2, 3];
/// Strides of views that write no element twice.
const STRIDES: [[i64; 2]; 8] = [[3, 1], [1, 2], [6, 2], [12, 4], [12, 1], [4, 1], [1, 8], [7, 2]];

#[derive(Clone, Debug)]
struct View {
    storage: usize,
    strides: [i64; 2],
    offset: i64,
}

impl View {
    fn positions(&self) -> Vec<usize> {
        (0..SIZES[0])
            .flat_map(|i| {
                (0..SIZES[1]).map(move |j| (self.offset + i * self.strides[0] + j * self.strides[1]) as usize)
            })
            .collect()
    }
}

/// One op: reads come first in the record, then (in-place ops) nothing else; functional ops make a storage.
#[derive(Clone, Debug)]
struct Call {
    name: &'static str,
    args: Vec<View>,
    /// Number by value, if it takes one.
    number: Option<i64>,
    /// The fresh storage's number.
    fresh: Option<usize>,
}

/// What the ops compute, element by element.
fn meaning(call: &Call, memory: &[Vec<i64>]) -> Vec<i64> {
    let read = |k: usize| -> Vec<i64> {
        call.args.get(k).map_or_else(Vec::new, |v| v.positions().iter().map(|&p| memory[v.storage][p]).collect())
    };
    let (x, y, n) = (read(0), read(1), call.number.unwrap_or(0));
    match call.name {
        "aten::add.Tensor" => x.iter().zip(&y).map(|(a, b)| a.wrapping_add(b.wrapping_mul(n))).collect(),
        "aten::mul_.Tensor" => x.iter().zip(&y).map(|(a, b)| a.wrapping_mul(*b) % 97).collect(),
        "aten::copy_" => y,
        "aten::fill_.Scalar" => vec![n; x.len()],
        "aten::bitwise_xor_.Tensor" => x.iter().zip(&y).map(|(a, b)| a ^ b).collect(),
        "test::frob_" => x.iter().zip(&y).map(|(a, b)| a.wrapping_mul(2).wrapping_add(*b)).collect(),
        other => panic!("{other}"),
    }
}

fn run(call: &Call, memory: &mut [Vec<i64>]) {
    let values = meaning(call, memory);
    match call.fresh {
        Some(f) => memory[f] = values,
        None => {
            let target = &call.args[0];
            for (p, v) in target.positions().into_iter().zip(values) {
                memory[target.storage][p] = v;
            }
        }
    }
}

struct Session {
    table: OpTable,
    recorder: Recorder,
    trace: Trace,
}

impl Session {
    fn op(&self, name: &str) -> Arc<OpInfo> {
        let in_place = name.split('.').next().is_some_and(|n| n.ends_with('_'));
        self.table.register(name, &[in_place, false, false], &[])
    }

    fn add_storage(&mut self, elements: i64, created: bool) {
        let storage = Storage::shadow(elements as usize * 8);
        self.trace.storages.push(StorageUse { storage, created, written: created });
    }

    fn record(&mut self, call: &Call) {
        let op = self.op(call.name);
        let mut words = vec![op.hash];
        let start = self.trace.refs.len() as u32;
        let data_start = self.trace.data.len() as u32;
        for (k, v) in call.args.iter().enumerate() {
            words.push(Tag::Tensor.header(u32::from(ScalarType::I64.0) | 2 << 8, k as u32));
            words.push(v.offset as u64);
            words.extend(SIZES.iter().chain(&v.strides).map(|&n| n as u64));
            self.trace.refs.push(v.storage as u32);
        }
        if let Some(n) = call.number {
            words.push(Tag::DataInt.header(0, 0));
            self.trace.data.push(n as u64);
        }
        let mid = self.trace.refs.len() as u32;
        let mut outs = Vec::new();
        if let Some(f) = call.fresh {
            let mut o = OutMeta {
                sizes: [0; MAX_RANK],
                strides: [0; MAX_RANK],
                nbytes: 48,
                rank: 2,
                dtype: ScalarType::I64.0,
                kind: OutKind::Fresh,
                pad: [0; 5],
            };
            o.sizes[..2].copy_from_slice(&SIZES);
            o.strides[..2].copy_from_slice(&[3, 1]);
            outs.push(o);
            self.trace.refs.push(f as u32);
        }
        let sig = self.recorder.insert(op, &words, &outs, SigFlags::default());
        let end = self.trace.refs.len() as u32;
        let data = data_start..self.trace.data.len() as u32;
        self.trace.nodes.push(Node { sig, inputs: start..mid, outputs: mid..end, data, frame: FrameId::default() });
    }
}

fn random_calls(r: &mut Random, existing: usize, n: usize) -> (Vec<Call>, Vec<i64>) {
    let mut elements = vec![ELEMENTS; existing];
    let mut calls = Vec::new();
    for _ in 0..n {
        let mut view = |elements: &[i64]| loop {
            let storage = r.below(elements.len());
            let strides = STRIDES[r.below(STRIDES.len())];
            let span = strides[0] + 2 * strides[1];
            if span < elements[storage] {
                let offset = r.below((elements[storage] - span) as usize) as i64;
                return View { storage, strides, offset };
            }
        };
        let args = vec![view(&elements), view(&elements)];
        let (name, number, fresh) = match r.below(7) {
            0 | 1 => ("aten::add.Tensor", Some(r.below(3) as i64), true),
            2 => ("aten::copy_", None, false),
            3 => ("aten::fill_.Scalar", Some(r.below(50) as i64), false),
            4 | 5 => ("aten::bitwise_xor_.Tensor", None, false),
            _ => ("test::frob_", None, false),
        };
        let fresh = fresh.then(|| {
            elements.push(6);
            elements.len() - 1
        });
        let args = if name == "aten::fill_.Scalar" { args[..1].to_vec() } else { args };
        calls.push(Call { name, args, number, fresh });
    }
    (calls, elements)
}

fn eval(piece: &GraphPiece, trace: &Trace, memory: &mut [Vec<i64>]) {
    let (mut inputs, mut scalars) = (piece.inputs.iter(), piece.scalars.iter());
    let args: Vec<Tensor> = piece
        .graph
        .params
        .iter()
        .map(|p| {
            let values = match p.kind {
                ParamKind::Tensor => memory[*inputs.next().expect("an input") as usize].clone(),
                ParamKind::Scalar => {
                    let s = scalars.next().expect("a scalar");
                    vec![s.kind.value(trace.data[s.word as usize]) as i64]
                }
            };
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            Tensor { ty: TensorType::new(p.ty.dtype, &p.ty.dims), bytes }
        })
        .collect();
    let results = interp::eval(&piece.graph, &args).unwrap_or_else(|e| panic!("{e}\n{}", piece.graph));
    for (&i, t) in piece.outputs.iter().zip(results) {
        memory[i as usize] =
            t.bytes.chunks(8).map(|c| i64::from_le_bytes(c.try_into().expect("eight bytes"))).collect();
    }
    for p in piece.graph.params.iter().filter_map(|p| p.donate_to) {
        assert!((p as usize) < piece.outputs.len(), "donation to a result");
    }
}

#[test]
fn random_traces_equal_plain_loops() {
    let mut r = Random(0x9876_5432_1234_5678);
    let mut calls_seen = 0;
    for round in 0..300 {
        let existing = 1 + r.below(3);
        let n = 1 + r.below(14);
        let (calls, elements) = random_calls(&mut r, existing, n);
        let mut s = Session {
            table: OpTable::default(),
            recorder: Recorder::new(Arc::new(Ignore), Limits::default()),
            trace: Trace::default(),
        };
        for (i, &e) in elements.iter().enumerate() {
            s.add_storage(e, i >= existing);
        }
        calls.iter().for_each(|c| s.record(c));
        let mut want: Vec<Vec<i64>> = elements.iter().map(|&e| (0..e).map(|i| i * 7 % 31 + 1).collect()).collect();
        let mut got = want.clone();
        calls.iter().for_each(|c| run(c, &mut want));
        let live: Vec<bool> = (0..elements.len()).map(|i| i < existing || r.below(3) > 0).collect();
        for piece in lower(&s.trace, &live).expect("the trace lowers") {
            match piece {
                Piece::Graph(g) => eval(&g, &s.trace, &mut got),
                Piece::Call { node, .. } => {
                    calls_seen += 1;
                    run(&calls[node], &mut got);
                }
            }
        }
        for i in (0..elements.len()).filter(|&i| live[i]) {
            assert_eq!(got[i], want[i], "round {round}, storage {i} after {calls:#?}");
        }
    }
    assert!(calls_seen > 50, "call nodes between pieces were tried");
}

/// Nanoseconds that this thread has spent on a processor: what others do does not count.
fn on_processor() -> u64 {
    // The kernel's account is brought up to date then, not only at the next tick of its clock.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
}

/// Work per element of a multi-tensor op must not grow with their number.
#[test]
fn long_lists_lower_in_linear_time() {
    let time = |n: usize| {
        let table = OpTable::default();
        let op = table.register("aten::_foreach_add_.Scalar", &[true, false], &[]);
        let recorder = Recorder::new(Arc::new(Ignore), Limits::default());
        let mut trace = Trace::default();
        let mut words = vec![op.hash, Tag::TensorList.header(0, n as u32)];
        for k in 0..n {
            words.push(Tag::Tensor.header(u32::from(ScalarType::I64.0) | 1 << 8, k as u32));
            words.extend([0, 6, 1]);
            trace.refs.push(k as u32);
            trace.storages.push(StorageUse { storage: Storage::shadow(48), created: false, written: true });
        }
        words.push(Tag::DataInt.header(0, 0));
        trace.data.push(3);
        let sig = recorder.insert(op, &words, &[], SigFlags::default());
        let end = n as u32;
        trace.nodes.push(Node { sig, inputs: 0..end, outputs: end..end, data: 0..1, frame: FrameId::default() });
        let start = on_processor();
        let pieces = lower(&trace, &vec![true; n]).expect("the trace lowers");
        assert!(matches!(&pieces[..], [Piece::Graph(g)] if g.outputs.len() == n), "one piece");
        (on_processor() - start) as f64
    };
    // Quadratic work would show as a factor of 64.
    let best = |n| (0..3).map(|_| time(n)).fold(f64::INFINITY, f64::min);
    let (small, large) = (best(1_000), best(8_000));
    assert!(large < 32.0 * small, "8 times the tensors took {:.0} times as long", large / small);
}
