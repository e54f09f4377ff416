//! Whole messages about files of weights that are damaged or of another kind, by format.

use std::error::Error as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use super::hostile::{FOUR, Hdf5, archive, message, refused, tensor, torch, word};
use super::*;
use crate::npz::{Header, NpzWriter};
use bf16scope_hlo::Literal;

const DAMAGED: &str = "help: the file is damaged: copy it again";

/// A pickle in an archive, with a storage of four floats.
fn pickled(folder: &Path, pickle: &[u8]) -> String {
    archive(&folder.join("a.pt"), &[("archive/data.pkl", pickle), ("archive/data/0", &[0; 16])]);
    refused(folder, "a.pt")
}

#[test]
fn operations_of_a_pickle_are_told_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let deep = [b"]".repeat(34), b"a".repeat(33), b".".to_vec()].concat();
    for (pickle, at, expected) in [
        (&b""[..], 0, "it ends within an operation"),
        (b"B\xff\xff\xff\xff", 5, "it ends within an operation"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", 9, "it ends within an operation"),
        (b"X\x01\0\0\0\xff", 6, "a text is not UTF-8"),
        (b"cabc", 1, "a name does not end"),
        (b"0", 1, "an operation lacks its operand"),
        (b"t", 1, "an operation lacks its mark"),
        (b"Nr\xff\xff\0\0", 6, "it remembers a value under 65535"),
        (b"h\x07", 2, "there is nothing remembered under 7"),
        (b"NN\x93", 3, "a name is not text"),
        (b"NQ", 2, "a storage is not a tuple"),
    ] {
        let message = format!("its pickle (data.pkl) at byte {at}: {expected}");
        assert_eq!(pickled(folder.path(), pickle), format!("a.pt: {message}\nhelp: copy or save it again"));
    }
    for (pickle, at, expected) in [
        (&b"N."[..], 2, "it holds None; expected a dict of tensors"),
        (b"\xff", 1, "operation 0xff makes another thing than a state dict holds"),
        (b")Q", 2, "a storage is not said as PyTorch says it"),
        (b"NNb", 3, "it sets attributes of None"),
        (b"}NNs.", 5, "a key of a dict is None"),
        (&deep, 68, "its values are in one another deeper than 32, or too many"),
    ] {
        let message = format!("its pickle (data.pkl) at byte {at}: {expected}");
        let help = "save tensors alone: torch.save(model.state_dict(), FILE), or safetensors.torch.save_file";
        assert_eq!(pickled(folder.path(), pickle), format!("a.pt: {message}\nhelp: {help}"));
    }
}

#[test]
fn archives_of_torch_are_told_with_their_member() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let state = [b"\x80\x02}".to_vec(), word("w"), tensor(FOUR, b""), b"s.".to_vec()].concat();
    for (members, expected) in [
        (
            vec![("a/constants.pkl", &b""[..]), ("a/data.pkl", b"\x80\x02}.")],
            "a TorchScript archive, whose code is not read\n\
             help: save its weights alone: torch.save(torch.jit.load(FILE).state_dict(), NEW)",
        ),
        (
            vec![("a/byteorder", &b"big"[..]), ("a/data.pkl", b"\x80\x02}.")],
            "it was written on a big-endian machine, which is not read\nhelp: load and save it again on another machine",
        ),
        (vec![("a/data.pkl", &state[..])], "the storage of `w`, `a/data/0`, is missing\nhelp: copy or save it again"),
    ] {
        archive(&path, &members);
        assert_eq!(refused(folder.path(), "a.pt"), format!("a.pt: {expected}"));
    }
    // The storage alone is compressed.
    let mut zip = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    zip.start_file("a/data.pkl", options.compression_method(zip::CompressionMethod::Stored)).unwrap();
    zip.write_all(&state).unwrap();
    zip.start_file("a/data/0", options.compression_method(zip::CompressionMethod::Deflated)).unwrap();
    zip.write_all(&[0; 16]).unwrap();
    zip.finish().unwrap();
    assert_eq!(
        refused(folder.path(), "a.pt"),
        "a.pt: the storage of `w` is compressed (Deflated), as PyTorch writes none\nhelp: save it again with torch.save"
    );
    // Views of five elements, of four that there are.
    torch(&path, &[word("w"), tensor(b"K\x05\x85K\x01\x85", b""), b"s".to_vec()].concat());
    let error = open(&path).unwrap_err();
    let at = error.offset().unwrap();
    assert_eq!(
        refused(folder.path(), "a.pt"),
        format!("a.pt: at byte {at}: tensor `w` is not within its storage of 16 bytes\n{DAMAGED}")
    );
    // A storage of three floats whose file has four, which PyTorch would cut.
    let three: Vec<u8> = tensor(b"K\x03\x85K\x01\x85", b"");
    let at_count = memchr::memmem::find(&three, b"K\x04tQ").unwrap();
    let three = [&three[..at_count], b"K\x03", &three[at_count + 2..]].concat();
    torch(&path, &[word("w"), three, b"s".to_vec()].concat());
    let error = refused(folder.path(), "a.pt");
    let expected = "tensor `w` is in a storage of 16 bytes; expected 12, as the pickle says";
    assert!(error.ends_with(&format!("{expected}\n{DAMAGED}")), "{error}");
    torch(&path, &[word("w"), tensor(b"K\x05\x85K\0\x85", b""), b"s".to_vec()].concat());
    assert_eq!(
        refused(folder.path(), "a.pt"),
        "a.pt: tensor `w` repeats the elements of a smaller storage (expand), which is not read\n\
         help: save it as `tensor.clone()`"
    );
}

/// A flipped bit of a member, and a compression that no reader has.
#[test]
fn a_member_that_cannot_be_read_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let message_of = |change: &dyn Fn(&mut Vec<u8>)| {
        archive(&path, &[("a/data.pkl", b"\x80\x02}.")]);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        open(&path).unwrap_err().to_string().replace(&format!("{}/", folder.path().display()), "")
    };
    let place = |bytes: &[u8], part: &[u8]| memchr::memmem::find(bytes, part).unwrap();
    let flipped = message_of(&|bytes| {
        let at = place(bytes, b"\x80\x02}.");
        bytes[at + 2] ^= 1;
    });
    assert_eq!(flipped, "a.pt: `a/data.pkl` cannot be read");
    let packed = message_of(&|bytes| {
        let at = place(bytes, b"PK\x01\x02");
        bytes[at + 10] = 77;
    });
    assert_eq!(packed, "a.pt: the zip archive cannot be read: it was cut off, or is damaged\nhelp: copy it again");
    let path = folder.path().join("a.keras");
    let mut zip = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    let packed = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    zip.start_file("model.weights.h5", packed).unwrap();
    zip.write_all(&[0; 64]).unwrap();
    zip.finish().unwrap();
    assert_eq!(
        refused(folder.path(), "a.keras"),
        "a.keras: its model.weights.h5 is packed (Deflated), as Keras does not do\n\
         help: unpack it, and name model.weights.h5"
    );
}

#[test]
fn a_superblock_of_hdf5_that_is_not_read_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let superblock = |start: &[u8], numbers: [u64; 4]| {
        let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        fs::write(folder.path().join("x.h5"), [&b"\x89HDF\r\n\x1a\n"[..], start, &numbers].concat()).unwrap();
        refused(folder.path(), "x.h5")
    };
    for (start, numbers, expected) in [
        ([9, 8, 8, 0], [0; 4], "an HDF5 file whose superblock is of version 9; expected 0 to 3"),
        ([2, 4, 4, 0], [0; 4], "an HDF5 file with addresses of 4 and 4 bytes from 0 on; expected 8 and 8 from 0 on"),
        (
            [2, 8, 8, 0],
            [0, u64::MAX, 1000, 44],
            "the file is cut off: it has 44 bytes, and what it says it has ends at byte 1000\nhelp: copy it again",
        ),
        (
            [2, 8, 8, 0],
            [0, u64::MAX, 44, 100],
            "the file is cut off: it has 44 bytes, and the header of an object ends at byte 100\nhelp: copy it again",
        ),
    ] {
        assert_eq!(superblock(&start, numbers), format!("x.h5: {expected}"));
    }
}

#[test]
fn a_header_of_an_object_of_hdf5_that_is_damaged_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let message_of = |root: &dyn Fn(&mut Hdf5) -> u64| {
        let mut file = Hdf5::new();
        let root = root(&mut file);
        file.finish(root, &folder.path().join("x.h5"));
        (root, refused(folder.path(), "x.h5"))
    };
    let piece = |at: u64| message(0x10, &[at.to_le_bytes(), 8u64.to_le_bytes()].concat());
    let (_, none) = message_of(&|file| file.put(&[0; 32]));
    assert_eq!(none, format!("x.h5: at byte 48: there is no object's header\n{DAMAGED}"));
    let (_, newer) = message_of(&|file| file.put(&[&b"OHDR\x03\x02"[..], &[0; 26]].concat()));
    assert_eq!(
        newer,
        "x.h5: at byte 48: an object's header of version 3; expected 1 or 2\n\
         help: write it again with h5py's defaults, or save the weights as .npz or safetensors"
    );
    let (_, no_piece) = message_of(&|file| {
        let at = file.put(&[0; 8]);
        file.object(&[piece(at)])
    });
    assert_eq!(no_piece, format!("x.h5: at byte 48: there is no piece of an object's header\n{DAMAGED}"));
    let (root, many) = message_of(&|file| {
        let pieces: Vec<Vec<u8>> = (0..256).map(|_| piece(file.put(b"OCHK\0\0\0\0"))).collect();
        file.object(&pieces)
    });
    assert_eq!(many, format!("x.h5: at byte {root}: an object's header is in more than 256 pieces\n{DAMAGED}"));
}

#[test]
fn folders_without_weights_are_told_what_they_lack() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("m")).unwrap();
    assert_eq!(
        refused(folder.path(), "m"),
        "m: a folder without weights that are known: no `checkpoint`, no saved_model.pb, no model.safetensors, no \
         pytorch_model.bin\nhelp: name a file of weights in it"
    );
    for (state, expected) in [
        (
            "model_checkpoint_path: \"gone\"",
            "it says that the latest checkpoint is `gone`, and there is no m/gone.index\n\
             help: name the checkpoint that is there, with or without `.index`",
        ),
        (
            "all_model_checkpoint_paths: \"gone\"",
            "the file does not say `model_checkpoint_path: \"NAME\"`, as TensorFlow's does\n\
             help: name a checkpoint in this folder, with or without `.index`",
        ),
    ] {
        fs::write(folder.path().join("m/checkpoint"), state).unwrap();
        assert_eq!(refused(folder.path(), "m"), format!("m/checkpoint: {expected}"));
    }
}

#[test]
fn a_safetensors_file_is_as_long_as_its_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let message_of = |n_bytes: usize| {
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; n_bytes]].concat();
        fs::write(folder.path().join("x"), bytes).unwrap();
        refused(folder.path(), "x")
    };
    let end = 8 + header.len() + 8;
    assert_eq!(
        message_of(5),
        format!(
            "x: the file is cut off: it has {} bytes, and the last array ends at byte {end}\nhelp: copy it again",
            end - 3
        )
    );
    assert_eq!(
        message_of(9),
        format!("x: the file has {} bytes, and its last array ends at byte {end}\nhelp: copy it again", end + 1)
    );
}

#[test]
fn arrays_that_an_index_does_not_name_are_listed_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let arrays = (0..20).map(|nth| (format!("{nth:02}"), Literal::scalar(1f32)));
    write(&folder.path().join("1.safetensors"), WrittenFormat::Safetensors, arrays).unwrap();
    fs::write(folder.path().join("x"), r#"{"weight_map": {"00": "1.safetensors"}}"#).unwrap();
    let file = open(folder.path().join("x")).unwrap();
    assert_eq!(file.left_out().len(), 17);
    assert_eq!(file.left_out().last().unwrap(), "3 more that the index does not name");
}

/// NumPy has types that are no numbers here.
#[test]
fn an_npz_of_other_types_is_told_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, width, shown, help) in [
        ('V', 1, "raw8", "NumPy does not write which fp8 it is: save it with .astype('f4'), or as safetensors"),
        ('V', 3, "raw24", "leave it out, or save it as another type"),
    ] {
        let header = Header { kind, width, ..Header::for_dtype(DType::U8, vec![2]) };
        let mut npz = NpzWriter::create(folder.path().join("a.npz")).unwrap();
        npz.add("x", &header, &vec![0; 2 * width]).unwrap();
        npz.finish().unwrap();
        let expected = "; expected bool, integers, floats of 16 to 64 bits or complex";
        assert_eq!(refused(folder.path(), "a.npz"), format!("a.npz: array `x` is {shown}[2]{expected}\nhelp: {help}"));
    }
    fs::write(folder.path().join("a.npz"), b"PK\x03\x04").unwrap();
    let error = open(folder.path().join("a.npz")).unwrap_err();
    assert!(error.to_string().ends_with("a.npz: the archive cannot be read"), "{error}");
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("an archive without its end: it was cut off"), "{cause}");
}

#[test]
fn what_cannot_be_written_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let message_of = |error: WeightsError| error.to_string().replace(&format!("{}/", folder.path().display()), "");
    let path = folder.path().join("no/a.npz");
    let error = write(&path, WrittenFormat::Npz, [("x".to_string(), Literal::scalar(1f32))]).unwrap_err();
    assert_eq!(message_of(error), "no/a.npz: the archive cannot be written");
    let path = folder.path().join("a.safetensors");
    let error = write(&path, WrittenFormat::Safetensors, [("__metadata__".to_string(), Literal::scalar(1f32))]);
    assert_eq!(
        message_of(error.unwrap_err()),
        "a.safetensors: an array is called `__metadata__`, which safetensors has for itself"
    );
    let large = [WrittenArray { name: "x".to_string(), shape: ArrayShape::new(DType::F32, vec![i64::MAX, 4]) }];
    let error = write_each::<WeightsError>(&path, WrittenFormat::Safetensors, &large, &mut |_| Ok(Literal::Token));
    assert_eq!(message_of(error.unwrap_err()), "a.safetensors: the arrays have no safetensors header");
    let exponents = Literal::Array { shape: ArrayShape::new(DType::F8E8M0FNU, vec![1]), bytes: vec![0] };
    let error = write(&folder.path().join("m"), WrittenFormat::TensorFlow, [("x".to_string(), exponents)]).unwrap_err();
    assert_eq!(
        message_of(error),
        "m: array `x` is f8e8m0fnu, which a checkpoint of TensorFlow does not hold\nhelp: write another format"
    );
}

/// A reader that gives fewer bytes than its entry states.
struct Short;

impl Reader for Short {
    fn pass(&self, _idx: usize, _entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        sink(&[0; 4])
    }
}

#[test]
fn an_array_of_another_type_or_length_is_told() {
    let file = WeightsFile {
        path: "x".into(),
        format: Format::Npz,
        entries: vec![Entry::new("w".to_string(), DType::F32, vec![2]).unwrap()],
        reader: Box::new(Short),
        left_out: Vec::new(),
        order: Vec::new(),
    };
    assert_eq!(file.texts("w").unwrap_err().to_string(), "x: array `w` is of f32; expected strings");
    assert_eq!(
        file.read("w").unwrap_err().to_string(),
        "x: array `w` holds 4 bytes; expected 8\nhelp: copy or save the file again"
    );
}
