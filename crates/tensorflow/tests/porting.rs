//! What graphs become as experiments, and the slips that they show.

mod fixtures;
mod run;

use bf16scope_tensorflow::{Graph, Ported, SlipKind, port};
use fixtures::{arrays, unpacked};
use std::collections::BTreeSet;

fn ported(name: &str) -> Ported {
    port(&Graph::read(&unpacked(&format!("{name}.meta")), &format!("{name}.meta")).unwrap())
}

#[test]
fn a_network_becomes_layers_with_all_of_its_variables() {
    for name in ["mlp", "mlp_adam", "cnn", "resnet", "resnet_bf16"] {
        let ported = ported(name);
        let text = ported.experiment.expect("it has words");
        assert_eq!(ported.variables.unmapped, [""; 0], "{name}\n{text}");
        // Slots and counters aside, those that TensorFlow has.
        let (arrays, _) = arrays(name);
        let names = arrays.keys().filter_map(|key| key.strip_prefix("before/"));
        let is_own = |name: &&str| {
            ["kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance"].iter().any(|own| name.ends_with(own))
        };
        let theirs: BTreeSet<&str> = names.filter(is_own).collect();
        let ours: BTreeSet<&str> = ported.network.variables.keys().map(String::as_str).collect();
        assert_eq!(ours, theirs, "{name}\n{text}");
        for (variable, dims) in &ported.network.variables {
            assert_eq!(arrays[&format!("before/{variable}")].shape().dims(), dims, "{name} {variable}");
        }
    }
}

#[test]
fn an_experiment_says_what_the_script_says() {
    let resnet = ported("resnet");
    assert_eq!(resnet.training.optimizer, "{kind: momentum, momentum: 0.9, nesterov: true}");
    assert_eq!(resnet.training.weight_decay, "{value: 0.0001, except: [batch_normalization]}");
    assert_eq!((resnet.network.label_smoothing, resnet.network.batch), (0.1, Some(2)));
    let text = resnet.experiment.unwrap();
    let norm = "    - {batch_norm: , momentum: 0.9, epsilon: 1e-5, name: batch_normalization}\n";
    assert!(text.contains(norm), "{text}");
    assert!(text.contains("    - {zero_padding: [[3, 3], [3, 3]], name: Pad}\n"), "{text}");
    // where(step < 2, 0.1 · step / 2, 0.1 · 0.5^(step / 10))
    let rate = "{kind: exponential, value: 0.1, decay_steps: 10, decay_rate: 0.5}";
    assert_eq!(
        (resnet.training.learning_rate.as_str(), resnet.training.warm_up.as_str()),
        (rate, "{steps: 2, overlap: true}")
    );
    assert_eq!(resnet.missing, []);
    let adam = ported("mlp_adam");
    assert_eq!(adam.training.learning_rate, "0.01");
    assert!(adam.training.optimizer.ends_with("epsilon: 1.0e-8, epsilon_hat: true}"), "{}", adam.training.optimizer);
    let cnn = ported("cnn");
    assert_eq!(cnn.training.optimizer, "{kind: rmsprop, decay: 0.9, momentum: 0.9, epsilon: 0.001}");
}

#[test]
fn slips_are_those_that_the_dtypes_show() {
    let kinds = |name: &str| ported(name).slips.iter().map(|slip| slip.kind).collect::<Vec<_>>();
    for name in ["mlp_adam", "cnn", "resnet"] {
        assert_eq!(kinds(name), [], "{name}");
    }
    // Fed in f32 through a placeholder, and cast in the graph.
    assert_eq!(kinds("resnet_bf16"), [SlipKind::CastOnDevice]);
    assert_eq!(kinds("slip_bf16_loss"), [SlipKind::Bf16Loss, SlipKind::Bf16LossSum]);
    assert_eq!(kinds("slip_bf16_variables"), [SlipKind::Bf16Variable, SlipKind::Bf16Update]);
    assert_eq!(kinds("slip_moments"), [SlipKind::Bf16Statistics]);
    assert_eq!(kinds("slip_sum_over_cores"), [SlipKind::SumOverCores]);
    assert_eq!(kinds("clean_bf16"), []);
    assert_eq!(kinds("clean_cores"), []);
}
