//! Where a text is not a program, and why.
use miette::{NamedSource, SourceSpan};
use ruff_text_size::TextRange;
use std::ops::Range;

/// A text that is not a program that Satune reads.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("{file}:{line}:{column}: {message}")]
pub struct ParseError {
    /// Name of the file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// The line itself.
    pub source_line: String,
    /// What would make it right.
    #[help]
    pub help: Option<String>,
    #[source_code]
    text: NamedSource<String>,
    #[label("here")]
    span: SourceSpan,
}

/// An error that does not know its text yet.
#[derive(Debug)]
pub struct Fail {
    range: Range<usize>,
    message: String,
    help: Option<String>,
}

/// Result of a reader.
pub type Res<T> = Result<T, Box<Fail>>;

impl Fail {
    /// An error at a place, bytes.
    pub fn at(range: Range<usize>, message: impl Into<String>) -> Box<Fail> {
        Box::new(Fail { range, message: message.into(), help: None })
    }

    /// An error at a node of the syntax tree.
    pub fn on(node: &impl ruff_text_size::Ranged, message: impl Into<String>) -> Box<Fail> {
        let range: TextRange = node.range();
        Fail::at(range.start().to_usize()..range.end().to_usize(), message)
    }

    /// Says what would make it right.
    pub fn help(mut self: Box<Self>, help: impl Into<String>) -> Box<Fail> {
        self.help = Some(help.into());
        self
    }

    /// The error with line, column and text.
    pub fn located(self, file: &str, text: &str) -> Box<ParseError> {
        let mut start = self.range.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
        let length = self.range.end.min(line_end).saturating_sub(start).max(usize::from(start < line_end));
        Box::new(ParseError {
            file: file.into(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: self.message,
            source_line: text[line_start..line_end].trim_end().into(),
            help: self.help,
            text: NamedSource::new(file, text.to_string()).with_language("python"),
            span: (start, length).into(),
        })
    }
}
