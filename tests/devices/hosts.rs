//! Training on a slice of several hosts: two processes, each with two of a slice's four devices. `tests/fake_slice` is each
//! one's plugin, on which programs of all devices really run, and which ends a process whose steps are not those of the other.
//! What comes out is what one process with four devices makes, to the last bit.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::cdylib;
use bf16scope::pjrt::{PluginSpec, Setup, locate};

const N_HOSTS: usize = 2;

/// The plugin, built once.
fn library() -> &'static PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| cdylib::built("fake_slice"))
}

fn bf16scope(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bf16scope"));
    command.args(args).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts the same command on each host, which meet in a folder of their own; `of_host` may add to it.
fn start(folder: &Path, args: &[&str], of_host: impl Fn(usize) -> Vec<&'static str>) -> Vec<Child> {
    let plugin = locate(PluginSpec::cpu(), &Setup::from_env()).unwrap().path;
    let meet = folder.join("meet");
    let _ = std::fs::remove_dir_all(&meet);
    std::fs::create_dir(&meet).unwrap();
    let host = |number: usize| {
        let mut command = bf16scope(folder, args);
        command.args(of_host(number));
        let words = [("HOSTS", N_HOSTS), ("CORES", 2), ("HOST", number)];
        command.envs(words.map(|(name, value)| (format!("FAKE_SLICE_{name}"), value.to_string())));
        command.env("FAKE_SLICE_PLUGIN", &plugin).env("FAKE_SLICE_MEET", &meet);
        // Where a TPU's plugin is, and that there is a TPU.
        command.env("TPU_LIBRARY_PATH", library()).env("TPU_SKIP_MDS_QUERY", "1");
        command.spawn().unwrap()
    };
    (0..N_HOSTS).map(host).collect()
}

fn ended(hosts: Vec<Child>) -> Vec<Output> {
    hosts.into_iter().map(|host| host.wait_with_output().unwrap()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Handwritten digits, in a folder of its own; `mesh` is what its mesh has beside `data: 4`.
fn experiment(mesh: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let csv = root.join("examples/data/digits.csv.gz");
    let yaml = format!(
        "model: {{kind: mlp, input: [8, 8, 1], n_classes: 10, hidden: [128]}}\n\
         data: {{csv: {}, scale: 0.0625, n_test: 360}}\n\
         train: {{batch: 64, epochs: 1, learning_rate: 0.1}}\n\
         mesh: {{data: 4{mesh}}}\n",
        csv.display()
    );
    std::fs::write(folder.path().join("digits.yaml"), yaml).unwrap();
    folder
}

const TRAIN: [&str; 4] = ["train", "digits.yaml", "--tune", "none"];
const ON_TPU: [&str; 2] = ["--device", "tpu"];

/// What one process with all devices leaves.
fn expected(folder: &Path, epochs: &str) -> Vec<u8> {
    let args = [&TRAIN[..], &["--device", "cpu:4", "--epochs", epochs, "--checkpoint", "one/one.safetensors"]].concat();
    let output = bf16scope(folder, &args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    std::fs::read(folder.join("one/one.safetensors")).unwrap()
}

#[test]
fn two_hosts_train_what_one_with_all_devices_trains_and_the_first_writes() {
    let folder = experiment("");
    let folder = folder.path();
    let args = [&TRAIN[..], &ON_TPU].concat();
    let outputs = ended(start(folder, &args, |number| {
        // A folder of its own for what host 1 would write.
        if number == 0 { Vec::new() } else { vec!["--checkpoint", "none/none.safetensors", "--run", "none/run"] }
    }));
    for output in &outputs {
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let (first, second) = (text(&outputs[0].stdout), text(&outputs[1].stdout));
    assert!(first.contains("batches of 64: 16 on each of 4 devices of 2 hosts, gradients summed in f32"), "{first}");
    assert!(first.contains("\ntest accuracy "), "{first}");
    assert_eq!((second.as_str(), folder.join("none").exists()), ("", false));
    let remark = text(&outputs[1].stderr);
    assert!(remark.contains("host 1 of 2: replicas 2 to 3; host 0 reports and writes"), "{remark}");
    assert_eq!(std::fs::read_dir(folder.join("runs")).unwrap().count(), 1);
    let trained = std::fs::read(folder.join("runs/digits-bf16/checkpoint.safetensors")).unwrap();
    assert!(trained == expected(folder, "1"), "the checkpoint is another");
}

#[test]
fn a_signal_to_one_host_stops_all_after_a_checkpoint_from_which_they_go_on() {
    let folder = experiment(", state: sharded");
    let folder = folder.path();
    let args = [&TRAIN[..], &ON_TPU, &["--epochs", "4"]].concat();
    let hosts = start(folder, &args, |_| Vec::new());
    let (saved, began) = (folder.join("runs/digits-bf16/checkpoint.safetensors"), Instant::now());
    while !saved.exists() {
        assert!(began.elapsed() < Duration::from_secs(100), "no checkpoint after the first epoch");
        std::thread::sleep(Duration::from_millis(2));
    }
    let id = hosts[1].id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    for (number, output) in ended(hosts).iter().enumerate() {
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(143), "host {number}: {message}");
        assert!(message.contains("stopped after step "), "host {number}: {message}");
        assert_eq!(message.contains("another host of the slice was asked to stop"), number == 0, "{message}");
    }
    let resumed = ended(start(folder, &[&args[..], &["--resume"]].concat(), |_| Vec::new()));
    for output in &resumed {
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    assert!(std::fs::read(saved).unwrap() == expected(folder, "4"), "the checkpoint is another");
}

#[test]
fn hosts_that_do_not_train_the_same_say_so_before_the_first_step() {
    let folder = experiment("");
    let folder = folder.path();
    // Of a plugin that bf16scope knows nothing of, in a child.
    let device = format!("plugin:{}", library().display());
    let args = [&TRAIN[..], &["--device", &device]].concat();
    let outputs = ended(start(folder, &args, |number| if number == 0 { Vec::new() } else { vec!["--seed", "1"] }));
    for output in &outputs {
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        let expected = "host 1 has another experiment than host 0, and all hosts of a slice make the same steps\n\
                        help: run the same command with the same files on each";
        assert!(message.contains(expected), "{message}");
    }
    assert!(!folder.join("runs/digits-bf16/checkpoint.safetensors").exists());
    let outputs = ended(start(folder, &[&TRAIN[..], &ON_TPU, &["--devices", "1"]].concat(), |_| Vec::new()));
    for output in &outputs {
        let message = text(&output.stderr);
        assert!(message.contains("the mesh has 1 replica, and the slice has 2 hosts of 2 devices each"), "{message}");
        assert!(message.contains("help: use --devices 4, or fewer on each host"), "{message}");
    }
}
