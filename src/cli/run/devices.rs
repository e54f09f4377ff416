//! `bf16scope run` of a module for several devices, on as many of a CPU: arrays are split as its shardings say, and results
//! put together again.

use std::time::Instant;

use anyhow::{Context as _, bail};

use crate::cli::arrays::Inputs;
use crate::hlo::alone::{runs_alone, runs_by_itself, several_devices};
use crate::hlo::devices::{Devices, Placement};
use crate::hlo::shards::ShardBox;
use crate::hlo::{ArrayShape, Literal, Module, Shape, Sharding};
use crate::pjrt::{Arg, Buffer, Client, Executable, Platform};

/// A result: its name, its type, its bytes.
pub(super) type Found = (String, ArrayShape, Vec<u8>);

/// How a module lies over the devices of a platform: over all of them, or on one.
///
/// Neither arguments nor results are left to the partitioner here: what the module says of none is whole on each device, so
/// that it is known what each device holds.
///
/// # Errors
/// A module for another number of devices, and what [`runs_alone`] refuses.
pub(super) fn placement(module: &Module, platform: &Platform) -> anyhow::Result<Placement> {
    let n_devices = platform.n_devices().unwrap_or(1) as usize;
    if n_devices == 1 {
        runs_alone(module)?;
        return Ok(Placement::default());
    }
    runs_by_itself(module)?;
    let Placement { devices, is_shardy, .. } = Placement::of(module)?;
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

/// A module that runs over devices.
pub(super) struct Over<'m> {
    pub(super) module: &'m Module,
    pub(super) devices: Devices,
}

impl Over<'_> {
    /// Gives each device its part of each argument, runs the program once on all of them, and puts the results together.
    pub(super) fn execute(
        &self,
        client: &Client,
        executable: &Executable,
        inputs: &mut Inputs,
    ) -> anyhow::Result<(Vec<Found>, f64)> {
        let _span = tracing::info_span!("execute").entered();
        let shardings = self.of_arguments();
        let mut lists: Vec<Vec<Arg<'_>>> = (0..self.devices.n()).map(|_| Vec::new()).collect();
        for position in 0..inputs.parameters.len() {
            let Literal::Array { shape, bytes } = inputs.literal(position)? else {
                bail!("parameter {position} is not an array: this is a bug of bf16scope");
            };
            for (device, list) in lists.iter_mut().enumerate() {
                let what = || format!("parameter {position} ({shape})");
                let part = self.part(shardings.get(position).and_then(Option::as_ref), &shape.dims, device, what)?;
                let bytes = part.cut(&bytes, &shape.dims, shape.dtype.n_bytes());
                list.push(Arg::Donate(client.buffer_from_host(&bytes, shape.dtype, &part.dims, device)?));
            }
        }
        let began = Instant::now();
        let results = executable.execute_sharded(lists)?;
        let run_seconds = began.elapsed().as_secs_f64();
        Ok((self.whole(&results)?, run_seconds))
    }

    /// The part of an array that a device holds. Devices go by replica, those of one replica's partitions side by side.
    fn part(
        &self,
        sharding: Option<&Sharding>,
        dims: &[i64],
        device: usize,
        what: impl Fn() -> String,
    ) -> anyhow::Result<ShardBox> {
        // Only partitions split anything: a replica holds all of it.
        let partition = (device % self.devices.partitions) as i64;
        let sharding = sharding.filter(|_| self.devices.partitions > 1).unwrap_or(&Sharding::Replicated);
        sharding.shard(dims, partition).with_context(|| {
            format!(
                "{} lies over the devices in a way that is not followed here\nhelp: give it a sharding in tiles, or none",
                what()
            )
        })
    }

    /// Of each array that the program takes, how it lies; none where nothing is said.
    fn of_arguments(&self) -> Vec<Option<Sharding>> {
        let entry = self.module.entry();
        let parameters = entry.parameters().into_iter().map(|id| entry.instr(id));
        parameters.flat_map(|instr| per_leaf(instr.sharding.as_deref(), &instr.shape)).collect()
    }

    /// Results put together of their parts: of the first replica, and of the others where they have other bits.
    fn whole(&self, results: &[Vec<Buffer>]) -> anyhow::Result<Vec<Found>> {
        let entry = self.module.entry();
        let root = entry.instr(entry.root);
        let shardings = per_leaf(root.sharding.as_deref(), &root.shape);
        let mut found = Vec::new();
        for (position, shape) in root.shape.leaves().into_iter().enumerate() {
            let Some(array) = shape.as_array() else { bail!("result {position} is {shape}, expected an array") };
            let n_bytes = array.dtype.n_bytes();
            let mut first: Option<Vec<u8>> = None;
            for replica in 0..self.devices.replicas {
                let mut bytes = vec![0; array.n_elements() as usize * n_bytes];
                for partition in 0..self.devices.partitions {
                    let device = replica * self.devices.partitions + partition;
                    let what = || format!("result {position} ({array})");
                    let part = self.part(shardings[position].as_ref(), &array.dims, device, what)?;
                    let buffer = &results[device][position];
                    let dims = buffer.dims()?;
                    if dims != part.dims {
                        bail!(
                            "result {position} ({array}): device {device} gave {dims:?}, expected {:?}, its part: this is a bug \
                             of bf16scope, or of the plugin's partitioner",
                            part.dims
                        );
                    }
                    part.place(&buffer.to_host()?, &mut bytes, &array.dims, n_bytes);
                }
                let shape = ArrayShape::new(array.dtype, array.dims.clone());
                match &first {
                    None => {
                        found.push((format!("out{position}"), shape, bytes.clone()));
                        first = Some(bytes);
                    }
                    Some(first) if *first == bytes => {}
                    Some(_) => found.push((format!("out{position}.replica{replica}"), shape, bytes)),
                }
            }
        }
        Ok(found)
    }
}

/// The sharding of each of a value's arrays: a tuple's own, or one for all.
fn per_leaf(sharding: Option<&Sharding>, shape: &Shape) -> Vec<Option<Sharding>> {
    let n = shape.leaves().len();
    match sharding {
        Some(Sharding::Tuple(all)) if all.len() == n => all.iter().cloned().map(Some).collect(),
        Some(Sharding::Tuple(_)) | None => vec![None; n],
        Some(one) => vec![Some(one.clone()); n],
    }
}
