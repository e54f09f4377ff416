//! The cycles that lowering saves on a TPU, as the TPU compiler estimates them, and how much of that remains when a
//! search keeps instructions in f32.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use super::Args;
use crate::report::grouped;
use crate::{Context, progress};
use bf16scope_audit::SearchEnd;
use bf16scope_hlo::Module;
use bf16scope_hlo::devices::Placement;
use bf16scope_hlo::proto::encode;
use bf16scope_passes::amp::{self, Policy};
use bf16scope_tpu::{Compiler, Target};

/// A list that leaves less than this share of the savings costs more than it buys: the same bound as that of
/// `audit::SearchEnd` for bytes.
const WORTH: f64 = 0.5;

/// Estimated cycles of a step in three forms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Cycles {
    /// The TPU.
    target: Target,
    /// The compiler's version.
    libtpu: String,
    f32: u64,
    /// Lowered by the policy alone.
    lowered: u64,
    /// Lowered, with the search's instructions in f32.
    kept: u64,
}

impl Cycles {
    /// Asks the compiler about the module, lowered by the policy, and lowered by the policy that a search found.
    ///
    /// # Errors
    /// The compiler is not available, or refuses one of them.
    pub(super) fn ask(
        args: &Args,
        target: &Target,
        (module, policy, search_policy): (&Module, &Policy, &Policy),
        context: &Context,
    ) -> anyhow::Result<Cycles> {
        // With excess precision, as frameworks compile their modules.
        let mut asking = args.limits.asking(false, true, context);
        asking.excess_precision = true;
        let compiler = asking.compiler(Placement::default());
        let compiled = |what: &str, module: &Module| {
            let spinner = progress::spinner(format!("compiling {what} for {target}"), context.quiet);
            let cycles = cycles(&compiler, target, module, &args.module);
            spinner.finish_and_clear();
            cycles
        };
        Ok(Cycles {
            target: target.clone(),
            libtpu: compiler.libtpu()?,
            f32: compiled("f32", module)?,
            lowered: compiled("the lowered form", &amp::run(module, policy)?.0)?,
            kept: compiled("what is found", &amp::run(module, search_policy)?.0)?,
        })
    }

    /// The share of the savings that remains; `None` if lowering saves nothing.
    fn saved_share(&self) -> Option<f64> {
        let saves = |cycles: u64| self.f32 as f64 - cycles as f64;
        (saves(self.lowered) > 0.0).then(|| saves(self.kept) / saves(self.lowered))
    }

    /// Why a search ended, with cycles instead of bytes as the cost of a list.
    pub(super) fn end(&self, is_reached: bool, end: SearchEnd) -> SearchEnd {
        let is_dear = self.saved_share().is_none_or(|share| share < WORTH);
        match (is_reached, end) {
            (true, SearchEnd::Minimal | SearchEnd::OutOfRuns) if is_dear => SearchEnd::CostsMoreThanItBuys,
            (true, SearchEnd::CostsMoreThanItBuys) if !is_dear => SearchEnd::Minimal,
            (_, end) => end,
        }
    }

    /// In one line.
    pub(super) fn line(&self) -> String {
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

fn cycles(compiler: &Compiler, target: &Target, module: &Module, path: &Path) -> anyhow::Result<u64> {
    let failed = || format!("{} does not compile for {target}", path.display());
    let program = encode::to_bytes(module).with_context(failed)?;
    Ok(compiler.compile(target, &program, 1).and_then(|compiled| compiled.report(target)).with_context(failed)?.cycles)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forms(f32: u64, lowered: u64, kept: u64) -> Cycles {
        Cycles { target: "tpu-v2".parse().unwrap(), libtpu: "1".to_string(), f32, lowered, kept }
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
