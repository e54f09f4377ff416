//! Finds the variables that a graph updates, those with another rule than the first, and ops that change gradients.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::network::NetworkPort;
use super::symbols::{Symbols, is_variable, quoted, yaml_number};
use super::{Note, Notes, region};
use crate::choice;
use crate::graph::Graph;
use crate::host::is_host;
use crate::node::{Edge, Node};

/// The op of an update without the kind of its variable: `ApplyAdam`.
fn rule(op: &str) -> &str {
    op.trim_start_matches("Resource").trim_start_matches("Sparse")
}

/// Which inputs of an update are the learning rate and the gradient.
pub(super) fn operands(update: &Node) -> Option<(usize, usize)> {
    let (rate, gradient) = match rule(&update.op) {
        "ApplyGradientDescent" => (1, 2),
        "ApplyMomentum" | "ApplyKerasMomentum" | "ApplyAdagrad" => (2, 3),
        "ApplyAdagradV2" => (2, 4),
        "ApplyRMSProp" => (3, 7),
        "ApplyAdadelta" => (3, 6),
        "ApplyCenteredRMSProp" => (4, 8),
        "ApplyAdam" => (5, 9),
        "ApplyFtrl" | "ApplyFtrlV2" => (4, 3),
        "ApplyAdaMax" => (4, 8),
        _ => return None,
    };
    // The indices of a sparse gradient follow it.
    Some((rate + usize::from(gradient < rate && update.op.contains("Sparse")), gradient))
}

/// The variable whose handle or value a tensor is.
pub(super) fn variable(symbols: &Symbols<'_>, mut edge: Edge) -> Option<String> {
    for _ in 0..8 {
        edge = symbols.behind(edge);
        let node = symbols.node(edge.node);
        match (node.op.as_str(), node.inputs.first()) {
            ("Switch" | "RefSwitch", Some(input)) => edge = *input,
            (op, _) => return is_variable(op).then(|| node.variable_name()),
        }
    }
    None
}

/// Whether a node is the variable of a name.
pub(super) fn is_read_of(nodes: &[Node], at: usize, name: &str) -> bool {
    is_variable(&nodes[at].op) && nodes[at].variable_name() == name
}

/// Each variable that one of TensorFlow's own updates changes, with that update.
pub(super) fn updates(symbols: &Symbols<'_>) -> Vec<(String, usize)> {
    let nodes = &symbols.graph.body.nodes;
    let updates = nodes.iter().enumerate().filter(|(_, node)| rule(&node.op).starts_with("Apply"));
    updates.filter_map(|(at, node)| Some((variable(symbols, *node.inputs.first()?)?, at))).collect()
}

/// Patterns that match some names and no others.
pub(super) fn patterns(chosen: &[String], others: &[String]) -> String {
    let pattern = |name: &String| {
        let mut scopes = name.match_indices('/').map(|(at, _)| &name[..=at]);
        let scope = scopes.find(|scope| !others.iter().any(|other| other.starts_with(*scope)));
        quoted(&scope.map_or(name.clone(), |scope| format!("{scope}*")))
    };
    let patterns: BTreeSet<String> = chosen.iter().map(pattern).collect();
    format!("[{}]", patterns.into_iter().collect::<Vec<_>>().join(", "))
}

/// The patterns of the network's variables that are updated; empty if all are that TensorFlow calls trainable.
pub(super) fn trainable(symbols: &Symbols<'_>, network: &NetworkPort) -> String {
    let graph = symbols.graph;
    let nodes = &graph.body.nodes;
    let mut changed: BTreeSet<String> = BTreeSet::new();
    let mut assigned: Vec<(String, Edge)> = Vec::new();
    for node in nodes {
        let target = || variable(symbols, *node.inputs.first()?);
        match node.op.as_str() {
            // A function may hold the updates of all variables that it takes.
            "If" | "Case" | "While" | "StatefulPartitionedCall" => {
                changed.extend(node.inputs.iter().filter_map(|edge| variable(symbols, *edge)));
            }
            "Assign" | "AssignVariableOp" => assigned.extend(target().zip(node.inputs.get(1).copied())),
            op if op.starts_with("Assign") || op.contains("Scatter") || op.contains("Apply") => {
                changed.extend(target())
            }
            _ => {}
        }
    }
    let is_updated = |name: &String| {
        let from_gradient =
            |edge: &Edge| region::ancestors(graph, [edge.node]).iter().any(|at| is_gradient(&nodes[*at]));
        changed.contains(name) || assigned.iter().any(|(target, value)| target == name && from_gradient(value))
    };
    let names = graph.variables.iter().filter(|variable| variable.is_trainable).map(|variable| variable.name.clone());
    let names = names.filter(|name| network.variables.contains_key(name));
    let (updated, frozen): (Vec<String>, Vec<String>) = names.partition(is_updated);
    if updated.is_empty() || frozen.is_empty() { String::new() } else { patterns(&updated, &frozen) }
}

/// The beginning of a remark on variables that another optimizer updates.
pub(super) fn others_are_updated(names: &[String]) -> String {
    match names {
        [name] => format!("the variable `{name}` is updated"),
        names => {
            format!("{} variables such as `{}` are updated", names.len(), names.first().map_or("", String::as_str))
        }
    }
}

/// Notes that some variables are updated by another optimizer, by other numbers or at another rate than the first.
pub(super) fn unlike_first(symbols: &Symbols<'_>, updates: &[(String, usize)], notes: &mut Notes) {
    let rate = |at: usize| {
        let node = symbols.node(at);
        operands(node).and_then(|(rate, _)| node.inputs.get(rate)).map(|edge| symbols.behind(*edge))
    };
    let numbers = |at: usize| {
        let node = symbols.node(at);
        let gradient = operands(node).map(|(_, gradient)| gradient);
        let is_indices = |number: usize| node.op.contains("Sparse") && gradient.map(|at| at + 1) == Some(number);
        let inputs = (0..node.inputs.len()).filter(|number| Some(*number) != gradient && !is_indices(*number));
        inputs.map(|number| symbols.scalar(node, number)).collect::<Vec<_>>()
    };
    let is_like = |one: usize, other: usize| {
        let (x, y) = (symbols.node(one), symbols.node(other));
        let is_same_rate = || rate(one) == rate(other) || rate(one).and_then(|edge| symbols.value(edge)).is_some();
        rule(&x.op) == rule(&y.op)
            && x.flag("use_nesterov") == y.flag("use_nesterov")
            && numbers(one) == numbers(other)
            && is_same_rate()
    };
    let Some((_, first)) = updates.iter().find(|(_, at)| !symbols.node(*at).op.contains("Sparse")) else { return };
    let (others, same): (Vec<_>, Vec<_>) = updates.iter().partition(|(_, at)| !is_like(*first, *at));
    let Some((_, other)) = others.first() else { return };
    let words = |at: usize| {
        let at_rate = rate(at).map(|edge| match symbols.value(edge) {
            Some(value) => format!(" at the rate {}", yaml_number(value)),
            None => format!(" at the rate `{}`", symbols.node(edge.node).name),
        });
        format!("`{}`{}", rule(&symbols.node(at).op), at_rate.unwrap_or_default())
    };
    let text = format!(
        "{} by {}, and the first, in `{}`, by {}; if these are alike, other numbers differ",
        others_are_updated(&others.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()),
        words(*other),
        symbols.node(*first).name,
        words(*first)
    );
    let names = |updates: Vec<&(String, usize)>| updates.into_iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let help = format!(
        "under `train`, `optimizers: [{{variables: {}, optimizer: …, learning_rate: …}}]`",
        patterns(&names(others.clone()), &names(same))
    );
    notes.missing.push(Note::new(symbols.graph, Some(*other), text, help).in_step());
}

/// Names at most in a remark's help.
const MAX_SHOWN: usize = 8;

/// Notes variables that the graph assigns in ops which no training op waits for, so that the step as HLO leaves them out.
pub(super) fn left_out_of_step(graph: &Graph, notes: &mut Notes) {
    let Some(is_run) = choice::nodes_of_step(graph) else { return };
    let symbols = Symbols::new(graph);
    let nodes = &graph.body.nodes;
    let initializers: HashMap<&str, &str> =
        graph.variables.iter().map(|variable| (variable.name.as_str(), variable.initializer.as_str())).collect();
    // A value of the step, and no initial, restored or fed one.
    let is_of_step = |value: Edge| {
        let (mut seen, mut pending) = (HashSet::new(), vec![value.node]);
        while let Some(at) = pending.pop() {
            let node = &nodes[at];
            if is_variable(&node.op) || is_run[at] && !is_host(&node.op) {
                return true;
            }
            if seen.insert(at) && !region::is_of_shape(&node.op) && !is_host(&node.op) {
                pending.extend(node.inputs.iter().map(|edge| edge.node));
            }
        }
        false
    };
    let left_out = nodes.iter().enumerate().filter(|(at, node)| node.op.starts_with("Assign") && !is_run[*at]);
    let left_out = left_out.filter_map(|(at, node)| {
        let [target, value] = node.inputs[..] else { return None };
        let name = variable(&symbols, target)?;
        let is_initial = *initializers.get(name.as_str())? == node.name;
        let changes = node.op != "Assign" && node.op != "AssignVariableOp";
        (!is_initial && (changes || is_of_step(value))).then_some((name, at))
    });
    let left_out: BTreeMap<String, usize> = left_out.collect();
    let Some(at) = left_out.values().min().copied() else { return };
    let name = left_out.iter().find(|(_, other)| **other == at).map(|(name, _)| name.clone()).unwrap_or_default();
    let text = format!(
        "{} variables such as `{name}` are assigned by ops that no training op waits for; the step as HLO leaves them as they are",
        left_out.len()
    );
    let groups = nodes.iter().filter(|node| node.op == "NoOp");
    let groups: Vec<&Node> = groups.filter(|node| left_out.values().any(|at| node.controls.contains(at))).collect();
    let is_grouped = |at: &usize| groups.iter().any(|group| group.controls.contains(at));
    let alone = left_out.values().filter(|at| !is_grouped(at)).map(|at| nodes[*at].name.as_str());
    let fetched: BTreeSet<&str> = groups.iter().map(|group| group.name.as_str()).chain(alone).collect();
    let train = graph.collection("train_op").first().map_or("", String::as_str);
    let shown: Vec<&str> = std::iter::once(train).chain(fetched.iter().copied()).take(MAX_SHOWN).collect();
    let more = if fetched.len() + 1 > MAX_SHOWN { ",…" } else { "" };
    let help =
        format!("`--fetch {}{more}` runs them in one step, or let the training op wait for them", shown.join(","));
    notes.differs.push(Note::new(graph, Some(at), text, help));
}

/// Whether each node is of the backward pass, or is computed from it.
pub(super) fn from_gradients(graph: &Graph) -> Vec<bool> {
    let nodes = &graph.body.nodes;
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (idx, node) in nodes.iter().enumerate() {
        node.inputs.iter().for_each(|edge| readers[edge.node].push(idx));
    }
    let mut is_reached = vec![false; nodes.len()];
    let mut pending: Vec<usize> = (0..nodes.len()).filter(|idx| is_gradient(&nodes[*idx])).collect();
    while let Some(idx) = pending.pop() {
        if !std::mem::replace(&mut is_reached[idx], true) {
            pending.extend(&readers[idx]);
        }
    }
    is_reached
}

/// The updates of variables by values that are computed from gradients, each with that value.
pub(super) fn of_gradients(graph: &Graph, from_gradients: &[bool]) -> Vec<(usize, Edge)> {
    let value = |(at, node): (usize, &Node)| {
        let number = match rule(&node.op) {
            op if op.starts_with("Apply") => operands(node).map(|(_, gradient)| gradient)?,
            op if op.starts_with("Assign") => 1,
            _ => return None,
        };
        let value = *node.inputs.get(number)?;
        from_gradients[value.node].then_some((at, value))
    };
    graph.body.nodes.iter().enumerate().filter_map(value).collect()
}

/// The optimizer of Keras that updates variables by plain ops, by the scope of its assignments: `Adam/AssignAddVariableOp`.
pub(super) fn of_keras(graph: &Graph) -> Option<&'static str> {
    const OPTIMIZERS: [&str; 11] =
        ["Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD"];
    let assigns = graph.body.nodes.iter().filter(|node| node.op.starts_with("Assign"));
    let mut scopes = assigns.filter_map(|node| Some(node.name.split_once('/')?.0));
    scopes.find_map(|scope| {
        let scope = scope.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
        OPTIMIZERS.iter().find(|known| known.eq_ignore_ascii_case(scope)).copied()
    })
}

/// Whether the backward pass of version 1 or 2 made a node.
pub(super) fn is_gradient(node: &Node) -> bool {
    // The backward pass of a function that a tape called has no scope of its own.
    let is_call =
        || node.op.ends_with("PartitionedCall") && node.function("f").is_some_and(|name| name.contains("__backward_"));
    region::is_backward(&node.name) || region::is_taped(&node.name) || is_call()
}

/// Notes the first op without a word that changes gradients before their update. `clip` begins names of clips with words.
pub(super) fn changed_gradients(
    symbols: &Symbols<'_>,
    gradients: &[(String, Edge)],
    clip: Option<&str>,
    notes: &mut Notes,
) {
    let nodes = &symbols.graph.body.nodes;
    let is_read = |at: usize| nodes[at].op == "ReadVariableOp" || is_variable(&nodes[at].op);
    let is_change = |at: &usize| {
        is_read(*at) || region::ancestors(symbols.graph, [*at]).iter().any(|idx| is_gradient(&nodes[*idx]))
    };
    let changes = gradients.iter().map(|(name, gradient)| (name, change(symbols, *gradient, clip)));
    let mut changes = changes.filter_map(|(name, at)| Some((name, at.filter(is_change)?)));
    let Some((name, at)) = changes.next() else { return };
    let how = match is_read(at) {
        true => "kept in variables".to_string(),
        false => format!("changed by `{}`", nodes[at].op),
    };
    let text =
        format!("gradients are {how} before the update (that of `{name}` first), which the experiment leaves out");
    let help = "docs/EXPERIMENTS.md has `clip`, `weight_decay`, `accumulate`, `loss_scale` and `optimizers`";
    notes.missing.push(Note::new(symbols.graph, Some(at), text, help).in_step());
}

/// The last node before an update that is not of the backward pass and neither passes the gradient on nor has a word.
fn change(symbols: &Symbols<'_>, mut edge: Edge, clip: Option<&str>) -> Option<usize> {
    for _ in 0..256 {
        let node = symbols.node(edge.node);
        let is_clip = || clip.is_some_and(|clip| node.name.split('/').any(|part| part.starts_with(clip)));
        let next = match node.op.as_str() {
            _ if is_gradient(node) => return None,
            // A tape sums the parts of a gradient beside its own names.
            "AddN" if node.inputs.iter().all(|input| is_gradient(symbols.node(input.node))) => return None,
            "IdentityN" => edge.output,
            "Identity" | "Cast" | "StopGradient" | "Snapshot" | "Reshape" | "Enter" | "Switch" | "RefSwitch"
            | "CheckNumerics" | "PreventGradient" | "TPUReplicatedInput" | "CrossReplicaSum" | "UnsortedSegmentSum" => {
                0
            }
            op if op.starts_with("CollectiveReduce") || is_clip() => 0,
            "Mul" | "RealDiv" | "Div" if symbols.scalar(node, 1) == Some(1.0) => 0,
            _ => return Some(edge.node),
        };
        edge = *node.inputs.get(next)?;
    }
    None
}
