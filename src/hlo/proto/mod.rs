//! `HloModuleProto`: the messages, encoding and decoding.

pub mod messages;
