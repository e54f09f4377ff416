//! Adding and removing parameters of a module's entry, with everything in the module that refers to a parameter's
//! number.

use super::proto::messages::{HloModuleProto, OpSharding};
use super::{InstrId, Module, Op, Shape};
use prost::Message as _;

const PROPAGATION: &str = "allow_spmd_sharding_propagation_to_parameters";

impl Module {
    /// Removes some of the `n_before` parameters of the entry, whose instructions were replaced before: the others are
    /// renumbered in their order, and the removed ones lose their aliases and donors. Returns how many aliases and
    /// donors were dropped.
    pub fn drop_parameters(&mut self, n_before: usize, is_dropped: impl Fn(i64) -> bool) -> usize {
        let mut next = 0;
        let renumbered: Vec<Option<i64>> = (0..n_before as i64)
            .map(|number| {
                let is_kept = !is_dropped(number);
                next += i64::from(is_kept);
                is_kept.then_some(next - 1)
            })
            .collect();
        let new = |number: i64| usize::try_from(number).ok().and_then(|at| renumbered.get(at).copied().flatten());
        let n_tied = self.input_output_alias.len() + self.buffer_donors.len();
        self.input_output_alias
            .retain_mut(|alias| new(alias.parameter_number).map(|number| alias.parameter_number = number).is_some());
        self.buffer_donors.retain_mut(|(parameter, _)| new(*parameter).map(|number| *parameter = number).is_some());
        if let Some(layout) = &mut self.entry_layout {
            keep(&mut layout.parameters, &renumbered);
        }
        self.with_flags(|flags| keep(flags, &renumbered));
        self.with_message(|proto| {
            keep(&mut proto.spmd_parameters_shardings, &renumbered);
            if let Some(shape) = &mut proto.host_program_shape {
                keep(&mut shape.parameter_names, &renumbered);
            }
        });
        let entry = self.entry;
        for instr in &mut self.computations[entry.idx()].instructions {
            if let Op::Parameter { number, .. } = &mut instr.op
                && let Some(new) = new(*number)
            {
                *number = new;
            }
        }
        n_tied - self.input_output_alias.len() - self.buffer_donors.len()
    }

    /// Turns an instruction of the entry into a parameter, behind the others; returns its number.
    pub fn make_parameter(&mut self, id: InstrId) -> i64 {
        let number = self.entry().parameters().len() as i64;
        let entry = self.entry;
        let instr = &mut self.computations[entry.idx()].instructions[id.idx()];
        instr.op = Op::parameter(number);
        let (shape, name): (Shape, String) = (instr.shape.clone(), instr.name.clone());
        if let Some(layout) = &mut self.entry_layout {
            layout.parameters.push(shape.with_default_layout());
        }
        // A single flag applies to all.
        self.with_flags(|flags| {
            if flags.len() > 1 {
                flags.push(true)
            }
        });
        self.with_message(|proto| {
            if !proto.spmd_parameters_shardings.is_empty() {
                // Replicated.
                proto.spmd_parameters_shardings.push(OpSharding::default());
            }
            if let Some(shape) = &mut proto.host_program_shape
                && !shape.parameter_names.is_empty()
            {
                shape.parameter_names.push(name.clone());
            }
        });
        number
    }

    /// Updates the list of parameters that a partitioner may shard freely, if the module has one.
    fn with_flags(&mut self, change: impl FnOnce(&mut Vec<bool>)) {
        let Some((_, text)) = self.unmodelled.attributes.iter_mut().find(|(name, _)| name == PROPAGATION) else {
            return;
        };
        let inside = text.trim().trim_start_matches('{').trim_end_matches('}');
        let flags: Result<Vec<bool>, _> = inside.split(',').map(|flag| flag.trim().parse()).collect();
        if let Ok(mut flags) = flags
            && flags.len() > 1
        {
            change(&mut flags);
            *text = format!("{{{}}}", flags.iter().map(bool::to_string).collect::<Vec<_>>().join(","));
        }
    }

    /// Updates the unmodelled fields of a proto.
    fn with_message(&mut self, change: impl FnOnce(&mut HloModuleProto)) {
        if let Ok(mut proto) = HloModuleProto::decode(self.unmodelled.proto.as_slice())
            && !self.unmodelled.proto.is_empty()
        {
            change(&mut proto);
            self.unmodelled.proto = proto.encode_to_vec();
        }
    }
}

/// Keeps the entries whose index has a new number; a list of another length does not have one entry per parameter.
fn keep<T>(all: &mut Vec<T>, renumbered: &[Option<i64>]) {
    if all.len() == renumbered.len() {
        let mut numbers = renumbered.iter();
        all.retain(|_| numbers.next().is_some_and(Option::is_some));
    }
}
