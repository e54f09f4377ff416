//! Modules, functions and regions, and which values are seen where.

use std::collections::{HashMap, HashSet};

use super::attributes::Attribute;
use super::cursor::Cursor;
use super::names::Locations;
use super::{Function, Operation, Program, Region, Use};
use bf16scope_hlo::Shape;

/// Reads a text whole.
pub(super) fn read(text: &str) -> Option<Program<'_>> {
    whole(&mut Parser { cursor: Cursor::new(text), visible: HashMap::new(), open: Vec::new() })
}

/// Reads a text with locations, which operations have the numbers of in place of lines.
pub(super) fn read_located(text: &str) -> Option<(Program<'_>, Locations<'_>)> {
    let mut parser = Parser { cursor: Cursor::new(text), visible: HashMap::new(), open: Vec::new() };
    parser.cursor.locations = Some(Locations::default());
    let program = whole(&mut parser)?;
    Some((program, parser.cursor.locations?))
}

/// Reads a text in which `?` is a size; where it is not read, the line is the error.
pub(super) fn read_symbolic(text: &str) -> Result<Program<'_>, u32> {
    let mut parser = Parser { cursor: Cursor::new(text), visible: HashMap::new(), open: Vec::new() };
    parser.cursor.is_symbolic = true;
    whole(&mut parser).ok_or_else(|| parser.cursor.line())
}

fn whole<'t>(parser: &mut Parser<'t>) -> Option<Program<'t>> {
    parser.cursor.expect_word("module")?;
    let name = if parser.cursor.peek() == b'@' { parser.cursor.symbol()? } else { "module" };
    if parser.cursor.eat_word("attributes") {
        let mut attributes = parser.cursor.attributes()?;
        for count in ["mhlo.num_partitions", "mhlo.num_replicas"] {
            // A program for several devices has attributes that are not read here.
            if !matches!(attributes.take(count), None | Some(Attribute::Int(1))) {
                return None;
            }
        }
        if parser.cursor.is_symbolic {
            drop(attributes.take("jax.uses_shape_polymorphism"));
        }
        if !attributes.is_empty() {
            return None;
        }
    }
    parser.cursor.expect("{")?;
    let (mut functions, mut names) = (Vec::new(), HashSet::new());
    while !parser.cursor.eat("}") {
        let function = parser.function()?;
        if !names.insert(function.name) {
            return None;
        }
        functions.push(function);
    }
    parser.cursor.location()?;
    (parser.cursor.peek() == 0).then_some(Program { name, functions })
}

/// A text, and what is known at this place of it.
pub(super) struct Parser<'t> {
    pub(super) cursor: Cursor<'t>,
    /// How many values a name stands for, and how many regions are around its definition.
    visible: HashMap<&'t str, (u32, usize)>,
    /// The regions that this place is in.
    open: Vec<Open<'t>>,
}

#[derive(Default)]
struct Open<'t> {
    defined: Vec<&'t str>,
    captured: HashSet<Use<'t>>,
    captures: Vec<Use<'t>>,
}

impl<'t> Parser<'t> {
    fn function(&mut self) -> Option<Function<'t>> {
        self.cursor.expect_word("func.func")?;
        let _ = self.cursor.eat_word("public") || self.cursor.eat_word("private");
        let name = self.cursor.symbol()?;
        let (mut said, mut places) = (Vec::new(), Vec::new());
        let parameters = self.cursor.list("(", ")", |cursor| {
            let parameter = typed(cursor)?;
            said.push(cursor.attributes()?);
            places.push(cursor.location()?);
            Some(parameter)
        })?;
        let mut results = Vec::new();
        if self.cursor.eat("->") {
            results = match self.cursor.peek() {
                b'(' => self.cursor.list("(", ")", |cursor| {
                    let result = cursor.tensor()?;
                    let mut attributes = cursor.attributes()?;
                    let _ = attributes.take("jax.result_info");
                    attributes.is_empty().then_some(result)
                })?,
                // Nothing is said of one without brackets: what follows is the body.
                _ => vec![self.cursor.tensor()?],
            };
        }
        let body = self.region(parameters)?;
        self.cursor.location()?;
        Some(Function { name, body, parameters: said, places, results })
    }

    /// `{ … }` of ops over these parameters; a label with more of them may stand first.
    pub(super) fn region(&mut self, parameters: Vec<(&'t str, Shape)>) -> Option<Region<'t>> {
        self.cursor.expect("{")?;
        self.open.push(Open::default());
        let region = self.inside(parameters);
        let Open { defined, captures, .. } = self.open.pop()?;
        for name in defined {
            self.visible.remove(name);
        }
        region.map(|region| Region { captures, ..region })
    }

    fn inside(&mut self, mut parameters: Vec<(&'t str, Shape)>) -> Option<Region<'t>> {
        if self.cursor.eat("^") {
            self.cursor.word()?;
            if self.cursor.peek() == b'(' {
                parameters.extend(self.cursor.list("(", ")", parameter)?);
            }
            self.cursor.expect(":")?;
        }
        parameters.iter().try_for_each(|(name, _)| self.define(name, 1))?;
        let mut operations = Vec::new();
        while !self.cursor.eat("}") {
            operations.push(self.nested_operation()?);
        }
        Some(Region { parameters, operations, captures: Vec::new() })
    }

    fn nested_operation(&mut self) -> Option<Operation<'t>> {
        // Regions nest as types do, and no deeper.
        if self.open.len() > super::cursor::MAX_DEPTH as usize { None } else { self.operation() }
    }

    /// Makes a name known; none twice where both are seen.
    pub(super) fn define(&mut self, name: &'t str, n: u32) -> Option<()> {
        let known = self.visible.insert(name, (n, self.open.len()));
        self.open.last_mut()?.defined.push(name);
        known.is_none().then_some(())
    }

    /// A value that is defined.
    pub(super) fn operand(&mut self) -> Option<Use<'t>> {
        let value = self.cursor.value()?;
        let &(n, depth) = self.visible.get(value.name)?;
        // One of several is named by its number.
        if value.result >= n {
            return None;
        }
        for region in &mut self.open[depth..] {
            if region.captured.insert(value) {
                region.captures.push(value);
            }
        }
        Some(value)
    }

    /// `%a, %b`, as many as there are.
    pub(super) fn operands(&mut self) -> Option<Vec<Use<'t>>> {
        let mut operands = Vec::new();
        if self.cursor.peek() != b'%' {
            return Some(operands);
        }
        loop {
            operands.push(self.operand()?);
            // A comma may also lead to what is said of the op.
            if !self.cursor.eat_before(",", b'%') {
                return Some(operands);
            }
        }
    }

    /// `(%a, %b)`.
    pub(super) fn operands_in_brackets(&mut self) -> Option<Vec<Use<'t>>> {
        self.cursor.expect("(")?;
        let operands = self.operands()?;
        self.cursor.expect(")")?;
        Some(operands)
    }
}

/// `%a: tensor<f32>`, and its location.
pub(super) fn parameter<'t>(cursor: &mut Cursor<'t>) -> Option<(&'t str, Shape)> {
    let parameter = typed(cursor)?;
    cursor.location()?;
    Some(parameter)
}

fn typed<'t>(cursor: &mut Cursor<'t>) -> Option<(&'t str, Shape)> {
    let name = cursor.value_name()?;
    cursor.expect(":")?;
    Some((name, cursor.tensor()?))
}
