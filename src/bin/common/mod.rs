//! What the tools share: reading graphs, printing, the exit status.
use rsx_compiler::ir::Graph;
use rsx_compiler::text;
use std::io::Read;
use std::process::ExitCode;

/// As `println!`, but whoever stops reading (`| head`) ends the tool quietly.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write;
        if writeln!(std::io::stdout(), $($arg)*).is_err() {
            std::process::exit(0);
        }
    }};
}
pub(crate) use say;

/// The functions in the text file `path`; `-` is standard input. Errors name the file, and the line where the text is wrong.
pub(crate) fn read(path: &str) -> Result<Vec<Graph>, String> {
    let source = match path {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text).map_err(|e| e.to_string())
        }
        path => std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}")),
    }?;
    text::parse_module(&source).map_err(|e| format!("{path}:{e}"))
}

/// The exit status of tool `name`: whether all was right, or an error, which is printed.
pub(crate) fn exit(name: &str, outcome: Result<bool, String>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{name}: {e}");
            ExitCode::FAILURE
        }
    }
}
