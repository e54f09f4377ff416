//! A lint for Python training scripts, read without Python: it finds mistakes that show in the source text without dtypes.
//!
//! It knows tokens, logical lines and indentation, and no grammar, so that Python 2's `print` and half a file are read too.
//! Imported modules are listed, not followed.

mod rules;
mod tokens;

pub use rules::{Finding, ScriptReading, SequentialModel, read_script};
