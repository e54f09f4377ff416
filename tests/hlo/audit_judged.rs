//! The results that an audit judges: not noise, not the signs of an optimizer's first step, and those that the user
//! selects.

use crate::run::client;

use bf16scope::audit::{Audit, Auditor, Config, Judgement, ResultChoice, SearchEnd, SearchLimits, after_steps};
use bf16scope::hlo::{Literal, Module, text};
use bf16scope::passes::amp::{Policy, Reach};

fn parse(body: &str) -> Module {
    text::parse(&format!("HloModule m{body}"), "m.txt").unwrap_or_else(|error| panic!("{error}"))
}

fn array(values: &[f32]) -> Literal {
    Literal::from_elements([values.len() as i64], values)
}

fn allow(ops: &[&str]) -> Policy {
    Policy { allow: ops.iter().map(|op| op.to_string()).collect(), reach: Reach::All, ..Policy::default() }
}

fn audit(module: &Module, inputs: &[Literal], choice: &ResultChoice) -> Audit {
    let auditor = Auditor::of_results(client(), module, inputs, Config::default(), choice);
    let auditor = auditor.unwrap_or_else(|error| panic!("{error}"));
    auditor.audit(&allow(&["add", "subtract", "multiply"])).unwrap()
}

/// `a + b − a − b` is 0 except for roundings: in f32 2^-25 or so, in f64 less, in bf16 2^-9. Its figures mean nothing.
#[test]
fn what_f32_does_not_know_is_noise() {
    let module = parse(
        "\n\nENTRY m {\n  a = f32[4] parameter(0)\n  b = f32[4] parameter(1)\n  sum = f32[4] add(a, b)\n  \
         one = f32[4] subtract(sum, a)\n  zero = f32[4] subtract(one, b)\n  product = f32[4] multiply(a, b)\n  \
         ROOT t = (f32[4], f32[4]) tuple(zero, product)\n}\n",
    );
    let inputs = [array(&[0.1, 0.7, 0.3, 1.3]), array(&[0.03, 0.011, 0.017, 0.019])];
    let report = audit(&module, &inputs, &ResultChoice::default());
    let [zero, product] = &report.results[..] else { panic!("{report:#?}") };
    assert_eq!((zero.judgement, zero.judged), (Judgement::Noise, None));
    assert!(zero.n_noise == 4 && zero.f32_error.unwrap() > 1.0 && zero.errors.unwrap().scaled > 100.0, "{zero:#?}");
    assert_eq!((product.judgement, product.n_noise), (Judgement::Judged, 0));
    // Each operand and the product round by 2^-9 at most.
    assert!(report.error() > 0.0 && report.error() <= 4.0 / 512.0, "{product:#?}");
    // f32 rounds the product once, from operands that are f32 in f64 too.
    assert!(product.f32_error.unwrap() <= 2f64.powi(-24));
}

/// Adam's first step with one gradient so small that its sign is lost in bf16.
#[test]
fn the_first_signs_of_an_optimizer_are_judged_by_its_gradient() {
    let module = parse(
        "\n\nENTRY m {\n  p = f32[4] parameter(0)\n  a = f32[4] parameter(1)\n  b = f32[4] parameter(2)\n  \
         g = f32[4] subtract(a, b)\n  square = f32[4] multiply(g, g)\n  root = f32[4] sqrt(square)\n  \
         epsilon = f32[] constant(1e-12)\n  e = f32[4] broadcast(epsilon), dimensions={}\n  \
         size = f32[4] add(root, e)\n  q = f32[4] divide(g, size)\n  rate = f32[] constant(0.001)\n  \
         r = f32[4] broadcast(rate), dimensions={}\n  step = f32[4] multiply(r, q)\n  \
         new = f32[4] subtract(p, step)\n  ROOT t = (f32[4], f32[4]) tuple(new, g)\n}\n",
    );
    // The last two are one number in bf16.
    let inputs = [array(&[0.0; 4]), array(&[1.0, -3.0, 2.0, 1.0001]), array(&[0.5, 1.0, -1.0, 1.0002])];
    let report = audit(&module, &inputs, &ResultChoice::default());
    let [new, g] = &report.results[..] else { panic!("{report:#?}") };
    assert_eq!((new.judgement, new.judged), (Judgement::SignLike, None), "{new:#?}");
    assert!(new.errors.unwrap().scaled > 0.5, "{new:#?}");
    assert_eq!((g.judgement, g.judged), (Judgement::Judged, Some(report.error())));
    assert!(report.error() < 0.02, "{g:#?}");
    // It is judged if no other result is selected.
    let alone = ResultChoice { only: vec!["new".to_string()], ..ResultChoice::default() };
    let report = audit(&module, &inputs, &alone);
    assert_eq!(
        report.results.iter().map(|row| row.judgement).collect::<Vec<_>>(),
        [Judgement::Judged, Judgement::Ignored]
    );
    assert!(report.error() > 0.5);
}

/// RMSprop's update of a bias of two classes, whose gradients are `g` and `-g` at every step.
#[test]
fn later_updates_of_one_size_are_judged() {
    let module = parse(
        "\n\nENTRY m {\n  p = f32[2] parameter(0)\n  g = f32[2] parameter(1)\n  v = f32[2] parameter(2)\n  \
         decay = f32[] constant(0.9)\n  d = f32[2] broadcast(decay), dimensions={}\n  \
         kept = f32[2] multiply(v, d)\n  share = f32[] constant(0.1)\n  \
         s = f32[2] broadcast(share), dimensions={}\n  square = f32[2] multiply(g, g)\n  \
         part = f32[2] multiply(square, s)\n  mean = f32[2] add(kept, part)\n  root = f32[2] sqrt(mean)\n  \
         q = f32[2] divide(g, root)\n  new = f32[2] subtract(p, q)\n  ROOT t = (f32[2], f32[2]) tuple(new, mean)\n}\n",
    );
    let judgement = |moment: f32| {
        let inputs = [array(&[0.5, 0.25]), array(&[0.3, -0.3]), array(&[moment; 2])];
        audit(&module, &inputs, &ResultChoice::default()).results[0].judgement
    };
    assert_eq!((judgement(0.0), judgement(0.4)), (Judgement::SignLike, Judgement::Judged));
}

/// A gradient that is zero in theory, alone and as a third of an array, with moments of a run in bf16. Nothing is donated.
#[test]
fn state_of_a_gradient_that_is_zero_in_theory_is_noise_without_donation_and_in_part() {
    let module = parse(
        "\n\nENTRY m {\n  w = f32[3] parameter(0)\n  x = f32[3,3] parameter(1)\n  others = f32[3] parameter(2)\n  \
         m = f32[3] parameter(3)\n  v = f32[6] parameter(4)\n  p = f32[6] parameter(5)\n  \
         zero = f32[3] dot(w, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n  decay = f32[] constant(0.9)\n  \
         d = f32[3] broadcast(decay), dimensions={}\n  share = f32[] constant(0.1)\n  \
         s = f32[3] broadcast(share), dimensions={}\n  kept = f32[3] multiply(m, d)\n  part = f32[3] multiply(zero, s)\n  \
         moment = f32[3] add(kept, part)\n  g = f32[6] concatenate(zero, others), dimensions={0}\n  \
         d6 = f32[6] broadcast(decay), dimensions={}\n  s6 = f32[6] broadcast(share), dimensions={}\n  \
         square = f32[6] multiply(g, g)\n  kept6 = f32[6] multiply(v, d6)\n  part6 = f32[6] multiply(square, s6)\n  \
         mean = f32[6] add(kept6, part6)\n  root = f32[6] sqrt(mean)\n  q = f32[6] divide(g, root)\n  \
         rate = f32[] constant(0.001)\n  r = f32[6] broadcast(rate), dimensions={}\n  step = f32[6] multiply(q, r)\n  \
         new = f32[6] subtract(p, step)\n  ROOT t = (f32[3], f32[6]) tuple(moment, new)\n}\n",
    );
    // Columns of `b + c`, `-b` and `-c`: their sum is 0, but not when each is rounded to bf16.
    let [b, c]: [f32; 2] = [1.0 + 3.0 / 512.0, 1.0 + 1.0 / 512.0];
    let x: Vec<f32> = [b + c, -b, -c].into_iter().flat_map(|x| [x, 3.0 * x, -5.0 * x]).collect();
    let inputs = [
        array(&[1.0; 3]),
        Literal::from_elements([3, 3], &x),
        array(&[0.1, -0.3, 0.2]),
        array(&[1e-3, -2e-3, 1.5e-3]),
        array(&[1e-8, 1e-8, 1e-8, 0.04, 0.04, 0.04]),
        array(&[0.001, -0.001, 0.002, 0.002, -0.003, 0.001]),
    ];
    let auditor = Auditor::new(client(), &module, &inputs, Config::default()).unwrap();
    let results = auditor.results(&allow(&["dot"])).unwrap();
    let [moment, new] = &results[..] else { panic!("{results:#?}") };
    assert!(moment.errors.unwrap().scaled > 0.1 && new.errors.unwrap().scaled > 0.5, "{results:#?}");
    assert_eq!((moment.judgement, moment.judged), (Judgement::Noise, None), "{results:#?}");
    assert_eq!((new.judgement, new.n_noise), (Judgement::Judged, 3), "{results:#?}");
    assert!(new.judged.unwrap() < 1e-6, "{results:#?}");
}

#[test]
fn results_are_chosen_by_every_name_that_they_have() {
    let module = parse(
        "\n\nENTRY m {\n  a = f32[2] parameter(0)\n  x = f32[2] add(a, a), metadata={op_name=\"layer/bias\"}\n  \
         y = f32[2] multiply(a, a)\n  ROOT t = (f32[2], f32[2]) tuple(x, y)\n}\n",
    );
    let names = vec!["kernel".to_string(), String::new()];
    let judged = |only: &[&str], ignore: &[&str]| {
        let owned = |patterns: &[&str]| patterns.iter().map(|pattern| pattern.to_string()).collect();
        let choice = ResultChoice { names: names.clone(), only: owned(only), ignore: owned(ignore) };
        let report = audit(&module, &[array(&[1.0, 257.0])], &choice);
        report.results.iter().map(|row| row.judgement == Judgement::Judged).collect::<Vec<bool>>()
    };
    assert_eq!(judged(&[], &[]), [true, true]);
    for name in ["kernel", "ker*", "layer/*", "out0", "x"] {
        assert_eq!((judged(&[name], &[]), judged(&[], &[name])), (vec![true, false], vec![false, true]), "{name}");
    }
    let choice = ResultChoice { names: names.clone(), only: vec!["loss".into()], ignore: Vec::new() };
    let inputs = [array(&[1.0, 2.0])];
    let error = Auditor::of_results(client(), &module, &inputs, Config::default(), &choice).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no result is named `loss`, expected a name, outN, an instruction, or a pattern of them with * and ?; the 2 \
         results are kernel, out1, …"
    );
}

#[test]
fn state_goes_back_to_the_parameters_that_it_aliases() {
    let body = "\n\nENTRY m {\n  a = f32[2] parameter(0)\n  b = f32[2] parameter(1)\n  x = f32[2] add(a, b)\n  \
                y = f32[2] multiply(b, b)\n  ROOT t = (f32[2], f32[2]) tuple(y, x)\n}\n";
    let module = parse(&format!(", input_output_alias={{ {{1}}: (0, {{}}, may-alias) }}{body}"));
    let inputs = [array(&[1.0, 2.0]), array(&[10.0, 20.0])];
    assert_eq!(after_steps(client(), &module, &inputs, 0).unwrap(), inputs);
    let after = after_steps(client(), &module, &inputs, 3).unwrap();
    assert_eq!(after[0].elements::<f32>().unwrap(), [31.0, 62.0]);
    assert_eq!(after[1], inputs[1]);
    let error = after_steps(client(), &parse(body), &inputs, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the module has no aliases of results and parameters, which say what a next step starts from\nhelp: export it with \
         donated state (`donate_argnums` of jax.jit), or audit one step"
    );
}

#[test]
fn a_search_ends_at_its_bound_and_says_when_nothing_is_left() {
    let module = parse(
        "\n\nENTRY m {\n  a = f32[2] parameter(0)\n  b = f32[2] parameter(1)\n  x = f32[2] add(a, b)\n  \
         ROOT y = f32[2] multiply(x, b)\n}\n",
    );
    let inputs = [array(&[256.0, 1.0]), array(&[1.0, 2.0])];
    let auditor = Auditor::new(client(), &module, &inputs, Config::default()).unwrap();
    let policy = allow(&["add", "multiply"]);
    let report = auditor.audit(&policy).unwrap();
    let search = |max_runs, budget| {
        let mut run_counts = Vec::new();
        let limits = SearchLimits { max_runs, ..SearchLimits::default() };
        let search =
            auditor.search_with(&policy, &report, budget, limits, &mut |searched| run_counts.push(searched.n_runs));
        let search = search.unwrap();
        assert_eq!(run_counts, (1..=search.n_runs).collect::<Vec<usize>>());
        search
    };
    let bounded = search(1, 1e-6);
    assert_eq!((bounded.end, bounded.is_reached, bounded.n_runs), (SearchEnd::OutOfRuns, false, 1));
    let whole = search(40, 1e-6);
    assert_eq!((whole.end, whole.is_reached, whole.error), (SearchEnd::NothingLeft, true, 0.0));
}

/// A sum of 257 is 256 in bf16, and no longer more than 256: with that sum in f32 every decision is that of f32.
#[test]
fn a_comparison_that_one_sum_decides_is_mended_by_that_sum() {
    let module = parse(
        "\n\nENTRY m {\n  a = f32[64] parameter(0)\n  b = f32[64] parameter(1)\n  s = f32[64] add(a, b)\n  p = pred[64] \
         compare(s, a), direction=GT\n  r = f32[64] select(p, b, a)\n  y = f32[64] add(b, b)\n  z = f32[64] add(y, y)\n  ROOT t \
         = (f32[64], f32[64]) tuple(r, z)\n}\n",
    );
    let inputs = [array(&[256.0; 64]), array(&[1.0; 64])];
    let auditor = Auditor::new(client(), &module, &inputs, Config::default()).unwrap();
    let policy = allow(&["add"]);
    let decisions = auditor.decisions(&policy).unwrap().unwrap();
    let rows: Vec<_> =
        decisions.rows.iter().map(|row| (&row.instruction[..], row.n_differing, row.n_elements)).collect();
    assert_eq!((rows, decisions.error), (vec![("p", 64, 64)], 0.0));
    let report = auditor.audit(&policy).unwrap();
    assert_eq!(report.error(), 255.0);
    let search = auditor.search(&policy, &report, 1e-2).unwrap();
    assert_eq!(
        (search.end, &search.keep[..], search.error),
        (SearchEnd::Minimal, &["s".to_string()][..], 0.0),
        "{search:#?}"
    );
    assert_eq!(search.decisions, Some(decisions));
    assert_eq!(auditor.decisions(&search.policy).unwrap(), None);
}

/// Five successive additions of 1 to 256, each lost in bf16: with the last three in f32 the result is 259 and not 261, so a
/// comparison with 260.5 still differs. The search does not accept a list only because it meets the budget if it does not
/// change the decision.
#[test]
fn what_a_few_instructions_do_not_decide_keeps_nothing() {
    let sums: String = (1..=5).map(|n| format!("  x{n} = f32[2] add(x{}, b)\n", n - 1)).collect();
    let module = parse(&format!(
        "\n\nENTRY m {{\n  x0 = f32[2] parameter(0)\n  b = f32[2] parameter(1)\n  c = f32[2] parameter(2)\n  u = f32[2] \
         parameter(3)\n{sums}  p = pred[2] compare(x5, c), direction=GT\n  r = f32[2] select(p, u, b)\n  y = f32[2] add(b, b)\n  \
         ROOT t = (f32[2], f32[2]) tuple(r, y)\n}}\n"
    ));
    for (bounds, selected) in [([260.5, 260.5], [5.0, 5.0]), ([258.5, 260.5], [5.0, 1.0])] {
        let inputs = [array(&[256.0; 2]), array(&[1.0; 2]), array(&bounds), array(&selected)];
        let auditor = Auditor::new(client(), &module, &inputs, Config::default()).unwrap();
        let policy = allow(&["add"]);
        let search = auditor.search(&policy, &auditor.audit(&policy).unwrap(), 1e-2).unwrap();
        assert_eq!((search.end, search.is_reached, search.n_runs), (SearchEnd::Decisions, false, 2), "{search:#?}");
        assert!(search.keep.is_empty() && search.error == 0.8, "{search:#?}");
        let decisions = search.decisions.unwrap();
        assert_eq!((decisions.rows[0].n_differing, decisions.error), (2, 0.0));
    }
}

/// A rounding that no comparison reads is over the budget, too: both sums are kept.
#[test]
fn where_decisions_are_not_all_that_is_wrong_the_search_goes_on() {
    let module = parse(
        "\n\nENTRY m {\n  a = f32[64] parameter(0)\n  b = f32[64] parameter(1)\n  s = f32[64] add(a, b)\n  p = pred[64] \
         compare(s, a), direction=GT\n  r = f32[64] select(p, b, a)\n  w = f32[64] add(b, a)\n  y = f32[64] add(b, b)\n  z = \
         f32[64] add(y, y)\n  v = f32[64] add(z, z)\n  ROOT t = (f32[64], f32[64], f32[64]) tuple(r, w, v)\n}\n",
    );
    let inputs = [array(&[256.0; 64]), array(&[1.0; 64])];
    let auditor = Auditor::new(client(), &module, &inputs, Config::default()).unwrap();
    let policy = allow(&["add"]);
    let search = auditor.search(&policy, &auditor.audit(&policy).unwrap(), 1e-4).unwrap();
    let mut keep = search.keep.clone();
    keep.sort();
    assert_eq!((search.error, &keep[..]), (0.0, &["s", "w"].map(String::from)[..]), "{search:#?}");
    assert_eq!(search.decisions.unwrap().error, 1.0 / 257.0);
}

/// The decisions of f32 are given as parameters, which XLA does not take beside a tuple; the search goes on without them.
#[test]
fn a_module_that_takes_a_tuple_is_searched_too() {
    let module = parse(
        "\n\nENTRY m {\n  in = (f32[64], f32[64]) parameter(0)\n  a = f32[64] get-tuple-element(in), index=0\n  b = f32[64] \
         get-tuple-element(in), index=1\n  s = f32[64] add(a, b)\n  p = pred[64] compare(s, a), direction=GT\n  r = f32[64] \
         select(p, b, a)\n  y = f32[64] add(b, b)\n  ROOT z = f32[64] add(y, r)\n}\n",
    );
    let inputs = [array(&[256.0; 64]), array(&[1.0; 64])];
    let auditor = Auditor::new(client(), &module, &inputs, Config::default()).unwrap();
    let policy = allow(&["add"]);
    let search = auditor.search(&policy, &auditor.audit(&policy).unwrap(), 1e-2).unwrap();
    assert!(search.is_reached && search.decisions.is_none() && search.keep.contains(&"s".to_string()), "{search:#?}");
}

/// Each of eight results rounds by itself, so each sum has to be kept, which a few instructions cannot do. They are
/// kept if that is requested.
#[test]
fn an_error_that_is_born_everywhere_keeps_nothing() {
    let sums: String =
        (0..8).map(|n| format!("  x{n} = f32[1] add(a, b)\n  y{n} = f32[1] multiply(x{n}, x{n})\n")).collect();
    let names = |letter: &str| (0..8).map(|n| format!("{letter}{n}")).collect::<Vec<_>>().join(", ");
    let module = parse(&format!(
        "\n\nENTRY m {{\n  a = f32[1] parameter(0)\n  b = f32[1] parameter(1)\n{sums}  ROOT t = ({}) tuple({})\n}}\n",
        ["f32[1]"; 8].join(", "),
        names("y")
    ));
    let inputs = [array(&[256.0]), array(&[1.0])];
    let auditor = Auditor::new(client(), &module, &inputs, Config::default()).unwrap();
    let policy = allow(&["add"]);
    let report = auditor.audit(&policy).unwrap();
    let search = |max_kept| {
        let limits = SearchLimits { max_kept, ..SearchLimits::default() };
        auditor.search_with(&policy, &report, 1e-4, limits, &mut |_| {}).unwrap()
    };
    // Lists of 0, 1, 2, 4, 8, 6 and 7; then neither half of the eight can be left out, and none of three pairs but those that
    // were tried, nor of the fourth.
    let few = search(3);
    assert_eq!((few.end, few.is_reached, few.keep.len()), (SearchEnd::TooMany, true, 8), "{few:#?}");
    let all = search(8);
    assert_eq!((all.end, all.keep.len()), (SearchEnd::NothingLeft, 8), "{all:#?}");
    assert_eq!((few.n_runs, all.n_runs), (11, 18));
}
