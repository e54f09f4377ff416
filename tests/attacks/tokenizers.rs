//! Tokenizer files that make the `tokenizers` crate panic or exhaust the memory are refused with a one-sentence error.

use super::binary;
use bf16scope::data::text::Tokenizer;
use serde_json::{Value as Json, json};
use std::path::Path;

/// Valid tokenizers of each model over a few words.
fn bases() -> [(&'static str, Json); 4] {
    let words = ["[UNK]", "a", "b", "c", "ab", "##b", "<s>", "</s>", "▁a", "Ġa"];
    let vocabulary = || words.iter().enumerate().map(|(id, word)| (word.to_string(), json!(id))).collect::<Json>();
    let scores: Vec<Json> = words.iter().map(|word| json!([word, -1.5])).collect();
    let with = |model: Json| {
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": model,
        })
    };
    [
        ("BPE", with(json!({"type": "BPE", "vocab": vocabulary(), "merges": [["a", "b"]], "unk_token": "[UNK]"}))),
        ("WordLevel", with(json!({"type": "WordLevel", "vocab": vocabulary(), "unk_token": "[UNK]"}))),
        (
            "WordPiece",
            with(json!({
                "type": "WordPiece", "vocab": vocabulary(), "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
            })),
        ),
        ("Unigram", with(json!({"type": "Unigram", "vocab": scores, "unk_id": 0}))),
    ]
}

/// A tokenizer with one part replaced.
fn with(mut base: Json, path: &str, value: Json) -> Json {
    let (parent, key) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = if parent.is_empty() { &mut base } else { base.pointer_mut(&format!("/{parent}")).unwrap() };
    parent[key] = value;
    base
}

fn sequence(members: &str, step: Json, n: usize) -> Json {
    json!({"type": "Sequence", members: vec![step; n]})
}

fn nested(members: &str, step: Json, depth: usize) -> Json {
    (0..depth).fold(step, |inner, _| json!({"type": "Sequence", members: [inner]}))
}

fn replace(from: &str, n: usize) -> Json {
    json!({"type": "Replace", "pattern": {"String": from}, "content": "a".repeat(n)})
}

fn template(single: Json, pair: Json) -> Json {
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {
        "<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]},
    }})
}

fn text(id: &str) -> Json {
    json!({"Sequence": {"id": id, "type_id": 0}})
}

/// Unsupported parts, each with its error.
fn refused() -> Vec<(&'static str, &'static str, Json, &'static str)> {
    let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    vec![
        ("BPE", "model/continuing_subword_prefix", json!("##"), "does not begin with `continuing_subword_prefix` `##`"),
        (
            "BPE",
            "model/merges",
            json!([["ab", "c"], ["</s>", "</s>"]]),
            "makes `</s></s>`, which is not in its vocabulary",
        ),
        ("BPE", "model/merges", json!(["</s> </s>"]), "makes `</s></s>`, which is not in its vocabulary"),
        ("WordLevel", "pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "`FixedLength` has a length of 0"),
        (
            "WordLevel",
            "pre_tokenizer",
            sequence("pretokenizers", json!({"type": "FixedLength", "length": 0}), 2),
            "`FixedLength` has a length of 0",
        ),
        (
            "BPE",
            "pre_tokenizer",
            sequence(
                "pretokenizers",
                json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
                40,
            ),
            "`ByteLevel` 40 times",
        ),
        (
            "Unigram",
            "normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
            "is damaged: 3 bytes",
        ),
        ("Unigram", "normalizer", json!({"type": "Precompiled", "precompiled_charsmap": ""}), "is damaged: 0 bytes"),
        (
            "Unigram",
            "normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "/////wAA"}),
            "is damaged: a trie of",
        ),
        ("WordLevel", "normalizer", json!({"type": "Prepend", "prepend": ""}), "`Prepend` prepends nothing"),
        (
            "WordLevel",
            "post_processor",
            template(json!([text("A")]), json!([text("B")])),
            "the template `pair` of its post-processor has the text A 0 times",
        ),
        (
            "WordLevel",
            "post_processor",
            template(json!([text("A"), text("A")]), json!([text("A"), text("B")])),
            "the template `single` of its post-processor has the text A 2 times",
        ),
        (
            "WordLevel",
            "post_processor",
            template(json!([text("A"), special("<mask>")]), json!([text("A"), text("B")])),
            "has `<mask>`, which is not among its `special_tokens`",
        ),
        (
            "WordLevel",
            "post_processor",
            template(
                Json::Array([vec![special("<s>"); 5000], vec![text("A")]].concat()),
                json!([text("A"), text("B")]),
            ),
            "templates of 5003 tokens",
        ),
    ]
}

fn read(folder: &Path, tokenizer: &Json) -> Result<Tokenizer, String> {
    let path = folder.join("tokenizer.json");
    std::fs::write(&path, serde_json::to_vec(tokenizer).unwrap()).unwrap();
    Tokenizer::read(&path, false).map_err(|error| error.to_string())
}

#[test]
fn what_panicked_in_the_crate_is_said_before_it_is_run() {
    let folder = tempfile::tempdir().unwrap();
    let bases = std::collections::BTreeMap::from(bases());
    for (model, base) in &bases {
        read(folder.path(), base).unwrap_or_else(|error| panic!("{model}: {error}"));
    }
    for (model, path, value, message) in refused() {
        let error = read(folder.path(), &with(bases[model].clone(), path, value.clone())).unwrap_err();
        assert!(error.contains(message), "{model}, {path} = {value}: {error}");
    }
}

/// Nothing of it is reported on standard error, and the exit status is that of a wrong input.
#[test]
fn the_program_says_it_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let bases = std::collections::BTreeMap::from(bases());
    std::fs::write(folder.path().join("text.txt"), "a b ab cab\n".repeat(400)).unwrap();
    std::fs::write(
        folder.path().join("e.yaml"),
        "model: {kind: transformer, vocabulary: 10, length: 8, layers: 1, features: 8, heads: 1, hidden: 8, causal: true}\n\
         data: {text: text.txt, n_test: 2, tokens: {tokenizer: tokenizer.json, window: 8}}\n",
    )
    .unwrap();
    let bomb = sequence("normalizers", replace("a", 30), 6);
    let mut cases = refused();
    cases.push(("WordLevel", "normalizer", bomb, "makes "));
    for (model, path, value, message) in cases {
        read(folder.path(), &with(bases[model].clone(), path, value)).err();
        let output = binary::bf16scope(&["data", "e.yaml"]).current_dir(folder.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{model}, {path}: {stderr}");
        assert!(stderr.contains(message) && stderr.starts_with("bf16scope: "), "{model}, {path}: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"), "{model}, {path}: {stderr}");
    }
}

/// The experiment sets the length of examples, not the tokenizer's file.
#[test]
fn lengths_that_a_tokenizer_says_are_told_not_to_be_applied() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("text.txt"), "a b ab cab\n".repeat(400)).unwrap();
    let experiment = "model: {kind: transformer, vocabulary: 10, length: 8, layers: 1, features: 8, heads: 1, hidden: 8, causal: \
                      true}\ndata: {text: text.txt, n_test: 2, tokens: {tokenizer: tokenizer.json, window: 8}}\n";
    std::fs::write(folder.path().join("e.yaml"), experiment).unwrap();
    let truncation = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    let padding = json!({
        "direction": "Right", "pad_id": 0, "pad_to_multiple_of": null, "pad_token": "[UNK]", "pad_type_id": 0,
        "strategy": {"Fixed": 8},
    });
    let base = bases()[0].1.clone();
    let both = with(with(base.clone(), "truncation", truncation.clone()), "padding", padding);
    for (tokenizer, settings) in
        [(with(base, "truncation", truncation), "`truncation` is"), (both, "`truncation` and `padding` are")]
    {
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let output = binary::bf16scope(&["data", "e.yaml"]).current_dir(folder.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        let warning = format!("tokenizer.json: its {settings} not applied: how long examples are is what");
        assert!(stderr.contains(&warning), "{stderr}");
    }
}

/// Swapped parts, odd numbers, and chains: the result is ids or an error, of bounded size.
#[test]
fn no_part_panics_and_none_makes_more_than_its_share() {
    let folder = tempfile::tempdir().unwrap();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let strip = |content: &str, start: u64, stop: u64| json!({"type": "Strip", "content": content, "start": start, "stop": stop});
    let split = |pattern: Json, behavior: &str, invert: bool| json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert});
    let mut parts: Vec<(&str, Json)> = vec![
        ("normalizer", sequence("normalizers", replace("a", 30), 6)),
        ("normalizer", sequence("normalizers", replace("", 1000), 3)),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x".repeat(100_000)})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": ""})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "(?=(a+))\\1b"}, "content": "ﷺ"})),
        ("normalizer", json!({"type": "Prepend", "prepend": "x".repeat(1 << 20)})),
        ("normalizer", sequence("normalizers", json!({"type": "Prepend", "prepend": "▁"}), 500)),
        ("normalizer", sequence("normalizers", json!({"type": "NFKD"}), 50)),
        ("normalizer", sequence("normalizers", json!({"type": "ByteLevel"}), 2)),
        ("normalizer", nested("normalizers", json!({"type": "NFC"}), 40)),
        ("normalizer", nested("normalizers", json!({"type": "NFC"}), 200)),
        ("normalizer", json!({"type": "Sequence", "normalizers": []})),
        ("normalizer", json!({"type": "Strip", "strip_left": true, "strip_right": true})),
        ("normalizer", json!({"type": "Nmt"})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "CAAAAAAAAAAAAAAAYQBi"})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "!"})),
        (
            "normalizer",
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": true, "lowercase": true}),
        ),
        ("normalizer", json!({"type": "Whatever"})),
        ("normalizer", json!([])),
        ("normalizer", json!(7)),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": u64::MAX})),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 1})),
        ("pre_tokenizer", json!({"type": "Delimiter", "delimiter": "a"})),
        ("pre_tokenizer", json!({"type": "Delimiter", "delimiter": ""})),
        ("pre_tokenizer", json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})),
        ("pre_tokenizer", json!({"type": "Metaspace", "replacement": "", "prepend_scheme": "always", "split": true})),
        (
            "pre_tokenizer",
            sequence(
                "pretokenizers",
                json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
                200,
            ),
        ),
        ("pre_tokenizer", sequence("pretokenizers", json!({"type": "Digits", "individual_digits": true}), 200)),
        ("pre_tokenizer", json!({"type": "Punctuation", "behavior": "Isolated"})),
        ("pre_tokenizer", json!({"type": "UnicodeScripts"})),
        ("pre_tokenizer", json!({"type": "BertPreTokenizer"})),
        ("pre_tokenizer", json!({"type": "CharDelimiterSplit", "delimiter": "é"})),
        ("pre_tokenizer", byte_level.clone()),
        ("post_processor", byte_level.clone()),
        ("post_processor", json!({"type": "BertProcessing", "sep": ["</s>", u32::MAX], "cls": ["<s>", 0]})),
        (
            "post_processor",
            json!({"type": "RobertaProcessing", "sep": ["</s>", 7], "cls": ["<s>", 6], "trim_offsets": true, "add_prefix_space": true}),
        ),
        (
            "post_processor",
            sequence("processors", json!({"type": "BertProcessing", "sep": ["</s>", 7], "cls": ["<s>", 6]}), 20),
        ),
        ("post_processor", template(json!([]), json!([]))),
        ("post_processor", template(json!([text("A")]), json!([text("B"), text("A")]))),
        ("post_processor", template(json!([text("B")]), json!([text("A"), text("B")]))),
        ("post_processor", template(json!(["$A"]), json!(["$A", "$B"]))),
        ("post_processor", template(json!("<s> $A"), json!("$A $B:1"))),
        ("post_processor", sequence("processors", template(json!([text("A")]), json!([text("A"), text("B")])), 30)),
        ("decoder", sequence("decoders", replace("a", 30), 6)),
        ("decoder", replace("", 1 << 20)),
        ("decoder", strip("a", 1, 1)),
        ("decoder", strip("a", 9, 9)),
        ("decoder", strip("b", 0, u64::MAX)),
        ("decoder", strip("b", u64::MAX, u64::MAX)),
        ("decoder", json!({"type": "ByteFallback"})),
        ("decoder", json!({"type": "Fuse"})),
        ("decoder", json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true})),
        ("decoder", json!({"type": "BPEDecoder", "suffix": ""})),
        ("decoder", json!({"type": "WordPiece", "prefix": "", "cleanup": true})),
        ("decoder", byte_level.clone()),
        ("decoder", sequence("decoders", byte_level, 40)),
        ("decoder", nested("decoders", json!({"type": "Fuse"}), 40)),
        ("truncation", json!({"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 9})),
        (
            "truncation",
            json!({"direction": "Right", "max_length": u64::MAX, "strategy": "OnlySecond", "stride": u64::MAX}),
        ),
        (
            "padding",
            json!({"strategy": {"Fixed": u64::MAX}, "direction": "Right", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": ""}),
        ),
        ("padding", json!(3)),
        ("version", json!("2.0")),
        ("version", json!(null)),
        ("model", json!(null)),
        ("model", json!({})),
        ("model/vocab", json!({})),
        ("model/vocab", json!([])),
        ("model/vocab", json!({"a": u32::MAX, "": 0})),
        ("model/vocab", json!({"a": -1})),
        ("model/vocab", json!({"a": 1u64 << 40})),
        ("model/vocab", json!([["a", 0.0]])),
        ("model/vocab", json!([["", 0.0], ["a", 1e308], ["b", -1e308]])),
        ("model/vocab", json!({"a": 3, "b": 3, "c": 3})),
        ("model/unk_token", json!("nowhere")),
        ("model/unk_token", json!(null)),
        ("model/unk_id", json!(99)),
        ("model/unk_id", json!(null)),
        ("model/byte_fallback", json!(true)),
        ("model/fuse_unk", json!(true)),
        ("model/ignore_merges", json!(true)),
        ("model/end_of_word_suffix", json!("</w>")),
        ("model/end_of_word_suffix", json!("é".repeat(1000))),
        ("model/dropout", json!(2.0)),
        ("model/max_input_chars_per_word", json!(0)),
        ("model/max_input_chars_per_word", json!(u64::MAX)),
        ("model/continuing_subword_prefix", json!("")),
        ("model/continuing_subword_prefix", json!("é")),
        ("model/merges", json!([["a"]])),
        ("model/merges", json!([["a", "b", "c"]])),
        ("model/merges", json!(["a"])),
        ("model/merges", json!([["a", "b"], ["ab", "ab"]])),
        ("model/merges", json!([["", ""]])),
        ("model/merges", json!(7)),
    ];
    for (behavior, pattern) in
        [("Removed", ""), ("Isolated", "a"), ("MergedWithPrevious", "a"), ("MergedWithNext", "b"), ("Contiguous", " ")]
    {
        for invert in [false, true] {
            parts.push(("pre_tokenizer", split(json!({"String": pattern}), behavior, invert)));
            parts.push(("pre_tokenizer", split(json!({"Regex": format!("{pattern}|(?=x)")}), behavior, invert)));
        }
    }
    for (content, flags) in [("", false), (" ", true), ("a", true), ("<s>", true), ("ﷺ", false)] {
        let token = json!([{"id": 0, "content": content, "single_word": flags, "lstrip": flags, "rstrip": flags, "normalized": true, "special": flags}]);
        parts.push(("added_tokens", token.clone()));
        parts.push(("added_tokens", json!(vec![token[0].clone(); 50])));
    }
    // The long ones are beyond 4,096 bytes, from where on the bound below grows with a text.
    let texts = ["", "a", "ab cab", "aaaa aaaa", "é ﷺ 漢字 \u{0}\u{301}", &"a b ".repeat(1100), &"ab".repeat(2200)];
    let (mut n_cases, mut n_read) = (0, 0);
    for (model, base) in bases() {
        for (path, value) in &parts {
            n_cases += 1;
            let tokenizer = match read(folder.path(), &with(base.clone(), path, value.clone())) {
                Err(error) => {
                    assert!(error.contains("tokenizer.json: "), "{model}, {path} = {value}: {error}");
                    continue;
                }
                Ok(tokenizer) => tokenizer,
            };
            n_read += 1;
            for text in texts {
                let Ok(ids) = tokenizer.encode(text) else { continue };
                // An id for each byte of the longest that a text may become, or for its bytes one each.
                assert!(
                    ids.len() <= (16 * text.len()).max(1 << 16) * 4,
                    "{model}, {path}: {} ids of {} bytes",
                    ids.len(),
                    text.len()
                );
                let whole = tokenizer.decode(&ids);
                assert!(whole.len() <= 16 * (ids.len() + 1) * 4096, "{model}, {path} = {value}");
            }
            tokenizer.frame(1);
            tokenizer.frame(2);
            tokenizer.special_ids();
            tokenizer.decode(&[0, 1, u32::MAX, 5, 5, 5]);
        }
    }
    assert!(n_cases >= 400 && n_read >= 150, "{n_cases} cases, {n_read} read");
}
