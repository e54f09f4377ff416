//! Any bytes as a TensorFlow graph: an error, which prints, or a graph that is ported and lowered, or refused in words.
#![no_main]

use bf16scope_fuzz::look_at_graph;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| look_at_graph(bytes));
