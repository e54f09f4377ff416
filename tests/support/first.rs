//! Runs before `main`, and so before the threads that tests run in: sets the variables that plugins read when they are
//! loaded, which is safe only then.

use bf16scope::pjrt::{Purpose, prepare_environment};

extern "C" fn prepare() {
    // What is to run on a TPU must not see what compiling for one sets.
    let runs_on_tpu = std::env::var_os("BF16SCOPE_TEST_DEVICE").is_some_and(|device| device == "tpu");
    prepare_environment(if runs_on_tpu { Purpose::Run } else { Purpose::Compile }).unwrap();
}

// SAFETY: the C library calls what this section points to, once, before `main`; the function needs nothing of Rust's
// runtime but what is there from the beginning: allocation, files, the environment.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;
