//! `bf16scope audit` as a user runs it: tables, JSON, the page, the policy it writes, and exit codes.

use crate::{binary, run};

use serde_json::{Value, json};
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

/// `-1` used to be an unexpected argument, and an invalid seed an "invalid digit found in string".
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
    // Without a budget, no error is right or wrong: `is_right` used to be `true` at any error.
    assert_eq!((&json["is_right"], &json["budget"], &json["search"]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!(json["results"].as_array().unwrap().len(), 3);
    let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let known = [
        "budget",
        "error",
        "file",
        "f32_as",
        "f32_fails",
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
    // Where it was written comes before its name.
    let columns = ["layer", "source", "instruction"].map(|name| html.find(&format!("<button>{name}</button>")));
    assert!(columns.is_sorted() && columns[0].is_some(), "{columns:?}");
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

/// Whether the difference, which is 0 in bf16, is over 0: this used to be "within 0 of f32", with exit code 0.
#[test]
fn predicates_that_differ_fail_whatever_else_is_right() {
    let folder = folder();
    let result = "difference = f32[2] subtract(x, y)\n  exact = f32[2] add(y, y)\n  ROOT out = (f32[2], f32[2], f32[2]) \
                  tuple(difference, exact, z)";
    let audit = |root: &str, more: &[&str]| {
        let module = MODULE.replace(
            result,
            &format!(
                "zero = f32[2] subtract(y, y)\n  difference = f32[2] subtract(x, y)\n  \
                     over = pred[2] compare(difference, zero), direction=GT\n  ROOT out = {root}"
            ),
        );
        std::fs::write(folder.path().join("over.txt"), module).unwrap();
        let args = ["audit", "over.txt", "--random", "1", "--policy", "p.yaml"];
        let output = bf16scope(folder.path(), &[&args[..], more].concat());
        (output.status.code(), text(&output.stdout))
    };
    let (both, over) = ("(f32[2], pred[2]) tuple(difference, over)", &["--results", "out1"][..]);
    for (root, more, out) in [("(pred[2]) tuple(over)", &[][..], 0), (both, over, 1)] {
        let (code, said) = audit(root, more);
        assert_eq!(code, Some(1), "{said}");
        let fails = format!("FAILS: integers or predicates differ from f32's: out{out} (%over) in 1 of 2 elements\n");
        assert!(said.contains(&fails) && said.contains("--keep 'difference'"), "{said}");
    }
    // Beside a float result, which is judged.
    let (code, said) = audit(both, &[]);
    assert!(
        code == Some(0) && said.contains("\nintegers or predicates differ from f32's: out1 (%over) in 1"),
        "{said}"
    );
    let (code, said) = audit("(pred[2]) tuple(over)", &["--keep", "difference"]);
    assert!(code == Some(0) && said.contains("no result is floating, and all of them are as in f32"), "{said}");
    let (code, said) = audit("(pred[2], f32[2]) tuple(over, z)", &["--ignore", "out0", "--budget", "1e-9"]);
    assert!(code == Some(0) && said.contains("within the budget"), "{said}");
}

/// All of it used to be "within 0 of f32", and within every budget.
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
    // Three of four: there is no reference, and the advice stands once.
    let (code, said) = audit("-3, 4");
    assert!(code == Some(1) && said.contains("f32 itself makes 3 NaN and 0 noise"), "{said}");
    assert_eq!(said.matches("help: ").count(), 1, "{said}");
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
        let message = stderr(args);
        assert!(message.contains(idle), "{args:?}: {message}");
        assert!(!stderr(&[&args[..args.len() - 1], &["diff*"]].concat()).contains("keeps nothing"), "{args:?}");
    }
    for args in [
        &["lower", "cancels.txt", "-o", "n.txt", "--report", "./n.txt"][..],
        &["lower", "cancels.txt", "-o", "n.txt", "--report", "cancels.txt"],
        &["audit", "cancels.txt", "--random", "1", "--html", "cancels.txt"],
        &["run", "cancels.txt", "--random", "1", "-o", "cancels.txt"],
    ] {
        let message = stderr(args);
        assert!(
            message.contains("name one file, ") || message.contains(", which is read, and would be lost"),
            "{message}"
        );
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
            "models/mlp.yaml is a model in YAML, and of a run `audit` takes a step\nhelp: `bf16scope audit models/mlp.yaml \
             --at STEP`; or audit its program as a module: `bf16scope emit models/mlp.yaml --precision f32 -o mlp.hlo.pb`",
        ),
        (vec!["audit", "cancels.txt", "--random", "1", "--budget", "0"], "expected a number over 0, such as 1e-2"),
        (vec!["audit", "cancels.txt", "--random", "1", "--policy", "none.yaml"], "cannot read the policy none.yaml"),
    ] {
        let output = bf16scope(folder.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    // The parameter without an input is named.
    let output = bf16scope(folder.path(), &["audit", "cancels.txt"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains('z'), "{}", text(&output.stderr));
}

/// Six rows over four devices, the last of which holds only padding: every shard is compared, and instructions as on
/// one device.
#[test]
fn a_module_over_partitions_is_compared_shard_by_shard() {
    let folder = tempfile::tempdir().unwrap();
    let module = |header: &str, rows: &str, whole: &str, both: &str| {
        format!(
            "HloModule m{header}\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, \
             b)\n}}\n\nENTRY main {{\n  x = f32[6,4] parameter(0){rows}\n  w = f32[4,3] parameter(1){whole}\n  y = f32[6,3] \
             dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{rows}\n  zero = f32[] constant(0)\n  sum = \
             f32[] reduce(y, zero), dimensions={{0,1}}, to_apply=add\n  n = s32[6,3] convert(y){rows}\n  ROOT all = (f32[6,3], \
             f32[], s32[6,3]) tuple(y, sum, n){both}\n}}\n"
        )
    };
    std::fs::write(folder.path().join("one.txt"), module("", "", "", "")).unwrap();
    let rows = ", sharding={devices=[4,1]<=[4]}";
    let all = ", sharding={{devices=[4,1]<=[4]}, {replicated}, {devices=[4,1]<=[4]}}";
    let four = module(", num_partitions=4", rows, ", sharding={replicated}", all);
    std::fs::write(folder.path().join("four.txt"), four).unwrap();
    let audit = |file: &str, more: &[&str]| {
        let output = bf16scope(folder.path(), &[&["audit", file, "--random", "3", "--json"], more].concat());
        let stdout = text(&output.stdout);
        (output.status.code(), serde_json::from_str::<Value>(&stdout).unwrap_or_else(|_| panic!("{stdout}{output:?}")))
    };
    let (status, one) = audit("one.txt", &[]);
    let (of_four, four) = audit("four.txt", &["--device", "cpu:4"]);
    assert_eq!((status, of_four), (Some(0), Some(0)));
    assert_eq!(one["rows"], four["rows"]);
    assert!(four["rows"].as_array().unwrap().len() >= 2, "{four}");
    let result = |audit: &Value, index: usize, key: &str| audit["results"][index][key].clone();
    let shards = |index: usize, key: &str| {
        result(&four, index, "shards").as_array().unwrap().iter().map(|shard| shard[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(shards(0, "offsets"), [json!([0, 0]), json!([2, 0]), json!([4, 0])]);
    assert_eq!([shards(1, "device"), shards(2, "device")], [vec![json!(0)], vec![json!(0), json!(1), json!(2)]]);
    assert!(one["results"][0].get("shards").is_none());
    // The error of the whole equals that of its worst shard, beside f64 as on one device.
    let of_shards = result(&four, 0, "shards");
    let worst = of_shards.as_array().unwrap().iter().map(|shard| shard["errors"]["max_abs"].as_f64().unwrap());
    assert_eq!(worst.fold(0.0, f64::max), result(&four, 0, "errors")["max_abs"].as_f64().unwrap());
    assert!(four["no_f64"].is_null() && result(&four, 0, "f32_error").as_f64().unwrap() > 0.0, "{four}");
    // Padding is not compared; a product of four terms, each below 4 · 4, may be summed in another order on each
    // device: at most twice 4 · 2^-24 · 64.
    let number = |audit: &Value, key: &str| result(audit, 0, "errors")[key].as_f64().unwrap();
    assert_eq!(number(&four, "n_elements"), 18.0);
    let (of_one, of_four) = (number(&one, "max_abs"), number(&four, "max_abs"));
    assert!(of_four > 1e-3 && (of_one - of_four).abs() < 2.0 * 4.0 * 64.0 / f64::from(1 << 24), "{of_one}, {of_four}");
    assert_eq!(result(&one, 2, "n_differing"), result(&four, 2, "n_differing"));
    // Results over the budget fail, and are searched if one device can run the module.
    let (status, over) = audit("four.txt", &["--device", "cpu:4", "--budget", "1e-9"]);
    assert_eq!((status, over["search"].is_object()), (Some(1), true), "{over}");
    // A step's state would have to move from shards of results to shards of parameters.
    let output = bf16scope(folder.path(), &["audit", "four.txt", "--random", "3", "--device", "cpu:4", "--steps", "2"]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(
        message.contains("--steps 2 feeds results back to the parameters that they alias, and the module is for"),
        "{message}"
    );
}

/// Replicas that sum: only results can be compared, for each replica; exceeding a budget is reported, without a search.
#[test]
fn a_module_over_replicas_is_compared_by_its_results() {
    let folder = tempfile::tempdir().unwrap();
    let text_of = "HloModule m, replica_count=2\n\nadd {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] \
                add(a, b)\n}\n\nENTRY main {\n  x = f32[4,4] parameter(0)\n  y = f32[4,4] dot(x, x), lhs_contracting_dims={1}, \
                rhs_contracting_dims={0}\n  ROOT all = f32[4,4] all-reduce(y), replica_groups={{0,1}}, to_apply=add\n}\n";
    std::fs::write(folder.path().join("two.txt"), text_of).unwrap();
    let audit = |more: &[&str]| {
        let output = bf16scope(folder.path(), &[&["audit", "two.txt", "--random", "3", "--device"], more].concat());
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (status, said) = audit(&["cpu:2"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("f32[4,4] on 2 devices, worst on 0"), "{said}");
    assert!(said.contains("1 not compared, such as %all: it knows its devices: only results are compared"), "{said}");
    let (status, said) = audit(&["cpu:2", "--budget", "1e-9"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("FAILS: over the budget of 1.00e-9; what to keep in f32 is searched for where"), "{said}");
    let (status, said) = audit(&["cpu:4"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(
        said.contains("the module is for 2 replicas, and cpu:4 has 4 devices\nhelp: run it with `--device cpu:2`"),
        "{said}"
    );
}

/// Adam on a gradient. Random second moments used to be negative, and all results NaN: "within inf", with advice to
/// give real inputs although they were given.
#[test]
fn drawn_state_is_one_that_an_optimizer_has_and_nan_of_f32_recommends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let adam = "HloModule adam\n\nENTRY adam {\n  g = f32[64] parameter(0)\n  v = f32[64] parameter(1)\n  rate = f32[] \
                constant(0.999)\n  decay = f32[64] broadcast(rate), dimensions={}\n  old = f32[64] multiply(decay, v)\n  square = \
                f32[64] multiply(g, g)\n  new = f32[64] add(old, square), metadata={op_name=\"adam/v\" \
                source_file=\"/home/me/adam.py\" source_line=7}\n  root = f32[64] sqrt(new)\n  ROOT q = f32[64] divide(g, root), \
                metadata={op_name=\"adam/step\" source_file=\"/home/me/adam.py\" source_line=9}\n}\n";
    std::fs::write(folder.path().join("adam.txt"), adam).unwrap();
    std::fs::write(folder.path().join("p.yaml"), "allow: [multiply, add, divide, sqrt]\nreach: all\n").unwrap();
    let audit = |more: &[&str]| {
        let output = bf16scope(folder.path(), &[&["audit", "adam.txt", "--policy", "p.yaml"], more].concat());
        (output.status.code(), text(&output.stdout))
    };
    let (code, said) = audit(&["--random", "1"]);
    assert!(code == Some(0) && !said.contains("NaN") && said.contains("not judged: --budget says how far"), "{said}");
    // Layer and line come first.
    let head = said.lines().find(|line| line.contains("layer")).unwrap_or_default();
    assert!(head.find("layer") < head.find("line") && head.contains("born"), "{said}");
    assert!(said.contains("adam/step") && said.contains("adam.py:9"), "{said}");
    // On the page, too.
    assert_eq!(audit(&["--random", "1", "--html", "page.html"]).0, Some(0));
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    let columns = ["layer", "source", "instruction"].map(|title| page.find(&format!(">{title}<")));
    assert!(columns[0].is_some() && columns.is_sorted() && page.contains("adam.py:9"), "{columns:?}");
    // A negative second moment, from a file.
    let mut npz = bf16scope::data::npz::NpzWriter::create(folder.path().join("in.npz")).unwrap();
    let header = bf16scope::data::npz::Header::for_dtype(bf16scope::hlo::DType::F32, vec![64]);
    let array = |value: f32| (0..64).flat_map(|_| value.to_le_bytes()).collect::<Vec<u8>>();
    npz.add("g", &header, &array(0.5)).unwrap();
    npz.add("v", &header, &array(-4.0)).unwrap();
    npz.finish().unwrap();
    let (code, said) = audit(&["--inputs", "in.npz", "--budget", "1e-3"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("FAILS: every element of the results is a NaN"), "{said}");
    assert!(!said.contains("searched") && !said.contains("keeping"), "{said}");
}

/// `x + 2^26 − 2^26` is 0 in f32, where an ulp of 2^26 is 8: so many elements of 100 are noise, and the others are exact.
#[test]
fn noise_of_f32_recommends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let module = "HloModule noise\n\nENTRY noise {\n  x = f32[100] parameter(0)\n  far = f32[100] parameter(1)\n  sum = f32[100] \
                  add(x, far)\n  ROOT left = f32[100] subtract(sum, far)\n}\n";
    std::fs::write(folder.path().join("noise.txt"), module).unwrap();
    std::fs::write(folder.path().join("p.yaml"), "allow: [add, subtract]\nreach: all\n").unwrap();
    let audit = |n_noise: u16| {
        let mut npz = bf16scope::data::npz::NpzWriter::create(folder.path().join("in.npz")).unwrap();
        let header = bf16scope::data::npz::Header::for_dtype(bf16scope::hlo::DType::F32, vec![100]);
        let array =
            |value: fn(u16, u16) -> f32| (0..100).flat_map(|at| value(at, n_noise).to_le_bytes()).collect::<Vec<u8>>();
        npz.add("x", &header, &array(|at, _| 0.3 + 0.007 * f32::from(at))).unwrap();
        npz.add("far", &header, &array(|at, n_noise| if at < n_noise { 67_108_864.0 } else { 0.0 })).unwrap();
        npz.finish().unwrap();
        let args = ["audit", "noise.txt", "--policy", "p.yaml", "--inputs", "in.npz", "--budget", "1e-4"];
        let output = bf16scope(folder.path(), &args);
        let json = bf16scope(folder.path(), &[&args[..], &["--json"]].concat());
        let json: Value = serde_json::from_slice(&json.stdout).unwrap();
        (output.status.code(), text(&output.stdout), json)
    };
    let (code, screen, json) = audit(64);
    let sentence = "FAILS: of the results' 100 elements f32 itself makes 0 NaN and 64 noise: the lowered form has no measure, and \
                    nothing is recommended\nhelp: look at the inputs";
    assert!(code == Some(1) && screen.contains(sentence), "{screen}");
    assert!(!screen.contains("--inputs") && !screen.contains("over the budget"), "{screen}");
    assert_eq!(json["f32_fails"]["n_noise"], 64, "{json:#}");
    assert!(json["is_right"].is_null() && json["search"].is_null() && json["saved_policy"].is_null(), "{json:#}");
    // Where f32 knows most of the results, the others are judged.
    let (_, screen, json) = audit(36);
    assert!(screen.contains("FAILS: over the budget of 1.00e-4") && json["search"].is_object(), "{screen}");
}

/// Five sums of 1 to 256, which bf16 cannot hold exactly, before a comparison: three in f32 give 259 instead of 261.
/// The comparison and its count are reported, and no policy is written.
#[test]
fn decisions_that_no_short_list_mends_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let sums: String = (1..=5).map(|n| format!("  x{n} = f32[2] add(x{}, b)\n", n - 1)).collect();
    let module = format!(
        "HloModule far\n\nENTRY far {{\n  x0 = f32[2] parameter(0)\n  b = f32[2] parameter(1)\n{sums}  limit = f32[] constant(260.5)\n  \
         c = f32[2] broadcast(limit), dimensions={{}}\n  p = pred[2] compare(x5, c), direction=GT, metadata={{op_name=\"net/relu\" \
         source_file=\"/home/me/net.py\" source_line=7}}\n  r = f32[2] select(p, x0, b)\n  y = f32[2] add(b, b)\n  ROOT t = \
         (f32[2], f32[2]) tuple(r, y)\n}}\n"
    );
    std::fs::write(folder.path().join("far.txt"), module).unwrap();
    std::fs::write(folder.path().join("p.yaml"), "allow: [add]\nreach: all\n").unwrap();
    let mut npz = bf16scope::data::npz::NpzWriter::create(folder.path().join("in.npz")).unwrap();
    let header = bf16scope::data::npz::Header::for_dtype(bf16scope::hlo::DType::F32, vec![2]);
    for (name, value) in [("x0", 256.0f32), ("b", 1.0)] {
        npz.add(name, &header, &[value.to_le_bytes(), value.to_le_bytes()].concat()).unwrap();
    }
    npz.finish().unwrap();
    let args = ["audit", "far.txt", "--policy", "p.yaml", "--inputs", "in.npz", "--budget", "1e-2"];
    let output = bf16scope(folder.path(), &args);
    let message = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{message}");
    let sentence = "bf16 decides otherwise than f32: 2 of 2 at p (net/relu, /home/me/net.py:7). With f32's decisions the results are 0 \
                    off, with its own 9.96e-1. What is compared there is closer than bf16 tells apart";
    assert!(message.contains(sentence), "{message}");
    assert!(
        message.contains("so nothing is kept\nhelp: a larger --budget") && !message.contains("keeping 3"),
        "{message}"
    );
    assert!(!folder.path().join("far.policy.yaml").exists());
    let json: Value =
        serde_json::from_slice(&bf16scope(folder.path(), &[&args[..], &["--json"]].concat()).stdout).unwrap();
    assert_eq!(json["search"]["end"], "decisions", "{json:#}");
    assert_eq!(json["search"]["decisions"]["rows"][0]["n_differing"], 2, "{json:#}");
}
