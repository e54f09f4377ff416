//! Host ops: ops that run on no device, and ops that are never a program's result.

/// Ops that run on no device: lowering leaves them out and lists them.
const LEFT_OUT: [&str; 26] = [
    "Abort",
    "Assert",
    "AudioSummary",
    "CloseSummaryWriter",
    "ConfigureDistributedTPU",
    "FlushSummaryWriter",
    "HistogramSummary",
    "ImageSummary",
    "MergeSummary",
    "MergeV2Checkpoints",
    "OutfeedEnqueue",
    "OutfeedEnqueueTuple",
    "PrintV2",
    "RestoreV2",
    "SaveV2",
    "ScalarSummary",
    "ShardedFilename",
    "ShutdownDistributedTPU",
    "StringJoin",
    "SummaryWriter",
    "TensorSummary",
    "WriteGraphSummary",
    "WriteHistogramSummary",
    "WriteImageSummary",
    "WriteScalarSummary",
    "WriteSummary",
];

/// Whether lowering leaves an op out.
pub(crate) fn is_left_out(op: &str) -> bool {
    LEFT_OUT.contains(&op)
}

/// Whether an op is the host's or changes a variable, so that it is never a program's result.
pub(crate) fn is_host(op: &str) -> bool {
    const HOST: [&str; 16] = [
        "Assign",
        "AssignVariableOp",
        "Const",
        "IsVariableInitialized",
        "IteratorGetNext",
        "MakeIterator",
        "NoOp",
        "Placeholder",
        "ReportUninitializedVariables",
        "Restore",
        "Save",
        "VarHandleOp",
        "VarIsInitializedOp",
        "Variable",
        "VariableV2",
        "TPUReplicateMetadata",
    ];
    is_left_out(op)
        || HOST.contains(&op)
        || op.ends_with("Dataset")
        || op.ends_with("DatasetV2")
        || op.contains("Iterator")
}

/// Whether an op gives the program its input.
pub(crate) fn is_input(op: &str) -> bool {
    matches!(
        op,
        "Placeholder"
            | "PlaceholderV2"
            | "InfeedDequeue"
            | "IteratorGetNext"
            | "IteratorGetNextSync"
            | "InfeedDequeueTuple"
    )
}
