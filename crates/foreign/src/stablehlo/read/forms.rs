//! The short forms of ops, `stablehlo.add %0, %1 : tensor<f32>`, in the words of the generic one.

use super::attributes::{Attribute, Attributes};
use super::program::{Parser, parameter};
use super::{Operation, Region};

impl<'t> Parser<'t> {
    /// Reads an op in its short form.
    pub(super) fn short(&mut self) -> Option<Operation<'t>> {
        let mut operation = Operation::new(self.cursor.word()?);
        match operation.name {
            "return" | "func.return" | "stablehlo.return" => {
                operation.operands = self.operands()?;
                if !operation.operands.is_empty() {
                    self.cursor.expect(":")?;
                    operation.operand_types = self.tensors()?;
                }
                return Some(operation);
            }
            "call" | "func.call" => {
                let callee = Attribute::Symbol(self.cursor.symbol()?);
                operation.attributes.put("callee", callee)?;
                operation.operands = self.operands_in_brackets()?;
                self.cursor.expect(":")?;
                self.function_type(&mut operation)?;
                return Some(operation);
            }
            "stablehlo.composite" if self.cursor.is_symbolic => {
                self.cursor.quoted()?;
                operation.operands = self.operands()?;
            }
            "stablehlo.custom_call" if self.cursor.is_symbolic => {
                let target = Attribute::Symbol(self.cursor.symbol()?);
                operation.operands = self.operands_in_brackets()?;
                operation.attributes = self.cursor.attributes()?;
                operation.attributes.put("call_target_name", target)?;
                self.cursor.expect(":")?;
                self.function_type(&mut operation)?;
                return Some(operation);
            }
            "stablehlo.constant" => {
                operation.attributes = self.cursor.attributes()?;
                self.cursor.expect_word("dense")?;
                let value = self.cursor.dense()?;
                operation.result_types = vec![value.shape.clone().into()];
                operation.attributes.put("value", Attribute::Dense(value))?;
                return Some(operation);
            }
            "stablehlo.reduce" => return self.reduce(operation),
            "stablehlo.while" => return self.while_loop(operation),
            "stablehlo.convolution" => {
                operation.operands = self.operands_in_brackets()?;
                operation.attributes = self.convolution()?;
            }
            "stablehlo.optimization_barrier" => {
                operation.operands = self.operands()?;
                operation.attributes = self.cursor.attributes()?;
                self.cursor.expect(":")?;
                operation.operand_types = self.tensors()?;
                operation.result_types = operation.operand_types.clone();
                return Some(operation);
            }
            "stablehlo.iota" => {
                self.cursor.expect_word("dim")?;
                self.cursor.expect("=")?;
                operation.attributes.put("iota_dimension", Attribute::Int(self.cursor.int()?))?;
            }
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
                self.said(name, &mut operation)?;
                if name == "stablehlo.select" {
                    return self.select(operation);
                } else if name.starts_with("chlo.") {
                    // `tensor<f32> -> tensor<f32>`.
                    operation.attributes.join(self.cursor.attributes()?)?;
                    self.cursor.expect(":")?;
                    operation.operand_types = self.tensors()?;
                    self.cursor.expect("->")?;
                    operation.result_types = vec![self.cursor.tensor()?];
                    return Some(operation);
                }
            }
        }
        self.types(&mut operation)?;
        Some(operation)
    }

    /// The attributes between the operands and the types.
    fn said(&mut self, name: &str, operation: &mut Operation<'t>) -> Option<()> {
        let said = &mut operation.attributes;
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
                self.named_ints("dims", "broadcast_dimensions", said)
            }
            "stablehlo.transpose" => self.named_ints("dims", "permutation", said),
            "stablehlo.reverse" => self.named_ints("dims", "dimensions", said),
            "stablehlo.dynamic_slice" => self.named_ints("sizes", "slice_sizes", said),
            "stablehlo.pad" => {
                self.named_ints("low", "edge_padding_low", said)?;
                self.cursor.expect(",")?;
                self.named_ints("high", "edge_padding_high", said)?;
                self.cursor.expect(",")?;
                self.named_ints("interior", "interior_padding", said)
            }
            "stablehlo.dynamic_iota" | "stablehlo.get_dimension_size" => {
                self.cursor.expect_word("dim")?;
                self.cursor.expect("=")?;
                let said_as = if name == "stablehlo.dynamic_iota" { "iota_dimension" } else { "dimension" };
                said.put(said_as, Attribute::Int(self.cursor.int()?))
            }
            "stablehlo.concatenate" => {
                self.cursor.expect_word("dim")?;
                self.cursor.expect("=")?;
                said.put("dimension", Attribute::Int(self.cursor.int()?))
            }
            "stablehlo.slice" => {
                let (mut starts, mut limits, mut strides) = (Vec::new(), Vec::new(), Vec::new());
                self.cursor.list("[", "]", |cursor| {
                    starts.push(cursor.int()?);
                    cursor.expect(":")?;
                    limits.push(cursor.int()?);
                    strides.push(if cursor.eat(":") { cursor.int()? } else { 1 });
                    Some(())
                })?;
                said.put("start_indices", Attribute::Ints(starts))?;
                said.put("limit_indices", Attribute::Ints(limits))?;
                said.put("strides", Attribute::Ints(strides))
            }
            "stablehlo.reduce_precision" => {
                self.cursor.expect_word("format")?;
                self.cursor.expect("=")?;
                let (exponent, mantissa) = self.cursor.word()?.strip_prefix('e')?.split_once('m')?;
                said.put("exponent_bits", Attribute::Int(exponent.parse().ok()?))?;
                said.put("mantissa_bits", Attribute::Int(mantissa.parse().ok()?))
            }
            "stablehlo.rng_bit_generator" => {
                self.cursor.expect_word("algorithm")?;
                self.cursor.expect("=")?;
                said.put("rng_algorithm", Attribute::Word(self.cursor.word()?))
            }
            "stablehlo.dot_general" => self.dot(said),
            _ => Some(()),
        }
    }

    /// `dims = [0, 1]`, under its name in the generic form.
    fn named_ints(&mut self, short: &str, name: &'static str, said: &mut Attributes<'t>) -> Option<()> {
        self.cursor.expect_word(short)?;
        self.cursor.expect("=")?;
        said.put(name, Attribute::Ints(self.cursor.ints()?))
    }

    /// `batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT]`.
    fn dot(&mut self, said: &mut Attributes<'t>) -> Option<()> {
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
                    said.put("precision_config", Attribute::List(precision))?;
                }
                _ => return None,
            }
            if !self.cursor.eat(",") {
                return said.put("dot_dimension_numbers", Attribute::Fields(fields));
            }
        }
    }

    /// `dim_numbers = […]x[…]->[…], window = {stride = [1, 1], pad = [[0, 0], [0, 0]], …}`.
    fn convolution(&mut self) -> Option<Attributes<'t>> {
        let mut said = Attributes::default();
        self.cursor.expect_word("dim_numbers")?;
        self.cursor.expect("=")?;
        said.put("dimension_numbers", Attribute::Convolution(self.cursor.convolution_dims()?))?;
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
            said.put(name, Attribute::Ints(values))
        })?;
        Some(said)
    }

    /// `%p, %a, %b : tensor<i1>, tensor<f32>`, or a function's type.
    fn select(&mut self, mut operation: Operation<'t>) -> Option<Operation<'t>> {
        operation.attributes.join(self.cursor.attributes()?)?;
        self.cursor.expect(":")?;
        if self.cursor.peek() == b'(' {
            self.function_type(&mut operation)?;
        } else {
            let [predicate, values] = self.tensors()?.try_into().ok()?;
            operation.operand_types = vec![predicate, values.clone(), values.clone()];
            operation.result_types = vec![values];
        }
        Some(operation)
    }

    /// `(%a init: %b), (%c init: %d) across dimensions = [1] : (…) -> …`, then `reducer(…) (…) { … }`; or before that
    /// `applies stablehlo.add`.
    fn reduce(&mut self, mut operation: Operation<'t>) -> Option<Operation<'t>> {
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
        self.function_type(&mut operation)?;
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
        Some(operation)
    }

    /// `(%a = %0, %b = %1) : tensor<f32>, tensor<f32> cond { … } do { … }`.
    fn while_loop(&mut self, mut operation: Operation<'t>) -> Option<Operation<'t>> {
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
        Some(operation)
    }
}
