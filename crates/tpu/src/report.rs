//! The TPU compiler's report on a program: memory, cost, cycles; or that it does not fit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use prost::Message;
use serde::{Deserialize, Serialize};

use super::Target;
use super::clock::{StepTime, time};
use super::collectives::{Collective, collectives};
use super::loops::cycles;
use super::narrow::{NarrowSum, read_narrow_sums};
use bf16scope_hlo::devices::{Devices, Placement};
use bf16scope_hlo::proto::WireError;
use bf16scope_hlo::proto::messages::{HloInstructionProto, HloModuleProto};
use bf16scope_pjrt::{Code, CompileOptions, MemoryStats, PjrtError, PjrtErrorKind, Plugin, Topology, Value};

/// Device memory a program needs on one core, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Hbm {
    /// Arguments.
    pub arguments: i64,
    /// Outputs, including those that reuse an argument's memory.
    pub outputs: i64,
    /// Outputs that reuse an argument's memory.
    pub aliased: i64,
    /// Everything in between.
    pub temporaries: i64,
    /// The program.
    pub code: i64,
    /// arguments + outputs − aliased + temporaries + code.
    pub total: i64,
    /// The core's memory.
    pub limit: i64,
}

/// The compiler's figures for one program on one core of a target. Serializes under the names of `compile --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CompileReport {
    /// Device memory, in bytes.
    pub hbm: Hbm,
    /// Floating-point operations of one run (`flops`). For flops, bytes and seconds, the compiler counts a loop's body
    /// once; if trip counts are known, the figure is multiplied by the ratio of cycles with all trips to cycles with
    /// one.
    pub flops: f64,
    /// Bytes moved in one run (`bytes accessed`).
    pub bytes_accessed: f64,
    /// Cycles of one run: the sum of `estimated_cycles` over the optimized program, multiplied by the trip counts of
    /// loops if they are known.
    pub cycles: u64,
    /// Executed kernels for which the compiler has no estimate: `cycles` excludes them, and so does every time derived
    /// from it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub n_without_cycles: u64,
    /// The time of one run: the estimate that every command shows. `None` if the target's clock is unknown.
    #[serde(default)]
    pub step: Option<StepTime>,
    /// The compiler's optimum (`optimal_seconds`): a lower bound from flops and bytes, in which custom calls count as
    /// nothing. 0 if there is none: for a program that computes nothing, or with custom calls in a loop of unknown
    /// length.
    // Earlier versions' caches have it as `seconds`.
    #[serde(alias = "seconds")]
    pub optimal_seconds: f64,
    /// Batch ÷ seconds of `step`: on one core, or on all of `devices` for a global batch. `None` if the time is unknown.
    pub examples_per_second: Option<f64>,
    /// Seconds of compiling on this machine.
    pub compile_seconds: f64,
    /// The devices that it was compiled for. All figures except the examples are per device.
    #[serde(default)]
    pub devices: Devices,
    /// The collectives of one run, in descending order of bytes.
    #[serde(default)]
    pub collectives: Vec<Collective>,
    /// The sums among them in floats of less than 32 bits, by op and source line, in descending order of bytes.
    #[serde(default)]
    pub narrow_sums: Vec<NarrowSum>,
}

/// Whether a count is 0, which is not serialized.
fn is_none(n: &u64) -> bool {
    *n == 0
}

impl CompileReport {
    /// Seconds of its collectives ([`Collective::seconds`]); `None` if unknown.
    pub fn collective_seconds(&self) -> Option<f64> {
        self.collectives.iter().try_fold(0.0, |sum, collective| Some(sum + collective.seconds?))
    }

    /// The same report with times for a target and a number of examples per run: these come from our model, not the
    /// compiler, and are set only here.
    pub(super) fn timed(mut self, target: &Target, batch: usize) -> CompileReport {
        time(&mut self.collectives, target, self.devices);
        self.step = StepTime::new(target, self.cycles as f64, self.collective_seconds());
        self.examples_per_second = self.step.map(|step| batch as f64 / step.seconds);
        self
    }

    /// Seconds of one run by that estimate; 0 if unknown.
    pub fn step_seconds(&self) -> f64 {
        self.step.map_or(0.0, |step| step.seconds)
    }

    /// The sums over replicas in less than 32 bits, in a training step of ours that should sum gradients in f32: the
    /// compiler may move a cast behind a sum. Sums by a partitioner within a replica are not included: sums over
    /// replicas are recognised by the name that `train` gives them.
    pub fn narrow_sums_over_replicas(&self) -> Vec<&Collective> {
        let is_of_replicas = |it: &Collective| self.devices.partitions == 1 || it.origin.ends_with("/all-reduce");
        self.collectives.iter().filter(|it| it.is_narrow_sum() && is_of_replicas(it)).collect()
    }
}

/// Why a program could not be compiled for a TPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TpuError {
    /// The target is not a TPU.
    #[error("target {0}: the report needs the TPU compiler, and this is not a TPU\nhelp: use a target such as tpu-v2")]
    NotATpu(Target),
    /// The compiler knows the TPU, but not in this grid of chips.
    #[error(
        "target {target}: the compiler makes no such grid of chips: {grids}\nhelp: use {example}\ncompiler: {text}"
    )]
    Grid {
        /// The target.
        target: Target,
        /// The available grids, in words.
        grids: String,
        /// Valid targets of this version.
        example: String,
        /// The compiler's text.
        text: String,
    },
    /// The program is for more cores than the target has.
    #[error("{target}: the module is for {} cores ({devices}), and this slice has {n_cores}\nhelp: {}", devices.n(), larger(target, *devices))]
    Cores {
        /// The target.
        target: Target,
        /// The devices of the program.
        devices: Devices,
        /// Cores of the target.
        n_cores: u64,
    },
    /// The program does not fit in device memory, even after rematerialisation.
    #[error("{target}: out of device memory: needs {}, has {}\nhelp: use a smaller batch, or bf16 if the program is f32\ncompiler: {text}", amount(*.needed), amount(*.available))]
    OutOfMemory {
        /// The target.
        target: Target,
        /// Bytes needed, if the compiler's text has them. It rounds to hundredths of its unit.
        needed: Option<u64>,
        /// Bytes available for the program: from the compiler's text, otherwise the device's limit.
        available: Option<u64>,
        /// First line of the compiler's text.
        text: String,
    },
    /// The compiler refused the program for a reason other than memory.
    #[error("{target}: the compiler refused the program: {text}")]
    Refused {
        /// The target.
        target: Target,
        /// The compiler's text.
        text: String,
    },
    /// The compiler did not give a figure.
    #[error("{target}: the compiler gave no `{figure}`: libtpu has changed, use the pinned one")]
    NoFigure {
        /// The target.
        target: Target,
        /// The figure's name.
        figure: &'static str,
    },
    /// The optimized program cannot be read.
    #[error("{target}: the optimized program is not an HloModuleProto: {source}")]
    Program {
        /// The target.
        target: Target,
        /// The cause.
        #[source]
        source: WireError,
    },
    /// Any other error of the compiler or its installation.
    #[error(transparent)]
    Pjrt(#[from] PjrtError),
}

fn amount(n_bytes: Option<u64>) -> String {
    match n_bytes {
        Some(n_bytes) => format!("{n_bytes} bytes ({:.2} GiB)", n_bytes as f64 / f64::from(1u32 << 30)),
        None => "an amount the compiler did not say".to_string(),
    }
}

fn larger(target: &Target, devices: Devices) -> String {
    let Target::Tpu { version, .. } = target else { return "use a TPU".to_string() };
    match version.slice_of(devices.n()) {
        Some(slice) => format!("use --target {slice}, the smallest slice of {} that is enough", version.name),
        None => format!("no slice of {} has as many: export the module for fewer", version.name),
    }
}

/// Compiles a verified program (serialized `HloModuleProto`) for one core of the target, and reports. The compiler is
/// installed on first use.
pub fn compile(target: &Target, program: &[u8], batch: usize) -> Result<CompileReport, TpuError> {
    match target {
        Target::Cpu => Err(TpuError::NotATpu(target.clone())),
        Target::Tpu { .. } => compile_with(Plugin::tpu()?, target, program, batch),
    }
}

/// Like [`compile`], with another compiler.
pub fn compile_with(
    plugin: &'static Plugin,
    target: &Target,
    program: &[u8],
    batch: usize,
) -> Result<CompileReport, TpuError> {
    let describe = |name: &str| Topology::new(plugin, name, &BTreeMap::new());
    compile_whole(describe, target, program, batch, &Placement::default(), false).map(|(report, _)| report)
}

/// Like [`compile_with`], with another topology; also returns the compiler's optimized program: a serialized, scheduled
/// `HloModuleProto`.
pub(super) fn compile_whole(
    describe: impl FnOnce(&str) -> Result<Topology, PjrtError>,
    target: &Target,
    program: &[u8],
    batch: usize,
    placement: &Placement,
    excess_precision: bool,
) -> Result<(CompileReport, Vec<u8>), TpuError> {
    let devices = placement.devices;
    let name = target.topology().ok_or_else(|| TpuError::NotATpu(target.clone()))?;
    let topology = describe(&name).map_err(|error| no_topology(target, error))?;
    let limit = memory_limit(target, &topology)?;
    let mut options = options(placement, excess_precision);
    if !devices.is_one() {
        let n_cores = topology.devices().len() as u64;
        options.device_ids = topology.devices().iter().take(devices.n()).map(|device| device.id).collect();
        if options.device_ids.len() < devices.n() {
            return Err(TpuError::Cores { target: target.clone(), devices, n_cores });
        }
    }
    let start = Instant::now();
    let compiled = topology.compile(program, &options).map_err(|error| classify(target, limit, error))?;
    let compile_seconds = start.elapsed().as_secs_f64();
    let stats = compiled.memory_stats()?;
    let MemoryStats { arguments, outputs, aliased, temporaries, code, .. } = stats;
    let total = stats.total();
    let costs = compiled.cost_analysis()?;
    // XLA omits zeros: a program of copies has no flops, an empty one no seconds.
    let cost = |figure: &str| costs.get(figure).copied().unwrap_or(0.0);
    let optimized_bytes = compiled.optimized_program()?;
    let optimized = HloModuleProto::decode(optimized_bytes.as_slice())
        .map_err(|error| TpuError::Program { target: target.clone(), source: WireError::new(error) })?;
    let n_unknown = n_custom_calls(&optimized) as f64;
    let cycles = cycles(&optimized);
    // A custom call inside a loop is marked once per trip, and trip counts are not always known: then there is no
    // estimate.
    let optimal_seconds = ((cost("optimal_seconds") + n_unknown) * cycles.share()).max(0.0);
    let collectives = collectives(&optimized, devices);
    let report = CompileReport {
        hbm: Hbm { arguments, outputs, aliased, temporaries, code, total, limit },
        flops: ((cost("flops") + n_unknown) * cycles.share()).max(0.0),
        bytes_accessed: cost("bytes accessed") * cycles.share(),
        cycles: cycles.all,
        n_without_cycles: cycles.n_unknown,
        step: None,
        optimal_seconds,
        examples_per_second: None,
        compile_seconds,
        devices,
        narrow_sums: narrow_sums_of(&collectives, &optimized_bytes),
        collectives,
    };
    Ok((report.timed(target, batch), optimized_bytes))
}

/// The origins of narrow sums. Empty for a program that cannot be read as a module; the collectives are known
/// nevertheless.
fn narrow_sums_of(collectives: &[Collective], optimized: &[u8]) -> Vec<NarrowSum> {
    if !collectives.iter().any(Collective::is_narrow_sum) {
        return Vec::new();
    }
    read_narrow_sums(optimized).unwrap_or_else(|error| {
        tracing::debug!("where narrow sums come from is not said: {error}");
        Vec::new()
    })
}

/// The version of a report's figures: it changes when their definition changes, so that cached figures are not reused.
pub(super) const FIGURES: u32 = 4;

/// The compile options of every program here: for its number of cores, the first of the target, and, without excess
/// precision, with every rounding kept.
pub(super) fn options(placement: &Placement, excess_precision: bool) -> CompileOptions {
    CompileOptions { allow_excess_precision: excess_precision, ..CompileOptions::over(placement) }
}

/// Refuses a program for more cores than the target has, before the compiler is asked.
pub(super) fn check_cores(target: &Target, devices: Devices) -> Result<(), TpuError> {
    match target.n_cores() {
        Some(n_cores) if n_cores < devices.n() as u64 => {
            Err(TpuError::Cores { target: target.clone(), devices, n_cores })
        }
        _ => Ok(()),
    }
}

/// Bytes that a core of the topology has for programs.
fn memory_limit(target: &Target, topology: &Topology) -> Result<i64, TpuError> {
    const FIGURE: &str = "device_memory_bytes_limit";
    match topology.devices().first().and_then(|device| device.attributes.get(FIGURE)) {
        Some(Value::Int(limit)) => Ok(*limit),
        _ => Err(TpuError::NoFigure { target: target.clone(), figure: FIGURE }),
    }
}

/// Why the compiler does not know a topology: distinguishes an impossible grid from other refusals.
pub fn no_topology(target: &Target, error: PjrtError) -> TpuError {
    match (error.code(), error.message(), target) {
        (Some(Code::InvalidArgument), Some(message), Target::Tpu { version, grid }) => TpuError::Grid {
            target: target.clone(),
            grids: version.grids(),
            example: version.grids_near(grid).iter().map(Target::to_string).collect::<Vec<String>>().join(" or "),
            text: message.to_string(),
        },
        _ => TpuError::Pjrt(error),
    }
}

/// Distinguishes a program that does not fit from other refusals.
fn classify(target: &Target, limit: i64, error: PjrtError) -> TpuError {
    match (error.kind(), error.message()) {
        (PjrtErrorKind::OutOfMemory, Some(message)) if message.contains(OUT_OF_MEMORY) => {
            tracing::debug!("compiler: {message}");
            let (needed, available) = amounts(message);
            let text = message.lines().next().unwrap_or_default().to_string();
            let available = available.or(u64::try_from(limit).ok());
            TpuError::OutOfMemory { target: target.clone(), needed, available, text }
        }
        _ => TpuError::Pjrt(error),
    }
}

/// RESOURCE_EXHAUSTED has other causes too, such as a full scratch memory inside one fusion.
const OUT_OF_MEMORY: &str = "Ran out of memory on HBM";

/// Needed and available bytes in the compiler's sentence: `… temporaries (21.73G) exceeds available HBM (7.48G)`.
fn amounts(message: &str) -> (Option<u64>, Option<u64>) {
    let parenthesised = |prefix: &str| {
        let (_, rest) = message.split_once(prefix)?;
        let (inside, _) = rest.split_once(')')?;
        size(inside)
    };
    (parenthesised("HLO temporaries ("), parenthesised("available HBM ("))
}

/// `7.48G` and the like in bytes; XLA's units are powers of 1024.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim_end_matches('.') {
        "" | "B" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    let count: f64 = digits.parse().ok()?;
    Some((count * (1u64 << unit) as f64).round() as u64)
}

/// Custom calls of the optimized program outside fusions, such as the splitting of 64-bit values. XLA's cost analysis
/// does not know their cost, and marks each by subtracting one from `flops` and one second from `optimal_seconds`
/// (`HloCostAnalysis::HandleCustomCall`): a program of 92 us with three of them has -2.9999 s. The time of a fusion is
/// computed for the fusion as a whole, so custom calls inside (`AssumeGatherIndicesInBound`, beside a gather) leave no
/// mark, and reserving memory (`AllocateBuffer`, for a loop to fill) is known to cost nothing.
fn n_custom_calls(optimized: &HloModuleProto) -> usize {
    let fusions = instructions(optimized).filter(|instruction| instruction.opcode == "fusion");
    let fused: BTreeSet<i64> = fusions.flat_map(|fusion| fusion.called_computation_ids.iter().copied()).collect();
    let outside = optimized.computations.iter().filter(|computation| !fused.contains(&computation.id));
    let instructions = outside.flat_map(|computation| &computation.instructions);
    let is_unknown =
        |instr: &&HloInstructionProto| instr.opcode == "custom-call" && instr.custom_call_target != "AllocateBuffer";
    instructions.filter(is_unknown).count()
}

fn instructions(module: &HloModuleProto) -> impl Iterator<Item = &HloInstructionProto> {
    module.computations.iter().flat_map(|computation| &computation.instructions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::proto::messages::HloComputationProto;

    #[test]
    fn an_answer_that_is_not_understood_is_described() {
        let target: Target = "tpu-v2".parse().unwrap();
        assert_eq!(
            TpuError::NoFigure { target: target.clone(), figure: "flops" }.to_string(),
            format!("{target}: the compiler gave no `flops`: libtpu has changed, use the pinned one")
        );
        assert_eq!(
            TpuError::Program { target: target.clone(), source: WireError::new("cut off") }.to_string(),
            format!("{target}: the optimized program is not an HloModuleProto: cut off")
        );
    }

    #[test]
    fn custom_calls_inside_fusions_leave_no_mark() {
        let instruction = |opcode: &str, called: &[i64]| HloInstructionProto {
            opcode: opcode.to_string(),
            called_computation_ids: called.to_vec(),
            ..HloInstructionProto::default()
        };
        let computation = |id: i64, instructions: Vec<HloInstructionProto>| HloComputationProto {
            id,
            instructions,
            ..HloComputationProto::default()
        };
        let fused = computation(1, vec![instruction("custom-call", &[]), instruction("gather", &[])]);
        let body = computation(2, vec![instruction("custom-call", &[])]);
        let entry = computation(
            3,
            vec![instruction("fusion", &[1]), instruction("while", &[2]), instruction("custom-call", &[])],
        );
        let module = HloModuleProto { computations: vec![fused, body, entry], ..HloModuleProto::default() };
        assert_eq!(n_custom_calls(&module), 2);
    }

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        assert_eq!(size("7.48G"), Some(8_031_588_844));
        assert_eq!(size("512B"), Some(512));
        assert_eq!(size("1.5M."), Some(1_572_864));
        assert_eq!(size("many"), None);
    }
}
