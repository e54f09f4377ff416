//! What can be wrong with text.

use std::io;
use std::path::PathBuf;

/// What is wrong with text, or with what makes ids of it: where, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A tokenizer's file that cannot be opened.
    #[error(
        "{}: cannot open the tokenizer\nhelp: `tokenizer` is a `tokenizer.json` or a `vocab.txt`, beside the experiment; `tokenizer: bytes` needs \
         no file",
        path.display()
    )]
    OpenTokenizer {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A build without tokenizers.
    #[error(
        "{}: this build makes ids of bytes only\nhelp: build bf16scope with `--features text`, or write `tokenizer: bytes`",
        path.display()
    )]
    Feature {
        /// The tokenizer.
        path: PathBuf,
    },
    /// A tokenizer's file that is not right.
    #[error("{}: {found}; expected {expected}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        found: String,
        /// What may be.
        expected: &'static str,
    },
    /// A token that is not in the vocabulary.
    #[error("{tokenizer}: there is no token `{token}`, which {purpose}; expected one of the tokenizer's\nhelp: {help}")]
    NoToken {
        /// The tokenizer.
        tokenizer: String,
        /// As written.
        token: String,
        /// What it is for.
        purpose: &'static str,
        /// What to write.
        help: &'static str,
    },
    /// A file that cannot be opened.
    #[error("{}: cannot open the text", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Reading failed on the way.
    #[error("{place}: cannot be read")]
    Read {
        /// The file, and where in it.
        place: String,
        /// What the system says.
        source: io::Error,
    },
    /// A file without text.
    #[error("{}: the file is empty; expected text", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Files without an example.
    #[error("{}: nothing in it but empty lines; expected text", path.display())]
    NoText {
        /// The first file.
        path: PathBuf,
    },
    /// Bytes that are no text.
    #[error(
        "{place}: byte {at} of the file is no UTF-8; expected text in UTF-8\nhelp: convert it (`iconv -f LATIN1 -t UTF-8`), or take bytes as they are: \
         `tokenizer: bytes`"
    )]
    NotUtf8 {
        /// The file and the line, or the file.
        place: String,
        /// Bytes of the file before it.
        at: u64,
    },
    /// A text that is not read into memory.
    #[error("{place}: a text of more than {limit} bytes; expected shorter ones\nhelp: {help}")]
    TooLong {
        /// The file, and where in it.
        place: String,
        /// Bytes at most.
        limit: u64,
        /// What to do.
        help: &'static str,
    },
    /// A line that is no JSON object.
    #[error("{place}: no JSON object: {found}; expected one a line, such as {{\"text\": \"…\"}}")]
    Json {
        /// The file and the line.
        place: String,
        /// What the reader says.
        found: String,
    },
    /// A JSON object without a field.
    #[error(
        "{place}: there is no field `{field}`; it has {}\nhelp: name the fields under `tokens`: `field: …`, `label: …`; or leave such lines out: `on_error: {{skip: N}}` under `data`",
        listed(names)
    )]
    NoField {
        /// The file and the line.
        place: String,
        /// The field.
        field: String,
        /// What there is.
        names: Vec<String>,
    },
    /// A field of another kind.
    #[error("{place}: field `{field}` is {measured}; expected {expected}")]
    Field {
        /// The file and the line.
        place: String,
        /// The field.
        field: String,
        /// What it is.
        measured: String,
        /// What its use asks for.
        expected: String,
    },
    /// A text that the tokenizer refuses.
    #[error("{place}: the tokenizer makes no ids of it: {found}")]
    Encode {
        /// The file and the line.
        place: String,
        /// What the tokenizer says.
        found: String,
    },
    /// Less text than one example needs.
    #[error("{}: {measured} tokens; expected {expected} at least: {what}\nhelp: shorten it, or name more text", path.display())]
    Short {
        /// The first file.
        path: PathBuf,
        /// Tokens that there are.
        measured: u64,
        /// Tokens of an example.
        expected: u64,
        /// What makes an example.
        what: String,
    },
    /// More tokens than are kept.
    #[error("{}: more than {limit} tokens; expected a data set of fewer: split it", path.display())]
    TooMany {
        /// The first file.
        path: PathBuf,
        /// Tokens at most.
        limit: u64,
    },
    /// Ids cannot be kept on the disk.
    #[error("{place}: cannot keep the ids of the text")]
    Keep {
        /// Where.
        place: String,
        /// What the system says.
        source: io::Error,
    },
    /// A part that would be empty.
    #[error("cannot keep {n_test} examples for testing; the text makes {n_examples}, and one must be left to train on{}", if *n_overlapping > 0 { format!(" beside {n_overlapping} that overlap them") } else { String::new() })]
    Split {
        /// Asked for.
        n_test: u64,
        /// There are.
        n_examples: u64,
        /// Windows that would be in both parts.
        n_overlapping: u64,
    },
}

fn listed(names: &[String]) -> String {
    match names.len() {
        0 => "none".to_string(),
        _ => names.iter().take(20).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}
