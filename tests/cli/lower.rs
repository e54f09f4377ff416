//! `bf16scope lower`, `bf16scope explain-cast` and `BF16SCOPE_AUTO`, driven as a user would: the real binary.
//!
//! `UPDATE_EXPECT=1 cargo test --test cli lower::` rewrites the expectations; read the diff.

use crate::binary;

use bf16scope::hlo::proto::decode;
use bf16scope::hlo::text::parse;
use bf16scope::passes::amp::{self, Policy};
use expect_test::{Expect, expect};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A dot, a bias, a relu, another dot, and the beginning of a softmax.
const MODULE: &str = "\
HloModule net

ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,16] parameter(1)
  b = f32[16] parameter(2)
  hidden = f32[8,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  bias = f32[8,16] broadcast(b), dimensions={1}
  biased = f32[8,16] add(hidden, bias), metadata={op_name=\"net/layer1/add\"}
  zero = f32[] constant(0)
  zeros = f32[8,16] broadcast(zero), dimensions={}
  relu = f32[8,16] maximum(biased, zeros)
  logits = f32[8,16] dot(relu, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT exps = f32[8,16] exponential(logits)
}
";

/// Distances of rows to codes, ‖a‖² + ‖b‖² − 2ab.
const DISTANCE: &str = "\
HloModule distance

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT r = f32[] add(p, q)
}

ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,16] parameter(1)
  codes = f32[4,16] parameter(2)
  a = f32[8,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  product = f32[8,4] dot(a, codes), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  two = f32[] constant(2)
  twos = f32[8,4] broadcast(two), dimensions={}
  twice = f32[8,4] multiply(twos, product)
  zero = f32[] constant(0)
  squares = f32[8,16] multiply(a, a)
  norms = f32[8] reduce(squares, zero), dimensions={1}, to_apply=add
  of_rows = f32[8,4] broadcast(norms), dimensions={0}
  squared_codes = f32[4,16] multiply(codes, codes)
  code_norms = f32[4] reduce(squared_codes, zero), dimensions={1}, to_apply=add
  of_codes = f32[8,4] broadcast(code_norms), dimensions={1}
  sum = f32[8,4] add(of_rows, of_codes)
  distances = f32[8,4] subtract(sum, twice)
  ROOT y = f32[8,16] dot(distances, codes), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
";

struct Place {
    folder: TempDir,
}

impl Place {
    /// A folder with the module in it.
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("net.txt"), MODULE).unwrap();
        Place { folder }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = binary::bf16scope(args);
        command.env_remove("RUST_LOG").env_remove("BF16SCOPE_AUTO").env("COLUMNS", "100");
        command.stdin(Stdio::null()).current_dir(self.folder.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    /// Exit code, standard output and standard error, as one text.
    fn check(&self, args: &[&str], expected: Expect) {
        let output = self.run(args);
        let mut text = format!("exit {}\n", output.status.code().expect("no signal ended it"));
        for (name, bytes) in [("stdout", output.stdout), ("stderr", output.stderr)] {
            if !bytes.is_empty() {
                text += &format!("--- {name}\n{}", String::from_utf8(bytes).expect("output is UTF-8"));
            }
        }
        expected.assert_eq(&text);
    }
}

/// Inside its fusions nothing is lowered, so lowering the output of `compiled.as_text()` gains little.
#[test]
fn a_module_that_a_compiler_has_made_is_told() {
    let place = Place::new();
    place.write("made.txt", &MODULE.replacen("HloModule net", "HloModule net, is_scheduled=true", 1));
    let output = place.run(&["lower", "made.txt", "-o", "lowered.txt"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && message.contains("made.txt is what a compiler has made (is_scheduled=true)"),
        "{message}"
    );
    assert!(!String::from_utf8(place.run(&["lower", "net.txt", "-o", "n.txt"]).stderr).unwrap().contains("compiler"));
}

/// Its first parameter is not the function's, and its products are in branches.
#[test]
fn a_function_exported_for_several_platforms_is_told() {
    let place = Place::new();
    let exported = oracle("stablehlo/platforms.jax");
    let output = place.run(&["lower", exported.to_str().unwrap(), "-o", "lowered.txt"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && message.contains("says on which it runs (0 for cpu, 1 for tpu)"), "{message}");
    // JAX's text calls its sizes symbolic, though all are known.
    place.write(
        "text.mlir",
        r#"module @jit_f attributes {jax.uses_shape_polymorphism = true} {
  func.func public @main(%arg0: tensor<i32> {jax.global_constant = "_platform_index"}, %arg1: tensor<2xf32>) -> tensor<2xf32> {
    %0 = "stablehlo.case"(%arg0) ({
      stablehlo.return %arg1 : tensor<2xf32>
    }, {
      %1 = stablehlo.add %arg1, %arg1 : tensor<2xf32>
      stablehlo.return %1 : tensor<2xf32>
    }) : (tensor<i32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"#,
    );
    let output = place.run(&["emit", "text.mlir"]);
    let message = String::from_utf8(output.stderr).unwrap();
    let advised = "says on which it runs (from 0, in the order of the export), and the function's own follow; with `platforms=[\"tpu\"]`";
    assert!(output.status.success() && message.contains(advised), "{message}");
    let hlo = String::from_utf8(output.stdout).unwrap();
    assert!(hlo.contains("entry_computation_layout={(s32[], f32[2]{0})->f32[2]{0}}"), "{hlo}");
}

fn oracle(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

#[test]
fn a_module_is_lowered_and_what_was_decided_is_shown() {
    let place = Place::new();
    place.check(
        &["lower", "net.txt", "-o", "out.txt"],
        expect![[r#"
            exit 0
            --- stdout
            ┌─────────────┬──────────┬───────────┐
            │ op          ┆ now bf16 ┆ as before │
            ╞═════════════╪══════════╪═══════════╡
            │ add         ┆        1 ┆         0 │
            │ broadcast   ┆        2 ┆         0 │
            │ dot         ┆        2 ┆         0 │
            │ exponential ┆        0 ┆         1 │
            │ maximum     ┆        1 ┆         0 │
            └─────────────┴──────────┴───────────┘
            6 of 7 instructions with f32 give bf16 now; 4 casts inserted (1,312 bytes)
            results computed: 3,584 bytes before, 2,048 bytes after (57.1 %)
            5 regions could be in another form, no less exact: `--target tpu-v2` compiles both, and keeps the
              cheaper
        "#]],
    );
    expect![[r#"
        HloModule net, entry_computation_layout={(f32[8,16]{1,0}, f32[16,16]{1,0}, f32[16]{0})->f32[8,16]{1,0}}

        ENTRY main {
          x = f32[8,16]{1,0} parameter(0)
          w = f32[16,16]{1,0} parameter(1)
          b = f32[16]{0} parameter(2)
          x.bf16 = bf16[8,16]{1,0} convert(x)
          w.bf16 = bf16[16,16]{1,0} convert(w)
          hidden = bf16[8,16]{1,0} dot(x.bf16, w.bf16), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          b.bf16 = bf16[16]{0} convert(b)
          bias = bf16[8,16]{1,0} broadcast(b.bf16), dimensions={1}
          biased = bf16[8,16]{1,0} add(hidden, bias), metadata={op_name="net/layer1/add"}
          zero = bf16[] constant(0)
          zeros = bf16[8,16]{1,0} broadcast(zero), dimensions={}
          relu = bf16[8,16]{1,0} maximum(biased, zeros)
          logits = bf16[8,16]{1,0} dot(relu, w.bf16), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          logits.f32 = f32[8,16]{1,0} convert(logits)
          ROOT exps = f32[8,16]{1,0} exponential(logits.f32)
        }

    "#]]
    .assert_eq(&place.text("out.txt"));
    place.check(&["lower", "net.txt", "-o", "out.txt", "--policy", "O0", "--list", "--wide"], expect![[r#"
        exit 0
        --- stdout
        ┌──────────────┬─────────────┬────────┬─────┬─────┬─────────────────────────────────────────────────────────────────────────────┬──────┐
        │ instruction  ┆ op          ┆ class  ┆ was ┆ is  ┆ because                                                                     ┆ from │
        ╞══════════════╪═════════════╪════════╪═════╪═════╪═════════════════════════════════════════════════════════════════════════════╪══════╡
        │ main/%x      ┆ parameter   ┆ source ┆ f32 ┆ f32 ┆ parameters keep their types, unless the policy lowers those of the entry    ┆      │
        │ main/%w      ┆ parameter   ┆ source ┆ f32 ┆ f32 ┆ parameters keep their types, unless the policy lowers those of the entry    ┆      │
        │ main/%b      ┆ parameter   ┆ source ┆ f32 ┆ f32 ┆ parameters keep their types, unless the policy lowers those of the entry    ┆      │
        │ main/%hidden ┆ dot         ┆ allow  ┆ f32 ┆ f32 ┆ the policy lowers nothing                                                   ┆      │
        │ main/%bias   ┆ broadcast   ┆ clear  ┆ f32 ┆ f32 ┆ the policy lowers nothing                                                   ┆      │
        │ main/%biased ┆ add         ┆ infer  ┆ f32 ┆ f32 ┆ the policy lowers nothing                                                   ┆      │
        │ main/%zero   ┆ constant    ┆ source ┆ f32 ┆ f32 ┆ it is made in the dtype that its consumers read                             ┆      │
        │ main/%zeros  ┆ broadcast   ┆ clear  ┆ f32 ┆ f32 ┆ the policy lowers nothing                                                   ┆      │
        │ main/%relu   ┆ maximum     ┆ clear  ┆ f32 ┆ f32 ┆ the policy lowers nothing                                                   ┆      │
        │ main/%logits ┆ dot         ┆ allow  ┆ f32 ┆ f32 ┆ the policy lowers nothing                                                   ┆      │
        │ main/%exps   ┆ exponential ┆ island ┆ f32 ┆ f32 ┆ it turns an absolute error of its operand into a relative one of its result ┆      │
        └──────────────┴─────────────┴────────┴─────┴─────┴─────────────────────────────────────────────────────────────────────────────┴──────┘
        ┌─────────────┬──────────┬───────────┐
        │ op          ┆ now bf16 ┆ as before │
        ╞═════════════╪══════════╪═══════════╡
        │ add         ┆        0 ┆         1 │
        │ broadcast   ┆        0 ┆         2 │
        │ dot         ┆        0 ┆         2 │
        │ exponential ┆        0 ┆         1 │
        │ maximum     ┆        0 ┆         1 │
        └─────────────┴──────────┴───────────┘
        0 of 7 instructions with f32 give bf16 now; 0 casts inserted (0 bytes)
        results computed: 3,584 bytes before, 3,584 bytes after (100.0 %)
        --- stderr
        bf16scope: warning: nothing gives bf16 under this policy: out.txt computes as before; --list says why, instruction by instruction
    "#]]);
}

#[test]
fn text_and_proto_go_in_and_out() {
    let place = Place::new();
    let pb = oracle("oracle_tf/mlp_f32.hlo.pb");
    let txt = oracle("oracle_tf/mlp_f32.hlo.txt");
    for (input, output) in [(&pb, "a.pb"), (&pb, "a.txt"), (&txt, "b.pb")] {
        let output = place.run(&["lower", input.to_str().unwrap(), "-o", output]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let expected = amp::run(&decode::from_bytes(&std::fs::read(&pb).unwrap()).unwrap(), &Policy::default()).unwrap().0;
    let names = |module: &bf16scope::hlo::Module| -> Vec<String> {
        let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
        let mut names: Vec<String> =
            instructions.map(|instr| format!("{} {}", instr.name, instr.shape.without_layout())).collect();
        names.sort();
        names
    };
    for name in ["a.pb", "b.pb"] {
        let module = decode::from_bytes(&std::fs::read(place.path(name)).unwrap()).unwrap();
        assert_eq!(names(&module), names(&expected), "{name}");
    }
    assert_eq!(names(&parse(&place.text("a.txt"), "a.txt").unwrap()), names(&expected));
}

#[test]
fn the_report_is_json() {
    let place = Place::new();
    assert!(place.run(&["lower", "net.txt", "-o", "out.pb", "--report", "r.json"]).status.success());
    let report: serde_json::Value = serde_json::from_str(&place.text("r.json")).unwrap();
    assert_eq!(report["policy"]["dtype"], "bf16");
    assert_eq!(report["totals"]["dot"]["lowered"], 2);
    let biased = &report["decisions"].as_array().unwrap().iter().find(|d| d["instruction"] == "biased").unwrap();
    assert_eq!(biased["rule"], "it lies between ops that are lowered");
    assert_eq!((&biased["from"], &biased["op_name"]), (&"hidden".into(), &"net/layer1/add".into()));
    assert_eq!((&biased["n_bytes_before"], &biased["n_bytes_after"]), (&512.into(), &256.into()));
    let casts: Vec<&str> =
        report["casts"].as_array().unwrap().iter().map(|c| c["instruction"].as_str().unwrap()).collect();
    assert_eq!(casts, ["x.bf16", "w.bf16", "b.bf16", "logits.f32"]);
}

/// A loss, and sums over a layer's features that are not losses.
const TWO: &str = "\
HloModule two

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,16] parameter(1)
  zero = f32[] constant(0)
  y = f32[8,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  loss = f32[] reduce(y, zero), dimensions={0,1}, to_apply=add
  sums = f32[8] reduce(y, zero), dimensions={1}, to_apply=add
  ROOT out = (f32[8], f32[]) tuple(sums, loss)
}
";

#[test]
fn what_is_taken_for_a_loss_is_said_and_may_be_given() {
    let place = Place::new();
    place.write("two.txt", TWO);
    let output_of = |more: &[&str]| {
        let output = place.run(&[&["lower", "two.txt", "-o", "out.txt"], more].concat());
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let [stdout, _] = output_of(&[]);
    assert!(
        stdout.contains("taken for a loss: result 1 (%loss); if that is wrong, --loss names its number\n"),
        "{stdout}"
    );
    let [stdout, _] = output_of(&["--loss", "0", "--loss", "1"]);
    assert!(stdout.contains("losses: result 0 (%sums), result 1 (%loss), as given\n"), "{stdout}");
    let [_, stderr] = output_of(&["--loss", "2"]);
    assert!(stderr.contains("losses: 2 is the number of no result of two, expected one below 2"), "{stderr}");
}

#[test]
fn the_keys_of_a_policy_are_in_the_help_and_old_ones_are_told() {
    let place = Place::new();
    let help = String::from_utf8(place.run(&["lower", "--help"]).stdout).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&help).contains(&words(&amp::keys::help())), "{help}");
    place.write("old.yaml", "moved: keep\n");
    let output = place.run(&["lower", "net.txt", "-o", "out.txt", "--policy", "old.yaml"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let warning =
        "policy: the key `moved` is deprecated, and read as before: `moved: keep` is part of `rounds: listed`";
    assert!(output.status.success() && stderr.contains(warning), "{stderr}");
}

/// A preset that rounds what the default leaves in f32 is done as it was asked, with a warning and what to do about it.
#[test]
fn roundings_that_hurt_are_told() {
    let place = Place::new();
    place.write("distance.txt", DISTANCE);
    let run = |more: &[&str]| {
        let output = place.run(&[&["lower", "distance.txt", "-o", "out.txt"], more].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        (stderr, place.text("out.txt"))
    };
    let (warned, rounded) = run(&["--policy", "O3"]);
    let why = "although it is subtracted from what nearly equals it, as in ‖a‖² + ‖b‖² − 2ab, xᵢ − xⱼ or log(1 − p), and the \
               difference is small";
    for (value, name, reader) in [
        ("a (dot)", "a", " (%product)"),
        ("product (dot) and 2 more values", "product", " (%distances)"),
        ("distances (subtract)", "distances", ""),
    ] {
        let warning = format!(
            "bf16scope: warning: the policy rounds %{value}, {why}{reader}\n\
             help: --keep '{name}' leaves it f32; the policy `default` leaves all such values\n"
        );
        assert!(warned.contains(&warning), "{warning}{warned}");
    }
    assert!(rounded.contains("product = bf16[8,4]"), "{rounded}");
    let (silent, exact) = run(&[]);
    assert!(!silent.contains("the policy rounds") && exact.contains("product = f32[8,4]"), "{silent}{exact}");
}

#[test]
fn an_instruction_is_explained() {
    let place = Place::new();
    place.check(
        &["explain-cast", "net.txt", "%biased"],
        expect![[r#"
        exit 0
        --- stdout
        main/%biased, add of class infer, was f32, is bf16: it lies between ops that are lowered (%hidden)
          from main/%hidden, dot of class allow, was f32, is bf16: its op is always lowered
    "#]],
    );
    place.check(
        &["explain-cast", "net.txt", "exps"],
        expect![[r#"
        exit 0
        --- stdout
        main/%exps, exponential of class island, stays f32: it turns an absolute error of its operand into a
          relative one of its result
          cast %logits.f32 (convert, 128 elements) gives %logits in f32, first wanted by %exps
    "#]],
    );
    place.check(
        &["explain-cast", "net.txt", "biased", "--keep", "*/layer1/*"],
        expect![[r#"
        exit 0
        --- stdout
        main/%biased, add of class island, stays f32: the policy keeps names like `*/layer1/*`
          cast %hidden.f32 (convert, 128 elements) gives %hidden in f32, first wanted by %biased
          cast %biased.bf16 (convert, 128 elements) gives %biased in bf16, first wanted by %relu
    "#]],
    );
    // Names are accepted in their printed form.
    let explained = |args: &[&str]| place.run(&[&["explain-cast", "net.txt"], args].concat()).stdout;
    let by_name = explained(&["biased", "--keep", "biased"]);
    for name in ["main/%biased", "%biased"] {
        assert_eq!(explained(&[name]), explained(&["biased"]), "{name}");
        let by_place = String::from_utf8(explained(&["biased", "--keep", name])).unwrap();
        assert_eq!(by_place.replace(&format!("`{name}`"), "`biased`").as_bytes(), by_name, "{name}");
    }
    place.check(
        &["explain-cast", "net.txt", "biasd"],
        expect![[r#"
        exit 2
        --- stderr
        bf16scope: net.txt: no instruction is named `biasd`; did you mean `biased`?
    "#]],
    );
    // Names from another framework's dump: by opcode and by number.
    place.check(
        &["explain-cast", "net.txt", "%dot.7"],
        expect![[r#"
        exit 2
        --- stderr
        bf16scope: net.txt: no instruction is named `dot.7`; did you mean `hidden` or `logits`?
    "#]],
    );
    place.write("numbered.txt", &MODULE.replace("relu", "max.4"));
    place.check(
        &["explain-cast", "numbered.txt", "fusion.4"],
        expect![[r#"
        exit 2
        --- stderr
        bf16scope: numbered.txt: no instruction is named `fusion.4`; did you mean `max.4`?
    "#]],
    );
    place.check(
        &["explain-cast", "net.txt", "zero", "--json"],
        expect![[r#"
            exit 0
            --- stdout
            {
              "decisions": [
                {
                  "computation": "main",
                  "instruction": "zero",
                  "op_name": "",
                  "opcode": "constant",
                  "class": "source",
                  "old": "f32",
                  "new": "bf16",
                  "is_lowered": true,
                  "rule": "it is made in the dtype that its consumers read",
                  "from": null,
                  "n_bytes_before": 4,
                  "n_bytes_after": 2
                }
              ],
              "from": [],
              "casts": []
            }
        "#]],
    );
}

#[test]
fn policies_come_from_files() {
    let place = Place::new();
    place.write("policy.yaml", "preset: O1\nkeep: ['*/layer1/*']\nallow: [add]\n");
    assert!(place.run(&["lower", "net.txt", "-o", "out.txt", "--policy", "policy.yaml"]).status.success());
    assert!(place.text("out.txt").contains("biased = f32[8,16]"));
    place.write("two.yaml", "allow: [dot]\ndeny: [tanh, dot]\n");
    place.check(
        &["lower", "net.txt", "-o", "x.pb", "--policy", "two.yaml"],
        expect![[r#"
        exit 2
        --- stderr
        bf16scope: two.yaml is not a policy
          caused by: `dot` is in the lists `allow` and `deny`, expected it in one: take it out of the other
    "#]],
    );
    place.write("key.yaml", "preset: O1\nkepe: [dot]\n");
    place.check(&["lower", "net.txt", "-o", "x.pb", "--policy", "key.yaml"], expect![[r#"
        exit 2
        --- stderr
        bf16scope: key.yaml:2:1: unknown key `kepe`, expected one of preset, dtype, allow, deny, island, keep, reach, rounds, narrow, accumulate, sums, choices, losses, data, decided, infer, clear, min_elements, parameters, results, loss, deny_spreads, unstored, logits, tables, moved, loops, carried
          2 | kepe: [dot]
            | ^^^^
          help: did you mean `keep`?
    "#]]);
    place.write("value.yaml", "min_elements: many\n");
    place.check(
        &["lower", "net.txt", "-o", "x.pb", "--policy", "value.yaml"],
        expect![[r#"
        exit 2
        --- stderr
        bf16scope: value.yaml:1:15: found string "many", expected a whole number
          1 | min_elements: many
            |               ^^^^
    "#]],
    );
    place.check(
        &["lower", "net.txt", "-o", "x.pb", "--policy", "none.yaml"],
        expect![[r#"
        exit 2
        --- stderr
        bf16scope: cannot read the policy none.yaml
          caused by: No such file or directory (os error 2)
          help: name a path that is there; a relative one begins at the folder that the command runs in
    "#]],
    );
    place.check(&["lower", "net.txt", "-o", "x.pb", "--policy", "03"], expect![[r#"
        exit 2
        --- stderr
        bf16scope: unknown preset `03`, expected one of default, tf_amp, bf16_scope, O0, O1, O2, O3, mixed_bfloat16, mixed_float16, jmp:params=…,compute=…,output=…
        help: a policy of your own is a YAML file, such as `mine.yaml`, or its text in braces: `{keep: [head]}`
    "#]]);
    place.check(&["lower", "net.txt", "-o", "x.pb", "--policy", "{preset: O1, elementwise: [add]}"], expect![[r#"
        exit 2
        --- stderr
        bf16scope: policy:1:14: unknown key `elementwise`, expected one of preset, dtype, allow, deny, island, keep, reach, rounds, narrow, accumulate, sums, choices, losses, data, decided, infer, clear, min_elements, parameters, results, loss, deny_spreads, unstored, logits, tables, moved, loops, carried
          1 | {preset: O1, elementwise: [add]}
            |              ^^^^^^^^^^^
    "#]]);
    place.check(&["lower", "net.txt", "-o", "x.pb", "--policy", "jmp:params=f8"], expect![[r#"
        exit 2
        --- stderr
        bf16scope: `jmp:params=f8`: `f8` is none of f32, bf16, f16, expected such as `jmp:params=f32,compute=bf16,output=f32`
    "#]]);
    place.check(&["lower", "net.txt", "-o", "x.pb", "--policy", "jmp:parms=f32"], expect![[r#"
        exit 2
        --- stderr
        bf16scope: `jmp:parms=f32`: `parms` is none of params, compute, output, expected such as `jmp:params=f32,compute=bf16,output=f32`
    "#]]);
    assert!(!place.path("x.pb").exists());
}

/// It used to be silently the default policy.
#[test]
fn an_empty_policy_is_an_error() {
    let place = Place::new();
    for (name, text) in [("empty.yaml", ""), ("comment.yaml", "# keep: ['*']\n"), ("null.yaml", "~\n")] {
        place.write(name, text);
        let output = place.run(&["lower", "net.txt", "-o", "x.pb", "--policy", name]);
        let message = String::from_utf8(output.stderr).unwrap();
        let expected = format!("bf16scope: {name} is empty, expected a policy: keys such as `preset: default`");
        assert!(output.status.code() == Some(2) && message.starts_with(&expected), "{message}");
    }
    place.write("no_keys.yaml", "{}\n");
    assert!(place.run(&["lower", "net.txt", "-o", "x.pb", "--policy", "no_keys.yaml"]).status.success());
}

/// Unwritable outputs used to be noticed only after the search.
#[test]
fn what_cannot_be_written_or_counted_is_told_before_a_compiler_is_asked() {
    let place = Place::new();
    let asked = |more: &[&str]| {
        let args = ["lower", "net.txt", "--target", "tpu-v2", "--offline"];
        let mut command = place.command(&[&args[..], more].concat());
        let output =
            command.env("BF16SCOPE_CACHE", place.path("none")).env("TPU_LIBRARY_PATH", place.path("no.so")).output();
        let output = output.expect("the binary runs");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (more, flag) in [
        (&["-o", "no/such/x.pb"][..], "cannot write no/such/x.pb"),
        (&["-o", "x.pb", "--decisions", "no/d.yaml"], "cannot write no/d.yaml"),
        (&["-o", "x.pb", "--report", "no/r.json"], "cannot write no/r.json"),
    ] {
        let (code, said) = asked(more);
        assert!(code == Some(2) && said.starts_with(&format!("bf16scope: {flag}\n")), "{said}");
        assert!(said.contains("its folder is not there"), "{said}");
    }
    for n in ["0", "-1", "x"] {
        let (code, said) = asked(&["-o", "x.pb", "--compiles", n]);
        let expected =
            format!("invalid value '{n}' for '--compiles <N>': expected a whole number from 1 to 4294967295");
        assert!(code == Some(2) && said.contains(&expected), "{said}");
    }
    assert!(!place.path("x.pb").exists());
}

/// Without a loss to scale, infinities used to come without a warning.
#[test]
fn f16_says_where_its_range_ends() {
    let place = Place::new();
    let messages = |args: &[&str]| {
        let output = place.run(&[&["lower", "net.txt", "-o", "out.pb"], args].concat());
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let ends = "bf16scope: warning: f16 ends at 65504, where f32 and bf16 end at 3.4e38";
    assert!(messages(&["--policy", "mixed_float16"]).starts_with(ends), "{}", messages(&["--policy", "mixed_float16"]));
    for others in [&[][..], &["--policy", "O0", "--dtype", "f16"]] {
        assert!(!messages(others).contains("65504"), "{others:?}");
    }
}

#[test]
fn f16_training_says_what_it_cannot_do() {
    let place = Place::new();
    let module = oracle("oracle_jax/mlp_adam_step.hlo.pb");
    let output = place.run(&["lower", module.to_str().unwrap(), "-o", "out.pb", "--dtype", "f16"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success());
    assert!(
        stderr.starts_with("bf16scope: warning: this program differentiates a scalar loss, and in f16"),
        "{stderr}"
    );
}

/// If a file cannot be lowered, the existing output is unchanged.
#[test]
fn an_output_is_replaced_whole_or_not_at_all() {
    let place = Place::new();
    place.write("out.txt", "what was there");
    place.write("broken.txt", &MODULE.replace("ROOT exps = f32[8,16]", "ROOT exps = f32[8,17]"));
    let output = place.run(&["lower", "broken.txt", "-o", "out.txt"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("broken.txt: the module is broken"));
    assert_eq!(place.text("out.txt"), "what was there");
    assert!(place.run(&["lower", "net.txt", "-o", "out.txt"]).status.success());
    assert!(place.text("out.txt").starts_with("HloModule net"));
}

/// `exps` of logits near 1: in f32 they have bits that a bf16 product of the logits does not have.
#[test]
fn the_environment_lowers_what_is_run() {
    let place = Place::new();
    let run = |auto: Option<&str>| {
        let mut command = place.command(&["run", "net.txt", "--random", "1", "--json"]);
        auto.map(|value| command.env("BF16SCOPE_AUTO", value));
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let mut json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (json["outputs"].take(), stderr)
    };
    let (wide, _) = run(None);
    let (off, _) = run(Some("0"));
    let (narrow, stderr) = run(Some("1"));
    assert!(wide.is_array());
    assert_eq!(wide, off);
    assert_ne!(wide, narrow);
    assert!(
        stderr.contains("warning: BF16SCOPE_AUTO is set: 6 instructions of net.txt compute in bf16 now"),
        "{stderr}"
    );
    let (_, stderr) = run(Some("zzz"));
    assert!(stderr.starts_with("bf16scope: BF16SCOPE_AUTO is `zzz`, expected 0, 1, a preset or a file\n"), "{stderr}");
}

/// Programs compiled for a TPU are lowered too: the compiler counts casts that the wide program lacks.
#[test]
fn the_environment_lowers_what_is_compiled() {
    let place = Place::new();
    let compile = |auto: &str| {
        let mut command = place.command(&["compile", "net.txt", "--target", "tpu-v2", "--json"]);
        let output = command.env("BF16SCOPE_AUTO", auto).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (json["reports"][0]["flops"].as_f64().unwrap(), stderr)
    };
    let (wide, quiet) = compile("0");
    let (narrow, stderr) = compile("1");
    assert!(!quiet.contains("BF16SCOPE_AUTO"), "{quiet}");
    let warning = "warning: BF16SCOPE_AUTO is set: 6 instructions of net.txt compute in bf16 now";
    assert!(stderr.contains(warning), "{stderr}");
    assert!(narrow > wide, "{narrow} flops lowered, {wide} as given");
}
