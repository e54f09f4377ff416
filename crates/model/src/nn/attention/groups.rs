//! Attention within groups of positions, such as the windows of an image: the axes between the batch and the positions
//! are joined with the batch.

use super::{Attention, MaskKind, attention_masked};
use crate::document::{self, Node, Value};
use crate::graph::{Scope, Tensor};
use bf16scope_hlo::ops::RuleError;
use serde::Deserializer;

/// The axis of positions, as a number or a list of one.
pub(super) fn axis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    const EXPECTED: &str = "the axis of positions, such as `2` of `[batch, windows, positions, features]`";
    let number = |node: &Node| document::number(node, |n| n.fract() == 0.0 && n.abs() <= 255.0, EXPECTED);
    Node::read(deserializer, |node| match &node.value {
        Value::List(list) => match &list[..] {
            [axis] => number(axis),
            _ => Err(node.wrong(EXPECTED)),
        },
        _ => number(node),
    })
    .map(|axis| Some(axis as i64))
}

/// The remedy for inputs of more axes than attention reads.
pub(super) fn help(rank: usize) -> String {
    let axis = rank - 2;
    format!(
        "join axes, such as height and width, by `{{reshape: [-1, FEATURES]}}`; or write `attention_axes: {axis}`: positions of \
         axis {axis} see those with the same place on the axes before it"
    )
}

/// [`attention_masked`] of `[batch, groups…, positions, features]`.
#[track_caller]
pub(super) fn attention(
    s: &Scope,
    queries: &Tensor,
    memory: &Tensor,
    mask: Option<&Tensor>,
    name: &str,
    config: &Attention,
) -> Tensor {
    let all: Vec<&Tensor> = [Some(queries), Some(memory), mask].into_iter().flatten().collect();
    if let Some(poison) = all.iter().find(|tensor| tensor.is_poison()) {
        return (*poison).clone();
    }
    if let Err(error) = check(queries, memory, mask, config) {
        return s.layer(name, |s| s.graph().fail("attention", &all, error));
    }
    let dims = queries.dims();
    let n_groups: i64 = dims[..dims.len() - 2].iter().product();
    let joined = |x: &Tensor, n_last: usize| {
        let last = &x.dims()[x.rank() - n_last..];
        x.reshape([&[n_groups], last].concat())
    };
    let of_queries = joined(queries, 2);
    let of_memory = if memory.id == queries.id { of_queries.clone() } else { joined(memory, 2) };
    let of_mask = mask.map(|mask| joined(mask, mask.rank() + 2 - dims.len()));
    let config = Attention { attention_axes: None, ..*config };
    attention_masked(s, &of_queries, &of_memory, of_mask.as_ref(), name, &config).reshape(dims)
}

fn check(queries: &Tensor, memory: &Tensor, mask: Option<&Tensor>, config: &Attention) -> Result<(), RuleError> {
    let rank = queries.rank() as i64;
    let axis = config.attention_axes.unwrap_or_default();
    if rank < 3 || queries.axis(axis) != rank - 2 {
        let message =
            format!("attention_axes is {axis} of queries {}, expected {}", queries.shape(), (rank - 2).max(1));
        let help = "positions are the axis before the features: `permute` brings another there";
        return Err(RuleError::new("attention/axes", message).with_help(help));
    }
    let n_groups = queries.rank() - 2;
    let groups = &queries.dims()[..n_groups];
    let fits = |x: &Tensor, rank: usize| x.rank() == rank && x.dims().starts_with(groups);
    if !fits(memory, queries.rank()) {
        let message = format!(
            "memory {} does not fit queries {}, expected the same axes before the positions",
            memory.shape(),
            queries.shape()
        );
        return Err(RuleError::new("attention/shape", message));
    }
    let (n_last, words) = match config.mask {
        MaskKind::Padding => (1, "[batch, …, others]"),
        MaskKind::Segments => (1, "[batch, …, positions]"),
        MaskKind::Full => (2, "[batch, …, positions, others]"),
    };
    match mask {
        Some(mask) if !fits(mask, n_groups + n_last) => {
            let message = format!("mask {} is not {words} of queries {}", mask.shape(), queries.shape());
            Err(RuleError::new("attention/mask", message).with_help(super::masks::HELP))
        }
        _ => Ok(()),
    }
}
