//! TensorFlow's two networks, written with our builder and layers and fed TensorFlow's variables, against TensorFlow
//! (`tests/data/oracle_tf/README.md`).
//!
//! XLA's CPU code sums in an order that depends on the processor, so what TensorFlow recorded on one is not to the bit
//! what another gives. Four comparisons hold on every processor:
//! - In bf16, TensorFlow's own module runs beside our program, on the same device with the same options: logits, loss
//!   and all gradients are equal bit for bit.
//! - In f64, its f32 module and our f32 program run with f64 for f32: one function, to f64's rounding.
//! - TensorFlow's f32 recording equals our f64 result up to f32's rounding; our f32 logits and loss do too.
//! - TensorFlow's bf16 recording equals our bf16 result up to the error of bf16, since any rounding may go either way.

use crate::run;
use crate::wide;

use bf16scope::graph::{Graph, Precision, Scope, Tensor};
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Literal, Module};
use bf16scope::nn::{
    BatchNorm, Conv2d, DataFormat, Dense, Padding, Pool, batch_norm, conv2d, dense, global_avg_pool, max_pool, relu,
    sparse_softmax_cross_entropy,
};
use bf16scope::passes::grad;
use bf16scope::pjrt::CompileOptions;
use half::bf16;
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;

/// One of the networks.
struct Network {
    name: &'static str,
    build: Build,
    /// Lengths of all sums that a logit or the loss goes through, added; for a gradient, as many again.
    n_terms: f64,
    kink: Option<Kink>,
}

type Build = fn(&Scope, &Tensor, Relu) -> Tensor;
type Relu<'a> = &'a dyn Fn(&Tensor) -> Tensor;

/// An input of a relu so near to zero that TensorFlow's f32 sums and exact ones have different signs.
struct Kink {
    /// Which relu, counted from 0.
    relu: usize,
    /// The element's index.
    at: usize,
    /// The change that gives it TensorFlow's sign.
    nudge: f32,
}

/// Sums of 64 and 128, 10 in the softmax and 16 in the mean.
const MLP: Network = Network { name: "mlp", build: mlp, n_terms: 64.0 + 128.0 + 10.0 + 16.0, kink: None };

/// Convolutions of 147, 16, 72, 8 and 16 terms, normalizations over batch and places (4096, 1024, and three of 256), a
/// mean of 16, a dense layer of 32, a softmax of 10 and a mean of 16.
///
/// One of the 84,000 inputs of relus is 5e-7 in exact arithmetic, with terms up to 8; all others, and all pairs of
/// largest elements of a pooling window, have more than ten times this margin. In TensorFlow's recorded gradients this
/// input is on the other side.
const RESNET_BLOCK: Network = Network {
    name: "resnet_block",
    build: resnet_block,
    n_terms: 259.0 + 4096.0 + 1024.0 + 768.0 + 16.0 + 32.0 + 10.0 + 16.0,
    kink: Some(Kink { relu: 3, at: 7296, nudge: -1e-6 }),
};

/// `[16,64]` → dense 128, relu → dense 10.
fn mlp(s: &Scope, x: &Tensor, relu: Relu) -> Tensor {
    let x = relu(&dense(s, x, "fc1", &Dense { units: 128, ..Dense::default() }));
    dense(s, &x, "fc2", &Dense { units: 10, ..Dense::default() })
}

/// `[16,32,32,3]` → 7×7/2, batch norm, relu, max pool, one bottleneck block with projection, mean, dense 10.
fn resnet_block(s: &Scope, x: &Tensor, relu: Relu) -> Tensor {
    resnet_block_with(s, x, relu, BatchNorm::RESNET)
}

fn resnet_block_with(s: &Scope, x: &Tensor, relu: Relu, config: BatchNorm) -> Tensor {
    let conv = |x: &Tensor, name: &str, filters: i64, size: i64, stride: i64| {
        let (kernel_size, strides, padding) = ([size; 2], [stride; 2], Padding::Same);
        conv2d(s, x, name, &Conv2d { filters, kernel_size, strides, padding, use_bias: false, ..Conv2d::default() })
    };
    let norm = |x: &Tensor, name: &str| batch_norm(s, x, name, &config);
    let x = relu(&norm(&conv(x, "conv0", 16, 7, 2), "bn0"));
    let pool = Pool { pool_size: [3, 3], strides: Some([2, 2]), padding: Padding::Same, ..Pool::default() };
    let x = max_pool(&x, &pool);
    let y = relu(&norm(&conv(&x, "c1", 8, 1, 1), "b1"));
    let y = relu(&norm(&conv(&y, "c2", 8, 3, 2), "b2"));
    let y = norm(&conv(&y, "c3", 32, 1, 1), "b3");
    let shortcut = norm(&conv(&x, "proj", 32, 1, 2), "bproj");
    let x = relu(&(y + shortcut));
    dense(s, &global_avg_pool(&x, DataFormat::ChannelsLast), "fc", &Dense { units: 10, ..Dense::default() })
}

/// One oracle file.
struct Oracle(std::cell::RefCell<NpzReader<File>>);

impl Oracle {
    fn open(name: &str) -> Oracle {
        let path = format!("{}/tests/data/oracle_tf/{name}.npz", env!("CARGO_MANIFEST_DIR"));
        Oracle(NpzReader::new(File::open(path).unwrap()).unwrap().into())
    }

    fn f32s(&self, name: &str) -> ArrayD<f32> {
        self.0.borrow_mut().by_name(&format!("{name}.npy")).unwrap()
    }

    fn s32s(&self, name: &str) -> ArrayD<i32> {
        self.0.borrow_mut().by_name(&format!("{name}.npy")).unwrap()
    }

    fn n_variables(&self) -> usize {
        self.0.borrow_mut().names().unwrap().iter().filter(|name| name.starts_with("var/")).count()
    }
}

fn literal<T: bf16scope::hlo::Element>(array: &ArrayD<T>) -> Literal {
    let dims: Vec<i64> = array.shape().iter().map(|&n| n as i64).collect();
    Literal::from_elements(dims, &array.iter().copied().collect::<Vec<T>>())
}

/// The results of one run: logits, loss, and the gradient of each variable by name.
struct Outcome {
    logits: Vec<f64>,
    loss: f64,
    gradients: Vec<(String, Vec<f64>)>,
    /// The input of the relu at its kink, before the nudge, and the largest of its neighbours.
    at_kink: Option<(f64, f64)>,
}

impl Outcome {
    /// Each result with its name.
    fn results(&self) -> Vec<(&str, &[f64])> {
        let gradients = self.gradients.iter().map(|(name, gradient)| (name.as_str(), gradient.as_slice()));
        [("logits", self.logits.as_slice()), ("loss", std::slice::from_ref(&self.loss))]
            .into_iter()
            .chain(gradients)
            .collect()
    }
}

/// How a network is run.
#[derive(Clone, Copy)]
enum Run {
    Bf16,
    F32,
    /// The f32 program with f64 where it has f32.
    F64,
}

impl Run {
    fn precision(self) -> Precision {
        match self {
            Run::Bf16 => Precision::Bf16,
            Run::F32 | Run::F64 => Precision::F32,
        }
    }

    /// Runs a module on arguments in order; gives its results.
    fn run(self, module: &Module, options: &CompileOptions, arguments: &[Literal]) -> Vec<Vec<f64>> {
        let (module, arguments) = match self {
            Run::Bf16 | Run::F32 => (module.clone(), arguments.to_vec()),
            Run::F64 => (wide::module(module), arguments.iter().map(wide::literal).collect()),
        };
        verify(&module).unwrap();
        let results = run::run_bytes(&encode::to_bytes(&module).unwrap(), options, &arguments);
        results.iter().map(wide::f64s).collect()
    }
}

/// Builds, differentiates and runs `network` on the oracle's input, labels and variables.
fn ours(oracle: &Oracle, network: &Network, run: Run, options: &CompileOptions) -> Outcome {
    ours_nudged(oracle, network, run, options, None)
}

/// The same with one relu's input nudged.
fn ours_nudged(oracle: &Oracle, network: &Network, run: Run, options: &CompileOptions, kink: Option<&Kink>) -> Outcome {
    let g = Graph::training("oracle");
    let x0 = oracle.f32s("x0");
    let dims: Vec<i64> = x0.shape().iter().map(|&n| n as i64).collect();
    let labels = g.input("y", DType::S32, [dims[0]]);
    let x = g.input("x0", DType::F32, dims).cast(run.precision().compute());
    let relu_inputs = RefCell::new(vec![]);
    let relu = |x: &Tensor| {
        let number = relu_inputs.borrow().len();
        relu_inputs.borrow_mut().push(x.clone());
        match kink {
            Some(kink) if kink.relu == number => relu(&(x + &g.input("nudge", x.dtype(), x.dims()))),
            _ => relu(x),
        }
    };
    let logits = g.low_precision_scope(run.precision(), |s| (network.build)(s, &x, &relu)).cast(DType::F32);
    let loss = sparse_softmax_cross_entropy(&logits, &labels, 0.0);
    let trainable: Vec<_> = g.variables().into_iter().filter(|variable| variable.trainable).collect();
    let wrt: Vec<_> = trainable.iter().map(|variable| variable.instr).collect();
    let gradients = grad::gradients(g.emitter(), loss.id, &wrt).unwrap();
    let gradients: Vec<Tensor> = gradients.into_iter().map(|id| g.tensor(id)).collect();
    let mut outputs = vec![("logits", &logits), ("loss", &loss)];
    outputs.extend(trainable.iter().zip(&gradients).map(|(variable, gradient)| (variable.name.as_str(), gradient)));
    let relu_inputs = relu_inputs.borrow();
    outputs.extend(kink.map(|kink| ("relu's input", &relu_inputs[kink.relu])));
    let program = g.finish(&outputs).unwrap();
    let zeros = |dims: &[i64]| vec![0f32; dims.iter().product::<i64>() as usize];
    let arguments = run::arguments(&program, |name| match name {
        "x0" => literal(&x0),
        "y" => literal(&oracle.s32s("y")),
        "nudge" => {
            let (kink, dims) = kink.map(|kink| (kink, relu_inputs[kink.relu].dims())).unwrap();
            let mut nudges = zeros(&dims);
            nudges[kink.at] = kink.nudge;
            Literal::from_elements(dims, &nudges)
        }
        // Running statistics: a training step only writes them.
        name if name.contains("/moving_") => {
            let variable = program.variables.iter().find(|variable| variable.name == name).unwrap();
            Literal::from_elements(variable.dims.clone(), &zeros(&variable.dims))
        }
        name => literal(&oracle.f32s(&format!("var/{name}"))),
    });
    let mut results = run.run(&program.module, options, &arguments).into_iter();
    let (logits, loss) = (results.next().unwrap(), results.next().unwrap()[0]);
    let names = trainable.into_iter().map(|variable| variable.name);
    let gradients: Vec<_> = names.map(|name| (name, results.next().unwrap())).collect();
    assert_eq!(gradients.len(), oracle.n_variables());
    let at_kink = kink.map(|kink| {
        let inputs = results.next().unwrap();
        (inputs[kink.at], inputs.iter().fold(0f64, |scale, input| scale.max(input.abs())))
    });
    Outcome { logits, loss, gradients, at_kink }
}

/// TensorFlow's recording, in the order of our results.
fn recorded(oracle: &Oracle, precision: Precision, ours: &Outcome) -> Outcome {
    let values =
        |name: &str| -> Vec<f64> { oracle.f32s(&format!("{precision}/{name}")).into_iter().map(f64::from).collect() };
    let gradients = ours.gradients.iter().map(|(name, _)| (name.clone(), values(&format!("grad/{name}"))));
    Outcome { logits: values("logits"), loss: values("loss")[0], gradients: gradients.collect(), at_kink: None }
}

/// Runs TensorFlow's own module. Its parameters are input, labels, and the variables in order of first use, which is
/// ours; its results logits, loss, and the gradients in order of the variables' names.
fn of_its_module(oracle: &Oracle, name: &str, run: Run, options: &CompileOptions, ours: &Outcome) -> Outcome {
    let path = format!("{}/tests/data/oracle_tf/{name}_{}.hlo.pb", env!("CARGO_MANIFEST_DIR"), run.precision());
    let module = decode::from_bytes(&std::fs::read(path).unwrap()).unwrap();
    let mut arguments = vec![literal(&oracle.f32s("x0")), literal(&oracle.s32s("y"))];
    arguments.extend(ours.gradients.iter().map(|(variable, _)| literal(&oracle.f32s(&format!("var/{variable}")))));
    let mut results = run.run(&module, options, &arguments).into_iter();
    let (logits, loss) = (results.next().unwrap(), results.next().unwrap()[0]);
    let mut names: Vec<String> = ours.gradients.iter().map(|(variable, _)| variable.clone()).collect();
    names.sort();
    let sorted: BTreeMap<String, Vec<f64>> = names.into_iter().zip(results).collect();
    let gradients = ours.gradients.iter().map(|(variable, _)| (variable.clone(), sorted[variable].clone()));
    Outcome { logits, loss, gradients: gradients.collect(), at_kink: None }
}

/// Half an ulp, relative to one: a rounding.
const F32: f64 = 1.0 / (1u64 << 24) as f64;
const F64: f64 = 1.0 / (1u64 << 53) as f64;

/// Checks each element of each result: off by at most `roundings` of the result's scale.
///
/// A sum of `k` terms in any order is within `k` roundings of the exact one, relative to the sum of the terms' sizes
/// (Higham 2002, 4.2), which in these networks is about the result's scale; errors of stages add. So `roundings` is
/// the lengths of all sums that a result went through, times a rounding of the dtype.
fn check_to_rounding<'a>(measured: impl IntoIterator<Item = (&'a str, &'a [f64])>, expected: &Outcome, roundings: f64) {
    for ((name, measured), (_, expected)) in measured.into_iter().zip(expected.results()) {
        let scale = expected.iter().fold(0f64, |scale, value| scale.max(value.abs()));
        for (at, (x, y)) in measured.iter().zip(expected).enumerate() {
            let (off, bound) = ((x - y).abs(), roundings * scale);
            assert!(off <= bound, "{name}[{at}] is {x:e}, expected {y:e}: off by {off:e}, at most {bound:e}");
        }
    }
}

/// With every rounding kept, our program and TensorFlow's module give the same bits.
fn check_bf16_beside_its_module(network: &Network) {
    let oracle = Oracle::open(network.name);
    let options = CompileOptions::default();
    let ours = ours(&oracle, network, Run::Bf16, &options);
    let theirs = of_its_module(&oracle, network.name, Run::Bf16, &options, &ours);
    for ((name, ours), (_, theirs)) in ours.results().into_iter().zip(theirs.results()) {
        assert!(theirs.iter().any(|&value| value != 0.0), "{name} is all zeros");
        let n_different = ours.iter().zip(theirs).filter(|(ours, theirs)| ours.to_bits() != theirs.to_bits()).count();
        assert_eq!(n_different, 0, "{name}: of {} elements, this many differ", ours.len());
    }
    let rounded: Vec<f64> = ours.logits.iter().map(|&logit| bf16::from_f64(logit).to_f64()).collect();
    assert_eq!(rounded, ours.logits, "the logits were rounded to bf16 before they became f32");
}

/// Compiled as TensorFlow compiles, against what it recorded.
///
/// TensorFlow lets XLA keep *excess precision*, and so must we here. Two processors then drop and keep the same
/// roundings, but sums in another order make some of them fall the other way, and with them relus near zero, and so on
/// through the network: at worst our result is another draw of bf16's error. TensorFlow's own such error is known, from
/// what it recorded in bf16 and in f32. Where a processor has XLA keep the roundings that it may drop, they are at most
/// twice as many: ours may be off twice as far as TensorFlow's. The two are then apart by at most three times what bf16
/// cost TensorFlow, in the root of the sum of squares, in which errors of many roundings average out.
fn check_bf16_recorded(network: &Network) {
    let oracle = Oracle::open(network.name);
    let as_tensorflow = CompileOptions { allow_excess_precision: true, ..CompileOptions::default() };
    let ours = ours(&oracle, network, Run::Bf16, &as_tensorflow);
    let narrow = recorded(&oracle, Precision::Bf16, &ours);
    let wide = recorded(&oracle, Precision::F32, &ours);
    for ((name, ours), ((_, narrow), (_, wide))) in
        ours.results().into_iter().zip(narrow.results().into_iter().zip(wide.results()))
    {
        let apart = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let (off, cost) = (apart(ours, narrow), apart(narrow, wide));
        assert!(off <= 3.0 * cost, "{name} is {off:e} from what is recorded, expected at most 3 times {cost:e}");
    }
}

/// In f32 as recorded: in f64, whose results are those of every processor, and in f32 on this one.
fn check_f32(network: &Network) {
    let oracle = Oracle::open(network.name);
    let options = CompileOptions::default();
    let exact = ours(&oracle, network, Run::F64, &options);
    // Ours and theirs sum in different orders, forward and backward.
    let theirs = of_its_module(&oracle, network.name, Run::F64, &options, &exact);
    check_to_rounding(exact.results(), &theirs, 2.0 * 2.0 * network.n_terms * F64);

    let recorded = recorded(&oracle, Precision::F32, &exact);
    let exact = match &network.kink {
        None => exact,
        Some(kink) => {
            let nudged = ours_nudged(&oracle, network, Run::F64, &options, Some(kink));
            let (at_kink, scale) = nudged.at_kink.unwrap();
            let f32_cannot_tell = network.n_terms * F32 * scale;
            assert!(at_kink.abs() <= f32_cannot_tell, "{at_kink:e} is far from zero: {f32_cannot_tell:e}");
            nudged
        }
    };
    check_to_rounding(exact.results(), &recorded, 2.0 * network.n_terms * F32);

    // A relu at its kink moves the values after it by no more than a rounding, but gradients by all that passes it: which
    // way it falls in f32 here, the processor decides. So of the f32 results, those before the gradients.
    let here = ours(&oracle, network, Run::F32, &options);
    check_to_rounding(here.results().into_iter().take(2), &recorded, 2.0 * network.n_terms * F32);
}

#[test]
fn mlp_in_bf16_is_bit_for_bit_what_its_module_computes() {
    check_bf16_beside_its_module(&MLP);
}

#[test]
fn resnet_block_in_bf16_is_bit_for_bit_what_its_module_computes() {
    check_bf16_beside_its_module(&RESNET_BLOCK);
}

#[test]
fn mlp_in_bf16_is_as_tensorflow_recorded() {
    check_bf16_recorded(&MLP);
}

#[test]
fn resnet_block_in_bf16_is_as_tensorflow_recorded() {
    check_bf16_recorded(&RESNET_BLOCK);
}

#[test]
fn mlp_in_f32() {
    check_f32(&MLP);
}

#[test]
fn resnet_block_in_f32() {
    check_f32(&RESNET_BLOCK);
}

/// The bounds must detect wrong constants.
fn check_notices(build: Build, check: fn(&Network), expected: &str) {
    let wrong = Network { build, ..RESNET_BLOCK };
    let panic = std::panic::catch_unwind(|| check(&wrong)).expect_err(expected);
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.contains(expected), "{message}");
}

fn resnet_block_of(epsilon: f64, s: &Scope, x: &Tensor, relu: Relu) -> Tensor {
    resnet_block_with(s, x, relu, BatchNorm { epsilon, ..BatchNorm::RESNET })
}

/// By a thousandth of an epsilon in f64, by a quarter of it in bf16.
#[test]
fn an_epsilon_that_is_a_little_wrong_is_noticed() {
    check_notices(|s, x, relu| resnet_block_of(1.001e-5, s, x, relu), check_f32, "off by");
    check_notices(|s, x, relu| resnet_block_of(1.25e-5, s, x, relu), check_bf16_beside_its_module, "this many differ");
}

/// Within the bounds for another processor's bf16, only a larger error can be detected.
#[test]
fn an_epsilon_of_a_tenth_is_not_what_tensorflow_recorded() {
    check_notices(|s, x, relu| resnet_block_of(0.1, s, x, relu), check_bf16_recorded, "expected at most 3 times");
}
