//! Text fixtures: every `tests/ir/<folder>/*.rsx` is a test named `<folder>/<file>`.
//!
//! The first line says what is tested; `//` comments in between are free text.
//! - `// test: roundtrip`: parses; below `// ----` stands the printed form, which must read back as itself.
//! - `// test: parse_error`: does not parse; the error stands below `// ----` as a comment.
//! - `// test: verify`: parsed without checks; the verifier's faults stand below `// ----` as comments, one a line.
//! - `// test: pass=NAME`: one compiler pass applied to every function; the results stand below `// ----`.
//! - `// test: program`: the thunks, results and memory of every compiled function stand below `// ----` as comments.
//! - `// test: interpret`: every `// run: @f(ARGUMENTS) == RESULTS` line is evaluated, results are equal to the bit
//!   (NaN to NaN). With `~=` instead of `==` the results come from an independent witness and are equal within
//!   [`tolerance`].
//!
//! `RSX_BLESS=1` rewrites expectations in place (never those after `~=`).
use libtest_mimic::{Arguments, Failed, Trial};
use rsx_compiler::interp::{Tensor, Tolerance, eval, mismatch};
use rsx_compiler::ir::{DType, Graph, Literal};
use rsx_compiler::{CompileOptions, compile, dump, passes, text, verify};
use std::path::{Path, PathBuf};

const SEPARATOR: &str = "// ----\n";

fn main() {
    let args = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/ir");
    let mut trials = Vec::new();
    for folder in entries(&root).into_iter().filter(|p| p.is_dir()) {
        let files: Vec<PathBuf> =
            entries(&folder).into_iter().filter(|p| p.extension().is_some_and(|e| e == "rsx")).collect();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if files.is_empty() {
            trials.push(Trial::test(name.clone(), move || Err(format!("tests/ir/{name} has no fixtures").into())));
            continue;
        }
        for file in files {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            trials.push(Trial::test(format!("{name}/{stem}"), move || run(&file)));
        }
    }
    if trials.is_empty() {
        trials.push(Trial::test("tests/ir", || Err("there are no fixtures".into())));
    }
    libtest_mimic::run(&args, trials).exit();
}

/// Entries of a folder, sorted.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> =
        std::fs::read_dir(folder).map(|dir| dir.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    out.sort();
    out
}

fn bless() -> bool {
    std::env::var("RSX_BLESS").is_ok_and(|v| v == "1")
}

/// Runs one fixture; with blessing, writes what it should have said.
fn run(path: &Path) -> Result<(), Failed> {
    let content = std::fs::read_to_string(path)?;
    let mode = content.lines().next().and_then(|l| l.strip_prefix("// test: ")).unwrap_or_default().trim();
    let updated = match mode {
        "interpret" => interpret(&content)?,
        _ => {
            let (input, _) = content.split_once(SEPARATOR).unwrap_or((content.trim_end(), ""));
            let mut input = input.to_string();
            if !input.ends_with('\n') {
                input.push('\n');
            }
            format!("{input}{SEPARATOR}{}", transform(mode, &input)?)
        }
    };
    if updated == content {
        return Ok(());
    }
    if bless() {
        return Ok(std::fs::write(path, updated)?);
    }
    Err(format!("{}\n(RSX_BLESS=1 accepts this)", difference(&content, &updated)).into())
}

/// What stands below the separator.
fn transform(mode: &str, input: &str) -> Result<String, Failed> {
    let module = || text::parse_module(input).map_err(|e| Failed::from(e.to_string()));
    match mode {
        "roundtrip" => {
            let printed = print(&module()?);
            let again = print(&text::parse_module(&printed).map_err(|e| format!("the printed form: {e}\n{printed}"))?);
            if again != printed {
                return Err(format!("the printed form prints differently\n{}", difference(&printed, &again)).into());
            }
            Ok(printed)
        }
        "parse_error" => match text::parse_module(input) {
            Ok(_) => Err("it parses".into()),
            Err(e) => Ok(comment(&e.to_string())),
        },
        "verify" => {
            let graph = text::parse_unchecked(input).map_err(|e| Failed::from(e.to_string()))?;
            let faults: Vec<String> = verify::verify(&graph).iter().map(|f| f.to_string()).collect();
            Ok(comment(&faults.join("\n")))
        }
        "program" => {
            let mut out = String::new();
            for graph in module()? {
                let compiled = compile(graph, &CompileOptions::default()).map_err(|e| e.to_string())?;
                let program = dump::program_text(&compiled.program);
                // Kernels have fixtures of their own, as fusions.
                out += program.split("kernel 0 ").next().unwrap_or_default();
            }
            Ok(comment(&out))
        }
        _ => match mode.strip_prefix("pass=") {
            Some(name) => {
                let results: Result<Vec<Graph>, String> = module()?.iter().map(|g| run_pass(name, g)).collect();
                Ok(print(&results?))
            }
            None => Err(format!("`// test: {mode}` is no kind of test").into()),
        },
    }
}

/// One compiler pass, by name; its result is verified.
fn run_pass(name: &str, graph: &Graph) -> Result<Graph, String> {
    // Fixtures are small: nothing is too small for rematerialisation there.
    let remat = passes::RematOptions { min_peak: 0, min_bytes: 0, slowdown: f64::INFINITY, memory_limit: None };
    let options = CompileOptions { remat, ..CompileOptions::default() };
    let result = passes::run_named(name, graph, &options).map_err(|e| e.to_string())?;
    verify::check(&result).map_err(|e| e.to_string())?;
    Ok(result)
}

fn print(graphs: &[Graph]) -> String {
    let texts: Vec<String> = graphs.iter().map(|g| format!("{g}\n")).collect();
    texts.join("\n")
}

fn comment(lines: &str) -> String {
    lines.lines().map(|l| format!("// {l}\n")).collect()
}

/// The content with right results in its `run` lines; fails where a witness is contradicted.
fn interpret(content: &str) -> Result<String, Failed> {
    let graphs = text::parse_module(content).map_err(|e| e.to_string())?;
    let mut out = String::new();
    let mut runs = 0;
    for (number, line) in content.lines().enumerate() {
        match line.strip_prefix("// run: @") {
            None => out.push_str(line),
            Some(run) => {
                runs += 1;
                let checked = check_run(&graphs, run).map_err(|e| format!("line {}: {e}", number + 1))?;
                out.push_str("// run: @");
                out.push_str(&checked);
            }
        }
        out.push('\n');
    }
    if runs == 0 {
        return Err("no `// run:` line".into());
    }
    Ok(out)
}

/// `f(ARGUMENTS) == RESULTS` with the interpreter's results.
fn check_run(graphs: &[Graph], run: &str) -> Result<String, String> {
    let (call, witness) = match (run.split_once(" ~= "), run.split_once(" == ")) {
        (Some((call, results)), _) => (call, Some(results)),
        (None, Some((call, _))) => (call, None),
        (None, None) => (run.trim_end(), None),
    };
    let malformed = || format!("expected `@f(arguments) == results`, found `@{run}`");
    let (name, args) = call.split_once('(').ok_or_else(malformed)?;
    let args = args.strip_suffix(')').ok_or_else(malformed)?;
    let graph = graphs.iter().find(|g| g.name == name).ok_or_else(|| format!("there is no function @{name}"))?;
    let literals = |text: &str| -> Result<Vec<Literal>, String> {
        text::parse_literals(text).map_err(|e| format!("`{text}`: {e}"))
    };
    let args: Vec<Tensor> = literals(args)?.iter().map(Tensor::from).collect();
    let results = eval(graph, &args).map_err(|e| e.to_string())?;
    let printed: Vec<String> = results.iter().map(|t| text::print_literal(&Literal::from(t))).collect();
    let printed = printed.join(", ");
    let Some(witness) = witness else { return Ok(format!("{call} == {printed}")) };
    let expected: Vec<Tensor> = literals(witness)?.iter().map(Tensor::from).collect();
    if expected.len() != results.len() {
        return Err(format!("{} results, the witness has {}", results.len(), expected.len()));
    }
    for (i, (got, want)) in results.iter().zip(&expected).enumerate() {
        if let Some(e) = mismatch(got, want, tolerance(got.ty.dtype)) {
            return Err(format!("result {i}: {e}\n  got     {printed}\n  witness {witness}"));
        }
    }
    Ok(run.to_string())
}

/// Difference allowed between the interpreter, which rounds once, and a witness that rounds at every step: about 32
/// units in the last place for f32 and f64, 2 for the short floats.
fn tolerance(dtype: DType) -> Tolerance {
    let (relative, absolute) = match dtype {
        DType::F64 => (1e-14, 1e-14),
        DType::F32 => (4e-6, 1e-6),
        DType::F16 => (2e-3, 1e-4),
        DType::BF16 => (1.6e-2, 1e-3),
        _ => (0.0, 0.0),
    };
    Tolerance { relative, absolute }
}

/// Lines that differ, as `- old` and `+ new`, between equal beginnings and ends.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let mut out = format!("from line {}:\n", start + 1);
    for line in &old[start..old.len() - end] {
        out.push_str(&format!("- {line}\n"));
    }
    for line in &new[start..new.len() - end] {
        out.push_str(&format!("+ {line}\n"));
    }
    out
}
