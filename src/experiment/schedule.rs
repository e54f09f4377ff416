//! Schedules by epoch: lengths that an experiment has in epochs, in steps; and what of a schedule a training never reaches.
//!
//! [`crate::optim`] counts in steps alone. Here `decay_epochs: 30` becomes `decay_steps`, once somebody knows how many steps
//! an epoch has.

use crate::document::kind;
use crate::document::{Node, NodeError, Step};
use crate::optim::{LearningRate, WarmUp};
use serde::de::{self, Deserialize, Deserializer};

/// The keys of lengths: in steps, and in epochs.
const LENGTHS: [(&str, &str); 5] = [
    ("decay_steps", "decay_epochs"),
    ("warm_up", "warm_up_epochs"),
    ("constant_until", "constant_until_epoch"),
    ("step", "epoch"),
    ("steps", "epochs"),
];

/// So many steps an epoch may have while nobody knows.
const UNKNOWN: [u32; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// What has lengths: a learning rate, or its warm-up.
pub trait Schedule: Sized {
    /// Reads one whose lengths are in steps.
    ///
    /// # Errors
    /// Whatever is not right in it.
    fn read(node: &Node) -> Result<Self, NodeError>;
}

impl Schedule for LearningRate {
    fn read(node: &Node) -> Result<LearningRate, NodeError> {
        kind::read_or_number(node, LearningRate::constant)
    }
}

impl Schedule for WarmUp {
    fn read(node: &Node) -> Result<WarmUp, NodeError> {
        node.is_no_number("steps")?;
        WarmUp::deserialize(node)
    }
}

/// A schedule whose lengths may be in epochs: under `decay_epochs`, `warm_up_epochs`, `constant_until_epoch`, `epochs` and
/// `epoch` in place of `decay_steps`, `warm_up`, `constant_until`, `steps` and `step`.
#[derive(Clone, Debug, PartialEq)]
pub enum Timed<T> {
    /// All lengths are in steps.
    Steps(T),
    /// Some are in epochs: what the file says.
    Epochs(Node),
}

impl<T: Schedule> Timed<T> {
    fn read(node: Node) -> Result<Timed<T>, NodeError> {
        if !is_by_epoch(&node) {
            return read_at(&node, 1).map(Timed::Steps);
        }
        // What is right for none of these is wrong for any: a key, a value, an order.
        let mut tried = UNKNOWN.iter().map(|&steps| read_at::<T>(&node, steps));
        match read_at::<T>(&node, 1_000) {
            Err(error) if !tried.any(|schedule| schedule.is_ok()) => Err(error),
            _ => Ok(Timed::Epochs(node)),
        }
    }

    /// Whether a length is in epochs.
    pub fn is_by_epoch(&self) -> bool {
        matches!(self, Timed::Epochs(_))
    }

    /// In steps, of which an epoch has so many. A length is rounded to the nearest step.
    ///
    /// # Errors
    /// A length that is less than a step; two of which the later is no longer the later.
    pub fn in_steps(&self, steps_per_epoch: u32) -> Result<T, NodeError>
    where
        T: Clone,
    {
        match self {
            Timed::Steps(schedule) => Ok(schedule.clone()),
            Timed::Epochs(node) => read_at(node, steps_per_epoch),
        }
    }

    /// An error about the schedule in steps, as one about what is written.
    pub(super) fn as_written(&self, error: NodeError) -> NodeError {
        match self {
            Timed::Steps(_) => error,
            Timed::Epochs(node) => as_written(node, error),
        }
    }
}

impl<'de, T: Schedule> Deserialize<'de> for Timed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timed<T>, D::Error> {
        Node::read(deserializer, Timed::read)
    }
}

fn read_at<T: Schedule>(node: &Node, steps_per_epoch: u32) -> Result<T, NodeError> {
    T::read(&in_steps(node, steps_per_epoch)?).map_err(|error| as_written(node, with_twin(error)))
}

/// An error about a length that is missing, with both its keys.
fn with_twin(error: NodeError) -> NodeError {
    let missing = error.message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    match missing.and_then(|key| LENGTHS.iter().find(|(steps, _)| *steps == key)) {
        Some((steps, epochs)) => NodeError {
            message: format!("missing key `{steps}`, or `{epochs}`"),
            is_own: true,
            help: Some(format!("add `{steps}: …` or `{epochs}: …` to the block that starts here")),
            ..error
        },
        None => error,
    }
}

fn is_by_epoch(node: &Node) -> bool {
    match node {
        Node::Map(map) => map.iter().any(|(key, node)| in_steps_key(key).is_some() || is_by_epoch(node)),
        Node::List(list) => list.iter().any(is_by_epoch),
        _ => false,
    }
}

/// The key in steps of one in epochs.
fn in_steps_key(key: &str) -> Option<&'static str> {
    LENGTHS.iter().find(|(_, epochs)| *epochs == key).map(|(steps, _)| *steps)
}

fn in_steps(node: &Node, steps_per_epoch: u32) -> Result<Node, NodeError> {
    match node {
        Node::List(list) => {
            let item = |(at, node)| in_steps(node, steps_per_epoch).map_err(|error| error.within(Step::Index(at)));
            Ok(Node::List(list.iter().enumerate().map(item).collect::<Result<_, _>>()?))
        }
        Node::Map(map) => {
            let entry = |(key, node): &(String, Node)| {
                let within = |error: NodeError| error.within(Step::Key(key.clone()));
                let Some(steps) = in_steps_key(key) else {
                    return Ok((key.clone(), in_steps(node, steps_per_epoch).map_err(within)?));
                };
                if map.iter().any(|(other, _)| other == steps) {
                    let message = format!("`{key}` and `{steps}` are one length, given twice");
                    let error = NodeError::new(vec![Step::KeyItself(key.clone())], message);
                    return Err(error.with_help("keep one of them"));
                }
                Ok((steps.to_string(), Node::Whole(n_steps(node, steps_per_epoch).map_err(within)?)))
            };
            Ok(Node::Map(map.iter().map(entry).collect::<Result<_, _>>()?))
        }
        other => Ok(other.clone()),
    }
}

/// So many epochs, in steps.
fn n_steps(node: &Node, steps_per_epoch: u32) -> Result<u64, NodeError> {
    let epochs = match node {
        Node::Whole(value) => *value as f64,
        Node::Float(value) => *value,
        other => return Err(NodeError::wrong(other, "a number of epochs")),
    };
    let steps = (epochs * f64::from(steps_per_epoch)).round();
    if !(0.0..=f64::from(u32::MAX)).contains(&steps) {
        return Err(de::Error::invalid_value(
            node.unexpected(),
            &"a number of epochs, from 0 on, of at most 2^32 steps",
        ));
    }
    if epochs > 0.0 && steps == 0.0 {
        let message = format!("{epochs} epochs of {steps_per_epoch} steps are less than a step");
        return Err(NodeError::new(Vec::new(), message).with_help("make it longer, or 0"));
    }
    Ok(steps as u64)
}

/// An error about what [`in_steps`] made of `node`, as one about `node`.
fn as_written(node: &Node, error: NodeError) -> NodeError {
    let NodeError { mut path, mut message, is_own, help } = error;
    let mut here = Some(node);
    for step in &mut path {
        here = match (here, step) {
            (Some(Node::List(list)), Step::Index(at)) => list.get(*at),
            (Some(Node::Map(map)), Step::Key(key) | Step::KeyItself(key)) => {
                let is_written = |wanted: &str| map.iter().find(|(key, _)| key == wanted);
                let twin = LENGTHS.iter().find(|(steps, _)| steps == key).map(|(_, epochs)| *epochs);
                if let (None, Some(twin)) = (is_written(key), twin.filter(|twin| is_written(twin).is_some())) {
                    message = message.replacen(&format!("`{key}`"), &format!("`{twin}`"), 1);
                    *key = twin.to_string();
                }
                is_written(key).map(|(_, node)| node)
            }
            _ => None,
        };
    }
    // serde knows the keys in steps alone.
    if let Some((before, valid)) = message.split_once(", expected ").filter(|_| message.starts_with("unknown field `"))
    {
        let all = LENGTHS.iter().fold(valid.to_string(), |all, (steps, epochs)| {
            all.replace(&format!("`{steps}`"), &format!("`{steps}`, `{epochs}`"))
        });
        message = format!("{before}, expected {all}");
    }
    NodeError { path, message, is_own, help }
}

/// What a training of `n_steps` never reaches: an error from the key of the one or the other on.
pub(super) fn unreached(
    learning_rate: &LearningRate,
    warm_up: Option<&WarmUp>,
    n_steps: u64,
) -> Option<(&'static str, NodeError)> {
    let key = |name: &str| Step::Key(name.to_string());
    let too_long = |steps: u32| {
        let message = format!("the warm-up of {steps} steps is longer than the training, which has {n_steps}");
        (u64::from(steps) > n_steps).then_some(message)
    };
    let help = "make it shorter, or train more epochs";
    if let Some(warm_up) = warm_up
        && let Some(message) = too_long(warm_up.steps.get())
    {
        return Some(("warm_up", NodeError::new(vec![key("steps")], message).with_help(help)));
    }
    let never = |list: &str, at: usize, what: &str, step: u64| {
        let message = format!("the {what} at step {step} never comes: the training has {n_steps} steps");
        let error = NodeError::new(vec![key(list), Step::Index(at), key("step")], message);
        ("learning_rate", error.with_help("leave it out, or train more epochs"))
    };
    match learning_rate {
        LearningRate::WarmUpStep { warm_up, drops, .. } => {
            if let Some(message) = too_long(*warm_up) {
                return Some(("learning_rate", NodeError::new(vec![key("warm_up")], message).with_help(help)));
            }
            let at = drops.iter().position(|drop| u64::from(drop.step) >= n_steps)?;
            Some(never("drops", at, "drop", drops[at].step.into()))
        }
        LearningRate::Piecewise { changes, .. } => {
            let before = warm_up.filter(|warm_up| !warm_up.overlap).map_or(0, |warm_up| u64::from(warm_up.steps.get()));
            let at = changes.iter().position(|change| u64::from(change.step) + before >= n_steps)?;
            Some(never("changes", at, "change", u64::from(changes[at].step) + before))
        }
        LearningRate::Constant { .. }
        | LearningRate::Exponential { .. }
        | LearningRate::Cosine { .. }
        | LearningRate::Polynomial { .. }
        | LearningRate::Linear { .. }
        | LearningRate::InverseSqrt { .. } => None,
    }
}

/// Where a rate that falls to an end does so at another time than a training of `n_steps` ends: from the learning rate on.
/// `unit` is how many steps the lengths are in: 1, or those of an epoch.
pub(super) fn beside_the_end(
    learning_rate: &LearningRate,
    warm_up: Option<&WarmUp>,
    n_steps: u64,
    unit: u32,
) -> Option<NodeError> {
    let (decay_steps, last) = match *learning_rate {
        LearningRate::Cosine { value, decay_steps, alpha } => (decay_steps, value * alpha),
        LearningRate::Polynomial { decay_steps, end_value, .. }
        | LearningRate::Linear { decay_steps, end_value, .. } => (decay_steps, end_value),
        LearningRate::Constant { .. }
        | LearningRate::Exponential { .. }
        | LearningRate::Piecewise { .. }
        | LearningRate::InverseSqrt { .. }
        | LearningRate::WarmUpStep { .. } => return None,
    };
    let before = warm_up.filter(|warm_up| !warm_up.overlap).map_or(0, |warm_up| u64::from(warm_up.steps.get()));
    let end = u64::from(decay_steps.get()) + before;
    let wanted = n_steps.checked_sub(before).filter(|&steps| steps > 0)?;
    // A hundredth of the training more or less comes from rounding.
    let message = if end > n_steps + n_steps / 100 {
        let rate = format!("{:.2e}", learning_rate.at(u32::try_from(wanted).ok()?)).parse::<f64>().unwrap_or_default();
        format!("the rate falls to {last} at step {end}, and is still {rate} when training ends, at step {n_steps}")
    } else if last == 0.0 && end + n_steps / 100 < n_steps {
        let n_idle = n_steps - end;
        format!("the rate is 0 from step {end} on: the last {n_idle} of {n_steps} steps learn nothing")
    } else {
        return None;
    };
    let error = NodeError::new(vec![Step::Key("decay_steps".to_string())], message);
    Some(error.with_help(match unit {
        1 => format!("write `decay_steps: {wanted}`, if the rate is to fall until the end"),
        _ => {
            let epochs = (1e4 * wanted as f64 / f64::from(unit)).round() / 1e4;
            format!("write `decay_epochs: {epochs}`, if the rate is to fall until the end")
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;
    use crate::optim::RateDrop;
    use expect_test::{Expect, expect};
    use std::num::NonZeroU32;

    fn timed(text: &str) -> Timed<LearningRate> {
        document::from_str("e.yaml", text).unwrap()
    }

    #[test]
    fn epochs_become_the_nearest_step() {
        let cosine = timed("{kind: cosine, value: 0.4, decay_epochs: 2.5}");
        assert!(cosine.is_by_epoch() && !timed("{kind: cosine, value: 0.4, decay_steps: 7}").is_by_epoch());
        let decay_steps = |cosine: &Timed<LearningRate>, n| match cosine.in_steps(n).unwrap() {
            LearningRate::Cosine { decay_steps, .. } => decay_steps.get(),
            other => panic!("{other:?}"),
        };
        assert_eq!((decay_steps(&cosine, 1251), decay_steps(&cosine, 44)), (3128, 110));
        // 0.29 · 100 is 28.999999999999996.
        assert_eq!(decay_steps(&timed("{kind: cosine, value: 1, decay_epochs: 0.29}"), 100), 29);
        let resnet = "{kind: warm_up_step, value: 0.4, warm_up_epochs: 5, drops: [{epoch: 30, multiplier: 0.1}, \
                      {step: 80000, multiplier: 0.01}]}";
        let drops = [(37530, 0.1), (80000, 0.01)].map(|(step, multiplier)| RateDrop { step, multiplier }).to_vec();
        let expected = LearningRate::WarmUpStep { value: 0.4, warm_up: 6255, drops };
        assert_eq!(timed(resnet).in_steps(1251).unwrap(), expected);
        let warm_up: Timed<WarmUp> = document::from_str("e.yaml", "{epochs: 5, start: 0.1}").unwrap();
        let steps = NonZeroU32::new(50).unwrap();
        assert_eq!(warm_up.in_steps(10).unwrap(), WarmUp { steps, start: 0.1, overlap: false });
    }

    #[test]
    fn errors_are_about_what_is_written() {
        let check = |text: &str, expected: Expect| {
            let error = document::from_str::<Timed<LearningRate>>("e.yaml", text).unwrap_err();
            expected.assert_eq(&error.to_string());
        };
        check(
            "{kind: cosine, value: 0.4, decay_epochs: 3, decay_steps: 9}",
            expect![[r#"
                e.yaml:1:28: `decay_epochs` and `decay_steps` are one length, given twice
                  1 | {kind: cosine, value: 0.4, decay_epochs: 3, decay_steps: 9}
                    |                            ^^^^^^^^^^^^
                  help: keep one of them"#]],
        );
        check(
            "{kind: constant, value: 0.4, decay_epochs: 3}",
            expect![[r#"
                e.yaml:1:30: unknown key `decay_epochs`, expected value
                  1 | {kind: constant, value: 0.4, decay_epochs: 3}
                    |                              ^^^^^^^^^^^^"#]],
        );
        check(
            "{kind: cosine, value: 0.4, decay_epoch: 3}",
            expect![[r#"
                e.yaml:1:28: unknown key `decay_epoch`, expected one of value, decay_steps, decay_epochs, alpha
                  1 | {kind: cosine, value: 0.4, decay_epoch: 3}
                    |                            ^^^^^^^^^^^
                  help: did you mean `decay_epochs`?"#]],
        );
        check(
            "{kind: cosine, value: 0.4, decay_epochs: long}",
            expect![[r#"
                e.yaml:1:42: found string "long", expected a number of epochs
                  1 | {kind: cosine, value: 0.4, decay_epochs: long}
                    |                                          ^^^^"#]],
        );
        check(
            "{kind: cosine, value: 0.4, decay_epochs: 0}",
            expect![[r#"
                e.yaml:1:42: found integer `0`, expected a whole number of at least 1
                  1 | {kind: cosine, value: 0.4, decay_epochs: 0}
                    |                                          ^"#]],
        );
        check(
            "{kind: piecewise, value: 0.4, changes: [{epoch: 3, value: 1}, {epoch: 2, value: 0.1}]}",
            expect![[r#"
                e.yaml:1:40: found a change at step 2000 after one at step 3000, expected ascending steps
                  1 | {kind: piecewise, value: 0.4, changes: [{epoch: 3, value: 1}, {epoch: 2, value: 0.1}]}
                    |                                        ^"#]],
        );
        check(
            "{kind: cosine, value: 0.4}",
            expect![[r#"
                e.yaml:1:1: missing key `decay_steps`, or `decay_epochs`
                  1 | {kind: cosine, value: 0.4}
                    | ^^^^^
                  help: add `decay_steps: …` or `decay_epochs: …` to the block that starts here"#]],
        );
        check(
            "{kind: cosine, value: 0.4, decay_steps: 3, alpha: 2}",
            expect![[r#"
                e.yaml:1:51: found integer `2`, expected a number from 0 to 1
                  1 | {kind: cosine, value: 0.4, decay_steps: 3, alpha: 2}
                    |                                                   ^"#]],
        );
        check(
            "adam",
            expect![[r#"
                e.yaml:1:1: found string "adam", expected a number, or keys with `kind: …`, one of constant, exponential, cosine, polynomial, linear, piecewise, inverse_sqrt, warm_up_step
                  1 | adam
                    | ^^^^"#]],
        );
        let short = timed("{kind: cosine, value: 0.4, decay_epochs: 0.01}").in_steps(44).unwrap_err();
        assert_eq!(short.message, "0.01 epochs of 44 steps are less than a step");
        assert_eq!(short.path, [Step::Key("decay_epochs".to_string())]);
    }

    #[test]
    fn a_rate_that_does_not_end_with_the_training_is_remarked() {
        let remark = |text: &str, overlap: Option<bool>, n_steps| {
            let timed = timed(text);
            let warm_up = overlap.map(|overlap| WarmUp { steps: NonZeroU32::new(50).unwrap(), start: 0.0, overlap });
            let unit = if timed.is_by_epoch() { 10 } else { 1 };
            let remark = beside_the_end(&timed.in_steps(10).unwrap(), warm_up.as_ref(), n_steps, unit)?;
            Some(format!("{}; {}", remark.message, remark.help.unwrap()))
        };
        let cosine = "{kind: cosine, value: 0.4, decay_steps: 300}";
        // Up to a hundredth before or after.
        for n_steps in [298, 300, 303] {
            assert_eq!(remark(cosine, None, n_steps), None, "{n_steps}");
        }
        assert_eq!((remark(cosine, Some(true), 300), remark(cosine, Some(false), 350)), (None, None));
        assert_eq!(
            remark(cosine, None, 200).unwrap(),
            "the rate falls to 0 at step 300, and is still 0.1 when training ends, at step 200; write \
             `decay_steps: 200`, if the rate is to fall until the end"
        );
        assert_eq!(
            remark(cosine, Some(false), 400).unwrap(),
            "the rate is 0 from step 350 on: the last 50 of 400 steps learn nothing; write `decay_steps: 350`, if the rate \
             is to fall until the end"
        );
        assert_eq!(
            remark("{kind: linear, value: 1, decay_epochs: 20}", Some(false), 300).unwrap(),
            "the rate is 0 from step 250 on: the last 50 of 300 steps learn nothing; write `decay_epochs: 25`, if the rate \
             is to fall until the end"
        );
        // What stays above 0 may stay.
        assert_eq!(remark("{kind: cosine, value: 0.4, decay_steps: 300, alpha: 0.1}", None, 900), None);
        assert_eq!(remark("{kind: polynomial, value: 1, decay_steps: 9, power: 2, end_value: 0.1}", None, 900), None);
        assert_eq!((remark("0.1", None, 9), remark(cosine, Some(false), 50)), (None, None));
    }

    #[test]
    fn what_is_never_reached_is_found() {
        let found = |text: &str, warm_up: Option<WarmUp>, n_steps| {
            let rate = timed(text).in_steps(10).unwrap();
            unreached(&rate, warm_up.as_ref(), n_steps).map(|(key, error)| (key, error.message))
        };
        let warm_up = WarmUp { steps: NonZeroU32::new(50).unwrap(), start: 0.0, overlap: false };
        assert_eq!(found("0.1", Some(warm_up), 50), None);
        let (key, message) = found("0.1", Some(warm_up), 49).unwrap();
        assert_eq!(
            (key, message.as_str()),
            ("warm_up", "the warm-up of 50 steps is longer than the training, which has 49")
        );
        let pieces = "{kind: piecewise, value: 1, changes: [{step: 10, value: 0.5}, {epoch: 3, value: 0.1}]}";
        assert_eq!((found(pieces, None, 31), found(pieces, Some(warm_up), 81)), (None, None));
        assert_eq!(found(pieces, None, 30).unwrap().1, "the change at step 30 never comes: the training has 30 steps");
        assert_eq!(
            found(pieces, Some(warm_up), 80).unwrap().1,
            "the change at step 80 never comes: the training has 80 steps"
        );
        let steps = "{kind: warm_up_step, value: 1, warm_up_epochs: 5, drops: [{epoch: 6, multiplier: 0.1}]}";
        assert_eq!(found(steps, None, 61), None);
        assert_eq!(found(steps, None, 60).unwrap().1, "the drop at step 60 never comes: the training has 60 steps");
        assert_eq!(
            found(steps, None, 40).unwrap().1,
            "the warm-up of 50 steps is longer than the training, which has 40"
        );
    }
}
