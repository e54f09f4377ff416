//! Files of a crate that import each other: an item that both need belongs in a third file.
//!
//! A file imports another if it names an item declared there, by `use` or by a path, also through re-exports. A module
//! may declare shared items for its children and name the children; so a child's references to its parents do not
//! count, but a circle through a parent and its child does (`remote` → `remote/store` → `unpack` → `remote`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use super::Source;

/// The path from the crate to a module.
type ModulePath = Vec<String>;

/// A module that has a file.
#[derive(Default)]
pub struct Module {
    /// The items that it declares, except modules.
    declared: BTreeSet<String>,
    /// The items that it imports, by their local names.
    imports: BTreeMap<String, ModulePath>,
    /// Modules from which it imports everything.
    globs: Vec<ModulePath>,
    /// Paths in its code.
    paths: BTreeSet<ModulePath>,
}

#[test]
fn no_files_of_a_crate_import_each_other() {
    let mut crates: BTreeMap<String, BTreeMap<ModulePath, &Module>> = BTreeMap::new();
    for Source { path, module, .. } in super::sources() {
        let (folder, below) = super::place(path);
        let modules = crates.entry(folder.display().to_string()).or_default();
        modules.insert(module_path(&below), module);
    }
    assert!(crates.len() > 10);
    for (folder, modules) in crates {
        assert_eq!(circles(&modules), [""; 0], "files of {folder} that import each other");
    }
}

/// The module path of a file: `capi` and `client` for `capi/client.rs`.
fn module_path(path: &Path) -> ModulePath {
    let names = path.with_extension("");
    let mut names: ModulePath = names.iter().map(|name| name.to_str().unwrap().to_string()).collect();
    if matches!(names.last().unwrap().as_str(), "mod" | "lib") {
        names.pop();
    }
    names
}

impl Module {
    /// Reads a file, with its tokens.
    pub fn read(file: &syn::File, tokens: TokenStream) -> Module {
        let mut module = Module::default();
        module.declared.extend(file.items.iter().filter_map(declared));
        module.walk(tokens);
        module
    }

    fn walk(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is = |at: usize, c: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == c);
        let mut i = 0;
        while i < tokens.len() {
            match &tokens[i] {
                TokenTree::Group(group) => self.walk(group.stream()),
                TokenTree::Ident(name) if name == "use" => {
                    let end = (i..tokens.len()).find(|&at| is(at, ';')).unwrap_or(i);
                    let item: TokenStream = tokens[i..=end].iter().cloned().collect();
                    // `use` may also be part of precise captures, which import nothing.
                    if let Ok(item) = syn::parse2::<syn::ItemUse>(item) {
                        self.import(&item.tree, Vec::new());
                        i = end;
                    }
                }
                TokenTree::Ident(_) => {
                    let mut path = Vec::new();
                    while let Some(TokenTree::Ident(name)) = tokens.get(i) {
                        path.push(name.to_string());
                        if !(is(i + 1, ':') && is(i + 2, ':')) {
                            break;
                        }
                        i += 3;
                    }
                    // A single name is imported, or local to the file.
                    if path.len() > 1 {
                        self.paths.insert(path);
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            i += 1;
        }
    }

    fn import(&mut self, tree: &syn::UseTree, mut before: ModulePath) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before);
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before.clone())),
            syn::UseTree::Glob(_) => self.globs.push(before),
            syn::UseTree::Name(name) => self.import_as(name.ident.to_string(), name.ident.to_string(), before),
            syn::UseTree::Rename(name) => self.import_as(name.rename.to_string(), name.ident.to_string(), before),
        }
    }

    fn import_as(&mut self, here: String, there: String, mut path: ModulePath) {
        let here = if there == "self" { path.last().cloned().unwrap_or_default() } else { here };
        path.extend((there != "self").then_some(there));
        self.imports.insert(here, path);
    }
}

/// The name that an item declares.
fn declared(item: &syn::Item) -> Option<String> {
    Some(match item {
        syn::Item::Const(item) => item.ident.to_string(),
        syn::Item::Enum(item) => item.ident.to_string(),
        syn::Item::Fn(item) => item.sig.ident.to_string(),
        syn::Item::Macro(item) => item.ident.as_ref()?.to_string(),
        syn::Item::Static(item) => item.ident.to_string(),
        syn::Item::Struct(item) => item.ident.to_string(),
        syn::Item::Trait(item) => item.ident.to_string(),
        syn::Item::Type(item) => item.ident.to_string(),
        syn::Item::Union(item) => item.ident.to_string(),
        _ => return None,
    })
}

/// The module that declares the item that `path` names in `here`; `None` if it is outside the crate. `n` bounds how
/// many imports are followed.
fn home(modules: &BTreeMap<ModulePath, &Module>, here: &ModulePath, path: &[String], n: usize) -> Option<ModulePath> {
    let mut at = here.clone();
    for (number, name) in path.iter().enumerate() {
        let below = [at.as_slice(), std::slice::from_ref(name)].concat();
        match name.as_str() {
            "crate" if number == 0 => at.clear(),
            "self" if number == 0 => {}
            "super" => drop(at.pop()?),
            _ if modules.contains_key(&below) => at = below,
            _ => {
                let module = modules.get(&at)?;
                let rest = &path[number + 1..];
                if module.declared.contains(name) {
                    return Some(at);
                }
                if let Some(import) = module.imports.get(name).filter(|import| n > 0 && import.as_slice() != path) {
                    return home(modules, &at, &[import.as_slice(), rest].concat(), n - 1);
                }
                let of_glob = module.globs.iter().filter(|_| n > 0).find_map(|glob| {
                    let there = home(modules, &at, glob, n - 1)?;
                    modules.get(&there)?.declared.contains(name).then_some(there)
                });
                // An item that a macro declares belongs to the file that invokes the macro, if another file names it
                // there.
                return of_glob.or((number > 0).then_some(at));
            }
        }
    }
    Some(at)
}

/// For each module the modules of its crate that it imports, except its parents.
fn named<'a>(modules: &'a BTreeMap<ModulePath, &Module>) -> BTreeMap<&'a ModulePath, BTreeSet<ModulePath>> {
    const N_IMPORTS: usize = 8;
    let mut named: BTreeMap<&'a ModulePath, BTreeSet<ModulePath>> = BTreeMap::new();
    for (path, module) in modules {
        let globs = module.globs.iter();
        let all = module.imports.values().chain(globs).chain(&module.paths);
        let homes = all.filter_map(|name| home(modules, path, name, N_IMPORTS));
        let counts = |home: &ModulePath| !path.starts_with(home);
        named.insert(path, homes.filter(counts).collect());
    }
    named
}

/// Circles of files, the files of each in order.
fn circles(modules: &BTreeMap<ModulePath, &Module>) -> Vec<String> {
    let named = named(modules);
    let reach = |from: &ModulePath| {
        let (mut reached, mut waiting) = (BTreeSet::new(), vec![from]);
        while let Some(next) = waiting.pop() {
            waiting.extend(named.get(next).into_iter().flatten().filter(|other| reached.insert((*other).clone())));
        }
        reached
    };
    let reached: BTreeMap<&ModulePath, BTreeSet<ModulePath>> = modules.keys().map(|path| (path, reach(path))).collect();
    let circle = |path: &&ModulePath| {
        let with: Vec<String> = reached[*path]
            .iter()
            .filter(|other| reached.get(*other).is_some_and(|back| back.contains(*path)))
            .map(|path| path.join("/"))
            .collect();
        (!with.is_empty()).then(|| with.join(" ↔ "))
    };
    modules.keys().filter_map(|path| circle(&path)).collect::<BTreeSet<String>>().into_iter().collect()
}

/// Two files that import each other are detected, by `use`, by a path and through a re-export; a module and its child
/// are not.
#[test]
fn circles_are_seen() {
    let read = |text: &str| {
        let file = super::parsed(text.parse().unwrap());
        Module::read(&file, file.to_token_stream())
    };
    let circles_of = |files: &[(&str, &str)]| {
        let modules: Vec<(&str, Module)> = files.iter().map(|(path, text)| (*path, read(text))).collect();
        circles(&modules.iter().map(|(path, module)| (module_path(Path::new(path)), module)).collect())
    };
    let room = ("room/mod.rs", "mod a; mod b; pub use b::B;");
    let b = ("room/b.rs", "use super::a::A; pub struct B(A);");
    assert_eq!(circles_of(&[room, ("room/a.rs", "use super::B; pub struct A; fn f(_: B) {}"), b]), ["room/a ↔ room/b"]);
    assert_eq!(
        circles_of(&[room, ("room/a.rs", "pub struct A; fn f(_: crate::room::b::B) {}"), b]),
        ["room/a ↔ room/b"]
    );
    assert_eq!(circles_of(&[room, ("room/a.rs", "pub struct A;"), b]), [""; 0]);
    let parent = ("room/mod.rs", "mod a; pub struct P; fn f() { a::g(P) }");
    assert_eq!(circles_of(&[parent, ("room/a.rs", "use super::P; pub fn g(_: P) {}")]), [""; 0]);
    let child = ("room/a/inner.rs", "use crate::room::b::B; use super::A; pub struct C(B, A);");
    let uses_child = ("room/a.rs", "mod inner; pub use inner::C; pub struct A;");
    assert_eq!(circles_of(&[room, uses_child, child, b]), ["room/a ↔ room/a/inner ↔ room/b"]);
    let test = ("room/a.rs", "pub struct A; #[cfg(test)] mod tests { use super::super::B; }");
    assert_eq!(circles_of(&[room, test, b]), [""; 0]);
}
