// Charts, drawn by hand: lines with gaps where nothing is known, and a bar in parts. Both say nothing that does not stand
// beside them as text; so readers of screens are spared the lines.
import { make, rate, setText } from './dom.js';
import { ways } from './rates.js';

const space = 'http://www.w3.org/2000/svg';
const height = 40;

function drawing(tag, attributes) {
  const e = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  return e;
}

// line draws the named values of a history of at most slots readings, newest at the right, into the element. The first one
// is the highest. It returns the value at the upper edge, which round makes of the highest.
export function line(parent, history, names, slots, round = (n) => n) {
  let svg = parent.firstElementChild;
  if (!svg) {
    svg = drawing('svg', { class: 'line', viewBox: `0 0 ${slots - 1} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' });
    for (const name of names) svg.append(drawing('path', { class: `area ${name}` }), drawing('path', { class: name }));
    parent.append(svg);
  }
  const most = round(Math.max(0, ...history.map((h) => h?.[names[0]] ?? 0))) || 1;
  names.forEach((name, i) => {
    const [area, stroke] = paths(history, name, most, slots);
    svg.children[2 * i].setAttribute('d', area);
    svg.children[2 * i + 1].setAttribute('d', stroke);
  });
  return most;
}

function paths(history, name, most, slots) {
  let area = '';
  let stroke = '';
  let run = [];
  if (!history.some((h) => h?.[name])) return ['', '']; // a line along the bottom says nothing
  const end = () => {
    if (run.length > 1) {
      const points = run.map(([x, y]) => `${x} ${y.toFixed(1)}`).join('L');
      stroke += `M${points}`;
      area += `M${run[0][0]} ${height}L${points}L${run.at(-1)[0]} ${height}Z`;
    }
    run = [];
  };
  history.forEach((h, i) => {
    if (!h) return end();
    run.push([slots - history.length + i, height - height * (h[name] / most)]);
  });
  end();
  return [area, stroke];
}

// even is the next number above that is easy to halve.
export function even(n) {
  if (n <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(n));
  return unit * [1, 2, 4, 6, 8, 10].find((f) => f * unit >= n * 0.999999);
}

// plot is line with axes: values at the left, and below the names of moments, from the oldest on. It returns the highest value.
export function plot(parent, history, names, slots, moments) {
  if (!parent.firstElementChild) {
    const axis = (name) => make('p', { class: name, 'aria-hidden': 'true' });
    parent.append(axis('values'), make('div', { class: 'chart' }), axis('moments'));
    parent.children[0].append(...[0, 1, 2].map(() => make('span')));
    parent.children[2].append(...moments.map(() => make('span')));
  }
  const [values, chart, below] = parent.children;
  const most = line(chart, history, names, slots, even);
  [most, most / 2, 0].forEach((n, i) => setText(values.children[i], rate(n)));
  moments.forEach((text, i) => setText(below.children[i], text));
  return most;
}

// stack draws how much of all each way to decide has.
export function stack(bar, byWay) {
  if (!bar.firstElementChild) bar.append(...ways.map((way) => make('span', { class: `way-${way}` })));
  const all = ways.reduce((n, way) => n + (byWay?.[way] ?? 0), 0);
  ways.forEach((way, i) => {
    const part = all ? (100 * (byWay[way] ?? 0)) / all : 0;
    bar.children[i].style.width = `${part.toFixed(2)}%`;
  });
}
