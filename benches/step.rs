//! One training step of the MLP (batch 32) through the CPU plugin: upload of the batch, execution, loss on the host.
//!
//! `cargo bench --bench step`. Under `f32` and `bf16` the state is donated and comes back, as in training.

use bf16scope::data::{Batch, Batches, Dataset};
use bf16scope::graph::Precision;
use bf16scope::models::{Model, mlp};
use bf16scope::pjrt::Client;
use bf16scope::train::{Objective, Session, Spec};
use criterion::{Criterion, Throughput};

const BATCH: u32 = 32;

/// A batch of digits' dims.
fn batch(precision: Precision) -> Batch {
    let n = BATCH as usize;
    let dataset = Dataset {
        features: (0..n * 64).map(|i| (i * 37 % 101) as f32 / 101.0).collect(),
        feature_dims: vec![64],
        labels: (0..n as i32).map(|i| i % 10).collect(),
        n_classes: 10,
    };
    let batches = Batches::new(&dataset, n, 0).expect("the batch is the data set");
    let batches = batches.cast(precision.compute()).expect("f32, bf16 and f16 are what batches are cast to");
    batches.in_order().next().expect("there is one batch")
}

fn step(criterion: &mut Criterion) {
    let client = Client::cpu().expect("the CPU plugin is installed on first use");
    let mut group = criterion.benchmark_group("mlp_step");
    group.throughput(Throughput::Elements(u64::from(BATCH)));
    for precision in [Precision::F32, Precision::Bf16] {
        let model = Model::Mlp(mlp::Config::new([64], 10));
        let spec = Spec { model, precision, batch: BATCH, seed: 0, shift: 0, objective: Objective::default() };
        let mut session = Session::new(&client, spec).expect("the MLP compiles");
        let batch = batch(precision);
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
