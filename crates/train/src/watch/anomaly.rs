//! Anomalies in the numbers of a run: the table of rules, and their search.
//!
//! Each rule is a row of [`RULES`] with the evidence that it needs, and the reason for its threshold; the rules' code
//! is in [`causes`](super::causes). A rule reads one record and the one before. Consequences of a reported cause are
//! not reported: unscaled features, for example, saturate softmaxes, explode, and shut functions with a bounded slope.

use super::causes::{finite, gradients, scale, updates};
use super::look::{Found, Look};
use super::row::{Quantity, WatchRecord, WatchRow};
use serde::Serialize;
use std::collections::BTreeSet;

/// An anomaly, at the step of its first appearance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Anomaly {
    /// The watched step, counted from 1; for a setting that changed, the first step with the new value.
    pub step: u64,
    /// The name of the rule.
    pub rule: &'static str,
    /// The layer; for gradients and updates the variable.
    pub layer: String,
    /// The quantity that shows it.
    pub quantity: Quantity,
    /// `forward`, `backward` or `update`.
    pub direction: &'static str,
    /// The measurement, as a phrase.
    pub found: String,
    /// The remedy.
    pub remedy: String,
}

/// A rule.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// Its condition, with the threshold and its source.
    pub why: &'static str,
    /// The remedy.
    pub remedy: &'static str,
    /// Rules whose anomalies follow from this one.
    pub explains: &'static [&'static str],
    judge: fn(&Look<'_>) -> Vec<Found>,
}

/// Consequences of numbers of a wrong size.
const BY_SIZE: &[&str] = &[
    "saturated_softmax",
    "exploding",
    "saturated",
    "saturated_activation",
    "vanishing",
    "dead",
    "stalled",
    "epsilon",
    "large_epsilon",
];
/// Consequences of a learning rate that rises at once.
const BY_RATE_JUMP: &[&str] = &[
    "large_rate",
    "saturated_softmax",
    "exploding",
    "saturated",
    "saturated_activation",
    "vanishing",
    "dead",
    "stalled",
    "epsilon",
];
/// Consequences of a layer whose output is 0.
const BY_ZEROS: &[&str] =
    &["dead", "vanishing", "flushed", "stalled", "saturated_activation", "epsilon", "large_epsilon", "small_rate"];

/// Consequences of updates that are larger than variables bear.
const BY_UPDATES: &[&str] = &[
    "not_finite",
    "saturated",
    "unscaled_residual",
    "exploding",
    "saturated_activation",
    "saturated_softmax",
    "flushed",
    "dead",
    "vanishing",
    "epsilon",
    "stalled",
];

/// All rules, causes before their consequences. Anomalies of one step are reported in program order.
pub const RULES: [Rule; 30] = [
    Rule {
        name: "loss_scale",
        why: "activations are finite, and cotangents or gradients are not, under a constant loss scale above 1: the scaled loss \
              overflows",
        remedy: "`loss_scale: dynamic`, which halves until gradients are finite, or a smaller constant: `loss_scale: \
                 'static:1024'`",
        explains: &["not_finite", "dead", "stalled", "flushed", "vanishing"],
        judge: finite::loss_scale,
    },
    Rule {
        name: "rate_jump",
        why: "between two looks the learning rate rises eightfold or more from one step to the next, and after it the loss is twice \
              what it was, or a layer's rms eight times, or a layer is 0 that was not",
        remedy: "lower what `learning_rate` is from that step on (`bf16scope schedule` draws it), or let it rise to that over \
                 steps: `warm_up: {steps: 500}`",
        explains: BY_RATE_JUMP,
        judge: updates::rate_jump,
    },
    Rule {
        name: "zero_rate",
        why: "no step so far had a learning rate above 0. One that begins at 0, as a warm-up's does, is above it at the second step",
        remedy: "`learning_rate: 0.001`; `bf16scope schedule` draws the rate of every step",
        explains: &["dead", "vanishing", "stalled"],
        judge: updates::zero_rate,
    },
    Rule {
        name: "unscaled_input",
        why: "a feature has an rms of 32 or more, or none of its numbers is above 2^-10, and a layer multiplies it by its kernel as \
              it is, not normalised before: initial values are for an rms of 1, and 32 of them are half of the range of a byte's \
              pixels",
        remedy: "scale the feature to an rms of about 1, such as `data: {scale: 1e-2}` for an rms of 100, or let a `batch_norm` be \
                 the first layer where its columns differ",
        explains: BY_SIZE,
        judge: scale::unscaled_input,
    },
    Rule {
        name: "zero_input",
        why: "all of a feature is 0 at this look, the one before and the first, 2^14 numbers of it have gone by since, and a kernel \
              that multiplies it does not move, though a momentum of 0.9 or more goes on for a hundred steps, or at none of the looks, \
              and its largest number is to the bit what it was at the first",
        remedy: "look at where this feature comes from: a key or a column that is not there, or a default in its place; or leave \
                 it out",
        explains: &["dead"],
        judge: gradients::zero_input,
    },
    Rule {
        name: "label_scale",
        why: "labels have an rms of 64 or more, and the loss or its gradients are infinite, or the loss grows fourfold between two \
              looks, to errors of 1.5 times the labels, and the loss's derivative by the result is a sixteenth of the labels or \
              more, as that of squares is: that of absolute errors is 1, and that of percentages less. Or 32 steps after the first \
              look the loss has not halved, and the head's updates are so small that 2^20 more like them, times what layers after \
              the head multiply by, do not make a label, or labels have a mean of 16 deviations or more, and the results are not \
              halfway to it",
        remedy: "train on labels less their mean, divided by their standard deviation (in the data, for `scale` is for \
                 features), or use `{huber: , delta: 1}` or `mean_absolute_error` and `clip: {kind: global_norm, value: 1}`",
        explains: &["exploding", "not_finite"],
        judge: scale::label_scale,
    },
    Rule {
        name: "weight_decay",
        why: "weight decay takes a tenth or more of every variable in a step: what a step learns is half gone after seven. Or no \
              kernel of 16 or more numbers has a 32nd left of its largest number at the first look: gradients make some smaller, \
              and others larger",
        remedy: "lower `weight_decay`, which is multiplied by the learning rate: 1e-4 to 0.1 are usual",
        explains: &["dead", "vanishing", "zero_kernel", "stalled", "flushed", "epsilon", "small_rate"],
        judge: updates::weight_decay,
    },
    Rule {
        name: "tight_constraint",
        why: "a constraint projects a variable, whose largest number is a 32nd of what it was at the first look, or less: norms \
              of 1 to 4 are usual, and what is not negative keeps its larger half",
        remedy: "let the constraint leave more: `kernel_constraint: {max_norm: 3}`",
        explains: &["dead", "vanishing", "zero_kernel", "stalled", "flushed", "epsilon", "small_rate"],
        judge: updates::tight_constraint,
    },
    Rule {
        name: "large_rate",
        why: "an update of Adam, AdamW, Adamax, Nadam, RMSProp, Adagrad or Lion, at the first look or this one, moves half \
              of the variables by a fifth or more of what they were at the first look (their largest number, or n^(-1/4), about \
              that of a square kernel of n numbers), where a thousandth is usual and a hundredth is much, and the loss is twice \
              what it was then, or 16 steps later still three quarters of it; or the rate has doubled since, and the loss is \
              twice what it was at the look before, and a quarter of the first. Where labels have an rms of 64 or more, weights \
              have far to go",
        remedy: "lower the learning rate: `learning_rate: 0.001`",
        explains: BY_UPDATES,
        judge: updates::large_rate,
    },
    Rule {
        name: "long_momentum",
        why: "the optimizer keeps 0.999 or more of its sum or mean of gradients in a step, so that a gradient moves variables for a \
              thousand steps, and 32 or more steps after the first look the loss is three quarters of what it was then, or \
              more, or not finite: 0.9 and 0.99 are usual",
        remedy: "lower the optimizer's momentum: 0.9 is usual",
        explains: BY_UPDATES,
        judge: updates::long_momentum,
    },
    Rule {
        name: "loss_scale_stuck",
        why: "nine of ten steps since the look before were left out, and eight or more: from 2^15 a scale is at 1 \
              after fifteen halvings, and then smaller scales cannot help",
        remedy: "the numbers overflow whatever the scale is: compute in bf16, or lower the learning rate",
        explains: &["dead", "stalled", "small_rate"],
        judge: finite::loss_scale_stuck,
    },
    Rule {
        name: "not_finite",
        why: "an infinity or a NaN is in everything computed from it. Where the loss scale is dynamic, gradients may \
              be infinite: such a step is left out",
        remedy: "lower the learning rate, clip gradients (`clip: {kind: global_norm, value: 1}`), or compute this layer in f32 \
                 (`dtype: float32`)",
        explains: &[],
        judge: finite::not_finite,
    },
    Rule {
        name: "saturated",
        why: "one number of 1,000 is the largest finite one of its dtype; of numbers in a range of exponents, one of \
              2^15 at most is that by chance",
        remedy: "compute this layer in f32, which reaches 3e38 (`dtype: float32`), or the run in bf16; or make smaller what \
                 the layer reads, by a `batch_norm` or `{rescaling: 0.01}` before it",
        explains: &[],
        judge: finite::saturated,
    },
    Rule {
        name: "rescaled",
        why: "a layer without variables, and which no dropout turned off, gives 2^13 times what it takes, or 2^-13 of it, or \
              an rms of 64 or more that is 64 times its: no activation, pool or softmax of a usual network does. It may where what \
              it gives is within 32 times of 1, or is the network's result and within 32 times of a label",
        remedy: "look at what this layer multiplies by and adds: `{rescaling: 1.0}`",
        explains: BY_SIZE,
        judge: scale::rescaled,
    },
    Rule {
        name: "zero_kernel",
        why: "all of a layer's kernel, or of a norm's gamma, is 0 at two looks in a row with an update between, and nothing goes \
              through it. Zeros that are left at the first update, as those of a last layer are, are not meant",
        remedy: "give it initial values: `kernel_initializer: glorot_uniform`",
        explains: BY_ZEROS,
        judge: gradients::zero_kernel,
    },
    Rule {
        name: "norm_of_one",
        why: "a norm takes numbers, gives nothing but its offset and passes 2^-14 of its cotangent on, or less, by the rms of what it \
              takes: it normalises over one number, as a batch norm of dense features does at a batch of 1. Or over equal ones, \
              if a layer before it gives only zeros, which is the cause then",
        remedy: "`batch: 32`, a `layer_norm` in its place, or, over replicas, `batch_norm: {across: 8}` of `mesh`",
        explains: BY_ZEROS,
        judge: gradients::norm_of_one,
    },
    Rule {
        name: "unscaled_residual",
        why: "the rms of the sums of four or more residual blocks grows by 1.3 or more from each to the next, and by 8 \
              in all. Blocks that each add as much as the first grow by the root of (k+1)/k, which is below 1.3 from \
              the second on",
        remedy: "normalise before each block, or scale its last layer by 1 / √(2 · layers)",
        explains: &["exploding"],
        judge: scale::unscaled_residual,
    },
    Rule {
        name: "saturated_gates",
        why: "the state of a recurrent layer is at most 1, and the largest number of a kernel of its gates, times the rms of what it \
              multiplies, is 16 or more: a gate that far from 0 has a slope of e^-16, half an ulp of f32 beside 1",
        remedy: "give the layer smaller initial values (`kernel_initializer: glorot_uniform`, `recurrent_initializer: orthogonal`)",
        explains: &["exploding", "dead", "vanishing", "flushed", "stalled", "saturated_activation"],
        judge: gradients::saturated_gates,
    },
    Rule {
        name: "exploding",
        why: "a layer's rms is 64 or more, and of a network with labels that are floats as many times theirs, and 64 times the \
              median layer's or that of what it takes, or 16 times what it was at the look before and at the first. Initial values and normalisation \
              aim at an rms of 1; 64 is six doublings",
        remedy: "look at this layer's initial values (`kernel_initializer: glorot_uniform`), lower the learning rate, or clip \
                 gradients (`clip: {kind: global_norm, value: 1}`)",
        explains: &["saturated_activation", "saturated_softmax", "dead"],
        judge: scale::exploding,
    },
    Rule {
        name: "saturated_activation",
        why: "a sigmoid or a tanh passes 2^-14 of its cotangent on at two looks in a row, or less: what it takes is 10 or more away \
              from 0 nearly everywhere, where its slope is e^-10. Or what it takes has an rms of 64 or more at both",
        remedy: "normalise what goes into it (`batch_norm`), give the layer smaller initial values (`kernel_initializer: \
                 glorot_uniform`), or use `activation: relu`",
        explains: BY_ZEROS,
        judge: gradients::saturated_activation,
    },
    Rule {
        name: "saturated_softmax",
        why: "half of the logits, masked ones left out, are 16 or more below the largest: e^-16 is 2^-23, half an ulp \
              of f32 beside 1, so the sum and the gradient do not see them. Of a loss only where the loss is 1 or more: \
              one that is sure and right does so too",
        remedy: "divide the logits by the root of their features, or lower the learning rate",
        explains: &[],
        judge: scale::saturated_softmax,
    },
    Rule {
        name: "flushed",
        why: "half of the cotangents that are not 0 are below the smallest normal number of their dtype, or, in f16, \
              all are 0 and those of the layer before in the backward pass were that small",
        remedy: "use `loss_scale: dynamic`, or compute in bf16, which has f32's exponents",
        explains: &["dead", "vanishing", "stalled", "small_rate"],
        judge: finite::flushed,
    },
    Rule {
        name: "dead",
        why: "all that a layer gives is 0 at two looks in a row, with an update between, though what it takes is not; or all of a \
              variable's 16 or more gradients are, and no stochastic depth turned its branch off",
        remedy: "look at what the layer computes: nothing of what it takes goes through it",
        explains: BY_ZEROS,
        judge: gradients::dead,
    },
    Rule {
        name: "vanishing",
        why: "at two looks in a row the cotangent of the first layers is 2^-16 of the last one's or less, by its norm, which \
              pools and widths change little, and four layers with kernels or more lie between; or one layer passes 2^-14 of it \
              on, and no residual connection goes around it, as around a layer scale",
        remedy: "normalise between the layers (`batch_norm`, `layer_norm`), add residual connections (`{add: [a, b]}`), or give \
                 kernels larger initial values (`kernel_initializer: he_normal`)",
        explains: &["stalled", "epsilon", "small_rate"],
        judge: gradients::vanishing,
    },
    Rule {
        name: "epsilon",
        why: "an update of Adam, AdamW, RMSProp or Adagrad is more than 64 learning rates, where the rule's quotient of \
              a gradient and its own size is 1/√(1-β2) at most, 32 for 0.999; or gradients below 2^-40 move \
              variables by a quarter of a learning rate: only an ε below them lets them",
        remedy: "raise the optimizer's epsilon to 1e-8 or more",
        explains: &[],
        judge: updates::epsilon,
    },
    Rule {
        name: "large_epsilon",
        why: "at two looks in a row each variable of 16 or more numbers moves by an eighth of the learning rate or less, and by a \
              thousandth of the largest weight, and ε is four times its gradients, at the first step as well if ε is below 0.1: their \
              quotient is their size then, where noise alone makes it 0.23",
        remedy: "lower ε: `optimizer: {kind: adam, epsilon: 1.0e-8}`",
        explains: &["stalled", "small_rate"],
        judge: updates::large_epsilon,
    },
    Rule {
        name: "small_clip",
        why: "updates are lost as of `stalled`, and `clip` leaves a thousandth of the gradients' norm or less, of `value` of their \
              largest element",
        remedy: "raise what gradients are clipped to: `clip: {kind: global_norm, value: 1}`",
        explains: &["stalled", "small_rate"],
        judge: updates::small_clip,
    },
    Rule {
        name: "small_rate",
        why: "200 steps after the first, at one rate and from initial values (biases of 0), the loss is 98 % of what it was at \
              first or more, at the look before too, and no update of Adam, AdamW, Adamax, Nadam, RMSProp, Adagrad or Lion \
              moves a variable by 3e-5 of its size, where a thousandth is usual: 200 such updates are as much as six usual ones",
        remedy: "raise the learning rate: `learning_rate: 0.001`",
        explains: &["stalled"],
        judge: updates::small_rate,
    },
    Rule {
        name: "slow_statistics",
        why: "a batch norm keeps more than 0.999 of its running statistics in a step, and more than half of them is still their \
              initial value: an evaluation normalises by that, whatever the training loss is",
        remedy: "lower the layer's momentum: `{batch_norm: , momentum: 0.99}`",
        explains: &[],
        judge: updates::slow_statistics,
    },
    Rule {
        name: "stalled",
        why: "at two looks in a row more than half of a variable's elements that have a gradient are stored as they \
              were: the update is below half an ulp of what is stored. Stochastic rounding keeps the mean, and is not judged, nor \
              are updates at a learning rate that rises by a third or falls by a quarter between the looks",
        remedy: "store variables as f32 (`variables: f32`), bf16_compensated or bf16_stochastic, or raise the learning rate",
        explains: &[],
        judge: updates::stalled,
    },
];

/// Whether the anomaly of one rule can follow from that of another.
pub fn explains(cause: &str, follows: &str) -> bool {
    RULES.iter().any(|rule| rule.name == cause && rule.explains.contains(&follows))
}

/// The anomalies in records, which are in the order of their steps: each one once, at its first appearance, in order;
/// without those that follow from a cause at the same step or before.
pub fn anomalies(records: &[WatchRecord]) -> Vec<Anomaly> {
    let mut seen = BTreeSet::new();
    let mut causes = BTreeSet::new();
    let mut all = Vec::new();
    for last in 1..=records.len() {
        let mut new = judged(&records[..last], &mut causes);
        new.retain(|anomaly| seen.insert((anomaly.rule, anomaly.layer.clone(), anomaly.quantity)));
        all.extend(new);
    }
    all
}

/// The anomalies of the last record alone, without those that follow from one of `causes`, rules of anomalies before
/// it, or from each other. Of the records before it, only the one before and the first are read.
pub fn anomalies_of_last(records: &[WatchRecord], mut causes: BTreeSet<&'static str>) -> Vec<Anomaly> {
    judged(records, &mut causes)
}

/// The anomalies of the last record that follow from no cause; their rules are added to the causes.
fn judged(records: &[WatchRecord], causes: &mut BTreeSet<&'static str>) -> Vec<Anomaly> {
    let Some((now, earlier)) = records.split_last() else { return Vec::new() };
    let look = Look::new(now, earlier.last(), earlier.first());
    let matches = RULES.iter().flat_map(|rule| (rule.judge)(&look).into_iter().map(move |found| (rule, found)));
    let mut matches: Vec<(&Rule, Found)> = matches.collect();
    // In the order of the table: a consequence explains nothing else.
    matches.retain(|(rule, _)| {
        let is_cause = !causes.iter().any(|cause| *cause != rule.name && explains(cause, rule.name));
        if is_cause {
            causes.insert(rule.name);
        }
        is_cause
    });
    matches.sort_by_key(|(_, found)| found.row);
    let anomaly = |(rule, Found { row, what, remedy, layer, step }): (&Rule, Found)| {
        let WatchRow { layer: of_row, quantity, .. } = &now.rows[row];
        Anomaly {
            step: step.unwrap_or(now.step),
            rule: rule.name,
            layer: layer.unwrap_or_else(|| of_row.clone()),
            quantity: *quantity,
            direction: quantity.direction(),
            found: what,
            remedy: remedy.unwrap_or_else(|| rule.remedy.to_string()),
        }
    };
    matches.into_iter().map(anomaly).collect()
}

/// The steps of the records that show anomalies: each anomaly's, and the one before.
pub fn telling_steps(records: &[WatchRecord]) -> BTreeSet<u64> {
    let places = anomalies(records).into_iter().filter_map(|anomaly| {
        // A setting may change between two records.
        let at = records.iter().position(|record| record.step >= anomaly.step)?;
        Some(at.saturating_sub(1)..at + 1)
    });
    places.flatten().map(|at| records[at].step).collect()
}
