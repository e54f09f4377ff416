//! Regularizers of layers, as in Keras: `kernel_regularizer: {l2: 1.0e-4}`.

use super::choice::Choice;
use crate::document::{self, Node, ReadError, Value};
use crate::graph::{Tensor, VariableInfo};
use bf16scope_hlo::DType;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize};

/// A term of the loss: `l1 · Σ|w| + l2 · Σw²`. `l1` and `l2` without a number are Keras' 0.01.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Regularizer {
    /// The factor of the absolute values.
    pub l1: f64,
    /// The factor of the squares.
    pub l2: f64,
}

/// Penalties on a layer's variables, or on its output, by the part of the key before `_regularizer`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regularizers(Vec<(&'static str, Regularizer)>);

/// Keys, with the variables that they penalise; `None` is the output.
const KEYS: &[(&str, Option<&str>)] = &[
    ("kernel_regularizer", Some("kernel")),
    ("bias_regularizer", Some("bias")),
    ("recurrent_regularizer", Some("recurrent_kernel")),
    ("embeddings_regularizer", Some("embeddings")),
    ("depthwise_regularizer", Some("depthwise_kernel")),
    ("pointwise_regularizer", Some("pointwise_kernel")),
    ("beta_regularizer", Some("beta")),
    ("gamma_regularizer", Some("gamma")),
    ("alpha_regularizer", Some("alpha")),
    ("activity_regularizer", None),
];

/// The factor of `l1` and `l2` without a number.
const KERAS: f64 = 0.01;

impl<'de> Deserialize<'de> for Regularizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Regularizer, D::Error> {
        const EXPECTED: &str = "`l1`, `l2`, `l1_l2`, or factors such as {l2: 1.0e-4}";
        Node::read(deserializer, |node| match &node.value {
            Value::Text(name) => match name.as_str() {
                "l1" => Ok(Regularizer { l1: KERAS, l2: 0.0 }),
                "l2" => Ok(Regularizer { l1: 0.0, l2: KERAS }),
                "l1_l2" => Ok(Regularizer { l1: KERAS, l2: KERAS }),
                _ => Err(node.wrong(EXPECTED)),
            },
            Value::Map(map) if !map.is_empty() => {
                let mut regularizer = Regularizer::default();
                for (key, value) in map {
                    let factor = |node: &Node| {
                        document::number(node, |n| (0.0..f64::from(f32::MAX)).contains(&n), "a number of at least 0")
                    };
                    match &**key {
                        "l1" => regularizer.l1 = factor(value)?,
                        "l2" => regularizer.l2 = factor(value)?,
                        other => {
                            let error = ReadError::new(format!("unknown key `{other}`, expected one of l1, l2"));
                            return Err(error.or_at(key.mark));
                        }
                    }
                }
                Ok(regularizer)
            }
            _ => Err(node.wrong(EXPECTED)),
        })
    }
}

impl Regularizers {
    /// Whether a key is a regularizer's.
    pub(super) fn is_key(key: &str) -> bool {
        KEYS.iter().any(|(name, _)| *name == key)
    }

    /// Takes a layer's regularizers out of its options.
    pub(super) fn take(choice: &mut Choice<'_>) -> Result<Regularizers, ReadError> {
        let mut all = Vec::new();
        for (key, _) in KEYS {
            all.extend(choice.take::<Regularizer>(key)?.map(|regularizer| (*key, regularizer)));
        }
        Ok(Regularizers(all))
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn serialize_entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        self.0.iter().try_for_each(|(key, regularizer)| map.serialize_entry(key, regularizer))
    }

    /// Their f32 sum for a layer's output and variables: those of `variables` whose last name level is the
    /// regularizer's.
    ///
    /// # Errors
    /// A regularizer of a variable that the layer does not have: its key, and the message.
    pub(super) fn sum(
        &self,
        result: &Tensor,
        variables: &[(VariableInfo, Tensor)],
        is_owner: bool,
    ) -> Result<Option<Tensor>, (&'static str, String)> {
        let mut total: Option<Tensor> = None;
        for (key, regularizer) in &self.0 {
            let variable = KEYS.iter().find(|(other, _)| other == key).and_then(|(_, variable)| *variable);
            let last = |info: &VariableInfo| info.name.rsplit('/').next().unwrap_or_default().to_string();
            let may_train = |info: &VariableInfo| info.trainable || info.is_frozen;
            let tensors: Vec<Tensor> = match variable {
                None => {
                    // Keras divides the penalty of an output by the batch size.
                    let batch = result.dims().first().copied().unwrap_or(1).max(1);
                    let sum = regularizer.term(&result.cast(DType::F32)) / batch as f64;
                    total = Some(total.map_or(sum.clone(), |total| total + &sum));
                    continue;
                }
                // A layer that is applied again adds its variables' penalties once.
                Some(_) if !is_owner => continue,
                // A frozen variable has no penalty, as in Keras 3.
                Some(name) if variables.iter().any(|(info, _)| info.is_frozen && last(info) == name) => continue,
                Some(name) => {
                    let trains = variables.iter().filter(|(info, _)| info.trainable && last(info) == name);
                    trains.map(|(_, tensor)| tensor.cast(DType::F32)).collect()
                }
            };
            if tensors.is_empty() {
                let names: Vec<String> =
                    variables.iter().filter(|(info, _)| may_train(info)).map(|(info, _)| last(info)).collect();
                let there = if names.is_empty() { "none".to_string() } else { names.join(", ") };
                let message = format!("`{key}` is of a variable that the layer does not have; its variables: {there}");
                return Err((key, message));
            }
            for each in &tensors {
                let sum = regularizer.term(each);
                total = Some(total.map_or(sum.clone(), |total| total + &sum));
            }
        }
        Ok(total)
    }
}

impl Regularizer {
    /// `l1 · Σ|w| + l2 · Σw²`, in the dtype of w.
    fn term(self, w: &Tensor) -> Tensor {
        let axes: Vec<i64> = (0..w.rank() as i64).collect();
        let absolute = || w.abs().sum(&axes) * self.l1;
        let squares = || (w * w).sum(&axes) * self.l2;
        match (self.l1 != 0.0, self.l2 != 0.0) {
            (true, true) => absolute() + squares(),
            (true, false) => absolute(),
            _ => squares(),
        }
    }
}
