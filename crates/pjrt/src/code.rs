//! The status codes of failed plugin calls.

use std::fmt;

/// Status code of a failed plugin call: the gRPC codes, numbered as `PJRT_Error_Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// 1: the operation was cancelled.
    Cancelled,
    /// 2: unknown.
    Unknown,
    /// 3: an argument is wrong whatever the state.
    InvalidArgument,
    /// 4: too late.
    DeadlineExceeded,
    /// 5: something named does not exist.
    NotFound,
    /// 6: something to be made exists.
    AlreadyExists,
    /// 7: not allowed.
    PermissionDenied,
    /// 8: out of memory, at compile time or at run time.
    ResourceExhausted,
    /// 9: the state is wrong for this call.
    FailedPrecondition,
    /// 10: given up, for instance after a conflict.
    Aborted,
    /// 11: an index or offset is outside.
    OutOfRange,
    /// 12: this plugin does not do that.
    Unimplemented,
    /// 13: a bug in the plugin or in its input.
    Internal,
    /// 14: not available now.
    Unavailable,
    /// 15: data are lost or corrupt.
    DataLoss,
    /// 16: no valid credentials.
    Unauthenticated,
    /// A number outside the table, unchanged.
    Other(i32),
}

impl Code {
    const NAMED: [(Code, i32, &'static str); 16] = [
        (Code::Cancelled, 1, "CANCELLED"),
        (Code::Unknown, 2, "UNKNOWN"),
        (Code::InvalidArgument, 3, "INVALID_ARGUMENT"),
        (Code::DeadlineExceeded, 4, "DEADLINE_EXCEEDED"),
        (Code::NotFound, 5, "NOT_FOUND"),
        (Code::AlreadyExists, 6, "ALREADY_EXISTS"),
        (Code::PermissionDenied, 7, "PERMISSION_DENIED"),
        (Code::ResourceExhausted, 8, "RESOURCE_EXHAUSTED"),
        (Code::FailedPrecondition, 9, "FAILED_PRECONDITION"),
        (Code::Aborted, 10, "ABORTED"),
        (Code::OutOfRange, 11, "OUT_OF_RANGE"),
        (Code::Unimplemented, 12, "UNIMPLEMENTED"),
        (Code::Internal, 13, "INTERNAL"),
        (Code::Unavailable, 14, "UNAVAILABLE"),
        (Code::DataLoss, 15, "DATA_LOSS"),
        (Code::Unauthenticated, 16, "UNAUTHENTICATED"),
    ];

    /// The code with this `PJRT_Error_Code` number.
    pub fn from_number(number: i32) -> Code {
        Code::NAMED.iter().find(|row| row.1 == number).map_or(Code::Other(number), |row| row.0)
    }

    /// Its `PJRT_Error_Code` number.
    pub fn number(self) -> i32 {
        match (self, Code::NAMED.iter().find(|row| row.0 == self)) {
            (_, Some(row)) => row.1,
            (Code::Other(number), None) => number,
            (named, None) => unreachable!("{named:?} is in the table of all that are named"),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, Code::NAMED.iter().find(|row| row.0 == *self)) {
            (_, Some(row)) => f.write_str(row.2),
            (Code::Other(number), None) => write!(f, "code {number}"),
            (named, None) => write!(f, "{named:?}"),
        }
    }
}
