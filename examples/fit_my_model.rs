//! Which batch of your network fits a TPU, how fast it is there, and what bf16 buys: Google's compiler says it, and no TPU is
//! needed. `cargo run --example fit_my_model` takes a minute or two, once: answers are kept.

use bf16scope::prelude::*;
use bf16scope::study::{Explain, Fit, StudyError};

/// Two convolutions and a dense layer over photographs: features in; loss and predictions out.
#[derive(Debug)]
struct Photos;

impl Task for Photos {
    fn name(&self) -> &str {
        "photos"
    }
    fn features(&self) -> Vec<Feature> {
        vec![Feature::compute("images", [128, 128, 3]), Feature::exact("labels", DType::S32, []).below(10).label()]
    }
    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        let logits = s.low_precision(|s| {
            let conv = |filters| Conv2d { filters, kernel_size: [3, 3], ..Conv2d::default() };
            let x = nn::relu(&nn::conv2d(s, &features.get("images"), "conv1", &conv(64)));
            let x = nn::relu(&nn::conv2d(s, &nn::max_pool(&x, &Pool::default()), "conv2", &conv(128)));
            nn::dense(s, &x.mean(&[1, 2]), "logits", &Dense { units: 10, ..Dense::default() })
        });
        let logits = logits.cast(DType::F32);
        if mode == Mode::Predict {
            return Outputs::new().prediction("class", &nn::arg_max(&logits));
        }
        let losses = nn::sparse_softmax_cross_entropy_per_example(&logits, &features.get("labels"), 0.0);
        Outputs::new().loss(Loss::weighted(&losses, &features.weight()))
    }
}

fn main() -> Result<(), StudyError> {
    let fit = Fit::new(&Photos).target("tpu-v3").batch(256).multiple(256).on_event(|event| println!("{event}"));
    println!("{}", fit.run()?); // a line in f32, and one in bf16

    // The largest arrays when most memory is used, each with its layer and the line above that made it.
    let explained = Explain::new(&Photos).target("tpu-v3").batch(256).run()?;
    for live in explained.programs[0].explanation.memory.live.iter().take(3) {
        println!("{} MiB: {} of {}, {}", live.n_bytes >> 20, live.shape, live.origin.layer, live.origin.source);
    }
    Ok(())
}
