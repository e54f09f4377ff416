// Found where XLA_EXTENSION_DIR has no such header (.cargo/config.toml).
#include "../../../../no-xla-extension.h"
