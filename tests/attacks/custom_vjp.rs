//! Custom VJPs: attached to the wrong value, with a wrong count or shape, or lost.

use bf16scope::graph::{Graph, Init, Tensor};
use bf16scope::hlo::{CustomVjp, DType, Emitter, InstrId, Module, POISON, Shape, proto, text};
use bf16scope::nn::{Gelu, gelu};
use bf16scope::passes::{
    PassError,
    grad::{Config, gradients, run},
};
use std::rc::Rc;

/// The same text without the line of this file that it names.
fn without_line(text: &str) -> String {
    let file = format!("{}:", file!());
    let mut parts = text.split(&file);
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |all, part| all + "HERE" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// `x` f32[3] and, with f32[] `loss` the sum of what `of` makes of it, the gradient of x.
fn gradient_of_x(of: impl Fn(&Graph, &Tensor) -> Tensor) -> Result<(Graph, Tensor), PassError> {
    let g = Graph::new("attack");
    let x = g.input("x", DType::F32, [3]);
    let loss = of(&g, &x).sum(&[0]);
    let gradient = gradients(g.emitter(), &loss, &[&x])?[0];
    let gradient = g.tensor(gradient);
    Ok((g, gradient))
}

fn error_of(of: impl Fn(&Graph, &Tensor) -> Tensor) -> String {
    without_line(&gradient_of_x(of).map(|(_, gradient)| gradient).unwrap_err().to_string())
}

/// The opcodes that `tensor` is computed by, and the constants it holds.
fn made_of(g: &Graph, tensor: &Tensor) -> String {
    g.emitter().with_module(|module| {
        let mut pending = vec![tensor.id];
        let mut all = Vec::new();
        while let Some(id) = pending.pop() {
            let instr = module.entry().instr(id);
            all.push(instr.op.opcode().into_owned());
            pending.extend(&instr.operands);
        }
        all.join(" ")
    })
}

#[test]
fn a_rule_on_an_identity_is_a_rule_on_a_value_of_its_own() {
    // In f32 there is no cast: the rule was attached to h itself, and the gradient was zeros.
    let triple = |e: &Emitter, g: InstrId| vec![e.mul_scalar(g, 3.0)];
    for same in [|h: &Tensor| h.cast(DType::F32), |h: &Tensor| h.reshape([3]), |h: &Tensor| h.transpose(&[0])] {
        let (g, gradient) = gradient_of_x(|_, h| same(h).with_custom_vjp(&[h], triple)).unwrap();
        assert_eq!(made_of(&g, &gradient), "multiply broadcast constant broadcast constant");
    }
}

#[test]
fn other_readers_of_the_same_value_keep_their_gradient() {
    let zero = |e: &Emitter, g: InstrId| vec![e.zeros_like(g)];
    let (g, gradient) = gradient_of_x(|_, x| {
        let y = x.tanh();
        // A handle on the same instruction, read without the rule.
        y.with_custom_vjp(&[x], zero) + y
    })
    .unwrap();
    assert!(made_of(&g, &gradient).contains("tanh"), "{}", made_of(&g, &gradient));
}

#[test]
fn a_second_rule_is_for_the_value_it_is_given_to() {
    let times = |factor: f64| move |e: &Emitter, g: InstrId| vec![e.mul_scalar(g, factor)];
    let (g, gradient) =
        gradient_of_x(|_, x| x.tanh().with_custom_vjp(&[x], times(2.0)).with_custom_vjp(&[x], times(3.0))).unwrap();
    let entry = g.emitter().with_module(|module| text::print(module, &text::PrintOptions::default()));
    assert_eq!(made_of(&g, &gradient), "multiply broadcast constant broadcast constant");
    assert!(entry.contains("constant(3)") && !entry.contains("constant(2)"), "{entry}");
}

#[test]
fn what_a_rule_gives_is_checked() {
    let error_of_rule = |rule: fn(&Emitter, InstrId) -> Vec<InstrId>| {
        error_of(move |g, x| g.scope().within("layer", |_| x.tanh().with_custom_vjp(&[x], rule)))
    };
    let at = "attack/%copy.3 (layer/custom_vjp, at HERE): ";
    let x = "input 0, attack/%x (x, at HERE),";
    assert_eq!(
        error_of_rule(|_, _| vec![]),
        format!("{at}its custom VJP gives 0 cotangents, expected 1: one for each input")
    );
    assert_eq!(
        error_of_rule(|_, g| vec![g, g]),
        format!("{at}its custom VJP gives 2 cotangents, expected 1: one for each input")
    );
    let x_name = x.trim_start_matches("input 0, ").trim_end_matches(',');
    assert_eq!(
        error_of_rule(|_, _| vec![POISON]),
        format!("{at}its custom VJP gives POISON for input 0, {x_name}, expected a cotangent")
    );
    assert_eq!(
        error_of_rule(|_, _| vec![InstrId(99)]),
        format!(
            "{at}its custom VJP gives instruction 99 for {x} which the computation has not\n  help: an id is one of the \
             graph it was made in"
        )
    );
    let help = "\n  help: a cotangent has the dtype and dims of its input";
    assert_eq!(
        error_of_rule(|e, g| vec![e.convert(g, DType::BF16)]),
        format!("{at}its custom VJP gives bf16[3] for {x} expected f32[3]{help}")
    );
    assert_eq!(
        error_of_rule(|e, g| vec![e.reduce_sum(g, &[0])]),
        format!("{at}its custom VJP gives f32[] for {x} expected f32[3]{help}")
    );
    // The number of an instruction of another graph, say: here it is that of x.
    assert_eq!(
        error_of_rule(|_, _| vec![InstrId(0)]),
        format!(
            "{at}what its custom VJP gives for {x} is not computed from the cotangent of the result\n  help: a VJP is \
             linear in that cotangent; an id of another graph names some other instruction here"
        )
    );
}

#[test]
fn what_a_rule_is_attached_to_is_checked() {
    let attached = |attach: &dyn Fn(&Graph, &Tensor) -> Tensor| {
        let g = Graph::new("attack");
        let x = g.input("x", DType::F32, [3]);
        let y = g.scope().within("layer", |_| attach(&g, &x));
        without_line(&g.finish(&[("y", &y)]).unwrap_err().to_string())
    };
    let rule = |_: &Emitter, g: InstrId| vec![g];
    let head = "layer/custom_vjp: custom VJP: ";
    let help = "\n  at HERE\n  help: the inputs are the values that the result is computed from";
    assert_eq!(
        attached(&|_, x| x.tanh().with_custom_vjp(&[&x.sine()], rule)),
        format!(
            "{head}input 0 does not feed the result\n  operand 0: f32[3] layer/custom_vjp\n  operand 1: f32[3] \
             layer/sine{help}"
        )
    );
    assert_eq!(
        attached(&|_, x| x.tanh().with_custom_vjp(&[], rule)),
        format!("{head}there are no inputs, expected at least 1\n  operand 0: f32[3] layer/custom_vjp\n  at HERE")
    );
    assert_eq!(
        attached(&|_, x| x.cast(DType::S32).with_custom_vjp(&[x], rule)),
        format!(
            "{head}the result is s32[3], expected a floating array\n  operand 0: s32[3] layer/custom_vjp\n  operand 1: \
             f32[3] x\n  at HERE"
        )
    );
    // An input that is made from the result.
    assert_eq!(
        attached(&|_, x| {
            let y = x.tanh();
            y.with_custom_vjp(&[&y.sine()], rule)
        }),
        format!(
            "{head}input 0 does not feed the result\n  operand 0: f32[3] layer/custom_vjp\n  operand 1: f32[3] \
             layer/sine{help}"
        )
    );
}

#[test]
fn an_emitter_checks_the_same() {
    let module = Module::new("attack");
    let attempt = |attach: &dyn Fn(&Emitter, InstrId)| {
        let e = Emitter::new(module.clone(), module.entry);
        attach(&e, e.parameter(0, &Shape::array(DType::F32, [3])));
        e.finish().unwrap_err().to_string()
    };
    let custom = |inputs: &[InstrId]| CustomVjp { inputs: inputs.to_vec(), rule: Rc::new(|_, g, _| vec![g]) };
    assert_eq!(
        attempt(&|e, x| _ = e.set_custom_vjp(x, custom(&[x]))),
        "custom VJP: input 0 is the result itself\n  operand 0: f32[3] parameter.1\n  operand 1: f32[3] \
         parameter.1\n  help: the inputs are the values that the result is computed from"
    );
    assert_eq!(
        attempt(&|e, x| {
            let y = e.neg(x);
            e.set_custom_vjp(y, custom(&[x]));
            e.set_custom_vjp(y, custom(&[x]));
        }),
        "custom VJP: the result has a custom VJP already\n  operand 0: f32[3] negate.2\n  operand 1: f32[3] \
         parameter.1\n  help: give the second one to a copy of it"
    );
    assert_eq!(
        attempt(&|e, x| _ = e.set_custom_vjp(x, custom(&[InstrId(7)]))),
        "custom VJP: instruction 7 was named, but there are 1\n  operand 0: f32[3] parameter.1\n  operand 1:  "
    );
}

#[test]
fn a_gradient_past_the_inputs_is_not_lost() {
    let build = |inputs: usize| {
        let g = Graph::new("attack");
        let x = g.input("x", DType::F32, [3]);
        let w = g.scope().variable("w", DType::F32, [3], Init::Ones).value;
        let y = (&x * &w).with_custom_vjp(&[&x, &w][..inputs], move |_, g| vec![g; inputs]);
        gradients(g.emitter(), &y.sum(&[0]), &[&w])
    };
    assert!(build(2).is_ok());
    assert_eq!(
        without_line(&build(1).unwrap_err().to_string()),
        "attack/%copy.4 (custom_vjp, at HERE): it also depends on attack/%w (w, at HERE), which is not behind an input of \
         its custom VJP: that gradient would be lost\n  help: make it an input; a rule may give zeros for it"
    );
}

#[test]
fn a_finished_module_is_not_differentiated_through_a_rule_it_has_not() {
    let lost = |module: &Module| run(module, &Config { loss: 0, wrt: vec![0] }).map(|_| ()).unwrap_err().to_string();
    let straight_through =
        |x: &Tensor| x.unary(bf16scope::hlo::ops::UnaryOp::Floor).with_custom_vjp(&[x], |_, g| vec![g]);
    for (name, of) in [
        ("multiply.18 (multiply", (|x| gelu(x, Gelu::Tanh)) as fn(&Tensor) -> Tensor),
        // Floor has no gradient: the finished module's was zero, the graph's is that of the identity.
        ("copy.3 (custom_vjp", straight_through),
    ] {
        let g = Graph::new("attack");
        let x = g.input("x", DType::F32, [3]);
        let loss = of(&x).sum(&[0]);
        let module = g.finish(&[("loss", &loss)]).unwrap().module;
        let expected = format!(
            "attack/%{name}, at HERE): it has a custom VJP, whose rule no module holds: the instructions that made it \
             would give another gradient\n  help: take gradients in the graph, by passes::grad::gradients, before \
             Graph::finish"
        );
        assert_eq!(without_line(&lost(&module)), expected);
        let reread = text::parse(&text::print(&module, &text::PrintOptions::default()), "attack").unwrap();
        assert_eq!(without_line(&lost(&reread)), expected, "text keeps the mark");
        let decoded = proto::decode::from_bytes(&proto::encode::to_bytes(&module).unwrap()).unwrap();
        assert_eq!(without_line(&lost(&decoded)), expected, "proto keeps the mark");
        let (tidied, _) = bf16scope::passes::tidy::run(&module, &Default::default()).unwrap();
        assert_eq!(without_line(&lost(&tidied)), expected, "tidy keeps the mark");
        assert!(gradients(g.emitter(), &loss, &[&x]).is_ok(), "the graph has the rule");
    }
}
