//! Checkpoints written, read and refused.

use super::*;
use bf16scope_hlo::DType;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::fs;

fn array(dtype: DType, dims: &[i64]) -> Array {
    let shape = ArrayShape::new(dtype, dims);
    let bytes = (0..shape.n_elements() as usize * dtype.n_bytes()).map(|i| i as u8).collect();
    Array { shape, bytes }
}

fn owned((name, hash): (&str, &str)) -> (String, String) {
    (name.to_string(), hash.to_string())
}

fn checkpoint() -> Checkpoint {
    let (step, steps_per_epoch, precision) = (1234, 100, Precision::F16);
    let position = Position { step, steps_per_epoch, batch: 32, seed: 7, precision, order: 2, draws: 2 };
    let variables = [
        ("dense/kernel", array(DType::F32, &[2, 3])),
        ("dense/kernel/momentum", array(DType::F32, &[2, 3])),
        ("dropout/state", array(DType::U64, &[2])),
        ("scalar", array(DType::BF16, &[])),
    ];
    let variables = variables.map(|(name, value)| (name.to_string(), value)).into();
    let settings = Settings(serde_json::json!({"model": {"kind": "mlp", "hidden": [2]}}));
    let print = |hash: &str| Fingerprint { n_examples: 9, arrays: [("images", hash)].map(owned).into() };
    let data = Some(DataIdentity { training: print("f"), test: print("g"), classes: BTreeMap::new(), learnt: None });
    let function = Some(FunctionHash { sha256: "h".to_string(), version: "0".to_string() });
    Checkpoint { position, settings, function, data, callbacks: None, variables }
}

fn path() -> &'static Path {
    Path::new("runs/mlp.safetensors")
}

fn error(bytes: &[u8]) -> String {
    Checkpoint::from_bytes(path(), bytes).unwrap_err().to_string()
}

#[test]
fn a_file_that_is_larger_than_the_machine_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    // A sparse file: it occupies no disk space.
    let n_bytes = u64::try_from(memory_of_machine().unwrap()).unwrap() + 1;
    fs::File::create(&path).unwrap().set_len(n_bytes).unwrap();
    let error = Checkpoint::read(&path).unwrap_err();
    assert!(matches!(error, CheckpointError::TooLarge { n_bytes: found, .. } if found == n_bytes), "{error}");
}

#[test]
fn bytes_round_trip_and_are_reproducible() {
    let bytes = checkpoint().to_bytes(path()).unwrap();
    assert_eq!(Checkpoint::from_bytes(path(), &bytes).unwrap(), checkpoint());
    assert_eq!(checkpoint().to_bytes(path()).unwrap(), bytes);
    // Also where the arrays are longer than the header.
    let zeros = Array { shape: ArrayShape::new(DType::F32, [64, 64]), bytes: vec![0; 4 * 64 * 64] };
    let large = Checkpoint { variables: [("large".to_string(), zeros)].into(), ..checkpoint() };
    assert_eq!(Checkpoint::from_bytes(path(), &large.to_bytes(path()).unwrap()).unwrap(), large);
}

#[test]
fn a_head_tells_checkpoints_of_one_step_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let head = |checkpoint: Checkpoint| {
        checkpoint.write(&path).unwrap();
        Checkpoint::read_head(&path).unwrap()
    };
    let one = head(checkpoint());
    assert_eq!((&one.position, &one.settings), (&checkpoint().position, &checkpoint().settings));
    assert_eq!(head(checkpoint()), one);
    let variables = [("scalar".to_string(), array(DType::BF16, &[]))].into();
    let other = head(Checkpoint { variables, ..checkpoint() });
    assert!(other.position == one.position && other.sha256 != one.sha256);
}

#[test]
fn a_position_from_before_draws_had_a_version_is_of_the_first() {
    let mut position = serde_json::to_value(checkpoint().position).unwrap();
    assert_eq!(position.as_object_mut().unwrap().remove("draws"), Some(serde_json::json!(2)));
    assert_eq!(serde_json::from_value::<Position>(position).unwrap().draws, 1);
}

#[test]
fn every_cut_is_noticed() {
    let whole = checkpoint().to_bytes(path()).unwrap();
    for n_bytes in 0..whole.len() {
        let message = error(&whole[..n_bytes]);
        let start = format!("runs/mlp.safetensors: the checkpoint is cut off: {n_bytes} bytes, expected ");
        assert!(message.starts_with(&start), "{n_bytes}: {message}");
    }
    let expected = format!(
        "runs/mlp.safetensors: the checkpoint is cut off: {} bytes, expected {}\n\
             help: copy it again, or go on from an earlier one; this file is left as it is",
        whole.len() - 1,
        whole.len()
    );
    assert_eq!(error(&whole[..whole.len() - 1]), expected);
}

#[test]
fn other_files_are_named_for_what_they_are() {
    assert_eq!(
        error(b"PK\x03\x04 a zip file, not a checkpoint"),
        "runs/mlp.safetensors: not a safetensors file: it is a zip archive, as .npz files and PyTorch's .pt files are\n\
             help: name a checkpoint that `bf16scope train` wrote; `bf16scope weights FILE` shows other files of weights"
    );
    let view = TensorView::new(Dtype::U8, vec![2], &[1, 2]).unwrap();
    let foreign = safetensors::serialize([("x", view)], None).unwrap();
    assert_eq!(
        error(&foreign),
        "runs/mlp.safetensors: not a bf16scope checkpoint: its metadata has no key `bf16scope`\n\
             help: name a checkpoint that `bf16scope train` wrote; `bf16scope weights FILE` shows other files of weights"
    );
    let of_format = |text: &str| {
        let metadata =
            HashMap::from([(bf16scope_data::weights::safetensors::header::OURS.to_string(), text.to_string())]);
        error(&safetensors::serialize([] as [(&str, TensorView<'_>); 0], Some(metadata)).unwrap())
    };
    assert_eq!(
        of_format(r#"{"version": 4, "future": true}"#),
        "runs/mlp.safetensors: checkpoint format 4, this build reads format 3\n\
             help: use the build of bf16scope that wrote it"
    );
    assert_eq!(
        of_format(r#"{"version": 1, "position": {}}"#),
        "runs/mlp.safetensors: checkpoint format 1, this build reads format 3\n\
             help: it is of an older build, with other settings and another order of examples: go on with that build, \
             or train again; any reader of safetensors still reads its arrays"
    );
    assert_eq!(
        of_format(r#"{"version": 3}"#),
        "runs/mlp.safetensors: not a bf16scope checkpoint: its metadata has no sha256\n\
             help: name a checkpoint that `bf16scope train` wrote; `bf16scope weights FILE` shows other files of weights"
    );
    let mut longer = checkpoint().to_bytes(path()).unwrap();
    longer.push(0);
    let message = error(&longer);
    assert!(message.starts_with("runs/mlp.safetensors: not a safetensors file: it has "), "{message}");
}

#[test]
fn a_missing_file_is_named() {
    let path = Path::new("/nonexistent/mlp.safetensors");
    assert_eq!(
        Checkpoint::read(path).unwrap_err().to_string(),
        "/nonexistent/mlp.safetensors: no such checkpoint\nhelp: train first, or name one with --checkpoint"
    );
}

#[test]
fn another_models_checkpoint_is_refused_with_every_difference() {
    let shape = |dims: &[i64]| ArrayShape::new(DType::F32, dims);
    let wanted = || [("conv/kernel", shape(&[3])), ("dense/kernel", shape(&[3, 2]))].into_iter();
    let checkpoint = checkpoint();
    assert_eq!(
        checkpoint.select(path(), wanted(), true).unwrap_err().to_string(),
        "runs/mlp.safetensors: the checkpoint is of another model or optimizer:\
             \n  different: dense/kernel is f32[2,3], not f32[3,2]\
             \n  missing: conv/kernel\
             \n  unexpected: dense/kernel/momentum, dropout/state, scalar\
             \nhelp: name the experiment it was made with, or leave --resume out to start again"
    );
    let some = || [("dense/kernel", shape(&[2, 3]))].into_iter();
    assert_eq!(checkpoint.select(path(), some(), false).unwrap(), [&checkpoint.variables["dense/kernel"]]);
    assert!(checkpoint.select(path(), some(), true).is_err());
    let many: Vec<String> = (0..9).map(|i| format!("layer{i}")).collect();
    let missing = checkpoint.select(path(), many.iter().map(|name| (name.as_str(), shape(&[]))), false);
    assert!(missing.unwrap_err().to_string().contains("missing: layer0, layer1, layer2, layer3 and 5 more"));
}

#[test]
fn a_file_is_replaced_whole_and_nothing_else_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/run.safetensors");
    let mut checkpoint = checkpoint();
    checkpoint.write(&path).unwrap();
    checkpoint.position.step += 1;
    checkpoint.write(&path).unwrap();
    assert_eq!(Checkpoint::read(&path).unwrap(), checkpoint);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    // A file where a directory should be: refused for every user, root too.
    let path = file.join("run.safetensors");
    let expected = format!(
        "{}: cannot write the checkpoint: making its directory\n\
             help: move the file away that is where the path has a folder or name another place with --checkpoint; what was there before is unchanged",
        path.display()
    );
    assert_eq!(Place::claim(&path).unwrap_err().to_string(), expected);
    assert_eq!(checkpoint().write(&path).unwrap_err().to_string(), expected);
    let message = Place::claim(folder.path()).unwrap_err().to_string();
    assert!(message.contains("cannot write the checkpoint: making a file in its directory"), "{message}");
}
