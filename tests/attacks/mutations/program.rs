//! Mutated modules as files for the real program: its exit code is one of the three documented ones.

use super::Seeds;
use super::journey::Source;
use crate::door::Folder;
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// The seeds of the cases; each case starts the program twice.
const CASES: std::ops::Range<u64> = 1_000_000..1_000_012;

#[test]
fn the_program_ends_with_a_code_that_means_something() {
    let seeds = Seeds::read();
    let folder = Folder::new();
    let n_asked = std::env::var("BF16SCOPE_MUTATIONS").ok().and_then(|asked| asked.parse::<u64>().ok());
    // Only a part of a long run: starting a program takes longer than a module.
    let cases = CASES.start..n_asked.map_or(CASES.end, |asked| CASES.start + asked / 50);
    let mut counts = std::collections::BTreeMap::<(&str, Option<i32>), u32>::new();
    for case in cases {
        let source = seeds.case(&mut SmallRng::seed_from_u64(case));
        let name = match &source {
            Source::Text(text) => {
                folder.write("case.txt", text);
                "case.txt"
            }
            Source::Proto(bytes) => {
                folder.write("case.pb", bytes);
                "case.pb"
            }
        };
        let runs: [&[&str]; 2] = [
            &["run", name, "--random", "1", "--timeout", "5", "--memory", "2GiB"],
            &["lower", name, "-o", "lowered.txt"],
        ];
        for arguments in runs {
            let ended = folder.run(arguments);
            *counts.entry((arguments[0], ended.code)).or_default() += 1;
            assert!(
                matches!(ended.code, Some(0..=2)),
                "case {case}, {arguments:?}: {:?}\n{}",
                ended.code,
                ended.stderr
            );
            assert!(!ended.stderr.contains("panicked at"), "case {case}, {arguments:?}:\n{}", ended.stderr);
            let says_why = ended.code == Some(0) || ended.stderr.starts_with("bf16scope: ") || ended.code == Some(1);
            assert!(says_why, "case {case}, {arguments:?}:\n{}", ended.stderr);
        }
    }
    println!("{counts:?}");
}
