//! The optimizers: a line of the table each, and its rule in a file of [`optimizer/`](self).
//!
//! All arithmetic is in f32 (in f64 for f64 variables, for checking), whatever the variable's
//! [`Storage`](crate::graph::Storage). Slots have the variable's dims, start at zero, and are called
//! `<variable>/<slot>`; they are stored in f32 unless a [`MomentumDtype`](super::MomentumDtype) or a
//! [`SlotStorage`](super::SlotStorage) says otherwise.
//!
//! To add an optimizer, write its settings with their [`Rule`] in a file beside the others, and a line here.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod adamw;
mod ftrl;
mod lamb;
mod lars;
mod lion;
mod momentum;
mod nadam;
mod rmsprop;
mod sgd;
mod trust;

use super::rule::{DecayForm, FirstMoments, Rule, RuleInputs};
use super::storage::Updated;
use crate::graph::{Graph, Tensor};
use serde::{Deserialize, Serialize};

macro_rules! optimizers {
    ($($(#[$doc:meta])* $module:ident::$Kind:ident = $name:literal;)*) => {
        $(pub use $module::$Kind;)*

        /// An optimizer. In the formulas `w` is the variable, `g` its gradient, `lr` the learning rate; slots start at 0.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Optimizer {
            $($(#[$doc])* #[serde(rename = $name)] $Kind($Kind),)*
        }

        $(impl From<$Kind> for Optimizer {
            fn from(settings: $Kind) -> Optimizer {
                Optimizer::$Kind(settings)
            }
        })*

        impl Optimizer {
            /// All optimizers, with their defaults.
            pub fn all() -> Vec<Optimizer> {
                vec![$(Optimizer::$Kind($Kind::default())),*]
            }

            /// Its name in YAML.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Optimizer::$Kind(_) => $name,)*
                }
            }

            /// The ε that is added to the size of a gradient, the root of a mean of squares, before dividing by it; if
            /// ε is inside the root, √ε. `None` for a rule without such a quotient.
            pub fn epsilon(&self) -> Option<f64> {
                match self {
                    $(Optimizer::$Kind(settings) => settings.added_to_size(),)*
                }
            }

            /// The share of its sum or mean of gradients that it keeps in a step: its momentum or β1, if it has one.
            pub fn momentum(&self) -> Option<f64> {
                match self {
                    $(Optimizer::$Kind(settings) => settings.kept_of_gradients(),)*
                }
            }

            /// The form of weight decay in its rule.
            pub fn decay_form(&self) -> DecayForm {
                match self {
                    $(Optimizer::$Kind(_) => $Kind::DECAY,)*
                }
            }

            /// Whether its rule divides by the learning rate, so that a schedule must not start at 0.
            pub fn divides_by_rate(&self) -> bool {
                match self {
                    $(Optimizer::$Kind(_) => $Kind::DIVIDES_BY_RATE,)*
                }
            }

            /// Whether its rule reads the number of updates, for example to correct bias.
            pub fn reads_step(&self) -> bool {
                match self {
                    $(Optimizer::$Kind(settings) => settings.reads_step(),)*
                }
            }

            /// Whether it has slots.
            pub fn keeps_slots(&self) -> bool {
                match self {
                    $(Optimizer::$Kind(_) => $Kind::KEEPS_SLOTS,)*
                }
            }

            /// The storage of its first moments.
            pub fn first_moments(&mut self) -> FirstMoments<'_> {
                match self {
                    $(Optimizer::$Kind(settings) => settings.first_moments(),)*
                }
            }

            /// The change that its rule subtracts from the variable.
            #[track_caller]
            fn change(&self, inputs: &RuleInputs<'_>) -> Tensor {
                match self {
                    $(Optimizer::$Kind(settings) => settings.emit(inputs),)*
                }
            }
        }
    };
}

optimizers! {
    /// Gradient descent; see [`Sgd`].
    sgd::Sgd = "sgd";
    /// Gradient descent with momentum; see [`Momentum`].
    momentum::Momentum = "momentum";
    /// Steps scaled by means of gradients and of their squares; see [`Adam`].
    adam::Adam = "adam";
    /// Adam's scale in the memory of row and column means; see [`Adafactor`].
    adafactor::Adafactor = "adafactor";
    /// TensorFlow's RMSProp, used by EfficientNet and others; see [`RmsProp`].
    rmsprop::RmsProp = "rmsprop";
    /// Steps that shrink as squared gradients add up; see [`Adagrad`].
    adagrad::Adagrad = "adagrad";
    /// Steps of the size of earlier ones; see [`Adadelta`].
    adadelta::Adadelta = "adadelta";
    /// For linear models with sparse weights; see [`Ftrl`].
    ftrl::Ftrl = "ftrl";
    /// Adam with decoupled weight decay, and optionally without bias correction; see [`AdamW`].
    adamw::AdamW = "adamw";
    /// AdamW with steps relative to the variable's norm, for large batches; see [`Lamb`].
    lamb::Lamb = "lamb";
    /// Momentum with steps of a fixed share of the variable, for large batches; see [`Lars`].
    lars::Lars = "lars";
    /// The sign of a mean of gradients; see [`Lion`].
    lion::Lion = "lion";
    /// Adam that looks ahead; see [`Nadam`].
    nadam::Nadam = "nadam";
    /// Adam with the largest gradient in the place of the mean square; see [`Adamax`].
    adamax::Adamax = "adamax";
}

impl Default for Optimizer {
    fn default() -> Self {
        Optimizer::Momentum(Momentum::default())
    }
}

impl Optimizer {
    /// Gradient descent.
    pub const SGD: Optimizer = Optimizer::Sgd(Sgd {});

    /// Adam with the paper's constants.
    pub const ADAM: Optimizer = Optimizer::Adam(Adam::PAPER);

    /// Sets the new value of `variable`, and declares and updates its slots.
    ///
    /// `decay` is the variable's weight decay, if it is decoupled; where it [is of the
    /// rule](DecayForm::is_of_the_rule), 0 is no decay and `None` is an excepted variable.
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
        let learning_rate = &learning_rate.cast(variable.dtype);
        let (own_decay, decay) = if self.decay_form().is_of_the_rule() { (decay, None) } else { (None, decay) };
        let change = self.change(&RuleInputs { graph, variable, gradient, learning_rate, step, decay: own_decay });
        let change = match decay {
            Some(decay) => change + learning_rate * (&value * decay),
            None => change,
        };
        variable.store(&(value - change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Init;
    use crate::optim::{MomentumDtype, Update};
    use bf16scope_hlo::DType;

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
        assert_eq!(slots(Optimizer::SGD), [""; 0]);
        assert_eq!(slots(Optimizer::default()), ["dense/kernel/momentum"]);
        assert_eq!(slots(Optimizer::ADAM), ["dense/kernel/adam_m", "dense/kernel/adam_v"]);
        let amsgrad = Optimizer::Adam(Adam { amsgrad: true, ..Adam::PAPER });
        assert_eq!(slots(amsgrad), ["dense/kernel/adam_m", "dense/kernel/adam_v", "dense/kernel/adam_v_max"]);
        assert_eq!(slots(Optimizer::Adafactor(Adafactor::default())), ["dense/kernel/adafactor_v"]);
    }

    #[test]
    fn the_serde_form_has_defaults_and_refuses_unknown_keys() {
        let parse = |yaml: &str| serde_yaml::from_str::<Optimizer>(yaml).map_err(|e| e.to_string());
        assert_eq!(parse("!adam {}"), Ok(Optimizer::ADAM));
        assert_eq!(parse("!momentum {momentum: 0.9}"), Ok(Optimizer::default()));
        let settings = Momentum { momentum: 0.8, nesterov: true, momentum_dtype: MomentumDtype::Bf16 };
        let nesterov = Optimizer::Momentum(settings);
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
