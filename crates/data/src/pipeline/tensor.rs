//! `tensorflow.TensorProto`, as `tf.io.serialize_tensor` writes it: a dtype, dims, and the elements as bytes.
//!
//! Source: TensorFlow's `core/framework/tensor.proto`, `tensor_shape.proto` and `types.proto`; `Tensor::AsProtoTensorContent`.

use prost::Message;
use prost::bytes::Bytes;

use bf16scope_hlo::DType;

/// `tensorflow.TensorProto`; fields that list elements singly are only counted, except in scalars.
#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    tensor_shape: Option<TensorShape>,
    #[prost(bytes = "bytes", tag = "4")]
    tensor_content: Bytes,
    #[prost(float, repeated, tag = "5")]
    float_val: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    double_val: Vec<f64>,
    #[prost(int32, repeated, tag = "7")]
    int_val: Vec<i32>,
    #[prost(int64, repeated, tag = "10")]
    int64_val: Vec<i64>,
}

/// The first fields of a [`TensorProto`].
#[derive(Clone, PartialEq, Message)]
struct Head {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    tensor_shape: Option<TensorShape>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    dim: Vec<Dim>,
    #[prost(bool, tag = "3")]
    unknown_rank: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Dim {
    #[prost(int64, tag = "1")]
    size: i64,
}

/// `tensorflow.DataType` and the HLO dtype; a bool is a byte.
const DTYPES: [(i32, DType); 13] = [
    (1, DType::F32),
    (2, DType::F64),
    (3, DType::S32),
    (4, DType::U8),
    (5, DType::S16),
    (6, DType::S8),
    (9, DType::S64),
    (10, DType::U8),
    (14, DType::BF16),
    (17, DType::U16),
    (19, DType::F16),
    (22, DType::U32),
    (23, DType::U64),
];

/// The largest rank of a tensor.
const MAX_RANK: usize = 254;

/// A tensor with little-endian, row-major elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub dtype: DType,
    pub dims: Vec<i64>,
    pub bytes: Bytes,
}

impl std::fmt::Display for Tensor {
    /// `f32[28,28]`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(i64::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(","))
    }
}

impl Tensor {
    /// The dtype alone, without a copy of the elements; `None` if the first fields are not those of a tensor of
    /// numbers.
    pub fn dtype_of(bytes: &[u8]) -> Option<DType> {
        let Head { dtype, tensor_shape: Some(_) } = Head::decode(bytes).ok()? else { return None };
        DTYPES.iter().find(|(number, _)| *number == dtype).map(|(_, dtype)| *dtype)
    }

    /// Reads the bytes of a serialized tensor of numbers.
    ///
    /// # Errors
    /// The bytes are not a tensor of numbers, or have more or fewer elements than its dims say.
    pub fn read(bytes: &[u8]) -> Result<Tensor, String> {
        let proto = TensorProto::decode(Bytes::copy_from_slice(bytes)).map_err(|error| error.to_string())?;
        let known = DTYPES.iter().find(|(number, _)| *number == proto.dtype);
        let Some((_, dtype)) = known else {
            return Err(format!("a tensor of TensorFlow's dtype {}; expected one of numbers", proto.dtype));
        };
        let shape = proto.tensor_shape.unwrap_or_default();
        let dims: Vec<i64> = shape.dim.iter().map(|dim| dim.size).collect();
        let n_elements = dims.iter().try_fold(1i64, |n, dim| n.checked_mul(*dim).filter(|n| *n >= 0 && *dim >= 0));
        let n_elements = n_elements.and_then(|n| usize::try_from(n).ok());
        let Some(n_elements) = n_elements.filter(|_| dims.len() <= MAX_RANK && !shape.unknown_rank) else {
            return Err("a tensor whose dims are not known; expected whole ones".to_string());
        };
        let one_by_one = proto.float_val.len() + proto.double_val.len() + proto.int_val.len() + proto.int64_val.len();
        let bytes = match (dtype, proto.tensor_content.is_empty()) {
            (_, false) => proto.tensor_content,
            (_, true) if one_by_one == 0 => Bytes::new(),
            // A scalar written by `tf.make_tensor_proto`.
            (DType::F32, _) => proto.float_val.iter().flat_map(|value| value.to_le_bytes()).collect(),
            (DType::F64, _) => proto.double_val.iter().flat_map(|value| value.to_le_bytes()).collect(),
            (DType::S32, _) => proto.int_val.iter().flat_map(|value| value.to_le_bytes()).collect(),
            (DType::S64, _) => proto.int64_val.iter().flat_map(|value| value.to_le_bytes()).collect(),
            _ => return Err(format!("a tensor whose elements stand one by one in {dtype}; expected them as bytes")),
        };
        let n_bytes = n_elements.checked_mul(dtype.n_bytes());
        match n_bytes == Some(bytes.len()) {
            true => Ok(Tensor { dtype: *dtype, dims, bytes }),
            false => {
                let shape = Tensor { dtype: *dtype, dims, bytes: Bytes::new() };
                Err(format!("a tensor of {shape} with {} bytes of elements", bytes.len()))
            }
        }
    }

    /// Whether its dims equal these, ignoring dims of 1.
    pub fn has_dims(&self, dims: &[i64]) -> bool {
        let over_one = |dims: &[i64]| dims.iter().copied().filter(|dim| *dim != 1).collect::<Vec<i64>>();
        over_one(&self.dims) == over_one(dims)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The bytes of a tensor, as TensorFlow 2 writes them.
    pub(crate) fn serialized(dtype: i32, dims: &[i64], content: &[u8]) -> Vec<u8> {
        let dim = dims.iter().map(|&size| Dim { size }).collect();
        TensorProto {
            dtype,
            tensor_shape: Some(TensorShape { dim, unknown_rank: false }),
            tensor_content: Bytes::copy_from_slice(content),
            ..TensorProto::default()
        }
        .encode_to_vec()
    }

    #[test]
    fn what_tensorflow_wrote_is_read() {
        // `tf.io.serialize_tensor(tf.constant([[1.0, -2.0]]))` in TensorFlow 2.
        let bytes = b"\x08\x01\x12\x08\x12\x02\x08\x01\x12\x02\x08\x02\x22\x08\x00\x00\x80\x3f\x00\x00\x00\xc0";
        let tensor = Tensor::read(bytes).unwrap();
        assert_eq!((tensor.to_string().as_str(), &tensor.bytes[..]), ("f32[1,2]", &bytes[14..]));
        assert!(tensor.has_dims(&[2]) && tensor.has_dims(&[1, 2, 1]) && !tensor.has_dims(&[2, 2]));
        assert_eq!(serialized(1, &[1, 2], &bytes[14..]), bytes);
        assert_eq!(Tensor::dtype_of(bytes), Some(DType::F32));
        let scalar = TensorProto { dtype: 3, int_val: vec![7], ..TensorProto::default() }.encode_to_vec();
        assert_eq!(Tensor::read(&scalar).unwrap().bytes[..], 7i32.to_le_bytes());
    }

    #[test]
    fn what_is_no_tensor_of_numbers_is_refused() {
        let refused = |bytes: &[u8]| Tensor::read(bytes).unwrap_err();
        assert_eq!(refused(&serialized(7, &[1], b"x")), "a tensor of TensorFlow's dtype 7; expected one of numbers");
        assert_eq!(refused(b""), "a tensor of TensorFlow's dtype 0; expected one of numbers");
        assert_eq!(refused(&serialized(1, &[3], &[0; 8])), "a tensor of f32[3] with 8 bytes of elements");
        assert_eq!(refused(&serialized(1, &[-1], b"")), "a tensor whose dims are not known; expected whole ones");
        let large = serialized(1, &[i64::MAX, 2], b"x");
        assert_eq!(refused(&large), "a tensor whose dims are not known; expected whole ones");
        let one_by_one = TensorProto { dtype: 14, int_val: vec![7], ..TensorProto::default() }.encode_to_vec();
        let expected = "a tensor whose elements stand one by one in bf16; expected them as bytes";
        assert_eq!(refused(&one_by_one), expected);
        for bytes in [&b"\xff\xd8\xff\xe0"[..], b"\x89PNG\r\n\x1a\n", b"text", b"cat", b""] {
            assert!(Tensor::read(bytes).is_err() && Tensor::dtype_of(bytes).is_none(), "{bytes:?}");
        }
        let bytes = serialized(1, &[1, 2], &[0; 8]);
        for end in 0..bytes.len() {
            assert!(Tensor::read(&bytes[..end]).is_err(), "{end}");
        }
    }
}
