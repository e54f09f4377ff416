//! Choices by scores that enter a loop or a branch, or leave one.
//!
//! `through` asks a region which of its operands are scores, given which of them are computed from products outside
//! and which of its results are scores outside. A loop is asked until its state no longer changes: the results of one
//! step are the operands of the next.

use super::assignment::RegionKind;
use super::dataflow::{CALL_ROOM, Dataflow};
use super::discrete_choices::{Choices, Through, Told, discrete_choices};
use super::exact;
use super::policy::Classes;
use bf16scope_hlo::{CompId, Module, Op};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The graphs of a module's regions, and what is known of their scores.
#[derive(Debug, Default)]
pub(super) struct Regions<'m> {
    graphs: BTreeMap<CompId, Rc<Dataflow<'m>>>,
    known: BTreeMap<(CompId, Told), (Vec<bool>, Vec<bool>)>,
}

impl<'m> Regions<'m> {
    /// Finds the choices of a region that has this graph.
    pub(super) fn choices(
        &mut self,
        classes: &Classes<'_>,
        graph: &Dataflow<'m>,
        kind: RegionKind,
        around: &Told,
    ) -> Choices {
        let module = graph.module;
        discrete_choices(graph, kind, around, &mut |op, told| self.through(module, classes, op, told))
    }

    fn through(&mut self, module: &'m Module, classes: &Classes<'_>, op: &Op, told: Told) -> Through {
        let either = |ours: &[bool], theirs: &[bool]| -> Vec<bool> {
            ours.iter().zip(theirs).map(|(&ours, &theirs)| ours || theirs).collect()
        };
        if let Op::While { body, .. } = op {
            let mut around = told;
            let of_body = self.graph(module, classes, *body);
            let kept = of_body.parameters().zip(&of_body.results).map(|(before, &after)| before == after);
            let told = around.constant.iter_mut().zip(&mut around.of_products_alone);
            told.zip(kept).for_each(|((is_constant, is_of_products), is_kept)| {
                *is_constant &= is_kept;
                *is_of_products &= is_kept;
            });
            loop {
                let (scores, learned) = self.region(module, classes, *body, &around);
                let (learned, scores) = (either(&around.learned, &learned), either(&around.scores, &scores));
                let next = Told { learned, scores, ..around.clone() };
                if next == around {
                    break;
                }
                around = next;
            }
            let asked = Told { scores: Vec::new(), ..around.clone() };
            return Through {
                learned: around.learned.clone(),
                scores: around.scores.clone(),
                around: vec![asked, around],
            };
        }
        // The first operand selects the branch.
        let mut found = Through { learned: vec![false; told.scores.len()], scores: vec![false], around: Vec::new() };
        for comp in op.called() {
            let first = found.scores.len();
            let n_taken = self.graph(module, classes, comp).parameters().count();
            let taken = |of: &[bool]| of.get(first..first + n_taken).unwrap_or_default().to_vec();
            let (learned, constant) = (taken(&told.learned), taken(&told.constant));
            let of_products_alone = taken(&told.of_products_alone);
            let around = Told { learned, of_products_alone, constant, ..told.clone() };
            let (scores, learned) = self.region(module, classes, comp, &around);
            found.scores.extend(scores);
            found.learned = either(&found.learned, &learned);
            found.around.push(around);
        }
        found
    }

    /// Which of a region's operands are scores, and which of its results are computed from products.
    fn region(
        &mut self,
        module: &'m Module,
        classes: &Classes<'_>,
        comp: CompId,
        around: &Told,
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
