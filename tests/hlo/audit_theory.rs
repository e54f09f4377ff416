//! Gradients that are zero in theory: in f32 they are rounding errors, some of which cancel to an exact zero. An audit
//! does not judge them, nor the moments and variables computed from them; it judges the others.

use crate::run::client;

use bf16scope::audit::{
    Audit, Auditor, Config, DecisionRow, Judgement, ResultChoice, ResultRow, SearchEnd, largest_error,
};
use bf16scope::data::{ArrayInfo, Arrays};
use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::hlo::{DType, Literal};
use bf16scope::passes::amp::Policy;
use bf16scope::passes::name_pattern;
use bf16scope::train::replay::{ReplayFrom, state_at};
use bf16scope::train::{Data, Session, StepInF32, TrainError, step_with_gradients_in_f32};
use bf16scope::tuning::Tuning;
use std::path::Path;

const BATCH: usize = 8;

/// A network with an optimizer, and the variables whose gradient is zero in theory.
struct Network {
    name: &'static str,
    /// Dims of `x`.
    dims: &'static [i64],
    layers: &'static str,
    optimizer: &'static str,
    zero: &'static [&'static str],
}

const ADAM: &str = "optimizer: adam, learning_rate: 0.001";
const ADAMW: &str =
    "optimizer: adamw, learning_rate: 0.001, weight_decay: {value: 0.01, except: [bias], decoupled: true}";
const MOMENTUM: &str = "optimizer: momentum, learning_rate: 0.01";
const CLIPPED: &str = "optimizer: adam, learning_rate: 0.001, clip: {kind: global_norm, value: 0.1}";
const LAMB: &str = "optimizer: lamb, learning_rate: 0.001";
const RMSPROP: &str = "optimizer: {kind: rmsprop, momentum: 0.9, epsilon: 0.001}, learning_rate: 0.001";

/// A bias before a normalisation that subtracts the mean, with only linear ops between; a key's bias, which adds one
/// number to all scores of a query; the queries and keys of a single position, whose softmax is 1.
const NETWORKS: [Network; 12] = [
    Network {
        name: "a dense layer before a batch norm",
        dims: &[12],
        layers: "{dense: 16, name: first}, batch_norm, {activation: relu}, {dense: 3}",
        optimizer: ADAM,
        zero: &["*first/bias"],
    },
    Network {
        name: "a convolution before a batch norm",
        dims: &[5, 5, 2],
        layers: "{conv: 6, kernel_size: 3, name: first}, batch_norm, {activation: relu}, global_avg_pool, {dense: 3}",
        optimizer: MOMENTUM,
        zero: &["*first/bias"],
    },
    Network {
        name: "a depthwise convolution before a batch norm",
        dims: &[5, 5, 4],
        layers: "{depthwise_conv: 3, name: first}, batch_norm, {activation: silu}, flatten, {dense: 3}",
        optimizer: RMSPROP,
        zero: &["*first/bias"],
    },
    Network {
        name: "attention",
        dims: &[4, 8],
        layers: "{attention: 2}, flatten, {dense: 3}",
        optimizer: ADAMW,
        zero: &["*key*bias"],
    },
    Network {
        name: "causal attention",
        dims: &[5, 8],
        layers: "{attention: 2, use_causal_mask: true}, flatten, {dense: 3}",
        optimizer: LAMB,
        zero: &["*key*bias"],
    },
    Network {
        name: "a transformer that normalises after",
        dims: &[4, 8],
        layers: "{transformer_block: 2, intermediate_dim: 16}, flatten, {dense: 3}",
        optimizer: ADAMW,
        zero: &["*key*bias"],
    },
    Network {
        name: "a transformer of two blocks that normalises before",
        dims: &[4, 8],
        layers: "{transformer_block: 2, intermediate_dim: 16, normalize_first: true, repeats: 2}, layer_norm, flatten, {dense: 3}",
        optimizer: CLIPPED,
        zero: &["*key*bias"],
    },
    Network {
        name: "two batch norms",
        dims: &[12],
        layers: "{dense: 16, name: first, use_bias: false}, {batch_norm: , name: norm}, {batch_norm: , name: again}, {activation: tanh}, {dense: 3}",
        optimizer: ADAM,
        zero: &["*norm/beta"],
    },
    Network {
        name: "a pool between",
        dims: &[6, 6, 2],
        layers: "{conv: 4, kernel_size: 3, padding: same, name: first}, {avg_pool: 2}, batch_norm, {activation: relu}, flatten, {dense: 3}",
        optimizer: ADAMW,
        zero: &["*first/bias"],
    },
    Network {
        name: "a sum between",
        dims: &[12],
        layers: "{dense: 12, name: first}, {dense: 12, activation: tanh, name: side, inputs: x}, {add: [first, side]}, batch_norm, {activation: relu}, {dense: 3}",
        optimizer: MOMENTUM,
        zero: &["*first/bias"],
    },
    Network {
        name: "one position",
        dims: &[1, 8],
        layers: "{attention: 2}, flatten, {dense: 3}",
        optimizer: ADAM,
        zero: &["*key*bias", "*key*kernel", "*query*bias", "*query*kernel"],
    },
    Network {
        name: "two linear layers before a batch norm",
        dims: &[12],
        layers: "{dense: 16, name: first}, {dense: 16, name: second}, batch_norm, {activation: relu}, {dense: 3}",
        optimizer: ADAM,
        zero: &["*first/bias", "*second/bias"],
    },
];

/// Numbers between −1 and 1, the same for the same seed.
struct Draws(u64);

impl Draws {
    fn new(seed: u64) -> Draws {
        Draws(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Two batches in three classes.
fn data(dims: &[i64]) -> Arrays {
    let n = 2 * BATCH;
    let size: i64 = dims.iter().product();
    let mut draws = Draws::new(99);
    let x = (0..n * size as usize).flat_map(|_| draws.next().to_le_bytes()).collect();
    let labels = (0..n as i32).flat_map(|example| (example % 3).to_le_bytes()).collect();
    let arrays = vec![(ArrayInfo::new("x", DType::F32, dims), x), (ArrayInfo::new("labels", DType::S32, []), labels)];
    Arrays::new(Path::new("examples"), arrays).unwrap()
}

/// The first step of a network's training in bf16, or its fourth, in f32.
fn step(network: &Network, n_before: u64) -> StepInF32 {
    let Network { name, dims, layers, optimizer, .. } = network;
    let text = format!(
        "model:\n  kind: layers\n  inputs: {{x: {dims:?}}}\n  layers: [{layers}]\n  loss: sparse_softmax_cross_entropy\ntrain: \
         {{batch: {BATCH}, epochs: 9, {optimizer}}}\n"
    );
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let mut experiment = Experiment::read(file.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
    experiment.train.n_train = Some(2 * BATCH as u64);
    let spec = experiment.spec(Precision::Bf16, &Tuning::none()).unwrap();
    let mut session = Session::new(client(), spec).unwrap_or_else(|error| panic!("{name}: {error}"));
    let arrays = data(dims);
    let data = Data { training: &arrays, test: &arrays };
    state_at::<TrainError>(&mut session, data, &ReplayFrom::Start, 1 + n_before, |_, _| Ok(())).unwrap();
    step_with_gradients_in_f32(&session, data).unwrap()
}

/// The inputs of a step with other kernels, as large as its own, and other examples: another seed of both.
fn with_seed(step: &StepInF32, seed: u64) -> Vec<Literal> {
    let mut draws = Draws::new(seed);
    let n_inputs = step.inputs.len();
    let redrawn = |(at, input): (usize, &Literal)| {
        let is_kernel = step.results.get(at).is_some_and(|name| name.ends_with("/kernel"));
        let Literal::Array { shape, .. } = input else { return input.clone() };
        // The examples are the floats behind the state, of rank two or more.
        let is_x = at + 4 > n_inputs && shape.dtype == DType::F32 && shape.dims.len() >= 2;
        match input.elements::<f32>().filter(|_| seed > 0 && (is_kernel || is_x)) {
            Some(values) => {
                let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                let drawn: Vec<f32> = values.iter().map(|_| largest * draws.next()).collect();
                Literal::from_elements(&shape.dims[..], &drawn)
            }
            None => input.clone(),
        }
    };
    step.inputs.iter().enumerate().map(redrawn).collect()
}

/// One seed of the first step or of the fourth, whose state has the noise of three steps in bf16: a bias before a norm and
/// before what is between, a key's bias, and the queries and keys of a single position.
#[test]
fn what_is_zero_in_theory_is_not_judged() {
    none_is_judged(1, |network| match network.name {
        "a dense layer before a batch norm" | "one position" => &[0],
        "attention" | "a pool between" => &[3],
        _ => &[],
    });
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Eight seeds of both steps of each network.
    #[cfg_attr(feature = "long-tests", test)]
    fn what_is_zero_in_theory_is_not_judged_whatever_the_seed() {
        none_is_judged(8, |_| &[0, 3]);
    }

    /// Three seeds of each network.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_first_adamw_step_keeps_three_instructions_at_most() {
        SEARCHED.iter().for_each(|network| at_most_three_are_kept(network, 3, true));
    }
}

/// `steps_before` gives how many steps of a network precede each audited one.
fn none_is_judged(n_seeds: u64, steps_before: impl Fn(&Network) -> &'static [u64]) {
    let mut n_audited = 0;
    for network in &NETWORKS {
        let mut worst = 0.0;
        for &n_before in steps_before(network) {
            n_audited += 1;
            let step = step(network, n_before);
            let choice = ResultChoice { names: step.results.clone(), ..ResultChoice::default() };
            for seed in 0..n_seeds {
                let inputs = with_seed(&step, seed);
                let auditor = Auditor::of_results(client(), &step.module, &inputs, Config::default(), &choice).unwrap();
                let rows = auditor.results(&Policy::default()).unwrap();
                worst = f64::max(worst, check(network, &rows, &format!("step {}, seed {seed}", n_before + 1)));
            }
        }
        println!("{}: {worst:.2e} at most", network.name);
    }
    assert!(n_audited >= 4, "{n_audited} steps");
}

/// Networks whose first AdamW step is searched for what to keep.
const SEARCHED: [Network; 4] = [
    Network {
        name: "a transformer of one block",
        dims: &[16, 32],
        layers: "{transformer_block: 4, intermediate_dim: 64}, flatten, {dense: 3}",
        optimizer: ADAMW,
        zero: &["*key*bias"],
    },
    Network {
        name: "a decoder of two blocks",
        dims: &[16, 32],
        layers: "{transformer_block: 4, intermediate_dim: 64, normalize_first: true, use_causal_mask: true, repeats: 2}, layer_norm, flatten, {dense: 3}",
        optimizer: ADAMW,
        zero: &["*key*bias"],
    },
    Network {
        name: "a perceptron",
        dims: &[12],
        layers: "{dense: 64, activation: relu}, {dense: 64, activation: relu}, {dense: 3}",
        optimizer: ADAMW,
        zero: &[],
    },
    Network {
        name: "a convolutional network",
        dims: &[8, 8, 3],
        layers: "{conv: 16, kernel_size: 3, activation: relu}, {conv: 16, kernel_size: 3, activation: relu}, global_avg_pool, {dense: 3}",
        optimizer: ADAMW,
        zero: &[],
    },
];

/// A search at a budget of 5e-2 on the first AdamW step keeps three instructions at most, or ends because ReLUs flip and the
/// budget would hold with f32's. Instructions are candidates if they `are_compared`.
fn at_most_three_are_kept(network: &Network, n_seeds: u64, are_compared: bool) {
    const BUDGET: f64 = 5e-2;
    let step = step(network, 0);
    let choice = ResultChoice { names: step.results.clone(), ..ResultChoice::default() };
    for seed in 0..n_seeds {
        let inputs = with_seed(&step, seed);
        let auditor = Auditor::of_results(client(), &step.module, &inputs, Config::default(), &choice).unwrap();
        let results = auditor.results(&Policy::default()).unwrap();
        let error = largest_error(&results);
        println!("{}, seed {seed}: {error:.2e}", network.name);
        if error <= BUDGET {
            continue;
        }
        let audit = match are_compared {
            true => auditor.audit(&Policy::default()).unwrap(),
            false => Audit::of_results(&step.module, "results alone").with_results(results, None),
        };
        let search = auditor.search(&Policy::default(), &audit, BUDGET).unwrap();
        println!("{:?} with {:?} kept, {:?}", search.end, search.keep, search.decisions);
        match search.end {
            SearchEnd::Minimal => assert!(search.error <= BUDGET && search.keep.len() <= 3, "{search:#?}"),
            SearchEnd::Decisions => {
                let decisions = search.decisions.as_ref().unwrap();
                assert!(decisions.error <= BUDGET && !decisions.rows.is_empty(), "{search:#?}");
                // A rounding away from 0 a ReLU's input is one of some hundreds; and a row's maximum moves from one place to another.
                let is_rare = |row: &DecisionRow| row.n_differing <= 2 || 100 * row.n_differing < row.n_elements;
                let is_rare = decisions.rows.iter().all(is_rare);
                assert!(
                    is_rare && !search.is_reached && search.keep.is_empty() && search.error == error,
                    "{search:#?}"
                );
            }
            _ => panic!("{}, seed {seed}: {search:#?}", network.name),
        }
    }
}

/// A search kept 16 instructions, which drew other ReLUs that decide otherwise.
#[test]
fn what_relus_of_a_transformer_decide_otherwise_keeps_nothing() {
    at_most_three_are_kept(&SEARCHED[0], 1, false);
}

/// Checks that no result that is zero in theory is judged, and that most others are; returns the largest error.
fn check(network: &Network, rows: &[ResultRow], which: &str) -> f64 {
    let is_zero = |row: &&ResultRow| {
        let variable = row.name.strip_prefix("gradient/").unwrap_or(&row.name);
        // Slots are named after their variables.
        let matches = |pattern: &&str| {
            name_pattern::matches(pattern, variable) || name_pattern::matches(&format!("{pattern}/*"), variable)
        };
        network.zero.iter().any(matches)
    };
    let zeros: Vec<&ResultRow> = rows.iter().filter(is_zero).collect();
    assert!(zeros.len() >= 2 * network.zero.len(), "{}: {rows:#?}", network.name);
    for row in zeros {
        // A result that is bitwise the same may be judged: it is right at any scale.
        let is_judged = row.judgement == Judgement::Judged && row.n_differing > 0;
        assert!(!is_judged, "{}, {which}: {row:#?}", network.name);
    }
    let error = largest_error(rows);
    let worst = rows.iter().max_by(|a, b| a.judged.unwrap_or(0.0).total_cmp(&b.judged.unwrap_or(0.0)));
    assert!(error.is_finite() && error < 1.0, "{}, {which}: {error}: {worst:#?}", network.name);
    assert!(rows.iter().filter(|row| row.judgement == Judgement::Judged).count() >= 4, "{}: {rows:#?}", network.name);
    error
}
