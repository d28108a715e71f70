//! What code comes out of a program depends on the compiler and on this crate.
include!("../build/sources.rs");

fn main() {
    emit_hash("RSX_COMPILER_SOURCES", &["../compiler/src", "src"]);
    emit_hash("RSX_LIBRARY_SOURCES", &["src/cpu/lib", "src/cpu/library.rs"]);
}
