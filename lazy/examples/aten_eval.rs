//! Evaluates single recorded ops by their lowering and the reference interpreter: one call per input line, one result
//! per output line, both JSON. `tests/witness/aten.py` writes the calls and compares the results with eager PyTorch.
//!
//! With the argument `names` it prints the rows of the ATen table instead: the overloads of one row per line.
use rsx_compiler::interp::{self, Tensor};
use rsx_compiler::ir::{ParamKind, encode_i64};
use rsx_lazy::MAX_RANK;
use rsx_lazy::aten::{rows, structural};
use rsx_lazy::lower::{GraphPiece, Piece, lower};
use rsx_lazy::record::Limits;
use rsx_lazy::words::Tag;
use rsx_lazy::{
    FrameId, Node, OpTable, OutKind, OutMeta, Recorder, RetInfo, SegmentSink, SigFlags, Storage, StorageUse, Trace,
};
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::Arc;

type Fallible<T> = Result<T, String>;

struct Ignore;

impl SegmentSink for Ignore {
    fn submit(&self, _: Trace, _: Vec<bool>, _: &'static str, _: FrameId) {}
}

/// The flat record of a call, as the shim would write it.
#[derive(Default)]
struct Record {
    words: Vec<u64>,
    data: Vec<u64>,
}

fn int(j: &Json) -> u64 {
    j.as_u64().unwrap_or_else(|| j.as_i64().unwrap_or_default() as u64)
}

fn ints(j: &Json) -> Vec<u64> {
    j.as_array().into_iter().flatten().map(int).collect()
}

fn bytes(j: &Json) -> Fallible<Vec<u8>> {
    let s = j.as_str().unwrap_or_default();
    (0..s.len() / 2).map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).map_err(|e| e.to_string())).collect()
}

fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

impl Record {
    fn header(&mut self, tag: Tag, lo: u64, hi: usize) {
        self.words.push(tag.header(lo as u32, hi as u32));
    }

    fn plain_list(&mut self, tag: Tag, list: Vec<u64>) {
        self.header(tag, 0, list.len());
        self.words.extend(list);
    }

    fn list(&mut self, tag: Tag, list: &[Json], op: &str, name: &str) -> Fallible<()> {
        self.header(tag, 0, list.len());
        list.iter().try_for_each(|a| self.arg(a, op, name))
    }

    /// A number whose encoding the table decides: kind and bits.
    fn number(&mut self, n: &Json, op: &str, name: &str) {
        let (kind, bits) = (n[0].as_str().unwrap_or_default(), int(&n[1]));
        let in_words = structural::is_structural(op, name, kind == "int");
        match (kind, in_words) {
            ("bool", true) => self.header(Tag::Bool, bits, 0),
            ("int", true) => {
                self.header(Tag::Int, 0, 0);
                self.words.push(bits);
            }
            (_, true) => {
                self.header(Tag::Double, 0, 0);
                self.words.push(bits);
            }
            (kind, false) => {
                let tag = match kind {
                    "bool" => Tag::DataBool,
                    "int" => Tag::DataInt,
                    _ => Tag::DataDouble,
                };
                self.header(tag, 0, 0);
                self.data.push(bits);
            }
        }
    }

    fn arg(&mut self, a: &Json, op: &str, name: &str) -> Fallible<()> {
        let Some((kind, v)) = a.as_object().and_then(|o| o.iter().next()) else {
            self.header(Tag::None, 0, 0);
            return Ok(());
        };
        let array = || v.as_array().map(Vec::as_slice).unwrap_or_default();
        match kind.as_str() {
            "undef" => self.header(Tag::Undef, 0, 0),
            "tensor" => {
                // [storage, dtype, wrapped, offset, sizes, strides]
                let sizes = ints(&v[4]);
                self.header(
                    Tag::Tensor,
                    int(&v[1]) | (sizes.len() as u64) << 8 | int(&v[2]) << 16,
                    int(&v[0]) as usize,
                );
                self.words.push(int(&v[3]));
                self.words.extend(sizes);
                self.words.extend(ints(&v[5]));
            }
            "cpu" => {
                // [dtype, wrapped, raw]
                self.header(Tag::CpuScalar, int(&v[0]) | int(&v[1]) << 16, 0);
                self.data.push(int(&v[2]));
            }
            "int" => {
                self.header(Tag::Int, 0, 0);
                self.words.push(int(v));
            }
            "bool" => self.header(Tag::Bool, u64::from(v.as_bool().unwrap_or_default()), 0),
            "number" => self.number(v, op, name),
            "ints" => self.plain_list(Tag::IntList, ints(v)),
            "bools" => self.plain_list(Tag::BoolList, ints(v)),
            "doubles" => self.plain_list(Tag::DoubleList, ints(v)),
            "list" => self.list(Tag::TensorList, array(), op, name)?,
            "optional" => self.list(Tag::OptTensorList, array(), op, name)?,
            "scalars" => self.list(Tag::ScalarList, array(), op, name)?,
            "str" => {
                let s = v.as_str().unwrap_or_default().as_bytes();
                self.header(Tag::Str, 0, s.len());
                for chunk in s.chunks(8) {
                    let mut w = [0; 8];
                    w[..chunk.len()].copy_from_slice(chunk);
                    self.words.push(u64::from_le_bytes(w));
                }
            }
            "rng" => {
                self.header(Tag::Rng, 0, 0);
                self.data.extend(ints(v));
            }
            other => return Err(format!("argument kind {other}")),
        }
        Ok(())
    }
}

fn out_meta(o: &Json) -> OutMeta {
    let mut meta = OutMeta {
        sizes: [0; MAX_RANK],
        strides: [0; MAX_RANK],
        nbytes: int(&o["nbytes"]),
        rank: 0,
        dtype: int(&o["dtype"]) as u8,
        kind: match o["kind"].as_str() {
            Some("fresh") => OutKind::Fresh,
            Some("list") => OutKind::List,
            Some("int") => OutKind::Int,
            _ => OutKind::Undef,
        },
        pad: [0; 5],
    };
    let (sizes, strides) = (ints(&o["sizes"]), ints(&o["strides"]));
    meta.rank = sizes.len() as u8;
    for (i, (n, s)) in sizes.into_iter().zip(strides).enumerate() {
        (meta.sizes[i], meta.strides[i]) = (n as i64, s as i64);
    }
    meta
}

/// A trace of one node over fresh storages, and the contents of those that existed before.
fn trace_of(call: &Json) -> Fallible<(Trace, HashMap<u32, Vec<u8>>)> {
    let name = call["op"].as_str().ok_or("no op")?;
    let mut record = Record { words: vec![rsx_lazy::op::op_hash(name)], ..Record::default() };
    let names = call["names"].as_array().ok_or("no names")?;
    for (i, a) in call["args"].as_array().ok_or("no args")?.iter().enumerate() {
        record.arg(a, name, names.get(i).and_then(Json::as_str).unwrap_or_default())?;
    }
    let written: Vec<bool> = ints(&call["written"]).into_iter().map(|w| w != 0).collect();
    let op = OpTable::default().register(name, &written, &[] as &[RetInfo]);
    let outs: Vec<OutMeta> = call["outs"].as_array().into_iter().flatten().map(out_meta).collect();
    let recorder = Recorder::new(Arc::new(Ignore), Limits::default());
    let sig = recorder.insert(op, &record.words, &outs, SigFlags::default());
    let (mut storages, mut contents, mut refs) = (Vec::new(), HashMap::new(), Vec::new());
    let mut add = |nbytes: usize, created: bool| {
        refs.push(storages.len() as u32);
        storages.push(StorageUse { storage: Storage::shadow(nbytes), created, written: created });
        refs.len() as u32 - 1
    };
    for s in call["storages"].as_array().into_iter().flatten() {
        let b = bytes(s)?;
        contents.insert(add(b.len(), false), b);
    }
    let inputs = contents.len() as u32;
    for o in outs.iter().filter(|o| o.kind == OutKind::Fresh) {
        add(o.nbytes as usize, true);
    }
    let node = Node {
        sig,
        inputs: 0..inputs,
        outputs: inputs..refs.len() as u32,
        data: 0..record.data.len() as u32,
        frame: FrameId::default(),
    };
    Ok((Trace { nodes: vec![node], storages, refs, data: record.data, ..Trace::default() }, contents))
}

/// Contents of the storages that a piece writes.
fn run(piece: &GraphPiece, trace: &Trace, contents: &HashMap<u32, Vec<u8>>) -> Fallible<Vec<Tensor>> {
    let (mut inputs, mut scalars) = (piece.inputs.iter(), piece.scalars.iter());
    let mut args = Vec::new();
    for p in &piece.graph.params {
        let bytes = match p.kind {
            ParamKind::Tensor => {
                let i = inputs.next().ok_or("too few inputs")?;
                contents.get(i).cloned().unwrap_or_else(|| vec![0; p.ty.bytes() as usize])
            }
            ParamKind::Scalar => {
                let s = scalars.next().ok_or("too few scalars")?;
                encode_i64(rsx_compiler::ir::DType::I64, s.kind.value(trace.data[s.word as usize]) as i64).to_vec()
            }
        };
        // A storage may hold a rest that makes no whole element.
        let bytes = bytes[..(p.ty.bytes() as usize).min(bytes.len())].to_vec();
        args.push(Tensor { ty: p.ty.clone(), bytes });
    }
    interp::eval(&piece.graph, &args).map_err(|e| e.to_string())
}

fn answer(line: &str) -> Fallible<Json> {
    let call: Json = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let (trace, contents) = trace_of(&call)?;
    let live = vec![true; trace.storages.len()];
    let pieces = lower(&trace, &live).map_err(|e| e.to_string())?;
    let mut results = serde_json::Map::new();
    for piece in &pieces {
        match piece {
            Piece::Call { why, .. } => return Ok(json!({ "declined": why.to_string() })),
            Piece::Graph(g) => {
                for (i, t) in g.outputs.iter().zip(run(g, &trace, &contents)?) {
                    results.insert(i.to_string(), json!(hex(&t.bytes)));
                }
            }
        }
    }
    Ok(json!({ "storages": results }))
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if std::env::args().nth(1).as_deref() == Some("names") {
        for row in rows() {
            writeln!(out, "{}", row.names.join(" "))?;
        }
        return Ok(());
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let result = std::panic::catch_unwind(|| answer(&line)).unwrap_or_else(|_| Err("panic".into()));
        writeln!(out, "{}", result.unwrap_or_else(|e| json!({ "error": e })))?;
    }
    Ok(())
}
