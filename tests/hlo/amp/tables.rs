//! Tables with narrow rows: which lookups read them behind a barrier, and which sums of rows are bf16.

use super::oracle::run;
use super::storage::dtypes;
use bf16scope::hlo::{Module, text};
use bf16scope::passes::amp::{self, Boundary, LowDType, LoweringReport, Policy};
use expect_test::{Expect, expect};

/// A step of a network that looks up `n` rows of a table: the loss is the sum of squares of their product with
/// weights, and `update` updates the table by the gradient.
fn step(header: &str, [rows, width, n]: [i64; 3], update: &str) -> Module {
    let source = format!(
        "HloModule step{header}

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}}

ENTRY main {{
  table = f32[{rows},{width}] parameter(0)
  ids = s32[{n},1] parameter(1)
  weights = f32[{width},8] parameter(2)
  looked_up = f32[{n},{width}] gather(table, ids), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,{width}}}
  outputs = f32[{n},8] dot(looked_up, weights), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  squares = f32[{n},8] multiply(outputs, outputs)
  zero = f32[] constant(0)
  loss = f32[] reduce(squares, zero), dimensions={{0,1}}, to_apply=add
  of_rows = f32[{n},{width}] dot(outputs, weights), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  zeros = f32[{rows},{width}] broadcast(zero), dimensions={{}}
  gradient = f32[{rows},{width}] scatter(zeros, ids, of_rows), update_window_dims={{1}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
{update}
  ROOT results = (f32[], f32[{rows},{width}]) tuple(loss, new)
}}
"
    );
    text::parse(&source, "step.hlo").unwrap_or_else(|error| panic!("{error}"))
}

/// An update that reads the gradient twice, as those of Adagrad and Adam do.
fn squared([rows, width, _]: [i64; 3]) -> String {
    format!(
        "  squared = f32[{rows},{width}] multiply(gradient, gradient)
  scaled = f32[{rows},{width}] multiply(gradient, squared)
  new = f32[{rows},{width}] subtract(table, scaled)"
    )
}

fn lowered(module: &Module, policy: &Policy) -> (Module, LoweringReport) {
    amp::run(module, policy).unwrap_or_else(|error| panic!("{error}"))
}

/// The op that the lookup reads, and the dtype of the sum of rows.
fn tables(module: &Module) -> (String, String) {
    let entry = module.entry();
    let named = |name: &str| entry.instructions.iter().find(|instr| instr.name == name).unwrap();
    let read = entry.instr(named("looked_up").operands[0]);
    (read.op.opcode().into_owned(), named("gradient").shape.dtype().unwrap().to_string())
}

fn check(policy: &Policy, sizes: [i64; 3], lookup: &str, sum: &str) {
    let (module, _) = lowered(&step("", sizes, &squared(sizes)), policy);
    assert_eq!(tables(&module), (lookup.to_string(), sum.to_string()), "{sizes:?}");
}

#[test]
fn a_lookup_of_narrow_rows_reads_behind_a_barrier_and_its_gradient_is_summed_in_bf16() {
    let sizes = [300, 64, 40];
    let (module, report) = lowered(&step("", sizes, &squared(sizes)), &Policy::default());
    let lines = |expected: Expect| {
        let text = text::print(&module, &text::PrintOptions::default());
        let of_tables = text.lines().filter(|line| line.contains("[300,64]") && line.starts_with("  "));
        let shown: Vec<&str> = of_tables.map(|line| line.split("), ").next().unwrap_or_default().trim()).collect();
        expected.assert_eq(&shown.join("\n"));
    };
    lines(expect![[r#"
        table = f32[300,64]{1,0} parameter(0)
        table.lookup = f32[300,64]{1,0} opt-barrier(table)
        zeros = bf16[300,64]{1,0} broadcast(zero.bf16
        gradient = bf16[300,64]{1,0} scatter(zeros, ids, of_rows
        gradient.f32 = f32[300,64]{1,0} convert(gradient)
        squared = f32[300,64]{1,0} multiply(gradient.f32, gradient.f32)
        scaled = f32[300,64]{1,0} multiply(gradient.f32, squared)
        new = f32[300,64]{1,0} subtract(table, scaled)
        ROOT results = (f32[], f32[300,64]{1,0}) tuple(loss, new)"#]]);
    let rule = |name: &str| report.explain(name)[0].rule.clone();
    assert_eq!(
        rule("looked_up"),
        "it looks up rows narrower than a tile in a table that is read again later; an opt-barrier before it keeps the \
         compiler from keeping a copy of the table"
    );
    assert_eq!(
        rule("gradient"),
        "it sums values that are narrow already, and both its operand and its result are materialised"
    );
}

#[test]
fn only_tables_whose_rows_leave_tiles_half_empty_are_touched() {
    let default = Policy::default();
    check(&default, [300, 96, 40], "opt-barrier", "bf16");
    check(&default, [300, 128, 40], "parameter", "f32");
    check(&default, [300, 256, 40], "parameter", "f32");
    // Two tiles per row, one of them half empty.
    check(&default, [300, 192, 40], "opt-barrier", "bf16");
    // Transposed they take as much memory.
    check(&default, [300, 127, 40], "parameter", "f32");
    check(&default, [64, 64, 40], "parameter", "f32");
    // As many rows as the table has, and more, for which the table is cast as a whole.
    check(&default, [300, 64, 300], "opt-barrier", "bf16");
    check(&default, [300, 64, 301], "convert", "f32");
}

#[test]
fn policies_keep_tables() {
    let sizes = [300, 64, 40];
    for name in ["bf16_scope", "O1", "O2"] {
        check(&Policy::preset(name).unwrap(), sizes, "opt-barrier", "bf16");
    }
    for name in ["tf_amp", "O0"] {
        check(&Policy::preset(name).unwrap(), sizes, "parameter", "f32");
    }
    check(&Policy { tables: Boundary::Keep, ..Policy::default() }, sizes, "parameter", "f32");
    // A sum in f16 may be infinite; one that a list, a name or devices keep stays f32.
    check(&Policy { dtype: LowDType::F16, ..Policy::default() }, sizes, "opt-barrier", "f32");
    check(&Policy { island: vec!["scatter:add".to_string()], ..Policy::default() }, sizes, "opt-barrier", "f32");
    check(&Policy { keep: vec!["gradient".to_string()], ..Policy::default() }, sizes, "opt-barrier", "f32");
    let split = step(", num_partitions=8", sizes, &squared(sizes));
    assert_eq!(tables(&lowered(&split, &Policy::default()).0), ("opt-barrier".to_string(), "f32".to_string()));
}

#[test]
fn what_else_reads_a_table_and_its_gradient_decides() {
    let default = Policy::default();
    let with = |update: &str| tables(&lowered(&step("", [300, 64, 40], update), &default).0);
    let is = |lookup: &str, sum: &str| (lookup.to_string(), sum.to_string());
    // SGD reads the gradient once.
    let sgd = "  rate = f32[] constant(0.1)
  rates = f32[300,64] broadcast(rate), dimensions={}
  scaled = f32[300,64] multiply(gradient, rates)
  new = f32[300,64] subtract(table, scaled)";
    assert_eq!(with(sgd), is("opt-barrier", "f32"));
    // Nothing but the lookup reads the table.
    let without = "  squared = f32[300,64] multiply(gradient, gradient)
  new = f32[300,64] multiply(gradient, squared)";
    assert_eq!(with(without), is("parameter", "bf16"));
    // The rows that were looked up are read in f32, too.
    let in_f32 = "  exponential = f32[40,64] exponential(looked_up)
  added = f32[300,64] scatter(table, ids, exponential), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  new = f32[300,64] multiply(added, gradient)";
    assert_eq!(with(in_f32), is("parameter", "f32"));
}

/// Two gradients that come through layers, of shape `dims`; `update` computes from them the rows that are added to a
/// table of this width.
fn rows_of_sums(width: i64, dims: &str, update: &str) -> String {
    let weights = dims.split(',').next_back().unwrap();
    let n = dims.split(',').next().unwrap();
    format!(
        "ENTRY main {{
  ids = s32[40,1] parameter(0)
  x = f32[{n},8] parameter(1)
  w = f32[8,{weights}] parameter(2)
  v = f32[8,{weights}] parameter(3)
  one = f32[{dims}] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  other = f32[{dims}] dot(x, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  both = f32[{dims}] add(one, other)
  zero = f32[] constant(0)
  squares = f32[{n},8] multiply(x, x)
  size = f32[] reduce(squares, zero), dimensions={{0,1}}, to_apply=add
  sizes = f32[40,{width}] broadcast(size), dimensions={{}}
{update}
  zeros = f32[300,{width}] broadcast(zero), dimensions={{}}
  ROOT gradient = f32[300,{width}] scatter(zeros, ids, rows), update_window_dims={{1}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
}}
"
    )
}

#[test]
fn what_is_added_to_narrow_rows_is_rounded_behind_the_last_product() {
    let both = |width: i64, dims: &str, update: &str, policy: &Policy| {
        let [both] = dtypes(&rows_of_sums(width, dims, update), policy, ["both"]);
        both
    };
    let default = Policy::default();
    let copied = |width: i64| format!("  rows = f32[40,{width}] copy(both)");
    assert_eq!(both(64, "40,64", &copied(64), &default), "bf16");
    // Rows that fill tiles are added in their own dtype.
    assert_eq!(both(128, "40,128", &copied(128), &default), "f32");
    assert_eq!(both(64, "40,64", &copied(64), &Policy { tables: Boundary::Keep, ..Policy::default() }), "f32");
    // If a statistic is applied to them, it is in the same fusion; but not if they are copied to other lanes first.
    let applied = "  rows = f32[40,64] add(both, sizes)";
    assert_eq!(both(64, "40,64", applied, &default), "f32");
    let reshaped = "  narrow = f32[40,64] reshape(both)\n  rows = f32[40,64] add(narrow, sizes)";
    assert_eq!(both(64, "20,128", reshaped, &default), "bf16");
    let same_lanes = "  narrow = f32[40,64] reshape(both)\n  rows = f32[40,64] add(narrow, sizes)";
    assert_eq!(both(64, "40,64", same_lanes, &default), "f32");
}

/// If the sum is f32, no computed value changes. Rows that a norm reads in f32, and a product too, are rounded where
/// they are looked up, without a barrier; lowering again does not change that.
#[test]
fn rows_that_are_read_in_f32_are_looked_up_without_a_barrier_however_often_a_module_is_lowered() {
    let sizes = [300, 64, 40];
    let source = text::print(&step("", sizes, &squared(sizes)), &text::PrintOptions::default());
    for also in ["normed", "looked_up"] {
        let normed = source.replace(
            "outputs = f32[40,8]{1,0} dot(looked_up, weights)",
            &format!(
                "exps = f32[40,64]{{1,0}} exponential(looked_up)
  lengths = f32[40]{{0}} reduce(exps, zero), dimensions={{1}}, to_apply=add
  all_lengths = f32[40,64]{{1,0}} broadcast(lengths), dimensions={{0}}
  normed = f32[40,64]{{1,0}} divide(looked_up, all_lengths)
  first = f32[40,64]{{1,0}} multiply(normed, {also})
  outputs = f32[40,8]{{1,0}} dot({also}, weights)"
            ),
        );
        let squares = "squares = f32[40,8]{1,0} multiply(outputs, outputs)";
        let both = normed.replace(
            squares,
            &format!(
                "seconds = f32[40,8]{{1,0}} dot(first, weights), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  {}",
                squares.replace("(outputs, outputs)", "(outputs, seconds)")
            ),
        );
        let zero = "  zero = f32[] constant(0)\n";
        let both = both.replacen(zero, "", 1).replacen("  ids =", &format!("{zero}  ids ="), 1);
        let module = text::parse(&both, "step.hlo").unwrap_or_else(|error| panic!("{error}"));
        let (once, _) = lowered(&module, &Policy::default());
        assert_eq!(tables(&once).0, "parameter", "{also}");
        let (twice, _) = lowered(&once, &Policy::default());
        assert!(once == twice, "another lowering changes it: {also}");
    }
}

#[test]
fn a_barrier_changes_no_bit() {
    let sizes = [300, 64, 40];
    let module = step("", sizes, &squared(sizes));
    let island = |tables| Policy { tables, island: vec!["scatter:add".to_string()], ..Policy::default() };
    let floats = |n: usize| (0..n).flat_map(|i| ((i * 37 % 101) as f32 / 101.0 - 0.5).to_le_bytes()).collect();
    let ids = (0..40i32).flat_map(|i| (i * i % 300).to_le_bytes()).collect();
    let arguments: Vec<Vec<u8>> = vec![floats(300 * 64), ids, floats(64 * 8)];
    let [behind, as_given] =
        [Boundary::Lower, Boundary::Keep].map(|tables| run(&lowered(&module, &island(tables)).0, &arguments));
    assert_eq!(behind, as_given);
    assert!(behind.iter().any(|(_, values)| values.iter().any(|value| *value != 0.0)));
}

/// Two lookups of one table, whose gradients are added, with rows that one fusion computes.
#[test]
fn rows_of_two_lookups_are_summed_in_bf16() {
    let sizes = [300, 64, 40];
    let text = text::print(&step("", sizes, &squared(sizes)), &text::PrintOptions::default());
    let two = |rows: &str| {
        let source = text
            .replace("gradient = ", "first = ")
            .replace("  squared = ", &format!("  {rows}\n  gradient = f32[300,64] add(first, second)\n  squared = "));
        let module = text::parse(&source, "two.hlo").unwrap_or_else(|error| panic!("{error}\n{source}"));
        let (module, _) = lowered(&module, &Policy::default());
        let instructions = &module.entry().instructions;
        ["first", "second", "gradient"].map(|name| {
            let instr = instructions.iter().find(|instr| instr.name == name).unwrap();
            instr.shape.dtype().unwrap().to_string()
        })
    };
    let sum = |rows: &str| {
        let dims =
            "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1";
        format!("{rows}\n  second = f32[300,64] scatter(zeros, ids, others), {dims}, to_apply=add")
    };
    let product = "others = f32[40,64] dot(squares, weights), lhs_contracting_dims={1}, rhs_contracting_dims={1}";
    assert_eq!(two(&sum(product)), ["bf16"; 3]);
    // Both have more rows than the table: one sum would be f32, so both are, as they are added.
    let many = "some = f32[40,64] dot(squares, weights), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  much = f32[280,64] concatenate(some, some, some, some, some, some, some), dimensions={0}
  many = s32[280,1] concatenate(ids, ids, ids, ids, ids, ids, ids), dimensions={0}";
    let of_many = sum(many).replace("scatter(zeros, ids, others)", "scatter(zeros, many, much)");
    assert_eq!(two(&of_many), ["f32"; 3]);
    // Computed from a sum over all rows, in f32.
    let summed = "made = f32[40,64] dot(squares, weights), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  total = f32[64] reduce(made, zero), dimensions={0}, to_apply=add
  mean = f32[40,64] broadcast(total), dimensions={1}
  others = f32[40,64] add(made, mean)";
    assert_eq!(two(&sum(summed)), ["bf16"; 3]);
    // Data, which is not computed from a product.
    let data = "others = f32[40,64] broadcast(zero), dimensions={}";
    assert_eq!(two(&sum(data)), ["f32"; 3]);
    // A norm's result: one fusion computes both parts that are added as rows.
    let norm = "made = f32[40,64] dot(squares, weights), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  total = f32[64] reduce(made, zero), dimensions={0}, to_apply=add
  mean = f32[40,64] broadcast(total), dimensions={1}
  centered = f32[40,64] subtract(made, mean)
  scaled_by = f32[40,64] multiply(centered, mean)
  half = f32[20,64] slice(scaled_by), slice={[0:20], [0:64]}
  rest = f32[20,64] slice(scaled_by), slice={[20:40], [0:64]}
  others = f32[40,64] concatenate(rest, half), dimensions={0}";
    assert_eq!(two(&sum(norm)), ["bf16"; 3]);
}
