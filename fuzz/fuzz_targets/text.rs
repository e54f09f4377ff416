//! Any text: an error, or a module. A module that verifies prints, in both dialects, to a text that reads back as that
//! very module.
#![no_main]

use bf16scope::hlo::text::{self, PrintOptions};
use bf16scope::hlo::verify;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(module) = text::parse(text, "fuzz.txt") else { return };
    if verify(&module).is_err() {
        return;
    }
    for options in [PrintOptions::default(), PrintOptions::long()] {
        let printed = text::print(&module, &options);
        let again = text::parse(&printed, "printed.txt").unwrap_or_else(|error| panic!("{error}\n{printed}"));
        assert!(again == module, "printed and read back it is another module:\n{module:#?}\n{again:#?}");
    }
});
