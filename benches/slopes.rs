//! How processor time grows with size: for each kind of module and of YAML file, and each thing that is done with it, the
//! slope of time over size on logarithmic scales. 1 is linear, 2 quadratic; above [`MAX_SLOPE`] it fails.
//!
//! `cargo bench --bench slopes`, or `cargo bench --bench slopes -- PART` for kinds whose name has that part. Lowering has
//! slopes of its own; `explain-cast` here is what it does with a report.

use bf16scope::experiment::Experiment;
use bf16scope::foreign::stablehlo;
use bf16scope::hlo::text::{PrintOptions, parse, print};
use bf16scope::hlo::{Module, graphviz, proto, verify::verify};
use bf16scope::passes::amp::{self, Policy};
use std::fmt::Write as _;
use std::hint::black_box;

/// The smallest size, unless `BF16SCOPE_SLOPES` says another; the largest is eight times as much.
const SMALLEST: usize = 10_000;
/// Slope beyond which something is not linear: sorting, maps and caches that grow out of a processor's take some of it.
const MAX_SLOPE: f64 = 1.2;
/// Shorter measurements at the largest size are not judged: their slope is noise.
const MIN_SECONDS: f64 = 0.02;

/// Seconds that this thread has been on a processor.
fn processor_seconds() -> f64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux says how long a thread ran");
    schedstat.split(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("nanoseconds come first") * 1e-9
}

/// The least seconds of three runs.
fn seconds<T>(mut work: impl FnMut() -> T) -> f64 {
    let once = |_| {
        let began = processor_seconds();
        drop(black_box(work()));
        processor_seconds() - began
    };
    (0..3).map(once).fold(f64::INFINITY, f64::min)
}

/// The slope of a line through points of logarithms.
fn slope(sizes: &[usize], seconds: &[f64]) -> f64 {
    let points: Vec<(f64, f64)> = sizes.iter().zip(seconds).map(|(n, t)| ((*n as f64).ln(), t.ln())).collect();
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    covariance / points.iter().map(|point| (point.0 - x).powi(2)).sum::<f64>()
}

/// Comma after each but the first.
fn joined(n: usize, each: impl Fn(usize) -> String) -> String {
    (0..n).map(each).collect::<Vec<_>>().join(", ")
}

fn lines(n: usize, each: impl Fn(usize) -> String) -> String {
    (0..n).map(each).collect()
}

fn parameters(n: usize) -> String {
    lines(n, |at| format!("  p{at} = f32[4] parameter({at})\n"))
}

fn tuple_type(n: usize) -> String {
    format!("({})", joined(n, |_| "f32[4]".to_string()))
}

fn operands(n: usize) -> String {
    joined(n, |at| format!("p{at}"))
}

/// A text of about so many parts.
type Text = fn(usize) -> String;

/// Kinds of modules of about so many instructions, as text.
const MODULES: [(&str, Text); 14] = [
    ("chain", |n| {
        let step = |at: usize| format!("  x{} = f32[4] add(x{at}, x{at})\n", at + 1);
        format!(
            "HloModule m\n\nENTRY main {{\n  x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, step)
        )
    }),
    ("tuple", |n| {
        format!(
            "HloModule m\n\nENTRY main {{\n{}  ROOT t = {} tuple({})\n}}\n",
            parameters(n),
            tuple_type(n),
            operands(n)
        )
    }),
    ("elements", |n| {
        let element = |at: usize| format!("  e{at} = f32[4] get-tuple-element(t), index={at}\n");
        let all = joined(n, |at| format!("e{at}"));
        let ty = tuple_type(n);
        format!(
            "HloModule m\n\nENTRY main {{\n  t = {ty} parameter(0)\n{}  ROOT r = {ty} tuple({all})\n}}\n",
            lines(n, element)
        )
    }),
    ("aliases", |n| {
        let aliases = joined(n, |at| format!("{{{at}}}: ({at}, {{}}, may-alias)"));
        let negate = |at: usize| format!("  n{at} = f32[4] negate(p{at})\n");
        let all = joined(n, |at| format!("n{at}"));
        format!(
            "HloModule m, input_output_alias={{ {aliases} }}\n\nENTRY main {{\n{}{}  ROOT t = {} tuple({all})\n}}\n",
            parameters(n),
            lines(n, negate),
            tuple_type(n)
        )
    }),
    ("aliases of a tuple", |n| {
        let aliases = joined(n, |at| format!("{{{at}}}: (0, {{{at}}}, may-alias)"));
        let ty = tuple_type(n);
        format!("HloModule m, input_output_alias={{ {aliases} }}\n\nENTRY main {{\n  ROOT t = {ty} parameter(0)\n}}\n")
    }),
    ("calls of one", |n| {
        let inner = lines(20, |at| format!("  y{} = f32[4] add(y{at}, y{at})\n", at + 1));
        let call = |at: usize| format!("  x{} = f32[4] call(x{at}), to_apply=f\n", at + 1);
        format!(
            "HloModule m\n\nf {{\n  y0 = f32[4] parameter(0)\n{inner}  ROOT z = f32[4] negate(y20)\n}}\n\nENTRY main {{\n  \
             x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, call)
        )
    }),
    ("calls of many", |n| {
        let n = n / 4;
        let inner =
            |at: usize| format!("f{at} {{\n  y{at} = f32[4] parameter(0)\n  ROOT z{at} = f32[4] negate(y{at})\n}}\n\n");
        let call = |at: usize| format!("  x{} = f32[4] call(x{at}), to_apply=f{at}\n", at + 1);
        format!(
            "HloModule m\n\n{}ENTRY main {{\n  x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, inner),
            lines(n, call)
        )
    }),
    ("branches", |n| {
        let n = n / 4;
        let inner =
            |at: usize| format!("f{at} {{\n  y{at} = f32[4] parameter(0)\n  ROOT z{at} = f32[4] negate(y{at})\n}}\n\n");
        format!(
            "HloModule m\n\n{}ENTRY main {{\n  i = s32[] parameter(0)\n  x = f32[4] parameter(1)\n  ROOT r = f32[4] \
             conditional(i, {}), branch_computations={{{}}}\n}}\n",
            lines(n, inner),
            joined(n, |_| "x".to_string()),
            joined(n, |at| format!("f{at}"))
        )
    }),
    ("conditionals", |n| {
        let step = |at: usize| {
            format!("  x{} = f32[4] conditional(p, x{at}, x{at}), true_computation=f, false_computation=g\n", at + 1)
        };
        format!(
            "HloModule m\n\nf {{\n  y = f32[4] parameter(0)\n  ROOT z = f32[4] negate(y)\n}}\n\ng {{\n  v = f32[4] \
             parameter(0)\n  ROOT w = f32[4] add(v, v)\n}}\n\nENTRY main {{\n  p = pred[] parameter(0)\n  x0 = f32[4] \
             parameter(1)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, step)
        )
    }),
    ("while", |n| {
        let ty = tuple_type(n);
        let element = |at: usize| format!("  e{at} = f32[4] get-tuple-element(s), index={at}\n");
        let all = joined(n, |at| format!("e{at}"));
        format!(
            "HloModule m\n\nbody {{\n  s = {ty} parameter(0)\n{}  ROOT r = {ty} tuple({all})\n}}\n\ncondition {{\n  c = {ty} \
             parameter(0)\n  ROOT no = pred[] constant(false)\n}}\n\nENTRY main {{\n  t = {ty} parameter(0)\n  ROOT w = {ty} \
             while(t), condition=condition, body=body\n}}\n",
            lines(n, element)
        )
    }),
    ("concatenate", |n| {
        let all = operands(n);
        format!(
            "HloModule m\n\nENTRY main {{\n{}  ROOT r = f32[{}] concatenate({all}), dimensions={{0}}\n}}\n",
            parameters(n),
            4 * n
        )
    }),
    ("barrier", |n| {
        let ty = tuple_type(n);
        let all = operands(n);
        format!(
            "HloModule m\n\nENTRY main {{\n{}  t = {ty} tuple({all})\n  ROOT r = {ty} opt-barrier(t)\n}}\n",
            parameters(n)
        )
    }),
    ("custom call", |n| {
        let all = operands(n);
        format!(
            "HloModule m\n\nENTRY main {{\n{}  ROOT r = {} custom-call({all}), custom_call_target=\"f\"\n}}\n",
            parameters(n),
            tuple_type(n)
        )
    }),
    ("lookups", |n| {
        let look = |at: usize| format!("  d{at} = f32[1,4] dynamic-slice(t, i, z), dynamic_slice_sizes={{1,4}}\n");
        let all = joined(n, |at| format!("d{at}"));
        let ty = joined(n, |_| "f32[1,4]".to_string());
        format!(
            "HloModule m\n\nENTRY main {{\n  t = f32[64,4] parameter(0)\n  i = s32[] parameter(1)\n  z = s32[] constant(0)\n{}  \
             ROOT r = ({ty}) tuple({all})\n}}\n",
            lines(n, look)
        )
    }),
];

/// Does something with a module, whose text it is given too.
type Work = fn(&str, &Module);

/// Operations on a module that are timed.
const WORK: [(&str, Work); 6] = [
    ("read text", |text, _| drop(black_box(parse(text, "m").expect("the text was read before")))),
    ("verify", |_, module| verify(module).expect("the module was verified before")),
    ("write text", |_, module| drop(black_box(print(module, &PrintOptions::default())))),
    ("write proto", |_, module| drop(black_box(proto::encode::to_bytes(module).expect("it has a proto")))),
    ("write mlir", |_, module| drop(black_box(stablehlo::write(module)))),
    ("write dot", |_, module| drop(black_box(graphviz::render(module)))),
];

/// Kinds of experiments of about so many keys.
const DOCUMENTS: [(&str, Text); 6] = [
    ("unknown keys", |n| {
        let keys = joined(n, |at| format!("k{at}: {at}"));
        format!("model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4], {keys}}}\n")
    }),
    ("keys of a layer", |n| {
        let keys = joined(n, |at| format!("k{at}: {at}"));
        format!(
            "model: {{kind: layers, inputs: {{x: [4]}}, layers: [{{dense: 2, {keys}}}], loss: mean_squared_error}}\n"
        )
    }),
    ("layers", |n| {
        let layers = lines(n, |_| "    - {activation: relu, dense: 4}\n".to_string());
        format!(
            "model:\n  kind: layers\n  inputs: {{x: [4]}}\n  labels: {{y: [4]}}\n  loss: {{mean_squared_error: , labels: y}}\n  layers:\n{layers}"
        )
    }),
    ("hidden", |n| {
        format!("model: {{kind: mlp, input: [4], n_classes: 2, hidden: [{}]}}\n", joined(n, |_| "4".to_string()))
    }),
    ("features", |n| {
        let features = lines(n, |at| format!("    f{at}: {{key: k{at}}}\n"));
        format!(
            "model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4]}}\ndata:\n  tfrecord: none\n  features:\n{features}"
        )
    }),
    ("patterns", |n| {
        let patterns = joined(n, |at| format!("'*/p{at}/*'"));
        format!("model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4]}}\ntrain: {{trainable: [{patterns}]}}\n")
    }),
];

fn main() {
    let part = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let folder = tempfile::tempdir().expect("a folder for experiments can be made");
    let path = folder.path().join("e.yaml");
    let mut table = format!("{:<20} {:<14}", "kind", "work");
    let smallest = std::env::var("BF16SCOPE_SLOPES").ok().and_then(|n| n.parse().ok()).unwrap_or(SMALLEST);
    let sizes: [usize; 4] = [1, 2, 4, 8].map(|times| times * smallest);
    sizes.iter().for_each(|n| write!(table, " {n:>9}").expect("a string takes everything"));
    println!("{table} {:>7}", "slope");
    let mut steep = Vec::new();
    let mut judge = |kind: &str, work: &str, seconds: Vec<f64>| {
        let slope = slope(&sizes, &seconds);
        let shown: String = seconds.iter().map(|t| format!(" {t:>9.4}")).collect();
        println!("{kind:<20} {work:<14}{shown} {slope:>7.2}");
        if slope > MAX_SLOPE && seconds.last().is_some_and(|last| *last > MIN_SECONDS) {
            steep.push(format!("{kind}, {work}: {slope:.2}"));
        }
    };
    for (kind, make) in MODULES.into_iter().filter(|(kind, _)| kind.contains(&part)) {
        let modules: Vec<(String, Module)> = sizes
            .iter()
            .map(|&n| {
                let text = make(n);
                let module = parse(&text, "m").unwrap_or_else(|error| panic!("{kind}: {error}"));
                verify(&module).unwrap_or_else(|errors| panic!("{kind}: {errors}"));
                (text, module)
            })
            .collect();
        for (work, does) in WORK {
            judge(kind, work, modules.iter().map(|(text, module)| seconds(|| does(text, module))).collect());
        }
        let explain = |(_, module): &(String, Module)| {
            let instructions = &module.entry().instructions;
            let name = instructions[instructions.len() / 2].name.clone();
            let report = amp::run(module, &Policy::default()).expect("the module is lowered").1;
            seconds(|| (report.explain(&name).len(), report.casts_about(&name).len()))
        };
        judge(kind, "explain-cast", modules.iter().map(explain).collect());
    }
    for (kind, make) in DOCUMENTS.into_iter().filter(|(kind, _)| kind.contains(&part)) {
        let read = |&n: &usize| {
            std::fs::write(&path, make(n)).expect("an experiment can be written");
            seconds(|| Experiment::read(&path).map(drop).map_err(drop))
        };
        judge(kind, "read YAML", sizes.iter().map(read).collect());
    }
    assert!(steep.is_empty(), "slopes over {MAX_SLOPE}:\n{}", steep.join("\n"));
}
