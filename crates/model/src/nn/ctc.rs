//! Connectionist temporal classification (CTC): the loss of a sequence of classes that is shorter than the sequence of
//! logits.

use super::Activation;
use super::loss::{check_logits, loss};
use crate::graph::{Graph, Operand, Program, Tensor};
use bf16scope_hlo::ops::{BinaryOp, PadDim, RuleError};
use bf16scope_hlo::{DType, POISON};

/// The logarithm of probability 0: finite, so that no difference of two is NaN.
const NEVER: f64 = -1e30;

/// `−log p(labels)`, where p sums over all alignments of the labels: one class per step, in order, each repeated or
/// followed by blanks; a blank separates equal labels.
///
/// # Shapes
/// logits `[batch, steps, classes]`, labels `[batch, length]` → `[batch]`. Labels end at their first `blank`; the rest
/// is padding. Padding steps are those whose logits give `blank` a probability of 1.
///
/// # Types
/// f32 or f64, computed in that dtype in logarithms; labels of integers.
///
/// # Gradient
/// The gradient of the recursion over steps: for each step the softmax minus each class's share of all alignments. If
/// there are too few steps for the labels, the loss is infinite, and the gradient is 0.
///
/// # Errors
/// Logits of another rank or narrower than f32; labels that are not `[batch, length]` of integers; a blank that is not
/// a class.
///
/// # Source
/// Graves et al. 2006; TensorFlow's `tf.nn.ctc_loss` with dense labels.
#[track_caller]
pub fn ctc_per_example(logits: &Tensor, labels: &Tensor, blank: i64) -> Tensor {
    ctc_with_lengths(logits, labels, CtcLengths::default(), blank)
}

/// The lengths of each example, `[batch]` of integers each.
#[derive(Clone, Copy, Debug, Default)]
pub struct CtcLengths<'a> {
    /// The number of labels. Default: those before the first blank.
    pub labels: Option<&'a Tensor>,
    /// The number of steps. Default: all.
    pub logits: Option<&'a Tensor>,
}

/// [`ctc_per_example`] with known lengths: labels and steps beyond them are ignored and have no gradient.
///
/// # Errors
/// As [`ctc_per_example`]; lengths that are not `[batch]` of integers.
///
/// # Source
/// TensorFlow's `tf.nn.ctc_loss` with `label_length` and `logit_length`.
#[track_caller]
pub fn ctc_with_lengths(logits: &Tensor, labels: &Tensor, lengths: CtcLengths<'_>, blank: i64) -> Tensor {
    let length_inputs = [lengths.labels, lengths.logits].into_iter().flatten();
    if let Some(poison) = length_inputs.clone().find(|length| length.is_poison()) {
        return poison.clone();
    }
    let run = || match log_probability(logits, labels, lengths, blank) {
        Ok(log_probability) if log_probability.is_poison() => log_probability,
        Ok(log_probability) => infinite_without_alignment(&log_probability.negate()),
        Err(message) => logits.graph().fail("ctc", &[logits, labels], RuleError::new("ctc/step", message)),
    };
    let check = || {
        check(logits, labels, blank)?;
        length_inputs.clone().try_for_each(|length| check_length(length, logits.dims()[0]))
    };
    loss("ctc", [logits, labels], check, run)
}

/// The loss, infinite where no alignment exists: no other loss is near that of a step that cannot be. NaN stays NaN.
#[track_caller]
fn infinite_without_alignment(loss: &Tensor) -> Tensor {
    let (g, dtype, dims) = (loss.graph(), loss.dtype(), loss.dims());
    let [impossible, infinite] = [-NEVER / 2.0, f64::INFINITY].map(|value| g.full(dtype, &dims, value));
    loss.greater(&impossible).select(&infinite, loss)
}

fn check_length(length: &Tensor, batch: i64) -> Result<(), RuleError> {
    match length.dtype().is_integer() && length.dims() == [batch] {
        true => Ok(()),
        false => {
            let message = format!("lengths are {}, expected whole numbers [{batch}]", length.shape());
            Err(RuleError::new("ctc/lengths", message))
        }
    }
}

fn check(logits: &Tensor, labels: &Tensor, blank: i64) -> Result<(), RuleError> {
    check_logits("logits", logits)?;
    let &[batch, _, classes] = &logits.dims()[..] else {
        let message =
            format!("logits {} have rank {}, expected 3: [batch, steps, classes]", logits.shape(), logits.rank());
        return Err(RuleError::new("ctc/rank", message));
    };
    let fits =
        matches!(labels.dims()[..], [rows, length] if rows == batch && length > 0) && labels.dtype().is_integer();
    if !fits {
        let message = format!("labels are {}, expected whole numbers [{batch}, length]", labels.shape());
        return Err(RuleError::new("ctc/labels", message));
    }
    if !(0..classes).contains(&blank) {
        let message = format!("blank is {blank}, expected one of {classes} classes, from 0 to {}", classes - 1);
        return Err(RuleError::new("ctc/blank", message));
    }
    Ok(())
}

#[track_caller]
fn log_probability(logits: &Tensor, labels: &Tensor, lengths: CtcLengths<'_>, blank: i64) -> Result<Tensor, String> {
    let (g, dtype) = (logits.graph(), logits.dtype());
    let [batch, steps, classes] = logits.dims()[..] else { return Err("rank".to_string()) };
    let length = labels.dims()[1];
    let n_states = 2 * length + 1;
    // State 2i is the blank before label i, state 2i + 1 the label itself.
    let blanks = |dims: &[i64]| g.full(labels.dtype(), dims, blank as f64);
    let pairs = Tensor::concatenate(&[&labels.reshape([batch, length, 1]), &blanks(&[batch, length, 1])], 2);
    let states = Tensor::concatenate(&[&blanks(&[batch, 1]), &pairs.reshape([batch, 2 * length])], 1);
    let by_state = {
        let dims = [batch, steps, n_states, classes];
        let is_it = g.iota(labels.dtype(), &dims, 3).equal(&states.broadcast_in_dim(&dims, &[0, 2]));
        let wide = Activation::LogSoftmax.apply(logits).broadcast_in_dim(&dims, &[0, 1, 3]);
        is_it.select(&wide, &g.full(dtype, &dims, 0.0)).sum(&[3]).transpose(&[1, 0, 2])
    };
    let scores = |is: &Tensor| {
        let [never, zeros] = [NEVER, 0.0].map(|value| g.full(dtype, &is.dims(), value));
        is.select(&zeros, &never)
    };
    // From one label directly to the next, if they differ.
    let before = shifted(&states, 2, blank as f64);
    let is_label = states.not_equal(&blanks(&[batch, n_states]));
    let skips = scores(&states.not_equal(&before).binary(BinaryOp::And, &is_label));
    let number = g.iota(DType::S32, &[batch, n_states], 1);
    let start = scores(&number.equal(&g.full(DType::S32, &[batch, n_states], 0.0)));
    let counts = lengths.logits.map(|length| {
        let dims = [steps, batch];
        g.iota(DType::S32, &dims, 0).less(&length.cast(DType::S32).broadcast_in_dim(&dims, &[1]))
    });
    let body = step(g, dtype, batch, n_states, counts.is_some())?;
    let mut operands = vec![Operand::Carried(&start), Operand::Carried(&skips), Operand::Split(&by_state)];
    operands.extend(counts.as_ref().map(Operand::Split));
    let n = u32::try_from(steps).map_err(|_| format!("{steps} steps"))?;
    let results = g.scan(n, &body.module, &operands);
    let last = &results[0];
    if last.is_poison() {
        return Ok(g.tensor(POISON));
    }
    // The last label, or the blank after it.
    let n_labels = match lengths.labels {
        Some(length) => length.cast(DType::S32),
        None => {
            // The distance of the first blank from the end.
            let dims = [batch, length];
            let [zeros, all] = [0.0, length as f64].map(|value| g.full(DType::S32, &dims, value));
            let left = &all - g.iota(DType::S32, &dims, 1);
            let is_blank = labels.equal(&blanks(&dims));
            g.full(DType::S32, &[batch], length as f64) - is_blank.select(&left, &zeros).max(&[1])
        }
    };
    let end = (n_labels * 2.0).broadcast_in_dim(&[batch, n_states], &[0]);
    let is_end = number.equal(&end).binary(BinaryOp::Or, &number.equal(&(&end - 1.0)));
    Ok(log_sum(&[&(last + scores(&is_end))], Some(1)))
}

/// One step as a program: (scores of the states, skips, log probabilities of the states' classes, whether the step counts) →
/// (scores, skips).
fn step(outer: &Graph, dtype: DType, batch: i64, n_states: i64, is_counted: bool) -> Result<Program, String> {
    let g = Graph::new("ctc").placed_as(outer);
    let input = |name: &str| g.input(name, dtype, [batch, n_states]);
    let (scores, skips) = (input("scores"), input("skips"));
    let row = g.input("row", dtype, [1, batch, n_states]).reshape([batch, n_states]);
    let ways = [&scores, &shifted(&scores, 1, NEVER), &(shifted(&scores, 2, NEVER) + &skips)];
    let next = log_sum(&ways, None) + row;
    let counts = is_counted.then(|| g.input("counts", DType::Pred, [1, batch]).reshape([batch]));
    let next =
        counts.map_or(next.clone(), |counts| counts.broadcast_in_dim(&[batch, n_states], &[0]).select(&next, &scores));
    g.finish(&[("scores", &next), ("skips", &skips)]).map_err(|error| error.to_string())
}

/// Each row shifted right, with `value` at the start.
#[track_caller]
fn shifted(x: &Tensor, by: i64, value: f64) -> Tensor {
    let plain = PadDim { low: 0, high: 0, interior: 0 };
    x.pad(value, &[plain, PadDim { low: by, high: -by, ..plain }])
}

/// `log Σ exp` of several arrays, or along an axis of one. The maximum is subtracted first; its gradient cancels.
#[track_caller]
fn log_sum(ways: &[&Tensor], axis: Option<i64>) -> Tensor {
    let first = ways[0];
    let largest = match axis {
        Some(axis) => first.max(&[axis]),
        None => ways[1..].iter().fold(first.clone(), |largest, way| largest.maximum(way)),
    };
    let others: Vec<i64> = (0..first.rank() as i64).filter(|&other| Some(other) != axis).collect();
    let over = largest.broadcast_in_dim(&first.dims(), &others);
    let powers = ways.iter().map(|way| (*way - &over).exponential());
    let sum = powers.reduce(|sum, power| sum + power).unwrap_or_else(|| first.clone());
    let sum = axis.map_or(sum.clone(), |axis| sum.sum(&[axis]));
    sum.log() + largest
}
