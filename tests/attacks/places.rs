//! The path of a checkpoint: two runs at once, leftovers of killed runs, links, and paths that are not regular files.

use super::binary::bf16scope;
use super::streams::{Tiny, kill, text};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn refused(tiny: &Tiny, expected: &str) {
    let output = tiny.train(&["--overwrite"]);
    assert_eq!((text(&output.stderr).as_str(), output.status.code()), (expected, Some(2)));
}

#[test]
fn a_second_run_on_the_same_checkpoint_says_so_and_stops() {
    let tiny = Tiny::new();
    let mut command = tiny.train_by(&[], &["--epochs", "10000000"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    tiny.wait_for_checkpoint();
    let expected = format!(
        "bf16scope: run.safetensors: another run (process {}) saves its checkpoints there\n\
         help: wait for it or stop it, or name another place with --checkpoint\n",
        child.id()
    );
    refused(&tiny, &expected);
    // By another name too.
    symlink("run.safetensors", tiny.path("link.safetensors")).unwrap();
    let output = tiny.train(&["--checkpoint", "link.safetensors", "--resume"]);
    assert!(
        text(&output.stderr).contains(&format!("another run (process {})", child.id())),
        "{}",
        text(&output.stderr)
    );

    // Killed, it leaves its lock file, which is not locked, and perhaps half a checkpoint.
    kill("KILL", &child);
    child.wait().unwrap();
    assert!(tiny.path(".run.safetensors.lock").exists());
    std::fs::write(tiny.path(".run.safetensors.writing-aB3dE9"), "half").unwrap();
    let others = [".run.safetensors.writing", ".other.safetensors.writing-aB3dE9", "run.safetensors.writing-aB3dE9"];
    others.iter().for_each(|name| std::fs::write(tiny.path(name), "another's").unwrap());
    symlink("rows.csv", tiny.path(".run.safetensors.writing-aB3dE8")).unwrap();
    let output = tiny.train(&["--epochs", "1", "--overwrite"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        names(tiny.folder()),
        [
            ".other.safetensors.writing-aB3dE9",
            ".run.safetensors.writing",
            ".run.safetensors.writing-aB3dE8",
            "link.safetensors",
            "rows.csv",
            "run.safetensors",
            "run.safetensors.writing-aB3dE9",
            "tiny.yaml"
        ]
    );
}

/// `run.json` of a copy names the checkpoint of the run that was copied.
#[test]
fn a_copy_of_a_run_goes_on_by_itself() {
    let tiny = Tiny::new();
    let run = |args: &[&str]| {
        let output = bf16scope(args).current_dir(tiny.folder()).output().unwrap();
        (output.status.code(), text(&output.stderr), text(&output.stdout))
    };
    let bytes = |run: &str| std::fs::read(tiny.path(run).join("checkpoint.safetensors")).unwrap();
    let train = |args: &[&str]| run(&[&["train", "tiny.yaml"], args].concat());
    assert_eq!(train(&["--run", "first"]).0, Some(0));
    let first = bytes("first");
    std::fs::create_dir(tiny.path("copy")).unwrap();
    for name in ["run.json", "experiment.yaml", "metrics.jsonl", "checkpoint.safetensors"] {
        std::fs::copy(tiny.path("first").join(name), tiny.path("copy").join(name)).unwrap();
    }
    let go_on = |epochs: &str| train(&["--resume", "--run", "copy", "--epochs", epochs]);
    let (code, stderr, _) = go_on("5");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("going on from copy/checkpoint.safetensors after step 12"), "{stderr}");
    assert_eq!(bytes("first"), first);
    assert_ne!(bytes("copy"), first);
    let (_, _, stdout) = run(&["eval", "copy"]);
    assert!(stdout.starts_with("copy/checkpoint.safetensors in bf16: "), "{stdout}");

    // Without its checkpoint a copy could only go on in the other folder.
    std::fs::copy(tiny.path("first").join("run.json"), tiny.path("copy").join("run.json")).unwrap();
    std::fs::remove_file(tiny.path("copy").join("checkpoint.safetensors")).unwrap();
    let (code, stderr, _) = go_on("6");
    let expected = "bf16scope: first/checkpoint.safetensors: copy/run.json names it, and it is the checkpoint of another run, \
                    which this one would replace\nhelp: to go on in copy, copy it there; `--checkpoint FILE` saves \
                    elsewhere, and `--run first` goes on with the other run\n";
    assert_eq!((code, stderr.as_str()), (Some(2), expected));
    assert_eq!(bytes("first"), first);
    // Any other file that is called so.
    std::fs::write(tiny.path("copy").join("checkpoint.safetensors"), "notes").unwrap();
    let (code, stderr, _) = go_on("6");
    assert!(code == Some(2) && stderr.starts_with("bf16scope: copy/checkpoint.safetensors: "), "{stderr}");
    assert_eq!(bytes("first"), first);
}

#[test]
fn what_a_link_points_at_is_neither_made_nor_truncated() {
    let help = "help: make room or name another place with --checkpoint; what was there before is unchanged\n";
    let tiny = Tiny::new();
    std::fs::write(tiny.path("precious"), "kept").unwrap();
    let lock = tiny.path(".run.safetensors.lock");
    symlink("precious", &lock).unwrap();
    let no_file = "bf16scope: run.safetensors: cannot write the checkpoint: making its lock\n";
    let cause = "  caused by: ./.run.safetensors.lock is not a file: remove it\n";
    refused(&tiny, &format!("{no_file}{help}{cause}"));
    assert_eq!(std::fs::read_to_string(tiny.path("precious")).unwrap(), "kept");
    std::fs::remove_file(&lock).unwrap();
    symlink("nothing", &lock).unwrap();
    refused(&tiny, &format!("{no_file}{help}{cause}"));
    assert!(!tiny.path("nothing").exists());

    // A file of that name that is no lock of ours.
    std::fs::remove_file(&lock).unwrap();
    std::fs::write(&lock, "someone's notes").unwrap();
    assert_eq!(tiny.train(&[]).status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&lock).unwrap(), "someone's notes");
    std::fs::remove_file(&lock).unwrap();

    // A checkpoint that is a link goes where the link leads, also where nothing is yet.
    let tiny = Tiny::new();
    symlink("far.safetensors", tiny.path("run.safetensors")).unwrap();
    assert_eq!(tiny.train(&[]).status.code(), Some(0));
    assert!(tiny.path("run.safetensors").is_symlink());
    assert_eq!(names(tiny.folder()), ["far.safetensors", "rows.csv", "run.safetensors", "tiny.yaml"]);
}

#[test]
fn a_place_that_takes_no_files_is_known_before_training() {
    let tiny = Tiny::new();
    // Not even root makes files there.
    let output = tiny.train(&["--checkpoint", "/sys/run.safetensors"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.starts_with("bf16scope: /sys/run.safetensors: cannot write the checkpoint: making a file in its directory\nhelp: make room"),
        "{stderr}"
    );
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn a_directory_that_takes_the_checkpoints_place_ends_the_run_and_is_left() {
    let tiny = Tiny::new();
    let mut command = tiny.train_by(&[], &["--epochs", "10000000"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    tiny.wait_for_checkpoint();
    // The run may write one between the two.
    while std::fs::remove_file(tiny.path("run.safetensors")).is_ok()
        && std::fs::create_dir(tiny.path("run.safetensors")).is_err()
    {}
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    // Found before it writes, or when it renames.
    let refused = |doing: &str, cause: &str| {
        format!(
            "bf16scope: run.safetensors: cannot write the checkpoint: {doing}\n\
             help: make room or name another place with --checkpoint; what was there before is unchanged\n  \
             caused by: {cause}\n"
        )
    };
    let possible = [
        refused(
            "making a file in its directory",
            "there is a directory, which a file does not replace\nhelp: name another place",
        ),
        refused("putting it in its place", "Is a directory (os error 21)"),
    ];
    assert!(possible.contains(&stderr), "{stderr}");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(names(tiny.folder()), ["rows.csv", "run.safetensors", "tiny.yaml"]);
}
