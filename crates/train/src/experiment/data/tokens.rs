//! Text as examples of ids: checks of the options, and the shape of an example.

use super::disk::check_workers;
use super::reading::{Opened, Reading};
use super::settings::Patterns;
use crate::TrainError;
use bf16scope_data::records;
use bf16scope_data::text::{Length, Mask, Options, TextExamples, Texts, Tokenizer, path_of};
use bf16scope_data::{Feature, FeatureDType};
use bf16scope_model::document::{Node, NodeError, Origin, Step, Value};
use std::path::{Path, PathBuf};

/// The keys that sources of text take.
pub(super) const TAKES: &[&str] = &["tokens", "arrays", "workers", "on_error"];

/// Opens files of text; objects of stores are read from the cache.
pub(super) fn open(reading: &Reading<'_>, patterns: &Patterns, is_json: bool) -> Result<Opened, TrainError> {
    let files = records::local(reading.files(patterns)?, &reading.data.cache);
    Ok(Opened::Text { files: reading.placed(files)?, is_json })
}

/// The tokenizer of a text source, after checking the options against each other and the features.
pub(super) fn checked(reading: &Reading<'_>, key: &str) -> Result<Tokenizer, TrainError> {
    let (data, features) = (reading.data, reading.features);
    check_workers(reading)?;
    let Some(tokens) = &data.tokens else {
        let expected = "`tokens: {tokenizer: bytes, window: 128}`, which says how it becomes examples";
        return Err(reading.wrong(&[key], &format!("`{key}` without `tokens`"), expected));
    };
    if let Some((option, measured, expected)) = fault(tokens, key == "jsonl") {
        return Err(reading.wrong(&["tokens", option], &measured, expected));
    }
    let read = features.iter().find(|feature| data.array_of(feature) == "tokens").map(|feature| &feature.dims[..]);
    let lengths = [("window", tokens.window), ("pack", tokens.pack), ("max_length", tokens.max_length)];
    let length = lengths.into_iter().find_map(|(option, length)| Some((option, length?)));
    if let (Some(&[read]), Some((option, Length(length)))) = (read, length)
        && u64::try_from(read).is_ok_and(|read| read != length)
    {
        let expected = format!("`{option}: {read}`, as many tokens as the model reads, or a model that reads {length}");
        return Err(reading.wrong(&["tokens", option], &format!("`{option}: {length}`"), &expected));
    }
    let weights = features.iter().find(|feature| data.array_of(feature) == "weights");
    if let (Some(weights), Some((_, Length(length)))) = (weights, length)
        && weights.dims.is_empty()
    {
        let measured =
            format!("`weights` of [{length}], one for each token, where `{}` is one for each example", weights.name);
        let expected = format!("`labels: {{{}: [{length}]}}` beside the `loss` under `model`", weights.name);
        return Err(reading.wrong(&["tokens"], &measured, &expected));
    }
    if weights.is_none() && tokens.label.is_none() {
        warn_of_padding(reading, tokens);
    }
    tokenizer(&data.origin, reading.path, tokens)
}

/// The examples of some files.
pub(super) fn examples(
    reading: &Reading<'_>,
    (files, is_json): (Vec<PathBuf>, bool),
    tokens: &Options,
    tokenizer: &Tokenizer,
) -> Result<TextExamples, TrainError> {
    let (data, features) = (reading.data, reading.features);
    let is_whole = |feature: &&Feature| matches!(feature.dtype, FeatureDType::Exact(dtype) if !dtype.is_float());
    let label = features.iter().find(|feature| data.array_of(feature) == "labels");
    let texts = Texts {
        files,
        format: tokens.format(is_json, label.is_none() || label.as_ref().is_some_and(is_whole)),
        separator: tokens.separator_id(tokenizer)?,
        n_workers: data.n_workers(),
        n_skipped_max: data.on_error.n_skipped_max(),
        cache: data.cache.clone(),
    };
    let examples = TextExamples::new(&texts, tokenizer, tokens)?;
    for feature in features {
        let array = data.array_of(feature);
        let is_ids = array == "tokens" || (array == "labels" && tokens.label.is_none());
        if let Some(n) = feature.n_values.filter(|n| is_ids && i64::from(examples.greatest_id()) >= *n) {
            return Err(beyond(reading, tokenizer, examples.greatest_id(), &feature.name, n));
        }
    }
    let pairs: Vec<(String, String)> = data.arrays.clone().into_iter().collect();
    Ok(examples.renamed(&pairs))
}

/// The examples of another file of text, for a prediction.
pub(super) fn other(reading: &Reading<'_>, file: &Path, tokens: &Options) -> Result<TextExamples, TrainError> {
    let is_json = file.extension().is_some_and(|ending| ending == "jsonl");
    let tokens = Options { label: None, ..tokens.clone() };
    let tokenizer = tokenizer(&reading.data.origin, reading.path, &tokens)?;
    examples(reading, (vec![file.to_path_buf()], is_json), &tokens, &tokenizer)
}

/// Reads the tokenizer.
pub(super) fn tokenizer(origin: &Origin, path: &Path, tokens: &Options) -> Result<Tokenizer, TrainError> {
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
        origin.error(path, if is_helped { placed.with_help(help) } else { placed }).into()
    })
}

/// The first fault in `tokens`: the key, what is wrong, and what is allowed.
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

/// Warns if padding counts in the loss and accuracy because the model takes no weights.
fn warn_of_padding(reading: &Reading<'_>, tokens: &Options) {
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
    tracing::warn!("{}", reading.data.origin.error(reading.path, NodeError::new(way, message).with_help(help)));
}

/// The error of ids beyond the network's table, at the key that gives the table's size.
fn beyond(reading: &Reading<'_>, tokenizer: &Tokenizer, greatest: u32, feature: &str, n: i64) -> TrainError {
    let key = |name: &str| Step::Key(name.to_string());
    let origin = reading.data.origin.at("model");
    let model = origin.node();
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
    reading.data.origin.error(reading.path, NodeError::new(way, message).with_help(help)).into()
}
