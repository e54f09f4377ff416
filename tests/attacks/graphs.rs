//! Misuse of the graph builder: tensors of another graph, duplicate names, updates of another shape, and the like.

use bf16scope::graph::{Graph, Init, Operand, Tensor};
use bf16scope::hlo::ops::BinaryOp;
use bf16scope::hlo::{DType, Emitter, InstrId, Module, POISON, Shape};
use bf16scope::nn::{Dense, dense};
use bf16scope::optim::{Optimizer, Update};
use bf16scope::passes::grad::gradients;

/// The error of finishing `g`, without the line of this file that it names.
fn error(g: &Graph, outputs: &[(&str, &Tensor)]) -> String {
    let text = g.finish(outputs).unwrap_err().to_string();
    let file = format!("{}:", file!());
    let mut parts = text.split(&file);
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |all, part| all + "HERE" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// A graph with the f32[3] input `name` that is its second instruction.
fn graph(graph_name: &str, name: &str) -> (Graph, Tensor) {
    let g = Graph::new(graph_name);
    g.input("first", DType::F32, [3]);
    let x = g.input(name, DType::F32, [3]);
    (g, x)
}

const HELP: &str = "help: make it in the same graph; the body of a `scan` is a graph of its own: give the body an input \
                    for it, and `scan` the tensor as an `Operand::Carried`";

#[test]
fn tensors_of_two_graphs_do_not_mix() {
    type Mix = fn(&Tensor, &Tensor) -> Tensor;
    let mixes: [(&str, Mix); 10] = [
        ("add", |s, outer| s + outer),
        ("add", |s, outer| s + outer.sum(&[0])),
        ("compare", |s, outer| s.less(outer)),
        ("select", |s, outer| s.less(s).select(s, outer)),
        ("concatenate", |s, outer| Tensor::concatenate(&[s, outer], 0)),
        ("dot", |s, outer| s.dot(outer, bf16scope::hlo::ops::DotDims::default())),
        ("custom_vjp", |s, outer| s.tanh().with_custom_vjp(&[outer], |_, g| vec![g])),
        ("finish", |_, outer| outer.clone()),
        ("set_update", |s, outer| {
            s.graph().scope().variable("w", DType::F32, [3], Init::Ones);
            s.graph().set_update(0, outer);
            s.clone()
        }),
        ("scan", |s, outer| {
            let body = Graph::new("turn");
            let carried = body.input("s", DType::F32, [3]);
            let body = body.finish(&[("s", &carried)]).unwrap();
            s.graph().scan(2, &body.module, &[Operand::Carried(outer)]).remove(0)
        }),
    ];
    for (what, mix) in mixes {
        let ((main, outer), (body, s)) = (graph("main", "outer"), graph("body", "s"));
        let result = mix(&s, &outer);
        let inner_error = error(&body, &[("result", &result)]);
        let belongs = "belongs to the graph `main`, expected a tensor of `body`";
        assert!(inner_error.starts_with(what) && inner_error.contains(belongs), "{what}: {inner_error}");
        assert!(inner_error.contains("at HERE") && inner_error.ends_with(HELP), "{what}: {inner_error}");
        // Whichever is finished says it.
        assert_eq!(error(&main, &[("outer", &outer)]), inner_error);
    }
}

#[test]
fn the_error_of_mixing_names_both_graphs_and_what_to_do() {
    let ((_, outer), (body, s)) = (graph("main", "outer"), graph("body", "s"));
    assert_eq!(
        error(&body, &[("sum", &(&s + &outer))]),
        format!(
            "add: outer belongs to the graph `main`, expected a tensor of `body`\n  operand 0: f32[3] s\n  operand 1: \
             f32[3] outer\n  at HERE\n  {HELP}"
        )
    );
    let ((_, outer), (body, s)) = (graph("g", "outer"), graph("g", "s"));
    let text = error(&body, &[("sum", &(&s + &outer))]);
    assert!(
        text.starts_with("add: outer belongs to another graph of the name `g`, expected a tensor of `g`\n"),
        "{text}"
    );
}

#[test]
fn layers_and_gradients_take_tensors_of_one_graph() {
    let main = Graph::new("main");
    let outer = main.input("outer", DType::F32, [4, 3]);
    let body = Graph::new("body");
    let y = dense(&body.scope(), &outer, "head", &Dense { units: 2, ..Dense::default() });
    let text = error(&body, &[("y", &y)]);
    assert!(text.contains("belongs to the graph `body`, expected a tensor of `main`"), "{text}");
    assert!(text.contains("head/kernel") && text.contains("at HERE"), "{text}");

    let ((main, outer), (body, s)) = (graph("main", "outer"), graph("body", "s"));
    let failed = gradients(body.emitter(), &s.sum(&[0]), &[&outer.sum(&[0])]).unwrap_err().to_string();
    assert!(failed.contains("belongs to the graph `main`, expected a tensor of `body`"), "{failed}");
    assert!(failed.contains(&format!("at {}:", file!())), "{failed}");
    assert!(main.finish(&[]).is_err());
}

#[test]
fn an_id_of_no_instruction_is_an_error() {
    let (g, x) = graph("g", "x");
    let text = error(&g, &[("y", &(g.tensor(InstrId(99)) + x))]);
    assert_eq!(text, "tensor: instruction 99 was asked for, but the graph has 2 instructions\n  at HERE");
    let (g, _) = graph("g", "x");
    let text = error(&g, &[("y", &g.tensor(POISON))]);
    assert_eq!(text, "tensor: POISON was asked for, but the graph has 2 instructions\n  at HERE");

    let module = Module::new("m");
    let e = Emitter::new(module.clone(), module.entry);
    let x = e.parameter(0, &Shape::array(DType::F32, [3]));
    e.add(x, InstrId(8));
    assert_eq!(
        e.finish().unwrap_err().to_string(),
        "add: operand 1 is instruction 8, but there are 1\n  operand 0: f32[3] parameter.1\n  operand 1:  \n  help: an id \
         is one of the computation it was made in"
    );
}

#[test]
fn an_update_has_the_dtype_and_dims_of_its_variable() {
    let g = Graph::training("g");
    let w = g.scope().variable("w", DType::F32, [2, 3], Init::Ones);
    g.set_update(w.number, &w.value.sum(&[0]));
    assert_eq!(
        error(&g, &[]),
        "set_update: w is f32[2,3], but its new value is f32[3]\n  operand 0: f32[3] reduce\n  at HERE"
    );
    let g = Graph::training("g");
    let w = g.scope().variable("w", DType::F32, [2], Init::Ones);
    g.set_update(w.number, &w.value.cast(DType::BF16));
    assert_eq!(
        error(&g, &[]),
        "set_update: w is f32[2], but its new value is bf16[2]\n  operand 0: bf16[2] Cast\n  at HERE"
    );
    let g = Graph::training("g");
    let w = g.scope().variable("w", DType::F32, [2], Init::Ones);
    g.set_update(7, &w.value);
    assert_eq!(
        error(&g, &[]),
        "set_update: variable 7 was asked for, but there are 1\n  operand 0: f32[2] w\n  at HERE"
    );
}

#[test]
fn names_are_given_once_and_are_names() {
    let g = Graph::new("g");
    g.input("x", DType::F32, [3]);
    let x = g.input("x", DType::F32, [3]);
    assert_eq!(
        error(&g, &[("x", &x)]),
        "input: an input named x exists already\n  at HERE\n  help: give one of them another name, or open a scope with \
         `within` around each layer"
    );
    let help = "\n  at HERE\n  help: a name has at least one character, and no control characters";
    let g = Graph::new("g");
    let w = g.scope().variable("w\u{1b}[2J", DType::F32, [3], Init::Ones).value;
    assert_eq!(error(&g, &[("w", &w)]), format!("variable: \"w\\u{{1b}}[2J\" is not the name of a variable{help}"));
    let g = Graph::new("g");
    assert_eq!(
        error(&g, &[("x", &g.input("", DType::F32, [3]))]),
        format!("input: \"\" is not the name of an input{help}")
    );
}

#[test]
fn a_constant_that_is_another_number_in_its_dtype_is_an_error() {
    for (dtype, value, is_good) in [
        (DType::F16, 65504.0, true),
        (DType::F16, 1e9, false),
        (DType::F16, f64::INFINITY, true),
        (DType::BF16, 3.4e38, false),
        (DType::F32, -1e39, false),
        (DType::F32, f64::NAN, true),
        (DType::S32, 3.5, false),
        (DType::S32, f64::NAN, false),
        (DType::S8, 128.0, false),
        (DType::S8, -128.0, true),
        (DType::U8, -1.0, false),
        (DType::S32, f64::NEG_INFINITY, true),
        (DType::Pred, 2.0, false),
    ] {
        let (g, _) = graph("g", "x");
        let constant = g.scalar(dtype, value);
        match is_good {
            true => assert!(g.finish(&[("c", &constant)]).is_ok(), "{value} in {dtype}"),
            false => assert_eq!(
                error(&g, &[("c", &constant)]),
                format!(
                    "constant: constant: {value:?} is not a value of {dtype}\n  at HERE\n  help: use another dtype, or the value that is \
                     meant"
                )
            ),
        }
    }
}

#[test]
fn a_dtype_without_scalars_and_an_op_without_a_neutral_element_are_errors() {
    let (g, _) = graph("g", "x");
    let constant = g.scalar(DType::C64, 1.0);
    assert_eq!(
        error(&g, &[("c", &constant)]),
        "constant: constant: a constant of c64 was asked for, which has no scalar rule\n  at HERE"
    );
    let module = Module::new("m");
    let e = Emitter::new(module.clone(), module.entry);
    let x = e.parameter(0, &Shape::array(DType::F32, [3]));
    e.reduce(BinaryOp::Subtract, x, &[0]);
    assert_eq!(
        e.finish().unwrap_err().to_string(),
        "reduce: subtract has no neutral element to reduce from\n  operand 0: f32[3] parameter.1"
    );
}

#[test]
fn the_greatest_of_truths_starts_from_false() {
    // From the least number, which is not 0 and so true, it was true whatever was reduced.
    let (g, x) = graph("g", "x");
    let greatest = x.less(&x).max(&[0]);
    let module = g.finish(&[("any", &greatest)]).unwrap().module;
    let text = bf16scope::hlo::text::print(&module, &Default::default());
    assert!(text.contains("constant(false)") && !text.contains("constant(true)"), "{text}");
}

#[test]
fn an_optimizer_takes_one_gradient_of_the_variables_shape() {
    let attempt = |gradients: &dyn Fn(&Graph) -> Vec<(usize, Tensor)>| {
        let g = Graph::training("g");
        g.scope().variable("w", DType::F32, [2, 3], Init::Ones);
        let step = g.input("step", DType::S32, []);
        let update = Update { optimizer: Optimizer::SGD, ..Update::default() };
        update.emit(&g, &step, &gradients(&g));
        error(&g, &[])
    };
    let ones = |g: &Graph, dims: &[i64]| g.full(DType::F32, dims, 1.0);
    let operand = |shape: &str| format!("\n  operand 0: {shape} broadcast\n  at HERE");
    // [3] broadcasts to [2,3]: the update went on without a word.
    assert_eq!(
        attempt(&|g| vec![(0, ones(g, &[3]))]),
        "optimizer: the gradient of w is f32[3], expected f32[2,3]\n  operand 0: f32[2,3] w\n  operand 1: f32[3] \
         broadcast\n  at HERE\n  help: is it that of another variable?"
    );
    assert_eq!(
        attempt(&|g| vec![(0, ones(g, &[2, 3])), (0, ones(g, &[2, 3]))]),
        format!("optimizer: w has two gradients, expected one{}\n  help: add them up first", operand("f32[2,3]"))
    );
    assert_eq!(
        attempt(&|g| vec![(5, ones(g, &[2, 3]))]),
        format!("optimizer: variable 5 was asked for, but there are 1{}", operand("f32[2,3]"))
    );
}

#[test]
fn integers_start_below_zero_and_loops_count_in_s32() {
    assert_eq!(Init::Constant(-3.0).words(0, "n", &[1]), [(-3i64).cast_unsigned()]);
    let body = Graph::new("turn");
    let s = body.input("s", DType::F32, [3]);
    let body = body.finish(&[("s", &s)]).unwrap();
    let (g, x) = graph("g", "x");
    let last = g.scan(u32::MAX, &body.module, &[Operand::Carried(&x)]).remove(0);
    assert_eq!(
        error(&g, &[("x", &last)]),
        "scan: a scan has a trip count of 4294967295, expected at most 2147483647: it is counted in s32\n  operand 0: f32[3] \
         x\n  at HERE"
    );
}
