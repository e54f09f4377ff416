//! Policies: what to lower, to which dtype, and how far. A policy is data; presets are named policies.
//!
//! A YAML document writes a policy by the keys of [`KEYS`](super::keys::KEYS); keys that it leaves out keep the value
//! of its preset.
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

/// A policy: which values to lower, and how far. [`KEYS`](super::keys::KEYS) describes the keys of its document.
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
    /// Ops that stay f32, and with them everything that is computed from their results.
    pub deny: Vec<String>,
    /// Ops that stay f32, while what is computed from their results may be lowered.
    pub island: Vec<String>,
    /// Patterns of names that stay f32; `*` matches any text, `?` any character.
    pub keep: Vec<String>,
    /// Ops of class allow or infer stay f32 if all their f32 arrays have fewer elements.
    pub min_elements: i64,
    /// Whether the entry's f32 parameters may change type.
    pub parameters: Boundary,
    /// Whether the entry's f32 results may change type.
    pub results: Boundary,
    /// Whether ops on the way from the last products to the entry's results (the loss, the update) may be lowered.
    pub loss: Boundary,
    /// The dtype of a product's result.
    pub accumulate: Accumulate,
    /// The dtype in which devices sum partial results.
    pub sums: Sums,
    /// Which ops of class infer are lowered.
    pub reach: Reach,
    /// Whether ops on the result of a denied op stay f32 too, up to the next allowed op.
    pub deny_spreads: bool,
    /// Whether ops of class infer may be lowered where a compiler fuses them and never materialises their result: ops
    /// that apply statistics, and those whose only consumer computes in f32. If not, only a materialised value is
    /// rounded, once: the end of such a fusion, and a value that both the loss and a product read.
    pub unstored: Boundary,
    /// Whether logits as large as any parameter, or larger, are rounded to bf16, with the gradient of their bias
    /// summed in bf16, as in a network written for bf16.
    pub logits: Boundary,
    /// Whether to shrink the copies that a TPU's compiler makes of tables whose rows are narrower than its tiles:
    /// added rows and their sums are bf16, and lookups stand behind a barrier.
    pub tables: Boundary,
    /// Whether a data movement whose result is materialised is rounded once if any of its consumers is lowered, and
    /// sums over small windows between products are computed in the narrow dtype.
    pub moved: Boundary,
    /// Whether arrays between products are narrow where a loop fills, reads slice by slice or carries them, or where a
    /// branch takes or returns them.
    pub loops: Boundary,
    /// Whether a loop carries in the narrow dtype a state that a product of each step reads and updates, such as that
    /// of an LSTM. It is f32 otherwise, as its rounding is carried, too. Without effect where `loops` is `keep`.
    pub carried: Boundary,
    /// Whether products may be lowered if discrete choices depend on them, through a `topk`, a `sort`, an `argmax` or
    /// a comparison of scores, and the program computes on with the choice. A policy that goes by lists alone, or
    /// lowers what leads to the loss, then rounds all else that a consumer amplifies too.
    pub choices: Boundary,
    /// The losses among the entry's results, by number: ops between the last products and a loss stay f32. If absent,
    /// they are inferred from the program.
    pub losses: Option<Vec<usize>>,
    /// The parameters of the entry that hold only positions, times, counts or masks, by number: what is computed from
    /// these alone is exact, and stays f32.
    pub data: Vec<usize>,
    /// Decisions on single instructions.
    pub decided: Vec<Decided>,
    /// Warnings about deprecated keys of the document that the policy was read from.
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
    /// The HLO dtype.
    pub const fn dtype(self) -> DType {
        match self {
            LowDType::Bf16 => DType::BF16,
            LowDType::F16 => DType::F16,
        }
    }
}

/// The treatment of f32 at the module's boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boundary {
    /// It stays f32.
    #[default]
    Keep,
    /// It becomes narrow.
    Lower,
}

/// The dtype of a lowered product's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accumulate {
    /// The narrow dtype, as in a bf16 scope.
    #[default]
    Compute,
    /// f32 where all consumers want f32, so that the accumulator is never rounded there.
    F32,
}

/// The dtype in which devices sum partial results, such as the gradients of a split batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sums {
    /// f32, as TensorFlow's `CrossShardOptimizer` sums. In a module for several partitions, dots and convolutions
    /// whose result no other product reads (gradients of weights) have narrow operands and an f32 result, and other
    /// sums stay f32. So do an explicit `all-reduce`, and the products whose results it sums, unless other products
    /// read the sum.
    #[default]
    F32,
    /// The dtype that lowering gives the op whose partial results are summed.
    AsComputed,
}

/// Which ops of class infer are lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Nothing is lowered, not even ops of class allow.
    None,
    /// Only ops of class allow.
    Dots,
    /// Ops on a way from one op of class allow to another.
    #[default]
    Between,
    /// All ops of class infer.
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

/// The ways in which a policy is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Two lists name the same op.
    #[error("`{op}` is in the lists `{first}` and `{second}`, expected it in one: take it out of the other")]
    InTwoLists {
        /// The op.
        op: String,
        /// A list that holds it.
        first: &'static str,
        /// Another.
        second: &'static str,
    },
    /// A list names an op that does not exist, or that cannot be retyped.
    #[error("list `{list}` names `{op}`, expected an op that can be lowered{}", did_you_mean(nearest))]
    UnknownOp {
        /// The list.
        list: &'static str,
        /// The name.
        op: String,
        /// The most similar valid name.
        nearest: Option<String>,
    },
    /// No preset has this name.
    #[error("unknown preset `{name}`, expected one of {}{}", preset_names(), did_you_mean(nearest))]
    UnknownPreset {
        /// The name.
        name: String,
        /// The most similar valid name.
        nearest: Option<String>,
    },
    /// A `jmp:` preset that does not parse.
    #[error("`{text}`: {problem}, expected such as `jmp:params=f32,compute=bf16,output=f32`")]
    Jmp {
        /// The preset's text.
        text: String,
        /// The problem.
        problem: String,
    },
    /// Two decisions are on one instruction.
    #[error("`{0}` is decided twice, expected one form: take out the other")]
    DecidedTwice(String),
    /// A number of a result or a parameter is out of the module's range.
    #[error("{key}: {number} is the number of no {what} of {module}, expected one below {n}")]
    NoSuchNumber {
        /// The key.
        key: &'static str,
        /// The kind of thing that it numbers: results or parameters.
        what: &'static str,
        /// The number.
        number: usize,
        /// The module.
        module: String,
        /// How many there are.
        n: usize,
    },
    /// `min_elements` is negative.
    #[error("min_elements is {0}, expected 0 or more")]
    NegativeFloor(i64),
}

/// The fixed names of [presets](super::presets), in the order of its table.
pub const PRESETS: [&str; 9] =
    ["default", "tf_amp", "bf16_scope", "O0", "O1", "O2", "O3", "mixed_bfloat16", "mixed_float16"];

/// All preset names, for an error message.
fn preset_names() -> String {
    format!("{}, jmp:params=…,compute=…,output=…", PRESETS.join(", "))
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

impl Policy {
    /// The lists with their names, and the class that each assigns.
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

    /// Checks that every listed op exists and stands in one list only.
    ///
    /// # Errors
    /// The first error.
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

    /// Checks that the module has the results and parameters that the policy names by number.
    ///
    /// # Errors
    /// The first number out of range.
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

    /// Whether what other consumers than choices amplify stays f32. Policies that round choices and go by lists alone
    /// (`tf_amp`), or lower what leads to the loss too (`O3`, `jmp:`), round all of it.
    pub(super) fn regards_needs(&self) -> bool {
        self.choices == Boundary::Keep || self.moved == Boundary::Lower && self.loss == Boundary::Keep
    }

    /// One line for each pattern of `keep` that matches nothing in the module (perhaps a typing error), for each
    /// decision whose instruction it does not have, and for each deprecated key of the policy's document.
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

/// Whether a pattern of `keep` matches this instruction.
fn keeps(pattern: &str, instr: &Instruction) -> bool {
    matches(bare(pattern), &instr.name)
        || (!instr.metadata.op_name.is_empty() && matches(pattern, &instr.metadata.op_name))
}

/// A policy prepared for queries about the instructions of one module.
pub(super) struct Classes<'p> {
    policy: &'p Policy,
    /// The module.
    pub(super) module: &'p Module,
    listed: BTreeMap<&'p str, Class>,
    decided: BTreeMap<&'p str, &'p Decided>,
    /// Whether a partitioner may split the module's values.
    pub(super) is_partitioned: bool,
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
    /// It asks for more precision, but the narrow dtype represents one operand exactly.
    Exact,
}

impl<'p> Classes<'p> {
    pub(super) fn new(policy: &'p Policy, module: &'p Module) -> Classes<'p> {
        let listed = policy.lists().into_iter().flat_map(|(_, ops, class)| ops.iter().map(move |op| (&op[..], class)));
        let decided = policy.decided.iter().map(|decided| (&decided.instruction[..], decided)).collect();
        let (is_partitioned, effects) = (is_partitioned(module), side_effects(module));
        Classes { policy, module, listed: listed.collect(), decided, is_partitioned, effects }
    }

    /// The policy.
    pub(super) fn policy(&self) -> &'p Policy {
        self.policy
    }

    /// Whether an instruction has effects beyond its result.
    pub(super) fn is_effective(&self, instr: &Instruction) -> bool {
        is_effective(instr, &self.effects)
    }

    /// In which dtype devices sum the results of an op, if the policy wants f32 there.
    pub(super) fn sum_in_f32(&self, op: &Op) -> DeviceSum {
        let is_split = self.is_partitioned || matches!(op, Op::AllReduce(_));
        if self.policy.sums == Sums::F32 && is_split { device_sum(self.module, op) } else { DeviceSum::Never }
    }

    /// The form that the policy decides for an instruction.
    pub(super) fn decided(&self, instr: &Instruction) -> Option<StoredAs> {
        let decided = self.decided.get(&instr.name[..])?;
        decided.is_on(instr).then_some(decided.form)
    }

    /// The class of an instruction, and why. `n_elements` is the size of its largest f32 array, and `form` the form of
    /// a dot.
    pub(super) fn classify(&self, instr: &Instruction, n_elements: i64, form: DotForm) -> (Class, Because) {
        let form = form.as_op();
        let op_class = match (precision_class(self.module, &instr.op), form) {
            (Class::Allow, Some((_, class))) => class,
            (class, _) => class,
        };
        if op_class == Class::NotFloat {
            return (op_class, Because::Op);
        }
        match self.decided(instr) {
            Some(StoredAs::F32) => return (Class::Deny { why: "a decision", spreads: false }, Because::Decided),
            Some(StoredAs::Rounded | StoredAs::Narrow) => return (op_class, Because::Decided),
            Some(StoredAs::Barrier) | None => {}
        }
        if let Some(pattern) = self.policy.keep.iter().find(|pattern| keeps(pattern, instr)) {
            return (Class::Deny { why: "its name", spreads: false }, Because::Pattern(pattern.clone()));
        }
        // The specific name of an op decides before the general one.
        let listed = if self.listed.is_empty() {
            None
        } else {
            let names = list_names(self.module, &instr.op);
            let names = names.iter().rev().map(|name| &name[..]);
            let form_names = form.into_iter().flat_map(|(names, _)| names.iter().rev().copied());
            names.chain(form_names).find_map(|name| self.listed.get(name).copied())
        };
        let (class, because) = match listed {
            Some(class) => (class, Because::Listed),
            None => (op_class, Because::Op),
        };
        let is_lowered = matches!(class, Class::Allow | Class::Infer | Class::Clear);
        if is_lowered && self.sum_in_f32(&instr.op) == DeviceSum::OfOperands {
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
