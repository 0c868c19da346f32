//! Files of a crate import each other in one direction: none is reached again from what it imports. So a file can be read after
//! those below it, and changed without those above it.
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

#[test]
fn files_import_each_other_in_one_direction() {
    for (name, least) in [("ir", 60), ("rewrites", 150), ("extract", 30)] {
        let read = |path: &[String]| file_of(name, path);
        let modules = Modules::read(&read);
        let files: BTreeSet<&String> = modules.all.iter().map(|module| &module.file).collect();
        let all = modules.imports();
        assert!(files.len() >= least && all.len() > files.len(), "{name}: {} imports of {files:#?}", all.len());
        let found = circles(&all);
        let said = found.iter().map(|circle| circle.iter().map(|arrow| text(arrow, &all[arrow])).collect::<Vec<_>>());
        assert!(found.is_empty(), "{name}: {:#?}", said.collect::<Vec<_>>());
    }
}

/// A module's file is `a/b.rs` or `a/b/mod.rs`.
fn file_of(name: &str, path: &[String]) -> (String, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let stem = [&[name.to_string(), "src".into()], path].concat().join("/");
    let files = match path {
        [] => vec![format!("{stem}/lib.rs")],
        _ => vec![format!("{stem}.rs"), format!("{stem}/mod.rs")],
    };
    let file = files.into_iter().find(|file| root.join(file).is_file()).unwrap_or_else(|| panic!("no file of {stem}"));
    let text = std::fs::read_to_string(root.join(&file)).unwrap();
    (file, text)
}

/// One file takes names from another.
type Arrow = (String, String);
/// The names that are taken.
type Imports = BTreeMap<Arrow, BTreeSet<String>>;

fn text((from, to): &Arrow, names: &BTreeSet<String>) -> String {
    format!("{from} -> {to}: {}", names.iter().cloned().collect::<Vec<_>>().join(", "))
}

/// Groups of files that reach each other: the arrows within each.
fn circles(imports: &Imports) -> BTreeSet<Vec<Arrow>> {
    let mut below: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    imports.keys().for_each(|(from, to)| below.entry(from).or_default().push(to));
    let reached = |from| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(file) = open.pop() {
            open.extend(below.get(file).into_iter().flatten().filter(|to| reached.insert(**to)));
        }
        reached
    };
    let reach: BTreeMap<&String, BTreeSet<&String>> = below.keys().map(|from| (*from, reached(*from))).collect();
    let both = |a: &String, b: &String| reach[a].contains(b) && reach.get(b).is_some_and(|reach| reach.contains(a));
    let groups = below.keys().map(|file| imports.keys().filter(|(a, b)| both(a, b) && (a == *file || both(a, file))));
    groups.map(|arrows| arrows.cloned().collect()).filter(|arrows: &Vec<Arrow>| !arrows.is_empty()).collect()
}

/// A module: that of a file, or one in braces within it.
#[derive(Default)]
struct Module {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    uses: Vec<Use>,
    /// The paths in its code, names alone among them.
    paths: BTreeSet<Vec<String>>,
}

/// `use path as name`, of which `*` is the name of what takes all. A face hands its names on (`pub use`).
struct Use {
    path: Vec<String>,
    name: String,
    face: bool,
}

/// What a path means.
enum Meaning {
    Module(usize),
    Item { file: String, name: String },
}

/// Gives the name and the text of a module's file.
type Reader<'a> = &'a dyn Fn(&[String]) -> (String, String);

/// The modules of a crate without what only its tests have; the first is its root.
struct Modules<'a> {
    all: Vec<Module>,
    reader: Reader<'a>,
}

const ITEMS: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];

fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(name)) => Some(name.to_string()),
        _ => None,
    }
}

fn is(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

fn within(token: Option<&TokenTree>, delimiter: Delimiter) -> Option<TokenStream> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group.stream()),
        _ => None,
    }
}

impl<'a> Modules<'a> {
    fn read(reader: Reader<'a>) -> Self {
        let mut modules = Modules { all: Vec::new(), reader };
        modules.file(None, &[]);
        modules
    }

    fn file(&mut self, parent: Option<usize>, path: &[String]) -> usize {
        let (file, text) = (self.reader)(path);
        self.module(file, parent, path, text.parse().unwrap())
    }

    fn module(&mut self, file: String, parent: Option<usize>, path: &[String], inside: TokenStream) -> usize {
        let at = self.all.len();
        self.all.push(Module { file, parent, ..Module::default() });
        self.tokens(at, path, inside, true);
        at
    }

    /// Reads tokens of a module: its items where they are `outer`, else the inside of one.
    fn tokens(&mut self, at: usize, path: &[String], stream: TokenStream, outer: bool) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let token = |i: usize| tokens.get(i);
        let end =
            |from: usize, ends: &dyn Fn(usize) -> bool| (from..tokens.len()).find(|i| ends(*i)).unwrap_or(tokens.len());
        let mut i = 0;
        while i < tokens.len() {
            if is(token(i), '#') {
                i += 1 + usize::from(is(token(i + 1), '!'));
                let attribute = within(token(i), Delimiter::Bracket).map(|inside| inside.to_string().replace(' ', ""));
                if attribute.as_deref() == Some("cfg(test)") {
                    i = end(i, &|i| is(token(i), ';') || within(token(i), Delimiter::Brace).is_some());
                }
                i += 1;
                continue;
            }
            if let Some(TokenTree::Group(group)) = token(i) {
                self.tokens(at, path, group.stream(), false);
            }
            let Some(name) = ident(token(i)) else {
                i += 1;
                continue;
            };
            let lifetime = i > 0 && is(token(i - 1), '\'');
            match (name.as_str(), ident(token(i + 1))) {
                ("use", _) => {
                    let last = end(i, &|i| is(token(i), ';'));
                    let public = |back: usize| i >= back && ident(token(i - back)).is_some_and(|word| word == "pub");
                    let face = public(1) || public(2) && within(token(i - 1), Delimiter::Parenthesis).is_some();
                    self.uses(at, Vec::new(), &tokens[i + 1..last], face);
                    i = last;
                }
                ("mod", Some(child)) if outer => {
                    let under = [path, std::slice::from_ref(&child)].concat();
                    let module = match within(token(i + 2), Delimiter::Brace) {
                        None => self.file(Some(at), &under),
                        Some(inside) => self.module(self.all[at].file.clone(), Some(at), &under, inside),
                    };
                    self.all[at].children.insert(child, module);
                    i += 3;
                }
                (word, Some(item)) if outer && !lifetime && ITEMS.contains(&word) => {
                    self.all[at].items.insert(item);
                    i += 1;
                }
                _ => {
                    let goes_on = |i| is(token(i), ':') && is(token(i + 1), ':');
                    // No path begins behind `.`, `::` or the mark of a lifetime.
                    let begins = !(lifetime || i > 0 && is(token(i - 1), '.') || i > 1 && goes_on(i - 2));
                    let mut names = vec![name];
                    i += 1;
                    while let Some(name) = ident(token(i + 2)).filter(|_| goes_on(i)) {
                        names.push(name);
                        i += 3;
                    }
                    if begins {
                        self.all[at].paths.insert(names);
                    }
                }
            }
        }
    }

    /// Reads what stands between `use` and `;`, or between the commas of braces.
    fn uses(&mut self, at: usize, mut path: Vec<String>, tokens: &[TokenTree], face: bool) {
        let mut name = None;
        for (i, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => {
                    let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                    let parts = inside.split(|token| is(Some(token), ',')).filter(|part| !part.is_empty());
                    return parts.for_each(|part| self.uses(at, path.clone(), part, face));
                }
                TokenTree::Ident(word) if word == "as" => {
                    name = ident(tokens.get(i + 1));
                    break;
                }
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(mark) if mark.as_char() == '*' => name = Some("*".into()),
                _ => {}
            }
        }
        let name = name.or(path.last().cloned()).unwrap();
        self.all[at].uses.push(Use { path, name, face });
    }

    /// What a path means in a module. More names follow where it is an `outset`: then the last is a module's, if there is one.
    fn find(&self, mut at: usize, path: &[String], outset: bool, depth: usize) -> Option<Meaning> {
        // `use x::x` beside `mod x` leads to itself.
        if depth > 8 {
            return None;
        }
        for (i, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" => at = 0,
                "super" => at = self.all[at].parent?,
                "self" => {}
                _ => match self.name(at, name, outset || i + 1 < path.len(), depth)? {
                    Meaning::Module(module) => at = module,
                    // What follows an item is a part of it.
                    item => return Some(item),
                },
            }
        }
        Some(Meaning::Module(at))
    }

    fn name(&self, at: usize, name: &String, outset: bool, depth: usize) -> Option<Meaning> {
        let module = &self.all[at];
        let child = || module.children.get(name).map(|child| Meaning::Module(*child));
        let item = || {
            let here = module.items.contains(name);
            here.then(|| Meaning::Item { file: module.file.clone(), name: name.clone() })
        };
        let used = || {
            let mut uses = module.uses.iter().filter(|one| one.name == *name);
            uses.find_map(|one| self.find(at, &one.path, outset, depth + 1))
        };
        let among_all = || {
            let mut uses = module.uses.iter().filter(|one| one.name == "*");
            uses.find_map(|all| match self.find(at, &all.path, true, depth + 1)? {
                Meaning::Module(from) if from != at => self.name(from, name, outset, depth + 1),
                _ => None,
            })
        };
        let first = if outset { child() } else { None };
        first.or_else(item).or_else(used).or_else(child).or_else(among_all)
    }

    /// The names that each file takes from each other file that defines them. A face alone takes nothing: its file does where its
    /// own code has the name.
    fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (at, module) in self.all.iter().enumerate() {
            let own = module.uses.iter().filter(|one| !one.face && one.name != "*").map(|one| &one.path);
            for path in own.chain(&module.paths) {
                if let Some(Meaning::Item { file, name }) = self.find(at, path, false, 0) {
                    if file != module.file {
                        imports.entry((module.file.clone(), file)).or_default().insert(name);
                    }
                }
            }
        }
        imports
    }
}

/// The imports of a crate of a few files, each given by its module's path, that are in circles.
fn in_circles(files: &[(&str, &str)]) -> Vec<String> {
    let reader = |path: &[String]| {
        let (file, text) = files.iter().find(|(file, _)| *file == path.join("/")).unwrap();
        (file.to_string(), text.to_string())
    };
    let imports = Modules::read(&reader).imports();
    circles(&imports).iter().flatten().map(|arrow| text(arrow, &imports[arrow])).collect()
}

#[test]
fn imports_are_read_as_the_compiler_reads_them() {
    let taken = |root: &str, a: &str, b: &str| in_circles(&[("", root), ("a", a), ("b", b)]).len();
    let (root, a) = ("mod a; mod b; pub use a::A;", "pub struct A; use crate::b::B;");
    // By its place, by a face of the root, renamed, among others, with all, in code alone, within a macro.
    assert_eq!(taken(root, a, "pub struct B; use crate::a::A;"), 2);
    assert_eq!(taken(root, a, "pub struct B; use super::{c::{self}, A as C};"), 2);
    assert_eq!(taken(root, a, "pub struct B; use crate::*; fn f(_: A) {}"), 2);
    assert_eq!(taken(root, a, "pub struct B; use super::a; fn f() { g(|| vec![a::A::new()]); }"), 2);
    assert_eq!(taken(root, a, "pub struct B; impl B { fn f() -> crate::A { todo!() } }"), 2);
    // Not by its tests, by a name of its own, in a comment, a text or an attribute.
    assert_eq!(taken(root, a, "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"), 0);
    assert_eq!(taken(root, a, "pub struct B; #[cfg(test)] use crate::A; fn f() {}"), 0);
    assert_eq!(taken(root, a, "pub struct B; struct A; fn f(_: A) { x.a::<u8>(); }"), 0);
    assert_eq!(taken(root, a, "/// See [`crate::A`].\npub struct B; // crate::A\n const C: &str = \"crate::A\";"), 0);
    // A parent that has a face is above its children only where it uses them; what it defines itself ties it to them.
    let child = "pub struct A; fn f(_: super::R) {}";
    assert_eq!(taken("mod a; mod b; pub use a::A; struct R;", child, ""), 0);
    assert_eq!(taken("mod a; mod b; pub use a::A; struct R; fn f(_: A) {}", child, ""), 2);
    assert_eq!(taken("mod a; mod b; struct R(a::A);", child, ""), 2);
    // A module in braces is of its file.
    assert_eq!(taken("mod a; mod b; mod r { pub struct R(super::a::A); }", "pub struct A; use super::r::R;", ""), 2);
}

#[test]
fn a_circle_of_three_is_told_from_what_hangs_on_it() {
    let (a, b) = ("pub struct A; use crate::b::B; use crate::d::D;", "pub struct B; use crate::c::C;");
    let (c, d) = ("pub struct C; use crate::a::A;", "pub struct D;");
    let found = in_circles(&[("", "mod a; mod b; mod c; mod d;"), ("a", a), ("b", b), ("c", c), ("d", d)]);
    assert_eq!(found, ["a -> b: B", "b -> c: C", "c -> a: A"]);
}
