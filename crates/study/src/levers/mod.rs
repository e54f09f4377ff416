//! The effect of each option that may save memory or time: every lever compiled beside the plain program.
//!
//! The levers themselves are in [`table`].

mod table;

use serde::Serialize;

pub use table::{LEVERS, Lever, Setting};

use super::ask::{Asking, Event};
use super::fit::{failed, row_of, without_repeats};
use super::{ModelProgram, ModelSubject, StudyError};
use bf16scope_hlo::devices::Placement;
use bf16scope_model::graph::Precision;
use bf16scope_passes::tuning::Tune;
use bf16scope_tpu::fit::{CompiledBatch, Step};
use bf16scope_tpu::{CompileReport, Compiler, Target, TpuError};
use bf16scope_train::Mesh;

/// A question about the effects of levers.
#[derive(Clone, Debug)]
pub struct LeversQuestion<'t> {
    /// The model, whose training step is compiled; its tuning is a lever.
    pub subject: ModelSubject<'t>,
    /// The compute precision of the plain program.
    pub precision: Precision,
    /// The TPUs to compile for.
    pub targets: Vec<Target>,
}

/// The effect of one lever.
#[derive(Clone, Debug, Serialize)]
pub struct Pulled {
    /// Its name; `plain` and `together` are not in [`LEVERS`].
    pub lever: &'static str,
    /// Its spelling in the YAML or on the command line.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub option: &'static str,
    /// Its effect on the program.
    pub about: String,
    /// Why it does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_applicable: Option<String>,
    /// The compiler's outcome.
    #[serde(flatten)]
    pub row: Option<CompiledBatch>,
}

/// All levers on one target.
#[derive(Clone, Debug, Serialize)]
pub struct OnTarget {
    /// The TPU.
    pub target: String,
    /// The plain program first.
    pub levers: Vec<Pulled>,
}

/// The effects of the levers on each target.
#[derive(Clone, Debug, Serialize)]
pub struct LeversAnswer {
    /// The task's name, or the model's file.
    pub model: String,
    /// Examples in a batch.
    pub batch: u32,
    /// The compute precision of the plain program.
    pub precision: String,
    /// The compiler.
    pub libtpu: String,
    /// Whether the compiler was allowed to keep more precision than the programs specify.
    pub excess_precision: bool,
    /// By target.
    pub targets: Vec<OnTarget>,
}

impl Pulled {
    /// The figures, if it fits.
    pub fn report(&self) -> Option<&CompileReport> {
        self.row.as_ref().and_then(CompiledBatch::report)
    }
}

/// Compiles the plain program and each lever, on each target.
///
/// # Errors
/// A target that is not a TPU; a plain program that cannot be built; a missing compiler.
pub fn levers(
    question: &LeversQuestion<'_>,
    asking: &Asking,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<LeversAnswer, StudyError> {
    let LeversQuestion { subject, precision, targets } = question;
    let mut subject = ModelSubject { program: ModelProgram::Training, ..subject.clone() };
    // Tuning for the target is one lever, and each of its choices is a lever as well.
    if subject.tune == Tune::Auto {
        subject.tune = Tune::None;
    }
    let (model, batch) = (subject.name.clone(), subject.batch);
    let plain = Setting { subject, precision: *precision };
    let compiler = asking.compiler(Placement::default());
    let mut all = Vec::new();
    for target in without_repeats(targets) {
        if target.topology().is_none() {
            return Err(TpuError::NotATpu(target).into());
        }
        all.push(OnTarget { target: target.to_string(), levers: pull_all(&compiler, &target, &plain, on)? });
        on(&Event::SeriesEnds);
    }
    Ok(LeversAnswer {
        model,
        batch,
        precision: precision.to_string(),
        libtpu: compiler.libtpu()?,
        excess_precision: asking.excess_precision,
        targets: all,
    })
}

/// The plain program, each lever alone, and those that apply together.
fn pull_all(
    compiler: &Compiler,
    target: &Target,
    plain: &Setting<'_>,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<Vec<Pulled>, StudyError> {
    let mut together = plain.clone();
    let tuned = if plain.subject.tune == Tune::None { ", not tuned" } else { "" };
    let about = format!("the program as it is, in {}{tuned}", plain.precision);
    let mut settings = vec![("plain", "", about, Ok(plain.clone()))];
    for lever in LEVERS {
        let mut setting = plain.clone();
        let pulled = (lever.pull)(&mut setting);
        if pulled.is_ok() {
            // A lever that applies alone is also applied to the combination, unless it fails there.
            let mut more = together.clone();
            if (lever.pull)(&mut more).is_ok() {
                together = more;
            }
        }
        settings.push((lever.name, lever.option, lever.about.to_string(), pulled.map(|()| setting)));
    }
    if settings.iter().skip(1).filter(|setting| setting.3.is_ok()).count() > 1 {
        settings.push(("together", "", "all of those that apply".to_string(), Ok(together)));
    }
    let mut n_more = settings.iter().filter(|setting| setting.3.is_ok()).count() as u32;
    let mut all = Vec::new();
    for (lever, option, about, setting) in settings {
        let (row, not_applicable) = match setting {
            Ok(setting) => {
                n_more -= 1;
                (Some(pull(compiler, target, lever, &setting, n_more, on)?), None)
            }
            Err(why) => (None, Some(why)),
        };
        all.push(Pulled { lever, option, about, not_applicable, row });
    }
    Ok(all)
}

fn pull(
    compiler: &Compiler,
    target: &Target,
    lever: &str,
    setting: &Setting<'_>,
    n_more: u32,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<CompiledBatch, StudyError> {
    let Setting { subject, precision } = setting;
    let batch = subject.batch;
    match subject.program_with(*precision, batch, Mesh::default(), subject.tune.tuning(&target.tuning())) {
        Ok(program) => {
            let what = format!("{lever} ({precision})");
            row_of(compiler, target, &what, Step { batch, n_more }, &program.module, on)
        }
        // If the plain program cannot be built, that is the user's mistake; for a lever it means that it does not
        // apply.
        Err(error) if lever == "plain" => Err(error),
        Err(error) => Ok(failed(batch, error.chain())),
    }
}
