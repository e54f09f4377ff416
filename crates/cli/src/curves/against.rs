//! Compares runs over seeds in two ways, such as two precisions: is one as good as the other?

use std::collections::BTreeMap;

use anyhow::bail;
use serde::Serialize;

use crate::report::curves::{NamedRun, curve, figure, last_step, scalars};
use crate::report::{Column, Screen, Table};
use bf16scope_hlo::numerics::paired::{LEVEL, Paired};
use bf16scope_passes::name_pattern;

/// A scalar's last values in both ways, seed by seed.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    scalar: String,
    /// The seeds of both, in order.
    seeds: Vec<u64>,
    #[serde(flatten)]
    paired: Paired,
    /// The difference for `seeds_to_tell`.
    difference_to_tell: f64,
    /// The number of seeds that would detect it with a power of 80 %, at a level of 5 % for all scalars together; the
    /// spread is estimated from these seeds alone.
    seeds_to_tell: Option<u64>,
    /// Scalars that are judged together.
    n_scalars: usize,
    /// The Bonferroni-corrected p-value: times their number, at most 1.
    p_of_all: f64,
    verdict: String,
}

/// Compares the scalars and seeds that both ways recorded.
pub(super) fn compare(
    runs: &[NamedRun],
    against: &[NamedRun],
    difference: Option<f64>,
    patterns: &[String],
) -> anyhow::Result<Vec<Compared>> {
    let (first, second) = (by_seed(runs)?, by_seed(against)?);
    let seeds: Vec<u64> = first.keys().filter(|seed| second.contains_key(seed)).copied().collect();
    let alone = first.len() + second.len() - 2 * seeds.len();
    if seeds.len() < 2 {
        let list = |of: &BTreeMap<u64, &NamedRun>| of.keys().map(u64::to_string).collect::<Vec<_>>().join(", ");
        bail!(
            "runs are compared seed by seed, and both have {} in common, expected 2 or more: seeds {} against {}\n\
             help: train both with `--seed 0`, `--seed 1`, …",
            if seeds.len() == 1 { "1 seed".to_string() } else { format!("{} seeds", seeds.len()) },
            list(&first),
            list(&second)
        );
    }
    if alone > 0 {
        tracing::warn!("{alone} runs have a seed that the other side has not, and are left out");
    }
    let mut compared = Vec::new();
    let is_chosen =
        |scalar: &&str| patterns.is_empty() || patterns.iter().any(|pattern| name_pattern::matches(pattern, scalar));
    let chosen: Vec<&str> = scalars(runs).into_iter().filter(is_chosen).collect();
    if let Some(idle) =
        patterns.iter().find(|pattern| !chosen.iter().any(|scalar| name_pattern::matches(pattern, scalar)))
    {
        bail!("--scalar {idle} is no scalar of the runs, expected one of {}", scalars(runs).join(", "));
    }
    let has = |named: &NamedRun, scalar: &str| curve(&named.run, scalar).is_some();
    let in_all = |scalar: &&&str| seeds.iter().all(|seed| has(first[seed], scalar) && has(second[seed], scalar));
    let n_scalars = chosen.iter().filter(|scalar| is_measured(scalar)).filter(in_all).count().max(1);
    for scalar in chosen {
        let last = |named: &NamedRun| Some(curve(&named.run, scalar)?.points.last()?.value);
        let pairs = seeds.iter().map(|seed| last(first[seed]).zip(last(second[seed])));
        let Some(pairs) = pairs.collect::<Option<Vec<(f64, f64)>>>() else { continue };
        let Some(paired) = Paired::from_pairs(&pairs) else {
            tracing::warn!("{scalar}: a run ended in a value that is not a number, so it is not compared");
            continue;
        };
        let difference_to_tell = difference.unwrap_or(paired.second.deviation);
        let seeds_to_tell = paired.n_to_tell(difference_to_tell, n_scalars);
        let verdict = verdict(scalar, &paired, n_scalars, (difference_to_tell, seeds_to_tell));
        let (scalar, seeds) = (scalar.to_string(), seeds.clone());
        let p_of_all = (paired.p_value * n_scalars as f64).min(1.0);
        compared.push(Compared {
            scalar,
            seeds,
            paired,
            difference_to_tell,
            seeds_to_tell,
            n_scalars,
            p_of_all,
            verdict,
        });
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
fn by_seed(runs: &[NamedRun]) -> anyhow::Result<BTreeMap<u64, &NamedRun>> {
    let mut by_seed: BTreeMap<u64, &NamedRun> = BTreeMap::new();
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

/// The conclusion for one of `n_scalars` scalars.
fn verdict(scalar: &str, paired: &Paired, n_scalars: usize, (difference, n_to_tell): (f64, Option<u64>)) -> String {
    let Paired { n, difference: found, half_interval, p_value, .. } = *paired;
    let size = figure(found.mean.abs());
    let (low, high) = (figure(found.mean - half_interval), figure(found.mean + half_interval));
    let of_all = match n_scalars {
        1 => String::new(),
        n_scalars => format!("; {:.3} for {n_scalars} scalars together", (p_value * n_scalars as f64).min(1.0)),
    };
    let sentence = if paired.tells_among(n_scalars) {
        let side = if found.mean > 0.0 { "higher" } else { "lower" };
        format!(
            "{scalar}: the first is {side} by {size}, which chance does not explain (p = {p_value:.3}{of_all}, {n} seeds)"
        )
    } else if paired.least_p_value() * n_scalars as f64 > LEVEL {
        let together = if n_scalars > 1 { format!(" for {n_scalars} scalars together") } else { String::new() };
        format!(
            "{scalar}: {n} seeds cannot tell at {} %{together}, whatever they give (p is {:.3} at least): the difference is between \
             {low} and {high}",
            100.0 * LEVEL,
            paired.least_p_value()
        )
    } else {
        format!(
            "{scalar}: no difference that {n} seeds tell (p = {p_value:.3}{of_all}): it is between {low} and {high} (95 %)"
        )
    };
    match n_to_tell {
        Some(u64::MAX) | None => sentence,
        Some(n_needed) => format!(
            "{sentence}; about {n_needed} seeds tell a difference of {} in four of five times, where these {n} are all that says how \
             much seeds spread",
            figure(difference)
        ),
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

/// Whether a scalar measures a run's quality: learning rates do not.
fn is_measured(scalar: &str) -> bool {
    !(scalar.ends_with("learning_rate") || scalar.ends_with("_per_second"))
}
