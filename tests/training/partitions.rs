//! The model axis on CPU devices: XLA's partitioner splits a training step as `passes::partition` annotates it. All
//! numbers here are small multiples of powers of two, so every sum is exact in f32 in any order: the split program
//! gives the bits of the whole one.

use super::replicas::{client, mesh};

use bf16scope::data::{Batch, NamedArray};
use bf16scope::document;
use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::hlo::devices::Placement;
use bf16scope::hlo::{DType, Module, proto, verify::verify};
use bf16scope::models::Model;
use bf16scope::optim::{LearningRate, Optimizer, Update};
use bf16scope::passes::partition::{self, Rule};
use bf16scope::pjrt::{Arg, CompileOptions};
use bf16scope::train::{Objective, Resumption, Session, Spec, program};
use bf16scope::tuning::Tuning;
use std::num::NonZeroU32;
use std::path::Path;

const NETWORK: &str = "{kind: layers, inputs: {x: [4]}, layers: [{dense: {units: 8, activation: relu}, name: a}, \
                       {dense: {units: 1}, name: b}], loss: mean_squared_error}";
const BATCH: i64 = 8;

fn spec() -> Spec {
    let model: Model = document::from_str("model", NETWORK).unwrap();
    let learning_rate = LearningRate::Constant { value: 0.125 };
    let update = Update { optimizer: Optimizer::SGD, learning_rate, ..Update::default() };
    let objective = Objective { update, mesh: mesh(2), ..Objective::default() };
    Spec { precision: Precision::F32, batch: BATCH as u32, objective, ..Spec::new(model.task(0.0)) }
}

/// Hidden units over the partitions: the second layer sums over both.
fn rules() -> Vec<Rule> {
    let rule = |pattern: &str, axis| Rule { pattern: pattern.to_string(), axis };
    vec![rule("a/kernel", 1), rule("a/bias", 0), rule("b/kernel", 0)]
}

/// From -2 to 2.
fn value(at: usize, i: usize) -> f32 {
    ((i * 7 + at * 3) % 5) as f32 - 2.0
}

fn floats(at: usize, n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| value(at, i).to_le_bytes()).collect()
}

/// A parameter of the step: its name, its dims, and its bytes.
type Argument = (String, Vec<i64>, Vec<u8>);

/// The step's module and parameters.
fn arguments() -> (Module, Vec<Argument>) {
    let spec = spec();
    let step = program::training(&*spec.task, spec.numbers(), BATCH, &spec.objective).unwrap().program;
    let variables = step.variables.iter().map(|it| (it.name.clone(), it.dtype, it.dims.clone()));
    let inputs = step.inputs.iter().map(|it| (it.name.clone(), it.dtype, it.dims.clone()));
    let filled = |(at, (name, dtype, dims)): (usize, (String, DType, Vec<i64>))| {
        let n = dims.iter().product::<i64>() as usize;
        let bytes = match dtype {
            DType::F32 => floats(at, n),
            // The count of steps.
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

/// The results of each device, for two replicas of one or two partitions each; `split` lists the split parameters.
fn run(module: &Module, arguments: &[Argument], split: &[(String, usize)]) -> Vec<Vec<Vec<u8>>> {
    verify(module).unwrap();
    let placement = Placement::from_module(module).unwrap();
    let n_partitions = placement.devices.partitions;
    let bytes = proto::encode::to_bytes(module).unwrap();
    let executable = client().compile(&bytes, &CompileOptions::over(&placement)).unwrap();
    assert_eq!(executable.n_devices(), 2 * n_partitions);
    let of_device = |device: usize| {
        let put = |(name, dims, bytes): &Argument| {
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
    let (split, report) = partition::run(&module, &partition::Config::new(2, rules())).unwrap();
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

/// The same through a session, as `mesh: {data: 2, model: 2, split: {…}}`: it gives each device its part, assembles
/// checkpoints, and resumes with as many devices or with fewer.
#[test]
fn a_session_over_partitions_trains_to_the_bits_of_one_without_and_its_checkpoints_are_whole() {
    let batch = {
        let array = |name: &str, dims: Vec<i64>, at: usize| {
            let bytes = floats(at, dims.iter().product::<i64>() as usize);
            NamedArray { name: name.to_string(), dtype: DType::F32, dims, bytes }
        };
        let arrays = vec![array("x", vec![BATCH, 4], 1), array("labels", vec![BATCH, 1], 2)];
        Batch { arrays, n_valid: BATCH as usize }
    };
    let mesh_spec = |data: u32, model: u32| {
        let mut spec = spec();
        spec.objective.mesh = mesh(data);
        spec.objective.mesh.model = NonZeroU32::new(model).unwrap();
        spec.objective.split = if model > 1 { rules() } else { Vec::new() };
        spec
    };
    let mut checkpoint = Session::new(client(), mesh_spec(2, 1)).unwrap().checkpoint(4).unwrap();
    for (at, array) in checkpoint.variables.values_mut().enumerate() {
        array.bytes = floats(at, array.bytes.len() / 4);
    }
    let step = |spec: Spec| {
        let mut session = Session::new(client(), spec).unwrap();
        session.restore(Path::new("run"), &checkpoint, Resumption::default()).unwrap();
        assert!(session.state().unwrap() == checkpoint.variables);
        let totals = session.train(&batch).unwrap();
        (session.state().unwrap(), totals.to_values())
    };
    let whole = step(mesh_spec(2, 1));
    assert!(whole.0 != checkpoint.variables);
    for (data, model) in [(2, 2), (1, 2), (2, 4), (1, 1)] {
        assert_eq!(step(mesh_spec(data, model)), whole, "{data} replicas of {model}");
    }
}

#[test]
fn what_cannot_be_split_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    let error = |mesh: &str| {
        let model = NETWORK.replace("units: 1}", "units: 3}");
        std::fs::write(&path, format!("model: {model}\nmesh: {mesh}\n")).unwrap();
        let experiment = Experiment::read(&path).unwrap();
        let spec = experiment.spec(Precision::F32, &Tuning::none()).unwrap();
        let error = Session::new(client(), Spec { batch: 8, ..spec }).map(drop).unwrap_err();
        experiment.with_its_line(error).to_string().replace(&path.display().to_string(), "e.yaml")
    };
    let refused = |mesh: &str, expected: &str| {
        let error = error(mesh);
        assert!(error.contains(expected), "{mesh}: {error}");
        assert!(error.starts_with("e.yaml:2:"), "{mesh}: {error}");
    };
    refused("{data: 2, model: 2, split: {'c/*': 1}}", "`c/*` matches no parameter");
    refused(
        "{data: 2, model: 2, split: {b/kernel: 1}}",
        "b/kernel f32[8,3] does not split in 2 equal parts along axis 1",
    );
    refused("{data: 2, model: 2}", "2 partitions, and nothing is split over them");
    refused(
        "{data: 2, split: {a/kernel: 1}}",
        "`split` says what the devices of a replica split, and a replica has one",
    );
    refused("{data: 2, model: 2, state: sharded, split: {a/kernel: 1}}", "both at once are not possible yet");
}
