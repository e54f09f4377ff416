//! Training programs: optimizers, rematerialisation, checkpoints and resumption.

#[path = "../support/first.rs"]
mod first;

mod accumulate;
mod adafactor;
#[path = "../support/alone.rs"]
mod alone;
mod averages;
mod bounded;
mod callbacks;
mod constraints;
mod digits;
#[path = "../support/examples.rs"]
mod examples;
mod gan;
mod initialize;
mod input;
mod layer_remat;
mod learns;
mod loss_scale;
mod metrics;
mod narrow;
mod optim_tf;
mod own_task;
mod parquet;
mod partitions;
mod recipes;
mod remat;
mod replay;
mod replicas;
#[path = "../run/mod.rs"]
mod run;
mod schedules_tf;
mod sharded;
mod slots;
mod statistics;
mod steps_per_call;
mod storage;
mod sums;
mod text;
mod train;
mod train_memory;
mod trainer;
mod transpose_input;
mod tuning;
mod two_tower;
mod watch;
mod watch_causes;
mod watch_clean;
mod watch_others;
