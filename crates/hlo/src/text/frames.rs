//! The source tables between a module's header and its first computation, both ways.
//!
//! ```text
//! FileNames
//! 1 "net.py"
//!
//! FunctionNames
//! 1 "layer"
//!
//! FileLocations
//! 1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=4 end_column=9}
//!
//! StackFrames
//! 1 {file_location_id=1 parent_frame_id=1}
//! ```
//!
//! Entries count from 1. The parent of a frame is one more in XLA's text than in its proto, so that the outermost
//! frames, whose parent is 0 there, have 1 here.

use super::error::ParseErrorKind;
use super::lex::{Cursor, Fault, Read};
use super::number::escape;
use crate::{FileLocation, StackFrame, StackFrames};
use std::fmt::Write;

const FILE_NAMES: &str = "FileNames";
const FUNCTION_NAMES: &str = "FunctionNames";
const FILE_LOCATIONS: &str = "FileLocations";
const STACK_FRAMES: &str = "StackFrames";

/// Writes the tables of a module that has some, and the empty line after them.
pub(super) fn write(out: &mut String, frames: &StackFrames) {
    if frames.is_empty() {
        return;
    }
    for (title, names) in [(FILE_NAMES, &frames.file_names), (FUNCTION_NAMES, &frames.function_names)] {
        table(out, title, names, |name| format!("\"{}\"", escape(name)));
    }
    table(out, FILE_LOCATIONS, &frames.locations, |location| {
        let FileLocation { file_name_id, function_name_id, line, end_line, column, end_column } = location;
        format!(
            "{{file_name_id={file_name_id} function_name_id={function_name_id} line={line} end_line={end_line} \
             column={column} end_column={end_column}}}"
        )
    });
    table(out, STACK_FRAMES, &frames.frames, |frame| {
        let parent = i64::from(frame.parent_frame_id) + 1;
        format!("{{file_location_id={} parent_frame_id={parent}}}", frame.file_location_id)
    });
    out.push('\n');
}

fn table<T>(out: &mut String, title: &str, entries: &[T], text: impl Fn(&T) -> String) {
    out.push_str(title);
    for (number, entry) in (1..).zip(entries) {
        write!(out, "\n{number} {}", text(entry)).expect("writing to a string cannot fail");
    }
    out.push_str("\n\n");
}

/// Reads the tables at the cursor, each at most once, in any order.
pub(super) fn read(cursor: &mut Cursor<'_>) -> Read<StackFrames> {
    let mut frames = StackFrames::default();
    let mut seen = Vec::new();
    loop {
        let before = *cursor;
        let title = cursor.word_or_empty();
        // A computation may have such a name too: then a brace or its parameters follow.
        let is_table = matches!(title, FILE_NAMES | FUNCTION_NAMES | FILE_LOCATIONS | STACK_FRAMES)
            && !matches!(cursor.peek(), Some(b'{' | b'('));
        if !is_table {
            *cursor = before;
            return Ok(frames);
        }
        if seen.contains(&title) {
            let kind = ParseErrorKind::DuplicateName { what: "table", name: title.to_string() };
            return Err(Fault::new(cursor.offset_of(title), kind));
        }
        seen.push(title);
        match title {
            FILE_NAMES => frames.file_names = entries(cursor, Cursor::string)?,
            FUNCTION_NAMES => frames.function_names = entries(cursor, Cursor::string)?,
            FILE_LOCATIONS => frames.locations = entries(cursor, location)?,
            _ => frames.frames = entries(cursor, frame)?,
        }
    }
}

/// `1 …`, `2 …`, as long as numbers follow.
fn entries<'a, T>(cursor: &mut Cursor<'a>, mut read: impl FnMut(&mut Cursor<'a>) -> Read<T>) -> Read<Vec<T>> {
    let mut list = Vec::new();
    while cursor.peek().is_some_and(|byte| byte.is_ascii_digit()) {
        let start = *cursor;
        let (number, expected) = (cursor.int()?, list.len() as i64 + 1);
        if number != expected {
            *cursor = start;
            return Err(cursor.expected(format!("entry {expected} of the table")));
        }
        let before = cursor.pos;
        let entry = read(cursor)?;
        cursor.spend(2 * (size_of::<T>() + cursor.pos - before))?;
        list.push(entry);
    }
    Ok(list)
}

/// `{name=1 name=2}`, each at most once.
fn fields<const N: usize>(cursor: &mut Cursor<'_>, names: [&str; N]) -> Read<[i64; N]> {
    let mut values = [None; N];
    cursor.expect("{")?;
    while !cursor.eat("}") {
        cursor.skip_blank();
        let start = *cursor;
        let name = cursor.word_or_empty();
        let Some(at) = names.iter().position(|known| *known == name).filter(|&at| values[at].is_none()) else {
            *cursor = start;
            return Err(cursor.expected(format!("`}}` or one of {}, each once", names.join(", "))));
        };
        cursor.expect("=")?;
        values[at] = Some(cursor.int()?);
        cursor.eat(",");
    }
    Ok(values.map(Option::unwrap_or_default))
}

fn location(cursor: &mut Cursor<'_>) -> Read<FileLocation> {
    let start = *cursor;
    let names = ["file_name_id", "function_name_id", "line", "end_line", "column", "end_column"];
    let [file_name_id, function_name_id, line, end_line, column, end_column] = small(start, fields(cursor, names)?)?;
    Ok(FileLocation { file_name_id, function_name_id, line, end_line, column, end_column })
}

/// The numbers as a proto stores them; `start` is their place.
fn small<const N: usize>(mut start: Cursor<'_>, values: [i64; N]) -> Read<[i32; N]> {
    let mut small = [0; N];
    for (small, value) in small.iter_mut().zip(values) {
        *small = i32::try_from(value).map_err(|_| start.expected("32-bit integers"))?;
    }
    Ok(small)
}

fn frame(cursor: &mut Cursor<'_>) -> Read<StackFrame> {
    let start = *cursor;
    let [file_location_id, parent] = fields(cursor, ["file_location_id", "parent_frame_id"])?;
    let [file_location_id, parent_frame_id] = small(start, [file_location_id, parent.saturating_sub(1)])?;
    Ok(StackFrame { file_location_id, parent_frame_id })
}

#[cfg(test)]
mod tests {
    use crate::text::{PrintOptions, parse, print};
    use crate::{FileLocation, StackFrame};

    const TABLES: &str = "FileNames\n1 \"a \\\"b\\\".py\"\n2 \"/src/net.py\"\n\nFunctionNames\n1 \"<module>\"\n\nFileLocations\n\
         1 {file_name_id=2 function_name_id=1 line=7 end_line=8 column=4 end_column=9}\n\nStackFrames\n\
         1 {file_location_id=1 parent_frame_id=1}\n2 {file_location_id=1 parent_frame_id=2}\n\n";

    fn with(tables: &str) -> String {
        format!(
            "HloModule m, entry_computation_layout={{(f32[])->f32[]}}\n\n{tables}\nENTRY e {{\n  ROOT x = f32[] \
             parameter(0), metadata={{stack_frame_id=2}}\n}}\n\n"
        )
    }

    #[test]
    fn tables_print_back() {
        let text = with(TABLES);
        let module = parse(&text, "m.hlo").unwrap();
        assert_eq!(module.stack_frames.file_names, ["a \"b\".py", "/src/net.py"]);
        assert_eq!(module.stack_frames.function_names, ["<module>"]);
        let location =
            FileLocation { file_name_id: 2, function_name_id: 1, line: 7, end_line: 8, column: 4, end_column: 9 };
        assert_eq!(module.stack_frames.locations, [location]);
        let frames = [0, 1].map(|parent_frame_id| StackFrame { file_location_id: 1, parent_frame_id });
        assert_eq!(module.stack_frames.frames, frames);
        assert_eq!(module.source_text(&module.entry().instructions[0].metadata), "/src/net.py:7");
        assert_eq!(print(&module, &PrintOptions::default()), text);
        // Without metadata there are no references to frames.
        let bare = print(&module, &PrintOptions { metadata: false, ..PrintOptions::default() });
        assert!(!bare.contains("FileNames") && !bare.contains("stack_frame_id"), "{bare}");
        assert!(parse(&bare, "m.hlo").unwrap().stack_frames.is_empty());
    }

    /// The names of the tables are not reserved words.
    #[test]
    fn a_computation_may_be_named_as_a_table() {
        let text = "HloModule m\n\nFileNames {\n  ROOT x = f32[] parameter(0)\n}\n\nENTRY StackFrames (x: f32[]) -> f32[] \
                    {\n  x = f32[] parameter(0)\n  ROOT y = f32[] call(x), to_apply=FileNames\n}\n";
        let module = parse(text, "m.hlo").unwrap();
        let names: Vec<&str> = module.computations.iter().map(|computation| computation.name.as_str()).collect();
        assert_eq!(names, ["FileNames", "StackFrames"]);
    }

    #[test]
    fn malformed_tables_say_where() {
        let location = "one of file_name_id, function_name_id, line, end_line, column, end_column, each once";
        let cases = [
            ("FileNames\n2 \"a\"\n", "m.hlo:4:1: found `2`, expected entry 1 of the table".to_string()),
            ("FileNames\n1 \"a\"\n3 \"b\"\n", "m.hlo:5:1: found `3`, expected entry 2 of the table".to_string()),
            ("FileNames\n1 a.py\n", "m.hlo:4:3: found `a.py`, expected a quoted string".to_string()),
            (
                "FunctionNames\nFileNames\nFunctionNames\n",
                "m.hlo:5:1: the table `FunctionNames` is defined twice".to_string(),
            ),
            ("FileLocations\n1 {file=1}\n", format!("m.hlo:4:4: found `file`, expected `}}` or {location}")),
            ("FileLocations\n1 {line=1 line=2}\n", format!("m.hlo:4:11: found `line`, expected `}}` or {location}")),
            ("FileLocations\n1 {line=}\n", "m.hlo:4:9: found `}`, expected an integer".to_string()),
            ("FileLocations\n1 {line=2147483648}\n", "m.hlo:4:3: found `{`, expected 32-bit integers".to_string()),
            (
                "StackFrames\n1 {parent_frame_id=-9223372036854775808}\n",
                "m.hlo:4:3: found `{`, expected 32-bit integers".to_string(),
            ),
            (
                "StackFrames\n1 {parent_frame_id=99999999999999999999}\n",
                "m.hlo:4:20: found `99999999999999999999`, expected an integer".to_string(),
            ),
            ("StackFrames\n1\n", "m.hlo:6:1: found `ENTRY`, expected `{`".to_string()),
        ];
        for (tables, expected) in cases {
            assert_eq!(
                parse(&with(tables), "m.hlo").unwrap_err().to_string().lines().next(),
                Some(expected.as_str()),
                "{tables}"
            );
        }
    }

    /// Every truncation and every changed byte results in a module that prints back, or in an error.
    #[test]
    fn broken_tables_do_not_panic() {
        let text = with(TABLES);
        let end_of_module = text.rfind('}').unwrap();
        for end in 0..=end_of_module {
            parse(&text[..end], "m.hlo").unwrap_err();
        }
        for at in 0..text.len() {
            for replacement in ["{", "}", "=", "\"", "\\", "-", "9", " ", "\n", "é", ""] {
                let mut changed = text.clone();
                changed.replace_range(at..=at, replacement);
                if let Ok(module) = parse(&changed, "m.hlo") {
                    let printed = print(&module, &PrintOptions::default());
                    let back = parse(&printed, "m.hlo").unwrap_or_else(|error| panic!("{error}\n{changed}"));
                    assert_eq!(back.stack_frames, module.stack_frames, "{changed}");
                }
            }
        }
    }
}
