//! Why and where traces are cut, ops fall back to the eager engine, and the host waits for the device.
//!
//! Everything is counted with its cause and the user's frame; nothing here decides anything. Frames are numbers of a
//! [`FrameTable`], resolved to text only in reports.
pub mod cause;
pub mod frames;
pub mod report;
mod text;

pub use cause::{CutCause, FallbackKind};
pub use frames::{Frame, FrameTable};
pub use report::{CutRow, FallbackRow, Report, Snapshot, WaitRow};
