//! The contact sheet of `bf16scope data --html`: examples as a page, as stored in their files or as a network gets
//! them.

use std::path::Path;

use crate::html::{Fact, Page, Picture, Sheet, SheetRow};
use crate::{grouped, png};
use bf16scope_data::image::{self, DctMethod, Resize, Window};
use bf16scope_data::records::{Records, Value};
use bf16scope_data::{DataError, Feature, Loader, NamedArray, Source};
use bf16scope_hlo::DType;
use bf16scope_hlo::element::f32s;

/// The largest size of a file's image on a sheet, in pixels of its longer side.
const SIDE: usize = 160;
/// Numbers to show of a value that is not an image.
const MAX_NUMBERS: usize = 8;

/// The size of a sheet.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Examples, from the first to the last in equal steps.
    pub n_examples: u64,
    /// Epochs in which each is drawn.
    pub n_epochs: u64,
}

impl Extent {
    fn indexes(self, n: u64) -> Vec<u64> {
        let n_shown = self.n_examples.min(n);
        let at = |number: u64| match n_shown {
            1 => 0,
            _ => (u128::from(number) * u128::from(n - 1) / u128::from(n_shown - 1)) as u64,
        };
        (0..n_shown).map(at).collect()
    }
}

/// A page of records as stored in their files.
pub fn of_records(title: &str, records: &dyn Records, extent: Extent) -> Page {
    let n = records.n_records();
    let mut rows = Vec::new();
    for index in extent.indexes(n) {
        let mut row = SheetRow { title: records.place(index), ..SheetRow::default() };
        match records.values(index, None) {
            Ok(values) => {
                for (key, value) in &values {
                    match of_value(key, value) {
                        Ok(Some(picture)) => row.pictures.push(picture),
                        Ok(None) => row.lines.push(format!("{key}: {}", words(value, records.classes()))),
                        Err(error) => row.lines.push(format!("{key}: {error}")),
                    }
                }
            }
            Err(error) => row.lines.push(error.to_string()),
        }
        rows.push(row);
    }
    Page {
        title: format!("Data: {title}"),
        lead: "Examples as their files have them.".to_string(),
        facts: vec![fact("records", n), fact("shown", rows.len() as u64)],
        sheets: vec![Sheet { heading: "Examples".to_string(), lead: String::new(), rows }],
        ..Page::default()
    }
}

fn fact(label: &str, n: u64) -> Fact {
    Fact { label: label.to_string(), value: grouped(i64::try_from(n).unwrap_or(i64::MAX)), is_bad: false }
}

/// An image of a file, scaled down; `None` if the value is not an image.
fn of_value(key: &str, value: &Value) -> Result<Option<Picture>, String> {
    let Value::Bytes(strings) = value else { return Ok(None) };
    let [bytes] = &strings[..] else { return Ok(None) };
    let Some(format) = image::format_name(bytes) else { return Ok(None) };
    let decoded = image::decode(bytes, 3, DctMethod::default()).map_err(|error| error.to_string())?;
    let (height, width) = (decoded.height, decoded.width);
    let scale = (SIDE as f64 / height.max(width) as f64).min(1.0);
    let size = [height, width].map(|side| ((side as f64 * scale).round() as usize).max(1));
    let pixels = Resize::Bilinear.run(&decoded, Window::whole(height, width), size, true);
    let bytes: Vec<u8> = pixels.iter().map(|value| value.clamp(0.0, 255.0).round() as u8).collect();
    let caption = format!("{key}: {format}, {height} × {width}");
    Ok(Some(Picture { png: png(&bytes, size, 3), width: size[1], caption }))
}

/// A value in words.
fn words(value: &Value, classes: &[String]) -> String {
    let list = |texts: Vec<String>, n: usize| match n > MAX_NUMBERS {
        true => format!("{}, … ({n})", texts.join(", ")),
        false => texts.join(", "),
    };
    let n = value.len();
    match value {
        Value::Ints(values) => {
            let word = |value: &i64| match usize::try_from(*value).ok().and_then(|value| classes.get(value)) {
                Some(class) => format!("{value} ({class})"),
                None => value.to_string(),
            };
            list(values.iter().take(MAX_NUMBERS).map(word).collect(), n)
        }
        Value::Floats(values) => list(values.iter().take(MAX_NUMBERS).map(f32::to_string).collect(), n),
        Value::Bytes(values) => {
            let word = |bytes: &Vec<u8>| match std::str::from_utf8(bytes) {
                Ok(text) if text.chars().count() <= 60 && !text.chars().any(char::is_control) => format!("“{text}”"),
                _ => format!("{} bytes", bytes.len()),
            };
            list(values.iter().take(MAX_NUMBERS).map(word).collect(), n)
        }
    }
}

/// A page of training examples as the network gets them: in evaluation mode, and as drawn in some epochs.
pub fn of_experiment(
    path: &Path,
    source: &dyn Source,
    features: &[Feature],
    loader: &Loader<'_>,
    extent: Extent,
) -> Page {
    let epochs = || std::iter::once(None).chain((0..extent.n_epochs).map(Some));
    let indexes = extent.indexes(source.n_examples());
    let read = |index: &u64| epochs().map(|epoch| loader.example(*index, epoch)).collect::<Vec<_>>();
    let examples: Vec<Vec<Result<Vec<NamedArray>, DataError>>> = indexes.iter().map(read).collect();
    let is_picture = |feature: &Feature| matches!(feature.dims[..], [_, _, 1 | 3]);
    let classes = source.classes();
    let line = |(feature, array): (&Feature, &NamedArray)| {
        let names = feature.n_values.and_then(|_| classes.get(&feature.name)).map(Vec::as_slice).unwrap_or_default();
        format!("{}: {}", feature.name, first_numbers(array, names))
    };
    let mut sheets = Vec::new();
    for (place, feature) in features.iter().enumerate().filter(|(_, feature)| is_picture(feature)) {
        // The values of black and white: the smallest and the largest number of each channel on the sheet.
        let channels = feature.dims[2] as usize;
        let mut ranges = vec![[f32::INFINITY, f32::NEG_INFINITY]; channels];
        for arrays in examples.iter().flatten().flatten() {
            for (idx, value) in numbers(&arrays[place]).into_iter().enumerate().filter(|(_, value)| value.is_finite()) {
                let [least, greatest] = &mut ranges[idx % channels];
                (*least, *greatest) = (least.min(value), greatest.max(value));
            }
        }
        let rows = indexes.iter().zip(&examples).map(|(index, seen)| {
            let mut row = SheetRow { title: source.place(*index), ..SheetRow::default() };
            if let Some(Ok(arrays)) = seen.first() {
                let others = features.iter().zip(arrays).filter(|(feature, _)| !is_picture(feature));
                row.lines.extend(others.map(line));
            }
            for (epoch, arrays) in epochs().zip(seen) {
                let name = epoch.map_or("evaluation".to_string(), |epoch| format!("epoch {epoch}"));
                match arrays {
                    Ok(arrays) => row.pictures.push(of_array(&arrays[place], &ranges, &name)),
                    Err(error) => {
                        row.lines.push(error.to_string());
                        break;
                    }
                }
            }
            row
        });
        let shown =
            ranges.iter().map(|[least, greatest]| format!("{least} to {greatest}")).collect::<Vec<_>>().join("; ");
        let lead = format!(
            "{} {:?}: what the network gets, after the cast. Black and white are the smallest and the largest number of each channel \
             on this sheet: {shown}.",
            loader_dtype(&examples, place),
            feature.dims
        );
        sheets.push(Sheet { heading: feature.name.clone(), lead, rows: rows.collect() });
    }
    Page {
        title: format!("Data: {}", path.display()),
        lead: "Training examples as evaluation would read them, and beside that as training draws them in its first epochs."
            .to_string(),
        facts: vec![
            fact("training examples", source.n_examples()),
            fact("shown", indexes.len() as u64),
            fact("epochs", extent.n_epochs),
        ],
        notes: match sheets.is_empty() {
            true => vec!["No feature is an image, [height, width, 1 or 3]: there is nothing to show.".to_string()],
            false => Vec::new(),
        },
        sheets,
        ..Page::default()
    }
}

fn loader_dtype(examples: &[Vec<Result<Vec<NamedArray>, DataError>>], place: usize) -> &'static str {
    examples.iter().flatten().flatten().next().map_or("no example", |arrays| arrays[place].dtype.name())
}

/// The numbers of an array of floats that a network computes with, or of bytes.
fn numbers(array: &NamedArray) -> Vec<f32> {
    match array.dtype {
        dtype @ (DType::BF16 | DType::F16 | DType::F32 | DType::S32) => f32s(dtype, &array.bytes),
        _ => f32s(DType::U8, &array.bytes),
    }
    .into_iter()
    .flatten()
    .collect()
}

/// The first numbers of an array that is not an image, each with the name of its class, if there are names.
fn first_numbers(array: &NamedArray, classes: &[String]) -> String {
    let numbers = numbers(array);
    let word = |number: &f32| match classes.get(*number as usize).filter(|_| *number >= 0.0) {
        Some(class) => format!("{number} ({class})"),
        None => number.to_string(),
    };
    let shown = numbers.iter().take(MAX_NUMBERS).map(word).collect::<Vec<_>>().join(", ");
    if numbers.len() > MAX_NUMBERS { format!("{shown}, … ({})", numbers.len()) } else { shown }
}

fn of_array(array: &NamedArray, ranges: &[[f32; 2]], name: &str) -> Picture {
    let channels = ranges.len();
    let numbers = numbers(array);
    let size = [array.dims[1] as usize, array.dims[2] as usize];
    let grey = |(idx, value): (usize, &f32)| {
        let [least, greatest] = ranges[idx % channels];
        let share = if greatest > least { (value - least) / (greatest - least) } else { 0.5 };
        (share * 255.0).round() as u8
    };
    let bytes: Vec<u8> = numbers.iter().enumerate().map(grey).collect();
    let finite = || numbers.iter().copied().filter(|value| value.is_finite());
    let (least, greatest) = (finite().fold(f32::INFINITY, f32::min), finite().fold(f32::NEG_INFINITY, f32::max));
    let caption = format!("{name}: {least:.3} to {greatest:.3}");
    // Small images are enlarged, pixel by pixel.
    let width = size[1] * (SIDE / 2 / size[1].max(1)).max(1);
    Picture { png: png(&bytes, size, channels), width: width.min(SIDE), caption }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_png_of_the_numbers_between_black_and_white() {
        let numbers = [-1.0f32, 1.0, 0.0, 3.0].map(|value| half::bf16::from_f32(value).to_le_bytes());
        let array = NamedArray {
            name: "x".into(),
            dtype: DType::BF16,
            dims: vec![1, 2, 2, 1],
            bytes: numbers.as_flattened().into(),
        };
        let picture = of_array(&array, &[[-1.0, 3.0]], "epoch 0");
        assert_eq!((picture.caption.as_str(), picture.width), ("epoch 0: -1.000 to 3.000", 80));
        let image = image::decode(&picture.png, 1, DctMethod::default()).unwrap();
        assert_eq!((image.height, image.width, image.pixels), (2, 2, vec![0, 128, 64, 255]));
        assert_eq!(first_numbers(&array, &[]), "-1, 1, 0, 3");
        assert_eq!(first_numbers(&array, &["cat".into(), "dog".into()]), "-1, 1 (dog), 0 (cat), 3");
        assert_eq!(Extent { n_examples: 3, n_epochs: 0 }.indexes(100), [0, 49, 99]);
        assert_eq!(Extent { n_examples: 3, n_epochs: 0 }.indexes(1), [0]);
    }
}
