//! `port` as its users run it: a graph's screen, folder and exit status; a graph where a module goes; a script.

use crate::train_cli::{Folder, text};

use std::io::Read as _;
use std::path::Path;

/// A graph of the fixtures, unpacked into a folder.
fn unpack(folder: &Folder, name: &str) -> String {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/tensorflow/tests/data").join(format!("{name}.gz"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&std::fs::read(packed).unwrap()[..]).read_to_end(&mut bytes).unwrap();
    let path = folder.path(name);
    std::fs::write(&path, bytes).unwrap();
    name.to_string()
}

#[test]
fn a_graph_becomes_a_folder_that_is_read_back() {
    let folder = Folder::new();
    let graph = unpack(&folder, "resnet.meta");
    let output = folder.run(&["port", &graph, "-o", "resnet"]);
    let (screen, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{screen}{said}");
    assert!(screen.contains("Slips: the graph shows none."), "{screen}");
    assert!(screen.contains("(62 of its variables have the graph's dims)"), "{screen}");
    let experiment = std::fs::read_to_string(folder.path("resnet/experiment.yaml")).unwrap();
    assert!(
        experiment.contains("{batch_norm: , momentum: 0.9, epsilon: 1e-5, name: batch_normalization}"),
        "{experiment}"
    );
    // The step is a module like any other, and so is the graph.
    for module in ["resnet/step.hlo.pb", graph.as_str()] {
        let output = folder.run(&["emit", module, "-o", "step.txt"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let step = std::fs::read_to_string(folder.path("step.txt")).unwrap();
        assert!(step.contains("convolution("), "{step}");
    }
}

#[test]
fn a_slip_that_the_graph_shows_is_exit_code_1() {
    let folder = Folder::new();
    let graph = unpack(&folder, "slip_bf16_variables.meta");
    let output = folder.run(&["port", &graph, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let slips = report["slips"].as_array().unwrap();
    assert_eq!(slips[0]["what"], "a variable is bf16");
    assert_eq!(slips[0]["certainty"], "shown by the graph");
}

#[test]
fn a_script_is_read_and_not_run() {
    let folder = Folder::new();
    std::fs::write(folder.path("train.py"), "def f(x):\n  tf.cast(x, tf.bfloat16)\n  return x\n").unwrap();
    let output = folder.run(&["port", "train.py"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("train.py:2: a cast whose result is not used"), "{}", text(&output.stdout));
}

#[test]
fn what_is_no_graph_is_said() {
    let folder = Folder::new();
    std::fs::write(folder.path("x.meta"), "hello").unwrap();
    for command in ["port", "emit"] {
        let output = folder.run(&[command, "x.meta"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("x.meta"), "{}", text(&output.stderr));
    }
    // A text with a graph's ending.
    std::fs::write(folder.path("notes.pb"), "Notes on the model\n").unwrap();
    let output = folder.run(&["port", "notes.pb"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("it is text that begins \"Notes on the model\"; expected a Saver's .meta"), "{said}");
}
