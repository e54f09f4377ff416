//! `bits --accumulate`: the same weight without a master copy, in each storage that `train: {variables: …}` offers.
//!
//! The arithmetic is f32, as in a training program; the storages differ in how they round the sum.

use serde::Serialize;

use crate::{Column, Screen, Table};
use bf16scope_hlo::numerics::{Decimal, Format, Number};
use bf16scope_model::graph::Storage;
use bf16scope_model::optim::{Kept, RoundingNoise};

/// The result of one storage.
#[derive(Debug, Serialize)]
pub struct StorageRow {
    storage: &'static str,
    /// Bytes per weight.
    bytes: u32,
    /// The number of simulated weights: many if rounding is random.
    weights: usize,
    /// Steps that changed a weight, on average.
    changed: f64,
    /// The average weight after the last step; `None` after an overflow.
    #[serde(rename = "final")]
    last: Option<f64>,
    /// The standard deviation of the weights from that.
    spread: f64,
    /// The error of a weight after the last step: for random rounding, the root mean square over the weights. `None`
    /// after an overflow.
    off_by: Option<f64>,
}

/// The largest product of weights and steps for random rounding, so that it takes no noticeable time.
const MOST: usize = 1 << 20;

/// The largest number of weights.
const MOST_WEIGHTS: usize = 4096;

/// A row for each storage.
pub fn rows(start: &Decimal, update: &Decimal, n_steps: usize, exact: &Decimal) -> Vec<StorageRow> {
    let exact = f64::from(nearest(exact));
    let [start, update] = [start, update].map(nearest);
    Storage::ALL.iter().map(|&storage| follow(storage, start, update, n_steps, exact)).collect()
}

/// The f32 nearest to a number.
fn nearest(number: &Decimal) -> f32 {
    f32::from_bits(Format::F32.encode(&Number::Finite(number.clone())) as u32)
}

fn follow(storage: Storage, start: f32, update: f32, n_steps: usize, exact: f64) -> StorageRow {
    let is_chance = storage == Storage::Bf16Stochastic;
    let n_weights = if is_chance { (MOST / n_steps.max(1)).clamp(1, MOST_WEIGHTS) } else { 1 };
    // A variable starts rounded to nearest, whatever its storage.
    let first = match storage {
        Storage::F32 => Kept { high: start, low: 0.0 },
        _ => Kept::new(Storage::Bf16Nearest, start, 0),
    };
    let mut weights = vec![first; n_weights];
    let mut n_changed = 0u64;
    for step in 0..n_steps {
        let noise = RoundingNoise::new([0, 0], step as u32, "weight");
        for (number, weight) in (0..).zip(&mut weights) {
            let updated = Kept::new(storage, weight.value() + update, noise.bits(number));
            // After an overflow nothing changes any more, but a NaN differs from itself.
            n_changed += u64::from(weight.value().is_finite() && updated != *weight);
            *weight = updated;
        }
    }
    let n = n_weights as f64;
    let mean = weights.iter().map(|weight| f64::from(weight.value())).sum::<f64>() / n;
    let square = weights.iter().map(|weight| (f64::from(weight.value()) - mean).powi(2)).sum::<f64>() / n;
    StorageRow {
        storage: storage.name(),
        bytes: if matches!(storage, Storage::F32 | Storage::Bf16Compensated) { 4 } else { 2 },
        weights: n_weights,
        changed: n_changed as f64 / n,
        last: Some(mean).filter(|mean| mean.is_finite()),
        spread: square.sqrt(),
        off_by: Some((square + (mean - exact).powi(2)).sqrt()).filter(|off| off.is_finite()),
    }
}

fn small(distance: f64) -> String {
    if distance == 0.0 { "0".to_owned() } else { format!("{distance:.1e}") }
}

/// A table, and its conclusion.
pub(super) fn render(rows: &[StorageRow], n_steps: usize, exact: &Decimal, screen: Screen) -> String {
    let exact = f64::from(nearest(exact));
    let mut mean_off = String::new();
    let titles = ["variables", "bytes", "steps that change it"].map(Column::text);
    let ends = [Column::text(format!("after {n_steps}")), Column::text("off by")];
    let mut table = Table::new(titles.into_iter().chain(ends));
    for row in rows {
        let (last, error) = match row.last {
            Some(last) => (format!("{:?}", last as f32), row.off_by.map_or("-".to_owned(), small)),
            None => ("overflow".to_owned(), "-".to_owned()),
        };
        if let (2.., Some(last)) = (row.weights, row.last) {
            mean_off = small((last - exact).abs());
        }
        let spread = if row.spread > 0.0 { format!(" ± {:.1e}", row.spread) } else { String::new() };
        let changed = match row.weights {
            1 => format!("{:.0}", row.changed),
            _ => format!("{:.1} on average", row.changed),
        };
        table.row([row.storage.to_owned(), row.bytes.to_string(), changed, last + &spread, error]);
    }
    let several = match rows.iter().map(|row| row.weights).max() {
        Some(n) if n > 1 => format!(
            "bf16_stochastic is {n} weights: their mean, ± their standard deviation, and what one of them is off by (the root of the \
             mean square). Their mean is off by {mean_off}: errors of single weights cancel, which those of the other rows do not. "
        ),
        _ => String::new(),
    };
    format!(
        "\nWithout a master copy, as `train: {{variables: …}}` stores weights:\n{}{several}docs/BF16_WEIGHTS.md says when \
         to use which.\n",
        table.render(screen)
    )
}
