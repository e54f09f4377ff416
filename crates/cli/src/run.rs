//! `bf16scope run`: any HLO module, or a package, on the CPU, over arrays from a file.

pub(super) mod devices;
mod package;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use serde::Serialize;

use super::arrays::{self, Inputs, Source, Summary, seed};
use super::as_tpu::AsArg;
use super::child::LimitArgs;
use super::class_names::{self, Names};
use super::sizes::SizeArgs;
use super::{Context, Status, emit, excess, failure, module_file, policy, progress};
use crate::report::{self, Column, Screen, Table};
use bf16scope_data::npz::NpzWriter;
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{ArrayShape, Literal};
use bf16scope_pjrt::{Arg, Buffer, Client, CompileOptions, Executable, Platform};

const EXAMPLES: &str = "\
Examples:
  bf16scope run step.hlo.pb --inputs in.npz --outputs out.npz
          arrays in0, in1, ... go in, or arrays named as the parameters are; out0, out1, ... come out
  bf16scope run model.hlo.txt --random 1
          no arrays at hand: floats are drawn from the standard normal distribution, integers from 0 to 7
  bf16scope run digits-package --inputs images.npz --outputs predictions.npz
          a folder that `bf16scope package` made: arrays for the inputs alone, named as package.json names them
  bf16scope run model.hlo.txt --inputs in.npz --random 1 --json
          only what in.npz lacks is drawn at random; the summary is JSON
  bf16scope run sharded.mlir --inputs in.npz --device cpu:8
          a module for 8 devices, on 8 CPU devices: whole arrays go in, are sharded as the module says, and come out whole;
          all replicas get the same arrays, and a result that differs between replicas is written for each

A bf16 parameter takes float32 (which is rounded), uint16 or ml_dtypes' bfloat16 (raw bits); a bf16 result is written as
float32. Every rounding in the module is performed, unless --excess-precision is on; on a TPU it is on for a module, as
`bf16scope compile` reports it.";

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The module: HLO text, a serialized HloModuleProto, or StableHLO; or the folder of a package
    #[arg(value_name = "MODULE|FOLDER")]
    module: PathBuf,
    #[command(flatten)]
    sizes: SizeArgs,
    /// Arrays for the parameters; for a package also any kind of file that the experiment's `data` reads (an image, a folder of
    /// images, CSV, text, records, raw pixels), with any number of examples
    #[arg(short, long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// Where to write the results
    #[arg(short, long, value_name = "FILE.npz")]
    outputs: Option<PathBuf>,
    /// Draw at random what --inputs does not supply
    #[arg(long, value_name = "SEED", value_parser = seed, allow_negative_numbers = true)]
    random: Option<u64>,
    /// Write the bits of bf16 results as uint16, not their values as float32
    #[arg(long, requires = "outputs")]
    raw_bf16: bool,
    /// Whether XLA may leave out roundings to bf16 and f16 between wider operations [default: off; with --device tpu as
    /// `compile` reports it: on for a module]
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    excess_precision: Option<excess::Switch>,
    #[command(flatten)]
    as_tpu: AsArg,
    /// Where it runs: cpu, cpu:N (a module for N devices), tpu, plugin:PATH (any PJRT plugin), or xla-cpu (in builds with the
    /// feature xla)
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: Platform,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    limits: LimitArgs,
}

/// The program, its inputs, and its results.
#[derive(Debug, Serialize)]
struct Outcome {
    module: String,
    allow_excess_precision: bool,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    #[serde(skip)]
    was: Was,
    /// Seconds until it could run.
    compile_seconds: f64,
    run_seconds: f64,
    /// The class name of each example by output, for a package that knows them.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "class_names::serialize")]
    class_names: Names,
    /// Whether arrays went into a package as they are, although it has an experiment.
    #[serde(skip)]
    are_arrays: bool,
}

/// How a program came to the device.
#[derive(Clone, Copy, Debug)]
enum Was {
    Compiled,
    Loaded,
}

impl Was {
    fn word(self) -> &'static str {
        match self {
            Was::Compiled => "compiled",
            Was::Loaded => "loaded",
        }
    }
}

#[derive(Debug, Serialize)]
struct Input {
    parameter: String,
    dtype: &'static str,
    dims: Vec<i64>,
    /// The array's name in the file; `null` if it was drawn.
    array: Option<String>,
}

#[derive(Debug, Serialize)]
struct Output {
    name: String,
    dtype: &'static str,
    dims: Vec<i64>,
    #[serde(flatten)]
    summary: Summary,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    args.as_tpu.check(&args.device)?;
    if args.module.is_dir() && module_file::saved_model(&args.module).is_none() {
        return package::run(args, context);
    }
    emit::check_names(&[("--outputs", args.outputs.as_deref())], &[Some(&args.module), args.inputs.as_deref()])?;
    let module =
        policy::lower_if_asked(module_file::load(&args.module, &args.sizes.converter(context)?)?, &args.module)?;
    let module = args.as_tpu.module(module, &args.module)?;
    let placement = devices::placement(&module, &args.device)
        .with_context(|| format!("{} cannot be run", args.module.display()))?;
    let mut inputs = Inputs::new(&module, args.inputs.as_deref(), args.random)?;
    inputs.check_memory(placement.devices.n() as u64)?;
    // Checked before the work, not after it: the path must be writable, and must not be the module's or a model's.
    if let Some(path) = &args.outputs {
        emit::check_kind(path, b"PK", ".npz archive")?;
    }
    let mut npz = args.outputs.as_deref().map(NpzWriter::create).transpose()?;
    let client = args.limits.client_of_all(&args.device, context)?;
    let allow_excess_precision = excess::to_run(args.excess_precision, &args.device, true);
    let options = CompileOptions {
        allow_excess_precision,
        parameter_is_tupled: arrays::is_tupled(&module),
        ..CompileOptions::over(&placement)
    };
    // Some modules that another XLA has optimised run here; others fail to compile or run.
    let explained = |error| failure::about(error, &module, &args.module);
    let bytes = encode::to_bytes(&module)?;
    let spinner = progress::spinner(format!("compiling {}", args.module.display()), context.quiet);
    let began = Instant::now();
    let executable = {
        let _span = tracing::info_span!("compile").entered();
        let compiled = client.compile(&bytes, &options);
        compiled.with_context(|| format!("{} cannot be compiled", args.module.display())).map_err(explained)?
    };
    let compile_seconds = began.elapsed().as_secs_f64();
    spinner.finish_and_clear();
    drop(bytes);
    let (outputs, run_seconds) = if placement.devices.is_one() {
        let (buffers, run_seconds) = execute(&client, &executable, &mut inputs).map_err(explained)?;
        let whole = buffers.into_iter().map(|buffer| vec![buffer]).collect();
        (results(whole, |_| None, npz.as_mut(), args.raw_bf16).map_err(explained)?, run_seconds)
    } else {
        let shards = devices::shards(&module, placement.devices, &executable);
        let over = devices::Over { module: &module, devices: placement.devices, shards };
        let (found, run_seconds) = over.execute(&client, &executable, &mut inputs).map_err(explained)?;
        let write = |(name, shape, bytes): devices::Found| output(name, shape, &bytes, npz.as_mut(), args.raw_bf16);
        (found.into_iter().map(write).collect::<anyhow::Result<Vec<Output>>>()?, run_seconds)
    };
    npz.map(NpzWriter::finish).transpose()?;
    let outcome = Outcome {
        module: module.name.clone(),
        allow_excess_precision,
        inputs: described(&inputs),
        outputs,
        was: Was::Compiled,
        compile_seconds,
        run_seconds,
        class_names: Vec::new(),
        are_arrays: false,
    };
    say(args, &outcome, context)
}

/// Prints the outcome in the requested form.
fn say(args: &Args, outcome: &Outcome, context: &Context) -> anyhow::Result<Status> {
    match args.json {
        true => context.print_json(outcome)?,
        false => {
            let named = package::classes_line(&outcome.class_names);
            let note = if outcome.are_arrays { package::AS_THEY_ARE } else { "" };
            context.print(&(render(args, outcome, context.screen) + &named + note))?;
        }
    }
    Ok(Status::Ok)
}

/// Reads each result, whose parts are concatenated along its first dim, writes it if requested, and summarises it in a
/// line. A result without a name is `outN`.
fn results(
    parts: Vec<Vec<Buffer>>,
    name_of: impl Fn(usize) -> Option<String>,
    mut npz: Option<&mut NpzWriter>,
    raw_bf16: bool,
) -> anyhow::Result<Vec<Output>> {
    let mut outputs = Vec::new();
    for (position, parts) in parts.into_iter().enumerate() {
        let (mut shape, mut bytes) = (None::<ArrayShape>, Vec::new());
        for buffer in parts {
            let part = ArrayShape::new(buffer.dtype()?, buffer.dims()?);
            bytes.extend(buffer.to_host()?);
            match shape.as_mut().map(|whole| whole.dims.first_mut().zip(part.dims.first())) {
                None => shape = Some(part),
                Some(Some((batch, more))) => *batch += more,
                Some(None) => {}
            }
        }
        let Some(shape) = shape else { continue };
        let name = name_of(position).unwrap_or_else(|| format!("out{position}"));
        outputs.push(output(name, shape, &bytes, npz.as_deref_mut(), raw_bf16)?);
    }
    Ok(outputs)
}

/// Writes a result if requested, and summarises it in a line.
fn output(
    name: String,
    shape: ArrayShape,
    bytes: &[u8],
    npz: Option<&mut NpzWriter>,
    raw_bf16: bool,
) -> anyhow::Result<Output> {
    if let Some(npz) = npz {
        arrays::write(npz, &name, &shape, bytes, raw_bf16)?;
    }
    let summary = arrays::summarize(shape.dtype, bytes);
    Ok(Output { name, dtype: shape.dtype.name(), dims: shape.dims, summary })
}

/// Puts the arguments on the device one by one and runs the program on them once.
fn execute(client: &Client, executable: &Executable, inputs: &mut Inputs) -> anyhow::Result<(Vec<Buffer>, f64)> {
    let _span = tracing::info_span!("execute").entered();
    let mut arguments = Vec::with_capacity(inputs.parameters.len());
    for position in 0..inputs.parameters.len() {
        let Literal::Array { shape, bytes } = inputs.literal(position)? else {
            anyhow::bail!("parameter {position} is not an array: this is a bug of bf16scope");
        };
        // The arguments are not needed afterwards, so results may reuse their memory.
        arguments.push(Arg::Donate(client.buffer_from_host(&bytes, shape.dtype, &shape.dims, 0)?));
    }
    let began = Instant::now();
    let outputs = executable.execute(arguments)?;
    Ok((outputs, began.elapsed().as_secs_f64()))
}

fn described(inputs: &Inputs) -> Vec<Input> {
    let all = inputs.parameters.iter().zip(&inputs.sources);
    all.map(|(parameter, source)| Input {
        parameter: parameter.name.clone(),
        dtype: parameter.shape.dtype.name(),
        dims: parameter.shape.dims.clone(),
        array: match source {
            Source::File(name) => Some(name.clone()),
            Source::Random(_) => None,
        },
    })
    .collect()
}

/// A line about the run, and a row for each result.
fn render(args: &Args, outcome: &Outcome, screen: Screen) -> String {
    let n_drawn = outcome.inputs.iter().filter(|input| input.array.is_none()).count();
    let drawn = if n_drawn > 0 { format!(" ({n_drawn} drawn at random)") } else { String::new() };
    let numbers = ["type", "min", "max", "mean", "NaN", "infinite"].map(Column::number);
    let mut table = Table::new(std::iter::once(Column::name("result")).chain(numbers));
    for Output { name, dtype, dims, summary } in &outcome.outputs {
        let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
        let number = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{value:.6e}"));
        table.row([
            name.clone(),
            format!("{dtype}[{}]", dims.join(",")),
            number(summary.min),
            number(summary.max),
            number(summary.mean),
            summary.n_nan.to_string(),
            summary.n_infinite.to_string(),
        ]);
    }
    format!(
        "{}: {} in{drawn}, {} out; {} in {}, ran in {}\n{}",
        args.module.display(),
        match outcome.inputs.len() {
            1 => "1 array".to_string(),
            n => format!("{n} arrays"),
        },
        outcome.outputs.len(),
        outcome.was.word(),
        report::seconds(outcome.compile_seconds),
        report::seconds(outcome.run_seconds),
        table.render(screen),
    )
}
