//! What the TPU compiler says of a program: memory, cost, cycles; or that it does not fit.

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
    /// Outputs, those that reuse an argument's memory included.
    pub outputs: i64,
    /// Outputs that reuse an argument's memory.
    pub aliased: i64,
    /// Everything in between.
    pub temporaries: i64,
    /// The program.
    pub code: i64,
    /// arguments + outputs − aliased + temporaries + code.
    pub total: i64,
    /// What the core has.
    pub limit: i64,
}

/// The compiler's figures for one program on one core of a target. Serializes under the names of `compile --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CompileReport {
    /// Device memory, in bytes.
    pub hbm: Hbm,
    /// Floating-point operations of one run (`flops`). As for bytes and seconds, the compiler counts a loop's body once;
    /// where its trip count is known, the figure is multiplied by cycles with all trips ÷ cycles with one.
    pub flops: f64,
    /// Bytes moved in one run (`bytes accessed`).
    pub bytes_accessed: f64,
    /// Cycles of one run: the sum of `estimated_cycles` over the optimized program, multiplied by the trip count in
    /// loops where that is known.
    pub cycles: u64,
    /// Kernels, as often as they run, of which the compiler says that it has no estimate: `cycles` is without them, and so is
    /// every time that is made of it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub n_without_cycles: u64,
    /// How long one run takes: the estimate that every command shows. `None` where the target's clock is not known here.
    #[serde(default)]
    pub step: Option<StepTime>,
    /// The compiler's optimum (`optimal_seconds`): the least that flops and bytes could take; custom calls count for nothing.
    /// 0 where there is none: of a program that computes nothing, or with custom calls in a loop of unknown length.
    // Caches of earlier versions have it as `seconds`.
    #[serde(alias = "seconds")]
    pub optimal_seconds: f64,
    /// Batch ÷ seconds of `step`: on one core, or on all of `devices`, if the batch is of all. 0 where these are not known.
    pub examples_per_second: f64,
    /// Seconds that compiling took here.
    pub compile_seconds: f64,
    /// The devices that it was compiled for. All figures but the examples are of one of them.
    #[serde(default)]
    pub devices: Devices,
    /// The collectives of one run, most bytes first.
    #[serde(default)]
    pub collectives: Vec<Collective>,
    /// What of that they add in floats of less than 32 bits, by op and source line, most bytes first.
    #[serde(default)]
    pub narrow_sums: Vec<NarrowSum>,
}

/// Whether a count is 0, which needs no word.
fn is_none(n: &u64) -> bool {
    *n == 0
}

impl CompileReport {
    /// Seconds of its collectives ([`Collective::seconds`]); `None` where they cannot be said.
    pub fn collective_seconds(&self) -> Option<f64> {
        self.collectives.iter().try_fold(0.0, |sum, collective| Some(sum + collective.seconds?))
    }

    /// The same report for a target and so many examples in a run: how long collectives and the step take is not the
    /// compiler's to say, and written here and nowhere else.
    pub(super) fn timed(mut self, target: &Target, batch: usize) -> CompileReport {
        time(&mut self.collectives, target, self.devices);
        self.step = StepTime::new(target, self.cycles as f64, self.collective_seconds());
        self.examples_per_second = self.step.map_or(0.0, |step| batch as f64 / step.seconds);
        self
    }

    /// Seconds of one run by that estimate; 0 where it is not known.
    pub fn step_seconds(&self) -> f64 {
        self.step.map_or(0.0, |step| step.seconds)
    }

    /// The sums over replicas of a training step of ours in less than 32 bits, where gradients were to be summed in f32: the
    /// compiler may move a cast behind a sum. What a partitioner sums within a replica is not among them: sums over replicas
    /// have the name that `train` gives them.
    pub fn narrow_sums_over_replicas(&self) -> Vec<&Collective> {
        let is_of_replicas = |it: &Collective| self.devices.partitions == 1 || it.origin.ends_with("/all-reduce");
        self.collectives.iter().filter(|it| it.is_narrow_sum() && is_of_replicas(it)).collect()
    }
}

/// A program that could not be compiled for a TPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TpuError {
    /// The target is no TPU.
    #[error("target {0}: the report needs the TPU compiler, and this is not a TPU\nhelp: use a target such as tpu-v2")]
    NotATpu(Target),
    /// The compiler knows the TPU, but not in this grid of chips.
    #[error(
        "target {target}: the compiler makes no such grid of chips: {grids}\nhelp: use {example}\ncompiler: {text}"
    )]
    Grid {
        /// The target.
        target: Target,
        /// Which grids there are, in words.
        grids: String,
        /// Targets of this version that there are.
        example: String,
        /// The compiler's text.
        text: String,
    },
    /// The program is for more cores than the target has.
    #[error("{target}: the module is for {} cores ({devices}), and this slice has {n_cores}\nhelp: {}", devices.n(), larger(target, *devices))]
    Cores {
        /// The target.
        target: Target,
        /// What the program is for.
        devices: Devices,
        /// Cores of the target.
        n_cores: u64,
    },
    /// The program does not fit in device memory, even after rematerialisation.
    #[error("{target}: out of device memory: needs {}, has {}\nhelp: use a smaller batch, or bf16 if the program is f32\ncompiler: {text}", amount(*.needed), amount(*.available))]
    OutOfMemory {
        /// The target.
        target: Target,
        /// Bytes needed, where the compiler's text says so. It rounds to hundredths of its unit.
        needed: Option<u64>,
        /// Bytes there are for the program: what the compiler's text says, else the device's limit.
        available: Option<u64>,
        /// First line of the compiler's text.
        text: String,
    },
    /// The compiler refused the program for another reason than memory.
    #[error("{target}: the compiler refused the program: {text}")]
    Refused {
        /// The target.
        target: Target,
        /// The compiler's text.
        text: String,
    },
    /// A figure that the compiler did not give.
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
    /// Anything else that the compiler, or installing it, refused.
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

/// As [`compile`], with a compiler found some other way.
pub fn compile_with(
    plugin: &'static Plugin,
    target: &Target,
    program: &[u8],
    batch: usize,
) -> Result<CompileReport, TpuError> {
    let describe = |name: &str| Topology::new(plugin, name, &BTreeMap::new());
    compile_whole(describe, target, program, batch, &Placement::default(), false).map(|(report, _)| report)
}

/// As [`compile_with`], with a topology that is described some other way; and what the compiler made of the program: a
/// serialized, scheduled `HloModuleProto`.
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
    // XLA gives only what is not 0: a program of copies has no flops, one of nothing no seconds.
    let cost = |figure: &str| costs.get(figure).copied().unwrap_or(0.0);
    let optimized_bytes = compiled.optimized_program()?;
    let optimized = HloModuleProto::decode(optimized_bytes.as_slice())
        .map_err(|error| TpuError::Program { target: target.clone(), source: WireError::new(error) })?;
    let n_unknown = n_custom_calls(&optimized) as f64;
    let cycles = cycles(&optimized);
    // A custom call inside a loop is marked once a trip, and trip counts are not always known: then there is no estimate.
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
        examples_per_second: 0.0,
        compile_seconds,
        devices,
        narrow_sums: narrow_sums_of(&collectives, &optimized_bytes),
        collectives,
    };
    Ok((report.timed(target, batch), optimized_bytes))
}

/// Where narrow sums come from. A program that cannot be read as a module leaves that unsaid; the collectives are known.
fn narrow_sums_of(collectives: &[Collective], optimized: &[u8]) -> Vec<NarrowSum> {
    if !collectives.iter().any(Collective::is_narrow_sum) {
        return Vec::new();
    }
    read_narrow_sums(optimized).unwrap_or_else(|error| {
        tracing::debug!("where narrow sums come from is not said: {error}");
        Vec::new()
    })
}

/// What the figures of a report count, as a number that changes when that does: figures kept on disk are then not reused.
pub(super) const FIGURES: u32 = 4;

/// How every program is compiled here: for the cores that it is for, the first of the target, and, without excess precision,
/// with every rounding kept.
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

/// Bytes a core of the topology has for programs.
fn memory_limit(target: &Target, topology: &Topology) -> Result<i64, TpuError> {
    const FIGURE: &str = "device_memory_bytes_limit";
    match topology.devices().first().and_then(|device| device.attributes.get(FIGURE)) {
        Some(Value::Int(limit)) => Ok(*limit),
        _ => Err(TpuError::NoFigure { target: target.clone(), figure: FIGURE }),
    }
}

/// Why the compiler describes no such topology: tells a grid that there is not from other refusals.
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

/// Tells a program that does not fit from other refusals.
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

/// Custom calls of the optimized program outside fusions, such as the splitting of 64-bit values. XLA's cost analysis does
/// not know what they cost, and marks each by subtracting one from `flops` and one second from `optimal_seconds`
/// (`HloCostAnalysis::HandleCustomCall`): a program of 92 us with three of them says -2.9999 s. The time of a fusion is
/// computed from the fusion as a whole, so those inside (`AssumeGatherIndicesInBound`, beside a gather) leave no mark, and
/// memory that is set aside (`AllocateBuffer`, for what a loop fills) is known to cost nothing.
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
