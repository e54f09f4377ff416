//! `bf16scope weights`: lists a file of weights with checksums of every array, and converts it to another format.

mod check;
mod model;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use serde_json::json;

use super::progress::Phase;
use super::{Context, Status, emit};
use crate::report::{Column, Table, grouped};
use bf16scope_data::weights::{self, Entry, Look, WeightsDType, WeightsFile, WrittenArray, WrittenFormat};

const EXAMPLES: &str = "\
Examples:
  bf16scope weights model.safetensors
          names, dtypes, shapes, bytes and checksums of its arrays
  bf16scope weights model.safetensors.index.json --json
          a sharded model, as JSON
  bf16scope weights model.ckpt-1000
          a checkpoint of TensorFlow: by its prefix, its .index, or its folder
  bf16scope weights model.npz -o model.safetensors
          the same arrays in another format
  bf16scope weights trained.safetensors -o model.ckpt --format tf
          a checkpoint of TensorFlow: model.ckpt.index and model.ckpt.data-00000-of-00001
  bf16scope weights model.safetensors --model gpt2.yaml -o gpt2-checkpoint.safetensors
          into a model: a checkpoint that predict, eval, package and train take
  bf16scope weights gpt2-checkpoint.safetensors --model gpt2.yaml --rules gpt2 --format safetensors -o model.safetensors
          and back, by the other framework's names

A checksum is the CRC-32C of an array's bytes, little-endian and row-major: equal arrays have equal ones in every format.";

/// Arguments of `weights`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Weights: .npz, .safetensors, Keras' .h5 and .keras, PyTorch's .pt and .bin, the index of a sharded model
    /// (.index.json), a checkpoint of bf16scope or TensorFlow, or the folder of a checkpoint or a SavedModel
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the arrays to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write this format; without it the output's name says which (.npz, .safetensors, .index)
    #[arg(long, value_name = "FORMAT", requires = "output")]
    format: Option<WrittenName>,
    #[command(flatten)]
    model: model::ModelArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// An output format, as typed.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum WrittenName {
    /// A NumPy archive
    Npz,
    /// A safetensors file
    Safetensors,
    /// A checkpoint of TensorFlow: the output's name is its prefix
    Tf,
}

impl WrittenName {
    fn format(self) -> WrittenFormat {
        match self {
            WrittenName::Npz => WrittenFormat::Npz,
            WrittenName::Safetensors => WrittenFormat::Safetensors,
            WrittenName::Tf => WrittenFormat::TensorFlow,
        }
    }

    /// The names of its files.
    fn files(self) -> &'static str {
        match self {
            WrittenName::Npz => "NumPy's archives",
            WrittenName::Safetensors => "safetensors files",
            WrittenName::Tf => "TensorFlow's checkpoints",
        }
    }

    /// The format by a file's name.
    fn from_path(path: &Path) -> anyhow::Result<WrittenName> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npz") => Ok(WrittenName::Npz),
            Some("safetensors") => Ok(WrittenName::Safetensors),
            Some("index") => Ok(WrittenName::Tf),
            _ => bail!(
                "--output names {}, which says no format; expected a name that ends in .npz, .safetensors or .index\n\
                 help: name it so, or say --format",
                path.display()
            ),
        }
    }
}

/// Refuses a name with one format's extension for another format: programs that open the file go by its name.
fn check_name(path: &Path, format: WrittenName) -> anyhow::Result<()> {
    match WrittenName::from_path(path) {
        Ok(named) if named != format => bail!(
            "--output {} ends as {} do, and --format says {}\nhelp: {}, or leave out --format",
            path.display(),
            named.files(),
            format.files(),
            match format {
                WrittenName::Npz => "name it FILE.npz",
                WrittenName::Safetensors => "name it FILE.safetensors",
                WrittenName::Tf =>
                    "name a prefix such as model.ckpt, from which model.ckpt.index and its data are named",
            }
        ),
        _ => Ok(()),
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let read = [Some(args.file.as_path()), args.model.model.as_deref()];
    emit::check_names(&[("--output", args.output.as_deref())], &read)?;
    if let (Some(output), Some(format)) = (&args.output, args.format) {
        check_name(output, format)?;
    }
    match (&args.model.model, &args.output, args.format) {
        (Some(_), Some(output), Some(format)) => {
            return args.model.export(&args.file, output, format.format(), context);
        }
        (Some(_), ..) => return args.model.import(&args.file, args.output.as_deref(), args.json, context),
        (None, ..) => {}
    }
    let written = args.output.as_deref().map(|path| match args.format {
        Some(name) => Ok((path, name.format())),
        None => WrittenName::from_path(path).map(|name| (path, name.format())),
    });
    let written = written.transpose()?;
    let file = weights::open(&args.file)?;
    let looks = looks(&file, context)?;
    if let Some((path, format)) = written {
        write(&file, path, format)?;
    }
    if args.json {
        context.print_json(&to_json(&file, &looks, args.output.as_deref()))?;
    } else {
        context.print(&to_text(&file, &looks, context))?;
        if let Some((path, _)) = written {
            context.print(&format!("written to {}\n", path.display()))?;
        }
    }
    Ok(Status::Ok)
}

/// Measures every array, and says on a terminal which one is being read.
fn looks(file: &WeightsFile, context: &Context) -> anyhow::Result<Vec<Look>> {
    let (shown, n) = (file.path().display(), file.entries().len());
    let phase = Phase::begin(format!("reading {shown}"), context.quiet);
    file.check()?;
    let look = |(nth, entry): (usize, &Entry)| -> anyhow::Result<Look> {
        phase.says(&format!("reading {shown}: {} ({} of {n})", entry.name, nth + 1));
        Ok(file.look(&entry.name)?)
    };
    file.entries().iter().enumerate().map(look).collect()
}

/// Writes every numeric array; warns of strings, which are left out.
fn write(file: &WeightsFile, path: &Path, format: WrittenFormat) -> anyhow::Result<()> {
    let mut arrays = Vec::new();
    for entry in file.entries() {
        match entry.shape() {
            Some(shape) => arrays.push(WrittenArray { name: entry.name.clone(), shape }),
            None => tracing::warn!("`{}` is of {}, and is not written", entry.name, entry.dtype),
        }
    }
    // The result would be an empty file that looks like weights.
    ensure!(
        !arrays.is_empty() || file.entries().is_empty() && file.left_out().is_empty(),
        "{}: no array of it can be written\nhelp: `bf16scope weights {0}` says what each of them is",
        file.path().display()
    );
    let mut read = |idx: usize| file.read(&arrays[idx].name);
    weights::write_each(path, format, &arrays, &mut read).with_context(|| format!("cannot write {}", path.display()))
}

fn total(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.n_bytes).sum()
}

/// The checksum of an array, if its elements were read.
fn checksum(entry: &Entry, look: &Look) -> Option<String> {
    let is_read = matches!(entry.dtype, WeightsDType::Array(_) | WeightsDType::Text);
    is_read.then(|| format!("{:08x}", look.crc32c))
}

fn to_text(file: &WeightsFile, looks: &[Look], context: &Context) -> String {
    let mut table = Table::new([
        Column::name("name"),
        Column::number("dtype"),
        Column::number("shape"),
        Column::number("bytes"),
        Column::number("crc32c").extra(1),
    ]);
    for (entry, look) in file.entries().iter().zip(looks) {
        let dims: Vec<String> = entry.dims.iter().map(u64::to_string).collect();
        table.row([
            entry.name.clone(),
            entry.dtype.to_string(),
            format!("[{}]", dims.join(",")),
            grouped(entry.n_bytes as i64),
            checksum(entry, look).unwrap_or_else(|| "-".to_string()),
        ]);
    }
    let n = file.entries().len();
    let mut text = format!(
        "{}: {}, {} array{}, {} bytes\n",
        file.path().display(),
        file.format(),
        grouped(n as i64),
        if n == 1 { "" } else { "s" },
        grouped(total(file.entries()) as i64)
    );
    if n > 0 {
        text += &table.render(context.screen);
    }
    if !file.left_out().is_empty() {
        text += &format!("no arrays, and left out: {}\n", file.left_out().join(", "));
    }
    for (entry, look) in file.entries().iter().zip(looks).filter(|(_, look)| look.n_not_finite > 0) {
        text += &format!("{}: {} elements are NaN or infinite\n", entry.name, grouped(look.n_not_finite as i64));
    }
    text
}

fn to_json(file: &WeightsFile, looks: &[Look], output: Option<&Path>) -> serde_json::Value {
    let arrays: Vec<serde_json::Value> = (file.entries().iter().zip(looks))
        .map(|(entry, look)| {
            json!({
                "name": entry.name, "aliases": entry.aliases, "dtype": entry.dtype.to_string(), "dims": entry.dims,
                "n_bytes": entry.n_bytes, "crc32c": checksum(entry, look), "n_not_finite": look.n_not_finite,
            })
        })
        .collect();
    json!({
        "file": file.path(), "format": file.format().name(), "n_bytes": total(file.entries()), "arrays": arrays, "left_out": file.left_out(),
        "output": output,
    })
}
