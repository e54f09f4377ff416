//! XLA's CPU compiler must fold constants to the program's values, whatever the layout of their elements is: see
//! `pjrt::folding`.

use bf16scope::hlo::proto::encode;
use bf16scope::hlo::{Literal, text, verify};
use bf16scope::pjrt::CompileOptions;

use crate::run::{f32s, run_bytes};

fn results(source: &str) -> Vec<Literal> {
    let module = text::parse(source, "m.txt").unwrap_or_else(|error| panic!("{error}"));
    verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    run_bytes(&encode::to_bytes(&module).unwrap(), &CompileOptions::default(), &[])
}

/// Operands in column-major layout, and a result in row-major layout: XLA's evaluator copied the elements in the
/// operands' order (1, 4, 2, 5, 3, 6).
#[test]
fn constants_that_lie_otherwise_keep_their_elements() {
    let laid = "f32[2,3]{0,1}";
    let op = |op: &str| {
        let source = format!(
            "HloModule m\n\nENTRY m {{\n  c = {laid} constant({{ {{1,2,3}}, {{4,5,6}} }})\n  d = {laid} constant({{ \
             {{10,20,30}}, {{40,50,60}} }})\n  p = pred[2,3]{{0,1}} constant({{ {{1,0,1}}, {{1,1,0}} }})\n  ROOT r = \
             f32[2,3]{{1,0}} {op}\n}}\n"
        );
        f32s(&results(&source)[0])
    };
    assert_eq!(op("negate(c)"), [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);
    assert_eq!(op("add(c, d)"), [11.0, 22.0, 33.0, 44.0, 55.0, 66.0]);
    assert_eq!(op("select(p, c, d)"), [1.0, 20.0, 3.0, 4.0, 5.0, 60.0]);
    assert_eq!(op("clamp(c, d, d)"), [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
}

/// `jnp.take(x, [1, 3], axis=2)` of a constant, as five files of StableHLO's test data have it: XLA moves the transpose that
/// it makes of the gather above the select, and gave 1, 13, 3, 15, ….
#[test]
fn a_gather_of_constants_keeps_its_elements() {
    let source = "HloModule take

and.1 {
  a = pred[] parameter(0)
  b = pred[] parameter(1)
  ROOT and.2 = pred[] and(a, b)
}

ENTRY main {
  x = f32[2,3,4] constant({ { {0,1,2,3}, {4,5,6,7}, {8,9,10,11} }, { {12,13,14,15}, {16,17,18,19}, {20,21,22,23} } })
  j = s64[2,1] constant({ {1}, {3} })
  sizes = s64[3] constant({2, 3, 4})
  ones = s64[3] constant({2, 3, 1})
  axis = s32[1,1] constant({ {2} })
  size = s64[1] gather(sizes, axis), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}
  one = s64[1] gather(ones, axis), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}
  last = s64[1] subtract(size, one)
  lasts = s64[2,1] broadcast(last), dimensions={1}
  le = pred[2,1] compare(j, lasts), direction=LE
  t = pred[] constant(true)
  p = pred[2] reduce(le, t), dimensions={1}, to_apply=and.1
  ps = pred[2,3,2] broadcast(p), dimensions={2}
  g = f32[2,3,2] gather(x, j), offset_dims={0,1}, collapsed_slice_dims={2}, start_index_map={2}, index_vector_dim=1, slice_sizes={2,3,1}
  q = f32[] constant(nan)
  qs = f32[2,3,2] broadcast(q), dimensions={}
  ROOT s = f32[2,3,2] select(ps, g, qs)
}
";
    let odd: Vec<f32> = (0..12u8).map(|i| f32::from(2 * i + 1)).collect();
    assert_eq!(f32s(&results(source)[0]), odd);
}
