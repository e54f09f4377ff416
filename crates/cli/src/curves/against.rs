//! Runs over seeds in two ways, such as two precisions: is one as good as the other?

use std::collections::BTreeMap;

use anyhow::bail;
use serde::Serialize;

use super::{Named, curve, figure, last_step, scalars};
use crate::report::{Column, Screen, Table};
use bf16scope_hlo::numerics::paired::{LEVEL, Paired};

/// A scalar's last values in both ways, seed by seed.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    scalar: String,
    /// The seeds that both have, in order.
    seeds: Vec<u64>,
    #[serde(flatten)]
    paired: Paired,
    /// The difference that `seeds_to_tell` is about.
    difference_to_tell: f64,
    /// How many seeds would tell it at 5 % in four of five times.
    seeds_to_tell: Option<u64>,
    verdict: String,
}

/// Compares the scalars that both ways recorded, of the seeds that both have.
pub(super) fn compare(runs: &[Named], against: &[Named], difference: Option<f64>) -> anyhow::Result<Vec<Compared>> {
    let (first, second) = (by_seed(runs)?, by_seed(against)?);
    let seeds: Vec<u64> = first.keys().filter(|seed| second.contains_key(seed)).copied().collect();
    let alone = first.len() + second.len() - 2 * seeds.len();
    if seeds.len() < 2 {
        let list = |of: &BTreeMap<u64, &Named>| of.keys().map(u64::to_string).collect::<Vec<_>>().join(", ");
        bail!(
            "runs are compared seed by seed, and both have {} seeds in common, expected 2 or more: seeds {} against {}\n\
             help: train both with `--seed 0`, `--seed 1`, …",
            seeds.len(),
            list(&first),
            list(&second)
        );
    }
    if alone > 0 {
        tracing::warn!("{alone} runs have a seed that the other side has not, and are left out");
    }
    let mut compared = Vec::new();
    for scalar in scalars(runs) {
        let last = |named: &Named| Some(curve(&named.run, scalar)?.points.last()?.value);
        let pairs = seeds.iter().map(|seed| last(first[seed]).zip(last(second[seed])));
        let Some(pairs) = pairs.collect::<Option<Vec<(f64, f64)>>>() else { continue };
        let Some(paired) = Paired::of(&pairs) else {
            tracing::warn!("{scalar}: a run ended in a value that is not a number, so it is not compared");
            continue;
        };
        let difference_to_tell = difference.unwrap_or(paired.second.deviation);
        let seeds_to_tell = paired.n_to_tell(difference_to_tell);
        let verdict = verdict(scalar, &paired, difference_to_tell, seeds_to_tell);
        let (scalar, seeds) = (scalar.to_string(), seeds.clone());
        compared.push(Compared { scalar, seeds, paired, difference_to_tell, seeds_to_tell, verdict });
    }
    let steps: Vec<u64> =
        seeds.iter().flat_map(|seed| [first[seed], second[seed]]).map(|n| last_step(&n.run)).collect();
    if steps.iter().any(|&step| step != steps[0]) {
        tracing::warn!("not all runs end at the same step: their last values are compared");
    }
    if compared.is_empty() {
        bail!("no scalar is in all of the runs\nhelp: name runs of one experiment");
    }
    Ok(compared)
}

/// Runs by their seeds.
fn by_seed(runs: &[Named]) -> anyhow::Result<BTreeMap<u64, &Named>> {
    let mut by_seed: BTreeMap<u64, &Named> = BTreeMap::new();
    for named in runs {
        let Some(about) = &named.run.about else {
            bail!("{} does not say its seed: it is not a run of `bf16scope train`", named.run.path.display());
        };
        if let Some(other) = by_seed.insert(about.seed, named) {
            bail!(
                "{} and {} have one seed, {}, on one side of --against; expected one run for each seed",
                other.run.path.display(),
                named.run.path.display(),
                about.seed
            );
        }
    }
    Ok(by_seed)
}

/// What can be said, and what not.
fn verdict(scalar: &str, paired: &Paired, difference: f64, n_to_tell: Option<u64>) -> String {
    let Paired { n, difference: found, half_interval, p_value, .. } = *paired;
    let size = figure(found.mean.abs());
    let (low, high) = (figure(found.mean - half_interval), figure(found.mean + half_interval));
    let said = if paired.tells() {
        let side = if found.mean > 0.0 { "higher" } else { "lower" };
        format!("{scalar}: the first is {side} by {size}, which chance does not explain (p = {p_value:.3}, {n} seeds)")
    } else if paired.least_p_value() > LEVEL {
        format!(
            "{scalar}: {n} seeds cannot tell at {} %, whatever they give (p is {:.3} at least): the difference is between \
             {low} and {high}",
            100.0 * LEVEL,
            paired.least_p_value()
        )
    } else {
        format!("{scalar}: no difference that {n} seeds tell (p = {p_value:.3}): it is between {low} and {high} (95 %)")
    };
    match n_to_tell {
        Some(n) => format!("{said}; {n} seeds would tell a difference of {} in four of five times", figure(difference)),
        None => said,
    }
}

/// The table and the verdicts.
pub(super) fn render(compared: &[Compared], screen: Screen) -> String {
    let numbers = ["first", "second", "difference", "95 % interval", "p"].map(Column::number);
    let mut table = Table::new(std::iter::once(Column::name("last values")).chain(numbers));
    for Compared { scalar, paired, .. } in compared {
        let band = |mean: f64, deviation: f64| format!("{} ± {}", figure(mean), figure(deviation));
        table.row([
            scalar.clone(),
            band(paired.first.mean, paired.first.deviation),
            band(paired.second.mean, paired.second.deviation),
            figure(paired.difference.mean),
            format!("± {}", figure(paired.half_interval)),
            format!("{:.3}", paired.p_value),
        ]);
    }
    let mut text = table.render(screen);
    let judged = compared.iter().filter(|compared| is_measured(&compared.scalar));
    judged.for_each(|compared| text += &format!("{}\n", compared.verdict));
    text
}

/// Whether a scalar says how good a run is: rates do not.
fn is_measured(scalar: &str) -> bool {
    !(scalar.ends_with("learning_rate") || scalar.ends_with("_per_second"))
}
