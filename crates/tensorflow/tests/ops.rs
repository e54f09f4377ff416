//! Compares each op with TensorFlow's results on random inputs, ranks and paddings (`data`).

mod fixtures;
mod run;

use bf16scope_hlo::{Literal, text, verify};
use bf16scope_tensorflow::{Choice, Graph, known_ops, lower};
use fixtures::{arrays, difference, unpacked};
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn every_op_computes_what_tensorflow_computes() {
    compare("ops");
}

/// `TensorArray`s of both versions in and outside of loops, and residuals of loops.
#[test]
fn lists_and_gradients_of_loops_are_what_tensorflow_computes() {
    compare("lists");
}

/// Blocks, diagonals, scatters, special functions, and gradients of branches that save values of different shapes.
#[test]
fn later_ops_and_gradients_of_branches_are_what_tensorflow_computes() {
    compare("more");
}

/// Crops, resizes, colours, and boxes that are suppressed.
#[test]
fn ops_on_images_and_boxes_are_what_tensorflow_computes() {
    compare("images");
}

/// Older and newer forms of ops, functions that are called, and ops that pass their input on.
#[test]
fn other_forms_of_ops_are_what_tensorflow_computes() {
    compare("rest");
}

/// Optimizers, dense and of rows, and scatters into variables: references and resources.
#[test]
fn ops_that_change_variables_are_what_tensorflow_computes() {
    compare("updates");
}

/// Cases that are one program, which is compiled faster than as many.
const N_AT_ONCE: usize = 8;

fn compare(file: &str) {
    let (arrays, terms) = arrays(file);
    let terms: Vec<(String, f64)> = terms.into_iter().map(|(name, terms)| (name, terms.parse().unwrap())).collect();
    let graph = Graph::read(&unpacked(&format!("{file}.pb")), file).unwrap();
    let mut wrong = Vec::new();
    for cases in terms.chunks(N_AT_ONCE) {
        // Alone each says which it is.
        if wrong_of(&graph, &arrays, cases).is_empty() {
            continue;
        }
        wrong.extend(cases.chunks(1).flat_map(|case| wrong_of(&graph, &arrays, case)));
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), terms.len(), wrong.join("\n"));
}

/// The errors of some cases, each with the roundings of its sums, as one program.
fn wrong_of(graph: &Graph, arrays: &BTreeMap<String, Literal>, cases: &[(String, f64)]) -> Vec<String> {
    let outs = cases.iter().flat_map(|(case, terms)| {
        let names: Vec<String> =
            (0..).map(|n| format!("{case}/out{n}")).take_while(|name| arrays.contains_key(name)).collect();
        assert!(!names.is_empty(), "{case}");
        names.into_iter().map(move |name| (name, *terms))
    });
    let outs: Vec<(String, f64)> = outs.collect();
    let names: Vec<&str> = outs.iter().map(|(name, _)| name.as_str()).collect();
    let fetched = names.join(",");
    let choice = Choice { name: Some(fetched.clone()), size_of: &|_, _| None };
    let lowered = match lower(graph, &choice) {
        Ok(lowered) => lowered,
        Err(error) => return vec![format!("{fetched}: {error}")],
    };
    if let Err(errors) = verify(&lowered.module) {
        return vec![format!("{fetched}: {errors}")];
    }
    // Variables become inputs of the graph before they are read.
    let variables = lowered.roles.variables.iter().map(|variable| Literal::Array {
        shape: variable.shape.clone(),
        bytes: vec![0; variable.shape.n_bytes() as usize],
    });
    let inputs = lowered.roles.inputs.iter().map(|input| arrays[&input.name].clone());
    let results = match run::run(&lowered.module, &variables.chain(inputs).collect::<Vec<Literal>>()) {
        Ok(results) => results,
        Err(error) => return vec![format!("{fetched}: {error}")],
    };
    let n_selected = lowered.roles.results.iter().filter(|result| result.variable.is_none()).count();
    if n_selected != outs.len() {
        return vec![format!("{fetched}: {n_selected} results")];
    }
    // Eight roundings: four for each of two implementations of a function of one element.
    let differ = |((name, terms), ours): (&(String, f64), &Literal)| {
        difference(ours, &arrays[name], terms + 8.0).map(|text| format!("{name}: {text}"))
    };
    outs.iter().zip(&results).filter_map(differ).collect()
}

/// The result that a graph in text form computes from some inputs.
fn computed(text: &str, inputs: &[Literal], fetch: &str) -> Vec<f64> {
    let graph = Graph::read(text.as_bytes(), "g.pbtxt").unwrap();
    let lowered = lower(&graph, &Choice { name: Some(fetch.to_string()), size_of: &|_, _| None }).unwrap();
    verify(&lowered.module).unwrap();
    fixtures::values(&run::run(&lowered.module, inputs).unwrap()[0])
}

/// `dynamic_rnn`'s gradients leave their loop behind an identity that orders them.
#[test]
fn a_node_that_only_the_last_trip_runs_is_lowered_after_its_loop() {
    let float = "attr { key: \"T\" value { type: DT_FLOAT } }";
    let scalar = |name: &str, value: &str| {
        format!(
            "node {{ name: \"{name}\" op: \"Const\" attr {{ key: \"dtype\" value {{ type: DT_FLOAT }} }}
             attr {{ key: \"value\" value {{ tensor {{ dtype: DT_FLOAT tensor_shape {{}} float_val: {value} }} }} }} }}"
        )
    };
    let node = |name: &str, op: &str, inputs: &[&str]| {
        let inputs: String = inputs.iter().map(|input| format!("input: \"{input}\" ")).collect();
        format!("node {{ name: \"{name}\" op: \"{op}\" {inputs} {float} }}")
    };
    let enter = |name: &str, input: &str, is_constant: bool| {
        format!(
            "node {{ name: \"{name}\" op: \"Enter\" input: \"{input}\" {float}
             attr {{ key: \"frame_name\" value {{ s: \"loop\" }} }}
             attr {{ key: \"is_constant\" value {{ b: {is_constant} }} }} }}"
        )
    };
    let nodes = [
        "node { name: \"x\" op: \"Placeholder\" attr { key: \"dtype\" value { type: DT_FLOAT } }
         attr { key: \"shape\" value { shape {} } } }"
            .to_string(),
        scalar("limit", "100.0"),
        scalar("two", "2.0"),
        enter("enter", "x", false),
        enter("limit_in", "limit", true),
        enter("two_in", "two", true),
        node("merge", "Merge", &["enter", "next"]),
        node("less", "Less", &["merge", "limit_in"]),
        "node { name: \"go\" op: \"LoopCond\" input: \"less\" }".to_string(),
        node("switch", "Switch", &["merge", "go"]),
        node("doubled", "Mul", &["switch:1", "two_in"]),
        node("next", "NextIteration", &["doubled"]),
        node("behind", "Neg", &["switch"]),
        node("exit", "Exit", &["behind"]),
        node("plain", "Exit", &["switch"]),
    ];
    let x = Literal::from_elements([], &[3f32]);
    assert_eq!(computed(&nodes.join("\n"), std::slice::from_ref(&x), "exit"), [-192.0]);
    assert_eq!(computed(&nodes.join("\n"), &[x], "plain"), [192.0]);
}

/// An iterator's outputs are inputs of the program; the pipeline behind it runs on the host.
#[test]
fn a_graph_begins_behind_its_input_pipeline() {
    let text = "node { name: \"iterator\" op: \"IteratorV2\" }
        node { name: \"batch\" op: \"IteratorGetNext\" input: \"iterator\"
          attr { key: \"output_types\" value { list { type: DT_FLOAT type: DT_FLOAT } } }
          attr { key: \"output_shapes\" value { list { shape { dim { size: 2 } } shape { dim { size: 2 } } } } } }
        node { name: \"y\" op: \"Sub\" input: \"batch\" input: \"batch:1\" attr { key: \"T\" value { type: DT_FLOAT } } }";
    let inputs = [[5f32, 7.0], [1.0, 2.0]].map(|values| Literal::from_elements([2], &values));
    assert_eq!(computed(text, &inputs, "y"), [4.0, 5.0]);
}

/// The graph does not order a push of a stack's handle against the inner loops' pushes on that stack.
#[test]
fn a_pushed_stack_has_its_final_contents() {
    let attrs = |key: &str, dtype: &str| format!("attr {{ key: \"{key}\" value {{ type: {dtype} }} }}");
    let nodes = [
        format!(
            "node {{ name: \"x\" op: \"Placeholder\" {} attr {{ key: \"shape\" value {{ shape {{}} }} }} }}",
            attrs("dtype", "DT_FLOAT")
        ),
        format!(
            "node {{ name: \"most\" op: \"Const\" {} attr {{ key: \"value\" value {{
             tensor {{ dtype: DT_INT32 tensor_shape {{}} int_val: 2 }} }} }} }}",
            attrs("dtype", "DT_INT32")
        ),
        format!("node {{ name: \"outer\" op: \"StackV2\" input: \"most\" {} }}", attrs("elem_type", "DT_RESOURCE")),
        format!("node {{ name: \"inner\" op: \"StackV2\" input: \"most\" {} }}", attrs("elem_type", "DT_FLOAT")),
        format!(
            "node {{ name: \"handle\" op: \"StackPushV2\" input: \"outer\" input: \"inner\" {} }}",
            attrs("T", "DT_RESOURCE")
        ),
        format!(
            "node {{ name: \"value\" op: \"StackPushV2\" input: \"inner\" input: \"x\" {} }}",
            attrs("T", "DT_FLOAT")
        ),
        format!(
            "node {{ name: \"popped\" op: \"StackPopV2\" input: \"outer\" input: \"^handle\" input: \"^value\" {} }}",
            attrs("elem_type", "DT_RESOURCE")
        ),
        format!("node {{ name: \"y\" op: \"StackPopV2\" input: \"popped\" {} }}", attrs("elem_type", "DT_FLOAT")),
    ];
    assert_eq!(computed(&nodes.join("\n"), &[Literal::from_elements([], &[3f32])], "y"), [3.0]);
}

/// In f32, 0.3 is three steps of 0.1; of the numbers that f32 has, it is a little more.
#[test]
fn a_range_of_floats_has_as_many_elements_as_in_tensorflow() {
    let number = |name: &str, value: f32| {
        format!(
            "node {{ name: \"{name}\" op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_FLOAT
             tensor_shape {{}} float_val: {value} }} }} }} }}"
        )
    };
    for (limit, n) in [(0.3, 3), (1.0, 10), (0.25, 3)] {
        let nodes = [number("start", 0.0), number("limit", limit), number("step", 0.1)].concat();
        let text = nodes + "node { name: \"y\" op: \"Range\" input: \"start\" input: \"limit\" input: \"step\" }";
        assert_eq!(computed(&text, &[], "y").len(), n, "{limit}");
    }
}

/// A NaN is the greatest number of `top_k`, with a minus the least; `argmax` and `argmin` give the place of the first one.
#[test]
fn a_nan_has_its_place_in_an_order() {
    let whole = |name: &str, value: i32| {
        format!(
            "node {{ name: \"{name}\" op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_INT32
             tensor_shape {{}} int_val: {value} }} }} }} }}"
        )
    };
    let text = placeholder("x", "DT_FLOAT", &[5])
        + &whole("k", 5)
        + &whole("axis", 0)
        + "node { name: \"top\" op: \"TopKV2\" input: \"x\" input: \"k\" }
           node { name: \"most\" op: \"ArgMax\" input: \"x\" input: \"axis\" }
           node { name: \"least\" op: \"ArgMin\" input: \"x\" input: \"axis\" }";
    let x = Literal::from_elements([5], &[1f32, -f32::NAN, 3.0, f32::NAN, f32::INFINITY]);
    for (fetch, places) in [("top:1", &[3.0, 4.0, 2.0, 0.0, 1.0][..]), ("most", &[1.0]), ("least", &[1.0])] {
        assert_eq!(computed(&text, std::slice::from_ref(&x), fetch), places, "{fetch}");
    }
}

/// A boundary belongs to the bucket above it.
#[test]
fn buckets_are_counted_boundaries() {
    let text = "node { name: \"x\" op: \"Placeholder\" attr { key: \"dtype\" value { type: DT_FLOAT } }
        attr { key: \"shape\" value { shape { dim { size: 5 } } } } }
        node { name: \"y\" op: \"Bucketize\" input: \"x\" attr { key: \"T\" value { type: DT_FLOAT } }
        attr { key: \"boundaries\" value { list { f: -0.5 f: 0 f: 0.75 } } } }";
    let x = Literal::from_elements([5], &[-1f32, -0.5, 0.5, 0.75, 9.0]);
    assert_eq!(computed(text, &[x], "y"), [0.0, 1.0, 2.0, 3.0, 3.0]);
}

/// TensorFlow takes any number as an `If`'s condition: it holds where it is not 0.
#[test]
fn a_condition_may_be_a_number() {
    let float = "attr { key: \"T\" value { type: DT_FLOAT } }";
    let function = |name: &str, op: &str| {
        format!(
            "function {{ signature {{ name: \"{name}\" input_arg {{ name: \"x\" type: DT_FLOAT }}
               output_arg {{ name: \"y\" type: DT_FLOAT }} }}
             node_def {{ name: \"z\" op: \"{op}\" input: \"x\" {float} }} ret {{ key: \"y\" value: \"z:y:0\" }} }}"
        )
    };
    let placeholder = |name: &str, dtype: &str| {
        format!(
            "node {{ name: \"{name}\" op: \"Placeholder\" attr {{ key: \"dtype\" value {{ type: {dtype} }} }}
             attr {{ key: \"shape\" value {{ shape {{}} }} }} }}"
        )
    };
    let text = format!(
        "{} {} node {{ name: \"y\" op: \"If\" input: \"n\" input: \"x\"
           attr {{ key: \"then_branch\" value {{ func {{ name: \"negated\" }} }} }}
           attr {{ key: \"else_branch\" value {{ func {{ name: \"squared\" }} }} }} }}
         library {{ {} {} }}",
        placeholder("n", "DT_INT32"),
        placeholder("x", "DT_FLOAT"),
        function("negated", "Neg"),
        function("squared", "Square")
    );
    let x = Literal::from_elements([], &[3f32]);
    for (n, y) in [(0, 9.0), (1, -3.0), (7, -3.0)] {
        assert_eq!(computed(&text, &[Literal::from_elements([], &[n]), x.clone()], "y"), [y], "{n}");
    }
}

/// In a branch of version 1 a reference of a variable is read and assigned through a `RefSwitch`.
#[test]
fn references_are_read_and_assigned_in_branches() {
    let float = "attr { key: \"T\" value { type: DT_FLOAT } }";
    let node = |name: &str, op: &str, inputs: &[&str]| {
        let inputs: String = inputs.iter().map(|input| format!("input: \"{input}\" ")).collect();
        format!("node {{ name: \"{name}\" op: \"{op}\" {inputs} {float} }} ")
    };
    let variable = "node { name: \"v\" op: \"VariableV2\" attr { key: \"dtype\" value { type: DT_FLOAT } }
        attr { key: \"shape\" value { shape {} } } } ";
    let begun = variable.to_string()
        + &placeholder("p", "DT_BOOL", &[])
        + &placeholder("x", "DT_FLOAT", &[])
        + &node("switch", "RefSwitch", &["v", "p"])
        + &node("x_switch", "Switch", &["x", "p"])
        + &node("old", "Identity", &["switch"]);
    // p ? v = x : v; p ? v += x : v; p ? v : -v.
    let assigned = |op: &str| {
        node("set", op, &["switch:1", "x_switch:1"])
            + &node("new", "Identity", &["set"])
            + &node("y", "Merge", &["old", "new"])
    };
    let negated = node("other", "Neg", &["old"]) + &node("kept", "Identity", &["switch:1"]);
    let read = negated + &node("y", "Merge", &["other", "kept"]);
    for (nodes, p, y, v) in [
        (assigned("Assign"), true, 5.0, 5.0),
        (assigned("Assign"), false, 3.0, 3.0),
        (assigned("AssignAdd"), true, 8.0, 8.0),
        (assigned("AssignAdd"), false, 3.0, 3.0),
        (read.clone(), true, 3.0, 3.0),
        (read, false, -3.0, 3.0),
    ] {
        let graph = Graph::read((begun.clone() + &nodes).as_bytes(), "g.pbtxt").unwrap();
        let lowered = lower(&graph, &Choice { name: Some("y".to_string()), size_of: &|_, _| None })
            .unwrap_or_else(|error| panic!("{error}\n{nodes}"));
        let inputs = lowered.roles.inputs.iter().map(|input| match input.name.as_str() {
            "p" => Literal::scalar(p),
            _ => Literal::scalar(5f32),
        });
        let arguments: Vec<Literal> = [Literal::scalar(3f32)].into_iter().chain(inputs).collect();
        let results = run::run(&lowered.module, &arguments).unwrap();
        assert_eq!(fixtures::values(&results[0]), [y], "{p} {nodes}");
        // An assigned variable is the last result.
        assert!(results.len() == 1 || fixtures::values(&results[1]) == [v], "{p} {nodes}");
        assert_eq!(results.len() == 2, nodes.contains("\"set\""), "{nodes}");
    }
}

/// A placeholder of these dims.
fn placeholder(name: &str, dtype: &str, dims: &[i64]) -> String {
    let dims: String = dims.iter().map(|dim| format!("dim {{ size: {dim} }} ")).collect();
    format!(
        "node {{ name: \"{name}\" op: \"Placeholder\" attr {{ key: \"dtype\" value {{ type: {dtype} }} }}
         attr {{ key: \"shape\" value {{ shape {{ {dims} }} }} }} }}
         "
    )
}

/// The numbers are TensorFlow 2.15.1's.
#[test]
fn factors_triangular_systems_and_running_exponentials_are_tensorflows() {
    type Case<'a> = (&'a str, &'a str, &'a [(&'a [i64], &'a [f32])], &'a [f64]);
    const FACTOR: (&[i64], &[f32]) = (&[2, 2], &[2.0, 0.0, 1.0, 2.0]);
    const RIGHT: (&[i64], &[f32]) = (&[2, 1], &[1.0, 2.0]);
    const VECTOR: (&[i64], &[f32]) = (&[4], &[0.5, -1.0, 2.0, 1.0]);
    let least = f32::NEG_INFINITY;
    let cases: [Case<'_>; 9] = [
        ("Cholesky", "", &[(&[2, 2], &[4.0, 2.0, 2.0, 5.0])], &[2.0, 0.0, 1.0, 2.0]),
        ("CholeskyGrad", "", &[FACTOR, (&[2, 2], &[1.0, 0.0, 3.0, 2.0])], &[0.0, 0.5, 0.5, 0.5]),
        ("MatrixTriangularSolve", "", &[FACTOR, RIGHT], &[0.5, 0.75]),
        ("MatrixTriangularSolve", "adjoint: true", &[FACTOR, RIGHT], &[0.0, 1.0]),
        (
            "MatrixTriangularSolve",
            "lower: false, adjoint: true",
            &[(&[2, 2], &[4.0, 2.0, 9.0, 5.0]), RIGHT],
            &[0.25, 0.3],
        ),
        ("CumulativeLogsumexp", "", &[VECTOR], &[0.5, 0.7014133, 2.2413113, 2.495182]),
        ("CumulativeLogsumexp", "reverse: true", &[VECTOR], &[2.495182, 2.3490124, 2.3132617, 1.0]),
        ("CumulativeLogsumexp", "exclusive: true", &[VECTOR], &[f64::NEG_INFINITY, 0.5, 0.7014133, 2.2413113]),
        ("CumulativeLogsumexp", "", &[(&[3], &[least, 0.0, least])], &[f64::NEG_INFINITY, 0.0, 0.0]),
    ];
    for (op, flags, inputs, expected) in cases {
        let nodes: String =
            (0..).zip(inputs).map(|(at, (dims, _))| placeholder(&format!("x{at}"), "DT_FLOAT", dims)).collect();
        let attributes: String = flags
            .split(", ")
            .filter_map(|flag| flag.split_once(": "))
            .map(|(key, value)| format!("attr {{ key: \"{key}\" value {{ b: {value} }} }} "))
            .collect();
        let mut names: String = (0..inputs.len()).map(|at| format!("input: \"x{at}\" ")).collect();
        if op == "CumulativeLogsumexp" {
            names += "input: \"axis\" ";
        }
        let axis = "node { name: \"axis\" op: \"Const\" attr { key: \"value\" value { tensor { dtype: DT_INT32
            tensor_shape {} int_val: 0 } } } }";
        let text = format!("{nodes} {axis} node {{ name: \"y\" op: \"{op}\" {names} {attributes} }}");
        let inputs: Vec<Literal> = inputs.iter().map(|(dims, values)| Literal::from_elements(*dims, values)).collect();
        let values = computed(&text, &inputs, "y");
        let is_near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-6;
        let are_near = values.len() == expected.len() && values.iter().zip(expected).all(is_near);
        assert!(are_near, "{op} {flags}: {values:?}, expected {expected:?}");
    }
}

/// The place of the first of equal maxima is given; padding has none. The numbers are TensorFlow 2.15.1's.
#[test]
fn maxima_have_their_places() {
    let pool = |op: &str, inputs: &str, padding: &str, includes_batch: bool| {
        format!(
            "node {{ name: \"y\" op: \"{op}\" {inputs}
             attr {{ key: \"ksize\" value {{ list {{ i: 1 i: 2 i: 2 i: 1 }} }} }}
             attr {{ key: \"strides\" value {{ list {{ i: 1 i: 2 i: 2 i: 1 }} }} }}
             attr {{ key: \"padding\" value {{ s: \"{padding}\" }} }}
             attr {{ key: \"include_batch_in_index\" value {{ b: {includes_batch} }} }} }}"
        )
    };
    let dims = [1, 3, 4, 1];
    let x = Literal::from_elements(dims, &[1f32, 5.0, 2.0, 0.0, 4.0, 5.0, 3.0, 3.0, 9.0, 8.0, 7.0, 9.0]);
    let text = placeholder("x", "DT_FLOAT", &dims) + &pool("MaxPoolWithArgmax", "input: \"x\"", "SAME", false);
    assert_eq!(computed(&text, std::slice::from_ref(&x), "y:0"), [5.0, 3.0, 9.0, 9.0]);
    assert_eq!(computed(&text, &[x], "y:1"), [1.0, 6.0, 8.0, 11.0]);
    let dims = [2, 2, 2, 1];
    let x = Literal::from_elements(dims, &[1f32, 5.0, 2.0, 0.0, 4.0, 5.0, 3.0, 3.0]);
    let dy = Literal::from_elements([2, 1, 1, 1], &[10f32, 20.0]);
    for (includes_batch, expected) in [(true, [1.0, 5.0]), (false, [1.0, 1.0])] {
        let inputs = placeholder("x", "DT_FLOAT", &dims);
        let text = inputs.clone() + &pool("MaxPoolWithArgmax", "input: \"x\"", "VALID", includes_batch);
        assert_eq!(computed(&text, std::slice::from_ref(&x), "y:1"), expected);
        let places = Literal::from_elements([2, 1, 1, 1], &expected.map(|place| place as i64));
        let names = "input: \"x\" input: \"dy\" input: \"places\"";
        let text = inputs
            + &placeholder("dy", "DT_FLOAT", &[2, 1, 1, 1])
            + &placeholder("places", "DT_INT64", &[2, 1, 1, 1])
            + &pool("MaxPoolGradWithArgmax", names, "VALID", includes_batch);
        let graph = Graph::read(text.as_bytes(), "g.pbtxt").unwrap();
        let lowered = lower(&graph, &Choice { name: Some("y".to_string()), size_of: &|_, _| None }).unwrap();
        let literals = [("x", &x), ("dy", &dy), ("places", &places)];
        let literal = |name: &str| literals.iter().find(|(known, _)| *known == name).map(|(_, one)| (*one).clone());
        let arguments: Vec<Literal> = lowered.roles.inputs.iter().map(|input| literal(&input.name).unwrap()).collect();
        let gradient = fixtures::values(&run::run(&lowered.module, &arguments).unwrap()[0]);
        assert_eq!(gradient, [0.0, 10.0, 0.0, 0.0, 0.0, 20.0, 0.0, 0.0], "{includes_batch}");
    }
}

/// A part without rows has none; which rows a part has must be known.
#[test]
fn parts_are_the_rows_of_their_numbers() {
    let node = "node { name: \"y\" op: \"DynamicPartition\" input: \"x\" input: \"parts\"
        attr { key: \"num_partitions\" value { i: 3 } } }";
    let parts = "node { name: \"parts\" op: \"Const\" attr { key: \"value\" value { tensor { dtype: DT_INT32
        tensor_shape { dim { size: 4 } } int_val: 0 int_val: 2 int_val: 0 int_val: 2 } } } }";
    let x = placeholder("x", "DT_FLOAT", &[4]);
    let values = Literal::from_elements([4], &[1f32, 2.0, 3.0, 4.0]);
    let text = format!("{x} {parts} {node}");
    for (part, expected) in [("y:0", [1.0, 3.0]), ("y:2", [2.0, 4.0])] {
        assert_eq!(computed(&text, std::slice::from_ref(&values), part), expected, "{part}");
    }
    let graph = Graph::read(text.as_bytes(), "g.pbtxt").unwrap();
    let lowered = lower(&graph, &Choice { name: Some("y:1".to_string()), size_of: &|_, _| None }).unwrap();
    verify(&lowered.module).unwrap();
    let printed = text::print(&lowered.module, &text::PrintOptions::default());
    assert!(printed.contains("f32[0]"), "{printed}");
    let text = x + &placeholder("parts", "DT_INT32", &[4]) + node;
    let graph = Graph::read(text.as_bytes(), "g.pbtxt").unwrap();
    let error = lower(&graph, &Choice { name: Some("y".to_string()), size_of: &|_, _| None }).unwrap_err().to_string();
    assert!(error.contains("how many rows a part has is known only when it runs"), "{error}");
}

/// Products of 8-bit integers are summed in the dtype that the op names, and adjoint matrices are conjugated.
#[test]
fn products_follow_their_attributes() {
    let product =
        |attrs: &str| format!("node {{ name: \"y\" op: \"BatchMatMulV3\" input: \"x\" input: \"x\" {attrs} }}");
    let adjoint = "attr { key: \"adj_y\" value { b: true } }";
    let wide = product(&format!("{adjoint} attr {{ key: \"Tout\" value {{ type: DT_INT32 }} }}"));
    let x = Literal::from_elements([1, 2], &[100i8, 100]);
    assert_eq!(computed(&(placeholder("x", "DT_INT8", &[1, 2]) + &wide), &[x], "y"), [20_000.0]);
    let order = "node { name: \"order\" op: \"Const\" attr { key: \"value\" value { tensor { dtype: DT_INT32
        tensor_shape { dim { size: 2 } } int_val: 1 int_val: 0 } } } }";
    let transposed = format!("{order} node {{ name: \"y\" op: \"ConjugateTranspose\" input: \"x\" input: \"order\" }}");
    let difference = "node { name: \"y\" op: \"SquaredDifference\" input: \"x\" input: \"x\" }".to_string();
    for node in [product(adjoint), transposed, difference] {
        let text = placeholder("x", "DT_COMPLEX64", &[1, 2]) + &node;
        let graph = Graph::read(text.as_bytes(), "g.pbtxt").unwrap();
        let lowered = lower(&graph, &Choice { name: Some("y".to_string()), size_of: &|_, _| None }).unwrap();
        verify(&lowered.module).unwrap();
        let printed = text::print(&lowered.module, &text::PrintOptions::default());
        assert!(printed.contains(" imag(") && printed.contains(" complex("), "{printed}");
    }
}

#[test]
fn a_cast_that_cuts_numbers_off_is_refused() {
    for dtype in ["DT_BFLOAT16", "DT_HALF"] {
        let attrs = format!(
            "attr {{ key: \"DstT\" value {{ type: {dtype} }} }} attr {{ key: \"Truncate\" value {{ b: true }} }}"
        );
        let node = format!("node {{ name: \"y\" op: \"Cast\" input: \"x\" {attrs} }}");
        let graph = Graph::read((placeholder("x", "DT_FLOAT", &[2]) + &node).as_bytes(), "g.pbtxt").unwrap();
        let error = lower(&graph, &Choice { name: Some("y".to_string()), size_of: &|_, _| None }).unwrap_err();
        assert!(error.to_string().contains("it cuts f32 off to "), "{error}");
    }
}

/// Numbers differ from TensorFlow's, so only what holds for all of them is compared.
#[test]
fn draws_are_of_their_distributions() {
    let constant = |name: &str, dims: &[i64], values: &[i32]| {
        let dims: String = dims.iter().map(|dim| format!("dim {{ size: {dim} }} ")).collect();
        let values: String = values.iter().map(|value| format!("int_val: {value} ")).collect();
        format!(
            "node {{ name: \"{name}\" op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_INT32
             tensor_shape {{ {dims} }} {values} }} }} }} }}"
        )
    };
    let placeholder = "node { name: \"x\" op: \"Placeholder\" attr { key: \"dtype\" value { type: DT_FLOAT } }
        attr { key: \"shape\" value { shape { dim { size: 2 } dim { size: 3 } } } } }";
    let drawn = |nodes: &str, x: &[f32]| {
        let graph = Graph::read(format!("{placeholder} {nodes}").as_bytes(), "g.pbtxt").unwrap();
        let lowered = lower(&graph, &Choice { name: Some("y".to_string()), size_of: &|_, _| None }).unwrap();
        verify(&lowered.module).unwrap();
        let mut inputs: Vec<Literal> = lowered.roles.inputs.iter().map(|_| Literal::from_elements([2, 3], x)).collect();
        inputs.extend(lowered.roles.has_random_state.then(|| Literal::from_elements([2], &[1u64, 2])));
        fixtures::values(&run::run(&lowered.module, &inputs).unwrap()[0])
    };
    let shuffle = "node { name: \"y\" op: \"RandomShuffle\" input: \"x\" }";
    let rows = drawn(shuffle, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert!(rows == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] || rows == [4.0, 5.0, 6.0, 1.0, 2.0, 3.0], "{rows:?}");
    let classes = constant("n", &[], &[4]) + "node { name: \"y\" op: \"Multinomial\" input: \"x\" input: \"n\" }";
    let far = -1e4;
    assert_eq!(drawn(&classes, &[0.0, far, far, far, far, 0.0]), [0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0]);
    let whole = constant("dims", &[1], &[9])
        + &constant("seed", &[2], &[5, 6])
        + &constant("low", &[], &[3])
        + &constant("high", &[], &[5])
        + "node { name: \"y\" op: \"StatelessRandomUniformInt\" input: \"dims\" input: \"seed\" input: \"low\"
           input: \"high\" attr { key: \"dtype\" value { type: DT_INT32 } } }";
    let numbers = drawn(&whole, &[]);
    assert!(numbers.len() == 9 && numbers.iter().all(|x| [3.0, 4.0].contains(x)), "{numbers:?}");
    // As a SavedModel has it, which leaves out a dtype of f32.
    let shares = constant("dims", &[1], &[9])
        + &constant("seed", &[2], &[5, 6])
        + "node { name: \"y\" op: \"StatelessRandomUniform\" input: \"dims\" input: \"seed\" }";
    let numbers = drawn(&shares, &[]);
    assert!(numbers.len() == 9 && numbers.iter().all(|x| (0.0..1.0).contains(x)), "{numbers:?}");
}

/// A key and a counter draw what their seed does.
#[test]
fn draws_by_key_and_counter_are_those_of_the_seed() {
    let constant = |name: &str, values: &str| {
        let n = values.split_whitespace().count() / 2;
        format!(
            "node {{ name: \"{name}\" op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_INT32
             tensor_shape {{ dim {{ size: {n} }} }} {values} }} }} }} }}"
        )
    };
    let begun = constant("dims", "int_val: 4000")
        + &constant("seed", "int_val: 5 int_val: 6")
        + "node { name: \"key\" op: \"StatelessRandomGetKeyCounter\" input: \"seed\" }
           node { name: \"alg\" op: \"StatelessRandomGetAlg\" }";
    let drawn = |op: &str, inputs: &str| {
        let text = format!("{begun} node {{ name: \"y\" op: \"{op}\" input: \"dims\" {inputs} }}");
        computed(&text, &[], "y")
    };
    for op in ["StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"] {
        let numbers = drawn(op, "input: \"seed\"");
        let by_key = drawn(&format!("{op}V2"), "input: \"key\" input: \"key:1\" input: \"alg\"");
        assert_eq!(numbers, by_key, "{op}");
        let n = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / n;
        let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        // Normal numbers within two deviations have a variance of 0.774.
        let (at, spread) = match op {
            "StatelessRandomUniform" => (0.5, 1.0 / 12.0),
            "StatelessRandomNormal" => (0.0, 1.0),
            _ => (0.0, 0.774),
        };
        assert!((mean - at).abs() < 0.1 && (variance / spread - 1.0).abs() < 0.1, "{op}: {mean}, {variance}");
        assert!(op != "StatelessTruncatedNormal" || numbers.iter().all(|x| x.abs() <= 2.0), "{op}");
    }
}

/// Other classes are drawn than TensorFlow draws, and how often each was to be expected is as there.
#[test]
fn sampled_classes_have_their_expected_counts() {
    let sampled = |op: &str, is_unique: bool, n: usize, n_classes: usize| {
        let text = format!(
            "node {{ name: \"labels\" op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_INT64
               tensor_shape {{ dim {{ size: 1 }} dim {{ size: 2 }} }} int64_val: 0 int64_val: 3 }} }} }} }}
             node {{ name: \"y\" op: \"{op}\" input: \"labels\" attr {{ key: \"num_true\" value {{ i: 2 }} }}
               attr {{ key: \"num_sampled\" value {{ i: {n} }} }} attr {{ key: \"unique\" value {{ b: {is_unique} }} }}
               attr {{ key: \"range_max\" value {{ i: {n_classes} }} }} }}"
        );
        let graph = Graph::read(text.as_bytes(), "g.pbtxt").unwrap();
        let lowered = lower(&graph, &Choice { name: Some("y:0,y:1,y:2".to_string()), size_of: &|_, _| None }).unwrap();
        verify(&lowered.module).unwrap();
        let results = run::run(&lowered.module, &[Literal::from_elements([2], &[5u64, 6])]).unwrap();
        results.iter().take(3).map(fixtures::values).collect::<Vec<Vec<f64>>>()
    };
    let is_near = |a: f64, b: f64| (a - b).abs() < 1e-5;
    // All classes, each once: the draws that it took are a whole number.
    for op in ["UniformCandidateSampler", "LogUniformCandidateSampler"] {
        let results = sampled(op, true, 4, 4);
        let mut classes = results[0].clone();
        classes.sort_by(f64::total_cmp);
        assert_eq!(classes, [0.0, 1.0, 2.0, 3.0], "{op}");
        for (class, expected) in results[0].iter().zip(&results[2]) {
            let at_label = [(0.0, 0), (3.0, 1)].into_iter().find(|(label, _)| label == class);
            assert!(at_label.is_none_or(|(_, at)| is_near(results[1][at], *expected)), "{op}: {results:?}");
        }
    }
    let results = sampled("UniformCandidateSampler", true, 4, 4);
    let n_draws = (1.0 - results[1][0]).ln() / 0.75f64.ln();
    let is_whole = n_draws > 4.5 && (n_draws - n_draws.round()).abs() < 1e-3;
    assert!(is_whole || is_near(results[1][0], 1.0), "{n_draws}: {results:?}");
    // As many as are asked for: the probability times their number.
    let results = sampled("LogUniformCandidateSampler", false, 20_000, 10);
    let share = |ratio: f64| ratio.ln() / 11f64.ln();
    assert!(results[0].iter().all(|class| (0.0..10.0).contains(class)));
    let n_first = results[0].iter().filter(|class| **class == 0.0).count() as f64;
    assert!((n_first / 20_000.0 - share(2.0)).abs() < 0.02, "{n_first}");
    assert!(is_near(results[1][0] / 20_000.0, share(2.0)) && is_near(results[1][1] / 20_000.0, share(1.25)));
}

/// One update of optimizers that no training step of `data` has, of variable and slots, by the formulas of TensorFlow's kernels.
#[test]
fn rarer_optimizers_update_as_their_kernels_do() {
    type Case<'a> = (&'a str, &'a [f32], &'a [[f64; 3]]);
    let m = [0.12, -0.24, 0.25];
    let cases: [Case<'_>; 6] = [
        (
            "ResourceApplyAdaMax",
            &[0.81, 0.1, 0.9, 0.99, 1e-7],
            &[[0.8724083, -1.7894737, -0.3930266], m, [0.495, 0.6, 0.297]],
        ),
        (
            "ResourceApplyAdamWithAmsgrad",
            &[0.81, 0.9801, 0.1, 0.9, 0.99, 1e-7],
            &[[0.9873481, -1.9769957, 0.0161115], m, [0.4959, 0.3996, 0.2974], [0.4959, 0.6, 0.3]],
        ),
        ("ResourceApplyAddSign", &[0.1, 1.0, 0.9, 0.9], &[[0.943, -1.886, 0.052], m]),
        ("ResourceApplyPowerSign", &[0.1, 1.0, 0.9, 0.9], &[[0.9262119, -1.8524238, 0.0581314], m]),
        ("ResourceApplyProximalGradientDescent", &[0.1, 0.5, 0.2], &[[0.9019608, -1.8529412, 0.0196078]]),
        ("ResourceApplyProximalAdagrad", &[0.1, 0.5, 0.2], &[[0.8731149, -1.831797, 0.0], [0.59, 0.76, 0.34]]),
    ];
    let tensor = |name: &str, dims: &str, values: &[f32]| {
        let values: String = values.iter().map(|value| format!("float_val: {value} ")).collect();
        format!(
            "node {{ name: \"{name}\" op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_FLOAT
             tensor_shape {{ {dims} }} {values} }} }} }} }}"
        )
    };
    let squares = [0.5f32, 0.4, 0.3];
    for (op, scalars, expected) in cases {
        let second = if op.ends_with("Adagrad") { squares } else { [0.1, -0.2, 0.3] };
        let state = [[1.0f32, -2.0, 0.05], second, squares, [0.2, 0.6, 0.3]];
        let variables = (0..expected.len()).map(|at| {
            format!(
                "node {{ name: \"v{at}\" op: \"VarHandleOp\" attr {{ key: \"dtype\" value {{ type: DT_FLOAT }} }}
                 attr {{ key: \"shape\" value {{ shape {{ dim {{ size: 3 }} }} }} }} }}"
            )
        });
        let numbers = scalars.iter().enumerate().map(|(at, value)| tensor(&format!("s{at}"), "", &[*value]));
        let names = (0..expected.len()).map(|at| format!("v{at}")).chain((0..scalars.len()).map(|at| format!("s{at}")));
        let inputs: String = names.chain(["grad".to_string()]).map(|name| format!("input: \"{name}\" ")).collect();
        let text: String = variables
            .chain(numbers)
            .chain([tensor("grad", "dim { size: 3 }", &[0.3, -0.6, -0.2])])
            .chain([format!("node {{ name: \"step\" op: \"{op}\" {inputs} }}")])
            .collect();
        let graph = Graph::read(text.as_bytes(), "g.pbtxt").unwrap();
        let lowered = lower(&graph, &Choice { name: Some("step".to_string()), size_of: &|_, _| None })
            .unwrap_or_else(|error| panic!("{op}: {error}"));
        verify(&lowered.module).unwrap();
        let place = |name: &str| name.trim_start_matches('v').parse::<usize>().unwrap();
        let arguments: Vec<Literal> = lowered
            .roles
            .variables
            .iter()
            .map(|variable| Literal::from_elements([3], &state[place(&variable.name)]))
            .collect();
        let results = run::run(&lowered.module, &arguments).unwrap();
        assert_eq!(results.len(), expected.len(), "{op}");
        for (result, role) in results.iter().zip(&lowered.roles.results) {
            let values = fixtures::values(result);
            let expected = expected[place(&role.name)];
            let is_near = values.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(is_near, "{op} {}: {values:?}, expected {expected:?}", role.name);
        }
    }
}

/// Ops that no recorded case has, by reason.
const NOT_RECORDED: [(&str, &[&str]); 8] = [
    (
        "numbers of another generator; `draws_are_of_their_distributions` and the tests beside it look at them",
        &[
            "LogUniformCandidateSampler",
            "Multinomial",
            "RandomShuffle",
            "RandomStandardNormal",
            "RandomUniform",
            "RandomUniformInt",
            "StatelessMultinomial",
            "StatelessRandomGetAlg",
            "StatelessRandomGetKeyCounter",
            "StatelessRandomGetKeyCounterAlg",
            "StatelessRandomNormal",
            "StatelessRandomNormalV2",
            "StatelessRandomUniform",
            "StatelessRandomUniformInt",
            "StatelessRandomUniformIntV2",
            "StatelessRandomUniformV2",
            "StatelessTruncatedNormal",
            "StatelessTruncatedNormalV2",
            "TruncatedNormal",
            "UniformCandidateSampler",
        ],
    ),
    (
        "marks of a TPU program, and sums over its cores, which no CPU session runs",
        &[
            "CrossReplicaSum",
            "TPUCompilationResult",
            "TPUReplicateMetadata",
            "TPUReplicatedInput",
            "TPUReplicatedOutput",
        ],
    ),
    ("ops of XLA alone, which no session without it runs", &["OptimizationBarrier", "XlaEinsum"]),
    ("the result of a function's own graph, which a library's function names instead", &["_Retval"]),
    ("nodes without a value", &["DestroyResourceOp", "NoOp"]),
    ("its repeated indices stand elsewhere; `recurrent` of the training tests has it", &["Unique"]),
    ("loops over references, which no function of TensorFlow writes", &["RefEnter", "RefNextIteration"]),
    ("no op of TensorFlow 2.15, or a form that its newer ones took the place of", &["ApplyKerasMomentum", "Variable"]),
];

#[test]
fn every_op_is_in_a_fixture_or_has_a_reason() {
    let mut recorded = BTreeSet::new();
    for name in ["ops.pb", "lists.pb", "more.pb", "images.pb", "rest.pb", "updates.pb"] {
        let graph = Graph::read(&unpacked(name), name).unwrap();
        let bodies = graph.functions.values().map(|function| &function.body).chain([&graph.body]);
        recorded.extend(bodies.flat_map(|body| &body.nodes).map(|node| node.op.clone()));
    }
    let reasons: BTreeSet<&str> = NOT_RECORDED.iter().flat_map(|(_, ops)| ops.iter().copied()).collect();
    let known: BTreeSet<&str> = known_ops().into_iter().collect();
    let is_missing = |op: &&&str| !recorded.contains(**op) && !reasons.contains(**op);
    let missing: Vec<&&str> = known.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "record these by `make.py`, or say why not: {missing:?}");
    let is_needless = |op: &&&str| recorded.contains(**op) || !known.contains(**op);
    let needless: Vec<&&str> = reasons.iter().filter(is_needless).collect();
    assert!(needless.is_empty(), "these are recorded, or have no rule: {needless:?}");
}
