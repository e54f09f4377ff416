//! Every message of an error is read by a test.
//!
//! A sentence is a string of several words in an `#[error]` attribute, or in a function that constructs an error. It
//! counts as read if all its constant parts are in strings of tests. Reviews check that the test compares the whole
//! message.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use super::{Source, check, is_source, parsed, rust_files, sources};

/// The errors whose sentences are written where the fault is detected.
const ERRORS: [&str; 34] = [
    "ArrayError",
    "AuditError",
    "CheckpointError",
    "ChildError",
    "ConfigProblem",
    "DataError",
    "ExplainError",
    "FileError",
    "ForeignError",
    "GraphError",
    "InstallError",
    "NodeError",
    "PackageError",
    "ParseError",
    "ParseErrorKind",
    "ParseNumberError",
    "PassError",
    "PjrtError",
    "PlacementError",
    "PolicyError",
    "ProgramError",
    "ProtoError",
    "ReadError",
    "RuleError",
    "RulesError",
    "RunError",
    "ShardError",
    "StudyError",
    "TargetError",
    "TpuError",
    "TrainError",
    "WeightNameError",
    "WeightsError",
    "WriteError",
];

/// Errors that become parts of those, or add a place to them.
const INNER: [&str; 16] = [
    "BatchDimError",
    "BuildError",
    "ConfigError",
    "EmitError",
    "HeaderError",
    "InteropError",
    "LengthError",
    "MakeError",
    "NotAlone",
    "Problem",
    "SettingsError",
    "TextProblem",
    "VerifyError",
    "VerifyErrors",
    "WireError",
    "ZipError",
];

/// All of them.
fn errors() -> impl Iterator<Item = &'static str> {
    ERRORS.into_iter().chain(INNER)
}

/// Strings that are not messages: those of logs, and those about bugs of ours.
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

/// The fewest words that make a string a sentence.
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

/// Collects strings, except those of `NO_MESSAGES` and of attributes, which are comments.
fn strings(tokens: TokenStream, all: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_none = |name: &str| NO_MESSAGES.contains(&name);
    for (at, token) in tokens.iter().enumerate() {
        let before = |n: usize| at.checked_sub(n).map(|at| word(&tokens[at])).unwrap_or_default();
        match token {
            TokenTree::Group(_) if before(1) == "#" => {}
            // A function `expect` of a test is no method: it compares whole messages.
            TokenTree::Group(_) if is_none(&before(1)) && (!before(1).starts_with("expect") || before(2) == ".") => {}
            // `expect!` holds what a test compares with.
            TokenTree::Group(_) if before(1) == "!" && before(2) != "expect" && is_none(&before(2)) => {}
            TokenTree::Group(group) => strings(group.stream(), all),
            token => all.extend(string(token)),
        }
    }
}

/// Whether an error is constructed there: by `PjrtError::new` or `TrainError::of_key`, but not by `TrainError::from`;
/// or by a function of the file that returns one.
fn makes_an_error(tokens: TokenStream, makers: &BTreeSet<String>) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let text = |at: usize| tokens.get(at).map(word).unwrap_or_default();
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Group(group) => makes_an_error(group.stream(), makers),
        token if makers.contains(&word(token)) => matches!(tokens.get(at + 1), Some(TokenTree::Group(_))),
        token => {
            let name = word(token);
            errors().any(|error| error == name)
                && (text(at + 1), text(at + 2)) == (":".to_string(), ":".to_string())
                && !["from", "cause", "to_string"].contains(&text(at + 3).as_str())
        }
    })
}

/// The functions of a file, with their bodies.
fn functions(file: &syn::File) -> Vec<(&syn::Signature, &syn::Block)> {
    let mut all = Vec::new();
    for item in &file.items {
        match item {
            syn::Item::Fn(function) => all.push((&function.sig, &*function.block)),
            syn::Item::Impl(item) => all.extend(item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(function) => Some((&function.sig, &function.block)),
                _ => None,
            })),
            _ => {}
        }
    }
    all
}

/// The constant parts of a sentence: the texts between two values, or between a value and a line's end, if they have
/// several words.
fn fixed_parts(sentence: &str) -> Vec<String> {
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
    let lines = parts.iter().flat_map(|part| part.lines()).map(|line| line.trim().to_string());
    lines.filter(|line| line.split_whitespace().count() >= N_WORDS).collect()
}

/// The sentences of a file's errors.
pub fn sentences(file: &syn::File) -> Vec<String> {
    let mut all = Vec::new();
    let attributes = |attributes: &[syn::Attribute], all: &mut Vec<String>| {
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("error")) {
            if let syn::Meta::List(list) = &attribute.meta {
                strings(list.tokens.clone(), all);
            }
        }
    };
    let functions = functions(file);
    let is_maker = |signature: &syn::Signature| {
        let output = signature.output.to_token_stream().to_string();
        errors().any(|error| output == format!("-> {error}"))
    };
    let makers = functions.iter().filter(|(signature, _)| is_maker(signature));
    let makers: BTreeSet<String> = makers.map(|(signature, _)| signature.ident.to_string()).collect();
    for (_, block) in functions {
        if makes_an_error(block.to_token_stream(), &makers) {
            strings(block.to_token_stream(), &mut all);
        }
    }
    for item in &file.items {
        match item {
            syn::Item::Enum(item) => item.variants.iter().for_each(|variant| attributes(&variant.attrs, &mut all)),
            syn::Item::Struct(item) => attributes(&item.attrs, &mut all),
            _ => {}
        }
    }
    all.retain(|sentence| !fixed_parts(sentence).is_empty());
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

/// Strings of a file's tests: all of a file of tests, and those of the test modules of another.
pub fn strings_of_tests(path: &Path, tokens: TokenStream) -> Vec<String> {
    let (mut bodies, mut all) = (Vec::new(), Vec::new());
    match path.iter().any(|name| name == "tests" || name == "tests.rs") {
        true => bodies.push(tokens),
        false => modules_of_tests(tokens, &mut bodies),
    }
    bodies.into_iter().for_each(|body| strings(body, &mut all));
    all
}

/// Strings of all tests, beside the sources and among them.
fn strings_of_all_tests() -> String {
    let beside = rust_files("tests").into_iter().chain(rust_files("crates"));
    let beside = beside.filter(|(path, _)| !is_source(path));
    let beside = beside.flat_map(|(path, text)| strings_of_tests(&path, text.parse().expect("it is Rust")));
    let mut all: Vec<String> = beside.collect();
    all.extend(sources().iter().flat_map(|source| source.strings_of_tests.iter().cloned()));
    // Where a test writes values, any value matches.
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
        #[derive(thiserror::Error)]
        #[error("{0:?} is no such word")]
        struct UnknownWord(String);
        fn f() -> TrainError { tracing::debug!("this is no message"); TrainError::new(Kind, Place, "no such thing at all") }
        fn g() -> Result<(), TrainError> { other("nothing is made here").map_err(TrainError::from) }
        fn h() -> Result<(), TrainError> { Err(made(format!("{n} are made by another"))) }
        fn made(text: String) -> TrainError { TrainError::new(Kind, Place, text) }
        #[cfg(test)]
        mod tests { fn h() { TrainError::new(Kind, Place, "made in a test alone") } }"#;
    assert_eq!(
        sentences(&parsed(text.parse().unwrap())),
        [
            "no such thing at all",
            "{n} are made by another",
            "{doing}: it took {measured} seconds, which is too long",
            "{0:?} is no such word"
        ]
    );
    assert_eq!(
        fixed_parts("{doing}: it took {measured} whole seconds, which is {{too}} long\nhelp: raise the limit"),
        [": it took", "whole seconds, which is {too} long", "help: raise the limit"]
    );
}

#[test]
fn every_message_is_in_a_test() {
    let read = strings_of_all_tests();
    let mut unread: BTreeSet<(&Path, &String)> = BTreeSet::new();
    let mut n_sentences = 0;
    for Source { path, sentences, .. } in sources().iter().filter(|source| source.path.starts_with("crates")) {
        for sentence in sentences {
            n_sentences += 1;
            if !fixed_parts(sentence).iter().all(|part| read.contains(part)) {
                unread.insert((path.as_path(), sentence));
            }
        }
    }
    assert!(n_sentences > 300, "{n_sentences} messages");
    let unread = unread.into_iter().map(|(path, sentence)| format!("{}: {sentence}", path.display()));
    check(unread.collect(), "a message that no test reads is compared with the whole text in one");
}
