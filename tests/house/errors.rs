//! Every variant of an error must be constructed somewhere.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use super::{check, parsed, sources};

/// Names of errors that are enums: the error types of rooms, and their kinds.
fn is_error(name: &syn::Ident) -> bool {
    ["Error", "ErrorKind", "Fault"].iter().any(|end| name.to_string().ends_with(end))
}

/// Collects the variants that tokens construct, as `Enum::Variant`: those in an expression, neither in a pattern nor
/// beside `==`. `own` is the type `Self`.
fn variants_made(tokens: TokenStream, own: &str, made: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is = |at: usize, c: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == c);
    let name = |at: usize| match tokens.get(at) {
        Some(TokenTree::Ident(name)) => Some(name.to_string()),
        _ => None,
    };
    let is_arrow = |at: usize| is(at, '=') && is(at + 1, '>');
    let mut is_pattern = vec![false; tokens.len()];
    for at in 0..tokens.len() {
        if is_arrow(at) {
            // Back to the beginning of the arm: behind a comma, or behind the block of the arm before.
            let is_block = |at: usize| matches!(&tokens[at], TokenTree::Group(_)) && at >= 2 && is_arrow(at - 2);
            let begin = (0..at).rev().find(|&at| is(at, ',') || is_block(at)).map_or(0, |at| at + 1);
            is_pattern[begin..at].fill(true);
        }
        if name(at).as_deref() == Some("let") {
            let end = (at..tokens.len()).find(|&end| is(end, '=')).unwrap_or(tokens.len());
            is_pattern[at..end].fill(true);
        }
    }
    let mut self_type = own.to_string();
    for at in 0..tokens.len() {
        if name(at).as_deref() == Some("impl") {
            let ahead = (at + 1..tokens.len()).take_while(|&at| !matches!(&tokens[at], TokenTree::Group(_)));
            let ahead: Vec<String> = ahead.filter_map(name).collect();
            let from = ahead.iter().position(|name| name == "for").map_or(0, |at| at + 1);
            self_type = ahead.get(from).cloned().unwrap_or_default();
        }
        if is_pattern[at] {
            continue;
        }
        match &tokens[at] {
            TokenTree::Group(group) if at >= 2 && is(at - 1, '!') && name(at - 2).as_deref() == Some("matches") => {
                let inner = group.stream().into_iter();
                let asked = inner.take_while(|token| !matches!(token, TokenTree::Punct(mark) if mark.as_char() == ','));
                variants_made(asked.collect(), &self_type, made);
            }
            TokenTree::Group(group) => variants_made(group.stream(), &self_type, made),
            TokenTree::Ident(enum_name) if is(at + 1, ':') && is(at + 2, ':') => {
                let begin = (0..at).rev().find(|&at| !is(at, ':') && name(at).is_none()).map_or(0, |at| at + 1);
                let is_compared = begin >= 2 && is(begin - 1, '=') && (is(begin - 2, '=') || is(begin - 2, '!'));
                let enum_name = if enum_name == "Self" { self_type.clone() } else { enum_name.to_string() };
                made.extend(name(at + 3).filter(|_| !is_compared).map(|variant| format!("{enum_name}::{variant}")));
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Variants of enums in a file, as `Enum::Variant`.
pub struct Variants {
    /// All that it constructs.
    made: BTreeSet<String>,
    /// Those of the errors that it declares, except what `?` constructs.
    defined: Vec<String>,
}

impl Variants {
    /// Reads a file, with its tokens.
    pub fn read(file: &syn::File, tokens: TokenStream) -> Variants {
        let (mut made, mut defined) = (BTreeSet::new(), Vec::new());
        variants_made(tokens, "", &mut made);
        for item in &file.items {
            let syn::Item::Enum(item) = item else { continue };
            for variant in item.variants.iter().filter(|_| is_error(&item.ident)) {
                let has_from =
                    |field: &syn::Field| field.attrs.iter().any(|attribute| attribute.path().is_ident("from"));
                if !variant.fields.iter().any(has_from) {
                    defined.push(format!("{}::{}", item.ident, variant.ident));
                }
            }
        }
        Variants { made, defined }
    }
}

/// Variants of the errors in some files that none of them constructs.
fn never_made(files: &[(&Path, &Variants)]) -> Vec<String> {
    let constructed: BTreeSet<&String> = files.iter().flat_map(|(_, variants)| &variants.made).collect();
    let defined = files.iter().flat_map(|(path, variants)| variants.defined.iter().map(move |name| (name, path)));
    let never = defined.filter(|(name, _)| !constructed.contains(name));
    never.map(|(name, path)| format!("{}: {name}", path.display())).collect()
}

#[test]
fn variants_that_are_made_are_told_from_those_that_are_matched() {
    let text = "
        enum AError { Made, Called(u8), Built { x: u8 }, Own, Matched, Compared, OfTests, Held(#[from] io::Error) }
        impl AError { fn own() -> Self { Self::Own } }
        fn f() -> AError { match e { AError::Matched => AError::Made, AError::Called(n) if n > 0 => AError::Called(n),
            _ if e == AError::Compared => a::AError::Built { x: 1 }, _ => AError::own() } }
        #[cfg(test)]
        mod tests { fn f() -> AError { AError::OfTests } }";
    let file = parsed(text.parse().unwrap());
    let never = never_made(&[(Path::new("a.rs"), &Variants::read(&file, file.to_token_stream()))]);
    assert_eq!(never, ["a.rs: AError::Matched", "a.rs: AError::Compared", "a.rs: AError::OfTests"]);
}

#[test]
fn every_error_is_made() {
    let files: Vec<(&Path, &Variants)> =
        sources().iter().map(|source| (source.path.as_path(), &source.variants)).collect();
    check(never_made(&files), "a variant of an error that nothing makes is taken out");
}
