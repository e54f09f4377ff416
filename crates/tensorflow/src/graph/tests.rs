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
