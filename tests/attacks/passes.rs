//! Passes over modules with shardings, control dependencies and dead instructions.

use crate::modules::{self, N_PARAMETERS, Step, step};
use bf16scope::hlo::ops::BinaryOp;
use bf16scope::hlo::text::parse;
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{
    Alias, AliasKind, Computation, DType, Emitter, InstrId, Instruction, Metadata, Module, Op, Sharding, Unmodelled,
};
use bf16scope::passes::grad::gradients;
use bf16scope::passes::remat::remat;
use bf16scope::passes::{amp, cotangent_remat, grad, pace, tidy};
use bf16scope::tuning::Remat;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::{BTreeMap, BTreeSet};

/// An update without control dependencies, before the barrier of a backward pass, and an update that depends on the barrier.
const STEP: &str = "HloModule step, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }

ENTRY step {
  %w = f32[4] parameter(0)
  %u = f32[4] parameter(1)
  %g = f32[4] parameter(2)
  %gw = f32[4] multiply(%g, %w)
  %both = (f32[4], f32[4]) tuple(%u, %g)
  %barrier = (f32[4], f32[4]) opt-barrier(%both)
  %u_again = f32[4] get-tuple-element(%barrier), index=0
  %again = f32[4] exponential(%u_again)
  %gu = f32[4] multiply(%again, %g)
  %new_w = f32[4] subtract(%w, %gw)
  %new_u = f32[4] subtract(%u, %gu)
  ROOT %results = (f32[4], f32[4]) tuple(%new_w, %new_u)
}
";

fn read(text: &str) -> Module {
    let module = parse(text, "step").unwrap();
    verify(&module).unwrap();
    module
}

fn paced(text: &str) -> (Module, pace::PaceReport) {
    let (paced, report) = pace::run(&read(text), &pace::Config).unwrap();
    verify(&paced).unwrap_or_else(|errors| panic!("{errors}"));
    (paced, report)
}

fn find<'m>(computation: &'m Computation, name: &str) -> &'m Instruction {
    computation.instructions.iter().find(|instr| instr.name == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn an_update_that_waits_for_what_comes_after_a_barrier_is_not_put_before_it() {
    assert_eq!(paced(STEP).1.paced, [("new_w".to_string(), "barrier".to_string())]);
    let waits = STEP.replace("subtract(%w, %gw)", "subtract(%w, %gw), control-predecessors={%gu}");
    let (module, report) = paced(&waits);
    assert_eq!((module, report), (read(&waits), pace::PaceReport::default()));
}

#[test]
fn results_that_something_reads_are_left_as_they_are() {
    let dead = "  %dead = f32[4] get-tuple-element(%results), index=0\n}";
    let later = "  %dead = f32[4] negate(%g), control-predecessors={%results}\n}";
    for end in [dead, later] {
        let text = format!("{}{end}\n", STEP.strip_suffix("}\n").unwrap());
        assert_eq!(paced(&text), (read(&text), pace::PaceReport::default()));
    }
}

#[test]
fn what_a_tuple_a_barrier_or_the_results_wait_for_they_still_wait_for() {
    let waits = |text: &str| text.replace(" tuple(%u, %g)", " tuple(%u, %g), control-predecessors={%gw}");
    let text = waits(STEP)
        .replace("opt-barrier(%both)", "opt-barrier(%both), control-predecessors={%g}")
        .replace("tuple(%new_w, %new_u)", "tuple(%new_w, %new_u), control-predecessors={%again}");
    let (module, report) = paced(&text);
    assert_eq!(report.paced.len(), 1);
    let entry = module.entry();
    let awaited = |instr: &Instruction| -> Vec<&str> {
        instr.control_predecessors.iter().map(|&id| entry.instr(id).name.as_str()).collect()
    };
    let barrier = find(entry, "barrier");
    assert_eq!(awaited(barrier), ["g"]);
    assert_eq!(awaited(entry.instr(barrier.operands[0])), ["gw"]);
    assert_eq!(awaited(entry.instr(entry.root)), ["again"]);
}

#[test]
fn a_barrier_or_tuple_with_a_sharding_is_not_made_longer() {
    let sharding = ", sharding={{devices=[2]0,1}, {replicated}}";
    for (plain, rest) in [("tuple(%u, %g)", ""), ("opt-barrier(%both)", "")] {
        let text = STEP.replacen(plain, &format!("{plain}{sharding}{rest}"), 1);
        assert_ne!(text, STEP);
        assert_eq!(paced(&text), (read(&text), pace::PaceReport::default()));
    }
}

/// Random control dependencies, and unused readers of the results.
#[derive(Clone, Debug)]
struct Disorder {
    /// (instruction, one before it), each modulo how many there are.
    waits: Vec<(usize, usize)>,
    n_dead: usize,
    /// Which of the three results are updates in place.
    updates: [bool; 3],
}

fn disorder() -> impl Strategy<Value = Disorder> {
    let waits = prop::collection::vec((0usize..256, 0usize..256), 0..8);
    (waits, 0usize..3, prop::array::uniform3(any::<bool>())).prop_map(|(waits, n_dead, updates)| Disorder {
        waits,
        n_dead,
        updates,
    })
}

fn wait(computation: &mut Computation, from: usize, waits: &[(usize, usize)]) {
    let n = computation.instructions.len() - from;
    for &(waiter, first) in waits.iter().filter(|_| n > 0) {
        let waiter = from + waiter % n;
        if waiter > 0 {
            let first = InstrId((first % waiter) as u32);
            let predecessors = &mut computation.instructions[waiter].control_predecessors;
            if !predecessors.contains(&first) {
                predecessors.push(first);
            }
        }
    }
}

/// A module with random properties that passes the verifier.
fn disordered(steps: &[Step], disorder: &Disorder) -> Module {
    let mut module = modules::build(steps);
    let entry = module.entry;
    let root = module.entry().root;
    for index in 0..disorder.n_dead {
        let op = Op::GetTupleElement { index: index as i64 };
        module.push(entry, op, &[root], None, Metadata::default()).unwrap();
    }
    module.computations[entry.idx()].root = root;
    let computation = &mut module.computations[entry.idx()];
    wait(computation, 0, &disorder.waits);
    for (number, _) in (0..).zip(disorder.updates).filter(|(_, is_update)| *is_update) {
        let (output_index, parameter_index) = (vec![number], Vec::new());
        let alias = Alias { output_index, parameter_number: number, parameter_index, kind: AliasKind::May };
        module.input_output_alias.push(alias);
    }
    verify(&module).unwrap();
    module
}

/// Each result of the entry as a function of the parameters: equal numbers are equal values, to the last bit.
/// Barriers, tuples and their elements are only other names; a conversion of an exact conversion is that of its operand.
fn values(module: &Module, numbers: &mut BTreeMap<String, usize>) -> Vec<usize> {
    let entry = module.entry();
    let mut by_instruction: Vec<Vec<usize>> = Vec::new();
    let mut texts: BTreeMap<usize, (DType, usize)> = BTreeMap::new();
    for instr in &entry.instructions {
        let operands: Vec<&Vec<usize>> = instr.operands.iter().map(|id| &by_instruction[id.idx()]).collect();
        let value = match &instr.op {
            Op::Tuple => operands.into_iter().flatten().copied().collect(),
            Op::OptimizationBarrier => operands[0].clone(),
            Op::GetTupleElement { index } => vec![operands[0][*index as usize]],
            op => {
                let mut operands: Vec<usize> = operands.into_iter().flatten().copied().collect();
                let dtype = instr.shape.dtype();
                if *op == Op::Convert
                    && let Some(&(DType::BF16, origin)) = texts.get(&operands[0])
                {
                    if dtype == Some(DType::BF16) {
                        by_instruction.push(vec![origin]);
                        continue;
                    }
                    operands = vec![origin];
                }
                let mut op = op.clone();
                let mut called = Vec::new();
                op.for_each_called_mut(&mut |comp| {
                    called.push(module.comp(*comp).name.clone());
                    comp.0 = 0;
                });
                let text = format!("{op:?} {called:?} {operands:?} {}", instr.shape.without_layout());
                let next = numbers.len();
                let number = *numbers.entry(text).or_insert(next);
                if op == Op::Convert && dtype == Some(DType::F32) {
                    let from = entry.instr(instr.operands[0]).shape.dtype().unwrap();
                    texts.insert(number, (from, operands[0]));
                }
                vec![number]
            }
        };
        by_instruction.push(value);
    }
    by_instruction[entry.root.idx()].clone()
}

/// All passes on a random module: each ends, returns a module that verifies, and changes no value.
fn all_passes(steps: &[Step], disorder: &Disorder) -> usize {
    let module = disordered(steps, disorder);
    let numbers = &mut BTreeMap::new();
    let expected = values(&module, numbers);
    let mut n_paced = 0;
    let mut check = |pass: &str, given: &Module| {
        verify(given).unwrap_or_else(|errors| panic!("{pass}: {errors}"));
        assert_eq!(values(given, numbers), expected, "{pass}");
    };
    let (rematerialised, _) = cotangent_remat::run(&module, &cotangent_remat::Config).unwrap();
    check("cotangent_remat", &rematerialised);
    let (paced, report) = pace::run(&rematerialised, &pace::Config).unwrap();
    n_paced += report.paced.len();
    check("pace", &paced);
    let (twice, report) = pace::run(&paced, &pace::Config).unwrap();
    check("pace, twice", &twice);
    n_paced += report.paced.len();
    let (tidied, _) = tidy::run(&twice, &tidy::Config::default()).unwrap();
    check("tidy", &tidied);
    amp::run(&tidied, &amp::Policy::default()).unwrap_or_else(|error| panic!("amp: {error}"));

    // The loss is the sum of the last result.
    let e = Emitter::new(module.clone(), module.entry);
    let last = e.with_module(|module| module.entry().instr(module.entry().root).operands[2]);
    let loss = e.reduce(BinaryOp::Add, last, &[0, 1]);
    let n_forward = e.n_instructions();
    let wrt = e.with_module(|module| module.entry().parameters());
    let of_parameters = gradients(&e, loss, &wrt).unwrap();
    e.with_module_mut(|module| wait(&mut module.computations[0], n_forward, &disorder.waits));
    let original = e.with_module(Module::clone);
    let (again, _) = remat(&e, n_forward, &of_parameters, &Remat::Elementwise).unwrap();
    let finish = |module: Module, results: &[InstrId]| {
        let e = Emitter::new(module, original.entry);
        e.tuple(results);
        let mut module = e.finish().unwrap();
        module.input_output_alias.clear();
        verify(&module).unwrap_or_else(|errors| panic!("remat: {errors}"));
        module
    };
    let numbers = &mut BTreeMap::new();
    let expected = values(&finish(original.clone(), &of_parameters), numbers);
    assert_eq!(values(&finish(e.finish().unwrap(), &again), numbers), expected, "remat");
    n_paced
}

#[test]
fn every_pass_ends_on_whatever_verifies() {
    let config = Config { cases: 96, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let n_paced = std::cell::Cell::new(0);
    let inputs = (prop::collection::vec(step(), N_PARAMETERS..24), disorder());
    let result = runner.run(&inputs, |(steps, disorder)| {
        n_paced.set(n_paced.get() + all_passes(&steps, &disorder));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(n_paced.get() >= 10, "{} updates were paced, expected enough to judge", n_paced.get());
}

/// Rows less their means are a cotangent that `cotangent_remat` makes again; the barrier is one that `pace` looks at; what is
/// called and looped over is copied by `grad` and `amp`; the conversions are some that `tidy` and `amp` would fold.
const ANNOTATED: &str = "HloModule step, input_output_alias={ {3}: (3, {}, may-alias) }

add {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %added = f32[] add(%a, %b)
}

square {
  %s = f32[8,4] parameter(0)
  %s2 = f32[8,4] multiply(%s, %s)
  ROOT %s3 = f32[8,4] exponential(%s2)
}

ENTRY step {
  %g = bf16[8,4] parameter(0)
  %w = bf16[4,4] parameter(1)
  %h = bf16[8,4] parameter(2)
  %p = f32[8,4] parameter(3)
  %wide = f32[8,4] convert(%g)
  %same = bf16[8,4] convert(%wide)
  %again = f32[8,4] convert(%same)
  %zero = f32[] constant(0)
  %mean = f32[8] reduce(%again, %zero), dimensions={1}, to_apply=%add
  %means = f32[8,4] broadcast(%mean), dimensions={0}
  %centred = f32[8,4] subtract(%wide, %means)
  %cotangent = bf16[8,4] convert(%centred)
  %kernel = bf16[4,4] dot(%h, %cotangent), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %of_bias = f32[8,4] convert(%cotangent)
  %bias = f32[4] reduce(%of_bias, %zero), dimensions={0}, to_apply=%add
  %back = bf16[8,4] dot(%cotangent, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %sum = bf16[8,4] add(%cotangent, %back)
  %more = bf16[8,4] dot(%h, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %total = bf16[8,4] add(%sum, %more)
  %squared = f32[8,4] call(%p), to_apply=%square
  %wp = f32[4,8] transpose(%squared), dimensions={1,0}
  %product = f32[8,8] dot(%squared, %wp), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %tanh = f32[8,8] tanh(%product)
  %both = f32[8,8] add(%tanh, %tanh)
  %loss = f32[] reduce(%both, %zero), dimensions={0,1}, to_apply=%add
  ROOT %results = (bf16[4,4], f32[4], bf16[8,4], f32[8,4], f32[]) tuple(%kernel, %bias, %total, %squared, %loss)
}
";

/// Sets every attribute of instructions, on every one that is an array.
fn annotate(module: &mut Module) {
    for instr in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        if instr.shape.as_array().is_none() {
            continue;
        }
        instr.sharding = Some(Box::new(Sharding::Maximal { device: 3 }));
        instr.frontend_attributes = vec![("mark".to_string(), instr.name.clone())];
        instr.backend_config = "{\"mark\":1}".to_string();
        let statistics = ("statistics".to_string(), "{visualizing_index=0,mark=1}".to_string());
        let accuracy = ("result_accuracy".to_string(), "{mode=highest}".to_string());
        instr.unmodelled = Unmodelled { attributes: vec![statistics, accuracy], proto: Vec::new() };
        let op_name = format!("scope/{}", instr.name);
        instr.metadata = Metadata {
            op_type: "Mark".to_string(),
            op_name,
            source_file: "mark.py".to_string(),
            source_line: 7,
            stack_frame_id: 2,
        };
    }
    let step = module.computations.iter_mut().find(|computation| computation.name == "step").unwrap();
    let id = |name: &str| step.ids().find(|&id| step.instr(id).name == name).unwrap();
    let waits = [(id("centred"), id("w")), (id("total"), id("kernel")), (id("tanh"), id("back"))];
    for (waiter, first) in waits {
        step.instructions[waiter.idx()].control_predecessors.push(first);
    }
    let square = module.computations.iter_mut().find(|computation| computation.name == "square").unwrap();
    square.instructions[2].control_predecessors.push(InstrId(0));
    verify(module).unwrap();
}

/// The instructions that were rematerialised from `name`, itself included, by their mark.
fn copies<'m>(module: &'m Module, name: &str) -> Vec<&'m Instruction> {
    let all = module.computations.iter().flat_map(|computation| &computation.instructions);
    all.filter(|instr| instr.frontend_attributes.iter().any(|(_, mark)| mark == name)).collect()
}

/// Every instruction of `names` is present at least as often as stated, with all its attributes.
fn check_copies(pass: &str, original: &Module, given: &Module, expected: &[(&str, usize)]) {
    verify(given).unwrap_or_else(|errors| panic!("{pass}: {errors}"));
    let all: Vec<&Instruction> =
        original.computations.iter().flat_map(|computation| &computation.instructions).collect();
    for &(name, n) in expected {
        let copies = copies(given, name);
        assert_eq!(copies.len(), n, "{pass}: copies of {name}");
        let before = all.iter().find(|instr| instr.name == name).unwrap();
        for copy in copies {
            assert_eq!(copy.sharding, before.sharding, "{pass}: {name}");
            assert_eq!(copy.backend_config, before.backend_config, "{pass}: {name}");
            assert_eq!(copy.unmodelled, before.unmodelled, "{pass}: {name}");
            assert_eq!(copy.control_predecessors.len(), before.control_predecessors.len(), "{pass}: {name}");
            assert_eq!(copy.metadata.source_file, "mark.py", "{pass}: {name}");
        }
    }
    // An array that a pass computes from these is sharded as they are. (Gradients are other arrays.)
    let is_made =
        |instr: &&Instruction| instr.metadata.op_type == "Mark" && !instr.metadata.op_name.contains("gradient/");
    for instr in given.entry().instructions.iter().filter(is_made) {
        let is_big = instr.shape.dims() == [8, 4];
        assert!(!is_big || instr.sharding.is_some(), "{pass}: {} has no sharding", instr.name);
    }
}

#[test]
fn nothing_that_was_said_of_an_instruction_is_lost_where_it_is_rematerialised() {
    let mut module = read(ANNOTATED);
    annotate(&mut module);
    let everything: BTreeSet<String> = (module.computations.iter())
        .flat_map(|computation| &computation.instructions)
        .flat_map(|instr| instr.frontend_attributes.iter().map(|(_, mark)| mark.clone()))
        .collect();
    let each_once: Vec<(&str, usize)> = everything.iter().map(|name| (name.as_str(), 1)).collect();
    let with = |changed: &[(&'static str, usize)]| -> Vec<(&str, usize)> {
        let changed: BTreeMap<&str, usize> = changed.iter().copied().collect();
        each_once.iter().map(|&(name, n)| (name, changed.get(name).copied().unwrap_or(n))).collect()
    };

    let (tidied, _) = tidy::run(&module, &tidy::Config::default()).unwrap();
    check_copies("tidy", &module, &tidied, &each_once);

    let (rematerialised, report) = cotangent_remat::run(&module, &cotangent_remat::Config).unwrap();
    assert_eq!(report.rematerialised, ["cotangent"]);
    check_copies(
        "cotangent_remat",
        &module,
        &rematerialised,
        &with(&[("cotangent", 2), ("centred", 2), ("means", 2), ("wide", 2)]),
    );
    check_copies("pace", &module, &pace::run(&module, &pace::Config).unwrap().0, &each_once);

    let (differentiated, _) = grad::run(&module, &grad::Config { loss: 4, wrt: vec![3] }).unwrap();
    check_copies("grad", &module, &differentiated, &with(&[("s", 2), ("s2", 2), ("s3", 2)]));

    let (lowered, _) = amp::run(&module, &amp::Policy::default()).unwrap();
    check_copies("amp", &module, &lowered, &each_once);

    let n_forward = module.entry().instructions.len();
    let loss = module.entry().instr(module.entry().root).operands[4];
    let e = Emitter::new(module.clone(), module.entry);
    let of_p = gradients(&e, loss, &[InstrId(3)]).unwrap();
    let (of_p, report) = remat(&e, n_forward, &of_p, &Remat::Elementwise).unwrap();
    assert!(!report.rematerialised.is_empty());
    e.tuple(&of_p);
    let mut again = e.finish().unwrap();
    again.input_output_alias.clear();
    check_copies("remat", &module, &again, &with(&[("tanh", 2), ("s", 2), ("s2", 2), ("s3", 2)]));
    let entry = again.entry();
    let barriers = entry.instructions[n_forward..].iter().filter(|instr| instr.op == Op::OptimizationBarrier);
    assert!(barriers.clone().count() > 0 && barriers.clone().all(|instr| instr.sharding.is_some()));
}
