//! `--dim`: sizes for the symbolic dimensions of a module; `--fetch`: which part of a TensorFlow graph to read.

use std::path::Path;

use anyhow::bail;

use super::Context;
use bf16scope_foreign::{Size, Sizes};
use bf16scope_study::Converter;

/// Arguments for reading a module.
#[derive(Debug, clap::Args)]
pub(super) struct SizeArgs {
    /// Size of a symbolic dimension of an export, by its name in `jax.export.symbolic_shape` (b=32), or by parameter and
    /// dimension (0:1=32); batch=32 for a TensorFlow graph; may be repeated
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<Size>,
    /// The part of a TensorFlow graph to lower: a signature, or tensors and ops by name, separated by commas [default: the
    /// training op and the losses; serving_default for a SavedModel]
    #[arg(long, value_name = "NAMES")]
    fetch: Option<String>,
}

impl SizeArgs {
    /// A converter that reads modules with these sizes.
    ///
    /// # Errors
    /// A dimension is given twice.
    pub(super) fn converter(&self, context: &Context) -> anyhow::Result<Converter> {
        match Sizes::new(self.dims.clone()) {
            Ok(sizes) => Ok(Converter { sizes, fetch: self.fetch.clone(), ..context.converter() }),
            Err(dim) => bail!("--dim gives `{dim}` two sizes\nhelp: leave one of them out"),
        }
    }

    /// Refuses sizes for a model.
    ///
    /// # Errors
    /// There are sizes and the file is a model.
    pub(super) fn refuse(&self, model: &Path) -> anyhow::Result<()> {
        if !self.dims.is_empty() {
            bail!(
                "--dim gives sizes to the symbolic dimensions of a module, and {} is none\nhelp: leave --dim out",
                model.display()
            );
        }
        if let Some(fetch) = &self.fetch {
            bail!(
                "--fetch {fetch} chooses within a TensorFlow graph, and {} is none\nhelp: leave --fetch out",
                model.display()
            );
        }
        Ok(())
    }
}
