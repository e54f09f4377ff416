//! The `bf16scope` command line: parsing, logging, tracing, exit codes. One file per subcommand.
//!
//! This is the only room that prints, reads arguments and erases error types (with `anyhow`).
//!
//! To add a subcommand `foo`: write `foo.rs` with a `#[derive(clap::Args)] pub struct Args` and a `pub fn run(args:
//! &Args, context: &Context) -> anyhow::Result<Status>`; add `mod foo`, a variant of `Command` with its one-line help,
//! and an arm in `Command::name` and `Command::run`. Print through [`Context::print`] and [`Context::print_json`],
//! never with `println!`, which panics when the reader of a pipe has gone. Tables are `report::Table`s, rendered for
//! [`Context::screen`], which alone depends on `--wide`, the terminal and the environment; `tests/cli/screens` shows
//! each command's output on 80 columns. Path arguments are treated as outputs, which refuse URLs, unless they are in
//! `outputs::INPUTS`. Warn with `tracing::warn!`; it reaches standard error as `bf16scope: warning: …`.
//!
//! The example is compiled and not run, for it reads the arguments of the process that runs it:
//!
//! ```no_run
//! /// A program of your own with the same commands: parses its arguments, runs one, and gives its exit code.
//! fn main() -> std::process::ExitCode {
//!     bf16scope_cli::run()
//! }
//! ```
//!
//! Exit codes: 0 done; 1 checked and found failing; 2 could not run (usage errors too); 128 + n stopped by signal n.

#![forbid(unsafe_code)]

mod again;
mod arrays;
mod as_tpu;
mod audit;
mod bits;
mod cache;
mod checkpoints;
mod child;
mod class_names;
mod compile;
mod compiling;
mod curves;
mod data;
mod doctor;
mod emit;
mod eval;
mod excess;
mod explain;
mod explain_cast;
mod failure;
mod find_rate;
mod fit;
mod init;
mod logging;
mod lower;
mod mesh;
mod outputs;
mod package;
mod plan;
mod plugins;
mod policy;
mod port;
mod predict;
mod probe;
mod program;
mod progress;
mod run;
mod schedule;
mod signals;
mod sizes;
mod subjects;
mod summary;
mod terminal;
mod trace;
mod train;
mod trained;
mod tune;
mod values;
mod watch;
mod weights;
mod whole;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgAction, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub use self::init::Shipped;
use self::signals::Stopped;
use crate::report::Screen;
use bf16scope_foreign::Sizes;
use bf16scope_pjrt::{Purpose, Setup, prepare_environment};
pub use bf16scope_report as report;
use bf16scope_study::{Converter, module_file};

const EXAMPLES: &str = "\
Examples:
  bf16scope bits 1.12156456132 --as f16,bf16,f32
          what a number becomes in each format, to the last digit
  bf16scope bits --accumulate 1.125 0.00041999 --steps 100
          where a small update of a weight is lost
  bf16scope lower step.hlo.pb -o step.bf16.pb
          a module from JAX, TensorFlow or PyTorch/XLA, with its heavy work in bf16
  bf16scope help <COMMAND>
          help for a command

Exit status: 0 done, 1 checked and found failing, 2 could not run, 128 + n stopped by signal n (130 by Ctrl-C).";

/// A bfloat16 toolkit for XLA: train in bf16 on a CPU, compile for TPUs without one, and see what rounding does.
#[derive(Debug, Parser)]
#[command(name = "bf16scope", version, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

/// Flags that every subcommand takes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
struct GlobalArgs {
    /// Say more on standard error; -vv for debugging. Adds to RUST_LOG, if that is set
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Print only errors on standard error
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Install and download nothing; fail if that is needed
    #[arg(long, global = true)]
    offline: bool,
    /// Show all columns and whole names, however long the lines
    #[arg(long, global = true)]
    wide: bool,
    /// Write a Chrome trace of where the time went (open it in ui.perfetto.dev)
    #[arg(long, global = true, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// One variant per subcommand; its doc is its line in the help.
#[derive(Debug, Subcommand)]
enum Command {
    /// Train an experiment on the CPU, in bf16, f32 or f16
    Train(train::Args),
    /// Evaluate a checkpoint on its experiment's test data
    Eval(eval::Args),
    /// Predict with a checkpoint: logits, classes and probabilities, as a table, .npz, CSV or JSON
    Predict(predict::Args),
    /// Compare recorded runs, f32 beside bf16: loss and metrics over steps, as a table and a page
    Curves(curves::Args),
    /// Show what a watched run's numbers looked like, layer by layer, and what went wrong first
    Watch(watch::Args),
    /// Show what is in TFRecord or Parquet files, a folder of images or an experiment's data, and how fast it is read
    Data(data::Args),
    /// Write a commented experiment into this folder, for data that you have or a model that ships
    Init(init::InitArgs),
    /// List what `init` writes: experiments by the kind of data, and the models that ship
    Models(init::ModelsArgs),
    /// Try learning rates in a short training, and suggest one by the loss
    FindRate(find_rate::Args),
    /// Show the layers of an experiment's model: shapes, parameters, bytes
    Summary(summary::Args),
    /// Draw an experiment's learning rate over its steps, with its value at every change
    Schedule(schedule::Args),
    /// Write a folder that predicts without its experiment, compiled ahead of time for a CPU or a TPU slice
    Package(package::Args),
    /// Show what a file of weights holds: names, shapes, dtypes, checksums; and write it in another format
    Weights(weights::Args),
    /// Show a number's bits, exact value and rounding error in each format, or where updates are lost
    Bits(bits::Args),
    /// Compile a model for a TPU, without one: what fits, what it costs, f32 beside bf16
    Compile(compile::Args),
    /// Show where a compiled program's memory and time go: buffers alive at the peak, layers, source lines
    Explain(explain::Args),
    /// Find the largest and the best batch for a TPU, in f32 and bf16, without one
    Fit(fit::Args),
    /// Plan a training on slices of TPUs, 8 to 2,048 cores: what fits, how fast, at which efficiency
    Plan(plan::Args),
    /// Port a TensorFlow graph to an experiment: what differs, what is missing, and mistakes that its dtypes show
    Port(port::Args),
    /// Check plugins, devices, dtypes that really run, TPU targets, and this CPU
    Doctor(doctor::Args),
    /// Write a model's program, or a module, as HLO (text, proto) or StableHLO
    Emit(emit::Args),
    /// Run any HLO module on the CPU, on arrays from an .npz file or random ones
    Run(run::Args),
    /// Lower any HLO module to bf16: JAX's, TensorFlow's, PyTorch/XLA's
    Lower(lower::Args),
    /// Say why an instruction of a module is, or is not, lowered to bf16
    ExplainCast(explain_cast::Args),
    /// Compare a module with its lowered form, instruction by instruction: is it still right?
    Audit(Box<audit::Args>),
    /// List, install and locate the PJRT plugins (XLA's CPU client, Google's TPU compiler)
    Plugins(plugins::Args),
    /// Show or clear the TPU compiles and conversions cached on disk
    Cache(cache::Args),
}

impl Command {
    /// The name as typed, used for the command's span in a trace.
    fn name(&self) -> &'static str {
        match self {
            Command::Train(_) => "train",
            Command::Eval(_) => "eval",
            Command::Predict(_) => "predict",
            Command::Curves(_) => "curves",
            Command::Watch(_) => "watch",
            Command::Data(_) => "data",
            Command::Schedule(_) => "schedule",
            Command::Summary(_) => "summary",
            Command::FindRate(_) => "find-rate",
            Command::Init(_) => "init",
            Command::Models(_) => "models",
            Command::Package(_) => "package",
            Command::Weights(_) => "weights",
            Command::Bits(_) => "bits",
            Command::Cache(_) => "cache",
            Command::Compile(_) => "compile",
            Command::Explain(_) => "explain",
            Command::Doctor(_) => "doctor",
            Command::Emit(_) => "emit",
            Command::Fit(_) => "fit",
            Command::Plan(_) => "plan",
            Command::Port(_) => "port",
            Command::Lower(_) => "lower",
            Command::ExplainCast(_) => "explain-cast",
            Command::Audit(_) => "audit",
            Command::Plugins(_) => "plugins",
            Command::Run(_) => "run",
        }
    }

    /// The purpose for which it loads plugins, if it loads one.
    fn purpose(&self) -> Purpose {
        match self {
            Command::Compile(_) | Command::Explain(_) | Command::Fit(_) | Command::Plan(_) => Purpose::Compile,
            Command::Doctor(args) => args.purpose(),
            Command::Package(args) => args.purpose(),
            Command::Data(args) => args.purpose(),
            Command::Train(_)
            | Command::Eval(_)
            | Command::Predict(_)
            | Command::Curves(_)
            | Command::Watch(_)
            | Command::Schedule(_)
            | Command::Summary(_)
            | Command::FindRate(_)
            | Command::Init(_)
            | Command::Models(_)
            | Command::Weights(_)
            | Command::Bits(_)
            | Command::Emit(_)
            | Command::Run(_)
            | Command::Port(_)
            | Command::Lower(_)
            | Command::ExplainCast(_)
            | Command::Audit(_)
            | Command::Plugins(_)
            | Command::Cache(_) => Purpose::Run,
        }
    }

    fn run(&self, context: &Context) -> anyhow::Result<Status> {
        match self {
            Command::Train(args) => train::run(args, context),
            Command::Eval(args) => eval::run(args, context),
            Command::Predict(args) => predict::run(args, context),
            Command::Curves(args) => curves::run(args, context),
            Command::Watch(args) => watch::run(args, context),
            Command::Data(args) => data::run(args, context),
            Command::Schedule(args) => schedule::run(args, context),
            Command::Summary(args) => summary::run(args, context),
            Command::FindRate(args) => find_rate::run(args, context),
            Command::Init(args) => init::init(args, context),
            Command::Models(args) => init::models(args, context),
            Command::Package(args) => package::run(args, context),
            Command::Weights(args) => weights::run(args, context),
            Command::Bits(args) => bits::run(args, context),
            Command::Cache(args) => cache::run(args, context),
            Command::Compile(args) => compile::run(args, context),
            Command::Explain(args) => explain::run(args, context),
            Command::Doctor(args) => doctor::run(args, context),
            Command::Emit(args) => emit::run(args, context),
            Command::Fit(args) => fit::run(args, context),
            Command::Plan(args) => plan::run(args, context),
            Command::Port(args) => port::run(args, context),
            Command::Lower(args) => lower::run(args, context),
            Command::ExplainCast(args) => explain_cast::run(args, context),
            Command::Audit(args) => audit::run(args, context),
            Command::Plugins(args) => plugins::run(args, context),
            Command::Run(args) => run::run(args, context),
        }
    }
}

/// The outcome of a command that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done; exit code 0.
    Ok,
    /// A check failed, and the report says which; exit code 1.
    Failing,
}

/// A subcommand's view of the world beyond its own arguments.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Nothing may be installed or downloaded.
    pub offline: bool,
    /// The user wants no progress on standard error.
    pub quiet: bool,
    /// The capabilities of standard output.
    pub screen: Screen,
}

impl Context {
    /// Where to find plugins: the environment, and `--offline`.
    pub fn setup(&self) -> Setup {
        let setup = Setup::from_env();
        Setup {
            offline: setup.offline || self.offline,
            on_install: progress::installations(self.quiet),
            on_bytes: progress::bytes(self.quiet),
            ..setup
        }
    }

    /// The converter for StableHLO: XLA's, with this program as the child process.
    pub fn converter(&self) -> Converter {
        Converter { setup: self.setup(), child: child::this_program(), sizes: Sizes::default(), fetch: None }
    }

    /// Writes text for people to standard output: breaks lines that are longer than the screen, and makes control
    /// characters visible. Progress and warnings go to standard error instead.
    pub fn print(&self, text: &str) -> anyhow::Result<()> {
        let text = terminal::visible(text);
        self.write(&self.screen.folded(&self.screen.shown(&text), 2))
    }

    /// Writes data for other programs to standard output: unchanged, except that control characters are made visible on
    /// a terminal.
    pub fn print_data(&self, text: &str) -> anyhow::Result<()> {
        match io::stdout().is_terminal() {
            true => self.write(&terminal::visible(text)),
            false => self.write(text),
        }
    }

    fn write(&self, text: &str) -> anyhow::Result<()> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(StdoutClosed.into()),
            Err(error) => Err(error).context("cannot write to standard output"),
        }
    }

    /// Writes one JSON value to standard output, indented, with a line end.
    pub fn print_json(&self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(value).context("cannot write the JSON")?;
        text.push('\n');
        self.write(&terminal::visible_json(&text))
    }
}

/// The reader of our output has closed it (`| head`): stop, and exit with success.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
struct StdoutClosed;

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    run_with(&[])
}

/// Like [`run`], for a program that ships these models: names and texts.
pub fn run_with(models: Shipped) -> ExitCode {
    init::SHIPPED.get_or_init(|| models);
    if let Some(code) = child::serve_if_asked() {
        return code;
    }
    let parsed = outputs::checked(terminal::help(Cli::command())).try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
        Ok((cli, failure::wants_json(&matches)))
    });
    let (cli, in_json) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help and version are also handled here, with code 0.
            failure::report_usage(&error, failure::mentions_json(std::env::args_os().skip(1)));
            return if error.use_stderr() { ExitCode::from(failure::COULD_NOT_RUN) } else { ExitCode::SUCCESS };
        }
    };
    match execute(&cli) {
        Ok(Status::Ok) => ExitCode::SUCCESS,
        Ok(Status::Failing) => ExitCode::from(1),
        Err(error) if error.is::<StdoutClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            let stopped = error.downcast_ref::<Stopped>();
            let code = stopped.map_or(failure::COULD_NOT_RUN, |stopped| signals::exit_code(stopped.signal));
            failure::report(&error, code, in_json);
            ExitCode::from(code)
        }
    }
}

fn execute(cli: &Cli) -> anyhow::Result<Status> {
    outputs::check_cache()?;
    // Before any thread starts.
    prepare_environment(cli.command.purpose())?;
    let (layer, trace) = match &cli.global.trace {
        Some(path) => {
            let (layer, file) = trace::create(path)?;
            (Some(layer), Some(file))
        }
        None => (None, None),
    };
    logging::init(logging::Verbosity::new(cli.global.verbose, cli.global.quiet), layer)?;
    let screen = terminal::screen(cli.global.wide);
    let context = Context { offline: cli.global.offline, quiet: cli.global.quiet, screen };
    if context.offline {
        bf16scope_files::refuse_downloads();
    }
    signals::survive_file_limit();
    let result = {
        let _span = tracing::info_span!("command", name = cli.command.name()).entered();
        cli.command.run(&context)
    };
    // A trace of a failed command is worth keeping, but its own failure must not hide the command's.
    match (trace.map(trace::TraceFile::finish), result) {
        (Some(Err(error)), Ok(_)) => Err(error),
        (Some(Err(trace_error)), Err(error)) => {
            failure::report(&trace_error, failure::COULD_NOT_RUN, false);
            Err(error)
        }
        (Some(Ok(())) | None, result) => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Otherwise the plugin cannot be loaded: the variables that it reads must be set while there is one thread.
    #[test]
    fn data_beside_a_tpu_is_for_compiling() {
        let purpose =
            |args: &[&str]| Cli::parse_from([&["bf16scope", "data", "e.yaml"], args].concat()).command.purpose();
        assert!(matches!(purpose(&["--bench", "--target", "tpu-v2"]), Purpose::Compile));
        assert!(matches!(purpose(&["--bench"]), Purpose::Run));
    }

    /// It is known by its type, and is no failure; only a log shows it.
    #[test]
    fn a_reader_that_has_gone_is_told_from_a_failure() {
        let error: anyhow::Error = StdoutClosed.into();
        assert!(error.is::<StdoutClosed>());
        assert_eq!(error.to_string(), "standard output was closed");
    }

    #[test]
    fn every_subcommand_has_help_and_examples() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            assert!(command.get_after_help().is_some(), "{} has no examples", command.get_name());
        }
    }
}
