//! Lowering of a module of 20,000 instructions.
//!
//! `cargo bench --bench lower`. The aim is 100 ms. The module is a chain of dense layers with a softmax each, so that
//! every rule of the pass has work to do.

use bf16scope::hlo::ops::{BinaryOp, DotDims, PrecisionConfig, UnaryOp};
use bf16scope::hlo::{CompId, DType, Emitter, Module, Op, Shape};
use bf16scope::passes::amp::{self, Policy};
use criterion::Criterion;
use std::hint::black_box;

const N_INSTRUCTIONS: usize = 20_000;

fn module() -> Module {
    let e = Emitter::new(Module::new("main"), CompId(0));
    let shape = Shape::array(DType::F32, [128, 128]);
    let (mut x, w) = (e.parameter(0, &shape), e.parameter(1, &shape));
    let bias = e.parameter(2, &Shape::array(DType::F32, [128]));
    while e.n_instructions() < N_INSTRUCTIONS {
        let dims = DotDims { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotDims::default() };
        let product = e.emit(Op::Dot { dims, precision: PrecisionConfig::default() }, &[x, w], None);
        let biased = e.add(product, e.broadcast(bias, &[1], &[128, 128]));
        let hidden = e.binary(BinaryOp::Maximum, biased, e.zeros_like(biased));
        let dims = DotDims { lhs_contracting: vec![1], rhs_contracting: vec![1], ..DotDims::default() };
        let scores = e.emit(Op::Dot { dims, precision: PrecisionConfig::default() }, &[hidden, w], None);
        let exps = e.unary(UnaryOp::Exp, scores);
        x = e.div(exps, e.broadcast(e.reduce_sum(exps, &[1]), &[0], &[128, 128]));
    }
    e.finish().expect("the chain is well-formed")
}

fn lower(criterion: &mut Criterion) {
    let module = module();
    let mut group = criterion.benchmark_group("lower");
    group.sample_size(20);
    group.bench_function("20000_instructions", |bencher| {
        bencher.iter(|| amp::run(black_box(&module), &Policy::default()).expect("the module is lowered"));
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    lower(&mut criterion);
    criterion.final_summary();
}
