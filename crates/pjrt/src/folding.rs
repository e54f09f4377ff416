//! Detects programs in which XLA's CPU compiler would fold constants incorrectly.
//!
//! XLA's constant evaluator compares the layouts of an elementwise op's operands with each other, but not with the
//! result's: if all operands have one layout and the result another, it writes the elements in the operands' order
//! (`HloEvaluator`'s `ElementWiseUnaryOpImpl`, `Compare`, and the binary and ternary equivalents). Such ops arise in
//! two ways. The program specifies the layout of an array inside it, which does not affect its meaning. Or XLA's pass
//! `reshape-mover` moves a transpose of a constant above an elementwise op, and gives it the layout that makes the
//! transpose free; transposes of constants also come from gathers, dots and convolutions of constants.
//!
//! So constant folding stays on unless there is such a layout, or such an op with only constant operands. A splat (a
//! broadcast scalar) has no order. The analysis of constants is conservative: through calls and loops, a parameter is
//! as constant as the most constant of its arguments.

use std::collections::{BTreeMap, HashMap};

use super::skimmed::{Computation, Instruction, Program};
use bf16scope_hlo::proto::messages::ShapeProto;

/// How constant a value is, by the analysis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    /// It depends on the program's arguments.
    #[default]
    No,
    /// The same number everywhere.
    Splat,
    /// Known at compile time.
    Constant,
}

/// Whether XLA's evaluator may fold a constant of this program into a wrong order.
pub(super) fn folds_wrongly(program: &Program) -> bool {
    let instructions = || program.computations.iter().flat_map(|computation| &computation.instructions);
    // Without a constant there is nothing to fold.
    if !instructions().any(|it| matches!(it.opcode.as_str(), "constant" | "iota")) {
        return false;
    }
    if instructions().any(says_a_layout) {
        return true;
    }
    let mut facts = Facts::default();
    // Callers come after the computations they call. Passes repeat, for facts about a callee's result, until nothing
    // changes.
    for _ in 0..=program.computations.len() {
        let before = facts.clone();
        if program.computations.iter().rev().any(|computation| facts.find(computation)) {
            return true;
        }
        if before == facts {
            break;
        }
    }
    false
}

/// The facts about computations, for at least one of their calls.
#[derive(Clone, Debug, Default, PartialEq)]
struct Facts {
    roots: BTreeMap<i64, Known>,
    /// By computation and parameter number.
    parameters: BTreeMap<(i64, i64), Known>,
}

impl Facts {
    /// Analyses a computation and its callees; returns whether a transpose of constants may arise in it.
    fn find(&mut self, computation: &Computation) -> bool {
        let mut known: HashMap<i64, Known> = HashMap::new();
        for it in &computation.instructions {
            let operands: Vec<Known> =
                it.operand_ids.iter().map(|id| known.get(id).copied().unwrap_or_default()).collect();
            if makes_transposes(it) && all_of(&operands) == Known::Constant {
                return true;
            }
            self.note_calls(it, &operands);
            known.insert(it.id, self.value(computation, it, &operands));
        }
        let root = known.get(&computation.root_id).copied().unwrap_or_default();
        let known_root = self.roots.entry(computation.id).or_default();
        *known_root = (*known_root).max(root);
        false
    }

    fn note_calls(&mut self, it: &Instruction, operands: &[Known]) {
        if !matches!(it.opcode.as_str(), "call" | "while" | "conditional") {
            return;
        }
        let greatest = operands.iter().copied().max().unwrap_or_default();
        for &callee in &it.called_computation_ids {
            for (number, &operand) in (0i64..).zip(operands) {
                // A branch takes one of the operands after the first.
                let operand = if it.opcode == "conditional" { greatest } else { operand };
                let parameter = self.parameters.entry((callee, number)).or_default();
                *parameter = (*parameter).max(operand);
            }
        }
    }

    fn value(&self, computation: &Computation, it: &Instruction, operands: &[Known]) -> Known {
        let greatest = operands.iter().copied().max().unwrap_or_default();
        let callees = it.called_computation_ids.iter().map(|id| self.roots.get(id).copied().unwrap_or_default());
        let callee = callees.max().unwrap_or_default();
        match it.opcode.as_str() {
            "constant" if is_array(&it.shape) => Known::Constant,
            "constant" => Known::Splat,
            "iota" => Known::Constant,
            "parameter" => self.parameters.get(&(computation.id, it.parameter_number)).copied().unwrap_or_default(),
            "call" => callee,
            "while" | "conditional" => callee.max(greatest),
            // Some of its elements may be known, and any may be taken.
            "tuple" | "get-tuple-element" => greatest,
            "pad" | "concatenate" | "scatter" if all_of(operands) != Known::No => Known::Constant,
            "custom-call"
            | "infeed"
            | "recv"
            | "rng"
            | "rng-bit-generator"
            | "rng-get-and-update-state"
            | "partition-id"
            | "replica-id"
            | "after-all" => Known::No,
            _ => all_of(operands),
        }
    }
}

/// The value of an op on these operands: known if all are.
fn all_of(operands: &[Known]) -> Known {
    match operands.iter().min() {
        None | Some(Known::No) => Known::No,
        Some(_) => operands.iter().copied().max().unwrap_or_default(),
    }
}

/// Whether XLA turns it into a transpose.
fn makes_transposes(it: &Instruction) -> bool {
    match it.opcode.as_str() {
        "transpose" | "gather" | "scatter" | "dot" | "convolution" => true,
        "broadcast" => !it.dimensions.is_sorted(),
        _ => false,
    }
}

fn is_array(shape: &Option<ShapeProto>) -> bool {
    shape.as_ref().is_some_and(|shape| !shape.dimensions.is_empty() || !shape.tuple_shapes.is_empty())
}

/// Whether an array inside a program has a layout that is not row-major. Arguments may have one.
fn says_a_layout(it: &Instruction) -> bool {
    fn is_other(shape: &ShapeProto) -> bool {
        let order = shape.layout.iter().flat_map(|layout| &layout.minor_to_major);
        !order.is_sorted_by(|a, b| a >= b) || shape.tuple_shapes.iter().any(is_other)
    }
    it.opcode != "parameter" && it.shape.as_ref().is_some_and(is_other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::{proto, text};
    use prost::Message as _;

    fn program(module: &bf16scope_hlo::Module) -> Program {
        Program::decode(&*proto::encode::to_bytes(module).unwrap()).unwrap()
    }

    fn leaves_out(body: &str) -> bool {
        let module = text::parse(&format!("HloModule m\n\n{body}"), "m.txt").unwrap_or_else(|error| panic!("{error}"));
        folds_wrongly(&program(&module))
    }

    fn entry(body: &str) -> String {
        format!("ENTRY e {{\n  {}\n}}\n", body.replace("; ", "\n  "))
    }

    #[test]
    fn the_pass_is_left_out_where_a_transpose_of_constants_may_come_about() {
        let array = "c = f32[2,3] constant({ {1,2,3}, {4,5,6} }); x = f32[2,3] parameter(0); ";
        for (is_left_out, body) in [
            (true, "ROOT t = f32[3,2] transpose(c), dimensions={1,0}"),
            (false, "ROOT t = f32[3,2] transpose(x), dimensions={1,0}"),
            (
                true,
                "n = f32[2,3] negate(c); ROOT d = f32[2,2] dot(n, c), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
            ),
            (false, "ROOT d = f32[2,2] dot(x, c), lhs_contracting_dims={1}, rhs_contracting_dims={1}"),
            // A splat has no order.
            (
                false,
                "o = f32[] constant(1); b = f32[2,3] broadcast(o), dimensions={}; ROOT t = f32[3,2] transpose(b), dimensions={1,0}",
            ),
            (
                true,
                "o = f32[] constant(1); i = s32[1,2] iota(), iota_dimension=1; f = f32[1,2] convert(i); \
                    b = f32[2,2] broadcast(o), dimensions={}; k = f32[3,2] concatenate(f, b), dimensions={0}; \
                    ROOT t = f32[2,3] transpose(k), dimensions={1,0}",
            ),
            (true, "ROOT n = f32[2,3]{0,1} negate(c)"),
        ] {
            assert_eq!(leaves_out(&entry(&format!("{array}{body}"))), is_left_out, "{body}");
        }
        assert!(!leaves_out(&entry(
            "x = f32[2,3]{0,1} parameter(0); c = f32[] constant(1); ROOT n = f32[2,3] negate(x)"
        )));
    }

    #[test]
    fn constants_are_followed_through_calls() {
        let turn = "turn {\n  p = f32[2,3] parameter(0)\n  ROOT t = f32[3,2] transpose(p), dimensions={1,0}\n}\n\n";
        let text = "given {\n  c = f32[2,3] constant({ {1,2,3}, {4,5,6} })\n  o = f32[] constant(1)\n  ROOT r = (f32[2,3], f32[]) \
                     tuple(c, o)\n}\n\n";
        let of_constant = entry(
            "g = (f32[2,3], f32[]) call(), to_apply=given; c = f32[2,3] get-tuple-element(g), index=0; ROOT t = f32[3,2] call(c), \
             to_apply=turn",
        );
        let of_argument = entry("x = f32[2,3] parameter(0); ROOT t = f32[3,2] call(x), to_apply=turn");
        assert!(leaves_out(&format!("{turn}{text}{of_constant}")));
        assert!(!leaves_out(&format!("{turn}{text}{of_argument}")));
    }
}
