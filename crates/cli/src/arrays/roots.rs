//! Finds parameters that an optimizer, a batch norm or a logarithm requires to be 0 or more, and draws them
//! accordingly.
//!
//! The module's operations show it. A value whose square root or logarithm is taken is 0 or more, and so are the
//! operands of a sum, multiple, maximum or mean that gives it, back to the parameters. In a difference under a root,
//! such as RMSProp's `mean of squares − mean²`, the subtrahend has to be the smaller: the parameters squared there are
//! drawn small.

use std::collections::{BTreeMap, BTreeSet};

use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use bf16scope_hlo::{CompId, InstrId, Module, Op};

/// The distribution from which a parameter is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Drawing {
    /// Standard normal.
    #[default]
    Normal,
    /// `(1 + z²) / 2` for standard normal `z`: 1/2 or more, like a second moment beside the first moment of such
    /// numbers.
    Positive,
    /// `z / (2 + 2|z|)`: the squares are 1/4 at most, below any positive draw.
    Small,
}

impl Drawing {
    /// Maps a standard normal number to this distribution.
    pub(super) fn number(self, normal: f32) -> f32 {
        match self {
            Drawing::Normal => normal,
            Drawing::Positive => 0.5 + 0.5 * normal * normal,
            Drawing::Small => normal / (2.0 + 2.0 * normal.abs()),
        }
    }
}

/// A value: an instruction of a computation, with the chain of calls to it.
type Place<'c> = (CompId, InstrId, Option<&'c Call<'c>>);

/// A call of a computation.
struct Call<'c> {
    comp: CompId,
    instr: InstrId,
    outer: Option<&'c Call<'c>>,
    depth: usize,
}

/// The largest depth of calls to follow, and the largest number of them.
const MAX_DEPTH: usize = 16;
const MAX_CALLS: usize = 10_000;

struct Walk<'m> {
    module: &'m Module,
    n_calls: usize,
    /// Keyed by the numbers of the entry's parameters.
    drawings: BTreeMap<i64, Drawing>,
    /// The instructions visited: the call, and whether the value should be small.
    seen: BTreeSet<(CompId, InstrId, bool, usize)>,
}

/// The distributions of the entry's parameters, by their numbers; parameters that are not listed are standard normal.
pub(super) fn drawings(module: &Module) -> BTreeMap<i64, Drawing> {
    let mut walk = Walk { module, n_calls: 0, drawings: BTreeMap::new(), seen: BTreeSet::new() };
    walk.computation(module.entry, None);
    walk.drawings
}

impl Walk<'_> {
    /// Searches a computation, and the ones that it calls, for roots and logarithms.
    fn computation(&mut self, comp: CompId, outer: Option<&Call<'_>>) {
        let depth = outer.map_or(0, |outer| outer.depth + 1);
        for id in self.module.comp(comp).ids() {
            let instr = self.module.comp(comp).instr(id);
            match &instr.op {
                Op::Unary(UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Log) => {
                    self.back((comp, instr.operands[0], outer), Drawing::Positive);
                }
                Op::Call { to_apply } if depth < MAX_DEPTH && self.n_calls < MAX_CALLS => {
                    self.n_calls += 1;
                    let call = Call { comp, instr: id, outer, depth };
                    self.computation(*to_apply, Some(&call));
                }
                _ => {}
            }
        }
    }

    /// Follows a value back to the parameters that need this distribution.
    fn back(&mut self, (comp, id, outer): Place<'_>, drawing: Drawing) {
        let depth = outer.map_or(0, |outer| outer.depth + 1);
        let call_place = outer.map_or(0, |outer| outer.instr.idx() + 1);
        if !self.seen.insert((comp, id, drawing == Drawing::Small, call_place)) {
            return;
        }
        let instr = self.module.comp(comp).instr(id);
        let operands = &instr.operands;
        match &instr.op {
            Op::Parameter { number, .. } => match outer {
                None => {
                    let known = self.drawings.entry(*number).or_insert(drawing);
                    // A value under a root is 0 or more, whatever else is required of it.
                    if drawing == Drawing::Positive {
                        *known = drawing;
                    }
                }
                Some(call) => {
                    let argument = self.module.comp(call.comp).instr(call.instr).operands.get(*number as usize);
                    if let Some(&argument) = argument {
                        self.back((call.comp, argument, call.outer), drawing);
                    }
                }
            },
            Op::Call { to_apply } if depth < MAX_DEPTH => {
                let call = Call { comp, instr: id, outer, depth };
                self.back((*to_apply, self.module.comp(*to_apply).root, Some(&call)), drawing);
            }
            // A square is never negative.
            Op::Binary(BinaryOp::Multiply) if operands[0] == operands[1] => {}
            Op::Binary(BinaryOp::Subtract) if drawing == Drawing::Positive => {
                self.back((comp, operands[0], outer), drawing);
                let squared = self.module.comp(comp).instr(operands[1]);
                if squared.op == Op::Binary(BinaryOp::Multiply) && squared.operands[0] == squared.operands[1] {
                    self.back((comp, squared.operands[0], outer), Drawing::Small);
                }
            }
            Op::Binary(BinaryOp::Add | BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Maximum) => {
                operands.iter().for_each(|&operand| self.back((comp, operand, outer), drawing));
            }
            Op::Convert | Op::Reshape | Op::Broadcast { .. } | Op::Transpose { .. } => {
                self.back((comp, operands[0], outer), drawing);
            }
            Op::Select => operands[1..].iter().for_each(|&operand| self.back((comp, operand, outer), drawing)),
            Op::Reduce { .. } if drawing == Drawing::Positive => self.back((comp, operands[0], outer), drawing),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::text;

    fn of_text(body: &str) -> BTreeMap<i64, Drawing> {
        drawings(&text::parse(&format!("HloModule m\n\n{body}"), "m.txt").unwrap_or_else(|error| panic!("{error}")))
    }

    /// Adam: the second moment under a root, through its decay; the first moment and the gradient stay normal.
    #[test]
    fn a_second_moment_is_positive() {
        let adam = "ENTRY m {\n  m = f32[2] parameter(0)\n  v = f32[2] parameter(1)\n  g = f32[2] parameter(2)\n  \
                    d = f32[] constant(0.999)\n  decay = f32[2] broadcast(d), dimensions={}\n  old = f32[2] multiply(decay, v)\n  \
                    square = f32[2] multiply(g, g)\n  new = f32[2] add(old, square)\n  root = f32[2] sqrt(new)\n  \
                    first = f32[2] add(m, g)\n  ROOT q = f32[2] divide(first, root)\n}\n";
        assert_eq!(of_text(adam), BTreeMap::from([(1, Drawing::Positive)]));
    }

    #[test]
    fn a_mean_below_a_mean_of_squares_is_small_and_calls_are_followed() {
        let centered = "root {\n  a = f32[2] parameter(0)\n  b = f32[2] parameter(1)\n  square = f32[2] multiply(b, b)\n  \
                        rest = f32[2] subtract(a, square)\n  ROOT r = f32[2] rsqrt(rest)\n}\n\nENTRY m {\n  \
                        s = f32[2] parameter(0)\n  mean = f32[2] parameter(1)\n  other = f32[2] parameter(2)\n  \
                        ROOT c = f32[2] call(s, mean), to_apply=root\n}\n";
        assert_eq!(of_text(centered), BTreeMap::from([(0, Drawing::Positive), (1, Drawing::Small)]));
    }

    #[test]
    fn what_is_drawn_has_a_root() {
        for normal in [-5.0f32, -0.1, 0.0, 3.0] {
            let (positive, small) = (Drawing::Positive.number(normal), Drawing::Small.number(normal));
            assert!(positive >= 0.5 && small * small < 0.25 && Drawing::Normal.number(normal) == normal);
        }
    }
}
