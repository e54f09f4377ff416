//! An array on the host: an operand or result of a program, as a caller sees it.
//!
//! Elements are Rust values: numbers, bools, and `bf16` and `f16` of the crate `half`. They are stored as in a
//! [`Literal`]: little-endian, row-major. With the feature `ndarray`, views of that crate convert to arrays and back.

#[cfg(any(feature = "ndarray", test))]
mod ndarray;

use std::fmt;

use super::element::{ElementVisitor, f32s};
use super::{ArrayShape, DType, Element, Literal, Shape};

/// A dense array on the host.
///
/// ```
/// use bf16scope_hlo::{Array, DType};
///
/// let x = Array::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// assert_eq!((x.dtype(), x.dims()), (DType::F32, &[2, 3][..]));
/// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// assert!(x.to_vec::<i32>().is_err());
///
/// let rows = Array::from_slice(&[1, 2, 3, 4], [-1, 2])?; // as many rows as there are
/// assert_eq!(rows.dims(), [2, 2]);
/// let labels = Array::from(vec![0, 1, 1]); // s32[3]
/// # Ok::<(), bf16scope_hlo::ArrayError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Array {
    /// Dtype and dims.
    pub shape: ArrayShape,
    /// Row-major, little-endian.
    pub bytes: Vec<u8>,
}

/// Shape and first elements: `f32[2,3] [1.0, 2.0, 3.0, 4.0, …]`.
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_SHOWN: usize = 8;
        struct Shown<'a>(&'a [u8]);
        impl ElementVisitor for Shown<'_> {
            type Output = Vec<String>;

            fn visit<T: Element>(self) -> Vec<String> {
                let elements = self.0.chunks_exact(T::DTYPE.n_bytes()).map(|bytes| format!("{:?}", T::read(bytes)));
                elements.take(MAX_SHOWN + 1).collect()
            }
        }
        write!(f, "{}", Shape::Array(self.shape.clone()))?;
        // Elements of a few bits, complex numbers and f8 have no type of Rust.
        let Some(mut elements) = self.shape.dtype.visit(Shown(&self.bytes)) else {
            return write!(f, " of {} bytes", self.bytes.len());
        };
        if elements.len() > MAX_SHOWN {
            elements[MAX_SHOWN] = "…".to_string();
        }
        write!(f, " [{}]", elements.join(", "))
    }
}

/// Why elements and a shape do not make an array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// The number of elements is not that of the dims.
    #[error("{n_elements} elements of {dtype} do not fill dims {dims:?}; expected {expected}")]
    Elements {
        /// The number of elements.
        n_elements: usize,
        /// Their type.
        dtype: DType,
        /// The dims.
        dims: Vec<i64>,
        /// The number of elements that the dims hold, in words.
        expected: String,
    },
    /// The dims are not those of an array.
    #[error(
        "dims {dims:?} make no array; expected sizes from 0 up, at most one -1, and a product that memory can hold"
    )]
    Dims {
        /// The dims.
        dims: Vec<i64>,
    },
    /// Elements of another type than the array's were requested.
    #[error("the array is {shape}, and its elements are asked for as {wanted}\nhelp: {help}")]
    DType {
        /// The array's dtype.
        shape: String,
        /// The requested type.
        wanted: DType,
        /// The type to request.
        help: String,
    },
}

impl Array {
    /// An array of these elements, row-major. One of the dims may be -1: it is inferred from the number of elements.
    ///
    /// # Errors
    /// The number of elements is not that of the dims.
    pub fn from_vec<T: Element>(elements: Vec<T>, dims: impl Into<Vec<i64>>) -> Result<Array, ArrayError> {
        Array::from_slice(&elements, dims)
    }

    /// [`Array::from_vec`] of a copy.
    ///
    /// # Errors
    /// As [`Array::from_vec`].
    pub fn from_slice<T: Element>(elements: &[T], dims: impl Into<Vec<i64>>) -> Result<Array, ArrayError> {
        let shape = ArrayShape::new(T::DTYPE, resolved(elements.len(), T::DTYPE, dims.into())?);
        Ok(Array { shape, bytes: to_bytes(elements.iter()) })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.shape.dtype
    }

    /// Dimensions.
    pub fn dims(&self) -> &[i64] {
        &self.shape.dims
    }

    /// The elements, row-major. An array of bf16 or f16 also converts to f32, exactly.
    ///
    /// # Errors
    /// The array has elements of another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, ArrayError> {
        elements(&self.shape, &self.bytes)
    }
}

/// The little-endian bytes of an array's elements, as the type `T` of [`Array::to_vec`].
///
/// # Errors
/// The array has elements of another type.
pub fn elements<T: Element>(shape: &ArrayShape, bytes: &[u8]) -> Result<Vec<T>, ArrayError> {
    match (shape.dtype, T::DTYPE) {
        (dtype, wanted) if dtype == wanted => Ok(bytes.chunks_exact(dtype.n_bytes()).map(T::read).collect()),
        (dtype @ (DType::BF16 | DType::F16), DType::F32) => {
            // `T` is f32: the bytes of one are read as the other.
            let values = f32s(dtype, bytes).into_iter().flatten();
            Ok(values.map(|value| T::read(&value.to_le_bytes())).collect())
        }
        (dtype, wanted) => {
            let help = match rust_name(dtype) {
                Some(name) => format!("read them as `to_vec::<{name}>()`"),
                None => "convert them in the program, before they come to the host".to_string(),
            };
            Err(ArrayError::DType { shape: Shape::Array(shape.clone()).to_string(), wanted, help })
        }
    }
}

/// The name of the Rust type for a dtype.
fn rust_name(dtype: DType) -> Option<&'static str> {
    struct Name;
    impl ElementVisitor for Name {
        type Output = &'static str;

        fn visit<T: Element>(self) -> &'static str {
            // The types of `half` without their path.
            std::any::type_name::<T>().rsplit("::").next().unwrap_or_default()
        }
    }
    dtype.visit(Name)
}

/// The dims with -1 replaced by the inferred size.
fn resolved(n_elements: usize, dtype: DType, dims: Vec<i64>) -> Result<Vec<i64>, ArrayError> {
    let wrong =
        |dims: &[i64], expected: String| Err(ArrayError::Elements { n_elements, dtype, dims: dims.to_vec(), expected });
    let open: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis] == -1).collect();
    let known = dims.iter().filter(|&&dim| dim != -1);
    let known = known.into_iter().try_fold(1usize, |n, &dim| n.checked_mul(usize::try_from(dim).ok()?));
    match (known, open.as_slice()) {
        (None, _) | (_, [_, _, ..]) => Err(ArrayError::Dims { dims }),
        (Some(known), []) if known == n_elements => Ok(dims),
        (Some(known), []) => wrong(&dims, known.to_string()),
        (Some(known), &[axis]) => match n_elements.checked_rem(known) {
            Some(0) => {
                let mut dims = dims;
                dims[axis] = (n_elements / known) as i64;
                Ok(dims)
            }
            _ => wrong(&dims, format!("a multiple of {known}")),
        },
    }
}

fn to_bytes<'a, T: Element + 'a>(elements: impl ExactSizeIterator<Item = &'a T>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements.len() * T::DTYPE.n_bytes());
    elements.for_each(|element| element.write(&mut bytes));
    bytes
}

/// One dimension.
impl<T: Element> From<Vec<T>> for Array {
    fn from(elements: Vec<T>) -> Array {
        let shape = ArrayShape::new(T::DTYPE, [elements.len() as i64]);
        Array { shape, bytes: to_bytes(elements.iter()) }
    }
}

impl From<Array> for Literal {
    fn from(Array { shape, bytes }: Array) -> Literal {
        Literal::Array { shape, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn debug_output_shows_the_first_elements() {
        let shown = |array: Array| format!("{array:?}");
        assert_eq!(shown(Array::from_vec(vec![0.5f32, -1.0], [2, 1]).unwrap()), "f32[2,1] [0.5, -1.0]");
        assert_eq!(shown(Array::from((0..9).collect::<Vec<i32>>())), "s32[9] [0, 1, 2, 3, 4, 5, 6, 7, …]");
        let complex = Array { shape: ArrayShape::new(DType::C64, vec![2]), bytes: vec![0; 16] };
        assert_eq!(shown(complex), "c64[2] of 16 bytes");
    }

    #[test]
    fn elements_come_back_as_they_were() {
        let bf16s = vec![bf16::from_f32(0.1), bf16::NEG_INFINITY];
        assert_eq!(Array::from(bf16s.clone()).to_vec::<bf16>().unwrap(), bf16s);
        assert_eq!(Array::from(bf16s).to_vec::<f32>().unwrap(), [0.100_097_656, f32::NEG_INFINITY]);
        assert_eq!(Array::from(vec![f16::from_f32(0.1)]).to_vec::<f32>().unwrap(), [0.099_975_586]);
        let bools = Array::from_vec(vec![true, false], [1, 2]).unwrap();
        assert_eq!((bools.dtype(), bools.to_vec::<bool>().unwrap()), (DType::Pred, vec![true, false]));
        let x = Array::from_vec(vec![1i64, -2], [2]).unwrap();
        assert_eq!(x.bytes, [1, 0, 0, 0, 0, 0, 0, 0, 254, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(Literal::from(x).elements::<i64>().unwrap(), [1, -2]);
        assert_eq!(Array::from_slice(&[2.5f64], []).unwrap().dims(), [0i64; 0]);
    }

    #[test]
    fn one_dim_may_be_left_to_count() {
        let dims = |n: usize, dims: &[i64]| Array::from_vec(vec![0f32; n], dims).map(|array| array.dims().to_vec());
        assert_eq!(dims(6, &[-1, 3]).unwrap(), [2, 3]);
        assert_eq!(dims(6, &[2, -1, 1]).unwrap(), [2, 3, 1]);
        assert_eq!(dims(0, &[-1, 3]).unwrap(), [0, 3]);
        let error = |n, sizes: &[i64]| dims(n, sizes).unwrap_err().to_string();
        assert_eq!(error(6, &[2, 2]), "6 elements of f32 do not fill dims [2, 2]; expected 4");
        assert_eq!(error(6, &[-1, 4]), "6 elements of f32 do not fill dims [-1, 4]; expected a multiple of 4");
        assert_eq!(error(0, &[-1, 0]), "0 elements of f32 do not fill dims [-1, 0]; expected a multiple of 0");
        let expected = "make no array; expected sizes from 0 up, at most one -1, and a product that memory can hold";
        for sizes in [&[-1, -1][..], &[-2, 3], &[1 << 62, 8]] {
            assert_eq!(error(6, sizes), format!("dims {sizes:?} {expected}"));
        }
    }

    #[test]
    fn another_type_is_refused_with_the_one_to_ask_for() {
        let error = Array::from_vec(vec![1i32; 2], [1, 2]).unwrap().to_vec::<f32>().unwrap_err().to_string();
        assert_eq!(
            error,
            "the array is s32[1,2], and its elements are asked for as f32\nhelp: read them as `to_vec::<i32>()`"
        );
        let error = Array::from(vec![1f32]).to_vec::<bf16>().unwrap_err().to_string();
        assert!(error.ends_with("help: read them as `to_vec::<f32>()`"), "{error}");
        let narrow = Array { shape: ArrayShape::new(DType::F8E5M2, [1]), bytes: vec![0] };
        let error = narrow.to_vec::<f32>().unwrap_err().to_string();
        assert!(error.ends_with("help: convert them in the program, before they come to the host"), "{error}");
    }
}
