//! Tasks: the features of an example, and one function from them to loss, metrics and predictions.
//!
//! A task is TensorFlow's `model_fn(features, labels, mode, params)` as a trait. `bf16scope_train::program` builds
//! three programs from one task (a training step, an evaluation, a prediction): it differentiates, scales, accumulates
//! and aliases. A task only defines the function:
//!
//! ```
//! use bf16scope_model::prelude::*;
//!
//! /// Fits a line through points.
//! #[derive(Debug)]
//! struct Line;
//!
//! impl Task for Line {
//!     fn name(&self) -> &str {
//!         "line"
//!     }
//!     fn features(&self) -> Vec<Feature> {
//!         vec![Feature::compute("x", [1]), Feature::exact("y", DType::F32, [1]).label()]
//!     }
//!     fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
//!         let x = features.get("x");
//!         let y = s.low_precision(|s| nn::dense(s, &x, "dense", &Dense { units: 1, ..Dense::default() }));
//!         let y = y.cast(DType::F32);
//!         if mode == Mode::Predict {
//!             return Outputs::new().prediction("y", &y);
//!         }
//!         let error = &y - features.get("y");
//!         let squared = (&error * &error).reshape([features.batch()]);
//!         Outputs::new().loss(Loss::weighted(&squared, &features.weight()))
//!     }
//! }
//!
//! let names: Vec<String> = Line.features().into_iter().map(|feature| feature.name).collect();
//! assert_eq!(names, ["x", "y"]);
//! ```

mod features;
mod identity;
mod metric;

pub use bf16scope_data::{Feature, FeatureDType};
pub use features::{Features, RESERVED};
pub use identity::Identity;
pub use metric::{Loss, Metric, Value, Weight};

use crate::graph::{Scope, Tensor};
use std::fmt;
use std::sync::Arc;

/// A network with its features, loss, metrics and predictions, from which three programs are built.
pub trait Task: Send + Sync + fmt::Debug {
    /// The name of its programs: `NAME_training_step`.
    fn name(&self) -> &str;

    /// The features of an example, in the order of the programs' inputs.
    fn features(&self) -> Vec<Feature>;

    /// The network and its outputs. `s.low_precision(|s| …)` opens the scope in which the network computes in low
    /// precision; its result is cast to f32, and losses and metrics are computed from that.
    ///
    /// With [`Mode::Train`] there must be a loss, with [`Mode::Evaluate`] a loss or metrics, with [`Mode::Predict`]
    /// predictions.
    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs;

    /// The properties that a checkpoint must agree with, in addition to the function of the prediction program, of
    /// which every checkpoint stores a hash. Default: the [name](Task::name).
    ///
    /// Implement it for a task with settings. A change is then refused with the setting's name and values, not as
    /// another hash; a setting that predictions do not show, such as a term of the loss, is compared at all; and one
    /// that [may change](Identity::with_changeable), such as a dropout rate, is reported. A task without predictions
    /// has no hash, so only its identity is compared.
    fn identity(&self) -> Identity {
        Identity::new(self.name())
    }

    /// Names of predictions that are logits of independent answers, as in a multi-label network: the sigmoid of each is
    /// a probability. Default none.
    fn independent_logits(&self) -> Vec<String> {
        Vec::new()
    }

    /// Predictions that are logits of exclusive classes, each with the label whose classes they are. Default none.
    fn class_labels(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Predictions that are logits of independent answers, each with the label that says yes or no. Default none.
    fn binary_labels(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The layers of a network that is made of layers, in order. Default none.
    fn network_layers(&self) -> Vec<NetworkLayer> {
        Vec::new()
    }
}

/// A shared task is a task.
impl<T: Task + ?Sized> Task for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn features(&self) -> Vec<Feature> {
        (**self).features()
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        (**self).call(s, features, mode)
    }

    fn identity(&self) -> Identity {
        (**self).identity()
    }

    fn independent_logits(&self) -> Vec<String> {
        (**self).independent_logits()
    }

    fn class_labels(&self) -> Vec<(String, String)> {
        (**self).class_labels()
    }

    fn binary_labels(&self) -> Vec<(String, String)> {
        (**self).binary_labels()
    }

    fn network_layers(&self) -> Vec<NetworkLayer> {
        (**self).network_layers()
    }
}

/// A layer of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkLayer {
    /// Its scoped name.
    pub name: String,
    /// The layer whose variables it uses, if they are another's: its instructions have that layer's name.
    pub shares: Option<String>,
    /// Dims of its output for one example.
    pub output: Vec<i64>,
}

/// The purpose of a call of a task's function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A step of training: dropout is on, batch norm uses the batch's statistics.
    Train,
    /// A batch of an evaluation, whose last examples may be padding: see [`Features::weight`].
    Evaluate,
    /// Predictions, without labels.
    Predict,
}

/// A task's outputs for a batch.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// The loss that training minimises.
    pub loss: Option<Loss>,
    /// Quantities that add up over batches, by name.
    pub metrics: Vec<(String, Metric)>,
    /// Predictions by name; the first dim is the batch.
    pub predictions: Vec<(String, Tensor)>,
    /// Scalars to monitor while training, by name, `f32[]`: they are copied to the host only on request, like those of
    /// TPUEstimator's `host_call`. With micro-batches, the mean.
    pub scalars: Vec<(String, Tensor)>,
    /// Losses that each train some of the variables, all at the same step and from the same values, as in a GAN. If
    /// empty, [`loss`](Outputs::loss) trains all.
    pub groups: Vec<LossGroup>,
}

/// A loss, and the variables that it trains: its gradient reaches no others.
#[derive(Clone, Debug)]
pub struct LossGroup {
    /// Its name in errors.
    pub name: String,
    /// Its mean over the batch, `f32[]`.
    pub loss: Tensor,
    /// Names of variables. Each variable belongs to one group.
    pub variables: Vec<String>,
    /// Whether it must depend on each of them.
    pub is_strict: bool,
}

impl Outputs {
    /// No outputs.
    pub fn new() -> Outputs {
        Outputs::default()
    }

    /// Sets the loss: a tensor `f32[]` is a mean, see [`Loss`].
    #[must_use]
    pub fn loss(mut self, loss: impl Into<Loss>) -> Outputs {
        self.loss = Some(loss.into());
        self
    }

    /// Adds a metric.
    #[must_use]
    pub fn metric(mut self, name: &str, metric: Metric) -> Outputs {
        self.metrics.push((name.to_string(), metric));
        self
    }

    /// Adds a prediction.
    #[must_use]
    pub fn prediction(mut self, name: &str, value: &Tensor) -> Outputs {
        self.predictions.push((name.to_string(), value.clone()));
        self
    }

    /// Adds a loss that trains some of the variables; `name` is used in errors.
    #[must_use]
    pub fn group(mut self, group: LossGroup) -> Outputs {
        self.groups.push(group);
        self
    }

    /// Adds a scalar.
    #[must_use]
    pub fn scalar(mut self, name: &str, value: &Tensor) -> Outputs {
        self.scalars.push((name.to_string(), value.clone()));
        self
    }
}
