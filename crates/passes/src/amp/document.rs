//! The document form of a policy, for serde. [`keys`](super::keys) describes each key, and which are deprecated.

use super::decided::Decided;
use super::keys::{OLD_KEYS, OldKey};
use super::policy::{Accumulate, Boundary, LowDType, PRESETS, Policy, PolicyError, Reach, Sums};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Declares the type of a document, whose keys are all optional.
macro_rules! document {
    ($(#[$about:meta])* pub struct PolicyDocument { $($key:ident: $value:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct PolicyDocument {
            $(#[serde(skip_serializing_if = "Option::is_none")] $key: Option<$value>,)*
        }

        impl PolicyDocument {
            /// The names of the keys that the document has.
            fn keys(&self) -> impl Iterator<Item = &'static str> {
                let keys = [$(self.$key.as_ref().map(|_| stringify!($key)),)*];
                keys.into_iter().flatten()
            }
        }
    };
}

document! {
    /// A policy as a YAML document writes it: absent keys keep the value of the preset. Convert it with
    /// [`Policy::try_from`].
    pub struct PolicyDocument {
        preset: String,
        dtype: LowDType,
        allow: Vec<String>,
        deny: Vec<String>,
        island: Vec<String>,
        keep: Vec<String>,
        reach: Reach,
        rounds: Rounds,
        narrow: Vec<Narrow>,
        accumulate: Accumulate,
        sums: Sums,
        choices: Boundary,
        losses: Vec<usize>,
        data: Vec<usize>,
        decided: Vec<Decided>,
        infer: Vec<String>,
        clear: Vec<String>,
        min_elements: i64,
        parameters: Boundary,
        results: Boundary,
        loss: Boundary,
        deny_spreads: bool,
        unstored: Boundary,
        logits: Boundary,
        tables: Boundary,
        moved: Boundary,
        loops: Boundary,
        carried: Boundary,
    }
}

/// Writes what is alike for all keys that hold a field of the policy as it is.
macro_rules! fields {
    ($($field:ident)*) => {
        /// Sets the fields of a policy that a document has.
        fn set_fields(policy: &mut Policy, document: PolicyDocument) {
            $(if let Some(value) = document.$field {
                policy.$field = value;
            })*
        }

        /// A document with the fields in which a policy differs from another.
        fn changed_fields(policy: &Policy, before: &Policy) -> PolicyDocument {
            fn changed<T: PartialEq + Clone>(value: &T, before: &T) -> Option<T> {
                (value != before).then(|| value.clone())
            }
            PolicyDocument { $($field: changed(&policy.$field, &before.$field),)* ..PolicyDocument::default() }
        }
    };
}

fields!(
    dtype keep min_elements parameters results loss accumulate sums reach deny_spreads unstored logits tables moved
    loops carried choices data decided
);

/// Which values within reach are narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounds {
    /// Those that a TPU's compiler materialises.
    Stored,
    /// As `stored`, and the state that a loop carries from step to step.
    Carried,
    /// All.
    All,
    /// Those that TensorFlow's lists name, materialised or not.
    Listed,
}

/// Further values that are narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Narrow {
    /// The entry's f32 parameters.
    Parameters,
    /// Its f32 results.
    Results,
    /// Ops that lead to losses and updates.
    Loss,
}

const ROUNDS: [Rounds; 4] = [Rounds::Stored, Rounds::Carried, Rounds::All, Rounds::Listed];

impl Rounds {
    /// Sets the policy's fields for this value of `rounds`.
    fn apply(self, policy: &mut Policy) {
        let is_listed = self == Rounds::Listed;
        let lowered = if is_listed { Boundary::Keep } else { Boundary::Lower };
        (policy.logits, policy.tables, policy.moved, policy.loops) = (lowered, lowered, lowered, lowered);
        policy.deny_spreads = is_listed;
        policy.unstored = if matches!(self, Rounds::All | Rounds::Listed) { Boundary::Lower } else { Boundary::Keep };
        policy.carried = if self == Rounds::Carried { Boundary::Lower } else { Boundary::Keep };
    }
}

impl Narrow {
    /// Sets the policy's fields for this list.
    fn apply(narrow: &[Narrow], policy: &mut Policy) {
        let boundary = |which| if narrow.contains(&which) { Boundary::Lower } else { Boundary::Keep };
        policy.parameters = boundary(Narrow::Parameters);
        policy.results = boundary(Narrow::Results);
        policy.loss = boundary(Narrow::Loss);
    }
}

impl PolicyDocument {
    /// The deprecated keys of the document.
    fn old_keys(&self) -> Vec<OldKey> {
        OLD_KEYS.into_iter().filter(|key| self.keys().any(|name| name == key.name)).collect()
    }

    /// The policy of the document's preset.
    fn base(&self) -> Result<Policy, PolicyError> {
        self.preset.as_deref().map_or_else(|| Ok(Policy::default()), Policy::preset)
    }
}

impl TryFrom<PolicyDocument> for Policy {
    type Error = PolicyError;

    fn try_from(document: PolicyDocument) -> Result<Policy, PolicyError> {
        let mut base = document.base()?;
        if let Some(rounds) = document.rounds {
            rounds.apply(&mut base);
        }
        if let Some(narrow) = &document.narrow {
            Narrow::apply(narrow, &mut base);
        }
        // An op that the document lists leaves the preset's lists.
        let lists = [&document.allow, &document.infer, &document.clear, &document.deny, &document.island];
        let named: Vec<&String> = lists.into_iter().flatten().flatten().collect();
        let merge = |listed: &Option<Vec<String>>, list: &[String]| {
            let rest = list.iter().filter(|op| !named.contains(op));
            rest.chain(listed.iter().flatten()).cloned().collect::<Vec<String>>()
        };
        base.allow = merge(&document.allow, &base.allow);
        base.infer = merge(&document.infer, &base.infer);
        base.clear = merge(&document.clear, &base.clear);
        base.deny = merge(&document.deny, &base.deny);
        base.island = merge(&document.island, &base.island);
        base.losses = document.losses.clone().or(base.losses);
        base.warnings = document.old_keys().iter().map(OldKey::warning).collect();
        set_fields(&mut base, document);
        base.check()?;
        Ok(base)
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        PolicyDocument::from(self.clone()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
        Policy::try_from(PolicyDocument::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Finds the closest preset, and writes what differs from it; deprecated keys only if today's keys cannot express the
/// policy.
impl From<Policy> for PolicyDocument {
    fn from(policy: Policy) -> PolicyDocument {
        let dtypes: &[&str] = &["f32", policy.dtype.dtype().name()];
        let jmp = dtypes.iter().flat_map(|params| {
            dtypes.iter().flat_map(move |compute| {
                dtypes.iter().map(move |output| format!("jmp:params={params},compute={compute},output={output}"))
            })
        });
        let names = PRESETS.iter().map(|name| name.to_string()).chain(jmp);
        let documents = names.filter_map(|name| differing(&policy, name));
        documents.min_by_key(PolicyDocument::n_keys).unwrap_or_default()
    }
}

/// The document that turns a preset into the policy, if there is one.
fn differing(policy: &Policy, preset: String) -> Option<PolicyDocument> {
    let base = Policy::preset(&preset).ok()?;
    let added = |list: &[String], of_base: &[String]| {
        let added: Vec<String> = list.iter().filter(|op| !of_base.contains(op)).cloned().collect();
        (!added.is_empty()).then_some(added)
    };
    let rounds = ROUNDS.into_iter().find(|rounds| {
        let mut like = policy.clone();
        rounds.apply(&mut like);
        like == *policy
    });
    let mut after = base.clone();
    if let Some(rounds) = rounds {
        rounds.apply(&mut after);
    }
    let narrow =
        [(policy.parameters, Narrow::Parameters), (policy.results, Narrow::Results), (policy.loss, Narrow::Loss)];
    let narrow: Vec<Narrow> =
        narrow.into_iter().filter(|(is, _)| *is == Boundary::Lower).map(|(_, name)| name).collect();
    let rounds = rounds.filter(|_| after != base);
    Narrow::apply(&narrow, &mut after);
    let is_as_narrow = (after.parameters, after.results, after.loss) == (base.parameters, base.results, base.loss);
    let document = PolicyDocument {
        preset: Some(preset),
        dtype: Some(policy.dtype),
        allow: added(&policy.allow, &base.allow),
        infer: added(&policy.infer, &base.infer),
        clear: added(&policy.clear, &base.clear),
        deny: added(&policy.deny, &base.deny),
        island: added(&policy.island, &base.island),
        rounds,
        narrow: (!is_as_narrow).then_some(narrow),
        losses: policy.losses.clone(),
        ..changed_fields(policy, &after)
    };
    let again = Policy::try_from(document.clone()).ok()?;
    let warnings = policy.warnings.clone();
    (Policy { warnings, ..again } == *policy).then_some(document)
}

impl PolicyDocument {
    /// The number of keys and of listed ops, to choose the shortest document. Deprecated keys count as any other.
    fn n_keys(&self) -> usize {
        let is_default = self.preset.as_deref() == Some("default");
        let lists = [&self.allow, &self.infer, &self.clear, &self.deny, &self.island];
        let n_ops: usize = lists.into_iter().flatten().map(Vec::len).sum();
        let n_keys = self.keys().filter(|name| !["allow", "deny", "island"].contains(name)).count();
        2 * (n_keys + n_ops) + usize::from(!is_default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amp::keys::{KEYS, Values};

    fn read(text: &str) -> Policy {
        serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Serde's error about an unknown key lists all valid keys.
    #[test]
    fn the_table_has_the_keys_of_the_type() {
        let error = serde_yaml::from_str::<PolicyDocument>("nonsense: 1").unwrap_err().to_string();
        let names: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        let of_tables: Vec<&str> = KEYS.iter().map(|key| key.name).chain(OLD_KEYS.iter().map(|key| key.name)).collect();
        assert_eq!(names, of_tables);
    }

    /// Each value of the table is accepted, any other is rejected, and the default of the table is that of the type.
    #[test]
    fn the_table_has_the_values_of_the_type() {
        for key in KEYS {
            let (values, is_list): (&[&str], bool) = match key.values {
                Values::One(values) => (values, false),
                Values::Some(values) => (values, true),
                Values::Preset => (&PRESETS, false),
                Values::Ops | Values::Patterns | Values::Numbers | Values::Forms => continue,
            };
            for value in values.iter().chain(&["nonsense"]) {
                let value = if is_list { format!("[{value}]") } else { value.to_string() };
                let text = format!("{}: {value}", key.name);
                let policy = serde_yaml::from_str::<Policy>(&text);
                assert_eq!(policy.is_err(), value.contains("nonsense"), "{text}: {policy:?}");
                if value == key.default {
                    assert_eq!(policy.unwrap(), Policy::default(), "{text}");
                }
            }
        }
    }

    /// A policy is serialized with today's keys, and reads back as the same policy.
    #[test]
    fn policies_are_written_by_today_s_keys() {
        let names = PRESETS.iter().map(|name| name.to_string());
        let jmp = ["jmp:params=bf16,compute=bf16,output=bf16", "jmp:p=f32,c=f16"].map(str::to_string);
        for name in names.chain(jmp) {
            let keep = vec!["*head*".to_string()];
            let policy = Policy { keep, losses: Some(vec![1]), ..Policy::preset(&name).unwrap() };
            let text = serde_yaml::to_string(&policy).unwrap();
            let again = read(&text);
            assert_eq!(again, policy, "{name}: {text}");
        }
        let policy = read("preset: O3\ndeny: [tanh]\nrounds: stored\nnarrow: [results]\nchoices: keep");
        assert_eq!(read(&serde_yaml::to_string(&policy).unwrap()), policy);
    }

    #[test]
    fn old_keys_say_what_became_of_them() {
        let policy = read("moved: keep\nunstored: lower");
        assert_eq!((policy.moved, policy.unstored), (Boundary::Keep, Boundary::Lower));
        assert_eq!(
            policy.warnings,
            [
                "policy: the key `unstored` is deprecated, and read as before: `unstored: lower` is `rounds: all`",
                "policy: the key `moved` is deprecated, and read as before: `moved: keep` is part of `rounds: listed`",
            ]
        );
        let values = ["infer: [tanh]", "clear: [copy]", "min_elements: 1", "deny_spreads: true"];
        let boundaries = ["parameters", "results", "loss", "unstored", "logits", "tables", "moved", "loops", "carried"];
        let boundaries = boundaries.map(|key| format!("{key}: lower"));
        for text in values.map(str::to_string).into_iter().chain(boundaries) {
            let policy = read(&text);
            let [warning] = &policy.warnings[..] else { panic!("{text}: {:?}", policy.warnings) };
            let (key, _) = text.split_once(':').unwrap();
            assert!(warning.starts_with(&format!("policy: the key `{key}` is deprecated")), "{text}: {warning}");
            // Serialized again, the policy is still the same.
            let again = read(&serde_yaml::to_string(&policy).unwrap());
            assert_eq!(Policy { warnings: policy.warnings.clone(), ..again }, policy, "{text}");
        }
        let new = read("rounds: listed");
        let old = read("deny_spreads: true\nunstored: lower\nlogits: keep\ntables: keep\nmoved: keep\nloops: keep");
        assert_eq!(Policy { warnings: Vec::new(), ..old }, new);
    }
}
