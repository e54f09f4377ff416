//! Batch normalisation.

use super::options::{above_zero, is_true, unit_interval};
use super::{at_least, is_float, normalising_dtype};
use crate::graph::{Group, Init, Scope, Tensor, Variable};
use bf16scope_hlo::ops::batch_norm::normalisation::Normalisation;
use bf16scope_hlo::ops::{self, RuleError};
use bf16scope_hlo::{DType, Emitter, InstrId, Op};
use bf16scope_passes::tuning::NormGradient;
use serde::{Deserialize, Serialize};

/// Configuration of [`batch_norm`]. The defaults are Keras'; [`BatchNorm::RESNET`] is that of TensorFlow's ResNet-50.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchNorm {
    /// The share of the running statistics that a step keeps. Default 0.99.
    #[serde(deserialize_with = "unit_interval")]
    pub momentum: f64,
    /// Added to the variance, in f32. Default 0.001.
    #[serde(deserialize_with = "above_zero")]
    pub epsilon: f64,
    /// The axis of features. Default -1, the last.
    pub axis: i64,
    /// Whether there is an offset, the variable `beta`. Default true.
    #[serde(skip_serializing_if = "is_true")]
    pub center: bool,
    /// Whether there is a scale, the variable `gamma`. Default true.
    #[serde(skip_serializing_if = "is_true")]
    pub scale: bool,
    /// The initializer of the offset. Default `zeros`.
    pub beta_initializer: Init,
    /// The initializer of the scale. Default `ones`. Zeros in the last batch norm of a residual block make the block
    /// start as the identity.
    pub gamma_initializer: Init,
    /// How the gradient is computed; not in YAML. Default: the graph's tuning decides.
    #[serde(skip)]
    pub gradient: Option<NormGradient>,
}

impl BatchNorm {
    /// The configuration of TensorFlow's ResNet-50: momentum 0.9, epsilon 1e-5.
    pub const RESNET: BatchNorm = BatchNorm {
        momentum: 0.9,
        epsilon: 1e-5,
        axis: -1,
        center: true,
        scale: true,
        beta_initializer: Init::Zeros,
        gamma_initializer: Init::Ones,
        gradient: None,
    };
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm { momentum: 0.99, epsilon: 0.001, ..BatchNorm::RESNET }
    }
}

/// `gamma · (x - mean) / sqrt(variance + epsilon) + beta`, per feature.
///
/// In a program that trains, mean and (biased) variance are those of the batch, and the running statistics are updated:
/// `running - (running - batch) · (1 - momentum)`, the variance of the batch first multiplied by `n / (n - 1)` for its
/// `n` elements per feature, as TensorFlow's fused op does. Otherwise, and in a layer that is
/// [frozen](Scope::frozen), they are the running statistics.
///
/// # Shapes
/// x `[…, c, …]` → the same; variables `gamma` (with `scale`), `beta` (with `center`), `moving_mean`, `moving_variance` `[c]`,
/// the last two not trainable.
///
/// # Replicas
/// Each replica takes the statistics of its own part of a batch, unless the graph's
/// [`Replicas::statistics`](crate::graph::Replicas::statistics) groups replicas: then mean and variance are those of
/// all parts in the group, and `n` counts all their elements. They are computed from the parts' means and variances,
/// which loses no digits to large means: the mean of means, and the mean of `variance + (mean - mean of means)²`.
/// Gradients follow the same formulas.
///
/// # Types
/// bf16 and f16 data is converted to f32, normalised in f32, and the result rounded once; variables are f32, requested
/// as f32 in any scope (HLO's `batch-norm-*` requires one dtype). f32 and f64 data is normalised in its own dtype.
///
/// # Errors
/// x not floating or of rank below 2; an axis that x does not have, or the batch's; momentum outside `[0, 1]`; epsilon not positive.
///
/// # Source
/// TensorFlow's `FusedBatchNormV3` as its XLA bridge compiles it, and Keras' `BatchNormalization`; Ioffe & Szegedy 2015.
#[track_caller]
pub fn batch_norm(s: &Scope, x: &Tensor, name: &str, config: &BatchNorm) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        if let Err(error) = check(x, config) {
            return s.graph().fail("batch_norm", &[x], error);
        }
        let (axis, dtype) = (x.axis(config.axis), normalising_dtype(x));
        let variables = Variables::new(s, dtype, x.dims()[axis as usize], config);
        let Variables { gamma, beta, running_mean, running_variance } = &variables;
        let attributes = ops::BatchNorm { epsilon: config.epsilon as f32, feature_index: axis };
        let data = x.cast(dtype);
        if !s.is_training() || s.is_frozen() {
            let y = inference(&data, [gamma, beta, &running_mean.value, &running_variance.value], attributes);
            return y.cast(x.dtype());
        }
        let (all, own) = training(&data, gamma, beta, attributes);
        let group = s.graph().statistics_group();
        let [mean, variance] = over(group.as_ref(), own);
        variables.update(&mean, &variance, &x.dims(), config);
        let norm = Normalisation { scale: gamma.id, mean: mean.id, variance: variance.id, attributes };
        let gradient = config.gradient.unwrap_or(s.tuning().norm_gradient);
        let y = match (gradient, &group) {
            (_, Some(_)) => inference(&data, [gamma, beta, &mean, &variance], attributes),
            (NormGradient::PerElement | NormGradient::PerFeature, None) => all.get_tuple_element(0),
        };
        let y = match (gradient, &group) {
            (NormGradient::PerElement, None) => y,
            (NormGradient::PerElement | NormGradient::PerFeature, _) => {
                let x = data.id;
                y.with_layer_vjp(&[&data, gamma, beta], move |e, g, _| {
                    let to_parameters = norm.parameter_cotangents(e, x, g);
                    let of_all = mean_cotangents(e, group.as_ref(), to_parameters);
                    vec![norm.data_cotangent(e, x, g, of_all), to_parameters[0], to_parameters[1]]
                })
            }
        };
        y.cast(x.dtype())
    })
}

/// `batch-norm-training`; also returns the mean and variance of each feature.
#[track_caller]
pub(super) fn training(
    data: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    attributes: ops::BatchNorm,
) -> (Tensor, [Tensor; 2]) {
    let op = Op::BatchNormTraining(attributes);
    let all = data.emit("batch-norm-training", &[gamma, beta], |e| e.emit(op, &[data.id, gamma.id, beta.id], None));
    let statistics = [1, 2].map(|element| all.get_tuple_element(element));
    (all, statistics)
}

/// The mean and variance over all parts of a group of replicas, from those of each.
#[track_caller]
pub(super) fn over(group: Option<&Group>, [mean, variance]: [Tensor; 2]) -> [Tensor; 2] {
    let Some(group) = group else { return [mean, variance] };
    let share = 1.0 / f64::from(group.size.get());
    let of_all = mean.sum_over_group(group) * share;
    let distance = &mean - &of_all;
    let variance = (variance + &distance * &distance).sum_over_group(group) * share;
    [of_all, variance]
}

/// The cotangents of scale and offset that the group's statistics pass on to each part's data: the mean over the parts.
pub(super) fn mean_cotangents(e: &Emitter, group: Option<&Group>, cotangents: [InstrId; 2]) -> [InstrId; 2] {
    match group {
        None => cotangents,
        Some(group) => cotangents.map(|cotangent| group.mean(e, cotangent)),
    }
}

/// `batch-norm-inference` with gamma, beta, mean and variance.
#[track_caller]
pub(super) fn inference(data: &Tensor, parameters: [&Tensor; 4], attributes: ops::BatchNorm) -> Tensor {
    let op = Op::BatchNormInference(attributes);
    let [gamma, beta, mean, variance] = parameters.map(|tensor| tensor.id);
    data.emit("batch-norm-inference", &parameters, |e| e.emit(op, &[data.id, gamma, beta, mean, variance], None))
}

/// A batch norm's variables, each `[features]`.
pub(super) struct Variables {
    pub(super) gamma: Tensor,
    pub(super) beta: Tensor,
    pub(super) running_mean: Variable,
    pub(super) running_variance: Variable,
}

impl Variables {
    #[track_caller]
    pub(super) fn new(s: &Scope, dtype: DType, features: i64, config: &BatchNorm) -> Variables {
        // Without its variable, a scale is 1 and an offset 0.
        let variable = |name: &str, is_there: bool, init: Init, value: f64| match is_there {
            true => s.variable(name, dtype, [features], init).value,
            false => s.graph().full(dtype, &[features], value),
        };
        Variables {
            gamma: variable("gamma", config.scale, config.gamma_initializer, 1.0),
            beta: variable("beta", config.center, config.beta_initializer, 0.0),
            running_mean: s.state("moving_mean", dtype, [features], Init::Zeros),
            running_variance: s.state("moving_variance", dtype, [features], Init::Ones),
        }
    }

    /// Moves the running statistics towards those of a batch with these dims on each replica of the group.
    pub(super) fn update(&self, mean: &Tensor, variance: &Tensor, dims: &[i64], config: &BatchNorm) {
        let n_features = self.gamma.dims().iter().product::<i64>();
        let n_replicas = i64::from(self.gamma.graph().replicas().statistics.get());
        let n_elements = dims.iter().product::<i64>() / n_features.max(1) * n_replicas;
        let unbiased = variance * (n_elements as f64 / (n_elements - 1).max(1) as f64);
        for (running, batch) in [(&self.running_mean, mean), (&self.running_variance, &unbiased)] {
            let step = (&running.value - batch) * (1.0 - config.momentum);
            running.value.graph().set_update(running.number, &(&running.value - &step));
        }
    }
}

pub(super) fn check(x: &Tensor, config: &BatchNorm) -> Result<(), RuleError> {
    is_float("batch_norm/dtype", "x", x)?;
    at_least("batch_norm/rank", "rank of x", x.rank() as i64, 2)?;
    if !(1..x.rank() as i64).contains(&x.axis(config.axis)) {
        let message = format!("axis is {}, expected one of x {} after the batch", config.axis, x.shape());
        return Err(RuleError::new("batch_norm/axis", message));
    }
    if !(0.0..=1.0).contains(&config.momentum) {
        let message = format!("momentum is {}, expected 0 to 1", config.momentum);
        return Err(RuleError::new("batch_norm/momentum", message));
    }
    if config.epsilon as f32 > 0.0 {
        return Ok(());
    }
    Err(RuleError::new("batch_norm/epsilon", format!("epsilon is {}, expected more than 0", config.epsilon)))
}
