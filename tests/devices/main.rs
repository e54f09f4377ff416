//! Plugins, clients and buffers: the PJRT layer on real plugins, and on xla-rs.

#[path = "../support/examples.rs"]
mod examples;
#[path = "../support/first.rs"]
mod first;

#[path = "../support/alone.rs"]
mod alone;
#[path = "../support/binary.rs"]
mod binary;
mod cdylib;
mod faults;
mod hosts;
mod pjrt;
mod pjrt_handles;
mod pjrt_plugins;
#[path = "../run/mod.rs"]
mod run;
mod serialized;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "xla")]
mod xla_rs;
#[cfg(feature = "xla")]
mod xla_rs_digits;
