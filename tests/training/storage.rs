//! Variables and slots stored in bf16: stochastic rounding bit for bit as on the host, and unbiased; small updates in
//! each storage; resumed runs; checkpoints converted between storages.

use crate::{examples, run};

use bf16scope::data::{ArrayInfo, Arrays};
use bf16scope::document;
use bf16scope::graph::{Graph, Init, Precision, Program, Storage};
use bf16scope::hlo::DType;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::models::{Model, mlp};
use bf16scope::optim::{
    LearningRate, Optimizer, ROUNDING_KEY, RoundingNoise, SlotStorage, Update, round_stochastically,
};
use bf16scope::pjrt::{Arg, Buffer, CompileOptions};
use bf16scope::train::checkpoint::{Array, Checkpoint};
use bf16scope::train::{Data, Evaluator, Objective, Resumption, RunPlan, Session, Spec, StepsPerCall, program};
use bf16scope::tuning::Tuning;
use half::bf16;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const LOW: [Storage; 3] = [Storage::Bf16Stochastic, Storage::Bf16Compensated, Storage::Bf16Nearest];

/// `w ← w − gradient`, with the gradient an input.
fn program_of(storage: Storage, dims: &[i64]) -> Program {
    let graph = Graph::training("update").storing(storage);
    let w = graph.scope().variable("w", DType::F32, dims, Init::Zeros);
    assert_eq!((w.stored.dtype(), w.value.dtype()), (storage.dtype_for(DType::F32), DType::F32));
    let gradient = graph.input("gradient", DType::F32, dims);
    let step = graph.input("step", DType::S32, []);
    let learning_rate = LearningRate::Constant { value: 1.0 };
    let update = Update { optimizer: Optimizer::SGD, learning_rate, ..Update::default() };
    update.emit(&graph, &step, &[(w.number, gradient)]);
    let result = |v: &bf16scope::graph::VariableInfo| graph.tensor(v.update.unwrap_or(v.instr));
    let results: Vec<_> = graph.variables().iter().map(result).collect();
    let results: Vec<_> = results.iter().map(|result| ("", result)).collect();
    let program = graph.finish(&results).unwrap();
    verify(&program.module).unwrap();
    program
}

const KEY: [u32; 2] = [0x0123_4567, 0x89AB_CDEF];

/// The variables after each step with the gradients of `gradient`.
fn follow(program: &Program, n_steps: i32, gradient: impl Fn(i32) -> Vec<f32>, mut look: impl FnMut(&[Buffer])) {
    let client = run::client();
    let bytes = encode::to_bytes(&program.module).unwrap();
    let executable = client.compile(&bytes, &CompileOptions::default()).unwrap();
    let dims = &program.inputs[0].dims;
    let n = dims.iter().product::<i64>() as usize;
    let start = |name: &str, dtype: DType| match name {
        ROUNDING_KEY => KEY.iter().flat_map(|word| word.to_le_bytes()).collect(),
        _ => vec![0; n * dtype.n_bytes()],
    };
    let upload = |bytes: &[u8], dtype, dims: &[i64]| client.buffer_from_host(bytes, dtype, dims, 0).unwrap();
    let mut state: Vec<Buffer> =
        program.variables.iter().map(|v| upload(&start(&v.name, v.dtype), v.dtype, &v.dims)).collect();
    for step in 0..n_steps {
        let gradient: Vec<u8> = gradient(step).iter().flat_map(|value| value.to_le_bytes()).collect();
        let inputs = [upload(&gradient, DType::F32, dims), upload(&step.to_le_bytes(), DType::S32, &[])];
        let args = state.drain(..).chain(inputs).map(Arg::Donate).collect();
        state = executable.execute(args).unwrap();
        look(&state);
    }
}

fn bf16s(buffer: &Buffer) -> Vec<bf16> {
    buffer.to_host().unwrap().as_chunks::<2>().0.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect()
}

/// From zero, a step at rate 1 with the gradient `−x` gives exactly `x`, which is then stored.
fn stored(storage: Storage, dims: &[i64], x: &[f32]) -> Vec<bf16> {
    let mut last = Vec::new();
    let gradient: Vec<f32> = x.iter().map(|x| -x).collect();
    follow(&program_of(storage, dims), 1, |_| gradient.clone(), |state| last = bf16s(&state[0]));
    last
}

/// A million numbers of both signs, with their distance from the bf16 below in 2^-16 ulps.
fn million() -> (Vec<f32>, Vec<u32>) {
    let lower = |i: u32| i.wrapping_mul(40_503) & 0xFFFF;
    let number = |i: u32| {
        // 1 to 2 and 2^-60 to 2^-59, and above and below zero.
        let upper = [0x3F80, 0xBF80, 0x2180, 0xA180][(i % 4) as usize] + (i >> 2) % 128;
        f32::from_bits(upper << 16 | lower(i))
    };
    ((0..1_000_000).map(number).collect(), (0..1_000_000).map(lower).collect())
}

#[test]
fn a_million_roundings_are_the_hosts_bit_for_bit_and_unbiased() {
    let (x, lower) = million();
    let rounded = stored(Storage::Bf16Stochastic, &[1000, 1000], &x);
    let noise = RoundingNoise::new(KEY, 0, "w");
    let host: Vec<bf16> = (0..).zip(&x).map(|(i, &x)| round_stochastically(x, noise.bits(i))).collect();
    assert!(rounded == host, "first at {:?}", rounded.iter().zip(&host).position(|(a, b)| a != b));
    // Up is away from zero: with probability p = lower / 2^16, independently. The number of ups has the variance
    // Σ p(1 − p); five of its standard deviations are missed once in 1.7 million tries, and nothing here is tried twice.
    let p = |i: usize| f64::from(lower[i]) / 65536.0;
    let deviations: Vec<f64> = (x.iter().zip(&rounded).enumerate())
        .map(|(i, (x, rounded))| f64::from(u8::from(rounded.to_bits() != (x.to_bits() >> 16) as u16)) - p(i))
        .collect();
    // All; then by the sixteenth of an ulp that the fraction is in; then by size and sign.
    let mut sums = [(0.0f64, 0.0f64); 1 + 16 + 4];
    for (i, deviation) in deviations.iter().enumerate() {
        for group in [0, 1 + (lower[i] >> 12) as usize, 17 + i % 4] {
            sums[group].0 += deviation;
            sums[group].1 += p(i) * (1.0 - p(i));
        }
    }
    for (group, (sum, variance)) in sums.into_iter().enumerate() {
        let bound = 5.0 * variance.sqrt();
        assert!(sum.abs() <= bound, "group {group}: {sum} ups more than expected, expected 0 ± {bound}");
    }
    // Neighbours along a row and along a column: two deviations of mean 0 that are independent have products of mean 0, whose
    // sum has the variance Σ p(1 − p) p'(1 − p').
    for distance in [1, 2, 1000] {
        let (mut sum, mut variance) = (0.0, 0.0);
        for i in 0..x.len() - distance {
            sum += deviations[i] * deviations[i + distance];
            variance += p(i) * (1.0 - p(i)) * p(i + distance) * (1.0 - p(i + distance));
        }
        let bound = 5.0 * f64::sqrt(variance);
        assert!(sum.abs() <= bound, "at {distance}: {sum}, expected 0 ± {bound}");
    }
}

#[test]
fn what_is_no_number_or_has_no_finite_neighbour_is_rounded_as_on_the_host() {
    let max = f32::from_bits(0x7F7F_0000);
    let special =
        [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::from_bits(0x7F80_0001), 1.0, max, f32::MAX];
    let x: Vec<f32> = special.iter().flat_map(|&x| [x, -x]).cycle().take(18 * 50).collect();
    let rounded = stored(Storage::Bf16Stochastic, &[x.len() as i64], &x);
    let noise = RoundingNoise::new(KEY, 0, "w");
    for (i, (x, rounded)) in x.iter().zip(&rounded).enumerate() {
        if x.is_nan() {
            assert!(rounded.is_nan(), "element {i}: {rounded}");
            continue;
        }
        // 0 − (−0) is +0, so a zero loses its sign before it is rounded.
        let x = if *x == 0.0 { 0.0 } else { *x };
        assert_eq!(rounded.to_bits(), round_stochastically(x, noise.bits(i as u32)).to_bits(), "element {i}: {x}");
        assert_eq!(rounded.is_finite(), x.is_finite(), "element {i}: {x}");
    }
}

/// 2^-12 is a sixteenth of the ulp of bf16 above 1 and an eighth of the half ulp that rounds up.
#[test]
fn small_updates_are_lost_by_nearest_kept_by_compensation_and_on_average_by_chance() {
    const N: usize = 4096;
    const N_STEPS: i32 = 256;
    let change = 2f32.powi(-12);
    let gradient = |step| vec![if step == 0 { -1.0 } else { -change }; N];
    let n_small = N_STEPS - 1;
    let whole = 1.0 + f64::from(n_small) * f64::from(change);
    for storage in LOW {
        let mut last: Vec<f64> = Vec::new();
        follow(&program_of(storage, &[N as i64]), N_STEPS, gradient, |state| {
            let low = match storage {
                Storage::Bf16Compensated => bf16s(&state[1]),
                _ => vec![bf16::ZERO; N],
            };
            last = bf16s(&state[0]).iter().zip(low).map(|(high, low)| high.to_f64() + low.to_f64()).collect();
        });
        let mean = last.iter().sum::<f64>() / N as f64;
        match storage {
            // Ties between 1 and the next bf16 cannot come up: 2^-12 is below half an ulp.
            Storage::Bf16Nearest => assert_eq!(mean, 1.0),
            // 2^-12 is a multiple of the ulp of the low half, 2^-8 · 2^-8 or less: nothing is rounded.
            Storage::Bf16Compensated => assert_eq!(mean, whole),
            // Each step moves an element by one ulp, 2^-7, with probability 2^-12 / 2^-7 = 2^-5; the steps of an element are
            // independent, and so are elements.
            _ => {
                let p = f64::from(change) * 128.0;
                let variance = f64::from(n_small) * p * (1.0 - p) / (128.0 * 128.0) / N as f64;
                let bound = 5.0 * variance.sqrt();
                assert!((mean - whole).abs() <= bound, "{mean}, expected {whole} ± {bound}");
            }
        }
    }
}

fn spec(storage: Storage, slots: SlotStorage, precision: Precision) -> Spec {
    let model = Model::Mlp(mlp::Config { hidden: vec![8], ..mlp::Config::new([4], 3) });
    let learning_rate = LearningRate::Constant { value: 0.01 };
    let update = Update { optimizer: Optimizer::ADAM, learning_rate, slots, ..Update::default() };
    let objective = Objective { update, ..Objective::default() };
    Spec { precision, variables: storage, batch: 8, seed: 3, objective, ..Spec::new(model.task(0.0)) }
}

fn data() -> Arrays {
    let pixels = (0..8 * 8 * 4).map(|i| ((i * 37 + i / 11) % 16) as f32 / 16.0).collect();
    examples::images(pixels, &[4], (0..64).map(|i| i * 7 % 3).collect())
}

fn train(session: &mut Session, steps: std::ops::Range<usize>) {
    let batches = examples::batches(&data(), session.spec());
    for batch in &batches[steps] {
        session.train(batch).unwrap();
    }
}

fn state_of(spec: Spec) -> BTreeMap<String, Array> {
    let mut session = Session::new(run::client(), spec).unwrap();
    train(&mut session, 0..8);
    session.state().unwrap()
}

#[test]
fn what_is_stored_is_what_was_asked_for_and_the_network_reads_it_without_a_cast() {
    for storage in LOW {
        let spec = spec(storage, SlotStorage::F32, Precision::Bf16);
        let program = program::training(&*spec.task, spec.numbers(), 8, &spec.objective).unwrap().program;
        verify(&program.module).unwrap();
        let entry = program.module.entry();
        for variable in program.variables.iter().filter(|variable| variable.trainable) {
            assert_eq!(variable.dtype, DType::BF16, "{}", variable.name);
        }
        let kernel = program.variables.iter().find(|v| v.name.ends_with("kernel")).unwrap();
        let mut readers = entry.instructions.iter().filter(|instr| instr.operands.contains(&kernel.instr));
        assert!(readers.any(|instr| instr.op.opcode() == "dot"), "no dot reads {}", kernel.name);
        let count = |end: &str| program.variables.iter().filter(|v| v.name.ends_with(end)).count();
        assert_eq!(count("/low"), if storage == Storage::Bf16Compensated { 4 } else { 0 });
        assert_eq!(count(ROUNDING_KEY), usize::from(storage == Storage::Bf16Stochastic));
        assert_eq!(program.warnings.len(), usize::from(storage == Storage::Bf16Nearest), "{:?}", program.warnings);
        // Evaluations and predictions have nothing of it, and read the same variables.
        let evaluation = program::evaluation(&*spec.task, spec.numbers(), 8, &Tuning::none()).unwrap().program;
        for variable in &evaluation.variables {
            let same = program.variables.iter().find(|v| v.name == variable.name).unwrap();
            assert_eq!((same.dtype, &same.dims), (variable.dtype, &variable.dims));
        }
    }
    let stochastic = spec(Storage::F32, SlotStorage::Bf16Stochastic, Precision::Bf16);
    let slots = program::training(&*stochastic.task, stochastic.numbers(), 8, &stochastic.objective).unwrap().program;
    let dtype = |end: &str| slots.variables.iter().find(|v| v.name.ends_with(end)).unwrap().dtype;
    assert_eq!(["kernel", "adam_m", "adam_v"].map(dtype), [DType::F32, DType::BF16, DType::BF16]);
}

/// The first step's moments, which f32 slots store exactly: each rounded one is one of the two neighbours, and not
/// always the nearer one.
#[test]
fn slots_are_rounded_up_or_down_by_chance() {
    let after_one_step = |slots| {
        let mut session = Session::new(run::client(), spec(Storage::F32, slots, Precision::Bf16)).unwrap();
        train(&mut session, 0..1);
        session.state().unwrap()
    };
    let [exact, nearest, stochastic] =
        [SlotStorage::F32, SlotStorage::Bf16, SlotStorage::Bf16Stochastic].map(after_one_step);
    let bf16s = |array: &Array| -> Vec<u16> {
        array.bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect()
    };
    let moments = exact.iter().filter(|(name, _)| name.ends_with("adam_m"));
    let (mut n_farther, mut n_between) = (0, 0);
    for (name, exact) in moments {
        let rounded = bf16s(&nearest[name]).into_iter().zip(bf16s(&stochastic[name]));
        for (exact, (nearest, stochastic)) in f32s(exact).into_iter().zip(rounded) {
            let below = (exact.to_bits() >> 16) as u16;
            assert!(stochastic == below || stochastic == below + 1, "{name}: {exact} became {stochastic:#06x}");
            n_between += usize::from(exact.to_bits() & 0xffff != 0);
            n_farther += usize::from(stochastic != nearest);
        }
    }
    // On average a quarter of those that bf16 does not represent are.
    assert!(
        n_farther * 20 > n_between && n_farther * 2 < n_between,
        "{n_farther} of {n_between} took the farther side"
    );
}

#[test]
fn a_run_that_stops_goes_on_with_the_same_bits() {
    let client = run::client();
    let path = Path::new("stopped.safetensors");
    for (storage, slots) in
        [(Storage::Bf16Stochastic, SlotStorage::Bf16Stochastic), (Storage::Bf16Compensated, SlotStorage::Bf16)]
    {
        let spec = || spec(storage, slots, Precision::Bf16);
        let mut first = Session::new(client, spec()).unwrap();
        train(&mut first, 0..3);
        let bytes = first.checkpoint(8).unwrap().to_bytes(path).unwrap();
        train(&mut first, 3..8);
        let checkpoint = Checkpoint::from_bytes(path, &bytes).unwrap();
        let mut second = Session::new(client, Spec { seed: 3, ..spec() }).unwrap();
        assert_eq!(second.restore(path, &checkpoint, Resumption::default()).unwrap(), []);
        train(&mut second, 3..8);
        assert_eq!(first.state().unwrap(), second.state().unwrap(), "{storage}");
    }
}

#[test]
fn the_noise_is_of_the_step_not_of_the_call() {
    let spec = || spec(Storage::Bf16Stochastic, SlotStorage::F32, Precision::Bf16);
    let calls = StepsPerCall::Unrolled(NonZeroU32::new(4).unwrap());
    let mut several = Session::new(run::client(), Spec { steps_per_call: calls, ..spec() }).unwrap();
    let source = data();
    let loader = examples::loader(&source, &spec());
    for first in [0, 4] {
        several.train_call(&loader.steps(0, first, 4).unwrap()).unwrap();
    }
    let mut single = Session::new(run::client(), spec()).unwrap();
    for step in 0..8 {
        single.train(&loader.steps(0, step, 1).unwrap()).unwrap();
    }
    assert_eq!(several.state().unwrap(), single.state().unwrap());
    let of_seed = |seed| state_of(Spec { seed, ..spec() })[ROUNDING_KEY].clone();
    assert_ne!(of_seed(3), of_seed(4));
}

/// The sums over micro-batches are f32 whatever the variables' storage.
#[test]
fn gradients_of_micro_batches_add_up_in_f32() {
    for precision in [Precision::F32, Precision::Bf16] {
        let mut spec = spec(Storage::Bf16Compensated, SlotStorage::F32, precision);
        spec.objective.accumulate = NonZeroU32::new(2).unwrap();
        let program = program::training(&*spec.task, spec.numbers(), 8, &spec.objective).unwrap().program;
        verify(&program.module).unwrap();
        let entry = program.module.entry();
        let [loop_] = &entry.instructions.iter().filter(|it| it.op.opcode() == "while").collect::<Vec<_>>()[..] else {
            panic!("there is one loop")
        };
        // Its state: variables, the batch, the loss scale, sums, among them those of the gradients of kernels and
        // biases.
        let f32s = loop_.shape.leaves().iter().filter(|leaf| leaf.dtype() == Some(DType::F32)).count();
        let bf16s = loop_.shape.leaves().iter().filter(|leaf| leaf.dtype() == Some(DType::BF16)).count();
        let n_variables = program.variables.iter().filter(|variable| variable.trainable).count();
        let n_images = usize::from(precision == Precision::Bf16);
        assert_eq!(bf16s, n_variables + n_images);
        assert!(f32s >= n_variables, "{}", loop_.shape);
    }
}

fn f32s(array: &Array) -> Vec<f32> {
    match array.shape.dtype {
        DType::BF16 => array.bytes.as_chunks::<2>().0.iter().map(|it| bf16::from_le_bytes(*it).to_f32()).collect(),
        _ => array.bytes.as_chunks::<4>().0.iter().map(|it| f32::from_le_bytes(*it)).collect(),
    }
}

/// A NaN, or a number without a finite bf16 near it, in a slot: the error names the variable.
#[test]
fn what_is_not_finite_in_a_slot_is_named_by_its_variable() {
    let path = Path::new("slot.safetensors");
    let slots = spec(Storage::Bf16Stochastic, SlotStorage::Bf16Stochastic, Precision::Bf16);
    let mut session = Session::new(run::client(), slots).unwrap();
    train(&mut session, 0..1);
    let good = session.checkpoint(8).unwrap();
    let slot = format!("{}/adam_v", session.trainable()[1]);
    for (bits, what) in [(0x7FC0u16, "NaN"), (0x7F80, "inf")] {
        let mut bad = good.clone();
        bad.variables.get_mut(&slot).unwrap().bytes[2..4].copy_from_slice(&bits.to_le_bytes());
        let error = session.restore(path, &bad, Resumption::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("{slot} is not finite: element 1 is {what}")), "{error}");
    }
    // Also if a run makes one: gradients of 1e30 have squares beyond f32.
    let overflowing = Update { optimizer: Optimizer::ADAM, slots: SlotStorage::Bf16Stochastic, ..Update::default() };
    let graph = Graph::training("update");
    let w = graph.scope().variable("w", DType::F32, [2], Init::Zeros);
    let gradient = graph.input("gradient", DType::F32, [2]);
    let step = graph.input("step", DType::S32, []);
    overflowing.emit(&graph, &step, &[(w.number, gradient)]);
    let names: Vec<String> = graph.variables().into_iter().map(|variable| variable.name).collect();
    assert_eq!(names, ["w", ROUNDING_KEY, "w/adam_m", "w/adam_v"]);
    let results: Vec<_> = graph.variables().iter().map(|v| graph.tensor(v.update.unwrap_or(v.instr))).collect();
    let results: Vec<_> = results.iter().map(|result| ("", result)).collect();
    let program = graph.finish(&results).unwrap();
    follow(
        &program,
        1,
        |_| vec![1e30, f32::NAN],
        |state| {
            let [m, v] = [2, 3].map(|number| bf16s(&state[number]));
            assert!(m[0].is_finite() && v[0] == bf16::INFINITY, "{m:?} {v:?}");
            assert!(m[1].is_nan() && v[1].is_nan(), "{m:?} {v:?}");
        },
    );
}

#[test]
fn a_checkpoint_goes_from_one_storage_to_another_and_back() {
    let client = run::client();
    let path = Path::new("other.safetensors");
    let stored_as = |storage| spec(storage, SlotStorage::F32, Precision::F32);
    let mut f32 = Session::new(client, stored_as(Storage::F32)).unwrap();
    train(&mut f32, 0..3);
    let masters = f32.checkpoint(8).unwrap();
    let converted = |checkpoint: &Checkpoint, storage| {
        let mut session = Session::new(client, stored_as(storage)).unwrap();
        let changes = session.restore(path, checkpoint, Resumption::default()).unwrap();
        (changes.iter().map(ToString::to_string).collect::<Vec<_>>(), session.checkpoint(8).unwrap())
    };
    let trainable: Vec<String> = f32.trainable().into_iter().map(str::to_string).collect();
    for storage in LOW {
        let (said, low) = converted(&masters, storage);
        let [rest, low_part] = match storage {
            Storage::Bf16Compensated => [", and low parts keep the rest", ", with its low part"],
            _ => ["", ""],
        };
        let rounded = "what was f32 and is bf16 now is rounded to nearest";
        assert_eq!(said, [format!("train.variables was f32, is {storage} now: {rounded}{rest}")]);
        assert_eq!(low.position.step, 3);
        let (said, back) = converted(&low, Storage::F32);
        let same = "what was bf16 is the same number in f32";
        assert_eq!(said, [format!("train.variables was {storage}, is f32 now: {same}{low_part}")]);
        for name in &trainable {
            for (before, after) in f32s(&masters.variables[name]).iter().zip(f32s(&back.variables[name])) {
                let expected = bf16::from_f32(*before).to_f32();
                match storage {
                    // The remainder of at most half an ulp of the high part, 2^-8 of it, has 8 more bits.
                    Storage::Bf16Compensated => assert!((after - before).abs() <= 2f32.powi(-17) * before.abs()),
                    _ => assert_eq!(after, expected, "{name}"),
                }
            }
        }
        // Slots do not change.
        let slots = |checkpoint: &Checkpoint| -> Vec<Array> {
            checkpoint.variables.iter().filter(|(name, _)| name.contains("/adam_")).map(|it| it.1.clone()).collect()
        };
        assert_eq!(slots(&masters), slots(&back));
        // Evaluations read f32, or bf16 widened to f32.
        let evaluator = Evaluator::new(client, &f32.spec().task, Precision::F32, 8, &Tuning::none()).unwrap();
        let evaluated =
            |checkpoint: &Checkpoint| evaluator.evaluate(path, checkpoint, &data()).unwrap().totals.to_values();
        let read = evaluated(&low);
        match storage {
            Storage::Bf16Compensated => assert_eq!(read.len(), evaluated(&back).len()),
            _ => assert_eq!(read, evaluated(&back)),
        }
    }
    // The error names a number without a bf16, and its variable.
    let mut large = masters.clone();
    let name = &trainable[0];
    large.variables.get_mut(name).unwrap().bytes[4..8].copy_from_slice(&f32::MAX.to_le_bytes());
    let mut session = Session::new(client, stored_as(Storage::Bf16Stochastic)).unwrap();
    let before = session.state().unwrap();
    let error = session.restore(path, &large, Resumption::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "other.safetensors: cannot be converted: {name} is too large for bf16: element 1 is 3.4028235e38, expected at \
             most 3.3895314e38\nhelp: go on with `variables` and `slots` as they were"
        )
    );
    assert_eq!(session.state().unwrap(), before);
}

/// A language of 24 words in which the last two determine the next, except for one in eight.
fn sentences(n: usize, seed: u64) -> Arrays {
    const LENGTH: usize = 24;
    let words = Init::RandomBits.words(seed, "sentences", &[(n * (LENGTH + 1)) as i64]);
    let (mut tokens, mut labels) = (Vec::new(), Vec::new());
    for sentence in words.chunks_exact(LENGTH + 1) {
        let mut last = [0usize, 0];
        let spoken: Vec<usize> = (sentence.iter())
            .map(|word| {
                let chance = (word >> 8) as usize % 24;
                let next =
                    if word % 8 == 0 { chance } else { (5 * last[0] + 11 * last[1] + last[0] * last[1] + 7) % 24 };
                last = [last[1], next];
                next
            })
            .collect();
        tokens.extend(spoken[..LENGTH].iter().flat_map(|&word| (word as i32).to_le_bytes()));
        labels.extend(spoken[1..].iter().flat_map(|&word| (word as i32).to_le_bytes()));
    }
    let array = |name: &str| ArrayInfo::new(name, DType::S32, [LENGTH as i64]);
    Arrays::new(Path::new("sentences"), vec![(array("tokens"), tokens), (array("labels"), labels)]).unwrap()
}

fn small_gpt(storage: Storage, seed: u64) -> Spec {
    let yaml = "{kind: transformer, vocabulary: 24, length: 24, max_length: 24, layers: 2, features: 32, heads: 2, \
                hidden: 64, causal: true, norm: pre}";
    let model: Model = document::from_str("model", yaml).unwrap();
    // 32 steps an epoch, and 12 epochs.
    let learning_rate = LearningRate::Cosine { value: 3e-3, decay_steps: NonZeroU32::new(384).unwrap(), alpha: 0.0 };
    let update = Update { optimizer: Optimizer::ADAM, learning_rate, ..Update::default() };
    let objective = Objective { update, ..Objective::default() };
    Spec { variables: storage, seed, objective, ..Spec::new(model.task(0.0)) }
}

/// The test loss and accuracy after training.
pub(super) fn learnt(spec: Spec, data: Data<'_>, n_epochs: u64) -> [f64; 2] {
    let mut session = Session::new(run::client(), spec).unwrap();
    let plan = RunPlan::new(n_epochs, None);
    let summary = bf16scope::train::run(&mut session, data, &plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
    ["loss", "accuracy"].map(|name| summary.value(name).unwrap())
}

/// Trains three seeds in each storage, prints their test losses and accuracies, and checks that plain bf16 loses. A
/// seed gives the same initial values in each storage, so losses are compared seed by seed.
pub(super) fn all_but_plain_bf16_learn(what: &str, learnt: impl Fn(Storage, u64) -> [f64; 2]) {
    let train_seeds = |storage| (storage, [0, 1, 2].map(|seed| learnt(storage, seed)));
    let outcomes: Vec<_> = Storage::ALL.into_iter().map(train_seeds).collect();
    for (storage, seeds) in &outcomes {
        let shown = seeds.map(|[loss, accuracy]| format!("{loss:.4} {:.1} %", 100.0 * accuracy));
        println!("{what} {storage}: {}", shown.join(", "));
    }
    let [masters, stochastic, compensated, nearest] = &outcomes[..] else { panic!("{outcomes:?}") };
    for seed in 0..3 {
        let loss = |outcome: &(Storage, [[f64; 2]; 3])| outcome.1[seed][0];
        for learns in [masters, stochastic, compensated] {
            assert!(loss(learns) < loss(nearest), "seed {seed}: {outcomes:?}");
        }
    }
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Twelve trainings of a small GPT; small_updates_are_lost_by_nearest_kept_by_compensation_and_on_average_by_chance is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_small_gpt_learns_in_every_storage_but_plain_bf16() {
        let (training, test) = (sentences(1024, 1), sentences(256, 2));
        let data = Data { training: &training, test: &test };
        all_but_plain_bf16_learn("small gpt", |storage, seed| learnt(small_gpt(storage, seed), data, 12));
    }
}
