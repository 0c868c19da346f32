//! Names: unique among those in sight, and identifiers.
use crate::{BufferId, Var, VarId};
use std::collections::{HashMap, HashSet};

/// The names in use.
pub struct Names {
    vars: HashMap<VarId, String>,
    buffers: HashMap<BufferId, String>,
    used: HashSet<String>,
}

/// Words of TVMScript that cannot be names of variables.
pub const TAKEN: [&str; 42] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield", "T", "I", "range", "min", "max", "float",
    "int",
];

impl Names {
    pub fn new() -> Names {
        let used = TAKEN.iter().map(|t| t.to_string()).collect();
        Names { vars: HashMap::new(), buffers: HashMap::new(), used }
    }

    /// A name for a buffer; buffers keep theirs.
    pub fn buffer(&mut self, id: BufferId, hint: &str) -> String {
        if let Some(name) = self.buffers.get(&id) {
            return name.clone();
        }
        let name = self.unique(hint);
        self.buffers.insert(id, name.clone());
        name
    }

    /// A name for a variable that comes into sight.
    pub fn define(&mut self, v: &Var) -> String {
        let name = self.unique(&v.name);
        self.vars.insert(v.id, name.clone());
        name
    }

    /// The variable is out of sight: its name is free again.
    pub fn leave(&mut self, v: &Var) {
        if let Some(name) = self.vars.remove(&v.id) {
            self.used.remove(&name);
        }
    }

    pub fn knows(&self, id: VarId) -> bool {
        self.vars.contains_key(&id)
    }

    pub fn has_buffer(&self, id: BufferId) -> bool {
        self.buffers.contains_key(&id)
    }

    /// The name of a variable; of one that is not in sight, its own.
    pub fn of(&self, v: &Var) -> String {
        self.vars.get(&v.id).cloned().unwrap_or_else(|| safe(&v.name))
    }

    pub fn of_buffer(&self, id: BufferId, hint: &str) -> String {
        self.buffers.get(&id).cloned().unwrap_or_else(|| safe(hint))
    }

    fn unique(&mut self, hint: &str) -> String {
        let base = safe(hint);
        let mut name = base.clone();
        let mut count = 0;
        while self.used.contains(&name) {
            count += 1;
            name = format!("{base}_{count}");
        }
        self.used.insert(name.clone());
        name
    }
}

/// An identifier like the text.
pub fn safe(text: &str) -> String {
    let mut out: String = text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, 'v');
    }
    if TAKEN.contains(&out.as_str()) {
        out.push('_');
    }
    out
}
