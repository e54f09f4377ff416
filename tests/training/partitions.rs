//! The model axis on CPU devices: XLA's partitioner splits a training step as `passes::partition` says, and what runs is the
//! step. All numbers here are small multiples of powers of two, so every sum is exact in f32 whatever its order: the split
//! program gives the bits of the whole one.

use super::replicas::{client, mesh};

use bf16scope::graph::Precision;
use bf16scope::hlo::devices::Placement;
use bf16scope::hlo::{DType, Module, proto, verify::verify};
use bf16scope::models::{Model, yaml};
use bf16scope::optim::{LearningRate, Optimizer, Update};
use bf16scope::passes::partition::{Rule, partition};
use bf16scope::pjrt::{Arg, CompileOptions};
use bf16scope::train::{Objective, Spec, program};

const NETWORK: &str = "{kind: layers, inputs: {x: [4]}, layers: [{dense: {units: 8, activation: relu}, name: a}, \
                       {dense: {units: 1}, name: b}], loss: mean_squared_error}";
const BATCH: i64 = 8;

/// The parameters of the step: name, dims, and what they hold.
fn arguments() -> (Module, Vec<(String, Vec<i64>, Vec<u8>)>) {
    let model: Model = yaml::from_str("model", NETWORK).unwrap();
    let learning_rate = LearningRate::Constant { value: 0.125 };
    let update = Update { optimizer: Optimizer::Sgd {}, learning_rate, ..Update::default() };
    let objective = Objective { update, mesh: mesh(2), ..Objective::default() };
    let spec = Spec { precision: Precision::F32, batch: BATCH as u32, objective, ..Spec::new(model.task(0.0)) };
    let step = program::training(&*spec.task, spec.numbers(), BATCH, &spec.objective).unwrap().program;
    let variables = step.variables.iter().map(|it| (it.name.clone(), it.dtype, it.dims.clone()));
    let inputs = step.inputs.iter().map(|it| (it.name.clone(), it.dtype, it.dims.clone()));
    let filled = |(at, (name, dtype, dims)): (usize, (String, DType, Vec<i64>))| {
        let n = dims.iter().product::<i64>() as usize;
        // From -2 to 2; the count of steps is 0.
        let value = |i: usize| ((i * 7 + at * 3) % 5) as f32 - 2.0;
        let bytes = match dtype {
            DType::F32 => (0..n).flat_map(|i| value(i).to_le_bytes()).collect(),
            _ => vec![0; n * dtype.n_bytes()],
        };
        (name, dims, bytes)
    };
    let arguments = variables.chain(inputs).enumerate().map(filled).collect();
    (step.module, arguments)
}

/// The half of an array along an axis.
fn half(bytes: &[u8], dims: &[i64], axis: usize, number: usize) -> Vec<u8> {
    let row = 4 * dims[axis + 1..].iter().product::<i64>() as usize;
    let block = row * dims[axis] as usize;
    bytes.chunks(block).flat_map(|block| block[number * block.len() / 2..][..block.len() / 2].to_vec()).collect()
}

/// The results of each device, of two replicas of one or two partitions each; `split` says which parameters are split.
fn run(module: &Module, arguments: &[(String, Vec<i64>, Vec<u8>)], split: &[(String, usize)]) -> Vec<Vec<Vec<u8>>> {
    verify(module).unwrap();
    let placement = Placement::of(module).unwrap();
    let n_partitions = placement.devices.partitions;
    let bytes = proto::encode::to_bytes(module).unwrap();
    let executable = client().compile(&bytes, &CompileOptions::over(&placement)).unwrap();
    assert_eq!(executable.n_devices(), 2 * n_partitions);
    let of_device = |device: usize| {
        let put = |(name, dims, bytes): &(String, Vec<i64>, Vec<u8>)| {
            let axis = split.iter().find(|(other, _)| other == name).map(|(_, axis)| *axis);
            let mut dims = dims.clone();
            let bytes = match axis {
                None => bytes.clone(),
                Some(axis) => {
                    let part = half(bytes, &dims, axis, device % n_partitions);
                    dims[axis] /= 2;
                    part
                }
            };
            let dtype = if name == "step" { DType::S32 } else { DType::F32 };
            client().buffer_from_host(&bytes, dtype, &dims, device).unwrap()
        };
        arguments.iter().map(|argument| Arg::Donate(put(argument))).collect()
    };
    let results = executable.execute_sharded((0..2 * n_partitions).map(of_device).collect()).unwrap();
    results.iter().map(|list| list.iter().map(|array| array.to_host().unwrap()).collect()).collect()
}

#[test]
fn a_step_over_two_partitions_of_each_replica_gives_the_bits_of_the_whole_one() {
    let (module, arguments) = arguments();
    let whole = run(&module, &arguments, &[]);
    let rule = |pattern: &str, axis| Rule { pattern: pattern.to_string(), axis };
    // Hidden units over the partitions: the second layer sums over both.
    let rules = [rule("a/kernel", 1), rule("a/bias", 0), rule("b/kernel", 0)];
    let (split, report) = partition(&module, 2, &rules).unwrap();
    let parts = run(&split, &arguments, &report.split);
    assert_eq!(report.split.len(), 3);
    for (number, (name, dims, before)) in arguments.iter().enumerate().filter(|(_, it)| it.0.contains('/')) {
        let axis = report.split.iter().find(|(other, _)| other == name).map(|(_, axis)| *axis);
        for device in 0..4 {
            let expected = &whole[device / 2][number];
            let expected = axis.map_or(expected.clone(), |axis| half(expected, dims, axis, device % 2));
            assert_eq!(parts[device][number], expected, "{name} on device {device}");
        }
        assert!(whole[0][number] != *before, "{name} did not move");
    }
}
