//! Rules on records made by hand: of sizes, derivatives and updates that a run would need data of its own for.

use crate::watch::row::Quantity::{Activation, Cotangent, Gradient, Update};
use crate::watch::row::{Bins, Function, Quantity, Role, WatchRecord, WatchRow};
use crate::watch::{Anomaly, anomalies, anomalies_of_last};
use std::collections::BTreeSet;

/// A row of 32 numbers of this magnitude.
fn row(layer: &str, quantity: Quantity, role: Option<Role>, rms: f32, takes: &[u32]) -> WatchRow {
    WatchRow {
        layer: layer.to_string(),
        quantity,
        role,
        dtype: "f32".to_string(),
        n: 32,
        max: rms,
        rms,
        zero: 0.0,
        subnormal: 0.0,
        saturated: 0.0,
        not_finite: 0.0,
        bins: [0.0; Bins::N],
        lost: None,
        unseen: None,
        stored: None,
        takes: takes.to_vec(),
        function: None,
        is_gated: false,
    }
}

/// The gradient of a variable, and its update by a thousandth.
fn variable(name: &str, stored: f32) -> [WatchRow; 2] {
    let update = WatchRow { stored: Some(stored), ..row(name, Update, None, 1e-3, &[]) };
    [row(name, Gradient, None, 1.0, &[]), update]
}

fn record(step: u64, rows: Vec<WatchRow>) -> WatchRecord {
    WatchRecord {
        step,
        learning_rate: 1e-3,
        optimizer: "adam".to_string(),
        variables: "f32".to_string(),
        loss_scale: None,
        decay: 0.0,
        n_skipped: None,
        epsilon: None,
        rate_jump: None,
        never_moves: false,
        slow_statistics: Vec::new(),
        rows,
    }
}

/// The rules of anomalies.
fn rules(anomalies: &[Anomaly]) -> Vec<&str> {
    anomalies.iter().map(|anomaly| anomaly.rule).collect()
}

/// The remedy of a rule's anomaly.
fn remedy(rule: &str, records: &[WatchRecord]) -> String {
    let all = anomalies(records);
    let anomaly = all.iter().find(|anomaly| anomaly.rule == rule);
    anomaly.unwrap_or_else(|| panic!("no {rule}: {all:?}")).remedy.clone()
}

/// `x` of an rms, another feature if there is one, and a layer that reads `x`.
fn of_feature(rms: f32, other: Option<&str>) -> WatchRecord {
    let other = other.map(|name| row(name, Activation, Some(Role::Input), 1.0, &[]));
    let mut rows = vec![row("x", Activation, Some(Role::Input), rms, &[])];
    rows.extend(other);
    rows.push(row("h1", Activation, None, 1.0, &[0]));
    rows.push(row("loss", Activation, Some(Role::Loss), 1.0, &[rows.len() as u32 - 1]));
    rows.extend(variable("h1/kernel", 0.5));
    record(1, rows)
}

#[test]
fn the_scale_of_a_feature_follows_from_its_rms() {
    let cases = [(1.006e-6, "1e6"), (1.006e4, "1e-4"), (147.0, "7e-3"), (4.186e4, "2e-5"), (2e-12, "5e11")];
    for (rms, factor) in cases {
        let expected = format!("scale the feature to an rms of about 1: `data: {{scale: {factor}}}`, ");
        let remedy = remedy("unscaled_input", &[of_feature(rms, None)]);
        assert!(remedy.starts_with(&expected), "{rms}: {remedy}");
    }
    // The factor of one of two features.
    let remedy = remedy("unscaled_input", &[of_feature(1e4, Some("y"))]);
    assert!(remedy.contains("`data: {scale: {x: 1e-4}}`"), "{remedy}");
}

/// A feature that `rs` makes of another size, which `h1` reads.
fn of_rescaled_feature(feature: f32, rescaled: f32) -> WatchRecord {
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), feature, &[]),
        row("rs", Activation, None, rescaled, &[0]),
        row("h1", Activation, None, 1.0, &[1]),
        row("loss", Activation, Some(Role::Loss), 1.0, &[2]),
    ];
    rows.extend(variable("h1/kernel", 0.5));
    record(1, rows)
}

#[test]
fn a_layer_that_rescales_to_an_rms_of_about_1_is_no_alarm() {
    assert_eq!(anomalies(&[of_rescaled_feature(1e4, 1.0)]), []);
    assert_eq!(anomalies(&[of_rescaled_feature(1e-5, 1.0)]), []);
    assert_eq!(rules(&anomalies(&[of_rescaled_feature(1e4, 1e-3)])), ["rescaled"]);
}

/// A regression on prices: a head, and a layer that gives the head's result in the labels' unit, if `unit` is not 1.
fn of_prices(step: u64, loss: f32, unit: f32) -> WatchRecord {
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        row("labels", Activation, Some(Role::Label), 3e5, &[]),
        row("out", Activation, None, 1.0, &[0]),
    ];
    if unit != 1.0 {
        rows.push(row("price", Activation, None, 3e5, &[2]));
    }
    let result = rows.len() as u32 - 1;
    rows.push(row("loss", Activation, Some(Role::Loss), loss, &[1, result]));
    if unit != 1.0 {
        rows.push(row("price", Cotangent, None, 4e3, &[]));
    }
    rows.push(row("out", Cotangent, None, 4e3 * unit, &[]));
    rows.extend(variable("out/kernel", 0.5));
    record(step, rows)
}

#[test]
fn labels_are_in_reach_of_a_head_whose_result_a_layer_multiplies() {
    let run = |unit: f32| [1, 21, 41].map(|step| of_prices(step, 4e9, unit));
    assert_eq!(rules(&anomalies(&run(1.0))), ["label_scale"]);
    assert_eq!(anomalies(&run(1e5)), []);
    assert_eq!(rules(&anomalies(&run(4.0))), ["label_scale"]);
}

/// `train` judges each look when it is made, and keeps few.
#[test]
fn the_last_look_is_compared_with_the_first() {
    let looks = [1, 21, 41].map(|step| of_prices(step, 4e9, 1.0));
    assert_eq!(anomalies_of_last(&looks[..2], BTreeSet::new()), []);
    assert_eq!(rules(&anomalies_of_last(&looks, BTreeSet::new())), ["label_scale"]);
    assert_eq!(anomalies_of_last(&looks[1..], BTreeSet::new()), []);
    let causes = BTreeSet::from(["unscaled_input"]);
    let exploding = [of_hidden(1, 0.4), of_hidden(21, 430.0)];
    assert_eq!(rules(&anomalies_of_last(&exploding, BTreeSet::new())), ["exploding"]);
    assert_eq!(anomalies_of_last(&exploding, causes), []);
}

/// A loss that grows fourfold, with this derivative of each example.
fn growing(derivative: f32) -> [WatchRecord; 2] {
    [(81, 40.0), (101, 196.0)].map(|(step, loss)| {
        let mut record = of_prices(step, loss, 1.0);
        let cotangent = record.rows.iter_mut().find(|row| row.quantity == Cotangent).unwrap();
        (cotangent.rms, cotangent.max) = (derivative / 32.0, derivative / 32.0);
        record
    })
}

#[test]
fn a_loss_whose_derivative_does_not_grow_with_the_labels_bears_them() {
    // Percentages, absolute errors, squares.
    assert_eq!(anomalies(&growing(100.0 / 3e5)), []);
    assert_eq!(anomalies(&growing(1.0)), []);
    assert_eq!(rules(&anomalies(&growing(6e5))), ["label_scale"]);
}

/// A sigmoid that takes an rms of 80, made of `x` by a kernel and biases.
fn of_sigmoid(step: u64, x: f32, bias: f32) -> WatchRecord {
    let activated = row("h1", Activation, Some(Role::Activated), 0.7, &[1]);
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), x, &[]),
        row("h1", Activation, None, 80.0, &[0]),
        WatchRow { function: Some(Function::Sigmoid), ..activated },
        row("out", Activation, None, 1.0, &[2]),
        row("loss", Activation, Some(Role::Loss), 1.0, &[3]),
    ];
    let variables = [("h1/kernel", 100.0), ("h1/bias", bias), ("out/kernel", 0.5)];
    rows.extend(variables.into_iter().flat_map(|(name, stored)| variable(name, stored)));
    record(step, rows)
}

#[test]
fn the_variable_that_shuts_a_sigmoid_is_the_one_to_change() {
    let remedy = |x: f32, bias: f32| remedy("saturated_activation", &[1, 21].map(|step| of_sigmoid(step, x, bias)));
    let of_kernel = remedy(1.0, 0.01);
    assert!(of_kernel.starts_with("give its kernel smaller initial values (`kernel_initializer: "), "{of_kernel}");
    let of_bias = remedy(1.0, 60.0);
    assert!(of_bias.starts_with("give its biases smaller initial values (`bias_initializer: zeros`)"), "{of_bias}");
    let of_input = remedy(30.0, 0.01);
    assert!(of_input.starts_with("normalise what goes into it (`batch_norm`)"), "{of_input}");
}

/// A hidden layer of this rms.
fn of_hidden(step: u64, rms: f32) -> WatchRecord {
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        row("h1", Activation, None, rms, &[0]),
        row("out", Activation, None, 1.0, &[1]),
        row("loss", Activation, Some(Role::Loss), 1.0, &[2]),
    ];
    rows.extend(["h1/kernel", "out/kernel"].into_iter().flat_map(|name| variable(name, 0.5)));
    record(step, rows)
}

#[test]
fn a_layer_that_was_small_at_the_look_before_is_a_matter_of_the_learning_rate() {
    let at_once = remedy("exploding", &[of_hidden(1, 8566.0)]);
    assert!(at_once.starts_with("look at this layer's initial values"), "{at_once}");
    // Sixteenfold, and less than that.
    for before in [0.4, 60.0] {
        let grown = remedy("exploding", &[of_hidden(1, before), of_hidden(21, 430.0)]);
        assert!(grown.starts_with("lower the learning rate, or clip gradients"), "{before}: {grown}");
        assert!(grown.contains("initial values"), "{grown}");
    }
}
