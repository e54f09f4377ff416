//! Rounding of losses, a loop's f32 state and their gradients where they are stored: one small module for each rule.

use super::storage::{HEAD, dtypes, parsed};
use bf16scope::hlo::text;
use bf16scope::passes::amp::{self, Boundary, Policy};

/// A loss and a layer read a product's result: the gradients of both meet.
#[test]
fn a_gradient_of_the_loss_is_rounded_where_it_meets_one_of_a_layer() {
    let source = |op: &str, of_layer: &str| {
        format!(
            "ENTRY main {{
  x = f32[16,8] parameter(0)
  w = f32[8,32] parameter(1)
  v = f32[32,32] parameter(2)
  y = f32[16,32] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  zero = f32[] constant(0)
  exponential = f32[16,32] exponential(y)
  loss = f32[] reduce(exponential, zero), dimensions={{0,1}}, to_apply=add
  layer = f32[16,32] dot(y, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  {of_layer}
  met = f32[16,32] {op}(exponential, of_layer)
  of_w = f32[8,32] dot(x, met), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  ROOT results = (f32[], f32[8,32]) tuple(loss, of_w)
}}
"
        )
    };
    let met = |op: &str, of_layer: &str| {
        let [met] = dtypes(&source(op, of_layer), &Policy::default(), ["met"]);
        met
    };
    let whole = "of_layer = f32[16,32] dot(layer, v), lhs_contracting_dims={1}, rhs_contracting_dims={1}";
    assert_eq!(met("add", whole), "bf16");
    // TensorFlow's lists deny what is computed from denied ops up to the next product.
    assert_eq!(dtypes(&source("add", whole), &Policy::preset("tf_amp").unwrap(), ["met"]), ["f32"]);
    // A scale of the loss's gradient is not a gradient.
    assert_eq!(met("multiply", whole), "f32");
    // A number for each row is not an array of the same size.
    let row = "ones = f32[32] parameter(3)
  a_row = f32[16] dot(layer, ones), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  of_layer = f32[16,32] broadcast(a_row), dimensions={0}";
    assert_eq!(met("add", row), "f32");
}

/// A weight of the loss that scales a layer too, such as a mask of padding or the gate of an expert.
#[test]
fn what_layers_compute_from_a_weight_of_the_loss_is_narrow() {
    let layer = |weight: &str| {
        let source = format!(
            "ENTRY main {{
  x = f32[16,8] parameter(0)
  w = f32[8,32] parameter(1)
  v = f32[32,4] parameter(2)
  pad = f32[16] parameter(3)
  u = f32[8] parameter(4)
  w2 = f32[8,32] parameter(5)
  {weight}
  y = f32[16,32] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  of_rows = f32[16,32] broadcast(weight), dimensions={{0}}
  weighted_rows = f32[16,32] multiply(y, of_rows)
  other = f32[16,32] dot(x, w2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  layer = f32[16,32] multiply(weighted_rows, other)
  z = f32[16,4] dot(layer, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  zero = f32[] constant(0)
  of_squares = f32[16,4] broadcast(weight), dimensions={{0}}
  squares = f32[16,4] multiply(z, z)
  weighted = f32[16,4] multiply(squares, of_squares)
  loss = f32[] reduce(weighted, zero), dimensions={{0,1}}, to_apply=add
  scaled = f32[16,4] multiply(z, of_squares)
  back = f32[16,32] dot(scaled, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  of_rows_too = f32[16,32] multiply(back, of_rows)
  of_layer = f32[16,32] multiply(of_rows_too, other)
  of_w = f32[8,32] dot(x, of_layer), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  of_v = f32[32,4] dot(layer, scaled), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  ROOT results = (f32[], f32[8,32], f32[32,4]) tuple(loss, of_w, of_v)
}}
"
        );
        dtypes(&source, &Policy::default(), ["layer", "of_layer", "weighted"])
    };
    let expected = ["bf16", "bf16", "f32"];
    assert_eq!(layer("weight = f32[16] copy(pad)"), expected);
    let mask = "one = f32[] constant(1)
  ones = f32[16] broadcast(one), dimensions={}
  weight = f32[16] subtract(ones, pad)";
    assert_eq!(layer(mask), expected);
    let gate = "score = f32[16] dot(x, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  weight = f32[16] exponential(score)";
    assert_eq!(layer(gate), expected);
}

/// Gradients that meet one after another, as a residual stream's do: the last sum is stored, and rounded once.
#[test]
fn a_chain_of_sums_is_rounded_once() {
    let source = "ENTRY main {
  x = f32[16,32] parameter(0)
  w = f32[32,32] parameter(1)
  a = f32[16,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[16,32] dot(a, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[16,32] dot(b, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  scaled = f32[16,32] multiply(b, c)
  inner = f32[16,32] add(a, scaled)
  last = f32[16,32] add(inner, c)
  y = f32[16,32] dot(last, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT results = (f32[16,32]) tuple(y)
}
";
    let names = ["scaled", "inner", "last", "last.bf16"];
    assert_eq!(dtypes(source, &Policy::default(), names), ["f32", "f32", "f32", "bf16"]);
    // A partitioner sums and gathers over devices what is f32 in f32.
    let parted = format!("{HEAD}{source}").replacen("HloModule storage", "HloModule storage, num_partitions=2", 1);
    let (lowered, _) = amp::run(&parsed(&parted), &Policy::default()).unwrap();
    let inner = lowered.entry().instructions.iter().find(|instr| instr.name == "inner").unwrap();
    assert_eq!(inner.shape.dtype().map(|dtype| dtype.to_string()).as_deref(), Some("bf16"));
}

/// More edges than nodes: the sums of a node's edges are no statistic, which a compiler would compute again.
#[test]
fn sums_of_many_scattered_rows_leave_a_stream_narrow() {
    let stream = |n_edges: usize| {
        let source = format!(
            "ENTRY main {{
  x = f32[64,32] parameter(0)
  w = f32[32,32] parameter(1)
  ends = s32[{n_edges},1] parameter(2)
  edges = f32[{n_edges},32] parameter(3)
  node = f32[64,32] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  messages = f32[{n_edges},32] dot(edges, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  zero = f32[] constant(0)
  zeros = f32[64,32] broadcast(zero), dimensions={{}}
  sums = f32[64,32] scatter(zeros, ends, messages), update_window_dims={{1}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
  stream = f32[64,32] add(node, sums)
  y = f32[64,32] dot(stream, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  other = f32[64,32] multiply(stream, y)
  z = f32[64,32] dot(other, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT results = (f32[64,32]) tuple(z)
}}
"
        );
        dtypes(&source, &Policy::default(), ["stream", "other"])
    };
    assert_eq!(stream(64), ["bf16", "bf16"]);
    assert_eq!(stream(65), ["bf16", "bf16"]);
}

/// A layer's result that the loss reads, too.
#[test]
fn the_loss_reads_of_a_layer_what_the_next_one_reads() {
    let source = |layer: &str, read: &str| {
        format!(
            "ENTRY main {{
  x = f32[16,8] parameter(0)
  w = f32[8,32] parameter(1)
  v = f32[32,4] parameter(2)
  b = f32[32] parameter(3)
  y = f32[16,32] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  biases = f32[16,32] broadcast(b), dimensions={{1}}
  {layer}
  z = f32[16,4] dot({read}, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  zero = f32[] constant(0)
  sizes = f32[16,32] multiply(layer, layer)
  size = f32[] reduce(sizes, zero), dimensions={{0,1}}, to_apply=add
  squares = f32[16,4] multiply(z, z)
  square = f32[] reduce(squares, zero), dimensions={{0,1}}, to_apply=add
  loss = f32[] add(size, square)
  back = f32[32,4] dot(y, squares), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  ROOT results = (f32[], f32[32,4]) tuple(loss, back)
}}
"
        )
    };
    let lowers_unstored = Policy { unstored: Boundary::Lower, ..Policy::default() };
    let sum = "layer = f32[16,32] add(y, biases)";
    // It computes in f32 and is rounded, for both.
    let rounded = dtypes(&source(sum, "layer"), &Policy::default(), ["layer", "layer.bf16", "layer.f32", "sizes"]);
    assert_eq!(rounded, ["f32", "bf16", "f32", "f32"]);
    let reads_f32 = |source: &str, policy: &Policy| {
        let (lowered, _) = amp::run(&parsed(&format!("{HEAD}{source}")), policy).unwrap();
        let entry = lowered.entry();
        let sizes = entry.instructions.iter().find(|instr| instr.name == "sizes").unwrap();
        entry.instr(sizes.operands[0]).name == "layer"
    };
    assert!(!reads_f32(&source(sum, "layer"), &Policy::default()));
    assert!(reads_f32(&source(sum, "layer"), &lowers_unstored));
    // Exponentials are rounded for the product alone, and so are likelihoods.
    let exponential = "sum = f32[16,32] add(y, biases)
  layer = f32[16,32] exponential(sum)";
    assert!(reads_f32(&source(exponential, "layer"), &Policy::default()));
    let likelihoods = "sum = f32[16,32] add(y, biases)
  exponentials = f32[16,32] exponential(sum)
  zeroth = f32[] constant(0)
  totals = f32[16] reduce(exponentials, zeroth), dimensions={1}, to_apply=add
  logarithms = f32[16] log(totals)
  logarithm = f32[16,32] broadcast(logarithms), dimensions={0}
  layer = f32[16,32] subtract(sum, logarithm)";
    assert!(reads_f32(&source(likelihoods, "layer"), &Policy::default()));
    // The input of an autoencoder is also its expected output.
    let data = "data = f32[16,32] parameter(4)
  layer = f32[16,32] add(data, biases)";
    assert!(reads_f32(&source(data, "layer"), &Policy::default()));
    // The next layer reads another value.
    assert!(reads_f32(&source(sum, "y"), &Policy::default()));
    // A norm reads it several times, in f32.
    let norm = "layer = f32[16,32] add(y, biases)
  none = f32[] constant(0)
  totals = f32[16] reduce(layer, none), dimensions={1}, to_apply=add
  total = f32[16,32] broadcast(totals), dimensions={0}
  centered = f32[16,32] subtract(layer, total)";
    assert!(!reads_f32(&source(norm, "centered"), &Policy::default()));
    // Random bits decide what is dropped out.
    let dropped = "bits = u32[16,32] parameter(4)
  random = f32[16,32] bitcast-convert(bits)
  none = f32[] constant(0)
  nones = f32[16,32] broadcast(none), dimensions={}
  keeps = pred[16,32] compare(random, nones), direction=GT
  kept = f32[16,32] select(keeps, y, nones)
  layer = f32[16,32] add(kept, biases)";
    assert!(!reads_f32(&source(dropped, "layer"), &Policy::default()));
}

/// Gates of a recurrent network, from which its f32 state is computed.
#[test]
fn gates_that_are_taken_apart_in_a_loop_are_rounded() {
    let source = |taken_apart: &str| {
        format!(
            "body {{
  state = (s32[], f32[16,32], f32[32,64]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  h = f32[16,32] get-tuple-element(state), index=1
  w = f32[32,64] get-tuple-element(state), index=2
  y = f32[16,64] dot(h, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  one = f32[] constant(1)
  biases = f32[16,64] broadcast(one), dimensions={{}}
  gates = f32[16,64] add(y, biases)
{taken_apart}
  kept = f32[16,32] multiply(a, h)
  next = f32[16,32] add(kept, b)
  step = s32[] constant(1)
  j = s32[] add(i, step)
  ROOT after = (s32[], f32[16,32], f32[32,64]) tuple(j, next, w)
}}

condition {{
  state = (s32[], f32[16,32], f32[32,64]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(8)
  ROOT goes_on = pred[] compare(i, n), direction=LT
}}

ENTRY main {{
  h = f32[16,32] parameter(0)
  w = f32[32,64] parameter(1)
  start = s32[] constant(0)
  state = (s32[], f32[16,32], f32[32,64]) tuple(start, h, w)
  ROOT loop = (s32[], f32[16,32], f32[32,64]) while(state), condition=condition, body=body
}}
"
        )
    };
    let parts = "  a = f32[16,32] slice(gates), slice={[0:16], [0:32]}
  b = f32[16,32] slice(gates), slice={[0:16], [32:64]}";
    let default = Policy::default();
    assert_eq!(dtypes(&source(parts), &default, ["gates", "gates.bf16", "a", "next"]), ["f32", "bf16", "bf16", "f32"]);
    // One part is computed alone.
    let part = "  a = f32[16,32] slice(gates), slice={[0:16], [0:32]}
  b = f32[16,32] negate(a)";
    assert_eq!(dtypes(&source(part), &default, ["gates", "a", "next"]), ["f32", "f32", "f32"]);
    assert_eq!(
        dtypes(&source(parts), &Policy { unstored: Boundary::Lower, ..default }, ["gates", "a"]),
        ["f32", "f32"]
    );
}

/// A residual layer between two products, with a scalar loss, and other scalars that a program reports.
fn step(numbers: &str, more: &str) -> String {
    format!(
        "ENTRY main {{
  x = f32[16,32] parameter(0)
  w = f32[32,32] parameter(1)
  v = f32[32,32] parameter(2)
  bias = f32[32] parameter(3)
  zero = f32[] constant(0)
  first = f32[16,32] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  added = f32[16,32] broadcast(bias), dimensions={{1}}
  biased = f32[16,32] add(first, added)
  second = f32[16,32] dot(biased, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  layer = f32[16,32] add(biased, second)
  logits = f32[16,32] dot(layer, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  exponential = f32[16,32] exponential(logits)
  loss = f32[] reduce(exponential, zero), dimensions={{0,1}}, to_apply=add
  of_layer = f32[16,32] dot(exponential, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  of_second = f32[16,32] dot(of_layer, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  met = f32[16,32] add(of_layer, of_second)
  of_w = f32[32,32] dot(x, met), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  of_bias = f32[32] reduce(met, zero), dimensions={{0}}, to_apply=add
  new_w = f32[32,32] subtract(w, of_w)
  new_bias = f32[32] subtract(bias, of_bias)
  {more}
  ROOT results = tuple(new_w, new_bias{numbers})
}}
"
    )
}

/// A logged scalar beside a loss is not a loss.
#[test]
fn a_measure_of_gradients_updates_or_layers_is_no_loss() {
    let lowered = |numbers: &str, more: &str| {
        let shapes = numbers.matches(',').count();
        let shape = format!("(f32[32,32], f32[32]{})", ", f32[]".repeat(shapes));
        let source = step(numbers, more).replace("results = tuple", &format!("results = {shape} tuple"));
        dtypes(&source, &Policy::default(), ["biased", "layer", "met"])
    };
    let all = ["bf16"; 3];
    assert_eq!(lowered(", loss", ""), all);
    let norm = |array: &str, dims: &str, axes: &str| {
        format!(
            "square = f32[{dims}] multiply({array}, {array})
  sum = f32[] reduce(square, zero), dimensions={{{axes}}}, to_apply=add
  norm = f32[] sqrt(sum)"
        )
    };
    for array in ["of_bias", "new_bias"] {
        assert_eq!(lowered(", loss, norm", &norm(array, "32", "0")), all, "{array}");
    }
    let size = "size = f32[16,32] abs(layer)
  sum = f32[] reduce(size, zero), dimensions={0,1}, to_apply=add";
    assert_eq!(lowered(", loss, sum", size), all);
    // Without another scalar, the gradients may be those of it.
    let alone = lowered(", norm", &norm("of_bias", "32", "0"));
    assert_ne!(alone, all);
    // A penalty whose gradient a program adds starts gradients, as its operand leads to no other loss.
    let penalty = "square = f32[16,32] multiply(of_second, of_second)
  penalty = f32[] reduce(square, zero), dimensions={0,1}, to_apply=add";
    assert_eq!(lowered(", loss, penalty", penalty), ["bf16", "bf16", "bf16"]);
}

/// An array is split, as the gradient of a concatenation: one part goes to a product and one is added to.
#[test]
fn what_a_product_reads_a_part_of_is_stored() {
    let source = "ENTRY main {
  x = f32[16,32] parameter(0)
  w = f32[32,32] parameter(1)
  v = f32[16,32] parameter(2)
  zero = f32[] constant(0)
  first = f32[16,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  sum = f32[32] reduce(first, zero), dimensions={0}, to_apply=add
  mean = f32[16,32] broadcast(sum), dimensions={1}
  centered = f32[16,32] subtract(first, mean)
  part = f32[16,16] slice(centered), slice={[0:16], [0:16]}
  rest = f32[16,16] slice(centered), slice={[0:16], [16:32]}
  second = f32[16,32] dot(part, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  passed = f32[16,16] slice(second), slice={[0:16], [0:16]}
  squares = f32[16,32] multiply(first, mean)
  some = f32[16,16] slice(squares), slice={[0:16], [0:16]}
  met = f32[16,16] add(rest, some)
  exponential = f32[16,16] exponential(met)
  ROOT last = f32[16,16] dot(exponential, passed), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
";
    // The sum that only the exponential reads is f32, of what is stored.
    assert_eq!(dtypes(source, &Policy::default(), ["rest", "met"]), ["bf16", "f32"]);
    let alone = source
        .replace("dot(part, v)", "dot(x, w)")
        .replace("  part = f32[16,16] slice(centered), slice={[0:16], [0:16]}\n", "");
    assert_eq!(dtypes(&alone, &Policy::default(), ["rest", "met"]), ["f32", "f32"]);
}

/// Two steps of an optimizer that orthogonalises a matrix by products; `x` is divided by a norm before.
#[test]
fn what_leads_to_an_update_and_is_read_by_a_product_is_rounded_once() {
    let source = "ENTRY main {
  w = f32[8,8] parameter(0)
  h = f32[8,8] parameter(1)
  m = f32[8,8] parameter(2)
  zero = f32[] constant(0)
  a = f32[] constant(3.4445)
  as = f32[8,8] broadcast(a), dimensions={}
  gradient = f32[8,8] dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  moment = f32[8,8] add(m, gradient)
  square = f32[8,8] multiply(moment, moment)
  sum = f32[] reduce(square, zero), dimensions={0,1}, to_apply=add
  norm = f32[] sqrt(sum)
  norms = f32[8,8] broadcast(norm), dimensions={}
  x0 = f32[8,8] divide(moment, norms)
  s0 = f32[8,8] dot(x0, x0), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  y0 = f32[8,8] dot(s0, x0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z0 = f32[8,8] multiply(x0, as)
  x1 = f32[8,8] add(z0, y0)
  s1 = f32[8,8] dot(x1, x1), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  y1 = f32[8,8] dot(s1, x1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z1 = f32[8,8] multiply(x1, as)
  x2 = f32[8,8] add(z1, y1)
  new = f32[8,8] subtract(w, x2)
  ROOT out = (f32[8,8], f32[8,8]) tuple(new, moment)
}
";
    let (lowered, report) = amp::run(&parsed(&format!("{HEAD}{source}")), &Policy::default()).unwrap();
    let why = |name: &str| {
        let decision = report.decisions.iter().find(|it| it.instruction == name).unwrap();
        decision.rule.clone()
    };
    let once = "it computes in f32 and is rounded once, where it is materialised for all its consumers";
    assert_eq!([why("x0"), why("x1")], [once, once]);
    let text = text::print(&lowered, &Default::default());
    assert!(text.contains("z1 = f32[8,8]{1,0} multiply(x1.f32,"), "{text}");
}

/// Two steps in one module, with a weight that decays: a bf16 weight would lose its updates.
#[test]
fn a_weight_that_steps_update_is_never_rounded_for_the_next() {
    let source = "ENTRY main {
  w0 = f32[8,8] parameter(0)
  h = f32[8,8] parameter(1)
  a = f32[] constant(0.999)
  as = f32[8,8] broadcast(a), dimensions={}
  g0 = f32[8,8] dot(h, w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d0 = f32[8,8] multiply(w0, as)
  w1 = f32[8,8] subtract(d0, g0)
  g1 = f32[8,8] dot(h, w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d1 = f32[8,8] multiply(w1, as)
  w2 = f32[8,8] subtract(d1, g1)
  g2 = f32[8,8] dot(h, w2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT w3 = f32[8,8] subtract(w2, g2)
}
";
    let (lowered, _) = amp::run(&parsed(&format!("{HEAD}{source}")), &Policy::default()).unwrap();
    let text = text::print(&lowered, &Default::default());
    assert!(
        text.contains("d1 = f32[8,8]{1,0} multiply(w1, as)") && text.contains("w3 = f32[8,8]{1,0} subtract(w2, g2"),
        "{text}"
    );
}
