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
mod tests {
    use super::*;
    use crate::messages::{FileLine, StackTrace};
    use crate::{Graph, Node};

    /// A SavedModel whose function `served` has the node `y`, in a folder with these bytes as its debug information.
    fn opened(info: &[u8]) -> Graph {
        let folder = tempfile::tempdir().unwrap();
        let text = "saved_model_schema_version: 1 meta_graphs { graph_def {
            node { name: \"x\" op: \"Placeholder\" } node { name: \"call\" op: \"served\" input: \"x\" }
            library { function { signature { name: \"served\" input_arg { name: \"x\" } output_arg { name: \"z\" } }
                node_def { name: \"y\" op: \"Neg\" input: \"x\" } ret { key: \"z\" value: \"y:y:0\" } } } } }";
        std::fs::write(folder.path().join("saved_model.pbtxt"), text).unwrap();
        std::fs::create_dir(folder.path().join("debug")).unwrap();
        std::fs::write(folder.path().join(FILE), info).unwrap();
        Graph::open(folder.path()).unwrap()
    }

    fn y(graph: &Graph) -> &Node {
        let body = &graph.functions["served"].body;
        &body.nodes[body.find("y").unwrap()]
    }

    #[test]
    fn nodes_of_a_saved_model_have_the_lines_of_its_debug_information() {
        let files = ["/home/me/train.py", "/usr/lib/python3.11/threading.py", "/home/me/model.py", "<string>"];
        let frames = [(0, 40), (1, 5), (2, 12), (3, 1)];
        let frame = |(id, (file_index, line))| (id, FileLine { file_index, line });
        let info = GraphDebugInfo {
            files: files.map(str::to_string).to_vec(),
            frames_by_id: (0..).zip(frames).map(frame).collect(),
            name_to_trace_id: [("y@served".to_string(), 7), ("y@other".to_string(), 7), ("x".to_string(), 9)].into(),
            traces_by_id: [(7, StackTrace { frame_id: vec![0, 1, 2, 3, 99] })].into(),
        };
        let graph = opened(&info.encode_to_vec());
        assert_eq!(y(&graph).source(), Some("/home/me/model.py:12"));
        assert_eq!(y(&graph).callers(), ["/home/me/train.py:40"]);
        assert_eq!(graph.body.nodes[0].source(), None);
    }

    #[test]
    fn damaged_debug_information_leaves_the_graph_as_it_is() {
        assert_eq!(y(&opened(b"\x0a\xff")).source(), None);
    }
}
