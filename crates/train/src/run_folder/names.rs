//! The names of runs' folders: `runs/EXPERIMENT-PRECISION` for the first run of an experiment, with `-2`, `-3` and so
//! on for later ones.

use super::about::{About, Saved};
use super::{RunError, RunFolder, entries};
use std::fs;
use std::path::{Path, PathBuf};

impl RunFolder {
    /// The folder of an experiment's first run: `runs/NAME-PRECISION` in the current directory.
    pub fn first_of(experiment: &Path, precision: &str) -> PathBuf {
        // The name byte by byte: two names that are displayed alike (`\xff` and `\xfe`) are two experiments.
        let mut name = experiment.file_stem().unwrap_or_default().to_os_string();
        name.push(format!("-{precision}"));
        Path::new("runs").join(name)
    }

    /// As [`create`](RunFolder::create), in a new folder: `path` if it is free, or else the first free one of `path-2`,
    /// `path-3` and so on, after the last existing one.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn create_next(path: &Path, about: &About, experiment: Option<&str>) -> Result<RunFolder, RunError> {
        let mut number = numbered(path).last().map_or(1, |(number, _)| number + 1);
        loop {
            match RunFolder::create(nth(path, number), about.clone(), experiment) {
                Err(RunError::Exists { .. } | RunError::Taken { .. } | RunError::Busy { .. }) => number += 1,
                result => return result,
            }
        }
    }

    /// The free ones of `path`, `path-2`, `path-3` and so on, from the first one after the last that holds something.
    pub fn free(path: &Path) -> impl Iterator<Item = PathBuf> {
        let path = path.to_path_buf();
        let last = numbered(&path).into_iter().rev().find(|(_, folder)| !entries::is_free(folder));
        let start = last.map_or(1, |(number, _)| number + 1);
        (start..).map(move |number| nth(&path, number)).filter(|folder| entries::is_free(folder))
    }

    /// Whether a path is free for a new run: nothing is there, or a folder that holds no more than the lock of a run
    /// that starts.
    pub fn is_free(path: &Path) -> bool {
        entries::is_free(path)
    }

    /// Whether a run is recorded in a folder.
    pub fn holds_run(path: &Path) -> bool {
        entries::holds_run(path)
    }

    /// The latest of the folders that [`create_next`](RunFolder::create_next) makes for `path` whose last checkpoint is
    /// `saved`.
    pub fn of_checkpoint(path: &Path, saved: &Saved) -> Option<PathBuf> {
        let is_of = |about: About| about.saved.is_some_and(|last| last.is_same(saved));
        latest(path, |folder| About::read(folder).is_ok_and(is_of))
    }

    /// The folder of an experiment's newest run that meets a condition. Experiments of the same name in other folders
    /// share the numbers, and a folder without a readable description is known by its name alone.
    pub fn newest(experiment: &Path, precision: &str, is_wanted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        let is_of = |folder: &Path| {
            About::read(folder).map_or(true, |about| about.precision == precision && is_same(&about, experiment))
        };
        latest(&RunFolder::first_of(experiment, precision), |folder| is_wanted(folder) && is_of(folder))
    }
}

/// Whether a run is of the experiment in a file, by the path that it was trained from.
fn is_same(about: &About, experiment: &Path) -> bool {
    let before = Path::new(&about.experiment);
    // As `run.json` has it: a name that is not UTF-8 is written as it is displayed.
    let absolute = |path: &Path| std::path::absolute(path).map(|path| path.display().to_string()).ok();
    let real = |path: &Path| path.canonicalize().ok();
    absolute(before).is_some_and(|before| absolute(experiment) == Some(before))
        || real(before).is_some_and(|before| real(experiment) == Some(before))
}

/// The latest folder of this name that meets a condition.
fn latest(path: &Path, is_wanted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    numbered(path).into_iter().rev().map(|(_, folder)| folder).find(|folder| is_wanted(folder))
}

/// The `number`th folder; the first is `path` itself.
fn nth(path: &Path, number: u64) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    if number > 1 {
        name.push(format!("-{number}"));
    }
    path.with_file_name(name)
}

/// The existing folders of this name, with their numbers.
fn numbered(path: &Path) -> Vec<(u64, PathBuf)> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let number = |file_name: &[u8]| match file_name.strip_prefix(name)? {
        [] => Some(1),
        rest => {
            let digits = std::str::from_utf8(rest.strip_prefix(b"-")?).ok()?;
            let number = digits.parse().ok().filter(|number| *number > 1)?;
            (digits == u64::to_string(&number)).then_some(number)
        }
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| number(entry.file_name().as_encoded_bytes()));
    let mut folders: Vec<(u64, PathBuf)> = numbers.map(|number| (number, nth(path, number))).collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_folder::CHECKPOINT;

    fn about(experiment: &str) -> About {
        About { experiment: experiment.to_string(), precision: "f32".to_string(), ..About::default() }
    }

    #[test]
    fn new_runs_are_numbered_and_found_by_their_checkpoint() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("net.v1-f32");
        let name = |folder: &RunFolder| folder.path().file_name().unwrap().to_str().unwrap().to_string();
        let saved = |step| Saved { path: "c".to_string(), step, sha256: None };
        let mut first = RunFolder::create_next(&path, &about("e"), None).unwrap();
        first.saved(saved(88)).unwrap();
        let second = RunFolder::create_next(&path, &about("e"), None).unwrap();
        assert_eq!((name(&first), name(&second)), ("net.v1-f32".to_string(), "net.v1-f32-2".to_string()));
        // The second run has saved nothing: the checkpoint is still the first run's.
        assert_eq!(RunFolder::of_checkpoint(&path, &saved(88)), Some(path.clone()));
        assert_eq!(RunFolder::of_checkpoint(&path, &saved(44)), None);
        fs::create_dir(home.path().join("net.v1-f32-07")).unwrap();
        fs::create_dir(home.path().join("net.v1-f32-9")).unwrap();
        let mut tenth = RunFolder::create_next(&path, &about("e"), None).unwrap();
        assert_eq!(name(&tenth), "net.v1-f32-10");
        tenth.saved(saved(88)).unwrap();
        assert_eq!(RunFolder::of_checkpoint(&path, &saved(88)), Some(tenth.path().to_path_buf()));
        // The hash tells checkpoints of one path and one step apart.
        let hashed = |hash: &str| Saved { sha256: Some(hash.to_string()), ..saved(88) };
        tenth.saved(hashed("b")).unwrap();
        first.saved(hashed("a")).unwrap();
        assert_eq!(RunFolder::of_checkpoint(&path, &hashed("a")), Some(path.clone()));
        assert_eq!(RunFolder::of_checkpoint(&path, &hashed("c")), None);
    }

    #[test]
    fn a_folder_that_holds_nothing_is_free_for_the_next_run() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("net-f32");
        let next = || RunFolder::free(&path).next().unwrap();
        assert_eq!(next(), path);
        // A folder that a run left which ended before its first step, and one of a run that starts.
        fs::create_dir(&path).unwrap();
        assert_eq!(next(), path);
        fs::write(path.join(format!(".{CHECKPOINT}.lock")), "").unwrap();
        assert_eq!(next(), path);
        // A checkpoint is a run's, recorded or not.
        fs::write(path.join(CHECKPOINT), "").unwrap();
        assert_eq!(next(), nth(&path, 2));
        // The number after the last one: the newest run has the highest.
        drop(RunFolder::create(nth(&path, 5), about("e"), None).unwrap());
        assert_eq!(next(), nth(&path, 6));
        fs::write(nth(&path, 6), "a file").unwrap();
        assert_eq!(next(), nth(&path, 7));
    }

    /// Both names are displayed as `\u{fffd}.yaml`, and the second experiment once replaced the checkpoint of the
    /// first.
    #[cfg(unix)]
    #[test]
    fn experiments_whose_names_differ_have_folders_of_their_own() {
        use std::os::unix::ffi::OsStrExt as _;
        let place = |name: &[u8]| RunFolder::first_of(Path::new(std::ffi::OsStr::from_bytes(name)), "bf16");
        assert_eq!(place(b"a/\xff.yaml").as_os_str().as_bytes(), b"runs/\xff-bf16");
        assert_eq!(place(b"nets/mlp.yaml"), Path::new("runs/mlp-bf16"));
        let home = tempfile::tempdir().unwrap();
        let [one, other] = [&b"\xff"[..], b"\xfe"].map(|name| home.path().join(std::ffi::OsStr::from_bytes(name)));
        fs::create_dir(&one).unwrap();
        assert_eq!((numbered(&one), numbered(&other)), (vec![(1, one.clone())], Vec::new()));
    }

    #[test]
    fn a_run_is_of_the_experiment_that_it_was_trained_from() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::create_dir(at("a")).unwrap();
        fs::write(at("a/net.yaml"), "").unwrap();
        let trained = about(at("a/net.yaml").to_str().unwrap());
        assert!(is_same(&trained, &at("a/net.yaml")) && is_same(&trained, &at("a/../a/net.yaml")));
        assert!(!is_same(&trained, &at("b/net.yaml")));
        // The file may be gone.
        fs::remove_dir_all(at("a")).unwrap();
        assert!(is_same(&trained, &at("a/net.yaml")));
    }
}
