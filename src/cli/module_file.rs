//! Modules from files that a user names: [`study::module_file`], with this program as the child that converts StableHLO.

use std::path::Path;
use std::sync::OnceLock;

use super::child::this_program;
use crate::hlo::Module;
use crate::pjrt::Setup;
use crate::study::{Converter, StudyError, module_file};

pub(super) use crate::study::module_file::{check, compiled_already, is_model, is_module, refuse_other_folders};

/// What converts StableHLO; set once, by the arguments.
static CONVERTER: OnceLock<Converter> = OnceLock::new();

/// Says where the converter of StableHLO comes from. The first word counts.
pub(super) fn convert_with(setup: Setup) {
    drop(CONVERTER.set(Converter { setup, child: this_program() }));
}

/// What converts StableHLO.
pub(super) fn converter() -> &'static Converter {
    CONVERTER.get_or_init(|| Converter { setup: Setup::from_env(), child: this_program() })
}

/// Reads, decodes and verifies a module.
pub(super) fn load(path: &Path) -> Result<Module, StudyError> {
    module_file::load(path, converter())
}

/// As [`load`], but does not verify.
pub(super) fn decode(path: &Path) -> Result<Module, StudyError> {
    module_file::decode(path, converter())
}
