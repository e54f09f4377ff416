// Found where XLA_EXTENSION_DIR has no such header (.cargo/config.toml).
#include "no_xla_extension.h"
