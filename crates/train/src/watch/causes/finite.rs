//! Rules for numbers that are infinite, at the ends of their dtype's range, or below it.

use super::scale::weighted_loss;
use crate::watch::look::{Found, Look, percent};
use crate::watch::row::{Quantity, Role, WatchRecord, WatchRow};

const DIVIDED: &str =
    "its gradient is finite: raise the optimizer's epsilon, which divides by 0, or lower the learning rate";

const IN_DATA: &str = "they are in the data: replace what is missing there (of a column of a table `missing: mean`), or leave \
                       these examples out";
const IN_F16: &str = "they are in the data, or are numbers beyond 65,504, where f16 ends: replace what is missing, or scale the \
                      feature (`data: {scale: 1e-3}`)";
const FIRST_LAYER: &str = "no update came before: give it and the layers before it smaller initial values (`kernel_initializer: \
                           glorot_uniform`), or compute it in f32 (`dtype: float32`)";
const FIRST_LAYER_IN_F32: &str = "no update came before: give it and the layers before it smaller initial values \
                                  (`kernel_initializer: glorot_uniform`)";
const FIRST_LOSS: &str = "no update came before: look at labels that this loss does not take, and at what it takes the logarithm \
                          or the root of";
const FIRST_BACKWARD: &str = "no update came before: the gradient of a root at 0 is infinite, that of `sqrt(v + 1e-6)` is not; and \
                              large ones leave f16's range (`loss_scale: dynamic`)";
const SATURATED_BACKWARD: &str = "use `loss_scale: dynamic`, or compute the layers after it in f32 (`dtype: float32`)";
const SATURATED_IN_F32: &str = "lower the learning rate, or normalise what this layer reads (`batch_norm`)";
const IN_F32: &str = "lower the learning rate, or clip gradients (`clip: {kind: global_norm, value: 1}`)";

/// Whether f32 would have more range or precision than what computes the row: a gradient is f32 whatever its layer is.
fn is_low(look: &Look<'_>, row: &WatchRow) -> bool {
    let is_low = |row: &WatchRow| matches!(&*row.dtype, "bf16" | "f16");
    match row.quantity {
        Quantity::Gradient => look.rows(Quantity::Activation).any(|(_, other)| is_low(other)),
        _ => row.role != Some(Role::Loss) && is_low(row),
    }
}

/// The remedy for what is in the data, or in the first step: no learning rate makes either.
fn before_any_update(look: &Look<'_>, row: &WatchRow) -> Option<&'static str> {
    match (row.role, row.quantity) {
        (Some(Role::Input), _) if row.dtype == "f16" => Some(IN_F16),
        (Some(Role::Input | Role::Label), _) => Some(IN_DATA),
        _ if look.now.step > 1 => None,
        (Some(Role::Loss), _) => Some(FIRST_LOSS),
        (_, Quantity::Activation) if is_low(look, row) => Some(FIRST_LAYER),
        (_, Quantity::Activation) => Some(FIRST_LAYER_IN_F32),
        (_, Quantity::Cotangent | Quantity::Gradient) => Some(FIRST_BACKWARD),
        (_, Quantity::Update) => None,
    }
}

pub(in crate::watch) fn not_finite(look: &Look<'_>) -> Vec<Found> {
    let Some((number, row)) = look.now.first_harmful() else { return Vec::new() };
    // Variables that a step before made so go through the forward pass.
    let before = look.before.and_then(WatchRecord::first_harmful);
    if row.quantity == Quantity::Activation && before.is_some_and(|(_, row)| row.quantity != Quantity::Activation) {
        return Vec::new();
    }
    let what = format!(
        "{} of {} numbers are infinite or NaN; all that comes before is finite{}",
        percent(row.not_finite),
        row.n,
        in_gradient_of_readers(look, row)
    );
    let not_finite = Found::new(number, what);
    vec![match (row.quantity, weighted_loss(look)) {
        (Quantity::Update, _) => not_finite.with_remedy(DIVIDED),
        (_, Some(remedy)) => not_finite.with_remedy(remedy),
        (_, None) => match before_any_update(look, row) {
            Some(remedy) => not_finite.with_remedy(remedy),
            None if is_low(look, row) => not_finite,
            None => not_finite.with_remedy(IN_F32),
        },
    }]
}

/// The layers that read the one whose cotangent is the first that is not finite: their gradients make it.
fn in_gradient_of_readers(look: &Look<'_>, row: &WatchRow) -> String {
    let is_it = |other: &WatchRow| (&other.layer, other.role) == (&row.layer, row.role);
    let activation = look.rows(Quantity::Activation).find(|(_, other)| is_it(other)).map(|(number, _)| number as u32);
    let (Quantity::Cotangent, Some(activation)) = (row.quantity, activation) else { return String::new() };
    let readers = look.rows(Quantity::Activation).filter(|(_, other)| other.takes.contains(&activation));
    let names: Vec<String> = readers.map(|(_, reader)| format!("`{}`", reader.name())).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(", so it arises in the gradient of {}", names.join(" or ")),
    }
}

pub(in crate::watch) fn loss_scale(look: &Look<'_>) -> Vec<Found> {
    let first = look.now.first_not_finite();
    let Some((number, row)) = first.filter(|(_, row)| row.quantity != Quantity::Activation) else { return Vec::new() };
    let scale = look.now.loss_scale.filter(|scale| *scale > 1.0 && look.now.n_skipped.is_none());
    let what = |scale: f64| {
        format!("under a loss scale of {scale} {} of {} numbers are infinite or NaN", percent(row.not_finite), row.n)
    };
    scale.map(|scale| Found::new(number, what(scale))).into_iter().collect()
}

pub(in crate::watch) fn saturated(look: &Look<'_>) -> Vec<Found> {
    let rows = look.now.rows.iter().enumerate().filter(|(_, row)| row.saturated >= 1e-3);
    rows.map(|(number, row)| {
        let (share, n, dtype) = (percent(row.saturated), row.n, &row.dtype);
        let what = format!("{share} of its {n} numbers are at ±{:.3e}, where {dtype} ends", row.max);
        let saturated = Found::new(number, what);
        match (&**dtype, row.quantity) {
            ("f16", Quantity::Cotangent) => saturated.with_remedy(SATURATED_BACKWARD),
            ("f16", _) => saturated,
            _ => saturated.with_remedy(SATURATED_IN_F32),
        }
    })
    .collect()
}

pub(in crate::watch) fn flushed(look: &Look<'_>) -> Vec<Found> {
    let rows: Vec<(usize, &WatchRow)> = look.rows(Quantity::Cotangent).collect();
    let has_loss = look.now.loss().is_some_and(|loss| loss.abs() > 1e-3);
    let smallest_normal = |row: &WatchRow| if row.dtype == "f16" { 2f32.powi(-14) } else { f32::MIN_POSITIVE };
    for (at, (number, row)) in rows.iter().enumerate() {
        let nonzero = 1.0 - row.zero - row.not_finite;
        if nonzero > 0.0 && row.subnormal >= 0.5 * nonzero {
            let share = percent(row.subnormal / nonzero);
            let what = format!("{share} of those that are not 0 are below the smallest normal {}", row.dtype);
            return vec![Found::new(*number, what)];
        }
        let was_small = match at.checked_sub(1).map(|last| rows[last].1) {
            None => has_loss,
            Some(last) => !last.is_zero() && last.max < smallest_normal(row),
        };
        if row.dtype == "f16" && row.is_zero() && was_small {
            return vec![Found::new(*number, format!("all {} are 0 in f16, whose least number is 2^-24", row.n))];
        }
    }
    Vec::new()
}

pub(in crate::watch) fn loss_scale_stuck(look: &Look<'_>) -> Vec<Found> {
    let both = look.now.n_skipped.zip(look.before.and_then(|before| before.n_skipped));
    let Some(((now, before), look_before)) = both.zip(look.before) else { return Vec::new() };
    let (n_skipped, n_steps) = (now.saturating_sub(before), look.now.step.saturating_sub(look_before.step));
    if n_skipped < 8 || 10 * n_skipped < 9 * n_steps {
        return Vec::new();
    }
    let overflowing = look.now.rows.iter().position(|row| row.not_finite > 0.0 && row.role != Some(Role::Softmax));
    let row = overflowing.or_else(|| look.rows(Quantity::Gradient).map(|(number, _)| number).next());
    let scale = look.now.loss_scale.unwrap_or(1.0);
    let what = format!("{n_skipped} of the last {n_steps} steps were left out, and the loss scale is {scale}");
    row.map(|row| Found::new(row, what)).into_iter().collect()
}
