//! Nodes of a graph, and typed access to their attributes by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::dtypes;
use super::messages::{AttrKind, AttrValue, ListValue, NodeDef, TensorProto, TensorShape};
use bf16scope_hlo::DType;

/// An output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The node's index in its body.
    pub node: usize,
    /// Which of its outputs.
    pub output: usize,
}

/// A node: an op with its inputs and attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its name, unique in its body.
    pub name: String,
    /// The op: `Conv2D`, or a function's name.
    pub op: String,
    /// Its inputs, in order.
    pub inputs: Vec<Edge>,
    /// Nodes that run before it.
    pub controls: Vec<usize>,
    pub(crate) attrs: BTreeMap<String, AttrValue>,
    /// The lines of the script that made it, innermost first: `model.py:12`. Nodes of one line share them.
    pub(crate) frames: Arc<[String]>,
}

/// The attribute in which a tracer stores the lines that made a node, innermost first: a list, or the innermost one alone.
const SOURCE: &str = "_bf16scope_source";

/// The attribute that names the TPU program a node is in.
const CLUSTER: &str = "_tpu_replicate";

impl Node {
    pub(crate) fn from_def(mut def: NodeDef) -> Node {
        let frames = match def.attr.remove(SOURCE).and_then(|attr| attr.value) {
            Some(AttrKind::S(line)) => vec![line],
            Some(AttrKind::List(list)) => list.s,
            _ => Vec::new(),
        };
        let frames = frames.into_iter().filter_map(|line| String::from_utf8(line).ok());
        Node {
            name: def.name,
            op: def.op,
            inputs: Vec::new(),
            controls: Vec::new(),
            attrs: def.attr,
            frames: frames.filter(|line| !line.is_empty()).collect(),
        }
    }

    pub(crate) fn kind(&self, name: &str) -> Option<&AttrKind> {
        self.attrs.get(name)?.value.as_ref()
    }

    /// An integer attribute.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.kind(name)? {
            AttrKind::I(value) => Some(*value),
            _ => None,
        }
    }

    /// A float attribute.
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.kind(name)? {
            AttrKind::F(value) => Some(*value),
            _ => None,
        }
    }

    /// A boolean attribute; `false` if it is not set.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.kind(name), Some(AttrKind::B(true)))
    }

    /// A string attribute; empty if it is not set or not UTF-8.
    pub fn text(&self, name: &str) -> &str {
        match self.kind(name) {
            Some(AttrKind::S(bytes)) => std::str::from_utf8(bytes).unwrap_or_default(),
            _ => "",
        }
    }

    /// TensorFlow's number of a dtype attribute.
    pub(crate) fn type_number(&self, name: &str) -> Option<i32> {
        match self.kind(name)? {
            AttrKind::Type(number) => Some(*number),
            _ => None,
        }
    }

    /// A dtype attribute, if HLO has that dtype.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        dtypes::hlo(self.type_number(name)?)
    }

    pub(crate) fn list(&self, name: &str) -> Option<&ListValue> {
        match self.kind(name)? {
            AttrKind::List(list) => Some(list),
            _ => None,
        }
    }

    /// A list of integers; empty if it is not set.
    pub fn ints(&self, name: &str) -> &[i64] {
        self.list(name).map_or(&[], |list| &list.i)
    }

    /// The name of the function that an attribute holds.
    pub fn function(&self, name: &str) -> Option<&str> {
        match self.kind(name)? {
            AttrKind::Func(func) => Some(&func.name),
            _ => None,
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&TensorProto> {
        match self.kind(name)? {
            AttrKind::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The dims of a shape attribute, -1 for each unknown one; `None` if the rank is unknown.
    pub fn dims(&self, name: &str) -> Option<Vec<i64>> {
        match self.kind(name)? {
            AttrKind::Shape(shape) => dims_of(shape),
            _ => None,
        }
    }

    /// The name of a variable's node: a resource's `shared_name` if it has one, else the node's name.
    pub(crate) fn variable_name(&self) -> String {
        let shared = self.text("shared_name");
        if self.op == "VarHandleOp" && !shared.is_empty() { shared.to_string() } else { self.name.clone() }
    }

    /// The line of the script that made the node, if the graph records it: `model.py:12`.
    pub fn source(&self) -> Option<&str> {
        self.frames.first().map(String::as_str)
    }

    /// The lines that led to [`Node::source`], innermost first.
    pub fn callers(&self) -> &[String] {
        self.frames.get(1..).unwrap_or_default()
    }

    /// The name of the TPU program that the node is in; empty for a node of the host.
    pub(crate) fn cluster(&self) -> &str {
        self.text(CLUSTER)
    }

    /// The source in brackets, or nothing.
    pub(crate) fn place(&self) -> String {
        self.source().map(|source| format!(" ({source})")).unwrap_or_default()
    }
}

/// The dims of a shape, as [`Node::dims`] gives them.
pub(crate) fn dims_of(shape: &TensorShape) -> Option<Vec<i64>> {
    let dims = shape.dim.iter().map(|dim| if dim.size < 0 { -1 } else { dim.size }).collect();
    (!shape.unknown_rank).then_some(dims)
}
