"""The results of several engines as one SVG picture: prefill above decode, over the prompt length. Knows no engine."""

import math

COLORS = ["#2563eb", "#dc2626", "#16a34a", "#9333ea"]
WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 860, 240, 80, 130, 40, 60


def nice(limit):
    """A step of 1, 2 or 5 times a power of ten that divides `limit` into at most six."""
    step = 10 ** math.floor(math.log10(limit))
    return next(step * f for f in (0.1, 0.2, 0.5, 1, 2, 5, 10) if limit / (step * f) <= 6)


def panel(top, key, results, names):
    lengths = [row["length"] for row in results]
    values = [row["engines"][n][key] for row in results for n in names if n in row["engines"]]
    step = nice(max(values))
    limit = math.ceil(max(values) / step) * step
    span = max(math.log2(lengths[-1] / lengths[0]), 1e-9)

    def x(length):
        return LEFT + math.log2(length / lengths[0]) / span * (WIDTH - LEFT - RIGHT)

    def y(value):
        return top + PANEL - value / limit * PANEL

    out = [f'<text x="{LEFT}" y="{top - 10}">{key}, tokens/s</text>']
    for i in range(round(limit / step) + 1):
        at = y(i * step)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    for length in lengths:
        out.append(f'<text x="{x(length):.1f}" y="{top + PANEL + 18}" text-anchor="middle">{length}</text>')
    for name, color in zip(names, COLORS):
        points = [(x(r["length"]), y(r["engines"][name][key])) for r in results if name in r["engines"]]
        if not points:
            continue
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in points]
        out.append(f'<text x="{WIDTH - RIGHT + 10}" y="{points[-1][1] + 4:.1f}" fill="{color}">{name}</text>')
    return out


def svg(results, names):
    height = TOP + 2 * PANEL + GAP + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">']
    out.append('<rect width="100%" height="100%" fill="#fff"/>')
    out += panel(TOP, "prefill", results, names)
    out += panel(TOP + PANEL + GAP, "decode", results, names)
    out.append("</svg>")
    return "\n".join(out) + "\n"
