//! Every variant of an error must be constructed somewhere.

use std::collections::BTreeSet;
use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use super::{check, source_files, without_tests};

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

/// Variants of the errors in some files that none of them constructs.
fn never_made(files: &[(PathBuf, String)]) -> Vec<String> {
    let (mut made, mut defined) = (BTreeSet::new(), Vec::new());
    for (path, text) in files {
        let mut file = syn::parse_file(text).unwrap();
        without_tests(&mut file.items);
        variants_made(file.to_token_stream(), "", &mut made);
        for item in &file.items {
            let syn::Item::Enum(item) = item else { continue };
            for variant in item.variants.iter().filter(|_| is_error(&item.ident)) {
                // `?` constructs these.
                let has_from =
                    |field: &syn::Field| field.attrs.iter().any(|attribute| attribute.path().is_ident("from"));
                if !variant.fields.iter().any(has_from) {
                    defined.push((format!("{}::{}", item.ident, variant.ident), path));
                }
            }
        }
    }
    let never = defined.into_iter().filter(|(name, _)| !made.contains(name));
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
    let never = never_made(&[(PathBuf::from("a.rs"), text.to_string())]);
    assert_eq!(never, ["a.rs: AError::Matched", "a.rs: AError::Compared", "a.rs: AError::OfTests"]);
}

#[test]
fn every_error_is_made() {
    check(never_made(&source_files()), "a variant of an error that nothing makes is taken out");
}
