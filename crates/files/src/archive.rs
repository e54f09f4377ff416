//! What is wrong with a zip archive, or with packed bytes. Those who read them (`.npz` arrays, wheels) say which file it was.

/// Why an archive cannot be read: the zip reader's words.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ZipError(Box<dyn std::error::Error + Send + Sync>);

impl ZipError {
    /// Hides which crate reads archives.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> ZipError {
        ZipError(Box::new(error))
    }
}

/// What packed bytes may become in memory whatever they were packed in: a gigabyte of zeros is an optimizer's state before
/// its first step.
pub const UNPACKED_WITHOUT_QUESTION: u64 = 1 << 30;
/// Beyond that, how many bytes one packed byte may become. Deflate makes 1,032 of one where all are equal; weights and images
/// take between a third and nine tenths of their size, one-hot rows of a thousand classes a hundredth.
pub const MAX_UNPACKED_RATIO: u64 = 200;

/// Whether `n_packed` bytes become more than is unpacked into memory: a decompression bomb, most likely.
pub fn is_bomb(n_packed: u64, n_unpacked: u64) -> bool {
    n_unpacked > UNPACKED_WITHOUT_QUESTION && n_unpacked / MAX_UNPACKED_RATIO > n_packed
}
