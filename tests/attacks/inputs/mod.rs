//! Bad experiments, data, arrays and policies: each is refused with its place, or means something and is used.

mod arrays;
mod data;
mod experiments;
mod policies;
mod program;

/// An error as a user reads it: the sentence, and the causes that it has.
fn words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}
