//! Graphs ported to experiments, and the mistakes that graphs show.

mod fixtures;
mod graphs;
mod run;

use bf16scope_tensorflow::{Graph, Ported, SlipKind, port};
use fixtures::{arrays, unpacked};
use graphs::{classes, dense, gradients, ints, node, number, plain, read, with};
use std::collections::BTreeSet;

fn ported(name: &str) -> Ported {
    port(&Graph::read(&unpacked(&format!("{name}.meta")), &format!("{name}.meta")).unwrap())
}

#[test]
fn a_network_becomes_layers_with_all_of_its_variables() {
    for name in ["mlp", "mlp_adam", "cnn", "resnet", "resnet_bf16"] {
        let ported = ported(name);
        let text = ported.experiment.expect("it has words");
        assert_eq!(ported.variables.unmapped, [""; 0], "{name}\n{text}");
        // All of TensorFlow's variables except slots and counters.
        let (arrays, _) = arrays(name);
        let names = arrays.keys().filter_map(|key| key.strip_prefix("before/"));
        let is_own = |name: &&str| {
            ["kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance"].iter().any(|own| name.ends_with(own))
        };
        let theirs: BTreeSet<&str> = names.filter(is_own).collect();
        let ours: BTreeSet<&str> = ported.network.variables.keys().map(String::as_str).collect();
        assert_eq!(ours, theirs, "{name}\n{text}");
        for (variable, dims) in &ported.network.variables {
            assert_eq!(arrays[&format!("before/{variable}")].shape().dims(), dims, "{name} {variable}");
        }
    }
}

#[test]
fn an_experiment_says_what_the_script_says() {
    let resnet = ported("resnet");
    assert_eq!(resnet.training.optimizer, "{kind: momentum, momentum: 0.9, nesterov: true}");
    assert_eq!(resnet.training.weight_decay, "{value: 0.0001, except: [batch_normalization]}");
    assert_eq!((resnet.network.label_smoothing, resnet.network.batch), (0.1, Some(2)));
    let text = resnet.experiment.unwrap();
    let norm = "    - {batch_norm: , momentum: 0.9, epsilon: 1e-5, name: batch_normalization}\n";
    assert!(text.contains(norm), "{text}");
    assert!(text.contains("    - {zero_padding: [[3, 3], [3, 3]], name: Pad}\n"), "{text}");
    // where(step < 2, 0.1 · step / 2, 0.1 · 0.5^(step / 10))
    let rate = "{kind: exponential, value: 0.1, decay_steps: 10, decay_rate: 0.5}";
    assert_eq!(
        (resnet.training.learning_rate.as_str(), resnet.training.warm_up.as_str()),
        (rate, "{steps: 2, overlap: true}")
    );
    assert_eq!(resnet.missing, []);
    let adam = ported("mlp_adam");
    assert_eq!(adam.training.learning_rate, "0.01");
    assert!(adam.training.optimizer.ends_with("epsilon: 1.0e-8, epsilon_hat: true}"), "{}", adam.training.optimizer);
    let cnn = ported("cnn");
    assert_eq!(cnn.training.optimizer, "{kind: rmsprop, decay: 0.9, momentum: 0.9, epsilon: 0.001}");
}

#[test]
fn slips_are_those_that_the_dtypes_show() {
    let kinds = |name: &str| ported(name).slips.iter().map(|slip| slip.kind).collect::<Vec<_>>();
    for name in ["mlp_adam", "cnn", "resnet"] {
        assert_eq!(kinds(name), [], "{name}");
    }
    // The input is fed in f32 through a placeholder and cast in the graph.
    assert_eq!(kinds("resnet_bf16"), [SlipKind::CastOnDevice]);
    assert_eq!(kinds("slip_bf16_loss"), [SlipKind::Bf16Loss, SlipKind::Bf16LossSum]);
    assert_eq!(kinds("slip_dice"), [SlipKind::Bf16Loss, SlipKind::Bf16LossSum]);
    assert_eq!(kinds("slip_bf16_variables"), [SlipKind::Bf16Variable, SlipKind::Bf16Update]);
    assert_eq!(kinds("slip_moments"), [SlipKind::Bf16Statistics]);
    assert_eq!(kinds("slip_norm_by_hand"), [SlipKind::Bf16Statistics]);
    assert_eq!(kinds("slip_sum_over_cores"), [SlipKind::SumOverCores]);
    assert_eq!(kinds("clean_norm"), []);
    assert_eq!(kinds("clean_bf16"), []);
    assert_eq!(kinds("clean_cores"), []);
}

/// Common ways of writing each form, and the resulting YAML; `port_cli` compares its rates with TensorFlow's.
#[test]
fn learning_rates_become_schedules() {
    let exponential = "{kind: exponential, value: 0.05, decay_steps: 300, decay_rate: 0.9}";
    let staircase = "{kind: exponential, value: 0.66, decay_steps: 3753, decay_rate: 0.94, staircase: true}";
    let drops = "{kind: piecewise, value: 0.4, changes: [{step: 37535, value: 0.04}, {step: 75069, value: 0.004}, \
                 {step: 100092, value: 0.0004}]}";
    let decays = "{kind: exponential, value: 0.128, decay_steps: 2400, decay_rate: 0.97, staircase: true}";
    let root = |value: &str, until: u32| format!("{{kind: inverse_sqrt, value: {value}, constant_until: {until}}}");
    let shifted =
        |value: &str, until: u32, first: u32| root(value, until).replace('}', &format!(", first_step: {first}}}"));
    let natural = "{kind: exponential, value: 0.05, decay_steps: 300, decay_rate: 0.6065306597126334}";
    for (name, rate, warm_up, floor, differs) in [
        (
            "piecewise",
            "{kind: piecewise, value: 0.1, changes: [{step: 101, value: 0.01}, {step: 251, value: 0.002}]}",
            "",
            "",
            "",
        ),
        ("cosine", "{kind: cosine, value: 0.2, decay_steps: 5000, alpha: 0.01}", "", "", ""),
        ("polynomial", "{kind: polynomial, value: 0.03, decay_steps: 800, power: 2.0, end_value: 0.005}", "", "", ""),
        ("exponential", exponential, "", "", ""),
        ("natural", natural, "", "", ""),
        ("epochs", drops, "{steps: 6256, overlap: true}", "", "the warm-up is not of a whole number of steps there"),
        ("bert", "{kind: linear, value: 0.0001, decay_steps: 1000}", "{steps: 100, overlap: true}", "", ""),
        ("efficientnet", decays, "{steps: 500, overlap: true}", "", ""),
        ("warm_then_cosine", "{kind: cosine, value: 0.5, decay_steps: 4800}", "{steps: 200}", "", ""),
        ("staircase_floor", staircase, "", "6.6e-5", ""),
        ("floor_cosine", "{kind: cosine, value: 0.2, decay_steps: 5000}", "", "0.01", ""),
        ("floor_line", "{kind: linear, value: 0.03, decay_steps: 800}", "", "0.0015", ""),
        (
            "floor_warm_up",
            decays,
            "{steps: 500, overlap: true}",
            "0.0001",
            "the floor of 0.0001 holds during the warm-up",
        ),
        ("floor_switched", exponential, "", "", "the rate stays at 0.01 from about step 700; here it does not"),
        ("rsqrt", &root("1.0", 10_000), "", "", ""),
        ("rsqrt_at_once", &shifted("0.3", 20, 20), "", "", ""),
        ("rsqrt_least", &shifted("1.0", 10_000, 1), "", "", ""),
        ("rsqrt_decay", &root("0.008838834", 500), "{steps: 500, overlap: true}", "", ""),
        ("noam", &shifted("0.125", 4_000, 1), "{steps: 3999, start: 4.94106e-7, overlap: true}", "", ""),
        ("noam_of_step", &root("0.088388346", 400), "{steps: 400, overlap: true}", "", ""),
        ("short_bert", "{kind: linear, value: 0.001, decay_steps: 20}", "{steps: 3, overlap: true}", "", ""),
        ("short_line", "{kind: linear, value: 0.1, decay_steps: 5, end_value: 0.01}", "", "", ""),
        ("short_square", "{kind: polynomial, value: 0.1, decay_steps: 8, power: 2.0, end_value: 0.01}", "", "", ""),
        ("short_cosine", "{kind: cosine, value: 0.1, decay_steps: 8, alpha: 0.1}", "", "", ""),
        ("short_warm_cosine", "{kind: cosine, value: 0.1, decay_steps: 7}", "{steps: 3}", "", ""),
        ("short_warm_line", "{kind: linear, value: 0.1, decay_steps: 6}", "{steps: 3}", "", ""),
        ("short_floor", "{kind: linear, value: 0.1, decay_steps: 10}", "", "0.02", ""),
        (
            "short_pieces",
            "{kind: piecewise, value: 0.1, changes: [{step: 6, value: 0.05}, {step: 11, value: 0.0}]}",
            "",
            "",
            "",
        ),
        (
            "short_warm_pieces",
            "{kind: piecewise, value: 0.1, changes: [{step: 11, value: 0.01}, {step: 16, value: 0.001}]}",
            "{steps: 3, overlap: true}",
            "",
            "",
        ),
    ] {
        let ported = ported(&format!("schedule_{name}"));
        let training = &ported.training;
        let words = (training.learning_rate.as_str(), training.warm_up.as_str(), training.learning_rate_floor.as_str());
        assert_eq!(words, (rate, warm_up, floor), "{name}: {:?}", ported.missing);
        let about_rates =
            ported.differs.iter().filter(|note| note.text.contains("rate")).map(|note| note.text.as_str());
        let about_rates: Vec<&str> = about_rates.collect();
        match differs {
            "" => assert_eq!(about_rates, [""; 0], "{name}"),
            text => assert!(about_rates[0].starts_with(text), "{name}: {about_rates:?}"),
        }
    }
    // A form that YAML does not have: the note lists its values.
    let inverse_time = ported("schedule_inverse_time");
    assert_eq!(inverse_time.training.learning_rate, "");
    let text = &inverse_time.missing[0].text;
    assert!(text.contains("it is 0.05 at step 0, 0.030000001 at step 1000"), "{text}");
}

/// The weights of two losses, and the labels that they read.
#[test]
fn several_losses_are_outputs_with_weights() {
    let ported = ported("two_heads");
    let text = ported.experiment.unwrap();
    let expected = "  outputs: {classes: classes, price: price}
  loss:
    - {sparse_softmax_cross_entropy: , output: classes, labels: class}
    - {mean_squared_error: , output: price, labels: price_label, weight: 0.25}
";
    assert!(text.contains(expected), "{text}");
    assert_eq!(ported.variables.unmapped, [""; 0]);
}

/// Batch norms written with plain ops, squeeze-and-excitation's gates, slim's names, initializers.
#[test]
fn plain_ops_become_the_layers_that_they_are() {
    let ported = ported("plain_ops");
    let text = ported.experiment.unwrap();
    for line in [
        "{batch_norm: , momentum: 0.9, epsilon: 0.001, name: unfused}",
        "{batch_norm: , momentum: 0.999, epsilon: 0.001, scale: false, name: slim/BatchNorm}",
        "{layer_norm: , epsilon: 1e-6, name: norm}",
        "{activation: silu, name: Sigmoid}",
        "{reshape: [1, 1, 4], name: Mean_1}",
        "{upsample: [6, 6], name: Sigmoid_1/upsample}",
        "{conv: 4, kernel_size: 3, padding: same, kernel_initializer: he_normal_fan_out, name: conv}",
        "{dense: 3, kernel_initializer: glorot_normal, bias_initializer: ones, name: logits}",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert_eq!(ported.missing, [], "{text}");
    assert_eq!(ported.network.names["slim/weights"], "slim/kernel");
    assert_eq!(ported.variables.unmapped, [""; 0]);
}

/// Transposed convolutions, resizes by whole factors, and both forms of GELU as they are written by hand and by TensorFlow.
#[test]
fn networks_that_enlarge_images_have_words() {
    let ported = ported("up");
    let text = ported.experiment.unwrap();
    for line in [
        "{activation: gelu, name: Gelu/mul_1}",
        "{conv_transpose: 6, kernel_size: 3, strides: 2, padding: same, name: same}",
        "{activation: gelu_tanh, name: mul_3}",
        "{conv_transpose: 5, kernel_size: [3, 2], strides: 2, name: valid}",
        "{activation: gelu_tanh, name: Gelu_1/mul_3}",
        "{conv_transpose: 4, kernel_size: 3, strides: 2, padding: same, output_padding: 0, use_bias: false, name: odd}",
        "{upsample: [2, 3], name: ResizeNearestNeighbor}",
        "{upsample: 2, interpolation: bilinear, name: resize/ResizeBilinear}",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert_eq!(ported.missing, [], "{text}");
    assert_eq!(ported.variables.unmapped, [""; 0]);
}

/// Variables outside of all scopes: their layer is called as its op is.
#[test]
fn variables_without_a_scope_have_a_layer_with_a_name() {
    let float = [("dtype", "DT_FLOAT")];
    let text = node("features", "Placeholder", &[], &float, Some(&[8, 4]))
        + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
        + &node("W", "VarHandleOp", &[], &float, Some(&[4, 3]))
        + &node("b", "VarHandleOp", &[], &float, Some(&[3]))
        + &node("read_W", "ReadVariableOp", &["W"], &float, None)
        + &node("read_b", "ReadVariableOp", &["b"], &float, None)
        + &plain("MatMul", "MatMul", &["features", "read_W"])
        + &plain("add", "AddV2", &["MatMul", "read_b"])
        + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["add", "class"])
        + &plain("mean", "Mean", &["entropy"])
        + &gradients("mean");
    let ported = read(&text);
    let names = ["W", "b"].map(|name| ported.network.names[name].as_str());
    assert_eq!(names, ["MatMul/kernel", "MatMul/bias"]);
    assert_eq!(ported.variables.unmapped, [""; 0]);
    let text = ported.experiment.unwrap();
    assert!(text.contains("    - {dense: 3, name: MatMul}\n"), "{text}");
}

/// Attributes of layers that are options here, and those that have no word: none is left out.
#[test]
fn attributes_of_layers_are_options_or_are_missing() {
    let list = |values: &[i64]| format!("list {{ {} }}", values.iter().map(|n| format!("i: {n} ")).collect::<String>());
    let variable = |name: &str, dims: &[i64]| {
        node(name, "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(dims))
            + &node(&format!("{name}/read"), "ReadVariableOp", &[name], &[("dtype", "DT_FLOAT")], None)
    };
    let network = |nodes: &str, last: &str| {
        let input =
            |name: &str, dtype: &str, dims: &[i64]| node(name, "Placeholder", &[], &[("dtype", dtype)], Some(dims));
        let text = input("image", "DT_FLOAT", &[8, 4, 1, 2])
            + &input("class", "DT_INT32", &[8])
            + nodes
            + &with(&plain("flat", "Squeeze", &[last]), "squeeze_dims", &list(&[1, 2]))
            + &dense("classes", 3).replace("\"features\"", "\"flat\"")
            + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
            + &plain("mean", "Mean", &["entropy"])
            + &gradients("mean");
        read(&text)
    };
    let pool = |padding: &str, size: &[i64]| {
        let pool = with(&plain("pool", "MaxPool", &["image"]), "padding", &format!("s: {padding:?}"));
        with(&with(&pool, "ksize", &list(size)), "strides", &list(&[1, 1, 1, 1]))
    };
    let convolution = with(&plain("conv", "Conv2D", &["image", "conv/kernel/read"]), "padding", "s: \"SAME\"");
    let convolution = variable("conv/kernel", &[3, 3, 1, 6]) + &convolution;
    let norm = variable("bn/gamma", &[2]) + &variable("bn/beta", &[2]);
    let norm = norm + &plain("bn", "FusedBatchNormV3", &["image", "bn/gamma/read", "bn/beta/read"]);
    for (nodes, last, line) in [
        (with(&plain("leaky", "LeakyRelu", &["image"]), "alpha", "f: 0.1"), "leaky", "{leaky_relu: 0.1, name: leaky}"),
        (plain("leaky", "LeakyRelu", &["image"]), "leaky", "{activation: leaky_relu, name: leaky}"),
        (convolution, "conv", "{conv: 6, kernel_size: 3, padding: same, groups: 2, use_bias: false, name: conv}"),
        (
            with(&norm, "exponential_avg_factor", "f: 0.25"),
            "bn",
            "{batch_norm: , momentum: 0.75, epsilon: 0.0001, name: bn}",
        ),
        (
            with(&plain("row", "Squeeze", &["image"]), "squeeze_dims", &list(&[-2])),
            "row",
            "{reshape: [4, 2], name: row}",
        ),
        (pool("VALID", &[1, 2, 1, 1]), "pool", "{max_pool: [2, 1], strides: 1, name: pool}"),
    ] {
        let text = network(&nodes, last).experiment.unwrap_or_default();
        assert!(text.contains(line), "{line}\n{text}");
    }
    let frozen = with(&norm, "is_training", "b: false");
    let rows = |n: i64| ints("sizes", &[-1, n]) + &plain("rows", "Reshape", &["image", "sizes"]);
    for (nodes, last, text) in [
        (
            pool("EXPLICIT", &[1, 2, 1, 1]),
            "pool",
            "`MaxPool` of [1, 2, 1, 1] with padding `EXPLICIT` [] is no pool of an image",
        ),
        (
            pool("VALID", &[1, 1, 1, 2]),
            "pool",
            "`MaxPool` of [1, 1, 1, 2] with padding `VALID` [] is no pool of an image",
        ),
        (
            frozen,
            "bn",
            "a batch norm with `is_training=False` normalises by its moving statistics; here by those of the batch",
        ),
        (rows(4), "rows", "`Reshape` to [-1, 4] joins examples with other axes"),
        (rows(2), "rows", "`Squeeze` of the positions of all examples has no word"),
    ] {
        let missing = network(&nodes, last).missing;
        assert!(missing.iter().any(|note| note.text == text), "{text}: {missing:?}");
    }
}

/// Initializers of a graph that have no name in YAML.
#[test]
fn other_initializers_are_written_with_numbers() {
    let text = ported("resnet").experiment.unwrap();
    assert!(text.contains("{dense: 5, kernel_initializer: {random_normal: 0.01}, name: dense}"), "{text}");
    // A square kernel fits both `lecun_normal` and `glorot_normal`: it gets the initializer of the other kernels.
    assert!(!text.contains("glorot_normal"), "{text}");
}

/// A SavedModel whose network is in functions that call each other; it only predicts.
#[test]
fn a_function_of_a_saved_model_becomes_its_network() {
    let (f32, resource) = ("DT_FLOAT", "DT_RESOURCE");
    let call = |name: &str, function: &str, inputs: &[&str]| {
        let node = node(name, "StatefulPartitionedCall", inputs, &[], None);
        let attr = format!("attr {{ key: \"f\" value {{ func {{ name: {function:?} }} }} }} }}\n");
        node.trim_end().trim_end_matches('}').to_string() + &attr
    };
    let arg = |kind: &str, name: &str, dtype: &str| format!("{kind} {{ name: {name:?} type: {dtype} }} ");
    let function = |name: &str, nodes: String, result: &str| {
        let nodes = nodes.replace("node {", "node_def {");
        let args = arg("input_arg", "x", f32) + &arg("input_arg", "w", resource) + &arg("output_arg", "y", f32);
        format!("function {{ signature {{ name: {name:?} {args} }} {nodes} ret {{ key: \"y\" value: {result:?} }} }}\n")
    };
    let dense = node("read", "ReadVariableOp", &["w"], &[("dtype", f32)], None)
        + &node("product", "MatMul", &["x", "read:value:0"], &[("T", f32)], None)
        + &node("relu", "Relu", &["product:product:0"], &[("T", f32)], None);
    let model = |last: &str| {
        call("dense", "dense_fn", &["x", "w"]) + &node("last", last, &["dense:output:0"], &[("T", f32)], None)
    };
    let saved = |last: &str, output: &str| {
        let graph = node("serving_default_x", "Placeholder", &[], &[("dtype", f32)], Some(&[-1, 4]))
            + &node("dense/kernel", "VarHandleOp", &[], &[("dtype", f32)], Some(&[4, 3]))
            + &call("served", "model_fn", &["serving_default_x", "dense/kernel"]);
        let library =
            function("dense_fn", dense.clone(), "relu:activations:0") + &function("model_fn", model(last), output);
        let signature = "signature_def { key: \"serving_default\" value { inputs { key: \"x\" value { name: \"serving_default_x:0\" } } \
                         outputs { key: \"y\" value { name: \"served:0\" } } } }";
        format!(
            "saved_model_schema_version: 1 meta_graphs {{ meta_info_def {{ tags: \"serve\" }} \
             graph_def {{ {graph} library {{ {library} }} }} {signature} }}"
        )
    };
    let read =
        |text: &str| port(&Graph::read(text.as_bytes(), "saved_model.pbtxt").unwrap_or_else(|e| panic!("{e}\n{text}")));
    let softmax = read(&saved("Softmax", "last:softmax:0"));
    let text = softmax.experiment.unwrap();
    let layers = "  inputs:
    x: [4]
  layers:
    - {dense: 3, use_bias: false, name: dense}
    - {activation: relu, name: relu}
  loss: sparse_softmax_cross_entropy
";
    assert!(text.contains(layers), "{text}");
    assert!(softmax.differs[0].text.contains("it ends here as one trained by sparse_softmax_cross_entropy does"));
    // An op that layers cannot express is reported.
    let cumulated = read(&saved("Cumsum", "last:out:0"));
    assert_eq!(cumulated.experiment, None);
    assert!(
        cumulated.missing.iter().any(|note| note.text.contains("`Cumsum` of a layer has no word")),
        "{cumulated:?}"
    );
}

/// Every kind of mistake in a graph of a few nodes, and a similar graph without it.
#[test]
fn each_kind_of_slip_is_shown_by_a_few_nodes() {
    let (f32, bf16, half, long) = ("DT_FLOAT", "DT_BFLOAT16", "DT_HALF", "DT_INT64");
    let vector = Some(&[4i64][..]);
    let variable =
        |name: &str, dtype: &str, dims: Option<&[i64]>| node(name, "VariableV2", &[], &[("dtype", dtype)], dims);
    let input = |dtype: &str| node("x", "Placeholder", &[], &[("dtype", dtype)], Some(&[2, 4]));
    let tpu = node("TPUReplicateMetadata", "TPUReplicateMetadata", &[], &[], None);
    let matmul = |dtype: &str| node("y", "MatMul", &["x", "x"], &[("T", dtype)], None);
    let cast =
        |name: &str, from: &str, to: &str, of: &str| node(name, "Cast", &[of], &[("SrcT", from), ("DstT", to)], None);
    let assign = |value: &str| node("assign", "Assign", &["bn/moving_mean", value], &[("T", f32)], None);
    let norm = |dtype: &str| node("n", "FusedBatchNorm", &["x", "x", "x", "x", "x"], &[("T", dtype)], None);
    let update = |dtype: &str| node("u", "ApplyGradientDescent", &["w", "x", "x"], &[("T", dtype)], None);
    let sum = |dtype: &str| node("s", "CrossReplicaSum", &["x", "x"], &[("T", dtype)], None);
    let xent = |logits: &str| node("e", "SparseSoftmaxCrossEntropyWithLogits", &[logits, "x"], &[("T", f32)], None);
    let softmax = node("p", "Softmax", &["x"], &[("T", f32)], None);
    let sigmoid = node("p", "Sigmoid", &["x"], &[("T", f32)], None);
    // tf.nn.sigmoid_cross_entropy_with_logits, without the terms of the labels.
    let logistic = |logits: &str| {
        node("negative", "Neg", &[logits], &[("T", f32)], None)
            + &node("is_positive", "GreaterEqual", &[logits, "x"], &[("T", f32)], None)
            + &node("below", "SelectV2", &["is_positive", "negative", logits], &[("T", f32)], None)
            + &node("exp", "Exp", &["below"], &[("T", f32)], None)
            + &node("log", "Log1p", &["exp"], &[("T", f32)], None)
    };
    for (slip, with, without) in [
        (SlipKind::Bf16Variable, variable("w", bf16, vector), variable("w", f32, vector)),
        (SlipKind::Bf16Statistics, input(bf16) + &norm(bf16), input(f32) + &norm(f32)),
        (
            SlipKind::RoundedStatistics,
            input(bf16) + &variable("bn/moving_mean", f32, vector) + &cast("c", bf16, f32, "x") + &assign("c"),
            input(f32) + &variable("bn/moving_mean", f32, vector) + &assign("x"),
        ),
        (
            SlipKind::Bf16Update,
            input(bf16) + &variable("w", f32, vector) + &update(bf16),
            input(f32) + &variable("w", f32, vector) + &update(f32),
        ),
        (SlipKind::Bf16GradientSum, input(bf16) + &sum(bf16), input(f32) + &sum(f32)),
        (
            SlipKind::Bf16Counter,
            variable("global_step", long, Some(&[])) + &cast("c", long, bf16, "global_step"),
            variable("global_step", long, Some(&[])) + &cast("c", long, f32, "global_step"),
        ),
        (SlipKind::Float16, tpu.clone() + &input(half) + &matmul(half), input(half) + &matmul(half)),
        (SlipKind::ProbabilitiesAsLogits, input(f32) + &softmax + &xent("p"), input(f32) + &softmax + &xent("x")),
        (
            SlipKind::ProbabilitiesAsLogits,
            input(f32) + &sigmoid + &logistic("p"),
            input(f32) + &sigmoid + &logistic("x"),
        ),
        (
            SlipKind::Bf16Loss,
            input(bf16) + &node("e", "SparseSoftmaxCrossEntropyWithLogits", &["x", "x"], &[("T", bf16)], None),
            input(f32) + &xent("x"),
        ),
    ] {
        let kinds = |text: &str| -> Vec<SlipKind> {
            let graph = Graph::read(text.as_bytes(), "g.pbtxt").unwrap_or_else(|error| panic!("{error}\n{text}"));
            port(&graph).slips.iter().map(|slip| slip.kind).collect()
        };
        assert_eq!(kinds(&with), [slip], "{with}");
        assert_eq!(kinds(&without), [], "{without}");
    }
}

/// The texts of the notes on parts of the loss that are left out, by node.
fn left_out(ported: &Ported) -> Vec<&str> {
    let notes = ported.missing.iter().filter(|note| note.text.contains("is a part of the loss") && note.is_in_step);
    notes.map(|note| note.node.as_str()).collect()
}

/// A norm by hand is a layer over the axes that the layer takes, and no layer over another axis.
#[test]
fn a_norm_over_another_axis_is_missing() {
    let graph = |axis: i32| {
        let axes = format!(
            "node {{ name: \"axes\" op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_INT32 \
             tensor_shape {{ dim {{ size: 1 }} }} int_val: {axis} }} }} }} }}\n"
        );
        let variable = |name: &str| {
            node(name, "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[4]))
                + &node(&format!("{name}/read"), "ReadVariableOp", &[name], &[("dtype", "DT_FLOAT")], None)
        };
        let norm = plain("mean", "Mean", &["features", "axes"])
            + &plain("squares", "SquaredDifference", &["features", "mean"])
            + &plain("variance", "Mean", &["squares", "axes"])
            + &number("small", 0.001)
            + &plain("sum", "AddV2", &["variance", "small"])
            + &plain("root", "Rsqrt", &["sum"])
            + &plain("factor", "Mul", &["root", "norm/gamma/read"])
            + &plain("scaled", "Mul", &["features", "factor"])
            + &plain("moved", "Mul", &["mean", "factor"])
            + &plain("shift", "Sub", &["norm/beta/read", "moved"])
            + &plain("y", "AddV2", &["scaled", "shift"]);
        let end = node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
            + &dense("classes", 3).replace("\"features\"", "\"y\"")
            + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
            + &plain("loss", "Mean", &["entropy"])
            + &gradients("loss");
        let features = node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 3, 4]));
        read(&(features + &axes + &variable("norm/gamma") + &variable("norm/beta") + &norm + &end))
    };
    let text = graph(2).experiment.unwrap();
    assert!(text.contains("{layer_norm: , epsilon: 0.001, name: norm}"), "{text}");
    let odd = graph(1);
    assert_eq!(odd.experiment, None);
    assert!(odd.missing.iter().any(|note| note.text == "`AddV2` is not of a variable alone, as a layer's is"));
}

/// A regulariser that the loss has is weight decay, and one that is only in the collection is a slip.
#[test]
fn a_regulariser_decays_only_where_the_loss_has_it() {
    let term = number("rate", 0.002)
        + &plain("half_squares", "L2Loss", &["classes/read"])
        + &plain("regulariser", "Mul", &["rate", "half_squares"]);
    let graph = |rest: &str| {
        let nodes = classes() + &term + rest;
        read(&format!(
            "graph_def {{ {nodes} }} collection_def {{ key: \"regularization_losses\" value {{ node_list {{ \
             value: \"regulariser:0\" }} }} }}"
        ))
    };
    let kinds = |ported: &Ported| ported.slips.iter().map(|slip| slip.kind).collect::<Vec<_>>();
    let added = graph(&(plain("total", "AddV2", &["mean", "regulariser"]) + &gradients("total")));
    assert_eq!((added.training.weight_decay.as_str(), kinds(&added)), ("{value: 0.002}", Vec::new()));
    assert_eq!(left_out(&added), [""; 0]);
    let unadded = graph(&gradients("mean"));
    assert_eq!(unadded.training.weight_decay, "");
    assert_eq!(kinds(&unadded), [SlipKind::UnaddedRegulariser]);
    assert_eq!((unadded.slips[0].node.as_str(), unadded.slips[0].n_nodes), ("regulariser", 1));
    // Another term of the loss decays the same variable.
    let term = plain("own", "Mul", &["rate", "again"]) + &plain("again", "L2Loss", &["classes/read"]);
    let in_loss = graph(&(term + &plain("total", "AddV2", &["mean", "own"]) + &gradients("total")));
    assert_eq!((in_loss.training.weight_decay.as_str(), kinds(&in_loss)), ("{value: 0.002}", Vec::new()));
}

/// BERT's `AdamWeightDecayOptimizer`, and updates that look like it.
#[test]
fn an_adam_of_plain_ops_is_known_by_its_update() {
    let variable = |name: &str| {
        node(name, "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[4, 3]))
            + &node(&format!("{name}/read"), "ReadVariableOp", &[name], &[("dtype", "DT_FLOAT")], None)
    };
    let moment = |slot: &str, kept: f32, share: f32, new: &str| {
        let named = |part: &str| format!("{slot}/{part}");
        let inputs = ["kept", "read", "share", "old", "new", "next"].map(named);
        let [by, read, others, old, added, next] = inputs.each_ref().map(String::as_str);
        number(by, kept)
            + &number(others, share)
            + &plain(old, "Mul", &[by, read])
            + &plain(added, "Mul", &[others, new])
            + &plain(next, "AddV2", &[old, added])
            + &node(&named("assign"), "AssignVariableOp", &[slot, next], &[("dtype", "DT_FLOAT")], None)
    };
    let graph = |mean: &str, share: f32, term: &str| {
        let nodes = classes()
            + &gradients("mean")
            + &plain("gradients/classes/MatMul_grad/MatMul_1", "MatMul", &["features", "features"])
            + &plain("square", "Square", &["gradients/classes/MatMul_grad/MatMul_1"])
            + &variable("m")
            + &variable("v")
            + &moment("m", 0.9, share, "gradients/classes/MatMul_grad/MatMul_1")
            + &moment("v", 0.999, 0.001, "square")
            + &[("epsilon", 1e-6), ("decay", 0.01), ("rate", 0.0001)].map(|(name, value)| number(name, value)).concat()
            + &plain("root", "Sqrt", &["v/next"])
            + &plain("bounded", "AddV2", &["root", "epsilon"])
            + &plain("ratio", "RealDiv", &[mean, "bounded"])
            + &plain("term", "Mul", &["decay", term])
            + &plain("sum", "AddV2", &["ratio", "term"])
            + &plain("step", "Mul", &["rate", "sum"])
            + &plain("next", "Sub", &["classes/read", "step"])
            + &node("assign", "AssignVariableOp", &["classes/kernel", "next"], &[("dtype", "DT_FLOAT")], None)
            + &node("train", "NoOp", &["^assign", "^m/assign", "^v/assign"], &[], None);
        read(&format!(
            "graph_def {{ {nodes} }} collection_def {{ key: \"train_op\" value {{ node_list {{ value: \"train\" }} }} }} \
             collection_def {{ key: \"trainable_variables\" value {{ bytes_list {{ \
             value: \"\\n\\020classes/kernel:0\" }} }} }}"
        ))
        .training
    };
    let adam = graph("m/next", 0.1, "classes/read");
    let numbers = "beta1: 0.9, beta2: 0.999, epsilon: 1.0e-6";
    assert_eq!(adam.optimizer, format!("{{kind: adamw, bias_correction: false, {numbers}}}"));
    assert_eq!((adam.learning_rate.as_str(), adam.weight_decay.as_str()), ("0.0001", "{value: 0.01}"));
    // The moment before its update, shares that do not sum to 1, and the decay of another variable.
    for (mean, share, term) in
        [("m/read", 0.1, "classes/read"), ("m/next", 0.2, "classes/read"), ("m/next", 0.1, "m/read")]
    {
        let other = graph(mean, share, term);
        assert_eq!((other.optimizer.as_str(), other.weight_decay.as_str()), ("", ""), "{mean} {share} {term}");
    }
}

/// `tf.losses.huber_loss` with a weight, and a term of the loss that has no word.
#[test]
fn every_term_of_the_loss_is_a_loss_or_missing() {
    let huber = |name: &str, op: &str, inputs: &[&str]| {
        let inputs: Vec<String> = inputs.iter().map(|input| input.replace('~', "huber_loss/")).collect();
        plain(&format!("huber_loss/{name}"), op, &inputs.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let boxes = node("boxes", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]))
        + &dense("box", 4)
        + &number("huber_loss/delta", 0.5)
        + &number("huber_loss/half", 0.5)
        + &number("huber_loss/weights", 2.0)
        + &huber("Sub", "Sub", &["box/MatMul", "boxes"])
        + &huber("Abs", "Abs", &["~Sub"])
        + &huber("Minimum", "Minimum", &["~Abs", "~delta"])
        + &huber("Sub_1", "Sub", &["~Abs", "~Minimum"])
        + &huber("Mul", "Mul", &["~Minimum", "~Minimum"])
        + &huber("Mul_1", "Mul", &["~half", "~Mul"])
        + &huber("Mul_2", "Mul", &["~delta", "~Sub_1"])
        + &huber("Add", "AddV2", &["~Mul_1", "~Mul_2"])
        + &huber("Mul_3", "Mul", &["~Add", "~weights"])
        + &huber("Sum", "Sum", &["~Mul_3"])
        // The number of losses is of the shape of the network's result, and trains nothing.
        + &huber("shape", "Shape", &["~Add"])
        + &huber("count", "Fill", &["~shape", "~half"])
        + &huber("value", "DivNoNan", &["~Sum", "~count"]);
    let penalty = plain("squares", "Square", &["classes/read"])
        + &plain("sum", "Sum", &["squares"])
        + &number("small", 0.001)
        + &plain("penalty", "Mul", &["small", "sum"]);
    // A number trains nothing, so it is no part that is left out.
    let shown = number("shift", 1.0) + &plain("shifted", "Sub", &["mean", "shift"]);
    let total = plain("total", "AddN", &["shifted", "huber_loss/value", "penalty"]) + &gradients("total");
    let ported = read(&(classes() + &boxes + &penalty + &shown + &total));
    assert_eq!(left_out(&ported), ["penalty"]);
    let text = ported.experiment.unwrap();
    let expected = "  outputs: {box: box, classes: classes}
  loss:
    - {huber: , delta: 0.5, output: box, labels: boxes, weight: 2.0}
    - {sparse_softmax_cross_entropy: , output: classes, labels: class}
";
    assert!(text.contains(expected), "{text}");
    // Alone it has its options too.
    let features = node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]));
    let text = read(&(features + &boxes + &gradients("huber_loss/value"))).experiment.unwrap();
    assert!(text.contains("  loss: {huber: , delta: 0.5, weight: 2.0}\n"), "{text}");
}

/// BERT's losses: `log_softmax` times one-hot rows, and the mean of those that weights of the input choose.
#[test]
fn a_cross_entropy_of_plain_ops_is_known_and_its_weights_are_missing() {
    let ints = |name: &str, dims: &str, value: i32| {
        format!(
            "node {{ name: {name:?} op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_INT32 \
             tensor_shape {{ {dims} }} int_val: {value} }} }} }} }}\n"
        )
    };
    let graph = |axis: i32, end: &str| {
        let nodes = node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]))
            + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
            + &node("weights", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8]))
            + &dense("classes", 3)
            + &ints("depth", "", 3)
            + &number("on", 1.0)
            + &number("off", 0.0)
            + &ints("axis", "dim { size: 1 }", axis)
            + &plain("rows", "OneHot", &["class", "depth", "on", "off"])
            + &plain("logarithms", "LogSoftmax", &["classes/MatMul"])
            + &plain("product", "Mul", &["rows", "logarithms"])
            + &plain("sum", "Sum", &["product", "axis"])
            + &plain("losses", "Neg", &["sum"]);
        read(&(nodes + end + &gradients("loss")))
    };
    let weighs = |ported: &Ported| {
        let notes = ported.missing.iter().filter(|note| note.text.contains("weighs losses") && note.is_in_step);
        notes.map(|note| note.node.clone()).collect::<Vec<_>>()
    };
    let mean = plain("loss", "Mean", &["losses"]);
    for axis in [-1, 1] {
        let plain_mean = graph(axis, &mean);
        assert_eq!(plain_mean.network.loss, "sparse_softmax_cross_entropy");
        assert_eq!((left_out(&plain_mean), weighs(&plain_mean)), (Vec::new(), Vec::new()));
    }
    // A mean over another axis is not a cross-entropy of classes.
    assert_eq!(graph(0, &mean).network.loss, "");
    let weighted = plain("weighted", "Mul", &["weights", "losses"])
        + &plain("numerator", "Sum", &["weighted"])
        + &plain("all", "Sum", &["weights"])
        + &number("small", 1e-5)
        + &plain("denominator", "AddV2", &["all", "small"])
        + &plain("loss", "RealDiv", &["numerator", "denominator"]);
    let weighted = graph(-1, &weighted);
    assert_eq!(weighted.network.loss, "sparse_softmax_cross_entropy");
    // One remark for all nodes.
    assert_eq!(weighs(&weighted), ["weighted"]);
}

/// `tf.losses.sigmoid_cross_entropy`, whose nodes have other names than those of `tf.nn`.
#[test]
fn a_sigmoid_cross_entropy_is_known_by_its_ops() {
    let part = |name: &str, op: &str, inputs: &[&str]| {
        let inputs: Vec<String> = inputs.iter().map(|input| input.replace('~', "loss/xentropy/")).collect();
        let name = if name.is_empty() { "loss/xentropy".to_string() } else { format!("loss/xentropy/{name}") };
        plain(&name, op, &inputs.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let graph = |labels: &str| {
        node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]))
            + &node("labels", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 3]))
            + &dense("b", 3)
            + &number("loss/smooth", 0.8)
            + &number("loss/rest", 0.1)
            + &plain("loss/mul", "Mul", &["labels", "loss/smooth"])
            + &plain("loss/add", "AddV2", &["loss/mul", "loss/rest"])
            + &number("loss/xentropy/zeros", 0.0)
            + &part("GreaterEqual", "GreaterEqual", &["b/MatMul", "~zeros"])
            + &part("Select", "Select", &["~GreaterEqual", "b/MatMul", "~zeros"])
            + &part("Neg", "Neg", &["b/MatMul"])
            + &part("Select_1", "Select", &["~GreaterEqual", "~Neg", "b/MatMul"])
            + &part("mul", "Mul", &["b/MatMul", labels])
            + &part("sub", "Sub", &["~Select", "~mul"])
            + &part("Exp", "Exp", &["~Select_1"])
            + &part("Log1p", "Log1p", &["~Exp"])
            + &part("", "AddV2", &["~sub", "~Log1p"])
            + &number("loss/weights", 1.0)
            + &number("loss/count", 24.0)
            + &plain("loss/Mul_1", "Mul", &["loss/xentropy", "loss/weights"])
            + &plain("loss/Sum", "Sum", &["loss/Mul_1"])
            + &plain("loss/value", "DivNoNan", &["loss/Sum", "loss/count"])
            + &gradients("loss/value")
    };
    for (labels, smoothing) in [("labels", 0.0), ("loss/add", 0.2)] {
        let ported = read(&graph(labels));
        assert_eq!(
            (ported.network.loss.as_str(), ported.network.label_smoothing),
            ("sigmoid_cross_entropy", smoothing)
        );
        assert_eq!(left_out(&ported), [""; 0]);
        let head = &ported.network.heads[0];
        assert_eq!((head.output.as_str(), head.labels.as_str(), head.weight), ("b", "labels", 1.0));
    }
}

/// `tf.train.piecewise_constant` in control flow v2: a branch in a branch.
#[test]
fn branches_of_functions_become_a_piecewise_rate() {
    let long = ("T", "DT_INT64");
    let hundred = "node { name: \"boundary\" op: \"Const\" attr { key: \"value\" value { tensor { dtype: DT_INT64 \
                   tensor_shape {} int64_val: 100 } } } }\n";
    let branches = |name: &str, inputs: &[&str], then: &str, or: &str| {
        let node = node(name, "StatelessIf", inputs, &[], None);
        let branch = |key: &str, name: &str| format!("attr {{ key: {key:?} value {{ func {{ name: {name:?} }} }} }} ");
        let attrs = branch("then_branch", then) + &branch("else_branch", or);
        node.trim_end().trim_end_matches('}').to_string() + &attrs + "}\n"
    };
    let function = |name: &str, arguments: &[&str], nodes: String, result: &str| {
        let arguments: String =
            arguments.iter().map(|argument| format!("input_arg {{ name: {argument:?} type: DT_FLOAT }} ")).collect();
        format!(
            "function {{ signature {{ name: {name:?} {arguments} output_arg {{ name: \"y\" type: DT_FLOAT }} }} \
             {} ret {{ key: \"y\" value: {result:?} }} }}",
            nodes.replace("node {", "node_def {")
        )
    };
    let library = function("first", &["early", "is_late", "late"], String::new(), "early")
        + &function(
            "rest",
            &["early", "is_late", "late"],
            branches("cond", &["is_late", "late", "early"], "second", "third")
                + &plain("out", "Identity", &["cond:output:0"]),
            "out:output:0",
        )
        + &function("second", &["late", "early"], String::new(), "late")
        + &function("third", &["late", "early"], String::new(), "early");
    let graph = node("global_step", "VarHandleOp", &[], &[("dtype", "DT_INT64")], Some(&[]))
        + &node("step", "ReadVariableOp", &["global_step"], &[("dtype", "DT_INT64")], None)
        + hundred
        + &number("early", 0.1)
        + &number("late", 0.01)
        + &node("is_early", "LessEqual", &["step", "boundary"], &[long], None)
        + &node("is_late", "Greater", &["step", "boundary"], &[long], None)
        + &branches("rate", &["is_early", "early", "is_late", "late"], "first", "rest")
        + &node("w", "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[4]))
        + &node("gradient", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[4]))
        + &plain("update", "ResourceApplyGradientDescent", &["w", "rate", "gradient"]);
    let ported = read(&format!("{graph} library {{ {library} }}"));
    let rate = "{kind: piecewise, value: 0.1, changes: [{step: 101, value: 0.01}]}";
    assert_eq!(ported.training.learning_rate, rate, "{:?}", ported.missing);
}
