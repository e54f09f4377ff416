//! Completes texts: a causal network predicts the next token, which is appended, again and again.
//!
//! The program reads as many tokens as in training and returns the logits of one position. A network that reads tokens
//! after the position is detected by running it twice, with different tokens there.

use super::checkpoint::Checkpoint;
use super::device::{Loaded, upload};
use super::error::{TrainError, TrainErrorKind, TrainPlace};
use super::hosts::Site;
use super::program;
use bf16scope_data::{Batch, Draw, NamedArray};
use bf16scope_hlo::DType;
use bf16scope_hlo::element::f32s;
use bf16scope_model::graph::{Numbers, Scope};
use bf16scope_model::task::{Feature, FeatureDType, Features, Identity, Mode, Outputs, Task};
use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::{Buffer, Client};
use std::path::Path;

/// How the next token is sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Divides the logits before sampling; 0 takes the most probable token, the first on a tie.
    pub temperature: f64,
    /// Samples from this many of the most probable tokens. Default all.
    pub top_k: Option<usize>,
    /// The seed: samples are a function of it and of how many tokens were sampled before.
    pub seed: u64,
}

/// The compiled program of a task that completes texts.
#[derive(Debug)]
pub struct Completer {
    loaded: Loaded,
    name: String,
    input: Feature,
    vocabulary: i64,
}

/// The input that selects the position of the logits.
const POSITION: &str = "completed position";

/// A task whose prediction is the logits of one position.
#[derive(Debug)]
struct OfPosition<'a> {
    task: &'a dyn Task,
    features: Vec<Feature>,
}

impl Task for OfPosition<'_> {
    fn name(&self) -> &str {
        self.task.name()
    }

    fn features(&self) -> Vec<Feature> {
        self.features.clone()
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        let outputs = self.task.call(s, features, mode);
        let Some((_, logits)) = outputs.predictions.iter().find(|(name, _)| name == "logits") else { return outputs };
        let dims = logits.dims();
        if dims.len() != 3 || logits.is_poison() {
            return outputs;
        }
        let graph = logits.graph();
        let position = features.get(POSITION).broadcast_in_dim(&dims, &[0]);
        let is_wanted = graph.iota(DType::S32, &dims, 1).equal(&position);
        // All but one summand are zero, so the sum is exact.
        let row = is_wanted.select(logits, &graph.full(logits.dtype(), &dims, 0.0)).sum(&[1]);
        Outputs::new().prediction("logits", &row.cast(DType::F32))
    }

    fn identity(&self) -> Identity {
        self.task.identity()
    }
}

impl Completer {
    /// Builds and compiles the program.
    ///
    /// # Errors
    /// A task that does not predict a token at each position of one sequence; a program that cannot be built or
    /// compiled.
    pub fn new(
        client: &Client,
        task: &dyn Task,
        numbers: impl Into<Numbers>,
        tuning: &Tuning,
    ) -> Result<Completer, TrainError> {
        let mut features = task.features();
        features.retain(|feature| !feature.is_label);
        let wrong = |measured: String| {
            let expected = "a decoder: one sequence of tokens in, and `logits` [batch, length, vocabulary] out";
            not_completed(task.name(), &measured, expected)
        };
        let is_sequence = |feature: &Feature| {
            matches!(feature.dtype, FeatureDType::Exact(DType::S32))
                && feature.dims.len() == 1
                && feature.n_values.is_some()
        };
        let input = match &features[..] {
            [feature] if is_sequence(feature) => feature.clone(),
            others => {
                let shown: Vec<String> = others.iter().map(|f| format!("`{}` {:?}", f.name, f.dims)).collect();
                return Err(wrong(format!("it reads {}", shown.join(", "))));
            }
        };
        let vocabulary = input.n_values.unwrap_or_default();
        features.push(Feature::exact(POSITION, DType::S32, []));
        let one = OfPosition { task, features: features.clone() };
        let program = program::prediction(&one, numbers.into(), 1, tuning)?;
        let entry = program.program.module.entry();
        let first = entry.instr(entry.root).operands.first().map(|&id| entry.instr(id).shape.clone());
        let dims = first.map(|shape| shape.dims().to_vec()).unwrap_or_default();
        if program.program.outputs != ["logits"] || dims != [1, vocabulary] {
            return Err(wrong(format!(
                "it predicts {} {dims:?} of {vocabulary} tokens",
                program.program.outputs.join(", ")
            )));
        }
        let loaded = Loaded::new(client, program, 0, features, 1, Site::alone(client))?;
        Ok(Completer { loaded, name: task.name().to_string(), input, vocabulary })
    }

    /// The size of the vocabulary: ids are below it.
    pub fn vocabulary(&self) -> i64 {
        self.vocabulary
    }

    /// The `n` tokens after `prompt`, from a checkpoint that was read from `path` (its averages, where it has any);
    /// `take` receives each as it comes. If the text is longer than the network's input, only its end is read.
    ///
    /// # Errors
    /// A checkpoint of another task; a prompt without tokens, or with ids beyond the vocabulary; a network that is not
    /// causal; logits that are NaN.
    pub fn complete(
        &self,
        path: &Path,
        checkpoint: &Checkpoint,
        prompt: &[u32],
        n: usize,
        sampling: &Sampling,
        mut take: impl FnMut(u32),
    ) -> Result<Vec<u32>, TrainError> {
        let _span = tracing::info_span!("complete").entered();
        let wrong = |measured: String, expected| not_completed(&self.name, &measured, expected);
        if prompt.is_empty() {
            return Err(wrong("a text without tokens".to_string(), "one at least, to go on from"));
        }
        if let Some(id) = prompt.iter().find(|&&id| i64::from(id) >= self.vocabulary) {
            let measured = format!("a text with token {id}, of {}", self.vocabulary);
            return Err(wrong(measured, "the tokenizer that the network was trained with"));
        }
        let checkpoint = checkpoint.read_as(self.loaded.wanted());
        let arrays = checkpoint.exported(path, self.loaded.wanted())?;
        let buffers = upload(&self.loaded.client, &arrays)?;
        let variables: Vec<&Buffer> = buffers.iter().collect();
        let length = self.input.dims[0] as usize;
        let mut tokens = prompt.to_vec();
        for number in 0..n {
            let read = &tokens[tokens.len().saturating_sub(length)..];
            let logits = self.logits(&variables, read, 0)?;
            let is_first_with_room = (number == 0 || read.len() == 1) && read.len() < length;
            if is_first_with_room && !same(&self.logits(&variables, read, 1)?, &logits) {
                let measured = "a network whose logits depend on the tokens that come after".to_string();
                return Err(wrong(measured, "a causal one: `causal: true`, or `use_causal_mask: true` of its blocks"));
            }
            let Some(id) = chosen(&logits, sampling, number as u64) else {
                return Err(wrong(format!("logits that are not numbers after {} tokens", tokens.len()), "finite ones"));
            };
            tokens.push(id);
            take(id);
        }
        Ok(tokens.split_off(prompt.len()))
    }

    /// The logits of the token after `read`, with `filler` in the remaining positions.
    fn logits(&self, variables: &[&Buffer], read: &[u32], filler: i64) -> Result<Vec<f32>, TrainError> {
        let length = self.input.dims[0];
        let filler = filler.min(self.vocabulary - 1) as u32;
        let ids = read.iter().copied().chain(std::iter::repeat(filler)).take(length as usize);
        let whole =
            |name: &str, dims: Vec<i64>, bytes| NamedArray { name: name.to_string(), dtype: DType::S32, dims, bytes };
        let arrays = vec![
            whole(&self.input.name, vec![1, length], ids.flat_map(u32::to_le_bytes).collect()),
            whole(POSITION, vec![1], (read.len() as i32 - 1).to_le_bytes().to_vec()),
        ];
        let fed = self.loaded.put(&Batch { arrays, n_valid: 1 }, 0, true)?;
        let results = self.loaded.run(variables, fed)?;
        let bytes = results[0].to_host()?;
        Ok(f32s(DType::F32, &bytes).into_iter().flatten().collect())
    }
}

/// Whether logits are equal; NaN equals NaN.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a == b || a.is_nan() && b.is_nan())
}

/// The sampled token; `None` where logits are NaN.
fn chosen(logits: &[f32], sampling: &Sampling, number: u64) -> Option<u32> {
    if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        return None;
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if sampling.temperature <= 0.0 {
        return order.first().map(|&id| id as u32);
    }
    order.truncate(sampling.top_k.unwrap_or(usize::MAX).max(1));
    let greatest = f64::from(logits[*order.first()?]);
    let weights: Vec<f64> =
        order.iter().map(|&id| ((f64::from(logits[id]) - greatest) / sampling.temperature).exp()).collect();
    let mut rest = Draw::without_epoch(sampling.seed, number).share() * weights.iter().sum::<f64>();
    for (&id, weight) in order.iter().zip(&weights) {
        rest -= weight;
        if rest < 0.0 {
            return Some(id as u32);
        }
    }
    // Rounding may leave a probability of a last bit.
    order.last().map(|&id| id as u32)
}

/// The error of a text that a task cannot complete.
fn not_completed(task: &str, measured: &str, expected: &str) -> TrainError {
    let text = format!("{measured}; a text is completed by {expected}");
    TrainError::new(TrainErrorKind::Model, TrainPlace::Task(task.to_string()), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_token_is_taken_and_others_are_drawn_as_often_as_their_probability_says() {
        let logits = [0.0, 2.0, -1.0, 2.0, f32::NEG_INFINITY];
        let greedy = Sampling::default();
        assert_eq!(chosen(&logits, &greedy, 0), Some(1));
        for (temperature, top_k) in [(1.0, None), (0.5, None), (1.0, Some(3)), (2.0, Some(1))] {
            let sampling = Sampling { temperature, top_k, seed: 5 };
            let n = 10_000;
            let mut counts = [0u32; 5];
            (0..n).for_each(|number| counts[chosen(&logits, &sampling, number).unwrap() as usize] += 1);
            let mut order = [1, 3, 0, 2, 4];
            order[top_k.unwrap_or(5)..].fill(usize::MAX);
            let weight = |id: usize| match order.contains(&id) {
                true => (f64::from(logits[id]) / temperature).exp(),
                false => 0.0,
            };
            let sum: f64 = (0..5).map(weight).sum();
            for (id, &count) in counts.iter().enumerate() {
                let p = weight(id) / sum;
                // Five standard deviations of a binomial count: exceeded once in 1.7 million times.
                let (mean, deviation) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
                assert!(
                    (f64::from(count) - mean).abs() <= 5.0 * deviation,
                    "{id}: {count}, expected {mean} ± {deviation}"
                );
            }
            let again: Vec<_> = (0..20).map(|number| chosen(&logits, &sampling, number)).collect();
            assert_eq!(again, (0..20).map(|number| chosen(&logits, &sampling, number)).collect::<Vec<_>>());
        }
        assert_eq!(chosen(&[0.0, f32::NAN], &greedy, 0), None);
        assert_eq!(chosen(&[0.0, f32::INFINITY], &greedy, 0), None);
    }
}
