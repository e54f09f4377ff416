//! Ports slices of an axis: one position, as of a class token or of a last step, or a range of positions.

use super::{Porting, Symbol};
use crate::node::Node;

impl Porting<'_, '_> {
    /// `x[:, 0]`, `x[:, -1, :]`, `x[:, 1:]`: a single axis of an example is not taken whole.
    pub(super) fn sliced(&mut self, node: &Node, x: String) -> Symbol {
        let values = |number: usize| match self.symbols.input(node, number) {
            Symbol::Constant { values, .. } => Some(values),
            _ => None,
        };
        let mask = |name: &str| node.int(name).unwrap_or(0);
        let (Some(begin), Some(end), Some(strides)) = (values(1), values(2), values(3)) else {
            return self.unclaimed(node);
        };
        let has = |name: &str, at: usize| mask(name) >> at & 1 == 1;
        let is_plain = mask("ellipsis_mask") == 0
            && mask("new_axis_mask") == 0
            && strides.iter().all(|stride| *stride == 1.0)
            && [begin.len(), strides.len()] == [end.len(); 2];
        let bounds = |at: usize| {
            let bound = |masked: &str, value: f64| if has(masked, at) { None } else { Some(value as i64) };
            [bound("begin_mask", begin[at]), bound("end_mask", end[at])]
        };
        let is_whole = |at: &usize| !has("shrink_axis_mask", *at) && matches!(bounds(*at), [None | Some(0), None]);
        let rank = self.dims.get(&x).map_or(usize::MAX, |dims| dims.len() + 1);
        if !is_plain || begin.len() > rank.min(32) {
            return self.unclaimed(node);
        }
        let parts: Vec<usize> = (0..begin.len()).filter(|at| !is_whole(at)).collect();
        let at = match parts[..] {
            [] => return Symbol::Layer(x),
            [at] if at > 0 => at,
            _ => return self.unclaimed(node),
        };
        let options = if at == 1 { Vec::new() } else { vec![("axis", at.to_string())] };
        if has("shrink_axis_mask", at) {
            return self.push(node, "take", begin[at] as i64, options, vec![x]);
        }
        let bounds = bounds(at).map(|bound| bound.map_or("null".to_string(), |bound| bound.to_string()));
        self.push(node, "slice", format!("[{}, {}]", bounds[0], bounds[1]), options, vec![x])
    }
}
