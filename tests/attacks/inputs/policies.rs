//! Policies: lists that contradict each other, invalid values, and documents that are not policies.

use std::panic::catch_unwind;

use bf16scope::document::{self, ConfigError};
use bf16scope::passes::amp::Policy;
use bf16scope::passes::amp::keys::{KEYS, OLD_KEYS};

const VALUES: [&str; 16] = [
    "-1",
    "0",
    "1",
    "0.5",
    "9223372036854775808",
    "1.0e+308",
    ".nan",
    ".inf",
    "\"\"",
    "text",
    "true",
    "[]",
    "[1]",
    "[dot, dot]",
    "{a: b}",
    "[[dot]]",
];

fn read(text: &str) -> Result<Policy, String> {
    document::from_str::<Policy>("p.yaml", text).map_err(|error: ConfigError| error.to_string())
}

#[test]
fn every_value_of_every_key_is_refused_with_its_place_or_read() {
    let mut n_read = 0;
    for key in KEYS.iter().map(|key| key.name).chain(OLD_KEYS.iter().map(|key| key.name)) {
        for value in VALUES {
            let text = format!("{key}: {value}\n");
            let read = catch_unwind(|| read(&text)).unwrap_or_else(|_| panic!("a panic of {text}"));
            match read {
                Ok(_) => n_read += 1,
                Err(error) => assert!(error.starts_with("p.yaml:") && error.len() < 2000, "{text}{error}"),
            }
        }
    }
    // Empty lists (10 keys), patterns (`[dot, dot]` and `[1]` are names; in lists of ops the same op twice is one), numbers of
    // results and parameters, counts of elements, a flag.
    assert!((14..=26).contains(&n_read), "{n_read} are read");
}

#[test]
fn what_a_policy_cannot_mean_is_named() {
    let refused = |text: &str, expected: &str| {
        let error = read(text).expect_err(text);
        assert!(error.contains(expected), "{text}: expected {expected}, not\n{error}");
    };
    refused("allow: [dto]", "dto");
    refused("allow: [dot]\ndeny: [dot]", "`dot` is in the lists `allow` and `deny`");
    refused("min_elements: -1", "-1");
    refused("preset: tf_apm", "tf_apm");
    refused("dtype: f32", "unknown value `f32`, expected one of bf16, f16");
    refused("dtype: f16\ndtype: bf16", "key `dtype` is given twice");
    refused("alow: [dot]", "unknown key `alow`");
    refused("allow: dot", "found string");
    refused("- dot\n", "p.yaml:");
    refused("model: {kind: mlp}", "unknown key `model`");
    refused("rounds: much", "unknown value `much`, expected one of stored, carried, all, listed");
    refused("narrow: [weights]", "unknown value `weights`, expected one of parameters, results, loss");
    refused("losses: [-1]", "-1");
    refused("reach: far", "unknown value `far`, expected one of none, dots, between, all");
}
