//! What several fuzz targets share.

use bf16scope::hlo::Module;

/// The module with every instruction's layout said: text and protos are written with all of them, so one that was left
/// out comes back as the row-major one it means.
pub fn with_layouts(mut module: Module) -> Module {
    for instruction in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        instruction.shape = instruction.shape.with_default_layout();
    }
    module
}
