//! A user's own tasks: two towers with shared weights, a task without an identity, and tasks whose outputs do not fit.

use crate::run::client;

use bf16scope::data::Arrays;
use bf16scope::hlo::Array;
use bf16scope::prelude::*;
use bf16scope::train::checkpoint::Checkpoint;
use bf16scope::train::{Objective, TrainErrorKind, Trained, program};
use bf16scope::tuning::Tuning;

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

/// The outputs of an odd task.
type Returns = fn(&Features<'_>) -> Outputs;

/// A task of a feature and a label, with outputs that do not fit.
#[derive(Debug)]
struct Odd {
    feature: &'static str,
    outputs: Returns,
}

impl Task for Odd {
    fn name(&self) -> &str {
        "odd"
    }
    fn features(&self) -> Vec<Feature> {
        vec![Feature::compute(self.feature, [3]), Feature::exact("y", DType::F32, []).label()]
    }
    fn call(&self, _: &Scope, features: &Features<'_>, _: Mode) -> Outputs {
        (self.outputs)(features)
    }
}

/// The error of the odd task's program of this mode.
fn refusal(feature: &'static str, outputs: Returns, mode: Mode) -> String {
    let (task, tuning) = (Odd { feature, outputs }, Tuning::none());
    let program = match mode {
        Mode::Train => program::training(&task, Precision::F32, 4, &Objective::default()),
        Mode::Evaluate => program::evaluation(&task, Precision::F32, 4, &tuning),
        Mode::Predict => program::prediction(&task, Precision::F32, 4, &tuning),
    };
    program.unwrap_err().to_string()
}

#[test]
fn outputs_that_do_not_fit_are_errors_of_the_task() {
    const RETURN: &str = "return it from `Task::call` in this mode";
    const REDUCE: &str = "cast it to f32, and take its mean or its sum";
    const MAKE: &str = "make it with `Metric::mean_of_ratios` or `Metric::area`, from f32 or s32";
    fn x(features: &Features<'_>) -> Tensor {
        features.get("x")
    }
    fn mean(features: &Features<'_>) -> Tensor {
        features.get("x").mean(&[0, 1])
    }
    let cases: [(Mode, Returns, &str, &str); 13] = [
        (Mode::Train, |_| Outputs::new(), "odd gives no loss in Mode::Train", RETURN),
        (Mode::Evaluate, |_| Outputs::new(), "odd gives neither a loss nor a metric in Mode::Evaluate", RETURN),
        (Mode::Predict, |_| Outputs::new(), "odd gives no predictions in Mode::Predict", RETURN),
        (Mode::Evaluate, |f| Outputs::new().loss(x(f)), "the loss is f32[4,3], expected f32[]", REDUCE),
        (
            Mode::Evaluate,
            |f| Outputs::new().loss(Loss::Weighted { sum: x(f), weight: mean(f) }),
            "the sum of the loss is f32[4,3], expected f32[]",
            REDUCE,
        ),
        (
            Mode::Evaluate,
            |f| Outputs::new().loss(Loss::Weighted { sum: mean(f), weight: x(f) }),
            "the weight of the loss is f32[4,3], expected f32[]",
            REDUCE,
        ),
        (
            Mode::Evaluate,
            |f| Outputs::new().metric("m", Metric::ratio(&x(f), &mean(f))),
            "the sum of metric m is f32[4,3], expected f32[] or s32[]",
            REDUCE,
        ),
        (
            Mode::Evaluate,
            |f| Outputs::new().metric("m", Metric::ratio(&mean(f), &x(f))),
            "the weight of metric m is f32[4,3], expected f32[] or s32[]",
            REDUCE,
        ),
        (
            Mode::Evaluate,
            |f| Outputs::new().metric("m", Metric::area(&x(f), &x(f))),
            "metric m is f32[4,3] over f32[4,3], which is nothing that Area is made of",
            MAKE,
        ),
        (
            Mode::Evaluate,
            |f| Outputs::new().metric("m", Metric::mean(&x(f))).metric("m", Metric::mean(&x(f))),
            "metric \"m\" has no name of its own",
            "give each metric and scalar another name",
        ),
        (
            Mode::Predict,
            |f| Outputs::new().prediction("p", &x(f).sum(&[0])),
            "prediction p is f32[3], expected [4, …], the batch first",
            "give one row for each example",
        ),
        (
            Mode::Predict,
            |f| Outputs::new().prediction("p", &f.get("y")),
            "y is a label, which is absent when predicting",
            "return predictions before labels are read",
        ),
        (
            Mode::Evaluate,
            |f| Outputs::new().loss(f.get("z")),
            "no feature `z`, expected one of x, y",
            "name it in the task's `features`",
        ),
    ];
    for (mode, outputs, message, help) in cases {
        let error = refusal("x", outputs, mode);
        assert!(error.lines().next().unwrap().ends_with(&format!(": {message}")), "{message}: {error}");
        assert!(error.ends_with(&format!("help: {help}")), "{message}: {error}");
    }
    let error = refusal("weight", |f| Outputs::new().loss(f.get("weight").mean(&[0, 1])), Mode::Evaluate);
    assert!(error.contains("a feature is called weight, which programs call an input of their own"), "{error}");
    assert!(error.ends_with("help: give it another name"), "{error}");
}
