//! ResNet-50's configuration → network → gradients → optimizer → `HloModuleProto` bytes, batch 64, bf16.
//!
//! `cargo bench --bench build`. The aim is 50 ms; JAX's trace and lowering of the same step takes 1,300 to 2,100 ms.

use bf16scope::graph::Precision;
use bf16scope::hlo::proto::encode;
use bf16scope::models::{Model, resnet};
use bf16scope::train::{Objective, program};
use criterion::Criterion;
use std::hint::black_box;

const BATCH: i64 = 64;

fn build(criterion: &mut Criterion) {
    let model = Model::Resnet(resnet::Config::default());
    let objective = Objective::default();
    let program = || program::training(&model, Precision::Bf16, BATCH, &objective).expect("ResNet-50 is built");
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

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    build(&mut criterion);
    criterion.final_summary();
}
