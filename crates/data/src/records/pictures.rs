//! Image files without labels: one example each.

use std::path::{Path, PathBuf};

use super::folder::{MAX_BYTES, is_image, listed};
use super::{Records, Value, Values};
use crate::error::DataError;
use bf16scope_files as files;
use sha2::{Digest, Sha256};

/// Image files, in the given order. Whatever key is requested, the value is the image's bytes.
#[derive(Debug)]
pub struct Pictures {
    files: Vec<PathBuf>,
    fingerprint: String,
}

impl Pictures {
    /// One file, or the files of a folder whose names end with `.jpg`, `.jpeg` or `.png`, in the order of their names.
    ///
    /// # Errors
    /// A folder that cannot be listed, or has no such file.
    pub fn open(path: impl AsRef<Path>) -> Result<Pictures, DataError> {
        let path = path.as_ref();
        let files = match path.is_dir() {
            false => vec![path.to_path_buf()],
            true => {
                let files = listed(path)?.into_iter().map(|(_, path)| path);
                files.filter(|path| is_image(path) && path.is_file()).collect()
            }
        };
        if files.is_empty() {
            return Err(DataError::empty(path, "no images; expected JPEG or PNG files in it"));
        }
        let mut hash = Sha256::new();
        for file in &files {
            let n_bytes = file.metadata().map_or(0, |metadata| metadata.len());
            hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
            hash.update(n_bytes.to_le_bytes());
        }
        let fingerprint = bf16scope_files::hex(hash.finalize());
        Ok(Pictures { files, fingerprint })
    }

    /// Whether the file name is an image's, also of a kind that is not decoded: its error says which it is.
    pub fn is_named_so(path: &Path) -> bool {
        const OTHERS: [&str; 7] = ["gif", "bmp", "tif", "tiff", "webp", "heic", "avif"];
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        is_image(path) || ending.is_some_and(|ending| OTHERS.contains(&ending.as_str()))
    }
}

impl Records for Pictures {
    fn n_records(&self) -> u64 {
        self.files.len() as u64
    }

    fn values(&self, index: u64, keys: Option<&[&str]>) -> Result<Values, DataError> {
        let path = &self.files[index as usize];
        let bytes = files::read(path, MAX_BYTES).map_err(|cause| DataError::open(path, cause))?;
        let keys = keys.unwrap_or(&["images"]);
        Ok(keys.iter().map(|key| (key.to_string(), Value::Bytes(vec![bytes.clone()]))).collect())
    }

    fn place(&self, index: u64) -> String {
        self.files[index as usize].display().to_string()
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn is_image(&self, _key: &str) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_or_the_files_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let error = Pictures::open(folder.path()).unwrap_err().to_string();
        assert_eq!(error, format!("{}: no images; expected JPEG or PNG files in it", folder.path().display()));
        for name in ["b.png", "a.JPG", "notes.txt", ".c.png"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let pictures = Pictures::open(folder.path()).unwrap();
        assert_eq!(pictures.n_records(), 2);
        let values = pictures.values(0, Some(&["image/encoded"])).unwrap();
        assert_eq!(values["image/encoded"], Value::Bytes(vec![b"a.JPG".to_vec()]));
        assert_eq!(pictures.place(1), folder.path().join("b.png").display().to_string());
        assert!(["a.JPG", "b.WebP", "c.tif"].iter().all(|name| Pictures::is_named_so(Path::new(name))));
        assert!(!["a.npz", "webp"].iter().any(|name| Pictures::is_named_so(Path::new(name))));
        let one = Pictures::open(folder.path().join("b.png")).unwrap();
        assert_eq!((one.n_records(), one.values(0, None).unwrap().len()), (1, 1));
    }
}
