//! Bodies that run on each device, as JAX's `shard_map` writes them: Shardy aborts if a cast stands between such a
//! body and its borders.

use bf16scope::hlo::ops::decisions::is_body_border;
use bf16scope::hlo::{Op, text};
use bf16scope::passes::amp::{self, Policy, presets};

const SOURCE: &str = "HloModule bordered
body {
  x = f32[4,8] parameter(0)
  w = f32[8,8] parameter(1)
  h = f32[4,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[4,8] tanh(h)
  u = f32[4,8] reshape(t)
  k = f32[4,8] dot(t, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT all = (f32[4,8], f32[4,8]) tuple(u, k)
}
ENTRY main {
  x = f32[32,8] parameter(0)
  w = f32[8,8] parameter(1)
  v = f32[32,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  in = (f32[4,8], f32[8,8]) custom-call(v, w), custom_call_target=\"xla.sdy.GlobalToLocalShape\"
  in0 = f32[4,8] get-tuple-element(in), index=0
  in1 = f32[8,8] get-tuple-element(in), index=1
  c = (f32[4,8], f32[4,8]) call(in0, in1), to_apply=body
  c0 = f32[4,8] get-tuple-element(c), index=0
  c1 = f32[4,8] get-tuple-element(c), index=1
  out = (f32[32,8], f32[32,8]) custom-call(c0, c1), custom_call_target=\"xla.sdy.LocalToGlobalShape\"
  out0 = f32[32,8] get-tuple-element(out), index=0
  out1 = f32[32,8] get-tuple-element(out), index=1
  s = f32[32,8] add(out0, out1)
  ROOT y = f32[32,8] dot(s, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}";

#[test]
fn no_cast_stands_between_a_body_and_its_borders() {
    let module = text::parse(SOURCE, "bordered").unwrap_or_else(|error| panic!("{error}"));
    for preset in presets::NAMES {
        let (low, _) = amp::run(&module, &Policy::preset(preset).unwrap()).unwrap_or_else(|error| panic!("{error}"));
        let entry = low.entry();
        let call = entry.instructions.iter().find(|instr| matches!(instr.op, Op::Call { .. })).unwrap();
        let out = entry.instructions.iter().rfind(|instr| is_body_border(&instr.op)).unwrap();
        for &id in call.operands.iter().chain(&out.operands) {
            let op = &entry.instr(id).op;
            assert!(
                matches!(op, Op::GetTupleElement { .. }),
                "{preset}: {} is a {}",
                entry.instr(id).name,
                op.opcode()
            );
        }
    }
}
