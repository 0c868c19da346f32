//! Arrows between crates point one way.
use std::path::{Path, PathBuf};

fn dependencies(manifest: &str) -> Vec<String> {
    let root = env!("CARGO_MANIFEST_DIR");
    let text = std::fs::read_to_string(format!("{root}/{manifest}")).unwrap();
    // What only tests need points nowhere.
    let text = text.split("[dev-dependencies]").next().unwrap();
    text.lines().filter(|l| l.starts_with("satune-")).map(|l| l.split(['.', ' ', '=']).next().unwrap().into()).collect()
}

#[test]
fn arrows_point_one_way() {
    assert!(dependencies("ir/Cargo.toml").is_empty());
    assert_eq!(dependencies("rewrites/Cargo.toml"), ["satune-ir"]);
    assert_eq!(dependencies("extract/Cargo.toml"), ["satune-ir"]);
    assert_eq!(dependencies("sass/Cargo.toml"), ["satune-extract", "satune-ir"]);
}

/// Calls into CUDA stand behind two walls: NVRTC in the compile worker, driver and cuBLAS in the measure worker. Nothing
/// else is unsafe.
#[test]
fn only_two_modules_touch_cudarc() {
    fn walk(folder: &std::path::Path, root: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, root, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                if text.contains("cudarc::") || text.contains("unsafe {") {
                    found.push(path.strip_prefix(root).unwrap().to_string_lossy().into_owned());
                }
            }
        }
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    found.sort();
    // The driver's module has a file for each library beside it.
    found.retain(|path| !path.starts_with("device/cuda/driver/"));
    assert_eq!(found, ["compile/nvrtc.rs", "device/cuda/driver.rs"]);
}

/// Where Rust stands.
const FOLDERS: [&str; 10] =
    ["src", "ir", "rewrites", "extract", "ptx", "sass", "tests", "benches", "testing", "examples"];

/// What the documents name in backquotes is there: files by their path (of Rust by its end), what is said to stand in a file of Rust,
/// tests by module and name; and what they link to.
#[test]
fn documents_name_what_there_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|at| rust_files(&root.join(at), &mut files));
    let markdown = |folder: &str| {
        let all = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|e| e == "md")).collect::<Vec<_>>()
    };
    let documents = [markdown(""), markdown("docs"), vec![root.join("rewrites/RULES.md")]].concat();
    assert!(documents.len() > 10, "{documents:?}");
    let mut missing = Vec::new();
    for path in documents {
        let text = std::fs::read_to_string(&path).unwrap();
        for prose in text.split("```").step_by(2) {
            let parts: Vec<&str> = prose.split('`').collect();
            for at in (1..parts.len()).step_by(2) {
                let stands = parts[at + 1..].first().is_some_and(|between| between.trim() == "in");
                let place = parts.get(at + 2).filter(|_| stands);
                if !is_there(&files, parts[at]) || place.is_some_and(|file| !stands_in(&files, parts[at], file)) {
                    missing.push(format!("{}: {} {}", path.display(), parts[at], place.unwrap_or(&"")));
                }
            }
            let links = prose.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
            for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
                if !path.parent().unwrap().join(link).exists() {
                    missing.push(format!("{}: the link {link}", path.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Whether a file of Rust holds a name; true of what is no name of Rust, or no such file.
fn stands_in(files: &[PathBuf], name: &str, file: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let Some(last) = name.rsplit("::").next().filter(|last| last.chars().all(word)) else { return true };
    let Some(path) = files.iter().find(|path| file.ends_with(".rs") && path.ends_with(file)) else { return true };
    std::fs::read_to_string(path).unwrap().split(|c| !word(c)).any(|found| found == last)
}

fn rust_files(folder: &Path, list: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            rust_files(&path, list);
        } else if path.extension().is_some_and(|e| e == "rs") {
            list.push(path);
        }
    }
}

/// Whether a name is that of a file or test that exists, or of something else.
fn is_there(files: &[PathBuf], name: &str) -> bool {
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_/.-".contains(c));
    if name.ends_with(".rs") {
        return !plain(name) || files.iter().any(|path| path.ends_with(name));
    }
    if name.contains('/') && [".md", ".toml", ".txt", ".jsonl"].iter().any(|end| name.ends_with(end)) {
        return !plain(name) || Path::new(env!("CARGO_MANIFEST_DIR")).join(name).exists();
    }
    // A test of a crate: `ir: fp8::tests::NAME`, `satune: names::tests::NAME`.
    if let Some((of, test)) = name.split_once(": ").filter(|(of, test)| plain(of) && test.contains("::")) {
        let folder = match of.strip_prefix("satune-").unwrap_or(of) {
            "satune" => "src",
            other => other,
        };
        let test = test.rsplit("::").next().unwrap();
        let under = |path: &&PathBuf| path.starts_with(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
        let has = |path: &PathBuf| std::fs::read_to_string(path).unwrap().contains(&format!("fn {test}("));
        return !plain(test) || test == "tests" || files.iter().filter(under).any(has);
    }
    let Some((module, test)) = name.split_once("::") else { return true };
    let file = files.iter().find(|path| path.ends_with(format!("tests/satune/{module}.rs")));
    let Some(file) = file.filter(|_| plain(test) && test != "tests") else { return true };
    let text = std::fs::read_to_string(file).unwrap();
    match test.strip_suffix("...") {
        Some(beginning) => text.contains(&format!("fn {beginning}")),
        None => text.contains(&format!("fn {test}(")),
    }
}

/// A clone alone is enough: no path in the sources leads out of the checkout. A path counts from the file's folder
/// (`#[path]`, `include_str!`) or, where the line says so, from the crate's.
#[test]
fn no_source_reads_beside_the_checkout() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|at| rust_files(&root.join(at), &mut files));
    let mut outside = Vec::new();
    for path in &files {
        let folder = path.parent().unwrap();
        let package = folder.ancestors().find(|f| f.join("Cargo.toml").is_file()).unwrap();
        let depth = |from: &Path| from.strip_prefix(root).unwrap().components().count();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let from = if line.contains("CARGO_MANIFEST_DIR") { package } else { folder };
            let up = line.split('"').skip(1).step_by(2).map(|text| text.matches("../").count()).max().unwrap_or(0);
            // What a test of refusals names is no path of ours.
            if up > depth(from) && !line.contains("refused") {
                outside.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(files.len() > 300 && outside.is_empty(), "{outside:#?}");
}
