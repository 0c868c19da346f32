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

/// What the documents name in backquotes is there: files of Rust by the end of their path, tests by module and name.
#[test]
fn documents_name_what_there_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ["src", "ir", "rewrites", "extract", "sass", "tests", "benches"]
        .iter()
        .for_each(|at| rust_files(&root.join(at), &mut files));
    let documents = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut missing = Vec::new();
    for path in documents.chain(["README.md", "rewrites/RULES.md"].map(|name| root.join(name))) {
        let text = std::fs::read_to_string(&path).unwrap();
        let quoted = text.split("```").step_by(2).flat_map(|prose| prose.split('`').skip(1).step_by(2));
        for name in quoted.filter(|name| !is_there(&files, name)) {
            missing.push(format!("{}: {name}", path.display()));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
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
    ["src", "ir", "rewrites", "extract", "sass", "tests", "benches", "testing"]
        .iter()
        .for_each(|at| rust_files(&root.join(at), &mut files));
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
