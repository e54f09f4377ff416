//! `weights --check`: compares the model's outputs with those that another framework computed from the same inputs and
//! weights.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::Context;
use crate::child::client;
use crate::report::{Column, Screen, Table};
use bf16scope_data::weights::{self, WeightsFile};
use bf16scope_data::{ArrayInfo, Arrays, NamedArray};
use bf16scope_hlo::element::{f64s, floats};
use bf16scope_hlo::{DType, Literal};
use bf16scope_model::graph::Precision;
use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::Platform;
use bf16scope_train::checkpoint::Checkpoint;
use bf16scope_train::experiment::Experiment;
use bf16scope_train::{Predictor, predicted_from};

/// An output in one precision compared with the recorded one.
#[derive(Debug, Serialize)]
pub(super) struct Checked {
    output: String,
    precision: Precision,
    /// The root mean square of the recorded output.
    recorded_rms: f64,
    /// The deviation of the recorded output from its mean over the examples, element by element; with one example, from
    /// the mean of all elements.
    recorded_spread: f64,
    /// The largest difference.
    max: f64,
    /// The root mean square of the differences.
    rms: f64,
    /// Elements that are NaN or infinite in one output and not the same in the other; the figures exclude them.
    n_not_finite: u64,
    /// The root mean square difference between the other framework's own bf16 output and its f32 output, if recorded.
    theirs_rms: Option<f64>,
}

/// One rounding to bf16 changes a number by up to 2^-9 of it. Sums of the same numbers in another order differ by a few
/// 2^-24 of them: outputs in f32 that are as far apart as bf16's are those of another function. The reference is the
/// spread between examples, because an offset that all of them share, such as a large bias, would hide any difference.
const ANOTHER_FUNCTION: f64 = 1.0 / 512.0;
/// Outputs whose relative difference is below this are the same in f32: sixty-four of its roundings.
const SAME_IN_F32: f64 = 64.0 / (1 << 24) as f64;

impl Checked {
    /// Whether the difference is explained by rounding.
    pub(super) fn is_same_function(&self) -> bool {
        let bound = (ANOTHER_FUNCTION * self.recorded_spread).max(SAME_IN_F32 * self.recorded_rms);
        self.precision != Precision::F32 || self.n_not_finite == 0 && self.rms <= bound
    }

    /// Whether the examples' outputs are so similar that a comparison is not conclusive.
    fn is_flat(&self) -> bool {
        self.recorded_spread * ANOTHER_FUNCTION < SAME_IN_F32 * self.recorded_rms
    }
}

/// Runs the model in f32 and bf16 on the inputs in a file, and compares with the outputs in it.
pub(super) fn compare(
    arrays: &Path,
    experiment: &Experiment,
    (path, checkpoint): (&Path, &Checkpoint),
    context: &Context,
) -> anyhow::Result<Vec<Checked>> {
    let recorded = weights::open(arrays)?;
    let task = experiment.task();
    let inputs = predicted_from(&*task).into_iter().map(|feature| {
        let (dims, dtype, bytes) = array(&recorded, &feature.name)?;
        let dims = dims.get(1..).unwrap_or_default().to_vec();
        Ok((ArrayInfo::new(&feature.name, dtype, dims), bytes))
    });
    let source = Arrays::new(arrays, inputs.collect::<anyhow::Result<Vec<_>>>()?)?;
    let client = client(&Platform::cpu(), &context.setup())?;
    let n = u32::try_from(bf16scope_data::Source::n_examples(&source)).unwrap_or(u32::MAX);
    let batch = n.min(experiment.train.batch);
    let mut checked = Vec::new();
    for precision in [Precision::F32, Precision::Bf16] {
        let predictor = Predictor::new(&client, &*task, precision, batch, &Tuning::none())?;
        let mut predicted: Vec<NamedArray> = Vec::new();
        predictor.predict(path, checkpoint, &source, |next| -> anyhow::Result<()> {
            if predicted.is_empty() {
                predicted = next;
                return Ok(());
            }
            predicted.iter_mut().zip(next).for_each(|(all, next)| all.bytes.extend(next.bytes));
            Ok(())
        })?;
        for NamedArray { name, dtype, bytes, .. } in predicted {
            if recorded.find(&name).is_none() {
                continue;
            }
            let (ours, theirs) =
                (f64s(dtype, &bytes).into_iter().flatten().collect::<Vec<f64>>(), recorded_numbers(&recorded, &name)?);
            if ours.len() != theirs.len() {
                bail!("{name} has {} numbers, the model predicts {}", theirs.len(), ours.len());
            }
            // NaN in both, or the same infinity in both, counts as equal.
            let is_same =
                |(ours, theirs): (f64, f64)| ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
            let pairs: Vec<(f64, f64)> = ours.iter().copied().zip(theirs.iter().copied()).collect();
            let is_finite = |(ours, theirs): &(f64, f64)| ours.is_finite() && theirs.is_finite();
            let n_not_finite = pairs.iter().filter(|pair| !is_finite(pair) && !is_same(**pair)).count() as u64;
            let (ours, finite): (Vec<f64>, Vec<f64>) = pairs.iter().copied().filter(is_finite).unzip();
            if finite.is_empty() && !theirs.is_empty() {
                bail!(
                    "no element of {name} is finite both there and as the model predicts it, so that nothing can be compared"
                );
            }
            let array = format!("{name}_bf16");
            let numbers = recorded.find(&array).map(|_| recorded_numbers(&recorded, &array)).transpose()?;
            let theirs_rms = numbers.filter(|_| precision == Precision::Bf16).map(|numbers| rms_of(&numbers, &theirs));
            checked.push(Checked {
                output: name,
                precision,
                recorded_rms: rms_of(&finite, &vec![0.0; finite.len()]),
                recorded_spread: spread(&theirs, n as usize),
                max: ours.iter().zip(&finite).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f64::max),
                rms: rms_of(&ours, &finite),
                n_not_finite,
                theirs_rms,
            });
        }
    }
    if checked.is_empty() {
        bail!("it has no output that the model predicts: save it under the name of a prediction, such as `logits`");
    }
    Ok(checked)
}

fn rms_of(left: &[f64], right: &[f64]) -> f64 {
    let sum: f64 = left.iter().zip(right).map(|(left, right)| (left - right) * (left - right)).sum();
    (sum / left.len().max(1) as f64).sqrt()
}

/// The spread of numbers of `n_examples` examples: the distance from the mean of the same element over the examples, or
/// of all elements if there is one example.
fn spread(numbers: &[f64], n_examples: usize) -> f64 {
    let n_columns = match n_examples {
        2.. => numbers.len() / n_examples,
        _ => 1,
    };
    let mut squares = (0.0, 0u64);
    for column in 0..n_columns {
        let column = || numbers.iter().skip(column).step_by(n_columns).filter(|number| number.is_finite());
        let mean = column().sum::<f64>() / column().count().max(1) as f64;
        column().for_each(|number| squares = (squares.0 + (number - mean) * (number - mean), squares.1 + 1));
    }
    (squares.0 / squares.1.max(1) as f64).sqrt()
}

fn array(file: &WeightsFile, name: &str) -> anyhow::Result<(Vec<i64>, DType, Vec<u8>)> {
    match file.read(name)? {
        Literal::Array { shape, bytes } => Ok((shape.dims, shape.dtype, bytes)),
        Literal::Tuple(_) | Literal::Token => bail!("{name} is not an array"),
    }
}

fn recorded_numbers(file: &WeightsFile, name: &str) -> anyhow::Result<Vec<f64>> {
    let (_, dtype, bytes) = array(file, name)?;
    let numbers = floats(dtype, &bytes).with_context(|| format!("{name} is {dtype}, expected floats"))?;
    Ok(numbers.collect())
}

/// The comparison, for people.
pub(super) fn table(checked: &[Checked], screen: Screen) -> String {
    if checked.is_empty() {
        return String::new();
    }
    let mut table = Table::new([
        Column::name("output"),
        Column::text("precision"),
        Column::number("max"),
        Column::number("rms"),
        Column::number("rms / spread of output"),
        Column::number("theirs in bf16, rms"),
    ]);
    let number = |value: f64| format!("{value:.2e}");
    for Checked { output, precision, recorded_spread, max, rms, theirs_rms, .. } in checked {
        table.row([
            output.clone(),
            precision.to_string(),
            number(*max),
            number(*rms),
            number(rms / recorded_spread),
            theirs_rms.map_or(String::new(), number),
        ]);
    }
    let mut text = table.render(screen);
    for Checked { output, precision, n_not_finite, .. } in checked.iter().filter(|checked| checked.n_not_finite > 0) {
        text += &format!(
            "{output} in {precision}: of {n_not_finite} elements one, recorded or predicted, is NaN or infinite and the other is \
             not; the figures are of the others\n"
        );
    }
    let is_far = |checked: &Checked| checked.n_not_finite == 0 && !checked.is_same_function();
    if checked.iter().any(is_far) {
        text += "in f32 the outputs are as far apart as bf16 rounding would bring them: it is another function, or a variable is \
                 in another's place\n";
    }
    for Checked { output, recorded_spread, recorded_rms, .. } in checked.iter().filter(|checked| checked.is_flat()) {
        text += &format!(
            "{output} is nearly the same for all recorded examples, {recorded_spread:.1e} around a mean square of {recorded_rms:.1e}: \
             record inputs that differ more\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(recorded_rms: f64, recorded_spread: f64, rms: f64) -> Checked {
        Checked {
            output: "logits".to_string(),
            precision: Precision::F32,
            recorded_rms,
            recorded_spread,
            max: rms,
            rms,
            n_not_finite: 0,
            theirs_rms: None,
        }
    }

    /// Outputs with an offset of 100 and a spread of 1: an error of 0.1 means another function, although 0.1 is less
    /// than 2^-9 of the offset.
    #[test]
    fn an_offset_hides_no_difference() {
        let numbers = [101.0, 7.0, 99.0, 9.0];
        assert_eq!(spread(&numbers, 2), 1.0);
        assert_eq!(spread(&numbers[..2], 1), 47.0);
        assert!(!checked(100.0, 1.0, 0.1).is_same_function());
        assert!(checked(100.0, 1.0, 1e-3).is_same_function() && !checked(100.0, 1.0, 1e-3).is_flat());
        // A difference of f32's rounding alone is not conclusive.
        assert!(checked(100.0, 1e-3, 1e-4).is_same_function() && checked(100.0, 1e-3, 1e-4).is_flat());
    }
}
