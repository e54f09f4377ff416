//! Training on text from a user's view: a decoder that completes what it learnt, and errors in experiments.

use crate::train_cli::Folder;
use bf16scope::graph::Precision;
use bf16scope::models::{Model, mlp};
use bf16scope::pjrt::Client;
use bf16scope::task::Task;
use bf16scope::train::checkpoint::Checkpoint;
use bf16scope::train::experiment::Experiment;
use bf16scope::train::{Completer, Sampling};
use bf16scope::tuning::Tuning;

const MODEL: &str =
    "kind: transformer, length: 16, max_length: 16, layers: 1, features: 32, heads: 2, hidden: 64, norm: pre";

/// A folder with an experiment on the repeated alphabet: each letter determines the next.
fn alphabet(model: &str, tokens: &str) -> Folder {
    let folder = Folder::new();
    std::fs::write(folder.path("alphabet.txt"), "abcdefghijklmnopqrstuvwxyz".repeat(80)).unwrap();
    let text = format!(
        "model: {{{MODEL}, {model}}}\ndata: {{text: alphabet.txt, tokens: {{{tokens}}}, n_test: 8}}\n\
         train: {{batch: 16, epochs: 12, optimizer: adam, learning_rate: 0.01}}\n"
    );
    std::fs::write(folder.path("e.yaml"), text).unwrap();
    folder
}

#[test]
fn a_decoder_completes_what_it_learnt_and_draws_the_same_again_with_the_same_seed() {
    let folder = alphabet("vocabulary: 256, causal: true", "tokenizer: bytes, window: 16");
    folder.stdout(&["train", "e.yaml", "--no-run"]);
    let complete = |more: &[&str]| {
        let args = [&["predict", "e.yaml", "--complete", "abc", "--tokens", "30", "--json"][..], more].concat();
        folder.json(&args)
    };
    let greedy = complete(&[]);
    // Past the 16 that the network reads.
    assert_eq!(greedy["text"], "abcdefghijklmnopqrstuvwxyzabcdefg");
    assert_eq!(greedy["prompt"], serde_json::json!([97, 98, 99]));
    assert!(greedy["tokens_per_second"].as_f64().unwrap() > 0.0);
    let hot = ["--temperature", "100", "--seed", "1"];
    let drawn = complete(&hot);
    assert_eq!(complete(&hot)["ids"], drawn["ids"]);
    assert_ne!(drawn["ids"], greedy["ids"]);
    assert_ne!(complete(&["--temperature", "100", "--seed", "2"])["ids"], drawn["ids"]);
    assert_eq!(complete(&["--temperature", "100", "--top-k", "1"])["ids"], greedy["ids"]);
    let shown = folder.stdout(&["predict", "e.yaml", "--complete", "xyz", "--tokens", "3"]);
    assert!(
        shown.contains("in bf16, after 84 steps: the most probable token each time\nxyzabc\n3 tokens, "),
        "{shown}"
    );
    let error = folder.stderr(&["predict", "e.yaml", "--complete", ""]);
    let expected = "transformer: a text without tokens; a text is completed by one at least, to go on from";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_network_that_looks_ahead_completes_nothing() {
    let folder = alphabet("vocabulary: 128", "tokenizer: bytes, window: 16");
    folder.stdout(&["train", "e.yaml", "--no-run", "--epochs", "1"]);
    let error = folder.stderr(&["predict", "e.yaml", "--complete", "abc"]);
    let expected = "transformer: a network whose logits depend on the tokens that come after; a text is completed by a \
                    causal one: `causal: true`, or `use_causal_mask: true` of its blocks";
    assert!(error.contains(expected), "{error}");
    let error = folder.stderr(&["predict", "e.yaml", "--complete", "café"]);
    let expected =
        "a text with token 195, of 128; a text is completed by the tokenizer that the network was trained with";
    assert!(error.contains(expected), "{error}");
}

/// With variables of 1e38, the logits of a token overflow f32.
#[test]
fn a_network_that_is_no_decoder_and_one_that_overflows_complete_nothing() {
    let folder = alphabet("vocabulary: 256, causal: true", "tokenizer: bytes, window: 16");
    let client = Client::cpu().unwrap();
    let completer = |task: &dyn Task| Completer::new(&client, task, Precision::F32, &Tuning::none());
    let digits = Model::Mlp(mlp::Config::new([8, 8, 1], 10)).task(0.0);
    assert_eq!(
        completer(&*digits).err().unwrap().to_string(),
        "mlp: it reads `images` [8, 8, 1]; a text is completed by a decoder: one sequence of tokens in, and `logits` \
         [batch, length, vocabulary] out"
    );
    folder.stdout(&["train", "e.yaml", "--no-run", "--epochs", "0", "--checkpoint", "start.safetensors"]);
    let (path, task) = (folder.path("start.safetensors"), Experiment::read(folder.path("e.yaml")).unwrap().task());
    let mut checkpoint = Checkpoint::read(&path).unwrap();
    for array in checkpoint.variables.values_mut() {
        array.bytes = 1e38f32.to_le_bytes().repeat(array.bytes.len() / 4);
    }
    let completer = completer(&*task).unwrap();
    let error = completer.complete(&path, &checkpoint, &[97, 98], 1, &Sampling::default(), |_| ()).unwrap_err();
    let expected = "transformer: logits that are not numbers after 2 tokens; a text is completed by finite ones";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn experiments_over_text_that_are_not_right_show_the_line() {
    for (model, tokens, expected) in [
        (
            "vocabulary: 100",
            "tokenizer: bytes, window: 16",
            "e.yaml:1:126: bytes makes ids up to 122, and `tokens` takes those below 100\n  1 | ",
        ),
        ("vocabulary: 100", "tokenizer: bytes, window: 16", "\n  help: write 256, as many as the tokenizer has"),
        (
            "vocabulary: 256",
            "tokenizer: gone.json, window: 16",
            "e.yaml:2:48: gone.json: cannot open the tokenizer: No such file",
        ),
        (
            "vocabulary: 256",
            "tokenizer: alphabet.txt, window: 16",
            "alphabet.txt: no line is `[UNK]`; expected a `tokenizer.json`",
        ),
        (
            "vocabulary: 256",
            "tokenizer: bytes",
            "`data` has `tokens` without a length, expected `window: N`, `pack: N` or `max_length: N`",
        ),
        (
            "vocabulary: 256",
            "tokenizer: bytes, window: 16, pack: 16",
            "e.yaml:2:67: `data` has 2 of `window`, `pack` and `max_length`, expected one of them",
        ),
        (
            "vocabulary: 256",
            "tokenizer: bytes, window: 8",
            "`data` has `window: 8`, expected `window: 16`, as many tokens as the model reads, or a model that reads 8",
        ),
        (
            "vocabulary: 256",
            "tokenizer: bytes, window: 16, stride: 17",
            "`data` has `stride: 17`, expected `window` at most",
        ),
        (
            "vocabulary: 256",
            "tokenizer: bytes, window: 16, label: x",
            "`data` has `label` here, expected it with `jsonl` and `max_length`",
        ),
        (
            "vocabulary: 256",
            "tokenizer: bytes, window: 16, mask: {}",
            "there is no token `[MASK]`, which stands for masked ones",
        ),
        (
            "vocabulary: 256",
            "tokenizer: bytes, window: 0",
            "found integer `0`, expected a number of tokens from 1 to 16777216",
        ),
    ] {
        let folder = alphabet(model, tokens);
        let error = folder.stderr(&["train", "e.yaml", "--no-run"]);
        assert!(error.contains(expected), "{tokens}: {error}");
    }
}
