//! What program comes out of a trace depends on the lowerings, and what is stored of it on this crate.
include!("../build/sources.rs");

fn main() {
    emit_hash("RSX_LOWERING_SOURCES", &["../lazy/src", "src/stored.rs"]);
}
