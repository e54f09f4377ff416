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
    let ported = ported("amsgrad");
    assert_eq!(ported.training.optimizer, "");
    assert_eq!(
        texts(&ported.missing),
        ["its optimizer, Keras' Adam, is written with plain ops, whose numbers are not read"]
    );
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
    assert!(texts(&ported.missing).contains(&"the loss at `negative` is not of layers alone"), "{:?}", ported.missing);
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
