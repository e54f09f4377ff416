//! What a tokenizer makes of text before and after its model, one step at a time, with a bound on how much it may be.
//!
//! A normalizer of six replacements of `a` by thirty of them makes 700 MB of one letter, and so does a decoder. The crate runs
//! such a chain as one; here each step is asked how long its result will be.

use std::cell::RefCell;
use std::fmt::Arguments;

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value as Json;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{Decoder, NormalizedString, Normalizer, Result};

use crate::text::tokenizer::checked::steps;

/// So many times as long as it was a text may become: a space that becomes `▁` makes three bytes of one, and the longest
/// compatibility decomposition of Unicode 11.
const MAX_GROWTH: usize = 16;
/// Bytes that it may have in any case.
const MIN_JUDGED: usize = 1 << 16;

/// How long what a step makes may be.
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
    /// What a normalizer of this thread refused: the crate goes on with the text as it is, whatever a normalizer says.
    static REFUSED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What a normalizer refused since this was asked last.
pub(super) fn refused() -> Option<String> {
    REFUSED.take()
}

/// Remembers a refusal, and leaves nothing of the text to go on with.
fn remembered(checked: Result<()>, text: &mut NormalizedString) -> Result<()> {
    if let Err(error) = &checked {
        REFUSED.set(Some(error.to_string()));
        text.clear();
    }
    checked
}

/// What a step that makes a text longer looks for.
#[derive(Clone, Debug)]
enum Sought {
    /// The beginning of a text.
    Start,
    Text(String),
    Pattern,
}

/// How long the result of a replacement is, at most.
#[derive(Clone, Debug)]
struct Growth {
    sought: Sought,
    content: usize,
}

impl Growth {
    /// Of a step of the kind `Replace` or `Prepend`.
    fn of(step: &Json) -> Option<Growth> {
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
            // As many as there are places.
            _ => text.chars().count() + 1,
        };
        text.len().saturating_add(n_matches.saturating_mul(self.content))
    }
}

fn name(step: &Json) -> String {
    step["type"].as_str().unwrap_or("step").to_string()
}

/// A normalizer, step by step.
#[derive(Clone, Debug)]
pub(super) struct Normalizers(Vec<(String, Option<Growth>, NormalizerWrapper)>);

impl<'de> Deserialize<'de> for Normalizers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Normalizers, D::Error> {
        let step = |step: Json| {
            let (name, growth) = (name(&step), Growth::of(&step));
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

/// A decoder, step by step.
#[derive(Clone, Debug)]
pub(super) struct Decoders(Vec<(String, Option<Growth>, Step)>);

#[derive(Clone, Debug)]
enum Step {
    Theirs(Box<DecoderWrapper>),
    /// Theirs counts below 0 where a token is shorter than what is stripped of its end.
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
}

impl<'de> Deserialize<'de> for Decoders {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Decoders, D::Error> {
        let step = |step: Json| {
            let (name, growth) = (name(&step), Growth::of(&step));
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

/// A token without up to `start` of a character at its beginning, and up to `stop` of it at its end.
fn strip(token: &str, content: char, start: usize, stop: usize) -> String {
    let at_start = token.chars().take(start).take_while(|found| *found == content).count();
    let rest: Vec<char> = token.chars().skip(at_start).collect();
    let at_end = rest.iter().rev().take(stop).take_while(|found| **found == content).count();
    rest[..rest.len() - at_end].iter().collect()
}
