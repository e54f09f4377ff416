//! Gradients against TensorFlow: its own forward HLO, differentiated by us, beside its own gradients.
//!
//! `tests/data/oracle_tf` holds the HLO TensorFlow 2.21 made for logits, loss and gradients of two networks, in f32 and
//! in a bf16 scope, and what it computed from it. Both sides run through the CPU plugin.

mod run;

use bf16scope::hlo::{DType, Emitter, InstrId, Module, proto, verify};
use bf16scope::passes::{grad, tidy};
use bf16scope::pjrt::{Arg, Client, CompileOptions};
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
const CASES: [(&str, &[(&str, usize)]); 2] = [("mlp", MLP), ("resnet_block", RESNET_BLOCK)];

/// One network as TensorFlow left it.
struct Oracle {
    name: &'static str,
    variables: &'static [(&'static str, usize)],
}

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

    /// Bytes of every argument.
    fn arguments(&self) -> Vec<(DType, Vec<u8>)> {
        let f32s = |key: &str| {
            (DType::F32, self.array::<f32>(key).into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
        };
        let labels = self.array::<i32>("y").into_iter().flat_map(i32::to_le_bytes).collect();
        let variables = self.variables.iter().map(|(name, _)| f32s(&format!("var/{name}")));
        [f32s("x0"), (DType::S32, labels)].into_iter().chain(variables).collect()
    }

    /// TensorFlow's module runs as it is; ours is its forward part with our gradients. Per variable (theirs, ours).
    fn run_both(&self, client: &Client, precision: &str, options: &CompileOptions) -> Vec<(Vec<f32>, Vec<f32>)> {
        let theirs = self.module(precision);
        let ours = differentiated(&theirs, self.variables.len());
        let arguments = self.arguments();
        let run = |module: &Module| {
            let dims: Vec<Vec<i64>> = (module.entry().parameters().into_iter())
                .map(|id| module.entry().instr(id).shape.dims().to_vec())
                .collect();
            let program = client.compile(&proto::encode::to_bytes(module).unwrap(), options).unwrap();
            let buffers: Vec<_> = (arguments.iter().zip(&dims))
                .map(|((dtype, bytes), dims)| client.buffer_from_host(bytes, *dtype, dims, 0).unwrap())
                .collect();
            let outputs = program.execute(buffers.iter().map(Arg::Keep).collect()).unwrap();
            let read = |bytes: Vec<u8>| {
                bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
            };
            outputs.iter().map(|output| read(output.to_host().unwrap())).collect::<Vec<Vec<f32>>>()
        };
        let (theirs, ours) = (run(&theirs), run(&ours));
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
    let (tidied, _) = tidy::run(&e.finish().unwrap(), &tidy::Config::default());
    verify::verify(&tidied).unwrap();
    tidied
}

/// The greatest difference of two arrays.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    // `max` would drop a NaN.
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
}

#[test]
fn bf16_gradients_are_tensorflows_bit_for_bit() {
    let client = run::cpu().unwrap();
    for (name, variables) in CASES {
        let oracle = Oracle { name, variables };
        let pairs = oracle.run_both(&client, "bf16", &CompileOptions::default());
        for ((variable, _), (theirs, ours)) in variables.iter().zip(pairs) {
            assert!(theirs.iter().any(|&value| value != 0.0), "{name}/{variable}");
            assert_eq!(distance(&theirs, &ours), 0.0, "{name}/{variable}");
        }
    }
}

#[test]
fn f32_gradients_are_tensorflows_to_rounding() {
    let client = run::cpu().unwrap();
    for (name, variables) in CASES {
        let oracle = Oracle { name, variables };
        let pairs = oracle.run_both(&client, "f32", &CompileOptions::default());
        for ((variable, _), (theirs, ours)) in variables.iter().zip(pairs) {
            // The loss's cotangents are computed in another order: some f32 roundings of 2^-24 each, of which sums over
            // at most 16 · 16 · 16 positions keep no more than their number's root, 64.
            let scale = theirs.iter().fold(0.0f32, |max, value| max.max(value.abs()));
            let bound = scale * 64.0 * 2f32.powi(-24);
            assert!(distance(&theirs, &ours) <= bound, "{name}/{variable}: {} > {bound}", distance(&theirs, &ours));
        }
    }
}

/// TensorFlow compiled with XLA's excess precision on, which drops some of the roundings its bf16 program says. So ours
/// must be to compare with the numbers it recorded.
#[test]
fn gradients_are_those_tensorflow_recorded() {
    let client = run::cpu().unwrap();
    let options = CompileOptions { allow_excess_precision: true, ..CompileOptions::default() };
    for (name, variables) in CASES {
        let oracle = Oracle { name, variables };
        let pairs = oracle.run_both(&client, "bf16", &options);
        for ((variable, _), (_, mut ours)) in variables.iter().zip(pairs) {
            let recorded: Vec<f32> = oracle.array(&format!("bf16/grad/{variable}"));
            if recorded.iter().all(|&value| bf16::from_f32(value).to_f32() == value) {
                // TensorFlow's MatMul writes a transpose that moves nothing before the cast to f32, which keeps XLA from
                // dropping the rounding; ours has none. The program says bf16, so round.
                ours.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
            }
            let apart = distance(&recorded, &oracle.array::<f32>(&format!("f32/grad/{variable}")));
            let off = distance(&recorded, &ours);
            assert!(off <= apart / 10.0, "{name}/{variable}: off by {off}, f32 and bf16 are {apart} apart");
        }
    }
}
