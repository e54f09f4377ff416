//! Tars whose files all have different extensions.

use std::path::PathBuf;
use std::time::Instant;

use bf16scope::data::records::Tars;

/// A header of a file without bytes.
fn header(name: &str) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    block[124..135].copy_from_slice(b"00000000000");
    block[148..156].fill(b' ');
    block[156] = b'0';
    block[257..263].copy_from_slice(b"ustar\0");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Regression: 300,000 extensions took 79 seconds, since each was searched for among all others, in quadratic time.
#[test]
fn so_many_endings_take_so_much_longer() {
    let folder = tempfile::tempdir().unwrap();
    let path = |n: usize| -> PathBuf {
        let path = folder.path().join(format!("{n}.tar"));
        let mut bytes: Vec<u8> = (0..n).flat_map(|at| header(&format!("a.{at}"))).collect();
        bytes.extend([0; 1024]);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let (few, many) = (path(10_000), path(40_000));
    // The least of several: others take the processor, too.
    let time = |path: &PathBuf| {
        let once = |_| {
            let began = Instant::now();
            Tars::open(std::slice::from_ref(path), None).unwrap();
            began.elapsed().as_secs_f64()
        };
        (0..3).map(once).fold(f64::INFINITY, f64::min)
    };
    let (of_few, of_many) = (time(&few), time(&many));
    assert!(of_many < 10.0 * of_few, "{of_few:.3} s of 10,000 endings, {of_many:.3} s of 40,000");
}
