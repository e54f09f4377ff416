//! Asks the TPU compiler what lowering saves, and how much of that remains when a search keeps instructions in f32.

use std::path::Path;

use anyhow::Context as _;

use super::Args;
use crate::report::audit::AuditCycles;
use crate::{Context, progress};
use bf16scope_hlo::Module;
use bf16scope_hlo::devices::Placement;
use bf16scope_hlo::proto::encode;
use bf16scope_passes::amp::{self, Policy};
use bf16scope_tpu::{Compiler, Target};

/// Asks the compiler about the module, lowered by the policy, and lowered by the policy that a search found.
///
/// # Errors
/// The compiler is not available, or refuses one of them.
pub(super) fn cycles_of(
    args: &Args,
    target: &Target,
    (module, policy, search_policy): (&Module, &Policy, &Policy),
    context: &Context,
) -> anyhow::Result<AuditCycles> {
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
    Ok(AuditCycles {
        target: target.clone(),
        libtpu: compiler.libtpu()?,
        f32: compiled("f32", module)?,
        lowered: compiled("the lowered form", &amp::run(module, policy)?.0)?,
        kept: compiled("what is found", &amp::run(module, search_policy)?.0)?,
    })
}

fn cycles(compiler: &Compiler, target: &Target, module: &Module, path: &Path) -> anyhow::Result<u64> {
    let failed = || format!("{} does not compile for {target}", path.display());
    let program = encode::to_bytes(module).with_context(failed)?;
    Ok(compiler.compile(target, &program, 1).and_then(|compiled| compiled.report(target)).with_context(failed)?.cycles)
}
