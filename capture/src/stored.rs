//! Compiled segments as bytes, for the disk cache. What is read is checked against the trace it is to serve: the entry
//! may come from a hash that collided or from a bug, and a wrong index must not reach the executor.
use crate::Backend;
use crate::key::Key;
use crate::schedule::Schedule;
use crate::segment::{CompiledSegment, GraphStep, Step, StepKind};
use rsx_lazy::{ScalarSource, Trace};
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;

#[derive(Serialize, Deserialize)]
struct StoredSegment<'a> {
    /// Ingredients of the key: the file's name is only a hash of them.
    key: Vec<u128>,
    #[serde(borrow)]
    steps: Vec<StoredStep<'a>>,
}

#[derive(Serialize, Deserialize)]
struct StoredStep<'a> {
    from: u32,
    to: u32,
    #[serde(borrow)]
    kind: StoredKind<'a>,
}

#[derive(Serialize, Deserialize)]
enum StoredKind<'a> {
    Graph { runnable: &'a [u8], inputs: Vec<u32>, scalars: Vec<ScalarSource>, outputs: Vec<u32> },
    Call { reason: String },
}

/// The bytes of a compiled segment; none if the device cannot store its programs.
pub(crate) fn to_bytes(key: &Key, segment: &CompiledSegment) -> Option<Vec<u8>> {
    let graphs = segment.steps.iter().map(|s| match &s.kind {
        StepKind::Graph(g) => g.runnable.to_bytes(),
        StepKind::Call { .. } => Some(Vec::new()),
    });
    let graphs: Vec<Vec<u8>> = graphs.collect::<Option<_>>()?;
    let steps = segment.steps.iter().zip(&graphs).map(|(s, bytes)| StoredStep {
        from: s.nodes.start as u32,
        to: s.nodes.end as u32,
        kind: match &s.kind {
            StepKind::Graph(g) => StoredKind::Graph {
                runnable: bytes,
                inputs: g.inputs.clone(),
                scalars: g.scalars.clone(),
                outputs: g.outputs.clone(),
            },
            StepKind::Call { reason } => StoredKind::Call { reason: reason.clone() },
        },
    });
    postcard::to_allocvec(&StoredSegment { key: key.parts().to_vec(), steps: steps.collect() }).ok()
}

/// The compiled segment in `bytes`, if it is that of `key` and fits `trace`.
pub(crate) fn from_bytes(
    bytes: &[u8],
    key: &Key,
    trace: &Trace,
    schedule: &Schedule,
    backend: &dyn Backend,
) -> Result<CompiledSegment, String> {
    let stored: StoredSegment = postcard::from_bytes(bytes).map_err(|e| e.to_string())?;
    if stored.key != key.parts() {
        return Err("it belongs to another key".into());
    }
    let mut at = 0;
    let mut steps = Vec::with_capacity(stored.steps.len());
    for s in stored.steps {
        let (from, to) = (s.from as usize, s.to as usize);
        if from < at || to < from || to > trace.nodes.len() {
            return Err(format!("its ops {from} to {to} do not fit"));
        }
        at = to;
        let kind = match s.kind {
            StoredKind::Call { .. } if to != from + 1 => return Err("a call of several ops".into()),
            StoredKind::Call { reason } => StepKind::Call { reason },
            StoredKind::Graph { runnable, inputs, scalars, outputs } => {
                let storage = |&i: &u32| (i as usize) < trace.storages.len();
                let word = |s: &ScalarSource| (s.word as usize) < trace.data.len();
                if !(inputs.iter().all(storage) && outputs.iter().all(storage) && scalars.iter().all(word)) {
                    return Err("an operand that the trace does not have".into());
                }
                let runnable = backend.restore(runnable)?;
                if runnable.arity() != (inputs.len(), scalars.len(), outputs.len()) {
                    return Err("a program with other operands".into());
                }
                StepKind::Graph(GraphStep { runnable, inputs, scalars, outputs })
            }
        };
        steps.push(Step { kind, nodes: from..to, frees: schedule.frees_in(&(from..to)).to_vec() });
    }
    Ok(CompiledSegment { steps, started: AtomicBool::new(false) })
}
