//! The questions that `doctor` asks a device's library, one by one, in a process that may die.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{arrays, child};
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::verify::verify;
use bf16scope_hlo::{DType, Emitter, Module, Shape};
use bf16scope_pjrt::{Arg, CompileOptions, Platform, Plugin, PluginSpec, Purpose, Setup, Topology, address_space};
use bf16scope_tpu::{Spec, Target, compile_with};

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "question", content = "of")]
pub(super) enum Question {
    /// Does the library load; which version is it?
    Plugin,
    /// Which devices has it?
    Devices,
    /// Does a program that computes in this dtype compile, and give the right numbers?
    Dtype(String),
    /// Does a program compile for this target?
    Target(String),
}

impl Question {
    /// The question without whose yes this one is not asked: its answer could only be the same error.
    pub(super) fn needs(&self) -> Option<Question> {
        match self {
            Question::Plugin => None,
            Question::Devices | Question::Target(_) => Some(Question::Plugin),
            Question::Dtype(_) => Some(Question::Devices),
        }
    }
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The question.
    #[serde(flatten)]
    pub(super) question: Question,
    /// Whether it works.
    pub(super) works: bool,
    /// The finding, or the reason why it does not work.
    pub(super) detail: String,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Question::Plugin => f.write_str("plugin"),
            Question::Devices => f.write_str("devices"),
            Question::Dtype(name) | Question::Target(name) => f.write_str(name),
        }
    }
}

/// The plugin of a compile-only device: its hardware need not be present.
fn compiler(platform: &Platform) -> Option<&PluginSpec> {
    platform.spec().filter(|spec| spec.hardware.is_some())
}

/// The questions for a device, in order.
pub(super) fn questions(platform: &Platform) -> Vec<Question> {
    let mut questions = vec![Question::Plugin, Question::Devices];
    questions.extend(DType::ALL.iter().map(|dtype| Question::Dtype(dtype.name().to_string())));
    if compiler(platform).is_some() {
        questions.extend(Spec::ALL.iter().map(|version| Question::Target(Target::board(version).to_string())));
    }
    questions
}

/// Answers one question. The library stays loaded for the next.
pub(super) fn answer(platform: &Platform, setup: &Setup, question: &Question) -> Answer {
    let (works, detail) = match ask(platform, setup, question) {
        Ok(detail) => (true, detail),
        Err(error) => (false, in_a_row(&error.to_string(), address_space())),
    };
    Answer { question: question.clone(), works, detail }
}

/// An error in a row: a compiler's message can be long, and its first line names the problem, with the next one where
/// it only announces it. The limit of address space follows if the error's help names it.
fn in_a_row(error: &str, limit: Option<u64>) -> String {
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("help: "));
    let mut row = lines.next().unwrap_or("it failed without a word").to_string();
    while row.ends_with(':')
        && let Some(line) = lines.next()
    {
        row = format!("{row} {line}");
    }
    let row = row.trim_end_matches([':', '.']).to_string();
    if error.contains("`ulimit -v`") { with_limit(row, limit) } else { row }
}

/// A reason for a failure, with the limit of address space if there is one.
pub(super) fn with_limit(reason: String, limit: Option<u64>) -> String {
    match limit {
        Some(limit) => {
            format!("{reason}; processes may have {} of address space here (`ulimit -v`)", arrays::gib(limit))
        }
        None => reason,
    }
}

fn ask(platform: &Platform, setup: &Setup, question: &Question) -> anyhow::Result<String> {
    match question {
        Question::Plugin => identity(platform, setup),
        Question::Devices => devices(platform, setup),
        Question::Dtype(name) => {
            let dtype = DType::from_name(name).ok_or_else(|| anyhow::anyhow!("{name} is not a dtype"))?;
            dtype_works(platform, setup, dtype)
        }
        Question::Target(name) => {
            let plugin = Plugin::for_spec(PluginSpec::tpu(), setup, Purpose::Compile)?;
            let report = compile_with(plugin, &name.parse()?, &encode::to_bytes(&module(DType::BF16)?)?, 1)?;
            Ok(format!("compiles; {} of HBM a core", crate::report::mib(report.hbm.limit)))
        }
    }
}

/// The library, and its version.
fn identity(platform: &Platform, setup: &Setup) -> anyhow::Result<String> {
    let Some(spec) = platform.spec() else {
        let client = child::client_of_all(platform, setup)?;
        return Ok(format!("xla-rs 0.4.3, platform {}", client.platform_version()?));
    };
    if let Some(path) = &spec.path {
        let client = child::client_of_all(platform, setup)?;
        let (name, version) = (client.platform_name()?, client.platform_version()?);
        return Ok(format!("{}, platform {name}, {version}", path.display()));
    }
    let purpose = if compiler(platform).is_some() { Purpose::Compile } else { Purpose::Run };
    let plugin = Plugin::for_spec(spec, setup, purpose)?;
    let (major, minor) = plugin.api_version();
    Ok(format!("{}, PJRT C API {major}.{minor}", plugin.path().display()))
}

fn devices(platform: &Platform, setup: &Setup) -> anyhow::Result<String> {
    let (kinds, remark): (Vec<String>, _) = match compiler(platform) {
        None => {
            let client = child::client_of_all(platform, setup)?;
            (client.devices().iter().map(|device| device.description().kind.clone()).collect(), "")
        }
        Some(spec) => {
            let topology = board(Plugin::for_spec(spec, setup, Purpose::Compile)?)?;
            (topology.devices().iter().map(|device| device.kind.clone()).collect(), ", described for compiling")
        }
    };
    let first = kinds.first().ok_or_else(|| anyhow::anyhow!("it has no devices"))?;
    Ok(format!("{} × {first}{remark}", kinds.len()))
}

/// One board of the oldest TPU.
fn board(plugin: &'static Plugin) -> anyhow::Result<Topology> {
    let name = Target::board(&Spec::ALL[0]).topology().unwrap_or_default();
    Ok(Topology::new(plugin, &name, &Default::default())?)
}

/// `x: f32[2]` → dtype → `y · y` (`and` for `pred`, `add` where 1 is not a number) → f32.
fn module(dtype: DType) -> anyhow::Result<Module> {
    let module = Module::new("probe");
    let entry = module.entry;
    let e = Emitter::new(module, entry);
    let y = e.convert(e.parameter(0, &Shape::array(DType::F32, [2])), dtype);
    let op = if dtype == DType::Pred { BinaryOp::And } else { BinaryOp::Multiply };
    let product = e.binary(op, y, y);
    let real = if dtype.is_complex() { e.unary(UnaryOp::Real, product) } else { product };
    e.convert(real, DType::F32);
    let module = e.finish()?;
    verify(&module)?;
    Ok(module)
}

/// Numbers that every dtype of two bits or more can hold together with their squares.
fn numbers(dtype: DType) -> [f32; 2] {
    // A scale (e8m0) has no zero.
    if dtype == DType::F8E8M0FNU { [1.0, 2.0] } else { [0.0, 1.0] }
}

fn dtype_works(platform: &Platform, setup: &Setup, dtype: DType) -> anyhow::Result<String> {
    let program = encode::to_bytes(&module(dtype)?)?;
    let options = CompileOptions::default();
    match compiler(platform) {
        Some(spec) => {
            board(Plugin::for_spec(spec, setup, Purpose::Compile)?)?.compile(&program, &options)?;
            Ok("compiles for TPU v2".to_string())
        }
        None => {
            let client = child::client_of_all(platform, setup)?;
            let input = numbers(dtype);
            let bytes: Vec<u8> = input.iter().flat_map(|value| value.to_le_bytes()).collect();
            let buffer = client.buffer_from_host(&bytes, DType::F32, &[2], 0)?;
            let outputs = client.compile(&program, &options)?.execute(vec![Arg::Keep(&buffer)])?;
            let mut measured = [0u8; 8];
            outputs[0].copy_to_host(&mut measured)?;
            let expected: Vec<u8> = input.iter().flat_map(|value| (value * value).to_le_bytes()).collect();
            anyhow::ensure!(measured[..] == expected[..], "wrong numbers: {input:?} squared is {measured:?} in bytes");
            Ok("runs".to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_a_row_has_its_reason_and_the_limit() {
        let ended = "opening device `cpu`: the child process ended with signal 6, SIGABRT";
        let help = "help: processes may have 0.50 GiB of address space here (`ulimit -v`): raise that limit";
        let limit = "; processes may have 0.50 GiB of address space here (`ulimit -v`)";
        let row = |error: &str| in_a_row(error, Some(1 << 29));
        let wrote = format!("{ended}. It wrote:\n  F0000 env.cc:84] Check failed: ret == 0\n  more\n{help}");
        assert_eq!(row(&wrote), format!("{ended}. It wrote: F0000 env.cc:84] Check failed: ret == 0{limit}"));
        assert_eq!(row(&format!("{ended}\n{help}")), format!("{ended}{limit}"));
        // Other errors are not the limit's.
        assert_eq!(row("UNIMPLEMENTED: no f64:\nhelp: use f32"), "UNIMPLEMENTED: no f64");
        assert_eq!(row("\nwrong numbers\nmore"), "wrong numbers");
        assert_eq!(row(""), "it failed without a word");
        assert_eq!(with_limit(ended.to_string(), None), ended);
    }
}
