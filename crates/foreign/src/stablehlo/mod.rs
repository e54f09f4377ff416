//! HLO to StableHLO: the text of a verified module in MLIR's generic form, which XLA's plugins and JAX read.
//!
//! StableHLO has no tuples to speak of: a value that is a tuple here is several values there, and a parameter or result
//! that is a tuple becomes as many, depth first. A computation that another op applies becomes its region; one that
//! several ops apply and that is long, or calls others, a function that the regions call, so that the text grows as the
//! module does. Names of instructions are not kept (StableHLO has none); scoped names, source lines, shardings, aliases
//! and frontend attributes are.
//!
//! `attributes` writes what each op says, `calls` what custom calls and unmodelled ops say, `collectives` what ops over
//! devices say, `types` types and constants. What StableHLO has no op for is refused with the op's name.
//!
//! Source: the StableHLO specification, version 1.0, and MLIR's language reference (generic form of an operation).

mod attributes;
mod calls;
mod collectives;
mod read;
mod types;

pub use self::read::{read, read_named, read_symbolic};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use self::attributes::{Mnemonic, mnemonic};
use self::types::{KEEP_HLO, escaped, of_shape};
use bf16scope_hlo::devices::{Devices, Placement, devices_of_compiled};
use bf16scope_hlo::proto::assignment::COUNTS;
use bf16scope_hlo::text::sharding_text;
use bf16scope_hlo::{AliasKind, CompId, Computation, InstrId, Instruction, Metadata, Module, Op, Shape, Sharding};

/// A module that StableHLO cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// An op, or something that it says.
    #[error("{place}: StableHLO has no {what}\nhelp: {help}")]
    NoSuch {
        /// The instruction: `main/%x`.
        place: String,
        /// The thing that is missing.
        what: String,
        /// The remedy.
        help: &'static str,
    },
}

/// A module as StableHLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The text.
    pub text: String,
    /// Attributes of the module that the text leaves out; none of them changes a result.
    pub lost: Vec<String>,
}

/// Writes a verified module as StableHLO.
///
/// # Errors
/// [`WriteError`]: the first op that StableHLO has not.
pub fn write(module: &Module) -> Result<Written, WriteError> {
    let mut uses: BTreeMap<CompId, usize> = BTreeMap::new();
    for op in module.computations.iter().flat_map(|comp| &comp.instructions).map(|instr| &instr.op) {
        for called in op.called() {
            // A callee of `call` is a function, even with one call site.
            *uses.entry(called).or_default() += if matches!(op, Op::Call { .. }) { 2 } else { 1 };
        }
    }
    let mut writer = Writer {
        module,
        uses,
        donations: donations(module),
        out: String::new(),
        lost: BTreeMap::new(),
        wanted: Vec::new(),
        is_wanted: BTreeSet::new(),
        n_values: 0,
    };
    writer.module_head();
    writer.function(module.entry)?;
    let mut n_written = 0;
    while let Some(&comp) = writer.wanted.get(n_written) {
        writer.function(comp)?;
        n_written += 1;
    }
    writer.out.push_str("}\n");
    let mut lost: Vec<String> =
        writer.lost.into_iter().map(|(what, n)| format!("{what} of {n} instructions")).collect();
    lost.extend(lost_of_module(module));
    match module.input_output_alias.iter().filter(|alias| alias.kind == AliasKind::Must).count() {
        0 => {}
        // XLA's converter makes may-alias of every `tf.aliasing_output`.
        n => lost.push(format!("must-alias of {n} outputs, which becomes may-alias")),
    }
    Ok(Written { text: writer.out, lost })
}

/// A value in the text: `%3`, or of several results one, `%3#1`.
#[derive(Clone, Copy, Debug)]
struct Value {
    number: u32,
    result: Option<u32>,
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.result {
            None => write!(f, "%{}", self.number),
            Some(result) => write!(f, "%{}#{result}", self.number),
        }
    }
}

/// A value's parts that are no tuples, depth first.
type Leaves = Vec<Value>;

struct Writer<'m> {
    module: &'m Module,
    /// How many ops apply a computation; a call counts twice.
    uses: BTreeMap<CompId, usize>,
    out: String,
    lost: BTreeMap<&'static str, usize>,
    /// The donation of each leaf of a parameter, by the numbers of the parameter and the leaf.
    donations: BTreeMap<(i64, usize), Donation>,
    /// Functions that are called, in order of their first call.
    wanted: Vec<CompId>,
    is_wanted: BTreeSet<CompId>,
    n_values: u32,
}

/// More instructions than this are written once, as a function, where several ops apply them.
const MAX_REPEATED: usize = 16;

impl<'m> Writer<'m> {
    fn module_head(&mut self) {
        // A proto, and bytecode, say how many only by their shardings. Where these disagree, what is said in words stands.
        let devices = Placement::from_module(self.module).map(|placement| placement.devices);
        let devices = devices.unwrap_or_else(|_| devices_of_compiled(self.module));
        let Devices { replicas: n_replicas, partitions: n_partitions } = devices;
        let mut attributes =
            vec![format!("mhlo.num_partitions = {n_partitions} : i32, mhlo.num_replicas = {n_replicas} : i32")];
        attributes.extend(frontend(&self.module.frontend_attributes));
        let name = symbol(&self.module.name);
        writeln!(self.out, "module @{name} attributes {{{}}} {{", attributes.join(", ")).expect(INTO_A_STRING);
    }

    fn function(&mut self, id: CompId) -> Result<(), WriteError> {
        self.n_values = 0;
        let module = self.module;
        let comp = module.comp(id);
        let is_entry = id == module.entry;
        let (name, visibility) =
            if is_entry { ("main".to_string(), "public") } else { (self.function_name(id), "private") };
        write!(self.out, "  func.func {visibility} @{name}(").expect(INTO_A_STRING);
        let mut parameters = Vec::new();
        let mut n_before = 0;
        for id in comp.parameters() {
            let instr = comp.instr(id);
            let shapes = instr.shape.leaves();
            let leaves: Leaves = shapes.iter().map(|_| self.value()).collect();
            let shardings = per_leaf(instr.sharding.as_deref(), shapes.len());
            for (idx, (value, shape)) in leaves.iter().zip(&shapes).enumerate() {
                let comma = if n_before + idx > 0 { ", " } else { "" };
                let mut attributes = Vec::new();
                if is_entry {
                    attributes.extend(self.donation(instr, idx));
                    attributes.extend(shardings.as_ref().and_then(|all| sharded(&all[idx])));
                    attributes.extend(frontend(&instr.frontend_attributes));
                }
                let attributes = braced(&attributes);
                let (ty, loc) = (self.ty(comp, instr, shape)?, location(&instr.metadata));
                write!(self.out, "{comma}{value}: {ty}{attributes}{loc}").expect(INTO_A_STRING);
            }
            n_before += leaves.len();
            parameters.push(leaves);
        }
        let root = self.root(comp);
        let types = self.types(comp, root, &root.shape)?;
        let shardings = per_leaf(root.sharding.as_deref(), types.len()).filter(|_| is_entry);
        let result = |(idx, ty): (usize, &String)| {
            let sharding = shardings.as_ref().and_then(|all| sharded(&all[idx]));
            format!("{ty}{}", braced(&sharding.into_iter().collect::<Vec<_>>()))
        };
        let results = types.iter().enumerate().map(result).collect::<Vec<_>>().join(", ");
        writeln!(self.out, ") -> ({results}) {{").expect(INTO_A_STRING);
        let values = self.body(comp, &parameters, 2)?;
        let operands = list(&values);
        writeln!(self.out, "    \"func.return\"({operands}) : ({}) -> ()\n  }}", types.join(", "))
            .expect(INTO_A_STRING);
        Ok(())
    }

    fn root(&self, comp: &'m Computation) -> &'m Instruction {
        comp.instr(comp.root)
    }

    fn value(&mut self) -> Value {
        self.n_values += 1;
        Value { number: self.n_values - 1, result: None }
    }

    /// Values of an operation of so many results, and how its text begins.
    fn results(&mut self, n: usize) -> (Leaves, String) {
        match n {
            0 => (Vec::new(), String::new()),
            1 => {
                let value = self.value();
                (vec![value], format!("{value} = "))
            }
            n => {
                let Value { number, .. } = self.value();
                let leaves = (0..n).map(|result| Value { number, result: Some(result as u32) });
                (leaves.collect(), format!("%{number}:{n} = "))
            }
        }
    }

    /// The attribute that donates a leaf of a parameter.
    fn donation(&self, instr: &Instruction, leaf: usize) -> Option<String> {
        let Op::Parameter { number, .. } = instr.op else { return None };
        Some(match self.donations.get(&(number, leaf))? {
            Donation::Output(output) => format!("tf.aliasing_output = {output} : i32"),
            Donation::Any => "jax.buffer_donor = true".to_string(),
        })
    }

    fn function_name(&self, comp: CompId) -> String {
        format!("f{}_{}", comp.0, inside_symbol(&self.module.comp(comp).name))
    }

    /// Writes the instructions of a computation whose parameters have these values; returns the root's.
    fn body(&mut self, comp: &'m Computation, parameters: &[Leaves], depth: usize) -> Result<Leaves, WriteError> {
        let mut values: Vec<Leaves> = Vec::with_capacity(comp.instructions.len());
        let mut starts: BTreeMap<InstrId, LeafPlaces<'m>> = BTreeMap::new();
        for instr in &comp.instructions {
            let leaves = match &instr.op {
                Op::Parameter { number, .. } => parameters.get(*number as usize).cloned().unwrap_or_default(),
                Op::Tuple => instr.operands.iter().flat_map(|id| values[id.idx()].iter().copied()).collect(),
                Op::GetTupleElement { index } => {
                    let tuple = instr.operands[0];
                    let places = starts.entry(tuple).or_insert_with(|| LeafPlaces::new(&comp.instr(tuple).shape));
                    values[tuple.idx()][places.of_element(*index as usize)].to_vec()
                }
                _ => self.instruction(comp, instr, &values, depth)?,
            };
            self.note_loss(instr);
            values.push(leaves);
        }
        Ok(values[comp.root.idx()].clone())
    }

    /// Counts what an instruction says that no result depends on, and StableHLO has no words for.
    fn note_loss(&mut self, instr: &Instruction) {
        let says = [
            ("the control predecessors", !instr.control_predecessors.is_empty()),
            ("the backend_config", !instr.backend_config.is_empty() && !matches!(instr.op, Op::CustomCall(_))),
            ("the custom_call_schedule", instr.unmodelled.attributes.iter().any(|(name, _)| name == SCHEDULE)),
        ];
        for (what, _) in says.into_iter().filter(|(_, is_said)| *is_said) {
            *self.lost.entry(what).or_default() += 1;
        }
    }

    fn instruction(
        &mut self,
        comp: &'m Computation,
        instr: &'m Instruction,
        values: &[Leaves],
        depth: usize,
    ) -> Result<Leaves, WriteError> {
        let operand_ids: &[InstrId] = match &instr.op {
            // The branches capture theirs.
            Op::Conditional(_) => &instr.operands[..1],
            _ => &instr.operands,
        };
        let operands: Leaves = operand_ids.iter().flat_map(|id| values[id.idx()].iter().copied()).collect();
        let mut operand_types = Vec::new();
        for id in operand_ids {
            operand_types.extend(self.types(comp, instr, &comp.instr(*id).shape)?);
        }
        let lhs = instr.operands.first().map(|id| &comp.instr(*id).shape);
        let Mnemonic { name, attributes } = mnemonic(instr, lhs).map_err(|(what, help)| WriteError::NoSuch {
            place: place(comp, instr),
            what,
            help,
        })?;
        if let Some(name) = unsaid(instr).next() {
            let what = format!("word for `{name}` of a {}", instr.op.opcode());
            return Err(WriteError::NoSuch { place: place(comp, instr), what, help: KEEP_HLO });
        }
        let mut said = attributes;
        if let Op::Call { to_apply } = &instr.op {
            said.push(self.callee(*to_apply));
        }
        let types = self.types(comp, instr, &instr.shape)?;
        let (leaves, start) = self.results(types.len());
        indent(&mut self.out, depth);
        write!(self.out, "{start}\"{name}\"({})", list(&operands)).expect(INTO_A_STRING);
        if !said.is_empty() {
            write!(self.out, " <{{{}}}>", said.join(", ")).expect(INTO_A_STRING);
        }
        self.regions(comp, instr, values, depth)?;
        let mut extra: Vec<String> = instr.sharding.as_deref().and_then(sharded).into_iter().collect();
        extra.extend(frontend(&instr.frontend_attributes));
        let (extra, loc) = (braced(&extra), location(&instr.metadata));
        writeln!(self.out, "{extra} : ({}) -> ({}){loc}", operand_types.join(", "), types.join(", "))
            .expect(INTO_A_STRING);
        Ok(leaves)
    }

    /// Writes the regions of an op: the computations that it applies.
    fn regions(
        &mut self,
        comp: &'m Computation,
        instr: &'m Instruction,
        values: &[Leaves],
        depth: usize,
    ) -> Result<(), WriteError> {
        if matches!(instr.op, Op::Call { .. } | Op::CustomCall(_)) || instr.op.called().is_empty() {
            return Ok(());
        }
        self.out.push_str(" (");
        for (idx, id) in instr.op.called().into_iter().enumerate() {
            self.out.push_str(if idx > 0 { ", {\n" } else { "{\n" });
            let called = self.module.comp(id);
            let parameters = match &instr.op {
                Op::Conditional(_) => vec![values[instr.operands[1 + idx].idx()].clone()],
                _ => self.block(comp, instr, called, depth)?,
            };
            let root = self.root(called);
            let types = self.types(called, root, &root.shape)?;
            let results = match self.is_function(id) {
                true => self.call(id, &parameters, &types, depth + 1)?,
                false => self.body(called, &parameters, depth + 1)?,
            };
            indent(&mut self.out, depth + 1);
            writeln!(self.out, "\"stablehlo.return\"({}) : ({}) -> ()", list(&results), types.join(", "))
                .expect(INTO_A_STRING);
            indent(&mut self.out, depth);
            self.out.push('}');
        }
        self.out.push(')');
        Ok(())
    }

    /// Begins a block with the parameters of a computation.
    fn block(
        &mut self,
        comp: &Computation,
        instr: &Instruction,
        called: &Computation,
        depth: usize,
    ) -> Result<Vec<Leaves>, WriteError> {
        let (mut parameters, mut words) = (Vec::new(), Vec::new());
        for id in called.parameters() {
            let types = self.types(comp, instr, &called.instr(id).shape)?;
            let leaves: Leaves = types.iter().map(|_| self.value()).collect();
            words.extend(leaves.iter().zip(&types).map(|(value, ty)| format!("{value}: {ty}")));
            parameters.push(leaves);
        }
        indent(&mut self.out, depth);
        writeln!(self.out, "^bb0({}):", words.join(", ")).expect(INTO_A_STRING);
        Ok(parameters)
    }

    /// Whether regions call a computation instead of holding it.
    fn is_function(&self, id: CompId) -> bool {
        let comp = self.module.comp(id);
        let is_short = || {
            let is_leaf = |instr: &Instruction| instr.op.called().is_empty();
            comp.instructions.len() <= MAX_REPEATED && comp.instructions.iter().all(is_leaf)
        };
        self.uses.get(&id).is_some_and(|&n| n > 1) && !is_short()
    }

    fn call(&mut self, id: CompId, args: &[Leaves], types: &[String], depth: usize) -> Result<Leaves, WriteError> {
        let comp = self.module.comp(id);
        let mut arg_types = Vec::new();
        for parameter in comp.parameters() {
            let instr = comp.instr(parameter);
            arg_types.extend(self.types(comp, instr, &instr.shape)?);
        }
        let callee = self.callee(id);
        let (leaves, start) = self.results(types.len());
        let operands = list(&args.concat());
        indent(&mut self.out, depth);
        let (arg_types, types) = (arg_types.join(", "), types.join(", "));
        writeln!(self.out, "{start}\"func.call\"({operands}) <{{{callee}}}> : ({arg_types}) -> ({types})")
            .expect(INTO_A_STRING);
        Ok(leaves)
    }

    /// The attribute of a call of this computation, which becomes a function.
    fn callee(&mut self, id: CompId) -> String {
        if self.is_wanted.insert(id) {
            self.wanted.push(id);
        }
        format!("callee = @{}", self.function_name(id))
    }

    fn types(&self, comp: &Computation, instr: &Instruction, shape: &Shape) -> Result<Vec<String>, WriteError> {
        shape.leaves().into_iter().map(|leaf| self.ty(comp, instr, leaf)).collect()
    }

    fn ty(&self, comp: &Computation, instr: &Instruction, shape: &Shape) -> Result<String, WriteError> {
        of_shape(shape).ok_or_else(|| WriteError::NoSuch {
            place: place(comp, instr),
            what: format!("type for {shape}"),
            help: KEEP_HLO,
        })
    }
}

/// When a custom call runs: no result depends on it.
const SCHEDULE: &str = "schedule";

/// Attributes of an instruction that the IR does not model and that `attributes`, `calls` and `collectives` do not write,
/// though a result may depend on them.
fn unsaid(instr: &Instruction) -> impl Iterator<Item = &str> {
    const OF_DEVICES: &[&str] = &[
        "channel_id",
        "constrain_layout",
        "dimensions",
        "replica_groups",
        "source_target_pairs",
        "use_global_device_ids",
    ];
    // Where it comes from, and what was measured of it.
    const OF_NO_RESULT: [&str; 5] = ["metadata", "origin", "original_value", "statistics", SCHEDULE];
    let written: &[&str] = match &instr.op {
        Op::CustomCall(_) => &["output_to_operand_aliasing"],
        Op::Opaque(opaque) => match opaque.opcode.as_str() {
            "fft" => &["fft_length", "fft_type"],
            "cholesky" => &["lower"],
            "triangular-solve" => &["left_side", "lower", "transpose_a", "unit_diagonal"],
            "topk" => &["k", "largest"],
            _ => OF_DEVICES,
        },
        _ => &[],
    };
    let names = instr.unmodelled.attributes.iter().map(|(name, _)| name.as_str());
    names.filter(move |name| !written.contains(name) && !OF_NO_RESULT.contains(name))
}

/// Attributes of a module on which no result depends.
fn lost_of_module(module: &Module) -> impl Iterator<Item = String> {
    let said = module.unmodelled.attributes.iter().filter(|(name, _)| !COUNTS.contains(&name.as_str()));
    let threads = module.computations.iter().filter(|comp| !comp.unmodelled.attributes.is_empty()).count();
    let of_module = said.map(|(name, _)| format!("`{name}` of the module"));
    let schedule = module.is_scheduled.then(|| "the schedule".to_string());
    let threads = (threads > 0).then(|| format!("the execution thread of {threads} computations"));
    of_module.chain(schedule).chain(threads)
}

const INTO_A_STRING: &str = "writing to a string cannot fail";

fn place(comp: &Computation, instr: &Instruction) -> String {
    format!("{}/%{}", comp.name, instr.name)
}

fn indent(out: &mut String, depth: usize) {
    out.extend(std::iter::repeat_n("  ", depth));
}

fn list(values: &[Value]) -> String {
    values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")
}

fn braced(attributes: &[String]) -> String {
    if attributes.is_empty() { String::new() } else { format!(" {{{}}}", attributes.join(", ")) }
}

/// A name as a symbol of MLIR's: it begins with a letter or an underscore, and has at least that.
fn symbol(name: &str) -> String {
    let starts_bare = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    format!("{}{}", if starts_bare { "" } else { "_" }, inside_symbol(name))
}

/// A name as a part of a symbol: what no symbol has without quotes becomes an underscore.
fn inside_symbol(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.' || c == '$';
    name.chars().map(|c| if is_bare(c) { c } else { '_' }).collect()
}

fn sharded(sharding: &Sharding) -> Option<String> {
    sharding_text(sharding).map(|text| format!("mhlo.sharding = \"{}\"", escaped(&text)))
}

/// The shardings of a value's leaves; one for all where it is no tuple's.
fn per_leaf(sharding: Option<&Sharding>, n: usize) -> Option<Vec<Sharding>> {
    match sharding? {
        Sharding::Tuple(all) if all.len() == n => Some(all.clone()),
        Sharding::Tuple(_) => None,
        one => Some(vec![one.clone(); n]),
    }
}

fn frontend(attributes: &[(String, String)]) -> Option<String> {
    let pair = |(name, value): &(String, String)| format!("\"{}\" = \"{}\"", escaped(name), escaped(value));
    let pairs = attributes.iter().map(pair).collect::<Vec<_>>().join(", ");
    (!attributes.is_empty()).then(|| format!("mhlo.frontend_attributes = {{{pairs}}}"))
}

/// `loc("scope/op"("file.py":3:0))`; nothing where nothing is known.
fn location(metadata: &Metadata) -> String {
    let file = || format!("\"{}\":{}:0", escaped(&metadata.source_file), metadata.source_line.max(0));
    let name = || escaped(&metadata.op_name);
    match (metadata.op_name.is_empty(), metadata.source_file.is_empty()) {
        (true, true) => String::new(),
        (false, true) => format!(" loc(\"{}\")", name()),
        (true, false) => format!(" loc({})", file()),
        (false, false) => format!(" loc(\"{}\"({}))", name(), file()),
    }
}

/// The receiver of the memory of a donated leaf.
enum Donation {
    /// The leaf of this number of the result.
    Output(usize),
    /// Whatever the compiler likes.
    Any,
}

/// By a parameter's number and its leaf's; of several aliases the first counts.
fn donations(module: &Module) -> BTreeMap<(i64, usize), Donation> {
    let entry = module.entry();
    let outputs = LeafPlaces::new(entry.result_shape());
    let numbered = entry.parameters().into_iter().filter_map(|id| match entry.instr(id).op {
        Op::Parameter { number, .. } => Some((number, LeafPlaces::new(&entry.instr(id).shape))),
        _ => None,
    });
    let parameters: BTreeMap<i64, LeafPlaces<'_>> = numbered.collect();
    let leaf = |number: i64, index: &[i64]| Some((number, parameters.get(&number)?.leaf(index)?));
    let mut donations = BTreeMap::new();
    for alias in &module.input_output_alias {
        let leaf = leaf(alias.parameter_number, &alias.parameter_index);
        if let Some((leaf, output)) = leaf.zip(outputs.leaf(&alias.output_index)) {
            donations.entry(leaf).or_insert(Donation::Output(output));
        }
    }
    for (number, index) in &module.buffer_donors {
        if let Some(leaf) = leaf(*number, index) {
            donations.entry(leaf).or_insert(Donation::Any);
        }
    }
    donations
}

/// Where each element of a tuple has its leaves among all of them.
struct LeafPlaces<'s> {
    shape: &'s Shape,
    /// Leaves before each element, and at the end all.
    starts: Vec<usize>,
}

impl<'s> LeafPlaces<'s> {
    fn new(shape: &'s Shape) -> LeafPlaces<'s> {
        let mut starts = vec![0];
        let mut n_leaves = 0;
        for element in shape.as_tuple().unwrap_or_default() {
            n_leaves += element.leaves().len();
            starts.push(n_leaves);
        }
        LeafPlaces { shape, starts }
    }

    /// The leaves of an element.
    fn of_element(&self, index: usize) -> std::ops::Range<usize> {
        self.starts[index]..self.starts[index + 1]
    }

    /// The leaf that an index leads to, if it leads to one.
    fn leaf(&self, index: &[i64]) -> Option<usize> {
        let Some((&first, rest)) = index.split_first() else { return (self.shape.leaves().len() == 1).then_some(0) };
        let first = usize::try_from(first).ok()?;
        let element = self.shape.as_tuple()?.get(first)?;
        Some(self.starts[first] + LeafPlaces::new(element).leaf(rest)?)
    }
}
