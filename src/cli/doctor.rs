//! `bf16scope doctor`: what this machine can do — plugins, devices, dtypes that really run, TPU targets that compile,
//! instructions of the CPU.
//!
//! XLA answers some questions by aborting the process. So each plugin is asked in a child process (`doctor --probe`),
//! which prints an answer a line as it goes; where it dies, the question it died of is answered so, and another child
//! goes on behind it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

use super::probe::{Answer, Question, answer, questions};
use super::{Context, Status, plugins, progress};
use crate::pjrt::{Kind, locate};
use crate::report;

const EXAMPLES: &str = "\
Examples:
  bf16scope doctor
          everything about what is installed; installs nothing
  bf16scope doctor --install
          installs what is missing first
  bf16scope doctor --json
          the same as one JSON object

A dtype runs if a program that computes in it was compiled and gave the right numbers (for a TPU: was compiled, since
there is none here). Exit status: 0 both plugins work, 1 one is missing or does not work.";

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Install missing plugins first
    #[arg(long)]
    install: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Answer the questions about one plugin, a line each; `doctor` runs this for itself
    #[arg(long, value_enum, hide = true)]
    probe: Option<Probe>,
    /// Skip the first N questions
    #[arg(long, hide = true, default_value_t = 0, requires = "probe")]
    skip: usize,
}

/// Which questions a child answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Probe {
    Cpu,
    Tpu,
}

/// What the command found.
#[derive(Debug, Serialize)]
struct Findings {
    plugins: Vec<plugins::Row>,
    cpu: Vec<Answer>,
    tpu: Vec<Answer>,
    instructions: Vec<Instruction>,
}

/// An extension of the CPU's instruction set that matters here.
#[derive(Debug, Serialize)]
struct Instruction {
    name: &'static str,
    present: bool,
    what: &'static str,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    if let Some(probe) = args.probe {
        return serve(probe, args.skip, context);
    }
    let setup = context.setup();
    if args.install {
        for kind in Kind::ALL {
            locate(kind, &setup)?;
        }
    }
    let rows = plugins::rows(&setup);
    let ask_if_there = |kind: Kind| match rows.iter().find(|row| row.plugin == plugins::name(kind)) {
        Some(row) if row.is_there() => ask(kind, context),
        Some(_) | None => Ok(Vec::new()),
    };
    let (cpu, tpu) = (ask_if_there(Kind::Cpu)?, ask_if_there(Kind::Tpu)?);
    let findings = Findings { plugins: rows, cpu, tpu, instructions: instructions() };
    if args.json {
        context.print_json(&findings)?;
    } else {
        context.print(&render(&findings))?;
    }
    let works = |answers: &[Answer]| answers.iter().any(|a| a.question == Question::Plugin && a.works);
    Ok(if works(&findings.cpu) && works(&findings.tpu) { Status::Ok } else { Status::Failing })
}

/// The child's side: an answer a line, as JSON.
fn serve(probe: Probe, skip: usize, context: &Context) -> anyhow::Result<Status> {
    let kind = match probe {
        Probe::Cpu => Kind::Cpu,
        Probe::Tpu => Kind::Tpu,
    };
    for question in questions(kind).iter().skip(skip) {
        let line = serde_json::to_string(&answer(kind, &context.setup(), question))?;
        context.print(&format!("{line}\n"))?;
    }
    Ok(Status::Ok)
}

/// The parent's side: asks until every question has an answer, with a new child behind each that dies.
fn ask(kind: Kind, context: &Context) -> anyhow::Result<Vec<Answer>> {
    let questions = questions(kind);
    let bar = progress::bar(questions.len() as u64, context.quiet);
    bar.set_prefix(plugins::name(kind));
    let mut answers: Vec<Answer> = Vec::new();
    while answers.len() < questions.len() {
        let n_before = answers.len();
        let program = std::env::current_exe().context("cannot find this program to run it again")?;
        let mut child = Command::new(program)
            .args(["doctor", "--offline", "--probe", plugins::name(kind), "--skip", &n_before.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start a probe of this program")?;
        let stdout = child.stdout.take().context("a probe has no output")?;
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // What a plugin itself prints is no answer.
            let Ok(answer) = serde_json::from_str::<Answer>(&line) else { continue };
            bar.set_message(answer.question.to_string());
            bar.inc(1);
            answers.push(answer);
        }
        let status = child.wait().context("cannot wait for a probe")?;
        if let Some(question) = questions.get(answers.len()) {
            let detail = format!("ends the process ({status})");
            answers.push(Answer { question: question.clone(), works: false, detail });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(answers)
}

/// What of the CPU's instruction set matters for bf16 and f16.
fn instructions() -> Vec<Instruction> {
    const MATTERS: [(&str, &str); 7] = [
        ("avx2", "casts f32 to bf16 eight at a time"),
        ("f16c", "casts f32 to f16 and back"),
        ("avx512f", "casts f32 to bf16 sixteen at a time"),
        ("avx512_bf16", "bf16 dot products of pairs, f32 sums"),
        ("avx512_fp16", "f16 arithmetic"),
        ("amx_bf16", "bf16 matrix tiles, f32 sums"),
        ("amx_int8", "int8 matrix tiles"),
    ];
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    let has = |name: &str| flags.split_whitespace().any(|flag| flag == name);
    MATTERS.map(|(name, what)| Instruction { name, present: has(name), what }).into()
}

fn render(findings: &Findings) -> String {
    let mut text = plugins::render(&findings.plugins);
    let mut dtypes = report::table();
    dtypes.set_header(["dtype", "cpu", "tpu"]);
    for question in questions(Kind::Cpu).iter().filter(|question| matches!(question, Question::Dtype(_))) {
        dtypes.add_row([question.to_string(), cell(&findings.cpu, question), cell(&findings.tpu, question)]);
    }
    let mut machines = report::table();
    machines.set_header(["what", "works", "found"]);
    for (plugin, answers) in [("cpu", &findings.cpu), ("tpu", &findings.tpu)] {
        for answer in answers.iter().filter(|answer| !matches!(answer.question, Question::Dtype(_))) {
            let name = match &answer.question {
                Question::Target(target) => target.clone(),
                Question::Plugin | Question::Devices | Question::Dtype(_) => format!("{plugin} {}", answer.question),
            };
            machines.add_row([&name, yes_no(answer.works), &answer.detail]);
        }
    }
    let mut instructions = report::table();
    instructions.set_header(["instructions", "here", "for"]);
    for instruction in &findings.instructions {
        instructions.add_row([instruction.name, yes_no(instruction.present), instruction.what]);
    }
    text += &format!("{machines}\n{dtypes}\n{instructions}\n");
    text
}

fn yes_no(truth: bool) -> &'static str {
    if truth { "yes" } else { "no" }
}

fn cell(answers: &[Answer], question: &Question) -> String {
    match answers.iter().find(|answer| answer.question == *question) {
        Some(Answer { works: true, detail, .. }) => detail.clone(),
        Some(Answer { works: false, detail, .. }) => format!("no: {detail}"),
        None => "-".to_string(),
    }
}
