//! The document form of a policy, for serde. [`keys`](super::keys) describes each key, and which are deprecated.

use super::decided::Decided;
use super::keys::{OLD_KEYS, OldKey};
use super::policy::{Accumulate, Boundary, LowDType, PRESETS, Policy, PolicyError, Reach, Sums};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A policy as a YAML document writes it: absent keys keep the value of the preset. Convert it with
/// [`Policy::try_from`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    preset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<LowDType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deny: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    island: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reach: Option<Reach>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rounds: Option<Rounds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    narrow: Option<Vec<Narrow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accumulate: Option<Accumulate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sums: Option<Sums>,
    #[serde(skip_serializing_if = "Option::is_none")]
    choices: Option<Boundary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    losses: Option<Vec<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Vec<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decided: Option<Vec<Decided>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    infer: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clear: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_elements: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Boundary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    results: Option<Boundary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<Boundary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deny_spreads: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unstored: Option<Boundary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<Boundary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tables: Option<Boundary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<Boundary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loops: Option<Boundary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    carried: Option<Boundary>,
}

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

/// `Lower` if the list contains `which`.
fn boundary(narrow: &[Narrow], which: Narrow) -> Boundary {
    if narrow.contains(&which) { Boundary::Lower } else { Boundary::Keep }
}

impl PolicyDocument {
    /// The deprecated keys of the document.
    fn old_keys(&self) -> Vec<OldKey> {
        let is_present = |key: &&OldKey| match key.name {
            "infer" => self.infer.is_some(),
            "clear" => self.clear.is_some(),
            "min_elements" => self.min_elements.is_some(),
            "parameters" => self.parameters.is_some(),
            "results" => self.results.is_some(),
            "loss" => self.loss.is_some(),
            "deny_spreads" => self.deny_spreads.is_some(),
            "unstored" => self.unstored.is_some(),
            "logits" => self.logits.is_some(),
            "tables" => self.tables.is_some(),
            "moved" => self.moved.is_some(),
            "loops" => self.loops.is_some(),
            "carried" => self.carried.is_some(),
            _ => false,
        };
        OLD_KEYS.iter().filter(is_present).copied().collect()
    }

    /// The policy of the document's preset.
    fn base(&self) -> Result<Policy, PolicyError> {
        self.preset.as_deref().map_or_else(|| Ok(Policy::default()), Policy::preset)
    }
}

impl TryFrom<PolicyDocument> for Policy {
    type Error = PolicyError;

    fn try_from(document: PolicyDocument) -> Result<Policy, PolicyError> {
        let warnings = document.old_keys().iter().map(OldKey::warning).collect();
        let mut base = document.base()?;
        if let Some(rounds) = document.rounds {
            rounds.apply(&mut base);
        }
        if let Some(narrow) = &document.narrow {
            base.parameters = boundary(narrow, Narrow::Parameters);
            base.results = boundary(narrow, Narrow::Results);
            base.loss = boundary(narrow, Narrow::Loss);
        }
        // An op that the document lists leaves the preset's lists.
        let lists = [&document.allow, &document.infer, &document.clear, &document.deny, &document.island];
        let named: Vec<&String> = lists.into_iter().flatten().flatten().collect();
        let merge = |listed: &Option<Vec<String>>, list: &[String]| {
            let rest = list.iter().filter(|op| !named.contains(op));
            rest.chain(listed.iter().flatten()).cloned().collect::<Vec<String>>()
        };
        let policy = Policy {
            dtype: document.dtype.unwrap_or(base.dtype),
            allow: merge(&document.allow, &base.allow),
            infer: merge(&document.infer, &base.infer),
            clear: merge(&document.clear, &base.clear),
            deny: merge(&document.deny, &base.deny),
            island: merge(&document.island, &base.island),
            keep: document.keep.unwrap_or(base.keep),
            min_elements: document.min_elements.unwrap_or(base.min_elements),
            parameters: document.parameters.unwrap_or(base.parameters),
            results: document.results.unwrap_or(base.results),
            loss: document.loss.unwrap_or(base.loss),
            accumulate: document.accumulate.unwrap_or(base.accumulate),
            sums: document.sums.unwrap_or(base.sums),
            reach: document.reach.unwrap_or(base.reach),
            deny_spreads: document.deny_spreads.unwrap_or(base.deny_spreads),
            unstored: document.unstored.unwrap_or(base.unstored),
            logits: document.logits.unwrap_or(base.logits),
            tables: document.tables.unwrap_or(base.tables),
            moved: document.moved.unwrap_or(base.moved),
            loops: document.loops.unwrap_or(base.loops),
            carried: document.carried.unwrap_or(base.carried),
            choices: document.choices.unwrap_or(base.choices),
            losses: document.losses.or(base.losses),
            data: document.data.unwrap_or(base.data),
            decided: document.decided.unwrap_or(base.decided),
            warnings,
        };
        policy.check()?;
        Ok(policy)
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
    let is_as_narrow = (policy.parameters, policy.results, policy.loss) == (base.parameters, base.results, base.loss);
    fn changed<T: PartialEq + Clone>(value: &T, base: &T) -> Option<T> {
        (value != base).then(|| value.clone())
    }
    let document = PolicyDocument {
        preset: Some(preset),
        dtype: Some(policy.dtype),
        allow: added(&policy.allow, &base.allow),
        infer: added(&policy.infer, &base.infer),
        clear: added(&policy.clear, &base.clear),
        deny: added(&policy.deny, &base.deny),
        island: added(&policy.island, &base.island),
        keep: changed(&policy.keep, &base.keep),
        min_elements: changed(&policy.min_elements, &base.min_elements),
        reach: changed(&policy.reach, &base.reach),
        rounds: rounds.filter(|_| after != base),
        narrow: (!is_as_narrow).then_some(narrow),
        accumulate: changed(&policy.accumulate, &base.accumulate),
        sums: changed(&policy.sums, &base.sums),
        choices: changed(&policy.choices, &base.choices),
        deny_spreads: changed(&policy.deny_spreads, &after.deny_spreads),
        unstored: changed(&policy.unstored, &after.unstored),
        logits: changed(&policy.logits, &after.logits),
        tables: changed(&policy.tables, &after.tables),
        moved: changed(&policy.moved, &after.moved),
        loops: changed(&policy.loops, &after.loops),
        carried: changed(&policy.carried, &after.carried),
        losses: policy.losses.clone(),
        data: changed(&policy.data, &base.data),
        decided: changed(&policy.decided, &base.decided),
        ..PolicyDocument::default()
    };
    let again = Policy::try_from(document.clone()).ok()?;
    let warnings = policy.warnings.clone();
    (Policy { warnings, ..again } == *policy).then_some(document)
}

impl PolicyDocument {
    /// The number of keys, to choose the shortest document. Deprecated keys count as any other.
    fn n_keys(&self) -> usize {
        let is_default = self.preset.as_deref() == Some("default");
        let n_ops = [&self.allow, &self.infer, &self.clear, &self.deny, &self.island];
        let n_ops: usize = n_ops.into_iter().flatten().map(Vec::len).sum();
        let n_listed = [
            self.keep.is_some(),
            self.min_elements.is_some(),
            self.reach.is_some(),
            self.rounds.is_some(),
            self.narrow.is_some(),
            self.accumulate.is_some(),
            self.sums.is_some(),
            self.choices.is_some(),
            self.decided.is_some(),
        ];
        2 * (n_listed.into_iter().filter(|is| *is).count() + self.old_keys().len() + n_ops) + usize::from(!is_default)
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
