//! Objects of stores, by URL: each is downloaded whole into the cache, and then read like a file.
//!
//! An object is identified by its URL, its size and the store's version of it, which is requested at each opening, so
//! derived data (indexes, unpacked files, fingerprints) are never those of an older version. The stores themselves are
//! behind the feature `object-store` ([`store`]).

#[cfg(feature = "object-store")]
mod store;

#[cfg(feature = "object-store")]
use store::{fetch, list};

use std::path::{Path, PathBuf};

use super::shard::{Shard, url};
use super::{no_files, no_pattern};
use crate::error::{DataError, DataErrorKind};
#[cfg(not(feature = "object-store"))]
use bf16scope_files::OnBytes;
use bf16scope_files::{self as files, Cache, Records as Kept};

/// The largest size of the cached objects, as for unpacked files; above it, the least recently used ones are removed.
const MAX_OBJECTS: u64 = 64 << 30;

/// The objects kept below a cache directory.
pub fn objects(cache_dir: &Path) -> Kept {
    Kept::new(cache_dir.join("objects"), "object", MAX_OBJECTS)
}

/// A URL in its parts: `gs`, `bucket`, `folder/name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts<'a> {
    scheme: &'a str,
    host: &'a str,
    name: &'a str,
}

impl Parts<'_> {
    /// Splits a URL, unless it may contain a secret: names are printed and stored.
    fn parse(url: &str) -> Result<Parts<'_>, DataError> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (host, name) = rest.split_once('/').unwrap_or((rest, ""));
        let public = host.rsplit('@').next().unwrap_or_default();
        let wrong = |message: &str| {
            let help = "name it as https://host/name, s3://bucket/name or gs://bucket/name; credentials come from the environment, \
                        or copy the file here and name that";
            Err(refused(&format!("{scheme}://{public}/"), message, help))
        };
        match () {
            () if public.len() < host.len() => wrong("a URL with a user or a password; expected one without"),
            () if scheme.starts_with("http") && name.contains(['?', '#']) => {
                wrong("a URL with a query or a fragment; expected one without")
            }
            () if host.is_empty() || name.is_empty() => wrong("a URL without a host or a name; expected both"),
            () => Ok(Parts { scheme, host, name }),
        }
    }
}

/// The error for an object that may not be fetched.
fn refused(url: &str, message: &str, help: &str) -> DataError {
    DataError::new(DataErrorKind::Read, url, message).help(help)
}

fn no_feature(url: &str) -> DataError {
    let message = "this build reads local files only";
    let help = "build bf16scope with `--features object-store`, or copy the file here and name that";
    DataError::new(DataErrorKind::Read, url, message).help(help)
}

/// Splits a URL that this build and this run may fetch.
fn allowed(url: &str) -> Result<Parts<'_>, DataError> {
    let parts = Parts::parse(url)?;
    match () {
        () if !cfg!(feature = "object-store") => Err(no_feature(url)),
        () if files::is_offline() => {
            let help = "run without --offline and BF16SCOPE_OFFLINE, or copy the file here and name that";
            Err(refused(url, "an object of a store, and this run is offline", help))
        }
        () => Ok(parts),
    }
}

/// The objects that a pattern matches, in the order of their names; a URL without `*`, `?` and `[` matches itself.
pub(super) fn matching(pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let parts = allowed(pattern)?;
    if !parts.name.contains(['*', '?', '[']) {
        return Ok(vec![PathBuf::from(pattern)]);
    }
    if parts.scheme.starts_with("http") {
        let message = "a pattern of names, and a web server lists none; expected a name";
        let help = "name each file in a list; patterns are for local files, gs:// and s3://";
        return Err(refused(pattern, message, help));
    }
    let matcher = glob::Pattern::new(parts.name).map_err(|error| no_pattern(pattern, &error))?;
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::default() };
    // A store lists by the prefix of a folder's name.
    let literal = parts.name.split(['*', '?', '[']).next().unwrap_or_default();
    let folder = literal.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut names = list(pattern, parts, folder)?;
    names.retain(|name| matcher.matches_with(name, options));
    names.sort();
    match names.is_empty() {
        true => Err(no_files(pattern.to_string())),
        false => {
            Ok(names.iter().map(|name| PathBuf::from(format!("{}://{}/{name}", parts.scheme, parts.host))).collect())
        }
    }
}

/// Files on disk unchanged, and objects as files in the cache, downloaded if they are not there yet.
///
/// # Errors
/// A file that cannot be opened, an object that cannot be fetched.
pub(super) fn shards(files: &[PathBuf], cache: &Cache) -> Result<Vec<Shard>, DataError> {
    let mut urls = Vec::new();
    for url in files.iter().filter_map(|path| url(path)) {
        urls.push((url, allowed(url)?));
    }
    let mut fetched = match (urls.first(), &cache.dir) {
        (None, _) => Vec::new(),
        (Some((url, _)), None) => {
            let message = "an object of a store, and there is no cache directory to bring it to";
            return Err(refused(url, message, "set BF16SCOPE_CACHE"));
        }
        (Some(_), Some(dir)) => fetch(&urls, &objects(dir), MAX_OBJECTS, &cache.on_bytes)?,
    }
    .into_iter();
    let shard = |path: &PathBuf| match url(path) {
        Some(_) => Ok(fetched.next().expect("each URL is fetched")),
        None => Shard::from_path(path),
    };
    files.iter().map(shard).collect()
}

/// Downloads an object again, to the same place.
///
/// # Errors
/// The object cannot be fetched, or has changed.
pub(super) fn again(shard: &Shard, cache: &Cache) -> Result<(), DataError> {
    if let Some(fetched) = &shard.fetched {
        // If it cannot be removed, it is replaced.
        drop(std::fs::remove_file(&fetched.path));
    }
    let now = shards(std::slice::from_ref(&shard.path), cache)?.remove(0);
    let sums = |shard: &Shard| shard.fetched.as_ref().map(|fetched| (*fetched.sums).clone());
    match now.is_as(shard) && sums(&now) == sums(shard) {
        true => Ok(()),
        false => Err(DataError::changed(&shard.path)),
    }
}

/// The local files for some names: for an object its file in the cache, otherwise the file itself.
///
/// # Errors
/// An object that cannot be fetched.
pub fn local(files: Vec<PathBuf>, cache: &Cache) -> Result<Vec<PathBuf>, DataError> {
    match files.iter().any(|path| url(path).is_some()) {
        false => Ok(files),
        true => {
            let shards = shards(&files, cache)?;
            // The readers of these files do not verify the cache's checksums, so the files are verified here, whole.
            for shard in &shards {
                if let Some(fetched) = &shard.fetched
                    && let Err(error) = fetched.sums.check(&fetched.path)
                {
                    tracing::warn!("{}: {error}; it is fetched again", fetched.path.display());
                    again(shard, cache)?;
                }
            }
            Ok(shards.iter().map(|shard| shard.stored().to_path_buf()).collect())
        }
    }
}

/// Like [`local`], for one name, relative to `folder` unless it is a URL.
///
/// # Errors
/// An object that cannot be fetched.
pub fn at(folder: &Path, file: &Path, cache: &Cache) -> Result<PathBuf, DataError> {
    // Joining a URL to a folder would put the folder in front.
    let file = if url(file).is_some() { file.to_path_buf() } else { folder.join(file) };
    Ok(local(vec![file], cache)?.remove(0))
}

/// A folder of files, relative to another.
///
/// # Errors
/// The name is a URL: a store has no folders that could be read like this.
pub fn directory(folder: &Path, directory: &Path) -> Result<PathBuf, DataError> {
    match url(directory) {
        Some(url) => {
            let help = "copy the folder here, or write its images as tars and name those under `webdataset`";
            Err(refused(url, "a folder of a store, which is not read as one of images", help))
        }
        None => Ok(folder.join(directory)),
    }
}

/// Never called: [`allowed`] refuses every URL in a build without the feature.
#[cfg(not(feature = "object-store"))]
fn fetch(urls: &[(&str, Parts<'_>)], _: &Kept, _: u64, _: &OnBytes) -> Result<Vec<Shard>, DataError> {
    Err(no_feature(urls[0].0))
}

/// Never called, like [`fetch`].
#[cfg(not(feature = "object-store"))]
fn list(url: &str, _: Parts<'_>, _: &str) -> Result<Vec<String>, DataError> {
    Err(no_feature(url))
}

#[cfg(test)]
mod tests {
    use super::super::open;
    use super::*;

    fn refused(name: &str) -> String {
        open(Path::new("/folder"), &[name], None).unwrap_err().to_string()
    }

    #[test]
    fn urls_that_hold_secrets_are_refused_and_not_shown() {
        let help = "help: name it as https://host/name, s3://bucket/name or gs://bucket/name; credentials come from the \
                    environment, or copy the file here and name that";
        for (url, expected) in [
            ("https://me:secret@host/a?b", "https://host/: a URL with a user or a password; expected one without"),
            (
                "https://host/a.tar?X-Amz-Signature=secret",
                "https://host/: a URL with a query or a fragment; expected one without",
            ),
            ("s3://bucket", "s3://bucket/: a URL without a host or a name; expected both"),
            ("gs:///name", "gs:///: a URL without a host or a name; expected both"),
        ] {
            assert_eq!(refused(url), format!("{expected}\n{help}"), "{url}");
        }
    }

    #[test]
    fn what_no_build_fetches_is_said() {
        let error = directory(Path::new("/folder"), Path::new("gs://bucket/images")).unwrap_err().to_string();
        let help = "help: copy the folder here, or write its images as tars and name those under `webdataset`";
        assert_eq!(
            error,
            format!("gs://bucket/images: a folder of a store, which is not read as one of images\n{help}")
        );
    }

    #[cfg(not(feature = "object-store"))]
    #[test]
    fn a_build_without_stores_says_how_to_make_one() {
        for url in ["gs://bucket/train-*", "s3://bucket/a.tar", "http://host/a", "https://host/a.parquet"] {
            let help = "help: build bf16scope with `--features object-store`, or copy the file here and name that";
            assert_eq!(refused(url), format!("{url}: this build reads local files only\n{help}"));
        }
        let file = PathBuf::from("/nowhere/http://host");
        let error =
            at(Path::new("/folder"), Path::new("gs://bucket/a.csv"), &Cache::default()).unwrap_err().to_string();
        assert!(error.starts_with("gs://bucket/a.csv: this build reads"), "{error}");
        assert_eq!(
            at(Path::new("/folder"), Path::new("a.csv"), &Cache::default()).unwrap(),
            Path::new("/folder/a.csv")
        );
        assert_eq!(
            local(vec![file.clone()], &Cache::default()).unwrap(),
            [file],
            "a local file has no scheme at its beginning"
        );
    }
}
