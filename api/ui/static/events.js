// What happened in the last day: what the nodes logged, versions of the rules, and entries beside them.
import { make, shown } from './dom.js';
import { get } from './node.js';

const day = 24 * 3600 * 1000;
const known = /^(rules are in force|an entry was changed|entries were restored)/; // what is told by versions and entries, with more

// eventsOf returns the events of the last day, the newest first.
export async function eventsOf() {
  const [logged, versions, log] = await Promise.all([get('v1/events?n=100'), get('v1/rules/versions'), get('v1/entries/log?n=50')]);
  const list = [
    ...logged.events.filter((e) => !known.test(e.text)).map((e) => ({ key: `l${e.at_ms} ${e.text} ${e.nodes.join()}`, at: e.at_ms, what: loggedText(e) })),
    ...versions.versions.map((v) => ({ key: `v${v.version}`, at: Date.parse(v.when), what: versionText(v) })),
    ...log.changes.map((c) => ({ key: `e${c.version}`, at: Date.parse(c.when), what: changeText(c) })),
  ];
  return list.filter((e) => e.at > Date.now() - day).sort((a, b) => b.at - a.at);
}

// sinceOf returns since when members are as they are: by name, when the nodes last logged that one failed or left.
export async function sinceOf() {
  const { events } = await get('v1/events?n=200');
  const out = new Map();
  for (const e of events) {
    const [, name] = /^(\S+) has (?:failed|left)$/.exec(e.text) ?? [];
    if (name && !out.has(name)) out.set(name, e.at_ms);
  }
  return out;
}

function loggedText(e) {
  const { reason, error } = e.fields;
  const more = [e.nodes.length ? `said by ${e.nodes.map((n) => shown(n)).join(', ')}` : '', e.count > 1 ? `${e.count} times` : '', shown(reason ?? error ?? '', 200)];
  return [make('span', { class: e.level === 'info' ? '' : e.level === 'error' ? 'bad-text' : 'warn-text' }, shown(e.text, 300)), make('small', {}, more.filter(Boolean).join(' · '))];
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
