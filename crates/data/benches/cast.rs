//! How fast 256 MiB of f32 become bf16 or f16 on one thread as the loader casts them, beside copying the same bytes.
//!
//! `cargo bench -p bf16scope-data --bench cast`; the last lines give each cast's share of memcpy's bandwidth, by input
//! bytes, and the time to transpose a batch of images to examples-last beside copying it.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use bf16scope_data::Elements;
use bf16scope_data::cast::Conversion;
use bf16scope_data::transpose::examples_last;
use bf16scope_hlo::DType;
use criterion::{Criterion, Throughput};
use half::slice::HalfFloatSliceExt;

/// 256 MiB.
const N_VALUES: usize = 64 << 20;

/// A case's name and the code that is timed.
type Case<'a> = (&'static str, Box<dyn FnMut() + 'a>);

fn bench(criterion: &mut Criterion) {
    // Not constant, and touching every page: finite values of many magnitudes.
    let src: Vec<f32> =
        (0..N_VALUES as u32).map(|idx| f32::from_bits(idx.wrapping_mul(0x9E37_79B9) & 0xBFFF_FFFF)).collect();
    let src_bytes: Vec<u8> = src.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut copy = vec![1f32; N_VALUES];
    // Our casts share this buffer in turns.
    let bytes = RefCell::new(vec![1u8; 2 * N_VALUES]);
    let mut halves = vec![half::bf16::ONE; N_VALUES];

    let mut cases: Vec<Case<'_>> = Vec::new();
    let (src, src_bytes) = (src.as_slice(), src_bytes.as_slice());
    cases.push(("memcpy", Box::new(|| black_box(&mut copy).copy_from_slice(black_box(src)))));
    for (name, elements, scale, to) in [
        ("bf16, of bytes", Elements::Bytes(src_bytes), 1.0, DType::BF16),
        ("bf16, of bytes times 1/255", Elements::Bytes(src_bytes), 1.0 / 255.0, DType::BF16),
        ("bf16, of numbers", Elements::F32s(src), 1.0, DType::BF16),
        ("f16, of bytes", Elements::Bytes(src_bytes), 1.0, DType::F16),
        ("f16, of numbers", Elements::F32s(src), 1.0, DType::F16),
    ] {
        let (conversion, bytes) = (Conversion::Cast { from: DType::F32, scale, to }, &bytes);
        let cast = move || conversion.run(black_box(elements), black_box(&mut bytes.borrow_mut()[..]));
        cases.push((name, Box::new(cast)));
    }
    cases.push(("bf16 by half's slices", Box::new(|| black_box(&mut halves).convert_from_f32_slice(black_box(src)))));

    let mut group = criterion.benchmark_group("cast 256 MiB");
    group.throughput(Throughput::Bytes(4 * N_VALUES as u64)).sample_size(20);
    for (name, case) in &mut cases {
        group.bench_function(*name, |bencher| bencher.iter(&mut *case));
    }
    group.finish();

    // The ratio is taken from rounds that run every case in turn, so that a noisy neighbour slows all of them alike.
    let mut fastest = vec![Duration::MAX; cases.len()];
    for _ in 0..15 {
        for (idx, (_, case)) in cases.iter_mut().enumerate() {
            let start = Instant::now();
            case();
            fastest[idx] = fastest[idx].min(start.elapsed());
        }
    }
    for ((name, _), time) in cases.iter().zip(&fastest) {
        let share = 100.0 * fastest[0].as_secs_f64() / time.as_secs_f64();
        let rate = 4.0 * N_VALUES as f64 / time.as_secs_f64() / 1e9;
        println!("{name}: {:.1} ms, {rate:.1} GB/s of input, {share:.0} % of memcpy", time.as_secs_f64() * 1e3);
    }
}

/// A batch of images in bf16, copied and transposed alternately.
fn hand_over() {
    const N_IMAGES: usize = 128;
    let batch: Vec<u8> = (0..N_IMAGES * 224 * 224 * 3 * 2).map(|idx| (idx * 31) as u8).collect();
    let mut fastest = [Duration::MAX; 2];
    for _ in 0..15 {
        let start = Instant::now();
        drop(black_box(black_box(&batch).to_vec()));
        fastest[0] = fastest[0].min(start.elapsed());
        let start = Instant::now();
        drop(black_box(examples_last(black_box(&batch), N_IMAGES, 2)));
        fastest[1] = fastest[1].min(start.elapsed());
    }
    let [copied, turned] = fastest.map(|time| time.as_secs_f64() * 1e3);
    println!("{N_IMAGES} images of 224×224×3 in bf16: copied in {copied:.1} ms, examples last in {turned:.1} ms");
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    bench(&mut criterion);
    hand_over();
    criterion.final_summary();
}
