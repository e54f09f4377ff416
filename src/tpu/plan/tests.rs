//! What is predicted between programs that were compiled, and what fits.

use super::*;
use crate::tpu::{Hbm, Spec};

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
    sum.seconds = Links::of(&setting.target).map(|links| links.seconds(&sum, devices));
    let report = CompileReport {
        hbm,
        flops: 1.0,
        bytes_accessed: 1.0,
        cycles: start + 1000 * u64::from(part),
        seconds: 1.0,
        examples_per_second: 1.0,
        compile_seconds: 1.0,
        devices,
        collectives: vec![sum],
        narrow_sums: Vec::new(),
    };
    Point { setting: setting.clone(), answer: Answer::Fits(report) }
}

fn too_large(setting: &Setting) -> Point {
    let answer = Answer::OutOfMemory { needed: None, available: Some(8000 << 20), text: String::new() };
    Point { setting: setting.clone(), answer }
}

fn slices(precision: &str) -> Vec<Setting> {
    [8, 32, 128, 512, 2048].map(|n| setting("v3", precision, n)).to_vec()
}

fn hbm(row: &Row) -> f64 {
    // A prediction has a few roundings of f64 in it.
    (row.figures.unwrap().hbm / MIB as f64 * 1e6).round() / 1e6
}

#[test]
fn what_lies_on_a_line_is_predicted_without_error_and_says_so() {
    let settings = slices("bf16");
    // Parts of 1024, 256, 64, 16 and 4.
    let points: Vec<Point> = [4, 2, 1].map(|at: usize| fits(&settings[at], 500, 20, 7000)).to_vec();
    let rows = plan(&settings, &points);
    assert_eq!(rows.iter().map(hbm).collect::<Vec<f64>>(), [20980.0, 5620.0, 1780.0, 820.0, 580.0]);
    let by: Vec<bool> = rows.iter().map(|row| row.known == Known::Compiled).collect();
    assert_eq!(by, [false, true, true, false, true]);
    for row in [&rows[0], &rows[3]] {
        let Known::Predicted { hbm_error: Some(hbm), cycles_error: Some(cycles) } = row.known else {
            panic!("{row:?}")
        };
        assert!(hbm < 1e-12 && cycles < 1e-12, "{hbm} {cycles}");
    }
    assert_eq!(
        rows.iter().map(|row| row.fits).collect::<Vec<Fit>>(),
        [Fit::No, Fit::Yes, Fit::Yes, Fit::Yes, Fit::Yes]
    );
    // 7000 + 1000 · 16 cycles at 940 MHz, and 100 MiB over 256 chips.
    let figures = rows[3].figures.unwrap();
    assert!((figures.compute_seconds - 23_000.0 / 0.94e9).abs() < 1e-12);
    let ring = 2.0 * 255.0 / 256.0 * 100.0 * MIB as f64 / 164e9;
    assert!((figures.collective_seconds - ring).abs() < 1e-9, "{figures:?}");
    assert_eq!(rows[3].examples_per_second, Some(8192.0 / figures.seconds()));
    // What does not fit has no speed, and is no measure of the others: the best core alone has 256 examples.
    assert_eq!((rows[0].examples_per_second, rows[0].efficiency), (None, None));
    let alone = 256.0 / (263_000.0 / 0.94e9);
    assert!((rows[3].efficiency.unwrap() - 16.0 / figures.seconds() / alone).abs() < 1e-12);
}

#[test]
fn a_curve_is_predicted_with_the_error_that_it_has() {
    let settings = slices("bf16");
    let mut points: Vec<Point> = [4, 3, 1].map(|at: usize| fits(&settings[at], 500, 20, 0)).to_vec();
    let Answer::Fits(report) = &mut points[1].answer else { panic!() };
    // 820 MiB by the line, 1000 by the compiler.
    report.hbm.total = 1000 * MIB;
    let rows = plan(&settings, &points);
    let Known::Predicted { hbm_error: Some(hbm), cycles_error: Some(cycles) } = rows[2].known else {
        panic!("{rows:?}")
    };
    assert!((hbm - 0.18).abs() < 1e-12 && cycles < 1e-12, "{hbm} {cycles}");
}

#[test]
fn near_the_limit_a_prediction_is_not_sure() {
    let mut settings = slices("f32");
    settings[0].batch = 8 * 340;
    // 500 + 20 · 340 = 7300 of 8000, by one point: off by up to half.
    let one = [fits(&settings[4], 500, 20, 0)];
    let rows = plan(&settings, &one);
    assert_eq!((hbm(&rows[0]), rows[0].fits), (7300.0, Fit::Unsure));
    assert_eq!(rows[0].known, Known::Predicted { hbm_error: None, cycles_error: None });
    // By three on a line it is.
    let three = [4, 3, 2].map(|at: usize| fits(&settings[at], 500, 20, 0));
    assert_eq!(plan(&settings, &three)[0].fits, Fit::Yes);
    // What was refused with fewer examples is refused.
    let refused = [too_large(&settings[2]), fits(&settings[4], 500, 20, 0)];
    let fits: Vec<Fit> = plan(&settings, &refused).iter().map(|row| row.fits).collect();
    assert_eq!(fits, [Fit::No, Fit::No, Fit::No, Fit::Yes, Fit::Yes]);
}

#[test]
fn nothing_compiled_is_nothing_known() {
    let rows = plan(&slices("bf16"), &[]);
    assert!(rows.iter().all(|row| row.fits == Fit::Unsure && row.figures.is_none() && !row.is_on_front), "{rows:?}");
}

/// The settings that are compiled, in order, of steps with so many MiB fixed and for an example.
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
fn the_least_part_comes_first_then_the_greatest_that_may_fit_and_series_take_turns() {
    let both: Vec<Setting> = slices("f32").into_iter().chain(slices("bf16")).collect();
    let order = order(&both, 500, 20);
    let said: Vec<(&str, u32)> = order.iter().map(|(precision, n)| (precision.as_str(), *n)).collect();
    // 1024 examples at once would take 21 GiB: nobody waits for that.
    let expected = [2048, 32, 128, 512].map(|n| [("f32", n), ("bf16", n)]).concat();
    assert_eq!(said, expected);
}

#[test]
fn after_a_refusal_nothing_larger_is_tried() {
    // A single point's line: 500 + 30 · 256 is 8180, which may fit, and does not.
    let order: Vec<u32> = order(&slices("f32"), 500, 30).into_iter().map(|(_, n)| n).collect();
    assert_eq!(order, [2048, 32, 128, 512]);
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
    let points: Vec<Point> = [4, 3, 2].map(|at: usize| fits(&settings[at], 500, 20, 7000)).to_vec();
    // 1024 at once are 20,980 MiB; 256 are 5,620, and 100 of accumulated gradients.
    let wanted = accumulated(&settings[0], &points).unwrap();
    assert_eq!((wanted.accumulate, wanted.part()), (4, 256));
    let row = &plan(&[wanted], &points)[0];
    assert_eq!((hbm(row), row.fits), (5720.0, Fit::Yes));
    assert!((row.figures.unwrap().compute_seconds - 4.0 * 263_000.0 / 0.94e9).abs() < 1e-12);
    // What fits needs none, and of what nothing is known nothing is said.
    assert_eq!((accumulated(&settings[1], &points), accumulated(&settings[0], &[])), (None, None));
}

/// The rates of a network of which a step takes long to begin.
#[test]
fn of_a_single_point_memory_is_said_and_no_speed() {
    let settings = slices("bf16");
    let points = [fits(&settings[4], 500, 20, 1_000_000)];
    let rows = plan(&settings, &points);
    assert!(rows[4].examples_per_second.is_some() && rows[4].is_on_front);
    for row in &rows[..4] {
        assert!(row.figures.is_some() && row.examples_per_second.is_none() && !row.is_on_front, "{row:?}");
    }
    assert_eq!(rows.iter().filter_map(|row| row.efficiency).count(), 0);
}

/// The faster of two rows is no less efficient, wherever the state lies.
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
