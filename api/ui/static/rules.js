// The rules in force with what they decide, the busiest first. A document may have a thousand: a few are shown, and a
// filter finds the others.
import { byId, keyed, make, number, rate, setClass, setText, shown } from './dom.js';
import { line, stack } from './chart.js';

const rows = 25;
const settle = 5000; // milliseconds that an order stays, so that rows can be read and hit

let order = []; // names
let ordered = 0; // when
let orderedFor = null;

// limitsText says what a rule limits, shortly.
export function limitsText(rule) {
  if (!rule.limits) return rule.tiered ? 'limits by tier' : '';
  return rule.limits.map((l) => `${number(l.limit)} ${l.unit ?? 'requests'} / ${l.per}`).join(', ');
}

function matchText(match) {
  const all = Object.entries(match ?? {}).map(([name, value]) => `${name}: ${[value].flat().join(', ')}`);
  return all.length ? `where ${all.join('; ')}` : '';
}

function describe(rule) {
  const key = rule.key?.length ? `by ${rule.key.join(', ')}` : 'one for all';
  const text = [limitsText(rule), key, matchText(rule.match)].filter(Boolean).join(' · ');
  return text.length > 160 ? `${text.slice(0, 159)}…` : text;
}

export function showRules(doc, meter, choose) {
  const filter = byId('rules-filter').value.trim().toLowerCase();
  const rules = new Map((doc?.rules ?? []).map((r) => [r.name, r]));
  reorder(rules, meter, filter, doc);
  const list = order.slice(0, rows).map((name) => ({ name, rule: rules.get(name), live: meter.rules.get(name) }));
  let note = `${number(rules.size)} in force`;
  if (doc) note += `, version ${doc.rules_version}`;
  if (filter) note += `, ${number(order.length)} with “${filter}”`;
  if (order.length > rows) note += `; the ${rows} busiest are shown`;
  setText(byId('rules-note'), doc ? note : 'Not known yet.');
  keyed(byId('rules'), list, (r) => r.name, (r) => create(r.name, choose), update);
}

function reorder(rules, meter, filter, doc) {
  const asked = `${filter} ${doc?.rules_version} ${meter.rates ? 1 : 0}`;
  if (asked === orderedFor && Date.now() - ordered < settle) return;
  orderedFor = asked;
  ordered = Date.now();
  const busy = (name) => meter.rules.get(name)?.smooth ?? 0;
  const place = new Map([...rules.keys()].map((name, i) => [name, i]));
  order = [...rules.values()]
    .filter((r) => !filter || `${r.name} ${describe(r)}`.toLowerCase().includes(filter))
    .map((r) => r.name)
    .sort((a, b) => busy(b) - busy(a) || place.get(a) - place.get(b));
}

function create(name, choose) {
  const button = make('button', { type: 'button', class: 'link', title: 'Use it in the forms' }, shown(name));
  button.addEventListener('click', () => choose(name));
  return make('tr', {}, make('td', {}, button, make('span'), make('small')), make('td', { class: 'num' }), make('td', { class: 'num' }),
    make('td', { class: 'wide' }, make('div', { class: 'stack' })), make('td', { class: 'wide' }));
}

function update(row, { rule, live }) {
  const [name, checks, refused, ways, chart] = row.cells;
  const [, tag, small] = name.children;
  setText(tag, rule?.shadow ? 'shadow' : '');
  setClass(tag, rule?.shadow ? 'tag' : '');
  setText(small, rule ? describe(rule) : '');
  setText(checks, rate(live ? live.rate?.checks : 0));
  const n = live?.rate ? live.rate.refused + live.rate.shadow : 0;
  setText(refused, rate(live ? (live.rate ? n : null) : 0));
  setClass(refused, n > 0 ? (rule?.shadow ? 'num warn-text' : 'num bad-text') : 'num');
  stack(ways.firstElementChild, live?.rate?.ways);
  const parts = Object.entries(live?.rate?.ways ?? {}).filter(([, v]) => v > 0).map(([way, v]) => `${way} ${rate(v)}/s`);
  ways.firstElementChild.title = parts.join(', ');
  line(chart, live?.history ?? [], ['checks', 'refused']);
}
