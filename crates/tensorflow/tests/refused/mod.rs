//! Graphs that cannot be lowered, in short: each is refused at its node, with a whole message.

mod flow;
mod ops;

use bf16scope_tensorflow::{Choice, Graph, lower};

/// A graph, the message after the node's name, and the help; none is that of [`CHECK`].
///
/// The parts of a graph are separated by `; `: `x: FLOAT[2,3]` is an input, `c = INT32[2] 1 2` a constant, and
/// `y Add x c N=int:2` a node with its inputs and attributes. `fn f a:FLOAT -> o:FLOAT=y:z:0` is a function, and
/// `f/y Add a a` one of its nodes.
pub type Refused = (&'static str, &'static str, &'static str);

/// The help for what TensorFlow refuses too.
const CHECK: &str = "check the graph: TensorFlow itself runs it only with such inputs";

fn dims(text: &str) -> String {
    let sizes = text.split(',').filter(|size| !size.is_empty());
    sizes.map(|size| format!("dim {{ size: {size} }} ")).collect()
}

fn attribute((key, value): (&str, &str)) -> String {
    let (kind, value) = value.split_once(':').unwrap();
    let value = match kind {
        "int" => format!("i: {value}"),
        "ints" => format!("list {{ {}}}", value.split(',').map(|n| format!("i: {n} ")).collect::<String>()),
        "bool" => format!("b: {value}"),
        "text" => format!("s: {value:?}"),
        "type" => format!("type: DT_{value}"),
        "types" => format!("list {{ type: DT_{value} }}"),
        "shape" => format!("shape {{ {}}}", dims(value)),
        "shapes" => format!("list {{ shape {{ {}}} }}", dims(value)),
        "func" => format!("func {{ name: {value:?} }}"),
        _ => panic!("{key}: {kind}"),
    };
    format!("attr {{ key: {key:?} value {{ {value} }} }} ")
}

/// `FLOAT[2,3] 1 2`: the dtype, the dims, and the values.
fn typed(text: &str) -> (&str, &str, &str) {
    let (dtype, rest) = text.split_once('[').unwrap();
    let (dims, values) = rest.split_once(']').unwrap();
    (dtype, dims, values)
}

fn node(text: &str) -> String {
    let dtype_of = |dtype: &str| attribute(("dtype", &format!("type:{dtype}")));
    if let Some((name, input)) = text.split_once(": ") {
        let (dtype, dims, _) = typed(input);
        let shape = attribute(("shape", &format!("shape:{dims}")));
        return format!("{{ name: {name:?} op: \"Placeholder\" {}{shape}}}\n", dtype_of(dtype));
    }
    if let Some((name, constant)) = text.split_once(" = ") {
        let (dtype, shape, values) = typed(constant);
        let field = match dtype {
            "FLOAT" => "float_val",
            "INT64" => "int64_val",
            "BOOL" => "bool_val",
            "STRING" => "string_val",
            _ => "int_val",
        };
        let values: String = values.split_whitespace().map(|value| format!("{field}: {value} ")).collect();
        let tensor = format!("tensor {{ dtype: DT_{dtype} tensor_shape {{ {}}} {values}}}", dims(shape));
        let value = format!("attr {{ key: \"value\" value {{ {tensor} }} }}");
        return format!("{{ name: {name:?} op: \"Const\" {}{value} }}\n", dtype_of(dtype));
    }
    let (attributes, words): (Vec<&str>, Vec<&str>) = text.split(' ').partition(|word| word.contains('='));
    let inputs: String = words[2..].iter().map(|input| format!("input: {input:?} ")).collect();
    let of_f32 = (!attributes.iter().any(|word| word.starts_with("T="))).then_some("T=type:FLOAT");
    let attributes = attributes.into_iter().chain(of_f32);
    let attributes: String = attributes.map(|word| attribute(word.split_once('=').unwrap())).collect();
    format!("{{ name: {:?} op: {:?} {inputs}{attributes}}}\n", words[0], words[1])
}

/// A function's signature and its results.
fn signature(text: &str) -> String {
    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (arguments, results) = rest.split_once("->").unwrap_or((rest, ""));
    let described = |key: &str, word: &str| {
        let (name, dtype) = word.split('=').next().unwrap().split_once(':').unwrap();
        format!("{key} {{ name: {name:?} type: DT_{dtype} }} ")
    };
    let mut text = format!("signature {{ name: {name:?} ");
    arguments.split_whitespace().for_each(|word| text += &described("input_arg", word));
    results.split_whitespace().for_each(|word| text += &described("output_arg", word));
    text += "} ";
    for word in results.split_whitespace() {
        let (name, value) = (word.split(':').next().unwrap(), word.split_once('=').unwrap().1);
        text += &format!("ret {{ key: {name:?} value: {value:?} }} ");
    }
    text
}

fn graph(parts: &str) -> String {
    let (mut text, mut functions) = (String::new(), Vec::<(&str, String)>::new());
    for part in parts.split("; ") {
        let first = part.split(' ').next().unwrap();
        if let Some(function) = part.strip_prefix("fn ") {
            functions.push((function.split(' ').next().unwrap(), signature(function)));
        } else if let Some((name, _)) = first.split_once('/') {
            let function = functions.iter_mut().find(|(other, _)| *other == name).unwrap();
            function.1 += &format!("node_def {}", node(&part[name.len() + 1..]));
        } else {
            text += &format!("node {}", node(part));
        }
    }
    let functions: String = functions.iter().map(|(_, text)| format!("function {{ {text}}} ")).collect();
    format!("{text}library {{ {functions}}}")
}

#[test]
fn what_a_node_cannot_take_is_refused_in_a_whole_message() {
    let mut wrong = Vec::new();
    for (parts, message, help) in ops::OPS.iter().chain(flow::FLOW) {
        let read = Graph::read(graph(parts).as_bytes(), "g").unwrap_or_else(|error| panic!("{parts}: {error}"));
        let Err(error) = lower(&read, &Choice { name: None, size_of: &|_, _| None }) else {
            wrong.push(format!("{parts} is lowered"));
            continue;
        };
        let error = error.to_string();
        let (first, last) = (error.lines().next().unwrap(), error.lines().last().unwrap().trim_start());
        let help = if help.is_empty() { CHECK } else { help };
        if !first.ends_with(&format!(": {message}")) || last != format!("help: {help}") {
            wrong.push(format!("{parts}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A `while_loop` of version 1 with dropout was refused, as its nodes are not among those that its exit reads.
#[test]
fn a_loop_that_draws_numbers_carries_their_state() {
    let graph = graph(
        "x: FLOAT[2]; z = INT32[] 0; ten = INT32[] 10; one = INT32[] 1; d = INT32[1] 2; e Enter x frame_name=text:f; i \
         Enter z frame_name=text:f T=type:INT32; k Enter ten frame_name=text:f is_constant=bool:true T=type:INT32; o \
         Enter one frame_name=text:f is_constant=bool:true T=type:INT32; q Enter d frame_name=text:f \
         is_constant=bool:true T=type:INT32; m Merge e n N=int:2; j Merge i w N=int:2 T=type:INT32; l Less j k \
         T=type:INT32; c LoopCond l; s Switch m c; t Switch j c T=type:INT32; r RandomUniform q dtype=type:FLOAT \
         T=type:INT32; a Add s:1 r; n NextIteration a; u Identity t:1 T=type:INT32; v Add u o T=type:INT32; w \
         NextIteration v T=type:INT32; y Exit s",
    );
    let read = Graph::read(graph.as_bytes(), "g").unwrap();
    let lowered = lower(&read, &Choice { name: Some("y".to_string()), size_of: &|_, _| None }).unwrap();
    bf16scope_hlo::verify(&lowered.module).unwrap();
    assert!(lowered.roles.has_random_state);
    assert_eq!(lowered.roles.results.len(), 2);
}
