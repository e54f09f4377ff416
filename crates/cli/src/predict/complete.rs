//! `bf16scope predict --complete`: continues a text with a decoder.

use std::time::Instant;

use anyhow::bail;
use serde_json::json;

use super::Args;
use crate::progress::Phase;
use crate::report::grouped;
use crate::trained::{TrainedExperiment, by_averages, seen_from_elsewhere};
use crate::whole::whole;
use crate::{Context, Status, progress};
use bf16scope_train::checkpoint::Checkpoint;
use bf16scope_train::{Completer, Sampling};

/// Arguments for completing a text.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionArgs {
    /// Continue this text, with the tokenizer of the experiment's `data`
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["inputs", "top", "output"])]
    pub complete: Option<String>,
    /// How many tokens to add
    #[arg(long, value_name = "N", default_value_t = 100, requires = "complete", value_parser = whole(1..=u32::MAX), allow_negative_numbers = true)]
    tokens: u32,
    /// Draw each token by its probability, with logits divided by T [default: the most probable one]
    #[arg(long, value_name = "T", requires = "complete", value_parser = positive, allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Draw from the K most probable ones only
    #[arg(long, value_name = "K", requires = "temperature", value_parser = whole(1..=u32::MAX), allow_negative_numbers = true)]
    top_k: Option<u32>,
    /// Seed of the drawn tokens: the same seed gives the same text
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "temperature")]
    seed: u64,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("expected a number above 0".to_string()),
    }
}

pub(super) fn run(
    args: &Args,
    context: &Context,
    trained: &TrainedExperiment,
    checkpoint: &Checkpoint,
    text: &str,
) -> anyhow::Result<Status> {
    let TrainedExperiment { experiment, path: experiment_path, precision, checkpoint: path, .. } = trained;
    let tokenizer = match &experiment.data {
        Some(data) => data.tokenizer(experiment_path).map_err(|error| seen_from_elsewhere(error, experiment_path))?,
        None => None,
    };
    let Some(tokenizer) = tokenizer else {
        bail!(
            "{}: `data` has no `tokens`, which say what makes ids of a text\nhelp: write `tokens: {{tokenizer: FILE, window: N}}`, or \
             `tokenizer: bytes`, as in examples/gpt_bible.yaml",
            args.experiment.display()
        )
    };
    let prompt =
        tokenizer.encode(text).map_err(|error| anyhow::anyhow!("the tokenizer makes no ids of the text: {error}"))?;
    let phase = Phase::begin(format!("compiling {}", args.experiment.display()), context.quiet);
    let client = args.run.client(context)?;
    let tuning = args.run.tuning(experiment);
    let completer = Completer::new(&client, &*experiment.task(), *precision, &tuning)?;
    drop(phase);
    let CompletionArgs { tokens, temperature, top_k, seed, .. } = args.completion;
    let sampling = Sampling { temperature: temperature.unwrap_or(0.0), top_k: top_k.map(|k| k as usize), seed };
    let bar = progress::bar(u64::from(tokens), context.quiet);
    bar.set_prefix("completing");
    let began = Instant::now();
    let ids = completer.complete(path, checkpoint, &prompt, tokens as usize, &sampling, |_| bar.inc(1))?;
    let rate = f64::from(tokens) / began.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let whole = tokenizer.decode(&[&prompt[..], &ids].concat());
    if args.json {
        context.print_json(&json!({
            "experiment": experiment_path, "checkpoint": path, "precision": precision.name(),
            "steps": checkpoint.position.step, "by_averages": checkpoint.has_averages(), "prompt": prompt, "ids": ids,
            "text": whole, "temperature": temperature, "top_k": top_k, "seed": temperature.map(|_| seed),
            "tokens_per_second": rate,
        }))?;
        return Ok(Status::Ok);
    }
    let (steps, averages) = (grouped(checkpoint.position.step as i64), by_averages(checkpoint));
    let how = match (temperature, top_k) {
        (None, _) => "the most probable token each time".to_string(),
        (Some(t), None) => format!("drawn at temperature {t}, seed {seed}"),
        (Some(t), Some(k)) => format!("drawn of {k} at temperature {t}, seed {seed}"),
    };
    // Control characters must not reach the terminal.
    let shown: String =
        whole.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{FFFD}' } else { c }).collect();
    let count = grouped(i64::from(tokens));
    context.print(&format!(
        "{} in {}, after {steps} steps{averages}: {how}\n{shown}\n{count} tokens, {rate:.1} a second\n",
        path.display(),
        precision
    ))?;
    Ok(Status::Ok)
}
