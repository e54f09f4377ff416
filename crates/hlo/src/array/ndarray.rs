//! Conversions between arrays and those of the crate `ndarray`, with the feature of that name.

use super::{Array, ArrayError, elements};
use crate::{ArrayShape, Element};
use ndarray::{ArrayD, ArrayView, Dimension, IxDyn};

/// A copy, row-major whatever the view's strides: `Array::from(x.view())`.
impl<T: Element, D: Dimension> From<ArrayView<'_, T, D>> for Array {
    fn from(view: ArrayView<'_, T, D>) -> Array {
        let dims: Vec<i64> = view.shape().iter().map(|&dim| dim as i64).collect();
        let mut bytes = Vec::with_capacity(view.len() * T::DTYPE.n_bytes());
        view.iter().for_each(|element| element.write(&mut bytes));
        Array { shape: ArrayShape::new(T::DTYPE, dims), bytes }
    }
}

impl Array {
    /// The elements as an array of the crate `ndarray`.
    ///
    /// ```
    /// use bf16scope_hlo::Array;
    /// use ndarray::array;
    ///
    /// let x = array![[1.0f32, 2.0], [3.0, 4.0]];
    /// let transposed = Array::from(x.t());
    /// assert_eq!(transposed.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// assert_eq!(transposed.to_ndarray::<f32>()?, x.t().into_dyn());
    /// # Ok::<(), bf16scope_hlo::ArrayError>(())
    /// ```
    ///
    /// # Errors
    /// The array has elements of another type, as for [`Array::to_vec`]; or the bytes do not fit the shape.
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>, ArrayError> {
        let no_array = || ArrayError::Dims { dims: self.dims().to_vec() };
        let dims = self.dims().iter().map(|&dim| usize::try_from(dim).map_err(|_| no_array()));
        let dims = dims.collect::<Result<Vec<usize>, ArrayError>>()?;
        let elements: Vec<T> = elements(&self.shape, &self.bytes)?;
        let n_elements = elements.len();
        ArrayD::from_shape_vec(IxDyn(&dims), elements).map_err(|_| ArrayError::Elements {
            n_elements,
            dtype: self.dtype(),
            dims: self.dims().to_vec(),
            expected: "as many as they hold".to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use half::bf16;

    #[test]
    fn views_are_read_in_logical_order() {
        let x = ndarray::Array::from_shape_fn((2, 3, 4), |(i, j, k)| bf16::from_f32((12 * i + 4 * j + k) as f32));
        let mut part = x.view();
        // (The macro `s!` allows itself `unsafe`.)
        part.slice_axis_inplace(ndarray::Axis(1), ndarray::Slice::new(0, None, -1));
        part.slice_axis_inplace(ndarray::Axis(2), ndarray::Slice::from(1..3));
        let array = Array::from(part);
        assert_eq!((array.dtype(), array.dims()), (DType::BF16, &[2, 3, 2][..]));
        assert_eq!(array.to_vec::<f32>().unwrap()[..6], [9.0, 10.0, 5.0, 6.0, 1.0, 2.0]);
        assert_eq!(array.to_ndarray::<bf16>().unwrap(), part.into_dyn());
        assert!(array.to_ndarray::<i32>().is_err());
        let short = Array { bytes: vec![0; 4], ..array };
        let error = short.to_ndarray::<bf16>().unwrap_err().to_string();
        assert_eq!(error, "2 elements of bf16 do not fill dims [2, 3, 2]; expected as many as they hold");
    }
}
