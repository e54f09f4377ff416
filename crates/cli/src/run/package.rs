//! `bf16scope run FOLDER`: runs a package on arrays for its inputs.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use super::{Args, Input, Outcome, Was, described, output, results, say};
use crate::arrays::{self, Inputs};
use crate::eval::first_greatest;
use crate::package::compiler_of;
use crate::{Context, Status, emit, excess, module_file, progress};
use bf16scope_data::Loader;
use bf16scope_data::npz::NpzWriter;
use bf16scope_files as files;
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{ArrayShape, DType, Literal, Module};
use bf16scope_model::graph::Precision;
use bf16scope_pjrt::{Arg, Buffer, Client, Executable};
use bf16scope_train::experiment::Experiment;
use bf16scope_train::package::{self, Manifest};
use bf16scope_train::predicted_from;

/// Runs a package: each device gets its part of every input, and returns its part of every result.
pub(super) fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let folder = &args.module;
    args.sizes.refuse(folder)?;
    if !folder.join(package::MANIFEST).exists() {
        bail!(
            "{} is a folder without {}, so it is not a package\nhelp: name a module, or make a package with `bf16scope package`",
            folder.display(),
            package::MANIFEST
        );
    }
    ensure!(
        args.excess_precision.is_none(),
        "--excess-precision is for modules: a package is compiled as package.json says on a TPU, and with every rounding \
         performed elsewhere\nhelp: leave it out, or run {} itself",
        folder.join("program.hlo.pb").display()
    );
    let manifest = Manifest::read(folder)?;
    let n_devices = manifest.n_devices;
    let n_available = args.device.n_devices().map_or(1, |n| n as usize);
    ensure!(
        n_available >= n_devices || *args.device.name() != *"cpu" && !args.device.name().starts_with("cpu:"),
        "the package is for {n_devices} devices, and {} has {n_available}\nhelp: --device cpu:{n_devices}",
        args.device
    );
    let program = folder.join(&manifest.program.file);
    let module = module_file::load(&program, &context.converter())?;
    let mut parameters = arrays::parameters(&module)?;
    let n_variables = parameters
        .len()
        .checked_sub(manifest.inputs.len())
        .with_context(|| format!("{} has fewer parameters than {} has inputs", program.display(), package::MANIFEST))?;
    let mut whole = parameters.split_off(n_variables);
    for parameter in &mut whole {
        parameter.of_all(n_devices);
    }
    let variables_file = folder.join(&manifest.variables.file);
    let mut variables = Inputs::for_parameters(parameters, Some(&variables_file), None)?;
    if let (Some(file), Some(_)) = (&args.inputs, &manifest.experiment)
        && (!is_npz(file)
            || Inputs::for_parameters(whole.clone(), Some(file), args.random)
                .and_then(|mut inputs| inputs.check_all())
                .is_err())
    {
        return of_files(args, context, &manifest, &module, &mut variables, file);
    }
    let mut inputs = Inputs::for_parameters(whole, args.inputs.as_deref(), args.random)?;
    variables.check_memory(n_devices as u64)?;
    inputs.check_memory(2)?;
    if let Some(path) = &args.outputs {
        emit::check_kind(path, b"PK", ".npz archive")?;
    }
    let mut npz = args.outputs.as_deref().map(NpzWriter::create).transpose()?;
    let client = args.as_tpu.client(args.limits.client_of_all(&args.device, context)?);
    let spinner = progress::spinner(format!("loading {}", folder.display()), context.quiet);
    let began = Instant::now();
    let (executable, was) = load(args, &manifest, &client, &encode::to_bytes(&module)?, context)?;
    let compile_seconds = began.elapsed().as_secs_f64();
    spinner.finish_and_clear();
    let (parts, run_seconds) = execute(&client, &executable, &mut variables, &mut inputs, n_devices)?;
    let names: Vec<String> = manifest.outputs.iter().map(|output| output.name.clone()).collect();
    let outputs = results(parts, |position| names.get(position).cloned(), npz.as_mut(), args.raw_bf16)?;
    npz.map(NpzWriter::finish).transpose()?;
    let outcome = Outcome {
        module: module.name.clone(),
        allow_excess_precision: excess::to_run(None, &args.device, manifest.excess_precision),
        inputs: described(&inputs),
        outputs,
        was,
        compile_seconds,
        run_seconds,
        class_names: Vec::new(),
    };
    say(args, &outcome, context)
}

fn is_npz(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "npz")
}

/// A line with the classes predicted most.
pub(super) fn classes_line(names: &[String]) -> String {
    const N_SHOWN: usize = 20;
    if names.is_empty() {
        return String::new();
    }
    let rest = if names.len() > N_SHOWN { format!(", … ({} in all)", names.len()) } else { String::new() };
    format!("classes: {}{rest}\n", names.iter().take(N_SHOWN).cloned().collect::<Vec<_>>().join(", "))
}

/// Runs a package on files that its experiment's `data` turn into features, batch by batch.
fn of_files(
    args: &Args,
    context: &Context,
    manifest: &Manifest,
    module: &Module,
    variables: &mut Inputs,
    file: &Path,
) -> anyhow::Result<Status> {
    let folder = &args.module;
    let path = folder.join(package::EXPERIMENT);
    let experiment = Experiment::read(&path)?.with_learnt(manifest.learnt.as_ref());
    let source = experiment.read_other(&path, file, &context.setup())?;
    let features = predicted_from(&*experiment.task());
    let precision: Precision = manifest.precision.parse().with_context(|| format!("{}", folder.display()))?;
    let n_devices = manifest.n_devices;
    let of_device = manifest.inputs.first().and_then(|input| input.dims.first()).copied().unwrap_or(1);
    let batch_size = usize::try_from(of_device)? * n_devices;
    let n_examples = usize::try_from(source.n_examples()).unwrap_or(usize::MAX);
    let loader = Loader::new(&*source, &features, precision.compute(), batch_size.min(n_examples), 0)?.strict();
    loader.check()?;
    if let Some(path) = &args.outputs {
        emit::check_kind(path, b"PK", ".npz archive")?;
    }
    let mut npz = args.outputs.as_deref().map(NpzWriter::create).transpose()?;
    let client = args.as_tpu.client(args.limits.client_of_all(&args.device, context)?);
    let began = Instant::now();
    let (executable, was) = load(args, manifest, &client, &encode::to_bytes(module)?, context)?;
    let compile_seconds = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let mut held: Vec<Vec<Buffer>> = (0..n_devices).map(|_| Vec::new()).collect();
    for position in 0..variables.parameters.len() {
        let Literal::Array { shape, bytes } = variables.literal(position)? else {
            bail!("parameter {position} is not an array: this is a bug of bf16scope");
        };
        for (device, held) in held.iter_mut().enumerate() {
            held.push(client.buffer_from_host(&bytes, shape.dtype, &shape.dims, device)?);
        }
    }
    let mut outputs: Vec<Option<(ArrayShape, Vec<u8>)>> = manifest.outputs.iter().map(|_| None).collect();
    for batch in loader.in_order() {
        let batch = batch?;
        let mut lists: Vec<Vec<Arg<'_>>> = held.iter().map(|held| held.iter().map(Arg::Keep).collect()).collect();
        for input in &manifest.inputs {
            let array = batch.arrays.iter().find(|array| array.name == input.name);
            let array = array.with_context(|| format!("the experiment reads no `{}`", input.name))?;
            // The last batch, or the only one, may be shorter than the program's: it is padded with zeros.
            let n_rows = usize::try_from(array.dims.first().copied().unwrap_or(1).max(1))?;
            let mut bytes = array.bytes.clone();
            bytes.resize(array.bytes.len() / n_rows * batch_size, 0);
            let n_bytes = bytes.len() / n_devices;
            for (device, list) in lists.iter_mut().enumerate() {
                let part = &bytes[device * n_bytes..][..n_bytes];
                list.push(Arg::Donate(client.buffer_from_host(part, array.dtype, &input.dims, device)?));
            }
        }
        let results = executable.execute_sharded(lists)?;
        for (position, whole) in outputs.iter_mut().enumerate() {
            let mut bytes = Vec::new();
            let mut shape = None;
            for device in &results {
                let buffer = device.get(position).context("the program gives fewer results than the manifest has")?;
                bytes.extend(buffer.to_host()?);
                shape = Some(ArrayShape::new(buffer.dtype()?, buffer.dims()?));
            }
            let Some(mut shape) = shape else { continue };
            bytes.truncate(bytes.len() / (usize::try_from(of_device)? * n_devices) * batch.n_valid);
            shape.dims[0] = batch.n_valid as i64;
            match whole {
                None => *whole = Some((shape, bytes)),
                Some((whole, all)) => {
                    whole.dims[0] += shape.dims[0];
                    all.extend(bytes);
                }
            }
        }
    }
    let run_seconds = began.elapsed().as_secs_f64();
    let class_names = class_names(manifest, &outputs);
    let names = manifest.outputs.iter().map(|output| output.name.clone());
    let written = names.zip(outputs).filter_map(|(name, whole)| Some((name, whole?)));
    let outputs = written.map(|(name, (shape, bytes))| output(name, shape, &bytes, npz.as_mut(), args.raw_bf16));
    let outputs = outputs.collect::<anyhow::Result<Vec<_>>>()?;
    npz.map(NpzWriter::finish).transpose()?;
    let input = |input: &package::Signature| Input {
        parameter: input.name.clone(),
        dtype: precision_name(&input.dtype),
        dims: input.dims.clone(),
        array: Some(file.display().to_string()),
    };
    let outcome = Outcome {
        module: module.name.clone(),
        allow_excess_precision: excess::to_run(None, &args.device, manifest.excess_precision),
        inputs: manifest.inputs.iter().map(input).collect(),
        outputs,
        was,
        compile_seconds,
        run_seconds,
        class_names,
    };
    say(args, &outcome, context)
}

fn precision_name(dtype: &str) -> &'static str {
    DType::ALL.iter().map(|dtype| dtype.name()).find(|name| *name == dtype).unwrap_or("f32")
}

/// The class name of each example, if `logits` belong to the only label with names.
fn class_names(manifest: &Manifest, outputs: &[Option<(ArrayShape, Vec<u8>)>]) -> Vec<String> {
    let mut labels = manifest.classes.values();
    let (Some(names), None) = (labels.next(), labels.next()) else { return Vec::new() };
    let of_classes = |(shape, _): &&(ArrayShape, Vec<u8>)| {
        shape.dtype == DType::F32 && matches!(shape.dims[..], [_, n] if n as usize == names.len())
    };
    let Some((_, bytes)) = outputs.iter().flatten().find(of_classes) else { return Vec::new() };
    let name = |row: &[u8]| names[first_greatest(row)].clone();
    bytes.chunks_exact(4 * names.len().max(1)).map(name).collect()
}

/// The package's executable if this device can run it, otherwise its program, compiled here.
fn load(
    args: &Args,
    manifest: &Manifest,
    client: &Client,
    program: &[u8],
    context: &Context,
) -> anyhow::Result<(Executable, Was)> {
    let excess_precision = excess::to_run(None, &args.device, manifest.excess_precision);
    let options = package::options(manifest.n_devices, excess_precision);
    let compiled_here = || {
        let executable = client.compile(program, &options).context("the package's program cannot be compiled")?;
        Ok((executable, Was::Compiled))
    };
    // An executable already has its own arithmetic.
    let is_loadable = args.as_tpu.arithmetic().is_none();
    let Some(built) = manifest.executable.as_ref().filter(|_| is_loadable) else { return compiled_here() };
    let shown = args.module.join(&built.part.file);
    if let Some(difference) = built.differs(&compiler_of(&args.device, client, &context.setup())?) {
        tracing::warn!("{} is not used, and the program is compiled again: {difference}", shown.display());
        return compiled_here();
    }
    let bytes = files::read(&shown, built.part.n_bytes).with_context(|| format!("cannot read {}", shown.display()))?;
    match client.load(&bytes, program, &options, None) {
        Ok(executable) => Ok((executable, Was::Loaded)),
        Err(error) => {
            tracing::warn!("{} cannot be loaded, and the program is compiled again: {error}", shown.display());
            compiled_here()
        }
    }
}

/// Runs it once on each device; returns for each result the parts in the devices' order.
fn execute(
    client: &Client,
    executable: &Executable,
    variables: &mut Inputs,
    inputs: &mut Inputs,
    n_devices: usize,
) -> anyhow::Result<(Vec<Vec<Buffer>>, f64)> {
    let mut lists: Vec<Vec<Arg<'_>>> = (0..n_devices).map(|_| Vec::new()).collect();
    for (of, n_parts) in [(variables, 1), (inputs, n_devices)] {
        for position in 0..of.parameters.len() {
            let Literal::Array { shape, bytes } = of.literal(position)? else {
                bail!("parameter {position} is not an array: this is a bug of bf16scope");
            };
            let mut dims = shape.dims.clone();
            if let Some(batch) = dims.first_mut() {
                *batch /= n_parts as i64;
            }
            let n_bytes = bytes.len() / n_parts;
            for (device, list) in lists.iter_mut().enumerate() {
                let at = if n_parts == 1 { 0 } else { device * n_bytes };
                let part = &bytes[at..at + n_bytes];
                list.push(Arg::Donate(client.buffer_from_host(part, shape.dtype, &dims, device)?));
            }
        }
    }
    let began = Instant::now();
    let mut outputs = executable.execute_sharded(lists)?;
    let run_seconds = began.elapsed().as_secs_f64();
    // By result, not by device.
    outputs.iter_mut().for_each(|list| list.reverse());
    let n_outputs = outputs.first().map_or(0, Vec::len);
    let by_result = (0..n_outputs).map(|_| outputs.iter_mut().filter_map(Vec::pop).collect()).collect();
    Ok((by_result, run_seconds))
}
