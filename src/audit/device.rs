//! Running modules for an audit: uploading inputs, compiling, fetching, and the proof that roundings are kept.

use half::{bf16, f16};

use super::AuditError;
use crate::hlo::proto::encode;
use crate::hlo::{ArrayShape, DType, Element, Emitter, Literal, Module, Shape, verify};
use crate::numerics::bf16::{bf16_from_f32, bf16_from_f32_flushed};
use crate::pjrt::{Arg, Buffer, Client, CompileOptions};

/// Verifies, compiles and runs a module. Excess precision is off: `CompileOptions`' default.
pub(super) fn run(client: &Client, module: &Module, args: &[Buffer]) -> Result<Vec<Buffer>, AuditError> {
    verify(module).map_err(AuditError::Broken)?;
    let program = encode::to_bytes(module)?;
    let executable = {
        let _span = tracing::info_span!("compile", n_bytes = program.len()).entered();
        let is_tuple = |id| matches!(module.entry().instr(id).shape, Shape::Tuple(_));
        let parameter_is_tupled = module.entry().parameters().into_iter().any(is_tuple);
        client.compile(&program, &CompileOptions { parameter_is_tupled, ..CompileOptions::default() })?
    };
    let _span = tracing::info_span!("execute").entered();
    Ok(executable.execute(args.iter().map(Arg::Keep).collect())?)
}

/// An output, on the host.
pub(super) fn fetch(buffer: &Buffer) -> Result<Literal, AuditError> {
    let shape = ArrayShape::new(buffer.dtype()?, buffer.dims()?);
    Ok(Literal::Array { shape, bytes: buffer.to_host()? })
}

/// Puts inputs on the device in the dtypes of the module's parameters: f32 is rounded where lowering made them narrow.
pub(super) fn upload(
    client: &Client,
    module: &Module,
    inputs: &[Literal],
    flush_subnormals: bool,
) -> Result<Vec<Buffer>, AuditError> {
    let entry = module.entry();
    // A tuple is given as its arrays.
    let parameters: Vec<(&str, &Shape)> = (entry.parameters().into_iter())
        .flat_map(|id| {
            entry.instr(id).shape.leaves().into_iter().map(move |leaf| (entry.instr(id).name.as_str(), leaf))
        })
        .collect();
    if inputs.len() != parameters.len() {
        return Err(AuditError::InputCount { measured: inputs.len(), expected: parameters.len() });
    }
    let mut buffers = Vec::with_capacity(inputs.len());
    for (number, (input, (name, wanted))) in inputs.iter().zip(parameters).enumerate() {
        let unfit = || AuditError::InputType {
            number,
            parameter: name.to_string(),
            measured: input.shape().without_layout().to_string(),
            expected: wanted.without_layout().to_string(),
        };
        let (Shape::Array(expected), Literal::Array { shape, bytes }) = (wanted, input) else { return Err(unfit()) };
        if shape.dims != expected.dims {
            return Err(unfit());
        }
        let bytes = in_dtype(bytes, shape.dtype, expected.dtype, flush_subnormals).ok_or_else(unfit)?;
        buffers.push(client.buffer_from_host(&bytes, expected.dtype, &expected.dims, 0)?);
    }
    Ok(buffers)
}

/// Elements in the dtype of a parameter: as they are, or f32 rounded to one of 16 bits; `None` for anything else.
fn in_dtype(bytes: &[u8], from: DType, to: DType, flush_subnormals: bool) -> Option<Vec<u8>> {
    let elements = || bytes.chunks_exact(4).map(f32::read);
    let mut out = Vec::with_capacity(bytes.len());
    match (from, to) {
        (from, to) if from == to => out.extend_from_slice(bytes),
        (DType::F32, DType::BF16) => {
            let round = if flush_subnormals { bf16_from_f32_flushed } else { bf16_from_f32 };
            elements().for_each(|x| bf16::from_bits(round(x)).write(&mut out));
        }
        (DType::F32, DType::F16) => elements().for_each(|x| f16::from_f32(x).write(&mut out)),
        _ => return None,
    }
    Some(out)
}

/// Whether f32 → bf16 → f32 rounds on this client: an input between two numbers of bf16 must come out as one of them.
pub(super) fn prove_rounding(client: &Client) -> Result<(), AuditError> {
    let input = 1.0 + f32::EPSILON * 256.0;
    let expected = bf16::from_f32(input).to_f32();
    let module = Module::new("rounds");
    let entry = module.entry;
    let e = Emitter::new(module, entry);
    let x = e.parameter(0, &Shape::array(DType::F32, [2]));
    let back = e.convert(e.convert(x, DType::BF16), DType::F32);
    e.tuple(&[back]);
    let module = e.finish().expect("a parameter and two conversions break no rule");
    let buffers = upload(client, &module, &[Literal::from_elements([2], &[input, -input])], false)?;
    let outputs = run(client, &module, &buffers)?;
    let measured = fetch(&outputs[0])?.elements::<f32>().unwrap_or_default();
    match measured[..] {
        [first, second] if first == expected && second == -expected => Ok(()),
        _ => {
            let measured = measured.first().copied().unwrap_or(f32::NAN);
            Err(AuditError::ExcessPrecision { input, measured, expected })
        }
    }
}
