//! How many seeds detect a difference: docs/SEEDS.md agrees with the code.

use bf16scope::numerics::power::n_to_tell;

#[test]
fn the_page_has_these_figures() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/SEEDS.md")).unwrap();
    for (scalars, n_scalars) in [("one scalar", 1.0), ("four scalars", 4.0)] {
        for ratio in [2.0, 1.5, 1.0, 0.75, 0.5, 0.25] {
            let n = |degrees: Option<usize>| n_to_tell(ratio, degrees, 0.05 / n_scalars).to_string();
            let cells = [None, Some(9), Some(5), Some(3), Some(2), Some(1)].map(n);
            let row = format!("| {scalars} | {ratio} | {} |", cells.join(" | "));
            assert!(page.contains(&row), "not on the page: {row}");
        }
    }
}
