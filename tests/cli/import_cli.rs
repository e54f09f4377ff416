//! `bf16scope weights --model`: converts whole networks of other frameworks to checkpoints that compute the same, and
//! back, to the bit.

use crate::train_cli::Folder;

use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::hlo::Literal;
use bf16scope::pjrt::Client;
use bf16scope::train::checkpoint::Checkpoint;
use bf16scope::train::{Completer, Sampling};
use bf16scope::tuning::Tuning;
use bf16scope::weights;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/imported").join(name)
}

/// An output is at most 40 operations deep, each a sum of up to 64 products or a few roundings: another order of sums
/// changes each by up to 64 · 2^-24.
const ANOTHER_ORDER: f64 = 40.0 * 64.0 / (1 << 24) as f64;

/// Imports a network, and compares its logits in both precisions. Returns the command's output.
fn import(folder: &Folder, weights: &str, network: &str, rules: &str) -> Value {
    import_with(folder, weights, network, rules, &[])
}

fn import_with(folder: &Folder, weights: &str, network: &str, rules: &str, more: &[&str]) -> Value {
    let at = |end: &str| data(&format!("{network}{end}")).display().to_string();
    let out = format!("{network}.safetensors");
    let weights = data(weights).display().to_string();
    let (model, arrays) = (at(".yaml"), at(".npz"));
    let args = ["weights", &weights, "--model", &model, "-o", &out, "--check", &arrays, "--json"];
    let report = folder.stdout(&[&args[..], more].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["rules"], &report["step"]), (&rules.into(), &0.into()));
    assert_eq!(report["left_over"], Value::Array(Vec::new()));
    let [f32, bf16] = &report["checked"].as_array().unwrap()[..] else { panic!("{report}") };
    let number = |column: &Value, key: &str| column[key].as_f64().unwrap();
    assert!(number(f32, "rms") <= ANOTHER_ORDER * number(f32, "recorded_rms"), "{network}: {f32}");
    assert!(number(bf16, "rms") <= 1.5 * number(bf16, "theirs_rms"), "{network}: {bf16}");
    report
}

/// Each array of a file: its name without an optional prefix, and a checksum of its bytes.
fn sums(file: &Path, prefix: &str) -> Vec<(String, u32)> {
    let file = weights::open(file).unwrap();
    let name = |name: &str| name.strip_prefix(prefix).unwrap_or(name).to_string();
    let mut sums: Vec<(String, u32)> =
        file.entries().iter().map(|entry| (name(&entry.name), file.look(&entry.name).unwrap().crc32c)).collect();
    sums.sort();
    sums
}

#[test]
fn gpt2_computes_what_transformers_does_and_goes_back() {
    let folder = Folder::new();
    let report = import(&folder, "gpt2.pt", "gpt2", "gpt2");
    let logits = report["variables"].as_array().unwrap().iter().find(|it| it["variable"] == "logits/kernel").unwrap();
    assert_eq!((&logits["from"], &logits["how"]), (&"lm_head.weight".into(), &"transposed [1, 0]".into()));
    let model = data("gpt2.yaml").display().to_string();
    folder.stdout(&[
        "weights",
        "gpt2.safetensors",
        "--model",
        &model,
        "--rules",
        "gpt2",
        "--format",
        "safetensors",
        "-o",
        "back.safetensors",
    ]);
    // By `GPT2LMHeadModel`'s names, which have a prefix except for the head.
    assert_eq!(sums(&folder.path("back.safetensors"), ""), sums(&data("gpt2.pt"), ""));

    completes(&folder, "gpt2");
}

/// Equals the output of `generate`, token for token.
fn completes(folder: &Folder, network: &str) {
    let path = folder.path(&format!("{network}.safetensors"));
    let checkpoint = Checkpoint::read(&path).unwrap();
    let task = Experiment::read(data(&format!("{network}.yaml"))).unwrap().task();
    let completer = Completer::new(&Client::cpu().unwrap(), &*task, Precision::F32, &Tuning::none()).unwrap();
    let file = weights::open(data(&format!("{network}.npz"))).unwrap();
    let Literal::Array { bytes, .. } = file.read("greedy").unwrap() else { panic!("no array") };
    let greedy: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let more = greedy.len() - 5;
    let ids = completer.complete(&path, &checkpoint, &greedy[..5], more, &Sampling::default(), |_| ()).unwrap();
    assert_eq!(ids, greedy[5..]);
}

/// Grouped queries, rotary positions with Llama 3.1's scaling, RMS norms and gates; a file in bf16, like published
/// Llama weights.
#[test]
fn llama_computes_what_transformers_does_and_goes_back() {
    let folder = Folder::new();
    let report = import(&folder, "llama.safetensors", "llama", "llama");
    let variable =
        |ours: &str| report["variables"].as_array().unwrap().iter().find(|it| it["variable"] == ours).unwrap();
    let key = variable("decoder/block2/attention/heads/key/kernel");
    let how = "transposed [1, 0], axes [[0], [1, 2]] taken apart; widened";
    assert_eq!((&key["from"], &key["how"]), (&"model.layers.1.self_attn.k_proj.weight".into(), &how.into()));
    comes_back(&folder, "llama");
    completes(&folder, "llama");
}

/// A class token with its own position, and norms before the branches; by the names in the file of `save_pretrained`,
/// and by those of the modules in transformers 5.
#[test]
fn vit_computes_what_transformers_does_and_goes_back() {
    let folder = Folder::new();
    let report = import(&folder, "vit.safetensors", "vit", "vit");
    let variable =
        |ours: &str| report["variables"].as_array().unwrap().iter().find(|it| it["variable"] == ours).unwrap();
    assert_eq!(variable("class_token/token")["how"], "axes [0, 1] of length 1 left out; widened");
    assert_eq!(variable("position_embedding/embeddings")["how"], "axes [0] of length 1 left out; widened");
    comes_back(&folder, "vit");

    let file = weights::open(data("vit.safetensors")).unwrap();
    let renamed = |name: &str| {
        let pairs = [
            ("encoder.layer.", "layers."),
            ("attention.attention.query", "attention.q_proj"),
            ("attention.attention.key", "attention.k_proj"),
            ("attention.attention.value", "attention.v_proj"),
            ("attention.output.dense", "attention.o_proj"),
            ("intermediate.dense", "mlp.fc1"),
            ("output.dense", "mlp.fc2"),
        ];
        pairs.iter().fold(name.to_string(), |name, (from, to)| name.replace(from, to))
    };
    let arrays = file.entries().iter().map(|entry| (renamed(&entry.name), file.read(&entry.name).unwrap()));
    weights::write(&folder.path("modules.npz"), weights::WrittenFormat::Npz, arrays).unwrap();
    let model = data("vit.yaml").display().to_string();
    folder.stdout(&["weights", "modules.npz", "--model", &model, "-o", "modules.safetensors"]);
    assert_eq!(sums(&folder.path("modules.safetensors"), ""), sums(&folder.path("vit.safetensors"), ""));
}

/// Exported, a checkpoint has the file's names and shapes, and imports to the same checkpoint.
fn comes_back(folder: &Folder, network: &str) {
    let model = data(&format!("{network}.yaml")).display().to_string();
    let checkpoint = format!("{network}.safetensors");
    let back = ["--rules", network, "--format", "safetensors", "-o", "back.safetensors"];
    folder.stdout(&[&["weights", &checkpoint, "--model", &model], &back[..]].concat());
    let shapes = |file: &Path| -> BTreeMap<String, Vec<u64>> {
        let file = weights::open(file).unwrap();
        file.entries().iter().map(|entry| (entry.name.clone(), entry.dims.clone())).collect()
    };
    assert_eq!(shapes(&folder.path("back.safetensors")), shapes(&data(&checkpoint)));
    folder.stdout(&["weights", "back.safetensors", "--model", &model, "-o", "again.safetensors"]);
    assert_eq!(sums(&folder.path("again.safetensors"), ""), sums(&folder.path(&checkpoint), ""));
}

#[test]
fn bert_computes_what_transformers_does_and_goes_back() {
    let folder = Folder::new();
    import(&folder, "bert.pt", "bert", "bert");
    let model = data("bert.yaml").display().to_string();
    folder.stdout(&[
        "weights",
        "bert.safetensors",
        "--model",
        &model,
        "--rules",
        "bert",
        "--format",
        "npz",
        "-o",
        "back.npz",
    ]);
    // A buffer of positions is not a weight.
    let theirs: Vec<_> =
        sums(&data("bert.pt"), "").into_iter().filter(|(name, _)| !name.ends_with("position_ids")).collect();
    assert_eq!(sums(&folder.path("back.npz"), ""), theirs);
}

#[test]
fn a_network_of_keras_computes_what_keras_does() {
    let folder = Folder::new();
    import(&folder, "mobile_names.npz", "mobile", "names");
    // Two exchanged variables give another function, and the command reports it.
    let rules = "family: swapped\nabout: a test\nrules:\n  - {ours: stem_bn/gamma, theirs: stem_bn/beta}\n  \
                 - {ours: stem_bn/beta, theirs: stem_bn/gamma}\n  - {ours: '{*name}', theirs: '{name}'}\n";
    std::fs::write(folder.path("swapped.yaml"), rules).unwrap();
    let path = |name: &str| data(name).display().to_string();
    let output = folder.run(&[
        "weights",
        &path("mobile_names.npz"),
        "--model",
        &path("mobile.yaml"),
        "--rules",
        "swapped.yaml",
        "--check",
        &path("mobile.npz"),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(message.contains("it is another function, or a variable is in another's place"), "{message}");
    // A recorded NaN is reported.
    let recorded = weights::open(data("mobile.npz")).unwrap();
    let mut arrays: Vec<(String, Literal)> =
        recorded.entries().iter().map(|entry| (entry.name.clone(), recorded.read(&entry.name).unwrap())).collect();
    for (_, literal) in arrays.iter_mut().filter(|(name, _)| name == "logits") {
        let Literal::Array { bytes, .. } = literal else { panic!("logits are an array") };
        bytes[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    }
    weights::write(&folder.path("nan.npz"), weights::WrittenFormat::Npz, arrays).unwrap();
    let output =
        folder.run(&["weights", &path("mobile_names.npz"), "--model", &path("mobile.yaml"), "--check", "nan.npz"]);
    let message = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("logits in f32: of 1 elements one, recorded or predicted, is NaN or infinite"),
        "{message}"
    );
    assert!(!message.contains("another function"), "{message}");
}

#[test]
fn keras_own_file_is_read_by_names_of_layers_or_else_by_their_order() {
    let folder = Folder::new();
    let report = import(&folder, "mobile.keras", "mobile", "keras");
    let from = |report: &Value, ours: &str| {
        let variable = report["variables"].as_array().unwrap().iter().find(|it| it["variable"] == ours).unwrap();
        variable["from"].as_str().unwrap().to_string()
    };
    assert_eq!(from(&report, "pointwise1_bn/beta"), "layers/batch_normalization_4/vars/1");
    let by_name = sums(&folder.path("mobile.safetensors"), "");
    // The same network with other layer names.
    let text = std::fs::read_to_string(data("mobile.yaml")).unwrap();
    let text = text.replace("depthwise", "spatial").replace("spatial_conv", "depthwise_conv").replace("stem", "first");
    std::fs::write(folder.path("renamed.yaml"), text.replace("pointwise", "mixing").replace("logits", "classes"))
        .unwrap();
    let keras = data("mobile.keras").display().to_string();
    let report = folder.stdout(&["weights", &keras, "--model", "renamed.yaml", "-o", "renamed.safetensors", "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["rules"], &report["left_over"]), (&"keras_numbered".into(), &Value::Array(Vec::new())));
    assert_eq!(from(&report, "mixing1_bn/beta"), "layers/batch_normalization_4/vars/1");
    // No two of its kernels have one class and shape.
    assert_eq!(report["about_order"], Value::Null);
    let values = |sums: Vec<(String, u32)>| {
        let mut values: Vec<u32> = sums.into_iter().map(|(_, sum)| sum).collect();
        values.sort_unstable();
        values
    };
    assert_eq!(values(sums(&folder.path("renamed.safetensors"), "")), values(by_name));
}

/// Biases of Keras' attention have an axis of heads, in each of Keras' file formats.
#[test]
fn attention_of_keras_is_read_in_each_of_its_files() {
    let folder = Folder::new();
    for file in ["attention.keras", "attention_saved"] {
        let report = import(&folder, file, "attention", "keras");
        let variable =
            |ours: &str| report["variables"].as_array().unwrap().iter().find(|it| it["variable"] == ours).unwrap();
        assert_eq!(variable("attention2/query/bias")["how"], "reshaped from [4, 4]", "{file}");
        assert_eq!(variable("attention2/out/bias")["how"], "taken", "{file}");
    }
}

/// The projections of PyTorch's attention are one array, and positions may be a parameter with an additional axis.
#[test]
fn an_encoder_of_torch_computes_what_torch_does() {
    let folder = Folder::new();
    let report = import(&folder, "encoder.pt", "encoder", "torch");
    let variable =
        |ours: &str| report["variables"].as_array().unwrap().iter().find(|it| it["variable"] == ours).unwrap();
    let key = variable("encoder/block2/attention/heads/key/bias");
    assert_eq!(
        (&key["from"], &key["how"]),
        (&"encoder.layers.1.self_attn.in_proj_bias".into(), &"part 2 of 3 along axis 0".into())
    );
    assert_eq!(variable("positions/embeddings")["how"], "axes [0] of length 1 left out");
}

/// PyTorch flattens images channels first: the file does not show it, so a rule states it.
#[test]
fn images_that_torch_flattened_need_a_rule() {
    let folder = Folder::new();
    let (weights, model) = (data("flatten.pt").display().to_string(), data("flatten.yaml").display().to_string());
    let arrays = data("flatten.npz").display().to_string();
    let output = folder.run(&["weights", &weights, "--model", &model, "--check", &arrays]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    let hint = "hidden/kernel has 6 numbers for each of 6 channels: if it reads images that were flattened there channels first, \
                as by PyTorch's `flatten`, its rule needs `channels_first: [6, height, width]`";
    assert!(message.contains(hint) && message.contains("it is another function"), "{message}");
    let rules = data("flatten_rules.yaml").display().to_string();
    let report = import_with(&folder, "flatten.pt", "flatten", "flatten", &["--rules", &rules]);
    assert_eq!(report["about_images"], Value::Null);
    // And back, to the bit.
    let back = ["--rules", &rules, "--format", "safetensors", "-o", "back.safetensors"];
    folder.stdout(&[&["weights", "flatten.safetensors", "--model", &model], &back[..]].concat());
    assert_eq!(sums(&folder.path("back.safetensors"), ""), sums(&data("flatten.pt"), ""));
}

/// Faults of a checkpoint have distinct errors with remedies.
#[test]
fn wrong_checkpoints_are_told_apart() {
    let folder = Folder::new();
    let whole = weights::open(data("flatten.pt")).unwrap();
    let model = data("flatten.yaml").display().to_string();
    type Named = Vec<(String, Literal)>;
    let message = |change: &dyn Fn(&mut Named)| {
        let mut arrays: Named =
            whole.entries().iter().map(|entry| (entry.name.clone(), whole.read(&entry.name).unwrap())).collect();
        change(&mut arrays);
        weights::write(&folder.path("wrong.npz"), weights::WrittenFormat::Npz, arrays).unwrap();
        let args = ["weights", "wrong.npz", "--model", &model, "--rules", "torch", "-o", "out.safetensors"];
        let output = folder.run(&args);
        assert_eq!(output.status.code(), Some(2));
        assert!(!folder.path("out.safetensors").exists());
        String::from_utf8(output.stderr).unwrap()
    };
    let change = |arrays: &mut Named, name: &str, of: &dyn Fn(&mut Vec<i64>, &mut Vec<u8>)| {
        let Literal::Array { shape, bytes } = &mut arrays.iter_mut().find(|it| it.0 == name).unwrap().1 else {
            panic!("{name} is an array")
        };
        of(&mut shape.dims, bytes);
    };
    for (error, expected) in [
        // For another model.
        (
            message(&|arrays| arrays.iter_mut().for_each(|it| it.0 = format!("body.{}", it.0))),
            [
                "conv1/kernel is missing: there is no conv1.weight; only body.conv1.weight has that shape, and nothing takes it",
                "it is of another model, or",
            ],
        ),
        // A name that maps twice.
        (
            message(&|arrays| arrays.push(("module.hidden.bias".to_string(), arrays[3].1.clone()))),
            [
                "hidden/bias could be any of hidden.bias, module.hidden.bias",
                "a file of rules in which each variable has one name",
            ],
        ),
        // Fits only transposed.
        (
            message(&|arrays| change(arrays, "logits.weight", &|dims, _| dims.reverse())),
            [
                "logits/kernel fits transposed only: logits.weight is [8, 5], expected [5, 8]",
                "a rule with `transpose: [1, 0]` reads it",
            ],
        ),
        // Another number of classes.
        (
            message(&|arrays| {
                change(arrays, "logits.weight", &|dims, bytes| (dims[0], *bytes) = (3, bytes[..96].to_vec()));
                change(arrays, "logits.bias", &|dims, bytes| (dims[0], *bytes) = (3, bytes[..12].to_vec()));
            }),
            ["logits/bias is 3 along axis 0, expected 5", "start them afresh: `except: ['logits/*']` under `train`"],
        ),
        // Contains NaN.
        (
            message(&|arrays| {
                change(arrays, "conv2.bias", &|_, bytes| bytes[8..12].copy_from_slice(&f32::NAN.to_le_bytes()))
            }),
            ["conv2.bias is not finite: element 2 of conv2/bias would be NaN", "take an earlier checkpoint of it"],
        ),
    ] {
        assert!(error.starts_with("bf16scope: wrong.npz") && expected.iter().all(|it| error.contains(it)), "{error}");
    }
}
