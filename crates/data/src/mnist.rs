//! MNIST as it is published: four files of the IDX format in a directory, plain or gzip.

use super::arrays::Arrays;
use super::idx;
use crate::error::DataError;
use std::path::{Path, PathBuf};

/// Reads the 60,000 examples for training and the 10,000 for testing: `images` u8 `[28, 28]`, `labels` u8 `[]`.
///
/// Files are named as published, `train-images-idx3-ubyte` and so on, with or without `.gz`, or with a dot before `idx`,
/// as some mirrors have them.
///
/// # Errors
/// A file that is missing or damaged.
pub fn read(directory: impl AsRef<Path>) -> Result<(Arrays, Arrays), DataError> {
    let directory = directory.as_ref();
    let part = |prefix: &str| {
        let images = file(directory, &format!("{prefix}-images"), "idx3-ubyte");
        let labels = file(directory, &format!("{prefix}-labels"), "idx1-ubyte");
        idx::read_arrays(&[("images", &images), ("labels", &labels)])
    };
    Ok((part("train")?, part("t10k")?))
}

/// The name that exists, otherwise the published one: the reader reports its absence.
fn file(directory: &Path, start: &str, end: &str) -> PathBuf {
    let names = ["-", "."].map(|joint| format!("{start}{joint}{end}"));
    let paths = names.iter().flat_map(|name| [name.clone(), format!("{name}.gz")]).map(|name| directory.join(name));
    paths.clone().find(|path| path.exists()).unwrap_or_else(|| directory.join(&names[0]))
}
