//! `train: {optimizers: [...]}`: variables with another optimizer or another learning rate.

use super::TrainConfig;
use super::schedule::Timed;
use crate::TrainError;
use bf16scope_model::document::{Node, ReadError, Value, kind};
use bf16scope_model::optim::{LearningRate, Optimizer, VariableGroup};
use serde::{Deserialize, Deserializer};

/// Variables by name pattern, with their own rule or rate.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerGroup {
    /// The patterns: `*` is any text, `?` any character. A variable belongs to the first group that matches.
    #[serde(deserialize_with = "patterns")]
    pub variables: Vec<String>,
    /// The rule. Default that of `train`.
    #[serde(default, deserialize_with = "optimizer")]
    pub optimizer: Option<Optimizer>,
    /// The learning rate. Default that of `train`.
    #[serde(default)]
    pub learning_rate: Option<Timed<LearningRate>>,
}

fn patterns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Node::read(deserializer, |node| node.patterns("leave the group out, or give patterns, such as ['*/bias']"))
}

fn optimizer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Optimizer>, D::Error> {
    Node::read(deserializer, |node| kind::from_node(node).map(Some).map_err(super::of_optimizer))
}

/// A list of groups, each with a rule or a rate.
pub(super) fn groups<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<OptimizerGroup>, D::Error> {
    const EXPECTED: &str = "a list such as `[{variables: ['*/bias'], optimizer: sgd, learning_rate: 0.01}]`";
    Node::read(deserializer, |node| {
        let Value::List(nodes) = &node.value else { return Err(node.wrong(EXPECTED)) };
        let group = |node: &Node| {
            let group = OptimizerGroup::deserialize(node).map_err(|error: ReadError| error.or_at(node.mark))?;
            match (&group.optimizer, &group.learning_rate) {
                (None, None) => {
                    Err(ReadError::new("neither `optimizer` nor `learning_rate` is another here").or_at(node.mark))
                }
                _ => Ok(group),
            }
        };
        nodes.iter().map(group).collect()
    })
}

impl TrainConfig {
    /// The groups, with lengths in steps.
    pub(super) fn groups(&self) -> Result<Vec<VariableGroup>, TrainError> {
        let steps = self.steps_per_epoch().unwrap_or(1);
        let group = |group: &OptimizerGroup| {
            let learning_rate = group.learning_rate.as_ref().unwrap_or(&self.learning_rate);
            let learning_rate = learning_rate.in_steps(steps).map_err(|error| {
                TrainError::of_key(
                    &["train", "optimizers"],
                    format!("`learning_rate` of `optimizers`: {}", error.problem),
                )
            })?;
            let optimizer = group.optimizer.unwrap_or(self.optimizer);
            Ok(VariableGroup { variables: group.variables.clone(), optimizer, learning_rate })
        };
        self.optimizers.iter().map(group).collect()
    }
}
