//! What is wrong with a zip archive. Those who read one (`.npz` arrays, wheels) say which file it was.

/// Why an archive cannot be read: the zip reader's words.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ZipError(zip::result::ZipError);

impl ZipError {
    pub(crate) fn new(error: zip::result::ZipError) -> ZipError {
        ZipError(error)
    }
}
