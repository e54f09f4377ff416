// What the C++ compiler says where XLA_EXTENSION_DIR lacks a header that xla-rs 0.4.3 includes.
#pragma once
#error "XLA_EXTENSION_DIR is not set, or names no XLA that xla-rs 0.4.3 can use"
#error "help: eval \"$(ci/xla-extension)\" makes one and names it; or set XLA_EXTENSION_DIR to an xla_extension 0.10.0"
