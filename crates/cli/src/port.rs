//! `bf16scope port`: ports a TensorFlow graph to an experiment, and reports differences, missing parts and mistakes.

mod checkpoint;
mod lint;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{Context, Status, emit};
use crate::report::port::{self, Becomes, NoteRow, PortedGraph, SlipRow, StepRow};
use bf16scope_data::weights;
use bf16scope_files as files;
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::verify;
use bf16scope_model::graph::Precision;
use bf16scope_study::ModelSubject;
use bf16scope_tensorflow::{
    self as tensorflow, Choice, Graph, Lowered, NetworkPort, Note, PipelineStep, Place, Ported, TrainingPort,
    VariableCount,
};
use bf16scope_tpu::Target;

const EXAMPLES: &str = "\
Examples:
  bf16scope port model.ckpt-112590.meta
          show on one screen what a TPUEstimator's or Saver's graph becomes
  bf16scope port model.ckpt-112590.meta --checkpoint model.ckpt-112590 -o resnet
          write it to a folder too: experiment.yaml, step.hlo.pb, start.safetensors
  bf16scope port train.py
          lint a script without its graph: a cast whose result is not used, for example
  bf16scope compile model.ckpt-112590.meta --target tpu-v2
          estimate its step's time and memory on a TPU, without porting it

Nothing is run, and no TensorFlow is needed. Exit status 1: the graph shows slips.";

/// Arguments of `port`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A Saver's .meta, a SavedModel, a frozen .pb or a .pbtxt; or a script, SCRIPT.py, which is read and not run
    #[arg(value_name = "GRAPH")]
    graph: PathBuf,
    /// The checkpoint that training starts from: a prefix (model.ckpt-1000), or whatever `weights` reads; its variables are
    /// compared with the graph's
    #[arg(long, value_name = "PREFIX")]
    checkpoint: Option<PathBuf>,
    /// Write experiment.yaml, step.hlo.pb and, with a checkpoint, start.safetensors into this folder
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Batch, one core's: the experiment's, and the step's where the graph leaves it open
    #[arg(long, value_name = "N", value_parser = super::whole::whole(1..=i32::MAX as u32), allow_negative_numbers = true)]
    batch: Option<u32>,
    /// Write each layer on a line of its own, instead of blocks for parts that repeat
    #[arg(long)]
    no_blocks: bool,
    /// Write a page for the browser
    #[arg(long, value_name = "PAGE")]
    html: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `port`.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    if args.graph.extension().is_some_and(|ending| ending == "py") {
        return lint::lint(args, context);
    }
    emit::check_names(&[("--html", args.html.as_deref())], &[Some(&args.graph)])?;
    // Graph and module are not freed: for 200,000 nodes that would take half a second, and the process ends anyway.
    let graph = ManuallyDrop::new(Graph::open(&args.graph)?);
    let mut ported = tensorflow::port_with_batch(&graph, args.batch.map(i64::from));
    if args.no_blocks {
        ported.experiment = ported.experiment_by_layer.take();
    }
    let batch = ported.network.batch.or(Some(8));
    let size_of = |_: usize, dim: usize| batch.filter(|_| dim == 0);
    let lowered = ManuallyDrop::new(tensorflow::lower(&graph, &Choice { name: None, size_of: &size_of }));
    let step = match &*lowered {
        Ok(lowered) => step_in_words(lowered),
        Err(error) => format!("does not become HLO: {error}"),
    };
    let mut report = report(&graph, ported, step, lowered.as_ref().ok().map(runs));
    if let Some(prefix) = &args.checkpoint {
        report.checkpoint = checkpoint::compared(&graph, &weights::open(prefix)?);
        let rest = match (&report.experiment, &args.output) {
            (None, _) => "; no variables start from it: see what is missing of the network",
            (Some(_), None) => "; `-o FOLDER` writes start.safetensors",
            _ => "",
        };
        report.checkpoint.push_str(rest);
    }
    // The screen is shown in any case. A program reads one object: the report, or the error.
    let written = match &args.output {
        Some(folder) => write(args, folder, &mut report, lowered.as_ref().ok(), context),
        None => Ok(()),
    };
    let text = port::screen(&report, context.screen);
    if let Some(path) = &args.html {
        let page = port::page(&report).render();
        emit::replace(path, page.as_bytes())?;
    }
    match args.json {
        true if written.is_ok() => context.print_json(&report)?,
        true => (),
        false => context.print(&text)?,
    }
    written?;
    Ok(if report.slips.is_empty() { Status::Ok } else { Status::Failing })
}

fn step_in_words(lowered: &Lowered) -> String {
    let roles = &lowered.roles;
    let n: usize = lowered.module.computations.iter().map(|computation| computation.instructions.len()).sum();
    let assigned = roles.results.iter().filter(|result| result.variable.is_some()).count();
    let left_out: Vec<String> = lowered.left_out.iter().map(|(op, n)| format!("{n} {op}")).collect();
    let left_out = if left_out.is_empty() { String::new() } else { format!("; left out: {}", left_out.join(", ")) };
    format!(
        "{n} instructions of HLO, {} variables ({assigned} assigned), {} input{}{left_out}",
        roles.variables.len(),
        roles.inputs.len(),
        if roles.inputs.len() == 1 { "" } else { "s" }
    )
}

/// The part that runs as HLO in any case: a step that assigns variables, or a graph that predicts.
fn runs(lowered: &Lowered) -> &'static str {
    match lowered.roles.results.iter().any(|result| result.variable.is_some()) {
        true => "the step runs as HLO all the same",
        false => "the graph predicts as HLO all the same",
    }
}

/// The row of a note. A step that `runs` as HLO is a remedy only where the graph becomes HLO.
fn row(note: Note, runs: Option<&str>) -> NoteRow {
    let Note { node, place, callers, text, help, is_in_step } = note;
    let help = match (help.is_empty(), runs.filter(|_| is_in_step)) {
        (_, None) => help,
        (true, Some(runs)) => runs.to_string(),
        (false, Some(runs)) => format!("{help}; {runs}"),
    };
    NoteRow { node, place, callers, text, help }
}

/// The sections of the experiment, each with where the graph has it.
fn becomes(
    pipeline: &[PipelineStep],
    network: &NetworkPort,
    training: &TrainingPort,
    variables: &VariableCount,
) -> Vec<Becomes> {
    let input: Vec<&str> = pipeline.iter().map(|step| step.text.as_str()).collect();
    let at_input = pipeline.first().map(|step| step.place.clone()).unwrap_or_default();
    let unmapped = match variables.unmapped.len() {
        0 => String::new(),
        n => format!(", {n} not"),
    };
    let layers = match network.layers.len() {
        0 => String::new(),
        n => format!(
            "kind: layers, {n} layers; {} variables of {} elements under their names{unmapped}",
            variables.n_mapped,
            crate::report::grouped(variables.n_elements)
        ),
    };
    let weighed = |head: &tensorflow::HeadLine| {
        let options: String = head.options.iter().map(|(option, value)| format!(" ({option}: {value})")).collect();
        match head.weight {
            1.0 => format!("{}{options}", head.loss),
            weight => format!("{}{options} of {} times {weight}", head.loss, head.output),
        }
    };
    let losses: Vec<String> = network.heads.iter().map(weighed).collect();
    let loss = if losses.is_empty() { network.loss.clone() } else { losses.join(" + ") };
    let smoothing = match network.label_smoothing > 0.0 {
        true => format!("label_smoothing: {:?}", network.label_smoothing),
        false => String::new(),
    };
    let metrics = match (network.metrics.is_empty(), network.layers.is_empty()) {
        (true, false) => "none in the graph; `[accuracy]` where the loss is of classes".to_string(),
        _ => network.metrics.join(", "),
    };
    let mesh = training.n_cores.filter(|n| *n > 1).map(|n| format!("mesh: {{data: {n}}}")).unwrap_or_default();
    let place = |head: &tensorflow::HeadLine| {
        let (node, line, callers) = (head.node.clone(), head.place.clone(), head.callers.clone());
        Place { node, line, callers }
    };
    let at_loss = network.heads.first().map(place).unwrap_or_default();
    let at = |key: &str| training.places.get(key).cloned().unwrap_or_default();
    let nowhere = Place::default;
    let sections = [
        ("input", input.join(" → "), at_input),
        ("network", layers, nowhere()),
        ("loss", loss, at_loss),
        ("smoothing", smoothing, nowhere()),
        ("metrics", metrics, nowhere()),
        ("optimizer", training.optimizer.clone(), at("optimizer")),
        ("rate", training.learning_rate.clone(), at("learning_rate")),
        ("floor", training.learning_rate_floor.clone(), at("learning_rate")),
        ("warm-up", training.warm_up.clone(), at("learning_rate")),
        ("decay", training.weight_decay.clone(), at("weight_decay")),
        ("clipping", training.clip.clone(), at("clip")),
        ("averages", training.average.clone(), at("average")),
        ("accumulate", training.accumulate.map(|n| n.to_string()).unwrap_or_default(), at("accumulate")),
        ("trainable", training.trainable.clone(), nowhere()),
        ("mesh", mesh, nowhere()),
    ];
    let sections = sections.into_iter().filter(|(_, text, _)| !text.is_empty());
    sections
        .map(|(section, text, Place { node, line, callers })| Becomes { section, text, node, place: line, callers })
        .collect()
}

fn report(graph: &Graph, ported: Ported, step: String, runs: Option<&str>) -> PortedGraph {
    let Ported { network, training, pipeline, differs, missing, slips, experiment, variables, .. } = ported;
    let becomes = becomes(&pipeline, &network, &training, &variables);
    let step_row =
        |PipelineStep { text, place: Place { node, line, callers }, .. }| StepRow { text, node, place: line, callers };
    let rows = |notes: Vec<Note>| notes.into_iter().map(|note| row(note, runs)).collect();
    let slips = slips.into_iter().map(|slip| SlipRow {
        what: slip.kind.what(),
        why: slip.kind.why(),
        node: slip.node,
        place: slip.place,
        callers: slip.callers,
        n_nodes: slip.n_nodes,
        mend: slip.mend,
        certainty: "shown by the graph",
    });
    PortedGraph {
        graph: graph.file.clone(),
        tensorflow: graph.version.clone(),
        n_nodes: graph.body.nodes.len(),
        becomes,
        pipeline: pipeline.into_iter().map(step_row).collect(),
        differs: rows(differs),
        missing: rows(missing),
        slips: slips.collect(),
        experiment,
        step,
        checkpoint: String::new(),
        written: Vec::new(),
        names: network.names,
        layouts: network.layouts,
        variables: network.variables,
    }
}

/// Writes the folder; the experiment is read back, and its variables compared with the graph's.
fn write(
    args: &Args,
    folder: &Path,
    report: &mut PortedGraph,
    lowered: Option<&Lowered>,
    context: &Context,
) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        files::replace(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        anyhow::Ok(path.display().to_string())
    };
    if let Some(lowered) = lowered {
        verify(&lowered.module)
            .context("the module of the graph is broken, which is an error of bf16scope's: report it")?;
        report.written.push(put("step.hlo.pb", &encode::to_bytes(&lowered.module)?)?);
    }
    let Some(text) = &report.experiment else { return Ok(()) };
    let path = folder.join("experiment.yaml");
    emit::write_anew(&path, text.as_bytes())?;
    let subject = ModelSubject::read(&path, &context.setup())
        .with_context(|| format!("{} is not read back, which is an error of bf16scope's: report it", path.display()))?;
    let program = subject.build(Precision::Bf16, &Target::Cpu)?;
    let shapes: BTreeMap<&str, &Vec<i64>> =
        program.variables.iter().map(|variable| (variable.name.as_str(), &variable.dims)).collect();
    let is_other = |(name, dims): &(&String, &Vec<i64>)| {
        let ours = report.names.get(*name).map_or(name.as_str(), String::as_str);
        let n = |dims: &[i64]| dims.iter().product::<i64>();
        let is_same = |ours: &&Vec<i64>| ours == dims || report.layouts.contains_key(*name) && n(ours) == n(dims);
        !shapes.get(ours).is_some_and(is_same)
    };
    let others: Vec<String> = report.variables.iter().filter(is_other).map(|(name, _)| name.clone()).collect();
    let n_same = report.variables.len() - others.len();
    report.differs.extend(other_dims(&others, report.variables.len()));
    report.written.push(format!("{} ({n_same} of its variables have the graph's dims)", path.display()));
    let rules = put("rules.yaml", rules(&report.graph, &report.names, &report.layouts).as_bytes())?;
    report.written.push(format!("{rules} (the graph's names, for `weights --rules` and `train: {{rules: …}}`)"));
    if let Some(prefix) = &args.checkpoint {
        let start = folder.join("start.safetensors");
        let n = checkpoint::start_from(prefix, &start, &path, Path::new(&rules))?;
        report.written.push(format!("{} ({n})", start.display()));
    }
    Ok(())
}

/// The remark on variables that have no dims or other dims in the experiment, which is not the graph's network then.
fn other_dims(others: &[String], n: usize) -> Option<NoteRow> {
    let first = others.first()?;
    Some(NoteRow {
        node: String::new(),
        place: String::new(),
        callers: Vec::new(),
        text: format!("{} of {n} variables, such as `{first}`, do not have the graph's dims here", others.len()),
        help: "compare experiment.yaml with the script; the graph's checkpoint does not fit it".to_string(),
    })
}

/// The rules that map TensorFlow's variable names to ours: a rule for each renamed variable, then the names of slots and averages.
fn rules(graph: &str, names: &BTreeMap<String, String>, layouts: &BTreeMap<String, String>) -> String {
    let file = graph.rsplit('/').next().unwrap_or(graph);
    let mut text = format!("family: {file:?}\nabout: names of {file}, by `bf16scope port`\nrules:\n");
    for (theirs, ours) in names.iter().filter(|(theirs, ours)| theirs != ours || layouts.contains_key(*theirs)) {
        let layout = layouts.get(theirs).map(|layout| format!(", {layout}")).unwrap_or_default();
        let _ = writeln!(text, "  - {{ours: {ours:?}, theirs: {theirs:?}{layout}}}");
    }
    text + SLOTS
}

const SLOTS: &str = r#"  - {ours: "{*name}", theirs: "{name}"}
slots:
  # RMSProp's second slot is the momentum; if it is centered, the second slot is the mean and the third the momentum.
  momentum: ["{theirs}/Momentum", "{theirs}/LARSOptimizer", "{theirs}/RMSProp_2", "{theirs}/RMSProp_1"]
  adam_m: ["{theirs}/Adam", "{theirs}/adam_m"]
  adam_v: ["{theirs}/Adam_1", "{theirs}/adam_v"]
  adagrad: ["{theirs}/Adagrad"]
  rms: ["{theirs}/RMSProp"]
  rms_mean: [{theirs: "{theirs}/RMSProp_1", with: "{theirs}/RMSProp_2"}]
  adadelta_square: ["{theirs}/Adadelta"]
  adadelta_change: ["{theirs}/Adadelta_1"]
  adamax_m: ["{theirs}/AdaMax"]
  adamax_u: ["{theirs}/AdaMax_1"]
  nadam_m: ["{theirs}/Nadam"]
  nadam_v: ["{theirs}/Nadam_1"]
  ftrl_square: ["{theirs}/Ftrl"]
  ftrl_linear: ["{theirs}/Ftrl_1"]
averages: ["{theirs}/ExponentialMovingAverage"]
step: [global_step]
unused: ["beta{n}_power"]
"#;
