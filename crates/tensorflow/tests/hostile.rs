//! Damaged and malicious graphs are refused with an error, without a panic, in bounded time and memory.

mod fixtures;
mod refused;
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
    let expected = "its functions are more than 1000000 nodes, each as often as it is called";
    assert!(error(&text).contains(expected), "{}", error(&text));
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
    assert!(error("node {\n name: 3 }").starts_with("g:2: found `3 }`, expected text in quotes"));
    let message = error("hello");
    assert!(message.starts_with("g: it holds no graph of TensorFlow"), "{message}");
}

const DAMAGED: &str = "help: it may be damaged, or another kind of file: `tf.io.write_graph`, a Saver's .meta and a \
                       SavedModel's saved_model.pb are read";
const UNKNOWN: &str = "help: leave it out of what is asked for, or freeze a graph without it; an input pipeline runs on the \
                       host, so cut the graph behind it";
const UNFIT: &str = "help: check the graph: TensorFlow itself runs it only with such inputs";

/// An input of floats.
fn input(shape: &str) -> String {
    let attrs = format!(
        "attr {{ key: \"dtype\" value {{ type: DT_FLOAT }} }} attr {{ key: \"shape\" value {{ shape {{ {shape} }} }} }}"
    );
    node("x", "Placeholder", &[], &attrs)
}

/// An input of this shape, and a node that reads it.
fn read(shape: &str, name: &str, op: &str) -> String {
    input(shape) + &node(name, op, &["x"], FLOAT)
}

/// A library of the function `f` of one node, `b`.
fn library(body: &str, returned: &str) -> String {
    let body = body.replace("node {", "node_def {");
    format!(
        "library {{ function {{ signature {{ name: \"f\" input_arg {{ name: \"x\" }} output_arg {{ name: \"y\" }} }} {body} \
         ret {{ key: \"y\" value: \"{returned}\" }} }} }}"
    )
}

/// A conditional both of whose branches are a function of this node.
fn branches(body: &str) -> String {
    let pred = r#"node { name: "p" op: "Placeholder" attr { key: "dtype" value { type: DT_BOOL } }
        attr { key: "shape" value { shape { } } } }"#;
    let attrs = r#"attr { key: "then_branch" value { func { name: "f" } } }
        attr { key: "else_branch" value { func { name: "f" } } } attr { key: "Tcond" value { type: DT_BOOL } }
        attr { key: "Tin" value { list { type: DT_FLOAT } } } attr { key: "Tout" value { list { type: DT_FLOAT } } }"#;
    let choice = node("y", "StatelessIf", &["p", "x"], attrs);
    format!("{pred}\n{}{choice}{}", input("dim { size: 2 }"), library(body, "b:y:0"))
}

/// The error of a graph, or of what is asked of it, if nothing says the sizes that it leaves open.
fn refused(text: &str, name: Option<&str>) -> String {
    let graph = match Graph::read(text.as_bytes(), "g") {
        Ok(graph) => graph,
        Err(error) => return error.to_string(),
    };
    lower(&graph, &Choice { name: name.map(str::to_string), size_of: &|_, _| None }).err().unwrap().to_string()
}

const TWO: &str = "dim { size: 2 }";

#[test]
fn what_is_not_in_a_graph_or_does_not_fit_is_told() {
    let signature =
        r#"signature_def { key: "serving_default" value { outputs { key: "y" value { name: "gone:0" } } } }"#;
    let meta = format!("graph_def {{ {} }}\n{signature}", read(TWO, "y", "Neg"));
    let frobnicate = node("b", "Frobnicate", &["x"], "");
    let circle = node("a", "Neg", &["b"], "") + &node("b", "Neg", &["a"], "") + &node("y", "Neg", &["b"], "");
    for (text, expected) in [
        (meta, format!("a signature names `gone:0`, and the graph has no such node\n{DAMAGED}")),
        (
            "meta_info_def { tensorflow_version: \"2\" }\ngraph_def { versions { producer: 1 } }".to_string(),
            format!("its graph has no nodes\n{DAMAGED}"),
        ),
        (
            input(TWO) + &node("y", "f", &["x"], "") + &library(&node("b", "Neg", &["x"], FLOAT), "gone:y:0"),
            format!("function `f` returns `gone:y:0`, which none of its nodes gives\n{DAMAGED}"),
        ),
        (
            branches(&frobnicate),
            format!(
                "node `y` (StatelessIf): in its function, `b` is `Frobnicate`, which does not become HLO here\n{UNKNOWN}"
            ),
        ),
        (
            branches(&node("b", "Neg", &[], "")),
            format!(
                "node `y` (StatelessIf): in its function, `b` (Neg): it has 0 inputs, expected at least 1\n{UNFIT}"
            ),
        ),
        (input(TWO) + &circle, format!("node `a` (Neg): its inputs depend on itself\n{UNFIT}")),
        (read(TWO, "y", "Frobnicate"), format!("node `y` is `Frobnicate`, which does not become HLO here\n{UNKNOWN}")),
    ] {
        assert_eq!(refused(&text, None), format!("g: {expected}"));
    }
}

/// Sizes, strides and ranks that overflowed, indexed what is not there, or would fill the memory.
#[test]
fn numbers_that_no_array_has_are_errors() {
    let ints = |name: &str, values: &[i64]| {
        let all: String = values.iter().map(|value| format!("int64_val: {value} ")).collect();
        let tensor = format!("dtype: DT_INT64 tensor_shape {{ dim {{ size: {} }} }} {all}", values.len());
        node(name, "Const", &[], &format!("attr {{ key: \"value\" value {{ tensor {{ {tensor} }} }} }}"))
    };
    let scalar = |name: &str, value: i64| ints(name, &[value]).replace("dim { size: 1 }", "");
    let number = |key: &str, value: i64| format!("attr {{ key: \"{key}\" value {{ i: {value} }} }} ");
    let list = |key: &str, values: [i64; 4]| {
        let values: String = values.iter().map(|value| format!("i: {value} ")).collect();
        format!("attr {{ key: \"{key}\" value {{ list {{ {values} }} }} }} ")
    };
    let valid = "attr { key: \"padding\" value { s: \"VALID\" } } ";
    let image = "dim { size: 1 } dim { size: 4 } dim { size: 4 } dim { size: 1 }";
    let cube = "dim { size: 2 } dim { size: 2 } dim { size: 2 }";
    let window = list("strides", [1, 1, 1, 1]) + valid;
    let wide = list("dilations", [1, i64::MAX, 1, 1]) + &window;
    let pool = list("ksize", [1, 2, 2, 1]) + &window;
    let sizes = ints("sizes", &[1, 4, 4, 1]);
    let [begin, end, steps] = ["begin", "end", "steps"].map(|name| ints(name, &[0, 1]));
    let sliced = format!("{begin}{end}{steps}");
    let least = sliced.replace(&steps, &ints("steps", &[i64::MIN, 1]));
    let inputs: &[&str] = &["x", "begin", "end", "steps"];
    let parts = ints("sizes", &[i64::MAX, i64::MAX]) + &scalar("axis", 0);
    let cases = [
        ("dim { size: 0 }", scalar("axis", 0) + &node("y", "Split", &["axis", "x"], &number("num_split", i64::MAX))),
        ("dim { size: 1099511627776 }", node("y", "Unpack", &["x"], "")),
        (TWO, parts + &node("y", "SplitV", &["x", "sizes", "axis"], "")),
        (TWO, ints("begin", &[i64::MAX]) + &ints("size", &[9]) + &node("y", "Slice", &["x", "begin", "size"], "")),
        (cube, sliced + &node("y", "StridedSlice", inputs, &number("ellipsis_mask", 3))),
        (cube, least + &node("y", "StridedSlice", inputs, "")),
        (image, node("y", "Conv2D", &["x", "x"], &wide)),
        (image, sizes.clone() + &ints("dy", &[1]) + &node("y", "Conv2DBackpropInput", &["sizes", "x", "dy"], &window)),
        (TWO, sizes + &node("y", "AvgPoolGrad", &["sizes", "x"], &pool)),
        ("", node("y", "FusedBatchNorm", &["x", "x", "x", "x", "x"], FLOAT)),
        ("", scalar("k", 0) + &node("y", "TopKV2", &["x", "k"], FLOAT)),
        ("dim { size: 0 } dim { size: 4611686018427387904 } dim { size: 8 }", node("y", "Neg", &["x"], FLOAT)),
    ];
    for (shape, nodes) in cases {
        let message = refused(&(input(shape) + &nodes), Some("y"));
        assert!(message.starts_with("g: ") && message.contains("\nhelp: "), "{nodes}: {message}");
    }
}

#[test]
fn what_is_asked_for_is_told_how_to_ask() {
    let size = "(parameter 0) is f32";
    for (text, name, expected) in [
        (
            input(TWO),
            None,
            "it has no signature, no op in the collection train_op, and no tensor that nothing reads\n\
             help: save it from the script that trains (a Saver writes .meta beside each checkpoint), or freeze it"
                .to_string(),
        ),
        (
            read("unknown_rank: true", "y", "Neg"),
            None,
            format!(
                "input `x` {size}[…], and HLO's shapes are static\n\
                 help: its rank is not known: set the placeholder's shape in the script, and save the graph again"
            ),
        ),
        (
            read("dim { size: -1 } dim { size: 3 }", "y", "Neg"),
            None,
            format!(
                "input `x` {size}[?,3], and HLO's shapes are static\n\
                 help: give the batch, `--dim batch=8`, or this one alone, `--dim 0:0=8`"
            ),
        ),
        (
            read("dim { size: 2 } dim { size: -1 }", "y", "Neg"),
            None,
            format!("input `x` {size}[2,?], and HLO's shapes are static\nhelp: give it, `--dim 0:1=128`"),
        ),
        (
            read("dim { size: 4000000000 } dim { size: 4000000000 }", "y", "Neg"),
            None,
            format!(
                "input `x` {size}[4000000000,4000000000], and HLO's shapes are static\n\
                 help: its size is more than memory holds"
            ),
        ),
        (
            read(TWO, "logits", "Neg"),
            Some("softmax_of_it"),
            "it has no signature, tensor or op `softmax_of_it`\nhelp: name a signature, a tensor or an op of the graph"
                .to_string(),
        ),
        (
            read(TWO, "logits", "Neg"),
            Some("logit"),
            "it has no signature, tensor or op `logit`\nhelp: `logits` is one".to_string(),
        ),
        (
            input(TWO) + &node("n", "NoOp", &["^x"], ""),
            Some("n"),
            "what is asked for gives no array and assigns no variable\nhelp: ask for a tensor, or for the op that trains"
                .to_string(),
        ),
    ] {
        assert_eq!(refused(&text, name), format!("g: {expected}"));
    }
}

#[test]
fn a_binary_graph_that_is_cut_or_no_text_is_told() {
    let whole = unpacked("cnn.meta");
    assert_eq!(
        Graph::read(&whole[..whole.len() / 2], "g").unwrap_err().to_string(),
        format!("g: it begins as a MetaGraphDef and is cut off or damaged\n{DAMAGED}")
    );
    // Two nodes, the second with a name that is not UTF-8.
    let broken = b"\x0a\x08\x0a\x01a\x12\x03Neg\x0a\x08\x0a\x01\xff\x12\x03Neg";
    let message = Graph::read(broken, "g").unwrap_err().to_string();
    assert!(message.starts_with("g: its message is broken: "), "{message}");
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
