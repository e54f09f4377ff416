//! HLO alone, from outside of the workspace: a text is read, walked, rewritten, verified and printed.

use bf16scope_hlo::{BinaryOp, Op, Shape, text, verify};

const SOURCE: &str = "HloModule clipped
ENTRY main {
  x = f32[4,8] parameter(0)
  limit = f32[4,8] parameter(1)
  above = f32[4,8] subtract(x, limit)
  ROOT y = f32[4,8] add(above, limit)
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut module = text::parse(SOURCE, "clipped.hlo")?;
    let entry = module.entry;
    for instr in &mut module.computations[entry.idx()].instructions {
        println!("{} {} of {} operands", instr.shape, instr.op.opcode(), instr.operands.len());
        if instr.op == Op::Binary(BinaryOp::Add) {
            instr.op = Op::Binary(BinaryOp::Maximum);
        }
    }
    verify(&module)?;
    let printed = text::print(&module, &Default::default());
    assert!(printed.contains("maximum(") && !printed.contains(" add("), "{printed}");
    assert_eq!(text::print(&text::parse(&printed, "printed.hlo")?, &Default::default()), printed);

    // A wrong shape is an error that names the instruction and the rule.
    let root = module.computations[entry.idx()].root;
    module.computations[entry.idx()].instructions[root.idx()].shape = Shape::array(bf16scope_hlo::DType::F32, [4, 9]);
    let error = verify(&module).unwrap_err().to_string();
    assert!(error.contains("main/%y"), "{error}");
    println!("{error}");
    Ok(())
}
