//! CUDA text, with the hot loop marked.
use super::Entry;
use maud::{html, Markup};
use std::ops::{Range, RangeInclusive};

/// Calls that do the arithmetic of a contraction in the printed text.
const ARITHMETIC: [&str; 5] = ["fmaf(", "fma(", "mma_", "wgmma", "tcgen05_m"];

const KEYWORDS: [&str; 24] = [
    "const", "int", "float", "double", "unsigned", "short", "char", "long", "void", "for", "if", "else", "extern",
    "asm", "volatile", "template", "return", "static", "bool", "float2", "float4", "double2", "uint4", "uint2",
];

/// Lines (from 0) of the loop where a kernel spends its time: around its first multiply-add, the innermost loop that is
/// not expanded, or the outermost where all are.
pub fn hot_loop(text: &str) -> Option<RangeInclusive<usize>> {
    struct Open {
        line: usize,
        is_loop: bool,
        expanded: bool,
    }
    let mut open: Vec<Open> = Vec::new();
    let mut chosen: Option<(usize, usize)> = None;
    let mut expanded = false;
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with("//") {
            continue;
        }
        if trimmed.starts_with("#pragma unroll") {
            expanded = trimmed == "#pragma unroll";
            continue;
        }
        if chosen.is_none() && open.iter().any(|o| o.is_loop) && ARITHMETIC.iter().any(|call| trimmed.contains(call)) {
            let rolled = open.iter().rposition(|o| o.is_loop && !o.expanded);
            let depth = rolled.or_else(|| open.iter().position(|o| o.is_loop))?;
            chosen = Some((depth, open.get(depth)?.line));
        }
        let mut is_loop = trimmed.starts_with("for ");
        for character in trimmed.chars() {
            match character {
                '{' => {
                    open.push(Open { line: at, is_loop, expanded: is_loop && expanded });
                    is_loop = false;
                }
                '}' => {
                    open.pop();
                    if let Some((depth, start)) = chosen {
                        if open.len() == depth {
                            return Some(start..=at);
                        }
                    }
                }
                _ => {}
            }
        }
        expanded = false;
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A line with its words coloured: comments, directives, keywords, CUDA's own names, numbers.
fn coloured(line: &str) -> Markup {
    let (code, comment) = match line.find("//") {
        Some(at) => line.split_at(at),
        None => (line, ""),
    };
    if code.trim_start().starts_with('#') {
        return html! { span.directive { (code) } span.comment { (comment) } };
    }
    let mut pieces: Vec<(&str, Range<usize>)> = Vec::new();
    let mut at = 0;
    while let Some(first) = code[at..].chars().next() {
        let word = is_word(first);
        let same = |c: char| (is_word(c) || (word && first.is_numeric() && c == '.')) == word;
        let end = code[at..].find(|c| !same(c)).map_or(code.len(), |length| at + length);
        let piece = &code[at..end];
        let class = if KEYWORDS.contains(&piece) {
            "keyword"
        } else if piece.starts_with("__") || ["blockIdx", "threadIdx", "fmaf", "fma"].contains(&piece) {
            "cuda"
        } else if first.is_numeric() {
            "number"
        } else {
            ""
        };
        // Neighbours without a colour are one piece: fewer elements.
        match pieces.last_mut() {
            Some((last, range)) if last.is_empty() && class.is_empty() => range.end = end,
            _ => pieces.push((class, at..end)),
        }
        at = end;
    }
    html! {
        @for (class, range) in pieces {
            @if class.is_empty() { (code[range]) } @else { span class=(class) { (code[range]) } }
        }
        @if !comment.is_empty() { span.comment { (comment) } }
    }
}

pub(super) fn section(e: &Entry<'_>) -> Markup {
    html! {
        @for source in &e.sources {
            @let hot = hot_loop(&source.text);
            details.fold {
                summary {
                    h3 { "CUDA" }
                    code { (source.file) }
                    @if let Some(hot) = &hot {
                        span.quiet { "hot loop: lines " (hot.start() + 1) " to " (hot.end() + 1) ", marked" }
                    }
                }
                pre.source {
                    @for (at, line) in source.text.lines().enumerate() {
                        span.row.hot[hot.as_ref().is_some_and(|h| h.contains(&at))] { (coloured(line)) "\n" }
                    }
                }
            }
        }
        @if e.sources.is_empty() { p.note { "The CUDA text is not in this report." } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "\
// fmaf( in a comment
__global__ void f()
{
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        c[i] = 0.0f;
    }
    #pragma unroll 1
    for (int k = 0; k < 256; ++k) {
        if (k + 1 < 256) {
            copy();
        }
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            c[i] = fmaf(a, b, c[i]);
        }
    }
    store();
}
";

    #[test]
    fn the_hot_loop_is_the_innermost_one_that_is_not_expanded() {
        assert_eq!(hot_loop(KERNEL), Some(8..=16));
        assert_eq!(hot_loop(&KERNEL.replace("#pragma unroll 1", "#pragma unroll")), Some(8..=16));
        assert_eq!(hot_loop(&KERNEL.replace("fmaf(a", "mul(a")), None);
        assert_eq!(hot_loop("}}}} fmaf("), None);
    }

    #[test]
    fn colours_change_no_text() {
        for line in KERNEL.lines().chain(["    const int x = a->b * 1.5f; // end", "é ü < > &"]) {
            let html = coloured(line).into_string();
            let mut plain = String::new();
            let mut inside = false;
            for c in html.chars() {
                match c {
                    '<' => inside = true,
                    '>' => inside = false,
                    c if !inside => plain.push(c),
                    _ => {}
                }
            }
            let plain = plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
            assert_eq!(plain, line);
        }
    }
}
