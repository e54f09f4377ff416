//! A refusal that no file of the schemas reaches.

use super::*;

/// No message of the schemas holds itself; tests of text and of binary files meet the other problems.
#[test]
fn messages_that_nest_too_deep_are_told() {
    assert_eq!(
        refused(ScanProblem::Deep, &schema::GRAPH, "g.pb".to_string()).to_string(),
        "g.pb: its messages nest too deep\nhelp: it may be damaged, or another kind of file: `tf.io.write_graph`, a \
         Saver's .meta and a SavedModel's saved_model.pb are read"
    );
}

/// A node whose op is a function has that function's outputs, by their names; the first was taken for each.
#[test]
fn outputs_of_a_called_function_are_found_by_name() {
    let argument = |name: &str| format!("input_arg {{ name: \"{name}\" type: DT_FLOAT }}");
    let output = |name: &str| format!("output_arg {{ name: \"{name}\" type: DT_FLOAT }} ");
    let returned = |name: &str, tensor: &str| format!("ret {{ key: \"{name}\" value: \"{tensor}\" }} ");
    let pair = format!(
        "function {{ signature {{ name: \"pair\" {} {}{} }} {}{} }}",
        argument("x"),
        output("first"),
        output("second"),
        returned("first", "x"),
        returned("second", "x")
    );
    let outer = |tensor: &str| {
        let call = "node_def { name: \"call\" op: \"pair\" input: \"x\" }";
        let signature = format!("signature {{ name: \"outer\" {} {}}}", argument("x"), output("y"));
        format!("function {{ {signature} {call} {}}}", returned("y", tensor))
    };
    let read = |tensor: &str| {
        let text = format!("node {{ name: \"n\" op: \"NoOp\" }} library {{ {} {pair} }}", outer(tensor));
        Graph::read(text.as_bytes(), "g.pbtxt")
    };
    for (tensor, expected) in [("call:first:0", 0), ("call:second:0", 1)] {
        let graph = read(tensor).unwrap();
        assert_eq!(graph.functions["outer"].returns[0].output, expected, "{tensor}");
    }
    let error = read("call:third:0").unwrap_err().to_string();
    assert!(error.contains("function `outer` returns `call:third:0`, which none of its nodes gives"), "{error}");
}
