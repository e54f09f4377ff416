//! Columns of a table, learnt and read.

use super::*;
use crate::source::{ColumnSize, Source};

const PEOPLE: &str =
    "name,age,\"home town\",fare\n\"Doe, Jo\",30,Rome,1.5\nAnn,50,Bern,\nBob,40,Rome,2.5\nEve,20,Oslo,9\n";

fn table(text: impl AsRef<[u8]>) -> (tempfile::TempDir, Result<Table, DataError>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    std::fs::write(&path, text).unwrap();
    let table = Table::read(&path, b',');
    (folder, table)
}

fn column(name: &str, kind: ColumnKind, missing: Missing) -> Column {
    Column { name: name.to_string(), kind, missing }
}

fn categories(names: &[&str], has_other: bool) -> ColumnKind {
    ColumnKind::Categories { names: names.iter().map(|name| (*name).to_string()).collect(), has_other }
}

fn f32s(arrays: &Arrays, name: &str) -> Vec<f32> {
    arrays.array(name).unwrap().to_vec::<f32>().unwrap()
}

/// From three rows: ages 30, 50, 40 have mean 40 and deviation √(200/3); fares 1.5 and 2.5 have mean 2.
#[test]
fn what_is_learnt_is_of_the_rows_that_are_trained_on() {
    let (_folder, table) = table(PEOPLE);
    let table = table.unwrap();
    let features = [Feature::compute("x", [5]), Feature::exact("label", DType::S32, []).below(3).label()];
    let columns: Columns = [
        (
            "x".to_string(),
            vec![
                column("age", ColumnKind::Normalized, Missing::Error),
                column("home town", categories(&[], true), Missing::Error),
                column("fare", ColumnKind::Number, Missing::Mean),
            ],
        ),
        ("label".to_string(), vec![column("home town", categories(&["Oslo", "Rome", "Bern"], false), Missing::Error)]),
    ]
    .into();
    let learnt = table.learn(&columns, &features, &[0, 1, 2]).unwrap();
    let arrays = table.arrays(&columns, &features, &learnt, &[1, 3]).unwrap();
    let std = (200.0f64 / 3.0).sqrt();
    let scaled = |age: f64| ((age - 40.0) / std) as f32;
    assert_eq!(f32s(&arrays, "x"), [scaled(50.0), 1.0, 0.0, 0.0, 2.0, scaled(20.0), 0.0, 0.0, 1.0, 9.0]);
    assert_eq!(arrays.array("label").unwrap().to_vec::<i64>().unwrap(), [2, 0]);
    assert!(arrays.place(1).ends_with("t.csv:5"), "{}", arrays.place(1));
    let names = class_names(&columns, &features, &learnt);
    assert_eq!(names["label"], ["Oslo", "Rome", "Bern"]);
    // A column that is normalised, or one of categories, is not its number.
    let rms = ((4.0f64 + 81.0) / 2.0).sqrt() as f32;
    let fare = ColumnSize { name: Some("fare".to_string()), number: 4, is_of_feature: false, rms };
    assert_eq!(arrays.columns("x"), Some(vec![fare]));
    let json = serde_json::to_string(&learnt).unwrap();
    assert_eq!(serde_json::from_str::<Learnt>(&json).unwrap(), learnt);
    // A quoted cell keeps its comma.
    assert_eq!(&table.rows[0][0], "Doe, Jo");
}

/// Like Keras' `TextVectorization(max_tokens=5, output_sequence_length=4)` on these three texts.
#[test]
fn words_are_numbered_by_how_often_they_come() {
    let (_folder, table) = table("text,y\nThe cat. The dog!,1\na cat,0\nthe end,0\n");
    let table = table.unwrap();
    let features = [Feature::exact("ids", DType::S32, [4]).below(5)];
    let columns: Columns =
        [("ids".to_string(), vec![column("text", ColumnKind::Words { max_tokens: 5 }, Missing::Error)])].into();
    let learnt = table.learn(&columns, &features, &[0, 1, 2]).unwrap();
    assert_eq!(learnt.0["ids.text"], LearntColumn::Words(["the", "cat", "end"].map(str::to_string).to_vec()));
    let arrays = table.arrays(&columns, &features, &learnt, &[0, 1, 2]).unwrap();
    let ids = arrays.array("ids").unwrap().to_vec::<i64>().unwrap();
    assert_eq!(ids, [2, 3, 2, 1, 1, 3, 0, 0, 2, 4, 0, 0]);
}

#[test]
fn decimal_commas_are_named_with_how_to_write_them() {
    let (_folder, table) = table("a,b\n1,2\n3,\"1.234,5\"\n");
    let table = table.unwrap();
    let features = [Feature::compute("b", [1])];
    let arrays = table.arrays(&Columns::new(), &features, &Learnt::default(), &[0, 1]);
    let error = arrays.unwrap_err().to_string();
    assert!(
        error
            .contains("t.csv:3: column `b` is `1.234,5`; expected a number without a comma in it\nhelp: write a point"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_column() {
    let error = |text: &str| table(text).1.unwrap_err().to_string();
    for (text, expected) in [
        ("", "no header; expected the names of the columns"),
        (
            "1,2\n3,4\n",
            "t.csv:1: the first line is numbers, such as `1`; expected the names of the columns\n\
                 help: leave `columns` out: files without a header are read by the order of their columns",
        ),
        ("a,a\n1,2\n", "t.csv:1: the header has `a` twice\nhelp: give each column another name"),
        (
            "a,b\n1,2,3\n",
            "t.csv:2: 3 cells; expected 2: `a`, `b`\n\
                 help: a cell with a comma in it stands in quotes; `delimiter` says what else is between cells",
        ),
        (
            "a,b\n1\n",
            "t.csv:2: 1 cell; expected 2: `a`, `b`\n\
                 help: a cell with a comma in it stands in quotes; `delimiter` says what else is between cells",
        ),
        ("a,b\n", "t.csv: no rows below the header; expected one example a line"),
    ] {
        assert!(error(text).ends_with(expected), "{text}: {}", error(text));
    }
}

#[test]
fn a_text_that_is_not_read_is_told() {
    let utf_16 = table(b"\xFF\xFEa\0,\0").1.unwrap_err().to_string();
    assert!(utf_16.contains("t.csv: text in UTF-16; expected UTF-8\nhelp: write it in UTF-8: "), "{utf_16}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    std::fs::write(&path, "a,b\n1,2\n").unwrap();
    assert_eq!(Table::read_up_to(&path, b',', 9).unwrap().n_rows(), 1);
    let error = Table::read_up_to(&path, b',', 8).unwrap_err().to_string();
    let expected = "t.csv: more than 8 bytes of text, which are not read into memory\n\
                        help: keep it as Parquet: `parquet: FILE`";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn a_cell_that_is_wrong_is_named_with_its_line_and_column() {
    let (_folder, table) = table(PEOPLE);
    let table = table.unwrap();
    let error_for = |column: Column, dims: i64| {
        let features = [Feature::compute("x", [dims])];
        let columns: Columns = [("x".to_string(), vec![column])].into();
        let learnt = table.learn(&columns, &features, &[0]);
        learnt.and_then(|learnt| table.arrays(&columns, &features, &learnt, &[0, 1])).unwrap_err().to_string()
    };
    for (column, dims, expected) in [
        (
            column("aeg", ColumnKind::Number, Missing::Error),
            1,
            "there is no column `aeg`; it has `name`, `age`, `home town`, `fare`",
        ),
        (
            column("salary_in_euros", ColumnKind::Number, Missing::Error),
            1,
            "t.csv:1: there is no column `salary_in_euros`; it has `name`, `age`, `home town`, `fare`\n\
                 help: name one of these under `columns`",
        ),
        (
            column("fare", ColumnKind::Number, Missing::Error),
            1,
            "t.csv:3: column `fare` is empty; expected a finite number\n\
                 help: write `missing: mean`, or a number, of the column under `columns`",
        ),
        (
            column("name", ColumnKind::Number, Missing::Error),
            1,
            "t.csv:2: column `name` is `Doe, Jo`; expected a finite number\n\
                 help: a column of names has `categories: true`, one of text `words: N`, under `columns`",
        ),
        (
            column("home town", categories(&[], false), Missing::Error),
            1,
            "t.csv:3: column `home town` is `Bern`; expected one of `Rome`\n\
                 help: `other: true` of the column makes one more category of all that are not known",
        ),
        (
            column("age", ColumnKind::Number, Missing::Error),
            3,
            "`x` has 3 numbers for an example, and its columns make 1: `age 1`\n\
                 help: write `x: [1]` in the model, or name other columns",
        ),
        (
            column("name", ColumnKind::Words { max_tokens: 9 }, Missing::Error),
            3,
            "`x` is no whole numbers, and column `name` is words; expected `dtype: int32`",
        ),
    ] {
        let error = error_for(column, dims);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_cannot_be_learnt_is_told() {
    let message_of = |text: &str, column: Column, feature: Feature| {
        let (_folder, table) = table(text);
        let (table, features) = (table.unwrap(), [feature]);
        let columns: Columns = [("x".to_string(), vec![column])].into();
        let rows: Vec<u64> = (0..table.n_rows()).collect();
        let learnt = table.learn(&columns, &features, &rows);
        learnt.and_then(|learnt| table.arrays(&columns, &features, &learnt, &rows)).unwrap_err().to_string()
    };
    let many: String = (0..=MAX_CATEGORIES).map(|n| format!("{n}\n")).collect();
    let words = column("a", ColumnKind::Words { max_tokens: 9 }, Missing::Error);
    for (text, column, feature, expected) in [
        (
            "a,b\n,1\nNA,2\n",
            column("a", ColumnKind::Normalized, Missing::Error),
            Feature::compute("x", [1]),
            "t.csv:1: column `a` has no number in any row that is trained on",
        ),
        (
            "a,b\none,1\n,2\n",
            column("a", categories(&[], false), Missing::Error),
            Feature::compute("x", [1]),
            "t.csv:3: column `a` is empty; expected a name\nhelp: write what stands there, such as `unknown`",
        ),
        (
            &format!("a\n{many}"),
            column("a", categories(&[], false), Missing::Error),
            Feature::compute("x", [1]),
            "t.csv:100002: column `a` is `100000`; expected at most 100000 categories in a column",
        ),
        (
            "a,b\n1,1\n2,2\n",
            column("a", ColumnKind::Normalized, Missing::Error),
            Feature::exact("x", DType::S32, [1]),
            "`x` is whole numbers, and column `a` is normalized; expected `dtype: compute`",
        ),
        (
            "a,b\none two,1\n",
            words,
            Feature::exact("x", DType::S32, [4]).below(5),
            "t.csv: `words: 9` of column `a`, and the model has room for 5\n\
                 help: write `input_dim: 9`, or `words: 5`",
        ),
    ] {
        let error = message_of(text, column, feature);
        assert!(error.ends_with(expected), "{error}");
    }
}
