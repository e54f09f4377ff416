//! Graphs of regions, each built once, and choices by scores that enter a loop or a branch, or leave one.
//!
//! `through` asks a region which of its operands are scores, given which of them are computed from products outside
//! and which of its results are scores outside. A loop is asked until its state no longer changes: the results of one
//! step are the operands of the next.

use super::assignment::{RegionContext, RegionKind};
use super::dataflow::{CALL_ROOM, Dataflow};
use super::discrete_choices::{Choices, Through, discrete_choices};
use super::policy::Classes;
use super::sums;
use bf16scope_hlo::{CompId, Op};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The graphs of a module's regions, and what is known of their scores.
pub(super) struct Regions<'m> {
    pub classes: Classes<'m>,
    graphs: BTreeMap<CompId, Rc<Dataflow<'m>>>,
    known: BTreeMap<(CompId, RegionContext), (Vec<bool>, Vec<bool>)>,
}

impl<'m> Regions<'m> {
    pub(super) fn new(classes: Classes<'m>) -> Regions<'m> {
        Regions { classes, graphs: BTreeMap::new(), known: BTreeMap::new() }
    }

    /// The graph of a region to which calls may add `room`. It is built once, unless too little room is left for it.
    pub(super) fn graph(&mut self, comp: CompId, room: usize) -> Rc<Dataflow<'m>> {
        if let Some(graph) = self.graphs.get(&comp).filter(|graph| graph.fits(room)) {
            return Rc::clone(graph);
        }
        let graph = Rc::new(sums::graph(&self.classes, comp, room));
        self.graphs.entry(comp).or_insert_with(|| Rc::clone(&graph));
        graph
    }

    /// Finds the choices of a region that has this graph.
    pub(super) fn choices(&mut self, graph: &Dataflow<'_>, kind: RegionKind, around: &RegionContext) -> Choices {
        discrete_choices(graph, kind, around, &mut |op, context| self.through(op, context))
    }

    fn through(&mut self, op: &Op, context: RegionContext) -> Through {
        if let Op::While { body, .. } = op {
            let mut around = context;
            let body_graph = self.graph(*body, CALL_ROOM);
            let is_same = body_graph.parameters().zip(&body_graph.results).map(|(before, &after)| before == after);
            for (operand, is_kept) in around.operands.iter_mut().zip(is_same) {
                operand.is_constant &= is_kept;
                operand.is_of_products_alone &= is_kept;
            }
            loop {
                let before = around.clone();
                let (scores, learned) = self.region(*body, &around);
                mark(around.operands.iter_mut().map(|operand| &mut operand.is_learned), &learned);
                mark(around.scores.iter_mut(), &scores);
                if around == before {
                    break;
                }
            }
            let condition = RegionContext { scores: Vec::new(), ..around.clone() };
            return Through {
                learned: around.learned(),
                scores: around.scores.clone(),
                around: vec![condition, around],
            };
        }
        // The first operand selects the branch.
        let mut through =
            Through { learned: vec![false; context.scores.len()], scores: vec![false], around: Vec::new() };
        for comp in op.called() {
            let first = through.scores.len();
            let n_taken = self.graph(comp, CALL_ROOM).parameters().count();
            let operands = context.operands.get(first..first + n_taken).unwrap_or_default().to_vec();
            let around = RegionContext { operands, ..context.clone() };
            let (scores, learned) = self.region(comp, &around);
            through.scores.extend(scores);
            mark(through.learned.iter_mut(), &learned);
            through.around.push(around);
        }
        through
    }

    /// Which of a region's operands are scores, and which of its results are computed from products.
    fn region(&mut self, comp: CompId, around: &RegionContext) -> (Vec<bool>, Vec<bool>) {
        let key = (comp, around.clone());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let graph = self.graph(comp, CALL_ROOM);
        let Choices { scores, learned, .. } = self.choices(&graph, RegionKind::Body, around);
        self.known.insert(key, (scores.clone(), learned.clone()));
        (scores, learned)
    }
}

/// Sets the flags whose place is marked.
fn mark<'f>(flags: impl Iterator<Item = &'f mut bool>, marks: &[bool]) {
    flags.zip(marks).for_each(|(flag, &is_marked)| *flag |= is_marked);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amp::Policy;
    use bf16scope_hlo::text;

    #[test]
    fn a_graph_is_built_again_only_where_its_calls_have_too_little_room() {
        let module = text::parse(
            "HloModule m\n\nsquare {\n  a = f32[4] parameter(0)\n  ROOT b = f32[4] multiply(a, a)\n}\n\n\
             ENTRY main {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] call(x), to_apply=square\n}\n",
            "m",
        )
        .unwrap();
        let policy = Policy::default();
        let mut regions = Regions::new(Classes::new(&policy, &module));
        let whole = regions.graph(module.entry, CALL_ROOM);
        let room = whole.taken_room;
        assert_eq!(whole.frames.len(), 2);
        assert!(Rc::ptr_eq(&whole, &regions.graph(module.entry, room)));
        let cut = regions.graph(module.entry, room - 1);
        assert_eq!((cut.frames.len(), cut.taken_room), (1, 0));
        assert!(cut.fits(room - 1) && !cut.fits(room));
        assert!(Rc::ptr_eq(&whole, &regions.graph(module.entry, CALL_ROOM)));
    }
}
