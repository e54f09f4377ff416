//! How much of the time that examples take is hidden behind the steps that use them.
//!
//! `cargo bench --bench input -- overlap` trains a perceptron on the CPU plugin three times: on examples that are there, on
//! examples that are waited for as long as a step takes, without processor time, and on examples that are computed for as long,
//! by as many workers as there are cores, as by default.
//! Of the second it prints the run over the longer of the two, and of the third how much of the cores was used: on a machine
//! that others use, only the first of these says anything.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bf16scope::data::source::{Fingerprint, Reading};
use bf16scope::data::{ArrayInfo, Arrays, DataError, Source};
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::models::{Model, mlp};
use bf16scope::pjrt::Client;
use bf16scope::train::{Data, Event, RunPlan, Session, Spec, run};

use super::processor_secs;

const N_INPUTS: i64 = 1024;
const BATCH: u32 = 64;
const N_STEPS: usize = 40;

/// The cost of reading an example.
#[derive(Clone, Copy, Debug)]
enum Cost {
    Nothing,
    Wait(Duration),
    Compute(Duration),
}

/// Examples in memory that take their time, by so many workers.
#[derive(Debug)]
struct Slow {
    arrays: Arrays,
    cost: Cost,
    n_workers: usize,
}

impl Source for Slow {
    fn n_examples(&self) -> u64 {
        self.arrays.n_examples()
    }

    fn arrays(&self) -> &[ArrayInfo] {
        self.arrays.arrays()
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        match self.cost {
            Cost::Nothing => {}
            Cost::Wait(time) => std::thread::sleep(time),
            Cost::Compute(time) => {
                let began = processor_secs_of_thread();
                while processor_secs_of_thread() - began < time.as_secs_f64() {}
            }
        }
        self.arrays.read(index)
    }

    fn place(&self, index: u64) -> String {
        self.arrays.place(index)
    }

    fn fingerprint(&self) -> Fingerprint {
        self.arrays.fingerprint()
    }

    fn reading(&self) -> Reading {
        Reading { n_workers: self.n_workers, is_costly: true }
    }
}

fn processor_secs_of_thread() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn examples(n: usize) -> Arrays {
    let images = (0..n * N_INPUTS as usize).flat_map(|i| ((i * 37 % 101) as f32 / 101.0).to_le_bytes()).collect();
    let labels = (0..n as i32).flat_map(|i| (i % 10).to_le_bytes()).collect();
    let arrays = vec![
        (ArrayInfo::new("images", DType::F32, [N_INPUTS]), images),
        (ArrayInfo::new("labels", DType::S32, []), labels),
    ];
    Arrays::new(Path::new("examples"), arrays).expect("both hold as many examples")
}

/// Seconds of an epoch by the clock, those of them that data were waited for, and how many cores were used on average.
fn epoch(client: &Client, spec: &Spec, source: &Slow) -> [f64; 3] {
    let mut session = Session::new(client, spec.clone()).expect("the MLP compiles");
    let test = examples(BATCH as usize);
    let data = Data { training: source, test: &test };
    // Two epochs, of which the second counts: the first pays for what is done once.
    let plan = RunPlan::new(2, None);
    let (mut found, mut first) = ([0.0; 3], (Instant::now(), 0.0));
    let mut observe = |event: Event<'_>| match event {
        Event::Epoch(report) => {
            let clock = (N_STEPS * BATCH as usize) as f64 / report.examples_per_second;
            found[..2].copy_from_slice(&[clock, clock * report.waited_for_data.unwrap_or_default()]);
        }
        Event::Step { step: 1, .. } => first = (Instant::now(), processor_secs()),
        Event::Step { step, .. } if step as usize == N_STEPS => {
            found[2] = (processor_secs() - first.1) / first.0.elapsed().as_secs_f64();
        }
        _ => {}
    };
    run(&mut session, data, &plan, &AtomicBool::new(false), &mut observe).expect("it trains");
    found
}

pub fn measure() {
    let client = Client::cpu().expect("the CPU plugin is installed on first use");
    let model = Model::Mlp(mlp::Config { hidden: vec![2048, 2048], ..mlp::Config::new([N_INPUTS], 10) });
    let spec = Spec { precision: Precision::F32, batch: BATCH, ..Spec::new(model.task(0.0)) };
    let n_cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let arrays = || examples(N_STEPS * BATCH as usize);
    let [alone, _, _] = epoch(&client, &spec, &Slow { arrays: arrays(), cost: Cost::Nothing, n_workers: 1 });
    println!("steps alone: {:.1} ms each", 1e3 * alone / N_STEPS as f64);

    let each = Duration::from_secs_f64(alone / (N_STEPS * BATCH as usize) as f64) * n_cores as u32;
    let source = Slow { arrays: arrays(), cost: Cost::Wait(each), n_workers: n_cores };
    let began = Instant::now();
    for index in 0..BATCH.into() {
        source.read(index).expect("it is there");
    }
    // A sleep takes longer than was asked for.
    let waits = began.elapsed().as_secs_f64() * N_STEPS as f64 / n_cores as f64;
    let [clock, waited, _] = epoch(&client, &spec, &source);
    let longer = waits.max(clock - waited);
    println!(
        "examples that are waited for as long: {clock:.2} s, of which {waited:.2} s were spent waiting; the steps took {:.2} s \
         and the examples {waits:.2} s: {:.2} times the longer",
        clock - waited,
        clock / longer
    );

    let source = Slow { arrays: arrays(), cost: Cost::Compute(each), n_workers: n_cores };
    let [clock, _, used] = epoch(&client, &spec, &source);
    let share = 100.0 * used / n_cores as f64;
    println!("examples that are computed for as long: {clock:.2} s, {share:.0} % of {n_cores} cores used");
}
