//! Tensor intrinsics by name: what each computes, as a program of loops, and the instructions that do it. Both are
//! TVMScript, with names and parameters as TVM has them where TVM has the intrinsic.
use registry::Registry;
use satune_ir::tvmscript;
use std::sync::{Arc, OnceLock};

mod dp4a;
pub(crate) mod fragment;
pub mod group;
mod instance;
mod meaning;
pub mod mma;
pub mod mma_sync;
mod registry;
pub mod tcgen05;
mod text;
mod user;
pub mod wgmma;
pub mod wmma;

pub(crate) use instance::Instance;
pub use meaning::{described, named, of_block, INTRINSIC};
pub use registry::{Intrinsic, Lie};
pub(crate) use text::swapped;
pub use user::{register, RegisterError};

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let mut registry = Registry::default();
        dp4a::register(&mut registry);
        wmma::register(&mut registry);
        mma::register(&mut registry);
        mma_sync::register(&mut registry);
        wgmma::register(&mut registry);
        tcgen05::register(&mut registry);
        registry
    })
}

/// All names of this library, family by family.
pub fn names() -> impl Iterator<Item = &'static str> {
    registry().entries.keys().map(String::as_str)
}

/// The intrinsic of a name. Its texts are read when it is first asked for.
pub fn get(name: &str) -> Option<Arc<Intrinsic>> {
    let Some(entry) = registry().entries.get(name) else { return registry::registered(name) };
    let parsed = entry.parsed.get_or_init(|| {
        let description = tvmscript::parse(&entry.description).ok()?;
        let held = entry.held.as_ref().map(|text| tvmscript::parse(text)).transpose().ok()?;
        let implementation = tvmscript::parse(&entry.implementation).ok()?;
        Some(Arc::new(Intrinsic { name: name.to_string(), description, held, implementation, lie: entry.lie }))
    });
    parsed.clone()
}

/// All intrinsics: those of this library, family by family, then those of users.
pub(crate) fn all() -> impl Iterator<Item = Arc<Intrinsic>> {
    names().filter_map(get).chain(registry::all_registered())
}

/// Description and implementation of an intrinsic that TVM does not have, as TVMScript.
pub(crate) fn texts_of_own(name: &str) -> Option<[String; 2]> {
    match registry().entries.get(name) {
        Some(entry) => entry.own.then(|| [entry.description.clone(), entry.implementation.clone()]),
        None => {
            registry::registered(name).map(|i| [tvmscript::print(&i.description), tvmscript::print(&i.implementation)])
        }
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
            for text in [&entry.description, &entry.implementation].into_iter().chain(&entry.held) {
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
