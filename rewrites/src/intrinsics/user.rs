//! Tensor intrinsics that users register: pairs of functions in a file, as they register them with TVM.
use super::get;
use super::registry::{self, Intrinsic, Lie};
use satune_ir::interp::{self, Difference};
use satune_ir::tvmscript::{self, ParseError};
use satune_ir::{Expr, Program, Stmt};
use std::sync::Arc;

/// Why intrinsics cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The text is no file of intrinsics.
    #[error("{0}")]
    Parse(Box<ParseError>),
    /// An intrinsic of this name is there, and is another one.
    #[error("{0}: an intrinsic of this name is known already; give yours another name")]
    Known(String),
    /// The two functions do not fit.
    #[error("{name}: {reason}")]
    Mismatch {
        /// The intrinsic.
        name: String,
        /// What differs.
        reason: String,
    },
}

/// How many inputs the two functions are compared on: tiles are small, so that one of them may hide a difference.
const RUNS: u64 = 16;

/// Registers the intrinsics of a file, for the whole process, and returns their names. The file holds functions under
/// `@T.prim_func` and, below them, `TensorIntrin.register("name", description, implementation)`.
///
/// The parameters of both functions must be alike; and where both can be interpreted, they must compute the same. An
/// implementation that cannot (a function in another language) is believed.
///
/// # Errors
/// [`RegisterError`]; nothing is registered then.
pub fn register(file: &str, text: &str) -> Result<Vec<String>, RegisterError> {
    let pairs = tvmscript::parse_intrinsics(file, text).map_err(RegisterError::Parse)?;
    let mut new = Vec::new();
    for (name, description, implementation) in pairs {
        fits(&description, &implementation).map_err(|reason| RegisterError::Mismatch { name: name.clone(), reason })?;
        let intrinsic = Intrinsic { name: name.clone(), description, implementation, held: None, lie: Lie::Any };
        match get(&name) {
            Some(known) if *known != intrinsic => return Err(RegisterError::Known(name)),
            Some(_) => {}
            None => new.push(Arc::new(intrinsic)),
        }
    }
    let names = new.iter().map(|i| i.name.clone()).collect();
    registry::extend(new);
    Ok(names)
}

/// Why the two functions are no pair.
fn fits(description: &Program, implementation: &Program) -> Result<(), String> {
    let (count, other) = (description.params.len(), implementation.params.len());
    if count != other {
        return Err(format!("the description has {count} parameters, the implementation {other}"));
    }
    for (a, b) in description.params.iter().zip(&implementation.params) {
        let (a, b) = (description.buffer(*a), implementation.buffer(*b));
        if a.dtype != b.dtype || a.shape != b.shape || a.scope != b.scope {
            return Err(format!(
                "parameter {} of the description and {} of the implementation differ in shape, type or scope",
                a.name, b.name
            ));
        }
    }
    for (program, which) in [(description, "description"), (implementation, "implementation")] {
        let root = &program.body.block;
        let missing = program.params.iter().find(|p| !root.reads.iter().chain(&root.writes).any(|r| r.buffer == **p));
        if let Some(param) = missing {
            return Err(format!(
                "the {which} does not say what it does with {}: write `with T.sblock(\"root\"):` with T.reads and \
                 T.writes over the whole body",
                program.buffer(*param).name
            ));
        }
    }
    if calls_nothing(&implementation.body.block.body) {
        return Err("the implementation has no statement that does something".into());
    }
    let (description, implementation) = (dense(description), dense(implementation));
    for seed in 0..RUNS {
        match interp::equal_on(&description, &implementation, seed) {
            Ok(()) => {}
            Err(difference @ Difference::Value { .. }) => {
                return Err(format!("the implementation computes something else than the description: {difference}"))
            }
            // What the interpreter does not know is believed.
            Err(_) => break,
        }
    }
    Ok(())
}

/// The function on parameters that lie densely, where it says nothing of how they do.
fn dense(program: &Program) -> Program {
    let mut out = program.clone();
    let open = |e: &Expr| matches!(e, Expr::Var(_));
    for param in program.params.clone() {
        let buffer = out.buffer_mut(param);
        if buffer.strides.iter().any(open) {
            buffer.strides.clear();
        }
        buffer.elem_offset = buffer.elem_offset.take().filter(|e| !open(e));
    }
    out
}

fn calls_nothing(s: &Stmt) -> bool {
    let mut found = false;
    satune_ir::visit::walk_stmt(s, &mut |s| found |= matches!(s, Stmt::Store { .. } | Stmt::Evaluate(_)));
    !found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soundness;
    use crate::split::split;
    use crate::tensorize::tensorize;
    use crate::testing::{block, loops, matmul};
    use crate::tree::Node;
    use crate::{Call, Trace};

    /// Four products are added: by a loop, and by four terms.
    fn file(name: &str, terms: &str) -> String {
        format!(
            r#"
from tvm.script import tirx as T
from tvm.s_tir import TensorIntrin

NAME = "{name}"

@T.prim_func(s_tir=True)
def dot_desc(a: T.handle, b: T.handle, c: T.handle):
    A = T.match_buffer(a, (4,), "float32", offset_factor=1)
    B = T.match_buffer(b, (4, 1), "float32", strides=("s0", "s1"), offset_factor=1)
    C = T.match_buffer(c, (1,), "float32", offset_factor=1)
    with T.sblock("root"):
        T.reads(C[0], A[0:4], B[0:4, 0])
        T.writes(C[0])
        for i in range(4):
            with T.sblock("update"):
                vi = T.axis.remap("R", [i])
                C[0] = C[0] + A[vi] * B[vi, 0]

@T.prim_func(s_tir=True)
def dot_impl(a: T.handle, b: T.handle, c: T.handle):
    A = T.match_buffer(a, (4,), "float32", offset_factor=1)
    B = T.match_buffer(b, (4, 1), "float32", strides=("s0", "s1"), offset_factor=1)
    C = T.match_buffer(c, (1,), "float32", offset_factor=1)
    with T.sblock("root"):
        T.reads(C[0], A[0:4], B[0:4, 0])
        T.writes(C[0])
        C[0] = {terms}

TensorIntrin.register(NAME, dot_desc, dot_impl)
"#
        )
    }

    const TERMS: &str = "C[0] + A[0] * B[0, 0] + A[1] * B[1, 0] + A[2] * B[2, 0] + A[3] * B[3, 0]";

    #[test]
    fn a_registered_intrinsic_is_used() {
        let text = file("test_dot4", TERMS);
        assert_eq!(register("dot.py", &text).unwrap(), ["test_dot4"]);
        // The same once more is no error.
        assert!(register("dot.py", &text).unwrap().is_empty());
        assert!(matches!(
            register("dot.py", &file("test_dot4", &TERMS.replace("C[0] + A[0] * B[0, 0]", "A[0] * B[0, 0] + C[0]"))),
            Err(RegisterError::Known(_))
        ));
        let mut s = matmul();
        let (before, k) = (s.program().clone(), loops(&s, "C")[2]);
        let parts = split(&mut s, k, &[None, Some(4)], true, false).unwrap();
        let c = block(&s, "C");
        crate::decompose_reduction::decompose_reduction(&mut s, c, parts[0]).unwrap();
        tensorize(&mut s, Node::Loop(parts[1]), "test_dot4", true).unwrap();
        soundness::check(&before, s.program()).unwrap();
        interp::equal_on(&before, &super::super::described(s.program()), 5).unwrap();
        let trace = Trace { calls: vec![Call::new("tensorize", ["$x".into(), "test_dot4".into()])] };
        assert!(trace.to_python("f").contains("TensorIntrin.register(\"test_dot4\", from_source("));
    }

    #[test]
    fn pairs_that_do_not_fit_are_refused() {
        let reason = |text: &str| register("dot.py", text).unwrap_err().to_string();
        let other = reason(&file("test_other", &TERMS.replace("A[3]", "A[2]")));
        assert!(other.contains("test_other: the implementation computes something else"), "{other}");
        let none = file("test_none", TERMS).replace("TensorIntrin.register(NAME", "print(NAME");
        assert!(reason(&none).contains("no intrinsic is registered here"), "{}", reason(&none));
        let shape = file("test_shape", TERMS).replacen("(4,)", "(8,)", 1);
        assert!(reason(&shape).contains("differ in shape"), "{}", reason(&shape));
        assert!(super::get("test_other").is_none());
    }
}
