//! One op: its results, and then the generic form, or a short one, which `forms` reads.

use super::Operation;
use super::attributes::Attributes;
use super::program::Parser;
use bf16scope_hlo::Shape;

impl<'t> Parser<'t> {
    /// Reads an op with its regions, and makes its results known.
    pub(super) fn operation(&mut self) -> Option<Operation<'t>> {
        let mut results = Vec::new();
        if self.cursor.peek() == b'%' {
            loop {
                let name = self.cursor.value_name()?;
                let n: u32 = if self.cursor.eat(":") { self.cursor.digits()? } else { 1 };
                if n == 0 {
                    return None;
                }
                results.push((name, n));
                if !self.cursor.eat(",") {
                    break;
                }
            }
            self.cursor.expect("=")?;
        }
        let line = self.cursor.line();
        let operation = if self.cursor.peek() == b'"' { self.generic() } else { self.short() }?;
        let n_named = results.iter().try_fold(0u32, |sum, (_, n)| sum.checked_add(*n))?;
        if n_named as usize != operation.result_types.len() {
            return None;
        }
        results.iter().try_for_each(|(name, n)| self.define(name, *n))?;
        let place = self.cursor.location()?;
        let line = if self.cursor.locations.is_some() { place } else { line };
        Some(Operation { results, line, ..operation })
    }

    /// `"stablehlo.add"(%a, %b) <{…}> ({ … }) {…} : (…) -> …`.
    fn generic(&mut self) -> Option<Operation<'t>> {
        let mut operation = Operation::new(self.cursor.quoted()?);
        operation.operands = self.operands_in_brackets()?;
        if self.cursor.eat("<") {
            operation.attributes = self.cursor.attributes()?;
            self.cursor.expect(">")?;
        }
        if self.cursor.eat("(") {
            loop {
                operation.regions.push(self.region(Vec::new())?);
                if self.cursor.eat(")") {
                    break;
                }
                self.cursor.expect(",")?;
            }
        }
        operation.attributes.join(self.cursor.attributes()?)?;
        self.cursor.expect(":")?;
        self.function_type(&mut operation)?;
        Some(operation)
    }

    /// `(tensor<f32>, tensor<f32>) -> tensor<f32>`.
    pub(super) fn function_type(&mut self, operation: &mut Operation<'t>) -> Option<()> {
        operation.operand_types = self.cursor.list("(", ")", |cursor| cursor.tensor())?;
        self.cursor.expect("->")?;
        operation.result_types = match self.cursor.peek() {
            b'(' => self.cursor.list("(", ")", |cursor| cursor.tensor())?,
            _ => vec![self.cursor.tensor()?],
        };
        Some(())
    }

    /// The attributes of an op in its short form, and its types: all as one (`: tensor<f32>`), or as a function's.
    pub(super) fn types(&mut self, operation: &mut Operation<'t>) -> Option<()> {
        operation.attributes.join(self.cursor.attributes()?)?;
        self.cursor.expect(":")?;
        if self.cursor.peek() == b'(' {
            return self.function_type(operation);
        }
        let all = self.cursor.tensor()?;
        operation.operand_types = vec![all.clone(); operation.operands.len()];
        operation.result_types = vec![all];
        Some(())
    }

    /// `tensor<f32>, tensor<f32>`.
    pub(super) fn tensors(&mut self) -> Option<Vec<Shape>> {
        let mut tensors = vec![self.cursor.tensor()?];
        while self.cursor.eat(",") {
            tensors.push(self.cursor.tensor()?);
        }
        Some(tensors)
    }
}

impl<'t> Operation<'t> {
    pub(super) fn new(name: &'t str) -> Operation<'t> {
        Operation {
            name,
            results: Vec::new(),
            operands: Vec::new(),
            attributes: Attributes::default(),
            regions: Vec::new(),
            operand_types: Vec::new(),
            result_types: Vec::new(),
            line: 0,
        }
    }
}
