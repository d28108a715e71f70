//! The one device: op table, recorder and session, made on first use.

use crate::{eager, standin};
use rsx_lazy::record::Limits;
use rsx_lazy::{OpTable, Recorder};
use std::sync::{Arc, OnceLock};

pub(crate) struct Core {
    pub ops: OpTable,
    pub recorder: Recorder,
    pub sink: Arc<standin::Inline>,
}

pub(crate) fn core() -> &'static Core {
    static CORE: OnceLock<Core> = OnceLock::new();
    CORE.get_or_init(|| {
        let sink = standin::Inline::new(Box::new(eager::Libtorch));
        Core { ops: OpTable::default(), recorder: Recorder::new(sink.clone(), Limits::default()), sink }
    })
}
