//! Small files of weights that require large resources, or contradict themselves. Each follows its format's syntax, and is read
//! exactly or refused with an error of some hundred characters. They are archives whose members share bytes, nested headers,
//! pickles that contain themselves, and indices that name other files.

use bf16scope::weights::{self, WeightsError};
use std::error::Error as _;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

/// The expected result for a file: this many arrays, or an error with this text.
enum Expected {
    Arrays(usize),
    Refused(&'static str),
}
use Expected::{Arrays, Refused};

/// Seconds of processor time that a file may take, in a debug build.
const MOST_SECONDS: f64 = 5.0;
/// Characters of a message; paths stand in it twice.
const LONGEST: usize = 900;

fn npy(header: &str, elements: &[u8]) -> Vec<u8> {
    let padded = format!("{header:<width$}\n", width = (header.len() + 11).next_multiple_of(64) - 11);
    [&b"\x93NUMPY\x01\x00"[..], &(padded.len() as u16).to_le_bytes(), padded.as_bytes(), elements].concat()
}

fn floats(shape: &str, n: usize) -> Vec<u8> {
    npy(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}"), &vec![0; 4 * n])
}

fn zip(members: &[(&str, Vec<u8>)], is_packed: bool) -> Vec<u8> {
    let method = if is_packed { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// The archive's only member under many names; each name is unpacked again.
fn shared(whole: &[u8], n: usize) -> Vec<u8> {
    let end = whole.len() - 22;
    let at = u32::from_le_bytes(whole[end + 16..end + 20].try_into().unwrap()) as usize;
    let (body, entry) = (&whole[..at], &whole[at..end]);
    let n_name = usize::from(u16::from_le_bytes([entry[28], entry[29]]));
    let entries: Vec<u8> = (0..n)
        .flat_map(|number| {
            let name = format!("{number:0n_name$}");
            [&entry[..46], name.as_bytes(), &entry[46 + n_name..]].concat()
        })
        .collect();
    let count = (n as u16).to_le_bytes();
    let (size, start) = ((entries.len() as u32).to_le_bytes(), (at as u32).to_le_bytes());
    [body, &entries, b"PK\x05\x06\0\0\0\0", &count, &count, &size, &start, &[0, 0]].concat()
}

fn safetensors(header: &str, n_bytes: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; n_bytes]].concat()
}

/// A header with one array.
fn one(dtype: &str, shape: &str, offsets: [u64; 2]) -> String {
    format!(r#"{{"a":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":{offsets:?}}}}}"#)
}

/// A state dict of PyTorch whose pickle is this, with a storage of eight bytes.
fn torch(pickle: &[u8]) -> Vec<u8> {
    let members = [("a/data.pkl", pickle.to_vec()), ("a/data/0", vec![0; 8]), ("a/version", b"3\n".to_vec())];
    zip(&members, false)
}

/// A text, as pickles hold it.
fn text(value: &str) -> Vec<u8> {
    [&b"X"[..], &(value.len() as u32).to_le_bytes(), value.as_bytes()].concat()
}

/// Opens a dict, sets its key `a` and, behind the value, ends.
fn dict(value: &[u8]) -> Vec<u8> {
    torch(&[&b"\x80\x02}"[..], &text("a"), value, b"s."].concat())
}

/// A tensor of floats over that storage: of this size and stride, as pickled tuples.
fn tensor(size: &[u8], stride: &[u8]) -> Vec<u8> {
    let class = b"ctorch\nFloatStorage\n".to_vec();
    let storage = [b"(".to_vec(), text("storage"), class, text("0"), text("cpu"), b"K\x02tQ".to_vec()].concat();
    dict(&[b"ctorch._utils\n_rebuild_tensor_v2\n(", &storage[..], b"K\0", size, stride, b"\x89}tR"].concat())
}

fn repeated(part: &str, n: usize) -> String {
    part.repeat(n)
}

fn nested(n: usize) -> Vec<u8> {
    // Each is a pair of the one before, which is remembered: 2^n leaves of n bytes.
    let mut pickle = b")q\0".to_vec();
    for number in 0..n as u8 {
        pickle.extend([b'0', b'h', number, b'h', number, 0x86, b'q', number + 1]);
    }
    dict(&pickle)
}

fn cases() -> Vec<(&'static str, Vec<u8>, Expected)> {
    let good = floats("2,", 2);
    let million = zip(&[("aaaaa.npy", floats("250000,", 250_000))], true);
    let head = |text: &str| zip(&[("a.npy", npy(text, b""))], false);
    let header =
        |descr: &str, shape: &str| format!("{{'descr': {descr}, 'fortran_order': False, 'shape': ({shape}), }}");
    let mut many = String::from("{");
    for at in 0..2_000 {
        write!(
            many,
            r#"{}"a{at}":{{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]}}"#,
            if at > 0 { "," } else { "" }
        )
        .unwrap();
    }
    many.push('}');
    let zipped_floats = zip(&[("a.npy", good.clone())], false);
    vec![
        ("empty.npz", vec![], Refused("an empty file")),
        ("no_members.npz", zip(&[], false), Arrays(0)),
        ("shared.npz", shared(&million, 3_000), Refused("share bytes")),
        ("shared_twice.npz", shared(&million, 2), Refused("share bytes")),
        // The one entry has another name than the member.
        ("alone.npz", shared(&million, 1), Refused("calls itself")),
        (
            "deep_header.npz",
            head(&header("'<f4'", &format!("{}{}", repeated("(", 30_000), repeated(")", 30_000)))),
            Refused("expected at most 16384"),
        ),
        ("many_dims.npz", head(&header("'<f4'", &repeated("1,", 5_000))), Refused("dims")),
        ("records.npz", head(&header("[('a', '<f4')]", "2,")), Refused("records")),
        (
            "objects.npz",
            zip(&[("a.npy", npy(&header("'|O'", "1,"), b"cos\nsystem\n"))], false),
            Refused("Python object"),
        ),
        ("negative.npz", head(&header("'<f4'", "-1,")), Refused("")),
        ("past_64_bits.npz", head(&header("'<f4'", "36893488147419103232,")), Refused("")),
        ("odd_width.npz", head(&header("'<f3'", "2,")), Refused("")),
        ("escape.npz", zip(&[("\u{1b}[31m\u{202e}x.npy", good.clone())], false), Arrays(1)),
        ("outside.npz", zip(&[("../../x.npy", good.clone()), ("/etc/y.npy", good.clone())], false), Arrays(2)),
        ("joined.npz", [zipped_floats.clone(), zipped_floats.clone()].concat(), Refused("belong to no array")),
        ("cut.npz", zipped_floats[..zipped_floats.len() - 10].to_vec(), Refused("")),
        ("long_header.safetensors", [&(1u64 << 63).to_le_bytes()[..], b"{}"].concat(), Refused("no file of weights")),
        (
            "spaces.safetensors",
            safetensors(&format!("{{}}{}", repeated(" ", 17 << 20)), 0),
            Refused("expected at most 16777216"),
        ),
        (
            "deep.safetensors",
            safetensors(&format!("{{\"a\":{}{}}}", repeated("[", 200_000), repeated("]", 200_000)), 0),
            Refused("not that of a safetensors file"),
        ),
        (
            "deep_metadata.safetensors",
            safetensors(
                &format!("{{\"__metadata__\":{}1{}}}", repeated("{\"a\":", 100_000), repeated("}", 100_000)),
                0,
            ),
            Refused("not that of a safetensors file"),
        ),
        ("numbers_in_metadata.safetensors", safetensors(r#"{"__metadata__":{"a":1}}"#, 0), Refused("")),
        (
            "escape.safetensors",
            safetensors(&one("F32", "2", [0, 8]).replace("\"a\"", r#""\u001b[2J\u202e\u0000""#), 8),
            Arrays(1),
        ),
        ("negative.safetensors", safetensors(&one("F32", "-2", [0, 8]), 8), Refused("")),
        ("past_64_bits.safetensors", safetensors(&one("F32", "4294967296,4294967296", [0, 0]), 0), Refused("")),
        (
            "many_dims.safetensors",
            safetensors(&one("F32", repeated("1,", 100_000).trim_end_matches(','), [0, 4]), 4),
            Refused("has 100000 dims; expected 64 at most"),
        ),
        (
            "rank_65.safetensors",
            safetensors(&one("F32", repeated("1,", 65).trim_end_matches(','), [0, 4]), 4),
            Refused("has 65 dims"),
        ),
        (
            "rank_64.safetensors",
            safetensors(&one("F32", repeated("1,", 64).trim_end_matches(','), [0, 4]), 4),
            Arrays(1),
        ),
        ("nothing_wide.safetensors", safetensors(&one("F32", "0,4611686018427387904", [0, 0]), 0), Refused("2^63")),
        ("many_empty.safetensors", safetensors(&many, 0), Arrays(2_000)),
        ("backwards.safetensors", safetensors(&one("F32", "2", [8, 0]), 8), Refused("")),
        ("beyond.safetensors", safetensors(&one("F32", "2", [0, 8]), 4), Refused("")),
        ("hole.safetensors", safetensors(&one("F32", "2", [8, 16]), 16), Refused("")),
        ("dtype.safetensors", safetensors(&one("F33", "2", [0, 8]), 8), Refused("")),
        ("pairs.pt", nested(60), Refused("deeper than 32")),
        ("tuples.pt", dict(&[&b")"[..], &b"\x85".repeat(200_000)].concat()), Refused("deeper than 32")),
        ("lists.pt", dict(&[&b"]".repeat(200_000)[..], &b"a".repeat(199_999)].concat()), Refused("")),
        ("itself.pt", torch(b"\x80\x02]q\0h\0a."), Refused("")),
        ("marks.pt", torch(&[&b"\x80\x02"[..], &b"(".repeat(1_000_000), b"."].concat()), Refused("")),
        (
            "long_text.pt",
            torch(&[&b"\x80\x02\x8d"[..], &(1u64 << 62).to_le_bytes(), b"x."].concat()),
            Refused("ends within"),
        ),
        ("far_memory.pt", torch(b"\x80\x02}r\xff\xff\xff\x7f."), Refused("remembers a value")),
        ("system.pt", torch(b"\x80\x02cos\nsystem\n(U\x04echotR."), Refused("os.system")),
        ("escape.pt", torch(b"\x80\x02c\x1b[31mevil\nx\x07\n)R."), Refused("evil.x")),
        (
            "many_dims.pt",
            tensor(
                &[&b"("[..], &b"K\x01".repeat(70), b"t"].concat(),
                &[&b"("[..], &b"K\x01".repeat(70), b"t"].concat(),
            ),
            Refused("sizes"),
        ),
        (
            "wide_stride.pt",
            tensor(b"(K\x02t", b"(\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7ft"),
            Refused("not within its storage"),
        ),
        ("expanded.pt", tensor(b"(J\xff\xff\xff\x7ft", b"(K\0t"), Refused("")),
        ("whole.pt", tensor(b"(K\x02t", b"(K\x01t"), Arrays(1)),
        ("superblock.h5", [&b"\x89HDF\r\n\x1a\n"[..], &[255; 200]].concat(), Refused("superblock")),
        ("zeros.h5", [&b"\x89HDF\r\n\x1a\n"[..], &[0; 2000]].concat(), Refused("addresses of 0")),
        (
            "archive.keras",
            zip(&[("model.weights.h5", vec![]), ("config.json", vec![b'{'; 100])], false),
            Refused("cut off"),
        ),
        ("zeros.index", vec![0; 48], Refused("the index")),
        ("handles.index", [&[255; 40][..], b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"].concat(), Refused("the index")),
        ("parents.safetensors.index.json", br#"{"weight_map":{"a":"../../../../etc/passwd"}}"#.to_vec(), Refused("")),
        (
            "escape.safetensors.index.json",
            br#"{"weight_map":{"a":"\u001b[31m.safetensors"}}"#.to_vec(),
            Refused("missing"),
        ),
        (
            "itself.safetensors.index.json",
            br#"{"weight_map":{"a":"itself.safetensors.index.json"}}"#.to_vec(),
            Refused(""),
        ),
    ]
}

fn processor_seconds() -> f64 {
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    schedstat.split(' ').next().unwrap().parse::<f64>().unwrap() * 1e-9
}

/// An error, and those that it is because of.
fn message(error: WeightsError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}

/// Opens a file and reads every array; how many there are.
fn read(path: &Path) -> Result<usize, String> {
    let file = weights::open(path).map_err(message)?;
    file.check().map_err(message)?;
    for entry in file.entries() {
        file.read(&entry.name).map_err(message)?;
    }
    Ok(file.entries().len())
}

#[test]
fn small_files_are_what_they_say_or_refused_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wrong, cases) = (Vec::new(), cases());
    assert!(cases.len() >= 50);
    for (name, bytes, expected) in cases {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let began = processor_seconds();
        let result = read(&path);
        let seconds = processor_seconds() - began;
        let is_right = match (&result, expected) {
            (Ok(n), Arrays(expected)) => *n == expected,
            (Err(message), Refused(part)) => message.contains(part),
            _ => false,
        };
        let message = result.as_ref().err().map_or("", String::as_str);
        if !is_right || message.len() > LONGEST || seconds > MOST_SECONDS {
            let start: String = format!("{result:?}").chars().take(300).collect();
            wrong.push(format!("{name}: {seconds:.1} s, {} characters: {start}", message.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
