//! `bf16scope emit`: the HLO of a model's training or inference program, as text or proto.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::ValueEnum;

use super::program::{Choice, read};
use super::{Context, Status};
use crate::graph::Precision;
use crate::hlo::Module;
use crate::hlo::proto::encode;
use crate::hlo::text::{PrintOptions, print};

const EXAMPLES: &str = "\
Examples:
  bf16scope emit examples/digits.yaml
          the bf16 training step as HLO text
  bf16scope emit examples/resnet50.yaml --program infer --precision f32 --batch 1 -o resnet50.pb
          an f32 inference program as a serialized HloModuleProto
  diff <(bf16scope emit examples/digits.yaml --precision f32) <(bf16scope emit examples/digits.yaml)
          what a bf16 scope does, line by line";

/// Arguments of `emit`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    /// What the network computes in: f32, bf16 or f16
    #[arg(long, default_value = "bf16")]
    precision: Precision,
    /// Where to write; standard output if not given
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Text or proto; by the file's ending if not given (.pb and .hlo.pb are protos, all else is text)
    #[arg(long, value_enum)]
    format: Option<Format>,
}

/// How a module is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// HLO text, as XLA prints it
    Text,
    /// Serialized HloModuleProto
    Proto,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let experiment = read(&args.choice.model)?;
    let program = args.choice.build(&experiment, args.precision)?;
    let format = args.format.unwrap_or_else(|| format_of(args.output.as_deref()));
    let bytes = write(&program.module, format)?;
    match &args.output {
        Some(path) => {
            replace(path, &bytes)?;
            context.print(&format!(
                "{}: {} instructions, {} bytes\n",
                path.display(),
                program.module.entry().instructions.len(),
                bytes.len()
            ))?;
        }
        None => match String::from_utf8(bytes) {
            Ok(text) => context.print(&text)?,
            Err(_) => bail!("a proto is not for the terminal\nhelp: name a file with -o, such as -o model.pb"),
        },
    }
    Ok(Status::Ok)
}

pub(super) fn format_of(path: Option<&Path>) -> Format {
    match path.and_then(Path::extension) {
        Some(extension) if extension == "pb" => Format::Proto,
        Some(_) | None => Format::Text,
    }
}

pub(super) fn write(module: &Module, format: Format) -> anyhow::Result<Vec<u8>> {
    Ok(match format {
        Format::Text => print(module, &PrintOptions::default()).into_bytes(),
        Format::Proto => encode::to_bytes(module).context("the module cannot be encoded")?,
    })
}

/// Replaces a file whole: written beside it, synced, renamed.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let failed = || format!("cannot write {}", path.display());
    let mut file = tempfile::NamedTempFile::new_in(directory).with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    file.as_file().sync_all().with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}
