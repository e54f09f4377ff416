//! The list of known failures, `known_failures.txt`. A test of many cases passes its failures here, and fails itself
//! if they differ from the list: if a case fails that is not listed, or a listed one does not fail any more. So the
//! list can only become shorter.

use std::collections::{BTreeMap, BTreeSet};

const LIST: &str = include_str!("known_failures.txt");

/// The listed cases of a rule: a line has a rule and its cases.
fn listed(rule: &str) -> BTreeSet<&'static str> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.filter(|words| words.first() == Some(&rule)).flat_map(|words| words[1..].to_vec()).collect()
}

/// The number of random programs that are listed as failing a rule.
pub fn n_random_listed(rule: &str) -> usize {
    listed(rule).iter().filter(|case| case.starts_with("random.")).count()
}

/// Compares the failures of a rule, each with what was measured, to the list.
pub fn judge(rule: &str, failing: &BTreeMap<String, String>) {
    let listed = listed(rule);
    let new = failing.iter().filter(|(case, _)| !listed.contains(&case[..]));
    let new = new.map(|(case, what)| format!("  {case} fails: {what}"));
    let mended = listed.iter().filter(|case| !failing.contains_key(**case));
    let mended = mended.map(|case| format!("  {case} holds now: take it out of tests/hlo/amp/known_failures.txt"));
    let problems: Vec<String> = new.chain(mended).collect();
    assert!(problems.is_empty(), "{rule}:\n{}", problems.join("\n"));
}

#[test]
fn every_line_names_a_rule_that_is_judged() {
    let rules = ["twice", "allow", "stored", "casts", "finite", "roundings", "reasons", "reports", "borders"];
    for line in LIST.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let rule = line.split_whitespace().next().unwrap();
        assert!(rules.contains(&rule), "`{line}` begins with none of {}", rules.join(", "));
    }
    let cases: Vec<&str> = rules.into_iter().flat_map(listed).collect();
    assert!(cases.iter().all(|case| !case.is_empty()));
}
