//! Counts the ops and the bytes of each dtype in a module: `census FILE`, as HLO text or as an `HloModuleProto`.

use std::collections::BTreeMap;
use std::error::Error;

use bf16scope_hlo::{Shape, proto::decode, text, verify};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: census FILE")?;
    let bytes = std::fs::read(&path)?;
    let module = match std::str::from_utf8(&bytes) {
        Ok(source) => text::parse(source, &path)?,
        Err(_) => decode::from_bytes(&bytes)?,
    };
    verify(&module)?;

    let (mut ops, mut dtypes) = (BTreeMap::<String, usize>::new(), BTreeMap::<String, i64>::new());
    for instr in module.computations.iter().flat_map(|computation| &computation.instructions) {
        *ops.entry(instr.op.opcode().into_owned()).or_default() += 1;
        if let Shape::Array(array) = &instr.shape {
            *dtypes.entry(array.dtype.to_string()).or_default() += array.n_bytes();
        }
    }
    println!("{}: {} instructions", module.name, ops.values().sum::<usize>());
    for (op, n) in &ops {
        println!("{n:8} {op}");
    }
    for (dtype, n_bytes) in &dtypes {
        println!("{n_bytes:12} bytes of {dtype}");
    }
    Ok(())
}
