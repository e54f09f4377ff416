//! The house rules that a machine can check: where things live, which way arrows point, how long files are. Code is read
//! as tokens, after `syn` has taken out what is only there for tests.

#[path = "house/additions.rs"]
mod additions;
#[path = "house/circles.rs"]
mod circles;
#[path = "house/errors.rs"]
mod errors;
#[path = "house/messages.rs"]
mod messages;
#[path = "house/names.rs"]
mod names;
#[path = "house/signatures.rs"]
mod signatures;
#[path = "house/words.rs"]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;

/// Every Rust file below `folder`, with its text, in a stable order.
fn rust_files(folder: &str) -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                walk(&path, out);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                out.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    walk(&root.join(folder), &mut paths);
    paths.sort();
    assert!(!paths.is_empty(), "no Rust files below {folder}");
    paths
        .into_iter()
        .map(|path| (path.strip_prefix(root).unwrap().to_path_buf(), fs::read_to_string(&path).unwrap()))
        .collect()
}

/// Every Rust file of the library and the program: those of the crates, and of the package `bf16scope` itself.
fn source_files() -> &'static [(PathBuf, String)] {
    static FILES: OnceLock<Vec<(PathBuf, String)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let crates = rust_files("crates").into_iter().filter(|(path, _)| is_source(path));
        crates.chain(rust_files("src")).collect()
    })
}

/// Whether a file is among the sources of a crate below `crates`.
fn is_source(path: &Path) -> bool {
    path.starts_with("crates") && path.iter().nth(2).is_some_and(|it| it == "src")
}

/// All that the rules ask of a source file. A tree of `syn` belongs to one thread, so each rule takes what it needs while the
/// file is parsed, once for all.
struct Source {
    path: PathBuf,
    code: Code,
    module: circles::Module,
    variants: errors::Variants,
    sentences: Vec<String>,
    strings_of_tests: Vec<String>,
    /// Types with a name that several rooms have used.
    bare: Vec<String>,
    /// Lines and crates of others that public signatures name.
    foreign: Vec<(usize, String)>,
    hooks: Vec<String>,
    unmarked_errors: Vec<String>,
    unmarked_reports: Vec<String>,
}

impl Source {
    fn read(path: &Path, text: &str, crates: &BTreeSet<String>) -> Source {
        let tokens: TokenStream = text.parse().unwrap();
        let strings_of_tests = messages::strings_of_tests(path, tokens.clone());
        let file = parsed(tokens);
        let tokens = file.to_token_stream();
        Source {
            path: path.to_path_buf(),
            code: Code::read(&file, tokens.clone(), depth(path)),
            module: circles::Module::read(&file, tokens.clone()),
            variants: errors::Variants::read(&file, tokens),
            sentences: messages::sentences(&file),
            strings_of_tests,
            bare: names::bare(&file.items),
            foreign: signatures::foreign(&file, crates),
            hooks: hooks(&file),
            unmarked_errors: unmarked_errors(&file),
            unmarked_reports: unmarked_reports(&file),
        }
    }
}

/// Every source file, read once, by several threads.
fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let (files, crates) = (source_files(), &dependencies());
        let n_threads = thread::available_parallelism().map_or(1, |n| n.get());
        let read = |files: &[(PathBuf, String)]| -> Vec<Source> {
            files.iter().map(|(path, text)| Source::read(path, text, crates)).collect()
        };
        thread::scope(|scope| {
            let parts = files.chunks(files.len().div_ceil(n_threads));
            let parts: Vec<_> = parts.map(|files| scope.spawn(move || read(files))).collect();
            parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
        })
    })
}

/// What a file's code says, without its comments and its tests.
#[derive(Debug, Default)]
struct Code {
    /// Rooms that it names: the first name below the crate, however it is written.
    rooms: BTreeSet<String>,
    /// Names, and the ends of paths (`process::exit`, `exit`); a macro's with its `!`.
    names: BTreeSet<String>,
    /// Lines up to the end of the last item that is no test.
    n_lines: usize,
}

impl Code {
    /// Reads a file, with its tokens, of a module so many names below the crate.
    fn read(file: &syn::File, tokens: TokenStream, depth: usize) -> Code {
        let n_lines = file.items.last().map_or(0, |last| last.span().end().line);
        let mut code = Code { n_lines, ..Code::default() };
        walk(tokens, depth, &mut code);
        code
    }
}

/// The file of these tokens, without its tests.
fn parsed(tokens: TokenStream) -> syn::File {
    let mut file: syn::File = syn::parse2(tokens).unwrap();
    without_tests(&mut file.items);
    file
}

/// Takes out what is only there for tests, wherever it stands.
fn without_tests(items: &mut Vec<syn::Item>) {
    items.retain(|item| !is_for_tests(attributes(item)));
    for item in items {
        match item {
            syn::Item::Mod(syn::ItemMod { content: Some((_, items)), .. }) => without_tests(items),
            syn::Item::Impl(implementation) => implementation.items.retain(|item| match item {
                syn::ImplItem::Fn(function) => !is_for_tests(&function.attrs),
                _ => true,
            }),
            _ => {}
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let text = |attribute: &syn::Attribute| attribute.meta.to_token_stream().to_string().replace(' ', "");
    attributes.iter().any(|attribute| ["test", "cfg(test)"].contains(&text(attribute).as_str()))
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Collects what tokens name, those inside macros too, in a module so many names below the crate.
fn walk(tokens: TokenStream, depth: usize, code: &mut Code) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut i = 0;
    while i < tokens.len() {
        match &tokens[i] {
            TokenTree::Group(group) => {
                let is_module = i >= 2 && matches!(&tokens[i - 2], TokenTree::Ident(name) if name == "mod");
                walk(group.stream(), depth + usize::from(is_module), code);
                i += 1;
            }
            TokenTree::Ident(_) => i = path(&tokens, i, depth, code),
            TokenTree::Punct(_) | TokenTree::Literal(_) => i += 1,
        }
    }
}

/// Collects the path that begins at `tokens[i]`, and returns where it ends.
fn path(tokens: &[TokenTree], mut i: usize, depth: usize, code: &mut Code) -> usize {
    let is = |at: usize, c: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == c);
    let mut names: Vec<String> = Vec::new();
    while let Some(TokenTree::Ident(name)) = tokens.get(i) {
        let mark = if is(i + 1, '!') { "!" } else { "" };
        names.push(format!("{name}{mark}"));
        i += 1;
        if !(is(i, ':') && is(i + 1, ':')) {
            break;
        }
        i += 2;
    }
    // How many names lead to the crate itself, if they do.
    let n_supers = names.iter().take_while(|name| *name == "super").count();
    let root = match names[0].as_str() {
        "crate" | "bf16scope" => Some(1),
        "super" if n_supers >= depth => Some(depth),
        _ => None,
    };
    match (root.map(|root| names.get(root)), tokens.get(i)) {
        (Some(Some(room)), _) => drop(code.rooms.insert(room.clone())),
        (Some(None), Some(TokenTree::Group(group))) => code.rooms.extend(first_names(group.stream())),
        (Some(None) | None, _) => {}
    }
    code.names.extend((0..names.len()).map(|start| names[start..].join("::")));
    i
}

/// The first name of each part of `a, b::c, {d, e}`.
fn first_names(tokens: TokenStream) -> Vec<String> {
    let (mut names, mut is_first) = (Vec::new(), true);
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ',' => is_first = true,
            TokenTree::Ident(name) if is_first => {
                names.push(name.to_string());
                is_first = false;
            }
            TokenTree::Group(group) if is_first => names.extend(first_names(group.stream())),
            _ => {}
        }
    }
    names
}

/// The folder of a crate's sources, and the names of modules below it: `crates/pjrt/src` and `capi/client.rs`.
fn place(path: &Path) -> (PathBuf, PathBuf) {
    let n_names = if path.starts_with("crates") { 3 } else { 1 };
    (path.iter().take(n_names).collect(), path.iter().skip(n_names).collect())
}

/// The crate of a source file: `pjrt` of `crates/pjrt/src/ffi.rs`; `bf16scope` for the package's own.
fn crate_of(path: &Path) -> String {
    match path.starts_with("crates") {
        true => path.iter().nth(1).unwrap().to_str().unwrap().to_string(),
        false => "bf16scope".to_string(),
    }
}

/// The room of a source file: the folder at the root of its crate, where ARCHITECTURE.md says that this is a room of its
/// own, else the crate.
fn room(path: &Path) -> String {
    let krate = crate_of(path);
    let first = place(path).1.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_string();
    let is_room = rooms().iter().any(|(name, (of, _))| *name == first && *of == krate);
    if is_room { first } else { krate }
}

/// Names of modules from the crate to a file: one for `ffi.rs`, none for `lib.rs`.
fn depth(path: &Path) -> usize {
    let n_names = place(path).1.components().count();
    let is_named_by_folder = ["mod.rs", "lib.rs", "main.rs"].iter().any(|name| path.ends_with(name));
    n_names - usize::from(is_named_by_folder)
}

/// Files outside `rooms` that name one of `names`.
fn naming(rooms: &[&str], names: &[&str]) -> Vec<String> {
    let is_outside = |path: &Path| !rooms.contains(&room(path).as_str()) && !path.ends_with("tests.rs");
    let outside = sources().iter().filter(|source| is_outside(&source.path));
    let named = outside.flat_map(|Source { path, code, .. }| {
        let named = names.iter().filter(move |name| code.names.contains(**name));
        named.map(|name| format!("{}: {name}", path.display())).collect::<Vec<_>>()
    });
    named.collect()
}

fn check(found: Vec<String>, rule: &str) {
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

#[test]
fn code_is_read_wherever_it_stands() {
    let text = r##"
        //! crate::comment
        use crate::{train::run, cli, nn::{conv, dense}};
        #[cfg(test)]
        fn only_for_tests() { crate::tests_only::f() }
        #[cfg(test)]
        mod tests { use crate::also_tests; }
        mod inner {
            fn f() { super::super::super::optim::g(); super::super::sibling(); println!("{}", crate::tpu::NAME) }
            #[cfg(test)]
            mod tests { use crate::tests_again; }
        }
        fn after() { r"crate::text"; crate::data::h(); unsafe { std::process::exit(1) } }
        "##;
    let file = parsed(text.parse().unwrap());
    let code = Code::read(&file, file.to_token_stream(), 2);
    assert_eq!(
        code.rooms.iter().map(String::as_str).collect::<Vec<_>>(),
        ["cli", "data", "nn", "optim", "tpu", "train"]
    );
    for name in ["println!", "process::exit", "unsafe"] {
        assert!(code.names.contains(name), "{name}: {:?}", code.names);
    }
}

#[test]
fn every_file_says_what_it_holds() {
    let mut found = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "examples"] {
        for (path, text) in rust_files(folder) {
            if !text.starts_with("//! ") {
                found.push(path.display().to_string());
            }
        }
    }
    check(found, "files must open with `//!`");
}

#[test]
fn a_crate_opens_with_an_example_that_runs() {
    let mut without = Vec::new();
    for (path, text) in rust_files("crates").into_iter().filter(|(path, _)| path.ends_with("src/lib.rs")) {
        let lines: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
        let docs = lines.join(" ");
        let is_run = docs.contains("```") && !docs.contains("```no_run");
        if !is_run && !docs.contains("The example is compiled and not run, for ") {
            without.push(path.display().to_string());
        }
    }
    check(without, "an example runs, or a sentence says why it is compiled and not run");
}

#[test]
fn files_are_short() {
    let long = sources().iter().filter(|source| source.code.n_lines > 800);
    let long = long.map(|Source { path, code, .. }| format!("{}: {} lines", path.display(), code.n_lines));
    let tests = ["tests", "benches"].into_iter().flat_map(rust_files).map(|(path, text)| (path, text.lines().count()));
    let long_tests = tests.filter(|(_, n)| *n > 800).map(|(path, n)| format!("{}: {n} lines", path.display()));
    check(long.chain(long_tests).collect(), "files hold at most 800 lines without their tests");
}

/// The compiler refuses `unsafe` in every crate but `pjrt`, which alone depends on `libloading`.
#[test]
fn only_pjrt_has_unsafe() {
    let is_root = |path: &Path| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    let may = |text: &str| !text.contains("\n#![forbid(unsafe_code)]\n");
    let unforbidden: Vec<&PathBuf> =
        source_files().iter().filter(|(path, text)| is_root(path) && may(text)).map(|(path, _)| path).collect();
    assert_eq!(unforbidden, [&PathBuf::from("crates/pjrt/src/lib.rs")], "crates without `#![forbid(unsafe_code)]`");
}

#[test]
fn only_the_cli_prints_or_exits() {
    let verbs = [
        "println!",
        "eprintln!",
        "print!",
        "eprint!",
        "dbg!",
        "process::exit",
        "process::abort",
        "io::stdout",
        "io::stderr",
    ];
    let allowed = [
        // An output named /dev/stdout goes there.
        "crates/files/src/replace.rs: io::stdout",
        // A library caller's first use downloads a plugin too, and a download is never silent.
        "crates/pjrt/src/install.rs: io::stderr",
    ];
    let found = naming(&["cli"], &verbs).into_iter().filter(|found| !allowed.contains(&found.as_str()));
    check(found.collect(), "only crates/cli prints or exits");
}

#[test]
fn only_some_rooms_touch_files() {
    let found = naming(
        &["files", "data", "train", "pjrt", "cli", "tpu", "run_folder", "foreign", "study"],
        &["std::fs", "fs::read", "fs::write", "File::open", "File::create"],
    );
    check(found, "only files, data, train, run_folder, pjrt, study, cli and the caches of tpu and foreign do IO");
}

#[test]
fn nothing_is_left_unfinished() {
    let marks =
        [concat!("to", "do!("), concat!("unimplemented", "!("), concat!("#[ig", "nore"), concat!("#[should", "_panic")];
    // `ci/long` runs tests by the name of their module.
    let (gate, mark) = (
        concat!("#[cfg_attr(not(feature = \"long", "-tests\"), allow(dead_code))]\nmod long {\n"),
        concat!("#[cfg_attr(feature = \"long", "-tests\", test)]"),
    );
    let mut found = Vec::new();
    for folder in ["src", "crates", "examples", "benches", "tests"] {
        for (path, text) in rust_files(folder) {
            let is_marked = |line: &&str| marks.iter().any(|mark| line.contains(mark));
            found.extend(text.lines().filter(is_marked).map(|line| format!("{}: {}", path.display(), line.trim())));
            let before = text.split_once(gate).map_or(text.as_str(), |(before, _)| before);
            if before.contains(mark) {
                found.push(format!("{}: a long test outside of `mod long`", path.display()));
            }
        }
    }
    check(found, "no unfinished marks");
}

/// Each room that is a folder in a crate, that crate, and the rooms of the crate that it may name: ARCHITECTURE.md's table.
fn rooms() -> &'static BTreeMap<String, (String, Vec<String>)> {
    static ROOMS: OnceLock<BTreeMap<String, (String, Vec<String>)>> = OnceLock::new();
    ROOMS.get_or_init(|| {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md")).unwrap();
        let table = text.split_once("| room | crate |").unwrap().1.split_once("\n\n").unwrap().0;
        let rooms: BTreeMap<String, (String, Vec<String>)> = table.lines().skip(2).map(room_of_row).collect();
        assert!(rooms.len() > 12, "{rooms:?}");
        rooms
    })
}

fn room_of_row(row: &str) -> (String, (String, Vec<String>)) {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
    let may = match cells[cells.len() - 1] {
        "nothing" => Vec::new(),
        names => names.split(", ").map(|name| name.trim_matches('`').to_string()).collect(),
    };
    (cells[0].to_string(), (cells[1].to_string(), may))
}

/// Cargo holds the arrows between crates; this holds those between the rooms of one.
#[test]
fn arrows_inside_a_crate_point_down() {
    let mut found = Vec::new();
    for Source { path, code, .. } in sources() {
        let (krate, room) = (crate_of(path), room(path));
        let Some((_, may)) = rooms().get(&room) else { continue };
        let is_room = |name: &str| rooms().get(name).is_some_and(|(of, _)| *of == krate);
        for name in &code.rooms {
            // A name at the root of a crate that has a principal room is that room's.
            let named = if is_room(name) { name } else { &krate };
            if *named != room && !may.contains(named) {
                found.push(format!("{}: crate::{name}", path.display()));
            }
        }
    }
    check(found, "a room names only rooms below it");
}

/// An op is known by its variant of `Op`, which every match without a wildcard names, and by the function of its family.
#[test]
fn an_op_is_added_in_the_seven_files_that_the_guide_names() {
    let named = linked_by_the_guide(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    assert_eq!(named.len(), 7, "{named:?}");
    assert_eq!(knowing(&["ReducePrecision", "reduce_precision"]), named);
}

/// The dearest op too: beside the seven, those that the guide lists.
#[test]
fn the_guide_names_the_files_of_the_op_that_is_in_most() {
    let family = |path: PathBuf| PathBuf::from(path.to_str().unwrap().replace("/conversion", "/convolution"));
    let seven = linked_by_the_guide(|line| line.starts_with(|c: char| c.is_ascii_digit())).into_iter().map(family);
    let others = linked_by_the_guide(|line| line.starts_with("- [`"));
    let named: BTreeSet<PathBuf> = seven.chain(others).filter(|path| path.starts_with("crates")).collect();
    assert_eq!(named.len(), 17, "{named:?}");
    assert_eq!(knowing(&["Convolution"]), named);
}

/// An optimizer is known by its type: its own file, and the table's. Nobody else names one that has no reason to be named,
/// and every one is a row of the page that users read.
#[test]
fn an_optimizer_is_added_in_two_files() {
    let table = PathBuf::from("crates/model/src/optim/optimizer.rs");
    let named: BTreeSet<PathBuf> = [table.clone(), "crates/model/src/optim/optimizer/adagrad.rs".into()].into();
    assert_eq!(knowing(&["Adagrad", "adagrad"]), named);
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/EXPERIMENTS.md")).unwrap();
    for optimizer in bf16scope::optim::Optimizer::all() {
        assert!(page.contains(&format!("\n| `{}` | ", optimizer.name())), "EXPERIMENTS.md has no {}", optimizer.name());
    }
}

/// A source is known by its variant and by its reader: a file each, which the tables beside them name.
#[test]
fn a_source_is_added_in_the_files_that_the_guide_names() {
    let guide = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ADDING_A_MODEL.md")).unwrap();
    let section = guide.split_once("\nFor `data: {yours: FILE}`").unwrap().1.split_once("\n## ").unwrap().0;
    let links = section.split("](../").skip(1).filter_map(|link| Some(link.split_once(')')?.0));
    let named: BTreeSet<PathBuf> = links.filter(|link| link.ends_with(".rs")).map(PathBuf::from).collect();
    assert_eq!(named.len(), 4, "{named:?}");
    assert_eq!(knowing(&["WebDataset", "webdataset", "Tars"]), named);
    // Nor does anybody know it by its key.
    let knows = |text: &str| text.split("\n#[cfg(test)]").next().unwrap_or_default().contains("\"webdataset\"");
    let by_key = source_files().iter().filter(|(path, text)| !path.ends_with("tests.rs") && knows(text));
    check(by_key.map(|(path, _)| path.display().to_string()).collect(), "a source's key is in its table alone");
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/EXPERIMENTS.md")).unwrap();
    let table = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/train/src/experiment/data/source/mod.rs"),
    )
    .unwrap();
    let lines: Vec<&str> = table
        .lines()
        .filter_map(|line| line.trim().split_once(" in ")?.1.split_once(" = \""))
        .map(|(key, _)| key)
        .collect();
    assert!(lines.contains(&"webdataset") && lines.len() >= 10, "{lines:?}");
    for key in lines {
        assert!(page.contains(&format!("`{key}: ")), "EXPERIMENTS.md has no {key}");
    }
}

/// Beside its function in `nn`, a loss or a metric is known by its line of the table; each is in the page that users read.
#[test]
fn a_loss_and_a_metric_are_a_line_each() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/EXPERIMENTS.md")).unwrap();
    for (table, kinds, names) in [
        ("crates/model/src/models/layers/loss.rs", ["SigmoidDice", "SoftmaxDice"], ["sigmoid_dice", "huber"]),
        ("crates/model/src/models/layers/metric.rs", ["MeanIou", "Perplexity"], ["mean_iou", "perplexity"]),
    ] {
        assert_eq!(knowing(&kinds), [PathBuf::from(table)].into());
        names.iter().for_each(|name| assert!(page.contains(&format!("`{name}`")), "EXPERIMENTS.md has no {name}"));
    }
}

/// The first file that each of some lines of the guide links.
fn linked_by_the_guide(is_meant: impl Fn(&str) -> bool) -> BTreeSet<PathBuf> {
    let guide = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ADDING_AN_OP.md")).unwrap();
    let linked = |line: &str| Some(PathBuf::from(line.split_once("](../")?.1.split_once(')')?.0));
    guide.lines().filter(|line| is_meant(line)).filter_map(linked).collect()
}

/// The source files that name one of these.
fn knowing(names: &[&str]) -> BTreeSet<PathBuf> {
    // StableHLO's text is XLA's to read where our reader does not know an op: that step is left to who wants it.
    let is_beside = |path: &Path| {
        path.ends_with("tests.rs")
            || path.ends_with("samples.rs")
            || path.starts_with("crates/foreign/src/stablehlo/read")
            // TensorFlow's ops become ours: one of ours that they lack changes nothing there.
            || path.starts_with("crates/tensorflow/src/lower")
    };
    let knows = |code: &Code| names.iter().any(|name| code.names.contains(*name));
    let knowing = sources().iter().filter(|source| !is_beside(&source.path) && knows(&source.code));
    knowing.map(|source| source.path.clone()).collect()
}

/// The manifests of all crates.
fn manifests() -> Vec<String> {
    let crates = fs::read_dir("crates").unwrap().map(|entry| entry.unwrap().path().join("Cargo.toml"));
    let manifests: Vec<String> =
        crates.chain(["Cargo.toml".into()]).map(|path| fs::read_to_string(path).unwrap()).collect();
    assert!(manifests.len() > 10);
    manifests
}

/// Names of the crates of others that these sections of the manifests ask for.
fn asked_for(is_meant: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for manifest in manifests() {
        let mut is_inside = false;
        for line in manifest.lines() {
            if line.starts_with('[') {
                is_inside = is_meant(line);
            } else if let Some((name, _)) = line.split_once([' ', '.']).filter(|_| is_inside && !line.starts_with('#'))
                && !name.starts_with("bf16scope")
            {
                names.insert(name.to_string());
            }
        }
    }
    names
}

/// The crates that the library depends on, by the names that code gives them.
fn dependencies() -> BTreeSet<String> {
    asked_for(|section| section == "[dependencies]").into_iter().map(|name| name.replace('-', "_")).collect()
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

#[test]
fn one_file_names_the_yaml_reader() {
    let is_of = |name: &str, krate: &str| name == krate || name.starts_with(&format!("{krate}::"));
    let is_yaml = |name: &String| is_of(name, "serde_yaml") || is_of(name, "saphyr_parser");
    let named = sources().iter().filter(|source| source.code.names.iter().any(is_yaml));
    let named: Vec<String> = named.map(|source| source.path.display().to_string()).collect();
    assert_eq!(
        named,
        ["crates/model/src/document/yaml.rs"],
        "serde_yaml is archived upstream: one file names it, so that it can be changed there"
    );
}

fn is_marked(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("non_exhaustive"))
}

/// Public enums of errors in a file that may not gain variants.
fn unmarked_errors(file: &syn::File) -> Vec<String> {
    let unmarked = file.items.iter().filter_map(|item| match item {
        syn::Item::Enum(item) => {
            let is_error = is_public(&item.vis) && item.ident.to_string().ends_with("Error");
            (is_error && !is_marked(&item.attrs)).then(|| item.ident.to_string())
        }
        _ => None,
    });
    unmarked.collect()
}

/// Public reports in a file that may not gain fields.
fn unmarked_reports(file: &syn::File) -> Vec<String> {
    let unmarked = file.items.iter().filter_map(|item| match item {
        syn::Item::Struct(item) => {
            let of_others = item.fields.iter().any(|field| is_public(&field.vis));
            let is_report = is_public(&item.vis) && item.ident.to_string().ends_with("Report") && of_others;
            (is_report && !is_marked(&item.attrs)).then(|| item.ident.to_string())
        }
        _ => None,
    });
    unmarked.collect()
}

/// Names that a rule finds in some files, each with its file.
fn with_files(sources: impl Iterator<Item = &'static Source>, names: fn(&Source) -> &[String]) -> Vec<String> {
    let of_file = |source: &'static Source| {
        names(source).iter().map(|name| format!("{}: {name}", source.path.display())).collect::<Vec<_>>()
    };
    sources.flat_map(of_file).collect()
}

#[test]
fn marks_of_what_may_grow_are_read() {
    let text = "
        pub enum AError { A } #[non_exhaustive] pub enum BError { A } enum CError { A } pub enum Other { A }
        pub struct AReport { pub n: u8 } #[non_exhaustive] pub struct BReport { pub n: u8 } pub struct CReport { n: u8 }";
    let file = parsed(text.parse().unwrap());
    assert_eq!((unmarked_errors(&file), unmarked_reports(&file)), (vec!["AError".into()], vec!["AReport".into()]));
}

#[test]
fn public_errors_may_gain_variants() {
    let of_library = sources().iter().filter(|source| room(&source.path) != "cli");
    let unmarked = with_files(of_library, |source| source.unmarked_errors.as_slice());
    check(unmarked, "public enums of errors are #[non_exhaustive]");
}

/// Reports gain fields; configurations are written `Mesh { data, ..Mesh::default() }`.
#[test]
fn public_reports_may_gain_fields() {
    let unmarked = with_files(sources().iter(), |source| source.unmarked_reports.as_slice());
    check(unmarked, "public reports are #[non_exhaustive]");
}

/// What decides where plugins and caches are is a value that the caller passes; only these ask the environment for it.
#[test]
fn only_the_program_and_pjrt_read_a_setup_from_the_environment() {
    let mut found = Vec::new();
    for (path, text) in source_files() {
        let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
        let is_called = code.lines().any(|line| line.contains("Setup::from_env") && !line.trim().starts_with("//"));
        if is_called && !["cli", "pjrt"].contains(&room(path).as_str()) {
            found.push(path.display().to_string());
        }
    }
    check(found, "only `pjrt` and `cli` call `Setup::from_env`");
}

/// Statics that hold a function: whoever is told of something is a value that the caller passes.
fn hooks(file: &syn::File) -> Vec<String> {
    let is_function = |tokens: &TokenStream| tokens.to_string().contains("dyn Fn");
    let aliases = file.items.iter().filter_map(|item| match item {
        syn::Item::Type(item) if is_function(&item.ty.to_token_stream()) => Some(item.ident.to_string()),
        _ => None,
    });
    let aliases: BTreeSet<String> = aliases.collect();
    let holds = |item: &syn::ItemStatic| {
        let ty = item.ty.to_token_stream();
        let mut code = Code::default();
        walk(ty.clone(), 0, &mut code);
        is_function(&ty) || code.names.iter().any(|name| aliases.contains(name))
    };
    let statics = file.items.iter().filter_map(|item| match item {
        syn::Item::Static(item) if holds(item) => Some(item.ident.to_string()),
        _ => None,
    });
    statics.collect()
}

#[test]
fn progress_is_told_to_who_asks_and_not_to_a_global() {
    let text = "type Hook = Box<dyn Fn(u8) + Send>; static A: OnceLock<Hook> = OnceLock::new(); static B: OnceLock<u8> = OnceLock::new(); \
                static C: Mutex<Option<Box<dyn Fn()>>> = Mutex::new(None);";
    assert_eq!(hooks(&parsed(text.parse().unwrap())), ["A", "C"]);
    check(with_files(sources().iter(), |source| source.hooks.as_slice()), "no static holds a function");
}

#[test]
fn every_dependency_says_what_it_is_for() {
    let page = fs::read_to_string("docs/DEPENDENCIES.md").unwrap();
    let rows: Vec<&str> = page.split("\n## By hand").next().unwrap().lines().filter(|l| l.starts_with("| `")).collect();
    let named = |row: &str| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2).map(str::to_string).collect();
    let said: Vec<String> = rows.into_iter().flat_map(|row| -> Vec<String> { named(row) }).collect();
    let names: Vec<String> =
        asked_for(|section| section.ends_with("dependencies]") && section != "[workspace.dependencies]")
            .into_iter()
            .collect();
    assert!(names.len() > 20, "{names:?}");
    let missing: Vec<String> = names.iter().filter(|name| !said.contains(name)).cloned().collect();
    check(missing, "docs/DEPENDENCIES.md has a line for each crate that a Cargo.toml asks for");
    let gone: Vec<String> = said.into_iter().filter(|name| !names.contains(name)).collect();
    check(gone, "docs/DEPENDENCIES.md has no line for a crate that no Cargo.toml asks for");
}
