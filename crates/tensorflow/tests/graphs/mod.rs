//! Graphs of a few nodes as text.

#![allow(dead_code)] // Each test crate uses its part.

use bf16scope_tensorflow::{Graph, Ported, port};

/// A node of a graph as text.
pub fn node(name: &str, op: &str, inputs: &[&str], types: &[(&str, &str)], dims: Option<&[i64]>) -> String {
    let inputs: String = inputs.iter().map(|input| format!("input: {input:?} ")).collect();
    let types: String =
        types.iter().map(|(key, dtype)| format!("attr {{ key: {key:?} value {{ type: {dtype} }} }} ")).collect();
    let dims = dims.map(|dims| dims.iter().map(|dim| format!("dim {{ size: {dim} }} ")).collect::<String>());
    let shape =
        dims.map(|dims| format!("attr {{ key: \"shape\" value {{ shape {{ {dims} }} }} }}")).unwrap_or_default();
    format!("node {{ name: {name:?} op: {op:?} {inputs}{types}{shape} }}\n")
}

/// A node with one more attribute.
pub fn with(node: &str, key: &str, value: &str) -> String {
    let open = node.trim_end().strip_suffix('}').expect("a node ends with a brace");
    format!("{open}attr {{ key: {key:?} value {{ {value} }} }} }}\n")
}

/// A node of f32 as text.
pub fn plain(name: &str, op: &str, inputs: &[&str]) -> String {
    node(name, op, inputs, &[("T", "DT_FLOAT")], None)
}

/// A number of f32 as text.
pub fn number(name: &str, value: f32) -> String {
    format!(
        "node {{ name: {name:?} op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_FLOAT tensor_shape {{}} \
         float_val: {value} }} }} }} }}\n"
    )
}

/// A vector of integers as text.
pub fn ints(name: &str, values: &[i64]) -> String {
    let all: String = values.iter().map(|value| format!("int_val: {value} ")).collect();
    let dims = values.len();
    format!(
        "node {{ name: {name:?} op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_INT32 \
         tensor_shape {{ dim {{ size: {dims} }} }} {all}}} }} }} }}\n"
    )
}

/// A dense layer of four features as text: `NAME/kernel`, read by `NAME/read` and multiplied by `NAME/MatMul`.
pub fn dense(name: &str, n_units: i64) -> String {
    let (kernel, read) = (format!("{name}/kernel"), format!("{name}/read"));
    node(&kernel, "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[4, n_units]))
        + &node(&read, "ReadVariableOp", &[kernel.as_str()], &[("dtype", "DT_FLOAT")], None)
        + &plain(&format!("{name}/MatMul"), "MatMul", &["features", read.as_str()])
}

/// Features and labels of eight examples as text, and a cross-entropy `mean` of the layer `classes`.
pub fn classes() -> String {
    node("features", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[8, 4]))
        + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
        + &dense("classes", 3)
        + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
        + &plain("mean", "Mean", &["entropy"])
}

/// The nodes by which `tf.gradients` begins at a loss, as text.
pub fn gradients(loss: &str) -> String {
    number("gradients/grad_ys_0", 1.0)
        + &node(&format!("gradients/{loss}_grad/tuple"), "NoOp", &["^gradients/grad_ys_0"], &[], None)
}

/// Self-attention of three heads of four features with a mask, dropout, and the norm of a sum, as BERT writes them, and
/// a loss of three classes, as text. Scores are multiplied by `scale`, and those that the mask hides get `hidden` more.
pub fn encoder(scale: f32, hidden: f32) -> String {
    let float = [("dtype", "DT_FLOAT")];
    let layer = |scope: &str, x: &str, dims: [i64; 2]| {
        let part = |name: &str| format!("{scope}/{name}");
        let variable = |name: &str, dims: &[i64]| {
            node(&part(name), "VarHandleOp", &[], &float, Some(dims))
                + &node(&part(&format!("{name}/read")), "ReadVariableOp", &[&part(name)], &float, None)
        };
        variable("kernel", &dims)
            + &variable("bias", &dims[1..])
            + &plain(&part("MatMul"), "MatMul", &[x, &part("kernel/read")])
            + &plain(&part("BiasAdd"), "BiasAdd", &[&part("MatMul"), &part("bias/read")])
    };
    let heads = |name: &str| {
        let scope = format!("layer_0/attention/self/{name}");
        layer(&scope, "rows", [12, 12])
            + &plain(&format!("{name}_split"), "Reshape", &[&format!("{scope}/BiasAdd"), "split"])
            + &plain(&format!("{name}_heads"), "Transpose", &[&format!("{name}_split"), "order"])
    };
    let norm = |name: &str| node(name, "VarHandleOp", &[], &float, Some(&[12]));
    let keeping = |text: String| with(&text, "keep_dims", "b: true");
    node("x", "Placeholder", &[], &float, Some(&[8, 5, 12]))
        + &node("input_mask", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8, 5]))
        + &node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[8]))
        + &ints("matrix", &[-1, 12])
        + &ints("split", &[8, 5, 3, 4])
        + &ints("order", &[0, 2, 1, 3])
        + &ints("before_keys", &[8, 1, 5])
        + &ints("sequence", &[8, 5, 12])
        + &ints("axis", &[1])
        + &[("scale", scale), ("hidden", hidden), ("one", 1.0), ("zero", 0.0), ("rate", 0.1), ("share", 1.111_111_2)]
            .map(|(name, value)| number(name, value))
            .concat()
        + &number("epsilon", 1e-12)
        + &plain("rows", "Reshape", &["x", "matrix"])
        + &["query", "key", "value"].map(heads).concat()
        + &with(&plain("scores", "BatchMatMulV2", &["query_heads", "key_heads"]), "adj_y", "b: true")
        + &plain("scaled", "Mul", &["scores", "scale"])
        + &plain("mask", "Reshape", &["input_mask", "before_keys"])
        + &node("mask_f32", "Cast", &["mask"], &[("SrcT", "DT_INT32"), ("DstT", "DT_FLOAT")], None)
        + &plain("mask_of_all", "Mul", &["one", "mask_f32"])
        + &plain("mask_of_heads", "ExpandDims", &["mask_of_all", "axis"])
        + &plain("left", "Sub", &["one", "mask_of_heads"])
        + &plain("adder", "Mul", &["left", "hidden"])
        + &plain("masked", "AddV2", &["scaled", "adder"])
        + &plain("weights", "Softmax", &["masked"])
        + &node("sizes", "Shape", &["weights"], &[("T", "DT_FLOAT")], None)
        + &node("drawn", "RandomUniform", &["sizes"], &float, None)
        + &plain("is_kept", "GreaterEqual", &["drawn", "rate"])
        + &plain("times", "Mul", &["weights", "share"])
        + &plain("dropped", "SelectV2", &["is_kept", "times", "zero"])
        + &plain("mixed", "BatchMatMulV2", &["dropped", "value_heads"])
        + &plain("by_position", "Transpose", &["mixed", "order"])
        + &plain("joined", "Reshape", &["by_position", "matrix"])
        + &layer("layer_0/attention/output/dense", "joined", [12, 12])
        + &plain("sum", "AddV2", &["layer_0/attention/output/dense/BiasAdd", "rows"])
        + &norm("norm/gamma")
        + &norm("norm/beta")
        + &keeping(plain("mean", "Mean", &["sum", "axis"]))
        + &plain("distance", "SquaredDifference", &["sum", "mean"])
        + &keeping(plain("variance", "Mean", &["distance", "axis"]))
        + &plain("above_0", "AddV2", &["variance", "epsilon"])
        + &plain("inverse", "Rsqrt", &["above_0"])
        + &plain("factor", "Mul", &["inverse", "norm/gamma"])
        + &plain("scaled_sum", "Mul", &["sum", "factor"])
        + &plain("scaled_mean", "Mul", &["mean", "factor"])
        + &plain("shift", "Sub", &["norm/beta", "scaled_mean"])
        + &plain("normal", "AddV2", &["scaled_sum", "shift"])
        + &plain("positions", "Reshape", &["normal", "sequence"])
        + &plain("pooled", "Mean", &["positions", "axis"])
        + &layer("classes", "pooled", [12, 3])
        + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/BiasAdd", "class"])
        + &plain("loss", "Mean", &["entropy"])
        + &gradients("loss")
}

pub fn read(text: &str) -> Ported {
    port(&Graph::read(text.as_bytes(), "g.pbtxt").unwrap_or_else(|error| panic!("{error}\n{text}")))
}
