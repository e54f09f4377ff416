//! Words that a search finds: pages, help texts, messages and comments use the terms of papers, XLA and JAX, not a
//! private dialect.

use std::path::Path;

use super::{check, source_files};

/// Private words of this project, with the terms that replace them.
const WORDS: [(&str, &str); 23] = [
    ("lies in parts", "is sharded"),
    ("lie in parts", "are sharded"),
    ("state in parts", "sharded state"),
    ("made ids", "tokenized"),
    ("made to fill", "a decompression bomb"),
    ("cores talk", "collectives"),
    ("take to talk", "collectives"),
    ("no talking to", "cannot communicate with"),
    ("say to each other", "collectives, messages"),
    ("nobody reads layer", "unused layer"),
    ("nobody answers for", "nobody vouches for"),
    ("inks", "CMYK channels"),
    ("the greatest", "argmax, maximum, largest"),
    ("its greatest", "argmax, maximum, largest"),
    ("computed again", "rematerialised, recomputed"),
    ("gradient of its own", "custom VJP"),
    ("units for products", "matrix units (MXU)"),
    ("is its affair", "is its responsibility"),
    ("somebody else's bytes", "untrusted input"),
    ("others' bytes", "untrusted input"),
    ("where something happens", "at every change"),
    ("is recorded what happens", "the run is recorded"),
    ("board eats", "board consumes"),
];

/// Phrases of `WORDS` in a text, as whole words.
fn found_in(text: &str) -> Vec<String> {
    let text = text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let holds = |phrase: &str| {
        text.match_indices(phrase).any(|(at, _)| {
            !is_letter(text[..at].chars().next_back()) && !is_letter(text[at + phrase.len()..].chars().next())
        })
    };
    WORDS.iter().filter(|(phrase, _)| holds(phrase)).map(|(phrase, say)| format!("`{phrase}`: say {say}")).collect()
}

/// The parts of Rust code that people read: comments and strings. A name in braces is code.
fn prose(text: &str) -> String {
    let mut prose = String::new();
    for line in text.lines() {
        match line.trim_start().strip_prefix("//") {
            Some(comment) => prose += comment.trim_start_matches(['/', '!']),
            // The text in `a "text" b`.
            None => line.split('"').skip(1).step_by(2).for_each(|text| {
                prose += text;
                prose.push('\n');
            }),
        }
        prose.push(' ');
    }
    prose
}

#[test]
fn phrases_are_found_as_words() {
    let text = "/// The state that lies\n/// in parts.\nlet x = \"nobody reads layer `a`\"; let greatest = f(\"{greatest} drinks\");";
    assert_eq!(found_in(&prose(text)), ["`lies in parts`: say is sharded", "`nobody reads layer`: say unused layer"]);
    assert_eq!(found_in("The greatest, of equal ones the first"), ["`the greatest`: say argmax, maximum, largest"]);
}

#[test]
fn pages_and_messages_use_the_fields_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec!["README.md".to_string(), "ARCHITECTURE.md".to_string(), "python/README.md".to_string()];
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    pages.extend(
        docs.filter_map(|name| name.into_string().ok())
            .filter(|name| name.ends_with(".md"))
            .map(|name| format!("docs/{name}")),
    );
    assert!(pages.len() > 15, "{pages:?}");
    let mut phrases = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(root.join(&page)).unwrap();
        phrases.extend(found_in(&text).into_iter().map(|phrase| format!("{page}: {phrase}")));
    }
    for (path, text) in source_files() {
        phrases.extend(found_in(&prose(text)).into_iter().map(|phrase| format!("{}: {phrase}", path.display())));
    }
    check(phrases, "words that a search finds");
}
