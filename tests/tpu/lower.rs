//! `bf16scope lower --target`: the TPU compiler's decisions, in the library and in the program.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::home::{cache_dir, setup};
use bf16scope::hlo::proto::decode;
use bf16scope::hlo::{Module, text};
use bf16scope::passes::amp::{self, Policy};
use bf16scope::pjrt::Setup;
use bf16scope::study::{Asking, Event, LowerAnswer, LowerQuestion, TrialEnd, lower_for, policy, policy_of_text};

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle_jax/encoder_forward.hlo.pb")
}

fn module() -> Module {
    decode::from_bytes(&std::fs::read(file()).unwrap()).unwrap()
}

fn ask(n_compiles: u32, setup: &Setup) -> (LowerAnswer, Vec<String>) {
    let question = LowerQuestion {
        module: module(),
        path: file(),
        policy: Policy::default(),
        target: "tpu-v2".parse().unwrap(),
        n_compiles,
    };
    let mut compiled = Vec::new();
    let mut on = |event: &Event<'_>| {
        if let Event::Ends { compiling, is_cached: false, .. } = event {
            compiled.push(compiling.what.clone());
        }
    };
    let answer = lower_for(&question, &Asking::new(setup), &mut on).unwrap_or_else(|error| panic!("{error}"));
    (answer, compiled)
}

/// Within the budget both forms are compiled; the result is no worse than the policy alone, together with a policy that
/// gives the same module again. Cached compiles are not repeated.
#[test]
fn the_compiler_decides_and_its_decisions_are_a_policy() {
    let cache = cache_dir();
    let setup = setup(cache.path());
    let (first, compiled) = ask(8, &setup);
    assert_eq!(compiled.len(), 8, "{compiled:?}");
    assert_eq!(compiled[0], "as the policy lowers it");
    assert_eq!(first.trials.len(), 7, "{:?}", first.trials);
    let (before, after) = (first.before.unwrap(), first.after.unwrap());
    assert!(after.n_bytes <= before.n_bytes + before.n_bytes / 1000, "{before:?} {after:?}");
    assert!(after.cycles <= before.cycles + before.cycles / 1000, "{before:?} {after:?}");
    // The result's cost is that of one of the programs, and each kept trial has decisions.
    let kept_trials: Vec<_> = first.trials.iter().filter(|trial| trial.end == TrialEnd::Kept).collect();
    assert_eq!(kept_trials.last().map_or(Some(before), |trial| trial.cost), Some(after));
    assert_eq!(kept_trials.is_empty(), first.policy.decided.is_empty());
    assert!(first.policy.decided.iter().all(|decided| decided.because.contains("tpu-v2")), "{:?}", first.policy);
    // As a document it gives the same module, without a compiler.
    let document = bf16scope::document::to_string(&first.policy).unwrap();
    let read = policy_of_text(&document).unwrap_or_else(|error| panic!("{error}\n{document}"));
    let (again, report) = amp::run(&module(), &read).unwrap();
    assert_eq!(text::print(&again, &Default::default()), text::print(&first.module, &Default::default()));
    assert_eq!(report.notes, [""; 0]);
    // No value is narrow that the policy alone leaves in f32, unless a decision says so.
    let (_, alone) = amp::run(&module(), &Policy::default()).unwrap();
    for decision in first.report.decisions.iter().filter(|decision| decision.is_lowered) {
        let is_decided = first.policy.decided.iter().any(|decided| decided.instruction == decision.instruction);
        let was = alone.explain(&decision.instruction).iter().any(|decision| decision.is_lowered);
        assert!(was || is_decided, "{decision:?}");
    }
    let (second, compiled) = ask(0, &setup);
    assert_eq!(compiled, [""; 0]);
    assert_eq!((second.policy, second.trials.len()), (first.policy, 7));
}

#[test]
fn the_command_writes_decisions_that_another_command_reads() {
    // A separate cache: if an earlier run had compiled every region, nothing would count.
    let (folder, cache) = (tempfile::tempdir().unwrap(), cache_dir());
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
        let command = command.args(args).current_dir(&folder).env("BF16SCOPE_CACHE", cache.path());
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let module = file();
    let module = module.to_str().unwrap();
    let args =
        ["lower", module, "-o", "asked.txt", "--target", "tpu-v2", "--compiles", "4", "--excess-precision", "off"];
    let (said, progress) = run(&args);
    assert!(said.contains("by the policy alone") && said.contains("asked.decisions.yaml"), "{said}");
    assert!(progress.contains("up to 4 compiles"), "{progress}");
    let path = folder.path().join("asked.decisions.yaml");
    assert_eq!(policy(path.to_str().unwrap()).unwrap().dtype, Policy::default().dtype);
    let (_, warned) = run(&["lower", module, "-o", "again.txt", "--policy", path.to_str().unwrap()]);
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!((read("asked.txt"), warned.as_str()), (read("again.txt"), ""));
    // Cached compiles are not counted, and reported once: the count used to go on to "5 of 4".
    let more: Vec<&str> = args.iter().map(|arg| if *arg == "4" { "1" } else { *arg }).collect();
    let (said, progress) = run(&more);
    assert!(progress.contains("up to 1 compiles") && progress.contains("1 of 1: "), "{progress}");
    assert!(!progress.contains("2 of 1") && progress.matches("up to 1").count() == 1, "{progress}");
    assert!(["more HBM", "more cycles", "no gain", "kept"].iter().any(|end| said.contains(end)), "{said}");
}
