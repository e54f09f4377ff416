//! Arrays of an archive as a source of examples: their first axis counts the examples.

use std::path::Path;

use super::{Header, NpzReader};
use crate::arrays::{Arrays, MAX_BYTES};
use crate::error::DataError;
use crate::feature::Feature;
use crate::source::ArrayInfo;

/// Reads examples of these features: the array with each feature's name, in the feature's dims. Other arrays are
/// ignored.
///
/// ```no_run
/// use bf16scope_data::{Feature, npz};
/// use bf16scope_hlo::DType;
///
/// let features = [Feature::compute("pixels", [8, 8, 1]), Feature::exact("digit", DType::S32, []).below(10).label()];
/// let digits = npz::read("digits.npz", &features)?.scaled("pixels", 1.0 / 16.0)?;
/// # Ok::<(), bf16scope_data::DataError>(())
/// ```
///
/// # Types
/// Those of [`read_arrays`].
///
/// # Errors
/// Those of [`read_arrays`]; an array whose examples have another number of elements than the feature.
pub fn read(path: impl AsRef<Path>, features: &[Feature]) -> Result<Arrays, DataError> {
    let names: Vec<(&str, &str)> = features.iter().map(|feature| (&*feature.name, &*feature.name)).collect();
    read_arrays(path, &names)?.shaped_as(features)
}

/// Reads arrays of an archive, given pairs of a feature's name and its array's name in the archive. Other arrays are
/// ignored.
///
/// # Types
/// NumPy's bool, integers, floats of 16 to 64 bits and complex numbers, in either byte order and either order of axes.
/// A void type of two bytes is bf16, as `ml_dtypes` stores it.
///
/// # Errors
/// A file that cannot be opened, or is damaged; an array that is missing, that holds objects, texts or other types, or
/// that has no axes; arrays with different numbers of examples.
pub fn read_arrays(path: impl AsRef<Path>, arrays: &[(&str, &str)]) -> Result<Arrays, DataError> {
    let path = path.as_ref();
    let mut npz = NpzReader::open(path)?;
    let names: Vec<String> = npz.names().map(str::to_string).collect();
    let mut all = Vec::new();
    for &(feature, name) in arrays {
        let Some(entry) = npz.entry(name)? else {
            return Err(DataError::no_array(path, name, &names));
        };
        let refused = |header: &Header| {
            let expected =
                "examples along its first axis, of NumPy's bool, integers, floats of 16 to 64 bits or complex numbers";
            DataError::mismatch(path, &format!("array `{name}`"), &header.to_string(), expected)
        };
        let Some(dtype) = entry.header.dtype() else { return Err(refused(&entry.header)) };
        let [_, dims @ ..] = entry.header.dims.as_slice() else { return Err(refused(&entry.header)) };
        let (expected, info) = (entry.header.n_bytes(), ArrayInfo::new(feature, dtype, dims));
        if expected > MAX_BYTES {
            return Err(DataError::array_too_large(path, name, expected, MAX_BYTES));
        }
        all.push((info, entry.read()?));
    }
    Arrays::new(path, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use crate::npz::NpzWriter;
    use bf16scope_hlo::DType;
    use ndarray::{Array, ArrayD, Ix1};

    /// The file says `[3, 2, 2]`, the network takes `[2, 2, 1]`.
    #[test]
    fn features_are_read_in_their_dims() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let mut npz = NpzWriter::create(&path).unwrap();
        npz.add("image", &Header::for_dtype(DType::U8, vec![3, 2, 2]), &[0; 12]).unwrap();
        npz.add("label", &Header::for_dtype(DType::S32, vec![3]), &[0; 12]).unwrap();
        npz.finish().unwrap();
        let label = Feature::exact("label", DType::S32, []).label();
        let arrays = read(&path, &[label.clone(), Feature::compute("image", [2, 2, 1])]).unwrap();
        let dims: Vec<&[i64]> = arrays.arrays().iter().map(|info| &info.dims[..]).collect();
        assert_eq!(dims, [&[][..], &[2, 2, 1]]);
        let error = read(&path, &[label, Feature::compute("image", [3, 2])]).unwrap_err().to_string();
        assert!(error.ends_with("a.npz: array `image` has dims [2, 2] in each example; expected [3, 2]"), "{error}");
    }

    /// Writes arrays to `a.npz` and reads some; an error comes back as its message, without the folder.
    fn check(arrays: &[(&str, Header, Vec<u8>)], wanted: &[(&str, &str)]) -> Result<Arrays, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let mut npz = NpzWriter::create(&path).unwrap();
        for (name, header, bytes) in arrays {
            npz.add(name, header, bytes).unwrap();
        }
        npz.finish().unwrap();
        read_arrays(&path, wanted)
            .map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
    }

    /// An archive written by other software, compressed.
    #[test]
    fn arrays_are_examples() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let mut npz = ndarray_npy::NpzWriter::new_compressed(std::fs::File::create(&path).unwrap());
        let images: ArrayD<u8> = Array::from_shape_fn((3, 2, 2), |(i, j, k)| (4 * i + 2 * j + k) as u8).into_dyn();
        npz.add_array("x_train", &images).unwrap();
        npz.add_array("y_train", &Array::<i64, Ix1>::from(vec![7, 8, -9])).unwrap();
        npz.add_array("other", &Array::<f64, Ix1>::from(vec![0.5])).unwrap();
        npz.finish().unwrap();

        let arrays = read_arrays(&path, &[("image", "x_train"), ("label", "y_train")]).unwrap();
        let expected = [ArrayInfo::new("image", DType::U8, [2, 2]), ArrayInfo::new("label", DType::S64, [])];
        assert_eq!((arrays.n_examples(), arrays.arrays()), (3, &expected[..]));
        assert_eq!(arrays.read(2).unwrap(), [&[8u8, 9, 10, 11][..], &(-9i64).to_le_bytes()]);
        assert!(arrays.place(2).ends_with("a.npz, example 2"));
    }

    #[test]
    fn orders_and_types_are_put_right() {
        let bytes = |values: &[i16], of: fn(i16) -> [u8; 2]| values.iter().flat_map(|&value| of(value)).collect();
        let foreign = Header { is_big_endian: true, is_fortran: true, ..Header::for_dtype(DType::S16, vec![2, 3]) };
        let raw = Header { kind: 'V', ..Header::for_dtype(DType::U16, vec![2]) };
        let arrays = check(
            &[
                ("x", foreign, bytes(&[1, 4, 2, 5, 3, 6], i16::to_be_bytes)),
                ("b", raw, vec![0x80, 0x3F, 0, 0xC0]),
                ("p", Header::for_dtype(DType::Pred, vec![2]), vec![0, 1]),
                ("c", Header::for_dtype(DType::C64, vec![2]), vec![1; 16]),
            ],
            &[("x", "x"), ("b", "b"), ("p", "p"), ("c", "c")],
        )
        .unwrap();
        let dtypes: Vec<DType> = arrays.arrays().iter().map(|info| info.dtype).collect();
        assert_eq!(dtypes, [DType::S16, DType::BF16, DType::Pred, DType::C64]);
        let second: Vec<u8> = bytes(&[4, 5, 6], i16::to_le_bytes);
        assert_eq!(arrays.read(1).unwrap(), [&second[..], &[0, 0xC0], &[1], &[1; 8]]);
    }

    #[test]
    fn what_is_no_array_of_examples_is_named() {
        let file = [
            ("x", Header::for_dtype(DType::U8, vec![2, 3]), vec![0; 6]),
            ("y", Header::for_dtype(DType::U8, vec![3]), vec![0; 3]),
            ("scalar", Header::for_dtype(DType::U8, vec![]), vec![0]),
            ("raw", Header { kind: 'V', ..Header::for_dtype(DType::U8, vec![1]) }, vec![0]),
            ("object", Header { kind: 'O', ..Header::for_dtype(DType::U64, vec![1]) }, vec![0; 8]),
            ("text", Header { kind: 'U', ..Header::for_dtype(DType::U64, vec![1]) }, vec![0; 8]),
            ("none", Header::for_dtype(DType::U8, vec![0, 3]), vec![]),
            ("empty", Header::for_dtype(DType::U8, vec![2, 0]), vec![]),
            ("huge", Header::for_dtype(DType::F32, vec![1 << 61]), vec![0; 8]),
            ("short", Header::for_dtype(DType::F32, vec![9]), vec![0; 8]),
        ];
        let read = |name: &str| check(&file, &[("x", name)]).unwrap_err();
        assert_eq!(
            check(&file, &[("x", "x"), ("y", "y")]).unwrap_err(),
            "a.npz: array `y` has 3 examples, `x` has 2; expected as many of each"
        );
        assert_eq!(
            read("yy"),
            "a.npz: there is no array `yy`; it has `empty`, `huge`, `none`, `object`, `raw`, `scalar`, `short`, `text`, `x`, \
             `y`\nhelp: did you mean `y`?"
        );
        let expected = "expected examples along its first axis, of NumPy's bool, integers, floats of 16 to 64 bits or \
                        complex numbers";
        assert_eq!(read("scalar"), format!("a.npz: array `scalar` is u8[]; {expected}"));
        assert_eq!(read("raw"), format!("a.npz: array `raw` is raw8[1]; {expected}"));
        for (name, what) in [("object", "Python objects (<O8)"), ("text", "texts (<U8)")] {
            let expected = format!("a.npz: array `{name}`: its elements are {what}, expected numbers\nhelp: make ");
            assert!(read(name).starts_with(&expected), "{}", read(name));
        }
        assert_eq!(read("none"), "a.npz: no examples; expected one at least");
        assert_eq!(read("empty"), "feature dimensions [0] do not make an example; expected positive ones");
        assert_eq!(
            read("huge"),
            "a.npz: array `huge` has 9223372036854775808 bytes; expected at most 17179869184: a data set that fits in memory"
        );
        assert_eq!(
            read("short"),
            "a.npz: array `short` holds 8 bytes or more, expected 36 as its header says\nhelp: the file is damaged, copy it \
             again"
        );
        let error = super::read("/nonexistent/a.npz", &[]).unwrap_err();
        assert_eq!(error.to_string(), "/nonexistent/a.npz: cannot open the archive");
    }
}
