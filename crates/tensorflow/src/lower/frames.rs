//! The frames of v1 loops, which `Enter` opens and `Exit` leaves.
//!
//! Source: `BuildControlFlowInfo` in TensorFlow's `core/graph/control_flow.cc`.

use std::collections::BTreeMap;

use crate::graph::Body;
use crate::index_map::{IndexMap, IndexSet};
use crate::node::Edge;

/// A loop.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    pub name: String,
    /// The frame around it; `None` for the body itself.
    pub parent: Option<usize>,
    pub enters: Vec<usize>,
    pub merges: Vec<usize>,
    pub condition: Option<usize>,
    pub exits: Vec<usize>,
}

/// The frames of a body.
#[derive(Clone, Debug, Default)]
pub(super) struct Frames {
    pub frames: Vec<Frame>,
    /// The frame of each node that is in one.
    pub of_node: IndexMap<usize, usize>,
    switches: IndexSet<usize>,
    /// Frames whose body is lowered once, as a step, because a target is inside of them.
    pub opened: IndexSet<usize>,
    /// Nodes that are inputs of the program; their own inputs (a host's iterator) are not lowered.
    pub fed: IndexSet<usize>,
}

fn is_enter(op: &str) -> bool {
    matches!(op, "Enter" | "RefEnter")
}

fn is_exit(op: &str) -> bool {
    matches!(op, "Exit" | "RefExit")
}

fn is_merge(op: &str) -> bool {
    matches!(op, "Merge" | "RefMerge")
}

impl Frames {
    /// Finds the frames of a body.
    pub(super) fn from_body(body: &Body) -> Frames {
        let mut all = Frames::default();
        if !body.nodes.iter().any(|node| is_enter(&node.op)) {
            return all;
        }
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); body.nodes.len()];
        for (idx, node) in body.nodes.iter().enumerate() {
            node.inputs.iter().map(|edge| edge.node).chain(node.controls.iter().copied()).for_each(|from| {
                readers[from].push(idx);
            });
        }
        let mut by_name: BTreeMap<(Option<usize>, String), usize> = BTreeMap::new();
        let mut pending: Vec<(usize, Option<usize>)> = Vec::new();
        let is_root = |idx: &usize| body.nodes[*idx].inputs.is_empty() && body.nodes[*idx].controls.is_empty();
        let mut seen: IndexSet<usize> = IndexSet::default();
        pending.extend((0..body.nodes.len()).filter(is_root).map(|idx| (idx, None)));
        while let Some((idx, outer)) = pending.pop() {
            if !seen.insert(idx) {
                continue;
            }
            let node = &body.nodes[idx];
            let mut inner = outer;
            if is_enter(&node.op) {
                let key = (outer, node.text("frame_name").to_string());
                let frame = *by_name.entry(key).or_insert_with_key(|(parent, name)| {
                    all.frames.push(Frame { name: name.clone(), parent: *parent, ..Frame::default() });
                    all.frames.len() - 1
                });
                all.frames[frame].enters.push(idx);
                inner = Some(frame);
            }
            if let Some(frame) = inner {
                all.of_node.insert(idx, frame);
                let entry = &mut all.frames[frame];
                if is_merge(&node.op)
                    && node.inputs.iter().any(|edge| body.nodes[edge.node].op.ends_with("NextIteration"))
                {
                    entry.merges.push(idx);
                } else if node.op == "LoopCond" {
                    entry.condition = Some(idx);
                } else if is_exit(&node.op) {
                    entry.exits.push(idx);
                    inner = entry.parent;
                }
            }
            pending.extend(readers[idx].iter().map(|reader| (*reader, inner)));
        }
        for frame in &mut all.frames {
            frame.enters.sort_unstable();
            frame.merges.sort_unstable();
            frame.exits.sort_unstable();
        }
        let conditions: IndexSet<usize> = all.frames.iter().filter_map(|frame| frame.condition).collect();
        all.switches = (0..body.nodes.len())
            .filter(|idx| {
                let node = &body.nodes[*idx];
                node.op.ends_with("Switch") && node.inputs.get(1).is_some_and(|edge| conditions.contains(&edge.node))
            })
            .collect();
        all
    }

    /// Opens the frames around a target.
    pub(super) fn open(&mut self, node: usize) {
        // An exit's value is outside of its loop.
        let is_exit = |frame: &usize| self.frames[*frame].exits.contains(&node);
        let mut frame = self.of_node.get(&node).copied();
        if let Some(inner) = frame.filter(is_exit) {
            frame = self.frames[inner].parent;
        }
        while let Some(idx) = frame {
            self.opened.insert(idx);
            frame = self.frames[idx].parent;
        }
    }

    /// Whether a node is a loop's switch, which continues or leaves the loop by its condition.
    pub(super) fn is_loop_switch(&self, node: usize) -> bool {
        self.switches.contains(&node)
    }

    /// The nodes of each frame, without those of frames inside of it.
    pub(super) fn inside(&self) -> Vec<Vec<usize>> {
        let mut inside = vec![Vec::new(); self.frames.len()];
        self.of_node.iter().for_each(|(node, frame)| inside[*frame].push(*node));
        inside
    }

    /// Whether a node is in a loop that is lowered as a step.
    pub(super) fn is_opened(&self, node: usize) -> bool {
        self.of_node.get(&node).is_some_and(|frame| self.opened.contains(frame))
    }

    /// The value with which an exit leaves a loop that is lowered as a step: what the next trip would begin with. `None` for
    /// other nodes.
    pub(super) fn after_step(&self, body: &Body, exit: usize) -> Option<Edge> {
        if !is_exit(&body.nodes[exit].op) || !self.is_opened(exit) {
            return None;
        }
        // A gradient's identities may be between the switch and its exit.
        let mut at = body.nodes[exit].inputs.first()?.node;
        for _ in 0..8 {
            if self.is_loop_switch(at) {
                break;
            }
            at = body.nodes[at].inputs.first()?.node;
        }
        let merge = body.nodes[at].inputs.first().filter(|_| self.is_loop_switch(at))?.node;
        let next = body.nodes[merge].inputs.iter().find(|edge| body.nodes[edge.node].op.ends_with("NextIteration"))?;
        body.nodes[next.node].inputs.first().copied()
    }

    /// Adds the nodes that a node depends on: its inputs; for a loop's exit everything that enters the loop.
    pub(super) fn before(&self, body: &Body, node: usize, all: &mut Vec<usize>) {
        let edges = |node: usize| {
            let node = &body.nodes[node];
            node.inputs.iter().map(|edge| edge.node).chain(node.controls.iter().copied())
        };
        let op = body.nodes[node].op.as_str();
        if self.fed.contains(&node) {
            // Its value is a parameter.
        } else if let Some(edge) = self.after_step(body, node) {
            all.push(edge.node);
        } else if op == "TPUReplicatedInput" {
            // The program is that of the first replica.
            all.extend(edges(node).next());
        } else if is_exit(op) && !self.is_opened(node) {
            let frame = self.of_node.get(&node).map(|frame| &self.frames[*frame]);
            all.extend(frame.iter().flat_map(|frame| &frame.enters).flat_map(|enter| edges(*enter)));
        } else if is_merge(op) && self.is_opened(node) {
            // The step is the first trip, so the value comes from outside.
            let is_next = |node: &usize| body.nodes[*node].op.ends_with("NextIteration");
            all.extend(edges(node).filter(|node| !is_next(node)));
        } else if self.is_loop_switch(node) {
            // The condition is not needed: the loop's body or its step is lowered in either case.
            all.extend(body.nodes[node].inputs.first().map(|edge| edge.node));
        } else {
            all.extend(edges(node));
        }
    }
}
