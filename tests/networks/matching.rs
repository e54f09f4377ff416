//! In-batch matching beside the softmax of all pairs of a batch, and through an experiment.

use crate::run;
use bf16scope::document;
use bf16scope::graph::{Graph, Precision};
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::nn::matching_per_example;
use bf16scope::passes::grad;
use bf16scope::train::program::evaluation;
use bf16scope::tuning::Tuning;

const BATCH: usize = 4;
const SIZE: usize = 3;
const TEMPERATURE: f64 = 0.5;

fn vectors(step: usize) -> Vec<f32> {
    (0..BATCH * SIZE).map(|n| ((n * step) % 11) as f32 / 5.0 - 1.0).collect()
}

/// The loss of each of the first `n` examples among themselves.
fn witness(first: &[f64], second: &[f64], n: usize) -> Vec<f64> {
    let score = |a: usize, b: usize| {
        (0..SIZE).map(|at| first[a * SIZE + at] * second[b * SIZE + at]).sum::<f64>() / TEMPERATURE
    };
    let log_sum = |score: &dyn Fn(usize) -> f64| (0..n).map(|other| score(other).exp()).sum::<f64>().ln();
    let loss = |row: usize| {
        let given_first = log_sum(&|other| score(row, other)) - score(row, row);
        let given_second = log_sum(&|other| score(other, row)) - score(row, row);
        (given_first + given_second) / 2.0
    };
    (0..n).map(loss).collect()
}

/// Scores are below 2 · 3 / 0.5 = 12; a dozen roundings of 2^-24 of each, and central differences in f64 of 1e-5.
#[test]
fn pairs_are_found_among_those_of_the_batch() {
    const TOLERANCE: f64 = 12.0 * 12.0 / (1 << 24) as f64;
    let arrays = [vectors(3), vectors(7)];
    for n in [BATCH, BATCH - 1] {
        let g = Graph::training("matching");
        let dims = [BATCH as i64, SIZE as i64];
        let (x, y) = (g.input("x", DType::F32, dims), g.input("y", DType::F32, dims));
        let weight = (n < BATCH).then(|| g.input("weight", DType::F32, [BATCH as i64]));
        let each = matching_per_example(&x, &y, TEMPERATURE, weight.as_ref());
        let counted = weight.map_or(each.clone(), |weight| &each * &weight);
        let gradients = grad::gradients(g.emitter(), counted.sum(&[0]).id, &[x.id, y.id]).unwrap();
        let [of_x, of_y] = [0, 1].map(|at| g.tensor(gradients[at]));
        let program = g.finish(&[("loss", &each), ("x", &of_x), ("y", &of_y)]).unwrap();
        let results = run::run(&program, |name| match name {
            "weight" => Literal::from_elements([BATCH as i64], &[1.0f32, 1.0, 1.0, 0.0]),
            name => Literal::from_elements(dims, &arrays[usize::from(name == "y")]),
        });
        let results: Vec<Vec<f32>> = results.iter().map(run::f32s).collect();
        let wide = arrays.clone().map(|array| array.into_iter().map(f64::from).collect::<Vec<f64>>());
        for (ours, theirs) in results[0].iter().zip(witness(&wide[0], &wide[1], n)) {
            assert!((f64::from(*ours) - theirs).abs() <= TOLERANCE, "{ours} {theirs}");
        }
        for operand in 0..2 {
            for at in 0..n * SIZE {
                let moved = |by: f64| {
                    let mut wide = wide.clone();
                    wide[operand][at] += by;
                    witness(&wide[0], &wide[1], n).iter().sum::<f64>()
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                let ours = f64::from(results[operand + 1][at]);
                assert!((ours - slope).abs() <= TOLERANCE, "{operand}, {at}: {ours} {slope}");
            }
            // Padding has no part in it.
            assert!(results[operand + 1][n * SIZE..].iter().all(|slope| *slope == 0.0));
        }
    }
}

#[test]
fn a_temperature_is_above_0() {
    let g = Graph::training("matching");
    let x = g.input("x", DType::F32, [2, 3]);
    let each = matching_per_example(&x, &x, 0.0, None);
    let error = g.finish(&[("loss", &each)]).unwrap_err().0.error.message;
    assert_eq!(error, "temperature is 0, expected a finite number above 0");
}

#[test]
fn matching_is_written_in_yaml() {
    let text = |loss: &str| {
        format!(
            "kind: layers\ninputs: {{user: {{shape: [], dtype: int32}}, item: {{shape: [], dtype: int32}}}}\nlayers:\n  \
             - {{embedding: 9, output_dim: 4, inputs: user}}\n  - {{unit_norm: , name: u}}\n  \
             - {{embedding: 5, output_dim: 4, inputs: item}}\n  - {{unit_norm: , name: v}}\n\
             outputs: {{user: u, item: v}}\nloss: {loss}\n"
        )
    };
    // Another framework's name is told ours.
    let theirs = text("{Retrieval: {output: user, with: v, temperature: 0.1}}");
    let error = document::from_str::<Model>("m.yaml", &theirs).unwrap_err().to_string();
    assert!(error.contains("did you mean `matching`?"), "{error}");
    for loss in ["{matching: , output: user, with: item}", "{matching: , output: user, with: v, temperature: 0.1}"] {
        let model: Model = document::from_str("m.yaml", &text(loss)).unwrap();
        let names: Vec<String> = model.task(0.0).features().into_iter().map(|feature| feature.name).collect();
        assert_eq!(names, ["user", "item"]);
        let again: Model = document::from_str("m.yaml", &serde_yaml::to_string(&model).unwrap()).unwrap();
        assert_eq!(again, model);
        evaluation(&*model.task(0.0), Precision::Bf16, 4, &Tuning::none()).unwrap();
    }
    for (loss, message, help) in [
        (
            "{matching: , output: user}",
            "matching does not say what its vectors match",
            "write `{matching: , output: users",
        ),
        ("{matching: , output: user, with: w}", "`with` of matching is `w`, which is no layer", "there are"),
        (
            "{matching: , output: user, with: item, labels: user}",
            "`labels` of matching, which pairs examples by their place in the batch",
            "leave it out; `triplet` learns from labels",
        ),
        ("3", "expected a loss, such as `mean_squared_error` or `{mean_squared_error: , labels: y}`", ""),
        ("{matching: , output: user, with: item, temperature: 0}", "expected a finite number above 0", ""),
        (
            "{mean_squared_error: , output: user, with: item}",
            "mean_squared_error has no `with`",
            "leave `with` out: it is",
        ),
        ("{matching: , output: user, with: item, margin: 1}", "unknown key `margin`", ""),
    ] {
        let error = document::from_str::<Model>("m.yaml", &text(loss)).unwrap_err().to_string();
        let advice = error.split("help: ").nth(1).unwrap_or_default();
        assert!(error.lines().next().unwrap().contains(message) && advice.starts_with(help), "{loss}: {error}");
    }
}

/// Accuracy, `top_k` and perplexity of an output that `matching` trains are of its pairs, and need no labels.
#[test]
fn metrics_judge_if_a_pair_is_found() {
    let text = "kind: layers\ninputs: {x: [3], y: [3]}\nlayers: [{linear: , inputs: x, name: u}, {linear: , inputs: y, name: v}, \
                {dense: 1, inputs: u, name: d}]\noutputs: {user: u}\nloss: [{matching: , output: user, with: v, temperature: 0.5}, \
                {value: , output: d}]\nmetrics: [accuracy, {top_k: 2}, perplexity]\n";
    let model: Model = document::from_str("m.yaml", text).unwrap();
    let names: Vec<String> = model.task(0.0).features().into_iter().map(|feature| feature.name).collect();
    assert_eq!(names, ["x", "y"]);
    let arrays = [vectors(3), vectors(7)];
    for n in [BATCH, BATCH - 1] {
        let program = evaluation(&*model.task(0.0), Precision::F32, BATCH as i64, &Tuning::none()).unwrap().program;
        let results = run::run(&program, |name| match name {
            "x" => Literal::from_elements([BATCH as i64, SIZE as i64], &arrays[0]),
            "y" => Literal::from_elements([BATCH as i64, SIZE as i64], &arrays[1]),
            "d/kernel" => Literal::from_elements([3, 1], &[0.0f32; 3]),
            "d/bias" => Literal::from_elements([1], &[0.0f32]),
            _ => Literal::from_elements([BATCH as i64], &(0..BATCH).map(|at| f32::from(at < n)).collect::<Vec<f32>>()),
        });
        let wide = arrays.clone().map(|array| array.into_iter().map(f64::from).collect::<Vec<f64>>());
        let score =
            |a: usize, b: usize| (0..SIZE).map(|at| wide[0][a * SIZE + at] * wide[1][b * SIZE + at]).sum::<f64>();
        let n_above = |row: usize| (0..n).filter(|&other| score(row, other) > score(row, row)).count();
        let is_within = |k: usize| (0..n).filter(|&row| n_above(row) < k).count() as f32;
        let sum_of = |name: &str| {
            let at = program
                .outputs
                .iter()
                .position(|output| output.starts_with(name))
                .unwrap_or_else(|| panic!("{name}: {:?}", program.outputs));
            run::f32s(&results[at])[0]
        };
        assert_eq!([sum_of("accuracy"), sum_of("top_2_accuracy")], [is_within(1), is_within(2)], "{n}");
    }
}
