//! Pages of plans: what they show, and that they show nothing else.

use std::path::{Path, PathBuf};

use memc_plan::{Action, Plan, PlanFile, Space};
use memc_runtime::RunOptions;

use crate::support::{memc_fails, memc_ok, put, run, skipped, verified};

const MODEL: &str = "models/cnn_bn/training_model.onnx";
const TEXT: &str = "models/gen/gpt_text.dynamic.onnx";
const STEP: [&str; 8] = [
    "--loss",
    "cross-entropy:axis=-1",
    "--optimizer",
    "adamw:lr=0.01",
    "--dim",
    "batch=3",
    "--dim",
    "seq=16,32",
];

fn compile(folder: &Path, model: &str, more: &[&str]) -> PathBuf {
    let plan = folder.join("model.plan");
    let to = plan.display().to_string();
    let effort: &[&str] = if more.contains(&"--effort") { &[] } else { &["--effort", "1"] };
    memc_ok(&[&["compile", model, "-o", &to], effort, more].concat());
    plan
}

fn page(plan: &Path, more: &[&str]) -> String {
    let to = plan.with_extension("html");
    let said = memc_ok(&[&["report", plan.to_str().unwrap(), "-o", to.to_str().unwrap()], more].concat());
    assert!(said.is_empty(), "{said}");
    std::fs::read_to_string(to).unwrap()
}

/// One part of a page.
fn section<'a>(html: &'a str, id: &str) -> &'a str {
    let start = html.find(&format!("<h2 id=\"{id}\"")).unwrap_or_else(|| panic!("no {id}"));
    html[start..].split("</section>").next().unwrap()
}

/// Attributes of the boxes of a part, with their texts.
fn boxes(section: &str) -> Vec<([u64; 4], String)> {
    let attribute = |rect: &str, name: &str| -> u64 {
        rect.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
    };
    let parsed = |rect: &str| {
        let text = rect.split("<title>").nth(1).unwrap().split("</title>").next().unwrap();
        (["x", "y", "width", "height"].map(|name| attribute(rect, name)), text.to_owned())
    };
    section.split("<rect").skip(1).map(parsed).collect()
}

/// Whether every element that begins ends, in the order of markup.
fn require_balanced(html: &str) {
    let before_script = html.split("<script>").next().unwrap();
    let (head, after) = (before_script, html.rsplit("</script>").next().unwrap());
    let mut open: Vec<&str> = Vec::new();
    for text in [head.split("<style>").next().unwrap(), head.split("</style>").nth(1).unwrap(), after] {
        for tag in text.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("no end: {tag}"));
            let name = tag.split([' ', '\n']).next().unwrap();
            let is_alone = tag.ends_with('/') || ["!doctype", "meta", "input"].contains(&name);
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
                None if !is_alone => open.push(name),
                None => {}
            }
        }
        // The end of the style is cut out.
        open.retain(|name| *name != "style");
    }
    assert!(open.is_empty(), "{open:?}");
}

fn require_alone(html: &str) {
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    require_balanced(html);
}

/// Slots that the steps of a plan write, and those that hold a state from step to step.
fn slots(plan: &Plan) -> usize {
    let resident = plan.states.iter().filter(|state| state.resident.space == Space::Dev).count();
    let of = |action: &Action| match action {
        Action::Launch { reads, writes, workspace, .. } => {
            let new = writes.iter().filter(|slice| slice.space == Space::Dev && !reads.contains(slice));
            new.count() + workspace.iter().filter(|slice| slice.space == Space::Dev).count()
        }
        Action::Copy { dst, .. } => usize::from(dst.space == Space::Dev),
        _ => 0,
    };
    resident + plan.body.iter().map(|command| of(&command.action)).sum::<usize>()
}

/// The arena has a box for each slot that the plan writes, no two of which share bytes at a time.
#[test]
fn a_page_shows_every_slot_and_names_every_state() {
    let folder = tempfile::tempdir().unwrap();
    for (model, more) in [
        (MODEL, &["--device", "cpu", "--gpu-mem", "240K"][..]),
        (MODEL, &["--device", "cpu"]),
        ("models/mlp_s/training_model.onnx", &["--device", "toy", "--gpu-mem", "90K"]),
        ("models/bert_tiny_nodrop/training_model.onnx", &["--device", "toy", "--gpu-mem", "600K"]),
    ] {
        let path = compile(folder.path(), model, more);
        let html = page(&path, &[]);
        require_alone(&html);
        assert_eq!(html, page(&path, &[]), "{model}");
        let file = PlanFile::open(&path).unwrap();
        let plan = file.plan();
        let arena = section(&html, "arena");
        assert!(
            arena.contains(&format!("There are {} slots.", slots(plan))),
            "{model} {more:?}: {}",
            slots(plan)
        );
        let boxes = boxes(arena);
        assert!(boxes.len() >= slots(plan), "{model}");
        for (i, ([x, y, w, h], text)) in boxes.iter().enumerate() {
            for ([x2, y2, w2, h2], other) in &boxes[i + 1..] {
                let wide = (x + w).min(x2 + w2).saturating_sub(*x.max(x2));
                let high = (y + h).min(y2 + h2).saturating_sub(*y.max(y2));
                // Figures of boxes are whole.
                assert!(wide <= 2 || high <= 2, "{model}: `{text}` and `{other}`");
            }
        }
        let states = section(&html, "more");
        for state in &plan.states {
            assert!(states.contains(&format!(">{}</th>", state.name)), "{model}: {}", state.name);
            let is_there = boxes.iter().any(|(_, text)| text.starts_with(&format!("{}:", state.name)));
            assert!(is_there || state.resident.space == Space::Host, "{model}: {}", state.name);
        }
    }
}

/// The sums of a page are those that the plan claims and the checker has proved.
#[test]
fn a_page_counts_what_the_plan_claims() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--device", "cpu", "--gpu-mem", "peak*75%", "--no-swap"];
    let path = compile(folder.path(), "models/resnet_tiny/training_model.onnx", &more);
    let html = page(&path, &[]);
    let claims = PlanFile::open(&path).unwrap().plan().meta.claims;
    assert!(claims.recompute_ops > 0, "{claims:?}");
    let lanes = boxes(section(&html, "lanes"));
    let mut again: Vec<&str> =
        lanes.iter().map(|(_, text)| text.as_str()).filter(|text| text.contains(", recomputed, ")).collect();
    again.sort_unstable();
    again.dedup();
    assert_eq!(again.len() as u64, claims.recompute_ops);
    let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
    assert!(html.contains(&format!("a step of {}. Unplanned", ms(claims.step_ns))));
    let decisions = section(&html, "decisions");
    assert!(decisions.contains(&format!(
        ">{}</td></tr>\n<tr><th scope=\"row\">swap and recompute",
        ms(claims.recompute_ns)
    )));
    for part in [
        "weights",
        "gradients",
        "optimizer state",
        "activations",
        "workspace",
        "reserve",
        "free",
        "not taken",
    ] {
        assert!(section(&html, "budget").contains(&format!("</i>{part}</th>")), "{part}");
    }
}

/// Text of a plan is text on the page, whatever is in it.
#[test]
fn names_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), MODEL, &["--device", "cpu", "--gpu-mem", "240K"]);
    let mut file = PlanFile::open(&path).unwrap();
    let mut plan = file.plan().clone();
    plan.meta.model = "</title><script>alert(1)</script> & {{script}}".into();
    plan.meta.producer = "<img src=x>".into();
    for command in &mut plan.body {
        command.label = format!("<b>&\"'{}", command.label);
    }
    let changed = folder.path().join("changed.plan");
    memc_plan::write(&changed, &plan, &mut file, &|| false).unwrap();
    let html = page(&changed, &[]);
    require_balanced(&html);
    assert!(!html.contains("alert(1)</script>") && !html.contains("<b>&") && !html.contains("<img"));
    let shown = "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; {{script}}";
    assert_eq!(html.matches(shown).count(), 2);
    assert_eq!(html.matches("<script>").count(), 1);
    assert!(html.contains("&lt;b&gt;&amp;&quot;&#39;"));
}

/// A plan with buckets shows the one that needs most, or the one asked for.
#[test]
fn a_page_is_of_one_bucket() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), TEXT, &STEP);
    let (largest, other) = (page(&path, &[]), page(&path, &["--bucket", "seq=16"]));
    assert!(largest.contains("seq=32</b>") && other.contains("seq=16</b>"));
    assert_eq!(largest, page(&path, &["--bucket", "seq=32"]));
    require_alone(&largest);
    let plan = path.to_str().unwrap();
    let to = folder.path().join("no.html");
    let said = memc_fails(2, &["report", plan, "--bucket", "seq=99", "-o", to.to_str().unwrap()]);
    assert!(said.contains("`seq=99`") && said.contains("seq=16") && said.contains("seq=32"), "{said}");
    assert!(!to.exists());
}

/// A plan of several jobs has the tensors of all of them.
#[test]
fn a_page_has_all_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("jobs.plan");
    let second = format!("b={}", "models/mlp_s/training_model.onnx");
    let first = format!("a={MODEL}");
    let to = plan.to_str().unwrap();
    memc_ok(&["compile", "--job", &first, "--job", &second, "--device", "cpu", "--effort", "1", "-o", to]);
    let html = page(&plan, &[]);
    require_alone(&html);
    let arena = section(&html, "arena");
    assert!(arena.contains(">a/fc.weight:") && arena.contains(">b/fc1.weight:"));
}

/// Errors say what is wrong with which file, and leave no page.
#[test]
fn pages_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), MODEL, &["--device", "cpu", "--gpu-mem", "240K"]);
    let plan = path.to_str().unwrap();
    let to = folder.path().join("page.html").display().to_string();
    let said = memc_fails(7, &["report", MODEL, "-o", &to]);
    assert!(said.contains(MODEL) && said.contains("memc compile"), "{said}");
    let said = memc_fails(74, &["report", plan, "-o", "/no/such/folder/page.html"]);
    assert!(said.contains("cannot write `/no/such/folder/page.html`"), "{said}");
    let said = memc_fails(2, &["report", plan, "-o", plan]);
    assert!(said.contains(plan), "{said}");
    let said = memc_fails(2, &["report", plan, "--bucket", "seq=1", "-o", &to]);
    assert!(said.contains("no buckets"), "{said}");
    let said = memc_fails(2, &["report", plan, "--device", "h1000", "-o", &to]);
    assert!(said.contains("`h1000`"), "{said}");
    let mut file = PlanFile::open(&path).unwrap();
    let mut wrong = file.plan().clone();
    let copy = wrong.body.iter().position(|command| matches!(command.action, Action::Copy { .. })).unwrap();
    wrong.body.remove(copy);
    let changed = put(folder.path(), "wrong.plan", b"");
    memc_plan::write(&changed, &wrong, &mut file, &|| false).unwrap();
    let said = memc_fails(7, &["report", changed.to_str().unwrap(), "-o", &to]);
    assert!(said.contains("wrong.plan") && said.contains("memc check"), "{said}");
    assert!(!Path::new(&to).exists());
}

#[test]
fn a_measured_step_is_drawn_beside_the_modelled_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), MODEL, &["--gpu-mem", "peak*80%"]);
    let trace = folder.path().join("step.json");
    run(&path, folder.path(), RunOptions { trace: Some(trace.clone()), verify: false, ..verified(2, 1) });
    let (plan, trace) = (path.to_str().unwrap(), trace.display().to_string());
    let html = page(&path, &["--trace", &trace]);
    require_balanced(&html);
    let (lanes, measured) = (section(&html, "lanes"), section(&html, "measured"));
    let texts = |section: &str| -> std::collections::BTreeSet<String> {
        let name = |text: &str| text.split(", from ").next().unwrap().to_owned();
        boxes(section).iter().map(|(_, text)| name(text)).filter(|name| !name.starts_with("stall")).collect()
    };
    assert_eq!(texts(lanes), texts(measured), "each command is drawn twice");
    assert!(measured.contains("Measured on cpu: a step of"), "{measured}");
    // A modelled trace is one too, and its times are those of the plan.
    memc_ok(&["trace", plan, "-o", &trace]);
    let html = page(&path, &["--trace", &trace]);
    assert!(section(&html, "measured").contains("100.0 %"), "{html}");
    let to = folder.path().join("other.html").display().to_string();
    memc_fails(2, &["report", plan, "-o", &to, "--trace", "README.md"]);
    // The same commands in another order.
    let other = compile(folder.path(), MODEL, &["--gpu-mem", "peak*55%"]);
    memc_fails(2, &["report", other.to_str().unwrap(), "-o", &to, "--trace", &trace]);
}

/// A browser that draws without a screen: `MEMC_BROWSER`, or one of Chromium's on the path.
#[allow(clippy::disallowed_methods, reason = "the machine says where its browser is")]
fn browser() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("MEMC_BROWSER") {
        return Some(named.into());
    }
    let names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).chain(["/usr/lib/chromium".into()]).collect();
    let all = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    all.into_iter().find(|file| file.is_file())
}

/// A page can be sent in a mail. Its pictures have a box for each tensor and each command.
#[test]
fn a_page_of_resnet_50_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let step = ["--dim", "batch=64", "--loss", "cross-entropy", "--optimizer", "momentum"];
    let more = ["--device", "v100-16g", "--gpu-mem", "peak*60%", "--effort", "0"];
    let path = compile(folder.path(), "models/zoo/resnet50.onnx", &[&step[..], &more[..]].concat());
    let html = page(&path, &[]);
    assert!(html.len() < 2_000_000, "{} bytes", html.len());
    assert!(boxes(section(&html, "arena")).len() > 500);
}

/// Opens a page in a browser, where its script must run without an error, and returns the output.
fn opened(browser: &Path, html: &Path, what: &[&str]) -> String {
    let profile = html.with_file_name("profile");
    let output = std::process::Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg("--window-size=1200,900")
        .args(what)
        .arg(format!("file://{}", html.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("CONSOLE"), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Presses keys and searches as a reader does, and writes what the page says to the element `heard`.
const READER: &str = "<script>
const svg = document.getElementById('arena').closest('section').querySelector('svg.boxes');
const { said } = pictures.find((picture) => picture.svg === svg), heard = [];
svg.focus();
heard.push(String(document.activeElement === svg));
for (const key of ['Home', 'ArrowRight', 'ArrowLeft', 'End', 'ArrowUp', 'Escape']) {
  svg.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
  heard.push(said.textContent);
}
const find = document.getElementById('find');
find.value = 'fc.weight';
find.dispatchEvent(new Event('input'));
heard.push(count.textContent);
const out = document.createElement('pre');
out.id = 'heard';
out.textContent = heard.join('|');
document.body.append(out);
</script>";

/// A page opens in a browser: it asks for nothing, something is drawn, and it is read by keyboard.
#[test]
fn a_browser_opens_a_page() {
    let Some(browser) = browser() else {
        return skipped("a page in a browser (MEMC_BROWSER names one of Chromium's)");
    };
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), MODEL, &["--gpu-mem", "peak*80%"]);
    let text = page(&path, &[]);
    let html = path.with_extension("html");
    let dom = opened(&browser, &html, &["--dump-dom"]);
    let tools = dom.split("class=\"tools\"").nth(1).unwrap().split('>').next().unwrap();
    assert!(!tools.contains("hidden"), "the script shows the tools: {tools}");
    for attribute in ["src=\"", "href=\"http", "url("] {
        assert!(!dom.contains(attribute), "the page asks for {attribute}");
    }
    let picture = folder.path().join("page.png");
    opened(&browser, &html, &[&format!("--screenshot={}", picture.display())]);
    let bytes = std::fs::read(picture).unwrap();
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 20_000, "{} bytes", bytes.len());
    let read =
        put(folder.path(), "read.html", text.replace("</body>", &format!("{READER}</body>")).as_bytes());
    let dom = opened(&browser, &read, &["--dump-dom"]);
    let heard = dom.split("<pre id=\"heard\">").nth(1).unwrap().split("</pre>").next().unwrap();
    let heard: Vec<&str> = heard.split('|').collect();
    let [focused, first, second, back, last, above, none, found] = heard[..] else { panic!("{heard:?}") };
    assert_eq!(focused, "true", "a picture takes the focus");
    assert!(!first.is_empty() && first == back && first != second && first != last, "{heard:?}");
    assert!(!above.is_empty() && none.is_empty(), "{heard:?}");
    assert!(found.ends_with(" boxes") && !found.starts_with('0'), "{heard:?}");
}
