//! Lines of debug information reach the nodes that they are of.

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
