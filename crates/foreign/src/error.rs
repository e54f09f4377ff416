//! Errors of programs in other forms.

use super::kind::{self, Other};
use bf16scope_hlo::ops::opcodes::OPCODES;
use bf16scope_hlo::proto::ProtoError;
use bf16scope_hlo::words::nearest;
use bf16scope_pjrt::PjrtError;

/// A program in another form that does not become a module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignError {
    /// XLA's converter does not take it.
    #[error("{said}\nhelp: {help}")]
    Refused {
        /// Its words, with the place.
        said: String,
        /// The remedy.
        help: String,
    },
    /// The converter cannot be had, or ended.
    #[error("{name}: this StableHLO cannot be converted: {source}")]
    Converter {
        /// The file.
        name: String,
        /// The cause.
        #[source]
        source: PjrtError,
    },
    /// The converter's answer is no module.
    #[error("{name}: what XLA made of this StableHLO is not HLO: {source}")]
    Proto {
        /// The file.
        name: String,
        /// The cause.
        #[source]
        source: ProtoError,
    },
    /// A dimension whose size is known only when it runs.
    #[error("{place}: {name} is {shape}, whose size is not known, and HLO's shapes are static\nhelp: {STATIC}")]
    Dynamic {
        /// The file, and the line where it is known.
        place: String,
        /// The instruction.
        name: String,
        /// Its shape.
        shape: String,
    },
    /// Sizes of symbolic dimensions that are missing, or do not fit.
    #[error("{said}\nhelp: {help}")]
    Sizes {
        /// Which, with the file.
        said: String,
        /// The remedy.
        help: String,
    },
    /// An op that is not read where sizes are symbolic.
    #[error("{name}{}: {op} is not read in a program whose sizes are symbolic\nhelp: {STATIC}", at_line(*line))]
    Unsized {
        /// The file.
        name: String,
        /// The line in it; 0 in bytecode.
        line: u32,
        /// The op, or what stands there.
        op: String,
    },
    /// A file of `jax.export` whose program is not in it.
    #[error(
        "{name} begins like a file of jax.export, and its program is not whole\nhelp: the file may be damaged; write it again \
         with `jax.export.export(jax.jit(f))(*args).serialize()`"
    )]
    Damaged {
        /// The file.
        name: String,
    },
}

/// How a function whose sizes are symbolic is exported with sizes. (JAX refines them where it compiles; XLA's plugins do
/// not.)
const STATIC: &str = "export it with the sizes of its arguments: \
                      `jax.export.export(jax.jit(f))(jax.ShapeDtypeStruct((32, 4), \"float32\")).serialize()`, not with \
                      `export.symbolic_shape`";

fn at_line(line: u32) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

/// How many lines of the converter's words are shown.
const MAX_LINES: usize = 4;

impl ForeignError {
    /// Sizes that cannot be given.
    pub fn of_sizes(said: String, help: &str) -> ForeignError {
        ForeignError::Sizes { said, help: help.to_string() }
    }

    /// Sizes are given for what has no symbols.
    pub fn of_no_symbols(name: &str) -> ForeignError {
        let said = format!("{name} has no symbolic dimension, and --dim gives sizes to those");
        ForeignError::of_sizes(said, "leave --dim out")
    }

    /// The error without its line, for bytecode: the line is in a text that the user does not have.
    pub(super) fn of_bytecode(self) -> ForeignError {
        match self {
            ForeignError::Unsized { name, op, .. } => ForeignError::Unsized { name, line: 0, op },
            error => error,
        }
    }

    /// From what the plugin said of a program.
    pub(super) fn refused(error: PjrtError, name: &str, program: &[u8]) -> ForeignError {
        match error.message() {
            Some(message) => ForeignError::of_message(message, name, program),
            None => ForeignError::Converter { name: name.to_string(), source: error },
        }
    }

    fn of_message(message: &str, name: &str, program: &[u8]) -> ForeignError {
        let is_about_it = |line: &&str| line.contains(": error: ") && !line.starts_with("<unknown>:0");
        let mut lines: Vec<&str> = message.lines().filter(is_about_it).collect();
        if lines.is_empty() {
            lines = message.lines().filter(|line| !line.trim().is_empty()).collect();
        }
        lines.truncate(MAX_LINES);
        let placed = |line: &&str| match line.strip_prefix("-:") {
            Some(rest) => format!("{name}:{rest}"),
            None => format!("{name}: {line}"),
        };
        let said = lines.iter().map(placed).collect::<Vec<_>>().join("\n");
        let help = match kind::other_dialect(program) {
            Some(dialect) => format!(
                "this is MLIR of the dialect `{dialect}`, and StableHLO is read (with chlo, sdy and mhlo): {}",
                kind::export_of(&dialect)
            ),
            None if memchr::memmem::find(program, SYMBOLIC).is_some() => {
                format!("its sizes are symbolic, and HLO's shapes are static: {STATIC}")
            }
            None if ends_at(program, &lines) => {
                "the text ends there: the file may have been cut; write it again".to_string()
            }
            None => match message.contains("forward incompatibility") && !program.is_ascii() {
                true => {
                    "the file is damaged, or its StableHLO is newer than XLA's plugins here know: write it again; or \
                         install the TPU compiler, which knows more (`bf16scope plugins install tpu`); or export HLO, \
                         `jax.jit(f).lower(*args).compiler_ir(\"hlo\").as_serialized_hlo_module_proto()`"
                        .to_string()
                }
                false => misspelt(&lines).unwrap_or_else(|| {
                    "what XLA's converter does not take has no HLO; shapes must be static, and the function called \
                     `main`"
                        .to_string()
                }),
            },
        };
        ForeignError::Refused { said, help }
    }
}

/// JAX's attribute of a module with symbolic sizes, in text and in bytecode.
pub(super) const SYMBOLIC: &[u8] = b"jax.uses_shape_polymorphism";

/// Asks for the op of StableHLO that is named most like one which the converter does not know: `-:3:10: error: custom op
/// 'stablehlo.addd' is unknown`. They are opcodes of HLO with underscores, but for a few.
fn misspelt(errors: &[&str]) -> Option<String> {
    const OTHERS: [&str; 7] = [
        "broadcast_in_dim",
        "dot_general",
        "exponential_minus_one",
        "if",
        "log_plus_one",
        "real_dynamic_slice",
        "return",
    ];
    let (_, rest) = errors.first()?.split_once("'stablehlo.")?;
    let (name, rest) = rest.split_once('\'')?;
    if !rest.contains("unknown") && !rest.contains("unregistered") {
        return None;
    }
    let near = nearest(&name.replace('_', "-"), OPCODES).map(|opcode| opcode.replace('-', "_"));
    let of_ours =
        || OTHERS.iter().filter(|other| strsim::levenshtein(name, other) <= 2).map(|other| (*other).to_string());
    Some(format!("did you mean `stablehlo.{}`?", of_ours().next().or(near)?))
}

/// Whether the converter's first error, `-:LINE:COLUMN: …`, is in the last line of a text, which does not close it.
fn ends_at(program: &[u8], errors: &[&str]) -> bool {
    let Ok(text) = std::str::from_utf8(program) else { return false };
    let line = errors.first().and_then(|error| error.strip_prefix("-:")?.split(':').next()?.parse().ok());
    line.is_some_and(|line: usize| line >= text.trim_end().lines().count())
        && text.matches('{').count() > text.matches('}').count()
}

impl std::fmt::Display for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, and no HLO or StableHLO\nhelp: {}", self.what, self.export)
    }
}

#[cfg(test)]
mod tests;
