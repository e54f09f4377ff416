//! Disks without room, programs that never end, and wheels that are damaged.

use super::*;

#[test]
fn a_disk_without_room_is_said_before_the_download() {
    let artifact = &Pinned::CPU;
    let needed = artifact.wheel_bytes + artifact.library_bytes;
    assert!(check_room(artifact, Path::new("c"), needed).is_ok());
    assert_eq!(
        check_room(artifact, Path::new("c"), needed - 1).unwrap_err().to_string(),
        "cache c: no room for xla-cpu-pjrt: 322 MB free, 323 MB needed\nhelp: make room (a plugin takes up to 800 MB \
         while it is installed), or set BF16SCOPE_CACHE to a roomier directory"
    );
}

#[test]
fn pip_on_a_full_disk_is_understood() {
    let message = |log| full(log).map(|kind| io::Error::from(kind).to_string());
    let no_space = Some("no storage space".to_string());
    assert_eq!(message("x\nERROR: Could not install packages due to an OSError: [Errno 28] Kein Platz\n"), no_space);
    assert_eq!(message("OSError: No space left on device"), no_space);
    assert_eq!(message("OSError: [Errno 122] Disk quota exceeded: 'x'"), Some("quota exceeded".to_string()));
    assert_eq!(message("ERROR: no route"), None);
    assert_eq!(end_of([b'x'; 1 << 20].as_slice()).len(), 64 << 10);
}

#[test]
fn a_python_or_a_pip_that_never_ends_is_ended() {
    let (setup, began) = (Setup::default(), Instant::now());
    let python = |script: &'static [&'static str], patience: Duration| {
        Pip { name: "a shell", program: "sh", args: script }.answers(&setup, patience)
    };
    let short = Duration::from_millis(100);
    assert!(!python(&["-c", "exec sleep 3600"], short) && began.elapsed() >= short);
    assert!(!python(&["-c", "exit 1"], ANSWER) && python(&["-c", "exit 0"], ANSWER));
    let folder = tempfile::tempdir().unwrap();
    let mut pip = Command::new("sleep").arg("3600").spawn().unwrap();
    let lost = watch(&mut pip, &Pinned::CPU, folder.path(), &setup, Duration::from_secs(1)).unwrap_err();
    assert_eq!(lost.to_string(), "no byte came for 1 s, and it was ended");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&pip.wait().unwrap()), Some(9));
    assert!(began.elapsed() < STALLED, "{:?}", began.elapsed());
}

#[test]
fn wheels_that_cannot_be_unpacked_are_named_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let [wheel, staging, taken] = ["w.whl", "staging", "taken"].map(|name| folder.path().join(name));
    for place in [&staging, &taken] {
        fs::create_dir(place).unwrap();
    }
    let mut archive = zip::ZipWriter::new(File::create(&wheel).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    archive.start_file("plugin.so", options).unwrap();
    archive.write_all(b"a library").unwrap();
    archive.finish().unwrap();
    // The hash of `a library`.
    let library_sha256 = "31f109ab38348582abdc9e1c9942f74505c719e98c6d0ab6fbcfdccfd8c9935b";
    let artifact = Pinned { wheel: "w.whl", member: "plugin.so", library_sha256, ..Pinned::CPU };
    let error = |artifact: &Pinned, path: &str| {
        let unpacked = unpack(artifact, &wheel, &staging, &folder.path().join(path));
        let place = folder.path().display().to_string();
        unpacked.map_err(|error| error.to_string().replace(&place, "CACHE"))
    };
    assert_eq!(error(&artifact, "plugin.so"), Ok(()));
    let help = "help: set BF16SCOPE_CACHE to a directory that can be written";
    assert_eq!(
        error(&artifact, "taken"),
        Err(format!("cache CACHE/taken: moving the library into its place: Is a directory (os error 21)\n{help}"))
    );
    assert_eq!(
        error(&Pinned { member: "other.so", ..artifact }, "plugin.so"),
        Err("w.whl: other.so: specified file not found in archive".to_string())
    );
    let bytes = fs::read(&wheel).unwrap();
    let at = bytes.windows(9).position(|part| part == b"a library").unwrap();
    fs::write(&wheel, [&bytes[..at], b"A", &bytes[at + 1..]].concat()).unwrap();
    assert_eq!(
        error(&artifact, "plugin.so"),
        Err(format!("cache CACHE/staging/library: unpacking the library: Invalid checksum\n{help}"))
    );
}

/// An unsupported machine, and a wheel with a wrong library.
#[test]
fn other_machines_and_damaged_libraries_are_named_with_what_to_do() {
    let (package, variable) = ("xla-cpu-pjrt", "BF16SCOPE_CPU_PLUGIN");
    let machine = InstallError::Machine { package, os: "macos", arch: "aarch64", variable };
    assert_eq!(
        machine.to_string(),
        "xla-cpu-pjrt: wheels are for linux x86_64, this machine is macos aarch64\nhelp: name a PJRT plugin for this \
         machine in BF16SCOPE_CPU_PLUGIN"
    );
    let unpacked = InstallError::Unpacked { member: "plugin.so", measured: "0e".to_string(), expected: "1f" };
    assert_eq!(
        unpacked.to_string(),
        "plugin.so: sha256: measured 0e, expected 1f\nhelp: the wheel is right, so memory or disk of this machine may be \
         failing; try again"
    );
}
