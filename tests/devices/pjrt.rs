//! The PJRT layer against the real CPU plugin, which is installed as a user's first run installs it.

use crate::support;

use std::fs::File;
use std::path::Path;

use bf16scope::hlo::{DType, proto, text, verify};
use bf16scope::pjrt::{Arg, Buffer, Client, CompileOptions};
use ndarray::{ArrayD, Ix1, Ix2};
use ndarray_npy::NpzReader;
use support::Program;

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

/// TensorFlow compiled with XLA's default, which allows excess precision; so must a run that is to be near it.
///
/// Another processor sums in another order, which may make a rounding to bf16 fall the other way. At worst the result is
/// another draw of bf16's error, of which TensorFlow's own is known, and is that far from f32's on another side.
#[test]
fn tensorflows_bf16_module_gives_tensorflows_numbers() {
    let results = run_oracle("bf16", true);
    let mut oracle = Oracle::open();
    let names = ["logits", "loss", "grad/fc1/bias", "grad/fc1/kernel", "grad/fc2/bias", "grad/fc2/kernel"];
    assert_eq!(results.len(), names.len());
    for (name, result) in names.iter().zip(&results) {
        let mut recorded = |precision: &str| oracle.f32(&format!("{precision}/{name}")).into_raw_vec_and_offset().0;
        let (narrow, wide) = (recorded("bf16"), recorded("f32"));
        let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
        let (off, cost) = (apart(result, &narrow), apart(&narrow, &wide));
        assert!(off <= 2.0 * cost, "{name} is {off:e} from what is recorded, expected at most twice {cost:e}");
    }
}

/// The module computes its logits in bf16 and casts them to f32 at the end: only with excess precision do bits appear
/// that bf16 does not have.
#[test]
fn excess_precision_is_off_unless_asked_for() {
    let beyond_bf16 = |logits: &[f32]| logits.iter().filter(|x| x.to_bits() & 0xffff != 0).count();
    assert_eq!(beyond_bf16(&run_oracle("bf16", CompileOptions::default().allow_excess_precision)[0]), 0);
    assert_ne!(beyond_bf16(&run_oracle("bf16", true)[0]), 0);
}

/// A sum of `k` terms in f32, in any order, is within `k` × 2^-24 of the exact one, relative to the sum of the terms'
/// sizes, and two such sums are within twice that. A hidden unit is a sum of 64 products and a bias, a logit of 128 and a
/// bias; what the hidden units are off by, the logits are, times the sizes of the weights.
#[test]
fn tensorflows_f32_module_gives_tensorflows_logits() {
    let results = run_oracle("f32", false);
    let mut oracle = Oracle::open();
    let mut matrix = |name: &str| oracle.f32(name).mapv(f32::abs).into_dimensionality::<Ix2>().unwrap();
    let (x, weights1, weights2) = (matrix("x0"), matrix("var/fc1/kernel"), matrix("var/fc2/kernel"));
    let mut vector = |name: &str| oracle.f32(name).mapv(f32::abs).into_dimensionality::<Ix1>().unwrap();
    let (bias1, bias2) = (vector("var/fc1/bias"), vector("var/fc2/bias"));
    let hidden = x.dot(&weights1) + bias1;
    let bound = (hidden.dot(&weights2) * (65.0 + 129.0) + bias2 * 129.0) * 2.0 * 2f32.powi(-24);
    for ((x, y), bound) in results[0].iter().zip(&oracle.f32("f32/logits")).zip(&bound) {
        assert!((x - y).abs() <= *bound, "{x} and {y} are further apart than {bound:e}");
    }
}

fn upload(client: &Client, values: &[f32], device_idx: usize) -> Buffer {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    client.buffer_from_host(&bytes, DType::F32, &[values.len() as i64], device_idx).unwrap()
}

/// Sum and product of two `f32[n]`; the first argument's memory may become the sum's.
fn sum_and_product(n: i64) -> Vec<u8> {
    let mut program = Program::default();
    let x = program.parameter(DType::F32, &[n]);
    let y = program.parameter(DType::F32, &[n]);
    let sum = program.push("add", DType::F32, &[n], &[x, y]);
    let product = program.push("multiply", DType::F32, &[n], &[x, y]);
    program.alias(0, 0);
    program.finish(&[sum, product])
}

#[test]
fn several_outputs_come_back_as_several_buffers() {
    let client = Client::cpu().unwrap();
    let executable = client.compile(&sum_and_product(3), &CompileOptions::default()).unwrap();
    assert_eq!((executable.n_outputs(), executable.n_devices()), (2, 1));
    let outputs = executable.compiled().outputs().unwrap();
    assert_eq!(outputs.iter().map(|output| output.to_string()).collect::<Vec<_>>(), ["f32[3]", "f32[3]"]);
    let (x, y) = (upload(&client, &[1.0, 2.0, 3.0], 0), upload(&client, &[4.0, 5.0, 6.0], 0));
    let results = executable.execute(vec![Arg::Keep(&x), Arg::Keep(&y)]).unwrap();
    assert_eq!(f32s(&results[0]), [5.0, 7.0, 9.0]);
    assert_eq!(f32s(&results[1]), [4.0, 10.0, 18.0]);
    // Kept, although the program may reuse its memory.
    assert_eq!(f32s(&x), [1.0, 2.0, 3.0]);
    assert!(!x.is_deleted().unwrap());
    assert_eq!(executable.compiled().memory_stats().unwrap().aliased, 12);
}

#[test]
fn a_donated_arguments_memory_becomes_the_outputs() {
    let client = Client::cpu().unwrap();
    let executable = client.compile(&sum_and_product(1024), &CompileOptions::default()).unwrap();
    let (x, y) = (upload(&client, &[1.0; 1024], 0), upload(&client, &[2.0; 1024], 0));
    let donated = x.address().unwrap();
    let results = executable.execute(vec![Arg::Donate(x), Arg::Keep(&y)]).unwrap();
    assert_eq!(results[0].address().unwrap(), donated);
    assert_eq!(f32s(&results[0]), [3.0; 1024]);
    let results = executable.execute(vec![Arg::Keep(&results[0]), Arg::Keep(&y)]).unwrap();
    assert_ne!(results[0].address().unwrap(), donated);
}

#[test]
fn two_replicas_run_on_two_devices() {
    let client = Client::cpu().unwrap();
    assert!(client.devices().len() >= 2);
    let options = CompileOptions { n_replicas: 2, ..CompileOptions::default() };
    let executable = client.compile(&sum_and_product(1), &options).unwrap();
    let buffers: Vec<Buffer> =
        [(1.0, 0), (2.0, 0), (3.0, 1), (4.0, 1)].iter().map(|&(x, device)| upload(&client, &[x], device)).collect();
    let args = buffers.chunks(2).map(|pair| pair.iter().map(Arg::Keep).collect()).collect();
    let results = executable.execute_sharded(args).unwrap();
    let values: Vec<Vec<f32>> = results.iter().map(|list| list.iter().flat_map(f32s).collect()).collect();
    assert_eq!(values, [[3.0, 2.0], [7.0, 12.0]]);
}

/// `x * w` and its sum, `x` lying over two partitions.
fn product_over_two(x: &str) -> Vec<u8> {
    let text = format!(
        "HloModule halves

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}

ENTRY main {{
  x = f32[5,2]{{1,0}} parameter(0), sharding={x}
  w = f32[5,2]{{1,0}} parameter(1), sharding={{replicated}}
  y = f32[5,2]{{1,0}} multiply(x, w), sharding={x}
  zero = f32[] constant(0)
  total = f32[] reduce(y, zero), dimensions={{0,1}}, to_apply=add
  ROOT both = (f32[5,2]{{1,0}}, f32[]) tuple(y, total), sharding={{{x}, {{replicated}}}}
}}
"
    );
    let module = text::parse(&text, "halves").unwrap();
    verify(&module).unwrap();
    proto::encode::to_bytes(&module).unwrap()
}

/// Compiled for two partitions of the CPU.
fn over_two_partitions(program: &[u8]) -> (Client, bf16scope::pjrt::Executable) {
    let client = Client::cpu().unwrap();
    let options = CompileOptions { n_partitions: 2, ..CompileOptions::default() };
    let executable = client.compile(program, &options).unwrap();
    assert_eq!(executable.n_devices(), 2);
    (client, executable)
}

#[test]
fn each_partition_takes_its_part_of_an_array() {
    let w = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0];
    // The first split along columns, the second along rows, of which the last tile is padded.
    for (sharding, dims, parts, products) in [
        (
            "{devices=[1,2]<=[2]}",
            [5, 1],
            [vec![1.0; 5], vec![2.0; 5]],
            [vec![1.0, 3.0, 5.0, 7.0, 9.0], vec![4.0, 8.0, 12.0, 16.0, 20.0]],
        ),
        (
            "{devices=[2,1]0,1}",
            [3, 2],
            [vec![1.0; 6], vec![2.0, 2.0, 2.0, 2.0, 0.0, 0.0]],
            [vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![14.0, 16.0, 18.0, 20.0]],
        ),
        (
            "{devices=[1,1,2]<=[2] last_tile_dim_replicate}",
            [5, 2],
            [vec![1.0; 10], vec![1.0; 10]],
            [w.to_vec(), w.to_vec()],
        ),
    ] {
        let (client, executable) = over_two_partitions(&product_over_two(sharding));
        let on = |values: &[f32], dims: &[i64], device| {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            client.buffer_from_host(&bytes, DType::F32, dims, device).unwrap()
        };
        let x = [on(&parts[0], &dims, 0), on(&parts[1], &dims, 1)];
        let weights = [on(&w, &[5, 2], 0), on(&w, &[5, 2], 1)];
        let args = (0..2).map(|i| vec![Arg::Keep(&x[i]), Arg::Keep(&weights[i])]).collect();
        let results = executable.execute_sharded(args).unwrap();
        let total: f32 = if products[0] == products[1] { 55.0 } else { products.iter().flatten().sum() };
        for (result, product) in results.iter().zip(&products) {
            assert_eq!(result[0].dims().unwrap(), dims, "{sharding}");
            assert_eq!(f32s(&result[0])[..product.len()], product[..], "{sharding}");
            assert_eq!(f32s(&result[1]), [total], "{sharding}");
        }
    }
}

#[test]
fn what_is_not_a_partitions_part_is_refused() {
    let (client, executable) = over_two_partitions(&product_over_two("{devices=[1,2]<=[2]}"));
    let on = |dims: &[i64], device| {
        let bytes = vec![0; 4 * dims.iter().product::<i64>() as usize];
        client.buffer_from_host(&bytes, DType::F32, dims, device).unwrap()
    };
    let (part, whole, whole_too) = (on(&[5, 1], 0), on(&[5, 2], 0), on(&[5, 2], 1));
    let args = vec![vec![Arg::Keep(&part), Arg::Keep(&whole)], vec![Arg::Keep(&whole_too), Arg::Keep(&whole_too)]];
    assert_eq!(
        executable.execute_sharded(args).unwrap_err().to_string(),
        "halves: argument 0: measured f32[5,2], expected f32[5,1], the part of f32[5,2] that each device holds\nhelp: \
         upload to each device its own"
    );
    let args = vec![vec![Arg::Keep(&part), Arg::Keep(&part)], vec![Arg::Keep(&part), Arg::Keep(&part)]];
    assert_eq!(
        executable.execute_sharded(args).unwrap_err().to_string(),
        "halves: argument 1: measured f32[5,1], expected f32[5,2]"
    );
}

#[test]
fn wrong_arguments_are_named_before_the_plugin_sees_them() {
    let client = Client::cpu().unwrap();
    let executable = client.compile(&sum_and_product(2), &CompileOptions::default()).unwrap();
    let (x, long) = (upload(&client, &[1.0, 2.0], 0), upload(&client, &[1.0, 2.0, 3.0], 0));
    let error = |args| executable.execute(args).unwrap_err().to_string();
    assert_eq!(error(vec![Arg::Keep(&x)]), "small: arguments: measured 1, expected 2");
    assert_eq!(error(vec![Arg::Keep(&x), Arg::Keep(&long)]), "small: argument 1: measured f32[3], expected f32[2]");
    let foreign = upload(&Client::cpu().unwrap(), &[1.0, 2.0], 0);
    assert_eq!(
        error(vec![Arg::Keep(&x), Arg::Keep(&foreign)]),
        "small: argument 1 lives in another client\nhelp: upload it with the client that compiled the executable"
    );
    assert_eq!(
        executable.execute_sharded(vec![]).unwrap_err().to_string(),
        "small: lists of arguments, one for each device: measured 0, expected 1"
    );
}

#[test]
fn wrong_host_arrays_are_named() {
    let client = Client::cpu().unwrap();
    let error = |bytes: &[u8], dims: &[i64], device_idx| {
        client.buffer_from_host(bytes, DType::F32, dims, device_idx).unwrap_err().to_string()
    };
    assert_eq!(error(&[0; 7], &[2], 0), "f32[2] on the host: measured 7 bytes, expected 8");
    assert_eq!(
        error(&[], &[-1], 0),
        "f32[-1]: dimensions must not be negative, nor their product exceed the address space"
    );
    assert_eq!(error(&[0; 8], &[2], 99), "device 99: the client has 4 devices, numbered from 0");
    let buffer = upload(&client, &[1.0], 0);
    assert_eq!(
        buffer.copy_to_host(&mut [0; 3]).unwrap_err().to_string(),
        "f32[1] on the host: measured 3 bytes, expected 4"
    );
}

#[test]
fn a_program_that_is_no_proto_is_refused() {
    let client = Client::cpu().unwrap();
    let error = client.compile(b"HloModule text", &CompileOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("the program is not an HloModuleProto: "), "{error}");
    // A proto, but no program: the plugin's own words.
    let error = client.compile(&[], &CompileOptions::default()).unwrap_err();
    assert!(error.code().is_some(), "{error}");
    assert!(!error.is_resource_exhausted());
}

#[test]
fn the_client_says_what_it_is() {
    let client = Client::cpu().unwrap();
    assert_eq!(client.platform_name().unwrap(), "cpu");
    assert_eq!(client.plugin().unwrap().api_version(), (0, 81));
    assert_eq!(client.devices()[0].description().kind, "cpu");
    let executable = client.compile(&sum_and_product(4), &CompileOptions::default()).unwrap();
    assert!(!executable.compiled().optimized_program().unwrap().is_empty());
    // An addition and a multiplication for each of four elements.
    assert_eq!(executable.compiled().cost_analysis().unwrap()["flops"], 8.0);
}
