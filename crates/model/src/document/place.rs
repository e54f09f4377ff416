//! Places of a document, and the steps that lead to them.

use std::ops::Deref;

/// Line and column in a document, from 1, in characters; 0 without a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// A key of a map.
#[derive(Clone, Debug)]
pub struct Key {
    /// The name by which it is read.
    pub name: String,
    /// Its place.
    pub mark: Mark,
    /// The name in the document, if it differs.
    pub written: Option<String>,
}

impl Key {
    /// A key that is read by the name in the document.
    pub fn new(name: impl Into<String>, mark: Mark) -> Key {
        Key { name: name.into(), mark, written: None }
    }

    /// The name in the document.
    pub fn as_written(&self) -> &str {
        self.written.as_deref().unwrap_or(&self.name)
    }
}

impl Deref for Key {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.name == other.name
    }
}

/// One step from a node to a value that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The value of a key.
    Key(String),
    /// The key itself; the last step.
    KeyItself(String),
    /// An element of a list, from 0.
    Index(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Step {
        Step::Key(key.to_string())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Step {
        Step::Index(index)
    }
}
