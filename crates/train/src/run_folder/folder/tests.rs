//! Folders of runs that are begun, resumed and refused.

use super::*;
use crate::run_folder::{Run, Start, read};

fn about(step: u64) -> About {
    About { precision: "bf16".to_string(), starts: vec![Start::now(step, "cpu", "p 1")], ..About::default() }
}

fn steps(run: &Run, name: &str) -> Vec<(u64, f64)> {
    let curve = run.curves.iter().find(|curve| curve.name == name).unwrap();
    curve.points.iter().map(|point| (point.step, point.value)).collect()
}

fn n_event_files(path: &Path) -> usize {
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("events.out.tfevents.")).count()
}

#[test]
fn a_resumption_drops_what_comes_after_its_step() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("runs/net-bf16");
    let mut folder = RunFolder::create(&path, about(0), Some("model: {}\n")).unwrap();
    for step in 1..=6 {
        folder.scalars(step, &[("loss", 1.0 / step as f64), ("lr", 0.5)]).unwrap();
    }
    folder.scalars(6, &[("test/loss", f64::NAN)]).unwrap();
    folder.saved(Saved { path: "c".to_string(), step: 4, sha256: None }).unwrap();
    let error = RunFolder::resume(&path, 4, about(4), None).unwrap_err();
    assert!(error.to_string().starts_with(&format!("{}: another process is recording", path.display())), "{error}");
    drop(folder);
    // A truncated record is removed too, and is not counted.
    let mut file = OpenOptions::new().append(true).open(path.join(METRICS)).unwrap();
    file.write_all(b"{\"step\":7,\"ti").unwrap();
    drop(file);
    let (mut folder, resumed) = RunFolder::resume(&path, 4, about(4), None).unwrap();
    assert_eq!(resumed, Resumed { n_dropped: 3 });
    folder.scalars(5, &[("loss", 0.25)]).unwrap();
    drop(folder);
    let run = read(&path).unwrap();
    let third = 1.0 / 3.0;
    assert_eq!(steps(&run, "loss"), [(1, 1.0), (2, 0.5), (3, third), (4, 0.25), (5, 0.25)]);
    assert_eq!(run.curves.len(), 2, "{:?}", run.curves);
    let described = run.about.unwrap();
    assert_eq!(described.starts.iter().map(|start| start.step).collect::<Vec<_>>(), [0, 4]);
    assert_eq!(described.saved, Some(Saved { path: "c".to_string(), step: 4, sha256: None }));
    assert_eq!(fs::read_to_string(path.join(EXPERIMENT)).unwrap(), "model: {}\n");
    // TensorBoard's files have the same values, in f32.
    assert_eq!(n_event_files(&path), 2);
    fs::remove_file(path.join(METRICS)).unwrap();
    let run = read(&path).unwrap();
    let third = f64::from(third as f32);
    assert_eq!(steps(&run, "loss"), [(1, 1.0), (2, 0.5), (3, third), (4, 0.25), (5, 0.25)]);
}

#[test]
fn no_run_and_no_other_file_is_overwritten() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let refused = |path: &Path| RunFolder::create(path, about(0), None).unwrap_err().to_string();
    drop(RunFolder::create(at("a"), about(0), None).unwrap());
    let shown = at("a").display().to_string();
    assert_eq!(
        refused(&at("a")),
        format!("{shown}: another run is recorded here\nhelp: name another folder, or go on with that run")
    );
    fs::create_dir(at("b")).unwrap();
    fs::write(at("b/thesis.tex"), "").unwrap();
    let shown = at("b").display().to_string();
    assert_eq!(
        refused(&at("b")),
        format!(
            "{shown}: the folder holds thesis.tex, and is not a run's\nhelp: name another one, which need not be there"
        )
    );
    let shown = at("b/thesis.tex").display().to_string();
    assert_eq!(refused(&at("b/thesis.tex")), format!("{shown}: cannot list the folder"));
    fs::create_dir(at("empty")).unwrap();
    drop(RunFolder::create(at("empty"), about(0), None).unwrap());
    let error = RunFolder::resume(&at("b"), 1, about(1), None).unwrap_err().to_string();
    let shown = at("b").display().to_string();
    assert_eq!(
        error,
        format!(
            "{shown}: there is no metrics.jsonl, so there is no run to continue\nhelp: name the folder of a run, or one that \
             is not there for a new run"
        )
    );
    let shown = at("b/thesis.tex").display().to_string();
    assert_eq!(refused(&at("b/thesis.tex/run")), format!("{shown}: cannot make the folder"));
}

#[test]
fn steps_go_up_and_names_are_right_or_nothing_is_recorded() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("a");
    let mut folder = RunFolder::create(&path, about(0), None).unwrap();
    folder.scalars(3, &[("loss", 1.0)]).unwrap();
    let error = folder.scalars(2, &[("loss", 1.0)]).unwrap_err().to_string();
    assert_eq!(error, "step 2 was to be recorded after step 3, expected a later one");
    assert!(matches!(folder.scalars(4, &[("time", 1.0)]), Err(RunError::Name { .. })));
    assert_eq!(read(&path).unwrap().curves[0].points.len(), 1);
}
