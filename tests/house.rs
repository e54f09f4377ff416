//! The house rules that a machine can check: where things live, which way arrows point, how long files are.

use std::fs;
use std::path::{Path, PathBuf};

/// Every Rust file below `folder`, with its text, in a stable order.
fn rust_files(folder: &str) -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                out.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    walk(&root.join(folder), &mut paths);
    paths.sort();
    assert!(!paths.is_empty(), "no Rust files below {folder}");
    paths
        .into_iter()
        .map(|path| (path.strip_prefix(root).unwrap().to_path_buf(), fs::read_to_string(&path).unwrap()))
        .collect()
}

/// The text before a file's own tests, without comment lines.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]").unwrap_or(text.len());
    text[..end].lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The room of a source file: `src/pjrt/ffi.rs` is in `pjrt`.
fn room(path: &Path) -> Option<String> {
    let below = path.strip_prefix("src").ok()?;
    let first = below.components().next()?.as_os_str().to_str()?;
    Some(first.trim_end_matches(".rs").to_string())
}

fn check(found: Vec<String>, rule: &str) {
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

#[test]
fn every_file_says_what_it_holds() {
    let mut found = Vec::new();
    for folder in ["src", "tests", "benches", "examples"] {
        for (path, text) in rust_files(folder) {
            if !text.starts_with("//! ") {
                found.push(path.display().to_string());
            }
        }
    }
    check(found, "files must open with `//!`");
}

#[test]
fn files_are_short() {
    let long = rust_files("src").into_iter().filter_map(|(path, text)| {
        let end = text.find("#[cfg(test)]").unwrap_or(text.len());
        let n_lines = text[..end].lines().count();
        (n_lines > 800).then(|| format!("{}: {n_lines} lines", path.display()))
    });
    check(long.collect(), "files hold at most 800 lines without their tests");
}

#[test]
fn only_pjrt_has_unsafe() {
    let found = rust_files("src").into_iter().filter(|(path, _)| room(path).as_deref() != Some("pjrt"));
    let found = found.flat_map(|(path, text)| {
        let lines: Vec<String> = code(&text)
            .lines()
            .filter(|line| line.contains("unsafe ") || line.contains("libloading"))
            .map(|line| format!("{}: {}", path.display(), line.trim()))
            .collect();
        lines
    });
    check(found.collect(), "only src/pjrt may hold `unsafe` or load libraries");
}

#[test]
fn only_the_cli_prints_or_exits() {
    let verbs = ["println!", "eprintln!", "print!(", "eprint!(", "process::exit", "dbg!("];
    let mut found = Vec::new();
    for (path, text) in rust_files("src") {
        if matches!(room(&path).as_deref(), Some("cli" | "main")) {
            continue;
        }
        for line in code(&text).lines().filter(|line| verbs.iter().any(|verb| line.contains(verb))) {
            found.push(format!("{}: {}", path.display(), line.trim()));
        }
    }
    check(found, "only src/cli prints or exits");
}

#[test]
fn nothing_is_left_unfinished() {
    let marks =
        [concat!("to", "do!("), concat!("unimplemented", "!("), concat!("#[ig", "nore"), concat!("#[should", "_panic")];
    let mut found = Vec::new();
    for folder in ["src", "tests"] {
        for (path, text) in rust_files(folder) {
            for line in text.lines().filter(|line| marks.iter().any(|mark| line.contains(mark))) {
                found.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    check(found, "no unfinished marks");
}

#[test]
fn arrows_point_down() {
    // Each room and the rooms it may name. ARCHITECTURE.md draws the same picture.
    let allowed: &[(&str, &[&str])] = &[
        ("hlo", &[]),
        ("numerics", &["hlo"]),
        ("report", &[]),
        ("graph", &["hlo"]),
        ("passes", &["hlo"]),
        ("nn", &["graph", "hlo"]),
        ("optim", &["graph", "hlo"]),
        ("models", &["nn", "graph", "hlo"]),
        ("data", &["hlo", "numerics"]),
        ("pjrt", &["hlo"]),
        ("audit", &["hlo", "passes", "pjrt", "numerics"]),
        ("interop", &["pjrt", "hlo"]),
        ("tpu", &["pjrt", "hlo"]),
        ("train", &["models", "nn", "optim", "graph", "passes", "data", "pjrt", "hlo", "numerics"]),
        (
            "cli",
            &[
                "audit", "train", "models", "nn", "optim", "graph", "passes", "data", "tpu", "pjrt", "hlo", "numerics",
                "report",
            ],
        ),
        ("main", &["cli"]),
        ("lib", &[]),
    ];
    let mut found = Vec::new();
    for (path, text) in rust_files("src") {
        let room = room(&path).unwrap();
        let Some((_, may)) = allowed.iter().find(|(name, _)| *name == room) else {
            found.push(format!("{}: the room {room} is not in this test's table", path.display()));
            continue;
        };
        for (name, _) in allowed.iter().filter(|(name, _)| *name != room && !may.contains(name)) {
            let named = format!("crate::{name}");
            for line in code(&text).lines().filter(|line| {
                line.split(&named).skip(1).any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
            }) {
                found.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    check(found, "a room names only rooms below it");
}
