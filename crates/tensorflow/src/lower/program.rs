//! Lowers the selected part of a graph to a module. Its parameters are the variables, then the inputs; its results are the
//! selected tensors, then the assigned variables.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::flow::{called, open_fed, reached};
use super::frames::Frames;
use super::{Lowering, Memory, Scope, Value, Variable, ops};
use crate::choice::{Choice, Targets};
use crate::dtypes;
use crate::error::{GraphError, Problem};
use crate::graph::Graph;
use crate::host::{is_input, takes_batch};
use crate::index_map::IndexMap;
use crate::node::{Edge, Node, dims_of};
use crate::tensor::n_elements;
use bf16scope_hlo::{Alias, AliasKind, ArrayShape, CompId, DType, Emitter, InstrId, Metadata, Module, Op, Shape};

/// A graph lowered to a module.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The module, with parameters and results in the order of [`Roles`].
    pub module: Module,
    /// The roles of parameters and results.
    pub roles: Roles,
    /// The number of ops that were left out because no device runs them, by op: summaries, savers, host calls.
    pub left_out: BTreeMap<String, usize>,
}

/// The roles of a module's parameters and results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// The variables: the first parameters.
    pub variables: Vec<InputInfo>,
    /// The inputs: the parameters after the variables.
    pub inputs: Vec<InputInfo>,
    /// Whether the last parameter is the state of random numbers (`u64[2]`), whose new value is then the last result.
    pub has_random_state: bool,
    /// The results: the selected tensors, then the new values of variables.
    pub results: Vec<ResultInfo>,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputInfo {
    /// Its name in the graph.
    pub name: String,
    /// Dtype and dims.
    pub shape: ArrayShape,
}

/// A result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultInfo {
    /// The tensor's name, or the variable's.
    pub name: String,
    /// The variable whose new value it is; `None` for a selected tensor.
    pub variable: Option<usize>,
}

/// Lowers the part of a graph that `choice` selects to a module.
///
/// # Errors
/// A graph without a tensor or op to select; a node that does not become HLO; an input whose size is not known.
pub fn lower(graph: &Graph, choice: &Choice<'_>) -> Result<Lowered, GraphError> {
    let _span = tracing::info_span!("lower", n_nodes = graph.body.nodes.len()).entered();
    let mut frames = Frames::from_body(&graph.body);
    frames.fed = (0..graph.body.nodes.len()).filter(|idx| is_input(&graph.body.nodes[*idx].op)).collect();
    open_fed(graph, &graph.body, &mut frames);
    let targets = choice.targets(graph)?;
    let nodes: Vec<usize> =
        targets.results.iter().map(|(_, edge)| edge.node).chain(targets.effects.iter().copied()).collect();
    nodes.iter().for_each(|node| frames.open(*node));
    let outside = needed(graph, &frames, &nodes, &mut []);
    let all = needed(graph, &frames, &nodes, &mut frames.inside());
    let bodies = graph.functions.values().flat_map(|function| &function.body.nodes);
    let draws = all.iter().map(|idx| &graph.body.nodes[*idx]).chain(bodies).any(|node| ops::is_random(&node.op));
    let mut lowering = Lowering::new(graph);
    let roles = lowering.parameters(&outside, draws, &targets, choice)?;
    let mut scope = Scope::default();
    lowering.run(&graph.body, &frames, &mut scope, &nodes)?;
    lowering.finish(&scope, &targets, roles)
}

/// All nodes that targets need, in the graph's order. A loop's exit needs what enters the loop, and what `inside` lists for the
/// loop.
fn needed(graph: &Graph, frames: &Frames, targets: &[usize], inside: &mut [Vec<usize>]) -> Vec<usize> {
    let mut is_needed = vec![false; graph.body.nodes.len()];
    let mut pending = targets.to_vec();
    while let Some(node) = pending.pop() {
        if !std::mem::replace(&mut is_needed[node], true) {
            frames.before(&graph.body, node, &mut pending);
            if let Some(inside) = frames.of_node.get(&node).and_then(|frame| inside.get_mut(*frame)) {
                pending.append(inside);
            }
        }
    }
    (0..is_needed.len()).filter(|node| is_needed[*node]).collect()
}

fn is_variable(op: &str) -> bool {
    matches!(op, "VarHandleOp" | "VariableV2" | "Variable")
}

/// Dtype and dims of each output of a node that is an input of the program (see `is_input`).
pub(super) fn input_shapes(node: &Node) -> Option<Vec<(DType, Option<Vec<i64>>)>> {
    match node.op.as_str() {
        "Placeholder" | "PlaceholderV2" => Some(vec![(node.dtype("dtype")?, node.dims("shape"))]),
        "InfeedDequeue" => Some(vec![(node.dtype("dtype")?, node.dims("shape"))]),
        "IteratorGetNext" | "IteratorGetNextSync" => listed(node, "output_types", "output_shapes"),
        "InfeedDequeueTuple" => listed(node, "dtypes", "shapes"),
        _ => None,
    }
}

fn listed(node: &Node, types: &str, shapes: &str) -> Option<Vec<(DType, Option<Vec<i64>>)>> {
    let (types, shapes) = (&node.list(types)?.r#type, &node.list(shapes)?.shape);
    types.iter().zip(shapes).map(|(ty, shape)| Some((dtypes::hlo(*ty)?, dims_of(shape)))).collect()
}

impl<'g> Lowering<'g> {
    fn new(graph: &'g Graph) -> Lowering<'g> {
        let name = graph.file.rsplit('/').next().unwrap_or_default();
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let module = Module::new(if name.is_empty() { "graph".to_string() } else { name });
        let entry = module.entry;
        Lowering {
            graph,
            e: Emitter::new(module, entry),
            variables: Vec::new(),
            variable_of: BTreeMap::new(),
            inputs: IndexMap::default(),
            left_out: BTreeMap::new(),
            random: None,
            stores: Vec::new(),
            n_arrays: 0,
            counts: IndexMap::default(),
            grown: Vec::new(),
            memory: RefCell::new(Memory::default()),
            n_calls: 0,
            n_nodes: 0,
        }
    }

    /// Makes the parameters: variables, inputs, and, if the program draws random numbers, their state.
    fn parameters(
        &mut self,
        needed: &[usize],
        draws: bool,
        targets: &Targets,
        choice: &Choice<'_>,
    ) -> Result<Roles, GraphError> {
        let mut roles = Roles::default();
        let mut taken = BTreeSet::new();
        let nodes = &self.graph.body.nodes;
        for &idx in needed.iter().filter(|idx| is_variable(&nodes[**idx].op)) {
            let node = &nodes[idx];
            let name = node.variable_name();
            if self.variable_of.contains_key(&name) {
                continue;
            }
            let dims = node.dims("shape").filter(|dims| n_elements(dims).is_some());
            let (Some(dtype), Some(dims)) = (node.dtype("dtype"), dims) else {
                let problem = Problem::new("its shape is not known, or of a dtype that HLO does not have")
                    .with_help("make the variable with a shape, not with `validate_shape=False`");
                return Err(self.error(node, problem));
            };
            let shape = ArrayShape::new(dtype, dims);
            let id = self.parameter(roles.variables.len(), &name, node, &shape, &mut taken);
            self.variable_of.insert(name.clone(), self.variables.len());
            self.variables.push(Variable {
                name: name.clone(),
                shape: shape.clone(),
                value: Some(id),
                is_assigned: false,
            });
            roles.variables.push(InputInfo { name, shape });
        }
        // The batches of functions that are written once, in the entry computation, are inputs too.
        let graph = self.graph;
        let calls = needed.iter().flat_map(|idx| called(graph, &nodes[*idx])).collect();
        let inlined = reached(graph, calls).into_iter().filter(|(_, is_once)| *is_once);
        let inlined = inlined.filter_map(|(name, _)| Some(&graph.functions.get(name)?.body.nodes));
        let batches = inlined.flatten().filter(|node| takes_batch(&node.op)).map(|node| (None, node));
        for (idx, node) in needed.iter().map(|idx| (Some(*idx), &nodes[*idx])).chain(batches) {
            let Some(outputs) = input_shapes(node) else { continue };
            let n_outputs = outputs.len();
            let mut parameters = Vec::new();
            for (output, (dtype, dims)) in outputs.into_iter().enumerate() {
                let named = idx.and_then(|node| targets.inputs.get(&Edge { node, output }).cloned());
                let name = named.unwrap_or_else(|| match n_outputs {
                    1 => node.name.clone(),
                    _ => format!("{}:{output}", node.name),
                });
                let number = roles.variables.len() + roles.inputs.len();
                let dims = choice.settle(&self.graph.file, number, &name, dtype, dims)?;
                let shape = ArrayShape::new(dtype, dims);
                parameters.push(self.parameter(number, &name, node, &shape, &mut taken));
                roles.inputs.push(InputInfo { name, shape });
            }
            if !parameters.is_empty() {
                self.inputs.insert(std::ptr::from_ref(node), parameters);
            }
        }
        if draws {
            let shape = ArrayShape::new(DType::U64, [2]);
            let number = roles.variables.len() + roles.inputs.len();
            let node = &nodes[*needed.first().unwrap_or(&0)];
            let name = "random_state".to_string();
            let id = self.parameter(number, &name, node, &shape, &mut taken);
            self.random = Some(self.variables.len());
            self.variables.push(Variable { name, shape, value: Some(id), is_assigned: false });
        }
        Ok(roles)
    }

    fn parameter(
        &mut self,
        number: usize,
        name: &str,
        node: &Node,
        shape: &ArrayShape,
        taken: &mut BTreeSet<String>,
    ) -> InstrId {
        self.e.set_metadata(Metadata { op_name: name.to_string(), ..super::metadata(node) });
        let id = self.e.parameter(number as i64, &Shape::Array(shape.clone()));
        let legal = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '.' };
        let mut plain: String = name.chars().map(legal).collect();
        if !plain.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            plain.insert(0, '_');
        }
        // `opcode.number` is the form of generated names, so a parameter must not have it.
        if plain.rsplit_once('.').is_some_and(|(_, tail)| tail.bytes().all(|byte| byte.is_ascii_digit())) {
            plain.push('_');
        }
        let mut candidates = std::iter::once(plain.clone()).chain((1..).map(|n| format!("{plain}_{n}")));
        let unique = candidates.find(|name| !taken.contains(name)).unwrap_or_default();
        taken.insert(unique.clone());
        if id != bf16scope_hlo::POISON {
            self.e.with_module_mut(|module| {
                let entry = module.entry;
                module.computations[entry.idx()].instructions[id.idx()].name = unique;
            });
        }
        id
    }

    fn finish(self, scope: &Scope, targets: &Targets, mut roles: Roles) -> Result<Lowered, GraphError> {
        let mut results = Vec::new();
        for (name, edge) in &targets.results {
            let id = match scope.values.get(edge) {
                Some(Value::Array(id)) => *id,
                Some(Value::Variable(variable)) => {
                    let node = &self.graph.body.nodes[edge.node];
                    self.read(*variable).map_err(|problem| self.error(node, problem))?
                }
                _ => continue,
            };
            results.push(id);
            roles.results.push(ResultInfo { name: name.clone(), variable: None });
        }
        let mut aliases = Vec::new();
        let is_random = |at: usize| Some(at) == self.random;
        for (at, variable) in self.variables.iter().enumerate().filter(|(_, variable)| variable.is_assigned) {
            let Some(value) = variable.value else { continue };
            let number = if is_random(at) { roles.variables.len() + roles.inputs.len() } else { at };
            aliases.push((results.len() as i64, number as i64));
            results.push(value);
            roles.has_random_state |= is_random(at);
            roles.results.push(ResultInfo { name: variable.name.clone(), variable: (!is_random(at)).then_some(at) });
        }
        if results.is_empty() {
            return Err(GraphError::NoProgram {
                file: self.graph.file.clone(),
                message: "what is asked for gives no array and assigns no variable".to_string(),
                help: "ask for a tensor, or for the op that trains".to_string(),
            });
        }
        self.e.set_metadata(Metadata::default());
        let root = self.e.tuple(&results);
        if let Some(error) = self.e.error() {
            let node = &self.graph.body.nodes[targets.results.first().map_or(0, |(_, edge)| edge.node)];
            return Err(self.error(node, Problem::new(error.error.message)));
        }
        let mut module = self.e.take_module();
        let entry = module.entry;
        module.computations[entry.idx()].root = root;
        let is_dropped = |instr: &bf16scope_hlo::Instruction| {
            !roles.has_random_state && instr.name == "random_state" && self.random.is_some()
        };
        remove_dead(&mut module, is_dropped);
        module.input_output_alias = aliases
            .into_iter()
            .map(|(output, parameter_number)| Alias {
                output_index: vec![output],
                parameter_number,
                parameter_index: Vec::new(),
                kind: AliasKind::May,
            })
            .collect();
        Ok(Lowered { module, roles, left_out: self.left_out })
    }
}

/// Removes unused instructions, except for parameters, and computations that are never called.
fn remove_dead(module: &mut Module, is_dropped: impl Fn(&bf16scope_hlo::Instruction) -> bool) {
    let entry = module.entry;
    for (at, computation) in module.computations.iter_mut().enumerate() {
        let n = computation.instructions.len();
        let mut is_read = vec![false; n];
        if let Some(root) = is_read.get_mut(computation.root.idx()) {
            *root = true;
        }
        for idx in (0..n).rev() {
            let instr = &computation.instructions[idx];
            let is_parameter = matches!(instr.op, Op::Parameter { .. });
            is_read[idx] |= is_parameter && !(at == entry.idx() && is_dropped(instr));
            if is_read[idx] {
                instr.operands.iter().for_each(|operand| is_read[operand.idx()] = true);
            }
        }
        let mut new_id = vec![InstrId(0); n];
        let mut n_kept = 0;
        for idx in 0..n {
            new_id[idx] = InstrId(n_kept);
            n_kept += u32::from(is_read[idx]);
        }
        let mut idx = 0;
        computation.instructions.retain(|_| {
            idx += 1;
            is_read[idx - 1]
        });
        for instr in &mut computation.instructions {
            instr.operands.iter_mut().for_each(|operand| *operand = new_id[operand.idx()]);
        }
        computation.root = new_id.get(computation.root.idx()).copied().unwrap_or(InstrId(0));
    }
    let mut is_called = vec![false; module.computations.len()];
    let mut pending = vec![module.entry];
    while let Some(comp) = pending.pop() {
        if !std::mem::replace(&mut is_called[comp.idx()], true) {
            let instructions = &module.computations[comp.idx()].instructions;
            pending.extend(instructions.iter().flat_map(|instr| instr.op.called()));
        }
    }
    let mut new_id = Vec::with_capacity(is_called.len());
    let mut n_kept = 0;
    for is_called in &is_called {
        new_id.push(CompId(n_kept));
        n_kept += u32::from(*is_called);
    }
    let mut idx = 0;
    module.computations.retain(|_| {
        idx += 1;
        is_called[idx - 1]
    });
    module.entry = new_id[module.entry.idx()];
    for instr in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        instr.op.for_each_called_mut(&mut |comp| *comp = new_id[comp.idx()]);
    }
}
