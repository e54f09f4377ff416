//! Gradients that replicas sum in bf16: every addition rounds, in the configured order.

use super::replicas::{CNN, batches, client, noise, spec};

use bf16scope::graph::{Graph, Precision, Replicas, SumOrder, Tensor};
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Op};
use bf16scope::pjrt::{Arg, Client, CompileOptions, Platform, Setup};
use bf16scope::tpu::read_narrow_sums;
use bf16scope::train::{Session, Spec, SumOf};
use std::num::NonZeroU32;

const N: u32 = 8;

/// The sum on each replica, of one number on each.
fn sums(values: [f32; N as usize], sum: impl Fn(&Tensor) -> Tensor) -> Vec<f32> {
    let replicas = Replicas { n: NonZeroU32::new(N).unwrap(), ..Replicas::default() };
    let graph = Graph::new("sum").for_replicas(replicas);
    let x = graph.input("x", DType::F32, [1]);
    let program = graph.finish(&[("sum", &sum(&x))]).unwrap();
    verify(&program.module).unwrap();
    let options = CompileOptions { n_replicas: N as usize, ..CompileOptions::default() };
    let executable = client().compile(&encode::to_bytes(&program.module).unwrap(), &options).unwrap();
    let upload = |(device, value): (usize, f32)| {
        vec![Arg::Donate(client().buffer_from_host(&value.to_le_bytes(), DType::F32, &[1], device).unwrap())]
    };
    let results = executable.execute_sharded(values.into_iter().enumerate().map(upload).collect()).unwrap();
    let value = |results: Vec<bf16scope::pjrt::Buffer>| results[0].to_host().unwrap();
    results.into_iter().map(|results| f32::from_le_bytes(value(results).try_into().unwrap())).collect()
}

/// The spacing of bf16 is 2 from 256 on, and half of it rounds to even: each 1 added to 256 is lost.
#[test]
fn each_addition_rounds_in_its_order() {
    let values = [256.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    let all = |sum: f32| vec![sum; N as usize];
    assert_eq!(sums(values, Tensor::sum_over_replicas), all(263.0));
    assert_eq!(sums(values, |x| x.rounded_sum_over_replicas(SumOrder::Ring)), all(256.0));
    // 256 + 1, 1 + 1, 1 + 1, 1 + 1; 256 + 2, 2 + 2; 258 + 4.
    assert_eq!(sums(values, |x| x.rounded_sum_over_replicas(SumOrder::Tree)), all(262.0));
    // The reason for explicit additions: this plugin sums bf16 in f32, and rounds 263 once.
    let in_bf16 = |x: &Tensor| x.cast(DType::BF16).sum_over_replicas().cast(DType::F32);
    assert_eq!(sums(values, in_bf16), all(264.0));
}

fn summed(mut spec: Spec, sum: SumOf) -> Spec {
    spec.objective.mesh.sum = sum;
    spec
}

/// On a CPU `sum: bf16` is the ring, to the bit, and neither f32 nor the tree.
#[test]
fn a_session_sums_in_what_the_mesh_says() {
    let source = noise(&[8, 8, 1], 10, 16);
    let state = |sum| {
        let spec = summed(spec(CNN, Precision::Bf16, 16, 8), sum);
        let batches = batches(&source, &spec, 1);
        let mut session = Session::new(client(), spec).unwrap();
        session.train(&batches[0]).unwrap();
        session.state().unwrap()
    };
    let [f32, bf16, ring, tree] = [SumOf::F32, SumOf::Bf16, SumOf::Bf16Ring, SumOf::Bf16Tree].map(state);
    assert!(bf16 == ring && bf16 != f32 && bf16 != tree && tree != f32);
}

/// The summed quantities that `train` reports before the first step.
#[test]
fn what_the_devices_of_a_session_add_is_read_from_their_program() {
    let session = Session::new(client(), spec(CNN, Precision::Bf16, 16, 8)).unwrap();
    let optimized = session.optimized_program().unwrap();
    assert_eq!(read_narrow_sums(&optimized), Ok(Vec::new()));
    let module = decode::from_bytes(&optimized).unwrap();
    let mut instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    assert!(instructions.any(|instr| matches!(instr.op, Op::AllReduce(_))), "{}", module.name);
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// The table of docs/GRADIENT_SUMS.md.
    ///
    /// Gradients of one step on 8 to 64 devices, by three ways to sum.
    #[cfg_attr(feature = "long-tests", test)]
    fn what_sums_in_bf16_cost() {
        let source = noise(&[8, 8, 1], 10, 64);
        let client = Client::for_platform(&Platform::cpu_devices(64).unwrap(), &Setup::from_env()).unwrap();
        let network = "{kind: cnn, input: [8, 8, 1], n_classes: 10, filters: [32, 64]}";
        for n in [8, 16, 32, 64] {
            let gradients = |sum| {
                let mut spec = summed(spec(network, Precision::Bf16, 64, n), sum);
                // In the first step the slot is the gradient.
                spec.objective.update.optimizer = bf16scope::optim::Optimizer::default();
                let batches = batches(&source, &spec, 1);
                let mut session = Session::new(&client, spec).unwrap();
                session.train(&batches[0]).unwrap();
                session.state().unwrap()
            };
            let [exact, ring, tree] = [SumOf::F32, SumOf::Bf16Ring, SumOf::Bf16Tree].map(gradients);
            let error = |other: &std::collections::BTreeMap<String, bf16scope::train::checkpoint::Array>| {
                let (mut above, mut below) = (0.0, 0.0);
                for (name, array) in exact.iter().filter(|(name, _)| name.ends_with("/kernel/momentum")) {
                    for (a, b) in array.bytes.as_chunks().0.iter().zip(other[name].bytes.as_chunks().0) {
                        let (a, b) = (f64::from(f32::from_le_bytes(*a)), f64::from(f32::from_le_bytes(*b)));
                        above += (a - b) * (a - b);
                        below += a * a;
                    }
                }
                (above / below).sqrt()
            };
            let (ring, tree) = (error(&ring), error(&tree));
            println!("{n} replicas: ring {ring:.2e}, tree {tree:.2e}");
            // Each rounding is at most half an ulp, 2^-9 of the sum so far; more of them can only hurt.
            assert!(tree > 0.0 && tree < ring, "{n}: {tree} {ring}");
        }
    }
}
