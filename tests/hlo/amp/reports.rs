//! Programs of `tests/data/reports`, each of a kind that users of bf16 report as wrong: lowered by the default policy
//! and run on the CPU, excess precision off, they are as near to f32 as the same program with the roundings of a
//! hand-written form (`tests/data/reports/make.py` derives the bounds). Those that are not yet are in
//! `known_failures.txt`.

use super::corpus::{module_in, names_in};
use super::known_failures::judge;
use crate::run::run_bytes;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::{DType, Literal, Module};
use bf16scope::passes::amp::{self, Policy};
use bf16scope::pjrt::CompileOptions;
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reports")
}

/// The recording of a program.
struct Recorded {
    arguments: Vec<Literal>,
    expected: Vec<Literal>,
    /// The bound on the norm of each result's error, relative to the result's norm.
    bounds: Vec<f64>,
}

impl Recorded {
    fn read(name: &str) -> Recorded {
        let mut npz = NpzReader::new(File::open(folder().join(format!("{name}.npz"))).unwrap()).unwrap();
        let names = npz.names().unwrap();
        let mut numbered = |prefix: &str| -> Vec<Literal> {
            let n = names.iter().filter(|name| name.starts_with(prefix)).count();
            (0..n).map(|at| literal(&mut npz, &format!("{prefix}{at}"))).collect()
        };
        let (arguments, expected) = (numbered("in"), numbered("out"));
        let bounds: ArrayD<f64> = npz.by_name("bounds").unwrap();
        Recorded { arguments, expected, bounds: bounds.into_iter().collect() }
    }
}

/// An array of f32 or s32.
fn literal(npz: &mut NpzReader<File>, name: &str) -> Literal {
    let dims = |shape: &[usize]| shape.iter().map(|&dim| dim as i64).collect::<Vec<i64>>();
    if let Ok(array) = npz.by_name::<ndarray::OwnedRepr<f32>, ndarray::IxDyn>(name) {
        return Literal::from_elements(dims(array.shape()), &array.iter().copied().collect::<Vec<f32>>());
    }
    let array: ArrayD<i32> = npz.by_name(name).unwrap();
    Literal::from_elements(dims(array.shape()), &array.iter().copied().collect::<Vec<i32>>())
}

/// The largest violation by a module's results, if any.
fn wrong(module: &Module, recorded: &Recorded) -> Option<String> {
    let results = run_bytes(&encode::to_bytes(module).unwrap(), &CompileOptions::default(), &recorded.arguments);
    assert_eq!(results.len(), recorded.expected.len());
    let cases = results.iter().zip(&recorded.expected).zip(&recorded.bounds).enumerate();
    let wrong = cases.filter_map(|(nth, ((measured, expected), &bound))| {
        if expected.shape().dtype() != Some(DType::F32) {
            return (measured != expected).then(|| (f64::INFINITY, format!("result {nth} is not the same")));
        }
        let [measured, expected] = [measured, expected].map(|literal| literal.elements::<f32>().unwrap());
        let squared = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
        let size = squared(&mut expected.iter().map(|&x| f64::from(x)));
        let error = squared(&mut measured.iter().zip(&expected).map(|(&x, &y)| f64::from(x) - f64::from(y))) / size;
        // NaN is within no bound.
        let is_within = error <= bound || error == 0.0;
        (!is_within)
            .then(|| (error / bound, format!("result {nth} is off by {error:.2e}, expected at most {bound:.2e}")))
    });
    wrong.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, what)| what)
}

/// Those that are wrong are also run in f32.
#[test]
fn programs_behind_reports_are_as_right_as_by_hand() {
    let mut failing = BTreeMap::new();
    for name in names_in(&folder()) {
        let (module, recorded) = (module_in(&folder(), &name), Recorded::read(&name));
        let (lowered, _) = amp::run(&module, &Policy::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Some(what) = wrong(&lowered, &recorded) {
            is_right_in_f32(&name, &module, &recorded);
            failing.insert(name, what);
        }
    }
    judge("reports", &failing);
}

fn is_right_in_f32(name: &str, module: &Module, recorded: &Recorded) {
    if let Some(what) = wrong(module, recorded) {
        panic!("{name} in f32, which is no matter of lowering: {what}");
    }
}

/// All programs.
pub fn modules() -> Vec<Module> {
    names_in(&folder()).iter().map(|name| module_in(&folder(), name)).collect()
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Compiles each once more.
    #[cfg_attr(feature = "long-tests", test)]
    fn programs_behind_reports_are_right_in_f32() {
        for name in names_in(&folder()) {
            is_right_in_f32(&name, &module_in(&folder(), &name), &Recorded::read(&name));
        }
    }
}
