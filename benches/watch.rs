//! The cost of watching: a look beside the steps of the same run.
//!
//! `cargo bench --bench watch`. Measured are single steps and looks as `train` makes them, batches, reports and all, and the
//! least of each is taken: neighbours on the machine lengthen both, and not by the same.

use bf16scope::data::{ArrayInfo, Arrays};
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::models::{Model, cnn, mlp};
use bf16scope::pjrt::Client;
use bf16scope::train::watch::Watch;
use bf16scope::train::{Data, Event, RunPlan, Session, Spec, run};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const BATCH: usize = 128;
const EVERY: u32 = 50;
/// Each run has so many looks after its first step.
const N_LOOKS: usize = 4;
const ROUNDS: usize = 5;

fn examples() -> Arrays {
    let n = BATCH * (N_LOOKS * EVERY as usize + 1);
    let images = (0..n * 64).flat_map(|i| ((i * 37 % 101) as f32 / 101.0).to_le_bytes()).collect();
    let labels = (0..n as i32).flat_map(|i| (i % 10).to_le_bytes()).collect();
    let arrays = vec![
        (ArrayInfo::new("images", DType::F32, [8, 8, 1]), images),
        (ArrayInfo::new("labels", DType::S32, []), labels),
    ];
    Arrays::new(Path::new("examples"), arrays).expect("both hold as many examples")
}

/// The least time of a step that is not looked at, and of a look: from the step before it until it is told of.
fn step_and_look(client: &Client, spec: &Spec, data: Data<'_>, best: &mut [Duration; 2]) {
    let mut session = Session::new(client, spec.clone()).expect("the network compiles");
    let watch = Some(Watch { every: NonZeroU32::new(EVERY).expect("it is not 0") });
    let (mut last, mut was_look) = (None::<Instant>, false);
    run(&mut session, data, &RunPlan { watch, ..RunPlan::new(1, None) }, &AtomicBool::new(false), &mut |event| {
        let is_look = match event {
            Event::Watched(_) => true,
            Event::Step { .. } => false,
            _ => return,
        };
        let now = Instant::now();
        // A step after a look begins where the look ends, without the wait for its batch.
        if let (Some(last), false) = (last, was_look) {
            let best = &mut best[usize::from(is_look)];
            *best = (*best).min(now - last);
        }
        (last, was_look) = (Some(now), is_look);
    })
    .expect("it trains");
}

fn main() {
    // `cargo test --benches` asks whether it runs.
    let n_rounds = if std::env::args().any(|arg| arg == "--bench") { ROUNDS } else { 1 };
    let client = Client::cpu().expect("the CPU plugin is installed on first use").keeping(8);
    let examples = examples();
    let data = Data { training: &examples, test: &examples };
    let models =
        [("mlp", Model::Mlp(mlp::Config::new([8, 8, 1], 10))), ("cnn", Model::Cnn(cnn::Config::new([8, 8, 1], 10)))];
    for (name, model) in models {
        let spec = Spec { precision: Precision::Bf16, batch: BATCH as u32, ..Spec::new(model.task(0.0)) };
        let mut best = [Duration::MAX; 2];
        (0..n_rounds).for_each(|_| step_and_look(&client, &spec, data, &mut best));
        let [step, look] = best.map(|best| 1e3 * best.as_secs_f64());
        let ratio = 1.0 + look / (f64::from(EVERY) * step);
        println!(
            "{name}: a step {step:.2} ms, a look {look:.2} ms, the best of {n_rounds} runs: {ratio:.3} times every {EVERY}"
        );
    }
}
