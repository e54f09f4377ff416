//! Policies: what to lower, to which dtype, and how far. A policy is data; presets are named policies.
//!
//! A document says a policy by the keys of [`KEYS`](super::keys::KEYS); what it leaves out is its preset's.
//!
//! ```yaml
//! preset: default
//! keep: ["*/layer_norm/*"]
//! deny: [tanh]
//! rounds: all
//! narrow: [results]
//! ```

use super::decided::{self, Decided, StoredAs};
use crate::name_pattern::{bare, matches};
use bf16scope_hlo::DType;
use bf16scope_hlo::devices::is_partitioned;
use bf16scope_hlo::ops::decisions::{
    DotForm, all_list_names, device_sum, is_effective, list_names, precision_class, side_effects,
};
use bf16scope_hlo::ops::precision::{Class, DeviceSum};
use bf16scope_hlo::words::nearest;
use bf16scope_hlo::{Instruction, Module, Op};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What to lower, and how far. See the module's documentation for each key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The narrow dtype.
    pub dtype: LowDType,
    /// Ops of class allow.
    pub allow: Vec<String>,
    /// Ops of class infer.
    pub infer: Vec<String>,
    /// Ops of class clear.
    pub clear: Vec<String>,
    /// Ops that stay f32 and so does what is computed from them.
    pub deny: Vec<String>,
    /// Ops that stay f32 themselves.
    pub island: Vec<String>,
    /// Patterns of names that stay f32; `*` is any text, `?` any character.
    pub keep: Vec<String>,
    /// Ops of class allow or infer all of whose f32 arrays have fewer elements stay f32.
    pub min_elements: i64,
    /// Whether the entry's f32 parameters may change type.
    pub parameters: Boundary,
    /// Whether the entry's f32 results may change type.
    pub results: Boundary,
    /// Whether what leads to the entry's results without passing an allowed op may be lowered: the loss, the update.
    pub loss: Boundary,
    /// The dtype products give.
    pub accumulate: Accumulate,
    /// The dtype in which devices sum what each computed a part of.
    pub sums: Sums,
    /// Which ops of class infer are lowered.
    pub reach: Reach,
    /// Whether what is computed from a denied op stays f32 too, up to the next allowed op.
    pub deny_spreads: bool,
    /// Whether values of ops of class infer that need not be stored may be lowered: what applies statistics, and what a
    /// single op reads that computes in f32. If not, what is stored though it computes in f32 is rounded for that once: what
    /// ends such a value, and what the loss reads as well as a product.
    pub unstored: Boundary,
    /// Whether logits that are as large as any parameter or larger are rounded to bf16, and the gradient of their bias is summed in
    /// it, as in a network written for bf16.
    pub logits: Boundary,
    /// Whether what a TPU's compiler copies of tables whose rows are narrower than its tiles is made small: rows that are
    /// added and their sums in bf16, lookups behind a barrier.
    pub tables: Boundary,
    /// Whether what moves values, and is stored, is rounded once where any of its readers is lowered; and sums of rows
    /// between products are computed in the narrow dtype.
    pub moved: Boundary,
    /// Whether arrays that a loop fills, reads slice by slice or carries, or that a branch takes or gives, are
    /// narrow where they lie between products.
    pub loops: Boundary,
    /// Whether a loop carries in the narrow dtype what a product of each step reads and changes: the state of an LSTM, which
    /// is f32 otherwise, as a rounding of it is carried, too. Of no effect where `loops` keeps.
    pub carried: Boundary,
    /// Whether products may be lowered whose results decide what the program computes on with: through a `topk`, a `sort`,
    /// an `argmax` or a comparison of scores.
    pub choices: Boundary,
    /// Which results of the entry are losses, by number: what they are computed from since the last product stays f32. If it
    /// is not given, they are guessed from the program.
    pub losses: Option<Vec<usize>>,
    /// Which parameters of the entry hold only positions, times, counts or masks, by number: what is computed of these alone is
    /// exact, and stays f32.
    pub data: Vec<usize>,
    /// The forms of single instructions.
    pub decided: Vec<Decided>,
    /// What the document that it was read from has to be told: of deprecated keys.
    pub warnings: Vec<String>,
}

/// The narrow dtype.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LowDType {
    /// bfloat16.
    #[default]
    Bf16,
    /// IEEE half precision.
    F16,
}

impl LowDType {
    /// As HLO's.
    pub const fn dtype(self) -> DType {
        match self {
            LowDType::Bf16 => DType::BF16,
            LowDType::F16 => DType::F16,
        }
    }
}

/// What happens to f32 at the module's boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boundary {
    /// It stays f32.
    #[default]
    Keep,
    /// It becomes narrow.
    Lower,
}

/// The dtype that lowered products give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accumulate {
    /// The narrow one, as in a bf16 scope.
    #[default]
    Compute,
    /// f32 where all consumers want f32, so that the accumulator is never rounded there.
    F32,
}

/// The dtype in which devices sum what each computed a part of, such as the gradients of a split batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sums {
    /// f32, as TensorFlow's `CrossShardOptimizer` sums. In a module for several partitions dots and convolutions whose result
    /// no other product reads, such as gradients of weights, read the narrow dtype and give f32, and other sums stay f32. So
    /// does an `all-reduce` that is written out.
    #[default]
    F32,
    /// What lowering makes of the op whose result they sum.
    AsComputed,
}

/// Which ops of class infer are lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Nothing is lowered, allowed ops neither.
    None,
    /// Only allowed ops.
    Dots,
    /// Those on a way from one allowed op to another.
    #[default]
    Between,
    /// All.
    All,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            dtype: LowDType::Bf16,
            allow: Vec::new(),
            infer: Vec::new(),
            clear: Vec::new(),
            deny: Vec::new(),
            island: Vec::new(),
            keep: Vec::new(),
            min_elements: 0,
            parameters: Boundary::Keep,
            results: Boundary::Keep,
            loss: Boundary::Keep,
            accumulate: Accumulate::Compute,
            sums: Sums::F32,
            reach: Reach::Between,
            deny_spreads: false,
            unstored: Boundary::Keep,
            logits: Boundary::Lower,
            tables: Boundary::Lower,
            moved: Boundary::Lower,
            loops: Boundary::Lower,
            carried: Boundary::Keep,
            choices: Boundary::Keep,
            losses: None,
            data: Vec::new(),
            decided: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// What is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// An op stands in two lists.
    #[error("`{op}` is in the lists `{first}` and `{second}`, expected it in one: take it out of the other")]
    InTwoLists {
        /// The op.
        op: String,
        /// A list that holds it.
        first: &'static str,
        /// Another.
        second: &'static str,
    },
    /// A list names an op that is none, or that cannot be retyped.
    #[error("list `{list}` names `{op}`, expected an op that can be lowered{}", did_you_mean(nearest))]
    UnknownOp {
        /// The list.
        list: &'static str,
        /// The name.
        op: String,
        /// A name that is nearly the same.
        nearest: Option<String>,
    },
    /// No preset has this name.
    #[error("unknown preset `{name}`, expected one of {}{}", preset_names(), did_you_mean(nearest))]
    UnknownPreset {
        /// The name.
        name: String,
        /// A name that is nearly the same.
        nearest: Option<String>,
    },
    /// A `jmp:` preset that does not parse.
    #[error("`{text}`: {problem}, expected such as `jmp:params=f32,compute=bf16,output=f32`")]
    Jmp {
        /// What was given.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// Two decisions on one instruction.
    #[error("`{0}` is decided twice, expected one form: take out the other")]
    DecidedTwice(String),
    /// A number of a result or a parameter that the module does not have.
    #[error("{key}: {number} is the number of no {what} of {module}, expected one below {n}")]
    NoSuchNumber {
        /// The key.
        key: &'static str,
        /// What it counts.
        what: &'static str,
        /// The number.
        number: usize,
        /// The module.
        module: String,
        /// How many there are.
        n: usize,
    },
    /// A floor under zero.
    #[error("min_elements is {0}, expected 0 or more")]
    NegativeFloor(i64),
}

/// The fixed names of [presets](super::presets), in the order of its table.
pub const PRESETS: [&str; 9] =
    ["default", "tf_amp", "bf16_scope", "O0", "O1", "O2", "O3", "mixed_bfloat16", "mixed_float16"];

/// All names of presets for a message.
fn preset_names() -> String {
    format!("{}, jmp:params=…,compute=…,output=…", PRESETS.join(", "))
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

impl Policy {
    /// The lists with their names and the class each gives.
    fn lists(&self) -> [(&'static str, &[String], Class); 5] {
        let deny = |spreads| Class::Deny { why: "the policy lists it", spreads };
        [
            ("allow", &self.allow, Class::Allow),
            ("infer", &self.infer, Class::Infer),
            ("clear", &self.clear, Class::Clear),
            ("deny", &self.deny, deny(true)),
            ("island", &self.island, deny(false)),
        ]
    }

    /// Whether every listed op exists and stands in one list.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), PolicyError> {
        let valid = all_list_names();
        let mut seen: BTreeMap<&str, &'static str> = BTreeMap::new();
        for (list, ops, _) in self.lists() {
            for op in ops {
                if !valid.contains(op) {
                    let nearest = nearest(op, valid.iter().map(String::as_str)).map(str::to_string);
                    return Err(PolicyError::UnknownOp { list, op: op.clone(), nearest });
                }
                if let Some(first) = seen.insert(op, list).filter(|first| *first != list) {
                    return Err(PolicyError::InTwoLists { op: op.clone(), first, second: list });
                }
            }
        }
        let mut decided: BTreeSet<&str> = BTreeSet::new();
        if let Some(twice) = self.decided.iter().find(|decided_on| !decided.insert(&decided_on.instruction)) {
            return Err(PolicyError::DecidedTwice(twice.instruction.clone()));
        }
        if self.min_elements < 0 { Err(PolicyError::NegativeFloor(self.min_elements)) } else { Ok(()) }
    }
}

impl Policy {
    /// Whether the module has the results and parameters that the policy names by number.
    ///
    /// # Errors
    /// The first that it has not.
    pub fn check_numbers(&self, module: &Module) -> Result<(), PolicyError> {
        let n_results = module.entry().result_shape().leaves().len();
        let n_parameters = module.entry().parameters().len();
        let losses = self.losses.iter().flatten().map(|&number| ("losses", "result", number, n_results));
        let data = self.data.iter().map(|&number| ("data", "parameter", number, n_parameters));
        match losses.chain(data).find(|(_, _, number, n)| number >= n) {
            Some((key, what, number, n)) => {
                Err(PolicyError::NoSuchNumber { key, what, number, module: module.name.clone(), n })
            }
            None => Ok(()),
        }
    }

    /// A line for each pattern of `keep` that keeps nothing of a module, as a typing error does, for each decision that is on
    /// no instruction of it, and for each deprecated key that the policy was read with.
    pub fn idle(&self, module: &Module) -> Vec<String> {
        let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
        let idle = self.keep.iter().filter(|pattern| !instructions().any(|instr| keeps(pattern, instr)));
        let line = |pattern| {
            let name = &module.name;
            format!(
                "keep: `{pattern}` matches no instruction's name or scoped name in {name}, and keeps nothing in f32"
            )
        };
        idle.map(line).chain(decided::idle(&self.decided, module)).chain(self.warnings.iter().cloned()).collect()
    }
}

/// Whether a pattern of `keep` is for this instruction.
fn keeps(pattern: &str, instr: &Instruction) -> bool {
    matches(bare(pattern), &instr.name)
        || (!instr.metadata.op_name.is_empty() && matches(pattern, &instr.metadata.op_name))
}

/// A policy ready to be asked.
pub(super) struct Classes<'p> {
    policy: &'p Policy,
    listed: BTreeMap<&'p str, Class>,
    decided: BTreeMap<&'p str, &'p Decided>,
    /// Whether a partitioner may split the module's values.
    is_partitioned: bool,
    /// For each computation of the module whether it has side effects.
    effects: Vec<bool>,
}

/// Why an instruction has its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Because {
    /// Its op.
    Op,
    /// A list of the policy.
    Listed,
    /// A pattern of `keep`.
    Pattern(String),
    /// `min_elements`.
    Small,
    /// A decision on this instruction.
    Decided,
    /// It asks for more than one low-precision product, and the narrow dtype has all numbers of an operand.
    Exact,
}

impl<'p> Classes<'p> {
    pub(super) fn new(policy: &'p Policy, module: &Module) -> Classes<'p> {
        let listed = policy.lists().into_iter().flat_map(|(_, ops, class)| ops.iter().map(move |op| (&op[..], class)));
        let decided = policy.decided.iter().map(|decided| (&decided.instruction[..], decided)).collect();
        let (is_partitioned, effects) = (is_partitioned(module), side_effects(module));
        Classes { policy, listed: listed.collect(), decided, is_partitioned, effects }
    }

    /// The policy.
    pub(super) fn policy(&self) -> &'p Policy {
        self.policy
    }

    /// Whether an instruction is there for more than what it gives.
    pub(super) fn is_effective(&self, instr: &Instruction) -> bool {
        is_effective(instr, &self.effects)
    }

    /// In which dtype devices sum what an op gives, if the policy wants f32 there.
    pub(super) fn sum_in_f32(&self, module: &Module, op: &Op) -> DeviceSum {
        let is_split = self.is_partitioned || matches!(op, Op::AllReduce(_));
        if self.policy.sums == Sums::F32 && is_split { device_sum(module, op) } else { DeviceSum::Never }
    }

    /// The form that was decided for an instruction.
    pub(super) fn decided(&self, instr: &Instruction) -> Option<StoredAs> {
        let decided = self.decided.get(&instr.name[..])?;
        decided.is_on(instr).then_some(decided.form)
    }

    /// The class of an instruction whose largest f32 array has `n_elements`; a dot is of this form.
    pub(super) fn of(&self, module: &Module, instr: &Instruction, n_elements: i64, form: DotForm) -> (Class, Because) {
        let form = form.as_op();
        let own = match (precision_class(module, &instr.op), form) {
            (Class::Allow, Some((_, class))) => class,
            (class, _) => class,
        };
        if own == Class::NotFloat {
            return (own, Because::Op);
        }
        match self.decided(instr) {
            Some(StoredAs::F32) => return (Class::Deny { why: "a decision", spreads: false }, Because::Decided),
            Some(StoredAs::Rounded | StoredAs::Narrow) => return (own, Because::Decided),
            Some(StoredAs::Barrier) | None => {}
        }
        if let Some(pattern) = self.policy.keep.iter().find(|pattern| keeps(pattern, instr)) {
            return (Class::Deny { why: "its name", spreads: false }, Because::Pattern(pattern.clone()));
        }
        // The specific name of an op decides before the general one.
        let listed = if self.listed.is_empty() {
            None
        } else {
            let names = list_names(module, &instr.op);
            let names = names.iter().rev().map(|name| &name[..]);
            let of_form = form.into_iter().flat_map(|(names, _)| names.iter().rev().copied());
            names.chain(of_form).find_map(|name| self.listed.get(name).copied())
        };
        let (class, because) = match listed {
            Some(class) => (class, Because::Listed),
            None => (own, Because::Op),
        };
        let is_lowered = matches!(class, Class::Allow | Class::Infer | Class::Clear);
        if is_lowered && self.sum_in_f32(module, &instr.op) == DeviceSum::OfOperands {
            let why = "devices may sum what each computed of it, in the dtype that it gives";
            return (Class::Deny { why, spreads: false }, Because::Op);
        }
        if matches!(class, Class::Allow | Class::Infer) && n_elements < self.policy.min_elements {
            return (Class::Deny { why: "its arrays are small", spreads: false }, Because::Small);
        }
        match class {
            Class::Deny { why, spreads } => {
                let spreads = spreads && (self.policy.deny_spreads || because == Because::Listed);
                (Class::Deny { why, spreads }, because)
            }
            Class::Allow | Class::Infer | Class::Clear | Class::NotFloat => (class, because),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_changes_its_preset() {
        let policy: Policy = serde_yaml::from_str("preset: O3\nkeep: ['*head*']\ndeny: ['reduce:add']").unwrap();
        assert_eq!(policy.parameters, Boundary::Lower);
        assert_eq!(policy.keep, ["*head*"]);
        assert!(policy.deny.contains(&"reduce:add".to_string()) && !policy.infer.contains(&"reduce:add".to_string()));
    }

    #[test]
    fn lists_are_checked() {
        let error = |text: &str| serde_yaml::from_str::<Policy>(text).unwrap_err().to_string();
        assert_eq!(
            error("allow: [dot]\ndeny: [dot]"),
            "`dot` is in the lists `allow` and `deny`, expected it in one: take it out of the other"
        );
        assert_eq!(
            error("allow: [convolutoin]"),
            "list `allow` names `convolutoin`, expected an op that can be lowered; did you mean `convolution`?"
        );
        let decision = "{instruction: a, of: 'add f32[8]', as: f32, because: ''}";
        assert_eq!(
            error(&format!("decided: [{decision}, {decision}]")),
            "`a` is decided twice, expected one form: take out the other"
        );
        assert_eq!(error("min_elements: -1"), "min_elements is -1, expected 0 or more");
        assert!(error("kepe: []").contains("unknown field `kepe`"));
    }
}
