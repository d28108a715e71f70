//! Compiles the C++ shim against the installed torch and links it into the extension module.
//!
//! Every translation unit includes most of ATen (about 20 s of parsing each), so the headers are
//! precompiled once and objects are rebuilt only when they are older than what they include.

use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

/// Torch versions (2.x) whose C++ API this source is written for; tested with 2.13. One wheel serves exactly one minor.
/// Before 2.13 storages have no materializer: there only Python's `data_ptr()` gives an address of memory.
const TORCH: RangeInclusive<u32> = 11..=15;

fn main() {
    println!("cargo:rerun-if-changed=shim");
    for var in ["RSX_TORCH", "PYTHON", "PYO3_PYTHON", "CXX", "CXXFLAGS"] {
        println!("cargo:rerun-if-env-changed={var}");
    }
    let torch = torch_dir();
    let version = torch_version(&torch);
    let minor = version.strip_prefix("2.").and_then(|v| v.split('.').next()?.parse().ok());
    assert!(
        minor.is_some_and(|m| TORCH.contains(&m)),
        "rsx is written for torch 2.{} to 2.{}, found {version} in {}",
        TORCH.start(),
        TORCH.end(),
        torch.display()
    );
    println!("cargo:rustc-env=RSX_TORCH_VERSION={version}");

    let objects = compile(&torch, &objects_dir(&torch, &version));
    let mut archive = cc::Build::new();
    archive.cpp(true).objects(&objects).compile("rsx_shim");

    println!("cargo:rustc-link-search=native={}", torch.join("lib").display());
    for lib in ["torch_cpu", "c10"] {
        println!("cargo:rustc-link-lib=dylib={lib}");
    }
    // Installed next to torch in site-packages: rsx/_C.abi3.so finds torch/lib.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-rpath,$ORIGIN/../torch/lib");
}

/// Where objects are kept: `target/rsx-shim/<torch>`, the same for all profiles (the C++ is always optimised), because
/// OUT_DIR changes with every dependency and the precompiled headers take half a minute.
fn objects_dir(torch: &Path, version: &str) -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // target/<profile>/build/<package>/out
    let target = out.ancestors().nth(4).expect("OUT_DIR lies deep in the target directory");
    let mut hasher = std::hash::DefaultHasher::new();
    (torch, env::var("CXX").ok(), env::var("CXXFLAGS").ok()).hash(&mut hasher);
    let dir = target.join("rsx-shim").join(format!("{version}-{:08x}", hasher.finish() as u32));
    fs::create_dir_all(&dir).expect("the target directory is writable");
    dir
}

/// `$RSX_TORCH`, or where `$PYO3_PYTHON`, `$PYTHON` or python3 would import torch from. The module is
/// located, not imported: importing costs seconds.
fn torch_dir() -> PathBuf {
    if let Some(dir) = env::var_os("RSX_TORCH") {
        return PathBuf::from(dir);
    }
    let venv = env::var("VIRTUAL_ENV").map(|v| format!("{v}/bin/python"));
    let python = ["PYO3_PYTHON", "PYTHON"].iter().find_map(|v| env::var(v).ok());
    let python = python.or(venv.ok()).unwrap_or_else(|| "python3".into());
    let code = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])";
    let found = Command::new(&python).args(["-c", code]).output();
    let found = found.unwrap_or_else(|e| panic!("cannot run {python}: {e}"));
    assert!(
        found.status.success(),
        "{python} has no torch: install torch==2.13.0 there, or set RSX_TORCH=<site-packages>/torch\n{}",
        String::from_utf8_lossy(&found.stderr)
    );
    PathBuf::from(String::from_utf8_lossy(&found.stdout).trim())
}

fn torch_version(torch: &Path) -> String {
    let path = torch.join("version.py");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let line = text.lines().find(|l| l.starts_with("__version__"));
    line.and_then(|l| l.split('\'').nth(1)).expect("torch/version.py states the version").to_owned()
}

/// The compiler with the flags that every unit and the precompiled header must share.
fn compiler(torch: &Path) -> Command {
    let include = torch.join("include");
    let mut cc = cc::Build::new();
    cc.cpp(true).std("c++20").pic(true).opt_level(2).debug(false).warnings(true);
    cc.flag("-isystem").flag(&include).flag("-isystem").flag(include.join("torch/csrc/api/include"));
    // The profiler's headers include each other without a folder.
    cc.flag("-isystem").flag(include.join("kineto"));
    cc.flag("-Wno-unused-parameter").flag("-Winvalid-pch").flag("-fvisibility=hidden");
    cc.define("_GLIBCXX_USE_CXX11_ABI", "1");
    cc.get_compiler().to_command()
}

/// Compiles what is out of date, a few units at a time; returns all objects.
fn compile(torch: &Path, out: &Path) -> Vec<PathBuf> {
    let shim = Path::new("shim");
    // GCC finds `pch.h.gch` beside the copy of the header that `-include` names.
    let pch = out.join("pch.h");
    copy_if_changed(&shim.join("pch.h"), &pch);
    let gch = out.join("pch.h.gch");
    if stale(&gch, &out.join("pch.d"), &pch) {
        let mut cmd = compiler(torch);
        produce(cmd.args(["-x", "c++-header", "-MMD", "-MF"]).arg(out.join("pch.d")).arg(&pch), &gch);
    }
    let mut units: Vec<PathBuf> = fs::read_dir(shim)
        .expect("ffi/shim exists")
        .map(|e| e.expect("readable").path())
        .filter(|p| p.extension().is_some_and(|e| e == "cpp"))
        .collect();
    units.sort();
    let object = |unit: &Path| out.join(unit.file_name().expect("a file")).with_extension("o");
    let objects = units.iter().map(|u| object(u)).collect();
    let todo = Mutex::new(units);
    let jobs = env::var("NUM_JOBS").ok().and_then(|j| j.parse().ok()).unwrap_or(2);
    std::thread::scope(|s| {
        for _ in 0..jobs {
            s.spawn(|| {
                while let Some(unit) = { todo.lock().expect("no panic holds it").pop() } {
                    let (obj, dep) = (object(&unit), object(&unit).with_extension("d"));
                    if stale(&obj, &dep, &unit) || modified(&gch) > modified(&obj) {
                        let mut cmd = compiler(torch);
                        cmd.arg("-include").arg(&pch).args(["-MMD", "-MF"]).arg(&dep);
                        produce(cmd.arg("-c").arg(&unit), &obj);
                    }
                }
            });
        }
    });
    objects
}

fn copy_if_changed(from: &Path, to: &Path) {
    let text = fs::read(from).expect("readable");
    if fs::read(to).ok().as_ref() != Some(&text) {
        fs::write(to, text).expect("OUT_DIR is writable");
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|m| m.modified()).ok()
}

/// Whether `object` is older than a file its dependency list names. That list holds the shim's own
/// headers and torch's alike (`-MMD` leaves out only the system directories' headers).
fn stale(object: &Path, dep: &Path, source: &Path) -> bool {
    let Some(built) = modified(object) else { return true };
    let Ok(list) = fs::read_to_string(dep) else { return true };
    let newer = |p: &Path| modified(p).is_none_or(|m| m > built);
    newer(source) || list.split_whitespace().filter(|w| !w.ends_with(':') && *w != "\\").any(|w| newer(Path::new(w)))
}

/// Runs the compiler; the result appears whole or not at all, whoever else builds here.
fn produce(cmd: &mut Command, result: &Path) {
    let partial = result.with_extension(format!("{}.tmp", std::process::id()));
    let status = cmd.arg("-o").arg(&partial).status().unwrap_or_else(|e| panic!("cannot run {cmd:?}: {e}"));
    assert!(status.success(), "failed: {cmd:?}");
    fs::rename(&partial, result).expect("same directory");
}
