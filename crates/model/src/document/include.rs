//! Documents that include others: `include: FILE`, or a list of files, at the root or under `model`.
//!
//! Keys of an included file count as if they were written in the document, unless the document has them; maps in both
//! are merged. Under `model`, a file may hold a model's keys, or an experiment, whose `model` is used. The caller reads
//! the files. Lines of an included file are numbered after those of the files before it, so [`Document`] can map a line
//! back to its file.

use super::error::ReadError;
use super::node::{Node, Size, Value};
use super::place::{Key, Mark};
use super::{ConfigError, Document, MAX_BYTES, MAX_NODES, MAX_TEXT, placed, without_mark, yaml};
use std::path::Path;

/// The deepest nesting of files.
const MAX_DEPTH: usize = 8;

/// A function that reads a file's text.
type Read<'a> = dyn FnMut(&Path) -> std::io::Result<String> + 'a;

/// A file that a document includes.
#[derive(Clone, Debug)]
pub(super) struct Included {
    pub path: String,
    pub text: String,
    /// The number of lines of the files before it.
    pub before: usize,
}

/// Why a document cannot be assembled: a bad reference to a file, or an invalid file.
enum Failed {
    At(ReadError),
    Within(ConfigError),
}

impl Document {
    /// As [`Document::parse`], with included files, which `read` reads; paths are relative to the file that names them.
    ///
    /// # Errors
    /// An invalid document, also an included one; a file that cannot be read; files that include each other.
    pub fn parse_with(path: &str, text: &str, read: &mut Read<'_>) -> Result<Document, ConfigError> {
        let mut document = Document::parse(path, text)?;
        let (n_lines, n_bytes) = (text.lines().count() + 1, text.len());
        let mut including = Including { n_lines, n_bytes, size: document.root.size(), files: Vec::new(), read };
        let root = including.root(document.root.clone(), Path::new(path));
        document.included = including.files;
        match root {
            Ok(root) => {
                document.root = root;
                Ok(document)
            }
            Err(Failed::Within(error)) => Err(error),
            Err(Failed::At(error)) => Err(document.read_error(error)),
        }
    }
}

struct Including<'a> {
    n_lines: usize,
    n_bytes: usize,
    /// The values of all files, with what aliases repeat.
    size: Size,
    files: Vec<Included>,
    read: &'a mut Read<'a>,
}

impl Including<'_> {
    fn root(&mut self, root: Node, path: &Path) -> Result<Node, Failed> {
        let root = self.level(root, path, false, 0)?;
        let Value::Map(map) = &root.value else { return Ok(root) };
        let mut whole = Vec::new();
        for (key, node) in map {
            let is_model = &**key == "model";
            whole.push((key.clone(), if is_model { self.level(node.clone(), path, true, 0)? } else { node.clone() }));
        }
        Ok(root.replaced(Value::Map(whole)))
    }

    /// A map, merged with those of the files that it includes.
    fn level(&mut self, node: Node, path: &Path, is_model: bool, depth: usize) -> Result<Node, Failed> {
        let Value::Map(map) = &node.value else { return Ok(node) };
        let Some(include) = node.get("include") else { return Ok(node) };
        let names: Vec<&Node> = match &include.value {
            Value::List(list) => list.iter().collect(),
            _ => vec![include],
        };
        let entries: Vec<(Key, Node)> = map.iter().filter(|(key, _)| &**key != "include").cloned().collect();
        let mut joined = node.replaced(Value::Map(entries));
        for name in names {
            let Value::Text(file) = &name.value else {
                return Err(Failed::At(name.wrong("a file, such as `include: blocks.yaml`, or a list of files")));
            };
            if depth >= MAX_DEPTH {
                let message = format!("files include each other, or {MAX_DEPTH} stand inside one another");
                return Err(Failed::At(ReadError::new(message).or_at(name.mark)));
            }
            let file = path.parent().unwrap_or(Path::new("")).join(file);
            let included = self.file(&file, name)?;
            let included = self.level(included, &file, is_model, depth + 1)?;
            let included = match included.get("model").filter(|_| is_model) {
                Some(model) => self.level(model.clone(), &file, true, depth + 1)?,
                None => included,
            };
            if !matches!(included.value, Value::Map(_)) {
                let message = format!("{} has no keys, of which it could include some", file.display());
                return Err(Failed::At(ReadError::new(message).or_at(name.mark)));
            }
            joined = with(joined, included);
        }
        Ok(joined)
    }

    /// The tree of a file, with its lines numbered after all others.
    fn file(&mut self, file: &Path, name: &Node) -> Result<Node, Failed> {
        let text = (self.read)(file).map_err(|error| {
            let error = ReadError::new(format!("cannot include {}: {error}", file.display())).or_at(name.mark);
            Failed::At(error.with_help("a path is relative to the file that names it"))
        })?;
        self.n_bytes = self.n_bytes.saturating_add(text.len());
        if self.n_bytes > MAX_BYTES {
            let message = format!("with {} the files have more than {MAX_BYTES} bytes", file.display());
            return Err(Failed::At(ReadError::new(message).or_at(name.mark)));
        }
        let (path, before) = (file.display().to_string(), self.n_lines);
        let text = without_mark(&text).to_string();
        let tree = yaml::parse(&text).map_err(|(problem, mark)| Failed::Within(placed(&path, &text, mark, problem)))?;
        self.size = self.size + tree.size();
        if self.size.n_nodes > MAX_NODES || self.size.n_bytes > MAX_TEXT {
            let message = format!(
                "with {path} and what aliases repeat the files have more than {MAX_NODES} values or {MAX_TEXT} bytes of text"
            );
            return Err(Failed::At(ReadError::new(message).or_at(name.mark)));
        }
        self.n_lines += text.lines().count() + 1;
        self.files.push(Included { path, text, before });
        Ok(moved(&tree, before))
    }
}

/// A tree with its line numbers shifted by `lines`.
fn moved(node: &Node, lines: usize) -> Node {
    let later = |mark: Mark| Mark { line: mark.line + lines, ..mark };
    let value = match &node.value {
        Value::List(list) => Value::List(list.iter().map(|node| moved(node, lines)).collect()),
        Value::Map(map) => {
            let pair = |(key, node): &(Key, Node)| (Key { mark: later(key.mark), ..key.clone() }, moved(node, lines));
            Value::Map(map.iter().map(pair).collect())
        }
        Value::Tagged(tag, node) => Value::Tagged(tag.clone(), Box::new(moved(node, lines))),
        other => other.clone(),
    };
    let mut shifted = node.replaced(value);
    shifted.mark = later(node.mark);
    shifted
}

/// Merges maps: the first one's values win, and maps in both are merged recursively.
fn with(node: Node, included: Node) -> Node {
    let (Value::Map(first), Value::Map(others)) = (&node.value, included.value) else { return node };
    let mut entries = first.clone();
    for (key, other) in others {
        match entries.iter_mut().find(|(known, _)| **known == *key) {
            Some((_, known)) => *known = with(known.clone(), other),
            None => entries.push((key, other)),
        }
    }
    node.replaced(Value::Map(entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn parse(files: &[(&str, &str)]) -> Result<Document, String> {
        let mut read = |path: &Path| {
            let known = files.iter().find(|(name, _)| Path::new(name) == path);
            known.map(|(_, text)| text.to_string()).ok_or_else(|| std::io::ErrorKind::NotFound.into())
        };
        Document::parse_with(files[0].0, files[0].1, &mut read).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_of_files_are_joined() {
        let document = parse(&[
            ("a/e.yaml", "include: train.yaml\nmodel:\n  include: [blocks.yaml, b/model.yaml]\n  blocks: {x: 1}\n"),
            ("a/train.yaml", "train: {epochs: 3}\n"),
            ("a/blocks.yaml", "blocks: {x: 2, y: 3}\n"),
            ("a/b/model.yaml", "data: 1\nmodel:\n  include: more.yaml\n  kind: layers\n"),
            ("a/b/more.yaml", "blocks: {z: 4}\n"),
        ]);
        let root = document.unwrap().root().in_one_line();
        assert_eq!(root, "{model: {blocks: {x: 1, y: 3, z: 4}, kind: layers}, train: {epochs: 3}}");
    }

    #[test]
    fn places_are_those_of_the_file() {
        let document =
            parse(&[("e.yaml", "model: {include: m.yaml}\n"), ("m.yaml", "kind: mlp\nhidden: many\n")]).unwrap();
        let node = document.root().get("model").unwrap().get("hidden").unwrap();
        expect![[r#"
            m.yaml:2:9: found string "many", expected a list
              2 | hidden: many
                |         ^^^^
              help: write ['many'], if it is the only one"#]]
        .assert_eq(&document.read_error(node.wrong("a list")).to_string());
        assert_eq!(document.place_of(node.mark.line), ("m.yaml", 2));
    }

    #[test]
    fn what_cannot_be_included_is_said() {
        let error = |files: &[(&str, &str)]| parse(files).unwrap_err();
        let long = error(&[("e.yaml", "include: m.yaml\n"), ("m.yaml", &"#".repeat(MAX_BYTES + 1))]);
        let expected = format!("e.yaml:1:10: with m.yaml the files have more than {MAX_BYTES} bytes\n");
        assert!(long.starts_with(&expected), "{long}");
        // 600,000 values in 1.3 kB, and 64 MB of text in 101 kB: each alone is read.
        let values =
            format!("a: &a [{}]\nb: &b [{}]\nc: [{}]\n", "x, ".repeat(99), "*a, ".repeat(59), "*b, ".repeat(99));
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), "*a, ".repeat(300));
        for file in [values, text] {
            let twice = error(&[("e.yaml", "include: [m.yaml, m.yaml]\n"), ("m.yaml", &file)]);
            let expected = format!(
                "e.yaml:1:19: with m.yaml and what aliases repeat the files have more than {MAX_NODES} values or \
                 {MAX_TEXT} bytes of text\n"
            );
            assert!(twice.starts_with(&expected), "{twice}");
        }
        expect![[r#"
            e.yaml:1:18: cannot include m.yaml: entity not found
              1 | model: {include: m.yaml}
                |                  ^^^^^^
              help: a path is relative to the file that names it"#]]
        .assert_eq(&error(&[("e.yaml", "model: {include: m.yaml}\n")]));
        expect![[r#"
            e.yaml:1:10: files include each other, or 8 stand inside one another
              1 | include: e.yaml
                |          ^^^^^^"#]]
        .assert_eq(&error(&[("e.yaml", "include: e.yaml\n")]));
        expect![[r#"
            e.yaml:1:10: found integer `3`, expected a file, such as `include: blocks.yaml`, or a list of files
              1 | include: 3
                |          ^"#]]
        .assert_eq(&error(&[("e.yaml", "include: 3\n")]));
        expect![[r#"
            m.yaml:1:4: not valid yaml: while parsing a node, did not find expected node content
              1 | a: [
                |    ^
              help: `[` of line 1, column 4 is open here"#]]
        .assert_eq(&error(&[("e.yaml", "include: m.yaml\n"), ("m.yaml", "a: [\n")]));
        expect![[r#"
            e.yaml:1:10: m.yaml has no keys, of which it could include some
              1 | include: m.yaml
                |          ^^^^^^"#]]
        .assert_eq(&error(&[("e.yaml", "include: m.yaml\n"), ("m.yaml", "[1]\n")]));
    }
}
