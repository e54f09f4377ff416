//! Checks that a cache belongs to this user alone. Another user with write access could plant programs and numbers:
//! checksums are stored beside the data, and are not secret. So folders that others own or may write are refused, as
//! `ssh` does for its own.

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

/// Refuses a file or a folder that another user owns, or may write. A missing one is accepted.
///
/// The superuser is trusted, and so is a group with this user's number, which by convention has no other member. On a
/// system without owners everything is trusted. A parent folder that every user may write is refused, too, unless it is
/// sticky like `/tmp`: a user who may rename its entries could substitute another folder.
///
/// # Errors
/// [`Untrusted`].
pub fn check_trusted(path: &Path) -> Result<(), Untrusted> {
    check_above(path)?;
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

/// Refuses a path below a folder that every user may write, as written and after resolving links.
fn check_above(path: &Path) -> Result<(), Untrusted> {
    let written = std::path::absolute(path).ok();
    let behind = fs::canonicalize(path).ok();
    for path in written.iter().chain(&behind) {
        for above in path.ancestors().skip(1) {
            if let Some(mode) = fs::metadata(above).ok().and_then(|above| open_to_all(&above)) {
                let what =
                    format!("every user may write {} (mode {mode:o}) and put another in its place", above.display());
                let help = format!("`chmod o-w '{}'`, or set BF16SCOPE_CACHE to another folder", above.display());
                return Err(Untrusted { path: path.clone(), what, help });
            }
        }
    }
    Ok(())
}

/// The mode of a folder in which every user may rename others' files.
fn open_to_all(folder: &fs::Metadata) -> Option<u32> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let mode = folder.mode() & 0o7777;
        (mode & 0o1002 == 0o002).then_some(mode)
    }
    #[cfg(not(unix))]
    None
}

/// Like [`check_trusted`], for a file or a folder outside of the cache, with a remedy for a caller that would follow
/// its content.
///
/// # Errors
/// [`Untrusted`].
pub fn check_trusted_or(path: &Path, help: &str) -> Result<(), Untrusted> {
    let fault = fs::metadata(path).ok().and_then(|metadata| fault(&metadata, user()));
    let untrusted = |(what, _)| Untrusted { path: path.to_path_buf(), what, help: help.to_string() };
    fault.map(untrusted).map_or(Ok(()), Err)
}

/// The remedy for a fault.
enum Mend {
    Owner,
    Mode,
}

/// This process's user, from the owner of its entry in `/proc`; `None` without one.
fn user() -> Option<u32> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata("/proc/self").ok().map(|metadata| metadata.uid())
    }
    #[cfg(not(unix))]
    None
}

#[cfg(unix)]
fn fault(metadata: &fs::Metadata, user: Option<u32>) -> Option<(String, Mend)> {
    use std::os::unix::fs::MetadataExt as _;
    let (owner, group, mode) = (metadata.uid(), metadata.gid(), metadata.mode());
    fault_of(owner, group, mode, user)
}

#[cfg(not(unix))]
fn fault(_found: &fs::Metadata, _user: Option<u32>) -> Option<(String, Mend)> {
    None
}

#[cfg(unix)]
fn fault_of(owner: u32, group: u32, mode: u32, user: Option<u32>) -> Option<(String, Mend)> {
    let is_own_group = group == 0 || user == Some(group);
    // In a sticky folder such as /tmp, users cannot change others' files, and each entry is checked itself.
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
        // Root does not trust files of users.
        assert!(fault_of(1000, 1000, 0o40700, Some(0)).is_some());
    }

    /// Only its own owner and mode used to be checked, not the parent's: every user could `mv cache old && mkdir
    /// cache`.
    #[test]
    fn below_a_folder_that_every_user_may_write_nothing_is_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let above = folder.path().join("above");
        let cache = above.join("more/cache");
        fs::create_dir_all(&cache).unwrap();
        fs::set_permissions(&above, fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(&cache, folder.path().join("link")).unwrap();
        let (place, above_place) = (cache.display(), above.display());
        let expected = format!(
            "{place}: every user may write {above_place} (mode 777) and put another in its place, so what is in it is not \
             trusted\nhelp: `chmod o-w '{above_place}'`, or set BF16SCOPE_CACHE to another folder"
        );
        assert_eq!(check_trusted(&cache).unwrap_err().to_string(), expected);
        assert_eq!(check_trusted(&folder.path().join("link")).unwrap_err().to_string(), expected);
        check_trusted(&above.join("absent")).unwrap_err();
        // Like /tmp.
        fs::set_permissions(&above, fs::Permissions::from_mode(0o1777)).unwrap();
        check_trusted(&cache).unwrap();
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
