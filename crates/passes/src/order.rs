//! The order of instructions in a computation that a pass rewrites.

use bf16scope_hlo::InstrId;
use std::collections::BTreeSet;

/// `ids` in their order, except that the operands of an id come before it; `taken` returns the operands. `None` if an
/// id depends on itself, directly or not.
pub(super) fn in_order(
    ids: impl Iterator<Item = InstrId>,
    operands_of: impl Fn(InstrId) -> Vec<InstrId>,
) -> Option<Vec<InstrId>> {
    let (mut order, mut placed, mut open) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for id in ids {
        let mut pending = vec![id];
        while let Some(&id) = pending.last() {
            let missing: Vec<InstrId> = match placed.contains(&id) {
                true => Vec::new(),
                false => operands_of(id).into_iter().filter(|id| !placed.contains(id)).collect(),
            };
            if missing.is_empty() {
                pending.pop();
                if placed.insert(id) {
                    order.push(id);
                }
            } else if open.insert(id) {
                pending.extend(missing);
            } else {
                // One of its operands, pushed before, waits for it.
                return None;
            }
        }
    }
    Some(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(operands: &[(u32, &[u32])], expected: Option<&[u32]>) {
        let operands_of =
            |id: InstrId| operands.iter().find(|(user, _)| InstrId(*user) == id).map_or(&[][..], |(_, ids)| ids);
        let order = in_order((0..4).map(InstrId), |id| operands_of(id).iter().copied().map(InstrId).collect());
        assert_eq!(order.map(|order| order.iter().map(|id| id.0).collect::<Vec<_>>()).as_deref(), expected);
    }

    #[test]
    fn what_is_taken_comes_first_and_nothing_takes_itself() {
        check(&[], Some(&[0, 1, 2, 3]));
        check(&[(0, &[3, 2]), (2, &[3])], Some(&[3, 2, 0, 1]));
        check(&[(0, &[2, 3]), (2, &[1]), (3, &[1])], Some(&[1, 3, 2, 0]));
        check(&[(1, &[1])], None);
        check(&[(0, &[2]), (2, &[3]), (3, &[0])], None);
    }
}
