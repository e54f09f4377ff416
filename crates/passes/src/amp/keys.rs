//! Policies: what to lower, to which dtype, and how far. A policy is data; presets are named policies.
//!
//! A YAML document writes a policy by keys, which are its fields or stand for several; keys that it leaves out keep the
//! value of its preset. Deprecated keys are still read, with a warning that names their replacement.
//!
//! ```yaml
//! preset: default
//! keep: ["*/layer_norm/*"]
//! deny: [tanh]
//! rounds: all
//! narrow: [results]
//! ```
//!
//! All are declared once: [`Policy`] and its default, [`PolicyDocument`] and the text of `--help` are generated from
//! here, and a test writes the table of docs/GUIDE.md and docs/policy.schema.json from [`KEYS`].

use super::decided::Decided;
use bf16scope_hlo::DType;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The fixed names of [presets](super::presets), in the order of its table.
pub const PRESETS: [&str; 9] =
    ["default", "tf_amp", "bf16_scope", "O0", "O1", "O2", "O3", "mixed_bfloat16", "mixed_float16"];

/// Declares enums whose variants a document writes as words.
macro_rules! words {
    ($($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal;)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $($(#[$doc])* #[serde(rename = $word)] $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// Their words.
            pub(super) const WORDS: &'static [&'static str] = &[$($word,)*];
        }
    )*};
}

words! {
    /// The narrow dtype.
    LowDType {
        /// bfloat16.
        Bf16 = "bf16";
        /// IEEE half precision.
        F16 = "f16";
    }

    /// The treatment of f32 at the module's boundary.
    Boundary {
        /// It stays f32.
        Keep = "keep";
        /// It becomes narrow.
        Lower = "lower";
    }

    /// The dtype of a lowered product's result.
    Accumulate {
        /// The narrow dtype, as in a bf16 scope.
        Compute = "compute";
        /// f32 where all consumers want f32, so that the accumulator is never rounded there.
        F32 = "f32";
    }

    /// The dtype in which devices sum partial results, such as the gradients of a split batch.
    Sums {
        /// f32, as TensorFlow's `CrossShardOptimizer` sums. In a module for several partitions, dots and convolutions
        /// whose result no other product reads (gradients of weights) have narrow operands and an f32 result, and other
        /// sums stay f32. So do an explicit `all-reduce`, and the products whose results it sums, unless other products
        /// read the sum.
        F32 = "f32";
        /// The dtype that lowering gives the op whose partial results are summed.
        AsComputed = "as_computed";
    }

    /// Which ops of class infer are lowered.
    Reach {
        /// Nothing is lowered, not even ops of class allow.
        None = "none";
        /// Only ops of class allow.
        Dots = "dots";
        /// Ops on a way from one op of class allow to another.
        Between = "between";
        /// All ops of class infer.
        All = "all";
    }

    /// Which values within reach are narrow: a word for several fields of a policy.
    Rounds {
        /// Those that a TPU's compiler materialises.
        Stored = "stored";
        /// As `stored`, and the state that a loop carries from step to step.
        Carried = "carried";
        /// All.
        All = "all";
        /// Those that TensorFlow's lists name, materialised or not.
        Listed = "listed";
    }

    /// Further values that are narrow.
    Narrow {
        /// The entry's f32 parameters.
        Parameters = "parameters";
        /// Its f32 results.
        Results = "results";
        /// Ops that lead to losses and updates.
        Loss = "loss";
    }
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

impl Boundary {
    /// `Lower` if so, else `Keep`.
    pub(super) const fn lower_if(is_lowered: bool) -> Boundary {
        if is_lowered { Boundary::Lower } else { Boundary::Keep }
    }
}

/// The values that a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// The name of a preset.
    Preset,
    /// One of these.
    One(&'static [&'static str]),
    /// A list of these.
    Some(&'static [&'static str]),
    /// A list of ops.
    Ops,
    /// A list of patterns of names.
    Patterns,
    /// A list of numbers, counted from 0.
    Numbers,
    /// A list of forms of single instructions.
    Forms,
}

/// A key of a policy document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The values that it takes.
    pub values: Values,
    /// Its value if neither the document nor its preset has it.
    pub default: &'static str,
    /// Its meaning, for the table.
    pub meaning: &'static str,
}

/// A deprecated key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldKey {
    /// Its name.
    pub name: &'static str,
    /// Its replacement.
    pub became: &'static str,
}

/// Declares today's keys (with a type and a default where [`Policy`] has a field for them, with `=>` and a type where
/// they only stand for other fields), and the deprecated ones.
macro_rules! keys {
    (
        today {
            $($key:ident $(: $type:ty = $start:expr)? $(=> $short:ty)?, $values:expr, $default:literal,
              $meaning:literal;)*
        }
        deprecated { $($(#[$about:meta])* $old:ident: $old_type:ty = $old_start:expr, $became:literal;)* }
    ) => {
        /// A policy: which values to lower, and how far.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Policy {
            $($(#[doc = $meaning] pub $key: $type,)?)*
            $($(#[$about])* pub $old: $old_type,)*
            /// Warnings about deprecated keys of the document that the policy was read from.
            pub warnings: Vec<String>,
        }

        impl Default for Policy {
            fn default() -> Policy {
                Policy { $($($key: $start,)?)* $($old: $old_start,)* warnings: Vec::new() }
            }
        }

        /// A policy as a YAML document writes it: absent keys keep the value of the preset. Convert it with
        /// [`Policy::try_from`].
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct PolicyDocument {
            $(#[serde(skip_serializing_if = "Option::is_none")] pub(super) $key: Option<$($type)?$($short)?>,)*
            $(#[serde(skip_serializing_if = "Option::is_none")] pub(super) $old: Option<$old_type>,)*
        }

        impl PolicyDocument {
            /// The names of the keys that the document has.
            pub(super) fn keys(&self) -> Vec<&'static str> {
                let keys = [
                    $(self.$key.as_ref().map(|_| stringify!($key)),)*
                    $(self.$old.as_ref().map(|_| stringify!($old)),)*
                ];
                keys.into_iter().flatten().collect()
            }

            /// Sets the fields of a policy that the document has.
            pub(super) fn set_fields(self, policy: &mut Policy) {
                fn set<T>(field: &mut T, value: Option<T>) {
                    if let Some(value) = value {
                        *field = value;
                    }
                }
                $($(set::<$type>(&mut policy.$key, self.$key);)?)*
                $(set(&mut policy.$old, self.$old);)*
            }

            /// This document, and the fields in which a policy differs from another.
            pub(super) fn with_changes(self, policy: &Policy, before: &Policy) -> PolicyDocument {
                fn changed<T: PartialEq + Clone>(value: &T, before: &T) -> Option<T> {
                    (value != before).then(|| value.clone())
                }
                PolicyDocument {
                    $($($key: changed::<$type>(&policy.$key, &before.$key).or(self.$key),)?)*
                    $($old: changed(&policy.$old, &before.$old).or(self.$old),)*
                    ..self
                }
            }
        }

        /// All keys, in the order of the table.
        pub const KEYS: &[Key] =
            &[$(Key { name: stringify!($key), values: $values, default: $default, meaning: $meaning },)*];

        /// All deprecated keys: they are read as before, with a warning.
        pub const OLD_KEYS: &[OldKey] = &[$(OldKey { name: stringify!($old), became: $became },)*];
    };
}

keys! {
    today {
        preset => String, Values::Preset, "default", "what the other keys change";
        dtype: LowDType = LowDType::Bf16, Values::One(LowDType::WORDS), "bf16", "the narrow dtype";
        allow: Vec<String> = Vec::new(), Values::Ops, "none", "ops that are always lowered, beside dots and convolutions";
        deny: Vec<String> = Vec::new(), Values::Ops, "none",
            "ops that are f32, and so is what is computed from them up to the next allowed op";
        island: Vec<String> = Vec::new(), Values::Ops, "none", "ops that are f32 themselves";
        keep: Vec<String> = Vec::new(), Values::Patterns, "none",
            "names, of an instruction or its scope, that stay f32; `*` is any text, `?` any character";
        reach: Reach = Reach::Between, Values::One(Reach::WORDS), "between",
            "how far lowering goes from allowed ops: nothing at all, these alone, what lies between two of them, everything";
        rounds => Rounds, Values::One(Rounds::WORDS), "stored",
            "which values within reach are narrow: those that a TPU's compiler stores; what a loop carries from step to step, too; all of them, within a norm as well; those that TensorFlow's lists say, whatever is stored";
        narrow => Vec<Narrow>, Values::Some(Narrow::WORDS), "none",
            "what is narrow besides: the entry's f32 parameters, its results, what leads to losses and updates";
        accumulate: Accumulate = Accumulate::Compute, Values::One(Accumulate::WORDS), "compute",
            "what products give: the narrow dtype, or f32 where only f32 reads it";
        sums: Sums = Sums::F32, Values::One(Sums::WORDS), "f32", "in what devices sum what each computed a part of";
        choices: Boundary = Boundary::Keep, Values::One(Boundary::WORDS), "keep",
            "whether products may be narrow whose results decide something discrete, such as a router's; with `rounds: listed` or `narrow: [loss]`, what any other reader amplifies, too";
        losses: Option<Vec<usize>> = None, Values::Numbers, "guessed",
            "numbers of results that are losses, or stay f32 as one does";
        data: Vec<usize> = Vec::new(), Values::Numbers, "none",
            "numbers of parameters that hold only positions, times, counts or masks: what is computed of these alone is exact";
        decided: Vec<Decided> = Vec::new(), Values::Forms, "none",
            "forms of single instructions, as `lower --target` writes them";
    }

    deprecated {
        /// Ops of class infer.
        infer: Vec<String> = Vec::new(),
            "`reach: all` lowers every op that may be; `allow` names those that are always lowered";
        /// Ops of class clear.
        clear: Vec<String> = Vec::new(), "ops say themselves whether they commute with rounding";
        /// Ops of class allow or infer stay f32 if all their f32 arrays have fewer elements.
        min_elements: i64 = 0, "`keep` names what stays f32";
        /// Whether the entry's f32 parameters may change type.
        parameters: Boundary = Boundary::Keep, "`narrow: [parameters]` says it";
        /// Whether the entry's f32 results may change type.
        results: Boundary = Boundary::Keep, "`narrow: [results]` says it";
        /// Whether ops on the way from the last products to the entry's results (the loss, the update) may be lowered.
        loss: Boundary = Boundary::Keep, "`narrow: [loss]` says it, and `losses` which results are losses";
        /// Whether ops on the result of a denied op stay f32 too, up to the next allowed op.
        deny_spreads: bool = false,
            "it is part of `rounds: listed`; what is computed from an op of `deny` is f32 in any case";
        /// Whether ops of class infer may be lowered where a compiler fuses them and never materialises their result:
        /// ops that apply statistics, and those whose only consumer computes in f32. If not, only a materialised value
        /// is rounded, once: the end of such a fusion, and a value that both the loss and a product read.
        unstored: Boundary = Boundary::Keep, "`unstored: lower` is `rounds: all`";
        /// Whether logits as large as any parameter, or larger, are rounded to bf16, with the gradient of their bias
        /// summed in bf16, as in a network written for bf16.
        logits: Boundary = Boundary::Lower, "it is part of `rounds`; `losses` says which results are losses";
        /// Whether to shrink the copies that a TPU's compiler makes of tables whose rows are narrower than its tiles:
        /// added rows and their sums are bf16, and lookups stand behind a barrier.
        tables: Boundary = Boundary::Lower,
            "it is part of `rounds`; `island: [\"scatter:add\"]` keeps sums of rows f32";
        /// Whether a data movement whose result is materialised is rounded once if any of its consumers is lowered, and
        /// sums over small windows between products are computed in the narrow dtype.
        moved: Boundary = Boundary::Lower, "`moved: keep` is part of `rounds: listed`";
        /// Whether arrays between products are narrow where a loop fills, reads slice by slice or carries them, or
        /// where a branch takes or returns them.
        loops: Boundary = Boundary::Lower, "`loops: keep` is part of `rounds: listed`";
        /// Whether a loop carries in the narrow dtype a state that a product of each step reads and updates, such as
        /// that of an LSTM. It is f32 otherwise, as its rounding is carried, too. Without effect where `loops` is
        /// `keep`.
        carried: Boundary = Boundary::Keep, "`carried: lower` is `rounds: carried`";
    }
}

impl Rounds {
    /// The policy with the fields that this value of `rounds` stands for.
    pub(super) fn apply(self, policy: Policy) -> Policy {
        let is_listed = self == Rounds::Listed;
        let rules = Boundary::lower_if(!is_listed);
        Policy {
            logits: rules,
            tables: rules,
            moved: rules,
            loops: rules,
            deny_spreads: is_listed,
            unstored: Boundary::lower_if(is_listed || self == Rounds::All),
            carried: Boundary::lower_if(self == Rounds::Carried),
            ..policy
        }
    }
}

impl Narrow {
    /// The policy with the fields that this list stands for.
    pub(super) fn apply(narrow: &[Narrow], policy: Policy) -> Policy {
        let [parameters, results, loss] = [Narrow::Parameters, Narrow::Results, Narrow::Loss]
            .map(|which| Boundary::lower_if(narrow.contains(&which)));
        Policy { parameters, results, loss, ..policy }
    }
}

impl OldKey {
    /// The warning for a document that has it.
    pub fn warning(&self) -> String {
        format!("policy: the key `{}` is deprecated, and read as before: {}", self.name, self.became)
    }
}

impl Values {
    /// The values in words, for the table.
    fn words(self) -> String {
        let quoted = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        match self {
            Values::Preset => "a preset's name".to_string(),
            Values::One(names) => quoted(names),
            Values::Some(names) => format!("a list of {}", quoted(names)),
            Values::Ops => "a list of ops".to_string(),
            Values::Patterns => "a list of patterns".to_string(),
            Values::Numbers => "a list of numbers from 0".to_string(),
            Values::Forms => "a list of forms".to_string(),
        }
    }
}

/// The keys as a paragraph of `--help`.
pub fn help() -> String {
    let mut text = "A policy file holds, all optional:\n".to_string();
    for key in KEYS {
        let values = key.values.words().replace('`', "");
        let _ = writeln!(text, "  {:<11} {values} [{}]: {}", key.name, key.default, key.meaning.replace('`', ""));
    }
    text += "An op in two lists, or one that no list may hold, is an error.\n";
    text
}

#[cfg(test)]
mod tests;
