//! Paths that are not regular files, files that never end, and links.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use crate::door::{Folder, MODULE};

fn fifo(folder: &Folder, name: &str) {
    assert!(Command::new("mkfifo").arg(folder.path(name)).status().unwrap().success());
}

/// Each way of naming a file to read.
fn readers(name: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["lower", name, "-o", "out.txt"],
        vec!["explain-cast", name, "%x"],
        vec!["run", "m.txt", "--inputs", name],
        vec!["emit", name],
        vec!["lower", "m.txt", "-o", "out.txt", "--policy", name],
        vec!["train", name],
    ]
}

#[test]
fn a_fifo_or_a_device_is_refused_at_once_wherever_a_file_is_read() {
    let folder = Folder::new();
    for (name, found, help) in [
        ("p.txt", "a FIFO", "save to a file what comes through it, or use /dev/stdin"),
        ("p.yaml", "a FIFO", "save to a file what comes through it, or use /dev/stdin"),
        ("zero.txt", "a character device", "name a file"),
        ("zero.yaml", "a character device", "name a file"),
    ] {
        match name.starts_with('p') {
            true => fifo(&folder, name),
            false => symlink("/dev/zero", folder.path(name)).unwrap(),
        }
        // A policy is a file by its ending.
        for args in readers(name).into_iter().filter(|args| name.ends_with("yaml") || !args.contains(&"--policy")) {
            let error = folder.refused(&args);
            // Arrays are read at any place, which `/dev/stdin` has not.
            let (found, help) = match args.contains(&"--inputs") && name.starts_with('p') {
                true => {
                    ("a pipe, which gives each byte once", "save to a file what comes through it, and name that file")
                }
                false => (found, help),
            };
            let expected = format!("not a regular file but {found}\nhelp: {help}\n");
            assert!(error.starts_with("bf16scope: ") && error.ends_with(&expected), "{args:?}: {error}");
        }
    }
    assert!(!folder.path("out.txt").exists());
    assert_eq!(
        folder.refused(&["lower", "p.txt", "-o", "out.txt"]),
        "bf16scope: cannot read p.txt\n  caused by: not a regular file but a FIFO\n\
         help: save to a file what comes through it, or use /dev/stdin\n"
    );
}

#[test]
fn the_data_of_an_experiment_are_a_file() {
    let folder = Folder::new();
    fifo(&folder, "data.csv");
    for csv in ["data.csv", "/dev/zero"] {
        let model = format!("model: {{kind: mlp, input: [2], n_classes: 3}}\ndata: {{csv: {csv}, n_test: 1}}\n");
        folder.write("e.yaml", model);
        let error = folder.refused(&["train", "e.yaml"]);
        let place = "e.yaml:2:13: ";
        assert!(
            error.contains(place) && error.contains(": cannot open the data file: not a regular file but a "),
            "{error}"
        );
    }
}

#[test]
fn a_folder_of_modules_may_hold_none_that_blocks() {
    let folder = Folder::new();
    fs::create_dir(folder.path("modules")).unwrap();
    fifo(&folder, "modules/a.txt");
    let error = folder.refused(&["fit", "modules", "--target", "tpu-v2", "--batch-dim", "0:0"]);
    assert!(error.contains("cannot read modules/a.txt\n  caused by: not a regular file but a FIFO"), "{error}");
}

/// A pipe from a shell's `<(…)` and `|` has a writer, and ends.
#[test]
fn a_pipe_that_is_open_already_is_read() {
    let folder = Folder::new();
    let mut child = folder
        .command(&["lower", "/dev/stdin", "-o", "out.txt"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(MODULE.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(fs::read_to_string(folder.path("out.txt")).unwrap().starts_with("HloModule m"));
}

/// `emit` detects whether its input is a module or a model before it reads it; a pipe can be read only once.
#[test]
fn a_pipe_holds_a_module_or_a_model() {
    let folder = Folder::new();
    let module = "module @m {\n  func.func public @main(%x: tensor<4xf32>) -> (tensor<4xf32>) {\n    \
                  %0 = stablehlo.add %x, %x : tensor<4xf32>\n    return %0 : tensor<4xf32>\n  }\n}\n";
    let model = fs::read_to_string(folder.path("m.yaml")).unwrap();
    for held in [module, MODULE, &model] {
        let args = ["emit", "/dev/stdin", "-o", "out.txt"];
        let mut child = folder.command(&args).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(held.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{held}");
        assert!(fs::read_to_string(folder.path("out.txt")).unwrap().starts_with("HloModule"));
        fs::remove_file(folder.path("out.txt")).unwrap();
    }
}

#[test]
fn a_file_beyond_the_bound_costs_nothing() {
    let folder = Folder::new();
    fs::File::create(folder.path("large.txt")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(
        folder.refused(&["lower", "large.txt", "-o", "out.txt"]),
        "bf16scope: cannot read large.txt\n  caused by: it has more than 536870912 bytes, the most that is read of it\n"
    );
    fs::File::create(folder.path("large.yaml")).unwrap().set_len(1 << 40).unwrap();
    let error = folder.refused(&["emit", "large.yaml"]);
    assert!(error.contains("it has more than 1048576 bytes, the most that is read of it"), "{error}");
}

/// Readers of archives search for the directory that an archive's end names: here through all of a hole.
#[test]
fn an_archive_of_holes_is_refused_by_its_size() {
    let folder = Folder::new();
    let mut archive = fs::File::create(folder.path("large.npz")).unwrap();
    archive.write_all(b"PK\x03\x04").unwrap();
    archive.seek(SeekFrom::Start((1 << 40) - 22)).unwrap();
    archive.write_all(b"PK\x05\x06\0\0\0\0\x01\0\x01\0\x2e\0\0\0\0\0\0\0\0\0").unwrap();
    folder.write("e.yaml", "model: {kind: mlp, input: [2], n_classes: 3}\ndata: {npz: large.npz, n_test: 1}\n");
    for args in [&["train", "e.yaml"][..], &["weights", "large.npz"], &["run", "m.txt", "--inputs", "large.npz"]] {
        let error = folder.refused(args);
        assert!(error.contains("large.npz: the file has 1099511627776 bytes, and "), "{args:?}: {error}");
        let end = " are stored: the rest are holes\nhelp: save it again with numpy.savez, or store its holes: cp \
                   --sparse=never FILE NEW\n";
        assert!(error.ends_with(end), "{args:?}: {error}");
    }
}

/// Each way of naming a file to write that needs no plugin.
fn writers(to: &str) -> Vec<Vec<&str>> {
    vec![vec!["emit", "m.yaml", "-o", to], vec!["lower", "m.txt", "-o", to], vec!["bits", "1", "--trace", to]]
}

#[test]
fn outputs_go_where_links_lead_and_links_stay() {
    let folder = Folder::new();
    for (number, args) in writers("link").into_iter().enumerate() {
        let (target, link) = (folder.path(&format!("absent{number}")), folder.path("link"));
        let _ = fs::remove_file(&link);
        symlink(&target, &link).unwrap();
        let ended = folder.run(&args);
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.stderr);
        assert!(link.is_symlink() && fs::metadata(&target).unwrap().len() > 0, "{args:?}");
    }
}

#[test]
fn an_output_that_cannot_be_a_file_is_refused_and_nothing_is_lost() {
    let folder = Folder::new();
    fs::create_dir(folder.path("folder")).unwrap();
    symlink("loop", folder.path("loop")).unwrap();
    folder.write("precious", "content");
    let mut permissions = fs::metadata(folder.path("precious")).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(folder.path("precious"), permissions).unwrap();
    let before = folder.names();
    for name in ["folder", "loop", "precious", "new/", "nowhere/file", "m.txt/file", "/proc/nothing"] {
        for args in writers(name) {
            let error = folder.refused(&args);
            let folder = name.split_once('/').map_or(name, |(folder, _)| folder);
            assert!(error.contains(folder), "{args:?}: {error}");
        }
    }
    assert_eq!(
        folder.refused(&["lower", "m.txt", "-o", "precious"]),
        "bf16scope: cannot write precious\n  caused by: the file is read-only\n\
         help: `chmod u+w` it, or name another one\n"
    );
    assert_eq!(folder.names(), before, "and nothing is left behind");
    assert_eq!(fs::read(folder.path("precious")).unwrap(), b"content");
}

#[test]
fn what_a_killed_run_left_goes_with_the_next_run_that_writes_the_file() {
    let folder = Folder::new();
    for (number, args) in writers("out").into_iter().enumerate() {
        let _ = fs::remove_file(folder.path("out"));
        folder.write(".out.writing-killed", "half");
        folder.write(".other.writing-killed", "half of another file");
        let ended = folder.run(&args);
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.stderr);
        assert_eq!(folder.names(), [".other.writing-killed", "m.txt", "m.yaml", "out"], "run {number}");
    }
}

#[test]
fn a_module_can_be_replaced_by_its_lowered_form() {
    let folder = Folder::new();
    let ended = folder.run(&["lower", "m.txt", "-o", "m.txt"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(fs::read_to_string(folder.path("m.txt")).unwrap().starts_with("HloModule m"));
}

/// If standard output is a file, writing to `/dev/stdout` continues at the current position.
#[test]
fn an_output_named_dev_stdout_is_standard_output() {
    let folder = Folder::new();
    folder.write("log", "before\n");
    let log = fs::OpenOptions::new().append(true).open(folder.path("log")).unwrap();
    let mut command = folder.command(&["emit", "m.txt", "-o", "/dev/stdout"]);
    let status = command.stdout(log).status().unwrap();
    assert!(status.success());
    let text = fs::read_to_string(folder.path("log")).unwrap();
    assert!(
        text.starts_with("before\nHloModule m") && text.ends_with("/dev/stdout: 1 instructions, 111 bytes\n"),
        "{text}"
    );
    assert_eq!(folder.run(&["emit", "m.txt", "-o", "/dev/null"]).stdout, "/dev/null: 1 instructions, 111 bytes\n");
}

fn gzip(chunk: &[u8], n_chunks: usize) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    (0..n_chunks).for_each(|_| encoder.write_all(chunk).unwrap());
    encoder.finish().unwrap()
}

#[test]
fn data_that_unpack_to_nothing_much_end_soon() {
    let folder = Folder::new();
    folder.write("e.yaml", "model: {kind: mlp, input: [2], n_classes: 3}\ndata: {csv: data.csv, n_test: 1}\n");
    let refused = |bytes: Vec<u8>, expected: &str| {
        folder.write("data.csv", bytes);
        assert_eq!(folder.refused(&["train", "e.yaml"]), format!("bf16scope: data.csv{expected}\n"));
    };
    // As a gigabyte of them would: only the first million is read.
    refused(
        gzip(&[b'\n'; 1 << 16], 32),
        ":1048577: more than 1048576 empty lines after one another; expected lines of numbers: name a CSV file, plain or \
         gzip",
    );
    refused(
        gzip(&[b'0'; 1 << 20], 65),
        ":1: a row of more than 67108864 bytes; expected lines of numbers: name a CSV file, plain or gzip",
    );
    refused([b','; 10_000_000].to_vec(), ":1: at least 73729 columns; expected 3: 2 of `images`, 1 of `labels`");
}

#[test]
fn arrays_that_claim_more_than_there_is_are_refused() {
    use bf16scope::data::npz::{Header, NpzReader, NpzWriter};
    use bf16scope::hlo::DType;
    let folder = Folder::new();
    let path = folder.path("a.npz");
    let mut npz = NpzWriter::create(&path).unwrap();
    npz.add("x", &Header::for_dtype(DType::F32, vec![1 << 61]), &[0; 8]).unwrap();
    // Arrays without elements, in Fortran order, with sizes whose product is beyond 2^64.
    let empty = Header { is_fortran: true, ..Header::for_dtype(DType::F32, vec![1 << 62, 1 << 62, 0]) };
    npz.add("empty", &empty, &[]).unwrap();
    npz.finish().unwrap();
    let mut npz = NpzReader::open(&path).unwrap();
    assert!(npz.entry("empty").unwrap().unwrap().read().unwrap().is_empty());
    let error = folder.refused(&["run", "m.txt", "--inputs", "a.npz"]);
    assert!(error.contains("is given `x`, which is f32[2305843009213693952], expected f32[2]"), "{error}");
}

#[test]
fn outputs_do_not_destroy_inputs_of_another_kind() {
    let folder = Folder::new();
    let before = fs::read(folder.path("m.txt")).unwrap();
    for name in ["p.yaml", "metrics.jsonl", "watch.jsonl"] {
        folder.write(name, "dtype: bf16\n");
    }
    let no_page = |name: &str| {
        format!("--html\n  caused by: {name} is there, and is not a page\nhelp: remove it, or name another file\n")
    };
    let read = |flag: &str, name: &str| {
        format!("{flag} names {name}, which is read, and would be lost\nhelp: name another file\n")
    };
    for (args, expected) in [
        (vec!["data", "m.yaml", "--html", "m.yaml"], read("--html", "m.yaml")),
        (vec!["data", "p.yaml", "--html", "m.yaml"], no_page("m.yaml")),
        (vec!["data", "m.txt", "--html", "./m.txt"], read("--html", "./m.txt")),
        (vec!["schedule", "m.yaml", "--html", "m.txt"], no_page("m.txt")),
        (vec!["curves", ".", "--html", "metrics.jsonl"], no_page("metrics.jsonl")),
        (vec!["watch", ".", "--html", "watch.jsonl"], no_page("watch.jsonl")),
        (vec!["port", "m.txt", "--html", "m.txt"], read("--html", "m.txt")),
        (vec!["port", "m.txt", "--html", "m.yaml"], no_page("m.yaml")),
        (vec!["lower", "m.txt", "--policy", "p.yaml", "-o", "p.yaml"], read("-o", "p.yaml")),
        (vec!["lower", "m.txt", "--policy", "p.yaml", "-o", "o.txt", "--report", "p.yaml"], read("--report", "p.yaml")),
        (
            vec!["lower", "m.txt", "-o", "o.txt", "--report", "m.yaml"],
            "--report\n  caused by: m.yaml is there, and is not a report\nhelp: remove it, or name another file\n"
                .to_string(),
        ),
        // A policy that someone wrote, or an experiment.
        (
            vec!["lower", "m.txt", "-o", "o.txt", "--target", "tpu-v2", "--decisions", "p.yaml"],
            "--decisions\n  caused by: p.yaml is there, and is not a policy with decisions\nhelp: remove it, or name another \
             file\n"
                .to_string(),
        ),
        (
            vec!["audit", "m.txt", "--random", "1", "--budget", "1e-2", "--save-policy", "p.yaml"],
            "--save-policy\n  caused by: p.yaml is there, and is not a policy that a search found\nhelp: remove it, or name \
             another file\n"
                .to_string(),
        ),
    ] {
        assert_eq!(folder.refused(&args), format!("bf16scope: {expected}"), "{args:?}");
    }
    for (args, expected) in [
        (
            vec!["run", "m.txt", "--random", "1", "--outputs", "m.txt"],
            "--outputs names m.txt, which is read, and would be lost\nhelp: name another file\n",
        ),
        (
            vec!["run", "m.txt", "--random", "1", "--outputs", "m.yaml"],
            "m.yaml is there, and is not a .npz archive\nhelp: remove it, or name another file\n",
        ),
        (
            vec!["bits", "1", "--trace", "m.txt"],
            "--trace\n  caused by: m.txt is there, and is not a trace\nhelp: remove it, or name another file\n",
        ),
        (vec!["emit", "m.yaml", "-o", "./m.yaml"], "-o names the model itself, ./m.yaml\nhelp: name another file\n"),
        (
            vec!["lower", "m.txt", "-o", "-"],
            "cannot write -\n  caused by: `-` is not a file name here\n\
             help: name /dev/stdin or /dev/stdout, or ./- for a file called so\n",
        ),
    ] {
        assert_eq!(folder.refused(&args), format!("bf16scope: {expected}"), "{args:?}");
    }
    assert_eq!(fs::read(folder.path("m.txt")).unwrap(), before);
    assert_eq!(fs::read_to_string(folder.path("m.yaml")).unwrap(), crate::door::MODEL);
    assert_eq!(folder.names(), ["m.txt", "m.yaml", "metrics.jsonl", "p.yaml", "watch.jsonl"]);
    assert_eq!(fs::read_to_string(folder.path("p.yaml")).unwrap(), "dtype: bf16\n");
}

#[test]
fn variables_of_nonsense_and_names_that_are_no_text() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = Folder::new();
    let name = std::ffi::OsStr::from_bytes(b"out\xff\n.txt");
    let status = folder.command(&["lower", "m.txt", "-o"]).arg(name).stdout(Stdio::null()).status().unwrap();
    assert!(status.success() && fs::metadata(folder.path(".").join(name)).is_ok());
    let not_text = std::ffi::OsStr::from_bytes(b"a\xff==b");
    let log = crate::door::ended(folder.command(&["bits", "1"]).env("RUST_LOG", not_text));
    assert!(log.stderr.starts_with("bf16scope: RUST_LOG: cannot read `a\u{fffd}==b`"), "{}", log.stderr);
    let homeless = crate::door::ended(
        folder
            .command(&["plugins", "where", "cpu", "--offline"])
            .env_remove("HOME")
            .env_remove("XDG_CACHE_HOME")
            .env_remove("BF16SCOPE_CACHE")
            .env_remove("BF16SCOPE_CPU_PLUGIN"),
    );
    assert_eq!(
        homeless.stderr,
        "bf16scope: the cpu plugin could not be installed\n  caused by: no cache directory: BF16SCOPE_CACHE, XDG_CACHE_HOME \
         and HOME are unset or empty\nhelp: set BF16SCOPE_CACHE to a directory that can hold 900 MB\n"
    );
}
