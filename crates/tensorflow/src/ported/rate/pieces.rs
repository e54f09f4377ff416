//! Whether a rate is of pieces: the step decides only, by comparisons, which of several constants it is.

use std::collections::HashMap;

use crate::graph::{Body, Graph};
use crate::node::Edge;

/// Nodes at most that are followed; functions may call each other without end.
const MAX_NODES: usize = 1_000;

/// The deepest path that is followed.
const MAX_DEPTH: usize = 300;

/// Whether no number is computed from the step on the way to a rate. A rate that is too large to follow is of no pieces.
pub(super) fn is_of_pieces(graph: &Graph, rate: Edge) -> bool {
    let mut walk = Walk { graph, n_nodes: 0 };
    walk.varies(&graph.body, rate, &mut HashMap::new(), 0) == Some(false)
}

struct Walk<'g> {
    graph: &'g Graph,
    n_nodes: usize,
}

impl Walk<'_> {
    /// Whether a number is computed from a variable; `None` if that is not known.
    fn varies(
        &mut self,
        body: &Body,
        edge: Edge,
        known: &mut HashMap<usize, Option<bool>>,
        depth: usize,
    ) -> Option<bool> {
        if let Some(varies) = known.get(&edge.node) {
            return *varies;
        }
        self.n_nodes += 1;
        if self.n_nodes > MAX_NODES || depth > MAX_DEPTH {
            return None;
        }
        let node = &body.nodes[edge.node];
        let inputs = &node.inputs[..];
        let varies = match node.op.as_str() {
            "VarHandleOp" | "VariableV2" | "Variable" => Some(true),
            "Less" | "LessEqual" | "Greater" | "GreaterEqual" | "Equal" | "NotEqual" | "LogicalAnd" | "LogicalOr"
            | "LogicalNot" => Some(false),
            "Select" | "SelectV2" | "Where" => self.any(body, inputs.get(1..)?, known, depth),
            "Switch" | "RefSwitch" => self.any(body, inputs.get(..1)?, known, depth),
            "If" | "StatelessIf" => self.branches(body, edge, known, depth),
            _ => self.any(body, inputs, known, depth),
        };
        known.insert(edge.node, varies);
        varies
    }

    fn any(
        &mut self,
        body: &Body,
        edges: &[Edge],
        known: &mut HashMap<usize, Option<bool>>,
        depth: usize,
    ) -> Option<bool> {
        let varies = edges.iter().map(|edge| self.varies(body, *edge, known, depth + 1));
        varies.collect::<Option<Vec<bool>>>().map(|varies| varies.contains(&true))
    }

    /// Whether the result of one of a condition's branches varies.
    fn branches(
        &mut self,
        body: &Body,
        edge: Edge,
        known: &mut HashMap<usize, Option<bool>>,
        depth: usize,
    ) -> Option<bool> {
        let node = &body.nodes[edge.node];
        let arguments = node.inputs.get(1..)?.iter().map(|edge| self.varies(body, *edge, known, depth + 1));
        let arguments: Vec<Option<bool>> = arguments.collect();
        let mut any = false;
        for branch in ["then_branch", "else_branch"] {
            let function = self.graph.functions.get(node.function(branch)?)?;
            let mut inside: HashMap<usize, Option<bool>> = arguments.iter().copied().enumerate().collect();
            any |= self.varies(&function.body, *function.returns.get(edge.output)?, &mut inside, depth + 1)?;
        }
        Some(any)
    }
}
