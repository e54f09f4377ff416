//! Expresses the differences between uses of a block (values and parts of names) as parameters and formulas of parameters.

/// Parameters of a block at most; segments that differ in more are not alike.
const MAX_PARAMETERS: usize = 6;

/// A parameter, with its value for each use.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub name: String,
    pub values: Vec<String>,
    pub part: ParameterPart,
}

/// The part of a layer that a parameter sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ParameterPart {
    /// A layer's options.
    Value,
    /// Layers' own names.
    Name,
    /// Scopes, before layers' own names.
    Scope,
}

/// The parameters of a block that is being written.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    all: Vec<Parameter>,
    /// Whether layers belong to several scopes whose numbers differ: the block begins in one scope and ends in another.
    crosses_scopes: bool,
}

impl Parameters {
    /// The parameters, those of values first; `None` if there are too many, or if the block crosses scopes.
    pub fn finished(self) -> Option<Vec<Parameter>> {
        if self.crosses_scopes {
            return None;
        }
        let is_name_part = |parameter: &Parameter| parameter.part != ParameterPart::Value;
        let (names, values): (Vec<_>, Vec<_>) = self.all.into_iter().partition(is_name_part);
        let all = [values, names].concat();
        (all.len() <= MAX_PARAMETERS).then_some(all)
    }

    /// An option's value: the same for all, a parameter, or a multiple of one.
    pub fn value(&mut self, option: &str, values: Vec<String>) -> String {
        if let Some(text) = self.known(&values) {
            return text;
        }
        let multiple = |base: &[i64], values: &[i64]| {
            let (factor, rest) = (values[0].checked_div(base[0])?, values[0].checked_rem(base[0])?);
            let is_multiple = base.iter().zip(values).all(|(base, value)| base.checked_mul(factor) == Some(*value));
            (rest == 0 && factor > 1 && is_multiple).then_some(factor)
        };
        if let Some(numbers) = integers(&values) {
            for other in self.all.iter().filter(|other| other.part == ParameterPart::Value) {
                let Some(base) = integers(&other.values) else { continue };
                if let Some(factor) = multiple(&base, &numbers) {
                    return format!("$({factor} * {})", other.name);
                }
                if let Some(factor) = multiple(&numbers, &base) {
                    return format!("$({} // {factor})", other.name);
                }
            }
        }
        format!("${}", self.add(option, values, ParameterPart::Value))
    }

    /// The value of an inner block's parameter that is part of names.
    pub fn names(&mut self, option: &str, values: Vec<String>, part: ParameterPart) -> String {
        match (same(&values), integers(&values)) {
            (Some(text), _) => text,
            (None, Some(numbers)) => self.number(option, &numbers, part),
            (None, None) => format!("${}", self.text(option, values, part)),
        }
    }

    /// The parameter with these texts.
    fn text(&mut self, option: &str, values: Vec<String>, part: ParameterPart) -> String {
        let known = self.all.iter().find(|other| other.values == values && other.part != ParameterPart::Value);
        known.map(|other| other.name.clone()).unwrap_or_else(|| self.add(option, values, part))
    }

    /// A name: the parts that all uses share, and parameters for the rest.
    pub fn name(&mut self, names: Vec<String>) -> String {
        let mut parts: Vec<Vec<&str>> = names.iter().map(|name| name.split('/').collect()).collect();
        let n = parts[0].len();
        if parts.iter().any(|parts| parts.len() != n) {
            // A suffix that all names share stays; everything before it is a single part.
            let is_same = |back: usize| {
                let last = |parts: &Vec<&str>| parts.len().checked_sub(back).map(|at| parts[at].to_string());
                parts.iter().all(|other| other.len() > back && last(other) == last(&parts[0]))
            };
            let n_same = (1..n).take_while(|back| is_same(*back)).count();
            for (parts, name) in parts.iter_mut().zip(&names) {
                let tail: usize = parts[parts.len() - n_same..].iter().map(|part| part.len() + 1).sum();
                let rest = parts.split_off(parts.len() - n_same);
                *parts = [vec![&name[..name.len() - tail]], rest].concat();
            }
        }
        let n = parts[0].len();
        let part = |at: usize| if at + 1 == n { ParameterPart::Name } else { ParameterPart::Scope };
        let texts: Vec<String> =
            (0..n).map(|at| self.part(parts.iter().map(|parts| parts[at].to_string()).collect(), part(at))).collect();
        texts.join("/")
    }

    /// A part of a name.
    fn part(&mut self, parts: Vec<String>, part: ParameterPart) -> String {
        if let Some(text) = same(&parts) {
            return escaped(&text);
        }
        let split: Vec<Vec<String>> = parts.iter().map(|part| tokens(part)).collect();
        let is_alike = |other: &Vec<String>| {
            other.len() == split[0].len()
                && other.iter().zip(&split[0]).all(|(a, b)| a == b || (is_number(a) && is_number(b)))
        };
        if !split.iter().all(is_alike) {
            return format!("${}", self.text("scope", parts, part));
        }
        let mut text = String::new();
        for at in 0..split[0].len() {
            let token: Vec<String> = split.iter().map(|tokens| tokens[at].clone()).collect();
            match (same(&token), integers(&token)) {
                (None, Some(numbers)) => {
                    let number = self.number("n", &numbers, part);
                    let next = split[0].get(at + 1).and_then(|next| next.chars().next());
                    let runs_on = next.is_some_and(|c| c.is_alphanumeric() || c == '_') && !number.contains('(');
                    text += &if runs_on { format!("$({})", &number[1..]) } else { number };
                }
                _ => text += &escaped(&token[0]),
            }
        }
        text
    }

    /// A number in names: a parameter, or a parameter plus a constant.
    fn number(&mut self, option: &str, numbers: &[i64], part: ParameterPart) -> String {
        for other in self.all.iter_mut().filter(|other| other.part != ParameterPart::Value) {
            let Some(base) = integers(&other.values) else { continue };
            let more = numbers[0] - base[0];
            if base.iter().zip(numbers).all(|(base, number)| number - base == more) {
                self.crosses_scopes |= more != 0 && part == ParameterPart::Scope && other.part == ParameterPart::Scope;
                if part == ParameterPart::Scope {
                    other.part = part;
                }
                return match more {
                    0 => format!("${}", other.name),
                    1.. => format!("$({} + {more})", other.name),
                    _ => format!("$({} - {})", other.name, -more),
                };
            }
        }
        format!("${}", self.add(option, numbers.iter().map(ToString::to_string).collect(), part))
    }

    /// A value that all uses share, or an existing parameter with these values.
    fn known(&self, values: &[String]) -> Option<String> {
        same(values).or_else(|| {
            let known = self.all.iter().find(|other| other.values == values && other.part == ParameterPart::Value);
            known.map(|other| format!("${}", other.name))
        })
    }

    fn add(&mut self, wanted: &str, values: Vec<String>, part: ParameterPart) -> String {
        let is_taken = |name: &String| self.all.iter().any(|other| other.name == *name);
        let is_reserved = matches!(wanted, "name" | "inputs" | "repeats" | "when" | "share" | "dtype" | "index");
        let wanted = if is_reserved { "value" } else { wanted };
        let names = std::iter::once(wanted.to_string()).chain((2..).map(|n| format!("{wanted}_{n}")));
        let name = names.into_iter().find(|name| !is_taken(name)).unwrap_or_default();
        self.all.push(Parameter { name: name.clone(), values, part });
        name
    }
}

fn same(values: &[String]) -> Option<String> {
    values.iter().all(|value| *value == values[0]).then(|| values[0].clone())
}

/// A text of the graph, escaped for a document that has parameters.
pub(in super::super) fn escaped(text: &str) -> String {
    text.replace('$', "$$")
}

fn is_number(token: &str) -> bool {
    token.parse::<i64>().is_ok_and(|number| number.to_string() == token && number >= 0)
}

fn integers(values: &[String]) -> Option<Vec<i64>> {
    values.iter().map(|value| is_number(value).then(|| value.parse().ok())?).collect()
}

/// A text split into runs of digits and the texts between them.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut was_digit = None;
    for c in text.chars() {
        match tokens.last_mut() {
            Some(token) if was_digit == Some(c.is_ascii_digit()) => token.push(c),
            _ => tokens.push(c.to_string()),
        }
        was_digit = Some(c.is_ascii_digit());
    }
    tokens
}

/// Whether `value` is repetition `n` of a series that begins with `first` and `second`: numbers count, the rest stays.
pub(super) fn is_repetition(first: &str, second: &str, value: &str, n: usize) -> bool {
    let all = [first, second, value].map(tokens);
    all.iter().all(|tokens| tokens.len() == all[0].len())
        && (0..all[0].len()).all(|at| {
            let texts = [0, 1, 2].map(|which| all[which][at].clone());
            match integers(&texts) {
                Some(numbers) => numbers[2] - numbers[0] == (numbers[1] - numbers[0]) * n as i64,
                None => texts[0] == texts[1] && texts[0] == texts[2],
            }
        })
}

/// A value whose numbers count by `$index`; `None` if they do not count.
pub(super) fn counting(first: &str, second: &str) -> Option<String> {
    let (before, after) = (tokens(first), tokens(second));
    let mut text = String::new();
    for (a, b) in before.iter().zip(&after) {
        let [Some(start), Some(next)] = [a, b].map(|token| token.parse::<i64>().ok()) else {
            text += a;
            continue;
        };
        text += &match (start, next - start) {
            (_, 0) => a.clone(),
            (0, 1) => "$(index)".to_string(),
            (_, 1) => format!("$(index + {start})"),
            (0, by) => format!("$({by} * index)"),
            (_, by @ 1..) => format!("$({by} * index + {start})"),
            (_, by) => format!("$({start} - {} * index)", -by),
        };
    }
    if text == "$(index)" {
        text = "$index".to_string();
    }
    (first != second).then_some(text)
}
