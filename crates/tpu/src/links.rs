//! A model of the time of a slice's collectives from the bandwidth of its links, because the compiler gives collectives
//! no cycles.
//!
//! A chip of v2 and v3 has two cores and four links to its neighbours in a two-dimensional torus. A group's arrays go
//! around a **ring** of its chips, in both directions at once: the cores of a chip first add their arrays, which is not
//! counted. For arrays of S bytes per core, a ring of n chips takes
//!
//! | collective | seconds |
//! | --- | --- |
//! | all-reduce | 2 · (n − 1) / n · S / B |
//! | reduce-scatter; all-gather, where S is what is gathered | (n − 1) / n · S / B |
//! | all-to-all | n / 8 · S / B, at least S / B: what a core sends goes a quarter of the ring on average, half of it each way |
//! | collective-permute, collective-broadcast | S / B |
//!
//! B is the bandwidth out of a chip in bytes per second: one link for a line of chips; two where a grid has a ring in
//! both directions; four in a whole pod, whose torus has two such rings without a common link. Groups that share their
//! chips' links, such as those over the replicas of a partitioned program, share B. Within one chip, B is the rate of a
//! core's HBM.
//!
//! Not counted: the latency of a hop, the start of a collective, and overlapping computation. A real time is longer
//! because of the first two, and shorter if a collective overlaps with other work.
//!
//! Source for the links: Jouppi et al., "A Domain-Specific Supercomputer for Training Deep Neural Networks",
//! Communications of the ACM 63(7), 2020, which has 4 × 496 Gbit/s for v2 and 4 × 656 Gbit/s for v3 in each direction;
//! the paper on TPU v4 (Jouppi et al., ISCA 2023) gives v3 70 GB/s per link, 15 % less. For the ring: Patarasuk and
//! Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.

use serde::Serialize;

use super::Target;
use super::collectives::Collective;
use super::explain::Rates;
use bf16scope_hlo::devices::Devices;

/// Seconds from a chip to the next: about a microsecond, by Austin et al., "How to Scale Your Model" (2025), on TPU
/// networks. No figure is published for v2 and v3.
const HOP_SECONDS: f64 = 1e-6;
/// The least time between two steps, in seconds, in which a host starts a program. An assumption, of the order of a
/// dispatch; steps in a loop on the device take less.
pub const STEP_START_SECONDS: f64 = 50e-6;

/// The interconnect of a slice's chips.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Links {
    /// Bytes per second over one link, in one direction.
    pub bytes_per_second: f64,
    /// Bytes per second to and from a core's HBM.
    pub hbm_bytes_per_second: f64,
    /// Cycles of a core per second.
    pub cycles_per_second: f64,
    /// Cores per chip.
    pub cores_per_chip: u64,
    /// Cores in the slice.
    pub n_cores: u64,
    /// Whether it is a whole pod, whose axes have wrap-around links.
    pub is_torus: bool,
    /// Whether its chips are a line.
    pub is_line: bool,
}

/// How a collective's groups are placed on the chips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    /// Chips per group.
    n_chips: u64,
    /// Groups that share a link.
    n_sharing: u64,
}

impl Links {
    /// The links of a slice; `None` for a TPU whose figures are unknown.
    pub fn for_target(target: &Target) -> Option<Links> {
        let Target::Tpu { version, grid } = target else { return None };
        let (rates, figures) = (Rates::for_target(target)?, version.figures.as_ref()?);
        Some(Links {
            bytes_per_second: f64::from(figures.link_gbits) * 1e9 / 8.0,
            hbm_bytes_per_second: rates.bytes,
            cycles_per_second: rates.cycles,
            cores_per_chip: u64::from(version.cores_per_chip),
            n_cores: target.n_cores()?,
            is_torus: grid == version.pod,
            is_line: grid.contains(&1),
        })
    }

    /// Seconds of collectives of one kind: from the compiler's cycles, or, if it gives none, from the model.
    pub fn seconds(&self, collective: &Collective, devices: Devices) -> f64 {
        if collective.cycles > 0 {
            return collective.cycles as f64 / self.cycles_per_second;
        }
        self.of_bytes(&collective.op, collective.n_bytes as f64, collective.participants, devices)
    }

    /// Seconds of a collective over `participants` devices with `n_bytes` each, by the model.
    pub fn of_bytes(&self, op: &str, n_bytes: f64, participants: u64, devices: Devices) -> f64 {
        if participants < 2 {
            return 0.0;
        }
        let group = self.group(participants, devices);
        let rate = self.rate(group.n_chips) / group.n_sharing as f64;
        // Within a chip, each core is a separate participant.
        let n = if group.n_chips > 1 { group.n_chips } else { participants } as f64;
        let once = n_bytes / rate;
        match op {
            "all-reduce" => 2.0 * (n - 1.0) / n * once,
            "reduce-scatter" | "all-gather" => (n - 1.0) / n * once,
            "all-to-all" | "ragged-all-to-all" => (n / 8.0).max(1.0) * once,
            _ => once,
        }
    }

    /// The latency in seconds of one collective over `participants` devices, however few its bytes are: hops around the
    /// rings of its chips, in both directions at once, twice for an all-reduce.
    pub fn latency(&self, op: &str, participants: u64, devices: Devices) -> f64 {
        if participants < 2 {
            return 0.0;
        }
        let n_chips = self.group(participants, devices).n_chips as f64;
        // A ring along each axis of a grid, one after the other, half of it in each direction.
        let n_hops = if self.is_line { (n_chips - 1.0).max(0.0) } else { n_chips.sqrt().ceil() };
        let n_times = if op == "all-reduce" { 2.0 } else { 1.0 };
        n_times * n_hops * HOP_SECONDS
    }

    /// Devices are numbered replica by replica, the partitions of each consecutively, and so are the cores of a chip.
    fn group(&self, participants: u64, devices: Devices) -> Group {
        let partitions = devices.partitions as u64;
        let is_over_replicas = partitions > 1
            && participants == devices.replicas as u64
            && participants != partitions
            && participants < devices.n() as u64;
        match is_over_replicas
            || (partitions > 1 && participants == partitions && devices.replicas as u64 == partitions)
        {
            // One member every `n_partitions` cores; if there are as many replicas as partitions, the slower of the
            // two.
            true => Group {
                n_chips: participants.saturating_mul(partitions).div_ceil(self.cores_per_chip).min(participants),
                n_sharing: partitions,
            },
            false => Group { n_chips: participants.div_ceil(self.cores_per_chip), n_sharing: 1 },
        }
    }

    /// Bytes per second from a chip to the others in a group of `n_chips`.
    fn rate(&self, n_chips: u64) -> f64 {
        match n_chips {
            0 | 1 => self.hbm_bytes_per_second,
            2 | 3 => self.bytes_per_second,
            _ if self.is_line => self.bytes_per_second,
            n if self.is_torus && n * self.cores_per_chip == self.n_cores => 4.0 * self.bytes_per_second,
            _ => 2.0 * self.bytes_per_second,
        }
    }

    /// A description of the model for the screen: two lines.
    pub fn in_words(&self) -> String {
        format!(
            "a ring over the chips of a group by links of {:.0} GB/s\neach way, without what a hop or a start takes",
            self.bytes_per_second / 1e9
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(target: &str) -> Links {
        Links::for_target(&target.parse().unwrap()).unwrap()
    }

    const fn over(replicas: usize, partitions: usize) -> Devices {
        Devices { replicas, partitions }
    }

    /// Milliseconds for a hundred megabytes.
    fn ms(target: &str, op: &str, participants: u64, devices: Devices) -> f64 {
        (links(target).of_bytes(op, 1e8, participants, devices) * 1e6).round() / 1e3
    }

    #[test]
    fn an_all_reduce_is_a_ring_over_chips() {
        // 2 · 3/4 · 1e8 / (2 · 82e9), and for v2 over 62e9.
        assert_eq!(ms("tpu-v3", "all-reduce", 8, over(8, 1)), 0.915);
        assert_eq!(ms("tpu-v2", "all-reduce", 8, over(8, 1)), 1.210);
        // More chips: nearly twice the bytes, over as many links.
        assert_eq!(ms("tpu-v3:16x16", "all-reduce", 512, over(512, 1)), 1.215);
        // A whole pod has four links that close to rings: half the time.
        assert_eq!(ms("tpu-v3:32x32", "all-reduce", 2048, over(2048, 1)), 0.609);
        assert_eq!(ms("tpu-v2:16x16", "all-reduce", 512, over(512, 1)), 0.803);
        // A slice of a pod has no wrap-around links.
        assert_eq!(ms("tpu-v3:32x32", "all-reduce", 512, over(512, 1)), 1.215);
        // Two chips, and two cores of one: 2 · 1/2 · 1e8 / 82e9, and / 450e9.
        assert_eq!(ms("tpu-v3", "all-reduce", 4, over(4, 1)), 1.220);
        assert_eq!(ms("tpu-v3", "all-reduce", 2, over(2, 1)), 0.222);
        assert_eq!(ms("tpu-v3", "all-reduce", 1, over(1, 1)), 0.0);
    }

    /// A microsecond for each hop, twice for an all-reduce; no hop within a chip.
    #[test]
    fn the_latency_is_of_hops_and_not_of_bytes() {
        let us = |target: &str, op: &str, n: u64| links(target).latency(op, n, over(n as usize, 1)) * 1e6;
        // A grid of 16 × 16 chips has rings of 16, along both axes, each half in one direction.
        assert_eq!((us("tpu-v3:16x16", "all-reduce", 512) * 1e6).round(), 32e6);
        assert_eq!((us("tpu-v3:16x16", "all-gather", 512) * 1e6).round(), 16e6);
        assert_eq!((us("tpu-v3", "all-reduce", 8) * 1e6).round(), 4e6);
        assert_eq!(us("tpu-v3", "all-reduce", 1), 0.0);
    }

    #[test]
    fn other_collectives_move_a_part_of_it() {
        assert_eq!(ms("tpu-v3", "all-gather", 8, over(8, 1)), 0.457);
        assert_eq!(ms("tpu-v3", "reduce-scatter", 8, over(8, 1)), 0.457);
        assert_eq!(ms("tpu-v3", "collective-permute", 8, over(8, 1)), 0.610);
        assert_eq!(ms("tpu-v3", "all-to-all", 8, over(8, 1)), 0.610);
        assert_eq!(ms("tpu-v3:8x8", "all-to-all", 128, over(128, 1)), 4.878);
    }

    #[test]
    fn groups_that_share_chips_share_their_links() {
        assert_eq!(ms("tpu-v3:4x4", "all-reduce", 32, over(32, 1)), 1.143);
        // The two cores of a chip are two partitions, each in its own group over sixteen replicas.
        assert_eq!(ms("tpu-v3:4x4", "all-reduce", 16, over(16, 2)), 2.287);
        // A replica's two partitions are on one chip.
        assert_eq!(ms("tpu-v3:4x4", "all-reduce", 2, over(16, 2)), 0.222);
    }

    #[test]
    fn a_tpu_whose_links_are_not_known_has_none() {
        assert_eq!(Links::for_target(&"tpu-v4".parse().unwrap()), None);
        assert_eq!(Links::for_target(&Target::Cpu), None);
        let line = Links::for_target(&"tpu-v2:1x2".parse().unwrap()).unwrap();
        assert!(line.is_line && !line.is_torus && line.cores_per_chip == 2);
    }

    #[test]
    fn the_compilers_cycles_come_first() {
        let mut collective = Collective::of_bytes("all-reduce", "f32", 100, 8);
        let links = links("tpu-v3");
        assert!(links.seconds(&collective, over(8, 1)) < 1e-8);
        collective.cycles = 940;
        assert_eq!(links.seconds(&collective, over(8, 1)), 1e-6);
    }
}
