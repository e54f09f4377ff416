//! Arrays that loops fill, read and carry, between products: see `passes::amp::loops`.

use super::storage::dtypes;
use bf16scope::passes::amp::{Boundary, Policy};

/// A loop that reads a slice of `xs` each step, carries `h`, and fills `ys` with products; a product reads `ys`.
const SCAN: &str = "condition {
  state.0 = (s32[], f32[4,8], f32[16,4,8], f32[16,4,8], f32[8,8]) parameter(0)
  i.0 = s32[] get-tuple-element(state.0), index=0
  n = s32[] constant(16)
  ROOT goes_on = pred[] compare(i.0, n), direction=LT
}

body {
  state.1 = (s32[], f32[4,8], f32[16,4,8], f32[16,4,8], f32[8,8]) parameter(0)
  i.1 = s32[] get-tuple-element(state.1), index=0
  h = f32[4,8] get-tuple-element(state.1), index=1
  xs = f32[16,4,8] get-tuple-element(state.1), index=2
  ys = f32[16,4,8] get-tuple-element(state.1), index=3
  w = f32[8,8] get-tuple-element(state.1), index=4
  zero = s32[] constant(0)
  slice = f32[1,4,8] dynamic-slice(xs, i.1, zero, zero), dynamic_slice_sizes={1,4,8}
  x = f32[4,8] reshape(slice)
  product = f32[4,8] dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  sum = f32[4,8] add(product, x)
  next = f32[4,8] tanh(sum)
  given = f32[1,4,8] reshape(next)
  filled = f32[16,4,8] dynamic-update-slice(ys, given, i.1, zero, zero)
  one = s32[] constant(1)
  i.2 = s32[] add(i.1, one)
  ROOT state.2 = (s32[], f32[4,8], f32[16,4,8], f32[16,4,8], f32[8,8]) tuple(i.2, next, xs, filled, w)
}

ENTRY main {
  a = f32[16,4,8] parameter(0)
  kernel = f32[8,8] parameter(1)
  inputs = f32[16,4,8] dot(a, kernel), lhs_contracting_dims={2}, rhs_contracting_dims={0}
  start = s32[] constant(0)
  nothing = f32[] constant(0)
  h0 = f32[4,8] broadcast(nothing), dimensions={}
  ys0 = f32[16,4,8] broadcast(nothing), dimensions={}
  init = (s32[], f32[4,8], f32[16,4,8], f32[16,4,8], f32[8,8]) tuple(start, h0, inputs, ys0, kernel)
  end = (s32[], f32[4,8], f32[16,4,8], f32[16,4,8], f32[8,8]) while(init), condition=condition, body=body
  all = f32[16,4,8] get-tuple-element(end), index=3
  ROOT y = f32[16,4,8] dot(all, kernel), lhs_contracting_dims={2}, rhs_contracting_dims={0}
}
";

#[test]
fn arrays_that_loops_fill_and_read_slice_by_slice_are_narrow() {
    let source = SCAN;
    let names = ["xs", "h", "ys", "slice", "next", "filled", "all", "inputs"];
    let narrow = ["bf16", "f32", "bf16", "bf16", "f32", "bf16", "bf16", "bf16"];
    let leaky = source.replace("next = f32[4,8] tanh(sum)", "now = f32[4,8] tanh(sum)\n  next = f32[4,8] add(h, now)");
    assert_eq!(dtypes(&leaky, &Policy::default(), names), narrow);
    let carried = Policy { carried: Boundary::Lower, ..Policy::default() };
    assert_eq!(dtypes(&leaky, &carried, names), ["bf16"; 8]);
    // The carried state is not narrow if the program returns its last value.
    let last = source.replace("ROOT y", "y").replace("  y = f32[16,4,8] dot(all, kernel), lhs_contracting_dims={2}, rhs_contracting_dims={0}", "  y = f32[16,4,8] dot(all, kernel), lhs_contracting_dims={2}, rhs_contracting_dims={0}\n  last = f32[4,8] get-tuple-element(end), index=1\n  ROOT both = (f32[16,4,8], f32[4,8]) tuple(y, last)");
    assert_eq!(dtypes(&last, &Policy::default(), names), narrow);
    let keeps_loops = Policy { loops: Boundary::Keep, ..Policy::default() };
    assert_eq!(dtypes(source, &keeps_loops, ["xs", "ys", "filled", "all"]), ["f32"; 4]);
    // The state at the beginning of a step is that at the end of the step before.
    let begins = source.replace("reshape(next)", "reshape(h)");
    assert_eq!(
        dtypes(&begins, &Policy::default(), ["h", "next", "ys", "filled", "all"]),
        ["f32", "f32", "bf16", "bf16", "bf16"]
    );
    // An array that a loop fills and the program returns directly keeps its type.
    let returned = source.replace(
        "ROOT y = f32[16,4,8] dot(all, kernel), lhs_contracting_dims={2}, rhs_contracting_dims={0}",
        "ROOT y = f32[16,4,8] negate(all)",
    );
    assert_eq!(dtypes(&returned, &Policy::default(), ["filled", "all"]), ["f32", "f32"]);
    // The filled array is moved, and another loop reads it slice by slice.
    let two = source.replace(
        "ROOT y = f32[16,4,8] dot(all, kernel), lhs_contracting_dims={2}, rhs_contracting_dims={0}",
        "moved = f32[4,16,8] transpose(all), dimensions={1,0,2}
  back = f32[16,4,8] transpose(moved), dimensions={1,0,2}
  init.2 = (s32[], f32[4,8], f32[16,4,8], f32[16,4,8], f32[8,8]) tuple(start, h0, back, ys0, kernel)
  end.2 = (s32[], f32[4,8], f32[16,4,8], f32[16,4,8], f32[8,8]) while(init.2), condition=condition, body=body
  read = f32[16,4,8] get-tuple-element(end.2), index=2
  all.2 = f32[16,4,8] get-tuple-element(end.2), index=3
  ROOT y = f32[16,4,8] dot(all.2, kernel), lhs_contracting_dims={2}, rhs_contracting_dims={0}",
    );
    assert_eq!(dtypes(&two, &Policy::default(), ["moved", "back", "read", "all.2"]), ["bf16"; 4]);
}

/// CTC sums up likelihoods: an error of 2^-9 in a logarithm of -100 is an error of a fifth in its exponential.
#[test]
fn arrays_of_a_loop_that_computes_in_logarithms_stay_f32() {
    let product = "dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}";
    let names = ["xs", "ys", "filled", "all"];
    let decided = |op: &str| dtypes(&SCAN.replace(product, op), &Policy::default(), names);
    assert_eq!(decided("log(h)"), ["f32"; 4]);
    assert_eq!(decided("log-plus-one(h)"), ["f32"; 4]);
    assert_eq!(decided("exponential(h)"), ["bf16"; 4]);
}

/// A loop over `LAYERS` layers, each of which multiplies the state by its own weights, before a product.
const LAYERS: &str = "condition {
  state.0 = (s32[], f32[4,8], f32[LAYERS,8,8], f32[4,8]) parameter(0)
  i.0 = s32[] get-tuple-element(state.0), index=0
  n = s32[] constant(LAYERS)
  ROOT goes_on = pred[] compare(i.0, n), direction=LT
}

body {
  state.1 = (s32[], f32[4,8], f32[LAYERS,8,8], f32[4,8]) parameter(0)
  i.1 = s32[] get-tuple-element(state.1), index=0
  h = f32[4,8] get-tuple-element(state.1), index=1
  weights = f32[LAYERS,8,8] get-tuple-element(state.1), index=2
  sum = f32[4,8] get-tuple-element(state.1), index=3
  zero = s32[] constant(0)
  slice = f32[1,8,8] dynamic-slice(weights, i.1, zero, zero), dynamic_slice_sizes={1,8,8}
  w = f32[8,8] reshape(slice)
  product = f32[4,8] dot(FACTORS), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  next = f32[4,8] add(h, product)
  summed = f32[4,8] add(sum, product)
  one = s32[] constant(1)
  i.2 = s32[] add(i.1, one)
  ROOT state.2 = (s32[], f32[4,8], f32[LAYERS,8,8], f32[4,8]) tuple(i.2, next, weights, summed)
}

ENTRY main {
  a = f32[4,8] parameter(0)
  kernel = f32[8,8] parameter(1)
  stack = f32[LAYERS,8,8] parameter(2)
  first = f32[4,8] dot(a, kernel), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  start = s32[] constant(0)
  nothing = f32[] constant(0)
  sum0 = f32[4,8] broadcast(nothing), dimensions={}
  init = (s32[], f32[4,8], f32[LAYERS,8,8], f32[4,8]) tuple(start, FIRST, stack, sum0)
  end = (s32[], f32[4,8], f32[LAYERS,8,8], f32[4,8]) while(init), condition=condition, body=body
  last = f32[4,8] get-tuple-element(end), index=1
  total = f32[4,8] get-tuple-element(end), index=3
  y = f32[4,8] dot(GIVEN, kernel), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  UPDATED
  ROOT out = (f32[4,8], f32[4,8], f32[LAYERS,8,8]) tuple(y, total, updated)
}
";

fn layers(n: usize, factors: &str, first: &str, given: &str) -> String {
    let source = LAYERS
        .replace("UPDATED", "updated = f32[LAYERS,8,8] add(stack, stack)")
        .replace("LAYERS", &n.to_string())
        .replace("FACTORS", factors);
    source.replace("FIRST", first).replace("GIVEN", given)
}

/// The state of a network between layers is rounded, whether it is written as a loop or not.
#[test]
fn what_a_loop_over_layers_carries_between_products_is_narrow() {
    let network = layers(12, "h, w", "first", "last");
    let names = ["h", "next", "last", "weights", "sum", "summed", "total"];
    let narrow = ["bf16", "bf16", "bf16", "f32", "f32", "f32", "f32"];
    assert_eq!(dtypes(&network, &Policy::default(), names), narrow);
    let keeps_loops = Policy { loops: Boundary::Keep, ..Policy::default() };
    assert_eq!(dtypes(&network, &keeps_loops, ["h", "next", "last"]), ["f32"; 3]);
    for (name, other) in [
        ("more layers than the rounding of a sum allows", layers(65, "h, w", "first", "last")),
        ("a parameter that is carried on, as weights by the steps of an optimizer", layers(12, "h, w", "a", "last")),
        (
            "what is carried is given as it is",
            layers(12, "h, w", "first", "total").replace("tuple(y, total,", "tuple(y, last,"),
        ),
        (
            "data that is not updated, as the steps of an optimizer read",
            layers(12, "h, w", "first", "last").replace("total, updated)", "total, stack)"),
        ),
        ("over time: each step has the same weights", over_time()),
    ] {
        assert_eq!(dtypes(&other, &Policy::default(), ["h", "next", "last"]), ["f32"; 3], "{name}");
    }
}

/// A loop over time that multiplies its state by a loop invariant, the weights. The array that it reads slice by slice
/// is an input, which it also multiplies, for the gradient of those weights.
fn over_time() -> String {
    let source = layers(12, "h, kept", "first", "last");
    let source = source.replace("f32[12,8,8], f32[4,8])", "f32[12,8,8], f32[4,8], f32[8,8])");
    let source = source.replace("  sum = ", "  kept = f32[8,8] get-tuple-element(state.1), index=4\n  sum = ");
    let gradient = "  summed = f32[4,8] dot(next, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}";
    let source = source.replace("  summed = f32[4,8] add(sum, product)", gradient);
    source.replace("weights, summed)", "weights, summed, kept)").replace("stack, sum0)", "stack, sum0, kernel)")
}

/// A branch that fills an array in a loop and one that looks up rows, which an exponential in f32 reads as well. A
/// product reads their results: the call that stores them does so in bf16, and is a reader like others.
#[test]
fn what_a_branch_gives_narrow_counts_as_read_narrow() {
    let (called, _) = SCAN.split_once("ENTRY").unwrap();
    let source = format!(
        "{called}filling {{
  taken.0 = (f32[16,4,8], f32[8,8]) parameter(0)
  inputs = f32[16,4,8] get-tuple-element(taken.0), index=0
  kernel.0 = f32[8,8] get-tuple-element(taken.0), index=1
  start = s32[] constant(0)
  nothing = f32[] constant(0)
  h0 = f32[4,8] broadcast(nothing), dimensions={{}}
  ys0 = f32[16,4,8] broadcast(nothing), dimensions={{}}
  sizes.0 = f32[16,4] broadcast(nothing), dimensions={{}}
  init = (s32[], f32[4,8], f32[16,4,8], f32[16,4,8], f32[8,8]) tuple(start, h0, inputs, ys0, kernel.0)
  end = (s32[], f32[4,8], f32[16,4,8], f32[16,4,8], f32[8,8]) while(init), condition=condition, body=body
  all = f32[16,4,8] get-tuple-element(end), index=3
  ROOT given.0 = (f32[16,4,8], f32[16,4]) tuple(all, sizes.0)
}}

looking {{
  taken.1 = (f32[8,8], s32[16,4,1]) parameter(0)
  table = f32[8,8] get-tuple-element(taken.1), index=0
  which.1 = s32[16,4,1] get-tuple-element(taken.1), index=1
  rows = f32[16,4,8] gather(table, which.1), offset_dims={{2}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=2, slice_sizes={{1,8}}
  large = f32[16,4,8] exponential(rows)
  none = f32[] constant(0)
  sizes.1 = f32[16,4] reduce(large, none), dimensions={{2}}, to_apply=add
  ROOT given.1 = (f32[16,4,8], f32[16,4]) tuple(rows, sizes.1)
}}

ENTRY main {{
  a = f32[16,4,8] parameter(0)
  kernel = f32[8,8] parameter(1)
  which = s32[16,4,1] parameter(2)
  is = pred[] parameter(3)
  hidden = f32[16,4,8] dot(a, kernel), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}
  first = (f32[16,4,8], f32[8,8]) tuple(hidden, kernel)
  second = (f32[8,8], s32[16,4,1]) tuple(kernel, which)
  both = (f32[16,4,8], f32[16,4]) conditional(is, first, second), true_computation=filling, false_computation=looking
  chosen = f32[16,4,8] get-tuple-element(both), index=0
  sizes = f32[16,4] get-tuple-element(both), index=1
  y = f32[16,4,8] dot(chosen, kernel), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}
  ROOT out = (f32[16,4,8], f32[16,4]) tuple(y, sizes)
}}
"
    );
    let names = ["ys", "filled", "all", "rows", "chosen"];
    assert_eq!(dtypes(&source, &Policy::default(), names), ["bf16"; 5]);
    let keeps_loops = Policy { loops: Boundary::Keep, ..Policy::default() };
    assert_eq!(dtypes(&source, &keeps_loops, names), ["f32"; 5]);
}

/// A loop that adds the products of its steps, turned, to one array, and a part of each to another.
#[test]
fn a_product_that_the_steps_of_a_loop_add_up_gives_its_f32_sum() {
    let source = "condition {
  state.0 = (s32[], f32[16,4,8], f32[8,8], f32[3,8]) parameter(0)
  i.0 = s32[] get-tuple-element(state.0), index=0
  n = s32[] constant(16)
  ROOT goes_on = pred[] compare(i.0, n), direction=LT
}

body {
  state.1 = (s32[], f32[16,4,8], f32[8,8], f32[3,8]) parameter(0)
  i.1 = s32[] get-tuple-element(state.1), index=0
  xs = f32[16,4,8] get-tuple-element(state.1), index=1
  total = f32[8,8] get-tuple-element(state.1), index=2
  row = f32[3,8] get-tuple-element(state.1), index=3
  zero = s32[] constant(0)
  slice = f32[1,4,8] dynamic-slice(xs, i.1, zero, zero), dynamic_slice_sizes={1,4,8}
  x = f32[4,8] reshape(slice)
  product = f32[8,8] dot(x, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  turned = f32[8,8] transpose(product), dimensions={1,0}
  part = f32[3,8] slice(turned), slice={[2:5], [0:8]}
  total.1 = f32[8,8] add(total, turned)
  row.1 = f32[3,8] add(row, part)
  one = s32[] constant(1)
  i.2 = s32[] add(i.1, one)
  ROOT state.2 = (s32[], f32[16,4,8], f32[8,8], f32[3,8]) tuple(i.2, xs, total.1, row.1)
}

ENTRY main {
  xs0 = f32[16,4,8] parameter(0)
  start = s32[] constant(0)
  nothing = f32[] constant(0)
  total0 = f32[8,8] broadcast(nothing), dimensions={}
  row0 = f32[3,8] broadcast(nothing), dimensions={}
  init = (s32[], f32[16,4,8], f32[8,8], f32[3,8]) tuple(start, xs0, total0, row0)
  ROOT end = (s32[], f32[16,4,8], f32[8,8], f32[3,8]) while(init), condition=condition, body=body
}
";
    let decided = |source: &str| dtypes(source, &Policy::default(), ["product", "turned", "part"]);
    assert_eq!(decided(source), ["f32"; 3]);
    // Neither of these adds a part of the product to what the loop carries.
    for other in ["row.1 = f32[3,8] multiply(row, part)", "row.1 = f32[3,8] add(part, part)"] {
        assert_eq!(decided(&source.replace("row.1 = f32[3,8] add(row, part)", other)), ["bf16"; 3], "{other}");
    }
}
