//! ARCHITECTURE.md is checked, not believed: the crates' edges against its table, and the names it mentions against
//! the tree.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The edges that may exist. Imports run downward only.
const ALLOWED: &[(&str, &[&str])] = &[
    ("rsx-compiler", &[]),
    ("rsx-devices", &["rsx-compiler"]),
    ("rsx-lazy", &["rsx-compiler", "rsx-devices"]),
    ("rsx-graphbreak", &[]),
    ("rsx-capture", &["rsx-compiler", "rsx-devices", "rsx-graphbreak", "rsx-lazy"]),
    ("rsx-ffi", &["rsx-capture", "rsx-compiler", "rsx-devices", "rsx-graphbreak", "rsx-lazy"]),
    ("rsx", &["rsx-capture", "rsx-compiler", "rsx-devices", "rsx-graphbreak", "rsx-lazy"]),
];

/// Foreign crates that only one crate may use.
const ONLY_IN: &[(&str, &str)] =
    &[("llvm-sys", "rsx-devices"), ("cudarc", "rsx-devices"), ("pyo3", "rsx-ffi"), ("tch", "rsx-ffi")];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Direct, non-development dependencies of each crate of the workspace.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    let meta: serde_json::Value = serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON");
    let name = |v: &serde_json::Value| v["name"].as_str().unwrap_or_default().to_owned();
    let list = |v: &serde_json::Value| v.as_array().cloned().unwrap_or_default();
    list(&meta["packages"])
        .iter()
        .map(|p| {
            let deps = list(&p["dependencies"]);
            (name(p), deps.iter().filter(|d| d["kind"].is_null()).map(name).collect())
        })
        .collect()
}

#[test]
fn edges_run_downward_only() {
    let deps = dependencies();
    let known: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let mut faults = Vec::new();
    for (package, uses) in &deps {
        let Some(allowed) = known.get(package.as_str()) else {
            faults.push(format!("{package} is not in the table of edges"));
            continue;
        };
        for used in uses.iter().filter(|u| u.as_str() == "rsx" || u.starts_with("rsx-")) {
            if !allowed.contains(&used.as_str()) {
                faults.push(format!("{package} must not use {used}"));
            }
        }
        for (foreign, home) in ONLY_IN {
            if uses.contains(*foreign) && package != home {
                faults.push(format!("{package} must not use {foreign}: only {home} does"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(deps.len(), ALLOWED.len(), "crates: {:?}", deps.keys());
}

#[test]
fn the_map_names_what_exists() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there");
    // Every `path/` and `path/file.ext` in code quotes has to exist.
    let missing: BTreeSet<&str> = text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|s| s.contains('/') && !s.contains([' ', '*', ':', '=', '<']) && !s.starts_with('/'))
        .filter(|s| !root().join(s).exists())
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what is not there: {missing:?}");
    for (package, _) in ALLOWED {
        assert!(text.contains(package), "ARCHITECTURE.md does not mention {package}");
    }
}
