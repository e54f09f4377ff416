//! Keys of `data` that contradict each other, and values that have two forms.

use super::*;
use bf16scope_data::npz::{Header, NpzWriter};
use bf16scope_hlo::DType;
use bf16scope_model::document::Document;

/// The error of the experiment at `path` whose second line is `data: DATA`.
fn error_of(data: &str, path: &Path, features: &[Feature]) -> String {
    #[derive(Deserialize)]
    struct Block {
        data: DataConfig,
    }
    let document = Document::parse(&path.display().to_string(), &format!("model: {{}}\ndata: {data}\n")).unwrap();
    match document.read::<Block>() {
        Ok(Block { data }) => {
            DataConfig { origin: document.into(), ..data }.read(path, features).unwrap_err().to_string()
        }
        Err(error) => error.to_string(),
    }
}

/// An error of `data` shows the line, in a file whose `data` begins on the second.
#[test]
fn keys_that_are_wrong_are_refused_with_their_place() {
    let features = [Feature::compute("x", [2]), Feature::compute("y", [2]).label()];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    let refused = |data: &str| {
        let error = error_of(data, &path, &features);
        let error = error.strip_prefix(&path.display().to_string()).unwrap().to_string();
        assert!(error.contains("\n  2 | data: {"), "{error}");
        // An unknown format is answered with all of them.
        let lists_formats = error.contains("\n  help: `data` is {csv: FILE}, {npz");
        assert_eq!(lists_formats, error.contains(" of `csv`, `npz`, "), "{error}");
        let (place, message) = error.lines().next().unwrap().split_once(": ").unwrap();
        (place.to_string(), message.to_string())
    };
    for (data, key, expected) in [
        (
            "{npz: a.npz, n_test: 1, arrays: {z: x_train}}",
            "z:",
            "`data` has `arrays` of z, expected a feature of the model: x, y",
        ),
        // Labels are not scaled with the network's inputs.
        (
            "{npz: a.npz, n_test: 1, scale: {y: 0.5}}",
            "y:",
            "`data` has `scale` of y, expected a feature that the network computes with: x",
        ),
        (
            "{csv: a.csv, n_test: 1, arrays: {x: a}}",
            "arrays",
            "`data` has `arrays` beside `csv`, expected it with `npz`, `text` or `jsonl`: other files have no names of arrays",
        ),
        (
            "{csv: a.csv, n_test: 0}",
            "n_test",
            "`data` has `n_test: 0`, expected at least 1: each epoch ends with an evaluation",
        ),
        ("{csv: a.csv, npz: b.npz, n_test: 1}", "npz:", "`data` has `npz` beside `csv`, expected one of them"),
        (
            "{n_test: 1}",
            "data",
            "`data` has none of `csv`, `npz`, `idx`, `mnist`, `tfrecord`, `webdataset`, `parquet`, `images`, `text` or `jsonl`, expected one of them",
        ),
        (
            "{mnist: m, n_test: 1}",
            "n_test",
            "`data` has `mnist` and what is for testing, expected neither `n_test` nor `test`: it has a test set",
        ),
    ] {
        let column = format!("data: {data}").rfind(key).unwrap() + 1;
        assert_eq!(refused(data), (format!(":2:{column}"), expected.to_string()), "{data}");
    }
    // A config without its document has an error without a place.
    let config: DataConfig = document::from_str("e.yaml", "{n_test: 1}").unwrap();
    let error = config.read(Path::new("/nonexistent/e.yaml"), &features).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/e.yaml: `data` has none of"), "{error}");
    let config: DataConfig = document::from_str("e.yaml", "{npz: a.npz, n_test: 1, scale: 0.5}").unwrap();
    let reading = |config| {
        let (path, folder) = (Path::new("e.yaml"), Path::new(""));
        memory::factors(&Reading { data: config, path, folder, features: &features, keys: Vec::new() }).unwrap()
    };
    assert_eq!(reading(&config), [("x".to_string(), 0.5)]);
    let mnist: DataConfig = document::from_str("e.yaml", "{mnist: m}").unwrap();
    assert_eq!(reading(&mnist), [("x".to_string(), 1.0 / 255.0)]);
    assert_eq!(features[1].dtype_in(DType::BF16), DType::BF16);
}

/// The error of `data: TEXT`, with its place, in a file whose `data` is on the second line.
fn refused(data: &str) -> (String, String) {
    let features = [Feature::compute("images", [8, 8, 3]), Feature::exact("labels", DType::S32, []).label()];
    let folder = tempfile::tempdir().unwrap();
    let error = error_of(data, &folder.path().join("e.yaml"), &features);
    let error = error.replace(&format!("{}", folder.path().display()), "");
    let (place, message) = error.lines().next().unwrap().split_once(": ").unwrap();
    (place.to_string(), message.to_string())
}

#[test]
fn keys_that_do_not_go_together_are_refused_with_their_place() {
    for (data, key, expected) in [
        (
            "{csv: a.csv, n_test: 1, workers: 2}",
            "workers",
            "`data` has `workers` beside `csv`, expected it with `tfrecord`, `webdataset`, `parquet`, `images`, `text` or \
             `jsonl`: other files are read into memory as they are",
        ),
        (
            "{csv: a.csv, tokens: {tokenizer: bytes, window: 4}, n_test: 1}",
            "tokens",
            "`data` has `tokens` beside `csv`, expected it with `text` or `jsonl`: other files hold no text",
        ),
        (
            "{text: a, scale: 0.5, n_test: 1}",
            "scale",
            "`data` has `scale` beside `text`, expected it with `csv`, `npz`, `idx`, `mnist`, `tfrecord`, `webdataset`, \
             `parquet` or `images`: text becomes ids",
        ),
        (
            "{csv: a.csv, test: {tfrecord: b*}}",
            "test",
            "`data` has `test` of another kind, expected `test: {csv: FILE}`, `test: {npz: FILE}` or `test: {idx: {NAME: FILE}}`",
        ),
        (
            "{tfrecord: a*, test: {parquet: b*}}",
            "test",
            "`data` has `test` of another kind, expected `test: {tfrecord: FILES}`",
        ),
        ("{csv: a.csv, test: {csv: b.csv, npz: c.npz}}", "npz:", "`test` has `npz` beside `csv`, expected one of them"),
        ("{csv: a.csv, test: {}}", "{}", "found keys and values, expected files for testing"),
        (
            "{csv: a.csv, tset: {}}",
            "tset",
            "unknown key `tset`, expected one of csv, npz, idx, mnist, tfrecord, webdataset, parquet, images, text, jsonl, augment, \
             columns, delimiter, classes, tokens, features, workers, on_error, arrays, scale, n_train, n_test, test, \
             n_validation, validation, shuffle, stratify",
        ),
        (
            "{csv: a.csv, test: {csb: b}}",
            "csb",
            "unknown key `csb`, expected one of csv, npz, idx, mnist, tfrecord, webdataset, parquet, images, text, jsonl",
        ),
        ("{tfrecord: a*, csv: b.csv, n_test: 1}", "csv:", "`data` has `csv` beside `tfrecord`, expected one of them"),
        (
            "{tfrecord: a*, images: b, n_test: 1}",
            "images",
            "`data` has `images` beside `tfrecord`, expected one of them",
        ),
        (
            "{webdataset: a*, csv: b.csv, n_test: 1}",
            "csv:",
            "`data` has `csv` beside `webdataset`, expected one of them",
        ),
        (
            "{parquet: a*, webdataset: b*, n_test: 1}",
            "webdataset:",
            "`data` has `webdataset` beside `parquet`, expected one of them",
        ),
        ("{parquet: a*}", "data", "`data` has nothing for testing, expected `n_test: N`, or `test: {parquet: FILES}`"),
        (
            "{tfrecord: a*, n_test: 1, workers: 0}",
            "workers",
            "`data` has `workers: 0`, expected 1 at least, or none said: as many as there are cores",
        ),
        (
            "{tfrecord: a*, features: {image: {}}}",
            "image:",
            "`data` has `features` of image, expected a feature of the model: images, labels",
        ),
        (
            "{tfrecord: a*, features: {labels: {resize: bicubic}}}",
            "resize",
            "`data` has `resize` for `labels`, expected it of an image, [height, width, 1 or 3]: `labels` has dims []",
        ),
        (
            "{tfrecord: a*, features: {images: {mean: [1.0]}}}",
            "mean",
            "`data` has `mean: [1.0]` for `images`, expected finite numbers, one for each of 3 channels",
        ),
        (
            "{tfrecord: a*, features: {images: {std: [1, 0, 1]}}}",
            "std",
            "`data` has `std: [1.0, 0.0, 1.0]` for `images`, expected numbers above 0, one for each of 3 channels",
        ),
        (
            "{tfrecord: a*, features: {images: {random_resized_crop: {area_range: [0, 1]}}}}",
            "area_range",
            "`data` has `area_range: [0.0, 1.0]` for `images`, expected two shares above 0 and up to 1, the lesser first",
        ),
        (
            "{tfrecord: a*, features: {labels: {dct_method: integer_fast}}}",
            "dct_method",
            "`data` has `dct_method` for `labels`, expected it of an image, [height, width, 1 or 3]: `labels` has dims []",
        ),
        (
            "{tfrecord: a*, features: {images: {random_flip: true, raw: u8}}}",
            "raw",
            "`data` has `raw` with `random_flip` for `images`, expected one of them: raw bytes are not an encoded image",
        ),
        (
            "{tfrecord: a*, features: {images: {random_flip: true, offset: 1}}}",
            "offset",
            "`data` has `offset` with `random_flip` for `images`, expected one of them: an image is not an integer",
        ),
        (
            "{tfrecord: a*, features: {images: {half_pixel_centers: true}}}",
            "half_pixel_centers",
            "`data` has `half_pixel_centers` without `resize` for `images`, expected it with `resize: bicubic` or `resize: \
             bilinear`",
        ),
        (
            "{tfrecord: a*, features: {labels: {one_hot: true}}}",
            "one_hot",
            "`data` has `one_hot` for `labels`, expected it of a row, one number for each class: `labels` has dims []",
        ),
    ] {
        let column = format!("data: {data}").rfind(key).unwrap() + 1;
        assert_eq!(refused(data), (format!("/e.yaml:2:{column}"), expected.to_string()), "{data}");
    }
}

#[test]
fn files_and_errors_are_said_in_two_ways_each() {
    let config = |text: &str| document::from_str::<DataConfig>("e.yaml", text);
    let files = |patterns: &[&str]| {
        let patterns = patterns.iter().map(|pattern| pattern.to_string()).collect();
        DataSource::TfRecord(source::TfRecord(Patterns(patterns)))
    };
    assert_eq!(config("{tfrecord: a*}").unwrap().source, Some(files(&["a*"])));
    let two = config("{tfrecord: [a, b*], on_error: {skip: 3}}").unwrap();
    assert_eq!(two.source, Some(files(&["a", "b*"])));
    assert_eq!((two.on_error, config("{on_error: stop}").unwrap().on_error), (Tolerance::Skip(3), Tolerance::Stop));
    for (text, expected) in [
        ("{tfrecord: []}", "a file name or a pattern such as train-*, or a list of them"),
        ("{on_error: skip}", "`stop`, or `{skip: N}`: how many examples may be left out, 1 at least"),
        ("{on_error: {skip: 0}}", "`stop`, or `{skip: N}`"),
        ("{on_error: {stop: 1}}", "`stop`, or `{skip: N}`"),
    ] {
        let error = config(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// `npz` beside a CSV file used not to be scaled, and a CSV file beside `npz` was scaled twice.
#[test]
fn examples_for_testing_are_scaled_as_those_for_training_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    std::fs::write(folder.path().join("a.csv"), "2,4,1\n6,8,1\n").unwrap();
    let mut npz = NpzWriter::create(folder.path().join("a.npz")).unwrap();
    npz.add("x", &Header::for_dtype(DType::F32, vec![1, 2]), &[2.0_f32, 4.0].map(f32::to_le_bytes).concat()).unwrap();
    npz.add("y", &Header::for_dtype(DType::F32, vec![1]), &1.0_f32.to_le_bytes()).unwrap();
    npz.finish().unwrap();
    let features = [Feature::compute("x", [2]), Feature::compute("y", []).label()];
    for (data, is_applied) in [
        ("{csv: a.csv, test: {npz: a.npz}, scale: 0.5}", true),
        ("{npz: a.npz, test: {csv: a.csv}, scale: 0.5}", false),
    ] {
        let config: DataConfig = document::from_str("e.yaml", data).unwrap();
        let examples = config.read(&path, &features).unwrap();
        for (source, has_scale) in [(&examples.training, !is_applied), (&examples.test, is_applied)] {
            let bytes = source.read(0).unwrap()[0].to_vec();
            let first = f32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert_eq!(first * source.arrays()[0].scale, 1.0, "{data}");
            assert_eq!(source.arrays()[0].scale != 1.0, has_scale, "{data}");
        }
    }
}

#[test]
fn other_examples_of_another_kind_are_refused_with_what_is_read() {
    let read_other_file = |data: DataConfig, file: &str, features: &[Feature]| {
        let error = data.read_other(Path::new("e.yaml"), Path::new(file), features).map(drop).unwrap_err();
        error.to_string()
    };
    let read_other = |data: DataConfig, features: &[Feature]| read_other_file(data, "one.png", features);
    let image = Feature::compute("image", [8, 8, 3]);
    assert_eq!(
        read_other_file(DataConfig::default(), "one.tfrecord", std::slice::from_ref(&image)),
        "one.tfrecord: a file of another kind, expected one whose name ends in .npz, .csv or .csv.gz, or with `tokens` under `data` \
         in .txt or .jsonl: `data` of this experiment does not say how features are made of records or images"
    );
    #[derive(Deserialize)]
    struct Block {
        data: DataConfig,
    }
    // An image is bytes, and `scale` says whether the arrays of `data` are.
    let help = "help: give examples as `data` has them: arrays in an .npz file, or rows of a .csv";
    let in_memory = |scale: &str| {
        let document = Document::parse("e.yaml", &format!("data: {{npz: a.npz, n_test: 1{scale}}}\n")).unwrap();
        let Block { data } = document.read().unwrap();
        read_other(data, std::slice::from_ref(&image))
    };
    assert_eq!(
        in_memory(""),
        format!(
            "one.png: an image, and `data` of this experiment has no `scale` of `image`, which would say what a pixel (0 to \
             255) is to the network\n{help}"
        )
    );
    assert_eq!(
        in_memory(", scale: 0.0625"),
        format!(
            "one.png: an image, and `scale` of `image` makes 15.9375 of a white pixel (255), expected about 1, as where \
             examples are bytes\n{help}"
        )
    );
    let missing = in_memory(", scale: 0.00392157");
    assert!(missing.starts_with("one.png: cannot open the data file"), "{missing}");
    let document = Document::parse("e.yaml", "data: {images: pictures, n_test: 1}\n").unwrap();
    let Block { data } = document.read().unwrap();
    assert_eq!(
        read_other(data, &[image.clone(), Feature::compute("age", [1])]),
        "one.png: an image is not all that the model reads: `image` [8, 8, 3], `age` [1]; expected records or a folder that \
         hold each feature"
    );
}

#[test]
fn arrays_of_other_examples_that_no_feature_is_named_after_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let mut npz = NpzWriter::create(&path).unwrap();
    for name in ["pictures", "y", "images", "extra"] {
        npz.add(name, &Header::for_dtype(DType::U8, vec![1]), &[0]).unwrap();
    }
    npz.finish().unwrap();
    let features = [Feature::compute("x", []), Feature::compute("y", []).label()];
    let config: DataConfig = document::from_str("e.yaml", "{npz: a.npz, n_test: 1, arrays: {x: images}}").unwrap();
    let expected = format!("{}: no feature is named `extra`, `pictures`; not used", path.display());
    assert_eq!(config.unused_of(&path, &features), Some(expected));
    assert_eq!(config.unused_of(&path.with_extension("csv"), &features), None);
}

/// A CSV file of 100 rows, 90 of class 0 and then 10 of class 1, and the parts that `data` makes of it.
fn parts_of(data: &str) -> Result<[Vec<i32>; 3], String> {
    parts_by(data, Feature::exact("labels", DType::S32, []).below(2).label())
}

fn parts_by(data: &str, label: Feature) -> Result<[Vec<i32>; 3], String> {
    #[derive(Deserialize)]
    struct Block {
        data: DataConfig,
    }
    let features = [Feature::exact("x", DType::S32, []), label];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    let rows: String = (0..100).map(|row| format!("{row},{}\n", u32::from(row >= 90))).collect();
    std::fs::write(folder.path().join("a.csv"), rows).unwrap();
    std::fs::write(folder.path().join("b.csv"), "100,0\n101,1\n").unwrap();
    let document = Document::parse(&path.display().to_string(), &format!("data: {data}\n")).unwrap();
    let failed = |error: String| {
        let line = error.lines().next().unwrap();
        line.split_once(": ").map_or(line, |(_, text)| text).to_string()
    };
    let Block { data } = document.read().map_err(|error| failed(error.to_string()))?;
    let data = DataConfig { origin: document.into(), ..data };
    let examples = data.read(&path, &features).map_err(|error| failed(error.to_string()))?;
    let x = |source: &dyn Source| {
        let read = |index| i32::from_le_bytes((&*source.read(index).unwrap()[0]).try_into().unwrap());
        (0..source.n_examples()).map(read).collect::<Vec<_>>()
    };
    let validation = examples.validation.as_deref().map(x).unwrap_or_default();
    Ok([x(&*examples.training), validation, x(&*examples.test)])
}

#[test]
fn parts_are_cut_at_the_end_shuffled_or_class_by_class() {
    let [training, validation, test] = parts_of("{csv: a.csv, n_test: 0.2, n_validation: 5}").unwrap();
    assert_eq!((training.len(), validation, test), (75, (75..80).collect(), (80..100).collect()));
    let [training, validation, test] = parts_of("{csv: a.csv, n_test: 20, n_validation: 10, stratify: true}").unwrap();
    let n_ones = |part: &[i32]| part.iter().filter(|&&row| row >= 90).count();
    assert_eq!([&training, &validation, &test].map(|part| (part.len(), n_ones(part))), [(70, 7), (10, 1), (20, 2)]);
    // Labels of triplets have no bound.
    let labels = Feature::exact("labels", DType::S32, []).label();
    let [_, _, test] = parts_by("{csv: a.csv, n_test: 20, stratify: true}", labels).unwrap();
    assert_eq!((test.len(), n_ones(&test)), (20, 2));
    let shuffled = parts_of("{csv: a.csv, n_test: 20, shuffle: true, stratify: labels}").unwrap();
    assert_eq!((n_ones(&shuffled[2]), shuffled[2].is_sorted()), (2, false));
    assert_eq!(parts_of("{csv: a.csv, n_test: 20, shuffle: 0, stratify: labels}").unwrap(), shuffled);
    assert_ne!(parts_of("{csv: a.csv, n_test: 20, shuffle: 1, stratify: labels}").unwrap(), shuffled);
    let [training, validation, test] =
        parts_of("{csv: a.csv, test: {csv: b.csv}, n_validation: 0.1, shuffle: 7}").unwrap();
    assert_eq!((training.len(), validation.len(), test), (90, 10, vec![100, 101]));
    let [_, validation, test] = parts_of("{csv: a.csv, n_test: 3, validation: {csv: b.csv}}").unwrap();
    assert_eq!((validation, test), (vec![100, 101], vec![97, 98, 99]));
    // Without separate test examples, test and validation examples are the same.
    let [training, validation, test] = parts_of("{csv: a.csv, n_validation: 4}").unwrap();
    assert_eq!((training.len(), validation.len(), test), (96, 0, vec![96, 97, 98, 99]));
    for (data, expected) in [
        (
            "{csv: a.csv, n_test: 1.5}",
            "found floating point `1.5`, expected a number of examples, or a share of all such as 0.2",
        ),
        (
            "{csv: a.csv, n_test: 60, n_validation: 40}",
            "cannot keep 40 examples for testing; the data set has 40, and one",
        ),
        ("{csv: a.csv, n_test: 60, n_validation: 40, shuffle: true}", "cannot keep 100 examples for testing; the data"),
        (
            "{csv: a.csv, test: {csv: b.csv}, shuffle: true}",
            "`data` has `shuffle` and no examples to keep, expected `n_test` or",
        ),
        (
            "{csv: a.csv, n_test: 9, stratify: x}",
            "`data` has `stratify: x`, expected the name of a label of classes: `labels`",
        ),
        ("{csv: a.csv, n_test: 9, n_validation: 0}", "`data` has `n_validation: 0`, expected at least 1, or none said"),
        (
            "{csv: a.csv, n_test: 9, n_validation: 1, validation: {csv: b.csv}}",
            "`data` has both `n_validation` and `validation`",
        ),
        (
            "{csv: a.csv, n_test: 9, shuffle: often}",
            "found string \"often\", expected `true`, or a seed, a whole number",
        ),
        (
            "{csv: a.csv, n_test: 9, stratify: 3}",
            "found integer `3`, expected `true`, or the name of a label of classes",
        ),
    ] {
        let error = parts_of(data).unwrap_err();
        assert!(error.starts_with(expected) || error.contains(expected), "{data}: {error}");
    }
}

/// The warnings of a CSV file of these rows, and of another file's.
fn warnings_of_copies(data: &str, training: &[u32], other: &[u32]) -> Vec<String> {
    warnings_by(copies::warnings, data, training, other)
}

fn warnings_by(
    warn: fn(&Reading<'_>, &DataSource, &Examples) -> Vec<String>,
    data: &str,
    training: &[u32],
    other: &[u32],
) -> Vec<String> {
    let features = [Feature::exact("x", DType::S32, []), Feature::exact("labels", DType::S32, []).below(2).label()];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    for (file, rows) in [("a.csv", training), ("b.csv", other)] {
        let rows: String = rows.iter().map(|row| format!("{row},{}\n", row % 2)).collect();
        std::fs::write(folder.path().join(file), rows).unwrap();
    }
    let config: DataConfig = document::from_str("e.yaml", data).unwrap();
    let examples = config.read(&path, &features).unwrap();
    let reading =
        Reading { data: &config, path: &path, folder: folder.path(), features: &features, keys: vec!["data", "csv"] };
    let warnings = warn(&reading, config.source.as_ref().unwrap(), &examples);
    warnings.iter().map(|warning| warning.replace(&format!("{}: ", path.display()), "")).collect()
}

#[test]
fn training_examples_of_one_class_are_told() {
    let warnings = |data: &str, rows: &[u32]| warnings_by(one_class::warnings, data, rows, &[0]);
    // The label is 0 of even rows.
    let even: Vec<u32> = (0..40).map(|row| 2 * row).collect();
    let one_odd = [&[1][..], &even[..]].concat();
    let warned = warnings("{csv: a.csv, n_test: 1}", &even).concat();
    let expected = "all 39 training examples have the same `labels`: a network that always answers it is right, and learns \
                    nothing else";
    assert!(warned.contains(expected), "{warned}");
    let help = "help: if the examples are sorted by class, write `shuffle: true`, or `stratify: true`, before they are cut into \
                parts; else look at where the labels come from";
    assert!(warned.ends_with(help), "{warned}");
    assert_eq!(warnings("{csv: a.csv, n_test: 1}", &one_odd), [""; 0]);
    assert_eq!(warnings("{csv: a.csv, n_test: 1}", &even[..32]), [""; 0]);
}

#[test]
fn test_examples_that_are_training_examples_are_told() {
    const BESIDE: &str = "{csv: a.csv, test: {csv: b.csv}}";
    let rows = |range: std::ops::Range<u32>| range.collect::<Vec<_>>();
    let warnings = |data: &str, training: &[u32], other: &[u32]| {
        let warnings = warnings_of_copies(data, training, other);
        warnings.iter().map(|warning| warning.lines().next().unwrap().to_string()).collect::<Vec<_>>()
    };
    let expected = |n_copies: usize, part: &str| {
        format!("{n_copies} of 30 {part} examples are among the training examples: accuracy on them says little")
    };
    assert_eq!(warnings(BESIDE, &rows(0..100), &rows(90..120)), [expected(10, "test")]);
    let warning = warnings_of_copies(BESIDE, &rows(0..100), &rows(90..120)).concat();
    assert!(warning.ends_with("help: leave them out of one of the two"), "{warning}");
    let twice: Vec<u32> = rows(0..100).into_iter().chain(rows(0..30)).collect();
    assert_eq!(warnings("{csv: a.csv, n_test: 30}", &twice, &[0]), [expected(30, "test")]);
    let both = "{csv: a.csv, n_test: 30, validation: {csv: b.csv}}";
    assert_eq!(warnings(both, &twice, &rows(95..125)), [expected(30, "test"), expected(5, "validation")]);
    // A coincidence; too few examples; rows that repeat by nature.
    for (training, other) in
        [(rows(0..100), rows(98..128)), (rows(0..100), rows(81..100)), (rows(0..10).repeat(10), rows(0..30))]
    {
        assert!(warnings(BESIDE, &training, &other).is_empty(), "{other:?}");
    }
}

/// A table of four rows with the columns `a`, `b` and `kind`, and what is wrong with `data` for it.
#[test]
fn tables_and_names_that_are_wrong_are_refused_where_they_are_written() {
    let features = [Feature::compute("x", [2]), Feature::exact("labels", DType::S32, []).below(2).label()];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    std::fs::write(folder.path().join("t.csv"), "a,b,kind\n1,2,no\n3,4,yes\n5,6,no\n7,8,yes\n").unwrap();
    std::fs::write(
        folder.path().join("map.pbtxt"),
        "item { id: 1 name: 'cat' } # an item of one line\nitem {\n id: 2\n name: '/m/01', display_name: \"dog\"\n}\n",
    )
    .unwrap();
    for (name, text) in [
        ("empty.pbtxt", "item {\n name: 'cat'\n}\n"),
        ("nameless.pbtxt", "item {\n id: 7\n}\n"),
        ("items.pbtxt", "items {\n id: 7\n}\n"),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let refused = |data: &str| error_of(data, &path, &features);
    let good = "columns: {x: [a, {name: b, normalize: true}], labels: {name: kind, categories: true}}";
    for (data, expected) in [
        (
            "{csv: t.csv, n_test: 1, columns: {y: a}}",
            "`data` has `columns` of y, expected a feature of the model: x, labels",
        ),
        (
            "{csv: t.csv, n_test: 1, scale: 2, COLUMNS}",
            "`data` has `scale` beside `columns`, expected `normalize: true` of a column",
        ),
        (
            "{csv: t.csv, test: {npz: b.npz}, COLUMNS}",
            "`data` has `npz` beside `columns`, expected `csv`, whose header names the columns",
        ),
        (
            "{csv: t.csv, n_test: 4, COLUMNS}",
            "`data` has 4 examples to keep, of 4, expected fewer: one must be left to train on",
        ),
        (
            "{npz: t.npz, n_test: 1, COLUMNS}",
            "`data` has `columns` beside `npz`, expected it with `csv`: other files have no header",
        ),
        (
            "{csv: t.csv, n_test: 1, columns: {x: [a, {name: c}]}}",
            "t.csv:1: there is no column `c`; it has `a`, `b`, `kind`",
        ),
        (
            "{csv: t.csv, n_test: 1, columns: {x: [a], labels: {name: kind, categories: true}}}",
            "`x` has 2 numbers for an example, and its columns make 1: `a 1`",
        ),
        ("{csv: t.csv, n_test: 1, columns: {x: []}}", "expected a column at least"),
        (
            "{csv: t.csv, n_test: 1, columns: [x]}",
            "expected features with their columns, such as `{x: [age, fare], labels: survived}`",
        ),
        (
            "{csv: t.csv, n_test: 1, columns: {x: {name: a, normalize: true, words: 5}}}",
            "column `a` has several of `normalize`, `categories` and `words`",
        ),
        (
            "{csv: t.csv, n_test: 1, columns: {x: {name: a, normalize: true, words: 5}}}",
            "help: a column is one thing; it may stand in the list twice",
        ),
        (
            "{csv: t.csv, n_test: 1, columns: {x: {name: a, categories: 3}}}",
            "expected `true`, to learn them from the examples that are trained on, or a list of names",
        ),
        (
            "{csv: t.csv, n_test: 1, columns: {x: {name: a, other: true}}}",
            "help: write `categories: true` beside it, or leave it out",
        ),
        ("{csv: t.csv, n_test: 1, columns: {x: {name: a, other: true}}}", "column `a` has `other` and no `categories`"),
        ("{csv: t.csv, n_test: 1, columns: {x: {name: a, categories: [b, b]}}}", "the category `b` is there twice"),
        (
            "{csv: t.csv, n_test: 1, columns: {x: {name: a, missing: often}}}",
            "expected `mean`, or a number that stands for empty cells",
        ),
        (
            "{csv: t.csv, n_test: 1, columns: {x: {name: a, words: 2}}}",
            "expected a whole number from 3: how many numbers words have",
        ),
        ("{csv: t.csv, n_test: 1, delimiter: ';;', COLUMNS}", "expected one character such as `;`, or `tab`"),
        (
            "{csv: t.csv, n_test: 1, stratify: x, COLUMNS}",
            "`data` has `stratify: x`, expected the name of a label of classes: `labels`",
        ),
        (
            "{csv: t.csv, n_test: 1, classes: {x: [a]}, COLUMNS}",
            "`data` has `classes` of `x`, expected a label of classes: `labels`",
        ),
        (
            "{csv: t.csv, n_test: 1, classes: [a], COLUMNS}",
            "`data` has 1 names of the classes of `labels`, expected 2, one for each class of the model",
        ),
        ("{csv: t.csv, n_test: 1, classes: empty.pbtxt, COLUMNS}", "an item of the label map has no `id`"),
        ("{csv: t.csv, n_test: 1, classes: nameless.pbtxt, COLUMNS}", "item 7 of the label map has no `name`"),
        ("{csv: t.csv, n_test: 1, classes: items.pbtxt, COLUMNS}", "the label map has no items"),
        ("{csv: t.csv, n_test: 1, classes: none.txt, COLUMNS}", "cannot read the names of classes: "),
        (
            "{csv: t.csv, n_test: 1, augment: {rotation: 200}, COLUMNS}",
            "`data` has `rotation: 200`, expected degrees from 0 to 180",
        ),
        (
            "{csv: t.csv, n_test: 1, augment: {flip: true}, COLUMNS}",
            "`augment` changes images, and no feature is `[height, width, channels]`",
        ),
    ] {
        let error = refused(&data.replace("COLUMNS", good));
        assert!(error.contains(expected), "{data}: {error}");
    }
    std::fs::write(folder.path().join("plain.csv"), "1,2\n3,4\n").unwrap();
    let no_classes = error_of("{csv: plain.csv, n_test: 1, classes: [a]}", &path, &[Feature::compute("a", [2])]);
    assert!(
        no_classes.contains("`classes` and 0 labels of classes, expected a model that learns classes"),
        "{no_classes}"
    );
    std::fs::write(folder.path().join("soft.csv"), "0.5,0.5\n1,0\n").unwrap();
    let soft = Feature::exact("b", DType::F32, [2]).label().probability();
    let of_soft = error_of("{csv: soft.csv, n_test: 1, classes: [a]}", &path, &[soft]);
    assert!(of_soft.contains("`data` has 1 names of the classes of `b`, expected 2, one for each class"), "{of_soft}");
    let answer = Feature::exact("b", DType::F32, [1]).label().probability();
    let of_answer = error_of("{csv: soft.csv, n_test: 1, classes: [a]}", &path, &[Feature::compute("a", [1]), answer]);
    assert!(of_answer.contains("`data` has 1 names of the classes of `b`, expected 2, one for each"), "{of_answer}");
    let two = |name: &str| Feature::exact(name, DType::S32, []).below(9).label();
    let of_two = error_of("{csv: plain.csv, n_test: 1, classes: [a]}", &path, &[two("a"), two("b")]);
    assert!(of_two.contains("`classes` and 2 labels of classes, expected names by label, of `a`, `b`"), "{of_two}");
    // Valid keys, with a label map; and other rows for a run whose learnt values are unknown.
    #[derive(Deserialize)]
    struct Block {
        data: DataConfig,
    }
    let text = format!("data: {{csv: t.csv, n_test: 1, classes: map.pbtxt, {good}}}\n");
    let document = Document::parse("e.yaml", &text).unwrap();
    let Block { data } = document.read().unwrap();
    let examples = data.read(&path, &features).unwrap();
    assert_eq!(examples.test.classes()["labels"], ["cat", "dog"]);
    let learnt = examples.training.learnt().cloned();
    let other = folder.path().join("t.csv");
    let error = data.read_other(&path, &other, &features[..1]).unwrap_err().to_string();
    assert!(
        error.contains("nothing is known of column `b` of `x`, which is learnt from the rows that are trained on"),
        "{error}"
    );
    assert!(error.ends_with("help: name the checkpoint of a run, which has what was learnt"), "{error}");
    let known = DataConfig { learnt, ..data }.read_other(&path, &other, &features[..1]).unwrap();
    assert_eq!(known.n_examples(), 4);
}
