//! The ends of a network: its losses at the layers that they judge, their weights, and the smoothing of their labels.

use super::super::cores;
use super::super::heads::{self, Head, Smoothing};
use super::super::nearest;
use super::super::network::HeadLine;
use super::super::region;
use super::super::scale;
use super::super::symbols::{Symbol, shortest, yaml_number};
use super::super::terms::{self, Weights};
use super::super::updates;
use super::{Edge, Node, Note, Notes, Porting};
use crate::error::counted;
use crate::graph::Graph;
use crate::host::is_input;

/// A batch at which losses are followed where the graph leaves it open.
const BATCH: i64 = 8;

/// Notes that it is not known where a graph's network ends: its loss is of no logits, or it predicts without layers.
pub(super) fn note_no_end(graph: &Graph, loss: Option<usize>, notes: &mut Notes) {
    let nodes = &graph.body.nodes;
    let is_trained = loss.is_some() || nodes.iter().any(updates::is_gradient);
    if is_trained {
        // Both of TensorFlow's: an op of its kernels, or dense arrays in a scope of that name.
        let is_ctc = |node: &Node| node.op.starts_with("CTCLoss") || node.name.starts_with("ctc_loss");
        let (text, help) = match loss {
            Some(_) if nodes.iter().any(is_ctc) => (
                "the graph's loss is TensorFlow's CTC loss, whose ops are not read, so it is not known where its network ends",
                "write the layers, and `loss: ctc` (docs/EXPERIMENTS.md)",
            ),
            Some(_) => (
                "no loss of logits is in the graph's loss, so it is not known where its network ends",
                "docs/EXPERIMENTS.md has the losses; a layer `expression` and the loss `value` take any other",
            ),
            None => (
                "no loss of logits is in the graph, so it is not known where its network ends",
                "name the loss in the collection `losses`, as tf.losses does",
            ),
        };
        notes.missing.push(Note::new(graph, loss, text, help).in_step());
        return;
    }
    let n_inputs = nodes.iter().filter(|node| is_input(&node.op)).count();
    let text = format!(
        "the graph has no loss and no gradients, and no layer with variables tells where a network ends: it has {}, {} \
         and {}",
        counted(n_inputs, "input"),
        counted(graph.variable_dims().len(), "variable"),
        counted(graph.functions.len(), "function")
    );
    notes.missing.push(Note::new(graph, None, text, "").in_step());
}

/// Notes that a graph has no loss and is ported as one that is trained.
pub(super) fn note_prediction(graph: &Graph, heads: &[Head], notes: &mut Notes) {
    let losses: Vec<&str> = heads.iter().map(|head| head.loss).filter(|loss| !loss.is_empty()).collect();
    let at = heads.first().map(|head| head.logits.node);
    let end = at.map_or("", |at| graph.body.nodes[at].name.as_str());
    let (ends, help) = match losses.is_empty() {
        false => (
            format!("the graph only predicts; it ends here as one trained by {} does", losses.join(" and ")),
            "a softmax or sigmoid at its end belongs to the loss here; write the loss that is meant",
        ),
        true => (
            format!(
                "the graph has no loss that is known; it ends here at its last layer, `{end}`, as a classifier does"
            ),
            "write the loss that is meant",
        ),
    };
    notes.differs.push(Note::new(graph, at, ends, help).in_step());
}

impl Porting<'_, '_> {
    /// The losses, each at the layer that it judges.
    pub(super) fn add_heads(&mut self, heads: &[Head]) {
        let graph = self.symbols.graph;
        for head in heads {
            if head.offset != 0.0 {
                let text =
                    format!("the graph's loss is larger by {} than `{}` is here", yaml_number(head.offset), head.loss);
                let help = "its gradients are the same; an `expression` and the loss `value` can have the number too";
                self.notes.differs.push(Note::new(graph, Some(head.node), text, help));
            }
            let edge = self.symbols.behind_layers(head.logits);
            match self.symbols.of_edge.get(&edge) {
                Some(Symbol::Layer(name)) => self.port.heads.push(HeadLine {
                    output: name.clone(),
                    loss: head.loss.to_string(),
                    options: head.options.clone(),
                    labels: match head.labels {
                        // A graph that only predicts has no labels, so each of several outputs gets a name for its labels.
                        None if heads.len() > 1 => format!("{}_label", name.replace('/', "_")),
                        labels => heads::labels_name(graph, labels),
                    },
                    weight: head.weight,
                    node: graph.body.nodes[head.node].name.clone(),
                    place: graph.body.nodes[head.node].source().unwrap_or_default().to_string(),
                    callers: graph.body.nodes[head.node].callers().to_vec(),
                }),
                _ => {
                    let name = &graph.body.nodes[head.logits.node].name;
                    let end = if head.labels.is_some() { "loss" } else { "output" };
                    let text = format!("the {end} at `{name}` is not of layers alone{}", self.first_other(head.logits));
                    let note = Note::new(graph, Some(head.logits.node), text, nearest::network(graph)).in_step();
                    self.notes.missing.push(note);
                    self.port.layers.clear();
                }
            }
        }
    }

    /// The first node on the way to an edge that reads a layer and has no word, as a sentence.
    fn first_other(&self, edge: Edge) -> String {
        let graph = self.symbols.graph;
        let is_layer = |edge: &Edge| matches!(self.symbols.of_edge.get(edge), Some(Symbol::Layer(_)));
        let is_other = |at: &usize| {
            let node = &graph.body.nodes[*at];
            let is_known = self.inside.contains(at) || region::is_of_shape(&node.op);
            !is_known && !is_layer(&Edge { node: *at, output: 0 }) && node.inputs.iter().any(is_layer)
        };
        let first = region::ancestors(graph, [edge.node]).into_iter().filter(is_other).min();
        let Some(node) = first.map(|at| &graph.body.nodes[at]) else { return String::new() };
        format!(": `{}` ({}) of a layer has no word", node.name, node.op)
    }

    /// Moves a softmax cross-entropy that reads a softmax layer to that layer's input, since the loss computes the softmax.
    pub(super) fn without_softmax(&mut self) {
        for head in self.port.heads.iter_mut().filter(|head| head.loss.contains("softmax")) {
            // If another loss is not of layers, there are none.
            let line = self.at.get(&head.output).and_then(|at| self.port.layers.get(*at));
            if let Some(line) = line.filter(|line| line.kind == "activation" && line.first == "softmax") {
                let text =
                    format!("the loss reads the softmax `{}` as logits; here it reads what is before it", line.name);
                let help =
                    "that is what is meant: the loss takes the softmax itself; the step as HLO does as the graph does";
                let at = self.symbols.graph.body.find(&line.node);
                self.notes.differs.push(Note::new(self.symbols.graph, at, text, help));
                head.output = line.reads[0].clone();
            }
        }
    }

    /// The weights of losses that the graph sums, or divides by a fixed number: ours are means.
    pub(super) fn scale_heads(&mut self, heads: &[Head], loss: Option<usize>) {
        // A factor 1 / cores is that of the mean over cores.
        let is_of_cores = cores::n_cores(self.symbols.graph).unwrap_or(1) > 1;
        let Some(loss) = loss.filter(|_| !is_of_cores && self.port.heads.len() == heads.len()) else { return };
        for (at, head) in heads.iter().enumerate() {
            let line = &self.port.heads[at];
            let Some(dims) = self.dims.get(&line.output) else { continue };
            let is_of_rows = head.loss.contains("softmax")
                || matches!(head.loss, "kl_divergence" | "cosine_similarity" | "categorical_hinge");
            let n_kept = dims.len() - usize::from(is_of_rows && !dims.is_empty());
            let scale = |batch: i64| {
                let dims: Vec<i64> = std::iter::once(batch).chain(dims[..n_kept].iter().copied()).collect();
                scale::scale(&self.symbols, loss, head.node, &dims).map(|scale| scale * head.unit)
            };
            let (Some(weight), Some(double)) = (scale(self.port.batch.unwrap_or(BATCH)), scale(2 * BATCH)) else {
                continue;
            };
            let weight = shortest(weight as f32);
            if weight == line.weight {
                continue;
            }
            if self.port.batch.is_none() && shortest(double as f32) != weight {
                let text = "losses of examples are summed, or divided by a fixed number; here their mean counts";
                let help = "`weight: …` on the loss, the batch times as large where they are summed";
                self.notes.differs.push(Note::new(self.symbols.graph, Some(head.node), text, help));
                continue;
            }
            self.port.heads[at].weight = weight;
        }
    }

    /// Weights of examples or rows: those of `tf.losses` at their loss, with a remark on the divisor; others are missing.
    pub(super) fn weigh_heads(&mut self, heads: &[Head], loss: Option<usize>) {
        let graph = self.symbols.graph;
        let Some(loss) = loss else { return };
        let mut nodes = terms::weighted_by_input(graph, loss, heads);
        let all_are_layers = self.port.heads.len() == heads.len();
        for weights in terms::weights_of_losses(graph, heads, &nodes).into_iter().filter(|_| all_are_layers) {
            if self.weigh(&weights) {
                nodes.retain(|node| !graph.body.nodes[*node].name.starts_with(&weights.scope));
            }
        }
        let Some(first) = nodes.first() else { return };
        let more = match nodes.len() - 1 {
            0 => String::new(),
            1 => " (with one more node)".to_string(),
            n => format!(" (with {n} more nodes)"),
        };
        let op = &graph.body.nodes[*first].op;
        let text = format!("`{op}` weighs losses by numbers of the input, and is left out{more}");
        let help =
            "add `example_weights: NAME` to the loss, a feature with a number for each; without it all count alike";
        self.notes.missing.push(Note::new(graph, Some(*first), text, help).in_step());
    }

    /// Adds the weights of `tf.losses` to their loss, if they are one for each example, or for each of its rows of classes.
    fn weigh(&mut self, weights: &Weights) -> bool {
        let graph = self.symbols.graph;
        let output = self.port.heads[weights.head].output.clone();
        let is_of_classes = self.port.heads[weights.head].loss.contains("softmax_cross_entropy");
        let dims = self.dims.get(&output).cloned().unwrap_or_default();
        let fits = match (is_of_classes, dims.split_last()) {
            (true, Some((_, rows))) => rows == weights.dims,
            (false, Some(_)) => weights.dims.is_empty() && (!weights.is_vector || dims == [1]),
            (_, None) => false,
        };
        if !fits || self.port.heads[weights.head].options.iter().any(|(option, _)| *option == "example_weights") {
            return false;
        }
        let names = std::iter::once("weights".to_string()).chain((1..).map(|n| format!("weights_{n}")));
        let is_known = |name: &String| self.port.weights.iter().any(|(known, _)| known == name);
        let is_free = |name: &String| !is_known(name) && !self.taken.contains(name);
        let name = weights.feature.clone().or_else(|| names.into_iter().find(is_free)).unwrap_or_default();
        let from = &graph.body.nodes[weights.from].name;
        let (options, text, help) = match weights.is_mask {
            true => (
                vec![("example_weights", name.clone()), ("reduction", "weighted_mean".to_string())],
                format!(
                    "the loss is divided by the number of the examples that count; here by that and 1e-5 (`{name}`)"
                ),
                format!("`{name}` is a feature with what `{from}` has, 0 or 1 for each; no key takes the 1e-5 away"),
            ),
            false => (
                vec![("example_weights", name.clone())],
                format!(
                    "the loss is divided by the number of weights that are not 0, and here by that of all: where a tenth \
                     of `{name}` is 0, it is 0.9 times as large here"
                ),
                format!(
                    "`{name}` is a feature with what `{from}` has; of weights that are 0 or 1 `reduction: weighted_mean` \
                     beside `example_weights` divides as TensorFlow does"
                ),
            ),
        };
        if !is_known(&name) {
            self.port.weights.push((name, weights.dims.clone()));
        }
        self.port.heads[weights.head].options.extend(options);
        self.notes.differs.push(Note::new(graph, Some(weights.product), text, help));
        true
    }

    /// Notes, once for each number, that the rate of a dropout is one of 16 bits in the graph.
    pub(super) fn note_rounded_rate(&mut self, node: &Node, rate: f64) {
        let Some((mask, number)) = self.symbols.dropout_mask(node) else { return };
        let Some((dtype, value)) = self.symbols.rounded(mask, number) else { return };
        let value = if mask.op == "GreaterEqual" { value } else { 1.0 - value };
        let text = format!(
            "a dropout's rate is {value:?} there, in {dtype}, and {} here, as it was written",
            yaml_number(rate)
        );
        if self.notes.differs.iter().all(|note| note.text != text) {
            let at = self.symbols.graph.body.find(&mask.name);
            let help = format!("write {value:?} for the graph's");
            self.notes.differs.push(Note::new(self.symbols.graph, at, text, help));
        }
    }

    /// Notes that an evaluation's loss has no label smoothing here, with the least loss that smoothed labels leave.
    pub(super) fn note_smoothing(&mut self, smoothing: Option<Smoothing>) {
        let is_smoothed = |head: &&HeadLine| head.loss.ends_with("cross_entropy");
        let Some((head, by)) = self.port.heads.iter().find(is_smoothed).zip(smoothing) else { return };
        let smoothing = by.share;
        let entropy = |shares: &[(f64, f64)]| -> f64 { shares.iter().map(|(n, share)| -n * share * share.ln()).sum() };
        let n_classes = self.dims.get(&head.output).and_then(|dims| dims.last()).map(|n| *n as f64);
        let least = match (head.loss.starts_with("sigmoid"), n_classes) {
            (true, _) => Some(entropy(&[(1.0, smoothing / 2.0), (1.0, 1.0 - smoothing / 2.0)])),
            (false, Some(n)) if n > 1.0 => {
                Some(entropy(&[(n - 1.0, smoothing / n), (1.0, 1.0 - smoothing + smoothing / n)]))
            }
            _ => None,
        };
        let least = least.map(|least| format!(", so that its least value is {least:.3}, and here 0"));
        let text = format!(
            "a `model_fn` that smooths labels by {} does so in evaluations too{}",
            yaml_number(smoothing),
            least.unwrap_or_default()
        );
        let help = "compare metrics, or losses of training: the loss of an evaluation has no `label_smoothing` here";
        self.notes.differs.push(Note::new(self.symbols.graph, None, text, help));
        let Some((dtype, factor)) = by.rounded else { return };
        let text = format!(
            "labels are smoothed in {dtype} there, which has {factor:?} for {:?}: by {:?}; here by {}, as it was written",
            shortest((1.0 - smoothing) as f32),
            1.0 - factor,
            yaml_number(smoothing)
        );
        let help =
            format!("`label_smoothing: {:?}` is the graph's; smooth labels of tf.float32 in the script", 1.0 - factor);
        self.notes.differs.push(Note::new(self.symbols.graph, Some(by.node), text, help));
    }
}
