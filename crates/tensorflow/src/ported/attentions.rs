//! Recognises attention written with plain ops, as BERT writes it: `softmax(q · kᵀ / √size + hidden) · v` over heads. Its q,
//! k and v are dense layers, and another one follows. `hidden` is `(1 - mask) · -10000`. Keras' `MultiHeadAttention` is the same
//! in `einsum`s, whose kernels have an axis of heads.

use std::collections::{HashMap, HashSet};

use super::gelus::{factor, is_close};
use super::symbols::{Symbols, constant};
use crate::node::{Edge, Node};

/// A dense layer: its input, its kernel and its bias.
pub(super) struct Dense {
    pub x: Edge,
    pub kernel: Edge,
    pub bias: Option<Edge>,
}

/// A score is hidden from here on.
const HIDDEN: f64 = -1e3;

/// Attention over heads.
pub(super) struct Attention {
    /// The layers of queries, keys and values, and the one that follows.
    pub layers: [Dense; 4],
    pub n_heads: i64,
    /// Features of a head.
    pub size: i64,
    /// The dropout rate of the weights.
    pub dropout: f64,
    /// The input that is 0 for what no query attends to.
    pub mask: Option<Edge>,
    /// Whether positions see none behind them.
    pub is_causal: bool,
    /// Whether its result is a matrix, with a row for each position of each example.
    pub is_matrix: bool,
    /// Whether kernels and biases have an axis of heads.
    pub is_split: bool,
}

const PRODUCTS: [&str; 3] = ["BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"];
const SUMS: [&str; 2] = ["Add", "AddV2"];
/// Keras' products: of layers, of queries with keys, of weights with values, and of the layer that follows.
const EQUATIONS: [&str; 4] = ["abc,cde->abde", "aecd,abcd->acbe", "acbe,aecd->abcd", "abcd,cde->abe"];

/// An equation of `einsum` with its letters in the order in which they first stand.
fn in_order(equation: &str) -> String {
    let mut letters: Vec<char> = Vec::new();
    let named = equation.chars().filter(|c| *c != ' ').map(|c| {
        if !c.is_ascii_alphabetic() {
            return c;
        }
        let at = letters.iter().position(|known| *known == c).unwrap_or_else(|| {
            letters.push(c);
            letters.len() - 1
        });
        char::from(b'a'.saturating_add(at as u8))
    });
    named.collect()
}

const QUOTIENTS: [&str; 3] = ["Mul", "RealDiv", "Div"];

/// The attentions among `order`, by the node of their result; and all nodes inside of them.
pub(super) fn attentions(symbols: &Symbols<'_>, order: &[usize]) -> (HashMap<usize, Attention>, HashSet<usize>) {
    let (mut attentions, mut inside) = (HashMap::new(), HashSet::new());
    if !order.iter().any(|idx| symbols.node(*idx).op == "Softmax") {
        return (attentions, inside);
    }
    let is_end =
        |idx: &&usize| matches!(symbols.node(**idx).op.as_str(), "BiasAdd" | "Add" | "AddV2" | "MatMul" | "Einsum");
    for &idx in order.iter().filter(is_end) {
        let mut walk = Walk { symbols, seen: Vec::new() };
        let attention = walk.maybe(|walk| walk.attention(idx));
        if let Some(attention) = attention.or_else(|| walk.keras(idx)) {
            inside.extend(walk.seen.into_iter().filter(|node| *node != idx));
            attentions.insert(idx, attention);
        }
    }
    (attentions, inside)
}

/// A walk from an attention's result to its inputs.
struct Walk<'s, 'g> {
    symbols: &'s Symbols<'g>,
    seen: Vec<usize>,
}

impl<'g> Walk<'_, 'g> {
    /// The node behind identities and casts, if it is one of these ops.
    fn op(&mut self, mut edge: Edge, ops: &[&str]) -> Option<&'g Node> {
        for _ in 0..16 {
            let node = self.symbols.node(edge.node);
            self.seen.push(edge.node);
            if ops.contains(&node.op.as_str()) {
                return Some(node);
            }
            match (node.op.as_str(), node.inputs.first()) {
                ("Identity" | "Cast" | "Snapshot" | "StopGradient", Some(input)) => edge = *input,
                _ => return None,
            }
        }
        None
    }

    /// The result of `find`; nodes that it visits in vain are not seen.
    fn maybe<T>(&mut self, find: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let n = self.seen.len();
        let result = find(self);
        if result.is_none() {
            self.seen.truncate(n);
        }
        result
    }

    fn attention(&mut self, idx: usize) -> Option<Attention> {
        let (out, is_matrix) = self.dense(Edge { node: idx, output: 0 })?;
        let mut joined = *self.op(out.x, &["Reshape"])?.inputs.first()?;
        if !is_matrix {
            joined = *self.op(joined, &["Reshape"])?.inputs.first()?;
        }
        let mixed = self.by_position(joined)?;
        let [weights, values] = self.product(mixed, false)?;
        let (value, sizes) = self.heads(values)?;
        let (weights, dropout) = self.maybe(|walk| walk.dropped(weights)).unwrap_or((weights, 0.0));
        let scores = *self.op(weights, &["Softmax"])?.inputs.first()?;
        let (scores, mask) = match self.maybe(|walk| walk.masked(scores)) {
            Some((scores, mask)) => (scores, Some(mask)),
            None => (scores, None),
        };
        let (scores, scale) = factor(self.symbols, self.op(scores, &QUOTIENTS)?)?;
        let [queries, keys] = self.product(scores, true)?;
        let ((query, of_query), (key, of_key)) = (self.heads(queries)?, self.heads(keys)?);
        let [n_heads, size] = sizes;
        let layers = [query, key, value, out];
        let fits = [of_query, of_key] == [sizes; 2]
            && is_close(scale * (size as f64).sqrt(), 1.0)
            && layers.iter().all(|layer| layer.bias.is_some() == layers[0].bias.is_some());
        let (is_causal, is_split) = (false, false);
        fits.then_some(Attention { layers, n_heads, size, dropout, mask, is_causal, is_matrix, is_split })
    }

    /// Keras' `MultiHeadAttention`, without a mask or with a causal one.
    fn keras(&mut self, idx: usize) -> Option<Attention> {
        let [of_layer, of_keys, of_values, of_out] = EQUATIONS;
        let out = self.projected(Edge { node: idx, output: 0 }, of_out)?;
        let [weights, values] = self.einsum(out.x, of_values)?;
        let (weights, dropout) = self.maybe(|walk| walk.dropped(weights)).unwrap_or((weights, 0.0));
        let scores = *self.op(weights, &["Softmax"])?.inputs.first()?;
        let causal = self.maybe(|walk| walk.causal(scores));
        let [keys, queries] = self.einsum(causal.unwrap_or(scores), of_keys)?;
        let (queries, scale) = factor(self.symbols, self.op(queries, &QUOTIENTS)?)?;
        let query = self.projected(queries, of_layer)?;
        let (key, value) = (self.projected(keys, of_layer)?, self.projected(values, of_layer)?);
        let kernel = self.symbols.node(self.symbols.behind(query.kernel).node);
        let [_, n_heads, size] = kernel.dims("shape")?[..] else { return None };
        let layers = [query, key, value, out];
        let fits = n_heads > 0
            && size > 0
            && is_close(scale * (size as f64).sqrt(), 1.0)
            && layers.iter().all(|layer| layer.bias.is_some() == layers[0].bias.is_some());
        let (is_causal, is_matrix, is_split) = (causal.is_some(), false, true);
        fits.then_some(Attention { layers, n_heads, size, dropout, mask: None, is_causal, is_matrix, is_split })
    }

    /// The operands of an `einsum` of this equation.
    fn einsum(&mut self, edge: Edge, equation: &str) -> Option<[Edge; 2]> {
        let node = self.op(edge, &["Einsum"])?;
        let [x, y] = node.inputs[..] else { return None };
        (in_order(node.text("equation")) == in_order(equation)).then_some([x, y])
    }

    /// A layer by `einsum`, with its bias.
    fn projected(&mut self, edge: Edge, equation: &str) -> Option<Dense> {
        let node = self.op(edge, &["Add", "AddV2", "Einsum"])?;
        let (product, bias) = match (node.op.as_str(), &node.inputs[..]) {
            ("Einsum", _) => (edge, None),
            (_, [product, added]) => (*product, Some(*added)),
            _ => return None,
        };
        let [x, kernel] = self.einsum(product, equation)?;
        Some(Dense { x, kernel, bias })
    }

    /// The scores of a sum with `(1 - mask) · -1e9`, whose mask is the lower triangle of ones.
    fn causal(&mut self, edge: Edge) -> Option<Edge> {
        let [scores, hidden] = self.op(edge, &SUMS)?.inputs[..] else { return None };
        let (hidden, by) = factor(self.symbols, self.op(hidden, &["Mul"])?)?;
        let [one, mask] = self.op(hidden, &["Sub"])?.inputs[..] else { return None };
        let expanded = self.op(mask, &["ExpandDims"])?;
        let band = self.op(*expanded.inputs.first()?, &["MatrixBandPart"])?;
        let ends = [1, 2].map(|number| self.symbols.scalar(band, number));
        let is_of_ones = self.symbols.node(band.inputs.first()?.node).op == "Fill";
        let is_causal = ends == [Some(-1.0), Some(0.0)] && is_of_ones;
        (is_causal && by < HIDDEN && self.symbols.value(one) == Some(1.0)).then_some(scores)
    }

    /// A dense layer, and whether its result is the product's matrix.
    fn dense(&mut self, edge: Edge) -> Option<(Dense, bool)> {
        let mut node = self.op(edge, &["BiasAdd", "Add", "AddV2", "Reshape", "MatMul"])?;
        let mut bias = None;
        if node.op.contains("Add") {
            let [product, added] = node.inputs[..] else { return None };
            bias = Some(added);
            node = self.op(product, &["Reshape", "MatMul"])?;
        }
        let is_matrix = node.op == "MatMul";
        if !is_matrix {
            node = self.op(*node.inputs.first()?, &["MatMul"])?;
        }
        let [x, kernel] = node.inputs[..] else { return None };
        let is_plain = !node.flag("transpose_a") && !node.flag("transpose_b");
        is_plain.then_some((Dense { x, kernel, bias }, is_matrix))
    }

    /// The layer whose units are heads, and their number and features: a transposed `[batch, positions, heads, size]`.
    fn heads(&mut self, edge: Edge) -> Option<(Dense, [i64; 2])> {
        let split = self.by_position(edge)?;
        let reshape = self.op(split, &["Reshape"])?;
        let [_, _, n_heads, size] = self.symbols.sizes(reshape)[..] else { return None };
        let (layer, _) = self.dense(*reshape.inputs.first()?)?;
        (n_heads > 0 && size > 0).then_some((layer, [n_heads, size]))
    }

    /// The input of a transpose of positions and heads.
    fn by_position(&mut self, edge: Edge) -> Option<Edge> {
        let [x, order] = self.op(edge, &["Transpose"])?.inputs[..] else { return None };
        let (_, order) = constant(self.symbols.node(self.symbols.behind(order).node))?;
        (order == [0.0, 2.0, 1.0, 3.0]).then_some(x)
    }

    /// The factors of a product of matrices, if the second one is transposed or not, as asked.
    fn product(&mut self, edge: Edge, is_transposed: bool) -> Option<[Edge; 2]> {
        let node = self.op(edge, &PRODUCTS)?;
        let [x, y] = node.inputs[..] else { return None };
        (!node.flag("adj_x") && node.flag("adj_y") == is_transposed).then_some([x, y])
    }

    /// The input and the rate of dropout: `select(uniform >= rate, x / (1 - rate), 0)`, or a product with that mask.
    fn dropped(&mut self, edge: Edge) -> Option<(Edge, f64)> {
        let node = self.op(edge, &["Mul", "SelectV2"])?;
        let rate = self.symbols.dropout_rate(node)?;
        let scaled = *node.inputs.get(usize::from(node.op == "SelectV2"))?;
        let (x, scale) = factor(self.symbols, self.op(scaled, &QUOTIENTS)?)?;
        is_close(scale * (1.0 - rate), 1.0).then_some((x, rate))
    }

    /// The scores and the mask of a sum of both.
    fn masked(&mut self, edge: Edge) -> Option<(Edge, Edge)> {
        let [a, b] = self.op(edge, &SUMS)?.inputs[..] else { return None };
        let mask = self.maybe(|walk| walk.mask(b)).map(|mask| (a, mask));
        mask.or_else(|| Some((b, self.mask(a)?)))
    }

    /// The mask in `(1 - mask) · -10000`, before the axes of heads and of queries were added to it.
    fn mask(&mut self, edge: Edge) -> Option<Edge> {
        let (hidden, by) = factor(self.symbols, self.op(edge, &["Mul"])?)?;
        let [one, mut mask] = self.op(hidden, &["Sub"])?.inputs[..] else { return None };
        if by > HIDDEN || self.symbols.value(one) != Some(1.0) {
            return None;
        }
        for _ in 0..16 {
            let node = self.symbols.node(mask.node);
            let sizes = self.symbols.sizes(node);
            let is_before_keys = |sizes: &[i64]| matches!(sizes, [_, ones @ .., _] if ones.iter().all(|n| *n == 1));
            let input = match (node.op.as_str(), &node.inputs[..]) {
                ("Cast" | "Identity", [x, ..]) => *x,
                ("ExpandDims", [x, _]) if self.symbols.scalar(node, 1).is_some_and(|at| at == 1.0 || at == -2.0) => *x,
                ("Reshape", [x, _]) if sizes.len() > 2 && is_before_keys(&sizes) => *x,
                ("Mul", [a, b]) if self.symbols.fill(*a) == Some(1.0) => *b,
                ("Mul", [a, b]) if self.symbols.fill(*b) == Some(1.0) => *a,
                _ => break,
            };
            self.seen.push(mask.node);
            mask = input;
        }
        Some(mask)
    }
}
