//! Gradients against TensorFlow: its own forward HLO, differentiated by us, beside its own gradients.
//!
//! `tests/data/oracle_tf` holds the HLO TensorFlow 2.21 made for logits, loss and gradients of two networks, in f32 and
//! in a bf16 scope. Both sides run through PJRT, on the same device with the same options, so they are compared bit for
//! bit. `tests/networks/oracle_tf.rs` compares with TensorFlow's recording from another processor.

use crate::run;
use crate::wide;

use bf16scope::hlo::{ArrayShape, DType, Emitter, InstrId, Literal, Module, proto, verify};
use bf16scope::passes::{grad, tidy};
use bf16scope::pjrt::CompileOptions;
use half::bf16;
use ndarray::ArrayD;
use ndarray_npy::{NpzReader, ReadableElement};
use std::fs::File;

/// Variables in the order of the parameters from 2 on, each with the index of its gradient in TensorFlow's results.
const MLP: &[(&str, usize)] = &[("fc1/kernel", 3), ("fc1/bias", 2), ("fc2/kernel", 5), ("fc2/bias", 4)];
const RESNET_BLOCK: &[(&str, usize)] = &[
    ("conv0/kernel", 15),
    ("bn0/gamma", 9),
    ("bn0/beta", 8),
    ("c1/kernel", 12),
    ("b1/gamma", 3),
    ("b1/beta", 2),
    ("c2/kernel", 13),
    ("b2/gamma", 5),
    ("b2/beta", 4),
    ("c3/kernel", 14),
    ("b3/gamma", 7),
    ("b3/beta", 6),
    ("proj/kernel", 18),
    ("bproj/gamma", 11),
    ("bproj/beta", 10),
    ("fc/kernel", 17),
    ("fc/bias", 16),
];

/// A network with TensorFlow's modules and recording.
struct Oracle {
    name: &'static str,
    variables: &'static [(&'static str, usize)],
    /// Lengths of all sums that a gradient goes through, added.
    n_terms: f64,
}

/// Lengths of sums. For `mlp`: sums of 64 and 128, 10 in the softmax and 16 in the mean, forward and backward. For
/// `resnet_block`: convolutions of 147, 16, 72, 8 and 16 terms, normalizations over batch and places (4096, 1024, and
/// three of 256), a mean of 16, a dense layer of 32, a softmax of 10 and a mean of 16, forward and backward.
const CASES: [Oracle; 2] = [
    Oracle { name: "mlp", variables: MLP, n_terms: 2.0 * (64.0 + 128.0 + 10.0 + 16.0) },
    Oracle {
        name: "resnet_block",
        variables: RESNET_BLOCK,
        n_terms: 2.0 * (259.0 + 4096.0 + 1024.0 + 768.0 + 16.0 + 32.0 + 10.0 + 16.0),
    },
];

impl Oracle {
    fn path(&self, suffix: &str) -> String {
        format!("{}/tests/data/oracle_tf/{}{suffix}", env!("CARGO_MANIFEST_DIR"), self.name)
    }

    fn module(&self, precision: &str) -> Module {
        let bytes = std::fs::read(self.path(&format!("_{precision}.hlo.pb"))).unwrap();
        let module = proto::decode::from_bytes(&bytes).unwrap();
        verify::verify(&module).unwrap();
        module
    }

    fn array<T: ReadableElement + Copy>(&self, key: &str) -> Vec<T> {
        let array: ArrayD<T> = NpzReader::new(File::open(self.path(".npz")).unwrap()).unwrap().by_name(key).unwrap();
        array.as_standard_layout().iter().copied().collect()
    }

    /// The arguments of a module of this oracle: the images, the labels, the variables.
    fn arguments(&self, module: &Module) -> Vec<Literal> {
        let keys = self.variables.iter().map(|(name, _)| format!("var/{name}"));
        let keys = ["x0".to_string(), "y".to_string()].into_iter().chain(keys);
        let shape = |id: InstrId| module.entry().instr(id).shape.as_array().unwrap().clone();
        let argument = |(key, ArrayShape { dtype, dims, .. }): (String, ArrayShape)| match dtype {
            DType::F32 => Literal::from_elements(dims, &self.array::<f32>(&key)),
            DType::F64 => {
                Literal::from_elements(dims, &self.array::<f32>(&key).into_iter().map(f64::from).collect::<Vec<_>>())
            }
            DType::S32 => Literal::from_elements(dims, &self.array::<i32>(&key)),
            other => panic!("{key} is {other}"),
        };
        keys.zip(module.entry().parameters().into_iter().map(shape)).map(argument).collect()
    }

    /// TensorFlow's module runs as it is; ours is its forward part with our gradients. Per variable (theirs, ours).
    fn run_both(&self, theirs: &Module, options: &CompileOptions) -> Vec<(Literal, Literal)> {
        let ours = differentiated(theirs, self.variables.len());
        let run = |module: &Module| {
            let program = proto::encode::to_bytes(module).unwrap();
            run::run_bytes(&program, options, &self.arguments(module))
        };
        let (theirs, ours) = (run(theirs), run(&ours));
        self.variables.iter().zip(ours).map(|(&(_, idx), ours)| (theirs[idx].clone(), ours)).collect()
    }
}

/// The gradients of result 1 by parameters 2 on, and nothing else.
fn differentiated(module: &Module, n_variables: usize) -> Module {
    let entry = module.entry();
    let loss = entry.instr(entry.root).operands[1];
    let variables: Vec<InstrId> = entry.parameters()[2..].to_vec();
    assert_eq!(variables.len(), n_variables);
    let mut copy = module.clone();
    copy.entry_layout = None;
    let e = Emitter::new(copy, module.entry);
    let gradients = grad::gradients(&e, loss, &variables).unwrap();
    e.tuple(&gradients);
    let (tidied, _) = tidy::run(&e.finish().unwrap(), &tidy::Config::default()).unwrap();
    verify::verify(&tidied).unwrap();
    tidied
}

/// The largest difference of two arrays.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    // `max` would drop a NaN.
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
}

#[test]
fn bf16_gradients_are_tensorflows_bit_for_bit() {
    for oracle in CASES {
        let pairs = oracle.run_both(&oracle.module("bf16"), &CompileOptions::default());
        for ((variable, _), (theirs, ours)) in oracle.variables.iter().zip(pairs) {
            assert!(wide::f64s(&theirs).iter().any(|&value| value != 0.0), "{}/{variable}", oracle.name);
            assert_eq!(distance(&wide::f64s(&theirs), &wide::f64s(&ours)), 0.0, "{}/{variable}", oracle.name);
        }
    }
}

/// XLA's excess precision, with which TensorFlow compiles, drops some of the roundings that the bf16 program says.
/// TensorFlow's MatMul writes a transpose that moves nothing before the cast to f32, which keeps XLA from dropping that
/// one; ours has none. The program says bf16, so round.
#[test]
fn bf16_gradients_are_tensorflows_with_excess_precision_too() {
    let options = CompileOptions { allow_excess_precision: true, ..CompileOptions::default() };
    let rounded = |value: f64| bf16::from_f64(value).to_f64();
    for oracle in CASES {
        let pairs = oracle.run_both(&oracle.module("bf16"), &options);
        for ((variable, _), (theirs, ours)) in oracle.variables.iter().zip(pairs) {
            let (theirs, mut ours) = (wide::f64s(&theirs), wide::f64s(&ours));
            if theirs.iter().all(|&value| rounded(value) == value) {
                ours.iter_mut().for_each(|value| *value = rounded(*value));
            }
            assert_eq!(distance(&theirs, &ours), 0.0, "{}/{variable}", oracle.name);
        }
    }
}

/// The two compute one function, with sums in another order. A sum of `k` terms in any order is within `k` roundings of
/// the exact one, relative to the sum of the terms' sizes (Higham 2002, 4.2), which in these networks is about the
/// result's scale; errors of stages add; and both sides have them. In f64, where a rounding is 2^-53, that leaves no
/// room for anything else. (In f32 a relu's input may be within a rounding of zero, and the gradient then depends on the
/// order of sums, which depends on the processor: `tests/networks/oracle_tf.rs` has such a one.)
#[test]
fn gradients_are_tensorflows_to_rounding() {
    for oracle in CASES {
        let pairs = oracle.run_both(&wide::module(&oracle.module("f32")), &CompileOptions::default());
        for ((variable, _), (theirs, ours)) in oracle.variables.iter().zip(pairs) {
            let (theirs, ours) = (wide::f64s(&theirs), wide::f64s(&ours));
            let scale = theirs.iter().fold(0.0f64, |max, value| max.max(value.abs()));
            let (off, bound) = (distance(&theirs, &ours), 2.0 * oracle.n_terms * 2f64.powi(-53) * scale);
            assert!(off <= bound, "{}/{variable}: {off:e} > {bound:e}", oracle.name);
        }
    }
}
