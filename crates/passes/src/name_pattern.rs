//! Patterns of names: `*` matches any text, `?` any character, everything else itself. Written by hand instead of using
//! `globset`; docs/DEPENDENCIES.md says why.

/// The name of an instruction, or a pattern of names, as messages print it: without a `%`, and without the computation that
/// stands before it, as in `main.38/%dot.12`. Names are of a whole module.
pub fn bare(name: &str) -> &str {
    name.rsplit_once("/%").map_or(name, |(_, name)| name).trim_start_matches('%')
}

/// Whether a pattern with `*` and `?` matches all of a text. Linear in text times stars: no pattern hangs.
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

#[cfg(test)]
mod tests {
    use super::*;

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
