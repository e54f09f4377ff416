//! The ends of a network: its losses at the layers that they judge, their weights, and the smoothing of their labels.

use super::super::heads::{self, Head};
use super::super::nearest;
use super::super::network::HeadLine;
use super::super::symbols::{Symbol, yaml_number};
use super::super::terms::{self, Weights};
use super::{Note, Porting};

impl Porting<'_, '_> {
    /// The losses, each at the layer that it judges.
    pub(super) fn add_heads(&mut self, heads: &[Head]) {
        let graph = self.symbols.graph;
        for head in heads {
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
                    let text = format!("the loss at `{name}` is not of layers alone");
                    let note = Note::new(graph, Some(head.logits.node), text, nearest::network(graph)).in_step();
                    self.notes.missing.push(note);
                    self.port.layers.clear();
                }
            }
        }
    }

    /// Moves a softmax cross-entropy that reads a softmax layer to that layer's input, since the loss computes the softmax.
    pub(super) fn without_softmax(&mut self) {
        for head in self.port.heads.iter_mut().filter(|head| head.loss.contains("softmax")) {
            let line = self.at.get(&head.output).map(|at| &self.port.layers[*at]);
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

    /// Notes that an evaluation's loss has no label smoothing here, with the least loss that smoothed labels leave.
    pub(super) fn note_smoothing(&mut self) {
        let smoothing = self.port.label_smoothing;
        let is_smoothed = |head: &&HeadLine| head.loss.ends_with("cross_entropy");
        let Some(head) = self.port.heads.iter().find(is_smoothed).filter(|_| smoothing > 0.0) else { return };
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
    }
}
