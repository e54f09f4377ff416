//! The part of the `data` block that names text: which files, what makes ids of them, and what an example is.

use super::data::{DataConfig, Examples, wrong_in};
use super::lines::ReadFrom;
use super::records::{Patterns, Tolerance};
use crate::data::records;
use crate::data::text::{Length, Mask, Options, TextExamples, Texts, Tokenizer, path_of};
use crate::data::{Feature, FeatureDType, Source};
use crate::document::{Node, NodeError, Step, Value};
use crate::train::TrainError;
use std::path::{Path, PathBuf};

/// Says that every place counts in the loss and the accuracy of a model that takes no weights, where some should not.
fn warn_of_padding(document: &ReadFrom, path: &Path, tokens: &Options) {
    let (option, what, other) = match (tokens.mask.is_some(), tokens.pack.is_some(), tokens.max_length.is_some()) {
        (true, ..) => ("mask", "what was not chosen", ""),
        (_, true, _) => ("pack", "what fills up rows", "; `window` fills up none"),
        (.., true) => ("max_length", "what fills up rows", "; `window` fills up none"),
        _ => return,
    };
    let way = vec![Step::Key("data".to_string()), Step::Key("tokens".to_string()), Step::KeyItself(option.to_string())];
    let message = format!("the model takes no `weights`, so {what} counts in its loss and accuracy");
    let help = format!(
        "`kind: layers` takes `example_weights: weights` in its loss, and `labels: {{weights: [N]}}`{other} \
         (docs/EXPERIMENTS.md)"
    );
    tracing::warn!("{}", document.error(path, NodeError::new(way, message).with_help(help)));
}

impl DataConfig {
    /// Whether the examples are text.
    pub(super) fn is_text(&self) -> bool {
        self.text.is_some() || self.jsonl.is_some()
    }

    /// What makes ids of text in an experiment that was read from `path`; `None` where `data` has no `tokens`.
    ///
    /// # Errors
    /// A tokenizer's file that cannot be read.
    pub fn tokenizer(&self, path: &Path) -> Result<Option<Tokenizer>, TrainError> {
        self.tokens.as_ref().map(|tokens| tokenizer(&self.document, path, tokens)).transpose()
    }

    /// The examples where they are text; `None` where `data` names something else.
    pub(super) fn read_text(&self, path: &Path, features: &[Feature]) -> Result<Option<Examples>, TrainError> {
        let wrong = |keys: &[&str], measured: &str, expected: &str| {
            Err(wrong_in(&self.document, path, keys, measured, expected))
        };
        let key = match (&self.text, &self.jsonl) {
            (None, None) if self.tokens.is_some() => {
                return wrong(&["tokens"], "`tokens` without text", "`text: FILES` or `jsonl: FILES` with it");
            }
            (None, None) => return Ok(None),
            (Some(_), _) => "text",
            (None, Some(_)) => "jsonl",
        };
        let others = [
            ("csv", self.csv.is_some()),
            ("npz", self.npz.is_some()),
            ("idx", self.idx.is_some()),
            ("mnist", self.mnist.is_some()),
            ("tfrecord", self.tfrecord.is_some()),
            ("webdataset", self.webdataset.is_some()),
            ("parquet", self.parquet.is_some()),
            ("images", self.images.is_some()),
            ("jsonl", key == "text" && self.jsonl.is_some()),
        ];
        if let Some((other, _)) = others.iter().find(|(_, is_set)| *is_set) {
            return wrong(&[other], &format!("`{other}` beside `{key}`"), "one of them");
        }
        if !self.features.is_empty() || self.scale.is_some() {
            let other = if self.scale.is_some() { "scale" } else { "features" };
            return wrong(&[other], &format!("`{other}` beside `{key}`"), "it without: text becomes ids");
        }
        if self.workers == Some(0) {
            return wrong(&["workers"], "`workers: 0`", "1 at least, or none said: as many as there are cores");
        }
        let Some(tokens) = &self.tokens else {
            let expected = "`tokens: {tokenizer: bytes, window: 128}`, which says how it becomes examples";
            return wrong(&[key], &format!("`{key}` without `tokens`"), expected);
        };
        if let Some((option, measured, expected)) = fault(tokens, self.jsonl.is_some()) {
            return wrong(&["tokens", option], &measured, expected);
        }
        let array = |feature: &Feature| self.arrays.get(&feature.name).unwrap_or(&feature.name).clone();
        let read = features.iter().find(|feature| array(feature) == "tokens").map(|feature| &feature.dims[..]);
        let lengths = [("window", tokens.window), ("pack", tokens.pack), ("max_length", tokens.max_length)];
        let made = lengths.into_iter().find_map(|(option, length)| Some((option, length?)));
        if let (Some(&[read]), Some((option, Length(made)))) = (read, made)
            && u64::try_from(read).is_ok_and(|read| read != made)
        {
            let expected =
                format!("`{option}: {read}`, as many tokens as the model reads, or a model that reads {made}");
            return wrong(&["tokens", option], &format!("`{option}: {made}`"), &expected);
        }
        let weights = features.iter().find(|feature| array(feature) == "weights");
        if let (Some(weights), Some((_, Length(made)))) = (weights, made)
            && weights.dims.is_empty()
        {
            let measured =
                format!("`weights` of [{made}], one for each token, where `{}` is one for each example", weights.name);
            let expected = format!("`labels: {{{}: [{made}]}}` beside the `loss` under `model`", weights.name);
            return wrong(&["tokens"], &measured, &expected);
        }
        if weights.is_none() && tokens.label.is_none() {
            warn_of_padding(&self.document, path, tokens);
        }
        let tokenizer = tokenizer(&self.document, path, tokens)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let examples = |text: Option<&Patterns>, jsonl: Option<&Patterns>| {
            let Patterns(patterns) = text.or(jsonl).expect("one of them is asked for");
            let files = records::files(folder, patterns).and_then(|files| records::local(files, self.cache.as_deref()));
            self.examples(path, files?, jsonl.is_some(), features, tokens, &tokenizer)
        };
        let whole = || examples(self.text.as_ref(), self.jsonl.as_ref());
        let (training, test) = match (self.n_test, &self.test) {
            (Some(n_test), None) => whole()?.split_tail(n_test)?,
            (None, Some(test)) => {
                let found = (test.text.is_some(), test.jsonl.is_some());
                let is_other =
                    test.csv.is_some() || test.npz.is_some() || test.idx.is_some() || test.tfrecord.is_some();
                let is_other = is_other || test.webdataset.is_some() || test.parquet.is_some() || test.images.is_some();
                if found != (self.text.is_some(), self.jsonl.is_some()) || is_other {
                    let expected = format!("`test: {{{key}: FILES}}`");
                    return wrong(&["test"], "`test` of another kind", &expected);
                }
                (whole()?, examples(test.text.as_ref(), test.jsonl.as_ref())?)
            }
            (None, None) => {
                return wrong(&[], "nothing for testing", &format!("`n_test: N`, or `test: {{{key}: FILES}}`"));
            }
            (Some(_), Some(_)) => return wrong(&["test"], "both `n_test` and `test`", "one of them"),
        };
        Ok(Some(Examples { training: Box::new(training), test: Box::new(test) }))
    }

    /// The examples of another file of text, for a prediction.
    pub(super) fn other_text(
        &self,
        path: &Path,
        file: &Path,
        features: &[Feature],
        tokens: &Options,
    ) -> Result<Box<dyn Source>, TrainError> {
        let is_json = file.extension().is_some_and(|ending| ending == "jsonl");
        let tokens = Options { label: None, ..tokens.clone() };
        let tokenizer = tokenizer(&self.document, path, &tokens)?;
        Ok(Box::new(self.examples(path, vec![file.to_path_buf()], is_json, features, &tokens, &tokenizer)?))
    }

    fn examples(
        &self,
        path: &Path,
        files: Vec<PathBuf>,
        is_json: bool,
        features: &[Feature],
        tokens: &Options,
        tokenizer: &Tokenizer,
    ) -> Result<TextExamples, TrainError> {
        let array = |feature: &Feature| self.arrays.get(&feature.name).unwrap_or(&feature.name).clone();
        let is_whole = |feature: &&Feature| matches!(feature.dtype, FeatureDType::Exact(dtype) if !dtype.is_float());
        let label = features.iter().find(|feature| array(feature) == "labels");
        let n_cores = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let texts = Texts {
            files,
            format: tokens.format(is_json, label.is_none() || label.as_ref().is_some_and(is_whole)),
            separator: tokens.separator_id(tokenizer)?,
            n_workers: self.workers.unwrap_or_else(n_cores) as usize,
            n_skipped_max: match self.on_error {
                Tolerance::Stop => 0,
                Tolerance::Skip(limit) => limit,
            },
            cache: self.cache.clone(),
        };
        let examples = TextExamples::new(&texts, tokenizer, tokens)?;
        for feature in features {
            let is_ids = array(feature) == "tokens" || (array(feature) == "labels" && tokens.label.is_none());
            if let Some(n) = feature.n_values.filter(|n| is_ids && i64::from(examples.greatest_id()) >= *n) {
                return Err(self.beyond(path, tokenizer, examples.greatest_id(), &feature.name, n));
            }
        }
        let pairs: Vec<(String, String)> = self.arrays.clone().into_iter().collect();
        Ok(examples.renamed(&pairs))
    }
}

fn tokenizer(document: &ReadFrom, path: &Path, tokens: &Options) -> Result<Tokenizer, TrainError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let Some(file) = path_of(folder, &tokens.tokenizer) else { return Ok(Tokenizer::bytes()) };
    Tokenizer::read(&file, tokens.lowercase.unwrap_or(true)).map_err(|error| {
        let text = error.to_string();
        let (message, help) = text.split_once("\nhelp: ").unwrap_or((&text, ""));
        let way = ["data", "tokens", "tokenizer"].map(|key| Step::Key(key.to_string())).to_vec();
        let mut placed = NodeError::new(way, message);
        if let Some(source) = std::error::Error::source(&error) {
            placed.message += &format!(": {source}");
        }
        let is_helped = !help.is_empty();
        document.error(path, if is_helped { placed.with_help(help) } else { placed })
    })
}

/// What is wrong with `tokens`, if something is: the key, what is wrong, and what may be.
fn fault(tokens: &Options, is_json: bool) -> Option<(&'static str, String, &'static str)> {
    let shapes = [("window", tokens.window), ("pack", tokens.pack), ("max_length", tokens.max_length)];
    let set: Vec<&str> = shapes.iter().filter(|(_, length)| length.is_some()).map(|(key, _)| *key).collect();
    let (is_window, is_single) = (tokens.window.is_some(), tokens.max_length.is_some());
    let fault = |key, expected| Some((key, format!("`{key}` here"), expected));
    match &set[..] {
        [_] => {}
        [] => {
            let measured = "`tokens` without a length".to_string();
            return Some(("", measured, "`window: N`, `pack: N` or `max_length: N`"));
        }
        [_, second, ..] => {
            return Some((second, format!("{} of `window`, `pack` and `max_length`", set.len()), "one of them"));
        }
    }
    if !is_json && tokens.field.is_some() {
        return fault("field", "it with `jsonl`: lines of text have no fields");
    }
    if tokens.label.is_some() && !(is_json && is_single) {
        return fault("label", "it with `jsonl` and `max_length`: each text with its label");
    }
    if !tokens.classes.is_empty() && tokens.label.is_none() {
        return fault("classes", "it with `label`: what its strings stand for");
    }
    if is_json && tokens.by.is_some() {
        return fault("by", "it with `text`: each JSON line is a text");
    }
    if tokens.stride.is_some() && !is_window {
        return fault("stride", "it with `window`");
    }
    if tokens.separator.is_some() && is_single {
        return fault(
            "separator",
            "it with `window` or `pack`: an example of one text has what its tokenizer puts around it",
        );
    }
    if tokens.lowercase.is_some() && !tokens.tokenizer.ends_with(".txt") {
        return fault("lowercase", "it with a `vocab.txt`: a `tokenizer.json` says so itself");
    }
    let is_share = |mask: &Mask| mask.share > 0.0 && mask.share <= 1.0;
    if let Some(mask) = &tokens.mask {
        if !is_share(mask) {
            return Some(("mask", format!("`share: {}`", mask.share), "a share above 0 and up to 1"));
        }
        if tokens.label.is_some() {
            return fault("mask", "`mask` or `label`: both say what `labels` are");
        }
    }
    if let (Some(Length(stride)), Some(Length(window))) = (tokens.stride, tokens.window)
        && stride > window
    {
        let measured = format!("`stride: {stride}`");
        return Some(("stride", measured, "`window` at most: what lies between windows would never be read"));
    }
    None
}

impl DataConfig {
    /// The error of ids that the network's table does not have, at the place where that says how many it has.
    fn beyond(&self, path: &Path, tokenizer: &Tokenizer, greatest: u32, feature: &str, n: i64) -> TrainError {
        let key = |name: &str| Step::Key(name.to_string());
        let model = self.document.root().and_then(|root| root.get("model"));
        let embedding = || {
            let Value::List(layers) = &model?.get("layers")?.value else { return None };
            let at = layers.iter().position(|layer: &Node| layer.get("embedding").is_some())?;
            Some(vec![key("model"), key("layers"), Step::Index(at), key("embedding")])
        };
        let way = match model.and_then(|model| model.get("vocabulary")) {
            Some(_) => vec![key("model"), key("vocabulary")],
            None => embedding().unwrap_or_else(|| vec![key("data"), key("tokens"), key("tokenizer")]),
        };
        let wanted = tokenizer.vocabulary().max(greatest.saturating_add(1));
        let message = format!("{} makes ids up to {greatest}, and `{feature}` takes those below {n}", tokenizer.name());
        let help = format!("write {wanted}, as many as the tokenizer has");
        self.document.error(path, NodeError::new(way, message).with_help(help))
    }
}
