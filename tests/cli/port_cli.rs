//! `port` from a user's view: a graph's screen, folder and exit status; a graph as a module; a script.

#[path = "../../crates/tensorflow/tests/graphs/mod.rs"]
mod graphs;

use crate::train_cli::{Folder, text};

use bf16scope::experiment::Experiment;
use bf16scope::hlo::Literal;
use bf16scope::tensorflow;
use bf16scope::weights::{self, WrittenFormat};

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
        drop(std::fs::remove_file(folder.path("out/experiment.yaml")));
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

/// A node of a graph as text, of f32 and with these further attributes.
fn node(name: &str, op: &str, inputs: &[&str], attributes: &str) -> String {
    let inputs: String = inputs.iter().map(|input| format!("input: {input:?} ")).collect();
    let dtype = ["dtype", "T"].map(|key| format!("attr {{ key: {key:?} value {{ type: DT_FLOAT }} }} ")).concat();
    format!("node {{ name: {name:?} op: {op:?} {inputs}{dtype}{attributes} }}\n")
}

fn shape(dims: &[i64]) -> String {
    let dims: String = dims.iter().map(|dim| format!("dim {{ size: {dim} }} ")).collect();
    format!("attr {{ key: \"shape\" value {{ shape {{ {dims} }} }} }}")
}

/// `tf.layers.separable_conv2d` makes two layers, whose variables have one prefix: both start from the checkpoint.
#[test]
fn both_layers_of_a_separable_convolution_start_from_the_checkpoint() {
    let folder = Folder::new();
    let variables: [(&str, &[i64]); 4] = [
        ("sc/depthwise_kernel", &[3, 3, 3, 1]),
        ("sc/pointwise_kernel", &[1, 1, 3, 5]),
        ("sc/bias", &[5]),
        ("dense/kernel", &[5, 2]),
    ];
    let convolution = "attr { key: \"padding\" value { s: \"SAME\" } } \
                       attr { key: \"strides\" value { list { i: 1 i: 1 i: 1 i: 1 } } }";
    let axes = "node { name: \"axes\" op: \"Const\" attr { key: \"dtype\" value { type: DT_INT32 } } \
                attr { key: \"value\" value { tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } } int_val: 1 int_val: 2 \
                } } } }\n";
    let labels = "node { name: \"labels\" op: \"Placeholder\" attr { key: \"dtype\" value { type: DT_INT32 } } \
                  attr { key: \"shape\" value { shape { dim { size: 2 } } } } }\n";
    let graph = variables.map(|(name, dims)| node(name, "VariableV2", &[], &shape(dims))).concat()
        + &node("x", "Placeholder", &[], &shape(&[2, 4, 4, 3]))
        + labels
        + axes
        + &node("sc/depthwise", "DepthwiseConv2dNative", &["x", "sc/depthwise_kernel"], convolution)
        + &node("sc/pointwise", "Conv2D", &["sc/depthwise", "sc/pointwise_kernel"], convolution)
        + &node("sc/BiasAdd", "BiasAdd", &["sc/pointwise", "sc/bias"], "")
        + &node("mean", "Mean", &["sc/BiasAdd", "axes"], "")
        + &node("dense/MatMul", "MatMul", &["mean", "dense/kernel"], "")
        + &node("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["dense/MatMul", "labels"], "");
    let collection = "collection_def { key: \"losses\" value { node_list { value: \"entropy:0\" } } }";
    std::fs::write(folder.path("g.pbtxt"), format!("graph_def {{ {graph} }} {collection}")).unwrap();
    let array = |(at, (name, dims)): (usize, (&str, &[i64]))| {
        let n = dims.iter().product::<i64>() as usize;
        (name.to_string(), Literal::from_elements(dims.to_vec(), &vec![at as f32; n]))
    };
    let arrays: Vec<(String, Literal)> = variables.into_iter().enumerate().map(array).collect();
    weights::write(&folder.path("ckpt-1"), WrittenFormat::TensorFlow, arrays).unwrap();
    let output = folder.run(&["port", "g.pbtxt", "--checkpoint", "ckpt-1", "-o", "out"]);
    let screen = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{screen}{}", text(&output.stderr));
    assert!(screen.contains("(4 of 4 variables, "), "{screen}");
    let rules = std::fs::read_to_string(folder.path("out/rules.yaml")).unwrap();
    for rule in [
        "{ours: \"sc/kernel\", theirs: \"sc/depthwise_kernel\"}",
        "{ours: \"sc_1/kernel\", theirs: \"sc/pointwise_kernel\"}",
        "{ours: \"sc_1/bias\", theirs: \"sc/bias\"}",
    ] {
        assert!(rules.contains(rule), "{rule}\n{rules}");
    }
}

/// Attention of plain ops is read back with the graph's dims, for which matrices have an axis of heads.
#[test]
fn attention_is_read_back() {
    let folder = Folder::new();
    std::fs::write(folder.path("g.pbtxt"), graphs::encoder(0.5, -1e4)).unwrap();
    let output = folder.run(&["port", "g.pbtxt", "-o", "out"]);
    let screen = text(&output.stdout);
    assert!(screen.contains("(12 of its variables have the graph's dims)"), "{screen}{}", text(&output.stderr));
    let rules = std::fs::read_to_string(folder.path("out/rules.yaml")).unwrap();
    let query = "layer_0/attention/self/query/kernel";
    assert!(rules.contains(&format!("{{ours: {query:?}, theirs: {query:?}, joined: [[0], [1, 2]]}}")), "{rules}");
    let out = "{ours: \"layer_0/attention/self/out/kernel\", theirs: \"layer_0/attention/output/dense/kernel\", \
               joined: [[0, 1], [2]]}";
    assert!(rules.contains(out), "{rules}");
}

/// A kernel that does not fit its input has other dims here, which *differs* says.
#[test]
fn variables_with_other_dims_are_said() {
    let folder = Folder::new();
    let labels = "node { name: \"labels\" op: \"Placeholder\" attr { key: \"dtype\" value { type: DT_INT32 } } \
                  attr { key: \"shape\" value { shape { dim { size: 8 } } } } }\n";
    let graph = node("dense/kernel", "VariableV2", &[], &shape(&[2, 3]))
        + &node("x", "Placeholder", &[], &shape(&[8, 4]))
        + labels
        + &node("dense/MatMul", "MatMul", &["x", "dense/kernel"], "")
        + &node("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["dense/MatMul", "labels"], "");
    let collection = "collection_def { key: \"losses\" value { node_list { value: \"entropy:0\" } } }";
    std::fs::write(folder.path("g.pbtxt"), format!("graph_def {{ {graph} }} {collection}")).unwrap();
    let output = folder.run(&["port", "g.pbtxt", "-o", "out", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let differs = report["differs"].as_array().unwrap();
    let expected = "1 of 1 variables, such as `dense/kernel`, do not have the graph's dims here";
    assert!(differs.iter().any(|note| note["text"] == expected), "{report:#}{}", text(&output.stderr));
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

/// Summaries and assertions are left out: the screen's row of the step and a warning name them.
#[test]
fn ops_of_a_host_are_left_out_and_said() {
    let folder = Folder::new();
    let tag = "node { name: \"tag\" op: \"Const\" attr { key: \"value\" value { tensor { dtype: DT_STRING tensor_shape {} \
               string_val: \"mean\" } } } }\n";
    let graph = node("x", "Placeholder", &[], &shape(&[8]))
        + tag
        + &node("summary", "ScalarSummary", &["tag", "x"], "")
        + &node("again", "HistogramSummary", &["tag", "x"], "")
        + &node("more", "HistogramSummary", &["tag", "x"], "")
        + &node("y", "Tanh", &["x", "^summary", "^again", "^more"], "");
    std::fs::write(folder.path("g.pbtxt"), graph).unwrap();
    for (command, options) in [("port", &["--json"][..]), ("emit", &["-o", "y.txt"])] {
        let output = folder.run(&[&[command, "g.pbtxt"][..], options].concat());
        let (screen, message) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{message}");
        let (place, before) = match command {
            "port" => (&screen, "1 input; left out: "),
            _ => (&message, "warning: g.pbtxt: what only a host does is left out: "),
        };
        assert!(place.contains(&format!("{before}2 HistogramSummary, 1 ScalarSummary")), "{screen}{message}");
    }
}

/// The page has a table for each section that has rows.
#[test]
fn a_page_has_the_sections_of_the_screen() {
    let folder = Folder::new();
    for (name, has_slips) in [("plain_ops.meta", false), ("slip_sum_over_cores.meta", true)] {
        let graph = unpack(&folder, name);
        let report = folder.run(&["port", &graph, "--json", "--html", "page.html"]);
        let report: serde_json::Value = serde_json::from_str(&text(&report.stdout)).unwrap();
        let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
        assert!(page.contains(&format!("<title>{name}: what it becomes")), "{page}");
        for (heading, key) in [
            ("Becomes", "becomes"),
            ("Differs", "differs"),
            ("Missing", "missing"),
            ("Slips, shown by the graph", "slips"),
        ] {
            let rows = report[key].as_array().unwrap();
            assert_eq!(page.contains(&format!("<h2>{heading}</h2>")), !rows.is_empty(), "{name} {heading}: {page}");
        }
        assert_eq!(page.contains("Slips, shown by the graph"), has_slips);
        assert!(page.contains("<td>") && page.contains("instructions of HLO"), "{page}");
    }
}

/// The slots of Adam are in `start.safetensors` beside their variables, under the names that an experiment reads.
#[test]
fn slots_start_from_the_checkpoint() {
    let folder = Folder::new();
    let graph = unpack(&folder, "mlp_adam.meta");
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/tensorflow/tests/data/mlp_adam.safetensors");
    let recorded = weights::open(&recorded).unwrap();
    let trained = recorded.entries().iter().filter_map(|entry| entry.name.strip_prefix("after/"));
    let after = |name: &str| recorded.read(&format!("after/{name}")).unwrap();
    let arrays: Vec<(String, Literal)> = trained.map(|name| (name.to_string(), after(name))).collect();
    weights::write(&folder.path("ckpt-3"), WrittenFormat::TensorFlow, arrays).unwrap();
    let output = folder.run(&["port", &graph, "--checkpoint", "ckpt-3", "-o", "out"]);
    let screen = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{screen}{}", text(&output.stderr));
    assert!(screen.contains("start.safetensors (4 of 4 variables, 8 of 8 slots, "), "{screen}");
    let start = weights::open(folder.path("out/start.safetensors")).unwrap();
    for (theirs, ours) in [("Adam", "adam_m"), ("Adam_1", "adam_v")] {
        for variable in ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"] {
            let read = start.read(&format!("{variable}/{ours}")).unwrap();
            assert_eq!(read, after(&format!("{variable}/{theirs}")), "{variable}");
        }
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

/// The lines that led to a slip's, and the steps of the input pipeline, are in the JSON; the screen has one row for them.
#[test]
fn json_has_the_lines_that_led_to_a_place() {
    let folder = Folder::new();
    let lines = "attr { key: \"_bf16scope_source\" value { list { s: \"model.py:12\" s: \"train.py:40\" } } }";
    let variable = "attr { key: \"dtype\" value { type: DT_BFLOAT16 } } attr { key: \"shape\" value { shape { } } }";
    let plain = |name: &str, op: &str, inputs: &str| format!("node {{ name: {name:?} op: {op:?} {inputs} }}\n");
    let graph = format!("node {{ name: \"w\" op: \"VariableV2\" {variable} {lines} }}\n")
        + &plain("files", "TFRecordDataset", "")
        + &plain("repeat", "RepeatDataset", "input: \"files\"")
        + &plain("iterator", "IteratorV2", "")
        + &plain("make", "MakeIterator", "input: \"repeat\" input: \"iterator\"");
    std::fs::write(folder.path("g.pbtxt"), graph).unwrap();
    let output = folder.run(&["port", "g.pbtxt", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(report["slips"][0]["place"], "model.py:12");
    assert_eq!(report["slips"][0]["callers"], serde_json::json!(["train.py:40"]));
    assert_eq!(report["pipeline"][1]["text"], "repeat");
    let screen = text(&folder.run(&["port", "g.pbtxt"]).stdout);
    assert!(screen.contains("tfrecord → repeat"), "{screen}");
    assert!(screen.contains("model.py:12 (w): a variable is bf16") && !screen.contains("train.py:40"), "{screen}");
}

#[test]
fn a_script_is_read_and_not_run() {
    let folder = Folder::new();
    std::fs::write(folder.path("train.py"), "def f(x):\n  tf.cast(x, tf.bfloat16)\n  return x\n").unwrap();
    let output = folder.run(&["port", "train.py"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("train.py:2: a cast whose result is not used"), "{}", text(&output.stdout));
    std::fs::write(folder.path("odd.py"), "f = getattr(tf, name)\n\ng = getattr(tf, name)\n").unwrap();
    let screen = text(&folder.run(&["port", "odd.py"]).stdout);
    assert!(screen.contains("Not read: `getattr` (lines 1, 3).\n"), "{screen}");
    // The tracer's line has a name that is there; what is not TensorFlow's cannot be traced.
    assert!(screen.contains("`python -m bf16scope.tf odd.py:NAME`"), "{screen}");
    std::fs::write(folder.path("keras_net.py"), "def build(n=10):\n  return tf.keras.Model(x, Dense(n)(x))\n").unwrap();
    let screen = text(&folder.run(&["port", "keras_net.py"]).stdout);
    assert!(screen.contains("`python -m bf16scope.tf keras_net.py:build`"), "{screen}");
    std::fs::write(folder.path("torch_net.py"), "import torch\nfrom apex import amp\namp.initialize(net, opt)\n")
        .unwrap();
    let screen = text(&folder.run(&["port", "torch_net.py"]).stdout);
    assert!(screen.ends_with("Read from the source, and not run.\n"), "{screen}");
}

/// YAML is copied from the screen: no width folds it, while sentences are folded.
#[test]
fn a_sequential_is_printed_as_it_is_at_every_width() {
    let folder = Folder::new();
    let script = "model = Sequential([Conv2D(32, (3, 3), activation='relu', input_shape=(28, 28, 1)), Flatten(), Dense(10)])\n\
                  model.compile('adam', SparseCategoricalCrossentropy(from_logits=True))\n";
    std::fs::write(folder.path("net.py"), script).unwrap();
    let json = folder.json(&["port", "net.py", "--json"]);
    let experiment = json["experiment"].as_str().unwrap();
    assert!(experiment.lines().any(|line| line.len() > 80), "{experiment}");
    for columns in ["24", "40", "80"] {
        let mut command = folder.command_by(&[], &["port", "net.py"]);
        let screen = text(&command.env("COLUMNS", columns).output().unwrap().stdout);
        let (before, after) = screen.split_once(&format!("\n\n{experiment}\n")).expect(&screen);
        let width = columns.parse().unwrap();
        let is_folded = |line: &str| line.len() <= width || !line.trim().contains(' ') || line.contains('`');
        assert!(before.lines().chain(after.lines()).all(is_folded), "{columns}: {screen}");
    }
}

/// Keras' first examples, with the numbers of parameters that `model.summary()` shows.
#[test]
fn a_sequential_has_the_parameters_that_keras_counts() {
    let folder = Folder::new();
    let dense = "model = Sequential()\nmodel.add(Flatten(input_shape=(28, 28)))\nmodel.add(Dense(128, activation='relu'))\n\
                 model.add(Dropout(0.2))\nmodel.add(Dense(10, activation='softmax'))\n\
                 model.compile(loss='sparse_categorical_crossentropy')\n";
    let convolutions = "model = Sequential([\n  Conv2D(32, (3, 3), activation='relu', input_shape=(28, 28, 1)),\n  \
                        Conv2D(64, (3, 3)), ReLU(), MaxPooling2D(pool_size=(2, 2)), Dropout(0.25), Flatten(),\n  \
                        Dense(128), LeakyReLU(0.2), Dropout(0.5), Dense(10, dtype='float32')])\n\
                        model.compile('adam', SparseCategoricalCrossentropy(from_logits=True))\n";
    for (name, script, counts) in [
        ("dense", dense, &["100,480", "1,290", "101,770 parameters"][..]),
        ("cnn", convolutions, &["320", "18,496", "1,179,776", "1,199,882 parameters"]),
    ] {
        let file = format!("{name}.py");
        std::fs::write(folder.path(&file), script).unwrap();
        let output = folder.run(&["port", &file, "-o", name]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let output = folder.run(&["summary", &format!("{name}/experiment.yaml")]);
        let screen = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        counts.iter().for_each(|count| assert!(screen.contains(count), "{count}\n{screen}"));
    }
    // An experiment that was edited stays, and one that was not is written again.
    let path = folder.path("dense/experiment.yaml");
    assert_eq!(folder.run(&["port", "dense.py", "-o", "dense"]).status.code(), Some(0));
    let edited = std::fs::read_to_string(&path).unwrap() + "# data: {npz: mine.npz}\n";
    std::fs::write(&path, &edited).unwrap();
    let refused = folder.run(&["port", "dense.py", "-o", "dense"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        text(&refused.stderr),
        "bf16scope: dense/experiment.yaml is there, and would be written otherwise: it may have been edited\n\
         help: move it away, or name another folder\n"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), edited);
    // Without a word for each layer there is no network to write.
    std::fs::write(folder.path("odd.py"), "model = Sequential([Lambda(f)])\n").unwrap();
    let refused = folder.run(&["port", "odd.py", "-o", "odd"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("of its Sequential, line 1 is not followed"), "{}", text(&refused.stderr));
}

/// A checkpoint is compared with the graph where the network has no words, and without a folder; one that does not fit is an
/// error behind the screen.
#[test]
fn a_checkpoint_is_compared_with_the_graph_in_any_case() {
    let folder = Folder::new();
    let labels = "node { name: \"labels\" op: \"Placeholder\" attr { key: \"dtype\" value { type: DT_INT32 } } \
                  attr { key: \"shape\" value { shape { dim { size: 8 } } } } }\n";
    let graph = |between: &str| {
        let nodes = node("dense/kernel", "VariableV2", &[], &shape(&[4, 3]))
            + &node("x", "Placeholder", &[], &shape(&[8, 4]))
            + labels
            + &node("dense/MatMul", "MatMul", &["x", "dense/kernel"], "")
            + &node("y", between, &["dense/MatMul"], "")
            + &node("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["y", "labels"], "");
        let collection = "collection_def { key: \"losses\" value { node_list { value: \"entropy:0\" } } }";
        format!("graph_def {{ {nodes} }} {collection}")
    };
    std::fs::write(folder.path("odd.pbtxt"), graph("Sin")).unwrap();
    std::fs::write(folder.path("plain.pbtxt"), graph("Relu")).unwrap();
    let kernel = |dims: [i64; 2]| vec![("dense/kernel".to_string(), Literal::from_elements(dims, &[0.5f32; 12]))];
    weights::write(&folder.path("ckpt-1"), WrittenFormat::TensorFlow, kernel([4, 3])).unwrap();
    weights::write(&folder.path("ckpt-2"), WrittenFormat::TensorFlow, kernel([3, 4])).unwrap();
    for (graph, checkpoint, options, row, status) in [
        (
            "odd.pbtxt",
            "ckpt-1",
            &["-o", "odd"][..],
            "1 of the graph's 1 variables are in it with their dims; no variables start from it",
            0,
        ),
        (
            "odd.pbtxt",
            "ckpt-2",
            &[],
            "0 of the graph's 1 variables are in it with their dims; `dense/kernel` of dims [4, 3] is not",
            0,
        ),
        ("plain.pbtxt", "ckpt-1", &[], "with their dims; `-o FOLDER` writes start.safetensors", 0),
        ("plain.pbtxt", "ckpt-2", &["-o", "plain"], "", 2),
    ] {
        let arguments = [&["port", graph, "--checkpoint", checkpoint, "--json"], options].concat();
        let output = folder.run(&arguments);
        let (json, message) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(status), "{graph} {checkpoint}: {message}");
        let report: serde_json::Value = serde_json::from_str(&json).unwrap();
        if status == 0 {
            assert!(report["checkpoint"].as_str().unwrap().contains(row), "{report:#}");
            assert_eq!(report["missing"].as_array().unwrap().is_empty(), graph == "plain.pbtxt");
        }
        assert_eq!(report["error"].is_object(), status == 2, "{report:#}");
        assert_eq!(message.contains("0 of the network's 1 variables are in it"), status == 2, "{message}");
    }
    assert!(!folder.path("odd/start.safetensors").exists());
    let behind = folder.run(&["port", "plain.pbtxt", "--checkpoint", "ckpt-2", "-o", "again"]);
    assert_eq!(behind.status.code(), Some(2));
    assert!(text(&behind.stdout).contains("0 of the graph's 1 variables"), "{}", text(&behind.stdout));
    let screen = text(&folder.run(&["port", "odd.pbtxt", "--checkpoint", "ckpt-1"]).stdout);
    for part in ["Becomes", "checkpoint", "Missing", "Slips: "] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
}

/// Each section of an experiment has its place in the graph.
#[test]
fn sections_have_the_node_that_they_come_from() {
    let folder = Folder::new();
    let graph = unpack(&folder, "slip_sum_over_cores.meta");
    let output = folder.run(&["port", &graph, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let section =
        |name: &str| report["becomes"].as_array().unwrap().iter().find(|line| line["section"] == name).unwrap();
    for (name, part) in [("loss", "SparseSoftmaxCrossEntropyWithLogits"), ("optimizer", "GradientDescent/update_")] {
        let node = section(name)["node"].as_str().unwrap();
        assert!(node.contains(part), "{name}: {node}");
    }
    assert_eq!(section("mesh")["text"], "mesh: {data: 8}");
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
        let counts =
            (screen.contains("does not become HLO"), screen.contains("the graph predicts as HLO all the same"));
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
