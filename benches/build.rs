//! ResNet-50's configuration → network → gradients → optimizer → `HloModuleProto` bytes, batch 64, bf16.
//!
//! `cargo bench --bench build`. The aim is 50 ms; JAX's trace and lowering of the same step takes 1,300 to 2,100 ms.
//! Perceptrons of 1,000 and 10,000 hidden layers stand side by side: what is linear takes about ten times as long for the
//! second. The aim for it is 2 s.

use bf16scope::graph::Precision;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify;
use bf16scope::models::{Model, mlp, resnet};
use bf16scope::train::{Objective, program};
use criterion::Criterion;
use std::hint::black_box;

const BATCH: i64 = 64;

fn build(criterion: &mut Criterion) {
    let task = Model::Resnet(resnet::Config::default()).task(0.0);
    let objective = Objective::default();
    let program = || program::training(&*task, Precision::Bf16, BATCH, &objective).expect("ResNet-50 is built").program;
    let built = program();
    let mut group = criterion.benchmark_group("resnet50");
    group.sample_size(30);
    group.bench_function("program", |bencher| bencher.iter(|| black_box(program())));
    group
        .bench_function("proto", |bencher| bencher.iter(|| encode::to_bytes(black_box(&built.module)).expect("bytes")));
    group.bench_function("program_and_proto", |bencher| {
        bencher.iter(|| encode::to_bytes(&program().module).expect("a built module has a proto form"));
    });
    group.finish();
}

/// The work of `bf16scope emit` for a training step: build, verify, encode.
fn deep(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mlp");
    group.sample_size(10);
    for n_layers in [1_000, 10_000] {
        let model = Model::Mlp(mlp::Config { hidden: vec![8; n_layers], ..mlp::Config::new([8, 8, 1], 10) });
        let task = model.task(0.0);
        group.bench_function(format!("{n_layers}_layers"), |bencher| {
            bencher.iter(|| {
                let built = program::training(&*task, Precision::Bf16, 32, &Objective::default());
                let built = built.expect("it is built").program;
                verify(&built.module).expect("it verifies");
                encode::to_bytes(&built.module).expect("a built module has a proto form")
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    build(&mut criterion);
    deep(&mut criterion);
    criterion.final_summary();
}
