//! What is reused, and that it changes nothing: every answer equals a cold run's.

mod oracle;

use lily_engine::{Engine, EngineConfig, Request};
use oracle::*;

/// Runs a prompt and checks it against a cold run; gives (cached, answer).
fn check(engine: &Engine, prompt: &[u32], branch_points: &[usize]) -> (usize, Vec<u32>) {
    let request = || Request { branch_points: branch_points.to_vec(), ..greedy(prompt.to_vec(), 12) };
    let answer = run(engine, request());
    settle(engine);
    assert_eq!(answer.ids, cold(request()).ids);
    (answer.usage.cached, answer.ids)
}

fn join(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

#[test]
fn a_conversation_with_thinking_kept_computes_only_the_new_turn() {
    let (engine, control) = engine();
    let mut history = tokens(1, 700);
    for turn in 0..10 {
        control.lock().unwrap().rows = 0;
        let (cached, answer) = check(&engine, &history, &[history.len() - 4]);
        if turn > 0 {
            // Slack: the last token of the answer, which nothing computed after it was chosen.
            assert_eq!(history.len() - cached, 61 + 1);
        }
        assert_eq!(control.lock().unwrap().rows, history.len() - cached + 11);
        history = join(&[&history, &answer, &tokens(100 + turn, 61)]);
    }
}

#[test]
fn a_conversation_with_thinking_stripped_computes_the_last_answer_and_the_new_turn() {
    let (engine, _) = engine();
    let generation_prompt = tokens(2, 4);
    let mut history = tokens(3, 700);
    let mut known = 0;
    for turn in 0..8 {
        let prompt = join(&[&history, &generation_prompt]);
        let (cached, answer) = check(&engine, &prompt, &[700, history.len()]);
        if turn > 0 {
            assert_eq!(cached, known, "resumes where the last user turn ended");
        }
        known = history.len();
        // The next prompt has the answer without the block the model wrote first.
        history = join(&[&history, &answer[5..], &tokens(200 + turn, 50)]);
    }
}

#[test]
fn alternating_the_think_block_by_turn_resumes_at_the_end_of_the_user_turn() {
    let (engine, _) = engine();
    let mut history = tokens(4, 400);
    for turn in 0..6u64 {
        let generation_prompt = tokens(5 + turn % 2, 5);
        let prompt = join(&[&history, &generation_prompt]);
        let (cached, answer) = check(&engine, &prompt, &[history.len()]);
        assert!(turn == 0 || cached >= 400, "{cached}");
        let (again, _) = check(&engine, &join(&[&history, &tokens(5 + (turn + 1) % 2, 5)]), &[history.len()]);
        assert_eq!(again, history.len());
        history = join(&[&history, &answer, &tokens(300 + turn, 40)]);
    }
}

#[test]
fn two_users_share_a_system_prompt() {
    let (engine, _) = engine();
    let system = tokens(7, 2000);
    for user in 0..6 {
        let prompt = join(&[&system, &tokens(400 + user, 150)]);
        let (cached, _) = check(&engine, &prompt, &[2000]);
        assert_eq!(cached, if user == 0 { 0 } else { 2000 });
    }
}

#[test]
fn plain_token_lists_hit_where_two_earlier_ones_parted() {
    for a_len in [300, 256, 255, 257, 512, 1000] {
        let (engine, _) = engine();
        let a = tokens(8, a_len);
        let (x, y, z) = (tokens(9, 100), tokens(10, 130), tokens(11, 90));
        assert_eq!(check(&engine, &join(&[&a, &x]), &[]).0, 0);
        assert_eq!(check(&engine, &join(&[&a, &y]), &[]).0, 0, "nothing said that they would part here");
        assert_eq!(check(&engine, &join(&[&a, &x]), &[]).0, a_len + 99);
        assert_eq!(check(&engine, &join(&[&a, &z]), &[]).0, a_len);
        assert_eq!(check(&engine, &join(&[&a, &y]), &[]).0, a_len + 129);
    }
}

#[test]
fn an_edit_in_the_middle_resumes_before_it() {
    let (engine, _) = engine();
    let turns: Vec<Vec<u32>> = (0..6).map(|i| tokens(500 + i, 200)).collect();
    let mut ends = Vec::new();
    for n in 1..=6 {
        let prompt = turns[..n].concat();
        ends.push(prompt.len());
        check(&engine, &prompt, &ends);
    }
    let edited = join(&[&turns[..3].concat(), &tokens(600, 180), &turns[4..].concat()]);
    let (cached, _) = check(&engine, &edited, &[]);
    assert_eq!(cached, 600);
    let (cached, _) = check(&engine, &turns.concat(), &[]);
    assert!(cached >= 1000, "the unedited history is still there: {cached}");
}

#[test]
fn a_small_budget_evicts_the_oldest_and_stays_within_it() {
    // Room for about three prompts of two pages with two snapshots each.
    let cache_bytes = 6 * PAGE_BYTES + 8 * SLOT_BYTES;
    let (engine, _) = engine_with(capacity(), EngineConfig { cache_bytes, ..config() });
    for i in 0..20 {
        check(&engine, &tokens(700 + i, 400), &[]);
        let m = engine.metrics();
        assert!(m.cache_bytes <= cache_bytes, "{m:?}");
        assert_eq!(m.pages_used * PAGE_BYTES, m.cache_bytes - m.cache_snapshots * SLOT_BYTES);
    }
    assert!(engine.metrics().cache_evictions > 10);
    assert!(check(&engine, &tokens(719, 400), &[]).0 > 0, "the last is there");
    assert_eq!(check(&engine, &tokens(700, 400), &[]).0, 0, "the first is not");
    // A prompt that cannot fit is served and not kept.
    check(&engine, &tokens(800, 3000), &[]);
    assert!(engine.metrics().cache_bytes <= cache_bytes);
}

#[test]
fn few_slots_and_few_pages_are_enough() {
    let capacity = lily_model::device::Capacity { slots: 2, pages: 6, ..capacity() };
    let (engine, _) = engine_with(capacity, EngineConfig { parallel: 1, ..config() });
    let a = tokens(12, 600);
    for i in 0..12 {
        let prompt = join(&[&a[..300 + 20 * (i as usize % 5)], &tokens(900 + i % 3, 200)]);
        check(&engine, &prompt, &[300]);
        assert!(engine.metrics().cache_snapshots <= 1);
    }
    let (engine, _) =
        engine_with(lily_model::device::Capacity { slots: 1, ..capacity }, EngineConfig { parallel: 1, ..config() });
    check(&engine, &a, &[]);
    assert_eq!(check(&engine, &a, &[]).0, 0, "no slot is left for a cache");
}

#[test]
fn a_cancelled_prompt_is_resumed_by_the_next_attempt() {
    let (engine, control) = engine();
    control.lock().unwrap().row_time = std::time::Duration::from_micros(100);
    let prompt = tokens(13, 3000);
    let mut generation = engine.submit(greedy(prompt.clone(), 12)).unwrap();
    let mut reached = 0;
    while reached < 1000 {
        if let Some(lily_engine::Event::PrefillProgress { done, .. }) = generation.recv_blocking() {
            reached = done;
        }
    }
    drop(generation);
    settle(&engine);
    let (cached, _) = check(&engine, &prompt, &[]);
    assert!(cached >= reached, "{cached} of {reached}");
}

#[test]
fn a_prompt_read_ahead_costs_the_next_request_one_token() {
    let (engine, control) = engine();
    let prompt = tokens(14, 500);
    let ahead = run(&engine, greedy(prompt.clone(), 0));
    assert!(ahead.ids.is_empty());
    settle(&engine);
    control.lock().unwrap().rows = 0;
    let (cached, _) = check(&engine, &join(&[&prompt, &tokens(15, 3)]), &[]);
    assert_eq!((cached, control.lock().unwrap().rows), (500, 3 + 11));
}

#[test]
fn the_disk_tier_survives_a_restart_and_nothing_broken_is_used() {
    let dir = std::env::temp_dir().join(format!("lily-engine-cache-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let config = EngineConfig { cache_dir: Some(dir.clone()), ..config() };
    let prompts: Vec<Vec<u32>> = (0..3).map(|i| join(&[&tokens(16, 600), &tokens(950 + i, 200)])).collect();
    let fill = |drain: bool| {
        let (engine, _) = engine_with(capacity(), config.clone());
        prompts.iter().for_each(|p| drop(check(&engine, p, &[600])));
        if drain {
            engine.drain(std::time::Duration::from_secs(10));
        }
    };
    let cached = || -> Vec<usize> {
        let (engine, _) = engine_with(capacity(), config.clone());
        prompts.iter().map(|p| check(&engine, p, &[600]).0).collect()
    };
    for drain in [true, false] {
        let _ = std::fs::remove_dir_all(&dir);
        fill(drain);
        assert_eq!(cached(), [799, 799, 799], "drained: {drain}");
    }
    let files = || -> Vec<_> {
        let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        files
    };
    // Each file in turn: a flipped bit, a cut, nothing.
    for (i, file) in files().iter().enumerate() {
        let mut bytes = std::fs::read(file).unwrap();
        match i % 3 {
            0 => {
                let at = bytes.len() * (i % 7 + 1) / 9;
                bytes[at] ^= 1 << (i % 8);
            }
            1 => bytes.truncate(bytes.len() / 2),
            _ => bytes.clear(),
        }
        std::fs::write(file, bytes).unwrap();
    }
    assert_eq!(cached(), [0, 600, 600], "nothing broken is used; what was kept since is");
    // Another model's files are not taken, and not deleted.
    let _ = std::fs::remove_dir_all(&dir);
    fill(true);
    let before = files().len();
    let control = Shared::default();
    let parts = lily_engine::EngineParts {
        device: Box::new(Oracle::new(capacity(), control.clone())),
        tokenizer: tokenizer(),
        defaults: lily_engine::GenerationDefaults {
            eos_token_ids: vec![EOS],
            sampling: lily_engine::SamplingParams::default(),
        },
        vocab_size: VOCAB,
        slot_bytes: SLOT_BYTES,
        page_bytes: PAGE_BYTES,
        fingerprint: "another-model".into(),
    };
    let other = Engine::new(parts, config.clone()).unwrap();
    assert_eq!(run(&other, greedy(prompts[0].clone(), 3)).usage.cached, 0);
    drop(other);
    assert!(files().len() >= before);
    // A bounded size.
    let small = EngineConfig { cache_dir_bytes: 3 * (PAGE_BYTES + 5000), ..config.clone() };
    let (engine, _) = engine_with(capacity(), small);
    prompts.iter().for_each(|p| drop(check(&engine, p, &[600])));
    engine.drain(std::time::Duration::from_secs(10));
    let ours = |p: &&std::path::PathBuf| !String::from_utf8_lossy(&std::fs::read(p).unwrap()).contains("another-model");
    let bytes: u64 = files().iter().filter(ours).map(|p| p.metadata().unwrap().len()).sum();
    assert!(bytes <= 3 * (PAGE_BYTES + 5000) + 1000, "{bytes}");
    let _ = std::fs::remove_dir_all(&dir);
}
