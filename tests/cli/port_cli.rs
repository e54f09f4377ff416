//! `port` from a user's view: a graph's screen, folder and exit status; a graph as a module; a script.

use crate::train_cli::{Folder, text};

use bf16scope::experiment::Experiment;
use bf16scope::tensorflow;

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

/// Blocks are only how a network is written: its step is that of a line for each layer, but for names and lines.
#[test]
fn blocks_are_the_network_that_a_line_for_each_layer_is() {
    let folder = Folder::new();
    let graph = unpack(&folder, "resnet.meta");
    let step = |options: &[&str]| {
        let output = folder.run(&[&["port", &graph, "-o", "out"][..], options].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let experiment = std::fs::read_to_string(folder.path("out/experiment.yaml")).unwrap();
        let output = folder.run(&["emit", "out/experiment.yaml", "-o", "step.txt"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let step = std::fs::read_to_string(folder.path("step.txt")).unwrap();
        let without_names = |line: &str| line.split(", metadata={").next().unwrap_or_default().to_string();
        (experiment, step.lines().map(without_names).collect::<Vec<String>>())
    };
    let (with, steps) = step(&[]);
    let (without, same) = step(&["--no-blocks"]);
    assert!(with.contains("  blocks:\n    block:\n      parameters: ["), "{with}");
    assert!(!without.contains("blocks:"), "{without}");
    assert!(steps.iter().any(|line| line.contains("convolution(")), "{steps:?}");
    assert_eq!(steps, same);
}

/// The rates of the ported experiments, compared with TensorFlow's: `schedules.txt`.
#[test]
fn ported_rates_are_tensorflows() {
    /// Relative to the rate, in f32 there and in f64 here: some roundings (2^-24) of an exponent, half a step of a
    /// warm-up.
    const ROUNDINGS: f64 = 2e-5;
    const ROUNDED_LENGTH: f64 = 5e-3;
    let folder = Folder::new();
    let recorded = include_str!("../../crates/tensorflow/tests/data/schedules.txt");
    let mut n_compared = 0;
    for line in recorded.lines() {
        let (name, rates) = line.split_once(' ').unwrap();
        let graph = unpack(&folder, &format!("schedule_{name}.meta"));
        let graph = tensorflow::Graph::read(&std::fs::read(folder.path(&graph)).unwrap(), &graph).unwrap();
        let ported = tensorflow::port(&graph);
        if ported.training.learning_rate.is_empty() {
            assert_eq!(name, "inverse_time", "the one form without words");
            continue;
        }
        let path = folder.path(&format!("{name}.yaml"));
        std::fs::write(&path, ported.experiment.unwrap()).unwrap();
        let update = Experiment::read(&path).unwrap().train.update().unwrap();
        let rates: Vec<(u32, f64)> = rates
            .split(' ')
            .map(|at| at.split_once(':').unwrap())
            .map(|(step, rate)| (step.parse().unwrap(), rate.parse().unwrap()))
            .collect();
        let largest = rates.iter().fold(0.0, |most: f64, (_, rate)| most.max(*rate));
        for (step, rate) in rates {
            // Documented in a note: after step 700 the rate differs, and a floor holds during the warm-up.
            if (name == "floor_switched" && step >= 700) || (name == "floor_warm_up" && step == 0) {
                continue;
            }
            let bound = if name == "epochs" { ROUNDED_LENGTH } else { ROUNDINGS } * rate + 2e-7 * largest;
            let ours = update.rate_at(step);
            assert!((ours - rate).abs() <= bound, "{name} at step {step}: {ours}, expected {rate}");
            n_compared += 1;
        }
    }
    assert!(n_compared > 300, "{n_compared} rates");
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

/// The help names the step as HLO only where it becomes HLO.
#[test]
fn help_does_not_name_a_step_that_does_not_become_hlo() {
    let folder = Folder::new();
    let float = "attr { key: \"T\" value { type: DT_FLOAT } }";
    let array = |name: &str, op: &str, n: i64| {
        format!(
            "node {{ name: {name:?} op: {op:?} attr {{ key: \"dtype\" value {{ type: DT_FLOAT }} }} \
             attr {{ key: \"shape\" value {{ shape {{ dim {{ size: {n} }} dim {{ size: 4 }} }} }} }} }}\n"
        )
    };
    for (op, is_hlo) in [("Sin", true), ("Frobnicate", false)] {
        let graph = array("x", "Placeholder", 8)
            + &array("w", "VariableV2", 4)
            + &format!("node {{ name: \"r\" op: \"Identity\" input: \"w\" {float} }}\n")
            + &format!("node {{ name: \"y\" op: \"MatMul\" input: \"x\" input: \"r\" {float} }}\n")
            + &format!("node {{ name: \"f\" op: {op:?} input: \"y\" {float} }}\n")
            + &format!("node {{ name: \"z\" op: \"MatMul\" input: \"f\" input: \"r\" {float} }}\n");
        std::fs::write(folder.path("g.pbtxt"), graph).unwrap();
        let output = folder.run(&["port", "g.pbtxt"]);
        let screen = text(&output.stdout);
        assert!(screen.contains(&format!("`{op}` of a layer has no word")), "{screen}{}", text(&output.stderr));
        let counts = (screen.contains("does not become HLO"), screen.contains("the step runs as HLO all the same"));
        assert_eq!(counts, (!is_hlo, is_hlo), "{screen}");
    }
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
    // A text file with a graph's extension.
    std::fs::write(folder.path("notes.pb"), "Notes on the model\n").unwrap();
    let output = folder.run(&["port", "notes.pb"]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("it is text that begins \"Notes on the model\"; expected a Saver's .meta"), "{message}");
}
