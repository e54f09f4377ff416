//! Predictions on the host, and the classes and probabilities from their logits.

use anyhow::bail;
use serde_json::Value;

use bf16scope_data::NamedArray;
use bf16scope_hlo::element::{f32s, integers};
use bf16scope_hlo::{ArrayShape, DType};
use bf16scope_pjrt::available_memory;

use super::write::nested;
use crate::class_names::Names;

/// Numbers of an array in a table.
const N_NUMBERS: usize = 4;

/// Predictions for all examples, or for the first.
pub(super) struct Collected {
    n_examples: u64,
    /// The largest number of examples to keep.
    keep: usize,
    top: Option<usize>,
    /// Names of logits whose elements are independent yes/no predictions.
    independent: Vec<String>,
    /// Names of classes by output, where they are known.
    names: Names,
    n_seen: u64,
    /// The kept arrays: the task's, followed by the results computed from its logits.
    pub(super) arrays: Vec<NamedArray>,
}

impl Collected {
    pub(super) fn new(n_examples: u64, keep: usize, top: Option<usize>, independent: Vec<String>) -> Collected {
        Collected { n_examples, keep, top, independent, names: Vec::new(), n_seen: 0, arrays: Vec::new() }
    }

    /// Sets the names of classes.
    pub(super) fn named(self, names: Names) -> Collected {
        Collected { names, ..self }
    }

    /// The name of a class of an output.
    fn name(&self, output: &str, class: usize) -> String {
        let names = self.names.iter().find(|(named, _)| named == output);
        names.and_then(|(_, names)| names.get(class)).cloned().unwrap_or_else(|| class.to_string())
    }

    /// The class name of each kept example, of each output whose classes have names.
    pub(super) fn class_names(&self) -> Names {
        let of_output = |(output, _): &(String, Vec<String>)| {
            let classes = derived(output, "classes");
            let array = self.arrays.iter().find(|array| array.name == classes && array.dims.len() == 1)?;
            let numbers = integers(array.dtype, &array.bytes)?;
            Some((output.clone(), numbers.map(|class| self.name(output, class as usize)).collect()))
        };
        self.names.iter().filter_map(of_output).collect()
    }

    /// Whether an array is another output than `logits` whose classes have names.
    fn is_head(&self, array: &NamedArray) -> bool {
        let names = self.names.iter().find(|(output, _)| *output == array.name);
        array.name != LOGITS
            && array.dtype == DType::F32
            && array.dims.len() >= 2
            && names.is_some_and(|(_, names)| array.dims.last() == Some(&(names.len() as i64)))
    }

    /// Adds the predictions for one more batch. `place` names an example's place.
    ///
    /// # Errors
    /// Predictions that are not finite, or too large to keep; `--top` with more classes than there are.
    pub(super) fn add(&mut self, mut batch: Vec<NamedArray>, place: impl Fn(u64) -> String) -> anyhow::Result<()> {
        let n = batch.first().map_or(0, |array| array.dims[0].unsigned_abs());
        let is_independent = |array: &NamedArray| self.independent.contains(&array.name) && array.dtype == DType::F32;
        let independent: Vec<NamedArray> =
            batch.iter().filter(|array| is_independent(array)).map(|logits| self.of_independent(logits)).collect();
        let has_classes = |array: &&NamedArray| (is_logits(array) || self.is_head(array)) && !is_independent(array);
        let of_classes = batch.iter().filter(has_classes).map(|logits| self.of_logits(logits, &place));
        let of_classes: Vec<NamedArray> = of_classes.collect::<anyhow::Result<Vec<_>>>()?.concat();
        if of_classes.is_empty() && self.top.is_some() {
            let names: Vec<&str> = batch.iter().map(|array| array.name.as_str()).collect();
            bail!(
                "--top: the task predicts {}; expected `logits`, f32, whose last dim counts classes",
                names.join(", ")
            );
        }
        batch.extend(of_classes.into_iter().chain(independent));
        if self.n_seen == 0 {
            self.check_memory(&batch)?;
        }
        let room = (self.keep as u64).saturating_sub(self.n_seen).min(n);
        for mut array in batch {
            let n_bytes = array.bytes.len() / (n as usize).max(1);
            array.bytes.truncate(n_bytes * room as usize);
            array.dims[0] = room as i64;
            match self.arrays.iter_mut().find(|collected| collected.name == array.name) {
                Some(own) => {
                    own.bytes.append(&mut array.bytes);
                    own.dims[0] += room as i64;
                }
                None => self.arrays.push(array),
            }
        }
        self.n_seen += n;
        Ok(())
    }

    /// Checks that all predictions fit in memory, also while they are written.
    fn check_memory(&self, batch: &[NamedArray]) -> anyhow::Result<()> {
        let (Some(available), Some(first)) = (available_memory(), batch.first()) else { return Ok(()) };
        let n_bytes: u64 = batch.iter().map(|array| array.bytes.len() as u64).sum();
        let n_kept = self.n_examples.min(self.keep as u64);
        let needed = (n_bytes / first.dims[0].unsigned_abs().max(1)).saturating_mul(n_kept).saturating_mul(2);
        if needed > available {
            bail!(
                "the predictions for {n_kept} examples take {needed} bytes of memory, and this machine has {available} \
                 available\nhelp: give fewer examples at a time with --inputs"
            );
        }
        Ok(())
    }

    /// The probability of each yes: `probabilities`, or `NAME_probabilities` if several predictions have them.
    fn of_independent(&self, logits: &NamedArray) -> NamedArray {
        let name = match self.independent.as_slice() {
            [_] => "probabilities".to_string(),
            _ => format!("{}_probabilities", logits.name),
        };
        let values = f32s(DType::F32, &logits.bytes).into_iter().flatten().map(sigmoid);
        let bytes = values.flat_map(f64::to_le_bytes).collect();
        NamedArray { name, dtype: DType::F64, dims: logits.dims.clone(), bytes }
    }

    /// Classes and probabilities.
    fn of_logits(&self, logits: &NamedArray, place: impl Fn(u64) -> String) -> anyhow::Result<Vec<NamedArray>> {
        let (leading, n_classes) = match logits.dims.as_slice() {
            [leading @ .., last] => (leading, *last as usize),
            [] => bail!("`logits` have no dims: this is a bug of bf16scope"),
        };
        if let Some(k) = self.top.filter(|&k| k > n_classes) {
            bail!("--top {k}: the network tells {n_classes} classes apart; expected {n_classes} at most");
        }
        let values: Vec<f32> = f32s(DType::F32, &logits.bytes).into_iter().flatten().collect();
        let (mut classes, mut probabilities) = (Vec::new(), Vec::new());
        let (mut top_classes, mut top_probabilities) = (Vec::new(), Vec::new());
        let rows_per_example = (values.len() / n_classes).checked_div(leading[0].unsigned_abs() as usize).unwrap_or(1);
        for (row, values) in values.chunks_exact(n_classes).enumerate() {
            if let Some((class, value)) = values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
                let example = self.n_seen + (row / rows_per_example.max(1)) as u64;
                bail!(
                    "{}: the logit of class {class} is {value}; expected a finite number\nhelp: try --precision f32, or \
                     look at the example: it may be far from what the network was trained on",
                    place(example)
                );
            }
            let softmax = softmax(values);
            let order = best(values, self.top.unwrap_or(1));
            classes.extend((order[0] as i32).to_le_bytes());
            for &class in order.iter().take(self.top.unwrap_or(0)) {
                top_classes.extend((class as i32).to_le_bytes());
                top_probabilities.extend(softmax[class].to_le_bytes());
            }
            probabilities.extend(softmax.into_iter().flat_map(f64::to_le_bytes));
        }
        let array = |name: &str, dtype, last: Option<usize>, bytes| NamedArray {
            name: derived(&logits.name, name),
            dtype,
            dims: leading.iter().copied().chain(last.map(|last| last as i64)).collect(),
            bytes,
        };
        let mut arrays = vec![
            array("classes", DType::S32, None, classes),
            array("probabilities", DType::F64, Some(n_classes), probabilities),
        ];
        if let Some(k) = self.top {
            arrays.push(array("top_classes", DType::S32, Some(k), top_classes));
            arrays.push(array("top_probabilities", DType::F64, Some(k), top_probabilities));
        }
        Ok(arrays)
    }

    /// `logits f32[360,10], classes s32[360]`.
    pub(super) fn described(&self) -> String {
        let shape = |array: &NamedArray| format!("{} {}", array.name, ArrayShape::new(array.dtype, array.dims.clone()));
        self.arrays.iter().map(shape).collect::<Vec<_>>().join(", ")
    }

    /// Titles of columns, and a row for each example that was kept.
    ///
    /// # Errors
    /// A prediction's dtype has no text form.
    pub(super) fn rows(&self) -> anyhow::Result<(Vec<String>, Vec<Vec<String>>)> {
        let find = |name: &str| self.arrays.iter().find(|array| array.name == name);
        let n = self.arrays.first().map_or(0, |array| array.dims[0].unsigned_abs() as usize);
        let is_flat = find("logits").is_some_and(|array| is_logits(array) && array.dims.len() == 2);
        let mut columns = vec!["example".to_string()];
        let mut rows: Vec<Vec<String>> = (0..n).map(|row| vec![row.to_string()]).collect();
        if let (true, Some(classes), Some(probabilities)) = (is_flat, find("classes"), find("probabilities")) {
            let (classes, probabilities) = (numbers(classes)?, numbers(probabilities)?);
            columns.extend(["class", "probability"].map(str::to_string));
            columns.extend(self.top.map(|_| "best".to_string()));
            let per_row = probabilities.len() / n.max(1);
            for (place, row) in rows.iter_mut().enumerate() {
                let of_row: Vec<f64> =
                    probabilities[place * per_row..][..per_row].iter().filter_map(Value::as_f64).collect();
                let class = classes[place].as_u64().unwrap_or(0) as usize;
                row.extend([self.name(LOGITS, class), percent(of_row[class])]);
                if let (Some(k), Some(top)) = (self.top, find("top_classes")) {
                    let top = numbers(top)?;
                    let best = top[place * k..][..k].iter().filter_map(Value::as_u64);
                    let share = |class: usize| format!("{}: {}", self.name(LOGITS, class), percent(of_row[class]));
                    row.push(best.map(|class| share(class as usize)).collect::<Vec<_>>().join(", "));
                }
            }
        }
        let has_class = columns.len() > 1;
        let is_top = |name: &str| name.ends_with("top_classes") || name.ends_with("top_probabilities");
        let head_of = |name: &str| {
            let mut heads = self.names.iter().map(|(output, _)| output.as_str());
            heads.find(|output| *output != LOGITS && derived(output, "classes") == name)
        };
        // Beside the class of `logits`, those of other outputs.
        let is_shown = |array: &&NamedArray| !is_top(&array.name) && (!has_class || head_of(&array.name).is_some());
        for array in self.arrays.iter().filter(is_shown) {
            columns.push(array.name.clone());
            let head = head_of(&array.name);
            let numbers = numbers(array)?;
            let per_row = numbers.len() / n.max(1);
            let cell = |number: &Value| match (head, number.as_u64()) {
                (Some(output), Some(class)) => self.name(output, class as usize),
                _ => short(number),
            };
            for (place, row) in rows.iter_mut().enumerate() {
                let shown = numbers[place * per_row..][..per_row].iter().take(N_NUMBERS);
                let mut cell = shown.map(cell).collect::<Vec<_>>().join(" ");
                if per_row > N_NUMBERS {
                    cell += " …";
                }
                row.push(cell);
            }
        }
        Ok((columns, rows))
    }
}

/// The output whose classes need no prefix.
const LOGITS: &str = "logits";

/// The name of what is computed from an output: `classes`, or `NAME_classes`.
fn derived(output: &str, name: &str) -> String {
    if output == LOGITS { name.to_string() } else { format!("{output}_{name}") }
}

/// Whether an array gives classes.
fn is_logits(array: &NamedArray) -> bool {
    let has_classes = array.dims.len() >= 2 && array.dims.last().is_some_and(|&n_classes| n_classes > 0);
    array.name == LOGITS && array.dtype == DType::F32 && has_classes
}

/// Without overflow: the largest logit is subtracted from all.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|&logit| (f64::from(logit) - f64::from(greatest)).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// 1 / (1 + e^-x), in f64, which underflows to 0 and never becomes NaN.
fn sigmoid(logit: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(logit)).exp())
}

/// The `k` largest, the best first; among equal ones the first.
fn best(logits: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // -0 and 0 are equal.
    let by =
        |a: &usize, b: &usize| logits[*b].partial_cmp(&logits[*a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(b));
    if k < order.len() {
        order.select_nth_unstable_by(k, by);
        order.truncate(k);
    }
    order.sort_unstable_by(by);
    order
}

/// All numbers of an array.
fn numbers(array: &NamedArray) -> anyhow::Result<Vec<Value>> {
    let n_elements: i64 = array.dims.iter().product();
    match nested(&NamedArray { dims: vec![n_elements], ..array.clone() })? {
        Value::Array(numbers) => Ok(numbers),
        other => Ok(vec![other]),
    }
}

fn percent(part: f64) -> String {
    format!("{:.2} %", 100.0 * part)
}

fn short(number: &Value) -> String {
    match (number.as_i64(), number.as_f64()) {
        (None, Some(value)) => format!("{value:.4}"),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_logits_the_first_is_best() {
        assert_eq!(best(&[0.0, 3.0, -0.0, 3.0, 1.0], 4), [1, 3, 4, 0]);
        assert_eq!(best(&[2.0, 2.0], 2), [0, 1]);
    }

    #[test]
    fn of_independent_logits_each_has_a_probability() {
        assert_eq!([0.0, f32::MAX, f32::MIN].map(sigmoid), [0.5, 1.0, 0.0]);
        // e^-2 is accurate to half an ulp; a sum and a quotient are rounded after it, in each of the two.
        assert!((sigmoid(2.0) + sigmoid(-2.0) - 1.0).abs() <= 4.0 * f64::EPSILON);
        let logits = NamedArray { name: "genres".into(), dtype: DType::F32, dims: vec![1, 2], bytes: vec![0; 8] };
        let names = |independent: &[&str]| {
            let independent = independent.iter().map(|name| name.to_string()).collect();
            let mut collected = Collected::new(1, 1, None, independent);
            collected.add(vec![logits.clone()], |_| String::new()).unwrap();
            collected.described()
        };
        assert_eq!(names(&["genres"]), "genres f32[1,2], probabilities f64[1,2]");
        assert_eq!(names(&["genres", "moods"]), "genres f32[1,2], genres_probabilities f64[1,2]");
        assert_eq!(names(&[]), "genres f32[1,2]");
    }

    #[test]
    fn each_output_whose_label_has_names_has_its_classes() {
        let output = |name: &str, scores: &[f32]| NamedArray {
            name: name.into(),
            dtype: DType::F32,
            dims: vec![1, scores.len() as i64],
            bytes: scores.iter().flat_map(|score| score.to_le_bytes()).collect(),
        };
        let batch = vec![output("kind", &[0.0, 1.0]), output("size", &[2.0, 0.0, 1.0]), output("age", &[3.0])];
        let list = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let names = vec![("kind".to_string(), list(&["cat", "dog"])), ("size".to_string(), list(&["s", "m", "l"]))];
        let mut collected = Collected::new(1, 1, Some(2), Vec::new()).named(names);
        collected.add(batch, |_| String::new()).unwrap();
        let chosen = [("kind".to_string(), list(&["dog"])), ("size".to_string(), list(&["s"]))];
        assert_eq!(collected.class_names(), chosen);
        let (columns, rows) = collected.rows().unwrap();
        let cell = |column: &str| rows[0][columns.iter().position(|title| title == column).unwrap()].clone();
        assert_eq!([cell("kind_classes"), cell("size_classes"), cell("age")], ["dog", "s", "3.0000"]);
        assert!(!columns.iter().any(|column| column.contains("top_") || column.starts_with("age_")), "{columns:?}");
    }

    #[test]
    fn great_logits_do_not_overflow() {
        assert_eq!(softmax(&[f32::MAX, f32::MAX, f32::MIN]), [0.5, 0.5, 0.0]);
        assert_eq!(softmax(&[0.0, 0.0, 0.0, 0.0]), [0.25; 4]);
    }
}
