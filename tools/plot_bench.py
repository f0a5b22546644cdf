#!/usr/bin/env python3
"""Draws the result of tools/bench_vs_peers.py as one SVG: a row of panels per shape, bars in TFLOP/s.

    python3 tools/plot_bench.py bench/results/h200-peers-2026-11-30.json docs/images/bench-h200.svg

Only the Python standard library is used; the same file gives the same picture.
"""
import argparse
import html
import json
import pathlib

GROUPS = ["dense", "sparse random", "sparse shared"]
BAR, GAP, PANEL, LABEL, LEFT, TOP = 15, 4, 330, 118, 16, 66
OURS, PEER = "#1f6feb", "#b8c0cc"


def panels(cases):
    """{(tokens, heads): {group: [(name, tflops)]}} in the order of the file, best first."""
    found = {}
    for case in cases:
        if case["group"] in GROUPS and case.get("tflops"):
            shape = found.setdefault((case["tokens"], case["heads"]), {g: [] for g in GROUPS})
            shape[case["group"]].append((case["name"], case["tflops"]))
    for groups in found.values():
        for bars in groups.values():
            bars.sort(key=lambda bar: -bar[1])
    return found


def text(x, y, words, size=11, anchor="start", weight="normal", fill="#24292f"):
    return (f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}" fill="{fill}">{html.escape(words)}</text>')


def draw(data):
    shapes = panels(data["cases"])
    if not shapes:
        raise SystemExit("plot_bench.py: the file holds no dense or sparse case with TFLOP/s")
    top_speed = max(t for g in shapes.values() for bars in g.values() for _, t in bars)
    most = {g: max(len(s[g]) for s in shapes.values()) for g in GROUPS}
    room = PANEL - LABEL - 60
    out, bottom = [], TOP
    for group in GROUPS:
        out.append(text(LEFT, bottom + 2, group, 13, weight="bold"))
        for column, groups in enumerate(shapes.values()):
            x = LEFT + column * PANEL
            for row, (name, tflops) in enumerate(groups[group]):
                y = bottom + 12 + row * (BAR + GAP)
                ours = name.startswith("tessera")
                width = room * tflops / top_speed
                out.append(text(x + LABEL - 6, y + 12, name, anchor="end",
                                weight="bold" if ours else "normal"))
                out.append(f'<rect x="{x + LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" '
                           f'fill="{OURS if ours else PEER}"/>')
                out.append(text(x + LABEL + width + 4, y + 12, f"{tflops:.0f}"))
        bottom += 12 + most[group] * (BAR + GAP) + 26
    head = [text(LEFT, 24, f'{data["device"]}, TFLOP/s on listed blocks, bf16, head width 128, '
                           f'{data["date"]}', 14, weight="bold")]
    for column, (tokens, heads) in enumerate(shapes):
        head.append(text(LEFT + column * PANEL + LABEL, 46, f"{tokens:,} tokens, {heads} heads", 12,
                         fill="#57606a"))
    width = LEFT * 2 + PANEL * len(shapes)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom}" '
        f'viewBox="0 0 {width} {bottom}" font-family="DejaVu Sans, Arial, sans-serif">',
        f'<rect width="{width}" height="{bottom}" fill="#ffffff"/>', *head, *out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("picture", type=pathlib.Path)
    options = parser.parse_args()
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_text(draw(json.loads(options.results.read_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
