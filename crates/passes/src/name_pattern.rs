//! Patterns of names: `*` matches any text, `?` any character, everything else itself. Written by hand instead of using
//! `globset`; docs/DEPENDENCIES.md says why.

/// The bare name in an instruction's printed name, or in a pattern of names: without `%`, and without the computation
/// before it, as in `main.38/%dot.12`. Names are unique in a module.
pub fn bare(name: &str) -> &str {
    name.rsplit_once("/%").map_or(name, |(_, name)| name).trim_start_matches('%')
}

/// Whether a pattern with `*` and `?` matches the whole text. The time is at most proportional to the product of text
/// and pattern length.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            Some(_) | None => match &mut retry {
                Some((star, from)) => {
                    *from += 1;
                    (p, t) = (*star + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// Transformations that JAX writes around the scopes of a name.
const TRANSFORMATIONS: [&str; 5] = ["jvp", "transpose", "vmap", "linearize", "remat"];

/// The scopes of a name, with a leading slash: without JAX's transformations, which write `transpose(jvp(head))/dot`
/// in a gradient where the forward pass has `head/dot`, and without empty scopes.
///
/// ```
/// use bf16scope_passes::name_pattern::layers;
///
/// assert_eq!(layers("jit(f)/transpose(jvp(head))/dot"), "/jit(f)/head/dot");
/// ```
pub fn layers(op_name: &str) -> String {
    let mut out = String::from("/");
    // For each open parenthesis whether it belongs to a transformation.
    let mut open = Vec::new();
    for c in op_name.chars() {
        let is_after = |word: &&str| out.strip_suffix(*word).is_some_and(|rest| rest.ends_with(['/', '(']));
        match c {
            '(' => {
                let word = TRANSFORMATIONS.iter().copied().find(is_after);
                open.push(word.is_some());
                match word {
                    Some(word) => out.truncate(out.len() - word.len()),
                    None => out.push('('),
                }
            }
            ')' if open.pop() == Some(true) => {}
            '/' if out.ends_with('/') => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_named_as_without_transformations() {
        for (name, expected) in [
            ("head/dot", "/head/dot"),
            ("jit(f)/head/dot", "/jit(f)/head/dot"),
            ("jit(f)/transpose(jvp(head))/inner/dot", "/jit(f)/head/inner/dot"),
            ("vmap(transpose(vmap(jvp(head))))/dot", "/head/dot"),
            ("jit(f)/transpose(jvp(jvp()))/checkpoint/head/dot", "/jit(f)/checkpoint/head/dot"),
            ("jit(jvp)/jvp(a/b)/dot", "/jit(jvp)/a/b/dot"),
            ("a)/b", "/a)/b"),
            ("my_jvp(a)/b", "/my_jvp(a)/b"),
        ] {
            assert_eq!(layers(name), expected);
        }
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text, expected) in [
            ("*/layer_norm/*", "net/layer_norm/add", true),
            ("*/layer_norm/*", "layer_norm/add", false),
            ("*layer_norm*", "layer_norm", true),
            ("dot.?", "dot.3", true),
            ("dot.?", "dot.33", false),
            ("", "", true),
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn names_are_taken_as_they_are_printed() {
        let names = ["dot.12", "%dot.12", "main.38/%dot.12", "%main.38/%dot.12", "jit(f)/dot", "*/layer/*"];
        assert_eq!(names.map(bare), ["dot.12", "dot.12", "dot.12", "dot.12", "jit(f)/dot", "*/layer/*"]);
    }
}
