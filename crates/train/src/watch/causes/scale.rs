//! Rules for numbers that are too large or too small for the layers that read them: features, labels, layers.

use std::collections::BTreeSet;

use crate::watch::look::{Found, Look, exceeds, norm, percent};
use crate::watch::row::{Function, Quantity, Role, WatchRow};
use bf16scope_data::ColumnSize;

/// A feature counts as scaled below this rms.
const SCALED: f32 = 32.0;
/// A feature whose largest number is below this is too small for initial values that assume an rms of about 1.
const TINY: f32 = 1.0 / 1024.0;

/// The most columns that a row has.
const MAX_COLUMNS: usize = 64;

/// Whether numbers are of another size than initial values assume.
fn is_off(row: &WatchRow) -> bool {
    row.not_finite == 0.0 && (row.rms >= SCALED || row.max > 0.0 && row.max <= TINY)
}

/// Adds the columns to the rows of features that are too large or too small.
pub(crate) fn note_columns(rows: &mut [WatchRow], sizes: impl Fn(&str) -> Option<Vec<ColumnSize>>) {
    let distance = |column: &ColumnSize| column.rms.log2().abs();
    for row in rows.iter_mut().filter(|row| row.role == Some(Role::Input) && is_off(row)) {
        let mut columns = sizes(&row.layer).unwrap_or_default();
        columns.retain(|column| column.rms > 0.0);
        // Unscaled pixels may be small at a border, so no single column of them is the cause.
        let n_off = columns.iter().filter(|column| is_column_off(column)).count();
        if 2 * n_off >= columns.len() {
            columns.retain(|column| column.name.is_some());
        }
        columns.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
        columns.truncate(MAX_COLUMNS);
        row.columns = columns;
    }
}

/// Whether a column is of another size than initial values assume.
fn is_column_off(column: &ColumnSize) -> bool {
    column.rms >= SCALED || column.rms <= TINY
}

/// A feature that a kernel reads unscaled.
pub(in crate::watch) fn unscaled_input(look: &Look<'_>) -> Vec<Found> {
    let inputs = look.rows(Quantity::Activation).filter(|(_, row)| row.role == Some(Role::Input) && is_off(row));
    for (input, of_input) in inputs {
        // A layer without variables passes the feature on, unless it scales it.
        let mut handed = BTreeSet::from([input]);
        for (number, row) in look.layers().filter(|(number, _)| *number > input) {
            if !look.taken(number, row).iter().any(|(taken, _)| handed.contains(taken)) {
                continue;
            }
            match look.variables(&row.layer).is_empty() {
                true if is_off(row) => drop(handed.insert(number)),
                true => {}
                false if look.is_norm(&row.layer) || look.is_lookup(&row.layer) => {}
                false => {
                    let what = format!(
                        "the rms of this feature is {:.3e} and its largest number {:.3e}, and {} multiplies it by its kernel as \
                         it is",
                        of_input.rms, of_input.max, row.layer
                    );
                    return vec![Found::new(input, what).with_remedy(scaling(look, of_input))];
                }
            }
        }
    }
    Vec::new()
}

/// The columns that a remedy names.
const N_NAMED: usize = 8;

/// A name as YAML has it.
fn yaml_name(name: &str) -> String {
    let is_word = |name: &str| name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    let is_plain = name.chars().next().is_some_and(char::is_alphabetic) && is_word(name);
    let is_other = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&&*name.to_lowercase());
    if is_plain && !is_other { name.to_string() } else { format!("{name:?}") }
}

/// The remedy of a feature some of whose columns are off: those of a table are named, and `scale` is not for them.
fn scaling_of_columns(feature: &WatchRow) -> Option<String> {
    let off: Vec<&ColumnSize> = feature.columns.iter().filter(|column| is_column_off(column)).collect();
    let is_whole = off.len() == feature.columns.len();
    let more = if off.len() > N_NAMED { ", …" } else { "" };
    let named = &off[..off.len().min(N_NAMED)];
    let listed = |one: &dyn Fn(&ColumnSize) -> String| {
        named.iter().map(|column| one(column)).collect::<Vec<_>>().join(", ") + more
    };
    let (first, x) = (off.first()?, yaml_name(&feature.layer));
    match &first.name {
        Some(_) => {
            let name = |column: &ColumnSize| column.name.clone().unwrap_or_default();
            let sizes = listed(&|column| format!("`{}` has an rms of {:.1e}", name(column), column.rms));
            let keys = listed(&|column| format!("{{name: {}, normalize: true}}", yaml_name(&name(column))));
            let beside = if is_whole { "" } else { ", …" };
            Some(format!(
                "normalise the columns that are off ({sizes}): `data: {{columns: {{{x}: [{keys}{beside}]}}}}`"
            ))
        }
        None if first.is_of_feature => {
            let layer = &feature.layer;
            let sizes =
                listed(&|column| format!("column {} of {layer} has an rms of {:.1e}", column.number, column.rms));
            Some(format!("{sizes}: let a `batch_norm` be the first layer, or divide what is off before it is written"))
        }
        None => {
            let sizes = listed(&|column| format!("column {} has an rms of {:.1e}", column.number, column.rms));
            Some(format!(
                "{sizes}: divide what is off in the file, or give it a header and write `data: {{columns: {{{x}: [{{name: \
                 NAME, normalize: true}}, …]}}}}`; or let a `batch_norm` be the first layer"
            ))
        }
    }
}

/// The remedy of a feature that is nearly constant, if it is: a factor would leave it so.
fn centring(feature: &WatchRow) -> Option<String> {
    /// A mean of this many deviations: bytes of pictures have one of 2 or less.
    const DEVIATIONS: f32 = 4.0;
    const ENOUGH: u64 = 16;
    let mean = feature.mean.filter(|_| feature.n >= ENOUGH)?;
    let deviation = (feature.rms * feature.rms - mean * mean).max(0.0).sqrt();
    let n_bits = match &*feature.dtype {
        "bf16" => Some(7),
        "f16" => Some(10),
        _ => None,
    };
    let spacing = |n_bits: i32| 2f32.powi(mean.abs().log2().floor() as i32 - n_bits);
    let apart = n_bits.map_or(String::new(), |n_bits| {
        format!(", and in {} numbers of that size are {} apart", feature.dtype, spacing(n_bits))
    });
    (mean.abs() >= DEVIATIONS * deviation).then(|| {
        format!(
            "subtract its mean, {mean:.3e}, and divide by its standard deviation in the data, as `normalize: true` of a table's \
             column does: a factor leaves it nearly constant{apart}"
        )
    })
}

/// The remedy of a feature's scale, with the factor for an rms of 1.
fn scaling(look: &Look<'_>, feature: &WatchRow) -> String {
    if let Some(remedy) = scaling_of_columns(feature).or_else(|| centring(feature)) {
        return remedy;
    }
    // A factor is a normal number of f32.
    let factor = (1.0 / f64::from(feature.rms.max(f32::MIN_POSITIVE))).max(2e-38);
    let n_features = look.rows(Quantity::Activation).filter(|(_, row)| row.role == Some(Role::Input)).count();
    let scale = match n_features {
        1 => format!("{factor:.0e}"),
        _ => format!("{{{}: {factor:.0e}}}", feature.layer),
    };
    format!(
        "scale the feature to an rms of about 1: `data: {{scale: {scale}}}`, times the `scale` that it already has; or let a \
         `batch_norm` be the first layer where its columns differ"
    )
}

const OUT_OF_REACH: &str = "train on labels less their mean, divided by their standard deviation (in the data, for `scale` is for \
                            features): an update of the head is a step towards them of the size of the learning rate";

/// Labels that are too large for the loss, or out of the head's reach.
pub(in crate::watch) fn label_scale(look: &Look<'_>) -> Vec<Found> {
    let labels = look.rows(Quantity::Activation).filter(|(_, row)| row.role == Some(Role::Label));
    let Some((number, row)) = labels.max_by(|(_, a), (_, b)| a.rms.total_cmp(&b.rms)) else { return Vec::new() };
    if row.rms < LARGE || row.not_finite > 0.0 || look.now.rate_jump.is_some() {
        return Vec::new();
    }
    let is_finite = look.now.loss().is_some() && look.are_gradients_finite();
    let has_grown = look.now.loss().zip(look.before.and_then(|before| before.loss()));
    let has_grown = has_grown.is_some_and(|(now, before)| now >= 4.0 * before && before > 0.0);
    let has_grown = has_grown && is_beyond(look, row);
    if (!is_finite || has_grown) && grows_with(look, row) {
        let loss = look.now.loss().map_or("infinite or NaN".to_string(), |loss| format!("{loss:.3e}"));
        return vec![Found::new(number, format!("the rms of this label is {:.3e}, and the loss is {loss}", row.rms))];
    }
    let out_of_reach = out_of_reach(look, row).or_else(|| offset(look, row));
    out_of_reach.map(|what| Found::new(number, what).with_remedy(OUT_OF_REACH)).into_iter().collect()
}

/// Whether the loss's derivative by the network's result grows with these labels: that of squares does, that of
/// absolute errors is 1, and that of percentages decreases. Where no derivative is known, it is assumed.
fn grows_with(look: &Look<'_>, label: &WatchRow) -> bool {
    const SHARE: f32 = 1.0 / 16.0;
    let before = look.before.map(Look::alone);
    let derivative = derivative(look).or_else(|| derivative(before.as_ref()?));
    derivative.is_none_or(|derivative| derivative >= SHARE * label.rms)
}

/// Whether errors are larger than the labels, as those of a network that diverges are. The loss of a batch with labels
/// far from the others is large, too, but the errors of a network that always gives 0 are the labels. Of squares the
/// error is twice the loss by its derivative, whatever multiplies both. Where no derivative is known, it is assumed.
fn is_beyond(look: &Look<'_>, label: &WatchRow) -> bool {
    const LARGER: f32 = 1.5;
    let error = look.now.loss().zip(derivative(look)).map(|(loss, derivative)| 2.0 * loss / derivative);
    error.is_none_or(|error| !error.is_finite() || error >= LARGER * label.rms)
}

/// The rms of the derivatives of single errors by the network's result, if they are finite; a loss is a mean of errors.
fn derivative(look: &Look<'_>) -> Option<f32> {
    let loss = look.rows(Quantity::Activation).map(|(_, row)| row).find(|row| row.role == Some(Role::Loss))?;
    let results = loss.takes.iter().filter_map(|taken| look.cotangent(look.now.rows.get(*taken as usize)?));
    let results: Vec<&WatchRow> = results.collect();
    let loss_scale = look.now.loss_scale.unwrap_or(1.0) as f32;
    let is_finite = results.iter().all(|row| row.not_finite == 0.0);
    results.iter().map(|row| row.rms * row.n as f32 / loss_scale).reduce(f32::max).filter(|_| is_finite)
}

/// Steps after which a loss that has not decreased is significant.
const ENOUGH_STEPS: u64 = 32;
/// A label is out of reach if it needs as many updates of the head.
const MANY_UPDATES: f32 = 1048576.0;

/// A sentence about labels that many updates like this one do not reach, unless the loss has halved (losses of single
/// batches vary).
fn out_of_reach(look: &Look<'_>, label: &WatchRow) -> Option<String> {
    let first = look.first?;
    let (now, then) = (look.now.loss()?, first.loss()?);
    let n_steps = look.now.step.checked_sub(first.step).filter(|n_steps| *n_steps >= ENOUGH_STEPS)?;
    if !look.has_moved() || look.now.learning_rate <= 0.0 || !exceeds(now, then, -0.5) {
        return None;
    }
    let (head, of_head) = look.layers().filter(|(_, row)| look.has_kernel(&row.layer)).last()?;
    let takes = look.taken(head, of_head).iter().map(|(_, row)| row.rms).fold(0.0, f32::max);
    let updates = look.rows(Quantity::Update).filter(|(_, update)| update.scope() == of_head.layer);
    // As if all updates added up, and no two of them moved different outputs.
    let moves = |update: &WatchRow| match update.layer.ends_with("/bias") {
        true => update.max,
        false => update.rms * update.n as f32 * takes,
    };
    let moved = gain(look, head, of_head) * updates.map(|(_, update)| moves(update)).sum::<f32>();
    (moved > 0.0 && label.rms >= MANY_UPDATES * moved).then(|| {
        format!(
            "the rms of this label is {:.3e}, an update of {} moves the result by {moved:.1e} at most, and the loss was \
             {then:.3e} {n_steps} steps ago and is {now:.3e}",
            label.rms, of_head.layer
        )
    })
}

/// A sentence about labels that are nearly all offset, where the results are not halfway to it many steps later: until
/// they are there, nothing else is learnt.
fn offset(look: &Look<'_>, label: &WatchRow) -> Option<String> {
    const DEVIATIONS: f32 = 16.0;
    let mean = label.mean.filter(|_| label.n >= 16)?;
    let deviation = (label.rms * label.rms - mean * mean).max(0.0).sqrt();
    let n_steps = look.now.step.checked_sub(look.first?.step).filter(|n_steps| *n_steps >= ENOUGH_STEPS)?;
    let loss = look.rows(Quantity::Activation).map(|(_, row)| row).find(|row| row.role == Some(Role::Loss))?;
    let results = loss.takes.iter().filter_map(|taken| look.now.rows.get(*taken as usize));
    let result = results.filter(|row| row.role != Some(Role::Label)).map(|row| row.rms).reduce(f32::max)?;
    (mean.abs() >= DEVIATIONS * deviation && result < 0.5 * mean.abs()).then(|| {
        format!(
            "the mean of this label is {mean:.3e}, {DEVIATIONS} of its standard deviations or more, and {n_steps} steps after the \
             first look the results have an rms of {result:.3e}"
        )
    })
}

/// How many times a change of the head is larger in the network's result, because of the layers after the head: the
/// quotient of their cotangents; 1 where they are not known.
fn gain(look: &Look<'_>, head: usize, of_head: &WatchRow) -> f32 {
    let after = look.after(head);
    let result = after.iter().rev().find_map(|(_, row)| look.cotangent(row));
    let quotient = look.cotangent(of_head).zip(result).map(|(of_head, of_result)| norm(of_head) / norm(of_result));
    quotient.filter(|quotient| quotient.is_finite() && *quotient > 0.0).map_or(1.0, |quotient| quotient as f32)
}

/// Whether an rms is about 1, as the next layer expects, or, if it is the network's result's, about that of a label.
fn is_expected(look: &Look<'_>, number: usize, row: &WatchRow) -> bool {
    let is_about = |size: f32| row.rms * SCALED >= size && row.rms <= SCALED * size;
    let is_result = || look.after(number).iter().all(|(_, row)| look.variables(&row.layer).is_empty());
    let is_a_labels = |(_, label): (usize, &WatchRow)| label.role == Some(Role::Label) && is_about(label.rms);
    is_about(1.0) || row.rms > 0.0 && is_result() && look.rows(Quantity::Activation).any(is_a_labels)
}

/// A layer without variables that changes the size of its numbers.
pub(in crate::watch) fn rescaled(look: &Look<'_>) -> Vec<Found> {
    const FACTOR: f32 = 8192.0;
    let rescaled = look.layers().find_map(|(number, row)| {
        let taken = look.taken(number, row);
        let [(_, taken)] = taken[..] else { return None };
        let is_of_it = row.role.is_none() && row.not_finite == 0.0 && taken.rms > 0.0 && row.function.is_none();
        let is_large = row.rms >= LARGE && row.rms >= LARGE * taken.rms && taken.role != Some(Role::Input);
        let is_other = is_large || row.rms >= FACTOR * taken.rms || row.rms <= taken.rms / FACTOR;
        if !is_of_it || !is_other || !look.variables(&row.layer).is_empty() || row.layer.starts_with('(') {
            return None;
        }
        if is_expected(look, number, row) {
            return None;
        }
        Some(Found::new(
            number,
            format!("the rms is {:.3e}, that of {}, which it takes, {:.3e}", row.rms, taken.name(), taken.rms),
        ))
    });
    rescaled.into_iter().collect()
}

const FIRST_LOGITS: &str = "give the layer of the logits smaller initial values (`kernel_initializer: glorot_uniform`), or normalise \
                            what it takes (`layer_norm`): no update came before";

/// The remedy for logits of a loss at the first step, which no learning rate makes, or behind a dropout that keeps
/// little: it divides by the share that it keeps, and so multiplies the rms by its root.
fn of_logits(look: &Look<'_>, softmax: usize) -> Option<String> {
    /// The gain of a dropout that keeps one unit in eight: √8.
    const GAIN: f32 = 2.8;
    let dropped = look.rows(Quantity::Activation).filter(|(_, row)| row.role == Some(Role::Dropped));
    let gains = dropped.filter(|(number, _)| *number < softmax).filter_map(|(number, row)| {
        let taken = look.taken(number, row).iter().map(|(_, taken)| taken.rms).fold(0.0, f32::max);
        (taken > 0.0 && row.rms >= GAIN * taken).then(|| (row.layer.as_str(), row.rms / taken))
    });
    let (layer, gain) = gains.max_by(|a, b| a.1.total_cmp(&b.1)).unzip();
    match (layer, gain) {
        (Some(layer), Some(gain)) => Some(format!(
            "lower the rate of {layer}: what it keeps it divides by the share that it keeps, and its rms is {gain:.1} times that of \
             what it takes"
        )),
        _ => (look.now.step == 1).then(|| FIRST_LOGITS.to_string()),
    }
}

pub(in crate::watch) fn saturated_softmax(look: &Look<'_>) -> Vec<Found> {
    let with_variables: BTreeSet<&str> = look.rows(Quantity::Gradient).map(|(_, row)| row.scope()).collect();
    let last_layer = look.rows(Quantity::Activation).filter(|(_, row)| with_variables.contains(row.layer.as_str()));
    let last_layer = last_layer.map(|(number, _)| number).max().unwrap_or(0);
    let is_costly = look.now.loss().is_none_or(|loss| loss >= 1.0);
    let rows = look.rows(Quantity::Activation).filter(|(_, row)| row.role == Some(Role::Softmax));
    let judge = |(number, row): (usize, &WatchRow)| {
        // Numbers from 2^12 on are a mask.
        let masked = row.not_finite + row.bins[14] + row.bins[15];
        let others = 1.0 - row.zero - masked;
        let far = (row.bins[12] + row.bins[13]) / others;
        let is_bad = others > 1e-9 && far >= 0.5 && (number < last_layer || is_costly);
        let message = || format!("{} of the logits are 16 or more below the largest", percent(far));
        // Scores of an attention are divided by the root of their features.
        let remedy = || of_logits(look, number).filter(|_| number > last_layer);
        is_bad.then(|| Found { remedy: remedy(), ..Found::new(number, message()) })
    };
    rows.filter_map(judge).collect()
}

pub(in crate::watch) fn unscaled_residual(look: &Look<'_>) -> Vec<Found> {
    let rows = look.rows(Quantity::Activation).filter(|(_, row)| row.role == Some(Role::Residual));
    let rows: Vec<(usize, &WatchRow)> = rows.collect();
    let mut begin = 0;
    for (at, (number, row)) in rows.iter().enumerate().skip(1) {
        let (_, last) = rows[at - 1];
        if row.n != last.n || row.rms < 1.3 * last.rms {
            begin = at;
        }
        let (_, first) = rows[begin];
        if at - begin >= 3 && row.rms >= 8.0 * first.rms && first.rms > 0.0 {
            let what =
                format!("the rms grew from {:.3} to {:.3} over {} residual blocks", first.rms, row.rms, at - begin + 1);
            return vec![Found::new(*number, what)];
        }
    }
    Vec::new()
}

/// An rms counts as large from here on.
pub(super) const LARGE: f32 = 64.0;

/// The remedy of a loss that something multiplies, such as a weight: at the first look the loss and its derivatives by
/// single results are far above what sizes of results and labels make, whether the loss is a mean or a sum.
pub(super) fn weighted_loss(look: &Look<'_>) -> Option<String> {
    const LARGE_LOSS: f32 = 1024.0;
    let first = Look::alone(look.first.unwrap_or(look.now));
    let loss = first.now.loss()?.abs();
    let row = first.rows(Quantity::Activation).map(|(_, row)| row).find(|row| row.role == Some(Role::Loss))?;
    let rows = |takes: &[u32]| takes.iter().filter_map(|taken| first.now.rows.get(*taken as usize)).collect::<Vec<_>>();
    // A softmax has no cotangent: what it takes are the results.
    let taken = rows(&row.takes).into_iter().flat_map(|taken| match taken.role {
        Some(Role::Softmax) => rows(&taken.takes),
        _ => vec![taken],
    });
    let results: Vec<(&WatchRow, &WatchRow)> =
        taken.filter_map(|result| Some((result, first.cotangent(result)?))).collect();
    let size = results.iter().map(|(result, _)| result.rms).fold(first.label_scale(), f32::max);
    let derivative = results.iter().map(|(_, cotangent)| cotangent.rms).fold(0.0, f32::max);
    let derivative = derivative / first.now.loss_scale.unwrap_or(1.0) as f32;
    (loss >= LARGE_LOSS * size * size && derivative >= LARGE * size).then(|| {
        format!(
            "lower what multiplies the loss, such as its `weight`: the loss is {loss:.1e} at step {}, where results and labels \
             have an rms of {size:.1} at most. If that does not help, lower the learning rate",
            first.now.step
        )
    })
}

/// Whether a value is made of features alone, without variables: its size is theirs, and may be that of indices.
fn is_of_features(look: &Look<'_>, number: usize, row: &WatchRow) -> bool {
    let (mut pending, mut seen) = (vec![(number, row)], BTreeSet::new());
    while let Some((number, row)) = pending.pop() {
        if row.role == Some(Role::Input) || !seen.insert(number) {
            continue;
        }
        let taken = look.taken(number, row);
        if taken.is_empty() || !look.variables(&row.layer).is_empty() {
            return false;
        }
        pending.extend(taken);
    }
    true
}

const GROWN: &str = "lower the learning rate, or clip gradients (`clip: {kind: global_norm, value: 1}`): it was small at the look \
                     before. If that does not help, look at this layer's initial values (`kernel_initializer: glorot_uniform`)";

const FROM_FIRST: &str =
    "look at this layer's initial values (`kernel_initializer: glorot_uniform`): no update came before";
const OF_A_TABLE: &str =
    "give its table smaller initial values (`embeddings_initializer: {random_normal: 0.05}`): no update came before";
const OF_NO_VARIABLES: &str = "look at what this layer multiplies by and adds (`{rescaling: 1.0}`), and at the initial values of the layers before it \
     (`kernel_initializer: glorot_uniform`): no update came before";
const OF_A_STATE: &str = "look at the initial values by which its state is multiplied at every step (`recurrent_initializer: \
                          orthogonal`), and at its activation (`tanh` is bounded): no update came before";

/// The remedy for a layer that is large: before the first update no learning rate makes it so.
fn of_layer(look: &Look<'_>, row: &WatchRow, has_grown: bool) -> Option<&'static str> {
    let variables = look.variables(&row.layer);
    let is_state = variables.iter().any(|(name, _)| *name == "recurrent_kernel");
    match row.quantity {
        Quantity::Activation if look.now.step == 1 => Some(match variables.is_empty() && !row.layer.starts_with('(') {
            true => OF_NO_VARIABLES,
            false if is_state => OF_A_STATE,
            false if look.is_lookup(&row.layer) => OF_A_TABLE,
            false => FROM_FIRST,
        }),
        _ => has_grown.then_some(GROWN),
    }
}

pub(in crate::watch) fn exploding(look: &Look<'_>) -> Vec<Found> {
    let is_layer = |row: &WatchRow| matches!(row.role, None | Some(Role::Residual));
    let mut all: Vec<f32> = look.layers().filter(|(_, row)| is_layer(row)).map(|(_, row)| row.rms).collect();
    all.sort_by(f32::total_cmp);
    let median = all.get(all.len() / 2).copied().unwrap_or(0.0);
    // An output that predicts a price is as large as the price, and so is the gradient of its square.
    let label = look.label_scale();
    // A value that only a sigmoid or a tanh reads has no further effect: `saturated_activation` covers that.
    let is_bounded = |number: usize| {
        let mut readers = look.readers(number).peekable();
        let is_flat = |row: &WatchRow| matches!(row.function, Some(Function::Sigmoid | Function::Tanh));
        readers.peek().is_some() && readers.all(|(_, reader)| is_flat(reader))
    };
    let judged = |(number, row): (usize, &WatchRow)| {
        let large = match row.quantity {
            Quantity::Activation => LARGE * label,
            _ => LARGE * label * label,
        };
        if row.rms < large || !is_layer(row) || is_bounded(number) {
            return None;
        }
        let before = look.before(row).map(|before| before.rms);
        let remedy = of_layer(look, row, before.is_some_and(|before| before < large));
        let remedied = |what: String| Found { remedy: remedy.map(str::to_string), ..Found::new(number, what) };
        // The gradient of a single number passes through 0, and what is no larger than at first has not grown.
        let first = look.at_first(row).map_or(0.0, |first| first.rms);
        if let Some(before) = before.filter(|before| *before > 0.0 && row.rms >= 16.0 * before.max(first)) {
            let what = format!("the rms is {:.3e}, and was {before:.3e} at the look before", row.rms);
            return Some(remedied(what));
        }
        if row.quantity != Quantity::Activation {
            return None;
        }
        // Rows of a table are as large as it is, and so is all that reads them: indices and the median tell nothing.
        if look.is_lookup(&row.layer) {
            return Some(remedied(format!("the rms of the rows that it looks up is {:.3e}", row.rms)));
        }
        let taken = look.taken(number, row).into_iter().filter(|(_, taken)| taken.role != Some(Role::Label));
        let largest = taken.max_by(|(_, a), (_, b)| a.rms.total_cmp(&b.rms)).map(|(_, taken)| taken);
        if let Some(taken) = largest.filter(|taken| taken.rms > 0.0 && row.rms >= LARGE * taken.rms) {
            let what =
                format!("the rms is {:.3e}, that of {}, which it takes, {:.3e}", row.rms, taken.name(), taken.rms);
            return Some(remedied(what));
        }
        (median > 0.0 && row.rms >= LARGE * median * label && !is_of_features(look, number, row))
            .then(|| remedied(format!("the rms is {:.3e}, that of the median layer {median:.3e}", row.rms)))
    };
    let exploded = look.layers().chain(look.rows(Quantity::Gradient)).find_map(judged);
    let with_cause = exploded.map(|exploded| match weighted_loss(look) {
        Some(remedy) => exploded.with_remedy(remedy),
        None => exploded,
    });
    with_cause.into_iter().collect()
}
