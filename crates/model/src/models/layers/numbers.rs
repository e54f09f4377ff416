//! Numbers that a file says: the layer `constant`.

use super::indices::CastTo;
use super::layer_options::{Arity, LayerOptions};
use crate::document::{Node, ReadError, Value};
use crate::graph::{Scope, Tensor};
use bf16scope_hlo::ops::RuleError;
use bf16scope_hlo::{DType, Literal};
use serde::ser::{SerializeSeq, Serializer};
use serde::{Deserialize, Deserializer, Serialize};

/// Options of `constant`: an array that is the same for every example.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// A number, a list of numbers, or a list of equally long lists.
    pub values: Numbers,
    /// Its dtype. Default `compute`, what the network computes in.
    #[serde(default = "compute")]
    pub to: CastTo,
}

fn compute() -> CastTo {
    CastTo::Compute
}

/// An array as nested lists.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    /// Its dims; none for one number.
    pub dims: Vec<i64>,
    /// Its elements, row by row.
    pub elements: Vec<f64>,
}

impl Numbers {
    fn read(node: &Node) -> Result<Numbers, ReadError> {
        const EXPECTED: &str = "a number, a list of numbers, or lists of equally many";
        let list = match &node.value {
            Value::List(list) if !list.is_empty() => list,
            Value::List(_) => return Err(node.wrong(EXPECTED)),
            _ => {
                let number = crate::document::number(node, |n| n.abs() <= f64::from(f32::MAX), EXPECTED)?;
                return Ok(Numbers { dims: Vec::new(), elements: vec![number] });
            }
        };
        let rows = list.iter().map(Numbers::read).collect::<Result<Vec<Numbers>, ReadError>>()?;
        if let Some(at) = rows.iter().position(|row| row.dims != rows[0].dims) {
            let message =
                format!("a row has the dims {:?} and the first {:?}, expected equal ones", rows[at].dims, rows[0].dims);
            return Err(ReadError::new(message).or_at(list[at].mark));
        }
        let dims = [&[list.len() as i64][..], &rows[0].dims].concat();
        Ok(Numbers { dims, elements: rows.into_iter().flat_map(|row| row.elements).collect() })
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Numbers, D::Error> {
        Node::read(deserializer, Numbers::read)
    }
}

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some((&n, rest)) = self.dims.split_first() else { return self.elements[0].serialize(serializer) };
        let mut list = serializer.serialize_seq(Some(n as usize))?;
        for row in self.elements.chunks(self.elements.len() / n as usize) {
            list.serialize_element(&Numbers { dims: rest.to_vec(), elements: row.to_vec() })?;
        }
        list.end()
    }
}

/// It reads no layer: `wiring` names an input for the size of the batch.
impl LayerOptions for Constant {
    const ARITY: Arity = Arity::Nothing;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let (graph, like) = (s.graph(), inputs[0]);
        let Numbers { dims, elements } = &self.values;
        s.layer(name, |s| {
            let Some(&batch) = like.dims().first().filter(|_| !like.is_poison()) else { return like.clone() };
            let is_whole = |n: &f64| n.fract() == 0.0 && n.abs() <= f64::from(i32::MAX);
            let value = match (self.to, elements.iter().find(|n| !is_whole(n))) {
                (CastTo::Compute, _) => {
                    let elements: Vec<f32> = elements.iter().map(|&n| n as f32).collect();
                    let value = graph.constant(Literal::from_elements(dims.clone(), &elements));
                    value.cast(s.low_precision_dtype().unwrap_or(DType::F32))
                }
                (CastTo::Int32, None) => {
                    let elements: Vec<i32> = elements.iter().map(|&n| n as i32).collect();
                    graph.constant(Literal::from_elements(dims.clone(), &elements))
                }
                (CastTo::Int32, Some(number)) => {
                    let message = format!("one of its numbers is {number}, expected whole numbers of 32 bits");
                    let error = RuleError::new("constant/whole", message).with_help("leave `to: int32` out");
                    return graph.fail("constant", &[like], error);
                }
            };
            let dims = [&[batch][..], dims].concat();
            value.broadcast_in_dim(&dims, &(1..dims.len() as i64).collect::<Vec<i64>>())
        })
    }
}
