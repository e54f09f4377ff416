//! A folder of images with a folder for each class.
//!
//! The classes are the folders in the order of their names, starting with 0. Each file is an example with `images`, its
//! bytes, and `labels`.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Records, Value, Values};
use crate::error::{DataError, DataErrorKind};
use bf16scope_files as files;
use sha2::{Digest, Sha256};

/// The largest size of an image file, in bytes.
pub(super) const MAX_BYTES: u64 = 256 << 20;
/// File name extensions of images.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];

/// The images of a folder.
#[derive(Debug)]
pub struct ImageFolder {
    /// Each file, with its class; by class, then by name.
    files: Vec<(PathBuf, i64)>,
    classes: Vec<String>,
    fingerprint: String,
}

impl ImageFolder {
    /// Lists the images below `folder`: files in `folder/CLASS` whose names end with `.jpg`, `.jpeg` or `.png` in lower
    /// or upper case. Files and folders whose names begin with a dot are ignored.
    ///
    /// # Errors
    /// A folder that cannot be listed; no classes; a class without images.
    pub fn open(folder: impl AsRef<Path>) -> Result<ImageFolder, DataError> {
        let folder = folder.as_ref();
        let mut hash = Sha256::new();
        let mut images = ImageFolder { files: Vec::new(), classes: Vec::new(), fingerprint: String::new() };
        let wrong = |message: String| {
            let expected = "expected a folder for each class, with JPEG or PNG files in it";
            DataError::empty(folder, &format!("{message}; {expected}"))
        };
        let mut left_out: Vec<PathBuf> = Vec::new();
        for (class, path) in listed(folder)? {
            if !path.is_dir() {
                left_out.push(path);
                continue;
            }
            let label = images.classes.len() as i64;
            let n_before = images.files.len();
            for (name, path) in listed(&path)? {
                let Some(n_bytes) = fs::metadata(&path).ok().filter(fs::Metadata::is_file).map(|file| file.len())
                else {
                    left_out.push(path);
                    continue;
                };
                if !is_image(&path) {
                    left_out.push(path);
                } else {
                    for part in [class.as_bytes(), b"/", name.as_bytes(), b"\0", &n_bytes.to_le_bytes()] {
                        hash.update(part);
                    }
                    images.files.push((path, label));
                }
            }
            if images.files.len() == n_before {
                return Err(wrong(format!("no images in the folder `{class}`")));
            }
            images.classes.push(class);
        }
        if images.classes.is_empty() {
            return Err(wrong("no folders in it".to_string()));
        }
        if let Some(first) = left_out.first() {
            tracing::warn!(
                "{}: {} not read, as only the `.jpg`, `.jpeg` and `.png` in each class's own folder are: {}{}",
                folder.display(),
                if left_out.len() == 1 {
                    "one entry is".to_string()
                } else {
                    format!("{} entries are", left_out.len())
                },
                first.strip_prefix(folder).unwrap_or(first).display(),
                if left_out.len() == 1 { "" } else { ", …" }
            );
        }
        images.fingerprint = bf16scope_files::hex(hash.finalize());
        Ok(images)
    }
}

/// Whether the file name is an image's.
pub(super) fn is_image(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
}

/// The entries of a folder, by name.
pub(super) fn listed(folder: &Path) -> Result<Vec<(String, PathBuf)>, DataError> {
    let failed = |cause| DataError::new(DataErrorKind::Read, folder, "cannot list the folder").because(cause);
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.starts_with('.') {
            entries.push((name, path));
        }
    }
    entries.sort();
    Ok(entries)
}

impl Records for ImageFolder {
    fn n_records(&self) -> u64 {
        self.files.len() as u64
    }

    fn values(&self, index: u64, keys: Option<&[&str]>) -> Result<Values, DataError> {
        let (path, label) = &self.files[index as usize];
        let wanted = |key: &str| keys.is_none_or(|keys| keys.contains(&key));
        let mut values = Values::new();
        if wanted("images") {
            let bytes = files::read(path, MAX_BYTES);
            let bytes = bytes.map_err(|cause| DataError::open(path, cause))?;
            values.insert("images".to_string(), Value::Bytes(vec![bytes]));
        }
        if wanted("labels") {
            values.insert("labels".to_string(), Value::Ints(vec![*label]));
        }
        Ok(values)
    }

    fn place(&self, index: u64) -> String {
        self.files[index as usize].0.display().to_string()
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn is_image(&self, key: &str) -> bool {
        key == "images"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_folders() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        };
        let error = |message: &str| {
            let error = ImageFolder::open(folder.path()).unwrap_err().to_string();
            let expected = "expected a folder for each class, with JPEG or PNG files in it";
            assert_eq!(error, format!("{}: {message}; {expected}", folder.path().display()));
        };
        write("notes.txt");
        error("no folders in it");
        for name in ["dog/b.PNG", "dog/a.jpeg", "cat/z.jpg", "cat/.hidden.jpg", "cat/notes.txt", ".git/x.jpg"] {
            write(name);
        }
        let images = ImageFolder::open(folder.path()).unwrap();
        assert_eq!((images.n_records(), images.classes()), (3, &["cat".to_string(), "dog".to_string()][..]));
        let values = images.values(1, None).unwrap();
        assert_eq!(values["images"], Value::Bytes(vec![b"dog/a.jpeg".to_vec()]));
        assert_eq!(values["labels"], Value::Ints(vec![1]));
        assert_eq!(images.values(0, Some(&["labels"])).unwrap(), [("labels".to_string(), Value::Ints(vec![0]))].into());
        assert_eq!(images.place(2), folder.path().join("dog/b.PNG").display().to_string());
        write("cow/notes.txt");
        error("no images in the folder `cow`");
        write("cow/a.jpg");
        let more = ImageFolder::open(folder.path()).unwrap();
        assert_ne!(more.fingerprint(), images.fingerprint());
        assert!(
            ImageFolder::open(folder.path().join("nowhere"))
                .unwrap_err()
                .to_string()
                .ends_with("cannot list the folder")
        );
    }
}
