//! Runs the lowered program with the f32 program's decisions: unrounded values decide which of two is greater, and
//! everything else is computed as lowered.
//!
//! A rounding that flips a comparison, or moves the maximum of a window, changes one term of a sum completely, however
//! small the rounding was. This separates such errors from those of arithmetic.

use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{Computation, DType, InstrId, Instruction, Metadata, Module, Op, Shape};

/// Combines both programs, with the lowered one's results; also returns how many decisions it was given. Decisions are
/// comparisons and the windows of `select-and-scatter`; instructions correspond by name.
pub fn with_decisions_of(original: &Module, lowered: &Module) -> (Module, usize) {
    assert_eq!(lowered.entry.idx() + 1, lowered.computations.len(), "its callees keep their places");
    let mut both = Both { module: original.clone(), n_decisions: 0 };
    let n_before = original.computations.len() as u32;
    let renamed = |name: &str| format!("low_{name}");
    for computation in &lowered.computations[..lowered.entry.idx()] {
        let mut computation = Computation { name: renamed(&computation.name), ..computation.clone() };
        for instr in &mut computation.instructions {
            instr.name = renamed(&instr.name);
            instr.op.for_each_called_mut(&mut |comp| comp.0 += n_before);
        }
        both.module.computations.push(computation);
    }
    let entry = original.entry();
    let mut place: Vec<InstrId> = Vec::new();
    for instr in &lowered.entry().instructions {
        let twin = entry.ids().find(|&id| entry.instr(id).name == instr.name);
        let mut copy = Instruction { name: renamed(&instr.name), ..instr.clone() };
        copy.op.for_each_called_mut(&mut |comp| comp.0 += n_before);
        copy.operands.iter_mut().for_each(|id| *id = place[id.idx()]);
        place.push(match (&instr.op, twin) {
            (Op::Parameter { .. }, Some(twin)) => twin,
            (Op::Compare { .. }, Some(twin)) => {
                both.n_decisions += 1;
                twin
            }
            (Op::SelectAndScatter { .. }, Some(twin)) => both.select_where(entry.instr(twin), copy),
            _ => both.push(copy),
        });
    }
    let entry = both.module.entry.idx();
    both.module.computations[entry].root = place[lowered.entry().root.idx()];
    verify(&both.module).unwrap_or_else(|errors| panic!("{errors}"));
    (both.module, both.n_decisions)
}

struct Both {
    module: Module,
    n_decisions: usize,
}

impl Both {
    fn push(&mut self, instr: Instruction) -> InstrId {
        let entry = self.module.entry.idx();
        let instructions = &mut self.module.computations[entry].instructions;
        instructions.push(instr);
        InstrId(instructions.len() as u32 - 1)
    }

    fn convert(&mut self, id: InstrId, dtype: DType) -> InstrId {
        let entry = self.module.entry;
        let shape = Shape::array(dtype, self.module.entry().instr(id).shape.dims().to_vec());
        self.module.append(entry, Op::Convert, vec![id], shape, Metadata::default())
    }

    /// Scatters the values of the lowered instruction to the places that the original selects.
    fn select_where(&mut self, original: &Instruction, lowered: Instruction) -> InstrId {
        self.n_decisions += 1;
        let dtype = lowered.shape.dtype().unwrap();
        let source = self.convert(lowered.operands[1], DType::F32);
        let operands = vec![original.operands[0], source, original.operands[2]];
        let moved = self.push(Instruction { name: lowered.name, operands, ..original.clone() });
        self.convert(moved, dtype)
    }
}
