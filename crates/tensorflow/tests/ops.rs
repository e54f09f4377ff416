//! Compares each op with TensorFlow's results on random inputs, ranks and paddings (`data`).

mod fixtures;
mod run;

use bf16scope_hlo::{Literal, verify};
use bf16scope_tensorflow::{Choice, Graph, lower};
use fixtures::{arrays, difference, unpacked};

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

fn compare(file: &str) {
    let (arrays, terms) = arrays(file);
    let terms: Vec<(String, f64)> = terms.into_iter().map(|(name, terms)| (name, terms.parse().unwrap())).collect();
    let graph = Graph::read(&unpacked(&format!("{file}.pb")), file).unwrap();
    let mut wrong = Vec::new();
    for (case, terms) in &terms {
        let outs: Vec<String> =
            (0..).map(|n| format!("{case}/out{n}")).take_while(|name| arrays.contains_key(name)).collect();
        assert!(!outs.is_empty(), "{case}");
        let choice = Choice { name: Some(outs.join(",")), size_of: &|_, _| None };
        let lowered = match lower(&graph, &choice) {
            Ok(lowered) => lowered,
            Err(error) => {
                wrong.push(format!("{case}: {error}"));
                continue;
            }
        };
        if let Err(errors) = verify(&lowered.module) {
            wrong.push(format!("{case}: {errors}"));
            continue;
        }
        let inputs: Vec<Literal> = lowered.roles.inputs.iter().map(|input| arrays[&input.name].clone()).collect();
        let results = match run::run(&lowered.module, &inputs) {
            Ok(results) => results,
            Err(error) => {
                wrong.push(format!("{case}: {error}"));
                continue;
            }
        };
        assert_eq!(results.len(), outs.len(), "{case}");
        for (name, ours) in outs.iter().zip(&results) {
            // Eight roundings: four for each of two implementations of a function of one element.
            wrong.extend(difference(ours, &arrays[name], terms + 8.0).map(|text| format!("{name}: {text}")));
        }
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), terms.len(), wrong.join("\n"));
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
}
