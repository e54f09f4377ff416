//! Files with a valid form and random content, as the targets `structured_*` of fuzz/ make them: reading gives a printable error,
//! or the entries as written. `BF16SCOPE_DRAWS=20000` makes more of them.

#[path = "../../fuzz/src/structured.rs"]
mod files;

use files::Draw;

use bf16scope::data::records::{Parquet, Records};
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::{Literal, verify};
use bf16scope::tensorflow::{Choice, Graph, lower, port};
use bf16scope::weights::{self, WeightsDType};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use std::fs;
use std::path::Path;

/// How many files of each kind are made.
fn n_draws() -> u64 {
    std::env::var("BF16SCOPE_DRAWS").map_or(400, |n| n.parse().unwrap())
}

/// Random bytes that determine the file; small values are frequent, as in real structure.
fn bytes(seed: u64) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(seed);
    let n = random.random_range(16..600);
    (0..n).map(|_| if random.random_bool(0.3) { random.random_range(0..4) } else { random.random() }).collect()
}

/// Every array of a file is an error, or as many bytes as its entry says.
fn look(path: &Path) -> bool {
    let Ok(file) = weights::open(path).map_err(|error| error.to_string()) else { return false };
    let _ = file.check().map_err(|error| error.to_string());
    for entry in file.entries() {
        let looked = file.look(&entry.name).map_err(|error| error.to_string());
        if let (Ok(_), WeightsDType::Array(_)) = (looked, entry.dtype) {
            let Ok(Literal::Array { bytes, .. }) = file.read(&entry.name) else {
                panic!("{} is looked at alone", entry.name)
            };
            assert_eq!(bytes.len() as u64, entry.n_bytes);
        }
    }
    true
}

#[test]
fn weights_of_any_content() {
    let folder = tempfile::tempdir().unwrap();
    let (mut n, mut n_opened) = (0, [0; 3]);
    for seed in 0..n_draws() {
        let drawn = bytes(seed);
        fs::write(folder.path().join("w.h5"), files::hdf5(&mut Draw(&drawn))).unwrap();
        fs::write(folder.path().join("w.pt"), files::torch(&mut Draw(&drawn))).unwrap();
        let mut draw = Draw(&drawn);
        fs::write(folder.path().join("b.index"), files::bundle_index(&mut draw)).unwrap();
        fs::write(folder.path().join("b.data-00000-of-00001"), [draw.0, &[0; 4096]].concat()).unwrap();
        for (kind, name) in ["w.h5", "w.pt", "b.index"].into_iter().enumerate() {
            n_opened[kind] += usize::from(look(&folder.path().join(name)));
            n += 1;
        }
    }
    assert_eq!(n, 3 * n_draws());
    // The forms are right: some are read.
    assert!(n_opened.iter().all(|n| *n > 0), "opened {n_opened:?} of {n}");
}

#[test]
fn parquet_of_any_schema() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    for seed in 0..n_draws() {
        fs::write(&path, files::parquet(&mut Draw(&bytes(seed)))).unwrap();
        match Parquet::open(std::slice::from_ref(&path), Some(&folder.path().join("cache"))) {
            Ok(records) => (0..records.n_records().min(3)).for_each(|index| drop(records.values(index, None))),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// A finding of the fuzz target `structured_parquet`: a file of some hundred bytes that claims many rows and has none.
#[test]
fn rows_that_are_not_there_are_not_written_to_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let head = b"\0\0\0\0\0?\0\0\r\0PP\xee\xf20?\x96F\xfc";
    let drawn = [&head[..], &[70; 10], &[6], &[70; 21], &[255; 3], &[106], &[70; 11], &[78]].concat();
    fs::write(&path, files::parquet(&mut Draw(&drawn))).unwrap();
    let Err(error) = Parquet::open(&[path], Some(&folder.path().join("cache"))) else { panic!("it is read") };
    assert!(error.to_string().contains("values are absent or damaged up to row"), "{error}");
}

#[test]
fn modules_of_any_instructions() {
    let mut n_decoded = 0;
    for seed in 0..10 * n_draws() {
        let Ok(module) = decode::from_bytes(&files::module(&mut Draw(&bytes(seed)))) else { continue };
        n_decoded += 1;
        if verify(&module).is_err() {
            continue;
        }
        let encoded = encode::to_bytes(&module).expect("a verified module encodes");
        let again = decode::from_bytes(&encoded).expect("what was encoded decodes");
        assert_eq!(encode::to_bytes(&again).unwrap(), encoded, "seed {seed}");
    }
    assert!(n_decoded > 0);
}

#[test]
fn graphs_of_any_nodes() {
    let (mut n_read, mut n_lowered) = (0, 0);
    for seed in 0..n_draws() {
        let bytes = files::graph(&mut Draw(&bytes(seed)));
        let Ok(graph) = Graph::read(&bytes, "graph").map_err(|error| error.to_string()) else { continue };
        n_read += 1;
        drop(format!("{:?}", port(&graph)));
        let choice = Choice { name: None, size_of: &|_, _| Some(2) };
        let Ok(lowered) = lower(&graph, &choice).map_err(|error| error.to_string()) else { continue };
        n_lowered += 1;
        verify(&lowered.module).unwrap_or_else(|errors| panic!("seed {seed}: {errors}"));
    }
    assert!(n_read > 0 && n_lowered > 0, "{n_read} are graphs, {n_lowered} become modules");
}
