//! Rules for updates: learning rates, ε, decay, and what a variable's dtype loses.

use crate::watch::look::{Found, Look, exceeds, norm, percent};
use crate::watch::row::{Quantity, RecordedClip, Role, WatchRecord, WatchRow};

/// An optimizer with a quotient does not make updates of more learning rates than this.
const LARGE: f32 = 64.0;

/// Optimizers that divide a gradient by its own size.
const QUOTIENTS: [&str; 6] = ["adam", "adamw", "adamax", "nadam", "rmsprop", "adagrad"];

/// The remedy where squares of gradients are far above what f32 flushes to 0, so that a quotient is bounded.
const NO_EPSILON: &str = "gradients of that size make no such step, whatever ε is: look at what else changes the variable, such as \
                          `kernel_constraint`, and at `beta2`";

pub(in crate::watch) fn epsilon(look: &Look<'_>) -> Vec<Found> {
    let rate = look.now.learning_rate as f32;
    let is_of_a_quotient = QUOTIENTS.contains(&look.now.optimizer.as_str());
    // Weight decay moves variables without the quotient.
    if !is_of_a_quotient || rate <= 0.0 || look.now.decay >= MOST_DECAY {
        return Vec::new();
    }
    let judge = |(number, row): (usize, &WatchRow)| {
        let gradient = look.gradient_of(&row.layer)?;
        let is_noise = gradient.max > 0.0 && gradient.max < 2f32.powi(-40) && gradient.not_finite == 0.0;
        if row.max > LARGE * rate {
            let message = format!("an element moves by {:.3e}, and the learning rate is {rate:.3e}", row.max);
            let moved = Found::new(number, message);
            return Some(if is_noise { moved } else { moved.with_remedy(NO_EPSILON) });
        }
        let what = || format!("gradients of {:.1e} at most move it by {:.3e}", gradient.max, row.rms);
        (is_noise && row.rms >= rate / 4.0).then(|| Found::new(number, what()))
    };
    // The projection onto a constraint is not a step of the optimizer.
    look.rows(Quantity::Update).filter(|(_, row)| !row.is_constrained).filter_map(judge).collect()
}

/// An ε that may be larger than gradients are. A smaller one is above those of a network that has learnt all that there is,
/// but not above those of a first step.
const LARGE_EPSILON: f64 = 0.1;

pub(in crate::watch) fn large_epsilon(look: &Look<'_>) -> Vec<Found> {
    let rate = look.now.learning_rate as f32;
    let epsilon = look.now.epsilon.filter(|epsilon| *epsilon > 0.0);
    let (Some(epsilon), true) = (epsilon, look.has_moved() && rate > 0.0) else { return Vec::new() };
    let (is_large, first) = (epsilon >= LARGE_EPSILON, look.first.filter(|first| first.step == 1).map(Look::alone));
    if !is_large && first.is_none() {
        return Vec::new();
    }
    if !QUOTIENTS.contains(&look.now.optimizer.as_str()) || look.now.decay >= MOST_DECAY {
        return Vec::new();
    }
    // For a bias that is still 0, every update is large.
    let largest = look.rows(Quantity::Update).filter_map(|(_, row)| row.stored).fold(0.0, f32::max);
    let is_damped = |(_, row): (usize, &WatchRow)| {
        let before = look.before(row).map_or(0.0, |before| before.rms);
        let is_little = |rms: f32| rms <= rate / 8.0;
        let is_below_in = |look: &Look<'_>| {
            let rms = look.gradient_of(&row.layer).map(|gradient| f64::from(gradient.rms));
            // Gradients of 0 are below any ε, and other rules'.
            rms.is_some_and(|rms| rms <= epsilon / 4.0 && (is_large || rms > 0.0))
        };
        let is_below = is_below_in(look) && (is_large || first.as_ref().is_some_and(is_below_in));
        is_little(row.rms) && is_little(before) && is_below && row.max <= 1e-3 * largest
    };
    let has_gradients = look.rows(Quantity::Gradient).any(|(_, row)| !row.is_zero());
    let mut kernels = look.rows(Quantity::Update).filter(|(_, row)| row.n >= 16).peekable();
    if !has_gradients || kernels.peek().is_none() || !kernels.all(is_damped) {
        return Vec::new();
    }
    let largest = look.rows(Quantity::Update).max_by(|(_, a), (_, b)| a.rms.total_cmp(&b.rms));
    let damped = largest.map(|(number, row)| {
        let gradient = look.gradient_of(&row.layer).map_or(0.0, |gradient| gradient.rms);
        let what = format!(
            "it moves by {:.1e} at a learning rate of {rate:.1e}: its gradients are {gradient:.1e} beside an ε of {epsilon:.1e}",
            row.rms
        );
        let lower = |epsilon: &str| format!("lower ε: `optimizer: {{kind: {}, epsilon: {epsilon}}}`", look.now.optimizer);
        Found::new(number, what).with_remedy(match is_large {
            true => lower("1.0e-8"),
            false => format!(
                "raise what multiplies the loss, such as its `weight`: gradients are below ε from the first step on. Or {}",
                lower(&format!("{:.0e}", f64::from(gradient) / 100.0))
            ),
        })
    });
    damped.into_iter().collect()
}

/// The largest plausible share of a variable that decays in a step.
const MOST_DECAY: f64 = 0.1;

pub(in crate::watch) fn weight_decay(look: &Look<'_>) -> Vec<Found> {
    let decay = look.now.decay;
    if decay < MOST_DECAY {
        return decayed(look).into_iter().collect();
    }
    let largest = look.rows(Quantity::Update).max_by(|(_, a), (_, b)| a.rms.total_cmp(&b.rms));
    let what = format!("each step takes {} of it away", percent(decay));
    largest.map(|(number, _)| Found::new(number, what).with_remedy(lower_decay(look))).into_iter().collect()
}

/// The remedy for a decay that moves variables by the learning rate times itself.
fn lower_decay(look: &Look<'_>) -> String {
    let (decay, rate) = (look.now.decay, look.now.learning_rate);
    // Without the digits that the division adds.
    let value: f64 = format!("{:.3e}", decay / rate).parse().unwrap_or(decay / rate);
    format!(
        "lower `weight_decay` from {value}, where 1e-4 to 0.1 are usual, or the learning rate, {rate:.1e}, which \
         multiplies it"
    )
}

/// The share of its largest number at the first look that a kernel keeps, if nothing takes it away.
const KEPT: f32 = 1.0 / 32.0;

/// The kernel that a decay has left most of, where it has left none of them a 32nd of what it was: gradients make some
/// kernels smaller, and others larger. FTRL's first update forgets initial values, and is not judged.
fn decayed(look: &Look<'_>) -> Option<Found> {
    let first = look.first.filter(|_| look.now.optimizer != "ftrl")?;
    let is_kernel = |row: &WatchRow| {
        let name = row.layer.rsplit('/').next().unwrap_or(&row.layer);
        row.n >= 16 && !["bias", "beta", "gamma", "scale"].contains(&name)
    };
    let kernels = look.rows(Quantity::Update).filter(|(_, row)| is_kernel(row));
    let sizes = kernels.map(|(number, row)| {
        let at_first = look.at_first(row)?.stored.filter(|size| *size > 0.0)?;
        Some((number, at_first, row.stored?))
    });
    let sizes: Vec<(usize, f32, f32)> = sizes.collect::<Option<_>>()?;
    let (number, at_first, size) = sizes.into_iter().max_by(|a, b| (a.2 / a.1).total_cmp(&(b.2 / b.1)))?;
    let message = || {
        format!(
            "its largest number was {at_first:.1e} at step {} and is {size:.1e}, and no kernel has kept more of what it was",
            first.step
        )
    };
    let decayed = (size <= KEPT * at_first).then(|| Found::new(number, message()))?;
    Some(decayed.with_remedy(if look.now.decay > 0.0 { lower_decay(look) } else { LOWER_TERMS.to_string() }))
}

/// The remedy where no decay stands beside the optimizer: a term of the loss or a projection makes kernels smaller.
const LOWER_TERMS: &str = "lower what makes kernels smaller: `kernel_regularizer: {l2: 1.0e-4}` or `weight_decay: {value: \
                           1.0e-4}` is usual, and `kernel_constraint: {max_norm: 3}`";

/// The least share of a variable by which only an update that is hundreds of times too large moves it.
const MOST_MOVED: f64 = 0.2;
/// The share by which a usual update moves a variable.
const USUALLY_MOVED: f64 = 1e-3;
/// A rate's updates have an rms of at most as many rates; larger ones are those of an ε.
const RATES: f32 = 8.0;
/// Steps after which a loss that is about what it was is significant.
const ENOUGH_STEPS: u64 = 16;

/// The shares of variables, as they were at the first look, by which a record's updates move them, with their rows, in
/// rising order. A variable of small initial values counts as one of the usual ones: those of a square kernel.
fn shares_moved(look: &Look<'_>, first: &WatchRecord, record: &WatchRecord) -> Vec<(f64, usize)> {
    let share = |(number, row): (usize, &WatchRow)| {
        let [at_first, moved] = [first, record].map(|record| {
            record.rows.get(number).filter(|other| (&other.layer, other.quantity) == (&row.layer, row.quantity))
        });
        let (at_first, moved) = at_first.zip(moved)?;
        let is_of_the_rate = moved.zero < 1.0 && moved.rms <= RATES * record.learning_rate as f32;
        let stored = at_first.stored.filter(|stored| *stored > 0.0 && row.n >= 16 && is_of_the_rate)?;
        let size = f64::from(stored).max((row.n as f64).powf(-0.25));
        // Rows of a table that no id of the batch names stay as they are.
        Some((f64::from(moved.rms) / (1.0 - moved.zero).sqrt() / size, number))
    };
    let mut shares: Vec<(f64, usize)> = look.rows(Quantity::Update).filter_map(share).collect();
    shares.sort_by(|a, b| a.0.total_cmp(&b.0));
    shares
}

/// The median of shares in rising order.
fn median(shares: &[(f64, usize)]) -> f64 {
    shares.get(shares.len().saturating_sub(1) / 2).map_or(0.0, |(share, _)| *share)
}

/// Whether the optimizer's updates have the size of the learning rate, whatever gradients are.
fn moves_by_the_rate(record: &WatchRecord) -> bool {
    QUOTIENTS.contains(&record.optimizer.as_str()) || record.optimizer == "lion"
}

/// The learning rate for usual updates, as part of a remedy: this one moves variables by `share` of their size.
fn usual_rate(rate: f64, share: f64) -> String {
    format!(
        "at `learning_rate: {:.0e}` an update moves variables by about a thousandth of their size, as is usual",
        rate * USUALLY_MOVED / share
    )
}

/// The record and the loss that a loss is compared with, if it is no better: those of the first look, or of the look
/// before, where the learning rate has risen since the first.
fn no_better<'a>(look: &Look<'a>, first: &'a WatchRecord) -> Option<(&'a WatchRecord, f32)> {
    let then = first.loss().filter(|loss| *loss != 0.0)?;
    let Some(now) = look.now.loss() else { return Some((first, then)) };
    let n_steps = look.now.step.saturating_sub(first.step);
    if exceeds(now, then, 1.0) || exceeds(now, then, -0.25) && n_steps >= ENOUGH_STEPS {
        return Some((first, then));
    }
    let has_risen = look.now.learning_rate >= 2.0 * first.learning_rate;
    let before = look.before.filter(|_| has_risen && exceeds(now, then, -0.75))?;
    let last = before.loss().filter(|last| exceeds(now, *last, 1.0))?;
    Some((before, last))
}

pub(in crate::watch) fn large_rate(look: &Look<'_>) -> Vec<Found> {
    // Large labels need large weights.
    if !moves_by_the_rate(look.now) || look.now.decay >= MOST_DECAY || look.label_scale() >= super::scale::LARGE {
        return Vec::new();
    }
    let Some(first) = look.first else { return Vec::new() };
    let Some((earlier, then)) = no_better(look, first) else { return Vec::new() };
    let of_first = (shares_moved(look, first, first), first.learning_rate);
    let of_now = (shares_moved(look, first, look.now), look.now.learning_rate);
    let (shares, rate) = if median(&of_now.0) > median(&of_first.0) { of_now } else { of_first };
    let usual = median(&shares);
    let largest = shares.last().filter(|_| usual >= MOST_MOVED && rate > 0.0);
    let large = largest.map(|(share, number)| {
        let loss = look.now.loss().map_or("infinite or NaN".to_string(), |loss| format!("{loss:.3e}"));
        let message = format!(
            "an update at a learning rate of {rate:.1e} moves it by {share:.2} of its size, and half of the variables by \
             {usual:.2} or more; the loss was {then:.3e} at step {}, and is {loss}",
            earlier.step
        );
        Found::new(*number, message).with_remedy(format!("lower the learning rate: {}", usual_rate(rate, usual)))
    });
    large.into_iter().collect()
}

/// A momentum that keeps gradients for a thousand steps.
const LONG: f64 = 0.999;

pub(in crate::watch) fn long_momentum(look: &Look<'_>) -> Vec<Found> {
    let momentum = look.now.momentum.filter(|momentum| *momentum >= LONG);
    let (Some(momentum), Some(first)) = (momentum, look.first) else { return Vec::new() };
    let Some(then) = first.loss().filter(|loss| *loss != 0.0) else { return Vec::new() };
    let is_no_better = look.now.loss().is_none_or(|loss| exceeds(loss, then, -0.25));
    if !is_no_better || look.now.step < first.step + 2 * ENOUGH_STEPS || look.now.learning_rate <= 0.0 {
        return Vec::new();
    }
    // The same row at every look: it is one fault.
    let long = look.rows(Quantity::Update).next().map(|(number, _)| {
        let loss = look.now.loss().map_or("infinite or NaN".to_string(), |loss| format!("{loss:.3e}"));
        let message = format!(
            "a step keeps {momentum} of the gradients of the steps before, so that each moves it for {:.0} steps; the loss was \
             {then:.3e} at step {}, and is {loss}",
            1.0 / (1.0 - momentum),
            first.step
        );
        let key = if ["momentum", "lars", "rmsprop"].contains(&look.now.optimizer.as_str()) { "momentum" } else { "beta1" };
        let remedy = format!("lower it: `optimizer: {{kind: {}, {key}: 0.9}}`", look.now.optimizer);
        Found::new(number, message).with_remedy(remedy)
    });
    long.into_iter().collect()
}

/// The share by which an update moves variables at a rate that is a thirtieth of a usual one.
const LEAST_MOVED: f64 = 3e-5;
/// Steps after which a loss that has not fallen from its first value is significant.
const MANY_STEPS: u64 = 200;
/// A loss has not fallen where it is no farther below another.
const STAYED: f32 = -0.02;

/// Whether variables have their initial values: there are biases, and all are 0. Weights from elsewhere are past that,
/// and small rates are for them.
fn is_initial(record: &WatchRecord) -> bool {
    let is_bias = |row: &&WatchRow| {
        let name = row.layer.rsplit('/').next();
        row.quantity == Quantity::Update && name.is_some_and(|name| ["bias", "beta"].contains(&name))
    };
    let mut biases = record.rows.iter().filter(is_bias).peekable();
    biases.peek().is_some() && biases.all(|row| row.stored == Some(0.0))
}

pub(in crate::watch) fn small_rate(look: &Look<'_>) -> Vec<Found> {
    let (Some(first), Some(before)) = (look.first, look.before) else { return Vec::new() };
    let (now, rate) = (look.now, look.now.learning_rate);
    let is_constant = [first, before].iter().all(|record| record.learning_rate == rate) && now.rate_jump.is_none();
    // Plain bf16 loses small updates, and large labels are far away.
    let is_judged = moves_by_the_rate(now) && now.variables != "bf16" && look.label_scale() < super::scale::LARGE;
    let is_late = now.step >= first.step + MANY_STEPS && before.step >= first.step + MANY_STEPS / 2;
    if !is_constant || !is_judged || !is_late || now.decay >= MOST_DECAY || first.step != 1 || !is_initial(first) {
        return Vec::new();
    }
    let losses = first.loss().filter(|loss| *loss != 0.0).zip(before.loss()).zip(now.loss());
    let has_stayed = |((then, last), loss): &((f32, f32), f32)| exceeds(last.min(*loss), *then, STAYED);
    let Some(((then, last), loss)) = losses.filter(has_stayed) else {
        return Vec::new();
    };
    // Smaller updates are those of an ε or of gradients that are 0, larger ones no rate's.
    let is_at_most = |row: &WatchRow| row.rms <= RATES * rate as f32;
    let is_about = |row: &WatchRow| row.rms >= rate as f32 / 16.0;
    let updates = || look.rows(Quantity::Update).map(|(_, row)| row);
    let [at_first, shares] = [first, now].map(|record| shares_moved(look, first, record));
    let is_little = |shares: &[(f64, usize)]| shares.last().is_some_and(|(share, _)| *share < LEAST_MOVED);
    if !updates().all(is_at_most) || !updates().any(is_about) || !is_little(&at_first) || !is_little(&shares) {
        return Vec::new();
    }
    let small = shares.last().map(|(share, number)| {
        let message = format!(
            "an update at a learning rate of {rate:.1e} moves it by {share:.1e} of its size, and no variable by more; the loss \
             was {then:.3e} at step {}, {last:.3e} at step {} and is {loss:.3e}",
            first.step, before.step
        );
        let remedy = format!("raise the learning rate: {}", usual_rate(rate, median(&at_first)));
        Found::new(*number, message).with_remedy(remedy)
    });
    small.into_iter().collect()
}

/// Whether the learning rate rises by a third or falls by a quarter between the looks: a warm-up begins with updates that
/// are too small, and a schedule that goes down to 0 ends with them.
fn is_changing(look: &Look<'_>) -> bool {
    let (now, before) = (look.now.learning_rate, look.before.map_or(0.0, |before| before.learning_rate));
    now <= 0.75 * before || before <= 0.75 * now
}

const LOST_IN_F32: &str = "raise the learning rate, or the norm that gradients are clipped to";

/// Gradients that are clipped to less than this share of what they are.
const CLIPPED: f64 = 1e-3;

/// A clip that leaves so little of gradients that what it leaves is lost. Rules with a quotient divide by what is left.
pub(in crate::watch) fn small_clip(look: &Look<'_>) -> Vec<Found> {
    let Some(RecordedClip { kind, value }) = &look.now.clip else { return Vec::new() };
    let gradients = || look.rows(Quantity::Gradient).map(|(_, row)| row);
    let norms = || gradients().map(norm);
    let (size, words) = match kind.as_str() {
        "value" => (gradients().map(|row| f64::from(row.max)).fold(0.0, f64::max), "gradients are up to"),
        "norm" => (norms().fold(0.0, f64::max), "the largest norm of a variable's gradients is"),
        _ => (norms().map(|norm| norm * norm).sum::<f64>().sqrt(), "the norm of all gradients is"),
    };
    let lost = stalled(look).into_iter().next().filter(|_| size.is_finite() && *value <= CLIPPED * size);
    let small = lost.map(|lost| {
        let message = format!("{words} {size:.1e}, and `clip` makes that {value:.1e}: {}", lost.what);
        let remedy = format!(
            "raise `clip: {{kind: {kind}, value: {value:?}}}`, or leave it out: 1 is usual, and a clip is for the few steps \
             whose gradients are far larger than others'"
        );
        Found::new(lost.row, message).with_remedy(remedy)
    });
    small.into_iter().collect()
}

/// A constraint is tight if it leaves this part of a variable, beside the first look.
const HELD: f32 = 1.0 / 32.0;

pub(in crate::watch) fn tight_constraint(look: &Look<'_>) -> Vec<Found> {
    let judge = |(number, row): (usize, &WatchRow)| {
        let (first, now) = (look.at_first(row)?.stored?, row.stored.filter(|_| row.is_constrained)?);
        let what =
            || format!("its constraint holds its largest number at {now:.1e}, which was {first:.1e} at the first look");
        (now <= HELD * first && first > 0.0).then(|| Found::new(number, what()))
    };
    look.rows(Quantity::Update).filter_map(judge).collect()
}

pub(in crate::watch) fn stalled(look: &Look<'_>) -> Vec<Found> {
    if !look.has_moved() || look.now.learning_rate <= 0.0 || look.now.variables == "bf16_stochastic" {
        return Vec::new();
    }
    if !look.are_gradients_finite() || is_changing(look) {
        return Vec::new();
    }
    let share = |row: &WatchRow, gradient: &WatchRow| {
        let moved = 1.0 - gradient.zero;
        (moved * row.n as f64 >= 16.0).then(|| row.lost.unwrap_or(0.0) / moved)
    };
    let judge = |(number, row): (usize, &WatchRow)| {
        let now = share(row, look.gradient_of(&row.layer)?)?;
        let before = look.before(row)?.lost?;
        let is_stalled = now > 0.5 && before > 0.25;
        let what = || format!("{} of the updates are below half an ulp of {}, and lost", percent(now), row.dtype);
        let remedied = |stalled: Found| if row.dtype == "f32" { stalled.with_remedy(LOST_IN_F32) } else { stalled };
        is_stalled.then(|| remedied(Found::new(number, what())))
    };
    // A constraint that holds a variable puts back what an update moved, which is not lost.
    look.rows(Quantity::Update).filter(|(_, row)| !row.is_constrained).filter_map(judge).collect()
}

pub(in crate::watch) fn zero_rate(look: &Look<'_>) -> Vec<Found> {
    let has_stayed = look.now.never_moves && look.before.is_some();
    let update = look.rows(Quantity::Update).map(|(number, _)| number).next();
    let what = format!("the learning rate is 0 from step 1 to step {}", look.now.step);
    update.filter(|_| has_stayed).map(|number| Found::new(number, what)).into_iter().collect()
}

pub(in crate::watch) fn rate_jump(look: &Look<'_>) -> Vec<Found> {
    let jump = look.now.rate_jump.filter(|jump| jump.now >= 8.0 * jump.before);
    let (Some(jump), Some(before)) = (jump, look.before) else { return Vec::new() };
    let loss = look.rows(Quantity::Activation).find(|(_, row)| row.role == Some(Role::Loss));
    let Some((number, _)) = loss else { return Vec::new() };
    let (now, then) = (look.now.loss(), before.loss());
    let is_worse = match (now, then) {
        (Some(now), Some(then)) => exceeds(now, then, 1.0),
        (None, _) => true,
        (Some(_), None) => false,
    };
    let has_changed = look.layers().any(|(_, row)| {
        let before = look.before(row);
        before.is_some_and(|before| row.rms >= 8.0 * before.rms || row.is_zero() && !before.is_zero())
    });
    if !is_worse && !has_changed {
        return Vec::new();
    }
    let loss = |loss: Option<f32>| loss.map_or("infinite or NaN".to_string(), |loss| format!("{loss:.3e}"));
    let what = format!(
        "the learning rate rises from {:.3e} to {:.3e} at step {}; the loss is {} at step {} and {} at step {}",
        jump.before,
        jump.now,
        jump.step,
        loss(then),
        before.step,
        loss(now),
        look.now.step
    );
    vec![Found { step: Some(jump.step), ..Found::new(number, what) }]
}

pub(in crate::watch) fn slow_statistics(look: &Look<'_>) -> Vec<Found> {
    let steps = look.now.step.saturating_sub(1) as f64;
    let left = |share: f64| share.powf(steps);
    let slow = look.now.slow_statistics.iter().find(|(_, share)| look.before.is_some() && left(*share) > 0.5);
    let Some((name, kept)) = slow else { return Vec::new() };
    let scope = name.rsplit_once('/').map_or("", |(scope, _)| scope);
    let number = look.rows(Quantity::Activation).find(|(_, row)| row.layer == scope).map_or(0, |(number, _)| number);
    let what = format!(
        "after {steps} steps that keep {kept:.6} of it, {} of {name} is what it was at first",
        percent(left(*kept))
    );
    vec![Found { layer: Some(scope.to_string()), ..Found::new(number, what) }]
}
