//! Modules, computations and instructions as text.

use super::forms::list;
use super::lex::is_word_byte;
use super::op::Attributes;
use super::{frames, literal, number, sharding};
use crate::{AliasKind, CompId, Computation, EntryLayout, InstrId, Instruction, Metadata, Module, Op, Shape};
use std::borrow::Cow;
use std::fmt::Write;

/// The name under which [`Unmodelled::attributes`](crate::Unmodelled) keeps metadata fields that the IR does not have.
pub(crate) const METADATA: &str = "metadata";

/// Attributes of a module that the IR does not model and that XLA prints elsewhere than after the entry's layout:
/// before it, and at the end.
const ALIAS_PASSTHROUGH: &str = "alias_passthrough_params";
const ORIGIN_RECOVERY_TABLE: &str = "origin_recovery_table";

/// Options for printing a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintOptions {
    /// `%` before names of instructions and computations.
    pub percent: bool,
    /// Shapes before operands.
    pub operand_shapes: bool,
    /// `/*index=5*/` before every fifth of many operands.
    pub operand_indices: bool,
    /// `(x: f32[]) -> f32[]` after a computation's name.
    pub program_shapes: bool,
    /// `metadata={…}` and the source tables that it refers to. It also marks arrays with custom VJPs: a text without
    /// it is differentiated as if there were none.
    pub metadata: bool,
    /// Constants of more elements than this print as `{...}`, which no parser accepts. `None` prints all of them in
    /// full.
    pub max_constant_elements: Option<i64>,
}

impl Default for PrintOptions {
    /// Today's dialect, complete: XLA's `ShortParsable`, with metadata.
    fn default() -> PrintOptions {
        PrintOptions {
            percent: false,
            operand_shapes: false,
            operand_indices: false,
            program_shapes: false,
            metadata: true,
            max_constant_elements: None,
        }
    }
}

impl PrintOptions {
    /// The dialect of compiled programs and of dumps, complete: XLA's `Default`, as it is today.
    pub fn dump() -> PrintOptions {
        PrintOptions { percent: true, operand_indices: true, program_shapes: true, ..PrintOptions::default() }
    }

    /// The same as it was until 2025, with operands' shapes: TensorFlow still writes it before optimization.
    pub fn long() -> PrintOptions {
        PrintOptions { operand_shapes: true, ..PrintOptions::dump() }
    }
}

/// Prints a whole module.
pub fn print(module: &Module, options: &PrintOptions) -> String {
    let mut printer = Printer { module, options, out: String::new() };
    printer.header();
    for (at, computation) in module.computations.iter().enumerate() {
        printer.computation(computation, CompId(at as u32) == module.entry);
    }
    printer.out
}

/// Prints one instruction.
pub fn print_instruction(module: &Module, comp: CompId, id: InstrId, options: &PrintOptions) -> String {
    let mut printer = Printer { module, options, out: String::new() };
    let computation = module.comp(comp);
    printer.instruction(computation, computation.instr(id));
    printer.out
}

/// A module's name as one word. Nothing refers to it, so a proto may have any name, or none; characters that text does
/// not allow become `_`.
fn word(name: &str) -> Cow<'_, str> {
    match name {
        "" => Cow::Borrowed("_"),
        name if name.bytes().all(is_word_byte) => Cow::Borrowed(name),
        name => name.chars().map(|c| if c.is_ascii() && is_word_byte(c as u8) { c } else { '_' }).collect(),
    }
}

struct Printer<'a> {
    module: &'a Module,
    options: &'a PrintOptions,
    out: String,
}

impl Printer<'_> {
    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.out.write_fmt(text).expect("writing to a string cannot fail");
    }

    fn header(&mut self) {
        let module = self.module;
        self.put(format_args!("HloModule {}", word(&module.name)));
        if module.is_scheduled {
            self.out.push_str(", is_scheduled=true");
        }
        if !module.input_output_alias.is_empty() {
            self.out.push_str(", input_output_alias={ ");
            for (i, alias) in module.input_output_alias.iter().enumerate() {
                let separator = if i > 0 { ", " } else { "" };
                let kind = match alias.kind {
                    AliasKind::May => "may-alias",
                    AliasKind::Must => "must-alias",
                };
                let (output, parameter) = (list(&alias.output_index), list(&alias.parameter_index));
                let number = alias.parameter_number;
                self.put(format_args!("{separator}{{{output}}}: ({number}, {{{parameter}}}, {kind})"));
            }
            self.out.push_str(" }");
        }
        if !module.buffer_donors.is_empty() {
            self.out.push_str(", buffer_donor={ ");
            for (i, (number, index)) in module.buffer_donors.iter().enumerate() {
                let separator = if i > 0 { ", " } else { "" };
                self.put(format_args!("{separator}({number}, {{{}}})", list(index)));
            }
            self.out.push_str(" }");
        }
        let passthrough = module.unmodelled.attributes.iter().find(|(name, _)| name == ALIAS_PASSTHROUGH);
        if let Some((name, value)) = passthrough {
            self.put(format_args!(", {name}={value}"));
        }
        self.entry_layout();
        let (before, after): (Vec<_>, Vec<_>) =
            module.unmodelled.attributes.iter().partition(|(name, _)| name != ORIGIN_RECOVERY_TABLE);
        for (name, value) in before.into_iter().filter(|(name, _)| name != ALIAS_PASSTHROUGH) {
            self.put(format_args!(", {name}={value}"));
        }
        if !module.frontend_attributes.is_empty() {
            let attributes = frontend_attributes(&module.frontend_attributes);
            self.put(format_args!(", frontend_attributes={attributes}"));
        }
        for (name, value) in after {
            self.put(format_args!(", {name}={value}"));
        }
        self.out.push_str("\n\n");
        if self.options.metadata {
            frames::write(&mut self.out, &module.stack_frames);
        }
    }

    fn entry_layout(&mut self) {
        let entry = self.module.entry();
        let layout = self.module.entry_layout.clone().unwrap_or_else(|| EntryLayout {
            parameters: entry.parameters().iter().map(|&id| entry.instr(id).shape.with_default_layout()).collect(),
            result: entry.result_shape().with_default_layout(),
        });
        let parameters = Shape::Tuple(layout.parameters).to_string();
        self.put(format_args!(", entry_computation_layout={{{parameters}->{}}}", layout.result));
    }

    fn computation(&mut self, computation: &Computation, is_entry: bool) {
        if is_entry {
            self.out.push_str("ENTRY ");
        }
        self.name(&computation.name);
        self.out.push(' ');
        if self.options.program_shapes {
            self.program_shape(computation);
        }
        self.out.push_str("{\n");
        for id in computation.ids() {
            self.out.push_str(if id == computation.root { "  ROOT " } else { "  " });
            self.instruction(computation, computation.instr(id));
            self.out.push('\n');
        }
        self.out.push('}');
        for (name, value) in &computation.unmodelled.attributes {
            self.put(format_args!(", {name}={value}"));
        }
        self.out.push_str("\n\n");
    }

    fn program_shape(&mut self, computation: &Computation) {
        self.out.push('(');
        for (i, &id) in computation.parameters().iter().enumerate() {
            let parameter = computation.instr(id);
            let separator = if i > 0 { ", " } else { "" };
            self.put(format_args!("{separator}{}: {}", parameter.name, parameter.shape.without_layout()));
        }
        self.put(format_args!(") -> {} ", computation.result_shape().without_layout()));
    }

    fn instruction(&mut self, computation: &Computation, instr: &Instruction) {
        self.name(&instr.name);
        self.put(format_args!(" = {} {}(", instr.shape.with_default_layout(), instr.op.opcode()));
        match &instr.op {
            Op::Parameter { number, .. } => self.put(format_args!("{number}")),
            Op::Constant(value) => self.constant(instr, value),
            _ => self.operands(computation, instr),
        }
        self.out.push(')');
        self.attributes(computation, instr);
        if self.options.metadata {
            self.metadata(instr);
        }
        if !instr.backend_config.is_empty() {
            let config = quoted_unless_json(&instr.backend_config);
            self.put(format_args!(", backend_config={config}"));
        }
    }

    fn constant(&mut self, instr: &Instruction, value: &crate::Literal) {
        let is_whole = match self.options.max_constant_elements {
            None => true,
            Some(max) => instr.shape.as_array().is_some_and(|array| array.n_elements() <= max),
        };
        if is_whole {
            literal::write(&mut self.out, value);
        } else {
            self.out.push_str("{...}");
        }
    }

    fn operands(&mut self, computation: &Computation, instr: &Instruction) {
        for (i, &operand) in instr.operands.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
                if self.options.operand_indices && i % 5 == 0 {
                    self.put(format_args!("/*index={i}*/"));
                }
            }
            let operand = computation.instr(operand);
            if self.options.operand_shapes {
                self.put(format_args!("{} ", operand.shape.with_default_layout()));
            }
            self.name(&operand.name);
        }
    }

    fn attributes(&mut self, computation: &Computation, instr: &Instruction) {
        let percent = self.percent();
        let module = self.module;
        let computation_name = |comp: CompId| format!("{percent}{}", module.comp(comp).name);
        let mut attributes = Attributes { out: &mut self.out, computation: &computation_name };
        let lhs = instr.operands.first().map(|&lhs| &computation.instr(lhs).shape);
        // Further metadata is printed with the metadata.
        let further: Vec<&(String, String)> =
            instr.unmodelled.attributes.iter().filter(|(name, _)| name != METADATA).collect();
        attributes.write_op(&instr.op, lhs, &further);
        attributes.write_opaque_called(&instr.op);
        if let Some(value) = instr.sharding.as_ref().filter(|value| sharding::has_text(value)) {
            let mut text = String::new();
            sharding::write(&mut text, value);
            attributes.put("sharding", text);
        }
        if !instr.frontend_attributes.is_empty() {
            attributes.put("frontend_attributes", frontend_attributes(&instr.frontend_attributes));
        }
        if !instr.control_predecessors.is_empty() {
            let names: Vec<String> = instr
                .control_predecessors
                .iter()
                .map(|&before| format!("{percent}{}", computation.instr(before).name))
                .collect();
            attributes.put("control-predecessors", format_args!("{{{}}}", names.join(", ")));
        }
    }

    fn metadata(&mut self, instr: &Instruction) {
        let Metadata { op_type, op_name, source_file, source_line, stack_frame_id } = &instr.metadata;
        let mut parts = Vec::new();
        for (name, value) in [("op_type", op_type), ("op_name", op_name), ("source_file", source_file)] {
            if !value.is_empty() {
                parts.push(format!("{name}=\"{}\"", number::escape(value)));
            }
        }
        let has_stack_frame = *stack_frame_id != 0;
        let further = instr.unmodelled.attributes.iter().find(|(name, _)| name == METADATA);
        // XLA omits the metadata if these fields are all empty.
        if parts.is_empty() && !has_stack_frame && further.is_none() {
            return;
        }
        if *source_line != 0 {
            parts.push(format!("source_line={source_line}"));
        }
        parts.extend(further.map(|(_, text)| text.clone()));
        if has_stack_frame {
            parts.push(format!("stack_frame_id={stack_frame_id}"));
        }
        self.put(format_args!(", metadata={{{}}}", parts.join(" ")));
    }

    fn percent(&self) -> &'static str {
        if self.options.percent { "%" } else { "" }
    }

    fn name(&mut self, name: &str) {
        self.out.push_str(self.percent());
        self.out.push_str(name);
    }
}

fn frontend_attributes(attributes: &[(String, String)]) -> String {
    let pairs: Vec<String> =
        attributes.iter().map(|(name, value)| format!("{name}={}", quoted_unless_json(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

fn quoted_unless_json(text: &str) -> String {
    if number::is_json_dict(text) { text.to_string() } else { format!("\"{}\"", number::escape(text)) }
}
