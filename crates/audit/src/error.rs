//! Errors of audits.

use bf16scope_hlo::VerifyErrors;
use bf16scope_hlo::alone::NotAlone;
use bf16scope_hlo::module_shards::ShardError;
use bf16scope_hlo::proto::ProtoError;
use bf16scope_passes::PassError;
use bf16scope_pjrt::PjrtError;

/// Why an audit could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The module does not verify.
    #[error("the module does not verify, so it was not audited:\n{0}")]
    Invalid(VerifyErrors),
    /// The module cannot be lowered.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A module that the audit made is invalid: a bug of this crate.
    #[error("the audit made a broken module, which is a bug of bf16scope; please report it with the module:\n{0}")]
    Broken(VerifyErrors),
    /// The module is for several devices, or waits for another program.
    #[error(transparent)]
    NotAlone(#[from] NotAlone),
    /// The shard of an array on a device is unknown.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// An instruction cannot run by itself.
    #[error(
        "%{instruction} reads an array of a size that varies, or no array, which the module is given from outside; expected \
         arrays of fixed sizes\nhelp: give each such parameter its largest size"
    )]
    Apart {
        /// The instruction.
        instruction: String,
    },
    /// A module cannot be encoded.
    #[error(transparent)]
    Proto(#[from] ProtoError),
    /// The plugin failed.
    #[error(transparent)]
    Pjrt(#[from] PjrtError),
    /// The module draws random numbers.
    #[error(
        "%{instruction} is an `{opcode}`, which draws other numbers in every run, so that two runs cannot be compared; \
         expected `rng-bit-generator`, or random numbers as an input"
    )]
    Random {
        /// The instruction.
        instruction: String,
        /// Its opcode.
        opcode: String,
    },
    /// The number of inputs is wrong.
    #[error("{measured} inputs were given, expected {expected}: one for each array that the parameters hold, in order")]
    InputCount {
        /// The number of inputs.
        measured: usize,
        /// The number of arrays in the parameters.
        expected: usize,
    },
    /// An input has another type than its parameter.
    #[error("input {number} is {measured}, expected {expected} for parameter %{parameter}")]
    InputType {
        /// Its index among the inputs.
        number: usize,
        /// Name of the parameter.
        parameter: String,
        /// Type of the input.
        measured: String,
        /// Type of the parameter.
        expected: String,
    },
    /// A pattern matches no result.
    #[error(
        "no result is named `{pattern}`, expected a name, outN, an instruction, or a pattern of them with * and ?; the \
         {n_results} results are {known}, …"
    )]
    NoResult {
        /// The pattern.
        pattern: String,
        /// The number of results.
        n_results: usize,
        /// The first names.
        known: String,
    },
    /// Results do not alias parameters, so state cannot be fed back.
    #[error(
        "the module has no aliases of results and parameters, which say what a next step starts from\nhelp: export it with \
         donated state (`donate_argnums` of jax.jit), or audit one step"
    )]
    NoState,
    /// The plugin drops roundings.
    #[error(
        "the plugin keeps excess precision: {exact} in bf16 came out as {measured}, expected {expected}; an audit would \
         not see the roundings. Use another plugin, or unset XLA_FLAGS"
    )]
    ExcessPrecision {
        /// The input of the probe.
        exact: f32,
        /// Its result.
        measured: f32,
        /// The result of rounding to bf16.
        expected: f32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::{text, verify};

    #[test]
    fn a_module_that_cannot_be_audited_is_described() {
        let broken = text::parse("HloModule m\n\nENTRY m {\n  ROOT x = f32[2] parameter(1)\n}\n", "m.hlo").unwrap();
        let errors = verify(&broken).unwrap_err();
        let (invalid, made) = (AuditError::Invalid(errors.clone()), AuditError::Broken(errors.clone()));
        assert_eq!(invalid.to_string(), format!("the module does not verify, so it was not audited:\n{errors}"));
        assert_eq!(
            made.to_string(),
            format!(
                "the audit made a broken module, which is a bug of bf16scope; please report it with the module:\n{errors}"
            )
        );
        assert_eq!(
            AuditError::Apart { instruction: "x".to_string() }.to_string(),
            "%x reads an array of a size that varies, or no array, which the module is given from outside; expected arrays \
             of fixed sizes\nhelp: give each such parameter its largest size"
        );
    }
}
