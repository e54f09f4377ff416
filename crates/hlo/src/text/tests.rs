//! Modules through the text and back, and the errors for broken text.

mod expected;

use super::*;
use crate::ops::samples::all_ops;
use crate::ops::{BinaryOp, UnaryOp};
use crate::{
    Alias, AliasKind, ArrayShape, CompId, DType, DeviceOrder, EntryLayout, InstrId, Layout, Literal, Metadata, Module,
    Op, Shape, Sharding, TileAssignment,
};

/// A module with one instruction of each op; shapes are arbitrary.
fn every_op() -> Module {
    let mut module = Module::new("every_op");
    let shape = Shape::array(DType::F32, [2]).with_default_layout();
    for name in ["f", "g"] {
        let comp = module.add_computation(name);
        module.append(comp, Op::parameter(0), Vec::new(), shape.clone(), Metadata::default());
    }
    let entry = module.entry;
    let x = module.append(entry, Op::parameter(9), Vec::new(), shape.clone(), Metadata::default());
    for op in all_ops() {
        let (operands, shape) = match &op {
            Op::Parameter { .. } | Op::Iota { .. } => (Vec::new(), shape.clone()),
            Op::Constant(literal) => (Vec::new(), literal.shape()),
            _ => (vec![x, x], shape.clone()),
        };
        module.append(entry, op, operands, shape, Metadata::default());
    }
    module
}

fn check_round_trip(module: &Module) {
    for options in [PrintOptions::default(), PrintOptions::long()] {
        let text = print(module, &options);
        let back = parse(&text, "text").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(print(&back, &options), text);
        for (instr, expected) in back.entry().instructions.iter().zip(&module.entry().instructions) {
            assert_eq!(instr, expected);
        }
        assert_eq!(&back, module);
    }
}

#[test]
fn every_op_reads_back() {
    check_round_trip(&every_op());
}

#[test]
fn everything_around_ops_reads_back() {
    let mut module = every_op();
    module.is_scheduled = true;
    let alias = |output, parameter_number, kind| Alias {
        output_index: output,
        parameter_number,
        parameter_index: vec![3],
        kind,
    };
    module.input_output_alias = vec![alias(vec![], 0, AliasKind::May), alias(vec![1, 2], 4, AliasKind::Must)];
    module.buffer_donors = vec![(2, vec![]), (3, vec![1])];
    module.frontend_attributes = vec![("a".into(), "b \"c\"".into()), ("d".into(), "{\"e\":1}".into())];
    module.unmodelled.attributes = vec![("replica_count".into(), "4".into())];
    let tiled = ArrayShape {
        layout: Some(Layout {
            tiles: vec![crate::Tile(vec![8, 128]), crate::Tile(vec![2, 1])],
            element_size_in_bits: 4,
            memory_space: 1,
            extra: "D(C,S+~)L(1024)SC(0:8)(1:16)P((u32[3]{0}, s4[]))M(4)".into(),
            ..Layout::descending(2)
        }),
        dynamic: vec![true, true],
        ..ArrayShape::new(DType::BF16, [64, ArrayShape::UNBOUNDED])
    };
    let buffer = Shape::Buffer(Box::new(tiled.clone()));
    let odd = Shape::Tuple(vec![tiled.into(), Shape::Token, Shape::Tuple(vec![]), Shape::Opaque, buffer]);
    module.entry_layout = Some(EntryLayout { parameters: vec![odd.clone()], result: odd.clone() });
    let entry = &mut module.computations[0];
    entry.root = InstrId(5);
    entry.unmodelled.attributes = vec![("execution_thread".into(), "\"host\"".into())];
    let tiles = |devices| Sharding::Tiled(TileAssignment { dims: vec![2, 2], devices, replicate_on_last_dim: true });
    let shardings = [
        Sharding::Replicated,
        Sharding::Manual,
        Sharding::Maximal { device: 1 },
        tiles(DeviceOrder::List(vec![3, 1, 2, 0])),
        tiles(DeviceOrder::Iota { reshape_dims: vec![2, 2], transpose_perm: vec![1, 0] }),
        Sharding::Raw { text: "devices=[2,2]<=[4] last_tile_dims={manual}".into(), proto: vec![] },
    ];
    for (instr, sharding) in entry.instructions.iter_mut().skip(3).zip(&shardings) {
        instr.sharding = Some(Box::new(sharding.clone()));
    }
    let instr = &mut entry.instructions[20];
    instr.sharding = Some(Box::new(Sharding::Tuple(shardings.to_vec())));
    instr.shape = odd;
    instr.control_predecessors = vec![InstrId(3), InstrId(5)];
    instr.frontend_attributes = vec![("k".into(), "v".into())];
    instr.backend_config = "not json \u{e9}\n".into();
    instr.unmodelled.attributes = vec![
        ("origin".into(), "{({\"}\"}, {})}".into()),
        ("metadata".into(), "source_end_line=9 profile_type={1,2}".into()),
    ];
    instr.metadata = Metadata {
        op_type: "Conv2D".into(),
        op_name: "v['a']/\"b\"".into(),
        source_file: "C:\\a b.py".into(),
        source_line: 12,
        stack_frame_id: 3,
    };
    entry.instructions[21].backend_config = "{\"flops\":\"1\"}".into();
    check_round_trip(&module);
}

#[test]
fn every_value_of_a_small_dtype_reads_back() {
    let mut module = Module::new("values");
    for &dtype in DType::ALL {
        let n = 1i64 << dtype.bits().min(16);
        let n = if dtype == DType::Pred { 2 } else { n };
        let mut shape = ArrayShape::new(dtype, [n]);
        shape.layout = Some(Layout::descending(1));
        let bytes: Vec<u8> = match dtype.bits() {
            16 => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
            bits if bits <= 8 && dtype.is_integer() && dtype.is_signed() => {
                (0..n).map(|i| (i - (n >> 1)) as u8).collect()
            }
            bits if bits <= 8 => (0..n).map(|i| i as u8).collect(),
            _ => {
                let width = dtype.n_bytes();
                (0..n as usize * width).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
            }
        };
        let value = Literal::Array { shape: shape.clone(), bytes };
        module.append(CompId(0), Op::Constant(value), Vec::new(), shape.into(), Metadata::default());
    }
    let text = print(&module, &PrintOptions::default());
    let back = parse(&text, "text").unwrap();
    for (instr, expected) in back.entry().instructions.iter().zip(&module.entry().instructions) {
        let (Op::Constant(Literal::Array { shape, bytes }), Op::Constant(Literal::Array { bytes: expected, .. })) =
            (&instr.op, &expected.op)
        else {
            panic!("a constant");
        };
        let width = shape.dtype.n_bytes();
        for (got, expected) in bytes.chunks(width).zip(expected.chunks(width)) {
            assert_eq!(got, expected, "{}", shape.dtype);
        }
    }
}

#[test]
fn names_may_come_before_their_definitions() {
    let text = "HloModule m
ENTRY e {
  ROOT c = f32[] call(b), to_apply=f
  b = f32[] negate(a) // the middle one
  a = f32[] parameter(0)
}
f { ROOT p = f32[] parameter(0) }";
    let module = parse(text, "m.hlo").unwrap();
    let ops: Vec<_> = module.entry().instructions.iter().map(|instr| instr.op.clone()).collect();
    assert_eq!(ops, [Op::parameter(0), Op::Unary(UnaryOp::Negate), Op::Call { to_apply: CompId(1) }]);
    assert_eq!(module.entry().root, InstrId(2));
    assert_eq!(module.next_name, 1);
}

#[test]
fn long_constants_can_be_left_out() {
    let mut module = Module::new("m");
    let value = Literal::from_elements([3], &[1i32, 2, 3]);
    module.append(CompId(0), Op::Constant(value.clone()), Vec::new(), value.shape(), Metadata::default());
    let options = PrintOptions { max_constant_elements: Some(2), ..PrintOptions::default() };
    let text = print(&module, &options);
    assert!(text.contains("constant.1 = s32[3]{0} constant({...})\n"));
    assert_eq!(
        parse(&text, "m.hlo").unwrap_err().to_string(),
        "m.hlo:4:40: the constant's values were left out (`{...}`); help: print the module with large constants
    ROOT constant.1 = s32[3]{0} constant({...})
                                         ^"
    );
}

/// The whole message for a text with one instruction in its entry.
fn error_of(instruction: &str) -> String {
    let text = format!("HloModule m\n\nENTRY e {{\n  x = f32[2]{{0}} parameter(0)\n  {instruction}\n}}\n");
    parse(&text, "m.hlo").unwrap_err().to_string()
}

#[test]
fn the_shape_after_the_arrow_is_the_roots() {
    let result_error = |result: &str| {
        let text =
            format!("HloModule m\n\nENTRY e (x: f32[2]) -> {result} {{\n  ROOT x = f32[2]{{0}} parameter(0)\n}}\n");
        parse(&text, "m.hlo").map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(result_error("f32[2]"), Ok(()));
    let error = result_error("f32[3]").unwrap_err();
    assert!(error.starts_with("m.hlo:3:24: found f32[3], expected the shape of its root %x, f32[2]\n"), "{error}");
    assert!(result_error("(f32[2])").unwrap_err().contains("found (f32[2]), expected the shape of its root"));
}

#[test]
fn errors_say_where_and_what() {
    let cases = [
        ("ROOT y = f32[2]{0} add(x, z)", "m.hlo:5:29: no instruction of this computation is named `z`"),
        (
            "ROOT y = f32[2]{0} negate(x)\n  ROOT z = f32[2]{0} abs(x)",
            "m.hlo:6:8: a second ROOT, expected one in a computation",
        ),
        ("ROOT y = f33[2]{0} negate(x)", "m.hlo:5:12: no dtype is named `f33`; help: did you mean `f32`"),
        ("ROOT y = f32[2]{0} reduce(x), to_apply=f", "m.hlo:5:8: `reduce` needs the attribute `dimensions`"),
        ("ROOT y = f32[2]{0} call(x), to_apply=f", "m.hlo:5:40: no computation is named `f`"),
        ("ROOT y = f32[2]{0} negate(x", "m.hlo:6:1: found `}`, expected `)`"),
        (
            "ROOT y = pred[2]{0} compare(x, x), direction=UP",
            "m.hlo:5:48: found `UP`, expected one of EQ, NE, GE, GT, LE, LT",
        ),
        // Beyond the largest number there is only an infinity, which has its own name.
        ("ROOT y = f32[2]{0} constant({1e39, 3})", "m.hlo:5:32: `1e39` is not a value of f32"),
        ("ROOT y = bf16[2]{0} constant({1, -4e38})", "m.hlo:5:36: `-4e38` is not a value of bf16"),
        ("ROOT y = f8e4m3fn[1]{0} constant({1000})", "m.hlo:5:37: `1000` is not a value of f8e4m3fn"),
        ("ROOT y = f32[2]{0} addd(x, x)", "m.hlo:5:22: no opcode is named `addd`; help: did you mean `add`"),
        (
            "ROOT y = f32[2]{0} /* blank */ frobnicate(x)",
            "m.hlo:5:34: no opcode is named `frobnicate`; help: if it is newer than this build, a proto can carry it \
             where text cannot",
        ),
        ("ROOT y = f32[2]{0:L(x)} negate(x)", "m.hlo:5:23: found `x`, expected an integer"),
        (
            "ROOT y = f32[2]{0:D(Q)} negate(x)",
            "m.hlo:5:23: found `Q`, expected a level of the layout, one of D, C, S, H",
        ),
        ("ROOT y = s8[] constant(300)", "m.hlo:5:26: `300` is not a value of s8"),
        (
            "ROOT y = s8[2] constant({1})",
            "m.hlo:5:29: found `}`, expected 2 elements in dimension 0 of s8[2], here are 1",
        ),
        (
            "y = f32[] negate(x), sharding={replicated},\n    sharding={maximal device=0}",
            "m.hlo:6:5: the attribute `sharding` is defined twice",
        ),
        (
            "ROOT y = f32[2]{0} negate(x), metadata={op_name=\"a\" op_name=\"b\"}",
            "m.hlo:5:55: the metadata field `op_name` is defined twice",
        ),
        (
            "ROOT y = f32[2]{0} negate(x), metadata={profile_type={1} op_type=\"a\" profile_type={1}}",
            "m.hlo:5:72: the metadata field `profile_type` is defined twice",
        ),
        ("x = f32[] constant(0)", "m.hlo:5:3: the instruction `x` is defined twice"),
        (
            "ROOT y = f32[2]{0} negate(x), dimensions={0}, foo={1}",
            "m.hlo:5:33: `negate` has no attribute `dimensions`; help: take it out, as nothing would come of it",
        ),
        ("ROOT y = opaque[] constant(1)", "m.hlo:5:30: found `1`, expected no constant, for an opaque value has none"),
        ("ROOT y = f32[2]{0} negate(%)", "m.hlo:5:30: found the end of the value, expected an instruction's name"),
        ("ROOT y = f32[2]{0} negate(y)", "m.hlo:5:8: operands form a cycle through `y`"),
        ("ROOT y = f32[2]{0} call(x), to_apply=e", "m.hlo:3:7: calls form a cycle through `e`"),
    ];
    for (instruction, expected) in cases {
        assert_eq!(error_of(instruction).lines().next(), Some(expected));
    }
    assert_eq!(
        parse("\u{a}\u{9f1}oops", "m.hlo").unwrap_err().to_string(),
        "m.hlo:2:1: found `\u{9f1}oops`, expected `HloModule`\n  \u{9f1}oops\n  ^"
    );
    assert_eq!(
        parse("HloModule m\n\nENTRY e {", "m.hlo").unwrap_err().to_string().lines().next(),
        Some("m.hlo:3:10: found the end of the text, expected an instruction or `}`")
    );
    let computation = |name: &str| format!("\n{name} {{ x = f32[] parameter(0) }}");
    for (computations, expected) in [
        (
            ["ENTRY a", "ENTRY b"].map(computation).concat(),
            "m.hlo:3:7: 2 of 2 computations are marked `ENTRY`, expected 1; help: leave it before the one that is the program",
        ),
        (
            ["a", "b"].map(computation).concat(),
            "m.hlo:3:29: 0 of 2 computations are marked `ENTRY`, expected 1; help: write `ENTRY` before the one that is the \
             program, in what XLA prints the last",
        ),
        (
            String::new(),
            "m.hlo:1:12: 0 of 0 computations are marked `ENTRY`, expected 1; help: a module has at least one, such as \
             `ENTRY main { ROOT x = f32[] parameter(0) }`",
        ),
    ] {
        let error = parse(&format!("HloModule m{computations}"), "m.hlo").unwrap_err().to_string();
        assert_eq!(error.lines().next(), Some(expected));
    }
}

#[test]
fn nesting_is_bounded() {
    let shape = format!("{}f32[]{}", "(".repeat(1_000_000), ")".repeat(1_000_000));
    let error = error_of(&format!("ROOT y = {shape} negate(x)"));
    assert!(error.starts_with("m.hlo:5:113: nesting is deeper than 100"), "{}", &error[..60]);
    let braces = "{".repeat(1_000_000);
    assert!(error_of(&format!("ROOT y = f32[] negate(x), sharding={braces}")).contains("expected `}`"));
}

/// Short elements that become long ones; each of these texts exceeds the bound.
#[test]
fn memory_is_bounded() {
    let many = |what: &str| what.repeat(2000);
    let of_entry =
        |instruction: String| format!("HloModule m\nENTRY e {{\n  x = f32[] parameter(0)\n{instruction}}}\n");
    let of_tables =
        |entries: String, title: &str| format!("HloModule m\n{title}\n{entries}ENTRY e {{ x = f32[] parameter(0) }}\n");
    let texts = [
        (0..2000).map(|i| format!("f{i} {{ x = f32[] parameter(0) }}\n")).collect::<String>(),
        of_entry((0..2000).map(|i| format!("a{i} = f32[] iota(), iota_dimension=0\n")).collect()),
        of_entry(format!("t = ({}f32[]) tuple()\n", many("f32[],"))),
        of_entry(format!("t = f32[{}1] negate(x)\n", many("1,"))),
        of_entry(format!("t = f32[1]{{0:T{}}} negate(x)\n", many("(1)"))),
        of_entry(format!("t = f32[] negate({}x)\n", many("x,"))),
        of_entry(format!("t = f32[] negate(x){}\n", (0..2000).map(|i| format!(",a{i}=b")).collect::<String>())),
        of_entry(format!("t = f32[] negate(x),frontend_attributes={{{}a=\"\"}}\n", many("a=\"\","))),
        of_entry(format!(
            "t = f32[] negate(x),metadata={{{}}}\n",
            (0..2000).map(|i| format!("a{i}=b ")).collect::<String>()
        )),
        of_entry(format!("t = f32[] negate(x),sharding={{{}{{manual}}}}\n", many("{manual},"))),
        of_entry(format!("t = f32[] broadcast(x),dimensions={{{}1}}\n", many("1,"))),
        of_entry(format!("t = f32[] reduce-window(x),window={{size={}1}},to_apply=e\n", many("1x"))),
        of_entry(format!("t = f64[2001] constant({{{}0}})\n", many("0,"))),
        of_tables((1..2000).map(|i| format!("{i} \"\"\n")).collect(), "FileNames"),
        of_tables((1..2000).map(|i| format!("{i} {{}}\n")).collect(), "FileLocations"),
    ];
    for text in texts {
        let text = if text.starts_with("Hlo") { text } else { format!("HloModule m\n{text}") };
        let error = parse::parse_within(&text, "m.hlo", text.len() + 12_000).unwrap_err().to_string();
        assert!(error.contains("takes more than 1024 MiB of memory from here on"), "{error}");
    }
}

/// Every truncation and many single-byte changes result in a module or an error, and never in a panic.
#[test]
fn broken_text_does_not_panic() {
    let mut module = every_op();
    let add =
        module.append(CompId(0), Op::Binary(BinaryOp::Add), vec![], Shape::scalar(DType::F32), Metadata::default());
    module.computations[0].instructions[add.idx()].sharding = Some(Box::new(Sharding::Tiled(TileAssignment {
        dims: vec![1],
        devices: DeviceOrder::List(vec![0]),
        replicate_on_last_dim: false,
    })));
    let text = print(&module, &PrintOptions::long());
    for end in (0..text.len()).step_by(3) {
        let _ = parse(&text[..end], "m.hlo");
    }
    for (at, replacement) in (0..text.len()).step_by(5).zip("{}()[],=\"\\-/*x0 \n%<é".chars().cycle()) {
        let mut changed = text.clone();
        changed.replace_range(at..at + 1, &replacement.to_string());
        if let Ok(module) = parse(&changed, "m.hlo") {
            print(&module, &PrintOptions::long());
        }
    }
}

/// Text in which an instruction seems to begin or a computation to end where none does, and whose names, dtypes and
/// control predecessors come from far above.
const TREACHEROUS: &str = r#"HloModule m, frontend_attributes={a="}
  b = f32[] negate(x)"}

f {
  ROOT p = f32[] parameter(0)
}, execution_thread="}"

/* g { x = f32[] parameter(0) } */ ENTRY e {
  x = f32[2]{0} parameter(0), metadata={op_name="} ROOT y = f32[] add(x"}
  c = f32[2,2]{1,0} constant({
    { 1, 2 },
    { 3, 4 }
  }) /* ROOT
  d = f32[] constant(0)
  */ // } ROOT z = f32[] {
  y = f32[2]{0} custom-call(x, /*index=1*/ c), custom_call_target="}
  ROOT w = f32[] negate(x)"
  ROOT v = pred[2]{0} compare(x, y), direction=LT, type=FLOAT, control-predecessors={c}
  u = f32[] call(x), to_apply=f
}
"#;

fn in_parts(text: &str, n_bytes: usize) -> lex::Read<Module> {
    parse::read_module(text, MAX_BYTES, n_bytes)
}

#[test]
fn parts_of_any_size_give_the_same_module() {
    let mut texts = vec![TREACHEROUS.to_string()];
    texts.extend([PrintOptions::default(), PrintOptions::long()].map(|options| print(&every_op(), &options)));
    for name in ["mlp_training_bf16", "transformer_small_training_f32", "resnet18_small_inference_bf16"] {
        let path = format!("{}/../../hlo/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        texts.push(std::fs::read_to_string(path).unwrap());
    }
    for text in texts {
        let whole = in_parts(&text, usize::MAX).unwrap();
        // With one byte, each instruction is a part.
        for n_bytes in [1, 40, 300, 2000, text.len() - 10] {
            let module = in_parts(&text, n_bytes).unwrap();
            assert!(module == whole, "parts of {n_bytes} bytes:\n{module:#?}\nwhole:\n{whole:#?}");
        }
        // A text that fits in memory in parts fits as a whole, except for a shape that is skipped and not stored:
        // those take less than 4 KiB.
        let fits = |max_bytes: usize, n_bytes| parse::read_module(&text, max_bytes, n_bytes).is_ok();
        let (mut too_few, mut enough) = (0, MAX_BYTES);
        while enough - too_few > 1 {
            let max_bytes = (too_few + enough) / 2;
            if fits(max_bytes, 1) { enough = max_bytes } else { too_few = max_bytes }
        }
        assert!(fits(enough + 4096, usize::MAX) && !fits(enough / 2, usize::MAX), "{enough}");
    }
}

/// A text that cannot be read as a whole cannot be read in parts, and one that can be read both ways results in the
/// same module.
#[test]
fn parts_of_broken_text_are_refused() {
    let (mut n_good, mut n_bad) = (0, 0);
    let mut check = |text: &str| match (in_parts(text, usize::MAX), in_parts(text, 1)) {
        (Ok(whole), Ok(module)) => {
            assert!(module == whole, "{text}");
            n_good += 1;
        }
        (Err(_), Err(_)) => n_bad += 1,
        (Err(fault), Ok(_)) => panic!("{fault:?}:\n{text}"),
        // A name is used before its definition.
        (Ok(_), Err(_)) => {}
    };
    let text = TREACHEROUS;
    for end in 0..text.len() {
        check(&text[..end]);
        for replacement in ["}", "\"", "\n", "/*", "x", "ROOT ", ""] {
            check(&format!("{}{replacement}{}", &text[..end], &text[end..]));
            check(&format!("{}{replacement}{}", &text[..end], &text[end + 1..]));
        }
    }
    assert!(n_good > 1000 && n_bad > 1000, "{n_good} good, {n_bad} bad");
}

/// A text of several parts, and an instruction at its end.
fn long_text(last: &str) -> String {
    let mut text = "HloModule m\n\nENTRY e {\n  x0 = f32[2]{0} parameter(0)\n".to_string();
    for at in 1..8000 {
        text += &format!("  x{at} = f32[2]{{0}} negate(x{})\n", at - 1);
    }
    assert!(text.len() > 3 * parse::PART);
    text + "  ROOT y = " + last + "\n}\n"
}

#[test]
fn a_text_of_many_parts_is_read() {
    let module = parse(&long_text("f32[2]{0} add(x7999, x0)"), "m.hlo").unwrap();
    assert_eq!(module.entry().instructions.len(), 8001);
    assert_eq!(module.entry().instr(module.entry().root).operands, [InstrId(7999), InstrId(0)]);
    // Out of order: can only be read as a whole.
    let text = long_text("f32[2]{0} negate(x0)").replace("x5 = f32[2]{0} negate(x4)", "x5 = f32[2]{0} negate(x7999)");
    let text = text.replace("x6 = f32[2]{0} negate(x5)", "x6 = f32[2]{0} negate(x0)");
    assert!(in_parts(&text, parse::PART).is_err());
    let module = parse(&text, "m.hlo").unwrap();
    assert_eq!(module.entry().instructions.len(), 8001);
    assert!(module.entry().instructions.iter().rposition(|instr| instr.name == "x5") > Some(7990));
    let error = |text: String| parse(&text, "m.hlo").unwrap_err().to_string();
    assert_eq!(
        error(long_text("f32[2]{0} negate(x8000)")).lines().next(),
        Some("m.hlo:8004:29: no instruction of this computation is named `x8000`; help: did you mean `x800`")
    );
    assert_eq!(
        error(long_text("f33[] negate(x1)").replace("x7000 = f32[2]{0} negate", "x7000 = f32[2]{0} negate("))
            .lines()
            .next(),
        Some("m.hlo:8005:1: found `}`, expected `)`")
    );
    let called = long_text("f32[2]{0} call(x1), to_apply=g") + "f { ROOT x = f32[2]{0} parameter(0) }";
    assert_eq!(error(called.clone()).lines().next(), Some("m.hlo:8004:41: no computation is named `g`"));
    let calling_itself = called.replace("negate(x3)", "call(x3), to_apply=e").replace("=g", "=f");
    assert_eq!(error(calling_itself).lines().next(), Some("m.hlo:3:7: calls form a cycle through `e`"));
    assert_eq!(
        error(text.replace("x4000 =", "x1 =")).lines().next(),
        Some("m.hlo:4004:3: the instruction `x1` is defined twice")
    );
}

/// Found by fuzzing: unmodelled fields of metadata were lost if there were no others.
#[test]
fn metadata_of_unmodelled_fields_alone_is_printed() {
    let text = "HloModule m, entry_computation_layout={(f32[])->f32[]}\n\nENTRY m {\n  ROOT x = f32[] parameter(0), \
                metadata={scheduling_name=\"x.1\"}\n}\n\n";
    assert_eq!(print(&parse(text, "m.hlo").unwrap(), &PrintOptions::default()), text);
}
