//! Outputs are local files: for a store's URL, the system would create a local folder called `gs:`, and nothing in the
//! store.

use std::io;
use std::path::Path;

/// The error for a URL where a local file or folder is required.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` is a URL, and bf16scope {} only local files\nhelp: {help}", if *is_output { "writes" } else { "reads" })]
pub struct NotLocal {
    url: String,
    is_output: bool,
    help: String,
}

impl NotLocal {
    /// The remedy.
    pub fn help(&self) -> &str {
        &self.help
    }
}

impl From<NotLocal> for io::Error {
    fn from(error: NotLocal) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Refuses the URL of a store, or of a file, as the place of an output. A folder whose name is a word and a colon is
/// written with `./` before it.
///
/// # Errors
/// [`NotLocal`].
pub fn check_output(path: &Path) -> Result<(), NotLocal> {
    refuse(path, true)
}

/// Refuses a URL as an input file.
///
/// # Errors
/// [`NotLocal`].
pub fn check_input(path: &Path) -> Result<(), NotLocal> {
    refuse(path, false)
}

fn refuse(path: &Path, is_output: bool) -> Result<(), NotLocal> {
    let Some((scheme, rest)) = scheme_of(path) else { return Ok(()) };
    let url = path.to_string_lossy().into_owned();
    let copy = match scheme.to_ascii_lowercase().as_str() {
        "gs" => Some("gcloud storage cp -r"),
        "s3" => Some("aws s3 cp --recursive"),
        _ => None,
    };
    let help = match (scheme.to_ascii_lowercase().as_str(), is_output, copy) {
        ("file", ..) => format!("write the path alone: {}", rest.strip_prefix("localhost").unwrap_or(&rest)),
        (_, true, Some(copy)) => {
            format!("name a local file or folder, and copy it there afterwards: `{copy} LOCAL {url}`")
        }
        (_, false, Some(copy)) => format!("copy it first, and name the copy: `{copy} {url} LOCAL`"),
        (_, true, None) => "name a local file or folder, and copy it there afterwards".to_string(),
        (_, false, None) => "download it first, and name the local file".to_string(),
    };
    Err(NotLocal { url, is_output, help })
}

/// The scheme of a URL and the part after its `://`; `None` for a local path.
fn scheme_of(path: &Path) -> Option<(String, String)> {
    let text = path.to_string_lossy();
    let (scheme, rest) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_scheme.then(|| (scheme.to_string(), rest.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths() {
        for url in
            ["gs://b/run", "s3://b/x.npz", "http://h/x", "https://h", "file:///tmp/x", "GS://b", "a+b.c-d://x", "x://"]
        {
            assert!(check_output(Path::new(url)).is_err() && check_input(Path::new(url)).is_err(), "{url}");
        }
        for path in
            ["gs:", "gs:/b", "./gs://b", "/tmp/gs://b", "a b://c", "://x", "1://x", "runs/x", "C:\\x", "é://x", ""]
        {
            assert_eq!(check_output(Path::new(path)), Ok(()), "{path}");
        }
    }

    #[test]
    fn the_remedy_is_of_the_scheme() {
        let output = |path: &str| check_output(Path::new(path)).unwrap_err().to_string();
        assert_eq!(
            output("gs://b/run"),
            "`gs://b/run` is a URL, and bf16scope writes only local files\nhelp: name a local file or folder, and copy it \
             there afterwards: `gcloud storage cp -r LOCAL gs://b/run`"
        );
        assert!(output("s3://b/x").ends_with("`aws s3 cp --recursive LOCAL s3://b/x`"));
        assert!(output("file:///tmp/x").ends_with("help: write the path alone: /tmp/x"));
        assert!(output("file://localhost/tmp/x").ends_with("help: write the path alone: /tmp/x"));
        assert!(output("http://h/x").ends_with("help: name a local file or folder, and copy it there afterwards"));
        let input = check_input(Path::new("s3://b/x")).unwrap_err().to_string();
        assert_eq!(
            input,
            "`s3://b/x` is a URL, and bf16scope reads only local files\nhelp: copy it first, and name the copy: \
             `aws s3 cp --recursive s3://b/x LOCAL`"
        );
    }

    #[test]
    fn nothing_is_written_to_a_url_by_any_way() {
        let path = Path::new("gs://bucket/x");
        for error in [
            crate::Replacement::begin(path).err(),
            crate::check_replaceable(path).err(),
            crate::replace(path, b"x").err(),
            crate::put(path, b"x").err(),
            crate::open(path).err(),
        ] {
            let error = error.unwrap();
            assert!(error.get_ref().is_some_and(|inner| inner.is::<NotLocal>()), "{error}");
        }
        assert!(!Path::new("gs:").exists());
    }
}
