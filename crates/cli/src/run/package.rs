//! `bf16scope run FOLDER`: runs a package on arrays for its inputs.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use super::{Args, Input, Outcome, Output, Was, described, output, results, say};
use crate::arrays::{self, Inputs, Parameter};
use crate::class_names::{self, Names};
use crate::eval::first_greatest;
use crate::package::compiler_of;
use crate::{Context, Status, emit, excess, module_file, progress};
use bf16scope_data::npz::NpzWriter;
use bf16scope_data::{Batch, Loader, NamedArray};
use bf16scope_files as files;
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{ArrayShape, DType, Literal, Module};
use bf16scope_model::graph::Precision;
use bf16scope_model::task::Task;
use bf16scope_pjrt::{Arg, Buffer, Client, Executable, Platform};
use bf16scope_train::experiment::Experiment;
use bf16scope_train::package::{self, Manifest, Signature};
use bf16scope_train::predicted_from;

/// Runs a package: each device gets its part of every input, and returns its part of every result.
pub(super) fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let (package, inputs) = Package::read(args, context)?;
    // Names, dtypes and the dims of an example decide what an archive's arrays are, and never the number of examples.
    match (&args.inputs, &package.manifest.experiment) {
        (Some(file), Some(_)) => match input_arrays(file, &inputs, args.random)? {
            Some(arrays) => package.run_on_examples(arrays),
            None => package.run_on_files(file),
        },
        (file, _) => package.run_on_arrays(Inputs::for_parameters(inputs, file.as_deref(), args.random)?),
    }
}

/// The arrays of a file that are these parameters as they are, of any number of examples; `None` if they are not.
fn input_arrays(file: &Path, parameters: &[Parameter], random: Option<u64>) -> anyhow::Result<Option<Inputs>> {
    match file.extension().is_some_and(|ending| ending == "npz") {
        true => Inputs::of_examples(parameters.to_vec(), file, random),
        false => Ok(None),
    }
}

/// A package whose manifest and program are read.
struct Package<'a> {
    args: &'a Args,
    context: &'a Context,
    manifest: Manifest,
    module: Module,
    /// The variables, read from their file when they are needed.
    variables: Inputs,
}

impl<'a> Package<'a> {
    /// Reads a package; also returns the parameters of the program that are no variables, for all devices together.
    fn read(args: &'a Args, context: &'a Context) -> anyhow::Result<(Package<'a>, Vec<Parameter>)> {
        let folder = &args.module;
        args.sizes.refuse(folder)?;
        check_manifest_exists(folder)?;
        ensure!(
            args.excess_precision.is_none(),
            "--excess-precision is for modules: a package is compiled as package.json says on a TPU, and with every \
             rounding performed elsewhere\nhelp: leave it out, or run {} itself",
            folder.join("program.hlo.pb").display()
        );
        let manifest = Manifest::read(folder)?;
        check_n_devices(manifest.n_devices, &args.device)?;
        let program = folder.join(&manifest.program.file);
        let module = module_file::load(&program, &context.converter())?;
        let mut parameters = arrays::parameters(&module)?;
        let n_variables = parameters.len().checked_sub(manifest.inputs.len()).with_context(|| {
            format!("{} has fewer parameters than {} has inputs", program.display(), package::MANIFEST)
        })?;
        let mut inputs = parameters.split_off(n_variables);
        inputs.iter_mut().for_each(|parameter| parameter.of_all(manifest.n_devices));
        let variables = Inputs::for_parameters(parameters, Some(&folder.join(&manifest.variables.file)), None)?;
        Ok((Package { args, context, manifest, module, variables }, inputs))
    }

    /// Runs it once on whole arrays.
    fn run_on_arrays(mut self, mut inputs: Inputs) -> anyhow::Result<Status> {
        let (args, n_devices) = (self.args, self.manifest.n_devices);
        self.variables.check_memory(n_devices as u64)?;
        inputs.check_memory(2)?;
        let mut npz = self.begin_outputs()?;
        let client = self.client()?;
        let spinner = progress::spinner(format!("loading {}", args.module.display()), self.context.quiet);
        let loaded = self.load(&client)?;
        spinner.finish_and_clear();
        let (parts, run_seconds) = execute(&client, &loaded.executable, &mut self.variables, &mut inputs, n_devices)?;
        let name = |position: usize| self.manifest.outputs.get(position).map(|output| output.name.clone());
        let outputs = results(parts, name, npz.as_mut(), args.raw_bf16)?;
        npz.map(NpzWriter::finish).transpose()?;
        say(args, &self.outcome(&loaded, described(&inputs), outputs, run_seconds), self.context)
    }

    /// Runs it on files that its experiment's `data` turn into features, batch by batch.
    fn run_on_files(self, file: &Path) -> anyhow::Result<Status> {
        let experiment = self.experiment()?;
        let path = self.args.module.join(package::EXPERIMENT);
        let source = experiment.read_other(&path, file, &self.context.setup())?;
        let task = experiment.task();
        let features = predicted_from(&*task);
        let named = || format!("{}", self.args.module.display());
        let precision: Precision = self.manifest.precision.parse().with_context(named)?;
        let batch_size = self.batch_size()?;
        let n_examples = usize::try_from(source.n_examples()).unwrap_or(usize::MAX);
        let loader = Loader::new(&*source, &features, precision.compute(), batch_size.min(n_examples), 0)?.strict();
        loader.check()?;
        let input = |input: &Signature| Input {
            parameter: input.name.clone(),
            dtype: precision_name(&input.dtype),
            dims: input.dims.clone(),
            array: Some(file.display().to_string()),
        };
        let inputs = self.manifest.inputs.iter().map(input).collect();
        let batches = loader.in_order().map(|batch| batch.map_err(anyhow::Error::from));
        self.run_batches(&*task, batches, inputs, false)
    }

    /// Runs it on arrays that are its inputs as they are, of any number of examples, batch by batch.
    fn run_on_examples(self, mut arrays: Inputs) -> anyhow::Result<Status> {
        let task = self.experiment()?.task();
        arrays.check_memory(2)?;
        let mut wholes = Vec::new();
        for (position, input) in self.manifest.inputs.iter().enumerate() {
            let Literal::Array { shape, bytes } = arrays.literal(position)? else {
                bail!("parameter {position} is not an array: this is a bug of bf16scope");
            };
            wholes.push(NamedArray { name: input.name.clone(), dtype: shape.dtype, dims: shape.dims, bytes });
        }
        let batches = cut(&wholes, self.batch_size()?).map(Ok);
        self.run_batches(&*task, batches, described(&arrays), true)
    }

    /// Runs it on batches, and concatenates their results.
    fn run_batches(
        mut self,
        task: &dyn Task,
        batches: impl Iterator<Item = anyhow::Result<Batch>>,
        inputs: Vec<Input>,
        are_arrays: bool,
    ) -> anyhow::Result<Status> {
        let args = self.args;
        let batch_size = self.batch_size()?;
        let mut npz = self.begin_outputs()?;
        let client = self.client()?;
        let loaded = self.load(&client)?;
        let began = Instant::now();
        let (manifest, executable) = (&self.manifest, &loaded.executable);
        let variables = on_all_devices(&client, &mut self.variables, manifest.n_devices)?;
        let runner = Batches { client: &client, executable, manifest, variables, batch_size };
        let mut wholes: Vec<Option<Whole>> = manifest.outputs.iter().map(|_| None).collect();
        for batch in batches {
            runner.run(&batch?, &mut wholes)?;
        }
        let run_seconds = began.elapsed().as_secs_f64();
        let class_names = class_names(task, manifest, &wholes);
        let named = manifest.outputs.iter().zip(wholes).filter_map(|(signature, whole)| Some((signature, whole?)));
        let write = |(signature, whole): (&Signature, Whole)| {
            output(signature.name.clone(), whole.shape, &whole.bytes, npz.as_mut(), args.raw_bf16)
        };
        let outputs = named.map(write).collect::<anyhow::Result<Vec<_>>>()?;
        npz.map(NpzWriter::finish).transpose()?;
        let outcome = Outcome { class_names, are_arrays, ..self.outcome(&loaded, inputs, outputs, run_seconds) };
        say(args, &outcome, self.context)
    }

    /// The experiment in the package, with what its run learnt.
    fn experiment(&self) -> anyhow::Result<Experiment> {
        let path = self.args.module.join(package::EXPERIMENT);
        Ok(Experiment::read(&path)?.with_learnt(self.manifest.learnt.as_ref()))
    }

    /// The examples in a batch of all devices.
    fn batch_size(&self) -> anyhow::Result<usize> {
        let of_device = self.manifest.inputs.first().and_then(|input| input.dims.first()).copied().unwrap_or(1);
        Ok((usize::try_from(of_device)? * self.manifest.n_devices).max(1))
    }

    /// Creates the requested archive of results. Before the work: the path must be writable.
    fn begin_outputs(&self) -> anyhow::Result<Option<NpzWriter>> {
        let Some(path) = &self.args.outputs else { return Ok(None) };
        emit::check_kind(path, b"PK", ".npz archive")?;
        Ok(Some(NpzWriter::create(path)?))
    }

    fn client(&self) -> anyhow::Result<Client> {
        let args = self.args;
        Ok(args.as_tpu.client(args.limits.client_of_all(&args.device, self.context)?))
    }

    /// The package's executable if this device can run it, otherwise its program, compiled here.
    fn load(&self, client: &Client) -> anyhow::Result<Loaded> {
        let began = Instant::now();
        let program = encode::to_bytes(&self.module)?;
        let (executable, was) = load(self.args, &self.manifest, client, &program, self.context)?;
        Ok(Loaded { executable, was, seconds: began.elapsed().as_secs_f64() })
    }

    fn outcome(&self, loaded: &Loaded, inputs: Vec<Input>, outputs: Vec<Output>, run_seconds: f64) -> Outcome {
        Outcome {
            module: self.module.name.clone(),
            allow_excess_precision: excess::to_run(None, &self.args.device, self.manifest.excess_precision),
            inputs,
            outputs,
            was: loaded.was,
            compile_seconds: loaded.seconds,
            run_seconds,
            class_names: Vec::new(),
            are_arrays: false,
        }
    }
}

fn check_manifest_exists(folder: &Path) -> anyhow::Result<()> {
    ensure!(
        folder.join(package::MANIFEST).exists(),
        "{} is a folder without {}, so it is not a package\nhelp: name a module, or make a package with `bf16scope package`",
        folder.display(),
        package::MANIFEST
    );
    Ok(())
}

/// Refuses a CPU with fewer devices than the package is for.
fn check_n_devices(n_devices: usize, device: &Platform) -> anyhow::Result<()> {
    let n_available = device.n_devices().map_or(1, |n| n as usize);
    ensure!(
        n_available >= n_devices || *device.name() != *"cpu" && !device.name().starts_with("cpu:"),
        "the package is for {n_devices} devices, and {device} has {n_available}\nhelp: --device cpu:{n_devices}"
    );
    Ok(())
}

/// An executable, and how long it took to get it.
struct Loaded {
    executable: Executable,
    was: Was,
    seconds: f64,
}

/// A result over all examples.
struct Whole {
    shape: ArrayShape,
    bytes: Vec<u8>,
}

/// Whole arrays in batches of `batch_size` examples; the last may be shorter.
fn cut(wholes: &[NamedArray], batch_size: usize) -> impl Iterator<Item = Batch> + '_ {
    let n_examples = wholes.first().and_then(|array| array.dims.first()).map_or(0, |&n| n.unsigned_abs() as usize);
    (0..n_examples).step_by(batch_size).map(move |at| {
        let n_valid = batch_size.min(n_examples - at);
        let part = |whole: &NamedArray| {
            let n_bytes = whole.bytes.len() / n_examples;
            let mut dims = whole.dims.clone();
            dims[0] = n_valid as i64;
            let bytes = whole.bytes[at * n_bytes..][..n_valid * n_bytes].to_vec();
            NamedArray { name: whole.name.clone(), dtype: whole.dtype, dims, bytes }
        };
        Batch { arrays: wholes.iter().map(part).collect(), n_valid }
    })
}

/// Variables as buffers on each device.
fn on_all_devices(client: &Client, variables: &mut Inputs, n_devices: usize) -> anyhow::Result<Vec<Vec<Buffer>>> {
    let mut buffers: Vec<Vec<Buffer>> = (0..n_devices).map(|_| Vec::new()).collect();
    for position in 0..variables.parameters.len() {
        let Literal::Array { shape, bytes } = variables.literal(position)? else {
            bail!("parameter {position} is not an array: this is a bug of bf16scope");
        };
        for (device, buffers) in buffers.iter_mut().enumerate() {
            buffers.push(client.buffer_from_host(&bytes, shape.dtype, &shape.dims, device)?);
        }
    }
    Ok(buffers)
}

/// A package's program, run batch by batch.
struct Batches<'a> {
    client: &'a Client,
    executable: &'a Executable,
    manifest: &'a Manifest,
    /// The variables on each device.
    variables: Vec<Vec<Buffer>>,
    /// The examples in a batch of all devices.
    batch_size: usize,
}

impl Batches<'_> {
    /// Runs a batch, and appends its results to those of the batches before.
    fn run(&self, batch: &Batch, wholes: &mut [Option<Whole>]) -> anyhow::Result<()> {
        let results = self.executable.execute_sharded(self.arguments(batch)?)?;
        for (position, whole) in wholes.iter_mut().enumerate() {
            let Some(Whole { shape, bytes }) = self.result(&results, position, batch.n_valid)? else { continue };
            match whole {
                None => *whole = Some(Whole { shape, bytes }),
                Some(whole) => {
                    whole.shape.dims[0] += shape.dims[0];
                    whole.bytes.extend(bytes);
                }
            }
        }
        Ok(())
    }

    /// Each device's arguments: the variables, and its part of the batch.
    fn arguments(&self, batch: &Batch) -> anyhow::Result<Vec<Vec<Arg<'_>>>> {
        let mut lists: Vec<Vec<Arg<'_>>> =
            self.variables.iter().map(|variables| variables.iter().map(Arg::Keep).collect()).collect();
        for input in &self.manifest.inputs {
            let array = batch.arrays.iter().find(|array| array.name == input.name);
            let array = array.with_context(|| format!("the experiment reads no `{}`", input.name))?;
            // The last batch, or the only one, may be shorter than the program's: it is padded with zeros.
            let n_rows = usize::try_from(array.dims.first().copied().unwrap_or(1).max(1))?;
            let mut bytes = array.bytes.clone();
            bytes.resize(array.bytes.len() / n_rows * self.batch_size, 0);
            let n_bytes = bytes.len() / self.manifest.n_devices;
            for (device, list) in lists.iter_mut().enumerate() {
                let part = &bytes[device * n_bytes..][..n_bytes];
                list.push(Arg::Donate(self.client.buffer_from_host(part, array.dtype, &input.dims, device)?));
            }
        }
        Ok(lists)
    }

    /// A result of the batch's valid examples: the devices' parts, concatenated.
    fn result(&self, results: &[Vec<Buffer>], position: usize, n_valid: usize) -> anyhow::Result<Option<Whole>> {
        let mut bytes = Vec::new();
        let mut shape = None;
        for device in results {
            let buffer = device.get(position).context("the program gives fewer results than the manifest has")?;
            bytes.extend(buffer.to_host()?);
            shape = Some(ArrayShape::new(buffer.dtype()?, buffer.dims()?));
        }
        let Some(mut shape) = shape else { return Ok(None) };
        bytes.truncate(bytes.len() / self.batch_size * n_valid);
        shape.dims[0] = n_valid as i64;
        Ok(Some(Whole { shape, bytes }))
    }
}

/// The line that tells how arrays went into a package whose experiment would have changed other files.
pub(super) const AS_THEY_ARE: &str =
    "the arrays are the package's inputs and went in as they are: `data` of its experiment was not applied\n";

/// A line with the classes of the first examples, for each output that has them.
pub(super) fn classes_line(outputs: &[(String, Vec<String>)]) -> String {
    const N_SHOWN: usize = 20;
    let line = |(output, names): &(String, Vec<String>)| {
        let rest = if names.len() > N_SHOWN { format!(", … ({} in all)", names.len()) } else { String::new() };
        let title = if outputs.len() == 1 { "classes" } else { output.as_str() };
        format!("{title}: {}{rest}\n", names.iter().take(N_SHOWN).cloned().collect::<Vec<_>>().join(", "))
    };
    outputs.iter().map(line).collect()
}

fn precision_name(dtype: &str) -> &'static str {
    DType::ALL.iter().map(|dtype| dtype.name()).find(|name| *name == dtype).unwrap_or("f32")
}

/// The class name of each example, of each output whose label has names.
fn class_names(task: &dyn Task, manifest: &Manifest, wholes: &[Option<Whole>]) -> Names {
    let by_output = class_names::of_outputs(task, &manifest.classes);
    let of_output = |(output, names): &(String, Vec<String>)| {
        let fits = |(_, Whole { shape, .. }): &(&Signature, &Whole)| {
            shape.dtype == DType::F32 && matches!(shape.dims[..], [_, n] if n as usize == names.len())
        };
        let results = || manifest.outputs.iter().zip(wholes).filter_map(|(it, whole)| Some((it, whole.as_ref()?)));
        let called = results().find(|(signature, _)| signature.name == *output);
        // A single output may have any name.
        let (_, Whole { bytes, .. }) = called.filter(fits).or_else(|| match by_output.len() {
            1 => results().find(fits),
            _ => None,
        })?;
        let name = |row: &[u8]| names[first_greatest(row)].clone();
        Some((output.clone(), bytes.chunks_exact(4 * names.len().max(1)).map(name).collect()))
    };
    by_output.iter().filter_map(of_output).collect()
}

/// The package's executable if this device can run it, otherwise `program`, compiled here.
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
    for (arrays, n_parts) in [(variables, 1), (inputs, n_devices)] {
        for position in 0..arrays.parameters.len() {
            let Literal::Array { shape, bytes } = arrays.literal(position)? else {
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
