//! Any bytes as each of the files that users write or that other tools make: a policy and an experiment (YAML), data
//! (CSV, IDX), arrays (.npz). An error, or a value; an error prints.
#![no_main]

use std::path::Path;

use bf16scope::data::npz::NpzReader;
use bf16scope::data::{Arrays, DataError, Feature, Loader, Source as _, csv, idx, npz};
use bf16scope::hlo::DType;
use bf16scope::document;
use bf16scope::passes::amp::Policy;
use bf16scope::experiment::Experiment;
use libfuzzer_sys::fuzz_target;

fn read_arrays(path: &Path) -> Result<(), String> {
    let mut reader = NpzReader::open(path).map_err(|error| error.to_string())?;
    let names: Vec<String> = reader.names().map(str::to_string).collect();
    for name in names {
        if let Some(entry) = reader.entry(&name).map_err(|error| error.to_string())? {
            entry.read().map_err(|error| error.to_string())?;
        }
        check(npz::read_arrays(path, &[("x", &name)]));
    }
    Ok(())
}

/// Batches of whatever a source holds: an error, or every example once.
fn check(source: Result<Arrays, DataError>) {
    let Ok(source) = source.map_err(|error| error.to_string()) else { return };
    let features = source.arrays().iter().map(|info| match info.dtype.is_float() {
        true => Feature::compute(&info.name, info.dims.clone()),
        false => Feature::exact(&info.name, info.dtype, info.dims.clone()),
    });
    let features: Vec<Feature> = features.collect();
    let loader = Loader::new(&source, &features, DType::BF16, 1, 7).expect("these are its arrays");
    match loader.check() {
        Ok(()) => assert!(loader.in_order().chain(loader.epoch(0)).take(8).all(|batch| batch.is_ok())),
        // Checks of the whole data set before training are checks of every batch, too.
        Err(error) => {
            drop(error.to_string());
            assert!(loader.in_order().any(|batch| batch.is_err()));
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = document::from_str::<Policy>("policy.yaml", text).map_err(|error| error.to_string());
        let _ = document::from_str::<Experiment>("experiment.yaml", text).map_err(|error| error.to_string());
    }
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), bytes).expect("it is writable");
    let _ = read_arrays(file.path());
    let features = [Feature::compute("x", [2]), Feature::exact("y", DType::S8, []).label().below(3)];
    check(csv::read(file.path(), &features));
    check(idx::read_arrays(&[("x", file.path())]));
});
