//! State sharded over the replicas: the same bits as whole state under every elementwise optimizer, and within the
//! rounding of one reordered sum under those that take norms; and checkpoints that any number of replicas can resume
//! from, with whole or sharded state.

use super::bounded::U;
use super::replicas::{CNN, batches, client, noise, precisions, spec, tokens};

use bf16scope::data::{Arrays, Batch};
use bf16scope::document;
use bf16scope::graph::{Precision, Storage};
use bf16scope::hlo::DType;
use bf16scope::models::Model;
use bf16scope::optim::{Average, Clip, LearningRate, SlotStorage, WeightDecay};
use bf16scope::train::checkpoint::{Array, Checkpoint};
use bf16scope::train::{Resumption, Session, Spec, StateOf, program};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;

type State = BTreeMap<String, Array>;

/// Kernels of 64 × 22 and 22 × 10: four shards of the second have two rows of padding. Biases stay whole.
const MLP: &str = "{kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [22]}";

fn sharded(mut spec: Spec) -> Spec {
    spec.objective.mesh.state = StateOf::Sharded;
    spec
}

fn optimized(text: &str) -> Spec {
    let spec = spec(MLP, Precision::Bf16, 8, 4);
    with_optimizer(spec, text)
}

fn with_optimizer(mut spec: Spec, text: &str) -> Spec {
    spec.objective.update.optimizer = serde_yaml::from_str(text).unwrap();
    spec
}

fn trained(spec: Spec, batches: &[Batch]) -> State {
    let mut session = Session::new(client(), spec).unwrap();
    batches.iter().for_each(|batch| drop(session.train(batch).unwrap()));
    session.state().unwrap()
}

/// Both ways end with the same bits.
#[track_caller]
fn are_the_same(spec: Spec, source: &Arrays, n_steps: usize) {
    let batches = batches(source, &spec, n_steps);
    let what = format!("{:?} in {}", spec.objective.update.optimizer, spec.precision);
    let in_parts = program_of(&sharded(spec.clone())).variables.iter().filter(|it| it.part.is_some()).count();
    assert!(in_parts > 0, "{what}: everything is whole");
    let [whole, parts] = [spec.clone(), sharded(spec)].map(|spec| trained(spec, &batches));
    assert!(whole.keys().eq(parts.keys()));
    let differ: Vec<_> = whole.iter().filter(|(name, array)| parts[*name] != **array).map(|(name, _)| name).collect();
    assert!(differ.is_empty(), "{what}: these differ: {differ:?}");
}

fn program_of(spec: &Spec) -> bf16scope::graph::Program {
    program::training(&*spec.task, spec.numbers(), spec.batch.into(), &spec.objective).unwrap().program
}

#[test]
fn a_network_with_norms_and_dropout_learns_the_same_bits() {
    are_the_same(spec(CNN, Precision::Bf16, 8, 4), &noise(&[8, 8, 1], 10, 48), 4);
}

#[test]
fn every_optimizer_that_goes_element_by_element_makes_the_same_bits() {
    let source = noise(&[8, 8, 1], 10, 24);
    are_the_same(optimized("!rmsprop {momentum: 0.9}"), &source, 2);
    // Everything else that is stored for a variable, or depends on an element's index.
    let mut spec = Spec { variables: Storage::Bf16Stochastic, ..optimized("!adamw {}") };
    spec.objective.update.slots = SlotStorage::Bf16Stochastic;
    spec.objective.average = Some(Average::new(0.9));
    spec.objective.update.clip = Some(Clip::Value { value: 0.01 });
    are_the_same(spec, &source, 2);
}

/// Tables are read row by row, so their gradients add up in f32; the number of rows is not a multiple of the replicas.
#[test]
fn an_embedding_learns_the_same_bits() {
    let model = "{kind: layers, inputs: {tokens: {shape: [6], dtype: int32, below: 43}}, \
                 layers: [{embedding: 43, output_dim: 8}, flatten, {dense: 43}], loss: sparse_softmax_cross_entropy}";
    let model: Model = document::from_str("model", model).unwrap();
    let spec = Spec { task: model.task(0.0), ..spec(MLP, Precision::Bf16, 8, 4) };
    let tokens: Vec<u8> = (0..24 * 6).flat_map(|i: i32| (i * 31 % 7).to_le_bytes()).collect();
    let labels: Vec<u8> = (0..24).flat_map(|i: i32| (i * 5 % 43).to_le_bytes()).collect();
    let info = |name: &str, dims: &[i64]| bf16scope::data::ArrayInfo::new(name, DType::S32, dims);
    let source = Arrays::new(Path::new("t"), vec![(info("tokens", &[6]), tokens), (info("labels", &[]), labels)]);
    are_the_same(spec, &source.unwrap(), 2);
}

/// Casts are gathered, not masters, and no replica has a whole slot of a sharded variable.
#[test]
fn casts_are_gathered_and_slots_are_parts() {
    let spec = sharded(spec(MLP, Precision::Bf16, 8, 4));
    let program = program_of(&spec);
    let variable = |name: &str| program.variables.iter().find(|it| it.name == name).unwrap();
    let dims = |name: &str| (variable(name).dims.clone(), variable(name).whole_dims());
    assert_eq!(dims("mlp/logits/kernel"), (vec![6, 10], vec![22, 10]));
    assert_eq!(dims("mlp/dense1/kernel/adam_v"), (vec![16, 22], vec![64, 22]));
    assert_eq!((variable("mlp/dense1/bias").part, dims("mlp/dense1/bias")), (None, (vec![22], vec![22])));
    let entry = program.module.entry();
    let gathers = entry.instructions.iter().filter(|instr| instr.op.opcode() == "all-gather");
    let shapes: Vec<String> = gathers.map(|instr| instr.shape.to_string()).collect();
    assert_eq!(shapes, ["bf16[64,22]", "bf16[24,10]"]);
}

#[test]
fn an_optimizer_that_takes_norms_is_within_the_rounding_of_one_sum() {
    is_within_one_sum(with_optimizer(spec(MLP, Precision::F32, 8, 4), "!lamb {}"));
}

/// Kernels are sharded and biases whole, so the norm sums both kinds.
#[test]
fn a_global_norm_is_that_of_sharded_and_whole_variables_together() {
    let mut clipped = with_optimizer(spec(MLP, Precision::F32, 8, 4), "!sgd {}");
    clipped.objective.update.clip = Some(Clip::GlobalNorm { value: 1e-3, per_replica: false });
    is_within_one_sum(clipped);
}

/// A norm over shards is one sum in another order: for `n` squares it is within `n u` of itself, u half an ulp; its
/// root within half of that. Values computed from such norms differ by as much, relatively, and each operation rounds
/// once.
fn is_within_one_sum(mut spec: Spec) {
    let source = noise(&[8, 8, 1], 10, 8);
    let n = 64.0 * 22.0;
    spec.objective.update.weight_decay = WeightDecay { value: 0.01, except: Vec::new(), decoupled: false };
    spec.objective.update.learning_rate = LearningRate::Constant { value: 0.1 };
    let what = format!("{:?}", spec.objective.update.optimizer);
    let batches = batches(&source, &spec, 1);
    let before = Session::new(client(), spec.clone()).unwrap().state().unwrap();
    let [whole, parts] = [spec.clone(), sharded(spec)].map(|spec| trained(spec, &batches));
    assert!(whole.keys().eq(parts.keys()), "{what}");
    for name in ["mlp/dense1/kernel", "mlp/logits/kernel"] {
        let [before, whole, parts] = [&before, &whole, &parts].map(|state| floats(&state[name]));
        let mut n_changed = 0;
        for ((before, whole), parts) in before.iter().zip(&whole).zip(&parts) {
            let change = f64::from((before - whole).abs());
            // Four norms or means at most, and 32 operations.
            let bound = (4.0 * n + 32.0) * U * change + 4.0 * U * f64::from(before.abs());
            let difference = f64::from((whole - parts).abs());
            assert!(difference <= bound, "{what} {name}: {whole} and {parts} are {difference:e} apart, {bound:e}");
            n_changed += usize::from(before != whole);
        }
        assert!(n_changed > before.len() / 2, "{what} {name}: nothing was learnt");
    }
}

fn floats(array: &Array) -> Vec<f32> {
    array.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn goes_on(checkpoint: &Checkpoint, spec: Spec, batches: &[Batch]) -> (State, Vec<String>) {
    let mut session = Session::new(client(), spec).unwrap();
    let changes = session.restore(Path::new("run"), checkpoint, Resumption::default()).unwrap();
    batches.iter().for_each(|batch| drop(session.train(batch).unwrap()));
    (session.state().unwrap(), changes.iter().map(ToString::to_string).collect())
}

#[test]
fn a_checkpoint_is_that_of_whole_state_and_goes_on_with_any_number_of_replicas() {
    let source = noise(&[8, 8, 1], 10, 48);
    let replicated = |n| spec(MLP, Precision::Bf16, 8, n);
    let batches = batches(&source, &replicated(8), 4);
    let [(whole, last_of_whole), (parts, last)] = [replicated(8), sharded(replicated(8))].map(|spec| {
        let mut session = Session::new(client(), spec).unwrap();
        batches[..2].iter().for_each(|batch| drop(session.train(batch).unwrap()));
        let checkpoint = session.checkpoint(6).unwrap();
        batches[2..].iter().for_each(|batch| drop(session.train(batch).unwrap()));
        (checkpoint, session.state().unwrap())
    });
    // The same file except for the key of the mesh.
    assert!(whole.variables == parts.variables && last == last_of_whole);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.safetensors");
    parts.write(&path).unwrap();
    let read = Checkpoint::read(&path).unwrap();
    assert_eq!(goes_on(&read, sharded(replicated(8)), &batches[2..]), (last.clone(), vec![]));
    let (state, changes) = goes_on(&read, replicated(8), &batches[2..]);
    assert_eq!(changes, ["mesh.state was sharded, is not set now"]);
    assert!(state == last);
    assert!(goes_on(&whole, sharded(replicated(8)), &batches[2..]).0 == last);
    // On four and on one, whole or sharded: the same bits.
    let fewer = [4, 1].map(|n| {
        let [whole, parts] = [replicated(n), sharded(replicated(n))].map(|spec| goes_on(&read, spec, &batches[2..]).0);
        assert!(whole == parts, "{n}");
        whole
    });
    assert!(fewer.iter().all(|state| state.keys().eq(last.keys())));
}

/// An evaluation reads whole variables, assembled from their shards.
#[test]
fn evaluations_read_what_lies_in_parts() {
    let source = noise(&[8, 8, 1], 10, 24);
    let totals = |spec: Spec| {
        let batches = batches(&source, &spec, 2);
        let mut session = Session::new(client(), spec).unwrap();
        batches.iter().for_each(|batch| drop(session.train(batch).unwrap()));
        let evaluator = session.evaluator(8).unwrap();
        session.evaluate(&evaluator, &source).unwrap().totals.to_values()
    };
    let mut spec = spec(MLP, Precision::Bf16, 8, 4);
    spec.objective.average = Some(Average::new(0.5));
    assert_eq!(totals(spec.clone()), totals(sharded(spec)));
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// The other optimizers, and 50 steps of the digits' network, a ResNet and a transformer, on 8 devices.
    #[cfg_attr(feature = "long-tests", test)]
    fn larger_networks_learn_the_same_bits() {
        let source = noise(&[8, 8, 1], 10, 24);
        for precision in precisions() {
            are_the_same(spec(CNN, precision, 8, 4), &noise(&[8, 8, 1], 10, 48), 4);
        }
        let mut compensated = Spec { variables: Storage::Bf16Compensated, ..optimized("!adamw {}") };
        compensated.objective.accumulate = NonZeroU32::new(2).unwrap();
        are_the_same(compensated, &source, 2);
        let nesterov = "!momentum {momentum: 0.9, nesterov: true}";
        for optimizer in
            [nesterov, "!sgd {}", "!adagrad {}", "!adadelta {}", "!ftrl {}", "!adam {momentum_dtype: bf16}"]
        {
            let mut spec = optimized(optimizer);
            // ftrl divides by the rate, which must not begin at 0.
            spec.objective.update.learning_rate = LearningRate::Constant { value: 0.01 };
            are_the_same(spec, &source, 3);
        }
        let mut spec_of_loop = optimized("!adam {}");
        spec_of_loop.objective.accumulate = NonZeroU32::new(2).unwrap();
        are_the_same(spec_of_loop, &source, 3);
        let digits = "{kind: cnn, input: [8, 8, 1], n_classes: 10, filters: [32, 64, 128], dropout: 0.3}";
        let resnet = "{kind: resnet, depth: 18, width: 8, input: [16, 16, 3], n_classes: 10}";
        let sizes = "vocabulary: 43, length: 8, max_length: 8, features: 16, heads: 4, hidden: 64, layers: 2";
        let bert = format!("{{kind: transformer, {sizes}}}");
        for precision in [Precision::F32, Precision::Bf16] {
            are_the_same(spec(digits, precision, 32, 8), &noise(&[8, 8, 1], 10, 96), 50);
            are_the_same(spec(resnet, precision, 32, 8), &noise(&[16, 16, 3], 10, 96), 50);
            are_the_same(spec(&bert, precision, 16, 8), &tokens(8, 43, 48), 50);
        }
    }

    /// Lars, adafactor and a clipped norm, which compile nine programs.
    #[cfg_attr(feature = "long-tests", test)]
    fn optimizers_that_take_norms_are_within_the_rounding_of_one_sum() {
        let lars = with_optimizer(spec(MLP, Precision::F32, 8, 4), "!lars {}");
        let factored = "!adafactor {min_dim_size_to_factor: 8}";
        let adafactor = with_optimizer(spec(MLP, Precision::F32, 8, 4), factored);
        let mut each = with_optimizer(spec(MLP, Precision::F32, 8, 4), "!sgd {}");
        each.objective.update.clip = Some(Clip::Norm { value: 1e-3 });
        [lars, adafactor, each].into_iter().for_each(is_within_one_sum);
    }
}

/// Two replicas with the same examples: each has half of the gradient, and clips that, so that clipping to `c` before
/// the sum equals clipping the sum to `2c`.
#[test]
fn a_norm_is_clipped_before_the_sum_where_that_is_asked() {
    let source = noise(&[8, 8, 1], 10, 24);
    let with = |clip: Option<Clip>| {
        let mut spec = with_optimizer(spec(MLP, Precision::F32, 8, 2), "!sgd {}");
        spec.objective.update.learning_rate = LearningRate::Constant { value: 1.0 };
        spec.objective.update.clip = clip;
        spec
    };
    let mut batch = batches(&source, &with(None), 1).remove(0);
    for array in &mut batch.arrays {
        let half = array.bytes[..array.bytes.len() / 2].to_vec();
        array.bytes = [half.clone(), half].concat();
    }
    let before = Session::new(client(), with(None)).unwrap().state().unwrap();
    let moved = |value: f64, per_replica: bool| -> Vec<(f64, f64)> {
        let state = trained(with(Some(Clip::GlobalNorm { value, per_replica })), std::slice::from_ref(&batch));
        let floats = |array: &Array| -> Vec<f64> {
            array.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect()
        };
        let kernel = |state: &State| floats(&state["mlp/dense1/kernel"]);
        kernel(&before).into_iter().zip(kernel(&state)).map(|(old, new)| (old, new - old)).collect()
    };
    let (c, each, of_sum, of_half) = (1e-2, moved(1e-2, true), moved(2e-2, false), moved(1e-2, false));
    let norm = |moved: &[(f64, f64)]| moved.iter().map(|(_, step)| step * step).sum::<f64>().sqrt();
    // The kernel has a part of the gradient, and the sum of clipped gradients is twice the clipped sum.
    assert!(norm(&each) > 0.1 * c && norm(&each) <= 2.0 * c * 1.001, "{}", norm(&each));
    assert!((norm(&each) / norm(&of_half) - 2.0).abs() < 1e-3, "{} and {}", norm(&each), norm(&of_half));
    for ((old, one), (_, other)) in each.iter().zip(&of_sum) {
        // Each weight is rounded once more, and the norm is a sum of 1,600 squares in another order: each adds U.
        let bound = 4.0 * U * old.abs().max(c) + 1600.0 * U * one.abs();
        assert!((one - other).abs() <= bound, "{one} and {other} from {old}");
    }
}
