// The rules in force with what they decide, the busiest first. A document may have a thousand: a few are shown, and a
// filter finds the others.
import { byId, keyed, make, number, rate, setClass, setText, shown } from './dom.js';
import { line, stack } from './chart.js';
import { kept } from './rates.js';
import { ruleAddress } from './address.js';
import { store } from './store.js';

const rows = 25;
const settle = 5000; // milliseconds that an order stays, so that rows can be read and hit

export const rules = {
  open() {
    orderedFor = null;
    byId('rules-filter').addEventListener('input', showRules);
  },
  show: showRules,
};

let order = []; // names
let ordered = 0; // when
let orderedFor = null;

// limitText says what a limit is.
function limitText(l) {
  if (l.unlimited) return l.unit ? `${l.unit} without limit` : 'no limit';
  return `${number(l.limit)} ${l.unit ?? (l.ttl ? 'at once' : 'requests')}${l.per ? ` / ${l.per}` : ''}`;
}

// limitsText says what a rule limits, shortly.
export function limitsText(rule) {
  if (rule.limits === 'unlimited') return 'no limit';
  if (!Array.isArray(rule.limits)) return rule.tiered ? 'limits by tier' : '';
  return rule.limits.map(limitText).join(', ');
}

// keyName is a part of a key: an attribute, or the first of several that is there.
export const keyName = (part) => [part].flat().join(' or else ');

function matchText(match) {
  const all = Object.entries(match ?? {}).map(([name, value]) => `${name}: ${[value].flat().join(', ')}`);
  return all.length ? `where ${all.join('; ')}` : '';
}

export function describe(rule) {
  const key = rule.key?.length ? `by ${rule.key.map(keyName).join(', ')}` : 'one for all';
  const text = [limitsText(rule), key, matchText(rule.match)].filter(Boolean).join(' · ');
  return text.length > 160 ? `${text.slice(0, 159)}…` : text;
}

// badges say what a rule does beside refusing, each with a meaning; factors has what adaptive rules multiply by at this node.
export function badges(rule, factors) {
  const list = [];
  if (rule.shadow) list.push(['shadow', 'counts and reports, never refuses']);
  if (rule.block) list.push([`block ${[rule.block].flat().join(', ')}`, `a subject that was refused stays refused for ${[rule.block].flat().join(', then ')}`]);
  if (rule.on_limit === 'delay') list.push(['delay', `what is over the limit is allowed after a delay, of ${rule.max_delay ?? '5s'} at most`]);
  if (rule.adaptive) {
    const factor = factors?.get(rule.name) ?? 1;
    list.push([factor === 1 ? 'adaptive' : `adaptive × ${factor}`, `follows the load ${rule.adaptive.source}`]);
  }
  if (rule.scope === 'global') list.push(['global', 'one limit of all regions']);
  return list;
}

function showRules() {
  const { doc, meter, factors } = store;
  const filter = byId('rules-filter').value.trim().toLowerCase();
  const rules = new Map((doc?.rules ?? []).map((r) => [r.name, r]));
  reorder(rules, meter, filter, doc);
  const list = order.slice(0, rows).map((name) => ({ name, rule: rules.get(name), live: meter.rules.get(name), factors }));
  let note = `${number(rules.size)} in force`;
  if (doc) note += `, version ${doc.rules_version}`;
  if (filter) note += `, ${number(order.length)} with “${filter}”`;
  if (order.length > rows) note += `; the ${rows} busiest are shown`;
  setText(byId('rules-note'), doc ? note : 'Not known yet.');
  keyed(byId('rules-list'), list, (r) => r.name, (r) => create(r.name), update);
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

function create(name) {
  return make('tr', {}, make('td', {}, make('a', { href: ruleAddress(name) }, shown(name)), make('span', { class: 'tags' }), make('small')), make('td', { class: 'num' }), make('td', { class: 'num' }),
    make('td', { class: 'wide' }, make('div', { class: 'stack' })), make('td', { class: 'wide num' }, make('div'), make('small')));
}

function update(row, { rule, live, factors }) {
  const [name, checks, refused, ways, chart] = row.cells;
  const [, tags, small] = name.children;
  keyed(tags, rule ? badges(rule, factors) : [], (b) => b[0], ([text, meaning]) => make('span', { class: 'tag', title: shown(meaning) }, shown(text)), () => {});
  setText(small, rule ? describe(rule) : '');
  setText(checks, rate(live ? live.rate?.checks : 0));
  const n = live?.rate ? live.rate.refused + live.rate.shadow : 0;
  setText(refused, `${rule?.shadow && n > 0 ? 'would be ' : ''}${rate(live ? (live.rate ? n : null) : 0)}`);
  setClass(refused, n > 0 ? (rule?.shadow ? 'num warn-text' : 'num bad-text') : 'num');
  stack(ways.firstElementChild, live?.rate?.ways);
  const parts = Object.entries(live?.rate?.ways ?? {}).filter(([, v]) => v > 0).map(([way, v]) => `${way} ${rate(v)}/s`);
  ways.firstElementChild.title = parts.join(', ');
  const most = line(chart.firstElementChild, live?.history ?? [], ['checks', 'refused'], kept);
  setText(chart.lastElementChild, live?.history.some((h) => h?.checks) ? `0 to ${rate(most)}/s` : '');
}
