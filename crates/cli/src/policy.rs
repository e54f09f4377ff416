//! Parses `--policy`, a preset's name or a YAML file, and `BF16SCOPE_AUTO`.

use std::path::Path;

use anyhow::{Context as _, bail};

use bf16scope_hlo::Module;
use bf16scope_passes::amp::{LowDType, Policy};
use bf16scope_study::{self as study, Form};

/// The environment variable that makes `run` and `compile` lower the modules they load.
pub(super) const AUTO: &str = "BF16SCOPE_AUTO";

/// Arguments that choose a policy.
#[derive(Debug, clap::Args)]
pub(super) struct PolicyArgs {
    /// A preset (default, bf16_scope, tf_amp, O0 to O3, mixed_bfloat16, mixed_float16, jmp:params=A,compute=B,output=C)
    /// a YAML file, or its text in braces
    #[arg(long, value_name = "POLICY", default_value = "default")]
    policy: String,
    /// The narrow dtype, instead of the policy's: bf16 or f16
    #[arg(long, value_name = "DTYPE", value_parser = dtype)]
    dtype: Option<LowDType>,
    /// Keep instructions whose name or scoped name matches in f32, besides those of the policy; may be repeated
    #[arg(long, value_name = "PATTERN")]
    keep: Vec<String>,
    /// The number of a result that is a loss, from 0, so that losses are not guessed; may be repeated
    #[arg(long = "loss", value_name = "RESULT")]
    losses: Vec<usize>,
    /// The number of a parameter that holds only positions, times, counts or masks, from 0; may be repeated
    #[arg(long, value_name = "PARAMETER")]
    data: Vec<usize>,
}

fn dtype(text: &str) -> Result<LowDType, String> {
    match text {
        "bf16" => Ok(LowDType::Bf16),
        "f16" => Ok(LowDType::F16),
        _ => Err("expected bf16 or f16".to_string()),
    }
}

impl PolicyArgs {
    /// The policy's file, if it is one.
    pub(super) fn file(&self) -> Option<&Path> {
        Some(Path::new(&self.policy)).filter(|path| path.is_file())
    }

    /// The policy from these arguments.
    pub(super) fn policy(&self) -> anyhow::Result<Policy> {
        let mut policy = study::policy(&self.policy)?;
        policy.dtype = self.dtype.unwrap_or(policy.dtype);
        policy.keep.extend(self.keep.iter().cloned());
        if !self.losses.is_empty() {
            policy.losses = Some(self.losses.clone());
        }
        policy.data.extend(&self.data);
        Ok(policy)
    }
}

/// The policy in `BF16SCOPE_AUTO`: `1` is `default`; `None` if it is unset, empty or `0`.
///
/// # Errors
/// The value is not a preset, nor a policy file.
pub(super) fn auto() -> anyhow::Result<Option<Policy>> {
    let value = match std::env::var(AUTO) {
        Ok(value) => value,
        Err(std::env::VarError::NotPresent) => return Ok(None),
        Err(error @ std::env::VarError::NotUnicode(_)) => bail!("{AUTO}: {error}"),
    };
    match value.as_str() {
        "" | "0" => Ok(None),
        "1" => Ok(Some(Policy::default())),
        name => Ok(Some(
            study::policy(name).with_context(|| format!("{AUTO} is `{name}`, expected 0, 1, a preset or a file"))?,
        )),
    }
}

/// Lowers a loaded module if `BF16SCOPE_AUTO` is set, and reports it in a line on standard error.
pub(super) fn lower_if_asked(module: Module, path: &Path) -> anyhow::Result<Module> {
    let Some(policy) = auto()? else { return Ok(module) };
    Ok(Form::lowered_by(AUTO, policy).apply(module, path)?)
}
