//! `package.json` with a part replaced or left out.

use super::Row;
use bf16scope::train::package::Manifest;
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};
use std::path::Path;

const PROGRAM: &[u8] = b"a program";
const VARIABLES: &[u8] = b"variables";

fn read(path: &Path) -> Result<String, String> {
    let folder = path.parent().unwrap();
    std::fs::write(folder.join("program.hlo.pb"), PROGRAM).unwrap();
    std::fs::write(folder.join("variables.npz"), VARIABLES).unwrap();
    std::os::unix::fs::symlink("program.hlo.pb", folder.join("link")).unwrap();
    std::fs::create_dir(folder.join("folder")).unwrap();
    let manifest = Manifest::read(folder).map_err(|error| error.to_string())?;
    let names: Vec<&String> =
        manifest.inputs.iter().chain(&manifest.outputs).map(|signature| &signature.name).collect();
    Ok(format!("{} devices, {names:?}, {}", manifest.n_devices, manifest.program.file))
}

fn part(name: &str, bytes: &[u8]) -> Json {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"file": name, "n_bytes": bytes.len(), "sha256": hex})
}

fn base() -> Json {
    json!({
        "format": 1, "bf16scope": "0.1.0", "precision": "bf16", "steps": 3, "n_devices": 1,
        "inputs": [{"name": "images", "dtype": "bf16", "dims": [2, 4]}],
        "outputs": [{"name": "class", "dtype": "s32", "dims": [2]}],
        "program": part("program.hlo.pb", PROGRAM), "variables": part("variables.npz", VARIABLES), "executable": null,
    })
}

fn parts() -> Vec<(&'static str, Json)> {
    let named = |name: &str| json!([{"name": name, "dtype": "s32", "dims": [2]}]);
    let at = |file: &str| part(file, PROGRAM);
    vec![
        ("format", json!(0)),
        ("format", json!(2)),
        ("format", json!("1")),
        ("format", json!(-1)),
        ("format", json!(1.5)),
        ("format", json!(null)),
        ("n_devices", json!(0)),
        ("n_devices", json!(-1)),
        ("n_devices", json!(1000000000)),
        ("n_devices", json!(18446744073709551615u64)),
        ("n_devices", json!(1e30)),
        ("steps", json!(-1)),
        ("steps", json!("three")),
        ("precision", json!(7)),
        ("inputs", json!(null)),
        ("inputs", json!([])),
        ("inputs", json!([7])),
        ("inputs", json!([{"name": "x"}])),
        ("outputs", named("")),
        ("outputs", named("../../evil")),
        ("outputs", named("/etc/passwd")),
        ("outputs", named("a/../../b")),
        ("outputs", named("a\\b")),
        ("outputs", named("a\u{0}b")),
        ("outputs", named("a\nb")),
        ("outputs", named("..")),
        ("outputs", named(".")),
        ("outputs", named("a/b")),
        ("outputs", named("C:\\evil")),
        ("program", json!(null)),
        ("program", json!("program.hlo.pb")),
        ("program", at("../program.hlo.pb")),
        ("program", at("/etc/passwd")),
        ("program", at("./program.hlo.pb")),
        ("program", at("program.hlo.pb/")),
        ("program", at("")),
        ("program", at(".")),
        ("program", at("..")),
        ("program", at("folder")),
        ("program", at("folder/..")),
        ("program", at("missing")),
        ("program", at("package.json")),
        ("program", at("a\u{0}b")),
        ("program", at("link")),
        ("program", part("program.hlo.pb", b"another")),
        ("program/n_bytes", json!(8)),
        ("program/n_bytes", json!(18446744073709551615u64)),
        ("program/n_bytes", json!(-9)),
        ("program/sha256", json!("")),
        ("program/sha256", json!("00")),
        ("variables", at("program.hlo.pb")),
        ("executable", json!({})),
        ("executable", json!("executable.bin")),
        (
            "executable",
            json!({"file": "missing", "n_bytes": 1, "sha256": "", "target": "cpu", "compiler": "", "processor": null}),
        ),
    ]
}

pub fn rows() -> Vec<Row> {
    let whole = base();
    let mut rows: Vec<(String, Vec<u8>)> = vec![
        ("as it should be".to_string(), serde_json::to_vec(&whole).unwrap()),
        ("nothing".to_string(), vec![]),
        ("null".to_string(), b"null".to_vec()),
        ("a list".to_string(), b"[]".to_vec()),
        ("an empty object".to_string(), b"{}".to_vec()),
        ("no UTF-8".to_string(), b"\xff{}".to_vec()),
        ("10,000 brackets".to_string(), "{\"format\":".repeat(10_000).into_bytes()),
        ("two manifests".to_string(), serde_json::to_vec(&whole).unwrap().repeat(2)),
        ("a key twice".to_string(), {
            let text = serde_json::to_string(&whole).unwrap();
            text.replacen('{', "{\"format\": 1, ", 1).into_bytes()
        }),
    ];
    for key in whole.as_object().unwrap().keys() {
        let mut without = whole.clone();
        without.as_object_mut().unwrap().remove(key);
        rows.push((format!("without {key}"), serde_json::to_vec(&without).unwrap()));
    }
    for (path, value) in parts() {
        let mut changed = whole.clone();
        *changed.pointer_mut(&format!("/{path}")).unwrap() = value.clone();
        rows.push((format!("{path}: {value}"), serde_json::to_vec(&changed).unwrap()));
    }
    let row = |(name, bytes)| Row { area: "package", name, file: "package.json", bytes, read };
    rows.into_iter().map(row).collect()
}
