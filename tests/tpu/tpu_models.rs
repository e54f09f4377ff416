//! The zoo's training programs, compiled for TPU v2 (`ci/long`: and v3) by the real compiler: they fit, bf16 needs less than
//! f32, and a batch that cannot fit gives an error.

use std::path::Path;

use bf16scope::document;
use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::models::Model;
use bf16scope::tpu::{CompileReport, Target, TpuError, compile};
use bf16scope::train::{Objective, program};

/// The training step of `model`, verified and encoded.
fn training_step(model: &Model, precision: Precision, batch: i64) -> Vec<u8> {
    let program = program::training(&*model.task(0.0), precision, batch, &Objective::default()).unwrap().program;
    verify(&program.module).unwrap();
    encode::to_bytes(&program.module).unwrap()
}

fn report(model: &Model, target: &str, precision: Precision, batch: i64) -> CompileReport {
    let target: Target = target.parse().unwrap();
    compile(&target, &training_step(model, precision, batch), batch as usize).unwrap()
}

/// The network of `examples/digits.yaml`.
fn digits() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.yaml");
    Experiment::read(&path).unwrap().model
}

/// A ResNet-18 with an eighth of the filters, on images of 64 pixels: every kind of layer in the large ones.
fn small_resnet() -> Model {
    let text = "kind: resnet\ndepth: 18\nwidth: 8\ninput: [64, 64, 3]\nn_classes: 10\n";
    document::from_str("small_resnet.yaml", text).unwrap()
}

fn bf16_needs_less(model: &Model, batch: i64, target: &str) {
    let [f32, bf16] = [Precision::F32, Precision::Bf16].map(|p| report(model, target, p, batch));
    let case = format!("{} on {target}: f32 {f32:?}, bf16 {bf16:?}", model.kind());
    assert!(bf16.hbm.total < f32.hbm.total && bf16.hbm.temporaries < f32.hbm.temporaries, "{case}");
    assert!(bf16.bytes_accessed < f32.bytes_accessed, "{case}");
    assert!(f32.hbm.total < f32.hbm.limit && bf16.cycles > 0, "{case}");
    // At 700 MHz and more, a cycle takes less than 1.5 ns; the estimate leaves out what overlaps.
    assert!(bf16.optimal_seconds > 0.0 && bf16.optimal_seconds < bf16.cycles as f64 * 1.5e-9, "{case}");
    // Variables and slots are f32 in both, and updated in place.
    assert_eq!(bf16.hbm.aliased, f32.hbm.aliased, "{case}");
}

#[test]
fn bf16_needs_less_memory_and_moves_fewer_bytes_than_f32() {
    // A single test, because one compile uses every core.
    bf16_needs_less(&digits(), 1024, "tpu-v2");
    let batch = 1 << 27;
    let target: Target = "tpu-v2".parse().unwrap();
    let error = compile(&target, &training_step(&digits(), Precision::Bf16, batch), batch as usize).unwrap_err();
    let text = error.to_string();
    let TpuError::OutOfMemory { needed, available, .. } = error else { panic!("{text}") };
    assert!(needed.unwrap() > available.unwrap(), "{text}");
    assert!(available.unwrap() <= 8_034_172_928, "{text}");
    assert!(
        text.starts_with("tpu-v2: out of device memory: needs ") && text.contains("help: use a smaller batch"),
        "{text}"
    );
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// The digits for v3, and four compiles of a ResNet.
    #[cfg_attr(feature = "long-tests", test)]
    fn bf16_needs_less_memory_and_moves_fewer_bytes_than_f32_in_a_resnet() {
        bf16_needs_less(&digits(), 1024, "tpu-v3");
        for target in ["tpu-v2", "tpu-v3"] {
            bf16_needs_less(&small_resnet(), 64, target);
        }
    }
}
