//! Repairs of a module whose computations a pass wrote anew: names, and statements about the entry's buffers.

use super::{CompId, Computation, Module, Shape};
use std::collections::{BTreeMap, BTreeSet, HashSet};

impl Module {
    /// A module with other computations and all statements of this one, but no schedule.
    pub fn with_computations(&self, computations: Vec<Computation>, entry: CompId) -> Module {
        let mut module = Module::new(self.name.clone());
        (module.computations, module.entry, module.next_name) = (computations, entry, self.next_name);
        module.input_output_alias.clone_from(&self.input_output_alias);
        module.buffer_donors.clone_from(&self.buffer_donors);
        module.entry_layout.clone_from(&self.entry_layout);
        module.stack_frames.clone_from(&self.stack_frames);
        module.frontend_attributes.clone_from(&self.frontend_attributes);
        module.unmodelled.clone_from(&self.unmodelled);
        module
    }

    /// Renames every computation and instruction whose name an earlier one has, to the first free `name.1`, `name.2`, …
    pub fn make_names_unique(&mut self) {
        let new_names = renamed(self.computations.iter().map(|computation| &computation.name[..]));
        for (at, name) in new_names {
            self.computations[at].name = name;
        }
        let instructions = self.computations.iter().flat_map(|computation| &computation.instructions);
        let mut new_names = renamed(instructions.map(|instr| &instr.name[..])).into_iter().peekable();
        let instructions = self.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
        for (at, instr) in instructions.enumerate() {
            if let Some((_, name)) = new_names.next_if(|(renamed, _)| *renamed == at) {
                instr.name = name;
            }
        }
    }

    /// Fits statements about the entry's buffers to the dtypes of its parameters and result: layouts take these, and
    /// aliases of buffers whose types differ are dropped.
    pub fn fit_boundary(&mut self) {
        let entry = self.entry();
        let parameters: Vec<Shape> = entry.parameters().iter().map(|&id| entry.instr(id).shape.clone()).collect();
        let result = entry.result_shape().clone();
        if let Some(layout) = &mut self.entry_layout {
            layout.parameters.iter_mut().zip(&parameters).for_each(|(layout, shape)| layout.take_dtypes(shape));
            layout.result.take_dtypes(&result);
        }
        let part = |shape: &Shape, index: &[i64]| -> Option<Shape> {
            index.iter().try_fold(shape, |shape, &i| shape.as_tuple()?.get(usize::try_from(i).ok()?)).cloned()
        };
        self.input_output_alias.retain(|alias| {
            let parameter = usize::try_from(alias.parameter_number).ok().and_then(|number| parameters.get(number));
            let parameter = parameter.and_then(|shape| part(shape, &alias.parameter_index));
            match (parameter, part(&result, &alias.output_index)) {
                (Some(parameter), Some(output)) => parameter.is_compatible(&output),
                (None, _) | (_, None) => true,
            }
        });
    }
}

/// New names for all but the first of equal names, with their positions, in order.
fn renamed<'n>(names: impl Iterator<Item = &'n str>) -> Vec<(usize, String)> {
    let names: Vec<&str> = names.collect();
    let mut taken: HashSet<&str> = HashSet::with_capacity(names.len());
    let twice: Vec<usize> = (0..names.len()).filter(|&at| !taken.insert(names[at])).collect();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut new_names: BTreeSet<String> = BTreeSet::new();
    let mut rename = |at: usize| {
        let count = counts.entry(names[at]).or_insert(0);
        loop {
            *count += 1;
            let candidate = format!("{}.{count}", names[at]);
            if !taken.contains(&candidate[..]) && new_names.insert(candidate.clone()) {
                return (at, candidate);
            }
        }
    };
    twice.into_iter().map(&mut rename).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Shape, text};

    const TEXT: &str = "HloModule m, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }, \
        entry_computation_layout={(f32[2]{0:T(256)}, f32[2]{0})->(f32[2]{0}, f32[2]{0})}\n\n\
        ENTRY m {\n  x = f32[2] parameter(0)\n  y = f32[2] parameter(1)\n  x.1 = f32[2] negate(x)\n  \
        ROOT r = (f32[2], f32[2]) tuple(x.1, y)\n}\n";

    #[test]
    fn equal_names_get_the_next_free_number() {
        let mut module = text::parse(TEXT, "m").unwrap();
        for nth in 1..4 {
            module.computations[0].instructions[nth].name = if nth == 2 { "x.1" } else { "x" }.to_string();
        }
        module.make_names_unique();
        let names: Vec<&str> = module.entry().instructions.iter().map(|instr| &instr.name[..]).collect();
        assert_eq!(names, ["x", "x.2", "x.1", "x.3"]);
    }

    #[test]
    fn other_computations_keep_the_modules_statements() {
        let mut module = text::parse(TEXT, "m").unwrap();
        module.is_scheduled = true;
        let copy = module.with_computations(module.computations.clone(), module.entry);
        module.is_scheduled = false;
        assert_eq!(copy, module);
    }

    #[test]
    fn layouts_and_aliases_fit_the_entry() {
        let mut module = text::parse(TEXT, "m").unwrap();
        let narrow = |shape: &Shape| shape.with_dtype(crate::DType::F32, crate::DType::BF16, |place| place == 0);
        let entry = &mut module.computations[0];
        entry.instructions[0].shape = narrow(&entry.instructions[0].shape);
        module.fit_boundary();
        let layout = module.entry_layout.as_ref().unwrap();
        assert_eq!(layout.parameters[0].to_string(), "bf16[2]{0}");
        assert_eq!(layout.result.to_string(), "(f32[2]{0}, f32[2]{0})");
        let aliases: Vec<i64> = module.input_output_alias.iter().map(|alias| alias.parameter_number).collect();
        assert_eq!(aliases, [1]);
        module.computations[0].instructions[3].shape = narrow(&module.entry().instructions[3].shape);
        module.fit_boundary();
        assert_eq!(module.entry_layout.unwrap().result.to_string(), "(bf16[2]{0}, f32[2]{0})");
    }
}
