//! The HTML report: it holds all it needs, and a browser lays it out as it should.
use satune::explore::{self, Report, Request};
use satune::operators::{self, Problem};
use satune::progress::Quiet;
use satune::report::{render, Baseline, Measured, Page};
use satune_extract::Descriptor;
use std::path::{Path, PathBuf};
use std::process::Command;

fn exploration(operator: &str, gpu: &str) -> (Report, Problem, Descriptor) {
    let gpu = Descriptor::load(gpu).unwrap();
    let problem = operators::parse(operator).unwrap();
    let request = Request {
        gpu: gpu.clone(),
        top: 4,
        twins: false,
        limit: crate::support::NO_LIMIT,
        compile: false,
        fuel: satune_rewrites::space::Fuel::default(),
    };
    let report = explore::explore(&problem, &request, &Quiet).unwrap();
    (report, problem, gpu)
}

/// The page with times that stand for measured ones, to see all sections.
fn page<'a>(report: &'a Report, problem: &'a Problem, gpu: &'a Descriptor) -> Page<'a> {
    let mut page = Page::of(report, problem, gpu);
    for (i, c) in report.candidates.iter().take(4).enumerate() {
        page.measured(&c.id, Measured { ms: c.predicted_ms * (1.05 + 0.04 * i as f64), spread: Some(0.01) });
    }
    page.baseline = Some(Baseline { name: "example".into(), ms: report.candidates[0].predicted_ms * 1.2 });
    page.trials = [1.9, 1.9, 1.5, 1.5, 1.5, 1.2, 1.2, 1.1, 1.1, 1.05]
        .iter()
        .enumerate()
        .map(|(i, f)| (i as u64 + 1, f * report.candidates[0].predicted_ms))
        .collect();
    page
}

/// A Chromium, where one can be found.
fn browser() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("SATUNE_CHROMIUM") {
        return Some(named.into());
    }
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).flat_map(|folder| names.map(|n| folder.join(n)));
    let mut all: Vec<PathBuf> = installed.collect();
    let caches = [
        std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache/ms-playwright")),
        Some(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/chromium/browsers")),
    ];
    for cache in caches.into_iter().flatten() {
        for entry in std::fs::read_dir(cache).into_iter().flatten().flatten() {
            for below in ["chrome-linux/chrome", "chrome-linux64/chrome", "chrome-linux/headless_shell"] {
                all.push(entry.path().join(below));
            }
        }
    }
    all.into_iter().find(|p| p.is_file())
}

fn chromium(browser: &Path, profile: &Path, args: &[String]) -> Vec<u8> {
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--virtual-time-budget=5000", "--timeout=300000"])
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// What a browser is asked, on a copy of the page: what sticks out, and where the key texts stand.
const PROBE: &str = r#"<script>
addEventListener('load', () => {
  const bad = [];
  const name = e => e.tagName + '.' + (e.getAttribute('class') || '') + ': ' + e.textContent.trim().slice(0, 60);
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) bad.push('the page scrolls sideways');
  for (const e of document.querySelectorAll('main *')) {
    if (e.closest('svg') || e.closest('pre') || e.closest('.scroll') && e.closest('table')) continue;
    const r = e.getBoundingClientRect();
    if (r.width && (r.right > width + 1 || r.left < -1)) bad.push('outside the page: ' + name(e));
    if (e.closest('.stack')) continue;
    if (e.clientWidth && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === 'visible')
      bad.push('overflows: ' + name(e));
  }
  for (const svg of document.querySelectorAll('svg')) {
    const box = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')];
    for (const t of texts) {
      const r = t.getBoundingClientRect();
      if (!r.width) continue;
      if (r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1)
        bad.push('outside its figure: ' + name(t));
      for (const o of texts) {
        const s = o.getBoundingClientRect();
        const plain = !t.hasAttribute('transform') && !o.hasAttribute('transform');
        if (o !== t && plain && s.width && r.left < s.right && s.left < r.right && r.top < s.bottom - 2 && s.top < r.bottom - 2)
          bad.push('over one another: ' + name(t) + ' / ' + name(o));
      }
    }
  }
  const seen = [...document.querySelectorAll('h1, h2, h3, .tile .value, td, .line .what, .row.hot')]
    .filter(e => e.getBoundingClientRect().height > 0).map(e => e.textContent.trim());
  const pre = document.createElement('pre');
  pre.id = 'probe';
  pre.textContent = JSON.stringify({ bad: [...new Set(bad)], seen });
  document.body.append(pre);
});
</script></body>"#;

/// What the probe says about a page in a window of this width.
fn probed(browser: &Path, profile: &Path, file: &Path, width: u32) -> serde_json::Value {
    let args = [format!("--window-size={width},900"), "--dump-dom".into(), format!("file://{}", file.display())];
    let dom = String::from_utf8(chromium(browser, profile, &args)).unwrap();
    let found = dom.split("<pre id=\"probe\">").nth(1).and_then(|t| t.split("</pre>").next()).unwrap();
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&found).unwrap()
}

#[test(slow)]
fn the_report_is_whole_and_laid_out() {
    let (report, problem, gpu) = exploration("gemm:256,256,512,f32", "h200");
    let html = render(&page(&report, &problem, &gpu));
    for elsewhere in ["<script", "<link", "<img", "src=", "@import", "url(", "http:", "https:"] {
        assert!(!html.contains(elsewhere), "the page refers to elsewhere: {elsewhere}");
    }
    let unmeasured = render(&Page::of(&report, &problem, &gpu));
    assert!(unmeasured.contains("nothing on this page was measured on a GPU"));
    assert!(!unmeasured.contains("Best so far"));
    for c in &report.candidates {
        assert!(html.contains(&c.id) && unmeasured.contains(&c.id));
    }

    let browser = browser().unwrap_or_else(|| satune_testing::missing("Chromium", "chromium"));
    let shots = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/report");
    std::fs::create_dir_all(&shots).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // All unfolded, for what is folded cannot be seen.
    let open = html.replace("<details class=\"", "<details open class=\"").replace("open open", "open");
    let probe = folder.path().join("probe.html");
    std::fs::write(&probe, open.replace("</body>", PROBE)).unwrap();
    // Split k, two kernels; L2 and shared memory carry nearly the same.
    let (report, problem, gpu) = exploration("gemm:64,64,16384,f64,TN", "v100");
    let other = folder.path().join("other.html");
    let html_other = render(&Page::of(&report, &problem, &gpu)).replace("</body>", PROBE);
    std::fs::write(&other, html_other.replace("<details class=\"", "<details open class=\"")).unwrap();
    let found = probed(&browser, folder.path(), &other, 1366);
    assert_eq!(found["bad"].as_array().unwrap().len(), 0, "split k: {:#}", found["bad"]);
    for width in [1366, 1024, 390] {
        let found = probed(&browser, folder.path(), &probe, width);
        assert_eq!(found["bad"].as_array().unwrap().len(), 0, "{width} wide: {:#}", found["bad"]);
        let seen: Vec<&str> = found["seen"].as_array().unwrap().iter().filter_map(|v| v.as_str()).collect();
        for text in [
            "gemm:256,256,512,f32",
            "Candidates",
            "Roofline",
            "Best so far",
            "Predicted time by part",
            "Loop tree",
            "Derivation",
            "multiply-add",
            "store C to global memory",
            "registers",
        ] {
            assert!(seen.contains(&text), "{width} wide: `{text}` is not seen among {seen:?}");
        }
        assert!(seen.iter().any(|t| t.contains("fmaf(")), "no line of a hot loop is marked");
    }
    for (name, text, flags) in
        [("report", &html, ""), ("report-open", &open, ""), ("report-dark", &html, "--force-dark-mode")]
    {
        let file = folder.path().join(format!("{name}.html"));
        std::fs::write(&file, text).unwrap();
        let shot = shots.join(format!("{name}.png"));
        let height = if name == "report-open" { 6000 } else { 2200 };
        let mut args = vec![
            format!("--window-size=1366,{height}"),
            format!("--screenshot={}", shot.display()),
            format!("file://{}", file.display()),
        ];
        if !flags.is_empty() {
            args.push(flags.into());
        }
        chromium(&browser, folder.path(), &args);
        let (colours, background) = colours(&shot);
        println!("{}: {colours} colours, background {:.0}%", shot.display(), 100.0 * background);
        assert!(colours > 100 && (0.3..0.97).contains(&background), "{name}: {colours} colours, {background}");
    }
}

/// Different colours of a picture, and the share of the most frequent one.
fn colours(path: &Path) -> (usize, f64) {
    let decoder = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(path).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let mut counts = std::collections::HashMap::new();
    for pixel in pixels[..info.buffer_size()].chunks_exact(info.color_type.samples()) {
        *counts.entry(pixel.to_vec()).or_insert(0_u64) += 1;
    }
    let all: u64 = counts.values().sum();
    (counts.len(), counts.values().copied().max().unwrap_or(0) as f64 / all.max(1) as f64)
}
