//! `bf16scope init`: writes a commented experiment; `bf16scope models`: which models ship with the program.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context as _, bail};
use serde_json::json;

use super::{Context, Status};
use crate::report::{Column, Table};

/// Experiments for common kinds of data.
const TEMPLATES: [(&str, &str); 5] = [
    ("images", include_str!("init/images.yaml")),
    ("table", include_str!("init/table.yaml")),
    ("text", include_str!("init/text.yaml")),
    ("language_model", include_str!("init/language_model.yaml")),
    ("numbers", include_str!("init/numbers.yaml")),
];

/// Names and texts of models.
pub type Shipped = &'static [(&'static str, &'static str)];

/// The models that the running program ships.
pub(super) static SHIPPED: OnceLock<Shipped> = OnceLock::new();

const INIT_EXAMPLES: &str = "\
Examples:
  bf16scope init images
          writes images.yaml: a folder of images for each class
  bf16scope init table -o houses.yaml
          rows of a CSV file with a header

Kinds: images, table, text, language_model, numbers (arrays), and every model that `bf16scope models` lists.";

/// Arguments of `init`.
#[derive(Debug, clap::Args)]
#[command(after_help = INIT_EXAMPLES)]
pub struct InitArgs {
    /// The kind of data, or the name of a model
    #[arg(value_name = "KIND")]
    kind: String,
    /// The file to write, which must not be there [default: KIND.yaml]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const MODELS_EXAMPLES: &str = "\
Examples:
  bf16scope models
          what `init` writes, and the models that ship
  bf16scope models --json
          the same for programs";

/// Arguments of `models`.
#[derive(Debug, clap::Args)]
#[command(after_help = MODELS_EXAMPLES)]
pub struct ModelsArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn shipped() -> Shipped {
    SHIPPED.get().copied().unwrap_or_default()
}

/// Everything that `init` can write.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    TEMPLATES.into_iter().chain(shipped().iter().copied())
}

/// Writes an experiment.
pub fn init(args: &InitArgs, context: &Context) -> anyhow::Result<Status> {
    let Some((_, text)) = all().find(|(name, _)| *name == args.kind) else {
        let names: Vec<&str> = all().map(|(name, _)| name).collect();
        let near = bf16scope_hlo::words::nearest(&args.kind, names.iter().copied());
        let help = near.map_or(String::new(), |near| format!("\nhelp: did you mean `{near}`?"));
        bail!("no kind `{}`, expected one of {}{help}", args.kind, names.join(", "))
    };
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.yaml", args.kind)));
    let shown = path.display();
    let file = OpenOptions::new().write(true).create_new(true).open(&path);
    let mut file = match file {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{shown}: is there already\nhelp: name another file with -o")
        }
        file => file.with_context(|| format!("{shown}: cannot be written"))?,
    };
    file.write_all(text.as_bytes()).with_context(|| format!("{shown}: cannot be written"))?;
    context.print(&format!("{shown}: name your data in it, then `bf16scope train {shown}`\n"))?;
    Ok(Status::Ok)
}

/// The description of a file: its first comment, or its model's kind.
fn about(text: &str) -> String {
    let comment = text.lines().next().and_then(|line| line.strip_prefix('#')).map(str::trim);
    let kind = || text.lines().find_map(|line| line.trim().strip_prefix("kind:")).map(str::trim).unwrap_or_default();
    comment.unwrap_or_else(kind).to_string()
}

/// Lists what `init` writes.
pub fn models(args: &ModelsArgs, context: &Context) -> anyhow::Result<Status> {
    if args.json {
        let list = |of: &[(&str, &str)]| {
            of.iter().map(|(name, text)| json!({"name": name, "about": about(text)})).collect::<Vec<_>>()
        };
        context.print_json(&json!({"templates": list(&TEMPLATES), "models": list(shipped())}))?;
        return Ok(Status::Ok);
    }
    let mut table = Table::new([Column::name("name"), Column::text("what")]);
    all().for_each(|(name, text)| table.row([name.to_string(), about(text)]));
    let text = table.render(context.screen);
    context.print(&(text + "`bf16scope init NAME` writes one into this folder\n"))?;
    Ok(Status::Ok)
}
