"""How the report looks: for light and for dark, on a screen and on paper. Colours can be told apart by all eyes."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b2330; --soft: #5b6675; --rule: #dfe4ea;
  --c0: #2f6db5; --c1: #e08a1e; --c2: #2a9d7c; --c3: #b5498f; --c4: #7a63c7; --c5: #c2452d;
  --c6: #6fa8dc; --c7: #8a94a3; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --card: #1a2029; --ink: #e7ecf3; --soft: #9aa7b8;
  --rule: #2d3643; --c0: #6ea8ea; --c1: #f2aa4c; --c2: #4fc7a3; --c3: #dd7fbd; --c4: #a996ec; --c5: #ec7a63;
  --c6: #9cc9f2; --c7: #94a0b1; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 36px 20px 48px; }
header { margin-bottom: 22px; } h1 { font-size: 30px; line-height: 1.2; margin: 0; letter-spacing: -.4px; }
h2 { font-size: 20px; margin: 0 0 2px; } h3 { font-size: 15px; margin: 22px 0 6px; }
.period, .lead, footer, caption { color: var(--soft); } .period { margin: 4px 0 0; font-size: 16px; }
.lead { margin: 0 0 16px; max-width: 72ch; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 22px 24px;
  margin: 18px 0; }
.tiles { list-style: none; margin: 0; padding: 0; display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); }
.tiles li { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; }
.tiles span, .tiles small { display: block; color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
.tiles strong { display: block; font-size: 26px; line-height: 1.3; font-weight: 650; letter-spacing: -.3px; }
figure { margin: 0 0 6px; } svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.tick.y, .name { text-anchor: end; } svg .name, svg .value { fill: var(--ink); font-size: 13px; }
.grid { stroke: var(--rule); } .base { stroke: var(--soft); } .line { fill: none; stroke: var(--colour);
  stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.area, .bar { fill: var(--colour); } .area { fill-opacity: .85; stroke: var(--card); stroke-width: .75; }
.tip { fill: transparent; } .tip:hover { fill: var(--ink); fill-opacity: .08; }
.s0 { --colour: var(--c0); } .s1 { --colour: var(--c1); } .s2 { --colour: var(--c2); } .s3 { --colour: var(--c3); }
.s4 { --colour: var(--c4); } .s5 { --colour: var(--c5); } .s6 { --colour: var(--c6); } .s7 { --colour: var(--c7); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; padding: 0; margin: 4px 0 8px 66px;
  font-size: 13px; } .legend li { overflow-wrap: anywhere; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px;
  background: var(--colour); }
.pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 0 26px; }
.pairs h3 { margin-top: 6px; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin-top: 14px; } table { border-collapse: collapse; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; } caption { caption-side: bottom; text-align: left; padding-top: 8px; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--rule); font-weight: 400; }
thead th { color: var(--soft); font-size: 13px; white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; }
tbody th { overflow-wrap: anywhere; min-width: 7.5em; } td { white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
summary { color: var(--soft); font-size: 13px; cursor: pointer; width: max-content; }
footer { font-size: 13px; } code { font-family: ui-monospace, Menlo, Consolas, monospace; }
@media print { body { background: #fff; } main { padding: 0; } section, .tiles li { break-inside: avoid; }
  details { display: none; } }
"""
"""One sheet, in the page."""
