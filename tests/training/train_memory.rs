//! Ten thousand training steps neither grow the process nor leave handles. The test is alone in its process, because
//! both counts are per process.

use crate::alone::alone;
use crate::{examples, run};

use bf16scope::data::Arrays;
use bf16scope::models::{Model, mlp};
use bf16scope::pjrt::{LiveHandles, live_handles};
use bf16scope::train::{Session, Spec};

/// Resident bytes of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// 64 examples of 64 features.
fn dataset() -> Arrays {
    let features = (0..64 * 64).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
    examples::images(features, &[64], (0..64).map(|i| i % 10).collect())
}

#[test]
fn ten_thousand_steps_do_not_grow_the_process() {
    alone("train_memory::ten_thousand_steps_do_not_grow_the_process", ten_thousand_steps);
}

fn ten_thousand_steps() {
    const N_STEPS: usize = 10_000;
    const N_WARM_UP: usize = 1_000;
    const BATCH: u32 = 32;
    let client = run::own_client();
    let spec = Spec { batch: BATCH, ..Spec::new(Model::Mlp(mlp::Config::new([64], 10)).task(0.0)) };
    let mut session = Session::new(&client, spec.clone()).unwrap();
    let state_bytes: usize = session.state().unwrap().values().map(|array| array.bytes.len()).sum();
    let dataset = dataset();
    let loader = examples::loader(&dataset, &spec);
    let mut stream = (0..).flat_map(|epoch| loader.epoch(epoch).map(Result::unwrap).collect::<Vec<_>>());
    let mut steps = |n: usize| {
        for batch in stream.by_ref().take(n) {
            assert!(session.train(&batch).unwrap().loss().unwrap().is_finite());
        }
        (resident_bytes(), live_handles())
    };
    // Arenas of the allocator and of the plugin's threads fill up in the first steps.
    let (bytes_before, handles_before) = steps(N_WARM_UP);
    let (bytes_after, handles_after) = steps(N_STEPS);

    assert_eq!(handles_after, handles_before);
    // The smallest possible leak of a step is the 4 bytes of the loss, for which an allocator takes 16 and the plugin's
    // buffer object hundreds. Leaking any of them in every step would show as at least this many.
    let least_leak = (N_STEPS * 256) as u64;
    let growth = bytes_after.saturating_sub(bytes_before);
    assert!(
        growth < least_leak,
        "{growth} bytes grown in {N_STEPS} steps, a state is {state_bytes}, a leak of one handle a step {least_leak}"
    );

    drop(session);
    let state_free = live_handles();
    assert_eq!((state_free.buffers, state_free.loaded_executables, state_free.executables), (0, 0, 0));
    drop(client);
    assert_eq!(live_handles(), LiveHandles::default());
}
