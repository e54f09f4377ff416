//! Audits of modules whose born errors are known exactly, of modules from TensorFlow and JAX, and of bad input.

use crate::run;
use crate::run::client;

#[allow(dead_code)] // Written for another test crate.
use crate::amp::oracle;

use bf16scope::audit::{Audit, AuditError, AuditRow, Auditor, Config};
use bf16scope::document;
use bf16scope::hlo::ops::{Opaque, UnaryOp};
use bf16scope::hlo::{Literal, Module, Op, text};
use bf16scope::passes::amp::{self, LowDType, Policy, Reach};
use std::sync::LazyLock;

fn parse(body: &str) -> Module {
    let text = format!("HloModule m\n\n{body}");
    text::parse(&text, "m.txt").unwrap_or_else(|error| panic!("{error}"))
}

/// Lowers these ops, wherever they are.
fn allow(ops: &[&str]) -> Policy {
    Policy { allow: ops.iter().map(|op| op.to_string()).collect(), reach: Reach::All, ..Policy::default() }
}

fn array(values: &[f32]) -> Literal {
    Literal::from_elements([values.len() as i64], values)
}

fn audit_with(module: &Module, inputs: &[Literal], policy: &Policy, config: Config) -> Audit {
    let auditor = Auditor::new(client(), module, inputs, config).unwrap_or_else(|error| panic!("{error}"));
    auditor.audit(policy).unwrap_or_else(|error| panic!("{error}"))
}

fn audit(module: &Module, inputs: &[Literal], policy: &Policy) -> Audit {
    audit_with(module, inputs, policy, Config::default())
}

/// The audit of TensorFlow's modules under the default policy, which several tests read.
static MLP: LazyLock<Audit> = LazyLock::new(|| audit_of("oracle_tf/mlp_f32"));
static RESNET_BLOCK: LazyLock<Audit> = LazyLock::new(|| audit_of("oracle_tf/resnet_block_f32"));

fn audit_of(name: &str) -> Audit {
    let (module, inputs) = recorded(name);
    audit(&module, &inputs, &Policy::default())
}

fn row<'a>(audit: &'a Audit, name: &str) -> &'a AuditRow {
    audit.rows.iter().find(|row| row.instruction == name).unwrap_or_else(|| panic!("no row {name} in {audit:#?}"))
}

/// It was not compared, as no instruction of its name was a sum any more.
#[test]
fn a_sum_that_is_written_part_by_part_is_compared() {
    let module = parse(
        "add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main {
  x = f32[4,8,2,16] parameter(0)
  y = f32[4,8,1,16] parameter(1)
  w = f32[16,16] parameter(2)
  v = f32[48,16] parameter(3)
  zero = f32[] constant(0)
  two = f32[4,8,2,16] dot(x, w), lhs_contracting_dims={3}, rhs_contracting_dims={0}
  one = f32[4,8,1,16] dot(y, w), lhs_contracting_dims={3}, rhs_contracting_dims={0}
  all = f32[4,8,3,16] concatenate(two, one), dimensions={2}
  flat = f32[4,8,48] reshape(all)
  of_bias = f32[48] reduce(flat, zero), dimensions={0,1}, to_apply=add
  out = f32[4,8,16] dot(flat, v), lhs_contracting_dims={2}, rhs_contracting_dims={0}
  ROOT outs = (f32[4,8,16], f32[48]) tuple(out, of_bias)
}
",
    );
    let arrays = [[4, 8, 2, 16].as_slice(), &[4, 8, 1, 16], &[16, 16], &[48, 16]].map(|dims| {
        let n: i64 = dims.iter().product();
        Literal::from_elements(dims.to_vec(), &(0..n).map(|i| (i % 7) as f32 / 3.0 - 1.0).collect::<Vec<f32>>())
    });
    let report = audit(&module, &arrays, &Policy::default());
    assert_eq!(report.skipped, []);
    let sum = row(&report, "of_bias");
    // Its operands were rounded before; it rounds nothing itself, but adds in another order.
    assert!(sum.errors.scaled > 1e-5 && sum.born.scaled < sum.errors.scaled / 8.0, "{sum:#?}");
}

/// bf16 counts by 2 from 256: 257 lies between two numbers and goes to the even one.
#[test]
fn a_sum_that_bf16_does_not_hold() {
    let module =
        parse("ENTRY m {\n  x = f32[2] parameter(0)\n  y = f32[2] parameter(1)\n  ROOT sum = f32[2] add(x, y)\n}\n");
    let report = audit(&module, &[array(&[256.0, 1.0]), array(&[1.0, 2.0])], &allow(&["add"]));
    let sum = row(&report, "sum");
    assert_eq!((sum.reference.as_str(), sum.lowered.as_str()), ("f32[2]", "bf16[2]"));
    assert_eq!(sum.born, sum.errors);
    assert_eq!((sum.born.max_abs, sum.born.mean_abs), (1.0, 0.5));
    assert_eq!((sum.born.max_rel, sum.born.scaled), (1.0 / 257.0, 1.0 / 257.0));
    assert_eq!((sum.born.max_ulp, sum.born.mean_ulp), (0.5, 0.25));
    assert_eq!((report.error(), report.first_not_finite.as_deref(), report.n_slices), (1.0 / 257.0, None, 1));
    assert_eq!(report.results[0].instruction, "sum");
}

/// An f32 difference of a bf16 product, 256 for 257, and 250: it is off by a seventh, and the error is not born at it.
#[test]
fn a_difference_of_nearly_equal_numbers_enlarges_what_it_reads() {
    let body = |more: &str| {
        parse(&format!(
            "ENTRY m {{\n  x = f32[1] parameter(0)\n  one = f32[1] parameter(1)\n  y = f32[1] parameter(2)\n  \
             product = f32[1] multiply(x, one)\n  {more}\n}}\n"
        ))
    };
    let inputs = |y: f32| [array(&[257.0]), array(&[1.0]), array(&[y])];
    let audit_with = |more: &str, y: f32| audit(&body(more), &inputs(y), &allow(&["multiply"]));
    let report = audit_with("ROOT difference = f32[1] subtract(product, y)", 250.0);
    let difference = row(&report, "difference");
    assert_eq!((difference.born.scaled, difference.errors.scaled), (0.0, 1.0 / 7.0));
    assert_eq!((difference.grown, row(&report, "product").grown), (1.0 / 7.0 - 1.0 / 257.0, 0.0));
    assert_eq!(report.by_born()[0].instruction, "product");
    assert_eq!(report.worst_first()[0].instruction, "difference");
    // Its only reader has less of the error than the product had.
    let report = audit_with("difference = f32[1] subtract(product, y)\n  ROOT sum = f32[1] add(difference, x)", 250.0);
    assert_eq!((row(&report, "difference").grown, report.worst_first()[0].instruction.as_str()), (0.0, "product"));
    // A ten-thousandth that bf16 turns into -1: f32 does not know it either, as its rounding is amplified as much.
    let report = audit_with("ROOT difference = f32[1] subtract(product, y)", 256.9999);
    assert!(row(&report, "difference").errors.scaled > 1e3, "{report:#?}");
    assert_eq!(row(&report, "difference").grown, 0.0);
    // Another choice is a jump, however small the change is.
    let report = audit_with(
        "is = pred[1] compare(product, y), direction=GT\n  ROOT chosen = f32[1] select(is, product, one)",
        256.5,
    );
    let chosen = row(&report, "chosen");
    assert_eq!((chosen.errors.scaled, chosen.grown), (256.0 / 257.0, 0.0));
}

/// e to 16 instead of e to 16 + 1/16: a relative error of 1/257 becomes 1 - e^(-1/16), which is between 1/17 and 1/16.
#[test]
fn an_exponential_of_a_large_number_enlarges_what_it_reads() {
    let module = parse(
        "ENTRY m {\n  x = f32[1] parameter(0)\n  one = f32[1] parameter(1)\n  scores = f32[1] multiply(x, one)\n  \
         ROOT power = f32[1] exponential(scores)\n}\n",
    );
    let report = audit(&module, &[array(&[16.0625]), array(&[1.0])], &allow(&["multiply"]));
    let power = row(&report, "power");
    assert_eq!((power.born.scaled, row(&report, "scores").errors.scaled), (0.0, 1.0 / 257.0));
    assert!(power.errors.scaled > 1.0 / 17.0 && power.errors.scaled < 1.0 / 16.0, "{power:#?}");
    assert_eq!(power.grown, power.errors.scaled - 1.0 / 257.0);
    assert_eq!(
        (report.by_born()[0].instruction.as_str(), report.worst_first()[0].instruction.as_str()),
        ("scores", "power")
    );
}

/// An error that a kept instruction passes on was not born at it.
#[test]
fn error_is_handed_down_and_stays_where_it_was_born() {
    let module = parse(
        "ENTRY m {\n  x = f32[1] parameter(0)\n  y = f32[1] parameter(1)\n  sum = f32[1] add(x, y)\n  \
         ROOT product = f32[1] multiply(sum, y)\n}\n",
    );
    let policy = Policy { keep: vec!["product".to_string()], ..allow(&["add"]) };
    let report = audit(&module, &[array(&[254.0]), array(&[3.0])], &policy);
    let (sum, product) = (row(&report, "sum"), row(&report, "product"));
    assert_eq!((sum.born.max_abs, sum.errors.max_abs), (1.0, 1.0));
    assert_eq!((product.lowered.as_str(), product.born.max_abs, product.errors.max_abs), ("f32[1]", 0.0, 3.0));
    assert_eq!(report.by_born()[0].instruction, "sum");
    assert_eq!(report.error(), 3.0 / 771.0);
}

/// The difference of two numbers that bf16 cannot distinguish is all error, and is attributed to the subtraction.
#[test]
fn catastrophic_cancellation() {
    let module = parse(
        "ENTRY m {\n  x = f32[2] parameter(0)\n  y = f32[2] parameter(1)\n  \
         ROOT difference = f32[2] subtract(x, y)\n}\n",
    );
    let inputs = [array(&[1.0 + 1.0 / 512.0, 3.0]), array(&[1.0, 3.0])];
    let report = audit(&module, &inputs, &allow(&["subtract"]));
    let born = &row(&report, "difference").born;
    assert_eq!((born.scaled, born.max_rel, born.flushed, born.cosine), (1.0, 1.0, 0.5, 0.0));
}

/// exp(12) = 162,754.8 is infinite in f16, whose greatest number is 65,504. The rounding of 12 is exact.
#[test]
fn exp_of_large_overflows_and_is_the_first_to() {
    let module = parse(
        "ENTRY m {\n  x = f32[4] parameter(0)\n  power = f32[4] exponential(x)\n  \
         ROOT twice = f32[4] add(power, power)\n}\n",
    );
    let policy = Policy { dtype: LowDType::F16, ..allow(&["exponential", "add"]) };
    if run::has_f16() {
        let report = audit(&module, &[array(&[0.0, 12.0, 0.0, 0.0])], &policy);
        let born = &row(&report, "power").born;
        assert_eq!((born.n_introduced, born.overflowed, born.scaled), (1, 0.25, f64::INFINITY));
        assert_eq!(report.first_not_finite.as_deref(), Some("power"));
        assert_eq!(report.error(), f64::INFINITY);
    }
    // In bf16, whose exponent is f32's, 1 + 1 is exact and exp(12) rounds.
    let report = audit(&module, &[array(&[0.0, 12.0, 0.0, 0.0])], &allow(&["exponential", "add"]));
    assert_eq!(report.first_not_finite, None);
    assert!(row(&report, "power").born.max_ulp <= 0.5 + 1e-3, "{report:#?}");
}

/// A mapped reduction, a call and a loop are rows, and their bodies are lowered with them.
#[test]
fn called_computations_are_one_row() {
    let module = parse(
        "inner {\n  a = f32[2] parameter(0)\n  ROOT more = f32[2] add(a, a)\n}\n\n\
         body {\n  state = (s32[], f32[2]) parameter(0)\n  n = s32[] get-tuple-element(state), index=0\n  \
         v = f32[2] get-tuple-element(state), index=1\n  one = s32[] constant(1)\n  next = s32[] add(n, one)\n  \
         grown = f32[2] multiply(v, v)\n  ROOT out = (s32[], f32[2]) tuple(next, grown)\n}\n\n\
         condition {\n  state.1 = (s32[], f32[2]) parameter(0)\n  n.1 = s32[] get-tuple-element(state.1), index=0\n  \
         two = s32[] constant(2)\n  ROOT less = pred[] compare(n.1, two), direction=LT\n}\n\n\
         ENTRY m {\n  x = f32[2] parameter(0)\n  zero = s32[] constant(0)\n  \
         called = f32[2] call(x), to_apply=inner\n  start = (s32[], f32[2]) tuple(zero, called)\n  \
         loop = (s32[], f32[2]) while(start), condition=condition, body=body\n  \
         ROOT end = f32[2] get-tuple-element(loop), index=1\n}\n",
    );
    // The call is exact: 258 and 1.0625 are numbers of bf16. The loop squares twice, and rounds twice.
    let report = audit(&module, &[array(&[129.0, 1.0625 / 2.0])], &allow(&["add", "multiply"]));
    assert_eq!(row(&report, "called").born.max_abs, 0.0);
    let looped = row(&report, "loop");
    let bf16 = |x: f32| half::bf16::from_f32(x).to_f32();
    let square = bf16(258.0 * 258.0);
    let lowered = bf16(square * square);
    assert_eq!(looped.born.max_abs, f64::from(258f32.powi(4) - lowered).abs());
    assert_eq!(looped.errors, looped.born);
    let names: Vec<&str> = report.rows.iter().map(|row| row.instruction.as_str()).collect();
    assert_eq!(names, ["called", "loop"]);
    assert_eq!(report.skipped, []);
}

#[test]
fn a_policy_that_lowers_nothing_makes_no_error() {
    for name in ["oracle_tf/mlp_f32", "oracle_jax/encoder_forward"] {
        let (module, inputs) = recorded(name);
        let report = audit(&module, &inputs, &Policy::preset("O0").unwrap());
        assert!(report.rows.len() > 50);
        for row in &report.rows {
            assert_eq!((row.errors.scaled, row.born.scaled), (0.0, 0.0), "{name}: {row:?}");
        }
        assert_eq!(report.error(), 0.0);
    }
}

/// A subnormal number that a TPU would flush where f32 becomes bf16: 2^-130 is one in both formats.
#[test]
fn subnormal_numbers_are_flushed_if_wanted() {
    let module = parse("ENTRY m {\n  x = f32[4] parameter(0)\n  ROOT same = f32[4] copy(x)\n}\n");
    let small = f32::from_bits(1 << 19);
    let inputs = [array(&[small, -small, f32::MIN_POSITIVE, f32::NAN])];
    let policy = allow(&["copy"]);
    let report = audit(&module, &inputs, &policy);
    assert_eq!((row(&report, "same").lowered.as_str(), row(&report, "same").born.flushed), ("bf16[4]", 0.0));
    assert_eq!(report.error(), 0.0);
    let config = Config { flush_subnormals: true, ..Config::default() };
    let flushed = audit_with(&module, &inputs, &policy, config);
    let same = row(&flushed, "same");
    assert_eq!((same.born.flushed, same.errors.flushed), (0.5, 0.5));
    assert_eq!((same.errors.max_abs, same.errors.n_introduced), (2f64.powi(-130), 0));
}

/// Slices bound memory and change nothing.
#[test]
fn slices_give_the_same_rows() {
    let (module, inputs) = recorded("oracle_tf/mlp_f32");
    let whole = &*MLP;
    assert_eq!(whole.n_slices, 1);
    // 3 × 32 KiB: the largest array is `[64,128]`.
    let config = Config { slice_bytes: 3 << 15, ..Config::default() };
    let sliced = audit_with(&module, &inputs, &Policy::default(), config);
    assert!(sliced.n_slices > 4, "{}", sliced.n_slices);
    assert_eq!(sliced.results, whole.results);
    assert_eq!(sliced.rows.len(), whole.rows.len());
    for (sliced, whole) in sliced.rows.iter().zip(&whole.rows) {
        assert_eq!(sliced.instruction, whole.instruction);
        assert_eq!(
            sliced.born.scaled, whole.born.scaled,
            "{sliced:?}
{whole:?}"
        );
    }
}

/// One rounding of what is read and one of what is given is all that ops can do which only move, compare or add values.
#[test]
fn born_errors_of_real_modules_are_those_of_rounding() {
    for (name, report) in [("oracle_tf/mlp_f32", &*MLP), ("oracle_tf/resnet_block_f32", &*RESNET_BLOCK)] {
        assert!(report.skipped.is_empty() && report.first_not_finite.is_none(), "{:?}", report.skipped);
        let lowered = report.rows.iter().filter(|row| row.reference != row.lowered).count();
        assert!(lowered > 10, "{name}: {lowered} rows are lowered");
        for row in &report.rows {
            let moves = ["transpose", "reshape", "broadcast", "maximum", "copy"].contains(&row.opcode.as_str());
            if moves {
                assert!(row.born.max_ulp <= 0.5, "{name}: {row:?}");
            }
            if row.reference == row.lowered && row.errors.scaled == 0.0 {
                assert_eq!(row.born.scaled, 0.0, "{name}: an unlowered row of right operands: {row:?}");
            }
        }
    }
}

/// The errors of results are measured in the unmodified modules: they are those of two plain runs.
#[test]
fn results_are_those_of_plain_runs() {
    let step = audit_of("oracle_jax/mlp_adam_step");
    let audits = [
        ("oracle_tf/mlp_f32", &*MLP),
        ("oracle_tf/resnet_block_f32", &*RESNET_BLOCK),
        ("oracle_jax/mlp_adam_step", &step),
    ];
    for (name, report) in audits {
        let (module, inputs) = recorded(name);
        let arguments: Vec<Vec<u8>> = inputs
            .iter()
            .map(|input| match input {
                Literal::Array { bytes, .. } => bytes.clone(),
                Literal::Tuple(_) | Literal::Token => panic!("{name}: {input:?}"),
            })
            .collect();
        let (lowered, _) = amp::run(&module, &Policy::default()).unwrap();
        let (reference, measured) = (oracle::run(&module, &arguments), oracle::run(&lowered, &arguments));
        let floats: Vec<_> = report.results.iter().filter_map(|row| Some((row.index, row.errors?))).collect();
        assert_eq!(floats.len(), reference.len());
        for ((index, errors), ((at, r), (_, x))) in floats.into_iter().zip(reference.iter().zip(&measured)) {
            let greatest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
            let error = greatest(&mut r.iter().zip(x).map(|(r, x)| (f64::from(*x) - f64::from(*r)).abs()));
            let scale = greatest(&mut r.iter().map(|r| f64::from(*r).abs()));
            assert_eq!((index, errors.max_abs, errors.scaled), (*at, error, error / scale), "{name}");
        }
    }
}

/// 256 + 1 rounds, its difference from 256 cancels, and the product of that with 1.001 rounds by a thousandth: the
/// difference needs both it and the sum to be kept, wherever errors are born, and the exact sum needs nothing.
#[test]
fn a_search_finds_a_minimal_list() {
    let module = parse(
        "ENTRY m {\n  x = f32[1] parameter(0)\n  y = f32[1] parameter(1)\n  z = f32[1] parameter(2)\n  \
         exact = f32[1] add(x, x)\n  sum = f32[1] add(x, y)\n  difference = f32[1] subtract(sum, x)\n  \
         product = f32[1] multiply(difference, z)\n  ROOT out = (f32[1], f32[1]) tuple(product, exact)\n}\n",
    );
    let inputs = [array(&[256.0]), array(&[1.0]), array(&[1.001])];
    let auditor = Auditor::new(client(), &module, &inputs, Config::default()).unwrap();
    let policy = allow(&["add", "subtract", "multiply"]);
    let report = auditor.audit(&policy).unwrap();
    assert_eq!(report.error(), 1.0);
    for (budget, expected) in
        [(1.0, &[][..]), (1e-2, &["difference", "sum"]), (1e-5, &["difference", "sum", "product"])]
    {
        let search = auditor.search(&policy, &report, budget).unwrap();
        let mut keep: Vec<&str> = search.keep.iter().map(String::as_str).collect();
        let mut expected = expected.to_vec();
        keep.sort_unstable();
        expected.sort_unstable();
        assert_eq!(keep, expected, "{search:#?}");
        assert!(search.is_reached && search.error <= budget, "{search:#?}");
        assert_eq!(search.policy.keep, search.keep);
        assert_eq!(auditor.audit(&search.policy).unwrap().error(), search.error);
        for name in &search.keep {
            let mut without = search.policy.clone();
            without.keep.retain(|keep| keep != name);
            let error = auditor.audit(&without).unwrap().error();
            assert!(error > budget, "{name} is not needed: {error} without it, budget {budget}");
        }
        // The policy as a document is the policy.
        let text = document::to_string(&search.policy).unwrap();
        assert_eq!(document::from_str::<Policy>("policy.yaml", &text).unwrap(), search.policy);
    }
}

/// If the parameters themselves are rounded, keeping instructions does not help, and the search reports that.
#[test]
fn a_search_says_what_cannot_be_reached() {
    let module = parse("ENTRY m {\n  x = f32[1] parameter(0)\n  ROOT twice = f32[1] add(x, x)\n}\n");
    let inputs = [array(&[257.0])];
    let auditor = Auditor::new(client(), &module, &inputs, Config::default()).unwrap();
    let policy = Policy::preset("O3").unwrap();
    let report = auditor.audit(&policy).unwrap();
    // The parameter is a row, for it is read as bf16.
    assert_eq!(row(&report, "x").born.max_abs, 1.0);
    let search = auditor.search(&policy, &report, 1e-4).unwrap();
    assert!(!search.is_reached && search.error >= 1.0 / 257.0, "{search:#?}");
}

#[test]
fn what_cannot_be_audited_is_said() {
    let module = parse("ENTRY m {\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] negate(x)\n}\n");
    let error = |module: &Module, inputs: &[Literal]| -> AuditError {
        Auditor::new(client(), module, inputs, Config::default()).map(|_| ()).unwrap_err()
    };
    assert_eq!(
        error(&module, &[]).to_string(),
        "0 inputs were given, expected 1: one for each array that the parameters hold, in order"
    );
    assert_eq!(error(&module, &[array(&[1.0])]).to_string(), "input 0 is f32[1], expected f32[2] for parameter %x");
    let mut random = module.clone();
    let y = &mut random.computations[0].instructions[1];
    assert_eq!(y.op, Op::Unary(UnaryOp::Negate));
    y.op = Op::Opaque(Box::new(Opaque { opcode: "rng".to_string(), ..opaque() }));
    assert_eq!(
        error(&random, &[array(&[1.0, 2.0])]).to_string(),
        "%y is an `rng`, which draws other numbers in every run, so that two runs cannot be compared; expected \
         `rng-bit-generator`, or random numbers as an input"
    );
    let mut broken = module.clone();
    broken.computations[0].instructions[1].operands.clear();
    assert!(matches!(error(&broken, &[array(&[1.0, 2.0])]), AuditError::Invalid(_)));
}

fn opaque() -> Opaque {
    let module = parse("ENTRY m {\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] topk(x)\n}\n");
    match &module.entry().instructions[1].op {
        Op::Opaque(opaque) => (**opaque).clone(),
        op => panic!("{op:?}"),
    }
}

/// A module from a framework, with the inputs with which it was recorded.
fn recorded(name: &str) -> (Module, Vec<Literal>) {
    let module = oracle::module(name);
    let npz = name.trim_end_matches("_f32");
    let arguments = oracle::Recorded::open(npz).arguments(name, &module);
    let entry = module.entry();
    let shapes = entry.parameters().into_iter().map(|id| entry.instr(id).shape.as_array().unwrap().clone());
    let inputs = shapes.zip(arguments).map(|(shape, bytes)| Literal::Array { shape, bytes }).collect();
    (module, inputs)
}
