//! Partitions a step over the model axis: annotates parameters and results with shardings, by patterns of their names.
//! XLA's partitioner propagates them, and inserts the communication.
//!
//! A rule splits every parameter whose name it matches along one axis, into one equal part per partition: kernels of
//! attention along heads, of dense layers along their hidden axis, images along a spatial one. A slot of an optimizer
//! is sharded as its variable is (`net/dense/kernel/momentum` as `net/dense/kernel`), and a result that is aliased to
//! a parameter as that parameter. Everything else is replicated. Replicas are not affected: their collectives have no
//! channel, so each partition sums its own part over the replicas.
//!
//! Mistakes are errors before a compiler runs: a pattern that matches nothing, an axis that does not exist or does not
//! divide, and images whose part is smaller than a window that passes over them.
//!
//! Source: `OpSharding` in XLA's `xla_data.proto`; TPUEstimator's `input_partition_dims`.

mod sums;

use std::collections::{BTreeMap, BTreeSet};

use super::name_pattern::matches;
use super::{PassError, PassErrorKind, Place};

use bf16scope_hlo::words::listed;
use bf16scope_hlo::{ArrayShape, DeviceOrder, InstrId, Instruction, Module, Op, Shape, Sharding, TileAssignment};

/// A rule: parameters whose names match the pattern are split along the axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The pattern, such as `*/query/kernel`; `*` matches any text, `?` any character.
    pub pattern: String,
    /// The axis, counted from 0.
    pub axis: usize,
}

/// The number of partitions, and what is split over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of partitions.
    pub n: usize,
    /// The rules; at least one.
    pub rules: Vec<Rule>,
    /// Whether the results of dots and convolutions of less than 32 bits are summed over partitions in f32, and
    /// rounded once. Reductions do not change: those of our layers are in f32 already.
    pub sum_in_f32: bool,
}

impl Config {
    /// `n` partitions by these rules, which sum in the dtypes of the module.
    pub fn new(n: usize, rules: impl Into<Vec<Rule>>) -> Config {
        Config { n, rules: rules.into(), sum_in_f32: false }
    }
}

/// The report of [`run`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionReport {
    /// Dots and convolutions, by computation and name, whose results are now in f32 and rounded after the sum.
    pub in_f32: Vec<(String, String)>,
    /// The split parameters, by name, with the axis.
    pub split: Vec<(String, usize)>,
}

fn axes_there(rank: usize) -> String {
    match rank {
        0 => "it has none: let no pattern match it".to_string(),
        1 => "its only axis is 0".to_string(),
        _ => format!("its axes are 0 to {}", rank - 1),
    }
}

/// Partitions a verified module, and records the number of partitions in it.
///
/// # Errors
/// The rules do not fit the module.
pub fn run(module: &Module, config: &Config) -> Result<(Module, PartitionReport), PassError> {
    let Config { n, rules, sum_in_f32 } = config;
    let n = *n;
    if rules.is_empty() {
        let text = format!("{n} partitions, and nothing is split over them");
        let help = "say what is, such as --split '*/query/kernel=1'";
        return Err(PassError::new(PassErrorKind::NoRules, text).with_help(help));
    }
    let in_f32 = sum_in_f32.then(|| sums::sum_in_f32(module));
    let (module, in_f32) = in_f32.as_ref().map_or((module, &[][..]), |(module, names)| (module, names));
    let entry = module.entry();
    let parameters = entry.parameters();
    let names: BTreeMap<&str, &Instruction> =
        parameters.iter().map(|&id| (name(entry.instr(id)), entry.instr(id))).collect();
    let mut axes: BTreeMap<InstrId, usize> = BTreeMap::new();
    for rule in rules {
        let matched = parameters.iter().filter(|&&id| is_of(rule, entry.instr(id), &names));
        let mut is_idle = true;
        for &id in matched {
            is_idle = false;
            check_axis(module, id, rule.axis, n)?;
            if let Some(before) = axes.insert(id, rule.axis).filter(|before| *before != rule.axis) {
                let (parameter, axis) = (name(entry.instr(id)), rule.axis);
                let text = format!("{parameter} is split along axis {before} and along axis {axis}");
                let error = PassError::new(PassErrorKind::Split, text).with_help("let one pattern match it");
                return Err(error.about(Place::new(module, module.entry, id)));
            }
        }
        if is_idle {
            let parameters: Vec<String> = parameters.iter().map(|&id| name(entry.instr(id)).to_string()).collect();
            let text = format!("`{}` matches no parameter", rule.pattern);
            let error = PassError::new(PassErrorKind::NoMatch(rule.pattern.clone()), text);
            return Err(error.with_help(format!("parameters are {}", listed(&parameters, 6))));
        }
    }
    for (&id, &axis) in &axes {
        check_windows(module, id, axis, n)?;
    }
    Ok((annotated(module, n, &parameters, &axes), report(module, &axes, in_f32)))
}

fn report(module: &Module, axes: &BTreeMap<InstrId, usize>, in_f32: &[(String, String)]) -> PartitionReport {
    let entry = module.entry();
    let split = axes.iter().map(|(&id, &axis)| (name(entry.instr(id)).to_string(), axis)).collect();
    PartitionReport { in_f32: in_f32.to_vec(), split }
}

/// The scoped name, or else the instruction's.
fn name(instr: &Instruction) -> &str {
    match instr.metadata.op_name.as_str() {
        "" => &instr.name,
        scoped => scoped,
    }
}

/// Whether a rule matches a parameter, or the variable that it is a slot of.
fn is_of(rule: &Rule, instr: &Instruction, names: &BTreeMap<&str, &Instruction>) -> bool {
    let parameter_name = name(instr);
    let is_slot_of = |variable: &str| names.get(variable).is_some_and(|variable| dims(variable) == dims(instr));
    let variable =
        parameter_name.rsplit_once('/').map(|(variable, _)| variable).filter(|variable| is_slot_of(variable));
    match variable {
        Some(variable) => matches(&rule.pattern, variable),
        None => matches(&rule.pattern, parameter_name),
    }
}

fn dims(instr: &Instruction) -> &[i64] {
    match &instr.shape {
        Shape::Array(ArrayShape { dims, .. }) => dims,
        _ => &[],
    }
}

fn check_axis(module: &Module, id: InstrId, axis: usize, n: usize) -> Result<(), PassError> {
    let instr = module.entry().instr(id);
    let (parameter, shape) = (name(instr), &instr.shape);
    let wrong = |text: String, help: String| {
        let error = PassError::new(PassErrorKind::Split, text).with_help(help);
        Err(error.about(Place::new(module, module.entry, id)))
    };
    match dims(instr).get(axis) {
        None => wrong(format!("{parameter} {shape} has no axis {axis}"), axes_there(dims(instr).len())),
        Some(&size) if size > 0 && size % n as i64 == 0 => Ok(()),
        Some(_) => wrong(
            format!("{parameter} {shape} does not split in {n} equal parts along axis {axis}"),
            format!("choose an axis whose size is a multiple of {n}"),
        ),
    }
}

/// Follows a split axis through ops that keep it, and checks the windows that pass over it.
fn check_windows(module: &Module, from: InstrId, axis: usize, n: usize) -> Result<(), PassError> {
    let entry = module.entry();
    let rank = dims(entry.instr(from)).len();
    // Values that have the split axis at the same place.
    let mut split: BTreeSet<InstrId> = BTreeSet::from([from]);
    for id in (0..entry.instructions.len()).map(|at| InstrId(at as u32)) {
        let instr = entry.instr(id);
        let Some(&operand) = instr.operands.iter().find(|operand| split.contains(operand)) else { continue };
        let size = dims(entry.instr(operand)).get(axis).copied().unwrap_or(0);
        let keeps = dims(instr).len() == rank;
        let window = match &instr.op {
            Op::Convolution(convolution) if instr.operands.first() == Some(&operand) => {
                let spatial = convolution.dims.input_spatial.iter().position(|&dim| dim == axis as i64);
                let is_kept = |at: usize| convolution.dims.output_spatial.get(at) == Some(&(axis as i64));
                // Only forward convolutions: the gradient of a kernel takes an image as its window.
                spatial.filter(|&at| is_kept(at)).map(|at| convolution.window[at])
            }
            Op::ReduceWindow { window, .. } => window.get(axis).copied(),
            Op::Convolution(_) | Op::Reshape | Op::Transpose { .. } | Op::Dot { .. } => continue,
            _ if dims(instr).get(axis) == Some(&size) && keeps => {
                split.insert(id);
                continue;
            }
            _ => continue,
        };
        let Some(window) = window else { continue };
        let (span, part) = ((window.size - 1) * window.window_dilation + 1, size.div_euclid(n as i64));
        let part = part + i64::from(size % n as i64 != 0);
        if span > part && window.size > 1 {
            let text = format!(
                "{}: a window of {span} passes over images of {size} that are split in {n} parts of {part}: no part may be \
                 smaller than the window",
                layer(instr)
            );
            let error = PassError::new(PassErrorKind::Split, text).with_help("split in fewer parts, or larger images");
            return Err(error.about(Place::new(module, module.entry, id)));
        }
        if keeps {
            split.insert(id);
        }
    }
    Ok(())
}

fn layer(instr: &Instruction) -> String {
    match name(instr).rsplit_once('/') {
        Some((layer, _)) => layer.to_string(),
        None => format!("%{}", instr.name),
    }
}

fn annotated(module: &Module, n: usize, parameters: &[InstrId], axes: &BTreeMap<InstrId, usize>) -> Module {
    let mut module = module.clone();
    let aliased: BTreeMap<i64, i64> = (module.input_output_alias.iter())
        .filter_map(|alias| match alias.output_index.as_slice() {
            [result] => Some((*result, alias.parameter_number)),
            _ => None,
        })
        .collect();
    let at = module.entry.idx();
    let entry = &mut module.computations[at];
    let mut by_number: BTreeMap<i64, Sharding> = BTreeMap::new();
    for &id in parameters {
        let instr = &mut entry.instructions[id.idx()];
        let sharding = match axes.get(&id) {
            Some(&axis) => tiles(dims(instr).len(), axis, n),
            None => Sharding::Replicated,
        };
        if let Op::Parameter { number, .. } = &instr.op {
            by_number.insert(*number, sharding.clone());
        }
        instr.sharding = Some(Box::new(sharding));
    }
    let root = &mut entry.instructions[entry.root.idx()];
    let result_sharding = |result: i64| {
        let parameter = aliased.get(&result).and_then(|number| by_number.get(number));
        parameter.cloned().unwrap_or(Sharding::Replicated)
    };
    root.sharding = Some(Box::new(match &root.shape {
        Shape::Tuple(elements) => Sharding::Tuple((0..elements.len() as i64).map(result_sharding).collect()),
        _ => Sharding::Replicated,
    }));
    module.unmodelled.attributes.retain(|(attribute, _)| attribute != "num_partitions");
    module.unmodelled.attributes.push(("num_partitions".to_string(), n.to_string()));
    module
}

/// Equal parts along one axis.
fn tiles(rank: usize, axis: usize, n: usize) -> Sharding {
    let mut dims = vec![1; rank];
    dims[axis] = n as i64;
    let devices = DeviceOrder::Iota { reshape_dims: vec![n as i64], transpose_perm: Vec::new() };
    Sharding::Tiled(TileAssignment { dims, devices, replicate_on_last_dim: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::devices::Placement;
    use bf16scope_hlo::text::{self, PrintOptions, print};
    use bf16scope_hlo::verify::verify;

    const STEP: &str = r#"
HloModule step, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }, replica_count=4

ENTRY step {
  w = f32[8,6]{1,0} parameter(0), metadata={op_name="net/dense/kernel"}
  m = f32[8,6]{1,0} parameter(1), metadata={op_name="net/dense/kernel/momentum"}
  x = f32[4,8]{1,0} parameter(2), metadata={op_name="x"}
  y = f32[4,6]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  n = f32[8,6]{1,0} subtract(w, m)
  ROOT t = (f32[8,6]{1,0}, f32[8,6]{1,0}, f32[4,6]{1,0}) tuple(n, m, y)
}
"#;

    fn rules(rules: &[(&str, usize)]) -> Vec<Rule> {
        rules.iter().map(|(pattern, axis)| Rule { pattern: pattern.to_string(), axis: *axis }).collect()
    }

    fn run_rules(text: &str, n: usize, split: &[(&str, usize)]) -> Result<(Module, PartitionReport), String> {
        let module = text::parse(text, "m").unwrap();
        run(&module, &Config::new(n, rules(split))).map_err(|error| error.to_string())
    }

    #[test]
    fn a_variable_its_slot_and_what_takes_their_place_are_split_alike() {
        let (module, report) = run_rules(STEP, 2, &[("*/kernel", 1)]).unwrap();
        verify(&module).unwrap();
        let names = ["net/dense/kernel", "net/dense/kernel/momentum"];
        assert_eq!(report.split, names.map(|name| (name.to_string(), 1)));
        let printed = print(&module, &PrintOptions::default());
        assert_eq!(printed.matches("sharding={devices=[1,2]<=[2]}").count(), 2, "{printed}");
        let results = "sharding={{devices=[1,2]<=[2]}, {devices=[1,2]<=[2]}, {replicated}}";
        assert!(printed.contains(results), "{printed}");
        let placement = Placement::from_module(&module).unwrap();
        assert_eq!((placement.devices.replicas, placement.devices.partitions), (4, 2));
        assert_eq!((placement.free_parameters, placement.free_results), (vec![false; 3], vec![false; 3]));
        // Partitioning again changes nothing.
        assert_eq!(run(&module, &Config::new(2, rules(&[("*/kernel", 1)]))).unwrap().0, module);
    }

    #[test]
    fn rules_that_do_not_fit_are_errors() {
        let error = |n, split: &[(&str, usize)]| run_rules(STEP, n, split).unwrap_err();
        assert_eq!(
            error(2, &[("*/query/kernel", 1)]),
            "`*/query/kernel` matches no parameter\nhelp: parameters are `net/dense/kernel`, `net/dense/kernel/momentum`, `x`"
        );
        assert_eq!(
            error(4, &[("*/kernel", 1)]),
            "net/dense/kernel f32[8,6]{1,0} does not split in 4 equal parts along axis 1\nhelp: choose an axis whose size is a \
             multiple of 4"
        );
        assert_eq!(
            error(2, &[("*/kernel", 2)]),
            "net/dense/kernel f32[8,6]{1,0} has no axis 2\nhelp: its axes are 0 to 1"
        );
        assert_eq!(
            error(2, &[("*/kernel", 1), ("net/*", 0)]),
            "net/dense/kernel is split along axis 1 and along axis 0\nhelp: let one pattern match it"
        );
        assert!(error(2, &[]).starts_with("2 partitions, and nothing is split over them"));
    }

    #[test]
    fn a_window_larger_than_a_part_is_named_with_its_layer() {
        let text = r#"
HloModule step

ENTRY step {
  images = bf16[2,16,16,3]{3,2,1,0} parameter(0), metadata={op_name="images"}
  w = bf16[3,3,3,8]{3,2,1,0} parameter(1), metadata={op_name="net/conv1/kernel"}
  v = bf16[7,7,8,8]{3,2,1,0} parameter(2), metadata={op_name="net/conv2/kernel"}
  a = bf16[2,8,8,8]{3,2,1,0} convolution(images, w), window={size=3x3 stride=2x2 pad=0_1x0_1}, dim_labels=b01f_01io->b01f, metadata={op_name="net/conv1/convolution"}
  b = bf16[2,8,8,8]{3,2,1,0} negate(a)
  ROOT c = bf16[2,8,8,8]{3,2,1,0} convolution(b, v), window={size=7x7 pad=3_3x3_3}, dim_labels=b01f_01io->b01f, metadata={op_name="net/conv2/convolution"}
}
"#;
        assert_eq!(
            run_rules(text, 2, &[("images", 1)]).unwrap_err(),
            "net/conv2: a window of 7 passes over images of 8 that are split in 2 parts of 4: no part may be smaller than the \
             window\nhelp: split in fewer parts, or larger images"
        );
        let smaller =
            text.replace("bf16[7,7,8,8]", "bf16[3,3,8,8]").replace("size=7x7 pad=3_3x3_3", "size=3x3 pad=1_1x1_1");
        let (module, _) = run_rules(&smaller, 2, &[("images", 1)]).unwrap();
        assert!(print(&module, &PrintOptions::default()).contains("sharding={devices=[1,2,1,1]<=[2]}"));
        assert!(
            run_rules(&smaller, 4, &[("images", 2)])
                .unwrap_err()
                .starts_with("net/conv2: a window of 3 passes over images of 8")
        );
    }

    #[test]
    fn partitions_without_a_rule_say_how_one_is_written() {
        assert_eq!(
            run(&Module::new("step"), &Config::new(2, [])).unwrap_err().to_string(),
            "2 partitions, and nothing is split over them\nhelp: say what is, such as --split '*/query/kernel=1'"
        );
    }
}
