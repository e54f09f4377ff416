//! `bf16scope bits` and behaviour common to all commands, driven as a user would: the real binary, whole outputs.
//!
//! `UPDATE_EXPECT=1 cargo test --test cli cli_bits::` rewrites the expectations; read the diff.

use std::io::Read;
use std::process::{Command, Output, Stdio};

use expect_test::{Expect, expect};

fn bf16scope(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
    command.args(args).env_remove("RUST_LOG").env("COLUMNS", "100").stdin(Stdio::null());
    command
}

/// Exit code, standard output and standard error, as one text.
fn check(args: &[&str], expected: Expect) {
    expected.assert_eq(&transcript(bf16scope(args).output().expect("the binary runs")));
}

fn transcript(output: Output) -> String {
    let mut text = format!("exit {}\n", output.status.code().expect("no signal ended it"));
    for (name, bytes) in [("stdout", output.stdout), ("stderr", output.stderr)] {
        if !bytes.is_empty() {
            let bytes = String::from_utf8(bytes).expect("output is UTF-8");
            text += &format!("--- {name}\n{bytes}");
        }
    }
    assert!(!text.contains('\x1b'), "no colours where nobody can see them");
    text
}

#[test]
fn one_number_in_three_formats() {
    check(
        &["bits", "1.12156456132", "--as", "f16,bf16,f32"],
        expect![[r#"
            exit 0
            --- stdout
            ┌────────────────┬──────────────────────┬──────────────────┬───────────────────────────────────┐
            │ 1.12156456132  ┆ f16                  ┆ bf16             ┆ f32                               │
            ╞════════════════╪══════════════════════╪══════════════════╪═══════════════════════════════════╡
            │ bits           ┆ 0x3c7c               ┆ 0x3f90           ┆ 0x3f8f8f6d                        │
            │ sign           ┆ 0 (+)                ┆ 0 (+)            ┆ 0 (+)                             │
            │ exponent       ┆ 01111 (2^0)          ┆ 01111111 (2^0)   ┆ 01111111 (2^0)                    │
            │ fraction       ┆ 0001111100           ┆ 0010000          ┆ 00011111000111101101101           │
            │ class          ┆ normal               ┆ normal           ┆ normal                            │
            │ exact value    ┆ 1.12109375           ┆ 1.125            ┆ 1.12156450748443603515625         │
            │ absolute error ┆ 4.708e-4             ┆ 3.435e-3         ┆ 5.384e-8                          │
            │ relative error ┆ 4.198e-4             ┆ 3.063e-3         ┆ 4.8e-8                            │
            │ next below     ┆ 1.1201171875         ┆ 1.1171875        ┆ 1.121564388275146484375           │
            │ next above     ┆ 1.1220703125         ┆ 1.1328125        ┆ 1.1215646266937255859375          │
            │ ulp            ┆ 2^-10 = 0.0009765625 ┆ 2^-7 = 0.0078125 ┆ 2^-23 = 0.00000011920928955078125 │
            └────────────────┴──────────────────────┴──────────────────┴───────────────────────────────────┘
        "#]],
    );
}

#[test]
fn numbers_at_the_edges() {
    check(
        &["bits", "70000", "nan", "0", "--as", "f16"],
        expect![[r#"
        exit 0
        --- stdout
        ┌────────────────┬────────────┐
        │ 70000          ┆ f16        │
        ╞════════════════╪════════════╡
        │ bits           ┆ 0x7c00     │
        │ sign           ┆ 0 (+)      │
        │ exponent       ┆ 11111      │
        │ fraction       ┆ 0000000000 │
        │ class          ┆ infinite   │
        │ exact value    ┆ inf        │
        │ absolute error ┆ -          │
        │ relative error ┆ -          │
        │ next below     ┆ 65504      │
        │ next above     ┆ -          │
        │ ulp            ┆ -          │
        └────────────────┴────────────┘

        ┌────────────────┬────────────┐
        │ nan            ┆ f16        │
        ╞════════════════╪════════════╡
        │ bits           ┆ 0x7e00     │
        │ sign           ┆ 0 (+)      │
        │ exponent       ┆ 11111      │
        │ fraction       ┆ 1000000000 │
        │ class          ┆ nan        │
        │ exact value    ┆ nan        │
        │ absolute error ┆ -          │
        │ relative error ┆ -          │
        │ next below     ┆ -          │
        │ next above     ┆ -          │
        │ ulp            ┆ -          │
        └────────────────┴────────────┘

        ┌────────────────┬───────────────────────────────┐
        │ 0              ┆ f16                           │
        ╞════════════════╪═══════════════════════════════╡
        │ bits           ┆ 0x0000                        │
        │ sign           ┆ 0 (+)                         │
        │ exponent       ┆ 00000 (2^-14)                 │
        │ fraction       ┆ 0000000000                    │
        │ class          ┆ zero                          │
        │ exact value    ┆ 0                             │
        │ absolute error ┆ 0                             │
        │ relative error ┆ -                             │
        │ next below     ┆ -5.9604644775390625e-8        │
        │ next above     ┆ 5.9604644775390625e-8         │
        │ ulp            ┆ 2^-24 = 5.9604644775390625e-8 │
        └────────────────┴───────────────────────────────┘
    "#]],
    );
    check(
        &["bits", "--as", "bf16", "--wide", "--", "-1e-40", "-inf"],
        expect![[r#"
            exit 0
            --- stdout
            ┌────────────────┬─────────────────────────────────────────────────────────────────────────────────────────────────────────────┐
            │ -1e-40         ┆ bf16                                                                                                        │
            ╞════════════════╪═════════════════════════════════════════════════════════════════════════════════════════════════════════════╡
            │ bits           ┆ 0x8001                                                                                                      │
            │ sign           ┆ 1 (-)                                                                                                       │
            │ exponent       ┆ 00000000 (2^-126)                                                                                           │
            │ fraction       ┆ 0000001                                                                                                     │
            │ class          ┆ subnormal                                                                                                   │
            │ exact value    ┆ -9.18354961579912115600575419704879435795832466228193376178712270530013483949005603790283203125e-41         │
            │ absolute error ┆ 8.165e-42                                                                                                   │
            │ relative error ┆ 8.165e-2                                                                                                    │
            │ next below     ┆ -1.83670992315982423120115083940975887159166493245638675235742454106002696789801120758056640625e-40         │
            │ next above     ┆ -0                                                                                                          │
            │ ulp            ┆ 2^-133 = 9.18354961579912115600575419704879435795832466228193376178712270530013483949005603790283203125e-41 │
            └────────────────┴─────────────────────────────────────────────────────────────────────────────────────────────────────────────┘

            ┌────────────────┬─────────────────────────────────────────────┐
            │ -inf           ┆ bf16                                        │
            ╞════════════════╪═════════════════════════════════════════════╡
            │ bits           ┆ 0xff80                                      │
            │ sign           ┆ 1 (-)                                       │
            │ exponent       ┆ 11111111                                    │
            │ fraction       ┆ 0000000                                     │
            │ class          ┆ infinite                                    │
            │ exact value    ┆ -inf                                        │
            │ absolute error ┆ -                                           │
            │ relative error ┆ -                                           │
            │ next below     ┆ -                                           │
            │ next above     ┆ -3.3895313892515354759047080037148786688e38 │
            │ ulp            ┆ -                                           │
            └────────────────┴─────────────────────────────────────────────┘
        "#]],
    );
}

#[test]
fn json() {
    check(
        &["bits", "-0.1", "--as", "bf16", "--json"],
        expect![[r#"
        exit 0
        --- stdout
        {
          "numbers": [
            {
              "formats": [
                {
                  "above": "-0.099609375",
                  "absolute_error": "0.00009765625",
                  "below": "-0.1005859375",
                  "bits": "0xbdcd",
                  "class": "normal",
                  "exponent": -4,
                  "exponent_bits": "01111011",
                  "format": "bf16",
                  "fraction_bits": "1001101",
                  "relative_error": "9.766e-4",
                  "sign": 1,
                  "ulp": "0.00048828125",
                  "ulp_exponent": -11,
                  "value": "-0.10009765625"
                }
              ],
              "input": "-0.1"
            }
          ]
        }
    "#]],
    );
    check(
        &["bits", "1e39", "--as", "f32", "--json"],
        expect![[r#"
        exit 0
        --- stdout
        {
          "numbers": [
            {
              "formats": [
                {
                  "above": null,
                  "absolute_error": null,
                  "below": "3.4028234663852885981170418348451692544e38",
                  "bits": "0x7f800000",
                  "class": "infinite",
                  "exponent": null,
                  "exponent_bits": "11111111",
                  "format": "f32",
                  "fraction_bits": "00000000000000000000000",
                  "relative_error": null,
                  "sign": 0,
                  "ulp": null,
                  "ulp_exponent": null,
                  "value": "inf"
                }
              ],
              "input": "1e39"
            }
          ]
        }
    "#]],
    );
}

#[test]
fn a_lost_update() {
    check(
        &["bits", "--accumulate", "1.125", "0.00041999", "--steps", "100", "--wide", "--as", "f32,bf16,f16"],
        expect![[r#"
            exit 0
            --- stdout
            1.125 + 100 * 0.00041999 = 1.166999 exactly
            ┌─────────┬───────┬───────────────────────────────────────┬──────────────────┬─────────────────────────┬──────────┐
            │ kept in ┆ start ┆ update                                ┆ update lost from ┆ after 100               ┆ error    │
            ╞═════════╪═══════╪═══════════════════════════════════════╪══════════════════╪═════════════════════════╪══════════╡
            │ f32     ┆ 1.125 ┆ 0.00041999001405201852321624755859375 ┆ never            ┆ 1.166997432708740234375 ┆ 1.567e-6 │
            │ bf16    ┆ 1.125 ┆ 0.00041961669921875                   ┆ step 1           ┆ 1.125                   ┆ 4.2e-2   │
            │ f16     ┆ 1.125 ┆ 0.000420093536376953125               ┆ step 1           ┆ 1.125                   ┆ 4.2e-2   │
            └─────────┴───────┴───────────────────────────────────────┴──────────────────┴─────────────────────────┴──────────┘
            bf16 loses the update from step 1 on: the next number is 0.0078125 away from 1.125, and the update (0.00041961669921875) is no more than half of that, so the sum rounds back.
            f16 loses the update from step 1 on: the next number is 0.0009765625 away from 1.125, and the update (0.000420093536376953125) is no more than half of that, so the sum rounds back.
            This is why mixed-precision training keeps an f32 master copy of every weight: the network reads it cast to 16 bits, and the update, often thousands of times smaller than the weight, is added in f32, where it is not rounded away.

            Without a master copy, as `train: {variables: …}` stores weights:
            ┌──────────────────┬───────┬──────────────────────┬────────────────────┬────────┐
            │ variables        ┆ bytes ┆ steps that change it ┆ after 100          ┆ off by │
            ╞══════════════════╪═══════╪══════════════════════╪════════════════════╪════════╡
            │ f32              ┆ 4     ┆ 100                  ┆ 1.1669974          ┆ 1.5e-6 │
            │ bf16_stochastic  ┆ 2     ┆ 5.4 on average       ┆ 1.1671677 ± 1.8e-2 ┆ 1.8e-2 │
            │ bf16_compensated ┆ 4     ┆ 100                  ┆ 1.1673126          ┆ 3.1e-4 │
            │ bf16_nearest     ┆ 2     ┆ 0                    ┆ 1.125              ┆ 4.2e-2 │
            └──────────────────┴───────┴──────────────────────┴────────────────────┴────────┘
            bf16_stochastic is 4096 weights: their mean, ± their standard deviation, and what one of them is off by (the root of the mean square). Their mean is off by 1.7e-4: errors of single weights cancel, which those of the other rows do not. docs/BF16_WEIGHTS.md says when to use which.
        "#]],
    );
}

#[test]
fn one_update() {
    check(
        &["bits", "--accumulate", "1.125", "0.12457275390625", "--steps", "1", "--as", "f16,f32"],
        expect![[r#"
            exit 0
            --- stdout
            1.125 + 1 * 0.12457275390625 = 1.24957275390625 exactly
            ┌─────────┬───────┬──────────────────┬──────────────────┬──────────────────┬──────────┐
            │ kept in ┆ start ┆ update           ┆ update lost from ┆ after 1          ┆ error    │
            ╞═════════╪═══════╪══════════════════╪══════════════════╪══════════════════╪══════════╡
            │ f16     ┆ 1.125 ┆ 0.12457275390625 ┆ never            ┆ 1.25             ┆ 4.272e-4 │
            │ f32     ┆ 1.125 ┆ 0.12457275390625 ┆ never            ┆ 1.24957275390625 ┆ 0        │
            └─────────┴───────┴──────────────────┴──────────────────┴──────────────────┴──────────┘
            No update is lost here: beside this weight it is large enough to move it in every one of these
              formats.
        "#]],
    );
}

#[test]
fn a_negative_update_that_is_lost_later() {
    check(
        &["bits", "--accumulate", "-4090", "-1e0", "--steps", "20", "--as", "f16"],
        expect![[r#"
            exit 0
            --- stdout
            -4090 + 20 * -1 = -4110 exactly
            ┌─────────┬───────┬────────┬──────────────────┬──────────┬───────┐
            │ kept in ┆ start ┆ update ┆ update lost from ┆ after 20 ┆ error │
            ╞═════════╪═══════╪════════╪══════════════════╪══════════╪═══════╡
            │ f16     ┆ -4090 ┆ -1     ┆ step 2           ┆ -4092    ┆ 1.8e1 │
            └─────────┴───────┴────────┴──────────────────┴──────────┴───────┘
            f16 loses the update from step 2 on: the next number is 2 away from -4092, and the update (-1) is no
              more than half of that, so the sum rounds back.
            This is why mixed-precision training keeps an f32 master copy of every weight: the network reads it
              cast to 16 bits, and the update, often thousands of times smaller than the weight, is added in
              f32, where it is not rounded away.
        "#]],
    );
}

#[test]
fn an_overflow() {
    check(
        &["bits", "--accumulate", "60000", "3000", "--steps", "5", "--as", "f16"],
        expect![[r#"
            exit 0
            --- stdout
            60000 + 5 * 3000 = 75000 exactly
            ┌─────────┬───────┬────────┬──────────────────┬─────────┬───────┐
            │ kept in ┆ start ┆ update ┆ update lost from ┆ after 5 ┆ error │
            ╞═════════╪═══════╪════════╪══════════════════╪═════════╪═══════╡
            │ f16     ┆ 60000 ┆ 3000   ┆ step 3           ┆ inf     ┆ -     │
            └─────────┴───────┴────────┴──────────────────┴─────────┴───────┘
            f16 has overflowed to inf before step 3, and no update brings it back.
        "#]],
    );
}

#[test]
fn an_update_below_every_number() {
    check(
        &["bits", "--accumulate", "0.5", "1e-9", "--steps", "5", "--as", "f16"],
        expect![[r#"
            exit 0
            --- stdout
            0.5 + 5 * 1e-9 = 0.500000005 exactly
            ┌─────────┬───────┬────────┬──────────────────┬─────────┬───────┐
            │ kept in ┆ start ┆ update ┆ update lost from ┆ after 5 ┆ error │
            ╞═════════╪═══════╪════════╪══════════════════╪═════════╪═══════╡
            │ f16     ┆ 0.5   ┆ 0      ┆ step 1           ┆ 0.5     ┆ 5e-9  │
            └─────────┴───────┴────────┴──────────────────┴─────────┴───────┘
            f16 has no number as small as the update: it is rounded to 0.
            This is why mixed-precision training keeps an f32 master copy of every weight: the network reads it
              cast to 16 bits, and the update, often thousands of times smaller than the weight, is added in
              f32, where it is not rounded away.
        "#]],
    );
}

#[test]
fn accumulated_json() {
    check(
        &["bits", "--accumulate", "256", "1", "--steps", "2", "--as", "bf16,f16", "--json"],
        expect![[r#"
            exit 0
            --- stdout
            {
              "exact": "258",
              "formats": [
                {
                  "bits": [
                    "0x4380",
                    "0x4380"
                  ],
                  "error": "2",
                  "final": "256",
                  "first_lost_step": 1,
                  "format": "bf16",
                  "start": "256",
                  "update": "1"
                },
                {
                  "bits": [
                    "0x5c04",
                    "0x5c08"
                  ],
                  "error": "0",
                  "final": "258",
                  "first_lost_step": null,
                  "format": "f16",
                  "start": "256",
                  "update": "1"
                }
              ],
              "start": "256",
              "steps": 2,
              "update": "1",
              "variables": [
                {
                  "bytes": 4,
                  "changed": 2.0,
                  "final": 258.0,
                  "off_by": 0.0,
                  "spread": 0.0,
                  "storage": "f32",
                  "weights": 1
                },
                {
                  "bytes": 2,
                  "changed": 1.018310546875,
                  "final": 258.03662109375,
                  "off_by": 1.4145587872195344,
                  "spread": 1.414084671436811,
                  "storage": "bf16_stochastic",
                  "weights": 4096
                },
                {
                  "bytes": 4,
                  "changed": 2.0,
                  "final": 258.0,
                  "off_by": 0.0,
                  "spread": 0.0,
                  "storage": "bf16_compensated",
                  "weights": 1
                },
                {
                  "bytes": 2,
                  "changed": 0.0,
                  "final": 256.0,
                  "off_by": 2.0,
                  "spread": 0.0,
                  "storage": "bf16_nearest",
                  "weights": 1
                }
              ]
            }
        "#]],
    );
}

#[test]
fn bad_arguments() {
    check(
        &["bits", "1,5"],
        expect![[r#"
        exit 2
        --- stderr
        error: invalid value '1,5' for '[NUMBER]...': `1,5` is not a number; expected a decimal such as 1.125, -3e-5, inf or nan

        For more information, try '--help'.
    "#]],
    );
    check(
        &["bits", "1", "--as", "fp16"],
        expect![[r#"
        exit 2
        --- stderr
        error: invalid value 'fp16' for '--as <FORMATS>'
          [possible values: f16, bf16, f32, f64]

          tip: a similar value exists: 'f16'

        For more information, try '--help'.
    "#]],
    );
    check(
        &["bits"],
        expect![[r#"
        exit 2
        --- stderr
        error: the following required arguments were not provided:
          <NUMBER>...

        Usage: bf16scope bits <NUMBER>...

        For more information, try '--help'.
    "#]],
    );
    check(
        &["bits", "--accumulate", "1", "inf"],
        expect![[r#"
        exit 2
        --- stderr
        bf16scope: --accumulate adds finite numbers; found `inf`
    "#]],
    );
    check(
        &["bits", "--accumulate", "1", "2", "--steps", "0"],
        expect![[r#"
            exit 2
            --- stderr
            error: invalid value '0' for '--steps <N>': expected a whole number from 1 to 100000

            For more information, try '--help'.
        "#]],
    );
    check(
        &["bits", "1", "--trace", "/nonexistent/out.json"],
        expect![[r#"
            exit 2
            --- stderr
            bf16scope: --trace: there is no folder `/nonexistent`; make it, or name another file
        "#]],
    );
    check(
        &["bitz"],
        expect![[r#"
            exit 2
            --- stderr
            error: unrecognized subcommand 'bitz'

              tip: some similar subcommands exist: 'fit', 'bits'

            Usage: bf16scope [OPTIONS] <COMMAND>

            For more information, try '--help'.
        "#]],
    );
}

#[test]
fn a_bad_log_filter() {
    let output = bf16scope(&["bits", "1"]).env("RUST_LOG", "bf16scope=loud").output().unwrap();
    expect![[r#"
        exit 2
        --- stderr
        bf16scope: RUST_LOG: cannot read `bf16scope=loud`; expected directives such as bf16scope=debug
          caused by: error parsing level filter: expected one of "off", "error", "warn", "info", "debug", "trace", or a number 0-5
    "#]].assert_eq(&transcript(output));
}

#[test]
fn help() {
    check(
        &["bits", "--help"],
        expect![[r#"
            exit 0
            --- stdout
            Show a number's bits, exact value and rounding error in each format, or where updates are lost

            Usage: bf16scope bits [OPTIONS] [NUMBER]...

            Arguments:
              [NUMBER]...  Decimal numbers of any length, inf or nan

            Options:
                  --as <FORMATS>                 Formats to show, separated by commas [default: f32,bf16,f16]
                                                 [possible values: f16, bf16, f32, f64]
                  --accumulate <START> <UPDATE>  Add UPDATE to START repeatedly, in each format, and show where
                                                 the update is lost
                  --steps <N>                    How many times the update is added [default: 100]
                  --json                         Print one JSON object
              -h, --help                         Print help

            Global options:
              -v, --verbose...    Say more on standard error; -vv for debugging. Adds to RUST_LOG, if that is
                                  set
              -q, --quiet         Print only errors on standard error
                  --offline       Install and download nothing; fail if that is needed
                  --wide          Show all columns and whole names, however long the lines
                  --trace <FILE>  Write a Chrome trace of where the time went (open it in ui.perfetto.dev)

            Examples:
              bf16scope bits 1.12156456132
                      bits, exact value, rounding error, neighbours and ulp in f32, bf16 and f16
              bf16scope bits 0.1 -2.5 --as bf16,f64 --json
                      two numbers, two formats, one JSON object
              bf16scope bits --as f16 -- -2.5e-8 -inf
                      after --, anything that starts with a dash is a number too
              bf16scope bits --accumulate 1.125 0.00041999 --steps 100 --as f32,bf16,f16
                      a weight that takes the same update 100 times, kept in each format

            Numbers are read exactly and rounded once, to nearest, ties to even.
        "#]],
    );
}

#[test]
fn a_trace_is_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    let output = bf16scope(&["bits", "1", "--as", "bf16", "--trace"]).arg(&path).output().unwrap();
    assert!(output.status.success());
    let text = std::fs::read_to_string(&path).unwrap();
    let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let last = events.last().unwrap();
    let described = (&last["ph"], &last["name"], &last["args"]["name"]);
    assert_eq!(described, (&"X".into(), &"command".into(), &"bits".into()));
}

/// More than a pipe can buffer, to a reader that leaves after the first bytes.
#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = bf16scope(&["bits", "--accumulate", "1", "1", "--steps", "100000", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 16]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(transcript(output), "exit 0\n");
}

/// It used to lose its sign.
#[test]
fn a_negative_nan_is_one() {
    let output = bf16scope(&["bits", "--as", "bf16", "--json", "--", "-nan"]).output().unwrap();
    let message = String::from_utf8(output.stdout).unwrap();
    assert!(message.contains("\"0xffc0\"") && message.contains("\"-nan\""), "{message}");
}
