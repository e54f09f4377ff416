//! One training step of the MLP (batch 32) through the CPU plugin: upload of the batch, execution, loss on the host.
//!
//! `cargo bench --bench step`. Under `f32` and `bf16` the state is donated and comes back, as in training.

use bf16scope::data::{ArrayInfo, Arrays, Batch, Loader};
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::models::{Model, mlp};
use bf16scope::pjrt::Client;
use bf16scope::train::{Session, Spec};
use criterion::{Criterion, Throughput};
use std::path::Path;

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

fn step(criterion: &mut Criterion) {
    let client = Client::cpu().expect("the CPU plugin is installed on first use");
    let mut group = criterion.benchmark_group("mlp_step");
    group.throughput(Throughput::Elements(u64::from(BATCH)));
    for precision in [Precision::F32, Precision::Bf16] {
        let model = Model::Mlp(mlp::Config::new([64], 10));
        let spec = Spec { precision, batch: BATCH, ..Spec::new(model.task(0.0)) };
        let mut session = Session::new(&client, spec.clone()).expect("the MLP compiles");
        let batch = batch(&spec);
        group.bench_function(precision.name(), |bencher| {
            bencher.iter(|| session.train(&batch).expect("a step runs"));
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    step(&mut criterion);
    criterion.final_summary();
}
