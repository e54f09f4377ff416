//! Throughput of an epoch of batches from arrays in memory, beside the plain cast of the same numbers.
//!
//! `cargo bench -p bf16scope-data --bench batch`. The baseline casts the same number of f32 to bf16, in order and in
//! one piece per batch, into newly allocated memory like a batch's; the difference is the cost of finding, shuffling,
//! checking and naming examples. The last lines are shares of the baseline's speed.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use bf16scope_data::cast::Conversion;
use bf16scope_data::{ArrayInfo, Arrays, Elements, Feature, Loader, Source};
use bf16scope_hlo::DType;
use bf16scope_hlo::element::are_finite;
use criterion::{Criterion, Throughput};

/// CIFAR's image shape, and the batch size of one core.
const DIMS: [i64; 3] = [32, 32, 3];
const N_EXAMPLES: usize = 10_000;
const BATCH: usize = 250;
const N_VALUES: usize = 32 * 32 * 3;

/// A case's name and the code that is timed.
type Case<'a> = (&'static str, Box<dyn Fn() + 'a>);

fn source(dtype: DType, images: Vec<u8>) -> Arrays {
    let labels = (0..N_EXAMPLES).map(|idx| (idx % 10) as u8).collect();
    let arrays = vec![(ArrayInfo::new("image", dtype, DIMS), images), (ArrayInfo::new("label", DType::U8, []), labels)];
    Arrays::new(Path::new("bench"), arrays).expect("whole examples").scaled("image", 1.0 / 255.0).expect("an image")
}

/// As the loader casts numbers.
fn to_bf16(values: &[f32], bytes: &mut [u8]) {
    let conversion = Conversion::Cast { from: DType::F32, scale: 1.0, to: DType::BF16 };
    conversion.run(Elements::F32s(values), bytes);
}

fn epoch(loader: &Loader<'_>) {
    for batch in loader.epoch(black_box(1)) {
        black_box(batch.expect("whole examples"));
    }
}

fn bench(criterion: &mut Criterion) {
    let bytes: Vec<u8> =
        (0..(N_EXAMPLES * N_VALUES) as u32).map(|idx| (idx.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    let floats: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte)).collect();
    let as_floats = source(DType::F32, floats.iter().flat_map(|value| value.to_le_bytes()).collect());
    let as_bytes = source(DType::U8, bytes);
    let features = [Feature::compute("image", DIMS), Feature::exact("label", DType::S32, []).label().below(10)];
    let loader = |source| Loader::new(source, &features, DType::BF16, BATCH, 7).expect("features of the source");
    let (of_floats, of_bytes) = (loader(&as_floats as &dyn Source), loader(&as_bytes));
    let shifted = of_floats.clone().shifted(4).expect("images");

    let cases: Vec<Case<'_>> = vec![
        (
            "plain cast",
            Box::new(|| {
                for values in floats.chunks(BATCH * N_VALUES) {
                    let mut bytes = vec![0; 2 * values.len()];
                    to_bf16(black_box(values), &mut bytes);
                    black_box(bytes);
                }
            }),
        ),
        (
            // The cost of checking every number: the loader checks the numbers that it has just cast.
            "plain cast, and whether all are finite",
            Box::new(|| {
                for values in floats.chunks(BATCH * N_VALUES) {
                    let mut bytes = vec![0; 2 * values.len()];
                    // As the loader treats an example: cast it, then check it while it is in the cache.
                    for (values, bytes) in values.chunks(N_VALUES).zip(bytes.chunks_mut(2 * N_VALUES)) {
                        to_bf16(black_box(values), bytes);
                        assert!(are_finite(DType::BF16, bytes), "whole numbers of a byte");
                    }
                    black_box(bytes);
                }
            }),
        ),
        ("batches of f32", Box::new(|| epoch(&of_floats))),
        ("batches of f32, shifted", Box::new(|| epoch(&shifted))),
        ("batches of u8", Box::new(|| epoch(&of_bytes))),
    ];
    let mut group = criterion.benchmark_group("10000 images to bf16");
    group.throughput(Throughput::Elements(N_EXAMPLES as u64)).sample_size(20);
    for (name, case) in &cases {
        group.bench_function(*name, |bencher| bencher.iter(case));
    }
    group.finish();

    // The ratio is taken from rounds that run every case in turn, so that a noisy neighbour slows all of them alike.
    let mut fastest = vec![Duration::MAX; cases.len()];
    for _ in 0..15 {
        for ((_, case), fastest) in cases.iter().zip(&mut fastest) {
            let start = Instant::now();
            case();
            *fastest = start.elapsed().min(*fastest);
        }
    }
    for ((name, _), time) in cases.iter().zip(&fastest) {
        let share = 100.0 * fastest[0].as_secs_f64() / time.as_secs_f64();
        let rate = N_EXAMPLES as f64 / time.as_secs_f64() / 1e6;
        println!(
            "{name}: {:.1} ms, {rate:.2} million images/s, {share:.0} % of the plain cast",
            time.as_secs_f64() * 1e3
        );
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    bench(&mut criterion);
    criterion.final_summary();
}
