//! `eval --confusion`: which classes are mistaken for which.

use std::path::Path;

use anyhow::{Context as _, bail};

use crate::report::{Column, Screen, Table, grouped};
use bf16scope_data::{Loader, NamedArray, Source};
use bf16scope_hlo::DType;
use bf16scope_hlo::element::{f32s, integers};
use bf16scope_model::task::{Feature, FeatureDType, Task};
use bf16scope_train::Predictor;
use bf16scope_train::checkpoint::Checkpoint;

/// The number of pairs in the list that replaces a matrix too wide for the screen.
const N_PAIRS: usize = 20;

/// The confusion matrix: how many examples of each class were predicted as each.
pub(super) struct Confusion {
    n_classes: usize,
    /// Row-major: the true class, then the predicted one.
    counts: Vec<u64>,
}

impl Confusion {
    /// Predicts all examples of `source` from a checkpoint that was read from `path`, in batches of `batch`: a matrix
    /// for each label that is a class or a distribution over classes, by its name.
    ///
    /// # Errors
    /// A task without a class or a distribution over classes as a label, or without a prediction of `[batch, n_classes]`
    /// for it.
    pub(super) fn compute(
        task: &dyn Task,
        predictor: &Predictor,
        (path, checkpoint): (&Path, &Checkpoint),
        source: &dyn Source,
        batch: usize,
    ) -> anyhow::Result<Vec<(String, Confusion)>> {
        let known = task.class_labels();
        let output_of = |label: &str| {
            let mut outputs = known.iter().filter(|(_, judged)| judged == label).map(|(output, _)| output.as_str());
            outputs.next()
        };
        let described = classes(task)?;
        let truths = described.iter().map(|(label, _)| labels(label, source, batch));
        let mut truths: Vec<_> = truths.map(|labels| labels.map(Vec::into_iter)).collect::<anyhow::Result<_>>()?;
        let none = |n: usize| Confusion { n_classes: n, counts: vec![0; n * n] };
        let mut matrices: Vec<_> = described.into_iter().map(|(label, n)| (label.name, none(n))).collect();
        predictor.predict(path, checkpoint, source, |arrays| -> anyhow::Result<()> {
            for ((label, confusion), truths) in matrices.iter_mut().zip(&mut truths) {
                let (label, n_classes) = (label.as_str(), confusion.n_classes);
                let logits = logits_of(output_of(label).unwrap_or(label), label, (n_classes, &arrays[..]))?;
                for row in logits.bytes.chunks_exact(4 * n_classes) {
                    let truth = truths.next().context("there are more predictions than labels")?;
                    confusion.counts[truth * n_classes + first_greatest(row)] += 1;
                }
            }
            Ok(())
        })?;
        Ok(matrices)
    }

    /// The matrix, a row for each true class.
    pub(super) fn rows(&self) -> Vec<&[u64]> {
        self.counts.chunks_exact(self.n_classes).collect()
    }

    /// The matrix if it fits the screen, otherwise the most frequent confusions.
    ///
    /// `names` are the classes' names, if known.
    pub(super) fn render(&self, names: &[String], screen: Screen) -> String {
        let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let mut matrix = Table::new(
            [Column::number("true \\ predicted")]
                .into_iter()
                .chain((0..self.n_classes).map(|class| Column::number(name(class)))),
        );
        for (class, row) in self.rows().iter().enumerate() {
            let counts = row.iter().map(|&n| if n == 0 { "·".to_string() } else { n.to_string() });
            matrix.row([name(class)].into_iter().chain(counts));
        }
        let rendered = matrix.render(screen);
        // A table that does not fit becomes a list, a line for each cell.
        match rendered.lines().count() <= self.n_classes + 6 {
            true => rendered,
            false => self.pairs(names, screen),
        }
    }

    fn pairs(&self, names: &[String], screen: Screen) -> String {
        let n = self.n_classes;
        let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let mut pairs: Vec<(u64, usize, usize)> = (0..n * n)
            .filter(|at| at / n != at % n && self.counts[*at] > 0)
            .map(|at| (self.counts[at], at / n, at % n))
            .collect();
        pairs.sort_by_key(|&(count, truth, predicted)| (std::cmp::Reverse(count), truth, predicted));
        let mut table = Table::new([
            Column::number("true"),
            Column::number("predicted"),
            Column::number("examples"),
            Column::number("of the true"),
        ]);
        for &(count, truth, predicted) in pairs.iter().take(N_PAIRS) {
            let of_class: u64 = self.rows()[truth].iter().sum();
            let part = format!("{:.1} %", 100.0 * count as f64 / of_class as f64);
            table.row([name(truth), name(predicted), grouped(count as i64), part]);
        }
        let mut text = table.render(screen);
        if let Some(rest) = pairs.len().checked_sub(N_PAIRS).filter(|&rest| rest > 0) {
            text += &format!("{rest} more pairs: --json has the whole matrix\n");
        }
        text
    }
}

/// The labels that are a single class per example, or a distribution over classes, with their numbers of classes.
fn classes(task: &dyn Task) -> anyhow::Result<Vec<(Feature, usize)>> {
    let (features, known) = (task.features(), task.class_labels());
    let labels = || features.iter().filter(|feature| feature.is_label);
    let is_distribution =
        |label: &Feature| label.is_probability && known.iter().any(|(_, of_classes)| *of_classes == label.name);
    let of_classes = labels().filter_map(|label| match (label.n_values, label.dtype, &label.dims[..]) {
        (Some(n_classes), FeatureDType::Exact(_), []) => Some((label.clone(), usize::try_from(n_classes).ok()?)),
        (None, _, &[n_classes]) if is_distribution(label) => Some((label.clone(), usize::try_from(n_classes).ok()?)),
        _ => None,
    });
    let of_classes: Vec<(Feature, usize)> = of_classes.collect();
    if !of_classes.is_empty() {
        return Ok(of_classes);
    }
    let labels_found: Vec<String> = labels().map(|label| format!("{} {:?}", label.name, label.dims)).collect();
    bail!(
        "--confusion needs one class for each example, and the labels of {} are: {}\nhelp: leave --confusion out: it counts \
         classes, which a loss such as `sparse_softmax_cross_entropy` learns",
        task.name(),
        if labels_found.is_empty() { "none".to_string() } else { labels_found.join(", ") }
    )
}

/// The prediction of a label: that of the name `output`, or `logits`, or the only one with a number for each class.
fn logits_of<'a>(
    output: &str,
    label: &str,
    (n_classes, arrays): (usize, &'a [NamedArray]),
) -> anyhow::Result<&'a NamedArray> {
    let fits = |array: &&NamedArray| array.dtype == DType::F32 && array.dims[1..] == [n_classes as i64];
    let fitting: Vec<&NamedArray> = arrays.iter().filter(fits).collect();
    let named = |name: &str| fitting.iter().find(|array| array.name == name).copied();
    match (named(output).or_else(|| named("logits")), &fitting[..]) {
        (Some(array), _) => Ok(array),
        (None, [only]) => Ok(only),
        (None, []) => bail!(
            "--confusion needs a prediction f32[batch, {n_classes}] of `{label}`, and there are {}\nhelp: leave --confusion out",
            described(arrays)
        ),
        (None, _) => bail!(
            "--confusion does not know which prediction is of `{label}`: there are {}\nhelp: give one of `outputs` the name \
             `{label}`",
            described(arrays)
        ),
    }
}

/// The labels of all examples, in order; of a distribution the most probable class.
fn labels(label: &Feature, source: &dyn Source, batch: usize) -> anyhow::Result<Vec<usize>> {
    let dtype = if label.is_probability { DType::F32 } else { DType::S64 };
    let exact = Feature { dtype: FeatureDType::Exact(dtype), ..label.clone() };
    let mut labels = Vec::new();
    for batch in Loader::new(source, &[exact], DType::F32, batch, 0)?.in_order() {
        let batch = batch?;
        let bytes = &batch.arrays[0].bytes;
        if label.is_probability {
            let n_bytes = bytes.len() / batch.arrays[0].dims[0].unsigned_abs().max(1) as usize;
            labels.extend(bytes.chunks_exact(n_bytes.max(1)).take(batch.n_valid).map(first_greatest));
            continue;
        }
        let classes = integers(DType::S64, bytes).into_iter().flatten();
        labels.extend(classes.take(batch.n_valid).map(|class| class as usize));
    }
    Ok(labels)
}

/// The class of a row's largest logit, the first if several are equal.
pub(crate) fn first_greatest(row: &[u8]) -> usize {
    let logits = f32s(DType::F32, row).into_iter().flatten();
    let better = |best: (usize, f32), next: (usize, f32)| if next.1 > best.1 { next } else { best };
    logits.enumerate().fold((0, f32::NEG_INFINITY), better).0
}

fn described(arrays: &[NamedArray]) -> String {
    let shown = arrays.iter().map(|array| format!("{} {}{:?}", array.name, array.dtype, array.dims));
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_shown_where_it_fits_and_the_worst_pairs_where_not() {
        let confusion = Confusion { n_classes: 2, counts: vec![5, 1, 0, 4] };
        let screen = Screen::with_width(80);
        let named = confusion.render(&["cat".to_string(), "dog".to_string()], screen);
        assert!(named.contains("cat") && named.contains("dog"), "{named}");
        let text = confusion.render(&[], screen);
        assert!(text.contains("true \\ predicted") && text.contains('·'), "{text}");
        let mut counts = vec![0; 40 * 40];
        (counts[3 * 40 + 3], counts[3 * 40 + 7]) = (3, 1);
        let text = Confusion { n_classes: 40, counts }.render(&[], screen);
        assert!(text.contains("25.0 %") && text.contains('7'), "{text}");
    }

    #[test]
    fn the_prediction_of_a_label_is_found_by_its_classes_and_its_name() {
        let array = |name: &str, dims: &[i64]| NamedArray {
            name: name.to_string(),
            dtype: DType::F32,
            dims: dims.to_vec(),
            bytes: Vec::new(),
        };
        let logits_name = |label: &str, n_classes, arrays: &[NamedArray]| {
            logits_of(label, label, (n_classes, arrays))
                .map(|array| array.name.clone())
                .map_err(|error| error.to_string())
        };
        let heads = [array("kind", &[8, 3]), array("size", &[8, 3]), array("age", &[8, 1]), array("place", &[8, 5])];
        assert_eq!(
            (logits_name("kind", 3, &heads).unwrap(), logits_name("where", 5, &heads).unwrap()),
            ("kind".into(), "place".into())
        );
        let unknown = logits_name("what", 3, &heads).unwrap_err();
        assert!(unknown.contains("does not know which prediction is of `what`"), "{unknown}");
        let none = logits_name("kind", 7, &heads).unwrap_err();
        assert!(none.contains("needs a prediction f32[batch, 7] of `kind`, and there are kind f32[8, 3]"), "{none}");
        assert_eq!(logits_name("labels", 3, &[array("other", &[8, 3]), array("logits", &[8, 3])]).unwrap(), "logits");
        // The task knows which is of a label, whatever it is called.
        assert_eq!(logits_of("size", "labels", (3, &heads[..])).unwrap().name, "size");
    }

    #[test]
    fn of_equal_logits_the_first_is_taken() {
        let row: Vec<u8> = [1.0f32, 3.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(first_greatest(&row), 1);
    }
}
