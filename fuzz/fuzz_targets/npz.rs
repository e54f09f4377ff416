//! Any bytes as an `.npz`, and as an array in one whose checksums are right: an error that prints, or arrays.
#![no_main]

use std::io::Write as _;
use std::path::Path;

use bf16scope::data::npz::NpzReader;
use libfuzzer_sys::fuzz_target;
use zip::write::SimpleFileOptions;

fn read(path: &Path) -> Result<(), String> {
    let mut reader = NpzReader::open(path).map_err(|error| error.to_string())?;
    let names: Vec<String> = reader.names().map(str::to_string).collect();
    for name in names {
        if let Some(entry) = reader.entry(&name).map_err(|error| error.to_string())? {
            entry.read().map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// An archive of these arrays, which end where a byte says.
fn archive(bytes: &[u8]) -> Vec<u8> {
    let (first, second) = bytes.split_at(bytes.first().map_or(0, |n| usize::from(*n) * bytes.len() / 256));
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, member, method) in
        [("a.npy", first, zip::CompressionMethod::Stored), ("b.npy", second, zip::CompressionMethod::Deflated)]
    {
        zip.start_file(name, SimpleFileOptions::default().compression_method(method)).expect("memory for it");
        zip.write_all(member).expect("memory for it");
    }
    zip.finish().expect("memory for it").into_inner()
}

fuzz_target!(|bytes: &[u8]| {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    for bytes in [bytes.to_vec(), archive(bytes)] {
        std::fs::write(file.path(), bytes).expect("it is writable");
        let _ = read(file.path());
    }
});
