//! What several fuzz targets share.

pub mod structured;

use bf16scope::data::records::Records;
use bf16scope::hlo::Module;

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
