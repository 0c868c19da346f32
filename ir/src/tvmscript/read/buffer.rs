//! Buffers: `T.Buffer`, `T.match_buffer`, allocations.
use super::super::error::{Fail, Res};
use super::reader::Reader;
use super::syntax::{elements, path, string, Args};
use crate::affine::index_type;
use crate::{Buffer, DType, Expr, Range, Region};
use ruff_python_ast as ast;

/// Most dimensions of a buffer.
const RANK: usize = 32;

const BUFFER: [&str; 12] = [
    "shape",
    "dtype",
    "data",
    "strides",
    "elem_offset",
    "byte_offset",
    "scope",
    "align",
    "offset_factor",
    "buffer_type",
    "axis_separators",
    "layout",
];
pub(super) const MATCH: &[&str] = &[
    "param",
    "shape",
    "dtype",
    "data",
    "strides",
    "elem_offset",
    "scope",
    "align",
    "offset_factor",
    "buffer_type",
    "axis_separators",
    "layout",
];
const ALLOC: [&str; 11] = [
    "shape",
    "dtype",
    "data",
    "strides",
    "elem_offset",
    "scope",
    "align",
    "offset_factor",
    "buffer_type",
    "axis_separators",
    "layout",
];
const ALLOC_SCOPED: [&str; 4] = ["shape", "dtype", "align", "layout"];

impl Reader {
    /// `T.Buffer(shape, dtype, ...)`, or `T.match_buffer(param, shape, dtype, ...)`.
    pub(super) fn buffer_of_args(&mut self, name: &str, c: &ast::ExprCall, annotation: bool) -> Res<Buffer> {
        let args = Args::new(c, if annotation { &BUFFER[..] } else { MATCH })?;
        self.buffer(name, &args, args.need("shape")?, None)
    }

    /// `T.sblock_alloc_buffer(...)` and its like; `scope` where the function's name says it.
    pub(super) fn allocation(&mut self, name: &str, c: &ast::ExprCall, scope: Option<&str>) -> Res<Buffer> {
        let args = Args::new(c, if scope.is_some() { &ALLOC_SCOPED } else { &ALLOC })?;
        self.buffer(name, &args, args.need("shape")?, scope)
    }

    /// `T.match_buffer(A[...], shape, ...)` in a block.
    pub(super) fn view(&mut self, name: &str, c: &ast::ExprCall) -> Res<(Buffer, Region)> {
        let args = Args::new(c, MATCH)?;
        let source = args.need("param")?;
        let region = self.region(source)?;
        let mut buffer = match args.get("shape") {
            Some(shape) => self.buffer(name, &args, shape, None)?,
            None => {
                let shape = region.ranges.iter().map(|r| r.extent.clone()).collect();
                Buffer { name: name.into(), shape, ..self.buffers[region.buffer.0 as usize].clone() }
            }
        };
        if args.get("dtype").is_none() {
            buffer.dtype = self.buffers[region.buffer.0 as usize].dtype;
        }
        if args.get("scope").is_none() {
            buffer.scope = self.buffers[region.buffer.0 as usize].scope.clone();
        }
        Ok((buffer, region))
    }

    /// `T.Buffer[(16, 16), "float32"]`.
    pub(super) fn buffer_of_subscript(&mut self, name: &str, s: &ast::ExprSubscript) -> Res<Buffer> {
        let parts = elements(&s.slice);
        let (shape, dtype) = match (s.slice.as_ref(), parts.as_slice()) {
            (ast::Expr::Tuple(_), [shape, dtype]) if !dtype.is_number_literal_expr() => (*shape, self.dtype(dtype)?),
            _ => (s.slice.as_ref(), DType::F32),
        };
        Ok(Buffer::plain(name, dtype, self.shape(name, shape)?, "global"))
    }

    fn buffer(&mut self, name: &str, args: &Args, shape: &ast::Expr, scope: Option<&str>) -> Res<Buffer> {
        let shape = self.shape(name, shape)?;
        let dtype = args.get("dtype").map_or(Ok(DType::F32), |d| self.dtype(d))?;
        let mut buffer = Buffer::plain(name, dtype, shape, "global");
        if let Some(scope) = scope {
            buffer.scope = scope.into();
        } else if args.names.contains(&"scope") {
            if let Some(scope) = args.get("scope") {
                buffer.scope = string(scope)?;
            }
        }
        if let Some(strides) = args.names.contains(&"strides").then(|| args.get("strides")).flatten() {
            for e in elements(strides) {
                let stride = match e {
                    // A stride that is not known here: a variable of its own.
                    ast::Expr::StringLiteral(s) => Expr::Var(self.fresh_var(s.value.to_str(), DType::I32)),
                    other => self.expr(other)?,
                };
                buffer.strides.push(stride);
            }
            if !buffer.strides.is_empty() && buffer.strides.len() != buffer.shape.len() {
                return Err(Fail::on(strides, format!("buffer {name} needs one stride per dimension")));
            }
        }
        if let Some(offset) = args.get("elem_offset") {
            buffer.elem_offset = Some(match offset {
                ast::Expr::StringLiteral(s) => Expr::Var(self.fresh_var(s.value.to_str(), DType::I32)),
                other => self.expr(other)?,
            });
        }
        let given = |key: &'static str| args.names.contains(&key).then(|| args.get(key)).flatten();
        if let Some(offset) = given("byte_offset") {
            if self.constant(offset, "byte_offset")? != 0 {
                return Err(Fail::on(offset, format!("buffer {name} begins at an offset in bytes"))
                    .help("give elem_offset, in elements"));
            }
        }
        if let Some(list) = given("axis_separators") {
            if !elements(list).is_empty() {
                let why = format!(
                    "buffer {name} has axis separators: memory of several dimensions, which CUDA kernels have not"
                );
                return Err(Fail::on(list, why).help("leave axis_separators out"));
            }
        }
        if let Some(align) = args.get("align") {
            buffer.align = self.constant(align, "align")?.max(0);
        }
        if let Some(factor) = args.get("offset_factor") {
            buffer.offset_factor = self.constant(factor, "offset_factor")?.max(0);
        }
        Ok(buffer)
    }

    fn shape(&mut self, name: &str, e: &ast::Expr) -> Res<Vec<Expr>> {
        let parts = elements(e);
        if parts.len() > RANK {
            return Err(Fail::on(e, format!("buffer {name} has {} dimensions; at most {RANK} are read", parts.len())));
        }
        let mut shape = Vec::with_capacity(parts.len());
        let mut elements = 1i64;
        for part in parts {
            let extent = self.expr(part)?;
            let Expr::Int(n, _) = extent else {
                return Err(Fail::on(part, format!("the shape of buffer {name} must be constant"))
                    .help("put the number in its place"));
            };
            if n <= 0 {
                return Err(
                    Fail::on(part, format!("buffer {name} has a dimension of {n}")).help("every extent is at least 1")
                );
            }
            elements = elements
                .checked_mul(n)
                .ok_or_else(|| Fail::on(part, format!("buffer {name} has more than 2^63 elements")))?;
            shape.push(extent);
        }
        Ok(shape)
    }

    /// A type: `"float32"`, `T.float32`, `T.float32()`.
    pub(super) fn dtype(&self, e: &ast::Expr) -> Res<DType> {
        let name = match e {
            ast::Expr::StringLiteral(s) => s.value.to_str().to_string(),
            ast::Expr::Call(c) => path(&c.func).unwrap_or_default(),
            ast::Expr::Name(n) => match self.lookup(n.id.as_str()) {
                Some(super::reader::Name::Value(Expr::Str(text))) => text.to_string(),
                _ => String::new(),
            },
            other => path(other).unwrap_or_default(),
        };
        DType::of_name(&name).ok_or_else(|| {
            let name = if name.is_empty() { "this".to_string() } else { format!("{name:?}") };
            Fail::on(e, format!("{name} is no element type that Satune knows"))
                .help("float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64, bool")
        })
    }

    /// `A[i, 0:4]`: a box of a buffer. A buffer alone is all of it.
    pub(super) fn region(&mut self, e: &ast::Expr) -> Res<Region> {
        let (buffer, slices): (_, Vec<&ast::Expr>) = match e {
            ast::Expr::Subscript(s) => (self.buffer_named(&s.value)?, elements(&s.slice)),
            other => {
                let buffer = self.buffer_named(other)?;
                let whole = |n: &Expr| Range { min: Expr::Int(0, index_type(n)), extent: n.clone() };
                let ranges = self.buffers[buffer.0 as usize].shape.iter().map(whole).collect();
                return Ok(Region { buffer, ranges });
            }
        };
        let shape = self.buffers[buffer.0 as usize].shape.clone();
        // `A[()]` is the element of a buffer without dimensions.
        self.check_rank(e, buffer, slices.len())?;
        let mut ranges = Vec::with_capacity(slices.len());
        for (slice, size) in slices.into_iter().zip(&shape) {
            ranges.push(match slice {
                ast::Expr::Slice(s) => {
                    if let Some(step) = &s.step {
                        if self.constant(step, "a step")? != 1 {
                            return Err(Fail::on(step.as_ref(), "a region has no step"));
                        }
                    }
                    let lower =
                        s.lower.as_ref().map_or_else(|| Ok(Expr::Int(0, index_type(size))), |e| self.expr(e))?;
                    let upper = s.upper.as_ref().map_or(Ok(size.clone()), |e| self.expr(e))?;
                    let extent = crate::affine::simplify::difference(&upper, &lower)
                        .ok_or_else(|| Fail::on(slice, "the bounds of the region overflow"))?;
                    Range { min: lower, extent }
                }
                point => {
                    let min = self.index(point)?;
                    let extent = Expr::Int(1, index_type(&min));
                    Range { min, extent }
                }
            });
        }
        Ok(Region { buffer, ranges })
    }

    pub(super) fn check_rank(&self, e: &ast::Expr, buffer: crate::BufferId, given: usize) -> Res<()> {
        let b = &self.buffers[buffer.0 as usize];
        if b.shape.len() == given {
            return Ok(());
        }
        Err(Fail::on(e, format!("buffer {} has {} dimensions; {given} indices are given", b.name, b.shape.len())))
    }
}
