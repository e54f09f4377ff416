//! Choices by scores that come into a loop or a branch, or that leave one.
//!
//! A region is asked what it does with scores, given which of the values that it takes are computed from products outside and
//! which of those that it gives are scores outside. A loop is asked until its state no longer changes: what one step gives
//! the next takes.

use super::decides::{Choices, Through, Told, decides};
use super::graph::{CALL_ROOM, Graph};
use super::painted::RegionKind;
use super::policy::Classes;
use crate::hlo::{CompId, Module, Op};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What was asked of a module's regions.
#[derive(Debug, Default)]
pub(super) struct Regions<'m> {
    graphs: BTreeMap<CompId, Rc<Graph<'m>>>,
    known: BTreeMap<(CompId, Told), (Vec<bool>, Vec<bool>)>,
}

impl<'m> Regions<'m> {
    /// The choices of a region that has this graph.
    pub(super) fn choices(
        &mut self,
        classes: &Classes<'_>,
        graph: &Graph<'m>,
        kind: RegionKind,
        around: &Told,
    ) -> Choices {
        let module = graph.module;
        decides(graph, kind, around, &mut |op, learned, scores| self.through(module, classes, op, learned, scores))
    }

    fn through(
        &mut self,
        module: &'m Module,
        classes: &Classes<'_>,
        op: &Op,
        learned: &[bool],
        scores: &[bool],
    ) -> Through {
        match op {
            Op::While { body, .. } if learned.len() == scores.len() => {
                let mut around = Told { learned: learned.to_vec(), scores: scores.to_vec() };
                loop {
                    let (scores, learned) = self.region(module, classes, *body, &around);
                    let either = |ours: &[bool], theirs: &[bool]| -> Vec<bool> {
                        ours.iter().zip(theirs).map(|(&ours, &theirs)| ours || theirs).collect()
                    };
                    let next =
                        Told { learned: either(&around.learned, &learned), scores: either(&around.scores, &scores) };
                    if next == around {
                        break;
                    }
                    around = next;
                }
                let asked = Told { learned: around.learned.clone(), scores: Vec::new() };
                Through { learned: around.learned.clone(), scores: around.scores.clone(), around: vec![asked, around] }
            }
            _ => {
                let (mut all, mut of_taken, mut given) = (Vec::new(), vec![false], vec![false; scores.len()]);
                for comp in op.called() {
                    let n_taken: usize = self.graph(module, classes, comp).parameters().count();
                    // The first operand says which branch.
                    let taken = learned.get(of_taken.len()..of_taken.len() + n_taken).unwrap_or_default();
                    let around = Told { learned: taken.to_vec(), scores: scores.to_vec() };
                    let (of_branch, learned) = self.region(module, classes, comp, &around);
                    of_taken.extend(of_branch);
                    given.iter_mut().zip(learned).for_each(|(any, is_learned)| *any |= is_learned);
                    all.push(around);
                }
                Through { learned: given, scores: of_taken, around: all }
            }
        }
    }

    /// Which of the values that a region takes are scores, and which of those that it gives are computed from products.
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

    fn graph(&mut self, module: &'m Module, classes: &Classes<'_>, comp: CompId) -> Rc<Graph<'m>> {
        let build = || Rc::new(Graph::build(module, comp, classes, classes.policy().dtype, CALL_ROOM));
        Rc::clone(self.graphs.entry(comp).or_insert_with(build))
    }
}
