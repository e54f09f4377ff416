//! `bf16scope emit`: the HLO of a model's program, or of a module from elsewhere, as text, proto or picture.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;

use super::arrays::named_arrays;
use super::as_tpu::AsArg;
use super::child::bytes;
use super::program::Choice;
use super::{Context, Status, module_file};
use bf16scope_data::npz::{Header, NpzWriter};
use bf16scope_files as files;
use bf16scope_foreign::stablehlo;
use bf16scope_hlo::proto::{assignment, decode, encode};
use bf16scope_hlo::text::{PrintOptions, print};
use bf16scope_hlo::{Literal, Lost, Module, graphviz, lost_in_text};
use bf16scope_passes::constants;
use bf16scope_tpu::Target;

const EXAMPLES: &str = "\
Examples:
  bf16scope emit examples/digits.yaml
          the bf16 training step as HLO text
  bf16scope emit examples/resnet50.yaml --program infer --precision f32 --batch 1 -o resnet50.pb
          an f32 inference program as a serialized HloModuleProto
  diff <(bf16scope emit examples/digits.yaml --precision f32) <(bf16scope emit examples/digits.yaml)
          what a bf16 scope changes, line by line
  bf16scope emit examples/resnet50.yaml --tune tpu-v2 -o resnet50.txt
          the program that `compile --target tpu-v2` compiles; without --tune, the one that runs on a CPU
  bf16scope emit step.hlo.pb -o step.txt
          a module from JAX or TensorFlow as text (and back: emit step.txt -o step.pb)
  bf16scope emit step.hlo.pb --as tpu-v3 -o step.tpu.hlo.pb
          with f32 dots and convolutions as the bf16 products that a TPU computes
  bf16scope emit step.mlir -o step.hlo.pb; bf16scope emit step.hlo.pb --format stablehlo
          StableHLO, as jax.jit(f).lower(x).as_text() gives it, to HLO, and HLO to StableHLO for JAX
  bf16scope emit traced.pb --lift-constants 1KiB --weights weights.npz -o net.pb
          weights that a tracer wrote into the module become parameters; emit net.pb --bake weights.npz is the way back
  bf16scope emit step.hlo.pb --format dot | dot -Tsvg > step.svg
          a picture of where bf16 begins and ends; dot is Graphviz's";

/// Arguments of `emit`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    as_tpu: AsArg,
    /// Bake the arrays of this .npz file into the module as constants, in place of the parameters with their names or inN; the
    /// other parameters are renumbered
    #[arg(long, value_name = "FILE.npz", conflicts_with = "lift_constants")]
    bake: Option<PathBuf>,
    /// Turn the entry's constants of at least this many bytes, such as 1KiB, into parameters, and write their values to --weights
    #[arg(long, value_name = "BYTES", value_parser = bytes, requires = "weights")]
    lift_constants: Option<u64>,
    /// Where --lift-constants writes the values, by the names of the parameters that they became
    #[arg(long, value_name = "FILE.npz", requires = "lift_constants")]
    weights: Option<PathBuf>,
    /// File to write; standard output if not given
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Text, proto, stablehlo or dot; if not given, by the file's extension (.pb: proto, .mlir: StableHLO, .dot: picture,
    /// else text)
    #[arg(long, value_enum)]
    format: Option<Format>,
}

/// The output format of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// HLO text, as XLA prints it
    Text,
    /// Serialized HloModuleProto
    Proto,
    /// StableHLO text, which JAX and XLA's plugins read
    #[value(name = "stablehlo")]
    StableHlo,
    /// A picture for Graphviz, coloured by dtype: where bf16 begins and ends
    #[value(name = "dot")]
    Graphviz,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let format = args.format.unwrap_or_else(|| format_of(args.output.as_deref()));
    if args.bake.is_some() || args.weights.is_some() {
        // Checked before reading, which may take a while.
        let read = [Some(args.choice.model.as_path()), args.bake.as_deref()];
        let outputs = [("-o", args.output.as_deref()), ("--weights", args.weights.as_deref())];
        check_names(&outputs, if module_file::is_module(&args.choice.model) { &read[1..] } else { &read })?;
    }
    // A form that is only displayed may come from a compiler.
    let is_shown = format != Format::StableHlo && args.as_tpu.arithmetic().is_none();
    let load = if is_shown { module_file::load_to_show } else { module_file::load };
    let module = match args.choice.module_by(|path| Ok(load(path, &args.choice.converter(context)?)?))? {
        Some(module) => module,
        None => args.choice.subject(&context.setup())?.build(args.choice.precision(), &Target::Cpu)?.module,
    };
    let module = args.as_tpu.module(module, &args.choice.model)?;
    let module = args.constants(module)?;
    let Some(path) = &args.output else {
        if format == Format::Proto {
            bail!("a proto is not for the terminal\nhelp: name a file with -o, such as -o model.pb");
        }
        context.print_data(&String::from_utf8(write(&module, format)?).expect("all but protos are text"))?;
        return Ok(Status::Ok);
    };
    if !module_file::is_module(&args.choice.model) && is_same(path, &args.choice.model) {
        bail!("-o names the model itself, {}\nhelp: name another file", path.display());
    }
    let bytes = write(&module, format)?;
    replace(path, &bytes)?;
    let n_instructions = module.entry().instructions.len();
    context.print(&format!("{}: {n_instructions} instructions, {} bytes\n", path.display(), bytes.len()))?;
    Ok(Status::Ok)
}

impl Args {
    /// The module with parameters baked into it, or with constants lifted out of it.
    fn constants(&self, module: Module) -> anyhow::Result<Module> {
        let shown = || self.choice.model.display();
        if let Some(file) = &self.bake {
            let values = named_arrays(&module, file)?;
            ensure!(
                !values.is_empty(),
                "{}: no array has the name of a parameter of {}\nhelp: name arrays as the parameters are, or in0, in1, …: it \
                 takes {}",
                file.display(),
                shown(),
                parameter_names(&module)
            );
            let baked = constants::bake(&module, &values);
            let (module, baked) = baked.with_context(|| format!("nothing can be baked into {}", shown()))?;
            if baked.n_untied > 0 {
                tracing::warn!("{} aliases and donors of what is a constant now are left out", baked.n_untied);
            }
            return Ok(module);
        }
        let (Some(min_bytes), Some(file)) = (&self.lift_constants, &self.weights) else { return Ok(module) };
        let lifted = constants::lift(&module, min_bytes);
        let (lifted, all) = lifted.with_context(|| format!("no constant of {} can be lifted", shown()))?;
        ensure!(
            !all.is_empty(),
            "{}: the entry has no constant of {min_bytes} bytes or more\nhelp: name fewer bytes; what loops and branches have as \
             constants stays there",
            shown()
        );
        let mut npz = NpzWriter::create(file)?;
        for one in all {
            if let Literal::Array { shape, bytes } = one.value {
                npz.add(&one.name, &Header::stored(shape.dtype, shape.dims), &bytes)?;
            }
        }
        npz.finish()?;
        Ok(lifted)
    }
}

pub(super) fn format_of(path: Option<&Path>) -> Format {
    match path.and_then(Path::extension) {
        Some(extension) if extension == "pb" => Format::Proto,
        Some(extension) if extension == "mlir" => Format::StableHlo,
        Some(extension) if extension == "dot" || extension == "gv" => Format::Graphviz,
        Some(_) | None => Format::Text,
    }
}

pub(super) fn write(module: &Module, format: Format) -> anyhow::Result<Vec<u8>> {
    Ok(match format {
        Format::Text => {
            warn_of_loss(&lost_in_text(module));
            print(module, &PrintOptions::default()).into_bytes()
        }
        Format::StableHlo => {
            warn_of_loss(&lost_in_text(module));
            let written = stablehlo::write(module).context("the module cannot be written as StableHLO")?;
            if !written.lost.is_empty() {
                let lost = written.lost.join(" and ");
                tracing::warn!("StableHLO has no words for {lost}; results do not depend on them");
            }
            written.text.into_bytes()
        }
        Format::Graphviz => graphviz::render(module).into_bytes(),
        Format::Proto => {
            warn_of_attributes(module);
            let bytes = encode::to_bytes(module).context("the module cannot be encoded")?;
            check_read_again(&bytes)?;
            bytes
        }
    })
}

/// Checks that a proto is read here, too; XLA can read larger ones.
fn check_read_again(bytes: &[u8]) -> anyhow::Result<()> {
    if let Err(error) = decode::check_size(bytes) {
        bail!(
            "as a proto it would not be read again: {error}\nhelp: write text: -o with a name that ends in .hlo or .txt"
        );
    }
    Ok(())
}

/// Warns of attributes of a module's text that `HloModuleProto` has no field for. XLA takes them from the compile
/// options.
fn warn_of_attributes(module: &Module) {
    let attributes = &module.unmodelled.attributes;
    let lost = attributes.iter().filter(|(name, value)| !assignment::keeps(name, value));
    let lost: Vec<String> = lost.map(|(name, value)| format!("{name}={value}")).collect();
    if lost.is_empty() {
        return;
    }
    tracing::warn!(
        "the proto leaves out {}, for which XLA's HloModuleProto has no field: who compiles it says so in the options of the \
         compilation\nhelp: text keeps it: -o with a name that ends in .hlo or .txt",
        lost.join(", ")
    );
}

/// The names of a module's parameters, shortened if there are many.
fn parameter_names(module: &Module) -> String {
    const N_NAMED: usize = 8;
    let entry = module.entry();
    let names: Vec<&str> = entry.parameters().into_iter().map(|id| &entry.instr(id).name[..]).collect();
    let more = if names.len() > N_NAMED { format!(", and {} more", names.len() - N_NAMED) } else { String::new() };
    format!("{}{more}", names[..names.len().min(N_NAMED)].join(", "))
}

/// Warns of parts of a module's proto that its text cannot express.
fn warn_of_loss(lost: &[Lost]) {
    /// This many instructions are named; the rest are counted.
    const N_NAMED: usize = 3;
    if lost.is_empty() {
        return;
    }
    let named: Vec<String> = lost
        .iter()
        .take(N_NAMED)
        .map(|Lost { place, opcode, fields }| {
            let fields: Vec<String> = fields.iter().map(u32::to_string).collect();
            format!("{place} ({opcode}: {})", fields.join(", "))
        })
        .collect();
    let rest = lost.len().saturating_sub(N_NAMED);
    tracing::warn!(
        "the text leaves out what HLO text here has no words for, by instruction (opcode: fields of \
         HloInstructionProto): {}{}\nhelp: a proto keeps all of it: -o with a name that ends in .pb",
        named.join(", "),
        if rest > 0 { format!(", and {rest} more") } else { String::new() }
    );
}

/// Replaces a file atomically, like [`files::replace`], with the path in the error.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    files::replace(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Flags of outputs that replace only a file of their own kind, with how such a file starts. A page that is given the
/// name of a data file, of a run's metrics or of an experiment used to replace it.
const KINDS: [(&str, &[u8], &str); 3] =
    [("--html", b"<!DOCTYPE html>", "page"), ("--svg", b"<svg", "picture"), ("--report", b"{", "report")];

/// Refuses an output path that equals another output or an input of the command, is of another kind's file, or is not
/// writable: before the work, not after it.
pub(super) fn check_names(outputs: &[(&str, Option<&Path>)], inputs: &[Option<&Path>]) -> anyhow::Result<()> {
    let named = || outputs.iter().filter_map(|(flag, path)| Some((*flag, (*path)?)));
    for (nth, (flag, path)) in named().enumerate() {
        if inputs.iter().flatten().any(|input| is_same(path, input)) {
            bail!("{flag} names {}, which is read, and would be lost\nhelp: name another file", path.display());
        }
        if let Some((other, _)) = named().take(nth).find(|(_, before)| is_same(path, before)) {
            bail!("{other} and {flag} name one file, {}\nhelp: name two", path.display());
        }
        files::check_replaceable(path).with_context(|| format!("cannot write {}", path.display()))?;
        if let Some((_, start, kind)) = KINDS.iter().find(|(of_flag, ..)| *of_flag == flag) {
            check_kind(path, start, kind).context(flag.to_string())?;
        }
    }
    Ok(())
}

/// Whether two paths name the same file, which need not exist; writing twice to something that is not a regular file is
/// fine.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        if let Ok(place) = path.canonicalize() {
            return place.is_file().then_some(place);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    matches!((place(one), place(other)), (Some(one), Some(other)) if one == other)
}

/// Writes a file that its owner may have edited since it was written: a file of other content is left alone.
pub(super) fn write_anew(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    // A longer file has another content.
    match files::read(path, bytes.len() as u64) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Ok(there) if there == bytes => {}
        Ok(_) | Err(_) => bail!(
            "{} is there, and would be written otherwise: it may have been edited\nhelp: move it away, or name another \
             folder",
            path.display()
        ),
    }
    replace(path, bytes)
}

/// Refuses to overwrite a file of another kind: a module or a model given by mistake would be lost.
pub(super) fn check_kind(path: &Path, start: &[u8], kind: &str) -> anyhow::Result<()> {
    let mut existing = Vec::new();
    // The writer reports a file that cannot be opened.
    if let Ok(file) = files::open(path) {
        file.take(start.len() as u64)
            .read_to_end(&mut existing)
            .with_context(|| format!("cannot read {}", path.display()))?;
    }
    if !existing.is_empty() && existing != start {
        bail!("{} is there, and is not a {kind}\nhelp: remove it, or name another file", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proto of a computation with so many instructions, each without a field.
    fn proto(n_instructions: usize) -> Vec<u8> {
        let mut bytes = vec![(3 << 3) | 2];
        let mut length = 2 * n_instructions;
        while length >= 1 << 7 {
            bytes.push((length % (1 << 7)) as u8 | (1 << 7));
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend([(2 << 3) | 2, 0].repeat(n_instructions));
        bytes
    }

    #[test]
    fn more_instructions_than_a_proto_reads_are_refused_at_the_bound() {
        let is_read = |n_instructions: usize| check_read_again(&proto(n_instructions)).is_ok();
        let (mut most, mut too_many) = (1, 1 << 20);
        assert!(is_read(most) && !is_read(too_many));
        while too_many - most > 1 {
            let middle = most + (too_many - most) / 2;
            match is_read(middle) {
                true => most = middle,
                false => too_many = middle,
            }
        }
        let refused = check_read_again(&proto(too_many)).unwrap_err().to_string();
        let limit = bf16scope_hlo::proto::MAX_BYTES >> 20;
        assert_eq!(
            refused,
            format!(
                "as a proto it would not be read again: the module takes about {limit} MiB of memory, at most {limit} may be \
                 taken for one\nhelp: write text: -o with a name that ends in .hlo or .txt"
            )
        );
        // The decoder has the same bound.
        assert!(refused.contains(&decode::from_bytes(&proto(too_many)).unwrap_err().to_string()));
    }
}
