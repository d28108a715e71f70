//! Compiles functions in text form (a `recorded` dump, a fixture) and prints what became of them.
//!
//! `RSX_DUMP_TO=dir cargo run -p rsx-compiler --example compile_text file...`
use rsx_compiler::{CompileOptions, compile, dump, text};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        for graph in text::parse_module(&std::fs::read_to_string(&path)?)? {
            let compiled = compile(graph, &CompileOptions::from_env())?;
            println!("{}", dump::program_text(&compiled.program));
            println!("{:#?}", compiled.stats);
        }
    }
    Ok(())
}
