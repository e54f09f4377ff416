//! Windows, packs and single texts, by number.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::ids::{Ids, LabelType, Record};
use super::mask::Rule;
use super::tokenize::{Format, Texts, not_kept};
use super::tokenizer::{Frame, Tokenizer};
use super::{By, Fields, Length, Options};
use crate::error::{DataError, DataErrorKind};
use crate::random::Draw;
use crate::source::{ArrayInfo, Elements, Fingerprint, Reading, Source, Spent, Take};
use bf16scope_hlo::DType;

/// Text as a [`Source`]; [`Options`] determines its arrays.
#[derive(Clone, Debug)]
pub struct TextExamples {
    inner: Arc<Inner>,
    first: u64,
    n_examples: u64,
}

#[derive(Debug)]
struct Inner {
    ids: Ids,
    files: Vec<PathBuf>,
    shape: Shape,
    length: usize,
    frame: Frame,
    pad: i32,
    mask: Option<Rule>,
    infos: Vec<ArrayInfo>,
    /// For packs: each pack's first text, and the index of the first id in it.
    packs: Vec<(u64, u64)>,
    greatest_id: u32,
    fingerprint: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Window { stride: u64 },
    Pack,
    Single,
}

/// An example under construction.
#[derive(Debug, Default)]
struct Example {
    tokens: Vec<i32>,
    segments: Vec<i32>,
    positions: Vec<i32>,
    /// The following token; 0 at the end.
    next: Vec<i32>,
    has_next: Vec<bool>,
    label: u64,
}

impl Example {
    fn push(&mut self, id: i32, segment: u32, position: usize) {
        self.tokens.push(id);
        self.segments.push(segment as i32);
        self.positions.push(position as i32);
    }

    /// Marks the tokens from `start` on as one text.
    fn end_text(&mut self, start: usize) {
        self.next.extend(&self.tokens[start + 1..]);
        self.next.push(0);
        self.has_next.resize(self.tokens.len() - 1, true);
        self.has_next.push(false);
    }
}

impl Options {
    /// The format of text files, with `is_json` for JSON lines; `is_whole` says whether a label is a whole number.
    pub fn format(&self, is_json: bool, is_whole: bool) -> Format {
        let by = self.by.unwrap_or(if self.window.is_some() { By::File } else { By::Line });
        match (is_json, by) {
            (true, _) => Format::JsonLines {
                fields: self.field.clone().map_or_else(|| vec!["text".to_string()], |Fields(fields)| fields),
                label: self.label.clone().map(|label| (label, is_whole)),
                classes: self.classes.clone(),
            },
            (false, By::File) => Format::Whole,
            (false, By::Line) => Format::Lines,
        }
    }

    /// The separator's id, if there is a separator.
    ///
    /// # Errors
    /// The tokenizer does not have the token.
    pub fn separator_id(&self, tokenizer: &Tokenizer) -> Result<Option<u32>, DataError> {
        self.separator
            .as_ref()
            .map(|token| id(tokenizer, token, "stands between texts", "name another `separator`"))
            .transpose()
    }
}

fn id(tokenizer: &Tokenizer, token: &str, purpose: &'static str, help: &'static str) -> Result<u32, DataError> {
    tokenizer.id(token).ok_or_else(|| {
        let message = format!("there is no token `{token}`, which {purpose}; expected one of the tokenizer's");
        DataError::new(DataErrorKind::Missing, tokenizer.name(), message).help(help)
    })
}

impl TextExamples {
    /// The examples of `texts`; tokenizes them now unless the cache has their ids.
    ///
    /// # Errors
    /// Files that cannot be read or are not text; tokens that the tokenizer does not have; less text than one example
    /// needs.
    pub fn new(texts: &Texts, tokenizer: &Tokenizer, options: &Options) -> Result<TextExamples, DataError> {
        let (shape, length) = match (options.window, options.pack, options.max_length) {
            (Some(Length(n)), _, _) => (Shape::Window { stride: options.stride.unwrap_or(Length(n)).0 }, n),
            (None, Some(Length(n)), _) => (Shape::Pack, n),
            (None, None, length) => (Shape::Single, length.map_or(128, |Length(n)| n)),
        };
        let n_fields = if let Format::JsonLines { fields, .. } = &texts.format { fields.len() } else { 1 };
        let frame = match shape {
            Shape::Window { .. } => Frame::default(),
            Shape::Pack if texts.separator.is_some() => Frame::default(),
            Shape::Pack | Shape::Single => tokenizer.frame(n_fields),
        };
        if frame.len() as u64 >= length {
            let what = format!("{} that the tokenizer puts around a text, and one of it", frame.len());
            let expected = frame.len() as u64 + 1;
            return Err(short(&texts.files[0], length, expected, &what));
        }
        let pad = match &options.pad {
            Some(token) => id(tokenizer, token, "fills examples", "name another `pad`")?,
            None => ["[PAD]", "<pad>"].iter().find_map(|token| tokenizer.id(token)).unwrap_or(0),
        };
        let mask = options.mask.as_ref().map(|mask| -> Result<Rule, DataError> {
            let help = "name the token under `mask`: `{token: …}`";
            let special = tokenizer.special_ids();
            Ok(Rule {
                share: mask.share,
                max: mask.max.map_or(usize::MAX, |max| max as usize),
                mask: id(tokenizer, &mask.token, "stands for masked ones", help)? as i32,
                vocabulary: tokenizer.vocabulary(),
                special,
            })
        });
        let mask = mask.transpose()?;
        let ids = texts.ids(tokenizer)?;
        let around = frame.around.iter().flatten().map(|(id, _)| *id).max().unwrap_or(0);
        let of_mask = mask.as_ref().map_or(0, |rule| rule.vocabulary - 1);
        let filler = if matches!(shape, Shape::Window { .. }) { 0 } else { pad };
        let greatest_id = ids.header.greatest_id.max(around).max(of_mask).max(filler);
        let infos = infos(shape, length as i64, ids.header.label, mask.is_some());
        let settings = json!({"options": options, "tokenizer": tokenizer.fingerprint(), "ids": ids.header.fingerprint});
        let fingerprint = hex(settings.to_string().as_bytes());
        let files = texts.files.clone();
        let mut inner = Inner {
            ids,
            files,
            shape,
            length: length as usize,
            frame,
            pad: pad as i32,
            mask,
            infos,
            packs: Vec::new(),
            greatest_id,
            fingerprint,
        };
        let n_examples = match shape {
            Shape::Window { stride } => {
                let needed = length + u64::from(inner.mask.is_none());
                let measured = inner.ids.header.n_tokens;
                let Some(rest) = measured.checked_sub(needed) else {
                    let what = match inner.mask {
                        Some(_) => format!("`window: {length}`"),
                        None => format!("`window: {length}`, and the token after it"),
                    };
                    return Err(short(&texts.files[0], measured, needed, &what));
                };
                rest / stride + 1
            }
            Shape::Pack => {
                inner.packs = inner.pack().map_err(|cause| not_kept(&inner.files[0], cause))?;
                inner.packs.len() as u64
            }
            Shape::Single => inner.ids.header.n_records,
        };
        Ok(TextExamples { inner: Arc::new(inner), first: 0, n_examples })
    }

    /// The largest id that may occur in an example.
    pub fn greatest_id(&self) -> u32 {
        self.inner.greatest_id
    }

    /// The number of ids in the texts.
    pub fn n_tokens(&self) -> u64 {
        self.inner.ids.header.n_tokens
    }

    /// Cuts the last `n_test` examples off, in order: (training, test). Windows that overlap those for testing are in
    /// neither.
    ///
    /// # Errors
    /// One of the two would be empty.
    pub fn split_tail(self, n_test: u64) -> Result<(TextExamples, TextExamples), DataError> {
        let n_overlapping = match self.inner.shape {
            Shape::Window { stride } => (self.inner.length as u64).div_ceil(stride) - 1,
            Shape::Pack | Shape::Single => 0,
        };
        let n_train =
            self.n_examples.checked_sub(n_test.saturating_add(n_overlapping)).filter(|&n| n > 0 && n_test > 0);
        let Some(n_train) = n_train else {
            let overlapping = match n_overlapping {
                0 => String::new(),
                n => format!(" beside {n} that overlap them"),
            };
            return Err(DataError::split(n_test, format!("the text makes {}", self.n_examples), &overlapping));
        };
        let first = self.first + self.n_examples - n_test;
        let test = TextExamples { inner: Arc::clone(&self.inner), first, n_examples: n_test };
        Ok((TextExamples { n_examples: n_train, ..self }, test))
    }

    /// The same arrays under other names: each pair is the new name, and the present one.
    pub fn renamed(mut self, pairs: &[(String, String)]) -> TextExamples {
        let Some(inner) = Arc::get_mut(&mut self.inner) else { return self };
        let infos = inner.infos.clone();
        for (feature, array) in pairs {
            if let Some(at) = infos.iter().position(|info| info.name == *array) {
                inner.infos[at].name.clone_from(feature);
            }
        }
        self
    }
}

/// The error for less text than one example needs.
fn short(path: &Path, measured: u64, expected: u64, what: &str) -> DataError {
    let error = DataError::empty(path, &format!("{measured} tokens; expected {expected} at least: {what}"));
    error.help("shorten it, or name more text")
}

fn hex(bytes: &[u8]) -> String {
    bf16scope_files::hex(Sha256::digest(bytes))
}

fn infos(shape: Shape, length: i64, label: Option<LabelType>, is_masked: bool) -> Vec<ArrayInfo> {
    let info = |name, dtype| ArrayInfo::new(name, dtype, [length]);
    let labels = match label {
        Some(LabelType::Int) => ArrayInfo::new("labels", DType::S64, []),
        Some(LabelType::Float) => ArrayInfo::new("labels", DType::F64, []),
        None => info("labels", DType::S32),
    };
    let mut infos = vec![info("tokens", DType::S32), labels];
    if is_masked || !matches!(shape, Shape::Window { .. }) {
        infos.push(info("weights", DType::F32));
    }
    if !matches!(shape, Shape::Window { .. }) {
        infos.push(info("segments", DType::S32));
        infos.push(info("positions", DType::S32));
    }
    infos
}

impl Inner {
    /// Where packs begin: a text goes into the current pack if it fits, else it starts the next one.
    fn pack(&self) -> std::io::Result<Vec<(u64, u64)>> {
        let mut packs = Vec::new();
        let mut at = (0, 0);
        while at.0 < self.ids.header.n_records {
            packs.push(at);
            at = self.pieces(at, |_, _, _| Ok(()))?;
        }
        Ok(packs)
    }

    /// Calls `take` for each text of the pack that begins at a text and an id index, with the record and the range of
    /// its ids; returns where the next pack begins.
    fn pieces(
        &self,
        (mut number, mut offset): (u64, u64),
        mut take: impl FnMut(&Record, u64, u64) -> std::io::Result<()>,
    ) -> std::io::Result<(u64, u64)> {
        let (length, around) = (self.length as u64, self.frame.len() as u64);
        let mut left = length;
        while number < self.ids.header.n_records {
            let record = self.ids.record(number)?;
            let end = *record.ends.last().expect("a record has a text");
            let begin = record.start + offset;
            let n = (end - begin).min(length - around);
            if n + around > left {
                break;
            }
            take(&record, begin, begin + n)?;
            left -= n + around;
            // A text that was cut continues in the next piece.
            (number, offset) = if begin + n < end { (number, offset + n) } else { (number + 1, 0) };
        }
        Ok((number, offset))
    }

    /// Adds the texts of a record, from `begin` to `end`, in their frame.
    fn add(
        &self,
        example: &mut Example,
        record: &Record,
        begin: u64,
        end: u64,
        segment: Option<u32>,
    ) -> std::io::Result<()> {
        let start = example.tokens.len();
        let segment_or = |default: u32| segment.unwrap_or(default);
        let n_max = self.length - self.frame.len();
        let first_end = record.ends[0].clamp(begin, end);
        let mut lengths = vec![(first_end - begin) as usize];
        if record.ends.len() > 1 {
            lengths.push((end - first_end) as usize);
        }
        let n_kept = truncated(&lengths, n_max);
        let mut at = begin;
        for (number, (&n, &keep)) in lengths.iter().zip(&n_kept).enumerate() {
            for &(id, default) in &self.frame.around[number] {
                example.push(id as i32, segment_or(default), example.tokens.len() - start);
            }
            let mut ids = vec![0; keep];
            self.ids.read(at, &mut ids)?;
            for id in ids {
                example.push(id, segment_or(self.frame.segments[number]), example.tokens.len() - start);
            }
            at += n as u64;
        }
        for &(id, default) in &self.frame.around[2] {
            example.push(id as i32, segment_or(default), example.tokens.len() - start);
        }
        if example.tokens.len() > start {
            example.end_text(start);
        }
        Ok(())
    }

    fn example(&self, index: u64) -> std::io::Result<Example> {
        let mut example = Example::default();
        match self.shape {
            Shape::Window { stride } => {
                let is_next = self.mask.is_none();
                let mut ids = vec![0; self.length + usize::from(is_next)];
                self.ids.read(index * stride, &mut ids)?;
                if is_next {
                    example.next = ids.split_off(1);
                    ids.extend(&example.next[..self.length - 1]);
                    example.has_next = vec![true; self.length];
                }
                example.tokens = ids;
            }
            Shape::Pack => {
                let mut segment = 0;
                self.pieces(self.packs[index as usize], |record, begin, end| {
                    segment += 1;
                    self.add(&mut example, record, begin, end, Some(segment))
                })?;
            }
            Shape::Single => {
                let record = self.ids.record(index)?;
                example.label = record.label;
                let end = *record.ends.last().expect("a record has a text");
                self.add(&mut example, &record, record.start, end, None)?;
            }
        }
        Ok(example)
    }

    /// The arrays of an example.
    fn arrays_of(&self, index: u64, draw: Draw) -> std::io::Result<Vec<Cow<'_, [u8]>>> {
        let mut example = self.example(index)?;
        let n = example.tokens.len();
        let mut labels = std::mem::take(&mut example.next);
        let has_label = self.ids.header.label.is_some() && self.shape == Shape::Single;
        let mut weights: Vec<f32> = match (has_label, &self.mask) {
            (true, _) => vec![1.0; n],
            (false, None) => example.has_next.iter().map(|&has| f32::from(u8::from(has))).collect(),
            (false, Some(_)) => vec![0.0; n],
        };
        if let Some(mask) = &self.mask {
            labels.clone_from(&example.tokens);
            mask.run(&mut example.tokens, n, draw).into_iter().for_each(|at| weights[at] = 1.0);
        }
        labels.resize(self.length, 0);
        weights.resize(self.length, 0.0);
        example.tokens.resize(self.length, self.pad);
        example.segments.resize(self.length, 0);
        example.positions.resize(self.length, 0);
        let bytes = |numbers: &[i32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let labels = if has_label { example.label.to_le_bytes().to_vec() } else { bytes(&labels) };
        let mut arrays = vec![bytes(&example.tokens), labels];
        if self.infos.len() > 2 {
            arrays.push(weights.iter().flat_map(|weight| weight.to_le_bytes()).collect());
        }
        if self.infos.len() > 3 {
            arrays.extend([bytes(&example.segments), bytes(&example.positions)]);
        }
        Ok(arrays.into_iter().map(Cow::Owned).collect())
    }
}

/// How many ids of texts with these lengths to keep if only `n_max` fit: of a pair, the longer one is cut first, like
/// Hugging Face's `longest_first`.
fn truncated(lengths: &[usize], n_max: usize) -> Vec<usize> {
    let &[first, second] = lengths else { return lengths.iter().map(|&n| n.min(n_max)).collect() };
    if first + second <= n_max {
        return lengths.to_vec();
    }
    let (short, half) = (first.min(second), n_max / 2);
    // If both texts of a pair are too long, the second gets the odd id, unless the first is the longer.
    let short = short.min(half);
    match first > second {
        true => vec![n_max - short, short],
        false => vec![short, n_max - short],
    }
}

impl TextExamples {
    fn drawn(&self, index: u64, draw: Draw) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        if index >= self.n_examples {
            return Err(DataError::no_example(self.place(index), self.n_examples));
        }
        self.inner.arrays_of(self.first + index, draw).map_err(|cause| DataError::read(self.place(index), cause))
    }
}

impl Source for TextExamples {
    fn n_examples(&self) -> u64 {
        self.n_examples
    }

    fn arrays(&self) -> &[ArrayInfo] {
        &self.inner.infos
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        // Drawn once: an evaluation masks the same tokens each time.
        self.drawn(index, Draw::without_epoch(0, self.first + index))
    }

    fn give(&self, index: u64, draw: Option<Draw>, take: &mut Take<'_>) -> Result<Option<Spent>, DataError> {
        let example = draw.map_or_else(|| self.read(index), |draw| self.drawn(index, draw))?;
        example.iter().enumerate().try_for_each(|(array, bytes)| take(array, Elements::Bytes(bytes)))?;
        Ok(None)
    }

    fn place(&self, index: u64) -> String {
        let inner = &*self.inner;
        let index = self.first + index.min(self.n_examples - 1);
        let number = match inner.shape {
            Shape::Window { stride } => {
                let start = index * stride;
                return format!("{}, tokens {start} to {}", inner.files[0].display(), start + inner.length as u64);
            }
            Shape::Pack => inner.packs[index as usize].0,
            Shape::Single => index,
        };
        let record = inner.ids.record(number).unwrap_or_default();
        let file = inner.files.get(record.file as usize).unwrap_or(&inner.files[0]);
        match record.line {
            0 => file.display().to_string(),
            line => format!("{}:{line}", file.display()),
        }
    }

    fn fingerprint(&self) -> Fingerprint {
        let hashed = |info: &ArrayInfo| {
            let message = format!("{} {} {} {}", self.inner.fingerprint, info.name, self.first, self.n_examples);
            (info.name.clone(), hex(message.as_bytes()))
        };
        Fingerprint { n_examples: self.n_examples, arrays: self.inner.infos.iter().map(hashed).collect() }
    }

    fn reading(&self) -> Reading {
        Reading { n_workers: 1, is_costly: true }
    }
}
