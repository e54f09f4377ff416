//! The update of a step: weight decay, clipping, the optimizer and the learning rate.

use super::clip::Clip;
use super::optimizer::Optimizer;
use super::rounding::Rounding;
use super::rule::DecayForm;
use super::schedule::{LearningRate, WarmUp};
use super::slot_storage::SlotStorage;
use super::storage::Updated;
use super::weight_decay::WeightDecay;
use crate::graph::{Graph, Init, Storage, Tensor, VariableInfo};
use bf16scope_hlo::ops::RuleError;
use bf16scope_hlo::{DType, Shape};
use bf16scope_passes::name_matches;
use serde::Serialize;

/// Variables with another rule, or another rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VariableGroup {
    /// Patterns of their names (`*` is any text, `?` any character). A variable belongs to the first group that
    /// matches.
    pub variables: Vec<String>,
    /// The rule.
    pub optimizer: Optimizer,
    /// The learning rate at each step. The warm-up is shared.
    pub learning_rate: LearningRate,
}

/// The update rule of a step: `gradient` → plus weight decay, unless it is decoupled → clipped → optimizer, at the
/// learning rate of the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// The rule.
    pub optimizer: Optimizer,
    /// The learning rate at each step.
    pub learning_rate: LearningRate,
    /// The rate during the warm-up.
    pub warm_up: Option<WarmUp>,
    /// Weight decay, added to gradients or subtracted from variables.
    pub weight_decay: WeightDecay,
    /// How large gradients are clipped.
    pub clip: Option<Clip>,
    /// The storage of slots.
    pub slots: SlotStorage,
    /// The lowest learning rate after the warm-up. Default 0.
    pub floor: f64,
    /// Variables with other rules or rates. Default none.
    pub groups: Vec<VariableGroup>,
    /// Whether the rate is state of the program ([`Update::REDUCED`]), which a run can lower between steps. Default
    /// false.
    pub reducible: bool,
}

impl Update {
    /// The weight decay that moves variables by the learning rate times itself: decoupled, or through a rule without a
    /// quotient. 0 if there is none.
    pub fn plain_decay(&self) -> f64 {
        let divides = !matches!(self.optimizer.name(), "sgd" | "momentum");
        let is_plain = self.weight_decay.decoupled || self.optimizer.decay_form() == DecayForm::Beside || !divides;
        if is_plain { self.weight_decay.value } else { 0.0 }
    }

    /// The learning rate at `step`, including the warm-up, on the host, in f64.
    pub fn rate_at(&self, step: u32) -> f64 {
        match &self.warm_up {
            Some(warm_up) if step < warm_up.steps.get() => warm_up.at(&self.learning_rate, step),
            Some(warm_up) => warm_up.at(&self.learning_rate, step).max(self.floor),
            None => self.learning_rate.at(step).max(self.floor),
        }
    }

    /// The part of the learning rate's schedule that contains `step`, by the key that begins it: `warm_up`,
    /// `changes[0]`.
    pub fn phase_at(&self, step: u32) -> String {
        match &self.warm_up {
            Some(warm_up) => warm_up.phase_at(&self.learning_rate, step),
            None => self.learning_rate.phase_at(step),
        }
    }

    /// The name of a reducible rate's variable: the rate itself if it is constant, otherwise a factor on the schedule.
    pub const REDUCED: &str = "learning_rate/reduced";

    /// Whether every step has the same rate.
    pub fn is_constant(&self) -> bool {
        self.warm_up.is_none() && matches!(self.learning_rate, LearningRate::Constant { .. })
    }

    /// The initial value of [`Update::REDUCED`].
    pub fn unreduced(&self) -> f32 {
        if self.is_constant() { self.rate_at(0) as f32 } else { 1.0 }
    }

    /// [`Update::rate_at`] for a reducible rate whose variable has this value.
    pub fn reduced_rate_at(&self, step: u32, reduced: f32) -> f64 {
        if self.is_constant() { f64::from(reduced) } else { self.rate_at(step) * f64::from(reduced) }
    }

    /// The λ of weight decay as a loss term λ·Σw²/2, for the variable called `name`; `None` if the decay is decoupled.
    /// No program computes that term: its gradient, λw, is added instead.
    pub fn l2(&self, name: &str) -> Option<f64> {
        let is_of_loss = !self.weight_decay.decoupled && self.optimizer.decay_form() == DecayForm::Gradient;
        (is_of_loss && self.weight_decay.applies_to(name)).then_some(self.weight_decay.value)
    }

    /// Emits the update of every variable in `gradients`, `(variable number, gradient)`, and declares the optimizer's
    /// slots. `step` is an s32 scalar: the number of updates before this one.
    ///
    /// Returns the learning rate of the step, an f32 scalar.
    ///
    /// # Errors
    /// A gradient of another dtype than f32 (f64 for an f64 variable) or with other dims than its variable, a second
    /// one for a variable, an invalid variable number, or a variable that is neither f32 nor has the graph's
    /// [`Storage`], is an error of the graph.
    #[track_caller]
    pub fn emit(&self, graph: &Graph, step: &Tensor, gradients: &[(usize, Tensor)]) -> Tensor {
        let learning_rate = self.emit_rate(graph, step);
        let variables = graph.variables();
        let names: Vec<&str> =
            gradients.iter().filter_map(|(number, _)| variables.get(*number)).map(|it| it.name.as_str()).collect();
        if let Some(error) = self.fault(&names) {
            graph.fail("optimizer", &[step], error);
            return learning_rate;
        }
        if let Some((operands, error)) = gradient_fault(graph, &variables, gradients) {
            graph.fail("optimizer", &operands.iter().collect::<Vec<_>>(), error);
            return learning_rate;
        }
        let rates = self.emit_group_rates(graph, step);
        let rounding = self.rounds_stochastically(graph).then(|| Rounding::begin(graph, step));
        if graph.storage() == Storage::Bf16Nearest {
            graph.warn(WARNING.to_string());
        }
        let updated = |(number, _): &(usize, Tensor)| Updated::new(graph, *number, rounding.as_ref(), self.slots);
        let updated: Vec<Updated<'_>> = gradients.iter().map(updated).collect();
        let decayed = |(variable, (_, gradient)): (&Updated<'_>, &(usize, Tensor))| {
            let optimizer = self.optimizer_of(&variable.name);
            self.weight_decay_with(optimizer).emit(&variable.name, &variable.value, gradient)
        };
        let pairs = || updated.iter().zip(gradients);
        let clip = self.clip.filter(|clip| clip.is_of_sum());
        let clipped = clip.map(|clip| clip.emit(&updated, &pairs().map(decayed).collect::<Vec<_>>()));
        for (at, pair) in pairs().enumerate() {
            let variable = pair.0;
            let gradient = match &clipped {
                Some(clipped) => clipped[at].clone(),
                None => decayed(pair),
            };
            let optimizer = self.optimizer_of(&variable.name);
            let rate = self.group_of(&variable.name).map_or(&learning_rate, |number| &rates[number]);
            optimizer.emit(graph, variable, &gradient, self.decay_beside(optimizer, &variable.name), rate, step);
        }
        learning_rate
    }

    /// The first setting that has no effect on variables of these names, or that has no first step.
    fn fault(&self, names: &[&str]) -> Option<RuleError> {
        let (names, example) = (|| names.iter().copied(), names.first().copied().unwrap_or_default());
        if let Some(pattern) = self.idle_pattern(names) {
            let message =
                format!("`optimizers` has the pattern `{pattern}`, and no variable that trains has such a name");
            let help = format!("write one that matches, such as `{example}`");
            return Some(RuleError::new("optimizer/pattern", message).with_help(help));
        }
        let excepts = self.weight_decay.value != 0.0 || self.optimizer.decay_form().is_of_the_rule();
        if let Some(part) = self.weight_decay.idle(names).filter(|_| excepts) {
            let message = format!("weight decay excepts `{part}`, and no variable's name holds that");
            let help = format!("name a part of one, such as of `{example}`");
            return Some(RuleError::new("optimizer/except", message).with_help(help));
        }
        if self.optimizer.divides_by_rate() && self.rate_at(0) == 0.0 {
            let message = format!("{} divides by the learning rate, which is 0 at step 0", self.optimizer.name());
            return Some(RuleError::new("optimizer/rate", message).with_help("start the schedule above 0"));
        }
        None
    }

    /// The rule of a variable.
    fn optimizer_of(&self, name: &str) -> Optimizer {
        self.group_of(name).map_or(self.optimizer, |number| self.groups[number].optimizer)
    }

    /// The weight decay with a rule: decoupled if the rule does not take it with the gradient.
    fn weight_decay_with(&self, optimizer: Optimizer) -> WeightDecay {
        let decoupled = self.weight_decay.decoupled || optimizer.decay_form() != DecayForm::Gradient;
        WeightDecay { decoupled, ..self.weight_decay.clone() }
    }

    /// The weight decay that the rule of a variable applies beside the gradient, if any.
    fn decay_beside(&self, optimizer: Optimizer, name: &str) -> Option<f64> {
        match optimizer.decay_form().is_of_the_rule() {
            true => (!self.weight_decay.excepts(name)).then_some(self.weight_decay.value),
            false => self.weight_decay_with(optimizer).decoupled_of(name),
        }
    }

    /// The index of a variable's group.
    fn group_of(&self, name: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.variables.iter().any(|pattern| name_matches(pattern, name)))
    }

    /// A pattern that matches none of these names.
    fn idle_pattern<'a, I: Iterator<Item = &'a str>>(&self, names: impl Fn() -> I) -> Option<&str> {
        let patterns = self.groups.iter().flat_map(|group| &group.variables);
        patterns.map(String::as_str).find(|pattern| !names().any(|name| name_matches(pattern, name)))
    }

    /// A schedule after the warm-up, and not below the floor.
    #[track_caller]
    fn emit_schedule(&self, schedule: &LearningRate, step: &Tensor) -> Tensor {
        let rate = match &self.warm_up {
            Some(warm_up) => warm_up.emit(schedule, step),
            None => schedule.emit(step),
        };
        if self.floor == 0.0 {
            return rate;
        }
        let graph = step.graph();
        let raised = rate.maximum(&graph.scalar(DType::F32, self.floor));
        match &self.warm_up {
            Some(warm_up) => {
                let steps = f64::from(warm_up.steps.get().min(i32::MAX as u32));
                step.less(&graph.scalar(DType::S32, steps)).select(&rate, &raised)
            }
            None => raised,
        }
    }

    /// The rate of each group: if the main rate is reducible, the groups' rates are reduced with it.
    #[track_caller]
    fn emit_group_rates(&self, graph: &Graph, step: &Tensor) -> Vec<Tensor> {
        let reduced = graph.variables().into_iter().find(|variable| variable.name == Update::REDUCED);
        let factor = reduced.filter(|_| !self.groups.is_empty()).map(|variable| {
            let reduced = graph.tensor(variable.instr);
            if self.is_constant() { reduced / f64::from(self.unreduced()) } else { reduced }
        });
        let rate = |group: &VariableGroup| {
            let rate = self.emit_schedule(&group.learning_rate, step);
            factor.as_ref().map_or(rate.clone(), |factor| rate * factor)
        };
        self.groups.iter().map(rate).collect()
    }

    /// The rate of the step, with its variable if it is reducible.
    #[track_caller]
    fn emit_rate(&self, graph: &Graph, step: &Tensor) -> Tensor {
        let schedule = || self.emit_schedule(&self.learning_rate, step);
        if !self.reducible {
            return schedule();
        }
        let init = Init::Constant(f64::from(self.unreduced()));
        let reduced = graph.scope().state(Update::REDUCED, DType::F32, [], init).value;
        if self.is_constant() { reduced } else { schedule() * reduced }
    }

    /// [`Update::emit`] for the gradients of these variables, in the same order, like TensorFlow's
    /// `Optimizer.apply_gradients`: the variables are those of [`Graph::trainable_variables`], or some of them. If the
    /// graph's [`Storage`] keeps variables in bf16, gradients in bf16 are cast to f32 first.
    ///
    /// ```
    /// use bf16scope_model::prelude::*;
    ///
    /// let g = Graph::training("step");
    /// let (x, step) = (g.input("x", DType::F32, [8, 2]), g.input("step", DType::S32, []));
    /// let loss = nn::dense(&g.scope(), &x, "dense", &Dense { units: 1, ..Dense::default() }).sum(&[0, 1]);
    /// let variables = g.trainable_variables();
    /// let gradients = gradients(&loss, &variables)?;
    /// Update { learning_rate: 1e-3.into(), ..Update::default() }.apply(&step, &variables, &gradients);
    /// assert!(g.variables()[0].update.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Update::emit`]; a tensor that is not a variable; more or fewer gradients than variables.
    #[track_caller]
    pub fn apply(&self, step: &Tensor, variables: &[Tensor], gradients: &[Tensor]) -> Tensor {
        let graph = step.graph();
        if variables.len() != gradients.len() {
            let message = format!("{} gradients for {} variables, expected as many", gradients.len(), variables.len());
            return graph.fail("optimizer", &[step], RuleError::new("optimizer/number", message));
        }
        let mut numbered = Vec::with_capacity(variables.len());
        // Not a closure, so that an error names the caller's line.
        for (variable, gradient) in variables.iter().zip(gradients) {
            let Some(number) = graph.number_of(variable) else {
                let message = format!("a tensor {} is not a variable of the graph", variable.shape());
                let error = RuleError::new("optimizer/number", message);
                let help = "take them from `Graph::trainable_variables`";
                return graph.fail("optimizer", &[variable], error.with_help(help));
            };
            let is_master = graph.variable(number).dtype == DType::BF16 && graph.storage() != Storage::F32;
            let gradient = if is_master { gradient.cast(DType::F32) } else { gradient.clone() };
            numbered.push((number, gradient));
        }
        self.emit(graph, step, &numbered)
    }

    /// Whether anything is rounded stochastically.
    fn rounds_stochastically(&self, graph: &Graph) -> bool {
        graph.storage() == Storage::Bf16Stochastic || self.slots == SlotStorage::Bf16Stochastic
    }
}

const WARNING: &str = "variables are stored as bf16_nearest: updates smaller than half an ulp, 2^-9 to 2^-8 of a variable, \
                       are lost, and training stalls; bf16_stochastic takes as much memory and keeps their mean, \
                       bf16_compensated keeps them";

/// The first gradient that is not the only one of a variable, or that does not fit it; with the tensors at fault.
fn gradient_fault(
    graph: &Graph,
    variables: &[VariableInfo],
    gradients: &[(usize, Tensor)],
) -> Option<(Vec<Tensor>, RuleError)> {
    let mut has_gradient = vec![false; variables.len()];
    gradients.iter().find_map(|(number, gradient)| {
        let Some(variable) = variables.get(*number) else {
            let message = format!("variable {number} was asked for, but there are {}", variables.len());
            return Some((vec![gradient.clone()], RuleError::new("optimizer/number", message)));
        };
        if std::mem::replace(&mut has_gradient[*number], true) {
            let message = format!("{} has two gradients, expected one", variable.name);
            let error = RuleError::new("optimizer/twice", message).with_help("add them up first");
            return Some((vec![gradient.clone()], error));
        }
        let error = check(variable, graph.storage(), gradient)?;
        Some((vec![graph.tensor(variable.instr), gradient.clone()], error))
    })
}

/// The error of updating a variable in this storage with this gradient, if there is one.
fn check(variable: &VariableInfo, storage: Storage, gradient: &Tensor) -> Option<RuleError> {
    let VariableInfo { name, dtype, dims, .. } = variable;
    let dtype = if *dtype == DType::BF16 && storage != Storage::F32 { DType::F32 } else { *dtype };
    if !matches!(dtype, DType::F32 | DType::F64) {
        let message = format!("the variable {name} is {dtype}: an update smaller than half its ulp would be lost");
        let help = "keep an f32 master copy: make the variable inside a low-precision scope; or store variables as \
                    bf16_stochastic or bf16_compensated";
        return Some(RuleError::new("optimizer/dtype", message).with_help(help));
    }
    if gradient.dtype() != dtype && !gradient.is_poison() {
        let message = format!("the gradient of {name} is {}, expected {dtype}", gradient.dtype());
        return Some(RuleError::new("optimizer/gradient", message).with_help("cast the gradient before the update"));
    }
    // Broadcasting the gradient would silently give many weights the same number.
    if gradient.dims() != *dims && !gradient.is_poison() {
        let message =
            format!("the gradient of {name} is {}, expected {}", gradient.shape(), Shape::array(dtype, &dims[..]));
        return Some(RuleError::new("optimizer/gradient", message).with_help("is it that of another variable?"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_without_an_f32_master_copy_is_refused() {
        let graph = Graph::training("update");
        let w = graph.scope().variable("w", DType::BF16, [2], Init::Ones);
        let step = graph.input("step", DType::S32, []);
        Update::default().emit(&graph, &step, &[(w.number, graph.full(DType::BF16, &[2], 0.5))]);
        let error = graph.finish(&[]).unwrap_err().to_string();
        assert!(
            error.contains("the variable w is bf16: an update smaller than half its ulp would be lost")
                && error.ends_with(
                    "help: keep an f32 master copy: make the variable inside a low-precision scope; or store variables as \
                     bf16_stochastic or bf16_compensated"
                ),
            "{error}"
        );
    }

    #[test]
    fn a_gradient_of_another_dtype_is_refused() {
        let graph = Graph::training("update");
        let w = graph.scope().variable("w", DType::F32, [2], Init::Ones);
        let step = graph.input("step", DType::S32, []);
        Update::default().emit(&graph, &step, &[(w.number, graph.full(DType::BF16, &[2], 0.5))]);
        let error = graph.finish(&[]).unwrap_err().to_string();
        assert!(error.contains("the gradient of w is bf16, expected f32"), "{error}");
        assert!(error.ends_with("help: cast the gradient before the update"), "{error}");
    }

    #[test]
    fn a_gradient_of_other_dims_is_refused() {
        let graph = Graph::training("update");
        let w = graph.scope().variable("w", DType::F32, [2], Init::Ones);
        let step = graph.input("step", DType::S32, []);
        Update::default().emit(&graph, &step, &[(w.number, graph.full(DType::F32, &[1], 0.5))]);
        let error = graph.finish(&[]).unwrap_err().to_string();
        assert!(error.contains("the gradient of w is f32[1], expected f32[2]"), "{error}");
        assert!(error.contains("is it that of another variable?"), "{error}");
    }
}
