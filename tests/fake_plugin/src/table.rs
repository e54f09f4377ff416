//! The table of functions, and what is done to it. Faults, by kind:
//!
//! | kind | of | what happens |
//! | --- | --- | --- |
//! | `null` | a function | its entry is null |
//! | `short` | a function | the table ends before its entry |
//! | `fail`, `mute`, `latin`, `code` | a function | it fails: with a text, without one, with one that is not UTF-8, with a code that no header has |
//! | `nothing` | a function | it succeeds and gives nothing |
//! | `headless` | a function | it gives a size, and null for a list or a text |
//! | `holes` | a function | it gives a list of nulls, or a null handle beside an event |
//! | `wrong`, `huge`, `grows` | a function | it gives sizes that cannot be: see there |
//! | `format` | a function | it gives a program in a format that is not HLO |
//! | `strange` | a function | it gives attributes without names, values or a type that the header knows |
//! | `devices` | `0`, `2` | so many devices |
//! | `no`, `tiny` | `table` | no table; one that ends before its first entry |
//! | `newer` | `major` | the next major version of the C API |
//! | `null` | `text` | errors have null for a text, and a size |

use std::sync::OnceLock;

use crate::ffi;

static FAULTS: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Reads `KIND.FUNCTION+KIND.FUNCTION`; any other name is no fault.
pub fn read_faults(name: &str) {
    let read = |fault: &str| fault.split_once('.').map(|(kind, of)| (kind.to_string(), of.to_string()));
    FAULTS.get_or_init(|| name.split('+').filter_map(read).collect());
}

pub fn faulty_with(kind: &str, of: &str) -> bool {
    FAULTS.get().is_some_and(|faults| faults.iter().any(|fault| fault.0 == kind && fault.1 == of))
}

pub fn faulty(kind: &str, function: &str) -> bool {
    faulty_with(kind, function)
}

/// The error that a function fails with, if it does.
pub fn failure(function: &str) -> Option<*mut ffi::PJRT_Error> {
    let kind = ["fail", "mute", "latin", "code"].into_iter().find(|kind| faulty(kind, function))?;
    Some(crate::error(kind, function))
}

/// Takes entries out, or ends the table early.
pub fn damage(table: *mut ffi::PJRT_Api) {
    for (function, offset) in crate::OFFSETS {
        if faulty("null", function) {
            unsafe { table.byte_add(*offset).cast::<*const ()>().write(std::ptr::null()) };
        }
        if faulty("short", function) {
            unsafe { (*table).struct_size = *offset };
        }
    }
    if faulty("tiny", "table") {
        unsafe { (*table).struct_size = 16 };
    }
}

/// Functions of the C API: each fails, or gives nothing, if its fault says so, and else does what stands there.
macro_rules! entries {
    ($($function:ident($Args:ident) |$args:ident| $body:block)*) => {
        $(
            #[allow(non_snake_case)]
            unsafe extern "C" fn $function(raw: *mut ffi::$Args) -> *mut ffi::PJRT_Error {
                if let Some(error) = table::failure(stringify!($function)) {
                    return error;
                }
                if !faulty("nothing", stringify!($function)) {
                    let $args = unsafe { &mut *raw };
                    $body
                }
                null_mut()
            }
        )*

        fn fill(api: &mut ffi::PJRT_Api) {
            $(api.$function = Some($function);)*
        }

        /// Where each function stands in the table.
        const OFFSETS: &[(&str, usize)] = &[
            ("PJRT_Error_Destroy", std::mem::offset_of!(ffi::PJRT_Api, PJRT_Error_Destroy)),
            ("PJRT_Error_Message", std::mem::offset_of!(ffi::PJRT_Api, PJRT_Error_Message)),
            $((stringify!($function), std::mem::offset_of!(ffi::PJRT_Api, $function)),)*
        ];
    };
}
pub(crate) use entries;
