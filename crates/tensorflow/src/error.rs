//! Errors of reading and lowering a graph: where, what was read, what was expected, what to do.

/// An error in reading a graph or in lowering it to HLO.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A file that cannot be read.
    #[error("cannot read {file}: {message}")]
    Unread {
        /// The file.
        file: String,
        /// Why.
        message: String,
    },
    /// The file holds no graph, or is cut off.
    #[error(
        "{file}: {message}\nhelp: it may be damaged, or another kind of file: `tf.io.write_graph`, a Saver's .meta and a \
             SavedModel's saved_model.pb are read"
    )]
    Damaged {
        /// The file.
        file: String,
        /// The problem.
        message: String,
    },
    /// A syntax error in a text file.
    #[error(
        "{file}:{line}: {message}\nhelp: the text is read as protocol buffers print it; write it anew, or write the binary form"
    )]
    Text {
        /// The file.
        file: String,
        /// The line.
        line: u32,
        /// The token at the error, and the expected one.
        message: String,
    },
    /// The decoded file would exceed the memory limit.
    #[error(
        "{file}: decoded it would take more than {limit} bytes\nhelp: freeze the part that is to be run into a graph of its own"
    )]
    Large {
        /// The file.
        file: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// Nothing in the graph says what to compute.
    #[error("{file}: {message}\nhelp: {help}")]
    NoProgram {
        /// The file.
        file: String,
        /// The missing part.
        message: String,
        /// The remedy.
        help: String,
    },
    /// An op without a lowering to HLO.
    #[error("{file}: node `{node}`{place} is `{op}`, which does not become HLO here\nhelp: {help}")]
    UnknownOp {
        /// The file.
        file: String,
        /// The node.
        node: String,
        /// ` (model.py:12)`, where the graph says it.
        place: String,
        /// The op.
        op: String,
        /// The remedy.
        help: String,
    },
    /// A node whose inputs or attributes do not fit.
    #[error("{file}: node `{node}` ({op}){place}: {message}\nhelp: {help}")]
    Node {
        /// The file.
        file: String,
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// ` (model.py:12)`, where the graph says it.
        place: String,
        /// The problem.
        message: String,
        /// The remedy.
        help: String,
    },
    /// An input whose size is not known.
    #[error("{file}: input `{name}` (parameter {number}) is {shape}, and HLO's shapes are static\nhelp: {help}")]
    Size {
        /// The file.
        file: String,
        /// The input.
        name: String,
        /// Which parameter.
        number: usize,
        /// Its shape, `?` for each size that is not known.
        shape: String,
        /// Which flag gives the size.
        help: String,
    },
}

/// An error of one node, before the node's name and place are added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub message: String,
    pub help: Option<String>,
}

impl Problem {
    pub(crate) fn new(message: impl Into<String>) -> Problem {
        Problem { message: message.into(), help: None }
    }

    pub(crate) fn with_help(self, help: impl Into<String>) -> Problem {
        Problem { help: Some(help.into()), ..self }
    }
}

/// `1 input`, `2 inputs`.
pub(crate) fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
