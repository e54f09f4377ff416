//! Places of a document, and the steps that lead to them.

use std::ops::Deref;

/// Line and column of a document, from 1, in characters; 0 of what was read of no document.
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
    /// What it is read as.
    pub name: String,
    /// Where it stands.
    pub mark: Mark,
    /// What is written there, if that is another name.
    pub written: Option<String>,
}

impl Key {
    /// A key that is read as it is written.
    pub fn new(name: impl Into<String>, mark: Mark) -> Key {
        Key { name: name.into(), mark, written: None }
    }

    /// The key as it is written.
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

/// One step from a node to what it holds.
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
