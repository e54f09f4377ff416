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

pub fn read(text: &str) -> Ported {
    port(&Graph::read(text.as_bytes(), "g.pbtxt").unwrap_or_else(|error| panic!("{error}\n{text}")))
}
