//! File names from patterns.

use super::shard::url;
use super::{no_files, no_pattern, remote};
use crate::error::DataError;
use std::path::{Path, PathBuf};

/// The files that `patterns` name, each relative to `folder`: names, or patterns with `*`, `?` and `[…]`, whose files
/// are in the order of their names; or URLs of objects of stores (`gs://`, `s3://`, `http://`, `https://`), with
/// patterns if the store can list. A file that several patterns match is returned once.
///
/// # Errors
/// An invalid pattern, or one that no file matches; a URL that this build or this run may not fetch.
pub fn files(folder: &Path, patterns: &[impl AsRef<str>]) -> Result<Vec<PathBuf>, DataError> {
    let mut files: Vec<PathBuf> = Vec::new();
    for pattern in patterns {
        let pattern = pattern.as_ref();
        let named = folder.join(pattern);
        let matches = match url(Path::new(pattern)) {
            Some(url) => remote::matching(url)?,
            None if named.exists() => vec![named],
            None => matching(folder, pattern)?,
        };
        for file in matches {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// The files that a pattern matches, in the order of their names.
fn matching(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    // The folder's own name may contain a `[`.
    let whole = match Path::new(pattern).is_absolute() {
        true => pattern.to_string(),
        false => {
            Path::new(&glob::Pattern::escape(&folder.to_string_lossy())).join(pattern).to_string_lossy().into_owned()
        }
    };
    let matches = glob::glob(&whole).map_err(|error| no_pattern(pattern, &error))?;
    let mut files: Vec<PathBuf> = matches.filter_map(Result::ok).filter(|path| path.is_file()).collect();
    files.sort();
    match files.is_empty() {
        true => Err(no_files(folder.join(pattern).display().to_string())),
        false => Ok(files),
    }
}

#[cfg(test)]
mod tests {
    use super::files;
    use std::fs;
    use std::path::PathBuf;

    #[test]
    fn patterns_name_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a[b]");
        fs::create_dir(&inner).unwrap();
        let all: Vec<PathBuf> = (0..3).map(|idx| inner.join(format!("train-{idx:02}"))).collect();
        all.iter().for_each(|path| fs::write(path, "").unwrap());
        assert_eq!(files(&inner, &["train-*"]).unwrap(), all);
        assert_eq!(
            files(&inner, &["train-02", "train-0[01]", "train-*"]).unwrap(),
            [all[2].clone(), all[0].clone(), all[1].clone()]
        );
        assert_eq!(files(folder.path(), &["a[[]b]/train-?1"]).unwrap(), [all[1].clone()]);
        let error = files(&inner, &["test-*"]).unwrap_err().to_string();
        assert_eq!(error, format!("{}/test-*: no file has such a name; expected one at least", inner.display()));
        let error = files(&inner, &["a***b"]).unwrap_err().to_string();
        assert!(error.starts_with("`a***b` is not a pattern of file names: "), "{error}");
    }
}
