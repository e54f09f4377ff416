//! Messages are counted before they are decoded.

use super::*;
use crate::schema::{GRAPH, SAVED_MODEL};

#[test]
fn empty_nodes_are_counted_before_they_are_made() {
    // Each is two bytes in the file and more than a hundred in memory.
    let nodes = [0x0a, 0].repeat(1 << 10);
    let within = |limit| scan(&nodes, &GRAPH, 0, &mut Budget { cost: 0, limit });
    assert_eq!((within(100 << 10), within(200 << 10)), (Err(ScanProblem::Large), Ok(())));
    assert_eq!(check(&nodes, &GRAPH), Ok(()));
}

#[test]
fn a_message_that_is_cut_off_is_refused() {
    assert_eq!(check(&[0x0a, 2, 0], &GRAPH), Err(ScanProblem::Wire));
    assert_eq!(check(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x7f], &SAVED_MODEL), Err(ScanProblem::Wire));
}
