//! Recognises optimizers that are written with plain ops, as Keras' are since 2.11 and as loops by hand are.
//!
//! The update of a variable is computed for a few steps, from gradients that are made up, and beside each optimizer of ours with
//! the numbers that the graph has. An optimizer is accepted only if it changes the variable alike in every step.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::candidates::{self, Candidate};
use super::rate::Rate;
use super::symbols::{Symbols, VALUE, constant, is_variable, shortest};
use super::{numbers, region, updates};
use crate::choice;
use crate::node::{Edge, Node};

/// How many steps are computed.
const N_STEPS: u32 = 40;

/// Gradients that are made up: first some that are as small as an ε, then of all sizes up to 1 and of both signs.
fn gradient_at(step: u32) -> f64 {
    match step {
        0 => 2e-5,
        1 => -3e-4,
        2 => 4e-3,
        _ => {
            // The golden ratio spreads multiples over the unit interval.
            let drawn = (f64::from(step) * 0.618_033_988_75).fract();
            let size = 10f64.powf(-4.0 * (f64::from(step) * 0.754_877_666_2).fract());
            if drawn < 0.5 { -size } else { size }
        }
    }
}

/// So many of an update's numbers are tried, the smallest first: each with each, in each optimizer.
const MAX_CONSTANTS: usize = 16;

const FIRST_RATE: f64 = 0.01;
const OTHER_RATE: f64 = 0.037;
/// So many parts of an update are tried as its rate.
const MAX_RATES: usize = 4;
const FIRST_VALUE: f64 = 0.7;

/// The graph's numbers are f32, and ours decimals.
const ROUNDINGS: f64 = 1e-6;

/// The learning rate of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WrittenRate {
    /// A tensor computes it.
    Computed(Edge),
    Number(f64),
    /// A variable of this node, whose value the graph does not have.
    Variable(usize),
}

/// The variables that one optimizer updates, with the same numbers and the same rate.
pub(super) struct Written {
    pub candidate: Candidate,
    pub rate: WrittenRate,
    /// The number by which variables decay, if any do.
    pub decay: Option<f64>,
    pub decayed: BTreeSet<String>,
    pub spared: BTreeSet<String>,
    /// The first update.
    pub at: usize,
    /// Whether a rate that changes has another effect here.
    pub keeps_rate: bool,
}

/// The gradient of each variable that is trained, by its name.
type Gradients = Vec<(String, Edge)>;

/// All optimizers of a graph, and the gradients that they read; `None` if the update of one variable is not known.
pub(super) fn written(symbols: &Symbols<'_>) -> Option<(Vec<Written>, Gradients)> {
    let graph = symbols.graph;
    let step = Step::new(symbols);
    let (mut all, mut gradients) = (Vec::<Written>::new(), Gradients::new());
    for variable in graph.variables.iter().filter(|variable| variable.is_trainable) {
        let name = &variable.name;
        // A variable without a gradient is not trained.
        let Some(update) = step.update(name) else {
            match step.assigned.get(name).is_some_and(|all| all.iter().any(|at| step.reads_gradient(*at))) {
                true => return None,
                false => continue,
            }
        };
        gradients.push((name.clone(), update.gradient?));
        let forms = update.forms();
        let known = all.iter_mut().find_map(|written| {
            let decay = forms.iter().find_map(|form| form.decay_of(written))?;
            Some((written, decay))
        });
        let (written, decay) = match known {
            Some(known) => known,
            None => {
                let (update, (candidate, rate, decay)) =
                    forms.iter().find_map(|form| Some((form, form.candidate()?)))?;
                let keeps_rate = update.rate.is_some()
                    && !update.fits(candidate, decay, |step| FIRST_RATE / (1.0 + f64::from(step)));
                let (decayed, spared) = (BTreeSet::new(), BTreeSet::new());
                all.push(Written { candidate, rate, decay, decayed, spared, at: update.at, keeps_rate });
                (all.last_mut()?, decay)
            }
        };
        written.decay = written.decay.or(decay);
        if decay.is_some() { &mut written.decayed } else { &mut written.spared }.insert(name.clone());
    }
    (!all.is_empty()).then_some((all, gradients))
}

/// A training step: which nodes assign each variable.
struct Step<'s, 'g> {
    symbols: &'s Symbols<'g>,
    assigned: HashMap<String, Vec<usize>>,
    from_gradients: Vec<bool>,
}

/// The update of one variable.
#[derive(Clone)]
struct Update<'s, 'g> {
    symbols: &'s Symbols<'g>,
    name: String,
    /// Its nodes, in the order of the graph, in which a step runs them.
    nodes: BTreeSet<usize>,
    gradient: Option<Edge>,
    /// The variable of the rate, and the rate; `None` if the rate is a constant.
    rate_variable: Option<String>,
    rate: Option<WrittenRate>,
    /// The node of a rate that is written inside of the update.
    rate_node: Option<usize>,
    /// Values of variables before the first step.
    state: BTreeMap<String, f64>,
    /// The first assignment.
    at: usize,
}

fn is_assignment(op: &str) -> bool {
    op.starts_with("Assign") || matches!(op, "ResourceScatterAdd" | "ResourceScatterSub" | "ScatterAdd" | "ScatterSub")
}

/// The gradient that a tensor has, or has the rows of.
fn source(symbols: &Symbols<'_>, mut edge: Edge) -> Edge {
    for _ in 0..4 {
        edge = symbols.behind(edge);
        let node = symbols.node(edge.node);
        match node.inputs.first().filter(|_| node.op == "UnsortedSegmentSum") {
            Some(rows) => edge = *rows,
            None => break,
        }
    }
    edge
}

/// The number of the input that an assignment assigns.
fn assigned_input(op: &str) -> usize {
    if op.contains("Scatter") { 2 } else { 1 }
}

impl<'s, 'g> Step<'s, 'g> {
    fn new(symbols: &'s Symbols<'g>) -> Step<'s, 'g> {
        let graph = symbols.graph;
        let is_run = choice::nodes_of_step(graph);
        let mut assigned: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, node) in graph.body.nodes.iter().enumerate() {
            if is_assignment(&node.op)
                && is_run.as_ref().is_none_or(|is_run| is_run[at])
                && let Some(name) = node.inputs.first().and_then(|target| updates::variable(symbols, *target))
            {
                assigned.entry(name).or_default().push(at);
            }
        }
        Step { symbols, assigned, from_gradients: updates::from_gradients(graph) }
    }

    fn reads_gradient(&self, at: usize) -> bool {
        self.symbols.node(at).inputs.iter().skip(1).any(|edge| self.from_gradients[edge.node])
    }

    /// The update of a variable that a gradient changes, if all its ops are of numbers.
    fn update(&self, name: &str) -> Option<Update<'s, 'g>> {
        let first = *self.assigned.get(name)?.first()?;
        let mut update = Update {
            symbols: self.symbols,
            name: name.to_string(),
            nodes: BTreeSet::new(),
            gradient: None,
            rate_variable: None,
            rate: None,
            rate_node: None,
            state: BTreeMap::from([(name.to_string(), FIRST_VALUE)]),
            at: first,
        };
        let mut pending: Vec<usize> = self.assigned.get(name)?.clone();
        while let Some(at) = pending.pop() {
            let node = self.symbols.node(at);
            if update.nodes.contains(&at) {
                continue;
            }
            if is_variable(&node.op) {
                self.read_variable(node, at, &mut update, &mut pending)?;
                continue;
            }
            let numbers = match node.op.as_str() {
                op if is_assignment(op) => vec![0, assigned_input(op)],
                // Rows that a sparse gradient has; their indices are no numbers of the update.
                "ResourceGather" | "Gather" | "GatherV2" => vec![0],
                _ => (0..node.inputs.len()).collect(),
            };
            for number in numbers {
                let edge = *node.inputs.get(number)?;
                match self.ends_at(edge) {
                    false => pending.push(edge.node),
                    true if !self.from_gradients[edge.node] => return None,
                    true => {
                        let gradient = source(self.symbols, edge);
                        if update.gradient.is_some_and(|known| known != gradient) {
                            return None;
                        }
                        update.gradient = Some(gradient);
                    }
                }
            }
            update.nodes.insert(at);
        }
        update.gradient.is_some().then_some(update)
    }

    /// Whether a tensor is not computed of numbers: a gradient, one that is clipped, or another.
    fn ends_at(&self, edge: Edge) -> bool {
        let node = self.symbols.node(edge.node);
        // Ftrl clips a slot, which is no gradient.
        let is_clipped = || {
            self.from_gradients[edge.node]
                && node.name.contains("clip_by")
                && node.name.split('/').any(|part| part.starts_with("clip_by"))
        };
        let is_known = || is_variable(&node.op) || is_assignment(&node.op) || numbers::is_known(node);
        updates::is_gradient(node) || is_clipped() || !is_known()
    }

    /// Adds what a read of a variable means: a rate, a counter, or a slot with its own assignments.
    fn read_variable(
        &self,
        node: &Node,
        at: usize,
        update: &mut Update<'s, 'g>,
        pending: &mut Vec<usize>,
    ) -> Option<()> {
        let name = node.variable_name();
        if name == update.name || node.dtype("dtype")?.is_integer() {
            return Some(());
        }
        let assigned = self.assigned.get(&name).map_or(&[][..], Vec::as_slice);
        let reads_itself = |at: &usize| {
            let value = self.symbols.node(*at).inputs.get(1).map(|edge| edge.node);
            let before = region::ancestors(self.symbols.graph, value);
            before.iter().any(|idx| updates::is_read_of(&self.symbols.graph.body.nodes, *idx, &name))
        };
        let is_plain = |at: &usize| matches!(self.symbols.node(*at).op.as_str(), "Assign" | "AssignVariableOp");
        let is_rate = node.dims("shape")?.is_empty()
            && assigned.iter().all(|at| is_plain(at) && !self.reads_gradient(*at) && !reads_itself(at));
        if !is_rate {
            update.state.entry(name).or_insert_with(|| node.float(VALUE).map_or(0.0, f64::from));
            pending.extend(assigned);
            return Some(());
        }
        let rate = match (assigned, node.float(VALUE)) {
            ([one], _) => WrittenRate::Computed(*self.symbols.node(*one).inputs.get(1)?),
            ([], Some(value)) => WrittenRate::Number(shortest(value)),
            ([], None) => WrittenRate::Variable(at),
            _ => return None,
        };
        let is_other = update.rate_variable.as_ref().is_some_and(|known| *known != name);
        (update.rate_variable, update.rate) = (Some(name), Some(rate));
        (!is_other).then_some(())
    }
}

impl Update<'_, '_> {
    /// The update with each part that only the step's number changes as its rate, which has no variable; then as it is.
    fn forms(&self) -> Vec<Self> {
        let of_steps = if self.rate.is_none() { self.of_steps() } else { Vec::new() };
        let with_rate = of_steps.into_iter().take(MAX_RATES).map(|node| {
            let rate = Some(WrittenRate::Computed(Edge { node, output: 0 }));
            Update { rate_node: Some(node), rate, ..self.clone() }
        });
        with_rate.chain([self.clone()]).collect()
    }

    /// Its nodes that only the step's number changes and that another one reads, with an operand that something else changes.
    fn of_steps(&self) -> Vec<usize> {
        let is_counter = |at: usize| {
            let node = self.symbols.node(at);
            is_variable(&node.op) && node.dtype("dtype").is_some_and(|dtype| dtype.is_integer())
        };
        let (mut of_steps, mut read) = (BTreeSet::new(), BTreeSet::new());
        for at in self.nodes.iter().filter(|at| !is_assignment(&self.symbols.node(**at).op)) {
            let inputs = || self.symbols.node(*at).inputs.iter().map(|edge| edge.node);
            let is_step = |input: usize| is_counter(input) || of_steps.contains(&input);
            let is_constant = |input: usize| constant(self.symbols.node(input)).is_some();
            if inputs().any(is_step) && inputs().all(|input| is_step(input) || is_constant(input)) {
                of_steps.insert(*at);
            }
        }
        for at in self.nodes.iter().filter(|at| !of_steps.contains(*at)) {
            read.extend(self.symbols.node(*at).inputs.iter().map(|edge| edge.node));
        }
        of_steps.into_iter().filter(|at| read.contains(at)).collect()
    }

    /// The decay with which an optimizer that updates other variables updates this one, at the same rate.
    fn decay_of(&self, written: &Written) -> Option<Option<f64>> {
        // A constant rate is one of the update's numbers.
        let rate = match (self.rate, written.rate) {
            (None, WrittenRate::Number(number)) => number,
            (Some(rate), known) if self.is_same_rate(rate, known) => FIRST_RATE,
            _ => return None,
        };
        let decays = [written.decay, None].into_iter().chain(self.decays().map(Some));
        let mut decays = decays.filter(|one| written.decay.is_none() || one.is_none() || *one == written.decay);
        decays.find(|decay| self.fits(written.candidate, *decay, |_| rate))
    }

    /// Whether two rates are one, or computed alike: a loop over variables may write it once for each.
    fn is_same_rate(&self, rate: WrittenRate, known: WrittenRate) -> bool {
        const STEPS: [f64; 6] = [0.0, 1.0, 10.0, 333.0, 10_000.0, 1e6];
        let (WrittenRate::Computed(one), WrittenRate::Computed(other)) = (rate, known) else { return rate == known };
        let rates = [one, other].map(|edge| Rate::new(self.symbols, edge));
        let is_same = |step: &f64| rates[0].at(*step).is_some_and(|value| rates[1].at(*step) == Some(value));
        one == other || self.rate_node.is_some() && STEPS.iter().all(is_same)
    }

    /// Its constants that are above 0, in ascending order.
    fn constants(&self) -> impl Iterator<Item = f64> {
        let edges = self.nodes.iter().filter_map(|at| constant(self.symbols.node(*at)));
        let values: BTreeSet<u64> =
            edges.filter_map(|(_, values)| values.first().copied()).filter(|x| *x > 0.0).map(f64::to_bits).collect();
        values.into_iter().map(f64::from_bits).take(MAX_CONSTANTS)
    }

    fn decays(&self) -> impl Iterator<Item = f64> {
        self.constants().filter(|decay| *decay < 1.0)
    }

    /// The variable after each step, as the graph computes it.
    fn curve(&self, rate: impl Fn(u32) -> f64) -> Option<Vec<f64>> {
        let mut state = self.state.clone();
        let gradient = self.gradient?;
        let mut curve = Vec::new();
        for step in 0..N_STEPS {
            let value = gradient_at(step);
            let mut known: HashMap<usize, f64> = HashMap::new();
            for at in &self.nodes {
                let node = self.symbols.node(*at);
                if self.rate_node == Some(*at) {
                    known.insert(*at, rate(step));
                    continue;
                }
                let read_variable = |node: &Node| match node.dtype("dtype").is_some_and(|dtype| dtype.is_integer()) {
                    true => Some(f64::from(step)),
                    false if Some(node.variable_name()) == self.rate_variable => Some(rate(step)),
                    false => state.get(&node.variable_name()).copied(),
                };
                let mut read = |edge: Edge| {
                    let node = self.symbols.node(edge.node);
                    match known.get(&edge.node) {
                        Some(known) => Some(*known),
                        None if is_variable(&node.op) => read_variable(node),
                        None if source(self.symbols, edge) == gradient => Some(value),
                        None => None,
                    }
                };
                let result = match is_assignment(&node.op) {
                    false => numbers::result(node, 0, |value| value, &mut read)?,
                    true => {
                        let name = updates::variable(self.symbols, *node.inputs.first()?)?;
                        let new = read(*node.inputs.get(assigned_input(&node.op))?)?;
                        let old = state.get(&name).copied()?;
                        let new = match node.op.as_str() {
                            op if op.ends_with("Sub") || op.starts_with("AssignSub") => old - new,
                            op if op.ends_with("Add") || op.starts_with("AssignAdd") => old + new,
                            _ => new,
                        };
                        state.insert(name, new);
                        new
                    }
                };
                known.insert(*at, result);
            }
            curve.push(*state.get(&self.name)?);
        }
        Some(curve)
    }

    /// Whether the graph and an optimizer change the variable alike.
    fn fits(&self, candidate: Candidate, decay: Option<f64>, rate: impl Fn(u32) -> f64) -> bool {
        self.curve(&rate).is_some_and(|curve| is_like(&curve, candidate, decay, rate))
    }

    /// The first optimizer that changes the variable as the graph does, its rate and its decay.
    fn candidate(&self) -> Option<(Candidate, WrittenRate, Option<f64>)> {
        let curve = self.curve(|_| FIRST_RATE)?;
        let constants: Vec<f64> = self.constants().collect();
        let start = self.state.iter().filter(|(name, _)| **name != self.name).map(|(_, value)| *value);
        let all = candidates::candidates(&constants, start.fold(0.0, f64::max));
        let rates: Vec<(f64, WrittenRate)> = match self.rate {
            Some(rate) => vec![(FIRST_RATE, rate)],
            None => constants.iter().map(|rate| (*rate, WrittenRate::Number(*rate))).collect(),
        };
        for decay in [None].into_iter().chain(self.decays().map(Some)) {
            for (number, rate) in &rates {
                let mut like = all.iter().filter(|one| is_like(&curve, **one, decay, |_| *number));
                // A factor that is no rate may be alike at one number.
                let is_rate = |one: &&Candidate| self.rate_node.is_none() || self.fits(**one, decay, |_| OTHER_RATE);
                if let Some(one) = like.find(is_rate) {
                    return Some((*one, *rate, decay));
                }
            }
        }
        None
    }
}

/// Whether an optimizer takes the steps of a curve.
fn is_like(curve: &[f64], candidate: Candidate, decay: Option<f64>, rate: impl Fn(u32) -> f64) -> bool {
    let (mut slots, mut value) = (candidate.slots(), FIRST_VALUE);
    (0..N_STEPS).zip(curve).all(|(step, expected)| {
        let before = value;
        value -= rate(step) * decay.unwrap_or(0.0) * before;
        value -= candidate.step(&mut slots, value, gradient_at(step), rate(step), step);
        let is_near = (value - expected).abs() <= ROUNDINGS * (expected - before).abs() + 1e-15;
        is_near && value.is_finite()
    })
}
