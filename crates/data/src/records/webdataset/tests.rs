//! Examples in tar files.

use super::*;
use std::fs;

/// A tar of these files.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // Long names get a header of their own.
        out.append_data(&mut header, name, *bytes).unwrap();
    }
    out.into_inner().unwrap()
}

fn opened(folder: &Path, tars: &[Vec<u8>]) -> Result<Tars, String> {
    let write = |(idx, bytes): (usize, &Vec<u8>)| {
        let path = folder.join(format!("a-{idx}.tar"));
        fs::write(&path, bytes).unwrap();
        path
    };
    let files: Vec<PathBuf> = tars.iter().enumerate().map(write).collect();
    Tars::open(&files, None).map_err(|error| error.to_string().replace(&format!("{}/", folder.display()), ""))
}

/// Like the output of `tar --zstd`, which calls the program `zstd`.
#[cfg(feature = "records")]
#[test]
fn a_tar_of_zstandard_is_read_as_the_tar_in_it() {
    let plain =
        tar(&[("0001.cls", b"7"), ("0001.json", b"{\"x\": 1}"), ("0002.cls", b"8"), ("0002.json", b"{\"x\": 2}")]);
    let packed = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar.zst");
    fs::write(&path, &packed).unwrap();
    let tars = Tars::open(std::slice::from_ref(&path), Some(&folder.path().join("cache"))).unwrap();
    let unpacked = opened(folder.path(), &[plain]).unwrap();
    assert_eq!(tars.n_records(), 2);
    for at in [0, 1] {
        assert_eq!(tars.values(at, None).unwrap(), unpacked.values(at, None).unwrap());
    }
    fs::write(&path, &packed[..packed.len() / 2]).unwrap();
    let error = Tars::open(&[path], Some(&folder.path().join("cache"))).map(drop).unwrap_err().to_string();
    assert!(error.contains("the Zstandard stream is damaged or ends early"), "{error}");
}

#[test]
fn files_of_one_name_are_an_example() {
    let folder = tempfile::tempdir().unwrap();
    let long = format!("{}/0003", "n".repeat(150));
    let first: Vec<(&str, &[u8])> = vec![
        ("__meta__", b"x"),
        ("notes", b"no ending"),
        ("./n01/0001.jpg", b"jpeg"),
        ("./n01/0001.CLS", b" 7\n"),
        ("./n01/0001.seg.png", b"png"),
        ("n01/0002.png", b"two"),
        ("n01/0002.json", br#"{"label": 3, "box": [0.5, 1], "name": "cat", "of": {"ok": true}, "mixed": [1, "a"]}"#),
    ];
    let names = [format!("{long}.jpg"), format!("{long}.cls")];
    let second: Vec<(&str, &[u8])> = vec![(&names[0], b"three"), (&names[1], b"-1")];
    let tars = opened(folder.path(), &[tar(&first), tar(&second)]).unwrap();
    assert_eq!(tars.n_records(), 3);
    let bytes = |bytes: &[u8]| Value::Bytes(vec![bytes.to_vec()]);
    let expected = [("cls", Value::Ints(vec![7])), ("jpg", bytes(b"jpeg")), ("seg.png", bytes(b"png"))];
    assert_eq!(tars.values(0, None).unwrap(), expected.map(|(key, value)| (key.to_string(), value)).into());
    let expected = [
        ("json.box", Value::Floats(vec![0.5, 1.0])),
        ("json.label", Value::Ints(vec![3])),
        ("json.name", bytes(b"cat")),
        ("json.of.ok", Value::Ints(vec![1])),
        ("png", bytes(b"two")),
    ];
    assert_eq!(tars.values(1, None).unwrap(), expected.map(|(key, value)| (key.to_string(), value)).into());
    let asked = tars.values(1, Some(&["jpg;png", "json.label", "json.other", "cls"])).unwrap();
    let expected = [("jpg;png", bytes(b"two")), ("json.label", Value::Ints(vec![3]))];
    assert_eq!(asked, expected.map(|(key, value)| (key.to_string(), value)).into());
    assert_eq!(tars.values(2, Some(&["cls"])).unwrap()["cls"], Value::Ints(vec![-1]));
    assert_eq!(tars.place(2), format!("{}, example `{long}`", folder.path().join("a-1.tar").display()));
    assert_eq!(tars.place(1), format!("{}, example `n01/0002`", folder.path().join("a-0.tar").display()));
}

#[test]
fn what_is_wrong_is_said_with_file_and_example() {
    let folder = tempfile::tempdir().unwrap();
    let whole =
        tar(&[("a/1.cls", b"seven"), ("a/1.json", b"{"), ("a/1.jsn", br#"{"x": [1, "a"]}"#), ("a/2.jpg", &[1; 700])]);
    let tars = opened(folder.path(), std::slice::from_ref(&whole)).unwrap();
    let message = |keys: &[&str]| tars.values(0, Some(keys)).unwrap_err().to_string();
    let place = folder.path().join("a-0.tar").display().to_string();
    assert_eq!(message(&["cls"]), format!("{place}, example `a/1`: feature `cls` is `seven`; expected a whole number"));
    assert_eq!(
        message(&["jsn.x"]),
        format!(
            "{place}, example `a/1`: feature `jsn.x` is a list of several kinds; expected numbers, truths or texts, or a \
                 list of one of them"
        )
    );
    assert!(message(&["json.x"]).starts_with(&format!("{place}, example `a/1`: feature `json` is EOF")));

    let refused = |bytes: Vec<u8>| opened(folder.path(), &[bytes]).unwrap_err();
    assert_eq!(
        refused(whole[..5 * 512 + 1024].to_vec()),
        "a-0.tar, at byte 3072: the file ends after 3584 bytes, within the record; expected 4608 at least\n\
             help: copy or download the file again"
    );
    // Truncated within a block's padding, and within a header.
    for (n_bytes, message) in [
        (5 * 512 + 1024 + 700, "4284 bytes, within the record; expected 4608"),
        (600, "600 bytes, within the record; expected 1024"),
    ] {
        let error = refused(whole[..n_bytes].to_vec());
        assert!(error.contains(&format!(": the file ends after {message} at least\n")), "{error}");
    }
    let mut flipped = whole.clone();
    flipped[1024 + 3] ^= 1;
    assert_eq!(
        refused(flipped),
        "a-0.tar, at byte 1024: no header of a tar file\nhelp: copy or download the file again"
    );
    let error = refused(b"x,y\n1,2\n".repeat(100));
    assert!(
        error.starts_with("a-0.tar, at byte 0: no header of a tar file: this may be another kind of file"),
        "{error}"
    );
    assert_eq!(
        refused(tar(&[("a.jpg", b"1"), ("a.JPG", b"2")])),
        "a-0.tar: two files are called `a.jpg`; expected one of each name and ending"
    );
    // Each run would be an example: two for one name, and neither complete.
    let apart = [("./a.jpg", &b"1"[..]), ("./b.jpg", b"2"), ("./a.cls", b"3"), ("./b.cls", b"4")];
    assert_eq!(
        refused(tar(&apart)),
        "a-0.tar: `a.cls` stands apart from the other files of `a`; expected the files of an example one after the other\n\
             help: sort them: `mkdir unsorted && tar -xf a-0.tar -C unsorted && tar --sort=name -cf sorted.tar -C unsorted .`, \
             and name sorted.tar"
    );
    let mut sorted = apart;
    sorted.sort();
    assert_eq!(opened(folder.path(), &[tar(&sorted)]).unwrap().n_records(), 2);
    assert_eq!(refused(tar(&[("notes", b"1")])), "a-0.tar: no records; expected one at least");
    // Readers stop at the end of the first tar in `cat a.tar b.tar`.
    let another = |fill: usize| [&whole[..], &vec![0; fill], &tar(&[("b.cls", b"1")])].concat();
    for fill in [0, 512, 70_144, 1 << 20] {
        let at = whole.len() + fill;
        assert_eq!(
            refused(another(fill)),
            format!(
                "a-0.tar: another tar begins at byte {at}, behind the end of the first; expected one\nhelp: tars are joined \
                     by `tar --concatenate`, or named one by one"
            )
        );
    }
    assert!(opened(folder.path(), &[[&whole[..], &[0; 9216]].concat()]).is_ok());
    // A file that claims more than the limit of a record is not read into memory.
    let mut header = tar::Header::new_gnu();
    header.set_path("a.jpg").unwrap();
    header.set_size(MAX_RECORD + 1);
    header.set_cksum();
    let path = folder.path().join("sparse.tar");
    fs::write(&path, header.as_bytes()).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(MAX_RECORD + 2048).unwrap();
    let error = Tars::open(&[path], None).unwrap_err().to_string();
    assert!(error.ends_with("sparse.tar: a.jpg: 268435457 bytes; expected at most 268435456 in a record"), "{error}");
    // Mutated tars are either read or refused.
    let mut n_refused = 0;
    for at in (0..whole.len()).step_by(7) {
        let mut mutated = whole.clone();
        mutated[at] ^= 0x11;
        match opened(folder.path(), &[mutated]) {
            Ok(tars) => (0..tars.n_records()).for_each(|index| drop(tars.values(index, None))),
            Err(_) => n_refused += 1,
        }
    }
    assert!(n_refused > 100, "{n_refused}");
}
