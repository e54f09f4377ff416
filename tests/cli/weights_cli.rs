//! `bf16scope weights`: its output for files of other frameworks, the files it writes, and TensorFlow's reading of
//! them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use expect_test::expect;
use serde_json::Value;

use crate::binary;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/weights").join(name)
}

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = binary::bf16scope(&[&["weights"], args].concat());
    command.current_dir(folder).env("LC_ALL", "C.UTF-8").env("TERM", "xterm").env("COLUMNS", "80");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let output = run(folder, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A folder with a copy of a fixture's files under one name.
fn place(from: &str, names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        std::fs::copy(fixture(from).join(name), folder.path().join(name)).unwrap();
    }
    folder
}

const OBJECTS: [&str; 3] = ["checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"];

#[test]
fn a_checkpoint_of_tensorflow_is_a_table() {
    let folder = place("objects", &OBJECTS);
    let output = run(folder.path(), &["ckpt-1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    expect![[r#"
        ckpt-1: TensorFlow checkpoint, 6 arrays, 88 bytes
        ┌─────────────────────┬───────┬───────┬───────┬──────────┐
        │ name                ┆ dtype ┆ shape ┆ bytes ┆   crc32c │
        ╞═════════════════════╪═══════╪═══════╪═══════╪══════════╡
        │ net/layers/0/bias   ┆   f32 ┆   [3] ┆    12 ┆ 384de783 │
        │ net/layers/0/kernel ┆   f32 ┆ [2,3] ┆    24 ┆ 04f34971 │
        │ net/layers/1/bias   ┆   f32 ┆   [3] ┆    12 ┆ 384de783 │
        │ net/layers/1/kernel ┆   f32 ┆ [2,3] ┆    24 ┆ 53c36c06 │
        │ save_counter        ┆   s64 ┆    [] ┆     8 ┆ c514cfad │
        │ step                ┆   s64 ┆    [] ┆     8 ┆ 576c35e3 │
        └─────────────────────┴───────┴───────┴───────┴──────────┘
    "#]]
    .assert_eq(text(&output.stdout));
}

/// Name, dtype, dims and checksum of each array.
fn arrays(report: &Value) -> BTreeMap<String, (String, Value, String)> {
    let field = |array: &Value, name: &str| array[name].as_str().unwrap().to_string();
    let entry =
        |array: &Value| (field(array, "name"), (field(array, "dtype"), array["dims"].clone(), field(array, "crc32c")));
    report["arrays"].as_array().unwrap().iter().map(entry).collect()
}

/// From each format to each: the same arrays, except for strings, which only a bundle supports.
#[test]
fn arrays_are_the_same_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let names = fixture("names/model.ckpt");
    let mut whole = arrays(&json(folder.path(), &[names.to_str().unwrap()]));
    whole.retain(|_, (dtype, ..)| dtype != "string");
    for (output, format) in [("a.npz", "npz"), ("a.ckpt", "tf")] {
        let written = run(folder.path(), &[names.to_str().unwrap(), "-o", output, "--format", format]);
        assert!(written.status.success(), "{}", text(&written.stderr));
        assert!(text(&written.stderr).contains("`word` is of string, and is not written"), "{}", text(&written.stderr));
        assert_eq!(arrays(&json(folder.path(), &[output])), whole, "{format}");
    }
    // safetensors has no complex numbers.
    let refused = run(folder.path(), &["a.npz", "-o", "b.safetensors"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("array `complex` is c64, which a safetensors file does not hold"));
    assert!(!folder.path().join("b.safetensors").exists());
    // Floats with another bias are not f32, and 63 bits are not s64: if nothing can be written, nothing is.
    let mut odd = std::fs::read(fixture("keras/model.weights.h5")).unwrap();
    let types = [([0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0], 8, 120), ([16, 8, 0, 0, 8, 0, 0, 0, 0, 0, 64, 0], 10, 63)];
    for (dtype, byte, other) in types {
        let places: Vec<usize> = (0..odd.len() - 12).filter(|&at| odd[at..at + 12] == dtype).collect();
        assert!(!places.is_empty());
        places.into_iter().for_each(|at| odd[at + byte] = other);
    }
    std::fs::write(folder.path().join("odd.h5"), odd).unwrap();
    let refused = run(folder.path(), &["odd.h5", "-o", "odd.npz"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("odd.h5: no array of it can be written"), "{}", text(&refused.stderr));
    assert!(!folder.path().join("odd.npz").exists());
    let read = json(folder.path(), &["odd.h5"]);
    assert!(read["arrays"].as_array().unwrap().iter().all(|array| array["crc32c"].is_null()), "{read}");
    let state = fixture("keras/model.weights.h5");
    let expected = arrays(&json(folder.path(), &[state.to_str().unwrap()]));
    for output in ["k.safetensors", "k.npz", "k.index"] {
        let written = run(folder.path(), &[state.to_str().unwrap(), "-o", output]);
        assert!(written.status.success(), "{}", text(&written.stderr));
        assert_eq!(arrays(&json(folder.path(), &[output])), expected, "{output}");
    }
}

#[test]
fn what_cannot_be_read_or_written_is_said() {
    let folder = place("objects", &OBJECTS);
    let refused = |args: &[&str]| {
        let output = run(folder.path(), args);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        text(&output.stderr).to_string()
    };
    expect![[r#"
        bf16scope: --output names out.bin, which says no format; expected a name that ends in .npz, .safetensors or .index
        help: name it so, or say --format
    "#]].assert_eq(&refused(&["ckpt-1", "-o", "out.bin"]));
    // A file in another format than its name suggests used to be written without a warning.
    expect![[r#"
        bf16scope: --output out.npz ends as NumPy's archives do, and --format says TensorFlow's checkpoints
        help: name a prefix such as model.ckpt, from which model.ckpt.index and its data are named, or leave out --format
    "#]]
    .assert_eq(&refused(&["ckpt-1", "-o", "out.npz", "--format", "tf"]));
    let two = ["ckpt-1", "-o", "out.safetensors", "--format", "npz"];
    assert!(
        refused(&two)
            .contains("ends as safetensors files do, and --format says NumPy's archives\nhelp: name it FILE.npz")
    );
    assert!(!folder.path().join("out.npz").exists() && !folder.path().join("out.safetensors").exists());
    expect![[r#"
        bf16scope: ckpt-2: cannot open the file of weights
          caused by: No such file or directory (os error 2)
          help: name a path that is there; a relative one begins at the folder that the command runs in
    "#]]
    .assert_eq(&refused(&["ckpt-2"]));
    std::fs::remove_file(folder.path().join(OBJECTS[2])).unwrap();
    expect![[r#"
        bf16scope: ./ckpt-1.index: the data file `ckpt-1.data-00000-of-00001` is missing
        help: put ckpt-1.data-00000-of-00001 beside the index: it names every data file that it needs
    "#]]
    .assert_eq(&refused(&["."]));
}

/// Names a Python with TensorFlow; `ci/tensorflow` prints it.
const PYTHON: &str = "BF16SCOPE_TEST_TENSORFLOW";

#[test]
fn tensorflow_restores_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let names = fixture("names/model.ckpt");
    let written = run(folder.path(), &[names.to_str().unwrap(), "-o", "back.ckpt", "--format", "tf"]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let expected = arrays(&json(folder.path(), &["back.ckpt"]));
    assert!(expected.len() > 15);
    let Some(python) = std::env::var_os(PYTHON).filter(|python| !python.is_empty()) else {
        let line = format!("TensorFlow is not asked what it restores: set {PYTHON}=$(ci/tensorflow)");
        drop(writeln!(std::io::stderr(), "{line}"));
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/read_by_tensorflow.py");
    let output = Command::new(python).arg("-I").arg(script).arg(folder.path().join("back.ckpt")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    type Arrays = BTreeMap<String, (String, Value, String)>;
    let by_reader: BTreeMap<String, Arrays> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(by_reader.keys().collect::<Vec<_>>(), ["Checkpoint", "Saver", "load_checkpoint"]);
    for (reader, arrays) in by_reader {
        assert_eq!(arrays.len(), expected.len(), "{reader}");
        for (name, (_, dims, crc)) in &expected {
            let (_, their_dims, their_crc) = &arrays[name];
            assert_eq!((their_dims, their_crc), (dims, crc), "{reader} {name}");
        }
    }
}
