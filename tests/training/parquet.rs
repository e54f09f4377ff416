//! Parquet files that pyarrow wrote (`tests/data/input/parquet`) as records.

use bf16scope::data::records::{self, Value};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input")
}

/// The drawings are those of the tar that they were made of.
#[test]
fn images_in_a_struct_are_those_of_the_tar() {
    let cache = tempfile::tempdir().unwrap();
    let rows = records::open(&folder().join("parquet"), &["shapes-*.parquet"], Some(cache.path())).unwrap();
    let tar = records::open(&folder(), &["shapes.tar"], Some(cache.path())).unwrap();
    assert_eq!((rows.n_records(), rows.classes()), (11, &["disc", "box", "cross"].map(str::to_string)[..]));
    assert!(rows.is_image("image") && !rows.is_image("caption"));
    for index in (0..11).rev() {
        let (row, file) = (rows.values(index, None).unwrap(), tar.values(index, None).unwrap());
        let image = file.get("jpg").or(file.get("png")).unwrap();
        assert_eq!((&row["image"], &row["label"]), (image, &file["cls"]), "row {index}");
        let Value::Floats(corners) = &file["json.box"] else { panic!("{file:?}") };
        assert_eq!(row["objects.bbox"], Value::Floats([&corners[..], corners].concat()));
        assert_eq!(row["objects.area"], Value::Floats(vec![1.5 * index as f32]));
        assert_eq!(row["caption"], Value::Bytes(vec![format!("drawing {index}").into_bytes()]));
    }
    assert!(rows.place(6).ends_with("shapes-1.parquet, row 0"), "{}", rows.place(6));
}
