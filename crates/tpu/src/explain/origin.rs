//! The origin of an instruction in the optimized program: the user's layer and source line.
//!
//! Every instruction may carry a scoped name (`gradient/resnet/block1/conv2/convolution`) and a source line. A fusion
//! carries those of one instruction in it, not always of the relevant one, so its origin is taken from the most
//! characteristic instruction: a convolution or product, otherwise a reduction over windows or dimensions, otherwise
//! the fusion itself, otherwise the producer of its largest result. In a fusion with several results, each has its own
//! root, from which its origin is taken.
//!
//! An optimizer's update is in no scope, and copies made by the compiler have no name at all: an instruction without a
//! layer gets that of its largest operand that has one, so an update is attributed to its variable's layer. Optimizer
//! computations without a variable, such as Adam's bias correction, are attributed to the optimizer, also in a fusion
//! of another layer. Rematerialised instructions are attributed to the layer of the original.

use std::collections::BTreeMap;

use serde::Serialize;

use super::layout::{leaves, padded_bytes, padded_bytes_of_all};
use super::liveness::Liveness;
use bf16scope_hlo::{CompId, Computation, InstrId, Instruction, Metadata, Module, Op};

/// The part of a training step to which an instruction belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The network and its loss, or anything without another part.
    Forward,
    /// Reverse mode.
    Backward,
}

/// The origin of an instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The scoped name without the op: `resnet/block1/conv2`; empty if unknown.
    pub layer: String,
    /// Forward or backward.
    pub phase: Phase,
    /// The full scoped name.
    pub op_name: String,
    /// The user's file and line, `crates/model/src/models/resnet.rs:61`; empty if unknown.
    pub source: String,
}

/// The displayed name of a missing layer.
pub const NO_LAYER: &str = "(no layer)";
/// The layer of the program's parameters outside of any layer: images, labels, the step number.
pub const INPUTS: &str = "(inputs)";

/// The layer of an optimizer's computations without a variable, such as Adam's bias correction.
pub const OPTIMIZER: &str = "(optimizer)";

/// The origin of every instruction of a module.
#[derive(Debug)]
pub struct Origins {
    /// By computation, then instruction.
    of: Vec<Vec<Origin>>,
}

impl Origins {
    /// Analyses a module with valid ids.
    pub fn new(module: &Module) -> Origins {
        let entry = module.entry();
        let layers_of_variables: BTreeMap<&str, Origin> = (entry.parameters().into_iter())
            .map(|id| &entry.instr(id).metadata)
            .map(|metadata| (metadata.op_name.as_str(), of_metadata(module, metadata)))
            .collect();
        let mut origins = Origins { of: Vec::with_capacity(module.computations.len()) };
        for (at, computation) in module.computations.iter().enumerate() {
            let is_entry = at == module.entry.idx();
            let mut done: Vec<Origin> = Vec::with_capacity(computation.instructions.len());
            for instruction in &computation.instructions {
                let mut origin = of_metadata(module, &telling(module, instruction).metadata);
                match &instruction.op {
                    Op::Parameter { .. } if is_entry => {
                        // A slot of the optimizer is named below its variable: `net/dense/kernel/momentum`.
                        let variable =
                            origin.op_name.rsplit_once('/').and_then(|(name, _)| layers_of_variables.get(name));
                        if let Some(variable) = variable {
                            origin.layer.clone_from(&variable.layer);
                        } else if origin.layer == NO_LAYER {
                            origin.layer = INPUTS.to_string();
                        }
                    }
                    _ if origin.layer == NO_LAYER => match of_operands(module, computation, instruction, &done) {
                        Some(from) => adopt(&mut origin, &from),
                        None if is_of_optimizer(&origin) => origin.layer = OPTIMIZER.to_string(),
                        None => {}
                    },
                    _ => {}
                }
                done.push(origin);
            }
            origins.of.push(done);
        }
        origins
    }

    /// The origin of an instruction.
    pub fn of_instr(&self, comp: CompId, id: InstrId) -> &Origin {
        &self.of[comp.idx()][id.idx()]
    }

    /// The origin of a step's instruction.
    pub fn of_step(&self, liveness: &Liveness, step: usize) -> &Origin {
        let step = liveness.steps[step];
        &self.of[liveness.frames[step.frame].computation.idx()][step.instruction.idx()]
    }

    /// The origin of one array that a step makes.
    pub fn of_leaf(&self, module: &Module, liveness: &Liveness, step: usize, leaf: usize) -> Origin {
        let comp = liveness.frames[liveness.steps[step].frame].computation;
        let operands = (module.comp(comp), &self.of[comp.idx()][..]);
        of_leaf(module, liveness.instruction(module, step), leaf, self.of_step(liveness, step), operands)
    }
}

/// The origin of the largest operand that has a layer; the first among equals.
fn of_operands(
    module: &Module,
    computation: &Computation,
    instruction: &Instruction,
    done: &[Origin],
) -> Option<Origin> {
    let mut best: Option<(u64, Origin)> = None;
    for &id in &instruction.operands {
        let operand = computation.instr(id);
        let origin = match instruction.op {
            Op::GetTupleElement { index } => {
                of_leaf(module, operand, usize::try_from(index).ok()?, &done[id.idx()], (computation, done))
            }
            _ => done[id.idx()].clone(),
        };
        let n_bytes = padded_bytes_of_all(&operand.shape);
        // A copy of an input, without a name or with the input's, belongs to the inputs; computations with an input do
        // not.
        let op_name = instruction.metadata.op_name.as_str();
        let has_layer = match origin.layer.as_str() {
            NO_LAYER => false,
            INPUTS => op_name.is_empty() || op_name == origin.op_name,
            _ => true,
        };
        if has_layer && best.as_ref().is_none_or(|(most, _)| n_bytes > *most) {
            best = Some((n_bytes, origin));
        }
    }
    best.map(|(_, origin)| origin)
}

/// Fills in an origin without a layer from another.
fn adopt(origin: &mut Origin, from: &Origin) {
    origin.layer.clone_from(&from.layer);
    if origin.op_name.is_empty() {
        origin.phase = from.phase;
    }
    if origin.source.is_empty() {
        origin.source.clone_from(&from.source);
    }
}

/// The origin in an instruction's metadata.
fn of_metadata(module: &Module, metadata: &Metadata) -> Origin {
    let (phase, path) = phase(&metadata.op_name);
    let layer = match path.rsplit_once('/') {
        Some((layer, _)) => layer.to_string(),
        None => NO_LAYER.to_string(),
    };
    Origin { layer, phase, op_name: metadata.op_name.clone(), source: module.source_text(metadata) }
}

/// Splits a scoped name into its part of the step and the path within the network: our `gradient/…`, and JAX's
/// `jit(step)/transpose(jvp(Net))/…`. Rematerialised instructions belong to the backward pass: our `remat/…`, and JAX's
/// `checkpoint/rematted_computation/…`.
fn phase(op_name: &str) -> (Phase, String) {
    let path = op_name.trim_start_matches("remat/");
    if let Some(path) = path.strip_prefix("gradient/").or((path.len() < op_name.len()).then_some(path)) {
        return (Phase::Backward, path.to_string());
    }
    let mut phase = Phase::Forward;
    let mut path = Vec::new();
    for part in op_name.split('/') {
        if part.starts_with("jit(") || part.starts_with("pjit(") {
            continue;
        }
        let mut inner = part;
        for wrapper in ["transpose(", "jvp(", "vmap(", "remat(", "checkpoint("] {
            if let Some(rest) = inner.strip_prefix(wrapper).and_then(|rest| rest.strip_suffix(')')) {
                inner = rest;
                if wrapper == "transpose(" {
                    phase = Phase::Backward;
                }
            }
        }
        match inner {
            "" | "checkpoint" => {}
            "rematted_computation" => phase = Phase::Backward,
            inner => path.push(inner),
        }
    }
    (phase, path.join("/"))
}

/// The origin of one array that an instruction makes, given the origins of the instruction and its operands.
fn of_leaf(
    module: &Module,
    instruction: &Instruction,
    leaf: usize,
    whole: &Origin,
    (computation, origins): (&Computation, &[Origin]),
) -> Origin {
    let root = leaf_root(module, instruction, leaf).filter(|(_, root)| !root.metadata.op_name.is_empty());
    let Some((comp, root)) = root else { return whole.clone() };
    let mut origin = of_metadata(module, &root.metadata);
    if origin.layer != NO_LAYER {
        return origin;
    }
    // A fusion's name may come from another of its arrays, so an optimizer's result is judged by its operands.
    let is_of_variable = |&id: &InstrId| {
        let layer = origins.get(id.idx()).map_or(NO_LAYER, |origin| origin.layer.as_str());
        ![NO_LAYER, INPUTS, OPTIMIZER].contains(&layer)
            && computation.instr(id).shape.as_array().is_some_and(|array| array.rank() > 0)
    };
    match is_of_optimizer(&origin) && !reached(module.comp(comp), root, instruction).iter().any(is_of_variable) {
        true => origin.layer = OPTIMIZER.to_string(),
        false => adopt(&mut origin, whole),
    }
    origin
}

/// The operands of a fusion from which an instruction inside is computed.
fn reached(fused: &Computation, from: &Instruction, fusion: &Instruction) -> Vec<InstrId> {
    let (mut open, mut seen) = (from.operands.clone(), vec![false; fused.instructions.len()]);
    let mut operands = Vec::new();
    while let Some(id) = open.pop() {
        if std::mem::replace(&mut seen[id.idx()], true) {
            continue;
        }
        let instruction = fused.instr(id);
        match instruction.op {
            Op::Parameter { number, .. } => {
                operands.extend(usize::try_from(number).ok().and_then(|number| fusion.operands.get(number)));
            }
            _ => open.extend(&instruction.operands),
        }
    }
    operands
}

/// Whether an optimizer's code wrote it: ours, or optax.
fn is_of_optimizer(origin: &Origin) -> bool {
    ["/optim/", "/optax/"].iter().any(|folder| origin.source.contains(folder))
}

/// The computation of a fusion.
pub fn fused(instruction: &Instruction) -> Option<CompId> {
    match &instruction.op {
        Op::Opaque(opaque) if opaque.opcode == "fusion" => {
            opaque.called.iter().flat_map(|(_, comps)| comps).next().copied()
        }
        _ => None,
    }
}

/// The producer of an array of a fusion: the root, or the root tuple's operand, looking through renamings.
pub fn leaf_root<'m>(
    module: &'m Module,
    instruction: &'m Instruction,
    leaf: usize,
) -> Option<(CompId, &'m Instruction)> {
    let comp = fused(instruction)?;
    let computation = module.comp(comp);
    let root = computation.instr(computation.root);
    let mut at: InstrId = match &root.op {
        Op::Tuple => *root.operands.get(leaf)?,
        _ => computation.root,
    };
    // Operands come earlier, so this ends.
    while computation.instr(at).op.opcode() == "bitcast" {
        at = *computation.instr(at).operands.first()?;
    }
    Some((comp, computation.instr(at)))
}

/// How characteristic an instruction is for the fusion it is in; 0 for not at all.
fn weight(instruction: &Instruction) -> u8 {
    match &instruction.op {
        Op::Convolution(_) | Op::Dot { .. } => 4,
        Op::Scatter { .. }
        | Op::Gather(_)
        | Op::SelectAndScatter { .. }
        | Op::ReduceWindow { .. }
        | Op::Sort { .. } => 3,
        _ => 0,
    }
}

/// The characteristic instruction: itself, unless it is a fusion.
pub fn telling<'m>(module: &'m Module, instruction: &'m Instruction) -> &'m Instruction {
    let Some(comp) = fused(instruction) else { return instruction };
    let mut best = (0, instruction);
    // Fusions nest: inner ones are searched as well. Calls have no cycles.
    let mut open = vec![comp];
    while let Some(comp) = open.pop() {
        for inner in &module.comp(comp).instructions {
            open.extend(fused(inner));
            if weight(inner) > best.0 && !inner.metadata.op_name.is_empty() {
                best = (weight(inner), inner);
            }
        }
    }
    if best.0 > 0 || !instruction.metadata.op_name.is_empty() {
        return best.1;
    }
    let sizes = leaves(&instruction.shape).into_iter().map(padded_bytes).enumerate();
    let largest = sizes.max_by_key(|&(_, n_bytes)| n_bytes).map_or(0, |(leaf, _)| leaf);
    leaf_root(module, instruction, largest).map_or(instruction, |(_, root)| root)
}

/// The kind of an instruction, in a word: a fusion with a convolution in it is a `convolution fusion`.
pub fn op_kind(module: &Module, instruction: &Instruction) -> String {
    let Some(_) = fused(instruction) else { return instruction.op.opcode().into_owned() };
    let telling = telling(module, instruction);
    if weight(telling) > 0 {
        return format!("{} fusion", telling.op.opcode());
    }
    match contains_reduce(module, instruction) {
        true => "reduce fusion".to_string(),
        false => "elementwise fusion".to_string(),
    }
}

fn contains_reduce(module: &Module, instruction: &Instruction) -> bool {
    let inside = fused(instruction).map(|comp| &module.comp(comp).instructions);
    inside.into_iter().flatten().any(|inner| matches!(inner.op, Op::Reduce { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(op_name: &str) -> (String, Phase) {
        let metadata = Metadata { op_name: op_name.to_string(), ..Metadata::default() };
        let origin = of_metadata(&Module::new("m"), &metadata);
        (origin.layer, origin.phase)
    }

    #[test]
    fn names_tell_layer_and_phase() {
        assert_eq!(origin("mlp/dense1/dot"), ("mlp/dense1".to_string(), Phase::Forward));
        assert_eq!(origin("gradient/mlp/dense1/dot"), ("mlp/dense1".to_string(), Phase::Backward));
        assert_eq!(origin("multiply"), (NO_LAYER.to_string(), Phase::Forward));
        assert_eq!(origin(""), (NO_LAYER.to_string(), Phase::Forward));
        let jax = "jit(step)/jit(main)/transpose(jvp(ResNet))/conv_init/conv_general_dilated";
        assert_eq!(origin(jax), ("ResNet/conv_init".to_string(), Phase::Backward));
    }

    #[test]
    fn what_is_rematerialised_is_its_layers_in_the_backward_pass() {
        let dense = ("mlp/dense1".to_string(), Phase::Backward);
        assert_eq!(origin("remat/mlp/dense1/dot"), dense);
        assert_eq!(origin("remat/remat/mlp/dense1/dot"), dense);
        assert_eq!(origin("remat/gradient/mlp/dense1/dot"), dense);
        assert_eq!(origin("remat/dot"), (NO_LAYER.to_string(), Phase::Backward));
        // A layer may have that name.
        assert_eq!(origin("mlp/remat/dot"), ("mlp/remat".to_string(), Phase::Forward));
        let jax = "jit(step)/jit(main)/transpose(jvp(Net))/checkpoint/rematted_computation/dense_1/dot_general";
        assert_eq!(origin(jax), ("Net/dense_1".to_string(), Phase::Backward));
        assert_eq!(origin("jit(f)/jvp(checkpoint)/dense/tanh"), ("dense".to_string(), Phase::Forward));
    }

    #[test]
    fn a_correction_of_bias_is_the_optimizers_also_beside_the_loss() {
        let text = r#"
HloModule m, is_scheduled=true

fused {
  l = f32[64] parameter(0)
  t = f32[] parameter(1)
  w = f32[64] parameter(2)
  z = f32[] constant(0)
  b = f32[] constant(0.9)
  s = f32[] negate(z), metadata={op_name="loss/reduce_sum"}
  c = f32[] power(b, t), metadata={op_name="power" source_file="crates/model/src/optim/optimizer/adamw.rs" source_line=97}
  k = f32[64] broadcast(c), dimensions={}, metadata={op_name="broadcast" source_file="crates/model/src/optim/optimizer/adamw.rs" source_line=98}
  u = f32[64] multiply(w, k), metadata={op_name="multiply" source_file="crates/model/src/optim/optimizer/adamw.rs" source_line=99}
  ROOT r = (f32[], f32[], f32[64]) tuple(s, c, u)
}

ENTRY m {
  labels = f32[64] parameter(0), metadata={op_name="labels"}
  step = f32[] parameter(1), metadata={op_name="step"}
  w = f32[64] parameter(2), metadata={op_name="net/dense/kernel"}
  beta = f32[] constant(0.999)
  p = f32[] power(beta, step), metadata={op_name="power" source_file="site-packages/optax/_src/transform.py" source_line=31}
  q = f32[] power(beta, step), metadata={op_name="power" source_file="mine.py" source_line=31}
  f = (f32[], f32[], f32[64]) fusion(labels, step, w), kind=kLoop, calls=fused, metadata={op_name="loss/reduce_sum"}
  e = f32[] get-tuple-element(f), index=1
  ROOT t = (f32[], f32[], f32[]) tuple(e, p, q)
}
"#;
        let module = bf16scope_hlo::text::parse(text, "m").unwrap();
        let liveness = crate::explain::analyse(&module).unwrap();
        let origins = Origins::new(&module);
        let layers: Vec<&str> = (4..8).map(|step| origins.of_step(&liveness, step).layer.as_str()).collect();
        assert_eq!(layers, [OPTIMIZER, NO_LAYER, "loss", OPTIMIZER]);
        let leaves = [0, 1, 2].map(|leaf| origins.of_leaf(&module, &liveness, 6, leaf).layer);
        // An update is attributed like its fusion, if that has a variable's array.
        assert_eq!(leaves, ["loss", OPTIMIZER, "loss"]);
    }

    #[test]
    fn the_most_telling_instruction_speaks_for_a_fusion() {
        let text = r#"
HloModule m, is_scheduled=true

fused {
  x = bf16[8,8] parameter(0)
  d = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="net/dense/dot" source_file="net.py" source_line=7}
  n = f32[8,8] negate(d), metadata={op_name="net/act/negate"}
  b = f32[64] bitcast(n)
  ROOT t = (f32[64], f32[8,8]) tuple(b, d)
}

ENTRY m {
  x = bf16[8,8] parameter(0)
  ROOT f = (f32[64], f32[8,8]) fusion(x), kind=kOutput, calls=fused, metadata={op_name="net/act/negate"}
}
"#;
        let module = bf16scope_hlo::text::parse(text, "m").unwrap();
        let liveness = crate::explain::analyse(&module).unwrap();
        let origins = Origins::new(&module);
        let origin = origins.of_step(&liveness, 1);
        assert_eq!((origin.layer.as_str(), origin.source.as_str()), ("net/dense", "net.py:7"));
        assert_eq!(origins.of_leaf(&module, &liveness, 1, 0).layer, "net/act");
        assert_eq!(origins.of_leaf(&module, &liveness, 1, 1).layer, "net/dense");
        assert_eq!(op_kind(&module, module.entry().instr(InstrId(1))), "dot fusion");
    }

    #[test]
    fn an_update_is_counted_to_its_variable_and_a_copy_to_what_it_copies() {
        let text = r#"
HloModule m, is_scheduled=true

fused {
  w = f32[64] parameter(0)
  v = f32[64] parameter(1)
  n = f32[64] negate(v), metadata={op_name="negate"}
  s = f32[64] subtract(w, n), metadata={op_name="subtract"}
  ROOT t = (f32[64], f32[64]) tuple(s, n)
}

ENTRY m {
  images = f32[4096] parameter(0), metadata={op_name="images"}
  w = f32[64] parameter(1), metadata={op_name="net/dense/kernel" source_file="net.py" source_line=7}
  v = f32[64] parameter(2), metadata={op_name="net/dense/kernel/momentum" source_file="slot.rs" source_line=9}
  c = f32[64] copy(w)
  f = (f32[64], f32[64]) fusion(c, v), kind=kLoop, calls=fused, metadata={op_name="subtract" source_file="program.rs" source_line=105}
  e = f32[64] get-tuple-element(f), index=1
  i = f32[4096] copy(images), metadata={op_name="images"}
  ROOT t = (f32[64], f32[4096]) tuple(e, i)
}
"#;
        let module = bf16scope_hlo::text::parse(text, "m").unwrap();
        let liveness = crate::explain::analyse(&module).unwrap();
        let origins = Origins::new(&module);
        let measured: Vec<(&str, &str)> = (0..7)
            .map(|step| origins.of_step(&liveness, step))
            .map(|origin| (origin.layer.as_str(), origin.source.as_str()))
            .collect();
        let dense = |source| ("net/dense", source);
        assert_eq!(measured[..3], [(INPUTS, ""), dense("net.py:7"), dense("slot.rs:9")]);
        assert_eq!(measured[3..], [dense("net.py:7"), dense("program.rs:105"), dense("program.rs:105"), (INPUTS, "")]);
        let leaf = origins.of_leaf(&module, &liveness, 4, 0);
        assert_eq!((leaf.layer.as_str(), leaf.op_name.as_str()), ("net/dense", "subtract"));
    }
}
