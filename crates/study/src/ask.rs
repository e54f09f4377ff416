//! The TPU compiler as a question asks it: where it comes from, what it said, and how far a question is.

use std::fmt;

use super::{StudyError, wide};
use bf16scope_hlo::devices::Placement;
use bf16scope_pjrt::{ChildError, ChildSpec, Setup};
use bf16scope_tpu::{CompileOutcome, Compiled, Compiler, Target, TpuError};

/// How the TPU compiler is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asking {
    /// Where it comes from, and where its answers are kept.
    pub setup: Setup,
    /// Whether it is asked even for what is kept.
    pub fresh: bool,
    /// Whether it may keep more precision than programs say: leave out an f32 → bf16 → f32 pair, and with it the rounding.
    /// JAX and TensorFlow let it unless they are told otherwise; bf16scope's own programs keep every rounding.
    pub excess_precision: bool,
    /// The child process that it compiles in, for modules that bf16scope did not build and to limit it; `None`: this process.
    pub child: Option<ChildSpec>,
}

impl Asking {
    /// In this process, and what is kept is used.
    pub fn new(setup: &Setup) -> Asking {
        Asking { setup: setup.clone(), ..Asking::default() }
    }

    /// The compiler, for programs that lie over cores so.
    pub fn compiler(&self, placement: Placement) -> Compiler {
        let compiler = Compiler::new(&self.setup).over(placement).with_excess_precision(self.excess_precision);
        let compiler = match &self.child {
            Some(child) => compiler.in_child(child),
            None => compiler,
        };
        if self.fresh { compiler.afresh() } else { compiler }
    }

    /// The compiler's name, which stands beside its figures.
    ///
    /// # Errors
    /// A compiler that is not there and cannot be installed.
    pub fn libtpu(&self) -> Result<String, StudyError> {
        Ok(self.compiler(Placement::default()).libtpu()?)
    }
}

/// A program that is being compiled, for progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiling {
    /// For what.
    pub target: Target,
    /// What it is: a precision, a policy, a lever.
    pub what: String,
    /// Examples that a core has at once; `None` where it is not known.
    pub batch: Option<u32>,
    /// Compiles that probably follow in this series of the question.
    pub n_more: u32,
}

/// What happens while a question is asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'e> {
    /// A program is asked about. What is kept ends at once.
    Begins(&'e Compiling),
    /// It was.
    Ends {
        /// The program that was compiled.
        compiling: &'e Compiling,
        /// Whether the answer was kept from before.
        is_cached: bool,
        /// What it came to.
        outcome: &'e CompileOutcome,
    },
    /// One of the question's series is done: a search, a target.
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
            Event::SeriesEnds => f.write_str("series done"),
        }
    }
}

/// Asks. What the compiler refuses of this program is an outcome; a compiler that cannot be had is an error.
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
        // The next program has another child.
        Err(TpuError::Pjrt(error)) if error.child().is_some_and(ChildError::is_of_the_program) => {
            Ok(refused(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}
