//! The modules from JAX and TensorFlow, with recorded arguments and results, and runs of them.

use crate::run::run_bytes;
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::{DType, Literal, Module};
use bf16scope::pjrt::CompileOptions;
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Variables of TensorFlow's networks in the order of the modules' parameters, after input and labels.
const MLP: [&str; 4] = ["fc1/kernel", "fc1/bias", "fc2/kernel", "fc2/bias"];
const RESNET: [&str; 17] = [
    "conv0/kernel",
    "bn0/gamma",
    "bn0/beta",
    "c1/kernel",
    "b1/gamma",
    "b1/beta",
    "c2/kernel",
    "b2/gamma",
    "b2/beta",
    "c3/kernel",
    "b3/gamma",
    "b3/beta",
    "proj/kernel",
    "bproj/gamma",
    "bproj/beta",
    "fc/kernel",
    "fc/bias",
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub fn module(name: &str) -> Module {
    decode::from_bytes(&std::fs::read(path(&format!("{name}.hlo.pb"))).unwrap()).unwrap()
}

/// A recorded run.
pub struct Recorded {
    npz: NpzReader<File>,
}

impl Recorded {
    pub fn open(name: &str) -> Recorded {
        Recorded { npz: NpzReader::new(File::open(path(&format!("{name}.npz"))).unwrap()).unwrap() }
    }

    pub fn f32s(&mut self, name: &str) -> Vec<f32> {
        let array: ArrayD<f32> = self.npz.by_name(&format!("{name}.npy")).unwrap();
        array.iter().copied().collect()
    }

    fn bytes(&mut self, name: &str, dtype: DType) -> Vec<u8> {
        let file = format!("{name}.npy");
        match dtype {
            DType::F32 => self.f32s(name).iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::S32 => {
                let array: ArrayD<i32> = self.npz.by_name(&file).unwrap();
                array.iter().flat_map(|x| x.to_le_bytes()).collect()
            }
            other => panic!("{name} is {other}"),
        }
    }

    /// The arguments of a module, by the names that its framework's recording gives them.
    pub fn arguments(&mut self, name: &str, module: &Module) -> Vec<Vec<u8>> {
        let variables: &[&str] = if name.contains("resnet") { &RESNET } else { &MLP };
        let parameters = module.entry().parameters();
        let recorded = |number: usize| match (name.starts_with("oracle_jax"), number) {
            (true, number) => format!("in{number}"),
            (false, 0) => "x0".to_string(),
            (false, 1) => "y".to_string(),
            (false, number) => format!("var/{}", variables[number - 2]),
        };
        let dtype = |number: usize| module.entry().instr(parameters[number]).shape.dtype().unwrap();
        (0..parameters.len()).map(|number| self.bytes(&recorded(number), dtype(number))).collect()
    }
}

/// Runs a module without excess precision; returns its f32 results, by index.
pub fn run(module: &Module, arguments: &[Vec<u8>]) -> Vec<(usize, Vec<f32>)> {
    let entry = module.entry();
    let shapes = entry.parameters().into_iter().map(|id| entry.instr(id).shape.as_array().unwrap().clone());
    let literals: Vec<Literal> =
        shapes.zip(arguments).map(|(shape, bytes)| Literal::Array { shape, bytes: bytes.clone() }).collect();
    let results = run_bytes(&encode::to_bytes(module).unwrap(), &CompileOptions::default(), &literals);
    assert_eq!(results.len(), entry.result_shape().leaves().len());
    results.iter().enumerate().filter_map(|(idx, result)| Some((idx, result.elements::<f32>()?))).collect()
}

/// The largest difference of two results.
pub fn greatest_difference(measured: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(measured.len(), expected.len());
    let differences = measured.iter().zip(expected).map(|(x, y)| (x - y).abs());
    // NaN would hide behind `max`.
    differences.inspect(|x| assert!(!x.is_nan())).fold(0.0, f32::max)
}

/// The root of the mean square difference, relative to the largest expected magnitude.
pub fn error_of_scale(measured: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(measured.len(), expected.len());
    let squares = measured.iter().zip(expected).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2));
    let mean = squares.sum::<f64>() / expected.len() as f64;
    let scale = expected.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
    mean.sqrt() / scale
}
