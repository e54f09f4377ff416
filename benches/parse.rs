//! Reading HLO text: bytes a second on modules of 10, 20 and 40 MB, in both dialects. Where reading is linear they agree.
//!
//! The text is a deep network's: dense layers with a normalization, each instruction with layouts and metadata, as
//! frameworks dump them; in the long dialect with `%` and operand shapes too. It has no large constants.
//!
//! The same network as StableHLO, as `lowered.as_text()` gives it, 5 and 20 MB; and as HLO text of as many layers,
//! so that the two readers are compared in one run.

use std::fmt::Write;
use std::hint::black_box;

use bf16scope::foreign;
use bf16scope::hlo::text::{PrintOptions, parse, print};
use bf16scope::hlo::verify;
use criterion::{BatchSize, Criterion, Throughput};

/// A network of as many layers as make up `n_bytes` of text in today's dialect.
fn short(n_bytes: usize) -> String {
    layers(|_, length| length < n_bytes)
}

/// A network of so many layers.
fn short_of(n_layers: usize) -> String {
    layers(|layer, _| layer < n_layers)
}

/// Layers as long as `goes_on` with a number of layers and of bytes.
fn layers(goes_on: impl Fn(usize, usize) -> bool) -> String {
    let mut text = String::from("HloModule deep\n\n");
    text += "add_f32 {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT sum = f32[] add(x, y)\n}\n\n";
    text += "ENTRY main {\n  input = f32[128,512]{1,0} parameter(0)\n  kernel = f32[512,512]{1,0} parameter(1)\n  \
             bias = f32[512]{0} parameter(2)\n  zero = f32[] constant(0)\n";
    let mut x = "input".to_string();
    let mut layer = 0;
    while goes_on(layer, text.len()) {
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

/// The same network as JAX writes StableHLO, and how many layers it has.
fn stablehlo(n_bytes: usize) -> (String, usize) {
    let mut text = String::from(
        "module @deep attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {\n  func.func public \
         @main(%arg0: tensor<128x512xf32>, %arg1: tensor<512x512xf32>, %arg2: tensor<512xf32>) -> (tensor<128x512xf32> \
         {jax.result_info = \"result\"}) {\n    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>\n",
    );
    let (mut x, mut n, mut n_layers) = ("%arg0".to_string(), 0, 0);
    while text.len() < n_bytes {
        let v = |at: usize| format!("%{}", n + at);
        write!(
            text,
            "    {} = stablehlo.dot_general {x}, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : \
             (tensor<128x512xf32>, tensor<512x512xf32>) -> tensor<128x512xf32>\n    \
             {} = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<512xf32>) -> tensor<128x512xf32>\n    \
             {} = stablehlo.add {}, {} : tensor<128x512xf32>\n    \
             {} = stablehlo.reduce({} init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<128x512xf32>, \
             tensor<f32>) -> tensor<128xf32>\n    \
             {} = stablehlo.broadcast_in_dim {}, dims = [0] : (tensor<128xf32>) -> tensor<128x512xf32>\n    \
             {} = stablehlo.subtract {}, {} : tensor<128x512xf32>\n    \
             {} = stablehlo.convert {} : (tensor<128x512xf32>) -> tensor<128x512xbf16>\n    \
             {} = stablehlo.convert {} : (tensor<128x512xbf16>) -> tensor<128x512xf32>\n",
            v(0), v(1), v(2), v(0), v(1), v(3), v(2), v(4), v(3), v(5), v(2), v(4), v(6), v(5), v(7), v(6),
        )
        .expect("writing to a string cannot fail");
        x = v(7);
        n += 8;
        n_layers += 1;
    }
    write!(text, "    return {x} : tensor<128x512xf32>\n  }}\n}}\n").expect("writing to a string cannot fail");
    (text, n_layers)
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

/// Modules of the same layers through both readers: time, and so bytes and instructions a second.
fn stablehlo_beside_hlo(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("stablehlo");
    group.sample_size(10);
    for megabytes in [5, 20] {
        let (text, n_layers) = stablehlo(megabytes * 1_000_000);
        let module = foreign::stablehlo::read(&text, "deep.mlir").expect("it needs no converter");
        verify(&module).expect("it is a program");
        // A layer in HLO text has about as many bytes, which does not matter: as many layers are asked for.
        let hlo = short_of(n_layers);
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(format!("stablehlo/{megabytes}MB"), |bencher| {
            let read = |()| foreign::stablehlo::read(black_box(&text), "deep.mlir").expect("it needs no converter");
            bencher.iter_batched(|| (), read, BatchSize::PerIteration);
        });
        group.throughput(Throughput::Bytes(hlo.len() as u64));
        group.bench_function(format!("hlo/{megabytes}MB"), |bencher| {
            let read = |()| parse(black_box(&hlo), "deep").expect("the text is a module");
            bencher.iter_batched(|| (), read, BatchSize::PerIteration);
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    parsing(&mut criterion);
    stablehlo_beside_hlo(&mut criterion);
    criterion.final_summary();
}
