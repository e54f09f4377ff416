//! `--as tpu-v2|tpu-v3`: products as a TPU's matrix unit computes them, on another device.

use std::path::Path;

use anyhow::{Context as _, bail};

use bf16scope_hlo::Module;
use bf16scope_passes::as_tpu::{self, AsTpuReport, TpuArithmetic};
use bf16scope_pjrt::{Client, Platform};

/// The argument that selects a TPU's arithmetic.
#[derive(Debug, clap::Args)]
pub(super) struct AsArg {
    /// Multiply as a TPU does: compute each f32 dot and convolution by bf16 products summed in f32, one by default, three for
    /// precision HIGH, six for HIGHEST (docs/AS_TPU.md)
    #[arg(long = "as", value_name = "tpu-v2|tpu-v3")]
    arithmetic: Option<TpuArithmetic>,
}

impl AsArg {
    /// Builds the argument from its value.
    pub(super) fn new(arithmetic: Option<TpuArithmetic>) -> AsArg {
        AsArg { arithmetic }
    }

    /// The selected arithmetic.
    pub(super) fn arithmetic(&self) -> Option<TpuArithmetic> {
        self.arithmetic
    }

    /// Refuses a TPU as the device, which has its own arithmetic.
    pub(super) fn check(&self, device: &Platform) -> anyhow::Result<()> {
        match self.arithmetic {
            Some(arithmetic) if *device == Platform::tpu() => bail!(
                "--as {arithmetic} is for devices other than TPUs, and --device is {device}, which multiplies as it \
                 does\nhelp: leave --as out, or run on the CPU"
            ),
            _ => Ok(()),
        }
    }

    /// The module in that arithmetic. Warns of operations that stay unchanged although a TPU computes them differently.
    pub(super) fn module(&self, module: Module, path: &Path) -> anyhow::Result<Module> {
        let Some(arithmetic) = self.arithmetic else { return Ok(module) };
        let (rewritten, report) = as_tpu::run(&module, &arithmetic)
            .with_context(|| format!("{} cannot be put into a TPU's arithmetic", path.display()))?;
        say(&report);
        Ok(rewritten)
    }

    /// A client that converts every module it compiles to that arithmetic.
    pub(super) fn client(&self, client: Client) -> Client {
        let Some(arithmetic) = self.arithmetic else { return client };
        client.rewriting(move |module| {
            let (rewritten, report) = as_tpu::run(module, &arithmetic)?;
            say(&report);
            Ok(rewritten)
        })
    }

    /// The flag as text, for a command that continues this one.
    pub(super) fn again(&self) -> String {
        self.arithmetic.map_or(String::new(), |arithmetic| format!(" --as {arithmetic}"))
    }
}

/// Warns of operations that stay unchanged.
pub(super) fn say(report: &AsTpuReport) {
    if let Some(first) = report.left.first() {
        tracing::warn!(
            "{} of the products are not computed as {} does, such as {}/%{}: {}",
            report.left.len(),
            report.arithmetic,
            first.computation,
            first.instruction,
            first.why
        );
    }
}
