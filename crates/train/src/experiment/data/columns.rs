//! `data: {columns: ...}`, the columns of a table that make each feature, and `classes`, the names of classes.

use super::reading::Reading;
use crate::TrainError;
use bf16scope_data::Feature;
use bf16scope_data::table::{Column, ColumnKind, Columns, Missing};
use bf16scope_files as files;
use bf16scope_model::document::{self, Node, ReadError, Value};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A column with its options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    #[serde(default)]
    normalize: bool,
    #[serde(default)]
    categories: Option<Categories>,
    #[serde(default)]
    other: bool,
    #[serde(default, deserialize_with = "max_tokens")]
    words: Option<usize>,
    #[serde(default, deserialize_with = "missing")]
    missing: Missing,
}

/// `true`, or the list of categories.
enum Categories {
    Learnt,
    Names(Vec<String>),
}

impl<'de> Deserialize<'de> for Categories {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Categories, D::Error> {
        Node::read(deserializer, |node| match &node.value {
            Value::Bool(true) => Ok(Categories::Learnt),
            Value::List(names) if !names.is_empty() => {
                let name = |node: &Node| match node.text() {
                    Some(text) if !text.is_empty() => Ok(text.to_string()),
                    _ => Err(node.wrong("a name")),
                };
                let names = names.iter().map(name).collect::<Result<Vec<_>, ReadError>>()?;
                match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
                    Some((_, twice)) => {
                        Err(ReadError::new(format!("the category `{twice}` is there twice")).or_at(node.mark))
                    }
                    None => Ok(Categories::Names(names)),
                }
            }
            _ => Err(node.wrong("`true`, to learn them from the examples that are trained on, or a list of names")),
        })
    }
}

fn max_tokens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    let fits = |n: f64| n.fract() == 0.0 && (3.0..=10_000_000.0).contains(&n);
    Ok(Some(document::number(
        deserializer,
        fits,
        "a whole number from 3: how many numbers words have, 0 and 1 included",
    )? as usize))
}

fn missing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Missing, D::Error> {
    const EXPECTED: &str = "`mean`, or a number that stands for empty cells";
    Node::read(deserializer, |node| match &node.value {
        Value::Text(word) if word == "mean" => Ok(Missing::Mean),
        Value::Whole(_) | Value::Negative(_) | Value::Float(_) => {
            document::number(node, f64::is_finite, EXPECTED).map(Missing::Number)
        }
        _ => Err(node.wrong(EXPECTED)),
    })
}

/// A column: its name, or its name with options.
struct Entry(Column);

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entry, D::Error> {
        Node::read(deserializer, |node| {
            if let Value::Map(_) = &node.value {
                return column(Written::deserialize(node)?).map(Entry).map_err(|error| error.or_at(node.mark));
            }
            match node.text() {
                Some(name) if !name.is_empty() => Ok(Entry(Column { name: name.to_string(), ..Column::default() })),
                _ => Err(node.wrong("a column's name, or `{name: NAME, normalize: true}`")),
            }
        })
    }
}

fn column(written: Written) -> Result<Column, ReadError> {
    let Written { name, normalize, categories, other, words, missing } = written;
    let kind = match (normalize, categories, words) {
        (false, None, None) => ColumnKind::Number,
        (true, None, None) => ColumnKind::Normalized,
        (false, Some(Categories::Learnt), None) => ColumnKind::Categories { names: Vec::new(), has_other: other },
        (false, Some(Categories::Names(names)), None) => ColumnKind::Categories { names, has_other: other },
        (false, None, Some(max_tokens)) => ColumnKind::Words { max_tokens },
        _ => {
            let message = format!("column `{name}` has several of `normalize`, `categories` and `words`");
            return Err(ReadError::new(message).with_help("a column is one thing; it may stand in the list twice"));
        }
    };
    if other && !matches!(kind, ColumnKind::Categories { .. }) {
        let message = format!("column `{name}` has `other` and no `categories`");
        return Err(ReadError::new(message).with_help("write `categories: true` beside it, or leave it out"));
    }
    Ok(Column { name, kind, missing })
}

/// `columns: {x: [age, {name: town, categories: true}], labels: {name: kind, categories: true}}`.
pub(super) fn columns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Columns>, D::Error> {
    const EXPECTED: &str = "features with their columns, such as `{x: [age, fare], labels: survived}`";
    Node::read(deserializer, |node| {
        let Value::Map(map) = &node.value else { return Err(node.wrong(EXPECTED)) };
        let mut columns = Columns::new();
        for (key, value) in map {
            let of_feature = match &value.value {
                Value::List(list) if list.is_empty() => return Err(value.wrong("a column at least")),
                Value::List(list) => list
                    .iter()
                    .map(|node| Entry::deserialize(node).map(|Entry(column)| column))
                    .collect::<Result<_, _>>()?,
                _ => vec![Entry::deserialize(value)?.0],
            };
            columns.insert(key.to_string(), of_feature);
        }
        Ok(Some(columns))
    })
}

/// The delimiter between cells.
pub(super) fn delimiter<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    Node::read(deserializer, |node| match node.text() {
        Some("tab" | "\\t" | "\t") => Ok(Some(b'\t')),
        Some(text) if text.len() == 1 && text.is_ascii() && !text.starts_with(['"', '\n', '\r']) => {
            Ok(Some(text.as_bytes()[0]))
        }
        _ => Err::<_, ReadError>(node.wrong("one character such as `;`, or `tab`")),
    })
}

/// Class names: for the only label of classes, or by label; each a list, or a file with one name per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassNames {
    /// For the only label.
    Only(NameList),
    /// By label.
    Labels(BTreeMap<String, NameList>),
}

/// An ordered list of names, or a file that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameList {
    /// The names.
    Names(Vec<String>),
    /// A file: one name per line, or a label map of TensorFlow (`item { id: 1 name: 'cat' }`).
    File(PathBuf),
}

impl<'de> Deserialize<'de> for NameList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NameList, D::Error> {
        Node::read(deserializer, |node| match &node.value {
            Value::Text(file) => Ok(NameList::File(PathBuf::from(file))),
            Value::List(_) => {
                let names: Vec<String> = Vec::deserialize(node)?;
                Ok(NameList::Names(names))
            }
            _ => Err(node.wrong("names such as `[cat, dog]`, or a file of a name a line")),
        })
    }
}

impl<'de> Deserialize<'de> for ClassNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ClassNames, D::Error> {
        Node::read(deserializer, |node| match &node.value {
            Value::Map(_) => BTreeMap::deserialize(node).map(ClassNames::Labels),
            _ => NameList::deserialize(node).map(ClassNames::Only),
        })
    }
}

/// The most bytes of a file of names.
const MAX_NAMES: u64 = 64 << 20;

impl ClassNames {
    /// The names by label. Checks that each label has as many names as classes.
    pub(super) fn read(&self, reading: &Reading<'_>) -> Result<BTreeMap<String, Vec<String>>, TrainError> {
        let [labels, distributions] = labels_with_classes(reading.features);
        let all: Vec<_> = labels.iter().chain(&distributions).copied().collect();
        let labels = if labels.is_empty() { distributions } else { labels };
        let shown: Vec<String> = all.iter().map(|feature| format!("`{}`", feature.name)).collect();
        let lists: Vec<(&String, &NameList)> = match self {
            ClassNames::Labels(lists) => lists.iter().collect(),
            ClassNames::Only(list) => match &labels[..] {
                [only] => vec![(&only.name, list)],
                _ => {
                    let measured = format!("`classes` and {} labels of classes", labels.len());
                    let expected = match shown.is_empty() {
                        true => "a model that learns classes".to_string(),
                        false => format!("names by label, of {}", shown.join(", ")),
                    };
                    return Err(reading.wrong(&["classes"], &measured, &expected));
                }
            },
        };
        let mut names = BTreeMap::new();
        for (label, list) in lists {
            let Some(feature) = all.iter().find(|feature| feature.name == *label) else {
                let expected = format!("a label of classes: {}", shown.join(", "));
                return Err(reading.wrong(&["classes"], &format!("`classes` of `{label}`"), &expected));
            };
            let of_label = match list {
                NameList::Names(names) => names.clone(),
                NameList::File(file) => read_names(&reading.folder.join(file)).map_err(|message| {
                    TrainError::of_file(crate::TrainErrorKind::Data, &reading.folder.join(file), message)
                })?,
            };
            // A yes or no has two classes: no, then yes.
            let n = feature.n_values.unwrap_or(match feature.dims[..] {
                [] | [1] => 2,
                [.., n] => n,
            });
            if of_label.len() as i64 != n {
                let measured = format!("{} names of the classes of `{label}`", of_label.len());
                return Err(reading.wrong(&["classes"], &measured, &format!("{n}, one for each class of the model")));
            }
            names.insert(label.clone(), of_label);
        }
        Ok(names)
    }
}

/// The labels that are classes, and those with a probability for each class or of a yes.
fn labels_with_classes(features: &[Feature]) -> [Vec<&Feature>; 2] {
    let labels = |is_it: fn(&Feature) -> bool| -> Vec<&Feature> {
        features.iter().filter(|feature| feature.is_label && is_it(feature)).collect()
    };
    [labels(|feature| feature.n_values.is_some()), labels(|feature| feature.is_probability && feature.dims.len() <= 1)]
}

/// Reads the names of a file.
fn read_names(path: &Path) -> Result<Vec<String>, String> {
    let text =
        files::read_text(path, MAX_NAMES).map_err(|error| format!("cannot read the names of classes: {error}"))?;
    if text.contains("item") && text.contains('{') {
        return of_label_map(&text);
    }
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string).collect())
}

/// The names of a label map, `item { id: 1 name: "cat" }`, in the order of their ids; `display_name` takes precedence
/// over `name`.
fn of_label_map(text: &str) -> Result<Vec<String>, String> {
    let mut items = BTreeMap::new();
    let tokens = tokens(text);
    for item in tokens.split(|token| *token == "item").skip(1) {
        let body = item.split(|token| *token == "}").next().unwrap_or_default();
        let value = |key: &str| {
            let field = body.windows(3).find(|field| field[0] == key && field[1] == ":")?;
            Some(field[2].trim_matches(['"', '\'']).to_string())
        };
        let id: i64 = value("id").and_then(|id| id.parse().ok()).ok_or("an item of the label map has no `id`")?;
        let name = value("display_name")
            .or_else(|| value("name"))
            .ok_or(format!("item {id} of the label map has no `name`"))?;
        items.insert(id, name);
    }
    if items.is_empty() { Err("the label map has no items".to_string()) } else { Ok(items.into_values().collect()) }
}

/// The words, quoted texts and marks of a protobuf text, without comments.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => rest[1..].find(first).map_or(rest.len(), |end| end + 2),
            '{' | '}' | ':' | ',' | ';' => 1,
            _ => rest.find(|c: char| c.is_whitespace() || "{}:,;#\"'".contains(c)).unwrap_or(rest.len()),
        };
        let (token, behind) = rest.split_at(end);
        tokens.extend(Some(token).filter(|_| !matches!(first, '#' | ',' | ';')));
        rest = behind.trim_start();
    }
    tokens
}
