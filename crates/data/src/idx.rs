//! IDX files: one array of numbers, the format of MNIST's images and labels, plain or gzip.
//!
//! The first axis counts examples. Elements keep their dtype, so that images of bytes stay bytes.
//!
//! Source: "The IDX file format", at the end of LeCun, Cortes and Burges's page of the MNIST database.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::arrays::{Arrays, MAX_BYTES};
use super::feature::Feature;
use super::source::ArrayInfo;
use crate::error::{COPY_AGAIN, DataError, DataErrorKind};
use bf16scope_files as files;
use bf16scope_hlo::DType;

/// Reads examples of these features: the first feature from the first file, and so on, each in the feature's dims.
///
/// ```no_run
/// use bf16scope_data::{Feature, idx};
/// use bf16scope_hlo::DType;
///
/// let features = [Feature::compute("pixels", [28, 28, 1]), Feature::exact("digit", DType::S32, []).below(10).label()];
/// let files = ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"];
/// let digits = idx::read(files, &features)?.scaled("pixels", 1.0 / 255.0)?;
/// # Ok::<(), bf16scope_data::DataError>(())
/// ```
///
/// # Errors
/// Those of [`read_arrays`]; more or fewer files than features; an array whose examples have another number of elements
/// than the feature.
pub fn read(files: impl IntoIterator<Item = impl AsRef<Path>>, features: &[Feature]) -> Result<Arrays, DataError> {
    let files: Vec<_> = files.into_iter().collect();
    if files.len() != features.len() {
        let (n_files, n_features) = (files.len(), features.len());
        let message = format!("{n_files} files for {n_features} features; expected one for each, in their order");
        return Err(DataError::request(message));
    }
    let named: Vec<(&str, &Path)> =
        features.iter().zip(&files).map(|(feature, file)| (&*feature.name, file.as_ref())).collect();
    read_arrays(&named)?.shaped_as(features)
}

/// Reads one array from each file, given the feature's name and the path.
///
/// # Errors
/// A file that cannot be opened or unpacked, that is not an IDX file, or that has fewer or more bytes than its header
/// says; files with different numbers of examples.
pub fn read_arrays(files: &[(&str, &Path)]) -> Result<Arrays, DataError> {
    let mut arrays = files.iter().map(|(name, path)| read_one(name, path));
    match arrays.next() {
        Some(first) => arrays.try_fold(first?, |arrays, next| arrays.join(next?)),
        None => Arrays::new(Path::new("no file"), Vec::new()),
    }
}

fn read_one(name: &str, path: &Path) -> Result<Arrays, DataError> {
    let open_error = |source| DataError::open(path, source);
    let mut file = BufReader::new(files::open(path).map_err(open_error)?);
    let is_gzip = file.fill_buf().map_err(open_error)?.starts_with(&[0x1F, 0x8B]);
    let (info, bytes) =
        if is_gzip { read_array(name, path, MultiGzDecoder::new(file)) } else { read_array(name, path, file) }?;
    Arrays::new(path, vec![(info, bytes)])
}

fn read_array(name: &str, path: &Path, mut reader: impl Read) -> Result<(ArrayInfo, Vec<u8>), DataError> {
    let mut at = 0;
    let mut take = |limit: u64| {
        let mut bytes = Vec::new();
        let read = reader.by_ref().take(limit).read_to_end(&mut bytes);
        at += bytes.len() as u64;
        match read {
            Ok(_) => Ok(bytes),
            Err(source) => {
                let message = format!("cannot read on from byte {at}; {COPY_AGAIN}");
                Err(DataError::new(DataErrorKind::Read, path, message).because(source))
            }
        }
    };
    let start = take(4)?;
    let magic = |bytes: &[u8]| {
        let expected = "an IDX file: 00 00, then 08 (u8), 09 (s8), 0b (s16), 0c (s32), 0d (f32) or 0e (f64), then how many \
                        axes it has";
        DataError::new(DataErrorKind::Format, path, format!("begins with {bytes:02x?}; expected {expected}"))
    };
    let &[0, 0, code, n_dims @ 1..=u8::MAX] = start.as_slice() else { return Err(magic(&start)) };
    let dtype = match code {
        0x08 => DType::U8,
        0x09 => DType::S8,
        0x0B => DType::S16,
        0x0C => DType::S32,
        0x0D => DType::F32,
        0x0E => DType::F64,
        _ => return Err(magic(&start)),
    };
    let header = take(4 * u64::from(n_dims))?;
    let dims: Vec<i64> = header.as_chunks().0.iter().map(|bytes| u32::from_be_bytes(*bytes).into()).collect();
    let size = |measured: u64, expected: u64| {
        let measured = if measured > expected { format!("more than {expected}") } else { measured.to_string() };
        let message =
            format!("{measured} bytes of elements; expected {expected}: {dtype} {dims:?}, as its header says");
        DataError::new(DataErrorKind::Damaged, path, message).help(COPY_AGAIN)
    };
    let expected = dims.iter().fold(dtype.n_bytes() as u64, |size, dim| size.saturating_mul(dim.unsigned_abs()));
    if header.len() < 4 * usize::from(n_dims) {
        let message = format!(
            "ends after {} bytes, within the sizes of its {n_dims} axes; expected {} bytes before the first element",
            4 + header.len(),
            4 + 4 * usize::from(n_dims)
        );
        return Err(DataError::new(DataErrorKind::Damaged, path, message));
    }
    if expected > MAX_BYTES {
        return Err(DataError::array_too_large(path, name, expected, MAX_BYTES));
    }
    // Asks for one byte more than expected: it must not exist, and asking makes gzip verify its checksum.
    let mut bytes = take(expected + 1)?;
    if bytes.len() as u64 != expected {
        return Err(size(bytes.len() as u64, expected));
    }
    if dtype.n_bytes() > 1 {
        bytes.chunks_exact_mut(dtype.n_bytes()).for_each(<[u8]>::reverse);
    }
    Ok((ArrayInfo::new(name, dtype, &dims[1..]), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn idx(code: u8, dims: &[u32], elements: &[u8]) -> Vec<u8> {
        let sizes = dims.iter().flat_map(|dim| dim.to_be_bytes());
        [0, 0, code, dims.len() as u8].into_iter().chain(sizes).chain(elements.iter().copied()).collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Reads bytes as a file named `x.idx`; an error comes back as its message, without the folder.
    fn read_as(bytes: &[u8]) -> Result<Arrays, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.idx");
        std::fs::write(&path, bytes).unwrap();
        read_arrays(&[("x", &path)])
            .map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
    }

    #[test]
    fn a_file_for_each_feature() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["images", "labels"].map(|name| folder.path().join(name));
        std::fs::write(&files[0], idx(0x08, &[2, 2, 2], &[0, 1, 2, 3, 4, 5, 6, 7])).unwrap();
        std::fs::write(&files[1], idx(0x08, &[2], &[7, 8])).unwrap();
        let features = [Feature::compute("x", [4]), Feature::exact("y", DType::S32, []).label()];
        let arrays = read(&files, &features).unwrap();
        assert_eq!(arrays.array("x").unwrap().dims(), [2, 4]);
        assert_eq!(arrays.array("y").unwrap().to_vec::<u8>().unwrap(), [7, 8]);
        let error = read(&files[..1], &features).unwrap_err().to_string();
        assert_eq!(error, "1 files for 2 features; expected one for each, in their order");
        let error = read([&files[1], &files[0]], &features).unwrap_err().to_string();
        assert!(error.contains("array `x` has dims [] in each example; expected [4]"), "{error}");
    }

    #[test]
    fn every_dtype_is_read() {
        let cases: [(u8, DType, Vec<u8>, Vec<u8>); 6] = [
            (0x08, DType::U8, vec![1, 255], vec![1, 255]),
            (0x09, DType::S8, vec![1, 255], vec![1, 255]),
            (0x0B, DType::S16, [1i16, -2].map(i16::to_be_bytes).concat(), [1i16, -2].map(i16::to_le_bytes).concat()),
            (0x0C, DType::S32, [1, -2].map(i32::to_be_bytes).concat(), [1, -2].map(i32::to_le_bytes).concat()),
            (0x0D, DType::F32, [0.1, -2.0].map(f32::to_be_bytes).concat(), [0.1, -2.0].map(f32::to_le_bytes).concat()),
            (0x0E, DType::F64, [0.1, -2.0].map(f64::to_be_bytes).concat(), [0.1, -2.0].map(f64::to_le_bytes).concat()),
        ];
        for (code, dtype, stored, expected) in cases {
            let file = idx(code, &[1, 2, 1], &stored);
            for bytes in [file.clone(), gzip(&file)] {
                let arrays = read_as(&bytes).unwrap();
                assert_eq!(arrays.arrays(), [ArrayInfo::new("x", dtype, [2, 1])]);
                assert_eq!(arrays.read(0).unwrap(), [&expected[..]]);
            }
        }
        assert_eq!(read_as(&idx(8, &[3], &[7, 8, 9])).unwrap().read(2).unwrap(), [&[9u8][..]]);
    }

    #[test]
    fn files_are_one_source() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let images = write("images", &idx(8, &[2, 1, 2], &[1, 2, 3, 4]));
        let labels = write("labels.gz", &gzip(&idx(8, &[2], &[0, 9])));
        let both = read_arrays(&[("image", &images), ("label", &labels)]).unwrap();
        assert_eq!(both.read(1).unwrap(), [&[3u8, 4][..], &[9]]);
        let few = write("few", &idx(8, &[1], &[0]));
        let error = read_arrays(&[("image", &images), ("label", &few)]).unwrap_err().to_string();
        assert!(
            error.ends_with("few: array `label` has 1 examples, `image` has 2; expected as many of each"),
            "{error}"
        );
        assert_eq!(read_arrays(&[]).unwrap_err().to_string(), "no file: no examples; expected one at least");
        let error = read_arrays(&[("x", Path::new("/nonexistent/x.idx"))]).unwrap_err();
        assert_eq!(error.to_string(), "/nonexistent/x.idx: cannot open the data file");
    }

    #[test]
    fn every_bad_file_is_named() {
        let check = |bytes: &[u8], message: &str| assert_eq!(read_as(bytes).unwrap_err(), message);
        let formats = "expected an IDX file: 00 00, then 08 (u8), 09 (s8), 0b (s16), 0c (s32), 0d (f32) or 0e (f64), then \
                       how many axes it has";
        check(b"1,2,3\n", &format!("x.idx: begins with [31, 2c, 32, 2c]; {formats}"));
        check(b"", &format!("x.idx: begins with []; {formats}"));
        check(&[0, 0, 8], &format!("x.idx: begins with [00, 00, 08]; {formats}"));
        check(&[0, 0, 8, 0, 1], &format!("x.idx: begins with [00, 00, 08, 00]; {formats}"));
        check(&[0, 0, 10, 1], &format!("x.idx: begins with [00, 00, 0a, 01]; {formats}"));
        check(
            &[0, 0, 8, 3, 0, 0, 0, 1, 0],
            "x.idx: ends after 9 bytes, within the sizes of its 3 axes; expected 16 bytes before the first element",
        );
        check(
            &idx(0x0B, &[2, 3], &[0; 11]),
            "x.idx: 11 bytes of elements; expected 12: s16 [2, 3], as its header says\nhelp: copy or download the file again",
        );
        check(
            &idx(8, &[2, 3], &[0; 9]),
            "x.idx: more than 6 bytes of elements; expected 6: u8 [2, 3], as its header says\nhelp: copy or download the \
             file again",
        );
        check(&idx(8, &[0, 3], &[]), "x.idx: no examples; expected one at least");
        check(&idx(8, &[3, 0], &[]), "feature dimensions [0] do not make an example; expected positive ones");
        // A damaged header's claims cost no memory.
        check(
            &idx(8, &[u32::MAX; 255], &[0; 9]),
            "x.idx: array `x` has 18446744073709551615 bytes; expected at most 17179869184: a data set that fits in memory",
        );
    }

    #[test]
    fn damaged_gzip_is_named() {
        let elements: Vec<u8> = (0..600).map(|idx| (idx * 37 % 101) as u8).collect();
        let file = idx(8, &[600], &elements);
        let whole = gzip(&file);
        assert_eq!(read_as(&whole).unwrap().n_examples(), 600);
        // Any truncation or change must be noticed, the trailing checksum included.
        for n_bytes in 3..whole.len() {
            let message = read_as(&whole[..n_bytes]).unwrap_err();
            assert!(message.contains("; copy or download the file again"), "{n_bytes}: {message}");
        }
        let mut corrupt = whole.clone();
        let checksum_at = corrupt.len() - 8;
        corrupt[checksum_at] ^= 1;
        let n_bytes = file.len();
        assert_eq!(
            read_as(&corrupt).unwrap_err(),
            format!("x.idx: cannot read on from byte {n_bytes}; copy or download the file again")
        );
    }
}
