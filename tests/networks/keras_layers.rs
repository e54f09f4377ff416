//! Layers that Keras users reach for and that are made in another way here, beside Keras' formulas: masks that are inputs,
//! additive attention and bins of other layers, dropout behind `selu`.

use crate::keras_user::read;
use crate::run;
use bf16scope::graph::Graph;
use bf16scope::hlo::{DType, Literal};
use bf16scope::nn::alpha_dropout;
use bf16scope::task::{Features, Mode};

/// The result of the last of these layers, for arguments by name; other variables have the same numbers in every call.
fn computed(batch: i64, inputs: &str, layers: &str, argument: impl Fn(&str) -> Option<Literal>) -> Vec<f32> {
    let text = format!("inputs: {{{inputs}}}\nlayers: [{layers}]\nloss: mean_squared_error\n");
    let task = read(&text).unwrap_or_else(|error| panic!("{layers}: {error}")).task(0.0);
    let (g, described) = (Graph::new("computed"), task.features());
    let features = Features::new(&g, &described, batch, Mode::Predict);
    let predictions = task.call(&g.scope(), &features, Mode::Predict).predictions;
    let program = g.finish(&[("y", &predictions[0].1)]).unwrap();
    let results = run::run(&program, |name| {
        argument(name).unwrap_or_else(|| {
            let dims = program.variables.iter().find(|it| it.name == name).unwrap().dims.clone();
            let n = dims.iter().product::<i64>();
            Literal::from_elements(dims, &(0..n).map(|at| ((at % 7) as f32 - 3.0) / 8.0).collect::<Vec<f32>>())
        })
    });
    run::f32s(&results[0])
}

/// A mask may be an input of any dtype: the layers that read one do as with what `masking` makes of the sequence.
#[test]
fn a_mask_may_be_an_input() {
    let x: Vec<f32> = (0..2 * 5 * 4).map(|at| if at % 20 >= 12 { 0.0 } else { 0.1 * at as f32 - 1.05 }).collect();
    let result = |mask: &str, layers: &str| {
        computed(2, &format!("x: [5, 4]{mask}"), layers, |name| match name {
            "x" => Some(Literal::from_elements([2, 5, 4], &x)),
            "m" if mask.contains("int32") => Some(Literal::from_elements([2, 5], &[1, 1, 1, 0, 0, 1, 1, 1, 0, 0])),
            "m" => Some(Literal::from_elements([2, 5], &[1f32, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0])),
            _ => None,
        })
    };
    for layer in [
        "{lstm: 3, inputs: [x, m]}",
        "{gru: 3, bidirectional: true, inputs: [x, m]}",
        "{simple_rnn: 3, inputs: [x, m]}",
        "{global_avg_pool: , inputs: [x, m]}",
        "{attention: 2, inputs: [x, x, m]}",
        "{transformer_block: 2, intermediate_dim: 6, inputs: [x, m]}",
        "{llama_block: 2, intermediate_dim: 6, inputs: [x, m]}",
    ] {
        let of_masking = result("", &format!("{{masking: 0, name: m}}, {layer}"));
        for dtype in ["compute", "int32"] {
            let of_input = result(&format!(", m: {{shape: [5], dtype: {dtype}}}"), layer);
            assert_eq!(of_input.len(), of_masking.len(), "{layer}");
            // Another fusion may sum in another order: at most 80 roundings of numbers below 4, of 2^-23 each.
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5;
            assert!(of_input.iter().zip(&of_masking).all(is_near), "{layer}, {dtype}: {of_input:?}, {of_masking:?}");
        }
    }
}

/// The layers in the help for Keras' `AdditiveAttention` compute it: `softmax(Σ scale · tanh(q + k)) · k`.
///
/// A score is a sum of four products below 1, off by 8 · 2^-24 at most; its exponential and the mean of keys below 1 by as
/// much again a few times.
#[test]
fn additive_attention_is_made_of_other_layers() {
    let values = |seed: usize, n: usize| -> Vec<f32> {
        (0..n).map(|at| (((at * 5 + seed * 3) % 13) as f32 - 6.0) / 8.0).collect()
    };
    let (n_queries, n_keys, n) = (2, 3, 4);
    let (q, k, scale) = (values(1, 8), values(2, 12), values(3, 4));
    let layers = "{reshape: [2, 1, 4], inputs: q, name: a}, {reshape: [1, 3, 4], inputs: k, name: b}, \
                  {expression: tanh(a + b)}, {conv: 1, kernel_size: 1, use_bias: false}, {reshape: [2, 3]}, \
                  {softmax: , name: weights}, {dot: [weights, k], axes: [2, 1]}";
    let results = computed(1, "q: [2, 4], k: [3, 4]", layers, |name| {
        Some(match name {
            "q" => Literal::from_elements([1, 2, 4], &q),
            "k" => Literal::from_elements([1, 3, 4], &k),
            _ => Literal::from_elements([1, 1, 4, 1], &scale),
        })
    });
    assert_eq!(results.len(), n_queries * n);
    let number = |values: &[f32], at: usize| f64::from(values[at]);
    for query in 0..n_queries {
        let score = |key: usize| -> f64 {
            let terms = (0..n).map(|at| (number(&q, query * n + at) + number(&k, key * n + at)).tanh());
            terms.enumerate().map(|(at, term)| term * number(&scale, at)).sum()
        };
        let powers: Vec<f64> = (0..n_keys).map(|key| score(key).exp()).collect();
        let total: f64 = powers.iter().sum();
        for at in 0..n {
            let expected = (0..n_keys).map(|key| powers[key] / total * number(&k, key * n + at)).sum::<f64>();
            let measured = number(&results, query * n + at);
            assert!((measured - expected).abs() <= 2f64.powi(-18), "{query}, {at}: {measured}, {expected}");
        }
    }
}

/// As the help for Keras' `Discretization` has it.
#[test]
fn numbers_become_bins_by_a_formula() {
    let layers = "{expression: \"(x > 18) + (x > 65)\"}, {cast: int32}, {one_hot: 3}";
    let results = computed(1, "x: [3]", layers, |_| Some(Literal::from_elements([1, 3], &[7f32, 40.0, 80.0])));
    assert_eq!(results, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
}

/// A layer of Keras that the page has in its table of those without a kind is refused, with a help.
#[test]
fn layers_of_keras_without_a_kind_have_words() {
    let page = include_str!("../../docs/EXPERIMENTS.md");
    let table = page.split_once("\n| Keras | here |\n").unwrap().1.split_once("\n\n").unwrap().0;
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let names: Vec<&str> = cells.flat_map(|cell| cell.split('`').step_by(2)).filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 30 && names.contains(&"AdditiveAttention"), "{names:?}");
    // `Attention` is the name of our layer with kernels: the options of Keras' have the words.
    for name in names.into_iter().filter(|name| *name != "Attention") {
        let text = format!("inputs: {{x: [8, 4]}}\nlayers:\n  - {name}\nloss: mean_squared_error\n");
        let error = read(&text).unwrap_err();
        assert!(error.starts_with("m.yaml:4:5: ") && error.contains("\n  help: "), "{name}: {error}");
    }
}

/// Numbers that stay, and those that do not, have the values of the paper's equation.
#[test]
fn alpha_dropout_keeps_mean_and_variance() {
    let (rate, n) = (0.25f64, 4096);
    let g = Graph::training("dropout");
    let x = g.input("x", DType::F32, [n]);
    let y = alpha_dropout(&g.scope(), &x, "dropout", rate);
    let program = g.finish(&[("y", &y)]).unwrap();
    // Their mean is 0, and their variance 1.
    let signs: Vec<f32> = (0..n).map(|at| if at % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let results = run::run(&program, |name| match name {
        "x" => Literal::from_elements([n], &signs),
        _ => Literal::from_elements([2], &[7u64, 11]),
    });
    let least = -1.050_700_987_355_480_5 * 1.673_263_242_354_377_2;
    let (keep, a) = (1.0 - rate, ((1.0 - rate) * (1.0 + rate * least * least)).powf(-0.5));
    let b = -a * least * rate;
    let mut n_dropped = 0;
    let (mut sum, mut squares) = (0.0, 0.0);
    for (y, sign) in run::f32s(&results[0]).into_iter().zip(signs).map(|(y, sign)| (f64::from(y), f64::from(sign))) {
        let is_dropped = (y - (a * least + b)).abs() < 1e-6;
        // Roundings of two constants, a product and a sum, each below 2.
        assert!(is_dropped || (y - (a * sign + b)).abs() <= 2f64.powi(-22), "{y}");
        n_dropped += i32::from(is_dropped);
        (sum, squares) = (sum + y, squares + y * y);
    }
    // Five standard deviations: of a count √(n·p·(1 - p)), of a mean √(1 / n), of a square at most √(3 / n).
    let n = n as f64;
    assert!((f64::from(n_dropped) - n * rate).abs() <= 5.0 * (n * rate * keep).sqrt(), "{n_dropped}");
    let (mean, square) = (sum / n, squares / n);
    assert!(mean.abs() <= 5.0 / n.sqrt() && (square - 1.0).abs() <= 5.0 * (3.0 / n).sqrt(), "{mean}, {square}");
}
