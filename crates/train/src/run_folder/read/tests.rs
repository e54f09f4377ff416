//! Folders of runs that are whole, damaged or no runs.

use super::*;
use proptest::prelude::*;

fn folder(jsonl: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(METRICS), jsonl).unwrap();
    folder
}

fn line(step: u64, value: f64) -> String {
    metrics::line(&Record { step, time: 0.5, scalars: vec![("loss".to_string(), value)] })
}

fn values(run: &Run) -> Vec<(u64, f64)> {
    run.curves.iter().flat_map(|curve| &curve.points).map(|point| (point.step, point.value)).collect()
}

#[test]
fn damaged_lines_are_read_past_and_said() {
    let long = format!("{{\"step\":9,\"x\":\"{}\"}}\n", "x".repeat(2 * metrics::MAX_LINE));
    let text = [line(1, 1.0), "{\"step\"\n".to_string(), long, line(2, 0.5), "{\"step\":3,\"ti".to_string()].concat();
    let run = read(folder(text.as_bytes()).path()).unwrap();
    assert_eq!(values(&run), [(1, 1.0), (2, 0.5)]);
    let left_out = "metrics.jsonl: 2 lines are not records, from line 2 on, and are left out";
    assert_eq!(run.remarks, [left_out, "metrics.jsonl: the last line is cut short, and is left out"]);
    // Steps are counted in 63 bits where they are shown.
    let text = line(1, 1.0) + "{\"step\":9223372036854775808,\"loss\":1.0}\n";
    let run = read(folder(text.as_bytes()).path()).unwrap();
    assert_eq!((values(&run), run.remarks.len()), (vec![(1, 1.0)], 1));
    let text = [line(1, 1.0), "\0\0\0\n".to_string(), line(5, 2.0), line(3, 0.5), line(4, 0.25)].concat();
    let run = read(folder(text.as_bytes()).path()).unwrap();
    // Records after step 3 were of the time before a resumption.
    assert_eq!(values(&run), [(1, 1.0), (3, 0.5), (4, 0.25)]);
    assert_eq!(run.remarks, ["metrics.jsonl: line 2 is not a record, and is left out"]);
    // A last line without a line break is valid if the record is complete.
    let run = read(folder(line(1, 1.0).trim_end().as_bytes()).path()).unwrap();
    assert_eq!((values(&run), run.remarks.len()), (vec![(1, 1.0)], 0));
}

/// A file of holes, which a cut copy may leave.
#[test]
fn a_line_without_an_end_is_refused() {
    let home = folder(line(1, 1.0).as_bytes());
    let file = fs::OpenOptions::new().write(true).open(home.path().join(METRICS)).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = read(home.path()).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "a line of more than 268435456 bytes, from byte 33 on; expected JSON objects, one a line");
}

#[test]
fn a_scalar_that_is_text_in_every_record_is_said() {
    let text = "{\"step\":1,\"loss\":\"low\",\"top\":\"NaN\"}\n\
                {\"step\":2,\"loss\":\"0.5\",\"top\":\"none\",\"host\":\"a\"}\n";
    let run = read(folder(text.as_bytes()).path()).unwrap();
    assert_eq!(run.curves.iter().map(|curve| curve.name.as_str()).collect::<Vec<_>>(), ["top"]);
    assert_eq!(run.remarks, ["metrics.jsonl: no number in `host`, `loss`, only texts: left out"]);
}

proptest! {
    #[test]
    fn a_file_that_is_cut_or_overwritten_anywhere_keeps_its_other_records(at in 0usize..400, bytes: Vec<u8>) {
        let whole: String = (1..=10).map(|step| line(step, 1.0 / step as f64)).collect();
        let at = at.min(whole.len());
        let cut = read(folder(&whole.as_bytes()[..at]).path()).unwrap();
        let n_whole = whole[..at].matches('\n').count();
        prop_assert!(values(&cut).len() == n_whole || values(&cut).len() == n_whole + 1);
        // Random bytes in the middle damage only the lines that they overwrite.
        let end = (at + bytes.len()).min(whole.len());
        let mut over = whole.clone().into_bytes();
        over[at..end].copy_from_slice(&bytes[..end - at]);
        let n_touched = whole[at..end].matches('\n').count() + 1;
        let run = read(folder(&over).path()).unwrap();
        let remaining = values(&run);
        let original: Vec<(u64, f64)> = (1..=10).map(|step| (step, 1.0 / step as f64)).collect();
        let n_kept = original.iter().filter(|pair| remaining.contains(pair)).count();
        prop_assert!(n_kept + n_touched >= 10 || remaining.len() < 10, "{remaining:?}");
    }
}

#[test]
fn what_is_no_run_is_said_with_what_to_name() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let shown = home.path().display();
    let text = |path: &Path| read(path).unwrap_err().to_string();
    let name = "help: name the folder of a run, such as `train` makes: runs/EXPERIMENT-PRECISION";
    assert_eq!(text(&at("none")), format!("{shown}/none: no such folder\n{name}"));
    assert_eq!(
        text(home.path()),
        format!("{shown}: the folder of no run: it has no metrics.jsonl and no event files\n{name}")
    );
    fs::create_dir(at("run")).unwrap();
    fs::write(at("run/metrics.jsonl"), line(1, 1.0)).unwrap();
    assert_eq!(
        text(home.path()),
        format!("{shown}: no run itself, but a folder of runs\nhelp: name those: {shown}/run")
    );
    assert_eq!(
        text(&at("run/metrics.jsonl")),
        format!(
            "{shown}/run/metrics.jsonl: a file, expected the folder of a run\nhelp: name the folder that it is in: {shown}/run"
        )
    );
    fs::write(at("run/run.json"), "[").unwrap();
    let error = text(&at("run"));
    assert!(error.starts_with(&format!("{shown}/run/run.json: EOF while parsing")), "{error}");
    assert!(
        error.ends_with("\nhelp: without this file the folder's curves can be drawn all the same: move it elsewhere")
    );
}
