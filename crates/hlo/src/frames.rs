//! Call stacks: the tables of a module that say where its instructions were written.
//!
//! An instruction names a frame ([`Metadata::stack_frame_id`](super::Metadata)), a frame a location and the frame that
//! called it, a location a file and a function. All these ids count from 1; 0 means none.
//!
//! Source: `StackFrameIndexProto` in XLA's `hlo.proto`.

/// The four tables; all empty in a module that has none.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StackFrames {
    /// Names of source files.
    pub file_names: Vec<String>,
    /// Names of functions.
    pub function_names: Vec<String>,
    /// Places in the files.
    pub locations: Vec<FileLocation>,
    /// Frames of call stacks.
    pub frames: Vec<StackFrame>,
}

/// A place in a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FileLocation {
    /// In [`StackFrames::file_names`], from 1.
    pub file_name_id: i32,
    /// In [`StackFrames::function_names`], from 1.
    pub function_name_id: i32,
    /// The first line.
    pub line: i32,
    /// The last line.
    pub end_line: i32,
    /// The column in the first line.
    pub column: i32,
    /// The column in the last line.
    pub end_column: i32,
}

/// A frame of a call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StackFrame {
    /// In [`StackFrames::locations`], from 1.
    pub file_location_id: i32,
    /// The frame that called this one, in [`StackFrames::frames`], from 1; 0 for the outermost.
    pub parent_frame_id: i32,
}

/// The entry of a table that counts from 1.
fn entry<T>(table: &[T], id: i32) -> Option<&T> {
    table.get(usize::try_from(id).ok()?.checked_sub(1)?)
}

impl StackFrames {
    /// Whether all tables are empty.
    pub fn is_empty(&self) -> bool {
        let StackFrames { file_names, function_names, locations, frames } = self;
        file_names.is_empty() && function_names.is_empty() && locations.is_empty() && frames.is_empty()
    }

    /// File and line of a frame, if it has them.
    pub fn source(&self, frame_id: i32) -> Option<(&str, i32)> {
        let location = entry(&self.locations, entry(&self.frames, frame_id)?.file_location_id)?;
        Some((entry(&self.file_names, location.file_name_id)?, location.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metadata, Module};

    #[test]
    fn a_source_is_the_instructions_own_or_its_frames() {
        let mut module = Module::new("m");
        module.stack_frames = StackFrames {
            file_names: vec!["net.py".to_string()],
            function_names: vec!["f".to_string()],
            locations: vec![
                FileLocation { file_name_id: 1, function_name_id: 1, line: 7, ..FileLocation::default() },
                FileLocation { file_name_id: 2, ..FileLocation::default() },
            ],
            frames: [1, 2, 3, 0, -1].map(|id| StackFrame { file_location_id: id, parent_frame_id: 0 }).to_vec(),
        };
        let of_frame = |stack_frame_id| Metadata { stack_frame_id, ..Metadata::default() };
        assert_eq!(module.source(&of_frame(1)), Some(("net.py", 7)));
        // No frame, a frame without a file or a location, and frames that do not exist.
        for id in [0, 2, 3, 4, 5, 6, -1, i32::MIN, i32::MAX] {
            assert_eq!(module.source(&of_frame(id)), None, "{id}");
        }
        let with_file = Metadata { source_file: "own.py".to_string(), source_line: 3, ..of_frame(1) };
        assert_eq!(module.source(&with_file), Some(("own.py", 3)));
        assert_eq!(module.source_text(&with_file), "own.py:3");
        assert_eq!(module.source_text(&Metadata { source_line: 0, ..with_file }), "own.py");
        assert_eq!(module.source_text(&of_frame(0)), "");
    }
}
