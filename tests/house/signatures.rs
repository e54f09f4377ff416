//! Public signatures name only our own types, so that a new major version of a dependency is not a breaking change of
//! ours.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use super::{Source, check, dependencies, is_public, parsed, room, sources};

/// The crates whose types may be in public signatures, with the files that are allowed to.
const FOREIGN: [(&str, &[&str]); 4] = [
    // bf16 and f16 as values.
    ("half", &["crates/"]),
    // Traits that configurations and reports implement.
    ("serde", &["crates/"]),
    // With the feature of that name: views and arrays of the crate.
    ("ndarray", &["crates/hlo/src/array/ndarray.rs"]),
    // With the feature of that name: it converts types of xla-rs.
    ("xla", &["crates/pjrt/src/interop/xla.rs", "crates/pjrt/src/xla/"]),
];

/// The crates that a file's public items name in their signatures, as far as the file shows it.
#[derive(Default)]
struct Signatures {
    /// For each imported name the crate that it comes from.
    imported: BTreeMap<String, String>,
    /// Lines and crates.
    foreign: Vec<(usize, String)>,
    crates: BTreeSet<String>,
}

/// Which of some crates the public signatures of a file name, with the lines.
pub fn foreign(file: &syn::File, crates: &BTreeSet<String>) -> Vec<(usize, String)> {
    let mut signatures = Signatures { crates: crates.clone(), ..Signatures::default() };
    signatures.items(&file.items);
    signatures.foreign
}

impl Signatures {
    fn items(&mut self, items: &[syn::Item]) {
        for item in items {
            if let syn::Item::Use(item) = item {
                self.import(&item.tree, None);
            }
        }
        for item in items {
            match item {
                syn::Item::Fn(item) if is_public(&item.vis) => self.look(&item.sig),
                syn::Item::Const(item) if is_public(&item.vis) => self.look(&item.ty),
                syn::Item::Static(item) if is_public(&item.vis) => self.look(&item.ty),
                syn::Item::Type(item) if is_public(&item.vis) => self.look(&item.ty),
                syn::Item::Use(item) if is_public(&item.vis) => self.look(&item.tree),
                syn::Item::Struct(item) if is_public(&item.vis) => {
                    self.look(&item.generics);
                    item.fields.iter().filter(|field| is_public(&field.vis)).for_each(|field| self.look(&field.ty));
                }
                syn::Item::Enum(item) if is_public(&item.vis) => {
                    self.look(&item.generics);
                    item.variants.iter().for_each(|variant| self.look(&variant.fields));
                }
                syn::Item::Trait(item) if is_public(&item.vis) => {
                    item.items.iter().for_each(|item| match item {
                        syn::TraitItem::Fn(function) => self.look(&function.sig),
                        other => self.look(other),
                    });
                }
                syn::Item::Impl(item) => self.implementation(item),
                syn::Item::Mod(syn::ItemMod { content: Some((_, items)), vis, .. }) if is_public(vis) => {
                    self.items(items)
                }
                _ => {}
            }
        }
    }

    /// In the implementation of a trait, the trait's arguments (`From<…>`) count; of inherent methods, the public
    /// ones.
    fn implementation(&mut self, item: &syn::ItemImpl) {
        match &item.trait_ {
            Some((_, path, _)) => {
                let arguments = path.segments.iter().map(|segment| &segment.arguments);
                arguments.for_each(|arguments| self.look(arguments));
            }
            None => item.items.iter().for_each(|item| match item {
                syn::ImplItem::Fn(function) if is_public(&function.vis) => self.look(&function.sig),
                syn::ImplItem::Const(item) if is_public(&item.vis) => self.look(&item.ty),
                _ => {}
            }),
        }
    }

    fn import(&mut self, tree: &syn::UseTree, root: Option<&str>) {
        match tree {
            syn::UseTree::Path(path) => {
                let first = path.ident.to_string();
                self.import(&path.tree, root.or(Some(&first)));
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, root)),
            syn::UseTree::Name(name) => drop(self.insert(&name.ident, root)),
            syn::UseTree::Rename(rename) => drop(self.insert(&rename.rename, root)),
            syn::UseTree::Glob(_) => {}
        }
    }

    fn insert(&mut self, name: &syn::Ident, root: Option<&str>) -> Option<String> {
        // A trait imported `as _` has no name.
        let root = root.filter(|_| *name != "_").map_or_else(|| name.to_string(), str::to_string);
        self.crates.contains(&root).then(|| self.imported.insert(name.to_string(), root))?
    }

    /// Records the crates that a part of a signature names, with the lines.
    fn look(&mut self, tokens: &impl ToTokens) {
        self.stream(tokens.to_token_stream());
    }

    fn stream(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is_colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(it)) if it.as_char() == ':');
        for (i, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.stream(group.stream()),
                // Only the first name of a path identifies the crate.
                TokenTree::Ident(name) if !(i >= 2 && is_colon(i - 1) && is_colon(i - 2)) => {
                    let leads_on = is_colon(i + 1) && is_colon(i + 2);
                    let text = name.to_string();
                    let root = match self.imported.get(&text) {
                        Some(root) => Some(root.clone()),
                        None => (leads_on && self.crates.contains(&text)).then_some(text),
                    };
                    self.foreign.extend(root.map(|root| (name.span().start().line, root)));
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

#[test]
fn signatures_are_read() {
    let crates = BTreeSet::from(["zip".to_string(), "num_bigint".to_string()]);
    let text = r"
        use num_bigint::{BigInt, BigUint as Whole};
        pub fn a(x: &Whole) {}
        fn b(x: Whole) -> BigInt {}
        pub struct C { pub shown: Vec<zip::DateTime>, hidden: BigInt }
        pub enum D { One(BigInt), Two { it: u8 } }
        impl From<zip::Error> for D {}
        impl C { pub fn d() -> BigInt { zip::f() } pub(crate) fn e() -> BigInt {} }
        pub fn f(zip: u8) { let g: zip::A; }
        #[cfg(test)]
        mod tests { pub fn g() -> BigInt {} }
        ";
    let names = foreign(&parsed(text.parse().unwrap()), &crates);
    let names: Vec<(usize, &str)> = names.iter().map(|(line, name)| (*line, name.as_str())).collect();
    let (zip, num) = ("zip", "num_bigint");
    assert_eq!(names, [(3, num), (5, zip), (6, num), (7, zip), (8, num)]);
}

#[test]
fn public_signatures_name_no_foreign_crate() {
    let crates = dependencies();
    assert!(crates.contains("serde_yaml") && crates.contains("num_bigint"), "{crates:?}");
    let mut named = Vec::new();
    for Source { path, foreign, .. } in sources() {
        // Nothing depends on the program.
        if room(path) == "cli" {
            continue;
        }
        let shown = path.display().to_string();
        for (line, name) in foreign {
            let may = FOREIGN.iter().find(|(allowed, _)| allowed == name).map_or(&[][..], |(_, places)| places);
            if !may.iter().any(|place| shown.starts_with(place)) {
                named.push(format!("{shown}:{line}: {name}"));
            }
        }
    }
    check(named, "public signatures name our own types: wrap or hide those of other crates");
}
