//! Where the memory and the time of compiled programs go: on a terminal, and as a page with timelines and treemaps.

mod page;
mod terminal;

pub use page::page;
pub use terminal::render;
