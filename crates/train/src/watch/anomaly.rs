//! What is wrong with the numbers of a run: rules, and what they find.
//!
//! Each rule is a row of [`RULES`] with the reason for its threshold. A rule looks at one record and at the one before.

use super::row::{Quantity, Role, WatchRecord, WatchRow};
use serde::Serialize;
use std::collections::BTreeSet;

/// Something wrong, where it is first seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Anomaly {
    /// The step that was looked at, counted from 1.
    pub step: u64,
    /// The rule, by its name.
    pub rule: &'static str,
    /// The layer; of gradients and updates the variable.
    pub layer: String,
    /// The quantity it was seen in.
    pub quantity: Quantity,
    /// `forward`, `backward` or `update`.
    pub direction: &'static str,
    /// What was measured, in words.
    pub found: String,
    /// What to do.
    pub remedy: &'static str,
}

/// A rule.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What it asks, with the threshold and where that is from.
    pub why: &'static str,
    /// What to do.
    pub remedy: &'static str,
    judge: fn(&Look<'_>) -> Vec<Found>,
}

/// Two looks.
struct Look<'a> {
    now: &'a WatchRecord,
    before: Option<&'a WatchRecord>,
}

/// A row that a rule found, by its number, with the measurement; and another remedy where that is more to the point.
struct Found {
    row: usize,
    what: String,
    remedy: Option<&'static str>,
}

/// All rules. Of what is found in one step, what comes first in the program is said first.
pub const RULES: [Rule; 11] = [
    Rule {
        name: "not_finite",
        why: "an infinity or a NaN is in everything computed from it. Where the loss scale is dynamic, gradients may \
              be infinite: such a step is left out",
        remedy: "lower the learning rate, clip gradients, or compute this layer in f32",
        judge: not_finite,
    },
    Rule {
        name: "saturated",
        why: "one number of 1,000 is the largest finite one of its dtype; of numbers in a range of exponents, one of \
              2^15 at most is that by chance",
        remedy: "scale what goes into this layer, or compute it in bf16 or f32, which reach 3e38",
        judge: saturated,
    },
    Rule {
        name: "saturated_softmax",
        why: "half of the logits, masked ones left out, are 16 or more below the largest: e^-16 is 2^-23, half an ulp \
              of f32 beside 1, so the sum and the gradient do not see them. Of a loss only where the loss is 1 or more: \
              one that is sure and right does so too",
        remedy: "divide the logits by the root of their features, or lower the learning rate",
        judge: saturated_softmax,
    },
    Rule {
        name: "unscaled_residual",
        why: "the rms of the sums of four or more residual blocks grows by 1.3 or more from each to the next, and by 8 \
              in all. Blocks that each add as much as the first grow by the root of (k+1)/k, which is below 1.3 from \
              the second on",
        remedy: "normalise before each block, or scale its last layer by 1 / √(2 · layers)",
        judge: unscaled_residual,
    },
    Rule {
        name: "exploding",
        why: "an rms of 64 or more that is 64 times the median layer's or that of what comes before it, or 16 times what it \
              was at the look before. Initial values and normalisation aim at an rms of 1; 64 is six doublings",
        remedy: "look at this layer's initial values, lower the learning rate, or clip gradients",
        judge: exploding,
    },
    Rule {
        name: "dead",
        why: "all of a layer's activations, or of a variable's 16 or more gradients, are 0 at two looks in a row, with \
              an update between",
        remedy: "lower the learning rate, or use another activation or another initial bias: a ReLU below 0 for all \
                 examples learns nothing any more",
        judge: dead,
    },
    Rule {
        name: "flushed",
        why: "half of the cotangents that are not 0 are below the smallest normal number of their dtype, or, in f16, \
              all are 0 and those of the layer before in the backward pass were that small",
        remedy: "use `loss_scale: dynamic`, or compute in bf16, which has f32's exponents",
        judge: flushed,
    },
    Rule {
        name: "epsilon",
        why: "an update of Adam, AdamW, RMSProp or Adagrad is more than 64 learning rates, where the rule's quotient of \
              a gradient and its own size is 1/√(1-β2) at most, 32 for 0.999; or gradients below 2^-40 move \
              variables by a quarter of a learning rate: only an ε below them lets them",
        remedy: "raise the optimizer's epsilon to 1e-8 or more",
        judge: epsilon,
    },
    Rule {
        name: "weight_decay",
        why: "weight decay takes a tenth or more of every variable in a step: what a step learns is half gone after seven",
        remedy: "lower `weight_decay`, which is multiplied by the learning rate: 1e-4 to 0.1 are usual",
        judge: weight_decay,
    },
    Rule {
        name: "stalled",
        why: "at two looks in a row more than half of a variable's elements that have a gradient are stored as they \
              were: the update is below half an ulp of what is stored. Stochastic rounding keeps the mean, and is not judged",
        remedy: "store variables as f32, bf16_compensated or bf16_stochastic, or raise the learning rate",
        judge: stalled,
    },
    Rule {
        name: "loss_scale_stuck",
        why: "nine of ten steps since the look before were left out, and eight or more: from 2^15 a scale is at 1 \
              after fifteen halvings, and then smaller scales cannot help",
        remedy: "the numbers overflow whatever the scale is: compute in bf16, or lower the learning rate",
        judge: loss_scale_stuck,
    },
];

/// What is wrong in records, which are in the order of their steps: each thing once, where it is first seen, the first
/// first.
pub fn anomalies(records: &[WatchRecord]) -> Vec<Anomaly> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for (number, now) in records.iter().enumerate() {
        let look = Look { now, before: number.checked_sub(1).map(|before| &records[before]) };
        let found = RULES.iter().flat_map(|rule| (rule.judge)(&look).into_iter().map(move |found| (rule, found)));
        let mut found: Vec<_> = found.collect();
        found.sort_by_key(|(_, found)| found.row);
        for (rule, Found { row, what, remedy }) in found {
            let WatchRow { layer, quantity, .. } = &now.rows[row];
            if seen.insert((rule.name, layer.clone(), *quantity)) {
                all.push(Anomaly {
                    step: now.step,
                    rule: rule.name,
                    layer: layer.clone(),
                    quantity: *quantity,
                    direction: quantity.direction(),
                    found: what,
                    remedy: remedy.unwrap_or(rule.remedy),
                });
            }
        }
    }
    all
}

/// The steps of looks that anomalies were found by: each one's, and the look before it.
pub fn telling_steps(records: &[WatchRecord]) -> BTreeSet<u64> {
    let places = anomalies(records).into_iter().filter_map(|anomaly| {
        let at = records.iter().position(|record| record.step == anomaly.step)?;
        Some(at.saturating_sub(1)..at + 1)
    });
    places.flatten().map(|at| records[at].step).collect()
}

impl Look<'_> {
    /// Rows with their numbers, of a quantity.
    fn rows(&self, quantity: Quantity) -> impl Iterator<Item = (usize, &WatchRow)> {
        self.now.rows.iter().enumerate().filter(move |(_, row)| row.quantity == quantity)
    }

    /// The same row of the look before.
    fn before(&self, row: &WatchRow) -> Option<&WatchRow> {
        let is_same =
            |other: &&WatchRow| (&other.layer, other.quantity, other.role) == (&row.layer, row.quantity, row.role);
        self.before?.rows.iter().find(is_same)
    }

    /// Whether variables moved between the looks.
    fn has_moved(&self) -> bool {
        self.before.is_some_and(|before| before.learning_rate > 0.0)
    }

    /// The row of a variable's gradient.
    fn gradient_of(&self, variable: &str) -> Option<&WatchRow> {
        self.rows(Quantity::Gradient).map(|(_, row)| row).find(|row| row.layer == variable)
    }

    fn are_gradients_finite(&self) -> bool {
        self.rows(Quantity::Gradient).all(|(_, row)| row.not_finite == 0.0)
    }
}

fn found(row: usize, what: String) -> Found {
    Found { row, what, remedy: None }
}

fn percent(share: f64) -> String {
    match 100.0 * share {
        all if all > 99.95 => "all".to_string(),
        share if share >= 1.0 => format!("{share:.1} %"),
        share => format!("{share:.2} %"),
    }
}

fn not_finite(look: &Look<'_>) -> Vec<Found> {
    let is_retried = |row: &WatchRow| look.now.n_skipped.is_some() && row.quantity != Quantity::Activation;
    let is_bad = |row: &WatchRow| row.not_finite > 0.0 && row.role != Some(Role::Softmax) && !is_retried(row);
    let Some((number, row)) = look.now.rows.iter().enumerate().find(|(_, row)| is_bad(row)) else {
        return Vec::new();
    };
    let what = format!(
        "{} of {} numbers are infinite or NaN; all that comes before is finite",
        percent(row.not_finite),
        row.n
    );
    let remedy = (row.quantity == Quantity::Update).then_some(
        "its gradient is finite: raise the optimizer's epsilon, which divides by 0, or lower the learning rate",
    );
    vec![Found { row: number, what, remedy }]
}

fn saturated(look: &Look<'_>) -> Vec<Found> {
    let rows = look.now.rows.iter().enumerate().filter(|(_, row)| row.saturated >= 1e-3);
    rows.map(|(number, row)| {
        found(number, format!("{} of them are {:e}, the largest finite {}", percent(row.saturated), row.max, row.dtype))
    })
    .collect()
}

fn saturated_softmax(look: &Look<'_>) -> Vec<Found> {
    let with_variables: BTreeSet<&str> = look.rows(Quantity::Gradient).map(|(_, row)| row.scope()).collect();
    let last_layer = look.rows(Quantity::Activation).filter(|(_, row)| with_variables.contains(row.layer.as_str()));
    let last_layer = last_layer.map(|(number, _)| number).max().unwrap_or(0);
    let is_costly = look.now.loss().is_none_or(|loss| loss >= 1.0);
    let rows = look.rows(Quantity::Activation).filter(|(_, row)| row.role == Some(Role::Softmax));
    let of = |(number, row): (usize, &WatchRow)| {
        // From 2^12 on it is a mask.
        let masked = row.not_finite + row.bins[14] + row.bins[15];
        let others = 1.0 - row.zero - masked;
        let far = (row.bins[12] + row.bins[13]) / others;
        let is_bad = others > 1e-9 && far >= 0.5 && (number < last_layer || is_costly);
        is_bad.then(|| found(number, format!("{} of the logits are 16 or more below the largest", percent(far))))
    };
    rows.filter_map(of).collect()
}

fn unscaled_residual(look: &Look<'_>) -> Vec<Found> {
    let rows = look.rows(Quantity::Activation).filter(|(_, row)| row.role == Some(Role::Residual));
    let rows: Vec<(usize, &WatchRow)> = rows.collect();
    let mut begin = 0;
    for (at, (number, row)) in rows.iter().enumerate().skip(1) {
        let (_, last) = rows[at - 1];
        if row.n != last.n || row.rms < 1.3 * last.rms {
            begin = at;
        }
        let (_, first) = rows[begin];
        if at - begin >= 3 && row.rms >= 8.0 * first.rms && first.rms > 0.0 {
            let what =
                format!("the rms grew from {:.3} to {:.3} over {} residual blocks", first.rms, row.rms, at - begin + 1);
            return vec![found(*number, what)];
        }
    }
    Vec::new()
}

/// Where an rms is large.
const LARGE: f32 = 64.0;

fn exploding(look: &Look<'_>) -> Vec<Found> {
    let is_layer = |row: &WatchRow| matches!(row.role, None | Some(Role::Residual));
    let mut all: Vec<f32> =
        look.rows(Quantity::Activation).filter(|(_, row)| is_layer(row)).map(|(_, row)| row.rms).collect();
    all.sort_by(f32::total_cmp);
    let median = all.get(all.len() / 2).copied().unwrap_or(0.0);
    let of = |(number, row): (usize, &WatchRow)| {
        if row.rms < LARGE || !is_layer(row) {
            return None;
        }
        let before = look.before(row).map(|before| before.rms).filter(|before| *before > 0.0);
        if let Some(before) = before.filter(|before| row.rms >= 16.0 * before) {
            let what = format!("the rms is {:.3e}, and was {before:.3e} at the look before", row.rms);
            return Some(found(number, what));
        }
        if row.quantity != Quantity::Activation {
            return None;
        }
        let is_what_it_takes = |row: &&WatchRow| is_layer(row) || row.role == Some(Role::Input);
        let last = look.now.rows[..number].iter().rfind(is_what_it_takes).filter(|last| last.rms > 0.0);
        let is_over = |row: &WatchRow| median > 0.0 && row.rms >= LARGE * median;
        // A layer that gives what it takes is not what is wrong.
        let is_large_input =
            |input: &&WatchRow| input.role == Some(Role::Input) && is_over(input) && row.rms < LARGE * input.rms;
        if let (true, Some(input)) = (is_over(row), look.now.rows[..number].iter().position(|row| is_large_input(&row)))
        {
            let what = format!(
                "the rms of this feature is {:.3e}, that of the median layer {median:.3e}",
                look.now.rows[input].rms
            );
            return Some(Found {
                row: input,
                what,
                remedy: Some("scale the feature, as `data: {scale: …}` does, to an rms of about 1"),
            });
        }
        if is_over(row) {
            return Some(found(number, format!("the rms is {:.3e}, that of the median layer {median:.3e}", row.rms)));
        }
        let last = last.filter(|last| row.rms >= LARGE * last.rms)?;
        Some(found(number, format!("the rms is {:.3e}, that of {} before it {:.3e}", row.rms, last.layer, last.rms)))
    };
    let rows = look.rows(Quantity::Activation).chain(look.rows(Quantity::Gradient));
    rows.filter_map(of).take(1).collect()
}

fn dead(look: &Look<'_>) -> Vec<Found> {
    if !look.has_moved() {
        return Vec::new();
    }
    let is_dead = |row: &&WatchRow| row.is_zero();
    let any_gradient = look.rows(Quantity::Gradient).any(|(_, row)| !row.is_zero());
    let rows = look.now.rows.iter().enumerate().filter(|(_, row)| match row.quantity {
        Quantity::Activation => matches!(row.role, None | Some(Role::Activated)),
        Quantity::Gradient => row.n >= 16 && any_gradient,
        Quantity::Cotangent | Quantity::Update => false,
    });
    let dead = rows.filter(|(_, row)| row.is_zero() && look.before(row).as_ref().is_some_and(is_dead));
    // What is dead because this is, is not said as well.
    dead.take(1)
        .map(|(number, row)| found(number, format!("all {} numbers are 0, as at the look before", row.n)))
        .collect()
}

fn flushed(look: &Look<'_>) -> Vec<Found> {
    let rows: Vec<(usize, &WatchRow)> = look.rows(Quantity::Cotangent).collect();
    let has_loss = look.now.loss().is_some_and(|loss| loss > 1e-3);
    let smallest_normal = |row: &WatchRow| if row.dtype == "f16" { 2f32.powi(-14) } else { f32::MIN_POSITIVE };
    for (at, (number, row)) in rows.iter().enumerate() {
        let nonzero = 1.0 - row.zero - row.not_finite;
        if nonzero > 0.0 && row.subnormal >= 0.5 * nonzero {
            let share = percent(row.subnormal / nonzero);
            let what = format!("{share} of those that are not 0 are below the smallest normal {}", row.dtype);
            return vec![found(*number, what)];
        }
        let was_small = match at.checked_sub(1).map(|last| rows[last].1) {
            None => has_loss,
            Some(last) => !last.is_zero() && last.max < smallest_normal(row),
        };
        if row.dtype == "f16" && row.is_zero() && was_small {
            return vec![found(*number, format!("all {} are 0 in f16, whose least number is 2^-24", row.n))];
        }
    }
    Vec::new()
}

fn epsilon(look: &Look<'_>) -> Vec<Found> {
    let rate = look.now.learning_rate as f32;
    let is_of_a_quotient = ["adam", "adamw", "rmsprop", "adagrad"].contains(&look.now.optimizer.as_str());
    // Weight decay moves variables past the quotient.
    if !is_of_a_quotient || rate <= 0.0 || look.now.decay >= MOST_DECAY {
        return Vec::new();
    }
    let of = |(number, row): (usize, &WatchRow)| {
        let gradient = look.gradient_of(&row.layer)?;
        if row.max > LARGE * rate {
            return Some(found(
                number,
                format!("an element moves by {:.3e}, and the learning rate is {rate:.3e}", row.max),
            ));
        }
        let is_noise = gradient.max > 0.0 && gradient.max < 2f32.powi(-40) && gradient.not_finite == 0.0;
        let what = || format!("gradients of {:.1e} at most move it by {:.3e}", gradient.max, row.rms);
        (is_noise && row.rms >= rate / 4.0).then(|| found(number, what()))
    };
    look.rows(Quantity::Update).filter_map(of).collect()
}

/// The share of a variable that decays in a step.
const MOST_DECAY: f64 = 0.1;

fn weight_decay(look: &Look<'_>) -> Vec<Found> {
    let decay = look.now.decay;
    let largest = look.rows(Quantity::Update).max_by(|(_, a), (_, b)| a.rms.total_cmp(&b.rms));
    let found_in = largest.filter(|_| decay >= MOST_DECAY);
    found_in
        .map(|(number, _)| found(number, format!("each step takes {} of it away", percent(decay))))
        .into_iter()
        .collect()
}

fn stalled(look: &Look<'_>) -> Vec<Found> {
    if !look.has_moved() || look.now.learning_rate <= 0.0 || look.now.variables == "bf16_stochastic" {
        return Vec::new();
    }
    if !look.are_gradients_finite() {
        return Vec::new();
    }
    let share = |row: &WatchRow, gradient: &WatchRow| {
        let moved = 1.0 - gradient.zero;
        (moved * row.n as f64 >= 16.0).then(|| row.lost.unwrap_or(0.0) / moved)
    };
    let of = |(number, row): (usize, &WatchRow)| {
        let now = share(row, look.gradient_of(&row.layer)?)?;
        let before = look.before(row)?.lost?;
        let is_stalled = now > 0.5 && before > 0.25;
        let what = || format!("{} of the updates are below half an ulp of {}, and lost", percent(now), row.dtype);
        let remedy =
            (row.dtype == "f32").then_some("raise the learning rate, or the norm that gradients are clipped to");
        is_stalled.then(|| Found { row: number, what: what(), remedy })
    };
    look.rows(Quantity::Update).filter_map(of).collect()
}

fn loss_scale_stuck(look: &Look<'_>) -> Vec<Found> {
    let both = look.now.n_skipped.zip(look.before.and_then(|before| before.n_skipped));
    let Some(((now, before), look_before)) = both.zip(look.before) else { return Vec::new() };
    let (n_skipped, n_steps) = (now.saturating_sub(before), look.now.step.saturating_sub(look_before.step));
    if n_skipped < 8 || 10 * n_skipped < 9 * n_steps {
        return Vec::new();
    }
    let overflowing = look.now.rows.iter().position(|row| row.not_finite > 0.0 && row.role != Some(Role::Softmax));
    let row = overflowing.or_else(|| look.rows(Quantity::Gradient).map(|(number, _)| number).next());
    let scale = look.now.loss_scale.unwrap_or(1.0);
    let what = format!("{n_skipped} of the last {n_steps} steps were left out, and the loss scale is {scale}");
    row.map(|row| found(row, what)).into_iter().collect()
}
