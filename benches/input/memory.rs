//! How much memory the input pipeline holds while a million records pass.
//!
//! `cargo bench --bench input -- memory` writes a million records (the drawings of `tests/data/input`, JPEG and PNG, again and
//! again, in ten files of about 130 MB in the system's temporary folder), reads them once in a shuffled order by two workers
//! (random crops of 32 × 32, batches of 64), and prints what is resident on the way: memory of the process itself, and pages of
//! files, which the system takes back when it needs them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use bf16scope::data::pipeline::Options;
use bf16scope::data::records::{Records as _, TfRecords};
use bf16scope::data::{Ask, Loader, Pipeline};
use bf16scope::hlo::DType;

use super::{BATCH, features, resident_mib};

const N_RECORDS: u64 = 1_000_000;
const N_FILES: u64 = 10;
const SIZE: i64 = 32;

/// A million records in a folder. A file of TFRecords after another is a file of TFRecords.
fn write(folder: &Path) -> std::io::Result<()> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input");
    let paths = TfRecords::files(&from, &["shapes-*"]).expect("the drawings");
    let n_drawings = TfRecords::open(&paths, None).expect("the drawings").n_records();
    let drawings = paths.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>()?.concat();
    for number in 0..N_FILES {
        let mut file = BufWriter::new(File::create(folder.join(format!("part-{number:02}")))?);
        for _ in 0..(N_RECORDS / N_FILES).div_ceil(n_drawings) {
            file.write_all(&drawings)?;
        }
        file.flush()?;
    }
    Ok(())
}

pub(super) fn measure() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(folder.path()).expect("a gigabyte and a half of space");
    let files = TfRecords::files(folder.path(), &["part-*"]).expect("the files just written");
    let records = Arc::new(TfRecords::open(&files, None).expect("TFRecord files"));
    let (features, specs) = features(SIZE);
    let options = Options { n_workers: 2, n_skipped_max: 0 };
    let source = Pipeline::new(records, &features, &specs, options).expect("records with an image and a label");
    let loader = Loader::new(&source, &features, DType::BF16, BATCH, 17).expect("features of the source");
    let n_steps = loader.n_steps();
    let asks = (0..n_steps).map(|step| Ask::Steps { epoch: 0, step, n: 1 });
    loader.ahead(asks, |batches| {
        let (mut n_examples, mut next) = (0, 1000);
        for batch in batches {
            n_examples += batch.expect("whole images").n_valid;
            if n_examples as u64 >= next {
                let (own, of_files) = (resident_mib("RssAnon:"), resident_mib("RssFile:"));
                println!("{n_examples:>9} examples: {own:.1} MiB of its own, {of_files:.1} MiB of files");
                next *= 10;
            }
        }
        let (own, of_files) = (resident_mib("RssAnon:"), resident_mib("RssFile:"));
        println!(
            "{n_examples:>9} examples: {own:.1} MiB of its own, {of_files:.1} MiB of files, {:.1} MiB at its peak",
            resident_mib("VmHWM:")
        );
    });
}
