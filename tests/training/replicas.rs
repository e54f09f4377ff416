//! Replicas that share a step: the same bits as one device that computes the parts in turn and sums their gradients in
//! rank order; and runs that resume with the same number of devices and with others.

use crate::run;

use bf16scope::data::{ArrayInfo, Arrays, Batch, Loader};
use bf16scope::document;
use bf16scope::graph::{Precision, Storage};
use bf16scope::hlo::ops::BinaryOp;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{CompId, Computation, DType, InstrId, Instruction, Literal, Module, Op, Shape};
use bf16scope::models::Model;
use bf16scope::optim::{LearningRate, LossScale, Optimizer, Update};
use bf16scope::pjrt::{Arg, Buffer, Client, CompileOptions, Platform, Setup};
use bf16scope::train::checkpoint::{Array, Checkpoint};
use bf16scope::train::{Data, Mesh, Objective, Resumption, RunPlan, Session, Spec, TrainError, program, run as train};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// The number of devices of the client that all tests share.
const N_DEVICES: u32 = 8;

pub fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    let client = || Client::for_platform(&Platform::cpu_devices(N_DEVICES).unwrap(), &Setup::from_env()).unwrap();
    CLIENT.get_or_init(|| run::quick(client()).keeping(run::KEPT))
}

pub fn mesh(n: u32) -> Mesh {
    Mesh::replicas(NonZeroU32::new(n).unwrap())
}

/// Batch norms, dropout, slots, a rate that changes.
pub fn spec(model: &str, precision: Precision, batch: u32, n: u32) -> Spec {
    let model: Model = document::from_str("model", model).unwrap();
    let learning_rate = LearningRate::WarmUpStep { value: 0.01, warm_up: 12, drops: Vec::new() };
    let update = Update { optimizer: Optimizer::ADAM, learning_rate, ..Update::default() };
    let loss_scale = if precision == Precision::F16 { LossScale::DYNAMIC } else { LossScale::None };
    let objective = Objective { update, loss_scale, mesh: mesh(n), ..Objective::default() };
    Spec { precision, batch, seed: 5, objective, ..Spec::new(model.task(0.1)) }
}

pub const CNN: &str = "{kind: cnn, input: [8, 8, 1], n_classes: 10, filters: [4], dropout: 0.25}";

/// Noise images in `n` batches of eight.
pub fn noise(dims: &[i64], n_classes: i32, n: usize) -> Arrays {
    let n_pixels: i64 = dims.iter().product();
    let pixel = |i: usize| ((i * 37 + i / 7 * 11) % 64) as f32 / 32.0 - 1.0;
    let pixels = (0..n * n_pixels as usize).flat_map(|i| pixel(i).to_le_bytes()).collect();
    let labels = (0..n as i32).flat_map(|i| (i * 7 % n_classes).to_le_bytes()).collect();
    let arrays =
        vec![(ArrayInfo::new("images", DType::F32, dims), pixels), (ArrayInfo::new("labels", DType::S32, []), labels)];
    Arrays::new(Path::new("noise"), arrays).unwrap()
}

/// Sequences of tokens, with the positions to predict.
pub fn tokens(length: usize, vocabulary: i32, n: usize) -> Arrays {
    let token = |i: usize| ((i * 31 + i / 5) as i32 % vocabulary).to_le_bytes();
    let tokens = (0..n * length).flat_map(token).collect::<Vec<u8>>();
    let dims = [length as i64];
    let arrays = vec![
        (ArrayInfo::new("tokens", DType::S32, dims), tokens.clone()),
        (ArrayInfo::new("labels", DType::S32, dims), tokens),
    ];
    Arrays::new(Path::new("tokens"), arrays).unwrap()
}

pub fn batches(source: &Arrays, spec: &Spec, n: usize) -> Vec<Batch> {
    let (features, compute) = (spec.task.features(), spec.precision.compute());
    let loader = Loader::new(source, &features, compute, spec.batch as usize, spec.seed).unwrap();
    (0..).flat_map(|epoch| loader.epoch(epoch).map(Result::unwrap).collect::<Vec<_>>()).take(n).collect()
}

/// The program of one replica, `n` times in a program of one device: sums over devices become sums from zero in rank
/// order. Parameters and results are those of the first replica, then those of the second, and so on.
fn unrolled(module: &Module, n: usize) -> Module {
    let entry = module.entry();
    let n_parameters = entry.parameters().len() as i64;
    let mut computations = module.computations.clone();
    let mut all: Vec<Instruction> = Vec::new();
    let mut new_ids = vec![Vec::new(); n];
    let mut push = |instr: Instruction| {
        all.push(Instruction { name: format!("u{}", all.len()), ..instr });
        InstrId(all.len() as u32 - 1)
    };
    for instr in &entry.instructions {
        if let Op::AllReduce(_) = instr.op {
            let operands: Vec<InstrId> =
                new_ids.iter().map(|ids: &Vec<InstrId>| ids[instr.operands[0].idx()]).collect();
            computations.push(sum_from_zero(instr, n, computations.len()));
            let to_apply = CompId(computations.len() as u32 - 1);
            // Calls that are not inlined are not fused either, neither with producers of operands nor with readers of
            // the sum.
            let apart = vec![("inlineable".to_string(), "false".to_string())];
            let sum =
                push(Instruction { op: Op::Call { to_apply }, operands, frontend_attributes: apart, ..instr.clone() });
            new_ids.iter_mut().for_each(|ids| ids.push(sum));
            continue;
        }
        for (replica, ids) in new_ids.iter_mut().enumerate() {
            let mut copy = instr.clone();
            let new = |id: &InstrId| ids[id.idx()];
            copy.operands = instr.operands.iter().map(new).collect();
            copy.control_predecessors = instr.control_predecessors.iter().map(new).collect();
            if let Op::Parameter { number, .. } = &mut copy.op {
                *number += replica as i64 * n_parameters;
            }
            ids.push(push(copy));
        }
    }
    let results: Vec<InstrId> =
        new_ids.iter().flat_map(|ids| entry.instr(entry.root).operands.iter().map(|id| ids[id.idx()])).collect();
    let shape = Shape::Tuple(results.iter().map(|id| all[id.idx()].shape.clone()).collect());
    let root = Instruction {
        name: "all".to_string(),
        op: Op::Tuple,
        shape,
        operands: results,
        ..entry.instr(entry.root).clone()
    };
    all.push(root);
    let root = InstrId(all.len() as u32 - 1);
    let entry = &mut computations[module.entry.idx()];
    (entry.instructions, entry.root) = (all, root);
    let mut written = module.clone();
    (written.computations, written.entry_layout) = (computations, None);
    written.input_output_alias.clear();
    written
}

/// A computation that sums as many arrays of this shape, in their order, from zero.
fn sum_from_zero(like: &Instruction, n: usize, number: usize) -> Computation {
    let dtype = like.shape.dtype().unwrap();
    assert_eq!(dtype, DType::F32);
    let mut all: Vec<Instruction> = Vec::new();
    let mut push = |op, operands: Vec<InstrId>, shape: &Shape| {
        let name = format!("s{number}.{}", all.len());
        all.push(Instruction { name, op, operands, shape: shape.clone(), ..like.clone() });
        InstrId(all.len() as u32 - 1)
    };
    let zero = push(Op::Constant(Literal::scalar_of(dtype, 0.0).unwrap()), Vec::new(), &Shape::array(dtype, []));
    let mut sum = push(Op::Broadcast { dimensions: Vec::new() }, vec![zero], &like.shape);
    for replica in 0..n as i64 {
        let parameter = push(Op::parameter(replica), Vec::new(), &like.shape);
        sum = push(Op::Binary(BinaryOp::Add), vec![sum, parameter], &like.shape);
    }
    Computation { name: format!("sum.{number}"), instructions: all, root: sum, unmodelled: Default::default() }
}

/// The state of every replica after each batch, from a program of one device.
fn on_one_device(spec: &Spec, initial: &BTreeMap<String, Array>, batches: &[Batch]) -> Vec<Vec<u8>> {
    let n = spec.objective.mesh.data.get() as usize;
    let program = program::training(&*spec.task, spec.numbers(), spec.batch.into(), &spec.objective).unwrap().program;
    let module = unrolled(&program.module, n);
    verify(&module).unwrap();
    let executable = client().compile(&encode::to_bytes(&module).unwrap(), &CompileOptions::default()).unwrap();
    let upload = |bytes: &[u8], dtype, dims: &[i64]| client().buffer_from_host(bytes, dtype, dims, 0).unwrap();
    let mut state: Vec<Vec<Buffer>> = (0..n as u64)
        .map(|replica| {
            let value = |name: &String, dtype, dims: &[i64]| {
                let mut bytes = initial[name].bytes.clone();
                if name.ends_with("dropout/state") {
                    // A replica's key, the first of two words: that of the first replica, xor a multiple of the golden
                    // ratio.
                    let key = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    let key = key ^ replica.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    bytes[..8].copy_from_slice(&key.to_le_bytes());
                }
                upload(&bytes, dtype, dims)
            };
            program.variables.iter().map(|it| value(&it.name, it.dtype, &it.dims)).collect()
        })
        .collect();
    for (step, batch) in (0i32..).zip(batches) {
        let mut args = Vec::new();
        for (replica, state) in state.into_iter().enumerate() {
            args.extend(state.into_iter().map(Arg::Donate));
            for input in &program.inputs {
                let bytes = match input.name.as_str() {
                    "step" => step.to_le_bytes().to_vec(),
                    name => {
                        let array = batch.arrays.iter().find(|array| array.name == name).unwrap();
                        let size = array.bytes.len() / n;
                        array.bytes[replica * size..][..size].to_vec()
                    }
                };
                args.push(Arg::Donate(upload(&bytes, input.dtype, &input.dims)));
            }
        }
        let mut results = executable.execute(args).unwrap().into_iter();
        let mut next = |n: usize| results.by_ref().take(n).collect::<Vec<_>>();
        state = (0..n)
            .map(|_| {
                let state = next(program.variables.len());
                next(program.outputs.len() - program.variables.len());
                state
            })
            .collect();
    }
    state[0].iter().map(|buffer| buffer.to_host().unwrap()).collect()
}

/// Trains both ways and compares every bit of the state, including slots, running statistics and random states.
fn are_the_same(spec: Spec, source: &Arrays, n_steps: usize) {
    let batches = batches(source, &spec, n_steps);
    let mut session = Session::new(client(), spec.clone()).unwrap();
    let expected = on_one_device(&spec, &session.state().unwrap(), &batches);
    batches.iter().for_each(|batch| drop(session.train(batch).unwrap()));
    let program = program::training(&*spec.task, spec.numbers(), spec.batch.into(), &spec.objective).unwrap().program;
    let state = session.state().unwrap();
    let differ = program.variables.iter().zip(&expected).filter(|(it, bytes)| state[&it.name].bytes != **bytes);
    let differ: Vec<_> = differ.map(|(it, _)| &it.name).collect();
    assert!(differ.is_empty(), "{}: these differ: {differ:?}", spec.precision);
}

pub fn precisions() -> impl Iterator<Item = Precision> {
    Precision::ALL.into_iter().filter(|&precision| precision != Precision::F16 || run::has_f16())
}

#[test]
fn replicas_compute_what_one_device_does_that_sums_in_rank_order() {
    let source = noise(&[8, 8, 1], 10, 48);
    for precision in precisions() {
        are_the_same(spec(CNN, precision, 8, 4), &source, 10);
    }
    // All replicas round updates stochastically with the same noise.
    are_the_same(Spec { variables: Storage::Bf16Stochastic, ..spec(CNN, Precision::Bf16, 8, 4) }, &source, 10);
}

/// The state after resuming from a checkpoint with `n` replicas; and the reported changes.
fn goes_on(checkpoint: &Checkpoint, spec: Spec, batches: &[Batch]) -> (BTreeMap<String, Array>, Vec<String>) {
    let mut session = Session::new(client(), spec).unwrap();
    let changes = session.restore(Path::new("run"), checkpoint, Resumption::default()).unwrap();
    batches.iter().for_each(|batch| drop(session.train(batch).unwrap()));
    (session.state().unwrap(), changes.iter().map(ToString::to_string).collect())
}

#[test]
fn a_run_goes_on_with_as_many_replicas_to_the_bit_and_with_others_on_the_same_batches() {
    let source = noise(&[8, 8, 1], 10, 48);
    let replicated = |n| spec(CNN, Precision::Bf16, 16, n);
    let batches = batches(&source, &replicated(4), 6);
    let mut whole = Session::new(client(), replicated(4)).unwrap();
    batches[..3].iter().for_each(|batch| drop(whole.train(batch).unwrap()));
    let checkpoint = whole.checkpoint(3).unwrap();
    batches[3..].iter().for_each(|batch| drop(whole.train(batch).unwrap()));
    let (state, changes) = goes_on(&checkpoint, replicated(4), &batches[3..]);
    assert!(state == whole.state().unwrap() && changes.is_empty(), "{changes:?}");

    for (n, change) in [(2, "mesh.data was 4, is 2 now"), (1, "mesh was {data: 4}, is not set now")] {
        let (state, changes) = goes_on(&checkpoint, replicated(n), &batches[3..]);
        assert_eq!(changes, [change]);
        // Larger parts give other statistics and other masks: the run differs from here on, with the same variables.
        assert!(state.keys().eq(whole.state().unwrap().keys()) && state != whole.state().unwrap());
    }
}

/// One overflowing part is enough: the sum over replicas is not finite, so all replicas skip the step.
#[test]
fn a_gradient_that_overflows_on_one_replica_skips_the_step_of_all() {
    if !run::has_f16() {
        return;
    }
    let mut spec = spec(CNN, Precision::F16, 16, 4);
    // The logits of one part alone are large: the cotangents of the others are within f16 under this scale.
    spec.objective.loss_scale = LossScale::Dynamic { initial: 2f64.powi(15), period: 2000, factor: 2.0, minimum: 1.0 };
    let source = noise(&[8, 8, 1], 10, 16);
    let batches = batches(&source, &spec, 1);
    let mut batch = batches[0].clone();
    let images = batch.arrays.iter_mut().find(|array| array.name == "images").unwrap();
    // 65504 in the third replica's first pixel row, so that a convolution's sum is infinite.
    let (size, largest) = (images.bytes.len() / 4, 0x7BFFu16.to_le_bytes());
    images.bytes[2 * size..][..16].as_chunks_mut::<2>().0.fill(largest);
    let mut session = Session::new(client(), spec).unwrap();
    let before = session.state().unwrap();
    session.train(&batch).unwrap();
    assert_eq!(session.n_skipped().unwrap(), Some(1));
    let after = session.state().unwrap();
    let changed: Vec<_> = before.iter().filter(|(name, array)| after[*name] != **array).map(|(name, _)| name).collect();
    assert!(!changed.iter().any(|name| name.ends_with("kernel") || name.contains("adam")), "{changed:?}");
    session.train(&batches[0]).unwrap();
    assert_eq!(session.n_skipped().unwrap(), Some(1));
    let slot = "cnn/logits/kernel/adam_m";
    assert!(session.state().unwrap()[slot] != before[slot], "another batch is no overflow");
}

#[test]
fn a_loss_that_is_not_finite_is_reported_with_its_replica() {
    const N: usize = 16;
    let pixel = |i: usize| if i / 64 == 5 { 3e38f32 } else { ((i * 37) % 64) as f32 / 32.0 - 1.0 };
    let pixels = (0..N * 64).flat_map(|i| pixel(i).to_le_bytes()).collect();
    let labels = (0..N as i32).flat_map(|i| (i % 10).to_le_bytes()).collect();
    let images = ArrayInfo::new("images", DType::F32, [8, 8, 1]);
    let source = vec![(images, pixels), (ArrayInfo::new("labels", DType::S32, []), labels)];
    let source = Arrays::new(Path::new("one too large"), source).unwrap();
    let spec = spec("{kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [22]}", Precision::F32, N as u32, 4);
    let batch = &batches(&source, &spec, 1)[0];
    let images = batch.arrays.iter().find(|array| array.name == "images").unwrap();
    let replica = images.bytes.as_chunks::<256>().0.iter().position(|image| image.starts_with(&3e38f32.to_le_bytes()));
    let replica = replica.unwrap() / (N / 4);
    let mut session = Session::new(client(), spec).unwrap();
    let data = Data { training: &source, test: &source };
    let error = train(&mut session, data, &RunPlan::new(1, None), &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("step 1 (epoch 1): the loss ("), "{message}");
    // In that replica's forward pass; the first replica would only show the summed gradient.
    let began = format!(", on replica {replica} of 0 to 3, which began in mlp/");
    assert!(message.contains(&began) && message.contains(", forward: "), "{message}");
}

#[test]
fn a_mesh_that_cannot_be_is_refused() {
    let message = |batch, n| {
        let spec = spec(CNN, Precision::F32, batch, n);
        Session::new(client(), spec).map(drop).map_err(|error: TrainError| error.to_string()).unwrap_err()
    };
    assert_eq!(
        message(16, 3),
        "the mesh has 3 replicas, which do not divide the batch of 16\n\
         help: the batch is that of all replicas: make it a multiple of 3, such as 15"
    );
    assert_eq!(
        message(16, 16),
        "the mesh has 16 replicas, and there are 8 devices\n\
         help: ask for as many devices, such as --device cpu:16, or for fewer replicas"
    );
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// The claims about replicas in README and docs, on networks too large for a test.
    ///
    /// 50 steps of the digits' network, a ResNet and a transformer, on 8 devices and on one.
    #[cfg_attr(feature = "long-tests", test)]
    fn replicas_of_larger_networks_compute_what_one_device_does() {
        let digits = "{kind: cnn, input: [8, 8, 1], n_classes: 10, filters: [32, 64, 128], dropout: 0.3}";
        let resnet = "{kind: resnet, depth: 18, width: 8, input: [16, 16, 3], n_classes: 10}";
        for precision in [Precision::F32, Precision::Bf16] {
            are_the_same(spec(digits, precision, 32, 8), &noise(&[8, 8, 1], 10, 96), 50);
            are_the_same(spec(resnet, precision, 32, 8), &noise(&[16, 16, 3], 10, 96), 50);
            let sizes = "vocabulary: 11, length: 8, max_length: 8, features: 16, heads: 4, hidden: 32, layers: 2";
            let bert = format!("{{kind: transformer, {sizes}}}");
            are_the_same(spec(&bert, precision, 16, 8), &tokens(8, 11, 48), 50);
        }
    }
}
