//! `bf16scope run` for a module with several devices, on as many of a CPU: arrays are split by its shardings, and
//! results reassembled.

use std::time::Instant;

use anyhow::bail;

use crate::arrays::Inputs;
use bf16scope_hlo::alone::{runs_alone, runs_by_itself, several_devices};
use bf16scope_hlo::devices::{Devices, Placement};
use bf16scope_hlo::module_shards::Shards;
use bf16scope_hlo::proto::decode;
use bf16scope_hlo::{ArrayShape, Literal, Module};
use bf16scope_pjrt::{Arg, Buffer, Client, Executable, Platform};

/// A result: its name, its type, its bytes.
pub(super) type Found = (String, ArrayShape, Vec<u8>);

/// How a module is placed on the devices of a platform: on all of them, or on one.
///
/// For arrays whose sharding the module leaves to the partitioner, see [`shards`], after it is compiled.
///
/// # Errors
/// A module for another number of devices, and the errors of [`runs_alone`].
pub(crate) fn placement(module: &Module, platform: &Platform) -> anyhow::Result<Placement> {
    let n_devices = platform.n_devices().unwrap_or(1) as usize;
    if n_devices == 1 {
        runs_alone(module)?;
        return Ok(Placement::default());
    }
    runs_by_itself(module)?;
    let Placement { devices, is_shardy, .. } = Placement::from_module(module)?;
    if devices.is_one() && several_devices(module).is_none() {
        bail!("the module is for one device, and {platform} has {n_devices}\nhelp: run it with `--device cpu`");
    }
    if devices.n() != n_devices {
        bail!(
            "the module is for {devices}, and {platform} has {n_devices} devices\nhelp: run it with `--device cpu:{}`",
            devices.n()
        );
    }
    Ok(Placement { devices, is_shardy, ..Placement::default() })
}

/// The shardings of a module's arrays over the devices, from its compiled program; from the module itself if the plugin
/// does not show its program.
pub(super) fn shards(module: &Module, devices: Devices, executable: &Executable) -> Shards {
    let compiled = executable.compiled().optimized_program().map_err(|error| error.to_string());
    match compiled.and_then(|bytes| decode::from_bytes(&bytes).map_err(|error| error.to_string())) {
        Ok(compiled) => Shards::from_compiled(module, devices, &compiled),
        Err(error) => {
            tracing::debug!("how the compiled program splits arrays is not known: {error}");
            Shards::from_module(module, devices)
        }
    }
}

/// A module that runs on several devices.
pub(super) struct Over<'m> {
    pub(super) module: &'m Module,
    pub(super) devices: Devices,
    pub(super) shards: Shards,
}

impl Over<'_> {
    /// Puts each argument's shards on the devices, runs the program once on all of them, and reassembles the results.
    pub(super) fn execute(
        &self,
        client: &Client,
        executable: &Executable,
        inputs: &mut Inputs,
    ) -> anyhow::Result<(Vec<Found>, f64)> {
        let _span = tracing::info_span!("execute").entered();
        let shards = &self.shards;
        let mut lists: Vec<Vec<Arg<'_>>> = (0..self.devices.n()).map(|_| Vec::new()).collect();
        for position in 0..inputs.parameters.len() {
            let Literal::Array { shape, bytes } = inputs.literal(position)? else {
                bail!("parameter {position} is not an array: this is a bug of bf16scope");
            };
            for (device, list) in lists.iter_mut().enumerate() {
                let part = shards.parameter(position, &shape, device)?;
                let bytes = part.cut(&bytes, &shape.dims, shape.dtype.n_bytes());
                list.push(Arg::Donate(client.buffer_from_host(&bytes, shape.dtype, &part.dims, device)?));
            }
        }
        let began = Instant::now();
        let results = executable.execute_sharded(lists)?;
        let run_seconds = began.elapsed().as_secs_f64();
        Ok((self.whole(&results)?, run_seconds))
    }

    /// Reassembles results from their shards: from the first replica, and from others whose bits differ.
    fn whole(&self, results: &[Vec<Buffer>]) -> anyhow::Result<Vec<Found>> {
        let entry = self.module.entry();
        let root = entry.instr(entry.root);
        let shards = &self.shards;
        let mut whole_results = Vec::new();
        for (position, shape) in root.shape.leaves().into_iter().enumerate() {
            let Some(array) = shape.as_array() else { bail!("result {position} is {shape}, expected an array") };
            let mut of_devices = (results.iter())
                .map(|results| Ok((results[position].dims()?, results[position].to_host()?)))
                .collect::<anyhow::Result<Vec<_>>>()?;
            let mut first: Option<Vec<u8>> = None;
            for replica in 0..self.devices.replicas {
                let parts_of = |device: usize| std::mem::take(&mut of_devices[device]);
                let bytes = shards.whole((position, array), array.dtype.n_bytes(), replica, parts_of)?;
                let shape = ArrayShape::new(array.dtype, array.dims.clone());
                match &first {
                    None => {
                        whole_results.push((format!("out{position}"), shape, bytes.clone()));
                        first = Some(bytes);
                    }
                    Some(first) if *first == bytes => {}
                    Some(_) => whole_results.push((format!("out{position}.replica{replica}"), shape, bytes)),
                }
            }
        }
        Ok(whole_results)
    }
}
