//! Literals as text: `5`, `{1, 2}`, `{ { 1, 2 }, { 3, 4 } }`, `( 1, {2} )`.

use super::number;
use crate::{ArrayShape, DType, Literal};

/// Writes a literal on one line, without its shape.
pub(super) fn write(out: &mut String, literal: &Literal) {
    match literal {
        Literal::Tuple(elements) => {
            out.push_str("( ");
            for (i, element) in elements.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write(out, element);
            }
            out.push_str(" )");
        }
        Literal::Token => out.push_str("token"),
        Literal::Array { shape, bytes } => write_array(out, shape, bytes),
    }
}

/// Elements in row-major order; braces open and close where an index wraps.
fn write_array(out: &mut String, shape: &ArrayShape, bytes: &[u8]) {
    let rank = shape.rank();
    let sizes: Vec<usize> = shape.dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).collect();
    if rank == 0 {
        out.push_str(&number::element(shape.dtype, bytes));
        return;
    }
    let width = shape.dtype.n_bytes();
    let mut elements = bytes.chunks_exact(width);
    write_dim(out, &sizes, &mut Vec::new(), &mut |out| {
        let Some(bytes) = elements.next() else { return };
        match shape.dtype {
            // Denser than `true` and `false`.
            DType::Pred => out.push(if bytes[0] != 0 { '1' } else { '0' }),
            dtype => out.push_str(&number::element(dtype, bytes)),
        }
    });
}

/// Recursion is as deep as the rank, which a shape's own message bounds.
fn write_dim(out: &mut String, sizes: &[usize], index: &mut Vec<usize>, element: &mut dyn FnMut(&mut String)) {
    let rank = sizes.len();
    let size = sizes[index.len()];
    let is_innermost = index.len() + 1 == rank;
    out.push('{');
    if rank > 1 && is_innermost {
        out.push_str(if size <= 1 { "" } else { " " });
    } else if !is_innermost {
        match index.last() {
            Some(value) if rank > 3 => {
                out.push_str(&format!(" /*i{}={value}*/{}", index.len() - 1, if size > 0 { " " } else { "" }));
            }
            _ => out.push(' '),
        }
    }
    for i in 0..size {
        if i > 0 {
            out.push_str(", ");
        }
        if is_innermost {
            element(out);
        } else {
            index.push(i);
            write_dim(out, sizes, index, element);
            index.pop();
        }
    }
    if rank > 1 && !(is_innermost && size <= 1) {
        out.push(' ');
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(literal: &Literal, expected: &str) {
        let mut text = String::new();
        write(&mut text, literal);
        assert_eq!(text, expected);
    }

    #[test]
    fn nests_as_xla_does() {
        check(&Literal::scalar(true), "true");
        check(&Literal::from_elements([2], &[true, false]), "{1, 0}");
        check(&Literal::from_elements([0], &[0f32; 0]), "{}");
        check(&Literal::from_elements([2, 2], &[1, 2, 3, 4]), "{ { 1, 2 }, { 3, 4 } }");
        check(&Literal::from_elements([2, 1], &[1, 2]), "{ {1}, {2} }");
        check(&Literal::from_elements([1, 1, 2], &[1, 2]), "{ { { 1, 2 } } }");
        check(
            &Literal::from_elements([1, 2, 1, 2], &[1, 2, 3, 4]),
            "{ { /*i0=0*/ { /*i1=0*/ { 1, 2 } }, { /*i1=1*/ { 3, 4 } } } }",
        );
        check(&Literal::Tuple(vec![Literal::scalar(1.5f32), Literal::from_elements([1], &[2u8])]), "( 1.5, {2} )");
    }
}
