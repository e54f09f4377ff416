//! Verdicts on made-up figures, with every combination of signs.

use super::*;
use crate::Hbm;

const MIB: i64 = 1 << 20;

/// Figures relative to a base: cycles, seconds, and MiB of temporaries beside 100 MiB of arguments and 10 of code.
fn report(cycles: f64, seconds: f64, temporaries: i64) -> CompileReport {
    let hbm = Hbm {
        arguments: 100 * MIB,
        outputs: 100 * MIB,
        aliased: 100 * MIB,
        temporaries: temporaries * MIB,
        code: 10 * MIB,
        total: (110 + temporaries) * MIB,
        limit: 8000 * MIB,
    };
    CompileReport {
        hbm,
        flops: 1e9,
        bytes_accessed: 1e9 * seconds,
        cycles: (1_000_000.0 * cycles) as u64,
        n_without_cycles: 0,
        step: None,
        optimal_seconds: 0.1 * seconds,
        examples_per_second: Some(1.0),
        compile_seconds: 1.0,
        devices: bf16scope_hlo::devices::Devices::ONE,
        collectives: Vec::new(),
        narrow_sums: Vec::new(),
    }
}

fn candidate(name: &str, report: CompileReport) -> Candidate {
    Candidate {
        name: name.to_string(),
        outcome: CompileOutcome::Fits(report),
        evidence: None,
        changes_interface: false,
    }
}

fn too_large(name: &str) -> Candidate {
    let need = Need { needed: Some(11_435_000_000), available: Some(8_031_000_000), text: String::new() };
    let outcome = CompileOutcome::OutOfMemory(need);
    Candidate { outcome, ..candidate(name, report(1.0, 1.0, 0)) }
}

/// For f32, and bf16 with these figures: the choice, and the sentences except for the rule.
fn beside(cycles: f64, seconds: f64, temporaries: i64) -> (Option<usize>, String) {
    judged(&[candidate("f32", report(1.0, 1.0, 390)), candidate("bf16", report(cycles, seconds, temporaries))])
}

fn judged(candidates: &[Candidate]) -> (Option<usize>, String) {
    let Verdict { choice, sentences } = verdict(candidates);
    let others: Vec<String> = sentences.into_iter().filter(|sentence| sentence != RULE).collect();
    (choice, others.join("\n"))
}

#[test]
fn what_is_better_in_all_is_chosen_without_more_words() {
    let expected = "Choose bf16: cycles −18.1 %, optimum −33.8 %, HBM −39.0 %, beside f32.";
    assert_eq!(beside(0.819, 0.662, 195), (Some(1), expected.to_string()));
    let sentences = verdict(&[candidate("a", report(1.0, 1.0, 1)), candidate("b", report(1.0, 1.0, 1))]).sentences;
    assert_eq!(sentences.last().map(String::as_str), Some(RULE));
}

#[test]
fn what_is_worse_or_the_same_in_all_is_left() {
    let expected = "Keep f32.\nbf16 has cycles +5.0 %, optimum +2.0 %, HBM ±0.0 %.";
    assert_eq!(beside(1.05, 1.02, 390), (Some(0), expected.to_string()));
    let expected = "Keep f32.\nbf16 has cycles ±0.0 %, optimum ±0.0 %, HBM ±0.0 %.";
    assert_eq!(beside(1.0, 1.0, 390), (Some(0), expected.to_string()));
    // Within 1 % in speed, the least memory decides; within 1 % in that, the first.
    assert_eq!(beside(0.995, 0.995, 390).0, Some(0));
    assert_eq!(beside(1.005, 1.005, 380).0, Some(1));
}

#[test]
fn cycles_and_time_that_disagree_are_said_to() {
    let (choice, text) = beside(1.029, 0.832, 390);
    assert_eq!(
        (choice, text.as_str()),
        (
            Some(1),
            "Choose bf16: cycles +2.9 %, optimum −16.8 %, HBM ±0.0 %, beside f32.\n\
             Cycles and the optimum disagree (their geometric mean: −7.5 %). They are different models of the compiler: cycles are \
             summed over the instructions that it scheduled, the optimum is its cost analysis of flops (±0.0 %) and bytes accessed \
             (−16.8 %).\n\
             By cycles alone it would be f32."
        )
    );
    let (choice, text) = beside(0.98, 1.2, 390);
    assert_eq!(choice, Some(0));
    assert!(text.starts_with("Keep f32.\nbf16 has cycles −2.0 %, optimum +20.0 %"), "{text}");
    assert!(text.contains("Cycles and the optimum disagree (their geometric mean: +8.4 %)."), "{text}");
    assert!(text.ends_with("By cycles alone it would be bf16."), "{text}");
}

#[test]
fn every_combination_of_signs_says_what_holds() {
    let signs = [0.9, 1.0, 1.1];
    for cycles in signs {
        for seconds in signs {
            for temporaries in [300, 390, 480] {
                let (choice, text) = beside(cycles, seconds, temporaries);
                let case = format!("{cycles} {seconds} {temporaries}: {text}");
                let speed: f64 = (cycles * seconds).sqrt();
                let expected = usize::from(speed < 1.0 / 1.01 || (speed < 1.01 && temporaries < 390));
                assert_eq!(choice, Some(expected), "{case}");
                let disagrees = (cycles - 1.0) * (seconds - 1.0) < 0.0;
                assert_eq!(text.contains("disagree"), disagrees, "{case}");
                assert_eq!(text.contains("more HBM"), temporaries > 390, "{case}");
                let (least, chosen) = (temporaries.min(390), if expected == 1 { temporaries } else { 390 });
                assert_eq!(text.contains("Where memory is short"), least < chosen, "{case}");
                // No optimized program was read, so no op and no copy is named.
                assert!(!text.contains("kinds of op") && !text.contains("copies"), "{case}");
            }
        }
    }
}

#[test]
fn more_memory_has_its_parts_and_the_copies_that_were_seen() {
    let evidence = |n: usize, n_bytes: i64, convert: u64| {
        let copies = Copies { n, n_bytes: (n_bytes * MIB) as u64 };
        let copies_of_arguments = Copies { n: n / 2, n_bytes: copies.n_bytes / 2 };
        let cycles_by_kind = [("convert", convert), ("dot", 900_000)].map(|(kind, cycles)| (kind.to_string(), cycles));
        Some(Evidence { copies, copies_of_arguments, cycles_by_kind: cycles_by_kind.into() })
    };
    let mut base =
        Candidate { evidence: evidence(0, 0, 1_000), ..candidate("the module as given", report(1.0, 1.0, 390)) };
    let mut lowered = report(1.029, 0.832, 398);
    lowered.hbm.code -= 2 * MIB;
    lowered.hbm.total -= 2 * MIB;
    let mut other = Candidate { evidence: evidence(8, 10, 30_000), ..candidate("policy default", lowered) };
    let (_, text) = judged(&[base.clone(), other.clone()]);
    assert!(
        text.contains(
            "Of the kinds of op, `convert` gained the most cycles: 30,000 in policy default, 1,000 in the module as given.\n\
             Policy default takes 6.0 MiB more HBM than the module as given: temporaries +8.0 MiB and code −2.0 MiB. At its \
             peak 10.0 MiB of temporaries are copies, in another dtype, of arrays that are alive beside them (8 in all, \
             5.0 MiB of them of arguments; 0 bytes in the module as given): no less than temporaries grew by.\n"
        ),
        "{text}"
    );
    // Copies with fewer bytes than the growth of temporaries do not explain it, and neither do equal numbers of copies.
    other.evidence = evidence(1, 4, 1_000);
    let (_, text) = judged(&[base.clone(), other.clone()]);
    assert!(
        text.contains("alive beside them (1 in all, 2.0 MiB of them of arguments; 0 bytes in the module as given).\n"),
        "{text}"
    );
    assert!(!text.contains("grew by") && !text.contains("kinds of op"), "{text}");
    base.evidence = evidence(1, 4, 1_000);
    let (_, text) = judged(&[base.clone(), other.clone()]);
    assert!(text.contains("more HBM") && !text.contains("alive beside"), "{text}");
    // They are not the reason either if another component grew.
    (base.evidence, other.evidence) = (evidence(0, 0, 1_000), evidence(8, 10, 1_000));
    let CompileOutcome::Fits(lowered) = &mut other.outcome else { panic!("{other:?}") };
    (lowered.hbm.temporaries, lowered.hbm.code) = (390 * MIB, 16 * MIB);
    let (_, text) = judged(&[base, other]);
    assert!(text.contains("6.0 MiB more HBM than the module as given: code +6.0 MiB.\n"), "{text}");
}

#[test]
fn what_does_not_fit_is_not_chosen() {
    let fits = candidate("bf16", report(9.0, 9.0, 390));
    let expected = "Choose bf16: it fits.\nToo large: f32 needs 10.65 GiB of 7.48 GiB.";
    assert_eq!(judged(&[too_large("f32"), fits.clone()]), (Some(1), expected.to_string()));
    let expected = "Keep bf16.\nToo large: policy O2 needs 10.65 GiB of 7.48 GiB.";
    assert_eq!(judged(&[fits, too_large("policy O2")]), (Some(0), expected.to_string()));
    let unsaid = Candidate {
        outcome: CompileOutcome::OutOfMemory(Need { available: Some(1), ..Need::default() }),
        ..too_large("policy tf_amp")
    };
    let expected = "None of them fits: f32 needs 10.65 GiB of 7.48 GiB and policy tf_amp does not fit.";
    let none = verdict(&[too_large("f32"), unsaid]);
    assert_eq!((none.choice, none.sentences), (None, vec![expected.to_string()]));
}

#[test]
fn of_several_the_best_is_explained_and_other_aims_are_said() {
    let first = candidate("the module as given", report(1.0, 1.0, 390));
    let fast = Candidate { changes_interface: true, ..candidate("policy O3", report(0.8, 0.7, 300)) };
    let small = candidate("policy O2", report(0.9, 0.8, 100));
    let (choice, text) = judged(&[first.clone(), small.clone(), fast]);
    assert_eq!(
        (choice, text.as_str()),
        (
            Some(2),
            "Choose policy O3: cycles −20.0 %, optimum −30.0 %, HBM −18.0 %, beside the module as given.\n\
             Where memory is short, policy O2 takes the least: 210.0 MiB against 410.0 MiB.\n\
             Policy O3 takes or gives other dtypes than the module as given: what calls the program must change with it."
        )
    );
    let worse = |name: &str, by: f64| candidate(name, report(by, by, 390));
    let (choice, text) = judged(&[first, worse("policy a", 1.2), worse("policy b", 1.1)]);
    assert_eq!(
        (choice, text.as_str()),
        (
            Some(0),
            "Keep the module as given.\nPolicy b, the best of the others, has cycles +10.0 %, optimum +10.0 %, HBM ±0.0 %."
        )
    );
}

#[test]
fn a_program_without_cycles_is_judged_by_time() {
    let none = candidate("bf16", report(0.0, 1.5, 390));
    let (choice, text) = judged(&[candidate("f32", report(1.0, 1.0, 390)), none]);
    assert_eq!(choice, Some(0));
    assert!(text.contains("Cycles were left out: the compiler estimates none for bf16."), "{text}");
    assert_eq!(change(3.0, 0.0), "3 against 0");
    assert_eq!(change(0.0, 0.0), "±0.0 %");
}

#[test]
fn amounts_are_in_the_unit_that_shows_them() {
    let shown = [0, 1023, 1536, 12 << 20, 11_435_000_000].map(amount);
    assert_eq!(shown, ["0 bytes", "1023 bytes", "1.5 KiB", "12.0 MiB", "10.65 GiB"]);
    assert_eq!([0, 999, 1_000, 95_299_378].map(grouped), ["0", "999", "1,000", "95,299,378"]);
}
