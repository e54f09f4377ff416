//! The script's lines of a SavedModel's nodes, from the debug information that `save_debug_info=True` writes beside it.
//!
//! Source: `graph_debug_info.proto` and `graph_debug_info_builder.cc` of TensorFlow: a node's key is `NODE@FUNCTION`, and the
//! last frame of a stack is the innermost.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message as _;

use super::messages::GraphDebugInfo;
use super::{scan, schema};

/// The file in a SavedModel's folder.
pub(crate) const FILE: &str = "debug/saved_model_debug_info.pb";

/// Lines of a node at most, innermost first; the tracer writes as many.
const MAX_FRAMES: usize = 16;

/// Bytes of all lines at most: a small file may name a long path often.
const MAX_BYTES: usize = 256 << 20;

/// The debug information that some bytes hold; `None` if they are damaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<GraphDebugInfo> {
    scan::check(bytes, &schema::DEBUG_INFO).ok()?;
    GraphDebugInfo::decode(bytes).ok()
}

/// The nodes that debug information has lines of: node, function (empty for a node of the graph itself), lines.
pub(crate) fn places(info: &GraphDebugInfo) -> Vec<(&str, &str, Arc<[String]>)> {
    let mut traces: BTreeMap<u64, Arc<[String]>> = BTreeMap::new();
    let mut n_bytes = 0;
    for (id, trace) in &info.traces_by_id {
        let lines = lines(info, &trace.frame_id);
        n_bytes += lines.iter().map(String::len).sum::<usize>();
        if n_bytes > MAX_BYTES {
            break;
        }
        traces.insert(*id, lines);
    }
    let named = info.name_to_trace_id.iter().filter_map(|(key, id)| Some((key.as_str(), traces.get(id)?.clone())));
    named
        .map(|(key, lines)| {
            let (node, function) = key.split_once('@').unwrap_or((key, ""));
            (node, function, lines)
        })
        .collect()
}

/// The lines of a stack that are the user's, innermost first: `model.py:12`.
fn lines(info: &GraphDebugInfo, frames: &[u64]) -> Arc<[String]> {
    let line = |frame: &u64| {
        let frame = info.frames_by_id.get(frame)?;
        let file = info.files.get(usize::try_from(frame.file_index).ok()?)?;
        is_users(file).then(|| format!("{file}:{}", frame.line))
    };
    frames.iter().rev().filter_map(line).take(MAX_FRAMES).collect()
}

/// Whether a file is of the user's code: not of an installed package or of Python, and no name in angle brackets.
fn is_users(file: &str) -> bool {
    let is_installed = ["site-packages", "dist-packages", "/lib/python"].iter().any(|part| file.contains(part));
    !is_installed && !file.starts_with('<') && !file.is_empty()
}

#[cfg(test)]
mod tests;
