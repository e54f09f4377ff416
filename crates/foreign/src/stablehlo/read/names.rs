//! Names in locations: `loc("jit(step)/dot_general"(#loc7))` names an instruction `jit(step)/dot_general`.
//!
//! Source: XLA, `hlo/translate/mhlo_to_hlo/location_exporter.cc` and `mlir/utils/name_utils.cc`: the outermost name, up to an
//! `@`; one that ends with a colon is an op's type; a place in a file is no name.

use std::collections::HashMap;

/// Locations as they are written, each once. The first is the one that is not known.
#[derive(Debug)]
pub(super) struct Locations<'t> {
    numbers: HashMap<&'t str, u32>,
    texts: Vec<&'t str>,
}

impl Default for Locations<'_> {
    fn default() -> Self {
        Locations { numbers: HashMap::from([("unknown", 0)]), texts: vec!["unknown"] }
    }
}

impl<'t> Locations<'t> {
    pub(super) fn number(&mut self, location: &'t str) -> u32 {
        let texts = &mut self.texts;
        *self.numbers.entry(location).or_insert_with(|| {
            texts.push(location);
            texts.len() as u32 - 1
        })
    }

    /// Their names, by number; `None` where one is not certain.
    pub(super) fn names(&self, aliases: &HashMap<&str, &str>) -> Option<Vec<String>> {
        self.texts.iter().map(|location| name(location, aliases)).collect()
    }
}

/// Aliases of locations, which stand before and after a program, and the program.
pub(super) fn aliases(text: &str) -> Option<(HashMap<&str, &str>, &str)> {
    let mut aliases = HashMap::new();
    let (mut start, mut end, mut at) = (0, text.len(), 0);
    for line in text.split_inclusive('\n') {
        let next = at + line.len();
        if line.starts_with("#loc") {
            let (alias, location) = line.trim_end().split_once(" = loc(")?;
            aliases.insert(alias, location.strip_suffix(')')?);
            (start, end) = if start == at { (next, end) } else { (start, end.min(at)) };
        }
        at = next;
    }
    (start <= end).then(|| (aliases, &text[start..end]))
}

/// The name of a location; empty where it has none.
fn name<'t>(mut location: &'t str, aliases: &HashMap<&str, &'t str>) -> Option<String> {
    if location.starts_with('#') {
        location = aliases.get(location)?;
    }
    if location == "unknown" {
        return Some(String::new());
    }
    // Fused locations and those of call sites are XLA's to name.
    let (name, rest) = quoted(location.strip_prefix('"')?)?;
    if !(rest.is_empty() || rest.starts_with('(')) {
        return rest.starts_with(':').then(String::new);
    }
    let name = name.split('@').next().unwrap_or_default();
    Some(if name.ends_with(':') { String::new() } else { name.to_string() })
}

/// A string as MLIR writes it, after the first quote, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b'"' => break,
            b'\\' if rest.first() == Some(&b'\\') => {
                bytes.push(b'\\');
                rest = &rest[1..];
            }
            b'\\' => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &rest[2..];
            }
            byte => bytes.push(byte),
        }
    }
    Some((String::from_utf8(bytes).ok()?, &text[text.len() - rest.len()..]))
}
