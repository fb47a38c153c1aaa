//! What operators look at: GET /health and GET /metrics.

use std::fmt::Write;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use lily_engine::{Health, Histogram, MetricsSnapshot};
use serde_json::json;

use super::error::ApiError;
use super::state::App;

/// GET /health: 200 when requests are served, else 503 with the reason.
pub async fn health(State(app): State<Arc<App>>) -> Response {
    let (status, body) = match app.serving() {
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, json!({"status": "loading"})),
        Ok(serving) => match serving.engine.health() {
            Health::Ready => (StatusCode::OK, json!({"status": "ok", "model": serving.name})),
            Health::Draining => (StatusCode::SERVICE_UNAVAILABLE, json!({"status": "draining"})),
            Health::Unhealthy(reason) => {
                (StatusCode::SERVICE_UNAVAILABLE, json!({"status": "unhealthy", "reason": reason}))
            }
        },
    };
    (status, Json(body)).into_response()
}

/// GET /metrics: Prometheus text format 0.0.4.
pub async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let text = render(&app.serving()?.engine.metrics(), resident_bytes());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

/// Memory of this process that is in RAM, where the system tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn render(m: &MetricsSnapshot, resident: Option<u64>) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: &[(&str, u64)]| {
        let _ = writeln!(out, "# HELP lily_{name} {help}\n# TYPE lily_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(out, "lily_{name}{labels} {value}");
        }
    };
    family("requests_total", "counter", "Requests taken.", &[("", m.requests_submitted)]);
    family("requests_refused_total", "counter", "Requests refused: queue full.", &[("", m.requests_refused)]);
    let finished = [
        ("{reason=\"stop\"}", m.finished_stop),
        ("{reason=\"length\"}", m.finished_length),
        ("{reason=\"cancelled\"}", m.finished_cancelled),
        ("{reason=\"deadline\"}", m.finished_deadline),
        ("{reason=\"error\"}", m.finished_error),
    ];
    family("requests_finished_total", "counter", "Requests ended, by reason.", &finished);
    family("requests_running", "gauge", "Requests that run now.", &[("", m.running)]);
    family("requests_waiting", "gauge", "Requests that wait now.", &[("", m.waiting)]);
    family("prompt_tokens_total", "counter", "Prompt tokens of admitted requests.", &[("", m.prompt_tokens)]);
    family("cached_tokens_total", "counter", "Prompt tokens from the prefix cache.", &[("", m.cached_tokens)]);
    family("generated_tokens_total", "counter", "Generated tokens.", &[("", m.generated_tokens)]);
    family("cache_hits_total", "counter", "Requests resumed from the prefix cache.", &[("", m.cache_hits)]);
    family("cache_misses_total", "counter", "Requests computed from their start.", &[("", m.cache_misses)]);
    family("cache_evictions_total", "counter", "Snapshots dropped for room.", &[("", m.cache_evictions)]);
    family("cache_snapshots", "gauge", "Snapshots in the prefix cache.", &[("", m.cache_snapshots)]);
    family("cache_bytes", "gauge", "Bytes in the prefix cache.", &[("", m.cache_bytes)]);
    family("kv_pages", "gauge", "Pages of the KV pool.", &[("", m.pages_total)]);
    family("kv_pages_used", "gauge", "Pages in use.", &[("", m.pages_used)]);
    family("steps_total", "counter", "Steps the device executed.", &[("", m.steps)]);
    family("device_errors_total", "counter", "Steps the device failed.", &[("", m.device_errors)]);
    if let Some(bytes) = resident {
        family("resident_memory_bytes", "gauge", "Memory of the process in RAM.", &[("", bytes)]);
    }
    histogram(&mut out, "time_to_first_token_seconds", "Submission to first token.", &m.time_to_first_token);
    histogram(&mut out, "inter_token_seconds", "Between two tokens of a request.", &m.inter_token);
    histogram(&mut out, "queue_seconds", "Submission to admission.", &m.queue_time);
    out
}

fn histogram(out: &mut String, name: &str, help: &str, h: &Histogram) {
    let _ = writeln!(out, "# HELP lily_{name} {help}\n# TYPE lily_{name} histogram");
    let mut below = 0;
    for (bound, count) in h.bounds.iter().zip(&h.counts) {
        below += count;
        let _ = writeln!(out, "lily_{name}_bucket{{le=\"{bound}\"}} {below}");
    }
    let _ = writeln!(out, "lily_{name}_bucket{{le=\"+Inf\"}} {}", h.count());
    let _ = writeln!(out, "lily_{name}_sum {}\nlily_{name}_count {}", h.sum, h.count());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_end_in_infinity() {
        let mut out = String::new();
        histogram(&mut out, "x", "X.", &Histogram { bounds: vec![0.1, 1.0], counts: vec![2, 1, 4], sum: 9.5 });
        for line in
            ["x_bucket{le=\"0.1\"} 2", "x_bucket{le=\"1\"} 3", "x_bucket{le=\"+Inf\"} 7", "x_sum 9.5", "x_count 7"]
        {
            assert!(out.contains(&format!("lily_{line}\n")), "{out}");
        }
    }
}
