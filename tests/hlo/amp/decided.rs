//! Policies that decide the forms of single instructions, and the alternatives that the report offers.

use crate::run::run_bytes;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::{Literal, Module, text};
use bf16scope::passes::amp::{self, Decided, LoweringReport, Policy, StoredAs};
use bf16scope::pjrt::CompileOptions;

/// Ops between two products: one applies a statistic (`centered`, f32 by the rules), one adds a stored array (`sum`,
/// bf16 by the rules), and one looks up rows of a parameter, fewer than it has.
const SOURCE: &str = "HloModule net

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,16] parameter(1)
  table = f32[64,16] parameter(2)
  ids = s32[8,1] parameter(3)
  zero = f32[] constant(0)
  sixteenth = f32[] constant(0.0625)
  hidden = f32[8,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  total = f32[8] reduce(hidden, zero), dimensions={1}, to_apply=add
  part = f32[8] broadcast(sixteenth), dimensions={}
  mean = f32[8] multiply(total, part)
  means = f32[8,16] broadcast(mean), dimensions={0}
  centered = f32[8,16] subtract(hidden, means)
  rows = f32[8,16] gather(table, ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,16}
  next = f32[8,16] dot(centered, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  found = f32[8,16] dot(rows, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  sum = f32[8,16] add(next, found)
  ROOT out = f32[8,16] dot(sum, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
";

fn module() -> Module {
    text::parse(SOURCE, "net.hlo").unwrap_or_else(|error| panic!("{error}"))
}

/// The policy with one decision.
fn decided(instruction: &str, form: StoredAs) -> Policy {
    let module = module();
    let instr = module.entry().instructions.iter().find(|instr| instr.name == instruction).unwrap();
    Policy { decided: vec![Decided::new(instr, form, "it was asked for")], ..Policy::default() }
}

fn lower(policy: &Policy) -> (Module, LoweringReport) {
    amp::run(&module(), policy).unwrap_or_else(|error| panic!("{error}"))
}

/// A line of the lowered module.
fn line(module: &Module, name: &str) -> String {
    let text = text::print(module, &Default::default());
    let wanted = format!("{name} = ");
    let decision =
        text.lines().find(|line| line.trim().trim_start_matches("ROOT ").trim_start_matches('%').starts_with(&wanted));
    decision.unwrap_or_else(|| panic!("there is no {name} in\n{text}")).trim().to_string()
}

#[test]
fn the_report_says_which_forms_round_no_more() {
    let (_, report) = lower(&Policy::default());
    let forms = |name: &str| report.explain(name)[0].alternatives.clone();
    assert_eq!(forms("centered"), [StoredAs::Rounded]);
    assert_eq!(forms("rows"), [StoredAs::Narrow]);
    assert_eq!(forms("sum"), [StoredAs::F32, StoredAs::Barrier]);
    assert_eq!(forms("next"), [StoredAs::Barrier]);
    // The program's result, and the operand of a statistic's sum.
    assert!(forms("out").is_empty() && forms("total").is_empty());
}

#[test]
fn a_decision_is_done_and_told() {
    let (lowered, report) = lower(&decided("sum", StoredAs::F32));
    assert!(line(&lowered, "sum").contains("f32[8,16]"), "{}", line(&lowered, "sum"));
    assert_eq!(report.explain("sum")[0].rule, "the policy decides its form, in f32: it was asked for");
    let (lowered, report) = lower(&decided("centered", StoredAs::Rounded));
    assert!(line(&lowered, "centered").contains("f32[8,16]"), "{}", line(&lowered, "centered"));
    assert_eq!(
        report.explain("centered")[0].rule,
        "the policy decides its form, in f32, rounded once: it was asked for"
    );
    let (lowered, _) = lower(&decided("rows", StoredAs::Narrow));
    assert!(line(&lowered, "rows").contains("bf16[8,16]"), "{}", line(&lowered, "rows"));
    let (lowered, report) = lower(&decided("sum", StoredAs::Barrier));
    assert!(line(&lowered, "sum.stored").contains("opt-barrier"), "{}", line(&lowered, "sum.stored"));
    assert!(line(&lowered, "out").contains("sum.stored"), "{}", line(&lowered, "out"));
    assert_eq!(
        report.explain("sum")[0].rule,
        "it lies between ops that are lowered; the policy decides its form, behind a barrier: it was asked for"
    );
}

/// A decision is for one module: another may have an instruction with the same name.
#[test]
fn a_decision_on_nothing_is_told() {
    let mut policy = decided("sum", StoredAs::F32);
    policy.decided[0].of = "multiply f32[8,16]".to_string();
    let (lowered, report) = lower(&policy);
    assert_eq!(lowered, lower(&Policy::default()).0);
    let [note] = &report.notes[..] else { panic!("{:?}", report.notes) };
    assert_eq!(
        note,
        "decided: `sum` is to be `multiply f32[8,16]`, and in net it is `add f32[8,16]`: nothing was done\nhelp: decisions \
         are for one module; `bf16scope lower --target` makes those of another"
    );
    policy.decided[0].instruction = "sums".to_string();
    let note = &lower(&policy).1.notes[0];
    assert!(note.contains("there is no instruction of that name"), "{note}");
}

/// Rounding elsewhere, or a barrier, changes no bit; nor does staying f32 up to a product, which rounds.
#[test]
fn other_forms_are_as_exact() {
    let numbers = |n: usize, seed: u32| -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..n).map(|_| next()).collect()
    };
    let arguments = [
        Literal::from_elements([8, 16], &numbers(128, 1)),
        Literal::from_elements([16, 16], &numbers(256, 2)),
        Literal::from_elements([64, 16], &numbers(1024, 3)),
        Literal::from_elements([8, 1], &[3i32, 60, 0, 17, 3, 9, 63, 1]),
    ];
    let results = |module: &Module| {
        let bytes = encode::to_bytes(module).unwrap();
        run_bytes(&bytes, &CompileOptions::default(), &arguments)[0].elements::<f32>().unwrap()
    };
    let by_rules = results(&lower(&Policy::default()).0);
    for (name, form) in [
        ("centered", StoredAs::Rounded),
        ("rows", StoredAs::Narrow),
        ("sum", StoredAs::Barrier),
        ("sum", StoredAs::F32),
        ("hidden", StoredAs::Barrier),
    ] {
        assert_eq!(results(&lower(&decided(name, form)).0), by_rules, "{name}");
    }
}
