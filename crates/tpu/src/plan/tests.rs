//! Predictions between compiled programs, and decisions on what fits.

use super::*;
use crate::{Hbm, Need, Spec};

const MIB: i64 = 1 << 20;

fn series(version: &str, precision: &str) -> Series {
    Series {
        board: Target::board(Spec::named(version).unwrap()),
        precision: precision.to_string(),
        remat: true,
        in_parts: false,
    }
}

fn setting(version: &str, precision: &str, n_cores: u32) -> Setting {
    let target = Spec::named(version).unwrap().slice_of(n_cores as usize).unwrap();
    Setting { series: series(version, precision), target, n_cores, batch: 8192, accumulate: 1 }
}

/// A step that takes `fixed` MiB and `each` for an example, and 1000 cycles for an example and `start` besides.
fn fits(setting: &Setting, fixed: i64, each: i64, start: u64) -> Point {
    let part = setting.part();
    let temporaries = each * i64::from(part) * MIB;
    let hbm = Hbm {
        arguments: fixed * MIB,
        outputs: 0,
        aliased: 0,
        temporaries,
        code: 0,
        total: fixed * MIB + temporaries,
        limit: 8000 * MIB,
    };
    let devices = Devices { replicas: setting.n_cores as usize, partitions: 1 };
    let mut sum = Collective::of_bytes("all-reduce", "f32", 100 * MIB as u64, u64::from(setting.n_cores));
    sum.seconds = Links::for_target(&setting.target).map(|links| links.seconds(&sum, devices));
    let report = CompileReport {
        hbm,
        flops: 1.0,
        bytes_accessed: 1.0,
        cycles: start + 1000 * u64::from(part),
        n_without_cycles: 0,
        step: None,
        optimal_seconds: 1.0,
        examples_per_second: Some(1.0),
        compile_seconds: 1.0,
        devices,
        collectives: vec![sum],
        narrow_sums: Vec::new(),
    };
    Point { setting: setting.clone(), outcome: CompileOutcome::Fits(report) }
}

fn too_large(setting: &Setting) -> Point {
    let outcome = CompileOutcome::OutOfMemory(Need { available: Some(8000 << 20), ..Need::default() });
    Point { setting: setting.clone(), outcome }
}

fn slices(precision: &str) -> Vec<Setting> {
    [8, 32, 128, 512, 2048].map(|n| setting("v3", precision, n)).to_vec()
}

fn hbm(row: &SliceRow) -> f64 {
    // A prediction has a few f64 roundings.
    (row.figures.unwrap().hbm / MIB as f64 * 1e6).round() / 1e6
}

#[test]
fn what_lies_on_a_line_is_predicted_with_the_least_bound() {
    let settings = slices("bf16");
    // Parts of 1024, 256, 64, 16 and 4.
    let mut points: Vec<Point> = [4, 2, 1].map(|at: usize| fits(&settings[at], 500, 20, 7000)).to_vec();
    points.push(too_large(&settings[0]));
    let rows = plan(&settings, &points);
    assert_eq!(rows[1..].iter().map(hbm).collect::<Vec<f64>>(), [5620.0, 1780.0, 820.0, 580.0]);
    let by: Vec<bool> = rows.iter().map(|row| row.known == Known::Compiled).collect();
    assert_eq!(by, [true, true, true, false, true]);
    assert_eq!(rows[3].known, Known::Predicted { hbm_error: Some(0.1), cycles_error: Some(0.1) });
    assert_eq!(
        rows.iter().map(|row| row.fits).collect::<Vec<Fit>>(),
        [Fit::No, Fit::Yes, Fit::Yes, Fit::Yes, Fit::Yes]
    );
    // 7000 + 1000 · 16 cycles at 940 MHz, and 100 MiB over 256 chips.
    let figures = rows[3].figures.unwrap();
    assert!((figures.step.compute_seconds - 23_000.0 / 0.94e9).abs() < 1e-12);
    let ring = 2.0 * 255.0 / 256.0 * 100.0 * MIB as f64 / 164e9;
    assert!((figures.step.collective_seconds - ring).abs() < 1e-9, "{figures:?}");
    // A start of 50 µs, and an all-reduce around 256 chips in 32 hops of 1 µs.
    assert!((figures.step.latency_seconds - 82e-6).abs() < 1e-12, "{figures:?}");
    let parts = figures.step.compute_seconds + figures.step.collective_seconds + figures.step.latency_seconds;
    assert!((figures.step.seconds - parts).abs() < 1e-9, "{figures:?}");
    assert_eq!(rows[3].examples_per_second, Some(8192.0 / figures.step.seconds));
    // A setting that does not fit has no speed, and is no reference for the others: the best single core has 256
    // examples.
    assert_eq!((rows[0].examples_per_second, rows[0].efficiency), (None, None));
    let alone = 256.0 / (263_000.0 / 0.94e9);
    assert!((rows[3].efficiency.unwrap() - 16.0 / figures.step.seconds / alone).abs() < 1e-12);
}

/// A step whose parts below 128 are all padded to 128: the smallest parts do not predict the largest.
#[test]
fn nothing_is_predicted_of_large_parts_from_padded_ones() {
    let padded = |setting: &Setting| {
        let part = i64::from(setting.part().max(128)) / i64::from(setting.part());
        fits(setting, 500, 20 * part, 7000)
    };
    let settings = slices("bf16");
    // Parts of 4, and of 4 and 16: both cost as much as 128.
    for points in [vec![padded(&settings[4])], vec![padded(&settings[4]), padded(&settings[3])]] {
        let rows = plan(&settings, &points);
        assert!(rows[..2].iter().all(|row| row.figures.is_none() && row.fits == Fit::Unsure), "{rows:?}");
    }
    // Twice the largest part is within reach, but uncertain.
    let mut near = settings[3].clone();
    (near.n_cores, near.batch) = (256, 8192);
    let rows = plan(&[near], &[padded(&settings[4]), padded(&settings[3])]);
    assert_eq!((hbm(&rows[0]), rows[0].fits), (3060.0, Fit::Yes));
    assert_eq!(rows[0].known, Known::Predicted { hbm_error: None, cycles_error: None });
}

/// A single-core program compiled by `fit`, which has no collectives, is a point of memory and cycles.
#[test]
fn programs_of_one_core_are_points_and_what_cores_sum_comes_from_others() {
    let settings = slices("bf16");
    let alone = |at: usize| {
        let mut setting = settings[at].clone();
        (setting.batch, setting.n_cores, setting.target) = (setting.part(), 1, setting.series.board.clone());
        let mut point = fits(&setting, 500, 20, 7000);
        let CompileOutcome::Fits(report) = &mut point.outcome else { panic!() };
        report.collectives.clear();
        point
    };
    let mut points = vec![alone(1), alone(3), alone(4)];
    // They do not replace the first program over cores.
    assert_eq!(next(&settings, &points), Some(0));
    points.push(fits(&settings[2], 500, 20, 7000));
    let rows = plan(&settings, &points);
    assert_eq!(rows[1..].iter().map(hbm).collect::<Vec<f64>>(), [5620.0, 1780.0, 820.0, 580.0]);
    assert!(rows[3].figures.unwrap().step.collective_seconds > 0.0, "{:?}", rows[3]);
}

#[test]
fn a_curve_is_predicted_with_the_error_that_it_has() {
    let settings = slices("bf16");
    let mut points: Vec<Point> = [4, 3, 1].map(|at: usize| fits(&settings[at], 500, 20, 0)).to_vec();
    let CompileOutcome::Fits(report) = &mut points[1].outcome else { panic!() };
    // 820 MiB by the line, 1000 by the compiler.
    report.hbm.total = 1000 * MIB;
    let rows = plan(&settings, &points);
    let Known::Predicted { hbm_error: Some(hbm), cycles_error: Some(cycles) } = rows[2].known else {
        panic!("{rows:?}")
    };
    assert!((hbm - 0.18).abs() < 1e-12 && cycles == 0.1, "{hbm} {cycles}");
}

#[test]
fn near_the_limit_a_prediction_is_not_sure() {
    let mut settings = slices("f32");
    settings[0].batch = 8 * 340;
    // From parts of 16, 64 and 256, 340 take 500 + 20 · 340 = 7300 of 8000: outside the points, so off by up to half.
    let three = [3, 2, 1].map(|at: usize| fits(&settings[at], 500, 20, 0));
    let rows = plan(&settings, &three);
    assert_eq!((hbm(&rows[0]), rows[0].fits), (7300.0, Fit::Unsure));
    assert_eq!(rows[0].known, Known::Predicted { hbm_error: None, cycles_error: None });
    // Below a part that fits there is no doubt.
    settings[0].batch = 8 * 250;
    assert_eq!(plan(&settings, &three)[0].fits, Fit::Yes);
    // If fewer examples were refused, so are more.
    settings[0].batch = 8 * 340;
    let refused = [too_large(&settings[2]), fits(&settings[4], 500, 20, 0)];
    let fits: Vec<Fit> = plan(&settings, &refused).iter().map(|row| row.fits).collect();
    assert_eq!(fits, [Fit::No, Fit::No, Fit::No, Fit::Unsure, Fit::Yes]);
}

#[test]
fn nothing_compiled_is_nothing_known() {
    let rows = plan(&slices("bf16"), &[]);
    assert!(rows.iter().all(|row| row.fits == Fit::Unsure && row.figures.is_none() && !row.is_on_front), "{rows:?}");
}

/// The settings in the order of compiling, for steps with `fixed` MiB plus `each` per example.
fn order(settings: &[Setting], fixed: i64, each: i64) -> Vec<(String, u32)> {
    let (mut points, mut asked) = (Vec::new(), Vec::new());
    while let Some(at) = next(settings, &points) {
        let setting = &settings[at];
        asked.push((setting.series.precision.clone(), setting.n_cores));
        assert!(asked.len() <= settings.len(), "{asked:?}");
        match fixed + each * i64::from(setting.part()) <= 8000 {
            true => points.push(fits(setting, fixed, each, 0)),
            false => points.push(too_large(setting)),
        }
    }
    asked
}

#[test]
fn the_greatest_part_comes_first_then_the_middle_and_series_take_turns() {
    let both: Vec<Setting> = slices("f32").into_iter().chain(slices("bf16")).collect();
    let order = order(&both, 500, 5);
    let measured: Vec<(&str, u32)> = order.iter().map(|(precision, n)| (precision.as_str(), *n)).collect();
    let expected = [8, 128, 2048, 32, 512].map(|n| [("f32", n), ("bf16", n)]).concat();
    assert_eq!(measured, expected);
}

#[test]
fn after_a_refusal_nothing_larger_is_tried() {
    // 1024 examples at once and 64 do not fit, so 256 are not tried.
    let order: Vec<u32> = order(&slices("f32"), 500, 200).into_iter().map(|(_, n)| n).collect();
    assert_eq!(order, [8, 128, 2048, 512]);
}

#[test]
fn the_front_is_of_each_tpu_and_of_what_fits() {
    let settings: Vec<Setting> =
        [("v2", 32), ("v2", 128), ("v3", 32), ("v3", 128)].map(|(version, n)| setting(version, "bf16", n)).to_vec();
    let mut slower = settings[3].clone();
    slower.series.precision = "f32".to_string();
    let mut points: Vec<Point> = settings.iter().map(|it| fits(it, 500, 20, 0)).collect();
    points.push(fits(&slower, 500, 20, 1_000_000));
    let all: Vec<Setting> = settings.into_iter().chain([slower]).collect();
    assert_eq!(
        plan(&all, &points).iter().map(|row| row.is_on_front).collect::<Vec<bool>>(),
        [true, true, true, true, false]
    );
    points[1] = too_large(&all[1]);
    assert!(!plan(&all, &points)[1].is_on_front);
}

#[test]
fn micro_batches_make_room() {
    let settings = slices("bf16");
    let mut points: Vec<Point> = [4, 2, 1].map(|at: usize| fits(&settings[at], 500, 20, 7000)).to_vec();
    points.push(too_large(&settings[0]));
    // 1024 at once do not fit; 256 take 5,620, plus 100 for accumulated gradients.
    let wanted = accumulated(&settings[0], &points).unwrap();
    assert_eq!((wanted.accumulate, wanted.part()), (4, 256));
    let row = &plan(&[wanted], &points)[0];
    assert_eq!((hbm(row), row.fits), (5720.0, Fit::Yes));
    assert!((row.figures.unwrap().step.compute_seconds - 4.0 * 263_000.0 / 0.94e9).abs() < 1e-12);
    // A setting that fits needs no accumulation, and without points nothing is known.
    assert_eq!((accumulated(&settings[1], &points), accumulated(&settings[0], &[])), (None, None));
}

/// The rates of a network whose steps take long to start.
#[test]
fn of_a_single_point_memory_of_less_is_said_and_no_speed() {
    let settings = slices("bf16");
    let points = [fits(&settings[1], 500, 20, 1_000_000)];
    let rows = plan(&settings, &points);
    assert!(rows[1].examples_per_second.is_some() && rows[1].is_on_front);
    for row in &rows[2..] {
        assert!(row.figures.is_some() && row.fits == Fit::Yes && row.examples_per_second.is_none(), "{row:?}");
    }
    assert!(rows[0].figures.is_none() && rows[0].fits == Fit::Unsure, "{:?}", rows[0]);
    assert_eq!(rows.iter().filter_map(|row| row.efficiency).count(), 0);
}

/// The faster of two rows is not less efficient, with and without sharded state.
#[test]
fn efficiency_is_over_the_most_of_a_tpu_and_precision() {
    let whole = [setting("v3", "bf16", 8), setting("v3", "bf16", 128)];
    let in_parts = |setting: &Setting| {
        let mut setting = setting.clone();
        setting.series.in_parts = true;
        setting
    };
    let settings: Vec<Setting> = whole.iter().cloned().chain(whole.iter().map(in_parts)).collect();
    let points: Vec<Point> =
        settings.iter().map(|it| fits(it, 500, 5, if it.series.in_parts { 0 } else { 300_000 })).collect();
    let rows = plan(&settings, &points);
    for pair in [[&rows[0], &rows[2]], [&rows[1], &rows[3]]] {
        let [speed, than] = pair.map(|row| row.examples_per_second.unwrap() / f64::from(row.setting.n_cores));
        let [efficiency, of_parts] = pair.map(|row| row.efficiency.unwrap());
        assert!((efficiency / of_parts - speed / than).abs() < 1e-12 && efficiency < of_parts, "{pair:?}");
    }
}
