//! Training steps of the MLP (batch 32) through the CPU plugin: upload of the batch, execution, loss on the host.
//!
//! `cargo bench --bench step`. Under `f32` and `bf16` a session makes one step a call; under `bare` the same program runs on
//! the same bytes without a session; then several steps a call, unrolled and in a loop.

use bf16scope::data::{ArrayInfo, Arrays, Batch, Loader};
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::models::{Model, mlp};
use bf16scope::pjrt::{Arg, Buffer, Client};
use bf16scope::train::{Session, Spec, StepsPerCall, compile, program};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Instant;

const BATCH: u32 = 32;

/// A batch of digits' dims.
fn batch(spec: &Spec) -> Batch {
    let n = BATCH as usize;
    let images = (0..n * 64).flat_map(|i| ((i * 37 % 101) as f32 / 101.0).to_le_bytes()).collect();
    let labels = (0..n as i32).flat_map(|i| (i % 10).to_le_bytes()).collect();
    let arrays =
        vec![(ArrayInfo::new("images", DType::F32, [64]), images), (ArrayInfo::new("labels", DType::S32, []), labels)];
    let source = Arrays::new(Path::new("examples"), arrays).expect("both hold as many examples");
    let loader = Loader::new(&source, &spec.task.features(), spec.precision.compute(), n, 0);
    loader.expect("the arrays are what the task reads").in_order().next().expect("there is one").expect("it is cast")
}

/// `n` steps' batches as one.
fn batches(spec: &Spec, n: u32) -> Batch {
    let mut batch = batch(spec);
    for array in &mut batch.arrays {
        array.bytes = array.bytes.repeat(n as usize);
        array.dims[0] *= i64::from(n);
    }
    batch.n_valid *= n as usize;
    batch
}

fn calls(n: u32) -> [(&'static str, StepsPerCall); 2] {
    let n = NonZeroU32::new(n).expect("it is not 0");
    [("unrolled", StepsPerCall::Unrolled(n)), ("while", StepsPerCall::While(n))]
}

fn step(criterion: &mut Criterion) {
    let client = Client::cpu().expect("the CPU plugin is installed on first use");
    let mut group = criterion.benchmark_group("mlp_step");
    for precision in [Precision::F32, Precision::Bf16] {
        let model = Model::Mlp(mlp::Config::new([64], 10));
        let spec = Spec { precision, batch: BATCH, ..Spec::new(model.task(0.0)) };
        let session = |calls| {
            let spec = Spec { steps_per_call: calls, ..spec.clone() };
            Session::new(&client, spec).expect("the MLP compiles")
        };
        group.throughput(Throughput::Elements(u64::from(BATCH)));
        bare(&mut group, &client, &spec);
        let (mut of_one, batch) = (session(StepsPerCall::default()), batch(&spec));
        group.bench_function(precision.name(), |bencher| {
            bencher.iter(|| of_one.train(&batch).expect("a step runs"));
        });
        for n in [8, 32] {
            group.throughput(Throughput::Elements(u64::from(n * BATCH)));
            let batches = batches(&spec, n);
            for (name, calls) in calls(n) {
                let began = Instant::now();
                let mut session = session(calls);
                let compiled = began.elapsed().as_secs_f64();
                println!("{precision}, {n} steps a call, {name}: built and compiled in {compiled:.2} s");
                group.bench_function(format!("{precision}/{n}_{name}"), |bencher| {
                    bencher.iter(|| session.train_call(&batches).expect("a call runs"));
                });
            }
        }
    }
    group.finish();
}

/// The minimum of a session: upload the batch, execute, download the two scalars.
fn bare(group: &mut BenchmarkGroup<'_, WallTime>, client: &Client, spec: &Spec) {
    let training = program::training(&*spec.task, spec.precision, i64::from(spec.batch), &spec.objective);
    let program = training.expect("the MLP is built").program;
    let executable = compile(client, &program.module).expect("the MLP compiles");
    let upload =
        |bytes: &[u8], dtype, dims: &[i64]| client.buffer_from_host(bytes, dtype, dims, 0).expect("it goes up");
    // The start of a session: with zeros, or with other rounding, subnormals would come at another time, and they are slow.
    let start = Session::new(client, spec.clone()).and_then(|session| session.state()).expect("the MLP compiles");
    let of_start = |name: &String| upload(&start[name].bytes, start[name].shape.dtype, &start[name].shape.dims);
    let mut state: Vec<Buffer> = program.variables.iter().map(|it| of_start(&it.name)).collect();
    let batch = batch(spec);
    group.bench_function(format!("{}/bare", spec.precision), |bencher| {
        bencher.iter(|| {
            let of_batch = batch.arrays.iter().map(|array| upload(&array.bytes, array.dtype, &array.dims));
            let inputs: Vec<Buffer> = of_batch.chain([upload(&[0; 4], DType::S32, &[])]).collect();
            let args = std::mem::take(&mut state).into_iter().chain(inputs).map(Arg::Donate).collect();
            let mut results = executable.execute(args).expect("a step runs");
            let reported = results.split_off(program.variables.len());
            state = results;
            let mut word = [0; 4];
            reported.iter().for_each(|result| result.copy_to_host(&mut word).expect("it comes down"));
            word
        });
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    step(&mut criterion);
    criterion.final_summary();
}
