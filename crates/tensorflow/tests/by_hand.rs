//! Parts of networks by what they compute: dropouts by their masks, norms by hand, losses that are weighed; and steps that a tape differentiates.

mod graphs;

use graphs::{classes, dense, gradients, ints, node, number, plain, read, with};

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

/// TensorFlow deals positions out to further images, convolves neighbours and joins the images: a dilated convolution.
#[test]
fn a_convolution_between_space_and_batch_is_dilated() {
    let matrix = |name: &str, values: &[i64]| {
        let rows = format!("dim {{ size: {} }} dim {{ size: 2 }}", values.len() / 2);
        ints(name, values).replacen(&format!("dim {{ size: {} }}", values.len()), &rows, 1)
    };
    let float = [("dtype", "DT_FLOAT")];
    let image = |rates: &[i64], pads: &[i64], crops: &[i64], padding: &str, is_read_again: bool| {
        let convolution = plain("conv", "Conv2D", &["spread", "conv/read"]);
        let convolution = with(&convolution, "padding", &format!("s: {padding:?}"));
        let convolution = with(&convolution, "strides", "list { i: 1 i: 1 i: 1 i: 1 }");
        let joined = ["joined", if is_read_again { "conv" } else { "joined" }];
        let text = node("features", "Placeholder", &[], &float, Some(&[8, 9, 12, 2]))
            + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
            + &node("conv/kernel", "VarHandleOp", &[], &float, Some(&[3, 3, 2, 4]))
            + &node("conv/read", "ReadVariableOp", &["conv/kernel"], &float, None)
            + &[ints("rates", rates), matrix("pads", pads), matrix("crops", crops), ints("places", &[1, 2])].concat()
            + &plain("spread", "SpaceToBatchND", &["features", "rates", "pads"])
            + &convolution
            + &plain("joined", "BatchToSpaceND", &["conv", "rates", "crops"])
            + &plain("sum", "AddV2", &joined)
            + &plain("pool", "Mean", &["sum", "places"])
            + &dense("classes", 3).replace("\"features\"", "\"pool\"")
            + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
            + &plain("mean", "Mean", &["entropy"]);
        read(&(text + &gradients("mean")))
    };
    let same: [i64; 4] = [2, 3, 3, 3];
    for (rates, pads, crops, options) in [
        (vec![2, 3], same.to_vec(), vec![0, 1, 0, 0], "padding: same, dilation_rate: [2, 3], "),
        (vec![2, 2], vec![0, 1, 0, 0], vec![0, 1, 0, 0], "dilation_rate: 2, "),
        (vec![3], vec![0, 0], vec![0, 0], "dilation_rate: [3, 1], "),
    ] {
        let ported = image(&rates, &pads, &crops, "VALID", false);
        assert_eq!(ported.missing, [], "{rates:?}");
        let experiment = ported.experiment.unwrap();
        let line = format!("{{conv: 4, kernel_size: 3, {options}use_bias: false");
        assert!(experiment.contains(&line), "{rates:?}: {experiment}");
    }
    // A padding with no word, rows that are padded and columns that are not, positions that are cut off in front, a
    // convolution that pads by itself, and a result that is read before it is joined.
    for (pads, crops, padding, is_read_again) in [
        ([4, 1, 4, 0], [0, 1, 0, 0], "VALID", false),
        ([2, 3, 0, 0], [0, 1, 0, 0], "VALID", false),
        ([2, 3, 2, 2], [1, 0, 0, 0], "VALID", false),
        ([2, 3, 2, 2], [0, 1, 0, 0], "SAME", false),
        ([2, 3, 2, 2], [0, 1, 0, 0], "VALID", true),
    ] {
        let ported = image(&[2, 2], &pads, &crops, padding, is_read_again);
        assert!(ported.experiment.is_none() && !ported.missing.is_empty(), "{pads:?} {crops:?} {padding}");
    }
    // A sequence is an image of one row between the same two ops.
    let text = node("features", "Placeholder", &[], &float, Some(&[8, 20, 2]))
        + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
        + &node("conv/kernel", "VarHandleOp", &[], &float, Some(&[3, 2, 4]))
        + &node("conv/read", "ReadVariableOp", &["conv/kernel"], &float, None)
        + &[ints("rates", &[4]), matrix("pads", &[4, 4]), matrix("crops", &[0, 0]), ints("places", &[1])].concat()
        + &[ints("row", &[-3]), ints("of_kernel", &[0])].concat()
        + &plain("spread", "SpaceToBatchND", &["features", "rates", "pads"])
        + &plain("image", "ExpandDims", &["spread", "row"])
        + &plain("kernel", "ExpandDims", &["conv/read", "of_kernel"])
        + &with(&plain("conv", "Conv2D", &["image", "kernel"]), "padding", "s: \"VALID\"")
        + &with(&plain("squeezed", "Squeeze", &["conv"]), "squeeze_dims", "list { i: -3 }")
        + &plain("joined", "BatchToSpaceND", &["squeezed", "rates", "crops"])
        + &plain("pool", "Mean", &["joined", "places"])
        + &dense("classes", 3).replace("\"features\"", "\"pool\"")
        + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
        + &plain("mean", "Mean", &["entropy"]);
    let ported = read(&(text + &gradients("mean")));
    assert_eq!(ported.missing, []);
    let line = "{conv1d: 4, kernel_size: 3, padding: same, dilation_rate: 4, use_bias: false";
    assert!(ported.experiment.as_deref().unwrap_or_default().contains(line), "{:?}", ported.experiment);
}
