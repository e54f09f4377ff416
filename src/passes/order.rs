//! The order of instructions that a pass writes anew.

use crate::hlo::InstrId;
use std::collections::BTreeSet;

/// `ids` as they come, each after all that it takes: what an id takes that has not come yet comes before it.
pub(super) fn in_order(ids: impl Iterator<Item = InstrId>, taken: impl Fn(InstrId) -> Vec<InstrId>) -> Vec<InstrId> {
    let (mut order, mut placed) = (Vec::new(), BTreeSet::new());
    for id in ids {
        let mut pending = vec![id];
        while let Some(&id) = pending.last() {
            let missing: Vec<InstrId> = match placed.contains(&id) {
                true => Vec::new(),
                false => taken(id).into_iter().filter(|id| !placed.contains(id)).collect(),
            };
            if missing.is_empty() {
                pending.pop();
                if placed.insert(id) {
                    order.push(id);
                }
            }
            pending.extend(missing);
        }
    }
    order
}
