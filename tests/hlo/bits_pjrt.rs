//! The repeated update of `bits --accumulate`, run through PJRT: the same bits at every step as `numerics` and `half`.

use crate::run;

use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Emitter, Module, Shape, text};
use bf16scope::numerics::{Decimal, Format, Number, accumulate};
use bf16scope::pjrt::{Arg, CompileOptions};
use half::{bf16, f16};

const N_STEPS: usize = 100;

/// `weight + update` on scalars of `dtype`, as a program.
fn addition(dtype: DType) -> Vec<u8> {
    let module = Module::new("update");
    let entry = module.entry;
    let e = Emitter::new(module, entry);
    let scalar = Shape::scalar(dtype);
    let (weight, update) = (e.parameter(0, &scalar), e.parameter(1, &scalar));
    e.add(weight, update);
    let module = e.finish().unwrap();
    verify(&module).unwrap();
    encode::to_bytes(&module).unwrap()
}

fn decimal(text: &str) -> Decimal {
    match text.parse().unwrap() {
        Number::Finite(decimal) => decimal,
        other => panic!("{other:?} is not finite"),
    }
}

/// The bits after each step, as the CPU plugin computes them: the weight stays on the device.
fn through_pjrt(dtype: DType, start: u64, update: u64) -> Vec<u64> {
    let client = run::optimized_client();
    let executable = client.compile(&addition(dtype), &CompileOptions::default()).unwrap();
    let n_bytes = dtype.n_bytes();
    let buffer = |bits: u64| client.buffer_from_host(&bits.to_le_bytes()[..n_bytes], dtype, &[], 0).unwrap();
    let update = buffer(update);
    let mut weight = buffer(start);
    let mut steps = Vec::new();
    for _ in 0..N_STEPS {
        weight = executable.execute(vec![Arg::Keep(&weight), Arg::Keep(&update)]).unwrap().remove(0);
        let mut bits = [0u8; 8];
        bits[..n_bytes].copy_from_slice(&weight.to_host().unwrap());
        steps.push(u64::from_le_bytes(bits));
    }
    steps
}

/// The bits after each step, as `half` (and Rust's f32) compute them.
fn through_half(dtype: DType, start: u64, update: u64) -> Vec<u64> {
    let add = |lhs: u64, rhs: u64| match dtype {
        DType::BF16 => (bf16::from_bits(lhs as u16) + bf16::from_bits(rhs as u16)).to_bits().into(),
        DType::F16 => (f16::from_bits(lhs as u16) + f16::from_bits(rhs as u16)).to_bits().into(),
        DType::F32 => (f32::from_bits(lhs as u32) + f32::from_bits(rhs as u32)).to_bits().into(),
        other => panic!("{other} is not among the formats of this test"),
    };
    std::iter::successors(Some(add(start, update)), |&weight| Some(add(weight, update))).take(N_STEPS).collect()
}

#[test]
fn updates_lose_the_same_bits_everywhere() {
    // The update is lost at once in bf16 and f16; the other is lost later, and in f32 never.
    for (start, update) in [("1.125", "0.00041999"), ("1.125", "0.0101"), ("0.001", "3.3e-5"), ("65000", "17.5")] {
        for (dtype, format) in [(DType::F32, Format::F32), (DType::BF16, Format::BF16), (DType::F16, Format::F16)] {
            let ours = accumulate(format, &decimal(start), &decimal(update), N_STEPS);
            let case = format!("{start} + {update} in {dtype}");
            assert_eq!(ours.steps, through_half(dtype, ours.start, ours.update), "half, {case}");
            if dtype == DType::F16 && !run::has_f16() {
                continue;
            }
            assert_eq!(ours.steps, through_pjrt(dtype, ours.start, ours.update), "PJRT, {case}");
        }
    }
}

/// XLA's clients leave zeros in the rest of a byte: an s4 of -7 was read as 9.
#[test]
fn integers_below_a_byte_keep_their_sign() {
    for (name, dtype, values) in [
        ("s4", DType::S4, [-8i8, -7, -1, 7]),
        ("s2", DType::S2, [-2, -1, 0, 1]),
        ("u4", DType::U4, [15, 8, 1, 0]),
        ("u2", DType::U2, [3, 2, 1, 0]),
    ] {
        let text = format!(
            "HloModule m\n\nENTRY m {{\n  x = {name}[4] parameter(0)\n  w = s32[4] convert(x)\n  ROOT y = ({name}[4], s32[4]) \
             tuple(x, w)\n}}\n"
        );
        let program = encode::to_bytes(&text::parse(&text, "m").unwrap()).unwrap();
        let program = run::client().compile(&program, &CompileOptions::default()).unwrap();
        let bytes = values.map(|value| value as u8);
        let x = run::client().buffer_from_host(&bytes, dtype, &[4], 0).unwrap();
        let results = program.execute(vec![Arg::Keep(&x)]).unwrap();
        assert_eq!(results[0].to_host().unwrap(), bytes, "{name}");
        assert_eq!(results[1].to_vec::<i32>().unwrap(), values.map(i32::from), "{name}");
        // Arrays on the device are read back unchanged, too.
        assert_eq!(x.to_host().unwrap(), bytes, "{name}");
    }
}
