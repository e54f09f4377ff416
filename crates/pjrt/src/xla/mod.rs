//! xla-rs as a back end: `xla::PjRtClient::cpu()`, XLA's CPU client in this process, behind [`Client`](super::Client).
//!
//! Built with the feature `xla` only. Operations that xla-rs 0.4.3 lacks (several devices, XLA's flags, memory
//! statistics, costs, the optimized program, addresses) are refused by name
//! ([`PjrtErrorKind::Unsupported`](super::PjrtErrorKind::Unsupported)). Differences from a plugin are corrected here,
//! some of them in the program (`rewrite`):
//!
//! - It compiles with XLA's process-wide flags, so excess precision is a property of the process.
//!   [`prepare_environment`](super::prepare_environment) turns it off before XLA reads them; the effect is measured
//!   when a client is made, and options that contradict it are refused.
//! - It donates every argument that the program aliases or names as a donor. One that the caller keeps is copied first.
//!
//! Source: xla-rs 0.4.3, `xla_rs/xla_rs.cc`.

mod arrays;
mod backend;
mod client;
mod dtypes;
mod error;
mod rewrite;
mod wire;

pub use dtypes::{dtype_of, element_type};
pub use wire::{from_bytes, to_bytes};

pub(crate) use error::failed;

pub use xla;
