//! Valid and invalid experiments.

use super::*;
use crate::experiment::Scale;
use bf16scope_model::models::mlp;
use bf16scope_model::optim::{Momentum, RateDrop};
use bf16scope_passes::tuning::{Keys, Remat};
use expect_test::{Expect, expect};

fn parse(text: &str) -> Result<Experiment, String> {
    document::from_str("e.yaml", text).map_err(|error: bf16scope_model::document::ConfigError| error.to_string())
}

fn check(train: &str, expected: Expect) {
    let text = format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntrain:\n{train}");
    expected.assert_eq(&parse(&text).unwrap_err());
}

#[test]
fn every_key_is_read() {
    let experiment = parse(
        "model: {kind: mlp, input: [4], n_classes: 2}
data: {csv: data/x.csv, scale: 0.5, n_test: 3}
train:
  batch: 8
  epochs: 7
  seed: 6
  shift: 2
  optimizer: {kind: momentum, momentum: 0.8, nesterov: true}
  learning_rate:
    kind: warm_up_step
    value: 0.4
    warm_up: 10
    drops: [{step: 20, multiplier: 0.1}]
  weight_decay: {value: 1.0e-4, except: [bn]}
  average: {decay: 0.999, num_updates: true, evaluate: false}
  variables: bf16_stochastic
  slots: bf16
  label_smoothing: 0.1
  loss_scale: static:128
  accumulate: 4
  steps_per_call: while:25
  save_checkpoints_steps: 100
  save_checkpoints_secs: 600
  keep_checkpoint_max: 5
  watch: {every: 10, keep: 3}
mesh: {data: 2}
tune: {remat: [block*, stem]}
",
    );
    let drops = vec![RateDrop { step: 20, multiplier: 0.1 }];
    let expected = Experiment {
        model: Model::Mlp(mlp::Config::new([4], 2)),
        data: Some(DataConfig {
            source: Some(DataSource::Csv(data::source::Csv(PathBuf::from("data/x.csv")))),
            scale: Some(Scale::All(0.5)),
            n_test: Some(3.into()),
            ..DataConfig::default()
        }),
        train: TrainConfig {
            early_stopping: None,
            reduce_on_plateau: None,
            keep_best: None,
            initialize_from: None,
            except: Vec::new(),
            rules: None,
            trainable: Vec::new(),
            batch: 8,
            epochs: 7,
            seed: 6,
            shift: 2,
            optimizers: Vec::new(),
            optimizer: Optimizer::Momentum(Momentum { momentum: 0.8, nesterov: true, ..Momentum::default() }),
            learning_rate: Timed::Steps(LearningRate::WarmUpStep { value: 0.4, warm_up: 10, drops }),
            n_train: None,
            weight_decay: WeightDecay { value: 1e-4, except: vec!["bn".to_string()], decoupled: false },
            clip: None,
            learning_rate_floor: 0.0,
            warm_up: None,
            average: Some(Average { num_updates: true, evaluate: false, ..Average::new(0.999) }),
            variables: Storage::Bf16Stochastic,
            slots: SlotStorage::Bf16,
            label_smoothing: 0.1,
            loss_scale: Some(LossScale::Static { scale: 128.0 }),
            accumulate: 4,
            steps_per_call: StepsPerCall::While(NonZeroU32::new(25).unwrap()),
            save_checkpoints_steps: Some(100),
            save_checkpoints_secs: Some(600),
            keep_checkpoint_max: 5,
            watch: Some(WatchConfig { every: 10, keep: Some(3) }),
        },
        mesh: crate::Mesh::replicas(NonZeroU32::new(2).unwrap()).into(),
        tune: Keys { remat: Some(Remat::Scopes(vec!["block*".to_string(), "stem".to_string()])), ..Keys::default() }
            .into(),
        origin: Origin::default(),
    };
    assert_eq!(experiment, Ok(expected));
}

#[test]
fn label_smoothing_that_no_loss_has_is_refused() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = "model: {kind: layers, inputs: {x: [2]}, layers: [{dense: 1}], loss: mean_squared_error}\n\
                    train: {label_smoothing: 0.1}\n";
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    let error = Experiment::read(file.path()).unwrap_err().to_string();
    let expected = format!("{}:2:9: no loss of `model` has label smoothing\n", file.path().display());
    assert!(error.starts_with(&expected), "{error}");
    assert!(error.ends_with("\n  help: leave it out: it is for cross entropies"), "{error}");
}

#[test]
fn everything_but_the_model_has_a_default() {
    let experiment = parse("model: {kind: mlp, input: [4], n_classes: 2}\n").unwrap();
    assert_eq!(experiment.data, None);
    assert_eq!((experiment.train, experiment.tune), (TrainConfig::default(), Tune::Auto));
    let kinds = "model: {kind: mlp, input: [4], n_classes: 2}\ntrain: {optimizer: {kind: adam}}\n";
    assert_eq!(parse(kinds).unwrap().train.optimizer, Optimizer::ADAM);
}

/// As in every tool: a number is a constant rate, a name an optimizer with its defaults, and keys have no order.
#[test]
fn short_forms_and_any_order_are_read() {
    let train = |text: &str| {
        parse(&format!("model: {{n_classes: 2, kind: mlp, input: [4]}}\ntrain: {{{text}}}\n")).unwrap().train
    };
    for (text, value) in [("0.01", 0.01), ("1", 1.0), ("0", 0.0)] {
        let rate = Timed::Steps(LearningRate::Constant { value });
        assert_eq!(train(&format!("learning_rate: {text}")).learning_rate, rate);
    }
    assert_eq!(train("optimizer: adam").optimizer, Optimizer::ADAM);
    for optimizer in Optimizer::all() {
        assert_eq!(train(&format!("optimizer: {}", optimizer.name())).optimizer, optimizer);
    }
    let nesterov = Optimizer::Momentum(Momentum { momentum: 0.9, nesterov: true, ..Momentum::default() });
    assert_eq!(train("optimizer: {nesterov: true, momentum: 0.9, kind: momentum}").optimizer, nesterov);
    let decay = "learning_rate: {staircase: true, kind: exponential, value: 1.0e-3, decay_steps: 9, decay_rate: 0.5}";
    assert_eq!(
        train(decay).learning_rate,
        train(&decay.replace("kind: exponential, ", "").replace("{", "{kind: exponential, ")).learning_rate
    );
}

/// As Keras' default rate of Adam is a hundredth of ours, which is momentum's.
#[test]
fn a_default_rate_is_remarked_where_steps_are_as_large() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    let remark = |train: &str| {
        let text = format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntrain: {{{train}}}\n");
        std::fs::write(&path, text).unwrap();
        Experiment::read(&path).unwrap().schedule_remark(&path).map(|remark| remark.to_string())
    };
    let adam = remark("optimizer: adam").unwrap();
    let text =
        "e.yaml:2:20: `learning_rate` is 0.1, its default, and a step of adam moves each weight by about as much";
    assert!(adam.contains(text) && adam.contains("help: write `learning_rate: 0.001` beside it"), "{adam}");
    for train in ["optimizer: adam, learning_rate: 0.1", "optimizer: momentum", "epochs: 3"] {
        assert_eq!(remark(train), None, "{train}");
    }
}

#[test]
fn errors_point_at_the_line() {
    check(
        "  average: {decay: 0}\n",
        expect![[r#"
            e.yaml:3:20: found integer `0`, expected a number above 0 and below 1
              3 |   average: {decay: 0}
                |                    ^"#]],
    );
    check(
        "  average: {decay: 0.99, num_update: true}\n",
        expect![[r#"
            e.yaml:3:26: unknown key `num_update`, expected one of decay, num_updates, moving_statistics, evaluate
              3 |   average: {decay: 0.99, num_update: true}
                |                          ^^^^^^^^^^
              help: did you mean `num_updates`?"#]],
    );
    check(
        "  average: {num_updates: true}\n",
        expect![[r#"
            e.yaml:3:12: missing key `decay`
              3 |   average: {num_updates: true}
                |            ^^^^^^^^^^^^
              help: add `decay: …` to the block that starts here"#]],
    );
    check(
        "  batch: 0\n",
        expect![[r#"
            e.yaml:3:10: found integer `0`, expected a whole number from 1 to 2147483647
              3 |   batch: 0
                |          ^"#]],
    );
    check(
        "  batch: 3000000000\n",
        expect![[r#"
                e.yaml:3:10: found integer `3000000000`, expected a whole number from 1 to 2147483647
                  3 |   batch: 3000000000
                    |          ^^^^^^^^^^"#]],
    );
    check(
        "  optimizer: {kind: momentun}\n",
        expect![[r#"
            e.yaml:3:21: unknown value `momentun`, expected one of sgd, momentum, adam, adafactor, rmsprop, adagrad, adadelta, ftrl, adamw, lamb, lars, lion, nadam, adamax
              3 |   optimizer: {kind: momentun}
                |                     ^^^^^^^^
              help: did you mean `momentum`?"#]],
    );
    check(
        "  optimizer: {kind: momentum, momentum: 0.9, nestorov: true}\n",
        expect![[r#"
            e.yaml:3:46: unknown key `nestorov`, expected one of momentum, nesterov, momentum_dtype
              3 |   optimizer: {kind: momentum, momentum: 0.9, nestorov: true}
                |                                              ^^^^^^^^
              help: did you mean `nesterov`?"#]],
    );
    check(
        "  optimizer: {kind: adafactor, clipping_treshold: 2}\n",
        expect![[r#"
            e.yaml:3:32: unknown key `clipping_treshold`, expected one of decay_exponent, clipping_threshold, scale_by_parameter, momentum, momentum_dtype, min_dim_size_to_factor, epsilon1, epsilon2
              3 |   optimizer: {kind: adafactor, clipping_treshold: 2}
                |                                ^^^^^^^^^^^^^^^^^
              help: did you mean `clipping_threshold`?"#]],
    );
    check(
        "  optimizer: {kind: adafactor, min_dim_size_to_factor: 0}\n",
        expect![[r#"
                e.yaml:3:56: found integer `0`, expected a whole number of at least 1
                  3 |   optimizer: {kind: adafactor, min_dim_size_to_factor: 0}
                    |                                                        ^"#]],
    );
    check(
        "  optimizer: {kind: adam, momentum_dtype: f16}\n",
        expect![[r#"
            e.yaml:3:43: unknown value `f16`, expected one of f32, bf16
              3 |   optimizer: {kind: adam, momentum_dtype: f16}
                |                                           ^^^
              help: did you mean `bf16`?"#]],
    );
    check(
        "  learning_rate:\n    kind: warm_up_step\n    value: 0.1\n    warm_up: 0\n    drops:\n      - {step: 60, multiplier: 0.1}\n      - {step: 30, multiplier: 0.01}\n",
        expect![[r#"
                e.yaml:8:7: found a drop at step 30 after one at step 60, expected ascending steps
                  8 |       - {step: 60, multiplier: 0.1}
                    |       ^"#]],
    );
    check(
        "  accumulate: 0\n",
        expect![[r#"
            e.yaml:3:15: found integer `0`, expected a whole number from 1 to 2147483647
              3 |   accumulate: 0
                |               ^"#]],
    );
    check(
        "  optimizer:\n    momentum: 0.9\n    nesterov: true\n",
        expect![[r#"
            e.yaml:4:5: missing key `kind`
              4 |     momentum: 0.9
                |     ^^^^^^^^
              help: write `kind: momentum`, and its keys beside it"#]],
    );
    check(
        "  optimizer:\n    momentun: 0.9\n    kind: momentum\n",
        expect![[r#"
            e.yaml:4:5: unknown key `momentun`, expected one of momentum, nesterov, momentum_dtype
              4 |     momentun: 0.9
                |     ^^^^^^^^
              help: did you mean `momentum`?"#]],
    );
    check(
        "  optimizer: {momentum: 2, kind: momentum}\n",
        expect![[r#"
            e.yaml:3:25: found integer `2`, expected a number from 0 up to but not including 1
              3 |   optimizer: {momentum: 2, kind: momentum}
                |                         ^"#]],
    );
    check(
        "  optimizer: {momentum: 0.9, momentum: 0.9, kind: momentum}\n",
        expect![[r#"
            e.yaml:3:30: key `momentum` is given twice
              3 |   optimizer: {momentum: 0.9, momentum: 0.9, kind: momentum}
                |                              ^^^^^^^^
              help: keep one `momentum`"#]],
    );
    check(
        "  optimizer: adm\n",
        expect![[r#"
                e.yaml:3:14: unknown value `adm`, expected one of sgd, momentum, adam, adafactor, rmsprop, adagrad, adadelta, ftrl, adamw, lamb, lars, lion, nadam, adamax
                  3 |   optimizer: adm
                    |              ^^^
                  help: did you mean `adam`?"#]],
    );
    check(
        "  optimizer: 0.1\n",
        expect![[r#"
                e.yaml:3:14: found floating point `0.1`, expected keys with `kind: …`, one of sgd, momentum, adam, adafactor, rmsprop, adagrad, adadelta, ftrl, adamw, lamb, lars, lion, nadam, adamax
                  3 |   optimizer: 0.1
                    |              ^^^"#]],
    );
    check(
        "  learning_rate: exponential\n",
        expect![[r#"
            e.yaml:3:18: missing key `value`
              3 |   learning_rate: exponential
                |                  ^^^^^^^^^^^
              help: add `value: …` to the block that starts here"#]],
    );
    check(
        "  learning_rate: -0.1\n",
        expect![[r#"
            e.yaml:3:18: found floating point `-0.1`, expected 0, or a finite number above 0 in f32
              3 |   learning_rate: -0.1
                |                  ^^^^"#]],
    );
    check(
        "  trainable: []\n",
        expect![[r#"
            e.yaml:3:14: found no pattern, expected one at least
              3 |   trainable: []
                |              ^
              help: leave the key out, or give patterns: without it all variables train"#]],
    );
    check(
        "  learning_rate: [0.1]\n",
        expect![[r#"
            e.yaml:3:18: found a list, expected a number, or keys with `kind: …`, one of constant, exponential, cosine, polynomial, linear, piecewise, inverse_sqrt, one_cycle, warm_up_step
              3 |   learning_rate: [0.1]
                |                  ^"#]],
    );
    check(
        "  optimizer: {kind: sgd, momentum: 0.9}\n",
        expect![[r#"
            e.yaml:3:26: unknown key `momentum`, expected no key here
              3 |   optimizer: {kind: sgd, momentum: 0.9}
                |                          ^^^^^^^^
              help: `momentum` goes with `kind: momentum`, `kind: adafactor`, `kind: rmsprop`, `kind: lars`"#]],
    );
    check(
        "  learning_rate: {kind: constant}\n",
        expect![[r#"
            e.yaml:3:18: missing key `value`
              3 |   learning_rate: {kind: constant}
                |                  ^^^^^
              help: add `value: …` to the block that starts here"#]],
    );
    check(
        "  epoch: 3\n",
        expect![[r#"
            e.yaml:3:3: unknown key `epoch`, expected one of batch, epochs, seed, shift, optimizer, optimizers, learning_rate, learning_rate_floor, warm_up, weight_decay, clip, average, variables, slots, initialize_from, except, rules, trainable, label_smoothing, loss_scale, accumulate, steps_per_call, save_checkpoints_steps, save_checkpoints_secs, keep_checkpoint_max, watch, early_stopping, reduce_on_plateau, keep_best
              3 |   epoch: 3
                |   ^^^^^
              help: did you mean `epochs`?"#]],
    );
}

#[test]
fn what_is_tuned_is_said_beside_model_and_train() {
    let tune = |text: &str| parse(&format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntune: {text}\n"));
    assert_eq!(tune("auto").unwrap().tune, Tune::Auto);
    assert_eq!(tune("none").unwrap().tune, Tune::None);
    let check = |text: &str, expected: Expect| expected.assert_eq(&tune(text).unwrap_err());
    check(
        "all",
        expect![[r#"
            e.yaml:2:7: unknown value `all`, expected one of auto, none
              2 | tune: all
                |       ^^^"#]],
    );
    check(
        "[remat]",
        expect![[r#"
            e.yaml:2:7: found a list, expected auto, none, or keys such as {remat: elementwise}
              2 | tune: [remat]
                |       ^"#]],
    );
    check(
        "{remt: none}",
        expect![[r#"
            e.yaml:2:8: unknown key `remt`, expected one of base, stem, pair_columns, norm_gradient, softmax, layer_remat, remat, cotangent_remat, pace, transpose_input
              2 | tune: {remt: none}
                |        ^^^^
              help: did you mean `remat`?"#]],
    );
    check(
        "{remat: everything}",
        expect![[r#"
            e.yaml:2:15: unknown value `everything`, expected one of none, elementwise, convolutional
              2 | tune: {remat: everything}
                |               ^^^^^^^^^^"#]],
    );
    check(
        "{layer_remat: {weights: some}}",
        expect![[r#"
            e.yaml:2:31: found string "some", expected a number of layers, or all
              2 | tune: {layer_remat: {weights: some}}
                |                               ^^^^"#]],
    );
    check(
        "{base: none, recompute: {weights: 0}, residual: true}",
        expect![[r#"
            e.yaml:2:20: `recompute` is called `layer_remat`
              2 | tune: {base: none, recompute: {weights: 0}, residual: true}
                |                    ^^^^^^^^^
              help: write `tune: {base: none, layer_remat: {weights: 0}, cotangent_remat: true}`"#]],
    );
    check(
        "{base: tpu-v2}",
        expect![[r#"
            e.yaml:2:14: unknown value `tpu-v2`, expected one of auto, none
              2 | tune: {base: tpu-v2}
                |              ^^^^^^
              help: `--tune tpu-v2`, on the command line, is what that target compiles"#]],
    );
}

/// Earlier versions had these keys there.
#[test]
fn a_choice_that_stands_elsewhere_is_quoted_as_it_is_written_now() {
    check(
        "  remat: [\"*/conv3\", block1]\n",
        expect![[r#"
            e.yaml:3:3: `remat` is a choice for a target, expected under `tune`
              3 |   remat: ["*/conv3", block1]
                |   ^^^^^
              help: write `tune: {remat: ["*/conv3", block1]}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what pays off on the target"#]],
    );
    let check = |text: &str, expected: Expect| expected.assert_eq(&parse(text).unwrap_err());
    check(
        "model:
  kind: resnet
  stem: pool_first # as it was
  norm_gradient: per_feature
  pair_columns: true
train: {remat: elementwise}
",
        expect![[r#"
                e.yaml:3:3: `stem` is a choice for a target, expected under `tune`
                  3 |   stem: pool_first # as it was
                    |   ^^^^
                  help: write `tune: {stem: pool_first, pair_columns: true, norm_gradient: per_feature, remat: elementwise}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what pays off on the target"#]],
    );
    check(
        "model:
  kind: transformer
  layers: 2
  recompute:
    weights: 0
  softmax: one_pass
",
        expect![[r#"
                e.yaml:4:3: `recompute` is a choice for a target, expected under `tune`
                  4 |   recompute:
                    |   ^^^^^^^^^
                  help: write `tune: {softmax: one_pass, layer_remat: {weights: 0}}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what pays off on the target"#]],
    );
    check(
        "model: {kind: transformer, recompute: true}\n",
        expect![[r#"
            e.yaml:1:28: `recompute` is a choice for a target, expected under `tune`
              1 | model: {kind: transformer, recompute: true}
                |                            ^^^^^^^^^
              help: write `tune: {layer_remat: {weights: all}}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what pays off on the target"#]],
    );
    check(
        "model: {kind: mlp, input: [4], n_classes: 2}\nresidual: false\n",
        expect![[r#"
            e.yaml:2:1: `residual` is a choice for a target, expected under `tune`
              2 | residual: false
                | ^^^^^^^^
              help: write `tune: {cotangent_remat: false}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what pays off on the target"#]],
    );
}

#[test]
fn a_number_alone_is_told_its_key() {
    let help = |key: &str| {
        let text = format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntrain: {{{key}}}\n");
        let error = parse(&text).unwrap_err().to_string();
        let (message, help) = error.split_once("\n  help: ").unwrap();
        (message.lines().next().unwrap().split_once(": ").unwrap().1.to_string(), help.to_string())
    };
    let cases = [
        ("average: 0.9", "write `{decay: 0.9}`"),
        ("weight_decay: 0.0001", "write `{value: 0.0001}`"),
        ("clip: 1", "write `{kind: global_norm, value: 1}`"),
        ("warm_up: 500", "write `{steps: 500}`"),
    ];
    for (key, expected) in cases {
        let (message, help) = help(key);
        assert!(message.starts_with("found ") && message.ends_with(", expected keys and values"), "{message}");
        assert_eq!(help, expected);
    }
    // The text as written, not the float that it would be.
    let error = parse("model: {kind: mlp, input: [4], n_classes: 2}\ntrain: {average: {decay: 1}}\n").unwrap_err();
    assert!(error.to_string().contains("found integer `1`, expected a number above 0 and below 1"), "{error}");
}

#[test]
fn a_value_that_is_nearly_right_is_told_how_to_write_it() {
    for (text, help) in [
        ("  batch: \"32\"\n", "write 32 without quotes"),
        ("  learning_rate: \"0.1\"\n", "write 0.1 without quotes"),
        ("  batch: 040\n", "write 40; an octal number is 0o40"),
        ("  learning_rate: -1e400\n", "it is beyond the range of f64, whose largest number is 1.8e308"),
        ("  learning_rate: infinity\n", "write a finite number"),
        ("  learning_rate: \"007.5\"\n", "write 007.5 without quotes"),
        ("  batch: $(4 * 10)\n", "`$name` and `$(4 * name)` are computed under `model` where that has `parameters: "),
        ("  batch: 1e3\n", "write 1000"),
        ("  except: '*'\n", "write ['*']"),
        ("  optimizer: {adam: {beta1: 0.9}}\n", "write `kind: adam`, and its keys beside it"),
    ] {
        let error = parse(&format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntrain:\n{text}")).unwrap_err();
        assert!(error.contains(&format!("\n  help: {help}")), "{error}");
    }
    let error = parse("model: {kind: mlp, input: 4, n_classes: 2}\n").unwrap_err();
    assert!(error.contains("help: write [4], if it is the only one"), "{error}");
    // A number is a static scale of the loss.
    let scaled = |scale: &str| {
        parse(&format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntrain: {{loss_scale: {scale}}}\n"))
    };
    assert_eq!(scaled("1024").unwrap().train.loss_scale, scaled("static:1024").unwrap().train.loss_scale);
    assert_eq!(scaled("0.5").unwrap().train.loss_scale, scaled("static:0.5").unwrap().train.loss_scale);
    assert!(scaled("0").unwrap_err().contains("found floating point `0.0`, expected none, dynamic, or static: and"));
    // One pattern is a list of one, as of a loss's `variables`.
    let one = parse("model: {kind: mlp, input: [4], n_classes: 2}\ntrain: {trainable: '*/bias'}\n").unwrap();
    assert_eq!(one.train.trainable, ["*/bias"]);
    // A value without a pattern is not the name of a variable.
    for value in ["", "''", "null", "false", "['*/bias', '']", "[true]"] {
        let trainable = format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntrain:\n  trainable: {value}\n");
        let error = parse(&trainable).unwrap_err();
        assert!(error.starts_with("e.yaml:"), "{value}: {error}");
        assert!(error.contains("\n  help: leave the key out, or give patterns: "), "{value}: {error}");
        let of_group = format!("  optimizers: [{{variables: {value}, optimizer: sgd}}]\n");
        let error = parse(&format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntrain:\n{of_group}")).unwrap_err();
        assert!(error.contains("\n  help: leave the group out, or give patterns, "), "{value}: {error}");
    }
    // Values that are not nearly right have no such help.
    for text in ["  batch: \"many\"\n", "  batch: 1.5\n", "  batch: [3]\n"] {
        let error = parse(&format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntrain:\n{text}")).unwrap_err();
        assert!(!error.contains("help: write"), "{error}");
    }
}

#[test]
fn checkpoints_of_precisions_do_not_overwrite_each_other() {
    let path = |precision| default_checkpoint(Path::new("examples/digits.yaml"), precision);
    assert_eq!(path(Precision::Bf16), Path::new("checkpoints/digits-bf16.safetensors"));
    assert_eq!(path(Precision::F32), Path::new("checkpoints/digits-f32.safetensors"));
}

#[test]
fn an_experiment_without_data_says_what_to_add() {
    let experiment = parse("model: {kind: mlp, input: [4], n_classes: 2}\n").unwrap();
    assert_eq!(
        experiment.read_data(Path::new("e.yaml"), &Setup::default()).unwrap_err().to_string(),
        "e.yaml: the experiment has no `data`, which training and evaluation need\n\
             help: add a `data:` block with `csv` and `n_test`, as in examples/digits.yaml"
    );
}

#[test]
fn a_missing_experiment_is_named() {
    let error = Experiment::read(Path::new("/nonexistent/e.yaml")).unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/e.yaml: cannot read the experiment\nhelp: "), "{error}");
    let help = "name an experiment's YAML file, or the folder of a run; `bf16scope init` writes a file to begin with";
    assert_eq!(error.help(), Some(help));
}

/// Both names are displayed as `\u{fffd}.yaml`, and the second experiment once replaced the checkpoint of the first.
#[cfg(unix)]
#[test]
fn experiments_whose_names_differ_have_checkpoints_of_their_own() {
    use std::os::unix::ffi::OsStrExt as _;
    let place = |name: &[u8]| default_checkpoint(Path::new(std::ffi::OsStr::from_bytes(name)), Precision::Bf16);
    assert_ne!(place(b"\xff.yaml"), place(b"\xfe.yaml"));
    assert_eq!(place(b"a/\xff.yaml").as_os_str().as_bytes(), b"checkpoints/\xff-bf16.safetensors");
    assert_eq!(place(b"nets/mlp.yaml"), Path::new("checkpoints/mlp-bf16.safetensors"));
}

/// Applies `use_it` to the experiment of this text, with `rows` in the file `rows.csv` beside it.
fn in_folder<T>(text: &str, rows: &str, use_it: impl FnOnce(&Path, Experiment) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    files::replace(&path, text.as_bytes()).unwrap();
    files::replace(&folder.path().join("rows.csv"), rows.as_bytes()).unwrap();
    use_it(&path, Experiment::read(&path).unwrap())
}

/// The place that gives the number of classes, not the last one with the same number.
#[test]
fn what_a_class_is_below_is_shown_where_the_model_says_it() {
    let place = |model: &str, rows: &str| {
        let text = format!("model: {model}\ndata: {{csv: rows.csv, n_test: 1}}\n");
        let error = in_folder(&text, rows, |path, experiment| {
            experiment.read_data(path, &bf16scope_pjrt::Setup::default()).unwrap_err().to_string()
        });
        let (_, line) = error.split_once("e.yaml:1:").unwrap_or_else(|| panic!("{error}"));
        let column = line.split(':').next().unwrap().parse::<usize>().unwrap() - "model: ".len() - 1;
        let from: String = model.chars().skip(column).collect();
        (column, from.split([',', '}']).next().unwrap().to_string())
    };
    let mlp = "{kind: mlp, n_classes: 3, hidden: [3], input: [2]}";
    assert_eq!(place(mlp, "0,0,1\n0,0,3\n0,0,1\n"), (mlp.find("3, hidden").unwrap(), "3".to_string()));
    let two = "{kind: layers, inputs: {x: [2]}, layers: [{dense: {units: 3}, name: one}, {dense: 3, inputs: x, name: two}], \
               outputs: [one, two], loss: [{sparse_softmax_cross_entropy: , labels: a, output: one}, \
               {sparse_softmax_cross_entropy: , labels: b, output: two}]}";
    assert_eq!(place(two, "0,0,3,0\n0,0,1,1\n0,0,1,1\n"), (two.find("3}").unwrap(), "3".to_string()));
    assert_eq!(place(two, "0,0,0,3\n0,0,1,1\n0,0,1,1\n"), (two.find("3, inputs").unwrap(), "3".to_string()));
    let ids = "{kind: layers, inputs: {x: {shape: [2], dtype: int32}, z: {shape: [2], dtype: int32, below: 4}}, layers: \
               [{embedding: {input_dim: 9, output_dim: 4}, inputs: x, name: e}, {Embedding: 9, output_dim: 4, inputs: z, \
               name: f}, {add: [e, f]}, flatten, {dense: 9}], loss: sparse_softmax_cross_entropy}";
    assert_eq!(place(ids, "0,9,0,0,0\n0,0,0,0,0\n0,0,0,0,0\n").0, ids.find("9, output_dim: 4}").unwrap());
    assert_eq!(place(ids, "0,0,0,4,0\n0,0,0,0,0\n0,0,0,0,0\n").0, ids.find("4}}").unwrap());
    assert_eq!(place(ids, "0,0,0,0,9\n0,0,0,0,0\n0,0,0,0,0\n").0, ids.find("9}], loss").unwrap());
}

/// A profile and `explain` show the line that the user wrote for an instruction.
#[test]
fn instructions_carry_the_lines_of_the_file() {
    let lines = |text: &str| {
        in_folder(text, "", |path, experiment| {
            let objective = experiment.objective(Precision::Bf16, &Tuning::none()).unwrap();
            let batch = i64::from(experiment.train.batch);
            let program = crate::program::training(&*experiment.task(), Precision::Bf16, batch, &objective);
            let module = program.unwrap().program.module;
            let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
            let lines_of = |part: &str| -> Vec<i32> {
                let metadata = instructions.clone().map(|instruction| &instruction.metadata);
                let metadata = metadata.filter(|metadata| metadata.op_name.contains(part));
                let metadata = metadata.filter(|metadata| metadata.source_file == path.display().to_string());
                let lines: std::collections::BTreeSet<i32> = metadata.map(|metadata| metadata.source_line).collect();
                lines.into_iter().collect()
            };
            (lines_of("first/"), lines_of("second/"), lines_of(""))
        })
    };
    let layers = "model:\n  kind: layers\n  inputs: {x: [2]}\n  layers:\n    - {dense: 4, name: first}\n    - dense: 3\n      \
                  name: second\n  loss:\n    sparse_softmax_cross_entropy\n  metrics:\n    - accuracy\ntrain: {batch: 4}\n";
    let (first, second, all) = lines(layers);
    assert_eq!((first, second), (vec![5], vec![6]));
    // The inputs belong to the model, whose block begins on its second line.
    assert!(all.starts_with(&[2, 5, 6, 9]), "{all:?}");
    let (_, _, all) = lines("train: {batch: 4}\nmodel:\n  kind: mlp\n  input: [2]\n  n_classes: 3\n");
    assert_eq!(all, [3]);
}

#[test]
fn groups_of_variables_are_read_and_what_is_wrong_is_said() {
    let read = |optimizers: &str| {
        let text = format!(
            "model: {{kind: mlp, input: [4], n_classes: 2}}\ndata: {{csv: a.csv, n_test: 1, n_train: 64}}\n\
             train: {{optimizers: {optimizers}}}\n"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.yaml");
        std::fs::write(&path, text).unwrap();
        Experiment::read(&path).and_then(|experiment| experiment.train.update()).map_err(|error| error.to_string())
    };
    let update = read(
        "[{variables: '*/bias', optimizer: lion, learning_rate: 0.5}, {variables: ['*/logits/*'], learning_rate: 0.25}]",
    );
    let groups = update.unwrap().groups;
    assert_eq!([&groups[0].variables[..], &groups[1].variables[..]], [["*/bias"], ["*/logits/*"]]);
    assert_eq!((groups[0].optimizer.name(), groups[1].optimizer.name()), ("lion", "momentum"));
    assert_eq!((groups[0].learning_rate.at(0), groups[1].learning_rate.at(0)), (0.5, 0.25));
    for (optimizers, expected) in [
        (
            "{variables: ['*']}",
            "expected a list such as `[{variables: ['*/bias'], optimizer: sgd, learning_rate: 0.01}]`",
        ),
        ("[{variables: ['*']}]", "neither `optimizer` nor `learning_rate` is another here"),
        ("[{variables: [], optimizer: sgd}]", "found no pattern, expected one at least"),
        ("[{variables: ['*'], optimizer: lyon}]", "unknown value `lyon`"),
        (
            "[{variables: ['*'], learning_rate: {kind: linear, value: 0.1, decay_epochs: 0.1}}]",
            "`learning_rate` of `optimizers`: ",
        ),
    ] {
        let error = read(optimizers).unwrap_err();
        assert!(error.contains(expected), "{optimizers}: {error}");
    }
}
