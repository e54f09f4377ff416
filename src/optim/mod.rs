//! Optimizers and learning rates, emitted into the training program.
//!
//! [`Update`] is the whole of it: it takes gradients and the step, and sets for each variable (and each *slot*, the
//! optimizer's own state about a variable) the value it has after the call. Weights are f32, whatever the network computes
//! in, and so are slots, but for those that [`MomentumDtype`] makes bf16. There is no state on the host: the step is an input of the program.
//!
//! [`LossScale`] scales the loss of an f16 network. This room does not make gradients (`passes::grad`), nor drive the
//! program (`train`).

mod adafactor;
mod loss_scale;
mod number;
mod optimizer;
mod schedule;
mod slot;
mod weight_decay;

pub use adafactor::Adafactor;
pub use loss_scale::{LossScale, Scaling, UnknownLossScale};
pub use optimizer::Optimizer;
pub use schedule::{LearningRate, RateDrop};
pub use slot::MomentumDtype;
pub use weight_decay::WeightDecay;

use crate::graph::{Graph, Tensor};

/// How variables change in a step: `gradient` → plus weight decay → optimizer, at the learning rate of the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// The rule.
    pub optimizer: Optimizer,
    /// The learning rate at each step.
    pub learning_rate: LearningRate,
    /// What is added to gradients.
    pub weight_decay: WeightDecay,
}

impl Update {
    /// Emits the update of every variable for which `gradients` has a `(variable number, gradient)`, and makes the
    /// optimizer's slots. `step` is an s32 scalar: the number of updates made before this one.
    ///
    /// Gives the learning rate of the step, an f32 scalar.
    ///
    /// # Errors
    /// A gradient of another dtype than its variable, or a variable that is not f32, is an error of the graph.
    #[track_caller]
    pub fn emit(&self, graph: &Graph, step: &Tensor, gradients: &[(usize, Tensor)]) -> Tensor {
        let learning_rate = self.learning_rate.emit(step);
        let variables = graph.variables();
        for (number, gradient) in gradients {
            let variable = &variables[*number];
            let value = graph.tensor(variable.instr);
            let gradient = self.weight_decay.emit(&variable.name, &value, gradient);
            self.optimizer.emit(graph, *number, &gradient, &learning_rate, step);
        }
        learning_rate
    }
}
