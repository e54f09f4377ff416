//! Conversion between other libraries' objects and ours. `xla`: xla-rs's, with the feature of that name.
//!
//! This module converts; it does not compile or run. An outgoing module is verified first, because its consumer checks
//! some rules by aborting the process.

#[cfg(feature = "xla")]
pub mod xla;
