//! The factor by which losses of examples count in the loss of a graph, beside their mean: sums and fixed divisors make it.
//!
//! The losses are taken as 1 and followed to the graph's loss. An array is known here if all of its elements are equal.

use std::collections::HashMap;

use super::symbols::{Symbols, constant};
use crate::node::{Edge, Node};

/// An array whose elements are equal.
#[derive(Clone, Debug, PartialEq)]
struct Uniform {
    dims: Vec<i64>,
    value: f64,
}

struct Scale<'s, 'g> {
    symbols: &'s Symbols<'g>,
    batch: i64,
    known: HashMap<Edge, Option<Uniform>>,
}

/// The loss of a graph where the losses at a head, an array of these dims, are 1 and all other terms are 0.
pub(super) fn scale(symbols: &Symbols<'_>, loss: usize, head: usize, dims: &[i64]) -> Option<f64> {
    let with = |value: f64| {
        let losses = Uniform { dims: dims.to_vec(), value };
        let known = HashMap::from([(Edge { node: head, output: 0 }, Some(losses))]);
        let mut scale = Scale { symbols, batch: *dims.first()?, known };
        scale.value(Edge { node: loss, output: 0 }, 0).filter(|loss| loss.dims.is_empty())
    };
    // A number that is added to the losses is no part of the factor.
    let scale = with(1.0)?.value - with(0.0).map_or(0.0, |rest| rest.value);
    (scale.is_finite() && scale > 0.0).then_some(scale)
}

/// The dims of an elementwise result.
fn broadcast(a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let (long, short) = if a.len() < b.len() { (b, a) } else { (a, b) };
    let mut dims = long.to_vec();
    for (dim, other) in dims.iter_mut().rev().zip(short.iter().rev()) {
        *dim = match (*dim, *other) {
            (one, other) if one == other || other == 1 => one,
            (1, other) => other,
            _ => return None,
        };
    }
    Some(dims)
}

impl Scale<'_, '_> {
    fn value(&mut self, edge: Edge, depth: usize) -> Option<Uniform> {
        const MAX_DEPTH: usize = 200;
        if let Some(known) = self.known.get(&edge) {
            return known.clone();
        }
        let node = self.symbols.node(edge.node);
        let value = if depth < MAX_DEPTH { self.result(node, depth + 1) } else { None };
        self.known.insert(edge, value.clone());
        value
    }

    fn result(&mut self, node: &Node, depth: usize) -> Option<Uniform> {
        let (symbols, batch) = (self.symbols, self.batch);
        let n_inputs = node.inputs.len();
        let mut input = |number: usize| node.inputs.get(number).and_then(|edge| self.value(*edge, depth));
        let elementwise =
            |a: Uniform, b: Uniform, value: f64| Some(Uniform { dims: broadcast(&a.dims, &b.dims)?, value });
        match node.op.as_str() {
            "Const" => {
                let (dims, values) = constant(node)?;
                let value = *values.first()?;
                values.iter().all(|other| *other == value).then_some(Uniform { dims, value })
            }
            "Identity" | "Cast" | "StopGradient" | "Abs" | "Snapshot" | "EnsureShape" => input(0),
            "Neg" => input(0).map(|x| Uniform { value: -x.value, ..x }),
            "Square" => input(0).map(|x| Uniform { value: x.value * x.value, ..x }),
            "Pow" => {
                let power = input(1)?.value;
                input(0).map(|x| Uniform { value: x.value.powf(power), ..x })
            }
            "L2Loss" => {
                let x = input(0)?;
                let n: i64 = x.dims.iter().product();
                Some(Uniform { dims: Vec::new(), value: n as f64 * x.value * x.value / 2.0 })
            }
            "OnesLike" | "ZerosLike" => {
                input(0).map(|x| Uniform { value: f64::from(u8::from(node.op == "OnesLike")), ..x })
            }
            // Terms that are not known are other terms of the loss.
            "Add" | "AddV2" | "AddN" | "Sub" => {
                let sign = if node.op == "Sub" { -1.0 } else { 1.0 };
                let terms = (0..n_inputs).filter_map(|n| Some((if n == 0 { 1.0 } else { sign }, input(n)?)));
                let terms: Vec<(f64, Uniform)> = terms.collect();
                let (sign, mut sum) = terms.first().cloned()?;
                sum.value *= sign;
                terms.into_iter().skip(1).try_fold(sum, |sum, (sign, term)| {
                    let value = sum.value + sign * term.value;
                    elementwise(sum, term, value)
                })
            }
            op
            @ ("Mul" | "RealDiv" | "Div" | "DivNoNan" | "Maximum" | "Minimum" | "Equal" | "NotEqual" | "Greater") => {
                let (a, b) = (input(0)?, input(1)?);
                let (x, y) = (a.value, b.value);
                let truth = |is: bool| f64::from(u8::from(is));
                let value = match op {
                    "Mul" => x * y,
                    "Maximum" => x.max(y),
                    "Minimum" => x.min(y),
                    "Equal" => truth(x == y),
                    "NotEqual" => truth(x != y),
                    "Greater" => truth(x > y),
                    _ if y == 0.0 => 0.0,
                    _ => x / y,
                };
                elementwise(a, b, value)
            }
            "Select" | "SelectV2" => {
                let condition = input(0)?;
                let chosen = if condition.value != 0.0 { input(1)? } else { input(2)? };
                let value = chosen.value;
                elementwise(condition, chosen, value)
            }
            "Sum" | "Mean" => {
                let x = input(0)?;
                let rank = x.dims.len() as f64;
                let axes_node = symbols.node(symbols.behind(*node.inputs.get(1)?).node);
                let axes: Vec<usize> = match constant(axes_node) {
                    Some((_, axes)) => {
                        axes.iter().map(|axis| (axis + if *axis < 0.0 { rank } else { 0.0 }) as usize).collect()
                    }
                    // `Range(0, Rank(x))` are all axes.
                    None if axes_node.op == "Range" => (0..x.dims.len()).collect(),
                    None => return None,
                };
                let n: i64 = axes.iter().map(|axis| x.dims.get(*axis)).product::<Option<i64>>()?;
                let has_ones = node.flag("keep_dims");
                let dims = x.dims.iter().enumerate();
                let dims = dims.filter_map(|(at, dim)| match axes.contains(&at) {
                    true => has_ones.then_some(1),
                    false => Some(*dim),
                });
                let value = if node.op == "Sum" { x.value * n as f64 } else { x.value };
                Some(Uniform { dims: dims.collect(), value })
            }
            "Size" => input(0).map(|x| Uniform { dims: Vec::new(), value: x.dims.iter().product::<i64>() as f64 }),
            "Squeeze" => input(0).map(|x| Uniform { dims: x.dims.into_iter().filter(|dim| *dim != 1).collect(), ..x }),
            "Reshape" => {
                let x = input(0)?;
                let n: i64 = x.dims.iter().product();
                let mut dims = symbols.sizes(node);
                let rest: i64 = dims.iter().filter(|dim| **dim > 0).product();
                dims.iter_mut().filter(|dim| **dim < 0).for_each(|dim| *dim = n / rest.max(1));
                (dims.iter().product::<i64>() == n).then_some(Uniform { dims, ..x })
            }
            "Fill" => {
                let dims = constant(symbols.node(symbols.behind(*node.inputs.first()?).node))?.1;
                Some(Uniform { dims: dims.iter().map(|dim| *dim as i64).collect(), value: input(1)?.value })
            }
            // The number of examples.
            "StridedSlice" => {
                let shape = symbols.node(node.inputs.first()?.node);
                let is_first = symbols.scalar(node, 1) == Some(0.0) && symbols.scalar(node, 2) == Some(1.0);
                let n = Uniform { dims: Vec::new(), value: batch as f64 };
                (shape.op == "Shape" && is_first).then_some(n)
            }
            _ => None,
        }
    }
}
