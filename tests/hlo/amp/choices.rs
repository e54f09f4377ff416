//! Discrete choices by scores that products computed: in loops and branches, by searches and bits, by masks. Each
//! program is lowered with and without the rule, and beside a similar one that chooses nothing.

use super::storage;
use bf16scope::hlo::{Module, text};
use bf16scope::passes::amp::{self, Boundary, Policy};

/// The dtypes of instructions of a lowered program. Lowering it again changes nothing.
pub(super) fn dtypes<const N: usize>(source: &str, policy: &Policy, names: [&str; N]) -> [String; N] {
    let lower = |module: &Module| amp::run(module, policy).unwrap_or_else(|error| panic!("{error}")).0;
    let print = |module: &Module| text::print(module, &Default::default());
    let once = lower(&storage::parsed(&format!("{}{source}", storage::HEAD)));
    assert_eq!(print(&lower(&once)), print(&once));
    storage::dtypes(source, policy, names)
}

fn lower() -> Policy {
    Policy { choices: Boundary::Lower, ..Policy::default() }
}

/// A program that computes scores by a product, and another product of the result of `chosen`, which is called
/// `given`.
fn program(called: &str, chosen: &str) -> String {
    format!(
        "{called}
ENTRY main {{
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  v = f32[8,8] parameter(2)
  scores = f32[32,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  zero = f32[] constant(0)
  zeros = f32[32,8] broadcast(zero), dimensions={{}}
  start = s32[] constant(0)
  none = s32[32,8] broadcast(start), dimensions={{}}
  {chosen}
  ROOT y = f32[32,8] dot(given, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"
    )
}

/// A loop that carries scores and chooses by the result of `made`, which is called `key`.
fn choosing_loop(made: &str) -> String {
    let body = format!(
        "condition {{
  state.0 = (s32[], f32[32,8], s32[32,8]) parameter(0)
  i.0 = s32[] get-tuple-element(state.0), index=0
  n = s32[] constant(3)
  ROOT goes_on = pred[] compare(i.0, n), direction=LT
}}

body {{
  state.1 = (s32[], f32[32,8], s32[32,8]) parameter(0)
  i.1 = s32[] get-tuple-element(state.1), index=0
  carried = f32[32,8] get-tuple-element(state.1), index=1
  doubled = f32[32,8] add(carried, carried)
  {made}
  which = s32[32,8] convert(key)
  one = s32[] constant(1)
  i.2 = s32[] add(i.1, one)
  ROOT state.2 = (s32[], f32[32,8], s32[32,8]) tuple(i.2, doubled, which)
}}
"
    );
    let chosen = "init = (s32[], f32[32,8], s32[32,8]) tuple(start, scores, none)
  end = (s32[], f32[32,8], s32[32,8]) while(init), condition=condition, body=body
  which.1 = s32[32,8] get-tuple-element(end), index=2
  given = f32[32,8] convert(which.1)";
    program(&body, chosen)
}

/// A product within the loop.
const LOOPS_PRODUCT: &str = "unit = f32[] constant(3)
  u = f32[8,8] broadcast(unit), dimensions={}
  key = f32[32,8] dot(doubled, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}";

#[test]
fn scores_that_a_loop_carries_to_a_choice_stay_f32() {
    let names = ["scores", "doubled"];
    let choosing = choosing_loop("key = f32[32,8] negate(doubled)");
    assert_eq!(dtypes(&choosing, &Policy::default(), names), ["f32", "f32"]);
    assert_eq!(dtypes(&choosing, &lower(), ["scores"]), ["bf16"]);
    // Behind a product of the loop, only that product counts.
    let multiplying = choosing_loop(LOOPS_PRODUCT);
    assert_eq!(dtypes(&multiplying, &Policy::default(), ["scores", "key"]), ["bf16", "f32"]);
}

/// A loop that reads a row of scores in each step, and writes what it chose by them.
#[test]
fn scores_that_a_loop_reads_slice_by_slice_stay_f32() {
    let source = |choice: &str| {
        let called = format!(
            "condition {{
  state.0 = (s32[], f32[32,8], f32[32,8]) parameter(0)
  i.0 = s32[] get-tuple-element(state.0), index=0
  n = s32[] constant(32)
  ROOT goes_on = pred[] compare(i.0, n), direction=LT
}}

body {{
  state.1 = (s32[], f32[32,8], f32[32,8]) parameter(0)
  i.1 = s32[] get-tuple-element(state.1), index=0
  all = f32[32,8] get-tuple-element(state.1), index=1
  filled.0 = f32[32,8] get-tuple-element(state.1), index=2
  begin = s32[] constant(0)
  row = f32[1,8] dynamic-slice(all, i.1, begin), dynamic_slice_sizes={{1,8}}
  {choice}
  filled.1 = f32[32,8] dynamic-update-slice(filled.0, made, i.1, begin)
  one = s32[] constant(1)
  i.2 = s32[] add(i.1, one)
  ROOT state.2 = (s32[], f32[32,8], f32[32,8]) tuple(i.2, all, filled.1)
}}
"
        );
        let chosen = "init = (s32[], f32[32,8], f32[32,8]) tuple(start, scores, zeros)
  end = (s32[], f32[32,8], f32[32,8]) while(init), condition=condition, body=body
  given = f32[32,8] get-tuple-element(end), index=2";
        program(&called, chosen)
    };
    let choosing = source(
        "which = s32[1,8] convert(row)
  made = f32[1,8] convert(which)",
    );
    assert_eq!(dtypes(&choosing, &Policy::default(), ["scores", "all", "row"]), ["f32", "f32", "f32"]);
    assert_eq!(dtypes(&choosing, &lower(), ["scores", "all"]), ["bf16", "bf16"]);
    let computing = source("made = f32[1,8] negate(row)");
    assert_eq!(dtypes(&computing, &Policy::default(), ["scores", "all"]), ["bf16", "bf16"]);
}

/// Two branches that take scores; `first` and `second` compute their results.
fn branches(first: &str, second: &str, dtype: &str, behind: &str) -> String {
    let called = format!(
        "first {{
  taken.0 = f32[32,8] parameter(0)
  ROOT given.0 = {dtype}[32,8] {first}
}}

second {{
  taken.1 = f32[32,8] parameter(0)
  twice = f32[32,8] add(taken.1, taken.1)
  ROOT given.1 = {dtype}[32,8] {second}
}}
"
    );
    let chosen = format!(
        "made = {dtype}[32,8] conditional(start, scores, scores), branch_computations={{first, second}}
  {behind}"
    );
    program(&called, &chosen)
}

#[test]
fn scores_that_a_branch_takes_to_a_choice_stay_f32() {
    let choosing = branches("convert(taken.0)", "convert(twice)", "s32", "given = f32[32,8] convert(made)");
    assert_eq!(dtypes(&choosing, &Policy::default(), ["scores", "taken.0", "twice"]), ["f32", "f32", "f32"]);
    assert_eq!(dtypes(&choosing, &lower(), ["scores"]), ["bf16"]);
    let computing = branches("negate(taken.0)", "negate(twice)", "f32", "given = f32[32,8] negate(made)");
    assert_eq!(dtypes(&computing, &Policy::default(), ["scores", "taken.0"]), ["bf16", "bf16"]);
}

/// The choice is outside, by the result of a branch or a loop.
#[test]
fn scores_that_are_made_in_a_branch_or_a_loop_for_a_choice_outside_stay_f32() {
    let product = "dot(taken.0, weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}";
    let behind = "which = s32[32,8] convert(made)
  given = f32[32,8] convert(which)";
    let in_branch = |behind: &str| {
        branches(product, "negate(twice)", "f32", behind).replace(
            "  taken.0 = f32[32,8] parameter(0)
",
            "  taken.0 = f32[32,8] parameter(0)
  unit = f32[] constant(3)
  weights = f32[8,8] broadcast(unit), dimensions={}
",
        )
    };
    assert_eq!(dtypes(&in_branch(behind), &Policy::default(), ["given.0", "made", "twice"]), ["f32", "f32", "f32"]);
    assert_eq!(dtypes(&in_branch(behind), &lower(), ["given.0", "made"]), ["bf16", "bf16"]);
    let computing = in_branch("given = f32[32,8] negate(made)");
    assert_eq!(dtypes(&computing, &Policy::default(), ["given.0", "made"]), ["bf16", "bf16"]);

    let looped = choosing_loop(LOOPS_PRODUCT);
    let outside = looped
        .replace("  which = s32[32,8] convert(key)", "  same = s32[32,8] get-tuple-element(state.1), index=2")
        .replace("tuple(i.2, doubled, which)", "tuple(i.2, key, same)")
        .replace(
            "  which.1 = s32[32,8] get-tuple-element(end), index=2",
            "  last = f32[32,8] get-tuple-element(end), index=1
  which.1 = s32[32,8] convert(last)",
        );
    assert_eq!(dtypes(&outside, &Policy::default(), ["key"]), ["f32"]);
    assert_eq!(dtypes(&outside, &lower(), ["key"]), ["bf16"]);
    let computing = outside
        .replace("s32[32,8] convert(last)", "f32[32,8] negate(last)")
        .replace("convert(which.1)", "negate(which.1)");
    assert_eq!(dtypes(&computing, &Policy::default(), ["key"]), ["bf16"]);
}

/// Comparisons with a constant: a mask alone, which is the gradient of `relu`, chooses nothing.
#[test]
fn comparisons_of_which_integers_are_made_are_choices() {
    let by_bits = "is = pred[32,8] compare(scores, zeros), direction=GT
  bits = s32[32,8] convert(is)
  sums = s32[32,8] add(bits, bits)
  given = f32[32,8] convert(sums)";
    assert_eq!(dtypes(&program("", by_bits), &Policy::default(), ["scores"]), ["f32"]);
    assert_eq!(dtypes(&program("", by_bits), &lower(), ["scores"]), ["bf16"]);
    // As in a binary search.
    let by_place = "is = pred[32,8] compare(scores, zeros), direction=LE
  further = s32[32,8] iota(), iota_dimension=0
  place = s32[32,8] select(is, further, none)
  given = f32[32,8] convert(place)";
    assert_eq!(dtypes(&program("", by_place), &Policy::default(), ["scores"]), ["f32"]);
    // With the result of a bf16 product in the program.
    let beside = |value: &str| {
        format!(
            "x.0 = bf16[32,8] convert(x)
  v.0 = bf16[8,8] convert(v)
  product = bf16[32,8] dot(x.0, v.0), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  other = f32[32,8] convert({value})
  is = pred[32,8] compare(scores, other), direction=GT
  given = f32[32,8] select(is, x, zeros)"
        )
    };
    assert_eq!(dtypes(&program("", &beside("product")), &Policy::default(), ["scores"]), ["f32"]);
    assert_eq!(dtypes(&program("", &beside("x.0")), &Policy::default(), ["scores"]), ["bf16"]);
    let of_relu = "is = pred[32,8] compare(scores, zeros), direction=GT
  given = f32[32,8] select(is, x, zeros)";
    assert_eq!(dtypes(&program("", of_relu), &Policy::default(), ["scores"]), ["bf16"]);
    // Whether a step is taken is a single number.
    let of_step = "one_score = f32[1,1] slice(scores), slice={[0:1], [0:1]}
  number = f32[] reshape(one_score)
  is = pred[] compare(number, zero), direction=GT
  step = s32[] convert(is)
  steps = s32[32,8] broadcast(step), dimensions={}
  given = f32[32,8] convert(steps)";
    assert_eq!(dtypes(&program("", of_step), &Policy::default(), ["scores"]), ["bf16"]);
}

/// The maximum of each row as a mask, on `what`.
fn mask(what: &str) -> String {
    program(
        "max {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT greater = f32[] maximum(a, b)
}
",
        &format!(
            "least = f32[] constant(-inf)
  greatest = f32[32] reduce(scores, least), dimensions={{1}}, to_apply=max
  beside = f32[32,8] broadcast(greatest), dimensions={{0}}
  is = pred[32,8] compare(scores, beside), direction=EQ
  mask = f32[32,8] convert(is)
  {what}"
        ),
    )
}

#[test]
fn a_mask_of_the_maximum_is_a_choice_but_not_where_it_leads_a_cotangent_back() {
    for (what, dtype) in [
        // The program computes on with it.
        ("given = f32[32,8] negate(mask)", "f32"),
        ("given = f32[32,8] multiply(mask, x)", "f32"),
        ("given = f32[32,8] select(is, x, zeros)", "f32"),
        ("given = f32[32,8] multiply(mask, scores)", "f32"),
        // A cotangent is computed from the maximum, and shared by operands that tie.
        ("back = f32[32,8] exponential(beside)\n  given = f32[32,8] multiply(mask, back)", "bf16"),
        ("back = f32[32,8] exponential(beside)\n  given = f32[32,8] select(is, back, zeros)", "bf16"),
        (
            "n = f32[32] reduce(mask, zero), dimensions={1}, to_apply=add
  ns = f32[32,8] broadcast(n), dimensions={0}
  share = f32[32,8] divide(mask, ns)
  back = f32[32,8] exponential(beside)
  given = f32[32,8] multiply(share, back)",
            "bf16",
        ),
        // The mask meets values that are the same in every run, as where a segment's maxima are counted.
        (
            "ids = s32[32,1] slice(none), slice={[0:32], [0:1]}
  counts = f32[32,8] scatter(zeros, ids, zeros), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  shared = f32[32,8] multiply(mask, counts)
  back = f32[32,8] exponential(beside)
  given = f32[32,8] multiply(shared, back)",
            "bf16",
        ),
        // A test for NaN: a value compared with itself.
        (
            "itself = pred[32,8] compare(scores, scores), direction=NE\n  given = f32[32,8] select(itself, x, zeros)",
            "bf16",
        ),
    ] {
        assert_eq!(dtypes(&mask(what), &Policy::default(), ["scores"]), [dtype], "{what}");
    }
    let negated = mask("given = f32[32,8] negate(mask)");
    assert_eq!(dtypes(&negated, &lower(), ["scores"]), ["bf16"]);
}

/// With a loss among the results, only ops on the way to it are forward: a block that is rematerialised for its
/// gradient would otherwise look like the program's own.
#[test]
fn a_mask_that_does_not_lead_to_the_loss_is_a_gradients() {
    let source = |loss: &str| {
        mask("given = f32[32,8] multiply(mask, x)").replace(
            "  ROOT y = f32[32,8] dot(given, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            &format!(
                "  y = f32[32,8] dot(given, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  loss = f32[] reduce({loss}, zero), dimensions={{0,1}}, to_apply=add
  ROOT out = (f32[32,8], f32[]) tuple(y, loss)"
            ),
        )
    };
    assert_eq!(dtypes(&source("y"), &Policy::default(), ["scores"]), ["f32"]);
    assert_eq!(dtypes(&source("x"), &Policy::default(), ["scores"]), ["bf16"]);
    // A step that returns only its loss.
    let evaluated = source("y")
        .replace("  ROOT out = (f32[32,8], f32[]) tuple(y, loss)\n", "")
        .replace("  loss =", "  ROOT loss =");
    assert_eq!(dtypes(&evaluated, &Policy::default(), ["scores"]), ["f32"]);
}

/// The program returns the choice, with no product behind it.
#[test]
fn a_mask_that_chooses_among_numbers_that_the_program_gives_is_a_choice() {
    let source = |chosen: &str| {
        format!(
            "ENTRY main {{
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  v = f32[8,8] parameter(2)
  scores = f32[32,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  y = f32[32,8] dot(x, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  kth = f32[32,1] slice(scores), slice={{[0:32], [3:4]}}
  column = f32[32] reshape(kth)
  columns = f32[32,8] broadcast(column), dimensions={{0}}
  is = pred[32,8] compare(scores, columns), direction=GE
  mask = f32[32,8] convert(is)
  {chosen}
}}
"
        )
    };
    let chosen = source("ROOT given = f32[32,8] multiply(y, mask)");
    assert_eq!(dtypes(&chosen, &Policy::default(), ["scores", "y"]), ["f32", "bf16"]);
    assert_eq!(dtypes(&chosen, &lower(), ["scores"]), ["bf16"]);
    let of_input = source("ROOT given = f32[32,8] select(is, x, y)");
    assert_eq!(dtypes(&of_input, &Policy::default(), ["scores"]), ["f32"]);
    // It is only reported.
    let reported = source("ROOT given = f32[32,8] negate(mask)");
    assert_eq!(dtypes(&reported, &Policy::default(), ["scores"]), ["bf16"]);
}

/// A step of a loop that compares with the maximum, computes `row` from that, and writes it to the array that it
/// fills. The loss is computed from the loop's result, or from the input.
fn filling_loop(row: &str, loss: &str) -> String {
    format!(
        "max {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT greater = f32[] maximum(a, b)
}}

condition {{
  state.0 = (s32[], f32[8,8], f32[4,32,8], f32[32,8]) parameter(0)
  i.0 = s32[] get-tuple-element(state.0), index=0
  n = s32[] constant(4)
  ROOT goes_on = pred[] compare(i.0, n), direction=LT
}}

body {{
  state.1 = (s32[], f32[8,8], f32[4,32,8], f32[32,8]) parameter(0)
  i.1 = s32[] get-tuple-element(state.1), index=0
  weights = f32[8,8] get-tuple-element(state.1), index=1
  filled.0 = f32[4,32,8] get-tuple-element(state.1), index=2
  h = f32[32,8] get-tuple-element(state.1), index=3
  scores = f32[32,8] dot(h, weights), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  least = f32[] constant(-inf)
  maxima = f32[32] reduce(scores, least), dimensions={{1}}, to_apply=max
  beside = f32[32,8] broadcast(maxima), dimensions={{0}}
  is = pred[32,8] compare(scores, beside), direction=EQ
  mask = f32[32,8] convert(is)
  back = f32[32,8] exponential(beside)
  one_row = f32[32,8] {row}
  written = f32[1,32,8] reshape(one_row)
  begin = s32[] constant(0)
  filled.1 = f32[4,32,8] dynamic-update-slice(filled.0, written, i.1, begin, begin)
  one = s32[] constant(1)
  i.2 = s32[] add(i.1, one)
  ROOT state.2 = (s32[], f32[8,8], f32[4,32,8], f32[32,8]) tuple(i.2, weights, filled.1, h)
}}

ENTRY main {{
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  zero = f32[] constant(0)
  rows = f32[4,32,8] broadcast(zero), dimensions={{}}
  start = s32[] constant(0)
  init = (s32[], f32[8,8], f32[4,32,8], f32[32,8]) tuple(start, w, rows, x)
  end = (s32[], f32[8,8], f32[4,32,8], f32[32,8]) while(init), condition=condition, body=body
  given = f32[4,32,8] get-tuple-element(end), index=2
  y = f32[4,32,8] dot(given, w), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}
  {loss}
}}
"
    )
}

#[test]
fn a_loops_mask_is_a_choice_where_the_loop_is_on_the_way_to_the_loss_and_computes_on_with_it() {
    let of_loop = "loss = f32[] reduce(y, zero), dimensions={0,1,2}, to_apply=add
  ROOT out = (f32[4,32,8], f32[]) tuple(y, loss)";
    let of_input = "loss = f32[] reduce(x, zero), dimensions={0,1}, to_apply=add
  ROOT out = (f32[4,32,8], f32[]) tuple(y, loss)";
    let no_loss = "ROOT out = (f32[4,32,8]) tuple(y)";
    for (row, loss, dtype) in [
        ("multiply(mask, h)", of_loop, "f32"),
        ("multiply(mask, h)", no_loss, "f32"),
        // A backward pass rematerialises a block of the forward pass.
        ("multiply(mask, h)", of_input, "bf16"),
        // It is stored for the backward pass, or meets a cotangent.
        ("negate(mask)", of_loop, "bf16"),
        ("multiply(mask, back)", of_loop, "bf16"),
    ] {
        assert_eq!(dtypes(&filling_loop(row, loss), &Policy::default(), ["scores"]), [dtype], "{row} {loss}");
    }
    let meeting = filling_loop("multiply(mask, h)", of_loop);
    assert_eq!(dtypes(&meeting, &lower(), ["scores"]), ["bf16"]);
    // A loop invariant is the same in every run if it was before the loop.
    let constant = meeting.replace(
        "  init = (s32[], f32[8,8], f32[4,32,8], f32[32,8]) tuple(start, w, rows, x)",
        "  half = f32[] constant(0.5)
  halves = f32[32,8] broadcast(half), dimensions={}
  init = (s32[], f32[8,8], f32[4,32,8], f32[32,8]) tuple(start, w, rows, halves)",
    );
    assert_eq!(dtypes(&constant, &Policy::default(), ["scores"]), ["bf16"]);
    let changing = constant.replace("tuple(i.2, weights, filled.1, h)", "tuple(i.2, weights, filled.1, one_row)");
    assert_eq!(dtypes(&changing, &Policy::default(), ["scores"]), ["f32"]);
}
