//! Named values: options for a plugin, attributes and costs from it.

use std::collections::BTreeMap;
use std::ffi::c_char;

use super::{PjrtError, Value, ffi};

/// Options in the C API's form. Borrows the names and values.
pub(super) fn encode(options: &BTreeMap<String, Value>) -> Vec<ffi::PJRT_NamedValue> {
    options
        .iter()
        .map(|(name, value)| {
            let (value_type, value, value_size) = match value {
                Value::Str(text) => (ffi::NAMED_STRING, ffi::NamedValue { string: text.as_ptr().cast() }, text.len()),
                Value::Int(int64) => (ffi::NAMED_INT64, ffi::NamedValue { int64: *int64 }, 1),
                Value::Ints(list) => {
                    (ffi::NAMED_INT64_LIST, ffi::NamedValue { int64_array: list.as_ptr() }, list.len())
                }
                Value::Float(float) => (ffi::NAMED_FLOAT, ffi::NamedValue { float: *float }, 1),
                Value::Bool(boolean) => (ffi::NAMED_BOOL, ffi::NamedValue { boolean: *boolean }, 1),
            };
            ffi::PJRT_NamedValue {
                struct_size: size_of::<ffi::PJRT_NamedValue>(),
                extension_start: std::ptr::null_mut(),
                name: name.as_ptr().cast(),
                name_size: name.len(),
                value_type,
                value,
                value_size,
            }
        })
        .collect()
}

/// Copies named values out of the plugin. Values of a type this header does not know are left out.
///
/// # Safety
/// `values` is null, or points to `len` named values that the plugin filled in and that are alive during the call.
pub(super) unsafe fn decode(
    call: &'static str,
    values: *const ffi::PJRT_NamedValue,
    len: usize,
) -> Result<BTreeMap<String, Value>, PjrtError> {
    let mut decoded = BTreeMap::new();
    // SAFETY: the caller's promise. Plugins lay the values out as an array of the struct they were built with;
    // `PJRT_NamedValue` has not grown since the API's first version.
    for named in unsafe { whole_list(call, values, len)? } {
        // SAFETY: the union member read is the one that `value_type` names; text and list have `value_size` elements.
        let value = unsafe {
            match named.value_type {
                ffi::NAMED_STRING => Value::Str(text(named.value.string, named.value_size)),
                ffi::NAMED_INT64 => Value::Int(named.value.int64),
                ffi::NAMED_INT64_LIST => Value::Ints(list(named.value.int64_array, named.value_size).to_vec()),
                ffi::NAMED_FLOAT => Value::Float(named.value.float),
                ffi::NAMED_BOOL => Value::Bool(named.value.boolean),
                _ => continue,
            }
        };
        // SAFETY: a name of `name_size` bytes, alive as long as the value.
        decoded.insert(unsafe { text(named.name, named.name_size) }, value);
    }
    Ok(decoded)
}

/// Copies text out of the plugin; bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `start` points to `len` readable bytes, or `len` is 0.
pub(super) unsafe fn text(start: *const c_char, len: usize) -> String {
    // SAFETY: the caller's promise is `list`'s.
    String::from_utf8_lossy(unsafe { list(start.cast::<u8>(), len) }).into_owned()
}

/// A slice over an array in the plugin; empty if the plugin returned null, or an impossible length.
///
/// # Safety
/// `start` points to `len` initialized elements that outlive `'a`, or `len` is 0 or more than fit into the address space,
/// or `start` is null.
pub(super) unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if start.is_null() || !can_be::<T>(len) {
        return &[];
    }
    // SAFETY: not null, not too many, and `len` elements by the caller's promise.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// Like [`list`], but a missing list is an error of this call.
///
/// # Safety
/// Those of [`list`].
pub(super) unsafe fn whole_list<'a, T>(call: &'static str, start: *const T, len: usize) -> Result<&'a [T], PjrtError> {
    match len > 0 && (start.is_null() || !can_be::<T>(len)) {
        true => Err(PjrtError::impossible(call, format_args!("{len} elements without a list"))),
        // SAFETY: the caller's promise.
        false => Ok(unsafe { list(start, len) }),
    }
}

/// Whether memory can hold this many elements.
fn can_be<T>(len: usize) -> bool {
    len.checked_mul(size_of::<T>()).is_some_and(|n_bytes| n_bytes <= isize::MAX as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_values_survive_the_way_out_and_back() {
        let options = BTreeMap::from([
            ("bool".to_string(), Value::Bool(true)),
            ("float".to_string(), Value::Float(0.5)),
            ("int".to_string(), Value::Int(-7)),
            ("ints".to_string(), Value::Ints(vec![2, 2, 1])),
            ("none".to_string(), Value::Ints(vec![])),
            ("text".to_string(), Value::Str("v2:2x2".to_string())),
        ]);
        let encoded = encode(&options);
        // SAFETY: an array of `encoded.len()` values that borrows from `options`, alive here.
        assert_eq!(unsafe { decode("options", encoded.as_ptr(), encoded.len()) }.unwrap(), options);
    }
}
