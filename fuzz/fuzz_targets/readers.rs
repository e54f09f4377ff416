//! Any bytes as each of the files that users write or that other tools make: a policy and an experiment (YAML), data
//! (CSV), arrays (.npz). An error, or a value; an error prints.
#![no_main]

use std::path::Path;

use bf16scope::data::npz::NpzReader;
use bf16scope::data::{CsvSpec, Dataset};
use bf16scope::models::yaml;
use bf16scope::passes::amp::Policy;
use bf16scope::train::Experiment;
use libfuzzer_sys::fuzz_target;

fn read_arrays(path: &Path) -> Result<(), String> {
    let mut reader = NpzReader::open(path).map_err(|error| error.to_string())?;
    let names: Vec<String> = reader.names().map(str::to_string).collect();
    for name in names {
        if let Some(entry) = reader.entry(&name).map_err(|error| error.to_string())? {
            entry.read().map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = yaml::from_str::<Policy>("policy.yaml", text).map_err(|error| error.to_string());
        let _ = yaml::from_str::<Experiment>("experiment.yaml", text).map_err(|error| error.to_string());
    }
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), bytes).expect("it is writable");
    let _ = read_arrays(file.path());
    let spec = CsvSpec { feature_dims: vec![2], n_classes: 3, scale: 1.0 };
    let _ = Dataset::read_csv(file.path(), &spec).map_err(|error| error.to_string());
});
