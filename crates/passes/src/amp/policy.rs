//! Policies: whether one is valid, and the class that it gives an instruction. [`keys`](super::keys) declares their
//! fields.

use super::decided::{self, Decided, StoredAs};
use super::keys::PRESETS;
pub(super) use super::keys::{Accumulate, Boundary, Policy, Reach, Sums};
use crate::name_pattern::{bare, matches};
use bf16scope_hlo::devices::is_partitioned;
use bf16scope_hlo::ops::decisions::{
    DotForm, all_list_names, device_sum, is_effective, list_names, precision_class, side_effects,
};
use bf16scope_hlo::ops::precision::{Class, DeviceSum};
use bf16scope_hlo::words::nearest;
use bf16scope_hlo::{Instruction, Module, Op};
use std::collections::{BTreeMap, BTreeSet};

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
    #[error(
        "unknown preset `{name}`, expected one of {}, jmp:params=…,compute=…,output=…{}",
        PRESETS.join(", "),
        did_you_mean(nearest)
    )]
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

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

impl Policy {
    /// The lists with their names, and the class that each assigns.
    pub(super) fn lists(&self) -> [(&'static str, &[String], Class); 5] {
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
        let is_idle = |pattern: &&String| {
            let mut instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
            !instructions.any(|instr| keeps(pattern, instr))
        };
        let line = |pattern: &String| {
            let name = &module.name;
            format!(
                "keep: `{pattern}` matches no instruction's name or scoped name in {name}, and keeps nothing in f32"
            )
        };
        let idle = self.keep.iter().filter(is_idle).map(line);
        idle.chain(decided::idle(&self.decided, module)).chain(self.warnings.iter().cloned()).collect()
    }
}

/// Whether a pattern of `keep` matches this instruction.
fn keeps(pattern: &str, instr: &Instruction) -> bool {
    matches(bare(pattern), &instr.name)
        || (!instr.metadata.op_name.is_empty() && matches(pattern, &instr.metadata.op_name))
}

/// A policy prepared for queries about the instructions of one module.
pub(super) struct Classes<'p> {
    /// The policy.
    pub(super) policy: &'p Policy,
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
    /// Another key of the policy: the reason in words, empty for a decision on this instruction.
    Policy(String),
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
            Some(StoredAs::F32) => return (Class::island("a decision"), Because::Policy(String::new())),
            Some(StoredAs::Rounded | StoredAs::Narrow) => return (op_class, Because::Policy(String::new())),
            Some(StoredAs::Barrier) | None => {}
        }
        if let Some(pattern) = self.policy.keep.iter().find(|pattern| keeps(pattern, instr)) {
            let why = format!("the policy keeps names like `{pattern}`");
            return (Class::island("its name"), Because::Policy(why));
        }
        // The specific name of an op decides before the general one.
        let names = list_names(self.module, &instr.op);
        let names = names.iter().rev().map(|name| &name[..]);
        let form_names = form.into_iter().flat_map(|(names, _)| names.iter().rev().copied());
        let listed = names.chain(form_names).find_map(|name| self.listed.get(name).copied());
        let (mut class, because) = listed.map_or((op_class, Because::Op), |class| (class, Because::Listed));
        let is_lowered = matches!(class, Class::Allow | Class::Infer | Class::Clear);
        if is_lowered && self.sum_in_f32(&instr.op) == DeviceSum::OfOperands {
            let why = "devices may sum what each computed of it, in the dtype that it gives";
            return (Class::island(why), Because::Op);
        }
        if matches!(class, Class::Allow | Class::Infer) && n_elements < self.policy.min_elements {
            let why = "all its arrays are smaller than the policy's min_elements".to_string();
            return (Class::island("its arrays are small"), Because::Policy(why));
        }
        if let Class::Deny { spreads, .. } = &mut class {
            *spreads &= self.policy.deny_spreads || because == Because::Listed;
        }
        (class, because)
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
