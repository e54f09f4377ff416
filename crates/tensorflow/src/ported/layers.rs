//! Ports the forward part of a graph to lines of `kind: layers`, one for each op or group of ops that belong together.

mod attention;
mod ends;
mod pools;
mod positions;
mod products;
mod slices;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::attentions::{self, Attention};
use super::dilated::{self, Dilated};
use super::gelus::{self, Gelu};
use super::heads;
use super::initial::{initial, preferred};
use super::network::{LayerLine, NetworkPort};
use super::norms::{self, Norm, NormKind};
use super::symbols::{Symbol, Symbols, shortest, yaml_number};
use super::{Note, Notes, nearest, network, region, shapes, terms};
use crate::graph::Graph;
use crate::index_map::IndexMap;
use crate::node::{Edge, Node};
use crate::tensor::n_elements;
use bf16scope_hlo::DType;

/// The network that is being ported.
struct Porting<'g, 'n> {
    symbols: Symbols<'g>,
    port: NetworkPort,
    notes: &'n mut Notes,
    taken: HashSet<String>,
    /// Indices of layers, by name.
    at: BTreeMap<String, usize>,
    n_readers: IndexMap<Edge, usize>,
    /// Norms, GELUs and attention written with plain ops, by the node of their result; and the nodes inside of them.
    norms: HashMap<usize, Norm>,
    gelus: HashMap<usize, Gelu>,
    attentions: HashMap<usize, Attention>,
    inside: HashSet<usize>,
    /// Dilated convolutions, by the names of their nodes; and the nodes before and after them that pass their operand on.
    dilated: HashMap<String, Dilated>,
    around_dilated: HashSet<usize>,
    /// Nodes of layers whose batch is joined with further axes: `[batch · positions, features]`.
    rows: HashSet<usize>,
    /// Known output dims of layers, without the batch.
    dims: HashMap<String, Vec<i64>>,
    /// Decays of moving averages, by variable.
    momenta: HashMap<String, f64>,
    /// The dims of variables.
    shapes: HashMap<String, Vec<i64>>,
    /// Initializers of the variables that the next layer claims.
    initials: Vec<(&'static str, String)>,
    /// These variables: their name, what the layer calls them, and their dims.
    claims: Vec<(String, &'static str, Vec<i64>)>,
    /// Initializers, by decreasing number of variables.
    preferred: Vec<&'static str>,
    /// Variables that are renamed here: their number and an example, by the old and the new last part of the name.
    renamed: BTreeMap<(String, &'static str), (usize, String)>,
    /// Variables that several layers read: here each layer has its own.
    shared: BTreeSet<String>,
}

/// The network of a loss; without a loss the network of the graph's outputs.
pub(super) fn network(graph: &Graph, loss: Option<usize>, notes: &mut Notes) -> NetworkPort {
    let heads = heads::heads(graph, loss);
    let Some(main) = heads.first() else {
        ends::note_no_end(graph, loss, notes);
        return NetworkPort::default();
    };
    let mut n_readers: IndexMap<Edge, usize> = IndexMap::default();
    for node in graph.body.nodes.iter().filter(|node| !region::is_backward(&node.name)) {
        node.inputs.iter().for_each(|edge| *n_readers.entry(*edge).or_default() += 1);
    }
    if loss.is_none() {
        if let Some(at) = graph.body.nodes.iter().position(|node| region::is_taped(&node.name)) {
            let text = "the graph takes gradients by a tape, and which loss they are of is not known";
            let help = "trace its tf.function, which returns the loss: `python -m bf16scope.tf SCRIPT.py:NAME`";
            notes.missing.push(Note::new(graph, Some(at), text, help).in_step());
        } else {
            ends::note_prediction(graph, &heads, notes);
        }
    }
    for term in loss.map(|loss| terms::unported(graph, loss, &heads)).unwrap_or_default() {
        let text =
            format!("`{}` is a part of the loss that has no word here, and is left out", graph.body.nodes[term].op);
        let help = "write it under `loss` (docs/EXPERIMENTS.md has the losses); without it other gradients are taken";
        notes.missing.push(Note::new(graph, Some(term), text, help).in_step());
    }
    let symbols = Symbols::new(graph);
    let smoothing = heads::smoothing_of(graph, &heads);
    let order = in_order(graph, heads.iter().map(|head| head.logits.node));
    let (norms, mut inside) = norms::norms(&symbols, &order);
    let (gelus, inside_gelus) = gelus::gelus(&symbols, &order);
    inside.extend(inside_gelus);
    let (attentions, inside_attentions) = attentions::attentions(&symbols, &order);
    inside.extend(inside_attentions);
    let (dilated, around_dilated) = dilated::dilated(&symbols, &order);
    let mut porting = Porting {
        symbols,
        port: NetworkPort {
            loss: main.loss.to_string(),
            label_smoothing: smoothing.map_or(0.0, |smoothing| smoothing.share),
            ..NetworkPort::default()
        },
        notes,
        taken: HashSet::new(),
        at: BTreeMap::new(),
        n_readers,
        norms,
        gelus,
        attentions,
        inside,
        dilated,
        around_dilated,
        rows: HashSet::new(),
        dims: HashMap::new(),
        momenta: network::momenta(graph),
        shapes: HashMap::new(),
        initials: Vec::new(),
        claims: Vec::new(),
        preferred: Vec::new(),
        renamed: BTreeMap::new(),
        shared: BTreeSet::new(),
    };
    porting.variable_dims("");
    porting.preferred = preferred(&porting.symbols, &porting.shapes);
    for idx in order {
        porting.node(idx);
    }
    porting.add_heads(&heads);
    porting.scale_heads(&heads, loss);
    porting.weigh_heads(&heads, loss);
    porting.without_softmax();
    porting.note_smoothing(smoothing);
    porting.note_renamed();
    porting.prune();
    porting.port.output = porting.port.heads.first().map(|head| head.output.clone()).unwrap_or_default();
    porting.port
}

/// The forward nodes that `ends` need, in topological order.
fn in_order(graph: &Graph, ends: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut order = Vec::new();
    let mut is_seen = vec![false; graph.body.nodes.len()];
    let mut pending: Vec<(usize, bool)> = ends.map(|end| (end, false)).collect();
    pending.reverse();
    while let Some((idx, is_done)) = pending.pop() {
        if is_done {
            order.push(idx);
        } else if !std::mem::replace(&mut is_seen[idx], true) {
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
        let reads_rows = node.inputs.iter().any(|edge| self.rows.contains(&edge.node));
        if reads_rows && node.op != "Reshape" && !region::is_of_shape(&node.op) {
            self.rows.insert(idx);
        }
        let symbol = match self.symbols.plain(idx) {
            Symbol::Other => self.layer(idx, node),
            plain => plain,
        };
        self.symbols.of_edge.insert(Edge { node: idx, output: 0 }, symbol);
    }

    /// The layer that a node becomes, or belongs to.
    fn layer(&mut self, idx: usize, node: &Node) -> Symbol {
        let reads = |number: usize| match self.symbols.input(node, number) {
            Symbol::Layer(name) => Some(name),
            _ => None,
        };
        if self.inside.contains(&idx) {
            return Symbol::Other;
        }
        if let Some(norm) = self.norms.remove(&idx) {
            return self.plain_norm(node, &norm);
        }
        if let Some(gelu) = self.gelus.remove(&idx) {
            return match self.symbols.of_edge.get(&gelu.x).cloned() {
                Some(Symbol::Layer(x)) => self.push(node, "activation", gelu.word, Vec::new(), vec![x]),
                _ => Symbol::Other,
            };
        }
        if let Some(attention) = self.attentions.remove(&idx) {
            return self.attention(idx, node, &attention);
        }
        if self.rows.contains(&idx) && !is_by_row(&node.op) {
            return self.wordless(node, format!("`{}` of the positions of all examples has no word", node.op));
        }
        match (node.op.as_str(), reads(0), reads(1)) {
            ("Placeholder" | "PlaceholderV2", ..) => {
                self.input(node, &node.name, node.dtype("dtype"), node.dims("shape"))
            }
            ("IteratorGetNext" | "InfeedDequeueTuple" | "InfeedDequeue", ..) => self.first_of_pipeline(idx, node),
            ("Conv2D" | "DepthwiseConv2dNative", Some(x), _) => self.convolution(node, x),
            ("Conv2D", None, _) if self.sequence_input(node).is_some() => self.sequence_convolution(node),
            ("Conv2DBackpropInput", ..) => self.transposed_convolution(node),
            ("ResizeBilinear" | "ResizeNearestNeighbor", Some(x), _) => self.resized(node, x),
            ("Squeeze", Some(x), _) if self.kind_of(&x) == Some("conv1d") => Symbol::Layer(x),
            ("SpaceToBatchND" | "BatchToSpaceND", Some(x), _) if self.around_dilated.contains(&idx) => Symbol::Layer(x),
            ("Max", Some(x), _) => self.maximum(node, x),
            ("MatMul", Some(x), _) => self.dense(node, x),
            ("Add" | "AddV2", ..) if self.position_table(node).is_some() => self.positions(node),
            ("BiasAdd" | "Add" | "AddV2", Some(x), None) if self.is_bias(&x, node) => self.bias(x, node),
            ("FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3", Some(x), _) => self.batch_norm(node, x),
            ("Pad", Some(x), _) => self.padding(node, x),
            ("MaxPool", Some(x), _) => self.pool(node, "max_pool", x),
            ("AvgPool", Some(x), _) => self.pool(node, "avg_pool", x),
            ("Mean", Some(x), _) => self.mean(node, x),
            ("Reshape", Some(x), _) => self.reshape(idx, node, x),
            ("Squeeze", Some(x), _) => self.squeezed(node, x),
            ("StridedSlice", Some(x), _) => self.sliced(node, x),
            ("AddN", Some(_), _) => self.merged(node, "add", node.inputs.len()),
            ("Add" | "AddV2", Some(_), Some(_)) => self.merged(node, "add", 2),
            ("Sub", Some(_), Some(_)) => self.merged(node, "subtract", 2),
            ("Maximum", Some(_), Some(_)) => self.merged(node, "maximum", 2),
            ("Mul", Some(a), Some(b)) => self.product(node, a, b),
            ("ConcatV2", Some(_), _) => self.merged(node, "concat", node.inputs.len().saturating_sub(1)),
            ("Mul" | "RealDiv" | "Sub" | "Add" | "AddV2", ..) => self.scaled(node),
            ("SelectV2", _, Some(x)) => self.dropped(node, x),
            ("GatherV2" | "ResourceGather" | "Gather", _, Some(ids)) => self.embedding(node, ids),
            ("LeakyRelu", Some(x), _) if node.float("alpha").is_some_and(|slope| slope != 0.2) => {
                let slope = node.float("alpha").map_or(0.2, shortest);
                self.push(node, "leaky_relu", yaml_number(slope), Vec::new(), vec![x])
            }
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
                let note = Note::new(self.symbols.graph, Some(idx), text, nearest::layer(op)).in_step();
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
        // A variable outside of all scopes names no layer: its op does.
        let name = if name.is_empty() { node.name.as_str() } else { name };
        let names = std::iter::once(name.to_string()).chain((1..).map(|n| format!("{name}_{n}")));
        let name = names.into_iter().find(|name| !self.taken.contains(name)).unwrap_or_default();
        self.taken.insert(name.clone());
        self.at.insert(name.clone(), self.port.layers.len());
        let mut options = options;
        options.append(&mut self.initials);
        self.settle(&name);
        let line =
            LayerLine { name: name.clone(), kind, first: first.to_string(), options, reads, node: node.name.clone() };
        let reads: Vec<Option<&Vec<i64>>> = line.reads.iter().map(|read| self.dims.get(read)).collect();
        if let Some(dims) = shapes::output_dims(&line, &reads) {
            self.dims.insert(name.clone(), dims);
        }
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
        self.dims.insert(name.clone(), sizes.clone());
        self.port.inputs.push((name.clone(), sizes, dtype.is_integer()));
        Symbol::Layer(name)
    }

    /// The first floating-point array of an input pipeline, as the network's input.
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

    /// Claims a variable for a layer, as its `expected` variable: the layer's name, from the variable's name, and the dims.
    fn claim(&mut self, node: &Node, number: usize, expected: &'static str) -> Option<(String, Vec<i64>)> {
        self.claim_edge(*node.inputs.get(number)?, expected)
    }

    fn claim_edge(&mut self, edge: Edge, expected: &'static str) -> Option<(String, Vec<i64>)> {
        let Some(Symbol::Variable { name, dims }) = self.symbols.of_edge.get(&edge).cloned() else { return None };
        let layer = name.rsplit_once('/').map_or("", |(layer, _)| layer);
        self.claims.push((name.clone(), expected, dims.clone()));
        let (option, default) = match expected.rsplit('/').next().unwrap_or(expected) {
            "bias" => ("bias_initializer", "zeros"),
            "gamma" => ("gamma_initializer", "ones"),
            "beta" => ("beta_initializer", "zeros"),
            "embeddings" => ("embeddings_initializer", "random_uniform"),
            _ => ("kernel_initializer", "glorot_uniform"),
        };
        if let Some(word) = initial(&self.symbols, &name, &dims, &self.preferred)
            && word != default
        {
            self.initials.push((option, word));
        }
        Some((layer.to_string(), dims))
    }

    /// Names the claimed variables after the layer that has them, whose name may differ from the one in theirs.
    fn settle(&mut self, layer: &str) {
        for (name, expected, dims) in std::mem::take(&mut self.claims) {
            let last = name.rsplit_once('/').map_or(name.as_str(), |(_, last)| last);
            let ours = format!("{layer}/{expected}");
            self.port.variables.insert(name.clone(), dims);
            if self.port.names.contains_key(&name) {
                self.shared.insert(name);
                continue;
            }
            if ours != name {
                let entry = self.renamed.entry((last.to_string(), expected)).or_insert((0, name.clone()));
                entry.0 += 1;
            }
            self.port.names.insert(name, ours);
        }
    }

    /// Removes layers and inputs that no loss depends on, such as the inputs of further replicas.
    fn prune(&mut self) {
        let mut needed: HashSet<String> = self.port.heads.iter().map(|head| head.output.clone()).collect();
        for line in self.port.layers.iter().rev() {
            if needed.contains(&line.name) {
                needed.extend(line.reads.iter().cloned());
            }
        }
        self.port.layers.retain(|line| needed.contains(&line.name));
        self.port.inputs.retain(|(name, ..)| needed.contains(name));
    }

    /// Notes renamed variables, with a single remark for all of the same kind, and those that layers share.
    fn note_renamed(&mut self) {
        let graph = self.symbols.graph;
        for ((last, expected), (n, name)) in &self.renamed {
            let ours = self.port.names.get(name).map_or("", String::as_str);
            let text = match last == expected {
                _ if *n == 1 => format!("the variable `{name}` is called `{ours}` here; its numbers are the same"),
                true => format!("{n} variables such as `{name}` are called `{ours}` here; their numbers are the same"),
                false => format!(
                    "{n} variables such as `{name}` are called `…/{expected}` here, not `…/{last}`; their numbers are the same"
                ),
            };
            let help =
                "`start.safetensors` has their values under these names; for other files `train: {rules: rules.yaml}`";
            self.notes.differs.push(Note::new(graph, None, text, help));
        }
        if let Some(name) = self.shared.first() {
            let n = self.shared.len();
            let text = match n {
                1 => format!("the variable `{name}` is read by several layers, and each layer has its own here"),
                _ => format!(
                    "{n} variables such as `{name}` are read by several layers, and each layer has its own here"
                ),
            };
            let help = "write the layers after the first as `{share: NAME, inputs: …}`, which read its variables";
            self.notes.missing.push(Note::new(graph, None, text, help).in_step());
        }
    }

    /// No layer: what was claimed for it is free again.
    fn unclaimed(&mut self, node: &Node) -> Symbol {
        self.claims.clear();
        self.initials.clear();
        self.wordless(node, format!("`{}` is not of a variable alone, as a layer's is", node.op))
    }

    /// No layer: `text` says why.
    fn wordless(&mut self, node: &Node, text: String) -> Symbol {
        let at = self.symbols.graph.body.find(&node.name);
        let help = nearest::listed(&node.op).unwrap_or_default();
        self.notes.missing.push(Note::new(self.symbols.graph, at, text, help).in_step());
        Symbol::Other
    }

    fn batch_norm(&mut self, node: &Node, x: String) -> Symbol {
        let epsilon = node.float("epsilon").map_or(1e-4, shortest);
        let [_, gamma, beta, ..] = node.inputs[..] else { return self.unclaimed(node) };
        let axis = node.text("data_format").starts_with("NC").then_some("1");
        let graph = self.symbols.graph;
        let is_frozen = node.kind("is_training").is_some() && !node.flag("is_training");
        let text =
            "a batch norm with `is_training=False` normalises by its moving statistics; here by those of the batch";
        let is_noted = self.notes.missing.iter().any(|note| note.text == text);
        if is_frozen && !is_noted && graph.body.nodes.iter().any(|node| region::is_backward(&node.name)) {
            let help = "no word freezes statistics";
            self.notes.missing.push(Note::new(graph, graph.body.find(&node.name), text, help).in_step());
        }
        self.normalised_by(node, x, "batch_norm", [Some(gamma), Some(beta)], (epsilon, axis))
    }

    /// A normalisation written with plain ops.
    fn plain_norm(&mut self, node: &Node, norm: &Norm) -> Symbol {
        let Some(Symbol::Layer(x)) = self.symbols.of_edge.get(&norm.x).cloned() else { return Symbol::Other };
        let rank = match self.rows.contains(&norm.x.node) {
            true => Some(2),
            false => self.dims.get(&x).map(|dims| dims.len() as i64 + 1),
        };
        let kind = match (norm.kind, rank) {
            (NormKind::Batch, Some(rank)) if norm.axes.iter().copied().ne(0..rank - 1) && !norm.axes.is_empty() => {
                return self.unclaimed(node);
            }
            (NormKind::Layer, Some(rank)) if norm.axes != [-1] && norm.axes != [rank - 1] => {
                return self.unclaimed(node);
            }
            (NormKind::Batch, _) => "batch_norm",
            (NormKind::Layer, _) => "layer_norm",
        };
        if kind == "batch_norm" && !self.momenta.is_empty() {
            let text = "the moving variance takes the batch's variance as it is; here times n / (n - 1), as fused batch norms do";
            if !self.notes.differs.iter().any(|note| note.text == text) {
                let at = self.symbols.graph.body.find(&node.name);
                let help = "of 50 values of a feature and more less than 2 % of the variance; training is the same, and no key undoes it";
                self.notes.differs.push(Note::new(self.symbols.graph, at, text, help));
            }
        }
        self.normalised_by(node, x, kind, [norm.gamma, norm.beta], (norm.epsilon, None))
    }

    fn normalised_by(
        &mut self,
        node: &Node,
        x: String,
        kind: &'static str,
        [gamma, beta]: [Option<Edge>; 2],
        (epsilon, axis): (f64, Option<&str>),
    ) -> Symbol {
        let gamma = gamma.and_then(|gamma| self.claim_edge(gamma, "gamma"));
        let beta = beta.and_then(|beta| self.claim_edge(beta, "beta"));
        let Some((name, _)) = gamma.as_ref().or(beta.as_ref()).cloned() else { return self.unclaimed(node) };
        let mut options = Vec::new();
        if kind == "batch_norm" {
            let scoped =
                |variable: &str| if name.is_empty() { variable.to_string() } else { format!("{name}/{variable}") };
            for variable in ["moving_mean", "moving_variance"] {
                let full = scoped(variable);
                if let Some(dims) = self.variable_dims(&full) {
                    self.claims.push((full, variable, dims));
                }
            }
            // Keras has fused batch norms update the averages themselves.
            let share = node.float("exponential_avg_factor").filter(|share| *share != 1.0);
            let momentum = self.momenta.get(&scoped("moving_mean")).copied();
            if let Some(momentum) = momentum.or_else(|| share.map(|share| shortest(1.0 - share))) {
                options.push(("momentum", momentum.to_string()));
            }
        }
        options.push(("epsilon", format!("{epsilon:?}")));
        for (is_there, option) in [(gamma.is_some(), "scale"), (beta.is_some(), "center")] {
            if !is_there {
                options.push((option, "false".to_string()));
            }
        }
        if let Some(axis) = axis {
            options.push(("axis", axis.to_string()));
        }
        self.push_named(&name, node, kind, "", options, vec![x])
    }

    /// The dims of a variable by name.
    fn variable_dims(&mut self, name: &str) -> Option<Vec<i64>> {
        if self.shapes.is_empty() {
            let nodes = self.symbols.graph.body.nodes.iter();
            let variables = nodes.filter(|node| matches!(node.op.as_str(), "VarHandleOp" | "VariableV2" | "Variable"));
            self.shapes = variables.filter_map(|node| Some((node.variable_name(), node.dims("shape")?))).collect();
        }
        self.shapes.get(name).cloned()
    }

    fn reshape(&mut self, idx: usize, node: &Node, x: String) -> Symbol {
        let shape = self.symbols.sizes(node);
        let is_of_rows = node.inputs.first().is_some_and(|edge| self.rows.contains(&edge.node));
        if let (Some(dims), [_, sizes @ ..]) = (self.dims.get(&x), &shape[..]) {
            let is_same = sizes.len() == dims.len() && sizes.iter().zip(dims).all(|(a, b)| a == b || *a == -1);
            let are_joined = dims.ends_with(sizes) && n_elements(sizes) != n_elements(dims);
            match (is_of_rows, is_same, are_joined) {
                // Positions have their axis again.
                (true, true, _) => return Symbol::Layer(x),
                (_, _, true) => {
                    self.rows.insert(idx);
                    return Symbol::Layer(x);
                }
                _ => {}
            }
        }
        let n = self.dims.get(&x).and_then(|dims| n_elements(dims));
        let is_other = |sizes: &[i64]| n.is_some() && n_elements(sizes) != n;
        match shape[..] {
            [_, ref rest @ ..] if is_other(rest) && (is_of_rows || rest.iter().all(|dim| *dim > 0)) => {
                self.wordless(node, format!("`Reshape` to {shape:?} joins examples with other axes"))
            }
            [_, _] => self.push(node, "flatten", "", Vec::new(), vec![x]),
            [_, ref rest @ ..] if !rest.is_empty() && rest.iter().all(|dim| *dim > 0) => {
                self.push(node, "reshape", format!("{rest:?}"), Vec::new(), vec![x])
            }
            _ => self.unclaimed(node),
        }
    }

    /// A layer without axes of size 1: a vector, or of the axes that are left.
    fn squeezed(&mut self, node: &Node, x: String) -> Symbol {
        let dims = self.dims.get(&x).cloned().unwrap_or_default();
        let rank = dims.len() as i64 + 1;
        let named = node.ints("squeeze_dims").iter().map(|axis| if *axis < 0 { axis + rank } else { *axis });
        let named: Vec<i64> = named.collect();
        let is_left = |axis: i64, dim: i64| if named.is_empty() { dim != 1 } else { !named.contains(&axis) };
        let left = (1..).zip(&dims).filter(|(axis, dim)| is_left(*axis, **dim)).map(|(_, dim)| *dim);
        match left.collect::<Vec<i64>>() {
            left if left.len() > 1 => self.push(node, "reshape", format!("{left:?}"), Vec::new(), vec![x]),
            _ => self.push(node, "flatten", "", Vec::new(), vec![x]),
        }
    }

    /// A layer scaled or shifted by a constant: a rescaling. [`Porting::dropped`] removes the one that belongs to dropout.
    fn scaled(&mut self, node: &Node) -> Symbol {
        let (x, other, is_swapped) = match (self.symbols.input(node, 0), self.symbols.input(node, 1)) {
            (Symbol::Layer(x), other) => (x, other, false),
            (other, Symbol::Layer(x)) => (x, other, true),
            _ => return Symbol::Other,
        };
        let Symbol::Constant { values, .. } = other else {
            // Dropout by multiplication with a mask.
            return match self.symbols.dropout_rate(node) {
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
        if scale == 1.0 && offset == 0.0 {
            return Symbol::Layer(x);
        }
        let options = if offset == 0.0 { Vec::new() } else { vec![("offset", format!("{offset:?}"))] };
        self.push(node, "rescaling", format!("{scale:?}"), options, vec![x])
    }

    /// An input shifted by its channels' means or divided by their deviations: here an option of the data, on the host.
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

    /// Dropout: `select(uniform >= rate, x / (1 - rate), 0)`.
    fn dropped(&mut self, node: &Node, x: String) -> Symbol {
        let Some(rate) = self.symbols.dropout_rate(node) else { return self.unclaimed(node) };
        self.note_rounded_rate(node, rate);
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
        match self.dropped_parts(node, &read) {
            Some(kind) => self.push(node, kind, rate, Vec::new(), vec![read]),
            None => self.unclaimed(node),
        }
    }

    /// The word of a dropout by what its mask drops of a layer: elements, whole channels or whole examples.
    fn dropped_parts(&self, node: &Node, x: &str) -> Option<&'static str> {
        let Some(axes) = self.symbols.dropout_axes(node) else { return Some("dropout") };
        let dims = self.dims.get(x).filter(|dims| dims.len() + 1 == axes.len());
        // An axis of one element is no axis that is dropped as a whole.
        let is_whole = |at: usize| axes[at] && dims.is_none_or(|dims| dims[at - 1] != 1);
        let is_one = |at: usize| dims.is_some_and(|dims| dims[at - 1] == 1);
        let last = axes.len().checked_sub(1).filter(|last| *last > 0);
        match last {
            _ if !(1..axes.len()).any(is_whole) => Some("dropout"),
            _ if (1..axes.len()).all(|at| is_whole(at) || is_one(at)) => Some("stochastic_depth"),
            Some(last) if (1..last).all(|at| is_whole(at) || is_one(at)) => Some("spatial_dropout"),
            _ => None,
        }
    }
}

impl Symbols<'_> {
    /// The edge of the last layer before ops that change no values: identities, casts, reshapes.
    fn behind_layers(&self, edge: Edge) -> Edge {
        let mut edge = edge;
        for _ in 0..64 {
            if matches!(self.of_edge.get(&edge), Some(Symbol::Layer(_))) {
                return edge;
            }
            let node = self.node(edge.node);
            let is_passed_on = matches!(
                node.op.as_str(),
                "Identity"
                    | "IdentityN"
                    | "Cast"
                    | "StopGradient"
                    | "CheckNumerics"
                    | "Snapshot"
                    | "Reshape"
                    | "Squeeze"
                    | "ExpandDims"
            );
            match node.inputs.first() {
                Some(input) if is_passed_on => edge = *input,
                _ => break,
            }
        }
        edge
    }
}

/// Whether an op computes each row of a matrix by itself, as the layers do that it becomes.
fn is_by_row(op: &str) -> bool {
    let others = ["MatMul", "BiasAdd", "Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "SelectV2", "Reshape"];
    others.contains(&op) || matches!(op, "GatherV2" | "ResourceGather" | "Gather") || activation(op).is_some()
}

/// The activation of an op.
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

fn one_or_two([height, width]: [i64; 2]) -> String {
    if height == width { height.to_string() } else { format!("[{height}, {width}]") }
}
