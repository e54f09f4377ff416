//! Optimizers that graphs write with plain ops, as Keras' are and as loops by hand do: their words, and what is said of others.

mod fixtures;
mod graphs;
mod run;

use bf16scope_tensorflow::{Graph, Note, Ported, port};
use fixtures::unpacked;
use graphs::{dense, gradients, node, number, plain, read};

fn ported(name: &str) -> Ported {
    let file = format!("keras_{name}.meta");
    port(&Graph::read(&unpacked(&file), &file).unwrap())
}

fn texts(notes: &[Note]) -> Vec<&str> {
    notes.iter().map(|note| note.text.as_str()).collect()
}

/// Numbers, rates, clips and decays, of a sparse gradient and of dense ones.
#[test]
fn optimizers_of_plain_ops_have_words() {
    let decay = "{value: 0.0001, decoupled: true}";
    for (name, optimizer, rate, weight_decay, clip) in [
        (
            "momentum",
            "{kind: momentum, momentum: 0.9, nesterov: true}",
            "{kind: cosine, value: 0.1, decay_steps: 1000}",
            "",
            "",
        ),
        ("decayed", "{kind: momentum, momentum: 0.9}", "0.1", decay, "{kind: value, value: 0.5}"),
        (
            "adam",
            "{kind: adam, beta1: 0.9, beta2: 0.98, epsilon: 1.0e-7, epsilon_hat: true}",
            "0.001",
            "",
            "{kind: global_norm, value: 2.0}",
        ),
        (
            "adamw",
            "{kind: adamw, beta1: 0.9, beta2: 0.999, epsilon: 1.0e-7, epsilon_hat: true}",
            "0.001",
            "{value: 0.004}",
            "",
        ),
        (
            "rmsprop",
            "{kind: rmsprop, decay: 0.9, momentum: 0.8, epsilon: 1.0e-7, centered: true, initial_accumulator_value: 0.0}",
            "0.001",
            "",
            "",
        ),
        ("adagrad", "{kind: adagrad, epsilon: 1.0e-7, initial_accumulator_value: 0.2}", "0.05", "", ""),
        ("adadelta", "{kind: adadelta, rho: 0.95, epsilon: 1.0e-7}", "1.0", "", ""),
        ("adamax", "{kind: adamax, beta1: 0.9, beta2: 0.999, epsilon: 1.0e-7}", "0.002", "", ""),
        (
            "ftrl",
            "{kind: ftrl, learning_rate_power: -0.5, initial_accumulator_value: 0.1, l1_regularization_strength: 0.01, \
             l2_regularization_strength: 0.02}",
            "0.05",
            "",
            "",
        ),
        (
            "amsgrad",
            "{kind: adam, beta1: 0.9, beta2: 0.999, epsilon: 1.0e-7, epsilon_hat: true, amsgrad: true}",
            "0.001",
            "",
            "",
        ),
        ("lion", "{kind: lion, beta1: 0.9, beta2: 0.99}", "0.0001", "{value: 0.1}", ""),
        ("by_hand", "{kind: sgd}", "0.05", "", ""),
    ] {
        let ported = ported(name);
        let training = &ported.training;
        let words = [&training.optimizer, &training.learning_rate, &training.weight_decay, &training.clip];
        assert_eq!(words, [optimizer, rate, weight_decay, clip], "{name}: {:?}", ported.missing);
        assert!(ported.missing.is_empty(), "{name}: {:?}", ported.missing);
    }
}

/// A slot that has the rate inside goes on with earlier rates; without a schedule it is the same.
#[test]
fn a_slot_with_the_rate_inside_differs_where_the_rate_changes() {
    let inside = "the optimizer's slot has the learning rate inside";
    let is_said = |name: &str| texts(&ported(name).differs).iter().any(|text| text.starts_with(inside));
    assert_eq!((is_said("momentum"), is_said("decayed"), is_said("rmsprop")), (true, false, false));
    let legacy = ported("legacy");
    assert_eq!(legacy.training.optimizer, "{kind: momentum, momentum: 0.9, nesterov: true}");
    assert_eq!((legacy.training.learning_rate.as_str(), is_said("legacy")), ("0.1", false));
}

/// An update that is no optimizer's of ours is missing, and never guessed.
#[test]
fn another_update_is_missing() {
    let ported = ported("nadam");
    assert_eq!(ported.training.optimizer, "");
    assert_eq!(
        texts(&ported.missing),
        ["its optimizer, Keras' Nadam, is written with plain ops, whose numbers are not read"]
    );
}

/// Updates by hand at a rate of ops, which are no optimizer's here.
#[test]
fn updates_by_hand_that_are_not_known_are_said() {
    let gradient = "gradient_tape/MatMul_grad";
    let nodes = graphs::classes()
        + &number("rate", 0.1)
        + &plain(gradient, "MatMul", &["features", "mean"])
        + &plain("cube", "Mul", &[gradient, gradient])
        + &plain("step", "Mul", &["cube", gradient])
        + &plain("change", "Mul", &["step", "rate"])
        + &plain("update", "AssignSubVariableOp", &["classes/kernel", "change"]);
    let ported = read(&format!(
        "graph_def {{ {nodes} }} collection_def {{ key: \"losses\" value {{ node_list {{ value: \"mean:0\" }} }} }}"
    ));
    assert_eq!(ported.training.optimizer, "");
    let text = "its updates of variables are written with plain ops, whose numbers are not read";
    assert!(texts(&ported.missing).contains(&text), "{:?}", ported.missing);
}

/// A learning rate that each update computes from the step's number is a schedule; another factor of the gradient is not.
#[test]
fn a_rate_inside_of_an_update_is_read() {
    let gradient = "gradient_tape/MatMul_grad";
    let float = [("dtype", "DT_FLOAT")];
    let update = |factor: &str| {
        graphs::classes()
            + &node("classes/bias", "VarHandleOp", &[], &float, Some(&[3]))
            + &plain(gradient, "MatMul", &["features", "mean"])
            + &node("count", "VarHandleOp", &[], &[("dtype", "DT_INT64")], Some(&[]))
            + &node("count/read", "ReadVariableOp", &["count"], &[("dtype", "DT_INT64")], None)
            + &node("step", "Cast", &["count/read"], &[("SrcT", "DT_INT64"), ("DstT", "DT_FLOAT")], None)
            + &[("steps", 1e6), ("one", 1.0), ("pi", std::f32::consts::PI), ("half", 0.05)]
                .map(|(name, value)| number(name, value))
                .concat()
            + &["kernel", "bias"]
                .map(|variable| {
                    let part = |name: &str| format!("{variable}_{name}");
                    plain(&part("share"), "RealDiv", &["step", "steps"])
                        + &plain(&part("at_most"), "Minimum", &[&part("share"), "one"])
                        + &plain(&part("angle"), "Mul", &[&part("at_most"), "pi"])
                        + &plain(&part("cosine"), "Cos", &[&part("angle")])
                        + &plain(&part("sum"), "AddV2", &["one", &part("cosine")])
                        + &plain(&part("rate"), "Mul", &["half", &part("sum")])
                        + &plain(&part("change"), factor, &[gradient, &part("rate")])
                        + &plain(
                            &part("update"),
                            "AssignSubVariableOp",
                            &[&format!("classes/{variable}"), &part("change")],
                        )
                })
                .concat()
    };
    let ported = |factor: &str| {
        read(&format!(
            "graph_def {{ {} }} collection_def {{ key: \"losses\" value {{ node_list {{ value: \"mean:0\" }} }} }} \
             collection_def {{ key: \"trainable_variables\" value {{ bytes_list {{ \
             value: \"\\n\\020classes/kernel:0\" value: \"\\n\\016classes/bias:0\" }} }} }}",
            update(factor),
        ))
    };
    let cosine = ported("Mul");
    assert_eq!(cosine.training.optimizer, "{kind: sgd}", "{:?}", cosine.missing);
    assert_eq!(cosine.training.learning_rate, "{kind: cosine, value: 0.1, decay_steps: 1000000}");
    assert_eq!(ported("RealDiv").training.optimizer, "");
}

/// A GAN's second loss and second optimizer.
#[test]
fn a_second_loss_and_a_second_optimizer_are_said() {
    let ported = ported("two");
    let missing = texts(&ported.missing);
    assert!(missing.iter().any(|text| text.starts_with("gradients are taken of more than the loss `")), "{missing:?}");
    let other = "2 variables such as `first/bias` are updated by {kind: adam, beta1: 0.9, beta2: 0.999, epsilon: 1.0e-7, \
                 epsilon_hat: true} at the rate 0.0001, unlike the first";
    assert!(missing.contains(&other), "{missing:?}");
    assert!(helps(&ported).contains("optimizers: [{variables: [\"first/*\"], optimizer: {kind: adam, beta1: 0.9"));
}

fn helps(ported: &Ported) -> String {
    ported.missing.iter().map(|note| note.help.as_str()).collect::<Vec<_>>().join("; ")
}

/// Losses that are summed, divided by a fixed number, or written with plain ops count as in the graph.
#[test]
fn sums_of_losses_have_their_weight() {
    let graph = |ending: &str, loss: &str| {
        read(
            &(node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]))
                + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
                + &node("value", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 3]))
                + &dense("classes", 3)
                + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
                + &graphs::ints("axes", &[0])
                + &graphs::ints("both", &[0, 1])
                + &number("sixteen", 16.0)
                + &plain("difference", "Sub", &["value", "classes/MatMul"])
                + ending
                + &gradients(loss)),
        )
    };
    let sum = plain("sum", "Sum", &["entropy", "axes"]);
    let share = sum.clone() + &plain("share", "RealDiv", &["sum", "sixteen"]);
    let square = plain("square", "Square", &["difference"]) + &plain("mean", "Mean", &["square", "both"]);
    let half = plain("half", "L2Loss", &["difference"]);
    let mean = plain("mean", "Mean", &["entropy", "axes"]);
    for (ending, loss, expected) in [
        (mean, "mean", "  loss: sparse_softmax_cross_entropy\n"),
        (sum, "sum", "  loss: {sparse_softmax_cross_entropy: , weight: 8.0}\n"),
        (share, "share", "  loss: {sparse_softmax_cross_entropy: , weight: 0.5}\n"),
        (square, "mean", "  loss: mean_squared_error\n"),
        (half, "half", "  loss: {mean_squared_error: , weight: 12.0}\n"),
    ] {
        let text = graph(&ending, loss).experiment.unwrap();
        assert!(text.contains(expected), "{loss}: {text}");
    }
}

/// Losses of plain ops that are known by their values: Huber's in two spellings, log cosh, hinges, quantiles, and a sigmoid's.
#[test]
fn losses_of_plain_ops_have_words() {
    let graph = |ending: &str| {
        let numbers = [
            ("zero", 0.0),
            ("half", 0.5),
            ("one", 1.0),
            ("two", 2.0),
            ("delta", 0.7),
            ("rest", 0.245),
            ("ln2", std::f32::consts::LN_2),
        ];
        let text = node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]))
            + &node("value", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 3]))
            + &dense("scores", 3)
            + &graphs::ints("both", &[0, 1])
            + &numbers.map(|(name, value)| number(name, value)).concat()
            + &[("tenth", 0.1), ("less", -0.9), ("minus_two", -2.0)].map(|(name, value)| number(name, value)).concat()
            + &plain("error", "Sub", &["scores/MatMul", "value"])
            + &plain("size", "Abs", &["error"])
            + ending
            + &plain("mean", "Mean", &["loss", "both"])
            + &gradients("mean");
        read(&text)
    };
    let op = |name: &str, op: &str, inputs: &[&str]| plain(name, op, inputs);
    let huber = op("square", "Square", &["error"])
        + &op("near", "Mul", &["half", "square"])
        + &op("line", "Mul", &["delta", "size"])
        + &op("far", "Sub", &["line", "rest"])
        + &op("is_near", "LessEqual", &["size", "delta"])
        + &op("loss", "SelectV2", &["is_near", "near", "far"]);
    let log_cosh = op("minus", "Mul", &["minus_two", "error"])
        + &op("softplus", "Softplus", &["minus"])
        + &op("sum", "AddV2", &["error", "softplus"])
        + &op("loss", "Sub", &["sum", "ln2"]);
    let signs = op("double", "Mul", &["two", "value"]) + &op("sign", "Sub", &["double", "one"]);
    let hinge = signs + &op("product", "Mul", &["sign", "scores/MatMul"]) + &op("margin", "Sub", &["one", "product"]);
    let squared = hinge.clone() + &op("hinge", "Maximum", &["margin", "zero"]) + &op("loss", "Square", &["hinge"]);
    let hinge = hinge + &op("loss", "Maximum", &["margin", "zero"]);
    let quantile = op("distance", "Sub", &["value", "scores/MatMul"])
        + &op("above", "Mul", &["tenth", "distance"])
        + &op("below", "Mul", &["less", "distance"])
        + &op("loss", "Maximum", &["above", "below"]);
    let sigmoid = op("softplus", "Softplus", &["scores/MatMul"])
        + &op("chosen", "Mul", &["scores/MatMul", "value"])
        + &op("loss", "Sub", &["softplus", "chosen"]);
    // The same of probabilities: -log p and -log(1 - p).
    let of_probabilities = op("p", "Sigmoid", &["scores/MatMul"])
        + &op("q", "Sub", &["one", "p"])
        + &op("log_p", "Log", &["p"])
        + &op("log_q", "Log", &["q"])
        + &op("not", "Sub", &["one", "value"])
        + &op("first", "Mul", &["value", "log_p"])
        + &op("second", "Mul", &["not", "log_q"])
        + &op("both_logs", "AddV2", &["first", "second"])
        + &op("loss", "Neg", &["both_logs"]);
    for (ending, expected) in [
        (huber, "{huber: , delta: 0.7}"),
        (log_cosh, "log_cosh"),
        (hinge, "hinge"),
        (squared, "squared_hinge"),
        (quantile, "{quantile: , tau: 0.1}"),
        (sigmoid, "sigmoid_cross_entropy"),
        (of_probabilities, "sigmoid_cross_entropy"),
    ] {
        let ported = graph(&ending);
        let text = ported.experiment.unwrap_or_else(|| panic!("{expected}: {:?}", ported.missing));
        assert!(text.contains(&format!("\n  loss: {expected}\n")), "{expected}: {text}");
        assert!(ported.missing.is_empty(), "{expected}: {:?}", ported.missing);
    }
    // The cube of a distance is no loss of ours.
    let cube = op("square", "Square", &["error"]) + &op("loss", "Mul", &["square", "size"]);
    assert!(graph(&cube).experiment.is_none());
}

/// A loss that is not of layers leaves no network, and the other losses none of its lines.
#[test]
fn a_loss_beside_one_of_layers_that_is_not_of_layers_is_said() {
    let negative = plain("negative", "Neg", &["classes/MatMul"])
        + &plain("other", "SparseSoftmaxCrossEntropyWithLogits", &["negative", "class"])
        + &plain("other_mean", "Mean", &["other"])
        + &plain("total", "AddV2", &["other_mean", "mean"])
        + &gradients("total");
    let ported = read(&(graphs::classes() + &negative));
    assert!(ported.experiment.is_none());
    let text = "the loss at `negative` is not of layers alone: `negative` (Neg) of a layer has no word";
    assert!(texts(&ported.missing).contains(&text), "{:?}", ported.missing);
}

/// A warm-up and a cosine that nothing ends, as callables of schedules often have it.
#[test]
fn a_cosine_that_rises_again_has_words_up_to_its_end() {
    let steps = node("step", "VarHandleOp", &[], &[("dtype", "DT_INT64")], Some(&[]))
        + &node("step/read", "ReadVariableOp", &["step"], &[("dtype", "DT_INT64")], None)
        + &node("now", "Cast", &["step/read"], &[("SrcT", "DT_INT64"), ("DstT", "DT_FLOAT")], None);
    let numbers =
        [("one", 1.0), ("begin", 100.0), ("peak", 0.2), ("long", 900.0), ("half", 0.1), ("pi", std::f32::consts::PI)];
    let rate = plain("share", "RealDiv", &["now", "begin"])
        + &plain("warm", "Mul", &["share", "peak"])
        + &plain("behind", "Sub", &["now", "begin"])
        + &plain("angle", "Mul", &["behind", "pi"])
        + &plain("passed", "RealDiv", &["angle", "long"])
        + &plain("cosine", "Cos", &["passed"])
        + &plain("above", "AddV2", &["cosine", "one"])
        + &plain("base", "Mul", &["above", "half"])
        + &plain("is_warm", "Less", &["now", "begin"])
        + &plain("rate", "SelectV2", &["is_warm", "warm", "base"]);
    let gradient = "gradients/classes/MatMul_grad/MatMul";
    let update = plain(gradient, "MatMul", &["features", "gradients/grad_ys_0"])
        + &plain("update", "ResourceApplyGradientDescent", &["classes/kernel", "rate", gradient]);
    let numbers = numbers.map(|(name, value)| number(name, value)).concat();
    let ported = read(&(graphs::classes() + &gradients("mean") + &steps + &numbers + &rate + &update));
    assert_eq!(ported.training.learning_rate, "{kind: cosine, value: 0.2, decay_steps: 900}", "{:?}", ported.missing);
    assert_eq!(ported.training.warm_up, "{steps: 100}");
    let differs = texts(&ported.differs);
    assert!(
        differs.iter().any(|text| text.starts_with("the cosine rises again where training goes on")),
        "{differs:?}"
    );
}

/// A rate that a script assigns between steps, as language models of TensorFlow 1 do.
#[test]
fn a_rate_in_a_variable_begins_at_its_initial_value() {
    let float = [("dtype", "DT_FLOAT")];
    let gradient = "gradients/classes/MatMul_grad/MatMul";
    let nodes = graphs::classes()
        + &gradients("mean")
        + &number("first", 0.5)
        + &node("rate", "VariableV2", &[], &float, Some(&[]))
        + &plain("rate/Assign", "Assign", &["rate", "first"])
        + &plain("rate/read", "Identity", &["rate"])
        + &plain(gradient, "MatMul", &["features", "gradients/grad_ys_0"])
        + &plain("update", "ResourceApplyGradientDescent", &["classes/kernel", "rate/read", gradient]);
    let read_with = |variables: &str| read(&format!("graph_def {{ {nodes} }} {variables}"));
    let known = read_with(
        "collection_def { key: \"variables\" value { bytes_list { value: \"\\n\\006rate:0\\022\\013rate/Assign\" } } }",
    );
    assert_eq!(known.training.learning_rate, "0.5", "{:?}", known.missing);
    let text = "the learning rate is the variable `rate`, which begins at 0.5 and which the script may assign between steps; \
                here it stays";
    assert!(texts(&known.differs).contains(&text), "{:?}", known.differs);
    let unknown = read_with("");
    let text = "the learning rate is this variable's value, which the graph does not have";
    assert!(texts(&unknown.missing).contains(&text), "{:?}", unknown.missing);
}

/// A warm-up by `(step + 1) / n`, behind which the schedule goes on at a lower rate.
#[test]
fn a_warm_up_that_begins_at_its_first_part_has_words() {
    let steps = node("step", "VarHandleOp", &[], &[("dtype", "DT_INT64")], Some(&[]))
        + &node("step/read", "ReadVariableOp", &["step"], &[("dtype", "DT_INT64")], None)
        + &node("now", "Cast", &["step/read"], &[("SrcT", "DT_INT64"), ("DstT", "DT_FLOAT")], None);
    let numbers = [("one", 1.0), ("n", 100.0), ("peak", 0.1), ("long", 1000.0), ("half", 0.5)];
    let rate = plain("next", "AddV2", &["now", "one"])
        + &plain("share", "RealDiv", &["next", "n"])
        + &plain("warm", "Mul", &["share", "peak"])
        + &plain("passed", "RealDiv", &["now", "long"])
        + &plain("power", "Pow", &["half", "passed"])
        + &plain("base", "Mul", &["power", "peak"])
        + &plain("is_warm", "Less", &["now", "n"])
        + &plain("rate", "SelectV2", &["is_warm", "warm", "base"]);
    let gradient = "gradients/classes/MatMul_grad/MatMul";
    let update = plain(gradient, "MatMul", &["features", "gradients/grad_ys_0"])
        + &plain("update", "ResourceApplyGradientDescent", &["classes/kernel", "rate", gradient]);
    let numbers = numbers.map(|(name, value)| number(name, value)).concat();
    let ported = read(&(graphs::classes() + &gradients("mean") + &steps + &numbers + &rate + &update));
    let training = &ported.training;
    assert_eq!(training.learning_rate, "{kind: exponential, value: 0.1, decay_steps: 1000, decay_rate: 0.5}");
    assert_eq!(training.warm_up, "{steps: 99, start: 0.001, overlap: true}");
    let differs = texts(&ported.differs);
    let last = "the warm-up's last rate, at step 99, is 0.1 there; here it is the schedule's, 0.0933";
    assert!(differs.iter().any(|text| text.starts_with(last)), "{differs:?}");
}
