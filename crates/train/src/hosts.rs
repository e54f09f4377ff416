//! The hosts of a slice: one process runs on each, and all run the same program at the same time.
//!
//! The hosts are connected only through the devices. The plugin tells which host this is and which devices belong to
//! which host; replicas are numbered host by host, so each host reads one contiguous part of every batch. What hosts
//! must know of each other (losses, a request to stop, a failed write on the first) also goes through the devices, as
//! an all-gather. Every host must gather at the same time and in the same order: therefore every decision that only one
//! host can make is shared before any host acts on it.

use super::error::{TrainError, TrainErrorKind, TrainPlace};
use super::mesh::Mesh;
use bf16scope_hlo::{DType, proto, verify};
use bf16scope_model::graph::{Graph, Replicas, VariableShard};
use bf16scope_pjrt::{Arg, Buffer, Client, CompileOptions, Executable, Processes};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The replicas that run on this host, and their devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    /// The index of this host.
    pub host: u32,
    /// The number of hosts that have replicas.
    pub n_hosts: u32,
    /// The number of replicas on all hosts.
    pub n_replicas: u32,
    /// The replicas on this host.
    pub replicas: Range<usize>,
    /// The number of devices of each replica.
    pub n_partitions: u32,
    /// The axis along which a replica's devices split an array, by the array's name.
    pub split: Arc<BTreeMap<String, usize>>,
    /// The position in the client's list of each device of this host's replicas, replica by replica.
    positions: Vec<usize>,
    /// Ids of the devices of all replicas; empty if the plugin chooses, on one host.
    device_ids: Vec<i32>,
}

impl Site {
    /// The site of a mesh's replicas on this host.
    ///
    /// # Errors
    /// More replicas than devices, or hosts that cannot have equally many.
    pub fn for_mesh(client: &Client, mesh: Mesh) -> Result<Site, TrainError> {
        let ids: Vec<i32> = client.devices().iter().map(|device| device.description().id).collect();
        match mesh.model.get() {
            1 => Site::among(client.processes(), &ids, mesh.data),
            n_partitions => Site::split(client.processes(), ids.len(), mesh.data.get(), n_partitions),
        }
    }

    /// The site of replicas with several devices each, all of one process.
    fn split(processes: &Processes, n_here: usize, n_replicas: u32, n_partitions: u32) -> Result<Site, TrainError> {
        let n_devices = n_replicas as usize * n_partitions as usize;
        if processes.rank().1 > 1 {
            let n_hosts = processes.rank().1;
            let text = format!(
                "the mesh splits replicas (`model`), and the slice has {n_hosts} hosts: that runs on the devices of one host \
                 so far"
            );
            return Err(device_error(text).with_help("leave `model` out"));
        }
        if n_devices > n_here {
            return Err(too_few_devices(n_devices, n_here));
        }
        Ok(Site {
            host: 0,
            n_hosts: 1,
            n_replicas,
            replicas: 0..n_replicas as usize,
            n_partitions,
            split: Arc::default(),
            positions: (0..n_devices).collect(),
            device_ids: Vec::new(),
        })
    }

    /// The same from a client's description: all devices, and the ids of its own in its order.
    fn among(processes: &Processes, own_ids: &[i32], n: NonZeroU32) -> Result<Site, TrainError> {
        let mut ids_of: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for device in &processes.devices {
            ids_of.entry(device.process_idx).or_default().push(device.id);
        }
        let (n_replicas, n_hosts) = (n.get() as usize, ids_of.len());
        if n_hosts <= 1 {
            let positions = (0..n_replicas).collect();
            return match n_replicas <= own_ids.len() {
                true => Ok(Site {
                    host: 0,
                    n_hosts: 1,
                    n_replicas: n.get(),
                    replicas: 0..n_replicas,
                    n_partitions: 1,
                    split: Arc::default(),
                    positions,
                    device_ids: Vec::new(),
                }),
                false => Err(too_few_devices(n_replicas, own_ids.len())),
            };
        }
        let n_each = ids_of.values().map(Vec::len).min().unwrap_or(0);
        let n_here = n_replicas / n_hosts;
        if !n_replicas.is_multiple_of(n_hosts) || n_here > n_each {
            let text = format!(
                "the mesh has {n_replicas} replica{}, and the slice has {n_hosts} hosts of {n_each} devices each, which share \
                 them equally",
                if n_replicas == 1 { "" } else { "s" }
            );
            let help = format!("use --devices {}, or fewer on each host", n_hosts * n_each);
            return Err(device_error(text).with_help(help));
        }
        ids_of.values_mut().for_each(|ids| ids.sort_unstable());
        let unknown = || {
            let known: Vec<String> = ids_of.keys().map(i32::to_string).collect();
            let process = processes.own_idx;
            let text = format!(
                "the plugin says that this is process {process}, and its devices are of processes {}",
                known.join(", ")
            );
            device_error(text).with_help("check TPU_WORKER_ID and TPU_PROCESS_BOUNDS, where they are set")
        };
        let host = ids_of.keys().position(|&process| process == processes.own_idx).ok_or_else(unknown)?;
        let device_ids: Vec<i32> = ids_of.values().flat_map(|ids| &ids[..n_here]).copied().collect();
        let replicas = host * n_here..(host + 1) * n_here;
        let position = |id: &i32| own_ids.iter().position(|other| other == id).ok_or_else(unknown);
        let positions = device_ids[replicas.clone()].iter().map(position).collect::<Result<_, _>>()?;
        Ok(Site {
            host: host as u32,
            n_hosts: n_hosts as u32,
            n_replicas: n.get(),
            replicas,
            n_partitions: 1,
            split: Arc::default(),
            positions,
            device_ids,
        })
    }

    /// The site of a program on one device: the first of this process, independent of other hosts.
    pub fn alone(client: &Client) -> Site {
        let is_one = client.processes().devices.len() == client.devices().len();
        let first = client.devices().first().map(|device| device.description().id);
        let device_ids = first.into_iter().filter(|_| !is_one).collect();
        let (positions, split) = (vec![0], Arc::default());
        Site { host: 0, n_hosts: 1, n_replicas: 1, replicas: 0..1, n_partitions: 1, split, positions, device_ids }
    }

    /// The position in the client's list of this host's device `number`, counted from 0.
    pub fn device(&self, number: usize) -> usize {
        self.positions[number]
    }

    /// The number of devices of this host's replicas.
    pub fn n_devices_here(&self) -> usize {
        self.positions.len()
    }

    /// How the devices of a replica split an array of this name and these dims, if they do.
    pub fn part(&self, name: &str, dims: &[i64]) -> Option<VariableShard> {
        let n = NonZeroU32::new(self.n_partitions)?;
        let &axis = self.split.get(name)?;
        Some(VariableShard { axis, whole: *dims.get(axis)?, n })
    }

    /// The number of replicas on this host.
    pub fn n_here(&self) -> usize {
        self.replicas.len()
    }

    /// Whether this host reports and writes files.
    pub fn is_first(&self) -> bool {
        self.host == 0
    }

    /// Compile options of a program that all replicas run.
    pub fn options(&self) -> CompileOptions {
        let (n_replicas, n_partitions) = (self.n_replicas as usize, self.n_partitions as usize);
        let device_ids = self.device_ids.clone();
        CompileOptions { n_replicas, n_partitions, device_ids, ..CompileOptions::default() }
    }
}

/// Dtypes as XLA numbers them, and dims.
type Signature = Vec<(i32, Vec<i64>)>;

/// Gathers arrays from the hosts of a slice.
#[derive(Debug)]
pub(super) struct Exchange {
    client: Client,
    site: Site,
    /// Compiled gathers by what each replica contributes.
    programs: Mutex<BTreeMap<Signature, Arc<Executable>>>,
}

impl Exchange {
    /// The exchange between these hosts; `None` if there is only one.
    pub fn between_hosts(client: &Client, site: &Site) -> Option<Exchange> {
        let new = || Exchange { client: client.clone(), site: site.clone(), programs: Mutex::default() };
        (site.n_hosts > 1).then(new)
    }

    /// Gathers an array list per replica from all hosts, in the order of replicas, from those of this host.
    pub fn gather(&self, replicas: &[Vec<&Buffer>]) -> Result<Vec<Vec<Vec<u8>>>, TrainError> {
        let type_of = |buffer: &&Buffer| Ok::<_, TrainError>((buffer.dtype()?.xla(), buffer.dims()?));
        let signature = replicas[0].iter().map(type_of).collect::<Result<Signature, _>>()?;
        let program = self.program(&signature)?;
        let args = replicas.iter().map(|list| list.iter().map(|&buffer| Arg::Keep(buffer)).collect()).collect();
        let results = program.execute_sharded(args)?;
        let arrays = results[0].iter().map(|array| Ok(array.to_host()?)).collect::<Result<Vec<_>, TrainError>>()?;
        let n = self.site.n_replicas as usize;
        let part = |bytes: &Vec<u8>, replica: usize| {
            let size = bytes.len() / n;
            bytes[replica * size..][..size].to_vec()
        };
        Ok((0..n).map(|replica| arrays.iter().map(|array| part(array, replica)).collect()).collect())
    }

    /// Gathers a few words from each host, in the order of hosts.
    pub fn say<const N: usize>(&self, words: [i32; N]) -> Result<Vec<[i32; N]>, TrainError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let put = |replica| self.client.buffer_from_host(&bytes, DType::S32, &[N as i64], self.site.device(replica));
        let buffers = (0..self.site.n_here()).map(put).collect::<Result<Vec<_>, _>>()?;
        let all = self.gather(&buffers.iter().map(|buffer| vec![buffer]).collect::<Vec<_>>())?;
        let words = |replica: &Vec<Vec<u8>>| {
            let mut words = [0; N];
            for (word, bytes) in words.iter_mut().zip(replica[0].as_chunks().0) {
                *word = i32::from_le_bytes(*bytes);
            }
            words
        };
        Ok(all.iter().step_by(self.site.n_here()).map(words).collect())
    }

    /// The program that gathers arrays of these types.
    fn program(&self, signature: &Signature) -> Result<Arc<Executable>, TrainError> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = programs.get(signature) {
            return Ok(Arc::clone(program));
        }
        let n = NonZeroU32::new(self.site.n_replicas).unwrap_or(NonZeroU32::MIN);
        let graph = Graph::new("exchange").for_replicas(Replicas { n, ..Replicas::default() });
        let mut gathered = Vec::with_capacity(signature.len());
        for (number, (dtype, dims)) in signature.iter().enumerate() {
            let dtype = DType::from_xla(*dtype).unwrap_or(DType::F32);
            let one: Vec<i64> = [1].into_iter().chain(dims.iter().copied()).collect();
            let name = format!("of_replica_{number}");
            let all = graph.input(&name, dtype, dims.clone()).reshape(one).gathered_from_replicas(0);
            gathered.push((format!("of_all_{number}"), all));
        }
        let results: Vec<_> = gathered.iter().map(|(name, array)| (name.as_str(), array)).collect();
        let module = graph.finish_for_good(&results).map_err(super::ProgramError::from)?.module;
        verify::verify(&module)?;
        let program = Arc::new(self.client.compile(&proto::encode::to_bytes(&module)?, &self.site.options())?);
        programs.insert(signature.clone(), Arc::clone(&program));
        Ok(program)
    }
}

fn device_error(text: String) -> TrainError {
    TrainError::new(TrainErrorKind::Device, TrainPlace::Nowhere, text)
}

/// The error of a mesh with more replicas than there are devices.
fn too_few_devices(n_replicas: usize, n_devices: usize) -> TrainError {
    let there = if n_devices == 1 { "is 1 device".to_string() } else { format!("are {n_devices} devices") };
    device_error(format!("the mesh has {n_replicas} replicas, and there {there}"))
        .with_help(format!("ask for as many devices, such as --device cpu:{n_replicas}, or for fewer replicas"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_pjrt::DeviceDescription;

    fn device(id: i32, process_idx: i32) -> DeviceDescription {
        let name = format!("TPU_{id}");
        let kind = "TPU v3".to_string();
        DeviceDescription { id, process_idx, kind, debug_name: name.clone(), name, attributes: BTreeMap::new() }
    }

    /// A v3-32 in libtpu's order of cores: along the rows of chips, over two hosts each.
    fn slice(own_idx: i32) -> (Processes, Vec<i32>) {
        let host = |id: i32| 2 * (id / 16) + id / 4 % 2;
        let devices: Vec<_> = (0..32).map(|id| device(id, host(id))).collect();
        let ids = devices.iter().filter(|device| device.process_idx == own_idx).map(|device| device.id).collect();
        (Processes { own_idx, devices }, ids)
    }

    #[test]
    fn each_host_has_a_stretch_of_the_replicas() {
        for host in 0..4 {
            let (processes, ids) = slice(host);
            let site = Site::among(&processes, &ids, NonZeroU32::new(32).unwrap()).unwrap();
            assert_eq!((site.host, site.n_hosts, site.n_here()), (host as u32, 4, 8));
            assert_eq!(site.replicas, host as usize * 8..(host as usize + 1) * 8);
            let devices: Vec<i32> = (0..8).map(|replica| ids[site.device(replica)]).collect();
            assert_eq!(devices, site.device_ids[site.replicas.clone()]);
            assert_eq!(site.device_ids[..16], [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]);
        }
        // The same number of cores from each host, where not all are used.
        let (processes, ids) = slice(1);
        let site = Site::among(&processes, &ids, NonZeroU32::new(8).unwrap()).unwrap();
        assert_eq!((site.replicas, site.device_ids), (2..4, vec![0, 1, 4, 5, 16, 17, 20, 21]));
    }

    #[test]
    fn replicas_that_hosts_cannot_share_are_refused() {
        let (processes, ids) = slice(0);
        let error = |n: u32| Site::among(&processes, &ids, NonZeroU32::new(n).unwrap()).unwrap_err().to_string();
        let expected = |n: &str| {
            format!(
                "the mesh has {n}, and the slice has 4 hosts of 8 devices each, which share them equally\nhelp: use \
                 --devices 32, or fewer on each host"
            )
        };
        assert_eq!(error(1), expected("1 replica"));
        assert_eq!(error(30), expected("30 replicas"));
        assert_eq!(error(64), expected("64 replicas"));
        let (mut processes, ids) = slice(0);
        processes.own_idx = 7;
        let error = Site::among(&processes, &ids, NonZeroU32::new(32).unwrap()).unwrap_err().to_string();
        assert!(
            error.starts_with("the plugin says that this is process 7, and its devices are of processes 0, 1, 2, 3")
        );
    }

    #[test]
    fn meshes_that_no_devices_are_for_are_refused() {
        let (mut processes, ids) = slice(0);
        assert_eq!(
            Site::split(&processes, 8, 2, 2).unwrap_err().to_string(),
            "the mesh splits replicas (`model`), and the slice has 4 hosts: that runs on the devices of one host so \
             far\nhelp: leave `model` out"
        );
        processes.own_idx = 9;
        assert_eq!(
            Site::among(&processes, &ids, NonZeroU32::new(32).unwrap()).unwrap_err().to_string(),
            "the plugin says that this is process 9, and its devices are of processes 0, 1, 2, 3\nhelp: check TPU_WORKER_ID \
             and TPU_PROCESS_BOUNDS, where they are set"
        );
        assert_eq!(
            too_few_devices(2, 1).to_string(),
            "the mesh has 2 replicas, and there is 1 device\nhelp: ask for as many devices, such as --device cpu:2, or for \
             fewer replicas"
        );
    }
}
