//! The PyTorch device of rsx: the extension module `rsx._C`.
//!
//! `shim/` (C++) translates dispatcher calls into the flat records of `rsx_lazy::words` and knows nothing of
//! programs; [`abi`] is the C line between the two languages; [`py`] is what the Python package calls. Policy lives in
//! the crates below: this one only translates.

// The entries are public to the linker only.
#![allow(unreachable_pub, reason = "C entries are exported symbols")]

mod abi;
mod control;
mod core;
mod eager;
mod error;
mod fork;
mod frames;
mod gil;
mod looping;
mod machine;
mod py;
mod py_replay;
mod random;
mod replay;
mod watch;
