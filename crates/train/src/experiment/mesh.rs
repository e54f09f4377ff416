//! `mesh` of an experiment: the axes of devices, and the parameters that the devices of a replica split.

use crate::Mesh;
use bf16scope_model::document::{Node, Value};
use bf16scope_passes::partition::Rule;
use serde::Deserialize;
use std::collections::BTreeMap;

/// `mesh` of an experiment: `{data: 4, model: 2, split: {'*/query/kernel': 1}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshConfig {
    /// The axes of the mesh, and the state that replicas share.
    pub mesh: Mesh,
    /// Parameters split over the devices of a replica, by name pattern, each along an axis.
    pub split: Vec<Rule>,
}

impl From<Mesh> for MeshConfig {
    fn from(mesh: Mesh) -> MeshConfig {
        MeshConfig { mesh, split: Vec::new() }
    }
}

impl<'de> Deserialize<'de> for MeshConfig {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<MeshConfig, D::Error> {
        Node::read(deserializer, |node| match &node.value {
            Value::Map(map) => {
                let split = node.get("split").map(BTreeMap::<String, usize>::deserialize).transpose()?;
                let split = split.unwrap_or_default();
                let split = split.into_iter().map(|(pattern, axis)| Rule { pattern, axis }).collect();
                let axes = map.iter().filter(|(key, _)| &**key != "split").cloned().collect();
                Ok(MeshConfig { mesh: Mesh::deserialize(&node.replaced(Value::Map(axes)))?, split })
            }
            Value::Whole(n) => {
                let help = format!("write `mesh: {{data: {n}}}` for {n} replicas");
                Err(node.wrong("the sizes of its axes").with_help(help))
            }
            _ => Err(node.wrong("the sizes of its axes, such as {data: 8}")),
        })
    }
}
