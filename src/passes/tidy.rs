//! Tidying.
