//! Invariants of lowering, whatever it decides: over the corpus, over random programs and over their gradients.
//!
//! - Lowering twice changes nothing.
//! - Adding an op to `allow` raises no other value to f32.
//! - No more bytes are stored at once than in f32.
//! - A value has at most one cast to each dtype.
//! - A program whose results are finite in f32 has finite results.
//! - No way through a program has more roundings than the hand-written bf16 form has on any way to the same result.
//! - Each reason that the report may state is stated for a committed module from a framework.
//!
//! Known failures are in `known_failures.txt`. `ci/long` tests 10,000 programs.

use super::corpus::{Lowered, by_hand, corpus, on_all_cores, text_of};
use super::evaluate::evaluate;
use super::known_failures::judge;
use super::oracle;
use super::programs::{Draws, Form, Program};
use super::roundings::stored;
use crate::modules;
use bf16scope::hlo::ops::decisions::list_names;
use bf16scope::hlo::ops::precision::Class;
use bf16scope::hlo::ops::{BinaryOp, UnaryOp, decisions};
use bf16scope::hlo::{CompId, Computation, DType, InstrId, Instruction, Literal, Module, Op, text};
use bf16scope::passes::amp::{self, LoweringReport, Policy, presets};
use bf16scope::passes::grad;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(super) fn lowered(module: &Module, policy: &Policy) -> (Module, LoweringReport) {
    amp::run(module, policy).unwrap_or_else(|error| panic!("{}: {error}", module.name))
}

/// A random program with its gradients.
fn differentiated(seed: u64) -> Module {
    let mut draws = Draws(seed);
    let program = Program::new(&mut draws);
    let form = Form {
        keeps_before: draws.below(2) == 1,
        is_over_layers: draws.below(2) == 1,
        sums_products: draws.below(2) == 1,
        is_majorant: false,
    };
    let module = text::parse(&program.text(form), "random.hlo").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let config = grad::Config { loss: 0, wrt: vec![0, 1, 2, 3] };
    grad::run(&module, &config).unwrap_or_else(|error| panic!("seed {seed}: {error}")).0
}

/// A random program of few ops.
fn small(seed: u64) -> Module {
    let config = Config { failure_persistence: None, ..Config::default() };
    let rng =
        TestRng::from_seed(RngAlgorithm::ChaCha, &std::array::from_fn::<u8, 32, _>(|at| (seed >> (at % 8 * 8)) as u8));
    let mut runner = TestRunner::new_with_rng(config, rng);
    let steps = proptest::collection::vec(modules::step(), 3..24).new_tree(&mut runner).unwrap().current();
    modules::build(&steps)
}

/// A random program of either kind.
fn random(seed: u64) -> Module {
    if seed.is_multiple_of(2) { small(seed) } else { differentiated(seed) }
}

/// A rule: describes how a module, its lowered form and the report break it, if they do.
type Asked = dyn Fn(&Module, &Module, &LoweringReport) -> Option<String> + Sync;

/// Tests a rule on the corpus and on random programs; returns the failures.
pub(super) fn failures(
    steps: &[&Lowered],
    seeds: Range<u64>,
    rule: impl Fn(&Module, &Module, &LoweringReport) -> Option<String> + Sync,
) -> BTreeMap<String, String> {
    let of_steps = on_all_cores(steps, |step| {
        rule(&step.module, &step.lowered, &step.report).map(|what| (step.name.clone(), what))
    });
    let of_seeds = on_all_cores(&seeds.collect::<Vec<u64>>(), |&seed| {
        let module = random(seed);
        let (lowered, report) = lowered(&module, &Policy::default());
        rule(&module, &lowered, &report).map(|what| (format!("random.{seed}"), what))
    });
    of_steps.into_iter().chain(of_seeds).flatten().collect()
}

fn all() -> Vec<&'static Lowered> {
    corpus().iter().collect()
}

/// The steps of `tests/data/corpus/steps.py`, which are smaller.
fn with_hand() -> Vec<(&'static Lowered, Module)> {
    corpus().iter().filter_map(|step| Some((step, by_hand(&step.name)?))).collect()
}

fn instructions(module: &Module) -> impl Iterator<Item = (&Computation, &Instruction)> {
    module
        .computations
        .iter()
        .flat_map(|computation| computation.instructions.iter().map(move |instr| (computation, instr)))
}

/// The first line that differs in two texts.
fn difference(old: &str, new: &str) -> Option<String> {
    let same = |(old, new): &(&str, &str)| old == new;
    let n = old.lines().zip(new.lines()).take_while(same).count();
    let line = |text: &str| text.lines().nth(n).unwrap_or("(ends)").trim().to_string();
    (old != new).then(|| format!("line {} is `{}`, lowered again `{}`", n + 1, line(old), line(new)))
}

/// The change by lowering a lowered module.
fn changes_twice(_: &Module, low: &Module, _: &LoweringReport) -> Option<String> {
    difference(&text_of(low), &text_of(&lowered(low, &Policy::default()).0))
}

/// A value with two casts to one dtype that it did not have before.
fn cast_twice(before: &Module, low: &Module, _: &LoweringReport) -> Option<String> {
    let casts = |computation: &Computation| {
        let mut n: BTreeMap<(InstrId, Option<DType>), usize> = BTreeMap::new();
        for instr in computation.instructions.iter().filter(|instr| matches!(instr.op, Op::Convert)) {
            *n.entry((instr.operands[0], instr.shape.dtype())).or_default() += 1;
        }
        n
    };
    let most_before = before.computations.iter().flat_map(|computation| casts(computation).into_values()).max();
    low.computations.iter().find_map(|computation| {
        let (cast, n) = casts(computation).into_iter().find(|(_, n)| *n > most_before.unwrap_or(1).max(1))?;
        let dtype = cast.1.map(|dtype| dtype.to_string()).unwrap_or_default();
        Some(format!("{}/{} has {n} casts to {dtype}", computation.name, computation.instr(cast.0).name))
    })
}

fn stores_more(before: &Module, low: &Module, _: &LoweringReport) -> Option<String> {
    let (now, before) = (stored(low), stored(before));
    (now > before).then(|| format!("{now} bytes are stored at once, in f32 {before}"))
}

/// How many values of each name are narrow.
fn narrow(report: &LoweringReport) -> BTreeMap<&str, usize> {
    let mut narrow = BTreeMap::new();
    for decision in &report.decisions {
        *narrow.entry(&decision.instruction[..]).or_default() += usize::from(decision.new != decision.old);
    }
    narrow
}

/// A value that becomes f32 when another op is added to `allow`; `n_ops` of the module's ops are tried.
fn raised(module: &Module, report: &LoweringReport, n_ops: usize) -> Option<String> {
    let before = narrow(report);
    let mut ops = BTreeMap::new();
    for (_, instr) in instructions(module) {
        let class = decisions::precision_class(module, &instr.op);
        if let (Class::Infer, Some(name)) = (class, list_names(module, &instr.op).pop()) {
            ops.entry(name).or_insert_with(BTreeSet::new).insert(&instr.name[..]);
        }
    }
    // An op may stand in the list under its more specific name only.
    for (op, of_op) in ops.into_iter().take(n_ops) {
        let policy = Policy { allow: vec![op.clone()], ..Policy::default() };
        let Ok((_, report)) = amp::run(module, &policy) else { continue };
        let now = narrow(&report);
        let raised = before.iter().find(|(name, n)| !of_op.contains(*name) && now.get(*name).unwrap_or(&0) < n);
        if let Some((name, n)) = raised {
            let now = now.get(name).unwrap_or(&0);
            return Some(format!("`allow: [{op}]` leaves {now} copies of {name} narrow, of {n} without it"));
        }
    }
    None
}

#[test]
fn lowering_twice_changes_nothing() {
    judge("twice", &failures(&all(), 0..200, changes_twice));
}

#[test]
fn a_value_has_one_cast_to_each_dtype() {
    judge("casts", &failures(&all(), 0..200, cast_twice));
}

#[test]
fn no_more_is_stored_than_in_f32() {
    judge("stored", &failures(&all(), 0..200, stores_more));
}

#[test]
fn what_is_added_to_allow_raises_nothing_else() {
    let steps: Vec<&Lowered> = with_hand().into_iter().map(|(step, _)| step).collect();
    judge("allow", &failures(&steps, 0..100, |module, _, report| raised(module, report, 4)));
}

/// A number that bf16 rounds to infinity.
const LARGE: f32 = f32::MAX;

/// Arguments of a random program some of whose numbers are nearly infinite.
fn large(literal: Literal, draws: &mut Draws) -> Literal {
    let Some(mut elements) = literal.elements::<f32>() else { return literal };
    for element in &mut elements {
        match draws.below(8) {
            0 => *element = LARGE,
            1 => *element = -LARGE,
            _ => {}
        }
    }
    Literal::from_elements(literal.shape().dims(), &elements)
}

/// The random programs that are finite in f32 but not when they are lowered; and how many are finite.
fn not_finite(seeds: Range<u64>) -> (BTreeMap<String, String>, usize) {
    let is_finite = |results: &[Literal]| {
        let floats = results.iter().filter_map(Literal::elements::<f32>);
        floats.flatten().all(f32::is_finite)
    };
    let checked = on_all_cores(&seeds.collect::<Vec<u64>>(), |&seed| {
        let mut draws = Draws(seed);
        let program = Program::new(&mut draws);
        let form = Form { keeps_before: true, is_over_layers: false, sums_products: false, is_majorant: false };
        let module =
            text::parse(&program.text(form), "random.hlo").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        // Weights have one 1 or -1 in each row and column, so that products of large numbers stay finite.
        let mut arguments = program.arguments(&mut draws, true);
        for argument in arguments.iter_mut().take(2) {
            *argument = large(argument.clone(), &mut draws);
        }
        if !is_finite(&evaluate(&module, &arguments)) {
            return None;
        }
        let (low, _) = lowered(&module, &Policy::default());
        let what = (!is_finite(&evaluate(&low, &arguments))).then(|| "a result is infinite or NaN".to_string());
        Some((format!("random.{seed}"), what))
    });
    let n_finite = checked.iter().flatten().count();
    (checked.into_iter().flatten().filter_map(|(name, what)| Some((name, what?))).collect(), n_finite)
}

#[test]
fn what_is_finite_stays_finite() {
    let (failing, n_finite) = not_finite(0..400);
    assert!(n_finite > 20, "only {n_finite} of 400 programs are finite in f32");
    judge("finite", &failing);
}

/// For each result the most rounded values on a way to it, with loops run twice; and for each value inside whether
/// bf16 represents it, so that a cast rounds nothing.
fn most_rounded(module: &Module) -> Vec<usize> {
    let entry = module.entry();
    let leaves = |id: InstrId| entry.instr(id).shape.leaves();
    // A narrow operand was rounded by the caller.
    let way = |leaf: &bf16scope::hlo::Shape| Way { n: usize::from(is_low(leaf.dtype())), is_low: is_low(leaf.dtype()) };
    let arguments = entry.parameters().into_iter().map(|id| leaves(id).into_iter().map(&way).collect()).collect();
    ways(module, entry, arguments).into_iter().map(|way| way.n).collect()
}

/// The most roundings on the ways to a value, and whether bf16 represents its elements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Way {
    n: usize,
    is_low: bool,
}

fn is_low(dtype: Option<DType>) -> bool {
    matches!(dtype, Some(DType::BF16 | DType::F16))
}

fn ways(module: &Module, computation: &Computation, arguments: Vec<Vec<Way>>) -> Vec<Way> {
    let mut computed: Vec<Vec<Way>> = Vec::with_capacity(computation.instructions.len());
    for instr in &computation.instructions {
        let operand = |nth: usize| computed[instr.operands[nth].idx()].clone();
        let all = || (0..instr.operands.len()).flat_map(operand);
        let called = |comp: CompId, arguments| ways(module, module.comp(comp), arguments);
        let n_leaves = instr.shape.leaves().len();
        let result = match &instr.op {
            Op::Parameter { number, .. } => arguments[*number as usize].clone(),
            Op::Tuple | Op::OptimizationBarrier => all().collect(),
            Op::GetTupleElement { index } => {
                let elements = computation.instr(instr.operands[0]).shape.as_tuple().unwrap();
                let start: usize = elements[..*index as usize].iter().map(|element| element.leaves().len()).sum();
                operand(0)[start..start + n_leaves].to_vec()
            }
            Op::Call { to_apply } => called(*to_apply, (0..instr.operands.len()).map(operand).collect()),
            Op::While { body, .. } => (0..2).fold(operand(0), |state, _| called(*body, vec![state])),
            Op::Conditional(conditional) => {
                let branches = conditional.branches.iter().enumerate();
                let branches = branches.map(|(nth, &branch)| called(branch, vec![operand(nth + 1)]));
                let most = |a: Way, b: Way| Way { n: a.n.max(b.n), is_low: a.is_low && b.is_low };
                branches.reduce(|a, b| a.into_iter().zip(b).map(|(a, b)| most(a, b)).collect()).unwrap_or_default()
            }
            op => {
                // Indices, masks and sizes select elements, but are not among them.
                let is_float = |nth: &usize| {
                    let shape = &computation.instr(instr.operands[*nth]).shape;
                    shape.leaves().iter().any(|leaf| leaf.dtype().is_some_and(DType::is_float))
                };
                let floats: Vec<Way> = (0..instr.operands.len()).filter(is_float).flat_map(operand).collect();
                let n = floats.iter().map(|way| way.n).max().unwrap_or(0);
                let reads_low = !floats.is_empty() && floats.iter().all(|way| way.is_low);
                let is_narrow = is_low(instr.shape.leaves().first().and_then(|leaf| leaf.dtype()));
                let is_exact = keeps_numbers(module, op) && reads_low;
                let rounds = is_narrow && !is_exact && !matches!(op, Op::Constant(_));
                vec![Way { n: n + usize::from(rounds), is_low: is_narrow || is_exact }; n_leaves]
            }
        };
        computed.push(result);
    }
    computed[computation.root.idx()].clone()
}

/// Whether an op only returns elements of its operands, or their negatives.
fn keeps_numbers(module: &Module, op: &Op) -> bool {
    if let Op::Reduce { .. } | Op::ReduceWindow { .. } = op {
        let root = op.called().first().map(|&comp| module.comp(comp)).map(|callee| &callee.instr(callee.root).op);
        return matches!(root, Some(Op::Binary(BinaryOp::Maximum | BinaryOp::Minimum)));
    }
    let is_order = matches!(
        op,
        Op::Unary(UnaryOp::Copy | UnaryOp::Negate | UnaryOp::Abs) | Op::Binary(BinaryOp::Maximum | BinaryOp::Minimum)
    );
    let moves = matches!(
        op,
        Op::Convert
            | Op::Reshape
            | Op::Broadcast { .. }
            | Op::Transpose { .. }
            | Op::Slice(_)
            | Op::Pad(_)
            | Op::Concatenate { .. }
            | Op::Gather(_)
            | Op::DynamicSlice { .. }
            | Op::DynamicUpdateSlice
            | Op::Reverse { .. }
            | Op::Select
            | Op::Clamp
    );
    is_order || moves
}

/// The whole module in bf16: the coarsest hand-written form.
fn whole_in_bf16(module: &Module) -> Module {
    let source = text_of(module).replace("f32[", "bf16[");
    text::parse(&source, "by_hand.hlo").unwrap_or_else(|error| panic!("{error}"))
}

/// A result with more roundings on its ways than in the hand-written form.
fn rounds_more(low: &Module, hand: &Module) -> Option<String> {
    let (low, hand) = (most_rounded(low), most_rounded(hand));
    assert_eq!(low.len(), hand.len(), "the form by hand gives as many results");
    let more = low.iter().zip(&hand).enumerate().filter(|(_, (low, hand))| low > hand);
    let (nth, (low, hand)) = more.max_by_key(|(_, (low, hand))| *low - *hand)?;
    Some(format!("a way to result {nth} has {low} roundings, by hand {hand}"))
}

#[test]
fn no_way_has_more_roundings_than_by_hand() {
    let mut failing = failures(&[], 0..200, |module, low, _| rounds_more(low, &whole_in_bf16(module)));
    for (step, hand) in with_hand() {
        failing.extend(rounds_more(&step.lowered, &hand).map(|what| (step.name.clone(), what)));
    }
    judge("roundings", &failing);
}

/// Each reason of a report is stated for a module from a framework, by some preset.
#[test]
fn each_reason_is_reached_by_a_real_module() {
    let mut reached: BTreeSet<String> = BTreeSet::new();
    let mut note =
        |report: &LoweringReport| reached.extend(report.decisions.iter().map(|decision| decision.rule.clone()));
    corpus().iter().for_each(|step| note(&step.report));
    let small = ["oracle_jax/cnn_momentum_step", "oracle_jax/encoder_forward", "oracle_jax/mlp_adam_step"];
    let small = small.map(oracle::module).into_iter().chain(super::reports::modules());
    let modules: Vec<Module> = small.chain(super::facts_programs::modules()).collect();
    for preset in presets::NAMES {
        let policy = Policy::preset(preset).unwrap();
        modules.iter().for_each(|module| note(&lowered(module, &policy).1));
    }
    let missing =
        amp::reasons().into_iter().filter(|(_, sentence)| !reached.iter().any(|rule| rule.starts_with(sentence)));
    judge(
        "reasons",
        &missing.map(|(name, sentence)| (name, format!("no module is lowered because `{sentence}`"))).collect(),
    );
}

/// A row that is added has to make room for itself.
#[test]
fn there_are_no_more_reasons_than_there_were() {
    let n_reasons = amp::reasons().len();
    assert_eq!(
        n_reasons, 28,
        "docs/HOW_PRECISION_IS_DECIDED.md is to stay one page: a reason (`Rule::REASONS`, `Need::ALL`) is added where \
         three unrelated networks of tests/data/corpus are better by it and another reason goes; if there are fewer \
         now, write {n_reasons} here"
    );
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::super::known_failures::n_random_listed;
    use super::*;

    /// The most failures among `n` programs that go with `n_listed` among `n_few`: three standard deviations more, as
    /// twice the root of a count has a deviation of one (Anscombe). Where none is listed, none may fail.
    fn most_failing(n_listed: usize, n_few: usize, n: usize) -> usize {
        let high = ((n_listed as f64 + 0.375).sqrt() + 1.5).powi(2);
        if n_listed == 0 { 0 } else { (high * n as f64 / n_few as f64) as usize }
    }

    /// No greater a share of 10,000 other programs fails than goes with what is listed of the few.
    #[cfg_attr(feature = "long-tests", test)]
    fn what_holds_of_few_programs_holds_of_ten_thousand() {
        let rules: [(&str, usize, &Asked); 4] = [
            ("twice", 200, &changes_twice),
            ("casts", 200, &cast_twice),
            ("stored", 200, &stores_more),
            ("allow", 100, &|module, _, report| raised(module, report, usize::MAX)),
        ];
        let mut problems = Vec::new();
        let mut compare = |rule: &str, n_few: usize, n: usize, failing: BTreeMap<String, String>| {
            let n_listed = n_random_listed(rule);
            let (n_failing, most) = (failing.len(), most_failing(n_listed, n_few, n));
            println!("{rule}: {n_failing} of {n} fail, at most {most} with {n_listed} of {n_few} listed");
            if let Some((case, what)) = failing.first_key_value().filter(|_| n_failing > most) {
                problems.push(format!(
                    "{rule}: {n_failing} of {n} fail, expected at most {most}, as {n_listed} of {n_few} are listed; \
                     {case}: {what}"
                ));
            }
        };
        for (name, n_few, rule) in rules {
            compare(name, n_few, 10_000, failures(&[], 200..10_200, rule));
        }
        let (_, n_few) = not_finite(0..400);
        let (failing, n_finite) = not_finite(400..10_400);
        compare("finite", n_few, n_finite, failing);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
