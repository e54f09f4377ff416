//! A user's own tasks: two towers with shared weights, and a task without an identity.

use crate::run::client;

use bf16scope::data::Arrays;
use bf16scope::hlo::Array;
use bf16scope::prelude::*;
use bf16scope::train::checkpoint::Checkpoint;
use bf16scope::train::{TrainErrorKind, Trained};

const N: usize = 64;

/// Pairs of points, and whether both lie on one side.
fn pairs() -> (Arrays, Arrays) {
    let point = |i: usize| ((i * 37 + i / 7) % 19) as f32 / 8.0 - 1.0;
    let column = |offset: usize| Array::from_vec((0..4 * N).map(|i| point(i + offset)).collect(), [-1, 4]).unwrap();
    let same: Vec<f32> = (0..N).map(|i| f32::from(point(4 * i) * point(4 * i + 100) > 0.0)).collect();
    let arrays = [("left", column(0)), ("right", column(100)), ("same", same.into())];
    Arrays::from_arrays(arrays).unwrap().split_tail(16).unwrap()
}

/// Two towers with one set of variables, shared by [`Scope::shared`] or by the task itself.
#[derive(Clone, Copy, Debug)]
struct Siamese {
    is_explicit: bool,
    hidden: i64,
}

impl Siamese {
    fn towers(self, s: &Scope, inputs: [&Tensor; 2]) -> [Tensor; 2] {
        let config = |units| Dense { units, ..Dense::default() };
        if !self.is_explicit {
            return inputs.map(|x| {
                s.shared("tower", |s| {
                    let x = nn::relu(&nn::dense(s, x, "hidden", &config(self.hidden)));
                    nn::dense(s, &x, "out", &config(2))
                })
            });
        }
        let layer = |name: &str, dims: [i64; 2]| {
            s.within(name, |s| {
                let Dense { kernel_initializer, bias_initializer, .. } = Dense::default();
                let dtype = inputs[0].dtype();
                let kernel = s.variable("kernel", dtype, dims, kernel_initializer).value;
                (kernel, s.variable("bias", dtype, [dims[1]], bias_initializer).value)
            })
        };
        let [hidden, out] = s.within("tower", |_| [layer("hidden", [4, self.hidden]), layer("out", [self.hidden, 2])]);
        inputs.map(|x| nn::relu(&(x.matmul(&hidden.0) + &hidden.1)).matmul(&out.0) + &out.1)
    }
}

impl Task for Siamese {
    fn name(&self) -> &str {
        "siamese"
    }

    fn features(&self) -> Vec<Feature> {
        let input = |name: &str| Feature::compute(name, [4]);
        vec![input("left"), input("right"), Feature::exact("same", DType::F32, []).label()]
    }

    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        let [left, right] = ["left", "right"].map(|name| features.get(name));
        let [left, right] = s.low_precision(|s| self.towers(s, [&left, &right])).map(|tower| tower.cast(DType::F32));
        let logits = (left * right).sum(&[1]);
        if mode == Mode::Predict {
            return Outputs::new().prediction("logits", &logits);
        }
        let error = nn::sigmoid(&logits) - features.get("same");
        Outputs::new().loss(Loss::weighted(&(&error * &error), &features.weight()))
    }
}

fn trained(task: Siamese, precision: Precision) -> Trained {
    let (training, test) = pairs();
    let trainer = Trainer::new(task).on(client()).precision(precision).batch(16).seed(3).epochs(3);
    trainer.optimizer(Optimizer::ADAM).learning_rate(0.05).fit(&training, &test).unwrap()
}

#[test]
fn shared_weights_train_to_the_bits_of_explicit_variables() {
    for precision in [Precision::F32, Precision::Bf16] {
        let [shared, explicit] =
            [false, true].map(|is_explicit| trained(Siamese { is_explicit, hidden: 8 }, precision));
        let state = |trained: &Trained| trained.session().unwrap().state().unwrap();
        assert!(state(&shared).keys().any(|name| name == "tower/hidden/kernel"));
        assert!(state(&shared) == state(&explicit), "{precision}: the weights differ");
        assert_eq!(shared.summary().test, explicit.summary().test, "{precision}");
        assert!(
            shared.summary().epochs[2].test_value("loss") < shared.summary().epochs[0].test_value("loss"),
            "{precision}"
        );
    }
}

/// The task with an explicit identity, as before there was a default.
#[derive(Debug)]
struct Identified(Siamese);

impl Task for Identified {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn features(&self) -> Vec<Feature> {
        self.0.features()
    }
    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        self.0.call(s, features, mode)
    }
    fn identity(&self) -> Identity {
        Identity::new("siamese")
    }
}

#[test]
fn a_task_without_an_identity_is_known_by_its_name_and_function() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("a.safetensors"), folder.path().join("b.safetensors"));
    let task = Siamese { is_explicit: false, hidden: 8 };
    let (training, test) = pairs();
    let fit = |task: std::sync::Arc<dyn Task>, path| {
        Trainer::new(task).on(client()).batch(16).checkpoint(path).fit(&training, &test).unwrap()
    };
    fit(std::sync::Arc::new(task), &path);
    fit(std::sync::Arc::new(Identified(task)), &other);
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&other).unwrap(), "the checkpoints are the same bytes");
    assert!(Checkpoint::read(&path).unwrap().function.is_some());

    let load = |hidden| Trainer::new(Siamese { hidden, ..task }).on(client()).load(&path);
    assert_eq!(load(8).unwrap().changes(), []);
    let error = load(9).unwrap_err();
    assert_eq!(error.kind(), &TrainErrorKind::Checkpoint);
    assert!(error.text().starts_with("the checkpoint is of another function:"), "{error}");
    assert!(error.to_string().contains("function was "), "{error}");
}
