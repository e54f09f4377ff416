//! Mutations of HLO text: of tokens, without knowledge of the language, and of its keywords, which often leave a valid module.

use bf16scope::hlo::ops::opcodes::OPCODES;
use rand::Rng;
use rand::rngs::SmallRng;

/// Numbers at which something overflows, ends, or means nothing.
const BOUNDARIES: [&str; 24] = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "64",
    "127",
    "128",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-1",
    "-2",
    "-2147483648",
    "-9223372036854775808",
    "nan",
    "1e39",
];

const DTYPES: [&str; 22] = [
    "pred", "s2", "s4", "s8", "s16", "s32", "s64", "u2", "u4", "u8", "u16", "u32", "u64", "bf16", "f16", "f32", "f64",
    "c64", "c128", "f8e4m3fn", "f8e5m2", "token",
];

/// Words of attributes, which may replace each other.
const WORDS: [&str; 26] = [
    "true",
    "false",
    "EQ",
    "NE",
    "LT",
    "GE",
    "FLOAT",
    "TOTALORDER",
    "UNSIGNED",
    "FFT",
    "IFFT",
    "RFFT",
    "IRFFT",
    "TRANSPOSE",
    "ADJOINT",
    "NO_TRANSPOSE",
    "rng_philox",
    "rng_three_fry",
    "rng_default",
    "kLoop",
    "kInput",
    "kCustom",
    "highest",
    "default",
    "may-alias",
    "must-alias",
];

/// The text split into words and numbers, whitespace and single signs.
fn tokens(text: &str) -> Vec<&str> {
    let kind = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "_.-".contains(c) => 0,
        ' ' => 1,
        _ => 2,
    };
    let mut tokens = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let end = at + c.len_utf8();
        if chars.peek().is_none_or(|(_, next)| kind(*next) != kind(c) || kind(c) == 2) {
            tokens.push(&text[start..end]);
            start = end;
        }
    }
    tokens
}

fn is_number(token: &str) -> bool {
    token.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()) && !token.contains('_')
}

/// One of a list.
pub fn one<'a, T: ?Sized>(random: &mut SmallRng, list: &[&'a T]) -> &'a T {
    list[random.random_range(0..list.len())]
}

/// A place whose token is what is asked for.
fn place(random: &mut SmallRng, tokens: &[&str], is_one: impl Fn(&str) -> bool) -> Option<usize> {
    let places: Vec<usize> = (0..tokens.len()).filter(|&at| is_one(tokens[at])).collect();
    (!places.is_empty()).then(|| places[random.random_range(0..places.len())])
}

/// Changes the text once; `other` supplies lines that do not belong there.
pub fn mutate(random: &mut SmallRng, text: &str, other: &str) -> String {
    // More of what may leave a module than of what seldom does.
    let changed = match random.random_range(0..30) {
        0..=2 => number(random, text),
        3..=7 => everywhere(random, text, is_number),
        8..=11 => everywhere(random, text, |token| DTYPES.contains(&token)),
        12 => word(random, text, &DTYPES),
        13..=16 => opcode(random, text),
        17..=19 => operand(random, text),
        20..=22 => word(random, text, &WORDS),
        23 => reordered(random, text),
        24 => attribute(random, text, other),
        25 => Some(token(random, text)),
        26 => Some(line(random, text, other)),
        27 | 28 => layout(random, text),
        _ => Some(cut(random, text)),
    };
    changed.unwrap_or_else(|| token(random, text))
}

/// Another number: a boundary, or one beside it.
fn another(random: &mut SmallRng, number: &str) -> String {
    match (random.random_range(0..3), number.parse::<i64>()) {
        (0, Ok(value)) => value.wrapping_add(1).to_string(),
        (1, Ok(value)) => value.wrapping_sub(1).to_string(),
        // Half of the boundaries are small: large ones are mostly refused at once.
        (2, _) => one(random, &BOUNDARIES[..6]).to_string(),
        _ => one(random, &BOUNDARIES).to_string(),
    }
}

fn number(random: &mut SmallRng, text: &str) -> Option<String> {
    let tokens = tokens(text);
    let at = place(random, &tokens, is_number)?;
    let changed = another(random, tokens[at]);
    Some(with(&tokens, at, &changed))
}

/// One token, wherever it stands, becomes another of its kind: a size of all arrays, a dtype of all instructions.
fn everywhere(random: &mut SmallRng, text: &str, is_one: impl Fn(&str) -> bool) -> Option<String> {
    let tokens = tokens(text);
    let old = tokens[place(random, &tokens, is_one)?];
    let new = if is_number(old) { another(random, old) } else { one(random, &DTYPES).to_string() };
    Some(tokens.iter().map(|&token| if token == old { new.as_str() } else { token }).collect())
}

/// One of these words becomes another of them.
fn word(random: &mut SmallRng, text: &str, words: &[&str]) -> Option<String> {
    let tokens = tokens(text);
    let at = place(random, &tokens, |token| words.contains(&token))?;
    Some(with(&tokens, at, one(random, words)))
}

fn opcode(random: &mut SmallRng, text: &str) -> Option<String> {
    let tokens = tokens(text);
    let places: Vec<usize> =
        (1..tokens.len()).filter(|&at| tokens[at] == "(" && OPCODES.contains(&tokens[at - 1])).collect();
    let at = *places.get(random.random_range(0..places.len().max(1)))? - 1;
    // Every other time one that is already there, so that its attributes may fit.
    let new = match random.random_bool(0.5) {
        true => tokens[places[random.random_range(0..places.len())] - 1],
        false => one(random, &OPCODES),
    };
    Some(with(&tokens, at, new))
}

/// A name that is used becomes another that is defined.
fn operand(random: &mut SmallRng, text: &str) -> Option<String> {
    let tokens = tokens(text);
    let names: Vec<&str> = (0..tokens.len().saturating_sub(2))
        .filter(|&at| tokens[at + 1] == " " && tokens[at + 2] == "=")
        .map(|at| tokens[at])
        .collect();
    let uses: Vec<usize> = (1..tokens.len())
        .filter(|&at| names.contains(&tokens[at]) && tokens.get(at + 2) != Some(&"=") && tokens[at - 1] != "=")
        .collect();
    let at = *uses.get(random.random_range(0..uses.len().max(1)))?;
    Some(with(&tokens, at, one(random, &names)))
}

/// Two numbers of one pair of braces change places.
fn reordered(random: &mut SmallRng, text: &str) -> Option<String> {
    let mut tokens = tokens(text);
    let pairs: Vec<usize> = (0..tokens.len().saturating_sub(2))
        .filter(|&at| is_number(tokens[at]) && tokens[at + 1] == "," && is_number(tokens[at + 2]))
        .collect();
    let at = *pairs.get(random.random_range(0..pairs.len().max(1)))?;
    tokens.swap(at, at + 2);
    Some(tokens.concat())
}

/// An attribute goes, or one of another place comes.
fn attribute(random: &mut SmallRng, text: &str, other: &str) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    let attributes_of = |text: &str| -> Vec<String> {
        let starts = text.match_indices("), ").map(|(at, _)| at + 1);
        starts.map(|at| text[at..].lines().next().unwrap_or_default().to_string()).collect()
    };
    let with_some: Vec<usize> = (0..lines.len()).filter(|&at| lines[at].contains(" = ")).collect();
    let at = *with_some.get(random.random_range(0..with_some.len().max(1)))?;
    if random.random_bool(0.5) {
        let end = lines[at].rfind(", ")?;
        lines[at].truncate(end);
    } else {
        let attributes = attributes_of(if random.random_bool(0.5) { text } else { other });
        let attribute = attributes.get(random.random_range(0..attributes.len().max(1)))?;
        lines[at].push_str(attribute);
    }
    Some(lines.join("\n") + "\n")
}

/// A layout where there was none, or another one.
fn layout(random: &mut SmallRng, text: &str) -> Option<String> {
    let ends: Vec<usize> = text.match_indices(']').map(|(at, _)| at + 1).collect();
    let at = *ends.get(random.random_range(0..ends.len().max(1)))?;
    let (before, mut after) = text.split_at(at);
    if let Some((_, rest)) = after.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        after = rest;
    }
    let layout = one(random, &["", "{}", "{0}", "{0,1}", "{1,0}", "{0,1,2}", "{2,0,1}", "{0,1,2,3}", "{1,0:T(8,128)}"]);
    Some(format!("{before}{layout}{after}"))
}

/// A token goes, comes twice, or changes places with another.
fn token(random: &mut SmallRng, text: &str) -> String {
    let mut tokens = tokens(text);
    if tokens.is_empty() {
        return "HloModule".to_string();
    }
    let (at, other) = (random.random_range(0..tokens.len()), random.random_range(0..tokens.len()));
    match random.random_range(0..4) {
        0 => drop(tokens.remove(at)),
        1 => tokens.insert(at, tokens[at]),
        2 => tokens.insert(at, tokens[other]),
        _ => tokens.swap(at, other),
    }
    tokens.concat()
}

/// A line goes, comes twice, comes from elsewhere, or changes places with another.
fn line(random: &mut SmallRng, text: &str, other: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return other.to_string();
    }
    let at = random.random_range(0..lines.len());
    match random.random_range(0..4) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, lines[at]),
        2 => lines.swap(at, random.random_range(0..text.lines().count())),
        _ => {
            let others: Vec<&str> = other.lines().filter(|line| line.contains(" = ")).collect();
            if let Some(line) = others.get(random.random_range(0..others.len().max(1))) {
                lines.insert(at, line);
            }
        }
    }
    lines.join("\n") + "\n"
}

/// The text ends early, or a byte of it is another.
fn cut(random: &mut SmallRng, text: &str) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    if chars.is_empty() {
        return String::new();
    }
    let at = random.random_range(0..chars.len());
    match random.random_bool(0.3) {
        true => chars.truncate(at),
        false => {
            chars[at] = one(random, &["\0", "\n", "{", "}", "(", ")", ",", "=", "\u{202e}", "9", "\"", "%"])
                .chars()
                .next()
                .unwrap_or(' ')
        }
    }
    chars.into_iter().collect()
}

/// The tokens with one of them replaced.
fn with(tokens: &[&str], at: usize, new: &str) -> String {
    tokens.iter().enumerate().map(|(place, token)| if place == at { new } else { token }).collect()
}
