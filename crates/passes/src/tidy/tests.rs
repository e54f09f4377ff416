//! Modules before and after tidying.

use super::*;
use bf16scope_hlo::ops::{BinaryOp, CustomCall, UnaryOp};
use bf16scope_hlo::text::parse;
use bf16scope_hlo::verify::verify;
use bf16scope_hlo::{Emitter, Shape};

/// Builds a module, tidies it twice, and returns the opcodes left in the entry.
fn check(build: impl Fn(&Emitter)) -> (Vec<String>, TidyReport) {
    let module = Module::new("tidy");
    let e = Emitter::new(module.clone(), module.entry);
    build(&e);
    let module = e.finish().unwrap();
    verify(&module).unwrap();
    let (tidied, report) = run(&module, &Config::default()).unwrap();
    verify(&tidied).unwrap();
    let (again, nothing) = run(&tidied, &Config::default()).unwrap();
    assert_eq!(again, tidied, "tidying twice is tidying once");
    assert_eq!(nothing, TidyReport::default());
    let opcodes = tidied.entry().instructions.iter().map(|instr| instr.op.opcode().into_owned());
    (opcodes.collect(), report)
}

fn param(e: &Emitter, number: i64, dtype: DType) -> InstrId {
    e.parameter(number, &Shape::array(dtype, [4]))
}

#[test]
fn a_cast_that_rounds_stays() {
    let (opcodes, report) = check(|e| {
        let x = param(e, 0, DType::F32);
        e.convert(e.convert(x, DType::BF16), DType::F32);
    });
    assert_eq!(opcodes, ["parameter", "convert", "convert"]);
    assert_eq!(report, TidyReport::default());
}

#[test]
fn a_way_there_and_back_that_loses_nothing_goes() {
    for (narrow, wide) in [(DType::BF16, DType::F32), (DType::F32, DType::F64), (DType::S8, DType::S32)] {
        let (opcodes, _) = check(|e| {
            let x = param(e, 0, narrow);
            let back = e.convert(e.convert(x, wide), narrow);
            e.add(back, back);
        });
        assert_eq!(opcodes, ["parameter", "add"], "{narrow} {wide}");
    }
}

#[test]
fn a_chain_is_shortened_to_its_rounding_step() {
    let (opcodes, report) = check(|e| {
        let x = param(e, 0, DType::BF16);
        let wide = e.convert(e.convert(x, DType::F32), DType::F64);
        e.convert(wide, DType::F16);
    });
    assert_eq!(opcodes, ["parameter", "convert"]);
    let folded = |name: &str| Change::FoldedConvert { at: ("tidy".into(), name.into()), from: "parameter.1".into() };
    assert_eq!(report.changes[..2], [folded("convert.3"), folded("convert.4")]);
}

#[test]
fn converting_between_integers_and_floats_is_left_alone() {
    let (opcodes, _) = check(|e| {
        let x = param(e, 0, DType::S8);
        e.convert(e.convert(x, DType::F32), DType::U8);
    });
    assert_eq!(opcodes, ["parameter", "convert", "convert"]);
}

#[test]
fn equal_instructions_merge_and_unequal_constants_do_not() {
    let (opcodes, report) = check(|e| {
        let x = param(e, 0, DType::F32);
        let zero = e.constant(Literal::from_elements([4], &[0.0f32; 4]));
        let negative_zero = e.constant(Literal::from_elements([4], &[-0.0f32; 4]));
        let (a, b) = (e.unary(UnaryOp::Sin, x), e.unary(UnaryOp::Sin, x));
        e.tuple(&[e.add(a, zero), e.add(b, zero), e.add(b, negative_zero)]);
    });
    assert_eq!(opcodes, ["parameter", "constant", "constant", "sine", "add", "add", "tuple"]);
    let merged: Vec<_> = report.changes.iter().filter(|c| matches!(c, Change::Merged { .. })).collect();
    assert_eq!(merged.len(), 2);
}

#[test]
fn dead_code_goes_but_parameters_and_effects_stay() {
    let (opcodes, _) = check(|e| {
        let (x, _unused) = (param(e, 0, DType::F32), param(e, 1, DType::F32));
        e.unary(UnaryOp::Sin, x);
        let call = |has_side_effect| {
            let call = CustomCall { target: "print".into(), has_side_effect, ..CustomCall::default() };
            e.emit(Op::CustomCall(Box::new(call)), &[x], Some(&Shape::array(DType::F32, [4])));
        };
        call(true);
        call(false);
        e.add(x, x);
    });
    assert_eq!(opcodes, ["parameter", "parameter", "custom-call", "add"]);
}

#[test]
fn uncalled_computations_go_and_calls_still_find_theirs() {
    let module = Module::new("tidy");
    let e = Emitter::new(module.clone(), module.entry);
    e.scalar_computation(BinaryOp::Multiply, DType::F32);
    let x = param(&e, 0, DType::F32);
    e.reduce_sum(x, &[0]);
    let (tidied, report) = run(&e.finish().unwrap(), &Config::default()).unwrap();
    verify(&tidied).unwrap();
    let names: Vec<_> = tidied.computations.iter().map(|computation| computation.name.as_str()).collect();
    assert_eq!(names, ["tidy", "add_f32"]);
    assert_eq!(report.changes, [Change::Uncalled { computation: "multiply_f32".into() }]);
}

/// Attributes that tie an instruction down: its sharding, attributes for a compiler, and what it waits for.
const TIES: [&str; 4] = [
    ", sharding={replicated}",
    ", frontend_attributes={kept=\"1\"}",
    ", backend_config=\"kept\"",
    ", control-predecessors={y}",
];

/// The opcodes that tidying leaves in an entry with parameters `x` and `y`.
fn left_of(body: &str) -> Vec<String> {
    let text = format!(
        "HloModule m\n\nENTRY m {{\n  x = bf16[4]{{0}} parameter(0)\n  y = bf16[4]{{0}} parameter(1)\n{body}}}\n"
    );
    let module = parse(&text, "m.hlo").unwrap_or_else(|error| panic!("{error}"));
    verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    let (tidied, _) = run(&module, &Config::default()).unwrap();
    verify(&tidied).unwrap();
    tidied.entry().instructions[2..].iter().map(|instr| instr.op.opcode().into_owned()).collect()
}

#[test]
fn a_conversion_that_is_tied_down_stays() {
    let body = |wide: &str, narrow: &str| {
        format!("  wide = f32[4]{{0}} convert(x){wide}\n  ROOT narrow = bf16[4]{{0}} convert(wide){narrow}\n")
    };
    assert!(left_of(&body("", "")).is_empty());
    for tie in TIES.into_iter().chain([", metadata={op_type=\"custom_vjp\"}"]) {
        assert_eq!(left_of(&body(tie, "")), ["convert", "convert"], "{tie}");
        assert_eq!(left_of(&body("", tie)), ["convert", "convert"], "{tie}");
    }
}

#[test]
fn instructions_that_say_something_else_do_not_merge() {
    let body = |a: &str, b: &str| {
        format!("  a = bf16[4]{{0}} sine(x){a}\n  b = bf16[4]{{0}} sine(x){b}\n  ROOT sum = bf16[4]{{0}} add(a, b)\n")
    };
    let (apart, merged) = (["sine", "sine", "add"], ["sine", "add"]);
    assert_eq!(left_of(&body("", "")), merged);
    // Columns of JAX's debug metadata, in text and in proto.
    let columns = ", metadata={op_name=\"a\" source_end_line=9 source_column=3}";
    assert_eq!(left_of(&body(columns, "")), merged);
    let marks = [", metadata={op_type=\"custom_vjp\"}", ", statistics={visualizing_index=0,flops=0.5}"];
    for attribute in TIES.into_iter().chain(marks) {
        assert_eq!(left_of(&body(attribute, "")), apart, "{attribute}");
        // Instructions that wait for another are not merged, even if both wait for the same.
        let is_alike = !attribute.contains("control-predecessors");
        assert_eq!(
            left_of(&body(attribute, attribute)),
            if is_alike { &merged[..] } else { &apart[..] },
            "{attribute}"
        );
    }
    for (a, b) in [("{replicated}", "{maximal device=0}"), ("{replicated}", "{manual}")] {
        let [a, b] = [a, b].map(|sharding| format!(", sharding={sharding}"));
        assert_eq!(left_of(&body(&a, &b)), apart, "{a} {b}");
    }
}

#[test]
fn switches_switch() {
    let module = Module::new("tidy");
    let e = Emitter::new(module.clone(), module.entry);
    let x = param(&e, 0, DType::BF16);
    e.convert(e.convert(x, DType::F32), DType::BF16);
    let module = e.finish().unwrap();
    let none = Config { fold_converts: false, merge_common: false, remove_dead: false };
    assert_eq!(run(&module, &none), Ok((module.clone(), TidyReport::default())));
    let (folded, _) = run(&module, &Config { fold_converts: true, ..none }).unwrap();
    assert_eq!(folded.entry().root, x);
    assert_eq!(folded.entry().instructions.len(), 3);
}

#[test]
fn a_call_of_what_has_an_effect_stays() {
    let text = |has_effect: bool| {
        let effect = if has_effect { ", custom_call_has_side_effect=true" } else { "" };
        format!(
            "HloModule m\n\nsay {{\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] custom-call(x), \
                 custom_call_target=\"say\"{effect}\n}}\n\nENTRY main {{\n  x = f32[4] parameter(0)\n  unused = f32[4] \
                 call(x), to_apply=say\n  ROOT r = f32[4] negate(x)\n}}\n"
        )
    };
    for has_effect in [true, false] {
        let (tidied, _) = run(&parse(&text(has_effect), "tidy").unwrap(), &Config::default()).unwrap();
        let calls = tidied.entry().instructions.iter().filter(|instr| instr.op.opcode() == "call").count();
        assert_eq!(calls, usize::from(has_effect));
    }
}
