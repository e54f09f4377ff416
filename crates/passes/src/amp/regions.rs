//! Choices by scores that enter a loop or a branch, or leave one.
//!
//! `through` asks a region which of its operands are scores, given which of them are computed from products outside
//! and which of its results are scores outside. A loop is asked until its state no longer changes: the results of one
//! step are the operands of the next.

use super::assignment::RegionKind;
use super::dataflow::{CALL_ROOM, Dataflow};
use super::discrete_choices::{Choices, RegionContext, Through, discrete_choices};
use super::exact;
use super::policy::Classes;
use bf16scope_hlo::{CompId, Module, Op};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The graphs of a module's regions, and what is known of their scores.
#[derive(Debug, Default)]
pub(super) struct Regions<'m> {
    graphs: BTreeMap<CompId, Rc<Dataflow<'m>>>,
    known: BTreeMap<(CompId, RegionContext), (Vec<bool>, Vec<bool>)>,
}

impl<'m> Regions<'m> {
    /// Finds the choices of a region that has this graph.
    pub(super) fn choices(
        &mut self,
        classes: &Classes<'_>,
        graph: &Dataflow<'m>,
        kind: RegionKind,
        around: &RegionContext,
    ) -> Choices {
        let module = graph.module;
        discrete_choices(graph, kind, around, &mut |op, context| self.through(module, classes, op, context))
    }

    fn through(&mut self, module: &'m Module, classes: &Classes<'_>, op: &Op, context: RegionContext) -> Through {
        let either = |ours: &[bool], theirs: &[bool]| -> Vec<bool> {
            ours.iter().zip(theirs).map(|(&ours, &theirs)| ours || theirs).collect()
        };
        if let Op::While { body, .. } = op {
            let mut around = context;
            let body_graph = self.graph(module, classes, *body);
            let is_same = body_graph.parameters().zip(&body_graph.results).map(|(before, &after)| before == after);
            let marks = around.constant.iter_mut().zip(&mut around.of_products_alone);
            marks.zip(is_same).for_each(|((is_constant, is_of_products), is_kept)| {
                *is_constant &= is_kept;
                *is_of_products &= is_kept;
            });
            loop {
                let (scores, learned) = self.region(module, classes, *body, &around);
                let (learned, scores) = (either(&around.learned, &learned), either(&around.scores, &scores));
                let next = RegionContext { learned, scores, ..around.clone() };
                if next == around {
                    break;
                }
                around = next;
            }
            let condition = RegionContext { scores: Vec::new(), ..around.clone() };
            return Through {
                learned: around.learned.clone(),
                scores: around.scores.clone(),
                around: vec![condition, around],
            };
        }
        // The first operand selects the branch.
        let mut through =
            Through { learned: vec![false; context.scores.len()], scores: vec![false], around: Vec::new() };
        for comp in op.called() {
            let first = through.scores.len();
            let n_taken = self.graph(module, classes, comp).parameters().count();
            let taken = |flags: &[bool]| flags.get(first..first + n_taken).unwrap_or_default().to_vec();
            let (learned, constant) = (taken(&context.learned), taken(&context.constant));
            let of_products_alone = taken(&context.of_products_alone);
            let around = RegionContext { learned, of_products_alone, constant, ..context.clone() };
            let (scores, learned) = self.region(module, classes, comp, &around);
            through.scores.extend(scores);
            through.learned = either(&through.learned, &learned);
            through.around.push(around);
        }
        through
    }

    /// Which of a region's operands are scores, and which of its results are computed from products.
    fn region(
        &mut self,
        module: &'m Module,
        classes: &Classes<'_>,
        comp: CompId,
        around: &RegionContext,
    ) -> (Vec<bool>, Vec<bool>) {
        let key = (comp, around.clone());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let graph = self.graph(module, classes, comp);
        let Choices { scores, learned, .. } = self.choices(classes, &graph, RegionKind::Body, around);
        self.known.insert(key, (scores.clone(), learned.clone()));
        (scores, learned)
    }

    fn graph(&mut self, module: &'m Module, classes: &Classes<'_>, comp: CompId) -> Rc<Dataflow<'m>> {
        let build = || Rc::new(exact::graph(module, comp, classes, classes.policy().dtype, CALL_ROOM));
        Rc::clone(self.graphs.entry(comp).or_insert_with(build))
    }
}
