//! `tune: {transpose_input: true}`: images are uploaded with the examples last, and every bit stays the same, however a
//! step is shared.

use crate::replicas::{CNN, client, mesh, noise, spec};

use bf16scope::data::{Loader, NamedArray};
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::train::{Mesh, Session, Spec, StepsPerCall, Totals, TrainError, program, several_steps};
use std::num::NonZeroU32;

fn n(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn transposed(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    spec.objective.tuning.transpose_input = true;
    spec
}

/// Images of two kinds of pixels, so that any other order shows.
fn model() -> String {
    CNN.replace("[8, 8, 1]", "[6, 4, 3]")
}

/// The reports of each step, the state and an evaluation, and predictions.
type Trained = (Vec<Vec<(String, f64)>>, String, Vec<NamedArray>);

fn trained(spec: Spec) -> Trained {
    let source = noise(&[6, 4, 3], 10, 51);
    let (features, compute, n_steps) = (spec.task.features(), spec.precision.compute(), spec.steps_per_call.n().get());
    let loader = Loader::new(&source, &features, compute, 8, spec.seed).unwrap();
    let mut session = Session::new(client(), spec).unwrap();
    let mut reports = Vec::new();
    for step in (0..6).step_by(n_steps as usize) {
        let totals = session.train_call(&loader.steps(0, step, n_steps).unwrap()).unwrap();
        reports.extend(totals.iter().map(Totals::to_values));
    }
    let evaluation = session.evaluate(&session.evaluator(8).unwrap(), &source).unwrap();
    let mut predictions = Vec::new();
    session
        .predict::<TrainError>(&session.predictor(8).unwrap(), &source, |arrays| {
            predictions.extend(arrays);
            Ok(())
        })
        .unwrap();
    (reports, format!("{:?} {evaluation:?}", session.state().unwrap()), predictions)
}

/// Micro-batches of replicas, and calls of several steps.
#[test]
fn every_bit_stays() {
    let one = spec(&model(), Precision::Bf16, 8, 1);
    let (micro, calls) = (in_micro_batches(&of_replicas(&one)), in_calls(&one));
    keeps_bits(Precision::Bf16, vec![("micro-batches of replicas", micro), ("calls", calls)]);
}

fn in_micro_batches(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    spec.objective.accumulate = n(2);
    spec
}

fn of_replicas(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    spec.objective.mesh = mesh(2);
    spec
}

fn in_calls(spec: &Spec) -> Spec {
    Spec { steps_per_call: StepsPerCall::Unrolled(n(2)), ..spec.clone() }
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// `every_bit_stays` is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn every_bit_stays_however_a_step_is_shared() {
        for precision in [Precision::Bf16, Precision::F32] {
            let one = spec(&model(), precision, 8, 1);
            let (micro, replicas) = (in_micro_batches(&one), of_replicas(&one));
            let calls = in_calls(&replicas);
            let cases = vec![("one", one), ("micro-batches", micro), ("replicas", replicas), ("calls", calls)];
            keeps_bits(precision, cases);
        }
    }
}

fn keeps_bits(precision: Precision, cases: Vec<(&str, Spec)>) {
    for (case, spec) in cases {
        let (measured, expected) = (trained(transposed(&spec)), trained(spec));
        assert!(measured.0.iter().flatten().all(|(_, value)| value.is_finite()), "{case}: {measured:?}");
        assert_eq!(measured, expected, "{case} in {precision}");
    }
}

#[test]
fn the_parameter_is_of_one_dimension_and_says_what_it_is_made_of() {
    let spec = transposed(&spec(&model(), Precision::Bf16, 8, 2));
    let step = program::training(&*spec.task, spec.numbers(), 8, &spec.objective).unwrap();
    let calls = several_steps(step.clone(), StepsPerCall::While(n(3))).unwrap();
    for (step, n_steps) in [(step, 1), (calls, 3)] {
        let image = &step.program.inputs[0];
        let parameter = &step.program.module.entry().instr(image.instr).shape;
        assert_eq!((image.name.as_str(), image.dtype), ("images", DType::BF16));
        // For a replica, which has four of the eight examples.
        assert_eq!((parameter.dims(), image.dims_of_batch()), (&[n_steps * 4 * 72][..], vec![n_steps * 4, 6, 4, 3]));
    }
}

#[test]
fn a_replica_that_is_split_is_refused() {
    let mut spec = transposed(&spec(&model(), Precision::F32, 8, 2));
    spec.objective.mesh = Mesh::replicas(n(2));
    spec.objective.mesh.model = n(2);
    let error = Session::new(client(), spec).unwrap_err().to_string();
    assert_eq!(
        error,
        "`transpose_input` hands images over in one dimension, and `model` splits what a replica has: both at once are not \
         possible\nhelp: leave one of them out"
    );
}
