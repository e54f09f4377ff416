//! The output of `fit` on 80 columns, from the compiler's figures for ResNet-50 and BERT-base.

use expect_test::expect_file;

use super::*;
use crate::screen::check_screen;
use bf16scope_study::{FitSeries, Large, ModelProgram, Value};
use bf16scope_tpu::fit::{CompiledBatch, Found, summarize};
use bf16scope_tpu::{CompileReport, Hbm, Need};

/// Batch, MiB in total and of temporaries, flops and cycles of the batch, examples per second.
type Figures = (u32, f64, f64, f64, f64, f64);

fn fits((batch, total, temporaries, flops, cycles, examples_per_second): Figures) -> CompiledBatch {
    let mib = |n: f64| (n * f64::from(1 << 20)) as i64;
    let (total, temporaries, limit) = (mib(total), mib(temporaries), mib(7662.0));
    let mut hbm = Hbm::default();
    hbm.temporaries = temporaries;
    hbm.total = total;
    hbm.limit = limit;
    let mut report = CompileReport::default();
    report.hbm = hbm;
    report.flops = flops;
    report.cycles = cycles as u64;
    report.optimal_seconds = f64::from(batch) / examples_per_second;
    report.examples_per_second = Some(examples_per_second);
    report.compile_seconds = 132.14;
    CompiledBatch { batch, cached: batch != 256, outcome: CompileOutcome::Fits(report) }
}

fn does_not(batch: u32, needed: f64) -> CompiledBatch {
    let gib = |n: f64| Some((n * f64::from(1 << 30)) as u64);
    let need = Need { needed: gib(needed), available: gib(7.48), text: String::new() };
    CompiledBatch { batch, cached: true, outcome: CompileOutcome::OutOfMemory(need) }
}

fn series(precision: &str, largest: Option<u32>, best: Option<u32>, rows: Vec<CompiledBatch>) -> FitSeries {
    let summaries = summarize(&rows);
    let rows = rows.into_iter().zip(summaries).map(|(row, summary)| FitRow { row, summary });
    FitSeries {
        target: "tpu-v2".to_string(),
        precision: precision.to_string(),
        found: Found { largest, is_capped: false, best },
        rows: rows.collect(),
        too_large: None,
    }
}

fn fit(model: &str, unit: &'static str, series: Vec<FitSeries>) -> FitAnswer {
    FitAnswer {
        model: model.to_string(),
        program: Some(ModelProgram::Training),
        unit,
        devices: 1,
        libtpu: String::new(),
        excess_precision: false,
        series,
    }
}

#[test]
fn a_search_on_80_columns() {
    let f32 = vec![
        fits((64, 4235.1, 3953.3, 1.526e12, 108.4e6, 466.7)),
        fits((128, 6996.2, 6696.9, 3.089e12, 188.2e6, 514.9)),
        does_not(192, 10.65),
        does_not(256, 13.41),
    ];
    let bf16 = vec![
        fits((128, 3681.5, 3372.4, 3.127e12, 152.4e6, 740.9)),
        fits((256, 7028.1, 6709.6, 6.254e12, 301.2e6, 741.4)),
        CompiledBatch {
            batch: 288,
            cached: false,
            outcome: CompileOutcome::Failed("INTERNAL: no such thing".to_string()),
        },
        does_not(320, 8.75),
    ];
    let fit = fit(
        "examples/resnet50.yaml",
        "images",
        vec![series("f32", Some(128), Some(128), f32), series("bf16", Some(256), Some(256), bf16)],
    );
    check_screen(|screen| render(&fit, screen), &expect_file!["../../../../tests/cli/screens/fit.txt"]);
}

#[test]
fn what_fits_nowhere_on_80_columns() {
    let value = |n_bytes, kind, shape: &str, name: &str, at: Option<&str>| Value {
        n_bytes,
        kind,
        shape: shape.to_string(),
        name: name.to_string(),
        at: at.map(str::to_string),
    };
    let values = vec![
        value(
            4 << 30,
            "argument",
            "f32[32768,32768]{1,0:T(8,128)}",
            "transformer/embeddings/kernel",
            Some("src/nn/dense.rs:40"),
        ),
        value(
            768 << 20,
            "temporary",
            "bf16[8,12,2048,2048]{3,2,1,0:T(8,128)(2,1)}",
            "bert/layer11/attention/softmax",
            None,
        ),
    ];
    let mut one = series("bf16", None, None, vec![does_not(1, 17.5)]);
    one.too_large = Some(Large { on: Some("tpu-v5p".to_string()), values });
    let fit = fit("huge.yaml", "examples", vec![one]);
    check_screen(|screen| render(&fit, screen), &expect_file!["../../../../tests/cli/screens/fit-too-large.txt"]);
}
