//! Round trips and damage for every format that can be written.

use std::error::Error as _;
use std::fs;
use std::io::Write;
use std::path::Path;

use half::bf16;

use super::*;
use crate::npz::{Header, NpzWriter};
use bf16scope_hlo::Literal;
use std::collections::BTreeMap;

/// An array of each relevant kind: floats of two widths, integers, booleans, a scalar, an empty one.
fn arrays() -> Vec<(String, Literal)> {
    let float = Literal::from_elements([2, 3], &[1.5f32, -0.0, f32::MIN_POSITIVE, 3e38, f32::NAN, 7.0]);
    let short: Vec<bf16> = (0..5).map(|n| bf16::from_f32(n as f32 / 3.0)).collect();
    let named = [
        ("conv/kernel", float),
        ("dense/bias:0", Literal::from_elements([5], &short)),
        ("step", Literal::scalar(-7i64)),
        ("mask", Literal::from_elements([3], &[true, false, true])),
        ("empty", Literal::from_elements([0, 4], &[] as &[f32])),
    ];
    named.into_iter().map(|(name, literal)| (name.to_string(), literal)).collect()
}

/// An error's message, without the folder.
fn text(folder: &Path, error: &WeightsError) -> String {
    error.to_string().replace(&format!("{}/", folder.display()), "")
}

fn bits(literal: &Literal) -> (&ArrayShape, &[u8]) {
    let Literal::Array { shape, bytes } = literal else { panic!("an array was read") };
    (shape, bytes)
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for (name, written, expected) in
        [("a.npz", WrittenFormat::Npz, Format::Npz), ("a.safetensors", WrittenFormat::Safetensors, Format::Safetensors)]
    {
        let path = folder.path().join(name);
        write(&path, written, arrays()).unwrap();
        let file = open(&path).unwrap();
        assert_eq!(file.format(), expected);
        file.check().unwrap();
        let mut names: Vec<String> = arrays().into_iter().map(|(name, _)| name).collect();
        names.sort();
        assert_eq!(file.entries().iter().map(|entry| entry.name.clone()).collect::<Vec<_>>(), names);
        for (name, literal) in arrays() {
            let (shape, bytes) = bits(&literal);
            assert_eq!(bits(&file.read(&name).unwrap()), (shape, bytes), "{name}");
            let look = file.look(&name).unwrap();
            assert_eq!(look.crc32c, crc32c::crc32c(bytes), "{name}");
            assert_eq!(look.n_not_finite, u64::from(name == "conv/kernel"), "{name}");
        }
        let error = file.read("conv/kernal").unwrap_err();
        assert_eq!(
            text(folder.path(), &error),
            format!("{name}: there is no array `conv/kernal`\nhelp: did you mean `conv/kernel`?")
        );
    }
}

#[test]
fn sharded_weights_need_every_shard() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let index = |map: &str| fs::write(at("model.safetensors.index.json"), format!("{{\"weight_map\": {{{map}}}}}"));
    for (shard, (name, literal)) in ["1.safetensors", "2.safetensors"].into_iter().zip(arrays()) {
        write(&at(shard), WrittenFormat::Safetensors, [(name, literal)]).unwrap();
    }
    index(r#""conv/kernel": "1.safetensors", "dense/bias:0": "2.safetensors""#).unwrap();
    let file = open(at("model.safetensors.index.json")).unwrap();
    assert_eq!(file.format(), Format::Sharded);
    for (name, literal) in arrays().into_iter().take(2) {
        assert_eq!(bits(&file.read(&name).unwrap()), bits(&literal));
    }
    let refused = |map: &str| {
        index(map).unwrap();
        text(folder.path(), &open(at("model.safetensors.index.json")).unwrap_err())
    };
    assert_eq!(
        refused(r#""a": "1.safetensors", "b": "3.safetensors", "c": "3.safetensors""#),
        "1.safetensors: there is no array `a`\nhelp: `bf16scope weights 1.safetensors` lists what there is"
    );
    assert_eq!(
        refused(r#""b": "3.safetensors", "c": "3.safetensors""#),
        "model.safetensors.index.json: the file `3.safetensors` is missing, in which 2 of its arrays are\n\
         help: put 3.safetensors beside the index: all of a sharded model's files are needed"
    );
    assert_eq!(
        refused(r#""b": "../3.safetensors""#),
        "model.safetensors.index.json: it says that arrays are in `../3.safetensors`; expected the name of a file beside it"
    );
}

#[test]
fn what_is_no_file_of_weights_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(folder.path().join("x"), bytes).unwrap();
        text(folder.path(), &open(folder.path().join("x")).unwrap_err())
    };
    assert_eq!(refused(b""), "x: an empty file; expected a file of weights\nhelp: copy or save it again");
    assert_eq!(
        refused(b"GGUF\x03\0\0\0"),
        "x: a GGUF file, which is not read as weights\nhelp: take the safetensors or torch files that it was converted from"
    );
    assert_eq!(
        refused(b"\xff\xff\xff\xff\xff\0\0\0{"),
        "x: the header has 1099511627775 bytes; expected at most 16777216"
    );
    assert_eq!(
        refused(b"\x09\0\0\0\0\0\0\0{"),
        "x: the file is cut off: it has 9 bytes, and its header ends at byte 17\nhelp: copy it again"
    );
    let help = "name the model's `*.index.json`, or a file of its weights";
    for (json, message) in [
        (&b"{}"[..], "JSON without a `weight_map`, which the index of a sharded model has"),
        (
            b"{\"weight_map\": {\"a\": 1}}",
            "its `weight_map` is none: it says which file each array is in, `{\"NAME\": \"FILE\"}`",
        ),
        (b"{ no JSON", "no JSON; expected the index of a sharded model"),
    ] {
        assert_eq!(refused(json), format!("x: {message}\nhelp: {help}"));
    }
    assert_eq!(
        refused(b"\x80\x04\x95"),
        "x: a Python pickle, which may run anything, and is not read\n\
         help: where it is trusted, load it in Python and save its arrays: numpy.savez(FILE, **arrays)"
    );
    assert_eq!(
        refused(b"hello"),
        "x: no file of weights that is known: it begins with [68, 65, 6c, 6c, 6f]\n\
         help: name a checkpoint of TensorFlow (with or without .index, or its folder), Keras' .h5 or .keras, PyTorch's .pt \
         or .bin, an .npz archive, a .safetensors file or the index of several, or a checkpoint of bf16scope"
    );
    let error = open(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(error.kind(), WeightsErrorKind::Read);
}

/// A header of 123 bytes begins with the byte of JSON's brace; if two arrays overlap, the second is named.
#[test]
fn a_safetensors_file_whose_length_begins_as_json_does_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let opened = |first: u64| {
        let arrays = format!(
            r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},"b":{{"dtype":"F32","shape":[2],"data_offsets":[{first},{}]}}}}"#,
            first + 8
        );
        let header = format!("{arrays:<123}");
        assert_eq!(header.len(), 123);
        fs::write(&path, [&123u64.to_le_bytes()[..], header.as_bytes(), &vec![0; first as usize + 8]].concat())
            .unwrap();
        open(&path)
    };
    assert_eq!(opened(8).unwrap().entries().len(), 2);
    let error = opened(4).unwrap_err();
    assert!(
        text(folder.path(), &error)
            .starts_with("a.safetensors: at byte 8: the header is not that of a safetensors file\n")
    );
    assert!(error.source().unwrap().to_string().contains("invalid offset for tensor `b`"));
}

/// An `.npz` with impossible claims is not reported as a wrong dtype.
#[test]
fn an_npz_that_claims_beyond_all_bounds_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let mut npz = NpzWriter::create(&path).unwrap();
    npz.add("x", &Header::for_dtype(DType::F32, vec![1 << 61, 4]), &[0; 8]).unwrap();
    npz.finish().unwrap();
    let error = text(folder.path(), &open(&path).unwrap_err());
    let expected =
        "a.npz: array `x` says it is f32[2305843009213693952,4]; expected sizes that multiply to 2^63 bytes at most";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_safetensors_file_that_is_cut_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    write(&path, WrittenFormat::Safetensors, arrays()).unwrap();
    let whole = fs::read(&path).unwrap();
    for n_bytes in 0..whole.len() {
        fs::write(&path, &whole[..n_bytes]).unwrap();
        assert!(open(&path).is_err(), "{n_bytes} of {}", whole.len());
    }
}

#[test]
fn an_array_that_a_format_does_not_hold_is_told_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let narrow = Literal::Array { shape: ArrayShape::new(DType::F8E5M2, vec![1]), bytes: vec![0] };
    let error = write(&path, WrittenFormat::Npz, [("x".to_string(), narrow)]).unwrap_err();
    assert_eq!(
        text(folder.path(), &error),
        "a.npz: array `x` is f8e5m2, which an .npz archive does not hold\nhelp: write another format"
    );
    let none = [("x".to_string(), Literal::Tuple(Vec::new()))];
    let error = write(&path, WrittenFormat::Npz, none).unwrap_err();
    assert_eq!(text(folder.path(), &error), "a.npz: `x` is a (), which no file of weights has");
    let twice = [("x".to_string(), Literal::scalar(1f32)), ("x".to_string(), Literal::scalar(2f32))];
    let error = write(&path, WrittenFormat::Npz, twice).unwrap_err();
    assert_eq!(text(folder.path(), &error), "a.npz: two arrays are to be written as `x`; expected one");
    assert!(!path.exists());
}

/// Files written by the frameworks that own the formats (`tests/data/weights/write.py`).
fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/weights")
}

/// The name, dtype, dims and checksum of every array of a file.
fn seen(file: &WeightsFile) -> BTreeMap<String, (String, Vec<u64>, String)> {
    let summary = |entry: &Entry| {
        let crc = format!("{:08x}", file.look(&entry.name).unwrap().crc32c);
        (entry.name.clone(), (entry.dtype.to_string(), entry.dims.clone(), crc))
    };
    file.entries().iter().map(summary).collect()
}

/// Compares a file with the listing written beside it, and also reads every array whole.
fn check_fixture(path: &str, expected: &str, format: Format) {
    let file = open(fixtures().join(path)).unwrap();
    assert_eq!(file.format(), format, "{path}");
    file.check().unwrap();
    let expected = fs::read_to_string(fixtures().join(expected)).unwrap();
    let expected: BTreeMap<String, (String, Vec<u64>, String)> = serde_json::from_str(&expected).unwrap();
    assert!(!expected.is_empty());
    assert_eq!(seen(&file), expected, "{path}");
    for entry in file.entries().iter().filter(|entry| entry.dtype != WeightsDType::Text) {
        let literal = file.read(&entry.name).unwrap();
        assert_eq!(
            format!("{:08x}", crc32c::crc32c(bits(&literal).1)),
            expected[&entry.name].2,
            "{path}: {}",
            entry.name
        );
    }
}

#[test]
fn bundles_of_tensorflow_are_read_to_the_bit() {
    for path in ["names/model.ckpt", "names/model.ckpt.index", "names"] {
        check_fixture(path, "names/model.ckpt.json", Format::TensorFlow);
    }
    check_fixture("sharded/model.ckpt", "sharded/model.ckpt.json", Format::TensorFlow);
    check_fixture("objects/ckpt-1", "objects/ckpt-1.json", Format::TensorFlow);
    let objects = open(fixtures().join("objects")).unwrap();
    for (name, entry) in [
        ("net/layers/0/kernel/.ATTRIBUTES/VARIABLE_VALUE", "net/layers/0/kernel"),
        ("first/kernel", "net/layers/0/kernel"),
        ("second/bias", "net/layers/1/bias"),
    ] {
        assert_eq!(objects.find(name).map(|entry| entry.name.as_str()), Some(entry), "{name}");
    }
    assert_eq!(open(fixtures().join("saved")).unwrap().format(), Format::SavedModel);
    let error = open(fixtures().join("v1/model.v1")).unwrap_err();
    assert_eq!(
        text(&fixtures(), &error),
        "v1/model.v1: a checkpoint of version 1 (tf.train.SaverDef.V1), which is not read; expected version 2\n\
         help: restore it in TensorFlow and save it again: \
         tf.compat.v1.train.Saver(write_version=tf.compat.v1.train.SaverDef.V2)"
    );
}

/// A copy of a bundle that may be damaged: its prefix.
fn copied(folder: &Path, prefix: &str) -> std::path::PathBuf {
    let (from, name) = (fixtures().join(prefix), Path::new(prefix).file_name().unwrap().to_str().unwrap());
    for entry in fs::read_dir(from.parent().unwrap()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_str().unwrap().starts_with(name) {
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    folder.join(name)
}

fn look_at_all(path: &Path) -> Result<(), WeightsError> {
    let file = open(path)?;
    file.entries().iter().try_for_each(|entry| file.look(&entry.name).map(drop))
}

/// Each bit of both files is covered by a checksum.
#[test]
fn every_flip_in_a_bundle_is_noticed_and_named_with_its_place() {
    for prefix in ["names/model.ckpt", "objects/ckpt-1", "sharded/model.ckpt"] {
        let folder = tempfile::tempdir().unwrap();
        let bundle = copied(folder.path(), prefix);
        look_at_all(&bundle).unwrap();
        let (mut n, mut offsets) = (0, 0);
        for entry in fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().unwrap() == "json" {
                continue;
            }
            let whole = fs::read(&path).unwrap();
            for at in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << (at % 8);
                fs::write(&path, flipped).unwrap();
                let error = look_at_all(&bundle).expect_err(&format!("{}: byte {at}", path.display()));
                n += 1;
                offsets += u32::from(error.offset().is_some());
            }
            fs::write(&path, &whole).unwrap();
        }
        // A flip in the number of data files refers to one that does not exist, and a flip in a size to more than
        // exists.
        assert!(offsets * 10 > n * 9 && n > 150, "{prefix}: {n} flips, {offsets} with their place");
    }
}

#[test]
fn a_bundle_that_is_cut_or_lacks_a_shard_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = copied(folder.path(), "sharded/model.ckpt");
    let at = |name: &str| folder.path().join(name);
    for name in ["model.ckpt.index", "model.ckpt.data-00001-of-00002"] {
        let whole = fs::read(at(name)).unwrap();
        for n_bytes in 0..whole.len() {
            fs::write(at(name), &whole[..n_bytes]).unwrap();
            assert!(look_at_all(&bundle).is_err(), "{name}: {n_bytes}");
        }
        fs::write(at(name), &whole[..whole.len() - 1]).unwrap();
        let error = text(folder.path(), &look_at_all(&bundle).unwrap_err());
        let expected = match name {
            "model.ckpt.index" => {
                "model.ckpt.index: at byte 97: the index does not end as one: it was cut off, or is damaged\n\
                 help: copy it again"
            }
            _ => {
                "model.ckpt.data-00001-of-00002: the file is cut off: it has 19 bytes, and `b` ends at byte 20\n\
                 help: copy it again"
            }
        };
        assert_eq!(error, expected);
        fs::write(at(name), &whole).unwrap();
    }
    fs::remove_file(at("model.ckpt.data-00001-of-00002")).unwrap();
    assert_eq!(
        text(folder.path(), &open(&bundle).unwrap_err()),
        "model.ckpt.index: the data file `model.ckpt.data-00001-of-00002` is missing\n\
         help: put model.ckpt.data-00001-of-00002 beside the index: it names every data file that it needs"
    );
}

/// Our bundles are equivalent to TensorFlow's own; `ci/tensorflow` checks with TensorFlow itself.
#[test]
fn a_bundle_that_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    // Enough names for two blocks of the index.
    let many: Vec<(String, Literal)> = (0..9000).map(|n| (format!("layer_{n}/kernel"), Literal::scalar(n))).collect();
    let prefix = folder.path().join("model.ckpt");
    write(&prefix, WrittenFormat::TensorFlow, arrays().into_iter().chain(many.clone())).unwrap();
    let file = open(&prefix).unwrap();
    assert_eq!((file.format(), file.entries().len()), (Format::TensorFlow, 9005));
    for (name, literal) in arrays().into_iter().chain(many) {
        assert_eq!(bits(&file.read(&name).unwrap()), bits(&literal), "{name}");
    }
}

/// A tensor of 2 GiB, a hole in a sparse file, is streamed in pieces.
#[test]
fn a_large_array_is_looked_at_in_little_memory() {
    const N: u64 = 2 << 30;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let header = format!(r#"{{"x":{{"dtype":"U8","shape":[{N}],"data_offsets":[0,{N}]}}}}"#);
    let start = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(&path, &start).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(start.len() as u64 + N).unwrap();
    let file = open(&path).unwrap();
    let mut largest = 0;
    let mut n_bytes = 0;
    let entry = file.find("x").unwrap();
    file.reader
        .pass(0, entry, &mut |piece| {
            largest = largest.max(piece.len());
            n_bytes += piece.len() as u64;
            Ok(())
        })
        .unwrap();
    assert_eq!((largest, n_bytes), (region::PIECE, N));
}

#[test]
fn infinities_and_nans_are_counted() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let counts = [DType::F16, DType::BF16, DType::S16].map(|dtype| n_not_finite(dtype, &halves));
    assert_eq!(counts, [2 << 10, 2 << 7, 0]);
    let values = [f64::MAX, f64::NAN, -f64::INFINITY, 0.0, 1e39];
    assert_eq!(n_not_finite(DType::F64, &values.map(f64::to_le_bytes).concat()), 2);
    assert_eq!(n_not_finite(DType::F32, &values.map(|value| (value as f32).to_le_bytes()).concat()), 4);
}

#[test]
fn state_dicts_of_torch_are_read_to_the_bit() {
    check_fixture("torch/state.pt", "torch/state.pt.json", Format::Torch);
    check_fixture("torch/nested.bin", "torch/nested.bin.json", Format::Torch);
    let nested = open(fixtures().join("torch/nested.bin")).unwrap();
    assert_eq!(nested.left_out(), ["epoch (an integer)", "lr (a float)", "name (a text)", "done (None)"]);
}

#[test]
fn hdf5_files_of_keras_and_h5py_are_read_to_the_bit() {
    let keras = ["keras/model.weights.h5", "keras/legacy.h5", "keras/bf16.weights.h5", "keras/bf16_legacy.h5"];
    for name in ["hdf5/earliest.h5", "hdf5/latest.h5", "hdf5/bf16.h5"].into_iter().chain(keras) {
        check_fixture(name, &format!("{name}.json"), Format::Hdf5);
    }
    check_fixture("keras/model.keras", "keras/model.keras.json", Format::Keras);
}

#[test]
fn a_pickle_that_would_run_something_is_refused_by_name() {
    let refused = |name: &str| text(&fixtures(), &open(fixtures().join(name)).unwrap_err());
    assert_eq!(
        refused("torch/evil.pt"),
        "torch/evil.pt: its pickle (data.pkl) at byte 183: it asks Python for `posix.system`, which no state dict needs; \
         nothing of it was run\nhelp: save tensors alone: torch.save(model.state_dict(), FILE), or safetensors.torch.save_file"
    );
    assert!(refused("torch/module.pt").contains("it asks Python for `torch.nn.modules.linear.Linear`"));
    assert_eq!(
        refused("torch/legacy.pt"),
        "torch/legacy.pt: a file of PyTorch before 1.6 (a pickle), which is not read\n\
         help: load and save it again with a newer PyTorch: torch.save(torch.load(FILE, map_location=\"cpu\"), NEW)"
    );
    assert!(!Path::new("/tmp/bf16scope-ran-a-pickle").exists());
}

/// Headers of 640 to 1408 bytes begin as pickles of the protocols 2 to 5 do.
#[test]
fn safetensors_are_no_pickles_however_long_their_header_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    for n_bytes in [0x0280, 0x0380, 0x0480, 0x0580] {
        let mut header = br#"{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#.to_vec();
        header.resize(n_bytes, b' ');
        let file = [&(n_bytes as u64).to_le_bytes()[..], &header, &1.5f32.to_le_bytes()].concat();
        fs::write(&path, file).unwrap();
        assert_eq!(open(&path).unwrap().format(), Format::Safetensors, "a header of {n_bytes} bytes");
    }
}

#[test]
fn tuples_in_one_another_are_refused_before_they_fill_the_stack() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pytorch_model.bin");
    let mut zip = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    zip.start_file("archive/data.pkl", stored).unwrap();
    let mut pickle = b"\x80\x02K\x01".to_vec();
    pickle.resize(1_000_000, 0x85);
    zip.write_all(&pickle).unwrap();
    zip.finish().unwrap();
    // Opened by its folder, like Hugging Face's models.
    let message = text(folder.path(), &open(folder.path()).unwrap_err());
    assert!(message.contains("its tuples are in one another deeper than 32"), "{message}");
}

/// Truncations and flipped bytes of small files give an error or arrays, never a panic.
#[test]
fn harmed_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["torch/state.pt", "torch/nested.bin", "hdf5/earliest.h5", "hdf5/latest.h5"] {
        let whole = fs::read(fixtures().join(name)).unwrap();
        let path = folder.path().join("harmed");
        // About two hundred places of a large file.
        for at in (0..whole.len()).step_by(1 + whole.len() / 200) {
            for harmed in [whole[..at].to_vec(), [&whole[..at], &[whole[at] ^ 0x41], &whole[at + 1..]].concat()] {
                fs::write(&path, harmed).unwrap();
                if let Err(error) = look_at_all(&path) {
                    drop(error.to_string());
                }
            }
        }
    }
}

/// A change to bytes: at an offset, a number of this width, or a cut or a repetition.
fn harmed(whole: &[u8], changes: &[(u32, u8, u64)]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for &(at, kind, value) in changes {
        let at = at as usize % bytes.len().max(1);
        match kind % 8 {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..bytes.len().min(at + value as usize % 16))),
            2 => {
                let part = bytes[at..bytes.len().min(at + value as usize % 64)].to_vec();
                bytes.splice(at..at, part);
            }
            kind => {
                // Numbers near the bounds of their width are those on which arithmetic overflows.
                let value =
                    [value, 0, u64::MAX, u64::MAX - value % 64, value % 64, i64::MAX as u64][value as usize % 6];
                let n = [1, 2, 4, 8, 8][usize::from(kind) - 3].min(bytes.len() - at);
                bytes[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
            }
        }
    }
    bytes
}

proptest::proptest! {
    /// Files damaged at several places give an error that prints, or arrays with the bytes that their entries state.
    #[test]
    fn files_harmed_at_random_are_errors_or_arrays(nth in 0..7usize, changes in proptest::collection::vec(proptest::prelude::any::<(u32, u8, u64)>(), 1..6)) {
        const NAMES: [&str; 7] = ["torch/state.pt", "torch/nested.bin", "hdf5/earliest.h5", "hdf5/latest.h5", "keras/model.weights.h5", "names/model.ckpt.index", "objects/ckpt-1.index"];
        let folder = tempfile::tempdir().unwrap();
        let path = fixtures().join(NAMES[nth]);
        let bytes = fs::read(&path).unwrap();
        let target = match path.extension().is_some_and(|extension| extension == "index") {
            // Recomputes the checksums of a table, so that its content is used.
            true => {
                let prefix = copied(folder.path(), NAMES[nth].strip_suffix(".index").unwrap());
                let harmed = bundle::resealed(&path, &mut |value| harmed(value, &changes));
                fs::write(bundle::index_of(&prefix), harmed).unwrap();
                prefix
            }
            false => {
                fs::write(folder.path().join("x"), harmed(&bytes, &changes)).unwrap();
                folder.path().join("x")
            }
        };
        if let Err(error) = look_at_all(&target) {
            drop(error.to_string());
        }
    }
}
