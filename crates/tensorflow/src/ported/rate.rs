//! A graph's learning rate as a function of the step: its nodes are computed at any step, and a form is only said where it gives
//! what they give at every step that is tried.

use std::collections::{BTreeSet, HashMap};

use super::region;
use super::symbols::{Symbols, constant, shortest, yaml_number};
use crate::node::{Edge, Node};

/// A rate in YAML: `learning_rate`, and `warm_up` or nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RateInWords {
    pub learning_rate: String,
    pub warm_up: String,
    /// The remainder that the form omits.
    pub differs: Option<String>,
}

/// The numbers that a rate is made of, and where it is read from.
pub(super) struct Rate<'s, 'g> {
    symbols: &'s Symbols<'g>,
    end: Edge,
    /// The numbers of its constants, ascending.
    pub constants: Vec<f64>,
    /// How many nodes compute it.
    pub n_nodes: usize,
}

/// A rate of more nodes than this is not a schedule.
const MAX_NODES: usize = 300;

/// Beyond this no step is tried.
const LAST_STEP: f64 = 1e8;

impl<'s, 'g> Rate<'s, 'g> {
    pub(super) fn new(symbols: &'s Symbols<'g>, end: Edge) -> Rate<'s, 'g> {
        let nodes = region::ancestors(symbols.graph, [end.node]);
        let mut constants: Vec<f64> =
            nodes.iter().filter_map(|idx| constant(symbols.node(*idx))).flat_map(|(_, values)| values).collect();
        constants.sort_by(f64::total_cmp);
        constants.dedup();
        Rate { symbols, end, constants, n_nodes: nodes.len() }
    }

    /// The rate at a step; `None` where a node is not one of a schedule's.
    pub(super) fn at(&self, step: f64) -> Option<f64> {
        let mut known: HashMap<Edge, Option<f64>> = HashMap::new();
        (self.n_nodes <= MAX_NODES).then(|| self.value(self.end, step, &mut known, 0)).flatten()
    }

    /// The number that an edge has. Of a branch that is not taken the number is `None`, and so is all that reads only it.
    fn value(&self, edge: Edge, step: f64, known: &mut HashMap<Edge, Option<f64>>, depth: usize) -> Option<f64> {
        const MAX_DEPTH: usize = 300;
        if let Some(value) = known.get(&edge) {
            return *value;
        }
        if depth > MAX_DEPTH {
            return None;
        }
        let node = self.symbols.node(edge.node);
        let value = self.of_node(node, edge.output, step, &mut |edge| self.value(edge, step, known, depth + 1));
        known.insert(edge, value);
        value
    }

    fn of_node(&self, node: &Node, output: usize, step: f64, read: &mut dyn FnMut(Edge) -> Option<f64>) -> Option<f64> {
        let mut input = |number: usize| node.inputs.get(number).and_then(|edge| read(*edge));
        let truth = |is: bool| Some(f64::from(u8::from(is)));
        // Rates are f32: so are its products and quotients.
        let is_whole = node.dtype("T").is_some_and(|dtype| dtype.is_integer());
        let rounded = |value: f64| if is_whole { value } else { f64::from(value as f32) };
        Some(match node.op.as_str() {
            "Const" => match constant(node)?.1[..] {
                [one] => one,
                _ => return None,
            },
            "VarHandleOp" | "VariableV2" | "Variable" => {
                let is_step =
                    node.dtype("dtype").is_some_and(|dtype| dtype.is_integer()) && node.dims("shape")?.is_empty();
                return is_step.then_some(step);
            }
            "Identity" | "ReadVariableOp" | "StopGradient" | "Reshape" | "Squeeze" | "ExpandDims" | "EnsureShape" => {
                input(0)?
            }
            "Cast" => match node.dtype("DstT")?.is_integer() {
                true => input(0)?.trunc(),
                false => input(0)?,
            },
            "Add" | "AddV2" => rounded(input(0)? + input(1)?),
            "Sub" => rounded(input(0)? - input(1)?),
            "Mul" => rounded(input(0)? * input(1)?),
            "RealDiv" | "Div" if !is_whole => rounded(input(0)? / input(1)?),
            "Div" | "FloorDiv" => (input(0)? / input(1)?).floor(),
            "FloorMod" => input(0)?.rem_euclid(input(1)?),
            "Pow" => rounded(input(0)?.powf(input(1)?)),
            "Square" => rounded(input(0)?.powi(2)),
            "Sqrt" => rounded(input(0)?.sqrt()),
            "Rsqrt" => rounded(1.0 / input(0)?.sqrt()),
            "Exp" => rounded(input(0)?.exp()),
            "Log" => rounded(input(0)?.ln()),
            "Cos" => rounded(input(0)?.cos()),
            "Neg" => -input(0)?,
            "Reciprocal" | "Inv" => rounded(1.0 / input(0)?),
            "Floor" => input(0)?.floor(),
            "Ceil" => input(0)?.ceil(),
            "Minimum" => input(0)?.min(input(1)?),
            "Maximum" => input(0)?.max(input(1)?),
            "Less" => return truth(input(0)? < input(1)?),
            "LessEqual" => return truth(input(0)? <= input(1)?),
            "Greater" => return truth(input(0)? > input(1)?),
            "GreaterEqual" => return truth(input(0)? >= input(1)?),
            "Equal" => return truth(input(0)? == input(1)?),
            "LogicalAnd" => return truth(input(0)? != 0.0 && input(1)? != 0.0),
            "LogicalOr" => return truth(input(0)? != 0.0 || input(1)? != 0.0),
            "LogicalNot" => return truth(input(0)? == 0.0),
            "Select" | "SelectV2" | "Where" => match input(0)? {
                0.0 => input(2)?,
                _ => input(1)?,
            },
            // The output that is not taken has no number.
            "Switch" => {
                let is_taken = (input(1)? != 0.0) == (output == 1);
                return if is_taken { input(0) } else { None };
            }
            "Merge" => return (0..node.inputs.len()).find_map(input),
            _ => return None,
        })
    }

    /// The steps at which something may happen: what its constants name, alone or by each other.
    fn steps_of_interest(&self) -> Vec<f64> {
        let mut steps = BTreeSet::from([0u64, 1, 2, 3, 10, 100, 1_000, 10_000, 100_000, 1_000_000]);
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

    /// Its form in words, if one of ours gives what it gives.
    pub(super) fn in_words(&self) -> Option<RateInWords> {
        let steps = self.steps_of_interest();
        let curve: Vec<(f64, f64)> = steps.iter().map(|step| Some((*step, self.at(*step)?))).collect::<Option<_>>()?;
        self.form(&curve).or_else(|| self.with_warm_up(&curve)).or_else(|| self.with_floor(&curve))
    }

    /// A form that has no warm-up.
    fn form(&self, curve: &[(f64, f64)]) -> Option<RateInWords> {
        let form = self.candidates(curve).into_iter().find(|form| apart(curve, |step| form.at(step)) <= ROUNDINGS)?;
        Some(RateInWords { learning_rate: form.text(), ..RateInWords::default() })
    }

    /// A form whose values do not fall below a number, which has no word.
    fn with_floor(&self, curve: &[(f64, f64)]) -> Option<RateInWords> {
        let last = curve.last()?.1;
        let until = curve.iter().position(|(_, rate)| *rate == last)?;
        if last <= 0.0 || until < 8 {
            return None;
        }
        let (head, step) = (&curve[..until], curve[until].0);
        let mut words = self.form(head).or_else(|| self.with_warm_up(head))?;
        let last = yaml_number(short(last));
        words.differs = Some(format!("the rate stays at {last} from about step {step}; here it goes on falling"));
        Some(words)
    }

    /// A straight line from 0, or from a number, to where a form starts.
    fn with_warm_up(&self, curve: &[(f64, f64)]) -> Option<RateInWords> {
        let (start, first) = (curve.first()?.1, curve.get(1)?.1);
        let slope = first - start;
        if slope <= 0.0 {
            return None;
        }
        // How far the line goes.
        let is_on_line =
            |(step, rate): &(f64, f64)| (start + slope * step - rate).abs() <= 1e-5 * rate.abs().max(slope);
        let end = curve.iter().position(|at| !is_on_line(at))?;
        let (before, after) = (curve[end - 1].0, curve[end].0);
        // It ends at a number of the graph's, or between two that were tried.
        let numbers = self.constants.iter().copied().flat_map(|a| self.constants.iter().map(move |b| a * b).chain([a]));
        let whole = numbers.flat_map(|n| [n.round(), n.ceil()]).filter(|n| (before..=after + 1.0).contains(n));
        let mut ends: Vec<f64> = whole.chain([after, before]).filter(|n| *n > 1.0).collect();
        ends.sort_by(f64::total_cmp);
        ends.dedup();
        let mut best: Option<((usize, f64), RateInWords)> = None;
        for steps in ends {
            for overlap in [true, false] {
                let shift = if overlap { 0.0 } else { steps };
                let rest = curve.iter().filter(|(step, _)| *step >= steps);
                let moved: Vec<(f64, f64)> = rest.map(|(step, rate)| (step - shift, *rate)).collect();
                for form in self.candidates(&moved) {
                    let line = |step: f64| start + (form.at(0.0) - start) * step / steps;
                    let whole = |step: f64| if step < steps { line(step) } else { form.at(step - shift) };
                    let apart = apart(curve, whole);
                    // A length that is no whole number of steps is rounded here.
                    let cost = (form.n_changes(), apart);
                    if apart <= ROUNDED_LENGTH && best.as_ref().is_none_or(|(least, _)| cost < *least) {
                        let start = short(start);
                        let start =
                            if start == 0.0 { String::new() } else { format!(", start: {}", yaml_number(start)) };
                        let overlap = if overlap { ", overlap: true" } else { "" };
                        let differs = (apart > ROUNDINGS).then(|| {
                            format!(
                                "the warm-up is not of a whole number of steps there, and of {steps} here: rates are up to {:.4} % apart",
                                apart * 100.0
                            )
                        });
                        let warm_up = format!("{{steps: {steps}{start}{overlap}}}");
                        best = Some((cost, RateInWords { learning_rate: form.text(), warm_up, differs }));
                    }
                }
            }
        }
        best.map(|(_, words)| words)
    }

    /// Forms whose numbers are those of the graph, or of the curve, and which are near it at a few steps.
    fn candidates(&self, curve: &[(f64, f64)]) -> Vec<Form> {
        let mut forms = Vec::new();
        let Some((&(begin, first), &(_, last))) = curve.first().zip(curve.last()) else { return forms };
        let numbers: Vec<f64> = self.constants.iter().copied().filter(|x| *x > 0.0).take(24).collect();
        if curve.iter().all(|(_, rate)| *rate == first) {
            return vec![Form::Constant(short(first))];
        }
        if let Some(form) = piecewise(curve) {
            return vec![form];
        }
        // Where a warm-up hides the rate at step 0, a number of the graph is it.
        let mut values = if begin == 0.0 { vec![short(first)] } else { numbers.clone() };
        // What falls was never less than what is seen of it.
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
        for &value in &values {
            for &steps in &lengths {
                let steps = steps as f64;
                if (0.0..=1.0).contains(&(last / value)) {
                    consider(Form::Cosine { value, steps, alpha: short(last / value) });
                }
                for power in [1.0, 2.0, 0.5].into_iter().chain(numbers.iter().copied().filter(|power| *power < 10.0)) {
                    consider(Form::Polynomial { value, steps, end: short(last), power });
                }
                for rate in numbers.iter().copied().filter(|rate| *rate < 1.0) {
                    consider(Form::Exponential { value, steps, rate, is_stepped: false });
                    consider(Form::Exponential { value, steps, rate, is_stepped: true });
                }
            }
        }
        forms
    }
}

/// Rates that stay between a few changes.
fn piecewise(curve: &[(f64, f64)]) -> Option<Form> {
    const MAX_CHANGES: usize = 12;
    let mut changes: Vec<(f64, f64)> = Vec::new();
    for pair in curve.windows(2) {
        if pair[1].1 != pair[0].1 {
            // Between two steps that are neighbours; else it is not known where.
            if pair[1].0 - pair[0].0 != 1.0 {
                return None;
            }
            changes.push((pair[1].0, short(pair[1].1)));
        }
    }
    let value = short(curve.first()?.1);
    (!changes.is_empty() && changes.len() <= MAX_CHANGES).then_some(Form::Piecewise { value, changes })
}

/// As the decimal that it was written as.
fn short(value: f64) -> f64 {
    let decimal = shortest(value as f32);
    // 0.04 times 0.1 in f32 is 0.0040000002: the decimal of six digits is what was meant.
    let six: f64 = format!("{decimal:.5e}").parse().unwrap_or(decimal);
    if is_near(six, decimal) { six } else { decimal }
}

/// As shares of a rate: a power in f32 is some roundings (2^-24 each) of its exponent's logarithm from one in f64.
const ROUNDINGS: f64 = 2e-5;

/// The same where a length in steps is rounded: half a step of a warm-up of 100 and more.
const ROUNDED_LENGTH: f64 = 5e-3;

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 2e-6 * a.abs().max(b.abs())
}

/// The most that a form is away from a curve, as a share of the rate there.
fn apart(curve: &[(f64, f64)], form: impl Fn(f64) -> f64) -> f64 {
    let most = curve.iter().fold(0.0f64, |most, (_, rate)| most.max(rate.abs()));
    let share = |(step, rate): &(f64, f64)| {
        // What a cosine or a difference leaves of the largest rate is no better known than a rounding of that.
        let apart = ((form(*step) - rate).abs() - 2e-7 * most).max(0.0);
        if apart == 0.0 { 0.0 } else { apart / rate.abs().max(1e-30) }
    };
    let most = curve.iter().map(|at| if form(at.0).is_finite() { share(at) } else { f64::INFINITY });
    most.fold(0.0, f64::max)
}

/// Schedules as `train: learning_rate` has them.
#[derive(Clone, Debug, PartialEq)]
enum Form {
    Constant(f64),
    Exponential { value: f64, steps: f64, rate: f64, is_stepped: bool },
    Cosine { value: f64, steps: f64, alpha: f64 },
    Polynomial { value: f64, steps: f64, end: f64, power: f64 },
    Piecewise { value: f64, changes: Vec<(f64, f64)> },
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
        }
    }
}
