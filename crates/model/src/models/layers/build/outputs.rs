//! The outputs of a network: its losses and metrics, or its predictions.

use super::super::constant::{constant, constant_labels};
use super::super::loss::Reduction;
use super::super::loss_groups::{self, Group};
use super::super::metric::{Judged, MetricKind, TopK};
use super::super::metric_defaults::OF_PAIRS;
use super::super::objective::{Labels, of_rows};
use super::super::wiring::{Source, at};
use super::super::{Loss, LossKind, Metric};
use super::{Build, Tensors, example, is_distribution};
use crate::document::{NodeError, Step};
use crate::graph::Tensor;
use crate::nn::{self, Activation};
use crate::task::{self, LossGroup, Mode, Outputs};
use bf16scope_hlo::DType;
use std::collections::{HashMap, HashSet};

/// The value of one loss.
#[derive(Clone)]
enum Term {
    /// Its mean over the batch in training, otherwise the loss of each example.
    Mean(Tensor),
    /// The sum of weighted losses, and the sum of weights.
    Ratio { sum: Tensor, weight: Tensor },
}

/// Names that are taken, and the number that each got last.
#[derive(Default)]
struct Names {
    taken: HashSet<String>,
    n_of: HashMap<String, usize>,
}

impl Names {
    /// A name, or with the first number from 2 on that makes it another.
    fn take(&mut self, name: &str) -> String {
        let n = self.n_of.entry(name.to_string()).or_default();
        loop {
            *n += 1;
            let numbered = if *n == 1 { name.to_string() } else { format!("{name}_{n}") };
            if self.taken.insert(numbered.clone()) {
                return numbered;
            }
        }
    }
}

impl Build<'_> {
    /// Predictions, or loss and metrics, with label smoothing in training.
    pub(super) fn outputs(&self, tensors: &Tensors, label_smoothing: f64) -> Result<Outputs, NodeError> {
        if self.mode == Mode::Predict {
            let predictions = self.wiring.outputs.iter();
            let outputs = Outputs::new();
            return Ok(predictions.fold(outputs, |all, (name, source)| all.prediction(name, &tensors.in_f32(*source))));
        }
        let mut terms = Vec::new();
        for (number, loss) in self.config.loss.iter().enumerate() {
            terms.push(self.loss(number, loss, tensors, label_smoothing)?);
        }
        let mut outputs = self.groups(&terms, tensors)?.into_iter().fold(Outputs::new(), Outputs::group);
        let sums = self.sums(&terms, 0..terms.len());
        let penalties: Vec<Tensor> = tensors.terms.iter().map(|(_, term)| term.clone()).collect();
        for (number, metric) in self.config.metrics.iter().enumerate() {
            outputs = outputs.metric(&metric.name(), self.metric(number, metric, tensors)?);
        }
        // Wiring refuses a network without losses.
        let loss = self.total(&terms, sums, &penalties).expect("a loss is a mean or a ratio");
        let reported = if terms.len() > 1 { self.reported(&terms) } else { Vec::new() };
        Ok(reported.into_iter().fold(outputs.loss(loss), |all, (name, value)| all.metric(&name, value)))
    }

    /// The losses that train only some variables, in training.
    fn groups(&self, terms: &[Term], tensors: &Tensors) -> Result<Vec<LossGroup>, NodeError> {
        if self.mode != Mode::Train {
            return Ok(Vec::new());
        }
        let variables = self.s.graph().variables();
        let trained: Vec<String> = variables.iter().filter(|it| it.trainable).map(|it| it.name.clone()).collect();
        let groups = loss_groups::groups(self.config, &trained)?;
        // A penalty belongs to the group that trains its layer; for a layer without variables, to all groups.
        let is_of = |group: &Group, layer: usize| {
            let owner = self.wiring.owners[layer].unwrap_or(layer);
            let mut names = variables[tensors.variables[owner].clone()].iter().filter(|it| it.trainable);
            names.next().is_none_or(|first| group.variables.contains(&first.name))
        };
        let group = |group: Group| {
            let penalties = tensors.terms.iter().filter(|(layer, _)| is_of(&group, *layer));
            let penalties: Vec<Tensor> = penalties.map(|(_, term)| term.clone()).collect();
            let sums = self.sums(terms, group.losses.iter().copied());
            let names: Vec<&str> =
                group.losses.iter().map(|&number| loss_groups::called(self.config, number)).collect();
            let task::Loss::Mean(loss) = self.total(terms, sums, &penalties)? else { return None };
            Some(LossGroup { name: names.join(" + "), loss, variables: group.variables, is_strict: group.is_named })
        };
        Ok(groups.into_iter().filter_map(group).collect())
    }

    /// The weighted sums of the selected losses: of those that are means, and of those that are ratios.
    fn sums(&self, terms: &[Term], numbers: impl Iterator<Item = usize>) -> [Option<Tensor>; 2] {
        let mut sums = [None, None];
        for number in numbers {
            let (term, loss) = (&terms[number], &self.config.loss[number]);
            let (at, value) = match term {
                Term::Mean(each) => (0, each.clone()),
                // Its sum and its weights are accumulated over batches separately.
                Term::Ratio { .. } if terms.len() == 1 && self.mode == Mode::Evaluate => continue,
                Term::Ratio { sum, weight } => (1, sum / weight),
            };
            let value = if loss.options.weight == 1.0 { value } else { value * loss.options.weight };
            sums[at] = Some(sums[at].take().map_or(value.clone(), |total: Tensor| total + &value));
        }
        sums
    }

    /// The sum of all losses and regularizers: as in Keras, in training and in evaluations.
    fn total(&self, terms: &[Term], [mean, ratio]: [Option<Tensor>; 2], penalties: &[Tensor]) -> Option<task::Loss> {
        let penalized = |x: Tensor| penalties.iter().fold(x, |x, penalty| x + penalty);
        Some(match (mean, ratio, self.mode) {
            (None, None, _) => match (terms, &self.config.loss[..]) {
                ([Term::Ratio { sum, weight }], [Loss { options, .. }]) => {
                    let sum = if options.weight == 1.0 { sum.clone() } else { sum * options.weight };
                    let sum = penalties.iter().fold(sum, |sum, penalty| sum + &(penalty * weight));
                    task::Loss::Weighted { sum, weight: weight.clone() }
                }
                _ => return None,
            },
            (Some(mean), None, Mode::Train) => task::Loss::Mean(penalized(mean)),
            (Some(mean), None, _) => task::Loss::weighted(&penalized(mean), &self.features.weight()),
            (None, Some(ratio), _) => task::Loss::Mean(penalized(ratio)),
            (Some(mean), Some(ratio), Mode::Train) => task::Loss::Mean(penalized(mean + &ratio)),
            // The mean of each batch, as the ratio is of each batch.
            (Some(mean), Some(ratio), _) => {
                let valid = self.features.weight();
                let of_valid = (mean * &valid).sum(&[0]) / valid.sum(&[0]);
                task::Loss::Mean(penalized(of_valid + &ratio))
            }
        })
    }

    /// The value of each of several losses, before it is multiplied by its weight; of means that share a name, their sum.
    fn reported(&self, terms: &[Term]) -> Vec<(String, task::Metric)> {
        let judged: Vec<_> = (0..terms.len()).map(|number| self.wiring.judged_name(self.config, number)).collect();
        let mut n_that_judge: HashMap<&str, usize> = HashMap::new();
        let mut of_name: HashMap<&str, Vec<usize>> = HashMap::new();
        for (number, loss) in self.config.loss.iter().enumerate() {
            *n_that_judge.entry(&judged[number]).or_default() += 1;
            if let Some(name) = &loss.options.name {
                of_name.entry(name).or_default().push(number);
            }
        }
        of_name.retain(|_, same| same.len() > 1 && same.iter().all(|&at| matches!(terms[at], Term::Mean(_))));
        let metrics: HashSet<String> = self.config.metrics.iter().map(Metric::name).collect();
        let mut values: Vec<(String, task::Metric)> = Vec::new();
        let mut names = Names::default();
        for (number, (term, loss)) in terms.iter().zip(&self.config.loss).enumerate() {
            if let Some((name, same)) = loss.options.name.as_ref().and_then(|name| of_name.get_key_value(name.as_str()))
            {
                let [sum, _] = self.sums(terms, same.iter().copied().filter(|_| same[0] == number));
                values.extend(sum.map(|sum| (names.take(name), self.mean_of(&sum))));
                continue;
            }
            let name = match (&loss.options.name, n_that_judge[judged[number].as_ref()]) {
                (Some(name), _) => name.clone(),
                (None, 1) => format!("{}_loss", judged[number]),
                (None, _) => format!("{}_{}", judged[number], loss.name()),
            };
            if metrics.contains(&name) {
                continue;
            }
            let value = match term {
                Term::Ratio { sum, weight } => task::Metric::ratio(sum, weight),
                Term::Mean(mean) => self.mean_of(mean),
            };
            // The second of a kind on the same output gets a number.
            values.push((names.take(&name), value));
        }
        values
    }

    /// The mean of a loss: in training it is one already, otherwise each example's.
    fn mean_of(&self, loss: &Tensor) -> task::Metric {
        match self.mode {
            Mode::Train => task::Metric::mean(loss),
            Mode::Evaluate | Mode::Predict => task::Metric::weighted(loss, &self.features.weight()),
        }
    }

    /// One loss: its mean over the batch in training, otherwise each example's; or its sum and its divisor.
    fn loss(&self, number: usize, loss: &Loss, tensors: &Tensors, label_smoothing: f64) -> Result<Term, NodeError> {
        let (source, name) = (self.wiring.losses[number], &loss.options.labels);
        let output = tensors.in_f32(source);
        let labels = self.target(("loss", number, loss.name()), name, &output, loss.labels())?;
        if self.mode == Mode::Evaluate {
            // Inputs are declared in the order of the zoo's evaluations: labels, then weights.
            self.features.weight();
        }
        // Padding belongs to no triplet, and says nothing: its loss must be finite.
        let of_padding = match (loss.kind, loss.labels()) {
            (LossKind::Ctc(ctc), _) => Some(ctc.blank as f64),
            (_, Labels::Identities) => Some(-1.0),
            _ => None,
        };
        let labels = match (of_padding, self.mode) {
            (Some(label), Mode::Evaluate) if !labels.is_poison() => {
                let (valid, g) = (self.features.weight(), labels.graph());
                let is_valid = valid.greater(&g.full(DType::F32, &valid.dims(), 0.0));
                let nothing = g.full(labels.dtype(), &labels.dims(), label);
                match labels.rank() {
                    1 => is_valid.select(&labels, &nothing),
                    _ => is_valid.broadcast_in_dim(&labels.dims(), &[0]).select(&labels, &nothing),
                }
            }
            _ => labels,
        };
        let (path, what) = (at("loss", number), format!("loss `{}`", loss.name()));
        self.reads_logits(&path, &what, loss.takes(), source)?;
        let smoothing = match self.mode {
            Mode::Train => loss.options.label_smoothing.unwrap_or(label_smoothing),
            Mode::Evaluate | Mode::Predict => 0.0,
        };
        let lengths = loss.lengths().map(|(_, name)| name.map(|name| self.features.get(name)));
        let lengths = nn::CtcLengths { labels: lengths[0].as_ref(), logits: lengths[1].as_ref() };
        let other = self.wiring.others[number].map(|source| tensors.in_f32(source));
        let each = self.written("loss", number, self.s, |_| match loss.kind {
            LossKind::Ctc(ctc) => nn::ctc_with_lengths(&output, &labels, lengths, ctc.blank),
            LossKind::Crf => {
                // Wiring refuses a loss without them.
                let transitions = other.as_ref().unwrap_or(&output);
                nn::crf_per_example(&output, &labels, transitions, lengths.labels)
            }
            LossKind::Matching(matching) => {
                let weight = (self.mode == Mode::Evaluate).then(|| self.features.weight());
                nn::matching_per_example(
                    &output,
                    other.as_ref().unwrap_or(&output),
                    matching.temperature,
                    weight.as_ref(),
                )
            }
            _ => match self.rows_of_weights(loss, &output) {
                Some(rows) => {
                    let [output, labels] = [&output, &labels].map(|x| rows_first(x, rows.len()));
                    let each = loss.per_example(&output, &labels, smoothing);
                    if each.is_poison() { each } else { each.reshape(rows) }
                }
                None => loss.per_example(&output, &labels, smoothing),
            },
        });
        let beside = match (loss.kind, &loss.options.with, &other) {
            // It has no labels.
            (LossKind::Matching(_), Some(with), Some(other)) => (with.as_str(), other),
            _ => (name.as_str(), &labels),
        };
        self.fits(path, &what, source, beside)?;
        let (each, weights) = self.weighed(loss, number, each, (&output, &labels))?;
        if loss.options.reduction == Reduction::WeightedMean {
            let Some(weights) = weights else {
                let path = [at("loss", number), vec![loss.name().into(), "reduction".into()]].concat();
                let message = "`reduction: weighted_mean` of examples that all weigh alike".to_string();
                let help = "add `example_weights: NAME`, or leave `reduction` out";
                return Err(NodeError::new(path, message).with_help(help));
            };
            if each.is_poison() || weights.is_poison() {
                return Ok(Term::Mean(each));
            }
            let counted = |x: &Tensor| match self.mode {
                Mode::Train => x.clone(),
                Mode::Evaluate | Mode::Predict => x * of_rows(&self.features.weight(), x),
            };
            let sum = |x: &Tensor| counted(x).sum(&axes_from(0, x));
            return Ok(Term::Ratio { sum: sum(&each), weight: sum(&weights) + Reduction::EPSILON });
        }
        Ok(Term::Mean(match self.mode {
            Mode::Train => each.mean(&axes_from(0, &each)),
            // A sum over examples counts each once, however many rows it has.
            _ if each.rank() > 1 => each.mean(&axes_from(1, &each)),
            _ => each,
        }))
    }

    fn metric(&self, number: usize, metric: &Metric, tensors: &Tensors) -> Result<task::Metric, NodeError> {
        let (source, name) = (self.wiring.metrics[number], &metric.options.labels);
        let weight = (self.mode != Mode::Train).then(|| self.features.weight());
        let pairs = self.pairs(metric, source, tensors, weight.as_ref());
        let is_of_pairs = pairs.is_some();
        let (output, labels) = match pairs {
            Some(pairs) => pairs,
            None => {
                let output = tensors.in_f32(source);
                let labels = self.target(("metrics", number, metric.kind_name()), name, &output, metric.labels())?;
                (output, labels)
            }
        };
        // The class of a distribution is its largest element, as in Keras' categorical accuracy.
        let is_distribution = metric.counts_classes()
            && is_distribution(self.config, name)
            && labels.dims() == output.dims()
            && labels.dtype().is_float();
        let labels = if is_distribution { nn::arg_max(&labels) } else { labels };
        if !is_of_pairs {
            self.judges(number, metric, source, &output)?;
        }
        let weights = self.wiring.metric_weights[number].as_ref().map(|name| (name, self.features.get(name)));
        let example_weights = weights.map(|(name, weights)| metric_weights(metric, number, name, weights, &labels));
        let judged = Judged { output: &output, labels: &labels, weight, example_weights: example_weights.transpose()? };
        let of_batch = self.written("metrics", number, self.s, |_| metric.of_batch(&judged));
        self.fits(at("metrics", number), &format!("metric `{}`", metric.name()), source, (name, &labels))?;
        Ok(of_batch)
    }

    /// The scores of each example's vector with those of the batch, and the place of its own: what a metric judges of an
    /// output that `matching` trains.
    fn pairs(
        &self,
        metric: &Metric,
        source: Source,
        tensors: &Tensors,
        weight: Option<&Tensor>,
    ) -> Option<(Tensor, Tensor)> {
        if !metric.judges_pairs() || metric.options.labels != OF_PAIRS {
            return None;
        }
        let losses = self.config.loss.iter().zip(&self.wiring.losses).zip(&self.wiring.others);
        let mut of_pairs = losses.filter_map(|((loss, judged), other)| match (loss.kind, other) {
            (LossKind::Matching(matching), Some(other)) if *judged == source => Some((matching.temperature, *other)),
            _ => None,
        });
        let (temperature, other) = of_pairs.next()?;
        let [first, second] = [source, other].map(|source| tensors.in_f32(source));
        if let Some(poison) = [&first, &second].into_iter().find(|vectors| vectors.is_poison()) {
            return Some((poison.clone(), poison.clone()));
        }
        Some(nn::pair_scores(&first, &second, temperature, weight))
    }

    /// The feature, or the number, to compare with.
    fn target(
        &self,
        (list, number, kind): (&str, usize, &str),
        name: &str,
        output: &Tensor,
        labels: Labels,
    ) -> Result<Tensor, NodeError> {
        if let Some(value) = constant(self.config, name) {
            let path = || [at(list, number), vec![kind.into(), "labels".into()]].concat();
            return match output.is_poison() {
                true => Ok(output.clone()),
                false => constant_labels(output, value, labels).map_err(|message| NodeError::new(path(), message)),
            };
        }
        let target = self.features.get(name);
        let is_whole = matches!(labels, Labels::Classes | Labels::Identities);
        Ok(if is_whole || target.is_poison() { target } else { target.cast(DType::F32) })
    }

    /// The graph's error, if a loss or metric has just caused it.
    fn fits(
        &self,
        path: Vec<Step>,
        what: &str,
        source: Source,
        (label, labels): (&str, &Tensor),
    ) -> Result<(), NodeError> {
        let Some(error) = self.s.graph().emitter().error() else { return Ok(()) };
        let judged = self.wiring.name_of(self.config, source);
        let labels = if labels.is_poison() { String::new() } else { format!(" {}", example(labels)) };
        let message = format!("{what} judges `{judged}` by `{label}`{labels}: {}", error.error.message);
        Err(NodeError { help: error.error.help, ..NodeError::new(path, message) })
    }

    /// The error of a loss or metric that applies a sigmoid or softmax that the output has applied already.
    fn reads_logits(
        &self,
        path: &[Step],
        what: &str,
        takes: Option<Activation>,
        source: Source,
    ) -> Result<(), NodeError> {
        let Source::Layer(number) = source else { return Ok(()) };
        let twice = match (takes, self.config.layers[number].kind.activation()) {
            (Some(Activation::Softmax), Some(Activation::Softmax)) => "softmax",
            (Some(Activation::Sigmoid), Some(Activation::Sigmoid)) => "sigmoid",
            _ => return Ok(()),
        };
        let name = self.wiring.name_of(self.config, source);
        let message = format!("layer `{name}` ends in {twice}, which {what} takes itself: it reads logits");
        let help = format!("leave the activation of `{name}` out, or judge the layer before it with `output: …`");
        Err(NodeError::new(path.to_vec(), message).with_help(help))
    }

    /// Checks that a metric can evaluate this output.
    fn judges(&self, number: usize, metric: &Metric, source: Source, output: &Tensor) -> Result<(), NodeError> {
        let (name, path) = (self.wiring.name_of(self.config, source), at("metrics", number));
        let what = format!("metric `{}`", metric.name());
        self.reads_logits(&path, &what, metric.takes(), source)?;
        let n_classes = output.dims().last().copied().unwrap_or_default();
        match metric.kind {
            MetricKind::TopK(TopK(k)) if k > n_classes && !output.is_poison() => {
                let message = format!("the label is always among the top {k} of {n_classes} classes");
                let help = format!("write a `top_k` of at most {}", (n_classes - 1).max(1));
                Err(NodeError::new([path, vec!["top_k".into()]].concat(), message).with_help(help))
            }
            _ => match metric.of_classes() {
                Some(instead) if self.is_of_classes(source) => {
                    let message =
                        format!("{what} judges yes-or-no answers, and `{name}` is {n_classes} logits of classes");
                    let help = format!("write `{instead}`, or judge an output that a `sigmoid_cross_entropy` trains");
                    Err(NodeError::new(path, message).with_help(help))
                }
                Some(_) | None => Ok(()),
            },
        }
    }

    /// Whether a loss treats a source as logits of classes.
    fn is_of_classes(&self, source: Source) -> bool {
        let mut losses = self.config.loss.iter().zip(&self.wiring.losses);
        losses.any(|(loss, judged)| *judged == source && loss.is_of_classes())
    }

    /// The leading dims of an output whose rows have weights, where the loss is one number for each example.
    fn rows_of_weights(&self, loss: &Loss, output: &Tensor) -> Option<Vec<i64>> {
        let name = loss.options.example_weights.as_ref().filter(|_| loss.has_rows())?;
        let described = self.config.labels.iter().chain(&self.config.inputs).find(|input| input.name == *name)?;
        let (shape, dims) = (&described.spec.shape, output.dims());
        let n_axes = 1 + shape.len();
        (n_axes > 1 && n_axes < dims.len() && dims[1..].starts_with(shape)).then(|| dims[..n_axes].to_vec())
    }

    /// The loss of each example, or of its rows, times its class's weight and its own; and the weights, if there are
    /// any.
    fn weighed(
        &self,
        loss: &Loss,
        number: usize,
        each: Tensor,
        (output, labels): (&Tensor, &Tensor),
    ) -> Result<(Tensor, Option<Tensor>), NodeError> {
        let wrong = |option: &str, message: String| {
            let path = [at("loss", number), vec![loss.name().into(), option.into()]].concat();
            Err(NodeError::new(path, message))
        };
        let graph = self.s.graph();
        let (mut each, mut of_examples) = (each, None);
        if let Some(weights) = &loss.options.class_weights {
            let n_classes = output.dims().last().copied().unwrap_or_default();
            if weights.len() as i64 != n_classes {
                let message =
                    format!("`class_weights` are {} numbers, and the output has {n_classes} classes", weights.len());
                return wrong("class_weights", message);
            }
            each = each * nn::class_weights(labels, weights);
            if let Some(error) = graph.emitter().error() {
                return wrong("class_weights", error.error.message);
            }
        }
        if let Some(name) = &loss.options.example_weights {
            let weights = self.features.get(name).cast(DType::F32);
            if weights.is_poison() {
                return Ok((each, Some(weights)));
            }
            let weights = match weights.dims() {
                dims if dims == each.dims() => weights,
                dims if dims.len() == 1 => of_rows(&weights, &each),
                _ => {
                    let or_rows = match each.rank() {
                        1 if loss.has_rows() && output.rank() > 2 => {
                            format!(", or the first axes of the output {}", example(output))
                        }
                        0 | 1 => String::new(),
                        _ => format!(" or {}", example(&each)),
                    };
                    let measured = example(&weights);
                    let message = format!("`example_weights: {name}` is {measured}, expected f32[batch]{or_rows}");
                    let help = format!("describe it as `{name}: []`: one number for each example");
                    return wrong("example_weights", message).map_err(|error| error.with_help(help));
                }
            };
            let zeros = graph.full(DType::F32, &each.dims(), 0.0);
            // A loss of weight 0 does not count, even if it is NaN.
            each = weights.equal(&zeros).select(&zeros, &(each * &weights));
            of_examples = Some(weights);
        }
        Ok((each, of_examples))
    }
}

/// The f32 weights of examples in a metric that compares with `labels`.
fn metric_weights(
    metric: &Metric,
    number: usize,
    name: &str,
    weights: Tensor,
    labels: &Tensor,
) -> Result<Tensor, NodeError> {
    let weights = weights.cast(DType::F32);
    if weights.is_poison() || labels.is_poison() || labels.dims().starts_with(&weights.dims()) {
        return Ok(weights);
    }
    let path = [at("metrics", number), vec![metric.kind_name().into(), "example_weights".into()]].concat();
    let (measured, labels) = (example(&weights), example(labels));
    let message = format!(
        "`example_weights: {name}` is {measured}, and metric `{}` has labels {labels}: expected as many rows",
        metric.name()
    );
    let help = "name others, or write `example_weights: null`: all weigh alike";
    Err(NodeError::new(path, message).with_help(help))
}

/// An array whose first axis is its first `n_axes` joined.
fn rows_first(x: &Tensor, n_axes: usize) -> Tensor {
    let dims = x.dims();
    if x.is_poison() || dims.len() < n_axes {
        return x.clone();
    }
    let (rows, rest) = dims.split_at(n_axes);
    x.reshape([&[rows.iter().product()], rest].concat())
}

fn axes_from(first: i64, x: &Tensor) -> Vec<i64> {
    (first..x.rank() as i64).collect()
}
