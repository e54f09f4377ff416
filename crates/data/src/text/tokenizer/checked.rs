//! Finds, before a `tokenizer.json` is run, definitions on which the crate that runs it would panic or use unbounded
//! memory.
//!
//! Cases that are not found here become errors too ([`crate::guard`]), but without advice on what to change.

use serde_json::Value as Json;

/// How often the pre-tokenizer and the normalizer may apply byte-level encoding: each time the text grows by a factor
/// of up to two.
const MAX_BYTE_LEVELS: usize = 2;
/// The largest number of tokens that a template may put around texts.
const MAX_TEMPLATE: usize = 1024;

/// The first fault.
pub(super) fn fault(json: &Json) -> Option<String> {
    normalizers(json)
        .or_else(|| pre_tokenizers(json))
        .or_else(|| post_processors(json))
        .or_else(|| missing(&json["model"]))
        .or_else(|| merges(&json["model"]))
}

/// Checked here because the crate names one missing part of its model, a different one in each process.
fn missing(model: &Json) -> Option<String> {
    let kind = model["type"].as_str()?;
    let expected: &[&str] = match kind {
        "WordPiece" => &["vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"],
        "WordLevel" => &["vocab", "unk_token"],
        _ => &[],
    };
    let missing: Vec<String> =
        expected.iter().filter(|field| model.get(field).is_none()).map(|field| format!("`{field}`")).collect();
    (!missing.is_empty()).then(|| format!("its model `{kind}` lacks {}", missing.join(", ")))
}

fn normalizers(json: &Json) -> Option<String> {
    steps(&json["normalizer"], "normalizers").iter().find_map(|step| match step["type"].as_str()? {
        "Prepend" if step["prepend"].as_str() == Some("") => {
            Some("its normalizer `Prepend` prepends nothing".to_string())
        }
        "Precompiled" => {
            let map = decoded(step["precompiled_charsmap"].as_str()?)?;
            let wrong =
                |message: String| Some(format!("the map of its normalizer `Precompiled` is damaged: {message}"));
            // The size in bytes of a trie of u32, the trie, then the replacement texts.
            let Some((n_trie, rest)) = map.split_first_chunk::<4>() else {
                return wrong(format!("{} bytes; expected 4 at least", map.len()));
            };
            let n_trie = u32::from_le_bytes(*n_trie);
            match n_trie as usize <= rest.len() && n_trie.is_multiple_of(4) {
                true => None,
                false => wrong(format!("a trie of {n_trie} bytes in {}", rest.len())),
            }
        }
        _ => None,
    })
}

fn pre_tokenizers(json: &Json) -> Option<String> {
    let (before, after) = (steps(&json["normalizer"], "normalizers"), steps(&json["pre_tokenizer"], "pretokenizers"));
    let n = before.iter().chain(&after).filter(|step| step["type"] == "ByteLevel").count();
    if n > MAX_BYTE_LEVELS {
        return Some(format!(
            "it has `ByteLevel` {n} times, and each makes up to twice as many bytes of what the last one made; expected once"
        ));
    }
    let is_empty = |step: &Json| step["type"] == "FixedLength" && step["length"].as_u64() == Some(0);
    after.iter().any(is_empty).then(|| "its pre-tokenizer `FixedLength` has a length of 0".to_string())
}

fn post_processors(json: &Json) -> Option<String> {
    let steps = steps(&json["post_processor"], "processors");
    let templates = steps.iter().filter(|step| step["type"] == "TemplateProcessing");
    let mut n_tokens = 0;
    for template in templates {
        for (key, texts) in [("single", &["A"][..]), ("pair", &["A", "B"])] {
            let pieces = template[key].as_array().map(Vec::as_slice).unwrap_or_default();
            n_tokens += pieces.len();
            let count = |text: &str| pieces.iter().filter(|piece| piece["Sequence"]["id"] == text).count();
            for text in ["A", "B"] {
                let (measured, expected) = (count(text), usize::from(texts.contains(&text)));
                // An empty template would drop all ids; a missing one is replaced by the crate's own.
                let is_present = template[key].is_array() && (!pieces.is_empty() || key == "single");
                if measured != expected && is_present {
                    return Some(format!(
                        "the template `{key}` of its post-processor has the text {text} {measured} times; expected {}",
                        if expected == 1 { "once" } else { "never" }
                    ));
                }
            }
            let special = template["special_tokens"].as_object();
            let missing = pieces.iter().filter_map(|piece| piece["SpecialToken"]["id"].as_str());
            if let Some(token) = missing.into_iter().find(|id| !special.is_some_and(|all| all.contains_key(*id))) {
                return Some(format!(
                    "the template `{key}` of its post-processor has `{token}`, which is not among its `special_tokens`"
                ));
            }
        }
    }
    (n_tokens > MAX_TEMPLATE)
        .then(|| format!("its post-processor has templates of {n_tokens} tokens; expected at most {MAX_TEMPLATE}"))
}

/// The crate joins the parts of a merge in a buffer as long as the longest token, and strips a prefix off the second
/// without a check.
fn merges(model: &Json) -> Option<String> {
    let (vocabulary, merges) = (model["vocab"].as_object()?, model["merges"].as_array()?);
    let longest = vocabulary.keys().map(String::len).max().unwrap_or(0);
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    merges.iter().enumerate().find_map(|(number, merge)| {
        let (first, second) = match merge {
            Json::String(both) => both.split_once(' ')?,
            Json::Array(both) => (both.first()?.as_str()?, both.get(1)?.as_str()?),
            _ => return None,
        };
        let Some(rest) = second.strip_prefix(prefix) else {
            return Some(format!(
                "merge {number} of its BPE is of `{first}` and `{second}`, which does not begin with \
                 `continuing_subword_prefix` `{prefix}`"
            ));
        };
        (first.len() + rest.len() > longest)
            .then(|| format!("merge {number} of its BPE makes `{first}{rest}`, which is not in its vocabulary"))
    })
}

/// The bytes of valid Base64.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut n_bits) = (0u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            out.push((bits >> n_bits) as u8);
        }
    }
    Some(out)
}

/// The members of nested sequences, in order.
fn flatten(step: Json, members: &str, into: &mut Vec<Json>) {
    match step {
        Json::Object(mut object) if object.get("type").is_some_and(|kind| kind == "Sequence") => {
            if let Some(Json::Array(steps)) = object.remove(members) {
                steps.into_iter().for_each(|step| flatten(step, members, into));
            }
        }
        other => into.push(other),
    }
}

/// The steps of a part of a tokenizer.
pub(in crate::text) fn steps(part: &Json, members: &str) -> Vec<Json> {
    let mut steps = Vec::new();
    if !part.is_null() {
        flatten(part.clone(), members, &mut steps);
    }
    steps
}
