//! Any bytes as a `tokenizer.json`, in upper and lower case: an error that prints, or a tokenizer whose ids are below its vocabulary's size, and
//! decode.
#![no_main]

use bf16scope::data::text::{Encoder, Tokenizer};
use libfuzzer_sys::fuzz_target;

const TEXTS: [&str; 6] = ["", "a", "Hello  world\nand ##more", "<s> a b [MASK]", "äß中文🙂\u{0}\u{7f}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"];

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, bytes).expect("it is writable");
    for lowercase in [false, true] {
        let tokenizer = match Tokenizer::read(&path, lowercase) {
            Ok(tokenizer) => tokenizer,
            Err(error) => return drop(error.to_string()),
        };
        let mut encoder = Encoder::new(&tokenizer);
        for text in TEXTS {
            let mut ids = Vec::new();
            if encoder.encode(text.as_bytes(), &mut ids).is_ok() {
                assert!(ids.iter().all(|&id| id < tokenizer.vocabulary()), "{ids:?} of {}", tokenizer.vocabulary());
                drop(tokenizer.decode(&ids));
            }
        }
        drop((tokenizer.frame(1), tokenizer.frame(2), tokenizer.special_ids()));
    }
});
