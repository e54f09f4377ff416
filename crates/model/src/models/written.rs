//! Source lines of model files in the emitted instructions, for profiles and `explain`.

use crate::document::Origin;
use crate::graph::Scope;
use crate::task::{Feature, Features, Identity, Mode, NetworkLayer, Outputs, Task};
use std::sync::Arc;

/// Runs `body`, whose instructions carry the line of `origin`, if it has one.
pub(super) fn written_at<R>(origin: &Origin, s: &Scope, body: impl FnOnce(&Scope) -> R) -> R {
    match origin.line() {
        Some((file, line)) => s.written_at(file, line, body),
        None => body(s),
    }
}

/// The task of a model in a file: its instructions carry the line of the model, or of the layer, loss or metric that
/// emits them.
#[derive(Clone, Debug)]
pub(super) struct WrittenTask {
    pub task: Arc<dyn Task>,
    pub origin: Origin,
}

impl Task for WrittenTask {
    fn name(&self) -> &str {
        self.task.name()
    }

    fn features(&self) -> Vec<Feature> {
        self.task.features()
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        written_at(&self.origin, s, |s| self.task.call(s, features, mode))
    }

    fn identity(&self) -> Identity {
        self.task.identity()
    }

    fn independent_logits(&self) -> Vec<String> {
        self.task.independent_logits()
    }

    fn class_labels(&self) -> Vec<(String, String)> {
        self.task.class_labels()
    }

    fn binary_labels(&self) -> Vec<(String, String)> {
        self.task.binary_labels()
    }

    fn network_layers(&self) -> Vec<NetworkLayer> {
        self.task.network_layers()
    }
}
