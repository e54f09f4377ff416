//! Compares the results of a module over several devices shard by shard: each device's shard in f32 with its shard when
//! lowered.

use std::sync::Arc;

use serde::Serialize;

use super::device::{fetch, in_dtype, prove_rounding};
use super::judge::Judge;
use super::{AuditError, Config, ResultChoice, ResultRow, difference, flush, refuse_random, result_rows, taps};
use bf16scope_hlo::alone::runs_by_itself;
use bf16scope_hlo::devices::Placement;
use bf16scope_hlo::module_shards::{Shards, without_shardings};
use bf16scope_hlo::numerics::compare::Errors;
use bf16scope_hlo::proto::{decode, encode};
use bf16scope_hlo::shards::ShardBox;
use bf16scope_hlo::{ArrayShape, Literal, Module, Shape, verify};
use bf16scope_passes::amp::{self, Policy};
use bf16scope_passes::as_tpu::{self, TpuArithmetic};
use bf16scope_passes::widen;
use bf16scope_pjrt::{Arg, Client, CompileOptions};

/// The comparison of one device's shard of a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ShardRow {
    /// The device; the first of those with the same shard.
    pub device: usize,
    /// The start of the shard in the whole array.
    pub offsets: Vec<i64>,
    /// Its dims, without padding.
    pub dims: Vec<i64>,
    /// Its error; `None` if it is not floating.
    pub errors: Option<Errors>,
    /// For a result that is not floating, the number of elements that differ.
    pub n_differing: u64,
}

/// Runs a form of a module over its devices: the form, its inputs, and whether subnormals are flushed.
type RunOver<'r> = dyn Fn(&Module, &[Literal], bool) -> Result<Vec<Literal>, AuditError> + 'r;

/// Audits the results of one module over several devices, on one set of inputs.
#[derive(Debug)]
pub struct ShardedAuditor<'m> {
    client: Client,
    module: &'m Module,
    placement: Placement,
    literals: &'m [Literal],
    config: Config,
    /// Results of the f32 module, assembled from their shards: those of every replica, one after another.
    reference: Vec<Literal>,
    judge: Arc<Judge>,
}

impl<'m> ShardedAuditor<'m> {
    /// Verifies that excess precision is off, and runs the f32 module over the devices: each gets its shard of the
    /// whole inputs. The module also runs in f64, on one device if only shardings split it.
    ///
    /// # Errors
    /// A module that does not verify, draws random numbers or waits for another program; inputs that do not fit its
    /// parameters, or have an unsupported sharding; a pattern that matches no result; a plugin that keeps excess
    /// precision, or fails.
    pub fn new(
        client: &Client,
        module: &'m Module,
        placement: &Placement,
        inputs: &'m [Literal],
        config: Config,
        choice: &ResultChoice,
    ) -> Result<ShardedAuditor<'m>, AuditError> {
        let judge = |run: &RunOver<'_>| match without_shardings(module) {
            Some(alone) => Judge::new(client, &alone, inputs, choice),
            None => {
                let wide = widen::run(module, &widen::Config).map_err(|error| error.to_string());
                let inputs: Vec<Literal> = inputs.iter().map(widen::widened_literal).collect();
                let exact = wide.and_then(|(wide, _)| run(&wide, &inputs, false).map_err(|error| error.to_string()));
                Judge::beside(module, choice, exact)
            }
        };
        ShardedAuditor::judged_by(client, module, placement, inputs, config, |run| judge(run).map(Arc::new))
    }

    /// The same with a judge from `judge`, which receives a function that runs a module over the devices.
    pub(super) fn judged_by(
        client: &Client,
        module: &'m Module,
        placement: &Placement,
        inputs: &'m [Literal],
        config: Config,
        judge: impl FnOnce(&RunOver<'_>) -> Result<Arc<Judge>, AuditError>,
    ) -> Result<ShardedAuditor<'m>, AuditError> {
        verify(module).map_err(AuditError::Invalid)?;
        runs_by_itself(module)?;
        refuse_random(module)?;
        prove_rounding(client)?;
        let run = |module: &Module, inputs: &[Literal], flush_subnormals| {
            over_devices(client, module, placement, inputs, flush_subnormals)
        };
        let reference = run(module, inputs, false)?;
        let judge = judge(&run)?;
        let (client, placement) = (client.clone(), placement.clone());
        Ok(ShardedAuditor { client, module, placement, literals: inputs, config, reference, judge })
    }

    /// Lowers the module by this policy, and compares each device's shard of each result. Equal shards of a replica's
    /// devices count once.
    ///
    /// # Errors
    /// A policy that contradicts itself, or a plugin that fails.
    pub fn results(&self, policy: &Policy) -> Result<Vec<ResultRow>, AuditError> {
        let (lowered, _) = amp::run(self.module, policy)?;
        self.compare(match self.config.arithmetic {
            Some(arithmetic) => as_tpu::run(&lowered, &arithmetic)?.0,
            None => lowered,
        })
    }

    /// Compares the f32 module with itself in a TPU's arithmetic: what f32 loses there without any lowering.
    ///
    /// # Errors
    /// A plugin that fails.
    pub fn f32_results_as(&self, arithmetic: TpuArithmetic) -> Result<Vec<ResultRow>, AuditError> {
        self.compare(as_tpu::run(self.module, &arithmetic)?.0)
    }

    /// Why f32's own error is unknown.
    pub fn why_no_f64(&self) -> Option<&str> {
        self.judge.why_no_f64()
    }

    fn compare(&self, mut form: Module) -> Result<Vec<ResultRow>, AuditError> {
        let flush_subnormals = self.config.flush_subnormals;
        if flush_subnormals {
            flush::everywhere(&mut form);
        }
        let measured = over_devices(&self.client, &form, &self.placement, self.literals, flush_subnormals)?;
        let mut rows = result_rows(&self.judge, taps::result_makers(self.module), &self.reference, &measured);
        let shards = Shards::from_module(self.module, self.placement.devices);
        let arrays = result_arrays(self.module);
        for row in &mut rows {
            let (array, index) = (arrays[row.index], row.index);
            row.shape = array.to_string();
            for (device, part) in self.distinct(&shards, index, array)? {
                let replica = device / self.placement.devices.partitions;
                let [reference, measured] =
                    [&self.reference, &measured].map(|all| cut(&all[index], array, replica, &part));
                let (errors, n_differing) = difference(&reference, &measured);
                let ShardBox { offsets, dims } = part;
                row.shards.push(ShardRow { device, offsets, dims, errors, n_differing });
            }
        }
        self.judge.judge(&mut rows, &self.reference, &measured);
        Ok(rows)
    }

    /// The shards of a result without padding, each with the first device that has it.
    fn distinct(
        &self,
        shards: &Shards,
        index: usize,
        array: &ArrayShape,
    ) -> Result<Vec<(usize, ShardBox)>, AuditError> {
        let mut distinct: Vec<(usize, ShardBox)> = Vec::new();
        for device in 0..self.placement.devices.n() {
            let ShardBox { offsets, dims } = shards.result(index, array, device)?;
            let inside = offsets.iter().zip(&dims).zip(&array.dims);
            let dims: Vec<i64> = inside.map(|((&offset, &dim), &whole)| dim.min(whole - offset).max(0)).collect();
            let (part, replica) = (ShardBox { offsets, dims }, device / self.placement.devices.partitions);
            let is_known = |(other, known): &(usize, ShardBox)| {
                other / self.placement.devices.partitions == replica && *known == part
            };
            let is_padding = part.dims.contains(&0) && !array.dims.contains(&0);
            if !is_padding && !distinct.iter().any(is_known) {
                distinct.push((device, part));
            }
        }
        Ok(distinct)
    }
}

/// The whole shapes of a module's results.
fn result_arrays(module: &Module) -> Vec<&ArrayShape> {
    module.entry().result_shape().leaves().into_iter().filter_map(Shape::as_array).collect()
}

/// Cuts a shard out of one replica's array, from the arrays of all replicas.
fn cut(all: &Literal, array: &ArrayShape, replica: usize, part: &ShardBox) -> Literal {
    let Literal::Array { shape, bytes } = all else { return all.clone() };
    let width = shape.dtype.n_bytes();
    let n_bytes = array.n_elements() as usize * width;
    let bytes = part.cut(&bytes[replica * n_bytes..][..n_bytes], &array.dims, width);
    Literal::Array { shape: ArrayShape::new(shape.dtype, part.dims.clone()), bytes }
}

/// Runs a form of a module over the devices, and assembles its results from their shards: those of every replica, one
/// after another.
fn over_devices(
    client: &Client,
    module: &Module,
    placement: &Placement,
    literals: &[Literal],
    flush_subnormals: bool,
) -> Result<Vec<Literal>, AuditError> {
    verify(module).map_err(AuditError::Broken)?;
    let entry = module.entry();
    let parameters = entry.parameters();
    let leaves: Vec<(&str, &Shape)> = (parameters.iter())
        .flat_map(|&id| entry.instr(id).shape.leaves().into_iter().map(move |leaf| (&*entry.instr(id).name, leaf)))
        .collect();
    if leaves.len() != literals.len() {
        return Err(AuditError::InputCount { measured: literals.len(), expected: leaves.len() });
    }
    let parameter_is_tupled = parameters.iter().any(|&id| matches!(entry.instr(id).shape, Shape::Tuple(_)));
    let options = CompileOptions { parameter_is_tupled, ..CompileOptions::over(placement) };
    let executable = client.compile(&encode::to_bytes(module)?, &options)?;
    // Shardings left to the partitioner are read from the compiled program, if the plugin provides it.
    let compiled = executable.compiled().optimized_program().ok().and_then(|bytes| decode::from_bytes(&bytes).ok());
    let shards = match &compiled {
        Some(compiled) => Shards::from_compiled(module, placement.devices, compiled),
        None => Shards::from_module(module, placement.devices),
    };
    let mut lists: Vec<Vec<Arg<'_>>> = (0..placement.devices.n()).map(|_| Vec::new()).collect();
    for (number, (input, (name, wanted))) in literals.iter().zip(leaves).enumerate() {
        let unfit = || AuditError::InputType {
            number,
            parameter: name.to_string(),
            measured: input.shape().without_layout().to_string(),
            expected: wanted.without_layout().to_string(),
        };
        let (Shape::Array(wanted), Literal::Array { shape, bytes }) = (wanted, input) else { return Err(unfit()) };
        if shape.dims != wanted.dims {
            return Err(unfit());
        }
        let bytes = in_dtype(bytes, shape.dtype, wanted.dtype, flush_subnormals).ok_or_else(unfit)?;
        for (device, list) in lists.iter_mut().enumerate() {
            let part = shards.parameter(number, wanted, device)?;
            let bytes = part.cut(&bytes, &wanted.dims, wanted.dtype.n_bytes());
            list.push(Arg::Donate(client.buffer_from_host(&bytes, wanted.dtype, &part.dims, device)?));
        }
    }
    let outputs = executable.execute_sharded(lists)?;
    result_arrays(module)
        .into_iter()
        .enumerate()
        .map(|(index, array)| {
            let mut of_devices =
                (outputs.iter()).map(|outputs| fetch(&outputs[index])).collect::<Result<Vec<_>, _>>()?;
            let mut all = Vec::new();
            for replica in 0..placement.devices.replicas {
                let take_output = |device: usize| match std::mem::replace(&mut of_devices[device], Literal::Token) {
                    Literal::Array { shape, bytes } => (shape.dims, bytes),
                    Literal::Tuple(_) | Literal::Token => (Vec::new(), Vec::new()),
                };
                all.extend(shards.whole((index, array), array.dtype.n_bytes(), replica, take_output)?);
            }
            let mut dims = array.dims.clone();
            if placement.devices.replicas > 1 {
                dims.insert(0, placement.devices.replicas as i64);
            }
            Ok(Literal::Array { shape: ArrayShape::new(array.dtype, dims), bytes: all })
        })
        .collect()
}
