//! Summarises a network by layer: shapes, parameters and bytes, without a device.
//!
//! Layers are read from the prediction program of one example, as the instructions of a scope. So a custom task has a
//! summary too, and an activation belongs to the layer whose name it carries.

use super::objective::Objective;
use super::program;
use super::program_error::ProgramError;
use bf16scope_hlo::{ArrayShape, Computation, InstrId, Op, Shape};
use bf16scope_model::graph::{Numbers, VariableInfo};
use bf16scope_model::task::{NetworkLayer, Task};
use bf16scope_passes::tuning::Tuning;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::iter::successors;

/// A layer, or the ops directly in a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerSummary {
    /// Its scoped name: `cnn/block1/conv`.
    pub name: String,
    /// Its kind by its ops: `convolution`, `dot`, or the name of the last op.
    pub op: String,
    /// Dims of its output for one example: of its last array that others read.
    pub output: Vec<i64>,
    /// The number of trainable parameters.
    pub n_parameters: u64,
    /// The number of parameters that do not train: running statistics, frozen weights.
    pub n_fixed: u64,
}

/// A network, layer by layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkSummary {
    /// The task's name.
    pub name: String,
    /// Its inputs, with the dims of one example.
    pub inputs: Vec<(String, Vec<i64>)>,
    /// Its layers, in the order in which they begin to compute.
    pub layers: Vec<LayerSummary>,
    /// The number of trainable parameters.
    pub n_parameters: u64,
    /// The number of parameters that do not train.
    pub n_fixed: u64,
    /// Bytes of the state between training steps: variables, slots, averages.
    pub n_state_bytes: u64,
}

impl NetworkSummary {
    /// Summarises a task and the state of its training.
    ///
    /// # Errors
    /// A task that cannot be built, or has no predictions.
    pub fn new(
        task: &dyn Task,
        numbers: Numbers,
        batch: i64,
        objective: &Objective,
    ) -> Result<NetworkSummary, ProgramError> {
        let predicting = program::prediction(task, numbers, 1, &Tuning::none())?.program;
        let training = program::training(task, numbers, batch, objective)?.program;
        // Evaluations also contain networks that only training needs, such as a GAN's discriminator.
        let judged = program::evaluation(task, numbers, 1, &Tuning::none()).ok().map(|judged| judged.program);
        let predicted: BTreeSet<&str> = predicting.variables.iter().map(|variable| &*variable.name).collect();
        let is_new = |it: &&VariableInfo| !predicted.contains(&*it.name);
        let others = judged.iter().flat_map(|judged| &judged.variables).filter(is_new);
        let variables: Vec<&VariableInfo> = predicting.variables.iter().chain(others).collect();
        let owners: Vec<&str> = variables.iter().map(|variable| scope_of(&variable.name)).collect();
        let parts = task.network_layers();
        let shared: Vec<&str> = parts.iter().filter_map(|part| part.shares.as_deref()).collect();
        let mut layers = rows(predicting.module.entry(), (&owners, &shared), |_| true);
        if let Some(judged) = judged.as_ref().filter(|_| variables.len() > predicting.variables.len()) {
            let is_other = |name: &str| owners[predicting.variables.len()..].contains(&name);
            layers.extend(rows(judged.module.entry(), (&owners, &shared), is_other));
        }
        let trained = training.variables.iter().filter(|variable| variable.trainable);
        let trained: BTreeSet<&str> = trained.map(|variable| &*variable.name).collect();
        let mut places = numbered(&layers);
        for variable in variables {
            let name = scope_of(&variable.name);
            let n = n_elements(variable);
            let number = *places.entry(name.to_string()).or_insert_with(|| {
                let (op, output) = (String::new(), Vec::new());
                layers.push(LayerSummary { name: name.to_string(), op, output, n_parameters: 0, n_fixed: 0 });
                layers.len() - 1
            });
            let layer = &mut layers[number];
            if trained.contains(&*variable.name) { layer.n_parameters += n } else { layer.n_fixed += n }
        }
        add_uses(&mut layers, &parts);
        Ok(NetworkSummary {
            name: task.name().to_string(),
            inputs: predicting.inputs.iter().map(|input| (input.name.clone(), input.dims[1..].to_vec())).collect(),
            n_parameters: layers.iter().map(|layer| layer.n_parameters).sum(),
            n_fixed: layers.iter().map(|layer| layer.n_fixed).sum(),
            n_state_bytes: training.variables.iter().map(|it| n_elements(it) * it.dtype.n_bytes() as u64).sum(),
            layers,
        })
    }
}

/// A row for each layer that uses another's variables, without parameters; the other has the dims of its own output.
fn add_uses(rows: &mut Vec<LayerSummary>, layers: &[NetworkLayer]) {
    for (number, NetworkLayer { name, shares, output }) in layers.iter().enumerate() {
        let Some(owner) = shares else { continue };
        // A layer that only training needs may have no row.
        let Some(op) = rows.iter().find(|row| is_within(&row.name, owner)).map(|row| row.op.clone()) else { continue };
        let first_use = layers.iter().find(|layer| layer.name == *owner).map(|layer| &layer.output);
        if let (Some(row), Some(dims)) = (rows.iter_mut().find(|row| row.name == *owner), first_use) {
            row.output.clone_from(dims);
        }
        let is_before = |row: &LayerSummary| layers[..number].iter().any(|other| is_within(&row.name, &other.name));
        let at = rows.iter().rposition(is_before).map_or(rows.len(), |last| last + 1);
        let (name, output) = (name.clone(), output.clone());
        rows.insert(at, LayerSummary { name, op, output, n_parameters: 0, n_fixed: 0 });
    }
}

/// The number of each layer by its name; of two with one name the first.
fn numbered(layers: &[LayerSummary]) -> HashMap<String, usize> {
    layers.iter().enumerate().rev().map(|(number, layer)| (layer.name.clone(), number)).collect()
}

/// The layers of a program whose names meet a condition. `owners` are scopes with variables, `shared` are layers that
/// are used more than once.
fn rows(
    entry: &Computation,
    (owners, shared): (&[&str], &[&str]),
    is_wanted: impl Fn(&str) -> bool,
) -> Vec<LayerSummary> {
    let owners: HashSet<&str> = owners.iter().copied().collect();
    let (mut layers, mut numbers) = (Vec::<LayerSummary>::new(), HashMap::<&str, usize>::new());
    for instr in &entry.instructions {
        let Shape::Array(shape) = &instr.shape else { continue };
        let scope = scope_of(&instr.metadata.op_name);
        // A layer may be a variable alone, repeated for every example.
        let is_variable = |id: &InstrId| matches!(entry.instr(*id).op, Op::Parameter { .. }) && owners.contains(&scope);
        let is_no_work = match instr.op {
            Op::Broadcast { .. } => !instr.operands.iter().any(is_variable),
            _ => matches!(instr.op, Op::Parameter { .. } | Op::Constant { .. } | Op::Convert),
        };
        if is_no_work {
            continue;
        }
        let Some(name) = row_of(scope, &owners).filter(|name| is_wanted(name)) else { continue };
        let (op, output) = (instr.op.opcode().into_owned(), of_one(shape));
        match numbers.get(name).map(|&number| &mut layers[number]) {
            Some(layer) => {
                layer.output = output;
                if !TELLING.contains(&layer.op.as_str()) {
                    layer.op = op;
                }
            }
            None => {
                numbers.insert(name, layers.len());
                layers.push(LayerSummary { name: name.to_string(), op, output, n_parameters: 0, n_fixed: 0 });
            }
        }
    }
    // Ops after the result, or inside of a layer, have other dims.
    let results = results(entry);
    for layer in &mut layers {
        let is_shared = shared.iter().any(|owner| is_within(&layer.name, owner));
        if let Some([first, last]) = results.get(layer.name.as_str()) {
            layer.output = of_one(if is_shared { first } else { last });
        }
    }
    layers
}

/// The dims of one example.
fn of_one(shape: &ArrayShape) -> Vec<i64> {
    shape.dims.get(1..).unwrap_or_default().to_vec()
}

/// The results of each scope: the first and the last of its arrays that are read outside of it.
fn results(entry: &Computation) -> BTreeMap<&str, [&ArrayShape; 2]> {
    let mut ends = BTreeMap::<&str, [InstrId; 2]>::new();
    for reader in &entry.instructions {
        let reading = scope_of(&reader.metadata.op_name);
        for &id in &reader.operands {
            let read = entry.instr(id);
            let is_scalar = read.shape.dims().is_empty();
            if is_scalar || matches!(read.op, Op::Parameter { .. } | Op::Constant { .. }) {
                continue;
            }
            let scopes = successors(Some(scope_of(&read.metadata.op_name)), |&scope| around(scope));
            for scope in scopes.filter(|scope| !is_within(reading, scope)) {
                let [first, last] = ends.entry(scope).or_insert([id; 2]);
                (*first, *last) = ((*first).min(id), (*last).max(id));
            }
        }
    }
    let shape = |id: InstrId| entry.instr(id).shape.as_array();
    ends.into_iter().filter_map(|(scope, [first, last])| Some((scope, [shape(first)?, shape(last)?]))).collect()
}

/// The scope around a scope.
fn around(scope: &str) -> Option<&str> {
    scope.rsplit_once('/').map(|(around, _)| around)
}

/// Whether a scope is another or inside of it.
fn is_within(scope: &str, other: &str) -> bool {
    scope == other || scope.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'))
}

/// Ops that tell the kind of a layer; all others accompany them.
const TELLING: [&str; 8] =
    ["convolution", "dot", "gather", "while", "reduce-window", "batch-norm-inference", "sort", "concatenate"];

/// The scope of a name: all but its last part.
fn scope_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(scope, _)| scope)
}

/// The row of a scope's ops: the innermost enclosing scope that has variables, or else the scope itself.
fn row_of<'a>(scope: &'a str, owners: &HashSet<&str>) -> Option<&'a str> {
    let around = successors(Some(scope), |inner| inner.rsplit_once('/').map(|(outer, _)| outer));
    around.into_iter().find(|outer| owners.contains(outer)).or(Some(scope)).filter(|name| !name.is_empty())
}

fn n_elements(variable: &VariableInfo) -> u64 {
    variable.whole_dims().iter().map(|dim| dim.unsigned_abs()).product()
}
