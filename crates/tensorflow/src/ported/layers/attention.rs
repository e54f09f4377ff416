//! Ports attention that is written with plain ops to the layer that it is here.

use super::super::attentions::Attention;
use super::{Note, Porting, Symbol};
use crate::node::{Edge, Node};

/// The variables of the layers of queries, keys and values and of the one that follows, as attention here calls them.
const VARIABLES: [[&str; 2]; 4] = [
    ["query/kernel", "query/bias"],
    ["key/kernel", "key/bias"],
    ["value/kernel", "value/bias"],
    ["out/kernel", "out/bias"],
];

impl Porting<'_, '_> {
    pub(super) fn attention(&mut self, idx: usize, node: &Node, attention: &Attention) -> Symbol {
        let Some(symbol) = self.attention_layer(node, attention) else {
            self.claims.clear();
            self.initials.clear();
            return self.wordless(node, "attention is not of layers and variables alone".to_string());
        };
        match attention.is_matrix {
            true => self.rows.insert(idx),
            false => self.rows.remove(&idx),
        };
        symbol
    }

    fn attention_layer(&mut self, node: &Node, attention: &Attention) -> Option<Symbol> {
        let layer = |edge: Edge| match self.symbols.of_edge.get(&edge) {
            Some(Symbol::Layer(name)) => Some(name.clone()),
            _ => None,
        };
        let [query, key, value, _] = &attention.layers;
        let (x, memory) = (layer(query.x)?, layer(key.x).filter(|memory| layer(value.x).as_ref() == Some(memory))?);
        let mask = match attention.mask {
            Some(mask) => Some(layer(mask)?),
            None => None,
        };
        let is_full = mask.as_ref().is_some_and(|mask| self.dims.get(mask).is_some_and(|dims| dims.len() == 2));
        let mut scope = String::new();
        for (layer, [kernel, bias]) in attention.layers.iter().zip(VARIABLES) {
            let (name, _) = self.claim_edge(layer.kernel, kernel)?;
            if scope.is_empty() {
                scope = name.rsplit_once('/').map_or(name.as_str(), |(scope, _)| scope).to_string();
            }
            if let Some(added) = layer.bias {
                self.claim_edge(added, bias)?;
            }
        }
        let features = *self.dims.get(&x)?.last()?;
        let heads = attention.n_heads.checked_mul(attention.size)?;
        for (name, expected, dims) in &self.claims {
            let (is_kernel, is_out) = (expected.ends_with("kernel"), *expected == "out/kernel");
            let sizes = [attention.n_heads, attention.size];
            let fits = match (attention.is_split, is_out) {
                _ if !is_kernel => true,
                (false, true) => dims[..] == [heads, features],
                (false, false) => dims.get(1) == Some(&heads),
                (true, true) => dims[..] == [sizes[0], sizes[1], features],
                (true, false) => dims.get(1..) == Some(&sizes[..]),
            };
            if !fits {
                return None;
            }
            // Ours have an axis of heads in kernels, and none in biases.
            if attention.is_split {
                if !is_kernel && *expected != "out/bias" {
                    self.port.layouts.insert(name.clone(), "axes_of: kernel".to_string());
                }
                continue;
            }
            let joined = if is_out { "joined: [[0, 1], [2]]" } else { "joined: [[0], [1, 2]]" };
            if is_kernel {
                self.port.layouts.insert(name.clone(), joined.to_string());
            }
        }
        let mut options = Vec::new();
        if heads != features {
            options.push(("head_dim", attention.size.to_string()));
        }
        if query.bias.is_none() {
            options.push(("use_bias", "false".to_string()));
        }
        if attention.is_causal {
            options.push(("use_causal_mask", "true".to_string()));
        }
        if is_full {
            options.push(("mask", "full".to_string()));
        }
        if attention.dropout > 0.0 {
            options.push(("dropout", attention.dropout.to_string()));
        }
        let (kernels, biases): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.initials).into_iter().partition(|(option, _)| *option == "kernel_initializer");
        let is_one = matches!(kernels.len(), 0 | 4) && kernels.iter().all(|kernel| *kernel == kernels[0]);
        options.extend(kernels.into_iter().next());
        if !is_one || !biases.is_empty() {
            let text = "attention's kernels and biases start from several initializers; here from one, and zeros";
            self.note_attention(node, text);
        }
        if mask.is_some() || attention.is_causal {
            self.note_attention(node, "a mask adds a large negative number to scores; here it makes weights exactly 0");
        }
        let reads = match mask {
            Some(mask) => vec![x, memory, mask],
            None if memory == x => vec![x],
            None => vec![x, memory],
        };
        Some(self.push_named(&scope, node, "attention", attention.n_heads, options, reads))
    }

    /// Notes a difference of attention, once.
    fn note_attention(&mut self, node: &Node, text: &str) {
        if !self.notes.differs.iter().any(|note| note.text == text) {
            let graph = self.symbols.graph;
            self.notes.differs.push(Note::new(graph, graph.body.find(&node.name), text, ""));
        }
    }
}
