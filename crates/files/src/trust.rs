//! Whether what is in a cache is this user's own. What another may write there becomes this user's programs and numbers:
//! checksums lie beside what they are of, and have no secret. So folders that others own or may write are refused, as `ssh`
//! refuses its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A file or folder of a cache that is not this user's alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what}, so what is in it is not trusted\nhelp: {help}", path.display())]
pub struct Untrusted {
    path: PathBuf,
    what: String,
    help: String,
}

impl From<Untrusted> for io::Error {
    fn from(error: Untrusted) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, error)
    }
}

/// Refuses a file or a folder that another user owns, or may write. What is not there is anybody's.
///
/// The superuser is trusted, and so is a group that has the number of this user, which it is the only member of by custom.
/// Where the system has no owners everything is trusted.
///
/// # Errors
/// [`Untrusted`].
pub fn check_trusted(path: &Path) -> Result<(), Untrusted> {
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    match fault(&found, user()) {
        None => Ok(()),
        Some((what, mend)) => {
            let place = path.display();
            let help = match mend {
                Mend::Owner => {
                    format!("set BF16SCOPE_CACHE to a folder of your own, or remove this one: `rm -r '{place}'`")
                }
                Mend::Mode => format!(
                    "if all in it is yours: `chmod -R go-w '{place}'`; else set BF16SCOPE_CACHE to another folder"
                ),
            };
            Err(Untrusted { path: path.to_path_buf(), what, help })
        }
    }
}

/// As [`check_trusted`], of a file or a folder that is no cache's, with what to do instead of following what is in it.
///
/// # Errors
/// [`Untrusted`].
pub fn check_trusted_or(path: &Path, help: &str) -> Result<(), Untrusted> {
    let fault = fs::metadata(path).ok().and_then(|found| fault(&found, user()));
    let untrusted = |(what, _)| Untrusted { path: path.to_path_buf(), what, help: help.to_string() };
    fault.map(untrusted).map_or(Ok(()), Err)
}

/// What mends a fault.
enum Mend {
    Owner,
    Mode,
}

/// This process's user, by whom its entry in `/proc` is owned; `None` where there is none.
fn user() -> Option<u32> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata("/proc/self").ok().map(|found| found.uid())
    }
    #[cfg(not(unix))]
    None
}

#[cfg(unix)]
fn fault(found: &fs::Metadata, user: Option<u32>) -> Option<(String, Mend)> {
    use std::os::unix::fs::MetadataExt as _;
    let (owner, group, mode) = (found.uid(), found.gid(), found.mode());
    fault_of(owner, group, mode, user)
}

#[cfg(not(unix))]
fn fault(_found: &fs::Metadata, _user: Option<u32>) -> Option<(String, Mend)> {
    None
}

#[cfg(unix)]
fn fault_of(owner: u32, group: u32, mode: u32, user: Option<u32>) -> Option<(String, Mend)> {
    let is_own_group = group == 0 || user == Some(group);
    // In a folder such as /tmp (sticky) nobody changes what is another's, and what is added is looked at itself.
    let is_shared = mode & 0o170_000 == 0o040_000 && mode & 0o1000 != 0;
    match user {
        Some(user) if owner != user && owner != 0 => {
            Some((format!("user {owner} owns it, and this process runs as user {user}"), Mend::Owner))
        }
        _ if is_shared => None,
        _ if mode & 0o002 != 0 => Some((format!("every user may write it (mode {:o})", mode & 0o7777), Mend::Mode)),
        _ if mode & 0o020 != 0 && !is_own_group => {
            Some((format!("group {group} may write it (mode {:o})", mode & 0o7777), Mend::Mode))
        }
        _ => None,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_others_own_or_may_write_is_not_trusted() {
        let what = |owner, group, mode| fault_of(owner, group, mode, Some(1000)).map(|(what, _)| what);
        assert_eq!(what(1000, 1000, 0o40755), None);
        assert_eq!(what(1000, 1000, 0o40775), None, "a group of the user alone");
        assert_eq!(what(0, 0, 0o40755), None, "the superuser's");
        let owned = "user 1001 owns it, and this process runs as user 1000";
        assert_eq!(what(1001, 1000, 0o40700).as_deref(), Some(owned));
        assert_eq!(what(1000, 100, 0o40775).as_deref(), Some("group 100 may write it (mode 775)"));
        assert_eq!(what(1000, 1000, 0o40777).as_deref(), Some("every user may write it (mode 777)"));
        assert_eq!(what(0, 0, 0o41777), None, "as /tmp is");
        assert_eq!(what(1001, 0, 0o41777).as_deref(), Some(owned));
        assert!(what(1000, 1000, 0o101_666).is_some(), "a file");
        // Root does not trust what users own.
        assert!(fault_of(1000, 1000, 0o40700, Some(0)).is_some());
    }

    #[test]
    fn a_folder_that_every_user_may_write_is_refused_with_the_line_that_mends_it() {
        let folder = tempfile::tempdir().unwrap();
        check_trusted(folder.path()).unwrap();
        check_trusted(&folder.path().join("absent")).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let place = folder.path().display();
        assert_eq!(
            check_trusted(folder.path()).unwrap_err().to_string(),
            format!(
                "{place}: every user may write it (mode 777), so what is in it is not trusted\nhelp: if all in it is yours: \
                 `chmod -R go-w '{place}'`; else set BF16SCOPE_CACHE to another folder"
            )
        );
    }
}
