//! The compile cache on disk: a [`Compiler`] calls the TPU compiler once for each program, and stores the outcome.
//!
//! The key of an outcome covers everything that determines it: the program, the options, the target, the compiler, the
//! environment variables that the compiler reads, and the version of our figures. Source lines of instructions
//! determine nothing, so the key omits them (moving a line of code costs no compile); a caller that reads the optimized
//! program, which repeats those lines, gets one compiled from exactly this program.
//!
//! The disk may be full, read-only, shared by concurrent processes, or damaged, and a run may be killed at any time: a
//! record is written beside its place and renamed, and verified when it is read; any fault in it is a warning and costs
//! a compile, but never changes the outcome. The format of records is in [`super::record`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::record::{self, Header};
use super::report::{FIGURES, check_cores, compile_whole, options};
use super::{CompileOutcome, CompileReport, Target, TpuError};
use bf16scope_files::{self as files, hex};
use bf16scope_hlo::Metadata;
use bf16scope_hlo::devices::Placement;
use bf16scope_hlo::proto::messages::HloModuleProto;
use bf16scope_pjrt::{ChildCompiler, ChildSpec, Pinned, Plugin, PluginSpec, Purpose, Setup, Source, Topology, locate};

/// The TPU compiler's outcome for a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    /// The outcome: figures, or that the program does not fit.
    pub outcome: CompileOutcome,
    /// Whether it was cached, by this process or another; `compile_seconds` is then the time of the original compile.
    pub is_cached: bool,
}

impl Compiled {
    /// The figures.
    ///
    /// # Errors
    /// [`TpuError::OutOfMemory`], if the program does not fit.
    pub fn report(self, target: &Target) -> Result<CompileReport, TpuError> {
        self.outcome.into_report(target)
    }
}

/// The TPU compiler, with a cache.
///
/// The library is loaded only when something must be compiled: cached outcomes are available at once.
#[derive(Debug)]
pub struct Compiler {
    setup: Setup,
    cache: Option<Cache>,
    /// Whether cached outcomes are used; new ones are stored either way.
    reuse: bool,
    /// The placement of programs on cores.
    placement: Placement,
    /// Whether the compiler may keep more precision than programs specify.
    excess_precision: bool,
    /// The child process for compiling, if not this process.
    child: Option<ChildCompiler>,
}

impl Compiler {
    /// The compiler in `setup`, with the cache in its cache directory.
    pub fn new(setup: &Setup) -> Compiler {
        let cache = setup.cache_dir.as_deref().map(Cache::new);
        let placement = Placement::default();
        Compiler { setup: setup.clone(), cache, reuse: true, placement, excess_precision: false, child: None }
    }

    /// The same, but everything is compiled again, and then stored.
    pub fn afresh(self) -> Compiler {
        Compiler { reuse: false, ..self }
    }

    /// The same, with this placement of programs on several cores, the first ones of the target: figures are one core's
    /// share.
    pub fn over(self, placement: Placement) -> Compiler {
        Compiler { placement, ..self }
    }

    /// The same, but the compiler may drop roundings of f32 to bf16 and back, as it does by default for JAX and
    /// TensorFlow.
    pub fn with_excess_precision(self, excess_precision: bool) -> Compiler {
        Compiler { excess_precision, ..self }
    }

    /// The same, but programs are compiled in a child process: for those that bf16scope did not build, and to enforce
    /// limits.
    pub fn in_child(self, spec: &ChildSpec) -> Compiler {
        Compiler { child: Some(ChildCompiler::new(spec)), ..self }
    }

    /// The figures of a verified program (serialized `HloModuleProto`) on one core of the target, cached or compiled
    /// now. A program that does not fit is an outcome too, and is cached. `batch` is the count for
    /// `examples_per_second`.
    ///
    /// # Errors
    /// Those of [`compile`](super::compile), except for programs that do not fit.
    pub fn compile(&self, target: &Target, program: &[u8], batch: usize) -> Result<Compiled, TpuError> {
        let key = self.key(target, program)?;
        if let Some((header, _)) = self.recall(&key) {
            return Ok(Compiled { outcome: header.answer.of_batch(batch, target), is_cached: true });
        }
        let (outcome, _) = self.ask(&key, target, program, batch)?;
        Ok(Compiled { outcome, is_cached: false })
    }

    /// The figures of a verified program, and the compiler's optimized program: a serialized, scheduled
    /// `HloModuleProto` whose layouts are tiled and whose instructions carry the names and source lines of exactly this
    /// program.
    ///
    /// # Errors
    /// Those of [`compile`](super::compile); [`TpuError::OutOfMemory`] for a program that does not fit, because then
    /// there is no optimized one.
    pub fn compile_and_read(
        &self,
        target: &Target,
        program: &[u8],
        batch: usize,
    ) -> Result<(Compiled, Vec<u8>), TpuError> {
        let key = self.key(target, program)?;
        if let Some((header, path)) = self.recall(&key) {
            match &header.answer {
                CompileOutcome::OutOfMemory(_) | CompileOutcome::Failed(_) => {
                    return Err(refusal(header.answer, target));
                }
                // It was compiled from a program with other source lines.
                CompileOutcome::Fits(_) if header.program_sha256 != hex(Sha256::digest(program)) => {}
                CompileOutcome::Fits(_) => match record::read_optimized(&path) {
                    Ok(optimized) => {
                        let outcome = header.answer.of_batch(batch, target);
                        return Ok((Compiled { outcome, is_cached: true }, optimized));
                    }
                    Err(damage) => warn_of_damage(&path, &damage),
                },
            }
        }
        match self.ask(&key, target, program, batch)? {
            (outcome, Some(optimized)) => Ok((Compiled { outcome, is_cached: false }, optimized)),
            (outcome, None) => Err(refusal(outcome, target)),
        }
    }

    /// Whether the figures of a program are cached: compiling it then takes no time.
    ///
    /// # Errors
    /// A compiler that is missing and cannot be installed; a target that is not a TPU.
    pub fn remembers(&self, target: &Target, program: &[u8]) -> Result<bool, TpuError> {
        let key = self.key(target, program)?;
        Ok(self.recall(&key).is_some())
    }

    /// The compiler's name: the pinned version, or the file of another one.
    ///
    /// # Errors
    /// The compiler is missing and cannot be installed.
    pub fn libtpu(&self) -> Result<String, TpuError> {
        let artifact = Pinned::TPU;
        let located = locate(PluginSpec::tpu(), &self.setup)?;
        // A path may name the pinned library.
        let pinned = artifact.path_in(Path::new(""));
        let is_pinned = matches!(located.source, Source::Cache | Source::Installed) || located.path.ends_with(pinned);
        Ok(if is_pinned { artifact.version.to_string() } else { located.path.display().to_string() })
    }

    /// The key: everything that determines the outcome.
    fn key(&self, target: &Target, program: &[u8]) -> Result<String, TpuError> {
        let topology = target.topology().ok_or_else(|| TpuError::NotATpu(target.clone()))?;
        check_cores(target, self.placement.devices)?;
        let located = locate(PluginSpec::tpu(), &self.setup)?;
        let libtpu = match located.source {
            Source::Cache | Source::Installed => Pinned::TPU.wheel_sha256.to_string(),
            Source::Named | Source::Given => identity(&located.path),
        };
        let mut sha = Sha256::new();
        let mut add = |part: &[u8]| {
            sha.update((part.len() as u64).to_le_bytes());
            sha.update(part);
        };
        add(&FIGURES.to_le_bytes());
        add(libtpu.as_bytes());
        add(topology.as_bytes());
        add(&options(&self.placement, self.excess_precision).encode());
        for variable in ["LIBTPU_INIT_ARGS", "XLA_FLAGS"] {
            add(std::env::var_os(variable).unwrap_or_default().as_encoded_bytes());
        }
        match without_source_lines(program) {
            Some(program) => add(&program),
            None => add(program),
        }
        Ok(hex(sha.finalize()))
    }

    /// The record with a key, and its path.
    fn recall(&self, key: &str) -> Option<(Header, PathBuf)> {
        let cache = self.cache.as_ref().filter(|_| self.reuse)?;
        let path = cache.path(key);
        if let Err(error) = cache.records.check(key) {
            if !cache.has_warned.swap(true, Ordering::Relaxed) {
                tracing::warn!("compile cache: {error}");
            }
            return None;
        }
        match record::read_header(&path, key) {
            Ok(header) => header.map(|header| (header, path)),
            Err(damage) => {
                warn_of_damage(&path, &damage);
                None
            }
        }
    }

    /// Compiles, and stores the outcome.
    fn ask(
        &self,
        key: &str,
        target: &Target,
        program: &[u8],
        batch: usize,
    ) -> Result<(CompileOutcome, Option<Vec<u8>>), TpuError> {
        let describe = |name: &str| match &self.child {
            Some(child) => Topology::in_child(child, &self.setup, name, &BTreeMap::new()),
            None => Topology::new(
                Plugin::for_spec(PluginSpec::tpu(), &self.setup, Purpose::Compile)?,
                name,
                &BTreeMap::new(),
            ),
        };
        let (answer, optimized) =
            match compile_whole(describe, target, program, batch, &self.placement, self.excess_precision) {
                Ok((report, optimized)) => (CompileOutcome::Fits(report), Some(optimized)),
                Err(error) => (CompileOutcome::of_error(error)?, None),
            };
        if let Some(cache) = &self.cache {
            let header = Header::new(key, target, hex(Sha256::digest(program)), answer.clone());
            cache.keep(&header, optimized.as_deref().unwrap_or_default());
        }
        Ok((answer, optimized))
    }
}

/// The error for an outcome without figures.
fn refusal(outcome: CompileOutcome, target: &Target) -> TpuError {
    match outcome.into_report(target) {
        Err(error) => error,
        Ok(_) => TpuError::NoFigure { target: target.clone(), figure: "optimized program" },
    }
}

fn warn_of_damage(path: &Path, damage: &record::Damage) {
    tracing::warn!("compile cache: {}: {damage}; compiling again", path.display());
}

/// Identifies a library by its path, size and modification time: hashing all of it takes longer than it saves.
fn identity(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let metadata = fs::metadata(&path).ok();
    let changed = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
    let n_bytes = metadata.as_ref().map(fs::Metadata::len);
    format!("{} {n_bytes:?} {changed:?}", path.display())
}

/// The program without the source files and lines of its instructions, and without the marks of custom VJPs; `None` if
/// it holds fields that this crate's messages do not know, because then two different programs could look alike.
fn without_source_lines(program: &[u8]) -> Option<Vec<u8>> {
    let mut module = HloModuleProto::decode(program).ok()?;
    if module.encode_to_vec() != program {
        return None;
    }
    module.stack_frame_index = None;
    let instructions = module.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
    for metadata in instructions.filter_map(|instruction| instruction.metadata.as_mut()) {
        if metadata.op_type == Metadata::CUSTOM_VJP {
            metadata.op_type.clear();
        }
        metadata.source_file.clear();
        metadata.source_line = 0;
        metadata.source_end_line = 0;
        metadata.source_column = 0;
        metadata.source_end_column = 0;
        metadata.stack_frame_id = 0;
    }
    Some(module.encode_to_vec())
}

/// The folder of records below the cache directory, which also has the plugins.
#[derive(Debug)]
pub struct Cache {
    records: files::Records,
    /// Only the first failure to write is reported.
    has_warned: AtomicBool,
}

/// Room for hundreds of compiles of large models, whose records take megabytes.
const MAX_BYTES: u64 = 2 << 30;

impl Cache {
    /// The records below a cache directory, such as [`Setup::cache_dir`]. Directories are created only when something
    /// is stored.
    pub fn new(cache_dir: &Path) -> Cache {
        let records = files::Records::new(cache_dir.join("compiles"), "compile", MAX_BYTES);
        Cache { records, has_warned: AtomicBool::new(false) }
    }

    /// The records as files: to locate, count and clear them.
    pub fn records(&self) -> &files::Records {
        &self.records
    }

    fn path(&self, key: &str) -> PathBuf {
        self.records.path(key)
    }

    /// Writes a whole record, or continues after a warning.
    fn keep(&self, header: &Header, optimized: &[u8]) {
        let written = record::bytes(header, optimized).and_then(|bytes| self.records.keep(&header.key, &bytes));
        if let Err(error) = written
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "compile cache {}: {error}; this run goes on, and remembers no more\nhelp: {}, or set \
                 BF16SCOPE_CACHE to a directory that can be written",
                self.records.dir().display(),
                files::room_for(&error)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hbm;
    use bf16scope_hlo::proto::messages::{HloComputationProto, HloInstructionProto, OpMetadata};

    fn program(line: i32, op_name: &str) -> Vec<u8> {
        let metadata = OpMetadata {
            source_file: format!("{line}.rs"),
            source_line: line,
            op_name: op_name.to_string(),
            ..OpMetadata::default()
        };
        let instruction = HloInstructionProto { metadata: Some(metadata), ..HloInstructionProto::default() };
        let computation = HloComputationProto { instructions: vec![instruction], ..HloComputationProto::default() };
        HloModuleProto { computations: vec![computation], ..HloModuleProto::default() }.encode_to_vec()
    }

    fn header(key: &str) -> Header {
        let hbm = Hbm { arguments: 1, outputs: 2, aliased: 3, temporaries: 4, code: 5, total: 6, limit: 7 };
        // Figures with many digits: reading them back must give the same bits.
        let report = CompileReport {
            hbm,
            flops: 1.544e12,
            bytes_accessed: 2.003e10 + 0.1,
            cycles: 95_299_378,
            n_without_cycles: 0,
            step: None,
            optimal_seconds: 0.1 + 0.2,
            examples_per_second: Some(64.0 / (0.1 + 0.2)),
            compile_seconds: 49.123_456_789,
            devices: bf16scope_hlo::devices::Devices { replicas: 1, partitions: 8 },
            collectives: Vec::new(),
            narrow_sums: Vec::new(),
        };
        Header::new(key, &"tpu-v2".parse().unwrap(), "of the program".to_string(), CompileOutcome::Fits(report))
    }

    #[test]
    fn source_lines_decide_nothing_and_everything_else_does() {
        assert_eq!(without_source_lines(&program(1, "a")), without_source_lines(&program(2, "a")));
        assert_ne!(without_source_lines(&program(1, "a")), without_source_lines(&program(1, "b")));
        // Field 99, varint 1, which our messages do not have.
        let mut unknown = program(1, "a");
        unknown.extend([0x98, 0x06, 0x01]);
        assert_eq!(without_source_lines(&unknown), None);
        assert_eq!(without_source_lines(b"no program"), None);
    }

    #[test]
    fn a_record_comes_back_to_the_last_bit() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path());
        let optimized: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        cache.keep(&header("k"), &optimized);
        let stored = record::read_header(&cache.path("k"), "k").unwrap().unwrap();
        assert_eq!(stored.answer, header("k").answer);
        assert_eq!(record::read_optimized(&cache.path("k")).unwrap(), optimized);
        assert_eq!(record::read_header(&cache.path("absent"), "absent").unwrap(), None);
    }

    #[test]
    fn every_damage_to_a_record_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path());
        cache.keep(&header("k"), b"an optimized program");
        let path = cache.path("k");
        let whole = fs::read(&path).unwrap();
        for n_bytes in 0..whole.len() {
            fs::write(&path, &whole[..n_bytes]).unwrap();
            assert!(record::read_header(&path, "k").is_err(), "cut to {n_bytes} of {}", whole.len());
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            let is_whole = record::read_header(&path, "k").is_ok_and(|header| header.is_some());
            // gzip's header has bytes that do not affect its content: time, flags and system.
            let is_same = record::read_optimized(&path).is_ok_and(|optimized| optimized == b"an optimized program");
            let n_header = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0;
            assert!(!is_whole || (at > n_header && (is_same || record::read_optimized(&path).is_err())), "byte {at}");
        }
        fs::write(&path, &whole).unwrap();
        fs::rename(&path, cache.path("other")).unwrap();
        let damage = record::read_header(&cache.path("other"), "other").unwrap_err();
        assert_eq!(damage.to_string(), "it is another program's: its name was changed");
    }
}
