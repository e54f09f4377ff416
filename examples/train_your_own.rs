//! A network, a loss and a metric of your own, trained on the digits in bf16: stopped, resumed to the bit, evaluated, used.
//!
//! `cargo run --release --example train_your_own` takes about half a minute. Nothing here is in the zoo: a program of yours
//! looks the same, with `bf16scope` as a dependency.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bf16scope::data::csv;
use bf16scope::optim::{Momentum, RateDrop};
use bf16scope::pjrt::Client;
use bf16scope::prelude::*;
use bf16scope::train::checkpoint::{Checkpoint, Place};
use bf16scope::train::{Data, Event, Objective, Plan, Resumption, Session, Spec, TrainError, run};

/// Depthwise-separable convolutions (Howard et al. 2017, MobileNets): each channel is filtered alone, then a 1×1
/// convolution mixes them.
fn network(s: &Scope, images: &Tensor) -> Tensor {
    let conv = |filters, size, groups| Conv2d {
        filters,
        kernel: [size, size],
        groups,
        padding: Padding::Same,
        use_bias: false,
        kernel_init: Init::HE_NORMAL,
        ..Conv2d::default()
    };
    let norm = |s: &Scope, x: &Tensor, name: &str| nn::relu(&nn::batch_norm(s, x, name, &BatchNorm::default()));
    let mut x = norm(s, &nn::conv2d(s, images, "stem", &conv(64, 3, 1)), "stem_bn");
    for (number, filters) in [(1, 128), (2, 256)] {
        x = s.within(&format!("block{number}"), |s| {
            let channels = x.dims()[3];
            let x = norm(s, &nn::conv2d(s, &x, "depthwise", &conv(channels, 3, channels)), "depthwise_bn");
            let x = norm(s, &nn::conv2d(s, &x, "pointwise", &conv(filters, 1, 1)), "pointwise_bn");
            nn::max_pool(&x, &Pool { padding: Padding::Same, ..Pool::default() })
        });
    }
    let x = nn::dropout(s, &nn::flatten(&x), "dropout", 0.5);
    nn::dense(s, &x, "logits", &Dense { units: 10, ..Dense::default() })
}

/// What is learnt: features in; loss, metrics and predictions out.
#[derive(Debug)]
struct Digits {
    /// How much less an example counts that is right already: the focal loss of Lin et al. 2017.
    gamma: i32,
}

impl Task for Digits {
    fn name(&self) -> &str {
        "separable"
    }

    fn features(&self) -> Vec<Feature> {
        vec![Feature::compute("images", [8, 8, 1]), Feature::exact("labels", DType::S32, []).below(10).label()]
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        let images = features.get("images");
        // In bf16, with f32 variables; f32 from here on.
        let logits = s.low_precision(|s| network(s, &images)).cast(DType::F32);
        if mode == Mode::Predict {
            return Outputs::new().prediction("class", &nn::arg_max(&logits)).prediction("logits", &logits);
        }
        let (labels, weight) = (features.get("labels"), features.weight());
        let cross_entropy = nn::sparse_softmax_cross_entropy_per_example(&logits, &labels, 0.0);
        // -(1 - p)^γ log p, with p = e^-cross_entropy the probability of the label.
        let p = cross_entropy.negate().exponential();
        let focal = (0..self.gamma).fold(cross_entropy, |loss, _| loss * (-&p + 1.0));
        Outputs::new()
            .loss(Loss::weighted(&focal, &weight))
            .metric("accuracy", Metric::weighted(&nn::is_correct(&logits, &labels), &weight))
            .metric("confidence", Metric::weighted(&p, &weight))
    }

    fn identity(&self) -> Identity {
        Identity::new("separable").with_changeable("gamma", self.gamma)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let task: Arc<dyn Task> = Arc::new(Digits { gamma: 1 });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
    let (training, test) = csv::read(&path, &task.features(), 1.0 / 16.0)?.split_tail(360)?;
    let data = Data { training: &training, test: &test };
    let drops = [(528, 0.1), (792, 0.01)].map(|(step, multiplier)| RateDrop { step, multiplier }).to_vec();
    let update = Update {
        optimizer: Optimizer::Momentum(Momentum { momentum: 0.9, nesterov: true, ..Momentum::default() }),
        learning_rate: LearningRate::WarmUpStep { value: 0.05, warm_up: 44, drops },
        weight_decay: WeightDecay { value: 1e-3, except: vec!["_bn/".to_string()], decoupled: false },
        ..Update::default()
    };
    let objective = Objective { update, ..Objective::default() };
    let spec = || Spec { shift: 1, objective: objective.clone(), ..Spec::new(Arc::clone(&task)) };

    // The whole run, and one that is stopped in its seventh epoch and goes on in another session.
    let client = Client::cpu()?;
    let folder = tempfile::tempdir()?;
    let checkpoint = folder.path().join("digits.safetensors");
    let plan = |checkpoint| Plan::new(20, checkpoint);
    let mut whole = Session::new(&client, spec())?;
    let summary = run(&mut whole, data, &plan(None), &AtomicBool::new(false), &mut |event| {
        if let Event::Epoch(report) = event {
            let test: Vec<String> = report.test.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
            println!("epoch {:>2}: {}", report.epoch, test.join(", "));
        }
    })?;
    let stop = AtomicBool::new(false);
    let mut first = Session::new(&client, spec())?;
    let stopped = run(&mut first, data, &plan(Some(Place::claim(&checkpoint)?)), &stop, &mut |event| {
        if let Event::Step { session, .. } = event {
            stop.store(session.step() == 300, Ordering::Relaxed);
        }
    });
    println!("{}", stopped.expect_err("it was asked to stop"));
    let mut second = Session::new(&client, spec())?;
    second.restore(&checkpoint, &Checkpoint::read(&checkpoint)?, Resumption::default())?;
    run(&mut second, data, &plan(None), &AtomicBool::new(false), &mut |_| {})?;
    assert!(second.state()? == whole.state()?, "resumed, it ends with the same bits");

    // Used.
    let predictor = whole.predictor(100)?;
    let mut classes = Vec::new();
    whole.predict(&predictor, &test, |batch| {
        classes.extend(batch[0].bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)));
        Ok::<(), TrainError>(())
    })?;
    println!("the first ten are {:?}", &classes[..10]);
    let accuracy = summary.value("accuracy").unwrap_or_default();
    assert!(accuracy >= 0.97, "accuracy {accuracy}, expected at least 0.97");
    println!("accuracy {:.2} %, resumed to the same bits", 100.0 * accuracy);
    Ok(())
}
