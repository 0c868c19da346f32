//! An error over the program, with the offending loops and blocks underlined.
use crate::tree::{self, Node};
use crate::ScheduleError;
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report, Severity};
use satune_ir::{tvmscript, Program, Stmt};

/// Stands before the names of the nodes to underline while the program is printed.
const MARK: &str = "satune_marked_";

impl ScheduleError {
    /// The message over the program, with the offending loops and blocks underlined.
    pub fn render(&self, program: &Program) -> String {
        let (text, spans) = underlined(self, program);
        let mut diagnostic = MietteDiagnostic::new(message(self)).with_severity(Severity::Error).with_labels(spans);
        if !self.remedy.is_empty() {
            diagnostic = diagnostic.with_help(self.remedy.clone());
        }
        let report = Report::new(diagnostic).with_source_code(NamedSource::new(&program.name, text));
        let mut out = String::new();
        let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor()).with_context_lines(3);
        match handler.render_report(&mut out, report.as_ref()) {
            Ok(()) => out,
            Err(_) => message(self),
        }
    }
}

/// The program's text, and the names in it to underline.
fn underlined(error: &ScheduleError, program: &Program) -> (String, Vec<LabeledSpan>) {
    let mut marked = program.clone();
    for &id in &error.loops {
        if let Some(Stmt::For(l)) = tree::find_mut(&mut marked.body.block.body, Node::Loop(id)) {
            l.var.name = format!("{MARK}{}", l.var.name).into();
        }
    }
    for &id in &error.blocks {
        if let Some(Stmt::Realize(r)) = tree::find_mut(&mut marked.body.block.body, Node::Block(id)) {
            r.block.name = format!("{MARK}{}", r.block.name);
        }
    }
    let printed = tvmscript::print(&marked);
    let mut text = String::with_capacity(printed.len());
    let mut spans = Vec::new();
    for line in printed.split_inclusive('\n') {
        // Only declarations are underlined, not uses.
        let declares = ["for ", "with "].iter().any(|word| line.trim_start().starts_with(word));
        let mut pieces = line.split(MARK);
        text.push_str(pieces.next().unwrap_or_default());
        for piece in pieces {
            let length = piece.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(piece.len());
            if declares {
                spans.push(LabeledSpan::at(text.len()..text.len() + length, "here"));
            }
            text.push_str(piece);
        }
    }
    (text, spans)
}

fn message(error: &ScheduleError) -> String {
    if error.primitive.is_empty() {
        error.detail.clone()
    } else {
        format!("{}: {}", error.primitive, error.detail)
    }
}
