//! Bounds the output of a tokenizer's steps before and after its model.
//!
//! A normalizer of six replacements of `a` by thirty of them makes 700 MB from one letter, and so can a decoder. The
//! crate runs such a chain as a whole; here the length of each step's result is checked first.

use std::cell::RefCell;
use std::fmt::Arguments;

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value as Json;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{Decoder, NormalizedString, Normalizer, Result};

use crate::text::tokenizer::checked::steps;

/// The largest growth of a text: a space that becomes `▁` triples, and this is also the longest compatibility
/// decomposition in Unicode 11.
const MAX_GROWTH: usize = 16;
/// A size in bytes that is always allowed.
const MIN_JUDGED: usize = 1 << 16;

/// Checks the size of a step's result.
fn check(step: Arguments<'_>, n_bytes: usize, from: usize) -> Result<()> {
    let limit = from.saturating_mul(MAX_GROWTH).max(MIN_JUDGED);
    match n_bytes <= limit {
        true => Ok(()),
        false => Err(format!(
            "its {step} makes {n_bytes} bytes or more of a text of {from}; expected at most {limit}, so that a file cannot use \
             up the memory"
        )
        .into()),
    }
}

thread_local! {
    /// The last refusal of a normalizer in this thread: the crate ignores a normalizer's errors and continues with the
    /// text.
    static REFUSED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The last refusal since the previous call.
pub(super) fn refused() -> Option<String> {
    REFUSED.take()
}

/// Records a refusal, and clears the text so that the crate has nothing to continue with.
fn remembered(checked: Result<()>, text: &mut NormalizedString) -> Result<()> {
    if let Err(error) = &checked {
        REFUSED.set(Some(error.to_string()));
        text.clear();
    }
    checked
}

/// The pattern of a step that makes a text longer.
#[derive(Clone, Debug)]
enum Sought {
    /// The beginning of a text.
    Start,
    Text(String),
    Pattern,
}

/// Computes an upper bound on the length of a replacement's result.
#[derive(Clone, Debug)]
struct Growth {
    sought: Sought,
    content: usize,
}

impl Growth {
    /// For a step of the kind `Replace` or `Prepend`.
    fn from_step(step: &Json) -> Option<Growth> {
        if let Some(prepended) = step["prepend"].as_str() {
            return Some(Growth { sought: Sought::Start, content: prepended.len() });
        }
        if step["type"] != "Replace" {
            return None;
        }
        let sought = match step["pattern"]["String"].as_str() {
            Some(text) => Sought::Text(text.to_string()),
            None => Sought::Pattern,
        };
        Some(Growth { sought, content: step["content"].as_str().unwrap_or_default().len() })
    }

    fn after(&self, text: &str) -> usize {
        let n_matches = match &self.sought {
            Sought::Start => 1,
            Sought::Text(text_sought) if !text_sought.is_empty() => text.matches(text_sought).count(),
            // One match per place between characters.
            _ => text.chars().count() + 1,
        };
        text.len().saturating_add(n_matches.saturating_mul(self.content))
    }
}

fn name(step: &Json) -> String {
    step["type"].as_str().unwrap_or("step").to_string()
}

/// A normalizer, as its steps.
#[derive(Clone, Debug)]
pub(super) struct Normalizers(Vec<(String, Option<Growth>, NormalizerWrapper)>);

impl<'de> Deserialize<'de> for Normalizers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Normalizers, D::Error> {
        let step = |step: Json| {
            let (name, growth) = (name(&step), Growth::from_step(&step));
            Ok((name, growth, NormalizerWrapper::deserialize(step).map_err(D::Error::custom)?))
        };
        let steps = steps(&Json::deserialize(deserializer)?, "normalizers").into_iter().map(step);
        Ok(Normalizers(steps.collect::<std::result::Result<_, _>>()?))
    }
}

impl Normalizer for Normalizers {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        let from = text.get().len();
        for (name, growth, step) in &self.0 {
            if let Some(growth) = growth {
                let checked = check(format_args!("normalizer `{name}`"), growth.after(text.get()), from);
                remembered(checked, text)?;
            }
            step.normalize(text)?;
            let checked = check(format_args!("normalizer `{name}`"), text.get().len(), from);
            remembered(checked, text)?;
        }
        Ok(())
    }
}

/// A decoder, as its steps.
#[derive(Clone, Debug)]
pub(super) struct Decoders(Vec<(String, Option<Growth>, Step)>);

#[derive(Clone, Debug)]
enum Step {
    Theirs(Box<DecoderWrapper>),
    /// Reimplemented: the crate's underflows if a token is shorter than the part to strip off its end.
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
}

impl<'de> Deserialize<'de> for Decoders {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Decoders, D::Error> {
        let step = |step: Json| {
            let (name, growth) = (name(&step), Growth::from_step(&step));
            let theirs = DecoderWrapper::deserialize(step).map_err(D::Error::custom)?;
            let step = match theirs {
                DecoderWrapper::Strip(strip) => {
                    Step::Strip { content: strip.content, start: strip.start, stop: strip.stop }
                }
                other => Step::Theirs(Box::new(other)),
            };
            Ok((name, growth, step))
        };
        let steps = steps(&Json::deserialize(deserializer)?, "decoders").into_iter().map(step);
        Ok(Decoders(steps.collect::<std::result::Result<_, _>>()?))
    }
}

impl Decoder for Decoders {
    fn decode_chain(&self, mut tokens: Vec<String>) -> Result<Vec<String>> {
        let from = tokens.iter().map(String::len).sum();
        for (name, growth, step) in &self.0 {
            if let Some(growth) = growth {
                let after = tokens.iter().map(|token| growth.after(token)).fold(0, usize::saturating_add);
                check(format_args!("decoder `{name}`"), after, from)?;
            }
            tokens = match step {
                Step::Theirs(step) => step.decode_chain(tokens)?,
                &Step::Strip { content, start, stop } => {
                    tokens.iter().map(|token| strip(token, content, start, stop)).collect()
                }
            };
            check(format_args!("decoder `{name}`"), tokens.iter().map(String::len).sum(), from)?;
        }
        Ok(tokens)
    }
}

/// Strips up to `start` repetitions of a character from a token's beginning, and up to `stop` from its end.
fn strip(token: &str, content: char, start: usize, stop: usize) -> String {
    let at_start = token.chars().take(start).take_while(|other| *other == content).count();
    let rest: Vec<char> = token.chars().skip(at_start).collect();
    let at_end = rest.iter().rev().take(stop).take_while(|other| **other == content).count();
    rest[..rest.len() - at_end].iter().collect()
}
