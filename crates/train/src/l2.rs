//! The L2 term of a loss: λ·Σw²/2, as in TensorFlow's `l2_loss`, on the host in f64.
//!
//! No program computes it, because the update adds its gradient. The loss that programs report lacks it, and
//! TensorFlow's total loss is the sum of both.

use bf16scope_hlo::DType;
use bf16scope_hlo::element::floats;
use bf16scope_model::graph::VariableInfo;
use bf16scope_model::optim::Update;

/// The sum of λ·Σw²/2 over trainable variables, whose bytes `bytes_of` returns by number; `None` if no variable has L2.
///
/// # Errors
/// Errors of `bytes_of`.
pub fn l2<B: AsRef<[u8]>, E>(
    update: &Update,
    variables: &[VariableInfo],
    bytes_of: impl Fn(usize) -> Result<(DType, B), E>,
) -> Result<Option<f64>, E> {
    let mut sum = None;
    for (number, variable) in variables.iter().enumerate().filter(|(_, variable)| variable.trainable) {
        let Some(factor) = update.l2(&variable.name) else { continue };
        let (dtype, bytes) = bytes_of(number)?;
        *sum.get_or_insert(0.0) += factor / 2.0 * sum_of_squares(dtype, bytes.as_ref());
    }
    Ok(sum)
}

/// 0 for dtypes that variables do not have.
fn sum_of_squares(dtype: DType, bytes: &[u8]) -> f64 {
    floats(dtype, bytes).map_or(0.0, |numbers| numbers.map(|x| x * x).sum())
}

/// The reported values, followed by the total loss if L2 adds something to the loss.
pub fn with_total(mut values: Vec<(String, f64)>, l2: Option<f64>) -> Vec<(String, f64)> {
    let loss = values.iter().find(|(name, _)| name == "loss").map(|(_, loss)| *loss);
    if let (Some(loss), Some(l2)) = (loss, l2) {
        values.push((TOTAL_LOSS.to_string(), loss + l2));
    }
    values
}

/// The loss plus the L2 term: TensorFlow's `total_loss`.
pub const TOTAL_LOSS: &str = "total_loss";

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn numbers_of_every_dtype_are_squared_in_f64() {
        let f32s: Vec<u8> = [3f32, -4.0].into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(sum_of_squares(DType::F32, &f32s), 25.0);
        let bf16s: Vec<u8> = [3f32, -4.0].into_iter().flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect();
        assert_eq!(sum_of_squares(DType::BF16, &bf16s), 25.0);
        let f16s: Vec<u8> = [3f32, -4.0].into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect();
        assert_eq!(sum_of_squares(DType::F16, &f16s), 25.0);
        // In f32 it would be infinite.
        assert!(sum_of_squares(DType::F32, &f32::MAX.to_le_bytes()).is_finite());
        let values = |l2| with_total(vec![("loss".to_string(), 0.5), ("accuracy".to_string(), 1.0)], l2);
        assert_eq!(values(None).len(), 2);
        assert_eq!(values(Some(0.25))[2], (TOTAL_LOSS.to_string(), 0.75));
    }
}
