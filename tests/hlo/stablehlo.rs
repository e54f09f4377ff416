//! StableHLO, both ways: JAX's programs are read in every form, and written programs compute the same.
//!
//! Bits are compared on one plugin, with excess precision off: XLA's converter may name and order things otherwise, and
//! what is computed stays.

use bf16scope::foreign::{self, ForeignError, stablehlo};
use bf16scope::hlo::alone::{NotAlone, several_devices};
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::{AliasKind, Literal, Module, Op, Shape, text, verify};
use bf16scope::pjrt::{ChildSpec, CompileOptions, PluginSpec, Setup, hlo_of_stablehlo, locate};
use std::path::{Path, PathBuf};

use crate::run::run_bytes;

/// The forms that `tests/data/stablehlo/make.py` writes.
const FORMS: [&str; 5] = ["mlir", "generic.mlir", "mlirbc", "vhlo.mlirbc", "jax"];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/stablehlo").join(name)
}

pub(crate) fn read(bytes: &[u8], name: &str) -> Result<Module, ForeignError> {
    foreign::read(bytes, name, &Setup::from_env(), &ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope")))
}

fn read_file(name: &str) -> Module {
    let bytes = std::fs::read(data(name)).unwrap();
    let module = read(&bytes, name).unwrap_or_else(|error| panic!("{name}: {error}"));
    verify(&module).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    module
}

fn proto(path: &Path) -> Module {
    decode::from_bytes(&std::fs::read(path).unwrap()).unwrap()
}

/// Arguments that are no two alike and small, so that indices and exponents stay in bounds.
fn arguments(module: &Module) -> Vec<Literal> {
    let entry = module.entry();
    let parameters = entry.parameters();
    let shapes = parameters.iter().flat_map(|id| entry.instr(*id).shape.leaves());
    let argument = |(n, shape): (usize, &Shape)| {
        let array = shape.as_array().unwrap();
        let value = |i: i64| ((i * 7 + n as i64 * 3) % 11) as f64 / 8.0;
        let scalars = (0..array.n_elements()).map(|i| Literal::scalar_of(array.dtype, value(i)).unwrap());
        let bytes = scalars.flat_map(|scalar| match scalar {
            Literal::Array { bytes, .. } => bytes,
            other => panic!("{other:?}"),
        });
        Literal::Array {
            shape: bf16scope::hlo::ArrayShape::new(array.dtype, array.dims.clone()),
            bytes: bytes.collect(),
        }
    };
    shapes.enumerate().map(argument).collect()
}

fn results(module: &Module) -> Vec<Literal> {
    run_bytes(&encode::to_bytes(module).unwrap(), &CompileOptions::default(), &arguments(module))
}

#[test]
fn every_form_of_jax_computes_what_its_hlo_does() {
    // The portable artifact of `many` has an operation that came after the CPU plugin.
    locate(PluginSpec::tpu(), &Setup::from_env()).unwrap();
    for name in ["mlp", "many"] {
        let expected = results(&proto(&data(&format!("{name}.hlo.pb"))));
        assert!(!expected.is_empty());
        for form in FORMS {
            let actual = results(&read_file(&format!("{name}.{form}")));
            assert!(actual == expected, "{name}.{form} computes something else");
        }
    }
}

/// Bits of results, so that NaN is NaN.
fn bits(literals: &[Literal]) -> Vec<&[u8]> {
    let bytes = literals.iter().map(|literal| match literal {
        Literal::Array { bytes, .. } => &bytes[..],
        other => panic!("{other:?}"),
    });
    bytes.collect()
}

/// A module that is read without XLA's converter has the same aliases and computes the same bits as the converter's.
fn is_read_here_as_by_xla(text: &str, name: &str) {
    let here = stablehlo::read(text, name).unwrap_or_else(|| panic!("{name} is not read without the converter"));
    verify(&here).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    let hlo = hlo_of_stablehlo(text.as_bytes(), &Setup::from_env(), &ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope")));
    let by_xla = decode::from_bytes(&hlo.unwrap_or_else(|error| panic!("{name}: {error}"))).unwrap();
    assert_eq!(here.name, by_xla.name);
    assert_eq!(here.input_output_alias, by_xla.input_output_alias, "{name}");
    let (actual, expected) = (results(&here), results(&by_xla));
    let (actual, expected) = (bits(&actual), bits(&expected));
    assert_eq!(actual.len(), expected.len());
    for (idx, (actual, expected)) in actual.into_iter().zip(expected).enumerate() {
        assert!(actual == expected, "{name}: result {idx} is something else:\n{actual:?}\n{expected:?}");
    }
}

/// JAX's derivative of `einsum("ij,jk->ik", x, w, preferred_element_type=f32)` of bf16 arrays: read here and by the
/// converter, printed as text and proto and as StableHLO.
#[test]
fn products_of_two_dtypes_come_and_go_in_every_form() {
    let mlir = "module @jit_f {\n  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<4x3xbf16>) -> \
                tensor<2x4xf32> {\n    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [1], precision = \
                [DEFAULT, DEFAULT] : (tensor<2x3xf32>, tensor<4x3xbf16>) -> tensor<2x4xf32>\n    return %0 : \
                tensor<2x4xf32>\n  }\n}\n";
    is_read_here_as_by_xla(mlir, "mixed.mlir");
    let module = read(mlir.as_bytes(), "mixed.mlir").unwrap();
    let expected = results(&module);
    let text = text::print(&module, &text::PrintOptions::default());
    assert!(text.contains("f32[2,4]{1,0} dot("), "{text}");
    assert_eq!(results(&text::parse(&text, "mixed.txt").unwrap()), expected);
    let proto = encode::to_bytes(&module).unwrap();
    assert_eq!(results(&decode::from_bytes(&proto).unwrap()), expected);
    let written = stablehlo::write(&module).unwrap().text;
    assert!(written.contains("(tensor<2x3xf32>, tensor<4x3xbf16>) -> (tensor<2x4xf32>)"), "{written}");
    assert_eq!(results(&read(written.as_bytes(), "written.mlir").unwrap()), expected);
}

/// A module may have a name that is not a valid symbol in MLIR.
#[test]
fn names_become_symbols_that_mlir_reads() {
    for (name, symbol) in
        [("2x", "@_2x"), ("", "@_"), ("a b-c", "@a_b_c"), (".x", "@_.x"), ("$", "@_$"), ("ok.1", "@ok.1")]
    {
        let source = "HloModule m\n\nENTRY main {\n  ROOT x = f32[2] parameter(0)\n}\n";
        let mut module = text::parse(source, "m.txt").unwrap();
        module.name = name.to_string();
        let written = stablehlo::write(&module).unwrap().text;
        assert!(written.starts_with(&format!("module {symbol} ")), "{written}");
        let hlo =
            hlo_of_stablehlo(written.as_bytes(), &Setup::from_env(), &ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope")));
        assert!(hlo.is_ok(), "{name}: {hlo:?}\n{written}");
    }
}

#[test]
fn text_that_needs_no_converter_is_read_as_xla_reads_it() {
    let mlp = std::fs::read_to_string(data("mlp.mlir")).unwrap();
    is_read_here_as_by_xla(&mlp, "mlp.mlir");
    let forms = std::fs::read_to_string(data("forms.mlir")).unwrap();
    is_read_here_as_by_xla(&forms, "forms.mlir");
    // Three functions of CHLO are XLA's; the rest of `many` is not.
    let many = std::fs::read_to_string(data("many.mlir")).unwrap();
    assert!(stablehlo::read(&many, "many.mlir").is_none());
    let top = "%values, %indices = chlo.top_k(%7, k = 2) : tensor<64x4xf32> -> (tensor<64x2xf32>, tensor<64x2xi32>)";
    let slice = "%values = stablehlo.slice %7 [0:64, 1:3] : (tensor<64x4xf32>) -> tensor<64x2xf32>\n    \
                 %indices = stablehlo.iota dim = 0 : tensor<64x2xi32>";
    let most = many.replace("chlo.erf_inv", "chlo.erf").replace("chlo.digamma", "chlo.square").replace(top, slice);
    is_read_here_as_by_xla(&most, "most.mlir");
}

#[test]
fn names_locations_and_donations_survive() {
    for form in ["generic.mlir", "mlirbc", "vhlo.mlirbc", "jax"] {
        let module = read_file(&format!("mlp.{form}"));
        assert_eq!(module.name, "jit_mlp");
        assert_eq!(module.input_output_alias.len(), 3, "{form}");
        let all: Vec<_> = module.computations.iter().flat_map(|computation| &computation.instructions).collect();
        let dot = all.iter().find(|instr| matches!(instr.op, Op::Dot { .. })).unwrap();
        assert!(dot.metadata.op_name.contains("hidden"), "{form}: {}", dot.metadata.op_name);
        assert!(dot.metadata.op_name.ends_with("dot_general"), "{form}: {}", dot.metadata.op_name);
    }
    // A text without locations is its own location.
    let module = read_file("mlp.mlir");
    let dot = module.entry().instructions.iter().find(|instr| matches!(instr.op, Op::Dot { .. })).unwrap();
    assert_eq!((dot.metadata.source_file.as_str(), dot.metadata.source_line), ("mlp.mlir", 3));
}

#[test]
fn shardings_survive_in_every_form() {
    for form in FORMS {
        let module = read_file(&format!("sharded.{form}"));
        let Some(NotAlone::Devices { wants, .. }) = several_devices(&module) else { panic!("{form}: for one device") };
        assert_eq!(wants, 8, "{form}");
        let parameters = module.entry().parameters();
        assert!(parameters.iter().all(|id| module.entry().instr(*id).sharding.is_some()), "{form}");
        assert!(module.frontend_attributes.iter().any(|(name, _)| name == "xla.sdy.meshes"), "{form}");
    }
}

#[test]
fn shardings_survive_being_written() {
    let modules = FORMS.map(|form| (form, read_file(&format!("sharded.{form}"))));
    for (form, module) in modules.into_iter().chain([("hlo.pb", proto(&data("sharded.hlo.pb")))]) {
        let written = stablehlo::write(&module).unwrap_or_else(|error| panic!("{form}: {error}"));
        // In bytecode and protos only the shardings show the number of devices.
        assert!(written.text.contains("mhlo.num_partitions = 8 : i32"), "{form}: {}", written.text);
        let back = read(written.text.as_bytes(), "back.mlir").unwrap_or_else(|error| panic!("{form}: {error}"));
        let shardings = |module: &Module| -> Vec<String> {
            let parameters = module.entry().parameters();
            parameters.iter().map(|id| format!("{:?}", module.entry().instr(*id).sharding)).collect()
        };
        assert_eq!(shardings(&back), shardings(&module), "{form}");
        let meshes = |module: &Module| {
            module.frontend_attributes.iter().find(|(name, _)| name == "xla.sdy.meshes").map(|(_, mesh)| mesh.clone())
        };
        assert!(meshes(&back).is_some(), "{form}");
        assert_eq!(meshes(&back), meshes(&module), "{form}");
        let Some(NotAlone::Devices { wants, .. }) = several_devices(&back) else { panic!("{form}: for one device") };
        assert_eq!(wants, 8, "{form}");
    }
}

/// Ops that the IR carries as they are, and an algorithm of a product.
const CARRIED: &str = "HloModule carried

ENTRY main {
  x = f32[4,4]{1,0} parameter(0)
  full = c64[4,3]{1,0} fft(x), fft_type=RFFT, fft_length={4}
  back = f32[4,4]{1,0} fft(full), fft_type=IRFFT, fft_length={4}
  square = c64[4,4]{1,0} complex(x, back)
  plane = c64[4,4]{1,0} fft(square), fft_type=FFT, fft_length={4,4}
  matrix = f32[3,3]{1,0} constant({{4,1,0},{1,4,1},{0,1,4}})
  factor = f32[3,3]{1,0} cholesky(matrix), lower=true
  solved = f32[3,3]{1,0} triangular-solve(factor, matrix), left_side=true, lower=true, unit_diagonal=false, transpose_a=TRANSPOSE
  top = (f32[4,2]{1,0}, s32[4,2]{1,0}) topk(x), k=2, largest=true
  low = f32[4,4]{1,0} dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_bf16_bf16_f32_x3
  best = f32[4,2]{1,0} get-tuple-element(top), index=0
  at = s32[4,2]{1,0} get-tuple-element(top), index=1
  ROOT all = (f32[4,4]{1,0}, c64[4,4]{1,0}, f32[3,3]{1,0}, f32[4,2]{1,0}, s32[4,2]{1,0}, f32[4,4]{1,0}) tuple(back, plane, solved, best, at, low)
}
";

/// A small module of each op, the example models, and modules that JAX and TensorFlow export.
fn modules() -> Vec<Module> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let zoo = include_str!("../attacks/mutations/zoo.hlo").split("HloModule ").filter(|text| !text.trim().is_empty());
    let mut modules: Vec<Module> = zoo.map(|text| text::parse(&format!("HloModule {text}"), "zoo").unwrap()).collect();
    for name in ["mlp_training_bf16", "cnn_training_f32", "transformer_small_training_bf16"] {
        let text = std::fs::read_to_string(root.join(format!("hlo/{name}.txt"))).unwrap();
        modules.push(text::parse(&text, name).unwrap());
    }
    for name in ["oracle_jax/encoder_forward", "oracle_tf/mlp_bf16", "stablehlo/mlp"] {
        modules.push(proto(&root.join(format!("tests/data/{name}.hlo.pb"))));
    }
    modules.push(text::parse(CARRIED, "carried").unwrap());
    modules
}

/// Ops of the small modules that StableHLO does not have, or that one device cannot run: each is refused with its
/// name.
#[test]
fn what_is_written_is_read_and_computes_the_same() {
    let (mut n_written, mut refused) = (0, Vec::new());
    for module in modules() {
        let written = match stablehlo::write(&module) {
            Ok(written) => written,
            Err(error) => {
                refused.push(error.to_string().lines().next().unwrap_or_default().to_string());
                continue;
            }
        };
        let back = read(written.text.as_bytes(), &module.name)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", module.name, written.text));
        verify(&back).unwrap_or_else(|errors| panic!("{}: {errors}\n{}", module.name, written.text));
        n_written += 1;
        if bf16scope::hlo::alone::runs_alone(&module).is_err() || crate::verify::xla::needs_f16c(&module) {
            continue;
        }
        let (expected, actual) = (results(&module), results(&back));
        assert!(expected == actual, "{} computes something else:\n{}", module.name, written.text);
    }
    println!("{n_written} written; refused:\n{}", refused.join("\n"));
    assert!(refused.iter().all(|error| error.contains("StableHLO has no ")), "{refused:?}");
    assert!(n_written > 3 * refused.len(), "{n_written} written, refused: {refused:#?}");
    assert!(stablehlo::write(&text::parse(CARRIED, "carried").unwrap()).is_ok());
}

#[test]
fn what_has_no_hlo_is_said_with_its_line() {
    let refused = |text: &str| read(text.as_bytes(), "m.mlir").unwrap_err().to_string();
    let function = |body: &str| {
        format!("module @m {{\n  func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{\n{body}\n  }}\n}}\n")
    };
    let error = refused(&function("    %0 = stablehlo.abs %b : tensor<2xf32>\n    return %0 : tensor<2xf32>"));
    assert!(error.starts_with("m.mlir:3:24: error: use of undeclared SSA value name\nhelp: "), "{error}");
    let error = refused(&function(
        "    %0 = \"tosa.abs\"(%a) : (tensor<2xf32>) -> tensor<2xf32>\n    return %0 : tensor<2xf32>",
    ));
    assert!(error.starts_with("m.mlir:3:"), "{error}");
    assert!(error.contains("help: this is MLIR of the dialect `tosa`, and StableHLO is read"), "{error}");
    for (written, meant) in
        [("exponentiall", "exponential"), ("dot_generl", "dot_general"), ("log_plus_1", "log_plus_one")]
    {
        let error = refused(&function(&format!(
            "    %0 = \"stablehlo.{written}\"(%a) : (tensor<2xf32>) -> tensor<2xf32>\n    return %0 : tensor<2xf32>"
        )));
        assert!(error.ends_with(&format!("\nhelp: did you mean `stablehlo.{meant}`?")), "{error}");
        let error = refused(&function(&format!(
            "    %0 = stablehlo.{written} %a : tensor<2xf32>\n    return %0 : tensor<2xf32>"
        )));
        assert!(error.ends_with(&format!("\nhelp: did you mean `stablehlo.{meant}`?")), "{error}");
    }
    let error = refused(&function("    return %a : tensor<2xf32>").replace("2xf32", "?xf32"));
    assert!(error.starts_with("m.mlir: %Arg_0.1 is f32[?]{0}, whose size is not known"), "{error}");
    // As `jax.export` writes sizes by `symbolic_shape`, without the message that has their names.
    let error = refused(
        "module @m attributes {jax.uses_shape_polymorphism = true} {\n  func.func public @main(%a: tensor<?xf32>) -> \
         tensor<?xf32> {\n    %0 = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?xf32>) -> tensor<i32>\n    %1 = \
         stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>\n    %2 = stablehlo.dynamic_iota %1, dim = 0 : \
         (tensor<1xi32>) -> tensor<?xf32>\n    return %2 : tensor<?xf32>\n  }\n}\n",
    );
    assert!(error.contains("its sizes are symbolic, and no size is given for `0:0`"), "{error}");
    assert!(error.contains("say how large each is: --dim 0:0=32"), "{error}");
    // Cut within an op, and between two.
    let whole = function(
        "    %0 = stablehlo.transpose %a, dims = [0] : (tensor<2xf32>) -> tensor<2xf32>\n    return %0 : tensor<2xf32>",
    );
    for end in ["%a,", "-> tensor<2xf32>\n    "] {
        let error = refused(&whole[..whole.rfind(end).unwrap() + end.len()]);
        assert!(error.contains("\nhelp: the text ends there: the file may have been cut"), "{end}: {error}");
    }
    let error = refused("module @m {\n}\n");
    assert!(error.contains("`main`"), "{error}");
    let error = refused(&format!("module @m {{{}", "{".repeat(100_000)));
    assert!(!error.is_empty());
}

/// A custom call's layouts, memory spaces and back-end config are XLA's again after both conversions.
#[test]
fn a_custom_call_keeps_its_words() {
    let module = text::parse(
        "HloModule m\n\nENTRY main {\n  x = f32[4,3]{1,0} parameter(0)\n  ROOT y = (f32[4,3]{0,1}, f32[3]{0}) \
         custom-call(x), custom_call_target=\"f\", operand_layout_constraints={f32[4,3]{0,1}}, \
         output_to_operand_aliasing={{0}: (0, {})}, api_version=API_VERSION_TYPED_FFI, backend_config={index = 0 : ui64}\n}\n",
        "m",
    );
    let module = module.unwrap();
    let back = read(stablehlo::write(&module).unwrap().text.as_bytes(), "m.mlir").unwrap();
    let calls = [&module, &back].map(|module| {
        let entry = module.entry();
        let call = entry.instructions.iter().find(|instr| matches!(instr.op, Op::CustomCall(_))).unwrap();
        let aliasing = call.unmodelled.attributes.iter().find(|(name, _)| name == "output_to_operand_aliasing");
        (call.op.clone(), call.shape.clone(), call.backend_config.clone(), aliasing.cloned())
    });
    assert_eq!(calls[0], calls[1]);
}

#[test]
fn must_alias_is_said_to_become_may_alias() {
    let text = "HloModule m, input_output_alias={ {}: (0, {}, must-alias) }\n\nENTRY m {\n  a = f32[2] parameter(0)\n  \
                ROOT b = f32[2] negate(a)\n}\n";
    let written = stablehlo::write(&text::parse(text, "m").unwrap()).unwrap();
    assert_eq!(written.lost, ["must-alias of 1 outputs, which becomes may-alias"]);
    let back = read(written.text.as_bytes(), "m.mlir").unwrap();
    assert_eq!(back.input_output_alias[0].kind, AliasKind::May);
    let written = stablehlo::write(&text::parse(&text.replace("must", "may"), "m").unwrap()).unwrap();
    assert!(written.lost.is_empty(), "{:?}", written.lost);
}

/// The results of `run` for a file of tests/data/stablehlo, with random inputs that only depend on the shapes.
fn results_of(file: &str, dims: &[&str]) -> Result<Vec<u8>, String> {
    let folder = tempfile::tempdir().unwrap();
    let outputs = folder.path().join("out.npz");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_bf16scope"));
    command.arg("run").arg(format!("tests/data/stablehlo/{file}")).args(["--random", "7", "--outputs"]).arg(&outputs);
    let output = command.args(dims.iter().flat_map(|dim| ["--dim", *dim])).output().unwrap();
    match output.status.success() {
        true => Ok(std::fs::read(outputs).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

/// A training step of JAX, with gradients, gathers and scatters over a symbolic batch, gives the bits of the same step
/// exported with that batch.
#[test]
fn symbolic_sizes_that_are_given_make_the_static_program() {
    for (size, file) in [("b=3", "symbolic_3.mlir"), ("b=32", "symbolic_32.mlir")] {
        assert!(results_of("symbolic.mlir", &[size]).unwrap() == results_of(file, &[]).unwrap(), "{size}");
    }
    // Bytecode, and what `jax.export` serializes around it, which is what is kept on disks.
    for file in ["symbolic.mlirbc", "symbolic.jax"] {
        assert!(results_of(file, &["b=3"]).unwrap() == results_of("symbolic_3.mlir", &[]).unwrap(), "{file}");
    }
    // By position: the second is the labels', which the first determines.
    assert!(results_of("symbolic.mlir", &["3:0=3"]).unwrap() == results_of("symbolic_3.mlir", &[]).unwrap());
}

#[test]
fn symbolic_sizes_that_do_not_fit_are_said() {
    let refused = |dims: &[&str]| results_of("symbolic.mlir", dims).unwrap_err();
    let error = refused(&[]);
    assert!(error.contains("no size is given for `b`\nhelp: say how large each is: --dim b=32"), "{error}");
    let error = results_of("symbolic.jax", &[]).unwrap_err();
    assert!(error.contains("symbolic.jax: its sizes are symbolic, and no size is given for `b`\nhelp: say"), "{error}");
    let error = refused(&["b=0"]);
    assert!(error.contains("Expected value >= 1 for dimension variable 'b'"), "{error}");
    assert!(error.contains("\nhelp: these are the words of jax.export; give other sizes with --dim\n"), "{error}");
    let error = refused(&["3:0=3", "4:0=4"]);
    assert!(error.contains("Found inconsistency between dimension size args[2].shape[0] (= 4)"), "{error}");
    let error = refused(&["b=3", "c=4"]);
    assert!(error.contains("no symbolic dimension is called `c`"), "{error}");
    // JAX's flag is in every export: a static one is passed on to the converter, for ops that only that knows.
    let error = results_of("platforms.jax", &["b=3"]).unwrap_err();
    assert!(error.contains("has no symbolic dimension, and --dim gives sizes to those"), "{error}");
    let text = "module @m attributes {jax.uses_shape_polymorphism = false} {\n  func.func public @main(%a: tensor<2xf32>) -> \
                tensor<2xf32> {\n    %0 = chlo.erf_inv %a : tensor<2xf32> -> tensor<2xf32>\n    return %0 : tensor<2xf32>\n  \
                }\n}\n";
    read(text.as_bytes(), "m.mlir").unwrap();
    let error = results_of("mlp.mlir", &["b=3"]).unwrap_err();
    assert!(error.contains("has no symbolic dimension, and --dim gives sizes to those"), "{error}");
}
