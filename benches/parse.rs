//! Reading HLO text: bytes a second on modules of 10, 20 and 40 MB, in both dialects. Where reading is linear they agree.
//!
//! The text is a deep network's: dense layers with a normalization, each instruction with layouts and metadata, as
//! frameworks dump them; in the long dialect with `%` and operand shapes too. It has no large constants.

use std::fmt::Write;
use std::hint::black_box;

use bf16scope::hlo::text::{PrintOptions, parse, print};
use criterion::{BatchSize, Criterion, Throughput};

/// A network of as many layers as make up `n_bytes` of text in today's dialect.
fn short(n_bytes: usize) -> String {
    let mut text = String::from("HloModule deep\n\n");
    text += "add_f32 {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT sum = f32[] add(x, y)\n}\n\n";
    text += "ENTRY main {\n  input = f32[128,512]{1,0} parameter(0)\n  kernel = f32[512,512]{1,0} parameter(1)\n  \
             bias = f32[512]{0} parameter(2)\n  zero = f32[] constant(0)\n";
    let mut x = "input".to_string();
    let mut layer = 0;
    while text.len() < n_bytes {
        let metadata = |op: &str| {
            format!("metadata={{op_type=\"{op}\" op_name=\"jit(step)/network/layer_{layer}/{op}\" source_line=12}}")
        };
        write!(
            text,
            "  dot.{layer} = f32[128,512]{{1,0}} dot({x}, kernel), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {}\n  \
             broadcast.{layer} = f32[128,512]{{1,0}} broadcast(bias), dimensions={{1}}, {}\n  \
             add.{layer} = f32[128,512]{{1,0}} add(dot.{layer}, broadcast.{layer}), {}\n  \
             reduce.{layer} = f32[128]{{0}} reduce(add.{layer}, zero), dimensions={{1}}, to_apply=add_f32, {}\n  \
             mean.{layer} = f32[128,512]{{1,0}} broadcast(reduce.{layer}), dimensions={{0}}, {}\n  \
             subtract.{layer} = f32[128,512]{{1,0}} subtract(add.{layer}, mean.{layer}), {}\n  \
             low.{layer} = bf16[128,512]{{1,0}} convert(subtract.{layer})\n  \
             x.{layer} = f32[128,512]{{1,0}} convert(low.{layer})\n",
            metadata("dot_general"),
            metadata("broadcast_in_dim"),
            metadata("add"),
            metadata("reduce_sum"),
            metadata("broadcast_in_dim"),
            metadata("sub"),
        )
        .expect("writing to a string cannot fail");
        x = format!("x.{layer}");
        layer += 1;
    }
    write!(text, "  ROOT result = f32[128,512]{{1,0}} negate({x})\n}}\n").expect("writing to a string cannot fail");
    text
}

/// The same in the dialect that TensorFlow dumps.
fn long(n_bytes: usize) -> String {
    let module = parse(&short(n_bytes * 2 / 3), "short").expect("the text is a module");
    print(&module, &PrintOptions::long())
}

fn parsing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    group.sample_size(10);
    for megabytes in [10, 20, 40] {
        for (dialect, text) in [("short", short(megabytes * 1_000_000)), ("long", long(megabytes * 1_000_000))] {
            group.throughput(Throughput::Bytes(text.len() as u64));
            // Freeing the module is not reading it, and happens outside the time that is measured.
            let read = |()| parse(black_box(&text), "module").expect("the text is a module");
            group.bench_function(format!("{dialect}/{megabytes}MB"), |bencher| {
                bencher.iter_batched(|| (), read, BatchSize::PerIteration);
            });
        }
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    parsing(&mut criterion);
    criterion.final_summary();
}
