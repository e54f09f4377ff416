//! Rules for gradients: layers whose output is 0, and gradients that do not reach the first layers.

use crate::program_error::some_of;
use crate::watch::look::{Found, Look, norm};
use crate::watch::row::{Function, Quantity, Role, WatchRow};
use std::collections::BTreeSet;

/// The least share of its cotangent's norm that a healthy layer passes on.
const PASSED: f64 = 1.0 / 16384.0;

/// A layer that passes almost nothing of its cotangent on, in this record and the one before: its number, and the
/// share.
struct Block<'a> {
    number: usize,
    row: &'a WatchRow,
    share: f64,
}

/// The largest cotangent among the readers of an activation: the reader, and the share that arrives at the activation.
fn passed<'l>(look: &'l Look<'_>, number: usize, row: &WatchRow) -> Option<(usize, &'l WatchRow, f64)> {
    let arrived = norm(look.cotangent(row)?);
    let cotangents =
        look.readers(number).map(|(at, reader)| look.cotangent(reader).map(|cotangent| (at, reader, norm(cotangent))));
    // A reader without a record, such as a dropped branch, may pass it on.
    let cotangents: Vec<(usize, &WatchRow, f64)> = cotangents.collect::<Option<_>>()?;
    let (at, reader, most) = cotangents.into_iter().max_by(|a, b| a.2.total_cmp(&b.2))?;
    (most > 0.0 && most.is_finite() && arrived.is_finite()).then(|| (at, reader, arrived / most))
}

/// The layers that pass nothing on, from the last of the network.
fn blocks<'l>(look: &'l Look<'_>) -> Vec<Block<'l>> {
    if !look.has_moved() || !look.are_gradients_finite() {
        return Vec::new();
    }
    let Some(before) = look.before else { return Vec::new() };
    let earlier = Look::alone(before);
    let mut blocks = Vec::new();
    for (number, row) in look.layers() {
        let Some((at, reader, share)) = passed(look, number, row).filter(|(_, _, share)| *share <= PASSED) else {
            continue;
        };
        let was_so = passed(&earlier, number, row).is_some_and(|(other, _, share)| other == at && share <= PASSED);
        if was_so && !blocks.iter().any(|block: &Block<'_>| block.number == at) {
            blocks.push(Block { number: at, row: reader, share });
        }
    }
    blocks.sort_by_key(|block| std::cmp::Reverse(block.number));
    blocks
}

/// The rows that an activation is computed from.
fn sources(look: &Look<'_>, number: usize) -> BTreeSet<usize> {
    let (mut pending, mut sources) = (vec![number], BTreeSet::new());
    while let Some(next) = pending.pop() {
        let takes = look.now.rows.get(next).map_or(&[][..], |row| &row.takes);
        pending.extend(takes.iter().map(|taken| *taken as usize).filter(|taken| sources.insert(*taken)));
    }
    sources
}

/// Whether a residual connection goes around a layer: a sum after it takes what the layer is computed from, too. Such a
/// branch may be as small as a layer scale makes it. Of a sum the branch is what passes little on.
fn is_in_branch(look: &Look<'_>, number: usize, row: &WatchRow) -> bool {
    let of_layer = sources(look, number);
    // All rows that depend on the layer: rows are in the order of the program.
    let mut after = BTreeSet::from([number]);
    for (at, row) in look.now.rows.iter().enumerate().skip(number + 1) {
        if row.takes.iter().any(|taken| after.contains(&(*taken as usize))) {
            after.insert(at);
        }
    }
    let is_around = |(at, sum): (usize, &WatchRow)| {
        let takes_source = sum.takes.iter().any(|taken| of_layer.contains(&(*taken as usize)));
        sum.role == Some(Role::Residual) && takes_source && after.contains(&at)
    };
    row.role == Some(Role::Residual) || look.layers().any(is_around)
}

/// A norm's gamma below this is a layer scale.
const LAYER_SCALE: f32 = 1.0 / 1024.0;

/// Whether a layer multiplies by almost 0 in a residual branch, as a layer scale does.
fn is_layer_scale(look: &Look<'_>, number: usize, row: &WatchRow) -> bool {
    let is_small = |(name, stored): &(&str, Option<f32>)| {
        ["gamma", "scale"].contains(name) && stored.is_some_and(|stored| stored <= LAYER_SCALE)
    };
    look.variables(&row.layer).iter().any(is_small) && is_in_branch(look, number, row)
}

fn of_cotangent(share: f64) -> String {
    if share == 0.0 { "nothing".to_string() } else { format!("{share:.1e}") }
}

const GAMMA: &str = "give its gamma initial values: `gamma_initializer: ones`";

pub(in crate::watch) fn zero_kernel(look: &Look<'_>) -> Vec<Found> {
    let before = look.before.map(Look::alone).filter(|_| look.has_moved());
    let was_zero = |scope: &str| before.as_ref().is_some_and(|before| before.is_zero_kernel(scope));
    let layer = look.layers().find(|(_, row)| look.is_zero_kernel(&row.layer) && was_zero(&row.layer));
    let what = "all that this layer multiplies by is 0, as at the look before".to_string();
    let finding = layer.map(|(number, row)| match look.is_norm(&row.layer) {
        true => Found::new(number, what).with_remedy(GAMMA),
        false => Found::new(number, what),
    });
    finding.into_iter().collect()
}

/// Whether a layer before this one gives only zeros, or multiplies by them: what is made of that is the same for all
/// examples.
fn is_after_zeros(look: &Look<'_>, number: usize) -> bool {
    let before = sources(look, number);
    let is_zero = |row: &WatchRow| {
        matches!(row.role, None | Some(Role::Activated)) && (row.is_zero() || look.is_zero_kernel(&row.layer))
    };
    look.layers().any(|(source, row)| source != number && before.contains(&source) && is_zero(row))
}

/// The share of its cotangent that a norm would pass on if what it takes had an rms of 1: it divides by the deviation.
fn passed_of_unit(look: &Look<'_>, block: &Block<'_>) -> f64 {
    let taken = look.taken(block.number, block.row);
    block.share * f64::from(taken.iter().map(|(_, taken)| taken.rms).fold(1.0, f32::max))
}

pub(in crate::watch) fn norm_of_one(look: &Look<'_>) -> Vec<Found> {
    let blocks = blocks(look);
    let is_one = |number: usize, row: &WatchRow| {
        look.is_norm(&row.layer) && !look.is_zero_kernel(&row.layer) && !is_after_zeros(look, number)
    };
    // A bias that is still 0 contributes nothing, and a ReLU after it passes nothing on either.
    let is_shut = |(number, row): &(usize, &WatchRow)| {
        let was_zero = look.before(row).is_some_and(WatchRow::is_zero);
        let takes_numbers = look.taken(*number, row).iter().any(|(_, taken)| !taken.is_zero());
        look.has_moved() && row.role.is_none() && row.is_zero() && was_zero && takes_numbers && is_one(*number, row)
    };
    if let Some((number, row)) = look.layers().find(is_shut) {
        return vec![Found::new(number, format!("all {} numbers are 0: it normalises one number", row.n))];
    }
    let is_shut = |block: &&Block<'_>| {
        is_one(block.number, block.row)
            && !is_layer_scale(look, block.number, block.row)
            && passed_of_unit(look, block) <= PASSED
    };
    let block = blocks.iter().find(is_shut);
    let what = |block: &Block<'_>| {
        format!("it passes {} of its cotangent on: it normalises one number", of_cotangent(block.share))
    };
    block.map(|block| Found::new(block.number, what(block))).into_iter().collect()
}

const BEYOND: &str = "leave the function of this layer out: the loss compares it with labels, and some are beyond 1, where it \
                      ends; or scale the labels";
const BELOW: &str = "leave the ReLU of this layer out: the loss compares it with labels, whose mean is below 0";

/// The labels that the loss compares an activation with.
fn labels_of<'l>(look: &'l Look<'_>, number: usize) -> Option<&'l WatchRow> {
    let mut losses = look.rows(Quantity::Activation).filter(|(_, row)| row.role == Some(Role::Loss));
    let (_, loss) = losses.find(|(_, loss)| loss.takes.contains(&(number as u32)))?;
    let taken = loss.takes.iter().filter_map(|taken| look.now.rows.get(*taken as usize));
    taken.into_iter().find(|row| row.role == Some(Role::Label))
}

/// So many numbers of a feature, seen or between the looks, are more than those of a flag that is rarely set.
const N_ZEROS: u64 = 1 << 14;

/// Features that are 0 at each look, under a kernel that a momentum would still move had it had a gradient lately, or
/// whose largest number has the bits that it had at the first look: an update of a kernel under a feature moves it.
pub(in crate::watch) fn zero_input(look: &Look<'_>) -> Vec<Found> {
    let Some(first) = look.first.filter(|_| look.has_moved()) else { return Vec::new() };
    let has_momentum = look.now.momentum.is_some_and(|of| of >= 0.9);
    let was_zero =
        |row: &WatchRow| [look.before(row), look.at_first(row)].iter().all(|row| row.is_some_and(WatchRow::is_zero));
    let stays = |reader: &WatchRow| {
        let kernel = format!("{}/kernel", reader.layer);
        let update = look.rows(Quantity::Update).find(|(_, update)| update.layer == kernel);
        update.is_some_and(|(_, row)| {
            let is_as_at_first =
                row.stored.is_some() && look.at_first(row).is_some_and(|then| then.stored == row.stored);
            let is_kept = has_momentum || (is_as_at_first && look.at_first(row).is_some_and(WatchRow::is_zero));
            row.dtype == "f32" && is_kept && row.is_zero() && look.before(row).is_some_and(WatchRow::is_zero)
        })
    };
    let judge = |(number, row): (usize, &WatchRow)| {
        let n_steps = look.now.step.saturating_sub(first.step);
        let is_zero = row.role == Some(Role::Input) && row.is_zero() && n_steps.saturating_mul(row.n) >= N_ZEROS;
        let reader = look.readers(number).map(|(_, reader)| reader).find(|reader| stays(reader));
        let what = |reader: &WatchRow| {
            format!(
                "all {} numbers are 0 at this look, the one before and the first, and no step moves the kernel of {}",
                row.n, reader.layer
            )
        };
        reader.filter(|_| is_zero && was_zero(row)).map(|reader| Found::new(number, what(reader)))
    };
    look.rows(Quantity::Activation).filter_map(judge).collect()
}

/// A gate that is moved by this much has a slope of e^-16, 2^-23, or less.
const SHUT_GATE: f32 = 16.0;

const RECURRENT: &str = "give its recurrent kernel smaller initial values (`recurrent_initializer: orthogonal`), or, if they were \
                         small at first, lower the learning rate";

/// The gates of a recurrent layer, whose state is at most 1, are no rows of their own: a kernel's largest number, times the
/// rms of what it multiplies, moves them.
pub(in crate::watch) fn saturated_gates(look: &Look<'_>) -> Vec<Found> {
    let judge = |(number, row): (usize, &WatchRow)| {
        let variables = look.variables(&row.layer);
        let stored = |wanted: &str| variables.iter().find(|(name, _)| *name == wanted).and_then(|(_, stored)| *stored);
        let recurrent = stored("recurrent_kernel").filter(|_| row.max <= 1.0)?;
        let taken = look.taken(number, row).iter().map(|(_, taken)| taken.rms).fold(0.0, f32::max);
        let kernels = [("recurrent_kernel", recurrent, row.rms), ("kernel", stored("kernel").unwrap_or(0.0), taken)];
        let (name, largest, of) = kernels.into_iter().find(|(_, largest, of)| largest * of >= SHUT_GATE)?;
        let of_values = || if name == "kernel" { KERNEL } else { RECURRENT }.to_string();
        let remedy = lower_rate(look, &row.layer, (name, largest)).unwrap_or_else(of_values);
        let what = format!(
            "the largest number of its {name} is {largest:.3e}, and an rms of {of:.3e} times that moves gates by {:.0}, where \
             their slope is 0",
            largest * of
        );
        Some(Found::new(number, what).with_remedy(remedy))
    };
    look.layers().find_map(judge).into_iter().collect()
}

pub(in crate::watch) fn saturated_activation(look: &Look<'_>) -> Vec<Found> {
    let blocks = blocks(look);
    let block = blocks.iter().find(|block| matches!(block.row.function, Some(Function::Sigmoid | Function::Tanh)));
    let what = |block: &Block<'_>| {
        let taken = look.taken(block.number, block.row);
        let taken = taken
            .first()
            .map_or(String::new(), |(_, taken)| format!(", and takes numbers of an rms of {:.1}", taken.rms));
        format!("its function passes {} of its cotangent on{taken}", of_cotangent(block.share))
    };
    if let Some(block) = block {
        let beyond = labels_of(look, block.number).filter(|labels| labels.max > 1.0).map(|_| BEYOND.to_string());
        let remedy = beyond.or_else(|| smaller(look, block.number, block.row));
        return vec![Found { remedy, ..Found::new(block.number, what(block)) }];
    }
    let far = look.layers().find_map(|(number, row)| far_from_slope(look, number, row));
    far.into_iter().collect()
}

const BIASES: &str = "give its biases smaller initial values (`bias_initializer: zeros`), or, if they were small at first, lower the \
                      learning rate";
const KERNEL: &str = "give its kernel smaller initial values (`kernel_initializer: glorot_uniform`), or, if it was small at first, \
                      lower the learning rate; or normalise what the function takes (`batch_norm`)";

/// The remedy for a variable that updates made large: at the first look its largest number was an eighth of this, or less.
fn lower_rate(look: &Look<'_>, scope: &str, (name, largest): (&str, f32)) -> Option<String> {
    let first = Look::alone(look.first?);
    let then = first.variables(scope).into_iter().find(|(other, _)| *other == name)?.1?;
    let rate = look.now.learning_rate;
    (then <= largest / 8.0).then(|| {
        format!(
            "lower the learning rate from {rate:.1e}, or clip gradients (`clip: {{kind: global_norm, value: 1}}`): at the first \
             look the largest number of its {name} was {then:.3e}"
        )
    })
}

/// The remedy for a sigmoid or a tanh, by the variable that makes large the numbers that it takes, if one does.
fn smaller(look: &Look<'_>, number: usize, row: &WatchRow) -> Option<String> {
    /// A kernel of usual initial values gives an rms of less than this many times that of what it multiplies.
    const USUAL: f32 = 8.0;
    let [(layer, of_layer)] = look.taken(number, row)[..] else { return None };
    let biases = look.variables(&of_layer.layer).into_iter().filter(|(name, _)| *name == "bias");
    let bias = biases.filter_map(|(_, stored)| stored).fold(0.0, f32::max);
    let multiplied = look.taken(layer, of_layer).iter().map(|(_, row)| row.rms).fold(0.0, f32::max);
    if bias >= 0.5 * of_layer.rms {
        return lower_rate(look, &of_layer.layer, ("bias", bias)).or_else(|| Some(BIASES.to_string()));
    }
    let variables = look.variables(&of_layer.layer);
    let kernel = variables.iter().find_map(|(name, stored)| stored.filter(|_| *name == "kernel"));
    let by_rate = || lower_rate(look, &of_layer.layer, ("kernel", kernel?));
    (look.has_kernel(&of_layer.layer) && of_layer.rms >= USUAL * multiplied)
        .then(|| by_rate().unwrap_or_else(|| KERNEL.to_string()))
}

/// Numbers of this rms are nearly all where a sigmoid or a tanh is flat: of a normal distribution, 6 % are between -5
/// and 5.
const FLAT: f32 = 64.0;

/// A sigmoid or a tanh, before the last layer, whose input is flat in both records.
fn far_from_slope(look: &Look<'_>, number: usize, row: &WatchRow) -> Option<Found> {
    let is_flat = matches!(row.function, Some(Function::Sigmoid | Function::Tanh)) && look.has_moved();
    let is_read = || look.readers(number).next().is_some();
    let [(_, taken)] = look.taken(number, row)[..] else { return None };
    let is_far = |taken: &WatchRow| taken.rms >= FLAT && taken.not_finite == 0.0 && taken.role != Some(Role::Input);
    let was_far = look.before(taken).is_some_and(is_far);
    let message =
        || format!("it takes numbers of an rms of {:.1}, at which its slope is 0 nearly everywhere", taken.rms);
    let remedy = || smaller(look, number, row);
    (is_flat && is_far(taken) && was_far && is_read())
        .then(|| Found { remedy: remedy(), ..Found::new(number, message()) })
}

const SHUT: &str = "lower the learning rate, or use another activation (`activation: gelu`, `leaky_relu`) or another initial bias \
                    (`bias_initializer: zeros`): a ReLU below 0 for all examples learns nothing any more";
const SHUT_AT_FIRST: &str = "give it other initial values (`bias_initializer: zeros`, `kernel_initializer: he_normal`) or another \
                             activation (`activation: gelu`, `leaky_relu`): it was 0 before the first update, and a ReLU below 0 \
                             for all examples learns nothing";
const OFFSET: &str = "look at what the layer before multiplies by and adds: `{rescaling: 1.0, offset: 0}`; a ReLU below 0 for all \
                      examples learns nothing any more";
const UNUSED: &str = "the loss does not depend on it, or only behind a `stop_gradient` or a function without a slope (`floor`, \
                      `sign`, a comparison): use it, or leave it out, or freeze it (`trainable`)";
const UNUSED_ALL: &str = "the loss depends on none of them, or only behind a `stop_gradient` or a function without a slope \
                          (`floor`, `sign`, a comparison): use them, or leave them out, or freeze them (`trainable`)";

/// Whether no example of this step counts for a result that the loss reads: the weights of all examples are 0.
fn has_idle_result(look: &Look<'_>) -> bool {
    let rows = || look.rows(Quantity::Activation).map(|(_, row)| row);
    let has_zero_weights = rows().any(|row| row.role == Some(Role::Label) && row.is_zero());
    let Some(loss) = rows().find(|row| row.role == Some(Role::Loss)) else { return false };
    let mut results = loss.takes.iter().filter_map(|taken| look.cotangent(look.now.rows.get(*taken as usize)?));
    has_zero_weights && results.any(WatchRow::is_zero)
}

/// Whether all features that an activation is computed from are 0 in this batch or the one of the look before, as a flag
/// that is rarely set is: that says nothing of the layers that read them.
fn reads_zeros(look: &Look<'_>, number: usize) -> bool {
    let sources = sources(look, number);
    let rows = sources.iter().filter_map(|&source| look.now.rows.get(source));
    let mut features = rows.filter(|row| row.role == Some(Role::Input)).peekable();
    let was_zero = |row: &WatchRow| look.before(row).is_some_and(WatchRow::is_zero);
    features.peek().is_some() && features.all(|row| row.is_zero() || was_zero(row))
}

pub(in crate::watch) fn dead(look: &Look<'_>) -> Vec<Found> {
    if !look.has_moved() {
        return Vec::new();
    }
    let was_dead = |row: &WatchRow| look.before(row).is_some_and(WatchRow::is_zero);
    let is_shut = |row: &WatchRow| matches!(row.role, None | Some(Role::Activated | Role::Residual)) && row.is_zero();
    let mut layers = look.layers().filter(|(_, row)| is_shut(row) && was_dead(row));
    if let Some((number, row)) = layers.find(|(number, _)| !reads_zeros(look, *number)) {
        let taken = look.taken(number, row);
        // A layer with zero inputs, or a dropped branch, has zero outputs.
        let takes_nothing = !taken.is_empty() && taken.iter().all(|(_, taken)| taken.is_zero());
        if takes_nothing || taken.iter().any(|(_, taken)| taken.role == Some(Role::Dropped)) {
            return Vec::new();
        }
        let dead = Found::new(number, format!("all {} numbers are 0, as at the look before", row.n));
        let at_first = look.at_first(row).filter(|_| look.first.is_some_and(|first| first.step == 1));
        let was_never_open = at_first.is_some_and(WatchRow::is_zero);
        let is_of_no_variable = |taken: &WatchRow| look.variables(&taken.layer).is_empty() && taken.role.is_none();
        let is_below = || labels_of(look, number).and_then(|labels| labels.mean).is_some_and(|mean| mean < 0.0);
        return vec![match row.function {
            Some(Function::Relu) if is_below() => dead.with_remedy(BELOW),
            Some(Function::Relu) if taken.iter().all(|(_, taken)| is_of_no_variable(taken)) => dead.with_remedy(OFFSET),
            Some(Function::Relu) if was_never_open => dead.with_remedy(SHUT_AT_FIRST),
            Some(Function::Relu) => dead.with_remedy(SHUT),
            Some(_) | None => dead,
        }];
    }
    let any_gradient = look.rows(Quantity::Gradient).any(|(_, row)| !row.is_zero());
    let is_of_zeros =
        |row: &WatchRow| look.layers().any(|(number, layer)| layer.layer == row.scope() && reads_zeros(look, number));
    let is_unused = |row: &WatchRow| row.n >= 16 && any_gradient && !row.is_gated && row.is_zero() && !is_of_zeros(row);
    let variable = look.rows(Quantity::Gradient).find(|(_, row)| is_unused(row) && was_dead(row));
    let Some((number, row)) = variable else { return Vec::new() };
    let mut cotangents = look.layers().filter(|(_, layer)| layer.layer == row.scope());
    let is_idle = |layer: &WatchRow| look.cotangent(layer).is_some_and(WatchRow::is_zero);
    let was_idle = look.before.is_some_and(|before| has_idle_result(&Look::alone(before)));
    if (was_idle || has_idle_result(look)) && cotangents.any(|(_, layer)| is_idle(layer)) {
        return Vec::new();
    }
    let is_used =
        |row: &WatchRow| look.layers().any(|(_, layer)| layer.layer == row.scope() && look.cotangent(layer).is_some());
    let alike = look.rows(Quantity::Gradient).map(|(_, row)| row);
    let alike = alike.filter(|other| is_unused(other) && was_dead(other) && is_used(other) == is_used(row));
    let names: Vec<String> = alike.map(|row| row.layer.clone()).collect();
    let (what, unused) = match names.len() {
        1 => (format!("all {} gradients are 0, as at the look before", row.n), UNUSED),
        n => {
            let names = some_of(&names, "");
            (format!("all gradients of {n} variables are 0, as at the look before: {names}"), UNUSED_ALL)
        }
    };
    let dead = Found::new(number, what);
    vec![if is_used(row) { dead } else { dead.with_remedy(unused) }]
}

const SIGMOIDS: &str = "use `activation: relu` or `gelu`, or a `batch_norm` between the layers: the slope of a sigmoid is 1/4 at most, \
                        and as many factors as layers come together";
const BLOCKS: &str = "normalise before each block (`norm: pre`, `normalize_first: true`), or begin with a lower rate: `warm_up: {steps: \
                      1000}`";
const SMALL: &str = "give its kernel larger initial values: `kernel_initializer: he_normal`";

/// The least share of the last layer's cotangent that arrives at healthy first layers.
const ARRIVED: f64 = 1.0 / 65536.0;
/// The least number of layers with kernels in between.
const MANY: usize = 4;

pub(in crate::watch) fn vanishing(look: &Look<'_>) -> Vec<Found> {
    let is_fault = |block: &Block<'_>| {
        let is_of_another_rule = block.row.function.is_some() || look.is_norm(&block.row.layer);
        !is_of_another_rule && !is_in_branch(look, block.number, block.row)
    };
    if let Some(block) = blocks(look).into_iter().find(is_fault) {
        let blocked = Found::new(block.number, format!("it passes {} of its cotangent on", of_cotangent(block.share)));
        let is_multiplied = look.has_kernel(&block.row.layer);
        return vec![if is_multiplied { blocked.with_remedy(SMALL) } else { blocked }];
    }
    let (Some(now), true) = (arrived(look), look.has_moved() && look.are_gradients_finite()) else { return Vec::new() };
    let before = look.before.and_then(|before| arrived(&Look::alone(before)).map(|then| then.share));
    if now.share > ARRIVED || before.is_none_or(|before| before > ARRIVED) || now.n_layers < MANY {
        return Vec::new();
    }
    let functions = |function: Function| look.layers().filter(|(_, row)| row.function == Some(function)).count();
    let has_blocks = look.layers().any(|(_, row)| row.role == Some(Role::Residual));
    let gradient = look.rows(Quantity::Gradient).find(|(_, row)| row.scope() == now.first.layer && row.n >= 2);
    let (number, rms) = gradient.map_or((now.number, now.first.rms), |(number, row)| (number, row.rms));
    let what = format!(
        "the cotangent of {} has {:.1e} of the norm of that of {}, {} layers later: its gradient's rms is {rms:.1e}",
        now.first.layer, now.share, now.last, now.n_layers
    );
    let vanished = Found::new(number, what);
    vec![match (functions(Function::Sigmoid) >= MANY, has_blocks) {
        (true, _) => vanished.with_remedy(SIGMOIDS),
        (false, true) => vanished.with_remedy(BLOCKS),
        (false, false) => vanished,
    }]
}

/// The cotangent at the first layers.
struct Arrived<'a> {
    number: usize,
    first: &'a WatchRow,
    last: String,
    share: f64,
    /// The number of layers with kernels after the first.
    n_layers: usize,
}

/// The largest cotangent among the layers that read no other layer.
fn arrived<'l>(look: &'l Look<'_>) -> Option<Arrived<'l>> {
    let with_cotangents: Vec<(usize, &WatchRow, f64)> =
        look.layers().filter_map(|(number, row)| Some((number, row, norm(look.cotangent(row)?)))).collect();
    let layers: BTreeSet<usize> = with_cotangents.iter().map(|(number, ..)| *number).collect();
    let is_layer = |number: u32| layers.contains(&(number as usize));
    let (last_number, last, most) = *with_cotangents.last()?;
    let firsts = with_cotangents
        .iter()
        .filter(|(_, row, _)| look.has_kernel(&row.layer) && !row.takes.iter().any(|&taken| is_layer(taken)));
    let &(number, first, least) = firsts.max_by(|a, b| a.2.total_cmp(&b.2))?;
    let between = with_cotangents
        .iter()
        .filter(|(other, row, _)| *other > number && row.role.is_none() && look.has_kernel(&row.layer));
    let n_layers = between.count();
    (number != last_number && most > 0.0 && most.is_finite()).then(|| Arrived {
        number,
        first,
        last: last.layer.clone(),
        share: least / most,
        n_layers,
    })
}
