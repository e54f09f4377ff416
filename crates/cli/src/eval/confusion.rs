//! `eval --confusion`: which classes are mistaken for which.

use std::path::Path;

use anyhow::{Context as _, bail};

use crate::report::confusion::Confusion;
use bf16scope_data::{Batch, DataError, Loader, NamedArray, Source};
use bf16scope_hlo::DType;
use bf16scope_hlo::element::{f32s, integers};
use bf16scope_model::task::{Feature, FeatureDType, Task};
use bf16scope_train::Predictor;
use bf16scope_train::checkpoint::Checkpoint;

/// Predicts all examples of `source` from a checkpoint that was read from `path`, in batches of `batch`: a matrix
/// for each label with a class, a distribution over classes or a yes or no for each example or position, by its
/// name.
///
/// # Errors
/// A task without such a label, or without a prediction for it.
pub(super) fn confusions(
    task: &dyn Task,
    predictor: &Predictor,
    (path, checkpoint): (&Path, &Checkpoint),
    source: &dyn Source,
    batch: usize,
) -> anyhow::Result<Vec<(String, Confusion)>> {
    let counted = counted(task)?;
    let loaders = counted.iter().map(|label| label.loader(source, batch)).collect::<Result<Vec<_>, _>>()?;
    let mut truths: Vec<_> = counted
        .iter()
        .zip(&loaders)
        .map(|(label, loader)| Truths { label, batches: loader.in_order(), batch: Vec::new().into_iter() })
        .collect();
    let none = |n: usize| Confusion { n_classes: n, counts: vec![0; n * n] };
    let mut matrices: Vec<_> =
        counted.iter().map(|label| (label.feature.name.clone(), none(label.n_classes))).collect();
    predictor.predict(path, checkpoint, source, |arrays| -> anyhow::Result<()> {
        for ((label, (_, confusion)), truths) in counted.iter().zip(&mut matrices).zip(&mut truths) {
            let logits = logits_of(label, &arrays)?;
            for row in logits.bytes.chunks_exact(4 * label.n_logits()) {
                confusion.counts[truths.next_class()? * label.n_classes + label.predicted(row)] += 1;
            }
        }
        Ok(())
    })?;
    Ok(matrices)
}

/// How the classes of a label are written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// The number of a class.
    Class,
    /// A probability for each class, in the last dim.
    Distribution,
    /// The probability of a yes: class 1, where class 0 is a no.
    Answer,
}

/// A label that is counted.
struct Counted {
    feature: Feature,
    form: Form,
    n_classes: usize,
    /// The name of the prediction that the task compares with it; its own, if the task says nothing.
    output: String,
}

impl Counted {
    /// The logits of an example or position.
    fn n_logits(&self) -> usize {
        if self.form == Form::Answer { 1 } else { self.n_classes }
    }

    /// The dims of its prediction for an example.
    fn predicted_dims(&self) -> Vec<i64> {
        let mut dims = self.feature.dims.clone();
        if self.form == Form::Class {
            dims.push(self.n_classes as i64);
        }
        dims
    }

    /// Whether an array has the dtype and the dims of its prediction.
    fn fits(&self, array: &NamedArray) -> bool {
        let (dims, expected) = (array.dims.get(1..).unwrap_or_default(), self.predicted_dims());
        let has_dims = match self.form {
            // `[8, 8]` is as good as `[8, 8, 1]`.
            Form::Answer => without_ones(dims) == without_ones(&expected),
            Form::Class | Form::Distribution => dims == expected,
        };
        array.dtype == DType::F32 && has_dims
    }

    /// The predicted class of a row of logits.
    fn predicted(&self, row: &[u8]) -> usize {
        match self.form {
            Form::Class | Form::Distribution => first_greatest(row),
            Form::Answer => usize::from(f32s(DType::F32, row).into_iter().flatten().any(|logit| logit > 0.0)),
        }
    }

    /// A loader of this label alone, as integers of 64 bits or probabilities in f32.
    fn loader<'a>(&self, source: &'a dyn Source, batch: usize) -> Result<Loader<'a>, DataError> {
        let dtype = if self.form == Form::Class { DType::S64 } else { DType::F32 };
        let exact = Feature { dtype: FeatureDType::Exact(dtype), ..self.feature.clone() };
        Loader::new(source, &[exact], DType::F32, batch, 0)
    }

    /// The true classes of a batch, without padding; of a distribution the most probable.
    fn truths(&self, batch: &Batch) -> Vec<usize> {
        let array = &batch.arrays[0];
        let n_bytes = array.bytes.len() / array.dims[0].unsigned_abs().max(1) as usize;
        let bytes = &array.bytes[..n_bytes * batch.n_valid];
        match self.form {
            Form::Class => integers(DType::S64, bytes).into_iter().flatten().map(|class| class as usize).collect(),
            Form::Distribution => bytes.chunks_exact(4 * self.n_classes).map(first_greatest).collect(),
            Form::Answer => f32s(DType::F32, bytes).into_iter().flatten().map(|yes| usize::from(yes > 0.5)).collect(),
        }
    }
}

/// The true classes of a label, over all examples in order.
struct Truths<'a, I> {
    label: &'a Counted,
    batches: I,
    batch: std::vec::IntoIter<usize>,
}

impl<I: Iterator<Item = Result<Batch, DataError>>> Truths<'_, I> {
    /// The class of the next example or position.
    fn next_class(&mut self) -> anyhow::Result<usize> {
        loop {
            if let Some(class) = self.batch.next() {
                return Ok(class);
            }
            let batch = self.batches.next().context("there are more predictions than labels")??;
            self.batch = self.label.truths(&batch).into_iter();
        }
    }
}

/// The most classes of a label with a class for each position, as of tokens: the matrix then takes 128 MiB.
const MAX_CLASSES: i64 = 4096;

/// The labels that are counted. Warns of others that a prediction's classes or answers are compared with.
fn counted(task: &dyn Task) -> anyhow::Result<Vec<Counted>> {
    let (features, of_classes, of_answers) = (task.features(), task.class_labels(), task.binary_labels());
    let output_of = |label: &Feature, known: &[(String, String)]| {
        known.iter().find(|(_, judged)| *judged == label.name).map(|(output, _)| output.clone())
    };
    let labels = || features.iter().filter(|feature| feature.is_label);
    let as_counted = |label: &Feature| -> Option<Counted> {
        let (of_class, of_answer) = (output_of(label, &of_classes), output_of(label, &of_answers));
        let (form, n_classes, output) = match (label.n_values, label.dtype, &label.dims[..]) {
            (Some(n), FeatureDType::Exact(_), []) => (Form::Class, n, of_class.unwrap_or_else(|| label.name.clone())),
            // Labels of a sequence that is to be aligned belong to no position.
            (Some(n), FeatureDType::Exact(_), _) if n <= MAX_CLASSES && label.alignments.is_empty() => {
                (Form::Class, n, of_class?)
            }
            (None, _, &[.., n]) if label.is_probability && of_class.is_some() => (Form::Distribution, n, of_class?),
            // Several answers about an example have a matrix each, which are not made.
            (None, _, [] | [1] | [_, _, ..]) if label.is_probability => (Form::Answer, 2, of_answer?),
            _ => return None,
        };
        Some(Counted { feature: label.clone(), form, n_classes: usize::try_from(n_classes).ok()?, output })
    };
    let counted: Vec<Counted> = labels().filter_map(as_counted).collect();
    let shown = |label: &Feature| format!("{} {:?}", label.name, label.dims);
    if counted.is_empty() {
        let labels_found: Vec<String> = labels().map(shown).collect();
        bail!(
            "--confusion needs one class for each example or position, and the labels of {} are: {}\nhelp: leave --confusion \
             out: it counts classes, which a loss such as `sparse_softmax_cross_entropy` learns",
            task.name(),
            if labels_found.is_empty() { "none".to_string() } else { labels_found.join(", ") }
        )
    }
    let is_judged = |label: &Feature| [&of_classes, &of_answers].iter().any(|known| output_of(label, known).is_some());
    let is_counted = |label: &Feature| counted.iter().any(|one| one.feature.name == label.name);
    let left_out: Vec<String> = labels().filter(|label| is_judged(label) && !is_counted(label)).map(shown).collect();
    if !left_out.is_empty() {
        tracing::warn!(
            "--confusion leaves out {}: it counts a class or one yes or no for each example or position, and at most \
             {MAX_CLASSES} classes at positions",
            left_out.join(", ")
        );
    }
    Ok(counted)
}

/// Dims without those of 1 at the end.
fn without_ones(dims: &[i64]) -> &[i64] {
    let n = dims.iter().rposition(|&dim| dim != 1).map_or(0, |last| last + 1);
    &dims[..n]
}

/// The prediction of a label: that of its output's name, or `logits`, or the only one of its dims.
fn logits_of<'a>(label: &Counted, arrays: &'a [NamedArray]) -> anyhow::Result<&'a NamedArray> {
    let fitting: Vec<&NamedArray> = arrays.iter().filter(|array| label.fits(array)).collect();
    let named = |name: &str| fitting.iter().find(|array| array.name == name).copied();
    let name = &label.feature.name;
    match (named(&label.output).or_else(|| named("logits")), &fitting[..]) {
        (Some(array), _) => Ok(array),
        (None, [only]) => Ok(only),
        (None, []) => {
            let dims: Vec<String> = label.predicted_dims().iter().map(|dim| format!(", {dim}")).collect();
            bail!(
                "--confusion needs a prediction f32[batch{}] of `{name}`, and there are {}\nhelp: leave --confusion out",
                dims.concat(),
                described(arrays)
            )
        }
        (None, _) => bail!(
            "--confusion does not know which prediction is of `{name}`: there are {}\nhelp: give one of `outputs` the name \
             `{name}`",
            described(arrays)
        ),
    }
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
    use bf16scope_model::document;
    use bf16scope_model::models::Model;

    #[test]
    fn labels_of_classes_and_of_one_answer_are_counted_and_no_others() {
        let forms = |rest: &str| -> Result<Vec<(String, Form)>, String> {
            let text = format!("kind: layers\ninputs: {{x: [4]}}\n{rest}");
            let model: Model = document::from_str("m.yaml", &text).unwrap();
            let counted = counted(&*model.task(0.0)).map_err(|error| error.to_string())?;
            Ok(counted.into_iter().map(|label| (label.feature.name, label.form)).collect())
        };
        let several = "layers: [{dense: 3, name: a}, {dense: 5, inputs: x, name: b}, {dense: 1, inputs: x, name: c}]\n\
                       outputs: {a: a, b: b, c: c}\nloss:\n  - {sparse_softmax_cross_entropy: , output: a, labels: kind}\n  \
                       - {sigmoid_cross_entropy: , output: b, labels: tags}\n  \
                       - {sigmoid_cross_entropy: , output: c, labels: sure}\n";
        let expected = [("kind".to_string(), Form::Class), ("sure".to_string(), Form::Answer)];
        assert_eq!(forms(several).unwrap(), expected);
        let tags = forms("layers: [{dense: 5}]\nloss: sigmoid_cross_entropy\n").unwrap_err();
        assert!(
            tags.starts_with(
                "--confusion needs one class for each example or position, and the labels of layers are: labels [5]\n"
            ),
            "{tags}"
        );
    }

    #[test]
    fn the_prediction_of_a_label_is_found_by_its_classes_and_its_name() {
        let array = |name: &str, dims: &[i64]| NamedArray {
            name: name.to_string(),
            dtype: DType::F32,
            dims: dims.to_vec(),
            bytes: Vec::new(),
        };
        let label = |name: &str, dims: &[i64], (form, n_classes): (Form, usize)| Counted {
            feature: Feature::exact(name, DType::S32, dims).label(),
            form,
            n_classes,
            output: name.to_string(),
        };
        let logits_name = |name: &str, n_classes, arrays: &[NamedArray]| {
            logits_of(&label(name, &[], (Form::Class, n_classes)), arrays)
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
        let size = Counted { output: "size".into(), ..label("labels", &[], (Form::Class, 3)) };
        assert_eq!(logits_of(&size, &heads).unwrap().name, "size");
        // A class for each pixel, and a yes or no for each example or pixel.
        let pictures = [array("classes", &[8, 4, 4, 3]), array("mask", &[8, 4, 4, 1]), array("old", &[8])];
        let prediction = |dims: &[i64], form, n_classes| {
            logits_of(&label("labels", dims, (form, n_classes)), &pictures).map(|array| array.name.clone())
        };
        assert_eq!(prediction(&[4, 4], Form::Class, 3).unwrap(), "classes");
        assert_eq!(prediction(&[4, 4], Form::Answer, 2).unwrap(), "mask");
        assert_eq!(prediction(&[1], Form::Answer, 2).unwrap(), "old");
        let none = prediction(&[4, 4], Form::Class, 5).unwrap_err().to_string();
        assert!(none.contains("needs a prediction f32[batch, 4, 4, 5] of `labels`"), "{none}");
    }

    #[test]
    fn of_equal_logits_the_first_is_taken() {
        let row: Vec<u8> = [1.0f32, 3.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(first_greatest(&row), 1);
    }
}
