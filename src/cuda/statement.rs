//! Statements, one or a few lines each.
use super::bounds::Range;
use super::expression::precedence::*;
use super::expression::{Integer, Text};
use super::prelude::Helper;
use super::{comment, Printer, MARGIN};
use crate::kernel::{Arith, ArrayId, Cond, Index, LocalVar, Space, Stmt, Unroll, Value};
use satune_ir::DType;

/// One side of a copy.
type Side<'a> = (ArrayId, &'a Index);

impl Printer<'_> {
    pub(super) fn list(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.statement(stmt);
        }
    }

    fn nested(&mut self, body: &[Stmt]) {
        // Names end with their scope: loops that follow may be called the same.
        let names = self.names.clone();
        self.depth += 1;
        self.list(body);
        self.depth -= 1;
        self.names = names;
    }

    pub(super) fn line(&mut self, text: &str) {
        for _ in 0..self.depth {
            self.out.push_str("    ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn bind(&mut self, var: LocalVar, wish: &str, wide: bool, range: Range) -> String {
        let name = self.names.take(wish);
        self.variables.insert(var, Integer { text: Text::atom(name.clone()), wide, range });
        name
    }

    /// `const int name = value;`, bound to the variable.
    fn constant(&mut self, var: LocalVar, wish: &str, value: Integer) {
        let name = self.bind(var, wish, value.wide, value.range);
        let c_type = if value.wide { "long long" } else { "int" };
        self.line(&format!("const {c_type} {name} = {};", value.text.text));
    }

    fn statement(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::For { var, name, start, extent, unroll, body } => {
                self.for_loop((*var, name), start, extent, *unroll, body);
            }
            Stmt::If { cond: Cond::True, then, .. } => self.list(then),
            Stmt::If { cond, then, otherwise } => {
                let cond = self.condition(cond).text;
                self.line(&format!("if ({cond}) {{"));
                self.if_rest(then, otherwise);
            }
            // Stands at the head already.
            Stmt::Let { var, .. } if self.renamed_places.contains(var) => {}
            Stmt::Let { var, name, value } => {
                let value = self.integer(value);
                self.constant(*var, name, value);
            }
            Stmt::Fetch { var, name, value } => {
                let (least, most) = self.kernel.type_of(value).int_range().unwrap_or((i64::MIN, i64::MAX));
                let range = Range::of(least.into(), most.into());
                let value = Integer { text: self.value(value), wide: !range.fits_int(), range };
                self.constant(*var, name, value);
            }
            Stmt::Store { array, index, value } => self.store(*array, index, value),
            Stmt::Copy { dst, dst_index, src, src_index, width, zero_unless } => {
                self.copy((*dst, dst_index), (*src, src_index), *width, zero_unless);
            }
            Stmt::Barrier => self.line("__syncthreads();"),
            Stmt::AsyncCopy { dst, dst_index, src, src_index, width, prefetch, zero_unless } => {
                self.async_copy((*dst, dst_index), (*src, src_index), (*width, *prefetch), zero_unless);
            }
            Stmt::AsyncCommit => {
                let name = self.helper(Helper::CopyAsyncCommit);
                self.line(&format!("{name}();"));
            }
            Stmt::AsyncWait(latest) => {
                let name = self.helper(Helper::CopyAsyncWait);
                self.line(&format!("{name}<{latest}>();"));
            }
            Stmt::AtomicAdd { array, index, value } => {
                let dtype = self.kernel.array(*array).dtype;
                let (value, to) = (self.value_as(value, dtype).text, self.pointer(*array, index).text);
                self.line(&format!("atomicAdd({to}, {value});"));
            }
            Stmt::Warp(op) => self.warp_op(op),
            Stmt::Group(op) => self.group_op(op),
            Stmt::Roles(roles) => self.roles(roles),
            Stmt::Comment(text) => {
                for text in comment(text) {
                    self.line(&text);
                }
            }
        }
    }

    fn for_loop(
        &mut self,
        (var, name): (LocalVar, &str),
        start: &Index,
        extent: &Index,
        unroll: Unroll,
        body: &[Stmt],
    ) {
        let (first, end) = (self.integer(start), self.integer(&plus(start, extent)));
        let wide = first.wide || end.wide;
        let names = self.names.clone();
        // The counter's last value inside the body is one less than the end.
        let name = self.bind(var, name, wide, Range::of(first.range.lo, end.range.hi.saturating_sub(1)));
        match unroll {
            Unroll::No => self.line("#pragma unroll 1"),
            Unroll::Full => self.line("#pragma unroll"),
            Unroll::By(n) => self.line(&format!("#pragma unroll {n}")),
            Unroll::Auto => {}
        }
        let c_type = if wide { "long long" } else { "int" };
        let end = end.text.within(SHIFT);
        self.line(&format!("for ({c_type} {name} = {}; {name} < {end}; ++{name}) {{", first.text.text));
        self.nested(body);
        self.line("}");
        self.names = names;
    }

    fn if_rest(&mut self, then: &[Stmt], otherwise: &[Stmt]) {
        self.nested(then);
        match otherwise {
            [] => self.line("}"),
            [Stmt::If { cond, then, otherwise }] => {
                let cond = self.condition(cond).text;
                self.line(&format!("}} else if ({cond}) {{"));
                self.if_rest(then, otherwise);
            }
            otherwise => {
                self.line("} else {");
                self.nested(otherwise);
                self.line("}");
            }
        }
    }

    fn store(&mut self, array: ArrayId, index: &Index, value: &Value) {
        let dtype = self.kernel.array(array).dtype;
        let target = self.element(array, index);
        if let Value::Binary(Arith::Add, sum, a, b) = value {
            let same = matches!(a.as_ref(), Value::Load(from, at) if *from == array && at == index);
            // What C adds in this type; of signed integers the sum has to wrap.
            let plain = matches!(dtype, DType::F32 | DType::F64 | DType::U32 | DType::U64);
            if same && *sum == dtype && plain {
                let b = self.value_as(b, dtype).text;
                return self.line(&format!("{target} += {b};"));
            }
        }
        if let Value::Select(cond, a, b) = value {
            let (a, b) = (self.value_as(a, dtype).within(TERNARY + 1), self.value_as(b, dtype).within(TERNARY));
            return self.choose(&target, cond, &a, &b);
        }
        let value = self.value_as(value, dtype).text;
        self.line(&format!("{target} = {value};"));
    }

    /// `target = cond ? yes : no;`, in three lines where it is long.
    fn choose(&mut self, target: &str, cond: &Cond, yes: &str, no: &str) {
        if *cond == Cond::True {
            return self.line(&format!("{target} = {yes};"));
        }
        let cond = self.condition(cond).within(TERNARY + 1);
        let text = format!("{target} = {cond} ? {yes} : {no};");
        if self.depth * 4 + text.len() <= MARGIN {
            return self.line(&text);
        }
        self.line(&format!("{target} = {cond}"));
        self.depth += 1;
        self.line(&format!("? {yes}"));
        self.line(&format!(": {no};"));
        self.depth -= 1;
    }

    fn copy(&mut self, dst: Side, src: Side, width: u32, zero_unless: &Cond) {
        let dtype = self.kernel.array(src.0).dtype;
        if self.is_fragment(dst.0) || self.is_fragment(src.0) {
            return self.fragment_copy(dst, src, width * dtype.bytes(), zero_unless);
        }
        let in_registers = |p: &Self, id: ArrayId| p.kernel.array(id).space == Space::Register;
        let both = in_registers(self, dst.0) && in_registers(self, src.0);
        match vector_type(dtype, width).filter(|_| !both) {
            Some(vector) => {
                let (to, from) = (self.pointer(dst.0, dst.1).text, self.pointer(src.0, src.1).text);
                for id in [dst.0, src.0] {
                    if in_registers(self, id) {
                        self.aligned.insert(id);
                    }
                }
                let from = format!("*reinterpret_cast<const {vector}*>({from})");
                let to = format!("*reinterpret_cast<{vector}*>({to})");
                self.choose(&to, zero_unless, &from, &format!("{vector}()"));
            }
            None => {
                for i in 0..width {
                    let from = self.element(src.0, &plus(src.1, &Index::Const(i.into())));
                    let to = self.element(dst.0, &plus(dst.1, &Index::Const(i.into())));
                    self.choose(&to, zero_unless, &from, zero(dtype));
                }
            }
        }
    }

    fn async_copy(&mut self, dst: Side, src: Side, (width, prefetch): (u32, u32), zero_unless: &Cond) {
        let bytes = width * self.kernel.array(dst.0).dtype.bytes();
        if !matches!(bytes, 4 | 8 | 16) {
            // The machine has no such instruction; an ordinary copy is complete no later.
            return self.copy(dst, src, width, zero_unless);
        }
        let guarded = *zero_unless != Cond::True;
        let name = self.helper(Helper::CopyAsync(bytes, guarded, prefetch));
        let to = self.pointer(dst.0, dst.1).text;
        if !guarded {
            let from = self.pointer(src.0, src.1).text;
            return self.line(&format!("{name}({to}, {from});"));
        }
        let cond = self.without_branches(zero_unless);
        // The address must be valid even where nothing is read.
        let index = self.integer(src.1).text.within(TERNARY + 1);
        let base = self.pointer(src.0, &Index::Const(0)).text;
        let address = format!("{base} + ({} ? {index} : 0)", cond.within(TERNARY + 1));
        let text = format!("{name}({to}, {address}, {});", cond.text);
        if self.depth * 4 + text.len() <= MARGIN {
            return self.line(&text);
        }
        self.line(&format!("{name}({to},"));
        self.depth += 1;
        self.line(&format!("{address},"));
        self.line(&format!("{});", cond.text));
        self.depth -= 1;
    }
}

/// The C type of one access to `width` elements, where there is one for more than a single element.
fn vector_type(dtype: DType, width: u32) -> Option<&'static str> {
    if width < 2 {
        return None;
    }
    Some(match (dtype, width.checked_mul(dtype.bytes())?) {
        (DType::F32 | DType::TF32, 8) => "float2",
        (DType::F32 | DType::TF32, 16) => "float4",
        (DType::F64, 16) => "double2",
        (DType::I32, 8) => "int2",
        (DType::I32, 16) => "int4",
        // Types without vectors of their own move as words.
        (_, 2) => "ushort1",
        (_, 4) => "uint1",
        (_, 8) => "uint2",
        (_, 16) => "uint4",
        _ => return None,
    })
}

fn zero(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::TF32 => "0.0f",
        DType::F64 => "0.0",
        _ => "0",
    }
}

fn plus(a: &Index, b: &Index) -> Index {
    match (a, b) {
        (Index::Const(0), b) => b.clone(),
        (a, Index::Const(0)) => a.clone(),
        (Index::Const(x), Index::Const(y)) => match x.checked_add(*y) {
            Some(sum) => Index::Const(sum),
            None => Index::Add(Box::new(a.clone()), Box::new(b.clone())),
        },
        (a, b) => Index::Add(Box::new(a.clone()), Box::new(b.clone())),
    }
}
