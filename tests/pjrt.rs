//! The PJRT layer against the real CPU plugin, which is installed as a user's first run installs it.

use std::fs::File;
use std::path::Path;

use bf16scope::hlo::DType;
use bf16scope::pjrt::{Arg, Buffer, Client, CompileOptions};
use ndarray::ArrayD;
use ndarray_npy::NpzReader;

/// TensorFlow's recorded run: see `tests/data/oracle_tf/README.md`.
struct Oracle {
    npz: NpzReader<File>,
}

impl Oracle {
    fn open() -> Oracle {
        Oracle { npz: NpzReader::new(File::open(oracle_path("mlp.npz")).unwrap()).unwrap() }
    }

    fn f32(&mut self, name: &str) -> ArrayD<f32> {
        self.npz.by_name(&format!("{name}.npy")).unwrap()
    }

    fn upload_f32(&mut self, client: &Client, name: &str) -> Buffer {
        let array = self.f32(name);
        let bytes: Vec<u8> = array.iter().flat_map(|x| x.to_le_bytes()).collect();
        client.buffer_from_host(&bytes, DType::F32, &dims(array.shape()), 0).unwrap()
    }

    /// The modules' arguments, in order.
    fn arguments(&mut self, client: &Client) -> Vec<Buffer> {
        let labels: ArrayD<i32> = self.npz.by_name("y.npy").unwrap();
        let bytes: Vec<u8> = labels.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut arguments = vec![
            self.upload_f32(client, "x0"),
            client.buffer_from_host(&bytes, DType::S32, &dims(labels.shape()), 0).unwrap(),
        ];
        for name in ["fc1/kernel", "fc1/bias", "fc2/kernel", "fc2/bias"] {
            arguments.push(self.upload_f32(client, &format!("var/{name}")));
        }
        arguments
    }
}

fn oracle_path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle_tf").join(name)
}

fn dims(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&dim| dim as i64).collect()
}

fn f32s(buffer: &Buffer) -> Vec<f32> {
    let bytes = buffer.to_host().unwrap();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

/// Runs one of TensorFlow's modules; results in order: logits, loss, gradients.
fn run_oracle(precision: &str, allow_excess_precision: bool) -> Vec<Vec<f32>> {
    let client = Client::cpu().unwrap();
    let program = std::fs::read(oracle_path(&format!("mlp_{precision}.hlo.pb"))).unwrap();
    let options = CompileOptions { allow_excess_precision, ..CompileOptions::default() };
    let executable = client.compile(&program, &options).unwrap();
    let arguments = Oracle::open().arguments(&client);
    let results = executable.execute(arguments.iter().map(Arg::Keep).collect()).unwrap();
    assert_eq!(results[0].dims().unwrap(), [16, 10]);
    results.iter().map(f32s).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// TensorFlow compiled with XLA's default, which allows excess precision; so must a run that is to equal it.
#[test]
fn tensorflows_bf16_module_gives_tensorflows_numbers_bit_for_bit() {
    let results = run_oracle("bf16", true);
    let mut oracle = Oracle::open();
    let names = ["logits", "loss", "grad/fc1/bias", "grad/fc1/kernel", "grad/fc2/bias", "grad/fc2/kernel"];
    assert_eq!(results.len(), names.len());
    for (name, result) in names.iter().zip(&results) {
        let recorded: Vec<f32> = oracle.f32(&format!("bf16/{name}")).iter().copied().collect();
        assert_eq!(bits(result), bits(&recorded), "{name}");
    }
}

/// The module computes its logits in bf16 and casts them to f32 at the end: only with excess precision do bits appear
/// that bf16 does not have.
#[test]
fn excess_precision_is_off_unless_asked_for() {
    let beyond_bf16 = |logits: &[f32]| logits.iter().filter(|x| x.to_bits() & 0xffff != 0).count();
    assert_eq!(beyond_bf16(&run_oracle("bf16", CompileOptions::default().allow_excess_precision)[0]), 0);
    assert_eq!(beyond_bf16(&run_oracle("bf16", true)[0]), 112);
}

/// Each logit is a sum of 128 products of values under 1 in size: f32 sums in another order differ by less than
/// 128 × 2^-24 ≈ 7.6e-6.
#[test]
fn tensorflows_f32_module_gives_tensorflows_logits() {
    let results = run_oracle("f32", false);
    let recorded = Oracle::open().f32("f32/logits");
    let worst = results[0].iter().zip(&recorded).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert!(worst <= 7.6e-6, "{worst}");
}
