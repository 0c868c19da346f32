//! Programs that normalise and update a tensor in place, larger than what is executed whole: blocks that read, change and read
//! it again, in any order, along either axis.
use crate::support::{executed, samples, script, seed};
use crate::why_not::ask;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;

/// A program on one tensor in place: maps and reductions of it, one after the other.
struct InPlace {
    dims: [i64; 2],
    dtype: &'static str,
    /// Whether reductions leave a value per row.
    rows: bool,
    body: String,
    sums: usize,
}

impl InPlace {
    fn kept(&self) -> &'static str {
        ["vk", "vi"][usize::from(self.rows)]
    }

    fn block(&mut self, name: &str, axes: &str, store: &str) {
        let [n, m] = self.dims;
        self.body += &format!(
            "for i, k in T.grid({n}, {m}):\n    with T.sblock(\"{name}\"):\n        vi, vk = T.axis.remap(\"{axes}\", [i, k])\n{store}"
        );
    }

    /// Returns what later blocks call its result.
    fn reduce(&mut self, first: &str, update: &str) -> String {
        let buffer = format!("S{}", self.sums);
        self.sums += 1;
        let at = format!("{buffer}[{}]", self.kept());
        self.body = format!(
            "{buffer} = T.alloc_buffer(({},), \"{}\")\n{}",
            self.dims[usize::from(!self.rows)],
            self.dtype,
            self.body
        );
        let update = update.replace("{S}", &at);
        let store = format!("        with T.init():\n            {at} = {first}\n        {at} = {update}\n");
        self.block(&buffer, ["RS", "SR"][usize::from(self.rows)], &store);
        at
    }

    fn map(&mut self, name: &str, value: &str) {
        self.block(name, "SS", &format!("        X[vi, vk] = {value}\n"));
    }

    fn random(r: &mut StdRng) -> InPlace {
        let dims = [*[7, 64, 200, 1000].choose(r).unwrap(), *[5, 128, 333, 1024].choose(r).unwrap()];
        let dtype = *["float32", "float64", "int32"].choose(r).unwrap();
        let mut it = InPlace { dims, dtype, rows: r.gen_range(0..3) > 0, body: String::new(), sums: 0 };
        let one = format!("T.{dtype}(1)");
        for step in 0..r.gen_range(2..=4) {
            let (name, last) = (format!("X{step}"), format!("S{}[{}]", it.sums.wrapping_sub(1), it.kept()));
            match r.gen_range(0..4) {
                0 => it.map(&name, &format!("X[vi, vk] + {one}")),
                1 if it.sums > 0 => it.map(&name, &format!("X[vi, vk] - {last}")),
                2 if it.sums > 0 => it.map(&name, &format!("T.max(X[vi, vk], {last})")),
                3 => drop(it.reduce(&format!("T.min_value(\"{dtype}\")"), "T.max({S}, X[vi, vk])")),
                _ => drop(it.reduce(&format!("T.{dtype}(0)"), "{S} + X[vi, vk]")),
            }
        }
        let last = it.reduce(&format!("T.{dtype}(0)"), "{S} + X[vi, vk]");
        it.map("last", &format!("X[vi, vk] - {last}"));
        it
    }

    /// Softmax, in place.
    fn softmax(dims: [i64; 2], rows: bool) -> InPlace {
        let mut it = InPlace { dims, dtype: "float32", rows, body: String::new(), sums: 0 };
        let most = it.reduce("T.min_value(\"float32\")", "T.max({S}, X[vi, vk])");
        it.map("E", &format!("T.exp(X[vi, vk] - {most})"));
        let sum = it.reduce("T.float32(0)", "{S} + X[vi, vk]");
        it.map("Y", &format!("X[vi, vk] / {sum}"));
        it
    }

    fn text(&self) -> String {
        script(&format!("X: {}, {} {}", self.dims[0], self.dims[1], self.dtype), &self.body)
    }
}

/// Its reductions have teams of threads, as they have where nothing is in place: four kernels take hardly more than four sums of
/// rows.
#[test]
fn softmax_in_place_is_right_and_its_reductions_have_a_team_per_row() {
    let report = executed(&InPlace::softmax([256, 512], true).text(), "h200", 3);
    let sum = executed(&satune::streaming::script("rowsum:256,512,f32").unwrap(), "h200", 1);
    let ms = |report: &serde_json::Value| report["candidates"][0]["predicted_ms"].as_f64().unwrap();
    assert!(ms(&report) < 1.5 * 4.0 * ms(&sum), "{} {}", ms(&report), ms(&sum));
    for candidate in report["candidates"].as_array().unwrap() {
        let kernels = candidate["plan"]["kernels"].as_array().unwrap();
        let team = |block| {
            let own = kernels.iter().find(|k| k["Row"]["blocks"] == json!([block]));
            own.is_some_and(|k| k["Row"]["threads"].as_i64() >= Some(32))
        };
        assert!(kernels.len() == 4 && team("S0") && team("S1"), "{candidate}");
    }
    assert_eq!(report["proved_optimal"], true);
}

/// `why-not` knows these kernels, and says what keeps others out.
#[test]
fn kernels_of_programs_in_place_are_asked_about() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("softmax.py");
    std::fs::write(&file, InPlace::softmax([256, 512], true).text()).unwrap();
    for (question, reason) in [
        ("S0: as rows, S0: threads 256, S0: rows 2, S1: unroll S1 yes, S1: threads 128", None),
        ("S0: vector 4", Some("accesses of 4 elements are copies to registers")),
        ("Y: vector 4", Some("accesses of 4 elements are copies to registers")),
        ("S0: as plain", Some("no block of the program is left to plain kernels")),
        ("kernel S0+E", Some("writes what an earlier one reads, so that none moves to another")),
    ] {
        let answer = ask(file.to_str().unwrap(), &[question]).remove(0);
        assert_eq!(answer["in_space"], reason.is_none(), "{question}: {answer:#}");
        assert!(answer["reasons"].to_string().contains(reason.unwrap_or_default()), "{question}: {answer:#}");
    }
}

#[test(slow)]
fn random_programs_in_place_are_right() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..samples(3) {
        let it = InPlace::random(&mut rng);
        executed(&it.text(), ["h200", "a100", "t4"].choose(&mut rng).unwrap(), 2);
    }
}

/// Tensors and a value per row; maps, updates and sums of these, in any order.
#[test]
fn random_updates_of_several_buffers_are_right() {
    let mut rng = StdRng::seed_from_u64(seed());
    let r = &mut rng;
    for _ in 0..samples(3) {
        let [m, n] = [*[4, 16, 33].choose(r).unwrap(), *[8, 64, 100, 257].choose(r).unwrap()];
        // (name, whether it is a tensor)
        let mut buffers: Vec<(String, bool)> = vec![("A".into(), true), ("D".into(), true), ("R".into(), false)];
        let shape = |whole: bool| if whole { format!("{m}, {n}") } else { format!("{m},") };
        let mut seen: Vec<String> =
            buffers.iter().map(|(b, whole)| format!("{b}: {} float32", shape(*whole))).collect();
        let (mut own, mut body) = (String::new(), String::new());
        for number in 0..r.gen_range(2..=6) {
            let value = |(name, whole): &(String, bool)| format!("{name}[{}]", if *whole { "vi, vj" } else { "vi" });
            let of = |r: &mut StdRng, whole: bool| {
                value(buffers.iter().filter(|b| b.1 == whole).collect::<Vec<_>>().choose(r).unwrap())
            };
            let [tensor, other] = [0; 2].map(|_| of(r, true));
            let [row, any] = [of(r, false), value(buffers.choose(r).unwrap())];
            let new = (format!("X{number}"), r.gen_bool(0.5));
            let made = value(&new);
            let (init, store, whole) = match r.gen_range(0..6) {
                0 => (None, format!("{tensor} = {tensor} * T.float32(0.5) + {any}"), true),
                1 => (None, format!("{tensor} = T.max({tensor}, {other}) - {any}"), true),
                2 => (None, format!("{row} = {row} * T.float32(0.5) + {}", of(r, false)), false),
                3 => (None, format!("{row} = {row} + {tensor}"), true),
                _ if new.1 => (None, format!("{made} = {tensor} + {any} * T.float32(0.25)"), true),
                _ => (Some(format!("{made} = T.float32(0)")), format!("{made} = {made} + {tensor}"), true),
            };
            let sums = whole && !store.split(" = ").next().unwrap().contains("vj");
            let axes = if sums { "SR" } else { "SS" };
            let loops = match whole {
                true => format!("for i, j in T.grid({m}, {n}):\n    with T.sblock(\"b{number}\"):\n        vi, vj = T.axis.remap(\"{axes}\", [i, j])\n"),
                false => format!("for i in range({m}):\n    with T.sblock(\"b{number}\"):\n        vi = T.axis.spatial({m}, i)\n"),
            };
            let init = init.map_or_else(String::new, |init| format!("        with T.init():\n            {init}\n"));
            body += &format!("{loops}{init}        {store}\n");
            if store.starts_with(&made) {
                match r.gen_bool(0.4) {
                    true => seen.push(format!("{}: {} float32", new.0, shape(new.1))),
                    false => own += &format!("{} = T.sblock_alloc_buffer(({}), \"float32\")\n", new.0, shape(new.1)),
                }
                buffers.push(new);
            }
        }
        executed(&script(&seen.join("; "), &(own + &body)), ["h200", "a100", "t4"].choose(r).unwrap(), 2);
    }
}
