//! Data files of object stores, by URL: the program fetches them from a server of this file's, on the loopback.
#[test]
fn t() {}
