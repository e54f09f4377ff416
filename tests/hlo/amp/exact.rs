//! Products that ask for more precision than one pass, with weights that depend on no parameter.

use super::storage::{HEAD, dtypes};
use bf16scope::hlo::text;
use bf16scope::passes::amp::{self, LowDType, Policy};

/// A product's result is interpolated from `from` to `to`, as `jax.image.resize` writes it, and read by a second
/// product, followed by `head`.
fn step(from: i64, to: i64, precision: &str, head: &str) -> String {
    let scale = from as f64 / to as f64;
    format!(
        "ENTRY main {{
  x = f32[{from},8] parameter(0)
  w = f32[8,8] parameter(1)
  features = f32[{from},8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  zero = f32[] constant(0)
  half = f32[] constant(0.5)
  one = f32[] constant(1)
  scale = f32[] constant({scale:?})
  halves = f32[{to}] broadcast(half), dimensions={{}}
  scales = f32[{to}] broadcast(scale), dimensions={{}}
  counted = f32[{to}] iota(), iota_dimension=0
  middles = f32[{to}] add(counted, halves)
  scaled = f32[{to}] multiply(middles, scales)
  places = f32[{to}] subtract(scaled, halves)
  wanted = f32[{from},{to}] broadcast(places), dimensions={{1}}
  inputs = s32[{from}] iota(), iota_dimension=0
  floats = f32[{from}] convert(inputs)
  given = f32[{from},{to}] broadcast(floats), dimensions={{0}}
  apart = f32[{from},{to}] subtract(wanted, given)
  distances = f32[{from},{to}] abs(apart)
  ones = f32[{from},{to}] broadcast(one), dimensions={{}}
  zeros = f32[{from},{to}] broadcast(zero), dimensions={{}}
  nearness = f32[{from},{to}] subtract(ones, distances)
  triangles = f32[{from},{to}] maximum(nearness, zeros)
  sums = f32[{to}] reduce(triangles, zero), dimensions={{0}}, to_apply=add
  rows = f32[1,{to}] reshape(sums)
  columns = f32[{to},1] transpose(rows), dimensions={{1,0}}
  flat = f32[{to}] reshape(columns)
  all_sums = f32[{from},{to}] broadcast(flat), dimensions={{1}}
  shares = f32[{from},{to}] divide(triangles, all_sums)
  is_some = pred[{from},{to}] compare(all_sums, zeros), direction=GT
  weights = f32[{from},{to}] select(is_some, shares, zeros)
  resized = f32[{to},8] dot(weights, features), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}{precision}
{head}
}}
"
    )
}

const HIGHEST: &str = ", operand_precision={highest,highest}";
const PRODUCT: &str = "  ROOT out = f32[8,8] dot(resized, resized), lhs_contracting_dims={0}, rhs_contracting_dims={0}";

#[test]
fn an_interpolation_by_a_power_of_two_is_narrow_between_products_whatever_it_asks_for() {
    let resized_dtype = |source: &str, policy: &Policy| dtypes(source, policy, ["resized"])[0].clone();
    let default = Policy::default();
    for (from, to) in [(4, 8), (3, 12), (6, 48), (8, 8)] {
        assert_eq!(resized_dtype(&step(from, to, HIGHEST, PRODUCT), &default), "bf16", "{from} to {to}");
    }
    // Thirds and fifths would be rounded, and so would the weights of an odd size's halves.
    for (from, to) in [(4, 12), (2, 10), (3, 5)] {
        assert_eq!(resized_dtype(&step(from, to, HIGHEST, PRODUCT), &default), "f32", "{from} to {to}");
        assert_eq!(resized_dtype(&step(from, to, "", PRODUCT), &default), "bf16", "{from} to {to}");
    }
    // Twelve bits of a fraction: f16 has eleven, bf16 eight.
    let f16 = Policy { dtype: LowDType::F16, ..Policy::default() };
    assert_eq!(resized_dtype(&step(2, 1 << 10, HIGHEST, PRODUCT), &f16), "f16");
    assert_eq!(resized_dtype(&step(2, 1 << 10, HIGHEST, PRODUCT), &default), "f32");

    // A sum by ones is exact but not an average; nor is a difference.
    let ones = step(4, 8, HIGHEST, PRODUCT).replace("select(is_some, shares, zeros)", "select(is_some, ones, zeros)");
    assert_eq!(resized_dtype(&ones, &default), "f32");
    let signs = step(2, 2, HIGHEST, PRODUCT).replace("select(is_some, shares, zeros)", "constant({{2,2},{-1,-1}})");
    assert_eq!(resized_dtype(&signs, &default), "f32");

    let algorithm = ", algorithm=dot_bf16_bf16_f32_x3";
    assert_eq!(resized_dtype(&step(4, 8, algorithm, PRODUCT), &default), "f32");
    let keeps_resized = Policy { keep: vec!["resized".to_string()], ..Policy::default() };
    assert_eq!(resized_dtype(&step(4, 8, HIGHEST, PRODUCT), &keeps_resized), "f32");
}

#[test]
fn an_interpolation_of_what_a_loss_reads_is_f32_where_it_asks_for_it() {
    let resized_dtype = |head: &str| dtypes(&step(4, 8, HIGHEST, head), &Policy::default(), ["resized"])[0].clone();
    let squares = "  squares = f32[8,8] multiply(resized, resized)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add";
    let product = PRODUCT.replace("ROOT ", "");
    assert_eq!(resized_dtype(&format!("{squares}\n{product}\n  ROOT all = (f32[], f32[8,8]) tuple(loss, out)")), "f32");
    // The result of a branch may be a loss outside.
    let branch = |head: &str| {
        let taken = "taken = (f32[8,8], f32[8,8]) parameter(0)
  x = f32[8,8] get-tuple-element(taken), index=0";
        let source = step(8, 8, HIGHEST, head)
            .replace("ENTRY main {", "branch {")
            .replace("x = f32[8,8] parameter(0)", taken)
            .replace("w = f32[8,8] parameter(1)", "w = f32[8,8] get-tuple-element(taken), index=1");
        let main = "
ENTRY main {
  is = pred[] parameter(0)
  x = f32[8,8] parameter(1)
  w = f32[8,8] parameter(2)
  given = (f32[8,8], f32[8,8]) tuple(x, w)
  ROOT out = f32[8,8] conditional(is, given, given), true_computation=branch, false_computation=branch
}
";
        dtypes(&format!("{source}{main}"), &Policy::default(), ["resized"])[0].clone()
    };
    assert_eq!(branch(PRODUCT), "bf16");
    assert_eq!(branch(&format!("{product}\n  ROOT both = f32[8,8] add(out, resized)")), "f32");
    // A choice by it is also a choice by the product before it.
    let decides = "  chosen = s32[8,8] convert(resized)
  numbers = f32[8,8] convert(chosen)
  ROOT out = f32[8,8] dot(numbers, resized), lhs_contracting_dims={0}, rhs_contracting_dims={0}";
    let both = dtypes(&step(4, 8, HIGHEST, decides), &Policy::default(), ["features", "resized"]);
    assert_eq!(both, ["f32", "f32"]);
    // Without a product behind it, it is not on a way between products.
    assert_eq!(resized_dtype("  ROOT out = f32[8,8] negate(resized)"), "f32");
    // The value of a parameter is not known.
    let parameter = step(4, 8, HIGHEST, PRODUCT)
        .replace("weights = f32[4,8] select(is_some, shares, zeros)", "weights = f32[4,8] parameter(2)");
    assert_eq!(dtypes(&parameter, &Policy::default(), ["resized"]), ["f32"]);
}

#[test]
fn a_cast_module_says_why_and_comes_out_of_another_lowering_as_it_went_in() {
    let source = format!("{HEAD}{}", step(4, 8, HIGHEST, PRODUCT));
    let module = text::parse(&source, "exact.hlo").unwrap_or_else(|error| panic!("{error}"));
    let (once, report) = amp::run(&module, &Policy::default()).unwrap_or_else(|error| panic!("{error}"));
    let rules: Vec<&str> = report.explain("resized").iter().map(|decision| &decision.rule[..]).collect();
    assert_eq!(rules, ["its op is always lowered, and rounds none of an operand that comes of no parameter"]);
    let (twice, _) = amp::run(&once, &Policy::default()).unwrap_or_else(|error| panic!("{error}"));
    assert!(once == twice, "another lowering changes it");
}

/// Constant integers past 256 are not all bf16; they are followed through the ops that PRECISION.md calls exact on integers.
#[test]
fn integers_past_256_are_exact_in_a_product_behind_ops_that_keep_them() {
    let rule = |n: i64, op: &str| {
        let source = format!(
            "HloModule integers\n\nENTRY main {{\n  x = f32[8,{n}] parameter(0)\n  zero = f32[] constant(0)\n  \
             zeros = f32[{n},4] broadcast(zero), dimensions={{}}\n  places = f32[{n},4] iota(), iota_dimension=0\n  \
             counted = f32[{n},4] {op}\n  \
             ROOT y = f32[8,4] dot(x, counted), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n}}\n"
        );
        let module = text::parse(&source, "integers").unwrap_or_else(|error| panic!("{op}: {error}"));
        let (_, report) = amp::run(&module, &Policy::default()).unwrap();
        report.explain("y")[0].rule.clone()
    };
    for op in ["negate(places)", "maximum(places, zeros)", "reverse(places), dimensions={0}", "add(places, places)"] {
        assert!(rule(512, op).starts_with("it multiplies positions, counts"), "{op}: {}", rule(512, op));
        assert_eq!(rule(200, op), "its op is always lowered", "{op}");
    }
    // A square root of an integer is not an integer.
    assert_eq!(rule(512, "sqrt(places)"), "its op is always lowered");
}
