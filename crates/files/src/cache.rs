//! Where what is made of files once is kept, and who is told how far that is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where what is made of files once is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    /// The folder; `None` where nothing is kept.
    pub dir: Option<PathBuf>,
    /// Who is told how far what goes there is.
    pub on_bytes: OnBytes,
}

impl From<Option<&Path>> for Cache {
    fn from(dir: Option<&Path>) -> Cache {
        Cache { dir: dir.map(Path::to_path_buf), on_bytes: OnBytes::default() }
    }
}

/// How far work on files is that takes long and is done once: objects of stores are fetched, text is tokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesDone {
    /// Bytes that are done.
    pub n_bytes: u64,
    /// All bytes. Where there are as many done, the work is.
    pub of: u64,
}

/// Who is told of [`BytesDone`], by default nobody. Two are equal that tell the same one.
#[derive(Clone, Default)]
pub struct OnBytes(Option<Arc<dyn Fn(BytesDone) + Send + Sync>>);

impl OnBytes {
    /// Tells a function.
    pub fn new(tell: impl Fn(BytesDone) + Send + Sync + 'static) -> OnBytes {
        OnBytes(Some(Arc::new(tell)))
    }

    /// Tells that so many bytes are done.
    pub fn tell(&self, n_bytes: u64, of: u64) {
        if let Some(tell) = &self.0 {
            tell(BytesDone { n_bytes, of });
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
