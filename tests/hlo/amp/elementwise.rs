//! Elementwise functions of one array: polynomials in Horner's form, as frameworks compute functions that HLO has no
//! op for.

use super::storage::{HEAD, dtypes, parsed};
use bf16scope::hlo::{Module, text};
use bf16scope::passes::amp::{self, LowDType, Policy};

/// A polynomial of this degree of a product's result, on the way to a second product, followed by `head`.
fn step(degree: usize, head: &str) -> String {
    let coefficients = (1..=degree).map(|nth| {
        let before = if nth == 1 { "firsts".to_string() } else { format!("sum{}", nth - 1) };
        format!(
            "  coefficient{nth} = f32[] constant({})
  all{nth} = f32[8,8] broadcast(coefficient{nth}), dimensions={{}}
  term{nth} = f32[8,8] multiply({before}, squares)
  sum{nth} = f32[8,8] add(term{nth}, all{nth})
",
            1.0 / nth as f64
        )
    });
    format!(
        "ENTRY main {{
  x = f32[8,8] parameter(0)
  w = f32[8,8] parameter(1)
  features = f32[8,8] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  first = f32[] constant(0.0078)
  firsts = f32[8,8] broadcast(first), dimensions={{}}
  zero = f32[] constant(0)
  zeros = f32[8,8] broadcast(zero), dimensions={{}}
  scaled = f32[8,8] multiply(features, firsts)
  squares = f32[8,8] multiply(scaled, scaled)
{}  product = f32[8,8] multiply(scaled, sum{degree})
  is_positive = pred[8,8] compare(scaled, zeros), direction=GT
  function = f32[8,8] select(is_positive, product, zeros)
  half = f32[8,8] multiply(function, firsts)
{head}
}}
",
        coefficients.collect::<String>()
    )
}

const PRODUCT: &str = "  ROOT out = f32[8,8] dot(half, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}";
/// Another product reads the function, too.
const GRADIENT: &str = "  gradient = f32[8,8] dot(half, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  by_function = f32[8,8] multiply(gradient, function)
  ROOT out = f32[8,8] dot(by_function, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}";

#[test]
fn what_is_computed_of_one_array_is_f32() {
    let names = ["features", "scaled", "squares", "term1", "sum1", "product", "function", "half"];
    let decided = |degree: usize| dtypes(&step(degree, PRODUCT), &Policy::default(), names);
    for degree in [1, 4, 9] {
        assert_eq!(decided(degree), ["bf16", "f32", "f32", "f32", "f32", "f32", "f32", "f32"], "{degree}");
    }
    let f16 = Policy { dtype: LowDType::F16, ..Policy::default() };
    assert_eq!(dtypes(&step(4, PRODUCT), &f16, ["sum2"]), ["f32"]);

    // A learned number is kept in a register, as a constant is.
    let learned = step(4, PRODUCT).replace("constant(0.5)", "parameter(2)");
    assert_eq!(dtypes(&learned, &Policy::default(), ["sum4"]), ["f32"]);
    // With a learned coefficient for each column, or with another array, it is not a function of one array.
    let by_column = learned
        .replace("coefficient2 = f32[]", "coefficient2 = f32[8]")
        .replace("broadcast(coefficient2), dimensions={}", "broadcast(coefficient2), dimensions={1}");
    assert_eq!(dtypes(&by_column, &Policy::default(), ["sum4"]), ["bf16"]);
    let other = step(4, PRODUCT).replace("multiply(sum2, squares)", "multiply(sum2, x)");
    assert_eq!(dtypes(&other, &Policy::default(), ["sum4"]), ["bf16"]);
}

#[test]
fn what_ends_a_function_is_rounded_once_where_several_read_it() {
    let source = step(4, GRADIENT);
    // The ops after it are decided as in any layer.
    let names = ["product", "function", "half", "by_function"];
    assert_eq!(dtypes(&source, &Policy::default(), names), ["f32", "f32", "bf16", "bf16"]);
    // With each reading a part of it, too.
    let parts = step(
        4,
        "  upper = f32[4,8] slice(half), slice={[0:4:1], [0:8:1]}
  lower = f32[4,8] slice(half), slice={[4:8:1], [0:8:1]}
  by_upper = f32[4,8] dot(upper, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  by_lower = f32[4,8] dot(lower, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT out = (f32[4,8], f32[4,8]) tuple(by_upper, by_lower)",
    );
    let names = ["half", "half.bf16", "upper", "lower"];
    assert_eq!(dtypes(&parts, &Policy::default(), names), ["f32", "bf16", "bf16", "bf16"]);
    // The gradient with respect to the polynomial's argument reads each sum of terms.
    let sum = source.replace("multiply(gradient, function)", "multiply(gradient, sum2)");
    assert_eq!(dtypes(&sum, &Policy::default(), ["sum2", "sum2.bf16", "sum3"]), ["f32", "bf16", "f32"]);
    let sum = source.replace("multiply(gradient, function)", "multiply(gradient, sum4)");
    assert_eq!(dtypes(&sum, &Policy::default(), ["sum3", "sum4", "sum4.bf16"]), ["f32", "f32", "bf16"]);
    let beside = source.replace("multiply(gradient, function)", "multiply(gradient, squares)");
    let names = ["scaled", "squares", "squares.bf16", "term1", "half"];
    assert_eq!(dtypes(&beside, &Policy::default(), names), ["f32", "f32", "bf16", "f32", "f32"]);
}

/// The gradient of a clip tests whether its result equals its operand. If only one were rounded, it never would.
#[test]
fn what_is_compared_with_what_it_is_made_of_is_not_rounded_alone() {
    let source = "ENTRY main {
  x = f32[8,8] parameter(0)
  w = f32[8,8] parameter(1)
  y = f32[8,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ratio = f32[8,8] exponential(y)
  low = f32[] constant(0.8)
  lows = f32[8,8] broadcast(low), dimensions={}
  clipped = f32[8,8] maximum(ratio, lows)
  is_it = pred[8,8] compare(ratio, clipped), direction=EQ
  doubled = f32[8,8] add(clipped, clipped)
  half = f32[8,8] select(is_it, doubled, lows)
  z = f32[8,8] dot(clipped, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  both = f32[8,8] multiply(z, half)
  ROOT out = f32[8,8] dot(both, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
";
    let (lowered, _) = amp::run(&parsed(&format!("{HEAD}{source}")), &Policy::default()).unwrap();
    let entry = lowered.entry();
    let compared = entry.instructions.iter().find(|instr| instr.name == "is_it").unwrap();
    let read: Vec<&str> = compared.operands.iter().map(|&id| &entry.instr(id).name[..]).collect();
    assert_eq!(read, ["ratio", "clipped"]);
}

#[test]
fn a_function_says_so_and_comes_out_of_another_lowering_as_it_went_in() {
    let lower = |module: &Module| amp::run(module, &Policy::default()).unwrap_or_else(|error| panic!("{error}"));
    let twice = |head: &str| {
        let source = format!("{HEAD}{}", step(6, head));
        let module = text::parse(&source, "polynomials.hlo").unwrap_or_else(|error| panic!("{error}"));
        let (once, report) = lower(&module);
        assert!(once == lower(&once).0, "another lowering changes it: {head}");
        report
    };
    twice(&GRADIENT.replace("multiply(gradient, function)", "multiply(gradient, squares)"));
    twice(GRADIENT);
    let report = twice(PRODUCT);
    for name in ["sum3", "function"] {
        let rules: Vec<&str> = report.explain(name).iter().map(|decision| &decision.rule[..]).collect();
        let expected = "it is fused into its consumer and never materialised, so a narrow dtype would save no memory";
        assert_eq!(rules, [expected]);
    }
}

/// A mask of given data by themselves: a product reads it rounded, and what reads it in f32 reads all digits.
#[test]
fn an_end_that_is_made_of_given_data_is_not_rounded_for_its_readers_in_f32() {
    let source = "ENTRY main {
  x = f32[8,8] parameter(0)
  w = f32[8,4] parameter(1)
  zero = f32[] constant(0)
  zeros = f32[8,8] broadcast(zero), dimensions={}
  is_there = pred[8,8] compare(x, zeros), direction=GT
  prices = f32[8,8] select(is_there, x, zeros)
  ROOT out = (f32[8,4], s32[8,1]) tuple(by_prices, whole)
}
";
    let readers = "  by_prices = f32[8,4] dot(prices, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  first = f32[8,1] slice(prices), slice={[0:8], [0:1]}
  whole = s32[8,1] convert(first)
  ROOT";
    let source = source.replace("  ROOT", readers);
    let names = ["prices", "prices.bf16", "first"];
    assert_eq!(dtypes(&source, &Policy::default(), names), ["f32", "bf16", "f32"]);
}

/// Quantization with a learned step, as LSQ writes it: what is rounded to integers is not rounded to bf16 before.
#[test]
fn steps_of_a_quantization_are_counted_in_f32() {
    let source = "ENTRY main {
  x = f32[8,8] parameter(0)
  w = f32[8,8] parameter(1)
  step = f32[] parameter(2)
  features = f32[8,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  steps = f32[8,8] broadcast(step), dimensions={}
  scaled = f32[8,8] divide(features, steps)
  most = f32[] constant(127)
  mosts = f32[8,8] broadcast(most), dimensions={}
  clipped = f32[8,8] minimum(scaled, mosts)
  whole = f32[8,8] round-nearest-even(clipped)
  rest = f32[8,8] subtract(whole, clipped)
  through = f32[8,8] add(clipped, rest)
  quantized = f32[8,8] multiply(through, steps)
  out = f32[8,8] dot(quantized, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  is_below = pred[8,8] compare(scaled, mosts), direction=LT
  nothing = f32[] constant(0)
  nothings = f32[8,8] broadcast(nothing), dimensions={}
  passed = f32[8,8] select(is_below, out, nothings)
  back = f32[8,8] divide(passed, steps)
  ROOT by_x = f32[8,8] dot(back, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}
";
    let names = ["features", "scaled", "clipped", "rest", "through", "quantized"];
    assert_eq!(dtypes(source, &Policy::default(), names), ["bf16", "f32", "f32", "f32", "f32", "f32"]);
}

/// A softmax whose gradient goes through its maximum, too, as one written by hand has it: scores plus a bias are as large
/// as the bias, and the comparison that finds the maximum recomputes them, as the exponential does.
#[test]
fn scores_that_are_compared_with_their_maximum_are_f32_before_the_exponential() {
    let source = "greater {
  c = f32[] parameter(0)
  d = f32[] parameter(1)
  ROOT most = f32[] maximum(c, d)
}

ENTRY main {
  q = f32[8,32] parameter(0)
  k = f32[32,16] parameter(1)
  bias = f32[16] parameter(2)
  v = f32[16,32] parameter(3)
  zero = f32[] constant(0)
  least = f32[] constant(-inf)
  products = f32[8,16] dot(q, k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  biases = f32[8,16] broadcast(bias), dimensions={1}
  scores = f32[8,16] add(products, biases)
  maximum = f32[8] reduce(scores, least), dimensions={1}, to_apply=greater
  maxima = f32[8,16] broadcast(maximum), dimensions={0}
  exponents = f32[8,16] subtract(scores, maxima)
  exponentials = f32[8,16] exponential(exponents)
  total = f32[8] reduce(exponentials, zero), dimensions={1}, to_apply=add
  totals = f32[8,16] broadcast(total), dimensions={0}
  weights = f32[8,16] divide(exponentials, totals)
  averages = f32[8,32] dot(weights, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  back = f32[8,16] dot(averages, v), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  is_most = pred[8,16] compare(scores, maxima), direction=EQ
  zeros = f32[8,16] broadcast(zero), dimensions={}
  of_most = f32[8,16] select(is_most, back, zeros)
  ROOT by_q = f32[8,32] dot(of_most, k), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}
";
    let names = ["products", "scores", "exponents", "exponentials"];
    assert_eq!(dtypes(source, &Policy::default(), names), ["bf16", "f32", "f32", "f32"]);
}
