//! Optimizers and learning rates, emitted into the training program.
//!
//! [`Update`] is the whole of it: it takes gradients and the step, and sets for each variable (and each *slot*, the
//! optimizer's own state about a variable) the value it has after the call. The arithmetic is f32, whatever the network
//! computes in. So are variables, unless the graph's [`Storage`] says otherwise, and slots, but for those that
//! [`MomentumDtype`] or [`SlotStorage`] makes bf16. There is no state on the host: the step is an input of the program.
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
mod rounding;
mod schedule;
mod slot;
mod storage;
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
pub use rounding::{ROUNDING_KEY, RoundingNoise, round_stochastically};
pub use schedule::{LearningRate, RateChange, RateDrop, WarmUp};
pub use slot::{MomentumDtype, SlotStorage};
pub use storage::Kept;
pub(crate) use storage::LOW;
pub use weight_decay::WeightDecay;

use crate::graph::{Graph, Storage, Tensor};
use crate::hlo::ops::RuleError;
use optimizer::check;
use rounding::Rounding;
use storage::Updated;

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
    /// What slots are stored in.
    pub slots: SlotStorage,
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
    /// A gradient of another dtype than f32 (f64 of an f64 variable) or of other dims than its variable, a second one for a
    /// variable, a number that no variable has, or a variable that is neither f32 nor stored as the graph's [`Storage`]
    /// says, is an error of the graph.
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
            if let Some(error) = check(variable, graph.storage(), gradient) {
                graph.fail("optimizer", &[&graph.tensor(variable.instr), gradient], error);
                return learning_rate;
            }
        }
        let rounding = self.rounds_stochastically(graph).then(|| Rounding::begin(graph, step));
        if graph.storage() == Storage::Bf16Nearest {
            graph.warn(WARNING.to_string());
        }
        let updated = |(number, _): &(usize, Tensor)| Updated::new(graph, *number, rounding.as_ref(), self.slots);
        let updated: Vec<Updated<'_>> = gradients.iter().map(updated).collect();
        let decayed = |(variable, (_, gradient)): (&Updated<'_>, &(usize, Tensor))| {
            weight_decay.emit(&variable.name, &variable.value, gradient)
        };
        let given = || updated.iter().zip(gradients);
        let clipped = self.clip.map(|clip| clip.emit(&updated, &given().map(decayed).collect::<Vec<_>>()));
        for (at, given) in given().enumerate() {
            let variable = given.0;
            let gradient = match &clipped {
                Some(clipped) => clipped[at].clone(),
                None => decayed(given),
            };
            let decay = match self.optimizer.decays() {
                true => (!weight_decay.excepts(&variable.name)).then_some(weight_decay.value),
                false => weight_decay.decoupled_of(&variable.name),
            };
            self.optimizer.emit(graph, variable, &gradient, decay, &learning_rate, step);
        }
        learning_rate
    }
    /// Whether anything is rounded stochastically.
    fn rounds_stochastically(&self, graph: &Graph) -> bool {
        graph.storage() == Storage::Bf16Stochastic || self.slots == SlotStorage::Bf16Stochastic
    }
}

const WARNING: &str = "variables are stored as bf16_nearest: updates smaller than half an ulp, 2^-9 to 2^-8 of a variable, \
                       are lost, and training stalls; bf16_stochastic takes as much memory and keeps their mean, \
                       bf16_compensated keeps them";
