//! Text: ids as Hugging Face's tokenizers make them, windows, packs and single texts of them, and a decoder that completes one.

use bf16scope::data::text::{By, Fields, Length, Mask, Options, TextExamples, Texts, Tokenizer};
use bf16scope::data::{Draw, Elements, Source};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text")
}

fn json(name: &str) -> Json {
    serde_json::from_slice(&fs::read(folder().join(name)).unwrap()).unwrap()
}

fn texts() -> Vec<String> {
    serde_json::from_value(json("texts.json")).unwrap()
}

fn ids(value: &Json) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn tokenizer(name: &str) -> Tokenizer {
    let file = match name {
        "vocab" | "vocab_cased" => "vocab.txt".to_string(),
        name => format!("{name}.json"),
    };
    Tokenizer::read(folder().join(file), name == "vocab").unwrap()
}

fn options(tokenizer: &str) -> Options {
    Options {
        tokenizer: tokenizer.to_string(),
        lowercase: None,
        by: None,
        field: None,
        label: None,
        classes: Vec::new(),
        window: None,
        stride: None,
        pack: None,
        max_length: None,
        separator: None,
        pad: None,
        mask: None,
    }
}

/// The texts of `files`, as the options have them.
fn texts_of(files: &[PathBuf], options: &Options, tokenizer: &Tokenizer, n_workers: usize) -> Texts {
    let is_json = files[0].extension().is_some_and(|ending| ending == "jsonl");
    Texts {
        files: files.to_vec(),
        format: options.format(is_json, true),
        separator: options.separator_id(tokenizer).unwrap(),
        n_workers,
        n_skipped_max: 0,
        cache: bf16scope::files::Cache::default(),
    }
}

fn examples(files: &[PathBuf], options: &Options, tokenizer: &Tokenizer) -> TextExamples {
    TextExamples::new(&texts_of(files, options, tokenizer, 2), tokenizer, options).unwrap()
}

/// The array of an example, as numbers.
fn array(source: &dyn Source, index: u64, name: &str) -> Vec<i64> {
    numbers(source, &source.read(index).unwrap(), name)
}

fn numbers(source: &dyn Source, example: &[std::borrow::Cow<'_, [u8]>], name: &str) -> Vec<i64> {
    let at = source.arrays().iter().position(|info| info.name == name).unwrap();
    let words = example[at].as_chunks::<4>().0;
    let is_float = source.arrays()[at].dtype.is_float();
    let number =
        |word: &[u8; 4]| if is_float { f32::from_le_bytes(*word) as i64 } else { i64::from(i32::from_le_bytes(*word)) };
    words.iter().map(number).collect()
}

#[test]
fn ids_are_those_of_hugging_faces_tokenizers() {
    let (texts, expected) = (texts(), json("expected.json"));
    let folder = tempfile::tempdir().unwrap();
    for (name, expected) in expected["tokenizers"].as_object().unwrap() {
        let tokenizer = tokenizer(name);
        let frame = tokenizer.frame(1);
        let around = |part: usize| frame.around[part].iter().map(|(id, _)| *id);
        for (number, text) in texts.iter().enumerate() {
            let bare = tokenizer.encode(text).unwrap();
            assert_eq!(bare, ids(&expected["bare"][number]), "{name}: {text:?}");
            let whole: Vec<u32> = around(0).chain(bare).chain(around(2)).collect();
            assert_eq!(whole, ids(&expected["whole"][number]), "{name}: {text:?}");
        }
        // Pairs, cut to 16 ids with those around them.
        let pairs: Vec<[usize; 2]> = serde_json::from_value(json("expected.json")["pairs"].clone()).unwrap();
        let line = |&[a, b]: &[usize; 2]| serde_json::json!({"a": texts[a], "b": texts[b]}).to_string() + "\n";
        let file = folder.path().join(format!("{name}.jsonl"));
        fs::write(&file, pairs.iter().map(line).collect::<String>()).unwrap();
        let fields = Some(Fields(vec!["a".to_string(), "b".to_string()]));
        let options = Options { field: fields, max_length: Some(Length(16)), ..options(name) };
        let source = examples(&[file], &options, &tokenizer);
        assert_eq!(source.n_examples(), pairs.len() as u64);
        for number in 0..pairs.len() {
            let wanted = ids(&expected["pairs"][number]);
            let n = wanted.len();
            let tokens = array(&source, number as u64, "tokens");
            assert!(
                tokens[..n].iter().zip(&wanted).all(|(a, b)| *a == i64::from(*b)),
                "{name}: pair {number}: {tokens:?} {wanted:?}"
            );
            let segments = array(&source, number as u64, "segments");
            let wanted = ids(&expected["segments"][number]);
            assert!(segments[..n].iter().zip(&wanted).all(|(a, b)| *a == i64::from(*b)), "{name}: pair {number}");
            assert_eq!((tokens.len(), segments[n..].iter().sum::<i64>()), (16, 0));
        }
    }
}

/// Texts are cut into pieces where the ids allow it, cached, and distributed over threads: for 300 KB of unusual text,
/// the ids are those of the tokenizer on the whole.
#[test]
fn ids_of_a_long_text_are_those_of_the_whole() {
    let texts = texts();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("long.txt");
    let mut whole = String::new();
    let mut number = 0u64;
    while whole.len() < 300_000 {
        number += 1;
        let pick = (Draw::new(1, 2, number).share() * (texts.len() * 7) as f64) as usize;
        let text = &texts[pick % texts.len()];
        // Some begin and end within a word, so that their joints are new.
        let cut = text.char_indices().nth(pick / texts.len()).map_or(0, |(at, _)| at);
        whole += &text[cut..];
        whole += ["", " ", "\n", "  ", "\n\n", " \n", "\t"][pick % 7];
    }
    fs::write(&file, &whole).unwrap();
    for name in ["byte_level", "byte_level_prefix", "bert", "words", "unigram"] {
        let tokenizer = tokenizer(name);
        let options = Options { window: Some(Length(1000)), by: Some(By::File), ..options(name) };
        let reference = tokenizers::Tokenizer::from_file(folder_of(name)).unwrap();
        let encoding = reference.encode(whole.as_str(), false).unwrap();
        let expected: Vec<i64> = encoding.get_ids().iter().map(|&id| i64::from(id)).collect();
        let texts = texts_of(std::slice::from_ref(&file), &options, &tokenizer, 3);
        let source = TextExamples::new(&texts, &tokenizer, &options).unwrap();
        assert_eq!(source.n_tokens(), expected.len() as u64, "{name}");
        for (index, wanted) in expected.chunks_exact(1000).enumerate().take(source.n_examples() as usize) {
            assert_eq!(array(&source, index as u64, "tokens"), wanted, "{name}: window {index}");
        }
    }
}

fn folder_of(name: &str) -> PathBuf {
    folder().join(format!("{name}.json"))
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn windows_follow_one_another_and_their_labels_are_the_tokens_that_follow() {
    let folder = tempfile::tempdir().unwrap();
    let files = [write(folder.path(), "a.txt", b"abcdefgh"), write(folder.path(), "b.txt", &[0xFF, b'i', b'j', b'k'])];
    let bytes = Tokenizer::bytes();
    let source_with = |window, stride| {
        let options = Options { window: Some(Length(window)), stride: Some(Length(stride)), ..options("bytes") };
        examples(&files, &options, &bytes)
    };
    let source = source_with(4, 3);
    // 12 ids: windows begin at 0, 3 and 6; one at 9 would have no token after it.
    assert_eq!(source.n_examples(), 3);
    let all: Vec<i64> = b"abcdefgh\xFFijk".iter().map(|&byte| i64::from(byte)).collect();
    for index in 0..3 {
        let start = 3 * index as usize;
        assert_eq!(array(&source, index, "tokens"), all[start..start + 4]);
        assert_eq!(array(&source, index, "labels"), all[start + 1..start + 5]);
    }
    assert!(source.read(3).unwrap_err().to_string().contains("expected one of 3"));
    // Windows that would be in both parts are in neither.
    let (training, test) = source_with(4, 1).split_tail(2).unwrap();
    assert_eq!((training.n_examples(), test.n_examples()), (8 - 2 - 3, 2));
    assert_eq!(array(&test, 0, "tokens"), all[6..10]);
    assert_eq!(array(&training, 2, "labels").last(), Some(&all[6]));
    assert_ne!(training.fingerprint(), test.fingerprint());
    let error = source_with(4, 1).split_tail(5).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot keep 5 examples for testing; the text makes 8, and one must be left to train on beside 3 that overlap them"
    );
    let short = Options { window: Some(Length(12)), ..options("bytes") };
    let error = TextExamples::new(&texts_of(&files, &short, &bytes, 1), &bytes, &short).unwrap_err().to_string();
    assert_eq!(
        error.replace(&folder.path().display().to_string(), ""),
        "/a.txt: 12 tokens; expected 13 at least: `window: 12`, and the token after it\nhelp: shorten it, or name more text"
    );
}

#[test]
fn packs_hold_as_many_texts_as_fit_each_with_its_segment_and_positions() {
    let folder = tempfile::tempdir().unwrap();
    let files =
        [write(folder.path(), "a.txt", b"abc\n\nde\nfghij\nk\n"), write(folder.path(), "b.txt", b"0123456789\r\nlm")];
    let source = examples(&files, &Options { pack: Some(Length(6)), ..options("bytes") }, &Tokenizer::bytes());
    let shown = |index| {
        let values = |name| array(&source, index, name);
        let text: String = values("tokens").iter().map(|&id| if id == 0 { '.' } else { id as u8 as char }).collect();
        let next: String = values("labels").iter().map(|&id| if id == 0 { '.' } else { id as u8 as char }).collect();
        let digits = |name| values(name).iter().map(i64::to_string).collect::<String>();
        [text, next, digits("segments"), digits("positions"), digits("weights")]
    };
    assert_eq!(source.n_examples(), 4);
    assert_eq!(shown(0), ["abcde.", "bc.e..", "111220", "012010", "110100"]);
    assert_eq!(shown(1), ["fghijk", "ghij..", "111112", "012340", "111100"]);
    assert_eq!(shown(2), ["012345", "12345.", "111111", "012345", "111110"]);
    // The rest of a long text, and the next.
    assert_eq!(shown(3), ["6789lm", "789.m.", "111122", "012301", "111010"]);
    assert!(source.place(1).ends_with("a.txt:4") && source.place(3).ends_with("b.txt:1"), "{}", source.place(1));
}

#[test]
fn lines_of_json_are_texts_with_labels_and_broken_ones_are_named_or_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let lines =
        "{\"text\": \"the earth\", \"kind\": \"good\"}\n\n{\"kind\": \"bad\", \"text\": \"void\", \"x\": [1]}\n";
    let file = write(folder.path(), "a.jsonl", lines.as_bytes());
    let tokenizer = tokenizer("vocab");
    let of_labels = Options {
        label: Some("kind".to_string()),
        classes: vec!["bad".to_string(), "good".to_string()],
        max_length: Some(Length(12)),
        ..options("vocab.txt")
    };
    let source = examples(std::slice::from_ref(&file), &of_labels, &tokenizer);
    let labels: Vec<Vec<u8>> = (0..2).map(|index| source.read(index).unwrap()[1].to_vec()).collect();
    assert_eq!(labels, [1i64.to_le_bytes(), 0i64.to_le_bytes()]);
    let (tokens, weights) = (array(&source, 0, "tokens"), array(&source, 0, "weights"));
    let n = weights.iter().sum::<i64>() as usize;
    let special = |token| i64::from(tokenizer.id(token).unwrap());
    assert_eq!((tokens[0], tokens[n - 1], tokens[n]), (special("[CLS]"), special("[SEP]"), special("[PAD]")));
    assert!(source.place(1).ends_with("a.jsonl:3"));
    let refused = |line: &str| {
        let file = write(folder.path(), "b.jsonl", format!("{lines}{line}\n{lines}").as_bytes());
        let mut texts = texts_of(std::slice::from_ref(&file), &of_labels, &tokenizer, 2);
        let error = TextExamples::new(&texts, &tokenizer, &of_labels).unwrap_err().to_string();
        texts.n_skipped_max = 1;
        assert_eq!(TextExamples::new(&texts, &tokenizer, &of_labels).unwrap().n_examples(), 4);
        error.replace(&folder.path().display().to_string(), "")
    };
    for (line, expected) in [
        ("{\"text\": \"a\"", "/b.jsonl:4: no JSON object: EOF while parsing"),
        ("[1]", "/b.jsonl:4: no JSON object: invalid type: sequence"),
        (
            "{\"text\": \"a\", \"kind\": \"bad\", \"text\": \"b\"}",
            "/b.jsonl:4: no JSON object: the key `text` twice in one object",
        ),
        (
            "{\"txt\": \"a\", \"kind\": \"bad\"}",
            "/b.jsonl:4: there is no field `text`; it has `kind`, `txt`\nhelp: name the fields under `tokens`: `field: …`, \
             `label: …`; or leave such lines out: `on_error: {skip: N}` under `data`",
        ),
        ("{\"text\": 3, \"kind\": \"bad\"}", "/b.jsonl:4: field `text` is a number; expected a string"),
        ("{\"text\": \"a\", \"kind\": \"ugly\"}", "/b.jsonl:4: field `kind` is \"ugly\"; expected one of bad, good"),
        ("{\"text\": \"a\", \"kind\": 0.5}", "/b.jsonl:4: field `kind` is 0.5; expected a whole number"),
    ] {
        let error = refused(line);
        assert!(error.starts_with(expected), "{error}");
    }
    assert!(refused("[1]").contains("; expected one a line, such as {\"text\": \"…\"}"));
}

#[test]
fn tokens_that_a_tokenizer_lacks_and_texts_that_it_does_not_take_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "a.txt", b"one two\n");
    let refused = |file: &PathBuf, options: &Options, tokenizer: &Tokenizer| {
        let texts = texts_of(std::slice::from_ref(file), options, tokenizer, 1);
        let error = TextExamples::new(&texts, tokenizer, options).unwrap_err();
        error.to_string().replace(&format!("{}/", folder.path().display()), "")
    };
    let bytes = Tokenizer::bytes();
    let pad = Options { pad: Some("[NONE]".to_string()), ..options("bytes") };
    assert_eq!(
        refused(&file, &pad, &bytes),
        "bytes: there is no token `[NONE]`, which fills examples; expected one of the tokenizer's\nhelp: name another `pad`"
    );
    let mask = Options { mask: Some(Mask::default()), ..options("bytes") };
    assert_eq!(
        refused(&file, &mask, &bytes),
        "bytes: there is no token `[MASK]`, which stands for masked ones; expected one of the tokenizer's\n\
         help: name the token under `mask`: `{token: …}`"
    );
    let short = Options { max_length: Some(Length(2)), ..options("vocab.txt") };
    assert_eq!(
        refused(&file, &short, &tokenizer("vocab")),
        "a.txt: 2 tokens; expected 3 at least: 2 that the tokenizer puts around a text, and one of it\n\
         help: shorten it, or name more text"
    );
    let words = write(
        folder.path(),
        "words.json",
        br#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"one": 0}, "unk_token": "[UNK]"}}"#,
    );
    let message = refused(&file, &options("words.json"), &Tokenizer::read(words, false).unwrap());
    let expected =
        "a.txt:1: the tokenizer makes no ids of it: WordLevel error: Missing [UNK] token from the vocabulary";
    assert!(message.starts_with(expected), "{message}");
    let holes = folder.path().join("holes.txt");
    fs::File::create(&holes).unwrap().set_len(2 << 30).unwrap();
    let message = refused(&holes, &options("bytes"), &bytes);
    assert!(message.starts_with("holes.txt: the file has 2147483648 bytes, and "), "{message}");
    assert!(message.ends_with(" are stored: the rest are holes\nhelp: name a file of text"), "{message}");
}

#[test]
fn what_is_no_text_is_said_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer("byte_level");
    let refused = |name: &str, bytes: &[u8], by| {
        let file = write(folder.path(), name, bytes);
        let options = Options { window: Some(Length(4)), by: Some(by), ..options("byte_level.json") };
        let error = TextExamples::new(&texts_of(&[file], &options, &tokenizer, 2), &tokenizer, &options).unwrap_err();
        error.to_string().replace(&folder.path().display().to_string(), "")
    };
    let long = [&b"word ".repeat(120_000)[..], b"caf\xe9 au lait"].concat();
    for by in [By::File, By::Line] {
        assert_eq!(refused("a.txt", b"", by), "/a.txt: the file is empty; expected text");
        let place = if by == By::File { "/a.txt" } else { "/a.txt:1" };
        assert_eq!(
            refused("a.txt", &long, by),
            format!(
                "{place}: byte 600003 of the file is not UTF-8; expected text in UTF-8\nhelp: convert it (`iconv -f LATIN1 -t UTF-8`), or \
                 take bytes as they are: `tokenizer: bytes`"
            )
        );
    }
    assert!(
        refused("a.txt", b"one\ntwo\n\nth\xffree\n", By::Line)
            .starts_with("/a.txt:4: byte 11 of the file is not UTF-8")
    );
    assert_eq!(refused("a.txt", b"\n\r\n\n", By::Line), "/a.txt: nothing in it but empty lines; expected text");
}

#[test]
fn masks_are_drawn_by_epoch_and_an_evaluation_has_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "a.txt", texts()[..3].join("\n").as_bytes());
    let tokenizer = tokenizer("vocab");
    let options = Options { max_length: Some(Length(64)), mask: Some(Mask::default()), ..options("vocab.txt") };
    let source = examples(&[file], &options, &tokenizer);
    let plain = Options { mask: None, ..options.clone() };
    let whole = examples(&[folder.path().join("a.txt")], &plain, &tokenizer);
    let drawn = |epoch| {
        let mut example = vec![Cow::default(); source.arrays().len()];
        let take = &mut |array: usize, elements: Elements<'_>| {
            example[array] = Cow::Owned(elements.bytes().into_owned());
            Ok(())
        };
        source.give(0, Some(Draw::new(3, epoch, 0)), take).unwrap();
        example
    };
    let [first, second] = [drawn(0), drawn(1)].map(|example| numbers(&source, &example, "tokens"));
    assert_ne!(first, second);
    assert_eq!(first, numbers(&source, &drawn(0), "tokens"));
    assert_eq!(source.read(1).unwrap(), source.read(1).unwrap());
    let (tokens, weights) = (array(&source, 0, "tokens"), array(&source, 0, "weights"));
    let original = array(&whole, 0, "tokens");
    let n = array(&whole, 0, "segments").len().min(original.iter().filter(|&&id| id != 0).count());
    assert_eq!(array(&source, 0, "labels")[..n], original[..n]);
    assert_eq!(weights.iter().sum::<i64>(), (n as f64 * 0.15).round_ties_even() as i64);
    assert!((0..n).all(|at| weights[at] == 1 || tokens[at] == original[at]));
}
