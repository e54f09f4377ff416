//! Plugins that cannot be loaded or installed: every failure says what to do. pip is the only thing ever faked here.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binary::bf16scope;
use bf16scope::pjrt::{ForeignCode, Pinned, PjrtError, Plugin, PluginSpec, Purpose, Setting, Setup, Source, locate};
use tempfile::TempDir;

fn temp() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A file with these bytes, and what loading it says, with the path left out.
fn load_error(name: &str, bytes: &[u8]) -> String {
    let dir = temp();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    without_path(&load(&path).unwrap_err().to_string(), &path)
}

/// Loads a file that this crate knows nothing of.
fn load(path: &Path) -> Result<&'static Plugin, PjrtError> {
    Plugin::for_spec(&PluginSpec::at(path), &trusting(), Purpose::Run)
}

/// Leave to load any file.
pub fn trusting() -> Setup {
    // SAFETY: what tests have loaded is refused before it runs, or the C library's own, or the fake plugin, which keeps to
    // the C API but for the fault that is looked for.
    Setup { foreign: Some(unsafe { ForeignCode::allow() }), ..Setup::default() }
}

fn without_path(text: &str, path: &Path) -> String {
    let canonical = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    text.replace(canonical.to_str().unwrap(), "PATH").replace(path.to_str().unwrap(), "PATH")
}

const REINSTALL: &str = "help: name a PJRT plugin (.so, Linux x86-64), or reinstall the pinned one with \
    `bf16scope plugins install`";

#[test]
fn a_file_that_is_no_library_is_named_before_the_loader_sees_it() {
    assert_eq!(
        load_error("plugin.so", b"short"),
        format!("plugin PATH: not a usable shared library: it has 5 bytes, less than an ELF header's 64\n{REINSTALL}")
    );
    assert_eq!(
        load_error("plugin.so", &[b'x'; 100]),
        format!("plugin PATH: not a usable shared library: it does not start with the ELF magic number\n{REINSTALL}")
    );
    let folder = temp();
    assert_eq!(
        without_path(&load(folder.path()).unwrap_err().to_string(), folder.path()),
        format!("plugin PATH: not a usable shared library: it is not a file\n{REINSTALL}")
    );
    // The first header is of 32 bits; the second is that of a library for x86-64, and no program header follows it.
    let mut header = [0; 64];
    header[..6].copy_from_slice(b"\x7fELF\x01\x01");
    let narrow = header;
    header[4] = 2;
    header[16] = 3;
    header[18] = 62;
    for (header, expected) in [
        (narrow, "it is not a 64-bit x86-64 ELF shared object"),
        (header, "its program headers are not where a shared library has them"),
    ] {
        let expected = format!("plugin PATH: not a usable shared library: {expected}\n{REINSTALL}");
        assert_eq!(load_error("plugin.so", &header), expected);
    }
}

#[test]
fn a_truncated_library_is_named_before_the_loader_sees_it() {
    let whole = fs::read(libm()).unwrap();
    assert_eq!(
        load_error("plugin.so", &whole[..whole.len() / 2]),
        format!(
            "plugin PATH: not a usable shared library: it is truncated: measured {} bytes, its headers expect {}\n\
             {REINSTALL}",
            whole.len() / 2,
            whole.len()
        )
    );
}

#[test]
fn a_library_that_is_no_plugin_is_named() {
    let path = libm();
    assert_eq!(
        without_path(&load(&path).unwrap_err().to_string(), &path),
        "plugin PATH: not a PJRT plugin: it exports no GetPjrtApi\n\
         help: name a PJRT plugin, such as the one in the xla-cpu-pjrt wheel"
    );
}

#[test]
fn a_missing_plugin_says_who_named_it() {
    let output =
        bf16scope(&["plugins", "where", "cpu"]).env("BF16SCOPE_CPU_PLUGIN", "/nowhere/plugin.so").output().unwrap();
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "bf16scope: the cpu plugin could not be installed\n  caused by: \
         plugin /nowhere/plugin.so: no such file (named by BF16SCOPE_CPU_PLUGIN)\n\
         help: correct the path, or leave BF16SCOPE_CPU_PLUGIN out to use the pinned plugin\n"
    );
    assert_eq!(
        locate(&PluginSpec::at("/nowhere/plugin.so"), &Setup::default()).unwrap_err().to_string(),
        "plugin /nowhere/plugin.so: no such file (named by plugin:PATH)\n\
         help: correct the path, or leave plugin:PATH out to use the pinned plugin"
    );
}

#[test]
fn a_plugin_that_nothing_says_a_place_of_is_named() {
    let nowhere = |variable| PluginSpec { path: None, variable, name: "mine".into(), ..PluginSpec::at("") };
    let error = |variable| locate(&nowhere(variable), &Setup::from_env()).unwrap_err().to_string();
    assert_eq!(
        error(Some("BF16SCOPE_NOBODY_SETS_THIS")),
        "plugin mine: no file and no wheel is named for it\nhelp: name its library in BF16SCOPE_NOBODY_SETS_THIS"
    );
    assert_eq!(
        error(None),
        "plugin mine: no file and no wheel is named for it\nhelp: name its library in PluginSpec::path"
    );
    // A variable that is set names the file, unless variables do not count.
    let named = nowhere(Some("CARGO_MANIFEST_DIR"));
    assert_eq!(locate(&named, &Setup::from_env()).unwrap().source, Source::Named);
    locate(&named, &Setup::default()).unwrap_err();
}

#[test]
fn a_file_that_nobody_answers_for_is_not_loaded() {
    let refused = |spec: &PluginSpec| Plugin::for_spec(spec, &Setup::from_env(), Purpose::Run).unwrap_err().to_string();
    let expected = format!(
        "plugin {}: not loaded into this process: it is not a pinned plugin, and nobody vouches for what it does\n\
         help: use it in a child process (Client::in_child), or give a ForeignCode in the Setup",
        libm().display()
    );
    assert_eq!(refused(&PluginSpec::at(libm())), expected);
    // The name of a pinned plugin makes no file one.
    assert_eq!(refused(&PluginSpec { path: Some(libm()), ..PluginSpec::cpu().clone() }), expected);
}

/// A plugin that wants a variable to be set when it is loaded to compile.
fn demanding() -> PluginSpec {
    const WANTED: &[Setting] =
        &[Setting { variable: "BF16SCOPE_NOBODY_SETS_THAT", value: "1", purpose: Some(Purpose::Compile) }];
    PluginSpec { name: "demanding".into(), settings: WANTED.into(), ..PluginSpec::at(libm()) }
}

/// Tests are run by threads: no variable is set under them.
#[test]
fn variables_are_not_set_where_threads_may_read_them() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let text = Plugin::for_spec(&demanding(), &trusting(), Purpose::Compile).unwrap_err().to_string();
            let (start, rest) = text.split_once(" of ").unwrap();
            let (n_threads, help) = rest.split_once(" threads\n").unwrap();
            assert_eq!(
                start,
                "plugin demanding: BF16SCOPE_NOBODY_SETS_THAT is unset, and cannot be set safely in a process"
            );
            assert!(n_threads.parse::<usize>().unwrap() > 1);
            assert_eq!(
                help,
                "help: call pjrt::prepare_environment(Purpose::Compile) first in main, or start the process with \
                 BF16SCOPE_NOBODY_SETS_THAT=1"
            );
            assert!(std::env::var_os("BF16SCOPE_NOBODY_SETS_THAT").is_none());
            // To run, it wants nothing: it gets as far as the loader.
            let text = Plugin::for_spec(&demanding(), &trusting(), Purpose::Run).unwrap_err().to_string();
            assert!(text.contains("it exports no GetPjrtApi"), "{text}");
        });
    });
}

/// This test program sets variables to compile for TPUs before `main` (`tests/support/first.rs`), while it has one thread.
#[test]
fn a_process_that_was_set_to_compile_does_not_run() {
    const TEST: &str = "pjrt_plugins::a_process_that_was_set_to_compile_does_not_run";
    const MARK: &str = "BF16SCOPE_TEST_WITHOUT_VARIABLES";
    let settings = &PluginSpec::tpu().settings;
    if std::env::var_os(MARK).is_none() {
        // Another, where nobody has set any of them.
        let mut command = Command::new(std::env::current_exe().unwrap());
        for setting in settings.iter() {
            command.env_remove(setting.variable);
        }
        command.env_remove("BF16SCOPE_TEST_DEVICE").env(MARK, "1").args(["--exact", TEST, "--nocapture"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    for setting in settings.iter() {
        assert_eq!(std::env::var(setting.variable).unwrap(), setting.value);
    }
    let tpu = PluginSpec { path: Some(libm()), ..PluginSpec::tpu().clone() };
    let error = |purpose| Plugin::for_spec(&tpu, &trusting(), purpose).unwrap_err().to_string();
    assert!(error(Purpose::Compile).contains("it exports no GetPjrtApi"));
    assert_eq!(
        error(Purpose::Run),
        "plugin tpu: it is to run on devices that are here, and this process set ALLOW_MULTIPLE_LIBTPU_LOAD, \
         TPU_ACCELERATOR_TYPE, TPU_SKIP_MDS_QUERY, TPU_WORKER_HOSTNAMES to compile for devices that are not\n\
         help: run in another process, or in a child (Client::in_child)"
    );
}

/// What libtpu is told to compile without a TPU would be in the way of one. This machine has none, which is said before
/// libtpu asks a metadata server for minutes.
#[test]
fn a_tpu_that_is_not_there_is_said_at_once() {
    for command in
        [&["train", "examples/digits.yaml", "--no-run"][..], &["run", "hlo/mlp_inference_f32.txt", "--random", "0"]]
    {
        let began = std::time::Instant::now();
        let args = [command, &["--device", "tpu", "--offline"]].concat();
        let mut command = bf16scope(&args);
        let variables = PluginSpec::tpu().settings.iter().map(|setting| setting.variable);
        for variable in variables {
            command.env_remove(variable);
        }
        // Any file will do: it is not looked into.
        let output = command.env("TPU_LIBRARY_PATH", libm()).output().unwrap();
        assert_eq!(
            String::from_utf8(output.stderr).unwrap(),
            "bf16scope: device tpu: this machine has no TPU: none of its PCI devices is one\n\
             help: run where there is one, or set TPU_SKIP_MDS_QUERY=1 for the plugin to look for itself\n"
        );
        assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
    }
}

#[test]
fn a_number_of_devices_that_no_command_uses_is_refused() {
    let output = bf16scope(&["eval", "examples/digits.yaml", "--device", "cpu:2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("device cpu:2: this runs a program of one device, not of 2"), "{text}");
}

/// The CPU plugin by its path, as a user names any other: in a child of the program.
#[test]
fn a_plugin_in_a_file_runs_what_the_pinned_one_does() {
    let folder = temp();
    let located = locate(PluginSpec::cpu(), &Setup::from_env()).unwrap();
    let device = format!("plugin:{}", located.path.display());
    let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
    let yaml = format!(
        "model: {{kind: cnn, input: [8, 8, 1], n_classes: 10, filters: [4]}}\n\
         data: {{csv: {}, scale: 0.0625, n_test: 360}}\ntrain: {{batch: 64, epochs: 1, learning_rate: 0.1}}\n",
        csv.display()
    );
    fs::write(folder.path().join("digits.yaml"), yaml).unwrap();
    let figures = |device: &str| {
        let args = ["train", "digits.yaml", "--no-run", "--overwrite", "--json", "--checkpoint", "c.safetensors"];
        let path = folder.path().join("c.safetensors");
        let mut command = bf16scope(&[&args[..], &["--device", device]].concat());
        let output = command.current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["platform"], device);
        (json["test_loss"].clone(), fs::read(path).unwrap())
    };
    let pinned = figures("cpu");
    assert!(pinned.0.is_number());
    assert!(figures(&device) == pinned, "the same library, the same weights");
    assert!(figures("cpu:1") == pinned, "one device of it, the same weights");
}

/// The C library's mathematics, a real shared library on every Linux with glibc.
fn libm() -> PathBuf {
    ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .expect("a glibc system has libm.so.6")
}

/// Installing with a `python3` that is this shell script, into a new cache directory.
fn install_error(script: Option<&str>) -> String {
    let (cache, bin) = (temp(), temp());
    if let Some(script) = script {
        let path = bin.path().join("python3");
        fs::write(&path, format!("#!/bin/sh\n[ \"$4\" = --version ] && exit 0\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let setup =
        Setup { cache_dir: Some(cache.path().to_path_buf()), search_path: Some(bin.path().into()), ..Setup::default() };
    let text = locate(PluginSpec::cpu(), &setup).unwrap_err().to_string();
    let dir = Pinned::CPU.path_in(cache.path()).parent().unwrap().to_path_buf();
    let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"], "a failed installation leaves nothing else behind");
    text.replace(cache.path().to_str().unwrap(), "CACHE")
}

#[test]
fn without_pip_the_commands_tried_are_named() {
    assert_eq!(
        install_error(None),
        "xla-cpu-pjrt: no pip: tried `python3 -I -m pip`, `python3 -m pip`, `python -I -m pip`, `python -m pip`, `pip3`, `pip`\n\
         help: install Python 3 with pip (Debian: apt-get install python3-pip), or name the library in \
         BF16SCOPE_CPU_PLUGIN"
    );
}

#[test]
fn without_network_pips_last_lines_are_quoted() {
    assert_eq!(
        install_error(Some("echo first >&2; echo 'ERROR: no route' >&2; echo 'ERROR: nothing found' >&2; exit 1")),
        "xla-cpu-pjrt: `python3 -I -m pip download xla-cpu-pjrt==0.0.1` failed (exit status: 1): \
         ERROR: no route / ERROR: nothing found\n\
         help: is the package index reachable from this machine? else copy \
         xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl here, and set PIP_FIND_LINKS to its directory"
    );
}

/// The directory after `--dest`, the third argument from the end.
const DEST: &str = "while [ \"$1\" != --dest ]; do shift; done; dest=$2;";

#[test]
fn a_wheel_with_another_checksum_is_refused() {
    let script = format!("{DEST} echo changed > $dest/xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl");
    assert_eq!(
        install_error(Some(&script)),
        "xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl: sha256: measured \
         7f8b1dfc466b6249f06cbe55c9174df2578e7754da793fded244ef5cba2a38f1, expected \
         55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc\n\
         help: the file was changed on its way; try another network or package mirror"
    );
}

#[test]
fn another_wheel_is_named() {
    let script = format!("{DEST} echo x > $dest/other.whl");
    assert_eq!(
        install_error(Some(&script)),
        "xla-cpu-pjrt: pip brought no xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl but: other.whl"
    );
}

#[test]
fn a_full_disk_is_told_from_a_failing_network() {
    let text = install_error(Some("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1"));
    assert!(text.contains("downloading the wheel: no storage space\nhelp: make room"), "{text}");
}

#[test]
fn a_cache_that_is_a_file_is_named() {
    let dir = temp();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let setup = Setup { cache_dir: Some(file), ..Setup::default() };
    let text = locate(PluginSpec::cpu(), &setup).unwrap_err().to_string().replace(dir.path().to_str().unwrap(), "DIR");
    assert_eq!(
        text,
        "cache DIR/file/plugins/xla-cpu-pjrt-0.0.1: making it: Not a directory (os error 20)\n\
         help: set BF16SCOPE_CACHE to a directory that can be written"
    );
}

#[test]
fn a_cache_that_every_user_may_write_is_refused() {
    let dir = temp();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let setup = Setup { cache_dir: Some(dir.path().to_path_buf()), ..Setup::default() };
    let text = locate(PluginSpec::cpu(), &setup).unwrap_err().to_string().replace(dir.path().to_str().unwrap(), "DIR");
    assert_eq!(
        text,
        "cache DIR: looking whose it is: DIR/plugins/xla-cpu-pjrt-0.0.1: every user may write DIR (mode 777) and put another \
         in its place, so what is in it is not trusted\nhelp: `chmod o-w 'DIR'`, or set BF16SCOPE_CACHE to another folder\n\
         help: plugins run as this user"
    );
}

#[test]
fn without_any_cache_directory_the_variables_are_named() {
    assert_eq!(
        locate(PluginSpec::tpu(), &Setup::default()).unwrap_err().to_string(),
        "no cache directory: BF16SCOPE_CACHE, XDG_CACHE_HOME and HOME are unset or empty\n\
         help: set BF16SCOPE_CACHE to a directory that can hold 900 MB"
    );
}

#[test]
fn offline_refuses_to_install() {
    let dir = temp();
    let setup = Setup { cache_dir: Some(dir.path().to_path_buf()), offline: true, ..Setup::default() };
    let text =
        locate(PluginSpec::tpu(), &setup).unwrap_err().to_string().replace(dir.path().to_str().unwrap(), "CACHE");
    assert_eq!(
        text,
        "libtpu 0.0.52 is not installed in CACHE, and this run is offline\n\
         help: run `bf16scope plugins install` without --offline and BF16SCOPE_OFFLINE, or name the library in \
         TPU_LIBRARY_PATH"
    );
}

/// A damaged file is seen by its size and replaced by the real plugin; a second call finds it.
#[test]
fn a_truncated_installation_is_replaced() {
    let cache = temp();
    let path = Pinned::CPU.path_in(cache.path());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "half").unwrap();
    let setup = Setup { cache_dir: Some(cache.path().to_path_buf()), ..Setup::default() };
    assert_eq!(locate(PluginSpec::cpu(), &setup).unwrap().source, Source::Installed);
    assert_eq!(fs::metadata(&path).unwrap().len(), Pinned::CPU.library_bytes);
    assert_eq!(locate(PluginSpec::cpu(), &setup).unwrap().source, Source::Cache);
}
