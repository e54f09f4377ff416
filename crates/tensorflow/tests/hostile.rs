//! Damaged and malicious graphs are refused with an error, without a panic, in bounded time and memory.

mod fixtures;
mod run;

use bf16scope_hlo::verify;
use bf16scope_tensorflow::{Choice, Graph, lower, port};
use fixtures::unpacked;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use std::time::{Duration, Instant};

/// Reads, ports and lowers a graph; a module that results is verified.
fn go_through(bytes: &[u8]) -> Result<(), String> {
    let graph = Graph::read(bytes, "g").map_err(|error| error.to_string())?;
    port(&graph);
    let lowered = lower(&graph, &Choice { name: None, size_of: &|_, _| Some(2) }).map_err(|error| error.to_string())?;
    verify(&lowered.module).unwrap_or_else(|errors| panic!("a module that is not whole: {errors}"));
    Ok(())
}

/// The bytes with a few mutations: changed, removed, inserted or moved.
fn mutated(bytes: &[u8], rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..rng.random_range(1..6) {
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..5) {
            0 => bytes[at] = rng.random(),
            1 => bytes[at] ^= 1 << rng.random_range(0..8),
            2 => drop(bytes.drain(at..(at + rng.random_range(1..20)).min(bytes.len()))),
            3 => {
                let from = rng.random_range(0..bytes.len());
                let part = bytes[from..(from + 16).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            _ => bytes.truncate(at.max(1)),
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
    bytes
}

/// The number of mutations of each kind; `BF16SCOPE_TEST_MUTATIONS` sets another number.
fn n_mutations() -> usize {
    std::env::var("BF16SCOPE_TEST_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

#[test]
fn damaged_graphs_are_errors() {
    let mut rng = StdRng::seed_from_u64(54);
    let mut n_read = 0;
    for name in ["mlp.meta", "mlp_adam.meta", "cnn.meta", "slip_moments.meta"] {
        let whole = unpacked(name);
        go_through(&whole).unwrap_or_else(|error| panic!("{name}: {error}"));
        for _ in 0..n_mutations() {
            n_read += usize::from(go_through(&mutated(&whole, &mut rng)).is_ok());
        }
    }
    println!("{n_read} of {} are graphs still", 4 * n_mutations());
}

#[test]
fn damaged_texts_are_errors() {
    let mut rng = StdRng::seed_from_u64(55);
    let text = r#"
        node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } }
               attr { key: "shape" value { shape { dim { size: -1 } dim { size: 3 } } } } }
        node { name: "c" op: "Const" attr { key: "dtype" value { type: DT_FLOAT } } attr { key: "value" value {
               tensor { dtype: DT_FLOAT tensor_shape { dim { size: 3 } } float_val: [1, 2.5, -3e4] } } } }
        node { name: "y" op: "AddV2" input: "x" input: "c" attr { key: "T" value { type: DT_FLOAT } } }
        library { } versions { producer: 1808 }"#;
    go_through(text.as_bytes()).unwrap();
    for _ in 0..5 * n_mutations() {
        let _ = go_through(&mutated(text.as_bytes(), &mut rng));
    }
}

fn node(name: &str, op: &str, inputs: &[&str], attrs: &str) -> String {
    let inputs: String = inputs.iter().map(|input| format!(" input: \"{input}\"")).collect();
    format!("node {{ name: \"{name}\" op: \"{op}\"{inputs} {attrs} }}\n")
}

const FLOAT: &str = r#"attr { key: "T" value { type: DT_FLOAT } }"#;

fn error(text: &str) -> String {
    go_through(text.as_bytes()).unwrap_err()
}

#[test]
fn what_would_take_all_memory_is_refused() {
    let huge = r#"attr { key: "dtype" value { type: DT_FLOAT } } attr { key: "value" value { tensor { dtype: DT_FLOAT
        tensor_shape { dim { size: 1000000000000 } dim { size: 1000 } } float_val: 1 } } }"#;
    let text = node("c", "Const", &[], huge) + &node("y", "Neg", &["c"], FLOAT);
    assert!(error(&text).contains("more than memory holds"), "{}", error(&text));
    // A single value that fills 10^12 elements is a broadcast, so that a reader of it becomes a module.
    let wide = huge.replace("1000000000000", "1000000000");
    let text = node("c", "Const", &[], &wide) + &node("y", "Neg", &["c"], FLOAT);
    go_through(text.as_bytes()).unwrap();
    // Two values would have to be written out.
    let text = text.replace("float_val: 1", "float_val: [1, 2]");
    assert!(error(&text).contains("more than 1073741824 bytes"), "{}", error(&text));
}

/// f0 calls f1 twice, which calls f2 twice, and so on.
#[test]
fn functions_that_double_are_refused() {
    let mut text = node(
        "x",
        "Placeholder",
        &[],
        r#"attr { key: "dtype" value { type: DT_FLOAT } } attr { key: "shape" value { shape { } } }"#,
    );
    text += &node("y", "f0", &["x"], "");
    text += "library {";
    for depth in 0..40 {
        let body = match depth {
            39 => node("a", "Neg", &["x"], FLOAT) + &node("b", "Neg", &["a:y:0"], FLOAT),
            _ => {
                node("a", &format!("f{}", depth + 1), &["x"], "")
                    + &node("b", &format!("f{}", depth + 1), &["a:y:0"], "")
            }
        };
        text += &format!(
            "function {{ signature {{ name: \"f{depth}\" input_arg {{ name: \"x\" }} output_arg {{ name: \"y\" }} }}
             {} ret {{ key: \"y\" value: \"b:y:0\" }} }}",
            body.replace("node {", "node_def {")
        );
    }
    text += "}";
    let started = Instant::now();
    assert!(error(&text).contains("nodes, each as often as it is called"), "{}", error(&text));
    assert!(started.elapsed() < Duration::from_secs(120));
    // A recursive function.
    let text = node(
        "x",
        "Placeholder",
        &[],
        r#"attr { key: "dtype" value { type: DT_FLOAT } } attr { key: "shape" value { shape { } } }"#,
    ) + &node("y", "f", &["x"], "")
        + "library { function { signature { name: \"f\" input_arg { name: \"x\" } output_arg { name: \"y\" } } \
           node_def { name: \"a\" op: \"f\" input: \"x\" } ret { key: \"y\" value: \"a:y:0\" } } }";
    assert!(error(&text).contains("deep"), "{}", error(&text));
}

#[test]
fn errors_name_the_node_and_what_to_do() {
    let input = node(
        "x",
        "Placeholder",
        &[],
        r#"attr { key: "dtype" value { type: DT_FLOAT } } attr { key: "shape" value { shape { dim { size: 2 } } } }"#,
    );
    let source = r#"attr { key: "_bf16scope_source" value { s: "model.py:12" } }"#;
    let message = error(&(input.clone() + &node("y", "Frobnicate", &["x"], source)));
    assert_eq!(
        message.lines().next().unwrap(),
        "g: node `y` (model.py:12) is `Frobnicate`, which does not become HLO here"
    );
    let message = error(&(input.clone() + &node("y", "Neg", &["z"], "")));
    assert!(message.starts_with("g: node `y` reads `z`, and there is no such node"), "{message}");
    let message = error(
        &(input.clone()
            + &node("a", "Neg", &["b"], "")
            + &node("b", "Neg", &["a"], "")
            + &node("y", "Neg", &["b"], "")),
    );
    assert!(message.contains("its inputs depend on itself"), "{message}");
    let message = error(&(input.clone() + &node("x", "Neg", &["x"], "")));
    assert!(message.starts_with("g: two of its nodes are called `x`"), "{message}");
    assert!(error("node {\n name: 3 }").starts_with("g:2: `3 }`, expected text in quotes"));
    let message = error("hello");
    assert!(message.starts_with("g: it holds no graph of TensorFlow"), "{message}");
}

/// A chain of 200,000 nodes. Debug builds are slower: the release build takes under five seconds.
#[test]
fn a_graph_of_many_nodes_is_read_and_lowered() {
    let mut text = node(
        "n0",
        "Placeholder",
        &[],
        r#"attr { key: "dtype" value { type: DT_FLOAT } } attr { key: "shape" value { shape { dim { size: 2 } } } }"#,
    );
    for at in 1..200_000 {
        text += &node(&format!("n{at}"), "Neg", &[&format!("n{}", at - 1)], FLOAT);
    }
    let started = Instant::now();
    let graph = Graph::read(text.as_bytes(), "g").unwrap();
    let read = started.elapsed();
    let lowered = lower(&graph, &Choice { name: None, size_of: &|_, _| None }).unwrap();
    println!("read {read:?}, read and lowered {:?}", started.elapsed());
    assert_eq!(lowered.module.entry().instructions.len(), 200_001);
    assert!(started.elapsed() < Duration::from_secs(if cfg!(debug_assertions) { 120 } else { 5 }));
}
