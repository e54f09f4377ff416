//! Lines of scripts, whole and cut off.

use super::*;

#[test]
fn lines_are_read_as_far_as_they_go() {
    let read = |text| {
        let lines = read(text).lines;
        lines.into_iter().map(|line| (line.number, line.indent, line.tokens.len())).collect::<Vec<_>>()
    };
    assert_eq!(read("x = f(1,\n   2)\nprint 'a' # b\n"), [(1, 0, 8), (3, 0, 2)]);
    // A bracket that is never closed, and a string without an end.
    assert_eq!(read("x = f(1,\ndef g():\n  return 'a\n"), [(1, 0, 6), (2, 0, 5), (3, 2, 2)]);
    assert_eq!(read("'''\n\n'''\ny\\\n= 1"), [(1, 0, 1), (4, 0, 3)]);
    assert_eq!(read("é = 1"), [(1, 0, 3)]);
    assert_eq!(read("'\\"), [(1, 0, 1)]);
}
