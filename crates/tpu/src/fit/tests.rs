//! The search for the largest batch, by a compiler that is a function.

use super::*;
use crate::Hbm;

/// The requested batches, in order, and the result, for a compiler with known answers.
fn run(start: u32, max: u32, answer: impl Fn(u32) -> Trial) -> (Vec<u32>, Found) {
    let mut asked = Vec::new();
    let result = search(start, max, MULTIPLE, |step: Step| -> Result<Trial, String> {
        asked.push(step.batch);
        Ok(answer(step.batch))
    });
    let mut once = asked.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), asked.len(), "asked twice: {asked:?}");
    (asked, result.unwrap())
}

fn found_at(largest: u32, best: u32) -> Found {
    Found { largest: Some(largest), is_capped: false, best: Some(best) }
}

/// Fits up to a batch, and is better the nearer it is to another.
fn fits_up_to(limit: u32, best: u32) -> impl Fn(u32) -> Trial {
    move |batch| match batch <= limit {
        true => Trial::Fits(-f64::from(batch).log2().mul_add(1.0, -f64::from(best).log2()).abs()),
        false => Trial::OutOfMemory,
    }
}

#[test]
fn it_doubles_bisects_and_looks_below_the_best() {
    let (asked, result) = run(128, 8192, fits_up_to(300, 128));
    assert_eq!(result, found_at(296, 128));
    assert_eq!(asked, [128, 256, 512, 384, 320, 288, 304, 296, 64]);
    // The best is far below the start.
    let (asked, result) = run(64, 8192, fits_up_to(64, 4));
    assert_eq!((result, asked), (found_at(64, 4), vec![64, 128, 96, 80, 72, 32, 16, 8, 4, 2]));
    // The start is not a power of two.
    assert_eq!(run(100, 8192, fits_up_to(70, 64)).1, found_at(64, 64));
}

#[test]
fn a_coarser_bisection_takes_fewer_compiles() {
    let mut asked = Vec::new();
    let result = search(128, 8192, 64, |step: Step| -> Result<Trial, String> {
        asked.push(step.batch);
        Ok(fits_up_to(300, 128)(step.batch))
    });
    assert_eq!((result, asked), (Ok(found_at(256, 128)), vec![128, 256, 512, 384, 320, 64]));
}

#[test]
fn a_start_that_does_not_fit_is_halved() {
    let (asked, result) = run(512, 8192, fits_up_to(20, 16));
    assert_eq!((result, asked), (found_at(16, 16), vec![512, 256, 128, 64, 32, 16, 24, 8]));
    // Below 8 only powers of two are tried.
    let (asked, result) = run(16, 8192, fits_up_to(3, 1));
    assert_eq!((result, asked), (found_at(2, 1), vec![16, 8, 4, 2, 1]));
}

#[test]
fn nothing_fits_at_batch_1() {
    let (asked, result) = run(4, 8192, |_| Trial::OutOfMemory);
    assert_eq!((result, asked), (Found { largest: None, is_capped: false, best: None }, vec![4, 2, 1]));
}

#[test]
fn the_greatest_batch_allowed_ends_the_search() {
    let (asked, result) = run(128, 384, fits_up_to(10_000, 384));
    assert_eq!(result, Found { is_capped: true, ..found_at(384, 384) });
    assert_eq!(asked, [128, 256, 384]);
    let (asked, result) = run(128, 1, fits_up_to(10_000, 1));
    assert_eq!((result, asked), (Found { is_capped: true, ..found_at(1, 1) }, vec![1]));
    let (asked, _) = run(u32::MAX, u32::MAX, fits_up_to(u32::MAX, u32::MAX));
    assert_eq!(asked, [1 << 31, u32::MAX]);
    // A batch at the limit that does not fit is not a cap.
    assert_eq!(run(128, 256, fits_up_to(200, 128)).1, found_at(200, 128));
}

#[test]
fn a_larger_batch_may_fit_where_a_smaller_does_not() {
    // 384 fits although 320 does not: the result fits, and the batch that bounds it does not.
    let answer = |batch: u32| match batch {
        320 | 512.. => Trial::OutOfMemory,
        batch => Trial::Fits(f64::from(batch)),
    };
    assert_eq!(run(128, 8192, answer).1.largest, Some(504));
    let answer = |batch: u32| match batch {
        0..=256 => Trial::Fits(f64::from(batch)),
        384 => Trial::OutOfMemory,
        320 => Trial::OutOfMemory,
        264..=312 => Trial::Fits(f64::from(batch)),
        _ => Trial::OutOfMemory,
    };
    assert_eq!(run(128, 8192, answer).1.largest, Some(312));
}

#[test]
fn a_failure_in_the_middle_is_passed_over_once() {
    let answer = |batch: u32| match batch {
        256 => Trial::Failed,
        0..=600 => Trial::Fits(f64::from(batch)),
        _ => Trial::OutOfMemory,
    };
    let (asked, result) = run(128, 8192, answer);
    assert_eq!((result.largest, &asked[..4]), (Some(600), &[128, 256, 512, 1024][..]));
    // Two in a row end the doubling, and bound the bisection.
    let answer = |batch: u32| if batch > 200 { Trial::Failed } else { Trial::Fits(1.0 / f64::from(batch)) };
    let (asked, result) = run(128, 8192, answer);
    assert_eq!(result, found_at(200, 1));
    assert_eq!(asked[..3], [128, 256, 512]);
    // A start that fails is halved like one that does not fit.
    assert_eq!(run(16, 8192, |_| Trial::Failed).1.largest, None);
}

#[test]
fn the_least_of_equals_is_best_and_errors_end_the_search() {
    assert_eq!(run(8, 64, |_| Trial::Fits(1.0)).1, Found { is_capped: true, ..found_at(64, 1) });
    let mut n_asked = 0;
    let error = search(8, 64, MULTIPLE, |_| {
        n_asked += 1;
        Err("no compiler")
    });
    assert_eq!((error, n_asked), (Err("no compiler"), 1));
}

#[test]
fn the_compiles_that_follow_are_guessed_within_reason() {
    let mut guesses = Vec::new();
    search(128, 8192, MULTIPLE, |step: Step| -> Result<Trial, String> {
        guesses.push(step.n_more);
        Ok(fits_up_to(300, 128)(step.batch))
    })
    .unwrap();
    // Nine compiles, eight of them after the first.
    assert!((4..=9).contains(&guesses[0]), "{guesses:?}");
    assert_eq!(guesses.last(), Some(&0));
}

#[test]
fn given_batches_are_taken_in_order_until_one_does_not_fit() {
    let mut asked = Vec::new();
    let result = search_among(&[16, 32, 64, 128], |step: Step| -> Result<Trial, String> {
        asked.push((step.batch, step.n_more));
        Ok(fits_up_to(40, 16)(step.batch))
    });
    let expected = Found { largest: Some(32), is_capped: false, best: Some(16) };
    assert_eq!((result, asked), (Ok(expected), vec![(16, 3), (32, 2), (64, 1)]));
    let all = search_among(&[16, 32], |_| -> Result<Trial, String> { Ok(Trial::Fits(1.0)) }).unwrap();
    assert_eq!(all, Found { largest: Some(32), is_capped: true, best: Some(16) });
    let none = search_among(&[], |_| -> Result<Trial, String> { Ok(Trial::Fits(1.0)) }).unwrap();
    assert_eq!(none, Found { largest: None, is_capped: false, best: None });
}

/// ResNet-50 for v2 in f32: flops and cycles of batches 64, 128 and 256.
fn resnet() -> Vec<CompiledBatch> {
    let hbm = Hbm { arguments: 0, outputs: 0, aliased: 0, temporaries: 0, code: 0, total: 0, limit: 0 };
    let row = |batch, flops, cycles| {
        let report = CompileReport {
            hbm,
            flops,
            bytes_accessed: 0.0,
            cycles,
            n_without_cycles: 0,
            step: None,
            optimal_seconds: 1.0,
            examples_per_second: Some(1.0),
            compile_seconds: 1.0,
            devices: bf16scope_hlo::devices::Devices::ONE,
            collectives: Vec::new(),
            narrow_sums: Vec::new(),
        };
        CompiledBatch { batch, cached: false, outcome: CompileOutcome::Fits(report) }
    };
    let no = CompileOutcome::OutOfMemory(Need::default());
    vec![
        CompiledBatch { batch: 512, cached: false, outcome: no },
        row(64, 1.523e12, 113_966_736),
        row(128, 3.129e12, 204_721_685),
        row(256, 8.434e12, 506_842_004),
    ]
}

#[test]
fn a_row_that_computes_things_twice_says_so() {
    let rows = resnet();
    let summaries = summarize(&rows);
    assert_eq!(summaries[0], None);
    let figures: Vec<(String, String, bool)> = (summaries.iter().flatten())
        .map(|s| (format!("{:.2}", s.examples_per_mcycle), format!("{:.3}", s.flops_ratio), s.rematerialises))
        .collect();
    let expected = [("0.56", "1.000", false), ("0.63", "1.027", true), ("0.51", "1.384", true)];
    assert_eq!(figures, expected.map(|(a, b, c)| (a.to_string(), b.to_string(), c)));
    // Work that does not grow with the batch has more weight in small batches: that is not rematerialisation.
    let mut falling = resnet();
    falling.truncate(3);
    let CompileOutcome::Fits(report) = &mut falling[1].outcome else { panic!("{falling:?}") };
    report.flops *= 1.5;
    assert!(summarize(&falling).iter().flatten().all(|summary| !summary.rematerialises));
}
