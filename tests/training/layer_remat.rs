//! Rematerialisation in a transformer's layers: the same training step to the last bit, with updates that do not wait.

use crate::run;

use bf16scope::document;
use bf16scope::graph::{Graph, Init, Precision, Program};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, InstrId, Literal, Op};
use bf16scope::models::{Model, transformer};
use bf16scope::nn::{Softmax, token_loss};
use bf16scope::optim::{LearningRate, Optimizer, Update};
use bf16scope::passes::cotangent_remat;
use bf16scope::passes::grad::gradients;
use bf16scope::train::{Objective, program};
use bf16scope::tuning::{Tune, Tuning};

fn model(text: &str) -> Model {
    let text = format!(
        "{{kind: transformer, vocabulary: 19, length: 8, max_length: 8, features: 16, heads: 4, hidden: 32, {text}}}"
    );
    document::from_str("small", &text).unwrap()
}

/// Tuned as for a TPU, except for rematerialisation: attention's weights in all layers, and the choices in `keys`.
fn tuning(keys: &str) -> Tuning {
    let tune: Tune = document::from_str("tune", &format!("layer_remat: {{{keys}}}")).unwrap();
    tune.tuning(&Tuning::tpu().with(|tuning| tuning.softmax = Softmax::TwoPasses))
}

/// With a rate of 1 and no momentum the new value is the old one minus the gradient.
fn step(model: &Model, precision: Precision, tuning: Tuning) -> Program {
    let update =
        Update { optimizer: Optimizer::SGD, learning_rate: LearningRate::Constant { value: 1.0 }, ..Update::default() };
    let program =
        program::training(&*model.task(0.0), precision, 2, &Objective { update, tuning, ..Objective::default() });
    let program = program.unwrap().program;
    verify(&program.module).unwrap();
    program
}

/// Named results of a step whose inputs depend on names alone.
fn results(program: &Program) -> Vec<(String, Literal)> {
    let value = |name: &str| match program.variables.iter().find(|variable| variable.name == name) {
        Some(variable) => {
            let n = variable.dims.iter().product();
            Literal::from_elements(variable.dims.clone(), &Init::Uniform { limit: 0.5 }.values(7, name, &[n]))
        }
        None if name == "step" => Literal::from_elements(Vec::new(), &[0i32]),
        None => {
            let tokens = Init::Uniform { limit: 9.5 }.values(7, name, &[16]).into_iter();
            Literal::from_elements(vec![2, 8], &tokens.map(|token| (token + 9.5) as i32).collect::<Vec<_>>())
        }
    };
    program.outputs.iter().cloned().zip(run::run(program, value)).collect()
}

const FORMS: [(Precision, &str); 2] =
    [(Precision::F32, "causal: false, norm: pre"), (Precision::Bf16, "causal: true, norm: post")];

/// The same results with all attention's weights and with other tunings.
fn keeps_bits((precision, form): (Precision, &str), n_layers: u32, tunings: &[Tuning]) {
    let model = model(&format!("{form}, layers: {n_layers}"));
    let expected = results(&step(&model, precision, tuning("")));
    for tuning in tunings {
        let measured = results(&step(&model, precision, tuning.clone()));
        assert_eq!(measured.len(), expected.len());
        for ((name, measured), (_, expected)) in measured.iter().zip(&expected) {
            assert_eq!(measured, expected, "{precision}, {form}: {name}");
        }
    }
}

/// Two layers: everything in the first and weights in both; or attention in both, values and hidden layers in the
/// first.
#[test]
fn gradients_keep_their_bits() {
    keeps_bits(FORMS[0], 2, &[tuning("values: 1, attention: 1, weights: 2, hidden: 1")]);
    keeps_bits(FORMS[1], 2, &[tuning("values: 1, attention: 2, weights: 0, hidden: 1")]);
}

/// The gradients of a post-norm transformer in bf16 before and after [`cotangent_remat::run`], which
/// `program::training` calls if the tuning says so.
#[test]
fn a_cotangent_made_again_where_it_is_added_keeps_its_bits() {
    let g = Graph::training("transformer").tuned(&tuning(""));
    let [tokens, labels] = ["tokens", "labels"].map(|name| g.input(name, DType::S32, [2, 8]));
    let config = transformer::Config {
        vocabulary: 19,
        length: 8,
        max_length: 8,
        layers: 2,
        features: 16,
        heads: 4,
        hidden: 32,
        ..transformer::Config::default()
    };
    let logits = g.bf16_scope(|s| transformer::build(s, &tokens, &config));
    let loss = token_loss(&logits, &labels, 0.0, Softmax::TwoPasses).loss.mean(&[0, 1]);
    let variables = g.variables();
    let wrt: Vec<_> = variables.iter().map(|variable| variable.instr).collect();
    let gradients: Vec<_> = gradients(g.emitter(), loss.id, &wrt).unwrap().into_iter().map(|id| g.tensor(id)).collect();
    let named: Vec<_> = variables.iter().map(|variable| variable.name.as_str()).zip(&gradients).collect();
    let mut program = g.finish(&named).unwrap();
    let expected = results(&program);
    let (module, report) = cotangent_remat::run(&program.module, &cotangent_remat::Config).unwrap();
    assert_eq!(report.rematerialised.len(), 2, "one in each layer, attention's");
    verify(&module).unwrap();
    program.module = module;
    for ((name, measured), (_, expected)) in results(&program).iter().zip(&expected) {
        assert_eq!(measured, expected, "{name}");
    }
}

/// Products of a step of three layers.
fn n_products(keys: &str) -> usize {
    let program = step(&model("layers: 3"), Precision::Bf16, tuning(keys));
    let entry = program.module.entry();
    entry.instructions.iter().filter(|instr| matches!(instr.op, Op::Dot { .. })).count()
}

#[test]
fn one_product_more_in_as_many_layers_as_asked_for() {
    let default = n_products("");
    assert_eq!(n_products("weights: 1"), default - 2);
    assert_eq!(n_products("attention: 2"), default + 2);
    assert_eq!(n_products("attention: 2, values: 1"), default + 3);
    assert_eq!(n_products("hidden: 3"), default + 3);
    // There are no more layers.
    assert_eq!(n_products("attention: 7, hidden: 1"), default + 4);
}

#[test]
fn what_is_computed_again_waits_for_the_updates_of_later_layers() {
    let program = step(&model("layers: 3"), Precision::Bf16, tuning("hidden: 3"));
    let entry = program.module.entry();
    let depends_on = |from: InstrId| {
        let mut needed = vec![false; entry.instructions.len()];
        needed[from.idx()] = true;
        for id in entry.ids().rev().filter(|id| id.idx() <= from.idx()) {
            if needed[id.idx()] {
                entry.instr(id).operands.iter().for_each(|operand| needed[operand.idx()] = true);
            }
        }
        needed
    };
    let update = |name: &str| {
        let variable = program.variables.iter().position(|variable| variable.name == name).unwrap();
        entry.instr(entry.root).operands[variable]
    };
    // The result comes out of its barrier; the optimizer's value goes into it.
    let update_value = |name: &str| match entry.instr(update(name)).op {
        Op::GetTupleElement { index } => {
            let barrier = entry.instr(entry.instr(update(name)).operands[0]);
            assert_eq!(barrier.op, Op::OptimizationBarrier);
            entry.instr(barrier.operands[0]).operands[index as usize]
        }
        _ => update(name),
    };
    let first = depends_on(update_value("transformer/layer1/feed_forward/dense1/kernel"));
    for later in ["layer2/feed_forward/dense1/kernel", "layer3/feed_forward/dense2/bias", "logits/kernel"] {
        assert!(first[update_value(&format!("transformer/{later}")).idx()], "{later}");
    }
    let last = depends_on(update_value("transformer/layer3/feed_forward/dense1/kernel"));
    assert!(!last[update_value("transformer/layer2/feed_forward/dense1/kernel").idx()]);
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// In each of four layers something else: values, mixed, weights, nothing; the hidden layers of the first two. And no
    /// rematerialisation.
    ///
    /// Compiles six steps of four layers, a minute of a core.
    #[cfg_attr(feature = "long-tests", test)]
    fn gradients_of_four_layers_keep_their_bits() {
        for form in FORMS {
            keeps_bits(form, 4, &[tuning("values: 1, attention: 2, weights: 3, hidden: 2"), Tuning::none()]);
        }
    }
}
