//! Sums of concatenations, which are written part by part, and of arrays that are copied to other lanes.

use super::storage::{HEAD, dtypes};
use bf16scope::hlo::text;
use bf16scope::passes::amp::{self, Boundary, Policy};

/// The gradient of one product's three thirds, and of its bias. The three are concatenated separately for each op that
/// reads them, so each is summed where it is computed.
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
    // With a product that reads the transposed array, as in a layer that was written for one example.
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
    // Over the rows of each part alone: the sums are concatenated along the axis that was the third.
    assert_eq!(shapes(&source(2, "4,8,3,16", "4,48", "1"), Boundary::Lower), [vec![4, 2, 16], vec![4, 1, 16]]);
    // A sum of all parts at once.
    assert_eq!(shapes(&source(2, "4,8,3,16", "4,8", "2"), Boundary::Lower), [vec![4, 8]]);
    // The gradient of an array that was sliced is a sum of zero-padded parts: along the last axis, along another, and
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
    // Zeros along the summed axis.
    let rows =
        padded.replace("f32[48] reduce(flat, zero), dimensions={0,1}", "f32[4,8] reduce(flat, zero), dimensions={2}");
    assert_eq!(shapes(&rows.replace("f32[48]) tuple", "f32[4,8]) tuple"), Boundary::Lower), [vec![4, 8]]);
}
