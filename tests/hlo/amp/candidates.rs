//! What is the same for all candidates of a choice, which is no score: each program adds one product's result to the scores
//! that another gave, and the first is bf16 exactly where the choice cannot depend on it.

use super::choices::dtypes;
use super::storage::{HEAD, parsed};
use bf16scope::hlo::text;
use bf16scope::passes::amp::{self, Boundary, Policy};

/// Computations that choose, and some that look like it.
const CALLED: &str = "least {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  less = pred[] compare(a, b), direction=LT
  is_nan = pred[] compare(a, a), direction=NE
  is = pred[] or(less, is_nan)
  c = f32[] select(is, a, b)
  same = pred[] compare(a, b), direction=EQ
  before = pred[] compare(i, j), direction=LT
  first = pred[] and(same, before)
  is_first = pred[] or(is, first)
  k = s32[] select(is_first, i, j)
  ROOT best = (f32[], s32[]) tuple(c, k)
}

nearest {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  one = f32[] constant(1)
  is = pred[] compare(a, one), direction=LT
  c = f32[] select(is, a, b)
  k = s32[] select(is, i, j)
  ROOT best = (f32[], s32[]) tuple(c, k)
}

before {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  zero = f32[] constant(0)
  nan = f32[] constant(nan)
  a_is_zero = pred[] compare(a, zero), direction=EQ
  a.1 = f32[] select(a_is_zero, zero, a)
  a_is_nan = pred[] compare(a, a), direction=NE
  a.2 = f32[] select(a_is_nan, nan, a.1)
  b_is_zero = pred[] compare(b, zero), direction=EQ
  b.1 = f32[] select(b_is_zero, zero, b)
  ROOT is = pred[] compare(a.2, b.1), direction=LT, type=TOTALORDER
}

shorter {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  a.1 = f32[] abs(a)
  b.1 = f32[] abs(b)
  ROOT is = pred[] compare(a.1, b.1), direction=LT
}

clipped {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  zero = f32[] constant(0)
  is_low = pred[] compare(a, b), direction=LT
  a.1 = f32[] select(is_low, zero, a)
  ROOT is = pred[] compare(a.1, b), direction=LT
}

";

/// The dtypes of two products where `key` is made of `scores`, which the first gave, and of `common`, which the second gave
/// and which `beside` repeats for each score. What `chosen` makes of the key is `which`.
fn products(key: &str, chosen: &str) -> [String; 2] {
    let source = format!(
        "{CALLED}ENTRY main {{
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  u = f32[8] parameter(2)
  scale = f32[32] parameter(3)
  scales = f32[8] parameter(4)
  v = f32[] parameter(5)
  scores = f32[32,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  common = f32[32] dot(x, u), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  beside = f32[32,8] broadcast(common), dimensions={{0}}
  scale.1 = f32[32,8] broadcast(scale), dimensions={{0}}
  scales.1 = f32[32,8] broadcast(scales), dimensions={{1}}
  zero = f32[] constant(0)
  zeros = f32[32,8] broadcast(zero), dimensions={{}}
  least_of_none = f32[] constant(inf)
  none = s32[] constant(0)
  place = s32[32,8] iota(), iota_dimension=1
  sums = f32[32,8] add(scores, beside)
  {key}
  {chosen}
  given = f32[32] convert(which)
  ROOT y = f32[32,32] dot(given, given), lhs_contracting_dims={{}}, rhs_contracting_dims={{}}
}}
"
    );
    dtypes(&source, &Policy::default(), ["scores", "common"])
}

/// The least of `key` along its second dimension.
const ARGMIN: &str = "best = (f32[32], s32[32]) reduce(key, place, least_of_none, none), dimensions={1}, to_apply=least
  which = s32[32] get-tuple-element(best), index=1";

#[test]
fn what_is_the_same_for_all_candidates_is_no_score() {
    for key in [
        "key = f32[32,8] add(beside, scores)",
        "key = f32[32,8] subtract(scores, beside)",
        "key = f32[32,8] negate(sums)",
        // Of either sign, as all candidates are scaled.
        "key = f32[32,8] multiply(scale.1, sums)",
        "key = f32[32,8] divide(sums, scale.1)",
        // What is the same may be computed from.
        "bent = f32[32,8] tanh(beside)
  bent.1 = f32[32,8] multiply(bent, scale.1)
  key = f32[32,8] add(scores, bent.1)",
        "column = f32[32,1] reshape(common)
  twice = f32[32,1] add(column, column)
  row = f32[1,32] transpose(twice), dimensions={1,0}
  flat = f32[32] reshape(row)
  beside.1 = f32[32,8] broadcast(flat), dimensions={0}
  key = f32[32,8] add(scores, beside.1)",
        "above = f32[8,32] broadcast(common), dimensions={1}
  turned = f32[32,8] transpose(above), dimensions={1,0}
  bent = f32[32,8] tanh(turned)
  key = f32[32,8] add(scores, bent)",
        "cube = f32[32,8,1] reshape(beside)
  turned = f32[8,1,32] transpose(cube), dimensions={1,2,0}
  bent = f32[8,1,32] tanh(turned)
  beside.1 = f32[32,8,1] transpose(bent), dimensions={2,0,1}
  beside.2 = f32[32,8] reshape(beside.1)
  key = f32[32,8] add(scores, beside.2)",
        // Scores may be placed elsewhere.
        "split = f32[32,2,4] reshape(sums)
  turned = f32[2,32,4] transpose(split), dimensions={1,0,2}
  back = f32[32,2,4] transpose(turned), dimensions={1,0,2}
  key = f32[32,8] reshape(back)",
        "half = f32[16,8] slice(sums), slice={[0:16], [0:8]}
  repeated = f32[16,2,8] broadcast(half), dimensions={0,2}
  key = f32[32,8] reshape(repeated)",
        "row = f32[1,8] slice(sums), slice={[0:1], [0:8]}
  row.1 = f32[8] reshape(row)
  key = f32[32,8] broadcast(row.1), dimensions={1}",
    ] {
        assert_eq!(products(key, ARGMIN), ["f32", "bf16"], "{key}");
    }
    for key in [
        // Its rounding may turn its sign.
        "key = f32[32,8] multiply(scores, beside)",
        "key = f32[32,8] divide(scores, beside)",
        // Each candidate is scaled by itself.
        "key = f32[32,8] multiply(sums, scales.1)",
        "key = f32[32,8] divide(sums, scales.1)",
        "key = f32[32,8] divide(scale.1, sums)",
        // What is added moves some candidates past a limit.
        "key = f32[32,8] maximum(sums, zeros)",
        "key = f32[32,8] exponential(sums)",
        "is = pred[32,8] compare(place, place), direction=EQ
  key = f32[32,8] select(is, sums, zeros)",
        "bent = f32[32,8] tanh(scores)
  mixed = f32[32,8] multiply(bent, beside)
  key = f32[32,8] add(mixed, scores)",
        // Candidates of several rows come together.
        "flat = f32[256] reshape(sums)
  turned = f32[8,32] reshape(flat)
  key = f32[32,8] transpose(turned), dimensions={1,0}",
    ] {
        assert_eq!(products(key, ARGMIN), ["f32", "f32"], "{key}");
    }
}

#[test]
fn candidates_lie_where_a_choice_is_made() {
    let whichs = "first = s32[32,1] slice(places), slice={[0:32], [0:1]}
  which = s32[32] reshape(first)";
    let sort = |dimension: i64, comparator: &str| {
        format!(
            "sorted = (f32[32,8], s32[32,8]) sort(sums, place), dimensions={{{dimension}}}, to_apply={comparator}
  places = s32[32,8] get-tuple-element(sorted), index=1
  {whichs}"
        )
    };
    let topk = "best = (f32[32,2], s32[32,2]) topk(sums), k=2, largest=true
  places = s32[32,2] get-tuple-element(best), index=1";
    let reduce = |dimension: i64, reducer: &str| {
        format!(
            "turned = f32[8,32] transpose(sums), dimensions={{1,0}}
  number = s32[8,32] iota(), iota_dimension=0
  best = (f32[{n}], s32[{n}]) reduce(turned, number, least_of_none, none), dimensions={{{dimension}}}, to_apply={reducer}
  which.1 = s32[{n}] get-tuple-element(best), index=1
  which.2 = s32[{n},{repeats}] broadcast(which.1), dimensions={{0}}
  which = s32[32] reshape(which.2)",
            n = if dimension == 0 { 32 } else { 8 },
            repeats = if dimension == 0 { 1 } else { 4 },
        )
    };
    let both = |one: &str, other: &str| {
        let other = other.replace("WHICH", whichs);
        let other = ["places", "first", "which", "sorted"]
            .iter()
            .fold(other, |text, name| text.replace(name, &format!("{name}.other")));
        format!("{}\n  {other}\n  which = s32[32] add(which.one, which.other)", one.replace("which =", "which.one ="))
    };
    for (chosen, common) in [
        (sort(1, "before"), "bf16"),
        (sort(0, "before"), "f32"),
        (sort(1, "shorter"), "f32"),
        (sort(1, "clipped"), "f32"),
        (format!("{topk}\n  {whichs}"), "bf16"),
        (reduce(0, "least"), "bf16"),
        (reduce(1, "least"), "f32"),
        (reduce(0, "nearest"), "f32"),
        // Two choices by the same scores.
        (
            both(
                &sort(1, "before"),
                "exact = s32[32,8] convert(sums)\n  places = s32[32,8] add(exact, place)\n  WHICH",
            ),
            "f32",
        ),
        (both(&reduce(0, "least"), &sort(0, "before")), "f32"),
        // And one by what the other found.
        (
            "best = (f32[32,2], s32[32,2]) topk(sums), k=2, largest=true
  greatest = f32[32,2] get-tuple-element(best), index=0
  greatest.1 = f32[32,1] slice(greatest), slice={[0:32], [0:1]}
  greatest.2 = f32[32] reshape(greatest.1)
  number = s32[32] iota(), iota_dimension=0
  ends = (f32[32], s32[32]) sort(greatest.2, number), dimensions={0}, to_apply=before
  which = s32[32] get-tuple-element(ends), index=1"
                .to_string(),
            "f32",
        ),
    ] {
        assert_eq!(products("", &chosen), ["f32", common], "{chosen}");
    }
}

/// The product that decides reads f32, and an op that only it reads is computed for it in f32.
#[test]
fn what_only_a_deciding_product_reads_is_not_rounded() {
    let source = |reader: &str| {
        format!(
            "{CALLED}ENTRY main {{
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  v = f32[8,8] parameter(2)
  h = f32[32,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  bent = f32[32,8] tanh(h)
  scores = f32[32,8] dot(bent, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  least_of_none = f32[] constant(inf)
  none = s32[] constant(0)
  place = s32[32,8] iota(), iota_dimension=1
  best = (f32[32], s32[32]) reduce(scores, place, least_of_none, none), dimensions={{1}}, to_apply=least
  which = s32[32] get-tuple-element(best), index=1
  given = f32[32] convert(which)
  {reader}
}}
"
        )
    };
    let alone = source("ROOT y = f32[8] dot(given, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}");
    let names = ["h", "bent", "scores"];
    assert_eq!(dtypes(&alone, &Policy::default(), names), ["bf16", "f32", "f32"]);
    let lower = Policy { choices: Boundary::Lower, ..Policy::default() };
    assert_eq!(dtypes(&alone, &lower, names), ["bf16", "bf16", "bf16"]);
    // It is stored for another product.
    let shared = source("ROOT y = f32[8] dot(given, bent), lhs_contracting_dims={0}, rhs_contracting_dims={0}");
    assert_eq!(dtypes(&shared, &Policy::default(), names), ["bf16", "bf16", "f32"]);
}

/// A vector whose nearest code is searched and that the loss reads, as a residual sum before a quantizer is: it is rounded
/// where it is stored, and both read the same numbers. Not so the result of a norm.
#[test]
fn what_a_deciding_product_and_the_loss_read_is_stored_narrow() {
    let source = |z: &str| {
        format!(
            "{CALLED}ENTRY main {{
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  codes = f32[8,8] parameter(2)
  y = f32[32,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  sum = f32[32,8] add(x, y)
  zero = f32[] constant(0)
  sums = f32[32] reduce(x, zero), dimensions={{1}}, to_apply=add
  scale = f32[32] rsqrt(sums)
  scales = f32[32,8] broadcast(scale), dimensions={{0}}
  z = f32[32,8] {z}
  scores = f32[32,8] dot(z, codes), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  least_of_none = f32[] constant(inf)
  none = s32[] constant(0)
  place = s32[32,8] iota(), iota_dimension=1
  best = (f32[32], s32[32]) reduce(scores, place, least_of_none, none), dimensions={{1}}, to_apply=least
  which = s32[32] get-tuple-element(best), index=1
  given = f32[32] convert(which)
  squares = f32[32,8] multiply(z, z)
  loss = f32[] reduce(squares, zero), dimensions={{0,1}}, to_apply=add
  of_x = f32[8] dot(given, x), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  ROOT out = (f32[], f32[8]) tuple(loss, of_x)
}}
"
        )
    };
    let residual = source("add(sum, x)");
    let names = ["z", "z.bf16", "z.f32", "scores", "squares"];
    assert_eq!(dtypes(&residual, &Policy::default(), names), ["f32", "bf16", "f32", "f32", "f32"]);
    let norm = source("multiply(sum, scales)");
    let rounds_z = |source: &str| {
        let (lowered, _) = amp::run(&parsed(&format!("{HEAD}{source}")), &Policy::default()).unwrap();
        text::print(&lowered, &Default::default()).contains("z.bf16")
    };
    assert_eq!([rounds_z(&residual), rounds_z(&norm)], [true, false]);
}
