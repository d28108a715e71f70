//! An independent check of a program's buffers, from its thunks alone.
//!
//! Replays the program on byte ranges: every range that a thunk reads must have been written before (or be given) and
//! outputs must not touch inputs or each other outside of what [`Thunk`] allows. Used by tests and with verification on.
use crate::program::{KernelCall, Place, Program, Thunk, View};

/// A range of bytes in one of the program's memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    memory: Memory,
    from: u64,
    to: u64,
}

/// Memories that cannot overlap each other. A result in a donated parameter is that parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Param(u32),
    Result(u32),
    Slab,
    Constant,
    Scalar,
}

impl Span {
    fn meets(&self, other: &Span) -> bool {
        self.memory == other.memory && self.from < other.to && other.from < self.to
    }
}

/// The bytes between the first and the last element of a view; `None` if it has no elements.
fn span(program: &Program, view: &View) -> Option<Span> {
    if view.dims.contains(&0) {
        return None;
    }
    let reach = |sign: i64| -> i64 {
        (0..view.dims.len()).map(|i| (view.dims[i] - 1) * view.strides[i]).filter(|&r| r * sign > 0).sum()
    };
    let size = view.dtype.size() as i64;
    let (lo, hi) = ((view.offset + reach(-1)) * size, (view.offset + reach(1) + 1) * size);
    let (memory, base) = match view.place {
        Place::Param(n) => (Memory::Param(n), 0),
        Place::Result(n) => match program.results.get(n as usize).and_then(|r| r.alias) {
            Some(p) => (Memory::Param(p), 0),
            None => (Memory::Result(n), 0),
        },
        Place::Slab { offset } => (Memory::Slab, offset as i64),
        Place::Constant { offset } => (Memory::Constant, offset as i64),
        Place::Scalar(n) => (Memory::Scalar, i64::from(n) * 8),
    };
    Some(Span { memory, from: (base + lo).max(0) as u64, to: (base + hi).max(0) as u64 })
}

/// First fault found, or nothing.
pub fn check(program: &Program) -> Result<(), String> {
    let mut written: Vec<Span> = Vec::new();
    for (t, thunk) in program.thunks.iter().enumerate() {
        let fail = |what: String| Err(format!("thunk {t}: {what}"));
        let (reads, writes) = operands(thunk);
        for view in reads.iter().chain(&writes) {
            if let Some(s) = span(program, view) {
                let size = match s.memory {
                    Memory::Param(n) => program.params[n as usize].bytes(),
                    Memory::Result(n) => program.results[n as usize].ty.bytes(),
                    Memory::Slab => program.slab_bytes,
                    Memory::Constant => program.constants.len() as u64,
                    Memory::Scalar => u64::from(program.n_scalars) * 8,
                };
                if s.to > size {
                    return fail(format!("{view:?} ends at {} of {size} bytes", s.to));
                }
            }
        }
        for view in &reads {
            let Some(s) = span(program, view) else { continue };
            let given = matches!(s.memory, Memory::Param(_) | Memory::Constant | Memory::Scalar);
            if !given && !covered(&s, &written) {
                return fail(format!("{view:?} is read before it is written"));
            }
        }
        let in_place = match thunk {
            Thunk::Library { op, .. } => {
                matches!(op, crate::ir::OpKind::Scatter | crate::ir::OpKind::DynamicUpdateSlice)
            }
            Thunk::Kernel(_) | Thunk::Copy { .. } | Thunk::Group(_) => false,
        };
        for (i, w) in writes.iter().enumerate() {
            let Some(s) = span(program, w) else { continue };
            if matches!(w.place, Place::Constant { .. } | Place::Scalar(_) | Place::Param(_)) {
                return fail(format!("writes {:?}", w.place));
            }
            for r in &reads {
                let Some(x) = span(program, r) else { continue };
                let same = x.from == s.from && x.to == s.to && x.memory == s.memory;
                let allowed = same && (in_place || may_alias(program, thunk, r, w));
                if x.meets(&s) && !allowed {
                    return fail(format!("writes {w:?} over its own input {r:?}"));
                }
            }
            for other in writes.iter().skip(i + 1) {
                if span(program, other).is_some_and(|o| o.meets(&s)) {
                    return fail(format!("writes {w:?} and {other:?}"));
                }
            }
            written.push(s);
        }
    }
    for (n, r) in program.results.iter().enumerate() {
        let unchanged = r.alias.is_some();
        let view = View::dense(Place::Result(n as u32), &r.ty);
        if let Some(s) = span(program, &view).filter(|_| !unchanged) {
            if !covered(&s, &written) {
                return Err(format!("result {n} is not written"));
            }
        }
    }
    Ok(())
}

/// A loop or epilogue may write over an input it reads at the same index only.
fn may_alias(program: &Program, thunk: &Thunk, read: &View, write: &View) -> bool {
    use crate::ir::FusionKind;
    let call: &KernelCall = match thunk {
        Thunk::Kernel(call) => call,
        Thunk::Library { epilogue: Some(call), .. } => call,
        Thunk::Library { .. } | Thunk::Copy { .. } | Thunk::Group(_) => return false,
    };
    let spec = &program.kernels[call.kernel as usize];
    if !matches!(spec.kind, FusionKind::Loop | FusionKind::Epilogue) {
        return false;
    }
    let same = super::same_index_params(&spec.body);
    let tensors = (0..spec.body.params.len()).filter(|&i| spec.body.params[i].kind == crate::ir::ParamKind::Tensor);
    tensors.zip(&call.inputs).all(|(i, input)| input != read || same[i]) && write.dims == read.dims
}

/// Everything a thunk reads and writes.
fn operands(thunk: &Thunk) -> (Vec<View>, Vec<View>) {
    match thunk {
        Thunk::Kernel(call) => (call.inputs.clone(), call.outputs.clone()),
        Thunk::Library { inputs, outputs, epilogue, .. } => {
            let extra = epilogue.iter().flat_map(|call| call.inputs[1..].iter().cloned());
            (inputs.iter().cloned().chain(extra).collect(), outputs.clone())
        }
        Thunk::Copy { from, to } => (vec![from.clone()], vec![to.clone()]),
        Thunk::Group(calls) => (
            calls.iter().flat_map(|c| c.inputs.iter().cloned()).collect(),
            calls.iter().flat_map(|c| c.outputs.iter().cloned()).collect(),
        ),
    }
}

/// `s` lies within the union of `written`.
fn covered(s: &Span, written: &[Span]) -> bool {
    let mut parts: Vec<(u64, u64)> = written.iter().filter(|w| w.meets(s)).map(|w| (w.from, w.to)).collect();
    parts.sort_unstable();
    let mut at = s.from;
    for (from, to) in parts {
        if from > at {
            return false;
        }
        at = at.max(to);
    }
    at >= s.to
}
