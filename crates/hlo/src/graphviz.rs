//! Modules as Graphviz graphs, coloured by dtype: they show where bf16 begins and ends.
//!
//! A node is an instruction, in the colour of its result's dtype; an edge has its operand's shape and colour. Converts
//! between float dtypes stand out: red, and filled with a gradient from the operand's colour to the result's. Called
//! computations are clusters, joined to their callers by dashed edges, except for those that apply one op to scalars:
//! their callers name the op. Scalar constants are written in their users. Graphviz computes the layout.
//!
//! Source: Graphviz's DOT language; the idea of one colour per kind is from XLA's `hlo_graph_dumper`.

use super::text::number;
use super::words;
use super::{CompId, Computation, DType, DTypeClass, InstrId, Instruction, Literal, Module, Op, Shape};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The meaning of a node's colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hue {
    BFloat16,
    Float16,
    Float32,
    Float64,
    SmallFloat,
    Integer,
    Pred,
    Complex,
    Other,
}

impl Hue {
    const ALL: [Hue; 9] = [
        Hue::BFloat16,
        Hue::Float16,
        Hue::Float32,
        Hue::Float64,
        Hue::SmallFloat,
        Hue::Integer,
        Hue::Pred,
        Hue::Complex,
        Hue::Other,
    ];

    fn for_shape(shape: &Shape) -> Hue {
        match shape {
            Shape::Array(array) => Hue::of_dtype(array.dtype),
            // A tuple whose elements have one dtype has that colour.
            Shape::Tuple(_) => {
                let mut hues = shape.leaves().into_iter().map(|leaf| match leaf {
                    Shape::Array(array) => Hue::of_dtype(array.dtype),
                    Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => Hue::Other,
                });
                match hues.next() {
                    Some(first) if hues.all(|hue| hue == first) => first,
                    Some(_) | None => Hue::Other,
                }
            }
            Shape::Token | Shape::Opaque | Shape::Buffer(_) => Hue::Other,
        }
    }

    fn of_dtype(dtype: DType) -> Hue {
        match (dtype, dtype.class()) {
            (DType::BF16, _) => Hue::BFloat16,
            (DType::F16, _) => Hue::Float16,
            (DType::F32, _) => Hue::Float32,
            (DType::F64, _) => Hue::Float64,
            (_, DTypeClass::Float) => Hue::SmallFloat,
            (_, DTypeClass::Signed | DTypeClass::Unsigned) => Hue::Integer,
            (_, DTypeClass::Pred) => Hue::Pred,
            (_, DTypeClass::Complex) => Hue::Complex,
        }
    }

    /// Fill and line. The fills differ in lightness too, so that they can be distinguished without colour vision.
    fn colors(self) -> (&'static str, &'static str) {
        match self {
            Hue::BFloat16 => ("#f4a259", "#b35900"),
            Hue::Float16 => ("#e8d174", "#8a7500"),
            Hue::Float32 => ("#cfe3f7", "#2f6ea5"),
            Hue::Float64 => ("#8fb4dd", "#1c4a7a"),
            Hue::SmallFloat => ("#e58a8a", "#a03030"),
            Hue::Integer => ("#d9ead3", "#4f8040"),
            Hue::Pred => ("#e9e2f3", "#7a5ca8"),
            Hue::Complex => ("#c9b8e0", "#5b3a92"),
            Hue::Other => ("#f2f2f2", "#808080"),
        }
    }

    fn label(self) -> &'static str {
        match self {
            Hue::BFloat16 => "bf16",
            Hue::Float16 => "f16",
            Hue::Float32 => "f32",
            Hue::Float64 => "f64",
            Hue::SmallFloat => "8-bit and smaller floats",
            Hue::Integer => "integers",
            Hue::Pred => "pred",
            Hue::Complex => "complex",
            Hue::Other => "mixed tuples, tokens",
        }
    }
}

/// The module in the DOT language. The module must be verified.
pub fn render(module: &Module) -> String {
    let mut out = format!(
        "digraph {} {{\n  label={};\n  labelloc=t;\n  fontname=\"Helvetica\";\n  compound=true;\n  \
         node [shape=box, style=\"filled,rounded\", fontname=\"Helvetica\", fontsize=11];\n  \
         edge [fontname=\"Helvetica\", fontsize=9];\n",
        quote(&module.name),
        quote(&module.name)
    );
    let mut picture = Picture { module, out: &mut out, seen: BTreeMap::new() };
    for at in 0..module.computations.len() {
        picture.computation(CompId(at as u32));
    }
    picture.legend();
    out.push_str("}\n");
    out
}

struct Picture<'m, 'o> {
    module: &'m Module,
    out: &'o mut String,
    /// The colours that occur, with the number of their instructions.
    seen: BTreeMap<Hue, usize>,
}

impl Picture<'_, '_> {
    fn line(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn computation(&mut self, comp: CompId) {
        let computation = self.module.comp(comp);
        let is_entry = comp == self.module.entry;
        if !is_entry && applied(computation).is_some() {
            return;
        }
        let title = if is_entry { format!("ENTRY {}", computation.name) } else { computation.name.clone() };
        let style = if is_entry { "solid" } else { "dashed" };
        self.line(&format!(
            "  subgraph \"cluster_{}\" {{\n    label={};\n    style={style};\n    color=\"#606060\";",
            comp.0,
            quote(&title)
        ));
        for id in computation.ids().filter(|&id| !is_inlined(computation, id)) {
            self.node(comp, computation, id);
        }
        self.line("  }");
        // Once per result: a tuple of many arrays has as many readers.
        let results = computation.instructions.iter().map(|instr| (Hue::for_shape(&instr.shape), short(&instr.shape)));
        let results: Vec<(Hue, String)> = results.collect();
        for id in computation.ids() {
            self.edges(comp, computation, id, &results);
        }
    }

    fn node(&mut self, comp: CompId, computation: &Computation, id: InstrId) {
        let instr = computation.instr(id);
        let hue = Hue::for_shape(&instr.shape);
        *self.seen.entry(hue).or_default() += 1;
        let (fill, line) = hue.colors();
        let mut attributes =
            format!("label={}, tooltip={}", quote(&label(self.module, computation, instr)), quote(&tooltip(instr)));
        match converted_from(computation, instr) {
            Some(from) => {
                // A fill of two colours, from the top: the operand's, then the result's.
                let (from_fill, _) = from.colors();
                write!(attributes, ", style=\"filled,rounded\", penwidth=2, margin=\"0.2,0.06\", gradientangle=270, fillcolor=\"{from_fill}:{fill}\", color=\"#c00000\"")
            }
            None => write!(attributes, ", fillcolor=\"{fill}\", color=\"{line}\""),
        }
        .expect("writing to a string cannot fail");
        if id == computation.root {
            attributes.push_str(", peripheries=2");
        }
        if matches!(instr.op, Op::Parameter { .. }) {
            attributes.push_str(", shape=ellipse");
        }
        self.line(&format!("    {} [{attributes}];", node_name(comp, id)));
    }

    fn edges(&mut self, comp: CompId, computation: &Computation, id: InstrId, results: &[(Hue, String)]) {
        let instr = computation.instr(id);
        let to = node_name(comp, id);
        // A tuple may have many elements, and their order is fixed.
        let is_numbered = instr.operands.len() > 1 && !matches!(instr.op, Op::Tuple);
        for (number, &operand) in instr.operands.iter().enumerate() {
            if is_inlined(computation, operand) {
                continue;
            }
            let (hue, shape) = &results[operand.0 as usize];
            let (_, line) = hue.colors();
            let head = if is_numbered { format!(", headlabel=\"{number}\"") } else { String::new() };
            self.line(&format!(
                "  {} -> {to} [label={}, color=\"{line}\", fontcolor=\"{line}\"{head}];",
                node_name(comp, operand),
                quote(shape)
            ));
        }
        for &before in &instr.control_predecessors {
            if !is_inlined(computation, before) {
                self.line(&format!("  {} -> {to} [style=dotted, label=\"control\"];", node_name(comp, before)));
            }
        }
        for called in instr.op.called() {
            if applied(self.module.comp(called)).is_some() {
                continue;
            }
            let root = node_name(called, self.module.comp(called).root);
            let name = quote(&self.module.comp(called).name);
            self.line(&format!(
                "  {root} -> {to} [style=dashed, color=\"#909090\", constraint=false, ltail=\"cluster_{}\", tooltip={name}];",
                called.0
            ));
        }
    }

    /// The legend: the colours that occur, and their meaning.
    fn legend(&mut self) {
        self.line(
            "  subgraph \"cluster_legend\" {\n    label=\"result dtype\";\n    style=filled;\n    color=\"#fafafa\";",
        );
        let mut rows = String::new();
        for hue in Hue::ALL {
            if let Some(count) = self.seen.get(&hue) {
                let (fill, line) = hue.colors();
                let label = hue.label();
                write!(
                    rows,
                    "<tr><td bgcolor=\"{fill}\" color=\"{line}\">{label}</td><td align=\"right\">{count}</td></tr>"
                )
                .expect("writing to a string cannot fail");
            }
        }
        rows.push_str("<tr><td color=\"#c00000\">convert between floats</td><td>red</td></tr>");
        self.line(&format!(
            "    legend [shape=plain, style=\"\", label=<<table border=\"0\" cellborder=\"1\" cellspacing=\"2\">{rows}</table>>];\n  }}"
        ));
    }
}

/// A scalar constant with users is written into these.
fn is_inlined(computation: &Computation, id: InstrId) -> bool {
    let instr = computation.instr(id);
    matches!(instr.op, Op::Constant(_)) && instr.shape.is_scalar() && id != computation.root
}

/// A name for a computation, such as `add in f32`, if it only applies one op to its parameters, all scalars.
fn applied(computation: &Computation) -> Option<String> {
    let is_parameter = |id: InstrId| matches!(computation.instr(id).op, Op::Parameter { .. });
    let root = computation.instr(computation.root);
    let is_one_op = computation.ids().all(|id| is_parameter(id) != (id == computation.root))
        && computation.instructions.iter().all(|instr| instr.shape.is_scalar())
        && root.op.called().is_empty();
    let dtype = computation.instr(*root.operands.first()?).shape.dtype()?;
    is_one_op.then(|| format!("{} in {dtype}", root.op.opcode()))
}

/// The dtype from which a convert between floats converts.
fn converted_from(computation: &Computation, instr: &Instruction) -> Option<Hue> {
    if instr.op != Op::Convert {
        return None;
    }
    let from = &computation.instr(*instr.operands.first()?).shape;
    let is_float = |shape: &Shape| shape.dtype().is_some_and(DType::is_float);
    (is_float(from) && is_float(&instr.shape) && from.dtype() != instr.shape.dtype()).then(|| Hue::for_shape(from))
}

fn node_name(comp: CompId, id: InstrId) -> String {
    format!("n{}_{}", comp.0, id.0)
}

/// Name and opcode, then the shape, then the scalars among the operands.
fn label(module: &Module, computation: &Computation, instr: &Instruction) -> String {
    let mut label = match &instr.op {
        Op::Parameter { number, .. } => format!("parameter {number}\n{}", instr.name),
        Op::Convert => {
            let dtype = |id: &InstrId| computation.instr(*id).shape.dtype();
            match (instr.operands.first().and_then(dtype), instr.shape.dtype()) {
                (Some(from), Some(to)) => format!("convert {from} to {to}"),
                _ => "convert".to_string(),
            }
        }
        op => op.opcode().into_owned(),
    };
    if let Op::Parameter { .. } | Op::CustomCall(_) | Op::Opaque(_) = &instr.op
        && !instr.metadata.op_name.is_empty()
    {
        label = format!("{label}\n{}", instr.metadata.op_name);
    }
    label = format!("{label}\n{}", short(&instr.shape));
    for op in instr.op.called().into_iter().filter_map(|called| applied(module.comp(called))) {
        label = format!("{label}\n{op}");
    }
    for (number, &operand) in instr.operands.iter().enumerate() {
        if is_inlined(computation, operand)
            && let Op::Constant(Literal::Array { shape, bytes }) = &computation.instr(operand).op
        {
            let value = number::element(shape.dtype, bytes);
            write!(label, "\noperand {number} = {} {value}", shape.dtype).expect("writing to a string cannot fail");
        }
    }
    label
}

/// The tooltip of a node: its name, and where it comes from.
fn tooltip(instr: &Instruction) -> String {
    match instr.metadata.op_name.as_str() {
        "" => instr.name.clone(),
        op_name => format!("{}\n{op_name}", instr.name),
    }
}

/// A shape without layout; for a large tuple only the number of arrays.
fn short(shape: &Shape) -> String {
    match shape.leaves().len() {
        n if n > 3 => format!("tuple of {n}"),
        _ => shape.without_layout().to_string(),
    }
}

/// A quoted string of DOT. Backslashes would begin escapes of labels (`\N`), so they are doubled; a line break is
/// centred, and control characters are made visible.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in words::visible(text).chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;
    use crate::verify;

    fn rendered(text: &str) -> String {
        let module = parse(text, "test").unwrap_or_else(|error| panic!("{error}"));
        verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
        render(&module)
    }

    const MODULE: &str = r#"HloModule m

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

twice {
  v = f32[4] parameter(0)
  ROOT w = f32[4] add(v, v)
}

ENTRY main {
  p = f32[4] parameter(0), metadata={op_name="a \"quoted\" \\N name"}
  low = bf16[4] convert(p)
  high = f32[4] convert(low)
  doubled = f32[4] call(high), to_apply=twice
  zero = f32[] constant(0.5)
  ROOT total = f32[] reduce(doubled, zero), dimensions={0}, to_apply=add
}
"#;

    #[test]
    fn dtypes_have_colours_and_converts_stand_out() {
        let picture = rendered(MODULE);
        let has = |part: &str| assert!(picture.contains(part), "no {part} in\n{picture}");
        has(r#"label="ENTRY main""#);
        // bf16 comes from f32: the fill is a gradient between the two colours.
        has(
            r##"n2_1 [label="convert f32 to bf16\nbf16[4]", tooltip="low", style="filled,rounded", penwidth=2, margin="0.2,0.06", gradientangle=270, fillcolor="#cfe3f7:#f4a259", color="#c00000"]"##,
        );
        has(r##"n2_1 -> n2_2 [label="bf16[4]", color="#b35900", fontcolor="#b35900"]"##);
        // The scalar is in its user, and has no node; the same holds for the computation of one op.
        has(r#"label="reduce\nf32[]\nadd in f32\noperand 1 = f32 0.5""#);
        assert!(!picture.contains("n2_4 ") && !picture.contains("cluster_0"), "{picture}");
        // Any other computation is a cluster, joined to its caller.
        has(r#"subgraph "cluster_1""#);
        has(r##"n1_1 -> n2_3 [style=dashed, color="#909090", constraint=false, ltail="cluster_1", tooltip="twice"]"##);
        has(r##"<td bgcolor="#cfe3f7" color="#2f6ea5">f32</td><td align="right">6</td>"##);
        has(r##"<td bgcolor="#f4a259" color="#b35900">bf16</td><td align="right">1</td>"##);
    }

    #[test]
    fn names_are_escaped() {
        let picture = rendered(MODULE);
        assert!(picture.contains(r#"tooltip="p\na \"quoted\" \\N name""#), "{picture}");
        assert_eq!(quote("a\tb\r\u{7}"), r#""a b\\r\\x07""#);
        assert_eq!(quote("\0\x1b\u{202e}ü"), r#""\\x00\\x1b\\u{202e}ü""#);
    }
}
