//! Scoped names: the path of the scope that is open, and instruction names made from it.

use std::cell::RefCell;
use std::collections::BTreeSet;

/// The name levels that are open, outermost first.
#[derive(Debug, Default)]
pub(super) struct Path(RefCell<String>);

impl Path {
    /// `leaf` under the open levels: `resnet/block1/leaf`; the levels alone for an empty leaf.
    pub(super) fn join(&self, leaf: &str) -> String {
        let path = self.0.borrow();
        match (path.is_empty(), leaf.is_empty()) {
            (true, _) => leaf.to_string(),
            (false, true) => path.clone(),
            (false, false) => format!("{path}/{leaf}"),
        }
    }

    /// Runs `body` with one more level; an empty name adds none.
    pub(super) fn within<R>(&self, level: &str, body: impl FnOnce() -> R) -> R {
        let outer = self.0.borrow().clone();
        if !level.is_empty() {
            let inner = self.join(level);
            *self.0.borrow_mut() = inner;
        }
        let result = body();
        *self.0.borrow_mut() = outer;
        result
    }

    /// Opens the levels of a path permanently.
    pub(super) fn open(&self, path: String) {
        *self.0.borrow_mut() = path;
    }

    /// The open levels as one path.
    pub(super) fn current(&self) -> String {
        self.0.borrow().clone()
    }
}

/// Instruction names given to parameters so far.
#[derive(Debug, Default)]
pub(super) struct Taken(RefCell<BTreeSet<String>>);

impl Taken {
    /// `path` as a unique instruction name: HLO names hold letters, digits, `_`, `.`, `-`.
    pub(super) fn unique(&self, path: &str) -> String {
        let legal = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '.' };
        let mut base: String = path.chars().map(legal).collect();
        if !base.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            base.insert(0, '_');
        }
        // A generated name is `opcode.number`; a user's name must not look like a future one.
        if base.rsplit_once('.').is_some_and(|(_, tail)| tail.bytes().all(|b| b.is_ascii_digit())) {
            base.push('_');
        }
        let mut taken = self.0.borrow_mut();
        let mut name = base.clone();
        let mut suffix = 0;
        while !taken.insert(name.clone()) {
            suffix += 1;
            name = format!("{base}_{suffix}");
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_legal_unique_and_never_those_of_generated_instructions() {
        let taken = Taken::default();
        let names =
            ["block1/conv2/kernel", "block1.conv2.kernel", "3d", "add/12", "", "größe"].map(|n| taken.unique(n));
        assert_eq!(names, ["block1.conv2.kernel", "block1.conv2.kernel_1", "_3d", "add.12_", "_", "gr..e"]);
    }
}
