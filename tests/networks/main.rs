//! Networks compute what TensorFlow and JAX compute, and so do their gradients.

#[path = "../support/examples.rs"]
mod examples;
#[path = "../support/first.rs"]
mod first;

mod bert;
mod bf16_scope;
mod blocks;
mod crf;
mod ctc;
mod example_models;
mod functions_tf;
mod grad;
mod grad_cases;
mod grad_finite_difference;
mod grad_loops;
mod grad_oracle;
mod keras_layers;
mod keras_user;
mod layer_errors;
mod layer_faults;
mod layer_modules_tf;
mod layers;
mod layers_more_tf;
mod layers_tf;
mod losses_tf;
mod matching;
mod metrics_tf;
mod models;
mod nn;
mod nn_errors;
mod objectives;
mod oracle_tf;
mod pool_first;
mod recurrent;
#[path = "../run/mod.rs"]
mod run;
mod space_to_depth;
mod trainable;
mod transformer;
#[path = "../support/wide.rs"]
mod wide;
mod zoo;
