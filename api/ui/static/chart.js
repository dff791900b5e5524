// Small charts, drawn by hand: a line with a gap where nothing is known, and a bar in parts. Both say nothing that does
// not stand beside them as text; so readers of screens are spared the line.
import { make } from './dom.js';
import { kept, ways } from './rates.js';

const space = 'http://www.w3.org/2000/svg';
const height = 40;

function drawing(tag, attributes) {
  const e = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  return e;
}

// line draws the named values of a history, newest at the right, into the element; the first one is the highest.
export function line(parent, history, names) {
  let svg = parent.firstElementChild;
  if (!svg) {
    svg = drawing('svg', { class: 'line', viewBox: `0 0 ${kept - 1} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' });
    for (const name of names) svg.append(drawing('path', { class: `area ${name}` }), drawing('path', { class: name }));
    parent.append(svg);
  }
  const most = Math.max(1, ...history.map((h) => h?.[names[0]] ?? 0));
  names.forEach((name, i) => {
    const [area, stroke] = paths(history, name, most);
    svg.children[2 * i].setAttribute('d', area);
    svg.children[2 * i + 1].setAttribute('d', stroke);
  });
}

function paths(history, name, most) {
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
    run.push([kept - history.length + i, height - (height - 2) * (h[name] / most)]);
  });
  end();
  return [area, stroke];
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
