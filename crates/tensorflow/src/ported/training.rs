//! Ports a graph's training: optimizer and its hyperparameters, learning-rate schedule, weight decay, clipping, averages, cores.

use std::collections::{BTreeMap, BTreeSet};

use super::network::NetworkPort;
use super::plain_adam::{PlainAdam, plain_adam};
use super::rate::{Rate, RateInWords};
use super::symbols::{Symbols, constant, is_variable, shortest, yaml_number};
use super::written::{Written, WrittenRate, written};
use super::{Note, Notes, Place, accumulation, cores, initial, nearest, region, terms, updates};
use crate::graph::Graph;
use crate::node::{Edge, Node};

/// A network's training, as values of YAML keys; empty if the graph has no optimizer.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TrainingPort {
    /// `{kind: momentum, momentum: 0.9}`.
    pub optimizer: String,
    /// `0.1`, or `{kind: exponential, …}`.
    pub learning_rate: String,
    /// `{steps: 500}`; empty without a warm-up.
    pub warm_up: String,
    /// `1.0e-5`; empty without a floor.
    pub learning_rate_floor: String,
    /// `{value: 0.0001, except: [batch_normalization]}`.
    pub weight_decay: String,
    /// `{kind: global_norm, value: 1}`.
    pub clip: String,
    /// `{decay: 0.9999}`.
    pub average: String,
    /// How many steps of the graph are one update.
    pub accumulate: Option<i64>,
    /// `["logits/*"]`; empty if all variables train.
    pub trainable: String,
    /// The number of cores that the graph is made for.
    pub n_cores: Option<i64>,
    /// Where the graph has each, by key in YAML.
    pub places: BTreeMap<&'static str, Place>,
}

/// Ports a graph's training. The number is what losses are multiplied by.
pub(super) fn training(
    graph: &Graph,
    loss: Option<usize>,
    network: &NetworkPort,
    notes: &mut Notes,
) -> (TrainingPort, f64) {
    let mut loss_factor = 1.0;
    let symbols = Symbols::new(graph);
    let nodes = &graph.body.nodes;
    let update = nodes.iter().position(|node| node.op.starts_with("ResourceApply") || node.op.starts_with("Apply"));
    let mut port = TrainingPort { n_cores: cores::n_cores(graph), ..TrainingPort::default() };
    let adam = if update.is_none() { plain_adam(&symbols) } else { None };
    let plain = if update.is_none() && adam.is_none() { written(&symbols) } else { None };
    match update {
        Some(update) => {
            port.optimizer = optimizer(&symbols, update, notes);
            port.places.insert("optimizer", Place::new(graph, update));
            let rate_number = updates::operands(&nodes[update]).map(|(rate, _)| rate);
            if let Some(rate) = rate_number.and_then(|number| nodes[update].inputs.get(number)) {
                port.places.insert("learning_rate", Place::new(graph, symbols.behind(*rate).node));
            }
            let words = rate_number.map(|number| rate(&symbols, update, number, notes)).unwrap_or_default();
            (port.learning_rate, port.warm_up) = (words.learning_rate, words.warm_up);
            port.learning_rate_floor = words.floor;
        }
        None if adam.is_some() || plain.is_some() => {}
        None if !graph.collection("train_op").is_empty() => {
            let text = "its optimizer is written with plain ops, not with one of TensorFlow's own";
            let help = "name it: `optimizer: adamw` (BERT's), `lars`, `lamb`";
            notes.missing.push(Note::new(graph, None, text, help).in_step());
        }
        None => {
            let by_hand = || updates::of_gradients(graph, &updates::from_gradients(graph)).first().map(|(at, _)| *at);
            let (at, optimizer) = match updates::of_keras(graph) {
                Some(optimizer) => (None, format!("its optimizer, Keras' {optimizer}, is")),
                None => (by_hand(), "its updates of variables are".to_string()),
            };
            if at.is_some() || optimizer.contains("Keras") {
                let text = format!("{optimizer} written with plain ops, whose numbers are not read");
                let help = "name it under `train`: `optimizer: {kind: adam, …}`, and `learning_rate`";
                notes.missing.push(Note::new(graph, at, text, help).in_step());
            }
        }
    }
    port.weight_decay = decay(&symbols, network, loss, &mut port.places);
    let mut gradients = Vec::new();
    if let Some(mut adam) = adam {
        gradients = std::mem::take(&mut adam.gradients);
        written_adam(&mut port, &symbols, adam, network, notes);
    }
    if let Some((all, read)) = plain {
        gradients = read;
        written_optimizer(&mut port, &symbols, &all, network, notes);
    }
    port.clip = clip(&symbols, notes, &mut port.places);
    let changes = updates::updates(&symbols);
    port.trainable = updates::trainable(&symbols, network);
    updates::unlike_first(&symbols, &changes, notes);
    gradients.extend(changes.into_iter().filter_map(|(name, at)| {
        let (_, gradient) = updates::operands(&nodes[at])?;
        Some((name, *nodes[at].inputs.get(gradient)?))
    }));
    // A clip that has a place has a word, or is missing already.
    let clip = format!("clip_by_{}", port.clip.split([':', ',']).nth(1).unwrap_or_default().trim());
    let clip = port.places.contains_key("clip").then_some(clip.as_str());
    match accumulation::note(&symbols, loss, &gradients) {
        Some((note, Some((n, factor)))) => {
            port.accumulate = Some(n);
            loss_factor = factor;
            port.places.insert(
                "accumulate",
                Place { node: note.node.clone(), line: note.place.clone(), callers: note.callers.clone() },
            );
            notes.differs.push(Note { is_in_step: false, ..note });
        }
        Some((note, None)) => notes.missing.push(note),
        None => updates::changed_gradients(&symbols, &gradients, clip, notes),
    }
    if let Some((loss, at)) =
        loss.and_then(|loss| Some((loss, terms::beside_loss(graph, loss, &updates::from_gradients(graph))?)))
    {
        let text = format!("gradients are taken of more than the loss `{}`: this is no part of it", nodes[loss].name);
        let help = "under `loss`, write its terms, or each loss with the `variables` that it trains";
        notes.missing.push(Note::new(graph, Some(at), text, help).in_step());
    }
    port.average = average(&symbols, notes, &mut port.places);
    if let Some(n_cores) = port.n_cores.filter(|n| *n > 1) {
        on_cores(&mut port, n_cores, &symbols, loss, notes);
    }
    (port, loss_factor)
}

/// Notes what sums over cores make of clipping and of the learning rate.
fn on_cores(port: &mut TrainingPort, n_cores: i64, symbols: &Symbols<'_>, loss: Option<usize>, notes: &mut Notes) {
    // The clipping reads the results of `tf.gradients`, so it acts on each core, before the sum over cores.
    if port.clip.contains("global_norm") {
        port.clip = port.clip.replace('}', ", per_replica: true}");
    } else if let Some((_, value)) = port.clip.trim_end_matches('}').rsplit_once("value: ") {
        let most = value.parse::<f64>().map_or(0.0, |value| shortest((value * n_cores as f64) as f32));
        let text = format!(
            "TensorFlow clips on each core, before the sum over cores, which is at most {n_cores} times {value}; here the \
             sum is clipped to {value}"
        );
        let help = format!(
            "`value: {}` has the same bound; with one core there is no difference, and `{{kind: global_norm, …, \
             per_replica: true}}` clips before the sum",
            yaml_number(most)
        );
        notes.differs.push(Note::new(symbols.graph, None, text, help));
    }
    if let Some(update) = cores::not_summed_over_cores(symbols) {
        let text = format!("each of {n_cores} cores updates by its own gradients there; here all take their mean");
        let help = "`mesh: {data: 1}` and the batch of one core train as one core does";
        notes.differs.push(Note::new(symbols.graph, Some(update), text, help));
    }
    let Some(sum) = cores::summed_over_cores(symbols, loss) else { return };
    let text =
        format!("gradients are sums over {n_cores} cores, {n_cores} times larger than the means that are taken here");
    let is_linear = ["{kind: sgd", "{kind: momentum"].iter().any(|kind| port.optimizer.starts_with(kind));
    let help = match (is_linear && port.clip.is_empty(), port.learning_rate.parse::<f64>()) {
        (true, Ok(rate)) => {
            let rate = yaml_number(shortest((rate * n_cores as f64) as f32));
            format!("`learning_rate: {rate}`, {n_cores} times that of the script, takes the same steps")
        }
        (true, Err(_)) => format!("a `learning_rate` {n_cores} times that of the script takes the same steps"),
        (false, _) => format!(
            "`weight: {n_cores}` on each loss, and a `weight_decay` {n_cores} times as large, give the same gradients"
        ),
    };
    notes.differs.push(Note::new(symbols.graph, Some(sum), text, help));
}

/// The words of an update that is written with plain ops: its optimizer, its rate and its decay.
fn written_adam(
    port: &mut TrainingPort,
    symbols: &Symbols<'_>,
    adam: PlainAdam,
    network: &NetworkPort,
    notes: &mut Notes,
) {
    let graph = symbols.graph;
    port.optimizer = adam.optimizer;
    port.places.insert("learning_rate", Place::new(graph, symbols.behind(adam.rate).node));
    let words = match symbols.value(adam.rate) {
        Some(value) => RateInWords { learning_rate: yaml_number(value), ..RateInWords::default() },
        None => rate_at(symbols, adam.rate, notes),
    };
    (port.learning_rate, port.warm_up, port.learning_rate_floor) = (words.learning_rate, words.warm_up, words.floor);
    decay_of_optimizer(port, symbols, adam.decay, (&adam.spared, &adam.decayed), network, notes);
}

/// The words of optimizers that are written with plain ops and known by what they compute.
fn written_optimizer(
    port: &mut TrainingPort,
    symbols: &Symbols<'_>,
    all: &[Written],
    network: &NetworkPort,
    notes: &mut Notes,
) {
    let Some((first, others)) = all.split_first() else { return };
    let graph = symbols.graph;
    port.optimizer = first.candidate.words(first.decay.is_some());
    port.places.insert("optimizer", Place::new(graph, first.at));
    let words = written_rate(symbols, first.rate, notes);
    if let WrittenRate::Computed(edge) = first.rate {
        port.places.insert("learning_rate", Place::new(graph, symbols.behind(edge).node));
    }
    (port.learning_rate, port.warm_up, port.learning_rate_floor) = (words.learning_rate, words.warm_up, words.floor);
    if first.keeps_rate && matches!(first.rate, WrittenRate::Computed(_)) {
        notes.differs.push(rate_in_slot(graph, first.at));
    }
    let before = port.weight_decay.clone();
    decay_of_optimizer(port, symbols, first.decay, (&first.spared, &first.decayed), network, notes);
    if port.weight_decay != before && !first.candidate.has_decay_beside() {
        port.weight_decay = port.weight_decay.replacen('}', ", decoupled: true}", 1);
    }
    for other in others {
        let names = |written: &Written| written.decayed.iter().chain(&written.spared).cloned().collect::<Vec<_>>();
        let (chosen, rest): (Vec<String>, Vec<String>) =
            (names(other), all.iter().filter(|one| one.at != other.at).flat_map(names).collect());
        let optimizer = other.candidate.words(other.decay.is_some());
        let rate = written_rate(symbols, other.rate, notes).learning_rate;
        let rate = if rate.is_empty() { "…" } else { &rate };
        let text =
            format!("{} by {optimizer} at the rate {rate}, unlike the first", updates::others_are_updated(&chosen));
        let help = format!(
            "under `train`, `optimizers: [{{variables: {}, optimizer: {optimizer}, learning_rate: {rate}}}]`",
            updates::patterns(&chosen, &rest)
        );
        notes.missing.push(Note::new(graph, Some(other.at), text, help).in_step());
    }
}

/// The rate of an update of plain ops, in words.
fn written_rate(symbols: &Symbols<'_>, rate: WrittenRate, notes: &mut Notes) -> RateInWords {
    let number = |value: f64| RateInWords { learning_rate: yaml_number(value), ..RateInWords::default() };
    match rate {
        WrittenRate::Number(value) => number(value),
        WrittenRate::Computed(edge) => match symbols.value(edge) {
            Some(value) => number(value),
            None => rate_at(symbols, edge, notes),
        },
        WrittenRate::Variable(at) => {
            notes.missing.push(unknown_rate(symbols, at));
            RateInWords::default()
        }
    }
}

/// The remark on a slot that has the learning rate inside.
fn rate_in_slot(graph: &Graph, update: usize) -> Note {
    let text = "the optimizer's slot has the learning rate inside, so that it goes on with earlier rates after a change; here \
                a change acts at once";
    let help = "between changes the steps are the same, and no key undoes it; the step as HLO has the graph's";
    Note::new(graph, Some(update), text, help)
}

/// The decay that an optimizer adds beside the loss's terms; `names` are the variables that it spares, and those that it decays.
fn decay_of_optimizer(
    port: &mut TrainingPort,
    symbols: &Symbols<'_>,
    decay: Option<f64>,
    names: (&BTreeSet<String>, &BTreeSet<String>),
    network: &NetworkPort,
    notes: &mut Notes,
) {
    let Some(decay) = decay else { return };
    if !port.weight_decay.is_empty() {
        let text = format!("variables decay by {} in the optimizer too, beside the loss's terms", yaml_number(decay));
        let help = "`weight_decay` is one of them: write the terms of the loss as `loss`";
        notes.missing.push(Note::new(symbols.graph, None, text, help).in_step());
        return;
    }
    // Without a network all are named.
    let is_known = |name: &&str| network.variables.is_empty() || network.variables.contains_key(*name);
    let spared = names.0.iter().map(String::as_str).filter(is_known);
    port.weight_decay = decay_in_words(decay, &spared.collect::<Vec<_>>(), names.1);
}

fn optimizer(symbols: &Symbols<'_>, update: usize, notes: &mut Notes) -> String {
    let node = symbols.node(update);
    let mut options: Vec<(&str, String)> = Vec::new();
    let mut unknown = Vec::new();
    let mut number = |key: &'static str, input: usize, options: &mut Vec<(&str, String)>| match symbols
        .hyperparameter(node, input)
    {
        Some(value) => options.push((key, yaml_number(value))),
        None => unknown.push(key),
    };
    let kind = match node.op.trim_start_matches("Resource") {
        "ApplyGradientDescent" => "sgd",
        op @ ("ApplyMomentum" | "ApplyKerasMomentum") => {
            number("momentum", 4, &mut options);
            if op == "ApplyKerasMomentum" && symbols.hyperparameter(node, 2).is_none() {
                notes.differs.push(rate_in_slot(symbols.graph, update));
            }
            if node.flag("use_nesterov") {
                options.push(("nesterov", "true".to_string()));
            }
            "momentum"
        }
        "ApplyAdam" if node.flag("use_nesterov") => {
            number("beta1", 6, &mut options);
            number("beta2", 7, &mut options);
            number("epsilon", 8, &mut options);
            let text = "`nadam` is Keras': the share of the mean that it looks ahead by grows from half of beta1 to beta1; in \
                        TensorFlow's it is beta1 from the first step on";
            let help = "no key takes the growth away; the step as HLO has none";
            notes.differs.push(Note::new(symbols.graph, Some(update), text, help));
            "nadam"
        }
        "ApplyAdam" => {
            number("beta1", 6, &mut options);
            number("beta2", 7, &mut options);
            number("epsilon", 8, &mut options);
            // TensorFlow 1 adds ε to √v before its correction.
            options.push(("epsilon_hat", "true".to_string()));
            "adam"
        }
        "ApplyRMSProp" | "ApplyCenteredRMSProp" => {
            let first = if node.op.contains("Centered") { 5 } else { 4 };
            number("decay", first, &mut options);
            number("momentum", first + 1, &mut options);
            number("epsilon", first + 2, &mut options);
            if node.op.contains("Centered") {
                options.push(("centered", "true".to_string()));
            }
            "rmsprop"
        }
        "ApplyAdagrad" => {
            options.push(("epsilon", "0".to_string()));
            SUM_OF_SQUARES
        }
        "ApplyAdagradV2" => {
            number("epsilon", 3, &mut options);
            SUM_OF_SQUARES
        }
        "ApplyAdadelta" => {
            number("rho", 4, &mut options);
            number("epsilon", 5, &mut options);
            "adadelta"
        }
        "ApplyAdaMax" => {
            number("beta1", 5, &mut options);
            number("beta2", 6, &mut options);
            number("epsilon", 7, &mut options);
            "adamax"
        }
        op @ ("ApplyFtrl" | "ApplyFtrlV2") if !node.flag("multiply_linear_by_lr") => {
            let is_v2 = op == "ApplyFtrlV2";
            number("learning_rate_power", if is_v2 { 8 } else { 7 }, &mut options);
            number("l1_regularization_strength", 5, &mut options);
            number("l2_regularization_strength", 6, &mut options);
            if is_v2 {
                number("l2_shrinkage_regularization_strength", 7, &mut options);
            }
            "ftrl"
        }
        other => {
            let text = format!("the optimizer's `{other}` has no word");
            notes.missing.push(Note::new(symbols.graph, Some(update), text, nearest::optimizer(other)).in_step());
            return String::new();
        }
    };
    if !unknown.is_empty() {
        let text = format!("{kind}'s {} changes while it trains, and is a number here", unknown.join(" and "));
        notes.missing.push(Note::new(symbols.graph, Some(update), text, "write the number that is meant"));
    }
    let options: Vec<String> = options.into_iter().map(|(key, value)| format!(", {key}: {value}")).collect();
    format!("{{kind: {kind}{}}}", options.concat())
}

/// The name in YAML of an optimizer that sums squares of gradients.
const SUM_OF_SQUARES: &str = "adagrad";

/// The learning rate of an update in YAML; a rate of unknown form is noted as missing.
fn rate(symbols: &Symbols<'_>, update: usize, number: usize, notes: &mut Notes) -> RateInWords {
    let node = symbols.node(update);
    let Some(edge) = node.inputs.get(number) else { return RateInWords::default() };
    if let Some(value) = symbols.hyperparameter(node, number) {
        return RateInWords { learning_rate: yaml_number(value), ..RateInWords::default() };
    }
    rate_at(symbols, *edge, notes)
}

/// The learning rate that a tensor computes, in YAML.
fn rate_at(symbols: &Symbols<'_>, edge: Edge, notes: &mut Notes) -> RateInWords {
    let at = symbols.behind(edge).node;
    if is_variable(&symbols.node(at).op) {
        return rate_of_variable(symbols, at, notes);
    }
    let rate = Rate::new(symbols, edge);
    if let Some(words) = rate.in_words() {
        if let Some(text) = &words.differs {
            let help = "`bf16scope schedule` draws what is written here; `kind: piecewise` follows any other rate, change by change";
            notes.differs.push(Note::new(symbols.graph, Some(at), text.clone(), help));
        }
        return words;
    }
    let shown: Vec<String> = rate.constants.iter().take(12).map(|value| yaml_number(*value)).collect();
    let values: Vec<String> = [0.0, 1_000.0, 10_000.0, 100_000.0]
        .iter()
        .filter_map(|step| Some(format!("{} at step {step}", yaml_number(shortest(rate.at(*step)? as f32)))))
        .collect();
    let values = if values.is_empty() { String::new() } else { format!("; it is {}", values.join(", ")) };
    let text =
        format!("the learning rate is computed by {} nodes of the numbers {}{values}", rate.n_nodes, shown.join(", "));
    let help = "write its form under `learning_rate` (docs/EXPERIMENTS.md has exponential, cosine, linear, polynomial, piecewise, \
                inverse_sqrt, warm_up_step); `bf16scope schedule` draws it";
    notes.missing.push(Note::new(symbols.graph, Some(at), text, help));
    RateInWords::default()
}

/// The learning rate that a script keeps in a variable, and assigns between steps.
fn rate_of_variable(symbols: &Symbols<'_>, at: usize, notes: &mut Notes) -> RateInWords {
    let name = symbols.node(at).variable_name();
    let Some(value) = initial::number(symbols, &name) else {
        notes.missing.push(unknown_rate(symbols, at));
        return RateInWords::default();
    };
    let value = yaml_number(value);
    let text = format!(
        "the learning rate is the variable `{name}`, which begins at {value} and which the script may assign between steps; \
         here it stays"
    );
    let help =
        format!("`learning_rate: {{kind: piecewise, value: {value}, changes: [{{step: …, value: …}}]}}` changes it");
    notes.differs.push(Note::new(symbols.graph, Some(at), text, help));
    RateInWords { learning_rate: value, ..RateInWords::default() }
}

/// The remark on a rate in a variable whose value the graph does not have.
fn unknown_rate(symbols: &Symbols<'_>, at: usize) -> Note {
    let text = "the learning rate is this variable's value, which the graph does not have";
    let help = "write `learning_rate: …`; a graph of `python -m bf16scope.tf` has it";
    Note::new(symbols.graph, Some(at), text, help).in_step()
}

/// Weight decay: `L2Loss` of variables, times a number, in the loss. A term that no loss has decays nothing.
fn decay(
    symbols: &Symbols<'_>,
    network: &NetworkPort,
    loss: Option<usize>,
    places: &mut BTreeMap<&'static str, Place>,
) -> String {
    let nodes = &symbols.graph.body.nodes;
    let in_loss = region::in_loss(symbols.graph, loss);
    let terms = || (0..nodes.len()).filter(|idx| in_loss.contains(idx)).map(|idx| &nodes[idx]);
    let decayed: BTreeSet<String> = terms().filter_map(|node| symbols.decayed_variable(node)).collect();
    if decayed.is_empty() {
        return String::new();
    }
    let is_term = |idx: &usize| in_loss.contains(idx) && symbols.decayed_variable(&nodes[*idx]).is_some();
    if let Some(first) = (0..nodes.len()).find(is_term) {
        places.insert("weight_decay", Place::new(symbols.graph, first));
    }
    // The sums are multiplied by the number.
    let value = terms().find_map(|node| {
        let is_sum =
            |edge: &Edge| matches!(symbols.node(symbols.behind(*edge).node).op.as_str(), "AddN" | "L2Loss" | "AddV2");
        let is_product = node.op == "Mul" && !region::is_backward(&node.name) && node.inputs.iter().any(is_sum);
        let from_decay = || {
            region::ancestors(symbols.graph, node.inputs.iter().map(|edge| edge.node))
                .iter()
                .any(|idx| nodes[*idx].op == "L2Loss")
        };
        (is_product && from_decay()).then(|| symbols.scalar(node, 0).or_else(|| symbols.scalar(node, 1))).flatten()
    });
    let trained: BTreeSet<&str> = symbols
        .graph
        .variables
        .iter()
        .filter(|variable| variable.is_trainable)
        .map(|variable| variable.name.as_str())
        .collect();
    let spared: Vec<&str> = trained
        .iter()
        .copied()
        .filter(|name| !decayed.contains(*name) && network.variables.contains_key(*name))
        .collect();
    decay_in_words(value.unwrap_or(1.0), &spared, &decayed)
}

/// `{value: 0.0001, except: [batch_normalization]}`.
fn decay_in_words(value: f64, spared: &[&str], decayed: &BTreeSet<String>) -> String {
    let except = excepted(spared, decayed);
    let except = if except.is_empty() { String::new() } else { format!(", except: [{}]", except.join(", ")) };
    format!("{{value: {}{except}}}", yaml_number(value))
}

/// Parts of names that match spared variables and no decayed one; the remaining spared variables by their whole names.
fn excepted(spared: &[&str], decayed: &BTreeSet<String>) -> Vec<String> {
    const PARTS: [&str; 9] = [
        "batch_normalization",
        "batch_norm",
        "BatchNorm",
        "tpu_batch_norm",
        "/bn",
        "/gamma",
        "/beta",
        "/bias",
        "LayerNorm",
    ];
    let mut rest: Vec<&str> = spared.to_vec();
    let mut parts = Vec::new();
    for part in PARTS {
        let is_safe = !decayed.iter().any(|name| name.contains(part));
        if is_safe && rest.iter().any(|name| name.contains(part)) {
            rest.retain(|name| !name.contains(part));
            parts.push(part.to_string());
        }
    }
    parts.extend(rest.into_iter().map(str::to_string));
    parts
}

/// `tf.clip_by_global_norm` and `tf.clip_by_norm`, by the names of their nodes.
fn clip(symbols: &Symbols<'_>, notes: &mut Notes, places: &mut BTreeMap<&'static str, Place>) -> String {
    let nodes = &symbols.graph.body.nodes;
    for (part, kind) in [("clip_by_global_norm", "global_norm"), ("clip_by_norm", "norm"), ("clip_by_value", "value")] {
        let Some(at) = nodes.iter().position(|node| {
            let is_gradient = |edge: &Edge| updates::is_gradient(symbols.node(symbols.behind(*edge).node));
            let is_named = node.name.split('/').any(|name| name == part) && !region::is_backward(&node.name);
            is_named && node.inputs.iter().any(is_gradient)
        }) else {
            continue;
        };
        places.insert("clip", Place::new(symbols.graph, at));
        let prefix = nodes[at].name.split(part).next().unwrap_or_default().to_string() + part;
        let numbers = nodes
            .iter()
            .filter(|node| node.name.starts_with(&prefix))
            .filter_map(constant)
            .flat_map(|(_, values)| values);
        let numbers: BTreeMap<String, f64> = numbers
            .filter(|value| *value > 0.0 && value.is_finite())
            .map(|value| (yaml_number(value), value))
            .collect();
        let values: Vec<&String> = numbers.keys().filter(|text| text.as_str() != "1.0").collect();
        return match values[..] {
            [] => format!("{{kind: {kind}, value: 1.0}}"),
            [one] => format!("{{kind: {kind}, value: {one}}}"),
            _ => {
                let text = format!("gradients are clipped ({part}), and by which number is not plain");
                notes.missing.push(Note::new(
                    symbols.graph,
                    Some(at),
                    text,
                    format!("write `clip: {{kind: {kind}, value: …}}`"),
                ));
                String::new()
            }
        };
    }
    String::new()
}

/// `tf.train.ExponentialMovingAverage`, by the names of its variables.
fn average(symbols: &Symbols<'_>, notes: &mut Notes, places: &mut BTreeMap<&'static str, Place>) -> String {
    let nodes = &symbols.graph.body.nodes;
    let is_average = |node: &Node| node.variable_name().ends_with("/ExponentialMovingAverage");
    let update = nodes.iter().position(|node| {
        node.op.starts_with("AssignSub")
            && node.inputs.first().is_some_and(|edge| is_average(symbols.node(symbols.behind(*edge).node)))
    });
    let Some(update) = update else { return String::new() };
    places.insert("average", Place::new(symbols.graph, update));
    let product = nodes[update].inputs.get(1).map(|edge| symbols.node(symbols.behind(*edge).node));
    let rate = product.and_then(|product| (0..product.inputs.len()).find_map(|number| symbols.scalar(product, number)));
    match rate {
        Some(rate) => format!("{{decay: {}}}", yaml_number(shortest((1.0 - rate) as f32))),
        None => {
            // With num_updates the decay is the minimum of a constant and of (1 + n) / (10 + n).
            let before = region::ancestors(symbols.graph, nodes[update].inputs.get(1).map(|edge| edge.node));
            let limit = before
                .iter()
                .filter(|idx| nodes[**idx].op == "Minimum")
                .find_map(|idx| symbols.scalar(&nodes[*idx], 0).or_else(|| symbols.scalar(&nodes[*idx], 1)));
            match limit {
                Some(limit) => format!("{{decay: {}, num_updates: true}}", yaml_number(limit)),
                None => {
                    let text = "variables are averaged, and by which decay is not plain";
                    notes.missing.push(Note::new(symbols.graph, Some(update), text, "write `average: {decay: …}`"));
                    String::new()
                }
            }
        }
    }
}
