//! Reads PTX text: tokens, then declarations and instructions, names resolved in their scopes as they are met.
use crate::syntax::*;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Why a text is no PTX that is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}: {what}")]
pub struct ParseError {
    /// Line in the PTX.
    pub line: u32,
    /// What is wrong.
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'t> {
    Word(&'t str),
    Number(&'t str),
    Text(&'t str),
    Mark(u8),
}

struct Lexed<'t> {
    tokens: Vec<(Token<'t>, u32, u32, u32)>,
}

fn word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'%' | b'.')
}

fn lex(text: &str) -> Result<Lexed<'_>, ParseError> {
    let bytes = text.as_bytes();
    let (mut at, mut line) = (0, 1);
    let mut tokens = Vec::new();
    while at < bytes.len() {
        let b = bytes[at];
        let start = at;
        let token = match b {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            b' ' | b'\t' | b'\r' => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = text[at + 2..].find("*/").map_or(bytes.len(), |n| at + 4 + n);
                line += text[at..end].matches('\n').count() as u32;
                at = end;
                continue;
            }
            b'"' => {
                let end = text[at + 1..]
                    .find('"')
                    .ok_or_else(|| ParseError { line, what: "a string that does not end".into() })?;
                at += end + 2;
                Token::Text(&text[start + 1..at - 1])
            }
            b'0'..=b'9' => {
                while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'.') {
                    at += 1;
                }
                Token::Number(&text[start..at])
            }
            _ if word_byte(b) => {
                while at < bytes.len() {
                    if word_byte(bytes[at]) {
                        at += 1;
                    } else if bytes[at] == b':' && bytes.get(at + 1) == Some(&b':') {
                        at += 2;
                    } else {
                        break;
                    }
                }
                Token::Word(&text[start..at])
            }
            b',' | b';' | b'{' | b'}' | b'[' | b']' | b'(' | b')' | b'<' | b'>' | b'!' | b'|' | b'+' | b'-' | b'='
            | b'@' | b':' => {
                at += 1;
                Token::Mark(b)
            }
            _ => {
                let what =
                    format!("unexpected character `{}`", text[at..].chars().next().unwrap_or('?').escape_debug());
                return Err(ParseError { line, what });
            }
        };
        tokens.push((token, line, start as u32, at as u32));
    }
    Ok(Lexed { tokens })
}

/// Reads a whole module.
///
/// # Errors
/// What is no PTX, or names what is not declared.
pub fn parse(text: &str) -> Result<Module, ParseError> {
    let lexed = lex(text)?;
    let mut parser =
        Parser { text, tokens: &lexed.tokens, at: 0, module: Module::default(), names: FxHashMap::default() };
    parser.module()?;
    Ok(parser.module)
}

type Result_<T> = Result<T, ParseError>;

struct Parser<'t> {
    text: &'t str,
    tokens: &'t [(Token<'t>, u32, u32, u32)],
    at: usize,
    module: Module,
    names: FxHashMap<String, u32>,
}

#[derive(Clone, Copy)]
enum Name {
    Register(Register),
    Symbol(Symbol),
}

/// What a function's body has declared so far.
struct Body {
    function: Function,
    instructions: Vec<Instruction>,
    scopes: Vec<Scope>,
    line: Line,
}

#[derive(Default)]
struct Scope {
    names: FxHashMap<String, Name>,
    /// Families `%r<N>`: prefix, number of registers, the first one.
    labels: FxHashMap<String, u32>,
    /// Operands to fill in: instruction, operand, name of the label, line.
    uses: Vec<(usize, usize, String, u32)>,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at).map(|t| t.0)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |t| t.1)
    }

    fn error<T>(&self, what: impl Into<String>) -> Result_<T> {
        Err(ParseError { line: self.line(), what: what.into() })
    }

    fn next(&mut self) -> Result_<Token<'t>> {
        match self.peek() {
            Some(token) => {
                self.at += 1;
                Ok(token)
            }
            None => self.error("the text ends in the middle"),
        }
    }

    fn mark(&mut self, mark: u8) -> bool {
        let found = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: u8) -> Result_<()> {
        if self.mark(mark) {
            return Ok(());
        }
        let found = self.shown();
        self.error(format!("`{}` expected, found {found}", mark as char))
    }

    fn shown(&self) -> String {
        match self.tokens.get(self.at) {
            Some(t) => format!("`{}`", &self.text[t.2 as usize..t.3 as usize]),
            None => "the end".into(),
        }
    }

    fn word(&mut self) -> Result_<&'t str> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            _ => {
                self.at -= 1;
                let found = self.shown();
                self.error(format!("a name expected, found {found}"))
            }
        }
    }

    fn is_word(&self, word: &str) -> bool {
        self.peek() == Some(Token::Word(word))
    }

    fn integer(&mut self) -> Result_<i64> {
        let negative = self.mark(b'-');
        match self.next()? {
            Token::Number(text) => match number(text) {
                Some(Operand::Integer(n)) => Ok(if negative { n.wrapping_neg() } else { n }),
                _ => self.error(format!("an integer expected, found `{text}`")),
            },
            _ => {
                self.at -= 1;
                let found = self.shown();
                self.error(format!("a number expected, found {found}"))
            }
        }
    }

    fn module(&mut self) -> Result_<()> {
        while let Some(token) = self.peek() {
            let Token::Word(word) = token else {
                let found = self.shown();
                return self.error(format!("a directive expected, found {found}"));
            };
            self.at += 1;
            match word {
                ".version" => {
                    if let Token::Number(n) = self.next()? {
                        self.module.version = n.into();
                    }
                }
                ".target" => {
                    self.module.target = self.word()?.into();
                    while self.mark(b',') {
                        self.next()?;
                    }
                }
                ".address_size" => {
                    if self.integer()? != 64 {
                        return self.error("addresses of 64 bits expected");
                    }
                }
                ".file" => self.file()?,
                ".section" => self.section()?,
                ".pragma" => {
                    self.next()?;
                    self.expect(b';')?;
                }
                ".visible" | ".extern" | ".weak" | ".common" => {}
                ".entry" | ".func" => self.function(word == ".entry")?,
                ".global" | ".const" | ".shared" => {
                    let space = space_of(word).unwrap_or(Space::Global);
                    let external = self.at >= 2 && self.tokens[self.at - 2].0 == Token::Word(".extern");
                    for variable in self.variables(space, external)? {
                        let id = self.module.variables.len() as u32;
                        self.names.insert(variable.name.clone(), id);
                        self.module.variables.push(variable);
                    }
                }
                _ => return self.error(format!("the directive `{word}` is not known")),
            }
        }
        Ok(())
    }

    fn file(&mut self) -> Result_<()> {
        let number = self.integer()? as u32;
        if let Token::Text(name) = self.next()? {
            self.module.files.push((number, name.into()));
        }
        while self.mark(b',') {
            self.integer()?;
        }
        Ok(())
    }

    fn section(&mut self) -> Result_<()> {
        self.next()?;
        self.expect(b'{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.next()? {
                Token::Mark(b'{') => depth += 1,
                Token::Mark(b'}') => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// What follows `.global`: `.align 4 .b8 table[16] = {1, 2}, other;`
    fn variables(&mut self, space: Space, external: bool) -> Result_<Vec<Variable>> {
        let (mut align, mut ty) = (0, None);
        let mut lanes = 1;
        while let Some(Token::Word(word)) = self.peek() {
            if !word.starts_with('.') {
                break;
            }
            self.at += 1;
            match word {
                ".align" => align = self.integer()? as u64,
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                _ => match Type::parse(&word[1..]) {
                    Some(t) => ty = Some(t),
                    None if matches!(word, ".ptr" | ".global" | ".const" | ".attribute" | ".managed") => {}
                    None => return self.error(format!("the type `{word}` of a variable is not known")),
                },
            }
        }
        let Some(ty) = ty else { return self.error("a variable without a type") };
        let mut list = Vec::new();
        loop {
            list.push(self.declarator(space, ty, lanes, align, external)?);
            if self.mark(b';') {
                return Ok(list);
            }
            self.expect(b',')?;
        }
    }

    fn declarator(&mut self, space: Space, ty: Type, lanes: u64, align: u64, external: bool) -> Result_<Variable> {
        let name = self.word()?.to_string();
        let unit = ty.bytes() as u64 * lanes;
        let (mut count, mut open) = (1u64, false);
        while self.mark(b'[') {
            if self.mark(b']') {
                (count, open) = (0, true);
            } else {
                count = count.saturating_mul(self.integer()?.max(0) as u64);
                self.expect(b']')?;
            }
        }
        let mut initial = None;
        if self.mark(b'=') {
            let mut bytes = Vec::new();
            self.initializer(ty, &mut bytes)?;
            if open {
                count = bytes.len() as u64 / unit.max(1);
            }
            initial = Some(bytes);
        }
        let align = if align == 0 { unit.max(1) } else { align };
        let bytes = unit.saturating_mul(count);
        let dynamic = open && initial.is_none() && (external || space == Space::Shared);
        Ok(Variable { name, space, align, bytes, initial, dynamic })
    }

    fn initializer(&mut self, ty: Type, bytes: &mut Vec<u8>) -> Result_<()> {
        if self.mark(b'{') {
            while !self.mark(b'}') {
                self.initializer(ty, bytes)?;
                self.mark(b',');
            }
            return Ok(());
        }
        let negative = self.mark(b'-');
        let Token::Number(text) = self.next()? else {
            return self.error("only numbers are known as values of variables");
        };
        let bits = match number(text) {
            Some(Operand::Integer(n)) => (if negative { n.wrapping_neg() } else { n }) as u64,
            Some(Operand::Single(n)) => u64::from(n),
            Some(Operand::Double(n)) => n,
            _ => return self.error(format!("`{text}` is no number")),
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..ty.bytes().min(8)]);
        Ok(())
    }

    fn parameters(&mut self) -> Result_<Vec<Variable>> {
        let mut list = Vec::new();
        self.expect(b'(')?;
        while !self.mark(b')') {
            if !self.is_word(".param") && !self.is_word(".reg") {
                let found = self.shown();
                return self.error(format!("`.param` expected, found {found}"));
            }
            self.at += 1;
            let (mut align, mut ty) = (0, Type::Bits(64));
            while let Some(Token::Word(word)) = self.peek() {
                if !word.starts_with('.') {
                    break;
                }
                self.at += 1;
                match (word, Type::parse(&word[1..])) {
                    (".align", _) => align = self.integer()? as u64,
                    (_, Some(t)) => ty = t,
                    // `.ptr .global .align 4`: of what it points to.
                    (".ptr", _) => {
                        while let Some(Token::Word(word)) = self.peek().filter(|_| true) {
                            match word {
                                ".align" => {
                                    self.at += 1;
                                    self.integer()?;
                                }
                                ".global" | ".const" | ".local" | ".shared" => self.at += 1,
                                _ => break,
                            }
                        }
                    }
                    _ => return self.error(format!("`{word}` of a parameter is not known")),
                }
            }
            list.push(self.declarator(Space::Param, ty, 1, align, false)?);
            self.mark(b',');
        }
        Ok(list)
    }

    fn function(&mut self, entry: bool) -> Result_<()> {
        let mut parameters = Vec::new();
        if self.peek() == Some(Token::Mark(b'(')) {
            parameters = self.parameters()?;
        }
        let results = parameters.len();
        let name = self.word()?.to_string();
        if self.peek() == Some(Token::Mark(b'(')) {
            parameters.extend(self.parameters()?);
        }
        let mut function = Function {
            name,
            entry,
            parameters,
            results,
            registers: Vec::new(),
            variables: Vec::new(),
            body: None,
            max_threads: None,
            required_threads: None,
            cluster: None,
        };
        while let Some(Token::Word(word)) = self.peek() {
            self.at += 1;
            let mut numbers = [1u32; 3];
            let mut count = 0;
            while matches!(self.peek(), Some(Token::Number(_))) {
                let n = self.integer()? as u32;
                if count < 3 {
                    numbers[count] = n;
                }
                count += 1;
                if !self.mark(b',') {
                    break;
                }
            }
            match word {
                ".maxntid" => function.max_threads = Some(numbers.iter().map(|n| u64::from(*n)).product()),
                ".reqntid" => function.required_threads = Some(numbers),
                ".reqnctapercluster" => function.cluster = Some(numbers),
                ".noreturn" | ".explicitcluster" | ".blocksareclusters" | ".minnctapersm" | ".maxnreg"
                | ".maxclusterrank" | ".maxnctapersm" => {}
                ".pragma" => {
                    self.next()?;
                    self.mark(b';');
                }
                _ => return self.error(format!("`{word}` of a function is not known")),
            }
        }
        if self.mark(b';') {
            self.module.functions.push(function);
            return Ok(());
        }
        self.expect(b'{')?;
        let mut body =
            Body { function, instructions: Vec::new(), scopes: vec![Scope::default()], line: Line::default() };
        for (i, parameter) in body.function.parameters.iter().enumerate() {
            body.scopes[0].names.insert(parameter.name.clone(), Name::Symbol(Symbol::Parameter(i as u32)));
        }
        self.body(&mut body)?;
        body.function.body = Some(body.instructions);
        self.module.functions.push(body.function);
        Ok(())
    }

    fn body(&mut self, body: &mut Body) -> Result_<()> {
        loop {
            match self.peek() {
                None => return self.error("a function that does not end"),
                Some(Token::Mark(b'{')) => {
                    self.at += 1;
                    body.scopes.push(Scope::default());
                }
                Some(Token::Mark(b'}')) => {
                    self.at += 1;
                    let Some(scope) = body.scopes.pop() else { return self.error("`}` without `{`") };
                    for (instruction, operand, label, line) in scope.uses {
                        let target = scope.labels.get(&label);
                        match (target, body.scopes.last_mut()) {
                            (Some(target), _) => {
                                body.instructions[instruction].operands[operand] = Operand::Label(*target);
                            }
                            (None, Some(outer)) => outer.uses.push((instruction, operand, label, line)),
                            // A function that is called, or nothing.
                            (None, None) => {
                                return Err(ParseError { line, what: format!("`{label}` is not declared") });
                            }
                        }
                    }
                    if body.scopes.is_empty() {
                        return Ok(());
                    }
                }
                Some(Token::Mark(b';')) => self.at += 1,
                Some(Token::Word(word)) => {
                    if self.tokens.get(self.at + 1).map(|t| t.0) == Some(Token::Mark(b':')) {
                        self.at += 2;
                        let target = body.instructions.len() as u32;
                        if let Some(scope) = body.scopes.last_mut() {
                            scope.labels.insert(word.into(), target);
                        }
                    } else if word.starts_with('.') {
                        self.at += 1;
                        self.directive(word, body)?;
                    } else {
                        self.instruction(body)?;
                    }
                }
                Some(Token::Mark(b'@')) => self.instruction(body)?,
                Some(_) => {
                    let found = self.shown();
                    return self.error(format!("an instruction expected, found {found}"));
                }
            }
        }
    }

    fn directive(&mut self, word: &str, body: &mut Body) -> Result_<()> {
        match word {
            ".loc" => {
                let (file, line) = (self.integer()? as u32, self.integer()? as u32);
                self.integer()?;
                let mut called_at = 0;
                while self.mark(b',') {
                    match self.word()? {
                        "inlined_at" => {
                            self.integer()?;
                            called_at = self.integer()? as u32;
                            self.integer()?;
                        }
                        _ => {
                            // `function_name $L__info_string0` or with `+ 12`.
                            self.next()?;
                            if self.mark(b'+') {
                                self.integer()?;
                            }
                        }
                    }
                }
                body.line = Line { file, line, called_at, ptx: 0 };
            }
            ".file" => self.file()?,
            ".pragma" => {
                self.next()?;
                self.expect(b';')?;
            }
            ".reg" => self.registers(body)?,
            ".local" | ".shared" | ".param" | ".global" | ".const" => {
                let space = space_of(word).unwrap_or(Space::Local);
                // Parameters of calls are memory of the thread.
                let space = if space == Space::Param { Space::Local } else { space };
                for variable in self.variables(space, false)? {
                    let name = variable.name.clone();
                    let symbol = if matches!(space, Space::Global | Space::Const) {
                        self.module.variables.push(variable);
                        Symbol::Module(self.module.variables.len() as u32 - 1)
                    } else {
                        body.function.variables.push(variable);
                        Symbol::Function(body.function.variables.len() as u32 - 1)
                    };
                    if let Some(scope) = body.scopes.last_mut() {
                        scope.names.insert(name, Name::Symbol(symbol));
                    }
                }
            }
            ".callprototype" | ".branchtargets" | ".calltargets" => {
                return self.error(format!("`{word}` (indirect calls and branches) is not supported"));
            }
            _ => return self.error(format!("the directive `{word}` is not known")),
        }
        Ok(())
    }

    fn registers(&mut self, body: &mut Body) -> Result_<()> {
        let mut ty = None;
        while let Some(Token::Word(word)) = self.peek() {
            if !word.starts_with('.') {
                break;
            }
            self.at += 1;
            match Type::parse(&word[1..]) {
                Some(t) => ty = Some(t),
                None => return self.error(format!("the type `{word}` of a register is not known")),
            }
        }
        let Some(ty) = ty else { return self.error("a register without a type") };
        loop {
            let name = self.word()?;
            let mut names = vec![name.to_string()];
            if self.mark(b'<') {
                let count = self.integer()?;
                if !(0..=1_000_000).contains(&count) {
                    return self.error("more than a million registers");
                }
                names = (0..count).map(|i| format!("{name}{i}")).collect();
                self.expect(b'>')?;
            }
            for name in names {
                let id = Register(body.function.registers.len() as u32);
                if let Some(scope) = body.scopes.last_mut() {
                    scope.names.insert(name.clone(), Name::Register(id));
                }
                body.function.registers.push(RegisterInfo { name, ty });
            }
            if self.mark(b';') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn instruction(&mut self, body: &mut Body) -> Result_<()> {
        let mut guard = None;
        if self.mark(b'@') {
            let negated = self.mark(b'!');
            let name = self.word()?;
            match lookup(body, name) {
                Some(Name::Register(register)) => guard = Some((register, negated)),
                _ => return self.error(format!("the predicate `{name}` is not declared")),
            }
        }
        let ptx = self.line();
        let start = self.tokens.get(self.at).map_or(0, |t| t.2 as usize);
        let mut parts = self.word()?.split('.');
        let opcode = parts.next().unwrap_or_default().to_string();
        let modifiers: Vec<String> = parts.map(str::to_string).collect();
        let mut operands = Vec::new();
        let index = body.instructions.len();
        while !self.mark(b';') {
            if !operands.is_empty() {
                self.expect(b',')?;
            }
            let operand = self.operand(body)?;
            if let Operand::Function(name) = &operand {
                let called = opcode == "call" && !operands.iter().any(|o| matches!(o, Operand::Function(_)));
                if !called {
                    let (name, line) = (name.clone(), self.line());
                    if let Some(scope) = body.scopes.last_mut() {
                        scope.uses.push((index, operands.len(), name, line));
                    }
                }
            }
            operands.push(operand);
        }
        let end = self.tokens[self.at - 1].2 as usize;
        let text: Vec<&str> = self.text[start..end].split_whitespace().collect();
        let line = Line { ptx, ..body.line };
        body.instructions.push(Instruction {
            opcode,
            modifiers,
            operands,
            guard,
            line,
            text: Arc::from(text.join(" ")),
        });
        Ok(())
    }

    fn operand(&mut self, body: &Body) -> Result_<Operand> {
        let first = self.simple(body)?;
        if self.mark(b'|') {
            let second = self.simple(body)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple(&mut self, body: &Body) -> Result_<Operand> {
        match self.next()? {
            Token::Word("_") => Ok(Operand::Discard),
            Token::Word(word) => {
                let found = self.named(word, body);
                if let Operand::Symbol(symbol, _) = found {
                    let offset = self.offset()?;
                    return Ok(Operand::Symbol(symbol, offset));
                }
                Ok(found)
            }
            Token::Number(text) => match number(text) {
                Some(operand) => Ok(operand),
                None => self.error(format!("`{text}` is no number")),
            },
            Token::Mark(b'-') => {
                let Token::Number(text) = self.next()? else { return self.error("a number expected behind `-`") };
                match number(text) {
                    Some(Operand::Integer(n)) => Ok(Operand::Integer(n.wrapping_neg())),
                    Some(Operand::Double(n)) => Ok(Operand::Double(n ^ (1 << 63))),
                    _ => self.error(format!("`-{text}` is no number")),
                }
            }
            Token::Mark(b'!') => {
                let name = self.word()?;
                match lookup(body, name) {
                    Some(Name::Register(register)) => Ok(Operand::Not(register)),
                    _ => self.error(format!("the predicate `{name}` is not declared")),
                }
            }
            Token::Mark(b'{') => self.list(b'}', body).map(Operand::Vector),
            Token::Mark(b'(') => self.list(b')', body).map(Operand::List),
            Token::Mark(b'[') => {
                let (base, offset) = match self.next()? {
                    Token::Word(word) => match self.named(word, body) {
                        Operand::Register(register) => (Base::Register(register), self.offset()?),
                        Operand::Symbol(symbol, _) => (Base::Symbol(symbol), self.offset()?),
                        _ => return self.error(format!("`{word}` is not declared")),
                    },
                    Token::Number(text) => match number(text) {
                        Some(Operand::Integer(n)) => (Base::Absolute, n),
                        _ => return self.error(format!("`{text}` is no address")),
                    },
                    _ => return self.error("an address expected behind `[`"),
                };
                let mut more = Vec::new();
                while self.mark(b',') {
                    more.push(self.operand(body)?);
                }
                self.expect(b']')?;
                Ok(Operand::Address { base, offset, more })
            }
            _ => {
                self.at -= 1;
                let found = self.shown();
                self.error(format!("an operand expected, found {found}"))
            }
        }
    }

    fn offset(&mut self) -> Result_<i64> {
        if self.mark(b'+') {
            return self.integer();
        }
        if self.peek() == Some(Token::Mark(b'-')) {
            return self.integer();
        }
        Ok(0)
    }

    fn list(&mut self, end: u8, body: &Body) -> Result_<Vec<Operand>> {
        let mut list = Vec::new();
        while !self.mark(end) {
            if !list.is_empty() {
                self.expect(b',')?;
            }
            list.push(self.operand(body)?);
        }
        Ok(list)
    }

    fn named(&self, word: &str, body: &Body) -> Operand {
        match lookup(body, word) {
            Some(Name::Register(register)) => Operand::Register(register),
            Some(Name::Symbol(symbol)) => Operand::Symbol(symbol, 0),
            None => match self.names.get(word) {
                Some(id) => Operand::Symbol(Symbol::Module(*id), 0),
                None if word.starts_with('%') => Operand::Special(Special(word.into())),
                None if word == "WARP_SZ" => Operand::Integer(32),
                None => Operand::Function(word.into()),
            },
        }
    }
}

fn lookup(body: &Body, name: &str) -> Option<Name> {
    body.scopes.iter().rev().find_map(|s| s.names.get(name)).copied()
}

fn space_of(word: &str) -> Option<Space> {
    Some(match word {
        ".global" => Space::Global,
        ".const" => Space::Const,
        ".shared" => Space::Shared,
        ".local" => Space::Local,
        ".param" => Space::Param,
        _ => return None,
    })
}

fn number(text: &str) -> Option<Operand> {
    let lower = text.to_ascii_lowercase();
    if let Some(digits) = lower.strip_prefix("0f").filter(|d| d.len() == 8) {
        return u32::from_str_radix(digits, 16).ok().map(Operand::Single);
    }
    if let Some(digits) = lower.strip_prefix("0d").filter(|d| d.len() == 16) {
        return u64::from_str_radix(digits, 16).ok().map(Operand::Double);
    }
    if lower.contains('.') || (lower.contains('e') && !lower.starts_with("0x")) {
        return lower.parse::<f64>().ok().map(|x| Operand::Double(x.to_bits()));
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let value = if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex, 16)
    } else if let Some(binary) = digits.strip_prefix("0b") {
        u64::from_str_radix(binary, 2)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(&digits[1..], 8)
    } else {
        digits.parse::<u64>()
    };
    value.ok().map(|n| Operand::Integer(n as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_resolved_in_their_scopes() {
        let text = "
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 tiles[];
.visible .entry k(.param .u64 k_param_0)
.maxntid 64, 1, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .loc 1 7 3
    { .reg .pred %p1; LAB: setp.ne.u32 %p1, %r1, 0; @!%p1 bra LAB; }
    .loc 1 8 2, function_name $L__info_string0, inlined_at 1 20 5
    ld.shared.v2.b32 {%r1, %r2}, [tiles+-8];
$L_end:
    ret;
}
.section .debug_str { .b8 1,2 }
";
        let module = parse(text).unwrap();
        let function = &module.functions[0];
        let body = function.body.as_ref().unwrap();
        assert_eq!(function.max_threads, Some(64));
        assert_eq!(function.registers.len(), 6);
        assert_eq!(body[1].guard, Some((Register(5), true)));
        assert_eq!(body[1].operands, [Operand::Label(0)]);
        let address = Operand::Address { base: Base::Symbol(Symbol::Module(0)), offset: -8, more: vec![] };
        assert_eq!(body[2].operands[1], address);
        assert_eq!(body[2].line.to_string(), "line 8 (called at line 20)");
        assert_eq!(&*body[0].text, "setp.ne.u32 %p1, %r1, 0");
    }

    #[test]
    fn what_is_not_declared_is_refused_with_its_line() {
        let text = ".version 8.0\n.target sm_80\n.visible .entry k()\n{\n bra nowhere;\n}";
        assert_eq!(parse(text).unwrap_err().to_string(), "PTX line 5: `nowhere` is not declared");
    }
}
