//! The layers of a model: shapes, parameters, bytes.

use std::path::Path;

use crate::{Column, Screen, Table, grouped};
use bf16scope_train::{LayerSummary, NetworkSummary};

/// Bytes of a number in f32.
pub const F32: u64 = 4;
/// Bytes of a number in bf16.
pub const BF16: u64 = 2;

/// The lines above a summary: which experiment, model and optimizer it describes.
#[derive(Clone, Copy, Debug)]
pub struct SummaryLines<'a> {
    /// The experiment's file.
    pub experiment: &'a Path,
    /// The kind of its model.
    pub kind: &'a str,
    /// Its optimizer.
    pub optimizer: &'a str,
}

impl SummaryLines<'_> {
    /// A table of layers, and totals.
    pub fn render(&self, summary: &NetworkSummary, screen: Screen) -> String {
        let n_numbers = summary.n_parameters + summary.n_fixed;
        let count = |n: u64| grouped(i64::try_from(n).unwrap_or(i64::MAX));
        let columns = [
            Column::name("layer"),
            Column::text("op").extra(3),
            Column::number("output"),
            Column::number("parameters"),
            Column::number("f32 bytes").extra(2),
            Column::number("bf16 bytes").extra(1),
        ];
        let mut table = Table::new(columns);
        for LayerSummary { name, op, output, n_parameters, n_fixed } in &summary.layers {
            let n = n_parameters + n_fixed;
            let shown = |n: u64| if n == 0 { "·".to_string() } else { count(n) };
            table.row([name.clone(), op.clone(), dims(output), shown(n), shown(F32 * n), shown(BF16 * n)]);
        }
        let inputs: Vec<String> =
            summary.inputs.iter().map(|(name, of_one)| format!("{name} {}", dims(of_one))).collect();
        let mut text = format!("{}: {} of {}\n", self.experiment.display(), self.kind, inputs.join(", "));
        text += &table.render(screen);
        let fixed = match summary.n_fixed {
            0 => String::new(),
            n => format!(" and {} numbers that do not train", count(n)),
        };
        text += &format!(
            "{} parameters{fixed}: {} bytes in f32, {} in bf16\ntraining keeps {} bytes between steps, with {}\n",
            count(summary.n_parameters),
            count(F32 * n_numbers),
            count(BF16 * n_numbers),
            count(summary.n_state_bytes),
            self.optimizer,
        );
        text
    }
}

/// `[28, 28, 1]`; a scalar is `[]`.
fn dims(of_one: &[i64]) -> String {
    let dims: Vec<String> = of_one.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(", "))
}
