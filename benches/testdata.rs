//! StableHLO's own test data, three ways: as it is, after a round trip through HLO text and StableHLO, and lowered.
//!
//! `cargo bench --profile dev --bench testdata -- FOLDER [WORD]` runs every `.mlir` of FOLDER whose name has WORD in it. The
//! folder is `stablehlo/testdata` of the repository openxla/stablehlo; nothing of it is kept in this project. Its files
//! hold a function of no arguments, what JAX computed of it, and a custom call that compares the two. Here the comparison
//! is taken out and both are results, so that the program runs where custom calls of StableHLO's interpreter do not exist.
//! Figures are in docs/FORMATS.md.
//!
//! Expectations: `check.expect_eq` wants the same numbers, `check.expect_almost_eq` a difference of at most 0.001, and
//! `check.expect_close` three units in the last place, as the interpreter does. Lowered results that changed are right by
//! no such rule: their dtypes must be the same, and the largest error beside the largest element is printed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bf16scope::foreign::{self, stablehlo};
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::{ArrayShape, DType, Module, text, verify};
use bf16scope::numerics::compare::{Comparison, is_comparable};
use bf16scope::passes::amp::{self, Policy};
use bf16scope::pjrt::{ChildSpec, Client, CompileOptions, Limits, Platform, Setup};

/// A comparison in a file: a result, its expected value, and the tolerance.
#[derive(Clone, Debug)]
struct Check {
    how: How,
    found: String,
    expected: String,
    ty: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Equal,
    Almost,
    Close,
}

/// The same program, whose results are those of the checks: what was found, then what was expected, of each.
fn both(source: &str) -> Option<(String, Vec<Check>)> {
    let mut checks = Vec::new();
    let (mut out, mut head): (Vec<String>, Option<usize>) = (Vec::new(), None);
    for line in source.lines() {
        let word = line.trim_start();
        if word.starts_with("//") {
            continue;
        }
        if let Some(rest) = word.strip_prefix("stablehlo.custom_call @check.expect_") {
            let (how, rest) = rest.split_once('(')?;
            let (operands, rest) = rest.split_once(')')?;
            let (found, expected) = operands.split_once(", ")?;
            let (_, types) = rest.split_once(" : (")?;
            let (types, _) = types.split_once(") -> ")?;
            let how = match how {
                "eq" => How::Equal,
                "almost_eq" => How::Almost,
                "close" => How::Close,
                _ => return None,
            };
            // Both have one type, which may hold a comma.
            let ty = types[..types.len() / 2 - 1].to_string();
            checks.push(Check { how, found: found.into(), expected: expected.into(), ty });
            continue;
        }
        if word.starts_with("func.func public @main(") {
            head = Some(out.len());
        }
        // Other functions may stand before main, and behind it.
        if let Some(at) = head.filter(|_| word.starts_with("return ")) {
            let list =
                |of: fn(&Check) -> [&String; 2]| checks.iter().flat_map(of).cloned().collect::<Vec<_>>().join(", ");
            let (values, types) = (list(|it| [&it.found, &it.expected]), list(|it| [&it.ty, &it.ty]));
            let parameters = out[at].split_once(" -> (")?.0.to_string();
            out[at] = format!("{parameters} -> ({types}) {{");
            out.push(format!("    return {values} : {types}"));
            head = None;
            continue;
        }
        out.push(line.to_string());
    }
    (!checks.is_empty()).then(|| (out.join("\n") + "\n", checks))
}

type Results = Vec<(DType, Vec<u8>)>;

/// A machine to run on: another one after a crash.
struct Machine {
    spec: ChildSpec,
    setup: Setup,
    client: Option<Client>,
}

impl Machine {
    fn run(&mut self, module: &Module) -> Result<Results, String> {
        verify(module).map_err(|errors| format!("does not verify: {errors}"))?;
        let results = self.try_to_run(module);
        if results.as_ref().is_err_and(|error| error.contains("child") || error.contains("process")) {
            self.client = None;
        }
        results
    }

    fn try_to_run(&mut self, module: &Module) -> Result<Results, String> {
        let client = match &self.client {
            Some(client) => client,
            None => {
                let client = Client::in_child(&Platform::cpu(), &self.setup, &self.spec);
                self.client.insert(client.map_err(|error| error.to_string())?)
            }
        };
        let program = encode::to_bytes(module).map_err(|error| error.to_string())?;
        let executable = client.compile(&program, &CompileOptions::default()).map_err(|error| error.to_string())?;
        let outputs = executable.execute(Vec::new()).map_err(|error| error.to_string())?;
        let result = |buffer: &bf16scope::pjrt::Buffer| {
            let shape = ArrayShape::new(buffer.dtype()?, buffer.dims()?);
            Ok::<_, bf16scope::pjrt::PjrtError>((shape.dtype, buffer.to_host()?))
        };
        outputs.iter().map(|buffer| result(buffer).map_err(|error| error.to_string())).collect()
    }
}

/// The least relative distance of two neighbours of a float.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::C128 => f64::EPSILON,
        DType::F32 | DType::C64 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => 0.0,
    }
}

/// The first failed check of the results, if any.
fn wrong(results: &Results, checks: &[Check]) -> Option<String> {
    if results.len() != 2 * checks.len() {
        return Some(format!("{} results of {} checks", results.len(), checks.len()));
    }
    checks.iter().zip(results.chunks_exact(2)).find_map(|(check, pair)| {
        let ((dtype, found), (_, expected)) = (&pair[0], &pair[1]);
        if found == expected {
            return None;
        }
        if !is_comparable(*dtype) {
            return Some(format!("{dtype}: the bits differ"));
        }
        let mut comparison = Comparison::default();
        comparison.add((*dtype, expected), (*dtype, found));
        let errors = comparison.errors();
        let bound = 3.0 * epsilon(*dtype);
        let is_right = errors.n_introduced == 0
            && match check.how {
                How::Equal => errors.max_abs == 0.0,
                How::Almost => errors.max_abs <= 1e-3,
                How::Close => errors.max_rel <= bound && errors.scaled <= bound,
            };
        let text = || {
            format!(
                "{:?} of {dtype}: off by {:e}, relatively {:e}, {} of NaN or infinity",
                check.how, errors.max_abs, errors.max_rel, errors.n_introduced
            )
        };
        (!is_right).then(text)
    })
}

/// The largest error beside the largest element, over all results.
fn scaled(results: &Results, reference: &Results) -> f64 {
    let pairs = results.iter().zip(reference).filter(|(found, expected)| found != expected);
    pairs.fold(0.0f64, |worst, ((dtype, found), (_, expected))| {
        if !is_comparable(*dtype) {
            return f64::INFINITY;
        }
        let mut comparison = Comparison::default();
        comparison.add((*dtype, expected), (*dtype, found));
        worst.max(comparison.errors().scaled)
    })
}

/// Counts, and the files with failed checks.
#[derive(Debug, Default)]
struct Way {
    n_right: usize,
    wrong: Vec<String>,
}

impl Way {
    fn note(&mut self, name: &str, problem: Option<String>) {
        match problem {
            None => self.n_right += 1,
            Some(problem) => self.wrong.push(format!("{name}: {}", problem.lines().next().unwrap_or_default())),
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let Some(folder) = arguments.first() else {
        println!("testdata: no folder given: cargo bench --bench testdata -- FOLDER (of openxla/stablehlo's testdata)");
        return;
    };
    let word = arguments.get(1).map_or("", String::as_str);
    let mut files: Vec<PathBuf> = std::fs::read_dir(Path::new(folder))
        .unwrap_or_else(|error| panic!("{folder}: {error}"))
        .map(|entry| entry.expect("the folder is read").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "mlir"))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(word)))
        .collect();
    files.sort();
    let limits = Limits { timeout: Some(Duration::from_secs(120)), ..Limits::default() };
    let spec = ChildSpec { limits, ..ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope")) };
    let mut machine = Machine { spec, setup: Setup::from_env(), client: None };
    let (mut as_is, mut round_trip, mut lowered) = (Way::default(), Way::default(), Way::default());
    let (mut n_unread, mut n_changed) = (0, 0);
    let (mut unread, mut changed) = (Vec::new(), Vec::new());
    let began = Instant::now();
    for path in &files {
        let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
        let source = std::fs::read_to_string(path).expect("a file of text");
        let Some((program, checks)) = both(&source) else {
            n_unread += 1;
            unread.push(format!("{name}: not of the form that this reads"));
            continue;
        };
        let module = match foreign::read(program.as_bytes(), &name, &machine.setup, &machine.spec) {
            Ok(module) => module,
            Err(error) => {
                n_unread += 1;
                unread.push(format!("{name}: {}", error.to_string().replace('\n', " ")));
                continue;
            }
        };
        let first = machine.run(&module);
        as_is.note(&name, first.as_ref().map_or_else(|error| Some(error.clone()), |first| wrong(first, &checks)));
        let again = there_and_back(&module, &name, &machine).and_then(|module| machine.run(&module));
        round_trip.note(&name, again.map_or_else(Some, |again| wrong(&again, &checks)));
        let narrow = amp::run(&module, &Policy::default()).map_err(|error| error.to_string());
        let narrow = narrow.and_then(|(module, _)| machine.run(&module));
        lowered.note(
            &name,
            match (&first, narrow) {
                (_, Err(error)) => Some(error),
                (Ok(first), Ok(narrow)) if *first != narrow => {
                    n_changed += 1;
                    changed.push((scaled(&narrow, first), name.clone()));
                    let same = first.len() == narrow.len() && first.iter().zip(&narrow).all(|(a, b)| a.0 == b.0);
                    (!same).then(|| "its results have other dtypes".to_string())
                }
                (_, Ok(narrow)) => wrong(&narrow, &checks),
            },
        );
    }
    let n = files.len() - n_unread;
    println!("{} files, {n_unread} not read, {:.0} s", files.len(), began.elapsed().as_secs_f64());
    unread.iter().for_each(|line| println!("  not read: {line}"));
    for (title, way) in [("as it is", as_is), ("text and StableHLO", round_trip), ("lowered", lowered)] {
        println!("{title}: {} of {n} right", way.n_right);
        way.wrong.iter().for_each(|line| println!("  {line}"));
    }
    changed.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("lowering changed bits of {n_changed}; the largest errors beside the largest element:");
    changed.iter().take(10).for_each(|(error, name)| println!("  {error:.2e} {name}"));
}

/// The module printed as HLO text, read, written as StableHLO, and read again.
fn there_and_back(module: &Module, name: &str, machine: &Machine) -> Result<Module, String> {
    let parsed =
        text::parse(&text::print(module, &text::PrintOptions::default()), name).map_err(|error| error.to_string())?;
    let written = stablehlo::write(&parsed).map_err(|error| error.to_string())?;
    foreign::read(written.text.as_bytes(), name, &machine.setup, &machine.spec).map_err(|error| error.to_string())
}
