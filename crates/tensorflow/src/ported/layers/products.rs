//! Layers that multiply by a variable: convolutions, dense layers, embeddings, and their biases.

use super::{Note, Porting, Symbol, one_or_two};
use crate::node::{Edge, Node};

impl Porting<'_, '_> {
    pub(super) fn convolution(&mut self, node: &Node, x: String) -> Symbol {
        let is_depthwise = node.op == "DepthwiseConv2dNative";
        let Some((layer, dims)) = self.claim(node, 1, "kernel") else { return self.unclaimed(node) };
        for (option, _) in self.initials.iter_mut().filter(|_| is_depthwise) {
            *option = "depthwise_initializer";
        }
        let [height, width, depth, filters] = dims[..] else { return self.unclaimed(node) };
        let is_first = node.text("data_format").starts_with("NC");
        let channels = self.dims.get(&x).and_then(|dims| if is_first { dims.first() } else { dims.last() }).copied();
        let spatial = if is_first { [2, 3] } else { [1, 2] };
        let pair = |values: &[i64], default: i64| spatial.map(|axis| values.get(axis).copied().unwrap_or(default));
        let mut options = Vec::new();
        let size = one_or_two([height, width]);
        if !is_depthwise {
            options.push(("kernel_size", size.clone()));
        }
        let strides = pair(node.ints("strides"), 1);
        if strides != [1, 1] {
            options.push(("strides", one_or_two(strides)));
        }
        let dilated = self.dilated.get(&node.name);
        match dilated.map_or(node.text("padding"), |dilated| dilated.padding()) {
            "SAME" => options.push(("padding", "same".to_string())),
            "VALID" => {}
            other => {
                let at = self.symbols.graph.body.find(&node.name);
                let text = format!(
                    "padding `{other}` {:?} is `zero_padding` before the layer",
                    node.ints("explicit_paddings")
                );
                self.notes.missing.push(Note::new(
                    self.symbols.graph,
                    at,
                    text,
                    "write a `zero_padding` layer before it",
                ));
            }
        }
        let dilations = dilated.map_or(pair(node.ints("dilations"), 1), |dilated| dilated.rates);
        if dilations != [1, 1] {
            options.push(("dilation_rate", one_or_two(dilations)));
        }
        if let Some(n) = channels.filter(|n| !is_depthwise && depth > 0 && *n != depth && n % depth == 0) {
            options.push(("groups", (n / depth).to_string()));
        }
        if is_first {
            options.push(("data_format", "channels_first".to_string()));
        }
        if is_depthwise && filters != 1 {
            options.push(("depth_multiplier", filters.to_string()));
        }
        options.push(("use_bias", "false".to_string()));
        let (kind, first) = if is_depthwise { ("depthwise_conv", size) } else { ("conv", filters.to_string()) };
        self.push_named(&layer, node, kind, first, options, vec![x])
    }

    /// A transposed convolution, the gradient of one by its input: inputs are the result's dims, the kernel and x.
    pub(super) fn transposed_convolution(&mut self, node: &Node) -> Symbol {
        let (Symbol::Layer(x), Symbol::Variable { dims: kernel, .. }) =
            (self.symbols.input(node, 2), self.symbols.input(node, 1))
        else {
            return self.unclaimed(node);
        };
        let Some(sizes) = self.result_sizes(node) else { return self.unclaimed(node) };
        let is_plain = node.ints("dilations").iter().all(|dilation| *dilation == 1);
        let is_same = node.text("padding") == "SAME";
        let dims = self.dims.get(&x).cloned().unwrap_or_default();
        let ([size @ .., filters, _], [_, strides @ .., _], [places @ .., _]) =
            (&kernel[..], node.ints("strides"), &dims[..])
        else {
            return self.unclaimed(node);
        };
        let (&[height, width], &[down, right], &[n_rows, n_columns]) = (size, strides, places) else {
            return self.unclaimed(node);
        };
        let (size, strides, places) = ([height, width], [down, right], [n_rows, n_columns]);
        let is_known_padding = is_same || node.text("padding") == "VALID";
        let is_read = is_plain && is_known_padding && !node.text("data_format").starts_with("NC");
        // The padding at the end of each axis that gives the result its size.
        let added = [0, 1].map(|at: usize| {
            let spread = (places[at] - 1).saturating_mul(strides[at]).saturating_add(size[at]);
            sizes[at].saturating_sub(spread - if is_same { 2 * (size[at] / 2) } else { 0 })
        });
        let default = [0, 1].map(|at: usize| match is_same {
            true => places[at].saturating_mul(strides[at]),
            false => places[at].saturating_mul(strides[at]).saturating_add(size[at].saturating_sub(strides[at]).max(0)),
        });
        let is_padded = sizes != default;
        if !is_read || is_padded && (0..2).any(|at| !(0..strides[at]).contains(&added[at])) {
            return self.unclaimed(node);
        }
        let filters = *filters;
        let Some((layer, _)) = self.claim(node, 1, "kernel") else { return self.unclaimed(node) };
        let mut options = vec![("kernel_size", one_or_two(size))];
        if strides != [1, 1] {
            options.push(("strides", one_or_two(strides)));
        }
        if is_same {
            options.push(("padding", "same".to_string()));
        }
        if is_padded {
            options.push(("output_padding", one_or_two(added)));
        }
        options.push(("use_bias", "false".to_string()));
        self.push_named(&layer, node, "conv_transpose", filters, options, vec![x])
    }

    /// Height and width of the result that a node's first input names.
    fn result_sizes(&self, node: &Node) -> Option<[i64; 2]> {
        if let Symbol::Constant { values, .. } = self.symbols.input(node, 0) {
            return values.get(1..3).map(|sizes| [sizes[0] as i64, sizes[1] as i64]);
        }
        // Packed, because the batch's size is not known.
        let packed = self.symbols.node(self.symbols.behind(*node.inputs.first()?).node);
        let size = |number: usize| self.symbols.scalar(packed, number).map(|size| size as i64);
        (packed.op == "Pack" && packed.inputs.len() == 4).then(|| Some([size(1)?, size(2)?])).flatten()
    }

    pub(super) fn kind_of(&self, layer: &str) -> Option<&'static str> {
        self.at.get(layer).map(|at| self.port.layers[*at].kind)
    }

    /// The sequence and the kernel of a 2D convolution that reads a sequence as an image of one row, as Keras' `Conv1D` does.
    pub(super) fn sequence_input(&self, node: &Node) -> Option<(String, Edge)> {
        let [image, kernel] = [0, 1].map(|number| node.inputs.get(number).map(|edge| self.symbols.node(edge.node)));
        let (image, kernel) = (image?, kernel?);
        let is_row = |node: &Node| {
            let axis = self.symbols.scalar(node, 1)?;
            (node.op == "ExpandDims" && (axis == 1.0 || axis == -3.0)).then_some(())
        };
        is_row(image)?;
        let is_kernel = kernel.op == "ExpandDims" && self.symbols.scalar(kernel, 1) == Some(0.0);
        match self.symbols.input(image, 0) {
            Symbol::Layer(x) if is_kernel => Some((x, *kernel.inputs.first()?)),
            _ => None,
        }
    }

    pub(super) fn sequence_convolution(&mut self, node: &Node) -> Symbol {
        let Some((x, kernel)) = self.sequence_input(node) else { return self.unclaimed(node) };
        let Some((layer, dims)) = self.claim_edge(kernel, "kernel") else { return self.unclaimed(node) };
        let [length, _, filters] = dims[..] else { return self.unclaimed(node) };
        let along = |values: &[i64]| values.get(2).copied().unwrap_or(1);
        let mut options = vec![("kernel_size", length.to_string())];
        let dilated = self.dilated.get(&node.name);
        let strides = along(node.ints("strides"));
        let dilation = dilated.map_or(along(node.ints("dilations")), |dilated| dilated.rates[1]);
        if strides != 1 {
            options.push(("strides", strides.to_string()));
        }
        match dilated.map_or(node.text("padding"), |dilated| dilated.padding()) {
            "SAME" => options.push(("padding", "same".to_string())),
            "VALID" => {}
            _ => return self.unclaimed(node),
        }
        if dilation != 1 {
            options.push(("dilation_rate", dilation.to_string()));
        }
        options.push(("use_bias", "false".to_string()));
        self.push_named(&layer, node, "conv1d", filters, options, vec![x])
    }

    pub(super) fn dense(&mut self, node: &Node, x: String) -> Symbol {
        if node.flag("transpose_a") || node.flag("transpose_b") {
            return self.unclaimed(node);
        }
        let Some((layer, dims)) = self.claim(node, 1, "kernel") else { return self.unclaimed(node) };
        let units = dims.last().copied().unwrap_or(0);
        self.push_named(&layer, node, "dense", units, vec![("use_bias", "false".to_string())], vec![x])
    }

    /// Whether a node adds a variable to a layer without a bias that has no other reader.
    pub(super) fn is_bias(&self, layer: &str, node: &Node) -> bool {
        let has_none = self.at.get(layer).is_some_and(|at| {
            self.port.layers[*at].options.iter().any(|(option, value)| *option == "use_bias" && value == "false")
        });
        has_none
            && matches!(self.symbols.input(node, 1), Symbol::Variable { .. })
            && node.inputs.first().is_some_and(|edge| self.n_readers.get(edge) == Some(&1))
    }

    pub(super) fn bias(&mut self, layer: String, node: &Node) -> Symbol {
        let is_claimed = self.claim(node, 1, "bias").is_some();
        self.settle(&layer);
        if is_claimed && let Some(at) = self.at.get(&layer) {
            let options = &mut self.port.layers[*at].options;
            options.retain(|(option, _)| *option != "use_bias");
            options.append(&mut self.initials);
        }
        Symbol::Layer(layer)
    }

    pub(super) fn embedding(&mut self, node: &Node, ids: String) -> Symbol {
        let axis = if node.op == "GatherV2" { self.symbols.scalar(node, 2) } else { Some(0.0) };
        if axis != Some(0.0) || node.int("batch_dims").unwrap_or(0) != 0 {
            return self.unclaimed(node);
        }
        let Some((layer, dims)) = self.claim(node, 0, "embeddings") else { return self.unclaimed(node) };
        let [input, output] = dims[..] else { return self.unclaimed(node) };
        let first = format!("{{input_dim: {input}, output_dim: {output}}}");
        self.push_named(&layer, node, "embedding", first, Vec::new(), vec![ids])
    }
}
