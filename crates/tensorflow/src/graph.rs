//! A TensorFlow graph: its nodes, its functions, and its file's signatures, collections and variables.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use prost::Message as _;

use super::debug_info;
use super::error::GraphError;
use super::messages::{
    CollectionDef, FunctionDef, GraphDebugInfo, GraphDef, MetaGraphDef, NodeDef, SavedModel, SignatureDef, VariableDef,
};
use super::node::{Edge, Node};
use super::outputs::index_of_output;
use super::scan::{self, ScanProblem};
use super::schema::{self, Schema};
use super::{kind::GraphKind, text};

/// Files above this size are refused.
const MAX_FILE: u64 = 512 << 20;

/// The nodes of a graph or of a function, with resolved inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// In the file's order, which need not be topological.
    pub nodes: Vec<Node>,
    by_name: HashMap<String, usize>,
}

impl Body {
    /// A body of nodes whose inputs are resolved; [`Body::find`] gives the last of several nodes with one name.
    pub(crate) fn new(nodes: Vec<Node>) -> Body {
        let by_name = nodes.iter().enumerate().map(|(idx, node)| (node.name.clone(), idx)).collect();
        Body { nodes, by_name }
    }

    /// The node with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The output that `name:1`, `name` or `^name` names.
    pub fn edge(&self, text: &str) -> Option<Edge> {
        let (name, output) = split(text.trim_start_matches('^'));
        Some(Edge { node: self.find(name)?, output })
    }
}

/// Splits `name:1` into the node's name and the output's index.
fn split(text: &str) -> (&str, usize) {
    let parts = text.rsplit_once(':').and_then(|(name, output)| Some((name, output.parse().ok()?)));
    parts.unwrap_or((text, 0))
}

/// A function of a graph's library. Its first nodes are its arguments, with the op `_Arg`.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its nodes.
    pub body: Body,
    /// How many of its first nodes are arguments.
    pub n_arguments: usize,
    /// The outputs that it returns.
    pub returns: Vec<Edge>,
    /// Nodes that run for their effects, such as assignments.
    pub effects: Vec<usize>,
}

/// The inputs and outputs of a SavedModel's function, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Tensors of the inputs, by name.
    pub inputs: BTreeMap<String, String>,
    /// Tensors of the outputs, by name.
    pub outputs: BTreeMap<String, String>,
}

/// A variable that one of the graph's collections lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableInfo {
    /// Its name, without `:0`.
    pub name: String,
    /// Whether it is trained.
    pub is_trainable: bool,
    /// The op that assigns its initial value.
    pub initializer: String,
}

/// A TensorFlow graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The file's name in messages.
    pub file: String,
    /// Its nodes.
    pub body: Body,
    /// Its functions.
    pub functions: BTreeMap<String, Function>,
    /// The functions that a SavedModel offers.
    pub signatures: BTreeMap<String, Signature>,
    /// Names of tensors and nodes by collection: `train_op`, `losses`.
    pub collections: BTreeMap<String, Vec<String>>,
    /// The variables that its collections hold, each once, in order.
    pub variables: Vec<VariableInfo>,
    /// TensorFlow's version; empty if the file does not record it.
    pub version: String,
}

impl Graph {
    /// The dims of the variables of its own body, by name; one whose dims are not known is left out.
    pub fn variable_dims(&self) -> BTreeMap<String, Vec<i64>> {
        let is_variable = |node: &&Node| matches!(node.op.as_str(), "VarHandleOp" | "VariableV2" | "Variable");
        let nodes = self.body.nodes.iter().filter(is_variable);
        nodes.filter_map(|node| Some((node.variable_name(), node.dims("shape")?))).collect()
    }

    /// Reads a graph from the bytes of a file; messages call it `file`.
    ///
    /// # Errors
    /// Bytes that hold no graph; a graph that is cut off, is too large, or reads nodes that it does not have.
    pub fn read(bytes: &[u8], file: &str) -> Result<Graph, GraphError> {
        let _span = tracing::info_span!("graph", n_bytes = bytes.len()).entered();
        let damaged = |message: &str| GraphError::Damaged { file: file.to_string(), message: message.to_string() };
        let kind = GraphKind::detect(bytes).ok_or_else(|| damaged(&no_graph(bytes)))?;
        let schema = kind.schema();
        let binary = match kind.is_text() {
            true => {
                let text = std::str::from_utf8(bytes).map_err(|_| damaged("the text is not UTF-8"))?;
                let binary = text::to_binary(text, schema);
                binary.map_err(|problem| GraphError::Text {
                    file: file.to_string(),
                    line: problem.line,
                    message: problem.message,
                })?
            }
            false => bytes.to_vec(),
        };
        checked(&binary, schema, file)?;
        let decoded = match kind {
            GraphKind::Graph | GraphKind::GraphText => GraphDef::decode(&binary[..])
                .map(|graph| MetaGraphDef { graph_def: Some(graph), ..MetaGraphDef::default() }),
            GraphKind::MetaGraph | GraphKind::MetaGraphText => MetaGraphDef::decode(&binary[..]),
            GraphKind::SavedModel | GraphKind::SavedModelText => SavedModel::decode(&binary[..]).map(serving),
        };
        let meta = decoded.map_err(|error| damaged(&format!("its message is broken: {error}")))?;
        drop(binary);
        Graph::from_meta(meta, file)
    }

    /// Reads a graph as [`Graph::read`] does, from a file or from a SavedModel's folder.
    ///
    /// # Errors
    /// As [`Graph::read`]; a file that cannot be read.
    pub fn open(path: &Path) -> Result<Graph, GraphError> {
        let in_folder = ["saved_model.pb", "saved_model.pbtxt"].map(|name| path.join(name));
        let path = in_folder.iter().find(|file| file.is_file()).map_or(path, |file| file.as_path());
        let file = path.display().to_string();
        let bytes = bf16scope_files::read(path, MAX_FILE)
            .map_err(|error| GraphError::Unread { file: file.clone(), message: error.to_string() })?;
        let mut graph = Graph::read(&bytes, &file)?;
        graph.read_places(path);
        Ok(graph)
    }

    /// Reads the script's lines of a SavedModel's nodes from the file of debug information beside it, if it has one; the
    /// SavedModel is the file `path`. Debug information that cannot be read is warned of.
    pub fn read_places(&mut self, path: &Path) {
        let is_saved_model =
            path.file_name().is_some_and(|name| name == "saved_model.pb" || name == "saved_model.pbtxt");
        let file = path.with_file_name(debug_info::FILE);
        if !is_saved_model || !file.is_file() {
            return;
        }
        let info = bf16scope_files::read(&file, MAX_FILE).map_err(|error| error.to_string());
        match info.and_then(|bytes| debug_info::decode(&bytes).ok_or_else(|| "it is damaged".to_string())) {
            Ok(info) => self.place_nodes(&info),
            Err(message) => tracing::warn!("{}: {message}; the script's lines are not shown", file.display()),
        }
    }

    /// Gives nodes the lines that debug information has of them. Lines that the graph records itself stay.
    fn place_nodes(&mut self, info: &GraphDebugInfo) {
        for (node, function, lines) in debug_info::places(info) {
            let body = match function {
                "" => Some(&mut self.body),
                function => self.functions.get_mut(function).map(|function| &mut function.body),
            };
            let node = body.and_then(|body| {
                let idx = body.find(node)?;
                body.nodes.get_mut(idx)
            });
            if let Some(node) = node.filter(|node| node.frames.is_empty()) {
                node.frames = lines;
            }
        }
    }

    fn from_meta(meta: MetaGraphDef, file: &str) -> Result<Graph, GraphError> {
        let GraphDef { node, library } = meta.graph_def.unwrap_or_default();
        if node.is_empty() {
            let message = "its graph has no nodes".to_string();
            return Err(GraphError::Damaged { file: file.to_string(), message });
        }
        let library = library.unwrap_or_default().function;
        let output_names = library.iter().filter_map(|function| function.signature.as_ref()).map(|signature| {
            (signature.name.clone(), signature.output_arg.iter().map(|output| output.name.clone()).collect())
        });
        let output_names: OutputNames = output_names.collect();
        let body = wired(node, &[], &output_names, file)?.0;
        let mut functions = BTreeMap::new();
        for function in library {
            let name = function.signature.as_ref().map(|signature| signature.name.clone()).unwrap_or_default();
            functions.insert(name, function_of(function, &output_names, file)?);
        }
        let signatures = meta.signature_def.into_iter().map(|(name, signature)| (name, signature_of(signature)));
        let variables = variables_of(&meta.collection_def);
        let collections = meta.collection_def.into_iter().filter_map(|(name, collection)| {
            Some((name, collection.node_list?.value)).filter(|(_, values)| !values.is_empty())
        });
        Ok(Graph {
            file: file.to_string(),
            body,
            functions,
            signatures: signatures.collect(),
            collections: collections.collect(),
            variables,
            version: meta.meta_info_def.unwrap_or_default().tensorflow_version,
        })
    }

    /// The names of the TPU programs that `tpu.replicate` made in the graph.
    pub(crate) fn clusters(&self) -> BTreeSet<&str> {
        self.body.nodes.iter().map(Node::cluster).filter(|cluster| !cluster.is_empty()).collect()
    }

    /// The names in a collection; empty if the graph has no such collection.
    pub fn collection(&self, name: &str) -> &[String] {
        self.collections.get(name).map_or(&[], Vec::as_slice)
    }
}

/// Describes bytes that hold no graph, and lists the formats that are read.
fn no_graph(bytes: &[u8]) -> String {
    const SHOWN: usize = 24;
    let start = &bytes[..bytes.len().min(SHOWN)];
    let begins = match std::str::from_utf8(start) {
        _ if bytes.is_empty() => "it is empty".to_string(),
        Ok(text) if text.chars().all(|c| !c.is_control() || c.is_whitespace()) => {
            format!("it holds no graph of TensorFlow: it is text that begins {:?}", text.trim())
        }
        _ => {
            let hex: Vec<String> = start.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("it holds no graph of TensorFlow: it begins with the bytes {}", hex.join(" "))
        }
    };
    begins + "; expected a Saver's .meta, a SavedModel's saved_model.pb, a frozen .pb, or one of them as .pbtxt"
}

fn checked(bytes: &[u8], schema: &'static Schema, file: &str) -> Result<(), GraphError> {
    scan::check(bytes, schema).map_err(|problem| refused(problem, schema, file.to_string()))
}

fn refused(problem: ScanProblem, schema: &Schema, file: String) -> GraphError {
    match problem {
        ScanProblem::Large => GraphError::Large { file, limit: scan::MAX_BYTES },
        ScanProblem::Wire => {
            GraphError::Damaged { file, message: format!("it begins as a {} and is cut off or damaged", schema.name) }
        }
        ScanProblem::Deep => GraphError::Damaged { file, message: "its messages nest too deep".to_string() },
    }
}

/// A SavedModel's graph with the tag `serve`, or its first graph.
fn serving(model: SavedModel) -> MetaGraphDef {
    let mut graphs = model.meta_graphs;
    let is_serving = |graph: &MetaGraphDef| {
        graph.meta_info_def.as_ref().is_some_and(|info| info.tags.iter().any(|tag| tag == "serve"))
    };
    let at = graphs.iter().position(is_serving).unwrap_or(0);
    if graphs.is_empty() { MetaGraphDef::default() } else { graphs.swap_remove(at) }
}

fn signature_of(signature: SignatureDef) -> Signature {
    let names = |infos: BTreeMap<String, super::messages::TensorInfo>| {
        infos.into_iter().map(|(name, info)| (name, info.name)).filter(|(_, tensor)| !tensor.is_empty()).collect()
    };
    Signature { inputs: names(signature.inputs), outputs: names(signature.outputs) }
}

fn variables_of(collections: &BTreeMap<String, CollectionDef>) -> Vec<VariableInfo> {
    let mut all: Vec<VariableInfo> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for collection in ["variables", "trainable_variables", "model_variables", "moving_average_variables"] {
        let values = collections.get(collection).and_then(|collection| collection.bytes_list.as_ref());
        for bytes in values.iter().flat_map(|values| &values.value) {
            let Ok(def) = VariableDef::decode(&bytes[..]) else { continue };
            let name = split(&def.variable_name).0.to_string();
            let is_trainable = collection == "trainable_variables";
            let at = *known.entry(name.clone()).or_insert(all.len());
            if at == all.len() {
                let initializer = def.initializer_name.trim_start_matches('^').to_string();
                all.push(VariableInfo { name, is_trainable, initializer });
            } else {
                all[at].is_trainable |= is_trainable;
            }
        }
    }
    all
}

/// The names of functions' outputs, by function: a node whose op is a function has these.
type OutputNames = HashMap<String, Vec<String>>;

/// Nodes with resolved inputs, and the number of arguments. A function's `arguments` become the first nodes.
fn wired(
    defs: Vec<NodeDef>,
    arguments: &[String],
    output_names: &OutputNames,
    file: &str,
) -> Result<(Body, usize), GraphError> {
    let argument = |name: &String| NodeDef { name: name.clone(), op: "_Arg".to_string(), ..NodeDef::default() };
    let mut nodes: Vec<Node> = arguments.iter().map(argument).map(Node::from_def).collect();
    let mut inputs: Vec<Vec<String>> = vec![Vec::new(); nodes.len()];
    for mut def in defs {
        inputs.push(std::mem::take(&mut def.input));
        nodes.push(Node::from_def(def));
    }
    let mut by_name = HashMap::with_capacity(nodes.len());
    for (idx, node) in nodes.iter().enumerate() {
        if by_name.insert(node.name.clone(), idx).is_some() {
            let message = format!("two of its nodes are called `{}`", node.name);
            return Err(GraphError::Damaged { file: file.to_string(), message });
        }
    }
    let mut body = Body { nodes, by_name };
    for (idx, names) in inputs.into_iter().enumerate() {
        for name in names {
            let is_control = name.starts_with('^');
            let Some(edge) = body.resolve(&name, output_names) else {
                let message = format!("node `{}` reads `{name}`, and there is no such node", body.nodes[idx].name);
                return Err(GraphError::Damaged { file: file.to_string(), message });
            };
            match is_control {
                true => body.nodes[idx].controls.push(edge.node),
                false => body.nodes[idx].inputs.push(edge),
            }
        }
    }
    Ok((body, arguments.len()))
}

impl Body {
    /// The output that an input names: `node:1` in a graph, `node:output:1` in a function.
    fn resolve(&self, text: &str, output_names: &OutputNames) -> Option<Edge> {
        let text = text.trim_start_matches('^');
        if let Some(node) = self.find(text) {
            return Some(Edge { node, output: 0 });
        }
        let mut parts = text.rsplitn(3, ':');
        let (last, middle, first) = (parts.next()?, parts.next()?, parts.next());
        let number: usize = last.parse().ok()?;
        match first {
            None => Some(Edge { node: self.find(middle)?, output: number }),
            Some(name) => {
                let node = self.find(name)?;
                let op = self.nodes[node].op.as_str();
                let first = match output_names.get(op) {
                    Some(names) => names.iter().position(|name| name == middle)?,
                    None => index_of_output(op, middle)?,
                };
                Some(Edge { node, output: first.checked_add(number)? })
            }
        }
    }
}

fn function_of(def: FunctionDef, output_names: &OutputNames, file: &str) -> Result<Function, GraphError> {
    let signature = def.signature.unwrap_or_default();
    let arguments: Vec<String> = signature.input_arg.iter().map(|arg| arg.name.clone()).collect();
    let (body, n_arguments) = wired(def.node_def, &arguments, output_names, file)?;
    let missing = |what: &str| GraphError::Damaged {
        file: file.to_string(),
        message: format!("function `{}` returns `{what}`, which none of its nodes gives", signature.name),
    };
    let returned = |output: &super::messages::ArgDef| {
        let tensor = def.ret.get(&output.name).ok_or_else(|| missing(&output.name))?;
        body.resolve(tensor, output_names).ok_or_else(|| missing(tensor))
    };
    let returns = signature.output_arg.iter().map(returned).collect::<Result<_, _>>()?;
    let effects = def.control_ret.values().filter_map(|name| body.find(name)).collect();
    Ok(Function { body, n_arguments, returns, effects })
}

impl GraphKind {
    pub(crate) fn schema(self) -> &'static Schema {
        match self {
            GraphKind::Graph | GraphKind::GraphText => &schema::GRAPH,
            GraphKind::MetaGraph | GraphKind::MetaGraphText => &schema::META_GRAPH,
            GraphKind::SavedModel | GraphKind::SavedModelText => &schema::SAVED_MODEL,
        }
    }
}

#[cfg(test)]
mod tests;
