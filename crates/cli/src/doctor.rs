//! `bf16scope doctor`: what this machine can do — plugins, devices, dtypes that really run, TPU targets that compile,
//! instructions of the CPU.
//!
//! XLA aborts the process on some questions. Each plugin is therefore probed in a child process (`doctor --probe`),
//! which prints one answer per line; if it dies, its current question is answered with that, and another child
//! continues with the next.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;

use super::probe::{Answer, Question, answer, questions, with_limit};
use super::{Context, Status, plugins, progress};
use crate::report::{Column, Screen, Table};
use bf16scope_pjrt::{HAS_XLA_RS, Platform, PluginSpec, Purpose, Setup, address_space, locate};

const EXAMPLES: &str = "\
Examples:
  bf16scope doctor
          check everything that is installed; install nothing
  bf16scope doctor --install
          install missing plugins first
  bf16scope doctor --device plugin:/opt/vendor/pjrt_plugin.so
          check only the plugin in this file
  bf16scope doctor --device xla-cpu
          check only xla-rs's client (in builds with the feature xla)
  bf16scope doctor --json
          the same as one JSON object

A dtype runs if a program that computes in it was compiled and gave the right numbers (for a TPU: was compiled, since
there is none here). Exit status: 0 both plugins (or the device asked about) work, 1 one is missing or does not work.";

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
    /// Ask about this device only: cpu, tpu, plugin:PATH or xla-cpu
    #[arg(long, value_name = "DEVICE")]
    device: Option<Platform>,
    /// Answer the questions about one device, a line each; `doctor` runs this for itself
    #[arg(long, hide = true)]
    probe: Option<Platform>,
    /// Skip the first N questions
    #[arg(long, hide = true, default_value_t = 0, requires = "probe")]
    skip: usize,
}

impl Args {
    /// The hardware of a compile-only device need not be present.
    pub(super) fn purpose(&self) -> Purpose {
        match self.device.as_ref().or(self.probe.as_ref()).and_then(Platform::spec) {
            Some(spec) if spec.hardware.is_none() => Purpose::Run,
            Some(_) | None => Purpose::Compile,
        }
    }
}

/// The results of the command.
#[derive(Debug, Serialize)]
struct Findings {
    plugins: Vec<plugins::PluginRow>,
    /// One field per device.
    #[serde(flatten, serialize_with = "by_device")]
    devices: Vec<Asked>,
    instructions: Vec<Instruction>,
    /// Why the exit status is 1, a sentence for each plugin that does not work; empty if it is 0.
    failing: Vec<String>,
}

/// A device, and its answers; empty if it was not probed.
#[derive(Debug)]
struct Asked {
    platform: Platform,
    answers: Vec<Answer>,
}

/// Serializes as fields `cpu`, `tpu`, `xla_cpu`, ….
fn by_device<S: serde::Serializer>(devices: &[Asked], serializer: S) -> Result<S::Ok, S::Error> {
    serializer
        .collect_map(devices.iter().map(|asked| (asked.platform.name().replace("xla-cpu", "xla_cpu"), &asked.answers)))
}

/// An extension of the CPU's instruction set that is relevant to bf16 and f16.
#[derive(Debug, Serialize)]
struct Instruction {
    name: &'static str,
    present: bool,
    what: &'static str,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    if let Some(probe) = &args.probe {
        return serve(probe, args.skip, context);
    }
    let setup = context.setup();
    if args.install {
        for spec in PluginSpec::pinned() {
            locate(spec, &setup)?;
        }
    }
    let rows = rows(args.device.as_ref(), &setup);
    let mut devices = Vec::new();
    for platform in platforms(args.device.as_ref()) {
        let answers = match args.device.as_ref().is_none_or(|device| *device == platform) && is_there(&platform, &rows)
        {
            true => ask(&platform, context)?,
            false => Vec::new(),
        };
        devices.push(Asked { platform, answers });
    }
    let yes = |asked: &Asked, question: &Question| asked.answers.iter().any(|a| a.question == *question && a.works);
    let works = |asked: &Asked| REQUIRED.iter().all(|question| yes(asked, question));
    // xla-rs exists in some builds only; the pinned plugins always have an entry.
    let all_work = match &args.device {
        Some(device) => devices.iter().any(|asked| asked.platform == *device && works(asked)),
        None => devices.iter().filter(|asked| asked.platform.spec().is_some()).all(works),
    };
    let failing = if all_work { Vec::new() } else { reasons(args.device.as_ref(), &devices) };
    let findings = Findings { plugins: rows, devices, instructions: instructions(), failing };
    if args.json {
        context.print_json(&findings)?;
    } else {
        context.print(&render(&findings, context.screen))?;
    }
    Ok(if all_work { Status::Ok } else { Status::Failing })
}

/// The questions whose answers decide whether a device works.
const REQUIRED: [Question; 2] = [Question::Plugin, Question::Devices];

/// Why the exit status is 1: for each required plugin that failed, its message, or that it is missing.
fn reasons(asked: Option<&Platform>, devices: &[Asked]) -> Vec<String> {
    let counts = |platform: &Platform| match asked {
        Some(asked) => platform == asked,
        None => platform.spec().is_some(),
    };
    let reason = |Asked { platform, answers }: &Asked| {
        let failed = answers.iter().find(|answer| REQUIRED.contains(&answer.question) && !answer.works);
        match failed {
            Some(Answer { question: Question::Plugin, detail, .. }) => {
                Some(format!("{platform} does not load: {detail}"))
            }
            Some(Answer { detail, .. }) => Some(format!("{platform} has no devices: {detail}")),
            None if answers.is_empty() => {
                Some(format!("{platform} is not installed: `bf16scope doctor --install` installs what is missing"))
            }
            None => None,
        }
    };
    devices.iter().filter(|asked| counts(&asked.platform)).filter_map(reason).collect()
}

/// The devices in the report.
fn platforms(asked: Option<&Platform>) -> Vec<Platform> {
    let is_listed = |platform: &Platform| platform.spec().is_some() || HAS_XLA_RS || asked == Some(platform);
    let mut platforms: Vec<Platform> = Platform::named().into_iter().filter(is_listed).collect();
    platforms.extend(asked.filter(|asked| !platforms.contains(asked)).cloned());
    platforms
}

/// The pinned plugins, and the selected one.
fn rows(asked: Option<&Platform>, setup: &Setup) -> Vec<plugins::PluginRow> {
    let mut rows = plugins::rows(setup);
    if let Some(spec) = asked.and_then(Platform::spec)
        && !rows.iter().any(|row| row.plugin == spec.name)
    {
        rows.push(plugins::row(spec, setup));
    }
    rows
}

/// Whether there is a library to load.
fn is_there(platform: &Platform, rows: &[plugins::PluginRow]) -> bool {
    platform.spec().is_none_or(|spec| rows.iter().any(|row| row.plugin == spec.name && row.is_there()))
}

/// The child's side: one answer per line, as JSON. It ends where the parent knows the answers that follow.
fn serve(probe: &Platform, skip: usize, context: &Context) -> anyhow::Result<Status> {
    let questions = questions(probe);
    for question in questions.iter().skip(skip) {
        let answer = answer(probe, &context.setup(), question);
        context.print_data(&format!("{}\n", serde_json::to_string(&answer)?))?;
        if !answer.works && questions.iter().any(|other| other.needs().as_ref() == Some(question)) {
            break;
        }
    }
    Ok(Status::Ok)
}

/// The timeout for an answer: plugins load and compile in seconds.
const PATIENCE: Duration = Duration::from_secs(120);
const MIN_PATIENCE: Duration = Duration::from_secs(10);
/// The same under a limit of address space, where all answers of a device together have [`PATIENCE`]: an XLA that gets
/// no more memory from its heap goes on page by page, for minutes.
const LIMITED_PATIENCE: Duration = Duration::from_secs(30);

/// How long a probe may take.
struct Waits {
    /// For an answer.
    patience: Duration,
    /// For all of them.
    until: Option<Instant>,
}

impl Waits {
    fn new(limit: Option<u64>) -> Waits {
        match limit {
            Some(_) => Waits { patience: LIMITED_PATIENCE, until: Some(Instant::now() + PATIENCE) },
            None => Waits { patience: PATIENCE, until: None },
        }
    }

    fn next(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(self.patience, |left| left.min(self.patience))
    }
}

/// The parent's side: asks until every question has an answer, with a new child after each that dies.
fn ask(platform: &Platform, context: &Context) -> anyhow::Result<Vec<Answer>> {
    let (questions, limit) = (questions(platform), address_space());
    let bar = progress::bar(questions.len() as u64, context.quiet);
    bar.set_prefix(platform.name().to_string());
    let mut answers: Vec<Answer> = Vec::new();
    let mut waits = Waits::new(limit);
    while answers.len() < questions.len() {
        let (status, silence) = listen(platform, answers.len(), &waits, |answer| {
            bar.set_message(answer.question.to_string());
            bar.inc(1);
            answers.push(answer);
        })?;
        // A probe ends by itself after an answer that others need.
        if !pass_over(&questions, &mut answers)
            && let Some(question) = questions.get(answers.len())
        {
            let reason = match silence {
                Some(silence) if silence < waits.patience => {
                    format!("no answer within the {} s that all answers have", PATIENCE.as_secs())
                }
                Some(silence) => format!("no answer within {} s", silence.as_secs()),
                None => format!("ends the process ({status})"),
            };
            answers.push(Answer { question: question.clone(), works: false, detail: with_limit(reason, limit) });
            pass_over(&questions, &mut answers);
            if silence.is_some() && limit.is_some() {
                let rest = questions[answers.len()..].iter();
                answers.extend(rest.map(|other| not_asked(other, question)));
            }
            // Only the first answer may be slow; a shorter timeout afterwards avoids waiting for hours.
            if silence.is_some() {
                waits.patience = (waits.patience / 2).max(MIN_PATIENCE);
            }
        }
        bar.set_position(answers.len() as u64);
    }
    bar.finish_and_clear();
    Ok(answers)
}

/// Answers the next questions as long as the one that they need was answered with no; whether there were any.
fn pass_over(questions: &[Question], answers: &mut Vec<Answer>) -> bool {
    let n_before = answers.len();
    while let Some(question) = questions.get(answers.len())
        && let Some(needed) = question.needs()
        && answers.iter().any(|answer| answer.question == needed && !answer.works)
    {
        answers.push(not_asked(question, &needed));
    }
    answers.len() > n_before
}

fn not_asked(question: &Question, because_of: &Question) -> Answer {
    let detail = format!("not asked, because `{because_of}` failed");
    Answer { question: question.clone(), works: false, detail }
}

/// Starts a probe after the first `n_before` questions and passes its answers on, until it ends or is silent for too
/// long; its exit status, and the silence after which it was killed.
fn listen(
    platform: &Platform,
    n_before: usize,
    waits: &Waits,
    mut on_answer: impl FnMut(Answer),
) -> anyhow::Result<(ExitStatus, Option<Duration>)> {
    let program = std::env::current_exe().context("cannot find this program to run it again")?;
    let mut child = Command::new(program)
        .args(["doctor", "--offline", "--probe", platform.name(), "--skip", &n_before.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start a probe of this program")?;
    let stdout = child.stdout.take().context("a probe has no output")?;
    // A probe that neither answers nor exits is killed and treated as one that died.
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let silence = loop {
        let patience = waits.next();
        match lines.recv_timeout(patience) {
            Ok(line) => {
                // Skips output of the plugin itself.
                if let Ok(answer) = serde_json::from_str::<Answer>(&line) {
                    on_answer(answer);
                }
            }
            Err(error) => break (error == RecvTimeoutError::Timeout).then_some(patience),
        }
    };
    if silence.is_some() {
        // It fails only if the child has already exited.
        drop(child.kill());
    }
    Ok((child.wait().context("cannot wait for a probe")?, silence))
}

/// The instruction set extensions that are relevant to bf16 and f16.
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

fn render(findings: &Findings, screen: Screen) -> String {
    let mut text = plugins::render(&findings.plugins, screen);
    let devices = &findings.devices;
    let columns = devices.iter().map(|asked| Column::text(asked.platform.name()));
    let mut dtypes = Table::new(std::iter::once(Column::name("dtype")).chain(columns));
    for question in questions(&Platform::cpu()).iter().filter(|question| matches!(question, Question::Dtype(_))) {
        let cells = devices.iter().map(|asked| cell(&asked.answers, question));
        dtypes.row(std::iter::once(question.to_string()).chain(cells));
    }
    let mut machines = Table::new([Column::name("what"), Column::text("works"), Column::text("found")]);
    for Asked { platform, answers } in devices {
        for answer in answers.iter().filter(|answer| !matches!(answer.question, Question::Dtype(_))) {
            let name = match &answer.question {
                Question::Target(target) => target.clone(),
                Question::Plugin if *platform == Platform::XlaCpu => "xla-cpu library".to_string(),
                Question::Plugin | Question::Devices | Question::Dtype(_) => format!("{platform} {}", answer.question),
            };
            machines.row([&name, yes_no(answer.works), &answer.detail]);
        }
    }
    let mut instructions = Table::new([Column::name("instructions"), Column::text("here"), Column::text("for")]);
    for instruction in &findings.instructions {
        instructions.row([instruction.name, yes_no(instruction.present), instruction.what]);
    }
    for table in [machines, dtypes, instructions] {
        text += &table.render(screen);
    }
    for reason in &findings.failing {
        text += &format!("exit status 1: {reason}\n");
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::check_screen;
    use bf16scope_hlo::DType;
    use expect_test::expect_file;

    #[test]
    fn everything_on_80_columns() {
        let answer =
            |question: Question, works: bool, detail: &str| Answer { question, works, detail: detail.to_string() };
        let dtypes = |of: fn(DType) -> (bool, &'static str)| {
            DType::ALL.iter().map(move |&dtype| {
                let (works, detail) = of(dtype);
                answer(Question::Dtype(dtype.name().to_string()), works, detail)
            })
        };
        let cpu = [
            answer(Question::Plugin, true, "cpu, PJRT API 0.71, made for 0.72"),
            answer(Question::Devices, true, "1: TFRT_CPU_0"),
        ];
        let tpu = [
            answer(
                Question::Plugin,
                true,
                "libtpu 0.0.52, PJRT API 0.75: compiles for TPUs that are not here, and runs nothing",
            ),
            answer(Question::Target("tpu-v2".to_string()), true, "compiles; 7662.0 MiB of HBM a core"),
            answer(
                Question::Target("tpu-v4".to_string()),
                false,
                "ends the process (signal: 6 (SIGABRT) (core dumped))",
            ),
        ];
        let on_cpu = |dtype| match dtype {
            DType::F8E4M3B11FNUZ | DType::F4E2M1FN => (false, "gives 1.5 for 0.1 + 0.2, and 0.3 was expected"),
            _ => (true, "runs"),
        };
        let on_tpu = |dtype| match dtype {
            DType::F64 => (false, "UNIMPLEMENTED: While rewriting computation to not contain X64 element types"),
            _ => (true, "compiles"),
        };
        let instruction = |name, present, what| Instruction { name, present, what };
        let findings = Findings {
            plugins: plugins::examples(),
            devices: vec![
                Asked { platform: Platform::cpu(), answers: cpu.into_iter().chain(dtypes(on_cpu)).collect() },
                Asked { platform: Platform::tpu(), answers: tpu.into_iter().chain(dtypes(on_tpu)).collect() },
            ],
            instructions: vec![
                instruction("avx2", true, "casts f32 to bf16 eight at a time"),
                instruction("avx512_bf16", false, "bf16 dot products of pairs, f32 sums"),
            ],
            failing: Vec::new(),
        };
        check_screen(|screen| render(&findings, screen), &expect_file!["../../../tests/cli/screens/doctor.txt"]);
    }

    #[test]
    fn a_question_whose_answer_is_known_is_not_asked() {
        let answers = |platform: &Platform, failed: Question| {
            let questions = questions(platform);
            let n_asked = questions.iter().position(|question| *question == failed).unwrap();
            let mut answers: Vec<Answer> = questions[..=n_asked]
                .iter()
                .map(|question| Answer {
                    question: question.clone(),
                    works: *question != failed,
                    detail: "found".to_string(),
                })
                .collect();
            let is_passed = pass_over(&questions, &mut answers);
            (is_passed, questions.len() - answers.len(), answers.pop().unwrap().detail)
        };
        let (cpu, tpu) = (Platform::cpu(), Platform::tpu());
        let because = |question: &str| format!("not asked, because `{question}` failed");
        assert_eq!(answers(&cpu, Question::Devices), (true, 0, because("devices")));
        assert_eq!(answers(&cpu, Question::Plugin), (true, 0, because("devices")));
        assert_eq!(answers(&tpu, Question::Plugin), (true, 0, because("plugin")));
        // Targets are still asked about.
        assert_eq!(answers(&tpu, Question::Devices), (true, bf16scope_tpu::Spec::ALL.len(), because("devices")));
        let dtype = Question::Dtype(DType::ALL[0].name().to_string());
        assert_eq!(answers(&cpu, dtype), (false, DType::ALL.len() - 1, "found".to_string()));
    }

    #[test]
    fn under_a_limit_a_device_has_the_time_of_one_answer() {
        let free = Waits::new(None);
        assert_eq!((free.next(), free.until), (PATIENCE, None));
        let limited = Waits::new(Some(1 << 29));
        assert_eq!(limited.next(), LIMITED_PATIENCE);
        let over = Waits { until: Some(Instant::now()), ..limited };
        assert_eq!(over.next(), Duration::ZERO);
    }

    #[test]
    fn an_exit_status_of_1_has_its_reasons() {
        let answer =
            |works: bool, detail: &str| Answer { question: Question::Plugin, works, detail: detail.to_string() };
        let asked = |platform: Platform, answers: Vec<Answer>| Asked { platform, answers };
        let devices = vec![
            asked(Platform::cpu(), vec![answer(false, "PJRT API 0.30, and 0.72 is asked for")]),
            asked(Platform::tpu(), Vec::new()),
        ];
        let expected = [
            "cpu does not load: PJRT API 0.30, and 0.72 is asked for",
            "tpu is not installed: `bf16scope doctor --install` installs what is missing",
        ];
        assert_eq!(reasons(None, &devices), expected);
        assert_eq!(reasons(Some(&Platform::tpu()), &devices), expected[1..]);
        let works = vec![asked(Platform::cpu(), vec![answer(true, "cpu")])];
        assert_eq!(reasons(None, &works), Vec::<String>::new());
        let dies = Answer { question: Question::Devices, works: false, detail: "ends the process".to_string() };
        let without_devices = vec![asked(Platform::cpu(), vec![answer(true, "cpu"), dies])];
        assert_eq!(reasons(None, &without_devices), ["cpu has no devices: ends the process"]);
        let findings = Findings {
            plugins: Vec::new(),
            devices,
            instructions: Vec::new(),
            failing: expected.map(str::to_string).to_vec(),
        };
        let text = render(&findings, Screen::WIDE);
        assert!(text.ends_with(&format!("exit status 1: {}\nexit status 1: {}\n", expected[0], expected[1])), "{text}");
    }
}
