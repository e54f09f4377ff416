//! How many files an addition touches: a layer, a kind of model, a TPU, a command, a preset of policies. The test for
//! an op, an optimizer, a source, a loss and a metric is beside the guide, in `house.rs`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{knowing, source_files};

fn files(names: &[&str]) -> BTreeSet<PathBuf> {
    names.iter().map(PathBuf::from).collect()
}

/// Source files whose code, without comments and tests, has this text.
fn writing(wanted: &str) -> BTreeSet<PathBuf> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let writes = |text: &str| {
        let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
        code.lines().filter(is_code).any(|line| line.contains(wanted))
    };
    let matches = source_files().iter().filter(|(path, text)| !path.ends_with("tests.rs") && writes(text));
    matches.map(|(path, _)| path.clone()).collect()
}

#[test]
fn a_layer_is_added_in_two_files() {
    let expected = files(&["crates/model/src/models/layers/kinds.rs", "crates/model/src/models/layers/shape.rs"]);
    assert_eq!(knowing(&["Upsample"]), expected);
}

/// In the table's file a kind is a `mod` and a line of the table.
#[test]
fn a_kind_of_model_is_added_in_two_files() {
    let table = "crates/model/src/models/mod.rs";
    assert_eq!(knowing(&["TwoTower", "two_tower"]), files(&[table, "crates/model/src/models/two_tower.rs"]));
    let text = std::fs::read_to_string(table).unwrap();
    let (code, _tests) = text.split_once("\n#[cfg(test)]").unwrap();
    let names = |line: &&str| line.contains("resnet") && !line.trim_start().starts_with("//");
    let places: Vec<&str> = code.lines().filter(names).map(str::trim).collect();
    assert_eq!(places, ["pub mod resnet;", "Resnet(resnet::Config) = \"resnet\";"]);
}

#[test]
fn a_tpu_is_added_in_one_file() {
    assert_eq!(writing("v5e"), files(&["crates/tpu/src/target.rs"]));
}

/// Besides the file of the command itself.
#[test]
fn a_command_is_added_in_one_more_file() {
    assert_eq!(knowing(&["ExplainCast", "explain_cast"]), files(&["crates/cli/src/lib.rs"]));
    assert_eq!(writing("\"explain-cast\""), files(&["crates/cli/src/lib.rs"]));
}

#[test]
fn a_preset_of_policies_is_known_in_its_table_and_in_what_names_it() {
    assert_eq!(
        writing("mixed_bfloat16"),
        files(&["crates/passes/src/amp/keys.rs", "crates/passes/src/amp/presets.rs"])
    );
}

/// A reason and its sentence are a line of `decision.rs`, and one more file decides by it: `decision.rs` itself, one that
/// finds a fact, or one that follows what is around a node. Those that several files decide by are all here.
#[test]
fn a_row_of_the_table_of_decisions_is_in_two_files() {
    const TABLE: &str = "crates/passes/src/amp/decision.rs";
    let table = std::fs::read_to_string(TABLE).unwrap();
    let mut several = Vec::new();
    for part in table.split("reasons! {").skip(1) {
        let name = if part.contains("Need [] {}") { "Need" } else { "Rule" };
        let (part, _) = part.split_once("\n}").unwrap();
        let reasons = part.lines().filter_map(|line| line.trim().split_once(" = \"")).map(|(reason, _)| reason);
        for reason in reasons.filter(|reason| !reason.contains(' ')) {
            // The report groups reasons, and states none of its own.
            let mut deciding = writing(&format!("{name}::{reason}"));
            deciding.retain(|path| !path.ends_with("amp/report.rs") && path.to_str() != Some(TABLE));
            if deciding.len() > 1 {
                several.push((reason.to_string(), deciding.len()));
            }
        }
    }
    let expected = [
        ("Choice", 2),
        ("Recurrence", 2),
        ("Angle", 2),
        ("Loss", 3),
        ("Result", 3),
        ("Fused", 3),
        ("RoundedOnce", 3),
        ("Moved", 2),
        ("Lookup", 2),
    ]
    .map(|(reason, n)| (reason.to_string(), n));
    assert_eq!(several, expected);
}
