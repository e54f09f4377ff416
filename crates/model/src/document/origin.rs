//! Origins: handles on values of a document, for errors that are found after reading.

use super::{ConfigError, Document, Node, NodeError, ReadError, Step, error_without_place};
use std::path::Path;
use std::sync::Arc;

/// The document value from which something was read; none (the default) for values that a program made. All origins
/// compare equal: the place does not change the meaning.
#[derive(Clone, Debug, Default)]
pub struct Origin(Option<Written>);

#[derive(Clone, Debug)]
struct Written {
    document: Arc<Document>,
    way: Vec<Step>,
}

impl PartialEq for Origin {
    fn eq(&self, _other: &Origin) -> bool {
        true
    }
}

impl From<Document> for Origin {
    fn from(document: Document) -> Origin {
        Origin(Some(Written { document: Arc::new(document), way: Vec::new() }))
    }
}

impl Origin {
    /// The origin of the value that a step leads to.
    #[must_use]
    pub fn at(&self, step: impl Into<Step>) -> Origin {
        let mut origin = self.clone();
        if let Some(written) = &mut origin.0 {
            written.way.push(step.into());
        }
        origin
    }

    /// The document, if there is one.
    pub fn document(&self) -> Option<&Document> {
        self.0.as_ref().map(|written| &*written.document)
    }

    /// The value, if there is one.
    pub fn node(&self) -> Option<&Node> {
        let Written { document, way } = self.0.as_ref()?;
        way.iter().try_fold(document.root(), |node, step| node.after(step))
    }

    /// The file and the line of the value, if there is one.
    pub fn line(&self) -> Option<(&str, u32)> {
        let (path, line) = self.document()?.place_of(self.node()?.mark.line);
        Some((path, u32::try_from(line).unwrap_or(0)))
    }

    /// An error about the value that its steps lead to from here. `path` names the file if there is no document.
    pub fn error(&self, path: &Path, error: NodeError) -> ConfigError {
        match &self.0 {
            Some(Written { document, way }) => {
                document.error(way.iter().rev().cloned().fold(error, |error, step| error.within(step)))
            }
            None => error_without_place(&path.display().to_string(), error),
        }
    }

    /// The error at its own place, or else at the value that `way` leads to from the document's root.
    pub fn read_error(&self, path: &Path, way: &[Step], error: ReadError) -> ConfigError {
        match &self.0 {
            Some(Written { document, .. }) => document.read_error(error.or_at(document.root().nearest_place_of(way))),
            None => {
                let (message, help) = (error.problem.to_string(), error.problem.help());
                self.error(path, NodeError { path: Vec::new(), message, help })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "model:\n  layers:\n    - flatten\n    - dense: 3\ntrain: {batch: 8}\n";

    fn origin() -> Origin {
        Document::parse("e.yaml", TEXT).unwrap().into()
    }

    #[test]
    fn steps_lead_to_lines() {
        let layers = origin().at("model").at("layers");
        assert_eq!(layers.at(1).at("dense").line(), Some(("e.yaml", 4)));
        assert_eq!(layers.at(1).node(), origin().at("model").node().unwrap().get("layers").unwrap().after(&1.into()));
        assert_eq!(layers.at(2).line(), None);
        assert_eq!(Origin::default().at("model").line(), None);
        assert_eq!(layers, Origin::default());
    }

    #[test]
    fn errors_show_the_line_that_their_steps_lead_to_from_here() {
        let error = NodeError::new(vec![1.into(), "dense".into()], "too few units").with_help("write 10");
        let path = Path::new("other.yaml");
        let placed = origin().at("model").at("layers").error(path, error.clone()).to_string();
        assert_eq!(placed, "e.yaml:4:14: too few units\n  4 |     - dense: 3\n    |              ^\n  help: write 10");
        assert_eq!(Origin::default().error(path, error).to_string(), "other.yaml: too few units\nhelp: write 10");
        let read = ReadError::new("no");
        let way = ["train".into(), "batch".into()];
        assert_eq!(
            origin().read_error(path, &way, read).to_string(),
            "e.yaml:5:16: no\n  5 | train: {batch: 8}\n    |                ^"
        );
    }
}
