//! Ops of the host: those that no device runs, and those that no program is made for.

/// Ops that no device runs: what they do is left out, and said.
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

/// Whether an op is left out.
pub(crate) fn is_left_out(op: &str) -> bool {
    LEFT_OUT.contains(&op)
}

/// Whether an op is of the host, or changes a variable: none that a program is made for.
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
