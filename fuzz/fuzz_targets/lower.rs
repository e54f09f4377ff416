//! Any module that verifies, text or proto, lowered by any policy and tidied: the result verifies. The first byte gives
//! the policy, the rest the module.
#![no_main]

use bf16scope::hlo::proto::decode;
use bf16scope::hlo::{Module, text, verify};
use bf16scope::passes::amp::{Accumulate, Boundary, LowDType, Policy, Reach};
use bf16scope::passes::{amp, tidy};
use libfuzzer_sys::fuzz_target;

/// Each bit a choice.
fn policy(bits: u8) -> Policy {
    let mut policy = match Policy::preset(if bits & 1 == 0 { "default" } else { "bf16_scope" }) {
        Ok(policy) => policy,
        Err(error) => panic!("{error}"),
    };
    let boundary = |bit: u8| if bits & bit == 0 { Boundary::Keep } else { Boundary::Lower };
    policy.parameters = boundary(2);
    policy.results = boundary(4);
    policy.loss = boundary(8);
    policy.dtype = if bits & 16 == 0 { LowDType::Bf16 } else { LowDType::F16 };
    policy.accumulate = if bits & 32 == 0 { Accumulate::Compute } else { Accumulate::F32 };
    policy.reach = if bits & 64 == 0 { Reach::Between } else { Reach::All };
    policy.deny_spreads = bits & 128 == 0;
    policy
}

fn module(bytes: &[u8]) -> Option<Module> {
    let of_text = std::str::from_utf8(bytes).ok().and_then(|text| text::parse(text, "fuzz.txt").ok());
    let module = of_text.or_else(|| decode::from_bytes(bytes).ok())?;
    verify(&module).is_ok().then_some(module)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&bits, rest)) = bytes.split_first() else { return };
    let Some(module) = module(rest) else { return };
    let (lowered, _) = amp::run(&module, &policy(bits)).unwrap_or_else(|error| panic!("{error}"));
    let (tidied, _) = tidy::run(&lowered, &tidy::Config::default()).unwrap();
    verify(&tidied).unwrap_or_else(|errors| panic!("tidying broke it: {errors}"));
});
