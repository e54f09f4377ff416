//! `explain`: its figures for a program's memory equal the TPU compiler's, and its page works in a browser.

use crate::support;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::{Command, Output};

use bf16scope::document;
use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::hlo::Module;
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text::parse;
use bf16scope::hlo::verify::{verify, verify_ids};
use bf16scope::models::Model;
use bf16scope::pjrt::{CompileOptions, MemoryStats, Topology};
use bf16scope::tpu::explain::{BufferKind, analyse, explain, heap::heap_bytes, largest_live_buffers, origin::NO_LAYER};
use bf16scope::train::{Objective, program};
use bf16scope_cli::report::{grouped, mib, ratio};
use support::browser;
use support::home::cache_dir;

fn example(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    Experiment::read(&path).unwrap().model
}

/// A ResNet-18 with an eighth of the filters, on images of 64 pixels: every kind of layer in the large ones.
fn small_resnet() -> Model {
    let text = "kind: resnet\ndepth: 18\nwidth: 8\ninput: [64, 64, 3]\nn_classes: 10\n";
    document::from_str("small_resnet.yaml", text).unwrap()
}

/// A BERT of two layers: batched products, softmax, layer norms, a gather and its scatter.
fn small_transformer() -> Model {
    let text = "{kind: transformer, vocabulary: 1000, length: 64, max_length: 64, layers: 2, features: 128, heads: 2, hidden: 256}";
    document::from_str("small_transformer.yaml", text).unwrap()
}

/// The TPU compiler's optimized program for a module, and its own figures.
fn compiled(topology: &Topology, module: &Module) -> (Module, MemoryStats) {
    verify(module).unwrap();
    let compiled = topology.compile(&encode::to_bytes(module).unwrap(), &CompileOptions::default()).unwrap();
    let optimized = decode::from_bytes(&compiled.optimized_program().unwrap()).unwrap();
    verify_ids(&optimized).unwrap();
    (optimized, compiled.memory_stats().unwrap())
}

/// The bytes alive at once equal the compiler's, exactly.
fn check_peak(case: &str, optimized: &Module, stats: &MemoryStats) {
    let liveness = analyse(optimized).unwrap();
    // The compiler's own peak consists of the caller's buffers, constants, and temporaries alive at once.
    let held = stats.arguments + stats.outputs - stats.aliased;
    let peak = liveness.peak_bytes() as i64 + liveness.bytes_of(BufferKind::Constant) as i64;
    assert_eq!(held + peak, stats.peak, "{case}");
    assert_eq!(liveness.bytes_of(BufferKind::Argument) as i64, stats.arguments, "{case}");
}

#[test]
fn what_is_alive_at_the_peak_is_what_the_compiler_counts() {
    check_models(&[
        ("mlp", example("mlp.yaml"), 128, &[Precision::F32]),
        ("digits", example("digits.yaml"), 128, &[Precision::Bf16]),
        ("transformer", small_transformer(), 32, &[Precision::Bf16]),
    ]);
}

fn check_models(models: &[(&str, Model, i64, &[Precision])]) {
    let topology = Topology::tpu("v3:2x2", &BTreeMap::new()).unwrap();
    for (name, model, batch, precisions) in models {
        for &precision in *precisions {
            let case = format!("{name} in {precision}");
            let module =
                program::training(&*model.task(0.0), precision, *batch, &Objective::default()).unwrap().program.module;
            let (optimized, stats) = compiled(&topology, &module);
            check_peak(&case, &optimized, &stats);
            let liveness = analyse(&optimized).unwrap();
            // The heap also depends on the order of placing within a step, which the program does not show: within a
            // tenth.
            let (heap, temporaries) = (heap_bytes(&optimized, &liveness) as f64, stats.temporaries as f64);
            assert!((heap / temporaries - 1.0).abs() < 0.1, "{case}: heap {heap}, the compiler's {temporaries}");
            // Layers and source lines are the user's.
            let largest = &largest_live_buffers(&optimized, 1).unwrap()[0];
            assert!(largest.n_bytes >= liveness.peak_bytes() / 10, "{case}: {largest:?}");
            assert!(largest.origin.source.starts_with("crates/"), "{case}: {largest:?}");
            let explanation = explain(&optimized, None).unwrap();
            let cycles: u64 = explanation.layers.iter().map(|layer| layer.cost.cycles).sum();
            assert!(cycles > 0 && cycles == explanation.total.cycles, "{case}");
            let live: u64 = explanation.memory.layers.iter().map(|(_, n_bytes)| n_bytes).sum();
            assert_eq!(live, explanation.memory.peak, "{case}");
            // Instructions without a scope are attributed to a layer by their operands.
            let nameless = explanation.layers.iter().find(|layer| layer.layer == NO_LAYER);
            let nameless = nameless.map_or(0, |layer| layer.cost.cycles);
            assert!(nameless * 100 <= cycles, "{case}: {nameless} cycles of {cycles} have no layer");
        }
    }
}

#[test]
fn a_loop_over_parts_of_a_batch_is_walked() {
    let objective = Objective { accumulate: NonZeroU32::new(4).unwrap(), ..Objective::default() };
    let module =
        program::training(&*example("mlp.yaml").task(0.0), Precision::Bf16, 128, &objective).unwrap().program.module;
    let topology = Topology::tpu("v2:2x2", &BTreeMap::new()).unwrap();
    let (optimized, stats) = compiled(&topology, &module);
    let has_loop = optimized.entry().instructions.iter().any(|instr| instr.op.opcode() == "while");
    assert!(has_loop, "the compiler has made away with the loop");
    check_peak("accumulate", &optimized, &stats);
}

/// A conditional between two products; one product keeps its own value.
const CHOICE: &str = "HloModule choice
keeps {
  p = f32[512,512] parameter(0)
  a = f32[512,512] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[512,512] dot(a, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT c = f32[512,512] dot(b, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
plain {
  q = f32[512,512] parameter(0)
  ROOT d = f32[512,512] dot(q, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY choice {
  i = s32[] parameter(0)
  x = f32[512,512] parameter(1)
  y = f32[512,512] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[512,512] conditional(i, y, x), branch_computations={keeps, plain}
  ROOT w = f32[512,512] dot(z, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
";

#[test]
fn both_branches_of_a_choice_are_walked() {
    let module = parse(CHOICE, "choice").unwrap();
    let topology = Topology::tpu("v2:2x2", &BTreeMap::new()).unwrap();
    let (optimized, stats) = compiled(&topology, &module);
    let has_choice = optimized.entry().instructions.iter().any(|instr| instr.op.opcode() == "conditional");
    assert!(has_choice, "the compiler has made away with the conditional");
    check_peak("choice", &optimized, &stats);
}

/// In the form of the TPU compiler's output: scheduled, tiled, with cycles; a column padded by a factor of 128.
const OPTIMIZED: &str = include_str!("optimized.hlo");

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bf16scope")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn an_optimized_module_is_explained_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.hlo");
    fs::write(&path, OPTIMIZED).unwrap();
    let path = path.to_str().unwrap();
    let output = run(&["explain", path, "--target", "tpu-v3", "--json", "--offline"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let program = &json["programs"][0];
    let memory = &program["memory"];
    // `cast` and `dense` are alive while the product runs: 2 MiB and 4 MiB.
    assert_eq!(memory["peak"], 6 << 20);
    assert_eq!(memory["peak_instruction"], "dense");
    assert_eq!(memory["live"][0]["instruction"], "dense");
    assert_eq!(memory["live"][0]["origin"]["layer"], "net/dense1");
    assert_eq!(memory["live"][0]["origin"]["source"], "net.py:12");
    assert_eq!(memory["live"][0]["waited_for_by"][0], serde_json::json!(["column", "net/head"]));
    assert_eq!(memory["live"][0]["why_f32"]["reason"], "the f32 result of a product of bf16 operands");
    // A column of 4 KiB takes 512 KiB.
    assert_eq!(memory["padding"][0]["instruction"], "column");
    assert_eq!(memory["padding"][0]["n_bytes"], 512 << 10);
    assert_eq!(memory["padding"][0]["n_unpadded"], 4 << 10);
    assert_eq!(memory["converts"][0]["instruction"], "cast");
    assert_eq!(memory["copies_of_arguments"], serde_json::json!({"n": 1, "n_bytes": 2 << 20}));
    assert_eq!(memory["copies_at_the_peak"], memory["copies_of_arguments"]);
    assert_eq!(program["total"]["cycles"], 45_650);
    assert_eq!(program["layers"][0]["layer"], "net/dense1");
    assert_eq!(program["layers"][0]["cost"]["cycles"], 42_000);
    // 2 × 1024³ flops take longer at 61.5 TFLOP/s than 14 MiB at 450 GB/s.
    assert_eq!(program["layers"][0]["cost"]["flops"], 2.0 * 1024f64.powi(3));
    assert_eq!(program["layers"][0]["cost"]["bytes"], f64::from(14 << 20));
    assert_eq!(program["layers"][0]["bound"], "compute");
    let text = stdout(&run(&["explain", path, "--target", "tpu-v3", "--offline"]));
    for expected in [
        "Copies of variables at the peak: 1, 2.0 MiB, beside the variables themselves",
        "temporaries alive at once 6.0 MiB",
        "peak: step 5 of 9, %dense (net/dense1, net.py:12)",
        "45,650",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    // Rates are known only for v2 and v3.
    let text = stdout(&run(&["explain", path, "--target", "tpu-v5e", "--offline", "--json"]));
    assert!(text.contains("\"bound\": null") && !text.contains("\"bound\": \"compute\""), "{text}");
}

#[test]
fn what_cannot_be_explained_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let refused = |args: &[&str]| {
        let output = run(args);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{args:?}");
        stderr(&output)
    };
    let good = write("step.hlo", OPTIMIZED);
    let error = refused(&["explain", &good, "--target", "cpu"]);
    assert!(error.contains("target cpu: the report needs the TPU compiler"), "{error}");
    let error = refused(&["explain", &good, "--target", "tpu-v33"]);
    assert!(error.contains("did you mean `tpu-v3`?"), "{error}");
    let error = refused(&["explain", &good, "--compare", "--offline"]);
    assert!(error.contains("step.hlo is what a compiler has made (is_scheduled=true)"), "{error}");
    // 32 GiB of results, where there are 8.
    let large = write(
        "large.hlo",
        "HloModule large\n\nENTRY main {\n  x = f32[65536,65536]{1,0} parameter(0)\n  ROOT y = f32[65536,65536]{1,0} dot(x, x), \
         lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n",
    );
    let output = run(&["explain", &large, "--target", "tpu-v2"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    let error = stderr(&output);
    assert!(error.contains("help: `bf16scope fit` finds the batch that fits, and what is largest"), "{error}");
    let error = refused(&["explain", &good, "--html", "no/such/folder/x.html", "--offline"]);
    assert!(error.contains("cannot write no/such/folder/x.html"), "{error}");
    let cut = write("cut.hlo", &OPTIMIZED[..OPTIMIZED.len() / 2]);
    let error = refused(&["explain", &cut, "--offline"]);
    assert!(error.contains("cut.hlo:"), "{error}");
    // Tiles identify a TPU's module.
    let element = "HloModule m, is_scheduled=true\nENTRY m {\n  x = (f32[8]{0:T(256)}) parameter(0)\n  ROOT y = \
                   f32[8]{0:T(256)} get-tuple-element(x), index=7\n}\n";
    let error = refused(&["explain", &write("element.hlo", element), "--offline"]);
    assert!(error.contains("m/%y: takes element 7, which its operand has not"), "{error}");
}

#[test]
fn the_page_works_in_a_browser() {
    let folder = tempfile::tempdir().unwrap();
    let (module, page) = (folder.path().join("step.hlo"), folder.path().join("page.html"));
    fs::write(&module, OPTIMIZED).unwrap();
    let output = run(&[
        "explain",
        module.to_str().unwrap(),
        "--target",
        "tpu-v3",
        "--offline",
        "--html",
        page.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let html = fs::read_to_string(&page).unwrap();
    for elsewhere in ["http", "src=", "href=", "@import", "url("] {
        assert!(!html.contains(elsewhere), "the page loads from elsewhere: {elsewhere}");
    }
    let figures = [
        "<b>6.0 MiB</b><span>as given: temporaries alive at the peak</span>",
        "<b>45,650</b><span>as given: estimated cycles</span>",
        "<pre class=\"readout\">step 5: %dense (net/dense1, net.py:12)\n6.0 MiB in 2 buffers\n   4.0 MiB",
        "data-name=\"net/dense1\"",
    ];
    // The page is complete without its script. It has a strip for each step, and the sort keys.
    for figure in figures {
        assert!(html.contains(figure), "{figure} is not in\n{html}");
    }
    assert_eq!(html.matches("class=\"moment\"").count(), 9, "{html}");
    assert!(html.contains("<title>step 4: %cast (net/dense1, net.py:11)\n2.0 MiB in 1 buffers"), "{html}");
    assert!(html.contains("<td class=\"n\" data-v=\"42000\">42,000</td>"), "{html}");
    let Some(seen) = browser::dom(&page) else { return };
    for figure in figures {
        assert!(seen.contains(figure), "{figure} is not in\n{seen}");
    }
    // The script shows the search fields, so it ran.
    assert!(!seen.contains("hidden=\"\""), "{seen}");
    // A user sorts the layers by cycles, ascending, and hovers over the fourth step.
    let user = "<script>
      const layers = [...document.querySelectorAll('section')].find(s => s.querySelector('h2').textContent.includes('by layer'));
      const head = layers.querySelectorAll('th')[1];
      head.click(); head.click();
      document.title = [...layers.querySelectorAll('tbody tr')].map(row => row.cells[0].textContent).join(' < ');
      document.querySelectorAll('.moment')[3].dispatchEvent(new PointerEvent('pointerover', { bubbles: true }));
    </script>\n</body>";
    fs::write(&page, html.replace("</body>", user)).unwrap();
    let seen = browser::dom(&page).expect("asked for, as above");
    assert!(seen.contains("<title>net/head &lt; net/dense1</title>"), "{seen}");
    assert!(
        seen.contains("<pre class=\"readout\">step 4: %cast (net/dense1, net.py:11)\n2.0 MiB in 1 buffers"),
        "{seen}"
    );
}

#[test]
fn a_model_in_two_precisions_stands_side_by_side_in_a_browser_too() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), cache_dir());
    let model = folder.path().join("mlp.yaml");
    fs::write(&model, "model: {kind: mlp, input: [64], n_classes: 16, hidden: [512]}\ntrain: {batch: 512}\n").unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
        command.current_dir(folder.path()).args(["explain", "mlp.yaml", "--compare", "--target", "tpu-v3"]).args(args);
        let output = command.env("BF16SCOPE_CACHE", cache.path()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let json: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let programs = json["programs"].as_array().unwrap();
    let names: Vec<&str> = programs.iter().map(|program| program["precision"].as_str().unwrap()).collect();
    assert_eq!((names, json["batch"].as_u64()), (vec!["f32", "bf16"], Some(512)));
    // All three outputs end with the verdict.
    let of_json = json["verdict"]["sentences"][0].as_str().unwrap().to_string();
    assert!(of_json.starts_with("Choose bf16: cycles −"), "{of_json}");
    let figures = |program: &serde_json::Value| {
        let figure = |place: &str| program.pointer(place).and_then(serde_json::Value::as_u64).unwrap();
        (figure("/total/cycles"), figure("/memory/peak"))
    };
    let [(f32_cycles, f32_peak), (bf16_cycles, bf16_peak)] = [&programs[0], &programs[1]].map(figures);
    assert!(bf16_peak < f32_peak, "{bf16_peak} of {f32_peak}");
    // The same figures in the table at the end, and on the page.
    let text = run(&["--wide", "--html", "page.html"]);
    let table = text.split("\n== f32 beside bf16\n").nth(1).unwrap();
    assert!(table.contains(&format!("\n\n{of_json}\n")), "{table}");
    let cells = |line: &str| line.split(['│', '┆']).map(|cell| cell.trim().to_string()).collect::<Vec<String>>();
    let rows: Vec<Vec<String>> = table.lines().filter(|line| line.starts_with('│')).map(cells).collect();
    let (of_cycles, of_peak) = (ratio(bf16_cycles as f64, f32_cycles as f64), ratio(bf16_peak as f64, f32_peak as f64));
    let all = [
        "all",
        &grouped(f32_cycles as i64),
        &grouped(bf16_cycles as i64),
        &of_cycles,
        &mib(f32_peak as i64),
        &mib(bf16_peak as i64),
        &of_peak,
    ];
    assert_eq!(rows[1][1..8], all, "{table}");
    let layers: Vec<&str> = rows[2..].iter().map(|row| row[1].as_str()).collect();
    assert!(layers.contains(&"mlp/dense1") && layers.contains(&"mlp/logits"), "{layers:?}");
    let page = folder.path().join("page.html");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains(&of_json), "{html}");
    // The row of that table, cell by cell.
    let both = html.split("<h2>f32 beside bf16</h2>").nth(1).unwrap();
    let row = both.split("<tbody>").nth(1).unwrap().split("</tr>").next().unwrap();
    let cells: Vec<&str> = row.split("</td>").filter_map(|cell| Some(cell.rsplit_once('>')?.1)).collect();
    assert_eq!(cells, all, "{row}");
    let user = "<script>
      const both = [...document.querySelectorAll('section')].find(s => s.querySelector('h2').textContent == 'f32 beside bf16');
      document.title = [...both.querySelector('tbody tr').cells].map(cell => cell.textContent).join(' | ');
    </script>\n</body>";
    fs::write(&page, html.replace("</body>", user)).unwrap();
    let Some(seen) = browser::dom(&page) else { return };
    assert!(seen.contains(&format!("<title>{}</title>", all.join(" | "))), "{seen}");
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Left out of the short form: the other precision of each, and a ResNet.
    #[cfg_attr(feature = "long-tests", test)]
    fn what_is_alive_at_the_peak_in_both_precisions_is_what_the_compiler_counts() {
        check_models(&[
            ("mlp", example("mlp.yaml"), 128, &[Precision::Bf16]),
            ("digits", example("digits.yaml"), 128, &[Precision::F32]),
            ("resnet", small_resnet(), 64, &[Precision::F32, Precision::Bf16]),
            ("transformer", small_transformer(), 32, &[Precision::F32]),
        ]);
    }
}
