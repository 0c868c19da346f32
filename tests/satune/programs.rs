//! Programs that tests lower, built by hand.
use satune_ir::*;
use std::sync::Arc;

/// An expression with operators.
#[derive(Clone, Debug)]
pub struct E(pub Expr);

macro_rules! operator {
    ($trait:ident, $method:ident, $op:ident) => {
        impl<T: Into<E>> std::ops::$trait<T> for E {
            type Output = E;
            fn $method(self, other: T) -> E {
                E(Expr::Binary(BinOp::$op, Arc::new(self.0), Arc::new(other.into().0)))
            }
        }
    };
}
operator!(Add, add, Add);
operator!(Mul, mul, Mul);
operator!(Div, div, FloorDiv);
operator!(Rem, rem, FloorMod);
operator!(BitAnd, bitand, And);
operator!(BitXor, bitxor, BitXor);

impl From<i64> for E {
    fn from(v: i64) -> E {
        E(Expr::Int(v, DType::I32))
    }
}
impl E {
    pub fn lt(self, other: impl Into<E>) -> E {
        E(Expr::Binary(BinOp::Lt, Arc::new(self.0), Arc::new(other.into().0)))
    }
}

/// The condition true.
pub fn always() -> E {
    E(Expr::Int(1, DType::Bool))
}

pub struct Builder {
    pub program: Program,
}

impl Builder {
    pub fn new() -> Builder {
        let block = Block {
            id: BlockId(0),
            name: "root".into(),
            iter_vars: vec![],
            reads: vec![],
            writes: vec![],
            init: None,
            alloc_buffers: vec![],
            match_buffers: vec![],
            annotations: Annotations::new(),
            body: Box::new(Stmt::Seq(vec![])),
        };
        let body = BlockRealize { iter_values: vec![], predicate: always().0, block };
        let (name, attrs) = ("main".into(), Annotations::new());
        let program = Program { name, params: vec![], buffers: vec![], attrs, body, next_var: 0, next_block: 1 };
        Builder { program }
    }

    pub fn buffer(&mut self, name: &str, shape: &[i64], dtype: DType, scope: &str) -> BufferId {
        let id = self.program.add_buffer(Buffer {
            name: name.into(),
            dtype,
            shape: shape.iter().map(|v| E::from(*v).0).collect(),
            strides: vec![],
            elem_offset: None,
            scope: scope.into(),
            align: 0,
            offset_factor: 0,
        });
        self.program.body.block.alloc_buffers.push(id);
        id
    }

    pub fn param(&mut self, name: &str, shape: &[i64], dtype: DType) -> BufferId {
        let id = self.buffer(name, shape, dtype, "global");
        self.program.body.block.alloc_buffers.pop();
        self.program.params.push(id);
        id
    }

    pub fn finish(mut self, body: Vec<Stmt>) -> Program {
        self.program.body.block.body = Box::new(Stmt::seq(body));
        self.program
    }

    pub fn each(&mut self, name: &str, extent: i64, kind: &str, body: impl FnOnce(&mut Self, E) -> Stmt) -> Stmt {
        self.annotated(name, extent, kind, Annotations::new(), body)
    }

    pub fn annotated(
        &mut self,
        name: &str,
        extent: i64,
        kind: &str,
        annotations: Annotations,
        body: impl FnOnce(&mut Self, E) -> Stmt,
    ) -> Stmt {
        let var = self.program.fresh_var(name, DType::I32);
        let body = body(self, E(Expr::Var(var.clone())));
        let kind = match kind {
            "" => ForKind::Serial,
            "vectorized" => ForKind::Vectorized,
            "unrolled" => ForKind::Unrolled,
            tag => ForKind::ThreadBinding(tag.into()),
        };
        Stmt::For(For { var, min: E::from(0).0, extent: E::from(extent).0, kind, annotations, body: Box::new(body) })
    }

    /// A block; `iters`: "S" or "R", extent, value.
    pub fn block(
        &mut self,
        name: &str,
        iters: &[(&str, i64, E)],
        predicate: E,
        annotations: Annotations,
        body: impl FnOnce(&[E]) -> (Option<Stmt>, Stmt),
    ) -> Stmt {
        let mut iter_vars = Vec::new();
        for (i, (kind, extent, _)) in iters.iter().enumerate() {
            let var = self.program.fresh_var(format!("v{i}"), DType::I32);
            let kind = if *kind == "R" { IterKind::Reduce } else { IterKind::Spatial };
            iter_vars.push(IterVar { var, min: E::from(0).0, extent: E::from(*extent).0, kind });
        }
        let vars: Vec<E> = iter_vars.iter().map(|iv| E(Expr::Var(iv.var.clone()))).collect();
        let (init, body) = body(&vars);
        let block = Block {
            id: self.program.fresh_block(),
            name: name.into(),
            iter_vars,
            reads: vec![],
            writes: vec![],
            init: init.map(Box::new),
            alloc_buffers: vec![],
            match_buffers: vec![],
            annotations,
            body: Box::new(body),
        };
        let iter_values = iters.iter().map(|(_, _, e)| e.0.clone()).collect();
        Stmt::Realize(Box::new(BlockRealize { iter_values, predicate: predicate.0, block }))
    }
}

pub fn load(b: BufferId, at: &[E]) -> E {
    E(Expr::Load(b, at.iter().map(|e| e.0.clone()).collect()))
}

pub fn store(buffer: BufferId, at: &[E], value: E) -> Stmt {
    Stmt::Store { buffer, indices: at.iter().map(|e| e.0.clone()).collect(), value: value.0 }
}

pub fn float(v: f64, dtype: DType) -> E {
    E(Expr::Float(v.to_bits(), dtype))
}

/// A list of integers as an annotation.
pub fn ints(list: &[i64]) -> Attr {
    Attr::List(list.iter().map(|v| Attr::Int(*v)).collect())
}

/// A tiled product C = A B, as the staircase's schedules write it.
#[derive(Clone, Debug)]
pub struct Gemm {
    pub shape: (i64, i64, i64),
    pub threads: (i64, i64),
    pub vthreads: (i64, i64),
    pub registers: (i64, i64),
    pub k_tile: i64,
    /// Elements per access of the copies to shared memory, and of local copies and stores.
    pub vector: i64,
    pub local_vector: i64,
    pub unroll: bool,
    pub init_inside: bool,
    /// Shared A is stored as [k, m].
    pub transposed: bool,
    pub input: DType,
    pub k_annotations: Annotations,
    pub copy_annotations: Annotations,
}

impl Default for Gemm {
    fn default() -> Gemm {
        Gemm {
            shape: (64, 64, 32),
            threads: (4, 4),
            vthreads: (1, 1),
            registers: (4, 4),
            k_tile: 8,
            vector: 1,
            local_vector: 1,
            unroll: false,
            init_inside: false,
            transposed: false,
            input: DType::F32,
            k_annotations: Annotations::new(),
            copy_annotations: Annotations::new(),
        }
    }
}

/// Text with indentation, line by line.
struct Script {
    text: String,
    depth: usize,
}

impl Script {
    fn line(&mut self, line: impl AsRef<str>) {
        self.text += &format!("{}{}\n", "    ".repeat(self.depth), line.as_ref());
    }

    /// A line that opens a body.
    fn open(&mut self, line: impl AsRef<str>) {
        self.line(line);
        self.depth += 1;
    }

    /// A block in a nest of its own, with a predicate where there is one.
    fn block(&mut self, name: &str, axes: &[String], predicate: &[String], attributes: &str, body: &[String]) {
        let depth = self.depth;
        self.open(format!("with T.sblock(\"{name}\"):"));
        axes.iter().for_each(|a| self.line(a));
        if !predicate.is_empty() {
            self.line(format!("T.where({})", predicate.join(" and ")));
        }
        if !attributes.is_empty() {
            self.line(format!("T.sblock_attr({attributes})"));
        }
        body.iter().for_each(|b| self.line(b));
        self.depth = depth;
    }
}

/// Annotations as a Python dictionary; nothing where there are none.
fn dictionary(map: &Annotations) -> String {
    fn value(a: &Attr) -> String {
        match a {
            Attr::Int(v) => v.to_string(),
            Attr::Bool(b) => if *b { "True" } else { "False" }.into(),
            Attr::Str(s) => format!("\"{s}\""),
            Attr::List(l) => format!("[{}]", l.iter().map(value).collect::<Vec<_>>().join(", ")),
            other => panic!("{other:?}"),
        }
    }
    let items: Vec<String> = map.iter().map(|(k, v)| format!("\"{k}\": {}", value(v))).collect();
    if items.is_empty() {
        String::new()
    } else {
        format!("{{{}}}", items.join(", "))
    }
}

impl Gemm {
    /// The program.
    pub fn program(&self) -> Program {
        let text = self.script();
        match tvmscript::parse(&text) {
            Ok(program) => program,
            Err(error) => panic!("{error}\n{text}"),
        }
    }

    fn script(&self) -> String {
        let (m, n, k) = self.shape;
        let ((ty, tx), (vy, vx), (ry, rx)) = (self.threads, self.vthreads, self.registers);
        let (bm, bn, bk) = (ty * vy * ry, tx * vx * rx, self.k_tile);
        let up = |x: i64, y: i64| (x + y - 1) / y;
        let input = self.input.name();
        let below = |e: &str, bound: i64, tile: i64| (bound % tile != 0).then(|| format!("{e} < {bound}"));
        let transposed = |i: &str, j: &str| if self.transposed { format!("{j}, {i}") } else { format!("{i}, {j}") };
        let mut s = Script { text: "@T.prim_func(s_tir=True)\n".into(), depth: 0 };
        let params = [("A", m, k, input), ("B", k, n, input), ("C", m, n, "float32")]
            .map(|(name, x, y, t)| format!("{name}: T.Buffer(({x}, {y}), \"{t}\")"));
        s.open(format!("def main({}):", params.join(", ")));
        let a_shape = transposed(&m.to_string(), &k.to_string());
        for (name, shape, dtype, scope) in [
            ("A_shared", a_shape, input, "shared"),
            ("B_shared", format!("{k}, {n}"), input, "shared"),
            ("A_local", format!("{m}, {k}"), input, "local"),
            ("B_local", format!("{k}, {n}"), input, "local"),
            ("C_local", format!("{m}, {n}"), "float32", "local"),
        ] {
            s.line(format!("{name} = T.sblock_alloc_buffer(({shape}), \"{dtype}\", scope=\"{scope}\")"));
        }
        for (var, extent, tag) in [
            ("i_0", up(m, bm), "blockIdx.y"),
            ("j_0", up(n, bn), "blockIdx.x"),
            ("i_1", vy, "vthread.y"),
            ("j_1", vx, "vthread.x"),
            ("i_2", ty, "threadIdx.y"),
            ("j_2", tx, "threadIdx.x"),
        ] {
            s.open(format!("for {var} in T.thread_binding({extent}, thread=\"{tag}\"):"));
        }
        let row = format!("i_0 * {bm} + i_1 * {} + i_2 * {ry}", bm / vy);
        let column = format!("j_0 * {bn} + j_1 * {} + j_2 * {rx}", bn / vx);
        let (r, c, kk) = (format!("{row} + i_3"), format!("{column} + j_3"), format!("k_0 * {bk} + k_1"));
        let axis = |name: &str, extent: i64, value: &str| format!("{name} = T.axis.spatial({extent}, {value})");
        let inside: Vec<String> = [below(&r, m, bm), below(&c, n, bn)].into_iter().flatten().collect();
        let k_inside = below(&kk, k, bk);
        let serial = if self.unroll { "T.unroll" } else { "range" };
        let vector = if self.local_vector > 1 { "T.vectorized" } else { "range" };
        let registers = |s: &mut Script, first: &str, last: &str| {
            s.open(format!("for i_3 in {first}({ry}):"));
            s.open(format!("for j_3 in {last}({rx}):"));
        };
        let on_c = vec![axis("v0", m, &r), axis("v1", n, &c)];
        let thread = s.depth;
        if !self.init_inside {
            registers(&mut s, serial, serial);
            s.block("C_init", &on_c, &inside, "", &["C_local[v0, v1] = T.float32(0)".into()]);
            s.depth = thread;
        }
        match dictionary(&self.k_annotations).as_str() {
            "" => s.open(format!("for k_0 in range({}):", up(k, bk))),
            map => s.open(format!("for k_0 in T.serial({}, annotations={map}):", up(k, bk))),
        }
        let per = ty * tx * self.vector;
        let fills = [
            (
                "A_shared",
                (bm, bk),
                (format!("i_0 * {bm}"), format!("k_0 * {bk}")),
                (m, k),
                format!("A_shared[{}] = A[v0, v1]", transposed("v0", "v1")),
            ),
            (
                "B_shared",
                (bk, bn),
                (format!("k_0 * {bk}"), format!("j_0 * {bn}")),
                (k, n),
                "B_shared[v0, v1] = B[v0, v1]".into(),
            ),
        ];
        let tile = s.depth;
        for (name, (rows, columns), (y, x), (height, width), copy) in fills {
            s.open(format!("for ax_0 in range({}):", up(rows * columns, per)));
            s.open(format!("for ax_1 in T.thread_binding({ty}, thread=\"threadIdx.y\"):"));
            s.open(format!("for ax_2 in T.thread_binding({tx}, thread=\"threadIdx.x\"):"));
            s.open(format!("for ax_3 in {}({}):", if self.vector > 1 { "T.vectorized" } else { "range" }, self.vector));
            let fused = format!("(ax_0 * {per} + ax_1 * {} + ax_2 * {} + ax_3)", tx * self.vector, self.vector);
            let (v0, v1) = (format!("{y} + {fused} // {columns}"), format!("{x} + {fused} % {columns}"));
            let whole = (rows * columns % per != 0).then(|| format!("{fused} < {}", rows * columns));
            let guards: Vec<String> =
                [below(&v0, height, rows), below(&v1, width, columns), whole].into_iter().flatten().collect();
            let axes = [axis("v0", height, &v0), axis("v1", width, &v1)];
            s.block(name, &axes, &guards, &dictionary(&self.copy_annotations), &[copy]);
            s.depth = tile;
        }
        s.open(format!("for k_1 in {serial}({bk}):"));
        let step = s.depth;
        s.open(format!("for i_3 in {}({ry}):", if self.transposed { vector } else { "range" }));
        let guards: Vec<String> = [below(&r, m, bm), k_inside.clone()].into_iter().flatten().collect();
        let copy = format!("A_local[v0, v1] = A_shared[{}]", transposed("v0", "v1"));
        s.block("A_local", &[axis("v0", m, &r), axis("v1", k, &kk)], &guards, "", &[copy]);
        s.depth = step;
        s.open(format!("for j_3 in {vector}({rx}):"));
        let guards: Vec<String> = [k_inside.clone(), below(&c, n, bn)].into_iter().flatten().collect();
        let copy = "B_local[v0, v1] = B_shared[v0, v1]".to_string();
        s.block("B_local", &[axis("v0", k, &kk), axis("v1", n, &c)], &guards, "", &[copy]);
        s.depth = step;
        registers(&mut s, serial, serial);
        let wide = |e: &str| {
            if self.input == DType::F32 {
                e.to_string()
            } else {
                format!("T.Cast(\"float32\", {e})")
            }
        };
        let update =
            format!("C_local[v0, v1] = C_local[v0, v1] + {} * {}", wide("A_local[v0, v2]"), wide("B_local[v2, v1]"));
        let mut body = Vec::new();
        if self.init_inside {
            body.push("with T.init():".to_string());
            body.push("    C_local[v0, v1] = T.float32(0)".to_string());
        }
        body.push(update);
        let axes = [on_c.clone(), vec![format!("v2 = T.axis.reduce({k}, {kk})")]].concat();
        let guards: Vec<String> = inside.iter().cloned().chain(k_inside).collect();
        s.block("C_update", &axes, &guards, "", &body);
        s.depth = thread;
        registers(&mut s, "range", vector);
        s.block("C_local", &on_c, &inside, "", &["C[v0, v1] = C_local[v0, v1]".into()]);
        s.text
    }
}
