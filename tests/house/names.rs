//! Names of types say whose they are: a bare `Kind` or `Row` is the name of something else in the next room.

use super::{check, source_files, without_tests};

/// Names that several rooms wanted once.
const BARE: [&str; 5] = ["Kind", "Part", "Plan", "Report", "Row"];

/// Types of a file, in its modules too, that have such a name. One that a function declares for itself is nobody else's.
fn bare(items: &[syn::Item]) -> Vec<String> {
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
    let mut file = syn::parse_file(text).unwrap();
    without_tests(&mut file.items);
    assert_eq!(bare(&file.items), ["Row", "Kind", "Report"]);
}

#[test]
fn types_say_whose_they_are() {
    let found = source_files().into_iter().flat_map(|(path, text)| {
        let mut file = syn::parse_file(&text).unwrap();
        without_tests(&mut file.items);
        bare(&file.items).into_iter().map(move |name| format!("{}: {name}", path.display())).collect::<Vec<_>>()
    });
    // A question in one call is a verb, beside `Fit`, `Compare` and `Explain`.
    let found = found.filter(|found| found != "crates/study/src/one_call.rs: Plan");
    check(found.collect(), "a type's name says whose it is: `FitRow`, `PageKind`, not `Row`, `Kind`");
}
