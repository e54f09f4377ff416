//! Classification of images, or of any array of numbers.

use super::ModelKind;
use crate::document::{Mark, Node, Origin};
use crate::graph::{Scope, Tensor};
use crate::nn;
use crate::task::{Feature, Features, Identity, Loss, Metric, Mode, Outputs, Task};
use bf16scope_hlo::DType;
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;

/// A network from one array of numbers to the logits of classes.
pub trait Classifier: Send + Sync + fmt::Debug {
    /// The name of its programs.
    fn kind(&self) -> &str;

    /// Dims of one example, such as `[height, width, channels]`.
    fn input(&self) -> &[i64];

    /// The number of classes.
    fn n_classes(&self) -> i64;

    /// Builds it: images `[batch, input…]` → logits `[batch, n_classes]` in the dtype of the images.
    fn build(&self, s: &Scope, images: &Tensor) -> Tensor;

    /// Every setting that changes the function.
    fn identity(&self) -> Identity;
}

/// A [`Classifier`] as a task.
///
/// Features: `images`, and `labels` `s32[]`. The loss is the cross-entropy of the softmax, without label smoothing in an
/// evaluation. Metrics: `accuracy`, and in an evaluation of more than five classes `top_5_accuracy`. Predictions: `logits`
/// `f32[batch, n_classes]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Classification<N> {
    /// The network.
    pub network: N,
    /// The weight of the uniform distribution in the target, in `[0, 1)`, in training.
    pub label_smoothing: f64,
}

impl<N: Classifier> Task for Classification<N> {
    fn name(&self) -> &str {
        self.network.kind()
    }

    fn features(&self) -> Vec<Feature> {
        let labels = Feature::exact("labels", DType::S32, []).below(self.network.n_classes());
        vec![Feature::compute("images", self.network.input()), labels.label()]
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        let images = features.get("images");
        let logits = s.low_precision(|s| self.network.build(s, &images)).cast(DType::F32);
        of_logits(&logits, features, self.network.n_classes(), self.label_smoothing, mode)
    }

    fn identity(&self) -> Identity {
        self.network.identity().with_changeable("label_smoothing", self.label_smoothing)
    }
}

impl<N: Classifier + Clone + DeserializeOwned + 'static> ModelKind for N {
    fn task(&self, label_smoothing: f64, _origin: &Origin) -> Arc<dyn Task> {
        Arc::new(Classification { network: self.clone(), label_smoothing })
    }

    fn place_of_range(&self, _feature: &Feature, node: &Node) -> Option<Mark> {
        node.get("n_classes").map(|node| node.mark)
    }
}

/// Loss, metrics and predictions of a classification, from logits `f32[batch, n_classes]` and the feature `labels`.
pub(super) fn of_logits(
    logits: &Tensor,
    features: &Features<'_>,
    n_classes: i64,
    label_smoothing: f64,
    mode: Mode,
) -> Outputs {
    match mode {
        Mode::Train => {
            let labels = features.get("labels");
            let loss = nn::sparse_softmax_cross_entropy(logits, &labels, label_smoothing);
            let accuracy = Metric::mean(&nn::is_correct(logits, &labels));
            Outputs::new().loss(loss).metric("accuracy", accuracy)
        }
        Mode::Evaluate => {
            let (labels, weight) = (features.get("labels"), features.weight());
            let losses = nn::sparse_softmax_cross_entropy_per_example(logits, &labels, 0.0);
            let accuracy = Metric::weighted(&nn::is_correct(logits, &labels), &weight);
            let outputs = Outputs::new().loss(Loss::weighted(&losses, &weight)).metric("accuracy", accuracy);
            if n_classes <= 5 {
                return outputs;
            }
            outputs.metric("top_5_accuracy", Metric::weighted(&nn::is_in_top_k(logits, &labels, 5), &weight))
        }
        Mode::Predict => Outputs::new().prediction("logits", logits),
    }
}
