//! Which records of watched steps stay.

use super::*;
use std::fs;

fn steps(folder: &Path) -> Vec<u64> {
    let (looks, remarks) = read_watched::<serde_json::Value>(folder).unwrap();
    assert_eq!(remarks, [""; 0]);
    looks.iter().map(|look| look["step"].as_u64().unwrap()).collect()
}

fn line(step: u64) -> String {
    format!("{{\"step\":{step},\"rows\":[]}}")
}

/// A file of the kernel's can be read, and not replaced.
#[test]
fn looks_that_cannot_be_dropped_are_named() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(WATCH);
    std::os::unix::fs::symlink("/proc/version", &path).unwrap();
    let shown = path.display();
    let error = drop_later(home.path(), 3).unwrap_err().to_string();
    assert_eq!(error, format!("{shown}: cannot drop what it has of later steps"));
    let error = Watched::new(home.path()).cut(1).unwrap_err().to_string();
    assert_eq!(error, format!("{shown}: cannot drop old looks"));
}

/// Reading a FIFO waits, and a device or a hole has no end.
#[test]
fn a_file_that_does_not_end_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(WATCH);
    let refused = || {
        let read = read_watched::<serde_json::Value>(home.path()).unwrap_err();
        let dropped = drop_later(home.path(), 3).unwrap_err();
        [read, dropped].map(|error| std::error::Error::source(&error).unwrap().to_string())
    };
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    assert_eq!(refused(), ["not a regular file but a character device\nhelp: name a file"; 2]);
    std::fs::remove_file(&path).unwrap();
    std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(refused(), ["it has more than 4294967296 bytes, the most that is read of it"; 2]);
    std::fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(refused().iter().all(|error| error.starts_with("not a regular file but a FIFO")), "{:?}", refused());
}

#[test]
fn the_newest_looks_stay_and_those_that_are_marked() {
    let home = tempfile::tempdir().unwrap();
    let mut watched = Watched::new(home.path());
    watched.keep(NonZeroU32::new(3));
    for step in 1..=20 {
        if step == 5 {
            watched.mark(4);
            watched.mark(5);
        }
        watched.push(&line(step)).unwrap();
    }
    // Shortened after 7, 11, 15 and 19.
    assert_eq!(steps(home.path()), [4, 5, 17, 18, 19, 20]);
    drop_later(home.path(), 18).unwrap();
    assert_eq!(steps(home.path()), [4, 5, 17, 18]);
    // Another process resumes: existing lines count.
    let mut watched = Watched::new(home.path());
    watched.mark(4);
    watched.keep(NonZeroU32::new(2));
    watched.push(&line(19)).unwrap();
    assert_eq!(steps(home.path()), [4, 18, 19]);
}

#[test]
fn without_a_number_all_stay_and_a_step_seen_twice_is_there_once() {
    let home = tempfile::tempdir().unwrap();
    let mut watched = Watched::new(home.path());
    (1..=9).chain([8]).for_each(|step| watched.push(&line(step)).unwrap());
    assert_eq!(steps(home.path()), (1..=9).collect::<Vec<_>>());
    assert_eq!(steps(&home.path().join("..").join(home.path().file_name().unwrap())), steps(home.path()));
}

#[test]
fn what_is_damaged_is_said_and_left_out() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join(WATCH), format!("{}\nnot JSON\n{}\n{{\"step\":3", line(1), line(2))).unwrap();
    let (looks, remarks) = read_watched::<serde_json::Value>(home.path()).unwrap();
    assert_eq!(looks.len(), 2);
    assert_eq!(
        remarks,
        ["watch.jsonl: line 2 is no look, and is left out", "watch.jsonl: the last line is cut short, and is left out"]
    );
    assert!(read_watched::<serde_json::Value>(&home.path().join("none")).is_err());
    fs::write(home.path().join(WATCH), line(1) + "\n" + &line(MAX_STEP + 1) + "\n").unwrap();
    let (looks, remarks) = read_watched::<serde_json::Value>(home.path()).unwrap();
    assert_eq!((looks.len(), remarks), (1, vec!["watch.jsonl: line 2 is no look, and is left out".to_string()]));
}
