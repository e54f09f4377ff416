//! Which checkpoints of a run stay.

use super::*;
use crate::checkpoint::{Position, Settings};
use bf16scope_model::graph::Precision;
use std::collections::BTreeMap;

fn checkpoint(step: u64) -> Checkpoint {
    let position =
        Position { step, steps_per_epoch: 100, batch: 1, seed: 0, precision: Precision::F32, order: 1, draws: 1 };
    let settings = Settings(serde_json::Value::Null);
    Checkpoint { position, settings, function: None, data: None, callbacks: None, variables: BTreeMap::new() }
}

/// The files there, and the steps that the checkpoints hold.
fn steps(folder: &Path) -> Vec<(String, u64)> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let checkpoints = names.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'));
    let step = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, Checkpoint::read(&path).map_or(0, |checkpoint| checkpoint.position.step))
    };
    let mut steps: Vec<_> = checkpoints.map(step).collect();
    steps.sort_by_key(|(_, step)| *step);
    steps
}

fn named(steps: &[(&str, u64)]) -> Vec<(String, u64)> {
    steps.iter().map(|(name, step)| (format!("{name}.safetensors"), *step)).collect()
}

fn write(series: &mut Series<'_>, steps: impl IntoIterator<Item = u64>) {
    steps.into_iter().for_each(|step| series.write(&checkpoint(step)).unwrap());
}

#[test]
fn the_last_ones_stay_across_resumptions_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let place = Place::claim(&path).unwrap();
    let keep = |n| NonZeroU32::new(n).unwrap();
    let check = |expected: &[(&str, u64)]| assert_eq!(steps(folder.path()), named(expected));
    write(&mut Series::begin(&place, keep(3), None), [1, 2, 3, 4]);
    check(&[("run-2", 2), ("run-3", 3), ("run", 4)]);
    // Another process goes on.
    write(&mut Series::begin(&place, keep(3), Some((&path, 4))), [5]);
    check(&[("run-3", 3), ("run-4", 4), ("run", 5)]);
    // From an older one: the later checkpoints are replaced when their steps come again.
    let older = folder.path().join("run-3.safetensors");
    write(&mut Series::begin(&place, keep(3), Some((&older, 3))), [4, 6]);
    check(&[("run-3", 3), ("run-4", 4), ("run", 6)]);
    // The checkpoint kept for that step is the last one written.
    let other = Checkpoint { position: Position { seed: 5, ..checkpoint(4).position }, ..checkpoint(4) };
    let mut again = Series::begin(&place, keep(3), Some((&older, 3)));
    again.write(&other).unwrap();
    write(&mut again, [6]);
    check(&[("run-3", 3), ("run-4", 4), ("run", 6)]);
    assert_eq!(Checkpoint::read(folder.path().join("run-4.safetensors")).unwrap().position.seed, 5);
    // Fewer are kept.
    write(&mut Series::begin(&place, keep(1), Some((&path, 6))), [7]);
    check(&[("run", 7)]);
    assert!(!folder.path().join(".run.safetensors.older").exists());
}

#[test]
fn what_this_run_has_not_written_is_neither_replaced_nor_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let place = Place::claim(&path).unwrap();
    let keep = NonZeroU32::new(2).unwrap();
    fs::write(folder.path().join("run-2.safetensors"), "someone's").unwrap();
    let mut series = Series::begin(&place, keep, None);
    write(&mut series, [1, 2]);
    // A file of this run that someone changed since is no longer ours to remove.
    fs::write(folder.path().join("run-1.safetensors"), "changed").unwrap();
    write(&mut series, [3, 4, 5]);
    let bytes_of = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert_eq!(
        (bytes_of("run-2.safetensors"), bytes_of("run-1.safetensors")),
        (b"someone's".to_vec(), b"changed".to_vec())
    );
    assert_eq!(steps(folder.path())[2..], named(&[("run-4", 4), ("run", 5)])[..]);
    // A run that starts afresh starts its own list.
    write(&mut Series::begin(&place, keep, None), [1, 2, 3]);
    assert_eq!(steps(folder.path())[2..], named(&[("run", 3), ("run-4", 4)])[..], "the name of step 2 is taken");
}

#[test]
fn a_list_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let place = Place::claim(&path).unwrap();
    fs::create_dir(folder.path().join(".run.safetensors.older")).unwrap();
    let error = Series::begin(&place, NonZeroU32::MIN, None).write(&checkpoint(1)).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "{}: cannot write the checkpoint: keeping the checkpoint before it\nhelp: make room or name another place \
             with --checkpoint; what was there before is unchanged",
            path.display()
        )
    );
}
