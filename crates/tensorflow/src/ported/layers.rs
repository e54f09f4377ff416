//! The forward part of a graph as lines of `kind: layers`: an op, or a few that belong together, for each.

use std::collections::{BTreeMap, HashSet};

use super::symbols::{Symbol, Symbols, shortest};
use super::{Note, Notes, region};
use crate::graph::Graph;
use crate::node::{Edge, Node};
use bf16scope_hlo::DType;

/// A network in lines.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct NetworkPort {
    /// Inputs: name, dims without the batch, and whether they are whole numbers.
    pub inputs: Vec<(String, Vec<i64>, bool)>,
    /// Layers, in order.
    pub layers: Vec<LayerLine>,
    /// The layer that the loss reads.
    pub output: String,
    /// The loss, as YAML calls it; empty where it has no word.
    pub loss: String,
    /// What of the labels is smoothed.
    pub label_smoothing: f64,
    /// The batch, where the graph says it.
    pub batch: Option<i64>,
    /// The variables that layers have, by the graph's names, with their dims.
    pub variables: BTreeMap<String, Vec<i64>>,
}

/// A layer: its kind and options, as YAML has them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerLine {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// What stands behind the kind; may be empty.
    pub first: String,
    /// Further options.
    pub options: Vec<(&'static str, String)>,
    /// What it reads.
    pub reads: Vec<String>,
    /// The graph's node.
    pub node: String,
}

/// A network on the way.
struct Porting<'g, 'n> {
    symbols: Symbols<'g>,
    port: NetworkPort,
    notes: &'n mut Notes,
    taken: HashSet<String>,
    /// Layers by name.
    at: BTreeMap<String, usize>,
    n_readers: BTreeMap<Edge, usize>,
}

/// The network that a loss is of; without a loss, of what nothing reads.
pub(super) fn network(graph: &Graph, loss: Option<usize>, notes: &mut Notes) -> NetworkPort {
    let Some(end) = logits(graph, loss) else {
        let text = "no loss of logits is in the graph, so it is not known where its network ends";
        notes.missing.push(Note::new(graph, loss, text, "name the loss in the collection `losses`, as tf.losses does"));
        return NetworkPort::default();
    };
    let mut n_readers = BTreeMap::new();
    for node in graph.body.nodes.iter().filter(|node| !region::is_backward(&node.name)) {
        node.inputs.iter().for_each(|edge| *n_readers.entry(*edge).or_default() += 1);
    }
    let mut porting = Porting {
        symbols: Symbols::new(graph),
        port: NetworkPort {
            loss: end.loss.to_string(),
            label_smoothing: smoothing(graph, end.labels),
            ..NetworkPort::default()
        },
        notes,
        taken: HashSet::new(),
        at: BTreeMap::new(),
        n_readers,
    };
    for idx in in_order(graph, end.logits.node) {
        porting.node(idx);
    }
    match porting.symbols.of_edge.get(&porting.symbols.behind_layers(end.logits)) {
        Some(Symbol::Layer(name)) => porting.port.output = name.clone(),
        _ => porting.port.layers.clear(),
    }
    porting.port
}

/// Where a network ends.
struct End {
    logits: Edge,
    labels: Option<Edge>,
    loss: &'static str,
}

fn logits(graph: &Graph, loss: Option<usize>) -> Option<End> {
    let nodes = &graph.body.nodes;
    let before: Vec<usize> = match loss {
        Some(loss) => {
            let mut all: Vec<usize> = region::ancestors(graph, [loss]).into_iter().collect();
            all.sort_unstable();
            all
        }
        None => (0..nodes.len()).collect(),
    };
    let forward = |idx: &&usize| !region::is_backward(&nodes[**idx].name);
    for &idx in before.iter().filter(forward) {
        let node = &nodes[idx];
        let loss = match node.op.as_str() {
            "SparseSoftmaxCrossEntropyWithLogits" => "sparse_softmax_cross_entropy",
            // One-hot labels of classes are classes.
            "SoftmaxCrossEntropyWithLogits" => match labels_of_classes(graph, node) {
                true => "sparse_softmax_cross_entropy",
                false => "softmax_cross_entropy",
            },
            _ => continue,
        };
        let logits = Symbols::new(graph).behind(*node.inputs.first()?);
        return Some(End { logits, labels: node.inputs.get(1).copied(), loss });
    }
    // Sigmoid cross-entropy has no op of its own: its nodes are under a name.
    let logistic = before.iter().filter(forward).find(|idx| nodes[**idx].name.ends_with("logistic_loss/sub"));
    if let Some(&idx) = logistic {
        let product = graph.body.find(&nodes[idx].name.replace("logistic_loss/sub", "logistic_loss/mul"))?;
        let [logits, labels] = nodes[product].inputs[..] else { return None };
        return Some(End { logits, labels: Some(labels), loss: "sigmoid_cross_entropy" });
    }
    let squares = before
        .iter()
        .filter(forward)
        .find(|idx| nodes[**idx].op == "SquaredDifference" && nodes[**idx].name.contains("mean_squared_error"));
    if let Some(&idx) = squares {
        let [output, labels] = nodes[idx].inputs[..] else { return None };
        return Some(End { logits: output, labels: Some(labels), loss: "mean_squared_error" });
    }
    if loss.is_some() {
        return None;
    }
    // A graph that only predicts: its last layer.
    let last = (0..nodes.len()).rev().find(|idx| region::is_weighted(&nodes[*idx].op))?;
    Some(End { logits: Edge { node: last, output: 0 }, labels: None, loss: "" })
}

/// Whether labels come from a one-hot encoding.
fn labels_of_classes(graph: &Graph, node: &Node) -> bool {
    let Some(labels) = node.inputs.get(1) else { return false };
    region::ancestors(graph, [labels.node]).iter().any(|idx| graph.body.nodes[*idx].op == "OneHot")
}

/// tf.losses smooths by `labels * (1 - s) + s / n`.
fn smoothing(graph: &Graph, labels: Option<Edge>) -> f64 {
    let symbols = Symbols::new(graph);
    let Some(labels) = labels else { return 0.0 };
    let near: Vec<usize> = region::ancestors(graph, [labels.node]).into_iter().collect();
    let kept = near.iter().filter_map(|idx| {
        let node = &graph.body.nodes[*idx];
        (node.op == "Mul").then(|| symbols.scalar(node, 1).or_else(|| symbols.scalar(node, 0))).flatten()
    });
    let kept: Vec<f64> = kept.filter(|kept| (0.5..1.0).contains(kept)).collect();
    match kept[..] {
        [kept] => shortest((1.0 - kept) as f32),
        _ => 0.0,
    }
}

/// The forward nodes that a node needs, inputs first.
fn in_order(graph: &Graph, end: usize) -> Vec<usize> {
    let mut order = Vec::new();
    let mut seen = HashSet::new();
    let mut pending = vec![(end, false)];
    while let Some((idx, is_done)) = pending.pop() {
        if is_done {
            order.push(idx);
        } else if seen.insert(idx) {
            pending.push((idx, true));
            let node = &graph.body.nodes[idx];
            if !node.op.contains("Iterator") && !node.op.starts_with("InfeedDequeue") {
                pending.extend(node.inputs.iter().rev().map(|edge| (edge.node, false)));
            }
        }
    }
    order
}

impl Porting<'_, '_> {
    fn node(&mut self, idx: usize) {
        let node = self.symbols.node(idx);
        let symbol = match self.symbols.plain(idx) {
            Symbol::Other => self.layer(idx, node),
            plain => plain,
        };
        self.symbols.of_edge.insert(Edge { node: idx, output: 0 }, symbol);
    }

    /// The layer that a node is, or belongs to.
    fn layer(&mut self, idx: usize, node: &Node) -> Symbol {
        let reads = |number: usize| match self.symbols.input(node, number) {
            Symbol::Layer(name) => Some(name),
            _ => None,
        };
        match (node.op.as_str(), reads(0), reads(1)) {
            ("Placeholder" | "PlaceholderV2", ..) => {
                self.input(node, &node.name, node.dtype("dtype"), node.dims("shape"))
            }
            ("IteratorGetNext" | "InfeedDequeueTuple" | "InfeedDequeue", ..) => self.first_of_pipeline(idx, node),
            ("Conv2D" | "DepthwiseConv2dNative", Some(x), _) => self.convolution(node, x),
            ("MatMul", Some(x), _) => self.dense(node, x),
            ("BiasAdd" | "Add" | "AddV2", Some(x), None) if self.is_bias(&x, node) => self.bias(x, node),
            ("FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3", Some(x), _) => self.batch_norm(node, x),
            ("Pad", Some(x), _) => self.padding(node, x),
            ("MaxPool", Some(x), _) => self.pool(node, "max_pool", x),
            ("AvgPool", Some(x), _) => self.pool(node, "avg_pool", x),
            ("Mean", Some(x), _) => self.mean(node, x),
            ("Reshape", Some(x), _) => self.reshape(node, x),
            ("Squeeze", Some(x), _) => self.push(node, "flatten", "", Vec::new(), vec![x]),
            ("AddN", Some(_), _) => self.merged(node, "add", node.inputs.len()),
            ("Add" | "AddV2", Some(_), Some(_)) => self.merged(node, "add", 2),
            ("Sub", Some(_), Some(_)) => self.merged(node, "subtract", 2),
            ("Maximum", Some(_), Some(_)) => self.merged(node, "maximum", 2),
            ("Mul", Some(a), Some(b)) => self.product(node, a, b),
            ("ConcatV2", Some(_), _) => self.merged(node, "concat", node.inputs.len().saturating_sub(1)),
            ("Mul" | "RealDiv" | "Sub" | "Add" | "AddV2", ..) => self.scaled(node),
            ("SelectV2", _, Some(x)) => self.dropped(node, x),
            ("GatherV2" | "ResourceGather" | "Gather", _, Some(ids)) => self.embedding(node, ids),
            (op, Some(x), _) if activation(op).is_some() => {
                let name = activation(op).unwrap_or_default();
                self.push(node, "activation", name, Vec::new(), vec![x])
            }
            (
                "Shape" | "StridedSlice" | "Pack" | "Prod" | "Size" | "Rank" | "NoOp" | "Fill" | "RandomUniform"
                | "GreaterEqual" | "Less" | "Floor" | "ExpandDims",
                ..,
            ) => Symbol::Other,
            (op, ..)
                if node.inputs.iter().any(|edge| matches!(self.symbols.of_edge.get(edge), Some(Symbol::Layer(_)))) =>
            {
                let text = format!("`{op}` of a layer has no word in `kind: layers`");
                let note = Note::new(self.symbols.graph, Some(idx), text, "the step runs as HLO all the same");
                self.notes.missing.push(note);
                Symbol::Other
            }
            _ => Symbol::Other,
        }
    }

    fn push(
        &mut self,
        node: &Node,
        kind: &'static str,
        first: impl ToString,
        options: Vec<(&'static str, String)>,
        reads: Vec<String>,
    ) -> Symbol {
        self.push_named(&node.name, node, kind, first, options, reads)
    }

    fn push_named(
        &mut self,
        name: &str,
        node: &Node,
        kind: &'static str,
        first: impl ToString,
        options: Vec<(&'static str, String)>,
        reads: Vec<String>,
    ) -> Symbol {
        let names = std::iter::once(name.to_string()).chain((1..).map(|n| format!("{name}_{n}")));
        let name = names.into_iter().find(|name| !self.taken.contains(name)).unwrap_or_default();
        self.taken.insert(name.clone());
        self.at.insert(name.clone(), self.port.layers.len());
        let line =
            LayerLine { name: name.clone(), kind, first: first.to_string(), options, reads, node: node.name.clone() };
        self.port.layers.push(line);
        Symbol::Layer(name)
    }

    fn input(&mut self, node: &Node, name: &str, dtype: Option<DType>, dims: Option<Vec<i64>>) -> Symbol {
        let Some((dtype, dims)) = dtype.zip(dims).filter(|(_, dims)| !dims.is_empty()) else { return Symbol::Other };
        if let Some(batch) = dims.first().filter(|batch| **batch > 0) {
            self.port.batch = Some(*batch);
        }
        let sizes = dims[1..].to_vec();
        if sizes.contains(&-1) {
            let text = format!("input `{name}` has dims {dims:?}, and sizes beyond the batch have to be known");
            let at = self.symbols.graph.body.find(&node.name);
            self.notes.missing.push(Note::new(
                self.symbols.graph,
                at,
                text,
                "set the placeholder's shape in the script",
            ));
            return Symbol::Other;
        }
        let name = name.replace(':', "_");
        self.taken.insert(name.clone());
        self.port.inputs.push((name.clone(), sizes, dtype.is_integer()));
        Symbol::Layer(name)
    }

    /// The first floating array of a pipeline.
    fn first_of_pipeline(&mut self, idx: usize, node: &Node) -> Symbol {
        let lists = [("output_types", "output_shapes"), ("dtypes", "shapes")];
        for (types, shapes) in lists {
            let (Some(types), Some(shapes)) = (node.list(types), node.list(shapes)) else { continue };
            let first = types.r#type.iter().zip(&shapes.shape).enumerate().find_map(|(at, (ty, shape))| {
                Some((at, crate::dtypes::hlo(*ty)?, crate::node::dims_of(shape)?))
                    .filter(|(_, dtype, _)| dtype.is_float())
            });
            if let Some((at, dtype, dims)) = first {
                let symbol = self.input(node, "features", Some(dtype), Some(dims));
                self.symbols.of_edge.insert(Edge { node: idx, output: at }, symbol.clone());
                return if at == 0 { symbol } else { Symbol::Other };
            }
        }
        Symbol::Other
    }

    /// The layer's name that a variable's name begins with, and the variable's own.
    fn claim(&mut self, node: &Node, number: usize, expected: &str) -> Option<(String, Vec<i64>)> {
        let Symbol::Variable { name, dims } = self.symbols.input(node, number) else { return None };
        let (layer, own) = name.rsplit_once('/').unwrap_or(("", &name));
        if own != expected {
            let text = format!("variable `{name}` is called `{layer}/{expected}` here");
            let at = self.symbols.graph.body.find(&node.name);
            let help = "`train: {rules: …}` renames variables of a file of weights";
            self.notes.differs.push(Note::new(self.symbols.graph, at, text, help));
        }
        self.port.variables.insert(name.clone(), dims.clone());
        Some((layer.to_string(), dims))
    }

    fn unclaimed(&mut self, node: &Node) -> Symbol {
        let at = self.symbols.graph.body.find(&node.name);
        let text = format!("`{}` is not of a variable alone, as a layer's is", node.op);
        self.notes.missing.push(Note::new(self.symbols.graph, at, text, "the step runs as HLO all the same"));
        Symbol::Other
    }

    fn convolution(&mut self, node: &Node, x: String) -> Symbol {
        let is_depthwise = node.op == "DepthwiseConv2dNative";
        let expected = if is_depthwise { "depthwise_kernel" } else { "kernel" };
        let Some((layer, dims)) = self.claim(node, 1, expected) else { return self.unclaimed(node) };
        let [height, width, _, filters] = dims[..] else { return self.unclaimed(node) };
        let is_first = node.text("data_format").starts_with("NC");
        let spatial = if is_first { [2, 3] } else { [1, 2] };
        let pair = |values: &[i64], default: i64| spatial.map(|axis| values.get(axis).copied().unwrap_or(default));
        let mut options = Vec::new();
        let size = one_or_two([height, width]);
        if !is_depthwise {
            options.push(("kernel_size", size.clone()));
        }
        let strides = pair(node.ints("strides"), 1);
        if strides != [1, 1] {
            options.push(("strides", one_or_two(strides)));
        }
        match node.text("padding") {
            "SAME" => options.push(("padding", "same".to_string())),
            "VALID" => {}
            other => {
                let at = self.symbols.graph.body.find(&node.name);
                let text = format!(
                    "padding `{other}` {:?} is `zero_padding` before the layer",
                    node.ints("explicit_paddings")
                );
                self.notes.missing.push(Note::new(
                    self.symbols.graph,
                    at,
                    text,
                    "write a `zero_padding` layer before it",
                ));
            }
        }
        let dilations = pair(node.ints("dilations"), 1);
        if dilations != [1, 1] {
            options.push(("dilation_rate", one_or_two(dilations)));
        }
        if is_first {
            options.push(("data_format", "channels_first".to_string()));
        }
        if is_depthwise && filters != 1 {
            options.push(("depth_multiplier", filters.to_string()));
        }
        options.push(("use_bias", "false".to_string()));
        let (kind, first) = if is_depthwise { ("depthwise_conv", size) } else { ("conv", filters.to_string()) };
        self.push_named(&layer, node, kind, first, options, vec![x])
    }

    fn dense(&mut self, node: &Node, x: String) -> Symbol {
        if node.flag("transpose_a") || node.flag("transpose_b") {
            return self.unclaimed(node);
        }
        let Some((layer, dims)) = self.claim(node, 1, "kernel") else { return self.unclaimed(node) };
        let units = dims.last().copied().unwrap_or(0);
        self.push_named(&layer, node, "dense", units, vec![("use_bias", "false".to_string())], vec![x])
    }

    /// Whether a node adds a variable to a layer that has no bias yet, and that nothing else reads.
    fn is_bias(&self, layer: &str, node: &Node) -> bool {
        let has_none = self.at.get(layer).is_some_and(|at| {
            self.port.layers[*at].options.iter().any(|(option, value)| *option == "use_bias" && value == "false")
        });
        has_none
            && matches!(self.symbols.input(node, 1), Symbol::Variable { .. })
            && node.inputs.first().is_some_and(|edge| self.n_readers.get(edge) == Some(&1))
    }

    fn bias(&mut self, layer: String, node: &Node) -> Symbol {
        if self.claim(node, 1, "bias").is_some()
            && let Some(at) = self.at.get(&layer)
        {
            self.port.layers[*at].options.retain(|(option, _)| *option != "use_bias");
        }
        Symbol::Layer(layer)
    }

    fn batch_norm(&mut self, node: &Node, x: String) -> Symbol {
        let mut options = Vec::new();
        let name = match self.claim(node, 1, "gamma") {
            Some((layer, _)) => layer,
            None => return self.unclaimed(node),
        };
        self.claim(node, 2, "beta");
        for variable in ["moving_mean", "moving_variance"] {
            let full = format!("{name}/{variable}");
            let nodes = &self.symbols.graph.body.nodes;
            let variable = nodes.iter().find(|node| {
                matches!(node.op.as_str(), "VarHandleOp" | "VariableV2" | "Variable") && node.variable_name() == full
            });
            if let Some(dims) = variable.and_then(|node| node.dims("shape")) {
                self.port.variables.insert(full, dims);
            }
        }
        if let Some(momentum) = self.momentum(&name) {
            options.push(("momentum", momentum.to_string()));
        }
        let epsilon = node.float("epsilon").map_or(1e-4, shortest);
        options.push(("epsilon", format!("{epsilon:?}")));
        if node.text("data_format").starts_with("NC") {
            options.push(("axis", "1".to_string()));
        }
        self.push_named(&name, node, "batch_norm", "", options, vec![x])
    }

    /// What a moving mean keeps of itself: 1 less the constant that its update is multiplied by.
    fn momentum(&self, layer: &str) -> Option<f64> {
        let graph = self.symbols.graph;
        let target = format!("{layer}/moving_mean");
        let updates = graph.body.nodes.iter().filter(|node| node.op.starts_with("AssignSub"));
        for update in updates {
            let variable = self.symbols.behind(*update.inputs.first()?);
            if self.symbols.node(variable.node).variable_name() != target {
                continue;
            }
            let product = self.symbols.node(self.symbols.behind(*update.inputs.get(1)?).node);
            let rate = (0..product.inputs.len()).find_map(|number| self.symbols.scalar(product, number))?;
            return Some(shortest((1.0 - rate) as f32));
        }
        None
    }

    fn padding(&mut self, node: &Node, x: String) -> Symbol {
        let Symbol::Constant { values, .. } = self.symbols.input(node, 1) else { return self.unclaimed(node) };
        let pads: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        if pads.iter().all(|pad| *pad == 0) {
            return Symbol::Layer(x);
        }
        let (spatial, format): (&[i64], Option<&str>) = match pads[..] {
            [0, 0, _, _, _, _, 0, 0] => (&pads[2..6], None),
            [0, 0, 0, 0, _, _, _, _] => (&pads[4..8], Some("channels_first")),
            _ => return self.unclaimed(node),
        };
        let first = format!("[[{}, {}], [{}, {}]]", spatial[0], spatial[1], spatial[2], spatial[3]);
        let options = format.map(|format| ("data_format", format.to_string())).into_iter().collect();
        self.push(node, "zero_padding", first, options, vec![x])
    }

    fn pool(&mut self, node: &Node, kind: &'static str, x: String) -> Symbol {
        let is_first = node.text("data_format").starts_with("NC");
        let spatial = if is_first { [2, 3] } else { [1, 2] };
        let pair = |values: &[i64]| spatial.map(|axis| values.get(axis).copied().unwrap_or(1));
        let mut options = vec![("strides", one_or_two(pair(node.ints("strides"))))];
        if node.text("padding") == "SAME" {
            options.push(("padding", "same".to_string()));
        }
        if is_first {
            options.push(("data_format", "channels_first".to_string()));
        }
        let size = one_or_two(pair(node.ints("ksize")));
        self.push(node, kind, size, options, vec![x])
    }

    /// A mean over the spatial axes.
    fn mean(&mut self, node: &Node, x: String) -> Symbol {
        let Symbol::Constant { values, .. } = self.symbols.input(node, 1) else { return self.unclaimed(node) };
        let axes: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        match axes[..] {
            [1, 2] | [-3, -2] if !node.flag("keep_dims") => self.push(node, "global_avg_pool", "", Vec::new(), vec![x]),
            _ => self.unclaimed(node),
        }
    }

    fn reshape(&mut self, node: &Node, x: String) -> Symbol {
        let shape = match self.symbols.input(node, 1) {
            Symbol::Constant { values, .. } => values.iter().map(|value| *value as i64).collect(),
            // Computed from the batch: as many numbers as are packed.
            _ => {
                vec![
                    -1;
                    node.inputs.get(1).map_or(0, |edge| self.symbols.node(self.symbols.behind(*edge).node).inputs.len())
                ]
            }
        };
        match shape[..] {
            [_, _] => self.push(node, "flatten", "", Vec::new(), vec![x]),
            [_, ref rest @ ..] if !rest.is_empty() && rest.iter().all(|dim| *dim > 0) => {
                self.push(node, "reshape", format!("{rest:?}"), Vec::new(), vec![x])
            }
            _ => self.unclaimed(node),
        }
    }

    fn merged(&mut self, node: &Node, kind: &'static str, n: usize) -> Symbol {
        let reads: Option<Vec<String>> = (0..n)
            .map(|number| match self.symbols.input(node, number) {
                Symbol::Layer(name) => Some(name),
                _ => None,
            })
            .collect();
        let Some(reads) = reads else { return self.unclaimed(node) };
        let mut options = Vec::new();
        if kind == "concat"
            && let Some(axis) = self.symbols.scalar(node, n)
            && axis != -1.0
        {
            options.push(("axis", (axis as i64).to_string()));
        }
        self.push(node, kind, "", options, reads)
    }

    /// x · sigmoid(x) is silu; other products are of two layers.
    fn product(&mut self, node: &Node, a: String, b: String) -> Symbol {
        let is_sigmoid_of = |gate: &str, x: &str| {
            let line = self.at.get(gate).map(|at| &self.port.layers[*at]);
            line.is_some_and(|line| line.kind == "activation" && line.first == "sigmoid" && line.reads == [x])
        };
        let pair = [(&a, &b), (&b, &a)].into_iter().find(|(x, gate)| is_sigmoid_of(gate, x));
        let Some((x, gate)) = pair.map(|(x, gate)| (x.clone(), gate.clone())) else {
            return self.merged(node, "multiply", 2);
        };
        let Some(at) = self.at.get(&gate).copied() else { return Symbol::Other };
        let line = &mut self.port.layers[at];
        (line.first, line.reads) = ("silu".to_string(), vec![x]);
        Symbol::Layer(gate)
    }

    /// A layer and a number: a rescaling; a number that dropout divides by belongs to it.
    fn scaled(&mut self, node: &Node) -> Symbol {
        let (x, other, is_swapped) = match (self.symbols.input(node, 0), self.symbols.input(node, 1)) {
            (Symbol::Layer(x), other) => (x, other, false),
            (other, Symbol::Layer(x)) => (x, other, true),
            _ => return Symbol::Other,
        };
        let Symbol::Constant { values, .. } = other else {
            // A mask of dropout, which multiplies.
            return match self.dropout_rate(node) {
                Some(_) if node.op == "Mul" => self.dropped(node, x),
                _ => self.unclaimed(node),
            };
        };
        if values.len() > 1 && self.port.inputs.iter().any(|(name, ..)| *name == x) {
            return self.normalised(node, &x, &values);
        }
        let [value] = values[..] else { return self.unclaimed(node) };
        let (scale, offset) = match (node.op.as_str(), is_swapped) {
            ("Mul", _) => (value, 0.0),
            ("RealDiv", false) => (1.0 / value, 0.0),
            ("Sub", false) => (1.0, -value),
            ("Add" | "AddV2", _) => (1.0, value),
            _ => return self.unclaimed(node),
        };
        let options = if offset == 0.0 { Vec::new() } else { vec![("offset", format!("{offset:?}"))] };
        self.push(node, "rescaling", format!("{scale:?}"), options, vec![x])
    }

    /// An input less its channels' means, or divided by their deviations: here that is the data's, on the host.
    fn normalised(&mut self, node: &Node, x: &str, values: &[f64]) -> Symbol {
        let key = if matches!(node.op.as_str(), "Sub" | "Add" | "AddV2") { "mean" } else { "std" };
        let dtype = node.dtype("T").map_or("", DType::name);
        let shown: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
        let text =
            format!("`{key}` [{}] is taken on the device, in {dtype}; here on the host, in f32", shown.join(", "));
        let at = self.symbols.graph.body.find(&node.name);
        let help = format!("write it under `data: features: {x}: {key}`, these numbers for the same bits");
        self.notes.differs.push(Note::new(self.symbols.graph, at, text, help));
        Symbol::Layer(x.to_string())
    }

    /// The rate of a mask that is drawn: what uniform numbers are compared with.
    fn dropout_rate(&self, node: &Node) -> Option<f64> {
        let drawn = region::ancestors(
            self.symbols.graph,
            node.inputs
                .iter()
                .map(|edge| edge.node)
                .filter(|node| matches!(self.symbols.node(*node).op.as_str(), "Cast" | "GreaterEqual" | "Floor")),
        );
        let comparison = drawn.into_iter().find(|idx| self.symbols.node(*idx).op == "GreaterEqual")?;
        self.symbols.scalar(self.symbols.node(comparison), 1)
    }

    /// `select(uniform >= rate, x / (1 - rate), 0)`.
    fn dropped(&mut self, node: &Node, x: String) -> Symbol {
        let Some(rate) = self.dropout_rate(node) else { return self.unclaimed(node) };
        // The division before it belongs to dropout.
        let read = match self.at.get(&x).map(|at| &self.port.layers[*at]) {
            Some(line) if line.kind == "rescaling" => line.reads[0].clone(),
            _ => x.clone(),
        };
        if read != x
            && let Some(at) = self.at.remove(&x)
        {
            self.port.layers.remove(at);
            self.at.values_mut().for_each(|other| *other -= usize::from(*other > at));
        }
        self.push(node, "dropout", rate, Vec::new(), vec![read])
    }

    fn embedding(&mut self, node: &Node, ids: String) -> Symbol {
        let Some((layer, dims)) = self.claim(node, 0, "embeddings") else { return self.unclaimed(node) };
        let [input, output] = dims[..] else { return self.unclaimed(node) };
        let first = format!("{{input_dim: {input}, output_dim: {output}}}");
        self.push_named(&layer, node, "embedding", first, Vec::new(), vec![ids])
    }
}

impl Symbols<'_> {
    /// The edge of the last layer before identities and casts.
    fn behind_layers(&self, edge: Edge) -> Edge {
        let mut edge = edge;
        for _ in 0..64 {
            if matches!(self.of_edge.get(&edge), Some(Symbol::Layer(_))) {
                return edge;
            }
            match self.node(edge.node).inputs.first() {
                Some(input) => edge = *input,
                None => break,
            }
        }
        edge
    }
}

fn one_or_two([height, width]: [i64; 2]) -> String {
    if height == width { height.to_string() } else { format!("[{height}, {width}]") }
}

/// The activation that an op is.
fn activation(op: &str) -> Option<&'static str> {
    Some(match op {
        "Relu" => "relu",
        "Relu6" => "relu6",
        "LeakyRelu" => "leaky_relu",
        "Elu" => "elu",
        "Selu" => "selu",
        "Softplus" => "softplus",
        "Softsign" => "softsign",
        "Sigmoid" => "sigmoid",
        "Tanh" => "tanh",
        "Exp" => "exponential",
        "Softmax" => "softmax",
        "LogSoftmax" => "log_softmax",
        _ => return None,
    })
}
