//! Invalid experiments, data, arrays and policies: each is refused with its place, or is valid and used.

mod arrays;
mod data;
mod experiments;
mod policies;
mod program;

/// An error as a user reads it: the message and its causes.
fn words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}
