//! Decisions on single instructions that override the rules: by a search that compiled both forms and took the
//! cheaper, or by hand.
//!
//! `report` says in which other forms a value could be stored without an additional rounding.

use bf16scope_hlo::{Instruction, Module};
use serde::{Deserialize, Serialize};

/// In which form an instruction's result is computed and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredAs {
    /// It computes in f32 and its result is f32; consumers cast for themselves.
    F32,
    /// It computes in f32, and its result is rounded once for all consumers.
    Rounded,
    /// It computes in the narrow dtype.
    Narrow,
    /// As the rules decide, behind an `opt-barrier`, so that no fusion recomputes it. No bit changes.
    Barrier,
}

impl StoredAs {
    /// A description for messages.
    pub const fn words(self) -> &'static str {
        match self {
            StoredAs::F32 => "in f32",
            StoredAs::Rounded => "in f32, rounded once",
            StoredAs::Narrow => "in the narrow dtype",
            StoredAs::Barrier => "behind a barrier",
        }
    }
}

/// A decision on one instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decided {
    /// Its name, without `%`.
    pub instruction: String,
    /// Its opcode and shape, such as `multiply f32[8,128]`, as an instruction of another module may have the same
    /// name.
    pub of: String,
    /// The form.
    #[serde(rename = "as")]
    pub form: StoredAs,
    /// Why, in words that fit behind a colon.
    pub because: String,
}

impl Decided {
    /// A decision on an instruction.
    pub fn new(instr: &Instruction, form: StoredAs, because: impl Into<String>) -> Decided {
        Decided { instruction: instr.name.clone(), of: kind_of(instr), form, because: because.into() }
    }

    /// Whether the decision is on this instruction.
    pub fn is_on(&self, instr: &Instruction) -> bool {
        self.instruction == instr.name && self.of == kind_of(instr)
    }
}

/// The opcode and the shape, without its layout.
fn kind_of(instr: &Instruction) -> String {
    let shape = match instr.shape.as_array() {
        Some(array) => {
            let dims: Vec<String> = array.dims.iter().map(i64::to_string).collect();
            format!("{}[{}]", array.dtype, dims.join(","))
        }
        None => instr.shape.to_string(),
    };
    format!("{} {shape}", instr.op.opcode())
}

/// One line for each decision whose instruction the module does not have.
pub(super) fn idle(decisions: &[Decided], module: &Module) -> Vec<String> {
    let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
    let line = |decided: &Decided| {
        let Decided { instruction, of, .. } = decided;
        let actual = instructions().find(|instr| instr.name == *instruction).map(kind_of);
        let actual = actual.map_or("there is no instruction of that name".to_string(), |is| format!("it is `{is}`"));
        format!(
            "decided: `{instruction}` is to be `{of}`, and in {} {actual}: nothing was done\nhelp: decisions are for one \
             module; `bf16scope lower --target` makes those of another",
            module.name
        )
    };
    let is_idle = |decided: &&Decided| !instructions().any(|instr| decided.is_on(instr));
    decisions.iter().filter(is_idle).map(line).collect()
}
