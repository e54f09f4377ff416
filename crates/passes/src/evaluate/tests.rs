//! Tests of evaluation: what a module without parameters computes.

use super::*;
use bf16scope_hlo::text::parse;
use std::collections::BTreeMap;

/// The elements of the root of a module whose entry has these instructions.
fn evaluated(instructions: &str) -> Option<Vec<f64>> {
    let add = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n";
    let module = parse(&format!("HloModule m\n\n{add}ENTRY main {{\n{instructions}\n}}\n"), "m").unwrap();
    let mut numbers: BTreeMap<_, Numbers> = BTreeMap::new();
    for id in module.entry().ids() {
        let instr = module.entry().instr(id);
        let operands: Vec<&Numbers> =
            instr.operands.iter().map(|operand| numbers.get(operand)).collect::<Option<_>>()?;
        let evaluated = evaluate(&module, instr, &operands)?;
        numbers.insert(id, evaluated);
    }
    numbers.remove(&module.entry().root).map(|numbers| numbers.all)
}

#[test]
fn counts_are_moved_compared_and_added_up_in_the_order_of_their_axes() {
    let counts = "  i = s32[3] iota(), iota_dimension=0\n  x = f32[3] convert(i)\n";
    let rows = format!("{counts}  r = f32[3,2] broadcast(x), dimensions={{0}}\n");
    assert_eq!(evaluated(&rows), Some(vec![0.0, 0.0, 1.0, 1.0, 2.0, 2.0]));
    let columns = format!("{rows}  t = f32[2,3] transpose(r), dimensions={{1,0}}\n");
    assert_eq!(evaluated(&columns), Some(vec![0.0, 1.0, 2.0, 0.0, 1.0, 2.0]));
    let sums = format!("{columns}  z = f32[] constant(1)\n  s = f32[2] reduce(t, z), dimensions={{1}}, to_apply=add\n");
    assert_eq!(evaluated(&sums), Some(vec![4.0, 4.0]));
    let chosen = format!(
        "{counts}  j = s32[3] reverse(i), dimensions={{0}}\n  y = f32[3] convert(j)\n  ROOT c = f32[3] add(x, y)\n"
    );
    assert_eq!(evaluated(&chosen), None, "`reverse` is not evaluated");
    let chosen = format!(
        "{counts}  h = f32[3] constant({{1, 1, 1}})\n  c = pred[3] compare(x, h), direction=GE\n  n = f32[3] negate(x)\n  \
         ROOT s = f32[3] select(c, n, h)\n"
    );
    assert_eq!(evaluated(&chosen), Some(vec![1.0, -1.0, -2.0]));
}

#[test]
fn numbers_are_rounded_to_their_dtype_and_other_dtypes_are_not_known() {
    let third = "  a = f32[1] constant({1})\n  b = f32[1] constant({3})\n  c = f32[1] divide(a, b)\n";
    assert_eq!(evaluated(third), Some(vec![f64::from(1.0f32 / 3.0)]));
    assert_eq!(evaluated(&format!("{third}  d = s32[1] convert(c)\n")), Some(vec![0.0]));
    assert_eq!(evaluated(&format!("{third}  d = bf16[1] convert(c)\n")), None);
}
