//! Every opcode that HLO has, whether it is modelled here or not.
//!
//! Text may be written by people, so an opcode that is not in this table is treated as misspelt. A proto is written by
//! programs: any opcode is accepted there, so that a module of a newer XLA is preserved.
//!
//! Source: `HLO_OPCODE_LIST` in XLA's `hlo_opcode.h` as of November 2026, and opcodes that earlier lists had.

/// XLA's opcodes, in alphabetical order.
pub const OPCODES: [&str; 139] = [
    "abs",
    "acos",
    "acosh",
    "add",
    "add-dependency",
    "after-all",
    "all-gather",
    "all-gather-done",
    "all-gather-start",
    "all-reduce",
    "all-reduce-done",
    "all-reduce-start",
    "all-to-all",
    "and",
    "asin",
    "asinh",
    "async-done",
    "async-start",
    "async-update",
    "atan",
    "atan2",
    "atanh",
    "batch-norm-grad",
    "batch-norm-inference",
    "batch-norm-training",
    "bit-reverse",
    "bitcast",
    "bitcast-convert",
    "broadcast",
    "call",
    "cbrt",
    "ceil",
    "cholesky",
    "clamp",
    "collective-broadcast",
    "collective-permute",
    "collective-permute-done",
    "collective-permute-start",
    "collective-reduce",
    "compare",
    "complex",
    "concatenate",
    "conditional",
    "constant",
    "convert",
    "convolution",
    "copy",
    "copy-done",
    "copy-start",
    "cosh",
    "cosine",
    "count-leading-zeros",
    "custom-call",
    "divide",
    "domain",
    "dot",
    "dynamic-reshape",
    "dynamic-slice",
    "dynamic-update-slice",
    "erf",
    "exponential",
    "exponential-minus-one",
    "fft",
    "floor",
    "fusion",
    "gather",
    "get-dimension-size",
    "get-tuple-element",
    "imag",
    "infeed",
    "iota",
    "is-finite",
    "log",
    "log-plus-one",
    "logistic",
    "map",
    "maximum",
    "minimum",
    "mulhi",
    "multiply",
    "negate",
    "not",
    "opt-barrier",
    "or",
    "outfeed",
    "pad",
    "parameter",
    "partition-id",
    "popcnt",
    "power",
    "ragged-all-to-all",
    "ragged-dot",
    "real",
    "recv",
    "recv-done",
    "reduce",
    "reduce-precision",
    "reduce-scatter",
    "reduce-window",
    "remainder",
    "replica-id",
    "reshape",
    "reverse",
    "rng",
    "rng-bit-generator",
    "rng-get-and-update-state",
    "round-nearest-afz",
    "round-nearest-even",
    "rsqrt",
    "scaled-dot",
    "scan",
    "scatter",
    "select",
    "select-and-scatter",
    "send",
    "send-done",
    "set-dimension-size",
    "shift-left",
    "shift-right-arithmetic",
    "shift-right-logical",
    "shuffle",
    "sign",
    "sine",
    "sinh",
    "slice",
    "sort",
    "sqrt",
    "stochastic-convert",
    "subtract",
    "tan",
    "tanh",
    "topk",
    "trace",
    "transpose",
    "triangular-solve",
    "tuple",
    "tuple-select",
    "while",
    "xor",
];

/// Suffixes of opcodes in text for ops that run asynchronously, as in `custom-call-start`.
const ASYNC: [&str; 3] = ["-start", "-update", "-done"];

/// Whether HLO text may have this opcode.
pub fn is_known(opcode: &str) -> bool {
    let listed = |opcode: &str| OPCODES.binary_search(&opcode).is_ok();
    listed(opcode) || ASYNC.iter().any(|suffix| opcode.strip_suffix(suffix).is_some_and(listed))
}

/// The op that a short form of text stands for, such as `slice` for `slice-start`: an `async-start` whose computation
/// is only that op. A proto has no such opcode.
pub fn short_async(opcode: &str) -> Option<&str> {
    let listed = |opcode: &str| OPCODES.binary_search(&opcode).is_ok();
    let wrapped = ASYNC.iter().find_map(|suffix| opcode.strip_suffix(suffix))?;
    (listed(wrapped) && !listed(opcode)).then_some(wrapped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::samples::all_ops;

    #[test]
    fn every_op_is_listed_once() {
        assert!(OPCODES.is_sorted_by(|a, b| a < b));
        for op in all_ops() {
            assert!(is_known(&op.opcode()), "{}", op.opcode());
        }
        assert!(is_known("custom-call-start") && is_known("dot-update"));
        assert_eq!(
            ["slice-start", "dot-done", "all-reduce-start", "add"].map(short_async),
            [Some("slice"), Some("dot"), None, None]
        );
        assert!(!is_known("addd") && !is_known("") && !is_known("-start"));
    }
}
