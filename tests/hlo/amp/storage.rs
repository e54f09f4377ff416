//! Values that are stored between products, and their readers: one small module for each rule. Each is lowered with
//! the rule and without it, if a policy can turn it off.

use bf16scope::hlo::{Module, text};
use bf16scope::passes::amp::{self, Boundary, LowDType, Policy};

/// The beginning of every module below: reductions, and two products, of which the second reads the value that the
/// rule is about.
pub(super) const HEAD: &str = "HloModule storage

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

";

/// The dtypes of instructions of these names in the lowered module.
pub(super) fn dtypes<const N: usize>(source: &str, policy: &Policy, names: [&str; N]) -> [String; N] {
    dtypes_of(&format!("{HEAD}{source}"), policy, names)
}

pub(super) fn parsed(source: &str) -> Module {
    text::parse(source, "storage.hlo").unwrap_or_else(|error| panic!("{error}"))
}

fn dtypes_of<const N: usize>(source: &str, policy: &Policy, names: [&str; N]) -> [String; N] {
    let (lowered, _) = amp::run(&parsed(source), policy).unwrap_or_else(|error| panic!("{error}"));
    names.map(|name| {
        let mut instructions = lowered.computations.iter().flat_map(|computation| &computation.instructions);
        let instr = instructions.find(|instr| instr.name == name);
        let instr = instr.unwrap_or_else(|| panic!("no {name} in {}", text::print(&lowered, &Default::default())));
        instr.shape.dtype().map(|dtype| dtype.to_string()).unwrap_or_default()
    })
}

fn moved(boundary: Boundary) -> Policy {
    Policy { moved: boundary, ..Policy::default() }
}

/// Features of nodes, from a product, gathered for the edges; the edges' product and an exponential read them.
#[test]
fn what_a_gather_gives_between_products_is_narrow_whoever_reads_it() {
    let source = "ENTRY main {
  x = f32[64,8] parameter(0)
  w = f32[8,8] parameter(1)
  ids = s32[512,1] parameter(2)
  nodes = f32[64,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ends = f32[512,8] gather(nodes, ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
  edges = f32[512,8] dot(ends, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  sizes = f32[512,8] exponential(ends)
  ROOT out = (f32[512,8], f32[512,8]) tuple(edges, sizes)
}
";
    assert_eq!(dtypes(source, &moved(Boundary::Lower), ["nodes", "ends", "edges"]), ["bf16", "bf16", "f32"]);
    assert_eq!(dtypes(source, &moved(Boundary::Keep), ["ends"]), ["f32"]);
}

/// `tanh(u)`, rounded, beside a sum that is not stored: their concatenate is stored.
#[test]
fn a_concatenate_along_lanes_rounds_what_was_not_rounded_before() {
    let source = |axis: i64, dims: &str| {
        format!(
            "ENTRY main {{
  x = f32[16,16] parameter(0)
  w = f32[16,16] parameter(1)
  v = f32[{dims}] parameter(2)
  u = f32[16,16] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  size = f32[16,16] exponential(u)
  both = f32[{dims}] concatenate(u, size), dimensions={{{axis}}}
  zero = f32[] constant(0)
  of_bias = f32[{n_both}] reduce(both, zero), dimensions={{0}}, to_apply=add
  next = f32[{n},{n}] dot(both, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  ROOT out = (f32[{n},{n}], f32[{n_both}], f32[16,16]) tuple(next, of_bias, u)
}}
",
            n = if axis == 0 { 32 } else { 16 },
            n_both = if axis == 0 { 16 } else { 32 }
        )
    };
    assert_eq!(dtypes(&source(1, "16,32"), &moved(Boundary::Lower), ["size", "both"]), ["f32", "bf16"]);
    assert_eq!(dtypes(&source(1, "16,32"), &moved(Boundary::Keep), ["both"]), ["f32"]);
    // Along rows the compiler fuses it into its readers.
    assert_eq!(dtypes(&source(0, "32,16"), &moved(Boundary::Lower), ["both"]), ["f32"]);
}

/// A few rows of a table, read by a product and by an exponential, behind a `select` as JAX's `take` has it.
#[test]
fn a_lookup_with_readers_of_both_kinds_rounds_the_rows_once() {
    let source = "ENTRY main {
  table = f32[1000,128] parameter(0)
  w = f32[128,8] parameter(1)
  ids = s32[16,1] parameter(2)
  is_there = pred[16,128] parameter(3)
  found = f32[16,128] gather(table, ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,128}
  nan = f32[] constant(nan)
  nans = f32[16,128] broadcast(nan), dimensions={}
  rows = f32[16,128] select(is_there, found, nans)
  y = f32[16,8] dot(rows, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  sizes = f32[16,128] exponential(rows)
  nothing = f32[] constant(0)
  loss = f32[] reduce(y, nothing), dimensions={0,1}, to_apply=add
  updated = f32[1000,128] negate(table)
  ROOT out = (f32[], f32[16,128], f32[1000,128]) tuple(loss, sizes, updated)
}
";
    // The lookup reads the table in its own dtype; its result is rounded.
    assert_eq!(dtypes(source, &moved(Boundary::Lower), ["found", "found.bf16", "rows"]), ["f32", "bf16", "bf16"]);
    // A table that nothing updates may hold prices or numbers: what reads its rows in f32 reads all digits.
    let not_updated = source.replace("f32[1000,128] negate(table)", "f32[1000,256] broadcast(nothing), dimensions={}");
    let not_updated = not_updated.replace("f32[16,128], f32[1000,128])", "f32[16,128], f32[1000,256])");
    assert_eq!(dtypes(&not_updated, &moved(Boundary::Lower), ["found", "rows"]), ["f32", "f32"]);
    assert_eq!(dtypes(source, &moved(Boundary::Keep), ["found", "rows"]), ["f32", "f32"]);
}

/// A layer with one output: its bias is one number, and so is the loss.
fn one_output(results: &str) -> String {
    format!(
        "ENTRY main {{
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  v = f32[8,1] parameter(2)
  bias = f32[1] parameter(3)
  h = f32[32,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  g = f32[32,8] add(h, h)
  wide = f32[32,8] tanh(g)
  y = f32[32,1] dot(wide, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  zero = f32[] constant(0)
  loss = f32[] reduce(y, zero), dimensions={{0,1}}, to_apply=add
  of_h = f32[32,8] multiply(g, wide)
  sum = f32[8] reduce(of_h, zero), dimensions={{0}}, to_apply=add
  gradient = f32[] reduce(sum, zero), dimensions={{0}}, to_apply=add
  as_bias = f32[1] reshape(gradient)
  updated = f32[1] subtract(bias, as_bias)
  squared = f32[32,8] multiply(g, g)
  other = f32[8,8] dot(squared, wide), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  ROOT out = {results}
}}
"
    )
}

/// Whether the sum of a gradient is f32 for a loss.
fn is_for_the_loss(source: &str) -> bool {
    let (_, report) = amp::run(&parsed(source), &Policy::default()).unwrap_or_else(|error| panic!("{error}"));
    report.explain("of_h")[0].rule == "the loss is computed from it"
}

#[test]
fn an_updated_parameter_of_one_number_is_no_loss() {
    let with_loss = format!("{HEAD}{}", one_output("(f32[], f32[1], f32[8,8]) tuple(loss, updated, other)"));
    assert!(!is_for_the_loss(&with_loss));
    // If no other result can be the loss, it is.
    let alone = format!("{HEAD}{}", one_output("(f32[1], f32[8,8]) tuple(updated, other)"));
    assert!(is_for_the_loss(&alone));
}

/// A scalar that is aliased to a parameter is not a loss, however it is computed; the scalar before it may be one.
#[test]
fn an_aliased_result_of_one_number_is_no_loss_wherever_it_stands() {
    let entry = one_output("(f32[], f32[1], f32[8,8]) tuple(loss, as_bias, other)");
    assert!(is_for_the_loss(&format!("{HEAD}{entry}")), "both are losses");
    let head = HEAD.replacen("storage", "storage, input_output_alias={ {1}: (3, {}, may-alias) }", 1);
    assert!(!is_for_the_loss(&format!("{head}{entry}")));
}

/// Two branches of a network between two products: one multiplies, the other returns its operand; a row of sums is
/// f32.
const BRANCHES: &str = "multiplied {
  taken.0 = (f32[32,8], f32[8,8], f32[32]) parameter(0)
  x.0 = f32[32,8] get-tuple-element(taken.0), index=0
  w.0 = f32[8,8] get-tuple-element(taken.0), index=1
  sums.0 = f32[32] get-tuple-element(taken.0), index=2
  z = f32[32,8] dot(x.0, w.0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  activated = f32[32,8] tanh(z)
  ROOT given.0 = (f32[32,8], f32[32]) tuple(activated, sums.0)
}

passed {
  taken.1 = (f32[32,8], f32[32]) parameter(0)
  x.1 = f32[32,8] get-tuple-element(taken.1), index=0
  sums.1 = f32[32] get-tuple-element(taken.1), index=1
  ROOT given.1 = (f32[32,8], f32[32]) tuple(x.1, sums.1)
}

ENTRY main {
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  which = pred[] parameter(2)
  y = f32[32,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  hidden = f32[32,8] negate(y)
  zero = f32[] constant(0)
  sums = f32[32] reduce(x, zero), dimensions={1}, to_apply=add
  first = (f32[32,8], f32[8,8], f32[32]) tuple(hidden, w, sums)
  second = (f32[32,8], f32[32]) tuple(hidden, sums)
  both = (f32[32,8], f32[32]) conditional(which, first, second), true_computation=multiplied, false_computation=passed
  chosen = f32[32,8] get-tuple-element(both), index=0
  chosen_sums = f32[32] get-tuple-element(both), index=1
  out = f32[32,8] dot(chosen, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT results = (f32[32,8], f32[32]) tuple(out, chosen_sums)
}
";

#[test]
fn what_branches_take_and_give_between_products_is_narrow() {
    let names = ["x.0", "w.0", "sums.0", "z", "activated", "x.1", "chosen", "chosen_sums"];
    let keep = Policy { loops: Boundary::Keep, ..Policy::default() };
    assert_eq!(
        dtypes(BRANCHES, &Policy::default(), names),
        ["bf16", "f32", "f32", "bf16", "bf16", "bf16", "bf16", "f32"]
    );
    assert_eq!(dtypes(BRANCHES, &keep, ["x.0", "x.1", "chosen"]), ["f32", "f32", "f32"]);
}

/// A router: the two largest of its scores select the experts whose outputs are used.
fn router(of_choice: &str) -> String {
    format!(
        "ENTRY main {{
  x = f32[32,64] parameter(0)
  w = f32[64,64] parameter(1)
  v = f32[64,64] parameter(2)
  y = f32[32,64] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  scores = f32[32,64] dot(y, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  sharp = f32[32,64] add(scores, scores)
  best = (f32[32,2], s32[32,2]) topk(sharp), k=2, largest=true
  which = s32[32,2] get-tuple-element(best), index=1
  first = s32[32,1] slice(which), slice={{[0:32], [0:1]}}
  used = f32[32,64] gather(y, first), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,64}}
  {of_choice}
  ROOT z = f32[32,64] dot(given, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"
    )
}

#[test]
fn products_that_decide_what_is_computed_next_stay_f32() {
    let names = ["y", "scores", "sharp", "z"];
    let choosing = router("given = f32[32,64] negate(used)");
    let lower = Policy { choices: Boundary::Lower, ..Policy::default() };
    assert_eq!(dtypes(&choosing, &Policy::default(), names), ["bf16", "f32", "f32", "f32"]);
    assert_eq!(dtypes(&choosing, &lower, ["scores"]), ["bf16"]);
    // No product is computed from the choice.
    let reported = router("given = f32[32,64] negate(scores)");
    assert_eq!(dtypes(&reported, &Policy::default(), ["scores"]), ["bf16"]);
}

/// The exponential of a softmax, which compilers for a v4 and later materialise: rounded once, but not if a choice
/// depends on its order.
#[test]
fn an_exponential_that_a_sum_reads_is_rounded_once_unless_a_choice_depends_on_it() {
    let softmax = "  zero = f32[] constant(0)
  powers = f32[32,64] exponential(scores)
  sum = f32[32] reduce(powers, zero), dimensions={1}, to_apply=add
  sums = f32[32,64] broadcast(sum), dimensions={0}
  sharp = f32[32,64] divide(powers, sums)
";
    let choosing = router("given = f32[32,64] multiply(used, sharp)");
    let sum = "  sharp = f32[32,64] add(scores, scores)\n";
    assert!(choosing.contains(sum));
    let choosing = choosing.replace(sum, softmax);
    let is_rounded = |source: &str, policy: &Policy| {
        let (lowered, _) = amp::run(&parsed(&format!("{HEAD}{source}")), policy).unwrap();
        text::print(&lowered, &Default::default()).contains("powers.bf16 = bf16[32,64]{1,0} convert(powers)")
    };
    assert!(!is_rounded(&choosing, &Policy::default()));
    assert!(!is_rounded(&choosing.replace("topk(sharp)", "topk(powers)"), &Policy::default()));
    // A product reads the softmax, and there is no choice.
    let best = choosing.find("  best = ").unwrap()..choosing.find("  given = ").unwrap();
    let attending = choosing.replace(&choosing[best], "").replace("multiply(used, sharp)", "negate(sharp)");
    assert!(is_rounded(&attending, &Policy::default()));
    assert!(!is_rounded(&attending, &moved(Boundary::Keep)));
}

/// An element of a row of a bf16 table is computed from a score; a bf16 product reads the row, or a loop the element.
#[test]
fn scores_that_become_integers_stay_f32_where_a_product_of_any_dtype_or_a_loop_reads_them() {
    let chosen = |computed: &str| {
        format!(
            "never {{
  carried = (s32[32,1], bf16[8,8]) parameter(0)
  ROOT is = pred[] constant(false)
}}

same {{
  ROOT carried = (s32[32,1], bf16[8,8]) parameter(0)
}}

ENTRY main {{
  x = f32[32,8] parameter(0)
  w = f32[8,1] parameter(1)
  table = bf16[8,8] parameter(2)
  v = bf16[8,8] parameter(3)
  score = f32[32,1] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  which = s32[32,1] convert(score)
  {computed}
}}
"
        )
    };
    let row = "row = bf16[32,8] gather(table, which), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, \
               index_vector_dim=1, slice_sizes={1,8}
  ";
    let product = "ROOT out = bf16[32,8] dot(row, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}";
    let looped = "init = (s32[32,1], bf16[8,8]) tuple(which, v)
  ROOT end = (s32[32,1], bf16[8,8]) while(init), condition=never, body=same";
    for (computed, dtype) in [
        (format!("{row}{product}"), "f32"),
        (looped.to_string(), "f32"),
        (format!("{row}ROOT out = bf16[32,8] negate(row)"), "bf16"),
    ] {
        assert_eq!(dtypes(&chosen(&computed), &Policy::default(), ["score"]), [dtype], "{computed}");
    }
}

/// The choice of a loop's step may reach a product outside.
#[test]
fn scores_of_a_loops_step_stay_f32_where_the_loop_carries_the_choice() {
    let source = "condition {
  state.0 = (f32[32,8], s32[32,1]) parameter(0)
  ROOT goes_on = pred[] constant(false)
}

body {
  state.1 = (f32[32,8], s32[32,1]) parameter(0)
  x = f32[32,8] get-tuple-element(state.1), index=0
  w = f32[8,1] constant({{1},{2},{3},{4},{5},{6},{7},{8}})
  score = f32[32,1] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  which = s32[32,1] convert(score)
  ROOT state.2 = (f32[32,8], s32[32,1]) tuple(x, which)
}

ENTRY main {
  init = (f32[32,8], s32[32,1]) parameter(0)
  ROOT end = (f32[32,8], s32[32,1]) while(init), condition=condition, body=body
}
";
    assert_eq!(dtypes(source, &Policy::default(), ["score"]), ["f32"]);
    let lower = Policy { choices: Boundary::Lower, ..Policy::default() };
    assert_eq!(dtypes(source, &lower, ["score"]), ["bf16"]);
}

/// A sigmoid, written out, and an exponential beside it.
#[test]
fn a_sigmoid_that_is_written_out_is_lowered_as_logistic_is() {
    let source = |one: &str| {
        format!(
            "ENTRY main {{
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  y = f32[32,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  minus = f32[32,8] negate(y)
  exp = f32[32,8] exponential(minus)
  one = f32[] constant({one})
  ones = f32[32,8] broadcast(one), dimensions={{}}
  sum = f32[32,8] add(exp, ones)
  gate = f32[32,8] divide(ones, sum)
  gated = f32[32,8] multiply(gate, y)
  ROOT z = f32[32,8] dot(gated, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"
        )
    };
    let stored = Policy { unstored: Boundary::Lower, ..Policy::default() };
    assert_eq!(dtypes(&source("1"), &stored, ["exp", "gate"]), ["bf16", "bf16"]);
    assert_eq!(dtypes(&source("1"), &Policy::default(), ["exp", "gate"]), ["f32", "f32"], "of one array");
    assert_eq!(dtypes(&source("3"), &stored, ["exp"]), ["f32"]);
    let island = Policy { island: vec!["exponential".to_string()], ..stored };
    assert_eq!(dtypes(&source("1"), &island, ["exp"]), ["f32"]);
}

/// A sum over windows is stored and is not a statistic, so an op that adds another stored value to it is rounded for
/// the product that reads it. A sum of few numbers, as a pool's gradient, is bf16 itself; one of many is f32.
#[test]
fn a_sum_over_windows_of_a_part_is_stored() {
    let source = |size: usize, given: usize| {
        format!(
            "ENTRY main {{
  x = f32[16,16] parameter(0)
  w = f32[16,16] parameter(1)
  v = f32[16,{given}] parameter(2)
  u = f32[{given},16] parameter(3)
  zero = f32[] constant(0)
  product = f32[16,16] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  part = f32[16,12] slice(product), slice={{[0:16], [0:12]}}
  windows = f32[16,{given}] reduce-window(part, zero), window={{size=1x{size}}}, to_apply=add
  other = f32[16,{given}] dot(x, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  both = f32[16,{given}] add(windows, other)
  ROOT out = f32[16,16] dot(both, u), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"
        )
    };
    let names = ["part", "windows", "both"];
    assert_eq!(dtypes(&source(9, 4), &Policy::default(), names), ["bf16", "bf16", "bf16"]);
    assert_eq!(dtypes(&source(10, 3), &Policy::default(), names), ["bf16", "f32", "bf16"]);
    assert_eq!(dtypes(&source(9, 4), &moved(Boundary::Keep), names), ["bf16", "f32", "bf16"]);
    // In f16 it may be infinite.
    let f16 = Policy { dtype: LowDType::F16, ..Policy::default() };
    assert_eq!(dtypes(&source(9, 4), &f16, names), ["f16", "f32", "f16"]);
}

/// A norm's end that only an average pool reads is rounded for it: producers are not fused into windows.
#[test]
fn what_a_pool_reads_is_rounded() {
    let source = "ENTRY main {
  x = f32[16,16] parameter(0)
  w = f32[16,16] parameter(1)
  v = f32[8,16] parameter(2)
  u = f32[16,8] parameter(3)
  zero = f32[] constant(0)
  product = f32[16,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  summed = f32[16] reduce(product, zero), dimensions={1}, to_apply=add
  means = f32[16,16] broadcast(summed), dimensions={0}
  normed = f32[16,16] subtract(product, means)
  pooled = f32[16,8] reduce-window(normed, zero), window={size=1x2 stride=1x2}, to_apply=add
  after = f32[16,16] dot(pooled, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  back = f32[16,8] dot(after, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  spread = f32[16,17] pad(back, zero), padding=0_0x1_1_1
  gradient = f32[16,16] reduce-window(spread, zero), window={size=1x2}, to_apply=add
  ROOT out = f32[16,16] dot(gradient, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
";
    let names = ["normed", "normed.bf16", "pooled"];
    assert_eq!(dtypes(source, &Policy::default(), names), ["f32", "bf16", "bf16"]);
}

/// A norm, a `relu`, and the gradient of both: the mask of the `relu` goes on to the norm's gradient, in f32, and the
/// norm's end does not. So the end is rounded once, and the mask compares what is stored.
#[test]
fn a_norms_end_is_rounded_once_for_a_relu_and_its_mask() {
    let source = format!(
        "{HEAD}ENTRY main {{
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  zero = f32[] constant(0)
  zeros = f32[32,8] broadcast(zero), dimensions={{}}
  y = f32[32,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  sum = f32[8] reduce(y, zero), dimensions={{0}}, to_apply=add
  sums = f32[32,8] broadcast(sum), dimensions={{1}}
  end = f32[32,8] subtract(y, sums)
  relu = f32[32,8] maximum(end, zeros)
  z = f32[32,8] dot(relu, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  mask = pred[32,8] compare(end, zeros), direction=GT
  back = f32[32,8] dot(z, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  masked = f32[32,8] select(mask, back, zeros)
  of_y = f32[32,8] multiply(masked, sums)
  ROOT of_w = f32[8,8] dot(x, of_y), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
}}
"
    );
    let (lowered, _) = amp::run(&parsed(&source), &Policy::default()).unwrap();
    let text = text::print(&lowered, &Default::default());
    for line in [
        "end.bf16 = bf16[32,8]{1,0} convert(end)",
        "relu = bf16[32,8]{1,0} maximum(end.bf16, zeros)",
        "mask = pred[32,8]{1,0} compare(end.bf16, zeros)",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

/// The gradient of a norm's input through its variance, 2 · x · v, where v is a sum to which the norm's scale was
/// applied: it is computed in f32, as it is not stored, and rounded where it is added.
#[test]
fn a_statistic_stays_one_where_a_scale_was_applied_to_it() {
    let source = "ENTRY main {
  x = f32[16,16] parameter(0)
  y = f32[16,16] parameter(1)
  w = f32[16,16] parameter(2)
  scale = f32[16] parameter(3)
  zero = f32[] constant(0)
  two = f32[] constant(2)
  twos = f32[16,16] broadcast(two), dimensions={}
  stored = f32[16,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  gradient = f32[16,16] dot(y, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  weighed = f32[16,16] multiply(stored, gradient)
  summed = f32[16] reduce(weighed, zero), dimensions={0}, to_apply=add
  scaled = f32[16] multiply(summed, scale)
  variance = f32[16,16] broadcast(scaled), dimensions={1}
  doubled = f32[16,16] multiply(stored, twos)
  by_variance = f32[16,16] multiply(variance, doubled)
  total = f32[16,16] add(gradient, by_variance)
  ROOT out = f32[16,16] dot(total, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
";
    let names = ["scaled", "doubled", "by_variance", "total"];
    assert_eq!(dtypes(source, &Policy::default(), names), ["f32", "f32", "f32", "bf16"]);
}

/// A product of two streams that a sum reads is not stored, so it is f32; a dead value is not stored either.
#[test]
fn dead_code_stores_nothing() {
    let source = |also: &str| {
        format!(
            "ENTRY main {{
  x = f32[16,16] parameter(0)
  y = f32[16,16] parameter(1)
  w = f32[16,16] parameter(2)
  zero = f32[] constant(0)
  a = f32[16,16] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  b = f32[16,16] dot(y, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  weighed = f32[16,16] multiply(a, b)
  summed = f32[16] reduce(weighed, zero), dimensions={{0}}, to_apply=add
  sums = f32[16,16] broadcast(summed), dimensions={{1}}
  moved = f32[16,16] add(a, sums)
  {also} = f32[16,16] dot(weighed, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  given = f32[16,16] dot(moved, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT out = (f32[16,16], f32[16,16]) tuple(given, other)
}}
"
        )
    };
    let unread = source("unread").replace("tuple(given, other)", "tuple(given, given)");
    assert_eq!(dtypes(&source("other"), &Policy::default(), ["weighed"]), ["bf16"]);
    assert_eq!(dtypes(&unread, &Policy::default(), ["weighed"]), ["f32"]);
}

/// Scaled scores; a softmax reads their row maxima and their exponentials.
#[test]
fn what_scales_one_stored_array_for_a_softmax_is_f32() {
    let source = |also_read_by: &str| {
        format!(
            "largest {{
  c = f32[] parameter(0)
  d = f32[] parameter(1)
  ROOT most = f32[] maximum(c, d)
}}

ENTRY main {{
  x = f32[16,16] parameter(0)
  w = f32[16,16] parameter(1)
  scores = f32[16,16] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  size = f32[] constant(5.7)
  sizes = f32[16,16] broadcast(size), dimensions={{}}
  scaled = f32[16,16] divide(scores, sizes)
  least = f32[] constant(-inf)
  maxima = f32[16] reduce(scaled, least), dimensions={{1}}, to_apply=largest
  of_row = f32[16,16] broadcast(maxima), dimensions={{0}}
  below = f32[16,16] subtract(scaled, of_row)
  e = f32[16,16] exponential(below)
  y = f32[16,16] dot(e, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  z = f32[16,16] dot({also_read_by}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT out = (f32[16,16], f32[16,16]) tuple(y, z)
}}
"
        )
    };
    let unstored = |boundary: Boundary| Policy { unstored: boundary, ..Policy::default() };
    assert_eq!(dtypes(&source("y"), &unstored(Boundary::Keep), ["scores", "scaled"]), ["bf16", "f32"]);
    assert_eq!(dtypes(&source("y"), &unstored(Boundary::Lower), ["scores", "scaled"]), ["bf16", "bf16"]);
    // A product reads it, so it is stored.
    assert_eq!(dtypes(&source("scaled"), &unstored(Boundary::Keep), ["scaled"]), ["bf16"]);
    // An addition to a product on its way to an exponential is in f32: its rounding would be relative to the sum.
    let added = |other: &str, scores: &str| {
        let sum = format!(
            "  content = f32[16,16] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  {other}
  scores = f32[16,16] {scores}
"
        );
        let product = "  scores = f32[16,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n";
        dtypes(&source("y").replace(product, &sum), &unstored(Boundary::Keep), ["scores", "scaled"])
    };
    let places = "places = f32[16,16] dot(w, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}";
    let shifted = format!("{places}\n  shifted = f32[16,16] transpose(places), dimensions={{1,0}}");
    assert_eq!(added(places, "add(content, places)"), ["f32", "f32"]);
    assert_eq!(added(&shifted, "add(content, shifted)"), ["f32", "f32"]);
    assert_eq!(added("", "add(content, w)"), ["f32", "f32"]);
    assert_eq!(added("", "add(content, content)"), ["f32", "f32"]);
}

/// A residual's gradient, to which norms add their results: a gate scales it for a product, so it is stored. It is
/// rounded there, once, and the next norm's part is added to the stored value.
#[test]
fn a_residuals_gradient_is_rounded_where_a_gate_scales_it_for_a_product() {
    let source = |scaled: &str| {
        format!(
            "ENTRY main {{
  x = f32[16,16] parameter(0)
  y = f32[16,16] parameter(1)
  w = f32[16,16] parameter(2)
  zero = f32[] constant(0)
  first = f32[16,16] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  second = f32[16,16] dot(y, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  of_first = f32[16] reduce(first, zero), dimensions={{0}}, to_apply=add
  of_second = f32[16] reduce(second, zero), dimensions={{0}}, to_apply=add
  firsts = f32[16,16] broadcast(of_first), dimensions={{1}}
  seconds = f32[16,16] broadcast(of_second), dimensions={{1}}
  gradient = f32[16,16] add(first, firsts)
  gated = f32[16,16] multiply({scaled}, second)
  doubled = f32[16,16] add(gated, gated)
  met = f32[16,16] add(gradient, second)
  next = f32[16,16] add(met, seconds)
  of_gate = f32[16,16] dot(doubled, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  out = f32[16,16] dot(next, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT outs = (f32[16,16], f32[16,16]) tuple(of_gate, out)
}}
"
        )
    };
    let names = ["gradient", "gradient.bf16", "met", "next"];
    assert_eq!(dtypes(&source("gradient"), &Policy::default(), names), ["f32", "bf16", "f32", "f32"]);
    assert_eq!(dtypes(&source("first"), &Policy::default(), ["gradient", "met", "next"]), ["f32", "f32", "f32"]);
}

/// If an angle comes from a product, a TPU's compiler recomputes the f32 sine in each fusion that reads it. The angles
/// of positions do not come from a product.
#[test]
fn sines_between_products_are_narrow_and_those_of_positions_are_not() {
    let network = |angle: &str| {
        format!(
            "ENTRY main {{
  x = f32[64,32] parameter(0)
  w = f32[32,32] parameter(1)
  first = f32[64,32] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  product = f32[64,32] dot(first, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  wave = f32[64,32] sine({angle})
  ROOT y = f32[64,32] dot(wave, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"
        )
    };
    assert_eq!(dtypes(&network("product"), &Policy::default(), ["wave"]), ["bf16"]);
    assert_eq!(dtypes(&network("x"), &Policy::default(), ["wave"]), ["f32"]);
    let denied = Policy { deny: vec!["sine".to_string()], ..Policy::default() };
    assert_eq!(dtypes(&network("product"), &denied, ["wave"]), ["f32"]);
}

/// A rematerialised layer reads its weights behind a barrier, and products read them in bf16: a parameter is cast
/// behind the barrier, where the cast is not kept, and a computed weight is stored as it is read.
#[test]
fn a_parameter_is_held_back_as_it_is() {
    let source = "ENTRY main {
  x = f32[16,8] parameter(0)
  w = f32[8,8] parameter(1)
  first = f32[16,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  size = f32[16,8] tanh(first)
  weights = f32[8,8] opt-barrier(w)
  made = f32[16,8] opt-barrier(size)
  ROOT again = f32[16,8] dot(made, weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
";
    assert_eq!(dtypes(source, &Policy::default(), ["weights", "made"]), ["f32", "bf16"]);
}

/// The result of a padded convolution, reshaped to groups of channels; without padding the reshape stays narrow.
#[test]
fn rows_and_columns_of_a_padded_convolution_are_merged_in_the_dtype_of_their_readers() {
    let source = |padding: &str, groups: &str| {
        format!(
            "ENTRY main {{
  x = f32[16,8,8,64] parameter(0)
  w = f32[3,3,64,64] parameter(1)
  zero = f32[] constant(0)
  image = f32[16,8,8,64] convolution(x, w), window={{size=3x3 pad={padding}}}, dim_labels=b01f_01io->b01f
  groups = f32[{groups}] reshape(image)
  squares = f32[{groups}] multiply(groups, groups)
  ROOT loss = f32[] reduce(squares, zero), dimensions={{0,1,2,3}}, to_apply=add
}}
"
        )
    };
    let decided = |source: String| dtypes(&source, &Policy::default(), ["image", "groups"]);
    let unpadded = source("0_0x0_0", "16,36,8,8").replace("image = f32[16,8,8,64]", "image = f32[16,6,6,64]");
    assert_eq!(decided(source("1_1x1_1", "16,64,8,8")), ["bf16", "f32"]);
    assert_eq!(decided(unpadded), ["bf16", "bf16"]);
}

/// A causal convolution by shifts: zeros before a product's result, and slices of that, which exponentials read.
#[test]
fn what_is_padded_with_an_exact_number_stays_narrow() {
    let source = "ENTRY main {
  x = f32[16,16] parameter(0)
  w = f32[16,16] parameter(1)
  count = s32[] constant(0)
  filler = f32[] convert(count)
  product = f32[16,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  padded = f32[19,16] pad(product, filler), padding=3_0x0_0
  front = f32[16,16] slice(padded), slice={[0:16], [0:16]}
  back = f32[16,16] slice(padded), slice={[3:19], [0:16]}
  first = f32[16,16] exponential(front)
  second = f32[16,16] exponential(back)
  ROOT out = (f32[16,16], f32[16,16]) tuple(first, second)
}
";
    let names = ["product", "padded", "front", "back"];
    let decided = |source: &str| dtypes(source, &Policy::default(), names);
    assert_eq!(decided(source), ["bf16", "bf16", "bf16", "bf16"]);
    let converted = "count = s32[] constant(0)\n  filler = f32[] convert(count)";
    let with_filler = |filler: &str| decided(&source.replace(converted, filler));
    assert_eq!(with_filler("filler = f32[] constant(0)"), ["bf16", "bf16", "bf16", "bf16"]);
    // Neither is bf16, and a parameter is not known to be.
    for rounded in ["filler = f32[] constant(0.1)", "filler = f32[] parameter(2)"] {
        assert_eq!(with_filler(rounded), ["bf16", "f32", "f32", "f32"], "{rounded}");
    }
    let past = decided(&source.replace("constant(0)", "constant(257)"));
    assert_eq!(past, ["bf16", "f32", "f32", "f32"]);
}

/// The gradients of shifted slices are padded and added: a compiler stores what is padded, which is computed in f32 and rounded
/// once before that. A chain of adds is f32 up to its last, and one add is bf16.
#[test]
fn what_is_padded_to_be_added_is_rounded_once_before() {
    let source = |sum: &str| {
        format!(
            "ENTRY main {{
  x = f32[16,16] parameter(0)
  w = f32[16,16] parameter(1)
  scales = f32[3,16] parameter(2)
  zero = f32[] constant(0)
  product = f32[16,16] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  row = f32[1,16] slice(scales), slice={{[0:1], [0:16]}}
  flat = f32[16] reshape(row)
  scale = f32[16,16] broadcast(flat), dimensions={{1}}
  first = f32[16,16] multiply(product, scale)
  front = f32[18,16] pad(first, zero), padding=0_2x0_0
  second = f32[16,16] tanh(product)
  back = f32[18,16] pad(second, zero), padding=2_0x0_0
  third = f32[16,16] logistic(product)
  middle = f32[18,16] pad(third, zero), padding=1_1x0_0
  {sum}
  back_in_place = f32[16,16] pad(sum, zero), padding=-1_-1x0_0
  ROOT out = f32[16,16] dot(back_in_place, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"
        )
    };
    let decided = |sum: &str, names: [&str; 4]| dtypes(&source(sum), &Policy::default(), names);
    let two = "sum = f32[18,16] add(front, back)";
    assert_eq!(decided(two, ["first", "front", "back", "sum"]), ["f32", "bf16", "bf16", "bf16"]);
    let three = "pair = f32[18,16] add(front, back)\n  sum = f32[18,16] add(pair, middle)";
    assert_eq!(decided(three, ["first", "front", "middle", "pair"]), ["f32", "bf16", "bf16", "f32"]);
    assert_eq!(decided(three, ["second", "third", "sum", "back_in_place"]), ["f32", "f32", "f32", "bf16"]);
    // Maxima are no sum.
    let most = "sum = f32[18,16] maximum(front, back)";
    assert_eq!(decided(most, ["first", "front", "back", "sum"]), ["bf16", "bf16", "bf16", "bf16"]);
}
