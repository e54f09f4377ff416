//! Which records of watched steps stay.

use super::*;

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
}
