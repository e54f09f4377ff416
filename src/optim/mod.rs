//! Optimizers and learning rates, emitted into the training program.
//!
//! [`Update`] is the whole of it: it takes gradients and the step, and sets for each variable (and each *slot*, the
//! optimizer's own state about a variable) the value it has after the call. Weights are f32, whatever the network computes
//! in, and so are slots, but for those that [`MomentumDtype`] makes bf16. There is no state on the host: the step is an input of the program.
//!
//! [`LossScale`] scales the loss of an f16 network. This room does not make gradients (`passes::grad`), nor drive the
//! program (`train`).

mod adadelta;
mod adafactor;
mod adagrad;
mod adamw;
mod average;
mod clip;
mod ftrl;
mod layerwise;
mod loss_scale;
mod number;
mod optimizer;
mod rmsprop;
mod schedule;
mod slot;
mod weight_decay;

pub use adadelta::Adadelta;
pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adamw::AdamW;
pub use average::Average;
pub use clip::Clip;
pub use ftrl::Ftrl;
pub use layerwise::{Lamb, Lars};
pub use loss_scale::{LossScale, Scaling, UnknownLossScale};
pub use optimizer::Optimizer;
pub use rmsprop::RmsProp;
pub use schedule::{LearningRate, RateChange, RateDrop, WarmUp};
pub use slot::MomentumDtype;
pub use weight_decay::WeightDecay;

use crate::graph::{Graph, Tensor};
use crate::hlo::ops::RuleError;

/// How variables change in a step: `gradient` → plus weight decay, unless it is decoupled → clipped → optimizer, at the
/// learning rate of the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// The rule.
    pub optimizer: Optimizer,
    /// The learning rate at each step.
    pub learning_rate: LearningRate,
    /// What the rate is before.
    pub warm_up: Option<WarmUp>,
    /// What is added to gradients, or subtracted from variables.
    pub weight_decay: WeightDecay,
    /// What gradients that are too large become.
    pub clip: Option<Clip>,
}

impl Update {
    /// The learning rate at `step`, warm-up and all, on the host, in f64.
    pub fn rate_at(&self, step: u32) -> f64 {
        match &self.warm_up {
            Some(warm_up) => warm_up.at(&self.learning_rate, step),
            None => self.learning_rate.at(step),
        }
    }

    /// Emits the update of every variable for which `gradients` has a `(variable number, gradient)`, and makes the
    /// optimizer's slots. `step` is an s32 scalar: the number of updates made before this one.
    ///
    /// Gives the learning rate of the step, an f32 scalar.
    ///
    /// # Errors
    /// A gradient of another dtype or other dims than its variable, a second one for a variable, a number that no variable
    /// has, or a variable that is not f32, is an error of the graph.
    #[track_caller]
    pub fn emit(&self, graph: &Graph, step: &Tensor, gradients: &[(usize, Tensor)]) -> Tensor {
        let learning_rate = match &self.warm_up {
            Some(warm_up) => warm_up.emit(&self.learning_rate, step),
            None => self.learning_rate.emit(step),
        };
        let variables = graph.variables();
        let weight_decay = &WeightDecay {
            decoupled: self.weight_decay.decoupled || self.optimizer.decouples(),
            ..self.weight_decay.clone()
        };
        let mut is_given = vec![false; variables.len()];
        let given = || gradients.iter().filter_map(|(number, _)| variables.get(*number).map(|it| it.name.as_str()));
        let excepts = self.weight_decay.value != 0.0 || self.optimizer.decays();
        if let Some(part) = weight_decay.idle(given).filter(|_| excepts) {
            let message = format!("weight decay excepts `{part}`, and no variable's name holds that");
            let example = given().next().unwrap_or_default();
            let error = RuleError::new("optimizer/except", message);
            graph.fail("optimizer", &[step], error.with_help(format!("name a part of one, such as of `{example}`")));
            return learning_rate;
        }
        if matches!(self.optimizer, Optimizer::Ftrl(_)) && self.rate_at(0) == 0.0 {
            let error = RuleError::new("optimizer/rate", "ftrl divides by the learning rate, which is 0 at step 0");
            graph.fail("optimizer", &[step], error.with_help("start the schedule above 0"));
            return learning_rate;
        }
        for (number, gradient) in gradients {
            let Some(variable) = variables.get(*number) else {
                let message = format!("variable {number} was asked for, but there are {}", variables.len());
                graph.fail("optimizer", &[gradient], RuleError::new("optimizer/number", message));
                return learning_rate;
            };
            if std::mem::replace(&mut is_given[*number], true) {
                let message = format!("{} has two gradients, expected one", variable.name);
                let error = RuleError::new("optimizer/twice", message).with_help("add them up first");
                graph.fail("optimizer", &[gradient], error);
                return learning_rate;
            }
        }
        let decayed = |(number, gradient): &(usize, Tensor)| {
            let variable = &variables[*number];
            weight_decay.emit(&variable.name, &graph.tensor(variable.instr), gradient)
        };
        let clipped = self.clip.map(|clip| clip.emit(&gradients.iter().map(decayed).collect::<Vec<_>>()));
        for (at, given) in gradients.iter().enumerate() {
            let (number, variable) = (given.0, &variables[given.0]);
            let gradient = match &clipped {
                Some(clipped) => clipped[at].clone(),
                None => decayed(given),
            };
            let decay = match self.optimizer.decays() {
                true => (!weight_decay.excepts(&variable.name)).then_some(weight_decay.value),
                false => weight_decay.decoupled_of(&variable.name),
            };
            self.optimizer.emit(graph, number, &gradient, decay, &learning_rate, step);
        }
        learning_rate
    }
}
