//! Targets: `cpu`, `tpu-v2`, `tpu-v3:4x4`, … as users write them, and their names of topologies in `libtpu`.
//!
//! Names and grids were found by asking `libtpu` 0.0.51; it refuses a grid that it cannot divide into hosts.

use bf16scope_passes::tuning::Tuning;
use std::fmt;
use std::str::FromStr;

/// The target of a compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// This machine's CPU, through its plugin.
    Cpu,
    /// A TPU, through `libtpu`.
    Tpu {
        /// The TPU generation.
        version: &'static Spec,
        /// Chips along each axis of the interconnect.
        grid: Vec<u32>,
    },
}

/// A TPU generation that `libtpu` compiles for. All that the crate knows about one is in its row of [`Spec::ALL`].
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spec {
    /// Its name for users and `libtpu`, such as `v5e`.
    pub name: &'static str,
    /// Chips of one board: `libtpu`'s default chips per host.
    pub board: &'static [u32],
    /// Chips of a whole pod along each axis: the largest possible slice.
    pub pod: &'static [u32],
    /// Cores per chip that a program can run on: its devices in a topology. The two cores of a v5p count as one.
    pub cores_per_chip: u32,
    /// Cores per chip in Google's names of slices: `v3-8` and `v5p-8` have four chips, `v5e-8` has eight.
    pub named_cores_per_chip: u32,
    /// Memory of a chip, in GiB.
    pub hbm_gib: u32,
    /// The performance of a chip; `None` if unknown.
    pub figures: Option<Figures>,
}

/// The performance of a chip.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Teraflops of bf16 products per second.
    pub bf16_tflops: u32,
    /// Bytes to and from HBM per second, in 1e9.
    pub hbm_gbytes: u32,
    /// Cycles per second, in 1e6.
    pub clock_mhz: u32,
    /// Bits per second over one link, in one direction, in 1e9.
    pub link_gbits: u32,
}

impl Spec {
    /// Every version, oldest first.
    ///
    /// # Source
    /// Names, boards and cores: `libtpu` 0.0.51. Pods, memory and names of slices: Google's Cloud TPU documentation, a
    /// page for each version. Figures: [`explain::Rates`](super::explain::Rates) and [`Links`](super::Links).
    pub const ALL: &'static [Spec] = &[
        Spec {
            name: "v2",
            board: &[2, 2],
            pod: &[16, 16],
            cores_per_chip: 2,
            named_cores_per_chip: 2,
            hbm_gib: 16,
            figures: Some(Figures { bf16_tflops: 46, hbm_gbytes: 700, clock_mhz: 700, link_gbits: 496 }),
        },
        Spec {
            name: "v3",
            board: &[2, 2],
            pod: &[32, 32],
            cores_per_chip: 2,
            named_cores_per_chip: 2,
            hbm_gib: 32,
            figures: Some(Figures { bf16_tflops: 123, hbm_gbytes: 900, clock_mhz: 940, link_gbits: 656 }),
        },
        Spec {
            name: "v4",
            board: &[2, 2, 1],
            pod: &[16, 16, 16],
            cores_per_chip: 2,
            named_cores_per_chip: 2,
            hbm_gib: 32,
            figures: None,
        },
        Spec {
            name: "v5e",
            board: &[2, 2],
            pod: &[16, 16],
            cores_per_chip: 1,
            named_cores_per_chip: 1,
            hbm_gib: 16,
            figures: None,
        },
        Spec {
            name: "v5p",
            board: &[2, 2, 1],
            pod: &[16, 20, 28],
            cores_per_chip: 1,
            named_cores_per_chip: 2,
            hbm_gib: 95,
            figures: None,
        },
        Spec {
            name: "v6e",
            board: &[2, 2],
            pod: &[16, 16],
            cores_per_chip: 1,
            named_cores_per_chip: 1,
            hbm_gib: 32,
            figures: None,
        },
    ];

    /// The version with this name.
    pub fn named(name: &str) -> Option<&'static Spec> {
        Spec::ALL.iter().find(|spec| spec.name == name)
    }

    /// The version whose devices have the most memory.
    pub fn roomiest() -> &'static Spec {
        let of_device = |spec: &&Spec| spec.hbm_gib / spec.cores_per_chip;
        Spec::ALL.iter().max_by_key(of_device).unwrap_or(&Spec::ALL[0])
    }

    /// Cores of one board that a program can run on.
    pub fn cores_per_board(&self) -> u32 {
        self.cores_per_chip * self.board.iter().product::<u32>()
    }

    /// Whether a pod has such a grid. A pod with two axes has fixed wiring; pods with three are wired by switches, so
    /// only the number of chips matters.
    fn holds(&self, grid: &[u32]) -> bool {
        let is_within = || grid.iter().zip(self.pod).all(|(axis, most)| axis <= most);
        n_chips(grid) <= n_chips(self.pod) && (grid.len() != 2 || is_within())
    }

    /// The grids that `libtpu` always supports, in words. It supports some thin ones too (of some thirty tried,
    /// `v2:1x1`, `v2:1x2` and `v3:1x4`, but not `v2:2x3`).
    pub(super) fn grids(&self) -> String {
        let board = grid_text(self.board);
        let axes = if self.board.len() == 2 { "both axes" } else { "the first two axes" };
        format!("{} comes in boards of {board} chips, so {axes} are even", self.name)
    }

    /// Valid targets near an invalid grid: the next larger one of whole boards, and one board.
    pub(super) fn grids_near(&'static self, grid: &[u32]) -> Vec<Target> {
        let whole = |(n_chips, board): (&u32, &u32)| n_chips.checked_next_multiple_of(*board).unwrap_or(*board);
        let whole = grid.iter().zip(self.board).map(whole).collect();
        let mut targets = vec![Target::Tpu { version: self, grid: whole }];
        let board = Target::board(self);
        if targets[0] != board {
            targets.push(board);
        }
        targets
    }

    /// The smallest grid of whole boards with this many cores; `None` if no slice of this TPU has them.
    ///
    /// It grows by doubling its shortest axis, the last among equals.
    pub fn slice_of(&'static self, n_cores: usize) -> Option<Target> {
        let mut grid = self.board.to_vec();
        loop {
            let target = Target::Tpu { version: self, grid: grid.clone() };
            if target.n_cores()? >= n_cores as u64 {
                return Some(target);
            }
            let (_, axis) = grid.iter().copied().zip(0..).min_by_key(|&(size, at)| (size, std::cmp::Reverse(at)))?;
            grid[axis] *= 2;
            if n_chips(&grid) > n_chips(self.pod) {
                return None;
            }
        }
    }
}

impl Target {
    /// One board of this version.
    pub fn board(version: &'static Spec) -> Target {
        Target::Tpu { version, grid: version.board.to_vec() }
    }

    /// `libtpu`'s name of the topology, such as `v3:4x4`; `None` for the CPU.
    pub fn topology(&self) -> Option<String> {
        match self {
            Target::Cpu => None,
            Target::Tpu { version, grid } => Some(format!("{}:{}", version.name, grid_text(grid))),
        }
    }

    /// Cores that a program can run on; `None` for the CPU.
    pub fn n_cores(&self) -> Option<u64> {
        match self {
            Target::Cpu => None,
            Target::Tpu { version, grid } => Some(n_chips(grid).saturating_mul(u64::from(version.cores_per_chip))),
        }
    }

    /// The beneficial tuning for it: `tune: auto`.
    pub fn tuning(&self) -> Tuning {
        match self {
            Target::Cpu => Tuning::none(),
            Target::Tpu { .. } => Tuning::tpu(),
        }
    }

    /// Names without a grid, as they are parsed.
    pub fn names() -> Vec<String> {
        std::iter::once("cpu".to_string()).chain(Target::tpus()).collect()
    }

    /// The names of the TPUs among them.
    pub fn tpus() -> Vec<String> {
        Spec::ALL.iter().map(|version| format!("tpu-{}", version.name)).collect()
    }
}

fn n_chips(grid: &[u32]) -> u64 {
    grid.iter().fold(1, |n, &axis| n.saturating_mul(u64::from(axis)))
}

fn grid_text(grid: &[u32]) -> String {
    grid.iter().map(u32::to_string).collect::<Vec<String>>().join("x")
}

impl serde::Serialize for Target {
    /// As text.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Cpu => f.write_str("cpu"),
            Target::Tpu { version, grid } if grid == version.board => write!(f, "tpu-{}", version.name),
            Target::Tpu { version, grid } => write!(f, "tpu-{}:{}", version.name, grid_text(grid)),
        }
    }
}

/// Why a text is not a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// Unknown name.
    #[error("no target `{text}`: expected {}{}", Target::tpus().join(", "), nearest(text))]
    Name {
        /// The name, without a grid.
        text: String,
    },
    /// Invalid grid.
    #[error("target `{text}`: `{grid}` is not a grid of chips: expected {expected}, like `{example}`")]
    Grid {
        /// The whole text.
        text: String,
        /// The text after the colon.
        grid: String,
        /// The version's number of axes, in words.
        expected: &'static str,
        /// A valid target of this version.
        example: String,
    },
    /// More chips than a pod of this TPU has: there is no such slice, although the compiler would describe it.
    #[error(
        "target `{text}`: there is no such slice: a pod has {n_chips} chips, `{pod}`\nhelp: one board is enough for figures \
         of one core: `{board}`"
    )]
    TooLarge {
        /// The whole text.
        text: String,
        /// Chips of a pod.
        n_chips: u32,
        /// A whole pod.
        pod: String,
        /// One board.
        board: String,
    },
    /// A grid for the CPU.
    #[error("target `{text}`: cpu has no grid of chips\nhelp: write `cpu`")]
    CpuGrid {
        /// The whole text.
        text: String,
    },
}

fn nearest(text: &str) -> String {
    // `TPU-V2`, and `v2` or `v2-8`, as Google names slices.
    let text = text.to_lowercase();
    let slice = text.trim_start_matches("tpu-").split_once('-').and_then(|(name, n_cores)| {
        let version = Spec::named(name)?;
        let n_chips = n_cores.parse::<usize>().ok()? / version.named_cores_per_chip as usize;
        let n_cores = n_chips.checked_mul(version.cores_per_chip as usize)?;
        version.slice_of(n_cores).filter(|target| target.n_cores() == Some(n_cores as u64))
    });
    if let Some(target) = slice {
        return format!("\nhelp: did you mean `{target}`?");
    }
    let whole = format!("tpu-{text}");
    let distance = |name: &str| [&text, &whole].map(|text| strsim::damerau_levenshtein(name, text)).into_iter().min();
    // Another version is another TPU, not a typing error; a digit that was typed twice is.
    let version = |name: &str| name.chars().filter(char::is_ascii_digit).collect::<String>();
    let mut names = Target::names();
    names.retain(|name| version(&text).is_empty() || version(&text).starts_with(&version(name)));
    match names.iter().min_by_key(|name| distance(name)) {
        Some(name) if distance(name) <= Some(2) => format!("\nhelp: did you mean `{name}`?"),
        _ => String::new(),
    }
}

/// Like [`Target::from_str`].
impl TryFrom<&str> for Target {
    type Error = TargetError;

    fn try_from(text: &str) -> Result<Target, TargetError> {
        text.parse()
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let (name, grid) = match text.split_once(':') {
            Some((name, grid)) => (name, Some(grid)),
            None => (text, None),
        };
        if name == "cpu" {
            return match grid {
                None => Ok(Target::Cpu),
                Some(_) => Err(TargetError::CpuGrid { text: text.to_string() }),
            };
        }
        let version = name
            .strip_prefix("tpu-")
            .and_then(Spec::named)
            .ok_or_else(|| TargetError::Name { text: name.to_string() })?;
        let Some(grid) = grid else { return Ok(Target::board(version)) };
        let chips: Option<Vec<u32>> =
            grid.split('x').map(|axis| axis.parse().ok().filter(|&n_chips| n_chips > 0)).collect();
        match chips {
            Some(chips) if chips.len() == version.board.len() && !version.holds(&chips) => Err(TargetError::TooLarge {
                text: text.to_string(),
                n_chips: n_chips(version.pod) as u32,
                pod: Target::Tpu { version, grid: version.pod.to_vec() }.to_string(),
                board: Target::board(version).to_string(),
            }),
            Some(chips) if chips.len() == version.board.len() => Ok(Target::Tpu { version, grid: chips }),
            _ => Err(TargetError::Grid {
                text: text.to_string(),
                grid: grid.to_string(),
                expected: if version.board.len() == 2 { "two sizes" } else { "three sizes" },
                example: format!("tpu-{}:{}", version.name, grid_text(version.board)),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_print_as_they_parse() {
        for name in Target::names().into_iter().chain(["tpu-v3:4x4".to_string(), "tpu-v4:2x2x2".to_string()]) {
            assert_eq!(name.parse::<Target>().unwrap().to_string(), name);
        }
        assert_eq!("tpu-v2".parse::<Target>().unwrap().topology().unwrap(), "v2:2x2");
        assert_eq!("tpu-v5p".parse::<Target>().unwrap().topology().unwrap(), "v5p:2x2x1");
        assert_eq!("tpu-v2:2x2".parse::<Target>().unwrap().to_string(), "tpu-v2");
    }

    #[test]
    fn the_smallest_slice_of_so_many_cores_is_known() {
        let slice =
            |version: &str, n_cores| Spec::named(version).unwrap().slice_of(n_cores).map(|target| target.to_string());
        for (n_cores, expected) in [
            (1, Some("tpu-v3")),
            (8, Some("tpu-v3")),
            (9, Some("tpu-v3:2x4")),
            (32, Some("tpu-v3:4x4")),
            (64, Some("tpu-v3:4x8")),
            (2048, Some("tpu-v3:32x32")),
            (2049, None),
        ] {
            assert_eq!(slice("v3", n_cores).as_deref(), expected, "{n_cores}");
        }
        assert_eq!(slice("v2", 512).as_deref(), Some("tpu-v2:16x16"));
        assert_eq!(slice("v2", usize::MAX), None);
        assert_eq!(slice("v4", 32).as_deref(), Some("tpu-v4:2x2x4"));
        assert_eq!(slice("v5e", 5).as_deref(), Some("tpu-v5e:2x4"));
        let cores = |text: &str| text.parse::<Target>().unwrap().n_cores();
        assert_eq!(["tpu-v3:4x4", "tpu-v2:1x1", "tpu-v5p", "cpu"].map(cores), [Some(32), Some(2), Some(4), None]);
    }

    #[test]
    fn errors_list_what_there_is_and_suggest_the_nearest() {
        let error = |text: &str| text.parse::<Target>().unwrap_err().to_string();
        let names = "tpu-v2, tpu-v3, tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e";
        assert_eq!(error("tpu_v2"), format!("no target `tpu_v2`: expected {names}\nhelp: did you mean `tpu-v2`?"));
        for text in ["v3", "V3", "TPU-V3", "v3-8"] {
            assert_eq!(error(text), format!("no target `{text}`: expected {names}\nhelp: did you mean `tpu-v3`?"));
        }
        assert_eq!(error("tpu-v33"), format!("no target `tpu-v33`: expected {names}\nhelp: did you mean `tpu-v3`?"));
        // A version that does not exist is not a typing error.
        for text in ["gpu-h100", "tpu-v9", "v1"] {
            assert_eq!(error(text), format!("no target `{text}`: expected {names}"));
        }
        // Google's names of slices.
        for (text, meant) in [
            ("v5p-8", "tpu-v5p"),
            ("v5e-8", "tpu-v5e:2x4"),
            ("v3-32", "tpu-v3:4x4"),
            ("tpu-v2-512", "tpu-v2:16x16"),
            ("v3-64", "tpu-v3:4x8"),
            ("v4-32", "tpu-v4:2x2x4"),
        ] {
            assert_eq!(error(text), format!("no target `{text}`: expected {names}\nhelp: did you mean `{meant}`?"));
        }
        assert_eq!(
            error("tpu-v3:4"),
            "target `tpu-v3:4`: `4` is not a grid of chips: expected two sizes, like `tpu-v3:2x2`"
        );
        assert_eq!(
            error("tpu-v4:2x0x1"),
            "target `tpu-v4:2x0x1`: `2x0x1` is not a grid of chips: expected three sizes, like `tpu-v4:2x2x1`"
        );
        assert_eq!(
            error("tpu-v2:100x100"),
            "target `tpu-v2:100x100`: there is no such slice: a pod has 256 chips, `tpu-v2:16x16`\n\
             help: one board is enough for figures of one core: `tpu-v2`"
        );
        for (largest, larger) in [
            ("tpu-v2:16x16", "tpu-v2:2x32"),
            ("tpu-v3:32x32", "tpu-v3:34x2"),
            ("tpu-v4:4x16x64", "tpu-v4:4x20x64"),
            ("tpu-v5e:16x16", "tpu-v5e:18x2"),
            ("tpu-v5p:16x20x28", "tpu-v5p:100000x100000x100000"),
        ] {
            assert_eq!(largest.parse::<Target>().unwrap().to_string(), largest);
            assert!(error(larger).starts_with(&format!("target `{larger}`: there is no such slice: ")), "{larger}");
        }
        assert_eq!(error("cpu:2x2"), "target `cpu:2x2`: cpu has no grid of chips\nhelp: write `cpu`");
    }
}
