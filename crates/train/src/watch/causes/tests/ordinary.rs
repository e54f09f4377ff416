//! Ordinary mistakes, and healthy runs that look like another rule's: norms after zeros, indices, data with NaNs,
//! decays, ends of schedules, a few large labels.

use super::*;

/// A layer `first`, which is dead or not, a layer of this rms, and a norm that passes a share of its cotangent on.
fn of_norm(step: u64, is_dead: bool, taken: f32, passed: f32) -> WatchRecord {
    let or_zeros = |row: WatchRow| match is_dead {
        true => WatchRow { rms: 0.0, max: 0.0, zero: 1.0, ..row },
        false => row,
    };
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        or_zeros(row("first", Activation, None, 1.0, &[0])),
        row("mid", Activation, None, taken, &[1]),
        or_zeros(row("norm", Activation, None, 1.0, &[2])),
        row("loss", Activation, Some(Role::Loss), 1.0, &[3]),
        row("norm", Cotangent, None, 1.0, &[]),
        row("mid", Cotangent, None, passed, &[]),
        row("first", Cotangent, None, passed, &[]),
    ];
    let variables = ["first/kernel", "mid/kernel", "norm/gamma"];
    rows.extend(variables.into_iter().flat_map(|name| variable(name, 0.5)));
    record(step, rows)
}

#[test]
fn a_norm_is_not_to_blame_for_what_it_takes() {
    let named = |is_dead: bool, taken: f32, passed: f32| -> Vec<(&str, String)> {
        let all = anomalies(&[1, 21].map(|step| of_norm(step, is_dead, taken, passed)));
        all.into_iter().map(|anomaly| (anomaly.rule, anomaly.layer)).collect()
    };
    assert_eq!(named(false, 1.0, 0.0), [("norm_of_one", "norm".to_string())]);
    // It divides by a deviation of 1e5, and equal numbers come of a layer of zeros.
    assert_eq!(named(false, 1e5, 1e-5), [("exploding", "mid".to_string())]);
    assert_eq!(named(true, 0.1, 0.0), [("dead", "first".to_string())]);
}

/// A ReLU that is open for some examples, or for none of them.
fn of_relu(step: u64, is_open: bool) -> WatchRecord {
    let activated = row("h1", Activation, Some(Role::Activated), 1.0, &[1]);
    let open = WatchRow { function: Some(Function::Relu), ..activated };
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        row("h1", Activation, None, 1.0, &[0]),
        if is_open { open } else { WatchRow { rms: 0.0, max: 0.0, zero: 1.0, ..open } },
        row("out", Activation, None, 1.0, &[2]),
        row("loss", Activation, Some(Role::Loss), 1.0, &[3]),
    ];
    rows.extend(["h1/kernel", "out/kernel"].into_iter().flat_map(|name| variable(name, 0.5)));
    record(step, rows)
}

#[test]
fn a_relu_that_was_never_open_is_told_its_initial_values() {
    let remedy = |open: [bool; 3]| {
        let records: Vec<WatchRecord> =
            [1, 21, 41].into_iter().zip(open).map(|(step, open)| of_relu(step, open)).collect();
        remedy("dead", &records)
    };
    assert!(remedy([false; 3]).starts_with("give it other initial values (`bias_initializer: zeros`, "));
    assert!(remedy([true, false, false]).starts_with("lower the learning rate, or use another activation"));
}

#[test]
fn indices_are_not_to_be_scaled() {
    let mut look = of_feature(5e3, None);
    let variables = look.rows.iter_mut().filter(|row| row.layer == "h1/kernel");
    variables.for_each(|row| row.layer = "h1/embeddings".to_string());
    assert_eq!(anomalies(&[look]), []);
    assert_eq!(rules(&anomalies(&[of_feature(5e3, None)])), ["unscaled_input"]);
    // A layer that takes a column of them is as large.
    let column = |first: &str| {
        let mut rows = vec![
            row("x", Activation, Some(Role::Input), 5e3, &[]),
            row("column", Activation, None, 5e3, &[0]),
            row("h1", Activation, None, 0.1, &[1]),
            row("h2", Activation, None, 0.1, &[2]),
            row("loss", Activation, Some(Role::Loss), 1.0, &[3]),
        ];
        rows.extend([first, "h2/kernel"].into_iter().flat_map(|name| variable(name, 0.5)));
        anomalies(&[record(1, rows)])
    };
    assert_eq!(column("h1/embeddings"), []);
    assert_eq!(rules(&column("h1/kernel")), ["unscaled_input"]);
}

#[test]
fn no_learning_rate_makes_what_is_not_finite_at_first() {
    let remedied = |step: u64, at: usize| {
        let mut look = of_norm(step, false, 1.0, 1.0);
        look.rows[at].not_finite = 0.25;
        remedy("not_finite", &[look])
    };
    assert!(remedied(21, 0).starts_with("they are in the data: replace what is missing there"), "{}", remedied(21, 0));
    let mut of_f16 = of_norm(21, false, 1.0, 1.0);
    (of_f16.rows[0].not_finite, of_f16.rows[0].dtype) = (0.25, "f16".to_string());
    assert!(remedy("not_finite", &[of_f16]).contains("beyond 65,504, where f16 ends"));
    let at_first = [
        (1, "give it and the layers before it smaller initial values"),
        (4, "look at labels that this loss does not take"),
        (6, "the gradient of a root at 0 is infinite"),
    ];
    for (at, expected) in at_first {
        assert!(remedied(1, at).starts_with(&format!("no update came before: {expected}")), "{}", remedied(1, at));
        assert!(remedied(21, at).starts_with("lower the learning rate, or clip gradients"), "{}", remedied(21, at));
    }
}

#[test]
fn f32_is_no_remedy_for_what_is_in_f32() {
    let is_remedy = |step: u64, at: usize, dtype: &str| {
        let mut look = of_norm(step, false, 1.0, 1.0);
        (look.rows[at].not_finite, look.rows[at].dtype) = (0.25, dtype.to_string());
        remedy("not_finite", &[look]).contains("in f32 (`dtype: float32`)")
    };
    for step in [1, 21] {
        assert_eq!(["f32", "bf16", "f16"].map(|dtype| is_remedy(step, 1, dtype)), [false, true, true]);
        assert!(!is_remedy(step, 4, "bf16"), "the loss is no layer");
    }
}

#[test]
fn a_decay_that_leaves_no_kernel_is_named() {
    let run = |left: [f32; 2]| {
        let looks = [(1, 1.4, [0.5; 2]), (201, 0.7, left)];
        looks.map(|(step, loss, stored)| {
            let mut look = of_moved(step, loss, 0.5, 1e-3);
            let updates = look.rows.iter_mut().filter(|row| row.quantity == Update);
            updates.zip(stored).for_each(|(row, stored)| row.stored = Some(stored));
            look
        })
    };
    let all = anomalies(&run([0.001, 0.01]));
    assert_eq!((rules(&all), &*all[0].layer), (vec!["weight_decay"], "out/kernel"));
    let expected = "its largest number was 5.0e-1 at step 1 and is 1.0e-2, and no kernel has kept more of what it was";
    assert_eq!(all[0].found, expected);
    // No decay is beside the optimizer.
    let terms = "lower what makes kernels smaller: `kernel_regularizer: {l2: 1.0e-4}` or `weight_decay: {value: 1.0e-4}` \
                 is usual, and `kernel_constraint: {max_norm: 3}`";
    assert_eq!(all[0].remedy, terms);
    // A kernel that has grown, and one that has a 25th left.
    assert_eq!(anomalies(&run([0.001, 0.6])), []);
    assert_eq!(anomalies(&run([0.001, 0.02])), []);
    let of_ftrl = run([0.001, 0.01]).map(|look| WatchRecord { optimizer: "ftrl".to_string(), ..look });
    assert_eq!(anomalies(&of_ftrl), []);
}

#[test]
fn updates_at_the_ends_of_a_schedule_may_be_lost() {
    let run = |rates: [f32; 2]| {
        let looks = [(1, 1.4, rates[0]), (21, 1.3, rates[1])];
        looks.map(|(step, loss, rate)| {
            let mut look = of_moved(step, loss, 0.5, rate);
            let updates = look.rows.iter_mut().filter(|row| row.quantity == Update);
            updates.for_each(|row| row.lost = Some(0.9));
            look
        })
    };
    assert_eq!(rules(&anomalies(&run([1e-9; 2]))), ["stalled", "stalled"]);
    assert_eq!(anomalies(&run([4e-9, 1e-9])), []);
    assert_eq!(anomalies(&run([1e-9, 4e-9])), []);
}

/// A loss that grows fivefold, with this derivative of each example.
fn growing(derivative: f32, loss: f32) -> [WatchRecord; 2] {
    [(81, loss / 5.0), (101, loss)].map(|(step, loss)| {
        let mut record = of_prices(step, loss, 1.0);
        let cotangent = record.rows.iter_mut().find(|row| row.quantity == Cotangent).unwrap();
        (cotangent.rms, cotangent.max) = (derivative / 32.0, derivative / 32.0);
        record
    })
}

#[test]
fn a_loss_whose_derivative_does_not_grow_with_the_labels_bears_them() {
    // Percentages, absolute errors, squares of errors of a million.
    assert_eq!(anomalies(&growing(100.0 / 3e5, 200.0)), []);
    assert_eq!(anomalies(&growing(1.0, 200.0)), []);
    assert_eq!(rules(&anomalies(&growing(2e6, 1e12))), ["label_scale"]);
}

/// Squares of errors of 2e5, of labels of 3e5: a batch with large ones, which the network does not know yet.
#[test]
fn a_batch_of_large_labels_is_no_alarm() {
    assert_eq!(anomalies(&growing(4e5, 4e10)), []);
}

/// Two looks with kernels, `a` and so on, whose gradients are all 0, beside one that learns.
fn of_stopped(names: &[&str]) -> [WatchRecord; 2] {
    [1, 21].map(|step| {
        let mut look = of_norm(step, false, 1.0, 1.0);
        for name in names {
            let [mut gradient, update] = variable(&format!("{name}/kernel"), 0.5);
            (gradient.rms, gradient.max, gradient.zero) = (0.0, 0.0, 1.0);
            look.rows.extend([gradient, update]);
        }
        look
    })
}

#[test]
fn all_variables_that_stopped_are_counted_and_the_first_are_named() {
    let dead = |names: &[&str]| {
        let all = anomalies(&of_stopped(names));
        let [dead] = &all[..] else { panic!("{all:?}") };
        assert_eq!((dead.rule, &*dead.layer), ("dead", "a/kernel"));
        (dead.found.clone(), dead.remedy.clone())
    };
    let (message, remedy) = dead(&["a"]);
    assert_eq!(message, "all 32 gradients are 0, as at the look before");
    let expected = "the loss does not depend on it, or only behind a `stop_gradient` or a function without a slope (`floor`, \
                    `sign`, a comparison): use it, or leave it out, or freeze it (`trainable`)";
    assert_eq!(remedy, expected);
    let (message, remedy) = dead(&["a", "b"]);
    assert_eq!(message, "all gradients of 2 variables are 0, as at the look before: a/kernel, b/kernel");
    assert!(remedy.starts_with("the loss depends on none of them, or only behind a `stop_gradient` "), "{remedy}");
    let (message, _) = dead(&["a", "b", "c", "d", "e", "f", "g", "h"]);
    assert!(message.starts_with("all gradients of 8 variables are 0, "), "{message}");
    assert!(message.ends_with(": a/kernel, b/kernel, c/kernel, d/kernel, e/kernel, f/kernel and 2 more"), "{message}");
}

#[test]
fn the_remedy_for_a_decay_says_its_value_and_the_rate() {
    let of_decay = |value: f64| {
        let look = of_moved(1, 1.4, 0.5, 1e-3);
        remedy("weight_decay", &[WatchRecord { decay: look.learning_rate * value, ..look }])
    };
    let expected = "lower `weight_decay` from 500, where 1e-4 to 0.1 are usual, or the learning rate, 1.0e-3, which \
                    multiplies it";
    assert_eq!(of_decay(500.0), expected);
    assert!(of_decay(123.4).contains(" from 123.4, "), "{}", of_decay(123.4));
}

#[test]
fn numbers_at_the_ends_of_a_dtype_have_the_remedy_of_that_dtype() {
    let saturated = |at: usize, dtype: &str, max: f32| {
        let mut look = of_norm(1, false, 1.0, 1.0);
        (look.rows[at].saturated, look.rows[at].max, look.rows[at].dtype) = (0.25, max, dtype.to_string());
        let all = anomalies(&[look]);
        let saturated = all.iter().find(|anomaly| anomaly.rule == "saturated").unwrap_or_else(|| panic!("{all:?}"));
        (saturated.found.clone(), saturated.remedy.clone())
    };
    let (message, remedy) = saturated(2, "f16", 65_504.0);
    assert_eq!(message, "25.0 % of its 32 numbers are at ±6.550e4, where f16 ends");
    assert!(remedy.starts_with("compute this layer in f32, which reaches 3e38 (`dtype: float32`), or "), "{remedy}");
    let (_, backward) = saturated(6, "f16", 65_504.0);
    assert!(backward.starts_with("use `loss_scale: dynamic`"), "{backward}");
    for dtype in ["f32", "bf16"] {
        let (message, remedy) = saturated(2, dtype, 3.389e38);
        assert!(message.ends_with(&format!("±3.389e38, where {dtype} ends")), "{message}");
        assert!(remedy.starts_with("lower the learning rate, or normalise"), "{remedy}");
    }
}

/// A recurrent layer, and the largest numbers of its kernels.
fn of_gates(kernel: f32, recurrent: f32, state: f32) -> WatchRecord {
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        row("lstm", Activation, None, state, &[0]),
        row("loss", Activation, Some(Role::Loss), 1.0, &[1]),
    ];
    let variables = [("lstm/kernel", kernel), ("lstm/recurrent_kernel", recurrent)];
    rows.extend(variables.into_iter().flat_map(|(name, stored)| variable(name, stored)));
    record(1, rows)
}

#[test]
fn gates_that_have_no_slope_are_told_their_kernel() {
    let of_recurrent = anomalies(&[of_gates(0.5, 120.0, 0.4)]);
    assert_eq!((rules(&of_recurrent), &*of_recurrent[0].layer), (vec!["saturated_gates"], "lstm"));
    assert_eq!(
        of_recurrent[0].found,
        "the largest number of its recurrent_kernel is 1.200e2, and an rms of 4.000e-1 times that moves gates by 48, where \
         their slope is 0"
    );
    assert!(of_recurrent[0].remedy.contains("`recurrent_initializer: orthogonal`"), "{}", of_recurrent[0].remedy);
    let of_kernel = remedy("saturated_gates", &[of_gates(120.0, 0.5, 0.4)]);
    assert!(of_kernel.contains("`kernel_initializer: glorot_uniform`"), "{of_kernel}");
    // Small at the first look: updates made it large, and other initial values do not help.
    let first = of_gates(0.5, 0.9, 0.4);
    let later = WatchRecord { step: 9, ..of_gates(0.5, 120.0, 0.4) };
    assert_eq!(
        remedy("saturated_gates", &[first, later.clone()]),
        "lower the learning rate from 1.0e-3, or clip gradients (`clip: {kind: global_norm, value: 1}`): at the first look the \
         largest number of its recurrent_kernel was 9.000e-1"
    );
    let as_large = of_gates(0.5, 100.0, 0.1);
    assert!(remedy("saturated_gates", &[as_large, later]).contains("`recurrent_initializer: orthogonal`"));
    // Weights that a layer learns, and a state without bounds, whose size other rules judge.
    assert_eq!(anomalies(&[of_gates(5.0, 5.0, 0.4)]), []);
    assert_eq!(rules(&anomalies(&[of_gates(0.5, 120.0, 200.0)])), ["exploding"]);
}

/// A feature of zeros beside another, under a kernel that an update moves or not.
fn of_zeros(step: u64, is_zero: bool, moves: bool, momentum: Option<f64>) -> WatchRecord {
    let zeros = |row: WatchRow| WatchRow { rms: 0.0, max: 0.0, zero: 1.0, ..row };
    let [gradient, update] = variable("b/kernel", 0.5);
    let y = WatchRow { n: 128, ..row("y", Activation, Some(Role::Input), 1.0, &[]) };
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        if is_zero { zeros(y) } else { y },
        row("a", Activation, None, 1.0, &[0]),
        row("b", Activation, None, 1.0, &[1]),
        row("loss", Activation, Some(Role::Loss), 1.0, &[2, 3]),
        gradient,
        if moves { update } else { zeros(update) },
    ];
    rows.extend(variable("a/kernel", 0.5));
    WatchRecord { momentum, ..record(step, rows) }
}

#[test]
fn a_feature_that_is_always_0_is_named() {
    let run = |last: u64, is_zero: bool, moves: bool, momentum: Option<f64>| {
        anomalies(&[1, 9, last].map(|step| of_zeros(step, is_zero, moves, momentum)))
    };
    let all = run(129, true, false, Some(0.9));
    assert_eq!((rules(&all), &*all[0].layer, all[0].step), (vec!["zero_input"], "y", 129));
    assert!(all[0].found.ends_with("and no step moves the kernel of b"), "{}", all[0].found);
    assert!(all[0].remedy.starts_with("look at where this feature comes from: a key or a column that is not there"));
    // A flag that is rarely set, and what cannot be known yet or at all.
    for (last, is_zero, moves, momentum) in
        [(129, true, true, Some(0.9)), (65, true, false, Some(0.9)), (129, false, false, Some(0.9))]
    {
        assert_eq!(run(last, is_zero, moves, momentum), [], "{last} {is_zero} {moves} {momentum:?}");
    }
    // Without a momentum a kernel that is what it was at first says that no step between the looks moved it.
    assert_eq!(rules(&run(129, true, false, None)), ["zero_input"]);
    let mut looks = [1, 9, 129].map(|step| of_zeros(step, true, false, None));
    for row in &mut looks[0].rows {
        row.stored = row.stored.map(|stored| 1.25 * stored);
    }
    assert_eq!(anomalies(&looks), []);
}

/// A layer whose function the loss compares with labels, at a step.
fn of_result(step: u64, function: Function, labels: (f32, f32)) -> WatchRecord {
    let is_relu = function == Function::Relu;
    let of_result = row("out", Activation, Some(Role::Activated), if is_relu { 0.0 } else { 1.0 }, &[2]);
    let zeros = |row: WatchRow| WatchRow { rms: 0.0, max: 0.0, zero: 1.0, ..row };
    let labels = WatchRow { mean: Some(labels.1), ..row("labels", Activation, Some(Role::Label), labels.0, &[]) };
    let of_result = WatchRow { function: Some(function), ..of_result };
    let mut rows = vec![
        row("x", Activation, Some(Role::Input), 1.0, &[]),
        labels,
        row("out", Activation, None, 8.0, &[0]),
        if is_relu { zeros(of_result) } else { of_result },
        row("loss", Activation, Some(Role::Loss), 1.0, &[1, 3]),
        row("out", Cotangent, Some(Role::Activated), 1.0, &[]),
        zeros(row("out", Cotangent, None, 0.0, &[])),
    ];
    rows.extend(variable("out/kernel", 0.5));
    record(step, rows)
}

#[test]
fn a_result_whose_function_cannot_reach_the_labels_is_told_to_leave_it_out() {
    let remedy_for = |rule: &str, function: Function, labels: (f32, f32)| {
        remedy(rule, &[1, 9].map(|step| of_result(step, function, labels)))
    };
    let beyond = "leave the function of this layer out: the loss compares it with labels, and some are beyond 1, where it \
                  ends; or scale the labels";
    assert_eq!(remedy_for("saturated_activation", Function::Sigmoid, (6.0, 6.0)), beyond);
    assert!(!remedy_for("saturated_activation", Function::Sigmoid, (1.0, 0.5)).starts_with("leave"));
    let below = "leave the ReLU of this layer out: the loss compares it with labels, whose mean is below 0";
    assert_eq!(remedy_for("dead", Function::Relu, (2.0, -1.5)), below);
    assert!(!remedy_for("dead", Function::Relu, (2.0, 1.5)).starts_with("leave"));
}

#[test]
fn what_a_constraint_puts_back_is_not_lost() {
    let look = |step: u64, is_constrained: bool| {
        let mut look = of_moved(step, 1.4, 0.5, 1e-3);
        for row in look.rows.iter_mut().filter(|row| row.quantity == Update) {
            (row.lost, row.is_constrained) = (Some(0.97), is_constrained);
        }
        look
    };
    let run = |is_constrained: bool| anomalies(&[1, 9].map(|step| look(step, is_constrained)));
    assert!(rules(&run(false)).contains(&"stalled"));
    assert_eq!(run(true), []);
}

/// The first projection of a usual norm moves a kernel by more than an optimizer would; one that holds it is named.
#[test]
fn a_constraint_that_leaves_nothing_is_named_and_a_usual_one_is_not() {
    let look = |step: u64, stored: f32, moved: f32| {
        let mut look = of_moved(step, 1.4, 0.5, 1e-3);
        for row in look.rows.iter_mut().filter(|row| row.quantity == Update && row.layer == "h1/kernel") {
            (row.rms, row.max, row.stored, row.is_constrained) = (moved, moved, Some(stored), true);
        }
        look
    };
    assert_eq!(anomalies(&[look(1, 0.5, 0.1), look(9, 0.4, 1e-3)]), []);
    let all = anomalies(&[look(1, 0.5, 0.5), look(9, 1e-8, 1e-8)]);
    assert_eq!((rules(&all), &*all[0].layer), (vec!["tight_constraint"], "h1/kernel"));
    let expected = "its constraint holds its largest number at 1.0e-8, which was 5.0e-1 at the first look";
    assert_eq!(all[0].found, expected);
    assert!(all[0].remedy.starts_with("let the constraint leave more"), "{}", all[0].remedy);
}

/// A flag that is rarely set is 0 in most batches, and so is what its layer makes of it, whose biases moved when it was set.
#[test]
fn a_layer_that_reads_a_rare_flag_is_not_dead() {
    let look = |step: u64, is_zero: bool| {
        let mut look = of_zeros(step, is_zero, true, Some(0.9));
        let [layer, gradient] = [3, 5].map(|at| look.rows[at].clone());
        look.rows[3] = WatchRow { rms: 1e-3, max: 1e-3, ..layer.clone() };
        let shut = WatchRow { function: Some(Function::Relu), role: Some(Role::Activated), takes: vec![3], ..layer };
        look.rows[5] = WatchRow { rms: 0.0, max: 0.0, zero: 1.0, ..gradient };
        look.rows.push(WatchRow { rms: 0.0, max: 0.0, zero: 1.0, ..shut });
        look
    };
    assert_eq!(anomalies(&[1, 9].map(|step| look(step, true))), []);
    let all = anomalies(&[1, 9].map(|step| look(step, false)));
    assert_eq!((rules(&all), &*all[0].layer), (vec!["dead"], "b"));
}
