//! Literals of every dtype as numbers.

use super::*;
use bf16scope_hlo::Element;
use half::{bf16, f16};

#[test]
fn literals_of_every_dtype_are_numbers() {
    fn numbers<T: Element>(elements: &[T]) -> Option<Vec<Number>> {
        literal(&Literal::from_elements([elements.len() as i64], elements))
    }
    let whole = |values: &[i64]| Some(values.iter().map(|value| Number::Whole(*value)).collect::<Vec<_>>());
    let real = |values: &[f64]| Some(values.iter().map(|value| Number::Real(*value)).collect::<Vec<_>>());
    assert_eq!(numbers(&[true, false]), whole(&[1, 0]));
    assert_eq!(numbers(&[-128i8, 127]), whole(&[-128, 127]));
    assert_eq!(numbers(&[i16::MIN, 7]), whole(&[-32_768, 7]));
    assert_eq!(numbers(&[i32::MIN, 7]), whole(&[-2_147_483_648, 7]));
    assert_eq!(numbers(&[i64::MIN, 7]), whole(&[i64::MIN, 7]));
    assert_eq!(numbers(&[u8::MAX]), whole(&[255]));
    assert_eq!(numbers(&[u16::MAX]), whole(&[65_535]));
    assert_eq!(numbers(&[u32::MAX]), whole(&[4_294_967_295]));
    assert_eq!(numbers(&[7u64]), whole(&[7]));
    assert_eq!(numbers(&[u64::MAX]), None, "no i64");
    assert_eq!(numbers(&[0.1f32]), real(&[f64::from(0.1f32)]));
    assert_eq!(numbers(&[0.1f64]), real(&[0.1]));
    assert_eq!(numbers(&[f16::from_f32(0.5)]), real(&[0.5]));
    assert_eq!(numbers(&[bf16::from_f32(-3.0)]), real(&[-3.0]));
    assert_eq!(literal(&Literal::Token), None);
}
