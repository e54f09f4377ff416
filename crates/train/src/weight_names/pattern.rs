//! Patterns that match names of our variables, and templates that make other frameworks' names of them.
//!
//! In a pattern `*` matches any text, `{name}` captures text without a `/`, `{*name}` any text. In a template `{name}`
//! is the captured text, `{name-1}` and `{name+1}` the neighbouring number, `{count}` the number of earlier variables
//! of the same rule, `{_count}` the suffix that TensorFlow and Keras append to a name (nothing, then `_1`, `_2` and so
//! on), and `{place}` the number of earlier variables in the layer.

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The texts that a pattern captured, by name.
pub type Captures = BTreeMap<String, String>;

/// A pattern for names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<PatternPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternPart {
    Text(String),
    /// Any text, or text without a `/` if it is one level; captured if it has a name.
    Any {
        capture: Option<String>,
        is_one_level: bool,
    },
}

/// A template that makes a name of captured texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Capture { name: String, plus: i64 },
    Count,
    UnderscoreCount,
    Place,
}

/// The position of a variable among others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The number of earlier variables of the same rule.
    pub count: usize,
    /// The number of earlier variables in its layer.
    pub place: usize,
}

/// The most wildcards and captures of a pattern: each is tried at every position of a name.
const MAX_WILDCARDS: usize = 64;

/// Names that templates reserve.
const COUNTS: [&str; 3] = ["count", "_count", "place"];

/// The texts outside of braces, each with the content of the braces that follow.
fn braces(text: &str) -> Result<Vec<(String, Option<String>)>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(open);
        let inner = from.strip_prefix('{').and_then(|from| from.split_once('}'));
        let Some((name, after)) = inner else {
            return Err(format!("{text:?} has a brace alone, expected `{{name}}`"));
        };
        parts.push((before.to_string(), Some(name.to_string())));
        rest = after;
    }
    parts.push((rest.to_string(), None));
    Ok(parts)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// A single brace, an invalid name, or a name that is captured twice.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let mut parts = Vec::new();
        let mut names = BTreeSet::new();
        for (before, inner) in braces(text)? {
            for (number, piece) in before.split('*').enumerate() {
                // Adjacent stars are one.
                let is_star = |part: &PatternPart| matches!(part, PatternPart::Any { capture: None, .. });
                if number > 0 && !parts.last().is_some_and(is_star) {
                    parts.push(PatternPart::Any { capture: None, is_one_level: false });
                }
                if !piece.is_empty() {
                    parts.push(PatternPart::Text(piece.to_string()));
                }
            }
            let Some(inner) = inner else { continue };
            let (name, is_one_level) = match inner.strip_prefix('*') {
                Some(name) => (name, false),
                None => (inner.as_str(), true),
            };
            if !is_name(name) || COUNTS.contains(&name) {
                return Err(format!("{text:?} captures `{{{inner}}}`, expected small letters, such as `{{layer}}`"));
            }
            if !names.insert(name.to_string()) {
                return Err(format!("{text:?} captures `{{{name}}}` twice"));
            }
            parts.push(PatternPart::Any { capture: Some(name.to_string()), is_one_level });
        }
        let n_wildcards = parts.iter().filter(|part| matches!(part, PatternPart::Any { .. })).count();
        if n_wildcards > MAX_WILDCARDS {
            let shown: String = text.chars().take(40).collect();
            return Err(format!(
                "{shown:?}… has {n_wildcards} wildcards and captures, expected at most {MAX_WILDCARDS}"
            ));
        }
        Ok(Pattern { text: text.to_string(), parts })
    }

    /// The captures if it matches the whole name.
    pub fn captures(&self, name: &str) -> Option<Captures> {
        let mut ends = Vec::new();
        let mut failed = BTreeSet::new();
        if !self.matches_from(0, name, 0, &mut ends, &mut failed) {
            return None;
        }
        let captured = ends.into_iter().rev();
        Some(captured.map(|(name, text): (&str, &str)| (name.to_string(), text.to_string())).collect())
    }

    /// Whether it matches the whole name.
    pub fn matches(&self, name: &str) -> bool {
        self.captures(name).is_some()
    }

    /// Matches parts from index `part` on against the text from `at` on; failed combinations are remembered.
    fn matches_from<'a>(
        &'a self,
        part: usize,
        name: &'a str,
        at: usize,
        captured: &mut Vec<(&'a str, &'a str)>,
        failed: &mut BTreeSet<(usize, usize)>,
    ) -> bool {
        let rest = &name[at..];
        let Some(this) = self.parts.get(part) else { return rest.is_empty() };
        if failed.contains(&(part, at)) {
            return false;
        }
        let is_matched = match this {
            PatternPart::Text(text) => {
                rest.starts_with(text.as_str()) && self.matches_from(part + 1, name, at + text.len(), captured, failed)
            }
            PatternPart::Any { capture, is_one_level } => {
                let ends = rest.char_indices().map(|(idx, c)| (idx, Some(c))).chain([(rest.len(), None)]);
                let mut is_matched = false;
                for (end, next) in ends {
                    // A captured level is not empty.
                    let is_empty_level = *is_one_level && end == 0;
                    if !is_empty_level && self.matches_from(part + 1, name, at + end, captured, failed) {
                        if let Some(capture) = capture {
                            captured.push((capture, &rest[..end]));
                        }
                        is_matched = true;
                        break;
                    }
                    if *is_one_level && next == Some('/') {
                        break;
                    }
                }
                is_matched
            }
        };
        if !is_matched {
            failed.insert((part, at));
        }
        is_matched
    }

    /// Whether it matches optimizer state.
    pub(super) fn is_of_optimizers(&self) -> bool {
        self.text.contains("optimizer")
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            PatternPart::Any { capture, .. } => capture.as_deref(),
            PatternPart::Text(_) => None,
        })
    }
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// A single brace, or a content of braces that is not a name with an optional number.
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        for (before, inner) in braces(text)? {
            if !before.is_empty() {
                parts.push(TemplatePart::Text(before));
            }
            let Some(inner) = inner else { continue };
            parts.push(match inner.as_str() {
                "count" => TemplatePart::Count,
                "_count" => TemplatePart::UnderscoreCount,
                "place" => TemplatePart::Place,
                other => {
                    let digits = other.find(['+', '-']).unwrap_or(other.len());
                    let (name, plus) = other.split_at(digits);
                    let plus = if plus.is_empty() { Ok(0) } else { plus.parse() };
                    match plus {
                        Ok(plus) if is_name(name) => TemplatePart::Capture { name: name.to_string(), plus },
                        _ => {
                            return Err(format!(
                                "{text:?} has `{{{inner}}}`, expected a name that the pattern captures, such as \
                                 `{{layer}}` or `{{layer-1}}`, or `{{count}}`, `{{_count}}` or `{{place}}`"
                            ));
                        }
                    }
                }
            });
        }
        Ok(Template { text: text.to_string(), parts })
    }

    /// The first name that it uses and the pattern does not capture.
    pub(super) fn not_captured<'a>(&'a self, pattern: &Pattern) -> Option<&'a str> {
        self.parts.iter().find_map(|part| match part {
            TemplatePart::Capture { name, .. } if !pattern.names().any(|other| other == name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Whether it uses a captured name.
    pub(super) fn takes(&self, name: &str) -> bool {
        self.parts.iter().any(|part| matches!(part, TemplatePart::Capture { name: taken, .. } if taken == name))
    }

    /// The resulting name; `None` if it counts from text that is not a number, or below 0.
    pub fn name(&self, captures: &Captures, standing: Standing) -> Option<String> {
        let Standing { count, place } = standing;
        let mut name = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => name += text,
                TemplatePart::Capture { name: capture, plus: 0 } => name += captures.get(capture)?,
                TemplatePart::Capture { name: capture, plus } => {
                    let number: i64 = captures.get(capture)?.parse().ok()?;
                    name += &number.checked_add(*plus).filter(|number| *number >= 0)?.to_string();
                }
                TemplatePart::Count => name += &count.to_string(),
                TemplatePart::UnderscoreCount if count == 0 => {}
                TemplatePart::UnderscoreCount => name += &format!("_{count}"),
                TemplatePart::Place => name += &place.to_string(),
            }
        }
        Some(name)
    }
}

macro_rules! as_text {
    ($($Type:ident)*) => {$(
        impl fmt::Display for $Type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl Serialize for $Type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.text)
            }
        }

        impl<'de> Deserialize<'de> for $Type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$Type, D::Error> {
                $Type::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
            }
        }
    )*};
}

as_text! { Pattern Template }

#[cfg(test)]
mod tests {
    use super::*;

    fn rename(pattern: &str, template: &str, name: &str) -> Option<String> {
        let captures = Pattern::parse(pattern).unwrap().captures(name)?;
        Template::parse(template).unwrap().name(&captures, Standing { count: 3, place: 1 })
    }

    #[test]
    fn names_are_made_of_what_was_captured() {
        for (pattern, template, name, expected) in [
            ("*/layer{n}/query/kernel", "h.{n-1}.q", "transformer/layer12/query/kernel", Some("h.11.q")),
            ("{*path}/kernel", "{path}/w", "a/b/kernel", Some("a/b/w")),
            ("{path}/kernel", "{path}/w", "a/b/kernel", None),
            ("{path}/kernel", "{path}/w", "/kernel", None),
            ("*/kernel", "conv{_count}/kernel", "a/kernel", Some("conv_3/kernel")),
            ("*/kernel", "conv/{count}", "a/kernel", Some("conv/3")),
            ("{*layer}/x", "{layer}/vars/{place}", "a/b/x", Some("a/b/vars/1")),
            ("layer{n}/x", "h.{n-1}", "layer0/x", None),
            ("layer{n}/x", "h.{n-1}", "layer_norm/x", None),
            ("kernel", "w", "kernel", Some("w")),
            ("kernel", "w", "kernels", None),
            ("{a}{b}", "{b}{a}", "xyz", Some("yzx")),
        ] {
            assert_eq!(rename(pattern, template, name).as_deref(), expected, "{pattern} {template} {name}");
        }
    }

    #[test]
    fn many_stars_do_not_hang() {
        let pattern = Pattern::parse(&"*a".repeat(20)).unwrap();
        assert!(!pattern.matches(&format!("{}b", "a".repeat(500))));
    }

    /// A hundred thousand stars used to overflow the stack.
    #[test]
    fn stars_without_end_are_one_or_refused() {
        let stars = Pattern::parse(&"*".repeat(100_000)).unwrap();
        assert!(stars.matches("a/b") && stars.matches(""));
        assert_eq!(rename("**/kernel", "w{count}", "a/b/kernel").as_deref(), Some("w3"));
        let error = Pattern::parse(&"*a".repeat(65)).unwrap_err();
        assert_eq!(error, format!("{:?}… has 65 wildcards and captures, expected at most 64", "*a".repeat(20)));
        let letters = |n: usize| format!("{{*{}}}", "a".repeat(n));
        let captures: String = (1..=65).map(letters).collect();
        assert!(Pattern::parse(&captures).unwrap_err().ends_with("has 65 wildcards and captures, expected at most 64"));
    }

    #[test]
    fn what_is_no_pattern_says_so() {
        let pattern = |text: &str| Pattern::parse(text).unwrap_err();
        assert_eq!(pattern("a{b"), "\"a{b\" has a brace alone, expected `{name}`");
        assert_eq!(pattern("{n}/{n}"), "\"{n}/{n}\" captures `{n}` twice");
        assert_eq!(pattern("{count}"), "\"{count}\" captures `{count}`, expected small letters, such as `{layer}`");
        assert_eq!(
            Template::parse("h.{n*2}").unwrap_err(),
            "\"h.{n*2}\" has `{n*2}`, expected a name that the pattern captures, such as `{layer}` or `{layer-1}`, or \
             `{count}`, `{_count}` or `{place}`"
        );
    }
}
