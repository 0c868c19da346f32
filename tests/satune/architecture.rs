//! Arrows between crates point one way.

fn dependencies(manifest: &str) -> Vec<String> {
    let root = env!("CARGO_MANIFEST_DIR");
    let text = std::fs::read_to_string(format!("{root}/{manifest}")).unwrap();
    text.lines().filter(|l| l.starts_with("satune-")).map(|l| l.split(['.', ' ', '=']).next().unwrap().into()).collect()
}

#[test]
fn arrows_point_one_way() {
    assert!(dependencies("ir/Cargo.toml").is_empty());
    assert_eq!(dependencies("rewrites/Cargo.toml"), ["satune-ir"]);
    assert_eq!(dependencies("extract/Cargo.toml"), ["satune-ir"]);
}

#[test]
fn only_the_nvrtc_worker_touches_cudarc() {
    fn walk(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                if text.contains("cudarc::") || text.contains("unsafe {") {
                    found.push(path.file_name().unwrap().to_string_lossy().into_owned());
                }
            }
        }
    }
    let mut found = Vec::new();
    walk(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert_eq!(found, ["nvrtc.rs"]);
}
