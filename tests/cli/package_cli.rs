//! `bf16scope package` and `bf16scope run` on its output: the predictions of the experiment, to the bit.

use crate::train_cli::{Folder, text};

use bf16scope::data::npz::{Header, NpzReader, NpzWriter};
use bf16scope::hlo::DType;
use std::path::Path;

fn array(path: &Path, name: &str) -> Vec<u8> {
    NpzReader::open(path).unwrap().entry(name).unwrap().unwrap().read().unwrap()
}

/// 64 of the test drawings, scaled like in `mlp.yaml`.
fn write_images(path: &Path) {
    let images: Vec<f32> = crate::predict_cli::test_rows()[..64]
        .iter()
        .flat_map(|row| row.split(',').take(64).map(|value| value.trim().parse::<f32>().unwrap() / 16.0))
        .collect();
    let bytes: Vec<u8> = images.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut npz = NpzWriter::create(path).unwrap();
    npz.add("images", &Header::for_dtype(DType::F32, vec![64, 8, 8, 1]), &bytes).unwrap();
    npz.finish().unwrap();
}

#[test]
fn a_package_predicts_what_its_experiment_does() {
    let folder = Folder::new();
    folder.stdout(&["train", "mlp.yaml", "--epochs", "1"]);
    folder.stdout(&["predict", "mlp.yaml", "-o", "expected.npz"]);
    let expected = array(&folder.path("expected.npz"), "logits");
    write_images(&folder.path("images.npz"));

    // Two devices, each with the batch size of `predict`, so each runs the same program.
    let summary = folder.stdout(&["package", "mlp.yaml", "--devices", "2", "--batch", "32", "-o", "pack"]);
    assert!(summary.contains("  in  images bf16[32,8,8,1]\n  out  logits f32[32,10]\n"), "{summary}");
    assert!(
        summary.ends_with("run it: bf16scope run pack --device cpu:2 --inputs in.npz --outputs out.npz\n"),
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
    // A name becomes a file's name in an archive, which users unpack.
    std::fs::write(&manifest, written.replace("\"logits\"", "\"../../evil\"")).unwrap();
    let stderr = folder.stderr(&run);
    assert!(
        stderr.contains("package.json: no manifest of a package: \"../../evil\" is not a name for an array"),
        "{stderr}"
    );
    // A program for 0 devices crashes XLA.
    std::fs::write(&manifest, written.replace("\"n_devices\": 2", "\"n_devices\": 0")).unwrap();
    let stderr = folder.stderr(&run);
    assert!(stderr.contains("package.json: no manifest of a package: n_devices is 0, expected 1 to 2048"), "{stderr}");
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
    std::fs::write(&executable, bytes).unwrap();
    let stderr = folder.stderr(&run);
    assert!(stderr.contains("the file is damaged or not the package's\nhelp: copy the package again"), "{stderr}");
}
