//! Recording: storages and their versions, traces, signatures, and the lowering of recorded ATen ops to the IR.
//!
//! Knows nothing of C++ or Python: ops arrive as flat words (see [`words`]) and single ops run through an
//! [`engine::EagerEngine`] that somebody else provides.
pub mod aten;
mod byte_copies;
pub mod cx;
pub mod engine;
pub mod lower;
pub mod op;
mod paths;
pub mod philox;
pub mod record;
pub mod scalar_type;
pub mod sig;
pub mod storage;
pub mod trace;
pub mod view;
pub mod words;

pub use cx::{Cx, ScalarSource};
pub use engine::{EagerCall, EagerEngine, EagerOutputs, EngineError, EngineErrorKind, Fault};
pub use op::{OpId, OpInfo, OpTable, RetInfo};
pub use record::{OutsideWrite, Recorded, Recorder, SegmentSink};
pub use scalar_type::ScalarType;
pub use sig::{MAX_RANK, OutKind, OutMeta, Sig, SigFlags, SigParts};
pub use storage::{Storage, StorageState};
pub use trace::{FrameId, Node, StorageUse, Trace};
