//! Tests: texts that are read here, and texts that are left to XLA's converter.

use super::{MAX_BYTES, check_length, read, read_named, read_symbolic};
use crate::Sizes;
use bf16scope_hlo::text::{PrintOptions, print};
use bf16scope_hlo::{Op, verify};

fn function(body: &str) -> String {
    format!(
        "module @m {{\n  func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>) -> tensor<2xf32> {{\n{body}\n  }}\n}}\n"
    )
}

/// Whether a body of two arrays that gives one is read; and if, that it verifies.
fn is_read(body: &str) -> bool {
    let module = read(&function(body), "m.mlir");
    module.is_some_and(|module| verify(&module).is_ok())
}

const RETURN: &str = "    return %0 : tensor<2xf32>";

#[test]
fn an_op_knows_its_line_and_a_constant_is_written_once() {
    let text = function(
        "    %cst = stablehlo.constant dense<1.0> : tensor<f32>\n    %cst_0 = stablehlo.constant dense<1.0> : tensor<f32>\n    \
         %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2xf32>\n    \
         %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2xf32>\n    \
         %3 = stablehlo.add %1, %2 : tensor<2xf32>\n    %0 = stablehlo.convert %3 : tensor<2xf32>\n    return %0 : tensor<2xf32>",
    );
    let module = read(&text, "m.mlir").unwrap();
    verify(&module).unwrap();
    let printed = print(&module, &PrintOptions::default());
    let n = |word: &str| printed.matches(word).count();
    assert_eq!((n(" constant("), n(" broadcast("), n(" convert(")), (1, 1, 0), "{printed}");
    let add = module.entry().instructions.iter().find(|instr| matches!(instr.op, Op::Binary(_))).unwrap();
    assert_eq!((add.metadata.source_file.as_str(), add.metadata.source_line), ("m.mlir", 7));
}

/// Locations as MLIR prints them: aliases before and after, those that are said in place, of parameters, labels and functions.
const LOCATED: &str = r#"#loc1 = loc("params['w']")
module @m {
  func.func public @main(%arg0: tensor<2xf32> {jax.arg_info = "w"} loc("params['w']"), %arg1: tensor<2xf32> loc(unknown)) -> tensor<2xf32> {
    %cst = stablehlo.constant dense<0.0> : tensor<f32> loc(#loc3)
    %1 = stablehlo.add %arg0, %arg1 : tensor<2xf32> loc(#loc3)
    %2 = call @inner(%1) : (tensor<2xf32>) -> tensor<2xf32> loc(#loc4)
    %3 = "stablehlo.reduce"(%2, %cst) <{dimensions = array<i64: 0>}> ({
    ^bb0(%a: tensor<f32> loc("a:"), %b: tensor<f32> loc(#loc)):
      %s = stablehlo.add %a, %b : tensor<f32> loc(#loc5)
      stablehlo.return %s : tensor<f32> loc(#loc)
    }) : (tensor<2xf32>, tensor<f32>) -> tensor<f32> loc(#loc5)
    %0 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<2xf32> loc("f.py":3:1 to :9)
    return %0 : tensor<2xf32> loc(#loc)
  } loc(#loc)
  func.func private @inner(%arg0: tensor<2xf32> loc("x")) -> tensor<2xf32> {
    %0 = stablehlo.tanh %arg0 : tensor<2xf32> loc("jit(\22f\22)/tanh@7"("g(.py":1:1))
    return %0 : tensor<2xf32> loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc2 = loc("f.py":45:11 to :25)
#loc3 = loc("jit(f)/add"(#loc2))
#loc4 = loc("jit(f)/inner"(callsite(#loc2 at #loc)))
#loc5 = loc("jit(f)/reduce_sum"(#loc2))
"#;

#[test]
fn locations_name_instructions() {
    let text = LOCATED;
    let module = read_named(text).unwrap();
    verify(&module).unwrap();
    let names = |comp: &bf16scope_hlo::Computation| -> Vec<String> {
        let instrs = comp.instructions.iter();
        instrs.map(|instr| format!("{} {}", instr.op.opcode(), instr.metadata.op_name).trim_end().to_string()).collect()
    };
    assert_eq!(
        names(module.entry()),
        [
            "parameter params['w']",
            "parameter",
            "constant",
            "add jit(f)/add",
            "call jit(f)/inner",
            "reduce jit(f)/reduce_sum",
            "broadcast"
        ]
    );
    let inner = module.computations.iter().find(|comp| comp.name.starts_with("inner")).unwrap();
    assert_eq!(names(inner), ["parameter", "tanh jit(\"f\")/tanh"]);
    assert!(
        module.computations.iter().flat_map(|comp| &comp.instructions).all(|it| it.metadata.source_file.is_empty())
    );
    // Without the numbers of locations there is no certain name.
    for (old, new) in
        [("#loc3 = ", "#loc9 = "), ("\"jit(f)/inner\"(", "fused["), (" loc(#loc4)", " loc(#loc4"), ("\\22f", "\\xxf")]
    {
        assert!(text.contains(old) && read_named(&text.replace(old, new)).is_none(), "{old}");
    }
    assert!(read(text, "m.mlir").is_none());
}

#[test]
fn constants_of_ops_that_commute_come_last() {
    let operands = |op: &str| {
        let body = format!(
            "    %cst = stablehlo.constant dense<2.0> : tensor<f32>\n    \
             %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2xf32>\n    \
             %0 = stablehlo.{op} %1, %arg0 : tensor<2xf32>\n{RETURN}"
        );
        let module = read(&function(&body), "m.mlir").unwrap();
        let entry = module.entry();
        let binary = entry.instructions.iter().find(|instr| matches!(instr.op, Op::Binary(_))).unwrap();
        [0, 1].map(|place| entry.instr(binary.operands[place]).op.opcode().into_owned())
    };
    for op in ["add", "maximum", "minimum", "multiply"] {
        assert_eq!(operands(op), ["parameter", "broadcast"], "{op}");
    }
    for op in ["subtract", "divide", "power"] {
        assert_eq!(operands(op), ["broadcast", "parameter"], "{op}");
    }
}

#[test]
fn what_is_not_certain_is_left_to_xla() {
    assert!(is_read(&format!("    %0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>\n{RETURN}")));
    for body in [
        // Unknown, or said with more than is known.
        "%0 = stablehlo.cosh %arg0 : tensor<2xf32>",
        "%0 = tosa.abs %arg0 : tensor<2xf32>",
        "%0 = chlo.digamma %arg0 : tensor<2xf32> -> tensor<2xf32>",
        "%0 = stablehlo.add %arg0, %arg1 {mhlo.sharding = \"{replicated}\"} : tensor<2xf32>",
        "%0 = stablehlo.add %arg0, %arg1 : tensor<2xf32> loc(#loc1)",
        "%0 = stablehlo.custom_call @f(%arg0) : (tensor<2xf32>) -> tensor<2xf32>",
        // Wrong: types, names, shapes.
        "%0 = stablehlo.add %arg0, %arg1 : tensor<3xf32>",
        "%0 = stablehlo.add %arg0, %arg1, : tensor<2xf32>",
        "%0 = stablehlo.add %arg0, %arg2 : tensor<2xf32>",
        "%0 = stablehlo.add %arg0 : tensor<2xf32>",
        "%0 = stablehlo.and %arg0, %arg1 : tensor<2xf32>",
        "%0:2 = stablehlo.add %arg0, %arg1 : tensor<2xf32>",
        "%0:0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>",
        "%0 = stablehlo.add %arg0, %arg1#1 : tensor<2xf32>",
        "%arg0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>\n    %0 = stablehlo.abs %arg0 : tensor<2xf32>",
        "%0 = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<3xf32>",
        "%0 = stablehlo.slice %arg0 [0:3] : (tensor<2xf32>) -> tensor<2xf32>",
        "%0 = stablehlo.transpose %arg0, dims = [1] : (tensor<2xf32>) -> tensor<2xf32>",
        "%0 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<2xf32>) -> tensor<2xf32>",
        "%0 = stablehlo.compare LT, %arg0, %arg1, SIGNED : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>",
        "%0 = call @main(%arg0, %arg1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>",
        "%0 = call @nobody(%arg0) : (tensor<2xf32>) -> tensor<2xf32>",
        // A value of outside where a reduction cannot see it, and a name that is taken.
        "%0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.add across dimensions = [] : (tensor<2xf32>, \
         tensor<2xf32>) -> tensor<2xf32>",
    ] {
        assert!(!is_read(&format!("    {body}\n{RETURN}")), "{body}");
    }
    let whole = function(&format!("    %0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>\n{RETURN}"));
    assert!(read(&whole, "m").is_some());
    for (word, other) in [
        ("module @m {", "module @m attributes {mhlo.num_partitions = 2 : i32} {"),
        ("%arg1: tensor<2xf32>)", "%arg1: tensor<2xf32> {mhlo.sharding = \"{replicated}\"})"),
        ("%arg1: tensor<2xf32>)", "%arg1: tensor<2xf32> {tf.aliasing_output = 1 : i32})"),
        ("-> tensor<2xf32> {", "-> tensor<3xf32> {"),
        ("@main", "@other"),
        ("}\n}\n", "}\n"),
        ("}\n}\n", "}\n}\n{-# dialect_resources: {} #-}"),
        ("return %0 : tensor<2xf32>", "return %0 : tensor<2xf32>\n    return %0 : tensor<2xf32>"),
        ("return %0 : tensor<2xf32>", ""),
        ("}\n}\n", "}\n  func.func private @unused() {\n    return\n  }\n}\n"),
    ] {
        assert!(whole.contains(word), "{word}");
        assert!(read(&whole.replacen(word, other, 1), "m").is_none(), "{other}");
    }
}

#[test]
fn no_depth_and_no_cut_ends_the_process() {
    let deep = format!("    %0 = \"stablehlo.if\"(%arg0) {}", "({ %1 = \"stablehlo.if\"(%arg0) ".repeat(10_000));
    assert!(read(&function(&deep), "m").is_none());
    let call = |n: usize| {
        format!(
            "  func.func private @f{n}(%arg0: tensor<f32>) -> tensor<f32> {{\n    %0 = call @f{}(%arg0) : (tensor<f32>) -> \
             tensor<f32>\n    return %0 : tensor<f32>\n  }}\n",
            n + 1
        )
    };
    let calls: String = (0..10_000).map(call).collect();
    let main = function("    %0 = call @f0(%arg0) : (tensor<2xf32>) -> tensor<2xf32>\n    return %0 : tensor<2xf32>");
    let main = main.replace("tensor<2xf32>", "tensor<f32>");
    assert!(read(&main.replace("  }\n}\n", &format!("  }}\n{calls}}}\n")), "m").is_none());
    let text = include_str!("../../../../../tests/data/stablehlo/mlp.mlir");
    assert!(read(text, "m").is_some());
    for end in (0..text.trim_end().len()).step_by(7) {
        assert!(read(&text[..end], "m").is_none(), "{end}");
    }
}

/// A step of JAX with a symbolic batch, cut, or with bytes of shapes and numbers changed: a module that verifies, or an error
/// that says where.
#[test]
fn no_change_of_a_symbolic_program_ends_the_process() {
    const STEP: &str = include_str!("../../../../../tests/data/stablehlo/symbolic.mlir");
    let sizes = Sizes::new(vec!["b=3".parse().unwrap()]).unwrap();
    assert!(verify(&read_symbolic(STEP, "m.mlir", &sizes).unwrap()).is_ok());
    let mut n_refused = 0;
    let places = STEP.char_indices().filter(|(_, letter)| letter.is_ascii_digit() || *letter == '?');
    for (number, (at, _)) in places.enumerate().filter(|(number, _)| number % 7 == 0) {
        let with = ["0", "?", "-1", "9223372036854775807", "99999999999x99999999999"][number % 5];
        for changed in [format!("{}{with}{}", &STEP[..at], &STEP[at + 1..]), STEP[..at].to_string()] {
            match read_symbolic(&changed, "m.mlir", &sizes) {
                Ok(module) => drop(verify(&module)),
                Err(error) => {
                    n_refused += 1;
                    assert!(error.to_string().starts_with("m.mlir"), "{error}");
                }
            }
        }
    }
    assert!(n_refused > 100, "{n_refused}");
}

/// Functions that call the one before twice, with sizes alone: 2^40 of them are not written.
#[test]
fn sizes_that_are_computed_for_ever_are_refused() {
    let mut text = "module @m attributes {jax.uses_shape_polymorphism = true} {\n  func.func public @main(%arg0: tensor<?xf32>) -> \
                    tensor<i32> {\n    %0 = stablehlo.get_dimension_size %arg0, dim = 0 : (tensor<?xf32>) -> tensor<i32>\n    \
                    %1 = call @f40(%0) : (tensor<i32>) -> tensor<i32>\n    return %1 : tensor<i32>\n  }\n  func.func private \
                    @f0(%arg0: tensor<i32>) -> tensor<i32> {\n    return %arg0 : tensor<i32>\n  }\n"
        .to_string();
    for number in 1..=40 {
        let call =
            |to: u32, of: &str| format!("    %{to} = call @f{}(%{of}) : (tensor<i32>) -> tensor<i32>\n", number - 1);
        text += &format!(
            "  func.func private @f{number}(%arg0: tensor<i32>) -> tensor<i32> {{\n{}{}    return %1 : tensor<i32>\n  }}\n",
            call(0, "arg0"),
            call(1, "0")
        );
    }
    text += "}\n";
    let sizes = Sizes::new(vec!["0:0=3".parse().unwrap()]).unwrap();
    let error = read_symbolic(&text, "m.mlir", &sizes).unwrap_err().to_string();
    assert!(error.contains("is not read in a program whose sizes are symbolic"), "{error}");
    assert!(read_symbolic(&text.replace("@f40(%0)", "@f4(%0)"), "m.mlir", &sizes).is_ok());
}

#[test]
fn a_text_with_large_constants_is_refused() {
    check_length(MAX_BYTES, "m.mlir").unwrap();
    assert_eq!(
        check_length(40 << 20, "m.mlir").unwrap_err().to_string(),
        "m.mlir: the text is 40 MiB without its locations, expected at most 32\nhelp: export it with its sizes, or hand large \
         constants over as arguments"
    );
}
