//! `why-not` about schedules on tensor cores.
use crate::why_not::ask;
use satune_ir::term::Schedule;
use serde_json::Value;

const GEMM: &str = "gemm:512,384,512,bf16,TN";

fn lines(answer: &Value) -> Vec<String> {
    serde_json::from_value(answer["asked"]["schedule"].clone()).unwrap()
}

/// Who brings the tiles is a word, where rows are no multiples of 16 bytes: the best of those that copy is one, and said so.
#[test(slow)]
fn who_brings_tiles_is_asked_about() {
    let answers = ask("gemm:256,128,131,f16", &["by threads", "TMA", "--gpu", "h200"]);
    for (answer, by_threads) in answers.iter().zip([true, false]) {
        assert_eq!(answer["in_space"], true, "{answer:#}");
        let Ok(Schedule::Wgmma(plan)) = serde_json::from_value(answer["asked"]["plan"].clone()) else {
            panic!("{answer:#}")
        };
        assert_eq!(plan.by_threads, by_threads);
        assert_eq!(lines(answer).join(" ").contains("by threads"), by_threads);
    }
}

/// The best completion of a few words is described in words that ask for just it, and is a plan that is one in the space.
#[test(slow)]
fn answers_are_questions() {
    for (gpu, questions) in [
        ("h200", vec!["wgmma", "wgmma, 2 consumers in turn", "wgmma, stream-k", "mma.sync, warp 64x32"]),
        ("a100", vec!["mma.sync", "tile 64x96x64 stages 4, warp 32x48, A: copies of 8 bytes, rotated in spans of 4"]),
    ] {
        let answers = ask(GEMM, &[&questions[..], &["--gpu", gpu]].concat());
        let folder = tempfile::tempdir().unwrap();
        let mut again: Vec<String> = answers.iter().map(|a| lines(a).join("\n")).collect();
        for (i, answer) in answers.iter().enumerate() {
            let path = folder.path().join(format!("{i}.json"));
            std::fs::write(&path, answer["asked"]["plan"].to_string()).unwrap();
            again.extend(["--plan".into(), path.to_str().unwrap().into()]);
        }
        again.extend(["--gpu".into(), gpu.into()]);
        let again = ask(GEMM, &again.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(again.len(), 2 * answers.len());
        for (i, second) in again.iter().enumerate() {
            let first = &answers[i % answers.len()];
            assert_eq!(second["in_space"], true, "{first:#} {second:#}");
            assert_eq!(second["asked"]["predicted_ms"], first["asked"]["predicted_ms"], "{first:#} {second:#}");
            assert_eq!(lines(second), lines(first));
            let plan = |a: &Value| serde_json::from_value::<Schedule>(a["asked"]["plan"].clone()).unwrap();
            if i >= answers.len() {
                assert_eq!((second["members"].as_str(), plan(second)), (Some("1"), plan(first)));
            }
        }
    }
}

#[test(slow)]
fn a_question_that_no_rule_makes_names_the_condition_with_its_numbers() {
    let cases = [
        ("wgmma, tile 96x128", "block tile m is 96; it must be a positive multiple of 64"),
        ("wgmma, tile 256x256, consumers 2", "256 accumulators per thread; at most 200 fit"),
        ("wgmma, tile 256x128, 8 stages", "bytes of shared memory per block; at most 232448"),
        ("wgmma, tile 128x128, cluster 2x1, stream-k", "the blocks of a cluster would have different steps"),
        ("wgmma, tile 128x128, cluster 1x2", "clusters of 1 x 2 blocks: clusters do not divide the tiles"),
        (
            "wgmma, tile 64x16, C by shared memory and TMA",
            "the TMA stores boxes of 128 bytes, and a tile has whole ones",
        ),
        ("wgmma, tile 64x64x32", "k tile 32 (the menu is [64, 128])"),
        ("wgmma, consumers 5", "consumers 5 (the menu is [1, 2, 3])"),
        ("by threads, tile 128x128", "the TMA brings both operands as they are in memory"),
        ("by threads, cluster 2x1", "cannot copy the tiles: the TMA brings what a cluster shares"),
        ("by threads, 2 stages", "a ring has three tiles at least"),
        ("wgmma, grid 100", "blocks of a fixed grid 100 (the menu is [132])"),
        ("wgmma, tile 100x64", "block tile along m 100 (the menu is ["),
        ("mma.sync, tile 128x128, warp 48x64", "block tile m is 128; it must be a positive multiple of 48"),
        ("mma.sync, tile 256x256x64, 8 stages", "bytes of shared memory per block; at most 232448"),
        ("mma.sync, tile 256x256, warp 128x128", "registers for a thread at least; 248 are left to each"),
        ("mma.sync, warp 64x64, tile 128x128, resident 4", "registers for a thread at least; 128 are left to each"),
        (
            "mma.sync, tile 192x256x64, 4 stages, A: rows padded",
            "room for both operands' rows so padded: 237568 bytes of shared memory per block; at most 232448",
        ),
        ("mma.sync, waits for 3 more, 4 stages", "it cannot wait for more tiles than are under way"),
        ("mma.sync, C by way of shared memory", "its type is not the operands' 16-bit type"),
        ("mma.sync, k 32, A: at step 3", "copies begin at a step before the last one"),
        ("mma.sync, A: ldmatrix x3", "matrices per ldmatrix 3 (the menu is [4, 2, 1])"),
        ("mma.sync, warp 64x64, tile 128x128, threads 256", "make 128 threads of the block tile, not 256"),
        ("mma.sync, split 3", "split 3 does not divide k = 512"),
        ("registers 8x8, cluster 2x1", "words of different kinds of schedules"),
        ("tile 96x512", "block tile along n 512 (the menu is ["),
    ];
    let questions: Vec<&str> = cases.iter().map(|c| c.0).collect();
    for ((question, part), answer) in cases.iter().zip(ask(GEMM, &questions)) {
        assert_eq!(answer["in_space"], false, "{question}");
        let reasons = answer["reasons"].to_string();
        assert!(reasons.contains(part), "{question}: {reasons}");
    }
    for (program, gpu, question, part) in [
        (GEMM, "a100", "wgmma", "the GPU has no wgmma"),
        (GEMM, "a100", "mma.sync F16k8", "mma.sync F16k8: it is offered on sm_75 to sm_79"),
        ("gemm:512,384,512,f16,NT", "a100", "mma.sync Bf16", "mma.sync Bf16 does not multiply F16"),
        (
            "gemm:512,384,512,f16,NT,sum=f16",
            "a100",
            "mma.sync F16",
            "it adds up in float32, and the program in float16",
        ),
        ("gemm:512,384,512,f16", "v100", "wmma m16n16k16 F16 with f16 sums", "it adds up in float16, and the program"),
        ("gemm:512,384,512,bf16,NT", "t4", "mma.sync", "the GPU has no mma.sync of BF16"),
        ("gemm:512,384,512,e4m3,NT", "h200", "mma.sync", "the GPU has no mma.sync of F8E4M3"),
        ("gemm:512,384,512,f32", "h200", "mma.sync", "rounded to tf32 only where the program says so"),
        ("gemm:512,384,512,f64", "h200", "mma.sync", "tensor cores do not take this contraction"),
        ("conv2d:2,9,8,40,32,3,3,f16,pad=1", "h200", "wgmma, TMA", "its channels are no multiple of 128 bytes"),
    ] {
        let answer = &ask(program, &[question, "--gpu", gpu])[0];
        assert!(answer["reasons"].to_string().contains(part), "{question}: {answer:#}");
    }
}

/// A schedule that loses is told by whom and in which part of the time, whatever kinds the two are of.
#[test]
fn what_loses_is_dominated_by_the_best_of_all_kinds() {
    let answers = ask(GEMM, &["cores, block 64x64, k 16", "mma.sync, tile 16x16", "tile 128x128x64"]);
    for answer in &answers {
        assert_eq!(answer["in_space"], true, "{answer:#}");
        let ms = |which: &str| answer[which]["predicted_ms"].as_f64().unwrap();
        assert!(ms("asked") >= ms("best"));
        assert_eq!(answer["rank"] == 1, answer["dominated_in"].is_null(), "{answer:#}");
    }
    let kind = |i: usize, which: &str| serde_json::from_value::<Schedule>(answers[i][which]["plan"].clone()).unwrap();
    assert!(matches!(kind(0, "asked"), Schedule::Cores(_)) && !matches!(kind(0, "best"), Schedule::Cores(_)));
    assert!(matches!(kind(1, "asked"), Schedule::Mma(_)));
    // What no word says is left to the best: tensor cores.
    assert!(!matches!(kind(2, "asked"), Schedule::Cores(_)));
}
