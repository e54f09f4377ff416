//! Name rules: which array of another framework is which of our variables, read from a file or from the families of
//! this crate.
//!
//! docs/FORMATS.md describes the format in "Rules for names". A rule starts from our side: its pattern selects our
//! variables, its templates name the arrays with their values, and the other keys give differences in layout. Rules can
//! be applied in reverse, so each one is a bijection: a permutation of axes, joined axes, an equal part of an axis.

use super::further_names::{FurtherName, one_or_several};
use super::numbering::Indexed;
use super::pattern::{Captures, Pattern, Template};
use super::variable::Scale;
use bf16scope_files as files;
use bf16scope_model::document::{self, ConfigError, Node, ReadError, Value, nearest};
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The rules of a family of checkpoints.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The family's name in reports; for families of this crate also in `rules: NAME`.
    pub family: String,
    /// The models that use these names.
    pub about: String,
    /// Possible prefixes of their names. Default none.
    #[serde(default = "no_prefix")]
    pub prefixes: Vec<String>,
    /// Each variable uses the first rule whose pattern matches.
    #[serde(deserialize_with = "rules")]
    pub rules: Vec<Rule>,
    /// Whether layers of a class are told apart by their order alone.
    #[serde(default)]
    pub by_order: bool,
    /// Further names of arrays, under which rules find them too.
    #[serde(default)]
    pub also: Vec<FurtherName>,
    /// Names of optimizer slots, by our name of the slot: templates of `{theirs}` (any name of the variable in the
    /// file), `{slot}`, `{number}`, and the captures of `paths`. The key `"*"` is for every slot.
    #[serde(default)]
    pub slots: BTreeMap<String, Vec<SlotName>>,
    /// Patterns of a variable's names in the file: templates of `slots` may use the captures of the first match, and as
    /// `{name_}` with `_` for each `/`.
    #[serde(default)]
    pub paths: Vec<Pattern>,
    /// The numbering of slots, in files whose optimizers number them.
    pub indexed: Option<Indexed>,
    /// Patterns of a variable's aliases that capture its `{number}` among trainable variables, for templates of
    /// `slots`. Without such an alias, the number comes from the order in the file, or else from the model's.
    #[serde(default)]
    pub numbers: Vec<Pattern>,
    /// Names of averages: templates of `{theirs}`.
    #[serde(default)]
    pub averages: Vec<Template>,
    /// Names of the number of updates.
    #[serde(default)]
    pub step: Vec<String>,
    /// Names that hold no weights: they are not left over.
    #[serde(default)]
    pub unused: Vec<Pattern>,
    /// A family whose rules follow these, and whose other keys apply if absent here.
    #[serde(default, deserialize_with = "family")]
    pub base: Option<String>,
}

/// A rule: the source of some of our variables.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The variables: a pattern, or several that capture the same names.
    #[serde(deserialize_with = "one_or_several")]
    pub ours: Vec<Pattern>,
    /// Restricts the rule to variables of this rank.
    pub rank: Option<usize>,
    /// Restricts the rule to variables whose last axis has this length, such as 1 for a depthwise kernel.
    pub last: Option<i64>,
    /// Restricts the rule to variables whose layer also has this variable.
    pub beside: Option<Beside>,
    /// The array's name, or several: the first that is in the file counts.
    #[serde(deserialize_with = "one_or_several")]
    pub theirs: Vec<Template>,
    /// The part of the array, if it holds several of our variables.
    pub part: Option<AxisPart>,
    /// For each of our axes (after joining), the index of the array's axis (of the part).
    pub transpose: Option<Vec<usize>>,
    /// Our axes that are joined in the array, as groups of all axes in order: `[[0], [1, 2]]`.
    pub joined: Option<Vec<Vec<usize>>>,
    /// Channels, height and width of flattened images along our first axis, which the array has channels first.
    pub channels_first: Option<[i64; 3]>,
    /// Indices of axes of length 1 that the array may have in addition.
    #[serde(default)]
    pub ones: Vec<usize>,
    /// Whether these axes are written.
    #[serde(default)]
    pub write_ones: bool,
    /// Another variable of the layer whose last axes the array has in place of our last one: a bias of heads has its
    /// kernel's axes.
    pub axes_of: Option<String>,
    /// Whether another variable may have the same values, as logits that share an embedding's table.
    #[serde(default)]
    pub shared: bool,
    /// Whether the names have none of the family's prefixes, such as a head beside a prefixed network.
    #[serde(default)]
    pub bare: bool,
}

/// A variable that the same layer must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Its name in the layer.
    pub name: String,
    /// Its rank, if that matters: the kernel tells whether a bias belongs to a dense layer or to a convolution.
    pub rank: Option<usize>,
    /// The length of its last axis.
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

/// The name of a family of this crate.
fn family<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Node::read(deserializer, |node| match &node.value {
        Value::Text(name) if families().contains(name) => Ok(Some(name.clone())),
        _ => Err(node.wrong(&format!("a family: {}", families().join(", ")))),
    })
}

/// A possible name of a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotName {
    /// Its name.
    pub theirs: Template,
    /// A name that must also be in the file: without it, the first name belongs to another slot.
    pub with: Option<Template>,
    /// The meaning of its numbers.
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
    /// The index of the part, from 0.
    pub number: usize,
    /// The number of parts.
    pub of: usize,
    /// The axis.
    pub axis: usize,
}

fn no_prefix() -> Vec<String> {
    vec![String::new()]
}

fn rules<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Rule>, D::Error> {
    /// A rule that is checked while its line is known.
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
    /// The captures of `paths` in an array's name, each also with `_` for `/`.
    pub(super) fn path_of(&self, theirs: &str) -> Captures {
        let captured = self.paths.iter().find_map(|pattern| pattern.captures(theirs)).unwrap_or_default();
        let flat = captured.iter().map(|(name, text)| (format!("{name}_"), text.replace('/', "_")));
        flat.collect::<Vec<_>>().into_iter().chain(captured).collect()
    }
}

impl Rule {
    /// A contradiction between its keys.
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

/// The families of this crate, by name.
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

/// Why rules cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// A file that cannot be read, and a name that is not a family's.
    #[error("{}: cannot read the rules: {}\nhelp: name a file, or a family: {}", path.display(), why(source), families().join(", "))]
    Read {
        /// The argument.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A name similar to that of a family, and not a file.
    #[error("there are no rules `{given}`{}\nhelp: name a file, or a family: {}", near(given), families().join(", "))]
    Unknown {
        /// The argument.
        given: String,
    },
    /// An invalid file.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

fn why(source: &io::Error) -> String {
    source.to_string()
}

fn near(name: &str) -> String {
    nearest(name, &families()).map_or(String::new(), |name| format!(": did you mean `{name}`?"))
}

/// Names of the families of this crate.
pub fn families() -> Vec<String> {
    FAMILIES.iter().map(|(name, _)| name.to_string()).collect()
}

impl Rules {
    /// Reads the rules of a family, or of a file. The name of a family always means the family: write `./NAME` for a
    /// file of that name.
    ///
    /// # Errors
    /// A name that is neither; an invalid file, with the line.
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

    /// These rules, followed by a family's.
    fn based_on(self, base: Rules) -> Rules {
        Rules {
            prefixes: if self.prefixes == no_prefix() { base.prefixes } else { self.prefixes },
            rules: self.rules.into_iter().chain(base.rules).collect(),
            also: base.also.into_iter().chain(self.also).collect(),
            slots: base.slots.into_iter().chain(self.slots).collect(),
            indexed: self.indexed.or(base.indexed),
            numbers: base.numbers.into_iter().chain(self.numbers).collect(),
            averages: base.averages.into_iter().chain(self.averages).collect(),
            step: base.step.into_iter().chain(self.step).collect(),
            unused: base.unused.into_iter().chain(self.unused).collect(),
            ..self
        }
    }

    /// Every family of this crate.
    pub fn all() -> Vec<Rules> {
        let read = |(name, text): &(&str, &str)| document::from_str(name, text).expect("families are read by a test");
        FAMILIES.iter().map(read).collect()
    }

    /// The rules for our own names.
    pub fn names() -> Rules {
        Rules::read(Path::new(FAMILIES[0].0)).expect("families are read by a test")
    }
}

#[cfg(test)]
mod tests {
    use super::super::numbering::SlotsBy;
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

    /// The slots of `conv/kernel` in a whole model's `.h5` of Keras 2 before 2.11 (tf-keras' `optimizers.legacy`),
    /// Keras 2 and Keras 3; momentum of SGD is a step there.
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
            ("adam_v_max", "Adam/conv/kernel/vhat:0 Adam/vhat/conv/kernel:0 adam/conv_kernel_velocity_hat"),
            ("adamax_m", "Adamax/conv/kernel/m:0 Adamax/m/conv/kernel:0 adamax/conv_kernel_momentum"),
            ("adamax_u", "Adamax/conv/kernel/v:0 Adamax/u/conv/kernel:0 adamax/conv_kernel_norm"),
        ] {
            let scale = if names.ends_with(" step") { Scale::Step } else { Scale::Same };
            for name in names.split(' ').filter(|name| *name != "step") {
                let ending = if name.ends_with(":0") { ":0" } else { "" };
                let theirs = format!("model_weights/conv/conv/kernel{ending}");
                let captures = rules.path_of(&theirs);
                let name_of = |called: &SlotName| called.theirs.name(&captures, Standing::default());
                let expected = format!("optimizer_weights/{name}");
                let slot_name = rules.slots[slot].iter().find(|called| name_of(called).as_deref() == Some(&expected));
                assert_eq!(slot_name.map(|called| called.scale), Some(scale), "{slot} {name}");
            }
        }
    }

    /// Keras makes a variable's two slots together, as those of Adam.
    #[test]
    fn numbered_slots_of_adamax_stand_by_variable() {
        for family in ["keras", "keras_numbered", "tensorflow"] {
            let rules = Rules::all().into_iter().find(|rules| rules.family == family).unwrap();
            let orders = rules.indexed.unwrap().orders;
            let order = orders.iter().find(|order| order.slots == ["adamax_m", "adamax_u"]).unwrap();
            assert_eq!((order.by, &order.steps[..]), (SlotsBy::Variable, &[][..]), "{family}");
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
        let error = |path: &str| Rules::read(Path::new(path)).unwrap_err().to_string();
        let all = families().join(", ");
        assert_eq!(
            error("gtp2"),
            format!("there are no rules `gtp2`: did you mean `gpt2`?\nhelp: name a file, or a family: {all}")
        );
        assert!(error("./gpt2").starts_with("./gpt2: cannot read the rules: "), "{}", error("./gpt2"));
    }
}
