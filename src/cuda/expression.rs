//! Integer expressions and conditions, with as few parentheses as C needs and a reader expects.
use super::bounds::Range;
use super::Printer;
use crate::kernel::{ArrayId, Cond, Dim, Index, Space};

/// Precedences of C++, as far as used; higher binds tighter.
pub(super) mod precedence {
    pub const TERNARY: u8 = 2;
    pub const OR: u8 = 3;
    pub const AND: u8 = 4;
    pub const BIT_OR: u8 = 5;
    pub const BIT_XOR: u8 = 6;
    pub const BIT_AND: u8 = 7;
    pub const EQUAL: u8 = 8;
    pub const COMPARE: u8 = 9;
    pub const SHIFT: u8 = 10;
    pub const ADD: u8 = 11;
    pub const MUL: u8 = 12;
    pub const UNARY: u8 = 13;
    pub const ATOM: u8 = 14;
}
use precedence::*;

/// Text and how tightly its outermost operator binds.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub text: String,
    pub precedence: u8,
}

impl Text {
    pub fn new(text: impl Into<String>, precedence: u8) -> Text {
        Text { text: text.into(), precedence }
    }

    pub fn atom(text: impl Into<String>) -> Text {
        Text::new(text, ATOM)
    }

    /// The text as an operand of something that binds as given.
    pub fn within(&self, least: u8) -> String {
        if self.precedence < least {
            format!("({})", self.text)
        } else {
            self.text.clone()
        }
    }

    /// `(type)text`.
    pub fn cast(&self, to: &str) -> Text {
        Text::new(format!("({to}){}", self.within(UNARY)), UNARY)
    }
}

/// An integer expression: its text, whether its C type has 64 bits, its bounds.
#[derive(Clone, Debug)]
pub(super) struct Integer {
    pub text: Text,
    pub wide: bool,
    pub range: Range,
}

impl Integer {
    fn widened(self) -> Integer {
        if self.wide {
            self
        } else {
            Integer { text: self.text.cast("long long"), wide: true, range: self.range }
        }
    }
}

impl Printer<'_> {
    /// An index. It is computed in 32 bits as far as its bounds allow, and in 64 from where they do not.
    pub(super) fn integer(&mut self, index: &Index) -> Integer {
        let leaf = |text: String, range| Integer { text: Text::atom(text), wide: false, range };
        let (a, b) = match index {
            Index::Const(v) => return constant(*v),
            Index::Var(v) => {
                return match self.variables.get(v) {
                    Some(known) => known.clone(),
                    None => leaf(format!("unbound{}", v.0), Range::INT),
                }
            }
            Index::BlockIdx(d) => {
                let name = self.place(false, *d);
                return leaf(name, Range::of(0, i128::from(self.kernel.grid[position(*d)]) - 1));
            }
            Index::ThreadIdx(d) => {
                let name = self.place(true, *d);
                return leaf(name, Range::of(0, i128::from(self.kernel.block[position(*d)]) - 1));
            }
            Index::Add(a, b) | Index::Sub(a, b) | Index::Mul(a, b) | Index::Div(a, b) | Index::Mod(a, b) => (a, b),
            Index::Min(a, b) | Index::Max(a, b) | Index::Xor(a, b) | Index::And(a, b) => (a, b),
            Index::Shl(a, b) | Index::Shr(a, b) => (a, b),
        };
        let (mut left, mut right) = (self.integer(a), self.integer(b));
        let range = Range::after(index, left.range, right.range);
        let call = matches!(index, Index::Min(..) | Index::Max(..));
        if !range.fits_int() && !left.wide && !right.wide || call && right.wide {
            left = left.widened();
        }
        if call && left.wide {
            right = right.widened();
        }
        let wide = left.wide || right.wide;
        let text = match (index, as_constant(b)) {
            (Index::Add(..), Some(k)) if k < 0 && k > i64::MIN => infix(&left, "-", &constant(-k), ADD),
            (Index::Sub(..), Some(k)) if k < 0 && k > i64::MIN => infix(&left, "+", &constant(-k), ADD),
            (Index::Add(..), _) => infix(&left, "+", &right, ADD),
            (Index::Sub(..), _) => infix(&left, "-", &right, ADD),
            (Index::Mul(..), _) => infix(&left, "*", &right, MUL),
            // Operands are not negative, so a shift and a mask do.
            (Index::Div(..), Some(k)) if k > 0 && k.count_ones() == 1 => {
                bits(&left, ">>", &constant(k.trailing_zeros().into()), SHIFT)
            }
            (Index::Mod(..), Some(k)) if k > 0 && k.count_ones() == 1 => bits(&left, "&", &constant(k - 1), BIT_AND),
            (Index::Div(..), _) => infix(&left, "/", &right, MUL),
            (Index::Mod(..), _) => infix(&left, "%", &right, MUL),
            (Index::Min(..), _) => Text::atom(format!("min({}, {})", left.text.text, right.text.text)),
            (Index::Max(..), _) => Text::atom(format!("max({}, {})", left.text.text, right.text.text)),
            (Index::Xor(..), _) => bits(&left, "^", &right, BIT_XOR),
            (Index::And(..), _) => bits(&left, "&", &right, BIT_AND),
            (Index::Shl(..), _) => bits(&left, "<<", &right, SHIFT),
            _ => bits(&left, ">>", &right, SHIFT),
        };
        Integer { text, wide, range }
    }

    /// The number of the thread in its block.
    pub(super) fn thread_number(&mut self) -> Text {
        let [x, y, _] = self.kernel.block.map(i64::from);
        let part = |d: Dim, unit: i64| Index::Mul(Box::new(Index::ThreadIdx(d)), Box::new(Index::Const(unit)));
        let mut number = Index::ThreadIdx(Dim::X);
        for (d, unit) in [(Dim::Y, x), (Dim::Z, x * y)] {
            if self.kernel.block[position(d)] > 1 {
                number = Index::Add(Box::new(number), Box::new(part(d, unit)));
            }
        }
        self.integer(&number).text
    }

    /// `array[index]`.
    pub(super) fn element(&mut self, array: ArrayId, index: &Index) -> String {
        let index = self.integer(index).text.text;
        format!("{}[{index}]", self.arrays[array.0 as usize])
    }

    /// `array + index`, as a pointer.
    pub(super) fn pointer(&mut self, array: ArrayId, index: &Index) -> Text {
        let name = self.arrays[array.0 as usize].clone();
        if self.is_fragment(array) {
            let index = self.word_index(array, index);
            return match index {
                Index::Const(0) => Text::atom(name),
                index => Text::new(format!("&{}", self.element(array, &index)), UNARY),
            };
        }
        if *index == Index::Const(0) {
            return Text::atom(name);
        }
        if self.kernel.array(array).space == Space::Register {
            return Text::new(format!("&{}", self.element(array, index)), UNARY);
        }
        let index = self.integer(index).text;
        // `a + (b + c)` is `a + b + c` for a pointer; a difference keeps its parentheses, so that no step leaves the array.
        let index = if index.text.contains(" - ") { index.within(MUL) } else { index.within(ADD) };
        Text::new(format!("{name} + {index}"), ADD)
    }

    /// A condition.
    pub(super) fn condition(&mut self, cond: &Cond) -> Text {
        match cond {
            Cond::True => Text::atom("true"),
            Cond::Lt(a, b) => self.compare(a, "<", b),
            Cond::Le(a, b) => self.compare(a, "<=", b),
            Cond::Eq(a, b) => self.compare(a, "==", b),
            Cond::Ne(a, b) => self.compare(a, "!=", b),
            Cond::And(list) => self.joined(list, " && ", AND, "true"),
            Cond::Or(list) => self.joined(list, " || ", OR, "false"),
            Cond::Not(inner) => match inner.as_ref() {
                Cond::True => Text::atom("false"),
                Cond::Lt(a, b) => self.compare(a, ">=", b),
                Cond::Le(a, b) => self.compare(a, ">", b),
                Cond::Eq(a, b) => self.compare(a, "!=", b),
                Cond::Ne(a, b) => self.compare(a, "==", b),
                Cond::Not(twice) => self.condition(twice),
                inner => Text::new(format!("!{}", self.condition(inner).within(UNARY)), UNARY),
            },
        }
    }

    /// A condition that is cheaper to compute as a whole than to branch on its parts.
    pub(super) fn without_branches(&mut self, cond: &Cond) -> Text {
        let Cond::And(list) = cond else { return self.condition(cond) };
        let parts: Vec<String> = list.iter().map(|c| format!("({})", self.condition(c).text)).collect();
        Text::new(parts.join(" & "), BIT_AND)
    }

    fn compare(&mut self, a: &Index, operator: &str, b: &Index) -> Text {
        let (a, b) = (self.integer(a).text.within(SHIFT), self.integer(b).text.within(SHIFT));
        let precedence = if operator.ends_with("==") || operator == "!=" { EQUAL } else { COMPARE };
        Text::new(format!("{a} {operator} {b}"), precedence)
    }

    fn joined(&mut self, list: &[Cond], operator: &str, precedence: u8, empty: &str) -> Text {
        match list {
            [] => Text::atom(empty),
            [one] => self.condition(one),
            list => {
                // Mixed `&&` and `||` keep parentheses that only a reader needs.
                let parts: Vec<String> = list.iter().map(|c| self.condition(c).within(EQUAL)).collect();
                Text::new(parts.join(operator), precedence)
            }
        }
    }
}

/// Arithmetic, left to right.
fn infix(a: &Integer, operator: &str, b: &Integer, precedence: u8) -> Text {
    Text::new(format!("{} {operator} {}", a.text.within(precedence), b.text.within(precedence + 1)), precedence)
}

/// An operator whose precedence few remember: its operands have parentheses.
fn bits(a: &Integer, operator: &str, b: &Integer, precedence: u8) -> Text {
    Text::new(format!("{} {operator} {}", a.text.within(UNARY), b.text.within(UNARY)), precedence)
}

fn constant(value: i64) -> Integer {
    let wide = i32::try_from(value).is_err();
    let text = match value {
        // The literal itself would not fit before its sign is applied.
        i64::MIN => Text::new("-9223372036854775807LL - 1", ADD),
        v if v < 0 => Text::new(if wide { format!("{v}LL") } else { v.to_string() }, UNARY),
        v => Text::atom(if wide { format!("{v}LL") } else { v.to_string() }),
    };
    Integer { text, wide, range: Range::of(value.into(), value.into()) }
}

fn as_constant(index: &Index) -> Option<i64> {
    match index {
        Index::Const(v) => Some(*v),
        _ => None,
    }
}

pub(super) fn position(d: Dim) -> usize {
    match d {
        Dim::X => 0,
        Dim::Y => 1,
        Dim::Z => 2,
    }
}
