//! Compiles a GPT training step and prints what became of it: counts, times of passes, and the program's thunks.
//!
//! `cargo run --release -p rsx-compiler --example compile_gpt [layers] [width]`
#[path = "../tests/models/mod.rs"]
mod models;

use rsx_compiler::{CompileOptions, compile, dump};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let layers = args.next().and_then(|a| a.parse().ok()).unwrap_or(4);
    let width = args.next().and_then(|a| a.parse().ok()).unwrap_or(256);
    let graph = models::gpt(models::Gpt { layers, batch: 8, time: 128, width, heads: 4, vocab: 4096 });
    let options = CompileOptions { verify: false, ..CompileOptions::from_env() };
    let insts = graph.insts.len();
    let start = Instant::now();
    let compiled = compile(graph, &options)?;
    let total = start.elapsed();
    println!("{}", dump::program_text(&compiled.program));
    for e in &compiled.ledger {
        println!("{:>8} us  {:<14} {} -> {}", e.micros, e.pass, e.insts_before, e.insts_after);
    }
    println!("{:#?}", compiled.stats);
    println!("{insts} instructions in {total:?}");
    Ok(())
}
