//! The document form of a policy, for serde: how it is read, and how a policy is written. [`keys`](super::keys)
//! declares the keys.

use super::keys::{Boundary, Narrow, OLD_KEYS, OldKey, PRESETS, Policy, PolicyDocument, Rounds};
use super::policy::PolicyError;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

impl PolicyDocument {
    /// The lists of ops, in the order of [`Policy::lists`].
    fn lists(&mut self) -> [&mut Option<Vec<String>>; 5] {
        [&mut self.allow, &mut self.infer, &mut self.clear, &mut self.deny, &mut self.island]
    }
}

impl TryFrom<PolicyDocument> for Policy {
    type Error = PolicyError;

    fn try_from(mut document: PolicyDocument) -> Result<Policy, PolicyError> {
        let mut policy = document.preset.as_deref().map_or_else(|| Ok(Policy::default()), Policy::preset)?;
        if let Some(rounds) = document.rounds {
            policy = rounds.apply(policy);
        }
        if let Some(narrow) = &document.narrow {
            policy = Narrow::apply(narrow, policy);
        }
        let keys = document.keys();
        policy.warnings = OLD_KEYS.iter().filter(|key| keys.contains(&key.name)).map(OldKey::warning).collect();
        // An op that the document lists leaves the preset's lists.
        let named: Vec<String> = document.lists().into_iter().filter_map(|list| list.clone()).flatten().collect();
        for (list, (_, before, _)) in document.lists().into_iter().zip(policy.lists()) {
            let rest = before.iter().filter(|op| !named.contains(op)).cloned();
            *list = Some(rest.chain(list.take().into_iter().flatten()).collect());
        }
        document.set_fields(&mut policy);
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
        let rounds = Rounds::ALL.iter().copied().find(|rounds| rounds.apply(policy.clone()) == policy);
        let narrow =
            [(policy.parameters, Narrow::Parameters), (policy.results, Narrow::Results), (policy.loss, Narrow::Loss)];
        let narrow = narrow.into_iter().filter(|(is, _)| *is == Boundary::Lower).map(|(_, name)| name).collect();
        let narrow: Option<Vec<Narrow>> = Some(narrow);
        let dtype = Some(policy.dtype);
        let heads = PRESETS.into_iter().map(str::to_string).chain(jmp).flat_map(|preset| {
            // A key that says no more than the preset is left out.
            let forms = [(rounds, &narrow), (rounds, &None), (None, &narrow), (None, &None)];
            forms.map(|(rounds, narrow)| {
                let (preset, narrow) = (Some(preset.clone()), narrow.clone());
                PolicyDocument { preset, dtype, rounds, narrow, ..PolicyDocument::default() }
            })
        });
        let documents = heads.filter_map(|head| differing(&policy, head));
        documents.min_by_key(PolicyDocument::n_keys).unwrap_or_default()
    }
}

/// The document that writes the policy with the keys of `head` and those in which it differs, if there is one.
fn differing(policy: &Policy, head: PolicyDocument) -> Option<PolicyDocument> {
    let before = Policy::try_from(head.clone()).ok()?;
    let mut document = head.with_changes(policy, &before);
    for (list, (_, before, _)) in document.lists().into_iter().zip(before.lists()) {
        let added = list.take().map(|ops| ops.into_iter().filter(|op| !before.contains(op)).collect::<Vec<_>>());
        *list = added.filter(|ops| !ops.is_empty());
    }
    let again = Policy::try_from(document.clone()).ok()?;
    (Policy { warnings: policy.warnings.clone(), ..again } == *policy).then_some(document)
}

impl PolicyDocument {
    /// The number of keys and of listed ops, to choose the shortest document. Deprecated keys count as any other.
    fn n_keys(&self) -> usize {
        let is_default = self.preset.as_deref() == Some("default");
        let lists = [&self.allow, &self.infer, &self.clear, &self.deny, &self.island];
        let n_ops: usize = lists.into_iter().flatten().map(Vec::len).sum();
        let n_keys = self.keys().iter().filter(|name| !["allow", "deny", "island"].contains(name)).count();
        2 * (n_keys + n_ops) + usize::from(!is_default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Policy {
        serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
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
