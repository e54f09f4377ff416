//! Broken modules, one rule each, with the verifier's messages.

use crate::verify::build::*;
use bf16scope::hlo::ops::*;
use bf16scope::hlo::*;
use expect_test::{Expect, expect};

fn check(module: &Module, expected: Expect) {
    let measured = verify(module).map_or_else(|errors| errors.to_string(), |()| "valid".to_string());
    expected.assert_eq(&measured);
}

/// The small module, broken.
fn broken(change: impl FnOnce(&mut Module), expected: Expect) {
    let mut module = small();
    change(&mut module);
    check(&module, expected);
}

/// The instruction of this name.
fn at<'m>(module: &'m mut Module, name: &str) -> &'m mut Instruction {
    let mut instructions = module.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
    instructions.find(|instruction| instruction.name == name).expect(name)
}

/// An op with arbitrary operands and results.
fn any_call() -> Op {
    Op::CustomCall(Box::new(CustomCall { target: "any".into(), ..CustomCall::default() }))
}

fn array(shape: &mut Shape) -> &mut ArrayShape {
    match shape {
        Shape::Array(array) => array,
        other => panic!("{other} is no array"),
    }
}

#[test]
fn the_modules_to_break_are_valid() {
    check(&small(), expect!["valid"]);
    check(&rich(), expect!["valid"]);
    check(&single(Op::OptimizationBarrier, &["f32[2]"], "f32[2]"), expect!["valid"]);
}

#[test]
fn ids_of_the_module() {
    broken(|m| m.entry = CompId(9), expect!["module: entry is computation 9, expected one of 4 computations"]);
    broken(|m| m.computations.clear(), expect!["module: entry is computation 0, expected one of 0 computations"]);
    broken(
        |m| m.computations[1].instructions.clear(),
        expect!["add_f32: the computation has 0 instructions, expected 1 or more"],
    );
    broken(|m| m.computations[0].root = InstrId(99), expect!["main: root is instruction 99, expected one of 13"]);
}

#[test]
fn ids_of_instructions() {
    broken(
        |m| at(m, "y").operands[1] = InstrId(99),
        expect![[r#"
            main/%y: operand 1 is instruction 99, expected one before this, which is 6
              %y = f32[8,3] dot(%x, #99)"#]],
    );
    broken(
        |m| at(m, "y").operands[1] = InstrId(6),
        expect![[r#"
            main/%y: operand 1 is instruction 6, expected one before this, which is 6
              %y = f32[8,3] dot(%x, %y)"#]],
    );
    broken(
        |m| at(m, "wb").operands[0] = InstrId(7),
        expect![[r#"
            main/%wb: operand 0 is instruction 7, expected one before this, which is 5
              %wb = bf16[4,3] convert(%zero)"#]],
    );
    broken(
        |m| at(m, "wb").control_predecessors = vec![InstrId(u32::MAX)],
        expect![[r#"
            main/%wb: control predecessor is instruction 4294967295, expected one before this, which is 5
              %wb = bf16[4,3] convert(%w)"#]],
    );
    broken(
        |m| at(m, "total").op.for_each_called_mut(&mut |comp| *comp = CompId(77)),
        expect![[r#"
        main/%total: calls computation 77, expected one of 4 computations
          %total = f32[3] reduce(%y, %zero)"#]],
    );
}

#[test]
fn calls() {
    broken(|m| at(m, "body_next").op = Op::Call { to_apply: body_id() }, expect!["body: calls cycle: body -> body"]);
    broken(
        |m| at(m, "body_next").op = Op::Call { to_apply: CompId(0) },
        expect![[r#"
        body: calls the entry computation main, expected any other
        main: calls cycle: main -> body -> main"#]],
    );
    let mut module = small();
    for i in 0..MAX_CALL_DEPTH as u32 {
        let comp = computation(&mut module, &format!("c{i}"));
        let to_apply = CompId(comp.0 + 1);
        add(&mut module, comp, &format!("call{i}"), Op::Call { to_apply }, &[], "f32[]");
    }
    let last = computation(&mut module, "last");
    add(&mut module, last, "last_one", Op::Constant(Literal::scalar(0f32)), &[], "f32[]");
    check(&module, expect!["c0: calls nest 129 deep, expected at most 128"]);
}

#[test]
fn a_chain_of_calls_that_is_too_long_is_one_error() {
    // Callees first, as decoders leave them, so that each is visited separately.
    let mut module = small();
    let mut callee = computation(&mut module, "first");
    add(&mut module, callee, "first_one", Op::Constant(Literal::scalar(0f32)), &[], "f32[]");
    for i in 0..2 * MAX_CALL_DEPTH {
        let caller = computation(&mut module, &format!("c{i}"));
        add(&mut module, caller, &format!("call{i}"), Op::Call { to_apply: callee }, &[], "f32[]");
        callee = caller;
    }
    check(&module, expect!["c255: calls nest 257 deep, expected at most 128"]);
}

#[test]
fn many_errors_are_counted() {
    let mut module = small();
    let comp = computation(&mut module, "bad");
    for i in 0..150 {
        add(&mut module, comp, &format!("x{i}"), Op::OptimizationBarrier, &[InstrId(999)], "f32[]");
    }
    let printed = verify(&module).unwrap_err().to_string();
    assert!(printed.ends_with("\n… 150 errors in all"), "{printed}");
}

fn body_id() -> CompId {
    small().find_computation("body").unwrap()
}

#[test]
fn nesting() {
    let deep = |n: usize| (0..n).fold(shape("f32[]"), |inner, _| Shape::Tuple(vec![inner]));
    let of_depth = |n: usize| {
        let mut module = single(any_call(), &[], "f32[]");
        module.computations[0].instructions[0].shape = deep(n);
        module
    };
    check(&of_depth(MAX_TUPLE_DEPTH), expect!["valid"]);
    check(
        &of_depth(MAX_TUPLE_DEPTH + 1),
        expect![[r#"
            main/%it: shape nests tuples deeper than 64, expected at most 64
              %it = (…) custom-call()"#]],
    );
    broken(
        |m| m.entry_layout.as_mut().unwrap().result = deep(100),
        expect!["module: entry_computation_layout nests tuples deeper than 64, expected at most 64"],
    );
    let literal = (0..100).fold(Literal::scalar(0f32), |inner, _| Literal::Tuple(vec![inner]));
    broken(
        |m| at(m, "zero").op = Op::Constant(literal),
        expect![[r#"
        main/%zero: literal nests tuples deeper than 64, expected at most 64
          %zero = f32[] constant()"#]],
    );
}

#[test]
fn shapes() {
    broken(
        |m| at(m, "y").shape = shape("f32[8,4]"),
        expect![[r#"
        main/%y: shape is f32[8,4], expected f32[8,3]
          %y = f32[8,4] dot(%x, %wb)
        main/%total: shape is f32[3], expected f32[4]
          %total = f32[3] reduce(%y, %zero)"#]],
    );
    broken(
        |m| at(m, "y").shape = shape("f16[8,3]"),
        expect![[r#"
        main/%total: reduce dtypes differ: operand 0 is f16[8,3], init 0 is f32[]
          %total = f32[3] reduce(%y, %zero)
          help: hlo converts nothing by itself: insert a `convert` of init 0 to f16 (or of operand 0 to f32)"#]],
    );
    broken(
        |m| at(m, "out").shape = shape("(f32[3])"),
        expect![[r#"
        main/%out: shape is (f32[3]), expected f32[3]
          %out = (f32[3]) add(%total, %carry)
        main/%result: shape is (f32[3], f32[4,3]), expected ((f32[3]), f32[4,3])
          %result = (f32[3], f32[4,3]) tuple(%out, %w)"#]],
    );
    broken(
        |m| at(m, "x").shape = shape("bf16[8,-4]"),
        expect![[r#"
            main/%x: parameter result is bf16[8,-4], expected dims of 0 or more
              %x = bf16[8,-4] parameter(0)
            module: entry_computation_layout has parameter 0 bf16[8,4], expected bf16[8,-4]"#]],
    );
    broken(
        |m| at(m, "x").shape = shape("bf16[4611686018427387904,4]"),
        expect![[r#"
            main/%x: parameter result is bf16[4611686018427387904,4], expected at most 2^56 bytes
              %x = bf16[4611686018427387904,4] parameter(0)
            module: entry_computation_layout has parameter 0 bf16[8,4], expected bf16[4611686018427387904,4]"#]],
    );
    check(
        &single(Op::Unary(UnaryOp::Copy), &["u1[2]"], "u1[2]"),
        expect![[r#"
        main/%p0: shape has dtype u1, expected one of 2 bits or more: xla aborts on it
          %p0 = u1[2] parameter(0)
        main/%it: shape has dtype u1, expected one of 2 bits or more: xla aborts on it
          %it = u1[2] copy(%p0)"#]],
    );
    broken(
        |m| array(&mut at(m, "x").shape).dynamic = vec![true],
        expect![[r#"
            main/%x: shape has 1 dynamic flags, expected 2 or none
              %x = bf16[<=8,4] parameter(0)"#]],
    );
    let layout = |minor_to_major: &[i64]| Some(Layout { minor_to_major: minor_to_major.to_vec(), ..Layout::default() });
    broken(
        |m| array(&mut at(m, "x").shape).layout = layout(&[0, 0]),
        expect![[r#"
            main/%x: layout of bf16[8,4] has minor_to_major=[0, 0], expected each 0 <= dimension < 2 once
              %x = bf16[8,4]{0,0} parameter(0)"#]],
    );
    broken(
        |m| array(&mut at(m, "x").shape).layout = layout(&[0]),
        expect![[r#"
            main/%x: layout of bf16[8,4] has minor_to_major=[0], expected each 0 <= dimension < 2 once
              %x = bf16[8,4]{0} parameter(0)"#]],
    );
    let tiled = Layout { tiles: vec![Tile(vec![8, 0])], ..Layout::descending(2) };
    broken(
        |m| array(&mut at(m, "x").shape).layout = Some(tiled),
        expect![[r#"
            main/%x: layout has a tile of size 0, expected 1 or more
              %x = bf16[8,4]{1,0:T(8,0)} parameter(0)"#]],
    );
    let spaced = Layout { memory_space: -1, ..Layout::descending(2) };
    broken(
        |m| array(&mut at(m, "x").shape).layout = Some(spaced),
        expect![[r#"
            main/%x: layout has memory space -1, expected 0 or more
              %x = bf16[8,4]{1,0:S(-1)} parameter(0)"#]],
    );
}

#[test]
fn ops() {
    broken(
        |m| at(m, "wb").shape = shape("c64[4,3]"),
        expect![[r#"
        main/%y: dot declares f32 for operands of c64, expected c64 or a wider dtype like it
          %y = f32[8,3] dot(%x, %wb)
          help: let dot give c64 and `convert` its result to f32"#]],
    );
    broken(
        |m| at(m, "y").operands.truncate(1),
        expect![[r#"
        main/%y: dot takes 2 operands, got 1
          %y = f32[8,3] dot(%x)"#]],
    );
    broken(
        |m| at(m, "carry").op = Op::GetTupleElement { index: 2 },
        expect![[r#"
            main/%carry: index is 2, expected 0 <= index < 2
              %carry = f32[3] get-tuple-element(%loop)"#]],
    );
    broken(
        |m| at(m, "condition_less").shape = shape("s32[]"),
        expect![[r#"
        main/%loop: while condition is ((s32[], f32[3])) -> s32[], expected ((s32[], f32[3])) -> pred[]
          %loop = (s32[], f32[3]) while(%s)
        condition/%condition_less: shape is s32[], expected pred[]
          %condition_less = s32[] compare(%condition_i, %condition_n)"#]],
    );
    broken(
        |m| at(m, "condition_less").op = Op::Binary(BinaryOp::Add),
        expect![[r#"
        condition/%condition_less: shape is pred[], expected s32[]
          %condition_less = pred[] add(%condition_i, %condition_n)"#]],
    );
    broken(
        |m| m.computations[2].root = InstrId(0),
        expect![[r#"
        main/%loop: while condition is ((s32[], f32[3])) -> (s32[], f32[3]), expected ((s32[], f32[3])) -> pred[]
          %loop = (s32[], f32[3]) while(%s)"#]],
    );
    let short = Literal::Array { shape: ArrayShape::new(DType::F32, []), bytes: vec![0; 3] };
    broken(
        |m| at(m, "zero").op = Op::Constant(short),
        expect![[r#"
        main/%zero: constant literal f32[] has 3 bytes, expected 4
          %zero = f32[] constant()"#]],
    );
    let wrong = Literal::scalar(0f64);
    broken(
        |m| at(m, "zero").op = Op::Constant(wrong),
        expect![[r#"
        main/%zero: shape is f32[], expected f64[]
          %zero = f32[] constant()"#]],
    );
    let replicated = Op::Parameter { number: 3, replication: vec![true; 3] };
    broken(
        |m| at(m, "v").op = replicated,
        expect![[r#"
            main/%v: parameter_replication has 3 flags, expected 1 or none
              %v = f32[3] parameter(3)"#]],
    );
    let mut kernel = convolution();
    kernel.window[0].size = 2;
    let op = Op::Convolution(Box::new(kernel));
    check(
        &single(op, &["f32[2,8,8,4]", "f32[3,3,4,4]"], "f32[2,6,6,4]"),
        expect![[r#"
        main/%it: window sizes are [2, 3], expected [3, 3], the kernel's spatial dims
          %it = f32[2,6,6,4] convolution(%p0, %p1)"#]],
    );
    let norm = BatchNorm { epsilon: 1e-3, feature_index: 3 };
    let operands = ["bf16[2,8,8,4]", "f32[4]", "f32[4]", "f32[4]", "f32[4]"];
    check(
        &single(Op::BatchNormInference(norm), &operands, "bf16[2,8,8,4]"),
        expect![[r#"
        main/%it: batch-norm-inference dtypes differ: x is bf16[2,8,8,4], scale is f32[4]
          %it = bf16[2,8,8,4] batch-norm-inference(%p0, %p1, %p2, %p3, %p4)
          help: `convert` what is bf16 to f32 before batch-norm-inference, and the results that must be bf16 back after it"#]],
    );
    check(
        &single(Op::Transpose { permutation: vec![0, 0] }, &["f32[2,2]"], "f32[2,2]"),
        expect![[r#"
            main/%it: transpose dimensions={0,0} names axis 0 twice, expected each axis at most once
              %it = f32[2,2] transpose(%p0)"#]],
    );
    let call = Op::CustomCall(Box::default());
    check(
        &single(call, &["f32[2]"], "f32[2]"),
        expect![[r#"
        main/%it: custom_call_target is empty, expected a name
          %it = f32[2] custom-call(%p0)"#]],
    );
}

#[test]
fn names() {
    broken(
        |m| m.computations[2].name = "body".into(),
        expect!["body: two computations are named `body`, expected different names"],
    );
    broken(
        |m| m.computations[1].name = String::new(),
        expect![[r##"#1: name is "", expected letters, digits, `_`, `.` and `-`, at least one"##]],
    );
    broken(
        |m| at(m, "y").name = "x".into(),
        expect![[r#"
        main/%x: another instruction of main is named `x`, expected different names
          %x = f32[8,3] dot(%x, %wb)"#]],
    );
    broken(
        |m| at(m, "y").name = "a b/c".into(),
        expect![[r#"
        main/%a b/c: name is "a b/c", expected letters, digits, `_`, `.` and `-`, at least one
          %a b/c = f32[8,3] dot(%x, %wb)"#]],
    );
    // The same name in another computation.
    let mut module = small();
    at(&mut module, "body_v").name = "x".into();
    check(&module, expect!["valid"]);
}

#[test]
fn parameters() {
    broken(
        |m| at(m, "w").op = Op::parameter(0),
        expect![[r#"
            main/%w: two parameters have number 0, expected each number once
              %w = f32[4,3] parameter(0)"#]],
    );
    broken(
        |m| at(m, "w").op = Op::parameter(4),
        expect![[r#"
            main/%w: parameter number is 4, expected 0 <= number < 4: there are 4 parameters
              %w = f32[4,3] parameter(4)"#]],
    );
    broken(
        |m| at(m, "w").op = Op::parameter(i64::MIN),
        expect![[r#"
            main/%w: parameter number is -9223372036854775808, expected 0 <= number < 4: there are 4 parameters
              %w = f32[4,3] parameter(-9223372036854775808)"#]],
    );
}

#[test]
fn entry_parameters() {
    let barrier = |operands: &[&str]| single(Op::OptimizationBarrier, operands, operands[0]);
    check(&barrier(&["(f32[2], token[])"]), expect!["valid"]);
    let mut nested = barrier(&["()"]);
    for instruction in &mut nested.computations[0].instructions {
        instruction.shape = Shape::Tuple(vec![shape("(f32[2])"), shape("s32[]")]);
    }
    check(
        &nested,
        expect![[r#"
        main/%p0: the entry's parameter is a tuple of tuples, expected a tuple of arrays
          %p0 = ((f32[2]), s32[]) parameter(0)
          help: make each array a parameter of its own"#]],
    );
    check(
        &single(any_call(), &["(s32[])", "f32[2]"], "s32[]"),
        expect![[r#"
            main/%p0: the entry has a tuple among its 2 parameters, expected arrays, or only one tuple
              %p0 = (s32[]) parameter(0)
              help: make each array a parameter of its own"#]],
    );
}

#[test]
fn aliases() {
    let alias = |output_index: &[i64], parameter_number, parameter_index: &[i64]| Alias {
        output_index: output_index.to_vec(),
        parameter_number,
        parameter_index: parameter_index.to_vec(),
        kind: AliasKind::May,
    };
    broken(
        |m| m.input_output_alias.push(alias(&[1], 3, &[])),
        expect![[r#"
            module: input_output_alias of output [1] and parameter 3 []: shapes are f32[4,3] and f32[3], expected one array shape
            module: input_output_alias of output [1] and parameter 3 []: the output is aliased twice, expected once
            module: buffer_donor parameter 3 []: input_output_alias has it too, expected one of the two"#]],
    );
    broken(
        |m| m.input_output_alias.push(alias(&[0], 1, &[])),
        expect![[r#"
        module: input_output_alias of output [0] and parameter 1 []: shapes are f32[3] and f32[4,3], expected one array shape
        module: input_output_alias of output [0] and parameter 1 []: the parameter is aliased twice, expected once"#]],
    );
    broken(
        |m| m.input_output_alias.push(alias(&[2], 0, &[])),
        expect![[r#"
            module: input_output_alias of output [2] and parameter 0 []: the result is (f32[3], f32[4,3]), expected one with that output"#]],
    );
    broken(
        |m| m.input_output_alias.push(alias(&[0, 0], 0, &[])),
        expect![[r#"
            module: input_output_alias of output [0, 0] and parameter 0 []: the result is (f32[3], f32[4,3]), expected one with that output"#]],
    );
    broken(
        |m| m.input_output_alias.push(alias(&[0], 4, &[])),
        expect![[r#"
            module: input_output_alias of output [0] and parameter 4 []: the entry has no such parameter, expected one"#]],
    );
    broken(
        |m| m.input_output_alias.push(alias(&[0], 2, &[-1])),
        expect![[r#"
            module: input_output_alias of output [0] and parameter 2 [-1]: the entry has no such parameter, expected one"#]],
    );
    broken(
        |m| m.input_output_alias[0].output_index.clear(),
        expect![[r#"
            module: input_output_alias of output [] and parameter 1 []: shapes are (f32[3], f32[4,3]) and f32[4,3], expected one array shape"#]],
    );
    broken(
        |m| m.input_output_alias.push(alias(&[0], 3, &[])),
        expect!["module: buffer_donor parameter 3 []: input_output_alias has it too, expected one of the two"],
    );
    broken(
        |m| m.buffer_donors.push((2, vec![0])),
        expect!["module: buffer_donor parameter 2 [0]: the entry has no such array, expected one"],
    );
    broken(
        |m| m.buffer_donors.push((9, vec![])),
        expect!["module: buffer_donor parameter 9 []: the entry has no such array, expected one"],
    );
}

#[test]
fn entry_layouts() {
    fn layout(module: &mut Module) -> &mut EntryLayout {
        module.entry_layout.as_mut().unwrap()
    }
    broken(
        |m| drop(layout(m).parameters.pop()),
        expect!["module: entry_computation_layout has 3 parameters, expected 4, as the entry"],
    );
    broken(
        |m| layout(m).parameters[0] = shape("f32[8,4]"),
        expect!["module: entry_computation_layout has parameter 0 f32[8,4], expected bf16[8,4]"],
    );
    broken(
        |m| layout(m).result = shape("f32[3]"),
        expect!["module: entry_computation_layout has result f32[3], expected (f32[3], f32[4,3])"],
    );
    broken(
        |m| array(&mut layout(m).parameters[1]).layout = Some(Layout { minor_to_major: vec![1], ..Layout::default() }),
        expect![[r#"
            module: entry_computation_layout parameter 1: layout of f32[4,3] has minor_to_major=[1], expected each 0 <= dimension < 2 once"#]],
    );
}

#[test]
fn all_errors_are_said_with_their_source() {
    broken(
        |m| {
            let y = at(m, "y");
            y.shape = shape("f32[8,4]");
            y.metadata = Metadata { source_file: "examples/mlp.rs".into(), source_line: 12, ..Metadata::default() };
            at(m, "carry").op = Op::GetTupleElement { index: 7 };
            at(m, "body_one").name = "body_v".into();
            m.buffer_donors.push((9, vec![0]));
        },
        expect![[r#"
            main/%y: shape is f32[8,4], expected f32[8,3]
              %y = f32[8,4] dot(%x, %wb) at examples/mlp.rs:12
            main/%total: shape is f32[3], expected f32[4]
              %total = f32[3] reduce(%y, %zero)
            main/%carry: index is 7, expected 0 <= index < 2
              %carry = f32[3] get-tuple-element(%loop)
            body/%body_v: another instruction of body is named `body_v`, expected different names
              %body_v = s32[] constant()
            module: buffer_donor parameter 9 [0]: the entry has no such array, expected one"#]],
    );
}

#[test]
fn long_instructions_print_in_short() {
    let operands = ["f32[1024,1024,1024]"; 12];
    let mut module = single(Op::Tuple, &operands, "()");
    module.computations[0].instructions[12].shape = Shape::Tuple(vec![shape("f32[1024,1024,1024]"); 13]);
    check(
        &module,
        expect![[r#"
        main/%it: shape is (f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], /*index=5*/f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], /*index=10*/f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024]), expected (f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], /*index=5*/f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], /*index=10*/f32[1024,1024,1024], f32[1024,1024,1024])
          %it = (f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], f32[1024,1024,1024], /*index=5*/f32[1024,1024,1024], f32[1024,1024,1024], f… tuple(%p0, %p1, %p2, %p3, %p4, %p5, %p6, %p7, … 12 in all)"#]],
    );
}
