//! Reads YAML into configuration types, with errors that point at line and column, quote the line, list the valid keys
//! or values and suggest the nearest.
//!
//! No IO: the caller reads the file. A document is parsed into a tree ([`Node`]) in which every value knows its line
//! and column; serde reads configuration types from the tree, and an error has the place of the value that it is about.
//! After reading, places are kept as [`Origin`]s. For types with `#[serde(flatten)]` or `untagged`, serde buffers a map
//! before it examines it, and the place is the map's.

mod de;
mod error;
mod include;
pub mod kind;
mod node;
mod numbers;
mod origin;
mod place;
mod yaml;

pub use bf16scope_hlo::words::nearest;
pub use error::{ConfigError, ConfigProblem, NodeError, Place, ReadError};
pub use node::{Node, Value};
pub use numbers::{Positive, fraction, number, positive, positive_up_to, positives, whole_up_to};
pub use origin::Origin;
pub use place::{Key, Mark, Step};
pub use yaml::{WriteError, to_line, to_string, with};

use bf16scope_passes::tuning::{CHOICES, Choice};
use serde::de::DeserializeOwned;

/// The largest document, in bytes. A model is a page of text.
pub const MAX_BYTES: usize = 1 << 20;

/// The deepest nesting of values. A configuration has about ten levels.
const MAX_DEPTH: usize = 128;

/// The most values of a document, counting what its aliases repeat. A document of [`MAX_BYTES`] has at most half as
/// many itself; nested aliases could expand to more than fits in memory.
const MAX_NODES: usize = 1 << 20;

/// The most bytes of text in a document, counting what its aliases repeat: one long text could expand to more than fits
/// in memory too.
pub(crate) const MAX_TEXT: usize = 64 * MAX_BYTES;

/// Reads a configuration from the text of file `path`, which appears in errors only.
///
/// # Errors
/// The first problem of the document.
pub fn from_str<T: DeserializeOwned>(path: &str, text: &str) -> Result<T, ConfigError> {
    Document::parse(path, text)?.read()
}

/// A document: its tree, and its text, whose lines errors show.
#[derive(Clone, Debug)]
pub struct Document {
    path: String,
    text: String,
    root: Node,
    /// Included files, whose lines are numbered after its own.
    included: Vec<include::Included>,
}

impl Document {
    /// Parses the text of file `path`, which appears in errors only.
    ///
    /// # Errors
    /// A text that is not a valid document.
    pub fn parse(path: &str, text: &str) -> Result<Document, ConfigError> {
        if text.len() > MAX_BYTES {
            return Err(placed(path, text, None, ConfigProblem::TooLarge { n_bytes: text.len() }));
        }
        let text = without_mark(text);
        let root = yaml::parse(text).map_err(|(problem, mark)| placed(path, text, mark, problem))?;
        Ok(Document { path: path.to_string(), text: text.to_string(), root, included: Vec::new() })
    }

    /// The file's name in errors.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its tree.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Reads the document as a configuration.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        T::deserialize(&self.root).map_err(|error| {
            let ReadError { mark, problem } = error.or_at(self.root.mark);
            self.placed(mark, of_tuning(&self.root, problem))
        })
    }

    /// An error about the value that its steps lead to from the root.
    pub fn error(&self, error: NodeError) -> ConfigError {
        self.read_error(self.root.error(error))
    }

    /// An error about a value that was read from it.
    pub fn read_error(&self, error: ReadError) -> ConfigError {
        self.placed(error.mark, error.problem)
    }

    /// The file of a line of the tree, and the line there.
    pub fn place_of(&self, line: usize) -> (&str, usize) {
        match self.included.iter().rev().find(|file| line > file.before) {
            Some(file) => (&file.path, line - file.before),
            None => (&self.path, line),
        }
    }

    fn placed(&self, mark: Option<Mark>, problem: ConfigProblem) -> ConfigError {
        let file = mark.and_then(|mark| self.included.iter().rev().find(|file| mark.line > file.before));
        match (file, mark) {
            (Some(file), Some(mark)) => {
                let mark = Mark { line: mark.line - file.before, ..mark };
                placed(&file.path, &file.text, Some(mark), problem)
            }
            _ => placed(&self.path, &self.text, mark, problem),
        }
    }
}

/// An error about a configuration that was not read from a document, so it has no line; `path` names it in the message.
pub fn error_without_place(path: &str, NodeError { message, help, .. }: NodeError) -> ConfigError {
    placed(path, "", None, ConfigProblem::Together { message, help })
}

/// Some editors write a byte order mark first, which is not part of the document.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{FEFF}').unwrap_or(text)
}

fn placed(path: &str, text: &str, mark: Option<Mark>, problem: ConfigProblem) -> ConfigError {
    let place = mark.map(|Mark { line, column }| {
        let text = without_mark(text).lines().nth(line - 1).unwrap_or_default().to_string();
        Place { line, column, text }
    });
    ConfigError { path: path.to_string(), place, problem }
}

/// Refines the problem of an unknown key that belongs to `tune`, or has an earlier name, with the line to write.
fn of_tuning(root: &Node, problem: ConfigProblem) -> ConfigProblem {
    let ConfigProblem::UnknownKey { key, valid } = problem else { return problem };
    match Choice::from_key(&key) {
        // `tune` itself is read with the new name.
        Some(choice) if valid.iter().any(|name| name == choice.key) => {
            ConfigProblem::Renamed { now: choice.key, line: renamed_line(root, &key), key }
        }
        Some(_) => ConfigProblem::OfTuning { line: tune_line(root, &key), key },
        None => ConfigProblem::UnknownKey { key, valid },
    }
}

/// The line that moves keys of `tune` from elsewhere in a document to `tune`.
fn tune_line(root: &Node, key: &str) -> String {
    // A document may also be a model alone.
    let blocks = [Some(root), root.get("model"), root.get("train")];
    let line = |choice: &Choice| {
        let of_block = |block: &&Node| block.get(choice.key).or_else(|| block.get(choice.was?)).cloned();
        let value = blocks.iter().flatten().find_map(of_block)?;
        Some(format!("{}: {}", choice.key, as_now(choice.key, &value)))
    };
    let lines: Vec<String> = CHOICES.iter().filter_map(line).collect();
    match lines.is_empty() {
        true => format!("tune: {{{}: …}}", Choice::from_key(key).map_or(key, |choice| choice.key)),
        false => format!("tune: {{{}}}", lines.join(", ")),
    }
}

/// The line of `tune` with the present names of its keys.
fn renamed_line(root: &Node, key: &str) -> String {
    let now = |key: &str| Choice::from_key(key).map_or(key.to_string(), |choice| choice.key.to_string());
    match &root.get("tune").unwrap_or(root).value {
        Value::Map(map) => {
            let pair = |(key, value): &(Key, Node)| {
                let key = now(key);
                format!("{key}: {}", as_now(&key, value))
            };
            format!("tune: {{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        _ => format!("tune: {{{}: …}}", now(key)),
    }
}

/// A choice's value; one of the choices was a boolean before it became counts of layers.
fn as_now(key: &str, value: &Node) -> String {
    match (key, &value.value) {
        ("layer_remat", Value::Bool(true)) => "{weights: all}".to_string(),
        ("layer_remat", Value::Bool(false)) => "{weights: 0}".to_string(),
        _ => value.in_one_line(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Root {
        seed: u64,
        #[serde(default)]
        rate: f64,
        layer: Layer,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Layer {
        #[serde(deserialize_with = "positives")]
        filters: Vec<i64>,
        #[serde(default)]
        padding: Padding,
        #[serde(default, deserialize_with = "fraction")]
        dropout: f64,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Padding {
        #[default]
        Same,
        Valid,
    }

    fn check(text: &str, expected: Expect) {
        expected.assert_eq(&from_str::<Root>("model.yaml", text).unwrap_err().to_string());
    }

    #[test]
    fn good_document_is_read() {
        let root: Root = from_str("model.yaml", "seed: 1\nlayer:\n  filters: [8, 16]\n").unwrap();
        assert_eq!(root.layer.filters, [8, 16]);
    }

    #[test]
    fn unknown_key() {
        check(
            "seed: 1\nlayer:\n  filers: [8]\n",
            expect![[r#"
            model.yaml:3:3: unknown key `filers`, expected one of filters, padding, dropout
              3 |   filers: [8]
                |   ^^^^^^
              help: did you mean `filters`?"#]],
        );
    }

    #[test]
    fn unknown_value() {
        check(
            "seed: 1\nlayer:\n  filters: [8]\n  padding: vaild\n",
            expect![[r#"
            model.yaml:4:12: unknown value `vaild`, expected one of same, valid
              4 |   padding: vaild
                |            ^^^^^
              help: did you mean `valid`?"#]],
        );
    }

    #[test]
    fn missing_key() {
        check(
            "seed: 1\nlayer:\n  padding: same\n",
            expect![[r#"
            model.yaml:3:3: missing key `filters`
              3 |   padding: same
                |   ^^^^^^^
              help: add `filters: …` to the block that starts here"#]],
        );
        check(
            "layer:\n  filters: [1]\n",
            expect![[r#"
            model.yaml:1:1: missing key `seed`
              1 | layer:
                | ^^^^^
              help: add `seed: …` to the block that starts here"#]],
        );
        check(
            "",
            expect![[r#"
            model.yaml:1:1: missing key `seed`
              1 | 
                | ^
              help: add `seed: …` to the block that starts here"#]],
        );
    }

    #[test]
    fn a_key_that_is_no_text_and_a_second_document() {
        check(
            "? [a, b]\n: 1\n",
            expect![[r#"
                model.yaml:1:3: found a list, expected a key, which is text
                  1 | ? [a, b]
                    |   ^"#]],
        );
        check(
            "seed: 1\n---\nseed: 2\n",
            expect![[r#"
                model.yaml:2:1: not valid yaml: there is more than one document here
                  2 | ---
                    | ^^^
                  help: keys and values are `key: value`, and nesting is two spaces of indentation"#]],
        );
    }

    #[test]
    fn duplicate_key() {
        check(
            "seed: 1\nseed: 2\n",
            expect![[r#"
                model.yaml:2:1: key `seed` is given twice
                  2 | seed: 2
                    | ^^^^
                  help: keep one `seed`"#]],
        );
    }

    #[test]
    fn wrong_value() {
        check(
            "seed: one\n",
            expect![[r#"
            model.yaml:1:7: found string "one", expected a whole number of at least 0
              1 | seed: one
                |       ^^^"#]],
        );
        check(
            "seed: -1\n",
            expect![[r#"
            model.yaml:1:7: found integer `-1`, expected a whole number of at least 0
              1 | seed: -1
                |       ^^"#]],
        );
        check(
            "seed: 1\nlayer:\n  filters: [8, 0]\n",
            expect![[r#"
            model.yaml:3:16: found integer `0`, expected a whole number of at least 1
              3 |   filters: [8, 0]
                |                ^"#]],
        );
        check(
            "seed: 1\nlayer:\n  filters: 8\n",
            expect![[r#"
                model.yaml:3:12: found integer `8`, expected a list
                  3 |   filters: 8
                    |            ^
                  help: write [8], if it is the only one"#]],
        );
        check(
            "seed: 1\nlayer:\n  filters: [8]\n  dropout: 1.5\n",
            expect![[r#"
            model.yaml:4:12: found floating point `1.5`, expected a number from 0 up to but not including 1
              4 |   dropout: 1.5
                |            ^^^"#]],
        );
        check(
            "seed: 1\nrate: fast\n",
            expect![[r#"
            model.yaml:2:7: found string "fast", expected a number
              2 | rate: fast
                |       ^^^^"#]],
        );
        check(
            "seed: 1\nlayer: [1]\n",
            expect![[r#"
                model.yaml:2:8: found a list, expected keys and values
                  2 | layer: [1]
                    |        ^"#]],
        );
    }

    #[test]
    fn syntax() {
        check(
            "seed: 1\n\tlayer: 2\n",
            expect![[r#"
                model.yaml:2:1: not valid yaml: a tab indents this line
                  2 | 	layer: 2
                    | ^
                  help: indent it with spaces"#]],
        );
        check(
            "seed: [1, 2\n",
            expect![[r#"
                model.yaml:1:7: not valid yaml: while parsing a flow sequence, expected ',' or ']'
                  1 | seed: [1, 2
                    |       ^
                  help: `[` of line 1, column 7 is open here"#]],
        );
        check(
            "seed: \"\u{fffe}",
            expect![[r#"
                model.yaml:1:7: not valid yaml: while scanning a quoted scalar, found unexpected end of stream
                  1 | seed: "￾
                    |       ^^
                  help: keys and values are `key: value`, and nesting is two spaces of indentation"#]],
        );
    }

    #[test]
    fn bombs_are_refused() {
        let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
        for (this, last) in "bcdefghij".chars().zip("abcdefghi".chars()) {
            bomb +=
                &format!("{this}: &{this} [*{last}, *{last}, *{last}, *{last}, *{last}, *{last}, *{last}, *{last}]\n");
        }
        let refused = |text: &str| from_str::<Node>("model.yaml", text).unwrap_err().to_string();
        expect![[r#"
            model.yaml:7:8: aliases repeat more than 1048576 values
              7 | g: &g [*f, *f, *f, *f, *f, *f, *f, *f]
                |        ^^"#]]
        .assert_eq(&refused(&bomb));
        expect![[r#"
            model.yaml:1:129: more than 128 lists and maps stand inside one another
              1 | [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[
                |                                                  ^"#]]
        .assert_eq(&refused(&"[".repeat(200)));
        expect![[r#"
            model.yaml:1:256: more than 128 lists and maps stand inside one another
              1 | [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[
                |                                                  ^"#]]
        .assert_eq(&refused(&"[".repeat(1_000_000)));
        let anchors: String = (0..120).map(|n| format!("&a{n} [")).collect();
        let many = format!("{anchors}{}{}", "x, ".repeat(300_000), "]".repeat(120));
        assert!(refused(&many).contains("aliases repeat more than 1048576 values"), "{}", refused(&many));
        assert!(refused(&"- ".repeat(200)).contains("more than 128 lists and maps"));
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), "*a, ".repeat(10_000));
        assert!(refused(&text).contains("aliases repeat more than 67108864 bytes of text"), "{}", refused(&text));
        let key = format!("a: &a {{? {}\n: 1}}\nb: [{}]\n", "x".repeat(100_000), "*a, ".repeat(10_000));
        assert!(refused(&key).contains("aliases repeat more than 67108864 bytes of text"), "{}", refused(&key));
        assert!(refused("a: &a [*a]\n").contains("an alias stands inside what it is an alias of"));
        expect!["model.yaml: document has at least 1048577 bytes, expected at most 1048576"]
            .assert_eq(&refused(&"#".repeat(MAX_BYTES + 1)));
    }
}
