//! What is decided for single instructions, whatever the rules say of them: by who asked a compiler which form is cheaper,
//! or by hand.
//!
//! In which other forms a value could be without another rounding is `alternatives`' to say.

use bf16scope_hlo::{Instruction, Module};
use serde::{Deserialize, Serialize};

/// In which form an instruction's value is made and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredAs {
    /// It computes in f32 and gives f32; readers cast for themselves.
    F32,
    /// It computes in f32, and what it gives is rounded once, for all that read it.
    Rounded,
    /// It computes in the narrow dtype.
    Narrow,
    /// As the rules have it, behind an `opt-barrier`, so that no fusion makes it again. No bit changes.
    Barrier,
}

impl StoredAs {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            StoredAs::F32 => "in f32",
            StoredAs::Rounded => "in f32, rounded once",
            StoredAs::Narrow => "in the narrow dtype",
            StoredAs::Barrier => "behind a barrier",
        }
    }
}

/// What is decided for one instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decided {
    /// Its name, without `%`.
    pub instruction: String,
    /// Its opcode and shape, such as `multiply f32[8,128]`: an instruction of another module may have the same name.
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

    /// Whether it is on this instruction.
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

/// A line for each decision that is on no instruction of a module.
pub(super) fn idle(decisions: &[Decided], module: &Module) -> Vec<String> {
    let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
    let line = |decided: &Decided| {
        let Decided { instruction, of, .. } = decided;
        let found = instructions().find(|instr| instr.name == *instruction).map(kind_of);
        let found = found.map_or("there is no instruction of that name".to_string(), |is| format!("it is `{is}`"));
        format!(
            "decided: `{instruction}` is to be `{of}`, and in {} {found}: nothing was done\nhelp: decisions are for one \
             module; `bf16scope lower --target` makes those of another",
            module.name
        )
    };
    let is_idle = |decided: &&Decided| !instructions().any(|instr| decided.is_on(instr));
    decisions.iter().filter(is_idle).map(line).collect()
}
