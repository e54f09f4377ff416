//! Parts of networks by what they compute: dropouts by their masks, norms by hand, losses that are weighed; and steps that a tape differentiates.

mod graphs;

use graphs::{classes, gradients, ints, node, number, plain, read};

/// Dropout masks over elements, channels or examples have a layer; a mask over positions has no layer.
#[test]
fn a_dropout_is_named_by_what_its_mask_drops() {
    for (mask, word) in [
        ([8, 6, 4], Some("{dropout: 0.25")),
        ([8, 1, 4], Some("{spatial_dropout: 0.25")),
        ([8, 1, 1], Some("{stochastic_depth: 0.25")),
        ([8, 6, 1], None),
    ] {
        let text =
            classes().replace("dim { size: 8 } dim { size: 4 }", "dim { size: 8 } dim { size: 6 } dim { size: 4 }");
        let text = text.replacen("input: \"features\"", "input: \"pool\"", 1)
            + &ints("mask", &mask)
            + &node("uniform", "RandomUniform", &["mask"], &[("dtype", "DT_FLOAT"), ("T", "DT_INT32")], None)
            + &number("rate", 0.25)
            + &plain("keep", "GreaterEqual", &["uniform", "rate"])
            + &number("scale", 1.333_333_4)
            + &plain("scaled", "Mul", &["features", "scale"])
            + &number("zero", 0.0)
            + &plain("dropped", "SelectV2", &["keep", "scaled", "zero"])
            + &ints("axis", &[1])
            + &plain("pool", "Mean", &["dropped", "axis"])
            + &gradients("mean");
        let ported = read(&text);
        match (word, &ported.experiment) {
            (Some(word), Some(experiment)) => assert!(experiment.contains(word), "{mask:?}: {experiment}"),
            (None, None) => assert!(!ported.missing.is_empty()),
            (_, experiment) => panic!("{mask:?}: {experiment:?}, {:?}", ported.missing),
        }
    }
}

/// A step whose loss is not named is no network that only predicts, and its optimizer is not left out without a word.
#[test]
fn a_step_of_a_tape_trains() {
    let text = classes()
        + &plain("gradient_tape/mean/mul", "Mul", &["entropy", "entropy"])
        + &node("Adam/m", "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[8]))
        + &node("Adam/AssignAddVariableOp", "AssignAddVariableOp", &["Adam/m", "gradient_tape/mean/mul"], &[], None);
    let ported = read(&text);
    let texts: Vec<&str> = ported.missing.iter().map(|note| note.text.as_str()).collect();
    let expected = [
        "the graph takes gradients by a tape, and which loss they are of is not known",
        "its optimizer, Keras' Adam, is written with plain ops, whose numbers are not read",
    ];
    assert_eq!(texts, expected);
    assert!(ported.differs.iter().all(|note| !note.text.contains("only predicts")), "{:?}", ported.differs);
}

/// A layer norm by hand is read as the layer in each spelling of variance and root; with another array's mean it is not.
#[test]
fn a_norm_by_hand_is_a_layer() {
    let float = [("dtype", "DT_FLOAT")];
    let variable = |name: &str| {
        node(name, "VarHandleOp", &[], &float, Some(&[4]))
            + &node(&format!("{name}/read"), "ReadVariableOp", &[name], &float, None)
    };
    let differences = plain("squares", "SquaredDifference", &["features", "mean_of"]);
    let squares = plain("squares", "Square", &["centred"]);
    let others = plain("squares", "SquaredDifference", &["centred", "mean_of"]);
    let product = plain("root", "Rsqrt", &["sum"]) + &plain("normed", "Mul", &["centred", "root"]);
    let ratio = plain("root", "Sqrt", &["sum"]) + &plain("normed", "RealDiv", &["centred", "root"]);
    for (variance, root, is_norm) in [
        (&differences, &product, true),
        (&squares, &product, true),
        (&differences, &ratio, true),
        (&others, &product, false),
    ] {
        let text = classes().replacen("input: \"features\"", "input: \"y\"", 1)
            + &variable("norm/scale")
            + &variable("norm/bias")
            + &ints("axes", &[-1])
            + &plain("mean_of", "Mean", &["features", "axes"])
            + &plain("centred", "Sub", &["features", "mean_of"])
            + variance
            + &plain("variance", "Mean", &["squares", "axes"])
            + &number("small", 0.001)
            + &plain("sum", "AddV2", &["variance", "small"])
            + root
            + &plain("scaled", "Mul", &["norm/scale/read", "normed"])
            + &plain("y", "AddV2", &["scaled", "norm/bias/read"])
            + &gradients("mean");
        let ported = read(&text);
        let has = ported.experiment.as_ref().is_some_and(|text| text.contains("{layer_norm: , epsilon: 0.001"));
        assert_eq!(has, is_norm, "{:?} {:?}", ported.experiment, ported.missing);
    }
}

/// Neither of two weights that a condition chooses from, as a focal loss has them, is the loss's.
#[test]
fn weights_that_are_chosen_are_no_weight() {
    let chosen = number("alpha", 0.25)
        + &number("rest", 0.75)
        + &plain("of_alpha", "Mul", &["alpha", "entropy"])
        + &plain("of_rest", "Mul", &["rest", "entropy"])
        + &node("is_zero", "Equal", &["class", "one"], &[("T", "DT_INT32")], None)
        + &ints("one", &[1])
        + &plain("chosen", "SelectV2", &["is_zero", "of_alpha", "of_rest"]);
    let text = classes().replace("op: \"Mean\" input: \"entropy\"", "op: \"Mean\" input: \"chosen\"");
    let ported = read(&(text + &chosen + &gradients("mean")));
    let experiment = ported.experiment.unwrap();
    assert!(!experiment.contains("weight"), "{experiment}");
    assert!(ported.missing.iter().any(|note| note.text.contains("weighs losses")), "{:?}", ported.missing);
}
