//! Examples on disk against TensorFlow, which wrote the files of `tests/data/input` and recorded what it makes of them.

use bf16scope::data::image::{self, DctMethod, RandomResizedCrop, Resize, Window};
use bf16scope::data::npz;
use bf16scope::data::pipeline::Options;
use bf16scope::data::records::{self, ImageFolder, Records, TfRecords, Value};
use bf16scope::data::{Ask, Draw, Feature, FeatureSpec, Loader, Pipeline, Source};
use bf16scope::hlo::DType;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

const N_EXAMPLES: u64 = 33;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input")
}

fn records() -> TfRecords {
    TfRecords::open(&TfRecords::files(&folder(), &["shapes-*"]).unwrap(), None).unwrap()
}

/// An array of `expected.npz`: its dims and bytes.
fn expected(name: &str) -> (Vec<i64>, Vec<u8>) {
    array("expected.npz", name)
}

/// An array of an archive: its dims and bytes.
fn array(file: &str, name: &str) -> (Vec<i64>, Vec<u8>) {
    let source = npz::read_arrays(folder().join(file), &[(name, name)]).unwrap();
    let mut dims = vec![source.n_examples() as i64];
    dims.extend(&source.arrays()[0].dims);
    let bytes = (0..source.n_examples()).flat_map(|idx| source.read(idx).unwrap()[0].to_vec()).collect();
    (dims, bytes)
}

/// Each way to decode, and the file that has what TensorFlow makes in it.
const DCT_METHODS: [(DctMethod, &str); 2] =
    [(DctMethod::IntegerFast, "fast.npz"), (DctMethod::IntegerAccurate, "expected.npz")];

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn encoded(records: &TfRecords, index: u64) -> Vec<u8> {
    let values = records.values(index, Some(&["image/encoded"])).unwrap();
    let Value::Bytes(strings) = &values["image/encoded"] else { panic!("{values:?}") };
    strings[0].clone()
}

/// The recipe of the fixtures: 16 pixels, of 24 of the shorter side.
fn recipe() -> BTreeMap<String, FeatureSpec> {
    let images = FeatureSpec {
        key: Some("image/encoded".to_string()),
        random_resized_crop: Some(RandomResizedCrop::default()),
        center_crop: Some(image::CenterCrop { crop_padding: 8 }),
        resize: Some(Resize::Bicubic),
        random_flip: true,
        mean: vec![123.675, 116.28, 103.53],
        std: vec![58.395, 57.12, 57.375],
        ..FeatureSpec::default()
    };
    let labels = FeatureSpec { key: Some("image/class/label".to_string()), offset: -1, ..FeatureSpec::default() };
    [("images".to_string(), images), ("labels".to_string(), labels)].into()
}

fn features() -> [Feature; 2] {
    [Feature::compute("images", [16, 16, 3]), Feature::exact("labels", DType::S32, []).label().below(3)]
}

fn pipeline(n_workers: usize) -> Pipeline {
    let options = Options { n_workers, n_skipped_max: 0 };
    Pipeline::new(Arc::new(records()), &features(), &recipe(), options).unwrap()
}

#[test]
fn records_are_the_bytes_that_tensorflow_wrote() {
    let (dims, hashes) = expected("records");
    assert_eq!(dims, [N_EXAMPLES as i64, 32]);
    let records = records();
    assert_eq!(records.n_records(), N_EXAMPLES);
    for index in (0..N_EXAMPLES).rev() {
        let hash = Sha256::digest(records.bytes(index).unwrap());
        assert_eq!(hash[..], hashes[32 * index as usize..][..32], "record {index}");
        let values = records.values(index, None).unwrap();
        assert_eq!(values["image/class/label"], Value::Ints(vec![index as i64 % 3 + 1]));
        let bbox = [0.1, 0.2, 0.5, index as f32 / 64.0];
        assert_eq!(values["image/object/bbox"], Value::Floats(bbox.to_vec()));
        let thumbnail = (index as u8..index as u8 + 4).collect();
        assert_eq!(values["thumbnail"], Value::Bytes(vec![thumbnail]));
    }
}

/// Other programs' files of the same drawings: TensorFlow with compression, webdataset.
#[test]
fn compressed_files_and_tars_hold_what_the_records_do() {
    let plain = records();
    let cache = tempfile::tempdir().unwrap();
    for name in ["shapes.gz", "shapes.zlib"] {
        let other = TfRecords::open(&[folder().join(name)], Some(cache.path())).unwrap();
        assert_eq!(other.n_records(), N_EXAMPLES, "{name}");
        for index in (0..N_EXAMPLES).rev() {
            assert_eq!(other.bytes(index).unwrap(), plain.bytes(index).unwrap(), "{name}, record {index}");
        }
        assert_eq!(other.fingerprint(), plain.fingerprint());
    }
    for name in ["shapes.tar", "shapes.tar.gz"] {
        let tars = records::open(folder(), &[name], Some(cache.path())).unwrap();
        assert_eq!(tars.n_records(), 11, "{name}");
        for index in 0..11 {
            let (actual, expected) = (tars.values(index, None).unwrap(), plain.values(index, None).unwrap());
            let Value::Ints(label) = &expected["image/class/label"] else { panic!("{expected:?}") };
            let image = actual.get("jpg").or(actual.get("png")).unwrap();
            assert_eq!(image, &expected["image/encoded"], "{name}, example {index}");
            assert_eq!(actual["cls"], Value::Ints(vec![label[0] - 1]));
            assert_eq!(actual["json.label"], Value::Ints(label.clone()));
            assert_eq!(actual["json.box"], expected["image/object/bbox"]);
            let asked = tars.values(index, Some(&["jpg;png", "json.box"])).unwrap();
            assert_eq!((&asked["jpg;png"], &asked["json.box"]), (image, &actual["json.box"]));
        }
        let name = format!("shapes/{}/0010", "long".repeat(40));
        assert!(tars.place(10).ends_with(&format!(", example `{name}`")), "{}", tars.place(10));
    }
}

/// JPEG of three subsamplings, progressive, grey and CMYK; PNG of four kinds and of 16 bits. JPEG's decoder is the one that
/// libjpeg-turbo calls `islow`, or `ifast` where that is asked for, with fancy upsampling: every bit is TensorFlow's.
#[test]
fn images_are_decoded_to_the_bit_as_tensorflow_decodes_them() {
    let records = records();
    for (dct, file) in DCT_METHODS {
        let (_, hashes) = array(file, "decoded");
        for index in 0..N_EXAMPLES {
            let bytes = encoded(&records, index);
            let decoded = image::decode(&bytes, 3, dct).unwrap();
            assert_eq!(image::size(&bytes).unwrap()[..2], [decoded.height, decoded.width]);
            let hash = Sha256::digest(&decoded.pixels);
            assert_eq!(hash[..], hashes[32 * index as usize..][..32], "image {index}, {dct:?}");
        }
    }
}

/// `dct_method` of a feature reaches the decoder, with a window too; without it the accurate one is taken, as ever.
#[test]
fn a_feature_says_how_its_jpegs_are_decoded() {
    let bytes = encoded(&records(), 0);
    let whole = image::decode(&bytes, 3, DctMethod::IntegerFast).unwrap();
    let dims = [whole.height as i64, whole.width as i64, 3];
    let pixels = |dct_method| {
        let spec = FeatureSpec { dct_method, ..FeatureSpec::default() };
        spec.image(&bytes, &dims, None).unwrap()
    };
    let fast: Vec<f32> = whole.pixels.iter().map(|&value| f32::from(value)).collect();
    assert_eq!(pixels(Some(DctMethod::IntegerFast)), fast);
    assert_eq!(pixels(Some(DctMethod::IntegerAccurate)), pixels(None));
    assert_ne!(pixels(None), fast);
    // The default is not recorded: a run that began before the setting existed is the same run.
    let recorded = |dct_method| serde_json::to_value(FeatureSpec { dct_method, ..FeatureSpec::default() }).unwrap();
    assert_eq!(recorded(Some(DctMethod::IntegerAccurate)), recorded(None));
    assert_eq!(recorded(Some(DctMethod::IntegerFast))["dct_method"], "integer_fast");
}

/// Images as in real data sets: CMYK with and without Adobe's marker, and YCCK; EXIF orientation, which TensorFlow and we
/// ignore; grey, progressive, restarts; PNG of every kind. Results of three channels equal TensorFlow's bitwise, and so do
/// single-channel results of JPEG.
#[test]
fn images_of_every_kind_are_decoded_as_tensorflow_decodes_them() {
    let names = bf16scope::data::npz::NpzReader::open(folder().join("kinds.npz")).unwrap();
    let names: Vec<String> = names.names().map(str::to_string).collect();
    let pixels = names.iter().filter_map(|name| name.strip_prefix("pixels/")?.split_once('/'));
    let compared = pixels.filter(|(channels, kind)| *channels == "3" || kind.starts_with("jpeg"));
    let mut n = 0;
    for (channels, kind) in compared {
        let (_, bytes) = array("kinds.npz", &format!("bytes/{kind}"));
        for (dct, file) in [DCT_METHODS[0], (DctMethod::IntegerAccurate, "kinds.npz")] {
            // PNG has only one decoding.
            let file = if kind.starts_with("png") { "kinds.npz" } else { file };
            let (dims, expected) = array(file, &format!("pixels/{channels}/{kind}"));
            let n_channels: usize = channels.parse().unwrap();
            let decoded = image::decode(&bytes, n_channels, dct).unwrap_or_else(|error| panic!("{kind}: {error}"));
            assert_eq!([decoded.height as i64, decoded.width as i64, decoded.channels as i64], dims[..], "{kind}");
            let differ: Vec<u8> = decoded.pixels.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).collect();
            let n_differ = differ.iter().filter(|difference| **difference > 0).count();
            let difference = format!("{n_differ} of {}, by {:?}", differ.len(), differ.iter().max());
            assert_eq!(n_differ, 0, "{kind} in {channels}, {dct:?}: {difference}");
            n += 1;
        }
    }
    assert_eq!(n, 52);
}

/// Each number is a sum of four products, of sums of four products: with u = 2^-24, both computations are off by at most
/// 8u/(1-8u) of the sum of the products' magnitudes, which is 255 times the square of 1.375, the largest sum of the weights'
/// magnitudes (Keys's kernel with A = −0.75 between two pixels). Bilinear has fewer and smaller terms.
const RESIZED: f32 = 2.0 * 255.0 * 1.375 * 1.375 * 8.01 / (1 << 24) as f32;

#[test]
fn images_are_resized_as_tensorflow_resizes_them() {
    let (dims, pixels) = expected("pixels");
    let image = image::Image { height: dims[0] as usize, width: dims[1] as usize, channels: 3, pixels };
    let window = Window::whole(image.height, image.width);
    let mut greatest = 0.0f32;
    for (name, resize) in [("bicubic", Resize::Bicubic), ("bilinear", Resize::Bilinear)] {
        for is_half_pixel in [false, true] {
            for size in [[7, 9], [20, 24], [31, 50]] {
                let name = format!("{name}/{}/{}x{}", i32::from(is_half_pixel), size[0], size[1]);
                let expected = floats(&expected(&name).1);
                let actual = resize.run(&image, window, size, is_half_pixel);
                assert_eq!(actual.len(), expected.len(), "{name}");
                for (actual, expected) in actual.iter().zip(&expected) {
                    greatest = greatest.max((actual - expected).abs());
                    assert!((actual - expected).abs() <= RESIZED, "{name}: {actual} and {expected}");
                }
            }
        }
    }
    println!("greatest difference {greatest:e}, bound {RESIZED:e}");
}

/// From the record to the normalised image. Beyond the bound of resizing: subtracting the mean and dividing by the deviation
/// round once each, of numbers up to 255 · 1.375² + 124 before, and 1/57 of that after.
#[test]
fn the_evaluation_path_is_that_of_tensorflows_resnet() {
    let pipeline = pipeline(0);
    let least_std = 57.12f32;
    let bound = (RESIZED + 2.0 * 2.0 * (255.0 * 1.375 * 1.375 + 124.0) / (1 << 24) as f32) / least_std;
    let mut greatest = 0.0f32;
    for index in 0..N_EXAMPLES {
        let expected = floats(&expected(&format!("evaluation/{index}")).1);
        let actual = floats(&pipeline.read(index).unwrap()[0]);
        assert_eq!(actual.len(), expected.len());
        for (actual, expected) in actual.iter().zip(&expected) {
            greatest = greatest.max((actual - expected).abs());
            assert!((actual - expected).abs() <= bound, "image {index}: {actual} and {expected}, bound {bound:e}");
        }
        assert_eq!(pipeline.read(index).unwrap()[1], &(index as i64 % 3).to_le_bytes()[..]);
    }
    println!("greatest difference {greatest:e}, bound {bound:e}");
}

/// Histograms of 10,000 windows, ours and TensorFlow's: areas, aspect ratios, heights and places, and how often the whole
/// image is taken.
///
/// Two samples of one distribution of the same size have a statistic of chi-square. It is above the limit with a probability
/// below e^-20 (Laurent and Massart, lemma 1); the seeds are fixed, so the test passes or fails for good.
#[test]
fn random_windows_are_distributed_as_tensorflows() {
    for (height, width) in [(375, 500), (31, 48)] {
        let (dims, bytes) = expected(&format!("crops/{height}x{width}"));
        assert_eq!(dims, [6, 24]);
        let expected: Vec<i32> = bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
        let mut histograms = vec![0; 6 * 24];
        let crop = RandomResizedCrop::default();
        for example in 0..10_000 {
            let Some(window) = crop.window([height, width], Draw::new(3, 1, example)) else {
                histograms[5 * 24] += 1;
                continue;
            };
            histograms[5 * 24 + 1] += 1;
            let (h, w) = (window.height as f64, window.width as f64);
            let (whole_h, whole_w) = (height as f64, width as f64);
            assert!(window.y + window.height <= height && window.x + window.width <= width, "{window:?}");
            let place = |at: usize, size: f64, limit: f64| match size < limit {
                true => (at as f64 + 0.5) / (limit - size),
                false => 0.5,
            };
            let kinds = [
                (h * w / (whole_h * whole_w), 0.0, 1.0 + 1e-9),
                (w / h, 0.7, 1.4),
                (h / whole_h, 0.0, 1.0 + 1e-9),
                (place(window.y, h, whole_h), 0.0, 1.0 + 1e-9),
                (place(window.x, w, whole_w), 0.0, 1.0 + 1e-9),
            ];
            for (kind, (value, least, greatest)) in kinds.into_iter().enumerate() {
                let bin = ((value - least) / (greatest - least) * 24.0) as usize;
                histograms[kind * 24 + bin] += 1;
            }
        }
        for kind in 0..6 {
            let bins = histograms[kind * 24..][..24].iter().zip(&expected[kind * 24..][..24]);
            let terms: Vec<f64> = bins
                .filter(|(a, b)| **a + **b > 0)
                .map(|(a, b)| f64::from((a - b) * (a - b)) / f64::from(a + b))
                .collect();
            let (statistic, df) = (terms.iter().sum::<f64>(), terms.len() as f64 - 1.0);
            let limit = df + 2.0 * (df * 20.0).sqrt() + 40.0;
            println!(
                "{height}x{width}, histogram {kind}: {statistic:.1} with {df} degrees of freedom, limit {limit:.1}"
            );
            assert!(statistic < limit, "{height}x{width}, histogram {kind}: {statistic} is above {limit}");
        }
    }
}

#[test]
fn a_folder_of_images_is_a_source() {
    let records = records();
    let folder = tempfile::tempdir().unwrap();
    for index in 0..6 {
        let class = folder.path().join(["disc", "square", "cross"][index as usize % 3]);
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("{index}.jpg")), encoded(&records, index)).unwrap();
    }
    let images = ImageFolder::open(folder.path()).unwrap();
    assert_eq!(images.classes(), ["cross", "disc", "square"]);
    let specs = [("images".to_string(), FeatureSpec { key: None, ..recipe()["images"].clone() })].into();
    let source = Pipeline::new(Arc::new(images), &features(), &specs, Options::default()).unwrap();
    let loader = Loader::new(&source, &features(), DType::F32, 6, 0).unwrap();
    let batch = loader.in_order().next().unwrap().unwrap();
    // By class, then by name: 2, 5, 0, 3, 1, 4.
    assert_eq!(batch.arrays[1].bytes, [0i32, 0, 1, 1, 2, 2].map(i32::to_le_bytes).concat());
    let first = pipeline(0).read(2).unwrap()[0].to_vec();
    assert!(batch.arrays[0].bytes[..first.len()] == first);
}

/// Every batch of two epochs and of an evaluation, by this many workers.
fn batches(n_workers: usize) -> Vec<bf16scope::data::Batch> {
    let pipeline = pipeline(n_workers);
    let loader = Loader::new(&pipeline, &features(), DType::BF16, 5, 9).unwrap();
    let steps = |epoch| (0..loader.n_steps()).map(move |step| Ask::Steps { epoch, step, n: 1 });
    let asks: Vec<Ask> = steps(0).chain(steps(1)).chain(loader.asks_in_order()).collect();
    loader.ahead(asks, |supply| supply.map(Result::unwrap).collect())
}

#[test]
fn workers_change_no_bit() {
    static ONE: LazyLock<Vec<bf16scope::data::Batch>> = LazyLock::new(|| batches(0));
    assert_eq!(ONE.len(), 6 + 6 + 7);
    assert!(ONE[0] != ONE[6], "another epoch, other examples and windows");
    assert_eq!(ONE.last().unwrap().n_valid, 3);
    for n_workers in [1, 2, 7] {
        assert!(batches(n_workers) == *ONE, "{n_workers} workers");
    }
    // Dropping the batches ends the workers.
    let pipeline = pipeline(3);
    let loader = Loader::new(&pipeline, &features(), DType::BF16, 5, 9).unwrap();
    let endless = (0..u64::MAX).map(|epoch| Ask::Steps { epoch, step: 0, n: 1 });
    let first = loader.ahead(endless, |supply| supply.next().unwrap().unwrap());
    assert!(first == ONE[0]);
}
