//! Constants of every dtype.

use super::*;

#[test]
fn constants_are_read_in_every_dtype() {
    assert_eq!(numbers(&Literal::scalar(0.1f32)), Some(vec![0.1]), "the decimal that was written");
    assert_eq!(numbers(&Literal::from_elements([2], &[0.25f64, -1.0])), Some(vec![0.25, -1.0]));
    assert_eq!(numbers(&Literal::scalar(half::bf16::from_f32(-3.0))), Some(vec![-3.0]));
    assert_eq!(numbers(&Literal::scalar(half::f16::from_f32(0.5))), Some(vec![0.5]));
    assert_eq!(numbers(&Literal::from_elements([2], &[true, false])), Some(vec![1.0, 0.0]));
    assert_eq!(numbers(&Literal::scalar(200u8)), Some(vec![200.0]));
    assert_eq!(numbers(&Literal::from_elements([MAX_ELEMENTS as i64 + 1], &[0i64; MAX_ELEMENTS + 1])), None);
}
