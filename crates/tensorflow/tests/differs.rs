//! Remarks on ported graphs: differences with their numbers, the nearest words, and where each section is in the graph.

mod fixtures;
mod graphs;
mod run;

use bf16scope_tensorflow::{Graph, Note, Ported, Slip, SlipKind, port};
use fixtures::unpacked;
use graphs::{classes, dense, gradients, node, number, plain, read, with};
use half::bf16;

fn ported(name: &str) -> Ported {
    port(&Graph::read(&unpacked(&format!("{name}.meta")), &format!("{name}.meta")).unwrap())
}

/// The remark that has a text.
fn noted<'n>(notes: &'n [Note], text: &str) -> &'n Note {
    notes.iter().find(|note| note.text.contains(text)).unwrap_or_else(|| panic!("{text}: {notes:?}"))
}

/// Sums over cores are means here, and an experiment has the graph's cores and the batch of all.
#[test]
fn sums_over_cores_differ_by_their_number() {
    let sums = ported("slip_sum_over_cores");
    let note = noted(&sums.differs, "gradients are sums over 8 cores, 8 times larger than the means");
    assert_eq!(note.help, "`learning_rate: 0.8`, 8 times that of the script, takes the same steps");
    let text = sums.experiment.unwrap();
    assert!(text.contains("train:\n  batch: 64\n") && text.ends_with("\nmesh: {data: 8}\n"), "{text}");
    let means = ported("clean_cores");
    assert!(means.differs.iter().all(|note| !note.text.contains("sums over")), "{:?}", means.differs);
}

/// Labels that the graph casts to bf16 are no features that the host could cast.
#[test]
fn labels_cast_on_the_device_are_no_features() {
    let half = |name: &str, op: &str, inputs: &[&str]| node(name, op, inputs, &[("T", "DT_BFLOAT16")], None);
    let cast = |name: &str, x: &str| node(name, "Cast", &[x], &[("SrcT", "DT_FLOAT"), ("DstT", "DT_BFLOAT16")], None);
    let graph = |features: &str, more: &str| {
        let text = node("features", "Placeholder", &[], &[("dtype", features)], Some(&[8, 4]))
            + &node("value", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 3]))
            + &node("kernel", "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[4, 3]))
            + &node("read", "ReadVariableOp", &["kernel"], &[("dtype", "DT_FLOAT")], None)
            + &cast("kernel_bf16", "read")
            + &cast("value_bf16", "value")
            + more
            + &half("difference", "Sub", &["x", "value_bf16"])
            + &half("square", "Square", &["difference"])
            + &half("loss", "Mean", &["square"])
            + &node("step", "NoOp", &["^loss"], &[], None)
            + &gradients("loss");
        let collection = "collection_def { key: \"train_op\" value { node_list { value: \"step\" } } }";
        read(&format!("graph_def {{ {text} }} {collection}")).slips
    };
    let kinds = |slips: Vec<Slip>| slips.iter().map(|slip| slip.kind).collect::<Vec<_>>();
    let on_host = graph("DT_BFLOAT16", &half("x", "MatMul", &["features", "kernel_bf16"]));
    assert_eq!(kinds(on_host), [SlipKind::Bf16LossSum]);
    let on_device = cast("features_bf16", "features") + &half("x", "MatMul", &["features_bf16", "kernel_bf16"]);
    assert_eq!(kinds(graph("DT_FLOAT", &on_device)), [SlipKind::Bf16LossSum, SlipKind::CastOnDevice]);
}

/// An accuracy beside the loss, in the dtype of its cast.
#[test]
fn an_accuracy_in_bf16_is_a_slip() {
    let graph = |dtype: &str| {
        let text = classes()
            + &graphs::ints("axis", &[-1])
            + &node("best", "ArgMax", &["classes/MatMul", "axis"], &[("T", "DT_FLOAT")], None)
            + &node("is_right", "Equal", &["best", "class"], &[("T", "DT_INT32")], None)
            + &node("right", "Cast", &["is_right"], &[("SrcT", "DT_BOOL"), ("DstT", dtype)], None)
            + &node("accuracy", "Mean", &["right", "axis"], &[("T", dtype)], None)
            + &gradients("mean");
        read(&text).slips.iter().map(|slip| (slip.kind, slip.node.clone())).collect::<Vec<_>>()
    };
    assert_eq!(graph("DT_BFLOAT16"), [(SlipKind::Bf16Count, "accuracy".to_string())]);
    assert_eq!(graph("DT_FLOAT"), []);
}

/// The first position of a sequence and a range of them; what has no word is named where the loss is not of layers.
#[test]
fn slices_of_an_axis_are_layers_and_what_is_none_is_named() {
    let graph = |masks: [i64; 3], bounds: [[i64; 2]; 2], end: &str| {
        let slice = plain("part", "StridedSlice", &["features", "begin", "end", "ones"]);
        let names = ["begin_mask", "end_mask", "shrink_axis_mask"];
        let slice =
            names.iter().zip(masks).fold(slice, |text, (name, mask)| graphs::with(&text, name, &format!("i: {mask}")));
        let kernel = node("classes/kernel", "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[4, 3]));
        read(
            &(node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 5, 4]))
                + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
                + &graphs::ints("begin", &bounds[0])
                + &graphs::ints("end", &bounds[1])
                + &graphs::ints("ones", &[1, 1])
                + &graphs::ints("axis", &[1])
                + &slice
                + end
                + &kernel
                + &node("read", "ReadVariableOp", &["classes/kernel"], &[("dtype", "DT_FLOAT")], None)
                + &plain("scores", "MatMul", &["x", "read"])
                + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["scores", "class"])
                + &plain("mean", "Mean", &["entropy"])
                + &gradients("mean")),
        )
    };
    let same = plain("x", "Identity", &["part"]);
    let mean = plain("x", "Mean", &["part", "axis"]);
    for (masks, bounds, end, expected) in [
        ([1, 1, 2], [[0, 0], [0, 1]], &same, "{take: 0, name: part}"),
        ([1, 1, 2], [[0, -1], [0, 0]], &same, "{take: -1, name: part}"),
        ([1, 3, 0], [[0, 1], [0, 0]], &mean, "{slice: [1, null], name: part}"),
        ([3, 1, 0], [[0, 0], [0, 3]], &mean, "{slice: [null, 3], name: part}"),
    ] {
        let ported = graph(masks, bounds, end);
        let text = ported.experiment.unwrap_or_else(|| panic!("{expected}: {:?}", ported.missing));
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let ported = graph([1, 1, 2], [[0, 0], [0, 1]], &plain("x", "Erfc", &["part"]));
    noted(&ported.missing, "the loss at `scores` is not of layers alone: `x` (Erfc) of a layer has no word");
}

/// Paddings of sequences and volumes, as `Conv1D` with `causal` has them.
#[test]
fn paddings_of_sequences_and_volumes_are_layers() {
    for (dims, pads, axes, expected) in [
        (&[8, 5, 4][..], &[0, 0, 4, 0, 0, 0][..], &[1][..], "{zero_padding: [4, 0], name: padded}"),
        (&[8, 2, 2, 2, 4], &[0, 0, 1, 1, 0, 0, 0, 2, 0, 0], &[1, 2, 3], ""),
    ] {
        let ported = read(
            &(node("x", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(dims))
                + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
                + &graphs::ints("pads", pads)
                + &graphs::ints("axes", axes)
                + &plain("padded", "Pad", &["x", "pads"])
                + &plain("features", "Mean", &["padded", "axes"])
                + &dense("classes", 3)
                + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
                + &plain("mean", "Mean", &["entropy"])
                + &gradients("mean")),
        );
        assert!(ported.missing.iter().all(|note| note.node != "padded"), "{:?}", ported.missing);
        let text = ported.experiment.unwrap_or_default();
        assert!(text.contains(expected) || dims.len() == 5, "{expected}: {text}");
    }
}

/// Smoothed labels leave -0.92 ln 0.92 - 4 · 0.02 ln 0.02 of five classes.
#[test]
fn smoothing_in_evaluations_differs_by_its_least_loss() {
    let resnet = ported("resnet");
    let note = noted(&resnet.differs, "a `model_fn` that smooths labels by 0.1 does so in evaluations too");
    assert!(note.text.ends_with("its least value is 0.390, and here 0"), "{}", note.text);
}

/// Means and deviations of channels, taken behind the cast to bf16 or in f32, are options of the data here.
#[test]
fn normalised_inputs_differ_by_their_dtype() {
    let channels = |name: &str, dtype: &str, values: [f64; 4]| {
        // Numbers of bf16 are their bits in the text of a graph.
        let number = |value: &f64| match dtype {
            "DT_BFLOAT16" => format!("half_val: {} ", bf16::from_f64(*value).to_bits()),
            _ => format!("float_val: {value} "),
        };
        let all: String = values.iter().map(number).collect();
        format!(
            "node {{ name: {name:?} op: \"Const\" attr {{ key: \"dtype\" value {{ type: {dtype} }} }} attr {{ key: \"value\" \
             value {{ tensor {{ dtype: {dtype} tensor_shape {{ dim {{ size: 4 }} }} {all}}} }} }} }}\n"
        )
    };
    let graph = |dtype: &str| {
        let types = [("T", dtype)];
        read(
            &(node("images", "Placeholder", &[], &[("dtype", dtype)], Some(&[8, 4]))
                + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
                + &channels("means", dtype, [123.675, 116.28, 103.53, 0.5])
                + &channels("deviations", dtype, [58.5, 57.0, 57.5, 1.5])
                + &node("centred", "Sub", &["images", "means"], &types, None)
                + &node("scaled", "RealDiv", &["centred", "deviations"], &types, None)
                + &node("features", "Cast", &["scaled"], &[("SrcT", dtype), ("DstT", "DT_FLOAT")], None)
                + &dense("classes", 3)
                + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
                + &plain("mean", "Mean", &["entropy"])
                + &gradients("mean")),
        )
    };
    // bf16's numbers nearest to 123.675, 116.28 and 103.53.
    for (dtype, name, means) in
        [("DT_FLOAT", "f32", "[123.675, 116.28, 103.53, 0.5]"), ("DT_BFLOAT16", "bf16", "[123.5, 116.5, 103.5, 0.5]")]
    {
        let ported = graph(dtype);
        for (key, values) in [("mean", means), ("std", "[58.5, 57.0, 57.5, 1.5]")] {
            let text = format!("`{key}` {values} is taken on the device, in {name}; here on the host, in f32");
            let note = noted(&ported.differs, &text);
            assert!(note.help.starts_with(&format!("write it under `data: features: images: {key}`")), "{}", note.help);
        }
    }
}

/// A batch norm of plain ops keeps the batch's variance as it is, and no layer here does.
#[test]
fn the_variance_of_a_batch_norm_of_plain_ops_differs() {
    let plain = ported("plain_ops");
    let note = noted(&plain.differs, "the moving variance takes the batch's variance as it is; here times n / (n - 1)");
    assert!(note.help.ends_with("training is the same, and no key undoes it"), "{}", note.help);
    let of_norms = |notes: &[Note]| notes.iter().filter(|note| note.text.contains("moving variance")).count();
    assert_eq!((of_norms(&plain.differs), of_norms(&ported("resnet").differs)), (1, 0));
}

/// `tf.losses` with weights: the features and `example_weights` that they are, and how their divisors differ.
#[test]
fn weights_of_losses_are_example_weights() {
    let zero = number("zero", 0.0) + &number("one", 1.0);
    let vector = "node { name: \"loss/assert_broadcastable/weights/shape\" op: \"Const\" attr { key: \"value\" value { tensor { \
                  dtype: DT_INT32 tensor_shape { dim { size: 1 } } int_val: 8 } } } }\n";
    let graph = |weights: &str, nodes: &str| {
        read(
            &(node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]))
                + &node("class", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8]))
                + &dense("classes", 3)
                + &zero
                + nodes
                + &plain("loss/xentropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
                + &plain("loss/Mul", "Mul", &["loss/xentropy", weights])
                + &plain("loss/Sum", "Sum", &["loss/Mul"])
                + &plain("loss/num_present/Equal", "Equal", &[weights, "zero"])
                + &plain("loss/num_present/Select", "Select", &["loss/num_present/Equal", "zero", "one"])
                + &plain("loss/num_present", "Sum", &["loss/num_present/Select"])
                + &plain("loss/value", "DivNoNan", &["loss/Sum", "loss/num_present"])
                + &gradients("loss/value")),
        )
    };
    let weighs = |ported: &Ported| ported.missing.iter().any(|note| note.text.contains("weighs losses"));
    let numbers = graph("share", &node("share", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8])));
    noted(&numbers.differs, "where a tenth of `share` is 0, it is 0.9 times as large here");
    let text = numbers.experiment.clone().unwrap();
    assert!(text.contains("  loss: {sparse_softmax_cross_entropy: , example_weights: share}\n"), "{text}");
    let mask = plain("is_real", "NotEqual", &["class", "zero"]) + &plain("mask", "Cast", &["is_real"]) + vector;
    let mask = graph("mask", &mask);
    assert!(noted(&mask.differs, "here by that and 1e-5").help.contains("what `is_real` has"), "{:?}", mask.differs);
    let text = mask.experiment.clone().unwrap();
    let loss = "{sparse_softmax_cross_entropy: , example_weights: weights, reduction: weighted_mean}";
    assert!(text.contains(loss), "{text}");
    assert_eq!((weighs(&numbers), weighs(&mask)), (false, false));
    // Weights whose dims are not known stay out, with one remark for all of their nodes.
    let open =
        graph("mask", &(plain("is_real", "NotEqual", &["class", "zero"]) + &plain("mask", "Cast", &["is_real"])));
    assert!(noted(&open.missing, "`Mul` weighs losses").text.ends_with("left out (with one more node)"));
}

/// A variable that two layers read is one there and two here.
#[test]
fn a_shared_variable_is_missing() {
    let again = plain("again/MatMul", "MatMul", &["features", "classes/read"])
        + &plain("sum", "AddV2", &["classes/MatMul", "again/MatMul"])
        + &plain("other", "SparseSoftmaxCrossEntropyWithLogits", &["sum", "class"])
        + &plain("loss", "Mean", &["other"]);
    let shared = read(&(classes() + &again + &gradients("loss")));
    let note = noted(&shared.missing, "the variable `classes/kernel` is read by several layers");
    assert!(note.help.contains("{share: NAME"), "{}", note.help);
}

/// An op without a word is told the nearest, and BERT the file that has it in words.
#[test]
fn a_network_without_words_is_told_where_there_are_some() {
    let graph = |op: &str| {
        let nodes = node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]))
            + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
            + &dense("bert/attention/self/query", 3)
            + &plain("odd", op, &["bert/attention/self/query/MatMul"])
            + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["odd", "class"])
            + &plain("loss", "Mean", &["entropy"]);
        read(&(nodes + &gradients("loss")))
    };
    for (op, help) in [
        ("Transpose", "the nearest word is `permute`"),
        ("Cumsum", "docs/EXPERIMENTS.md has the layers; no word is near"),
    ] {
        let ported = graph(op);
        assert_eq!(noted(&ported.missing, "of a layer has no word").help, help);
        let bert = &noted(&ported.missing, "the loss at `odd` is not of layers alone").help;
        assert!(bert.contains("examples/models/bert_pretraining.yaml") && bert.contains("`bert_tensorflow`"), "{bert}");
    }
}

/// Variables in parts and a CTC loss are told by what they are.
#[test]
fn variables_in_parts_and_a_ctc_loss_are_told_what_to_write() {
    let nodes = node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]))
        + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
        + &dense("table/part_1", 3).replace("table/part_1/kernel", "table/part_1")
        + &plain("odd", "Transpose", &["table/part_1/MatMul"])
        + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["odd", "class"])
        + &plain("loss", "Mean", &["entropy"]);
    let ported = read(&(nodes + &gradients("loss")));
    let help = &noted(&ported.missing, "the loss at `odd` is not of layers alone").help;
    assert!(
        help.starts_with("its variables are parts of larger ones (`part_0`), by a `partitioner`: leave that"),
        "{help}"
    );
    for (name, op) in [("loss_of_words", "CTCLossV2"), ("ctc_loss_dense/mul", "Mul")] {
        let text = classes() + &plain(name, op, &["classes/MatMul"]) + &plain("loss", "Mean", &[name]);
        let ported = read(&(text + &gradients("loss")));
        let note = noted(&ported.missing, "the graph's loss is TensorFlow's CTC loss, whose ops are not read");
        assert_eq!(note.help, "write the layers, and `loss: ctc` (docs/EXPERIMENTS.md)");
    }
}

/// Updates by Ftrl and Adamax have words, and another one is told the nearest.
#[test]
fn optimizers_have_words_or_the_nearest_one() {
    let numbers = [("rate", 0.05), ("zero", 0.0), ("half", -0.5), ("b1", 0.9), ("b2", 0.999), ("small", 1e-7)]
        .map(|(n, v)| number(n, v));
    let update = |op: &str, inputs: &[&str]| {
        let slots = ["s1", "s2"].map(|name| node(name, "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[4, 3])));
        let all = [&["classes/kernel", "s1", "s2"][..], inputs].concat();
        read(&(classes() + &gradients("mean") + &numbers.concat() + &slots.concat() + &plain("update", op, &all)))
    };
    let gradient = "classes/read";
    let ftrl = update("ResourceApplyFtrl", &[gradient, "rate", "zero", "zero", "half"]).training;
    let strengths = "l1_regularization_strength: 0.0, l2_regularization_strength: 0.0";
    assert_eq!(ftrl.optimizer, format!("{{kind: ftrl, learning_rate_power: -0.5, {strengths}}}"));
    assert_eq!((ftrl.learning_rate.as_str(), ftrl.places["optimizer"].node.as_str()), ("0.05", "update"));
    let adamax = update("ResourceApplyAdaMax", &["b1", "rate", "b1", "b2", "small", gradient]).training;
    assert_eq!(adamax.optimizer, "{kind: adamax, beta1: 0.9, beta2: 0.999, epsilon: 1.0e-7}");
    assert_eq!((adamax.learning_rate.as_str(), adamax.places["learning_rate"].node.as_str()), ("0.05", "rate"));
    let other = update("ResourceApplyAdamWithAmsgrad", &[gradient]);
    let note = noted(&other.missing, "the optimizer's `ApplyAdamWithAmsgrad` has no word");
    assert_eq!(note.help, "the nearest word is `optimizer: adam`, whose updates differ");
}

/// `tf.metrics` of an evaluation.
#[test]
fn metrics_are_read_from_an_evaluation() {
    let mean = |name: &str, values: &str| {
        plain(&format!("{name}/Sum"), "Sum", &[values])
            + &plain(&format!("{name}/update_op"), "DivNoNan", &[values, values])
    };
    let k = "node { name: \"k\" op: \"Const\" attr { key: \"value\" value { tensor { dtype: DT_INT32 tensor_shape {} \
             int_val: 2 } } } }\n";
    let metrics = plain("choice", "ArgMax", &["classes/MatMul"])
        + &plain("is_right", "Equal", &["choice", "class"])
        + &plain("right", "Cast", &["is_right"])
        + k
        + &plain("is_near", "InTopKV2", &["classes/MatMul", "class", "k"])
        + &plain("near", "Cast", &["is_near"])
        + &mean("accuracy", "right")
        + &mean("top", "near")
        + &mean("auc", "class");
    let nodes = classes() + &metrics;
    let losses = "collection_def { key: \"losses\" value { node_list { value: \"mean:0\" } } }";
    let ported = read(&format!("graph_def {{ {nodes} }} {losses}"));
    assert_eq!(ported.network.metrics, ["accuracy", "{top_k: 2}"]);
    noted(&ported.missing, "the metric `auc` is not known by its nodes");
    assert!(ported.experiment.unwrap().contains("  metrics: [accuracy, {top_k: 2}]\n"));
}

/// Two layers of trainable variables, their gradients, and their updates.
fn two_layers(updates: &str) -> Ported {
    let nodes = node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]))
        + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
        + &dense("hidden", 4)
        + &dense("classes", 3).replace("\"features\"", "\"hidden/MatMul\"")
        + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
        + &plain("mean", "Mean", &["entropy"])
        + &gradients("mean")
        + &["hidden", "classes"].map(|name| plain(&gradient(name), "MatMul", &["features", "entropy"])).concat()
        + &[("zero", 0.0), ("one", 1.0), ("tenth", 0.1), ("hundredth", 0.01)].map(|(n, v)| number(n, v)).concat()
        + &node("slot", "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[4, 3]))
        + updates;
    read(&format!(
        "graph_def {{ {nodes} }} collection_def {{ key: \"trainable_variables\" value {{ bytes_list {{ \
         value: \"\\n\\020classes/kernel:0\" value: \"\\n\\017hidden/kernel:0\" }} }} }}"
    ))
}

/// The name of the gradient of a layer's kernel.
fn gradient(layer: &str) -> String {
    format!("gradients/{layer}/MatMul_grad/MatMul_1")
}

/// The update of a layer's kernel.
fn descent(layer: &str, rate: &str, gradient: &str) -> String {
    let kernel = format!("{layer}/kernel");
    plain(&format!("update_{layer}"), "ResourceApplyGradientDescent", &[&kernel, rate, gradient])
}

/// `minimize(var_list=…)`: variables without an update are frozen, and an assignment from a gradient is an update.
#[test]
fn variables_without_an_update_do_not_train() {
    let one = descent("classes", "tenth", &gradient("classes"));
    let frozen = two_layers(&one);
    assert_eq!((frozen.training.trainable.as_str(), frozen.missing.len()), ("[\"classes/*\"]", 0));
    assert!(frozen.experiment.unwrap().contains("\n  trainable: [\"classes/*\"]\n"));
    let all = two_layers(&(one.clone() + &descent("hidden", "tenth", &gradient("hidden"))));
    assert_eq!((all.training.trainable.as_str(), all.missing.len()), ("", 0));
    let assigned = |value: &str| {
        let assign = node("assign", "AssignVariableOp", &["hidden/kernel", value], &[("dtype", "DT_FLOAT")], None);
        two_layers(&(one.clone() + &assign)).training.trainable
    };
    assert_eq!((assigned(&gradient("hidden")), assigned("zero")), (String::new(), "[\"classes/*\"]".to_string()));
}

/// Two optimizers, or two rates of one.
#[test]
fn a_second_rule_or_rate_is_missing() {
    let first = descent("hidden", "tenth", &gradient("hidden"));
    let slow = two_layers(&(first.clone() + &descent("classes", "hundredth", &gradient("classes"))));
    let note = noted(&slow.missing, "the variable `classes/kernel` is updated by");
    let rules = "by `ApplyGradientDescent` at the rate 0.01, and the first, in `update_hidden`, by \
                 `ApplyGradientDescent` at the rate 0.1;";
    assert!(note.text.contains(rules) && note.is_in_step, "{}", note.text);
    assert_eq!((note.node.as_str(), note.help.contains("variables: [\"classes/*\"]")), ("update_classes", true));
    let of_classes = gradient("classes");
    let inputs = ["classes/kernel", "slot", "tenth", of_classes.as_str()];
    let wide = two_layers(&(first + &plain("wide", "ResourceApplyAdagrad", &inputs)));
    noted(&wide.missing, "by `ApplyAdagrad` at the rate 0.1, and the first");
    // Indices stand before the rate of a sparse Ftrl; one of the same numbers is the same rule.
    let ftrl = |op: &str, layer: &str, indices: &[&str]| {
        let (kernel, gradient) = (format!("{layer}/kernel"), gradient(layer));
        let before = [kernel.as_str(), "slot", "slot", gradient.as_str()];
        let inputs = [&before[..], indices, &["tenth", "zero", "zero", "one"][..]];
        plain(&format!("{layer}/{op}"), op, &inputs.concat())
    };
    let both = ftrl("ResourceApplyFtrl", "hidden", &[]) + &ftrl("ResourceSparseApplyFtrl", "classes", &["class"]);
    assert_eq!(two_layers(&both).missing, []);
}

/// TensorFlow clips each core's gradients, before their sum.
#[test]
fn clips_on_each_core_are_per_replica_or_differ() {
    let raw = gradient("classes");
    let graph = |clip: &str| {
        let cores = node("cores", "TPUReplicateMetadata", &[], &[], None);
        let cores = with(&cores, "num_replicas", "i: 8");
        let updates = descent("hidden", "tenth", &gradient("hidden")) + &descent("classes", "tenth", "changed");
        two_layers(&(cores + clip + &plain("changed", "CrossReplicaSum", &["clipped"]) + &updates))
    };
    let scaled = |name: &str| {
        let (mul, norm) = (format!("{name}/mul"), format!("{name}/clip_norm"));
        number(&norm, 2.0) + &plain(&mul, "Mul", &[&raw, &norm]) + &plain("clipped", "Identity", &[&mul])
    };
    let experiment = |ported: Ported| ported.experiment.unwrap_or_else(|| panic!("{:?}", ported.missing));
    let global = experiment(graph(&scaled("clip_by_global_norm")));
    assert!(global.contains("clip: {kind: global_norm, value: 2.0, per_replica: true}"), "{global}");
    let each = graph(&scaled("clip_by_norm"));
    let note =
        noted(&each.differs, "TensorFlow clips on each core, before the sum over cores, which is at most 8 times 2");
    assert!(
        note.help.starts_with("`value: 16.0` has the same bound; with one core there is no difference"),
        "{note:?}"
    );
    assert!(note.help.ends_with("`{kind: global_norm, …, per_replica: true}` clips before the sum"), "{note:?}");
}

/// Ops between a gradient and its update, those that pass it on, and a clip that has words.
#[test]
fn changes_of_gradients_are_missing() {
    let (raw, other) = (gradient("classes"), descent("hidden", "tenth", &gradient("hidden")));
    let raw = raw.as_str();
    let graph = |nodes: &str| two_layers(&(nodes.to_string() + &other + &descent("classes", "tenth", "changed")));
    for (op, inputs) in [("Mul", [raw, "tenth"]), ("Sub", [raw, "mean"]), ("AddN", [raw, "mean"])] {
        let ported = graph(&(plain("changed_first", op, &inputs) + &plain("changed", "Identity", &["changed_first"])));
        let note = noted(&ported.missing, &format!("gradients are changed by `{op}` before the update"));
        assert_eq!((note.node.as_str(), note.is_in_step), ("changed_first", true));
        assert!(note.text.contains("`classes/kernel` first"), "{}", note.text);
    }
    let accumulated = graph(&node("changed", "ReadVariableOp", &["slot"], &[("dtype", "DT_FLOAT")], None));
    noted(&accumulated.missing, "gradients are kept in variables before the update");
    let clip = |name: &str| {
        let named = |part: &str| format!("{name}/{part}");
        plain(&named("mul"), "Mul", &[raw, "tenth"]) + &plain("changed", "Identity", &[&named("mul")])
    };
    for passed in [
        plain("changed", "CrossReplicaSum", &[raw]),
        plain("changed", "Mul", &[raw, "one"]),
        plain("changed", "AddN", &[raw, raw]),
        clip("clip_by_global_norm"),
    ] {
        assert_eq!(graph(&passed).missing, [], "{passed}");
    }
    noted(&graph(&clip("limit")).missing, "changed by `Mul` before the update");
}

/// One of two optimizers that is not wrapped is a slip, as none is; variables that are summed themselves are not.
#[test]
fn one_optimizer_of_two_that_is_not_wrapped_is_a_slip() {
    let cores = with(&node("metadata", "TPUReplicateMetadata", &[], &[], None), "num_replicas", "i: 8");
    let slips = |names: [&str; 2]| {
        let updates = ["hidden", "classes"].iter().zip(names).map(|(layer, read)| {
            plain(&format!("{layer}_sum"), "CrossReplicaSum", &[&gradient(layer)])
                + &plain(
                    &format!("{layer}_update"),
                    "ResourceApplyGradientDescent",
                    &[&format!("{layer}/kernel"), "tenth", read],
                )
        });
        two_layers(&(cores.clone() + &updates.collect::<String>())).slips
    };
    let alone =
        |names| slips(names).into_iter().filter(|slip| slip.kind == SlipKind::NoSumOverCores).collect::<Vec<_>>();
    assert_eq!(alone(["hidden_sum", "classes_sum"]), []);
    let unwrapped = alone([&gradient("hidden"), "classes_sum"]);
    assert_eq!(unwrapped.iter().map(|slip| slip.node.as_str()).collect::<Vec<_>>(), ["hidden_update"]);
}
