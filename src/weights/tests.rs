//! Files of weights in every format that is written: written, read, cut and flipped.

use std::fs;
use std::path::Path;

use half::bf16;

use super::*;
use crate::hlo::Literal;

/// An array of each kind that matters: floats of two widths, integers, booleans, a scalar, one without elements.
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

/// What an error says, without the folder.
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
    let file = open(&at("model.safetensors.index.json")).unwrap();
    assert_eq!(file.format(), Format::Sharded);
    for (name, literal) in arrays().into_iter().take(2) {
        assert_eq!(bits(&file.read(&name).unwrap()), bits(&literal));
    }
    let refused = |map: &str| {
        index(map).unwrap();
        text(folder.path(), &open(&at("model.safetensors.index.json")).unwrap_err())
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
        text(folder.path(), &open(&folder.path().join("x")).unwrap_err())
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
    assert!(refused(b"{}").starts_with("x: JSON without a `weight_map`"));
    let error = open(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(error.kind(), WeightsErrorKind::Open);
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
    let twice = [("x".to_string(), Literal::scalar(1f32)), ("x".to_string(), Literal::scalar(2f32))];
    let error = write(&path, WrittenFormat::Npz, twice).unwrap_err();
    assert_eq!(text(folder.path(), &error), "a.npz: two arrays are to be written as `x`; expected one");
    assert!(!path.exists());
}
