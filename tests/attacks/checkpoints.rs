//! Checkpoints that are damaged, hostile, or not regular files; states that must not be saved.

use bf16scope::data::{DRAW_VERSION, ORDER_VERSION};
use bf16scope::graph::Precision;
use bf16scope::hlo::{ArrayShape, DType};
use bf16scope::train::checkpoint::{Array, Checkpoint, CheckpointError, Position};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::process::Command;

fn path() -> &'static Path {
    Path::new("run.safetensors")
}

fn array(values: &[f32]) -> Array {
    let shape = ArrayShape::new(DType::F32, [values.len() as i64]);
    Array { shape, bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect() }
}

fn checkpoint() -> Checkpoint {
    let (step, steps_per_epoch, precision) = (300, 44, Precision::Bf16);
    let position =
        Position { step, steps_per_epoch, batch: 32, seed: 7, precision, order: ORDER_VERSION, draws: DRAW_VERSION };
    let values: Vec<f32> = (0..2000).map(|i| (i as f32).sin()).collect();
    let variables = [("dense/kernel", &values[..]), ("dense/kernel/momentum", &values[500..]), ("bias", &values[..3])];
    let variables = variables.map(|(name, values)| (name.to_string(), array(values))).into();
    let settings = r#"{"model": {"kind": "mlp", "hidden": [12]}}"#.parse().unwrap();
    Checkpoint { position, settings, function: None, data: None, callbacks: None, variables }
}

fn read_error(checkpoint: &Checkpoint) -> String {
    checkpoint.to_bytes(path()).unwrap_err().to_string()
}

#[test]
fn a_thousand_of_a_thousand_flipped_bits_are_noticed() {
    let whole = checkpoint().to_bytes(path()).unwrap();
    let header_end = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
    assert!(whole[..header_end].ends_with(b" "), "there is padding to flip");
    let mut random = SmallRng::seed_from_u64(13);
    // As many in the header with its length and padding as in the arrays.
    for (from, to) in [(0, header_end), (header_end, whole.len())] {
        for _ in 0..500 {
            let mut flipped = whole.clone();
            let (at, bit) = (random.random_range(from..to), random.random_range(0..8));
            flipped[at] ^= 1 << bit;
            let read = Checkpoint::from_bytes(path(), &flipped);
            assert!(read.is_err(), "bit {bit} of byte {at} of {}", whole.len());
            if at >= header_end {
                assert!(matches!(read, Err(CheckpointError::Damaged { .. })), "bit {bit} of byte {at}");
            }
        }
    }
}

#[test]
fn damage_is_named_with_both_hashes() {
    let mut bytes = checkpoint().to_bytes(path()).unwrap();
    let text = String::from_utf8_lossy(&bytes).to_string();
    let expected = &text.split_once(r#"\"sha256\":\""#).unwrap().1[..64];
    *bytes.last_mut().unwrap() ^= 1;
    let CheckpointError::Damaged { measured, .. } = Checkpoint::from_bytes(path(), &bytes).unwrap_err() else {
        panic!("another error");
    };
    assert_eq!(
        Checkpoint::from_bytes(path(), &bytes).unwrap_err().to_string(),
        format!(
            "run.safetensors: the checkpoint is damaged: its sha256 is {measured}, it was written with {expected}\n\
             help: copy it again, or go on from an earlier one; this file is left as it is"
        )
    );
}

#[test]
fn other_tools_read_it_and_can_check_the_hash() {
    let bytes = checkpoint().to_bytes(path()).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.len(), 3);
    assert_eq!(theirs.tensor("bias").unwrap().data(), checkpoint().variables["bias"].bytes);
    // As the format's description says: the digits count as zeros.
    let key = br#"\"sha256\":\""#;
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    let mut zeroed = bytes.clone();
    zeroed[at..at + 64].fill(b'0');
    use sha2::Digest;
    let sha: String = sha2::Sha256::digest(&zeroed).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(sha.as_bytes(), &bytes[at..at + 64]);
}

#[test]
fn what_no_run_leaves_is_neither_saved_nor_read() {
    let with = |change: &dyn Fn(&mut Checkpoint)| {
        let mut checkpoint = checkpoint();
        change(&mut checkpoint);
        read_error(&checkpoint)
    };
    let unsaved = |fault: &str| {
        format!(
            "run.safetensors: the checkpoint is not saved: {fault}\nhelp: what was there before is unchanged: go on from it"
        )
    };
    for (value, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let error = with(&|checkpoint| {
            checkpoint.variables.insert("dense/kernel".to_string(), array(&[0.0, value, 1.0]));
        });
        assert_eq!(error, unsaved(&format!("dense/kernel is not finite: element 1 is {text}")));
    }
    assert_eq!(
        with(&|checkpoint| checkpoint.position.step = 5_000_000_000),
        unsaved("step is 5000000000, expected 0 to 2147483647")
    );
    assert_eq!(
        with(&|checkpoint| checkpoint.position.steps_per_epoch = 0),
        unsaved("steps_per_epoch is 0, expected 1 to 2147483647")
    );
    assert_eq!(
        with(&|checkpoint| checkpoint.position.batch = u32::MAX),
        unsaved("batch is 4294967295, expected 1 to 2147483647")
    );
    assert_eq!(
        with(&|checkpoint| checkpoint.variables.get_mut("bias").unwrap().bytes.truncate(7)),
        unsaved("bias has 7 bytes, its shape has 12")
    );
    assert_eq!(
        with(&|checkpoint| {
            checkpoint.variables.insert("__metadata__".to_string(), array(&[1.0]));
        }),
        unsaved("a variable is called `__metadata__`, which safetensors has for itself")
    );
    // No write goes through this, whatever asks for it, and the one before stays.
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("run.safetensors");
    checkpoint().write(&place).unwrap();
    let mut diverged = checkpoint();
    diverged.variables.insert("bias".to_string(), array(&[f32::NAN]));
    diverged.write(&place).unwrap_err();
    assert_eq!(Checkpoint::read(&place).unwrap(), checkpoint());
}

/// The same checks for a file with other contents and a correct hash.
#[test]
fn a_well_made_file_with_a_nan_or_a_step_beyond_counting_is_refused() {
    use sha2::Digest;
    let refused = |find: &[u8], replace: &[u8]| {
        let mut bytes = checkpoint().to_bytes(path()).unwrap();
        let at = bytes.windows(find.len()).rposition(|window| window == find).unwrap();
        bytes[at..at + find.len()].copy_from_slice(replace);
        let key = br#"\"sha256\":\""#;
        let hash = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
        bytes[hash..hash + 64].fill(b'0');
        let sha: String = sha2::Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        bytes[hash..hash + 64].copy_from_slice(sha.as_bytes());
        Checkpoint::from_bytes(path(), &bytes).unwrap_err().to_string()
    };
    let unsound = |fault: &str| {
        format!(
            "run.safetensors: not the checkpoint of a run: {fault}\n\
             help: go on from an earlier one; this file is left as it is"
        )
    };
    let second = 1f32.sin().to_le_bytes();
    let error = refused(&second, &f32::NAN.to_le_bytes());
    assert_eq!(error, unsound("dense/kernel is not finite: element 1 is NaN"));
    let error = refused(br#"\"batch\":32"#, br#"\"batch\":00"#);
    assert!(error.contains("not a bf16scope checkpoint"), "{error}");
    let error = refused(br#"\"steps_per_epoch\":44"#, br#"\"steps_per_epoch\":-4"#);
    assert!(error.contains("not a bf16scope checkpoint: invalid value: integer `-4`"), "{error}");
    let error = refused(br#"\"steps_per_epoch\":44,"#, br#"\"steps_per_epoch\":0 ,"#);
    assert_eq!(error, unsound("steps_per_epoch is 0, expected 1 to 2147483647"));
}

#[test]
fn what_is_no_file_is_an_error_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refused = |path: &Path, kind: &str| {
        let error = Checkpoint::read(path).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: cannot read the checkpoint", path.display()));
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.starts_with(&format!("not a regular file but {kind}\nhelp: ")), "{cause}");
    };
    refused(&pipe, "a pipe, which gives each byte once");
    refused(folder.path(), "a directory");
    refused(Path::new("/dev/zero"), "a character device");
}

#[test]
fn a_header_takes_no_more_memory_than_the_file_is_long() {
    // 16 MiB are promised, and 20 bytes there.
    let mut bytes = (16u64 << 20).to_le_bytes().to_vec();
    bytes.extend(b"{\"__metadata");
    assert_eq!(
        Checkpoint::from_bytes(path(), &bytes).unwrap_err().to_string(),
        "run.safetensors: the checkpoint is cut off: 20 bytes, expected at least 16777224 (its header)\n\
         help: copy it again, or go on from an earlier one; this file is left as it is"
    );
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(
        Checkpoint::from_bytes(path(), &bytes).unwrap_err().to_string(),
        "run.safetensors: not a safetensors file: its header would be 18446744073709551615 bytes, expected at most \
         16777216\nhelp: name a checkpoint that `bf16scope train` wrote; `bf16scope weights FILE` shows other files of weights"
    );
    // An array of half an EiB in a file of a few bytes, and a file that says it is longer than memory but takes no disk.
    let header = br#"{"x":{"dtype":"U8","shape":[576460752303423488],"data_offsets":[0,576460752303423488]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes(), &header[..]].concat();
    let message = Checkpoint::from_bytes(path(), &bytes).unwrap_err().to_string();
    assert!(
        message.starts_with("run.safetensors: the checkpoint is cut off: 95 bytes, expected 576460752303423583\n"),
        "{message}"
    );
    let folder = tempfile::tempdir().unwrap();
    let sparse = folder.path().join("sparse.safetensors");
    std::fs::File::create(&sparse).unwrap().set_len(1 << 42).unwrap();
    let message = Checkpoint::read(&sparse).unwrap_err().to_string();
    let start =
        format!("{}: cannot read the checkpoint: it is 4398046511104 bytes, and this machine has ", sparse.display());
    assert!(message.starts_with(&start), "{message}");
}
