//! Runs every command in the README and the GUIDE, and compares its output line by line. Numbers that depend on a
//! processor, a clock or a cache are placeholders; those determined by lowering and the pinned TPU compiler are
//! compared. `…` on a separate line stands for any lines.
//!
//! The modules are those that the GUIDE's snippets write (`tests/data/guide`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use ndarray::{ArrayD, IxDyn};
use ndarray_npy::NpzWriter;
use unicode_width::UnicodeWidthStr as _;

use crate::binary;

/// Commands that `cargo test` does not run, by their prefix, with the reason why they are long.
const LONG: [(&str, &str); 7] = [
    ("audit tests/data/oracle_jax/encoder_forward.hlo.pb", ENCODER),
    ("compile encoder.bf16.pb", TPU),
    ("compile step.bf16.mlir", TPU),
    ("compile tests/data/oracle_jax/encoder_forward.hlo.pb", TPU),
    ("compile tests/data/several_cores/bf16.hlo.txt", TPU),
    ("fit wide.yaml", TPU),
    ("examples/resnet50.yaml", RESNET),
];
const ENCODER: &str = "audits hundreds of instructions";
const TPU: &str = "compiles for a TPU";
const RESNET: &str = "compiles ResNet-50 for a TPU";

/// Commands of other programs, with the reason why no test runs them.
const OTHERS: [(&str, &str); 7] = [
    ("eval \"$(ci/xla-extension)\"", "sets what ci/xla-tests needs"),
    ("cargo install", "the tests run what cargo built for them"),
    ("cargo test", "is what runs this"),
    ("cargo run -- train examples/digits.yaml", "tests/training/train.rs trains the digits"),
    ("cargo run --release --features xla", "ci/xla-tests all runs this program with the feature"),
    (
        "cargo run --example fit_my_model",
        "`cargo test` builds it, and tests/consumer asks the same of a smaller network",
    ),
    (
        "cargo run --example port_bfloat16_scope",
        "`cargo test` builds it, and its parts are those that the tests of training run",
    ),
];

/// A command in a `console` block and the output below it.
struct Documented {
    place: String,
    command: String,
    lines: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The commands of a page, in order.
fn documented(page: &str) -> Vec<Documented> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let (mut found, mut is_inside) = (Vec::<Documented>::new(), false);
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_inside = line == "```console";
        } else if let (true, Some(command)) = (is_inside, line.strip_prefix("$ ")) {
            let command = command.split(" # ").next().unwrap().trim().to_string();
            found.push(Documented { place: format!("{page}:{}", at + 1), command, lines: Vec::new() });
        } else if is_inside {
            found.last_mut().unwrap().lines.push(line.to_string());
        }
    }
    found
}

/// Why a command runs only in `ci/long`, if so.
fn why_long(command: &str) -> Option<&'static str> {
    LONG.iter().find(|(part, _)| command.contains(part)).map(|(_, why)| *why)
}

/// A folder with the files that the pages mention.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        for name in ["examples", "tests"] {
            std::os::unix::fs::symlink(root().join(name), folder.path().join(name)).unwrap();
        }
        let written = [("mlp.hlo.pb", "mlp.hlo.pb"), ("mlp.hlo.txt", "model.hlo.txt"), ("step.mlir", "step.mlir")];
        for (from, to) in written {
            std::fs::copy(root().join("tests/data/guide").join(from), folder.path().join(to)).unwrap();
        }
        Place(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `in.npz` for the module in the command.
    fn inputs(&self, command: &str) {
        let shapes: &[&[usize]] = match command.contains("step.") {
            true => &[&[256, 512], &[512, 16], &[64, 256], &[64, 16]],
            false => &[&[128], &[64, 128], &[10], &[128, 10], &[32, 64]],
        };
        let mut inputs = NpzWriter::new(File::create(self.path("in.npz")).unwrap());
        for (n, shape) in shapes.iter().enumerate() {
            let n_elements: usize = shape.iter().product();
            let values = (0..n_elements).map(|at| ((at * 7 + n * 3) % 23) as f32 / 64.0 - 0.15).collect();
            inputs.add_array(format!("in{n}"), &ArrayD::from_shape_vec(IxDyn(shape), values).unwrap()).unwrap();
        }
        inputs.finish().unwrap();
    }

    /// Runs a command of this program, and compares its output with the documented one.
    fn check(&self, documented: &Documented) {
        let Documented { place, command, lines } = documented;
        let line = command.split(" | ").next().unwrap();
        let (set, args) = line.split_once("bf16scope ").unwrap();
        let set = set.split_whitespace().map(|word| word.split_once('=').unwrap());
        self.inputs(args);
        let args: Vec<&str> = args.split_whitespace().collect();
        let mut process: Command = binary::bf16scope(&args);
        process.current_dir(self.0.path()).env("LC_ALL", "C.UTF-8").env("TERM", "xterm");
        process.env_remove("BF16SCOPE_AUTO").env_remove("COLUMNS").envs(set);
        // In a pipe tables are 100 columns wide; the pages show some at the width of a wide terminal.
        let width = lines.iter().map(|line| line.width()).max().unwrap_or(0);
        if width > 100 && lines.iter().any(|line| line.starts_with('┌') && line.width() > 100) {
            // A column of times is wider if nothing is cached.
            process.env("COLUMNS", (width + 20).to_string());
        }
        let output = process.output().unwrap();
        // Output that a terminal shows as a bar, and the first run's downloads.
        let passing = [
            ": install",
            ": checksum is right",
            ": fits, ",
            ": does not fit: ",
            "bf16scope: compared ",
            "bf16scope: reading ",
            "bf16scope: compiling ",
            "bf16scope: evaluating ",
        ];
        let errors = String::from_utf8(output.stderr).unwrap();
        let errors = errors.lines().filter(|line| !passing.iter().any(|part| line.contains(part)));
        let printed: Vec<String> =
            errors.chain(std::str::from_utf8(&output.stdout).unwrap().lines()).map(str::to_string).collect();
        let is_audit_alone = lines.is_empty() && command.contains("--budget");
        let fails = i32::from(lines.iter().any(|line| line.starts_with("FAILS: ")));
        let code = output.status.code();
        let exits = code == Some(fails) || is_audit_alone && code == Some(1);
        assert!(exits, "{place}: `{command}` exits with {code:?}, not {fails}:\n{}", printed.join("\n"));
        if let (false, Err(first)) = (lines.is_empty(), agree(lines, &printed)) {
            panic!(
                "{place}: `{command}` prints something else than the page says, from this line on:\n{first}\nprinted:\n{}",
                printed.join("\n")
            );
        }
    }
}

/// Runs the selected commands of this program, page by page and in order, and returns their number.
fn run(asked: fn(&str) -> bool) -> usize {
    let mut n = 0;
    for page in ["README.md", "docs/GUIDE.md"] {
        let place = Place::new();
        for documented in documented(page) {
            let command = &documented.command;
            if let Some(file) = command.strip_prefix("cat ") {
                std::fs::write(place.path(file), documented.lines.join("\n")).unwrap();
            } else if is_ours(command) && asked(command) {
                place.check(&documented);
                n += 1;
            }
        }
    }
    n
}

/// Whether a command is this program's, after environment variables.
fn is_ours(command: &str) -> bool {
    command.split_whitespace().find(|word| !word.contains('=')) == Some("bf16scope")
}

/// Whether printed lines match the documented ones; otherwise the first documented line that does not match.
fn agree(documented: &[String], printed: &[String]) -> Result<(), String> {
    let pattern: Vec<String> = documented.iter().map(|line| shape(line)).collect();
    let shapes: Vec<String> = printed.iter().map(|line| shape(line)).collect();
    // The numbers of printed lines after which the pattern so far may end.
    let mut ends = vec![true];
    ends.resize(shapes.len() + 1, false);
    for (line, shown) in pattern.iter().zip(documented) {
        let mut next = vec![false; ends.len()];
        for at in 0..ends.len() {
            next[at] = match line.as_str() {
                "…" => ends[at] || at > 0 && next[at - 1],
                _ => at > 0 && ends[at - 1] && shapes[at - 1] == *line,
            };
        }
        if !next.contains(&true) {
            return Err(shown.clone());
        }
        ends = next;
    }
    if ends[shapes.len()] { Ok(()) } else { Err("(the end)".to_string()) }
}

/// Parts of lines whose numbers are the same on every machine: determined by lowering, or reported by the pinned
/// compiler.
const FIXED: [&str; 13] = [
    "instructions with f32 give bf16 now",
    "results computed: ",
    "compute in bf16 now",
    "stays f32: ",
    "elements) gives",
    "│ HBM ",
    "│ share of the core's HBM",
    "│ flops ",
    "│ bytes accessed ",
    "│ estimated cycles ",
    "│ all-reduce ",
    "│ as given ",
    "collectives of one run, ",
];

/// A line without the parts that depend on a run or a processor: numbers, units of bytes and time, widths of columns.
/// In a line with one of [`FIXED`] the numbers stay.
fn shape(line: &str) -> String {
    if FIXED.iter().any(|part| line.contains(part)) {
        return line.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    let is_bar = |c: char| ('▁'..='█').contains(&c);
    let line: String = line.chars().map(|c| if is_bar(c) { '▁' } else { c }).collect();
    let (mut found, mut before) = (String::new(), ' ');
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        let is_drawn = "─═▁ ".contains(c);
        let begins = c.is_ascii_digit() && !(before.is_alphanumeric() || before == '_');
        if begins {
            while rest.peek().is_some_and(|c| c.is_ascii_alphanumeric() && *c != 'x' || ".,".contains(*c)) {
                let digit = rest.next().unwrap();
                // The sign of an exponent.
                if digit == 'e' && rest.peek() == Some(&'-') {
                    rest.next();
                }
            }
            while found.ends_with(['+', '-', '−']) {
                found.pop();
            }
            found.push('#');
        } else if !(is_drawn && c == before) {
            found.push(c);
        }
        before = c;
    }
    for unit in ["MiB", "KiB", "GiB", "bytes"] {
        found = found.replace(&format!("# {unit}"), "#B");
    }
    for unit in ["ms", "us", "µs", "s", "min"] {
        for after in [",", ";", " ", "│", ""] {
            let (time, to) = (format!("# {unit}{after}"), format!("#s{after}"));
            found = if after.is_empty() {
                found.strip_suffix(&time).map_or(found.clone(), |f| f.to_string() + &to)
            } else {
                found.replace(&time, &to)
            };
        }
    }
    found.replace(" cached ", " #s ").trim_end().to_string()
}

#[test]
fn every_command_of_the_pages_is_known() {
    let commands: Vec<Documented> = ["README.md", "docs/GUIDE.md"].into_iter().flat_map(documented).collect();
    let unknown: Vec<String> = commands
        .iter()
        .filter(|Documented { command, .. }| {
            let is_other = OTHERS.iter().any(|(part, _)| command.starts_with(part));
            !is_ours(command) && !command.starts_with("cat ") && !is_other
        })
        .map(|Documented { place, command, .. }| format!("{place}: {command}"))
        .collect();
    assert!(unknown.is_empty(), "no test runs these, and no list says why: {unknown:#?}");
    for (part, why) in LONG.iter().chain(&OTHERS) {
        let shown = commands.iter().any(|documented| documented.command.contains(part));
        assert!(shown, "no page shows `{part}` any more, of which a list says: {why}");
    }
}

#[test]
fn short_commands_print_what_the_pages_say() {
    let n = run(|command| why_long(command).is_none());
    assert!(n >= 12, "the pages show {n} short commands");
}

#[test]
fn shapes_tell_words_from_numbers() {
    assert_eq!(shape("compiled in 110.5 ms, ran in 57.1 µs"), shape("compiled in 1.85 s, ran in 5 ms"));
    assert_eq!(shape("│ HBM code ┆   1.4 MiB │"), shape("│ HBM code ┆ 1.4 MiB │"));
    assert_ne!(shape("│ HBM code ┆   1.4 MiB │"), shape("│ HBM code ┆ 1.5 MiB │"));
    assert_ne!(shape("results computed: 87,416 bytes before"), shape("results computed: 87,417 bytes before"));
    assert_eq!(shape("cycles +2.9 %, time −16.8 %"), shape("cycles −2 %, time 1.25e-3 %"));
    assert_ne!(shape("│ out0 ┆ f32[2] │"), shape("│ out0 ┆ bf16[2] │"));
    assert_ne!(shape("5 casts inserted"), shape("5 casts left"));
    let lines = |text: &str| text.lines().map(str::to_string).collect::<Vec<String>>();
    assert!(agree(&lines("a 1\n…\nb"), &lines("a 2\nx\ny\nb")).is_ok());
    assert!(agree(&lines("a\n…"), &lines("a")).is_ok());
    assert_eq!(agree(&lines("a\nb"), &lines("a\nc")), Err("b".to_string()));
    assert_eq!(agree(&lines("a"), &lines("a\nb")), Err("(the end)".to_string()));
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Audits hundreds of instructions, and compiles for TPUs.
    #[cfg_attr(feature = "long-tests", test)]
    fn long_commands_print_what_the_pages_say() {
        run(|command| why_long(command) != Some(RESNET));
    }

    /// ResNet-50 at nine batches for a TPU, half an hour where nothing is cached.
    #[cfg_attr(feature = "long-tests", test)]
    fn commands_on_resnet50_print_what_the_pages_say() {
        assert_eq!(run(|command| why_long(command) == Some(RESNET)), 3);
    }
}
