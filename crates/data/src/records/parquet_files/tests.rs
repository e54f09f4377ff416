//! Files written by pyarrow (`tests/data/input/parquet`), and damaged copies of them.

use super::super::{Records as _, unpacked};
use super::*;
use crate::error::DataError;
use std::fs;
use std::sync::LazyLock;

static CACHE: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/input/parquet").join(name)
}

fn open(path: &Path) -> Result<Parquet, DataError> {
    Parquet::open(&[path.to_path_buf()], Some(CACHE.path()))
}

/// Row `n` of the numbers in `parquet.py`.
fn numbers(n: i64) -> Values {
    let ints = |values: Vec<i64>| Value::Ints(values);
    let x = n as f32;
    let pairs = [
        ("id", ints(vec![n])),
        ("class", ints(vec![n % 3 - 1])),
        ("small", ints(vec![255 - n])),
        ("great", ints(vec![(1 << 62) + n])),
        ("flag", ints(vec![n % 2])),
        ("weight", Value::Floats(vec![x / 8.0 - 2.0])),
        ("half", Value::Floats(vec![x / 4.0])),
        ("tokens", ints((0..5).map(|k| n * 10 + k).collect())),
        ("fixed", Value::Floats(vec![x + 0.5, -x, 0.25])),
        ("grid", ints((0..6).map(|k| n + 3 * (k / 3) + k % 3).collect())),
        ("text", Value::Bytes(vec![format!("row {n} {}", "x".repeat(n as usize % 4)).into_bytes()])),
        ("raw", Value::Bytes(vec![vec![n as u8, 1, 2, 3]])),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

#[test]
fn every_codec_and_encoding_gives_the_same_rows() {
    let mut fingerprints = std::collections::BTreeSet::new();
    for name in ["none", "snappy", "gzip", "zstd", "lz4", "brotli", "delta", "pages"] {
        let rows = open(&fixture(&format!("numbers-{name}.parquet"))).unwrap();
        assert_eq!(rows.n_records(), 40, "{name}");
        for index in (0..40).rev() {
            assert_eq!(rows.values(index, None).unwrap(), numbers(index as i64), "{name}, row {index}");
        }
        let asked = rows.values(7, Some(&["tokens", "other"])).unwrap();
        assert_eq!(asked, [("tokens".to_string(), Value::Ints(vec![70, 71, 72, 73, 74]))].into());
        // A checkpoint's fingerprint depends on the content of the rows, not on their encoding.
        fingerprints.insert(rows.fingerprint().to_string());
    }
    assert_eq!(fingerprints.len(), 1);
}

#[test]
fn what_is_odd_is_said_by_file_row_and_column() {
    let rows = open(&fixture("odd.parquet")).unwrap();
    let message = |index: u64, key: &str| {
        let error = rows.values(index, Some(&[key])).unwrap_err().to_string();
        error.replace(&format!("{}/", fixture("").display()), "").replace(fixture("").to_str().unwrap(), "")
    };
    let skip = "leave such rows out: `on_error: {skip: N}` under `data`";
    assert_eq!(
        message(1, "class"),
        format!("odd.parquet, row 1: column `class` is null; expected a value\nhelp: {skip}")
    );
    assert!(message(2, "tokens").starts_with("odd.parquet, row 2: column `tokens` is null; expected a value\n"));
    let damaged = format!("help: if the file is damaged, copy or download it again; or {skip}");
    assert_eq!(
        message(3, "tokens"),
        format!("odd.parquet, row 3: column `tokens`: null at place 1 of its list; expected a value\n{damaged}")
    );
    assert_eq!(
        message(4, "grid"),
        format!(
            "odd.parquet, row 4: column `grid`: lists of 3 and of 2 values in one list; expected as many in each\n{damaged}"
        )
    );
    assert!(message(5, "great").contains(
        "column `great`: 9223372036854775808, beyond the largest whole number that is read, 9223372036854775807\n"
    ));
    assert!(message(6, "weight").contains("column `weight`: 1e300, beyond the largest f32, 3.4028235e38\n"));
    assert_eq!(
        message(0, "price"),
        "odd.parquet, row 0: column `price` is decimal(21, 2); expected whole numbers, floats, bools, bytes, text or lists of \
         them"
    );
    assert!(message(0, "image").contains(
        "column `image` is null; expected a value: the row only says where its file was, so write the data set again with \
         files in it\n"
    ));
    assert_eq!(rows.values(0, Some(&["empty"])).unwrap()["empty"], Value::Ints(Vec::new()));
    // A null is an error only if its column is requested; a list that contains one is an error.
    let whole = rows.values(1, None).unwrap();
    assert!(!whole.contains_key("class") && whole["id"] == Value::Ints(vec![1]) && !whole.contains_key("price"));
    assert!(rows.values(3, None).unwrap_err().to_string().contains("row 3: column `tokens`: null at place 1"));
    assert_eq!(rows.values(7, Some(&["id", "nothing"])).unwrap().len(), 1);
}

/// Which of two is meant, only their writer knows; and the lengths of lists are there for those who ask for lists.
#[test]
fn columns_of_one_name_are_not_guessed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let names = ["x", "y", "x"].map(str::to_string);
    fs::write(&path, of_columns(&names, &[7])).unwrap();
    let rows = open(&path).unwrap();
    let y = Values::from([("y".to_string(), Value::Ints(vec![7]))]);
    assert_eq!(rows.values(0, Some(&["y"])).unwrap(), y);
    assert_eq!(rows.values(0, None).unwrap(), y);
    assert_eq!(
        rows.values(0, Some(&["x"])).unwrap_err().to_string(),
        format!(
            "{}, row 0: column `x` is there twice; expected one column of its name\nhelp: rename one: which is meant, only \
             their writer knows",
            path.display()
        )
    );
    let grid = open(&fixture("numbers-none.parquet")).unwrap().values(5, Some(&["grid"])).unwrap();
    assert_eq!(grid[&format!("grid{DIMS}")], Value::Ints(vec![2, 3]));
}

/// A Parquet file of integer columns with these names; each holds these values, one in a row.
fn of_columns(names: &[String], values: &[i32]) -> Vec<u8> {
    use parquet::basic::Type::INT32;
    use parquet::data_type::Int32Type;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::types::Type;

    let column = |name: &String| Arc::new(Type::primitive_type_builder(name, INT32).build().unwrap());
    let fields = names.iter().map(column).collect();
    let schema = Arc::new(Type::group_type_builder("rows").with_fields(fields).build().unwrap());
    let mut bytes = Vec::new();
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(&mut bytes, schema, properties).unwrap();
    if !values.is_empty() {
        let mut group = file.next_row_group().unwrap();
        while let Some(mut column) = group.next_column().unwrap() {
            let levels = vec![1; values.len()];
            column.typed::<Int32Type>().write_batch(values, Some(&levels), None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    file.close().unwrap();
    bytes
}

#[test]
fn what_is_no_parquet_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = open(&path).unwrap_err().to_string();
        error.replace(&format!("{}/", folder.path().display()), "")
    };
    let help = "help: copy or download the file again";
    assert_eq!(refused(b"x,y\n"), format!("a.parquet: no Parquet file: 4 bytes\n{help}"));
    assert_eq!(
        refused(b"x,y\n1.0,2.0\n3.0,4.0"),
        format!("a.parquet: no Parquet file: it does not end with PAR1\n{help}")
    );
    assert_eq!(
        refused(b"1.0,2.0\n3.0,4.0PAR1"),
        format!("a.parquet: no Parquet file: it ends with PAR1, and does not begin with it\n{help}")
    );
    assert_eq!(
        refused(b"PAR1aaaa\xff\xff\xff\x7fPAR1"),
        format!(
            "a.parquet: no Parquet file: a footer of 2147483647 bytes in 16; expected at most 268435456 and no more than \
             there are\n{help}"
        )
    );
    assert!(refused(b"PAR1aaaa\x04\0\0\0PAR1").starts_with("a.parquet: no Parquet file: its footer cannot be read: "));
    let whole = fs::read(fixture("numbers-snappy.parquet")).unwrap();
    for end in [whole.len() - 1, whole.len() / 2, 13] {
        assert!(refused(&whole[..end]).contains("it does not end with PAR1"), "{end}");
    }
    // The footer alone, which says where columns were.
    let whole = fs::read(fixture("numbers-none.parquet")).unwrap();
    let length = u32::from_le_bytes(*whole[..whole.len() - 4].last_chunk().unwrap()) as usize;
    assert_eq!(
        refused(&[b"PAR1", &whole[whole.len() - 8 - length..]].concat()),
        format!("a.parquet: no Parquet file: column `id` lies beyond the file's 3782 bytes\n{help}")
    );
    for (names, expected) in [
        (vec!["a\0".to_string()], "a column is called \"a\\0\"; expected a name without a NUL"),
        ((0..10_001).map(|n| format!("c{n}")).collect(), "10001 columns; expected at most 10000"),
    ] {
        assert_eq!(refused(&of_columns(&names, &[])), format!("a.parquet: no Parquet file: {expected}\n{help}"));
    }
    for name in ["encrypted.parquet", "encrypted-columns.parquet"] {
        let error = open(&fixture(name)).unwrap_err().to_string();
        let expected = "an encrypted Parquet file; expected one that is not: there is nowhere to give its keys";
        assert_eq!(error, format!("{}: {expected}", fixture(name).display()));
    }
    let error = Parquet::open(&[fixture("odd.parquet")], None).unwrap_err().to_string();
    let expected = "a Parquet file, whose records are read by number once it is unpacked, and there is no cache directory \
                    for that\nhelp: set BF16SCOPE_CACHE";
    assert_eq!(error, format!("{}: {expected}", fixture("odd.parquet").display()));
}

/// A damaged page invalidates the rows of its column in its row group, and no others.
#[test]
fn a_damaged_page_is_said_by_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(fixture("shapes-0.parquet")).unwrap();
    let plain = open(&fixture("shapes-0.parquet")).unwrap();
    let path = folder.path().join("a.parquet");
    // The first page holds images, after its header; row groups have 4 rows and 2.
    let mut damaged = whole.clone();
    damaged[1000] ^= 1;
    fs::write(&path, damaged).unwrap();
    let rows = open(&path).unwrap();
    for index in 0..4 {
        let error = rows.values(index, Some(&["image"])).unwrap_err().to_string();
        let place = format!("{}, row {index}: column `image`: the checksum of the page at byte ", path.display());
        assert!(error.starts_with(&place), "{error}");
        assert_eq!(rows.values(index, Some(&["label"])).unwrap(), plain.values(index, Some(&["label"])).unwrap());
    }
    for index in 4..6 {
        assert_eq!(rows.values(index, None).unwrap(), plain.values(index, None).unwrap());
    }
    assert_ne!(rows.fingerprint(), plain.fingerprint());
}

/// Bytes are changed one by one: the result is an error or rows, never larger than the file's bytes and headers allow.
#[test]
fn mutated_files_are_errors_or_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (path, cache) = (folder.path().join("a.parquet"), folder.path().join("cache"));
    let mut n = [0; 3];
    for (name, step) in [("numbers-delta.parquet", 211), ("numbers-snappy.parquet", 197), ("odd.parquet", 127)] {
        let whole = fs::read(fixture(name)).unwrap();
        for at in (4..whole.len()).step_by(step) {
            let mut mutated = whole.clone();
            mutated[at] ^= 1 << (at % 8);
            fs::write(&path, mutated).unwrap();
            match Parquet::open(std::slice::from_ref(&path), Some(&cache)) {
                Err(error) => n[0] += usize::from(!error.to_string().is_empty()),
                Ok(rows) => (0..rows.n_records().min(50)).for_each(|index| match rows.values(index, None) {
                    Ok(_) => n[1] += 1,
                    Err(_) => n[2] += 1,
                }),
            }
            unpacked(&cache).clear().unwrap();
        }
    }
    assert!(n.iter().all(|&n| n > 10), "{n:?}");
}

/// A fault in a page is reported for its rows; `pages` tests the claims of headers.
#[test]
fn a_page_without_a_head_is_said_by_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let whole = fs::read(fixture("numbers-none.parquet")).unwrap();
    // The header of the first page is `15 04` (a dictionary: 2), `15 n` (bytes), `15 n` (the same, because the page is
    // not compressed).
    let head = &whole[4..];
    assert_eq!((&head[..2], head[2], head[5]), (&[0x15, 4][..], 0x15, 0x15));
    let message = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let error = open(&path).unwrap().values(0, Some(&["id"])).unwrap_err().to_string();
        error.lines().next().unwrap().split(": ").skip(2).collect::<Vec<_>>().join(": ")
    };
    let nested = message(&|bytes| bytes[4] = 0x1f);
    assert!(nested.starts_with("no head of a page at byte 4"), "{nested}");
}
