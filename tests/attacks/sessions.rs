//! Sessions with invalid arguments, and the state of a session after a failed step.

use super::{examples, run};
use bf16scope::data::Batch;
use bf16scope::hlo::DType;
use bf16scope::models::{Model, mlp};
use bf16scope::train::{Resumption, Session, Spec};
use std::path::Path;

fn spec() -> Spec {
    let model = Model::Mlp(mlp::Config { hidden: vec![8], ..mlp::Config::new([4], 2) });
    Spec { batch: 8, seed: 1, ..Spec::new(model.task(0.0)) }
}

fn batch() -> Batch {
    let features = (0..32).map(|i| ((i * 37) % 16) as f32 / 16.0 - 0.5).collect();
    let source = examples::images(features, &[4], (0..8).map(|i| i % 2).collect());
    examples::batches(&source, &spec()).remove(0)
}

#[test]
fn a_wrong_batch_is_named_and_changes_nothing() {
    let mut session = Session::new(run::client(), spec()).unwrap();
    session.train(&batch()).unwrap();
    let before = session.state().unwrap();
    let mut refused = |change: &dyn Fn(&mut Batch), measured: &str, expected: &str| {
        let mut batch = batch();
        change(&mut batch);
        assert_eq!(
            session.train(&batch).unwrap_err().to_string(),
            format!(
                "step 2: the batch has {measured}, expected {expected}\n\
                 help: the session is as it was: give it a batch like that"
            )
        );
        assert_eq!((session.step(), &session.state().unwrap()), (1, &before));
        assert_eq!(session.checkpoint(1).unwrap().variables, before);
    };
    refused(&|batch| batch.arrays[0].dtype = DType::F16, "images f16[8,4]", "images bf16[8,4]");
    refused(&|batch| batch.arrays[0].dims = vec![8, 2, 2], "images bf16[8,2,2]", "images bf16[8,4]");
    refused(&|batch| batch.arrays[0].dims = vec![7, 4], "images bf16[7,4]", "images bf16[8,4]");
    refused(&|batch| batch.arrays[0].bytes.truncate(60), "60 bytes of images", "64 bytes of images");
    refused(&|batch| batch.arrays[1].bytes.truncate(28), "28 bytes of labels", "32 bytes of labels");
    refused(&|batch| batch.arrays[1].bytes.push(0), "33 bytes of labels", "32 bytes of labels");
    refused(&|batch| batch.n_valid = 5, "5 valid examples", "8 valid examples");
    refused(&|batch| batch.arrays[1].bytes[12] = 2, "labels 2 at example 3", "labels from 0 to 1");
    refused(&|batch| batch.arrays[1].bytes[..4].fill(0xFF), "labels -1 at example 0", "labels from 0 to 1");
    refused(&|batch| drop(batch.arrays.remove(1)), "only images", "labels s32[8]");
    assert!(session.train(&batch()).unwrap().loss().unwrap().is_finite());
}

#[test]
fn steps_end_where_the_program_stops_counting() {
    let mut session = Session::new(run::client(), spec()).unwrap();
    let mut checkpoint = session.checkpoint(1).unwrap();
    checkpoint.position.step = i32::MAX as u64 - 1;
    session.restore(Path::new("late"), &checkpoint, Resumption::default()).unwrap();
    session.train(&batch()).unwrap();
    assert_eq!(
        session.train(&batch()).unwrap_err().to_string(),
        "the session has made 2147483647 steps, and its program counts in 32 bits\n\
         help: start again from its weights, with larger batches"
    );
    // It is still there to be saved.
    assert_eq!(session.checkpoint(1).unwrap().variables.len(), checkpoint.variables.len());
    checkpoint.position.step = 1 << 32;
    assert_eq!(
        session.restore(Path::new("later"), &checkpoint, Resumption::default()).unwrap_err().to_string(),
        "later: not the checkpoint of a run: step is 4294967296, expected 0 to 2147483647\n\
         help: go on from an earlier one; this file is left as it is"
    );
}

#[test]
fn more_than_the_memory_there_is_is_refused_with_the_sum() {
    // 4 TiB in one kernel.
    let wide = mlp::Config { hidden: vec![1 << 20, 1 << 20], ..mlp::Config::new([4], 2) };
    let wide = Spec { task: Model::Mlp(wide).task(0.0), ..spec() };
    let error = Session::new(run::client(), wide).unwrap_err().to_string();
    let state = "8796160131088";
    assert!(error.starts_with("training needs 17592320262176 bytes: "), "{error}");
    assert!(
        error.contains(&format!(
            ": {state} of state on the device, and the larger of 96 for a step (0 of temporaries, 96 of batch) and {state} \
             for a copy of the state on the host, to save it; there are "
        )),
        "{error}"
    );
    assert!(
        error.ends_with(
            " bytes of memory; the largest variable is mlp/dense2/kernel f32[1048576,1048576]\n\
             help: make the model or the batch smaller"
        ),
        "{error}"
    );
}
