//! `Display` of answers, for `println!("{answer}")`: the needs of each program, and which to choose. All figures are
//! also available as fields.

use super::compare::{Comparison, Judged};
use super::explain::Explanations;
use super::levers::LeversAnswer;
use super::plan::PlanAnswer;
use bf16scope_tpu::plan::{Fit, Known, SliceRow};
use std::fmt;

/// The number of layers and arrays shown in an explanation.
const N_SHOWN: usize = 5;

/// Returns `f`, after writing a line break except before the first line.
fn begin(f: &mut fmt::Formatter<'_>, is_first: &mut bool) -> fmt::Result {
    if std::mem::take(is_first) { Ok(()) } else { f.write_str("\n") }
}

fn mib(n_bytes: u64) -> String {
    format!("{:.1} MiB", n_bytes as f64 / f64::from(1 << 20))
}

fn verdict(f: &mut fmt::Formatter<'_>, verdict: &Option<Judged>, is_first: &mut bool) -> fmt::Result {
    for sentence in verdict.iter().flat_map(|verdict| &verdict.sentences) {
        begin(f, is_first)?;
        f.write_str(sentence)?;
    }
    Ok(())
}

impl fmt::Display for Comparison {
    /// A line for each program, then the verdict.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_first = true;
        for report in &self.reports {
            begin(f, &mut is_first)?;
            write!(f, "{}, {}: {}", report.target, report.label, report.outcome)?;
        }
        verdict(f, &self.verdict, &mut is_first)
    }
}

impl fmt::Display for PlanAnswer {
    /// A line for each setting, then the settings that were left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_first = true;
        for SliceRow { setting, fits, known, figures, examples_per_second, efficiency, .. } in &self.rows {
            begin(f, &mut is_first)?;
            let series = &setting.series;
            write!(f, "{}, {}, {} cores", series.board, series.precision, setting.n_cores)?;
            if setting.accumulate > 1 {
                write!(f, ", {} micro-batches", setting.accumulate)?;
            }
            f.write_str(if series.remat { ", rematerialised" } else { "" })?;
            f.write_str(if series.in_parts { ", state sharded" } else { "" })?;
            f.write_str(match fits {
                Fit::Yes => ": fits",
                Fit::No => ": does not fit",
                Fit::Unsure => ": may not fit",
            })?;
            if let Some(figures) = figures {
                write!(f, ", {} of {} of HBM", mib(figures.hbm as u64), mib(figures.limit as u64))?;
            }
            if let Some(rate) = examples_per_second {
                write!(f, ", {rate:.0} {}/s", self.unit)?;
            }
            if let Some(efficiency) = efficiency {
                write!(f, ", efficiency {:.0} %", efficiency * 100.0)?;
            }
            if let Known::Predicted { .. } = known {
                f.write_str(" (predicted)")?;
            }
        }
        for sentence in &self.left_out {
            begin(f, &mut is_first)?;
            f.write_str(sentence)?;
        }
        Ok(())
    }
}

impl fmt::Display for LeversAnswer {
    /// A line for each lever: the program's figures with it, or the reason why it does not apply.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_first = true;
        for (target, lever) in self.targets.iter().flat_map(|on| on.levers.iter().map(move |lever| (&on.target, lever)))
        {
            begin(f, &mut is_first)?;
            write!(f, "{target}, {}: ", lever.lever)?;
            match (&lever.row, &lever.not_applicable) {
                (Some(row), _) => write!(f, "{}", row.outcome)?,
                (None, Some(reason)) => write!(f, "does not apply: {reason}")?,
                (None, None) => f.write_str("does not apply")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Explanations {
    /// Memory, the largest arrays at the peak and the slowest layers of each program, then the verdict.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_first = true;
        for program in &self.programs {
            begin(f, &mut is_first)?;
            let (memory, total) = (&program.explanation.memory, &program.explanation.total);
            let (arguments, peak) = (mib(memory.arguments), mib(memory.peak));
            write!(f, "{}, {}: arguments {arguments}, temporaries {peak} at the peak", self.target, program.label)?;
            for live in memory.live.iter().take(N_SHOWN) {
                write!(f, "\n  {}: {} of {}", mib(live.n_bytes), live.shape, live.origin.layer)?;
                if !live.origin.source.is_empty() {
                    write!(f, ", {}", live.origin.source)?;
                }
            }
            for layer in program.explanation.layers.iter().take(N_SHOWN) {
                let share = 100.0 * layer.cost.cycles as f64 / (total.cycles as f64).max(1.0);
                write!(f, "\n  {share:.1} % of the cycles: {}", layer.layer)?;
            }
        }
        verdict(f, &self.verdict, &mut is_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::CompiledSubject;
    use crate::levers::{OnTarget, Pulled};
    use bf16scope_hlo::devices::Devices;
    use bf16scope_tpu::plan::{Figures, Series, Setting};
    use bf16scope_tpu::{CompileOutcome, CompileReport, Need, StepTime, Target};

    fn target() -> Target {
        "tpu-v3".parse().unwrap()
    }

    #[test]
    fn a_comparison_is_a_line_for_each_program_and_the_verdict() {
        let report = |label: &str, outcome| CompiledSubject {
            label: label.to_string(),
            target: target(),
            cached: false,
            outcome,
        };
        let need = Need { needed: Some(3 << 20), available: Some(1 << 20), ..Need::default() };
        let comparison = Comparison {
            target: target(),
            batch: Some(8),
            variables: None,
            tune: None,
            libtpu: String::new(),
            excess_precision: false,
            devices: Devices::ONE,
            links: None,
            reports: vec![
                report("f32", CompileOutcome::OutOfMemory(need)),
                report("bf16", CompileOutcome::Fits(CompileReport::default())),
            ],
            verdict: Some(Judged { choice: Some("bf16".to_string()), sentences: vec!["Choose bf16.".to_string()] }),
        };
        let expected = "tpu-v3, f32: does not fit: needs 3.0 MiB of 1.0 MiB\ntpu-v3, bf16: fits, 0.0 MiB of HBM, examples/s unknown\nChoose bf16.";
        assert_eq!(comparison.to_string(), expected);
    }

    #[test]
    fn a_plan_is_a_line_for_each_setting() {
        let series = Series { board: target(), precision: "bf16".to_string(), remat: false, in_parts: true };
        let setting = Setting { series, target: target(), n_cores: 8, batch: 64, accumulate: 2 };
        let step = StepTime::new(&target(), 94e6, Some(0.0)).unwrap();
        let figures = Figures { hbm: 1.5 * f64::from(1 << 20), limit: f64::from(1 << 24), step };
        let row = SliceRow {
            setting,
            fits: Fit::Unsure,
            known: Known::Predicted { hbm_error: None, cycles_error: None },
            figures: Some(figures),
            steps_per_second: Some(2.0),
            examples_per_second: Some(128.0),
            efficiency: Some(0.5),
            is_on_front: true,
        };
        let answer = PlanAnswer {
            model: "net".to_string(),
            batch: 64,
            unit: "images",
            libtpu: String::new(),
            excess_precision: false,
            links: Vec::new(),
            rows: vec![row],
            left_out: vec!["f32 was refused".to_string()],
        };
        let expected = "tpu-v3, bf16, 8 cores, 2 micro-batches, state sharded: may not fit, 1.5 MiB of 16.0 MiB of HBM, 128 \
                        images/s, efficiency 50 % (predicted)\nf32 was refused";
        assert_eq!(answer.to_string(), expected);
    }

    #[test]
    fn a_lever_that_does_not_apply_says_why() {
        let not_applicable = Some("it has no slots".to_string());
        let pulled = Pulled { lever: "slots", option: "", about: String::new(), not_applicable, row: None };
        let targets = vec![OnTarget { target: "tpu-v3".to_string(), levers: vec![pulled] }];
        let (model, precision, libtpu) = (String::new(), String::new(), String::new());
        let answer = LeversAnswer { model, batch: 8, precision, libtpu, excess_precision: false, targets };
        assert_eq!(answer.to_string(), "tpu-v3, slots: does not apply: it has no slots");
    }
}
