//! Why an audit could not be made.

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
    /// The module was broken before.
    #[error("the module does not verify, so it was not audited:\n{0}")]
    Invalid(VerifyErrors),
    /// It could not be lowered.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A module made for the audit is broken: a bug of this room.
    #[error("the audit made a broken module, which is a bug of bf16scope; please report it with the module:\n{0}")]
    Broken(VerifyErrors),
    /// It is for several devices, or waits for somebody.
    #[error(transparent)]
    NotAlone(#[from] NotAlone),
    /// It is not known what a device holds of an array.
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
    /// Random numbers from nowhere.
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
    /// Too few inputs, or too many.
    #[error("{measured} inputs were given, expected {expected}: one for each array that the parameters hold, in order")]
    InputCount {
        /// How many were given.
        measured: usize,
        /// How many arrays the parameters hold.
        expected: usize,
    },
    /// An input of another type.
    #[error("input {number} is {measured}, expected {expected} for parameter %{parameter}")]
    InputType {
        /// Its place among the inputs.
        number: usize,
        /// Name of the parameter.
        parameter: String,
        /// Type of the input.
        measured: String,
        /// Type of the parameter.
        expected: String,
    },
    /// A pattern of results that is the name of none.
    #[error(
        "no result is named `{pattern}`, expected a name, outN, an instruction, or a pattern of them with * and ?; the \
         {n_results} results are {known}, …"
    )]
    NoResult {
        /// The pattern.
        pattern: String,
        /// How many results there are.
        n_results: usize,
        /// The first names.
        known: String,
    },
    /// State cannot be fed back.
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
        /// What went in.
        exact: f32,
        /// What came out.
        measured: f32,
        /// What bf16 makes of it.
        expected: f32,
    },
}
