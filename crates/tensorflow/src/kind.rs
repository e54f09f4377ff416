//! Detects which kind of graph file some bytes are, by their first fields.
//!
//! Source: the tags of `SavedModel`, `MetaGraphDef`, `GraphDef` and `NodeDef`.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::text::first_field;

/// A kind of file that holds a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphKind {
    /// A `GraphDef`, such as a frozen graph.
    Graph,
    /// A `GraphDef` as text.
    GraphText,
    /// A `MetaGraphDef`: a Saver's `.meta`.
    MetaGraph,
    /// A `MetaGraphDef` as text.
    MetaGraphText,
    /// A `SavedModel`.
    SavedModel,
    /// A `SavedModel` as text.
    SavedModelText,
}

/// How many bytes of a text are looked at.
const HEAD: usize = 64 << 10;

impl GraphKind {
    /// The kind of graph that these bytes hold; `None` if they hold something else.
    pub fn detect(bytes: &[u8]) -> Option<GraphKind> {
        binary(bytes).or_else(|| text(bytes))
    }

    /// Whether the file is text.
    pub fn is_text(self) -> bool {
        matches!(self, GraphKind::GraphText | GraphKind::MetaGraphText | GraphKind::SavedModelText)
    }
}

fn binary(bytes: &[u8]) -> Option<GraphKind> {
    let (tag, wire_type, first, after) = field(bytes)?;
    match (tag, wire_type) {
        // saved_model_schema_version, then meta_graphs.
        (1, WireType::Varint) => {
            let (tag, wire_type, graph, _) = field(after)?;
            let is_meta = (tag, wire_type) == (2, WireType::LengthDelimited) && is_meta_graph(graph);
            is_meta.then_some(GraphKind::SavedModel)
        }
        (1, WireType::LengthDelimited) if is_node(first) => Some(GraphKind::Graph),
        (1 | 2, WireType::LengthDelimited) if is_meta_graph(bytes) => Some(GraphKind::MetaGraph),
        // A SavedModel whose version is 0 is written without it.
        (2, WireType::LengthDelimited) if is_meta_graph(first) => Some(GraphKind::SavedModel),
        _ => None,
    }
}

/// The first field of a message: tag, type, content, and what comes after it.
fn field(bytes: &[u8]) -> Option<(u32, WireType, &[u8], &[u8])> {
    let mut rest = bytes;
    let (tag, wire_type) = decode_key(&mut rest).ok()?;
    if wire_type != WireType::LengthDelimited {
        let before = rest;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default()).ok()?;
        return Some((tag, wire_type, &before[..before.len() - rest.len()], rest));
    }
    let n = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
    // The end may be missing: the reader reports that.
    let n = n.min(rest.len());
    Some((tag, wire_type, &rest[..n], &rest[n..]))
}

/// Whether a message is a node: a name, then an op.
fn is_node(bytes: &[u8]) -> bool {
    let Some((1, WireType::LengthDelimited, name, after)) = field(bytes) else { return false };
    let Some((2, WireType::LengthDelimited, op, _)) = field(after) else { return false };
    let is_name = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_graphic());
    let is_op =
        |bytes: &[u8]| bytes.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_') && is_name(bytes);
    is_name(name) && is_op(op)
}

/// Whether a message holds a graph as its second field, after its `meta_info_def`.
fn is_meta_graph(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some((tag, WireType::LengthDelimited, content, after)) = field(rest) {
        match tag {
            1 => rest = after,
            2 => return field(content).is_some_and(|(tag, _, node, _)| tag == 1 && is_node(node)),
            _ => return false,
        }
    }
    false
}

fn text(bytes: &[u8]) -> Option<GraphKind> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let head = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&head[..error.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    match first_field(head)? {
        "node" | "library" | "versions" => Some(GraphKind::GraphText),
        "meta_info_def" | "graph_def" | "saver_def" => Some(GraphKind::MetaGraphText),
        "saved_model_schema_version" | "meta_graphs" => Some(GraphKind::SavedModelText),
        _ => None,
    }
}
