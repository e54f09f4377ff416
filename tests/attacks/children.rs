//! Modules that make XLA abort, hang, or exhaust the memory: bf16scope survives, and reports the cause.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bf16scope::hlo::proto::encode;
use bf16scope::hlo::{DType, text};
use bf16scope::pjrt::{Arg, ChildSpec, Client, CompileOptions, Executable, Limits, PjrtError, Platform, Setup, Stop};
use tempfile::TempDir;

use super::binary::bf16scope;

/// A module in a separate folder. Commands run inside of it, so its path is in no message.
fn module(name: &str, text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

/// Runs the real binary on a module.
fn on(text: &str, args: &[&str]) -> Output {
    let (folder, _path) = module("m.hlo", text);
    bf16scope(args).current_dir(folder.path()).output().unwrap()
}

/// Standard error of a command that could not run: exit code 2, nothing on standard output.
fn refusal(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{text}");
    text
}

/// Text with every number as `N`; digits of a word (`bf16`) stay.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if !c.is_ascii_digit() || out.ends_with(|c: char| c.is_ascii_alphanumeric() && c != 'N') {
            out.push(c);
            continue;
        }
        while chars.next_if(|c| c.is_ascii_digit() || matches!(c, '.' | ':')).is_some() {}
        // A log aligns its numbers.
        while out.ends_with("  ") {
            out.pop();
        }
        out.push('N');
    }
    out
}

const SLICE_TO_DYNAMIC: &str = "\
HloModule slice

ENTRY main {
  x = f32[4]{0} parameter(0)
  ROOT y = f32[4]{0} custom-call(x), custom_call_target=\"SliceToDynamic\"
}
";

const FOREVER: &str = "\
HloModule forever

body {
  ROOT s = (s32[], f32[4]{0}) parameter(0)
}

cond {
  c = (s32[], f32[4]{0}) parameter(0)
  ROOT t = pred[] constant(true)
}

ENTRY main {
  x = f32[4]{0} parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[4]{0}) tuple(zero, x)
  ROOT w = (s32[], f32[4]{0}) while(init), condition=cond, body=body
}
";

/// 8 GiB of result from one number.
const GROWS: &str = "\
HloModule grows

ENTRY main {
  x = f32[] parameter(0)
  ROOT y = f32[2147483648]{0} broadcast(x), dimensions={}
}
";

#[test]
fn an_abort_of_xla_is_an_error_with_what_it_wrote() {
    let text = refusal(&on(SLICE_TO_DYNAMIC, &["run", "m.hlo", "--random", "1"]));
    assert_eq!(
        without_numbers(&text),
        "bf16scope: m.hlo cannot be compiled\n  caused by: compiling `slice`: the child process ended with signal N, SIGABRT. It \
         wrote:\n  F0000 N N loop_emitter.cc:N] Check failed: dynamic_dims.size() == shape_.dimensions().size() (N vs. N)\nhelp: XLA checks some rules by ending \
         its process: the text above, if any, names the one that the module breaks\n"
    );
}

#[test]
fn a_loop_without_an_end_is_ended_by_its_time_limit() {
    let began = Instant::now();
    let text = refusal(&on(FOREVER, &["run", "m.hlo", "--random", "1", "--timeout", "0.5"]));
    assert_eq!(
        without_numbers(&text),
        "bf16scope: running `forever`: not done after Nms, and the limit is Nms\nhelp: raise the limit (--timeout), if it is \
         not a loop without an end\n"
    );
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_run_that_takes_more_memory_than_it_may_is_ended() {
    let text = refusal(&on(GROWS, &["run", "m.hlo", "--random", "1", "--memory", "1GiB"]));
    assert_eq!(
        without_numbers(&text),
        "bf16scope: running `grows`: N bytes of memory in use (N GiB), and the limit is N (N GiB)\nhelp: raise the limit \
         (--memory), or make the module's arrays smaller\n"
    );
}

#[test]
fn what_xla_aborts_over_when_it_runs_is_an_error_too() {
    // A collective over two devices and calls that wait are refused before they run: see `collectives`.
    let onednn = SLICE_TO_DYNAMIC.replace("SliceToDynamic", "__onednn$matmul");
    let text = refusal(&on(&onednn, &["run", "m.hlo", "--random", "1"]));
    let help = "help: XLA checks some rules by ending its process: the text above, if any, names the one that the module \
                breaks\n";
    // It reads what is no configuration of its own as one, and how that ends hangs on what else is in memory.
    let text = without_numbers(&text);
    let began = "bf16scope: running `slice`: the child process ended with signal N, SIG";
    assert!(text.starts_with(began) && text.ends_with(&format!("\n{help}")), "{text}");
    let topk = SLICE_TO_DYNAMIC.replace("SliceToDynamic", "TopK");
    let text = refusal(&on(&topk, &["run", "m.hlo", "--random", "1"]));
    assert_eq!(
        without_numbers(&text),
        format!(
            "bf16scope: m.hlo cannot be compiled\n  caused by: compiling `slice`: the child process ended with signal N, SIGABRT. \
             It wrote:\n  F0000 N N shape.h:N] Check failed: state Expected a tuple shape. Got f32[N]\n  This is a programmer error. Please read the Shape \
             object's tuple properties (e.g. tuple_shapes) only when it's a tuple shape.\n{help}"
        )
    );
    let sized = "HloModule sized\n\nENTRY main {\n  x = f32[4]{0} parameter(0)\n  n = s32[] constant(1000000000)\n  ROOT y = \
                 f32[<=4]{0} set-dimension-size(x, n), dimensions={0}\n}\n";
    // XLA writes such an array beyond its memory; a size that varies is refused before that.
    let text = refusal(&on(sized, &["run", "m.hlo", "--random", "1"]));
    assert!(text.contains("its result is f32[<=4]{0}: a size that varies cannot be read here"), "{text}");
    let tuple = sized.replace(
        "ROOT y = f32[<=4]{0} set-dimension-size(x, n), dimensions={0}",
        "y = f32[<=4]{0} set-dimension-size(x, n), dimensions={0}\n  ROOT t = (f32[], f32[4]{0}) custom-call(y), \
         custom_call_target=\"SliceToDynamic\"",
    );
    let text = refusal(&on(&tuple, &["run", "m.hlo", "--random", "1"]));
    assert_eq!(
        without_numbers(&text),
        format!(
            "bf16scope: m.hlo cannot be compiled\n  caused by: compiling `sized`: the child process ended with signal N, \
             SIGABRT. It wrote:\n  F0000 N N dynamic_dimension_inference.cc:N] Check failed: !subshape.IsTuple() Can't set \
             a tuple shape to dynamic dimension\n{help}"
        )
    );
}

#[test]
fn a_parameter_that_no_memory_holds_is_refused_before_anything_is_allocated() {
    let began = Instant::now();
    let huge =
        "HloModule huge\n\nENTRY main {\n  x = f32[17179869184]{0} parameter(0)\n  ROOT y = f32[] constant(0)\n}\n";
    for subcommand in ["run", "audit"] {
        let text = refusal(&on(huge, &[subcommand, "m.hlo", "--random", "1"]));
        assert_eq!(
            without_numbers(&text),
            "bf16scope: the parameters take N GiB, the largest of them is in0 (`x`, f32[N]); making and copying them takes N \
             GiB, and this machine has N GiB available\nhelp: run it on a machine with more memory, or make the module for \
             smaller arrays\n"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(20));
}

fn spec() -> ChildSpec {
    ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope"))
}

fn client(spec: &ChildSpec) -> Client {
    Client::in_child(&Platform::cpu(), &Setup::from_env(), spec).unwrap()
}

fn compile(client: &Client, module: &str) -> Result<Executable, PjrtError> {
    let program = encode::to_bytes(&text::parse(module, "m").unwrap()).unwrap();
    client.compile(&program, &CompileOptions::default())
}

const NEGATE: &str =
    "HloModule negate\n\nENTRY main {\n  x = f32[3]{0} parameter(0)\n  ROOT y = f32[3]{0} negate(x)\n}\n";

fn negate(client: &Client) -> Result<Vec<u8>, PjrtError> {
    let executable = compile(client, NEGATE)?;
    let bytes: Vec<u8> = [1f32, -2.0, 0.5].iter().flat_map(|x| x.to_le_bytes()).collect();
    let x = client.buffer_from_host(&bytes, DType::F32, &[3], 0)?;
    executable.execute(vec![Arg::Donate(x)])?[0].to_host()
}

/// The pids of this process's children that run as bf16scope's child processes.
fn pids() -> Vec<u32> {
    let me = std::process::id().to_string();
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if parent == Some(&me) && command.ends_with(b"__child\0") {
            pids.push(pid);
        }
    }
    pids
}

/// The child that `make` started: other tests of this process start theirs at the same time, so a program of another name
/// tells it apart.
fn started(name: &str, limits: Limits) -> (Client, u32, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bf16scope"), &program).unwrap();
    let client = client(&ChildSpec { limits, ..ChildSpec::new(&program) });
    let is_it = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.starts_with(program.as_os_str().as_encoded_bytes())
    };
    let pid = pids().into_iter().find(is_it).unwrap();
    (client, pid, folder)
}

fn send(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Whether a process exists; a zombie does.
fn is_there(pid: u32) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
}

#[test]
fn a_library_has_the_same_and_its_own_limits() {
    let client = client(&spec());
    assert_eq!(client.platform_name().unwrap(), "cpu");
    assert_eq!(client.devices().len(), Client::cpu().unwrap().devices().len());
    let negated: Vec<f32> =
        negate(&client).unwrap().chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(negated, [-1.0, 2.0, -0.5]);
    // An error of a plugin comes back in its own form.
    let error =
        compile(&client, &NEGATE.replace("negate(x)", "custom-call(x), custom_call_target=\"nobody\"")).unwrap_err();
    assert!(error.call() == Some("PJRT_Client_Compile"), "{error:?}");
    // The reason why the child ended is reported once, and then that it ended.
    let error = compile(&client, SLICE_TO_DYNAMIC).unwrap_err();
    assert!(
        error.to_string().starts_with("compiling `slice`: the child process ended with signal 6, SIGABRT"),
        "{error}"
    );
    let gone = negate(&client).unwrap_err().to_string();
    assert_eq!(
        gone,
        "compiling `negate`: the child process ended before: compiling `slice`: the child process ended with signal 6, \
         SIGABRT\nhelp: make another client: arrays and programs are gone with the child"
    );
}

#[test]
fn an_array_in_a_file_is_checked_and_read() {
    let client = client(&spec());
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 12]).unwrap();
    let error = client.buffer_from_file(&file, DType::F32, &[4], 0).unwrap_err().to_string();
    assert_eq!(error, "f32[4] on the host: measured 12 bytes, expected 16");
    // Others may change the file, so a child gets a copy. A sealed file is passed directly: python/tests/test_work.py.
    for client in [client, Client::cpu().unwrap()] {
        let x = client.buffer_from_file(&file, DType::F32, &[3], 0).unwrap();
        assert_eq!(x.to_host().unwrap(), [7; 12]);
    }
}

#[test]
fn a_word_of_another_thread_ends_a_run() {
    let stop = Stop::default();
    let client = client(&ChildSpec { stop: stop.clone(), ..spec() });
    let executable = compile(&client, FOREVER).unwrap();
    let x = client.buffer_from_host(&[0; 16], DType::F32, &[4], 0).unwrap();
    let teller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        stop.ask();
    });
    let gone = "the child process ended before: it was told to stop\nhelp: make another client: arrays and programs are gone \
                with the child";
    let error = executable.execute(vec![Arg::Donate(x)]).unwrap_err().to_string();
    assert_eq!(error, format!("running `forever`: {gone}"));
    teller.join().unwrap();
    // Requests after it, too.
    let program = encode::to_bytes(&text::parse(NEGATE, "m").unwrap()).unwrap();
    let error = client.load(b"code", &program, &CompileOptions::default(), None).unwrap_err().to_string();
    assert_eq!(error, format!("loading an executable: {gone}"));
}

#[test]
fn a_child_that_is_killed_or_stopped_is_an_error_and_leaves_nothing() {
    let (client, pid, _folder) = started("killed", Limits::default());
    send("-KILL", pid);
    let error = negate(&client).unwrap_err().to_string();
    assert!(error.starts_with("compiling `negate`: the child process ended with signal 9, SIGKILL"), "{error}");
    assert!(!is_there(pid));
    let limits = Limits { timeout: Some(Duration::from_secs(10)), memory: None };
    let (client, pid, _folder) = started("stopped", limits);
    // Ctrl-C and the like are the parent's to answer.
    ["-INT", "-TERM", "-HUP", "-QUIT"].iter().for_each(|signal| send(signal, pid));
    assert_eq!(negate(&client).unwrap().len(), 12);
    drop(client);
    assert!(!is_there(pid));
    let limits = Limits { timeout: Some(Duration::from_millis(1500)), memory: None };
    let (client, pid, _folder) = started("stopped", limits);
    send("-STOP", pid);
    let error = negate(&client).unwrap_err().to_string();
    assert_eq!(
        without_numbers(&error),
        "compiling `negate`: not done after Ns, and the limit is Ns\nhelp: raise the limit (--timeout), if it is not a loop \
         without an end"
    );
    assert!(!is_there(pid));
}

#[test]
fn a_child_ends_with_its_parent_in_the_middle_of_a_run() {
    let (folder, _path) = module("m.hlo", FOREVER);
    let mut parent = bf16scope(&["run", "m.hlo", "--random", "1"])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Where the plugin is not installed yet, the first child is the installer.
    let is_ours = |child: &u32| {
        std::fs::read_link(format!("/proc/{child}/exe"))
            .is_ok_and(|exe| exe == Path::new(env!("CARGO_BIN_EXE_bf16scope")))
    };
    let child_of = |parent: u32| {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()).find(is_ours)
    };
    let began = Instant::now();
    let child = loop {
        match child_of(parent.id()) {
            Some(child) => break child,
            None => assert!(began.elapsed() < Duration::from_secs(60)),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    // Long enough to be in the loop, which takes a processor's whole time.
    let ticks = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        fields.get(11).map_or(0, |ticks| ticks.parse::<u64>().unwrap())
    };
    while ticks(child) < 100 {
        assert!(began.elapsed() < Duration::from_secs(60) && is_there(child));
        std::thread::sleep(Duration::from_millis(10));
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    let began = Instant::now();
    while is_there(child) {
        // The process that adopts it collects it; it has ended before that.
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{stat}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ctrl_c_on_a_terminal_ends_the_command_and_its_child() {
    let (folder, _path) = module("m.hlo", FOREVER);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/attacks/ctrl_c.py");
    let mut command = Command::new("python3");
    command.args([script, env!("CARGO_BIN_EXE_bf16scope"), "run", "m.hlo", "--random", "1"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout, "signal 2, 1 child ended\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_program_that_does_not_serve_is_named() {
    let error = |program: &str, timeout| {
        let limits = Limits { timeout: Some(timeout), memory: None };
        let spec = ChildSpec { limits, ..ChildSpec::new(program) };
        Client::in_child(&Platform::cpu(), &Setup::from_env(), &spec).unwrap_err().to_string()
    };
    let long = Duration::from_secs(30);
    assert_eq!(
        error("/no/such/program", long),
        "child process: cannot start /no/such/program: No such file or directory (os error 2)\nhelp: name a bf16scope \
         program, or one that calls pjrt::serve"
    );
    let help = "help: name a bf16scope program of this version, or one that calls pjrt::serve";
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        error("/bin/true", long),
        format!(
            "child process: /bin/true is not a bf16scope {version} that serves: it ended with exit status 0\n{help}"
        )
    );
    // Programs that answer by a message of the protocol: mark, length, JSON. Their standard input is a socket.
    for (json, why) in [
        ("{\"Hello\":{\"version\":\"0.0.1\"}}", "it is version 0.0.1"),
        ("\"Converted\"", "it answered something else"),
    ] {
        let n_bytes = json.len();
        let script = format!("printf 'bf16ipc1\\{n_bytes:03o}\\0\\0\\0\\0\\0\\0\\0{json}' >&0; exec cat >/dev/null");
        let arguments = ["-c", &script].map(Into::into).to_vec();
        let spec = ChildSpec { arguments, ..ChildSpec::new("/bin/sh") };
        let error = Client::in_child(&Platform::cpu(), &Setup::from_env(), &spec).unwrap_err().to_string();
        assert_eq!(error, format!("child process: /bin/sh is not a bf16scope {version} that serves: {why}\n{help}"));
    }
    // A program that reads and never answers.
    let silent = ChildSpec {
        arguments: Vec::new(),
        limits: Limits { timeout: Some(Duration::from_millis(300)), memory: None },
        ..ChildSpec::new("/bin/cat")
    };
    let error = Client::in_child(&Platform::cpu(), &Setup::from_env(), &silent).unwrap_err().to_string();
    assert!(error.starts_with("child process: /bin/cat is not a bf16scope"), "{error}");
    assert!(error.contains("that serves: it said nothing for 300ms"), "{error}");
}

#[test]
fn children_leave_no_descriptors_and_no_processes() {
    // Others open files in this process at the same time: sockets and pipes of ours are told apart by their growth.
    let (first, pid, _folder) = started("first", Limits::default());
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = count();
    for _ in 0..30 {
        let (client, pid, _folder) = started("again", Limits::default());
        drop(client);
        assert!(!is_there(pid));
    }
    let after = count();
    // 30 children have 60 descriptors here; the tests beside this one have some.
    assert!(after < before + 30, "{before} descriptors before, {after} after");
    assert!(is_there(pid));
    assert_eq!(negate(&first).unwrap().len(), 12);
}

/// Runs the real binary in a folder, under `ulimit -v`.
fn limited(folder: &Path, kib: Option<u64>, args: &[&str]) -> Output {
    let command = bf16scope(args);
    let limit = kib.map_or(String::new(), |kib| format!("ulimit -v {kib} && "));
    let mut shell = Command::new("sh");
    // Another allocator takes less of the address space than the C library's, for which the limits below are chosen.
    shell.env_remove("LD_PRELOAD");
    shell.args(["-c", &format!("{limit}exec \"$0\" \"$@\"")]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.current_dir(folder).output().unwrap()
}

/// `doctor` names the limit where it ends XLA, and asks no question whose answer is known. The time: each of both devices may take
/// `PATIENCE` of `cli/src/doctor.rs` for all its answers, and a busy machine as much again.
#[test]
fn doctor_says_the_limit_of_address_space_in_time() {
    let patience = Duration::from_secs(120);
    let folder = tempfile::tempdir().unwrap();
    // This installs the plugin if it is missing.
    assert!(limited(folder.path(), None, &["plugins", "where", "cpu"]).status.success());
    let began = Instant::now();
    let output = limited(folder.path(), Some(300 << 10), &["doctor", "--json"]);
    let elapsed = began.elapsed();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let words = |text: &serde_json::Value| text.as_str().unwrap().to_string();
    for device in ["cpu", "tpu"] {
        for answer in report[device].as_array().unwrap() {
            let detail = words(&answer["detail"]);
            assert!(!detail.is_empty() && !detail.ends_with(':'), "{device}: {answer}");
        }
    }
    let limit = "; processes may have 0.29 GiB of address space here (`ulimit -v`)";
    let reason = words(&report["failing"][0]);
    assert!(reason.starts_with("cpu ") && reason.ends_with(limit), "{reason}");
    assert_eq!(report["cpu"][2]["detail"], "not asked, because `devices` failed");
    assert!(elapsed < 4 * patience, "{elapsed:?}");
}

/// Under `ulimit -v` XLA aborts its process if it gets no more address space. This happens in a child, and the parent reports the
/// limit; with a sufficient limit the same weights are learned.
#[test]
fn a_limit_of_address_space_is_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..30).map(|row| format!("0.{row},1.5,-{row},2,{}\n", row % 3)).collect();
    std::fs::write(folder.path().join("d.csv"), rows).unwrap();
    let experiment = "model: {kind: mlp, input: [4], n_classes: 3, hidden: [4]}\ndata: {csv: d.csv, n_test: 6}\ntrain: {batch: \
                      2, epochs: 1}\n";
    std::fs::write(folder.path().join("e.yaml"), experiment).unwrap();
    let limited = |kib, args: &[&str]| limited(folder.path(), kib, args);
    let train = |kib, checkpoint| limited(kib, &["train", "e.yaml", "--no-run", "--checkpoint", checkpoint]);
    for output in [train(None, "free.safetensors"), train(Some(16 << 20), "limited.safetensors")] {
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let bytes = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert_eq!(bytes("free.safetensors"), bytes("limited.safetensors"));
    // The plugin is mapped or not, and a compile gets its threads or not: at which limit, the system's allocator decides anew
    // in each process. Between too little for the plugin and enough for all, an answer is the right one or names the limit.
    let mut n_refused = 0;
    for mib in (200..=600).step_by(50) {
        let output = limited(Some(mib << 10), &["eval", "e.yaml", "--checkpoint", "free.safetensors"]);
        if output.status.success() {
            let is_answered = String::from_utf8_lossy(&output.stdout).starts_with("free.safetensors in bf16: ");
            assert!(is_answered, "{mib} MiB: {output:?}");
            continue;
        }
        n_refused += 1;
        let stderr = refusal(&output);
        let is_said = stderr.contains("of address space here") && stderr.contains("`ulimit -v`");
        assert!(is_said, "{mib} MiB: {stderr}");
    }
    assert!(n_refused >= 2, "{n_refused} limits were too low");
}
