//! The texts of errors.

use super::*;
use bf16scope_hlo::proto::WireError;
use bf16scope_pjrt::{PluginSpec, Setup, locate};

#[test]
fn the_file_and_the_remedy_are_named() {
    let name = || "step.mlir".to_string();
    let source = locate(&PluginSpec::at("/nowhere/plugin.so"), &Setup::default()).unwrap_err();
    let missing = source.to_string();
    assert_eq!(
        ForeignError::refused(source, "step.mlir", b"").to_string(),
        format!("step.mlir: this StableHLO cannot be converted: {missing}")
    );
    let wire = ProtoError::from(WireError::new("cut off"));
    assert_eq!(
        ForeignError::Proto { name: name(), source: wire }.to_string(),
        "step.mlir: what XLA made of this StableHLO is not HLO: not an HloModuleProto: cut off"
    );
    assert_eq!(
        ForeignError::Damaged { name: "step.jax".to_string() }.to_string(),
        "step.jax begins like a file of jax.export, and its program is not whole\nhelp: the file may be damaged; write it \
         again with `jax.export.export(jax.jit(f))(*args).serialize()`"
    );
    assert_eq!(
        ForeignError::of_no_symbols("step.mlir").to_string(),
        "step.mlir has no symbolic dimension, and --dim gives sizes to those\nhelp: leave --dim out"
    );
    let dynamic = ForeignError::Dynamic {
        place: "step.mlir:3".to_string(),
        name: "%0".to_string(),
        shape: "f32[?,4]".to_string(),
    };
    assert_eq!(
        dynamic.to_string(),
        "step.mlir:3: %0 is f32[?,4], whose size is not known, and HLO's shapes are static\nhelp: export it with the sizes \
         of its arguments: `jax.export.export(jax.jit(f))(jax.ShapeDtypeStruct((32, 4), \"float32\")).serialize()`, not \
         with `export.symbolic_shape`"
    );
}

#[test]
fn a_program_that_the_converter_refuses_is_told_apart() {
    for (program, message, help) in [
        (
            "module {\n  \"tosa.abs\"(%a)\n}",
            "-:2:3: error: unregistered dialect",
            "this is MLIR of the dialect `tosa`, and StableHLO is read (with chlo, sdy and mhlo): from TensorFlow, write a",
        ),
        (
            "module attributes {jax.uses_shape_polymorphism = true} {}",
            "-:1:1: error: dynamic",
            "its sizes are symbolic, and HLO's shapes are static: export it with the sizes of its arguments: `jax",
        ),
        (
            "module {\n  func.func",
            "-:2:12: error: expected a name",
            "the text ends there: the file may have been cut; write it again",
        ),
        (
            "ML\u{ef}R",
            "-:0:0: error: forward incompatibility",
            "the file is damaged, or its StableHLO is newer than XLA's plugins here know: write it again; or install the \
             TPU compiler, which knows more (`bf16scope plugins install tpu`); or export HLO, \
             `jax.jit(f).lower(*args).compiler_ir(\"hlo\").as_serialized_hlo_module_proto()`",
        ),
        (
            "module {}",
            "-:1:1: error: no main",
            "what XLA's converter does not take has no HLO; shapes must be static, and the function called `main`",
        ),
    ] {
        let error = ForeignError::of_message(message, "m.mlir", program.as_bytes()).to_string();
        let place = message.replacen('-', "m.mlir", 1);
        assert!(error.starts_with(&format!("{place}\nhelp: {help}")), "{error}");
    }
}
