//! Code that several fuzz targets share.

pub mod structured;

use std::path::Path;

use bf16scope::data::records::Records;
use bf16scope::hlo::{Literal, Module, verify};
use bf16scope::tensorflow::{Choice, Graph, lower, port};
use bf16scope::weights::{self, WeightsDType};

/// The module with every instruction's layout said: text and protos are written with all of them, so one that was left
/// out comes back as the row-major one it means.
pub fn with_layouts(mut module: Module) -> Module {
    for instruction in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        instruction.shape = instruction.shape.with_default_layout();
    }
    module
}

/// Reads the first records, whatever is in them.
pub fn look_at(records: &dyn Records) {
    for index in 0..records.n_records().min(8) {
        match records.values(index, None) {
            Ok(values) => drop(format!("{values:?}")),
            Err(error) => drop(error.to_string()),
        }
        drop(records.place(index));
    }
    drop(format!("{:?}", records.classes()));
}

/// Reads all arrays of a file of weights: each is an error, which prints, or as many bytes as its entry says.
///
/// # Panics
///
/// If an array is listed but not read, or has another number of bytes; libFuzzer reports it.
pub fn look_at_weights(path: &Path) {
    let Ok(file) = weights::open(path).map_err(|error| error.to_string()) else { return };
    let _ = file.check().map_err(|error| error.to_string());
    for entry in file.entries() {
        let looked = file.look(&entry.name).map_err(|error| error.to_string());
        if let (Ok(_), WeightsDType::Array(_)) = (looked, entry.dtype) {
            let literal = file.read(&entry.name).unwrap_or_else(|error| panic!("looked at but not read: {error}"));
            let Literal::Array { bytes, .. } = literal else { panic!("{} is no array", entry.name) };
            assert_eq!(bytes.len() as u64, entry.n_bytes);
        }
    }
}

/// Reads, ports and lowers a graph of TensorFlow: each step is an error, which prints, or gives what it should.
///
/// # Panics
///
/// If a graph becomes a module that does not verify; libFuzzer reports it.
pub fn look_at_graph(bytes: &[u8]) {
    let Ok(graph) = Graph::read(bytes, "graph").map_err(|error| error.to_string()) else { return };
    drop(format!("{:?}", port(&graph)));
    let choice = Choice { name: None, size_of: &|_, _| Some(2) };
    let Ok(lowered) = lower(&graph, &choice).map_err(|error| error.to_string()) else { return };
    verify(&lowered.module).unwrap_or_else(|errors| panic!("a module that does not verify: {errors}"));
}
