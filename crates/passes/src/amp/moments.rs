//! Products that cancel against products: a variance or covariance E[xy] − E[x]E[y] whose means are products, as by a
//! window's convolution or a matrix of groups, or sums with computed weights, as those of attention; and a determinant
//! ac − bd of the entries of one product. The difference is small, so a rounding of what is subtracted is large beside it.

use super::cancellation::Finder;
use super::dataflow::{NodeId, ValueId};
use super::terms::{Terms, adds, is_sum};
use bf16scope_hlo::Op;
use bf16scope_hlo::ops::BinaryOp;
use std::collections::BTreeSet;

/// The most factors of one product that are compared.
const MAX_FACTORS: usize = 8;

/// The most products and multiplications of each other's results that are followed.
const MAX_DEPTH: u32 = 2;

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
                    || self.graph.node(maker).is_product() && depth < MAX_DEPTH && is_product;
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
