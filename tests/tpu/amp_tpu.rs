//! Lowered modules through Google's TPU compiler, which is installed as a user's first run installs it.

use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text;
use bf16scope::passes::amp::{self, Policy};
use bf16scope::tpu::{Target, compile};
use std::path::Path;

/// JAX's transformer and its convolutional training step, lowered, compile for both.
#[test]
fn lowered_modules_compile_for_v2_and_v3() {
    for (name, batch) in [("encoder_forward", 4), ("cnn_momentum_step", 8)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle_jax").join(format!("{name}.hlo.pb"));
        let module = decode::from_bytes(&std::fs::read(path).unwrap()).unwrap();
        let (lowered, _) = amp::run(&module, &Policy::default()).unwrap();
        let program = encode::to_bytes(&lowered).unwrap();
        for target in ["tpu-v2", "tpu-v3"] {
            let target: Target = target.parse().unwrap();
            let report = compile(&target, &program, batch).unwrap_or_else(|error| panic!("{name} {target}: {error}"));
            assert!(report.cycles > 0, "{name} {target}: {report:?}");
        }
    }
}

/// `tests/data/norms/make.py`: libtpu 0.0.52 aborts its process on the gradients if the reshapes after the convolutions
/// are bf16.
#[test]
fn group_norms_between_padded_convolutions_compile() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/norms/group_norms.hlo");
    let module = text::parse(&std::fs::read_to_string(path).unwrap(), "group_norms.hlo").unwrap();
    let (lowered, _) = amp::run(&module, &Policy::default()).unwrap();
    let target: Target = "tpu-v2".parse().unwrap();
    let report = compile(&target, &encode::to_bytes(&lowered).unwrap(), 16).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.cycles > 0, "{report:?}");
}
