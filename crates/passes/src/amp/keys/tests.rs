//! The pages that are written from the table of keys.

use super::*;
use std::path::Path;

/// The keys as a table of docs/GUIDE.md.
fn table() -> String {
    let mut text = "| key | values | default | what it says |\n| --- | --- | --- | --- |\n".to_string();
    for key in KEYS {
        let is_word = matches!(key.values, Values::Preset | Values::One(_));
        let default = if is_word { format!("`{}`", key.default) } else { key.default.to_string() };
        let _ = writeln!(text, "| `{}` | {} | {default} | {} |", key.name, key.values.words(), key.meaning);
    }
    text
}

/// The values of a key as a JSON schema.
fn values_schema(values: Values) -> String {
    let one = |names: &[&str]| format!(r#"{{"enum": ["{}"]}}"#, names.join(r#"", ""#));
    let list = |items: &str| format!(r#"{{"type": "array", "items": {items}}}"#);
    match values {
        Values::Preset => {
            format!(r#"{{"anyOf": [{}, {{"type": "string", "pattern": "^jmp:"}}]}}"#, one(&PRESETS))
        }
        Values::One(names) => one(names),
        Values::Some(names) => list(&one(names)),
        Values::Ops | Values::Patterns => list(r#"{"type": "string"}"#),
        Values::Numbers => list(r#"{"type": "integer", "minimum": 0}"#),
        Values::Forms => list(
            r#"{"type": "object", "required": ["instruction", "of", "as", "because"], "properties": {"instruction": {"type": "string"}, "of": {"type": "string"}, "as": {"enum": ["f32", "rounded", "narrow", "barrier"]}, "because": {"type": "string"}}}"#,
        ),
    }
}

/// The keys as a JSON schema, for editors.
fn schema() -> String {
    let quoted = |text: &str| text.replace('"', "\\\"");
    let today = KEYS.iter().map(|key| {
        let schema = values_schema(key.values);
        format!(r#"    "{}": {{"description": "{}", {}"#, key.name, quoted(key.meaning), &schema[1..])
    });
    let old = OLD_KEYS
        .iter()
        .map(|key| format!(r#"    "{}": {{"deprecated": true, "description": "{}"}}"#, key.name, quoted(key.became)));
    let head = r#"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "A policy of bf16scope lower",
  "type": "object",
  "additionalProperties": false,
  "properties": {
"#;
    format!("{head}{}\n  }}\n}}\n", today.chain(old).collect::<Vec<_>>().join(",\n"))
}

/// docs/GUIDE.md and docs/policy.schema.json agree with the table.
#[test]
fn the_pages_have_the_keys_of_a_policy() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap_or_default();
    let (guide, table, schema) = (read("GUIDE.md"), table(), schema());
    let head = table.lines().next().unwrap();
    let start = guide.find(head).unwrap_or_else(|| panic!("docs/GUIDE.md has no table that begins with `{head}`"));
    let rows: usize = guide[start..].split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
    if std::env::var_os("BF16SCOPE_BLESS").is_some() {
        let guide = format!("{}{table}{}", &guide[..start], &guide[start + rows..]);
        std::fs::write(docs.join("GUIDE.md"), guide).unwrap();
        std::fs::write(docs.join("policy.schema.json"), schema).unwrap();
        return;
    }
    let advice = "run BF16SCOPE_BLESS=1 cargo test -p bf16scope-passes --lib amp::keys";
    assert!(guide[start..start + rows] == table, "docs/GUIDE.md is stale: {advice}");
    let json: serde_json::Value = serde_json::from_str(&schema).expect("the schema is JSON");
    assert_eq!(json["properties"].as_object().unwrap().len(), KEYS.len() + OLD_KEYS.len());
    assert!(read("policy.schema.json") == schema, "docs/policy.schema.json is stale: {advice}");
}

/// The defaults of the table are those of the type.
#[test]
fn the_table_has_the_defaults_of_the_type() {
    for key in KEYS.iter().filter(|key| matches!(key.values, Values::Preset | Values::One(_))) {
        let text = format!("{}: {}", key.name, key.default);
        assert_eq!(serde_yaml::from_str::<Policy>(&text).unwrap(), Policy::default(), "{text}");
    }
}
