//! Names of types say which room they belong to: a bare `Kind` or `Row` would clash with that of another room.

use super::{check, parsed, sources, with_files};

/// Names that several rooms have used.
const BARE: [&str; 5] = ["Kind", "Part", "Plan", "Report", "Row"];

/// Types of a file, including its modules, that have such a name. A type that is local to a function does not count.
pub fn bare(items: &[syn::Item]) -> Vec<String> {
    let name = |item: &syn::Item| match item {
        syn::Item::Enum(item) => Some(item.ident.to_string()),
        syn::Item::Struct(item) => Some(item.ident.to_string()),
        syn::Item::Trait(item) => Some(item.ident.to_string()),
        syn::Item::Type(item) => Some(item.ident.to_string()),
        _ => None,
    };
    let of_item = |item: &syn::Item| match item {
        syn::Item::Mod(syn::ItemMod { content: Some((_, items)), .. }) => bare(items),
        item => name(item).into_iter().filter(|name| BARE.contains(&name.as_str())).collect(),
    };
    items.iter().flat_map(of_item).collect()
}

#[test]
fn bare_names_are_seen() {
    let text = "pub struct Row; struct FitRow; mod inner { enum Kind { A } fn f() { enum Part { A } } }
        impl X { type Plan = u8; } type Report = u8; #[cfg(test)] mod tests { struct Row; }";
    assert_eq!(bare(&parsed(text.parse().unwrap()).items), ["Row", "Kind", "Report"]);
}

#[test]
fn types_say_whose_they_are() {
    let names = with_files(sources().iter(), |source| source.bare.as_slice());
    // A verb, for a question in one call, like `Fit`, `Compare` and `Explain`.
    let names = names.into_iter().filter(|names| names != "crates/study/src/one_call.rs: Plan");
    check(names.collect(), "a type's name says whose it is: `FitRow`, `PageKind`, not `Row`, `Kind`");
}
