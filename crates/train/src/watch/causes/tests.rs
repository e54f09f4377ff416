//! Rules on records made by hand: of sizes, derivatives and updates that a run would need data of its own for.

mod ordinary;

use crate::watch::row::Quantity::{Activation, Cotangent, Gradient, Update};
use crate::watch::row::{Bins, Function, Quantity, RecordedClip, Role, WatchRecord, WatchRow};
use crate::watch::{Anomaly, RateJump, anomalies, anomalies_of_last, note_columns};
use bf16scope_data::ColumnSize;
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
        mean: None,
        takes: takes.to_vec(),
        columns: Vec::new(),
        function: None,
        is_gated: false,
        is_constrained: false,
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
        momentum: None,
        clip: None,
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

/// Kelvins, years: a factor leaves such a feature nearly constant.
#[test]
fn a_feature_far_from_0_is_told_its_mean() {
    let remedied = |mean: f32, dtype: &str| {
        let mut look = of_feature(1000.0, None);
        (look.rows[0].mean, look.rows[0].dtype) = (Some(mean), dtype.to_string());
        remedy("unscaled_input", &[look])
    };
    let expected = "subtract its mean, 9.990e2, and divide by its standard deviation in the data, as `normalize: true` of a \
                    table's column does: a factor leaves it nearly constant";
    assert_eq!(remedied(999.0, "f32"), expected);
    assert_eq!(remedied(999.0, "bf16"), format!("{expected}, and in bf16 numbers of that size are 4 apart"));
    assert_eq!(remedied(999.0, "f16"), format!("{expected}, and in f16 numbers of that size are 0.5 apart"));
    assert!(remedied(-999.0, "f32").starts_with("subtract its mean, -9.990e2, "));
    // Bytes of pictures: a mean of two deviations.
    assert!(remedied(894.0, "bf16").starts_with("scale the feature to an rms of about 1"));
}

#[test]
fn columns_that_are_off_are_named_as_yaml_names_them() {
    let column = |name: Option<&str>, number: u64, rms: f32| {
        let name = name.map(str::to_string);
        ColumnSize { name, number, is_of_feature: false, rms }
    };
    let remedied = |columns: Vec<ColumnSize>| {
        let mut look = of_feature(1e4, None);
        note_columns(&mut look.rows, |feature| (feature == "x").then(|| columns.clone()));
        remedy("unscaled_input", &[look])
    };
    let fare = column(Some("fare"), 2, 1.2e4);
    let of_table = remedied(vec![column(Some("age"), 1, 1.0), fare.clone(), column(Some("home: town"), 3, 1e-5)]);
    assert_eq!(
        of_table,
        "normalise the columns that are off (`home: town` has an rms of 1.0e-5, `fare` has an rms of 1.2e4): `data: {columns: \
         {x: [{name: \"home: town\", normalize: true}, {name: fare, normalize: true}, …]}}`"
    );
    assert!(remedied(vec![fare]).ends_with("`data: {columns: {x: [{name: fare, normalize: true}]}}`"));
    // Without a header.
    let of_numbers = remedied(vec![column(None, 1, 1.0), column(None, 2, 1.2e4), column(None, 3, 1.0)]);
    assert!(of_numbers.starts_with("column 2 has an rms of 1.2e4: divide what is off in the file, or"), "{of_numbers}");
    let of_all = remedied(vec![column(None, 1, 1e4), column(None, 2, 1.0)]);
    assert!(of_all.contains("`data: {scale: 1e-4}`"), "{of_all}");
    // An array's file has no columns: one place of a hundred, and all but a few.
    let place = |number: u64, rms: f32| ColumnSize { is_of_feature: true, ..column(None, number, rms) };
    let of_array =
        |n_off: u64| remedied((1..=100).map(|number| place(number, if number <= n_off { 1e5 } else { 1.0 })).collect());
    let expected =
        "column 1 of x has an rms of 1.0e5: let a `batch_norm` be the first layer, or divide what is off before";
    assert!(of_array(1).starts_with(expected), "{}", of_array(1));
    assert!(of_array(90).contains("`data: {scale: 1e-4}`"), "{}", of_array(90));
    // A feature of a usual size has no columns.
    let mut look = of_feature(1.0, None);
    note_columns(&mut look.rows, |_| Some(vec![column(None, 1, 1.0)]));
    assert_eq!(look.rows[0].columns, []);
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

/// No learning rate makes a layer large before the first update; a state is multiplied by its own kernel at every step.
#[test]
fn a_layer_that_is_large_at_first_is_told_its_initial_values() {
    let first = of_hidden(1, 1e5);
    let expected = "look at this layer's initial values (`kernel_initializer: glorot_uniform`): no update came before";
    assert_eq!(remedy("exploding", std::slice::from_ref(&first)), expected);
    let mut recurrent = first.clone();
    recurrent.rows.extend(variable("h1/recurrent_kernel", 1.4));
    assert!(remedy("exploding", &[recurrent]).contains("`recurrent_initializer: orthogonal`"));
    assert!(remedy("exploding", &[of_hidden(51, 1e5)]).contains("lower the learning rate, or clip gradients"));
}

/// All that reads large rows is as large as they are, and the softmax of the loss saturates.
#[test]
fn a_table_of_large_rows_is_the_cause_of_large_logits() {
    let of_table = |rms: f32| {
        let mut softmax = row("loss", Activation, Some(Role::Softmax), rms, &[2]);
        softmax.bins[12] = 0.6;
        let mut rows = vec![
            row("ids", Activation, Some(Role::Input), 3000.0, &[]),
            row("words", Activation, None, rms, &[0]),
            row("out", Activation, None, rms, &[1]),
            softmax,
            row("loss", Activation, Some(Role::Loss), 200.0, &[2]),
        ];
        rows.extend(["words/embeddings", "out/kernel"].into_iter().flat_map(|name| variable(name, rms)));
        record(1, rows)
    };
    let all = anomalies(&[of_table(1000.0)]);
    assert_eq!((rules(&all), &*all[0].layer), (vec!["exploding"], "words"));
    assert_eq!(all[0].found, "the rms of the rows that it looks up is 1.000e3");
    let expected = "give its table smaller initial values (`embeddings_initializer: {random_normal: 0.05}`): no update \
                    came before";
    assert_eq!(all[0].remedy, expected);
    assert_eq!(rules(&anomalies(&[of_table(20.0)])), ["saturated_softmax"]);
}

/// A factor of 50 is less than `rescaled` asks, and no initial value of that layer is there to change.
#[test]
fn a_layer_without_variables_that_is_large_is_told_its_factor() {
    let mut rows = vec![row("x", Activation, Some(Role::Input), 1.0, &[])];
    for (at, (name, rms)) in [("h1", 1.0), ("h2", 1.0), ("h3", 3.0), ("sharp", 150.0), ("out", 1.0)].iter().enumerate()
    {
        rows.push(row(name, Activation, None, *rms, &[at as u32]));
    }
    rows.push(row("loss", Activation, Some(Role::Loss), 1.0, &[5]));
    rows.extend(["h1/kernel", "h2/kernel", "h3/kernel", "out/kernel"].into_iter().flat_map(|name| variable(name, 0.5)));
    let all = anomalies(&[record(1, rows)]);
    assert_eq!((rules(&all), &*all[0].layer), (vec!["exploding"], "sharp"));
    let expected = "look at what this layer multiplies by and adds (`{rescaling: 1.0}`), and at the initial values of the layers \
                    before it (`kernel_initializer: glorot_uniform`): no update came before";
    assert_eq!(all[0].remedy, expected);
}

/// Logits far apart, behind a dropout whose rms is this many times that of what it takes.
fn of_dropout(step: u64, gain: f32) -> WatchRecord {
    let mut softmax = row("loss", Activation, Some(Role::Softmax), 17.0, &[3]);
    softmax.bins[12] = 0.6;
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        row("h1", Activation, None, 1.0, &[0]),
        row("drop", Activation, Some(Role::Dropped), gain, &[1]),
        row("out", Activation, None, 10.0, &[2]),
        softmax,
        row("loss", Activation, Some(Role::Loss), 5.8, &[3]),
    ];
    rows.extend(["h1/kernel", "out/kernel"].into_iter().flat_map(|name| variable(name, 0.5)));
    record(step, rows)
}

#[test]
fn logits_are_told_what_makes_them_large() {
    let remedied = |step: u64, gain: f32| remedy("saturated_softmax", &[of_dropout(step, gain)]);
    for step in [1, 51] {
        let expected =
            "lower the rate of drop: what it keeps it divides by the share that it keeps, and its rms is 4.4 times";
        assert!(remedied(step, 4.4).starts_with(expected), "{}", remedied(step, 4.4));
    }
    assert!(remedied(1, 1.4).starts_with("give the layer of the logits smaller initial values"));
    assert!(
        remedied(51, 1.4).starts_with("divide the logits by the root of their features, or lower the learning rate")
    );
}

/// Labels of 20,000 and a few: until the head's bias is there, nothing else is learnt.
#[test]
fn labels_that_are_nearly_all_offset_are_told_to_subtract_it() {
    let look = |step: u64, mean: f32, result: f32| {
        let mut record = of_prices(step, 4e8, 1.0);
        record.rows[1] = WatchRow { mean: Some(mean), ..row("labels", Activation, Some(Role::Label), 2e4, &[]) };
        (record.rows[2].rms, record.rows[2].max) = (result, result);
        record
    };
    let run = |step: u64, mean: f32, result: f32| anomalies(&[look(1, mean, 1.0), look(step, mean, result)]);
    let all = run(41, 19_999.9, 30.0);
    assert_eq!((rules(&all), &*all[0].layer), (vec!["label_scale"], "labels"), "{all:?}");
    assert!(all[0].found.ends_with("40 steps after the first look the results have an rms of 3.000e1"), "{all:?}");
    assert!(all[0].remedy.starts_with("train on labels less their mean, divided by their standard deviation"));
    // Too early; other labels; results that are there.
    for (step, mean, result) in [(21, 19_999.9, 30.0), (41, 17_000.0, 30.0), (41, 19_999.9, 19_000.0)] {
        let all = run(step, mean, result);
        assert!(!rules(&all).contains(&"label_scale"), "{step} {mean} {result}: {all:?}");
    }
}

/// The gradient of a single number passes through 0: what is no larger than at first has not exploded.
#[test]
fn a_gradient_that_passes_through_0_has_not_exploded() {
    let look = |step: u64, rms: f32| {
        let mut record = of_hidden(step, 1.0);
        let [gradient, update] = variable("out/bias", 0.5);
        record.rows.extend([WatchRow { n: 1, rms, max: rms, ..gradient }, update]);
        record
    };
    assert_eq!(anomalies(&[look(1, 3700.0), look(141, 0.4), look(151, 92.5)]), []);
    let grown = anomalies(&[look(1, 1.0), look(141, 0.4), look(151, 92.5)]);
    assert_eq!((rules(&grown), &*grown[0].layer, grown[0].step), (vec!["exploding"], "out/bias", 151));
}

/// A network whose kernels, of this largest number, an update moves by `moved`, at a rate of as much.
fn of_moved(step: u64, loss: f32, stored: f32, moved: f32) -> WatchRecord {
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        row("h1", Activation, None, 1.0, &[0]),
        row("out", Activation, None, 1.0, &[1]),
        row("loss", Activation, Some(Role::Loss), loss, &[2]),
    ];
    rows.extend(["h1/kernel", "out/kernel"].into_iter().flat_map(|name| {
        let [gradient, update] = variable(name, stored);
        [gradient, WatchRow { rms: moved, max: moved, ..update }]
    }));
    WatchRecord { learning_rate: moved.into(), ..record(step, rows) }
}

#[test]
fn a_rate_that_moves_kernels_by_their_size_is_named_with_the_rate_of_a_thousandth() {
    // Twice the loss at once; nearly that of the first look 16 steps later.
    for (step, loss) in [(5, 3.0), (21, 1.2)] {
        let run = [of_moved(1, 1.4, 0.5, 0.3), of_moved(step, loss, 6.0, 0.3)];
        let all = anomalies(&run);
        assert_eq!((rules(&all), &*all[0].layer, all[0].quantity), (vec!["large_rate"], "out/kernel", Update));
        let expected =
            "lower the learning rate: at `learning_rate: 5e-4` an update moves variables by about a thousandth";
        assert!(all[0].remedy.starts_with(expected), "{all:?}");
        assert!(all[0].found.starts_with("an update at a learning rate of 3.0e-1 moves it by 0.60 of its size"));
    }
    // The first update of a warm-up is 0.
    let warm_up = [of_moved(1, 1.4, 0.5, 0.0), of_moved(21, 3.0, 6.0, 0.3)];
    assert_eq!(rules(&anomalies(&warm_up)), ["large_rate"]);
}

#[test]
fn a_rate_is_not_large_where_the_loss_falls_or_variables_begin_small() {
    let run = |losses: [f32; 2], stored: f32, moved: f32| {
        [of_moved(1, losses[0], stored, moved), of_moved(21, losses[1], stored + moved, moved)]
    };
    assert_eq!(anomalies(&run([1.4, 0.7], 0.5, 0.3)), []);
    assert_eq!(anomalies(&run([1.4, 1.4], 0.5, 1e-2)), []);
    // Initial values of almost 0, and of 0.
    assert_eq!(anomalies(&run([1.4, 1.4], 1e-4, 1e-3)), []);
    assert_eq!(anomalies(&run([1.4, 1.4], 0.0, 1e-3)), []);
    // An update that no rate makes; SGD, which moves by its gradients; large labels, which are far away.
    let of_epsilon = run([1.4, 1.4], 0.5, 0.3).map(|record| WatchRecord { learning_rate: 1e-3, ..record });
    assert_eq!(rules(&anomalies(&of_epsilon)), ["epsilon", "epsilon"]);
    let change = |change: &dyn Fn(&mut WatchRecord)| {
        run([1.4, 1.4], 0.5, 0.3).map(|mut record| {
            change(&mut record);
            record
        })
    };
    assert_eq!(anomalies(&change(&|record| record.optimizer = "sgd".to_string())), []);
    let labelled = |record: &mut WatchRecord| {
        record.rows[0].role = Some(Role::Label);
        record.rows[0].rms = 3e5;
    };
    assert!(!rules(&anomalies(&change(&labelled))).contains(&"large_rate"));
}

/// After a warm-up the loss of the first look is a distant one.
#[test]
fn a_rate_that_is_large_after_a_warm_up_is_compared_with_the_look_before() {
    let run = |rates: [f32; 3], last: f32| {
        let looks = [(1, 1.4, rates[0]), (21, 0.4, rates[1]), (41, last, rates[2])];
        looks.map(|(step, loss, rate)| of_moved(step, loss, 0.5, rate))
    };
    let warm_up = [0.0, 0.05, 0.3];
    let all = anomalies(&run(warm_up, 0.9));
    assert_eq!((rules(&all), all[0].step), (vec!["large_rate"], 41));
    assert!(all[0].found.contains("the loss was 4.000e-1 at step 21, and is 9.000e-1"), "{all:?}");
    assert!(all[0].remedy.starts_with("lower the learning rate: at `learning_rate: 5e-4` an update moves"), "{all:?}");
    // Batches vary; a loss of nearly 0 does; a rate that was so from the beginning is judged by the first look.
    assert_eq!(anomalies(&run(warm_up, 0.7)), []);
    assert_eq!(anomalies(&run([0.3; 3], 0.9)), []);
    let little =
        [(1, 1.4, 0.0), (21, 0.1, 0.05), (41, 0.3, 0.3)].map(|(step, loss, rate)| of_moved(step, loss, 0.5, rate));
    assert_eq!(anomalies(&little), []);
}

/// A momentum of 0.9999 keeps gradients for ten thousand steps.
#[test]
fn a_momentum_that_forgets_nothing_is_named() {
    let look = |step: u64, loss: f32, momentum: f64| WatchRecord {
        optimizer: "momentum".to_string(),
        momentum: Some(momentum),
        ..of_moved(step, loss, 0.5, 1e-2)
    };
    let run = |loss: f32, momentum: f64| [look(1, 1.25, momentum), look(41, loss, momentum)];
    let all = anomalies(&run(1.3, 0.9999));
    assert_eq!((rules(&all), all[0].quantity), (vec!["long_momentum"], Update));
    assert!(all[0].found.contains("each moves it for 10000 steps; the loss was 1.250e0 at step 1, and is 1.300e0"));
    assert_eq!(all[0].remedy, "lower it: `optimizer: {kind: momentum, momentum: 0.9}`");
    for (loss, momentum) in [(0.5, 0.9999), (1.3, 0.99)] {
        assert_eq!(anomalies(&run(loss, momentum)), [], "{loss} {momentum}");
    }
    let adam = run(1.3, 0.9999).map(|record| WatchRecord { optimizer: "adam".to_string(), ..record });
    assert_eq!(anomalies(&adam)[0].remedy, "lower it: `optimizer: {kind: adam, beta1: 0.9}`");
}

/// Negative log-likelihoods of densities fall below 0, where their magnitude rises.
#[test]
fn a_loss_that_falls_below_0_is_no_worse() {
    let with_loss = |record: WatchRecord, loss: f32| {
        let change = |row: WatchRow| match row.role {
            Some(Role::Loss) => WatchRow { mean: Some(loss), max: loss.abs(), rms: loss.abs(), ..row },
            _ => row,
        };
        WatchRecord { rows: record.rows.into_iter().map(change).collect(), ..record }
    };
    let run = |losses: [f32; 2]| {
        let [first, now] = losses;
        [with_loss(of_moved(1, 1.0, 0.5, 0.3), first), with_loss(of_moved(21, 1.0, 0.8, 0.3), now)]
    };
    for losses in [[1.4, -3.0], [0.4, -0.4], [-1.0, -1.5], [-1.0, -30.0]] {
        assert_eq!(anomalies(&run(losses)), [], "{losses:?}");
    }
    for losses in [[-1.0, -1.1], [-1.0, -0.5], [-1.0, 4.0], [0.4, 3.0]] {
        assert_eq!(rules(&anomalies(&run(losses))), ["large_rate"], "{losses:?}");
    }
    let all = anomalies(&run([-1.0, 0.5]));
    assert!(all[0].found.ends_with("the loss was -1.000e0 at step 1, and is 5.000e-1"), "{all:?}");
    // The rate rises, and the loss goes on falling, or rises.
    let jumped = |losses: [f32; 2]| {
        let [first, now] = losses.map(|loss| with_loss(of_moved(1, 1.0, 0.5, 1e-3), loss));
        let rate_jump = Some(RateJump { step: 8, before: 1e-3, now: 1e-2 });
        [first, WatchRecord { step: 21, rate_jump, ..now }]
    };
    assert_eq!(anomalies(&jumped([-1.0, -3.0])), []);
    assert_eq!(rules(&anomalies(&jumped([-3.0, 1.0]))), ["rate_jump"]);
    // A rate that changes nothing, where the loss is below 0 and stays.
    let small = |losses: [f32; 3]| -> Vec<WatchRecord> {
        let records = of_small_rate([1.0; 3], 0.0, 1e-7);
        records.into_iter().zip(losses).map(|(record, loss)| with_loss(record, loss)).collect()
    };
    assert_eq!(rules(&anomalies(&small([-1.0, -1.0, -0.99]))), ["small_rate"]);
    assert_eq!(anomalies(&small([-1.0, -2.0, -3.0])), []);
}

/// A network that begins with this bias, at a constant rate of `moved`.
fn of_small_rate(losses: [f32; 3], bias: f32, moved: f32) -> [WatchRecord; 3] {
    [(1, losses[0]), (151, losses[1]), (201, losses[2])].map(|(step, loss)| {
        let mut record = of_moved(step, loss, 0.5, moved);
        let [gradient, update] = variable("h1/bias", if step == 1 { bias } else { bias + 1e-3 });
        record.rows.extend([gradient, WatchRow { rms: moved, max: moved, ..update }]);
        record
    })
}

#[test]
fn a_rate_that_changes_nothing_is_named_with_the_rate_of_a_thousandth() {
    let all = anomalies(&of_small_rate([1.4, 1.395, 1.39], 0.0, 3e-6));
    assert_eq!((rules(&all), &*all[0].layer, all[0].quantity), (vec!["small_rate"], "out/kernel", Update));
    assert!(
        all[0].found.starts_with("an update at a learning rate of 3.0e-6 moves it by 6.0e-6 of its size"),
        "{all:?}"
    );
    let expected = "raise the learning rate: at `learning_rate: 5e-4` an update moves variables by about a thousandth";
    assert!(all[0].remedy.starts_with(expected), "{all:?}");
}

#[test]
fn a_rate_is_not_small_where_the_loss_falls_or_weights_are_from_elsewhere() {
    let stays = [1.4, 1.395, 1.39];
    assert_eq!(anomalies(&of_small_rate([1.4, 1.38, 1.36], 0.0, 3e-6)), []);
    assert_eq!(anomalies(&of_small_rate([1.4, 1.36, 1.39], 0.0, 3e-6)), []);
    assert_eq!(anomalies(&of_small_rate(stays, 0.0, 1e-4)), []);
    assert_eq!(anomalies(&of_small_rate(stays, 0.02, 3e-6)), []);
    let change = |change: &dyn Fn(&mut WatchRecord)| {
        of_small_rate(stays, 0.0, 3e-6).map(|mut record| {
            change(&mut record);
            record
        })
    };
    // A warm-up; SGD, which moves by its gradients; a run that was resumed; large labels, which are far away.
    let rising = |record: &mut WatchRecord| record.learning_rate *= if record.step == 1 { 0.5 } else { 1.0 };
    assert_eq!(anomalies(&change(&rising)), []);
    assert_eq!(anomalies(&change(&|record| record.optimizer = "sgd".to_string())), []);
    assert_eq!(anomalies(&change(&|record| record.step += 1000)), []);
    let labelled = |record: &mut WatchRecord| {
        record.rows[0].role = Some(Role::Label);
        record.rows[0].rms = 3e5;
    };
    assert!(!rules(&anomalies(&change(&labelled))).contains(&"small_rate"));
}

/// Gradients far below an ε of 1e-8 at the first look, as a loss of a weight of 1e-10 has them, or those of a network that
/// has learnt all that there is.
#[test]
fn gradients_that_are_below_a_usual_epsilon_from_the_first_step_are_named() {
    let run = |at_first: f32| {
        [(1, at_first), (21, 1e-11), (41, 1e-11)].map(|(step, gradient)| {
            let mut look = of_moved(step, 7e-11, 0.5, 1e-6);
            (look.learning_rate, look.epsilon) = (1e-3, Some(1e-8));
            let gradients = look.rows.iter_mut().filter(|row| row.quantity == Gradient);
            gradients.for_each(|row| (row.rms, row.max) = (gradient, gradient));
            look
        })
    };
    let all = anomalies(&run(1e-11));
    assert_eq!((rules(&all), all[0].step), (vec!["large_epsilon"], 21));
    let expected = "raise what multiplies the loss, such as its `weight`: gradients are below ε from the first step on. Or \
                    lower ε: `optimizer: {kind: adam, epsilon: 1e-13}`";
    assert_eq!(all[0].remedy, expected);
    assert_eq!(anomalies(&run(1e-3)), []);
}

/// A projection moves a variable by more than any quotient, and no ε helps.
#[test]
fn a_step_of_more_than_a_quotient_by_usual_gradients_is_no_matter_of_epsilon() {
    let mut look = of_moved(1, 1.4, 0.5, 0.35);
    (look.learning_rate, look.epsilon) = (1e-3, Some(1e-8));
    let expected = "gradients of that size make no such step, whatever ε is: look at what else changes the variable, such as \
                    `kernel_constraint`, and at `beta2`";
    assert_eq!(remedy("epsilon", std::slice::from_ref(&look)), expected);
    let gradients = look.rows.iter_mut().filter(|row| row.quantity == Gradient);
    gradients.for_each(|row| (row.rms, row.max) = (1e-15, 1e-15));
    assert_eq!(remedy("epsilon", &[look]), "raise the optimizer's epsilon to 1e-8 or more");
}

/// A loss with a weight, and a hidden layer of this rms.
fn of_weighted(step: u64, weight: f32, rms: f32) -> WatchRecord {
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        row("labels", Activation, Some(Role::Label), 1.0, &[]),
        row("h1", Activation, None, rms, &[0]),
        row("out", Activation, None, 1.0, &[2]),
        row("loss", Activation, Some(Role::Loss), 0.7 * weight, &[1, 3]),
        row("out", Cotangent, None, weight / 32.0, &[]),
    ];
    rows.extend(["h1/kernel", "out/kernel"].into_iter().flat_map(|name| variable(name, 0.5)));
    record(step, rows)
}

#[test]
fn a_loss_of_a_large_weight_is_the_first_to_change() {
    let grown = |weight: f32| [of_weighted(1, weight, 0.4), of_weighted(21, weight, 430.0)];
    let weighted = remedy("exploding", &grown(1e6));
    let expected = "lower what multiplies the loss, such as its `weight`: the loss is 7.0e5 at step 1, where results and labels \
                    have an rms of 1.0 at most";
    assert!(weighted.starts_with(expected), "{weighted}");
    let mut infinite = grown(1e6);
    infinite[1].rows[2].not_finite = 1.0;
    assert!(remedy("not_finite", &infinite).starts_with(expected));
    // A softmax between the results and the loss.
    let behind = grown(1e6).map(|mut look| {
        look.rows.insert(4, row("loss", Activation, Some(Role::Softmax), 0.5, &[3]));
        look.rows[5].takes = vec![1, 4];
        look
    });
    assert!(remedy("exploding", &behind).starts_with(expected), "{}", remedy("exploding", &behind));
    let usual = remedy("exploding", &grown(1.0));
    assert!(usual.starts_with("lower the learning rate, or clip gradients"), "{usual}");
}

/// A branch `a` whose result `scaled` multiplies by 2e-5, by a variable of this name if it has a row of its own, in a
/// residual block or in a chain.
fn of_layer_scale(step: u64, variable_name: Option<&str>, is_residual: bool) -> WatchRecord {
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        row("h1", Activation, None, 1.0, &[0]),
        row("a", Activation, None, 1.0, &[1]),
    ];
    rows.extend(variable_name.map(|_| row("scaled", Activation, None, 2e-5, &[2])));
    let branch = rows.len() as u32 - 1;
    rows.push(match is_residual {
        true => row("block", Activation, Some(Role::Residual), 1.0, &[1, branch]),
        false => row("block", Activation, None, 1.0, &[branch]),
    });
    rows.push(row("loss", Activation, Some(Role::Loss), 1.0, &[branch + 1]));
    rows.push(row("block", Cotangent, is_residual.then_some(Role::Residual), 1.0, &[]));
    rows.extend(variable_name.map(|_| row("scaled", Cotangent, None, 1.0, &[])));
    rows.push(row("a", Cotangent, None, 2e-5, &[]));
    rows.push(row("h1", Cotangent, None, if is_residual { 1.0 } else { 2e-5 }, &[]));
    rows.extend(["h1/kernel", "a/kernel"].into_iter().flat_map(|name| variable(name, 0.5)));
    rows.extend(variable_name.into_iter().flat_map(|name| variable(&format!("scaled/{name}"), 2e-5)));
    record(step, rows)
}

#[test]
fn a_layer_scale_in_a_residual_branch_is_no_alarm() {
    let run = |name: Option<&str>, is_residual: bool| [1, 21].map(|step| of_layer_scale(step, name, is_residual));
    for name in [Some("factor"), Some("gamma"), None] {
        assert_eq!(anomalies(&run(name, true)), [], "{name:?}");
    }
    assert_eq!(rules(&anomalies(&run(Some("factor"), false))), ["vanishing"]);
    assert_eq!(rules(&anomalies(&run(Some("gamma"), false))), ["norm_of_one"]);
}

/// Gradients that are not finite, in the order of the variables.
#[test]
fn of_gradients_that_are_not_finite_the_one_nearest_to_the_loss_is_named() {
    let mut records = [1, 2].map(|step| of_hidden(step, 1.0));
    let nan = |record: &mut WatchRecord, quantity: Quantity| {
        record.rows.iter_mut().filter(|row| row.quantity == quantity).for_each(|row| row.not_finite = 1.0);
    };
    nan(&mut records[0], Gradient);
    nan(&mut records[0], Update);
    // The next step computes with these variables.
    nan(&mut records[1], Activation);
    let named = |records: &[WatchRecord]| -> Vec<(String, u64)> {
        let all = anomalies(records).into_iter().filter(|it| it.rule == "not_finite");
        all.map(|it| (it.layer, it.step)).collect()
    };
    assert_eq!(named(&records), [("out/kernel".to_string(), 1)]);
    // On its own, the second record shows its forward pass.
    assert_eq!(named(&records[1..]), [("x".to_string(), 2)]);
}

/// A head whose labels have these weights, beside another; it gets no gradient.
fn of_head(step: u64, weights: f32) -> WatchRecord {
    let zero = |mut row: WatchRow| {
        (row.rms, row.max, row.zero) = (0.0, 0.0, 1.0);
        row
    };
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        WatchRow { zero: f64::from(weights == 0.0), ..row("w", Activation, Some(Role::Label), weights, &[]) },
        row("h1", Activation, None, 1.0, &[0]),
        row("h2", Activation, None, 1.0, &[0]),
        row("loss", Activation, Some(Role::Loss), 1.0, &[2, 3]),
        row("h1", Cotangent, None, 1.0, &[]),
        zero(row("h2", Cotangent, None, 0.0, &[])),
    ];
    rows.extend(variable("h1/kernel", 0.5));
    let [gradient, update] = variable("h2/kernel", 0.5);
    rows.extend([zero(gradient), update]);
    record(step, rows)
}

#[test]
fn a_head_that_no_example_of_a_batch_counts_for_is_not_dead() {
    let dead = |weights: [f32; 2]| {
        let records = [(1, weights[0]), (21, weights[1])].map(|(step, weights)| of_head(step, weights));
        rules(&anomalies(&records)).contains(&"dead")
    };
    assert!(dead([1.0, 1.0]));
    assert!(!dead([0.0, 0.0]));
    assert!(!dead([1.0, 0.0]) && !dead([0.0, 1.0]));
}

/// Descent whose updates are lost because a clip leaves a millionth of the gradients; a clip that leaves a tenth does not
/// make them so, nor does one that is as large as gradients are.
#[test]
fn a_clip_that_leaves_nothing_is_named() {
    let records = |kind: &str, value: f64, lost: f64| {
        let of_step = |step: u64| {
            let [gradient, update] = variable("dense/kernel", 1.0);
            let update = WatchRow { lost: Some(lost), dtype: "f32".to_string(), ..update };
            let clip = Some(RecordedClip { kind: kind.to_string(), value });
            let loss = row("loss", Activation, Some(Role::Loss), 1.0, &[]);
            WatchRecord { optimizer: "sgd".to_string(), clip, ..record(step, vec![loss, gradient, update]) }
        };
        [of_step(1), of_step(51)]
    };
    for kind in ["global_norm", "norm", "value"] {
        let lost = records(kind, 1e-6, 0.9);
        assert_eq!(rules(&anomalies(&lost)), ["small_clip"], "{kind}");
        let message = anomalies(&lost)[0].found.clone();
        let begin = match kind {
            "global_norm" => "the norm of all gradients is ",
            "norm" => "the largest norm of a variable's gradients is ",
            _ => "gradients are up to ",
        };
        assert!(
            message.starts_with(begin) && message.contains(", and `clip` makes that 1.0e-6: 90.0 % of the updates"),
            "{message}"
        );
        assert!(remedy("small_clip", &lost).starts_with(&format!("raise `clip: {{kind: {kind}, value: 1e-6}}`")));
        assert_eq!(rules(&anomalies(&records(kind, 0.1, 0.9))), ["stalled"], "{kind}");
        assert_eq!(rules(&anomalies(&records(kind, 1e-6, 0.0))), [""; 0], "{kind}");
    }
}
