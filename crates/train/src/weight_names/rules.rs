//! Rules: which of their names is which variable of ours, as a file says it; and the families that come with the crate.
//!
//! The format is docs/FORMATS.md's, "Rules for names". A rule is read from our side: its pattern says which of our variables
//! it is for, its templates where the values are, and the rest what lies otherwise there. It can be read backwards, so
//! whatever it says is a bijection: a permutation of axes, axes that are joined, an equal part of an axis.

use super::numbering::Indexed;
use super::pattern::{Captures, Pattern, Template};
use super::variable::Scale;
use bf16scope_files as files;
use bf16scope_model::document::{self, ConfigError, Node, ReadError, Value, nearest};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The rules of a family of checkpoints.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// What the family is called: in reports, and where it comes with the crate as `rules: NAME`.
    pub family: String,
    /// Whose names these are.
    pub about: String,
    /// What may stand before each of their names. Default nothing.
    #[serde(default = "no_prefix")]
    pub prefixes: Vec<String>,
    /// For each variable of ours, the first whose pattern matches.
    #[serde(deserialize_with = "rules")]
    pub rules: Vec<Rule>,
    /// Where optimizers' slots are, by our name of a slot: templates of `{theirs}`, any of the variable's names there,
    /// `{slot}`, `{number}`, and what `paths` capture.
    /// The key `"*"` is for every slot.
    #[serde(default)]
    pub slots: BTreeMap<String, Vec<SlotName>>,
    /// Patterns of a variable's names there: what the first that matches captures, templates of `slots` may take, and as
    /// `{name_}` with `_` for each `/`.
    #[serde(default)]
    pub paths: Vec<Pattern>,
    /// Where slots are by a number of their own, in files whose optimizers number them.
    pub indexed: Option<Indexed>,
    /// Other names of a variable that say its number among those that train: patterns that capture `{number}`. Templates of
    /// `slots` may take it; without such a name it is by the order that the file says, or else by that of the model.
    #[serde(default)]
    pub numbers: Vec<Pattern>,
    /// Where averages of variables are: templates of `{theirs}`.
    #[serde(default)]
    pub averages: Vec<Template>,
    /// Where the number of updates is.
    #[serde(default)]
    pub step: Vec<String>,
    /// Their names that hold no weights: they are not left over.
    #[serde(default)]
    pub unused: Vec<Pattern>,
    /// A family whose rules come after these. What else these do not say is as there.
    #[serde(default, deserialize_with = "family")]
    pub base: Option<String>,
}

/// Where the values of some of our variables are.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which variables: a pattern, or several that capture the same names.
    #[serde(deserialize_with = "one_or_several")]
    pub ours: Vec<Pattern>,
    /// Only those of so many dimensions.
    pub rank: Option<usize>,
    /// Only those whose last axis has so many, as a depthwise kernel's has 1.
    pub last: Option<i64>,
    /// Only those whose layer has such a variable too.
    pub beside: Option<Beside>,
    /// Their name, or several, of which the first that is there counts.
    #[serde(deserialize_with = "one_or_several")]
    pub theirs: Vec<Template>,
    /// Which part of theirs it is, where several of ours are one there.
    pub part: Option<AxisPart>,
    /// Which axis of theirs (of the part) is each axis of ours (joined).
    pub transpose: Option<Vec<usize>>,
    /// Our axes that are one there, of all axes in order: `[[0], [1, 2]]`.
    pub joined: Option<Vec<Vec<usize>>>,
    /// Channels, height and width of the images that our first axis is, flattened: theirs were flattened channels first.
    pub channels_first: Option<[i64; 3]>,
    /// Axes of length 1 that theirs may have more, by their numbers there.
    #[serde(default)]
    pub ones: Vec<usize>,
    /// Whether they are written.
    #[serde(default)]
    pub write_ones: bool,
    /// Another variable of the layer whose last axes theirs has, where ours has one: a bias of heads has those of their kernel.
    pub axes_of: Option<String>,
    /// Whether another variable may have the same values, as logits that share the table of an embedding.
    #[serde(default)]
    pub shared: bool,
    /// Whether none of the family's prefixes stands before theirs, as before the head that stands beside a prefixed network.
    #[serde(default)]
    pub bare: bool,
}

/// A variable that must be in the same layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// What it is called there.
    pub name: String,
    /// How many dimensions it has, where that matters: a bias is of a dense layer or of a convolution by its kernel.
    pub rank: Option<usize>,
    /// How long its last axis is.
    pub last: Option<i64>,
}

impl<'de> Deserialize<'de> for Beside {
    /// A name, or `{name: kernel, rank: 4, last: 1}`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Beside, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Shaped {
            name: String,
            rank: Option<usize>,
            last: Option<i64>,
        }
        Node::read(deserializer, |node| match &node.value {
            Value::Text(name) => Ok(Beside { name: name.clone(), rank: None, last: None }),
            Value::Map(_) => Shaped::deserialize(node).map(|Shaped { name, rank, last }| Beside { name, rank, last }),
            _ => Err(node.wrong("a variable's name, such as `moving_mean`, or `{name: kernel, rank: 4}`")),
        })
    }
}

/// The name of a family that comes with the crate.
fn family<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Node::read(deserializer, |node| match &node.value {
        Value::Text(name) if families().contains(name) => Ok(Some(name.clone())),
        _ => Err(node.wrong(&format!("a family: {}", families().join(", ")))),
    })
}

/// What a slot may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotName {
    /// Its name.
    pub theirs: Template,
    /// What must be there too: a name that is another slot's where this is not.
    pub with: Option<Template>,
    /// What its numbers are.
    pub scale: Scale,
}

impl<'de> Deserialize<'de> for SlotName {
    /// A name, or `{theirs: NAME, with: NAME, step: true}`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SlotName, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Named {
            theirs: Template,
            with: Option<Template>,
            #[serde(default)]
            step: bool,
        }
        Node::read(deserializer, |node| match &node.value {
            Value::Map(_) => Named::deserialize(node).map(|Named { theirs, with, step }| {
                let scale = if step { Scale::Step } else { Scale::Same };
                SlotName { theirs, with, scale }
            }),
            _ => Template::deserialize(node).map(SlotName::from),
        })
    }
}

impl From<Template> for SlotName {
    fn from(theirs: Template) -> SlotName {
        SlotName { theirs, with: None, scale: Scale::Same }
    }
}

/// One of several equal parts along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisPart {
    /// Which, from 0.
    pub number: usize,
    /// How many there are.
    pub of: usize,
    /// Along which axis.
    pub axis: usize,
}

fn no_prefix() -> Vec<String> {
    vec![String::new()]
}

/// One name or a list of names, each of them a pattern or a template.
fn one_or_several<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Node::read(deserializer, |node| match &node.value {
        Value::Text(_) => Ok(vec![T::deserialize(node)?]),
        Value::List(list) if !list.is_empty() => Vec::deserialize(node),
        _ => Err(node.wrong("a name, or a list of names")),
    })
}

fn rules<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Rule>, D::Error> {
    /// A rule that was checked where its line is known.
    struct Checked(Rule);
    impl<'de> Deserialize<'de> for Checked {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Checked, D::Error> {
            Node::read(deserializer, |node| {
                let rule = Rule::deserialize(node)?;
                match rule.problem() {
                    Some(problem) => Err(ReadError::new(problem).or_at(node.mark)),
                    None => Ok(Checked(rule)),
                }
            })
        }
    }
    let rules = Vec::<Checked>::deserialize(deserializer)?;
    Ok(rules.into_iter().map(|Checked(rule)| rule).collect())
}

impl Rules {
    /// What `paths` capture of a variable's name there, each also with `_` for `/`.
    pub(super) fn path_of(&self, theirs: &str) -> Captures {
        let captured = self.paths.iter().find_map(|pattern| pattern.captures(theirs)).unwrap_or_default();
        let flat = captured.iter().map(|(name, text)| (format!("{name}_"), text.replace('/', "_")));
        flat.collect::<Vec<_>>().into_iter().chain(captured).collect()
    }
}

impl Rule {
    /// What of it does not go together.
    fn problem(&self) -> Option<String> {
        for (pattern, template) in self.ours.iter().flat_map(|pattern| self.theirs.iter().map(move |it| (pattern, it)))
        {
            if let Some(name) = template.not_captured(pattern) {
                return Some(format!("`{template}` takes `{{{name}}}`, which `{pattern}` does not capture"));
            }
        }
        let is_permutation = |axes: &[usize]| {
            let mut sorted = axes.to_vec();
            sorted.sort_unstable();
            sorted.into_iter().eq(0..axes.len())
        };
        if let Some(axes) = self.transpose.as_ref().filter(|axes| !is_permutation(axes)) {
            return Some(format!("`transpose` is {axes:?}, expected each axis once, such as [1, 0]"));
        }
        if let Some(joined) = &self.joined {
            let in_order = joined.iter().flatten().copied().eq(0..joined.iter().map(Vec::len).sum());
            if !in_order || joined.iter().any(Vec::is_empty) {
                return Some(format!("`joined` is {joined:?}, expected all axes in order, such as [[0], [1, 2]]"));
            }
        }
        if self.channels_first.is_some_and(|sizes| sizes.iter().any(|&size| size < 1)) {
            return Some(
                "`channels_first` is of no image, expected channels, height and width, such as [16, 5, 5]".to_string(),
            );
        }
        if (self.part.is_some() || !self.ones.is_empty()) && self.axes_of.is_some() {
            return Some("`axes_of` stands beside neither `part` nor `ones`".to_string());
        }
        if self.part.is_some() && !self.ones.is_empty() {
            return Some("`ones` does not stand beside `part`".to_string());
        }
        match self.part {
            Some(AxisPart { number, of, .. }) if number >= of => {
                Some(format!("`part` is number {number} of {of}, expected 0 to {}", of.saturating_sub(1)))
            }
            _ => None,
        }
    }
}

/// Rules that come with the crate, by name.
const FAMILIES: &[(&str, &str)] = &[
    ("names", include_str!("families/names.yaml")),
    ("tensorflow", include_str!("families/tensorflow.yaml")),
    ("keras", include_str!("families/keras.yaml")),
    ("torch", include_str!("families/torch.yaml")),
    ("keras_numbered", include_str!("families/keras_numbered.yaml")),
    ("bert_tensorflow", include_str!("families/bert_tensorflow.yaml")),
    ("bert", include_str!("families/bert.yaml")),
    ("gpt2", include_str!("families/gpt2.yaml")),
    ("llama", include_str!("families/llama.yaml")),
    ("resnet", include_str!("families/resnet.yaml")),
    ("vit", include_str!("families/vit.yaml")),
];

/// Rules that cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// A file that cannot be read, or no family.
    #[error("{}: cannot read the rules: {}\nhelp: name a file, or a family: {}", path.display(), why(source), families().join(", "))]
    Read {
        /// What was given.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A name that is near that of a family, and no file.
    #[error("there are no rules `{given}`{}\nhelp: name a file, or a family: {}", near(given), families().join(", "))]
    Unknown {
        /// What was given.
        given: String,
    },
    /// A file that is not right.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

fn why(source: &io::Error) -> String {
    source.to_string()
}

fn near(given: &str) -> String {
    nearest(given, &families()).map_or(String::new(), |name| format!(": did you mean `{name}`?"))
}

/// Names of the families that come with the crate.
pub fn families() -> Vec<String> {
    FAMILIES.iter().map(|(name, _)| name.to_string()).collect()
}

impl Rules {
    /// The rules of a family, or of a file. What has the name of a family is the family: a file of that name is `./NAME`.
    ///
    /// # Errors
    /// Neither; a file that is not right, with the line.
    pub fn read(family_or_file: impl AsRef<Path>) -> Result<Rules, RulesError> {
        let family_or_file = family_or_file.as_ref();
        let name = family_or_file.to_str();
        if let Some((name, text)) = FAMILIES.iter().find(|(family, _)| Some(*family) == name) {
            return Ok(document::from_str(name, text)?);
        }
        let text = files::read_text(family_or_file, document::MAX_BYTES as u64);
        match (text, name) {
            (Ok(text), _) => {
                let rules: Rules = document::from_str(&family_or_file.display().to_string(), &text)?;
                match rules.base.clone() {
                    Some(base) => Ok(rules.based_on(Rules::read(Path::new(&base))?)),
                    None => Ok(rules),
                }
            }
            (Err(error), Some(name)) if error.kind() == io::ErrorKind::NotFound && !name.contains(['/', '.']) => {
                Err(RulesError::Unknown { given: name.to_string() })
            }
            (Err(source), _) => Err(RulesError::Read { path: family_or_file.to_path_buf(), source }),
        }
    }

    /// These rules, then a family's.
    fn based_on(self, base: Rules) -> Rules {
        Rules {
            prefixes: if self.prefixes == no_prefix() { base.prefixes } else { self.prefixes },
            rules: self.rules.into_iter().chain(base.rules).collect(),
            slots: base.slots.into_iter().chain(self.slots).collect(),
            indexed: self.indexed.or(base.indexed),
            numbers: base.numbers.into_iter().chain(self.numbers).collect(),
            averages: base.averages.into_iter().chain(self.averages).collect(),
            step: base.step.into_iter().chain(self.step).collect(),
            unused: base.unused.into_iter().chain(self.unused).collect(),
            ..self
        }
    }

    /// Every family that comes with the crate.
    pub fn all() -> Vec<Rules> {
        let read = |(name, text): &(&str, &str)| document::from_str(name, text).expect("families are read by a test");
        FAMILIES.iter().map(read).collect()
    }

    /// Our own names.
    pub fn names() -> Rules {
        Rules::read(Path::new(FAMILIES[0].0)).expect("families are read by a test")
    }
}

#[cfg(test)]
mod tests {
    use super::super::pattern::Standing;
    use super::*;

    #[test]
    fn every_family_is_read_and_is_called_what_it_is_named() {
        for ((name, text), rules) in FAMILIES.iter().zip(Rules::all()) {
            assert_eq!(rules.family, *name);
            assert!(!rules.about.is_empty() && !text.is_empty(), "{name}");
        }
    }

    fn error(rule: &str) -> String {
        let text = format!("family: mine\nabout: a test\nrules:\n  - {rule}\n");
        document::from_str::<Rules>("mine.yaml", &text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (rule, expected) in [
            (
                "{ours: '{a}/kernel', theirs: '{b}.weight'}",
                "`{b}.weight` takes `{b}`, which `{a}/kernel` does not capture",
            ),
            (
                "{ours: a, theirs: b, transpose: [0, 2]}",
                "`transpose` is [0, 2], expected each axis once, such as [1, 0]",
            ),
            (
                "{ours: a, theirs: b, joined: [[1], [0]]}",
                "`joined` is [[1], [0]], expected all axes in order, such as [[0], [1, 2]]",
            ),
            ("{ours: a, theirs: b, part: {number: 3, of: 3, axis: 0}}", "`part` is number 3 of 3, expected 0 to 2"),
            (
                "{ours: a, theirs: b, channels_first: [3, 0, 2]}",
                "`channels_first` is of no image, expected channels, height and width, such as [16, 5, 5]",
            ),
            ("{ours: a, theirs: b, axes_of: kernel, ones: [0]}", "`axes_of` stands beside neither `part` nor `ones`"),
            (
                "{ours: a, theirs: b, part: {number: 0, of: 3, axis: 0}, ones: [0]}",
                "`ones` does not stand beside `part`",
            ),
            ("{ours: 'a{', theirs: b}", "\"a{\" has a brace alone, expected `{name}`"),
            ("{ours: a, theirs: []}", "expected a name, or a list of names"),
            ("{ours: a, their: b}", "their"),
        ] {
            let error = error(rule);
            assert!(error.starts_with("mine.yaml:4:") && error.contains(expected), "{rule}: {error}");
        }
    }

    /// What Keras 2 before 2.11 (tf-keras' `optimizers.legacy`), Keras 2 and Keras 3 call the slots of `conv/kernel` in a
    /// whole model's `.h5`; momentum of SGD is a step there.
    #[test]
    fn slots_of_keras_h5_are_called_by_optimizer_and_version() {
        let rules = Rules::all().into_iter().find(|rules| rules.family == "keras").unwrap();
        for (slot, names) in [
            ("momentum", "SGD/conv/kernel/momentum:0 SGD/m/conv/kernel:0 sgd/conv_kernel_momentum step"),
            ("momentum", "RMSprop/conv/kernel/momentum:0 RMSprop/momentum/conv/kernel:0 rm_sprop/conv_kernel_momentum"),
            ("rms", "RMSprop/conv/kernel/rms:0 RMSprop/velocity/conv/kernel:0 rm_sprop/conv_kernel_velocity"),
            (
                "rms_mean",
                "RMSprop/conv/kernel/mg:0 RMSprop/average_gradient/conv/kernel:0 rm_sprop/conv_kernel_average_gradient",
            ),
            ("adam_m", "Adam/conv/kernel/m:0 Adam/m/conv/kernel:0 adam/conv_kernel_momentum"),
            ("adam_v", "Adam/conv/kernel/v:0 Adam/v/conv/kernel:0 adam/conv_kernel_velocity"),
        ] {
            let scale = if names.ends_with(" step") { Scale::Step } else { Scale::Same };
            for name in names.split(' ').filter(|name| *name != "step") {
                let ending = if name.ends_with(":0") { ":0" } else { "" };
                let theirs = format!("model_weights/conv/conv/kernel{ending}");
                let captures = rules.path_of(&theirs);
                let of = |called: &SlotName| called.theirs.name(&captures, Standing::default());
                let expected = format!("optimizer_weights/{name}");
                let found = rules.slots[slot].iter().find(|called| of(called).as_deref() == Some(&expected));
                assert_eq!(found.map(|called| called.scale), Some(scale), "{slot} {name}");
            }
        }
    }

    #[test]
    fn a_file_may_change_some_rules_of_a_family() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.yaml");
        let text = "family: mine\nabout: a test\nbase: torch\nrules:\n  - {ours: hidden/kernel, theirs: fc.weight}\n";
        std::fs::write(&path, text).unwrap();
        let (mine, torch) = (Rules::read(&path).unwrap(), Rules::read(Path::new("torch")).unwrap());
        assert_eq!((&mine.family[..], mine.rules.len()), ("mine", torch.rules.len() + 1));
        assert_eq!(mine.rules[0].theirs[0].to_string(), "fc.weight");
        assert_eq!((&mine.rules[1..], &mine.slots, &mine.prefixes), (&torch.rules[..], &torch.slots, &torch.prefixes));
        std::fs::write(&path, text.replace("base: torch", "base: torhc")).unwrap();
        let error = Rules::read(&path).unwrap_err().to_string();
        assert!(error.contains("mine.yaml:3:7: ") && error.contains("expected a family: names, "), "{error}");
    }

    #[test]
    fn rules_that_are_not_there_are_told_from_files_that_cannot_be_read() {
        let error = |given: &str| Rules::read(Path::new(given)).unwrap_err().to_string();
        let all = families().join(", ");
        assert_eq!(
            error("gtp2"),
            format!("there are no rules `gtp2`: did you mean `gpt2`?\nhelp: name a file, or a family: {all}")
        );
        assert!(error("./gpt2").starts_with("./gpt2: cannot read the rules: "), "{}", error("./gpt2"));
    }
}
