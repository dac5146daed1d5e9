// Swimlanes: one lane per key or call, one bar per flight. The table beside them is the truth; this
// is its picture. Geometry stands in attributes, so no policy for styles is in the way.

const SVG = "http://www.w3.org/2000/svg";
const LANE = 26; // px, a bar and the gap below it
const BAR = 16;
const LABELS = 0.28; // of the width, at most
const LABELS_PX = 220;
const AXIS = 18;
export const MOST_LANES = 50;
export const MOST_BARS = 1000;

function make(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function shortened(text, width) {
  const most = Math.max(4, Math.floor(width / 7.2)); // px of a letter of 12 px, and some
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

// A step of 1, 2 or 5 times a power of ten that gives about five marks.
function step(span) {
  const rough = span / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
}

function drawAxis(svg, { left, width, height, span }) {
  const every = step(span);
  for (let ago = 0; ago <= span * 1.0001; ago += every) {
    const x = left + (width - left) * (1 - ago / span);
    svg.append(make("line", { class: "vega-lanes-mark", x1: x, x2: x, y1: 0, y2: height - AXIS }));
    const anchor = ago === 0 ? "end" : x - left < 20 ? "start" : "middle";
    const label = ago === 0 ? "0 s" : `−${Number(ago.toPrecision(3))} s`;
    svg.append(
      make("text", { class: "vega-lanes-axis", x, y: height - 5, "text-anchor": anchor }, label),
    );
  }
}

function drawBar(svg, bar, { y, left, width, now, span }) {
  const scale = (width - left) / span;
  const from = Math.max(left, width - (now - bar.start) * scale);
  const to = bar.end === null ? width : Math.min(width, width - (now - bar.end) * scale);
  if (to < left) return;
  const group = make("g", {
    class: `vega-bar vega-bar-${bar.state}${bar.stale ? " vega-bar-stale" : ""}`,
  });
  group.append(make("title", {}, bar.title ?? bar.state));
  const box = { x: from + 0.5, y, width: Math.max(3, to - from - 1), height: BAR, rx: 3 };
  if (bar.stale) box["stroke-dasharray"] = "4 3";
  group.append(make("rect", box));
  if (bar.joined) {
    const isRoomy = to - from > 34;
    const place = isRoomy
      ? { x: to - 5, "text-anchor": "end" }
      : from - left > 34
        ? { x: from - 3, "text-anchor": "end", class: "vega-bar-outside" }
        : { x: to + 4, "text-anchor": "start", class: "vega-bar-outside" };
    group.append(make("text", { ...place, y: y + BAR - 4 }, `+${bar.joined}`));
  }
  svg.append(group);
}

/**
 * Draw lanes into an element, in place of what it holds.
 *
 * @param {Element} host Is filled, at its width.
 * @param {{now: number, span: number, label?: string, lanes: {label: string, href?: string,
 *   bars: {start: number, end: number|null, joined: number, state: string, stale: boolean,
 *   title?: string}[]}[]}} picture Times are seconds since the epoch, by the server's clock; an end
 *   of null is none yet. Beyond 50 lanes and 1,000 bars nothing is drawn.
 */
export function drawLanes(host, { now, span, lanes, label }) {
  const width = Math.max(240, Math.floor(host.clientWidth) || 640);
  const left = Math.min(LABELS_PX, Math.floor(width * LABELS));
  const shown = lanes.slice(0, MOST_LANES);
  const height = shown.length * LANE + AXIS;
  const svg = make("svg", {
    class: "vega-lanes",
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    // Links inside of what is one image could not be reached.
    role: shown.some((lane) => lane.href) ? "group" : "img",
    "aria-label": label ?? shown.map((lane) => lane.label).join(", "),
  });
  drawAxis(svg, { left, width, height, span });
  let bars = 0;
  for (const [place, lane] of shown.entries()) {
    const y = place * LANE + (LANE - BAR) / 2;
    const name = make(
      "text",
      { class: "vega-lanes-label", x: 0, y: y + BAR - 4 },
      shortened(lane.label, left),
    );
    name.append(make("title", {}, lane.label));
    if (lane.href) {
      const link = make("a", { href: lane.href });
      link.append(name);
      svg.append(link);
    } else {
      svg.append(name);
    }
    for (const bar of lane.bars) {
      if (bars === MOST_BARS) break;
      bars += 1;
      drawBar(svg, bar, { y, left, width, now, span });
    }
  }
  host.replaceChildren(svg);
}
