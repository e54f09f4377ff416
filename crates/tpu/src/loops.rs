//! Execution counts of an optimized program's computations, and its cycles: the compiler's figures count a loop's body
//! once, whatever its trip count.
//!
//! The trip count is known for counting loops: an s32 element of the state starts at a constant, the condition compares
//! it with a constant (`LT`), the body adds a constant. Frameworks emit scans like this, and so does `Graph::scan`.
//! Bodies of other loops count once.

use bf16scope_hlo::proto::messages::{HloComputationProto, HloInstructionProto, HloModuleProto};
use std::collections::BTreeMap;

/// How often each computation is executed in one run of the program, by id.
pub(super) fn n_executions(module: &HloModuleProto) -> BTreeMap<i64, u64> {
    let computations: BTreeMap<i64, &HloComputationProto> =
        module.computations.iter().map(|computation| (computation.id, computation)).collect();
    let mut n_executions: BTreeMap<i64, u64> = computations.keys().map(|&id| (id, 1)).collect();
    // Callers come after the computations they call, so from the back each count is final before it is used.
    for computation in module.computations.iter().rev() {
        let outer = n_executions[&computation.id];
        for instr in &computation.instructions {
            let inner = match instr.opcode.as_str() {
                "while" => outer.saturating_mul(trip_count(computation, instr, &computations).unwrap_or(1)),
                _ => outer,
            };
            for id in &instr.called_computation_ids {
                if let Some(n_executions) = n_executions.get_mut(id) {
                    *n_executions = inner.max(*n_executions);
                }
            }
        }
    }
    n_executions
}

/// Sums of `estimated_cycles` over the instructions of the optimized program.
pub(super) struct Cycles {
    /// Each instruction once.
    pub(super) once: u64,
    /// Each instruction, as often as it is executed.
    pub(super) all: u64,
    /// Instructions without an estimate, as often as they are executed.
    pub(super) n_unknown: u64,
}

impl Cycles {
    /// The factor for figures that count each instruction once. The compiler's cost analysis does, without showing
    /// which part of a figure belongs to a loop: the loop's share of the cycles is used instead.
    pub(super) fn share(&self) -> f64 {
        if self.all == self.once { 1.0 } else { self.all as f64 / self.once as f64 }
    }
}

/// The cycles of an optimized program.
pub(super) fn cycles(optimized: &HloModuleProto) -> Cycles {
    let n_executions = n_executions(optimized);
    let mut cycles = Cycles { once: 0, all: 0, n_unknown: 0 };
    for computation in &optimized.computations {
        let estimates = computation.instructions.iter().map(|instr| estimated_cycles(&instr.backend_config));
        let (once, n_unknown) = estimates.fold((0u64, 0u64), |(sum, n), estimate| match estimate {
            Estimate::Cycles(cycles) => (sum.saturating_add(cycles), n),
            Estimate::Unknown => (sum, n + 1),
        });
        let n_runs = n_executions.get(&computation.id).copied().unwrap_or(1);
        cycles.once = cycles.once.saturating_add(once);
        cycles.all = cycles.all.saturating_add(once.saturating_mul(n_runs));
        cycles.n_unknown = cycles.n_unknown.saturating_add(n_unknown.saturating_mul(n_runs));
    }
    cycles
}

/// The trip count of a counting loop.
fn trip_count(
    outer: &HloComputationProto,
    instr: &HloInstructionProto,
    computations: &BTreeMap<i64, &HloComputationProto>,
) -> Option<u64> {
    let [body, condition] = instr.called_computation_ids[..] else { return None };
    let (body, condition) = (computations.get(&body)?, computations.get(&condition)?);
    let compare = find(condition, condition.root_id)?;
    let [counter, end] = compare.operand_ids[..] else { return None };
    if compare.opcode != "compare" || compare.comparison_direction != "LT" {
        return None;
    }
    let counter = find(condition, counter).filter(|counter| counter.opcode == "get-tuple-element")?;
    let index = counter.tuple_index;
    let end = constant(condition, end)?;
    let start = constant(outer, element(outer, *instr.operand_ids.first()?, index)?)?;
    let next = without_copies(body, element(body, body.root_id, index)?)?;
    let [lhs, rhs] = next.operand_ids[..] else { return None };
    let is_counter = |id: i64| {
        without_copies(body, id).is_some_and(|from| from.opcode == "get-tuple-element" && from.tuple_index == index)
    };
    let step = match next.opcode.as_str() {
        "add" if is_counter(lhs) => constant(body, rhs)?,
        "add" if is_counter(rhs) => constant(body, lhs)?,
        _ => return None,
    };
    if step < 1 {
        return None;
    }
    u64::try_from((end - start + step - 1).div_euclid(step)).ok()
}

fn find(computation: &HloComputationProto, id: i64) -> Option<&HloInstructionProto> {
    computation.instructions.iter().find(|instr| instr.id == id)
}

/// Element `index` of a tuple instruction.
fn element(computation: &HloComputationProto, tuple: i64, index: i64) -> Option<i64> {
    let tuple = find(computation, tuple).filter(|tuple| tuple.opcode == "tuple")?;
    tuple.operand_ids.get(usize::try_from(index).ok()?).copied()
}

/// The instruction, or the one that it is a copy of.
fn without_copies(computation: &HloComputationProto, id: i64) -> Option<&HloInstructionProto> {
    let mut instr = find(computation, id)?;
    while let ("copy" | "bitcast", [operand]) = (instr.opcode.as_str(), &instr.operand_ids[..]) {
        instr = find(computation, *operand)?;
    }
    Some(instr)
}

/// The value of an s32 constant.
fn constant(computation: &HloComputationProto, id: i64) -> Option<i64> {
    let literal = without_copies(computation, id)?.literal.as_ref()?;
    match literal.s32s[..] {
        [value] => Some(i64::from(value)),
        _ => None,
    }
}

/// The compiler's estimate for one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimate {
    /// The cycles; 0 without an estimate.
    Cycles(u64),
    /// Unknown to the compiler: the largest int64, for example for a custom kernel.
    Unknown,
}

impl Estimate {
    /// The cycles if they are known, otherwise 0.
    pub(super) fn known(self) -> u64 {
        match self {
            Estimate::Cycles(cycles) => cycles,
            Estimate::Unknown => 0,
        }
    }

    fn plus(self, other: Estimate) -> Estimate {
        match (self, other) {
            (Estimate::Cycles(one), Estimate::Cycles(other)) => Estimate::Cycles(one.saturating_add(other)),
            (Estimate::Unknown, _) | (_, Estimate::Unknown) => Estimate::Unknown,
        }
    }

    /// From the compiler's figure. No kernel takes a quarter of the largest int64: 77 years at 940 MHz.
    pub(super) fn new(cycles: u64) -> Estimate {
        if cycles > i64::MAX as u64 / 4 { Estimate::Unknown } else { Estimate::Cycles(cycles) }
    }
}

/// Cycles in an instruction's `backend_config`, which is JSON: the figure may be in any object of it.
pub(super) fn estimated_cycles(backend_config: &[u8]) -> Estimate {
    fn sum(value: &serde_json::Value) -> Estimate {
        let nothing = Estimate::Cycles(0);
        match value {
            serde_json::Value::Object(members) => members.iter().fold(nothing, |total, (name, value)| {
                total.plus(match name.as_str() {
                    // int64 is a string in protobuf's JSON; negative values are unknown too.
                    "estimated_cycles" => {
                        match value.as_str().and_then(|text| text.parse::<i64>().ok()).or(value.as_i64()) {
                            Some(cycles) => u64::try_from(cycles).map_or(Estimate::Unknown, Estimate::new),
                            None => value.as_u64().map_or(nothing, Estimate::new),
                        }
                    }
                    _ => sum(value),
                })
            }),
            serde_json::Value::Array(elements) => {
                elements.iter().fold(nothing, |total, element| total.plus(sum(element)))
            }
            _ => nothing,
        }
    }
    serde_json::from_slice(backend_config).map_or(Estimate::Cycles(0), |config| sum(&config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::proto::encode;
    use bf16scope_hlo::text::parse;
    use prost::Message;

    fn turns_of(step: &str, direction: &str, n: u32) -> Vec<(String, u64)> {
        let text = format!(
            "HloModule m

body {{
  state = (s32[], f32[4]) parameter(0)
  turn = s32[] get-tuple-element(state), index=0
  step = s32[] constant({step})
  next = s32[] add(turn, step)
  x = f32[4] get-tuple-element(state), index=1
  ROOT new = (s32[], f32[4]) tuple(next, x)
}}

condition {{
  state.1 = (s32[], f32[4]) parameter(0)
  turn.1 = s32[] get-tuple-element(state.1), index=0
  end = s32[] constant({n})
  ROOT less = pred[] compare(turn.1, end), direction={direction}
}}

ENTRY main {{
  x.1 = f32[4] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[4]) tuple(zero, x.1)
  ROOT last = (s32[], f32[4]) while(init), condition=condition, body=body
}}
"
        );
        let module = parse(&text, "loop.hlo").unwrap();
        let proto = HloModuleProto::decode(&encode::to_bytes(&module).unwrap()[..]).unwrap();
        let n_executions = n_executions(&proto);
        proto.computations.iter().map(|computation| (computation.name.clone(), n_executions[&computation.id])).collect()
    }

    #[test]
    fn loops_that_count_are_counted_and_others_are_not() {
        let expected = |n| [("body", n), ("condition", n), ("main", 1)].map(|(name, n)| (name.to_string(), n)).to_vec();
        assert_eq!(turns_of("1", "LT", 8), expected(8));
        assert_eq!(turns_of("3", "LT", 8), expected(3));
        assert_eq!(turns_of("0", "LT", 8), expected(1));
        assert_eq!(turns_of("1", "NE", 8), expected(1));
    }

    #[test]
    fn cycles_are_found_where_they_stand() {
        let config = br#"{"window_config":{"estimated_cycles":"1470","x":["1"]},"list":[{"estimated_cycles":30}]}"#;
        assert_eq!(estimated_cycles(config), Estimate::Cycles(1500));
        assert_eq!(estimated_cycles(b""), Estimate::Cycles(0));
        // A kernel of a v6e: its program used to be reported with 9,223,372,036,856,358,017 cycles.
        let unknown =
            br#"{"window_config":{"estimated_cycles":"9223372036854775807"},"list":[{"estimated_cycles":30}]}"#;
        assert_eq!((estimated_cycles(unknown), estimated_cycles(unknown).known()), (Estimate::Unknown, 0));
    }
}
