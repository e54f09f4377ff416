//! What a tensor of the forward part stands for, and small constants.

use crate::graph::Graph;
use crate::index_map::IndexMap;
use crate::node::{Edge, Node};
use crate::tensor::{self, Constant};
use bf16scope_hlo::{DType, Literal};

/// What a tensor stands for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Symbol {
    /// An input of the network, or the result of a layer, by name.
    Layer(String),
    /// A variable's value, cast or not.
    Variable { name: String, dims: Vec<i64> },
    /// A constant, as numbers; of large ones nothing.
    Constant { dims: Vec<i64>, values: Vec<f64> },
    /// Anything else.
    Other,
}

/// Numbers of constants of more elements are not kept.
const MAX_ELEMENTS: usize = 4096;

/// A constant's dims and numbers.
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
    let Literal::Array { shape, .. } = literal else { return None };
    if shape.n_elements() > MAX_ELEMENTS as i64 {
        return None;
    }
    Some(match shape.dtype {
        DType::F32 => literal.elements::<f32>()?.into_iter().map(shortest).collect(),
        DType::F64 => literal.elements::<f64>()?,
        DType::BF16 => literal.elements::<half::bf16>()?.into_iter().map(|x| f64::from(x.to_f32())).collect(),
        DType::S32 => literal.elements::<i32>()?.into_iter().map(f64::from).collect(),
        DType::S64 => literal.elements::<i64>()?.into_iter().map(|x| x as f64).collect(),
        DType::Pred => literal.elements::<bool>()?.into_iter().map(|x| f64::from(u8::from(x))).collect(),
        _ => return None,
    })
}

/// The decimal that an f32 was written as: 0.1, not 0.10000000149.
pub(super) fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// A number as YAML reads it back: with a point where it has an exponent.
pub(super) fn yaml_number(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

/// Looks through a graph with what is known of its tensors.
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

    /// What a node's input stands for.
    pub(super) fn input(&self, node: &Node, number: usize) -> Symbol {
        node.inputs.get(number).and_then(|edge| self.of_edge.get(edge)).cloned().unwrap_or(Symbol::Other)
    }

    /// The symbol of what is no layer: variables, constants, and what passes them on.
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
            | "Switch" => self.input(node, 0),
            _ => Symbol::Other,
        }
    }

    /// The node behind identities and casts.
    pub(super) fn behind(&self, mut edge: Edge) -> Edge {
        for _ in 0..64 {
            let node = self.node(edge.node);
            match (node.op.as_str(), node.inputs.first()) {
                ("IdentityN", _) => match node.inputs.get(edge.output) {
                    Some(input) => edge = *input,
                    None => break,
                },
                ("Identity" | "Cast" | "StopGradient" | "Reshape" | "Enter" | "ReadVariableOp", Some(input)) => {
                    edge = *input
                }
                _ => break,
            }
        }
        edge
    }

    /// The number that an input is, if it is a constant of one.
    pub(super) fn scalar(&self, node: &Node, number: usize) -> Option<f64> {
        self.number(*node.inputs.get(number)?, 0)
    }

    /// The number that a tensor is, if constants make it.
    pub(super) fn value(&self, edge: Edge) -> Option<f64> {
        self.number(edge, 0)
    }

    /// A number that constants make.
    fn number(&self, edge: Edge, depth: usize) -> Option<f64> {
        const MAX_DEPTH: usize = 8;
        let node = self.node(self.behind(edge).node);
        let both = || {
            let [x, y] = node.inputs[..] else { return None };
            (depth < MAX_DEPTH).then(|| Some((self.number(x, depth + 1)?, self.number(y, depth + 1)?))).flatten()
        };
        // Decimals stay those that were written.
        let short = |value: f64| shortest(value as f32);
        match node.op.as_str() {
            "Const" => match constant(node)?.1[..] {
                [one] => Some(one),
                _ => None,
            },
            "Sub" => both().map(|(x, y)| short(x - y)),
            "Add" | "AddV2" => both().map(|(x, y)| short(x + y)),
            "Mul" => both().map(|(x, y)| short(x * y)),
            "RealDiv" | "Div" => both().filter(|(_, y)| *y != 0.0).map(|(x, y)| short(x / y)),
            _ => None,
        }
    }
}
