//! A linear-chain CRF beside all sequences of tags, one by one: its loss, the gradients of scores and transitions, and the best
//! sequence; then through an experiment.

use crate::run;
use bf16scope::document;
use bf16scope::graph::{Graph, Precision};
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::nn::{crf_per_example, viterbi};
use bf16scope::passes::grad;
use bf16scope::train::program::evaluation;
use bf16scope::tuning::Tuning;

const BATCH: usize = 3;
const STEPS: usize = 4;
const TAGS: usize = 3;
const LENGTHS: [i32; BATCH] = [4, 1, 3];
const LABELS: [[usize; STEPS]; BATCH] = [[2, 0, 0, 1], [1, 2, 2, 2], [0, 1, 2, 0]];

/// Logarithms of sums of at most 81 terms, of scores below 4 · 4: a rounding of 2^-24 of 16 for each of four steps' maximum,
/// exponentials, sum and logarithm, of both sums.
const TOLERANCE: f64 = 2.0 * 4.0 * 4.0 * 16.0 / (1 << 24) as f64;

/// Numbers from -2 to 2, of no pattern.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 4.0
    };
    (0..n).map(|_| next()).collect()
}

/// The sequences of as many steps, with the score of each.
fn sequences(scores: &[f32], transitions: &[f32], n: usize) -> Vec<(Vec<usize>, f64)> {
    let all = (0..TAGS.pow(n as u32)).map(|code| (0..n).map(|step| code / TAGS.pow(step as u32) % TAGS).collect());
    let score = |tags: &Vec<usize>| {
        let of_tags: f64 = tags.iter().enumerate().map(|(step, tag)| f64::from(scores[step * TAGS + tag])).sum();
        of_tags + tags.windows(2).map(|pair| f64::from(transitions[pair[0] * TAGS + pair[1]])).sum::<f64>()
    };
    all.map(|tags: Vec<usize>| (tags.clone(), score(&tags))).collect()
}

/// The loss, the gradient of scores and of transitions, and the best sequence, of one example.
fn witness(scores: &[f32], transitions: &[f32], example: usize, n: usize) -> (f64, Vec<f64>, Vec<f64>, Vec<usize>) {
    let all = sequences(scores, transitions, n);
    let total: f64 = all.iter().map(|(_, score)| score.exp()).sum();
    let labels = &LABELS[example][..n];
    let (mut of_scores, mut of_transitions) = (vec![0.0; STEPS * TAGS], vec![0.0; TAGS * TAGS]);
    let mut count = |tags: &[usize], p: f64| {
        tags.iter().enumerate().for_each(|(step, tag)| of_scores[step * TAGS + tag] += p);
        tags.windows(2).for_each(|pair| of_transitions[pair[0] * TAGS + pair[1]] += p);
    };
    all.iter().for_each(|(tags, score)| count(tags, score.exp() / total));
    count(labels, -1.0);
    let of_labels = all.iter().find(|(tags, _)| tags == labels).unwrap().1;
    let best = all.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0.clone();
    (total.ln() - of_labels, of_scores, of_transitions, best)
}

#[test]
fn a_crf_is_the_sum_over_all_sequences() {
    let (scores, transitions) = (numbers(BATCH * STEPS * TAGS, 3), numbers(BATCH * TAGS * TAGS, 5));
    for lengths in [None, Some(LENGTHS)] {
        let g = Graph::training("crf");
        let x = g.input("scores", DType::F32, [BATCH as i64, STEPS as i64, TAGS as i64]);
        let t = g.input("transitions", DType::F32, [BATCH as i64, TAGS as i64, TAGS as i64]);
        let labels = g.input("labels", DType::S32, [BATCH as i64, STEPS as i64]);
        let counted = lengths.map(|_| g.input("lengths", DType::S32, [BATCH as i64]));
        let each = crf_per_example(&x, &labels, &t, counted.as_ref());
        let best = viterbi(&x, &t, counted.as_ref());
        let loss = each.sum(&[0]);
        let gradients = grad::gradients(g.emitter(), loss.id, &[x.id, t.id]).unwrap();
        let [of_x, of_t] = [0, 1].map(|at| g.tensor(gradients[at]));
        let program = g.finish(&[("loss", &each), ("x", &of_x), ("t", &of_t), ("best", &best)]).unwrap();
        let results = run::run(&program, |name| match name {
            "scores" => Literal::from_elements([BATCH as i64, STEPS as i64, TAGS as i64], &scores),
            "transitions" => Literal::from_elements([BATCH as i64, TAGS as i64, TAGS as i64], &transitions),
            "lengths" => Literal::from_elements([BATCH as i64], &LENGTHS),
            _ => {
                let labels: Vec<i32> = LABELS.iter().flatten().map(|&tag| tag as i32).collect();
                Literal::from_elements([BATCH as i64, STEPS as i64], &labels)
            }
        });
        let results: Vec<Vec<f32>> = results.iter().map(run::f32s).collect();
        let is_near = |ours: f32, theirs: f64| (f64::from(ours) - theirs).abs() <= TOLERANCE;
        for example in 0..BATCH {
            let n = lengths.map_or(STEPS, |lengths| lengths[example] as usize);
            let of_scores = &scores[example * STEPS * TAGS..][..STEPS * TAGS];
            let of_transitions = &transitions[example * TAGS * TAGS..][..TAGS * TAGS];
            let (loss, by_score, by_transition, sequence) = witness(of_scores, of_transitions, example, n);
            assert!(is_near(results[0][example], loss), "{example}: {} {loss}", results[0][example]);
            for (at, expected) in by_score.iter().enumerate() {
                let ours = results[1][example * STEPS * TAGS + at];
                assert!(is_near(ours, *expected), "{example}: score {at}: {ours} {expected}");
            }
            for (at, expected) in by_transition.iter().enumerate() {
                let ours = results[2][example * TAGS * TAGS + at];
                assert!(is_near(ours, *expected), "{example}: transition {at}: {ours} {expected}");
            }
            for (step, tag) in sequence.iter().enumerate() {
                let row = &results[3][(example * STEPS + step) * TAGS..][..TAGS];
                let others = row.iter().enumerate().filter(|(other, _)| other != tag);
                let is_best = row[*tag].abs() < 1e-5 && others.into_iter().all(|(_, less)| *less < -1e-3);
                assert!(is_best, "{example}, step {step}: {row:?}, expected {tag}");
            }
        }
    }
}

const TAGGER: &str = "
kind: layers
inputs: {words: {shape: [6], dtype: int32}}
labels: {tags: {shape: [6], dtype: int32}, n: {shape: [], dtype: int32}}
layers:
  - {embedding: 20, output_dim: 4, inputs: words}
  - {dense: 3, name: scores}
  - {variable: [3, 3], name: transitions}
  - {viterbi: [scores, transitions], name: best}
outputs: {logits: best}
";

#[test]
fn a_crf_is_written_in_yaml() {
    let loss = "loss: {crf: , output: scores, transitions: transitions, labels: tags, label_lengths: n}\n";
    let metrics = "metrics: [{accuracy: , labels: tags}]\n";
    let text = format!("{TAGGER}{loss}{metrics}");
    let model: Model = document::from_str("m.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
    let again: Model = document::from_str("m.yaml", &serde_yaml::to_string(&model).unwrap()).unwrap();
    assert_eq!(again, model);
    for precision in [Precision::F32, Precision::Bf16] {
        let program = evaluation(&*model.task(0.0), precision, 4, &Tuning::none()).unwrap();
        assert!(
            program.program.variables.iter().any(|variable| variable.name.starts_with("transitions")),
            "{precision:?}"
        );
    }
    let wrong = |loss: &str| {
        let error = document::from_str::<Model>("m.yaml", &format!("{TAGGER}loss: {loss}\n")).unwrap_err().to_string();
        let help = error.split("help: ").nth(1).unwrap_or_default().to_string();
        (error.lines().next().unwrap().to_string(), help)
    };
    for (loss, message, help) in [
        (
            "{crf: , output: scores, labels: tags, label_lengths: n}",
            "crf does not say what transitions between tags score",
            "write `{variable: [5, 5], name: transitions}`, of five tags, and `transitions: transitions`",
        ),
        (
            "{crf: , output: scores, transitions: trnsitions, labels: tags, label_lengths: n}",
            "`transitions` of crf is `trnsitions`, which is no layer",
            "did you mean `transitions`?",
        ),
        (
            "{crf: , output: scores, transitions: scores, labels: tags, label_lengths: n}",
            "transitions are f32[32,6,3], expected f32[32,3,3] for scores f32[32,6,3]",
            "learn them: `{variable: [3, 3], name: transitions}`",
        ),
        (
            "{crf: , output: scores, transitions: transitions, labels: tags, logit_lengths: n}",
            "crf has no lengths but those of labels",
            "leave `logit_lengths` out: it is for `ctc`",
        ),
        (
            "{sparse_softmax_cross_entropy: , output: scores, transitions: transitions, labels: tags}",
            "sparse_softmax_cross_entropy has no `transitions`",
            "leave `transitions` out: it is for `crf`",
        ),
    ] {
        let (first, advice) = wrong(loss);
        assert!(first.contains(message) && advice == help, "{loss}: {first}: {advice}");
    }
}
