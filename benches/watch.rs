//! What watching costs: a run that looks at every fiftieth step beside one that does not.
//!
//! `cargo bench --bench watch`. Measured is the time of fifty steps, one of which is looked at, as `train` makes them: batches,
//! reports and all. The two take turns, as neighbours on the machine come and go.

use bf16scope::data::{ArrayInfo, Arrays};
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::models::{Model, cnn, mlp};
use bf16scope::pjrt::Client;
use bf16scope::train::watch::Watch;
use bf16scope::train::{Data, Event, RunPlan, Session, Spec, run};
use criterion::Criterion;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const BATCH: usize = 128;
const EVERY: u32 = 50;
/// Each run has so many windows of fifty steps.
const WINDOWS: usize = 4;
const ROUNDS: usize = 15;

fn examples() -> Arrays {
    let n = BATCH * (WINDOWS * EVERY as usize + 1);
    let images = (0..n * 64).flat_map(|i| ((i * 37 % 101) as f32 / 101.0).to_le_bytes()).collect();
    let labels = (0..n as i32).flat_map(|i| (i % 10).to_le_bytes()).collect();
    let arrays = vec![
        (ArrayInfo::new("images", DType::F32, [8, 8, 1]), images),
        (ArrayInfo::new("labels", DType::S32, []), labels),
    ];
    Arrays::new(Path::new("examples"), arrays).expect("both hold as many examples")
}

/// The time of fifty steps, those between the first and the last of a run.
fn fifty_steps(client: &Client, spec: &Spec, data: Data<'_>, watch: Option<Watch>) -> Duration {
    let mut session = Session::new(client, spec.clone()).expect("the network compiles");
    let (mut first, mut last) = (None, None);
    let plan = RunPlan { watch, ..RunPlan::new(1, None) };
    run(&mut session, data, &plan, &AtomicBool::new(false), &mut |event| {
        if let Event::Step { .. } = event {
            first.get_or_insert_with(Instant::now);
            last = Some(Instant::now());
        }
    })
    .expect("it trains");
    let all = last.zip(first).map_or(Duration::ZERO, |(last, first)| last - first);
    all / WINDOWS as u32
}

fn watch(criterion: &mut Criterion) {
    let client = Client::cpu().expect("the CPU plugin is installed on first use").keeping(8);
    let examples = examples();
    let data = Data { training: &examples, test: &examples };
    let watch = Some(Watch { every: NonZeroU32::new(EVERY).expect("it is not 0") });
    let models =
        [("mlp", Model::Mlp(mlp::Config::new([8, 8, 1], 10))), ("cnn", Model::Cnn(cnn::Config::new([8, 8, 1], 10)))];
    let mut group = criterion.benchmark_group("fifty_steps");
    group.sample_size(10);
    for (name, model) in models {
        let spec = Spec { precision: Precision::Bf16, batch: BATCH as u32, ..Spec::new(model.task(0.0)) };
        let best = |watch: Option<Watch>| fifty_steps(&client, &spec, data, watch);
        let (mut plain, mut watched) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            plain = plain.min(best(None));
            watched = watched.min(best(watch));
        }
        let ratio = watched.as_secs_f64() / plain.as_secs_f64();
        println!(
            "{name}: fifty steps {:.1} ms, with a look {:.1} ms, best of {ROUNDS} rounds that take turns: {ratio:.3} times",
            1e3 * plain.as_secs_f64(),
            1e3 * watched.as_secs_f64()
        );
        for (which, watch) in [("plain", None), ("watched", watch)] {
            group.bench_function(format!("{name}/{which}"), |bencher| {
                bencher.iter_custom(|n| (0..n).map(|_| fifty_steps(&client, &spec, data, watch)).sum());
            });
        }
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    watch(&mut criterion);
    criterion.final_summary();
}
