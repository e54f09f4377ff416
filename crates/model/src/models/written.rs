//! Where a file says a model: what is built of it carries the file's lines, as a profile and `explain` show them.

use crate::document::{Node, Value};
use crate::graph::Scope;
use crate::task::{Feature, Features, Identity, Mode, Outputs, Task};
use std::sync::Arc;

/// The lines of a network's layers, losses and metrics. Two are equal, wherever they are: they change no function.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    file: Arc<str>,
    layers: Vec<u32>,
    loss: Vec<u32>,
    metrics: Vec<u32>,
}

impl PartialEq for Lines {
    fn eq(&self, _other: &Lines) -> bool {
        true
    }
}

/// What has lines of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum WrittenPart {
    /// A layer, by number.
    Layer(usize),
    /// A loss, by number.
    Loss(usize),
    /// A metric, by number.
    Metric(usize),
}

impl Lines {
    /// Those of the node of file `file` that a network was read from.
    pub(super) fn of(file: &str, node: &Node) -> Lines {
        let lines = |key: &str| match node.get(key) {
            Some(Node { value: Value::List(list), .. }) => list.iter().map(line).collect(),
            Some(one) => vec![line(one)],
            None => Vec::new(),
        };
        Lines { file: file.into(), layers: lines("layers"), loss: lines("loss"), metrics: lines("metrics") }
    }

    /// Runs `body`, whose instructions carry the line of a part, where it is known.
    pub(super) fn at<R>(&self, part: WrittenPart, s: &Scope, body: impl FnOnce(&Scope) -> R) -> R {
        let line = match part {
            WrittenPart::Layer(number) => self.layers.get(number),
            WrittenPart::Loss(number) => self.loss.get(number),
            WrittenPart::Metric(number) => self.metrics.get(number),
        };
        match line {
            Some(line) => s.written_at(&self.file, *line, body),
            None => body(s),
        }
    }
}

fn line(node: &Node) -> u32 {
    u32::try_from(node.mark.line).unwrap_or(0)
}

/// A task that a file says: what it emits carries the file's line where it says the model, or the line of a part that has
/// one of its own.
#[derive(Clone, Debug)]
pub(super) struct WrittenTask {
    pub task: Arc<dyn Task>,
    pub file: Arc<str>,
    pub line: u32,
}

impl WrittenTask {
    pub fn new(task: Arc<dyn Task>, file: &str, node: &Node) -> WrittenTask {
        WrittenTask { task, file: file.into(), line: line(node) }
    }
}

impl Task for WrittenTask {
    fn name(&self) -> &str {
        self.task.name()
    }

    fn features(&self) -> Vec<Feature> {
        self.task.features()
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        s.written_at(&self.file, self.line, |s| self.task.call(s, features, mode))
    }

    fn identity(&self) -> Identity {
        self.task.identity()
    }

    fn independent_logits(&self) -> Vec<String> {
        self.task.independent_logits()
    }
}
