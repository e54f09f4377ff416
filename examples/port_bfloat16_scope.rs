//! A TPUEstimator program that trains in `bfloat16_scope`, ported line by line: TensorFlow's code stands above ours.
//!
//! `cargo run --example port_bfloat16_scope` trains a small network on the digits in f32 and in bf16, evaluates it,
//! predicts, and says which dtype the variables and the products have.

use std::error::Error;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use bf16scope::data::{Arrays, DataError, csv};
use bf16scope::hlo::Op;
use bf16scope::optim::Momentum;
use bf16scope::pjrt::Client;
use bf16scope::prelude::*;
use bf16scope::train::{Data, Objective, RunPlan, Session, Spec, program, run};
use bf16scope::tuning::Tuning;

// def network(images, is_training):
//   x = tf.layers.conv2d(images, 32, 3, padding='same', use_bias=False)
//   x = tf.layers.batch_normalization(x, momentum=0.9, epsilon=1e-5, training=is_training)
//   x = tf.nn.relu(x)
//   x = tf.layers.flatten(x)
//   return tf.layers.dense(x, 10)
fn network(s: &Scope, images: &Tensor) -> Tensor {
    let conv =
        Conv2d { filters: 32, kernel_size: [3, 3], padding: Padding::Same, use_bias: false, ..Conv2d::default() };
    let x = nn::conv2d(s, images, "conv2d", &conv);
    let x = nn::batch_norm(s, &x, "batch_normalization", &BatchNorm::RESNET); // of the batch where the program trains
    let x = nn::relu(&x);
    let x = nn::flatten(&x);
    nn::dense(s, &x, "dense", &Dense { units: 10, ..Dense::default() })
}

#[derive(Debug)]
struct ModelFn;

impl Task for ModelFn {
    fn name(&self) -> &str {
        "port"
    }

    // def input_fn(params):
    //   def parse(row):
    //     image = tf.reshape(row[:64], [8, 8, 1]) / 16.0
    //     if params['use_bfloat16']:
    //       image = tf.cast(image, tf.bfloat16)
    //     return image, row[64]
    fn features(&self) -> Vec<Feature> {
        // Cast on the host to what the network computes in: that is all of `use_bfloat16` on this side.
        vec![Feature::compute("images", [8, 8, 1]), Feature::exact("labels", DType::S32, []).below(10).label()]
    }

    // def model_fn(features, labels, mode, params):
    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        //   if params['use_bfloat16']:
        //     with tf.tpu.bfloat16_scope():
        //       logits = network(features, mode == ModeKeys.TRAIN)
        //     logits = tf.cast(logits, tf.float32)
        //   else:
        //     logits = network(features, mode == ModeKeys.TRAIN)
        let images = features.get("images");
        let logits = s.low_precision(|s| network(s, &images)).cast(DType::F32);

        //   if mode == ModeKeys.PREDICT:
        //     predictions = {'classes': tf.argmax(logits, 1), 'probabilities': tf.nn.softmax(logits)}
        //     return TPUEstimatorSpec(mode, predictions=predictions)
        if mode == Mode::Predict {
            return Outputs::new().prediction("classes", &nn::arg_max(&logits)).prediction("logits", &logits);
        }

        //   loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        //   if mode == ModeKeys.EVAL:
        //     metrics = {'accuracy': tf.metrics.accuracy(labels, tf.argmax(logits, 1), weights)}
        //     return TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
        let (labels, weight) = (features.get("labels"), features.weight());
        let losses = nn::sparse_softmax_cross_entropy_per_example(&logits, &labels, 0.0);
        let outputs = Outputs::new()
            .loss(Loss::weighted(&losses, &weight)) // the mean, without padding
            .metric("accuracy", Metric::weighted(&nn::is_correct(&logits, &labels), &weight));

        //   host_call = (write_summaries, [tf.reduce_max(losses)])
        //   return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=host_call)
        outputs.scalar("largest_loss", &losses.max(&[0]))
    }
}

// dataset = tf.data.TextLineDataset('digits.csv.gz', compression_type='GZIP').map(parse).shuffle(...).batch(...)
fn input_fn() -> Result<(Arrays, Arrays), DataError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
    csv::read(path, &ModelFn.features())?.scaled("images", 1.0 / 16.0)?.split_tail(360)
}

//   learning_rate = 0.05
//   optimizer = tf.train.MomentumOptimizer(learning_rate, 0.9)
//   optimizer = tf.tpu.CrossShardOptimizer(optimizer)   # one core here
//   train_op = optimizer.minimize(loss, tf.train.get_global_step())
fn objective() -> Objective {
    let update = Update {
        optimizer: Momentum { momentum: 0.9, ..Momentum::default() }.into(),
        learning_rate: 0.05.into(),
        ..Update::default()
    };
    Objective { update, ..Objective::default() }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (client, (training, test)) = (Client::cpu()?, input_fn()?);
    for precision in [Precision::F32, Precision::Bf16] {
        // config = tf.tpu.RunConfig(tpu_config=tf.tpu.TPUConfig(iterations_per_loop=4))
        // estimator = tf.tpu.TPUEstimator(model_fn, config, use_tpu, train_batch_size=32, params={'use_bfloat16': ...})
        let steps_per_call = 4.try_into()?;
        let spec = Spec { precision, objective: objective(), steps_per_call, ..Spec::new(ModelFn) };
        let mut estimator = Session::new(&client, spec)?;

        // estimator.train(input_fn, max_steps=8 * 44)
        // estimator.evaluate(input_fn, steps)
        let data = Data { training: &training, test: &test };
        let summary = run(&mut estimator, data, &RunPlan::new(8, None), &AtomicBool::new(false), &mut |_| {})?;
        println!("{precision}: {:?}, {:?}", summary.test, estimator.scalars()?);

        // for prediction in estimator.predict(input_fn): print(prediction['classes'])
        let mut classes = Vec::new();
        estimator.predict(&estimator.predictor(32)?, &test, |batch| {
            classes.extend(batch[0].to_vec::<i32>()?);
            Ok::<(), Box<dyn Error>>(())
        })?;
        println!("  the first ten are {:?}", &classes[..10]);
        let accuracy = summary.value("accuracy").unwrap_or_default();
        assert!(accuracy >= 0.9, "{precision}: accuracy {accuracy}, expected at least 0.9");

        // The scope's decisions: f32 variables, products in the precision.
        let step = program::prediction(&ModelFn, precision, 32, &Tuning::none())?.program;
        for variable in &step.variables {
            println!("  variable {:<40} {}", variable.name, variable.dtype);
        }
        for instr in &step.module.entry().instructions {
            if matches!(instr.op, Op::Convolution(_) | Op::Dot { .. }) {
                println!("  {:<20} {:<28} {}", instr.op.opcode(), instr.metadata.op_name, instr.shape);
            }
        }
    }
    Ok(())
}
