//! The native half of the Python module `bf16scope`: modules, lowering and runs, as Python objects.
//!
//! It holds no logic of its own. Whatever takes time runs without the GIL, answers Ctrl-C, and turns a panic into an
//! exception. Errors become `bf16scope.Error`, whose help and causes are apart.

mod error;
mod module;
mod names;
mod work;

use pyo3::prelude::*;

/// The native half of `bf16scope`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::module::Module;

    #[pymodule_export]
    use super::module::policies;

    #[pymodule_export]
    use super::module::narrow_dtype;

    #[pymodule_export]
    use super::module::panic;

    #[pymodule_export]
    use super::module::Bytes;
}
