//! Logits that are as large as any parameter or larger: which are rounded, together with the sum that is their bias's
//! gradient.

use super::oracle::run;
use bf16scope::hlo::{DType, Module, text};
use bf16scope::passes::amp::{self, Boundary, Decided, LowDType, Policy, StoredAs};
use expect_test::expect;

/// A step with `n` rows: a product and a bias compute logits of 16 words, the loss looks up one per row, and the
/// bias's gradient is the sum over all rows of an array that a second product reads.
fn step(n: i64, bias: &str) -> Module {
    let source = format!(
        "HloModule step

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}}

never {{
  carried = f32[16] parameter(0)
  ROOT is = pred[] constant(false)
}}

same {{
  ROOT carried = f32[16] parameter(0)
}}

squared {{
  carried = f32[16] parameter(0)
  matrix = f32[16,16] broadcast(carried), dimensions={{1}}
  ROOT products = f32[16] dot(carried, matrix), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
}}

logarithms {{
  carried = f32[16] parameter(0)
  ROOT logarithms = f32[16] log(carried)
}}

ENTRY main {{
  x = f32[{n},8] parameter(0)
  kernel = f32[8,16] parameter(1)
  bias = f32[16] parameter(2)
  words = s32[{n},1] parameter(3)
  product = f32[{n},16] dot(x, kernel), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  biases = f32[{n},16] broadcast(bias), dimensions={{1}}
  logits = f32[{n},16] add(product, biases)
  looked_up = f32[{n},1] gather(logits, words), offset_dims={{}}, collapsed_slice_dims={{1}}, start_index_map={{1}}, operand_batching_dims={{0}}, start_indices_batching_dims={{0}}, index_vector_dim=2, slice_sizes={{1,1}}
  zero = f32[] constant(0)
  exponentials = f32[{n},16] exponential(logits)
  sums = f32[{n}] reduce(exponentials, zero), dimensions={{1}}, to_apply=add
  logarithms = f32[{n}] log(sums)
  all = f32[] reduce(logarithms, zero), dimensions={{0}}, to_apply=add
  found = f32[] reduce(looked_up, zero), dimensions={{0,1}}, to_apply=add
  loss = f32[] subtract(all, found)
  each = f32[{n},16] broadcast(sums), dimensions={{0}}
  gradients = f32[{n},16] divide(exponentials, each)
  of_kernel = f32[8,16] dot(x, gradients), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  new_kernel = f32[8,16] subtract(kernel, of_kernel)
{bias}
  ROOT results = (f32[], f32[8,16], f32[16]) tuple(loss, new_kernel, new_bias)
}}
"
    );
    text::parse(&source, "step.hlo").unwrap_or_else(|error| panic!("{error}"))
}

const SUM: &str = "  of_bias = f32[16] reduce(gradients, zero), dimensions={0}, to_apply=add
  new_bias = f32[16] subtract(bias, of_bias)";

fn lowered(module: &Module, policy: &Policy) -> Module {
    amp::run(module, policy).unwrap_or_else(|error| panic!("{error}")).0
}

/// Whether logits are rounded before they are reduced, and in which dtype the bias's gradient is summed.
fn logits_and_bias(module: &Module) -> (bool, Option<DType>) {
    let entry = module.entry();
    let named = |name: &str| entry.instructions.iter().find(|instr| instr.name == name);
    let looked_up = named("looked_up").unwrap();
    assert_eq!(looked_up.shape.dtype(), Some(DType::F32), "what is looked up is f32 in any case");
    let read = entry.instr(named("exponentials").unwrap().operands[0]);
    let is_rounded = read.name != "logits";
    assert_eq!(entry.instr(looked_up.operands[0]).name == "logits", !is_rounded);
    (is_rounded, named("of_bias").and_then(|sum| sum.shape.dtype()))
}

#[test]
fn logits_as_large_as_parameters_are_rounded_and_their_bias_summed_so() {
    // The largest parameter is the kernel, of 8 by 16 numbers.
    for (n, name) in [(32, "default"), (32, "bf16_scope"), (8, "default")] {
        let module = step(n, SUM);
        let (lowered, report) = amp::run(&module, &Policy::preset(name).unwrap()).unwrap();
        assert_eq!(logits_and_bias(&lowered), (true, Some(DType::BF16)), "{name}");
        let rule_of =
            |name: &str| report.decisions.iter().find(|decision| decision.instruction == name).unwrap().rule.clone();
        expect!["it gives logits as large as any parameter, which the compiler stores"].assert_eq(&rule_of("logits"));
        expect!["it sums values that are narrow already, and both its operand and its result are materialised"]
            .assert_eq(&rule_of("of_bias"));
    }
}

/// Not if they are smaller than a parameter, without a sum for a bias, in f16, or if the policy keeps them.
#[test]
fn other_logits_stay_f32() {
    let default = Policy::default();
    assert_eq!(logits_and_bias(&lowered(&step(7, SUM), &default)), (false, Some(DType::F32)));
    let alone = "  of_bias = f32[] constant(1)\n  new_bias = f32[16] negate(bias)";
    assert!(!logits_and_bias(&lowered(&step(32, alone), &default)).0);
    for (body, is_rounded) in [("same", true), ("squared", false), ("logarithms", false)] {
        let in_a_loop = format!(
            "  of_bias = f32[16] reduce(gradients, zero), dimensions={{0}}, to_apply=add
  new_bias = f32[16] while(of_bias), condition=never, body={body}"
        );
        let (found, sum) = logits_and_bias(&lowered(&step(32, &in_a_loop), &default));
        assert_eq!(
            (found, sum == Some(DType::BF16)),
            (is_rounded, is_rounded),
            "a loop reads what is computed from them"
        );
    }
    let module = step(32, SUM);
    let keep = Policy { logits: Boundary::Keep, ..default.clone() };
    let f16 = Policy { dtype: LowDType::F16, ..default.clone() };
    let island = Policy { island: vec!["reduce:add".to_string()], ..default };
    for policy in [&keep, &f16, &island, &Policy::preset("tf_amp").unwrap()] {
        assert_eq!(logits_and_bias(&lowered(&module, policy)), (false, Some(DType::F32)));
    }
}

/// The lookup reads f32, and could read bf16: the numbers are the same, as they are rounded already.
#[test]
fn rounded_logits_may_be_looked_up_as_they_are() {
    let forms = |n: i64| {
        let (_, report) = amp::run(&step(n, SUM), &Policy::default()).unwrap_or_else(|error| panic!("{error}"));
        report.explain("looked_up")[0].alternatives.clone()
    };
    assert_eq!(forms(32), [StoredAs::Narrow]);
    assert!(forms(7).is_empty(), "these are not rounded");
    let module = step(32, SUM);
    let entry = module.entry();
    let looked_up = entry.instructions.iter().find(|instr| instr.name == "looked_up").unwrap();
    let decided = vec![Decided::new(looked_up, StoredAs::Narrow, "")];
    let narrow = lowered(&module, &Policy { decided, ..Policy::default() });
    let gathers = narrow.entry().instructions.iter().filter(|instr| instr.op.opcode() == "gather");
    assert_eq!(gathers.map(|instr| instr.shape.dtype()).collect::<Vec<_>>(), [Some(DType::BF16)]);
    let numbers = |n: i64, step: f32| (0..n).flat_map(|i| (step * (i % 23) as f32 - 1.0).to_le_bytes()).collect();
    let words = (0..32).flat_map(|i: i32| (i * 5 % 16).to_le_bytes()).collect();
    let arguments = [numbers(32 * 8, 0.07), numbers(8 * 16, 0.11), numbers(16, 0.013), words];
    assert_eq!(run(&narrow, &arguments), run(&lowered(&module, &Policy::default()), &arguments));
}

/// As many rows as words: the sum over words is a different one.
#[test]
fn of_square_logits_the_sum_over_rows_is_the_biass() {
    let both = "  of_rows = f32[16] reduce(gradients, zero), dimensions={1}, to_apply=add
  of_bias = f32[16] reduce(gradients, zero), dimensions={0}, to_apply=add
  new_bias = f32[16] subtract(of_rows, of_bias)";
    let module = lowered(&step(16, both), &Policy::default());
    assert_eq!(logits_and_bias(&module), (true, Some(DType::BF16)));
    let of_rows = module.entry().instructions.iter().find(|instr| instr.name == "of_rows").unwrap();
    assert_eq!(of_rows.shape.dtype(), Some(DType::F32));
}

/// The same bits as the step with both in bf16 by hand.
#[test]
fn logits_are_rounded_as_by_hand() {
    let module = step(32, SUM);
    let keeps_logits = lowered(&module, &Policy { logits: Boundary::Keep, ..Policy::default() });
    let source = text::print(&keeps_logits, &text::PrintOptions::default());
    let sum = source.lines().find(|line| line.starts_with("  logits = ")).unwrap();
    let (_, operands) = sum.trim_end_matches(')').split_once("add(").unwrap();
    let (product, biases) = operands.split_once(", ").unwrap();
    let in_bf16 = format!(
        "  product_bf16 = bf16[32,16]{{1,0}} convert({product})\n  biases_bf16 = bf16[32,16]{{1,0}} convert({biases})\n  \
         logits_bf16 = bf16[32,16]{{1,0}} add(product_bf16, biases_bf16)\n  logits = f32[32,16]{{1,0}} convert(logits_bf16)"
    );
    let by_hand = source
        .replacen(sum, &in_bf16, 1)
        .replacen(
            "  of_bias = f32[16]{0} reduce(gradients, zero)",
            "  first = bf16[32,16]{1,0} convert(gradients)\n  zero_bf16 = bf16[] constant(0)\n  sum_bf16 = bf16[16]{0} \
             reduce(first, zero_bf16), dimensions={0}, to_apply=add_bf16\n  of_bias = f32[16]{0} convert(sum_bf16)\n  \
             unused = f32[16]{0} reduce(gradients, zero)",
            1,
        )
        .replacen(
            "add {",
            "add_bf16 {\n  p = bf16[] parameter(0)\n  q = bf16[] parameter(1)\n  ROOT r = bf16[] add(p, q)\n}\n\nadd {",
            1,
        );
    let by_hand = text::parse(&by_hand, "by_hand.hlo").unwrap_or_else(|error| panic!("{error}\n{by_hand}"));
    let floats = |n: usize| (0..n).flat_map(|i| ((i * 37 % 101) as f32 / 101.0 - 0.5).to_le_bytes()).collect();
    let words = (0..32i32).flat_map(|i| (i * i % 16).to_le_bytes()).collect();
    let arguments: Vec<Vec<u8>> = vec![floats(32 * 8), floats(8 * 16), floats(16), words];
    let rounded = run(&lowered(&module, &Policy::default()), &arguments);
    assert_eq!(rounded, run(&by_hand, &arguments));
    assert_ne!(rounded, run(&keeps_logits, &arguments));
}
