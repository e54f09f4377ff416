//! The corpus of `tests/data/corpus`: training steps as JAX exports them, and the decisions of the default policy on
//! each, which are recorded in `tests/data/corpus/decisions.txt`.
//!
//! `BF16SCOPE_BLESS=1 cargo test --test hlo amp::corpus` writes the record; a changed decision is a line of its diff. A
//! network whose text has the recorded digest is lowered to the same bytes, so its figures in `benches/tpu/policy.md` hold.

use super::roundings::stored;
use bf16scope::hlo::text::{self, PrintOptions};
use bf16scope::hlo::{DType, Module, Op};
use bf16scope::passes::amp::{self, LoweringReport, Policy};
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// A step in f32, and lowered by the default policy.
pub struct Lowered {
    pub name: String,
    pub module: Module,
    pub lowered: Module,
    pub report: LoweringReport,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/corpus")
}

/// The names of all modules of a folder of `tests/data`, in order.
pub fn names_in(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.strip_suffix(".hlo.txt.gz").map(str::to_string)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert!(!names.is_empty(), "{} has no modules", folder.display());
    names
}

/// A module of a folder of `tests/data`.
pub fn module_in(folder: &Path, name: &str) -> Module {
    let path = folder.join(format!("{name}.hlo.txt.gz"));
    let mut source = String::new();
    GzDecoder::new(std::fs::File::open(&path).unwrap()).read_to_string(&mut source).unwrap();
    text::parse(&source, name).unwrap_or_else(|error| panic!("{error}"))
}

/// The step written for bf16 by hand, if it has one.
pub fn by_hand(name: &str) -> Option<Module> {
    let name = format!("{name}{BY_HAND}");
    folder().join(format!("{name}.hlo.txt.gz")).exists().then(|| module_in(&folder(), &name))
}

const BY_HAND: &str = "_by_hand";

/// All steps, lowered once for all tests of this process.
pub fn corpus() -> &'static [Lowered] {
    static CORPUS: OnceLock<Vec<Lowered>> = OnceLock::new();
    CORPUS.get_or_init(|| {
        let names: Vec<String> = names_in(&folder()).into_iter().filter(|name| !name.ends_with(BY_HAND)).collect();
        let mut corpus = on_all_cores(&names, |name| {
            let module = module_in(&folder(), name);
            let (lowered, report) =
                amp::run(&module, &Policy::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
            Lowered { name: name.clone(), module, lowered, report }
        });
        corpus.sort_by(|a, b| a.name.cmp(&b.name));
        corpus
    })
}

/// The results of `f` for all items, in any order.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..n_threads {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = f(item);
                    results.lock().unwrap().push(result);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

/// A module's text without metadata.
pub fn text_of(module: &Module) -> String {
    text::print(module, &PrintOptions { metadata: false, ..PrintOptions::default() })
}

/// The record of a step: the most bytes that it stores at once, its casts, a digest of its text; and for each opcode
/// how many instructions have each floating-point dtype.
fn record(step: &Lowered) -> String {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut n = 0;
    for computation in &step.lowered.computations {
        for instr in &computation.instructions {
            n += 1;
            let float = instr.shape.leaves().into_iter().filter_map(|leaf| leaf.dtype()).find(|dtype| is_float(*dtype));
            let moves_tuples = matches!(instr.op, Op::Tuple | Op::Parameter { .. } | Op::GetTupleElement { .. });
            if let Some(dtype) = float.filter(|_| !moves_tuples) {
                *counts.entry((instr.op.opcode().into_owned(), dtype.to_string())).or_default() += 1;
            }
        }
    }
    let digest = Sha256::digest(text_of(&step.lowered));
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let (now, before) = (stored(&step.lowered), stored(&step.module));
    let mut text = format!(
        "{}: {n} instructions, digest {digest}\n  casts {}, {} bytes\n  stored at once {now} bytes, in f32 {before}\n",
        step.name,
        step.report.casts.len(),
        step.report.n_cast_bytes,
    );
    let opcodes: std::collections::BTreeSet<&String> = counts.keys().map(|(opcode, _)| opcode).collect();
    for opcode in opcodes {
        let of_dtype =
            |(key, count): (&(String, String), &usize)| (key.0 == *opcode).then(|| format!("{} {count}", key.1));
        let _ = writeln!(text, "  {opcode}: {}", counts.iter().filter_map(of_dtype).collect::<Vec<_>>().join(", "));
    }
    text
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
}

/// Lines by their step.
fn by_step(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut steps: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut step = "";
    for line in text.lines() {
        if !line.starts_with(' ') {
            step = line.split(':').next().unwrap_or_default();
        }
        steps.entry(step).or_default().push(line);
    }
    steps
}

#[test]
fn decisions_are_those_that_are_recorded() {
    let path = folder().join("decisions.txt");
    let text: String = corpus().iter().map(record).collect();
    if std::env::var_os("BF16SCOPE_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
        return;
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let (old, new) = (by_step(&recorded), by_step(&text));
    let mut differences = Vec::new();
    for step in old.keys().chain(new.keys()).collect::<std::collections::BTreeSet<_>>() {
        let lines = |steps: &BTreeMap<&str, Vec<&str>>| {
            steps.get(*step).cloned().unwrap_or_default().into_iter().map(str::to_string).collect::<Vec<String>>()
        };
        let (old, new) = (lines(&old), lines(&new));
        if old != new {
            differences.push(format!("{step}:"));
            differences
                .extend(old.iter().filter(|line| !new.contains(line)).map(|line| format!("  - {}", line.trim())));
            differences
                .extend(new.iter().filter(|line| !old.contains(line)).map(|line| format!("  + {}", line.trim())));
        }
    }
    assert!(
        differences.is_empty(),
        "decisions differ from tests/data/corpus/decisions.txt:\n{}\nif that is right: BF16SCOPE_BLESS=1 cargo test --test hlo \
         amp::corpus, and read the diff",
        differences.join("\n")
    );
}
