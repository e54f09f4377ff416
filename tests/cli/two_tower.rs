//! The example with two towers, through the subcommands that accept any model.

use crate::binary;

use ndarray::Array1;
use ndarray_npy::NpzWriter;
use std::fs::File;
use std::path::Path;

fn stdout(folder: &Path, args: &[&str]) -> String {
    let output = binary::bf16scope(args).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn it_is_emitted_in_every_precision_and_audited() {
    let folder = tempfile::tempdir().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/two_tower.yaml");
    let example = example.to_str().unwrap();
    for precision in ["f32", "bf16", "f16"] {
        let step = stdout(folder.path(), &["emit", example, "--precision", precision]);
        assert!(
            step.contains(&format!("{precision}[32,32,32,3]")) && step.contains("s32[32,8]"),
            "{precision}: {step}"
        );
    }
    let infer = ["emit", example, "--program", "infer", "--precision", "f32", "--batch", "2", "-o", "infer.txt"];
    stdout(folder.path(), &infer);
    // Random values may be negative, unlike a variance.
    let mut inputs = NpzWriter::new(File::create(folder.path().join("in.npz")).unwrap());
    for (number, filters) in [(1, 16), (2, 32), (3, 64)] {
        let name = format!("two_tower/picture_tower/block{number}/bn/moving_variance");
        inputs.add_array(name, &Array1::<f32>::ones(filters)).unwrap();
    }
    inputs.finish().unwrap();
    let drawn = ["--inputs", "in.npz", "--random", "1"];
    let audit = stdout(folder.path(), &[&["audit", "infer.txt"][..], &drawn, &["--policy", "bf16_scope"]].concat());
    assert!(audit.contains("f32[2,11]") && audit.contains("the results are within"), "{audit}");
}
