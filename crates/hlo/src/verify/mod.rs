//! The verifier: checks that a module may be printed, encoded, rewritten and passed to a compiler.
//!
//! [`verify`] reads any module, however broken, and reports all its errors. It checks, in this order (ids before all
//! else: if an id is broken, nothing that depends on it is checked):
//!
//! 1. *Ids* (`ids`): there is an entry; no computation is empty; roots, operands, control predecessors and called
//!    computations exist; operands and control predecessors are defined earlier; calls do not cycle, nest at most
//!    [`MAX_CALL_DEPTH`] deep and never reach the entry; tuples nest at most [`MAX_TUPLE_DEPTH`] deep.
//! 2. *Instructions* (`instructions`): every shape has a dtype of 2 bits or more, a sane size and, where it has one, a layout that is a
//!    permutation of its dims; every shape is what the op's shape rule says ([`infer_shape`](super::ops::infer_shape)),
//!    which checks operands, attributes and signatures of called computations; constants hold as many bytes as their
//!    shape says.
//! 3. *Module* (`module_rules`): names of computations, and of a computation's instructions, are unique and printable;
//!    parameters are numbered 0, 1, …; the entry's are arrays, or one tuple of arrays; aliases and donors name buffers of
//!    equal shapes, none twice; the entry layout fits the entry.
//! 4. *Collectives* (`collectives`): those that the IR does not model have groups and pairs that devices can form.
//!
//! It does not check: shardings, metadata, frontend attributes and back ends' configurations; whether a custom call's
//! target exists; the number of replicas; the meaning of opaque ops (their operands and shapes are taken as declared);
//! whether dynamic dimensions agree; whether a program fits a device.
//!
//! Promise: a module that passes can be printed, encoded and rewritten without a panic, and does not trip the checks
//! by which XLA aborts its process.
//!
//! Source: XLA's `hlo_verifier.cc`, `HloInputOutputAliasConfig::Verify`, `HloBufferDonorConfig::Verify`.

use super::ops::RuleError;
use super::{CompId, InstrId, Instruction, Module, Op};
use std::fmt;

mod collectives;
mod ids;
mod instructions;
mod module_rules;

/// The deepest nesting of tuples. HLO has no bound; back ends recurse over shapes, and no program comes near this one.
pub const MAX_TUPLE_DEPTH: usize = 64;

/// The deepest nesting of calls. HLO has no bound; back ends and passes recurse over the call graph, these on threads
/// with stacks of 2 MiB, and no program comes near this one.
pub const MAX_CALL_DEPTH: usize = 128;

/// All errors of a module, in the order of its instructions within each of the verifier's steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyErrors(pub Vec<VerifyError>);

/// One error: where, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyError {
    /// The computation's name, unless it is about the module.
    pub computation: Option<String>,
    /// The instruction's name, if it is about one.
    pub instruction: Option<String>,
    /// The instruction in short, if it is about one: `%name = shape opcode(operands)`.
    pub printed: Option<String>,
    /// The broken rule.
    pub error: RuleError,
}

/// Checks a module; see the module's documentation for what that covers.
///
/// # Errors
/// All errors, never only the first; at most 64 MiB of text.
pub fn verify(module: &Module) -> Result<(), VerifyErrors> {
    let mut errors = Errors::new(module);
    ids::check(module, &mut errors);
    if errors.list.is_empty() {
        instructions::check(module, &mut errors);
        module_rules::check(module, &mut errors);
        collectives::check(module, &mut errors);
    }
    if errors.list.is_empty() { Ok(()) } else { Err(VerifyErrors(errors.list)) }
}

/// Checks only the ids, the first of [`verify`]'s steps: enough to walk a module that a back end optimized, whose fusions
/// mix dtypes and break other rules of a program.
///
/// # Errors
/// All errors of the ids.
pub fn verify_ids(module: &Module) -> Result<(), VerifyErrors> {
    let mut errors = Errors::new(module);
    ids::check(module, &mut errors);
    if errors.list.is_empty() { Ok(()) } else { Err(VerifyErrors(errors.list)) }
}

/// Collects errors with their place. Accepts any ids, also those that do not exist.
struct Errors<'m> {
    module: &'m Module,
    list: Vec<VerifyError>,
    /// Bytes of text in the list.
    n_bytes: usize,
}

/// The most bytes of text of all errors: names and shapes may be long, and every instruction may have an error.
const MAX_ERROR_BYTES: usize = 64 << 20;

impl<'m> Errors<'m> {
    fn new(module: &'m Module) -> Errors<'m> {
        Errors { module, list: Vec::new(), n_bytes: 0 }
    }

    /// Whether the errors are too many to check further.
    fn is_full(&self) -> bool {
        self.n_bytes > MAX_ERROR_BYTES
    }

    fn push(&mut self, error: VerifyError) {
        if self.is_full() {
            return;
        }
        let texts = [&error.computation, &error.instruction, &error.printed, &error.error.help];
        let n_bytes = texts.into_iter().flatten().map(String::len).sum::<usize>() + error.error.message.len();
        self.n_bytes += size_of::<VerifyError>() + n_bytes;
        self.list.push(error);
        if self.is_full() {
            let n = self.list.len();
            let message =
                format!("its first {n} errors take {} MiB of text, and no more were looked for", self.n_bytes >> 20);
            let error = RuleError::new("verify/many", message);
            self.list.push(VerifyError { computation: None, instruction: None, printed: None, error });
        }
    }

    /// Adds an error of the module.
    fn module(&mut self, error: RuleError) {
        self.push(VerifyError { computation: None, instruction: None, printed: None, error });
    }

    /// Adds an error of a computation.
    fn computation(&mut self, comp: CompId, error: RuleError) {
        let computation = Some(self.name(comp));
        self.push(VerifyError { computation, instruction: None, printed: None, error });
    }

    /// Adds an error of an instruction.
    fn instruction(&mut self, comp: CompId, id: InstrId, error: RuleError) {
        if self.is_full() {
            return;
        }
        let instructions = self.module.computations.get(comp.idx()).map_or(&[][..], |c| &c.instructions);
        let instruction = instructions.get(id.idx());
        self.push(VerifyError {
            computation: Some(self.name(comp)),
            instruction: Some(instruction.map_or_else(|| format!("#{}", id.0), |instruction| instruction.name.clone())),
            printed: instruction.map(|instruction| print_short(self.module, instructions, instruction)),
            error,
        });
    }

    fn name(&self, comp: CompId) -> String {
        match self.module.computations.get(comp.idx()) {
            Some(computation) if !computation.name.is_empty() => computation.name.clone(),
            Some(_) | None => format!("#{}", comp.0),
        }
    }
}

/// The most errors that are printed for one module; more are counted.
const MAX_PRINTED_ERRORS: usize = 100;
/// The most operands that are printed for one instruction; more are counted.
const MAX_PRINTED_OPERANDS: usize = 8;
/// The most characters that are printed for one shape; the rest is cut.
const MAX_PRINTED_SHAPE: usize = 160;

/// `%name = shape opcode(operands)`, and where the user wrote it. Only for shapes that do not nest too deep.
fn print_short(module: &Module, instructions: &[Instruction], instruction: &Instruction) -> String {
    let name = |id: &InstrId| match instructions.get(id.idx()) {
        Some(operand) => format!("%{}", operand.name),
        None => format!("#{}", id.0),
    };
    let mut operands: Vec<String> = instruction.operands.iter().take(MAX_PRINTED_OPERANDS).map(name).collect();
    if instruction.operands.len() > MAX_PRINTED_OPERANDS {
        operands.push(format!("… {} in all", instruction.operands.len()));
    }
    if let Op::Parameter { number, .. } = &instruction.op {
        operands.insert(0, number.to_string());
    }
    let shape = if ids::nests_too_deep(&instruction.shape) {
        "(…)".to_string()
    } else {
        let text = instruction.shape.to_string();
        match text.char_indices().nth(MAX_PRINTED_SHAPE) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    };
    let text = format!("%{} = {shape} {}({})", instruction.name, instruction.op.opcode(), operands.join(", "));
    match module.source(&instruction.metadata) {
        None => text,
        Some((file, line)) => format!("{text} at {file}:{line}"),
    }
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.computation, &self.instruction) {
            (Some(computation), Some(instruction)) => write!(f, "{computation}/%{instruction}: ")?,
            (Some(computation), None) => write!(f, "{computation}: ")?,
            (None, _) => f.write_str("module: ")?,
        }
        f.write_str(&self.error.message)?;
        if let Some(printed) = &self.printed {
            write!(f, "\n  {printed}")?;
        }
        match &self.error.help {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for VerifyError {}

impl fmt::Display for VerifyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().take(MAX_PRINTED_ERRORS).enumerate() {
            write!(f, "{}{error}", if i > 0 { "\n" } else { "" })?;
        }
        if self.0.len() > MAX_PRINTED_ERRORS { write!(f, "\n… {} errors in all", self.0.len()) } else { Ok(()) }
    }
}

impl std::error::Error for VerifyErrors {}
