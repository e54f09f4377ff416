//! Examples a second of ResNet-50's input: JPEGs of TFRecord files to batches of bf16, as `compare` here measures them beside
//! TensorFlow's `tf.data`.
//!
//! `cargo bench --bench input -- FILES evaluation|training WORKERS SECONDS` prints a line of JSON: images, seconds on the clock,
//! seconds of processor time of all threads, and the resident memory at its peak. Without arguments it does nothing: the files
//! are what `compare` makes. `overlap` or `memory` in their place is another measurement.

mod memory;
mod overlap;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bf16scope::data::image::{RandomResizedCrop, Resize};
use bf16scope::data::pipeline::Options;
use bf16scope::data::records::TfRecords;
use bf16scope::data::{Ask, Feature, FeatureSpec, Loader, Pipeline};
use bf16scope::hlo::DType;
use rustix::time::{ClockId, clock_gettime};

const BATCH: usize = 64;
const SIZE: i64 = 224;

/// ResNet's recipe of an image of so many pixels a side, by the names that ImageNet's TFRecords have.
fn features(size: i64) -> ([Feature; 2], BTreeMap<String, FeatureSpec>) {
    let image = FeatureSpec {
        key: Some("image/encoded".to_string()),
        random_resized_crop: Some(RandomResizedCrop::default()),
        resize: Some(Resize::Bicubic),
        random_flip: true,
        mean: vec![123.675, 116.28, 103.53],
        std: vec![58.395, 57.12, 57.375],
        ..FeatureSpec::default()
    };
    let label = FeatureSpec { key: Some("image/class/label".to_string()), offset: -1, ..FeatureSpec::default() };
    let features =
        [Feature::compute("image", [size, size, 3]), Feature::exact("label", DType::S32, []).label().below(1000)];
    (features, [("image".to_string(), image), ("label".to_string(), label)].into())
}

/// Seconds that all threads have computed so far.
fn processor_secs() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// MiB that are resident, or were at most (`VmHWM:`), by a line of `/proc/self/status`.
fn resident_mib(line: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|it| it.strip_prefix(line)?.trim().strip_suffix(" kB")?.parse().ok());
    value.map_or(f64::NAN, |kib: f64| kib / 1024.0)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if args == ["overlap"] {
        return overlap::measure();
    }
    if args == ["memory"] {
        return memory::measure();
    }
    let [pattern, path, n_workers, secs] = &args[..] else {
        return println!("benches/input/compare runs this with the files that it makes");
    };
    let n_workers: usize = n_workers.parse().expect("a number of workers");
    let secs: f64 = secs.parse().expect("a number of seconds");
    let files = TfRecords::files(Path::new(""), &[pattern]).expect("files of this pattern");
    let records = Arc::new(TfRecords::open(&files, None).expect("TFRecord files"));
    let (features, specs) = features(SIZE);
    let options = Options { n_workers, n_skipped_max: 0 };
    let source = Pipeline::new(records, &features, &specs, options).expect("records with an image and a label");
    let loader = Loader::new(&source, &features, DType::BF16, BATCH, 17).expect("features of the source");
    let is_training = match path.as_str() {
        "training" => true,
        "evaluation" => false,
        other => panic!("`{other}`, expected training or evaluation"),
    };
    let n_steps = loader.n_steps();
    let asks = (0u64..).map(|number| match is_training {
        true => Ask::Steps { epoch: number / n_steps, step: number % n_steps, n: 1 },
        false => Ask::InOrder { step: number % n_steps },
    });
    loader.ahead(asks, |batches| {
        let mut next = || black_box(batches.next().expect("there is always another").expect("whole images")).n_valid;
        // The first two pay for what is done once.
        next();
        next();
        let (began, computed, mut n_images) = (Instant::now(), processor_secs(), 0);
        while began.elapsed().as_secs_f64() < secs {
            n_images += next();
        }
        let (clock, processor) = (began.elapsed().as_secs_f64(), processor_secs() - computed);
        let peak = resident_mib("VmHWM:");
        println!("{{\"images\": {n_images}, \"clock\": {clock}, \"processor\": {processor}, \"peak_mib\": {peak:.1}}}");
    });
}
