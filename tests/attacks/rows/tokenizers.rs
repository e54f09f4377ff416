//! `tokenizer.json` with a part replaced.

use super::Row;
use bf16scope::data::text::{Encoder, Tokenizer};
use serde_json::{Value as Json, json};
use std::path::Path;

fn read(path: &Path) -> Result<String, String> {
    let tokenizer = Tokenizer::read(path, false).map_err(|error| error.to_string())?;
    let mut encoder = Encoder::new(&tokenizer);
    let mut all = Vec::new();
    for text in ["a b ab", "", "c\u{0}🙂 aaaa"] {
        let mut ids = Vec::new();
        match encoder.encode(text.as_bytes(), &mut ids) {
            Ok(()) => all.push(format!("{ids:?}")),
            Err(error) => all.push(error),
        }
    }
    Ok(format!("{} ids, {}", tokenizer.vocabulary(), all.join(" ")))
}

fn base() -> Json {
    let words = ["[UNK]", "a", "b", "c", "ab", "##b", "<s>"];
    let vocabulary: Json = words.iter().enumerate().map(|(id, word)| (word.to_string(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["a", "b"]], "unk_token": "[UNK]"},
    })
}

fn with(path: &str, value: Json) -> Vec<u8> {
    let mut whole = base();
    match path.rsplit_once('/') {
        Some((parent, key)) => whole.pointer_mut(&format!("/{parent}")).unwrap()[key] = value,
        None => whole[path] = value,
    }
    serde_json::to_vec(&whole).unwrap()
}

/// A part, and its replacement.
fn parts() -> Vec<(&'static str, Json)> {
    let token = |id: Json, content: &str| json!([{"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}]);
    vec![
        ("version", json!("2.0")),
        ("version", json!(1)),
        ("truncation", json!({"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0})),
        ("truncation", json!({"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0})),
        ("truncation", json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5})),
        (
            "padding",
            json!({"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}),
        ),
        (
            "padding",
            json!({"strategy": {"Fixed": 4000000000u64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}),
        ),
        (
            "padding",
            json!({"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}),
        ),
        ("added_tokens", token(json!(7), "<x>")),
        ("added_tokens", token(json!(0), "<x>")),
        ("added_tokens", token(json!(4294967295u64), "<x>")),
        ("added_tokens", token(json!(4294967296u64), "<x>")),
        ("added_tokens", token(json!(-1), "<x>")),
        ("added_tokens", token(json!(7), "")),
        ("added_tokens", json!({})),
        ("model", json!(null)),
        ("model", json!({})),
        ("model", json!([])),
        ("model/type", json!("Nothing")),
        ("model/type", json!("WordPiece")),
        ("model/type", json!("Unigram")),
        ("model/vocab", json!({})),
        ("model/vocab", json!([])),
        ("model/vocab", json!({"a": -1})),
        ("model/vocab", json!({"a": 4294967296u64})),
        ("model/vocab", json!({"a": 1.5})),
        ("model/vocab", json!({"[UNK]": 0, "a": 1, "b": 1, "ab": 2})),
        ("model/vocab", json!({"[UNK]": 0, "a": 1, "b": 2, "ab": 4294967295u64})),
        ("model/vocab", json!({"[UNK]": 0, "": 1, "a": 2, "b": 3, "ab": 4})),
        ("model/merges", json!([])),
        ("model/merges", json!(null)),
        ("model/merges", json!("a b")),
        ("model/merges", json!(["ab"])),
        ("model/merges", json!(["a b c"])),
        ("model/merges", json!([["a"]])),
        ("model/merges", json!([["a", "x"]])),
        ("model/merges", json!([["a", "c"]])),
        ("model/merges", json!([["", "a"]])),
        ("model/merges", json!([["a", "b"], ["a", "b"]])),
        ("model/unk_token", json!("<none>")),
        ("model/unk_token", json!(5)),
        ("model/dropout", json!(0.5)),
        ("model/dropout", json!(-1.0)),
        ("model/dropout", json!(2.0)),
        ("model/byte_fallback", json!(true)),
        ("model/ignore_merges", json!(true)),
        ("model/end_of_word_suffix", json!("</w>")),
        ("model/continuing_subword_prefix", json!("##")),
        ("model/continuing_subword_prefix", json!("a very long prefix that nothing begins with")),
        ("normalizer", json!({"type": "Nothing"})),
        ("normalizer", json!({"type": "Sequence", "normalizers": []})),
        ("normalizer", json!({"type": "Sequence"})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""})),
        ("normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x"})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "(a*)*$"}, "content": "x"})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "a{1000}{1000}{1000}"}, "content": "x"})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "????"})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAA="})),
        ("normalizer", json!({"type": "Prepend", "prepend": "▁"})),
        ("normalizer", json!({"type": "StripAccents"})),
        ("pre_tokenizer", json!(null)),
        ("pre_tokenizer", json!({"type": "Nothing"})),
        ("pre_tokenizer", json!({"type": "Split", "pattern": {"Regex": "["}, "behavior": "Removed", "invert": false})),
        ("pre_tokenizer", json!({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": false})),
        ("pre_tokenizer", json!({"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": true})),
        ("pre_tokenizer", json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Nothing", "invert": false})),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 1})),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 18446744073709551615u64})),
        ("pre_tokenizer", json!({"type": "Punctuation", "behavior": "Removed"})),
        ("pre_tokenizer", json!({"type": "CharDelimiterSplit", "delimiter": "ab"})),
        ("pre_tokenizer", json!({"type": "Metaspace", "replacement": "", "prepend_scheme": "always", "split": true})),
        (
            "pre_tokenizer",
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        ),
        ("post_processor", json!({"type": "Nothing"})),
        ("post_processor", json!({"type": "BertProcessing", "sep": ["[SEP]", 1000], "cls": ["[CLS]", 1001]})),
        (
            "post_processor",
            json!({"type": "RobertaProcessing", "sep": ["</s>", 4294967295u64], "cls": ["<s>", 6], "trim_offsets": true, "add_prefix_space": false}),
        ),
        ("post_processor", json!({"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}})),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single": "$A <s>", "pair": "$A $B", "special_tokens": {}}),
        ),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single": "$A", "pair": "$A $B:4294967296", "special_tokens": {}}),
        ),
        ("decoder", json!({"type": "Nothing"})),
        ("decoder", json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""})),
    ]
}

pub fn rows() -> Vec<Row> {
    let mut rows: Vec<(String, Vec<u8>)> = vec![
        ("as it should be".to_string(), serde_json::to_vec(&base()).unwrap()),
        ("nothing".to_string(), vec![]),
        ("null".to_string(), b"null".to_vec()),
        ("a number".to_string(), b"7".to_vec()),
        ("a list".to_string(), b"[]".to_vec()),
        ("an empty object".to_string(), b"{}".to_vec()),
        ("10,000 brackets".to_string(), "[".repeat(10_000).into_bytes()),
        ("no UTF-8".to_string(), b"\xff\xfe{\0}\0".to_vec()),
        ("cut".to_string(), serde_json::to_vec(&base()).unwrap()[..100].to_vec()),
    ];
    for (path, value) in parts() {
        let name = format!("{path}: {value}");
        rows.push((name, with(path, value)));
    }
    let row = |(name, bytes)| Row { area: "tokenizer", name, file: "tokenizer.json", bytes, read };
    rows.into_iter().map(row).collect()
}
