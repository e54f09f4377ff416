//! Linear-chain conditional random fields (CRF): the loss of a sequence of tags whose neighbours have scores, too, and
//! the best sequence.

use super::loss::{check_labels, check_logits, is_label, loss};
use super::recurrent::reversed;
use crate::graph::{Graph, Operand, Program, Tensor};
use bf16scope_hlo::ops::{RuleError, SliceDim};
use bf16scope_hlo::{DType, Module};

/// The score of a tag that is excluded: finite, so that no difference of two is NaN.
const NEVER: f64 = -1e30;

/// `−log p(labels)`, where the score of a sequence is the sum of the scores of its tags and of the transitions between
/// neighbours, and p its exponential's share of that of all sequences.
///
/// # Shapes
/// scores `[batch, steps, tags]`, labels `[batch, steps]`, transitions `[batch, tags, tags]` (from the second axis' tag to
/// the third's) → `[batch]`. With lengths `[batch]`, steps from there on are ignored and have no gradient.
///
/// # Types
/// f32 or f64, computed in that dtype in logarithms; labels and lengths of integers.
///
/// # Gradient
/// By reverse mode through the recursion: each tag's and each transition's probability less its count in the labels.
///
/// # Errors
/// Scores of another rank or narrower than f32; labels, transitions or lengths of other dims.
///
/// # Source
/// Lafferty et al. 2001; TensorFlow Addons' `crf_log_likelihood`, whose sign is the other.
#[track_caller]
pub fn crf_per_example(scores: &Tensor, labels: &Tensor, transitions: &Tensor, lengths: Option<&Tensor>) -> Tensor {
    if let Some(poison) = [Some(transitions), lengths].into_iter().flatten().find(|it| it.is_poison()) {
        return poison.clone();
    }
    let check = || {
        check(scores, transitions, lengths)?;
        check_labels(scores, labels)
    };
    loss("crf", [scores, labels], check, || {
        // The score of the labels is the sum over the only sequence that is left of them.
        let never = scores.graph().full(scores.dtype(), &scores.dims(), NEVER);
        let of_labels = is_label(labels, &scores.dims()).select(scores, &never);
        let [all, this] = [scores, &of_labels].map(|scores| {
            recursion(scores, transitions, lengths, Sum::Exponentials).map(|sums| log_sum(&sums.last, 1))
        });
        match (all, this) {
            (Ok(all), Ok(this)) => all - this,
            (Err(message), _) | (_, Err(message)) => {
                scores.graph().fail("crf", &[scores, transitions], RuleError::new("crf/step", message))
            }
        }
    })
}

/// How much worse the best sequence through each tag is than the best of all: 0 where a tag is on the best sequence, and
/// below elsewhere, so its largest element along the tags is the sequence that Viterbi's algorithm finds.
///
/// # Shapes
/// scores `[batch, steps, tags]`, transitions `[batch, tags, tags]` → `[batch, steps, tags]`. With lengths `[batch]`, each
/// step from there on stands alone.
///
/// # Types
/// f32 or f64; bf16 and f16 are computed in f32, and the result is rounded once, 0 to itself.
///
/// # Errors
/// As [`crf_per_example`].
///
/// # Source
/// Viterbi 1967; max-marginals: Wainwright & Jordan 2008.
#[track_caller]
pub fn viterbi(scores: &Tensor, transitions: &Tensor, lengths: Option<&Tensor>) -> Tensor {
    if let Some(poison) = [Some(scores), Some(transitions), lengths].into_iter().flatten().find(|it| it.is_poison()) {
        return poison.clone();
    }
    let wide = if scores.dtype().bits() < 32 { DType::F32 } else { scores.dtype() };
    let (x, t) = (scores.cast(wide), transitions.cast(wide));
    let failed = |error| scores.graph().fail("viterbi", &[scores, transitions], error);
    if let Err(error) = check(&x, &t, lengths) {
        return failed(error);
    }
    let through = || -> Result<Tensor, String> {
        let forwards = recursion(&x, &t, lengths, Sum::Largest)?;
        let backwards = recursion(&reversed(&x, 1), &t.transpose(&[0, 2, 1]), lengths, Sum::LargestFromTheEnd)?;
        // Both have the score of the tag itself.
        Ok(forwards.each + reversed(&backwards.each, 1) - &x)
    };
    match through() {
        Ok(through) => {
            let best = through.max(&[2]).broadcast_in_dim(&x.dims(), &[0, 1]);
            (through - best).cast(scores.dtype())
        }
        Err(message) => failed(RuleError::new("crf/step", message)),
    }
}

fn check(scores: &Tensor, transitions: &Tensor, lengths: Option<&Tensor>) -> Result<(), RuleError> {
    check_logits("scores", scores)?;
    super::of_rank("crf/rank", "scores", scores, 3, "[batch, steps, tags]")?;
    let (batch, tags) = (scores.dims()[0], scores.dims()[2]);
    if transitions.dims() != [batch, tags, tags] || transitions.dtype() != scores.dtype() {
        let message = format!(
            "transitions are {}, expected {}[{batch},{tags},{tags}] for scores {}",
            transitions.shape(),
            scores.dtype(),
            scores.shape()
        );
        let help = format!("learn them: `{{variable: [{tags}, {tags}], name: transitions}}`");
        return Err(RuleError::new("crf/transitions", message).with_help(help));
    }
    match lengths {
        Some(lengths) if lengths.dims() != [batch] || !lengths.dtype().is_integer() => {
            let message = format!("lengths are {}, expected whole numbers [{batch}]", lengths.shape());
            Err(RuleError::new("crf/lengths", message))
        }
        _ => Ok(()),
    }
}

/// How a recursion over steps joins the ways to a tag.
#[derive(Clone, Copy, PartialEq)]
enum Sum {
    /// The logarithm of the sum of their exponentials.
    Exponentials,
    /// The largest.
    Largest,
    /// The same of steps in reverse order: those that do not count come first.
    LargestFromTheEnd,
}

/// The results of a recursion.
struct Sums {
    /// After the last step that counts: `[batch, tags]`.
    last: Tensor,
    /// After each step, `[batch, steps, tags]`; for exponentials the same as `last`.
    each: Tensor,
}

#[track_caller]
fn recursion(scores: &Tensor, transitions: &Tensor, lengths: Option<&Tensor>, sum: Sum) -> Result<Sums, String> {
    let (g, dims) = (scores.graph(), scores.dims());
    let &[batch, steps, tags] = &dims[..] else { return Err("rank".to_string()) };
    let all = |dim: i64| SliceDim { start: 0, limit: dim, stride: 1 };
    let range = |start, limit| scores.slice(&[all(batch), SliceDim { start, limit, stride: 1 }, all(tags)]);
    let first = range(0, 1).reshape([batch, tags]);
    if steps == 1 {
        return Ok(Sums { each: first.reshape([batch, 1, tags]), last: first });
    }
    // Whether the way to a step is from its neighbour.
    let counts = lengths.map(|lengths| {
        let dims = [steps - 1, batch];
        let (number, lengths) = (g.iota(DType::S32, &dims, 0), lengths.cast(DType::S32).broadcast_in_dim(&dims, &[1]));
        match sum {
            // Step i + 1, if it counts; or step `steps - 2 - i`, if the next one does.
            Sum::LargestFromTheEnd => (lengths + number).greater(&g.full(DType::S32, &dims, (steps - 1) as f64)),
            _ => (number + 1.0).less(&lengths),
        }
    });
    let body = step([batch, tags], scores.dtype(), counts.is_some(), sum, g)?;
    let rows = range(1, steps).transpose(&[1, 0, 2]);
    let mut operands = vec![Operand::Carried(&first), Operand::Carried(transitions), Operand::Split(&rows)];
    operands.extend(counts.as_ref().map(Operand::Split));
    let n = u32::try_from(steps - 1).map_err(|_| format!("{steps} steps"))?;
    let results = g.scan(n, &body, &operands);
    let last = results[0].clone();
    let each = match results.get(2) {
        Some(each) => Tensor::concatenate(&[&first.reshape([batch, 1, tags]), &each.transpose(&[1, 0, 2])], 1),
        None => last.clone(),
    };
    Ok(Sums { last, each })
}

/// One step as a program: (scores of the ways to each tag, transitions, the step's scores, whether it counts) → (scores of
/// the ways, transitions, and but for exponentials the same scores for the stack).
fn step([batch, tags]: [i64; 2], dtype: DType, is_counted: bool, sum: Sum, outer: &Graph) -> Result<Module, String> {
    let g = Graph::new("crf").placed_as(outer);
    let before = g.input("before", dtype, [batch, tags]);
    let transitions = g.input("transitions", dtype, [batch, tags, tags]);
    let row = g.input("row", dtype, [1, batch, tags]).reshape([batch, tags]);
    let ways = before.broadcast_in_dim(&[batch, tags, tags], &[0, 1]) + &transitions;
    let to = match sum {
        Sum::Exponentials => log_sum(&ways, 1),
        Sum::Largest | Sum::LargestFromTheEnd => ways.max(&[1]),
    };
    let next = to + &row;
    let next = match is_counted {
        true => {
            let counts = g.input("counts", DType::Pred, [1, batch]).reshape([batch]);
            let alone = if sum == Sum::Exponentials { &before } else { &row };
            counts.broadcast_in_dim(&[batch, tags], &[0]).select(&next, alone)
        }
        false => next,
    };
    let results = [("next", &next), ("transitions", &transitions), ("each", &next)];
    let n = if sum == Sum::Exponentials { 2 } else { 3 };
    let program: Program = g.finish(&results[..n]).map_err(|error| error.to_string())?;
    Ok(program.module)
}

/// `log Σ exp` along an axis. The maximum is subtracted first; its gradient cancels.
#[track_caller]
fn log_sum(x: &Tensor, axis: i64) -> Tensor {
    let others: Vec<i64> = (0..x.rank() as i64).filter(|&other| other != axis).collect();
    let largest = x.max(&[axis]);
    let powers = (x - largest.broadcast_in_dim(&x.dims(), &others)).exponential();
    powers.sum(&[axis]).log() + largest
}
