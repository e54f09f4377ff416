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
    is_left_out(op) || HOST.contains(&op) || dataset(op).is_some() || op.contains("Iterator") || is_infeed(op)
}

/// The name of a dataset's op, without its version: `Shuffle` of `ShuffleDatasetV3`.
pub(crate) fn dataset(op: &str) -> Option<&str> {
    let (name, version) = op.rsplit_once("Dataset")?;
    let is_version = |text: &str| text.strip_prefix('V').is_some_and(|n| n.parse::<u8>().is_ok());
    let name = name.strip_prefix("Experimental").or(name.strip_prefix("Legacy")).unwrap_or(name);
    (version.is_empty() || is_version(version)).then_some(name)
}

/// Whether an op of the host hands batches to a TPU.
fn is_infeed(op: &str) -> bool {
    op.starts_with("InfeedEnqueue")
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

/// Whether an op takes the next batch each time that it runs.
pub(crate) fn takes_batch(op: &str) -> bool {
    is_input(op) && !op.starts_with("Placeholder")
}
