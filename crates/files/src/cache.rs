//! The cache for data derived from files, with its progress callback.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The cache for data derived from files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    /// The folder; `None` without a cache.
    pub dir: Option<PathBuf>,
    /// Progress callback for data on their way into it.
    pub on_bytes: OnBytes,
}

impl From<Option<&Path>> for Cache {
    fn from(dir: Option<&Path>) -> Cache {
        Cache { dir: dir.map(Path::to_path_buf), on_bytes: OnBytes::default() }
    }
}

/// The progress of long one-time work on files: downloading objects of stores, tokenizing text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesDone {
    /// Bytes done.
    pub n_bytes: u64,
    /// All bytes; the work is done when `n_bytes` reaches it.
    pub n_total: u64,
}

/// Progress callback; none by default. Two are equal if they share the function.
#[derive(Clone, Default)]
pub struct OnBytes(Option<Arc<dyn Fn(BytesDone) + Send + Sync>>);

impl OnBytes {
    /// Calls this function.
    pub fn new(tell: impl Fn(BytesDone) + Send + Sync + 'static) -> OnBytes {
        OnBytes(Some(Arc::new(tell)))
    }

    /// Reports the bytes done so far.
    pub fn tell(&self, n_bytes: u64, n_total: u64) {
        if let Some(tell) = &self.0 {
            tell(BytesDone { n_bytes, n_total });
        }
    }
}

impl PartialEq for OnBytes {
    fn eq(&self, other: &OnBytes) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            (own, others) => own.is_none() && others.is_none(),
        }
    }
}

impl Eq for OnBytes {}

impl fmt::Debug for OnBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "OnBytes(…)" } else { "OnBytes(nobody)" })
    }
}
