//! Steps before the audited one: results are fed back to the parameters that they alias.

use super::{AuditError, device, taps};
use bf16scope_hlo::{Literal, Module};
use bf16scope_pjrt::Client;

/// The inputs of a later step: the original ones, with the state after `n` steps in f32.
///
/// # Errors
/// A module without aliases; a plugin that fails.
pub fn after_steps(client: &Client, module: &Module, inputs: &[Literal], n: u32) -> Result<Vec<Literal>, AuditError> {
    let mut inputs = inputs.to_vec();
    if n == 0 {
        return Ok(inputs);
    }
    let state: Vec<(usize, usize)> = (module.input_output_alias.iter())
        .filter_map(|alias| {
            // A result that is not a tuple has the index {}.
            let output = match &alias.output_index[..] {
                [] => 0,
                [output] => usize::try_from(*output).ok()?,
                _ => return None,
            };
            let parameter = usize::try_from(alias.parameter_number).ok()?;
            alias.parameter_index.is_empty().then_some((output, parameter))
        })
        .collect();
    if state.is_empty() {
        return Err(AuditError::NoState);
    }
    let program = taps::results(module);
    for _ in 0..n {
        let arrays = device::upload(client, module, &inputs, false, &[])?;
        let outputs = device::run(client, &program, &device::buffers(&arrays))?;
        for &(output, parameter) in &state {
            inputs[parameter] = device::fetch(&outputs[output])?;
        }
    }
    Ok(inputs)
}
