//! Graphs of TensorFlow whose ops, inputs and attributes are drawn: ported and lowered, or refused in words.
#![no_main]

use bf16scope_fuzz::look_at_graph;
use bf16scope_fuzz::structured::{self, Draw};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| look_at_graph(&structured::graph(&mut Draw(bytes))));
