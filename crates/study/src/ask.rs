//! The TPU compiler as the questions use it: its options, its outcome, and progress events.

use std::fmt;

use super::{StudyError, wide};
use bf16scope_hlo::devices::Placement;
use bf16scope_pjrt::{ChildError, ChildSpec, Setup};
use bf16scope_tpu::{CompileOutcome, Compiled, Compiler, Target, TpuError};

/// How to call the TPU compiler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asking {
    /// Where to find the compiler, and where to cache its outcomes.
    pub setup: Setup,
    /// Whether to compile even what is cached.
    pub fresh: bool,
    /// Whether it may keep more precision than programs specify, by dropping an f32 → bf16 → f32 pair and thereby the
    /// rounding. JAX and TensorFlow allow it by default; bf16scope's own programs keep every rounding.
    pub excess_precision: bool,
    /// The child process to compile in, for modules that bf16scope did not build and to enforce limits; `None`: this
    /// process.
    pub child: Option<ChildSpec>,
}

impl Asking {
    /// In this process, with the cache.
    pub fn new(setup: &Setup) -> Asking {
        Asking { setup: setup.clone(), ..Asking::default() }
    }

    /// The compiler, for programs with this placement on cores.
    pub fn compiler(&self, placement: Placement) -> Compiler {
        let compiler = Compiler::new(&self.setup).over(placement).with_excess_precision(self.excess_precision);
        let compiler = match &self.child {
            Some(child) => compiler.in_child(child),
            None => compiler,
        };
        if self.fresh { compiler.afresh() } else { compiler }
    }

    /// The compiler's name and version, for display beside its figures.
    ///
    /// # Errors
    /// The compiler is missing and cannot be installed.
    pub fn libtpu(&self) -> Result<String, StudyError> {
        Ok(self.compiler(Placement::default()).libtpu()?)
    }
}

/// A program being compiled, for progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiling {
    /// The target.
    pub target: Target,
    /// The program's label: a precision, a policy, a lever.
    pub what: String,
    /// Examples per core; `None` if unknown.
    pub batch: Option<u32>,
    /// The expected number of further compiles in this series of the question.
    pub n_more: u32,
}

/// Progress of a question.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'e> {
    /// A compile begins. A cached one ends at once.
    Begins(&'e Compiling),
    /// A compile ended.
    Ends {
        /// The program that was compiled.
        compiling: &'e Compiling,
        /// Whether the outcome was cached.
        is_cached: bool,
        /// The outcome.
        outcome: &'e CompileOutcome,
    },
    /// One series of compiles is complete: those of one search or one target.
    SeriesEnds,
}

impl fmt::Display for Event<'_> {
    /// In a line: `compiling for tpu-v3, bf16 at batch 64`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |Compiling { target, what, batch, .. }: &Compiling| match batch {
            Some(batch) => format!("{target}, {what} at batch {batch}"),
            None => format!("{target}, {what}"),
        };
        match self {
            Event::Begins(compiling) => write!(f, "compiling for {}", named(compiling)),
            Event::Ends { compiling, outcome, .. } => write!(f, "{}: {outcome}", named(compiling)),
            Event::SeriesEnds => f.write_str("one series of compiles is complete"),
        }
    }
}

/// Compiles. A program that the compiler refuses is an outcome; a missing compiler is an error.
pub(super) fn ask(compiler: &Compiler, target: &Target, program: &[u8], batch: u32) -> Result<Compiled, StudyError> {
    let _span = tracing::info_span!("compile", batch, target = %target).entered();
    let refused = |mut text: String| {
        if let Some(remark) = wide::remark(program, &text) {
            text += &format!("\n{remark}");
        }
        Compiled { outcome: CompileOutcome::Failed(text), is_cached: false }
    };
    match compiler.compile(target, program, batch as usize) {
        Ok(compiled) => Ok(compiled),
        Err(TpuError::Pjrt(error)) if error.call() == Some("PJRT_Compile") => {
            let code = error.code().map_or(String::new(), |code| format!("{code}: "));
            Ok(refused(code + error.message().unwrap_or_default()))
        }
        Err(error @ TpuError::NoFigure { .. }) => Ok(refused(error.to_string())),
        // The next program gets a new child.
        Err(TpuError::Pjrt(error)) if error.child().is_some_and(ChildError::is_of_the_program) => {
            Ok(refused(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}
