//! Ports learned positions: a table whose first rows are added to each example.

use super::{Porting, Symbol};
use crate::node::{Edge, Node};
use crate::ported::symbols::constant;

/// A table of positions, and what it is added to.
pub(super) struct PositionTable {
    x: String,
    table: Edge,
    variable: String,
    rows: i64,
    /// Whether the variable has an axis of length 1 for the batch.
    has_batch: bool,
}

impl Porting<'_, '_> {
    /// The table of a sum of a sequence and a table's rows.
    pub(super) fn position_table(&self, node: &Node) -> Option<PositionTable> {
        let sides = [(0, 1), (1, 0)].into_iter().find_map(|(number, other)| match self.symbols.input(node, number) {
            Symbol::Layer(x) => Some((x, *node.inputs.get(other)?)),
            _ => None,
        });
        let (x, added) = sides?;
        let [length, features] = self.dims.get(&x)?[..] else { return None };
        if node.inputs.iter().any(|edge| self.rows.contains(&edge.node)) {
            return None;
        }
        let table = self.rows_of_table(added, length)?;
        let Symbol::Variable { name, dims } = self.symbols.of_edge.get(&table)? else { return None };
        let (rows, has_batch) = match dims[..] {
            [rows, width] if width == features => (rows, false),
            [1, rows, width] if width == features && rows == length => (rows, true),
            _ => return None,
        };
        (rows >= length).then(|| PositionTable { x, table, variable: name.clone(), rows, has_batch })
    }

    /// The layer of such a sum.
    pub(super) fn positions(&mut self, node: &Node) -> Symbol {
        let Some(PositionTable { x, table, variable, rows, has_batch }) = self.position_table(node) else {
            return self.unclaimed(node);
        };
        let Some((layer, _)) = self.claim_edge(table, "embeddings") else { return self.unclaimed(node) };
        if has_batch {
            self.port.layouts.insert(variable, "ones: [0], write_ones: true".to_string());
        }
        self.initials.iter_mut().for_each(|(option, _)| *option = "initializer");
        self.push_named(&layer, node, "position_embedding", rows, Vec::new(), vec![x])
    }

    /// The table whose first rows a tensor is, or that it is as a whole.
    fn rows_of_table(&self, edge: Edge, length: i64) -> Option<Edge> {
        let symbols = &self.symbols;
        let mut edge = edge;
        for _ in 0..8 {
            let node = symbols.node(edge.node);
            let number = |input: usize| symbols.scalar(node, input);
            let values = |input: usize| Some(constant(symbols.node(symbols.behind(*node.inputs.get(input)?).node))?.1);
            let first = *node.inputs.first()?;
            match node.op.as_str() {
                "ReadVariableOp" | "Identity" | "Cast" | "Enter" => edge = first,
                "ExpandDims" if number(1) == Some(0.0) => edge = first,
                "Reshape" if symbols.sizes(node).first() == Some(&1) => edge = first,
                "ResourceGather" | "Gather" | "GatherV2" => {
                    let indices = symbols.node(symbols.behind(*node.inputs.get(1)?).node);
                    let is_range = || {
                        let [start, limit, delta] = [0, 1, 2].map(|input| symbols.scalar(indices, input));
                        indices.op == "Range" && [start, limit, delta] == [Some(0.0), Some(length as f64), Some(1.0)]
                    };
                    let is_listed = || {
                        constant(indices)
                            .is_some_and(|(_, rows)| rows.iter().copied().eq((0..length).map(|row| row as f64)))
                    };
                    return (is_range() || is_listed()).then_some(first);
                }
                "Slice" => {
                    let is_first = values(1)?.iter().all(|begin| *begin == 0.0);
                    let size = *values(2)?.first()?;
                    return (is_first && size == length as f64).then_some(first);
                }
                "StridedSlice" => {
                    let is_plain = ["ellipsis_mask", "new_axis_mask", "shrink_axis_mask"]
                        .iter()
                        .all(|mask| node.int(mask).unwrap_or(0) == 0);
                    let is_first = node.int("begin_mask").unwrap_or(0) & 1 == 1 || values(1)?.first() == Some(&0.0);
                    let is_one = values(3)?.iter().all(|stride| *stride == 1.0);
                    let ends = *values(2)?.first()? == length as f64 && node.int("end_mask").unwrap_or(0) & 1 == 0;
                    return (is_plain && is_first && is_one && ends && values(2)?.len() == 1).then_some(first);
                }
                _ => break,
            }
        }
        Some(edge)
    }
}
