//! Randomly mutated StableHLO is read without a panic and without a hang, even if XLA's converter crashes.
//! A program that is read without the converter is also valid for the converter, with the same arguments and results.
//!
//! `BF16SCOPE_MUTATIONS=2000` runs this many cases; the number of a case is its seed.

use crate::door::Folder;

use std::path::Path;
use std::time::{Duration, Instant};

use bf16scope::foreign::{self, stablehlo};
use bf16scope::hlo::proto::decode;
use bf16scope::hlo::{Module, Shape, verify};
use bf16scope::pjrt::{ChildSpec, PluginSpec, Setup, hlo_of_stablehlo, locate};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Cases of every `cargo test`: each starts a child.
const N_CASES: u64 = 40;
/// The time limit of a small program, for a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The converter's child did not come back from a type of 100,000 dimensions.
#[test]
fn a_type_of_very_many_dimensions_is_refused_here() {
    let folder = Folder::new();
    let ty = format!("tensor<{}f32>", "1x".repeat(100_000));
    let text = format!("func.func public @main(%arg0: {ty}) -> {ty} {{\n    return %arg0 : {ty}\n  }}");
    folder.write("t.mlir", format!("module @m {{\n  {text}\n}}\n"));
    assert_eq!(
        folder.refused(&["emit", "t.mlir", "--offline"]),
        "bf16scope: t.mlir:2: a tensor has 100000 dimensions; expected at most 1000\nhelp: reshape it where the program is \
         made\n"
    );
}

#[test]
fn changed_stablehlo_is_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/stablehlo");
    let names =
        ["mlp.mlir", "many.mlir", "sharded.mlir", "mlp.generic.mlir", "mlp.mlirbc", "mlp.vhlo.mlirbc", "sharded.jax"];
    let seeds: Vec<Vec<u8>> = names.iter().map(|name| std::fs::read(folder.join(name)).unwrap()).collect();
    // Conversions of this test must not fill the user's cache.
    let cache = tempfile::tempdir().unwrap();
    let library = locate(PluginSpec::cpu(), &Setup::from_env()).unwrap().path;
    let plugins = library.parent().and_then(Path::parent).unwrap();
    std::os::unix::fs::symlink(plugins, cache.path().join("plugins")).unwrap();
    let setup = Setup { cache_dir: Some(cache.path().to_path_buf()), ..Setup::from_env() };
    let spec = ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope"));
    let (mut n_read, mut n_here, mut n_refused) = (0, 0, 0);
    for case in cases() {
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
                let text = std::str::from_utf8(&bytes).ok();
                if text.is_some_and(|text| stablehlo::read(text, "changed.mlir").is_some_and(|here| here == module)) {
                    n_here += 1;
                    let hlo = hlo_of_stablehlo(&bytes, &setup, &spec);
                    let hlo = hlo.unwrap_or_else(|error| panic!("case {case} is read here, and XLA says: {error}"));
                    let hlo = decode::from_bytes(&hlo).unwrap();
                    assert_eq!(signature(&module), signature(&hlo), "case {case}");
                }
            }
            Err(error) => {
                n_refused += 1;
                assert!(!error.to_string().is_empty(), "case {case}");
            }
        }
        assert!(began.elapsed() < PATIENCE, "case {case} took {:?}", began.elapsed());
    }
    println!("{n_read} read, {n_here} of them without the converter, {n_refused} refused");
    assert!(n_read > 0 && n_refused > 0, "{n_read} read, {n_refused} refused");
}

/// As many as are asked for, or a range of them: `BF16SCOPE_MUTATIONS=700..720`.
fn cases() -> std::ops::Range<u64> {
    let asked = std::env::var("BF16SCOPE_MUTATIONS").unwrap_or_default();
    match asked.split_once("..") {
        Some((first, end)) => first.parse().unwrap()..end.parse().unwrap(),
        None => 0..asked.parse().unwrap_or(N_CASES),
    }
}

/// The arguments and results of a module, and which of them may share memory.
fn signature(module: &Module) -> (Vec<Shape>, Shape, usize) {
    let entry = module.entry();
    let parameters = entry.parameters().into_iter().map(|id| entry.instr(id).shape.without_layout());
    (parameters.collect(), entry.result_shape().without_layout(), module.input_output_alias.len())
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
