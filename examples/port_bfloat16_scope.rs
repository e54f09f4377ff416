//! A TensorFlow network in `bfloat16_scope`, ported line by line: TensorFlow's code stands above ours.
//!
//! `cargo run --example port_bfloat16_scope` builds it in f32 and in bf16 and prints where each dtype lives. Nothing is
//! compiled or run: this shows what the scope decides.

use std::error::Error;

use bf16scope::graph::{Graph, Precision, Program, Scope, Tensor};
use bf16scope::hlo::{DType, Op};
use bf16scope::nn::{self, BatchNorm, Conv2d, Dense, Padding};

// def network(images):
//   x = tf.layers.conv2d(images, 32, 3, padding='same', use_bias=False)
//   x = tf.layers.batch_normalization(x, training=is_training)
//   x = tf.nn.relu(x)
//   x = tf.reduce_mean(x, [1, 2])
//   return tf.layers.dense(x, 10)
fn network(s: &Scope, images: &Tensor) -> Tensor {
    let conv = Conv2d { filters: 32, kernel: [3, 3], padding: Padding::Same, use_bias: false, ..Conv2d::default() };
    let x = nn::conv2d(s, images, "conv2d", &conv);
    let x = nn::batch_norm(s, &x, "batch_normalization", &BatchNorm::default());
    let x = nn::relu(&x);
    let x = x.mean(&[1, 2]);
    nn::dense(s, &x, "dense", &Dense { units: 10, ..Dense::default() })
}

// def model_fn(features, labels, mode, params):
//   if params['use_bfloat16']:
//     with tf.tpu.bfloat16_scope():
//       logits = network(tf.cast(features, tf.bfloat16))
//     logits = tf.cast(logits, tf.float32)
//   else:
//     logits = network(features)
//   loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
fn model_fn(precision: Precision) -> Result<Program, Box<dyn Error>> {
    let g = Graph::training("port");
    let features = g.input("features", DType::F32, [64, 28, 28, 1]);
    let labels = g.input("labels", DType::S32, [64]);
    let images = features.cast(precision.compute());
    let logits = g.low_precision_scope(precision, |s| network(s, &images)).cast(DType::F32);
    let loss = nn::sparse_softmax_cross_entropy(&logits, &labels, 0.0);
    Ok(g.finish(&[("logits", &logits), ("loss", &loss)])?)
}

fn main() -> Result<(), Box<dyn Error>> {
    for precision in [Precision::F32, Precision::Bf16] {
        let program = model_fn(precision)?;
        println!("{precision}:");
        for variable in &program.variables {
            println!("  variable {:<40} {}", variable.name, variable.dtype);
        }
        let entry = program.module.entry();
        for instr in &entry.instructions {
            let is_shown = match &instr.op {
                Op::Convolution(_) | Op::Dot { .. } | Op::BatchNormTraining(_) | Op::Convert => true,
                // Elementwise on data, not the running statistics' arithmetic.
                Op::Binary(_) => instr.shape.dims().len() > 1,
                _ => false,
            };
            if is_shown {
                println!("  {:<20} {:<40} {}", instr.op.opcode(), instr.metadata.op_name, instr.shape);
            }
        }
    }
    Ok(())
}
