//! The one device: its session, made on first use.

use crate::error::Failure;
use crate::{eager, fork, gil};
use rsx_capture::{DeviceBackend, Options, Session};
use rsx_lazy::OpTable;
use std::sync::{Arc, OnceLock};

static SESSION: OnceLock<Result<Session, Failure>> = OnceLock::new();

/// The registered ops. Apart from the session, so that importing the package starts no threads and a child forked after
/// the import alone can use the device.
pub(crate) fn ops() -> &'static OpTable {
    static OPS: OnceLock<OpTable> = OnceLock::new();
    OPS.get_or_init(OpTable::default)
}

/// The session. Errors if its options are wrong or its threads cannot be started, every time.
pub(crate) fn session() -> Result<&'static Session, Failure> {
    SESSION.get_or_init(start).as_ref().map_err(Clone::clone)
}

/// The session, if anything has been done with the device.
pub(crate) fn started() -> Option<&'static Session> {
    SESSION.get()?.as_ref().ok()
}

fn start() -> Result<Session, Failure> {
    let mut options = Options::from_env().map_err(Failure::user)?;
    options.front_end = concat!("torch ", env!("RSX_TORCH_VERSION")).into();
    let session = Session::new(Arc::new(DeviceBackend::cpu()), Arc::new(eager::Libtorch), options)?;
    session.set_blocking_section(|wait| gil::released(wait));
    Ok(session)
}

/// In a forked child: every later use is an error. Async-signal-safe: sets a flag.
pub(crate) fn mark_forked() {
    if let Some(session) = started() {
        session.mark_forked();
    }
    fork::set_bad();
}
