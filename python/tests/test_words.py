"""What users of Python read: no flag of the command line, and no file that only Python knew."""

import re
from pathlib import Path

import pytest

import bf16scope
from bf16scope import _words

SOURCES = Path(__file__).parents[2] / "crates"
#: Rooms whose errors and notes can come through: those of the library, and of the four commands that are asked.
ROOMS = [
    *(f"{room}/src" for room in ("foreign", "hlo", "pjrt", "tpu", "audit")),
    "passes/src/amp",
    *(f"study/src/{file}.rs" for file in ("error", "error/sentences", "lower", "module_file")),
]
COMMANDS = ["arrays.rs", "child.rs", "subjects.rs", "audit.rs", "compile.rs", "explain.rs", "fit.rs"]
SCREENS = ["audit.rs", "compile.rs", "explain.rs", "fit.rs", "outcome.rs"]
#: Arguments of other programs, and sentences that Python cannot meet: what they are about is not asked here.
ELSEWHERE = {
    "--xla",  # variables and dumps of XLA
    "--no", "--only", "--disable", "--progress", "--implementation", "--python", "--platform", "--abi", "--dest", "--version",  # pip's
    "--features",  # how other builds are made
    "--devices", "--batch",  # of `plan`, and of packages
    "--max", "--precision", "--program", "--tune", "--split", "--mesh", "--steps", "--at", "--levers",  # of models, not of modules
    "--fetch",  # of graphs of TensorFlow, whose results Python does not choose
    "--html", "--svg", "--save", "--inputs",  # names of files
}  # fmt: skip


def literals(path):
    """The texts of a Rust file, without its tests, comments and plots."""
    text = re.sub(r"^\s*//.*$", "", path.read_text().split("#[cfg(test)]")[0], flags=re.MULTILINE)
    for found in re.finditer(r'"((?:[^"\\]|\\.)*)"', text, flags=re.DOTALL):
        said = re.sub(r"\\\n\s*", "", found[1]).replace("\\n", "\n").replace('\\"', '"')
        # Pages of help are the program's own.
        if not said.startswith("Examples:"):
            yield said


def test_no_message_names_a_flag():
    files = [file for room in ROOMS for file in ([SOURCES / room] if room.endswith(".rs") else (SOURCES / room).rglob("*.rs"))]
    files += [SOURCES / "cli/src" / command for command in COMMANDS]
    files += [SOURCES / "report/src" / screen for screen in SCREENS]
    assert len(files) > 200
    left = []
    for file in files:
        if file.name == "tests.rs":
            continue
        for text in literals(file):
            # As it is with its values.
            said = _words.in_python(re.sub(r"\{[^{}]*\}", "tpu-v2", text.replace("{flags} --{FLAG}", "")))
            outside = re.sub(r"`bf16scope [^`]*`", "", said)
            left += [(file.name, text) for flag in re.findall(r"(?<![\w-])--[a-z]+", outside) if flag not in ELSEWHERE]
    assert not left


@pytest.mark.parametrize(
    "said, read",
    [
        ("say how large each is: --dim a=32 --dim b=4", 'say how large each is: dims={"a": 32, "b": 4}'),
        ("use --target tpu-v2:4x4, the smallest slice", 'use target="tpu-v2:4x4", the smallest slice'),
        ("compile it as it is, without --compare and --policy", "compile it as it is, without `compare=True` and `policy`"),
        ("not done: raise the limit (--timeout), if it is no loop", "not done: give it time, if it is no loop"),
        ("run `bf16scope lower --target` on it", "run `bf16scope lower --target` on it"),
        (
            "`bf16scope audit /tmp/m.pb --random 1 --policy O1` compares; /tmp/m.pb",
            '`bf16scope.jax.audit(step, …, policy="O1")` compares; step',
        ),
    ],
)
def test_words(said, read):
    assert _words.in_python(said, {"/tmp/m.pb": "step"}) == read


def test_errors_and_notes_are_of_python():
    error = bf16scope.Error("x: no --dim", "leave --dim out", ["--target tpu-v2 is one"])
    assert (error.message, error.help, error.causes) == ("x: no `dims`", "leave `dims` out", ['target="tpu-v2" is one'])
    assert "--" not in str(error)
    path = Path(__file__).parents[2] / "tests/data/stablehlo/symbolic.jax"
    with pytest.raises(bf16scope.Error, match=r'dims=\{"b": 32\}'):
        bf16scope.Module.read(path)


def test_what_steers_a_terminal_is_made_visible():
    error = bf16scope.Error("main/%a\x1b[2Jb: bad\r\u202e", "rename \x07it", ["of \u2066x\U000e0041\x9b"])
    assert error.message == "main/%a\\x1b[2Jb: bad\\r\\u{202e}"
    assert (error.help, error.causes) == ("rename \\x07it", ["of \\u{2066}x\\u{e0041}\\u{9b}"])
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066]", str(error))
    # Line ends, tabs and other scripts stay.
    assert _words.visible("a\n\té日本") == "a\n\té日本"
    text = "HloModule m\n\nENTRY main {\n  a = f32[2]{0} parameter(0)\n  ROOT b\x1b = f32[3]{0} negate(a)\n}\n"
    with pytest.raises(bf16scope.Error) as raised:
        bf16scope.Module.read(text)
    assert "\x1b" not in str(raised.value)
