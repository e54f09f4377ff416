//! Optimizers beside TensorFlow's and optax's, each for 20 steps.
//!
//! `tests/data/optim_tf` holds gradients and the variables after each step, in f32. A reference computes the same in
//! f64 with a bound for f32's roundings ([`bounded`](super::bounded)); ours and the recording must both be within it.
//! They are not compared bit for bit: the compiler and the processor decide whether a product and a sum become one
//! fused operation, which rounds once less.

use super::bounded::{Bounded, FUNCTION, U, check};
use crate::run;

use bf16scope::graph::{Graph, Init};
use bf16scope::hlo::{DType, Literal};
use bf16scope::optim::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, Clip, Ftrl, Lamb, Lars, LearningRate, Lion, Momentum, Nadam, Optimizer,
    RmsProp, Update, VariableGroup, WeightDecay,
};
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;

const N_STEPS: usize = 20;
/// f32 holds these exactly, and their products with 16.
const RATE: f64 = 0.0625;
const VARIABLES: [(&str, &[i64]); 2] = [("kernel", &[4, 3]), ("bias", &[3])];

fn recorded(name: &str) -> Vec<f32> {
    let file = if ["lion/", "nadam/", "adamax/", "amsgrad/"].iter().any(|case| name.starts_with(case)) {
        "more"
    } else {
        "optimizers"
    };
    let path = format!("{}/tests/data/optim_tf/{file}.npz", env!("CARGO_MANIFEST_DIR"));
    let array: ArrayD<f32> = NpzReader::new(File::open(path).unwrap()).unwrap().by_name(name).unwrap();
    array.iter().copied().collect()
}

/// A variable and its slots in the reference.
struct State {
    name: &'static str,
    w: Vec<Bounded>,
    slots: Vec<Vec<Bounded>>,
}

impl State {
    /// Element by element: `rule(w, g, slots)` gives the new w.
    fn each(&mut self, g: &[Bounded], rule: impl Fn(Bounded, Bounded, &mut [Bounded]) -> Bounded) {
        for (at, g) in g.iter().enumerate() {
            let mut slots: Vec<Bounded> = self.slots.iter().map(|slot| slot[at]).collect();
            self.w[at] = rule(self.w[at], *g, &mut slots);
            self.slots.iter_mut().zip(slots).for_each(|(all, slot)| all[at] = slot);
        }
    }
}

/// Values of all variables after each step, by name.
fn ours(update: &Update) -> Vec<BTreeMap<String, Vec<f32>>> {
    let graph = Graph::training("update");
    let numbers = VARIABLES.map(|(name, dims)| graph.scope().variable(name, DType::F32, dims, Init::Zeros).number);
    let step = graph.input("step", DType::S32, []);
    let gradients = VARIABLES.map(|(name, dims)| graph.input(&format!("gradient.{name}"), DType::F32, dims));
    update.emit(&graph, &step, &numbers.into_iter().zip(gradients).collect::<Vec<_>>());
    let variables = graph.variables();
    let results: Vec<_> = variables.iter().map(|v| graph.tensor(v.update.unwrap())).collect();
    let results: Vec<_> = variables.iter().map(|v| v.name.as_str()).zip(&results).collect();
    let program = graph.finish(&results).unwrap();
    let compiled = run::Compiled::new(&program);
    let mut state: BTreeMap<String, Vec<f32>> = (variables.iter())
        .map(|v| match VARIABLES.iter().any(|(name, _)| *name == v.name) {
            true => (v.name.clone(), recorded(&format!("start/{}", v.name))),
            false => (v.name.clone(), v.init.values(1, &v.name, &v.dims)),
        })
        .collect();
    let gradients = VARIABLES.map(|(name, _)| recorded(&format!("gradient/{name}")));
    let mut all = vec![];
    for step in 0..N_STEPS {
        let results = compiled.run(|name| {
            if name == "step" {
                return Literal::from_elements([], &[step as i32]);
            }
            if let Some(at) = VARIABLES.iter().position(|(of, _)| Some(*of) == name.strip_prefix("gradient.")) {
                let n = gradients[at].len() / N_STEPS;
                return Literal::from_elements(VARIABLES[at].1, &gradients[at][step * n..][..n]);
            }
            let dims = &variables.iter().find(|v| v.name == name).unwrap().dims;
            Literal::from_elements(dims.clone(), &state[name])
        });
        state = variables.iter().map(|v| v.name.clone()).zip(results.iter().map(run::f32s)).collect();
        all.push(state.clone());
    }
    all
}

/// Runs `update` and compares all variables with the reference at each step, and the reference with the recordings
/// `cases`. `slots` are the name and the initial value of each slot.
fn follow(
    cases: &[&str],
    update: &Update,
    slots: &[(&str, f64)],
    reference: impl Fn(usize, &mut [State], &[Vec<Bounded>]),
) {
    let exact = |values: &[f32]| values.iter().map(|&value| Bounded::exact(f64::from(value))).collect::<Vec<_>>();
    let start = |name: &'static str| {
        let w = exact(&recorded(&format!("start/{name}")));
        let slots = slots.iter().map(|(_, value)| vec![Bounded::constant(*value); w.len()]).collect();
        State { name, w, slots }
    };
    let mut states = VARIABLES.map(|(name, _)| start(name));
    let gradients = VARIABLES.map(|(name, _)| exact(&recorded(&format!("gradient/{name}"))));
    let theirs: Vec<_> =
        (cases.iter()).map(|case| (case, VARIABLES.map(|(name, _)| recorded(&format!("{case}/{name}"))))).collect();
    for (step, ours) in ours(update).iter().enumerate() {
        let step_gradients =
            gradients.each_ref().map(|all| all[step * all.len() / N_STEPS..][..all.len() / N_STEPS].to_vec());
        reference(step, &mut states, &step_gradients);
        assert_eq!(ours.len(), VARIABLES.len() * (1 + slots.len()), "{:?}", ours.keys());
        for (number, state) in states.iter().enumerate() {
            let named =
                slots.iter().zip(&state.slots).map(|((slot, _), values)| (format!("{}/{slot}", state.name), values));
            for (name, expected) in [(state.name.to_string(), &state.w)].into_iter().chain(named) {
                // A slot may be a scalar for the whole variable.
                for (at, expected) in expected.iter().enumerate().take(ours[&name].len()) {
                    check(&format!("step {step}, {name}[{at}]"), ours[&name][at], *expected);
                }
            }
            for (case, theirs) in &theirs {
                for (at, expected) in state.w.iter().enumerate() {
                    let measured = theirs[number][step * state.w.len() + at];
                    check(&format!("{case}, step {step}, {}[{at}]", state.name), measured, *expected);
                }
            }
        }
    }
    // The bound must be tight: a wrong rule is off by the order of the change, and the bound stays below a hundredth of
    // it. Most of that is optax's, whose `1 − 0.999^t` in f32 has lost 15 of 24 bits at the first step.
    for state in &states {
        let start = recorded(&format!("start/{}", state.name));
        let moved =
            state.w.iter().zip(&start).map(|(w, start)| (w.value - f64::from(*start)).abs()).fold(0.0, f64::max);
        let error = state.w.iter().map(|w| w.error).fold(0.0, f64::max);
        assert!(error < 1e-2 * moved, "{}: the bound grew to {error:e}, moved {moved:e}", state.name);
    }
}

/// [`follow`] of a rule that goes element by element: `rule(step, name, w, g, slots)` gives the new w.
fn follow_elements(
    cases: &[&str],
    update: &Update,
    slots: &[(&str, f64)],
    rule: impl Fn(usize, &str, Bounded, Bounded, &mut [Bounded]) -> Bounded,
) {
    follow(cases, update, slots, |step, states, g| {
        for (state, g) in states.iter_mut().zip(g) {
            let name = state.name;
            state.each(g, |w, g, slots| rule(step, name, w, g, slots));
        }
    });
}

fn with(optimizer: Optimizer) -> Update {
    Update { optimizer, learning_rate: LearningRate::Constant { value: RATE }, ..Update::default() }
}

fn rate() -> Bounded {
    Bounded::exact(RATE)
}

#[test]
fn sgd() {
    follow_elements(&["sgd"], &with(Optimizer::SGD), &[], |_, _, w, g, _| w - rate() * g);
}

#[test]
fn momentum() {
    for (case, nesterov) in [("momentum", false), ("nesterov", true)] {
        let optimizer = Optimizer::Momentum(Momentum { momentum: 0.9, nesterov, ..Momentum::default() });
        let share = Bounded::constant(0.9);
        follow_elements(&[case], &with(optimizer), &[("momentum", 0.0)], |_, _, w, g, slots| {
            slots[0] = share * slots[0] + g;
            w - rate() * if nesterov { g + share * slots[0] } else { slots[0] }
        });
    }
}

/// A sign near its edge could not be compared: the recording has no such step.
#[test]
fn lion() {
    let update = with(Optimizer::Lion(Lion::default()));
    follow_elements(&["lion"], &update, &[("lion_m", 0.0)], |_, _, w, g, slots| {
        let blend = Bounded::moved(slots[0], g, 0.9);
        assert!(blend.value.abs() > blend.error, "{blend:?}");
        slots[0] = Bounded::moved(slots[0], g, 0.99);
        w - rate() * Bounded::exact(blend.value.signum())
    });
}

#[test]
fn nadam() {
    let it = Nadam::default();
    let update = with(Optimizer::Nadam(it));
    let slots = [("nadam_m", 0.0), ("nadam_v", 0.0), ("nadam_p", 1.0)];
    follow_elements(&["nadam"], &update, &slots, |step, _, w, g, slots| {
        let one = Bounded::exact(1.0);
        let share = |t: usize| {
            let power = Bounded::exact(0.96f64.powi(t as i32)).rounded(FUNCTION + t as f64 * U);
            Bounded::constant(it.beta1) * (one - Bounded::exact(0.5) * power)
        };
        let (now, next) = (share(step + 1), share(step + 2));
        slots[0] = Bounded::moved(slots[0], g, it.beta1);
        slots[1] = Bounded::moved(slots[1], g * g, it.beta2);
        slots[2] = slots[2] * now;
        let ahead = next * slots[0] / (one - slots[2] * next) + (one - now) * g / (one - slots[2]);
        // Keras' 1 − 0.999^t cancels: the power was rounded.
        let power = (0..=step).fold(one, |power, _| power * Bounded::constant(it.beta2));
        let corrected = slots[1] / (one - power.rounded(FUNCTION));
        w - rate() * ahead / (corrected.sqrt() + Bounded::constant(it.epsilon))
    });
}

#[test]
fn adamax() {
    let it = Adamax::default();
    let update = with(Optimizer::Adamax(it));
    follow_elements(&["adamax"], &update, &[("adamax_m", 0.0), ("adamax_u", 0.0)], |step, _, w, g, slots| {
        let one = Bounded::exact(1.0);
        slots[0] = Bounded::moved(slots[0], g, it.beta1);
        let faded = Bounded::constant(it.beta2) * slots[1];
        let size = Bounded { value: g.value.abs(), ..g };
        // The larger one may be either, where both bounds overlap.
        slots[1] = Bounded { value: faded.value.max(size.value), error: faded.error.max(size.error) };
        // Keras' power was rounded, and ours is of `expm1`.
        let power = (0..=step).fold(one, |power, _| power * Bounded::constant(it.beta1));
        let rest = (one - power.rounded(FUNCTION)).rounded(FUNCTION);
        w - rate() * slots[0] / (rest * (slots[1] + Bounded::constant(it.epsilon)))
    });
}

/// The kernel by Lion and the bias by gradient descent at twice the rate: each as it is alone.
#[test]
fn variables_by_their_names_change_by_other_rules() {
    let group = |pattern: &str, optimizer, rate: f64| VariableGroup {
        variables: vec![pattern.to_string()],
        optimizer,
        learning_rate: LearningRate::from(rate),
    };
    let lion = Optimizer::Lion(Lion::default());
    let groups = vec![group("k*l", lion, RATE), group("*", Optimizer::SGD, 2.0 * RATE)];
    let both = ours(&Update { groups, ..with(Optimizer::ADAM) });
    let (of_lion, of_sgd) =
        (ours(&with(lion)), ours(&Update { learning_rate: (2.0 * RATE).into(), ..with(Optimizer::SGD) }));
    for ((both, lion), sgd) in both.iter().zip(&of_lion).zip(&of_sgd) {
        assert_eq!(both.keys().collect::<Vec<_>>(), ["bias", "kernel", "kernel/lion_m"]);
        assert_eq!((&both["kernel"], &both["kernel/lion_m"]), (&lion["kernel"], &lion["kernel/lion_m"]));
        assert_eq!(both["bias"], sgd["bias"]);
    }
    let graph = Graph::training("update");
    let w = graph.scope().variable("w", DType::F32, [2], Init::Ones);
    let update = Update { groups: vec![group("*/w", lion, RATE)], ..with(Optimizer::SGD) };
    update.emit(&graph, &graph.input("step", DType::S32, []), &[(w.number, graph.full(DType::F32, &[2], 0.5))]);
    let error = graph.finish(&[]).unwrap_err().to_string();
    assert!(
        error.contains("`optimizers` has the pattern `*/w`, and no variable that trains has such a name"),
        "{error}"
    );
    assert!(error.contains("write one that matches, such as `w`"), "{error}");
}

#[test]
fn rmsprop() {
    let usual = RmsProp { momentum: 0.9, epsilon: 1e-3, ..RmsProp::default() };
    let plain = RmsProp { decay: 0.8, momentum: 0.0, ..usual };
    for (case, it) in
        [("rmsprop", usual), ("rmsprop_plain", plain), ("rmsprop_centered", RmsProp { centered: true, ..usual })]
    {
        let mut slots = vec![("rms", 1.0)];
        slots.extend(it.centered.then_some(("rms_mean", 0.0)));
        slots.extend((it.momentum > 0.0).then_some(("momentum", 0.0)));
        follow_elements(&[case], &with(Optimizer::RmsProp(it)), &slots, |_, _, w, g, slots| {
            slots[0] = Bounded::moved(slots[0], g * g, it.decay);
            let mut square = slots[0];
            if it.centered {
                slots[1] = Bounded::moved(slots[1], g, it.decay);
                square = square - slots[1] * slots[1];
            }
            let change = rate() * g / (square + Bounded::constant(it.epsilon)).sqrt();
            match slots {
                [.., momentum] if it.momentum > 0.0 => {
                    *momentum = Bounded::constant(it.momentum) * *momentum + change;
                    w - *momentum
                }
                _ => w - change,
            }
        });
    }
}

/// TensorFlow's own code multiplies with the reciprocal root, a function: hence the last rounding.
#[test]
fn adagrad() {
    let (keras, v1) = (Adagrad::default(), Adagrad { initial_accumulator_value: 0.5, epsilon: 0.0 });
    // There is no recording, but an `epsilon` as large as the sum must differ from none.
    let large = Adagrad { epsilon: 0.25, ..keras };
    for (cases, it) in [(&["adagrad"][..], keras), (&["adagrad_v1"], v1), (&[], large)] {
        let slots = [("adagrad", it.initial_accumulator_value)];
        follow_elements(cases, &with(Optimizer::Adagrad(it)), &slots, |_, _, w, g, slots| {
            slots[0] = slots[0] + g * g;
            w - (rate() * g / (slots[0] + Bounded::constant(it.epsilon)).sqrt()).rounded(FUNCTION)
        });
    }
}

#[test]
fn adadelta() {
    let it = Adadelta { epsilon: 1e-6, ..Adadelta::default() };
    let update =
        Update { learning_rate: LearningRate::Constant { value: 16.0 * RATE }, ..with(Optimizer::Adadelta(it)) };
    let root = |mean: Bounded| (mean + Bounded::constant(it.epsilon)).sqrt();
    follow_elements(
        &["adadelta"],
        &update,
        &[("adadelta_square", 0.0), ("adadelta_change", 0.0)],
        |_, _, w, g, slots| {
            slots[0] = Bounded::moved(slots[0], g * g, it.rho);
            // TensorFlow multiplies with the reciprocal root.
            let change = (root(slots[1]) / root(slots[0]) * g).rounded(FUNCTION);
            slots[1] = Bounded::moved(slots[1], change * change, it.rho);
            w - Bounded::exact(16.0 * RATE) * change
        },
    );
}

#[test]
fn ftrl() {
    let regularized = Ftrl {
        learning_rate_power: -0.7,
        l1_regularization_strength: 0.5,
        l2_regularization_strength: 0.25,
        l2_shrinkage_regularization_strength: 0.125,
        beta: 0.5,
        ..Ftrl::default()
    };
    for (case, it) in [("ftrl", Ftrl::default()), ("ftrl_regularized", regularized)] {
        let slots = [("ftrl_square", it.initial_accumulator_value), ("ftrl_linear", 0.0)];
        follow_elements(&[case], &with(Optimizer::Ftrl(it)), &slots, |_, _, w, g, slots| {
            let power = |x: Bounded| x.power(-it.learning_rate_power);
            let sum = slots[0] + g * g;
            let shrinking = g + Bounded::exact(2.0 * it.l2_shrinkage_regularization_strength) * w;
            slots[1] = slots[1] + shrinking - (power(sum) - power(slots[0])) / rate() * w;
            slots[0] = sum;
            let l2 = Bounded::exact(2.0 * it.l2_regularization_strength + it.beta / RATE);
            let l1 = it.l1_regularization_strength;
            let new = (slots[1].clamp(-l1, l1) - slots[1]) / (power(sum) / rate() + l2);
            // Ours subtracts a change from w, which rounds twice relative to the larger of both.
            let roundings = 2.0 * super::bounded::U * (w.value.abs() + new.value.abs());
            Bounded { error: new.error + roundings, ..new }
        });
    }
}

#[test]
fn a_schedule_from_zero_is_no_schedule_for_ftrl() {
    let graph = Graph::training("update");
    let w = graph.scope().variable("w", DType::F32, [2], Init::Ones);
    let learning_rate = LearningRate::WarmUpStep { value: 0.1, warm_up: 5, drops: vec![] };
    let update = Update { learning_rate, ..with(Optimizer::Ftrl(Ftrl::default())) };
    update.emit(&graph, &graph.input("step", DType::S32, []), &[(w.number, graph.full(DType::F32, &[2], 0.5))]);
    let error = graph.finish(&[]).unwrap_err().to_string();
    assert!(error.contains("ftrl divides by the learning rate, which is 0 at step 0"), "{error}");
    assert!(error.ends_with("help: start the schedule above 0"), "{error}");
}

/// Weight decay as a term of the gradient, for every variable.
#[test]
fn coupled_weight_decay() {
    let weight_decay = WeightDecay { value: 0.125, ..WeightDecay::default() };
    let update = Update { weight_decay, ..with(Optimizer::SGD) };
    follow_elements(&[], &update, &[], |_, _, w, g, _| w - rate() * (g + Bounded::exact(0.125) * w));
}

/// All variables but the bias.
fn decay() -> WeightDecay {
    WeightDecay { value: 0.125, except: vec!["bias".to_string()], decoupled: true }
}

/// Adds the term of [`decay`] to a direction.
fn with_decay(name: &str, direction: Bounded, w: Bounded) -> Bounded {
    if name == "bias" { direction } else { direction + Bounded::exact(0.125) * w }
}

#[test]
fn decoupled_weight_decay() {
    let update = Update { weight_decay: decay(), ..with(Optimizer::SGD) };
    follow_elements(&["sgd_decoupled"], &update, &[], |_, name, w, g, _| w - rate() * with_decay(name, g, w));
}

/// Adam's direction, corrected as we do or as optax does: `1 − β^t` from a rounded power.
fn adam_direction(it: &AdamW, step: usize, g: Bounded, slots: &mut [Bounded]) -> Bounded {
    slots[0] = Bounded::moved(slots[0], g, it.beta1);
    slots[1] = Bounded::moved(slots[1], g * g, it.beta2);
    let corrected = |moment: Bounded, beta: f64| {
        let power = (0..=step).fold(Bounded::exact(1.0), |power, _| power * Bounded::constant(beta));
        if it.bias_correction { moment / (Bounded::exact(1.0) - power.rounded(FUNCTION)) } else { moment }
    };
    corrected(slots[0], it.beta1) / (corrected(slots[1], it.beta2).sqrt() + Bounded::constant(it.epsilon))
}

#[test]
fn adamw() {
    let bert = AdamW { bias_correction: false, epsilon: 1e-6, ..AdamW::default() };
    for (case, it) in [("adamw", AdamW::default()), ("bert", bert)] {
        let weight_decay = WeightDecay { decoupled: false, ..decay() };
        let update = Update { weight_decay, ..with(Optimizer::AdamW(it)) };
        follow_elements(&[case], &update, &[("adam_m", 0.0), ("adam_v", 0.0)], |step, name, w, g, slots| {
            w - rate() * with_decay(name, adam_direction(&it, step, g, slots), w)
        });
    }
}

/// Without decay it is Adam.
#[test]
fn adam() {
    follow(&["adam"], &with(Optimizer::ADAM), &[("adam_m", 0.0), ("adam_v", 0.0)], |step, states, g| {
        let it = AdamW::default();
        for (state, g) in states.iter_mut().zip(g) {
            state.each(g, |w, g, slots| w - rate() * adam_direction(&it, step, g, slots));
        }
    });
}

/// The largest second moment counts, before its correction; ε is Keras'.
#[test]
fn amsgrad() {
    let it = AdamW { epsilon: 1e-7, epsilon_hat: true, amsgrad: true, ..AdamW::default() };
    let adam = Adam { epsilon: it.epsilon, epsilon_hat: true, amsgrad: true, ..Adam::PAPER };
    let slots = [("adam_m", 0.0), ("adam_v", 0.0), ("adam_v_max", 0.0)];
    let n_falls = RefCell::new(0);
    for optimizer in [Optimizer::Adam(adam), Optimizer::AdamW(it)] {
        follow_elements(&["amsgrad"], &with(optimizer), &slots, |step, _, w, g, slots| {
            let one = Bounded::exact(1.0);
            slots[0] = Bounded::moved(slots[0], g, it.beta1);
            slots[1] = Bounded::moved(slots[1], g * g, it.beta2);
            let (last, new) = (slots[2], slots[1]);
            *n_falls.borrow_mut() += usize::from(new.value + new.error < last.value - last.error);
            slots[2] = Bounded { value: last.value.max(new.value), error: last.error.max(new.error) };
            let rest = |beta: f64| {
                let power = (0..=step).fold(one, |power, _| power * Bounded::constant(beta));
                one - power.rounded(FUNCTION)
            };
            w - rate() * (rest(it.beta2).sqrt() / rest(it.beta1)) * slots[0]
                / (slots[2].sqrt() + Bounded::constant(it.epsilon))
        });
    }
    assert!(n_falls.into_inner() > 0, "no second moment falls, so AMSGrad is Adam there");
}

/// `1 − β^t` as `−expm1(t·ln β)`: this bound has no room for the bits that optax's powers lose.
#[test]
fn adam_corrects_its_bias_without_cancellation() {
    let slots = [("adam_m", 0.0), ("adam_v", 0.0)];
    follow_elements(&[], &with(Optimizer::ADAM), &slots, |step, _, w, g, slots| {
        slots[0] = Bounded::constant(0.9) * slots[0] + g * Bounded::constant(1.0 - 0.9);
        slots[1] = Bounded::constant(0.999) * slots[1] + g * g * Bounded::constant(1.0 - 0.999);
        let correction = |beta: f64| {
            let exponent = Bounded::exact(step as f64 + 1.0) * Bounded::constant(beta.ln());
            // The derivative of 1 - e^x is below 1 in size where x < 0.
            exponent.map(|x| -x.exp_m1(), 1.0, FUNCTION)
        };
        let (m, v) = (slots[0] / correction(0.9), slots[1] / correction(0.999));
        w - rate() * (m / (v.sqrt() + Bounded::constant(1e-8)))
    });
}

/// A whole variable at once: `direction` for each element, and the change computed from all directions and w.
fn by_ratio(state: &mut State, directions: &[Bounded], decay: f64) {
    let decay = Bounded::exact(decay);
    let directions: Vec<_> = directions.iter().zip(&state.w).map(|(u, w)| *u + decay * *w).collect();
    let ratio = Bounded::norm(&state.w) / Bounded::norm(&directions);
    state.w.iter_mut().zip(directions).for_each(|(w, u)| *w = *w - rate() * ratio * u);
}

#[test]
fn lamb() {
    for (case, value) in [("lamb", 0.125), ("lamb_plain", 0.0)] {
        let weight_decay = WeightDecay { value, ..WeightDecay::default() };
        let update = Update { weight_decay, ..with(Optimizer::Lamb(Lamb::default())) };
        let adam = AdamW { epsilon: 1e-6, ..AdamW::default() };
        follow(&[case], &update, &[("adam_m", 0.0), ("adam_v", 0.0)], |step, states, g| {
            for (state, g) in states.iter_mut().zip(g) {
                let directions = RefCell::new(vec![]);
                state.each(g, |w, g, slots| {
                    directions.borrow_mut().push(adam_direction(&adam, step, g, slots));
                    w
                });
                by_ratio(state, &directions.into_inner(), value);
            }
        });
    }
}

/// An excepted variable keeps the rate: with no decay the rule is AdamW's.
#[test]
fn what_weight_decay_excepts_has_no_ratio() {
    let weight_decay = WeightDecay { except: vec!["kernel".to_string(), "bias".to_string()], ..WeightDecay::default() };
    let lamb = Lamb { epsilon: 1e-8, ..Lamb::default() };
    let excepted = ours(&Update { weight_decay, ..with(Optimizer::Lamb(lamb)) });
    assert_eq!(excepted, ours(&with(Optimizer::AdamW(AdamW::default()))));
    let misspelt = WeightDecay { except: vec!["bais".to_string()], ..WeightDecay::default() };
    let graph = Graph::training("update");
    let w = graph.scope().variable("w", DType::F32, [2], Init::Ones);
    let update = Update { weight_decay: misspelt, ..with(Optimizer::Lamb(lamb)) };
    update.emit(&graph, &graph.input("step", DType::S32, []), &[(w.number, graph.full(DType::F32, &[2], 0.5))]);
    let error = graph.finish(&[]).unwrap_err().to_string();
    assert!(error.contains("weight decay excepts `bais`, and no variable's name holds that"), "{error}");
}

#[test]
fn lars() {
    let it = Lars { trust_coefficient: 0.125, ..Lars::default() };
    let (rate, coefficient) = (Bounded::exact(16.0 * RATE), Bounded::exact(it.trust_coefficient));
    let excepted = WeightDecay { value: 0.0625, except: vec!["bias".to_string()], decoupled: false };
    for (case, weight_decay) in [("lars_plain", WeightDecay::default()), ("lars", excepted)] {
        let learning_rate = LearningRate::Constant { value: 16.0 * RATE };
        let decay = Bounded::exact(weight_decay.value);
        let update = Update { weight_decay: weight_decay.clone(), learning_rate, ..with(Optimizer::Lars(it)) };
        follow(&[case], &update, &[("momentum", 0.0)], |_, states, g| {
            for (state, g) in states.iter_mut().zip(g) {
                let is_excepted = weight_decay.except.iter().any(|name| name == state.name);
                let (size, of_step) = (Bounded::norm(&state.w), Bounded::norm(g));
                let trust = coefficient * size / (of_step + decay * size);
                state.each(g, |w, g, slots| {
                    let change = if is_excepted { rate * g } else { rate * trust * (g + decay * w) };
                    slots[0] = Bounded::constant(it.momentum) * slots[0] + change;
                    w - slots[0]
                });
            }
        });
    }
}

#[test]
fn clipping() {
    let clips = [
        ("clip_global_norm", Clip::GlobalNorm { value: 4.0, per_replica: false }),
        ("clip_norm", Clip::Norm { value: 4.0 }),
        ("clip_value", Clip::Value { value: 1.5 }),
    ];
    for (case, clip) in clips {
        let update = Update { clip: Some(clip), ..with(Optimizer::SGD) };
        follow(&[case], &update, &[], |_, states, g| {
            let of_all = Bounded::norm(&g.concat());
            let least = |norm: Bounded, value: f64| Bounded { value: norm.value.max(value), ..norm };
            for (state, g) in states.iter_mut().zip(g) {
                let of_one = Bounded::norm(g);
                let clipped = |g: Bounded| match clip {
                    // TensorFlow and we multiply with a reciprocal: two roundings more.
                    Clip::GlobalNorm { value, .. } => {
                        (g * (Bounded::exact(value) / least(of_all, value))).rounded(2.0 * U)
                    }
                    Clip::Norm { value } => g * Bounded::exact(value) / least(of_one, value),
                    Clip::Value { value } => g.clamp(-value, value),
                };
                state.each(g, |w, g, _| w - rate() * clipped(g));
            }
        });
    }
}

/// As TensorFlow does, and unlike a factor of 0.
#[test]
fn an_infinite_global_norm_makes_every_gradient_nan() {
    let graph = Graph::training("update");
    let [w, v] = ["w", "v"].map(|name| graph.scope().variable(name, DType::F32, [1], Init::Ones));
    let update = Update { clip: Some(Clip::GlobalNorm { value: 1.0, per_replica: false }), ..with(Optimizer::SGD) };
    let cotangents = [(w.number, graph.input("x", DType::F32, [1])), (v.number, graph.full(DType::F32, &[1], 0.5))];
    update.emit(&graph, &graph.input("step", DType::S32, []), &cotangents);
    let results = [0, 1].map(|number| graph.tensor(graph.variables()[number].update.unwrap()));
    let program = graph.finish(&[("w", &results[0]), ("v", &results[1])]).unwrap();
    let results = run::run(&program, |name| match name {
        "step" => Literal::from_elements([], &[0i32]),
        "x" => Literal::from_elements([1], &[f32::INFINITY]),
        _ => Literal::from_elements([1], &[1f32]),
    });
    assert!(results.iter().all(|result| run::f32s(result)[0].is_nan()));
}
