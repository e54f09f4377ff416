//! The cycles that lowering saves on a TPU, as the TPU compiler estimates them, and how much of that remains when a
//! search keeps instructions in f32.

use serde::Serialize;

use crate::grouped;
use bf16scope_audit::SearchEnd;
use bf16scope_tpu::Target;

/// A list that leaves less than this share of the savings costs more than it buys: the same bound as that of
/// `audit::SearchEnd` for bytes.
const WORTH: f64 = 0.5;

/// Estimated cycles of a step in three forms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AuditCycles {
    /// The TPU.
    pub target: Target,
    /// The compiler's version.
    pub libtpu: String,
    /// In f32.
    pub f32: u64,
    /// Lowered by the policy alone.
    pub lowered: u64,
    /// Lowered, with the search's instructions in f32.
    pub kept: u64,
}

impl AuditCycles {
    /// The share of the savings that remains; `None` if lowering saves nothing.
    fn saved_share(&self) -> Option<f64> {
        let saves = |cycles: u64| self.f32 as f64 - cycles as f64;
        (saves(self.lowered) > 0.0).then(|| saves(self.kept) / saves(self.lowered))
    }

    /// Why a search ended, with cycles instead of bytes as the cost of a list.
    pub fn end(&self, is_reached: bool, end: SearchEnd) -> SearchEnd {
        let is_dear = self.saved_share().is_none_or(|share| share < WORTH);
        match (is_reached, end) {
            (true, SearchEnd::Minimal | SearchEnd::OutOfRuns) if is_dear => SearchEnd::CostsMoreThanItBuys,
            (true, SearchEnd::CostsMoreThanItBuys) if !is_dear => SearchEnd::Minimal,
            (_, end) => end,
        }
    }

    /// In one line.
    pub fn line(&self) -> String {
        let shown = |cycles: u64| grouped(cycles as i64);
        let left = match self.saved_share() {
            Some(share) => format!("{:.0} % of what lowering saves is left", 100.0 * share.max(0.0)),
            None => "lowering saves nothing there".to_string(),
        };
        format!(
            "{}, libtpu {}: {} cycles in f32, {} lowered, {} with these in f32: {left}",
            self.target,
            self.libtpu,
            shown(self.f32),
            shown(self.lowered),
            shown(self.kept)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forms(f32: u64, lowered: u64, kept: u64) -> AuditCycles {
        AuditCycles { target: "tpu-v2".parse().unwrap(), libtpu: "1".to_string(), f32, lowered, kept }
    }

    #[test]
    fn cycles_say_what_a_list_costs() {
        assert_eq!(forms(1000, 600, 700).end(true, SearchEnd::Minimal), SearchEnd::Minimal);
        assert_eq!(forms(1000, 600, 900).end(true, SearchEnd::Minimal), SearchEnd::CostsMoreThanItBuys);
        // By bytes it was too expensive.
        assert_eq!(forms(1000, 600, 700).end(true, SearchEnd::CostsMoreThanItBuys), SearchEnd::Minimal);
        // Lowering saves nothing here.
        assert_eq!(forms(1000, 1000, 1000).end(true, SearchEnd::Minimal), SearchEnd::CostsMoreThanItBuys);
        assert_eq!(forms(1000, 600, 1000).end(false, SearchEnd::NotReached), SearchEnd::NotReached);
        assert_eq!(forms(1000, 600, 1000).end(true, SearchEnd::NothingLeft), SearchEnd::NothingLeft);
        assert_eq!(
            forms(1000, 600, 700).line(),
            "tpu-v2, libtpu 1: 1,000 cycles in f32, 600 lowered, 700 with these in f32: 75 % of what lowering saves is left"
        );
    }
}
