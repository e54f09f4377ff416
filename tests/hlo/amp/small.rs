//! Small modules, each for one rule.

use bf16scope::hlo::ops::{
    BinaryOp, Comparison, Conditional, CustomCall, DotDims, PadDim, PrecisionConfig, SliceDim, UnaryOp,
};
use bf16scope::hlo::{CompId, DType, Emitter, InstrId, Literal, Metadata, Module, Op, Shape, verify};
use bf16scope::passes::amp::{self, Accumulate, Boundary, LowDType, LoweringReport, Policy, Reach};
use expect_test::{Expect, expect};

/// A module's computations, an instruction a line.
fn show(module: &Module) -> String {
    let mut text = String::new();
    for computation in &module.computations {
        text += &format!("{}\n", computation.name);
        for (idx, instr) in computation.instructions.iter().enumerate() {
            let root = if computation.root.idx() == idx { "ROOT " } else { "" };
            let operands: Vec<&str> = instr.operands.iter().map(|&id| &computation.instr(id).name[..]).collect();
            let called: Vec<&str> = instr.op.called().into_iter().map(|id| &module.comp(id).name[..]).collect();
            let called = if called.is_empty() { String::new() } else { format!(" to {}", called.join(", ")) };
            let shape = instr.shape.without_layout();
            text +=
                &format!("  {root}{} = {shape} {}({}){called}\n", instr.name, instr.op.opcode(), operands.join(", "));
        }
    }
    text
}

/// Emits a module, lowers it, and compares it whole.
fn check(policy: &Policy, emit: impl Fn(&Emitter), expected: Expect) -> LoweringReport {
    let module = build(emit);
    let (lowered, report) = amp::run(&module, policy).unwrap_or_else(|error| panic!("{error}"));
    expected.assert_eq(&show(&lowered));
    report
}

fn build(emit: impl Fn(&Emitter)) -> Module {
    let e = Emitter::new(Module::new("main"), CompId(0));
    emit(&e);
    e.finish().unwrap_or_else(|error| panic!("{error}"))
}

fn parameter(e: &Emitter, number: i64, dims: &[i64]) -> InstrId {
    e.parameter(number, &Shape::array(DType::F32, dims))
}

/// The product of two matrices.
fn dot(e: &Emitter, lhs: InstrId, rhs: InstrId) -> InstrId {
    let dims = DotDims { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotDims::default() };
    e.emit(Op::Dot { dims, precision: PrecisionConfig::default() }, &[lhs, rhs], None)
}

/// A computation `x -> max(x, 0)` on `[4,4]`.
fn relu(e: &Emitter) -> CompId {
    e.with_module_mut(|module| {
        let comp = module.add_computation("relu");
        let shape = Shape::array(DType::F32, [4, 4]);
        let x = module.push(comp, Op::parameter(0), &[], Some(&shape), Metadata::default()).unwrap();
        let zero = module.push(comp, Op::Constant(Literal::scalar(0f32)), &[], None, Metadata::default()).unwrap();
        let broadcast = Op::Broadcast { dimensions: vec![] };
        let zeros = module.push(comp, broadcast, &[zero], Some(&shape), Metadata::default()).unwrap();
        module.push(comp, Op::Binary(BinaryOp::Maximum), &[x, zeros], None, Metadata::default()).unwrap();
        comp
    })
}

#[test]
fn a_body_with_callers_of_both_kinds_is_copied() {
    let emit = |e: &Emitter| {
        let (x, w) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]));
        let to_apply = relu(e);
        let narrow = e.emit(Op::Call { to_apply }, &[dot(e, x, w)], None);
        let wide = e.emit(Op::Call { to_apply }, &[e.unary(UnaryOp::Exp, x)], None);
        e.tuple(&[dot(e, narrow, w), wide]);
    };
    check(
        &Policy::default(),
        emit,
        expect![[r#"
            main
              parameter.1 = f32[4,4] parameter()
              parameter.2 = f32[4,4] parameter()
              parameter.1.bf16 = bf16[4,4] convert(parameter.1)
              parameter.2.bf16 = bf16[4,4] convert(parameter.2)
              dot.7 = bf16[4,4] dot(parameter.1.bf16, parameter.2.bf16)
              call.8 = bf16[4,4] call(dot.7) to relu.1
              exponential.9 = f32[4,4] exponential(parameter.1)
              call.10 = f32[4,4] call(exponential.9) to relu
              dot.11 = f32[4,4] dot(call.8, parameter.2.bf16)
              ROOT tuple.12 = (f32[4,4], f32[4,4]) tuple(dot.11, call.10)
            relu
              parameter.3 = f32[4,4] parameter()
              constant.4 = f32[] constant()
              broadcast.5 = f32[4,4] broadcast(constant.4)
              ROOT maximum.6 = f32[4,4] maximum(parameter.3, broadcast.5)
            relu.1
              parameter.3.1 = bf16[4,4] parameter()
              constant.4.1 = bf16[] constant()
              broadcast.5.1 = bf16[4,4] broadcast(constant.4.1)
              ROOT maximum.6.1 = bf16[4,4] maximum(parameter.3.1, broadcast.5.1)
        "#]],
    );
}

#[test]
fn a_value_is_cast_once_and_small_things_before_they_grow() {
    let emit = |e: &Emitter| {
        let (x, w, bias) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]), parameter(e, 2, &[4]));
        let biased = e.add(dot(e, x, w), e.broadcast(bias, &[1], &[4, 4]));
        let scaled = e.mul_scalar(biased, 0.1);
        // x and w are read twice; a part of a large array is cast, not the whole.
        let large = parameter(e, 3, &[64, 4]);
        let part =
            e.slice(large, &[SliceDim { start: 0, limit: 4, stride: 1 }, SliceDim { start: 0, limit: 4, stride: 1 }]);
        let padded = e.pad(dot(e, scaled, w), e.scalar(DType::F32, 0.0), &[PadDim { low: 0, high: 0, interior: 0 }; 2]);
        e.tuple(&[dot(e, padded, x), dot(e, part, x)]);
    };
    check(
        &Policy::default(),
        emit,
        expect![[r#"
            main
              parameter.1 = f32[4,4] parameter()
              parameter.2 = f32[4,4] parameter()
              parameter.3 = f32[4] parameter()
              parameter.1.bf16 = bf16[4,4] convert(parameter.1)
              parameter.2.bf16 = bf16[4,4] convert(parameter.2)
              dot.4 = bf16[4,4] dot(parameter.1.bf16, parameter.2.bf16)
              parameter.3.bf16 = bf16[4] convert(parameter.3)
              broadcast.5 = bf16[4,4] broadcast(parameter.3.bf16)
              add.6 = bf16[4,4] add(dot.4, broadcast.5)
              constant.7 = bf16[] constant()
              broadcast.8 = bf16[4,4] broadcast(constant.7)
              multiply.9 = bf16[4,4] multiply(add.6, broadcast.8)
              parameter.10 = f32[64,4] parameter()
              slice.11 = f32[4,4] slice(parameter.10)
              dot.12 = bf16[4,4] dot(multiply.9, parameter.2.bf16)
              constant.13 = bf16[] constant()
              pad.14 = bf16[4,4] pad(dot.12, constant.13)
              dot.15 = f32[4,4] dot(pad.14, parameter.1.bf16)
              slice.11.bf16 = bf16[4,4] convert(slice.11)
              dot.16 = f32[4,4] dot(slice.11.bf16, parameter.1.bf16)
              ROOT tuple.17 = (f32[4,4], f32[4,4]) tuple(dot.15, dot.16)
        "#]],
    );
}

/// A norm is f32 from the mean on, and rounded where it is added to a stored array; so is a value that only a sum
/// reads.
#[test]
fn what_need_not_be_stored_is_not_rounded() {
    let emit = |e: &Emitter| {
        let (x, w, scale, bias) =
            (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]), parameter(e, 2, &[4]), parameter(e, 3, &[4]));
        let rows = |x: InstrId| e.broadcast(x, &[0], &[4, 4]);
        let columns = |x: InstrId| e.broadcast(x, &[1], &[4, 4]);
        let stored = dot(e, x, w);
        let mean = e.mul_scalar(e.reduce_sum(stored, &[1]), 0.25);
        // Both rows read the last op of the norm: one to add it, one to continue it.
        let norm = e.add(e.mul(e.sub(stored, rows(mean)), columns(scale)), columns(bias));
        let added = e.add(norm, stored);
        let summed = e.mul(added, stored);
        let product = e.mul(norm, rows(e.reduce_sum(summed, &[1])));
        let weighed = e.mul(product, columns(scale));
        e.tuple(&[dot(e, weighed, w), dot(e, added, w)]);
    };
    let dtypes = |policy: &Policy| {
        let (_, report) = amp::run(&build(emit), policy).unwrap_or_else(|error| panic!("{error}"));
        let infer = report.decisions.iter().filter(|decision| decision.class == "infer");
        infer.map(|decision| format!("{} {}", decision.opcode, decision.new)).collect::<Vec<String>>()
    };
    expect![[r#"
        multiply f32
        subtract f32
        multiply f32
        add f32
        add bf16
        multiply f32
        multiply f32
        multiply f32"#]]
    .assert_eq(&dtypes(&Policy::default()).join("\n"));
    let lowered = dtypes(&Policy { unstored: Boundary::Lower, ..Policy::default() });
    assert!(lowered.iter().all(|op| op.ends_with("bf16")), "{lowered:?}");
}

#[test]
fn an_f32_value_that_is_stored_is_rounded_once_by_its_maker() {
    let emit = |e: &Emitter| {
        let (x, w) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]));
        let twos = e.broadcast(e.scalar(DType::F32, 2.0), &[], &[4, 4]);
        let stored = dot(e, x, w);
        // Nearly a sigmoid, which would be lowered as a whole: a product, an op between products and a sum read it.
        let sum = e.add(e.unary(UnaryOp::Exp, e.unary(UnaryOp::Negate, stored)), twos);
        let gate = e.div(twos, sum);
        let weighed = e.mul(gate, stored);
        e.tuple(&[dot(e, weighed, w), dot(e, e.transpose(gate, &[1, 0]), w), e.reduce_sum(gate, &[1])]);
    };
    check(
        &Policy::default(),
        emit,
        expect![[r#"
            main
              parameter.1 = f32[4,4] parameter()
              parameter.2 = f32[4,4] parameter()
              constant.3 = f32[] constant()
              broadcast.4 = f32[4,4] broadcast(constant.3)
              parameter.1.bf16 = bf16[4,4] convert(parameter.1)
              parameter.2.bf16 = bf16[4,4] convert(parameter.2)
              dot.5 = bf16[4,4] dot(parameter.1.bf16, parameter.2.bf16)
              dot.5.f32 = f32[4,4] convert(dot.5)
              negate.6 = f32[4,4] negate(dot.5.f32)
              exponential.7 = f32[4,4] exponential(negate.6)
              add.8 = f32[4,4] add(exponential.7, broadcast.4)
              divide.9 = f32[4,4] divide(broadcast.4, add.8)
              divide.9.bf16 = bf16[4,4] convert(divide.9)
              multiply.10 = bf16[4,4] multiply(divide.9.bf16, dot.5)
              dot.11 = f32[4,4] dot(multiply.10, parameter.2.bf16)
              transpose.12 = bf16[4,4] transpose(divide.9.bf16)
              dot.13 = f32[4,4] dot(transpose.12, parameter.2.bf16)
              constant.14 = f32[] constant()
              divide.9.f32 = f32[4,4] convert(divide.9.bf16)
              reduce.18 = f32[4] reduce(divide.9.f32, constant.14) to add_f32
              ROOT tuple.19 = (f32[4,4], f32[4,4], f32[4]) tuple(dot.11, dot.13, reduce.18)
            add_f32
              parameter.15 = f32[] parameter()
              parameter.16 = f32[] parameter()
              ROOT add.17 = f32[] add(parameter.15, parameter.16)
        "#]],
    );
}

#[test]
fn roundings_the_program_asks_for_are_kept() {
    let emit = |e: &Emitter| {
        let (x, w) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]));
        let rounded = e.convert(e.convert(x, DType::BF16), DType::F32);
        let reduced = e.emit(Op::ReducePrecision { exponent_bits: 5, mantissa_bits: 3 }, &[x], None);
        let product = dot(e, rounded, e.convert(e.convert(w, DType::BF16), DType::F32));
        e.tuple(&[product, dot(e, reduced, w), e.unary(UnaryOp::Exp, rounded)]);
    };
    check(
        &Policy::default(),
        emit,
        expect![[r#"
            main
              parameter.1 = f32[4,4] parameter()
              parameter.2 = f32[4,4] parameter()
              convert.3 = bf16[4,4] convert(parameter.1)
              reduce-precision.5 = f32[4,4] reduce-precision(parameter.1)
              convert.6 = bf16[4,4] convert(parameter.2)
              dot.8 = f32[4,4] dot(convert.3, convert.6)
              reduce-precision.5.bf16 = bf16[4,4] convert(reduce-precision.5)
              dot.9 = f32[4,4] dot(reduce-precision.5.bf16, convert.6)
              convert.4.f32 = f32[4,4] convert(convert.3)
              exponential.10 = f32[4,4] exponential(convert.4.f32)
              ROOT tuple.11 = (f32[4,4], f32[4,4], f32[4,4]) tuple(dot.8, dot.9, exponential.10)
        "#]],
    );
}

#[test]
fn loops_and_branches_keep_what_they_carry() {
    let emit = |e: &Emitter| {
        let array = Shape::array(DType::F32, [4, 4]);
        let state = Shape::Tuple(vec![Shape::scalar(DType::S32), array.clone()]);
        let (condition, body, branch) = e.with_module_mut(|module| {
            let none = Metadata::default;
            let condition = module.add_computation("condition");
            let s = module.push(condition, Op::parameter(0), &[], Some(&state), none()).unwrap();
            let i = module.push(condition, Op::GetTupleElement { index: 0 }, &[s], None, none()).unwrap();
            let n = module.push(condition, Op::Constant(Literal::scalar(3i32)), &[], None, none()).unwrap();
            let compare = Op::Compare { direction: Comparison::Lt, kind: None };
            module.push(condition, compare, &[i, n], None, none()).unwrap();
            let body = module.add_computation("body");
            let s = module.push(body, Op::parameter(0), &[], Some(&state), none()).unwrap();
            let i = module.push(body, Op::GetTupleElement { index: 0 }, &[s], None, none()).unwrap();
            let x = module.push(body, Op::GetTupleElement { index: 1 }, &[s], None, none()).unwrap();
            let one = module.push(body, Op::Constant(Literal::scalar(1i32)), &[], None, none()).unwrap();
            let next = module.push(body, Op::Binary(BinaryOp::Add), &[i, one], None, none()).unwrap();
            let dims = DotDims { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotDims::default() };
            let op = Op::Dot { dims, precision: PrecisionConfig::default() };
            let y = module.push(body, op.clone(), &[x, x], None, none()).unwrap();
            let y = module.push(body, Op::Binary(BinaryOp::Add), &[x, y], None, none()).unwrap();
            module.push(body, Op::Tuple, &[next, y], None, none()).unwrap();
            let branch = module.add_computation("branch");
            let x = module.push(branch, Op::parameter(0), &[], Some(&array), none()).unwrap();
            module.push(branch, op, &[x, x], None, none()).unwrap();
            (condition, body, branch)
        });
        let (x, which) = (parameter(e, 0, &[4, 4]), e.parameter(1, &Shape::scalar(DType::Pred)));
        let start = e.tuple(&[e.scalar(DType::S32, 0.0), dot(e, x, x)]);
        let end = e.emit(Op::While { condition, body }, &[start], None);
        let last = e.get_tuple_element(end, 1);
        let branches = vec![branch, branch];
        e.emit(Op::Conditional(Conditional { branches }), &[which, dot(e, last, x), x], None);
    };
    check(
        &Policy::default(),
        emit,
        expect![[r#"
            main
              parameter.15 = f32[4,4] parameter()
              parameter.16 = pred[] parameter()
              constant.17 = s32[] constant()
              parameter.15.bf16 = bf16[4,4] convert(parameter.15)
              dot.18 = bf16[4,4] dot(parameter.15.bf16, parameter.15.bf16)
              dot.18.f32 = f32[4,4] convert(dot.18)
              tuple.19 = (s32[], f32[4,4]) tuple(constant.17, dot.18.f32)
              while.20 = (s32[], f32[4,4]) while(tuple.19) to condition, body
              get-tuple-element.21 = f32[4,4] get-tuple-element(while.20)
              get-tuple-element.21.bf16 = bf16[4,4] convert(get-tuple-element.21)
              dot.22 = bf16[4,4] dot(get-tuple-element.21.bf16, parameter.15.bf16)
              ROOT conditional.23 = f32[4,4] conditional(parameter.16, dot.22, parameter.15) to branch, branch.1
            condition
              parameter.1 = (s32[], f32[4,4]) parameter()
              get-tuple-element.2 = s32[] get-tuple-element(parameter.1)
              constant.3 = s32[] constant()
              ROOT compare.4 = pred[] compare(get-tuple-element.2, constant.3)
            body
              parameter.5 = (s32[], f32[4,4]) parameter()
              get-tuple-element.6 = s32[] get-tuple-element(parameter.5)
              get-tuple-element.7 = f32[4,4] get-tuple-element(parameter.5)
              constant.8 = s32[] constant()
              add.9 = s32[] add(get-tuple-element.6, constant.8)
              get-tuple-element.7.bf16 = bf16[4,4] convert(get-tuple-element.7)
              dot.10 = bf16[4,4] dot(get-tuple-element.7.bf16, get-tuple-element.7.bf16)
              dot.10.f32 = f32[4,4] convert(dot.10)
              add.11 = f32[4,4] add(get-tuple-element.7, dot.10.f32)
              ROOT tuple.12 = (s32[], f32[4,4]) tuple(add.9, add.11)
            branch
              parameter.13 = bf16[4,4] parameter()
              dot.14 = bf16[4,4] dot(parameter.13, parameter.13)
              ROOT dot.14.f32 = f32[4,4] convert(dot.14)
            branch.1
              parameter.13.1 = f32[4,4] parameter()
              parameter.13.bf16 = bf16[4,4] convert(parameter.13.1)
              dot.14.1 = bf16[4,4] dot(parameter.13.bf16, parameter.13.bf16)
              ROOT dot.14.f32.1 = f32[4,4] convert(dot.14.1)
        "#]],
    );
}

/// Two steps of gradient descent in one module: the first update lies between dots, and is f32 all the same.
#[test]
fn updates_between_steps_stay_f32() {
    let module = build(|e| {
        let (x, w) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]));
        let step = |w: InstrId| e.sub(w, e.mul_scalar(dot(e, x, dot(e, x, w)), 0.01));
        step(step(w));
    });
    let (_, report) = amp::run(&module, &Policy::default()).unwrap();
    let total = |opcode: &str| report.totals[opcode];
    assert_eq!((total("dot").lowered, total("dot").kept), (4, 0));
    assert_eq!((total("subtract").lowered, total("multiply").lowered), (0, 0));
}

#[test]
fn products_give_their_accumulator_where_f32_is_read() {
    let emit = |e: &Emitter| {
        let (x, w) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]));
        let first = dot(e, x, w);
        let last = dot(e, e.unary(UnaryOp::Tanh, first), w);
        e.unary(UnaryOp::Exp, last);
    };
    check(
        &Policy { accumulate: Accumulate::F32, ..Policy::default() },
        emit,
        expect![[r#"
        main
          parameter.1 = f32[4,4] parameter()
          parameter.2 = f32[4,4] parameter()
          parameter.1.bf16 = bf16[4,4] convert(parameter.1)
          parameter.2.bf16 = bf16[4,4] convert(parameter.2)
          dot.3 = bf16[4,4] dot(parameter.1.bf16, parameter.2.bf16)
          tanh.4 = bf16[4,4] tanh(dot.3)
          dot.5 = f32[4,4] dot(tanh.4, parameter.2.bf16)
          ROOT exponential.6 = f32[4,4] exponential(dot.5)
    "#]],
    );
}

/// As JAX writes the gradient of `einsum(…, preferred_element_type=f32)` of bf16 arrays.
#[test]
fn of_a_product_of_two_floats_the_f32_is_rounded() {
    let module = build(|e| {
        let (x, w) = (parameter(e, 0, &[4, 4]), e.parameter(1, &Shape::array(DType::BF16, [4, 4])));
        dot(e, dot(e, x, w), e.unary(UnaryOp::Exp, x));
    });
    let (lowered, report) = amp::run(&module, &Policy::default()).unwrap();
    assert_eq!((report.totals["dot"].lowered, report.totals["dot"].kept), (2, 0));
    expect![[r#"
        main
          parameter.1 = f32[4,4] parameter()
          parameter.2 = bf16[4,4] parameter()
          parameter.1.bf16 = bf16[4,4] convert(parameter.1)
          dot.3 = bf16[4,4] dot(parameter.1.bf16, parameter.2)
          exponential.4 = f32[4,4] exponential(parameter.1)
          exponential.4.bf16 = bf16[4,4] convert(exponential.4)
          ROOT dot.5 = f32[4,4] dot(dot.3, exponential.4.bf16)
    "#]]
    .assert_eq(&show(&lowered));
    let f16 = Policy { dtype: LowDType::F16, ..Policy::default() };
    let (lowered, report) = amp::run(&module, &f16).unwrap();
    assert_eq!((report.totals["dot"].lowered, report.totals["dot"].kept), (1, 1));
    verify(&lowered).unwrap();
}

#[test]
fn a_product_with_integers_is_left() {
    let module = build(|e| {
        let (x, w) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]));
        let counted = e.emit(Op::Iota { dimension: 0 }, &[], Some(&Shape::array(DType::S32, [4, 4])));
        dot(e, dot(e, x, w), counted);
    });
    let policy = Policy { reach: Reach::All, ..Policy::default() };
    let (lowered, report) = amp::run(&module, &policy).unwrap();
    assert_eq!((report.totals["dot"].lowered, report.totals["dot"].kept), (1, 1));
    // bf16 does not represent 257, and an iota that goes further would not be exact either.
    assert!(
        !show(&lowered).contains("s32[4,4] convert") && show(&lowered).contains("f32[4,4] dot("),
        "{}",
        show(&lowered)
    );
}

#[test]
fn boundaries_change_only_where_the_policy_says_so() {
    let emit = |e: &Emitter| {
        let (x, w) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]));
        e.tuple(&[dot(e, x, w), e.unary(UnaryOp::Exp, x)]);
    };
    let policy = Policy { parameters: Boundary::Lower, results: Boundary::Lower, ..Policy::default() };
    check(
        &policy,
        emit,
        expect![[r#"
        main
          parameter.1 = bf16[4,4] parameter()
          parameter.2 = bf16[4,4] parameter()
          dot.3 = bf16[4,4] dot(parameter.1, parameter.2)
          parameter.1.f32 = f32[4,4] convert(parameter.1)
          exponential.4 = f32[4,4] exponential(parameter.1.f32)
          exponential.4.bf16 = bf16[4,4] convert(exponential.4)
          ROOT tuple.5 = (bf16[4,4], bf16[4,4]) tuple(dot.3, exponential.4.bf16)
    "#]],
    );
}

#[test]
fn names_and_sizes_keep_things_f32() {
    let module = build(|e| {
        let (x, w) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]));
        e.set_metadata(Metadata { op_name: "net/head/dot".into(), ..Metadata::default() });
        let head = dot(e, x, w);
        e.set_metadata(Metadata::default());
        e.tuple(&[head, dot(e, x, w)]);
    });
    let policy = Policy { keep: vec!["*/head/*".into()], ..Policy::default() };
    let (_, report) = amp::run(&module, &policy).unwrap();
    assert_eq!((report.totals["dot"].lowered, report.totals["dot"].kept), (1, 1));
    assert_eq!(report.explain("%dot.3")[0].rule, "the policy keeps names like `*/head/*`");
    let (lowered, report) = amp::run(&module, &Policy { min_elements: 17, ..Policy::default() }).unwrap();
    assert_eq!(lowered, module);
    assert_eq!(report.explain("dot.4")[0].rule, "all its arrays are smaller than the policy's min_elements");
}

/// f32's least number stands for "minus infinity, but no NaN" in masks; rounded to nearest it would become -inf.
#[test]
fn masks_stay_finite() {
    for (dtype, least) in [(LowDType::Bf16, 0xff7fu16), (LowDType::F16, 0xfbff)] {
        let module = build(|e| {
            let (x, mask) = (parameter(e, 0, &[4, 4]), e.parameter(1, &Shape::array(DType::Pred, [4, 4])));
            let masked = e.select(mask, dot(e, x, x), e.full(DType::F32, &[4, 4], f64::from(f32::MIN)));
            dot(e, masked, x);
        });
        let (lowered, _) = amp::run(&module, &Policy { dtype, ..Policy::default() }).unwrap();
        let constant = lowered.entry().instructions.iter().find_map(|instr| match &instr.op {
            Op::Constant(Literal::Array { bytes, .. }) => Some(bytes.clone()),
            _ => None,
        });
        assert_eq!(constant, Some(least.to_le_bytes().to_vec()));
    }
}

/// A loss is scaled by 65,536, which f16 has as infinity, and its mean divides that before any product is reached. Rounding one
/// number saves no memory, so none is rounded that is computed of no product, though the policy reaches everything.
#[test]
fn a_scale_of_a_loss_is_divided_in_f32() {
    let module = build(|e| {
        let (x, w, scale) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]), parameter(e, 2, &[]));
        let share = e.binary(BinaryOp::Divide, scale, e.scalar(DType::F32, 4.0));
        dot(e, dot(e, x, w), e.broadcast(share, &[], &[4, 4]));
    });
    for preset in ["mixed_float16", "mixed_bfloat16", "O2"] {
        let (lowered, report) = amp::run(&module, &Policy::preset(preset).unwrap()).unwrap();
        verify(&lowered).unwrap();
        assert_eq!((report.totals["dot"].lowered, report.totals["divide"].kept), (2, 1), "{preset}");
        assert!(show(&lowered).contains("= f32[] divide("), "{preset}: {}", show(&lowered));
    }
}

/// A large constant that only narrow ops read is stored narrow; one that is also read in f32 is stored once, and cast.
#[test]
fn large_constants_are_stored_in_the_cheaper_dtype() {
    let stored = |is_read_wide: bool| {
        let module = build(|e| {
            let x = parameter(e, 0, &[4, 32]);
            let elements: Vec<f32> = (0..1024).map(|i| (i as f32).sin()).collect();
            let constant = e.constant(Literal::from_elements([32, 32], &elements));
            let product = dot(e, x, constant);
            if is_read_wide {
                e.tuple(&[product, e.unary(UnaryOp::Exp, constant)]);
            }
        });
        let (lowered, _) = amp::run(&module, &Policy::default()).unwrap();
        let constants = lowered.entry().instructions.iter().filter(|instr| matches!(instr.op, Op::Constant(_)));
        constants.map(|instr| instr.shape.to_string()).collect::<Vec<String>>()
    };
    assert_eq!(stored(false), ["bf16[32,32]"]);
    assert_eq!(stored(true), ["f32[32,32]"]);
}

/// An unknown op gets its original dtypes, and the operand of a barrier is cast behind it.
#[test]
fn unknown_ops_and_barriers_are_respected() {
    let emit = |e: &Emitter| {
        let (x, w) = (parameter(e, 0, &[4, 4]), parameter(e, 1, &[4, 4]));
        let first = dot(e, x, w);
        let held = e.emit(Op::OptimizationBarrier, &[e.tuple(&[first, w])], None);
        let second = dot(e, e.get_tuple_element(held, 0), e.get_tuple_element(held, 1));
        let call = CustomCall { target: "f".into(), ..CustomCall::default() };
        let array = Shape::array(DType::F32, [4, 4]);
        let result = Shape::Tuple(vec![array.clone(), array]);
        let called = e.emit(Op::CustomCall(Box::new(call)), &[second], Some(&result));
        dot(e, e.get_tuple_element(called, 1), w);
    };
    check(
        &Policy::default(),
        emit,
        expect![[r#"
            main
              parameter.1 = f32[4,4] parameter()
              parameter.2 = f32[4,4] parameter()
              parameter.1.bf16 = bf16[4,4] convert(parameter.1)
              parameter.2.bf16 = bf16[4,4] convert(parameter.2)
              dot.3 = bf16[4,4] dot(parameter.1.bf16, parameter.2.bf16)
              tuple.4 = (bf16[4,4], f32[4,4]) tuple(dot.3, parameter.2)
              opt-barrier.5 = (bf16[4,4], f32[4,4]) opt-barrier(tuple.4)
              get-tuple-element.6 = bf16[4,4] get-tuple-element(opt-barrier.5)
              get-tuple-element.7 = f32[4,4] get-tuple-element(opt-barrier.5)
              get-tuple-element.7.bf16 = bf16[4,4] convert(get-tuple-element.7)
              dot.8 = f32[4,4] dot(get-tuple-element.6, get-tuple-element.7.bf16)
              custom-call.9 = (f32[4,4], f32[4,4]) custom-call(dot.8)
              get-tuple-element.10 = f32[4,4] get-tuple-element(custom-call.9)
              get-tuple-element.10.bf16 = bf16[4,4] convert(get-tuple-element.10)
              ROOT dot.11 = f32[4,4] dot(get-tuple-element.10.bf16, parameter.2.bf16)
        "#]],
    );
}

/// Tuples of constants, nested tuples through calls, and a tuple of another's elements as the result.
#[test]
fn tuples_are_taken_apart_where_types_must_be_kept() {
    let module = build(|e| {
        let array = Shape::array(DType::F32, [4, 4]);
        let pair = e.with_module_mut(|module| {
            let comp = module.add_computation("pair");
            let x = module.push(comp, Op::parameter(0), &[], Some(&array), Metadata::default()).unwrap();
            let inner = module.push(comp, Op::Tuple, &[x, x], None, Metadata::default()).unwrap();
            module.push(comp, Op::Tuple, &[inner, x], None, Metadata::default()).unwrap();
            comp
        });
        let x = parameter(e, 0, &[4, 4]);
        let ones = Literal::from_elements([4, 4], &[1f32; 16]);
        let constants = e.constant(Literal::Tuple(vec![ones.clone(), Literal::scalar(1i32)]));
        let product = dot(e, x, e.get_tuple_element(constants, 0));
        let called = e.emit(Op::Call { to_apply: pair }, &[product], None);
        let inner = e.get_tuple_element(called, 0);
        dot(e, e.get_tuple_element(inner, 1), x);
        // The call's own result, whose types must stay though its elements are narrow, and a part of it.
        let held = e.emit(Op::OptimizationBarrier, &[called], None);
        e.get_tuple_element(held, 0);
    });
    let (lowered, _) = amp::run(&module, &Policy::default()).unwrap();
    assert!(lowered.entry().result_shape().is_compatible(module.entry().result_shape()));
    let x: Vec<u8> = (0..16).flat_map(|i| (i as f32 / 4.0).to_le_bytes()).collect();
    // A quarter of small numbers and their sums are bf16 numbers: nothing rounds.
    assert_eq!(
        crate::amp::oracle::run(&lowered, std::slice::from_ref(&x)),
        crate::amp::oracle::run(&module, std::slice::from_ref(&x))
    );
}

/// Each of 40 computations calls the one before twice: 2^40 call sites.
#[test]
fn many_call_sites_are_not_all_followed() {
    let module = build(|e| {
        let mut callee = relu(e);
        for _ in 0..40 {
            callee = e.with_module_mut(|module| {
                let comp = module.add_computation("twice");
                let shape = Shape::array(DType::F32, [4, 4]);
                let mut x = module.push(comp, Op::parameter(0), &[], Some(&shape), Metadata::default()).unwrap();
                for _ in 0..2 {
                    x = module.push(comp, Op::Call { to_apply: callee }, &[x], None, Metadata::default()).unwrap();
                }
                comp
            });
        }
        let x = parameter(e, 0, &[4, 4]);
        dot(e, e.emit(Op::Call { to_apply: callee }, &[x], None), x);
    });
    let (lowered, _) = amp::run(&module, &Policy::default()).unwrap();
    verify(&lowered).unwrap();
}

#[test]
fn broken_modules_and_policies_are_errors() {
    let mut module = build(|e| {
        parameter(e, 0, &[4, 4]);
    });
    let policy = Policy { allow: vec!["dots".into()], ..Policy::default() };
    assert_eq!(
        amp::run(&module, &policy).unwrap_err().to_string(),
        "list `allow` names `dots`, expected an op that can be lowered; did you mean `dot`?"
    );
    module.computations[0].root = InstrId(7);
    let error = amp::run(&module, &Policy::default()).unwrap_err().to_string();
    assert!(error.starts_with("the module does not verify, so it was not lowered:\n"), "{error}");
}

/// A branch that only has effects returns an empty tuple: it is a node without a value, which no op reads. It stands
/// last, so there is no value of another node behind it.
#[test]
fn a_conditional_that_gives_nothing_stays() {
    let source = "HloModule m\n\nthen {\n  a = f32[4,4] parameter(0)\n  ROOT b = () tuple()\n}\n\nelse {\n  c = f32[4,4] \
                  parameter(0)\n  ROOT d = () tuple()\n}\n\nENTRY main {\n  x = f32[4,4] parameter(0)\n  y = f32[4,4] dot(x, x), \
                  lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  p = pred[] constant(true)\n  ROOT r = f32[4,4] dot(y, y), \
                  lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  z = () conditional(p, y, y), true_computation=then, \
                  false_computation=else\n}\n";
    let module = bf16scope::hlo::text::parse(source, "m.hlo").unwrap_or_else(|error| panic!("{error}"));
    let (lowered, _) = amp::run(&module, &Policy::default()).unwrap_or_else(|error| panic!("{error}"));
    verify(&lowered).unwrap_or_else(|errors| panic!("{errors}"));
    let text = show(&lowered);
    assert!(text.contains("conditional(") && text.contains("= bf16[4,4] dot("), "{text}");
}
