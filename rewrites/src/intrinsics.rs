//! Tensor intrinsics by name: what each computes, as a program of loops, and the instructions that do it. Both are
//! TVMScript, with names and parameters as TVM has them where TVM has the intrinsic.
use indexmap::IndexMap;
use satune_ir::{tvmscript, Block, Program};
use std::sync::{Arc, OnceLock};

mod dp4a;
pub(crate) mod fragment;
mod instance;
mod meaning;
mod mma;
pub mod mma_sync;
mod user;
pub mod wgmma;
pub mod wmma;

pub(crate) use instance::Instance;
pub use meaning::{described, of_block};
pub use user::{register, RegisterError};

/// A tensor intrinsic.
#[derive(Clone, Debug, PartialEq)]
pub struct Intrinsic {
    /// Its name.
    pub name: String,
    /// What it computes.
    pub description: Program,
    /// How; the parameters are those of the description.
    pub implementation: Program,
    /// How its operands lie. Multiplications of operands that lie differently are one instruction: what it computes
    /// is known from the loads before it.
    pub lie: Lie,
}

/// How operands of a multiplication lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    /// It makes no difference.
    #[default]
    Any,
    /// The load brings a parameter into fragments, transposed or not.
    Load {
        /// The parameter that is written.
        target: usize,
        /// Whether the tile is transposed on the way.
        transposed: bool,
    },
    /// The multiplication takes its first and second parameter loaded transposed, or not.
    Multiply {
        /// Of the first.
        a: bool,
        /// Of the second.
        b: bool,
    },
}

impl Intrinsic {
    /// The block of the description that a program's block is compared with.
    pub fn pattern(&self) -> &Block {
        &self.description.body.block
    }
}

/// The text of an intrinsic, and what was read of it.
#[derive(Debug)]
struct Entry {
    description: String,
    implementation: String,
    lie: Lie,
    /// TVM does not have it.
    own: bool,
    parsed: OnceLock<Option<Arc<Intrinsic>>>,
}

/// Where families put their intrinsics.
#[derive(Debug, Default)]
struct Registry {
    entries: IndexMap<String, Entry>,
}

impl Registry {
    fn add(&mut self, name: impl Into<String>, description: String, implementation: String) {
        self.lying(Lie::Any, name, description, implementation);
    }

    fn lying(&mut self, lie: Lie, name: impl Into<String>, description: String, implementation: String) {
        self.entry(lie, false, name, [description, implementation]);
    }

    /// An intrinsic that TVM does not have.
    fn own(&mut self, name: impl Into<String>, description: String, implementation: String) {
        self.entry(Lie::Any, true, name, [description, implementation]);
    }

    /// Description and implementation; `own`: TVM does not have it.
    fn entry(&mut self, lie: Lie, own: bool, name: impl Into<String>, [description, implementation]: [String; 2]) {
        let entry = Entry { description, implementation, lie, own, parsed: OnceLock::new() };
        self.entries.insert(name.into(), entry);
    }
}

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let mut registry = Registry::default();
        dp4a::register(&mut registry);
        wmma::register(&mut registry);
        mma::register(&mut registry);
        mma_sync::register(&mut registry);
        wgmma::register(&mut registry);
        registry
    })
}

/// All names of this library, family by family.
pub fn names() -> impl Iterator<Item = &'static str> {
    registry().entries.keys().map(String::as_str)
}

/// The intrinsic of a name. Its texts are read when it is first asked for.
pub fn get(name: &str) -> Option<Arc<Intrinsic>> {
    let Some(entry) = registry().entries.get(name) else { return user::get(name) };
    let parsed = entry.parsed.get_or_init(|| {
        let description = tvmscript::parse(&entry.description).ok()?;
        let implementation = tvmscript::parse(&entry.implementation).ok()?;
        Some(Arc::new(Intrinsic { name: name.to_string(), description, implementation, lie: entry.lie }))
    });
    parsed.clone()
}

/// All intrinsics: those of this library, family by family, then those of users.
pub(crate) fn all() -> impl Iterator<Item = Arc<Intrinsic>> {
    names().filter_map(get).chain(user::all())
}

/// Description and implementation of an intrinsic that TVM does not have, as TVMScript.
pub(crate) fn texts_of_own(name: &str) -> Option<[String; 2]> {
    match registry().entries.get(name) {
        Some(entry) => entry.own.then(|| [entry.description.clone(), entry.implementation.clone()]),
        None => user::get(name).map(|i| [tvmscript::print(&i.description), tvmscript::print(&i.implementation)]),
    }
}

/// The name of a multiplication whose description has the factors in the other order, B's before A's: blocks are compared as
/// they are written, and the transposed product's instruction takes its rows from the second factor. It is the same
/// instruction of the same parameters, so blocks with it are read as the other's.
pub(crate) fn swapped(name: &str) -> String {
    format!("{name}_swapped")
}

/// What a description says of A and B, in their order, or B first.
fn in_order(swapped: bool, [a, b]: [String; 2], separator: &str) -> String {
    if swapped { [b, a] } else { [a, b] }.join(separator)
}

/// A parameter: shape and type, and the rest of `T.Buffer`'s arguments.
fn param(name: &str, shape: &[i64], dtype: &str, strides: &str, rest: &str) -> String {
    let shape: Vec<String> = shape.iter().map(|n| format!("{n},")).collect();
    let strides = match strides {
        "" => String::new(),
        s => format!(", strides=(\"{s}0\", \"{s}1\")"),
    };
    format!("{name}: T.Buffer(({}), \"{dtype}\"{strides}, {rest})", shape.join(" "))
}

/// What a parameter in shared memory is told beside its shape, for tiles anywhere in their buffer.
fn rest_of_shared() -> String {
    "scope=\"shared\", offset_factor=1".into()
}

/// A function with its root block.
fn function(params: &[String], reads: &str, writes: &str, body: &str) -> String {
    let body: String = body.lines().map(|l| format!("        {l}\n")).collect();
    format!(
        "@T.prim_func(s_tir=True)\ndef main({}):\n    with T.sblock(\"root\"):\n        T.reads({reads})\n        \
         T.writes({writes})\n{body}",
        params.join(", ")
    )
}

/// A copy, element by element: the body of descriptions of loads and stores.
fn copied(rows: i64, columns: i64, block: &str, target: &str, source: &str) -> String {
    format!(
        "for i, j in T.grid({rows}, {columns}):\n    with T.sblock(\"{block}\"):\n        vi, vj = \
         T.axis.remap(\"SS\", [i, j])\n        {target} = {source}\n"
    )
}

/// `x` in a type, where it has another one.
fn cast(from: &str, to: &str, x: &str) -> String {
    if from == to {
        x.to_string()
    } else {
        format!("T.Cast(\"{to}\", {x})")
    }
}

/// Zero of a type.
fn zero(dtype: &str) -> String {
    match dtype {
        "int32" => "0".into(),
        other => format!("T.{other}(0)"),
    }
}

/// The short name of a type, as names of intrinsics have it.
fn short(dtype: &str) -> &'static str {
    match dtype {
        "float16" => "f16",
        "bfloat16" => "bf16",
        "tfloat32" => "tf32",
        "float32" => "f32",
        "int8" => "s8",
        "float8_e4m3fn" => "e4m3",
        "float8_e5m2" => "e5m2",
        _ => "s32",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_a_program() {
        let mut count = 0;
        for name in names() {
            let entry = &registry().entries[name];
            for text in [&entry.description, &entry.implementation] {
                if let Err(e) = tvmscript::parse(text) {
                    panic!("{name}: {e}\n{text}");
                }
            }
            let i = get(name).unwrap();
            assert_eq!(i.description.params.len(), i.implementation.params.len());
            let printed = tvmscript::print(&i.implementation);
            let again = tvmscript::parse(&printed).unwrap();
            satune_ir::structural::equal(&i.implementation, &again).unwrap_or_else(|d| panic!("{name}: {d}"));
            count += 1;
        }
        assert!(count > 100, "{count}");
        assert!(get("dp5a").is_none());
    }
}
