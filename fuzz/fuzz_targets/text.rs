//! Any text: an error, or a module. A module that verifies prints, in both dialects, to a text that reads back as that
//! very module, up to layouts: the printer writes the row-major ones that a text left out. It is written as StableHLO, or
//! refused in words.
#![no_main]

use bf16scope::foreign::stablehlo;
use bf16scope::hlo::text::{self, PrintOptions};
use bf16scope::hlo::verify;
use bf16scope_fuzz::with_layouts;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(module) = text::parse(text, "fuzz.txt") else { return };
    if verify(&module).is_err() {
        return;
    }
    drop(stablehlo::write(&module).map_err(|error| error.to_string()));
    let module = with_layouts(module);
    for options in [PrintOptions::default(), PrintOptions::long()] {
        let printed = text::print(&module, &options);
        let again = text::parse(&printed, "printed.txt").unwrap_or_else(|error| panic!("{error}\n{printed}"));
        let again = with_layouts(again);
        assert!(again == module, "printed and read back it is another module:\n{module:#?}\n{again:#?}");
    }
});
