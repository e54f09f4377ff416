//! The page `docs/HOW_PRECISION_IS_DECIDED.md`, examined: of four small modules in `tests/data/page` (attention, a training
//! step, a loop over time, and readers that amplify a rounding), `predicted.txt` has ten decisions each that a reader of the
//! page predicts, with the section that says so. Where a prediction fails, the page or the code is mended.

use bf16scope::hlo::{Instruction, Module, text};
use bf16scope::passes::amp::{self, Policy};
use std::path::Path;

/// The dtype in which an instruction computes: that of the floats that it reads.
fn computes(module: &Module, name: &str) -> Option<String> {
    let computations = module.computations.iter();
    let places = computations.flat_map(|comp| comp.instructions.iter().map(move |instr| (comp, instr)));
    let mut named = places.filter(|(_, instr): &(_, &Instruction)| instr.name == name);
    let (comp, instr) = named.next()?;
    assert!(named.next().is_none(), "{}: several instructions are called {name}", module.name);
    let mut read = instr.operands.iter().filter_map(|operand| comp.instr(*operand).shape.dtype());
    read.find(|dtype| dtype.is_float()).map(|dtype| dtype.to_string())
}

#[test]
fn a_reader_of_the_page_predicts_forty_decisions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/page");
    let predicted = std::fs::read_to_string(folder.join("predicted.txt")).unwrap();
    let (mut wrong, mut n) = (Vec::new(), Vec::new());
    let mut now = None;
    for line in predicted.lines().filter(|line| !line.starts_with('#')) {
        if !line.starts_with(' ') {
            let source = std::fs::read_to_string(folder.join(format!("{line}.hlo.txt"))).unwrap();
            let module = text::parse(&source, line).unwrap_or_else(|error| panic!("{error}"));
            let lowered = amp::run(&module, &Policy::default()).unwrap_or_else(|error| panic!("{line}: {error}"));
            now = Some(lowered);
            n.push(0);
            continue;
        }
        let (lowered, report) = now.as_ref().expect("a module's name");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, dtype, gives, section, ..] = words[..] else { panic!("`{line}`") };
        assert!(section.ends_with(':'), "`{line}` names no section");
        let decision = report.decisions.iter().find(|decision| decision.instruction == name);
        let decision = decision.unwrap_or_else(|| panic!("no decision on {name}"));
        let gave = decision.new.split('[').next().unwrap_or_default();
        let computed = computes(lowered, name).unwrap_or_else(|| panic!("{name} reads no floats"));
        if [&computed[..], gave] != [dtype, gives] {
            wrong.push(format!("`{}` computes in {computed} and gives {gave}: {}", line.trim(), decision.rule));
        }
        *n.last_mut().expect("a module's name") += 1;
    }
    assert_eq!(wrong, [""; 0], "{}", wrong.join("\n"));
    assert_eq!(n, [10; 4]);
}
