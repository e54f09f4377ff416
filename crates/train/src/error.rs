//! What can go wrong in training.

use super::change::Change;
use super::checkpoint::CheckpointError;
use super::program::ProgramError;
use super::steps_per_call::StepsPerCall;
use crate::port::PortError;
use bf16scope_data::DataError;
use bf16scope_hlo::DType;
use bf16scope_hlo::proto::ProtoError;
use bf16scope_hlo::verify::VerifyErrors;
use bf16scope_model::document::ConfigError;
use bf16scope_model::graph::Precision;
use bf16scope_model::optim::Average;
use bf16scope_pjrt::PjrtError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why training stopped, or did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The experiment's file cannot be read.
    #[error("{}: cannot read the experiment", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The experiment's file is not right.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The experiment names no data.
    #[error("{}: the experiment has no `data`, which training and evaluation need\nhelp: add a `data:` block with `csv` and `n_test`, as in examples/digits.yaml", path.display())]
    NoData {
        /// The file.
        path: PathBuf,
    },
    /// A schedule by epoch, and an epoch of steps that nobody knows, or of too few.
    #[error("`{key}`: {problem}\nhelp: {help}")]
    Epochs {
        /// `learning_rate` or `warm_up`.
        key: &'static str,
        /// What is wrong.
        problem: String,
        /// What to do.
        help: String,
    },
    /// A file that no examples are read from.
    #[error(
        "{}: a file of another kind, expected one whose name ends in .npz, .csv or .csv.gz, or with `tokens` under `data` in \
         .txt or .jsonl: `data` of this experiment does not say how features are made of records or images",
        path.display()
    )]
    OtherFile {
        /// The file.
        path: PathBuf,
    },
    /// Images alone, for a model that reads something else too.
    #[error(
        "{}: an image is not all that the model reads: {}; expected records or a folder that hold each feature",
        path.display(),
        features.join(", ")
    )]
    NotOneImage {
        /// The file.
        path: PathBuf,
        /// Names and dims of what the model reads.
        features: Vec<String>,
    },
    /// A text that cannot be completed.
    #[error("{task}: {found}; a text is completed by {expected}")]
    Completion {
        /// The task.
        task: String,
        /// What there is.
        found: String,
        /// What is wanted.
        expected: &'static str,
    },
    /// A prediction by a name or in a dtype that the task does not give.
    #[error("the task predicts {found}, and no `{wanted}`\nhelp: ask by the name and the dtype that it predicts")]
    Prediction {
        /// The name asked for, and the dtype where that is what differs.
        wanted: String,
        /// Names and dtypes of what there is.
        found: String,
    },
    /// An evaluation of nothing.
    #[error(
        "all {n_examples} examples to evaluate on are left out, because none can be read\nhelp: mend the files, or look at one with `bf16scope data show`"
    )]
    AllSkipped {
        /// There are.
        n_examples: u64,
    },
    /// A batch of nothing, or of more than there is to train on.
    #[error("{}", batch_size(*batch, *n_examples))]
    BatchSize {
        /// Asked for.
        batch: usize,
        /// There are.
        n_examples: u64,
    },
    /// The data are not right.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A loss or a metric that is not a number.
    #[error("{name} over {over} is {value}, which is not a number\nhelp: {}", metric_help(*value))]
    Metric {
        /// The metric.
        name: String,
        /// What it is.
        value: f64,
        /// `360 test examples`, `the batch of step 12`.
        over: String,
    },
    /// A batch that the program does not take. Nothing was done with it.
    #[error("step {}: the batch has {measured}, expected {expected}\nhelp: the session is as it was: give it a batch like that", step + 1)]
    Batch {
        /// Steps made before.
        step: u64,
        /// What the batch has.
        measured: String,
        /// What the program takes.
        expected: String,
    },
    /// A session whose state went with a step that failed.
    #[error("the session has no state: {lost}\nhelp: restore a checkpoint, or make another session; nothing was saved")]
    Lost {
        /// The step or restoration that failed, and why.
        lost: String,
    },
    /// A session that has made as many steps as its program can count.
    #[error(
        "the session has made {step} steps, and its program counts in 32 bits\nhelp: start again from its weights, with larger batches"
    )]
    Counted {
        /// Steps made.
        step: u64,
    },
    /// The model cannot be built or differentiated.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A variable of a dtype that nothing can fill.
    #[error("variable {name} is {dtype}, which has no initial values\nhelp: make it f32")]
    Variable {
        /// The variable.
        name: String,
        /// Its dtype.
        dtype: DType,
    },
    /// A program that we built does not verify: a bug of ours.
    #[error("a program of bf16scope's own does not verify, which is a bug: {0}")]
    Verify(#[from] VerifyErrors),
    /// A program has no proto form.
    #[error(transparent)]
    Proto(#[from] ProtoError),
    /// The plugin cannot be had, or refuses something.
    #[error(transparent)]
    Pjrt(#[from] PjrtError),
    /// A checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Weights that do not go into the model.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A checkpoint of a run with other settings or other data, which could not go on as it began.
    #[error("{}: the checkpoint is of another run:{}\nhelp: {}, or leave --resume out to start again", path.display(), lines(changes), resume_help(changes))]
    Resume {
        /// The checkpoint.
        path: PathBuf,
        /// What has changed and may not.
        changes: Vec<Change>,
    },
    /// A checkpoint of a task that computes something else.
    #[error("{}: the checkpoint is of another function:{}\nhelp: set `model` as it was, or give --other-function where its variables fit", path.display(), lines(changes))]
    OtherFunction {
        /// The checkpoint.
        path: PathBuf,
        /// What has changed.
        changes: Vec<Change>,
    },
    /// A state that the machine cannot hold.
    #[error(
        "training needs {} bytes: {state} of state on the device, and the larger of {} for a step ({temporaries} of temporaries, {batch} of batch) and {state} for a copy of the state on the host, to save it; there are {available} bytes of memory; the largest variable is {largest}\nhelp: make the model or the batch smaller",
        state + (temporaries + batch).max(*state), temporaries + batch
    )]
    TooLarge {
        /// Bytes of all variables and slots.
        state: u128,
        /// Bytes that a step needs beside them; 0 before the program is compiled.
        temporaries: u128,
        /// Bytes of a batch and its labels.
        batch: u128,
        /// The machine's memory, or what this process may have of it.
        available: u128,
        /// The largest variable and its shape.
        largest: String,
    },
    /// A mesh of more replicas than there are devices.
    #[error("the mesh has {n_replicas} replicas, and there {}\nhelp: ask for as many devices, such as --device cpu:{n_replicas}, or for fewer replicas", devices(*n_devices))]
    Mesh {
        /// Replicas of the mesh.
        n_replicas: usize,
        /// Devices of the client.
        n_devices: usize,
    },
    /// Replicas that the hosts of a slice cannot share equally.
    #[error(
        "the mesh has {n_replicas} replica{}, and the slice has {n_hosts} hosts of {n_each} devices each, which share them \
         equally\nhelp: use --devices {}, or fewer on each host",
        if *n_replicas == 1 { "" } else { "s" }, n_hosts * n_each
    )]
    Hosts {
        /// Replicas of the mesh.
        n_replicas: usize,
        /// Hosts of the slice.
        n_hosts: usize,
        /// Devices that each host has at least.
        n_each: usize,
    },
    /// Replicas split over devices, on a slice of several hosts.
    #[error(
        "the mesh splits replicas (`model`), and the slice has {n_hosts} hosts: that runs on the devices of one host so far\nhelp: leave `model` out"
    )]
    SplitHosts {
        /// Hosts of the slice.
        n_hosts: usize,
    },
    /// A process that has none of the devices that its plugin knows of.
    #[error(
        "the plugin says that this is process {process}, and its devices are of processes {}\nhelp: check TPU_WORKER_ID \
         and TPU_PROCESS_BOUNDS, where they are set",
        known.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")
    )]
    Process {
        /// What the plugin says.
        process: i32,
        /// Whose the devices are.
        known: Vec<i32>,
    },
    /// Hosts that would not train the same.
    #[error(
        "host {host} has another {what} than host 0, and all hosts of a slice make the same steps\nhelp: {}",
        differ_help(what)
    )]
    HostsDiffer {
        /// The first that does.
        host: usize,
        /// What of.
        what: &'static str,
    },
    /// Another host of the slice ended the run.
    #[error("host {host} ended the run, and no host goes on without it\nhelp: it says why on its standard error")]
    OtherHost {
        /// The host.
        host: usize,
    },
    /// Calls of more steps than an epoch has.
    #[error(
        "steps_per_call is {calls}, and an epoch has {steps_per_epoch} steps\nhelp: at most that many; a number that divides it needs no second program"
    )]
    StepsPerCall {
        /// What was asked for.
        calls: StepsPerCall,
        /// Steps in an epoch.
        steps_per_epoch: u64,
    },
    /// Averages that hold more of initial values than of what was learnt.
    #[error(
        "train.average: after all {n_steps} steps an average of decay {} is still {:.0} % the initial values\nhelp: {}",
        average.decay, 100.0 * initial_share, average_help(average, *n_steps)
    )]
    Average {
        /// How variables are averaged.
        average: Average,
        /// Steps of the run.
        n_steps: u64,
        /// What averages hold of initial values at its end, of 1.
        initial_share: f64,
    },
    /// Averages that are unused.
    #[error(
        "train.average is never used: `evaluate` is false and there is no checkpoint\nhelp: leave `average` out, write `evaluate: true`, or give the run a place for its checkpoints"
    )]
    UnusedAverage,
    /// More steps than the programs can count.
    #[error(
        "{n_epochs} epochs of {steps_per_epoch} steps are more than 2147483647 steps\nhelp: train fewer epochs or use larger batches"
    )]
    TooLong {
        /// Epochs asked for.
        n_epochs: u64,
        /// Steps in each.
        steps_per_epoch: u64,
    },
    /// A step that cannot be made again from where it was to be.
    #[error("step {step} cannot be made again {}\nhelp: {}", replay_from(from.as_deref(), *from_step), replay_help(*step))]
    ReplayStep {
        /// Asked for, counted from 1.
        step: u64,
        /// From this checkpoint; none from the beginning.
        from: Option<PathBuf>,
        /// Its step.
        from_step: u64,
    },
    /// Training has diverged.
    #[error("step {step} (epoch {epoch}): {what} is not finite, at learning rate {learning_rate}\n{kept}\nhelp: {}", diverged_help(*precision))]
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// The epoch, counted from 1.
        epoch: u64,
        /// `the loss (NaN)`, or a variable.
        what: String,
        /// The learning rate of that step.
        learning_rate: f64,
        /// What the network computed in.
        precision: Precision,
        /// What is left.
        kept: Kept,
    },
    /// A run that cannot be watched.
    #[error("the run cannot be watched: {what}\nhelp: {help}")]
    Watch {
        /// The way to the experiment's key that it does not go with.
        key: &'static [&'static str],
        /// Why not.
        what: String,
        /// What to do.
        help: &'static str,
    },
    /// Someone asked to stop.
    #[error("stopped after step {step} (epoch {epoch}), as asked\n{kept}{}", if kept.0.is_some() { "\nhelp: --resume goes on from there, to the same weights as if it had not stopped" } else { "" })]
    Interrupted {
        /// Steps made.
        step: u64,
        /// The epoch, counted from 1.
        epoch: u64,
        /// What is left.
        kept: Kept,
    },
}

/// The last checkpoint of a run that ended early: its file, and the step it was made after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept(pub Option<(PathBuf, u64)>);

fn batch_size(batch: usize, n_examples: u64) -> String {
    let help = format!("set `batch` to {n_examples} or less (--batch), or keep fewer examples for testing");
    match (batch, n_examples) {
        (_, 0) => "there are no training examples\nhelp: keep fewer examples for testing".to_string(),
        (0, _) => format!("a batch of 0 trains on nothing\nhelp: set `batch` to 1 up to {n_examples} (--batch)"),
        _ => format!(
            "a batch of {batch} does not fit: there are {n_examples} training examples, without those for testing\nhelp: {help}"
        ),
    }
}

fn replay_from(from: Option<&Path>, from_step: u64) -> String {
    match from {
        None => "from the beginning of the run: steps are counted from 1".to_string(),
        Some(path) => format!("from {}, which is after step {from_step}", path.display()),
    }
}

fn replay_help(step: u64) -> &'static str {
    match step {
        0 => "ask for step 1 or a later one",
        _ => "make it again from a checkpoint before the step, or from the beginning",
    }
}

/// `is 1 device`, `are 4 devices`.
fn devices(n: usize) -> String {
    if n == 1 { "is 1 device".to_string() } else { format!("are {n} devices") }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((path, step)) => write!(f, "the last good checkpoint is {} (after step {step})", path.display()),
            None => write!(f, "this run has saved no checkpoint"),
        }
    }
}

fn lines(changes: &[Change]) -> String {
    changes.iter().map(|change| format!("\n  {change}")).collect()
}

/// How to have hosts that train the same.
fn differ_help(what: &str) -> &'static str {
    match what {
        VERSION => "install the same bf16scope on each",
        STATE => "give each host the same checkpoint to go on from, on shared storage or as a copy",
        _ => "run the same command with the same files on each",
    }
}

/// What hosts may have another of.
pub(super) const VERSION: &str = "version of bf16scope";
/// The same.
pub(super) const EXPERIMENT: &str = "experiment";
/// The same.
pub(super) const DATA: &str = "content of the data";
/// The same.
pub(super) const STATE: &str = "checkpoint";

/// How to have a run as it was.
fn resume_help(changes: &[Change]) -> String {
    let flag = |change: &Change| ["batch", "seed", "precision"].contains(&change.key.as_str());
    let flags: Vec<String> = changes
        .iter()
        .filter(|change| flag(change))
        .map(|Change { key, before, .. }| format!("--{key} {before}"))
        .collect();
    let of_build = |change: &&Change| ["data.order", "data.draws"].contains(&change.key.as_str());
    let of_data = |change: &&Change| change.key.starts_with("data.") && !of_build(change);
    let (n_data, n_build) = (changes.iter().filter(of_data).count(), changes.iter().filter(of_build).count());
    let mut parts = Vec::new();
    if !flags.is_empty() {
        parts.push(format!("give {}", flags.join(" ")));
    }
    if flags.len() + n_data + n_build < changes.len() {
        parts.push("set the experiment as it was".to_string());
    }
    if n_data > 0 {
        parts.push("use the data, `scale` and `n_test` it was made with".to_string());
    }
    if n_build > 0 {
        parts.push("use the version of bf16scope that made it".to_string());
    }
    parts.join(", ")
}

fn metric_help(value: f64) -> &'static str {
    match value.is_nan() {
        true => "its weights may add up to 0, or one of its terms be 0/0: leave such examples out by their weight",
        false => "one of its terms is infinite, such as a logarithm of 0: bound it in the task",
    }
}

/// What to write instead: the ramp of `num_updates`, unless it is there, and the largest decay that comes to something.
fn average_help(average: &Average, n_steps: u64) -> String {
    // Of so many steps, an average over the last tenth forgets all but 1/20,000 of the initial values.
    let decay = (1.0 - 10.0 / n_steps.max(20) as f64).max(0.5);
    let decay = (decay * 1e4).floor() / 1e4;
    match average.num_updates {
        false => format!(
            "write `average: {{decay: {}, num_updates: true}}`, a decay such as {decay}, or train longer",
            average.decay
        ),
        true => format!("write a decay such as {decay}, or train longer"),
    }
}

fn diverged_help(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 | Precision::Bf16 => "lower the learning rate, or warm it up",
        Precision::F16 => "f16 ends at 65504: use --precision bf16, or lower the learning rate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_where_what_and_what_to_do() {
        let kept = Kept(Some((PathBuf::from("checkpoints/digits-f16.safetensors"), 88)));
        let diverged = TrainError::Diverged {
            step: 101,
            epoch: 3,
            what: "the loss (NaN)".to_string(),
            learning_rate: 1e6,
            precision: Precision::F16,
            kept: kept.clone(),
        };
        assert_eq!(
            diverged.to_string(),
            "step 101 (epoch 3): the loss (NaN) is not finite, at learning rate 1000000\n\
             the last good checkpoint is checkpoints/digits-f16.safetensors (after step 88)\n\
             help: f16 ends at 65504: use --precision bf16, or lower the learning rate"
        );
        assert_eq!(
            TrainError::Interrupted { step: 5, epoch: 1, kept }.to_string(),
            "stopped after step 5 (epoch 1), as asked\n\
             the last good checkpoint is checkpoints/digits-f16.safetensors (after step 88)\n\
             help: --resume goes on from there, to the same weights as if it had not stopped"
        );
        assert_eq!(
            TrainError::Interrupted { step: 5, epoch: 1, kept: Kept::default() }.to_string(),
            "stopped after step 5 (epoch 1), as asked\nthis run has saved no checkpoint"
        );
        let change = |key: &str, before: &str, now: &str| Change {
            key: key.to_string(),
            before: before.to_string(),
            now: now.to_string(),
        };
        let resume = |changes| TrainError::Resume { path: PathBuf::from("a.safetensors"), changes }.to_string();
        assert_eq!(
            resume(vec![change("batch", "32", "64")]),
            "a.safetensors: the checkpoint is of another run:\n  batch was 32, is 64 now\n\
             help: give --batch 32, or leave --resume out to start again"
        );
        assert_eq!(
            resume(vec![
                change("precision", "bf16", "f32"),
                change("seed", "3", "4"),
                change("model.hidden", "[8]", "[9]"),
                change("data.test.labels", "a", "b"),
            ]),
            "a.safetensors: the checkpoint is of another run:\n  precision was bf16, is f32 now\n  seed was 3, is 4 now\n  \
             model.hidden was [8], is [9] now\n  data.test.labels was a, is b now\n\
             help: give --precision bf16 --seed 3, set the experiment as it was, use the data, `scale` and `n_test` it was \
             made with, or leave --resume out to start again"
        );
    }
}
