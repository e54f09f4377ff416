//! Device operations that all programs of a session share: compiling, uploading, running on a batch, reading results.

use super::accumulation::whole;
use super::checkpoint::Array;
use super::error::{TrainError, TrainErrorKind, TrainPlace};
use super::hosts::{Exchange, Site};
use super::memory::memory_of_machine;
use super::program::{Reported, TaskProgram, Weighting};
use super::spec::Spec;
use super::totals::{Sum, Totals};
use bf16scope_data::feature::Outside;
use bf16scope_data::transpose::examples_last;
use bf16scope_data::{Batch, Feature, NamedArray};
use bf16scope_hlo::element::f64s;
use bf16scope_hlo::{ArrayShape, DType, Literal, Module, proto, verify};
use bf16scope_model::graph::{Init, InputInfo, VariableInfo};
use bf16scope_model::optim::Average;
use bf16scope_model::task::Value;
use bf16scope_pjrt::{Arg, Buffer, Client, Executable};
use std::borrow::Cow;
use std::sync::Arc;

/// Verifies, encodes and compiles a module for the first device of `client`.
///
/// # Errors
/// Where the module does not verify, or the plugin refuses it.
pub fn compile(client: &Client, module: &Module) -> Result<Executable, TrainError> {
    compile_for(client, module, &Site::alone(client))
}

/// Verifies, encodes and compiles a module for the devices of a site.
fn compile_for(client: &Client, module: &Module, site: &Site) -> Result<Executable, TrainError> {
    let _span = tracing::info_span!("compile", module = module.name).entered();
    verify::verify(module)?;
    let bytes = proto::encode::to_bytes(module)?;
    Ok(client.compile(&bytes, &site.options())?)
}

/// A compiled program of a task that runs on batches.
#[derive(Debug)]
pub(super) struct Loaded {
    pub client: Client,
    pub executable: Executable,
    /// Its variables, in the program's order.
    pub variables: Vec<VariableInfo>,
    inputs: Vec<InputInfo>,
    /// Its results after the state: names and shapes.
    results: Vec<(String, ArrayShape)>,
    reported: Vec<Reported>,
    scalars: Vec<(String, usize)>,
    names: Arc<[(String, Value)]>,
    features: Vec<Feature>,
    /// Examples uploaded for a call, over all its steps and all replicas of this host.
    n_examples: usize,
    /// Steps that a call makes; if not 1, results have a leading axis of this size.
    n_steps: usize,
    /// The replicas that run it, each on its part of a batch.
    pub site: Site,
}

impl Loaded {
    /// Compiles a program whose first `n_state` results are state, for batches of `batch` examples per step, split over
    /// the replicas.
    pub fn new(
        client: &Client,
        program: TaskProgram,
        n_state: usize,
        features: Vec<Feature>,
        batch: u32,
        site: Site,
    ) -> Result<Loaded, TrainError> {
        let executable = compile_for(client, &program.program.module, &site)?;
        let TaskProgram { program, reported, scalars, n_steps } = program;
        let n_steps = n_steps.get() as usize;
        let n_examples = batch as usize / site.n_hosts as usize * n_steps;
        let entry = program.module.entry();
        let shapes = entry.instr(entry.root).operands.iter().map(|&id| entry.instr(id).shape.clone());
        let shapes = shapes.map(|shape| ArrayShape::new(shape.dtype().unwrap_or(DType::F32), shape.dims().to_vec()));
        let results = program.outputs.iter().cloned().zip(shapes).skip(n_state).collect();
        let names = reported.iter().map(|reported| (reported.name.clone(), reported.value)).collect();
        Ok(Loaded {
            client: client.clone(),
            executable,
            variables: program.variables,
            inputs: program.inputs,
            results,
            reported,
            scalars,
            names,
            features,
            n_examples,
            n_steps,
            site,
        })
    }

    /// Empty totals with the names that this program reports.
    pub fn no_totals(&self) -> Totals {
        Totals::new(Arc::clone(&self.names))
    }

    /// Checks that the program takes this batch. `is_padded` allows padding, which training does not. Labels are looked
    /// at here too, though a loader has done so, because a batch may be made by anybody, and its labels are few numbers.
    pub fn check(&self, batch: &Batch, step: u64, is_padded: bool) -> Result<(), TrainError> {
        let same = |measured: String, expected: String| match measured == expected {
            true => Ok(()),
            false => Err(TrainError::batch(step, &measured, &expected)),
        };
        let n = self.n_examples;
        match is_padded {
            true if (1..=n).contains(&batch.n_valid) => {}
            true => same(format!("{} valid examples", batch.n_valid), format!("1 to {n} valid examples"))?,
            false => same(format!("{} valid examples", batch.n_valid), format!("{n} valid examples"))?,
        }
        for input in self.inputs.iter().filter(|input| !is_ours(input)) {
            let shape = ArrayShape::new(input.dtype, whole(&input.dims_of_batch(), self.site.n_here() as u32));
            let expected = format!("{} {shape}", input.name);
            let Some(array) = find(batch, &input.name) else {
                let names: Vec<&str> = batch.arrays.iter().map(|array| array.name.as_str()).collect();
                return same(format!("only {}", names.join(", ")), expected);
            };
            same(format!("{} {}", array.name, ArrayShape::new(array.dtype, array.dims.clone())), expected)?;
            let n_bytes = shape.n_elements() as usize * shape.dtype.n_bytes();
            same(
                format!("{} bytes of {}", array.bytes.len(), input.name),
                format!("{n_bytes} bytes of {}", input.name),
            )?;
            let feature = self.features.iter().find(|feature| feature.name == input.name);
            if let Some(outside) = feature.and_then(|feature| feature.first_outside(array.dtype, &array.bytes)) {
                let per_example = (array.bytes.len() / array.dtype.n_bytes() / n.max(1)).max(1);
                let Outside { element, value, expected } = outside;
                let measured = format!("{} {value} at example {}", array.name, element / per_example);
                return Err(TrainError::batch(step, &measured, &format!("{} {expected}", input.name)));
            }
            let array_of = |name: &str| find(batch, name).map(|array| (array.dtype, &array.bytes[..]));
            if let Some(misfit) = feature.and_then(|feature| feature.first_misfit(batch.n_valid, array_of)) {
                let measured = format!("{} of example {} with {}", array.name, misfit.example, misfit.in_words());
                return Err(TrainError::batch(step, &measured, &format!("at most {}", misfit.n_steps)));
            }
        }
        Ok(())
    }

    /// Uploads this host's part of a batch to the devices of all its replicas. The step count is left out: it is only
    /// known when the step is made.
    ///
    /// # Errors
    /// A batch that the program does not take; a failure of the plugin.
    pub fn put(&self, batch: &Batch, step: u64, is_padded: bool) -> Result<Fed, TrainError> {
        self.check(batch, step, is_padded)?;
        let parts =
            (0..self.site.n_devices_here()).map(|device| self.upload(batch, device)).collect::<Result<_, _>>()?;
        Ok(Fed { parts, n_valid: batch.n_valid * self.site.n_hosts as usize })
    }

    /// The inputs of a device of this host in the program's order: its part of a batch, and the step count.
    pub fn inputs(&self, part: Vec<Option<Buffer>>, step: i32, number: usize) -> Result<Vec<Buffer>, TrainError> {
        let count = |input: &InputInfo| {
            let device = self.site.device(number);
            Ok(self.client.buffer_from_host(&step.to_le_bytes(), input.dtype, &input.dims, device)?)
        };
        self.inputs.iter().zip(part).map(|(input, buffer)| buffer.map_or_else(|| count(input), Ok)).collect()
    }

    /// Uploads a device's part of the batch, in the order of the program's inputs; `None` in the place of the step
    /// count.
    fn upload(&self, batch: &Batch, number: usize) -> Result<Vec<Option<Buffer>>, TrainError> {
        let n_partitions = self.site.n_partitions as usize;
        let (replica, partition) = (number / n_partitions, number % n_partitions);
        let upload = |input: &InputInfo| {
            let ours;
            let bytes: Cow<'_, [u8]> = match input.name.as_str() {
                "step" => return Ok(None),
                "weight" => {
                    let weight = |example| if example < batch.n_valid { 1.0f32 } else { 0.0 };
                    ours = (0..self.n_examples).flat_map(|example| weight(example).to_le_bytes()).collect::<Vec<u8>>();
                    self.part(&ours, replica)
                }
                name => self.part(&find(batch, name).expect("a batch that was checked has it").bytes, replica),
            };
            let bytes = match &input.transposed {
                None => bytes,
                Some(step) => {
                    let n_bytes = bytes.len() / self.n_steps;
                    let turned = |step_bytes| examples_last(step_bytes, step[0] as usize, input.dtype.n_bytes());
                    bytes.chunks_exact(n_bytes.max(1)).flat_map(turned).collect::<Vec<u8>>().into()
                }
            };
            let device = self.site.device(number);
            let (bytes, dims) = match self.site.part(&input.name, &input.dims) {
                None => (bytes, input.dims.clone()),
                Some(part) => {
                    let cut = part.cut(&bytes, &input.dims, input.dtype.n_bytes(), partition);
                    (cut.into(), part.dims(&input.dims))
                }
            };
            Ok(Some(self.client.buffer_from_host(&bytes, input.dtype, &dims, device)?))
        };
        self.inputs.iter().map(upload).collect()
    }

    /// A replica's examples of each step, cut out of the bytes for all replicas.
    fn part<'a>(&self, bytes: &'a [u8], replica: usize) -> Cow<'a, [u8]> {
        let of_step = bytes.len() / self.n_steps;
        let size = of_step / self.site.n_here();
        let part = |step: usize| &bytes[step * of_step + replica * size..][..size];
        match (self.site.n_here(), self.n_steps) {
            (1, _) => bytes.into(),
            (_, 1) => part(0).into(),
            (_, n) => (0..n).flat_map(part).copied().collect::<Vec<u8>>().into(),
        }
    }

    /// Runs on a batch that is on the first device; the variables are not donated.
    pub fn run(&self, variables: &[&Buffer], fed: Fed) -> Result<Vec<Buffer>, TrainError> {
        let mut args: Vec<Arg<'_>> = variables.iter().map(|&buffer| Arg::Keep(buffer)).collect();
        for part in fed.parts {
            args.extend(self.inputs(part, 0, 0)?.into_iter().map(Arg::Donate));
        }
        Ok(self.executable.execute(args)?)
    }

    /// Runs on all devices with their state and a batch, without donating either; `step` is counted from 0.
    pub fn run_keeping(&self, state: &[Vec<Buffer>], fed: &Fed, step: i32) -> Result<Vec<Vec<Buffer>>, TrainError> {
        let count = |number: usize| {
            let device = self.site.device(number);
            self.client.buffer_from_host(&step.to_le_bytes(), DType::S32, &[], device)
        };
        let counts = (0..fed.parts.len()).map(count).collect::<Result<Vec<Buffer>, _>>()?;
        let inputs = |(part, count): (_, _)| -> Vec<&Buffer> {
            let part: &Vec<Option<Buffer>> = part;
            part.iter().map(|buffer| buffer.as_ref().unwrap_or(count)).collect()
        };
        let inputs = fed.parts.iter().zip(&counts).map(inputs);
        let args = state.iter().zip(inputs).map(|(state, inputs)| state.iter().chain(inputs).map(Arg::Keep).collect());
        Ok(self.executable.execute_sharded(args.collect())?)
    }

    /// The totals of each step from a replica's results, with `n_valid` examples that are not padding.
    pub fn read(&self, results: &Results, replica: usize, n_valid: usize) -> Result<Vec<Totals>, TrainError> {
        let mut sums = vec![Vec::with_capacity(self.reported.len()); self.n_steps];
        for Reported { sum, weight, .. } in &self.reported {
            let values = self.of_steps(results, replica, *sum)?;
            let weights = match weight {
                Weighting::Constant(n) => vec![vec![*n]; self.n_steps],
                Weighting::Result(weight) => self.of_steps(results, replica, *weight)?,
                Weighting::Valid => vec![vec![n_valid as f64]; self.n_steps],
            };
            for ((sums, mut values), weights) in sums.iter_mut().zip(values).zip(weights) {
                if *weight == Weighting::Valid {
                    values.iter_mut().for_each(|mean| *mean *= n_valid as f64);
                }
                sums.push(Sum { sums: values, weights });
            }
        }
        let totals = |sums| {
            let mut totals = self.no_totals();
            totals.add(sums);
            totals
        };
        Ok(sums.into_iter().map(totals).collect())
    }

    /// The scalars of the last step, averaged over all replicas' results.
    pub fn scalars(&self, results: &Results) -> Result<Vec<(String, f64)>, TrainError> {
        let last = |number: usize| {
            let of_replica =
                |replica| Ok::<_, TrainError>(self.of_steps(results, replica, number)?[self.n_steps - 1][0]);
            let all = (0..results.n_replicas()).map(of_replica).collect::<Result<Vec<f64>, TrainError>>()?;
            Ok::<_, TrainError>(all.iter().sum::<f64>() / all.len() as f64)
        };
        self.scalars.iter().map(|(name, number)| Ok((name.clone(), last(*number)?))).collect()
    }

    /// The elements of a result, step by step.
    fn of_steps(&self, results: &Results, replica: usize, number: usize) -> Result<Vec<Vec<f64>>, TrainError> {
        let dtype = self.results[number].1.dtype;
        let bytes = results.bytes(replica, number)?;
        let of_step = bytes.len() / self.n_steps;
        let values = |step| f64s(dtype, step).into_iter().flatten().collect();
        Ok(bytes.chunks_exact(of_step).map(values).collect())
    }

    /// Results as arrays on the host, by name.
    pub fn arrays(&self, results: &[Buffer]) -> Result<Vec<NamedArray>, TrainError> {
        let array = |((name, shape), buffer): (&(String, ArrayShape), &Buffer)| {
            let (name, dtype, dims) = (name.clone(), shape.dtype, shape.dims.clone());
            Ok(NamedArray { name, dtype, dims, bytes: buffer.to_host()? })
        };
        self.results.iter().zip(results).map(array).collect()
    }

    /// The variables of the state that this program reads, by name; `by_averages` replaces those that are averaged by
    /// their averages. Sharded variables are assembled on the first device.
    pub fn pick<'a>(
        &self,
        variables: &[VariableInfo],
        state: &'a [Vec<Buffer>],
        by_averages: bool,
        (site, exchange): (&Site, Option<&Exchange>),
    ) -> Result<Vec<Whole<'a>>, TrainError> {
        let number_of = |name: &str| variables.iter().position(|variable| variable.name == name);
        let whole = |name: &str| {
            let average = by_averages.then(|| number_of(&Average::name_of(name))).flatten();
            let number = average.or_else(|| number_of(name)).expect("a training program has its task's variables");
            let variable = &variables[number];
            if variable.part.is_none() && site.part(&variable.name, &variable.dims).is_none() {
                return Ok(Whole::Held(&state[0][number]));
            }
            let (bytes, dims) = (download(variable, number, state, (site, exchange))?, variable.whole_dims());
            Ok(Whole::Made(self.client.buffer_from_host(&bytes, variable.dtype, &dims, 0)?))
        };
        self.variables.iter().map(|variable| whole(&variable.name)).collect()
    }

    /// Names and shapes of its variables.
    pub fn wanted(&self) -> impl Iterator<Item = (&str, ArrayShape)> {
        self.variables.iter().map(|variable| (variable.name.as_str(), shape_of(variable)))
    }
}

/// A whole variable on the first device.
#[derive(Debug)]
pub(super) enum Whole<'a> {
    /// A buffer of the state.
    Held(&'a Buffer),
    /// Assembled from shards.
    Made(Buffer),
}

impl Whole<'_> {
    pub fn buffer(&self) -> &Buffer {
        match self {
            Whole::Held(buffer) => buffer,
            Whole::Made(buffer) => buffer,
        }
    }
}

/// The results of a call beside the state, for each replica.
#[derive(Debug)]
pub(super) enum Results {
    /// On the devices of all replicas, if one host has them all.
    Here(Vec<Vec<Buffer>>),
    /// Bytes gathered from all hosts.
    Gathered(Vec<Vec<Vec<u8>>>),
}

impl Results {
    pub fn n_replicas(&self) -> usize {
        match self {
            Results::Here(replicas) => replicas.len(),
            Results::Gathered(replicas) => replicas.len(),
        }
    }

    fn bytes(&self, replica: usize, number: usize) -> Result<Vec<u8>, TrainError> {
        match self {
            Results::Here(replicas) => Ok(replicas[replica][number].to_host()?),
            Results::Gathered(replicas) => Ok(replicas[replica][number].clone()),
        }
    }
}

/// A batch on the devices that a program runs on.
#[derive(Debug)]
pub(super) struct Fed {
    /// The inputs of each replica in the program's order; `None` in the place of the step count.
    pub parts: Vec<Vec<Option<Buffer>>>,
    /// The number of its examples that are not padding.
    pub n_valid: usize,
}

/// Whether the training programs add an input, as opposed to the task.
fn is_ours(input: &InputInfo) -> bool {
    bf16scope_model::task::RESERVED.contains(&input.name.as_str())
}

fn find<'a>(batch: &'a Batch, name: &str) -> Option<&'a NamedArray> {
    batch.arrays.iter().find(|array| array.name == name)
}

/// The shape of the whole variable.
pub(super) fn shape_of(variable: &VariableInfo) -> ArrayShape {
    ArrayShape::new(variable.dtype, variable.whole_dims())
}

/// Elements of the whole variable.
pub(super) fn n_elements(variable: &VariableInfo) -> u128 {
    variable.whole_dims().iter().map(|&dim| dim.max(0) as u128).product()
}

/// Bytes of a variable that each replica holds.
fn n_bytes_held(variable: &VariableInfo) -> u128 {
    let n_elements: u128 = variable.dims.iter().map(|&dim| dim.max(0) as u128).product();
    n_elements * variable.dtype.n_bytes() as u128
}

/// Bytes of the whole variable.
pub(super) fn n_bytes(variable: &VariableInfo) -> u128 {
    n_elements(variable) * variable.dtype.n_bytes() as u128
}

/// The error of a state that exceeds the machine's memory: bytes of all variables and slots, of a step's temporaries (0
/// before the program is compiled), of a batch with its labels, and of memory.
fn too_large(state: u128, temporaries: u128, batch: u128, available: u128, largest: &str) -> TrainError {
    let of_step = temporaries + batch;
    let text = format!(
        "training needs {} bytes: {state} of state on the device, and the larger of {of_step} for a step ({temporaries} of \
         temporaries, {batch} of batch) and {state} for a copy of the state on the host, to save it; there are {available} \
         bytes of memory; the largest variable is {largest}",
        state + of_step.max(state)
    );
    TrainError::new(TrainErrorKind::Memory, TrainPlace::Nowhere, text).with_help("make the model or the batch smaller")
}

/// Checks that memory suffices for a session before it is created, because a failed allocation ends the process. The
/// state is on the device all the time; beside it are a step's temporaries, or a copy of the state on the host while
/// saving and resuming.
pub(super) fn check_memory(
    spec: &Spec,
    site: &Site,
    variables: &[VariableInfo],
    temporaries: u128,
) -> Result<(), TrainError> {
    // The devices of all replicas share their host's memory.
    let n_replicas = site.n_devices_here() as u128;
    let state: u128 = variables.iter().map(n_bytes_held).sum::<u128>() * n_replicas;
    let temporaries = temporaries * n_replicas;
    let batch = u128::from(spec.examples_per_call()) * spec.n_example_bytes() / u128::from(site.n_hosts);
    match (memory_of_machine(), variables.iter().rev().max_by_key(|variable| n_bytes(variable))) {
        (Some(available), Some(largest)) if state + (temporaries + batch).max(state) > available => {
            let largest = format!("{} {}", largest.name, shape_of(largest));
            Err(too_large(state, temporaries, batch, available, &largest))
        }
        (Some(_) | None, _) => Ok(()),
    }
}

/// The initial state on each replica's device of this host; an average starts at its variable's initial value.
pub(super) fn initial_state(
    client: &Client,
    variables: &[VariableInfo],
    spec: &Spec,
    site: &Site,
) -> Result<Vec<Vec<Buffer>>, TrainError> {
    let mut state: Vec<Vec<Buffer>> = (0..site.n_devices_here()).map(|_| Vec::with_capacity(variables.len())).collect();
    let is_there = |name: &str| variables.iter().any(|variable| variable.name == name);
    // One by one, so no copy of the whole state is needed.
    for variable in variables {
        let averaged = Average::variable_of(&variable.name);
        let averaged = averaged.filter(|variable| spec.objective.average.is_some() && is_there(variable));
        let bytes = initial_bytes(variable, averaged.unwrap_or(&variable.name), spec.seed)?;
        upload_to_all(client, site, variable, &bytes, &mut state)?;
    }
    Ok(state)
}

/// A variable's whole value on the host: that of this host's first replica, or assembled from all shards, which every
/// host must request.
pub(super) fn download(
    variable: &VariableInfo,
    number: usize,
    state: &[Vec<Buffer>],
    (site, exchange): (&Site, Option<&Exchange>),
) -> Result<Vec<u8>, TrainError> {
    if let Some(part) = site.part(&variable.name, &variable.dims) {
        let devices = &state[..site.n_partitions as usize];
        let parts = devices.iter().map(|device| device[number].to_host()).collect::<Result<Vec<_>, _>>()?;
        return Ok(part.join(&parts, &variable.dims, variable.dtype.n_bytes()));
    }
    let Some(part) = variable.part else { return Ok(state[0][number].to_host()?) };
    let parts: Vec<Vec<u8>> = match exchange {
        None => state.iter().map(|replica| replica[number].to_host()).collect::<Result<_, _>>()?,
        Some(exchange) => {
            let replicas: Vec<Vec<&Buffer>> = state.iter().map(|replica| vec![&replica[number]]).collect();
            exchange.gather(&replicas)?.into_iter().flatten().collect()
        }
    };
    Ok(part.join(&parts, &variable.whole_dims(), variable.dtype.n_bytes()))
}

/// Uploads a variable's value to each replica's device of this host.
pub(super) fn upload_to_all(
    client: &Client,
    site: &Site,
    variable: &VariableInfo,
    bytes: &[u8],
    state: &mut [Vec<Buffer>],
) -> Result<(), TrainError> {
    let n_partitions = site.n_partitions as usize;
    for (here, state) in state.iter_mut().enumerate() {
        let (replica, partition) = (site.replicas.start + here / n_partitions, here % n_partitions);
        let bytes = match variable.part {
            Some(part) => part.cut(bytes, &variable.whole_dims(), variable.dtype.n_bytes(), replica).into(),
            None => of_replica(variable, bytes, replica),
        };
        let (bytes, dims) = match site.part(&variable.name, &variable.dims) {
            None => (bytes, variable.dims.clone()),
            Some(part) => {
                let cut = part.cut(&bytes, &variable.dims, variable.dtype.n_bytes(), partition);
                (cut.into(), part.dims(&variable.dims))
            }
        };
        state.push(client.buffer_from_host(&bytes, variable.dtype, &dims, site.device(here))?);
    }
    Ok(())
}

/// A variable's value for a replica, from that of the first, which checkpoints hold. A layer's random state
/// (three-fry's, `u64[2]`) has a key and a counter: all counters advance together, and each replica has its own key, or
/// all would drop the same units of different examples. The key of stochastic rounding is shared, as the updates are.
fn of_replica<'a>(variable: &VariableInfo, bytes: &'a [u8], replica: usize) -> Cow<'a, [u8]> {
    match (variable.init, variable.dtype, bytes.first_chunk::<8>()) {
        (Init::RandomBits, DType::U64, Some(key)) if replica > 0 => {
            let mut bytes = bytes.to_vec();
            // Multiples of the golden ratio differ in many bits.
            let key = u64::from_le_bytes(*key) ^ (replica as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            bytes[..8].copy_from_slice(&key.to_le_bytes());
            bytes.into()
        }
        _ => bytes.into(),
    }
}

/// The initial bytes of a variable, as if it were called `name`: floats from its recipe's values, integers from its
/// words.
pub(super) fn initial_bytes(variable: &VariableInfo, name: &str, seed: u64) -> Result<Vec<u8>, TrainError> {
    let VariableInfo { dtype, init, .. } = variable;
    let dims = &variable.whole_dims();
    if dtype.is_integer() {
        let words = init.words(seed, name, dims);
        return Ok(words.iter().flat_map(|word| word.to_le_bytes().into_iter().take(dtype.n_bytes())).collect());
    }
    let values = init.values(seed, name, dims);
    if *dtype == DType::F32 {
        return Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect());
    }
    let mut bytes = Vec::new();
    for value in values {
        match Literal::scalar_of(*dtype, f64::from(value)) {
            Some(Literal::Array { bytes: element, .. }) => bytes.extend(element),
            Some(Literal::Tuple(_) | Literal::Token) | None => {
                return Err(no_initial_values(&variable.name, *dtype));
            }
        }
    }
    Ok(bytes)
}

/// The error of a variable whose dtype has no initial values.
fn no_initial_values(name: &str, dtype: DType) -> TrainError {
    let text = format!("variable {name} is {dtype}, which has no initial values");
    TrainError::new(TrainErrorKind::Model, TrainPlace::Nowhere, text).with_help("make it f32")
}

/// Uploads a state read from a checkpoint to each replica's device.
pub(super) fn upload_state(
    client: &Client,
    variables: &[VariableInfo],
    arrays: &[&Array],
    site: &Site,
) -> Result<Vec<Vec<Buffer>>, TrainError> {
    let mut state: Vec<Vec<Buffer>> = (0..site.n_devices_here()).map(|_| Vec::with_capacity(variables.len())).collect();
    for (variable, array) in variables.iter().zip(arrays) {
        upload_to_all(client, site, variable, &array.bytes, &mut state)?;
    }
    Ok(state)
}

/// Uploads arrays to the first device.
pub(super) fn upload(client: &Client, arrays: &[&Array]) -> Result<Vec<Buffer>, TrainError> {
    let upload = |array: &&Array| Ok(client.buffer_from_host(&array.bytes, array.shape.dtype, &array.shape.dims, 0)?);
    arrays.iter().map(upload).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No layer of ours has such a variable.
    #[test]
    fn a_variable_that_nothing_fills_is_named() {
        assert_eq!(
            no_initial_values("net/w", DType::C64).to_string(),
            "variable net/w is c64, which has no initial values\nhelp: make it f32"
        );
    }
}
