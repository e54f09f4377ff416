//! Names in messages and pictures: suggestions for misspelt names, lists that stay short, and escapes for control
//! characters.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal, a browser or an editor acts on this character: control characters, among them those of 8 bits;
/// marks that change the direction of writing; line and paragraph separators other than line feeds; tags, which are
/// invisible.
pub fn steers(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        '\u{e0000}'..='\u{e007f}' => true,
        _ => character.is_control(),
    }
}

/// The text with every character made visible that [`steers`]: `\x1b`, `\r`, `\u{202e}`. Line ends and tabs stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        let code = u32::from(character);
        let written = match character {
            character if !steers(character) => out.write_char(character),
            '\r' => out.write_str("\\r"),
            _ if code < 0x80 => write!(out, "\\x{code:02x}"),
            _ => write!(out, "\\u{{{code:x}}}"),
        };
        written.expect("a string takes everything");
    }
    Cow::Owned(out)
}

/// Names in backticks, at most the first `most` of them: `` `a`, `b` and 3 more ``; `none` for an empty list.
pub fn listed<'n>(names: impl IntoIterator<Item = &'n String>, most: usize) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    let shown = names.iter().take(most).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(most) {
        _ if names.is_empty() => "none".to_string(),
        Some(n_more) if n_more > 0 => format!("{shown} and {n_more} more"),
        Some(_) | None => shown,
    }
}

/// The one of `names` that `given` probably means, regardless of case; the first in the alphabet if several are equally near.
/// Long names, and lists of very many, are not searched: a comparison takes the product of two lengths.
pub fn nearest<'n, S: AsRef<str> + ?Sized + 'n>(
    given: &str,
    names: impl IntoIterator<Item = &'n S>,
) -> Option<&'n str> {
    const MAX_LEN: usize = 100;
    const MAX_NAMES: usize = 100_000;
    // Below this, suggestions are noise: `filters` for `filers` scores 0.97, `maximum` for `matmul` 0.797.
    const MIN_SIMILARITY: f64 = 0.8;
    if given.len() > MAX_LEN {
        return None;
    }
    let candidates: Vec<&str> = names.into_iter().take(MAX_NAMES + 1).map(AsRef::as_ref).collect();
    if candidates.len() > MAX_NAMES {
        return None;
    }
    let given = given.to_lowercase();
    let similarity = |name: &'n str| {
        let lower = name.to_lowercase();
        let similarity = strsim::jaro_winkler(&given, &lower);
        (similarity > MIN_SIMILARITY && is_same_word(&given, &lower)).then_some((similarity, name))
    };
    let similar = candidates.into_iter().filter(|name| name.len() <= MAX_LEN).filter_map(similarity);
    similar.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1))).map(|(_, name)| name)
}

/// Whether one text contains the other, or at most half the letters of the longer differ: `batch_normalization` is as similar
/// to `batch_matmul` as slips are (0.85), but most of its letters differ.
fn is_same_word(a: &str, b: &str) -> bool {
    a.contains(b) || b.contains(a) || strsim::osa_distance(a, b) <= a.len().max(b.len()) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_short_and_say_what_they_leave_out() {
        let names = ["a", "b", "c"].map(String::from);
        assert_eq!(listed(&names, 3), "`a`, `b`, `c`");
        assert_eq!(listed(&names, 2), "`a`, `b` and 1 more");
        assert_eq!(listed(&[], 2), "none");
    }

    #[test]
    fn the_nearest_name_is_found_whatever_its_case() {
        assert_eq!(nearest("Reduce_sum", ["reduce", "reduce-window", "sort"]), Some("reduce"));
        assert_eq!(nearest("qwrt", ["sort", "dot"]), None);
        assert_eq!(nearest("ab", ["abd", "abc"]), Some("abc"));
        assert_eq!(nearest(&"x".repeat(101), ["x"]), None);
    }

    #[test]
    fn only_a_slip_is_a_suggestion() {
        let similar = [("filers", "filters"), ("Dilation", "dilation_rate"), ("init", "initializer")];
        let different = [
            ("batch_matmul", "batch_normalization"),
            ("elementwise", "min_elements"),
            ("matmul", "maximum"),
            ("mlp", "cnn"),
            ("hidden", "width"),
        ];
        for (given, name) in similar {
            assert_eq!(nearest(given, [name]), Some(name), "{given}");
        }
        for (given, name) in different {
            assert_eq!(nearest(given, [name]), None, "{given}");
        }
    }
}
