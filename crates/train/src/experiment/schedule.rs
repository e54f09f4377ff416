//! Schedules by epoch: converts lengths in epochs to steps, and finds what a training never reaches.
//!
//! [`bf16scope_model::optim`] counts in steps alone. Here `decay_epochs: 30` becomes `decay_steps`, once the number of
//! steps in an epoch is known.

use bf16scope_model::document::{ConfigProblem, Key, Mark, Node, NodeError, ReadError, Step, Value, kind};
use bf16scope_model::optim::{LearningRate, WarmUp};
use serde::de::{Deserialize, Deserializer};

/// The keys of lengths: in steps, and in epochs.
const LENGTHS: [(&str, &str); 5] = [
    ("decay_steps", "decay_epochs"),
    ("warm_up", "warm_up_epochs"),
    ("constant_until", "constant_until_epoch"),
    ("step", "epoch"),
    ("steps", "epochs"),
];

/// A length of a schedule, as it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// In steps.
    Steps(u64),
    /// In epochs.
    Epochs(f64),
}

impl Length {
    /// The value of a length key; `None` for any other key, and for a value that is not a whole number of steps.
    fn parse(key: &Key, node: &Node) -> Result<Option<Length>, ReadError> {
        let is_length = LENGTHS.iter().any(|(steps, _)| *steps == &**key);
        match (&node.value, key.written.is_some()) {
            (Value::Whole(value), true) => Ok(Some(Length::Epochs(*value as f64))),
            (Value::Float(value), true) if *value >= 0.0 && value.is_finite() => Ok(Some(Length::Epochs(*value))),
            (Value::Float(_) | Value::Negative(_), true) => Err(node.wrong(EPOCHS)),
            (_, true) => Err(node.wrong("a number of epochs")),
            (Value::Whole(value), false) if is_length => Ok(Some(Length::Steps(*value))),
            (_, false) => Ok(None),
        }
    }

    /// The nearest number of steps, where an epoch has `steps_per_epoch`.
    fn in_steps(self, steps_per_epoch: u32) -> Result<u64, LengthError> {
        let epochs = match self {
            Length::Steps(steps) => return Ok(steps),
            Length::Epochs(epochs) => epochs,
        };
        let steps = (epochs * f64::from(steps_per_epoch)).round();
        match steps {
            _ if steps > f64::from(u32::MAX) => Err(LengthError::TooLong),
            _ if epochs > 0.0 && steps == 0.0 => Err(LengthError::LessThanAStep(epochs)),
            _ => Ok(steps as u64),
        }
    }

    /// Whether it is no later than another, as far as that is known without the number of steps in an epoch.
    fn is_not_after(self, other: Length) -> bool {
        match (self, other) {
            (Length::Steps(this), Length::Steps(other)) => this <= other,
            (Length::Epochs(this), Length::Epochs(other)) => this <= other,
            (Length::Steps(_), Length::Epochs(_)) | (Length::Epochs(_), Length::Steps(_)) => false,
        }
    }
}

/// Errors of [`Length::in_steps`].
enum LengthError {
    TooLong,
    LessThanAStep(f64),
}

const EPOCHS: &str = "a number of epochs, from 0 on, of at most 2^32 steps";

/// A learning rate or its warm-up: a configuration that has lengths.
pub trait Schedule: Sized {
    /// Parses one whose lengths are in steps.
    ///
    /// # Errors
    /// Any error in it.
    fn read(node: &Node) -> Result<Self, ReadError>;
}

impl Schedule for LearningRate {
    fn read(node: &Node) -> Result<LearningRate, ReadError> {
        kind::from_node_or_number(node, LearningRate::constant)
    }
}

impl Schedule for WarmUp {
    fn read(node: &Node) -> Result<WarmUp, ReadError> {
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
    /// Some are in epochs: the document, with the keys renamed to those in steps.
    Epochs(Node),
}

impl<T: Schedule> Timed<T> {
    fn read(node: &Node) -> Result<Timed<T>, ReadError> {
        let named = named_in_steps(node)?;
        if !is_by_epoch(&named) {
            return T::read(node).map(Timed::Steps).map_err(with_twins);
        }
        check_order(&named)?;
        T::read(&any_steps(&named)?).map_err(with_twins)?;
        Ok(Timed::Epochs(named))
    }

    /// Whether a length is in epochs.
    pub fn is_by_epoch(&self) -> bool {
        matches!(self, Timed::Epochs(_))
    }

    /// The schedule in steps, each length rounded to the nearest.
    ///
    /// # Errors
    /// A length that is shorter than a step; two lengths whose order rounding removes.
    pub fn in_steps(&self, steps_per_epoch: u32) -> Result<T, ReadError>
    where
        T: Clone,
    {
        let length = |length: Length, node: &Node| {
            length.in_steps(steps_per_epoch).map_err(|error| match error {
                LengthError::TooLong => node.wrong(EPOCHS),
                LengthError::LessThanAStep(epochs) => {
                    let message = format!("{epochs} epochs of {steps_per_epoch} steps are less than a step");
                    ReadError::new(message).or_at(node.mark).with_help("make it longer, or 0")
                }
            })
        };
        match self {
            Timed::Steps(schedule) => Ok(schedule.clone()),
            Timed::Epochs(node) => T::read(&each_length(node, &length)?).map_err(with_twins),
        }
    }

    /// The place in the document that `steps` below the schedule lead to, if known.
    pub(super) fn place_of(&self, steps: &[Step]) -> Option<Mark> {
        match self {
            Timed::Steps(_) => None,
            Timed::Epochs(node) => Some(node.nearest_place_of(steps)),
        }
    }
}

impl<'de, T: Schedule> Deserialize<'de> for Timed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timed<T>, D::Error> {
        Node::read(deserializer, Timed::read)
    }
}

/// An error about a length key, with both names of the key: serde knows only those in steps.
fn with_twins(error: ReadError) -> ReadError {
    let twin = |key: &str| LENGTHS.iter().find(|(steps, _)| *steps == key).map(|(_, epochs)| *epochs);
    match &error.problem {
        ConfigProblem::MissingKey { key } if twin(key).is_some() => {
            let epochs = twin(key).unwrap_or_default();
            let help = format!("add `{key}: …` or `{epochs}: …` to the block that starts here");
            let message = format!("missing key `{key}`, or `{epochs}`");
            ReadError { problem: ConfigProblem::Together { message, help: Some(help) }, ..error }
        }
        ConfigProblem::UnknownKey { key, valid } => {
            let both = |name: &String| [Some(name.clone()), twin(name).map(str::to_string)].into_iter().flatten();
            let valid = valid.iter().flat_map(both).collect();
            ReadError { problem: ConfigProblem::UnknownKey { key: key.clone(), valid }, ..error }
        }
        _ => error,
    }
}

/// Whether a length is in epochs, in a node of [`named_in_steps`].
fn is_by_epoch(node: &Node) -> bool {
    match &node.value {
        Value::Map(map) => map.iter().any(|(key, node)| key.written.is_some() || is_by_epoch(node)),
        Value::List(list) => list.iter().any(is_by_epoch),
        _ => false,
    }
}

/// The node with its keys of lengths in epochs renamed to those in steps; the keys remember what was written.
fn named_in_steps(node: &Node) -> Result<Node, ReadError> {
    let value = match &node.value {
        Value::List(list) => Value::List(list.iter().map(named_in_steps).collect::<Result<_, _>>()?),
        Value::Map(map) => {
            let entry = |(key, value): &(Key, Node)| {
                let Some((steps, _)) = LENGTHS.iter().find(|(_, epochs)| *epochs == &**key) else {
                    return Ok((key.clone(), named_in_steps(value)?));
                };
                if node.get(steps).is_some() {
                    let message = format!("`{}` and `{steps}` are one length, given twice", key.name);
                    return Err(ReadError::new(message).or_at(key.mark).with_help("keep one of them"));
                }
                let written = Some(key.name.clone());
                Ok((Key { name: steps.to_string(), mark: key.mark, written }, value.clone()))
            };
            Value::Map(map.iter().map(entry).collect::<Result<_, _>>()?)
        }
        _ => return Ok(node.clone()),
    };
    Ok(node.replaced(value))
}

/// The node with each length replaced by its number of steps.
fn each_length(node: &Node, steps: &dyn Fn(Length, &Node) -> Result<u64, ReadError>) -> Result<Node, ReadError> {
    let value = match &node.value {
        Value::List(list) => Value::List(list.iter().map(|node| each_length(node, steps)).collect::<Result<_, _>>()?),
        Value::Map(map) => {
            let entry = |(key, node): &(Key, Node)| match Length::parse(key, node)? {
                Some(length) => Ok((key.clone(), node.replaced(Value::Whole(steps(length, node)?)))),
                None => Ok((key.clone(), each_length(node, steps)?)),
            };
            Value::Map(map.iter().map(entry).collect::<Result<_, _>>()?)
        }
        _ => return Ok(node.clone()),
    };
    Ok(node.replaced(value))
}

/// The node with ascending numbers of steps as lengths, from 2 on, the shortest cycle: it is valid if everything but the
/// lengths is.
fn any_steps(node: &Node) -> Result<Node, ReadError> {
    let last = std::cell::Cell::new(1);
    each_length(node, &|length, _| match length {
        Length::Steps(0) | Length::Epochs(0.0) => Ok(0),
        Length::Steps(_) | Length::Epochs(_) => Ok(last.replace(last.get() + 1) + 1),
    })
}

/// Checks that drops and changes ascend, as far as that is known.
fn check_order(node: &Node) -> Result<(), ReadError> {
    for (list, what) in [("drops", "drop"), ("changes", "change")] {
        let Some(Node { value: Value::List(list), .. }) = node.get(list) else { continue };
        let mut before = None;
        for item in list {
            let Value::Map(map) = &item.value else { continue };
            let Some((key, at)) = map.iter().find(|(key, _)| &**key == "step") else { continue };
            let length = Length::parse(key, at)?;
            if let (Some(before), Some(length)) = (before, length)
                && length.is_not_after(before)
            {
                let (unit, length, before) = match (length, before) {
                    (Length::Epochs(length), Length::Epochs(before)) => ("epoch", length, before),
                    (Length::Steps(length), Length::Steps(before)) => ("step", length as f64, before as f64),
                    _ => continue,
                };
                let measured = format!("a {what} at {unit} {length} after one at {unit} {before}");
                return Err(ReadError::wrong(measured, &format!("ascending {unit}s")).or_at(item.mark));
            }
            before = length;
        }
    }
    Ok(())
}

/// The error of a length that a training of `n_steps` never reaches, relative to the key of the learning rate or the warm-up.
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
        | LearningRate::OneCycle { .. }
        | LearningRate::InverseSqrt { .. } => None,
    }
}

/// An error, relative to the learning rate, if the rate's decay does not end when a training of `n_steps` ends. `unit`
/// is the number of steps in a unit of the lengths: 1, or those of an epoch.
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
        LearningRate::OneCycle { value, decay_steps, div_factor, final_div_factor, .. } => {
            (decay_steps, value / (div_factor * final_div_factor))
        }
        LearningRate::Constant { .. }
        | LearningRate::Exponential { .. }
        | LearningRate::Piecewise { .. }
        | LearningRate::InverseSqrt { .. }
        | LearningRate::WarmUpStep { .. } => return None,
    };
    let before = warm_up.filter(|warm_up| !warm_up.overlap).map_or(0, |warm_up| u64::from(warm_up.steps.get()));
    let end = u64::from(decay_steps.get()) + before;
    let wanted = n_steps.checked_sub(before).filter(|&steps| steps > 0)?;
    // Rounding may shift the end by a hundredth of the training.
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
    use bf16scope_model::document;
    use bf16scope_model::optim::RateDrop;
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
        // A cycle has at least two steps, so one of epochs is looked at as if it had.
        let cycle = timed("{kind: one_cycle, value: 1, decay_epochs: 2}");
        assert!(
            matches!(cycle.in_steps(7).unwrap(), LearningRate::OneCycle { decay_steps, .. } if decay_steps.get() == 14)
        );
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
                e.yaml:1:63: found a change at epoch 2 after one at epoch 3, expected ascending epochs
                  1 | {kind: piecewise, value: 0.4, changes: [{epoch: 3, value: 1}, {epoch: 2, value: 0.1}]}
                    |                                                               ^^^^^^"#]],
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
                e.yaml:1:1: found string "adam", expected a number, or keys with `kind: …`, one of constant, exponential, cosine, polynomial, linear, piecewise, inverse_sqrt, one_cycle, warm_up_step
                  1 | adam
                    | ^^^^"#]],
        );
        let short = timed("{kind: cosine, value: 0.4, decay_epochs: 0.01}").in_steps(44).unwrap_err();
        assert_eq!(short.problem.to_string(), "0.01 epochs of 44 steps are less than a step");
        assert_eq!(short.problem.help().as_deref(), Some("make it longer, or 0"));
        assert_eq!(short.mark, Some(Mark { line: 1, column: 42 }));
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
        // Up to a hundredth before or after is accepted.
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
        // A rate that stays above 0 may end early.
        assert_eq!(remark("{kind: cosine, value: 0.4, decay_steps: 300, alpha: 0.1}", None, 900), None);
        assert_eq!(remark("{kind: polynomial, value: 1, decay_steps: 9, power: 2, end_value: 0.1}", None, 900), None);
        assert_eq!((remark("0.1", None, 9), remark(cosine, Some(false), 50)), (None, None));
    }

    #[test]
    fn what_is_never_reached_is_found() {
        let unreached_by = |text: &str, warm_up: Option<WarmUp>, n_steps| {
            let rate = timed(text).in_steps(10).unwrap();
            unreached(&rate, warm_up.as_ref(), n_steps).map(|(key, error)| (key, error.message))
        };
        let warm_up = WarmUp { steps: NonZeroU32::new(50).unwrap(), start: 0.0, overlap: false };
        assert_eq!(unreached_by("0.1", Some(warm_up), 50), None);
        let (key, message) = unreached_by("0.1", Some(warm_up), 49).unwrap();
        assert_eq!(
            (key, message.as_str()),
            ("warm_up", "the warm-up of 50 steps is longer than the training, which has 49")
        );
        let pieces = "{kind: piecewise, value: 1, changes: [{step: 10, value: 0.5}, {epoch: 3, value: 0.1}]}";
        assert_eq!((unreached_by(pieces, None, 31), unreached_by(pieces, Some(warm_up), 81)), (None, None));
        assert_eq!(
            unreached_by(pieces, None, 30).unwrap().1,
            "the change at step 30 never comes: the training has 30 steps"
        );
        assert_eq!(
            unreached_by(pieces, Some(warm_up), 80).unwrap().1,
            "the change at step 80 never comes: the training has 80 steps"
        );
        let steps = "{kind: warm_up_step, value: 1, warm_up_epochs: 5, drops: [{epoch: 6, multiplier: 0.1}]}";
        assert_eq!(unreached_by(steps, None, 61), None);
        assert_eq!(
            unreached_by(steps, None, 60).unwrap().1,
            "the drop at step 60 never comes: the training has 60 steps"
        );
        assert_eq!(
            unreached_by(steps, None, 40).unwrap().1,
            "the warm-up of 50 steps is longer than the training, which has 40"
        );
    }
}
