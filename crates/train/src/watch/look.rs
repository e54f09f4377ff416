//! A record with the one before it, as rules read them: rows by quantity, a layer's inputs, a scope's variables.

use super::row::{Quantity, Role, WatchRecord, WatchRow};
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};

/// Two records, and the first one of the run.
pub(super) struct Look<'a> {
    pub now: &'a WatchRecord,
    pub before: Option<&'a WatchRecord>,
    pub first: Option<&'a WatchRecord>,
    /// Where rows of this record, of the one before and of the first are: rules look them up for every row.
    index: OnceCell<Index<'a>>,
    index_before: OnceCell<Index<'a>>,
    index_first: OnceCell<Index<'a>>,
}

impl<'a> Look<'a> {
    pub(super) fn new(
        now: &'a WatchRecord,
        before: Option<&'a WatchRecord>,
        first: Option<&'a WatchRecord>,
    ) -> Look<'a> {
        let (index, index_before, index_first) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Look { now, before, first, index, index_before, index_first }
    }

    /// A record without a predecessor.
    pub(super) fn alone(now: &'a WatchRecord) -> Look<'a> {
        Look::new(now, None, None)
    }
}

/// Where the rows of a record are. Of rows that are alike it has the first.
struct Index<'a> {
    /// By layer, quantity and role.
    rows: HashMap<(&'a str, Quantity, Option<Role>), usize>,
    /// By layer and quantity, whatever their role is.
    of_quantity: HashMap<(&'a str, Quantity), usize>,
    /// The gradients of a scope's own variables.
    gradients: HashMap<&'a str, Vec<usize>>,
    /// For each row the layers that depend on it.
    readers: Vec<Vec<usize>>,
    /// Whether rows have what they depend on: records of older versions do not.
    has_takes: bool,
}

impl<'a> Index<'a> {
    fn new(record: &'a WatchRecord) -> Index<'a> {
        let readers = vec![Vec::new(); record.rows.len()];
        let has_takes = record.rows.iter().any(|row| !row.takes.is_empty());
        let mut index =
            Index { rows: HashMap::new(), of_quantity: HashMap::new(), gradients: HashMap::new(), readers, has_takes };
        for (number, row) in record.rows.iter().enumerate() {
            index.rows.entry((&row.layer, row.quantity, row.role)).or_insert(number);
            index.of_quantity.entry((&row.layer, row.quantity)).or_insert(number);
            if row.quantity == Quantity::Gradient {
                index.gradients.entry(row.scope()).or_default().push(number);
            }
            if row.is_layer() {
                for taken in &row.takes {
                    index.readers.get_mut(*taken as usize).into_iter().for_each(|readers| readers.push(number));
                }
            }
        }
        index.readers.iter_mut().for_each(Vec::dedup);
        index
    }

    /// The row of the same layer, quantity and role.
    fn same(&self, row: &WatchRow) -> Option<usize> {
        self.rows.get(&(row.layer.as_str(), row.quantity, row.role)).copied()
    }
}

/// A row that meets a rule, by its number, with the measurement, and another remedy if one fits better.
pub(super) struct Found {
    pub row: usize,
    pub what: String,
    pub remedy: Option<String>,
    /// Another layer than the row's.
    pub layer: Option<String>,
    /// The step of the cause, if it is known and not this record's.
    pub step: Option<u64>,
}

impl Found {
    pub(super) fn new(row: usize, what: String) -> Found {
        Found { row, what, remedy: None, layer: None, step: None }
    }

    pub(super) fn with_remedy(self, remedy: impl Into<String>) -> Found {
        Found { remedy: Some(remedy.into()), ..self }
    }
}

/// Whether a loss is above another by this share of its magnitude, or, of a negative share, not farther below it. Twice
/// a positive loss is a share of 1. Negative log-likelihoods of densities and other losses are below 0.
pub(super) fn exceeds(loss: f32, other: f32, share: f32) -> bool {
    loss - other >= share * other.abs()
}

/// A share for people.
pub(super) fn percent(share: f64) -> String {
    match 100.0 * share {
        all if all > 99.95 => "all".to_string(),
        share if share >= 1.0 => format!("{share:.1} %"),
        share => format!("{share:.2} %"),
    }
}

/// Variables that multiply a layer's input.
const KERNELS: [&str; 2] = ["kernel", "embeddings"];

impl Look<'_> {
    /// The rows of a quantity, with their numbers.
    pub(super) fn rows(&self, quantity: Quantity) -> impl Iterator<Item = (usize, &WatchRow)> {
        self.now.rows.iter().enumerate().filter(move |(_, row)| row.quantity == quantity)
    }

    /// The network's activations without inputs, the loss and the exponents of softmaxes.
    pub(super) fn layers(&self) -> impl Iterator<Item = (usize, &WatchRow)> {
        self.rows(Quantity::Activation).filter(|(_, row)| row.is_layer())
    }

    fn index(&self) -> &Index<'_> {
        self.index.get_or_init(|| Index::new(self.now))
    }

    /// The layers that depend on a row directly.
    pub(super) fn readers(&self, number: usize) -> impl Iterator<Item = (usize, &WatchRow)> {
        let readers = self.index().readers.get(number).map_or(&[][..], |readers| readers);
        readers.iter().map(|&reader| (reader, &self.now.rows[reader]))
    }

    /// The same row in the record before.
    pub(super) fn before(&self, row: &WatchRow) -> Option<&WatchRow> {
        let before = self.before?;
        before.rows.get(self.index_before.get_or_init(|| Index::new(before)).same(row)?)
    }

    /// The same row in the first record.
    pub(super) fn at_first(&self, row: &WatchRow) -> Option<&WatchRow> {
        let first = self.first?;
        first.rows.get(self.index_first.get_or_init(|| Index::new(first)).same(row)?)
    }

    /// Whether variables changed between the records.
    pub(super) fn has_moved(&self) -> bool {
        self.before.is_some_and(|before| before.learning_rate > 0.0)
    }

    /// The row of a variable's gradient.
    pub(super) fn gradient_of(&self, variable: &str) -> Option<&WatchRow> {
        self.of_quantity(variable, Quantity::Gradient)
    }

    /// The first row of a layer or a variable with a quantity.
    fn of_quantity(&self, layer: &str, quantity: Quantity) -> Option<&WatchRow> {
        self.now.rows.get(*self.index().of_quantity.get(&(layer, quantity))?)
    }

    pub(super) fn are_gradients_finite(&self) -> bool {
        self.rows(Quantity::Gradient).all(|(_, row)| row.not_finite == 0.0)
    }

    /// The cotangent of an activation: the row with the same layer and role.
    pub(super) fn cotangent(&self, activation: &WatchRow) -> Option<&WatchRow> {
        let key = (activation.layer.as_str(), Quantity::Cotangent, activation.role);
        self.now.rows.get(*self.index().rows.get(&key)?)
    }

    /// The rows that an activation depends on. Records of older versions do not have them: the row before it is used.
    pub(super) fn taken<'s>(&'s self, number: usize, row: &'s WatchRow) -> Vec<(usize, &'s WatchRow)> {
        if row.takes.is_empty() && !self.index().has_takes {
            return number.checked_sub(1).map(|last| (last, &self.now.rows[last])).into_iter().collect();
        }
        let at = |place: &u32| Some((*place as usize, self.now.rows.get(*place as usize)?));
        row.takes.iter().filter_map(at).collect()
    }

    /// The layers that depend on an activation.
    pub(super) fn after(&self, number: usize) -> Vec<(usize, &WatchRow)> {
        let mut handed = BTreeSet::from([number]);
        let mut after = Vec::new();
        for (at, row) in self.layers().filter(|(at, _)| *at > number) {
            if self.taken(at, row).iter().any(|(taken, _)| handed.contains(taken)) {
                handed.insert(at);
                after.push((at, row));
            }
        }
        after
    }

    /// A scope's own variables by their last names, with their largest magnitudes.
    pub(super) fn variables(&self, scope: &str) -> Vec<(&str, Option<f32>)> {
        let gradients = self.index().gradients.get(scope).map_or(&[][..], |numbers| numbers);
        let stored = |name: &str| self.of_quantity(name, Quantity::Update).and_then(|row| row.stored);
        let gradients = gradients.iter().map(|&number| &self.now.rows[number]);
        gradients.map(|row| (row.layer.rsplit('/').next().unwrap_or(&row.layer), stored(&row.layer))).collect()
    }

    /// Whether a layer multiplies its input by a kernel.
    pub(super) fn has_kernel(&self, scope: &str) -> bool {
        self.variables(scope).iter().any(|(name, _)| KERNELS.contains(name))
    }

    /// Whether a layer normalises: it has a scale or an offset, and no kernel.
    pub(super) fn is_norm(&self, scope: &str) -> bool {
        let variables = self.variables(scope);
        let is_of_norm = |(name, _): &(&str, _)| ["gamma", "beta", "scale"].contains(name);
        variables.iter().any(is_of_norm) && !self.has_kernel(scope)
    }

    /// Whether a layer looks rows up by its input, which are indices: their size says nothing.
    pub(super) fn is_lookup(&self, scope: &str) -> bool {
        self.variables(scope).iter().any(|(name, _)| *name == "embeddings")
    }

    /// Whether all of a layer's kernels are 0.
    pub(super) fn is_zero_kernel(&self, scope: &str) -> bool {
        let variables = self.variables(scope);
        let mut kernels = variables.iter().filter(|(name, _)| KERNELS.contains(name) || *name == "gamma").peekable();
        kernels.peek().is_some() && kernels.all(|(_, stored)| *stored == Some(0.0))
    }

    /// The largest rms of float labels; at least 1.
    pub(super) fn label_scale(&self) -> f32 {
        let labels = self.rows(Quantity::Activation).filter(|(_, row)| row.role == Some(Role::Label));
        labels.map(|(_, row)| row.rms).fold(1.0, f32::max)
    }
}

/// √Σx² of a row, which does not depend on the layer's size as the rms does.
pub(super) fn norm(row: &WatchRow) -> f64 {
    f64::from(row.rms) * (row.n as f64).sqrt()
}
