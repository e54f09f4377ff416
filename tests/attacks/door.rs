//! Runs the binary in a temporary folder, with a time limit.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::binary;

/// The time limit: longer than any attack that does not hang the program, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A small module.
pub const MODULE: &str = "HloModule m\n\nENTRY m {\n  ROOT x = f32[2] parameter(0)\n}\n";
/// A small model, without data.
pub const MODEL: &str = "model: {kind: mlp, input: [2], n_classes: 3, hidden: [2]}\n";

/// A folder that is deleted when the test ends.
pub struct Folder(tempfile::TempDir);

/// How a run ended.
pub struct Ended {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Folder {
    /// With the small module as `m.txt` and the small model as `m.yaml`.
    pub fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write("m.txt", MODULE);
        folder.write("m.yaml", MODEL);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// The names in the folder, sorted.
    pub fn names(&self) -> Vec<String> {
        names(self.0.path())
    }

    /// The binary with these arguments, to be run here.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = binary::bf16scope(args);
        command.current_dir(self.0.path());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ended {
        ended(&mut self.command(args))
    }

    /// Standard error of a command that could not run.
    pub fn refused(&self, args: &[&str]) -> String {
        let Ended { code, stderr, .. } = self.run(args);
        assert_eq!(code, Some(2), "{args:?}: {stderr}");
        stderr
    }
}

/// The names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Runs a command, and fails if it hangs.
pub fn ended(command: &mut Command) -> Ended {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = |mut from: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            String::from_utf8(bytes).expect("what is printed is UTF-8")
        })
    };
    let (stdout, stderr) = (read(Box::new(stdout)), read(Box::new(stderr)));
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{command:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Ended { code: status.code(), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}
