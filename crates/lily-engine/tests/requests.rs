//! One request at a time: how it ends, what it reports, what is refused.

mod oracle;

use std::time::{Duration, Instant};

use lily_engine::{EosRule, Event, FinishReason, Health, Request, SamplingParams, SubmitError, Thinking};
use oracle::*;

#[test]
fn a_greedy_request_gives_max_tokens_and_counts_them() {
    let (engine, control) = engine();
    let answer = run(&engine, greedy(tokens(1, 300), 40));
    assert_eq!(answer.reason, FinishReason::Length);
    assert_eq!((answer.usage.prompt, answer.usage.cached, answer.usage.completion), (300, 0, 40));
    assert_eq!(answer.ids.len(), 40);
    assert_eq!(answer.text, tokenizer().decode(&answer.ids));
    settle(&engine);
    // The last token is never computed: nothing would read what follows it.
    assert_eq!(control.lock().unwrap().rows, 300 + 39);
    assert!(control.lock().unwrap().steps.iter().filter(|s| s.2).count() > 30, "steps are kept in flight");
}

#[test]
fn argmax_in_flight_and_logits_on_the_host_give_the_same_greedy_tokens() {
    let request = greedy(tokens(2, 77), 50);
    let plain = cold(request);
    let reported = cold(Request { logprobs: Some(3), ..greedy(tokens(2, 77), 50) });
    assert_eq!(plain.ids, reported.ids);
    for token in &reported.tokens {
        assert_eq!((token.top_logprobs.len(), token.top_logprobs[0].id), (3, token.id));
        assert_eq!(token.logprob, Some(token.top_logprobs[0].logprob));
        assert!(token.top_logprobs.windows(2).all(|w| w[0].logprob >= w[1].logprob));
    }
}

#[test]
fn any_prefill_chunk_gives_the_same_tokens() {
    let expected = cold(greedy(tokens(3, 700), 20)).ids;
    for prefill_rows in [1, 3, 63, 64, 65, 256, 1024] {
        let capacity = lily_model::device::Capacity { prefill_rows, ..capacity() };
        let (engine, _) = engine_with(capacity, config());
        assert_eq!(run(&engine, greedy(tokens(3, 700), 20)).ids, expected, "{prefill_rows} rows");
    }
}

#[test]
fn an_end_id_ends_the_answer_and_is_no_token_of_it() {
    let free = cold(greedy(tokens(4, 50), 30));
    let eos = free.ids[17];
    assert!(!free.ids[..17].contains(&eos));
    let (engine, _) = engine_ending_with(eos);
    let answer = run(&engine, greedy(tokens(4, 50), 30));
    assert_eq!((answer.reason, &answer.ids[..]), (FinishReason::Eos, &free.ids[..17]));
    assert_eq!(answer.usage.completion, 18);
    let ignoring = run(&engine, Request { eos: EosRule::Ignore, ..greedy(tokens(4, 50), 30) });
    assert_eq!(ignoring.ids, free.ids);
    let late = run(&engine, Request { min_tokens: 25, ..greedy(tokens(4, 50), 30) });
    assert!(late.ids.len() >= 25 && late.ids[..17] == free.ids[..17] && !late.ids[..25].contains(&eos));
}

fn engine_ending_with(eos: u32) -> (lily_engine::Engine, Shared) {
    let control = Shared::default();
    let parts = lily_engine::EngineParts {
        device: Box::new(Oracle::new(capacity(), control.clone())),
        tokenizer: tokenizer(),
        defaults: lily_engine::GenerationDefaults { eos_token_ids: vec![eos], sampling: SamplingParams::default() },
        vocab_size: VOCAB,
        slot_bytes: SLOT_BYTES,
        page_bytes: PAGE_BYTES,
        fingerprint: "oracle-model".into(),
    };
    (lily_engine::Engine::new(parts, config()).unwrap(), control)
}

#[test]
fn a_stop_string_across_tokens_ends_the_text_before_it() {
    let (engine, _) = engine();
    let free = run(&engine, greedy(tokens(5, 60), 60));
    let middle = free.text.char_indices().map(|(i, _)| i).nth(free.text.chars().count() / 2).unwrap();
    let stop: String = free.text[middle..].chars().take(6).collect();
    let first = free.text.find(&stop).unwrap();
    let answer = run(&engine, Request { stop: vec!["never\u{1}".into(), stop.clone()], ..greedy(tokens(5, 60), 60) });
    assert_eq!(answer.text, free.text[..first]);
    assert_eq!(answer.reason, FinishReason::StopString(stop));
    assert!(answer.ids.len() < 60);
}

#[test]
fn sampling_with_a_seed_repeats_and_differs_between_seeds() {
    let sample = |seed| Request {
        max_tokens: Some(30),
        ..Request::new(tokens(6, 40), SamplingParams { seed: Some(seed), ..SamplingParams::default() })
    };
    let (engine, _) = engine();
    let first = run(&engine, sample(1)).ids;
    assert_eq!(first, run(&engine, sample(1)).ids);
    assert_ne!(first, run(&engine, sample(2)).ids);
    assert_eq!(first, cold(sample(1)).ids);
}

#[test]
fn the_context_limit_cuts_the_answer_and_a_prompt_that_fills_it_is_refused() {
    let (engine, _) = engine_with(lily_model::device::Capacity { max_seq: 400, ..capacity() }, config());
    let answer = run(&engine, Request { max_tokens: None, ..greedy(tokens(7, 390), 1) });
    assert_eq!((answer.ids.len(), answer.reason), (10, FinishReason::Length));
    let error = engine.submit(greedy(tokens(7, 400), 5)).unwrap_err();
    assert_eq!(error, SubmitError::PromptTooLong { tokens: 400, limit: 400 });
}

#[test]
fn a_request_that_can_never_fit_is_refused_with_the_numbers() {
    let (engine, _) = engine_with(lily_model::device::Capacity { pages: 8, ..capacity() }, config());
    let error = engine.submit(greedy(tokens(8, 2000), 500)).unwrap_err();
    assert_eq!(
        error,
        SubmitError::TooLarge { prompt: 2000, max_tokens: 500, needed_pages: 10, pool_pages: 8 },
        "{error}"
    );
    assert_eq!(run(&engine, Request { max_tokens: None, ..greedy(tokens(8, 2000), 1) }).ids.len(), 48);
}

#[test]
fn what_is_out_of_range_is_refused_by_name() {
    let (engine, _) = engine();
    let base = || greedy(tokens(9, 10), 5);
    let cases = [
        (Request { tokens: vec![], ..base() }, "prompt"),
        (Request { tokens: vec![1, 512], ..base() }, "prompt"),
        (Request { stop: vec![String::new()], ..base() }, "stop"),
        (Request { stop: vec!["x".into(); 17], ..base() }, "stop"),
        (Request { logprobs: Some(21), ..base() }, "top_logprobs"),
        (Request { sampling: SamplingParams { top_p: 2.0, ..SamplingParams::greedy() }, ..base() }, "top_p"),
        (
            Request { sampling: SamplingParams { logit_bias: vec![(512, 1.0)], ..SamplingParams::greedy() }, ..base() },
            "logit_bias",
        ),
    ];
    for (request, field) in cases {
        let error = engine.submit(request).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    assert_eq!(run(&engine, base()).ids.len(), 5);
}

#[test]
fn a_spent_thinking_budget_closes_the_block_and_the_answer_follows() {
    let (engine, _) = engine();
    let think = |budget| Request { thinking: Thinking::Open { budget }, ..greedy(tokens(10, 50), 40) };
    let free = run(&engine, think(None));
    let close = tokenizer().encode_markup("\n</think>\n\n").unwrap();
    for budget in [0, 1, 7] {
        let answer = run(&engine, think(Some(budget)));
        assert_eq!(answer.ids[..budget], free.ids[..budget]);
        assert_eq!(answer.ids[budget..budget + close.len()], close);
        assert_eq!((answer.usage.reasoning, answer.ids.len()), (budget + 2, 40));
    }
    let counted = run(&engine, think(Some(1000)));
    assert_eq!((counted.ids, counted.usage.reasoning), (free.ids, 40));
}

#[test]
fn stop_strings_are_not_looked_for_in_the_thinking_nor_right_after_it() {
    let (engine, _) = engine();
    let request = |stop: Vec<String>| Request {
        thinking: Thinking::Open { budget: Some(6) },
        stop,
        ..greedy(tokens(11, 50), 40)
    };
    let free = run(&engine, request(vec![]));
    let thought: String = free.tokens[..6].iter().map(|t| t.text.as_str()).collect();
    let word: String = thought.chars().take(3).collect();
    let answer_text = free.text.split("</think>").nth(1).unwrap();
    assert!(!answer_text.contains(&word), "choose another seed");
    assert_eq!(run(&engine, request(vec![word])).text, free.text);
    let answer = run(&engine, request(vec!["</think>".into(), "\n\n".into()]));
    assert!(answer.text.contains("</think>\n\n"));
}

#[test]
fn a_dropped_generation_frees_its_place_within_one_step() {
    let (engine, control) = engine();
    control.lock().unwrap().step_time = Duration::from_millis(2);
    let mut generation = engine.submit(greedy(tokens(12, 10), 4000)).unwrap();
    while !matches!(generation.recv_blocking().unwrap(), Event::Token(_)) {}
    drop(generation);
    let steps = control.lock().unwrap().steps.len();
    settle(&engine);
    assert!(control.lock().unwrap().steps.len() <= steps + 3);
    assert_eq!(engine.metrics().finished_cancelled, 1);
    // While the prompt is read, too.
    control.lock().unwrap().row_time = Duration::from_millis(1);
    let mut generation = engine.submit(greedy(tokens(13, 4000), 5)).unwrap();
    while !matches!(generation.recv_blocking().unwrap(), Event::PrefillProgress { done: 1.., .. }) {}
    drop(generation);
    let steps = control.lock().unwrap().steps.len();
    settle(&engine);
    assert!(control.lock().unwrap().steps.len() <= steps + 1);
}

#[test]
fn a_deadline_ends_a_request_at_a_step_border() {
    let (engine, control) = engine();
    control.lock().unwrap().step_time = Duration::from_millis(3);
    let deadline = Some(Instant::now() + Duration::from_millis(60));
    let answer = run(&engine, Request { deadline, ..greedy(tokens(14, 10), 4000) });
    assert_eq!(answer.reason, FinishReason::Deadline);
    assert!((2..100).contains(&answer.ids.len()), "{}", answer.ids.len());
}

#[test]
fn a_failed_step_ends_its_requests_alone_and_leaves_the_engine_right() {
    let (engine, control) = engine();
    let expected = cold(greedy(tokens(15, 300), 20)).ids;
    run(&engine, greedy(tokens(15, 290), 4));
    control.lock().unwrap().fail_steps = 1;
    let failed = run(&engine, greedy(tokens(15, 300), 20));
    assert!(matches!(&failed.reason, FinishReason::Error(e) if e.contains("as told")), "{failed:?}");
    assert_eq!(engine.health(), Health::Ready);
    assert_eq!(run(&engine, greedy(tokens(15, 300), 20)).ids, expected);
    assert_eq!(engine.metrics().device_errors, 1);
}

#[test]
fn logits_that_are_no_numbers_end_a_request_with_an_error_greedy_or_sampled() {
    let (engine, control) = engine();
    control.lock().unwrap().faulty = true;
    let sampled = Request::new(tokens(5, 600), SamplingParams { seed: Some(1), ..SamplingParams::default() });
    for request in [greedy(tokens(5, 600), 10), sampled] {
        match run(&engine, request).reason {
            FinishReason::Error(message) => assert!(message.contains("logits"), "{message}"),
            other => panic!("{other:?}"),
        }
    }
    control.lock().unwrap().faulty = false;
    // Nothing of theirs is in the cache.
    let again = run(&engine, greedy(tokens(5, 600), 10));
    assert_eq!((again.usage.cached, again.ids), (0, cold(greedy(tokens(5, 600), 10)).ids));
}

#[test]
fn a_step_that_fails_behind_a_finished_one_does_not_poison_the_cache() {
    let expected = cold(greedy(tokens(16, 300), 30));
    let (engine, control) = engine_ending_with(expected.ids[10]);
    // Fail each step of the run once: in particular the one in flight when the end id is seen.
    for step in 0..16 {
        control.lock().unwrap().steps.clear();
        let mut generation = engine.submit(greedy(tokens(16, 300), 30)).unwrap();
        let mut seen = 0;
        while let Some(event) = generation.recv_blocking() {
            if matches!(event, Event::Token(_)) {
                seen += 1;
                if seen == step {
                    control.lock().unwrap().fail_steps = 1;
                }
            }
        }
        control.lock().unwrap().fail_steps = 0;
        let answer = run(&engine, greedy([tokens(16, 300), expected.ids[..8].to_vec()].concat(), 2));
        assert_eq!(answer.ids, expected.ids[8..10], "after a failure at token {step}");
    }
}

#[test]
fn a_device_that_keeps_failing_is_given_up_and_a_panic_too() {
    let (engine, control) = engine();
    control.lock().unwrap().fail_steps = 100;
    for _ in 0..3 {
        assert!(matches!(run(&engine, greedy(tokens(17, 10), 5)).reason, FinishReason::Error(_)));
    }
    assert!(matches!(engine.submit(greedy(tokens(17, 10), 5)), Err(SubmitError::Unhealthy(_))));
    let (engine, control) = oracle::engine();
    control.lock().unwrap().panic = true;
    let answer = run(&engine, greedy(tokens(17, 10), 5));
    assert!(matches!(&answer.reason, FinishReason::Error(e) if e.contains("panic")), "{answer:?}");
    assert!(matches!(engine.health(), Health::Unhealthy(_)));
}

#[test]
fn draining_finishes_what_runs_and_takes_nothing_new() {
    let (engine, control) = engine();
    control.lock().unwrap().step_time = Duration::from_millis(2);
    let generation = engine.submit(greedy(tokens(18, 10), 30)).unwrap();
    engine.drain(Duration::from_secs(20));
    assert!(matches!(engine.submit(greedy(tokens(18, 10), 5)), Err(SubmitError::ShuttingDown)));
    assert_eq!(collect(generation).ids.len(), 30);
    let (engine, control) = oracle::engine();
    control.lock().unwrap().step_time = Duration::from_millis(2);
    let generation = engine.submit(greedy(tokens(18, 10), 4000)).unwrap();
    engine.drain(Duration::from_millis(40));
    assert_eq!(collect(generation).reason, FinishReason::Cancelled);
}
