//! A batch of examples inside a program: inputs by name.

use super::{Feature, Mode};
use crate::graph::{Graph, Precision, Tensor};
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::RuleError;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Names of inputs that programs have in addition to features.
pub const RESERVED: [&str; 3] = ["weight", "step", "loss_scale"];

/// A batch of examples in a program under construction.
///
/// An input is declared when it is first requested, so a program has no input that its task does not read in this mode.
/// The inputs of a finished program are in the order of [`Task::features`](super::Task::features).
#[derive(Debug)]
pub struct Features<'a> {
    graph: &'a Graph,
    features: &'a [Feature],
    batch: i64,
    mode: Mode,
    made: RefCell<BTreeMap<String, Tensor>>,
    counts_steps: bool,
}

impl<'a> Features<'a> {
    /// A batch of `batch` examples with these features, for a program in `graph`.
    pub fn new(graph: &'a Graph, features: &'a [Feature], batch: i64, mode: Mode) -> Features<'a> {
        Features { graph, features, batch, mode, made: RefCell::default(), counts_steps: false }
    }

    /// The same batch in a program that counts steps.
    pub fn counting_steps(self) -> Features<'a> {
        Features { counts_steps: true, ..self }
    }

    /// `s32[]`: calls of the program before this one.
    #[track_caller]
    pub fn step(&self) -> Tensor {
        if let Some(input) = self.made.borrow().get("step") {
            return input.clone();
        }
        self.input("step", DType::S32, Vec::new())
    }

    /// The same batch with these features; the inputs declared so far stay.
    pub(crate) fn described_as<'b>(self, features: &'b [Feature]) -> Features<'b>
    where
        'a: 'b,
    {
        Features { features, ..self }
    }

    /// The features that the task describes.
    pub fn described(&self) -> &'a [Feature] {
        self.features
    }

    /// The number of examples in the batch.
    pub fn batch(&self) -> i64 {
        self.batch
    }

    /// The dtype that the network computes in.
    pub fn precision(&self) -> Precision {
        self.graph.precision()
    }

    /// The feature of this name: `[batch, dims…]`, in its own dtype or in the compute dtype.
    ///
    /// # Errors
    /// A name that [`Task::features`](super::Task::features) does not have; a label when predicting.
    #[track_caller]
    pub fn get(&self, name: &str) -> Tensor {
        if let Some(input) = self.made.borrow().get(name) {
            return input.clone();
        }
        let problem = match self.features.iter().find(|feature| feature.name == name) {
            Some(feature) if feature.is_label && self.mode == Mode::Predict => {
                let message = format!("{name} is a label, which is absent when predicting");
                RuleError::new("task/label", message).with_help("return predictions before labels are read")
            }
            Some(feature) => {
                let dims: Vec<i64> = [self.batch].into_iter().chain(feature.dims.iter().copied()).collect();
                let input = self.input(name, feature.dtype_in(self.graph.precision().compute()), dims);
                // With the first label all inputs are read, and the loss begins.
                if self.counts_steps && feature.is_label {
                    self.step();
                }
                return input;
            }
            None => {
                let names: Vec<&str> = self.features.iter().map(|feature| feature.name.as_str()).collect();
                let message = format!("no feature `{name}`, expected one of {}", names.join(", "));
                RuleError::new("task/feature", message).with_help("name it in the task's `features`")
            }
        };
        self.graph.fail("features", &[], problem)
    }

    /// `f32[batch]`: 1 for an example, 0 for padding. In training every weight is 1.
    #[track_caller]
    pub fn weight(&self) -> Tensor {
        if let Some(input) = self.made.borrow().get("weight") {
            return input.clone();
        }
        self.input("weight", DType::F32, vec![self.batch])
    }

    #[track_caller]
    fn input(&self, name: &str, dtype: DType, dims: Vec<i64>) -> Tensor {
        let tensor = self.graph.batch_input(name, dtype, dims);
        self.made.borrow_mut().insert(name.to_string(), tensor.clone());
        tensor
    }
}
