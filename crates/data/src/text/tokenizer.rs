//! Converts text to ids and back: tokenizers in Hugging Face's format, WordPiece from BERT's `vocab.txt`, and bytes.

pub(super) mod checked;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str;

use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use super::model::Model;
use crate::error::{DataError, DataErrorKind};
use bf16scope_files as files;

/// The largest size of a tokenizer's file: the largest published ones have some 30 MB.
const MAX_FILE: u64 = 256 << 20;
/// The number of pieces of text that an [`Encoder`] remembers, and the largest size of one.
const MAX_KNOWN: usize = 1 << 17;
const MAX_PIECE: usize = 64;
const EXPECTED: &str = "a `tokenizer.json` of Hugging Face's tokenizers, or BERT's `vocab.txt`, one token a line";

/// Converts text to ids.
#[derive(Debug)]
pub struct Tokenizer {
    name: String,
    kind: TokenizerKind,
    /// One more than the largest id.
    vocabulary: u32,
    /// SHA-256 of its definition.
    fingerprint: String,
}

#[derive(Debug)]
enum TokenizerKind {
    Bytes,
    Model(Model, Cuts),
}

/// Where a text may be cut so that the ids of its pieces are the ids of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cuts {
    /// Anywhere.
    Everywhere,
    /// At spaces, tabs and ends of lines, which make no ids themselves: a pre-tokenizer splits there, without looking
    /// further. (BERT's normalizer removes some other ASCII whitespace, and so joins the text around it.)
    AtSpaces,
    /// Before a single space between two words, as GPT-2's pattern splits; with the flag, also before and after a
    /// single line feed. The pattern looks ahead only over whitespace, and never back.
    BeforeSpaces {
        /// Whether a piece may begin with a word: the tokenizer does not prepend a space.
        and_lines: bool,
    },
    /// Nowhere: the ids may depend on the whole text.
    Nowhere,
}

/// The special tokens around the ids of one text, or a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Ids before, between and after the texts, each with its segment; for one text nothing is between.
    pub around: [Vec<(u32, u32)>; 3],
    /// The segment of each text.
    pub segments: [u32; 2],
}

impl Frame {
    /// The number of added ids.
    pub fn len(&self) -> usize {
        self.around.iter().map(Vec::len).sum()
    }

    /// Whether no ids are added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Tokenizer {
    /// Raw bytes: 256 ids.
    pub fn bytes() -> Tokenizer {
        Tokenizer {
            name: "bytes".to_string(),
            kind: TokenizerKind::Bytes,
            vocabulary: 256,
            fingerprint: "bytes".to_string(),
        }
    }

    /// Reads `tokenizer.json`, or BERT's `vocab.txt` (recognised by `.txt`): `lowercase` then says whether to make text
    /// lower-case and to strip accents, as BERT's uncased models do.
    ///
    /// # Errors
    /// A file that cannot be read, or is neither of the two; a tokenizer that draws ids at random; one that the crate
    /// cannot run.
    pub fn read(path: impl AsRef<Path>, lowercase: bool) -> Result<Tokenizer, DataError> {
        let path = path.as_ref();
        if !cfg!(feature = "text") {
            let error = DataError::new(DataErrorKind::Read, path, "this build makes ids of bytes only");
            return Err(error.help("build bf16scope with `--features text`, or write `tokenizer: bytes`"));
        }
        let failed = |cause| {
            let help = "`tokenizer` is a `tokenizer.json` or a `vocab.txt`, beside the experiment; `tokenizer: bytes` needs no file";
            DataError::new(DataErrorKind::Read, path, "cannot open the tokenizer").because(cause).help(help)
        };
        let bytes = files::read(path, MAX_FILE).map_err(failed)?;
        let wrong = |message: String| no_tokenizer(path, &message, EXPECTED);
        let is_vocabulary = path.extension().is_some_and(|ending| ending == "txt");
        let text = str::from_utf8(&bytes).map_err(|e| wrong(format!("byte {} is not UTF-8", e.valid_up_to())))?;
        let mut json = match is_vocabulary {
            true => word_piece(text, lowercase).map_err(wrong)?,
            false => serde_json::from_str(text).map_err(|e| wrong(format!("no JSON: {e}")))?,
        };
        if json["model"]["dropout"].as_f64().is_some_and(|rate| rate > 0.0) {
            let message = "its BPE has a dropout, which makes other ids each time";
            return Err(no_tokenizer(path, message, "`\"dropout\": null`"));
        }
        if let Some(message) = checked::fault(&json) {
            return Err(wrong(message));
        }
        let cuts = cuts(&json);
        let mut whole = if is_vocabulary { json.to_string().into_bytes() } else { bytes };
        let fingerprint = bf16scope_files::hex(Sha256::digest(&whole));
        // The experiment sets the lengths.
        let ignored: Vec<&str> = ["truncation", "padding"].into_iter().filter(|key| !json[*key].is_null()).collect();
        if !ignored.is_empty() {
            tracing::warn!(
                "{}: its {} not applied: how long examples are is what the experiment's `text` says",
                path.display(),
                match ignored[..] {
                    [one] => format!("`{one}` is"),
                    _ => "`truncation` and `padding` are".to_string(),
                }
            );
            ignored.into_iter().for_each(|key| json[key] = Json::Null);
            whole = json.to_string().into_bytes();
        }
        let model = Model::read(&whole).map_err(wrong)?;
        let greatest = model.greatest().ok_or_else(|| wrong("a vocabulary of nothing".to_string()))?;
        let vocabulary = greatest.saturating_add(1);
        Ok(Tokenizer {
            name: path.display().to_string(),
            kind: TokenizerKind::Model(model, cuts),
            vocabulary,
            fingerprint,
        })
    }

    /// Its file, or `bytes`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All ids are below this.
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// Identifies it by content.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Whether it accepts bytes that are not UTF-8.
    pub fn takes_bytes(&self) -> bool {
        matches!(self.kind, TokenizerKind::Bytes)
    }

    pub(super) fn cuts(&self) -> Cuts {
        match &self.kind {
            TokenizerKind::Bytes => Cuts::Everywhere,
            TokenizerKind::Model(_, cuts) => *cuts,
        }
    }

    /// The id of a token, spelled as in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.kind {
            TokenizerKind::Bytes => None,
            TokenizerKind::Model(model, _) => model.id(token),
        }
    }

    /// Ids of tokens that do not stand for text, such as `[CLS]`.
    pub fn special_ids(&self) -> Vec<u32> {
        match &self.kind {
            TokenizerKind::Bytes => Vec::new(),
            TokenizerKind::Model(model, _) => model.special_ids(),
        }
    }

    /// The ids of a whole text, without special tokens around it.
    ///
    /// # Errors
    /// The tokenizer's error, for example an unknown token in a model without one for that.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut ids = Vec::new();
        Encoder::new(self).encode(text.as_bytes(), &mut ids)?;
        Ok(ids)
    }

    /// The text of ids; U+FFFD replaces a character that is cut at the end.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.kind {
            TokenizerKind::Bytes => {
                let bytes: Vec<u8> = ids.iter().map(|&id| id as u8).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            TokenizerKind::Model(model, _) => model.decode(ids),
        }
    }

    /// The special tokens around one text, or a pair: found by encoding samples.
    pub fn frame(&self, n_texts: usize) -> Frame {
        let none = Frame::default();
        let TokenizerKind::Model(model, _) = &self.kind else { return none };
        let ask = || -> Result<Frame, String> {
            let bare = [model.ids("a")?, model.ids("b c")?];
            let (ids, types) = model.framed("a", (n_texts == 2).then_some("b c"))?;
            let mut frame = Frame::default();
            let mut at = 0;
            for (number, bare) in bare.iter().take(n_texts).enumerate() {
                let rest = ids.get(at..).unwrap_or_default();
                let Some(start) = rest.windows(bare.len().max(1)).position(|part| part == bare) else {
                    return Ok(none.clone());
                };
                frame.around[number] = (at..at + start).map(|i| (ids[i], types[i])).collect();
                frame.segments[number] = types[at + start];
                at += start + bare.len();
            }
            frame.around[2] = (at..ids.len()).map(|i| (ids[i], types[i])).collect();
            Ok(frame)
        };
        ask().unwrap_or_default()
    }
}

fn no_tokenizer(path: &Path, message: &str, expected: &str) -> DataError {
    DataError::new(DataErrorKind::Format, path, format!("{message}; expected {expected}"))
}

/// A tokenizer for one thread: it caches the ids of pieces, because most words of a text repeat.
#[derive(Debug)]
pub struct Encoder<'t> {
    tokenizer: &'t Tokenizer,
    known: HashMap<Box<[u8]>, Box<[u32]>, foldhash::fast::RandomState>,
}

impl<'t> Encoder<'t> {
    /// An empty cache over `tokenizer`.
    pub fn new(tokenizer: &'t Tokenizer) -> Encoder<'t> {
        Encoder { tokenizer, known: HashMap::default() }
    }

    pub(super) fn takes_bytes(&self) -> bool {
        self.tokenizer.takes_bytes()
    }

    /// Adds the ids of `text`, which is UTF-8 unless the tokenizer takes bytes, without special tokens around it.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode`].
    pub fn encode(&mut self, text: &[u8], ids: &mut Vec<u32>) -> Result<(), String> {
        let (model, cuts) = match &self.tokenizer.kind {
            TokenizerKind::Bytes => {
                ids.extend(text.iter().map(|&byte| u32::from(byte)));
                return Ok(());
            }
            TokenizerKind::Model(model, cuts) => (model, *cuts),
        };
        let whole = |piece: &[u8]| {
            let piece = str::from_utf8(piece).map_err(|e| e.to_string())?;
            model.ids(piece)
        };
        if cuts == Cuts::Nowhere {
            ids.extend(whole(text)?);
            return Ok(());
        }
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(cuts.first_piece(rest));
            rest = after;
            if cuts == Cuts::AtSpaces && is_space(piece[0]) {
                continue;
            }
            if let Some(known) = self.known.get(piece) {
                ids.extend(known);
                continue;
            }
            let piece_ids = whole(piece)?;
            ids.extend(&piece_ids);
            if piece.len() <= MAX_PIECE {
                if self.known.len() >= MAX_KNOWN {
                    self.known.clear();
                }
                self.known.insert(piece.into(), piece_ids.into());
            }
        }
        Ok(())
    }
}

impl Cuts {
    /// The length of the first piece of a non-empty text.
    fn first_piece(self, text: &[u8]) -> usize {
        let end = match self {
            Cuts::Everywhere | Cuts::Nowhere => None,
            Cuts::AtSpaces => {
                let begins = is_space(text[0]);
                text.iter().position(|&byte| is_space(byte) != begins)
            }
            Cuts::BeforeSpaces { and_lines } => (1..text.len()).find(|&at| is_cut(text, at, and_lines)),
        };
        end.unwrap_or(text.len())
    }

    /// The last place at which the beginning of a text, to which more may come, can be cut off and tokenized: 0 if
    /// there is none.
    pub(super) fn last(self, text: &[u8]) -> usize {
        let at = match self {
            Cuts::Everywhere => return text.len(),
            Cuts::Nowhere => None,
            Cuts::AtSpaces => text.iter().rposition(|&byte| is_space(byte)),
            // The last byte may begin an incomplete character.
            Cuts::BeforeSpaces { and_lines } => {
                (1..text.len().saturating_sub(4)).rev().find(|&at| is_cut(text, at, and_lines))
            }
        };
        at.unwrap_or(0)
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Whether GPT-2's pattern has a boundary before byte `at`, whatever the rest of the text is.
fn is_cut(text: &[u8], at: usize, and_lines: bool) -> bool {
    // A word may begin and end with any character except whitespace; only ASCII is considered.
    let is_word = |at: usize| text.get(at).is_some_and(|byte| byte.is_ascii_graphic());
    match text[at] {
        b' ' => is_word(at - 1) && is_word(at + 1),
        b'\n' => and_lines && is_word(at - 1) && is_word(at + 1),
        _ => and_lines && text[at - 1] == b'\n' && at >= 2 && is_word(at - 2) && is_word(at),
    }
}

/// Where a tokenizer allows cuts, as far as its components are known.
fn cuts(json: &Json) -> Cuts {
    let added = json["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let looks_around = |token: &Json| {
        let is_set = |key: &str| token[key].as_bool().unwrap_or(false);
        let content = token["content"].as_str().unwrap_or_default();
        is_set("lstrip") || is_set("rstrip") || is_set("single_word") || content.contains(char::is_whitespace)
    };
    if added.iter().any(looks_around) {
        return Cuts::Nowhere;
    }
    let kind = |part: &str| json[part]["type"].as_str().unwrap_or_default().to_string();
    let option = |key: &str| json["pre_tokenizer"][key].as_bool();
    match (kind("normalizer").as_str(), kind("pre_tokenizer").as_str()) {
        ("" | "BertNormalizer" | "Lowercase", "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit") => Cuts::AtSpaces,
        ("", "ByteLevel") if option("use_regex").unwrap_or(true) => {
            Cuts::BeforeSpaces { and_lines: option("add_prefix_space") == Some(false) }
        }
        _ => Cuts::Nowhere,
    }
}

/// BERT's WordPiece over a vocabulary with one token per line, like Hugging Face's `BertTokenizerFast`.
fn word_piece(text: &str, lowercase: bool) -> Result<Json, String> {
    let mut vocabulary = serde_json::Map::new();
    for (id, token) in text.lines().enumerate() {
        vocabulary.insert(token.trim_end().to_string(), json!(id));
    }
    let special = |token: &str| match vocabulary.get(token) {
        Some(id) => Ok(id.clone()),
        None => Err(format!("no line is `{token}`")),
    };
    let (unknown, cls, sep) = (special("[UNK]")?, special("[CLS]")?, special("[SEP]")?);
    let (padding, mask) = (special("[PAD]")?, special("[MASK]")?);
    let mut added =
        [("[PAD]", padding), ("[UNK]", unknown), ("[CLS]", cls.clone()), ("[SEP]", sep.clone()), ("[MASK]", mask)];
    added.sort_by_key(|(_, id)| id.as_u64());
    let token = |(content, id): (&str, Json)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    };
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.into_iter().map(token).collect::<Vec<_>>(),
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", sep], "cls": ["[CLS]", cls]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary},
    }))
}

/// The path of a tokenizer that an experiment in `folder` names; `None` for `bytes`.
pub fn path_of(folder: &Path, written: &str) -> Option<PathBuf> {
    (written != "bytes").then(|| folder.join(written))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "text"))]
    #[test]
    fn a_build_without_tokenizers_names_the_feature() {
        assert_eq!(
            Tokenizer::read("tokenizer.json", false).unwrap_err().to_string(),
            "tokenizer.json: this build makes ids of bytes only\n\
             help: build bf16scope with `--features text`, or write `tokenizer: bytes`"
        );
    }

    #[cfg(feature = "text")]
    #[test]
    fn what_is_no_tokenizer_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        let refused = || {
            let error = Tokenizer::read(&path, false).unwrap_err().to_string();
            error.replace(&format!("{}/", folder.path().display()), "")
        };
        assert_eq!(
            refused(),
            "t.json: cannot open the tokenizer\n\
             help: `tokenizer` is a `tokenizer.json` or a `vocab.txt`, beside the experiment; `tokenizer: bytes` needs no file"
        );
        std::fs::write(&path, r#"{"model": {"dropout": 0.1}}"#).unwrap();
        assert_eq!(
            refused(),
            "t.json: its BPE has a dropout, which makes other ids each time; expected `\"dropout\": null`"
        );
        let empty = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"},
        });
        std::fs::write(&path, empty.to_string()).unwrap();
        assert_eq!(
            refused(),
            "t.json: a vocabulary of nothing; expected a `tokenizer.json` of Hugging Face's tokenizers, or BERT's `vocab.txt`, \
             one token a line"
        );
    }
}
