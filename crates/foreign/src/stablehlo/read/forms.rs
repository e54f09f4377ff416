//! The short forms of ops, `stablehlo.add %0, %1 : tensor<f32>`, in the words of the generic one.

use super::attributes::{Attribute, Attributes};
use super::program::{Parser, parameter};
use super::{Operation, Region};

impl<'t> Parser<'t> {
    /// Reads an op in its short form.
    pub(super) fn short(&mut self) -> Option<Operation<'t>> {
        let mut operation = Operation::new(self.cursor.word()?);
        match operation.name {
            "return" | "func.return" | "stablehlo.return" => self.returned(&mut operation)?,
            "call" | "func.call" => {
                let callee = Attribute::Symbol(self.cursor.symbol()?);
                operation.attributes.put("callee", callee)?;
                operation.operands = self.operands_in_brackets()?;
                self.cursor.expect(":")?;
                self.function_type(&mut operation)?;
            }
            "stablehlo.custom_call" if self.cursor.is_symbolic => self.custom_call(&mut operation)?,
            "stablehlo.constant" => {
                operation.attributes = self.cursor.attributes()?;
                self.cursor.expect_word("dense")?;
                let value = self.cursor.dense()?;
                operation.result_types = vec![value.shape.clone().into()];
                operation.attributes.put("value", Attribute::Dense(value))?;
            }
            "stablehlo.reduce" => self.reduce(&mut operation)?,
            "stablehlo.while" => self.while_loop(&mut operation)?,
            "stablehlo.optimization_barrier" => {
                operation.operands = self.operands()?;
                operation.attributes = self.cursor.attributes()?;
                self.cursor.expect(":")?;
                operation.operand_types = self.tensors()?;
                operation.result_types = operation.operand_types.clone();
            }
            "stablehlo.select" => self.select(&mut operation)?,
            name if name.starts_with("chlo.") => self.chlo(&mut operation)?,
            name => {
                self.before_types(name, &mut operation)?;
                self.types(&mut operation)?;
            }
        }
        Some(operation)
    }

    /// `%a, %b : tensor<f32>, tensor<f32>`, or nothing.
    fn returned(&mut self, operation: &mut Operation<'t>) -> Option<()> {
        operation.operands = self.operands()?;
        if !operation.operands.is_empty() {
            self.cursor.expect(":")?;
            operation.operand_types = self.tensors()?;
        }
        Some(())
    }

    /// `@target(%a) {…} : (…) -> …`.
    fn custom_call(&mut self, operation: &mut Operation<'t>) -> Option<()> {
        let target = Attribute::Symbol(self.cursor.symbol()?);
        operation.operands = self.operands_in_brackets()?;
        operation.attributes = self.cursor.attributes()?;
        operation.attributes.put("call_target_name", target)?;
        self.cursor.expect(":")?;
        self.function_type(operation)
    }

    /// `%a : tensor<f32> -> tensor<f32>`.
    fn chlo(&mut self, operation: &mut Operation<'t>) -> Option<()> {
        operation.operands = self.operands()?;
        operation.attributes.join(self.cursor.attributes()?)?;
        self.cursor.expect(":")?;
        operation.operand_types = self.tensors()?;
        self.cursor.expect("->")?;
        operation.result_types = vec![self.cursor.tensor()?];
        Some(())
    }

    /// The operands and attributes of an op whose types follow.
    fn before_types(&mut self, name: &str, operation: &mut Operation<'t>) -> Option<()> {
        match name {
            "stablehlo.composite" if self.cursor.is_symbolic => {
                self.cursor.quoted()?;
                operation.operands = self.operands()?;
            }
            "stablehlo.convolution" => {
                operation.operands = self.operands_in_brackets()?;
                operation.attributes = self.convolution()?;
            }
            "stablehlo.iota" => self.named_int("dim", "iota_dimension", &mut operation.attributes)?,
            "stablehlo.compare" => {
                operation.attributes.put("comparison_direction", Attribute::Word(self.cursor.word()?))?;
                self.cursor.expect(",")?;
                operation.operands = self.operands()?;
                if self.cursor.eat(",") {
                    operation.attributes.put("compare_type", Attribute::Word(self.cursor.word()?))?;
                }
            }
            name => {
                operation.operands = self.operands()?;
                self.behind_operands(name, &mut operation.attributes)?;
            }
        }
        Some(())
    }

    /// The attributes between the operands and the types.
    fn behind_operands(&mut self, name: &str, attributes: &mut Attributes<'t>) -> Option<()> {
        let is_listed = matches!(
            name,
            "stablehlo.broadcast_in_dim"
                | "stablehlo.transpose"
                | "stablehlo.reverse"
                | "stablehlo.dynamic_slice"
                | "stablehlo.pad"
                | "stablehlo.concatenate"
                | "stablehlo.reduce_precision"
                | "stablehlo.rng_bit_generator"
                | "stablehlo.dot_general"
                | "stablehlo.dynamic_broadcast_in_dim"
                | "stablehlo.dynamic_iota"
                | "stablehlo.get_dimension_size"
        );
        if is_listed {
            self.cursor.expect(",")?;
        }
        match name {
            "stablehlo.broadcast_in_dim" | "stablehlo.dynamic_broadcast_in_dim" => {
                self.named_ints("dims", "broadcast_dimensions", attributes)
            }
            "stablehlo.transpose" => self.named_ints("dims", "permutation", attributes),
            "stablehlo.reverse" => self.named_ints("dims", "dimensions", attributes),
            "stablehlo.dynamic_slice" => self.named_ints("sizes", "slice_sizes", attributes),
            "stablehlo.pad" => {
                self.named_ints("low", "edge_padding_low", attributes)?;
                self.cursor.expect(",")?;
                self.named_ints("high", "edge_padding_high", attributes)?;
                self.cursor.expect(",")?;
                self.named_ints("interior", "interior_padding", attributes)
            }
            "stablehlo.dynamic_iota" => self.named_int("dim", "iota_dimension", attributes),
            "stablehlo.get_dimension_size" | "stablehlo.concatenate" => self.named_int("dim", "dimension", attributes),
            "stablehlo.slice" => {
                let (mut starts, mut limits, mut strides) = (Vec::new(), Vec::new(), Vec::new());
                self.cursor.list("[", "]", |cursor| {
                    starts.push(cursor.int()?);
                    cursor.expect(":")?;
                    limits.push(cursor.int()?);
                    strides.push(if cursor.eat(":") { cursor.int()? } else { 1 });
                    Some(())
                })?;
                attributes.put("start_indices", Attribute::Ints(starts))?;
                attributes.put("limit_indices", Attribute::Ints(limits))?;
                attributes.put("strides", Attribute::Ints(strides))
            }
            "stablehlo.reduce_precision" => {
                self.cursor.expect_word("format")?;
                self.cursor.expect("=")?;
                let (exponent, mantissa) = self.cursor.word()?.strip_prefix('e')?.split_once('m')?;
                attributes.put("exponent_bits", Attribute::Int(exponent.parse().ok()?))?;
                attributes.put("mantissa_bits", Attribute::Int(mantissa.parse().ok()?))
            }
            "stablehlo.rng_bit_generator" => {
                self.cursor.expect_word("algorithm")?;
                self.cursor.expect("=")?;
                attributes.put("rng_algorithm", Attribute::Word(self.cursor.word()?))
            }
            "stablehlo.dot_general" => self.dot(attributes),
            _ => Some(()),
        }
    }

    /// `dim = 0`, under its name in the generic form.
    fn named_int(&mut self, short: &str, name: &'static str, attributes: &mut Attributes<'t>) -> Option<()> {
        self.cursor.expect_word(short)?;
        self.cursor.expect("=")?;
        attributes.put(name, Attribute::Int(self.cursor.int()?))
    }

    /// `dims = [0, 1]`, under its name in the generic form.
    fn named_ints(&mut self, short: &str, name: &'static str, attributes: &mut Attributes<'t>) -> Option<()> {
        self.cursor.expect_word(short)?;
        self.cursor.expect("=")?;
        attributes.put(name, Attribute::Ints(self.cursor.ints()?))
    }

    /// `batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT]`.
    fn dot(&mut self, attributes: &mut Attributes<'t>) -> Option<()> {
        let mut fields = Attributes::default();
        let mut pair = |parser: &mut Parser<'t>, lhs: &'static str, rhs: &'static str| {
            parser.cursor.expect("=")?;
            fields.put(lhs, Attribute::Ints(parser.cursor.ints()?))?;
            parser.cursor.expect("x")?;
            fields.put(rhs, Attribute::Ints(parser.cursor.ints()?))
        };
        loop {
            match self.cursor.word()? {
                "batching_dims" => pair(self, "lhs_batching_dimensions", "rhs_batching_dimensions")?,
                "contracting_dims" => pair(self, "lhs_contracting_dimensions", "rhs_contracting_dimensions")?,
                "precision" => {
                    self.cursor.expect("=")?;
                    let precision = self.cursor.list("[", "]", |cursor| cursor.word().map(Attribute::Word))?;
                    attributes.put("precision_config", Attribute::List(precision))?;
                }
                _ => return None,
            }
            if !self.cursor.eat(",") {
                return attributes.put("dot_dimension_numbers", Attribute::Fields(fields));
            }
        }
    }

    /// `dim_numbers = […]x[…]->[…], window = {stride = [1, 1], pad = [[0, 0], [0, 0]], …}`.
    fn convolution(&mut self) -> Option<Attributes<'t>> {
        let mut attributes = Attributes::default();
        self.cursor.expect_word("dim_numbers")?;
        self.cursor.expect("=")?;
        attributes.put("dimension_numbers", Attribute::Convolution(self.cursor.convolution_dims()?))?;
        self.cursor.expect(",")?;
        self.cursor.expect_word("window")?;
        self.cursor.expect("=")?;
        self.cursor.list("{", "}", |cursor| {
            let name = cursor.word()?;
            cursor.expect("=")?;
            let (name, values) = match name {
                "stride" => ("window_strides", cursor.ints()?),
                "pad" => ("padding", cursor.list("[", "]", |pair| pair.ints().filter(|p| p.len() == 2))?.concat()),
                "lhs_dilate" => ("lhs_dilation", cursor.ints()?),
                "rhs_dilate" => ("rhs_dilation", cursor.ints()?),
                "reverse" => ("window_reversal", cursor.list("[", "]", |flag| flag.flag().map(i64::from))?),
                _ => return None,
            };
            attributes.put(name, Attribute::Ints(values))
        })?;
        Some(attributes)
    }

    /// `%p, %a, %b : tensor<i1>, tensor<f32>`, or a function's type.
    fn select(&mut self, operation: &mut Operation<'t>) -> Option<()> {
        operation.operands = self.operands()?;
        operation.attributes.join(self.cursor.attributes()?)?;
        self.cursor.expect(":")?;
        if self.cursor.peek() == b'(' {
            self.function_type(operation)?;
        } else {
            let [predicate, values] = self.tensors()?.try_into().ok()?;
            operation.operand_types = vec![predicate, values.clone(), values.clone()];
            operation.result_types = vec![values];
        }
        Some(())
    }

    /// `(%a init: %b), (%c init: %d) across dimensions = [1] : (…) -> …`, then `reducer(…) (…) { … }`; or before that
    /// `applies stablehlo.add`.
    fn reduce(&mut self, operation: &mut Operation<'t>) -> Option<()> {
        let mut inits = Vec::new();
        loop {
            self.cursor.expect("(")?;
            operation.operands.push(self.operand()?);
            self.cursor.expect_word("init")?;
            self.cursor.expect(":")?;
            inits.push(self.operand()?);
            self.cursor.expect(")")?;
            if !self.cursor.eat(",") {
                break;
            }
        }
        operation.operands.append(&mut inits);
        let applies = if self.cursor.eat_word("applies") { Some(self.cursor.word()?) } else { None };
        self.cursor.expect_word("across")?;
        self.named_ints("dimensions", "dimensions", &mut operation.attributes)?;
        operation.attributes.join(self.cursor.attributes()?)?;
        self.cursor.expect(":")?;
        self.function_type(operation)?;
        match applies {
            Some(op) => operation.attributes.put("applies", Attribute::Word(op))?,
            None => {
                self.cursor.expect_word("reducer")?;
                let (mut lhs, mut rhs) = (Vec::new(), Vec::new());
                while self.cursor.peek() == b'(' {
                    let [first, second] = self.cursor.list("(", ")", parameter)?.try_into().ok()?;
                    lhs.push(first);
                    rhs.push(second);
                }
                lhs.append(&mut rhs);
                operation.regions.push(self.region(lhs)?);
            }
        }
        Some(())
    }

    /// `(%a = %0, %b = %1) : tensor<f32>, tensor<f32> cond { … } do { … }`.
    fn while_loop(&mut self, operation: &mut Operation<'t>) -> Option<()> {
        let mut names = Vec::new();
        self.cursor.expect("(")?;
        while !self.cursor.eat(")") {
            if !names.is_empty() {
                self.cursor.expect(",")?;
            }
            names.push(self.cursor.value_name()?);
            self.cursor.expect("=")?;
            operation.operands.push(self.operand()?);
        }
        self.cursor.expect(":")?;
        let types = self.tensors()?;
        if types.len() != names.len() {
            return None;
        }
        if self.cursor.eat_word("attributes") {
            operation.attributes = self.cursor.attributes()?;
        }
        let parameters: Vec<_> = names.into_iter().zip(types.iter().cloned()).collect();
        self.cursor.expect_word("cond")?;
        let condition: Region<'t> = self.region(parameters.clone())?;
        self.cursor.expect_word("do")?;
        operation.regions = vec![condition, self.region(parameters)?];
        operation.result_types = types.clone();
        operation.operand_types = types;
        Some(())
    }
}
