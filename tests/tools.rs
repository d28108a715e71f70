//! The command-line tools on small files: what they print and how they exit.
use std::io::Write;
use std::process::{Command, Output, Stdio};

const OPT: &str = env!("CARGO_BIN_EXE_rsx-opt");
const RUN: &str = env!("CARGO_BIN_EXE_rsx-run");

/// Softmax of rows, with an op nobody needs.
const SOFTMAX: &str = "func @softmax(%0: tensor<4x32xf32>) {
  %1 = reduce %0 {kind = max, dims = [1]} : tensor<4xf32>
  %2 = broadcast_in_dim %1 {dims = [0]} : tensor<4x32xf32>
  %3 = subtract %0, %2 : tensor<4x32xf32>
  %4 = exponential %3 : tensor<4x32xf32>
  %5 = reduce %4 {kind = sum, dims = [1]} : tensor<4xf32>
  %6 = broadcast_in_dim %5 {dims = [0]} : tensor<4x32xf32>
  %7 = divide %4, %6 : tensor<4x32xf32>
  %8 = tanh %0 : tensor<4x32xf32>
  return %7
}
";

fn tool(path: &str, args: &[&str], input: &str) -> (bool, String, String) {
    let mut child = Command::new(path)
        .args(args)
        .env_remove("RSX_DUMP_TO")
        .env_remove("RSX_PASSES")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    // A tool that does not read its input may have gone already.
    let _ = child.stdin.take().expect("standard input is a pipe").write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the tool ends");
    let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
    (status.success(), text(stdout), text(stderr))
}

/// Arguments, input, success, and what standard output (or, on failure, standard error) has to contain.
fn check(path: &str, args: &[&str], input: &str, success: bool, wanted: &[&str]) -> String {
    let (ok, out, err) = tool(path, args, input);
    assert_eq!(ok, success, "{args:?}\n{out}\n{err}");
    for w in wanted {
        assert!(out.contains(w) || err.contains(w), "{args:?}: no `{w}` in\n{out}\n{err}");
    }
    out
}

#[test]
fn opt_runs_passes() {
    let out = check(OPT, &[], SOFTMAX, true, &["fusion", "kind = row"]);
    assert!(!out.contains("tanh"), "{out}");
    let out = check(OPT, &["--passes", "dce"], SOFTMAX, true, &["reduce"]);
    assert!(!out.contains("tanh") && !out.contains("fusion"), "{out}");
    let out = check(OPT, &["--until", "cse", "--each", "--time"], SOFTMAX, true, &["// after simplify", " us  cse"]);
    assert!(!out.contains("fusion"), "{out}");
    check(OPT, &["--passes", ""], SOFTMAX, true, &["tanh"]);
    assert_eq!(check(OPT, &["--verify"], SOFTMAX, true, &[]), "");
    check(OPT, &["--program"], SOFTMAX, true, &["thunk 0: row_divide_0", "slab 0 bytes", "transcendentals: 128.0"]);
    check(OPT, &["--program", "--switch", "-fusion"], SOFTMAX, true, &["thunk 4"]);
    check(OPT, &["--bisect"], SOFTMAX, true, &["agrees"]);
    check(OPT, &["--list"], "", true, &["simplify", "rematerialize", "fusion", "(required)"]);
}

#[test]
fn opt_says_what_is_wrong() {
    check(OPT, &[], "func @f(%0: tensor<4xf32>) {\n  %1 = foo %0\n}", false, &["rsx-opt: -:2:"]);
    check(OPT, &["--passes", "nonsense"], SOFTMAX, false, &["no pass is named `nonsense`"]);
    check(OPT, &["--until", "nonsense"], SOFTMAX, false, &["no pass is named `nonsense`"]);
    check(OPT, &["--function", "other"], SOFTMAX, false, &["there is no function @other"]);
    check(OPT, &["/no/such/file"], "", false, &["/no/such/file"]);
}

#[test]
fn opt_dumps_pages() {
    let dir = std::env::temp_dir().join(format!("rsx-opt-{}", std::process::id()));
    let to = dir.to_string_lossy().into_owned();
    check(OPT, &["--dump-to", &to], SOFTMAX, true, &["thunk 0"]);
    let names: Vec<String> = std::fs::read_dir(&dir)
        .expect("the directory is there")
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    for stage in ["recorded", "simplify.diff", "decisions", "fusion", "buffers", "slab", "program", "kernels", "ledger"]
    {
        assert!(names.iter().any(|n| n.contains(&format!(".{stage}."))), "no {stage} among {names:?}");
    }
    let page = std::fs::read_to_string(dir.join("softmax-000.html")).expect("the page is there");
    for name in names.iter().filter(|n| !n.ends_with(".html")) {
        assert!(page.contains(name.as_str()), "the page has no link to {name}");
    }
    assert!(page.contains("<svg") && page.contains("slab bytes"));
    let index = std::fs::read_to_string(dir.join("index.html")).expect("the index is there");
    assert!(index.contains("softmax-000.html"));
    std::fs::remove_dir_all(&dir).expect("the directory can be removed");
}

#[test]
fn run_runs_compares_and_times() {
    for on in ["interpreter", "program", "cpu"] {
        check(RUN, &["--on", on], SOFTMAX, true, &["@softmax", "tensor<4x32xf32> sum "]);
    }
    check(RUN, &["--compare", "--seed", "3"], SOFTMAX, true, &["program agrees", "cpu agrees"]);
    check(RUN, &["--time", "3"], SOFTMAX, true, &["median", "row_divide_0"]);
    let add = "func @add(%0: tensor<2xf32>) {\n  %1 = add %0, %0 : tensor<2xf32>\n  return %1\n}\n";
    check(RUN, &["--args", "dense<[1.0, 2.5]> : tensor<2xf32>"], add, true, &["[2.0, 5.0]"]);
    check(RUN, &["--args", "dense<1> : tensor<2xi64>"], add, false, &["@add takes (tensor<2xf32>)"]);
    check(RUN, &["--function", "other"], add, false, &["no function to run"]);
}

#[test]
fn help_is_complete() {
    for (path, options) in [
        (OPT, &["--passes", "--until", "--each", "--verify", "--program", "--bisect", "--memory-limit", "--list"][..]),
        (RUN, &["--on", "--compare", "--time", "--args", "--seed", "--bound", "--function"][..]),
    ] {
        let out = check(path, &["--help"], "", true, options);
        assert!(out.contains("Examples:"), "{out}");
        check(path, &["--no-such-option"], "", false, &["--no-such-option"]);
    }
}
