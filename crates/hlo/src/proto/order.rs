//! Orders in which dependencies come first.

/// An order of `0..n` in which each index comes after its `dependencies`; it is `0..n` itself if that is valid.
///
/// Linear in nodes and edges, and not recursive: modules come from files.
///
/// # Errors
/// A member of a cycle.
pub(crate) fn dependencies_first<'a>(
    n: usize,
    dependencies: impl Fn(usize) -> &'a [usize],
) -> Result<Vec<usize>, usize> {
    if (0..n).all(|node| dependencies(node).iter().all(|&dependency| dependency < node)) {
        return Ok((0..n).collect());
    }
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; n];
    let mut order = Vec::with_capacity(n);
    // Nodes whose dependencies are being visited, with the number of those visited.
    let mut stack: Vec<(usize, usize)> = Vec::new();
    for root in 0..n {
        if marks[root] == Mark::New {
            marks[root] = Mark::Open;
            stack.push((root, 0));
        }
        while let Some((node, visited)) = stack.last_mut() {
            match dependencies(*node).get(*visited) {
                None => {
                    marks[*node] = Mark::Done;
                    order.push(*node);
                    stack.pop();
                }
                Some(&dependency) => {
                    *visited += 1;
                    match marks[dependency] {
                        Mark::Done => {}
                        Mark::Open => return Err(dependency),
                        Mark::New => {
                            marks[dependency] = Mark::Open;
                            stack.push((dependency, 0));
                        }
                    }
                }
            }
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(edges: &[&[usize]]) -> Result<Vec<usize>, usize> {
        dependencies_first(edges.len(), |node| edges[node])
    }

    #[test]
    fn keeps_a_good_order_mends_a_bad_one_and_finds_cycles() {
        assert_eq!(order(&[&[], &[0], &[], &[1, 2]]), Ok(vec![0, 1, 2, 3]));
        assert_eq!(order(&[&[2], &[0], &[], &[1]]), Ok(vec![2, 0, 1, 3]));
        assert_eq!(order(&[&[1], &[2], &[1]]), Err(1));
        assert_eq!(order(&[&[0]]), Err(0));
    }
}
