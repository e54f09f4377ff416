//! A network, a loss and a metric of your own, trained on the digits in bf16, evaluated and used. Nothing here is in the zoo: a
//! program of yours looks the same. `cargo run --release --example train_your_own` takes about ten seconds.

use bf16scope::data::csv;
use bf16scope::optim::{Momentum, RateDrop};
use bf16scope::prelude::*;

/// Depthwise-separable convolutions (Howard et al. 2017): each channel is filtered alone, then a 1×1 convolution mixes them.
fn network(s: &Scope, images: &Tensor) -> Tensor {
    let conv = |s: &Scope, x: &Tensor, name: &str, filters, size, groups| {
        let (kernel_size, padding, kernel_initializer) = ([size, size], Padding::Same, Init::HE_NORMAL);
        let conv = Conv2d { filters, kernel_size, groups, padding, kernel_initializer, ..Conv2d::default() };
        let x = nn::conv2d(s, x, name, &conv);
        nn::relu(&nn::batch_norm(s, &x, &format!("{name}_bn"), &BatchNorm::RESNET))
    };
    let mut x = conv(s, images, "stem", 64, 3, 1);
    for (name, filters) in [("block1", 128), ("block2", 256)] {
        x = s.within(name, |s| {
            let channels = x.dims()[3];
            let x = conv(s, &conv(s, &x, "depthwise", channels, 3, channels), "pointwise", filters, 1, 1);
            nn::max_pool(&x, &Pool { padding: Padding::Same, ..Pool::default() })
        });
    }
    let x = nn::dropout(s, &nn::flatten(&x), "dropout", 0.5);
    nn::dense(s, &x, "logits", &Dense { units: 10, ..Dense::default() })
}

/// The task: features in; loss, metrics and predictions out. The loss is the focal loss of Lin et al. 2017.
#[derive(Debug)]
struct Digits;

impl Task for Digits {
    fn name(&self) -> &str {
        "separable"
    }
    fn features(&self) -> Vec<Feature> {
        vec![Feature::compute("images", [8, 8, 1]), Feature::exact("labels", DType::S32, []).below(10).label()]
    }
    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        // In bf16, with f32 variables; f32 from here on.
        let logits = s.low_precision(|s| network(s, &features.get("images"))).cast(DType::F32);
        if mode == Mode::Predict {
            return Outputs::new().prediction("class", &nn::arg_max(&logits));
        }
        let (labels, weight) = (features.get("labels"), features.weight());
        let cross_entropy = nn::sparse_softmax_cross_entropy_per_example(&logits, &labels, 0.0);
        let focal = (-cross_entropy.negate().exponential() + 1.0) * &cross_entropy; // -(1 - p) log p
        let accuracy = Metric::weighted(&nn::is_correct(&logits, &labels), &weight);
        Outputs::new().loss(Loss::weighted(&focal, &weight)).metric("accuracy", accuracy)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/digits.csv.gz");
    let (training, test) = csv::read(path, &Digits.features())?.scaled("images", 1.0 / 16.0)?.split_tail(360)?;
    let drops = vec![RateDrop { step: 528, multiplier: 0.1 }, RateDrop { step: 792, multiplier: 0.01 }];
    let rate = LearningRate::WarmUpStep { value: 0.05, warm_up: 44, drops };
    let optimizer = Momentum { momentum: 0.9, nesterov: true, ..Momentum::default() };
    let decay = WeightDecay { value: 1e-3, except: vec!["_bn/".to_string()], decoupled: false };
    let trainer = Trainer::new(Digits).epochs(20).shift(1).optimizer(optimizer).learning_rate(rate);
    let model = trainer.weight_decay(decay).on_epoch(|epoch| println!("{epoch}")).fit(&training, &test)?;
    println!("the first ten are {:?}", &model.predict(&test)?.to_vec::<i32>("class")?[..10]);
    let accuracy = model.evaluate(&test)?.value("accuracy").ok_or("the task reports it")?;
    assert!(accuracy >= 0.97, "accuracy {accuracy}, expected at least 0.97");
    Ok(())
}
