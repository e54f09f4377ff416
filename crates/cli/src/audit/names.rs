//! Names of a module's results, if its file contains them.

use std::path::Path;

use bf16scope_files as files;

/// JAX's prefix of a result's name, in the attributes of a StableHLO function's results.
const INFO: &str = "jax.result_info = \"";
/// Larger texts are not searched.
const MAX_BYTES: u64 = 1 << 30;

/// The names of the results in order, from a StableHLO text written by JAX; empty for any other file.
pub(super) fn of_file(path: &Path) -> Vec<String> {
    let is_text = path.extension().is_some_and(|extension| extension == "mlir");
    match is_text.then(|| files::read_text(path, MAX_BYTES)) {
        Some(Ok(text)) => of_text(&text),
        // An unreadable file is reported when the module is read.
        Some(Err(_)) | None => Vec::new(),
    }
}

fn of_text(text: &str) -> Vec<String> {
    let until_quote = |rest: &str| {
        let mut name = String::new();
        let mut characters = rest.chars();
        loop {
            match characters.next() {
                Some('\\') => name.extend(characters.next()),
                Some('"') | None => return name,
                Some(character) => name.push(character),
            }
        }
    };
    text.split(INFO).skip(1).map(until_quote).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_jax_wrote() {
        let text = "func.func public @main(%arg0: tensor<f32>) -> (tensor<f32> {jax.result_info = \"result[0]['k']\"}, \
                    tensor<f32> {jax.result_info = \"a\\\"b\"}) {";
        assert_eq!(of_text(text), ["result[0]['k']", "a\"b"]);
        assert_eq!(of_text("module {}"), [""; 0]);
    }
}
