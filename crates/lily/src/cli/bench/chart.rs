//! Prefill and decode speed over the prompt length, as an SVG picture of two panels with logarithmic lengths.

use std::fmt::Write;

use super::measure::Measured;

const WIDTH: f64 = 860.0;
const PANEL: f64 = 240.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 56.0;
const GAP: f64 = 56.0;

/// The picture.
pub(super) fn svg(title: &str, results: &[&Measured]) -> String {
    let height = TOP + 2.0 * PANEL + GAP + 40.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"{LEFT}\" y=\"26\" \
         font-size=\"16\" font-weight=\"bold\">{}</text>\n",
        escape(title)
    );
    let prefill: Vec<(f64, f64)> = results.iter().map(|m| (m.length as f64, m.prefill.median)).collect();
    let decode: Vec<(f64, f64)> = results.iter().map(|m| (m.length as f64, m.decode.median)).collect();
    panel(&mut text, TOP, "prefill, tokens/s", "#2563eb", &prefill);
    panel(&mut text, TOP + PANEL + GAP, "decode, tokens/s", "#dc2626", &decode);
    text.push_str("</svg>\n");
    text
}

fn panel(text: &mut String, top: f64, label: &str, color: &str, points: &[(f64, f64)]) {
    let largest = points.iter().map(|p| p.1).fold(f64::MIN_POSITIVE, f64::max);
    let step = nice_step(largest);
    let limit = (largest / step).ceil() * step;
    let (first, last) = (points.first().map_or(1.0, |p| p.0), points.last().map_or(1.0, |p| p.0));
    let range = (last / first).log2().max(1e-9);
    let x = |length: f64| match points.len() {
        1 => LEFT + (WIDTH - LEFT - RIGHT) / 2.0,
        _ => LEFT + (length / first).log2() / range * (WIDTH - LEFT - RIGHT),
    };
    let y = |value: f64| top + PANEL - value / limit * PANEL;
    let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{}\" fill=\"{color}\">{label}</text>", top - 8.0);
    let mut tick = 0.0;
    while tick <= limit * 1.0001 {
        let at = y(tick);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" \
             text-anchor=\"end\">{tick}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0
        );
        tick += step;
    }
    let path: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
    let _ =
        writeln!(text, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>", path.join(" "));
    for p in points {
        let _ = writeln!(
            text,
            "<circle cx=\"{0:.1}\" cy=\"{1:.1}\" r=\"3.5\" fill=\"{color}\"/><text x=\"{0:.1}\" y=\"{2:.1}\" \
             text-anchor=\"middle\" fill=\"#666\">{3}</text>",
            x(p.0),
            y(p.1),
            top + PANEL + 18.0,
            p.0
        );
    }
}

/// A step of 1, 2 or 5 times a power of ten that gives about five lines.
fn nice_step(largest: f64) -> f64 {
    let rough = largest / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(power * 10.0)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_few() {
        for (largest, step) in [(9.0, 2.0), (11.0, 5.0), (480.0, 100.0), (23_000.0, 5_000.0)] {
            assert_eq!(nice_step(largest), step, "{largest}");
        }
    }

    #[test]
    fn a_title_cannot_break_the_picture() {
        assert!(svg("a<b & c", &[]).contains("a&lt;b &amp; c"));
    }
}
