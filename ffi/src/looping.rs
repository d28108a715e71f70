//! The parts of a `torch.while_loop`: what a thread records between `scratch_begin` and `rsx_loop_part` goes to a recorder
//! of its own, and nothing of it runs.

use crate::core::session;
use crate::error::{Failure, guard};
use crate::py::exception;
use crate::replay::borrowed;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rsx_capture::{Loop, Part, Scratch};
use rsx_lazy::{Recorder, Storage};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// One part being recorded.
#[derive(Default)]
struct Open {
    scratch: Scratch,
    /// Storages made without an op, with a hash of the host data copied to them.
    made: Vec<(Weak<Storage>, u64)>,
    /// A part inside of it was given up: tensors of this one may have lost their places in its trace.
    broken: bool,
}

thread_local! {
    /// Innermost last: bodies may hold loops.
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
}
/// Parts open on all threads: the look that ops take.
static ANY: AtomicUsize = AtomicUsize::new(0);

/// Does this thread record a part?
pub(crate) fn active() -> bool {
    ANY.load(Relaxed) > 0 && OPEN.with(|o| !o.borrow().is_empty())
}

/// Runs `f` on the recorder that this thread's ops go to.
pub(crate) fn recorder<T>(f: impl FnOnce(&Recorder) -> Result<T, Failure>) -> Result<T, Failure> {
    if !active() {
        return f(session()?.recorder());
    }
    OPEN.with(|o| match o.borrow().last() {
        Some(open) => f(open.scratch.recorder()),
        None => f(session()?.recorder()),
    })
}

fn innermost(f: impl FnOnce(&mut Open)) {
    OPEN.with(|o| o.borrow_mut().last_mut().map(f));
}

/// A storage without contents was made.
pub(crate) fn made(storage: &Arc<Storage>) {
    innermost(|open| open.made.push((Arc::downgrade(storage), 0)));
}

/// Host data is copied to `storage`. An error unless the part made it: the copy happens now, the part runs later.
pub(crate) fn uploaded(storage: &Arc<Storage>, bytes: &[u8]) -> Result<(), Failure> {
    let mut fits = false;
    innermost(|open| {
        if let Some(made) = open.made.iter_mut().find(|m| m.0.as_ptr() == Arc::as_ptr(storage)) {
            let mut hash = std::hash::DefaultHasher::new();
            hash.write(bytes);
            made.1 = hash.finish();
            fits = storage.last_used() == 0;
        }
    });
    if fits { Ok(()) } else { Err(refusal("host data is copied into a tensor")) }
}

/// The size of `storage` changes: an error unless the part made it.
pub(crate) fn resized(storage: &Arc<Storage>) -> Result<(), Failure> {
    let mut own = false;
    innermost(|open| own = open.made.iter().any(|m| m.0.as_ptr() == Arc::as_ptr(storage)));
    if own { Ok(()) } else { Err(refusal("the storage of a tensor is resized")) }
}

/// An error if this thread records a part: `what` needs values, and there are none.
pub(crate) fn check_host_value(what: impl std::fmt::Display) -> Result<(), Failure> {
    if active() { Err(refusal(what)) } else { Ok(()) }
}

fn refusal(what: impl std::fmt::Display) -> Failure {
    Failure::user(format!("rsx: inside of a while_loop that is recorded as one op: {what}"))
}

fn parts() -> MutexGuard<'static, BTreeMap<i32, Part>> {
    static PARTS: Mutex<BTreeMap<i32, Part>> = Mutex::new(BTreeMap::new());
    PARTS.lock().unwrap_or_else(|e| e.into_inner())
}

/// Begins the recording of a part on this thread.
#[pyfunction]
pub(crate) fn scratch_begin() {
    OPEN.with(|o| o.borrow_mut().push(Open::default()));
    ANY.fetch_add(1, SeqCst);
}

fn end() -> Option<Open> {
    let open = OPEN.with(|o| o.borrow_mut().pop())?;
    ANY.fetch_sub(1, SeqCst);
    Some(open)
}

/// A part comes to nothing. If it used tensors from outside, those have lost their places in the open trace, which is cut
/// therefore, and in the parts around.
fn given_up() -> Result<(), Failure> {
    OPEN.with(|o| o.borrow_mut().iter_mut().for_each(|open| open.broken = true));
    session()?.cut(rsx_capture::CutCause::Jit, Default::default()).map_err(Failure::from)
}

/// Drops what this thread records as a part.
#[pyfunction]
pub(crate) fn scratch_abort(py: Python<'_>) -> PyResult<()> {
    drop(end());
    given_up().map_err(|e| exception(py, e))
}

/// Drops a part.
#[pyfunction]
pub(crate) fn part_drop(id: i32) {
    let part = parts().remove(&id);
    drop(part);
}

/// Makes a loop of two parts, which are used up: its number, for `torch.ops.rsx.while_loop`; with values that are `kept`
/// for `while_loop_kept`, without a condition for `while_loop_back`. Raises ValueError.
#[pyfunction]
#[pyo3(signature = (condition, body, kept = Vec::new()))]
pub(crate) fn loop_new(py: Python<'_>, condition: Option<i32>, body: i32, kept: Vec<usize>) -> PyResult<i64> {
    let mut parts = parts();
    let found = (condition.map(|id| parts.remove(&id)), parts.remove(&body));
    drop(parts);
    let (condition, body) = match found {
        (Some(None), _) | (_, None) => return Err(PyValueError::new_err("no such part")),
        (condition, Some(body)) => (condition.flatten(), body),
    };
    let new = Loop::new(condition, body, kept).map_err(PyValueError::new_err)?;
    Ok(session().map_err(|e| exception(py, e))?.add_loop(new))
}

/// Ends this thread's part, also where it fails: a function of `args` with the results `outs`. Its number.
///
/// # Safety
/// The arrays have the lengths given and hold live references.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsx_loop_part(
    args: *const *const Storage,
    nargs: usize,
    outs: *const *const Storage,
    nouts: usize,
) -> i32 {
    guard(|| {
        let (args, outs) = (borrowed(args, nargs), borrowed(outs, nouts));
        let args: Vec<&Arc<Storage>> = args.iter().map(|s| &**s).collect();
        let outs: Vec<&Arc<Storage>> = outs.iter().map(|s| &**s).collect();
        let open = end().ok_or_else(|| refusal("no part is being recorded"))?;
        let part = if open.broken {
            Err("another loop in it is run by the host".to_owned())
        } else {
            open.scratch.finish(session()?, &args, &outs, &open.made)
        };
        let part = match part {
            Ok(part) => part,
            Err(why) => {
                given_up()?;
                return Err(refusal(why));
            }
        };
        static NEXT: AtomicI32 = AtomicI32::new(1);
        let id = NEXT.fetch_add(1, Relaxed);
        parts().insert(id, part);
        Ok(id)
    })
}
