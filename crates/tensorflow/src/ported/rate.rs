//! Recognises a graph's learning-rate schedule: the graph's nodes are evaluated at many steps, and a form is accepted only if it
//! gives the same rate at every step that is tried.

mod ends;
mod pieces;

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};

use super::symbols::{Symbols, constant, is_variable, shortest, yaml_number};
use super::{numbers, region};
use crate::graph::{Body, Graph};
use crate::node::{Edge, Node};

/// A rate in YAML: `learning_rate`, `warm_up` and `learning_rate_floor`; the last two may be empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RateInWords {
    pub learning_rate: String,
    pub warm_up: String,
    pub floor: String,
    /// How the form differs from the graph's rate.
    pub differs: Option<String>,
}

/// The rate that an edge of the graph computes.
pub(super) struct Rate<'s, 'g> {
    symbols: &'s Symbols<'g>,
    end: Edge,
    /// The values of its constants, ascending.
    pub constants: Vec<f64>,
    /// The number of nodes that compute it.
    pub n_nodes: usize,
    /// Whether one of them is a cosine: a line of two steps is one too.
    has_cosine: bool,
}

/// A step at which a rate is computed, and how many branches were taken for it: functions may call each other without end.
struct Moment {
    step: f64,
    n_branches: Cell<usize>,
}

/// The nodes of a rate, with those of the branches that its conditions may take.
fn with_branches<'g>(graph: &'g Graph, nodes: Vec<&'g Node>) -> Vec<&'g Node> {
    let (mut nodes, mut seen, mut at) = (nodes, BTreeSet::new(), 0);
    while let Some(node) = nodes.get(at).copied() {
        at += 1;
        let branches = ["then_branch", "else_branch"].into_iter().filter_map(|branch| node.function(branch));
        for name in branches {
            if seen.insert(name)
                && let Some(function) = graph.functions.get(name)
            {
                nodes.extend(&function.body.nodes);
            }
        }
    }
    nodes
}

/// A rate of more nodes than this is not a schedule.
const MAX_NODES: usize = 300;

/// All steps up to this one are tried.
const FIRST_STEPS: u64 = 32;

/// The largest step that is tried.
const LAST_STEP: f64 = 1e8;

/// The last step that is always tried.
const LAST_TRIED: f64 = 1e6;

impl<'s, 'g> Rate<'s, 'g> {
    pub(super) fn new(symbols: &'s Symbols<'g>, end: Edge) -> Rate<'s, 'g> {
        let ancestors = region::ancestors(symbols.graph, [end.node]).into_iter().map(|idx| symbols.node(idx));
        let nodes = with_branches(symbols.graph, ancestors.collect());
        let mut constants: Vec<f64> =
            nodes.iter().filter_map(|node| constant(node)).flat_map(|(_, values)| values).collect();
        constants.sort_by(f64::total_cmp);
        constants.dedup();
        // A branch's arguments compute nothing.
        let n_nodes = nodes.iter().filter(|node| node.op != "_Arg").count();
        let has_cosine = nodes.iter().any(|node| node.op == "Cos");
        Rate { symbols, end, constants, n_nodes, has_cosine }
    }

    /// The rate at a step; `None` if a node is of an op that schedules do not use.
    pub(super) fn at(&self, step: f64) -> Option<f64> {
        let body = &self.symbols.graph.body;
        let mut known: HashMap<Edge, Option<f64>> = HashMap::new();
        let at = Moment { step, n_branches: Cell::new(0) };
        (self.n_nodes <= MAX_NODES).then(|| self.value(body, self.end, &at, &mut known, 0)).flatten()
    }

    /// The number at an edge of the graph or of a branch. It is `None` in a branch that is not taken.
    fn value(
        &self,
        body: &Body,
        edge: Edge,
        at: &Moment,
        known: &mut HashMap<Edge, Option<f64>>,
        depth: usize,
    ) -> Option<f64> {
        const MAX_DEPTH: usize = 300;
        if let Some(value) = known.get(&edge) {
            return *value;
        }
        if depth > MAX_DEPTH {
            return None;
        }
        let node = &body.nodes[edge.node];
        let mut read = |edge| self.value(body, edge, at, known, depth + 1);
        let value = match node.op.as_str() {
            "If" | "StatelessIf" => self.branch_value(node, edge.output, at, &mut read, depth + 1),
            _ if is_variable(&node.op) => {
                let is_whole = node.dtype("dtype").is_some_and(|dtype| dtype.is_integer());
                let is_step = is_whole && node.dims("shape").is_some_and(|dims| dims.is_empty());
                is_step.then_some(at.step)
            }
            // Rates are f32, so every result is rounded to f32.
            _ => numbers::result(node, edge.output, |value| f64::from(value as f32), &mut read),
        };
        known.insert(edge, value);
        value
    }

    /// The result of the branch that a condition of control flow v2 takes.
    fn branch_value(
        &self,
        node: &Node,
        output: usize,
        at: &Moment,
        read: &mut dyn FnMut(Edge) -> Option<f64>,
        depth: usize,
    ) -> Option<f64> {
        at.n_branches.set(at.n_branches.get() + 1);
        if at.n_branches.get() > MAX_NODES {
            return None;
        }
        let (condition, arguments) = node.inputs.split_first()?;
        let taken = if read(*condition)? != 0.0 { "then_branch" } else { "else_branch" };
        let branch = self.symbols.graph.functions.get(node.function(taken)?)?;
        // An argument that is no number matters only where the branch reads it.
        let argument = |(node, edge): (usize, &Edge)| (Edge { node, output: 0 }, read(*edge));
        let mut known: HashMap<Edge, Option<f64>> = arguments.iter().enumerate().map(argument).collect();
        self.value(&branch.body, *branch.returns.get(output)?, at, &mut known, depth)
    }

    /// Steps at which the rate may change: around its constants, and around products and quotients of two of them.
    fn steps_of_interest(&self) -> Vec<f64> {
        let mut steps: BTreeSet<u64> = (0..=FIRST_STEPS).collect();
        steps.extend([100, 1_000, 10_000, 100_000, LAST_TRIED as u64]);
        let mut add = |at: f64| {
            if (0.0..LAST_STEP).contains(&at) {
                let at = at.floor() as u64;
                steps.extend(at.saturating_sub(2)..=at + 2);
            }
        };
        let numbers: Vec<f64> = self.constants.iter().copied().filter(|x| *x > 0.0).take(24).collect();
        for &a in &numbers {
            add(a);
            for &b in &numbers {
                add(a * b);
                add(a / b);
            }
        }
        steps.into_iter().map(|step| step as f64).collect()
    }

    /// The schedule in YAML, if one of our forms gives the same rates. Pieces fit every schedule of a few steps, so they come
    /// last, unless the graph has pieces itself.
    pub(super) fn in_words(&self) -> Option<RateInWords> {
        let steps = self.steps_of_interest();
        let curve: Vec<(f64, f64)> = steps.iter().map(|step| Some((*step, self.at(*step)?))).collect::<Option<_>>()?;
        let pieces = || Some(Schedule::plain(piecewise(&curve)?).words());
        let first = if pieces::is_of_pieces(self.symbols.graph, self.end) { pieces() } else { None };
        first
            .or_else(|| Some(self.form(&curve).or_else(|| self.with_warm_up(&curve))?.words()))
            .or_else(|| self.with_floor(&curve))
            .or_else(|| self.until_it_rises(&curve))
            .or_else(pieces)
    }

    /// A form without a warm-up, and not of pieces.
    fn form(&self, curve: &[(f64, f64)]) -> Option<Schedule> {
        let fits = |form: &Form| form.n_changes() == 0 && apart(curve, |step| form.at(step)) <= ROUNDINGS;
        self.candidates(curve).into_iter().find(fits).map(Schedule::plain)
    }

    /// A form after a linear warm-up from 0 or from another rate.
    fn with_warm_up(&self, curve: &[(f64, f64)]) -> Option<Schedule> {
        // The steps at which the warm-up may end are tried too.
        let meetings = Line::along(curve)?.meetings(curve);
        let rates = meetings.iter().filter_map(|step| Some((*step, self.at(*step)?)));
        let mut curve: Vec<(f64, f64)> = curve.iter().copied().chain(rates).collect();
        curve.sort_by(|a, b| a.0.total_cmp(&b.0));
        curve.dedup_by_key(|(step, _)| *step);
        if let Some(schedule) = self.warmed_up(&curve, &meetings) {
            return Some(schedule);
        }
        // A warm-up by (step + 1) / n has its last rate a step before the schedule: here the schedule's is taken there.
        let (step, rate) = curve.remove(Line::along(&curve)?.n_steps - 1);
        let mut schedule = self.warmed_up(&curve, &[step])?;
        let is_of_schedule = schedule.warm_up.is_some_and(|warm_up| warm_up.steps == step);
        schedule.jumps = Some((step, rate));
        is_of_schedule.then_some(schedule)
    }

    /// A form after the line with which a curve begins. It may end at one of the steps `meetings`.
    fn warmed_up(&self, curve: &[(f64, f64)], meetings: &[f64]) -> Option<Schedule> {
        let Line { start, n_steps, .. } = Line::along(curve)?;
        let (before, after) = (curve.get(n_steps - 1)?.0, curve.get(n_steps)?.0);
        // It ends at a number from the graph's constants, or between two tried steps.
        let numbers = self.constants.iter().copied().flat_map(|a| self.constants.iter().map(move |b| a * b).chain([a]));
        let numbers = numbers.flat_map(|n| [n.round(), n.ceil()]).filter(|n| (before..=after + 1.0).contains(n));
        let mut ends: Vec<f64> =
            numbers.chain(meetings.iter().copied()).chain([after, before]).filter(|n| *n >= 1.0).collect();
        ends.sort_by(f64::total_cmp);
        ends.dedup();
        let mut best: Option<((usize, f64), Schedule)> = None;
        for steps in ends {
            for overlap in [true, false] {
                let shift = if overlap { 0.0 } else { steps };
                let rest = curve.iter().filter(|(step, _)| *step >= steps);
                let moved: Vec<(f64, f64)> = rest.map(|(step, rate)| (step - shift, *rate)).collect();
                for form in self.candidates(&moved) {
                    let warm_up = Some(WarmUp { steps, start, overlap });
                    let mut schedule = Schedule { form, warm_up, apart: 0.0, jumps: None };
                    schedule.apart = apart(curve, |step| schedule.at(step));
                    // A length that is not a whole number of steps is rounded here.
                    let cost = (schedule.form.n_changes(), schedule.apart);
                    if schedule.apart <= ROUNDED_LENGTH && best.as_ref().is_none_or(|(least, _)| cost < *least) {
                        best = Some((cost, schedule));
                    }
                }
            }
        }
        best.map(|(_, schedule)| schedule)
    }

    /// Forms with numbers from the graph's constants or from the curve that are near the curve at a few steps.
    fn candidates(&self, curve: &[(f64, f64)]) -> Vec<Form> {
        let mut forms = Vec::new();
        let Some((&(begin, first), &(end, last))) = curve.first().zip(curve.last()) else { return forms };
        let numbers: Vec<f64> = self.constants.iter().copied().filter(|x| *x > 0.0).take(24).collect();
        if curve.iter().all(|(_, rate)| *rate == first) {
            return vec![Form::Constant(short(first))];
        }
        // If a warm-up hides the rate at step 0, that rate is one of the graph's constants.
        let mut values = if begin == 0.0 { vec![short(first)] } else { numbers.clone() };
        // A falling rate starts no lower than any rate on the curve.
        let most = curve.iter().fold(0.0f64, |most, (_, rate)| most.max(*rate));
        values.retain(|value| *value > 0.0 && *value >= most * 0.99);
        let mut lengths: Vec<u64> = numbers
            .iter()
            .flat_map(|a| [*a].into_iter().chain(numbers.iter().map(move |b| a * b)))
            .map(f64::round)
            .filter(|n| (2.0..f64::from(u32::MAX)).contains(n))
            .map(|n| n as u64)
            .collect();
        lengths.sort_unstable();
        lengths.dedup();
        let tried: Vec<(f64, f64)> =
            [0, curve.len() / 3, curve.len() / 2, curve.len() - 1].iter().map(|n| curve[*n]).collect();
        let mut consider = |form: Form| {
            if apart(&tried, |step| form.at(step)) <= ROUNDED_LENGTH {
                forms.push(form);
            }
        };
        for form in self.inverse_roots(curve) {
            consider(form);
        }
        // A curve that a floor cuts off may be falling to 0.
        let lasts = if end < LAST_TRIED { vec![short(last), 0.0] } else { vec![short(last)] };
        for &value in &values {
            for &steps in &lengths {
                let steps = steps as f64;
                for &last in &lasts {
                    if self.has_cosine && (0.0..=1.0).contains(&(last / value)) {
                        consider(Form::Cosine { value, steps, alpha: short(last / value) });
                    }
                    let powers = numbers.iter().copied().filter(|power| *power < 10.0);
                    for power in [1.0, 2.0, 0.5].into_iter().chain(powers) {
                        consider(Form::Polynomial { value, steps, end: last, power });
                    }
                }
                for number in numbers.iter().copied() {
                    // e^-number is TensorFlow's `natural_exp_decay`.
                    for rate in [number, (-number).exp()].into_iter().filter(|rate| *rate < 1.0) {
                        consider(Form::Exponential { value, steps, rate, is_stepped: false });
                        consider(Form::Exponential { value, steps, rate, is_stepped: true });
                    }
                }
            }
        }
        forms.extend(piecewise(curve));
        forms
    }

    /// Inverse square roots of the step, constant for the first steps: the last rate determines the value, the first rate the
    /// number of constant steps.
    fn inverse_roots(&self, curve: &[(f64, f64)]) -> Vec<Form> {
        let Some((&(begin, first), &(end, last))) = curve.first().zip(curve.last()) else { return Vec::new() };
        // 1/√(step + k) falls from the first step on.
        let k = (last * last * end - first * first * begin) / (first * first - last * last);
        let shifts = [0.0, 1.0].into_iter().chain((begin == 0.0).then(|| k.round()).filter(|k| *k > 1.0));
        let forms = shifts.filter_map(|first_step| {
            let value = self.number_near(last * (end + first_step).sqrt());
            let constant_until = (value / first).powi(2).round();
            let is_length = (1.0..f64::from(u32::MAX)).contains(&constant_until);
            is_length.then_some(Form::InverseSqrt { value, constant_until, first_step })
        });
        forms.collect()
    }

    /// The graph's constant, or product of two constants, that equals a number up to roundings; else the number.
    fn number_near(&self, value: f64) -> f64 {
        let numbers = || self.constants.iter().copied().filter(|x| *x > 0.0).take(24);
        let products = numbers().flat_map(|a| numbers().map(move |b| a * b));
        let named = numbers().chain(products).find(|number| is_near(*number, value));
        named.map_or(short(value), |number| shortest(number as f32))
    }
}

/// A piecewise constant rate with a few changes.
fn piecewise(curve: &[(f64, f64)]) -> Option<Form> {
    const MAX_CHANGES: usize = 12;
    let mut changes: Vec<(f64, f64)> = Vec::new();
    for pair in curve.windows(2) {
        if pair[1].1 != pair[0].1 {
            // The step of a change is known only between neighbouring steps.
            if pair[1].0 - pair[0].0 != 1.0 {
                return None;
            }
            changes.push((pair[1].0, short(pair[1].1)));
        }
    }
    let value = short(curve.first()?.1);
    (!changes.is_empty() && changes.len() <= MAX_CHANGES).then_some(Form::Piecewise { value, changes })
}

/// The decimal that a rate was written as.
fn short(value: f64) -> f64 {
    let decimal = shortest(value as f32);
    // 0.04 times 0.1 in f32 is 0.0040000002: the decimal of six digits was meant.
    let six: f64 = format!("{decimal:.5e}").parse().unwrap_or(decimal);
    if is_near(six, decimal) { six } else { decimal }
}

/// A bound relative to the rate: a power in f32 differs from one in f64 by some roundings (2^-24 each) of its exponent's
/// logarithm.
const ROUNDINGS: f64 = 2e-5;

/// The same bound if a length in steps is rounded: half a step of a warm-up of 100 steps or more.
const ROUNDED_LENGTH: f64 = 5e-3;

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 2e-6 * a.abs().max(b.abs())
}

/// The largest distance of a form from a curve, relative to the rate.
fn apart(curve: &[(f64, f64)], form: impl Fn(f64) -> f64) -> f64 {
    let most = curve.iter().fold(0.0f64, |most, (_, rate)| most.max(rate.abs()));
    let share = |(step, rate): &(f64, f64)| {
        // Where a cosine or a difference cancels, the rate is only known up to a rounding of the largest rate.
        let apart = ((form(*step) - rate).abs() - 2e-7 * most).max(0.0);
        if apart == 0.0 { 0.0 } else { apart / rate.abs().max(1e-30) }
    };
    let most = curve.iter().map(|at| if form(at.0).is_finite() { share(at) } else { f64::INFINITY });
    most.fold(0.0, f64::max)
}

/// The straight line with which a curve begins.
struct Line {
    start: f64,
    slope: f64,
    /// How many of the curve's steps are on it.
    n_steps: usize,
}

impl Line {
    fn along(curve: &[(f64, f64)]) -> Option<Line> {
        let (&(origin, first), &(step, second)) = (curve.first()?, curve.get(1)?);
        let mut slope = (second - first) / (step - origin);
        if slope <= 0.0 {
            return None;
        }
        let (mut n_steps, mut before) = (2, step);
        for &(step, rate) in &curve[2..] {
            // Up to roundings of this rate and of the rate that determined the slope.
            let bound =
                1e-5 * rate.abs().max(slope) + rate.abs() * 2f64.powi(-22) * (step - origin) / (before - origin);
            if (first + slope * (step - origin) - rate).abs() > bound {
                break;
            }
            slope = (rate - first) / (step - origin);
            (n_steps, before) = (n_steps + 1, step);
        }
        let start = first - slope * origin;
        // Extrapolating a line that starts at 0 leaves a rounding error.
        let start = if origin > 0.0 && start.abs() <= 1e-5 * first { 0.0 } else { start };
        Some(Line { start, slope, n_steps })
    }

    /// Steps after the line at which it would meet the inverse square root that fits the end of the curve.
    fn meetings(&self, curve: &[(f64, f64)]) -> Vec<f64> {
        let ends = (curve.last(), curve.get(self.n_steps - 1), curve.get(self.n_steps));
        let (Some(&(end, last)), Some(&(from, _)), Some(&(to, _))) = ends else { return Vec::new() };
        let meeting = |first_step: f64| {
            let value = last * (end + first_step).sqrt();
            let is_below = |step: f64| self.start + self.slope * step < value / (step + first_step).sqrt();
            if !is_below(from) || is_below(to) {
                return Vec::new();
            }
            let (mut low, mut high) = (from, to);
            while high - low > 1e-3 {
                let middle = (low + high) / 2.0;
                if is_below(middle) { low = middle } else { high = middle }
            }
            vec![low.floor(), low.round(), low.ceil()]
        };
        [0.0, 1.0].into_iter().flat_map(meeting).collect()
    }
}

/// A warm-up as in `train: warm_up`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WarmUp {
    steps: f64,
    start: f64,
    overlap: bool,
}

/// A form, the warm-up before it, and their distance from the graph's rates.
struct Schedule {
    form: Form,
    warm_up: Option<WarmUp>,
    apart: f64,
    /// A step at which the graph has another rate, and that rate.
    jumps: Option<(f64, f64)>,
}

impl Schedule {
    /// A form from the first step on.
    fn plain(form: Form) -> Schedule {
        Schedule { form, warm_up: None, apart: 0.0, jumps: None }
    }

    fn at(&self, step: f64) -> f64 {
        match self.warm_up {
            Some(WarmUp { steps, start, .. }) if step < steps => start + (self.form.at(0.0) - start) * step / steps,
            Some(WarmUp { steps, overlap: false, .. }) => self.form.at(step - steps),
            Some(WarmUp { overlap: true, .. }) | None => self.form.at(step),
        }
    }

    fn words(&self) -> RateInWords {
        let warm_up = |WarmUp { steps, start, overlap }: WarmUp| {
            let start = short(start);
            let start = if start == 0.0 { String::new() } else { format!(", start: {}", yaml_number(start)) };
            format!("{{steps: {steps}{start}{}}}", if overlap { ", overlap: true" } else { "" })
        };
        let differs = self.warm_up.filter(|_| self.apart > ROUNDINGS).map(|WarmUp { steps, .. }| {
            format!(
                "the warm-up is not of a whole number of steps there, and of {steps} here: rates are up to {:.4} % apart",
                self.apart * 100.0
            )
        });
        let jumps = self.jumps.map(|(step, rate)| {
            let (theirs, ours) = (yaml_number(short(rate)), yaml_number(short(self.at(step))));
            format!("the warm-up's last rate, at step {step}, is {theirs} there; here it is the schedule's, {ours}")
        });
        let differs = differs.or(jumps);
        let learning_rate = self.form.text();
        let warm_up = self.warm_up.map(warm_up).unwrap_or_default();
        RateInWords { learning_rate, warm_up, differs, floor: String::new() }
    }
}

/// A schedule as in `train: learning_rate`.
#[derive(Clone, Debug, PartialEq)]
enum Form {
    Constant(f64),
    Exponential { value: f64, steps: f64, rate: f64, is_stepped: bool },
    Cosine { value: f64, steps: f64, alpha: f64 },
    Polynomial { value: f64, steps: f64, end: f64, power: f64 },
    Piecewise { value: f64, changes: Vec<(f64, f64)> },
    InverseSqrt { value: f64, constant_until: f64, first_step: f64 },
}

impl Form {
    fn n_changes(&self) -> usize {
        match self {
            Form::Piecewise { changes, .. } => changes.len(),
            _ => 0,
        }
    }

    fn at(&self, step: f64) -> f64 {
        match self {
            Form::Constant(value) => *value,
            Form::Exponential { value, steps, rate, is_stepped } => {
                let exponent = step / steps;
                value * rate.powf(if *is_stepped { exponent.floor() } else { exponent })
            }
            Form::Cosine { value, steps, alpha } => {
                let passed = step.min(*steps) / steps;
                value * ((1.0 - alpha) * 0.5 * (1.0 + (std::f64::consts::PI * passed).cos()) + alpha)
            }
            Form::Polynomial { value, steps, end, power } => {
                (value - end) * (1.0 - step.min(*steps) / steps).powf(*power) + end
            }
            Form::Piecewise { value, changes } => {
                changes.iter().rev().find(|(at, _)| step >= *at).map_or(*value, |(_, value)| *value)
            }
            Form::InverseSqrt { value, constant_until, first_step } => {
                value / (step + first_step).max(*constant_until).sqrt()
            }
        }
    }

    fn text(&self) -> String {
        let number = yaml_number;
        match self {
            Form::Constant(value) => number(*value),
            Form::Exponential { value, steps, rate, is_stepped } => {
                let stepped = if *is_stepped { ", staircase: true" } else { "" };
                format!(
                    "{{kind: exponential, value: {}, decay_steps: {steps}, decay_rate: {}{stepped}}}",
                    number(*value),
                    number(*rate)
                )
            }
            Form::Cosine { value, steps, alpha } => {
                let alpha = if *alpha == 0.0 { String::new() } else { format!(", alpha: {}", number(*alpha)) };
                format!("{{kind: cosine, value: {}, decay_steps: {steps}{alpha}}}", number(*value))
            }
            Form::Polynomial { value, steps, end, power } => {
                let end = if *end == 0.0 { String::new() } else { format!(", end_value: {}", number(*end)) };
                match *power {
                    1.0 => format!("{{kind: linear, value: {}, decay_steps: {steps}{end}}}", number(*value)),
                    power => {
                        format!(
                            "{{kind: polynomial, value: {}, decay_steps: {steps}, power: {}{end}}}",
                            number(*value),
                            number(power)
                        )
                    }
                }
            }
            Form::Piecewise { value, changes } => {
                let changes =
                    changes.iter().map(|(step, value)| format!("{{step: {step}, value: {}}}", number(*value)));
                format!(
                    "{{kind: piecewise, value: {}, changes: [{}]}}",
                    number(*value),
                    changes.collect::<Vec<_>>().join(", ")
                )
            }
            Form::InverseSqrt { value, constant_until, first_step } => {
                let shift = if *first_step == 0.0 { String::new() } else { format!(", first_step: {first_step}") };
                format!("{{kind: inverse_sqrt, value: {}, constant_until: {constant_until}{shift}}}", number(*value))
            }
        }
    }
}
