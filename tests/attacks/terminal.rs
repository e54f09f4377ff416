//! Output of names from files and arguments to a terminal, and how programs get errors.

use crate::door::{Ended, Folder};

/// The escaped form of the attack, as every output shows it.
const SHOWN: &str = r"\x1b[2J";
const CLEAR: &str = "\u{1b}[2J";
/// A bidirectional override, an 8-bit escape sequence, a carriage return and a backspace.
const OTHERS: &str = "\u{202e}\u{9b}\r\u{8}";

fn steers(text: &str) -> Option<char> {
    let bidi = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().find(|&c| (c.is_control() && c != '\n' && c != '\t') || bidi(c))
}

/// Runs the command and returns both of its outputs together, after a check that they hold no terminal controls.
fn harmless(folder: &Folder, args: &[&str]) -> String {
    let Ended { stdout, stderr, .. } = folder.run(args);
    let text = stdout + &stderr;
    assert_eq!(steers(&text), None, "{args:?}: {text:?}");
    text
}

/// Runs the command and checks that its output shows the attack, escaped.
fn shown(folder: &Folder, args: &[&str]) {
    let text = harmless(folder, args);
    assert!(text.contains(SHOWN), "{args:?}: {text}");
}

#[test]
fn no_control_character_of_a_file_or_an_argument_reaches_the_terminal() {
    let folder = Folder::new();
    let bad = format!("{CLEAR}{OTHERS}");
    // Names of files, and of what is no file.
    let name = format!("{bad}.txt");
    folder.write(&name, "no module");
    shown(&folder, &["emit", &name]);
    shown(&folder, &["emit", &format!("absent{bad}")]);
    shown(&folder, &["explain-cast", "m.txt", &bad]);
    shown(&folder, &["lower", "m.txt", "-o", &format!("{bad}/x")]);
    // Invalid arguments.
    harmless(&folder, &[&bad]);
    harmless(&folder, &["bits", "1", "--as", &bad]);
    // Names in a module, in both dialects of text and in what was parsed.
    let op_name = r"a\033[2J\342\200\256\302\233\r\010";
    let module =
        crate::door::MODULE.replace("parameter(0)", &format!("parameter(0), metadata={{op_name=\"{op_name}\"}}"));
    folder.write("named.txt", module);
    harmless(&folder, &["explain-cast", "named.txt", "%x"]);
    folder.write("broken.txt", format!("HloModule m\n\nENTRY m {{\n  ROOT {bad} = f32[2] parameter(0)\n}}\n"));
    harmless(&folder, &["lower", "broken.txt", "-o", "out.txt"]);
    // Values of YAML, and of data.
    folder.write("e.yaml", "model: {kind: \"\\e[2J\", input: [2], n_classes: 3}\n");
    shown(&folder, &["emit", "e.yaml"]);
    folder.write("data.csv", format!("1,{bad},0\n"));
    folder.write("d.yaml", "model: {kind: mlp, input: [2], n_classes: 3}\ndata: {csv: data.csv, n_test: 1}\n");
    shown(&folder, &["train", "d.yaml"]);
    // The log.
    let ended = crate::door::ended(folder.command(&["bits", "1"]).env("RUST_LOG", format!("{bad}=====")));
    assert!(steers(&ended.stderr).is_none() && ended.stderr.contains(SHOWN), "{}", ended.stderr);
}

#[test]
fn json_escapes_what_json_allows_as_it_is() {
    let folder = Folder::new();
    folder.write(
        "named.txt",
        "HloModule m\n\nENTRY m {\n  ROOT x = f32[2] parameter(0), metadata={op_name=\"a\\302\\233\\342\\200\\256\"}\n}\n",
    );
    let Ended { code, stdout, stderr } = folder.run(&["explain-cast", "named.txt", "%x", "--json"]);
    assert_eq!((code, steers(&stdout)), (Some(0), None), "{stderr}");
    let value: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert!(value.to_string().contains("a\u{9b}\u{202e}"), "{stdout}");
}

#[test]
fn a_name_of_ten_megabytes_makes_a_short_error() {
    let folder = Folder::new();
    folder.write("e.yaml", format!("model: {{kind: {}}}\n", "k".repeat(1_000_000)));
    let name = "n".repeat(10_000_000);
    folder.write("m.txt", format!("HloModule m\n\nENTRY m {{\n  ROOT x = f32[2] {name}(0)\n}}\n"));
    for args in [["emit", "e.yaml"], ["emit", "m.txt"]] {
        let error = folder.refused(&args);
        assert!(error.len() < 20_000, "{args:?}: {} bytes", error.len());
        assert!(error.starts_with(&format!("bf16scope: {}:", args[1])), "{error}");
    }
}

/// Standard output of a command that could not run, which is one JSON object on one line.
fn json_error(folder: &Folder, args: &[&str]) -> serde_json::Value {
    let Ended { code, stdout, stderr } = folder.run(args);
    assert_eq!(code, Some(2), "{args:?}: {stdout}{stderr}");
    assert!(!stderr.is_empty(), "{args:?}: people read standard error");
    assert_eq!(stdout.lines().count(), 1, "{args:?}: {stdout}");
    let value: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let error = &value["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{args:?}: {stdout}");
    assert!(error["causes"].is_array() && error["exit_code"] == 2, "{args:?}: {stdout}");
    value
}

#[test]
fn every_command_with_json_prints_its_errors_as_json_too() {
    let folder = Folder::new();
    for args in [
        vec!["audit", "none.txt", "--random", "1", "--json"],
        vec!["bits", "nonsense", "--json"],
        vec!["compile", "none.yaml", "--target", "tpu-v2", "--json"],
        vec!["eval", "none.yaml", "--json"],
        vec!["explain", "none.yaml", "--target", "tpu-v2", "--json"],
        vec!["explain-cast", "none.txt", "%x", "--json"],
        vec!["fit", "none.yaml", "--target", "tpu-v2", "--json"],
        vec!["run", "none.txt", "--json"],
        vec!["train", "none.yaml", "--json"],
        vec!["train", "--json"],
        vec!["--nonsense", "--json"],
        vec!["run", "m.txt", "--random", "1", "--json", "--trace", "no/such/folder"],
    ] {
        json_error(&folder, &args);
    }
    assert_eq!(
        json_error(&folder, &["train", "m.yaml", "--json"]),
        serde_json::json!({"error": {
            "message": "m.yaml: the experiment has no `data`, which training and evaluation need",
            "help": "add a `data:` block with `csv` and `n_test`, as in examples/digits.yaml",
            "causes": [],
            "exit_code": 2,
        }})
    );
    assert_eq!(
        json_error(&folder, &["run", "none.txt", "--json"]),
        serde_json::json!({"error": {
            "message": "cannot read none.txt",
            "help": "name a path that is there; a relative one begins at the folder that the command runs in",
            "causes": ["No such file or directory (os error 2)"],
            "exit_code": 2,
        }})
    );
    let usage = json_error(&folder, &["eval", "m.yaml", "--nonsense", "--json"]);
    assert_eq!(usage["error"]["message"], "unexpected argument '--nonsense' found");
    // Without --json, and after the end of options, nothing is printed there.
    for args in [vec!["run", "none.txt"], vec!["emit", "--", "a", "--json"]] {
        assert_eq!(folder.run(&args).stdout, "");
    }
}
