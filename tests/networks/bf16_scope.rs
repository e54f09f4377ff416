//! The bf16 scope against TensorFlow's: the four tests of `bfloat16_test.py`, then what we add to them: warnings and
//! errors that name things.

use bf16scope::graph::{Graph, Init, Precision, Scope, Tensor};
use bf16scope::hlo::DType;
use bf16scope::nn::{BatchNorm, Conv2d, Dense, Padding, batch_norm, conv2d, dense, relu};
use expect_test::expect;

/// (a) A scope without a name adds no name level.
#[test]
fn scope_name_is_empty_by_default() {
    let g = Graph::new("test");
    assert_eq!(g.bf16_scope(Scope::path), "");
}

/// (b) A scope's name becomes a level.
#[test]
fn scope_name_is_kept() {
    let g = Graph::new("test");
    assert_eq!(g.bf16_scope_named("bf16", Scope::path), "bf16");
}

/// (c) Names of operations: a named scope adds a level, an unnamed one does not.
#[test]
fn operations_are_named_under_their_scopes() {
    let names = |s: &Scope| {
        let w = s.variable("w", DType::BF16, [2], Init::Ones).value;
        let x = s.graph().full(DType::BF16, &[2], 1.0);
        [(x + &w).named("addition").name(), w.name()]
    };
    let g = Graph::new("test");
    let named = g.scope().within("scope1", |_| g.bf16_scope_named("bf16", names));
    assert_eq!(named, ["scope1/bf16/addition", "scope1/bf16/Cast"]);
    let unnamed = g.scope().within("scope1", |_| g.bf16_scope(names));
    assert_eq!(unnamed, ["scope1/addition", "scope1/Cast"]);
}

/// (d) An f32 request gives f32, a bf16 request gives bf16, and both variables are stored as f32.
#[test]
fn variables_are_f32_and_bf16_requests_are_cast() {
    let g = Graph::new("test");
    let (a, b) = g.bf16_scope(|s| {
        let a = s.variable("a", DType::F32, [3], Init::Ones).value;
        let b = s.variable("b", DType::BF16, [3], Init::Ones).value;
        (a, b)
    });
    assert_eq!((a.dtype(), b.dtype()), (DType::F32, DType::BF16));
    let program = g.finish(&[("a", &a), ("b", &b)]).unwrap();
    assert!(program.variables.iter().all(|variable| variable.dtype == DType::F32));
    assert_eq!(program.warnings, [""; 0]);
}

/// The scope acts on bf16 requests only; f16, integers and f64 pass, and outside nothing changes.
#[test]
fn other_requests_pass_and_outside_nothing_changes() {
    let g = Graph::new("test");
    let stored = |s: &Scope, name: &str, dtype| s.variable(name, dtype, [2], Init::Ones).stored.dtype();
    g.bf16_scope(|s| {
        assert_eq!(stored(s, "f16", DType::F16), DType::F16);
        assert_eq!(stored(s, "f64", DType::F64), DType::F64);
        assert_eq!(stored(s, "s32", DType::S32), DType::S32);
    });
    assert_eq!(stored(&g.scope(), "bf16", DType::BF16), DType::BF16);
    g.low_precision_scope(Precision::F16, |s| assert_eq!(stored(s, "in_f16", DType::F16), DType::F32));
}

/// A small network, which is bf16 if its input is.
fn network(s: &Scope, x: &Tensor) -> Tensor {
    let conv = Conv2d { filters: 4, kernel_size: [3, 3], padding: Padding::Same, use_bias: false, ..Conv2d::default() };
    let x = relu(&batch_norm(s, &conv2d(s, x, "conv", &conv), "bn", &BatchNorm::RESNET));
    let x = x.reshape([2, 4 * 8 * 8]);
    dense(s, &x, "logits", &Dense { units: 10, ..Dense::default() })
}

/// Dtypes on the way, as TensorFlow's HLO has them: bf16 data and kernels, f32 batch norm.
#[test]
fn network_is_bf16_and_its_batch_norm_f32() {
    let g = Graph::new("test");
    let x = g.input("images", DType::F32, [2, 8, 8, 3]).cast(DType::BF16);
    let logits = g.bf16_scope(|s| network(s, &x));
    assert_eq!(logits.dtype(), DType::BF16);
    let program = g.finish(&[("logits", &logits.cast(DType::F32))]).unwrap();
    let dtype_of = |opcode: &str| {
        let mut instructions = program.module.entry().instructions.iter();
        instructions.find(|instr| instr.op.opcode() == opcode).unwrap().shape.dtype()
    };
    assert_eq!(dtype_of("convolution"), Some(DType::BF16));
    assert_eq!(dtype_of("batch-norm-inference"), Some(DType::F32));
    assert_eq!(dtype_of("dot"), Some(DType::BF16));
    assert!(program.variables.iter().all(|variable| variable.dtype == DType::F32));
}

/// A warning for a scope that stays f32 because its input is f32, with the place of that input.
#[test]
fn scope_that_stays_f32_warns() {
    let g = Graph::new("test");
    let x = g.input("images", DType::F32, [2, 8, 8, 3]);
    let logits = g.bf16_scope_named("net", |s| network(s, &x));
    assert_eq!(logits.dtype(), DType::F32);
    let program = g.finish(&[("logits", &logits)]).unwrap();
    expect!["bf16 scope net at tests/networks/bf16_scope.rs:98 has no bf16 variable: its network stays f32; its input images at tests/networks/bf16_scope.rs:97 is f32: cast it with .cast(DType::BF16)"].assert_eq(&program.warnings.join("\n"));
}

/// Operands of two dtypes are our error, before any compiler sees them.
#[test]
fn mixed_dtypes_name_both_tensors_and_the_layer() {
    let g = Graph::new("test");
    let x = g.input("images", DType::F32, [2, 8, 8, 3]).cast(DType::BF16);
    let logits = g.bf16_scope(|s| {
        s.within("block1", |s| {
            let y = network(s, &x);
            let bias = s.variable("temperature", DType::F32, [10], Init::Ones).value;
            y * &bias
        })
    });
    expect![[r#"
        block1/multiply: multiply: multiply dtypes differ: lhs is bf16[2,10], rhs is f32[10]
          operand 0: bf16[2,10] block1/logits/add
          operand 1: f32[10] block1/temperature
          at tests/networks/bf16_scope.rs:113
          help: hlo converts nothing by itself: insert a `convert` of rhs to bf16 (or of lhs to f32)"#]]
    .assert_eq(&g.finish(&[("logits", &logits)]).unwrap_err().to_string());
}
