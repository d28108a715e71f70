//! Segments: their keys, the cache of programs, the tiers, and the in-order executor. See ARCHITECTURE.md.
//!
//! A [`Session`] is one device as the front end sees it. Ops go to its recorder; a cut hands the trace to [`core`],
//! which looks its [`key`] up in the [`cache`], decides on a tier and queues it for the [`executor`]'s thread. There
//! [`eager`] runs it op by op (tier 0) or [`compiled`] runs its program (tier 1), made by [`segment`] on the submitting
//! or a [`background`] thread.
pub mod backend;
pub mod device;
pub mod error;
pub mod inject;
pub mod key;
pub mod log;
mod looping;
pub mod metrics;
pub mod options;
pub mod session;
pub mod timeline;

mod background;
mod cache;
mod compiled;
mod compiles;
mod completion;
mod continued;
mod core;
mod eager;
mod executor;
mod explain;
mod foresight;
mod host;
mod memory;
mod portable;
pub mod recording;
pub mod replay;
mod run;
mod schedule;
mod segment;
mod shared;
mod stored;

pub use backend::{Backend, Claim, CompileError, MemoryStats, OutOfMemory, RunCost, RunError, Runnable};
pub use device::DeviceBackend;
pub use error::{ErrorKind, SessionError};
pub use inject::FaultPoint;
pub use key::{Identity, Ingredient};
pub use looping::{Loop, OP as LOOP_OP, Part, Scratch};
pub use metrics::Metrics;
pub use options::{Options, Tier};
pub use recording::{Held, Noticed, Operand, Recording};
pub use replay::{Replay, ReplayArgs, Unstable};
pub use rsx_graphbreak::{CutCause, FallbackKind, Frame, FrameTable, Report};
pub use session::Session;
pub use shared::BlockingSection;
