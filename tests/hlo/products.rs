//! Products of bf16 arrays with f32 results: XLA's CPU compiler leaves some that its runtime does not implement: see
//! `pjrt::cpu`.

use bf16scope::hlo::proto::encode;
use bf16scope::hlo::{Literal, text};
use bf16scope::pjrt::CompileOptions;
use half::bf16;

use crate::run::{f32s, run_bytes};

/// Small integers, whose products and sums are all exact.
fn integers(n: usize, step: usize) -> Vec<f32> {
    (0..n).map(|at| ((at * step + at / 11) % 7) as f32 - 3.0).collect()
}

fn product(lines: &str, dtype: &str) -> Vec<f32> {
    let source = format!(
        "HloModule m\n\nENTRY m {{\n  x = D[64,64,64] parameter(0)\n  y = D[64,64,64] parameter(1)\n{lines}\n}}\n"
    );
    let module = text::parse(&source.replace("D[", &format!("{dtype}[")), "m.txt").unwrap();
    let arguments = [integers(64 * 64 * 64, 5), integers(64 * 64 * 64, 3)].map(|numbers| match dtype {
        "bf16" => Literal::from_elements(
            [64, 64, 64],
            &numbers.iter().map(|&number| bf16::from_f32(number)).collect::<Vec<_>>(),
        ),
        _ => Literal::from_elements([64, 64, 64], &numbers),
    });
    f32s(&run_bytes(&encode::to_bytes(&module).unwrap(), &CompileOptions::default(), &arguments)[0])
}

/// "Unsupported element type for DotThunk::Execute: BF16 x BF16 = F32" of all but the last, once.
#[test]
fn products_whose_operands_lie_transposed_run() {
    for lines in [
        // As in the gradient of an attention's values.
        "  ROOT d = f32[64,64,64] dot(x, y), lhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_batch_dims={1}, rhs_contracting_dims={0}",
        "  t = D[64,64,64] transpose(y), dimensions={1,0,2}\n  ROOT d = f32[64,64,64] dot(x, t), lhs_batch_dims={0}, \
         lhs_contracting_dims={1}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
        "  t = D[64,64,64] transpose(x), dimensions={0,2,1}\n  ROOT d = f32[64,64,64] dot(t, y), lhs_batch_dims={0}, \
         lhs_contracting_dims={2}, rhs_batch_dims={1}, rhs_contracting_dims={0}",
        "  ROOT d = f32[64,64,64] dot(x, y), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
    ] {
        assert_eq!(product(lines, "bf16"), product(lines, "f32"), "{lines}");
    }
}
