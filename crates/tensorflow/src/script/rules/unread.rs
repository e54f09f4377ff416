//! Constructs that no rule reads: what they do is known only when the script runs.

use super::{Line, Script, calls, has, is_import};

/// The constructs of a script, by name, each with the lines that have it.
pub(super) fn unread(script: &Script) -> Vec<(&'static str, Vec<u32>)> {
    // A call by its word, and what is listed.
    const CALLS: [(&str, &str); 13] = [
        ("exec", "exec"),
        ("eval", "eval"),
        ("getattr", "getattr"),
        ("setattr", "setattr"),
        ("globals", "globals"),
        ("__import__", "__import__"),
        ("import_module", "import_module"),
        ("py_func", "py_func"),
        ("py_function", "py_function"),
        ("numpy_function", "numpy_function"),
        ("variable_creator_scope", "variable_creator_scope"),
        ("import_graph_def", "import_graph_def"),
        ("import_meta_graph", "import_meta_graph"),
    ];
    let is_definition = |line: &Line| line.tokens.first().is_some_and(|token| token.name() == Some("def"));
    // `model.eval()` of PyTorch and `tensor.eval()` of a session evaluate no text.
    let is_method =
        |line: &Line, word: &str| line.tokens.windows(2).any(|pair| pair[0].is(".") && pair[1].name() == Some(word));
    let lines_of = |is: &dyn Fn(&Line) -> bool| -> Vec<u32> {
        script.lines().iter().filter(|line| is(line)).map(|line| line.number).collect()
    };
    let called = CALLS.iter().map(|(word, name)| {
        let is_builtin = matches!(*word, "exec" | "eval");
        let has_it = |line: &Line| calls(line, word) && !is_definition(line) && !(is_builtin && is_method(line, word));
        (*name, lines_of(&has_it))
    });
    let getters = ("custom_getter", lines_of(&|line| has(line, "custom_getter") && !has(line, "bfloat16_scope")));
    let stars =
        ("import *", lines_of(&|line| is_import(line) && line.tokens.last().is_some_and(|token| token.is("*"))));
    let all: Vec<(&'static str, Vec<u32>)> = called.chain([getters, stars]).collect();
    all.into_iter().filter(|(_, lines)| !lines.is_empty()).collect()
}
