//! StableHLO that was changed at random, through the one door: no panic here and no hang, whatever XLA's converter does.
//!
//! `BF16SCOPE_MUTATIONS=2000` asks for so many cases; each is its number.

use std::path::Path;
use std::time::{Duration, Instant};

use bf16scope::foreign;
use bf16scope::hlo::verify;
use bf16scope::pjrt::{ChildSpec, PluginSpec, Setup, locate};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Cases of every `cargo test`: each starts a child.
const N_CASES: u64 = 40;
/// No small program takes so long, in a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn changed_stablehlo_is_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/stablehlo");
    let names =
        ["mlp.mlir", "many.mlir", "sharded.mlir", "mlp.generic.mlir", "mlp.mlirbc", "mlp.vhlo.mlirbc", "sharded.jax"];
    let seeds: Vec<Vec<u8>> = names.iter().map(|name| std::fs::read(folder.join(name)).unwrap()).collect();
    // What is converted here is worth no place in the user's cache.
    let cache = tempfile::tempdir().unwrap();
    let library = locate(PluginSpec::cpu(), &Setup::from_env()).unwrap().path;
    let plugins = library.parent().and_then(Path::parent).unwrap();
    std::os::unix::fs::symlink(plugins, cache.path().join("plugins")).unwrap();
    let setup = Setup { cache_dir: Some(cache.path().to_path_buf()), ..Setup::from_env() };
    let spec = ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope"));
    let n_cases = std::env::var("BF16SCOPE_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(N_CASES);
    let (mut n_read, mut n_refused) = (0, 0);
    for case in 0..n_cases {
        let mut random = SmallRng::seed_from_u64(case);
        let mut bytes = seeds[random.random_range(0..seeds.len())].clone();
        for _ in 0..random.random_range(1..4) {
            change(&mut bytes, &mut random);
        }
        let began = Instant::now();
        match foreign::read(&bytes, "changed.mlir", &setup, &spec) {
            // Verified or refused: what is then done with a module is asked elsewhere.
            Ok(module) => {
                n_read += 1;
                drop(verify(&module));
            }
            Err(error) => {
                n_refused += 1;
                assert!(!error.to_string().is_empty(), "case {case}");
            }
        }
        assert!(began.elapsed() < PATIENCE, "case {case} took {:?}", began.elapsed());
    }
    println!("{n_read} read, {n_refused} refused");
    assert!(n_read > 0 && n_refused > 0, "{n_read} read, {n_refused} refused");
}

/// One change: a byte, a piece taken out, doubled, or put elsewhere.
fn change(bytes: &mut Vec<u8>, random: &mut SmallRng) {
    let n = bytes.len();
    let at = random.random_range(0..n);
    let end = (at + random.random_range(1..40)).min(n);
    match random.random_range(0..5) {
        0 => bytes[at] = random.random(),
        // A digit for a digit: sizes, dimensions, numbers of values.
        1 => match bytes[at..].iter().position(u8::is_ascii_digit) {
            Some(digit) => bytes[at + digit] = b'0' + random.random_range(0..10u8),
            None => bytes[at] ^= 1,
        },
        2 => drop(bytes.drain(at..end.min(at + (n - 1)))),
        3 => {
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => {
            let piece = bytes[at..end].to_vec();
            let to = random.random_range(0..n);
            bytes.splice(to..to, piece);
        }
    }
}
