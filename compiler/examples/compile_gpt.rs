//! Compiles a GPT training step and prints what became of it: counts, times of passes, and (with `thunks`) the program.
//!
//! `cargo run --release -p rsx-compiler --example compile_gpt [layers] [width] [batch] [time] [heads] [vocab] [thunks]`
#[path = "../tests/models/mod.rs"]
mod models;

use rsx_compiler::{CompileOptions, compile, dump};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: i64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (layers, width) = (number(0, 4) as usize, number(1, 256));
    let (batch, time, heads, vocab) = (number(2, 8), number(3, 128), number(4, 4), number(5, 4096));
    let graph = models::gpt(models::Gpt { layers, batch, time, width, heads, vocab });
    let options = CompileOptions { verify: false, ..CompileOptions::from_env() };
    let insts = graph.insts.len();
    let start = Instant::now();
    let compiled = compile(graph, &options)?;
    let total = start.elapsed();
    if args.iter().any(|a| a == "thunks") {
        println!("{}", dump::program_text(&compiled.program));
    }
    for e in &compiled.ledger {
        println!("{:>8} us  {:<14} {} -> {}", e.micros, e.pass, e.insts_before, e.insts_after);
    }
    println!("{:#?}", compiled.stats);
    println!("{insts} instructions in {total:?}");
    Ok(())
}
