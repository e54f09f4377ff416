//! Facts about a program that the user states instead of leaving them to a guess, and what the report says: losses,
//! parameters that hold data, and roundings that a policy asks for and that will hurt.

use bf16scope::hlo::{DType, Module, text};
use bf16scope::passes::amp::{self, Boundary, LoweringReport, Policy};

/// A loss, sums over a layer's features, and a product that reads the layer.
const SUMS: &str = "HloModule sums
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,16] parameter(1)
  v = f32[16,16] parameter(2)
  zero = f32[] constant(0)
  h = f32[8,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[8,16] tanh(h)
  y = f32[8,16] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  squares = f32[8,16] multiply(y, y)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  bent = f32[8,16] tanh(y)
  sums = f32[8] reduce(bent, zero), dimensions={1}, to_apply=add
  dv = f32[16,16] dot(t, bent), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT out = (f32[], f32[8], f32[16,16]) tuple(loss, sums, dv)
}";

fn lowered(source: &str, policy: &Policy) -> (Module, LoweringReport) {
    let module = text::parse(source, "source.hlo").unwrap_or_else(|error| panic!("{error}"));
    amp::run(&module, policy).unwrap_or_else(|error| panic!("{error}"))
}

fn dtype(module: &Module, name: &str) -> DType {
    let entry = module.entry();
    let instr = entry.instructions.iter().find(|instr| instr.name == name);
    instr.unwrap_or_else(|| panic!("{name} is gone")).shape.dtype().unwrap()
}

fn taken(report: &LoweringReport) -> Vec<(usize, &str, bool)> {
    report.losses.iter().map(|loss| (loss.result, &loss.instruction[..], loss.is_given)).collect()
}

#[test]
fn a_loss_is_guessed_or_given() {
    let (module, report) = lowered(SUMS, &Policy::default());
    assert_eq!(taken(&report), [(0, "loss", false)]);
    assert_eq!((dtype(&module, "squares"), dtype(&module, "bent")), (DType::F32, DType::BF16));
    // An array may be named as a loss, too: ops on the way to it are f32, also through a sum.
    let with_losses = Policy { losses: Some(vec![0, 1]), ..Policy::default() };
    let (module, report) = lowered(SUMS, &with_losses);
    assert_eq!(taken(&report), [(0, "loss", true), (1, "sums", true)]);
    assert_eq!((dtype(&module, "squares"), dtype(&module, "bent")), (DType::F32, DType::F32));
}

/// A loss and the gradients of a layer that a learned number scales, among them that of the number.
const SCALED: &str = "HloModule scaled
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x = f32[8,32] parameter(0)
  w = f32[32,32] parameter(1)
  v = f32[32,32] parameter(2)
  scale = f32[] parameter(3)
  zero = f32[] constant(0)
  h = f32[8,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  scales = f32[8,32] broadcast(scale), dimensions={}
  scaled = f32[8,32] multiply(h, scales)
  y = f32[8,32] dot(scaled, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  squares = f32[8,32] multiply(y, y)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  dy = f32[8,32] add(y, y)
  dv = f32[32,32] dot(scaled, dy), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ds = f32[8,32] dot(dy, v), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  terms = f32[8,32] multiply(ds, h)
  dscale = f32[] reduce(terms, zero), dimensions={0,1}, to_apply=add
  dh = f32[8,32] multiply(ds, scales)
  dw = f32[32,32] dot(x, dh), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT out = (f32[], f32[32,32], f32[32,32], f32[]) tuple(loss, dw, dv, dscale)
}";

#[test]
fn the_gradient_of_a_learned_number_is_no_loss() {
    let (module, report) = lowered(SCALED, &Policy::default());
    assert_eq!(taken(&report), [(0, "loss", false)]);
    assert_eq!((dtype(&module, "squares"), dtype(&module, "dh")), (DType::F32, DType::BF16));
}

/// A loop that counts rows and adds them up, a loss of their squares, which are a result too and have the dims of a
/// bias, and its gradient, by a second loop.
const BY_LOOPS: &str = "HloModule loops
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
goes_on {
  state = (s32[], f32[], f32[32], f32[8,32], f32[32,32]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  three = s32[] constant(3)
  ROOT less = pred[] compare(i, three), direction=LT
}
forward {
  state = (s32[], f32[], f32[32], f32[8,32], f32[32,32]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  n = f32[] get-tuple-element(state), index=1
  rows = f32[] constant(8)
  m = f32[] add(n, rows)
  zero = f32[] constant(0)
  x = f32[8,32] get-tuple-element(state), index=3
  w = f32[32,32] get-tuple-element(state), index=4
  h = f32[8,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  sum = f32[32] reduce(h, zero), dimensions={0}, to_apply=add
  before = f32[32] get-tuple-element(state), index=2
  after = f32[32] add(before, sum)
  ROOT next = (s32[], f32[], f32[32], f32[8,32], f32[32,32]) tuple(j, m, after, x, w)
}
back {
  state = (s32[], f32[], f32[32], f32[8,32], f32[32,32]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  n = f32[] get-tuple-element(state), index=1
  d = f32[32] get-tuple-element(state), index=2
  x = f32[8,32] get-tuple-element(state), index=3
  ds = f32[8,32] broadcast(d), dimensions={1}
  dw = f32[32,32] dot(x, ds), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  before = f32[32,32] get-tuple-element(state), index=4
  after = f32[32,32] add(before, dw)
  ROOT next = (s32[], f32[], f32[32], f32[8,32], f32[32,32]) tuple(j, n, d, x, after)
}
ENTRY main {
  x = f32[8,32] parameter(0)
  w = f32[32,32] parameter(1)
  bias = f32[32] parameter(2)
  i = s32[] constant(0)
  zero = f32[] constant(0)
  zeros = f32[32,32] broadcast(zero), dimensions={}
  first = (s32[], f32[], f32[32], f32[8,32], f32[32,32]) tuple(i, zero, bias, x, w)
  last = (s32[], f32[], f32[32], f32[8,32], f32[32,32]) while(first), condition=goes_on, body=forward
  n = f32[] get-tuple-element(last), index=1
  sums = f32[32] get-tuple-element(last), index=2
  squares = f32[32] multiply(sums, sums)
  cubes = f32[32] multiply(squares, sums)
  loss = f32[] reduce(cubes, zero), dimensions={0}, to_apply=add
  d = f32[32] add(squares, squares)
  second = (s32[], f32[], f32[32], f32[8,32], f32[32,32]) tuple(i, zero, d, x, zeros)
  done = (s32[], f32[], f32[32], f32[8,32], f32[32,32]) while(second), condition=goes_on, body=back
  dw = f32[32,32] get-tuple-element(done), index=4
  ROOT out = (f32[], f32[], f32[32], f32[32,32]) tuple(loss, n, squares, dw)
}";

#[test]
fn what_a_loop_goes_on_with_is_no_gradient() {
    let (_, report) = lowered(BY_LOOPS, &Policy::default());
    assert_eq!(taken(&report), [(0, "loss", false)]);
}

#[test]
fn numbers_that_the_module_has_not_are_refused() {
    let module = text::parse(SUMS, "source.hlo").unwrap();
    let error = |policy: Policy| amp::run(&module, &policy).unwrap_err().to_string();
    assert_eq!(
        error(Policy { losses: Some(vec![0, 3]), ..Policy::default() }),
        "losses: 3 is the number of no result of sums, expected one below 3"
    );
    assert_eq!(
        error(Policy { data: vec![7], ..Policy::default() }),
        "data: 7 is the number of no parameter of sums, expected one below 3"
    );
}

/// Positions and frequencies that are parameters in f32: their product contracts two coordinates.
#[test]
fn products_of_data_are_exact_where_parameters_are_given_as_data() {
    let source = "HloModule places
ENTRY main {
  places = f32[64,2] parameter(0)
  w = f32[8,8] parameter(1)
  f = f32[2,8] parameter(2)
  angles = f32[64,8] dot(places, f), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  waves = f32[64,8] tanh(angles)
  ROOT y = f32[64,8] dot(waves, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}";
    assert_eq!(dtype(&lowered(source, &Policy::default()).0, "angles"), DType::BF16);
    let (module, report) = lowered(source, &Policy { data: vec![0, 2], ..Policy::default() });
    assert_eq!(dtype(&module, "angles"), DType::F32);
    assert!(report.explain("angles")[0].rule.starts_with("it multiplies positions, counts, constants or masks alone"));
}

/// Scores of a router, whose choice a policy may round: the report says so, and how to keep them f32.
#[test]
fn a_rounding_that_will_hurt_is_named_where_the_policy_asks_for_it() {
    let source = "HloModule router
greater {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT c = pred[] compare(a, b), direction=GT
}
ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,4] parameter(1)
  v = f32[4,4,16] parameter(2)
  scores = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  places = s32[8,4] iota(), iota_dimension=1
  sorted = (f32[8,4], s32[8,4]) sort(scores, places), dimensions={1}, to_apply=greater
  best = s32[8,4] get-tuple-element(sorted), index=1
  first = s32[8,1] slice(best), slice={[0:8], [0:1]}
  rows = f32[8,4,16] gather(v, first), offset_dims={1,2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4,16}
  ROOT y = f32[8,4] dot(rows, x), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
}";
    let (module, report) = lowered(source, &Policy::default());
    assert_eq!((dtype(&module, "scores"), report.hurts.len()), (DType::F32, 0));
    let policy = Policy { choices: Boundary::Lower, ..Policy::default() };
    let (module, report) = lowered(source, &policy);
    assert_eq!(dtype(&module, "scores"), DType::BF16);
    let [hurt] = &report.hurts[..] else { panic!("one rounding hurts: {:?}", report.hurts) };
    assert_eq!(
        hurt.sentence(),
        "the policy rounds %scores (dot), although a discrete choice that the program goes on with depends on it (%sorted)\n\
         help: `choices: keep` in a policy leaves all scores f32, --keep 'scores' this one"
    );
    // If it is kept by name, it does not hurt.
    let keeps_scores = Policy { keep: vec!["scores".to_string()], ..policy };
    assert_eq!(lowered(source, &keeps_scores).1.hurts, []);
}

/// A running sum of steps that a product computed, as the angle of a wave: by windows, by a product with a triangle, by
/// a loop.
fn waves(angles: &str) -> String {
    format!(
        "HloModule waves
add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
condition {{
  state.0 = (s32[], f32[4,4], f32[4,4,4]) parameter(0)
  i.0 = s32[] get-tuple-element(state.0), index=0
  n = s32[] constant(4)
  ROOT goes_on = pred[] compare(i.0, n), direction=LT
}}
body {{
  state.1 = (s32[], f32[4,4], f32[4,4,4]) parameter(0)
  i.1 = s32[] get-tuple-element(state.1), index=0
  sum = f32[4,4] get-tuple-element(state.1), index=1
  rows = f32[4,4,4] get-tuple-element(state.1), index=2
  begin = s32[] constant(0)
  row = f32[1,4,4] dynamic-slice(rows, i.1, begin, begin), dynamic_slice_sizes={{1,4,4}}
  flat = f32[4,4] reshape(row)
  next = f32[4,4] add(sum, flat)
  one = s32[] constant(1)
  i.2 = s32[] add(i.1, one)
  ROOT state.2 = (s32[], f32[4,4], f32[4,4,4]) tuple(i.2, next, rows)
}}
ENTRY main {{
  x = f32[4,32] parameter(0)
  w = f32[32,4] parameter(1)
  v = f32[4,4] parameter(2)
  xs = f32[4,4,32] parameter(3)
  zero = f32[] constant(0)
  steps = f32[4,4] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  {angles}
  waves = f32[4,4] sine(angles)
  ROOT y = f32[4,4] dot(waves, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}"
    )
}

#[test]
fn a_running_sum_under_a_sine_that_a_policy_rounds_is_named_however_it_is_written() {
    let o3 = Policy::preset("O3").unwrap();
    let although = "although a sine or cosine reads it, and it was computed in f32: rounded, the angle would lose its \
                    absolute precision (%waves)";
    let keep = |name: &str| format!("--keep '{name}' leaves it f32; the policy `default` leaves all such values");
    let of_steps = "the policy `default` leaves all such values f32, and the steps that add them up".to_string();
    for (angles, rounds, help) in [
        (
            "angles = f32[4,4] reduce-window(steps, zero), window={size=1x4 pad=0_0x3_0}, to_apply=add",
            "%steps (dot) and one more value",
            keep("steps"),
        ),
        (
            "triangle = f32[4,4] constant({{1,1,1,1},{0,1,1,1},{0,0,1,1},{0,0,0,1}})
  angles = f32[4,4] dot(steps, triangle), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "%angles (dot)",
            keep("angles"),
        ),
        (
            "places = f32[4,4,4] dot(xs, w), lhs_contracting_dims={2}, rhs_contracting_dims={0}
  start = s32[] constant(0)
  init = (s32[], f32[4,4], f32[4,4,4]) tuple(start, steps, places)
  end = (s32[], f32[4,4], f32[4,4,4]) while(init), condition=condition, body=body
  angles = f32[4,4] get-tuple-element(end), index=1",
            "%end (while)",
            of_steps,
        ),
    ] {
        let source = waves(angles);
        assert_eq!(lowered(&source, &Policy::default()).1.hurts, [], "{angles}");
        let (_, report) = lowered(&source, &o3);
        let [hurt] = &report.hurts[..] else { panic!("one rounding hurts, {angles}: {:?}", report.hurts) };
        assert_eq!(hurt.sentence(), format!("the policy rounds {rounds}, {although}\nhelp: {help}"));
    }
}

/// Squared distances between the rows of a layer.
const DISTANCES: &str = "HloModule distances
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,16] parameter(1)
  v = f32[8,4] parameter(2)
  zero = f32[] constant(0)
  h = f32[8,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  squares = f32[8,16] multiply(h, h)
  norms = f32[8] reduce(squares, zero), dimensions={1}, to_apply=add
  rows = f32[8,8] broadcast(norms), dimensions={0}
  columns = f32[8,8] broadcast(norms), dimensions={1}
  both = f32[8,8] add(rows, columns)
  products = f32[8,8] dot(h, h), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  two = f32[] constant(2)
  twos = f32[8,8] broadcast(two), dimensions={}
  twice = f32[8,8] multiply(products, twos)
  distances = f32[8,8] subtract(both, twice)
  ROOT y = f32[8,4] dot(distances, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}";

/// The f32 sums of the product that gave the rows count, too, though that product is lowered.
#[test]
fn a_cancellation_that_a_policy_rounds_is_named_with_the_sums_that_it_is_made_of() {
    let (module, report) = lowered(DISTANCES, &Policy::default());
    assert_eq!((dtype(&module, "h"), dtype(&module, "products"), report.hurts.len()), (DType::F32, DType::F32, 0));
    let (module, report) = lowered(DISTANCES, &Policy::preset("O3").unwrap());
    assert_eq!((dtype(&module, "h"), dtype(&module, "products")), (DType::BF16, DType::BF16));
    let why = "it is subtracted from what nearly equals it";
    assert!(report.hurts.iter().all(|hurt| hurt.why.starts_with(why)), "{:?}", report.hurts);
    let n_values: usize = report.hurts.iter().map(|hurt| hurt.n).sum();
    assert_eq!((&report.hurts[0].instruction[..], n_values), ("h", 5), "{:?}", report.hurts);
}

/// The key is about choices: what a sine, a cancellation or a recurrence needs stays f32.
#[test]
fn a_policy_that_rounds_choices_leaves_what_other_consumers_need() {
    let policy = Policy { choices: Boundary::Lower, ..Policy::default() };
    let (module, report) = lowered(DISTANCES, &policy);
    assert_eq!((dtype(&module, "products"), dtype(&module, "distances")), (DType::F32, DType::F32));
    assert_eq!(report.hurts, []);
    let listed = Policy::preset("tf_amp").unwrap();
    assert_eq!(dtype(&lowered(DISTANCES, &listed).0, "products"), DType::BF16);
}
