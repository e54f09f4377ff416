//! The output of `plan` on 80 columns, from rounded figures that are near ResNet-50's, not the compiler's own.

use expect_test::expect_file;

use super::*;
use crate::screen::check_screen;
use bf16scope_hlo::devices::Devices;
use bf16scope_study::slice;
use bf16scope_tpu::plan::{Point, accumulated, plan as rows_of};
use bf16scope_tpu::{Collective, CompileOutcome, CompileReport, Hbm, Links, Need, Spec, Target};

/// A compiled setting: MiB in total and of temporaries, cycles.
fn point(setting: &Setting, total: f64, temporaries: f64, cycles: u64) -> Point {
    let mib = |n: f64| (n * f64::from(1 << 20)) as i64;
    let mut hbm = Hbm::default();
    hbm.temporaries = mib(temporaries);
    hbm.total = mib(total);
    hbm.limit = mib(15_854.0);
    let mut sum = Collective::of_bytes("all-reduce", "f32", 102_228_128, u64::from(setting.n_cores));
    sum.seconds = Links::for_target(&setting.target).map(|links| links.seconds(&sum, Devices::ONE));
    let mut report = CompileReport::default();
    report.hbm = hbm;
    report.flops = 1.0;
    report.bytes_accessed = 1.0;
    report.cycles = cycles;
    report.optimal_seconds = 1.0;
    report.examples_per_second = Some(1.0);
    report.compile_seconds = 61.0;
    report.devices = Devices { replicas: setting.n_cores as usize, partitions: 1 };
    report.collectives = vec![sum];
    Point { setting: setting.clone(), outcome: CompileOutcome::Fits(report) }
}

#[test]
fn a_plan_on_80_columns() {
    let setting = |precision: &str, n_cores: u32| {
        let series = Series {
            board: Target::board(Spec::named("v3").unwrap()),
            precision: precision.to_string(),
            remat: true,
            in_parts: false,
        };
        let target = slice(Spec::named("v3").unwrap(), n_cores).unwrap();
        Setting { series, target, n_cores, batch: 8192, accumulate: 1 }
    };
    let mut settings: Vec<Setting> = [8, 32, 128, 512].map(|n| setting("bf16", n)).to_vec();
    settings.push(setting("f32", 32));
    let points = [
        point(&settings[3], 950.0, 670.0, 17_000_000),
        point(&settings[2], 2290.0, 2010.0, 62_000_000),
        point(&settings[1], 7000.0, 6720.0, 240_000_000),
    ];
    let available = Some(15_854 << 20);
    let too_large = CompileOutcome::OutOfMemory(Need { needed: Some(27 << 30), available, text: String::new() });
    let points = [&points[..], &[Point { setting: settings[0].clone(), outcome: too_large }]].concat();
    settings.insert(1, accumulated(&settings[0], &points).unwrap());
    let plan = PlanAnswer {
        model: "examples/resnet50.yaml".to_string(),
        batch: 8192,
        unit: "images",
        libtpu: "0.0.52".to_string(),
        excess_precision: false,
        links: Vec::new(),
        rows: rows_of(&settings, &points),
        left_out: vec!["A batch of 8192 does not split over the 96 cores of tpu-v3:6x8.".to_string()],
    };
    check_screen(|screen| render(&plan, screen), &expect_file!["../../../../tests/cli/screens/plan.txt"]);
    let page = page::page(&plan).render();
    for part in ["Which slice: examples/resnet50.yaml", "tpu-v3:16x16", "on the front", "predicted, 4 micro-batches"] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["rows"][0]["fits"], "no");
    assert_eq!(json["rows"][2]["known"]["by"], "compiled");
    assert_eq!(json["rows"][2]["target"], "tpu-v3:4x4");
}
