//! Other libraries' objects and ours, both ways. `xla`: xla-rs's, with the feature of that name.
//!
//! This room converts; it does not compile or run. A module that goes out is verified first, because what takes it
//! checks some things by aborting the process.

#[cfg(feature = "xla")]
pub mod xla;
