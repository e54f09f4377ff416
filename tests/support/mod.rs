//! Small programs for tests of the PJRT layer, written as messages: what these tests need must not depend on the
//! builder or the encoder, whose own tests run through PJRT.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod browser;
pub mod home;

use bf16scope::hlo::DType;
use bf16scope::hlo::proto::messages::*;
use prost::Message;

/// Text as it stands in a page.
pub fn escape(text: &str) -> String {
    bf16scope_cli::report::html::escape(text)
}

/// XLA's `PrimitiveType` of a tuple.
const TUPLE: i32 = 13;
/// `MAY_ALIAS`.
const MAY_ALIAS: i32 = 1;

/// A module of one computation. Instruction ids are positions plus one.
#[derive(Default)]
pub struct Program {
    instructions: Vec<HloInstructionProto>,
    aliases: Vec<(i64, i64)>,
}

impl Program {
    /// Appends an instruction and returns its id.
    pub fn push(&mut self, opcode: &str, dtype: DType, dims: &[i64], operands: &[i64]) -> i64 {
        self.push_shape(opcode, array(dtype, dims), operands)
    }

    fn push_shape(&mut self, opcode: &str, shape: ShapeProto, operands: &[i64]) -> i64 {
        let id = self.instructions.len() as i64 + 1;
        self.instructions.push(HloInstructionProto {
            name: format!("{opcode}.{id}"),
            opcode: opcode.to_string(),
            shape: Some(shape),
            id,
            operand_ids: operands.to_vec(),
            ..HloInstructionProto::default()
        });
        id
    }

    /// Appends the next parameter.
    pub fn parameter(&mut self, dtype: DType, dims: &[i64]) -> i64 {
        let number = self.instructions.iter().filter(|i| i.opcode == "parameter").count() as i64;
        let id = self.push("parameter", dtype, dims, &[]);
        self.last().parameter_number = number;
        id
    }

    /// Appends a product of two matrices.
    pub fn dot(&mut self, dtype: DType, dims: &[i64], lhs: i64, rhs: i64) -> i64 {
        let id = self.push("dot", dtype, dims, &[lhs, rhs]);
        self.last().dot_dimension_numbers = Some(Box::new(DotDimensionNumbers {
            lhs_contracting_dimensions: vec![1],
            rhs_contracting_dimensions: vec![0],
            ..DotDimensionNumbers::default()
        }));
        id
    }

    /// Lets a parameter's memory become an output.
    pub fn alias(&mut self, output: i64, parameter: i64) {
        self.aliases.push((output, parameter));
    }

    fn last(&mut self) -> &mut HloInstructionProto {
        self.instructions.last_mut().unwrap()
    }

    /// The module, whose result is the tuple of these instructions.
    pub fn finish(mut self, results: &[i64]) -> Vec<u8> {
        let shape_of = |id: i64| self.instructions[id as usize - 1].shape.clone().unwrap();
        let result = ShapeProto {
            element_type: TUPLE,
            tuple_shapes: results.iter().map(|&id| shape_of(id)).collect(),
            ..ShapeProto::default()
        };
        let root_id = self.push_shape("tuple", result.clone(), results);
        let parameters: Vec<&HloInstructionProto> =
            self.instructions.iter().filter(|i| i.opcode == "parameter").collect();
        let program_shape = ProgramShapeProto {
            parameters: parameters.iter().map(|i| i.shape.clone().unwrap()).collect(),
            result: Some(result),
            parameter_names: parameters.iter().map(|i| i.name.clone()).collect(),
        };
        let aliases = self.aliases.iter().map(|&(output, parameter)| AliasEntryProto {
            output_shape_index: vec![output],
            parameter_number: parameter,
            parameter_shape_index: vec![],
            kind: MAY_ALIAS,
        });
        HloModuleProto {
            name: "small".to_string(),
            entry_computation_name: "main".to_string(),
            entry_computation_id: 1,
            input_output_alias: Some(HloInputOutputAliasProto { entries: aliases.collect() }),
            host_program_shape: Some(program_shape.clone()),
            computations: vec![HloComputationProto {
                name: "main".to_string(),
                instructions: self.instructions,
                program_shape: Some(program_shape),
                id: 1,
                root_id,
                ..HloComputationProto::default()
            }],
            ..HloModuleProto::default()
        }
        .encode_to_vec()
    }
}

fn array(dtype: DType, dims: &[i64]) -> ShapeProto {
    ShapeProto {
        element_type: dtype.xla(),
        dimensions: dims.to_vec(),
        is_dynamic_dimension: vec![false; dims.len()],
        layout: Some(LayoutProto { minor_to_major: (0..dims.len() as i64).rev().collect(), ..LayoutProto::default() }),
        ..ShapeProto::default()
    }
}
