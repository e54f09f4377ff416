//! Whole messages of errors.

use super::*;

#[test]
fn the_file_and_the_remedy_are_named() {
    let (file, message, help) = ("model.meta".to_string(), "no nodes".to_string(), "write it anew".to_string());
    let errors = [
        (
            GraphError::Damaged { file: file.clone(), message: message.clone() },
            "model.meta: no nodes\nhelp: it may be damaged, or another kind of file: `tf.io.write_graph`, a Saver's .meta \
             and a SavedModel's saved_model.pb are read",
        ),
        (
            GraphError::Text { file: file.clone(), line: 3, message },
            "model.meta:3: no nodes\nhelp: the text is read as protocol buffers print it; write it anew, or write the \
             binary form",
        ),
        (
            GraphError::Large { file: file.clone(), limit: 1024 },
            "model.meta: decoded it would take more than 1024 bytes\nhelp: freeze the part that is to be run into a graph \
             of its own",
        ),
        (
            GraphError::Size { file, name: "x".to_string(), number: 0, shape: "f32[?,4]".to_string(), help },
            "model.meta: input `x` (parameter 0) is f32[?,4], and HLO's shapes are static\nhelp: write it anew",
        ),
    ];
    for (error, expected) in errors {
        assert_eq!(error.to_string(), expected);
    }
}
