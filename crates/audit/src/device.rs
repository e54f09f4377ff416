//! Arrays on a device, and running modules for an audit: uploading inputs, compiling, fetching, and the proof that roundings are kept.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use half::{bf16, f16};

use super::AuditError;
use bf16scope_hlo::numerics::bf16::{bf16_from_f32, bf16_from_f32_flushed};
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{ArrayShape, DType, Element, Emitter, Literal, Module, Shape, verify};
use bf16scope_pjrt::{Arg, Buffer, Client, CompileOptions, Executable};

/// An array on the device.
#[derive(Debug)]
pub(super) struct Held {
    /// A unique number of the array.
    pub id: u64,
    pub buffer: Buffer,
    pub dtype: DType,
    pub dims: Vec<i64>,
}

/// Wraps an array on the device.
pub(super) fn hold(buffer: Buffer) -> Result<Arc<Held>, AuditError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (dtype, dims, id) = (buffer.dtype()?, buffer.dims()?, NEXT.fetch_add(1, Ordering::Relaxed));
    Ok(Arc::new(Held { id, buffer, dtype, dims }))
}

/// The buffers as arguments of a program.
pub(super) fn buffers(arrays: &[impl Borrow<Arc<Held>>]) -> Vec<&Buffer> {
    arrays.iter().map(|array| &array.borrow().buffer).collect()
}

/// Verifies, compiles and runs a module. Excess precision is off: [`CompileOptions`]' default.
pub(super) fn run(client: &Client, module: &Module, args: &[&Buffer]) -> Result<Vec<Buffer>, AuditError> {
    run_with(client, module, args, &CompileOptions::default())
}

fn run_with(
    client: &Client,
    module: &Module,
    args: &[&Buffer],
    options: &CompileOptions,
) -> Result<Vec<Buffer>, AuditError> {
    verify(module).map_err(AuditError::Broken)?;
    let is_tuple = |id| matches!(module.entry().instr(id).shape, Shape::Tuple(_));
    let parameter_is_tupled = module.entry().parameters().into_iter().any(is_tuple);
    let options = CompileOptions { parameter_is_tupled, ..options.clone() };
    execute(&compile_with(client, &encode::to_bytes(module)?, &options)?, args)
}

/// Compiles a verified module whose parameters and results are arrays.
pub(super) fn compile(client: &Client, program: &[u8]) -> Result<Executable, AuditError> {
    compile_with(client, program, &CompileOptions::default())
}

fn compile_with(client: &Client, program: &[u8], options: &CompileOptions) -> Result<Executable, AuditError> {
    let _span = tracing::info_span!("compile", n_bytes = program.len()).entered();
    Ok(client.compile(program, options)?)
}

/// Runs a program.
pub(super) fn execute(executable: &Executable, args: &[&Buffer]) -> Result<Vec<Buffer>, AuditError> {
    let _span = tracing::info_span!("execute").entered();
    Ok(executable.execute(args.iter().map(|&buffer| Arg::Keep(buffer)).collect())?)
}

/// Copies an output to the host.
pub(super) fn fetch(buffer: &Buffer) -> Result<Literal, AuditError> {
    let shape = ArrayShape::new(buffer.dtype()?, buffer.dims()?);
    Ok(Literal::Array { shape, bytes: buffer.to_host()? })
}

/// Uploads inputs in the dtypes of the module's parameters: f32 is rounded where lowering narrowed a parameter. Arrays
/// in `there` that have the right dtype are reused.
pub(super) fn upload(
    client: &Client,
    module: &Module,
    inputs: &[Literal],
    flush_subnormals: bool,
    there: &[Arc<Held>],
) -> Result<Vec<Arc<Held>>, AuditError> {
    let entry = module.entry();
    // A tuple is passed as its arrays.
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
        if let Some(same) = there.get(number).filter(|array| array.dtype == expected.dtype) {
            buffers.push(Arc::clone(same));
            continue;
        }
        let bytes = in_dtype(bytes, shape.dtype, expected.dtype, flush_subnormals).ok_or_else(unfit)?;
        buffers.push(hold(client.buffer_from_host(&bytes, expected.dtype, &expected.dims, 0)?)?);
    }
    Ok(buffers)
}

/// Elements in the dtype of a parameter: unchanged, or f32 rounded to a 16-bit dtype; `None` for anything else.
pub(super) fn in_dtype(bytes: &[u8], from: DType, to: DType, flush_subnormals: bool) -> Option<Vec<u8>> {
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

/// Verifies that bf16 rounds on this client: a conversion f32 → bf16 → f32, and a sum in bf16 that is converted to f32.
/// (Compilers differ in what they drop with excess precision: XLA's CPU compiler keeps the program's conversions and
/// drops those by which it widens arithmetic.)
/// drops those by which it widens arithmetic.)
pub(super) fn prove_rounding(client: &Client) -> Result<(), AuditError> {
    prove_rounding_with(client, &CompileOptions::default())
}

fn prove_rounding_with(client: &Client, options: &CompileOptions) -> Result<(), AuditError> {
    // bf16 has a spacing of 2 from 256 on, and a tie rounds to even.
    const EXACT: f32 = 257.0;
    const ROUNDED: f32 = 256.0;
    let module = Module::new("rounds");
    let entry = module.entry;
    let e = Emitter::new(module, entry);
    let parameter = |number| e.parameter(number, &Shape::array(DType::F32, [2]));
    let (exact, x, y) = (parameter(0), parameter(1), parameter(2));
    let converted = e.convert(e.convert(exact, DType::BF16), DType::F32);
    let sum = e.convert(e.add(e.convert(x, DType::BF16), e.convert(y, DType::BF16)), DType::F32);
    e.tuple(&[converted, sum]);
    let module = e.finish().expect("conversions and a sum of arrays of one shape break no rule");
    let input = |value: f32| Literal::from_elements([2], &[value, -value]);
    let inputs = upload(client, &module, &[input(EXACT), input(ROUNDED), input(EXACT - ROUNDED)], false, &[])?;
    for output in run_with(client, &module, &buffers(&inputs), options)? {
        let measured = fetch(&output)?.elements::<f32>().unwrap_or_default();
        if measured != [ROUNDED, -ROUNDED] {
            let measured = measured.first().copied().unwrap_or(f32::NAN);
            return Err(AuditError::ExcessPrecision { exact: EXACT, measured, expected: ROUNDED });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probe detects excess precision: XLA's own default drops the rounding of the sum.
    #[test]
    fn excess_precision_is_found_out() {
        let client = Client::cpu().unwrap_or_else(|error| panic!("no cpu client: {error}"));
        assert!(prove_rounding(&client).is_ok());
        let options = CompileOptions { allow_excess_precision: true, ..CompileOptions::default() };
        let error = prove_rounding_with(&client, &options).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the plugin keeps excess precision: 257 in bf16 came out as 257, expected 256; an audit would not see the \
             roundings. Use another plugin, or unset XLA_FLAGS"
        );
    }

    #[test]
    fn inputs_are_rounded_where_parameters_are_narrow() {
        let bytes: Vec<u8> = [257f32, -1e-39, 1e-8].iter().flat_map(|x| x.to_le_bytes()).collect();
        let rounded = |to, flush| in_dtype(&bytes, DType::F32, to, flush).unwrap();
        let bits = |bytes: Vec<u8>| bytes.chunks_exact(2).map(u16::read).collect::<Vec<u16>>();
        assert_eq!(bits(rounded(DType::BF16, false))[..2], [0x4380, 0x800B]);
        assert_eq!(bits(rounded(DType::BF16, true))[..2], [0x4380, 0x8000]);
        assert_eq!(bits(rounded(DType::F16, false)), [0x5C04, 0x8000, 0]);
        assert_eq!(rounded(DType::F32, true), bytes);
        assert_eq!(in_dtype(&bytes, DType::S32, DType::F32, false), None);
    }
}
