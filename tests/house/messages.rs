//! A message that no test reads may say anything. Of the crates whose errors are a kind, a place and a sentence, every sentence
//! is in a test.
//!
//! A sentence is a string of several words in an `#[error]` attribute, or in a function of which an error is made. It counts as
//! read if the longest part of it that is always the same stands in a string of a test. That the test compares the whole
//! message is for review.

use std::collections::BTreeSet;
use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use super::{check, rust_files, without_tests};

/// Crates whose every message is in a test.
const CRATES: [&str; 3] = ["crates/passes/src", "crates/pjrt/src", "crates/train/src"];

/// The errors of these crates that are made where the fault is found.
const ERRORS: [&str; 3] = ["PassError", "PjrtError", "TrainError"];

/// What is no message: what a log says, and what a bug of ours says.
const NO_MESSAGES: [&str; 10] = [
    "debug",
    "info",
    "warn",
    "trace",
    "info_span",
    "debug_span",
    "expect",
    "expect_err",
    "debug_assert",
    "unreachable",
];

/// Words from which a string is a sentence.
const N_WORDS: usize = 3;

/// A name or a mark.
fn word(token: &TokenTree) -> String {
    match token {
        TokenTree::Ident(name) => name.to_string(),
        TokenTree::Punct(mark) => mark.to_string(),
        TokenTree::Group(_) | TokenTree::Literal(_) => String::new(),
    }
}

/// The text of a string literal, its lines joined as the compiler does.
fn string(token: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else { return None };
    match syn::Lit::new(literal.clone()) {
        syn::Lit::Str(text) => Some(text.value()),
        _ => None,
    }
}

/// Collects strings, but for those of `NO_MESSAGES` and of attributes, which are comments.
fn strings(tokens: TokenStream, all: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let before = |n: usize| at.checked_sub(n).map(|at| word(&tokens[at])).unwrap_or_default();
        match token {
            TokenTree::Group(_) if before(1) == "#" => {}
            TokenTree::Group(_) if NO_MESSAGES.iter().any(|name| before(1) == *name) => {}
            TokenTree::Group(_) if before(1) == "!" && NO_MESSAGES.iter().any(|name| before(2) == *name) => {}
            TokenTree::Group(group) => strings(group.stream(), all),
            token => all.extend(string(token)),
        }
    }
}

/// Whether an error of a list is made there: `PjrtError::new`, `TrainError::of_key`, but not `TrainError::from`.
fn makes_an_error(tokens: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let text = |at: usize| tokens.get(at).map(word).unwrap_or_default();
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Group(group) => makes_an_error(group.stream()),
        token => {
            ERRORS.contains(&word(token).as_str())
                && (text(at + 1), text(at + 2)) == (":".to_string(), ":".to_string())
                && !["from", "cause", "to_string"].contains(&text(at + 3).as_str())
        }
    })
}

/// The longest part of a sentence that is always the same: what stands between two values.
fn fixed_part(sentence: &str) -> String {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    let plain = sentence.replace("{{", "\u{1}").replace("}}", "\u{2}");
    for c in plain.chars() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                parts.push(String::new());
            }
            _ if depth > 0 => {}
            '\u{1}' => parts.last_mut().expect("there is one").push('{'),
            '\u{2}' => parts.last_mut().expect("there is one").push('}'),
            c => parts.last_mut().expect("there is one").push(c),
        }
    }
    parts.into_iter().max_by_key(|part| part.len()).unwrap_or_default().trim().to_string()
}

/// The sentences of a file's errors.
fn sentences(text: &str) -> Vec<String> {
    let mut file = syn::parse_file(text).expect("it is Rust");
    without_tests(&mut file.items);
    let mut all = Vec::new();
    let attributes = |attributes: &[syn::Attribute], all: &mut Vec<String>| {
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("error")) {
            if let syn::Meta::List(list) = &attribute.meta {
                strings(list.tokens.clone(), all);
            }
        }
    };
    let mut of_function = |block: &syn::Block| {
        if makes_an_error(block.to_token_stream()) {
            strings(block.to_token_stream(), &mut all);
        }
    };
    for item in &file.items {
        match item {
            syn::Item::Fn(function) => of_function(&function.block),
            syn::Item::Impl(item) => item.items.iter().for_each(|item| {
                if let syn::ImplItem::Fn(function) = item {
                    of_function(&function.block);
                }
            }),
            _ => {}
        }
    }
    for item in &file.items {
        if let syn::Item::Enum(item) = item {
            item.variants.iter().for_each(|variant| attributes(&variant.attrs, &mut all));
        }
    }
    all.retain(|sentence| fixed_part(sentence).split_whitespace().count() >= N_WORDS);
    all
}

/// The bodies of modules called `tests`. Tokens are enough, and quicker than a tree.
fn modules_of_tests(tokens: TokenStream, all: &mut Vec<TokenStream>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate().skip(2) {
        if let (TokenTree::Group(body), "mod", "tests") =
            (token, word(&tokens[at - 2]).as_str(), word(&tokens[at - 1]).as_str())
        {
            all.push(body.stream());
        }
    }
}

/// Strings of tests: of whole files, and of the test modules of others.
fn strings_of_tests() -> String {
    let mut all = Vec::new();
    let is_of_tests =
        |path: &PathBuf| path.starts_with("tests") || path.iter().any(|name| name == "tests" || name == "tests.rs");
    for (path, text) in rust_files("tests").into_iter().chain(rust_files("crates")) {
        let tokens: TokenStream = text.parse().expect("it is Rust");
        let mut bodies = Vec::new();
        match is_of_tests(&path) {
            true => bodies.push(tokens),
            false => modules_of_tests(tokens, &mut bodies),
        }
        bodies.into_iter().for_each(|body| strings(body, &mut all));
    }
    // Where a test writes values, any value stands.
    all.join("\n").replace("{{", "{").replace("}}", "}")
}

#[test]
fn a_sentence_is_told_from_a_log_and_from_what_changes_in_it() {
    let text = r#"
        #[derive(thiserror::Error)]
        enum ChildError {
            #[error("{doing}: it took {measured} seconds, which is too long")]
            Timeout,
        }
        fn f() -> TrainError { tracing::debug!("this is no message"); TrainError::new(Kind, Place, "no such thing at all") }
        fn g() -> TrainError { other("nothing is made here").map_err(TrainError::from) }
        #[cfg(test)]
        mod tests { fn h() { TrainError::new(Kind, Place, "made in a test alone") } }"#;
    assert_eq!(sentences(text), ["no such thing at all", "{doing}: it took {measured} seconds, which is too long"]);
    assert_eq!(
        fixed_part("{doing}: it took {measured} seconds, which is {{too}} long"),
        "seconds, which is {too} long"
    );
}

#[test]
fn every_message_is_in_a_test() {
    let read = strings_of_tests();
    let mut unread: BTreeSet<(PathBuf, String)> = BTreeSet::new();
    let mut n_sentences = 0;
    for (path, text) in CRATES.iter().flat_map(|folder| rust_files(folder)) {
        for sentence in sentences(&text) {
            n_sentences += 1;
            // A message of several lines is compared line by line.
            if !fixed_part(&sentence).lines().all(|line| read.contains(line.trim())) {
                unread.insert((path.clone(), sentence));
            }
        }
    }
    assert!(n_sentences > 200, "{n_sentences} messages");
    let unread = unread.into_iter().map(|(path, sentence)| format!("{}: {sentence}", path.display()));
    check(unread.collect(), "a message that no test reads is compared with the whole text in one");
}
