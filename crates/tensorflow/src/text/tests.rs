//! Texts become messages, and errors of syntax name their line.

use prost::Message as _;

use super::*;
use crate::messages::{AttrKind, GraphDef};
use crate::schema::GRAPH;

#[test]
fn a_text_is_the_message_it_writes() {
    let text = r#"
        # of a test
        node { name: "a" 'b' op: "Const"
          attr { key: "dtype" value { type: DT_BFLOAT16 } }
          attr { key: "value" value { tensor { dtype: DT_INT32 tensor_shape { dim { size: -1 } } int_val: [1, -2] } } }
          attr < key: "s" value < s: "\001x\xff\n\"" > >
          experimental_debug_info { original_node_names: "z" }
        }
        versions { producer: 1808 }"#;
    let graph = GraphDef::decode(&to_binary(text, &GRAPH).unwrap()[..]).unwrap();
    let node = &graph.node[0];
    assert_eq!((node.name.as_str(), node.op.as_str(), node.attr.len()), ("ab", "Const", 3));
    assert_eq!(node.attr["dtype"].value, Some(AttrKind::Type(14)));
    assert_eq!(node.attr["s"].value, Some(AttrKind::S(b"\x01x\xff\n\"".to_vec())));
    let Some(AttrKind::Tensor(tensor)) = &node.attr["value"].value else { panic!("{node:?}") };
    assert_eq!((tensor.int_val.as_slice(), tensor.tensor_shape.as_ref().unwrap().dim[0].size), (&[1, -2][..], -1));
}

#[test]
fn a_syntax_error_names_its_line() {
    let error = |text: &str| to_binary(text, &GRAPH).map_err(|problem| (problem.line, problem.message)).unwrap_err();
    assert_eq!(error("node {\n name: a }"), (2, "found `a }`, expected text in quotes".to_string()));
    assert_eq!(
        error("node {\n name: \"a\n }"),
        (2, r#"found `\"a`, expected text with a quote at its end"#.to_string())
    );
    assert_eq!(error("node {"), (1, "found the end of the text, expected the name of a field or `}`".to_string()));
    for (text, expected) in [
        ("node [", "found `[`, expected `:` or `{`"),
        ("[type { }", "found `{ }`, expected `]`"),
        ("node { name { } }", "found `{ } }`, expected a value, not a message"),
        ("node: \"a\"", "found the end of the text, expected another kind of value than text before it"),
        ("node { name: \"\\q\" }", r#"found `\"\\q\" }`, expected text with escapes of C"#),
        ("node { attr { value { i: ? } } }", "found `? } } }`, expected a whole number, or true or false"),
        ("node { attr { value { type: ? } } }", "found `? } } }`, expected a dtype such as DT_FLOAT"),
        ("node { attr { value { f: ? } } }", "found `? } } }`, expected a number"),
        ("node: 1", "found `1`, expected `{`"),
        ("other: ?", "found `?`, expected a value"),
    ] {
        assert_eq!(error(text), (1, expected.to_string()), "{text}");
    }
    let deep = "x {".repeat(100);
    assert!(error(&deep).1.ends_with("expected at most 64 messages in each other"));
}
