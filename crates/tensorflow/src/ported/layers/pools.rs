//! Ports layers without variables (padding, pools, means), and layers that join layers.

use super::{Note, Porting, Symbol, one_or_two};
use crate::node::Node;

impl Porting<'_, '_> {
    pub(super) fn padding(&mut self, node: &Node, x: String) -> Symbol {
        let Symbol::Constant { values, .. } = self.symbols.input(node, 1) else { return self.unclaimed(node) };
        let pads: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        if pads.iter().all(|pad| *pad == 0) {
            return Symbol::Layer(x);
        }
        let (spatial, format): (&[i64], Option<&str>) = match pads[..] {
            // A sequence, an image, a volume.
            [0, 0, _, _, 0, 0] => (&pads[2..4], None),
            [0, 0, _, _, _, _, 0, 0] => (&pads[2..6], None),
            [0, 0, _, _, _, _, _, _, 0, 0] => (&pads[2..8], None),
            [0, 0, 0, 0, _, _, _, _] => (&pads[4..8], Some("channels_first")),
            _ => return self.unclaimed(node),
        };
        let pairs: Vec<String> = spatial.chunks(2).map(|pair| format!("[{}, {}]", pair[0], pair[1])).collect();
        let first = if pairs.len() == 1 { pairs.concat() } else { format!("[{}]", pairs.join(", ")) };
        let options = format.map(|format| ("data_format", format.to_string())).into_iter().collect();
        self.push(node, "zero_padding", first, options, vec![x])
    }

    pub(super) fn pool(&mut self, node: &Node, kind: &'static str, x: String) -> Symbol {
        let is_first = node.text("data_format").starts_with("NC");
        let spatial = if is_first { [2, 3] } else { [1, 2] };
        let pair = |values: &[i64]| spatial.map(|axis| values.get(axis).copied().unwrap_or(1));
        let beside = [0, if is_first { 1 } else { 3 }];
        let slides =
            |name: &str| beside.into_iter().any(|axis| node.ints(name).get(axis).is_some_and(|size| *size != 1));
        let padding = node.text("padding");
        if !matches!(padding, "SAME" | "VALID") || slides("ksize") || slides("strides") {
            let (sizes, pads) = (node.ints("ksize"), node.ints("explicit_paddings"));
            let text = format!("`{}` of {sizes:?} with padding `{padding}` {pads:?} is no pool of an image", node.op);
            return self.wordless(node, text);
        }
        let mut options = vec![("strides", one_or_two(pair(node.ints("strides"))))];
        if padding == "SAME" {
            options.push(("padding", "same".to_string()));
        }
        if is_first {
            options.push(("data_format", "channels_first".to_string()));
        }
        let size = one_or_two(pair(node.ints("ksize")));
        self.push(node, kind, size, options, vec![x])
    }

    /// Whether a reduction is over an image's rows and columns, or over a sequence.
    pub(super) fn is_spatial(&self, node: &Node, x: &str) -> bool {
        let Symbol::Constant { values, .. } = self.symbols.input(node, 1) else { return false };
        let axes: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        let rank = self.dims.get(x).map(Vec::len);
        matches!((&axes[..], rank), ([1, 2] | [-3, -2], _) | ([1] | [-2], Some(2)))
    }

    /// A maximum over the spatial axes.
    pub(super) fn maximum(&mut self, node: &Node, x: String) -> Symbol {
        match self.is_spatial(node, &x) && !node.flag("keep_dims") {
            true => self.push(node, "global_max_pool", "", Vec::new(), vec![x]),
            false => self.unclaimed(node),
        }
    }

    /// Images that are made larger by whole factors, with the pixels' centres in their middle.
    pub(super) fn resized(&mut self, node: &Node, x: String) -> Symbol {
        let is_bilinear = node.op == "ResizeBilinear";
        let sizes: Vec<i64> = match self.symbols.input(node, 1) {
            Symbol::Constant { values, .. } => values.iter().map(|size| *size as i64).collect(),
            _ => Vec::new(),
        };
        let dims = self.dims.get(&x).cloned().unwrap_or_default();
        let ([to_height, to_width], [height, width, _]) = (&sizes[..], &dims[..]) else { return self.unclaimed(node) };
        let is_times = |to: i64, from: i64| from > 0 && to >= from && to % from == 0;
        let is_whole = is_times(*to_height, *height) && is_times(*to_width, *width);
        let is_ours = !node.flag("align_corners") && (!is_bilinear || node.flag("half_pixel_centers"));
        if !is_whole || !is_ours {
            let text = format!(
                "`{}` of {height} x {width} to {to_height} x {to_width} has no word: `upsample` has whole factors, and \
                 bilinear half-pixel centres",
                node.op
            );
            let at = self.symbols.graph.body.find(&node.name);
            let help = "TensorFlow 2's tf.image.resize has half-pixel centres";
            self.notes.missing.push(Note::new(self.symbols.graph, at, text, help).in_step());
            return Symbol::Other;
        }
        let first = one_or_two([to_height / height, to_width / width]);
        let options = if is_bilinear { vec![("interpolation", "bilinear".to_string())] } else { Vec::new() };
        self.push(node, "upsample", first, options, vec![x])
    }

    /// A mean over the spatial axes.
    pub(super) fn mean(&mut self, node: &Node, x: String) -> Symbol {
        if !self.is_spatial(node, &x) {
            return self.unclaimed(node);
        }
        let n = self.dims.get(&x).and_then(|dims| dims.last().copied());
        match (node.flag("keep_dims"), n) {
            (false, _) => self.push(node, "global_avg_pool", "", Vec::new(), vec![x]),
            (true, Some(n)) if self.dims.get(&x).map(Vec::len) == Some(3) => {
                let Symbol::Layer(mean) = self.push(node, "global_avg_pool", "", Vec::new(), vec![x]) else {
                    return Symbol::Other;
                };
                self.push(node, "reshape", format!("[1, 1, {n}]"), Vec::new(), vec![mean])
            }
            (true, _) => self.unclaimed(node),
        }
    }

    pub(super) fn merged(&mut self, node: &Node, kind: &'static str, n: usize) -> Symbol {
        let reads: Option<Vec<String>> = (0..n)
            .map(|number| match self.symbols.input(node, number) {
                Symbol::Layer(name) => Some(name),
                _ => None,
            })
            .collect();
        let Some(reads) = reads else { return self.unclaimed(node) };
        let mut options = Vec::new();
        if kind == "concat"
            && let Some(axis) = self.symbols.scalar(node, n)
            && axis != -1.0
        {
            options.push(("axis", (axis as i64).to_string()));
        }
        self.push(node, kind, "", options, reads)
    }

    /// A product of two layers; x · sigmoid(x) is silu.
    pub(super) fn product(&mut self, node: &Node, a: String, b: String) -> Symbol {
        let is_sigmoid_of = |gate: &str, x: &str| {
            let line = self.at.get(gate).map(|at| &self.port.layers[*at]);
            line.is_some_and(|line| line.kind == "activation" && line.first == "sigmoid" && line.reads == [x])
        };
        let pair = [(&a, &b), (&b, &a)].into_iter().find(|(x, gate)| is_sigmoid_of(gate, x));
        let Some((x, gate)) = pair.map(|(x, gate)| (x.clone(), gate.clone())) else {
            return self.gated(node, a, b);
        };
        let Some(at) = self.at.get(&gate).copied() else { return Symbol::Other };
        let line = &mut self.port.layers[at];
        (line.first, line.reads) = ("silu".to_string(), vec![x]);
        Symbol::Layer(gate)
    }

    /// A product of two layers; one may have a value for each channel, as in squeeze-and-excitation.
    pub(super) fn gated(&mut self, node: &Node, a: String, b: String) -> Symbol {
        let gate_of = |x: &String, gate: &String| match (
            self.dims.get(x).map(Vec::as_slice),
            self.dims.get(gate).map(Vec::as_slice),
        ) {
            (Some([height, width, n]), Some([1, 1, m])) if n == m && [*height, *width] != [1, 1] => {
                Some([*height, *width])
            }
            _ => None,
        };
        let wide = gate_of(&a, &b).map(|size| (a.clone(), b.clone(), size));
        let Some((x, gate, [height, width])) =
            wide.or_else(|| gate_of(&b, &a).map(|size| (b.clone(), a.clone(), size)))
        else {
            return self.merged(node, "multiply", 2);
        };
        let name = format!("{gate}/upsample");
        let Symbol::Layer(wide) =
            self.push_named(&name, node, "upsample", format!("[{height}, {width}]"), Vec::new(), vec![gate])
        else {
            return Symbol::Other;
        };
        self.push(node, "multiply", "", Vec::new(), vec![x, wide])
    }
}
