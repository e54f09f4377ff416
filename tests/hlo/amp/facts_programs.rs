//! Programs that an ordinary rounding would spoil, as JAX 0.10.2 lowers them (`facts_programs/*.hlo`, metadata left out): angles,
//! running sums, decays, distances, decompositions, in several spellings each. In one, a step of two layers under
//! `jax.checkpoint`, weights stand behind barriers. Six are written by hand: `differences_of_neighbours`,
//! `exponent_of_given_steps`, `products_of_solutions`, `singular_at_one`, `softplus_behind_a_bias`,
//! `solves_of_stacked_factors`.
//!
//! Each runs on the CPU in f32 and lowered by the default policy, excess precision off. Arguments are small random numbers.

use super::oracle::{error_of_scale, run};
use bf16scope::hlo::{Module, text};
use bf16scope::passes::amp::{self, Accumulate, Boundary, Policy, Reach};
use std::collections::BTreeSet;

/// How far the results of a lowered program may be from f32's.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// As far as sums in another order differ: 2^-23 for each of up to 2^9 terms.
    F32,
    /// This many successive roundings of 2^-9, relative to the largest element of a result.
    Roundings(u32),
    /// Twice as far as with only products in bf16 with f32 results: values between two products are rounded once more
    /// here, where they are stored.
    Products,
}

use Bound::{F32, Products, Roundings};

const PROGRAMS: [(&str, Bound); 43] = [
    ("average_by_halves", Products),
    ("beside_its_mean", Products),
    ("cholesky_of_a_kernel", F32),
    ("codes_of_constants", F32),
    ("covariance", F32),
    ("covariance_of_a_filter", F32),
    ("decay_of_a_delta_rule", Products),
    ("determinants", Products),
    ("differences_in_a_loop", Products),
    ("differences_of_neighbours", Products),
    ("differences_of_pairs", Products),
    ("distances", F32),
    ("distances_by_einsum", F32),
    ("distances_by_norms", F32),
    ("distances_lorentz", Products),
    ("exponent_of_a_scan", Products),
    ("exponent_of_a_scan_by_halves", Products),
    ("exponent_of_a_short_scan", Products),
    ("exponent_of_a_triangle", Products),
    ("exponent_of_given_steps", Products),
    // A product of angles and a weight: two roundings, and one of what is given.
    ("fourier_features", Roundings(3)),
    ("fourier_features_by_constants", Roundings(3)),
    // Gradients of products of stored arrays: two roundings for each product, and one for each array.
    ("fourier_features_trained", Roundings(6)),
    ("gram_beside_its_diagonal", F32),
    ("innovations_of_a_filter", Products),
    ("mmd", Products),
    ("moved_data", Products),
    // Rounded places look up other pixels, and depth moves a place by a difference of gradients. Three roundings for each of
    // the depth's two products, and for each of their gradients.
    ("pixels_along_rays", Roundings(12)),
    // Rounded places look up other features. A product of features and a weight, and its gradient, as above.
    ("pixels_of_moved_points", Roundings(6)),
    ("places_of_a_kernel", Products),
    ("products_of_solutions", F32),
    ("sine_of_a_scan", Products),
    ("sine_of_a_triangle", Products),
    // A small part of each place comes of two products; the rest as for `fourier_features`.
    ("sine_of_moved_places", Roundings(6)),
    ("sine_within_a_scan", Products),
    ("singular_at_one", Products),
    ("softplus_behind_a_bias", Products),
    ("solves_of_stacked_factors", F32),
    ("triplet", Products),
    ("variance_by_groups", Products),
    ("variance_by_weights", Products),
    ("variance_by_window", Products),
    ("weights_behind_barriers", Products),
];

/// Numbers with mean 0 and variance 1: sums of twelve numbers of a linear congruential generator.
fn numbers(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..n).flat_map(|_| ((0..12).map(|_| next()).sum::<f32>() - 6.0).to_le_bytes()).collect()
}

fn arguments(module: &Module) -> Vec<Vec<u8>> {
    let entry = module.entry();
    let n_elements = |id| entry.instr(id).shape.as_array().unwrap().n_elements() as usize;
    entry.parameters().into_iter().zip(1..).map(|(id, seed)| numbers(n_elements(id), seed)).collect()
}

fn folder() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hlo/amp/facts_programs")
}

fn program(name: &str) -> Module {
    let source = std::fs::read_to_string(folder().join(format!("{name}.hlo"))).unwrap();
    text::parse(&source, name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All programs.
pub fn modules() -> Vec<Module> {
    PROGRAMS.iter().map(|(name, _)| program(name)).collect()
}

#[test]
fn amplified_roundings_are_left_out() {
    let products = Policy {
        reach: Reach::Dots,
        accumulate: Accumulate::F32,
        moved: Boundary::Keep,
        loops: Boundary::Keep,
        ..Policy::default()
    };
    for (name, bound) in PROGRAMS {
        let module = program(name);
        let arguments = arguments(&module);
        let results = |policy: &Policy| {
            let (low, _) = amp::run(&module, policy).unwrap_or_else(|error| panic!("{name}: {error}"));
            run(&low, &arguments)
        };
        let (wide, low) = (run(&module, &arguments), results(&Policy::default()));
        // No other bound needs them.
        let of_products = if matches!(bound, Products) { results(&products) } else { wide.clone() };
        assert_eq!((low.len(), of_products.len()), (wide.len(), wide.len()), "{name}");
        for (((idx, wide), (_, low)), (_, of_products)) in wide.iter().zip(&low).zip(&of_products) {
            let error = error_of_scale(low, wide);
            let most = match bound {
                F32 => f64::powi(2.0, 9 - 23),
                Roundings(n) => f64::from(n) * f64::powi(2.0, -9),
                Products => 2.0 * error_of_scale(of_products, wide) + f64::powi(2.0, -9),
            };
            assert!(error <= most, "{name}: result {idx} is {error} of its scale off, expected at most {most}");
        }
    }
}

#[test]
fn each_program_has_a_bound() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let stems: BTreeSet<String> = files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(stems, PROGRAMS.iter().map(|(name, _)| name.to_string()).collect());
}
