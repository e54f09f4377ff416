//! Sums of what is put together of parts, which are written part by part, and of what is copied to other lanes.

use super::storage::{HEAD, dtypes, parsed};
use bf16scope::hlo::text;
use bf16scope::passes::amp::{self, Boundary, Policy};

/// The gradient of one product's three thirds, and of its bias. The three are put together along an axis of their own for each
/// op that reads them, so each is summed where it is made.
#[test]
fn a_sum_of_a_concatenation_is_one_of_its_parts() {
    let source = |axis: i64, all: &str, shape: &str, over: &str| {
        format!(
            "ENTRY main {{
  x = f32[4,8,2,16] parameter(0)
  y = f32[4,8,1,16] parameter(1)
  w = f32[16,16] parameter(2)
  v = f32[48,16] parameter(3)
  zero = f32[] constant(0)
  two = f32[4,8,2,16] dot(x, w), lhs_contracting_dims={{3}}, rhs_contracting_dims={{0}}
  one = f32[4,8,1,16] dot(y, w), lhs_contracting_dims={{3}}, rhs_contracting_dims={{0}}
  all = f32[{all}] concatenate(two, one), dimensions={{{axis}}}
  flat = f32[4,8,48] reshape(all)
  of_bias = f32[{shape}] reduce(flat, zero), dimensions={{{over}}}, to_apply=add
  out = f32[4,8,16] dot(flat, v), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}
  ROOT outs = (f32[4,8,16], f32[{shape}]) tuple(out, of_bias)
}}
"
        )
    };
    let policy = |boundary| Policy { moved: boundary, ..Policy::default() };
    let shapes = |source: &str, boundary| {
        let module = text::parse(&format!("{HEAD}{source}"), "storage.hlo").unwrap_or_else(|error| panic!("{error}"));
        let (lowered, _) = amp::run(&module, &policy(boundary)).unwrap_or_else(|error| panic!("{error}"));
        let sums = lowered.entry().instructions.iter().filter(|instr| instr.op.opcode() == "reduce");
        sums.map(|instr| instr.shape.dims().to_vec()).collect::<Vec<_>>()
    };
    let of_bias = source(2, "4,8,3,16", "48", "0,1");
    assert_eq!(dtypes(&of_bias, &Policy::default(), ["all", "flat", "of_bias"]), ["bf16", "bf16", "f32"]);
    assert_eq!(shapes(&of_bias, Boundary::Lower), [vec![2, 16], vec![1, 16]]);
    assert_eq!(shapes(&of_bias, Boundary::Keep), [vec![48]]);
    // Along the last axis, too.
    let lanes = source(3, "4,8,1,48", "48", "0,1").replace(
        "all = f32[4,8,1,48] concatenate(two, one)",
        "pair = f32[4,8,1,32] reshape(two)
  all = f32[4,8,1,48] concatenate(pair, one)",
    );
    assert_eq!(shapes(&lanes, Boundary::Lower), [vec![1, 32], vec![1, 16]]);
    // A product that reads what it transposed, as of a layer that was written for one example.
    let turned = "turned = f32[48,4,8] transpose(flat), dimensions={2,0,1}";
    let product = "lhs_contracting_dims={2}, rhs_contracting_dims={0}";
    let by_example = of_bias.replace(
        &format!("out = f32[4,8,16] dot(flat, v), {product}"),
        &format!(
            "{turned}\n  out = f32[4,8,16] dot(turned, v), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}"
        ),
    );
    assert!(by_example.contains("turned"));
    assert_eq!(shapes(&by_example, Boundary::Lower), [vec![2, 16], vec![1, 16]]);
    // Over the rows of each part alone: these are put together again along the axis that was the third.
    assert_eq!(shapes(&source(2, "4,8,3,16", "4,48", "1"), Boundary::Lower), [vec![4, 2, 16], vec![4, 1, 16]]);
    // A sum of all parts at once.
    assert_eq!(shapes(&source(2, "4,8,3,16", "4,8", "2"), Boundary::Lower), [vec![4, 8]]);
    // What was taken apart by indices is put together of parts that zeros pad: along the last axis, along another, and
    // transposed behind that.
    let padded = lanes.replace(
        "all = f32[4,8,1,48] concatenate(pair, one), dimensions={3}",
        "front = f32[4,8,1,48] pad(pair, zero), padding=0_0x0_0x0_0x0_16
  back = f32[4,8,1,48] pad(one, zero), padding=0_0x0_0x0_0x32_0
  all = f32[4,8,1,48] add(front, back)",
    );
    assert_eq!(shapes(&padded, Boundary::Lower), [vec![1, 32], vec![1, 16]]);
    let padded = of_bias.replace(
        "all = f32[4,8,3,16] concatenate(two, one), dimensions={2}",
        "front = f32[4,8,3,16] pad(two, zero), padding=0_0x0_0x0_1x0_0
  back = f32[4,8,3,16] pad(one, zero), padding=0_0x0_0x2_0x0_0
  all = f32[4,8,3,16] add(front, back)",
    );
    assert_eq!(dtypes(&padded, &Policy::default(), ["all", "of_bias"]), ["bf16", "f32"]);
    assert_eq!(shapes(&padded, Boundary::Lower), [vec![2, 16], vec![1, 16]]);
    let first = padded.replace("all = f32[4,8,3,16]", "turned = f32[4,8,3,16]");
    let turned = first.replace(
        "flat = f32[4,8,48] reshape(all)",
        "all = f32[8,16,3,4] transpose(turned), dimensions={1,3,2,0}
  flat = f32[8,48,4] reshape(all)
  flat.back = f32[4,8,48] transpose(flat), dimensions={2,0,1}",
    );
    let turned = turned.replace("reduce(flat,", "reduce(flat.back,").replace("dot(flat,", "dot(flat.back,");
    assert_eq!(shapes(&turned, Boundary::Lower), [vec![2, 16], vec![1, 16]]);
    // Zeros along what is summed over.
    let rows =
        padded.replace("f32[48] reduce(flat, zero), dimensions={0,1}", "f32[4,8] reduce(flat, zero), dimensions={2}");
    assert_eq!(shapes(&rows.replace("f32[48]) tuple", "f32[4,8]) tuple"), Boundary::Lower), [vec![4, 8]]);
}

/// A group norm's gradient by its variance: `x - mean` times what comes back is summed over each group, behind a reshape to
/// groups, and over all rows, for the scale. Nothing but these sums reads it.
#[test]
fn what_sums_read_of_a_copy_to_other_lanes_is_not_rounded() {
    let source = |copied: &str, summed: &str, axis: i64| {
        format!(
            "ENTRY main {{
  x = f32[32,64] parameter(0)
  w = f32[64,64] parameter(1)
  zero = f32[] constant(0)
  features = f32[32,64] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  back = f32[32,64] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  total = f32[64] reduce(features, zero), dimensions={{0}}, to_apply=add
  means = f32[32,64] broadcast(total), dimensions={{1}}
  apart = f32[32,64] subtract(features, means)
  product = f32[32,64] multiply(apart, back)
  scaled = f32[32,64] multiply(product, means)
  groups = f32[{copied}] reshape(scaled)
  of_groups = f32[{summed}] reduce(groups, zero), dimensions={{{axis}}}, to_apply=add
  shares = f32[32,64] divide(product, means)
  of_scale = f32[64] reduce(shares, zero), dimensions={{0}}, to_apply=add
  rows = f32[1,64] reshape(of_scale)
  firsts = f32[1,64] dot(rows, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  seconds = f32[{summed}] dot(of_groups, square), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT out = (f32[1,64], f32[{summed}]) tuple(firsts, seconds)
}}
"
        )
    };
    let product = |source: &str, width: i64| {
        let square = format!("  square = f32[{width},{width}] parameter(2)\n  zero =");
        dtypes(&source.replacen("  zero =", &square, 1), &Policy::default(), ["product"])[0].clone()
    };
    assert_eq!(product(&source("32,4,16", "32,4", 2), 4), "f32");
    // Over whole rows it is no copy; and what a product reads, too, is stored.
    assert_eq!(product(&source("32,1,64", "32,1", 2), 1), "bf16");
    let stored = source("32,4,16", "32,4", 2).replace("dot(rows, w)", "dot(rows, product)").replace(
        "firsts = f32[1,64] dot(rows, product), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "firsts = f32[1,32] dot(rows, product), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    );
    assert_eq!(product(&stored.replace("(f32[1,64], f32[32,4])", "(f32[1,32], f32[32,4])"), 4), "bf16");
}

/// The gradient of what was repeated for the axes of a derivative: three products, each by the same features, are summed. The
/// sum is rounded, and what it adds is, too, so that the features are not stored in f32 for it.
#[test]
fn what_a_sum_of_few_adds_is_rounded_where_it_repeats_an_array() {
    let source = |by: &str| {
        format!(
            "ENTRY main {{
  x = f32[32,16] parameter(0)
  w = f32[16,16] parameter(1)
  y = f32[32,3,16] parameter(2)
  zero = f32[] constant(0)
  features = f32[32,16] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  axes = f32[32,3,16] dot(y, w), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}
  repeated = f32[32,3,16] broadcast(features), dimensions={{0,2}}
  product = f32[32,3,16] multiply({by}, axes)
  summed = f32[32,16] reduce(product, zero), dimensions={{1}}, to_apply=add
  again = f32[32,3,16] tanh(repeated)
  some = f32[32,3,16] dot(again, w), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}
  others = f32[32,16] dot(summed, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT out = (f32[32,3,16], f32[32,16]) tuple(some, others)
}}
"
        )
    };
    let product = |by: &str| dtypes(&source(by), &Policy::default(), ["product", "summed"]);
    assert_eq!(product("repeated"), ["bf16", "f32"]);
    assert_eq!(product("axes"), ["f32", "f32"]);
}

/// Halves of rows, each scaled by exponentials, and put together again; a norm's gradient reads them in both dtypes.
#[test]
fn parts_of_rows_that_are_put_together_are_rounded_once() {
    let source = "ENTRY main {
  x = f32[64,64] parameter(0)
  w = f32[64,64] parameter(1)
  angle = f32[] constant(0.3)
  angles = f32[64,32] broadcast(angle), dimensions={}
  zero = f32[] constant(0)
  features = f32[64,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  normed = f32[64,64] dot(x, features), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  turns = f32[64,32] exponential(angles)
  evens = f32[64,32] slice(features), slice={[0:64:1], [0:64:2]}
  odds = f32[64,32] slice(features), slice={[0:64:1], [1:64:2]}
  turned_evens = f32[64,32] multiply(evens, turns)
  turned_odds = f32[64,32] multiply(odds, turns)
  spread_evens = f32[64,64] pad(turned_evens, zero), padding=0_0x0_1_1
  spread_odds = f32[64,64] pad(turned_odds, zero), padding=0_0x1_0_1
  turned = f32[64,64] add(spread_evens, spread_odds)
  squares = f32[64,64] multiply(features, features)
  scales = f32[64] reduce(squares, zero), dimensions={1}, to_apply=add
  roots = f32[64] rsqrt(scales)
  all = f32[64,64] broadcast(roots), dimensions={0}
  scaled = f32[64,64] multiply(turned, all)
  by = f32[64,64] multiply(normed, turned)
  a = f32[64,64] dot(scaled, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[64,64] dot(by, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT out = (f32[64,64], f32[64,64]) tuple(a, b)
}
";
    let rule = |source: &str| {
        let (_, report) = amp::run(&parsed(&format!("{HEAD}{source}")), &Policy::default()).expect("it is sound");
        report.explain("turned")[0].rule.clone()
    };
    let rounded = "it ends a value that is read as it is made; it computes in f32 and rounds, once, what is stored";
    assert_eq!(rule(source), rounded);
    // Numbers of one array are scaled where they are read.
    let whole = source.replace("add(spread_evens, spread_odds)", "multiply(features, both_turns)").replace(
        "  roots =",
        "  both_turns = f32[64,64] pad(turns, zero), padding=0_0x0_1_1
  roots =",
    );
    let unstored = "its value is read as it is made and need not be stored, so rounding it would save nothing";
    assert_eq!(rule(&whole), unstored);
}

/// What a norm gives to a layer that is computed again: a product and a sum over rows read it behind the layer's barrier.
#[test]
fn what_several_read_behind_a_barrier_is_rounded_before_it() {
    let source = "ENTRY main {
  x = f32[64,64] parameter(0)
  w = f32[64,64] parameter(1)
  zero = f32[] constant(0)
  features = f32[64,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  squares = f32[64,64] multiply(features, features)
  scales = f32[64] reduce(squares, zero), dimensions={1}, to_apply=add
  roots = f32[64] rsqrt(scales)
  all = f32[64,64] broadcast(roots), dimensions={0}
  normed = f32[64,64] multiply(features, all)
  held = f32[64,64] opt-barrier(normed)
  sums = f32[64] reduce(held, zero), dimensions={0}, to_apply=add
  a = f32[64,64] dot(held, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT out = (f32[64,64], f32[64]) tuple(a, sums)
}
";
    assert_eq!(dtypes(source, &Policy::default(), ["normed", "held"]), ["f32", "bf16"]);
    let again = source.replace("opt-barrier(normed)", "opt-barrier(before)").replace(
        "  held =",
        "  before = f32[64,64] opt-barrier(normed)
  held =",
    );
    assert_eq!(dtypes(&again, &Policy::default(), ["normed", "before", "held"]), ["f32", "bf16", "bf16"]);
    // Where the sum alone reads it, nothing is rounded.
    let summed = source.replace("dot(held, w)", "dot(features, w)");
    assert_eq!(dtypes(&summed, &Policy::default(), ["normed", "held"]), ["f32", "f32"]);
}
