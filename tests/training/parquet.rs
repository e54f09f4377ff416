//! Parquet files that pyarrow wrote (`tests/data/input/parquet`) as an experiment's examples, with word vectors of a column.

use bf16scope::data::records::{self, Value};
use bf16scope::experiment::Experiment;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input")
}

/// The drawings are those of the tar that they were made of.
#[test]
fn images_in_a_struct_are_those_of_the_tar() {
    let cache = tempfile::tempdir().unwrap();
    let rows = records::open(folder().join("parquet"), &["shapes-*.parquet"], Some(cache.path())).unwrap();
    let tar = records::open(folder(), &["shapes.tar"], Some(cache.path())).unwrap();
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

#[test]
fn a_column_of_text_becomes_word_vectors_or_numbers_of_words() {
    let place = tempfile::tempdir().unwrap();
    for name in ["shapes-0.parquet", "shapes-1.parquet"] {
        std::fs::copy(folder().join("parquet").join(name), place.path().join(name)).unwrap();
    }
    std::fs::write(place.path().join("words.txt"), "a 0 0 1\ndrawing 0.5 -1 2\n7 1 2 3\n").unwrap();
    let path = place.path().join("e.yaml");
    let read = |words: &str, feature: &str, table: &str| {
        let text = format!(
            "model: {{kind: two_tower, pictures: [16, 16, 3], words: {words}, loss: {{kind: classification, n_classes: 3}}}}\n\
             data:\n  parquet: shapes-0.parquet\n  test: {{parquet: shapes-1.parquet}}\n  features:\n    pictures: {{key: \
             image, resize: bilinear}}\n    {feature}: {{key: caption, word_vectors: {{table: {table}}}}}\n    labels: {{key: \
             label}}\n"
        );
        std::fs::write(&path, text).unwrap();
        Experiment::read(&path).unwrap().read_data(&path, &bf16scope::pjrt::Setup::from_env())
    };
    let bytes = |examples: &bf16scope::experiment::Examples, index: u64, name: &str| {
        let at = examples.test.arrays().iter().position(|info| info.name == name).unwrap();
        examples.test.read(index).unwrap()[at].to_vec()
    };
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    // Row 1 of the second file is drawing 7.
    let examples = read("{kind: vectors, dims: [3, 3]}", "word_vectors", "words.txt").unwrap();
    assert_eq!((examples.training.n_examples(), examples.test.n_examples()), (6, 5));
    assert_eq!(bytes(&examples, 1, "word_vectors"), floats(&[0.5, -1.0, 2.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0]));
    assert_eq!(bytes(&examples, 0, "word_vectors"), floats(&[0.5, -1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
    let examples = read("{kind: vectors, dims: [3]}", "word_vectors", "words.txt").unwrap();
    assert_eq!(bytes(&examples, 1, "word_vectors"), floats(&[0.75, 0.5, 2.5]));
    let before = examples.test.fingerprint();
    let examples = read("{kind: ids, length: 3, vocabulary: 4}", "words", "words.txt").unwrap();
    assert_eq!(bytes(&examples, 1, "words"), [2i64, 3, 0].map(i64::to_le_bytes).concat());
    // Another table is other data, whatever its path.
    std::fs::write(place.path().join("more.txt"), "a 0 0 1\ndrawing 0.5 -1 2\n7 1 2 4\n").unwrap();
    let examples = read("{kind: vectors, dims: [3]}", "word_vectors", "more.txt").unwrap();
    assert_ne!(examples.test.fingerprint().arrays["word_vectors"], before.arrays["word_vectors"]);

    // A column of numbers has no words.
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("key: caption", "key: label")).unwrap();
    let error = Experiment::read(&path)
        .unwrap()
        .read_data(&path, &bf16scope::pjrt::Setup::from_env())
        .unwrap()
        .test
        .read(0)
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("row 0: feature `label` is 1 value of int64; expected text"), "{error}");

    let refused = |words: &str, feature: &str, table: &str| {
        let error = read(words, feature, table).map(|_| ()).unwrap_err().to_string();
        error.replace(&format!("{}/", place.path().display()), "")
    };
    assert_eq!(
        refused("{kind: vectors, dims: [3, 4]}", "word_vectors", "words.txt"),
        "words.txt: vectors of 3 numbers; expected 4, for `word_vectors` has dims [3, 4]"
    );
    assert_eq!(
        refused("{kind: ids, length: 3, vocabulary: 3}", "words", "words.txt"),
        "words.txt: 4 numbers of words, 0 among them; expected at most 3, for `words` takes those below"
    );
    assert_eq!(
        refused("{kind: vectors, dims: [3]}", "word_vectors", "words.txt, vocabulary: e.yaml"),
        "words.txt: a text with a `vocabulary` beside it; expected no `vocabulary`: each line begins with its word"
    );
}
