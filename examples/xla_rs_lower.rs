//! xla-rs on both sides: a computation built with `xla::XlaBuilder` is lowered to bf16, run by `xla::PjRtClient::cpu()`,
//! and compiled for a TPU v3, which is not here.
//!
//! `eval "$(ci/xla-extension)" && cargo run --features xla --example xla_rs_lower`

use std::error::Error;

use bf16scope::hlo::proto::encode;
use bf16scope::interop::xla as interop;
use bf16scope::passes::amp;
use bf16scope::{pjrt, tpu};
use xla::{ElementType, Literal, PjRtClient, XlaBuilder, XlaComputation};

/// `relu(x · w1) · w2`, in f32: `x` [64,256], `w1` [256,512], `w2` [512,16].
fn network() -> xla::Result<XlaComputation> {
    let builder = XlaBuilder::new("mlp");
    let x = builder.parameter(0, ElementType::F32, &[64, 256], "x")?;
    let w1 = builder.parameter(1, ElementType::F32, &[256, 512], "w1")?;
    let w2 = builder.parameter(2, ElementType::F32, &[512, 16], "w2")?;
    let zeros = builder.zero(ElementType::F32)?.broadcast(&[64, 512])?;
    builder.build(&x.matmul(&w1)?.max(&zeros)?.matmul(&w2)?)
}

/// Numbers in [-0.5, 0.5), the same at each run.
fn numbers(dims: &[i64]) -> xla::Result<Literal> {
    let scrambled = |idx: i64| (idx as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5;
    Literal::vec1(&(0..dims.iter().product()).map(scrambled).collect::<Vec<f32>>()).reshape(dims)
}

fn main() -> Result<(), Box<dyn Error>> {
    pjrt::prepare_environment(pjrt::Purpose::Compile)?; // Before XLA reads its flags: every rounding to bf16 is kept.
    let f32_network = network()?;
    let (lowered, report) = amp::run(&interop::module(&f32_network)?, &amp::Policy::default())?;
    println!("{} of {} instructions lowered", report.n_lowered(), report.decisions.len());

    let client = PjRtClient::cpu()?;
    let inputs = [numbers(&[64, 256])?, numbers(&[256, 512])?, numbers(&[512, 16])?];
    let run = |computation: &XlaComputation| -> xla::Result<Vec<f32>> {
        client.compile(computation)?.execute(&inputs)?[0][0].to_literal_sync()?.to_vec()
    };
    let (exact, rounded) = (run(&f32_network)?, run(&interop::computation(&lowered)?)?);
    let worst = exact.iter().zip(&rounded).map(|(x, y)| (x - y).abs()).fold(0f32, f32::max);
    println!("on {}: bf16 differs from f32 by at most {worst:.4}", client.platform_name());

    let report = tpu::compile(&"tpu-v3".parse()?, &encode::to_bytes(&lowered)?, 64)?;
    println!("on a TPU v3: {} bytes of HBM, {} flops", report.hbm.total, report.flops);
    Ok(())
}
