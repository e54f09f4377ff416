//! The rules that turn a gradient into a new value.
//!
//! All arithmetic is in f32 (in f64 of f64 variables, for checking), whatever the variable is stored in: see
//! [`Storage`]. Slots have the variable's dims, start at zero, and are called `<variable>/<slot>`; they are stored in f32
//! too unless a [`MomentumDtype`] or a [`SlotStorage`](super::SlotStorage) says otherwise.

use super::adadelta::Adadelta;
use super::adafactor::Adafactor;
use super::adagrad::Adagrad;
use super::adamw::AdamW;
use super::ftrl::Ftrl;
use super::layerwise::{Lamb, Lars};
use super::number;
use super::rmsprop::RmsProp;
use super::slot::{MomentumDtype, Slot};
use super::storage::Updated;
use crate::graph::{Graph, Storage, Tensor, VariableInfo};
use crate::hlo::ops::RuleError;
use crate::hlo::{DType, Shape};
use serde::{Deserialize, Serialize};

/// An optimizer. In the formulas `w` is the variable, `g` its gradient, `lr` the learning rate; slots start at 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Optimizer {
    /// `w ← w − lr·g`.
    Sgd {},
    /// `a ← momentum·a + g`, then `w ← w − lr·a`, or with Nesterov's look-ahead `w ← w − lr·(g + momentum·a)`. The slot
    /// `a` is `<variable>/momentum`.
    ///
    /// # Source
    /// TensorFlow's `MomentumOptimizer` and optax's `sgd`. Keras 2's has the learning rate inside the slot instead,
    /// which differs once the rate changes.
    Momentum {
        /// The share of the slot that stays; 0.9 is usual.
        #[serde(deserialize_with = "number::fraction")]
        momentum: f64,
        /// Whether to look ahead.
        #[serde(default)]
        nesterov: bool,
        /// What the slot is stored in.
        #[serde(default)]
        momentum_dtype: MomentumDtype,
    },
    /// `m ← β1·m + (1−β1)·g`, `v ← β2·v + (1−β2)·g²`, `w ← w − lr·(m / (1−β1^t)) / (√(v / (1−β2^t)) + ε)`, where `t` is
    /// 1 at the first step. The slots are `<variable>/adam_m` and `<variable>/adam_v`.
    ///
    /// `1 − β^t` is computed as `−expm1(t·ln β)`: `1 − 0.999^t` in f32 would lose up to 15 of its 24 bits.
    ///
    /// # Source
    /// Kingma & Ba 2015, algorithm 1; optax's `adam`. TensorFlow's `AdamOptimizer` adds `ε` to `√v` before the
    /// correction (the paper's "ε̂"), which is the same for small ε.
    Adam {
        /// β1.
        #[serde(default = "beta1", deserialize_with = "number::fraction")]
        beta1: f64,
        /// β2.
        #[serde(default = "beta2", deserialize_with = "number::fraction")]
        beta2: f64,
        /// ε.
        #[serde(default = "epsilon", deserialize_with = "number::positive")]
        epsilon: f64,
        /// What `m` is stored in; `v` is never stored in bf16, for the reason that [`MomentumDtype`] gives.
        #[serde(default)]
        momentum_dtype: MomentumDtype,
    },
    /// Adam's scale in the memory of a few rows and columns; see [`Adafactor`].
    Adafactor(Adafactor),
    /// TensorFlow's RMSProp, the optimizer of EfficientNet and others; see [`RmsProp`]. In YAML `rmsprop`.
    #[serde(rename = "rmsprop")]
    RmsProp(RmsProp),
    /// Steps that shrink as squared gradients add up; see [`Adagrad`].
    Adagrad(Adagrad),
    /// Steps of the size of those before; see [`Adadelta`].
    Adadelta(Adadelta),
    /// For linear models with many zeros; see [`Ftrl`].
    Ftrl(Ftrl),
    /// Adam with weight decay decoupled, and optionally without bias correction; see [`AdamW`]. In YAML `adamw`.
    #[serde(rename = "adamw")]
    AdamW(AdamW),
    /// AdamW with steps as large as the variable, for large batches; see [`Lamb`].
    Lamb(Lamb),
    /// Momentum with steps of a fixed share of the variable, for large batches; see [`Lars`].
    Lars(Lars),
}

fn beta1() -> f64 {
    0.9
}

fn beta2() -> f64 {
    0.999
}

fn epsilon() -> f64 {
    1e-8
}

impl Default for Optimizer {
    fn default() -> Self {
        Optimizer::Momentum { momentum: 0.9, nesterov: false, momentum_dtype: MomentumDtype::F32 }
    }
}

impl Optimizer {
    /// Adam with the paper's constants.
    pub const ADAM: Optimizer =
        Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, momentum_dtype: MomentumDtype::F32 };

    /// Whether the rule itself makes use of weight decay: its value, and which variables it excepts.
    pub(super) fn decays(&self) -> bool {
        matches!(self, Optimizer::Lamb(_) | Optimizer::Lars(_))
    }

    /// Whether weight decay is no term of the gradient, whatever [`WeightDecay`](super::WeightDecay) says.
    pub(super) fn decouples(&self) -> bool {
        matches!(self, Optimizer::AdamW(_) | Optimizer::Lamb(_) | Optimizer::Lars(_))
    }

    /// Sets the new value of `variable` and makes and updates its slots.
    ///
    /// `decay` is the variable's weight decay, if it is decoupled; for a rule that [`decays`](Self::decays) itself, 0 is
    /// none and `None` is an excepted variable.
    #[track_caller]
    pub(super) fn emit(
        &self,
        graph: &Graph,
        variable: &Updated<'_>,
        gradient: &Tensor,
        decay: Option<f64>,
        learning_rate: &Tensor,
        step: &Tensor,
    ) {
        let value = variable.value.clone();
        let dtype = variable.dtype;
        let learning_rate = &learning_rate.cast(dtype);
        let slot = |name: &str, stored: DType| Slot::new(graph, variable, name, stored);
        let (own_decay, decay) = if self.decays() { (decay, None) } else { (None, decay) };
        let change = match *self {
            Optimizer::Sgd {} => learning_rate * gradient,
            Optimizer::Momentum { momentum, nesterov, momentum_dtype } => {
                let slot = slot("momentum", momentum_dtype.of(dtype));
                let accumulated = &slot.value * momentum + gradient;
                slot.store(&accumulated);
                learning_rate * if nesterov { gradient + &accumulated * momentum } else { accumulated }
            }
            Optimizer::Adam { beta1, beta2, epsilon, momentum_dtype } => {
                let (slot_m, slot_v) = (slot("adam_m", momentum_dtype.of(dtype)), slot("adam_v", dtype));
                let m = &slot_m.value * beta1 + gradient * (1.0 - beta1);
                let v = &slot_v.value * beta2 + gradient * gradient * (1.0 - beta2);
                slot_m.store(&m);
                slot_v.store(&v);
                let t = step.cast(dtype) + 1.0;
                let corrected = |moment: Tensor, beta: f64| moment / one_minus_power(beta, &t);
                learning_rate * (corrected(m, beta1) / (corrected(v, beta2).sqrt() + epsilon))
            }
            Optimizer::Adafactor(adafactor) => {
                let t = step.cast(dtype) + 1.0;
                adafactor.emit(graph, variable, [&value, gradient], learning_rate, &t)
            }
            Optimizer::RmsProp(rmsprop) => rmsprop.emit(graph, variable, gradient, learning_rate),
            Optimizer::Adagrad(adagrad) => adagrad.emit(graph, variable, gradient, learning_rate),
            Optimizer::Adadelta(adadelta) => adadelta.emit(graph, variable, gradient, learning_rate),
            Optimizer::Ftrl(ftrl) => ftrl.emit(graph, variable, [&value, gradient], learning_rate),
            Optimizer::AdamW(adamw) => learning_rate * adamw.direction(graph, variable, gradient, step),
            Optimizer::Lamb(lamb) => lamb.emit(graph, variable, [&value, gradient], own_decay, learning_rate, step),
            Optimizer::Lars(lars) => lars.emit(graph, variable, [&value, gradient], own_decay, learning_rate),
        };
        let change = match decay {
            Some(decay) => change + learning_rate * (&value * decay),
            None => change,
        };
        variable.store(&(value - change));
    }
}

/// `1 − β^t`, without cancellation.
#[track_caller]
pub(super) fn one_minus_power(beta: f64, t: &Tensor) -> Tensor {
    (t * beta.ln()).unary(crate::hlo::ops::UnaryOp::Expm1).negate()
}

/// What speaks against updating a variable, stored so, with this gradient.
pub(super) fn check(variable: &VariableInfo, storage: Storage, gradient: &Tensor) -> Option<RuleError> {
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
    // Broadcast to the variable it would be one number for many weights, without a word.
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
    use crate::graph::Init;
    use crate::optim::Update;

    fn program(optimizer: Optimizer) -> Graph {
        let graph = Graph::training("update");
        let w = graph.scope().within("dense", |s| s.variable("kernel", DType::F32, [2, 3], Init::Ones));
        let step = graph.input("step", DType::S32, []);
        let update = Update { optimizer, ..Update::default() };
        update.emit(&graph, &step, &[(w.number, graph.full(DType::F32, &[2, 3], 0.5))]);
        graph
    }

    #[test]
    fn slots_are_f32_zeros_named_after_their_variable() {
        let slots = |optimizer| {
            let variables = program(optimizer).variables();
            assert!(variables.iter().all(|v| v.update.is_some() && v.dtype == DType::F32 && v.dims == [2, 3]));
            assert!(variables[1..].iter().all(|v| !v.trainable && v.init == Init::Zeros));
            variables.into_iter().skip(1).map(|v| v.name).collect::<Vec<_>>()
        };
        assert_eq!(slots(Optimizer::Sgd {}), [""; 0]);
        assert_eq!(slots(Optimizer::default()), ["dense/kernel/momentum"]);
        assert_eq!(slots(Optimizer::ADAM), ["dense/kernel/adam_m", "dense/kernel/adam_v"]);
        assert_eq!(slots(Optimizer::Adafactor(Adafactor::default())), ["dense/kernel/adafactor_v"]);
    }

    #[test]
    fn a_variable_without_an_f32_master_copy_is_refused() {
        let graph = Graph::training("update");
        let w = graph.scope().variable("w", DType::BF16, [2], Init::Ones);
        let step = graph.input("step", DType::S32, []);
        Update::default().emit(&graph, &step, &[(w.number, graph.full(DType::BF16, &[2], 0.5))]);
        let error = graph.finish(&[]).unwrap_err().to_string();
        assert!(
            error.contains("the variable w is bf16: an update smaller than half its ulp would be lost")
                && error.contains("make the variable inside a low-precision scope"),
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
    }

    #[test]
    fn the_serde_form_has_defaults_and_refuses_unknown_keys() {
        let parse = |yaml: &str| serde_yaml::from_str::<Optimizer>(yaml).map_err(|e| e.to_string());
        assert_eq!(parse("!adam {}"), Ok(Optimizer::ADAM));
        assert_eq!(parse("!momentum {momentum: 0.9}"), Ok(Optimizer::default()));
        let nesterov = Optimizer::Momentum { momentum: 0.8, nesterov: true, momentum_dtype: MomentumDtype::Bf16 };
        assert_eq!(parse("!momentum {momentum: 0.8, nesterov: true, momentum_dtype: bf16}"), Ok(nesterov));
        assert_eq!(
            parse("!momentum {momentum: 0.9, nestorov: true}"),
            Err("unknown field `nestorov`, expected one of `momentum`, `nesterov`, `momentum_dtype` at line 1 column 27"
                .to_string())
        );
        let adafactor = Adafactor { momentum: Some(0.9), clipping_threshold: None, ..Adafactor::default() };
        assert_eq!(parse("!adafactor {}"), Ok(Optimizer::Adafactor(Adafactor::default())));
        assert_eq!(parse("!adafactor {momentum: 0.9, clipping_threshold: null}"), Ok(Optimizer::Adafactor(adafactor)));
        assert!(parse("!adafactor {momentum: 1.0}").unwrap_err().contains("a number from 0 up to but not including 1"));
        assert!(parse("!adafactor {clipping_threshold: 0}").unwrap_err().contains("a finite number above 0"));
        let rmsprop = RmsProp { epsilon: 1e-3, centered: true, ..RmsProp::default() };
        assert_eq!(parse("!rmsprop {epsilon: 1.0e-3, centered: true}"), Ok(Optimizer::RmsProp(rmsprop)));
        assert!(parse("!rmsprop {rho: 0.9}").unwrap_err().contains("unknown field `rho`, expected one of `decay`"));
        assert!(parse("!sgd {momentum: 0.9}").unwrap_err().contains("unknown field `momentum`"));
    }
}
