//! Loops that the backward pass rematerialises: trip by trip from the carried state ([`Graph::scan_rematerialised`]),
//! or in segments ([`Graph::scan_in_segments`]).

use super::scan::n_results;
use super::{BuildError, Graph, Operand, Tensor};
use bf16scope_hlo::Module;
use bf16scope_hlo::ops::{RuleError, SliceDim};
use bf16scope_passes::grad::rematerialise_trips;

impl Graph {
    /// As [`Graph::scan`], but reverse mode keeps only the carried values: the backward pass rematerialises each trip
    /// with the same operations, so gradients are the same.
    ///
    /// # Errors
    /// As [`Graph::scan`].
    #[track_caller]
    pub fn scan_rematerialised(&self, n: u32, body: &Module, operands: &[Operand<'_>]) -> Vec<Tensor> {
        let results = self.scan(n, body, operands);
        if let Some(first) = results.first().filter(|first| !first.is_poison()) {
            self.emitter().with_module_mut(|module| {
                let comp = &mut module.computations[self.emitter().comp().idx()];
                let of_loop = comp.instructions[first.id.idx()].operands[0];
                rematerialise_trips(&mut comp.instructions[of_loop.idx()]);
            });
        }
        results
    }

    /// As [`Graph::scan`], in segments of about √n trips: reverse mode keeps the carried values at the start of each
    /// segment, and rematerialises one segment at a time. Memory grows with √n, and the forward pass is computed twice.
    ///
    /// # Errors
    /// As [`Graph::scan`]; a body that reorders carried values, as for any scan.
    #[track_caller]
    pub fn scan_in_segments(&self, n: u32, body: &Module, operands: &[Operand<'_>]) -> Vec<Tensor> {
        // Counted operands start at another number in each segment.
        let is_counted = operands.iter().any(|operand| matches!(operand, Operand::Counted(_)));
        if n / segment_length(n) < 2 || is_counted || self.results_of("scan", n, body, operands).is_none() {
            return self.scan_rematerialised(n, body, operands);
        }
        let n_carried = operands.iter().filter(|it| matches!(it, Operand::Carried(_))).count();
        let segment = |length| self.segment(length, body, n_carried, (n, operands));
        self.scan_segments(n, &segment, operands).unwrap_or_else(|error| {
            let tensors: Vec<&Tensor> = operands.iter().map(|operand| operand.tensor()).collect();
            self.fail("scan", &tensors, RuleError::new("scan/segment", error.to_string()));
            vec![self.poison(); n_results(body)]
        })
    }

    /// As [`Graph::scan_in_segments`], with a body for a whole segment: `segment(length)` receives `length` trips' part
    /// of each split operand, and stacks its further results over them. Values that it computes before its own loop are
    /// rematerialised with it, and never stored for all trips.
    ///
    /// # Errors
    /// A segment that cannot be built.
    #[track_caller]
    pub(crate) fn scan_segments(
        &self,
        n: u32,
        segment: &dyn Fn(u32) -> Result<Module, BuildError>,
        operands: &[Operand<'_>],
    ) -> Result<Vec<Tensor>, BuildError> {
        let length = segment_length(n);
        let n_segments = n / length;
        let n_carried = operands.iter().filter(|it| matches!(it, Operand::Carried(_))).count();
        let in_segments = n_segments * length;
        let rows = |tensor: &Tensor, from: u32, to: u32| {
            let of_trip = tensor.dims()[0] / i64::from(n);
            let mut dims: Vec<SliceDim> =
                tensor.dims().iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
            (dims[0].start, dims[0].limit) = (of_trip * i64::from(from), of_trip * i64::from(to));
            if (from, to) == (0, n) { tensor.clone() } else { tensor.slice(&dims) }
        };
        // Runs segments from one trip to another, and concatenates their stacked results.
        let run = |number: u32, length: u32, from: u32, carried: &[Tensor]| -> Result<Vec<Tensor>, BuildError> {
            let mut carried = carried.iter();
            let each = operands.iter().map(|operand| match operand {
                Operand::Split(tensor) => (false, rows(tensor, from, from + number * length)),
                Operand::Carried(tensor) | Operand::Counted(tensor) => (true, carried.next().unwrap_or(tensor).clone()),
            });
            let parts: Vec<(bool, Tensor)> = each.collect();
            let each = parts.iter().map(|(is_carried, it)| match is_carried {
                true => Operand::Carried(it),
                false => Operand::Split(it),
            });
            let parts: Vec<Operand<'_>> = each.collect();
            let mut results = self.scan_rematerialised(number, &segment(length)?, &parts);
            for stacked in results.iter_mut().skip(n_carried).filter(|stacked| !stacked.is_poison()) {
                let dims = stacked.dims();
                *stacked = stacked.reshape([&[dims[0] * dims[1]], &dims[2..]].concat());
            }
            Ok(results)
        };
        let mut results = run(n_segments, length, 0, &[])?;
        if in_segments < n && !results.iter().any(Tensor::is_poison) {
            let tail = run(1, n - in_segments, in_segments, &results[..n_carried])?;
            let (carried, stacked) = tail.split_at(n_carried);
            let joined = results[n_carried..].iter().zip(stacked);
            let joined: Vec<Tensor> = joined.map(|(before, after)| Tensor::concatenate(&[before, after], 0)).collect();
            results = [carried, &joined[..]].concat();
        }
        Ok(results)
    }

    /// A segment of `length` trips as a body: unchanged values are passed through.
    fn segment(
        &self,
        length: u32,
        body: &Module,
        n_carried: usize,
        (n, operands): (u32, &[Operand<'_>]),
    ) -> Result<Module, BuildError> {
        let g = Graph::new("segment").placed_as(self);
        let inputs: Vec<Tensor> = operands
            .iter()
            .enumerate()
            .map(|(number, operand)| {
                let tensor = operand.tensor();
                let mut dims = tensor.dims();
                if let Operand::Split(_) = operand {
                    dims[0] = dims[0] / i64::from(n) * i64::from(length);
                }
                g.input(&format!("operand{number}"), tensor.dtype(), dims)
            })
            .collect();
        let segment_operands: Vec<Operand<'_>> = operands
            .iter()
            .zip(&inputs)
            .map(|(operand, input)| match operand {
                Operand::Split(_) => Operand::Split(input),
                Operand::Carried(_) | Operand::Counted(_) => Operand::Carried(input),
            })
            .collect();
        let mut results = g.scan(length, body, &segment_operands);
        let entry = body.entry();
        let given_on = entry.instr(entry.root).operands.iter().take(n_carried).enumerate();
        let parameters = entry.parameters();
        let carried: Vec<usize> =
            (0..operands.len()).filter(|&number| matches!(operands[number], Operand::Carried(_))).collect();
        for (at, id) in given_on {
            if parameters.get(carried[at]) == Some(id) {
                results[at] = inputs[carried[at]].clone();
            }
        }
        let names: Vec<String> = (0..results.len()).map(|number| format!("result{number}")).collect();
        let outputs: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&results).collect();
        g.finish(&outputs).map(|program| program.module)
    }
}

/// The number of trips in a segment.
fn segment_length(n: u32) -> u32 {
    f64::from(n).sqrt().round().max(1.0) as u32
}
