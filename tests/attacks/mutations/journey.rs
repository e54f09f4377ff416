//! The whole pipeline for a module: it is read, verified, lowered, tidied, written, read again, and compiled and run in a child
//! process.

use std::time::{Duration, Instant};

use bf16scope::hlo::proto::{ProtoError, decode, encode};
use bf16scope::hlo::text::{self, PrintOptions};
use bf16scope::hlo::{ArrayShape, DType, Module, Shape, alone, lost_in_text, verify};
use bf16scope::passes::amp::{self, Accumulate, Boundary, LowDType, Policy, Reach};
use bf16scope::passes::tidy;
use bf16scope::pjrt::{Arg, ChildError, ChildSpec, Client, CompileOptions, Limits, PjrtError, Platform, Setup};
use rand::Rng;
use rand::rngs::SmallRng;

/// Limits of the child for a module. Each takes less than a second, but many processes may share the processor.
const LIMITS: Limits = Limits { timeout: Some(Duration::from_secs(60)), memory: Some(2 << 30) };
/// Arguments above this many bytes are not drawn.
const MAX_ARGUMENTS: i64 = 16 << 20;

/// A module in one of its two forms.
pub enum Source {
    Text(String),
    Proto(Vec<u8>),
}

/// The stage at which a module ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// An error of the reader.
    NotRead,
    /// Errors of the verifier.
    NotVerified,
    /// An attribute of its text has no place in a proto.
    NotEncoded,
    /// A proto may have an opcode that this build does not have, which a text cannot represent; it is reported as lost
    /// there.
    NewOpcode,
    /// It needs several devices, or would wait for ever.
    NotAlone,
    /// Its arguments cannot be drawn: too large, of sizes that vary, no arrays.
    NoArguments,
    /// An error of XLA, or of ours before XLA sees it.
    Refused,
    /// The child ended; XLA's words, numbers left out.
    Aborted(String),
    TimedOut,
    OutOfMemory,
    Ran,
}

/// The child process, and statistics.
pub struct Road {
    client: Option<Client>,
    setup: Setup,
    /// The module that was compiled last: as read, or as lowered.
    pub compiled: Vec<u8>,
    /// Children started.
    pub n_children: usize,
    /// The longest that reading, verifying, lowering and writing took.
    pub slowest: Duration,
}

impl Road {
    pub fn new() -> Road {
        Road { client: None, setup: Setup::from_env(), compiled: Vec::new(), n_children: 0, slowest: Duration::ZERO }
    }

    /// Sends a module through the pipeline. A panic, or an error without content, fails the caller's test.
    pub fn send(&mut self, random: &mut SmallRng, source: &Source) -> Outcome {
        let began = Instant::now();
        let prepared = prepare(random, source);
        self.slowest = self.slowest.max(began.elapsed());
        let module = match prepared {
            Ok(module) => module,
            Err(outcome) => return outcome,
        };
        // As `bf16scope run` does.
        if let Err(error) = alone::runs_alone(&module) {
            assert!(!error.to_string().is_empty());
            return Outcome::NotAlone;
        }
        let Some(arguments) = arguments(random, &module) else { return Outcome::NoArguments };
        match self.run(&module, &arguments) {
            Ok(()) => Outcome::Ran,
            Err(error) => self.judge(error),
        }
    }

    fn run(&mut self, module: &Module, arguments: &[(ArrayShape, Vec<u8>)]) -> Result<(), PjrtError> {
        let client = match &self.client {
            Some(client) => client,
            None => {
                self.n_children += 1;
                let spec = ChildSpec { limits: LIMITS, ..ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope")) };
                self.client.insert(Client::in_child(&Platform::cpu(), &self.setup, &spec)?)
            }
        };
        self.compiled = encode::to_bytes(module).expect("it was encoded before");
        let is_tuple = |id| matches!(module.entry().instr(id).shape, Shape::Tuple(_));
        let parameter_is_tupled = module.entry().parameters().into_iter().any(is_tuple);
        let executable =
            client.compile(&self.compiled, &CompileOptions { parameter_is_tupled, ..CompileOptions::default() })?;
        let upload = |(shape, bytes): &(ArrayShape, Vec<u8>)| {
            Ok(Arg::Donate(client.buffer_from_host(bytes, shape.dtype, &shape.dims, 0)?))
        };
        let arguments = arguments.iter().map(upload).collect::<Result<Vec<Arg<'_>>, PjrtError>>()?;
        for output in executable.execute(arguments)? {
            output.to_host()?;
        }
        Ok(())
    }

    fn judge(&mut self, error: PjrtError) -> Outcome {
        let text = error.to_string();
        assert!(!text.trim().is_empty(), "an error without a word: {error:?}");
        let outcome = match error.child() {
            Some(ChildError::Ended { output, how, .. }) => {
                assert!(!output.contains("panicked at"), "the child's own code panicked: {output}");
                Outcome::Aborted(without_numbers(&format!("{how}: {output}")))
            }
            Some(ChildError::Timeout { .. }) => Outcome::TimedOut,
            Some(ChildError::Memory { .. }) => Outcome::OutOfMemory,
            Some(ChildError::Failed { .. }) => return Outcome::Refused,
            Some(error) => panic!("the child and its parent do not understand each other: {error}"),
            _ => return Outcome::Refused,
        };
        self.client = None;
        outcome
    }
}

/// The steps of a module before it is compiled. A module that verifies must verify after each step.
fn prepare(random: &mut SmallRng, source: &Source) -> Result<Module, Outcome> {
    let module = read(source)?;
    if let Err(errors) = verify(&module) {
        assert!(!errors.to_string().trim().is_empty());
        return Err(Outcome::NotVerified);
    }
    let (lowered, _) = amp::run(&module, &policy(random)).unwrap_or_else(|error| panic!("not lowered: {error}"));
    verify(&lowered).unwrap_or_else(|errors| panic!("lowering broke it: {errors}"));
    let (tidied, _) = tidy::run(&lowered, &tidy::Config::default()).unwrap();
    verify(&tidied).unwrap_or_else(|errors| panic!("tidying broke it: {errors}"));
    for written in [&module, &tidied] {
        let printed = text::print(written, &PrintOptions::default());
        let again = match text::parse(&printed, "printed.txt") {
            Ok(again) => again,
            Err(_) if lost_in_text(written).iter().any(|lost| lost.fields.contains(&2)) => {
                return Err(Outcome::NewOpcode);
            }
            Err(error) => panic!("not read back: {error}"),
        };
        verify(&again).unwrap_or_else(|errors| panic!("what was printed is broken: {errors}"));
        // A proto may have no field for a text attribute of an unmodelled op: that is an error with a message.
        let encoded = match encode::to_bytes(&again) {
            Ok(encoded) => encoded,
            Err(ProtoError::Unsupported { .. }) => return Err(Outcome::NotEncoded),
            Err(error) => panic!("not encoded: {error}"),
        };
        decode::from_bytes(&encoded).unwrap_or_else(|error| panic!("not decoded: {error}"));
    }
    // As it was read, or as it was lowered: tidying takes away what XLA might trip over.
    Ok(if random.random_bool(0.5) { module } else { tidied })
}

fn read(source: &Source) -> Result<Module, Outcome> {
    let error = match source {
        Source::Text(text) => match text::parse(text, "mutated.txt") {
            Ok(module) => return Ok(module),
            Err(error) => error.to_string(),
        },
        Source::Proto(bytes) => match decode::from_bytes(bytes) {
            Ok(module) => return Ok(module),
            Err(error) => error.to_string(),
        },
    };
    assert!(!error.trim().is_empty(), "an error without a word");
    Err(Outcome::NotRead)
}

/// Any of the policies that differ in more than lists of ops.
fn policy(random: &mut SmallRng) -> Policy {
    let preset = ["default", "bf16_scope", "tf_amp"][random.random_range(0..3)];
    let mut policy = Policy::preset(preset).unwrap_or_else(|error| panic!("{error}"));
    if random.random_bool(0.5) {
        let mut boundary = || if random.random_bool(0.5) { Boundary::Keep } else { Boundary::Lower };
        (policy.parameters, policy.results, policy.loss) = (boundary(), boundary(), boundary());
        policy.dtype = if random.random_bool(0.5) { LowDType::Bf16 } else { LowDType::F16 };
        policy.accumulate = if random.random_bool(0.5) { Accumulate::Compute } else { Accumulate::F32 };
        policy.reach = [Reach::Dots, Reach::Between, Reach::All][random.random_range(0..3)];
        policy.deny_spreads = random.random_bool(0.5);
        policy.unstored = if random.random_bool(0.5) { Boundary::Keep } else { Boundary::Lower };
        policy.tables = if random.random_bool(0.5) { Boundary::Keep } else { Boundary::Lower };
    }
    policy
}

/// Small random arrays for the entry's parameters.
fn arguments(random: &mut SmallRng, module: &Module) -> Option<Vec<(ArrayShape, Vec<u8>)>> {
    let entry = module.entry();
    let mut shapes = Vec::new();
    for id in entry.parameters() {
        for leaf in entry.instr(id).shape.leaves() {
            match leaf {
                Shape::Array(shape) if !shape.has_dynamic() => {
                    shapes.push(ArrayShape { layout: None, ..shape.clone() })
                }
                _ => return None,
            }
        }
    }
    let n_bytes =
        |shape: &ArrayShape| shape.dims.iter().fold(shape.dtype.n_bytes() as i64, |n, dim| n.saturating_mul(*dim));
    let n_all = shapes.iter().map(n_bytes).fold(0, i64::saturating_add);
    (n_all <= MAX_ARGUMENTS).then(|| shapes.into_iter().map(|shape| (shape.clone(), array(random, &shape))).collect())
}

fn array(random: &mut SmallRng, shape: &ArrayShape) -> Vec<u8> {
    let n_elements = usize::try_from(shape.n_elements()).expect("counted before");
    let mut bytes = Vec::new();
    for _ in 0..n_elements {
        let value = random.random_range(-2.0f32..2.0);
        match shape.dtype {
            DType::F32 => bytes.extend(value.to_le_bytes()),
            DType::F64 => bytes.extend(f64::from(value).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f32(value).to_le_bytes()),
            DType::Pred => bytes.push(u8::from(value > 0.0)),
            // Small whole numbers, which are small floats of other kinds too.
            other => {
                bytes.push(random.random_range(0..4));
                bytes.resize(bytes.len() + other.n_bytes() - 1, 0);
            }
        }
    }
    bytes
}

/// Text with every number as `N`, so that two violations of the same rule are equal.
pub fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if !c.is_ascii_digit() || out.ends_with(|c: char| c.is_ascii_alphanumeric() && c != 'N') {
            out.push(c);
            continue;
        }
        while chars.next_if(|c| c.is_ascii_digit() || matches!(c, '.' | ':')).is_some() {}
        while out.ends_with("  ") {
            out.pop();
        }
        out.push('N');
    }
    out
}
