//! The keys of a policy document as data: `--help`, the table of docs/GUIDE.md and the JSON schema are generated from
//! here, and a test compares them with [`PolicyDocument`](super::PolicyDocument). Deprecated keys are still read, with
//! a warning that names their replacement.

use super::policy::PRESETS;
use std::fmt::Write as _;

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

/// All keys, in the order of the table.
pub const KEYS: [Key; 15] = [
    Key { name: "preset", values: Values::Preset, default: "default", meaning: "what the other keys change" },
    Key { name: "dtype", values: Values::One(&["bf16", "f16"]), default: "bf16", meaning: "the narrow dtype" },
    Key {
        name: "allow",
        values: Values::Ops,
        default: "none",
        meaning: "ops that are always lowered, beside dots and convolutions",
    },
    Key {
        name: "deny",
        values: Values::Ops,
        default: "none",
        meaning: "ops that are f32, and so is what is computed from them up to the next allowed op",
    },
    Key { name: "island", values: Values::Ops, default: "none", meaning: "ops that are f32 themselves" },
    Key {
        name: "keep",
        values: Values::Patterns,
        default: "none",
        meaning: "names, of an instruction or its scope, that stay f32; `*` is any text, `?` any character",
    },
    Key {
        name: "reach",
        values: Values::One(&["none", "dots", "between", "all"]),
        default: "between",
        meaning: "how far lowering goes from allowed ops: nothing at all, these alone, what lies between two of them, everything",
    },
    Key {
        name: "rounds",
        values: Values::One(&["stored", "carried", "all", "listed"]),
        default: "stored",
        meaning: "which values within reach are narrow: those that a TPU's compiler stores; what a loop carries from step to step, too; all of them, within a norm as well; those that TensorFlow's lists say, whatever is stored",
    },
    Key {
        name: "narrow",
        values: Values::Some(&["parameters", "results", "loss"]),
        default: "none",
        meaning: "what is narrow besides: the entry's f32 parameters, its results, what leads to losses and updates",
    },
    Key {
        name: "accumulate",
        values: Values::One(&["compute", "f32"]),
        default: "compute",
        meaning: "what products give: the narrow dtype, or f32 where only f32 reads it",
    },
    Key {
        name: "sums",
        values: Values::One(&["f32", "as_computed"]),
        default: "f32",
        meaning: "in what devices sum what each computed a part of",
    },
    Key {
        name: "choices",
        values: Values::One(&["keep", "lower"]),
        default: "keep",
        meaning: "whether products may be narrow whose results decide something discrete, such as a router's; with `rounds: listed` or `narrow: [loss]`, what any other reader amplifies, too",
    },
    Key {
        name: "losses",
        values: Values::Numbers,
        default: "guessed",
        meaning: "numbers of results that are losses, or stay f32 as one does",
    },
    Key {
        name: "data",
        values: Values::Numbers,
        default: "none",
        meaning: "numbers of parameters that hold only positions, times, counts or masks: what is computed of these alone is exact",
    },
    Key {
        name: "decided",
        values: Values::Forms,
        default: "none",
        meaning: "forms of single instructions, as `lower --target` writes them",
    },
];

/// A deprecated key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldKey {
    /// Its name.
    pub name: &'static str,
    /// Its replacement.
    pub became: &'static str,
}

/// All deprecated keys: they are read as before, with a warning.
pub const OLD_KEYS: [OldKey; 13] = [
    OldKey {
        name: "infer",
        became: "`reach: all` lowers every op that may be; `allow` names those that are always lowered",
    },
    OldKey { name: "clear", became: "ops say themselves whether they commute with rounding" },
    OldKey { name: "min_elements", became: "`keep` names what stays f32" },
    OldKey { name: "parameters", became: "`narrow: [parameters]` says it" },
    OldKey { name: "results", became: "`narrow: [results]` says it" },
    OldKey { name: "loss", became: "`narrow: [loss]` says it, and `losses` which results are losses" },
    OldKey {
        name: "deny_spreads",
        became: "it is part of `rounds: listed`; what is computed from an op of `deny` is f32 in any case",
    },
    OldKey { name: "unstored", became: "`unstored: lower` is `rounds: all`" },
    OldKey { name: "logits", became: "it is part of `rounds`; `losses` says which results are losses" },
    OldKey { name: "tables", became: "it is part of `rounds`; `island: [\"scatter:add\"]` keeps sums of rows f32" },
    OldKey { name: "moved", became: "`moved: keep` is part of `rounds: listed`" },
    OldKey { name: "loops", became: "`loops: keep` is part of `rounds: listed`" },
    OldKey { name: "carried", became: "`carried: lower` is `rounds: carried`" },
];

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

    /// The values as a JSON schema.
    fn schema(self) -> String {
        let one = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
            format!("{{\"enum\": [{}]}}", names.join(", "))
        };
        let list = |items: &str| format!("{{\"type\": \"array\", \"items\": {items}}}");
        match self {
            Values::Preset => {
                format!("{{\"anyOf\": [{}, {{\"type\": \"string\", \"pattern\": \"^jmp:\"}}]}}", one(&PRESETS))
            }
            Values::One(names) => one(names),
            Values::Some(names) => list(&one(names)),
            Values::Ops | Values::Patterns => list("{\"type\": \"string\"}"),
            Values::Numbers => list("{\"type\": \"integer\", \"minimum\": 0}"),
            Values::Forms => list(
                "{\"type\": \"object\", \"required\": [\"instruction\", \"of\", \"as\", \"because\"], \
                 \"properties\": {\"instruction\": {\"type\": \"string\"}, \"of\": {\"type\": \"string\"}, \
                 \"as\": {\"enum\": [\"f32\", \"rounded\", \"narrow\", \"barrier\"]}, \"because\": {\"type\": \"string\"}}}",
            ),
        }
    }
}

/// The keys as a paragraph of `--help`.
pub fn help() -> String {
    let mut text = "A policy file holds, all optional:\n".to_string();
    for key in &KEYS {
        let values = key.values.words().replace('`', "");
        let _ = writeln!(text, "  {:<11} {values} [{}]: {}", key.name, key.default, key.meaning.replace('`', ""));
    }
    text += "An op in two lists, or one that no list may hold, is an error.\n";
    text
}

/// The keys as a table of docs/GUIDE.md.
pub fn table() -> String {
    let mut text = "| key | values | default | what it says |\n| --- | --- | --- | --- |\n".to_string();
    for key in &KEYS {
        let is_word = matches!(key.values, Values::Preset | Values::One(_));
        let default = if is_word { format!("`{}`", key.default) } else { key.default.to_string() };
        let _ = writeln!(text, "| `{}` | {} | {default} | {} |", key.name, key.values.words(), key.meaning);
    }
    text
}

/// The keys as a JSON schema, for editors.
pub fn schema() -> String {
    let mut text = "{\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n  \"title\": \"A policy of bf16scope lower\",\n  \
                    \"type\": \"object\",\n  \"additionalProperties\": false,\n  \"properties\": {\n"
        .to_string();
    let quoted = |text: &str| text.replace('"', "\\\"");
    let mut lines: Vec<String> = KEYS
        .iter()
        .map(|key| {
            let schema = key.values.schema();
            format!("    \"{}\": {{\"description\": \"{}\", {}", key.name, quoted(key.meaning), &schema[1..])
        })
        .collect();
    lines.extend(OLD_KEYS.iter().map(|key| {
        format!("    \"{}\": {{\"deprecated\": true, \"description\": \"{}\"}}", key.name, quoted(key.became))
    }));
    text += &lines.join(",\n");
    text += "\n  }\n}\n";
    text
}
