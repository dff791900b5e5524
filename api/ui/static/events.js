// What happened in the last day: what the nodes logged, versions of the rules, and entries beside them.
import { make, shown, span } from './dom.js';
import { get } from './node.js';
import { clock } from './parts.js';

const day = 24 * 3600 * 1000;
const known = /^(rules are in force|an entry was changed|entries were restored)/; // what is told by versions and entries, with more

const most = 1000; // events that are asked for: all that nodes keep, as far as one answer has them

// eventsOf returns the events of the last day, the newest first, and the outages among them.
export async function eventsOf() {
  const [logged, versions, log] = await Promise.all([get(`v1/events?n=${most}`), get('v1/rules/versions'), get('v1/entries/log?n=50')]);
  const outages = outagesOf(logged.events);
  const list = [
    ...folded(logged.events.filter((e) => !known.test(e.text) && !isOfOutage(e))).map((e) => ({ key: `l${e.key}`, at: e.at_ms, what: loggedText(e) })),
    ...versions.versions.map((v) => ({ key: `v${v.version}`, at: Date.parse(v.when), what: versionText(v) })),
    ...log.changes.map((c) => ({ key: `e${c.version}`, at: Date.parse(c.when), what: changeText(c) })),
  ];
  return { list: list.filter((e) => e.at > Date.now() - day).sort((a, b) => b.at - a.at), outages };
}

const shortest = 5000; // milliseconds that a process stands still before that is an outage, if no other node has noticed it

// stoodStill is for how many milliseconds a process did not run, if an event says that.
const stoodStill = (e) => (/^this process did not run/.test(e.text) ? milliseconds(e.fields.for) : 0);
const isOfOutage = (e) => /^\S+ (has failed|is back|has restarted)$/.test(e.text) || stoodStill(e) >= shortest;

// membersOf asks for the outages of the last day, and who leads since when.
export async function membersOf() {
  const { events } = await get(`v1/events?n=${most}`);
  const leads = events.find((e) => / leads$/.test(e.text));
  return { outages: outagesOf(events), leads: leads && { name: leads.text.replace(/ leads$/, ''), at: leads.at_ms } };
}

// milliseconds reads a duration as a log line has it, such as 1m2.5s.
function milliseconds(text) {
  const units = { h: 3600000, m: 60000, s: 1000, ms: 1 };
  return [...String(text ?? '').matchAll(/([\d.]+)(ms|h|m|s)/g)].reduce((sum, [, n, unit]) => sum + n * units[unit], 0);
}

// outagesOf makes outages of events, which come the newest first: of which node, from when, to when (0: it is not back), by whom they
// were logged, and whether its process stood still. A node that itself was away saw the others fail: more of them saw it.
export function outagesOf(events) {
  const all = [];
  const open = new Map();
  for (const e of [...events].reverse()) {
    const [, name, what] = /^(\S+) (has failed|has left|is back|has restarted|has joined)$/.exec(e.text) ?? [];
    const one = open.get(name);
    if (what === 'has failed' && !one) {
      const outage = { name, from: e.at_ms, to: 0, by: e.nodes, stopped: false };
      open.set(name, outage);
      all.push(outage);
    } else if (what === 'has failed') one.by = [...new Set([...one.by, ...e.nodes])];
    else if (one) {
      one.to = e.at_ms;
      one.left = what === 'has left';
      open.delete(name);
    } else if (what === 'has restarted') all.push({ name, from: e.at_ms, to: e.at_ms, by: e.nodes, stopped: false });
  }
  for (const e of events.filter(stoodStill)) {
    for (const name of e.nodes) {
      const outage = { name, from: e.at_ms - stoodStill(e), to: e.at_ms, by: [name], stopped: true };
      const same = all.find((o) => o.name === name && overlap(o, outage));
      if (same) same.stopped = true;
      else if (stoodStill(e) >= shortest) all.push(outage);
    }
  }
  const others = (o) => o.by.every((name) => all.some((p) => p !== o && p.name === name && overlap(o, p) && (p.stopped || p.by.length > o.by.length)));
  return all.filter((o) => o.by.includes(o.name) || !others(o)).sort((a, b) => b.from - a.from);
}

const nearby = 15000; // milliseconds by which nodes notice something apart

const overlap = (a, b) => a.from <= (b.to || Infinity) + nearby && b.from <= (a.to || Infinity) + nearby;

// outageText says when a node was away, and for how long.
export function outageText({ name, from, to, by, left, stopped }) {
  if (by.join() === name) return `${shown(name)} did not run from ${clock(from)} to ${clock(to)} (${span(to - from)})`;
  const why = stopped ? '; its process did not run' : '';
  if (!to) return `${shown(name)} failed at ${clock(from)} and is not back${why}`;
  if (from === to) return `${shown(name)} restarted at ${clock(from)}${why}`;
  return `${shown(name)} failed at ${clock(from)}, ${left ? 'left' : 'back'} at ${clock(to)} (${span(Math.max(1000, to - from))})${why}`;
}

const links = /relay|directly again|connection to a node|connected to a node|be(en)? joined$|can't be joined/;

// folded joins events that say the same of the same node, and all about its links: what flaps is one line with a number.
function folded(events) {
  const out = new Map();
  for (const e of events) {
    const about = e.fields.name ?? '';
    const key = links.test(e.text) ? `links ${about}` : [e.text, about, / leads$/.test(e.text) ? e.at_ms : e.nodes.join()].join(' ');
    const one = out.get(key);
    if (one) Object.assign(one, { count: one.count + e.count, first: e.at_ms, nodes: [...new Set([...one.nodes, ...e.nodes])] });
    else out.set(key, { ...e, key, first: e.at_ms });
  }
  return [...out.values()];
}

// liftsOf returns the lifts of blocks that refusals began. No entry was written for these.
export async function liftsOf() {
  const { events } = await get(`v1/events?n=${most}`);
  return events.filter((e) => / was lifted$/.test(e.text)).map((e) => ({ key: `l${e.at_ms} ${e.fields.key}`, at: e.at_ms, what: loggedText(e) }));
}

// sinceOf returns since when members are as they are: by name, when the nodes last logged that one failed or left.
export async function sinceOf() {
  const { events } = await get(`v1/events?n=${most}`);
  const out = new Map();
  for (const e of events) {
    const [, name] = /^(\S+) has (?:failed|left)$/.exec(e.text) ?? [];
    if (name && !out.has(name)) out.set(name, e.at_ms);
  }
  return out;
}

// loggedText says what nodes logged, of which node: "this node" is the one that said it.
function loggedText(e) {
  const { reason, error, name, rule, key, by } = e.fields;
  const mine = /\bthis (node|process)\b/.test(e.text);
  const said = e.nodes.map((n) => shown(n)).join(', ');
  const text = `${mine ? `${said}: ` : ''}${name ? e.text.replace(/\ba node\b/, () => shown(name)) : e.text}`;
  const more = [key !== undefined && rule ? `${shown(key)} of ${shown(rule)}` : '', by ? `by ${shown(by)}` : '', said && !mine ? `said by ${said}` : '', e.count > 1 ? `${e.count} times${e.first < e.at_ms ? ` since ${clock(e.first)}` : ''}` : '', shown(reason ?? error ?? '', 200)];
  return [make('span', { class: e.level === 'info' ? '' : e.level === 'error' ? 'bad-text' : 'warn-text' }, shown(text, 300)), make('small', {}, more.filter(Boolean).join(' · '))];
}

function versionText(v) {
  const by = [v.by, v.via].filter(Boolean).join(', ');
  return [make('a', { href: '#/document' }, `Version ${v.version}`), ` of the rules: ${shown(v.what)}`, make('small', {}, [by && `by ${shown(by)}`, v.message && shown(v.message, 200)].filter(Boolean).join(' · '))];
}

// changeText says what a change of an entry was.
export function changeText(c) {
  const item = c.after ?? c.before;
  const what = c.ended ? 'ended' : c.after ? (c.before ? 'changed' : 'added') : 'removed';
  const note = item.entry.note ? ` · ${shown(item.entry.note, 200)}` : '';
  return [make('span', {}, `${item.kind} ${entryText(item)} ${what}`), make('small', {}, `${c.by ? `by ${shown(c.by)}` : ''}${note}`)];
}

const meta = ['until', 'note', 'by', 'when', 'origin'];

// entryText says what an entry is about.
export function entryText({ kind, entry }) {
  if (kind === 'block') return `${shown([entry.key].flat().join(' · '))} of rule ${shown(entry.rule)}`;
  if (kind === 'subject') {
    const limits = Object.keys(entry.limits ?? {});
    return [`${shown(entry.attribute)}=${shown(entry.value)}`, entry.tier ? `tier ${shown(entry.tier)}` : '', limits.length ? `limits of ${limits.map((l) => shown(l)).join(', ')}` : ''].filter(Boolean).join(', ');
  }
  return Object.entries(entry).filter(([name]) => !meta.includes(name)).map(([name, value]) => `${shown(name)}=${shown([value].flat().join(', '))}`).join(', ');
}
