//! The session from a front end's point of view, on a fake device and a fake eager engine.
#[path = "../common/mod.rs"]
mod common;

mod faults;
mod lifetime;
mod replays;
mod storages;
mod tiers;
