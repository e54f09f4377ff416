//! `HloModuleProto`: the messages, encoding and decoding.
