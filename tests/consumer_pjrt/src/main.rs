//! PJRT alone, from outside of the workspace: a text is compiled for this CPU and run.

use bf16scope_pjrt::hlo::{DType, proto::encode, text, verify};
use bf16scope_pjrt::{Arg, Client, CompileOptions};

const SOURCE: &str = "HloModule rounded
ENTRY main {
  x = f32[3] parameter(0)
  low = bf16[3] convert(x)
  ROOT y = f32[3] convert(low)
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let module = text::parse(SOURCE, "rounded.hlo")?;
    verify(&module)?;
    let client = Client::cpu()?;
    let executable = client.compile(&encode::to_bytes(&module)?, &CompileOptions::default())?;

    let bytes: Vec<u8> = [1.0_f32, 0.1, 1.124_561_6].into_iter().flat_map(f32::to_le_bytes).collect();
    let x = client.buffer_from_host(&bytes, DType::F32, &[3], 0)?;
    let y = executable.execute(vec![Arg::Keep(&x)])?[0].to_host()?;
    let y: Vec<f32> = y.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().expect("four bytes"))).collect();
    println!("{} on {}: {y:?}", module.name, client.platform_name()?);
    assert_eq!(y, [1.0, 0.100_097_656_25, 1.125]);
    Ok(())
}
