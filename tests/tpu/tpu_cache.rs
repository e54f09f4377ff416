//! The compile cache on disk: the real TPU compiler runs once for each program, and no damage to a record costs more
//! than another compile.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bf16scope::hlo::DType;
use bf16scope::hlo::proto::messages::{HloModuleProto, OpMetadata};
use bf16scope::tpu::{CompileOutcome, Compiled, Compiler, Need, Target, TpuError};
use prost::Message as _;
use support::Program;
use support::home::{cache_dir, setup};

fn v2() -> Target {
    "tpu-v2".parse().unwrap()
}

/// `[n, n]` × `[n, n]`, with this source line.
fn product(n: i64, line: i32) -> Vec<u8> {
    let mut program = Program::default();
    let lhs = program.parameter(DType::F32, &[n, n]);
    let rhs = program.parameter(DType::F32, &[n, n]);
    let result = program.dot(DType::F32, &[n, n], lhs, rhs);
    let mut module = HloModuleProto::decode(program.finish(&[result]).as_slice()).unwrap();
    let instructions = &mut module.computations[0].instructions;
    let dot = instructions.iter_mut().find(|instruction| instruction.opcode == "dot").unwrap();
    let file = "model.rs".to_string();
    dot.metadata = Some(OpMetadata {
        op_name: "net/dot".to_string(),
        source_file: file,
        source_line: line,
        ..OpMetadata::default()
    });
    module.encode_to_vec()
}

fn lines(optimized: &[u8]) -> Vec<i32> {
    let module = HloModuleProto::decode(optimized).unwrap();
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let metadata = instructions.filter_map(|instruction| instruction.metadata.as_ref());
    let mut lines: Vec<i32> = metadata.map(|metadata| metadata.source_line).filter(|line| *line > 0).collect();
    lines.dedup();
    lines
}

/// The single record below a cache directory.
fn record(cache_dir: &Path) -> PathBuf {
    let mut records = fs::read_dir(cache_dir.join("compiles")).unwrap();
    let record = records.next().unwrap().unwrap().path();
    assert!(records.next().is_none());
    record
}

#[test]
fn a_program_is_compiled_once_and_its_lines_are_its_own() {
    let dir = cache_dir();
    let compiler = Compiler::new(&setup(dir.path()));
    assert!(!compiler.remembers(&v2(), &product(256, 1)).unwrap());
    let first = compiler.compile(&v2(), &product(256, 1), 4).unwrap();
    assert!(!first.is_cached);
    let Compiled { outcome: CompileOutcome::Fits(report), .. } = first else { panic!("{first:?}") };
    assert!(compiler.remembers(&v2(), &product(256, 1)).unwrap());

    // The same figures to the last bit, in another process's compiler too; the batch is the caller's.
    let again = Compiler::new(&setup(dir.path())).compile(&v2(), &product(256, 1), 8).unwrap();
    let Compiled { outcome: CompileOutcome::Fits(mut again), is_cached: true } = again else { panic!("{again:?}") };
    assert_eq!(again.examples_per_second, Some(8.0 / report.step_seconds()));
    again.examples_per_second = report.examples_per_second;
    assert_eq!(again, report);

    // Moving a line costs no compile, but a reader of the program gets its own lines.
    assert!(compiler.compile(&v2(), &product(256, 7), 4).unwrap().is_cached);
    let (compiled, optimized) = compiler.compile_and_read(&v2(), &product(256, 1), 4).unwrap();
    assert_eq!((compiled.is_cached, lines(&optimized)), (true, vec![1]));
    let (compiled, optimized) = compiler.compile_and_read(&v2(), &product(256, 7), 4).unwrap();
    assert_eq!((compiled.is_cached, lines(&optimized)), (false, vec![7]));
    let (compiled, optimized) = compiler.compile_and_read(&v2(), &product(256, 7), 4).unwrap();
    assert_eq!((compiled.is_cached, lines(&optimized)), (true, vec![7]));

    // Another program, target or option has another key.
    assert!(!compiler.compile(&v2(), &product(128, 1), 4).unwrap().is_cached);
    assert!(!compiler.compile(&"tpu-v3".parse().unwrap(), &product(256, 1), 4).unwrap().is_cached);
    let afresh = Compiler::new(&setup(dir.path())).afresh();
    assert!(!afresh.compile(&v2(), &product(256, 1), 4).unwrap().is_cached);
}

#[test]
fn a_program_that_does_not_fit_is_remembered_too() {
    let dir = cache_dir();
    let compiler = Compiler::new(&setup(dir.path()));
    let first = compiler.compile(&v2(), &product(65536, 1), 1).unwrap();
    let again = compiler.compile(&v2(), &product(65536, 1), 1).unwrap();
    assert!(matches!(first.outcome, CompileOutcome::OutOfMemory(Need { needed: Some(_), .. })), "{first:?}");
    assert_eq!((again.outcome.clone(), again.is_cached), (first.outcome, true));
    let text = again.outcome.into_report(&v2()).unwrap_err().to_string();
    assert!(text.starts_with("tpu-v2: out of device memory: needs "), "{text}");
    let error = compiler.compile_and_read(&v2(), &product(65536, 1), 1).unwrap_err();
    assert!(matches!(error, TpuError::OutOfMemory { .. }), "{error}");
}

#[test]
fn a_damaged_record_costs_a_compile_and_is_made_whole() {
    let dir = cache_dir();
    let compiler = Compiler::new(&setup(dir.path()));
    let program = product(256, 1);
    let first = compiler.compile(&v2(), &program, 1).unwrap();
    let whole = fs::read(record(dir.path())).unwrap();
    let body = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0 + 1;
    let mut flipped = whole.clone();
    // In the middle of the compressed program: the figures are intact, and are used.
    let middle = usize::midpoint(body, flipped.len());
    flipped[middle] ^= 0xff;
    for (damaged, figures_are_whole) in [(&whole[..whole.len() - 1], false), (&whole[..0], false), (&flipped, true)] {
        fs::write(record(dir.path()), damaged).unwrap();
        let compiled = compiler.compile(&v2(), &program, 1).unwrap();
        assert_eq!(compiled.is_cached, figures_are_whole);
        let CompileOutcome::Fits(report) = compiled.outcome else { panic!("{:?}", compiled.outcome) };
        let (compiled, optimized) = compiler.compile_and_read(&v2(), &program, 1).unwrap();
        assert_eq!((compiled.is_cached, lines(&optimized)), (!figures_are_whole, vec![1]));
        let CompileOutcome::Fits(first) = &first.outcome else { panic!("{:?}", first.outcome) };
        assert_eq!(
            (report.hbm, report.cycles, report.optimal_seconds),
            (first.hbm, first.cycles, first.optimal_seconds)
        );
    }
}

#[test]
fn a_cache_that_cannot_be_written_costs_only_the_memory() {
    let dir = cache_dir();
    // A file where the folder should be.
    fs::write(dir.path().join("compiles"), "in the way").unwrap();
    let compiler = Compiler::new(&setup(dir.path()));
    for _ in 0..2 {
        let compiled = compiler.compile(&v2(), &product(256, 1), 1).unwrap();
        assert!(!compiled.is_cached && matches!(compiled.outcome, CompileOutcome::Fits(_)));
    }
}

#[test]
fn processes_that_compile_the_same_program_at_once_agree() {
    let dir = cache_dir();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.yaml");
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
        command.arg("compile").arg(&model).args(["--batch", "8", "--json"]).env("BF16SCOPE_CACHE", dir.path());
        command
    };
    let running: Vec<_> = (0..2)
        .map(|_| command().stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap())
        .collect();
    let answers: Vec<serde_json::Value> = running
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice(&output.stdout).unwrap()
        })
        .collect();
    assert_eq!(answers[0]["reports"][0]["cycles"], answers[1]["reports"][0]["cycles"]);
    record(dir.path());
    let cached: serde_json::Value = serde_json::from_slice(&command().output().unwrap().stdout).unwrap();
    assert_eq!(cached["reports"][0]["cached"], true);
    let mut table = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
    table.arg("compile").arg(&model).args(["--batch", "8"]).env("BF16SCOPE_CACHE", dir.path());
    let table = String::from_utf8(table.output().unwrap().stdout).unwrap();
    let row = table.lines().find(|line| line.contains("compile time here")).unwrap();
    assert!(row.contains("cached"), "{table}");

    let cache = |action: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
        let output = command.args(["cache", action]).env("BF16SCOPE_CACHE", dir.path()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(cache("show").contains(": 1 compile, "), "{}", cache("show"));
    assert!(cache("clear").contains(": deleted 1 compile, "));
    assert!(cache("show").contains(": 0 compiles, "));
}

/// Standard output and warnings of a fit with eight compiles, whose records take some 10 KiB each.
fn fit(prepare: &str, cache_dir: &Path) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let model = "model: {kind: mlp, input: [8], n_classes: 2, hidden: [16]}\ntrain: {batch: 8}\n";
    fs::write(folder.path().join("small.yaml"), model).unwrap();
    let script = format!("{prepare}; exec \"$0\" fit small.yaml --max-batch 64");
    let mut command = Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_bf16scope")]).current_dir(folder.path());
    let output = command.env("BF16SCOPE_CACHE", cache_dir).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answer = text(&output.stdout).lines().last().unwrap().to_string();
    (answer, text(&output.stderr))
}

#[test]
fn a_cache_that_has_no_room_costs_only_the_memory() {
    let (whole, limited) = (cache_dir(), cache_dir());
    let (answer, warnings) = fit(":", whole.path());
    assert!(!warnings.contains("warning"), "{warnings}");
    // A file size limit of 4 KiB: the system would kill the process if it did not handle the signal.
    let (limited_answer, warnings) = fit("ulimit -f 4", limited.path());
    assert_eq!(limited_answer, answer);
    assert_eq!(warnings.matches("warning").count(), 1, "{warnings}");
    let shown = limited.path().join("compiles").display().to_string();
    for part in [
        &format!("warning: compile cache {shown}: File too large (os error 27)"),
        "; this run goes on, and remembers no more\nhelp: make room, or set BF16SCOPE_CACHE to a directory",
    ] {
        assert!(warnings.contains(part), "{part} is not in\n{warnings}");
    }
    // No half-written file is left, and with space again it continues.
    assert_eq!(fs::read_dir(limited.path().join("compiles")).unwrap().count(), 0);
    let (again, warnings) = fit(":", limited.path());
    assert!(again == answer && !warnings.contains("warning"), "{again}\n{warnings}");
    assert_eq!(fs::read_dir(limited.path().join("compiles")).unwrap().count(), 8);
}
