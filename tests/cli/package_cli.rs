//! `bf16scope package` and `bf16scope run` on its output: the predictions of the experiment, to the bit.

use crate::train_cli::{Folder, text};

use bf16scope::data::npz::{Header, NpzReader, NpzWriter};
use bf16scope::hlo::DType;
use std::path::Path;

fn array(path: &Path, name: &str) -> Vec<u8> {
    NpzReader::open(path).unwrap().entry(name).unwrap().unwrap().read().unwrap()
}

/// Pixels of the first `n` test drawings, 0 to 16.
fn pixels(n: usize) -> Vec<f32> {
    let rows = crate::predict_cli::test_rows();
    rows[..n].iter().flat_map(|row| row.split(',').take(64).map(|value| value.trim().parse().unwrap())).collect()
}

/// `n` of the test drawings, scaled like in `mlp.yaml`.
fn write_images(path: &Path, n: usize) {
    let bytes: Vec<u8> = pixels(n).iter().flat_map(|value| (value / 16.0).to_le_bytes()).collect();
    let mut npz = NpzWriter::create(path).unwrap();
    npz.add("images", &Header::for_dtype(DType::F32, vec![n as i64, 8, 8, 1]), &bytes).unwrap();
    npz.finish().unwrap();
}

#[test]
fn a_package_predicts_what_its_experiment_does() {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    folder.stdout(&["predict", "mlp.yaml", "-o", "expected.npz"]);
    let expected = array(&folder.path("expected.npz"), "logits");
    write_images(&folder.path("images.npz"), 64);

    // Two devices, each with the batch size of `predict`, so each runs the same program.
    let summary = folder.stdout(&["package", "mlp.yaml", "--devices", "2", "--batch", "32", "-o", "pack"]);
    assert!(summary.contains("  in  images bf16[32,8,8,1]\n  out  logits f32[32,10]\n"), "{summary}");
    assert!(
        summary.ends_with("run it: `bf16scope run pack --device cpu:2 --inputs in.npz --outputs out.npz`\n"),
        "{summary}"
    );
    let run = ["run", "pack", "--device", "cpu:2", "--inputs", "images.npz", "--outputs", "out.npz"];
    let predicted = |warning: Option<&str>| {
        let output = folder.run(&run);
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        match warning {
            Some(warning) => assert!(stderr.contains(warning), "{stderr}"),
            None => assert_eq!(stderr, ""),
        }
        let was = if warning.is_some() { "compiled in" } else { "loaded in" };
        assert!(text(&output.stdout).contains(was), "{output:?}");
        assert_eq!(array(&folder.path("out.npz"), "logits"), expected[..64 * 10 * 4]);
    };
    predicted(None);

    // An executable of another version is compiled again, with a message.
    let manifest = folder.path("pack/package.json");
    let written = std::fs::read_to_string(&manifest).unwrap();
    assert!(written.contains("\"excess_precision\": false"), "{written}");
    let at = written.find("\"compiler\": \"").unwrap();
    std::fs::write(&manifest, format!("{}older {}", &written[..at + 13], &written[at + 13..])).unwrap();
    predicted(Some("and the program is compiled again: it was compiled by \"older "));
    for (from, to, message) in [
        // A name becomes a file's name in an archive, which users unpack.
        (
            "\"logits\"",
            "\"../../evil\"",
            "\"../../evil\" is not a name for an array: it would leave the archive that it is written to",
        ),
        // A program for 0 devices crashes XLA.
        ("\"n_devices\": 2", "\"n_devices\": 0", "n_devices is 0, expected 1 to 2048"),
        ("\"format\": 1", "\"format\": 9", "its format is 9, and this version reads 1"),
        (
            "\"program.hlo.pb\"",
            "\"../program.hlo.pb\"",
            "\"../program.hlo.pb\" is not the name of a file in the folder",
        ),
    ] {
        std::fs::write(&manifest, written.replace(from, to)).unwrap();
        let stderr = folder.stderr(&run);
        assert!(stderr.contains(&format!("package.json: no manifest of a package: {message}\n")), "{stderr}");
    }
    std::fs::write(&manifest, &written).unwrap();

    for (args, expected) in [
        (
            &["run", "pack", "--inputs", "images.npz"][..],
            "the package is for 2 devices, and cpu has 1\nhelp: --device cpu:2",
        ),
        (&["run", "pack", "--device", "cpu:2"], "1 of 1 parameters have no array: in0 (`images`, bf16[64,8,8,1])"),
        (&["run", "."], "is a folder without package.json, so it is not a package"),
        (
            &["package", "mlp.yaml", "--excess-precision", "on", "-o", "other"],
            "--excess-precision is on, and --target is cpu, on which every rounding is performed",
        ),
        (
            &["run", "pack", "--device", "cpu:2", "--excess-precision", "on"],
            "--excess-precision is for modules: a package is compiled as package.json says on a TPU",
        ),
        (&["package", "mlp.yaml", "-o", "pack"], "pack: is there already, and is not an empty folder"),
        (
            &["package", "mlp.yaml", "--target", "tpu-v3:3x3", "--devices", "2", "-o", "other"],
            "v3 comes in boards of 2x2 chips, so both axes are even",
        ),
    ] {
        let stderr = folder.stderr(args);
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
    let executable = folder.path("pack/executable.bin");
    let mut bytes = std::fs::read(&executable).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&executable, &bytes).unwrap();
    let stderr = folder.stderr(&run);
    assert!(stderr.contains("the file is damaged or not the package's\nhelp: copy the package again"), "{stderr}");
    assert_eq!(stderr.matches(&format!("{} bytes with SHA-256 ", bytes.len())).count(), 2, "{stderr}");
}

/// Ten rows, a whole batch, used to go in as they were, and nine of them were scaled again.
#[test]
fn the_number_of_examples_does_not_decide_whether_arrays_are_scaled() {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    folder.stdout(&["package", "mlp.yaml", "--batch", "10", "-o", "pack"]);
    let logits = |images: &str| {
        let shown = folder.stdout(&["run", "pack", "--inputs", images, "--outputs", "out.npz"]);
        (array(&folder.path("out.npz"), "logits"), shown.contains("and went in as they are"))
    };
    let of_floats = |n: usize| {
        write_images(&folder.path("images.npz"), n);
        logits("images.npz")
    };
    let (of_batch, is_told) = of_floats(10);
    assert!(is_told && of_batch.len() == 10 * 10 * 4, "{}", of_batch.len());
    assert_eq!(of_floats(9), (of_batch[..9 * 10 * 4].to_vec(), true));
    let (of_more, is_told) = of_floats(23);
    assert!(is_told && of_more.len() == 23 * 10 * 4 && of_more.starts_with(&of_batch));
    // Bytes are no input of the program: they are scaled, a whole batch too.
    for n in [10, 9] {
        let bytes: Vec<u8> = pixels(n).iter().map(|value| *value as u8).collect();
        let mut npz = NpzWriter::create(folder.path("bytes.npz")).unwrap();
        npz.add("images", &Header::for_dtype(DType::U8, vec![n as i64, 8, 8, 1]), &bytes).unwrap();
        npz.finish().unwrap();
        assert_eq!(logits("bytes.npz"), (of_batch[..n * 10 * 4].to_vec(), false), "{n}");
    }
    write_images(&folder.path("images.npz"), 0);
    let error = folder.stderr(&["run", "pack", "--inputs", "images.npz"]);
    assert!(error.contains("images.npz: `images` has no examples; expected 1 or more"), "{error}");
}
