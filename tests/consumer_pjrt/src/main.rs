//! PJRT alone, from outside of the workspace: a text is compiled for this CPU and run.

use bf16scope_pjrt::hlo::{proto::encode, text, verify};
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

    let x = client.buffer(&[1.0_f32, 0.1, 1.124_561_6], [3])?;
    let y = executable.execute(vec![Arg::Keep(&x)])?[0].to_vec::<f32>()?;
    println!("{} on {}: {y:?}", module.name, client.platform_name()?);
    assert_eq!(y, [1.0, 0.100_097_656, 1.125]);
    Ok(())
}
