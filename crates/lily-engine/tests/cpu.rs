//! The engine on the processor with the embedded miniature: greedy tokens do not depend on how a prompt was cut, on what
//! else ran, or on what the cache held.

use std::path::Path;
use std::sync::Arc;

use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_engine::{
    Engine, EngineConfig, EngineParts, EosRule, Event, Generation, GenerationDefaults, PrefixCacheUse, Request,
    SamplingParams,
};
use lily_model::checkpoint::Checkpoint;
use lily_model::device::Capacity;
use lily_model::graph::Plan;
use lily_model::text::Tokenizer;

struct Loaded {
    checkpoint: Arc<Checkpoint>,
    tokenizer: Arc<Tokenizer>,
}

impl Loaded {
    fn open(folder: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
        let checkpoint = Arc::new(Checkpoint::open(&folder).unwrap());
        let tokenizer = Arc::new(Tokenizer::from_bytes(checkpoint.text_file("tokenizer.json").unwrap()).unwrap());
        Loaded { checkpoint, tokenizer }
    }

    fn engine(&self, prefill_rows: usize, parallel: usize, cache_bytes: u64) -> Engine {
        self.engine_of(Precision::Fast, prefill_rows, parallel, cache_bytes)
    }

    fn engine_of(&self, precision: Precision, prefill_rows: usize, parallel: usize, cache_bytes: u64) -> Engine {
        let capacity = Capacity { slots: parallel + 12, pages: 64, prefill_rows, decode_rows: parallel, max_seq: 2048 };
        let options = CpuOptions { threads: 1, precision, capacity };
        let config = &self.checkpoint.model().config;
        let parts = EngineParts {
            device: Box::new(CpuDevice::new(self.checkpoint.clone(), options).unwrap()),
            tokenizer: self.tokenizer.clone(),
            defaults: GenerationDefaults {
                eos_token_ids: self.checkpoint.generation_config().eos_token_ids.clone(),
                sampling: SamplingParams::default(),
            },
            vocab_size: config.vocab_size,
            slot_bytes: config.recurrent_state_bytes() as u64,
            page_bytes: (config.kv_bytes_per_token(2) * Plan::PAGE_TOKENS) as u64,
            fingerprint: format!("{:032x}", self.checkpoint.fingerprint()),
        };
        Engine::new(parts, EngineConfig { parallel, cache_bytes, ..EngineConfig::default() }).unwrap()
    }

    fn prompt(&self, question: &str) -> Vec<u32> {
        let text = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
        self.tokenizer.encode_markup(&text).unwrap()
    }
}

fn greedy(tokens: Vec<u32>, max_tokens: usize) -> Request {
    Request { max_tokens: Some(max_tokens), ..Request::new(tokens, SamplingParams::greedy()) }
}

fn ids(mut generation: Generation) -> (Vec<u32>, usize) {
    let mut ids = Vec::new();
    loop {
        match generation.recv_blocking().unwrap() {
            Event::Token(token) => ids.push(token.id),
            Event::Finished { usage, .. } => return (ids, usage.cached),
            _ => {}
        }
    }
}

const STORY: &str = "Tell me a story about a fox who lived in a forest near a river, and about the small bird that she met there \
    one morning in spring, and about what the two of them found under the old oak tree, and why they never told anyone.";

#[test]
fn greedy_tokens_are_the_same_one_shot_chunked_batched_and_resumed() {
    let mini = Loaded::open("assets/mini");
    let long = mini.prompt(&STORY.repeat(5));
    assert!(long.len() > 256, "{}", long.len());
    let (expected, _) = ids(mini.engine(512, 1, 0).submit(greedy(long.clone(), 24)).unwrap());
    for rows in [1, 3, 63, 64, 65, 256] {
        let (found, _) = ids(mini.engine(rows, 1, 0).submit(greedy(long.clone(), 24)).unwrap());
        assert_eq!(found, expected, "chunks of {rows}");
    }
    let engine = mini.engine(512, 4, 64 << 20);
    let others = ["What is the capital of France?", "Tell me a story about a dog.", "Say hello."];
    let other_requests =
        || others.iter().map(|q| Request { prefix_cache: PrefixCacheUse::Bypass, ..greedy(mini.prompt(q), 24) });
    let alone: Vec<_> = other_requests().map(|r| ids(engine.submit(r).unwrap()).0).collect();
    let together: Vec<_> =
        other_requests().chain([greedy(long.clone(), 24)]).map(|r| engine.submit(r).unwrap()).collect();
    let together: Vec<_> = together.into_iter().map(|g| ids(g).0).collect();
    assert_eq!(together[..3], alone);
    assert_eq!(together[3], expected);
    let (resumed, cached) = ids(engine.submit(greedy(long.clone(), 24)).unwrap());
    assert_eq!((resumed, cached), (expected.clone(), long.len() - 1));
    // The next turn resumes behind the answer and says what a cold run says.
    let end = mini.tokenizer.encode_markup("<|im_end|>\n").unwrap();
    let turn = [&long[..], &expected, &end, &mini.prompt("And then?")].concat();
    let (warm, cached) = ids(engine.submit(greedy(turn.clone(), 16)).unwrap());
    assert!(cached >= long.len() + expected.len() - 1, "{cached}");
    assert_eq!(warm, ids(mini.engine(512, 1, 0).submit(greedy(turn, 16)).unwrap()).0);
}

#[test]
fn in_f32_every_fixture_is_continued_as_the_truth_continues_it() {
    let list =
        |v: &serde_json::Value| -> Vec<f64> { v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect() };
    let as_ids = |v: &serde_json::Value| -> Vec<u32> { list(v).into_iter().map(|x| x as u32).collect() };
    for folder in ["tests/fixtures/tiny-a", "tests/fixtures/tiny-b"] {
        let loaded = Loaded::open(folder);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder).join("expected.json");
        let expected: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let engine = loaded.engine_of(Precision::F32, 100, 4, 64 << 20);
        let cases = expected["cases"].as_array().unwrap();
        let running: Vec<_> = cases
            .iter()
            .map(|case| {
                let request = Request { eos: EosRule::Ignore, ..greedy(as_ids(&case["prompt_ids"]), 64) };
                engine.submit(request).unwrap()
            })
            .collect();
        for (case, generation) in cases.iter().zip(running) {
            // Where the truth itself is undecided, what follows may differ.
            let sure = list(&case["greedy_margins"]).iter().take_while(|m| **m >= 1e-3).count();
            assert_eq!(ids(generation).0[..sure], as_ids(&case["greedy_ids_64"])[..sure], "{folder} {}", case["name"]);
        }
    }
}
