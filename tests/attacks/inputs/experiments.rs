//! Experiments: each value of the examples replaced by an invalid one, and files that are not documents.

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use bf16scope::document::{self, ConfigError};
use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::train::program;
use bf16scope::tuning::Tuning;

/// Values that replace a value of another type.
const VALUES: [&str; 24] = [
    "-1",
    "0",
    "1",
    "0.5",
    "-0.5",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "1.0e+308",
    "1.0e-300",
    "1.0e+400",
    ".nan",
    ".inf",
    "-.inf",
    "~",
    "\"\"",
    "\"32\"",
    "text",
    "true",
    "[]",
    "[1, 2]",
    "{}",
    "{kind: none}",
];

/// A small experiment of every kind, with every key.
const EXPERIMENTS: [&str; 5] = [
    "model:
  kind: mlp
  input: [4]
  n_classes: 3
  hidden: [5]
  dropout: 0.25
tune:
  remat: elementwise
train:
  batch: 4
  epochs: 1
  seed: 7
  shift: 0
  accumulate: 2
  label_smoothing: 0.1
  loss_scale: static:1024
  optimizer:
    kind: momentum
    momentum: 0.9
    nesterov: true
    momentum_dtype: bf16
  learning_rate:
    kind: warm_up_step
    value: 0.1
    warm_up: 2
    drops:
      - step: 3
        multiplier: 0.5
  weight_decay:
    value: 1.0e-3
    except: [bias]
data:
  csv: rows.csv
  scale: 0.5
  n_test: 2
",
    "model:
  kind: cnn
  input: [6, 6, 1]
  n_classes: 3
  filters: [2]
  kernel: 3
  hidden: [2]
  dropout: 0.25
train:
  batch: 2
  optimizer:
    kind: adam
    beta1: 0.9
    beta2: 0.999
    epsilon: 1.0e-8
  learning_rate:
    kind: exponential
    value: 0.1
    decay_steps: 3
    decay_rate: 0.5
    staircase: true
",
    "model:
  kind: resnet
  depth: 18
  width: 2
  input: [32, 32, 1]
  n_classes: 3
  padding: same
  momentum: 0.9
  epsilon: 1.0e-5
tune:
  base: auto
  stem: space_to_depth
  pair_columns: true
  norm_gradient: per_feature
  remat: elementwise
",
    "model:
  kind: transformer
  vocabulary: 9
  length: 4
  max_length: 8
  layers: 1
  features: 4
  heads: 2
  hidden: 4
  causal: true
  dropout: 0.25
tune:
  base: none
  softmax: one_pass
  layer_remat:
    weights: all
    attention: 1
    values: 1
    hidden: 0
  cotangent_remat: true
  pace: false
  transpose_input: true
train:
  batch: 2
  optimizer:
    kind: adafactor
    decay_exponent: 0.8
    clipping_threshold: 1.0
    momentum: 0.9
    min_dim_size_to_factor: 2
    epsilon1: 1.0e-30
    epsilon2: 1.0e-3
  learning_rate:
    kind: inverse_sqrt
    value: 0.1
    constant_until: 3
",
    "model:
  kind: layers
  inputs:
    x: [2, 4, 8]
    steps: [5, 3]
  outputs:
    logits: head
    scores: score
    left: first
    right: second
  layers:
    - attention: 2
      attention_axes: 2
      window: 2
      inputs: x
      name: windows
    - rfft: power
      axis: -1
      inputs: windows
      name: bins
    - irfft: 8
      axis: 3
      inputs: [bins, bins]
      name: back
    - fft: abs
      axis: [2, 3]
      inputs: back
    - reshape: [-1]
      name: flat
    - constant: [0.5, -2, 1]
      name: offsets
    - dense: 3
      inputs: flat
      name: plain
    - add: [plain, offsets]
      name: head
    - dense: 4
      inputs: flat
      name: first
    - dense: 4
      inputs: flat
      name: second
    - variable: [3, 3]
      name: transitions
    - viterbi: [steps, transitions]
      name: score
  loss:
    - sparse_softmax_focal_cross_entropy:
      output: logits
      gamma: 2
      alpha: 0.25
    - sigmoid_focal_cross_entropy:
      output: logits
      labels: answers
      gamma: 0.5
      alpha: 0.75
    - softmax_focal_cross_entropy:
      output: logits
      labels: shares
      weight: 0.5
    - crf:
      output: steps
      transitions: transitions
      labels: tags
    - matching:
      output: left
      with: right
      temperature: 0.07
train:
  batch: 4
",
];

/// The error of an experiment, or that its program can be built.
fn outcome(text: &str) -> Result<(), String> {
    let experiment: Experiment =
        document::from_str("e.yaml", text).map_err(|error: ConfigError| format!("read: {error}"))?;
    let batch = i64::from(experiment.train.batch);
    let objective = experiment.objective(Precision::Bf16, &Tuning::none()).unwrap();
    let program = program::training(&*experiment.task(), Precision::Bf16, batch, &objective);
    program.map_err(|error| format!("built: {error}"))?;
    Ok(())
}

/// Each line `key: value` of a document with each of [`VALUES`].
fn replaced() -> impl Iterator<Item = String> {
    EXPERIMENTS.iter().flat_map(|document| {
        let lines: Vec<&str> = document.lines().collect();
        let with = |at: usize, line: String| {
            let mut lines = lines.clone();
            lines[at] = &line;
            lines.join("\n") + "\n"
        };
        (0..lines.len())
            .flat_map(|at| {
                let (key, value) = lines[at].split_once(':').unwrap_or((lines[at], ""));
                let key = key.to_string();
                let has_value = !value.trim().is_empty();
                VALUES.iter().filter(move |_| has_value).map(move |value| (at, format!("{key}: {value}")))
            })
            .map(|(at, line)| with(at, line))
            .collect::<Vec<String>>()
    })
}

#[test]
fn every_value_is_refused_with_its_place_or_makes_a_program() {
    let (mut n_read, mut n_built, mut n_made) = (0, 0, 0);
    let mut failures = Vec::new();
    for text in replaced() {
        let began = Instant::now();
        let outcome = catch_unwind(|| outcome(&text));
        let what = match outcome {
            Ok(Ok(())) => {
                n_made += 1;
                None
            }
            Ok(Err(error)) if error.starts_with("read: ") => {
                n_read += 1;
                // Either the place, with its line below, or that the whole document lacks something.
                let has_place = error.starts_with("read: e.yaml:") && error.contains(" | ");
                (!has_place).then(|| format!("no place: {error}"))
            }
            Ok(Err(error)) => {
                n_built += 1;
                (error.trim() == "built:").then(|| "no words".to_string())
            }
            Err(_) => Some("a panic".to_string()),
        };
        failures.extend(what.map(|what| format!("{what}\n{text}")));
        if began.elapsed() > Duration::from_secs(20) {
            failures.push(format!("{:?}\n{text}", began.elapsed()));
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n\n"));
    println!("{n_read} refused by the reader, {n_built} by the builder, {n_made} make a program");
    assert!(n_read + n_built > 1000, "{n_read} and {n_built}");
}

/// The mlp with one text replaced.
fn with(from: &str, to: &str) -> String {
    assert!(EXPERIMENTS[0].contains(from));
    EXPERIMENTS[0].replace(from, to)
}

#[test]
fn documents_that_are_none_are_refused_with_their_place() {
    let mlp = EXPERIMENTS[0];
    let nested = format!("model: {}1{}", "[".repeat(100), "]".repeat(100));
    let cases = [
        ("", "missing key `model`"),
        ("\n\n# nothing\n", "missing key `model`"),
        ("~\n", "found nothing"),
        ("[]\n", "found a list"),
        ("text\n", "found string \"text\""),
        ("1\n", "found integer"),
        ("{}\n", "missing key `model`"),
        (&format!("{mlp}---\n{mlp}"), "more than one document"),
        (&nested, "found a list"),
        (&with("  batch: 4", "\tbatch: 4"), "not valid yaml"),
        (&with("  batch: 4", "  batch: 4\n  batch: 8"), "key `batch` is given twice"),
        (&with("  batch: 4", "  batch: 4\n  btach: 8"), "unknown key `btach`"),
        (&with("  batch: 4", "    batch: 4"), "e.yaml:"),
        (&with("  batch: 4", "  batch: [4"), "help: `[` of line 10, column 10 is open here"),
        (&with("  batch: 4", "  batch: \"4"), "e.yaml:"),
        (&with("  batch: 4", "  batch: *four"), "e.yaml:"),
        (&with("  batch: 4", "  batch: !!float 4"), ""),
        (&with("  batch: 4", "  batch: 4\0"), "e.yaml:"),
        (&with("  batch: 4", "  batch: 0x"), "found string"),
        (&with("kind: mlp", "kind: mlpp"), "unknown value `mlpp`"),
        (&with("  kind: mlp\n", ""), "missing key `kind`"),
        (&mlp.replace("data:", "data: {csv: [1]}\nmore:"), "found a list"),
        (&format!("{mlp}train: {{}}\n"), "key `train` is given twice"),
        (&mlp[..mlp.len() / 2], ""),
    ];
    let mut failures = Vec::new();
    for (text, expected) in cases {
        match (outcome(text), expected) {
            (Ok(()), "") => {}
            (Err(error), expected) if error.contains(expected) => {}
            (outcome, expected) => failures.push(format!("{outcome:?}, expected {expected}:\n{text}")),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn other_ways_to_write_the_same_document_are_read() {
    let mlp = EXPERIMENTS[0];
    let read =
        |text: &str| document::from_str::<Experiment>("e.yaml", text).map_err(|error: ConfigError| error.to_string());
    let expected = read(mlp).unwrap();
    for text in [
        format!("\u{FEFF}{mlp}"),
        mlp.replace('\n', "\r\n"),
        format!("--- # one document\n{mlp}...\n"),
        mlp.replace("batch: 4", "batch: &four 4"),
        mlp.replace("batch: 4", "batch: 0x4"),
        mlp.replace("hidden: [5]", "hidden:\n    - 5"),
        mlp.replace("momentum: 0.9", "momentum: 9.0e-1"),
    ] {
        assert_eq!(read(&text), Ok(expected.clone()), "{text}");
    }
}

/// Values that would cause silent errors are refused, with the line and the column.
#[test]
fn what_would_train_to_nothing_is_refused() {
    let refused = |from: &str, to: &str, expected: &str| {
        let error = outcome(&with(from, to)).expect_err(to);
        assert!(error.contains(expected), "{to}: expected {expected}, not\n{error}");
    };
    refused(
        "dropout: 0.25",
        "dropout: .nan",
        "found floating point `NaN`, expected a number from 0 up to but not including 1",
    );
    refused("dropout: 0.25", "dropout: 1", "found integer `1`, expected a number from 0");
    refused("batch: 4", "batch: 0", "found integer `0`, expected a whole number from 1 to 2147483647");
    refused("epochs: 1", "epochs: -1", "found integer `-1`, expected a whole number from 0 to 2147483647");
    refused("  value: 0.1", "  value: -1", "expected 0, or a finite number above 0 in f32");
    refused("  value: 0.1", "  value: .inf", "expected 0, or a finite number above 0 in f32");
    refused("  value: 0.1", "  value: 1.0e+39", "expected 0, or a finite number above 0 in f32");
    refused("momentum: 0.9", "momentum: 2", "expected a number from 0 up to but not including 1");
    refused("momentum: 0.9", "momentum: 1", "expected a number from 0 up to but not including 1");
    refused("label_smoothing: 0.1", "label_smoothing: 1", "expected a number from 0 up to but not including 1");
    refused("scale: 0.5", "scale: 0", "expected a number other than 0 that f32 can hold");
    refused("scale: 0.5", "scale: .nan", "expected a number other than 0 that f32 can hold");
    refused("scale: 0.5", "scale: 1.0e-40", "expected a number other than 0 that f32 can hold");
    refused("n_classes: 3", "n_classes: 0", "expected a whole number of at least 1");
    refused("input: [4]", "input: [4, -1]", "expected a whole number of at least 1");
    refused("value: 1.0e-3", "value: -1.0e-3", "expected 0, or a finite number above 0 in f32");
    refused("static:1024", "static:nan", "found string \"static:nan\", expected none, dynamic");
    // Its inverse, or itself, is no number of f32.
    refused("static:1024", "static:1.0e-60", "found string \"static:1.0e-60\", expected none, dynamic");
    refused("static:1024", "static:3.0e38", "found string \"static:3.0e38\", expected none, dynamic");
    refused("accumulate: 2", "accumulate: 3", "accumulate is 3, which does not divide the batch of 4");
    refused("remat: elementwise", "remat: [blok*]", "blok*");
}

/// Regression: building a program of 600 kB of layers took two minutes and 5.7 GB. So many layers are refused before building.
#[test]
fn more_layers_than_are_built_are_refused_at_once() {
    let read = |text: String| {
        let error = document::from_str::<Experiment>("e.yaml", &text).map(|_| ()).map_err(|error| error.to_string());
        error.expect_err("too many layers").lines().next().unwrap().to_string()
    };
    let mlp = |hidden: String| format!("model: {{kind: mlp, input: [4], n_classes: 3, hidden: [{hidden}]}}\n");
    let began = Instant::now();
    let error = read(mlp("1, ".repeat(200_000)));
    assert!(error.starts_with("e.yaml:1:54: ") && error.contains("200000 numbers, expected at most 1000"), "{error}");
    let layers = |layer: &str, n: usize| {
        let list = format!("    - {layer}\n").repeat(n);
        format!(
            "model:\n  kind: layers\n  inputs: {{x: [2, 8]}}\n  layers:\n{list}  loss: sparse_softmax_cross_entropy\n"
        )
    };
    let error = read(layers("{dense: 4}", 20_000));
    assert!(error.starts_with("e.yaml:12005:7: the network has more than 12000 layers"), "{error}");
    let error = read(layers("{transformer_block: 2, intermediate_dim: 8, repeats: 1000}", 2));
    assert!(error.starts_with("e.yaml:6:7: the network has more than 12000 layers"), "{error}");
    // Reading them is all that is done; in a debug build on a busy machine some seconds.
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

/// `matching` has no labels: its error named a label `0` of the first tower's dims.
#[test]
fn towers_of_other_dims_are_named() {
    let text = "model:\n  kind: layers\n  inputs: {x: [4]}\n  layers:\n    - {dense: 5, name: items, inputs: x}\n    - {dense: 3, name: users, inputs: \
                x}\n  loss: {matching: , with: items}\n";
    let error = document::from_str::<Experiment>("e.yaml", text).map(|_| ()).map_err(|error| error.to_string());
    let error = error.expect_err("3 are not 5");
    let expected = "e.yaml:7:9: loss `matching` judges `users` by `items` f32[batch, 5]: second f32[32,5] differ from first f32[32,3], \
                    expected one shape";
    assert_eq!(error.lines().next(), Some(expected));
}

/// Sizes near the end of the range of whole numbers, of every layer that has one: an LSTM of 2^62 units and a separable
/// convolution whose multiplier was as large overflowed.
#[test]
fn sizes_of_layers_that_overflow_are_refused() {
    const LAYERS: [(&str, &str); 44] = [
        ("{dense: N}", "[8]"),
        ("{lstm: N}", "[3, 4]"),
        ("{lstm: N, bidirectional: true}", "[3, 4]"),
        ("{gru: N}", "[3, 4]"),
        ("{llama_block: 2, intermediate_dim: N}", "[4, 8]"),
        ("{llama_block: 2, intermediate_dim: 8, head_dim: N}", "[4, 8]"),
        ("{llama_block: 2, intermediate_dim: 8, num_key_value_heads: N}", "[4, 8]"),
        ("{attention: 2, head_dim: N}", "[4, 8]"),
        ("{attention: N, head_dim: 4}", "[4, 8]"),
        ("{attention: 2}", "[N, 8]"),
        ("{transformer_block: N, intermediate_dim: 4}", "[4, 8]"),
        ("{transformer_block: 2, intermediate_dim: N}", "[4, 8]"),
        ("{embedding: 10, output_dim: N}", "{shape: [8], dtype: int32, below: 10}"),
        ("{embedding: N, output_dim: N}", "{shape: [8], dtype: int32, below: 10}"),
        ("{position_embedding: N}", "[4, 8]"),
        ("{conv: N, kernel_size: 3}", "[8, 8, 4]"),
        ("{conv: 4, kernel_size: N}", "[8, 8, 4]"),
        ("{conv: 4, kernel_size: 3, padding: same, strides: N}", "[8, 8, 4]"),
        ("{conv: 4, kernel_size: 3, padding: same, dilation_rate: N}", "[8, 8, 4]"),
        ("{conv: 4, kernel_size: 3, groups: N}", "[8, 8, 4]"),
        ("{conv1d: 4, kernel_size: 3, strides: N}", "[8, 4]"),
        ("{conv_transpose: 4, kernel_size: 3, strides: N}", "[8, 8, 4]"),
        ("{conv_transpose: 4, kernel_size: N, strides: 2}", "[8, 8, 4]"),
        ("{separable_conv: 4, kernel_size: 3, depth_multiplier: N}", "[8, 8, 4]"),
        ("{depthwise_conv: 3, depth_multiplier: N}", "[8, 8, 4]"),
        ("{mb_conv: 8, kernel_size: 3, expand_ratio: N}", "[8, 8, 8]"),
        ("{group_norm: N}", "[8, 8, 4]"),
        ("{max_pool: N}", "[8, 8, 1]"),
        ("{avg_pool: 2, strides: N, padding: same}", "[8, 8, 1]"),
        ("{upsample: N}", "[8, 8, 4]"),
        ("{zero_padding: N}", "[8, 8, 4]"),
        ("{reshape: [N, 2]}", "[8]"),
        ("{permute: [N]}", "[8]"),
        ("flatten", "[N, N]"),
        ("{attention: 2, attention_axes: N}", "[2, 4, 8]"),
        ("{attention: 2, attention_axes: 2}", "[N, 4, 8]"),
        ("{attention: 2, window: N}", "[4, 8]"),
        ("{fft: real, axis: N}", "[4, 8]"),
        ("{fft: real, axis: [1, N]}", "[4, 8]"),
        ("{fft: abs}", "[N]"),
        ("{rfft: power}", "[4, N]"),
        ("{irfft: N, inputs: [x, x]}", "[4, 8]"),
        ("{constant: [N, 1], to: int32}", "[2]"),
        ("{variable: [N, N]}", "[2]"),
    ];
    let mut n_refused = 0;
    for (layer, dims) in LAYERS {
        // 2^32; 2^61 to 2^63 - 1, and a third of that, rounded up.
        for n in
            ["4294967296", "2305843009213693952", "3074457345618258603", "4611686018427387904", "9223372036854775807"]
        {
            let text = format!(
                "model:\n  kind: layers\n  inputs: {{x: {dims}}}\n  layers: [{layer}]\n  loss: mean_squared_error\n"
            );
            // Sizes that the network allows, such as a stride beyond its input, may be as large.
            let read = document::from_str::<Experiment>("e.yaml", &text.replace('N', n));
            n_refused += usize::from(read.is_err());
            // It ended the program: there are as many angles.
            if layer.contains("8, head_dim: N") && n == "4294967296" {
                let error = read.unwrap_err().to_string();
                assert!(error.contains("a head has 4294967296 features that are rotated, expected at most"), "{error}");
            }
        }
    }
    assert!(n_refused >= 120, "{n_refused}");
}
