//! A task: what an example holds, and one function from it to loss, metrics and predictions.
//!
//! It is TensorFlow's `model_fn(features, labels, mode, params)` as a trait. From one task
//! `bf16scope_train::program` makes three programs (a training step, an evaluation, a prediction): it
//! differentiates, scales, accumulates and aliases. A task only says what is computed:
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

/// What is learnt: data in, one function, three programs.
pub trait Task: Send + Sync + fmt::Debug {
    /// What its programs are named after: `NAME_training_step`.
    fn name(&self) -> &str;

    /// What one example holds, in the order in which the programs take it.
    fn features(&self) -> Vec<Feature>;

    /// The network, and what is made of it. `s.low_precision(|s| …)` opens the scope in which the network computes in
    /// low precision; what leaves it is cast to f32, and losses and metrics are made from that.
    ///
    /// With [`Mode::Train`] there must be a loss, with [`Mode::Evaluate`] a loss or metrics, with [`Mode::Predict`]
    /// predictions.
    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs;

    /// What a checkpoint must agree on, beside the function that the prediction program computes, of which every checkpoint
    /// keeps a hash. Default: the [name](Task::name).
    ///
    /// Write one for a task with settings. A change is then refused by the setting's name and values, not as another hash; a
    /// setting that predictions do not show, such as a term of the loss, is compared at all; and one that
    /// [may change](Identity::with_changeable), such as a dropout rate, is reported. A task that predicts nothing has no hash:
    /// its identity is all that is compared.
    fn identity(&self) -> Identity {
        Identity::new(self.name())
    }

    /// Names of predictions that are logits of independent answers, yes or no, as of a multi-label network: the sigmoid of
    /// each is a probability. Default none.
    fn independent_logits(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What is shared is as good as what is owned.
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
}

/// What a task's function is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A step of training: dropout is on, batch norm uses the batch's statistics.
    Train,
    /// A batch of an evaluation, whose last examples may be padding: see [`Features::weight`].
    Evaluate,
    /// Predictions, without labels.
    Predict,
}

/// What a task makes of a batch.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// What training minimises.
    pub loss: Option<Loss>,
    /// Quantities that add up over batches, by name.
    pub metrics: Vec<(String, Metric)>,
    /// What is predicted, by name; the first dim is the batch.
    pub predictions: Vec<(String, Tensor)>,
    /// Scalars to look at while training, by name, `f32[]`: they come to the host only when asked for, as those of
    /// TPUEstimator's `host_call`. Of micro-batches, the mean.
    pub scalars: Vec<(String, Tensor)>,
    /// Losses that train variables of their own, all at the same step and from the same values, as a GAN's. Of none,
    /// [`loss`](Outputs::loss) trains all.
    pub groups: Vec<LossGroup>,
}

/// A loss, and the variables that it trains: its gradient reaches no others.
#[derive(Clone, Debug)]
pub struct LossGroup {
    /// What errors call it.
    pub name: String,
    /// Its mean over the batch, `f32[]`.
    pub loss: Tensor,
    /// Names of variables. Each variable is of one group.
    pub variables: Vec<String>,
    /// Whether it must depend on each of them.
    pub is_strict: bool,
}

impl Outputs {
    /// Nothing yet.
    pub fn new() -> Outputs {
        Outputs::default()
    }

    /// With a loss: a tensor `f32[]` is a mean, see [`Loss`].
    #[must_use]
    pub fn loss(mut self, loss: impl Into<Loss>) -> Outputs {
        self.loss = Some(loss.into());
        self
    }

    /// With one more metric.
    #[must_use]
    pub fn metric(mut self, name: &str, metric: Metric) -> Outputs {
        self.metrics.push((name.to_string(), metric));
        self
    }

    /// With one more prediction.
    #[must_use]
    pub fn prediction(mut self, name: &str, value: &Tensor) -> Outputs {
        self.predictions.push((name.to_string(), value.clone()));
        self
    }

    /// With one more loss that trains variables of its own, named by `name` in errors.
    #[must_use]
    pub fn group(mut self, group: LossGroup) -> Outputs {
        self.groups.push(group);
        self
    }

    /// With one more scalar.
    #[must_use]
    pub fn scalar(mut self, name: &str, value: &Tensor) -> Outputs {
        self.scalars.push((name.to_string(), value.clone()));
        self
    }
}
