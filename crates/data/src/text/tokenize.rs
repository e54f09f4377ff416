//! Tokenizes files of text once: read in pieces, by threads, written in order.
//!
//! The result is a function of the files and the tokenizer alone; the cache keeps it under their names, sizes, times
//! and contents for the next run.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::str;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Serialize;
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

use super::ids::{Header, Ids, LabelType, MAX_BYTES, Record, Writer, token_ids, width};
use super::tokenizer::{Cuts, Encoder, Tokenizer};
use crate::error::{DataError, DataErrorKind, DataPlace, MAX_LISTED};
use crate::records::{Shard, check_keys, key};
use crate::source::Skipped;
use bf16scope_files::{self as files, Cache, Records as Kept};
use bf16scope_hlo::words::listed;

/// Bytes that a worker takes at a time, if the text can be cut.
const PIECE: usize = 1 << 18;
/// The largest size of a line, or of a file that cannot be cut.
const MAX_TEXT: usize = 32 << 20;
/// Smaller texts are not cached: tokenizing them takes a few milliseconds.
const MIN_KEPT: u64 = 1 << 20;
/// A new version of the tokenizing code may give other ids for the same text.
const VERSION: &str = "2 tokenizers-0.23";

/// The format of a text file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Format {
    /// One text.
    Whole,
    /// One text per line; empty lines are ignored.
    Lines,
    /// A JSON object per line.
    JsonLines {
        /// The fields of its texts: one, or two.
        fields: Vec<String>,
        /// The field of its label, and whether that is a whole number.
        label: Option<(String, bool)>,
        /// The names of labels that are strings, starting with label 0.
        classes: Vec<String>,
    },
}

/// The text to tokenize, and how.
#[derive(Clone, Debug)]
pub struct Texts {
    /// The files, in this order.
    pub files: Vec<PathBuf>,
    /// Their format.
    pub format: Format,
    /// The id after each text.
    pub separator: Option<u32>,
    /// Worker threads.
    pub n_workers: usize,
    /// The largest number of invalid texts to skip.
    pub n_skipped_max: u64,
    /// Where ids are cached, and the progress callback.
    pub cache: Cache,
}

impl Texts {
    /// Their ids, from the cache if possible.
    pub(super) fn ids(&self, tokenizer: &Tokenizer) -> Result<Ids, DataError> {
        let _span = tracing::info_span!("tokenize").entered();
        let mut shards = Vec::new();
        for path in &self.files {
            let shard = Shard::from_path(path)?;
            if shard.n_bytes == 0 {
                return Err(DataError::empty(path, "the file is empty; expected text"));
            }
            if let Some(error) = DataError::hollow(path) {
                return Err(error.help("name a file of text"));
            }
            shards.push(shard);
        }
        let n_bytes = shards.iter().map(|shard| shard.n_bytes).sum();
        let name = self.key(&shards, tokenizer);
        let cached = self.cache.dir.as_deref().filter(|_| n_bytes >= MIN_KEPT).map(token_ids);
        if let Some(cached) = &cached {
            cached.check(&name).map_err(|error| DataError::open(cached.dir(), error.into()))?;
        }
        let ids = cached.as_ref().and_then(|cached| Ids::find(&cached.path(&name), &name));
        if let Some(ids) = ids.filter(|ids| ids.header.n_skipped <= self.n_skipped_max) {
            if ids.header.n_skipped > 0 {
                tracing::warn!("{} texts are left out, as when they were tokenized", ids.header.n_skipped);
            }
            return Ok(ids);
        }
        let ids = self.build(tokenizer, cached.as_ref().map(|cached| (cached, name.as_str())), n_bytes)?;
        if let Some(cached) = &cached {
            if let Err(error) = cached.make_room(&BTreeSet::from([name.clone()])) {
                tracing::warn!("ids of text {}: {error}", cached.dir().display());
            }
            let Header { n_tokens, width, .. } = ids.header;
            tracing::info!(n_tokens, n_bytes = n_tokens * width, "ids are kept in {}", cached.dir().display());
        }
        Ok(ids)
    }

    fn key(&self, shards: &[Shard], tokenizer: &Tokenizer) -> String {
        let format = serde_json::to_string(&self.format).expect("a format is names");
        let message =
            format!("{VERSION}\n{}\n{}\n{format}\n{:?}", key(shards), tokenizer.fingerprint(), self.separator);
        bf16scope_files::hex(Sha256::digest(message))
    }

    fn label(&self) -> Option<LabelType> {
        let Format::JsonLines { label: Some((_, is_whole)), .. } = &self.format else { return None };
        Some(if *is_whole { LabelType::Int } else { LabelType::Float })
    }

    fn build(&self, tokenizer: &Tokenizer, cached: Option<(&Kept, &str)>, of: u64) -> Result<Ids, DataError> {
        let n_fields = if let Format::JsonLines { fields, .. } = &self.format { fields.len() as u64 } else { 1 };
        let (width_of_id, label) = (width(tokenizer.vocabulary()), self.label());
        let key = cached.map(|(_, key)| key.to_string()).unwrap_or_default();
        let header = Header { width: width_of_id, n_fields, label, key, ..Header::default() };
        let failed = |cause| {
            let place = cached.map_or("a temporary file".to_string(), |(cached, _)| cached.dir().display().to_string());
            not_kept(place, cause)
        };
        let mut writer = match Writer::new(cached, header.clone()) {
            Err(error) if cached.is_some() => {
                tracing::warn!("{}; ids are made again each time", failed(error));
                Writer::new(None, header).map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        let skipped = Skipped::new(self.n_skipped_max);
        let n_workers = self.n_workers.max(1);
        let encoders: Vec<_> = (0..n_workers).map(|_| Mutex::new(Encoder::new(tokenizer))).collect();
        let mut pieces = Pieces { texts: self, cuts: self.cuts(tokenizer), file: 0, open: None };
        let (mut done, mut number) = (0, 0u64);
        loop {
            let mut round = Vec::new();
            while round.len() < 4 * n_workers {
                match pieces.next()? {
                    Some(piece) => round.push(piece),
                    None => break,
                }
            }
            if round.is_empty() {
                break;
            }
            for (piece, made) in round.iter().zip(self.work(&round, &encoders)) {
                let base = writer.n_tokens();
                writer.ids(&made.ids).map_err(failed)?;
                for item in made.items {
                    match item {
                        Ok(mut record) => {
                            record.ends.iter_mut().for_each(|end| *end += base);
                            writer.record(&record).map_err(failed)?;
                        }
                        Err(error) => skipped.add(number, error)?,
                    }
                    number += 1;
                }
                done += piece.text.len() as u64;
            }
            if writer.n_tokens().saturating_mul(width(tokenizer.vocabulary())) > MAX_BYTES {
                return Err(too_many(&self.files[0], MAX_BYTES / width(tokenizer.vocabulary())));
            }
            self.cache.on_bytes.tell(done, of);
        }
        self.cache.on_bytes.tell(of, of);
        if writer.n_records() == 0 {
            return Err(DataError::empty(&self.files[0], "nothing in it but empty lines; expected text"));
        }
        writer.finish(skipped.n()).map_err(failed)
    }

    fn cuts(&self, tokenizer: &Tokenizer) -> Option<Cuts> {
        (self.format == Format::Whole).then(|| tokenizer.cuts())
    }

    /// Tokenizes pieces, in order.
    fn work(&self, pieces: &[Piece], encoders: &[Mutex<Encoder<'_>>]) -> Vec<Made> {
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Made>> = pieces.iter().map(|_| Mutex::default()).collect();
        let work = |encoder: &Mutex<Encoder<'_>>| {
            let mut encoder = encoder.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let slot = next.fetch_add(1, Ordering::Relaxed);
                let Some(piece) = pieces.get(slot) else { break };
                *results[slot].lock().unwrap_or_else(PoisonError::into_inner) = self.make(piece, &mut encoder);
            }
        };
        thread::scope(|scope| {
            let others = encoders.iter().skip(1).take(pieces.len().saturating_sub(1));
            others.for_each(|encoder| drop(scope.spawn(|| work(encoder))));
            work(&encoders[0]);
        });
        results.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    fn make(&self, piece: &Piece, encoder: &mut Encoder<'_>) -> Made {
        let mut result = Made::default();
        let path = &self.files[piece.file];
        if self.format == Format::Whole {
            let place = || path.display().to_string();
            let item = check(&piece.text, encoder, piece.at, place)
                .and_then(|()| encode(encoder, &piece.text, &mut result.ids, place));
            match item {
                Err(error) => result.items.push(Err(error)),
                Ok(()) if piece.is_last => {
                    result.ids.extend(self.separator);
                    result.items.push(Ok(Record {
                        ends: vec![result.ids.len() as u64],
                        file: piece.file as u64,
                        ..Record::default()
                    }));
                }
                Ok(()) => {}
            }
            return result;
        }
        let mut at = 0;
        for (line, whole) in (piece.line..).zip(piece.text.split_inclusive(|&byte| byte == b'\n')) {
            let start = at;
            at += whole.len();
            let text = whole.strip_suffix(b"\n").unwrap_or(whole);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            if text.is_empty() {
                continue;
            }
            let place = || format!("{}:{line}", path.display());
            let before = result.ids.len();
            let record = check(text, encoder, piece.at + start as u64, place)
                .and_then(|()| self.record(text, encoder, &mut result.ids, place));
            result.items.push(match record {
                Ok(record) => Ok(Record { file: piece.file as u64, line, ..record }),
                Err(error) => {
                    result.ids.truncate(before);
                    Err(error)
                }
            });
        }
        result
    }

    /// The record of a line.
    fn record(
        &self,
        text: &[u8],
        encoder: &mut Encoder<'_>,
        ids: &mut Vec<u32>,
        place: impl Fn() -> String + Copy,
    ) -> Result<Record, DataError> {
        let mut record = Record::default();
        let Format::JsonLines { fields, label, classes } = &self.format else {
            encode(encoder, text, ids, place)?;
            ids.extend(self.separator);
            record.ends.push(ids.len() as u64);
            return Ok(record);
        };
        let object: Map<String, Json> = serde_json::from_slice(text).map_err(|e| no_json(place(), &of_one_line(&e)))?;
        check_keys(text).map_err(|e| no_json(place(), &of_one_line(&e)))?;
        let get = |field: &String| object.get(field).ok_or_else(|| no_field(place(), field, object.keys()));
        for (number, field) in fields.iter().enumerate() {
            let Some(text) = get(field)?.as_str() else {
                let what = format!("field `{field}`");
                return Err(DataError::mismatch(place(), &what, kind(&object[field]), "a string"));
            };
            encode(encoder, text.as_bytes(), ids, place)?;
            if number + 1 == fields.len() {
                ids.extend(self.separator);
            }
            record.ends.push(ids.len() as u64);
        }
        if let Some((field, is_whole)) = label {
            let value = get(field)?;
            let bits = label_bits(value, *is_whole, classes);
            record.label = bits.map_err(|expected| {
                let measured = match value {
                    Json::String(_) | Json::Number(_) => value.to_string(),
                    other => kind(other).to_string(),
                };
                DataError::mismatch(place(), &format!("field `{field}`"), &measured, &expected)
            })?;
        }
        Ok(record)
    }
}

/// The bits of a label, or a description of what is expected.
fn label_bits(value: &Json, is_whole: bool, classes: &[String]) -> Result<u64, String> {
    let whole = match value {
        Json::Bool(value) => Some(i64::from(*value)),
        Json::Number(value) => value.as_i64(),
        Json::String(name) => match classes.iter().position(|class| class == name) {
            Some(class) => Some(class as i64),
            None if classes.is_empty() => {
                return Err("a number, or names of `classes` under `tokens`: `classes: [no, yes]`".to_string());
            }
            None => return Err(format!("one of {}", classes.join(", "))),
        },
        _ => None,
    };
    match (is_whole, whole, value.as_f64()) {
        (true, Some(whole), _) => Ok(whole as u64),
        (true, None, _) => Err("a whole number".to_string()),
        (false, Some(whole), _) => Ok((whole as f64).to_bits()),
        (false, None, Some(value)) => Ok(value.to_bits()),
        (false, None, None) => Err("a number".to_string()),
    }
}

/// A message for invalid JSON in a line; the caller reports the line's number.
fn of_one_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a truth value",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

fn check(text: &[u8], encoder: &Encoder<'_>, at: u64, place: impl Fn() -> String) -> Result<(), DataError> {
    if encoder.takes_bytes() {
        return Ok(());
    }
    let error = |e: str::Utf8Error| {
        let at = at + e.valid_up_to() as u64;
        let message = format!("byte {at} of the file is not UTF-8; expected text in UTF-8");
        let help = "convert it (`iconv -f LATIN1 -t UTF-8`), or take bytes as they are: `tokenizer: bytes`";
        DataError::new(DataErrorKind::Format, place(), message).help(help)
    };
    str::from_utf8(text).map(drop).map_err(error)
}

fn encode(
    encoder: &mut Encoder<'_>,
    text: &[u8],
    ids: &mut Vec<u32>,
    place: impl Fn() -> String,
) -> Result<(), DataError> {
    let refused = |message: String| {
        let message = format!("the tokenizer makes no ids of it: {message}");
        DataError::new(DataErrorKind::Mismatch, place(), message)
    };
    encoder.encode(text, ids).map_err(refused)
}

fn too_many(path: &Path, limit: u64) -> DataError {
    let message = format!("more than {limit} tokens; expected a data set of fewer: split it");
    DataError::new(DataErrorKind::TooLarge, path, message)
}

/// The error for ids that cannot be stored on disk.
pub(super) fn not_kept(place: impl Into<DataPlace>, cause: std::io::Error) -> DataError {
    DataError::new(DataErrorKind::Write, place, "cannot keep the ids of the text").because(cause)
}

fn no_json(place: String, message: &str) -> DataError {
    let message = format!("no JSON object: {message}; expected one a line, such as {{\"text\": \"…\"}}");
    DataError::new(DataErrorKind::Format, place, message)
}

fn no_field<'n>(place: String, field: &str, names: impl Iterator<Item = &'n String>) -> DataError {
    let message = format!("there is no field `{field}`; it has {}", listed(names, MAX_LISTED));
    let help = "name the fields under `tokens`: `field: …`, `label: …`; or leave such lines out: `on_error: {skip: N}` under \
                `data`";
    DataError::new(DataErrorKind::Missing, place, message).help(help)
}

/// The result for a piece: its ids, and the records that end in it.
#[derive(Debug, Default)]
struct Made {
    ids: Vec<u32>,
    items: Vec<Result<Record, DataError>>,
}

/// Part of a file: whole lines, or a range that can be tokenized separately.
#[derive(Debug)]
struct Piece {
    file: usize,
    /// Bytes of the file before it.
    at: u64,
    /// The number of its first line.
    line: u64,
    text: Vec<u8>,
    /// Whether the file ends here.
    is_last: bool,
}

/// The files, in pieces.
struct Pieces<'t> {
    texts: &'t Texts,
    /// Where texts can be cut, if a text is a whole file.
    cuts: Option<Cuts>,
    file: usize,
    open: Option<Open>,
}

struct Open {
    reader: BufReader<File>,
    at: u64,
    line: u64,
    rest: Vec<u8>,
}

impl Pieces<'_> {
    fn next(&mut self) -> Result<Option<Piece>, DataError> {
        let Some(path) = self.texts.files.get(self.file) else { return Ok(None) };
        if self.open.is_none() {
            let failed = |cause| DataError::open(path, cause);
            let reader = BufReader::with_capacity(1 << 16, files::open(path).map_err(failed)?);
            self.open = Some(Open { reader, at: 0, line: 1, rest: Vec::new() });
        }
        let open = self.open.as_mut().expect("it is open now");
        let mut wanted = PIECE;
        loop {
            let missing = wanted.saturating_sub(open.rest.len()) as u64;
            let n = (&mut open.reader).take(missing).read_to_end(&mut open.rest);
            let n = n.map_err(|cause| DataError::read(path, cause))?;
            let is_last = (n as u64) < missing;
            let cut = match self.cuts {
                _ if is_last => open.rest.len(),
                Some(cuts) => cuts.last(&open.rest),
                None => memchr::memrchr(b'\n', &open.rest).map_or(0, |at| at + 1),
            };
            if cut == 0 && !is_last {
                if wanted >= MAX_TEXT {
                    return Err(self.too_long(path));
                }
                wanted = (2 * wanted).min(MAX_TEXT);
                continue;
            }
            let after = open.rest.split_off(cut);
            let text = std::mem::replace(&mut open.rest, after);
            let piece = Piece { file: self.file, at: open.at, line: open.line, is_last, text };
            open.at += cut as u64;
            open.line += memchr::memchr_iter(b'\n', &piece.text).count() as u64;
            if is_last {
                self.open = None;
                self.file += 1;
            }
            return Ok(Some(piece));
        }
    }

    fn too_long(&self, path: &Path) -> DataError {
        let (limit, line) = (MAX_TEXT as u64, self.open.as_ref().map_or(1, |open| open.line));
        let (place, help) = match self.cuts {
            Some(_) => (
                DataPlace::from(path),
                "the ids of such a tokenizer may depend on the whole text: make each line a text, `by: line`, or split the file",
            ),
            None => ((path, line).into(), "split the line, or take the file as one text: `by: file`"),
        };
        let message = format!("a text of more than {limit} bytes; expected shorter ones");
        DataError::new(DataErrorKind::TooLarge, place, message).help(help)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_of_another_form_is_told_the_form() {
        let classes = ["no".to_string(), "yes".to_string()];
        assert_eq!(label_bits(&Json::from("yes"), true, &classes), Ok(1));
        for (label, is_whole, classes, expected) in [
            (Json::from("yes"), true, &[][..], "a number, or names of `classes` under `tokens`: `classes: [no, yes]`"),
            (Json::from("maybe"), true, &classes, "one of no, yes"),
            (Json::from(0.5), true, &[], "a whole number"),
            (Json::Null, false, &[], "a number"),
        ] {
            assert_eq!(label_bits(&label, is_whole, classes), Err(expected.to_string()));
        }
    }

    #[test]
    fn texts_that_are_too_long_are_told_what_else_to_do() {
        let texts = Texts {
            files: vec![PathBuf::from("a.txt")],
            format: Format::Lines,
            separator: None,
            n_workers: 1,
            n_skipped_max: 0,
            cache: Cache::default(),
        };
        for (cuts, expected) in [
            (
                Some(Cuts::Nowhere),
                "a.txt: a text of more than 33554432 bytes; expected shorter ones\n\
                 help: the ids of such a tokenizer may depend on the whole text: make each line a text, `by: line`, or split \
                 the file",
            ),
            (
                None,
                "a.txt:1: a text of more than 33554432 bytes; expected shorter ones\n\
                 help: split the line, or take the file as one text: `by: file`",
            ),
        ] {
            let pieces = Pieces { texts: &texts, cuts, file: 0, open: None };
            assert_eq!(pieces.too_long(&texts.files[0]).to_string(), expected);
        }
        assert_eq!(
            too_many(&texts.files[0], 7).to_string(),
            "a.txt: more than 7 tokens; expected a data set of fewer: split it"
        );
    }

    #[test]
    fn ids_that_cannot_be_kept_are_told_with_their_place() {
        let error = not_kept("a temporary file".to_string(), std::io::Error::other("full"));
        assert_eq!(error.to_string(), "a temporary file: cannot keep the ids of the text");
    }
}
