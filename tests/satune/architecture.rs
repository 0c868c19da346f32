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
