//! Products that cancel against sums of their own operands: ‖a‖² + ‖b‖² − 2a·b, its gradient a·Σg − g·b, a covariance
//! xᵀx/n − μμᵀ, a Gram matrix beside its own diagonal. The difference is small, so a rounding of the product is large
//! beside it.
//!
//! Products cancel against products, too: a variance or covariance E[xy] − E[x]E[y] whose means are products, as by a
//! window's convolution or a matrix of groups, or sums with computed weights, as those of attention; and a determinant
//! ac − bd of the entries of one product. The difference is small, so a rounding of what is subtracted is large beside it.

use super::dataflow::{Dataflow, Node, NodeId, ValueId};
use super::terms::{MAX_NODES, Terms, adds, is_scaling, is_sum};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::decisions::{is_map, movement};
use bf16scope_hlo::ops::precision::Movement;
use bf16scope_hlo::ops::{BinaryOp, UnaryOp};
use std::collections::{BTreeMap, BTreeSet};

/// The most sums that are followed below a sum.
const MAX_DEPTH: u32 = 4;

/// The products that cancel in a region.
pub(super) struct Cancellations {
    /// Products that cancel and the ops between, each with the sum in which it cancels.
    pub nodes: Vec<(NodeId, NodeId)>,
    /// The values that those products read, and those that were moved, negated or scaled to compute them or from them.
    pub read: Vec<ValueId>,
    /// Products whose entries cancel with each other: their f32 sum is enough.
    pub sums: Vec<NodeId>,
}

/// Finds all products of a region that cancel, and the ops between.
pub(super) fn cancellations(graph: &Dataflow<'_>) -> Cancellations {
    let mut finder = Finder {
        graph,
        source_of: sources(graph),
        sources: BTreeSet::new(),
        is_of_cancelled: vec![false; graph.values.len()],
        entries: BTreeMap::new(),
        sums: Vec::new(),
    };
    let mut nodes = Vec::new();
    for (sum, record) in (0..).zip(&graph.nodes) {
        let reads = finder.reads_cancelled(record);
        record.results().for_each(|value| finder.is_of_cancelled[value as usize] |= reads);
        if adds(graph.op(sum))
            && let Some(terms) = Terms::of_sum(graph, sum)
        {
            let moments = finder.moments(sum, &terms);
            finder.take(&moments);
            let products = finder.products(&terms);
            finder.take(&products);
            nodes.extend(products.into_iter().chain(moments).map(|node| (node, sum)));
        }
    }
    let is_read = |&value: &ValueId| finder.sources.contains(&finder.source_of[value as usize]);
    let read = (0..graph.values.len() as ValueId).filter(is_read).collect();
    Cancellations { nodes, read, sums: finder.sums }
}

/// Finds what cancels, sum by sum.
pub(super) struct Finder<'g, 'm> {
    pub graph: &'g Dataflow<'m>,
    /// For each value the value that was moved, cast, negated or scaled to compute it.
    pub source_of: Vec<ValueId>,
    /// The operands of products that cancel.
    pub sources: BTreeSet<ValueId>,
    /// For each value whether it is computed from a product that cancels.
    is_of_cancelled: Vec<bool>,
    /// For each difference of entries of one product that product's value.
    pub entries: BTreeMap<ValueId, ValueId>,
    /// Products whose f32 sum is enough.
    pub sums: Vec<NodeId>,
}

impl Finder<'_, '_> {
    /// Whether a node reads an f32 value that is computed from a product that cancels.
    pub(super) fn reads_cancelled(&self, record: &Node) -> bool {
        let is_f32 = |&&value: &&ValueId| self.graph.value(value).is_f32();
        record.operands.iter().filter(is_f32).any(|&value| self.is_of_cancelled[value as usize])
    }

    /// Products that cancel against sums of their own operands, and the ops between; empty if none does.
    fn products(&self, terms: &Terms) -> Vec<NodeId> {
        let graph = self.graph;
        let summed: Vec<BTreeSet<ValueId>> =
            terms.others.iter().flat_map(|&other| sums_under(graph, &self.source_of, other)).collect();
        let cancels = |&&(product, is_whole): &&(NodeId, bool)| {
            let record = graph.node(product);
            let sources: BTreeSet<ValueId> =
                record.operands.iter().map(|&value| self.source_of[value as usize]).collect();
            // The product beside a part of itself: its diagonal, if both operands are one array.
            let meets_itself = is_whole && sources.len() == 1 && terms.products.contains(&(product, false));
            // The gradient of a product that cancels: it reads one operand of that product, and a value computed from
            // it.
            let is_gradient =
                !terms.others.is_empty() && !self.sources.is_disjoint(&sources) && record.reads(&self.is_of_cancelled);
            meets_itself || is_gradient || summed.iter().any(|leaves| leaves.is_subset(&sources))
        };
        let products: Vec<NodeId> = terms.products.iter().filter(cancels).map(|&(product, _)| product).collect();
        let between: &[NodeId] = if products.is_empty() { &[] } else { &terms.between };
        products.into_iter().chain(between.iter().copied()).collect()
    }

    /// Notes which nodes cancel, and what the products among them read.
    fn take(&mut self, cancelled: &[NodeId]) {
        for record in cancelled.iter().map(|&node| self.graph.node(node)) {
            record.results().for_each(|value| self.is_of_cancelled[value as usize] = true);
            if record.is_product() {
                let operand_sources = record.operands.iter().map(|&value| self.source_of[value as usize]);
                self.sources.extend(operand_sources.filter(|&value| !self.graph.value(value).is_data));
            }
        }
    }
}

/// For each value the value that was moved, cast, negated or scaled to compute it.
fn sources(graph: &Dataflow<'_>) -> Vec<ValueId> {
    let mut sources: Vec<ValueId> = (0..graph.values.len() as ValueId).collect();
    for record in &graph.nodes {
        let op = &graph.instr(record).op;
        let is_move = match op {
            Op::Convert | Op::Unary(UnaryOp::Copy | UnaryOp::Negate | UnaryOp::Abs) => true,
            _ if matches!(movement(op), Movement::Places | Movement::Repeats) => true,
            _ => record.is_clear() && record.operands.len() == 1 || is_scaling(graph, record),
        };
        let learned = record.operands.iter().find(|&&operand| !graph.value(operand).is_data);
        if let Some(&operand) = learned.filter(|_| is_move) {
            record.results().for_each(|value| sources[value as usize] = sources[operand as usize]);
        }
    }
    sources
}

/// For each sum along some of the axes that `node` computes on elementwise, the arrays that are summed.
fn sums_under(graph: &Dataflow<'_>, sources: &[ValueId], node: NodeId) -> Vec<BTreeSet<ValueId>> {
    let (mut seen, mut open, mut sums) = (BTreeSet::new(), vec![node], Vec::new());
    while let Some(node) = open.pop() {
        if !seen.insert(node) || seen.len() > MAX_NODES {
            continue;
        }
        let record = graph.node(node);
        if is_sum(graph, node) {
            sums.push(leaves(graph, sources, node));
        } else if is_map(&graph.instr(record).op) || record.is_clear() {
            open.extend(graph.makers(node));
        }
    }
    sums.retain(|leaves| !leaves.is_empty());
    sums
}

/// The arrays that a sum adds up, or whose squares it adds up: behind other sums, and one multiplication.
fn leaves(graph: &Dataflow<'_>, sources: &[ValueId], sum: NodeId) -> BTreeSet<ValueId> {
    let mut leaves = BTreeSet::new();
    let mut open: Vec<(ValueId, u32)> = graph.node(sum).operands.iter().map(|&value| (value, 0)).collect();
    while let Some((value, depth)) = open.pop() {
        let value = sources[value as usize];
        let maker = graph.node(graph.producer(value));
        let multiplies = matches!(graph.instr(maker).op, Op::Binary(BinaryOp::Multiply));
        if depth < MAX_DEPTH && (multiplies || is_sum(graph, graph.producer(value))) {
            let depth = if multiplies { MAX_DEPTH } else { depth + 1 };
            open.extend(maker.operands.iter().map(|&value| (value, depth)));
        } else if !graph.value(value).is_data {
            leaves.insert(value);
        }
    }
    leaves
}

/// The most factors of one product that are compared.
const MAX_FACTORS: usize = 8;

/// The most products and multiplications of each other's results that are followed.
const MAX_PRODUCTS: u32 = 2;

impl Finder<'_, '_> {
    /// Products that cancel against products within a sum of these terms, and the ops between.
    pub(super) fn moments(&mut self, sum: NodeId, terms: &Terms) -> Vec<NodeId> {
        let multiplied: Vec<(NodeId, [ValueId; 2])> =
            terms.others.iter().filter_map(|&term| Some((term, self.factors(term)?))).collect();
        let summed: Vec<NodeId> =
            terms.products.iter().map(|&(product, _)| product).chain(terms.others.iter().copied()).collect();
        let mut nodes = Vec::new();
        for &(multiplication, factors) in &multiplied {
            nodes.extend(self.of_means(multiplication, factors, &summed));
            nodes.extend(self.of_gradient(multiplication, factors, &summed));
        }
        nodes.extend(self.of_mean(sum, &summed));
        nodes.extend(self.of_frame(sum));
        if let Some((product, moved)) = self.of_entries(sum, terms, &multiplied) {
            self.sums.push(self.graph.producer(product));
            nodes.extend(moved.into_iter().chain(multiplied.iter().map(|&(multiplication, _)| multiplication)));
            self.entries.extend(self.graph.node(sum).results().map(|value| (value, product)));
        }
        if !nodes.is_empty() {
            nodes.extend(&terms.between);
        }
        nodes
    }

    /// E[xy] beside E[x]E[y]: all that is multiplied in the first is read by one of the means, and none reads as much.
    fn of_means(&self, multiplication: NodeId, means: [ValueId; 2], summed: &[NodeId]) -> Vec<NodeId> {
        let means = means.map(|mean| self.graph.producer(mean));
        let [Some(x), Some(y)] = means.map(|mean| self.summands(mean)) else { return Vec::new() };
        let read: BTreeSet<ValueId> = x.learned.iter().chain(&y.learned).copied().collect();
        let mut nodes = Vec::new();
        for &term in summed {
            let Some(moment) = self.summands(term) else { continue };
            let is_second = moment.learned.len() > x.learned.len().max(y.learned.len())
                || moment.has_data && x.has_data && y.has_data;
            let is_same = moment.learned.iter().copied().collect::<BTreeSet<_>>() == read;
            let all = [&moment, &x, &y];
            let mut multiplied: Vec<NodeId> = all.into_iter().flat_map(|it| &it.products).copied().collect();
            if x.learned.len().min(y.learned.len()) > 1 {
                multiplied.extend(all.into_iter().flat_map(|it| &it.weighted));
                multiplied.extend(means.into_iter().chain([term]));
            }
            if is_second && is_same && !read.is_empty() && !multiplied.is_empty() {
                nodes.extend(multiplied.into_iter().chain([multiplication]));
            }
        }
        nodes
    }

    /// x beside its own mean: a product of x and constants alone is subtracted from it.
    fn of_mean(&self, sum: NodeId, summed: &[NodeId]) -> Vec<NodeId> {
        let record = self.graph.node(sum);
        if !matches!(self.graph.instr(record).op, Op::Binary(BinaryOp::Subtract)) {
            return Vec::new();
        }
        let operands: Vec<ValueId> = record.operands.iter().map(|&value| self.source_of[value as usize]).collect();
        let is_mean = |&&term: &&NodeId| {
            let summands = self.summands(term).filter(|summands| summands.has_data && !summands.products.is_empty());
            summands.is_some_and(|summands| summands.learned.len() == 1 && operands.contains(&summands.learned[0]))
        };
        summed.iter().filter(is_mean).copied().collect()
    }

    /// A product of x + t less t, where t is broadcast to x, as where points go to another frame and back: the product's
    /// f32 sum is enough.
    fn of_frame(&mut self, sum: NodeId) -> Option<NodeId> {
        let record = self.graph.node(sum);
        let (Op::Binary(BinaryOp::Subtract), &[a, b]) = (self.graph.op(sum), &record.operands[..]) else { return None };
        let [a, b] = [a, b].map(|value| self.source_of[value as usize]);
        let n_elements = |value: ValueId| self.graph.value(value).n_elements;
        let adds_to = |value: ValueId, addend: ValueId| {
            let moved = self.source_of[value as usize];
            let maker = self.graph.producer(moved);
            let mut operands = self.graph.node(maker).operands.iter().map(|&operand| self.source_of[operand as usize]);
            let is_repeated = n_elements(addend) < n_elements(moved);
            is_repeated && adds(self.graph.op(maker)) && operands.any(|operand| operand == addend)
        };
        let is_of_frame = |&(product, addend): &(NodeId, ValueId)| {
            let record = self.graph.node(product);
            record.is_product() && record.operands.iter().any(|&value| adds_to(value, addend))
        };
        let (product, _) = [(self.graph.producer(a), b), (self.graph.producer(b), a)].into_iter().find(is_of_frame)?;
        self.sums.push(product);
        Some(sum)
    }

    /// The gradient of such a difference: x, which it reads, times one product, beside another product, both of values
    /// that are computed from it.
    fn of_gradient(&self, multiplication: NodeId, factors: [ValueId; 2], summed: &[NodeId]) -> Vec<NodeId> {
        let is_of_one = |&product: &NodeId| {
            let record = self.graph.node(product);
            record.is_product() && self.reads_cancelled(record)
        };
        let multiplied = factors.map(|factor| self.graph.producer(factor)).into_iter().find(is_of_one);
        let others: Vec<NodeId> = summed.iter().copied().filter(is_of_one).collect();
        match multiplied {
            Some(product) if !others.is_empty() && factors.iter().any(|factor| self.sources.contains(factor)) => {
                others.into_iter().chain([product, multiplication]).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The product whose entries, or these plus constants, are multiplied with each other in all terms of a difference;
    /// and the nodes that add the constants.
    fn of_entries(
        &self,
        sum: NodeId,
        terms: &Terms,
        multiplied: &[(NodeId, [ValueId; 2])],
    ) -> Option<(ValueId, BTreeSet<NodeId>)> {
        let subtracts = |&node: &NodeId| matches!(self.graph.op(node), Op::Binary(BinaryOp::Subtract));
        let is_difference = subtracts(&sum) || terms.between.iter().any(subtracts);
        let mut moved = BTreeSet::new();
        let mut product_of = |value: &ValueId| {
            let mut product = self.entries.get(value).copied().unwrap_or(*value);
            while let Some(moves) = self.shifted(product) {
                moved.insert(self.graph.producer(product));
                product = moves;
            }
            product
        };
        let mut factors = multiplied.iter().flat_map(|(_, factors)| factors);
        let first = product_of(factors.next()?);
        let is_product = self.graph.node(self.graph.producer(first)).is_product();
        let is_one = is_product && factors.all(|value| product_of(value) == first);
        let is_all = terms.products.is_empty() && terms.others.len() == multiplied.len() && multiplied.len() > 1;
        (is_difference && is_one && is_all).then_some((first, moved))
    }

    /// The value that constants are added to.
    fn shifted(&self, value: ValueId) -> Option<ValueId> {
        let record = self.graph.node(self.graph.producer(value));
        let adds = adds(&self.graph.instr(record).op);
        let mut learned = record.operands.iter().filter(|&&operand| !self.graph.value(operand).is_data);
        let shifted = learned.next().map(|&operand| self.source_of[operand as usize]);
        shifted.filter(|_| adds && learned.next().is_none())
    }

    /// The two factors of a multiplication.
    fn factors(&self, node: NodeId) -> Option<[ValueId; 2]> {
        let record = self.graph.node(node);
        let multiplies = matches!(self.graph.instr(record).op, Op::Binary(BinaryOp::Multiply));
        let sources = record.operands.iter().map(|&value| self.source_of[value as usize]);
        <[ValueId; 2]>::try_from(sources.collect::<Vec<_>>()).ok().filter(|_| multiplies)
    }

    /// The numbers that a product or a sum along axes adds up, divided or not; a product of another's result adds up what
    /// that does.
    fn summands(&self, node: NodeId) -> Option<Summands> {
        let mut summands = Summands::default();
        let divided = match (self.graph.op(node), &self.graph.node(node).operands[..]) {
            (Op::Binary(BinaryOp::Divide), &[sum, _]) => self.graph.producer(self.source_of[sum as usize]),
            _ => node,
        };
        let mut open = vec![(divided, 0)];
        while let Some((node, depth)) = open.pop() {
            let record = self.graph.node(node);
            let is_product = record.is_product();
            if depth == 0 && !is_product && !is_sum(self.graph, node) {
                return None;
            }
            if is_product {
                summands.products.push(node);
            } else if depth > 0 {
                summands.weighted.push(node);
            }
            for &value in &record.operands {
                let value = self.source_of[value as usize];
                let maker = self.graph.producer(value);
                let is_open = self.factors(maker).is_some() && !self.graph.value(value).is_data
                    || self.graph.node(maker).is_product() && depth < MAX_PRODUCTS && is_product;
                if summands.learned.len() + open.len() > MAX_FACTORS {
                    return None;
                }
                match self.graph.value(value).is_data {
                    true => summands.has_data = true,
                    false if is_open => open.push((maker, depth + 1)),
                    false => summands.learned.push(value),
                }
            }
        }
        Some(summands)
    }
}

/// The numbers that a product or a sum adds up.
#[derive(Default)]
struct Summands {
    /// Their factors that are no data of positions and constants.
    learned: Vec<ValueId>,
    /// Whether data is among the factors.
    has_data: bool,
    /// The products that add them up.
    products: Vec<NodeId>,
    /// The multiplications of factors with each other, below a sum.
    weighted: Vec<NodeId>,
}

#[cfg(test)]
mod tests {
    use crate::amp::{self, Policy};
    use bf16scope_hlo::{DType, text};

    #[test]
    fn a_product_of_points_less_what_moved_them_gives_its_f32_sum() {
        let dtype = |op: &str| {
            let source = format!(
                "HloModule m\n\nENTRY main {{\n  h = f32[8,16] parameter(0)\n  w = f32[16,3] parameter(1)\n  \
                 t = f32[3] parameter(2)\n  a = f32[8,8] parameter(3)\n  o = f32[3,16] parameter(4)\n  \
                 p = f32[8,3] dot(h, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
                 ts = f32[8,3] broadcast(t), dimensions={{1}}\n  x = f32[8,3] add(p, ts)\n  \
                 y = f32[8,3] dot(a, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
                 d = f32[8,3] {op}(y, ts)\n  \
                 ROOT z = f32[8,16] dot(d, o), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n}}\n"
            );
            let (lowered, _) = amp::run(&text::parse(&source, "m").unwrap(), &Policy::default()).unwrap();
            lowered.entry().instructions.iter().find(|instr| instr.name == "y").and_then(|instr| instr.shape.dtype())
        };
        assert_eq!(dtype("subtract"), Some(DType::F32));
        assert_eq!(dtype("add"), Some(DType::BF16));
    }
}
