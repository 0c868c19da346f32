//! A look at the text before it is parsed: the parser recurses, and a stack overflow cannot be caught.
use super::error::{Fail, Res};

/// Longest text, bytes.
const LONGEST: usize = 4 << 20;
/// Deepest nesting of brackets.
const DEEPEST: usize = 100;
/// Widest indentation, columns.
const INDENT: usize = 1024;
/// Most operators, names and numbers in one statement.
pub(super) const OPERATORS: usize = 16_384;
/// Most of them that can be levels of the tree, one below the other: those before a bracket, in it, and so on; not what stands between
/// other commas.
const LEVELS: usize = 4096;

/// Refuses text that is too long, too deep, or holds characters that no program has.
pub fn check(text: &str) -> Res<()> {
    if text.len() > LONGEST {
        let message = format!("the text has {} bytes; at most {LONGEST} are read", text.len());
        return Err(Fail::at(0..0, message));
    }
    if let Some(at) = text.find('\0') {
        return Err(Fail::at(at..at + 1, "the text has a zero byte").help("is this a Python file?"));
    }
    let bytes = text.as_bytes();
    let (mut operators, mut at) = (0usize, 0usize);
    // Of each bracket that is open, what stands since its last comma; and their sum.
    let (mut levels, mut below) = (vec![0usize], 0usize);
    while at < bytes.len() {
        let (here, mut own) = (at, 0);
        match bytes[at] {
            b'#' => {
                at = text[at..].find('\n').map_or(bytes.len(), |i| at + i);
                continue;
            }
            quote @ (b'"' | b'\'') => {
                at = end_of_string(bytes, at, quote);
                continue;
            }
            b'(' | b'[' | b'{' => {
                operators += 1;
                levels.push(0);
                if levels.len() > DEEPEST + 1 {
                    let message = format!("brackets are nested more than {DEEPEST} deep");
                    return Err(Fail::at(here..here + 1, message).help("name parts of the expression"));
                }
            }
            b')' | b']' | b'}' if levels.len() > 1 => below -= levels.pop().unwrap_or(0),
            b')' | b']' | b'}' => {}
            b',' => {
                operators += 1;
                below -= levels.last_mut().map_or(0, std::mem::take);
            }
            b'\n' => {
                if levels.len() == 1 {
                    (operators, below, levels) = (0, 0, vec![0]);
                    at += 1;
                    let indent = bytes[at..].iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
                    if indent > INDENT {
                        let message = format!("the line is indented by {indent} columns; at most {INDENT} are read");
                        return Err(Fail::at(at..at + 1, message));
                    }
                    continue;
                }
            }
            b' ' | b'\t' | b'\r' => {}
            b if b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80 => {
                own = 1;
                while at + 1 < bytes.len()
                    && (bytes[at + 1].is_ascii_alphanumeric() || bytes[at + 1] == b'_' || bytes[at + 1] >= 0x80)
                {
                    at += 1;
                }
            }
            _ => own = 1,
        }
        operators += own;
        below += own;
        levels.last_mut().into_iter().for_each(|level| *level += own);
        let most = if below > LEVELS { LEVELS } else { OPERATORS };
        if operators > OPERATORS || below > LEVELS {
            let message = format!("a statement has more than {most} operators and operands");
            return Err(Fail::at(here..here + 1, message).help("split it into several"));
        }
        at += 1;
    }
    Ok(())
}

/// The byte after a string that starts at `at`.
fn end_of_string(bytes: &[u8], at: usize, quote: u8) -> usize {
    let triple = bytes[at..].starts_with(&[quote; 3]);
    let mut i = at + if triple { 3 } else { 1 };
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 2,
            b'\n' if !triple => return i,
            b if b == quote && !triple => return i + 1,
            b if b == quote && bytes[i..].starts_with(&[quote; 3]) => return i + 3,
            _ => i += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::{check, LEVELS, OPERATORS};

    #[test]
    fn what_stands_side_by_side_makes_no_levels() {
        assert!(check(&format!("x = f({})\n", "a + 1, ".repeat(LEVELS / 2))).is_ok());
        assert!(check(&format!("x = f({})\n", "a, ".repeat(OPERATORS))).is_err());
        for deep in [
            "-".repeat(LEVELS + 1),
            "a + ".repeat(LEVELS),
            format!("f({}g({}", "-".repeat(LEVELS / 2 + 1), "-".repeat(LEVELS / 2)),
        ] {
            assert!(check(&format!("x = {deep}1\n")).is_err(), "{} levels", deep.len());
        }
        // Each statement by itself.
        assert!(check(&"x = a + 1\n".repeat(LEVELS)).is_ok());
    }
}
