//! Gradients as modules: every case's gradient verifies, every op has a decision, every refusal says why and where.

use crate::{grad_cases, run as runner};

use bf16scope::hlo::module::{Alias, AliasKind};
use bf16scope::hlo::ops::decisions::gradient;
use bf16scope::hlo::ops::grad::Gradient;
use bf16scope::hlo::ops::{
    AllReduce, BatchNorm, BinaryOp, Comparison, Conditional, CustomCall, DotDims, GatherDims, Opaque, PrecisionConfig,
    ReplicaGroups, RngAlgorithm, ScatterDims, UnaryOp, WindowDim,
};
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{CompId, DType, Emitter, InstrId, Literal, Metadata, Module, Op, POISON, Shape};
use bf16scope::passes::grad::{Config, gradients, run};
use bf16scope::passes::{PassError, PassErrorKind};
use bf16scope::pjrt::CompileOptions;

fn emitter() -> Emitter {
    let module = Module::new("main");
    let entry = module.entry;
    Emitter::new(module, entry)
}

#[test]
fn the_gradient_of_every_case_is_a_valid_module() {
    for case in grad_cases::all() {
        let module = case.gradient_module().unwrap_or_else(|error| panic!("{}: {error}", case.name));
        if let Err(errors) = verify(&module) {
            panic!("{}: {errors}", case.name);
        }
        let results = module.entry().result_shape().as_tuple().unwrap().to_vec();
        assert_eq!(results.len(), case.dims.len() + 1, "{}", case.name);
        for (result, dims) in results[1..].iter().zip(&case.dims) {
            assert_eq!(result.dims(), dims, "{}", case.name);
        }
        assert_eq!(case.gradient_module().unwrap(), module, "{}: the same twice", case.name);
    }
}

/// One op of every kind. The match has no wildcard: a new kind has to be added to the list as well.
fn one_of_every_op() -> Vec<Op> {
    let comp = CompId(0);
    let batch_norm = BatchNorm { epsilon: 1e-5, feature_index: 1 };
    let window = vec![WindowDim::of_size(2)];
    let convolution = bf16scope::hlo::ops::Convolution {
        window: vec![WindowDim::of_size(3), WindowDim::of_size(3)],
        dims: grad_cases::nhwc(),
        feature_group_count: 1,
        batch_group_count: 1,
        precision: PrecisionConfig::default(),
    };
    let all_reduce = AllReduce {
        to_apply: comp,
        replica_groups: ReplicaGroups::List(vec![]),
        channel_id: None,
        use_global_device_ids: false,
        constrain_layout: false,
    };
    let mut ops = vec![
        Op::parameter(0),
        Op::Constant(Literal::scalar(1.0f32)),
        Op::Iota { dimension: 0 },
        Op::RngBitGenerator(RngAlgorithm::Philox),
        Op::Compare { direction: Comparison::Lt, kind: None },
        Op::Select,
        Op::Clamp,
        Op::Convert,
        Op::BitcastConvert,
        Op::ReducePrecision { exponent_bits: 8, mantissa_bits: 7 },
        Op::Broadcast { dimensions: vec![] },
        Op::Reshape,
        Op::Transpose { permutation: vec![] },
        Op::Slice(vec![]),
        Op::Pad(vec![]),
        Op::Concatenate { dimension: 0 },
        Op::Reverse { dimensions: vec![] },
        Op::DynamicSlice { slice_sizes: vec![] },
        Op::DynamicUpdateSlice,
        Op::Gather(GatherDims::default()),
        Op::Scatter { dims: ScatterDims::default(), to_apply: comp },
        Op::Dot { dims: DotDims::default(), precision: PrecisionConfig::default() },
        Op::Convolution(Box::new(convolution)),
        Op::Reduce { dimensions: vec![0], to_apply: comp },
        Op::ReduceWindow { window: window.clone(), to_apply: comp },
        Op::SelectAndScatter { window, select: comp, scatter: comp },
        Op::BatchNormTraining(batch_norm),
        Op::BatchNormInference(batch_norm),
        Op::BatchNormGrad(batch_norm),
        Op::Sort { dimension: 0, is_stable: true, to_apply: comp },
        Op::Tuple,
        Op::GetTupleElement { index: 0 },
        Op::Call { to_apply: comp },
        Op::While { condition: comp, body: comp },
        Op::Conditional(Conditional { branches: vec![comp, comp] }),
        Op::CustomCall(Box::new(CustomCall { target: "f".into(), ..CustomCall::default() })),
        Op::AllReduce(Box::new(all_reduce)),
        Op::OptimizationBarrier,
        Op::Opaque(Box::new(Opaque { opcode: "fft".into(), called: vec![] })),
    ];
    ops.extend(UnaryOp::ALL.iter().map(|&op| Op::Unary(op)));
    ops.extend(BinaryOp::ALL.iter().map(|&op| Op::Binary(op)));
    ops
}

/// Position of an op's kind in the enum.
fn kind(op: &Op) -> usize {
    match op {
        Op::Parameter { .. } => 0,
        Op::Constant(_) => 1,
        Op::Iota { .. } => 2,
        Op::RngBitGenerator(_) => 3,
        Op::Unary(_) => 4,
        Op::Binary(_) => 5,
        Op::Compare { .. } => 6,
        Op::Select => 7,
        Op::Clamp => 8,
        Op::Convert => 9,
        Op::BitcastConvert => 10,
        Op::ReducePrecision { .. } => 11,
        Op::Broadcast { .. } => 12,
        Op::Reshape => 13,
        Op::Transpose { .. } => 14,
        Op::Slice(_) => 15,
        Op::Pad(_) => 16,
        Op::Concatenate { .. } => 17,
        Op::Reverse { .. } => 18,
        Op::DynamicSlice { .. } => 19,
        Op::DynamicUpdateSlice => 20,
        Op::Gather(_) => 21,
        Op::Scatter { .. } => 22,
        Op::Dot { .. } => 23,
        Op::Convolution(_) => 24,
        Op::Reduce { .. } => 25,
        Op::ReduceWindow { .. } => 26,
        Op::SelectAndScatter { .. } => 27,
        Op::BatchNormTraining(_) => 28,
        Op::BatchNormInference(_) => 29,
        Op::BatchNormGrad(_) => 30,
        Op::Sort { .. } => 31,
        Op::Tuple => 32,
        Op::GetTupleElement { .. } => 33,
        Op::Call { .. } => 34,
        Op::While { .. } => 35,
        Op::Conditional(_) => 36,
        Op::CustomCall(_) => 37,
        Op::AllReduce(_) => 38,
        Op::OptimizationBarrier => 39,
        Op::Opaque(_) => 40,
    }
}
const N_KINDS: usize = 41;

#[test]
fn every_op_has_a_decision_and_it_is_written_down() {
    let ops = one_of_every_op();
    let kinds: std::collections::BTreeSet<usize> = ops.iter().map(kind).collect();
    assert_eq!(kinds.len(), N_KINDS, "an op kind is missing from the list");
    let mut table = String::from(
        "# Gradients by op\n\nWritten by `BF16SCOPE_BLESS=1 cargo test --test networks grad::`; the rules stand in \
         `crates/hlo/src/ops/*/grad.rs`.\nA rule may still refuse some attributes: the error then says which and why.\n\n| op | \
         gradient |\n| --- | --- |\n",
    );
    let mut rows: Vec<(String, String)> = (ops.iter())
        .map(|op| {
            let decision = match gradient(op) {
                Gradient::Vjp(_) => "rule".to_string(),
                Gradient::Zero { why } => format!("zero: {why}"),
                Gradient::Undefined { why } => format!("none: {why}"),
            };
            (op.opcode().into_owned(), decision)
        })
        .collect();
    rows.sort();
    for (opcode, decision) in rows {
        table.push_str(&format!("| `{opcode}` | {decision} |\n"));
    }
    let path = format!("{}/docs/GRADIENTS.md", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("BF16SCOPE_BLESS").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written == table,
        "docs/GRADIENTS.md is stale: run BF16SCOPE_BLESS=1 cargo test --test networks grad::\n{table}"
    );
}

/// The error of differentiating what `build` returns by what it returns, with everything named.
fn error_of(build: impl Fn(&Emitter) -> (InstrId, InstrId)) -> String {
    let e = emitter();
    e.set_metadata(Metadata {
        op_name: "net/layer".into(),
        source_file: "net.rs".into(),
        source_line: 7,
        ..Metadata::default()
    });
    let (output, variable) = build(&e);
    gradients(&e, output, &[variable]).unwrap_err().to_string()
}

fn vector(e: &Emitter, number: i64) -> InstrId {
    e.parameter(number, &Shape::array(DType::F32, [4]))
}

#[test]
fn errors_say_where_what_and_what_to_do() {
    let at = |name: &str| format!("main/%{name} (net/layer, at net.rs:7)");
    assert_eq!(
        error_of(|e| (vector(e, 0), vector(e, 1))),
        format!(
            "{}: a gradient is that of a floating scalar, but this is f32[4]\n  help: reduce it to a scalar loss first",
            at("parameter.1")
        )
    );
    assert_eq!(
        error_of(|e| {
            let x = e.parameter(0, &Shape::array(DType::S32, [4]));
            (e.reduce_sum(e.convert(x, DType::F32), &[0]), x)
        }),
        format!("{}: gradients are with respect to floating arrays, but this is s32[4]", at("parameter.1"))
    );
    assert_eq!(
        error_of(|e| (e.reduce_sum(vector(e, 0), &[0]), InstrId(99))),
        "instruction 99 was asked for, but the computation has 3"
    );
    assert_eq!(
        error_of(|e| {
            let x = vector(e, 0);
            let call = CustomCall { target: "secret".into(), ..CustomCall::default() };
            let y = e.emit(Op::CustomCall(Box::new(call)), &[x], Some(&Shape::array(DType::F32, [4])));
            (e.reduce_sum(y, &[0]), x)
        }),
        format!(
            "{}: custom-call has no gradient: what the custom call \"secret\" computes is known to its back end only",
            at("custom-call.2")
        )
    );
    assert_eq!(
        error_of(|e| {
            let (x, y) = (vector(e, 0), vector(e, 1));
            (e.reduce_sum(e.add(x, y), &[0]), e.add(POISON, x))
        }),
        "instruction 4294967295 was asked for, but the computation has 5"
    );
}

#[test]
fn an_earlier_failure_of_the_emitter_comes_back() {
    let e = emitter();
    let x = vector(&e, 0);
    let loss = e.reduce_sum(x, &[0]);
    e.add(x, loss);
    assert_eq!(gradients(&e, loss, &[x]).unwrap_err().kind(), &PassErrorKind::Emit);
}

#[test]
fn refusals_of_attributes_say_which() {
    let refusal = |build: &dyn Fn(&Emitter, InstrId) -> InstrId| {
        let text = error_of(|e| {
            let x = vector(e, 0);
            let y = build(e, x);
            let all: Vec<i64> = (0..e.dims(y).len() as i64).collect();
            (e.reduce_sum(y, &all), x)
        });
        text.split_once(" has no gradient: ").unwrap().1.to_string()
    };
    assert_eq!(
        refusal(&|e, x| {
            let to_apply = e.scalar_computation(BinaryOp::Maximum, DType::F32);
            let init = e.parameter(1, &Shape::scalar(DType::F32));
            e.emit(Op::ReduceWindow { window: vec![WindowDim::of_size(2)], to_apply }, &[x, init], None)
        }),
        "the initial value could win a window; start from the constant -inf (for a minimum, inf)"
    );
    assert_eq!(
        refusal(&|e, x| {
            let to_apply = e.scalar_computation(BinaryOp::Multiply, DType::F32);
            let one = e.scalar(DType::F32, 1.0);
            e.emit(Op::ReduceWindow { window: vec![WindowDim::of_size(2)], to_apply }, &[x, one], None)
        }),
        "only windowed sums, maxima and minima have rules"
    );
    assert_eq!(
        refusal(&|e, x| {
            let to_apply = e.scalar_computation(BinaryOp::Maximum, DType::F32);
            let dims = ScatterDims {
                inserted_window_dims: vec![0],
                scatter_dims_to_operand_dims: vec![0],
                index_vector_dim: 1,
                ..ScatterDims::default()
            };
            let indices = e.iota(DType::S32, &[4], 0);
            e.emit(Op::Scatter { dims, to_apply }, &[x, indices, x], None)
        }),
        "only a scatter that adds or replaces has a rule"
    );
    assert_eq!(
        refusal(&|e, x| {
            let tuple = e.tuple(&[x]);
            let shape = e.shape(tuple);
            let (condition, body) = e.with_module_mut(|module| {
                let condition = module.add_computation("condition");
                module.append(condition, Op::parameter(0), vec![], shape.clone(), Metadata::default());
                let stop = Op::Constant(Literal::scalar(false));
                module.append(condition, stop, vec![], Shape::scalar(DType::Pred), Metadata::default());
                let body = module.add_computation("body");
                module.append(body, Op::parameter(0), vec![], shape.clone(), Metadata::default());
                (condition, body)
            });
            e.get_tuple_element(e.emit(Op::While { condition, body }, &[tuple], None), 0)
        }),
        "its trip count is not known, and reverse mode keeps values of every trip; count an integer of its state from a \
         constant by a constant up to a constant, as scan and fori_loop do, or unroll it"
    );
}

#[test]
fn a_refusal_inside_a_callee_names_it_and_leaves_the_module_whole() {
    let e = emitter();
    let shape = Shape::array(DType::F32, [4]);
    let to_apply = e.with_module_mut(|module| {
        let callee = module.add_computation("callee");
        let x = module.append(callee, Op::parameter(0), vec![], shape.clone(), Metadata::default());
        let op = Op::Opaque(Box::new(Opaque { opcode: "fft".into(), called: vec![] }));
        module.append(callee, op, vec![x], shape.clone(), Metadata::default());
        callee
    });
    let x = vector(&e, 0);
    let loss = e.reduce_sum(e.emit(Op::Call { to_apply }, &[x], None), &[0]);
    let n_computations = e.with_module(|module| module.computations.len());
    let error = gradients(&e, loss, &[x]).unwrap_err().to_string();
    assert_eq!(
        error,
        "main/%call.4: call has no gradient: in what it calls, callee/%fft.2: fft has no gradient: the meaning \
         of opcode \"fft\" is not modelled"
    );
    assert_eq!(e.with_module(|module| module.computations.len()), n_computations);
}

#[test]
fn what_the_output_does_not_depend_on_gets_zeros_and_costs_nothing() {
    let e = emitter();
    let (x, unused) = (vector(&e, 0), vector(&e, 1));
    // A custom call that is not between x and the loss stops nothing.
    let call = CustomCall { target: "secret".into(), ..CustomCall::default() };
    e.emit(Op::CustomCall(Box::new(call)), &[x], Some(&Shape::array(DType::F32, [4])));
    let loss = e.reduce_sum(e.mul(x, e.unary(UnaryOp::Floor, unused)), &[0]);
    let grads = gradients(&e, loss, &[x, unused]).unwrap();
    e.with_module(|module| {
        let zeros = module.entry().instr(grads[1]);
        assert_eq!(zeros.op, Op::Broadcast { dimensions: vec![] });
        let Op::Constant(zero) = &module.entry().instr(zeros.operands[0]).op else { panic!("not a constant") };
        assert_eq!(zero.elements::<f32>(), Some(vec![0.0]));
    });
}

#[test]
fn a_gradient_arrives_in_f32_through_the_cast_and_sums_in_f32() {
    let e = emitter();
    let bias = vector(&e, 0);
    let data = e.parameter(1, &Shape::array(DType::BF16, [8, 4]));
    let sum = e.add(data, e.broadcast(e.convert(bias, DType::BF16), &[1], &[8, 4]));
    let loss = e.reduce_sum(e.convert(e.mul(sum, sum), DType::F32), &[0, 1]);
    let first = e.n_instructions();
    let grads = gradients(&e, loss, &[bias]).unwrap();
    assert_eq!(e.shape(grads[0]), Shape::array(DType::F32, [4]));
    let emitted = e.with_module(|module| {
        let new = &module.entry().instructions[first..];
        new.iter().map(|instr| format!("{} {}", instr.op.opcode(), instr.shape)).collect::<Vec<_>>()
    });
    // TensorFlow's BiasAddGrad: bf16 → f32, sum, → bf16; then the cast's own way back to f32.
    let end = ["convert f32[8,4]", "reduce f32[4]", "convert bf16[4]", "convert f32[4]"];
    assert!(emitted.ends_with(&end.map(String::from)), "{emitted:#?}");
}

#[test]
fn products_wider_than_their_operands_are_differentiated_in_the_wider_dtype() {
    let e = emitter();
    let x = e.parameter(0, &Shape::array(DType::BF16, [2, 6, 6, 3]));
    let kernel = e.parameter(1, &Shape::array(DType::BF16, [3, 3, 3, 4]));
    let weights = e.parameter(2, &Shape::array(DType::BF16, [4, 5]));
    let attributes = bf16scope::hlo::ops::Convolution {
        window: vec![WindowDim::of_size(3), WindowDim::of_size(3)],
        dims: grad_cases::nhwc(),
        feature_group_count: 1,
        batch_group_count: 1,
        precision: PrecisionConfig::default(),
    };
    let wide = Shape::array(DType::F32, []);
    let features = e.emit(Op::Convolution(Box::new(attributes)), &[x, kernel], Some(&wide));
    assert_eq!(e.shape(features), Shape::array(DType::F32, [2, 4, 4, 4]));
    let dims = DotDims { lhs_contracting: vec![3], rhs_contracting: vec![0], ..DotDims::default() };
    let narrow = e.convert(features, DType::BF16);
    let product = e.emit(Op::Dot { dims, precision: PrecisionConfig::default() }, &[narrow, weights], Some(&wide));
    let loss = e.reduce_sum(product, &[0, 1, 2, 3]);
    let grads = gradients(&e, loss, &[x, kernel, weights]).unwrap();
    for (gradient, variable) in grads.into_iter().zip([x, kernel, weights]) {
        assert_eq!(e.shape(gradient), e.shape(variable));
    }
    verify(&e.finish().unwrap()).unwrap();
}

#[test]
fn gradients_carry_the_primals_place() {
    let e = emitter();
    let place =
        Metadata { op_name: "net/square".into(), source_file: "net.rs".into(), source_line: 3, ..Metadata::default() };
    let x = vector(&e, 0);
    let outer = e.set_metadata(place.clone());
    let square = e.mul(x, x);
    e.set_metadata(outer.clone());
    let loss = e.reduce_sum(square, &[0]);
    let first = e.n_instructions();
    gradients(&e, loss, &[x]).unwrap();
    e.with_module(|module| {
        let multiply = module.entry().instructions[first..].iter().find(|instr| instr.op.opcode() == "multiply");
        let expected = Metadata { op_name: "gradient/net/square".into(), ..place };
        assert_eq!(multiply.unwrap().metadata, expected);
    });
    assert_eq!(e.set_metadata(Metadata::default()), outer, "the emitter's metadata is as it was");
}

#[test]
fn a_module_gets_its_gradients_behind_its_results() {
    let e = emitter();
    let (x, w) = (vector(&e, 0), vector(&e, 1));
    let loss = e.reduce_sum(e.mul(x, w), &[0]);
    e.tuple(&[x, loss]);
    let module = e.finish().unwrap();
    let (with_gradients, report) = run(&module, &Config { loss: 1, wrt: vec![1] }).unwrap();
    verify(&with_gradients).unwrap();
    let vector = Shape::array(DType::F32, [4]);
    let expected = Shape::Tuple(vec![vector.clone(), Shape::scalar(DType::F32), vector]);
    assert_eq!(*with_gradients.entry().result_shape(), expected);
    let n_instructions_after = with_gradients.entry().instructions.len();
    assert_eq!((&report.gradients[..], report.n_instructions_before), (&[(1, 2)][..], 6));
    assert_eq!(report.n_instructions_after, n_instructions_after);
    let errors = [
        (Config { loss: 2, wrt: vec![1] }, "result 2 was asked for, but the module has 2"),
        (Config { loss: 1, wrt: vec![2] }, "parameter 2 was asked for, but the entry has 2"),
        (Config { loss: 1, wrt: vec![-1] }, "parameter -1 was asked for, but the entry has 2"),
    ];
    for (config, expected) in errors {
        let error: PassError = run(&module, &config).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_result_that_is_no_tuple_becomes_the_first_of_one() {
    let e = emitter();
    let x = vector(&e, 0);
    e.reduce_sum(e.mul(x, x), &[0]);
    let (module, report) = run(&e.finish().unwrap(), &Config { loss: 0, wrt: vec![0] }).unwrap();
    verify(&module).unwrap();
    assert_eq!(report.gradients, [(0, 1)]);
}

/// One computation is called twice, and of what each call gives another element is used: each call has a reverse of its own.
#[test]
fn two_calls_whose_results_are_used_differently_have_two_gradients() {
    let e = emitter();
    let shape = Shape::array(DType::F32, [4]);
    let to_apply = e.with_module_mut(|module| {
        let callee = module.add_computation("callee");
        let x = module.append(callee, Op::parameter(0), vec![], shape.clone(), Metadata::default());
        let twice = module.append(callee, Op::Binary(BinaryOp::Add), vec![x, x], shape.clone(), Metadata::default());
        let thrice =
            module.append(callee, Op::Binary(BinaryOp::Add), vec![twice, x], shape.clone(), Metadata::default());
        module.push(callee, Op::Tuple, &[twice, thrice], None, Metadata::default()).unwrap();
        callee
    });
    let (x, y) = (vector(&e, 0), vector(&e, 1));
    let used = |argument, index| e.get_tuple_element(e.emit(Op::Call { to_apply }, &[argument], None), index);
    let loss = e.reduce_sum(e.add(used(x, 0), used(y, 1)), &[0]);
    let gradients = gradients(&e, loss, &[x, y]).unwrap();
    e.tuple(&gradients);
    let module = e.finish().unwrap();
    verify(&module).unwrap();
    let argument = Literal::from_elements([4], &[1f32, 2.0, 3.0, 4.0]);
    let results = runner::run_bytes(
        &encode::to_bytes(&module).unwrap(),
        &CompileOptions::default(),
        &[argument.clone(), argument],
    );
    assert_eq!(results.iter().map(runner::f32s).collect::<Vec<_>>(), [[2f32; 4], [3.0; 4]]);
}

#[test]
fn what_aliased_a_result_aliases_it_still() {
    let aliases = |is_tuple: bool, output_index: Vec<i64>| {
        let e = emitter();
        let x = e.parameter(0, &Shape::scalar(DType::F32));
        let loss = e.mul(x, x);
        if is_tuple {
            e.tuple(&[x, loss]);
        }
        let mut module = e.finish().unwrap();
        let kind = AliasKind::May;
        module.input_output_alias = vec![Alias { output_index, parameter_number: 0, parameter_index: vec![], kind }];
        verify(&module).unwrap();
        let (module, _) = run(&module, &Config { loss: usize::from(is_tuple), wrt: vec![0] }).unwrap();
        verify(&module).unwrap();
        module.input_output_alias.into_iter().map(|alias| alias.output_index).collect::<Vec<_>>()
    };
    assert_eq!(aliases(true, vec![1]), [vec![1]]);
    assert_eq!(aliases(false, vec![]), [vec![0]]);
}
