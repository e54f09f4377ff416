//! Randomly mutated modules, as text and as messages: our code does not panic, and a crash of XLA stays in its child process.
//!
//! The number of a case is its seed. `BF16SCOPE_MUTATIONS=10000` runs this many cases, `BF16SCOPE_MUTATIONS=4711..4712` this
//! one; a module that crashed a child is then saved in the target folder's `tmp/mutations`.

mod journey;
mod program;
mod text;
mod wire;

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use bf16scope::hlo::proto::encode;
use bf16scope::hlo::text::parse;
use journey::{Outcome, Road, Source};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Cases of every `cargo test`.
const N_CASES: u64 = 250;
/// The time limit to read, verify, lower and write a small module, in a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Larger seeds take long to compile and reveal no more than small ones.
const MAX_SEED_BYTES: u64 = 20_000;

/// The modules that are changed.
struct Seeds {
    texts: Vec<String>,
    protos: Vec<Vec<u8>>,
}

impl Seeds {
    /// A small module of each kind of op, the models' modules, exports of JAX and TensorFlow, and the fuzzer's seeds.
    fn read() -> Seeds {
        let zoo: Vec<String> = include_str!("zoo.hlo")
            .split("HloModule ")
            .filter(|module| !module.trim().is_empty())
            .map(|module| format!("HloModule {module}"))
            .collect();
        let as_proto = |text: &String| {
            let module = parse(text, "zoo.hlo").unwrap_or_else(|error| panic!("{error}\n{text}"));
            bf16scope::hlo::verify(&module).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
            encode::to_bytes(&module).expect("a verified module encodes")
        };
        let mut protos: Vec<Vec<u8>> = zoo.iter().map(as_proto).collect();
        let mut texts = zoo;
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for folder in ["hlo", "tests/data/oracle_jax", "tests/data/oracle_tf", "fuzz/corpus/text", "fuzz/corpus/proto"]
        {
            let entries = std::fs::read_dir(root.join(folder)).unwrap();
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
            paths.sort();
            for path in paths.iter().filter(|path| path.metadata().unwrap().len() < MAX_SEED_BYTES) {
                match path.extension().and_then(|extension| extension.to_str()) {
                    Some("txt") => texts.push(std::fs::read_to_string(path).unwrap()),
                    Some("pb") => protos.push(std::fs::read(path).unwrap()),
                    _ => {}
                }
            }
        }
        Seeds { texts, protos }
    }

    /// The module of a case: changed once, often twice, sometimes more.
    fn case(&self, random: &mut SmallRng) -> Source {
        let mut n_changes = 1;
        while n_changes < 6 && random.random_bool(0.25) {
            n_changes += 1;
        }
        // Most of them small: in a long module nearly every change is at once an error of the reader or the verifier.
        let pick = |random: &mut SmallRng, n: usize| match random.random_bool(0.95) {
            true => random.random_range(0..n.min(N_ZOO)),
            false => random.random_range(0..n),
        };
        if random.random_bool(0.75) {
            let mut changed = self.texts[pick(random, self.texts.len())].clone();
            let other = &self.texts[pick(random, self.texts.len())];
            for _ in 0..n_changes {
                changed = text::mutate(random, &changed, other);
            }
            Source::Text(changed)
        } else {
            let mut changed = self.protos[pick(random, self.protos.len())].clone();
            for _ in 0..n_changes {
                changed = wire::mutate(random, &changed);
            }
            Source::Proto(changed)
        }
    }
}

/// The modules of `zoo.hlo`, which come first in [`Seeds`].
const N_ZOO: usize = 25;

/// The outcomes of all cases.
#[derive(Default)]
struct Table {
    outcomes: BTreeMap<Outcome, (u64, u64)>,
    panics: Vec<String>,
    n_children: usize,
    slowest: Duration,
}

impl Table {
    fn count(&mut self, case: u64, outcome: Outcome) {
        self.outcomes.entry(outcome).or_insert((0, case)).0 += 1;
    }

    fn n(&self, matches: impl Fn(&Outcome) -> bool) -> u64 {
        self.outcomes.iter().filter(|(outcome, _)| matches(outcome)).map(|(_, (n, _))| n).sum()
    }

    fn print(&self, cases: &Range<u64>) {
        println!("cases {cases:?}, {} children, slowest of ours {:.2?}", self.n_children, self.slowest);
        for (outcome, (n, first)) in &self.outcomes {
            println!("{n:7}  {outcome:?}, first case {first}");
        }
    }
}

fn cases() -> Range<u64> {
    let asked = std::env::var("BF16SCOPE_MUTATIONS").unwrap_or_else(|_| N_CASES.to_string());
    let number =
        |text: &str| text.parse().unwrap_or_else(|_| panic!("BF16SCOPE_MUTATIONS={asked}: no number of cases"));
    match asked.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => 0..number(&asked),
    }
}

/// Keeps the module of a case that ended a child, as it was read and as it was compiled, to be looked at.
fn keep(case: u64, source: &Source, compiled: &[u8]) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutations");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{case}.compiled.pb")), compiled).unwrap();
    match source {
        Source::Text(text) => std::fs::write(folder.join(format!("{case}.txt")), text).unwrap(),
        Source::Proto(bytes) => std::fs::write(folder.join(format!("{case}.pb")), bytes).unwrap(),
    }
}

fn send_all(cases: Range<u64>) -> Table {
    let seeds = Seeds::read();
    // One child for few cases; for many, as many as there are processors.
    let n_roads = match cases.end - cases.start {
        0..1000 => 1,
        _ => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let table = Mutex::new(Table::default());
    let next = Mutex::new(cases.clone());
    let travel = || {
        let mut road = Road::new();
        loop {
            let Some(case) = next.lock().unwrap().next() else { break };
            let mut random = SmallRng::seed_from_u64(case);
            let source = seeds.case(&mut random);
            let outcome = catch_unwind(AssertUnwindSafe(|| road.send(&mut random, &source)));
            let mut table = table.lock().unwrap();
            match outcome {
                Ok(outcome) => {
                    let is_of_interest =
                        matches!(outcome, Outcome::Aborted(_) | Outcome::TimedOut | Outcome::OutOfMemory);
                    if is_of_interest {
                        keep(case, &source, &road.compiled);
                        println!("case {case}: {outcome:?}");
                    }
                    table.count(case, outcome);
                }
                Err(panic) => {
                    keep(case, &source, &road.compiled);
                    let message = panic.downcast::<String>().map_or("a panic".to_string(), |message| *message);
                    table.panics.push(format!("case {case}: {message}"));
                }
            }
        }
        let mut table = table.lock().unwrap();
        table.n_children += road.n_children;
        table.slowest = table.slowest.max(road.slowest);
    };
    std::thread::scope(|scope| {
        for _ in 0..n_roads {
            scope.spawn(travel);
        }
    });
    table.into_inner().unwrap()
}

#[test]
fn whatever_a_module_has_become_this_process_goes_on() {
    let cases = cases();
    let table = send_all(cases.clone());
    table.print(&cases);
    assert!(table.panics.is_empty(), "{}", table.panics.join("\n"));
    assert!(table.slowest < PATIENCE, "{:?}", table.slowest);
    // It asks something: many are still modules, many of those run, and some are broken.
    let n = cases.end - cases.start;
    if n >= N_CASES {
        let n_ran = table.n(|outcome| *outcome == Outcome::Ran);
        assert!(n_ran >= n / 6, "{n_ran} of {n} ran");
        let n_broken = table.n(|outcome| *outcome < Outcome::NotEncoded);
        assert!(n_broken >= n / 6, "{n_broken} of {n} were broken");
    }
}

#[test]
fn a_case_is_its_number() {
    let seeds = Seeds::read();
    assert_eq!(seeds.texts.iter().position(|text| !text.contains("main {")), Some(N_ZOO));
    let case_bytes = |case| match seeds.case(&mut SmallRng::seed_from_u64(case)) {
        Source::Text(text) => text.into_bytes(),
        Source::Proto(bytes) => bytes,
    };
    let cases: Vec<Vec<u8>> = (0..64).map(case_bytes).collect();
    assert!(cases == (0..64).map(case_bytes).collect::<Vec<_>>());
    let distinct: std::collections::BTreeSet<_> = cases.into_iter().collect();
    assert!(distinct.len() > 60, "{}", distinct.len());
}

/// Found by mutation: a proto's module may have any name, or no name, while text requires an identifier.
#[test]
fn a_module_of_any_name_is_printed_so_that_it_is_read() {
    let mut module = parse("HloModule m\n\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n", "m.hlo").unwrap();
    for (name, printed) in [("", "_"), ("a b[c=1], d", "a_b_c_1___d"), ("größe", "größe"), ("jit_f.1-x", "jit_f.1-x")]
    {
        module.name = name.to_string();
        bf16scope::hlo::verify(&module).unwrap();
        let text = bf16scope::hlo::text::print(&module, &bf16scope::hlo::text::PrintOptions::default());
        assert_eq!(parse(&text, "printed.hlo").unwrap().name, printed);
    }
}
