//! Classifies tensors of the forward part as layers, variables or constants, and reads small constants.

use super::region;
use crate::graph::Graph;
use crate::index_map::IndexMap;
use crate::node::{Edge, Node};
use crate::tensor::{self, Constant};
use bf16scope_hlo::element::f64s;
use bf16scope_hlo::numerics::Format;
use bf16scope_hlo::{DType, Literal};

/// The meaning of a tensor in the network.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Symbol {
    /// A network input or a layer's result, by name.
    Layer(String),
    /// A variable's value, cast or not.
    Variable { name: String, dims: Vec<i64> },
    /// A constant of at most [`MAX_ELEMENTS`] elements.
    Constant { dims: Vec<i64>, values: Vec<f64> },
    /// Anything else.
    Other,
}

/// The attribute by which the tracer writes the number that all elements of a variable have.
pub(super) const VALUE: &str = "_bf16scope_value";

/// Constants with more elements are not read.
const MAX_ELEMENTS: usize = 4096;

/// The dims and values of a small constant.
pub(super) fn constant(node: &Node) -> Option<(Vec<i64>, Vec<f64>)> {
    let (literal, dims, n) = match tensor::constant(node.tensor("value")?).ok()? {
        Constant::Dense(literal) => {
            let dims = literal.shape().dims().to_vec();
            (literal, dims, 1)
        }
        Constant::Splat(literal, dims) => {
            let n = dims.iter().product::<i64>();
            (literal, dims, usize::try_from(n).ok().filter(|n| *n <= MAX_ELEMENTS)?)
        }
    };
    let values = numbers(&literal)?;
    Some((dims, values.iter().copied().cycle().take(values.len() * n).collect()))
}

fn numbers(literal: &Literal) -> Option<Vec<f64>> {
    let Literal::Array { shape, bytes } = literal else { return None };
    if shape.n_elements() > MAX_ELEMENTS as i64 {
        return None;
    }
    match shape.dtype {
        DType::F32 => Some(literal.elements::<f32>()?.into_iter().map(shortest).collect()),
        dtype => Some(f64s(dtype, bytes)?.collect()),
    }
}

/// The shortest decimal of an f32: 0.1, not 0.10000000149.
pub(super) fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// The decimal that a number of a format of 16 bits was written as: 0.9, not bf16's 0.8984375. A number of four bits, such as
/// 1/64, is itself.
pub(super) fn written(dtype: DType, value: f64) -> f64 {
    let Some(format) = [Format::BF16, Format::F16].into_iter().find(|format| format.dtype == dtype) else {
        return value;
    };
    let bits = format.encode_f64(value);
    let leading = 1u64 << format.fraction_bits;
    let n_zeros = ((bits & (leading - 1)) | leading).trailing_zeros();
    if !value.is_finite() || value == 0.0 || n_zeros + 3 >= format.fraction_bits {
        return value;
    }
    // Four digits tell all numbers of bf16 apart, and five those of f16.
    let mut decimals = (0..5usize).filter_map(|n_digits| format!("{value:.n_digits$e}").parse::<f64>().ok());
    decimals.find(|decimal| format.encode_f64(*decimal) == bits).unwrap_or(value)
}

/// Whether an op is a variable, of either kind.
pub(super) fn is_variable(op: &str) -> bool {
    matches!(op, "VarHandleOp" | "VariableV2" | "Variable")
}

/// A text, quoted if YAML would read something else.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.' | '-'))
        && text.starts_with(|c: char| c.is_ascii_alphabetic());
    if is_plain { text.to_string() } else { format!("{text:?}") }
}

/// A number that YAML reads back as a float: with a decimal point before an exponent.
pub(super) fn yaml_number(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

/// A graph, with the meanings of its tensors as far as they are known.
pub(super) struct Symbols<'g> {
    pub graph: &'g Graph,
    pub of_edge: IndexMap<Edge, Symbol>,
}

impl<'g> Symbols<'g> {
    pub(super) fn new(graph: &'g Graph) -> Symbols<'g> {
        Symbols { graph, of_edge: IndexMap::default() }
    }

    pub(super) fn node(&self, idx: usize) -> &'g Node {
        &self.graph.body.nodes[idx]
    }

    /// The symbol of a node's input.
    pub(super) fn input(&self, node: &Node, number: usize) -> Symbol {
        node.inputs.get(number).and_then(|edge| self.of_edge.get(edge)).cloned().unwrap_or(Symbol::Other)
    }

    /// The symbol of a variable, a constant, or an op that passes its input on; `Other` for every other op.
    pub(super) fn plain(&self, idx: usize) -> Symbol {
        let node = self.node(idx);
        match node.op.as_str() {
            "VarHandleOp" | "VariableV2" | "Variable" => {
                Symbol::Variable { name: node.variable_name(), dims: node.dims("shape").unwrap_or_default() }
            }
            "Const" => constant(node).map_or(Symbol::Other, |(dims, values)| Symbol::Constant { dims, values }),
            "Identity"
            | "IdentityN"
            | "ReadVariableOp"
            | "Cast"
            | "Enter"
            | "StopGradient"
            | "Snapshot"
            | "PlaceholderWithDefault"
            | "CheckNumerics"
            | "PreventGradient"
            | "TPUReplicatedInput"
            | "Switch"
            | "RefSwitch" => self.input(node, 0),
            _ => Symbol::Other,
        }
    }

    /// The edge behind identities, casts and reshapes.
    pub(super) fn behind(&self, mut edge: Edge) -> Edge {
        for _ in 0..64 {
            let node = self.node(edge.node);
            match (node.op.as_str(), node.inputs.first()) {
                ("IdentityN", _) => match node.inputs.get(edge.output) {
                    Some(input) => edge = *input,
                    None => break,
                },
                (
                    "Identity" | "Cast" | "StopGradient" | "Reshape" | "Enter" | "ReadVariableOp"
                    | "TPUReplicatedInput",
                    Some(input),
                ) => edge = *input,
                _ => break,
            }
        }
        edge
    }

    /// The name of the variable whose half squares an `L2Loss` of the forward part sums.
    pub(super) fn decayed_variable(&self, node: &Node) -> Option<String> {
        if node.op != "L2Loss" || region::is_backward(&node.name) {
            return None;
        }
        let variable = self.node(self.behind(*node.inputs.first()?).node);
        is_variable(&variable.op).then(|| variable.variable_name())
    }

    /// The sizes that the second input of a node names; -1 for each that is not a constant.
    pub(super) fn sizes(&self, node: &Node) -> Vec<i64> {
        let Some(source) = node.inputs.get(1).map(|edge| self.node(self.behind(*edge).node)) else { return Vec::new() };
        let size = |number: usize| self.scalar(source, number).map_or(-1, |size| size as i64);
        match constant(source) {
            Some((_, values)) => values.into_iter().map(|size| size as i64).collect(),
            None if source.op == "Pack" => (0..source.inputs.len()).map(size).collect(),
            None => Vec::new(),
        }
    }

    /// The value of all elements of a constant, or of a `Fill`.
    pub(super) fn fill(&self, edge: Edge) -> Option<f64> {
        let node = self.node(self.behind(edge).node);
        if node.op == "Fill" {
            return self.scalar(node, 1);
        }
        let values = match tensor::constant(node.tensor("value")?).ok()? {
            Constant::Dense(literal) | Constant::Splat(literal, _) => numbers(&literal)?,
        };
        let first = *values.first()?;
        values.iter().all(|value| *value == first).then_some(first)
    }

    /// The rate of a dropout mask that a node reads: `uniform >= rate`, or the older `floor(uniform + 1 - rate)`.
    pub(super) fn dropout_rate(&self, node: &Node) -> Option<f64> {
        let (mask, number) = self.dropout_mask(node)?;
        let value = self.scalar(mask, number)?;
        Some(if mask.op == "GreaterEqual" { value } else { shortest((1.0 - value) as f32) })
    }

    /// The node of a dropout mask that has the rate, or the share that is kept, and which of its inputs that is.
    pub(super) fn dropout_mask(&self, node: &Node) -> Option<(&'g Node, usize)> {
        node.inputs.iter().find_map(|edge| {
            let mask = self.node(self.behind(*edge).node);
            let (mask, numbers) = match mask.op.as_str() {
                "GreaterEqual" => (mask, &[1][..]),
                "Floor" => (self.node(self.behind(*mask.inputs.first()?).node), &[0, 1][..]),
                _ => return None,
            };
            let is_mask = matches!(mask.op.as_str(), "GreaterEqual" | "Add" | "AddV2");
            let number = *numbers.iter().find(|number| self.scalar(mask, **number).is_some())?;
            is_mask.then_some((mask, number))
        })
    }

    /// Which axes of that mask have one element for all, by the shape of its uniform numbers; `None` if that is not plain.
    pub(super) fn dropout_axes(&self, node: &Node) -> Option<Vec<bool>> {
        let (mask, number) = self.dropout_mask(node)?;
        let mut edge = *mask.inputs.get(1 - number)?;
        for _ in 0..8 {
            let node = self.node(self.behind(edge).node);
            if node.op.contains("RandomUniform") {
                let shape = self.node(self.behind(*node.inputs.first()?).node);
                return match shape.op.as_str() {
                    "Const" => Some(constant(shape)?.1.iter().map(|size| *size == 1.0).collect()),
                    "Pack" => Some((0..shape.inputs.len()).map(|at| self.scalar(shape, at) == Some(1.0)).collect()),
                    _ => None,
                };
            }
            let number = (0..node.inputs.len()).find(|number| self.scalar(node, *number).is_none())?;
            edge = node.inputs[number];
        }
        None
    }

    /// The value of a node's input, if it is a single number computed from constants.
    pub(super) fn scalar(&self, node: &Node, number: usize) -> Option<f64> {
        self.number(*node.inputs.get(number)?, 0)
    }

    /// [`Symbols::scalar`], or the number of an untrained variable, as Keras' older optimizers keep theirs.
    pub(super) fn hyperparameter(&self, node: &Node, number: usize) -> Option<f64> {
        let value = || {
            let source = self.node(self.behind(*node.inputs.get(number)?).node);
            let name = source.variable_name();
            let is_trained = self.graph.variables.iter().any(|variable| variable.is_trainable && variable.name == name);
            let is_number = is_variable(&source.op) && source.dims("shape")?.is_empty() && !is_trained;
            source.float(VALUE).filter(|_| is_number).map(shortest)
        };
        self.scalar(node, number).or_else(value)
    }

    /// The value of a tensor, if it is a single number computed from constants.
    pub(super) fn value(&self, edge: Edge) -> Option<f64> {
        self.number(edge, 0)
    }

    /// The number of 16 bits that a node reads in the place of the decimal that it was written as, and its dtype.
    pub(super) fn rounded(&self, node: &Node, number: usize) -> Option<(DType, f64)> {
        let edge = *node.inputs.get(number)?;
        let source = self.node(self.behind(edge).node);
        let dtypes = [node.dtype("T"), source.dtype("dtype"), source.dtype("T")].into_iter().flatten();
        let format = Format::ALL.into_iter().find(|format| dtypes.clone().any(|dtype| dtype == format.dtype))?;
        let value = self.value(edge)?;
        let rounded = format.decode_f64(format.encode_f64(value));
        (format.dtype.bits() == 16 && rounded != value).then_some((format.dtype, rounded))
    }

    /// [`Symbols::value`], to a bounded depth.
    fn number(&self, edge: Edge, depth: usize) -> Option<f64> {
        const MAX_DEPTH: usize = 8;
        let node = self.node(self.behind(edge).node);
        let both = || {
            let [x, y] = node.inputs[..] else { return None };
            (depth < MAX_DEPTH).then(|| Some((self.number(x, depth + 1)?, self.number(y, depth + 1)?))).flatten()
        };
        // Results are rounded to the decimals that were written.
        let short = |value: f64| shortest(value as f32);
        match node.op.as_str() {
            "Const" => match constant(node)?.1[..] {
                [one] => Some(node.dtype("dtype").map_or(one, |dtype| written(dtype, one))),
                _ => None,
            },
            "Sub" => both().map(|(x, y)| short(x - y)),
            "Add" | "AddV2" => both().map(|(x, y)| short(x + y)),
            "Mul" => both().map(|(x, y)| short(x * y)),
            "Maximum" => both().map(|(x, y)| x.max(y)),
            "Minimum" => both().map(|(x, y)| x.min(y)),
            "RealDiv" | "Div" => both().filter(|(_, y)| *y != 0.0).map(|(x, y)| short(x / y)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
