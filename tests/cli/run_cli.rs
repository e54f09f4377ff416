//! `bf16scope run`, `emit` and `compile` on modules, as a user runs them.

use crate::binary;
use crate::run;
use crate::support;
use crate::wide;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Output;

use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::{Literal, Module};
use bf16scope::pjrt::CompileOptions;
use ndarray::{ArrayD, IxDyn, OwnedRepr, arr0, array};
use ndarray_npy::{NpzReader, NpzWriter};

pub(super) struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Output {
        binary::bf16scope(args).current_dir(self.0.path()).output().unwrap()
    }

    /// Standard output of a command that succeeds.
    fn stdout(&self, args: &[&str]) -> String {
        let output = self.command(args);
        assert!(output.status.success(), "{args:?}: {}", utf8(&output.stderr));
        utf8(&output.stdout)
    }

    /// Standard error of a command that fails.
    pub(super) fn stderr(&self, args: &[&str]) -> String {
        let output = self.command(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", utf8(&output.stdout));
        utf8(&output.stderr)
    }

    fn npz(&self, name: &str) -> NpzReader<File> {
        NpzReader::new(File::open(self.path(name)).unwrap()).unwrap()
    }
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn data(folder: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder).join(name);
    path.to_str().unwrap().to_string()
}

fn f32s(npz: &mut NpzReader<File>, name: &str) -> Vec<f32> {
    let array: ArrayD<f32> = npz.by_name(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    array.iter().copied().collect()
}

/// Largest size of an element.
fn scale(values: &[f64]) -> f64 {
    values.iter().fold(0f64, |scale, value| scale.max(value.abs()))
}

/// Whether every element of a result is within its bound of the expected value; a NaN is not.
fn check(result: usize, values: &[f64], expected: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(values.len(), expected.len(), "out{result}");
    for (at, (value, expected)) in values.iter().zip(expected).enumerate() {
        let (difference, bound) = ((value - expected).abs(), bound(at));
        assert!(
            difference <= bound,
            "out{result}[{at}] is {value:e}, expected {expected:e}: off by {difference:e}, at most {bound:e}"
        );
    }
}

/// The elements of an array as f64, from f32 or s32.
fn numbers(npz: &mut NpzReader<File>, name: &str) -> Vec<f64> {
    let integers: Result<ArrayD<i32>, _> = npz.by_name(name);
    match integers {
        Ok(integers) => integers.iter().copied().map(f64::from).collect(),
        Err(_) => f32s(npz, name).into_iter().map(f64::from).collect(),
    }
}

/// An array as an argument of a module.
fn argument(npz: &mut NpzReader<File>, name: &str) -> Literal {
    let dims = |shape: &[usize]| shape.iter().map(|&n| n as i64).collect::<Vec<i64>>();
    if let Ok(array) = npz.by_name::<OwnedRepr<i32>, IxDyn>(name) {
        return Literal::from_elements(dims(array.shape()), &array.iter().copied().collect::<Vec<i32>>());
    }
    let array: ArrayD<f32> = npz.by_name(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    Literal::from_elements(dims(array.shape()), &array.iter().copied().collect::<Vec<f32>>())
}

fn module(folder: &str, name: &str) -> Module {
    decode::from_bytes(&std::fs::read(data(folder, &format!("{name}.hlo.pb"))).unwrap()).unwrap()
}

/// Results of a module that is run here, in this process.
fn results_here(module: &Module, arguments: &[Literal]) -> Vec<Literal> {
    run::run_bytes(&encode::to_bytes(module).unwrap(), &CompileOptions::default(), arguments)
}

/// `bf16scope run` on a framework's module, from proto and from text, gives the same bits as running it in this
/// process: same device, same options. `inputs` holds `in0`, ….
fn runs_as_here(folder: &str, name: &str, inputs: &Path) {
    let place = Folder::new();
    let module = module(folder, name);
    let mut npz = NpzReader::new(File::open(inputs).unwrap()).unwrap();
    let n_parameters = module.entry().parameters().len();
    let arguments: Vec<Literal> = (0..n_parameters).map(|at| argument(&mut npz, &format!("in{at}"))).collect();
    let expected = results_here(&module, &arguments);
    for ending in ["pb", "txt"] {
        let file = data(folder, &format!("{name}.hlo.{ending}"));
        place.stdout(&["run", &file, "--inputs", inputs.to_str().unwrap(), "--outputs", "out.npz"]);
        let mut results = place.npz("out.npz");
        assert_eq!(results.len(), expected.len(), "{file}");
        for (at, expected) in expected.iter().enumerate() {
            assert!(argument(&mut results, &format!("out{at}")) == *expected, "{file}: result {at} differs");
        }
    }
}

/// Half an ulp of f32, relative to one. An f32 sum of `k` terms in any order is within `k` times this of the exact one,
/// relative to the sum of their magnitudes (Higham 2002, 4.2), which in these networks is about the result's scale.
/// Errors of stages add up, so a result's bound is this times the lengths of all sums it went through.
const ROUNDING: f64 = 1.0 / (1 << 24) as f64;

/// Passes the results of a JAX module here, in f64, and JAX's f32 recording to `judge`; integers must be equal.
///
/// In f32 the outcome of a relu or a maximum whose inputs are within a rounding of each other depends on the
/// processor's order of sums, and gradients depend on it; in f64 it is the same as in exact arithmetic, on every
/// processor.
fn beside_jax(name: &str, judge: impl Fn(usize, &[f64], &[f64], &mut NpzReader<File>)) {
    let inputs = data("oracle_jax", &format!("{name}.npz"));
    runs_as_here("oracle_jax", name, Path::new(&inputs));
    let mut recorded = NpzReader::new(File::open(inputs).unwrap()).unwrap();
    let module = wide::module(&module("oracle_jax", name));
    let n_parameters = module.entry().parameters().len();
    let arguments = (0..n_parameters).map(|at| wide::literal(&argument(&mut recorded, &format!("in{at}"))));
    for (at, result) in results_here(&module, &arguments.collect::<Vec<_>>()).iter().enumerate() {
        let expected = numbers(&mut recorded, &format!("out{at}"));
        match result.elements::<i32>() {
            Some(integers) => assert_eq!(integers.into_iter().map(f64::from).collect::<Vec<_>>(), expected),
            None => judge(at, &wide::f64s(result), &expected, &mut recorded),
        }
    }
}

/// Sums of 784 and 128 forward, 10 in the softmax, 32 in the mean, 10, 128 and 32 backward.
///
/// Adam's first update is `lr g / (|g| + ε)` of the gradient `g`, which amplifies its error: if `g` is off by `δ`, the
/// update is off by at most `lr δ ε / (|g| - δ + ε)²`, and never by more than `2 lr`. The first moment gives `g`: it is
/// `(1 - β1) g`.
#[test]
fn jaxs_adam_step_gives_jaxs_results() {
    const N_TERMS: f64 = 784.0 + 128.0 + 10.0 + 32.0 + 10.0 + 128.0 + 32.0;
    let (learning_rate, epsilon, one_minus_beta1) = (1e-3, 1e-8, 0.1);
    beside_jax("mlp_adam_step", |number, values, expected, recorded| {
        let rounding = N_TERMS * ROUNDING * scale(expected);
        if number > 3 {
            return check(number, values, expected, |_| rounding);
        }
        // out0 to out3 are parameters, out5 to out8 their first moments.
        let moment = numbers(recorded, &format!("out{}", number + 5));
        let delta = N_TERMS * ROUNDING * scale(&moment) / one_minus_beta1;
        check(number, values, expected, |at| {
            let gradient = moment[at].abs() / one_minus_beta1;
            let slope = epsilon / ((gradient - delta).max(0.0) + epsilon).powi(2);
            rounding + learning_rate * (delta * slope).min(2.0)
        });
    });
}

/// Sums of 9, 144 and 288 forward, 10 in the softmax, 10, 288 and, over batch and places, 6272 backward.
#[test]
fn jaxs_momentum_step_gives_jaxs_results() {
    const N_TERMS: f64 = 9.0 + 144.0 + 288.0 + 10.0 + 10.0 + 288.0 + 6272.0;
    beside_jax("cnn_momentum_step", |number, values, expected, _| {
        check(number, values, expected, |_| N_TERMS * ROUNDING * scale(expected));
    });
}

/// In each of two layers: sums of 64 for the heads, 16 for scores, softmax and values each, 64 and 256 and 64 in the
/// dense layers, 64 twice in two normalizations; at the end two more of 64, a mean of 16 and a dense layer of 64.
#[test]
fn jaxs_encoder_gives_jaxs_results() {
    const N_TERMS: f64 = 2.0 * (64.0 + 3.0 * 16.0 + 64.0 + 256.0 + 64.0 + 4.0 * 64.0) + 2.0 * 64.0 + 16.0 + 64.0;
    beside_jax("encoder_forward", |number, values, expected, _| {
        check(number, values, expected, |_| N_TERMS * ROUNDING * scale(expected));
    });
}

/// Variables in the order in which the networks first use them, which is the order of TensorFlow's parameters.
const MLP: [&str; 4] = ["fc1/kernel", "fc1/bias", "fc2/kernel", "fc2/bias"];
const RESNET_BLOCK: [&str; 17] = [
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

/// TensorFlow's modules, without parameter names, on TensorFlow's arrays by position. `tests/networks/oracle_tf.rs`
/// compares the numbers with TensorFlow's recordings.
fn tensorflows_modules_run_as_here(name: &str, variables: &[&str]) {
    let folder = Folder::new();
    let mut recorded = NpzReader::new(File::open(data("oracle_tf", &format!("{name}.npz"))).unwrap()).unwrap();
    let mut inputs = NpzWriter::new(File::create(folder.path("in.npz")).unwrap());
    inputs.add_array("in0", &recorded.by_name::<OwnedRepr<f32>, IxDyn>("x0").unwrap()).unwrap();
    inputs.add_array("in1", &recorded.by_name::<OwnedRepr<i32>, IxDyn>("y").unwrap()).unwrap();
    for (at, variable) in variables.iter().enumerate() {
        let array: ArrayD<f32> = recorded.by_name(&format!("var/{variable}")).unwrap();
        inputs.add_array(format!("in{}", at + 2), &array).unwrap();
    }
    inputs.finish().unwrap();
    for precision in ["bf16", "f32"] {
        runs_as_here("oracle_tf", &format!("{name}_{precision}"), &folder.path("in.npz"));
    }
}

#[test]
fn tensorflows_mlp_gives_what_it_gives_in_process() {
    tensorflows_modules_run_as_here("mlp", &MLP);
}

#[test]
fn tensorflows_resnet_block_gives_what_it_gives_in_process() {
    tensorflows_modules_run_as_here("resnet_block", &RESNET_BLOCK);
}

/// One of each kind of parameter: the sum of `x` and of `scale` rounded to bf16, and the labels unchanged.
const SMALL: &str = r#"HloModule small

ENTRY main {
  x = bf16[2,3] parameter(0), metadata={op_name="images"}
  scale = f32[] parameter(1)
  labels = s32[2] parameter(2)
  low = bf16[] convert(scale)
  scales = bf16[2,3] broadcast(low), dimensions={}
  sum = bf16[2,3] add(x, scales)
  ROOT results = (bf16[2,3], s32[2]) tuple(sum, labels)
}
"#;

/// A folder with `small.txt` and `in.npz`: arrays named as the parameter, by its scoped name, and by position.
pub(super) fn small() -> Folder {
    let folder = Folder::new();
    folder.text("small.txt", SMALL);
    let mut inputs = NpzWriter::new_compressed(File::create(folder.path("in.npz")).unwrap());
    inputs.add_array("in2", &array![4i32, 7]).unwrap();
    inputs.add_array("scale", &arr0(1.0f32)).unwrap();
    // In Fortran order, which must not matter; 0.1 is not a bf16 value.
    let images = array![[0.1f32, 2.0], [3.0, 4.0], [5.0, f32::NAN]].reversed_axes();
    inputs.add_array("images", &images).unwrap();
    inputs.finish().unwrap();
    folder
}

#[test]
fn arrays_go_by_position_or_name_and_results_come_as_a_table_json_or_file() {
    let folder = small();
    let out = folder.stdout(&["run", "small.txt", "-i", "in.npz", "-o", "out.npz", "--offline"]);
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("small.txt: 3 arrays in, 2 out; compiled in "), "{out}");
    let cells = |line: &str| line.split(['│', '┆']).map(|cell| cell.trim().to_string()).collect::<Vec<_>>();
    assert_eq!(
        cells(lines[4])[1..8],
        ["out0", "bf16[2,3]", "1.101562e0", "6.000000e0", "3.820312e0", "1", "0"].map(String::from)
    );
    assert_eq!(
        cells(lines[5])[1..8],
        ["out1", "s32[2]", "4.000000e0", "7.000000e0", "5.500000e0", "0", "0"].map(String::from)
    );
    let mut results = folder.npz("out.npz");
    let sum: ArrayD<f32> = results.by_name("out0").unwrap();
    // 0.1 rounds to 0.10009765625, and the sum to 1.1015625.
    assert_eq!(sum.as_slice().unwrap()[..5], [1.1015625, 4.0, 6.0, 3.0, 5.0]);
    assert_eq!(sum.shape(), [2, 3]);
    assert!(sum[[1, 2]].is_nan());
    assert_eq!(results.by_name::<OwnedRepr<i32>, IxDyn>("out1").unwrap(), array![4, 7].into_dyn());

    let json = folder.stdout(&["run", "small.txt", "-i", "in.npz", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["inputs"][0]["array"], "images");
    assert_eq!(json["inputs"][0]["dims"], serde_json::json!([2, 3]));
    assert_eq!(json["outputs"][0]["n_nan"], 1);
    assert_eq!(json["outputs"][1]["mean"], 5.5);
    assert_eq!(json["allow_excess_precision"], false);
}

#[test]
fn bf16_goes_out_as_raw_bits_and_comes_back_in_as_them() {
    let folder = small();
    folder.stdout(&["run", "small.txt", "-i", "in.npz", "-o", "raw.npz", "--raw-bf16"]);
    let sum: ArrayD<u16> = folder.npz("raw.npz").by_name("out0").unwrap();
    assert_eq!(sum.as_slice().unwrap()[..3], [0x3f8d, 0x4080, 0x40c0]);
    let mut inputs = NpzWriter::new(File::create(folder.path("again.npz")).unwrap());
    inputs.add_array("in0", &sum).unwrap();
    inputs.add_array("in1", &arr0(0f32)).unwrap();
    inputs.add_array("in2", &array![0i32, 0]).unwrap();
    inputs.finish().unwrap();
    folder.stdout(&["run", "small.txt", "-i", "again.npz", "-o", "out.npz"]);
    let sum: ArrayD<f32> = folder.npz("out.npz").by_name("out0").unwrap();
    assert_eq!(sum.as_slice().unwrap()[..3], [1.1015625, 4.0, 6.0]);
}

#[test]
fn what_is_missing_is_drawn_from_the_seed_and_only_that() {
    let folder = small();
    let mut inputs = NpzWriter::new(File::create(folder.path("part.npz")).unwrap());
    inputs.add_array("scale", &arr0(0f32)).unwrap();
    inputs.finish().unwrap();
    let drawn = |args: &[&str]| {
        let out = folder.stdout(&[&["run", "small.txt", "-o", "out.npz"], args].concat());
        let mut npz = folder.npz("out.npz");
        let labels: ArrayD<i32> = npz.by_name("out1").unwrap();
        (out, f32s(&mut npz, "out0"), labels)
    };
    let (out, values, labels) = drawn(&["-i", "part.npz", "--random", "1"]);
    assert!(out.starts_with("small.txt: 3 arrays in (2 drawn at random), 2 out"), "{out}");
    assert!(values.iter().all(|value| value.abs() < 6.0) && values.iter().any(|value| *value < 0.0), "{values:?}");
    assert!(labels.iter().all(|label| (0..8).contains(label)), "{labels}");
    assert_eq!(drawn(&["-i", "part.npz", "--random", "1"]).1, values, "the same seed");
    assert_ne!(drawn(&["-i", "part.npz", "--random", "2"]).1, values, "another seed");
    assert_eq!(drawn(&["--random", "1"]).2, labels, "the labels do not depend on what else is drawn");
}

/// A tuple parameter, and layouts in which the first axis varies fastest: neither changes the order of elements.
#[test]
fn tuples_and_layouts_do_not_show() {
    let folder = Folder::new();
    let module = "HloModule m, entry_computation_layout={((f32[2,3]{0,1}, s32[]))->f32[3,2]{0,1}}\n\nENTRY main {\n  \
                  p = (f32[2,3]{0,1}, s32[]) parameter(0)\n  x = f32[2,3]{0,1} get-tuple-element(p), index=0\n  \
                  ROOT y = f32[3,2]{0,1} transpose(x), dimensions={1,0}\n}\n";
    folder.text("m.txt", module);
    let mut inputs = NpzWriter::new(File::create(folder.path("in.npz")).unwrap());
    inputs.add_array("p.0", &array![[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]]).unwrap();
    inputs.add_array("in1", &arr0(9i32)).unwrap();
    inputs.finish().unwrap();
    folder.stdout(&["run", "m.txt", "-i", "in.npz", "-o", "out.npz"]);
    let y: ArrayD<f32> = folder.npz("out.npz").by_name("out0").unwrap();
    assert_eq!(y, array![[1f32, 4.0], [2.0, 5.0], [3.0, 6.0]].into_dyn());
}

/// Every rounding is done unless the flag is given; then XLA, which computes bf16 in f32 on a CPU, may drop the
/// rounding of a bf16 product that is read as f32.
#[test]
fn excess_precision_is_asked_for() {
    let folder = Folder::new();
    folder.text(
        "m.txt",
        "HloModule m\n\nENTRY main {\n  x = bf16[2] parameter(0)\n  y = bf16[2] multiply(x, x)\n  \
         ROOT z = f32[2] convert(y)\n}\n",
    );
    let mut inputs = NpzWriter::new(File::create(folder.path("in.npz")).unwrap());
    inputs.add_array("x", &array![1.1015625f32, 1.0]).unwrap();
    inputs.finish().unwrap();
    let result = |flags: &[&str]| {
        folder.stdout(&[&["run", "m.txt", "-i", "in.npz", "-o", "out.npz"], flags].concat());
        f32s(&mut folder.npz("out.npz"), "out0")
    };
    // The exact square is 1.21343994140625; the bf16 values around it are 2^-7 apart.
    assert_eq!(result(&[]), [1.2109375, 1.0]);
    assert_eq!(result(&["--excess-precision", "on"]), [1.101_562_5 * 1.101_562_5, 1.0]);
}

/// The error of `run` for an `.npz` with these f32 arrays.
fn complaint(arrays: &[(&str, ArrayD<f32>)]) -> String {
    let folder = small();
    let mut inputs = NpzWriter::new(File::create(folder.path("bad.npz")).unwrap());
    for (name, array) in arrays {
        inputs.add_array(*name, array).unwrap();
    }
    inputs.finish().unwrap();
    folder.stderr(&["run", "small.txt", "--inputs", "bad.npz"])
}

#[test]
fn wrong_arrays_are_said_by_parameter() {
    let x = ArrayD::<f32>::zeros(vec![2, 3]);
    let scale = ArrayD::<f32>::zeros(vec![]);
    let labels = ArrayD::<f32>::zeros(vec![2]);
    assert_eq!(
        complaint(&[("x", x.clone()), ("scale", scale.clone()), ("labels", labels)]),
        "bf16scope: bad.npz: parameter 2 (`labels`) is given `labels`, which is f32[2], expected s32[2]\n\
         help: convert it with .astype('i4')\n"
    );
    assert_eq!(
        complaint(&[("in0", x.clone()), ("in1", scale.clone()), ("in2", x.clone())]),
        "bf16scope: bad.npz: parameter 2 (`labels`) is given `in2`, which is f32[2,3], expected s32[2]\n\
         help: neither dtype nor dims are the parameter's: is an array before it one too many, or one left out?\n"
    );
    let flat = ArrayD::<f32>::zeros(vec![6]);
    assert_eq!(
        complaint(&[("in0", flat), ("scale", scale.clone()), ("labels", scale.clone())]),
        "bf16scope: bad.npz: parameter 0 (`images`) is given `in0`, which is f32[6], expected bf16[2,3]\n\
         help: if the order of its elements is right, .reshape(2, 3)\n"
    );
    // PyTorch stores [units, inputs] where Keras stores [inputs, units].
    assert_eq!(
        complaint(&[("in0", ArrayD::<f32>::zeros(vec![3, 2])), ("scale", scale.clone()), ("labels", scale.clone())]),
        "bf16scope: bad.npz: parameter 0 (`images`) is given `in0`, which is f32[3,2], expected bf16[2,3]\n\
         help: its axes are in the other order: give it as .T\n"
    );
    assert_eq!(
        complaint(&[("in0", x.clone()), ("images", x.clone())]),
        "bf16scope: bad.npz: parameter 0 has two arrays, `images` and `in0`\nhelp: keep one of them\n"
    );
    let error = complaint(&[("X", x), ("out0", scale)]);
    assert!(error.contains("bad.npz: no parameter is named X, out0; not used\n"), "{error}");
    assert!(
        error.ends_with(
            "bf16scope: 3 of 3 parameters have no array: in0 (`images`, bf16[2,3]), in1 (`scale`, f32[]), in2 (`labels`, \
             s32[2]); bad.npz holds X, out0\nhelp: give them in an .npz file with --inputs, named in0, in1, ... or as the \
             parameters are; or draw them with --random SEED\n"
        ),
        "{error}"
    );
}

#[test]
fn files_that_are_not_what_they_should_be() {
    let folder = small();
    folder.text("out.npz", "kept");
    let error = folder.stderr(&["run", "small.txt", "-i", "small.txt", "-o", "out.npz"]);
    assert!(error.contains("small.txt: no .npz archive, or a damaged one\nhelp: make one with numpy.savez"), "{error}");
    let bytes = std::fs::read(folder.path("in.npz")).unwrap();
    std::fs::write(folder.path("half.npz"), &bytes[..bytes.len() / 2]).unwrap();
    let error = folder.stderr(&["run", "small.txt", "-i", "half.npz", "-o", "out.npz"]);
    assert!(
        error.contains("half.npz: an archive without its end: it was cut off\nhelp: copy or save it again"),
        "{error}"
    );
    let error = folder.stderr(&["run", "in.npz", "-i", "in.npz", "-o", "out.npz"]);
    assert!(error.contains("in.npz is arrays in an .npz archive, without a program, and no HLO"), "{error}");
    let error = folder.stderr(&["run", "small.txt", "-i", "in.npz", "-o", "no/such/out.npz"]);
    assert!(error.contains("cannot write no/such/out.npz\n  caused by: its folder is not there"), "{error}");
    // The existing file is unchanged by all failures, and no other file was left behind.
    assert_eq!(std::fs::read_to_string(folder.path("out.npz")).unwrap(), "kept");
    let mut left: Vec<_> = std::fs::read_dir(folder.path(".")).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["half.npz", "in.npz", "out.npz", "small.txt"]);
}

#[test]
fn emit_turns_text_into_proto_and_back_and_draws() {
    let folder = small();
    folder.stdout(&["emit", "small.txt", "-o", "small.pb"]);
    let text = folder.stdout(&["emit", "small.pb"]);
    assert_eq!(text, folder.stdout(&["emit", "small.txt"]));
    assert!(text.contains("  sum = bf16[2,3]{1,0} add(x, scales)\n"), "{text}");
    let dot = folder.stdout(&["emit", "small.pb", "--format", "dot"]);
    assert!(dot.starts_with("digraph \"small\" {\n") && dot.contains("convert f32 to bf16"), "{dot}");
    assert_eq!(
        folder.stderr(&["emit", "small.pb", "--precision", "f32"]),
        "bf16scope: --precision chooses among a model's programs, and small.pb is one program already\n\
         help: leave --precision out, or give the model's YAML file\n"
    );
    let error = folder.stderr(&["emit", "small.txt", "--format", "proto"]);
    assert!(error.starts_with("bf16scope: a proto is not for the terminal\n"), "{error}");
}

#[test]
fn what_cannot_be_compared_says_why() {
    let folder = small();
    folder.text(
        "bf16.txt",
        "HloModule m\n\nENTRY m {\n  x = bf16[2] parameter(0)\n  ROOT y = bf16[2] multiply(x, x)\n}\n",
    );
    folder.text("sum.txt", "HloModule m\n\nENTRY m {\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] add(x, x)\n}\n");
    folder.text("done.txt", "HloModule m, is_scheduled=true\n\nENTRY m {\n  ROOT x = f32[2]{0} parameter(0)\n}\n");
    folder.text("model.yaml", "model: {kind: mlp, input: [4], n_classes: 2}\n");
    folder.text("idle.txt", "HloModule m, num_partitions=2\n\nENTRY m {\n  ROOT x = f32[2] parameter(0)\n}\n");
    for command in ["compile", "explain"] {
        let error = |args: &[&str]| folder.stderr(&[&[command], args].concat());
        assert_eq!(
            error(&["bf16.txt", "--compare"]),
            "bf16scope: bf16.txt has nothing in f32, so there is nothing to lower, and nothing to compare with\nhelp: compile \
             it as it is, without --compare and --policy; the f32 module that it came from can be compared\n"
        );
        assert_eq!(
            error(&["sum.txt", "--compare"]),
            "bf16scope: sum.txt: policy default leaves all of its 1 instructions with f32 as they are, so there is nothing to \
             compare\nhelp: `bf16scope lower sum.txt --policy default --list -o lowered.txt` says why, instruction by \
             instruction\n"
        );
        let both = error(&["sum.txt", "--compare", "--policy", "O0", "--policy", "default"]);
        assert!(both.starts_with("bf16scope: sum.txt: the policies named leave all of its 1 instr"), "{both}");
        assert_eq!(
            error(&["done.txt", "--compare"]),
            "bf16scope: done.txt is what a compiler has made (is_scheduled=true), and lowering comes before compiling\nhelp: \
             give the module before optimization\n"
        );
        assert_eq!(
            error(&["model.yaml", "--compare", "--policy", "tf_amp"]),
            "bf16scope: --policy tf_amp lowers a module, and model.yaml is a model, whose precision is --precision\nhelp: \
             leave --policy out, or lower its f32 program: `bf16scope emit model.yaml --precision f32 -o step.pb`, then give \
             step.pb\n"
        );
        for args in [&["sum.txt", "--policy", "O1", "--policy", "O2"][..], &["sum.txt", "--policy", "all"]] {
            assert_eq!(
                error(args),
                "bf16scope: several policies make several programs\nhelp: add --compare, which puts them side by side, or \
                 name one policy\n"
            );
        }
        let unknown = error(&["sum.txt", "--compare", "--policy", "bf16_scop"]);
        assert!(unknown.starts_with("bf16scope: unknown preset `bf16_scop`, expected one of default, "), "{unknown}");
        let idle = error(&["idle.txt", "--compare"]);
        assert!(idle.starts_with("bf16scope: idle.txt has no op that a policy lowers, so there is nothing"), "{idle}");
        let precision = error(&["model.yaml", "--compare", "--precision", "f32"]);
        assert!(precision.contains("cannot be used with '--precision"), "{precision}");
    }
}

#[test]
fn compile_takes_modules() {
    let folder = small();
    let cache_dir = support::home::cache_dir();
    let mut command = binary::bf16scope(&["compile", "small.txt", "--target", "tpu-v2", "--json"]);
    let output = command.current_dir(folder.0.path()).env("BF16SCOPE_CACHE", cache_dir.path()).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["batch"], serde_json::Value::Null);
    assert_eq!((&json["reports"][0]["precision"], &json["verdict"]), (&"as given".into(), &serde_json::Value::Null));
    assert!(json["reports"][0]["hbm"]["arguments"].as_i64().unwrap() > 0, "{json}");
}

/// The remedy used to be only in the cause.
#[test]
fn a_truncated_proto_is_told_what_to_do() {
    let folder = Folder::new();
    let module = std::fs::read(data("oracle_jax", "mlp_adam_step.hlo.pb")).unwrap();
    std::fs::write(folder.path("cut.pb"), &module[..module.len() / 2]).unwrap();
    let error = folder.stderr(&["run", "cut.pb", "--random", "1"]);
    let mut lines = error.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("bf16scope: cut.pb holds no HLO: ")), "{error}");
    assert!(lines.next().is_some_and(|line| line.starts_with("help: a proto may be truncated: ")), "{error}");
    assert!(lines.next().is_some_and(|line| line.starts_with("  caused by: not an HloModuleProto: ")), "{error}");
}

/// A dump that a compiler has scheduled: the schedule used to make XLA's CPU compiler abort the process.
#[test]
fn a_scheduled_module_runs() {
    let folder = Folder::new();
    folder.text(
        "m.hlo",
        "HloModule m, is_scheduled=true\nENTRY m {\n  x = f32[2]{0} constant({1, 2})\n  y = f32[2]{0} negate(x)\n  \
         ROOT z = f32[2]{0} subtract(y, x)\n}\n",
    );
    folder.stdout(&["run", "m.hlo", "--outputs", "out.npz"]);
    assert_eq!(f32s(&mut folder.npz("out.npz"), "out0"), [-2.0, -4.0]);
}

/// A module with another XLA's fusions does not run on the plugin: the error says what to give instead. (xla-rs's XLA
/// runs it.)
#[test]
fn what_another_xla_compiled_is_told_what_to_give() {
    let folder = Folder::new();
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/xla_today/jax_cpu_step.after.txt");
    folder.text("step.txt", &std::fs::read_to_string(text).unwrap());
    if binary::device() != "cpu" {
        folder.stdout(&["run", "step.txt", "--random", "1"]);
        return;
    }
    let error = folder.stderr(&["run", "step.txt", "--random", "1"]);
    assert!(
        error.starts_with(
            "bf16scope: step.txt: XLA's CPU compiler compiled this module already (is_scheduled=true): it is the result of \
             compiling, written for one back end, and not a program to compile again\nhelp: give the module from before \
             optimization: JAX's lowered.as_text(\"hlo\"), not compiled.as_text(); of --xla_dump_to the file \
             *before_optimizations*\n"
        ),
        "{error}"
    );
    assert!(error.contains("Unsupported fusion instruction"), "{error}");
    // These used to end in XLA's message alone, and `explain` took the module for a TPU's.
    for args in [
        &["audit", "step.txt", "--random", "1"][..],
        &["explain", "step.txt"],
        &["compile", "step.txt"],
        &["lower", "step.txt", "-o", "lowered.txt", "--target", "tpu-v2"],
    ] {
        let error = folder.stderr(args);
        assert!(error.contains("step.txt: XLA's CPU compiler compiled this module already"), "{args:?}: {error}");
    }
    // A copy is not a CPU-only kernel, and XLA aborts its process.
    folder.text(
        "copy.txt",
        "HloModule m, is_scheduled=true\n\nfused {\n  p = f32[16,4]{1,0} parameter(0)\n  t = f32[4,16] transpose(p), \
         dimensions={1,0}\n  ROOT c = f32[4,16]{1,0} copy(t)\n}\n\nENTRY m {\n  x = f32[16,4]{1,0} parameter(0)\n  ROOT y = \
         f32[4,16]{1,0} fusion(x), kind=kLoop, calls=fused\n}\n",
    );
    let error = folder.stderr(&["run", "copy.txt", "--random", "1"]);
    assert!(
        error.starts_with("bf16scope: copy.txt: XLA compiled this module already") && error.contains("SIGABRT"),
        "{error}"
    );
}

/// The TPU compiler's fusions have bf16 results of f32 operands, which a program may not: printing them used to be
/// refused.
#[test]
fn what_a_tpus_compiler_made_is_printed_whatever_it_mixes() {
    let folder = Folder::new();
    let text = "HloModule m, is_scheduled=true\n\nfused {\n  p = f32[8]{0:T(256)} parameter(0)\n  ROOT n = bf16[8]{0:T(256)} \
                negate(p)\n}\n\nENTRY m {\n  x = f32[8]{0:T(256)} parameter(0)\n  ROOT y = bf16[8]{0:T(256)} fusion(x), \
                kind=kLoop, calls=fused\n}\n";
    folder.text("mixed.txt", text);
    assert!(folder.stdout(&["emit", "mixed.txt"]).contains("n = bf16[8]{0:T(256)} negate(p)"));
    folder.stdout(&["emit", "mixed.txt", "-o", "mixed.pb"]);
    assert!(folder.stdout(&["emit", "mixed.pb"]).contains("n = bf16[8]{0:T(256)} negate(p)"));
    let error = folder.stderr(&["emit", "mixed.txt", "--format", "stablehlo"]);
    assert!(error.contains("XLA's TPU compiler compiled this module already"), "{error}");
    folder.text("program.txt", &text.replace(", is_scheduled=true", ""));
    assert!(folder.stderr(&["emit", "program.txt"]).contains("the module is broken"));
}

/// Partitioned over four devices, with shards of two of six rows, the last only padding: the result equals one
/// device's, to the bit, because all numbers are whole.
#[test]
fn a_module_over_partitions_gives_what_one_device_gives() {
    let folder = Folder::new();
    let module = |header: &str, rows: &str, whole: &str, both: &str| {
        format!(
            "HloModule m{header}\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, \
             b)\n}}\n\nENTRY main {{\n  x = f32[6,4] parameter(0){rows}\n  w = f32[4,3] parameter(1){whole}\n  y = f32[6,3] \
             dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{rows}\n  zero = f32[] constant(0)\n  sum = \
             f32[] reduce(y, zero), dimensions={{0,1}}, to_apply=add\n  ROOT both = (f32[6,3], f32[]) tuple(y, sum){both}\n}}\n"
        )
    };
    folder.text("one.txt", &module("", "", "", ""));
    let rows = ", sharding={devices=[4,1]<=[4]}";
    let both = ", sharding={{devices=[4,1]<=[4]}, {replicated}}";
    folder.text("four.txt", &module(", num_partitions=4", rows, ", sharding={replicated}", both));
    let mut npz = NpzWriter::new(File::create(folder.path("in.npz")).unwrap());
    let counting = |dims: &[usize]| {
        ArrayD::from_shape_vec(IxDyn(dims), (0..dims.iter().product::<usize>()).map(|i| i as f32 - 5.0).collect())
            .unwrap()
    };
    npz.add_array("in0", &counting(&[6, 4])).unwrap();
    npz.add_array("in1", &counting(&[4, 3])).unwrap();
    npz.finish().unwrap();
    folder.stdout(&["run", "one.txt", "--inputs", "in.npz", "--outputs", "one.npz"]);
    folder.stdout(&["run", "four.txt", "--inputs", "in.npz", "--outputs", "four.npz", "--device", "cpu:4"]);
    let [mut one, mut four] = ["one.npz", "four.npz"].map(|name| folder.npz(name));
    for name in ["out0", "out1"] {
        assert_eq!(f32s(&mut one, name), f32s(&mut four, name), "{name}");
    }
    assert_eq!(four.names().unwrap().len(), 2);
    let refused = |module: &str, device: &str| folder.stderr(&["run", module, "--random", "1", "--device", device]);
    assert_eq!(
        refused("four.txt", "cpu:2"),
        "bf16scope: four.txt cannot be run\n  caused by: the module is for 4 partitions, and cpu:2 has 2 devices\nhelp: run it \
         with `--device cpu:4`\n"
    );
    assert_eq!(
        refused("one.txt", "cpu:2"),
        "bf16scope: one.txt cannot be run\n  caused by: the module is for one device, and cpu:2 has 2\nhelp: run it with \
         `--device cpu`\n"
    );
}

/// JAX specifies some arrays' shardings, and leaves the others to the partitioner: the compiled program shows them. All
/// numbers are whole, so that sums have the same bits in any order.
#[test]
fn a_module_over_devices_whose_arrays_lie_partly_as_it_says_gives_what_one_gives() {
    const ROWS: &str = " {sdy.sharding = #sdy.sharding<@mesh, [{\"d\"}, {}]>}";
    const COLUMNS: &str = " {sdy.sharding = #sdy.sharding<@mesh, [{}, {\"d\"}]>}";
    let module = |n: usize, mesh: &str, [x, w, y]: [&str; 3]| {
        format!(
            "module @jit_step attributes {{mhlo.num_partitions = {n} : i32, mhlo.num_replicas = 1 : i32}} {{\n{mesh}  func.func \
             public @main(%arg0: tensor<8x16xf32>{x}, %arg1: tensor<16x4xf32>{w}, %arg2: tensor<4xf32>) -> \
             (tensor<8x4xf32>{y}, tensor<4xf32>, tensor<8x16xf32>) {{\n    %0 = stablehlo.dot_general %arg0, %arg1, \
             contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<16x4xf32>) -> \
             tensor<8x4xf32>\n    %1 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>\n    %2 \
             = stablehlo.add %0, %1 : tensor<8x4xf32>\n    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>\n    %3 = \
             stablehlo.reduce(%2 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> \
             tensor<4xf32>\n    %4 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<16x4xf32>) -> tensor<4x16xf32>\n    %5 = \
             stablehlo.dot_general %2, %4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, \
             tensor<4x16xf32>) -> tensor<8x16xf32>\n    return %2, %3, %5 : tensor<8x4xf32>, tensor<4xf32>, \
             tensor<8x16xf32>\n  }}\n}}\n"
        )
    };
    let folder = Folder::new();
    folder.text("one.mlir", &module(1, "", [""; 3]));
    let mut npz = NpzWriter::new(File::create(folder.path("in.npz")).unwrap());
    for (position, dims) in [&[8, 16][..], &[16, 4], &[4]].into_iter().enumerate() {
        let n = dims.iter().product::<usize>();
        let values = (0..n).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
        npz.add_array(format!("in{position}"), &ArrayD::from_shape_vec(IxDyn(dims), values).unwrap()).unwrap();
    }
    npz.finish().unwrap();
    folder.stdout(&["run", "one.mlir", "--inputs", "in.npz", "--outputs", "one.npz"]);
    let mesh = "  sdy.mesh @mesh = <[\"d\"=4]>\n";
    for said in [[ROWS, "", ""], [ROWS, COLUMNS, COLUMNS], ["", COLUMNS, ""], ["", "", ROWS]] {
        folder.text("four.mlir", &module(4, mesh, said));
        folder.stdout(&["run", "four.mlir", "--inputs", "in.npz", "--outputs", "four.npz", "--device", "cpu:4"]);
        let [mut one, mut four] = ["one.npz", "four.npz"].map(|name| folder.npz(name));
        for name in ["out0", "out1", "out2"] {
            assert_eq!(f32s(&mut one, name), f32s(&mut four, name), "{name} of {said:?}");
        }
        folder.stdout(&["audit", "four.mlir", "--inputs", "in.npz", "--device", "cpu:4"]);
    }
}

/// Replicas sum across each other, and each replica's result is returned if they differ.
#[test]
fn a_module_over_replicas_gives_each_ones_result() {
    let folder = Folder::new();
    folder.text(
        "two.txt",
        "HloModule m, replica_count=2\n\nadd {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, \
         b)\n}\n\nENTRY main {\n  x = f32[] parameter(0)\n  id = u32[] replica-id()\n  number = f32[] convert(id)\n  own = f32[] \
         add(x, number)\n  all = f32[] all-reduce(own), replica_groups={{0,1}}, to_apply=add\n  ROOT both = (f32[], f32[]) \
         tuple(own, all)\n}\n",
    );
    let mut npz = NpzWriter::new(File::create(folder.path("in.npz")).unwrap());
    npz.add_array("x", &arr0(10f32)).unwrap();
    npz.finish().unwrap();
    folder.stdout(&["run", "two.txt", "--inputs", "in.npz", "--outputs", "out.npz", "--device", "cpu:2"]);
    let mut out = folder.npz("out.npz");
    let outputs = ["out0", "out0.replica1", "out1"].map(|name| f32s(&mut out, name));
    assert_eq!(outputs, [[10.0], [11.0], [21.0]]);
    assert_eq!(out.names().unwrap().len(), 3);
}

/// Thirty computations, each of which calls the previous one twice: XLA used to inline them endlessly.
#[test]
fn calls_that_multiply_are_refused() {
    let folder = Folder::new();
    let mut text = "HloModule chain\n\nc0 {\n  x0 = f32[] parameter(0)\n  ROOT y0 = f32[] negate(x0)\n}\n".to_string();
    for n in 1..=30 {
        let before = n - 1;
        text += &format!(
            "\nc{n} {{\n  x{n} = f32[] parameter(0)\n  a{n} = f32[] call(x{n}), to_apply=c{before}\n  ROOT y{n} = f32[] call(a{n}), \
             to_apply=c{before}\n}}\n"
        );
    }
    text += "\nENTRY main {\n  x = f32[] parameter(0)\n  ROOT y = f32[] call(x), to_apply=c30\n}\n";
    folder.text("chain.txt", &text);
    // 2·2^30 from the first, and 3·(2^30 − 1) from the others; two from the entry.
    assert_eq!(
        folder.stderr(&["run", "chain.txt", "--random", "1"]),
        "bf16scope: chain.txt cannot be compiled\n  caused by: the program has 5368709119 instructions once its calls are \
         inlined, as XLA inlines them, expected at most 10000000\nhelp: computations that call others several times multiply; \
         say a repetition with a `while` loop\n"
    );
}

/// JAX's calls of LAPACK become XLA ops: factors, lower and upper, also for a matrix without one; solves from both
/// sides.
#[test]
fn calls_of_lapack_compute_what_jax_computes() {
    let folder = Folder::new();
    let [module, inputs] = ["lapack.mlir", "lapack_in.npz"].map(|name| data("stablehlo", name));
    folder.stdout(&["run", &module, "--inputs", &inputs, "--outputs", "out.npz"]);
    let mut computed = folder.npz("out.npz");
    let mut expected = NpzReader::new(File::open(data("stablehlo", "lapack_out.npz")).unwrap()).unwrap();
    assert_eq!(computed.names().unwrap().len(), 7);
    for name in (0..7).map(|number| format!("out{number}")) {
        let [computed, expected] = [&mut computed, &mut expected].map(|npz| f32s(npz, &name));
        // Zeros may have either sign.
        let bits = |values: Vec<f32>| values.into_iter().map(|value| (value + 0.0).to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(computed), bits(expected), "{name}");
    }
    assert!(f32s(&mut expected, "out2").iter().any(|value| value.is_nan()));
}
