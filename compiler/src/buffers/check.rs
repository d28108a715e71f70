//! An independent check of a program's buffers, from its thunks alone.
//!
//! Replays the program on byte ranges: every range that a thunk reads must have been written before (or be given) and
//! outputs must not touch inputs or each other outside of what [`Thunk`] allows. Used by tests and with verification on.
use crate::ir::{OpKind, ParamKind};
use crate::program::depend::{Span, span};
use crate::program::{KernelCall, Place, Program, Thunk, View};
use ahash::AHashSet;

/// What one call of a thunk touches.
struct Access<'p> {
    reads: Vec<View>,
    /// Inputs that must not be written over: operands of a contraction with an epilogue.
    apart: Vec<View>,
    writes: Vec<View>,
    /// Writing over an input that this kernel reads at the same index only is allowed.
    call: Option<&'p KernelCall>,
    /// Writing over inputs is what the op does.
    in_place: bool,
}

/// First fault found, or nothing.
pub fn check(program: &Program) -> Result<(), String> {
    let mut written: Vec<Span> = Vec::new();
    for (t, thunk) in program.thunks.iter().enumerate() {
        let accesses = accesses(thunk);
        let mut all: Vec<Span> = Vec::new();
        for a in &accesses {
            check_access(program, a, &written).map_err(|what| format!("thunk {t}: {what}"))?;
            let writes: Vec<Span> = a.writes.iter().filter_map(|w| span(program, w)).collect();
            let reads: Vec<Span> = a.reads.iter().chain(&a.apart).filter_map(|w| span(program, w)).collect();
            // Calls of a group run in any order.
            if writes.iter().chain(&reads).any(|s| all.iter().any(|o| o.meets(s))) {
                return Err(format!("thunk {t}: a call of the group touches what another writes"));
            }
            all.extend(writes);
        }
        written.extend(all);
        if let Thunk::Library { inputs, outputs, epilogue, work: Some(work), .. } = thunk {
            let Some(s) = span(program, work) else { continue };
            let more = epilogue.iter().flat_map(|call| &call.inputs[1..]);
            let mut touched = inputs.iter().chain(outputs).chain(more).filter_map(|v| span(program, v));
            if s.to > program.slab_bytes || touched.any(|o| o.meets(&s)) {
                return Err(format!("thunk {t}: its work memory {work:?} is not its own"));
            }
            forget(&mut written, &s);
        }
    }
    for (n, r) in program.results.iter().enumerate() {
        let unchanged = r.alias.is_some();
        let view = View::dense(Place::Result(n as u32), &r.ty);
        if let Some(s) = span(program, &view).filter(|_| !unchanged)
            && !covered(&s, &written)
        {
            return Err(format!("result {n} is not written"));
        }
    }
    Ok(())
}

fn check_access(program: &Program, a: &Access<'_>, written: &[Span]) -> Result<(), String> {
    for view in a.reads.iter().chain(&a.apart).chain(&a.writes) {
        if let Some(s) = span(program, view) {
            let size = match s.memory {
                Place::Param(n) => program.params[n as usize].bytes(),
                Place::Result(n) => program.results[n as usize].ty.bytes(),
                Place::Slab { .. } => program.slab_bytes,
                Place::Constant { .. } => program.constants.len() as u64,
                Place::Scalar(_) => u64::from(program.n_scalars) * 8,
            };
            if s.to > size {
                return Err(format!("{view:?} ends at {} of {size} bytes", s.to));
            }
        }
    }
    for view in a.reads.iter().chain(&a.apart) {
        let Some(s) = span(program, view) else { continue };
        let given = matches!(s.memory, Place::Param(_) | Place::Constant { .. } | Place::Scalar(_));
        if !given && !covered(&s, written) {
            return Err(format!("{view:?} is read before it is written"));
        }
    }
    for (i, w) in a.writes.iter().enumerate() {
        let Some(s) = span(program, w) else { continue };
        if matches!(w.place, Place::Constant { .. } | Place::Scalar(_) | Place::Param(_)) {
            return Err(format!("writes {:?}", w.place));
        }
        for r in &a.reads {
            let Some(x) = span(program, r) else { continue };
            let allowed = x == s && (a.in_place || a.call.is_some_and(|call| may_alias(program, call, r, w)));
            if x.meets(&s) && !allowed {
                return Err(format!("writes {w:?} over its own input {r:?}"));
            }
        }
        if let Some(r) = a.apart.iter().find(|r| span(program, r).is_some_and(|x| x.meets(&s))) {
            return Err(format!("writes {w:?} over its own operand {r:?}"));
        }
        for other in a.writes.iter().skip(i + 1) {
            if span(program, other).is_some_and(|o| o.meets(&s)) && !interleaved(w, other) {
                return Err(format!("writes {w:?} and {other:?}"));
            }
        }
    }
    Ok(())
}

/// A kernel may write over an input it reads at the same index only.
fn may_alias(program: &Program, call: &KernelCall, read: &View, write: &View) -> bool {
    let spec = &program.kernels[call.kernel as usize];
    let same = super::same_index_params(spec.kind, &spec.body);
    let tensors = (0..spec.body.params.len()).filter(|&i| spec.body.params[i].kind == ParamKind::Tensor);
    tensors.zip(&call.inputs).all(|(i, input)| input != read || same[i]) && write.dims == read.dims
}

fn accesses(thunk: &Thunk) -> Vec<Access<'_>> {
    fn kernel(call: &KernelCall) -> Access<'_> {
        Access {
            reads: call.inputs.clone(),
            apart: vec![],
            writes: call.outputs.clone(),
            call: Some(call),
            in_place: false,
        }
    }
    match thunk {
        Thunk::Kernel(call) => vec![kernel(call)],
        Thunk::Group(calls) => calls.iter().map(kernel).collect(),
        Thunk::Library { op, inputs, outputs, epilogue, .. } => {
            let in_place = matches!(op, OpKind::Scatter | OpKind::DynamicUpdateSlice);
            let extra: Vec<View> = epilogue.iter().flat_map(|call| call.inputs[1..].iter().cloned()).collect();
            let (reads, apart) = if in_place { (inputs.clone(), vec![]) } else { (extra, inputs.clone()) };
            vec![Access { reads, apart, writes: outputs.clone(), call: epilogue.as_ref(), in_place }]
        }
        Thunk::Copy { from, to, .. } => {
            vec![Access {
                reads: vec![],
                apart: vec![from.clone()],
                writes: vec![to.clone()],
                call: None,
                in_place: false,
            }]
        }
    }
}

/// Most elements of views that are compared one by one.
const COMPARED: i64 = 1 << 16;

/// Strided views of one memory that share no element. (Large ones are trusted to.)
fn interleaved(a: &View, b: &View) -> bool {
    let numel = |v: &View| v.dims.iter().product::<i64>();
    let apart = a.place == b.place && a.dtype == b.dtype && a.strides == b.strides && a.offset != b.offset;
    if !apart || numel(a) + numel(b) > COMPARED {
        return apart;
    }
    let elements = |v: &View| {
        let mut all = vec![v.offset];
        for (&n, &s) in v.dims.iter().zip(&v.strides) {
            all = all.iter().flat_map(|&at| (0..n).map(move |i| at + i * s)).collect();
        }
        all
    };
    let first: AHashSet<i64> = elements(a).into_iter().collect();
    elements(b).iter().all(|at| !first.contains(at))
}

/// Takes `s` out of `written`: work memory holds nothing afterwards.
fn forget(written: &mut Vec<Span>, s: &Span) {
    let meeting: Vec<Span> = written.extract_if(.., |w| w.meets(s)).collect();
    for w in meeting {
        written.extend((w.from < s.from).then_some(Span { to: s.from, ..w }));
        written.extend((s.to < w.to).then_some(Span { from: s.to, ..w }));
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
