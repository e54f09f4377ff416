//! Modules that are deep, wide, or have many nested calls.

use bf16scope::graph::Precision;
use bf16scope::hlo::ops::{BinaryOp, Conditional, UnaryOp};
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text::{PrintOptions, parse, print};
use bf16scope::hlo::verify::{MAX_CALL_DEPTH, verify};
use bf16scope::hlo::{Alias, AliasKind, CompId, DType, Emitter, InstrId, Metadata, Module, Op, Shape};
use bf16scope::models::{Model, mlp};
use bf16scope::passes::{amp, cotangent_remat, grad, pace, tidy};
use bf16scope::train::{Objective, program};
use bf16scope::tuning::{Remat, Tuning};

/// A stack size as of threads, and half of a main thread's on some systems.
const STACK: usize = 2 << 20;

fn on_a_small_stack<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> R {
    std::thread::Builder::new().stack_size(STACK).spawn(run).unwrap().join().unwrap()
}

fn array() -> Shape {
    Shape::array(DType::F32, [2])
}

/// A module whose entry and other computations `build` writes.
fn module(build: impl FnOnce(&Emitter)) -> Module {
    let module = Module::new("main");
    let e = Emitter::new(module, CompId(0));
    build(&e);
    let module = e.finish().unwrap();
    verify(&module).unwrap();
    module
}

/// The sum of an array, to differentiate.
fn sum(e: &Emitter, x: InstrId) -> InstrId {
    e.reduce(BinaryOp::Add, x, &[0])
}

/// Prints and reads a module, both ways, and runs every pass that takes a module; returns the gradients' module.
fn through_everything(module: &Module) -> Module {
    let text = print(module, &PrintOptions::default());
    let read = parse(&text, "main").unwrap();
    verify(&read).unwrap();
    assert_eq!(print(&read, &PrintOptions::default()), text);
    let bytes = encode::to_bytes(module).unwrap();
    let decoded = decode::from_bytes(&bytes).unwrap();
    verify(&decoded).unwrap();
    let (tidied, _) = tidy::run(module, &tidy::Config::default()).unwrap();
    verify(&tidied).unwrap();
    amp::run(module, &amp::Policy::default()).unwrap();
    verify(&pace::run(module, &pace::Config).unwrap().0).unwrap();
    verify(&cotangent_remat::run(module, &cotangent_remat::Config).unwrap().0).unwrap();
    let (differentiated, _) = grad::run(module, &grad::Config { loss: 0, wrt: vec![0] }).unwrap();
    verify(&differentiated).unwrap();
    differentiated
}

fn n_instructions(module: &Module) -> usize {
    module.computations.iter().map(|computation| computation.instructions.len()).sum()
}

/// A chain of computations, each of which calls the next this many times.
fn calls(n_levels: usize, n_calls: usize) -> Module {
    let mut module = Module::new("main");
    let mut next = None;
    for level in (0..n_levels).rev() {
        let comp = module.add_computation(&format!("level{level}"));
        let mut push = |op: Op, operands: &[InstrId], declared: Option<&Shape>| {
            module.push(comp, op, operands, declared, Metadata::default()).unwrap()
        };
        let mut x = push(Op::parameter(0), &[], Some(&array()));
        x = push(Op::Unary(UnaryOp::Tanh), &[x], None);
        for _ in 0..n_calls {
            if let Some(to_apply) = next {
                x = push(Op::Call { to_apply }, &[x], None);
            }
        }
        next = Some(comp);
    }
    let e = Emitter::new(module, CompId(0));
    let x = e.parameter(0, &array());
    let y = e.emit(Op::Call { to_apply: next.unwrap() }, &[x], None);
    e.tuple(&[sum(&e, y)]);
    let module = e.finish().unwrap();
    verify(&module).unwrap();
    module
}

/// Forty levels of two calls each: 2^40 ways from the entry to the last.
#[test]
fn computations_that_call_the_next_one_twice_are_visited_once() {
    let differentiated = on_a_small_stack(|| through_everything(&calls(40, 2)));
    // Each level has one reverse, with a copy of its body; the shape of the last cotangent is that of all.
    assert!(n_instructions(&differentiated) < 40 * 30, "{}", n_instructions(&differentiated));
}

#[test]
fn calls_nest_as_deep_as_the_verifier_lets_them() {
    on_a_small_stack(|| through_everything(&calls(MAX_CALL_DEPTH - 2, 1)));
}

#[test]
fn a_long_tuple_is_taken_apart() {
    const N: usize = 5_000;
    let module = module(|e| {
        let x = e.parameter(0, &array());
        let all = e.tuple(&vec![x; N]);
        let elements: Vec<InstrId> = (0..N).map(|index| e.get_tuple_element(all, index)).collect();
        let total = elements.chunks(2).fold(x, |total, pair| e.add(total, pair[0]));
        e.tuple(&[sum(e, total)]);
    });
    through_everything(&module);
}

/// A tuple of 20,000 elements: an algorithm that is quadratic in them takes minutes.
#[test]
fn a_tuple_of_tens_of_thousands_is_read_and_lowered() {
    const N: usize = 20_000;
    let module = module(|e| {
        let x = e.parameter(0, &array());
        let all = e.tuple(&vec![x; N]);
        let elements: Vec<InstrId> = (0..N).map(|index| e.get_tuple_element(all, index)).collect();
        e.tuple(&elements);
    });
    within_seconds(10.0, || {
        let text = print(&module, &PrintOptions::default());
        let read = parse(&text, "main").unwrap();
        verify(&read).unwrap();
        let decoded = decode::from_bytes(&encode::to_bytes(&read).unwrap()).unwrap();
        let (tidied, _) = tidy::run(&decoded, &tidy::Config::default()).unwrap();
        verify(&amp::run(&tidied, &amp::Policy::default()).unwrap().0).unwrap();
        assert_eq!(print(&decoded, &PrintOptions::default()), text);
    });
}

#[test]
fn thousands_of_parameters_are_updated_in_place() {
    const N: usize = 5_000;
    let mut module = module(|e| {
        let parameters: Vec<InstrId> = (0..N).map(|number| e.parameter(number as i64, &array())).collect();
        let loss = sum(e, parameters[0]);
        let new: Vec<InstrId> = parameters.iter().map(|&x| e.neg(x)).collect();
        e.tuple(&[&[loss][..], &new].concat());
    });
    let alias = |number: usize| Alias {
        output_index: vec![number as i64 + 1],
        parameter_number: number as i64,
        parameter_index: Vec::new(),
        kind: AliasKind::May,
    };
    module.input_output_alias = (0..N).map(alias).collect();
    verify(&module).unwrap();
    through_everything(&module);
}

/// A chain of them, one after the other: neither deeper nor wider than two.
#[test]
fn loops_and_branches_by_the_thousand() {
    let mut module = Module::new("main");
    let state = array();
    let condition = module.add_computation("condition");
    let x = module.push(condition, Op::parameter(0), &[], Some(&state), Metadata::default()).unwrap();
    assert_eq!(x, InstrId(0));
    let no = bf16scope::hlo::Literal::scalar_of(DType::Pred, 0.0).unwrap();
    module.push(condition, Op::Constant(no), &[], None, Metadata::default()).unwrap();
    let body = module.add_computation("body");
    let x = module.push(body, Op::parameter(0), &[], Some(&state), Metadata::default()).unwrap();
    module.push(body, Op::Unary(UnaryOp::Tanh), &[x], None, Metadata::default()).unwrap();
    let e = Emitter::new(module, CompId(0));
    let x = e.parameter(0, &state);
    let index = e.scalar(DType::S32, 1.0);
    let mut looped = x;
    for _ in 0..2_000 {
        looped = e.emit(Op::While { condition, body }, &[looped], None);
    }
    let chosen =
        e.emit(Op::Conditional(Conditional { branches: vec![body; 50] }), &[&[index][..], &[x; 50]].concat(), None);
    e.tuple(&[sum(&e, chosen), looped]);
    let module = e.finish().unwrap();
    verify(&module).unwrap();
    through_everything(&module);
}

#[test]
fn a_gradient_that_would_be_quadratic_in_branches_is_refused() {
    let mut module = Module::new("main");
    let branch = module.add_computation("branch");
    module.push(branch, Op::parameter(0), &[], Some(&array()), Metadata::default()).unwrap();
    let e = Emitter::new(module, CompId(0));
    let (x, index) = (e.parameter(0, &array()), e.scalar(DType::S32, 1.0));
    let branches = vec![branch; 10_000];
    let chosen = e.emit(Op::Conditional(Conditional { branches }), &[&[index][..], &[x; 10_000]].concat(), None);
    e.tuple(&[sum(&e, chosen)]);
    let module = e.finish().unwrap();
    verify(&module).unwrap();
    let error = grad::run(&module, &grad::Config { loss: 0, wrt: vec![0] }).unwrap_err().to_string();
    assert_eq!(
        error,
        "main/%conditional.4: conditional has no gradient: each of its 10000 branches would give cotangents for the \
         arguments of all, 100000000 together, expected at most 1048576; give it fewer branches, or select among results"
    );
}

/// Instructions that differ in one attribute only: merging equal ones must not compare all pairs.
#[test]
fn instructions_that_are_nearly_alike_are_told_apart() {
    const N: usize = 5_000;
    let module = module(|e| {
        let x = e.parameter(0, &array());
        for number in 0..N {
            let id = e.neg(x);
            e.with_module_mut(|module| {
                module.computations[0].instructions[id.idx()].frontend_attributes =
                    vec![("number".to_string(), number.to_string())];
            });
        }
        let slices: Vec<InstrId> = (0..N).map(|n| e.full(DType::F32, &[], n as f64)).collect();
        e.tuple(&slices);
    });
    let (tidied, report) = tidy::run(&module, &tidy::Config { remove_dead: false, ..tidy::Config::default() }).unwrap();
    assert_eq!((n_instructions(&tidied), report), (n_instructions(&module), tidy::TidyReport::default()));
}

/// A training step with thousands of hidden layers is built, printed and encoded, also with a scope of all layers
/// rematerialised. `cargo bench --bench build` measures 1,000 and 10,000 layers.
#[test]
fn a_deep_network_is_built_on_a_small_stack() {
    let build = |n: usize, remat: Remat| {
        let model = Model::Mlp(mlp::Config { hidden: vec![4; n], ..mlp::Config::new([4], 2) });
        let tuning = Tuning::none().with(|tuning| tuning.remat = remat);
        let objective = Objective { tuning, ..Objective::default() };
        let module = program::training(&*model.task(0.0), Precision::Bf16, 2, &objective).unwrap().program.module;
        verify(&module).unwrap();
        module
    };
    on_a_small_stack(move || {
        let of_ten = n_instructions(&build(10, Remat::None));
        let of_twenty = n_instructions(&build(20, Remat::None));
        let module = build(2_000, Remat::None);
        // So many more for each layer, from the first to the last.
        assert_eq!(n_instructions(&module), of_ten + (of_twenty - of_ten) * 199);
        assert!(!encode::to_bytes(&module).unwrap().is_empty());
        assert!(!print(&module, &PrintOptions::default()).is_empty());
        build(1_500, Remat::Scopes(vec!["mlp".to_string()]));
    });
}

/// Processor seconds of this thread; `None` if the system does not report them.
fn processor_seconds() -> Option<f64> {
    let figures = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    figures.split(' ').next()?.parse::<f64>().ok().map(|nanoseconds| nanoseconds * 1e-9)
}

/// Linear work takes a fraction of this in a debug build, and quadratic work many times as long.
#[track_caller]
fn within_seconds<R>(limit: f64, run: impl FnOnce() -> R) -> R {
    let before = processor_seconds();
    let result = run();
    if let (Some(before), Some(after)) = (before, processor_seconds()) {
        assert!(after - before < limit, "took {:.1} s, expected less than {limit}", after - before);
    }
    result
}

/// Thirty regions, each entered by a separate loop; each could follow calls up to the bound.
#[test]
fn calls_in_many_regions_are_bounded_together() {
    const N_REGIONS: usize = 12;
    let mut module = calls(40, 2);
    let Op::Call { to_apply: twice } = module.entry().instructions[1].op else { panic!("the entry calls") };
    let state = array();
    let condition = module.add_computation("condition");
    module.push(condition, Op::parameter(0), &[], Some(&state), Metadata::default()).unwrap();
    let no = bf16scope::hlo::Literal::scalar_of(DType::Pred, 0.0).unwrap();
    module.push(condition, Op::Constant(no), &[], None, Metadata::default()).unwrap();
    let bodies: Vec<CompId> = (0..N_REGIONS)
        .map(|_| {
            let body = module.add_computation("body");
            let x = module.push(body, Op::parameter(0), &[], Some(&state), Metadata::default()).unwrap();
            module.push(body, Op::Call { to_apply: twice }, &[x], None, Metadata::default()).unwrap();
            body
        })
        .collect();
    let entry = module.entry;
    let mut x = InstrId(0);
    for body in bodies {
        x = module.push(entry, Op::While { condition, body }, &[x], None, Metadata::default()).unwrap();
    }
    verify(&module).unwrap();
    let lowered = |module: &Module| {
        let before = processor_seconds();
        let (lowered, _) = amp::run(module, &amp::Policy::default()).unwrap();
        (lowered, before.zip(processor_seconds()).map(|(before, after)| after - before))
    };
    let (_, alone) = lowered(&calls(40, 2));
    let (lowered, together) = lowered(&module);
    verify(&lowered).unwrap();
    // Some five times as long; twelve if each region had the bound for itself.
    if let (Some(alone), Some(together)) = (alone, together) {
        println!("alone {alone:.1} s, together {together:.1} s");
        assert!(
            together < 8.0 * alone,
            "{together:.1} s for {N_REGIONS} regions, {alone:.1} for one: expected less than eight times"
        );
    }
}

#[test]
fn many_computations_of_one_name_are_added() {
    const N: usize = 20_000;
    let mut module = Module::new("f");
    let last = within_seconds(5.0, || (0..N).map(|_| module.add_computation("f")).last().unwrap());
    assert_eq!(module.comp(last).name, format!("f.{N}"));
    // Removed ones are free again; a name that is there already is passed over.
    module.computations.truncate(3);
    assert_eq!(module.add_computation("f.4"), CompId(3));
    assert_eq!(
        [3, 5].map(|number| {
            let comp = module.add_computation("f");
            (number, module.comp(comp).name.clone())
        }),
        [(3, "f.3".to_string()), (5, "f.5".to_string()),]
    );
}

/// A computation of another program may have the name of one of ours.
#[test]
fn a_reduction_is_known_by_what_it_computes() {
    let text = "HloModule m

add_f32 {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] multiply(a, b)
}

ENTRY main {
  ROOT x = f32[2]{0} parameter(0)
}
";
    let module = parse(text, "m").unwrap();
    let entry = module.entry;
    let e = Emitter::new(module, entry);
    let sums = [sum(&e, InstrId(0)), sum(&e, InstrId(0))];
    e.tuple(&sums);
    let module = e.finish().unwrap();
    let reducers = sums.map(|id| match &module.entry().instr(id).op {
        Op::Reduce { to_apply, .. } => module.comp(*to_apply),
        op => panic!("{op:?} is no reduction"),
    });
    assert_eq!(
        reducers.map(|reducer| (&reducer.name[..], &reducer.instructions[2].op)),
        [("add_f32.1", &Op::Binary(BinaryOp::Add)); 2]
    );
    assert_eq!(module.computations.len(), 3);
}

/// Each of as many computations is called once, and differentiated.
#[test]
fn thousands_of_computations_are_read_and_differentiated() {
    const N: usize = 2_000;
    let mut module = Module::new("main");
    let comps: Vec<CompId> = (0..N)
        .map(|_| {
            let comp = module.add_computation("layer");
            let x = module.push(comp, Op::parameter(0), &[], Some(&array()), Metadata::default()).unwrap();
            module.push(comp, Op::Unary(UnaryOp::Tanh), &[x], None, Metadata::default()).unwrap();
            comp
        })
        .collect();
    let e = Emitter::new(module, CompId(0));
    let x = e.parameter(0, &array());
    let y = comps.iter().fold(x, |x, &to_apply| e.emit(Op::Call { to_apply }, &[x], None));
    e.tuple(&[sum(&e, y)]);
    let module = e.finish().unwrap();
    within_seconds(20.0, || through_everything(&module));
}

/// Thousands of arrays reduced at once, by a computation of twice as many parameters.
#[test]
fn a_wide_reduction_is_read() {
    const N: usize = 3_000;
    let mut module = Module::new("main");
    let add = module.add_computation("add_all");
    let scalar = Shape::scalar(DType::F32);
    let parameters: Vec<InstrId> = (0..2 * N)
        .map(|n| module.push(add, Op::parameter(n as i64), &[], Some(&scalar), Metadata::default()).unwrap())
        .collect();
    let sums: Vec<InstrId> = (0..N)
        .map(|n| {
            let pair = [parameters[n], parameters[N + n]];
            module.push(add, Op::Binary(BinaryOp::Add), &pair, None, Metadata::default()).unwrap()
        })
        .collect();
    module.push(add, Op::Tuple, &sums, None, Metadata::default()).unwrap();
    let e = Emitter::new(module, CompId(0));
    let (x, zero) = (e.parameter(0, &array()), e.scalar(DType::F32, 0.0));
    let operands = [vec![x; N], vec![zero; N]].concat();
    e.emit(Op::Reduce { dimensions: vec![0], to_apply: add }, &operands, None);
    let module = e.finish().unwrap();
    within_seconds(10.0, || {
        verify(&module).unwrap();
        let text = print(&module, &PrintOptions::default());
        assert_eq!(print(&parse(&text, "main").unwrap(), &PrintOptions::default()), text);
        let decoded = decode::from_bytes(&encode::to_bytes(&module).unwrap()).unwrap();
        amp::run(&decoded, &amp::Policy::default()).unwrap();
    });
}

fn text_of(instructions: &str) -> String {
    format!("HloModule m\n\nENTRY main {{\n  x = f32[2]{{0}} parameter(0)\n{instructions}}}\n")
}

/// Megabytes of whitespace, comments, brackets and names.
#[test]
fn long_texts_of_little_are_read_in_linear_time() {
    const N: usize = 4 << 20;
    let root = "  ROOT y = f32[2]{0} negate(x)\n";
    within_seconds(10.0, || {
        for blank in [
            "\n".repeat(N),
            " \t".repeat(N / 2),
            "/**/".repeat(N / 4),
            "//\n".repeat(N / 3),
            format!("/*{}*/", "/".repeat(N)),
        ] {
            let module = parse(&text_of(&(blank.clone() + root)), "m").unwrap();
            assert_eq!(module.entry().instructions.len(), 2);
            parse(&format!("{blank}{}", text_of(root)), "m").unwrap();
        }
        for (open, close) in [("{", "}"), ("(", ")"), ("[", "]"), ("{({", "})}")] {
            let value = open.repeat(N / 8) + &close.repeat(N / 8);
            parse(&text_of(&format!("  ROOT y = f32[2]{{0}} negate(x), backend_config={{{value}}}\n")), "m").unwrap();
            for wrong in [format!("negate({value})"), format!("negate(x), odd={{{value}}}")] {
                let error = parse(&text_of(&format!("  ROOT y = f32[2]{{0}} {wrong}\n")), "m").unwrap_err();
                assert!(error.to_string().len() < 1000, "{error}");
            }
        }
        let name = "y".repeat(N);
        let text = text_of(&format!("  ROOT {name} = f32[2]{{0}} negate(x)\n"));
        let module = parse(&text, "m").unwrap();
        verify(&module).unwrap();
        assert_eq!(decode::from_bytes(&encode::to_bytes(&module).unwrap()).unwrap().entry().instructions[1].name, name);
    });
}

/// An unknown name is compared with known names for a suggestion; with two long names this would take the product of their lengths.
#[test]
fn the_nearest_of_long_names_is_not_looked_for() {
    let (name, other) = ("y".repeat(1 << 20), "z".repeat(1 << 20));
    within_seconds(5.0, || {
        for wrong in [
            format!("  {name} = f32[2]{{0}} negate(x)\n  ROOT a = f32[2]{{0}} negate({other})\n"),
            format!("  ROOT a = f32[2]{{0}} {other}(x)\n"),
            format!("  ROOT a = {other}[2]{{0}} negate(x)\n"),
            format!("  ROOT a = f32[2]{{0}} call(x), to_apply={other}\n"),
        ] {
            let error = parse(&text_of(&wrong), "m").unwrap_err();
            assert!(!error.to_string().contains("did you mean"));
        }
    });
}

/// Unknown fields, and deeply nested messages.
#[test]
fn odd_protos_are_read_or_refused() {
    let field = |number: usize, bytes: &[u8]| {
        let mut out = Vec::new();
        for mut n in [number << 3 | 2, bytes.len()] {
            while n >= 0x80 {
                out.push((n & 0x7f) as u8 | 0x80);
                n >>= 7;
            }
            out.push(n as u8);
        }
        [&out[..], bytes].concat()
    };
    let module = module(|e| {
        let x = e.parameter(0, &array());
        e.neg(x);
    });
    let bytes = encode::to_bytes(&module).unwrap();
    within_seconds(5.0, || {
        let giants = [&bytes[..], &field(1000, &[0x55; 1 << 20]).repeat(16)].concat();
        assert_eq!(decode::from_bytes(&giants).unwrap().entry(), decode::from_bytes(&bytes).unwrap().entry());
        let empty = [&bytes[..], &field(1000, &[]).repeat(1 << 20)].concat();
        assert_eq!(decode::from_bytes(&empty).unwrap().entry(), decode::from_bytes(&bytes).unwrap().entry());
        // A shape's tuple of a shape's tuple, …, in an instruction of a computation.
        let nested = |n: usize| (0..n).fold(Vec::new(), |inner, _| field(4, &inner));
        for n in [200, 5_000] {
            let deep = field(3, &field(2, &field(3, &nested(n))));
            let error = decode::from_bytes(&[&bytes[..], &deep].concat()).unwrap_err().to_string();
            assert!(error.contains("recursion limit reached"), "{error}");
        }
    });
}

#[test]
fn arrays_of_absurdly_many_dimensions_are_refused() {
    let shape = format!("f32[{}1]", "1,".repeat(99_999));
    let text = text_of(&format!("  y = {shape} reshape(x)\n  ROOT z = f32[] reshape(y)\n"));
    let errors = within_seconds(5.0, || verify(&parse(&text, "m").unwrap()).unwrap_err());
    let messages: Vec<&str> = errors.0.iter().map(|error| &error.error.message[..]).collect();
    assert_eq!(messages, ["reshape result has 100000 dimensions, expected at most 256"]);
}

/// A long name is in each error of its computation.
#[test]
fn what_is_said_of_a_broken_module_is_bounded() {
    let mut module = Module::new("m".repeat(1 << 20));
    let entry = module.entry;
    for _ in 0..10_000 {
        module.append(entry, Op::parameter(-1), Vec::new(), Shape::scalar(DType::S1), Metadata::default());
    }
    let errors = verify(&module).unwrap_err();
    let n_bytes: usize = errors.0.iter().filter_map(|error| error.computation.as_ref()).map(String::len).sum();
    assert!((64 << 20..66 << 20).contains(&n_bytes), "{n_bytes}");
    assert_eq!(
        errors.0.last().unwrap().to_string(),
        "module: its first 64 errors take 64 MiB of text, and no more were looked for"
    );
}

/// Thousands of scalars that may be losses, each computed by itself from one product: gradients lead from none to another.
#[test]
fn thousands_of_scalar_results_are_lowered() {
    const N: usize = 4_000;
    let rows: String =
        (0..N).map(|n| format!("  f{n} = f32[] constant({n})\n  s{n} = f32[] multiply(sum, f{n})\n")).collect();
    let scalars: Vec<String> = (0..N).map(|n| format!("s{n}")).collect();
    let text = format!(
        "HloModule m\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}}\n\nENTRY main \
         {{\n  x = f32[8,8]{{1,0}} parameter(0)\n  w = f32[8,8]{{1,0}} parameter(1)\n  y = f32[8,8]{{1,0}} dot(x, w), \
         lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  zero = f32[] constant(0)\n  sum = f32[] reduce(y, zero), \
         dimensions={{0,1}}, to_apply=add\n{rows}  ROOT r = ({}) tuple({})\n}}\n",
        vec!["f32[]"; N].join(", "),
        scalars.join(", ")
    );
    let module = parse(&text, "m").unwrap();
    let (_, report) = within_seconds(10.0, || amp::run(&module, &amp::Policy::default()).unwrap());
    assert_eq!(report.losses.len(), N);
}

/// Modules whose results each come from an array of their own, through ops of thousands of arrays: each array of each was
/// followed to all results.
#[test]
fn ops_of_thousands_of_arrays_are_lowered() {
    const N: usize = 20_000;
    let all = |name: &str| (0..N).map(|n| format!("{name}{n}")).collect::<Vec<_>>().join(", ");
    let lines = |line: &dyn Fn(usize) -> String| (0..N).map(line).collect::<String>();
    let ty = format!("({})", vec!["f32[4]{0}"; N].join(", "));
    let parameters = lines(&|n| format!("  p{n} = f32[4]{{0}} parameter({n})\n"));
    let less = format!(
        "less {{\n{}  ROOT v = pred[] compare(q0, q1), direction=LT\n}}\n\n",
        (0..2 * N).map(|n| format!("  q{n} = f32[] parameter({n})\n")).collect::<String>()
    );
    let arrays = all("p");
    let custom =
        format!("ENTRY main {{\n{parameters}  ROOT r = {ty} custom-call({arrays}), custom_call_target=\"f\"\n}}\n");
    let sort =
        format!("ENTRY main {{\n{parameters}  ROOT r = {ty} sort({arrays}), dimensions={{0}}, to_apply=less\n}}\n");
    let slices = format!(
        "ENTRY main {{\n  x = f32[{N},4]{{1,0}} parameter(0)\n{}{}  ROOT r = f32[{N},4]{{1,0}} concatenate({}), \
         dimensions={{0}}\n}}\n",
        lines(&|n| format!("  s{n} = f32[1,4]{{1,0}} slice(x), slice={{[{n}:{}], [0:4]}}\n", n + 1)),
        lines(&|n| format!("  t{n} = f32[1,4]{{1,0}} tanh(s{n})\n")),
        all("t")
    );
    for (name, text) in [("custom call", custom), ("sort", less + &sort), ("slices", slices)] {
        let module = parse(&format!("HloModule m\n\n{text}"), "m").unwrap_or_else(|error| panic!("{name}: {error}"));
        within_seconds(8.0, || {
            amp::run(&module, &amp::Policy::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
        });
    }
}
