//! The checkpoint that `port` is given: what it has of the graph, and the variables that training starts from.

use std::path::Path;

use anyhow::bail;

use bf16scope_data::weights::{self, WeightsFile, WrittenFormat};
use bf16scope_hlo::Literal;
use bf16scope_model::graph::Precision;
use bf16scope_passes::tuning::Tuning;
use bf16scope_tensorflow::Graph;
use bf16scope_train::experiment::Experiment;
use bf16scope_train::wanted_of;
use bf16scope_train::weight_names::{self, Arrays, Found, Mapped, Mapping, Role, Rules};

/// How many of a graph's variables a checkpoint has with their dims, and the first one that it has not.
pub(super) fn compared(graph: &Graph, checkpoint: &WeightsFile) -> String {
    let variables = graph.variable_dims();
    let is_there = |(name, dims): &(&String, &Vec<i64>)| {
        checkpoint.find(name).is_some_and(|entry| entry.dims.iter().map(|dim| *dim as i64).eq(dims.iter().copied()))
    };
    let n = variables.iter().filter(is_there).count();
    let other = variables.iter().find(|variable| !is_there(variable));
    let other = other.map(|(name, dims)| format!("; `{name}` of dims {dims:?} is not")).unwrap_or_default();
    format!("{n} of the graph's {} variables are in it with their dims{other}", variables.len())
}

/// Writes the variables of a checkpoint under our names, with slots and averages; returns their counts in words.
pub(super) fn start_from(prefix: &Path, start: &Path, experiment: &Path, rules: &Path) -> anyhow::Result<String> {
    let read = Experiment::read(experiment)?;
    let spec = read.spec(Precision::Bf16, &Tuning::none()).map_err(|error| read.with_its_line(error))?;
    let (checkpoint, wanted) = (weights::open(prefix)?, wanted_of(&spec)?);
    let mapping = Mapping::from_rules(&Rules::read(rules)?, &wanted, &Arrays::given(&checkpoint), &|_| false);
    let values = weight_names::values(&checkpoint, &mapping, 1.0)?;
    let taken = |is: &dyn Fn(&Role) -> bool| {
        let all = mapping.variables.iter().filter(|mapped| is(&mapped.wanted.role));
        let n = all.clone().filter(|mapped| matches!(mapped.found, Found::Taken { .. })).count();
        (n, all.count())
    };
    let (weights, all_weights) = taken(&|role| *role == Role::Weight);
    if weights < all_weights {
        let is_missing =
            |mapped: &&Mapped| mapped.wanted.role == Role::Weight && !matches!(mapped.found, Found::Taken { .. });
        let missing = mapping.variables.iter().find(is_missing).map(|mapped| mapped.wanted.name.clone());
        bail!(
            "{}: {weights} of the network's {all_weights} variables are in it; {} is not, or has another shape\n\
             help: give the checkpoint of this graph: the prefix that its .meta has",
            prefix.display(),
            missing.unwrap_or_default()
        );
    }
    let (slots, all_slots) = taken(&|role| matches!(role, Role::Slot { .. }));
    let (averages, all_averages) = taken(&|role| matches!(role, Role::Average { .. }));
    let literal = |(name, (shape, bytes))| (name, Literal::Array { shape, bytes });
    let arrays: Vec<(String, Literal)> = values.into_iter().map(literal).collect();
    weights::write(start, WrittenFormat::Safetensors, arrays)?;
    Ok(format!(
        "{weights} of {all_weights} variables, {slots} of {all_slots} slots, {averages} of {all_averages} averages"
    ))
}
