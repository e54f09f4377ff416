//! `bf16scope audit` as a user runs it: tables, JSON, the page, the policy it writes, and exit codes.

use crate::{binary, run};

use serde_json::Value;
use std::path::Path;
use std::process::Output;

fn bf16scope(folder: &Path, args: &[&str]) -> Output {
    binary::bf16scope(args).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Cancellation: 1 + 2^-9 and 1 are one number in bf16. `exact` loses nothing.
const MODULE: &str = "HloModule cancels

ENTRY cancels {
  x = f32[2] constant({1.001953125, 3})
  y = f32[2] constant({1, 2})
  z = f32[2] parameter(0)
  difference = f32[2] subtract(x, y)
  exact = f32[2] add(y, y)
  ROOT out = (f32[2], f32[2], f32[2]) tuple(difference, exact, z)
}
";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cancels.txt"), MODULE).unwrap();
    std::fs::write(folder.path().join("p.yaml"), "allow: [subtract, add]\nreach: all\n").unwrap();
    folder
}

#[test]
fn over_the_budget_is_exit_1_and_a_policy_that_is_not() {
    let folder = folder();
    let audit = ["audit", "cancels.txt", "--random", "1", "--policy"];
    let output = bf16scope(folder.path(), &[&audit[..], &["p.yaml", "--budget", "1e-4"]].concat());
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}{}", text(&output.stderr));
    assert!(stdout.contains("FAILS: over the budget of 1.00e-4"), "{stdout}");
    assert!(stdout.contains("keeping 1 instruction in f32"), "{stdout}");
    assert!(stdout.contains("\n  difference\n"), "{stdout}");
    let policy = std::fs::read_to_string(folder.path().join("cancels.policy.yaml")).unwrap();
    assert!(policy.contains("keep:\n- difference\n"), "{policy}");

    let output = bf16scope(folder.path(), &[&audit[..], &["cancels.policy.yaml", "--budget", "1e-4"]].concat());
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}{}", text(&output.stderr));
    assert!(stdout.contains("within the budget of 1.00e-4"), "{stdout}");
}

/// `-1` was an unexpected argument, and a seed that is none an "invalid digit found in string".
#[test]
fn a_budget_or_a_seed_that_is_none_says_what_is_expected() {
    let folder = folder();
    for (flag, value, expected) in [
        ("--budget", "-1", "expected a number over 0, such as 1e-2"),
        ("--random", "x", "expected a whole number from 0 to 18446744073709551615, such as 1"),
        ("--random", "-1", "expected a whole number from 0 to 18446744073709551615, such as 1"),
    ] {
        let output = bf16scope(folder.path(), &["audit", "cancels.txt", flag, value]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("invalid value '{value}' for '{flag} ")), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn json_holds_every_instruction_and_the_page_too() {
    let folder = folder();
    let args = ["audit", "cancels.txt", "--random", "1", "--policy", "p.yaml", "--json", "--html", "a.html"];
    let output = bf16scope(folder.path(), &args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let born = |name: &str| &rows.iter().find(|row| row["instruction"] == name).unwrap()["born"];
    // Both operands round to 1: the difference of 2^-9 becomes 0. The other is exact: 3 - 2.
    assert_eq!(born("difference")["max_abs"], 1.0 / 512.0);
    assert_eq!(born("difference")["flushed"], 0.5);
    assert_eq!(born("exact")["max_abs"], 0.0);
    assert_eq!(json["error"], 1.0 / 512.0);
    assert_eq!((&json["is_right"], &json["budget"], &json["search"]), (&Value::Bool(true), &Value::Null, &Value::Null));
    assert_eq!(json["results"].as_array().unwrap().len(), 3);
    let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let known = [
        "budget",
        "error",
        "file",
        "f32_as",
        "first_not_finite",
        "flush_subnormals",
        "is_right",
        "module",
        "no_f64",
        "n_slices",
        "policy",
        "results",
        "rows",
        "saved_policy",
        "search",
        "skipped",
    ];
    assert_eq!(keys.iter().copied().collect::<std::collections::BTreeSet<_>>(), known.into_iter().collect());
    let html = std::fs::read_to_string(folder.path().join("a.html")).unwrap();
    assert!(html.contains("<td>difference</td>") && html.contains("<svg"), "{html}");
    assert!(!html.contains("http"), "{html}");
}

#[test]
fn a_nan_of_its_own_fails_without_a_budget() {
    if !run::has_f16() {
        return;
    }
    let folder = folder();
    let module = "HloModule big\n\nENTRY big {\n  x = f32[1] parameter(0)\n  c = f32[1] constant({60000})\n  \
                  sum = f32[1] add(c, c)\n  ROOT out = f32[1] multiply(sum, x)\n}\n";
    std::fs::write(folder.path().join("big.txt"), module).unwrap();
    let args = ["audit", "big.txt", "--random", "1", "--policy", "p.yaml", "--dtype", "f16"];
    let output = bf16scope(folder.path(), &args);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}{}", text(&output.stderr));
    assert!(stdout.contains("FAILS: %sum is the first with a NaN or infinity that f32 does not have"), "{stdout}");
    assert!(stdout.contains("100.0 % not finite, 100.0 % overflowed"), "{stdout}");
}

/// All of it was "within 0 of f32", and within every budget.
#[test]
fn what_is_no_number_in_f32_either_is_not_called_right() {
    let folder = folder();
    let module = "HloModule logs\n\nENTRY logs {\n  x = f32[4] constant({-1, -2, START})\n  y = f32[4] add(x, x)\n  ROOT z = \
                  f32[4] log(y)\n}\n";
    let audit = |start: &str| {
        std::fs::write(folder.path().join("logs.txt"), module.replace("START", start)).unwrap();
        let output = bf16scope(folder.path(), &["audit", "logs.txt", "--random", "1", "--budget", "1e-1"]);
        (output.status.code(), text(&output.stdout))
    };
    let (code, said) = audit("-3, -4");
    assert!(code == Some(1) && said.contains("FAILS: every element of the results is a NaN or an infinity"), "{said}");
    assert!(!said.contains("within the budget"), "{said}");
    let (code, said) = audit("3, 4");
    assert!(code == Some(0) && said.contains("2 of the results' 4 elements are a NaN or an infinity in f32"), "{said}");
    assert!(said.contains("within the budget"), "{said}");
}

#[test]
fn a_pattern_that_keeps_nothing_and_an_output_that_is_read_are_said() {
    let folder = folder();
    let stderr = |args: &[&str]| text(&bf16scope(folder.path(), args).stderr);
    let idle = "keep: `zzz*` matches no instruction's name or scoped name in cancels, and keeps nothing in f32";
    for args in [
        &["lower", "cancels.txt", "-o", "o.txt", "--keep", "zzz*"][..],
        &["explain-cast", "cancels.txt", "exact", "--keep", "zzz*"],
        &["audit", "cancels.txt", "--random", "1", "--keep", "zzz*"],
    ] {
        let said = stderr(args);
        assert!(said.contains(idle), "{args:?}: {said}");
        assert!(!stderr(&[&args[..args.len() - 1], &["diff*"]].concat()).contains("keeps nothing"), "{args:?}");
    }
    for args in [
        &["lower", "cancels.txt", "-o", "n.txt", "--report", "./n.txt"][..],
        &["lower", "cancels.txt", "-o", "n.txt", "--report", "cancels.txt"],
        &["audit", "cancels.txt", "--random", "1", "--html", "cancels.txt"],
        &["run", "cancels.txt", "--random", "1", "-o", "cancels.txt"],
    ] {
        let said = stderr(args);
        assert!(said.contains("name one file, ") || said.contains(", which is read, and would be lost"), "{said}");
        assert_eq!(std::fs::read_to_string(folder.path().join("cancels.txt")).unwrap(), MODULE);
        assert!(!folder.path().join("n.txt").exists());
    }
}

#[test]
fn what_cannot_run_is_exit_2() {
    let folder = folder();
    for (args, expected) in [
        (vec!["audit", "missing.txt", "--random", "1"], "cannot read missing.txt"),
        (
            vec!["audit", "models/mlp.yaml", "--random", "1"],
            "models/mlp.yaml is a model in YAML, and `audit` takes a module\nhelp: write its program in f32 first, \
             `bf16scope emit models/mlp.yaml --precision f32 -o mlp.hlo.pb`, then audit mlp.hlo.pb",
        ),
        (vec!["audit", "cancels.txt", "--random", "1", "--budget", "0"], "expected a number over 0, such as 1e-2"),
        (vec!["audit", "cancels.txt", "--random", "1", "--policy", "none.yaml"], "cannot read the policy none.yaml"),
    ] {
        let output = bf16scope(folder.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    // No input for the parameter: it is named.
    let output = bf16scope(folder.path(), &["audit", "cancels.txt"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains('z'), "{}", text(&output.stderr));
}
