//! Token prediction: a token at each position of a sequence.

use super::{ModelKind, transformer};
use crate::document::{Mark, Node, Origin};
use crate::graph::Scope;
use crate::nn;
use crate::task::{Feature, Features, Identity, Loss, Metric, Mode, Outputs, Task};
use bf16scope_hlo::DType;
use std::sync::Arc;

/// A transformer as a task: it predicts a token of the vocabulary at each position.
///
/// Features: `tokens` and `labels`, `s32[length]` each. The loss is the mean over all positions, without label smoothing
/// in an evaluation. Metrics: `accuracy`. Predictions: `logits` `f32[batch, length, vocabulary]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokens {
    /// The network.
    pub network: transformer::Config,
    /// The weight of the uniform distribution in the target, in `[0, 1)`, in training.
    pub label_smoothing: f64,
}

impl ModelKind for transformer::Config {
    fn task(&self, label_smoothing: f64, _origin: &Origin) -> Arc<dyn Task> {
        Arc::new(Tokens { network: self.clone(), label_smoothing })
    }

    fn place_of_range(&self, _feature: &Feature, node: &Node) -> Option<Mark> {
        node.get("vocabulary").map(|node| node.mark)
    }
}

impl Task for Tokens {
    fn name(&self) -> &str {
        "transformer"
    }

    fn features(&self) -> Vec<Feature> {
        let ids = |name| Feature::exact(name, DType::S32, [self.network.length]).below(self.network.vocabulary);
        vec![ids("tokens"), ids("labels").label()]
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        let tokens = features.get("tokens");
        let network = s.low_precision(|s| transformer::build(s, &tokens, &self.network));
        let logits = network.cast(DType::F32);
        match mode {
            Mode::Train => {
                // Logits for a vocabulary at every position are large: avoid passes over them.
                let rows = nn::token_loss(&network, &features.get("labels"), self.label_smoothing, s.tuning().softmax);
                let loss = rows.loss.mean(&[0, 1]);
                Outputs::new().loss(loss).metric("accuracy", Metric::mean(&rows.is_correct))
            }
            Mode::Evaluate => {
                let labels = features.get("labels");
                let weights = features.weight().broadcast_in_dim(&labels.dims(), &[0]);
                let losses = nn::sparse_softmax_cross_entropy_per_example(&logits, &labels, 0.0);
                let accuracy = Metric::weighted(&nn::is_correct(&logits, &labels), &weights);
                Outputs::new().loss(Loss::weighted(&losses, &weights)).metric("accuracy", accuracy)
            }
            Mode::Predict => Outputs::new().prediction("logits", &logits),
        }
    }

    fn identity(&self) -> Identity {
        let identity = Identity::new("transformer").with_config(&self.network).changeable(&["dropout"]);
        identity.with_changeable("label_smoothing", self.label_smoothing)
    }
}
